/*
 * Homes that are given for a plan of a described machine: by the rules of layers, tensors and
 * experts that an engine takes, or by a plan's file. What they leave open the planner decides.
 * Called by simulate.c and explain_plan.c; touches no device.
 */
#pragma once

#include "atsinfer.h"
#include "plan/schedule.h"

/* A plan's file, as read. Devices: SIDE_CPU and SIDE_GPU. */
struct given_plan {
    const struct plan *plan;
    struct placement *placement; /* of what is not streamed; streamed parts are the host's */
    struct schedule_streams streams;
};

struct constraints {
    const int *fixed;        /* (n_items), as in placement_options; NULL: nothing is given */
    const int *fixed_units;  /* (n_blocks) or NULL */
    struct given_plan given; /* the whole of it: a plan was given; else zeros */
    int n_fixed;             /* items */
    int64_t gpu_bytes;       /* that must be there, on the items' grid */
};

/* From gpu_layers, overrides, n_cpu_moe and plan. Everything in the arena. The embedding, which is
 * no item, stays on the host whatever is said. Errors: those of rules.h and file.h, UNSUPPORTED for
 * a plan that is no placement on one CPU and one GPU, or streams parts that are no block's. */
MUST_CHECK ats_status constraints_read(struct arena *arena, const ats_simulation *s,
                                       const char *architecture, const struct items *items,
                                       struct constraints *out);

/* A plan's file: devices whose name begins with "cpu" or "sim:cpu" are the CPU, others the GPU. In
 * the arena. Errors: as above. */
MUST_CHECK ats_status constraints_read_plan(struct arena *arena, const char *path,
                                            const char *architecture, const struct items *items,
                                            struct given_plan *out);
