/* What lower.c (which steps) and lower_memory.c (where their values stand, when they may run)
 * share; nobody else includes it. */
#pragma once

#include "run/lower.h"

/* Memory of one value on one device, or in the exchange. Spans name buffers until they are placed;
 * lifetimes are step indices. */
struct buffer {
    int device; /* -1: exchange */
    int first_column, stride;
    bool rows;
    int64_t bytes, offset_bytes;
    int writer;   /* first step that writes it; -1: not yet */
    int last_use; /* step */
    int n_readers;
    int *readers; /* (n_devices) last reading step of each device, -1; exchange only */
};

struct lower_step {
    struct program_step s;
    int in[STEP_MAX_IN], out; /* buffers */
    int *wait;                /* (n_devices) latest step of that device to wait for, -1 */
    bool cut_after;           /* another device waits for it */
};

struct lowering {
    struct arena *arena;
    const struct graph *g;
    const struct plan *plan;
    int n_tokens, n_rows, n_devices;
    struct lower_step *steps;
    size_t n_steps, cap_steps;
    struct buffer *buffers;
    size_t n_buffers, cap_buffers;
    struct value_state *values; /* (n_values) */
    struct export_entry *exports;
    size_t n_exports, cap_exports;
    struct program *program;
    size_t cap_shards, cap_kvs;
    int logits_buffer;
};

/* Gives every buffer its offset, fills the spans, finds who waits for whom, cuts segments. */
void lower_finish(struct lowering *l);
