/*
 * What a round was made of: the metrics of scheduling.md 8, from its times. Arithmetic only.
 */
#pragma once

#include "run/lower.h"
#include "run/timing.h"

/* Facts of a program that its rounds share. */
struct metrics_facts {
    bool *gpu;                  /* (n_devices) */
    bool *driven;               /* (n_devices) the caller's thread computes in submit */
    struct backend_times *room; /* (n_segments + n_transfers) */
    int64_t weight_bytes;       /* streamed, a round */
    int n_splits;               /* waits of a segment for another device: changes of the device */
    int64_t bytes_token, bytes_row; /* of activations that GPUs read or write in the exchange, a
                                       token and a wanted row */
};
/* devices: (program->n_devices). Everything in the arena. */
void metrics_facts(struct arena *arena, const struct graph *g, const struct program *program,
                   struct backend *const *devices, struct metrics_facts *out);

/* Time of the round in which something of these kinds runs, as bits. */
enum { METRICS_CPU = 1, METRICS_GPU = 2, METRICS_LINK = 4 };
uint64_t metrics_busy_ns(const struct program *program, const struct metrics_facts *facts,
                         const struct round_times *times, unsigned kinds);
/* Adds a round to *sum. */
void metrics_add(const struct program *program, const struct metrics_facts *facts,
                 const struct round *round, const struct round_times *times, ats_metrics *sum);
