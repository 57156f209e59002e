/* What placement.c (the problem), placement_choices.c (what a block may do) and placement_dp.c (the
 * dynamic program over them) share; else schedule.c and tests include it, nobody. */
#pragma once

#include "plan/placement.h"

/* Which device has the activations between blocks: C, G, or both. */
enum { STATE_C, STATE_G, STATE_B, N_STATES };
enum { DP_MAX_CHOICES = UINT16_MAX - 1 };

/* One thing that a stage may do. */
struct dp_choice {
    int quanta;
    double time_s;
    uint8_t entry, exit; /* states */
    uint32_t mask;       /* bit i: item i of the block is on the GPU */
    int units;           /* > 0: the block is divided */
};
/* A block, or a layer. The costs are of the change into it. */
struct dp_stage {
    const struct dp_choice *choices;
    int n_choices;
    double up_s, down_s, exchange_s;
};

/* From state p to entry e of a stage, scheduling.md 3. */
static inline double dp_transition(const struct dp_stage *s, int from, int to) {
    if (from == STATE_B && to == STATE_B) return s->exchange_s;
    if (from == to) return 0;
    if (from == STATE_C || (from == STATE_B && to == STATE_G)) return s->up_s;
    return s->down_s;
}

struct dp_table;
/* Solved for every budget of `least` to `most` quanta. end_s: from G or B to the host at the end.
 * Stages are borrowed until it is freed. Owned. */
struct dp_table *dp_solve(const struct dp_stage *stages, int n_stages, int least, int most,
                          double end_s);
void dp_free(struct dp_table *t); /* accepts NULL */
/* The choice of every stage for a budget, and the time. Budgets above `most` are as that. False:
 * nothing fits. */
bool dp_read(const struct dp_table *t, int budget, int *choices, double *time_s);

/* Part of an objective: weight * time of a round of so many tokens, and rows that are wanted, at a
 * depth. streamed: of a prefill in which the host's weights are copied while the GPU computes
 * everything; the time is that of what lives on the host, choices_host_time. */
struct term {
    double weight, n_tokens, n_rows, depth;
    bool streamed;
};
struct objective {
    struct term terms[PLACEMENT_MAX_DEPTHS + 2];
    int n_terms;
};

enum { PATH_MAX_ITEMS = 8 }; /* of a block whose every assignment is looked at */
enum {
    CHOICES_PATHS = 1,  /* every item by itself; else all free items on one side */
    CHOICES_SPLITS = 2, /* divisions in units */
};
/* What a block may do under what is fixed; in the arena. */
int choices_of_block(struct arena *arena, const struct items *items, int block,
                     const struct objective *o, const struct placement_options *options, int flags,
                     struct dp_choice **out);
/* Drops what can never be part of the best chain: choices that another one, and a device change
 * where entry or exit differ, does not take more bytes or time than. next: the stage after, NULL:
 * the end, which costs end_s from G and B. Returns how many are left, in place. */
int choices_prune(struct dp_choice *choices, int n, const struct dp_stage *here,
                  const struct dp_stage *next, double end_s);
/* Cost of the change into a block. */
void choices_transitions(const struct items *items, int block, const struct objective *o,
                         struct dp_stage *stage);
double choices_end(const struct items *items, const struct objective *o);
/* Time of a block by itself for a term: items on the sides of `mask`, activations at `entry`. */
double choices_path_time(const struct items *items, int block, const struct term *t, uint32_t mask,
                         int entry, int *exit, int *n_changes);
/* What crosses to an item's device before it: floats a token, 0 if all it needs is there. `crossed`
 * has a bit for each item of the block whose result is on both sides, and the one above for the
 * entry: consumers of one value pay its copy once. */
double choices_crossing_width(const struct items *items, const struct items_block *b, int i,
                              uint32_t mask, int entry, uint32_t *crossed);
/* Lines that an item works on. */
static inline double term_lines(const struct items *items, int item, const struct term *t) {
    return items->items[item].rows ? t->n_rows : t->n_tokens;
}
/* What a share of an item costs a streamed round by being on the host: its copy, or an attention
 * computed there, where its cache is. */
double choices_host_time(const struct items *items, int item, const struct term *t, double share);
/* The same of all that a placement has on the host, for a chunk of a prompt. */
double placement_host_cost(const struct items *items, const struct placement_options *o,
                           const struct placement *p);
/* Share of an item's units that the GPU has: all or nothing, or that of its divided block. */
double placement_gpu_share(const struct items *items, const struct placement *p, int item);
/* A chunk of a prompt, of which one row is wanted, in a streamed prefill. */
struct term prefill_term(const struct placement_options *o, double weight);
/* Everything on the host, its sizes and times not set. In the arena. */
struct placement *placement_blank(struct arena *arena, const struct items *items);
/* Time of a block divided so that the GPU has so many units; residents: of experts, else NULL.
 * *no_miss: how likely it is that the host has no part in it. */
double choices_split_time(const struct items *items, int block, const struct term *t, int units,
                          const uint8_t *residents, double *no_miss);
/* Bringing the host's part of the sum of divided experts to the GPU: nothing if it has none. */
double choices_gather_time(const struct items *items, int block, const struct term *t,
                           double no_miss);
/* Which experts are resident when `units` may be: (n_experts), in the arena. */
uint8_t *choices_residents(struct arena *arena, const struct item *item, int units, bool scattered);
