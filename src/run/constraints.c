#include "run/constraints.h"

#include <string.h>

#include "plan/file.h"
#include "plan/rules.h"
#include "run/choose_plan.h"

/* ---- rules ---- */

static ats_status read_homes(const ats_simulation *s, const struct graph *g,
                             struct plan_rules *rules, int *home) {
    static const char *const names[] = {"cpu", "gpu"};
    static const int sides[] = {SIDE_CPU, SIDE_GPU};
    struct plan_override *overrides = NULL;
    int n = 0;
    ats_status status = ATS_OK;
    for (int i = 0; i < s->n_overrides && status == ATS_OK; i++)
        status =
            plan_overrides_parse(s->overrides[i], names, sides, COUNT_OF(names), &overrides, &n);
    rules->overrides = overrides;
    rules->n_overrides = n;
    if (status == ATS_OK) status = plan_rules_check(g, rules);
    if (status == ATS_OK) plan_rules_homes(g, rules, home);
    plan_overrides_free(overrides, n);
    rules->overrides = NULL;
    return status;
}

static ats_status by_rules(struct arena *arena, const ats_simulation *s, const struct items *items,
                           struct constraints *out) {
    struct plan_rules rules = {.cpu = SIDE_CPU, .gpu = SIDE_GPU, .n_gpu_layers = PLAN_LAYERS_AUTO};
    int *home = ARENA_ARRAY(arena, int, items->graph->n_ops);
    int *fixed = ARENA_ARRAY(arena, int, items->n_items);
    rules.n_cpu_moe = s->n_cpu_moe < 0 ? PLAN_LAYERS_ALL : s->n_cpu_moe;
    if (s->gpu_layers) TRY(plan_layers_parse(s->gpu_layers, &rules.n_gpu_layers));
    TRY(read_homes(s, items->graph, &rules, home));
    for (int i = 0; i < items->n_items; i++) {
        int side = home[items->items[i].op];
        fixed[i] = side == PLAN_HOME_FREE ? PLACEMENT_FREE : side;
    }
    out->fixed = fixed;
    return ATS_OK;
}

/* ---- a plan's file ---- */

static enum side side_of(const char *name) {
    bool cpu = strncmp(name, "cpu", 3) == 0 || strncmp(name, "sim:cpu", 7) == 0;
    return cpu || strcmp(name, "sim") == 0 ? SIDE_CPU : SIDE_GPU;
}

static ats_status read_devices(const struct plan_file *file, int *sides) {
    int n, seen[2] = {0, 0};
    const char *const *names = plan_file_devices(file, &n);
    if (n > 2) return fail(ATS_UNSUPPORTED, "it has %d devices, expected one CPU and one GPU", n);
    for (int i = 0; i < n; i++) {
        sides[i] = side_of(names[i]);
        if (seen[sides[i]]++)
            return fail(ATS_UNSUPPORTED, "\"%.60s\" is a second %s, expected one CPU and one GPU",
                        names[i], sides[i] == SIDE_CPU ? "CPU" : "GPU");
    }
    return ATS_OK;
}

static ats_status apply(struct arena *arena, const struct plan_file *file, const char *architecture,
                        const struct items *items, struct given_plan *out) {
    /* sizes and times are set again by whoever has other options */
    const struct placement_options options = placement_options_default(4096);
    int sides[2];
    struct plan *plan;
    TRY(read_devices(file, sides));
    TRY(plan_file_apply(file, arena, items->graph, architecture, sides, 2, 1, 1U << SIDE_GPU,
                        &plan));
    out->plan = plan;
    TRY(placement_from_plan(arena, items, &options, plan, SIDE_CPU, SIDE_GPU, &out->placement));
    return schedule_read_plan(arena, items, plan, SIDE_GPU, &out->streams);
}

ats_status constraints_read_plan(struct arena *arena, const char *path, const char *architecture,
                                 const struct items *items, struct given_plan *out) {
    struct plan_file *file;
    *out = (struct given_plan){0};
    TRY(choice_read_file(path, &file));
    ats_status status = apply(arena, file, architecture, items, out);
    plan_file_close(file);
    return status == ATS_OK ? ATS_OK : fail_in(status, "%s", path);
}

static void by_placement(struct arena *arena, const struct items *items, struct constraints *out) {
    int *fixed = ARENA_ARRAY(arena, int, items->n_items);
    int *units = ARENA_ARRAY(arena, int, items->n_blocks);
    for (int b = 0; b < items->n_blocks; b++)
        units[b] =
            out->given.placement->units[b] > 0 ? out->given.placement->units[b] : PLACEMENT_FREE;
    for (int i = 0; i < items->n_items; i++)
        fixed[i] = units[items->items[i].block] == PLACEMENT_FREE ? out->given.placement->homes[i]
                                                                  : PLACEMENT_FREE;
    out->fixed = fixed;
    out->fixed_units = units;
}

/* ---- all of it ---- */

static void count(const struct items *items, struct constraints *c) {
    int64_t quanta = 0;
    for (int b = 0; b < items->n_blocks; b++) {
        const struct items_block *block = &items->blocks[b];
        int units = c->fixed_units ? c->fixed_units[b] : PLACEMENT_FREE;
        if (units != PLACEMENT_FREE) {
            quanta += items_share_quanta(items, b, units);
            c->n_fixed += block->n;
            continue;
        }
        for (int i = block->first; i < block->first + block->n; i++) {
            c->n_fixed += c->fixed[i] != PLACEMENT_FREE;
            if (c->fixed[i] == SIDE_GPU) quanta += items->items[i].quanta;
        }
    }
    c->gpu_bytes = quanta * items->quantum_bytes;
}

ats_status constraints_read(struct arena *arena, const ats_simulation *s, const char *architecture,
                            const struct items *items, struct constraints *out) {
    *out = (struct constraints){0};
    TRY(choice_check(s->plan, s->gpu_layers, s->n_overrides, s->n_cpu_moe));
    if (s->plan) {
        TRY(constraints_read_plan(arena, s->plan, architecture, items, &out->given));
        by_placement(arena, items, out);
    } else if (s->gpu_layers || s->n_overrides || s->n_cpu_moe) {
        TRY(by_rules(arena, s, items, out));
    } else {
        return ATS_OK;
    }
    count(items, out);
    return ATS_OK;
}
