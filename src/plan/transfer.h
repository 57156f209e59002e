/*
 * What of the host's weights is copied to the device for one round, and computed there (S3, S4;
 * Algorithm 2 of the paper). A placement says where everything lives; this decides, for its items
 * in order of execution, how many units of each host part go through a slot. Proposals come from
 * sums that ignore interference; timeline.h judges them, so what is returned is never predicted
 * slower than streaming nothing. Pure arithmetic; used for decode, for the chunks of a prefill, and
 * again when the load changes (then with the times of the moment).
 */
#pragma once

#include "base/arena.h"
#include "plan/timeline.h"

struct transfer_item {
    struct timeline_item base; /* as placed: nothing streamed */
    /* Its host part, if it may come through a slot: seconds of copying and of computing all of it
     * on the device, in so many units that can be streamed apart. n_units 0: it may not. 1: all or
     * nothing. */
    int n_units;
    double copy_s, streamed_s;
    int n_pieces; /* that all of it comes in, timeline.h */
};

enum transfer_rule {
    TRANSFER_NONE,
    TRANSFER_PAPER, /* Algorithm 2, line 17 corrected: c_i * [b_(i-1) = CPU] */
    TRANSFER_LABELS,
    TRANSFER_SHARE, /* the same share of every host part, up to all */
    TRANSFER_ALL,   /* every host part, whole, whether it pays or not */
    TRANSFER_GIVEN, /* none of them: what a plan has (schedule.h) */
    N_TRANSFER_RULES
};
const char *transfer_rule_name(enum transfer_rule rule);

struct transfer_problem {
    const struct transfer_item *items;
    int n;
    struct timeline_machine machine;
    bool periodic; /* rounds in a row, copying ahead; else one round by itself */
};

struct transfer_schedule {
    int *units; /* (n) of each item's host part that are streamed */
    struct timeline_result result;
    enum transfer_rule from;             /* the proposal it grew from */
    double proposed_s[N_TRANSFER_RULES]; /* each rule's round before single flips; by SHARE: best */
    int n_flips;
};

/* The item with k of its n_units streamed; S4 for shares between. */
struct timeline_item transfer_apply(const struct transfer_item *item, int k);
/* S4: units to stream of one item so that both take equally long; 0 where dividing it gains
 * nothing: a * R_c + b * B_up <= R_c. */
int transfer_division(const struct transfer_item *item, const struct timeline_machine *m);

/* Algorithm 2 alone: units (n) are 0 or n_units. Returns the time that its sum predicts. */
double transfer_paper(const struct transfer_problem *p, int *units);
/* The label DP alone: at most 64 labels for each (item, place). start: (n_slots + 1) when the copy
 * engine and, ascending, the slots are free, from the round's start; NULL: at 0. Memory it needs
 * comes from the arena. Returns the time that its sum predicts. */
double transfer_labels(struct arena *arena, const struct transfer_problem *p, const double *start,
                       int *units);
/* The round under timeline.h. units (n); spans (n) or NULL. */
void transfer_evaluate(struct arena *arena, const struct transfer_problem *p, const int *units,
                       struct timeline_result *result, struct timeline_span *spans);

/* All proposals, improved by single flips; the best. TRANSFER_PAPER: its proposal, or nothing if
 * that is better, without flips; TRANSFER_NONE: nothing; TRANSFER_ALL: everything. *out in the
 * arena. */
void transfer_solve(struct arena *arena, const struct transfer_problem *p, enum transfer_rule rule,
                    struct transfer_schedule *out);
