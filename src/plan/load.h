/*
 * What other programs take of a machine: a trace of it (scheduling.md 6), and the factors by which
 * work is slower for it (S5). Arithmetic and JSON only. Read by simulations; factors also by the
 * controller of replan.h, which estimates them.
 *
 *   {"atsinfer": "load", "version": 1,
 *    "steps": [{"resource": "cpu", "start": 10, "end": 40, "share": 0.6},
 *              {"resource": "gpu", "start": 60, "end": 90.5, "share": 0.6},
 *              {"resource": "link", "start": 60, "end": 90.5, "share": 0.6}]}
 *
 * resource: "cpu", "gpu", or "link" (towards the GPU). From `start` to before `end`, seconds, the
 * share in [0, 0.99] of it is taken, so that work there takes 1 / (1 - share) times as long; of
 * steps that overlap each takes its share of what the others leave. At most 1024 steps and 1e6
 * seconds. Every object may have a "comment"; other keys are an error.
 */
#pragma once

#include "base/arena.h"
#include "base/json.h"
#include "plan/items.h"

enum load_resource { LOAD_CPU, LOAD_GPU, LOAD_LINK, N_LOAD_RESOURCES };
const char *load_resource_name(enum load_resource resource);

struct load_step {
    enum load_resource resource;
    double start_s, end_s, share;
};
struct load {
    struct load_step *steps;
    int n_steps;
};

/* Everything in the arena; `where` names the file in messages. Errors: BAD_FILE naming the place
 * (`steps[2].share`) for what is missing, unknown, no number, or out of its range. */
MUST_CHECK ats_status load_from_json(struct arena *arena, const json_t *json, const char *where,
                                     struct load **out);
MUST_CHECK ats_status load_read(struct arena *arena, const char *path, struct load **out);

/* Times alone, times these, are times under load: 1 without any. */
struct load_factors {
    double slow[N_LOAD_RESOURCES];
};
struct load_factors load_none(void);
/* One of them is off 1 by the threshold (0.15: 15%) or more, either way. */
bool load_is_felt(const struct load_factors *factors, double threshold);
struct load_factors load_at(const struct load *load, double now_s);
/* The first time after now_s at which something begins or ends; infinite: nothing does. */
double load_next_change(const struct load *load, double now_s);

/* The items as they are timed under load: views of the same arrays, with a profile of their own
 * whose link is slower. In the arena; items is borrowed. Factors above 0. */
struct items *load_items(struct arena *arena, const struct items *items,
                         const struct load_factors *factors);
