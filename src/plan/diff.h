/*
 * What is elsewhere in another placement of the same items, and the bytes that would have to move.
 * Arithmetic only. What `plan --diff` tells.
 */
#pragma once

#include "base/json.h"
#include "plan/placement.h"

struct diff_item {
    int item;
    double from_share, to_share;         /* on the GPU, of its units */
    int64_t to_gpu_bytes, to_host_bytes; /* weight and cache; of experts both may be above zero */
};
struct diff {
    struct diff_item *rows; /* (n_rows) only what differs, ascending */
    int n_rows;
    int64_t to_gpu_bytes, to_host_bytes;
};

/* From `from` to `to`; divided blocks have the GPU's units at the same end. In the arena. */
struct diff *placement_diff(struct arena *arena, const struct items *items,
                            const struct placement *from, const struct placement *to);
/* Owned (decref). */
json_t *diff_to_json(const struct diff *d, const struct items *items);
