/*
 * What the files of the simulated device share: sim.c (a device: what it wraps, poison), stream.c
 * (its slots and copies), world.c (who waits for whom, and ends when), cost.c (names, rates,
 * durations, speeds); nothing.c is what a device wraps that only keeps time.
 */
#pragma once

#include "backend/sim/sim.h"
#include "base/rng.h"

/* A weight as the wrapped device would have it to itself. */
struct backend_home {
    uint8_t *host; /* NULL where only time is kept */
    size_t bytes;
    bool packed;
};
/* A weight's place in a slot, and where its bytes come from. */
struct sim_place {
    uint8_t *slot, *host;
    size_t bytes;
};

struct backend_segment {
    struct backend_segment *inner;
    struct sim_place *streamed; /* what it reads in slots */
    size_t n_streamed, cap_streamed;
    const struct step *steps; /* borrowed */
    int n_steps;
    int64_t weight_bytes;                         /* read by one run of it, whatever the round */
    int64_t expert_bytes, expert_bytes_per_token; /* all, and at most those */
    int64_t kv_bytes_per_position;                /* all its attention steps together */
    int64_t state_bytes;                          /* of a sequence, all recurrent steps together */
    bool timed;
    struct backend_times times; /* of its last run, if timed */
};

struct backend_copy {
    struct sim_copy_run {
        uint64_t value; /* 0: none that was timed */
        struct backend_times times;
    } runs[2]; /* the last ones, by the parity of their number */
    int n_runs;
    int64_t bytes;
    int n_places;
    struct sim_place places[];
};

/* What a job does one after the other: read activations of others, compute or copy weights, write
 * activations for others. */
enum sim_phase { SIM_IN, SIM_WORK, SIM_OUT, SIM_PHASES };

struct sim_wait {
    struct backend_wait on;
    double latency_ns; /* from there to here */
};

/* A submitted segment, or copy. */
struct sim_job {
    struct sim_job *next; /* of its queue */
    struct backend_segment *segment;
    const struct round *round; /* of the segment */
    struct backend_copy *copy;
    uint64_t value;  /* that the timeline gets */
    double ready_ns; /* NOT_READY until all its waits have been reached */
    bool started;
    double begin_ns;            /* once started */
    enum sim_phase phase;       /* the first with anything left; SIM_PHASES: it is done */
    double left_ns[SIM_PHASES]; /* of each, by itself */
    int n_waits;
    struct sim_wait waits[];
};

/* A weight or cache of the wrapped device and what it counts in the cost of a step. Handles are
 * the wrapped device's own, so that steps pass through as they are. */
struct sim_known {
    const void *handle;
    int64_t bytes;
    bool streamed;
    struct sim_place place; /* of a streamed weight; NULL where only time is kept */
};

struct sim_queue {
    struct sim_job *first; /* submitted and not done; only the first can have started */
    uint64_t value;        /* of the timeline */
    struct sim_reached {
        uint64_t value;
        double at_ns;
    } * reached; /* (n_reached) when it got its values, of this round, ascending */
    size_t n_reached, cap_reached;
    int slowness; /* chaos: of this round, log2 of nanoseconds */
};

enum { SIM_QUEUES = BACKEND_COPY + 1 };

struct sim_world;
struct sim {
    struct backend base;
    struct sim_options o;
    struct backend *inner;
    uint64_t inner_value; /* last value submitted to it */
    struct sim_known *known;
    size_t n_known, cap_known;

    struct sim_world *world;
    struct sim *next;                    /* of the world's devices, in order of opening */
    int index;                           /* among them */
    struct sim_queue queues[SIM_QUEUES]; /* by enum backend_queue */
    bool timed;
    uint64_t n_submissions;
    struct backend_limits limits;
    uint8_t *slots; /* (n_slots, slot_bytes) */

    struct rng rng;                 /* chaos: everything below */
    struct step *poison_steps;      /* fill the wrapped device's local memory with NaN */
    struct backend_segment *poison; /* of the wrapped device */
};

