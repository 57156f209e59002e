/*
 * What the files of adapt share: adapt.c (load, and the thread that makes plans), adapt_memory.c
 * (the GPU's memory that others take or give back).
 */
#pragma once

#include <stdatomic.h>

#include "base/threads.h"
#include "plan/redecide.h"
#include "run/engine.h"

/* Asked for in the engine's thread, solved in its own. */
struct solving {
    struct thread thread;
    bool runs, has_thread; /* runs: what it makes has not been taken */
    _Atomic bool done;
    bool for_memory;
    struct load_factors factors; /* for load */
    struct arena arena;
    struct redecision out;
    int64_t bytes; /* for memory */
    struct choice_again again;
    ats_status status;
    double cost_s; /* of a core, for load */
    char why[256]; /* of an error */
};
/* The GPU's memory, looked at now and then. */
struct watch {
    bool on;
    int64_t most_bytes;   /* that the user or an earlier failure permits */
    int64_t budget_bytes; /* that the plan in force was made for */
    int64_t failed_bytes; /* for which no plan came into force; 0: none */
    int n_failed;
    int n_since; /* rounds since it was looked at */
    uint64_t looked_ns;
    int64_t n_looks, grown_at; /* grown_at: of them; below 0: never */
    int n_roomy, n_wanted;     /* looks that found much room, running; and how many it takes */
};
struct adapt {
    ats_engine *e;
    struct replan replan;
    struct decide_options options;
    const struct items *items; /* NULL: the plan is made of layers, */
    bool loads;                /* false: and load changes nothing */
    int cpu, gpu;
    struct decide_way base, now, before; /* before: no placement, if there is none */
    struct arena base_arena, now_arena, before_arena;
    double alone_s[N_LOAD_RESOURCES];
    int alone_depth; /* -1: of none yet */
    int n_since;     /* rounds since one was measured */
    bool measures;   /* the round that comes */
    double probe_s;  /* a copy without load; 0: its link is not probed */
    struct solving solving;
    struct watch watch;
};

/* adapt.c: what is asked for is in a->solving. */
void adapt_start_solving(ats_engine *e);
/* The other way of a plan is in force: what load is measured against is found again. */
void adapt_forget_load(struct adapt *a);

/* adapt_memory.c */
void watch_open(ats_engine *e);
/* After a round, while nothing is being solved: asks for a plan if memory is short, or there has
 * been more for a while. */
void watch_look(ats_engine *e);
/* In the thread. */
void watch_solve(struct adapt *a);
/* What the thread has made: comes into force if need be, or if it pays. */
void watch_finish(ats_engine *e);
