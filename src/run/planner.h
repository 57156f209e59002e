/*
 * The engine decides by itself: a profile of this machine for the model (kept, given, or measured
 * at the first load), the items of the model timed by it, and what decide.h makes of them for the
 * devices' memory. Part of the engine: choose_plan.c asks it when an engine opens, adapt.c when the
 * load changes. Touches devices only to measure.
 */
#pragma once

#include "atsinfer.h"
#include "base/json.h"
#include "plan/decide.h"

struct planner {
    struct arena arena;
    struct model *model;   /* units of its blocks are whole groups of rows, as devices pack them */
    const char *cpu, *gpu; /* as they are opened */
    struct profile *profile;  /* of the machine by itself */
    const char *profile_path; /* NULL: it could not be kept */
    bool measured;            /* now, not before */
    struct items_options items_options;
    struct items *items; /* timed by the profile */
    /* For this engine; nothing fixed, no memory. one_program: the user wants no more. */
    struct decide_options base;
    /* Of the plan in force, set by choose_plan.c. */
    struct decide_options options; /* one_program: it is of one */
    int *fixed;                    /* (n_items), options.placement's; NULL: nothing is given */
    int n_given;                   /* items that the user's rules fix */
    int64_t
        uncounted_bytes; /* of the GPU's, that the ledger needs beyond what the planner counts */
    struct arena way_arena, free_arena; /* of the two below */
    struct decide_way way;      /* placement NULL: no plan of one CPU and one GPU was timed */
    struct decide_way free_way; /* had the user given nothing; without placement if nothing was */
};

/* For an engine that has chosen its devices' names and has not opened them. *out NULL: there is
 * nothing to divide, it is switched off, or there is no profile, which is said. A profile is
 * measured, with progress, where the plan is the engine's to choose and weights will be loaded.
 * Owned. Errors: CANCELLED; those of a profile that was given: BAD_FILE, BAD_ARGUMENT, IO. */
MUST_CHECK ats_status planner_open(ats_engine *e, struct planner **out);
void planner_close(struct planner *p); /* accepts NULL */

/* The plan that a way is, over the engine's devices. In the arena. */
struct plan *planner_plan(const struct planner *p, struct arena *arena,
                          const struct decide_way *way, int n_devices, int cpu, int gpu);
/* The other way: a plan that somebody else made as a way, timed. Errors: UNSUPPORTED: it is no
 * placement on one CPU and one GPU, or streams parts that are no block's. */
MUST_CHECK ats_status planner_judge(const struct planner *p, struct arena *arena,
                                    const struct plan *plan, int cpu, int gpu,
                                    struct decide_way *out);

/* "12.3 ms a token (81 tok/s) after 2048 tokens, prompts 512 tok/s; the CPU binds (70% of a
 * round)". In the arena. */
const char *planner_text(const struct planner *p, struct arena *arena,
                         const struct decide_way *way);
/* A way (it has a placement), what was given and what that costs, where the times are from. Owned
 * (decref). */
json_t *planner_json(const struct planner *p, const struct decide_way *w);
/* What takes the most of a decode round: "cpu", "gpu", "link", "changes" of device. share: of it.
 */
const char *planner_binds(const struct decide_way *way, double *share);