struct sim_world {
    int64_t fail_asked, fail_left;   /* test switches, see sim.c */
    int64_t wrong_asked, wrong_left; /* times that are told */
    struct sim *devices;
    int n_opened;   /* ever */
    int n_segments; /* submitted and not done, of all devices */
    double now_ns;
    bool has_new;             /* jobs whose latencies are not known yet */
    uint64_t lose_submission; /* test switch: the n-th one from now loses all devices */
    ats_status lost;          /* not OK: no device of the world works any more */
    char lost_text[256];
};

/* sim.c */
struct sim *sim_of(struct backend *b);
ats_status sim_check_refused(struct sim *s); /* a test refuses the next allocation */
ats_status sim_run(struct sim *s, const struct backend_segment *segment, const struct round *round);
struct sim_known *sim_know(struct sim *s, const void *handle, int64_t bytes);
const struct sim_known *sim_known(const struct sim *s, const void *handle); /* NULL: it is not */
/* Nothing is under way and a round begins: chaos spoils what the last one left. */
ats_status sim_begin_round(struct sim *s);

/* stream.c */
ats_status sim_slots_open(struct sim *s);
void sim_slots_close(struct sim *s);
int64_t sim_streamed_bytes(struct sim *s, const struct weight_source *source);
ats_status sim_streamed_load(struct sim *s, const struct weight_source *source,
                             struct backend_weight **out);
ats_status sim_home_open(struct backend *b, const struct weight_source *source,
                         struct backend_home **out);
void sim_home_close(struct backend *b, struct backend_home *home);
void sim_home_source(struct backend *b, const struct backend_home *home,
                     struct weight_source *source);
/* Notes what a step of the segment reads in slots. */
void sim_streamed_note(const struct sim *s, struct backend_segment *segment, const void *weight);
/* The segment is done: chaos spoils what it read in slots. */
void sim_streamed_read(const struct sim *s, const struct backend_segment *segment);
ats_status sim_copy_build(struct backend *b, struct backend_weight *const *weights, int n_weights,
                          struct backend_copy **out);
/* Takes no virtual time. For tests: ATSINFER_SIM_LINK_SLOW, read each time, times as long. */
ats_status sim_probe_copy(struct backend *b, double *seconds);
void sim_copy_free(struct backend *b, struct backend_copy *copy);
/* While a copy is under way chaos has nothing where it goes. */
void sim_copy_begin(const struct sim *s, const struct backend_copy *copy);
void sim_copy_end(const struct backend_copy *copy);

/* world.c */
void sim_world_join(struct sim *s, struct sim *peer);
/* What is pending in the world is dropped. */
void sim_world_leave(struct sim *s);
/* `what` names a segment and a round, or a copy; value is that of the timeline. */
ats_status sim_world_submit(struct sim *s, const struct sim_job *what,
                            const struct backend_wait *waits, int n_waits);
/* Takes back what is pending of it. */
void sim_world_drop(struct sim *s, const struct backend_copy *copy);
ats_status sim_world_wait(struct sim *s, uint64_t value);

/* cost.c */
/* The job starts: fills what is left of it. */
void sim_cost(struct sim *s, struct sim_job *job);
/* How a job's wait for a segment of another device reaches it late; `both`: that device's next
 * waits for this one's last at the same time. */
double sim_latency_ns(const struct sim *s, const struct sim *other, bool both);
/* Who works in a world at the moment, and until when (virtual time) what each may do is the same.
 */
struct sim_rush {
    bool cpu, gpu, copy;
    double speeds[MACHINE_LINK + 1], until_ns;
};
struct sim_rush sim_rush(const struct sim_world *w);
/* How fast the queue's job goes then; alone: 1. */
double sim_speed(const struct sim *s, const struct sim_job *job, const struct sim_rush *rush);
/* Chaos: how slow a device is in the round that begins. */
void sim_draw_slowness(struct sim *s);
