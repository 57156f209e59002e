/*
 * WHERE, decided: the home of every item of a model on a CPU and a GPU, from the times of a profile
 * and the bytes of device memory (scheduling.md 3). Exact dynamic programs S1 (whole items) and S2
 * (blocks may be divided over both). Arithmetic only. Called at load and by whoever explains,
 * simulates or plans again.
 *
 *   layer   whole layers, the head for itself
 *   expert  all experts of a layer on either side, the rest on the GPU; where the rest does not
 * fit, or there are no experts: layer tensor  S1: every item by itself shard   S2: besides, blocks
 * divided in whole units, both devices at once
 *
 * All granularities count bytes on one grid (items.h), so that each may do what the one before may.
 */
#pragma once

#include "plan/items.h"
#include "plan/plan.h"

enum granularity { GRANULARITY_LAYER, GRANULARITY_EXPERT, GRANULARITY_TENSOR, GRANULARITY_SHARD };

enum { PLACEMENT_MAX_DEPTHS = 4, PLACEMENT_FREE = -1 };

struct placement_options {
    enum granularity granularity;
    bool paper_moe;  /* tensor: all but the experts first if it fits, else experts on the host */
    double n_tokens; /* of a decode round */
    /* The objective: sum of weights[i] * time at depths[i]. */
    int depths[PLACEMENT_MAX_DEPTHS];
    double weights[PLACEMENT_MAX_DEPTHS];
    int n_depths;
    int prefill_tokens, prefill_depth; /* of a chunk of a prompt */
    /* Tokens of a prompt for each that is generated: what is on the host then counts by what it
     * costs a prefill as well. Caches on the host, next to free in decode, are dear there: the CPU
     * has to attend. 0: decode alone, and ties. */
    double prompt_tokens;
    /* Prompts are computed where everything lives, as decode is: nobody copies the host's weights
     * for them. */
    bool prompts_in_place;
    double tie; /* how much slower decode may be for a better prefill: 0.01; 0: not at all */
    /* Any set of experts may be resident, the most popular first; else a range from either end. */
    bool scattered_experts;
    /* (n_items) SIDE_CPU, SIDE_GPU or PLACEMENT_FREE; NULL: all free. */
    const int *fixed;
    /* (n_blocks) units on the GPU of a block that is divided, or PLACEMENT_FREE; NULL. */
    const int *fixed_units;
};
/* shard, T 1, 4 tokens of a prompt for each, half at 2048 and half at 8192, but at most n_ctx / 2,
 * chunks of 512 at 1024, ties 1%. */
struct placement_options placement_options_default(int n_ctx);

/* Where the items are: an item of a divided block has block_units on the GPU, others a home. */
struct placement {
    uint8_t *homes;      /* (n_items) enum side; of divided blocks SIDE_GPU */
    int *units;          /* (n_blocks) on the GPU if the block is divided; 0: it is not */
    uint8_t **residents; /* (n_blocks) NULL but for divided experts: (n_experts) 1: on the GPU */
    int quanta;          /* of the grid, on the GPU; at most the budget */
    int64_t gpu_bytes;   /* exact */
    double decode_s;     /* sum of weights[i] * time at depths[i] */
    double prefill_s;    /* of a chunk, the host's weights copied if that is faster and allowed */
    double objective_s;  /* decode_s, and what prompt_tokens add to it */
};

/*
 * Placements for several budgets of device memory (bytes for weights and caches), all read off one
 * table: out: (n_budgets), in the arena. Errors: BAD_ARGUMENT if a budget is below zero or what is
 * fixed does not fit it.
 */
MUST_CHECK ats_status placement_solve(struct arena *arena, const struct items *items,
                                      const struct placement_options *options,
                                      const int64_t *budgets_bytes, int n_budgets,
                                      struct placement **out);

/* Of the same items, is everything in the same place? */
bool placement_same(const struct items *items, const struct placement *a,
                    const struct placement *b);

/* Everything on a side, and the n first or last layers (the head counts as the last) on the GPU:
 * what others do, to compare with. The sizes and times are set. */
struct placement *placement_whole(struct arena *arena, const struct items *items,
                                  const struct placement_options *options, enum side side);
struct placement *placement_layers(struct arena *arena, const struct items *items,
                                   const struct placement_options *options, int n, bool last);
/* Sets sizes and times of a placement whose homes were set by hand. */
void placement_finish(const struct items *items, const struct placement_options *options,
                      struct placement *p);

/* In the arena, with nothing left in another. */
struct placement *placement_copy(struct arena *arena, const struct items *items,
                                 const struct placement *from);

/* Seconds of a round without streaming, all its device changes included: the sum that the dynamic
 * programs minimise, at any number of tokens, of wanted rows, and depth. */
double placement_time(const struct items *items, const struct placement *p, double n_tokens,
                      double n_rows, double depth);
/* Share of an item that the host has; of experts, of those in use in a round of n_tokens. */
double placement_host_share(const struct items *items, const struct placement *p, int item,
                            double n_tokens);
/* Device changes of a round: one for a copy in either direction, one for an exchange. */
int placement_splits(const struct items *items, const struct placement *p);

/* For tests: as a plan over n_devices of which two are used; the embedding on the CPU. Scattered
 * experts have no plan (REQUIRE). In the arena. */
struct plan *placement_plan(struct arena *arena, const struct items *items,
                            const struct placement *p, int n_devices, int cpu, int gpu);
/* The other way: the placement that a plan is, on the same items; what is streamed lives on the
 * host. Errors: UNSUPPORTED, naming the operator, for what no placement is: operators cut by
 * themselves, or devices besides the two. */
MUST_CHECK ats_status placement_from_plan(struct arena *arena, const struct items *items,
                                          const struct placement_options *options,
                                          const struct plan *plan, int cpu, int gpu,
                                          struct placement **out);
