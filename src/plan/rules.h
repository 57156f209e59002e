/*
 * Plans by rules that people write: the last N layers on the GPU, experts on the CPU, and patterns
 * of tensor names, for one CPU and one GPU. Arithmetic only; how many layers fit is found by
 * whoever can count bytes (run/choose_plan).
 */
#pragma once

#include "base/error.h"
#include "base/pattern.h"
#include "plan/plan.h"

/* What matches `pattern` (tensors' names, or "blk.N.attn_kv" for a cache) has its home on device.
 */
struct plan_override {
    const char *text; /* as given, for messages */
    struct pattern *pattern;
    int device;
};
struct plan_rules {
    int cpu, gpu;     /* devices */
    int n_gpu_layers; /* the last so many have their home on the GPU; if there are fewer, the head
                         as well. The embedding, a gather of few rows, stays on the CPU */
    int n_cpu_moe;    /* but the experts of the first so many layers on the CPU */
    const struct plan_override *overrides; /* (n_overrides) the first that matches wins, over all */
    int n_overrides;                       /* rules above */
    const char *const *lacking; /* (n_ops) what the GPU lacks for an op, NULL: nothing; or NULL */
};

#define PLAN_LAYERS_ALL  (1 << 30)
#define PLAN_LAYERS_AUTO (-1)
#define PLAN_HOME_FREE   (-1)
/* "all", "auto" or a number; anything else is BAD_ARGUMENT. */
MUST_CHECK ats_status plan_layers_parse(const char *text, int *out);

/* "REGEX=DEVICE", or several separated by commas; DEVICE is one of `names` (n_names), in any case,
 * and stands for devices[i]. Appends to *list (*n), owned: close each pattern, free the list.
 * Errors: BAD_ARGUMENT. */
MUST_CHECK ats_status plan_overrides_parse(const char *text, const char *const *names,
                                           const int *devices, int n_names,
                                           struct plan_override **list, int *n);
void plan_overrides_free(struct plan_override *list, int n);

int graph_n_layers(const struct graph *g);
/* BAD_ARGUMENT for a pattern that matches nothing, or puts on the GPU what it cannot compute. */
MUST_CHECK ats_status plan_rules_check(const struct graph *g, const struct plan_rules *rules);
/* What the rules say: home[i] (n_ops) is a device, or PLAN_HOME_FREE where they leave it open,
 * which is with PLAN_LAYERS_AUTO what no override and no n_cpu_moe tells, and what no plan places.
 */
void plan_rules_homes(const struct graph *g, const struct plan_rules *rules, int *home);
/* The plan in the arena; the number of layers is known. What the GPU lacks stays on the CPU;
 * *n_lacking (may be NULL) counts what the rules wanted there. */
struct plan *plan_by_rules(struct arena *arena, const struct graph *g, int n_devices,
                           const struct plan_rules *rules, int *n_lacking);
