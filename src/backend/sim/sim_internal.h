/*
 * What the files of the simulated device share: sim.c (a device: what it wraps, poison), world.c
 * (who runs next, and when), cost.c (names, rates, durations).
 */
#pragma once

#include "backend/sim/sim.h"
#include "base/rng.h"

struct backend_segment {
    struct backend_segment *inner;
    int n_steps;
    int64_t weight_bytes;                         /* read by one run of it, whatever the round */
    int64_t expert_bytes, expert_bytes_per_token; /* all, and at most those */
    int64_t kv_bytes_per_position;                /* all its attention steps together */
    bool timed;
    struct backend_times times; /* of its last run, if timed */
};

/* A submitted segment. */
struct sim_job {
    struct sim_job *next; /* of its device */
    struct backend_segment *segment;
    const struct round *round;
    uint64_t value; /* that the timeline gets */
    bool started;
    uint64_t begin_ns, end_ns; /* once started */
    int n_waits;
    struct backend_wait waits[];
};

/* A weight or cache of the wrapped device and what it counts in the cost of a step. Handles are
 * the wrapped device's own, so that steps pass through as they are. */
struct sim_known {
    const void *handle;
    int64_t bytes;
};

struct sim_world;
struct sim {
    struct backend base;
    struct sim_options o;
    struct backend *inner;
    uint64_t inner_value; /* last value submitted to it */
    struct sim_known *known;
    size_t n_known, cap_known;

    struct sim_world *world;
    struct sim *next;      /* of the world's devices, in order of opening */
    int index;             /* among them */
    struct sim_job *first; /* submitted and not done; only the first can have started */
    uint64_t value;        /* of the timeline */
    bool timed;
    uint64_t n_submissions;

    struct rng rng; /* chaos: everything below */
    int slowness;   /* of this round: log2 of nanoseconds */
    struct backend_limits limits;
    struct step *poison_steps;      /* fill the wrapped device's local memory with NaN */
    struct backend_segment *poison; /* of the wrapped device */
};

struct sim_world {
    struct sim *devices;
    int n_opened; /* ever */
    int n_jobs;   /* of all devices */
    uint64_t now_ns;
    ats_status lost; /* not OK: no device of the world works any more */
    char lost_text[256];
};

/* sim.c */
struct sim *sim_of(struct backend *b);
ats_status sim_run(struct sim *s, const struct backend_segment *segment, const struct round *round);
/* Nothing is under way and a round begins: chaos spoils what the last one left. */
ats_status sim_begin_round(struct sim *s);

/* world.c */
void sim_world_join(struct sim *s, struct sim *peer);
/* What is pending in the world is dropped. */
void sim_world_leave(struct sim *s);
ats_status sim_world_submit(struct sim *s, struct backend_segment *segment,
                            const struct round *round, const struct backend_wait *waits,
                            int n_waits, uint64_t value);
ats_status sim_world_wait(struct sim *s, uint64_t value);

/* cost.c */
/* How long a segment takes once it has started. */
uint64_t sim_duration_ns(struct sim *s, const struct backend_segment *segment,
                         const struct round *round);
/* Chaos: how slow a device is in the round that begins. */
void sim_draw_slowness(struct sim *s);
