/*
 * A round of a placed model as a chain that the timeline runs: what is computed where, what may be
 * streamed, and what is (scheduling.md 4). Joins items.h and placement.h to transfer.h and
 * timeline.h; arithmetic only. Made before a prefill and for decode, again when the load changes,
 * and by simulations.
 */
#pragma once

#include "plan/placement.h"
#include "plan/transfer.h"

/* Rows that the host layout keeps together: units and pieces of what is planned, timed and streamed
 * are whole groups (the model's row_group). A plan's file may cut between any two rows. */
enum { PLAN_ROW_GROUP = 16 };

/* What a plan streams of an item's host part. */
struct schedule_given {
    double share; /* in units that its block has in common; or all of it */
    int lot;      /* plan.h, of the first part */
    int n_lots;   /* that it comes in; 0: the plan leaves that to the program */
};

struct schedule_options {
    double n_tokens, n_rows, depth; /* of the round: lines, wanted ones, tokens before it */
    int n_slots;
    double slot_bytes; /* of each; what is larger passes in pieces. 0: as large as it takes */
    bool periodic;     /* rounds in a row: decode, and the chunks of a prompt */
    /* A block that is divisible and all on the host is streamed in units, as a whole: the plan is
     * of granularity shard. Else item by item, all or nothing. Rounds of 32 tokens and more are
     * tried item by item as well, divided blocks too, and the shorter is taken: with few slots a
     * large block hides badly behind a small one. */
    bool by_units;
    /* Caches of the host are copied with the weights, and what a round adds comes back. Else a
     * host's attention stays there, and so do the units of a divided block that has one. */
    bool stream_caches;
    /* Experts of the host stay there; and no round is tried item by item where blocks are streamed.
     * For what is streamed in every round alike, of one token or of many: all experts would come
     * each time. */
    bool keep_experts, keep_blocks;
    /* Experts that are streamed come all, not just those that the round chose: what an executor can
     * do whose copies are made before it knows them. */
    bool whole_experts;
    const int *fixed; /* (n_items), as in placement_options: what has a side stays. NULL */
    /* (n_items) that and nothing else is streamed, whatever the rule, by an executor, whose copies
     * are known before the round. NULL: it is solved. */
    const struct schedule_given *given;
    enum transfer_rule rule;
};

/* Entry i of the chain: items [first, first + n), which one exchange serves if it is divided. */
struct schedule_entry {
    int first, n;
    int n_beside; /* items that follow, whole on the GPU, beside the host's part of divided experts
                   */
    double copy_bytes; /* of its host part, all of it */
    double slot_bytes; /* what a slot needs to hold it */
};

struct schedule {
    struct transfer_problem problem; /* items (n) of the chain */
    struct schedule_entry *entries;  /* (n) */
    struct transfer_schedule transfer;
    bool pieces;           /* blocks stand item by item in the chain (by_units) */
    double copied_bytes;   /* by the copy engine in a round */
    double crossing_bytes; /* activations, both ways */
    /* Every host weight copied before the device uses it, nothing at once: what engines without a
     * schedule do with large batches. */
    struct timeline_result serial;
};

/* Everything in the arena; items and the placement are borrowed. */
void schedule_solve(struct arena *arena, const struct items *items, const struct placement *p,
                    const struct schedule_options *options, struct schedule *out);
/* The schedule `from` carried out by items that are timed otherwise (load.h), or in rounds of other
 * tokens, rows and depth: solved with the same placement and, but for these, the same options. */
void schedule_retime(struct arena *arena, const struct items *items, const struct placement *p,
                     const struct schedule_options *options, const struct schedule *from,
                     struct schedule *out);
/* Of one placement: is the same streamed? */
bool schedule_same(const struct schedule *a, const struct schedule *b);
/* The placement as a plan, with what the schedule streams (of weights: no caches), each entry in
 * one lot, or in pieces if it is larger than slots (slot_bytes; 0: none is). As placement_plan
 * otherwise; the placement's experts are not scattered. */
struct plan *schedule_plan(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule *s, int n_slots,
                           double slot_bytes, int n_devices, int cpu, int gpu);
/* Pieces of an entry at most: of a plan, and of either plan of a pair, which together cut an
 * operator. */
enum { SCHEDULE_PIECES = PLAN_MAX_PARTS - 2, SCHEDULE_PAIR_PIECES = PLAN_MAX_PARTS / 2 - 2 };
/* Pieces in which a share of the weights of n items, which one entry has, passes through slots (0
 * bytes: as large as it takes): of experts whole ones. */
int schedule_pieces(const struct items *items, int first, int n, double share, double slot_bytes);
/* What a slot must hold for any item to come in so many pieces at most; experts: also theirs. */
double schedule_least_slot_bytes(const struct items *items, int n_pieces, bool experts);
/* Two schedules of the placement as a plan and its partner for rounds of prompts_from tokens and
 * more (plan.h), which plan_check_pair accepts: what lies on the host is cut where either cuts. */
struct plan *schedule_pair(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule *decode,
                           const struct schedule *prompts, int prompts_from, int n_slots,
                           double slot_bytes, int n_devices, int cpu, int gpu);
/* The other way: what a plan, with its partner for prompts, streams beside a placement that was
 * read from it (placement.h), its slots and the bytes of the largest lot. Arrays lie in the arena.
 * Errors: UNSUPPORTED naming the item of which a part is streamed that is not its block's. */
struct schedule_streams {
    const struct schedule_given *given;   /* (n_items) */
    const struct schedule_given *prompts; /* (n_items) by the partner; NULL: there is none */
    int prompts_from;                     /* its rounds' tokens, at least */
    int n_slots;
    double slot_bytes;
};
MUST_CHECK ats_status schedule_read_plan(struct arena *arena, const struct items *items,
                                         const struct plan *plan, int gpu,
                                         struct schedule_streams *out);
/* The spans (n of the chain) of the schedule's round. */
void schedule_spans(struct arena *arena, const struct schedule *s, struct timeline_span *spans);
/* Bytes of the largest slot that a placement's chain asks for, at most 256 MiB: what is larger
 * passes in pieces. */
double schedule_slot_bytes(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule_options *options);
/* Buffers of a round of so many tokens, about: a few lines of the widest value for each. */
int64_t schedule_work_bytes(const struct items *items, int n_tokens);
