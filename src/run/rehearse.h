/*
 * A plan rehearsed: the executor carries out rounds of it on simulated devices of a described
 * machine, in virtual time, without weights. What comes out is what the plan's timeline predicts,
 * found another way: by the program that would run, its submissions and waits. Called by
 * simulations and tests.
 */
#pragma once

#include "model/model.h"
#include "plan/items.h"
#include "plan/load.h"
#include "plan/plan.h"

struct rehearsal_options {
    int n_tokens, depth; /* of a round; one row is wanted */
    int n_ctx;           /* of the caches */
    enum dtype kv_k, kv_v;
    int n_warm, n_rounds;    /* rounds before those that count; at least one that does */
    const struct load *load; /* or NULL; rounds begin at virtual time 0 */
    const char *trace;       /* a file for the rounds that count, as trace.h has it; or NULL */
};
/* Two rounds, then as many as the choice of experts asks for; caches of F16. */
struct rehearsal_options rehearsal_options_default(const struct graph *g, int n_tokens, int depth,
                                                   int n_ctx);

struct rehearsal {
    double round_s;                        /* the mean */
    double first_s, last_s;                /* of the rounds that count: when they began and ended */
    int n_segments, n_transfers, n_copies; /* of the program */
    int64_t slot_bytes;                    /* of the GPU's, all together */
};

/* plan: of the devices 0, a CPU, and 1, a GPU; items are of the model and timed by the machine.
 * Rounds of as many tokens follow its partner for prompts, if it has one, with the memory of both.
 * On a machine whose GPU works in host memory what the plan streams is read in place. Errors:
 * NO_MEMORY if the machine does not hold it; those of executor_open; of the trace. */
MUST_CHECK ats_status rehearse(const struct model *model, const struct items *items,
                               const struct plan *plan, const struct rehearsal_options *o,
                               struct rehearsal *out);
