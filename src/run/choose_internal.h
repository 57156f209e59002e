/*
 * What the files behind choose_plan.h share: choose_plan.c (devices, rules, files) and
 * choose_by_profile.c (what the planner makes of it).
 */
#pragma once

#include "run/engine.h"
#include "run/planner.h"

struct choosing {
    ats_engine *e;
    const struct graph *g;
    struct executor_options *o;
    struct plan_rules rules;
    struct plan_override *overrides; /* owned */
    int n_overrides;
    int n_cpus, n_gpus; /* among the devices */
    int64_t budget;     /* of the GPU's memory */
};

void choosing_count(const struct choosing *c, const struct plan *plan, struct ledger *out);

/* The engine's planner decides what the rules leave open: e->plan, choice.how, the planner's way.
 * False: there is no planner, or it cannot do with the budget what the rules say, which is said. */
bool choose_by_profile(struct choosing *c);
/* For choose_again. */
MUST_CHECK ats_status choose_again_by_profile(const struct choosing *c, struct choice_again *out);
/* What the planner thinks of a plan that somebody else has made (`what`: for people, a subject),
 * against what it would make of c->budget; it is told. rules.lacking is set. */
void choose_judge(struct choosing *c, const char *what);
