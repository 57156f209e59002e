/*
 * What the files behind measure.h share: measure.c (what is measured, the profile), measure_op.c
 * (one operator on one device), measure_link.c (two devices), measure_rig.c (a device on its own,
 * weights that are made up, the clock).
 */
#pragma once

#include "base/rng.h"
#include "plan/items.h"
#include "run/measure.h"

struct measure {
    struct arena *arena;
    const struct model *model;
    const struct measure_options *o;
    struct profile *p;
    struct rng rng;
    int64_t cold_bytes;
    uint8_t *pool; /* (pool_bytes) made-up weights; the processor reads them in place */
    size_t pool_bytes;
    uint64_t n_done, n_total;
};
/* false: it was cancelled. */
MUST_CHECK ats_status measure_step(struct measure *m);

/* ---- a device ---- */

enum { RIG_MAX_LOADED = 4096 };
struct measure_rig {
    struct measure *m;
    struct backend *b;
    struct backend_limits limits;
    uint64_t value; /* of its timeline */
    bool owns_exchange;
    double launch_s; /* of a segment, beside its steps */
    double op_s;     /* of a step that does next to nothing */
    double wall_s;   /* of the last segment that was timed: one whole call */
    struct round round;
    struct round_run run;
    int32_t *numbers; /* (3, n_tokens) tokens, positions, rows */
    int32_t *pages;
    struct backend_weight **loaded;
    int n_loaded;
    struct backend_home *home; /* of one of them that is streamed; or NULL */
};

/* Opens `name` beside peer (NULL: alone) for rounds of at most limits->n_tokens tokens; limits has
 * everything but the exchange, which is the peer's or new. r is zeroed; closed also after errors.
 */
MUST_CHECK ats_status rig_open(struct measure *m, struct measure_rig *r, const char *name,
                               const struct backend_limits *limits, int64_t exchange_bytes,
                               struct measure_rig *peer);
void rig_close(struct measure_rig *r);
/* n_tokens of one sequence at a position. */
void rig_round(struct measure_rig *r, int n_tokens, int position);
/* A made-up matrix, n_experts of them (1: plain), at `offset` in the pool if the device reads it in
 * place, else in the device's memory. It goes with the rig. weights_ready is the caller's. */
MUST_CHECK ats_status rig_weight(struct measure_rig *r, enum dtype type, int n_rows, int n_cols,
                                 int n_experts, int64_t offset, struct backend_weight **out);
/* Bytes of them, in the device's memory or in the pool. */
int64_t rig_weight_bytes(const struct measure_rig *r, enum dtype type, int n_rows, int n_cols,
                         int n_experts);
/* Seconds of a segment's run by the device's own word, of the whole call where it has none. */
MUST_CHECK ats_status rig_run(struct measure_rig *r, struct backend_segment *s, double *seconds);
/* The median of several runs of a segment of n_steps steps alike, less its launch: of one step.
 * what: for messages. */
MUST_CHECK ats_status rig_time(struct measure_rig *r, struct backend_segment *s, int n_steps,
                               const char *what, double *seconds);
/* launch_s and op_s. */
MUST_CHECK ats_status rig_calibrate(struct measure_rig *r);
double measure_median(double *v, int n);
bool measure_possible(double seconds);

/* ---- what is measured ---- */

/* Fills item->sides[side] for the operator op on the named device. */
MUST_CHECK ats_status measure_op(struct measure *m, const char *device, int op, enum side side,
                                 struct profile_item *item);
/* Link, switches, interference, memory, op_s. */
MUST_CHECK ats_status measure_links(struct measure *m);
