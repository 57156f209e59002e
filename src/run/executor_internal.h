/*
 * What executor.c and switch.c share: an executor in its parts, so that a switch of plans may hand
 * over what stays. Nobody else includes it.
 */
#pragma once

#include "base/arena.h"
#include "base/races.h"
#include "run/executor.h"

struct executor {
    struct arena arena;
    const struct model *model;
    const struct plan *plan;
    struct executor_options o;
    struct program *program;
    struct backend *devices[EXECUTOR_MAX_DEVICES];
    int n_devices;
    struct backend_weight **weights;   /* (n_shards) */
    bool *fresh;                       /* (n_shards) while they are loaded */
    struct backend_kv **kvs;           /* (n_kvs) */
    struct backend_state **states;     /* (n_states) */
    struct step *steps;                /* in the program's `order`; what segments borrow */
    struct backend_segment **segments; /* (n_segments) */
    void *exchange;
    struct ledger ledger;
    uint64_t value[EXECUTOR_MAX_DEVICES];     /* timelines, before the current round */
    uint64_t submitted[EXECUTOR_MAX_DEVICES]; /* the last value that each was asked for */
    uint64_t
        per_round[EXECUTOR_MAX_DEVICES];   /* how far a round moves them: segments of the device */
    struct backend_copy **copies;          /* (n_transfers) */
    uint64_t copied[EXECUTOR_MAX_DEVICES]; /* timelines of copies, before the current round */
    uint64_t n_copies[EXECUTOR_MAX_DEVICES]; /* how far a round moves them */
    bool *is_ahead;                          /* (n_transfers) the round before has submitted it */
    bool timed, has_times;
    struct round_times times; /* if timed */
    struct races *races;      /* debug builds; else NULL */
};

/* The program, counted and checked against memory; nothing is taken. *out owned, also after an
 * error. */
MUST_CHECK ats_status executor_make(const struct model *model, const struct plan *plan,
                                    struct backend *const *devices,
                                    const struct executor_options *options, struct executor **out);
/* Exchange and work memory, which the devices have in place of what was reserved before. */
MUST_CHECK ats_status executor_reserve(struct executor *e);
/* Those that are not there yet. */
MUST_CHECK ats_status executor_open_caches(struct executor *e);
/* A shard as it is to be loaded. */
struct weight_source executor_source(const struct executor *e, int shard);
void executor_drop_segments(struct executor *e); /* and copies */
void executor_drop_homes(struct executor *e);    /* shards, caches, states that are there */
void executor_drop_exchange(struct executor *e);
