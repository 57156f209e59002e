/*
 * Which bytes of a block of memory are free: ranges that are taken and given back in any order.
 * Arithmetic only; it touches no memory and knows no alignment, so callers take multiples of it.
 * Used by backends for weights, which come and go when a plan changes.
 */
#pragma once

#include "base/base.h"

struct range {
    size_t begin, bytes;
};
struct ranges {
    struct range *free; /* (n) ascending, none next to another; owned */
    size_t n, cap;
    size_t bytes; /* of the block */
};

/* All of it free. */
void ranges_open(struct ranges *r, size_t bytes);
void ranges_close(struct ranges *r);
/* The first that is large enough; false: there is none. bytes 0: at 0. */
bool ranges_take(struct ranges *r, size_t bytes, size_t *begin);
/* What was taken as one. */
void ranges_give(struct ranges *r, size_t begin, size_t bytes);
bool ranges_all_free(const struct ranges *r);
