/*
 * Measures a profile (plan/profile.h; section 2 of scheduling.md) for a model on this machine,
 * through the backend interface: every operator that is placed, on a processor and on a GPU, the
 * link between them, what a change of device costs, and what they lose to each other. Weights are
 * made up, so that the header of the model's file is enough. Runs for seconds; opens devices of its
 * own. Called by profiling.c.
 */
#pragma once

#include "atsinfer.h"
#include "backend/backend.h"
#include "model/model.h"
#include "plan/profile.h"

/* As items and their keys have them. */
enum dtype measure_kv_dtype(ats_kv_type type);
enum math measure_math(ats_math math);
/* BAD_ARGUMENT for what is none of these. */
MUST_CHECK ats_status measure_check_types(ats_kv_type kv_k, ats_kv_type kv_v, ats_math math);

/* done of total operators and links; returns false to cancel. */
typedef bool measure_progress_fn(void *user, uint64_t done, uint64_t total);

struct measure_options {
    const char *cpu, *gpu; /* names of devices; gpu NULL: none, and its side is the processor's */
    int n_threads;
    bool quick;             /* fewer token counts, shares and depths, fewer repeats */
    int n_ctx;              /* depths beyond it are left out */
    ats_kv_type kv_k, kv_v; /* of caches */
    int64_t cold_bytes;     /* what is read between two uses of a byte; 0: twice the last cache */
    measure_progress_fn *progress; /* or NULL */
    void *progress_user;
};

/* The operators that would be measured, each key once, without times. Everything in the arena. */
MUST_CHECK ats_status measure_keys(struct arena *arena, const struct model *model,
                                   const struct measure_options *options, struct profile **out);
/* Everything in the arena; name and key are the caller's to set. A time that is zero, not finite or
 * longer than a minute is measured again, twice, then refused. Errors: CANCELLED; DEVICE for what
 * cannot be a time, naming the operator; those of the backends. */
MUST_CHECK ats_status measure_profile(struct arena *arena, const struct model *model,
                                      const struct measure_options *options, struct profile **out);
