/*
 * What the files of the simulated device share: sim.c (a device: what it wraps, poison), stream.c
 * (its slots and copies), world.c (who runs next, and when), cost.c (names, rates, durations).
 */
#pragma once

#include "backend/sim/sim.h"
#include "base/rng.h"

/* A weight's place in a slot, and where its bytes come from. */
struct sim_place {
    uint8_t *slot, *host;
    size_t bytes;
};

struct backend_segment {
    struct backend_segment *inner;
    struct sim_place *streamed; /* what it reads in slots */
    size_t n_streamed, cap_streamed;
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

/* A submitted segment, or copy. */
struct sim_job {
    struct sim_job *next; /* of its queue */
    struct backend_segment *segment;
    const struct round *round; /* of the segment */
    struct backend_copy *copy;
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
    struct sim_place place; /* of a streamed weight; host NULL: of another */
};

struct sim_queue {
    struct sim_job *first; /* submitted and not done; only the first can have started */
    uint64_t value;        /* of the timeline */
    int slowness;          /* chaos: of this round, log2 of nanoseconds */
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
    struct sim *devices;
    int n_opened;   /* ever */
    int n_segments; /* submitted and not done, of all devices */
    uint64_t now_ns;
    uint64_t lose_submission; /* test switch: the n-th one from now loses all devices */
    ats_status lost;          /* not OK: no device of the world works any more */
    char lost_text[256];
};

/* sim.c */
struct sim *sim_of(struct backend *b);
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
void sim_streamed_free(const struct sim_known *known);
/* Notes what a step of the segment reads in slots. */
void sim_streamed_note(const struct sim *s, struct backend_segment *segment, const void *weight);
/* The segment is done: chaos spoils what it read in slots. */
void sim_streamed_read(const struct sim *s, const struct backend_segment *segment);
ats_status sim_copy_build(struct backend *b, struct backend_weight *const *weights, int n_weights,
                          struct backend_copy **out);
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
/* How long a segment takes once it has started. */
uint64_t sim_duration_ns(struct sim *s, const struct backend_segment *segment,
                         const struct round *round);
uint64_t sim_copy_ns(struct sim *s, const struct backend_copy *copy);
/* Chaos: how slow a device is in the round that begins. */
void sim_draw_slowness(struct sim *s);
