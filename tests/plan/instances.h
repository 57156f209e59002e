/* Random problems of placement: the graphs of tiny models with drawn sizes, times and costs. */
#pragma once

#include "plan/placement_internal.h"

struct tiny_shape;
extern const struct tiny_shape instance_dense; /* blocks of 3 and 6 units */
extern const struct tiny_shape instance_moe;   /* experts of 8 */

/* n_layers of a shape; densities (time per byte saved) differ by up to `spread` between items.
 * Everything in the arena; the profile may be changed. */
struct items *instance_random(struct arena *arena, struct rng *rng, const struct tiny_shape *shape,
                              int n_layers, double spread);
struct profile *instance_profile(const struct items *items);

/* Of so many floats a token to the GPU (to 1) or the CPU (0). */
double oracle_copy(const struct items *items, int to, double n_tokens, double floats);
/*
 * The cost of a block by the text of scheduling.md 3, written once more: which values are on which
 * device, a copy in each direction paid once. Bit i of mask: item i of the block on the GPU.
 */
double oracle_block(const struct items *items, int block, uint32_t mask, int entry, double n_tokens,
                    double depth, int *exit);
/* From the device that has the activations (2: both) to what a block needs. */
double oracle_move(const struct items *items, int block, int from, int to, double n_tokens);
double oracle_end(const struct items *items, double n_tokens);
