/*
 * What executor.c and switch.c share: an executor in its parts, so that a switch of plans may hand
 * over what stays. Nobody else includes it.
 */
#pragma once

#include "base/arena.h"
#include "base/races.h"
#include "run/executor.h"

/* One of the plan's programs, ready to run. */
struct prepared {
    struct backend_weight **weights;   /* (n_shards) those of holdings are borrowed */
    struct step *steps;                /* in the program's `order`; what segments borrow */
    struct backend_segment **segments; /* (n_segments) */
    struct backend_copy **copies;      /* (n_transfers) */
    /* how far a round moves a device's timelines: its segments, its copies */
    uint64_t per_round[EXECUTOR_MAX_DEVICES], n_copies[EXECUTOR_MAX_DEVICES];
    struct round_times times; /* if timed */
};

struct executor {
    struct arena arena;
    const struct model *model;
    const struct plan *plan;
    struct executor_options o;
    backend_soft_cap_fn *soft_cap;
    struct programs programs;
    struct prepared prepared[MAX_PROGRAMS];
    struct backend *devices[EXECUTOR_MAX_DEVICES];
    int n_devices;
    struct held {
        struct backend_weight *weight;
        struct backend_home *home;
    } * held;                      /* (n_holdings) one of the two */
    bool *fresh;                   /* (n_holdings) while they are loaded */
    struct backend_kv **kvs;       /* (n_kvs) of the first program */
    struct backend_state **states; /* (n_states) the same */
    void *exchange;
    struct ledger ledger;
    uint64_t value[EXECUTOR_MAX_DEVICES];     /* timelines, before the current round */
    uint64_t submitted[EXECUTOR_MAX_DEVICES]; /* the last value that each was asked for */
    uint64_t copied[EXECUTOR_MAX_DEVICES];    /* timelines of copies, before the current round */
    /* Whose first copies of a next round stand in a device's slots already (their values come
     * next); -1: nobody's. Those that turn out not to come next stay there until another program
     * needs the slots. */
    int ahead[EXECUTOR_MAX_DEVICES];
    uint64_t unread[EXECUTOR_MAX_DEVICES]; /* 0, or values up to here are of copies that the current
                                              round passes over */
    int current;                           /* program of the current round, or of the last one */
    bool timed;
    const struct round_times *last_times; /* of the last round, if it was timed and did not fail */
    struct races *races;                  /* debug builds; else NULL */
};

/* The programs, counted and checked against memory; nothing is taken. *out owned, also after an
 * error. */
MUST_CHECK ats_status executor_make(const struct model *model, const struct plan *plan,
                                    struct backend *const *devices,
                                    const struct executor_options *options, struct executor **out);
/* Exchange and work memory, which the devices have in place of what was reserved before. */
MUST_CHECK ats_status executor_reserve(struct executor *e);
/* Those that are not there yet. */
MUST_CHECK ats_status executor_open_caches(struct executor *e);
/* A holding as it is to be loaded. */
struct weight_source executor_source(const struct executor *e, int holding);
static inline bool executor_has(const struct executor *e, int holding) {
    return e->held[holding].weight || e->held[holding].home;
}
/* Segments, copies, and what stands in slots or reads a home in place. */
void executor_drop_segments(struct executor *e);
void executor_drop_homes(struct executor *e); /* holdings, caches, states that are there */
void executor_drop_exchange(struct executor *e);
