/* Weights and activations for the cases: random, or such that every sum is exact in float. */
#pragma once

#include "check.h"

enum data {
    DATA_RANDOM,  /* scales around 2^-6, all bit patterns */
    DATA_ZERO,    /* all zero */
    DATA_EXACT,   /* scales 1, activations small: all sums are integers below 2^24 */
    DATA_EXTREME, /* scales 1, weights and activations at their limits */
    DATA_COUNT
};
const char *data_name(enum data data);

/* n elements (a multiple of the block) of any weight type. */
void data_weights(struct check *c, enum data data, enum dtype type, void *blocks, int64_t n);
/* Activations of n_tokens in fenced memory. */
struct q8_rows data_q8_rows(struct check *c, enum data data, int n_cols, int n_tokens);
void data_floats(struct check *c, enum data data, float *x, size_t n);
