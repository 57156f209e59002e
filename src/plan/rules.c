#include "plan/rules.h"

#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "plan/names.h"

/* ---- texts ---- */

ats_status plan_layers_parse(const char *text, int *out) {
    if (strcmp(text, "auto") == 0) {
        *out = PLAN_LAYERS_AUTO;
        return ATS_OK;
    }
    *out = PLAN_LAYERS_ALL;
    if (strcmp(text, "all") == 0) return ATS_OK;
    int64_t n = 0;
    bool ok = *text != 0;
    for (const char *c = text; ok && *c; c++) {
        ok = *c >= '0' && *c <= '9';
        n = min_i64(n * 10 + (*c - '0'), PLAN_LAYERS_ALL); /* 999 layers: all */
    }
    *out = (int)n;
    if (ok) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT,
                "\"%.40s\" is no number of layers; expected a whole number, all or auto", text);
}

/* The device that [text, text + n) names; -1. */
static int find_device(const char *text, size_t n, const char *const *names, const int *devices,
                       int n_names) {
    for (int i = 0; i < n_names; i++)
        if (strlen(names[i]) == n && strncasecmp(names[i], text, n) == 0) return devices[i];
    return -1;
}

static ats_status unknown_device(const char *text, const char *const *names, int n_names) {
    char known[200] = "";
    for (int i = 0; i < n_names && strlen(known) + strlen(names[i]) + 3 < sizeof known; i++) {
        if (i) strcat(known, ", ");
        strcat(known, names[i]);
    }
    const char *equals = strrchr(text, '=');
    if (!equals)
        return fail(ATS_BAD_ARGUMENT, "\"%.100s\": expected REGEX=DEVICE; devices: %s", text,
                    known);
    return fail(ATS_BAD_ARGUMENT, "\"%.100s\": there is no device \"%.40s\"; devices: %s", text,
                equals + 1, known);
}

static ats_status add_override(const char *text, size_t n_pattern, int device,
                               struct plan_override **list, int *n) {
    char *regex = xstrndup(text, n_pattern);
    struct pattern *pattern;
    ats_status status = pattern_open(regex, &pattern);
    if (status != ATS_OK) {
        free(regex);
        return status;
    }
    *list = xrealloc(*list, sizeof **list * ((size_t)*n + 1));
    (*list)[(*n)++] = (struct plan_override){regex, pattern, device};
    return ATS_OK;
}

/* A comma ends an override only behind a device's name: regular expressions have commas too. */
ats_status plan_overrides_parse(const char *text, const char *const *names, const int *devices,
                                int n_names, struct plan_override **list, int *n) {
    const char *begin = text, *rest = text;
    for (;;) {
        const char *equals = strchr(rest, '=');
        if (!equals) return unknown_device(begin, names, n_names);
        size_t n_name = strcspn(equals + 1, ",");
        int device = find_device(equals + 1, n_name, names, devices, n_names);
        rest = equals + 1;
        if (device < 0) continue;
        TRY(add_override(begin, (size_t)(equals - begin), device, list, n));
        if (!rest[n_name]) return ATS_OK;
        begin = rest += n_name + 1;
    }
}

void plan_overrides_free(struct plan_override *list, int n) {
    for (int i = 0; i < n; i++) {
        pattern_close(list[i].pattern);
        free((char *)(uintptr_t)list[i].text);
    }
    free(list);
}

/* ---- rules ---- */

int graph_n_layers(const struct graph *g) {
    int n = 0;
    for (int i = 0; i < g->n_ops; i++)
        n = max_int(n, g->ops[i].layer + 1);
    return n;
}

/* All experts' weights are one operator: whichever of them matches. */
static bool override_matches(const struct plan_override *o, const struct graph *g, int i,
                             const char *name) {
    const struct graph_op *op = &g->ops[i];
    if (op->kind != OP_EXPERTS) return pattern_matches(o->pattern, name);
    for (int w = 0; w < N_EXPERT_WEIGHTS; w++)
        if (pattern_matches(o->pattern, g->weights[op->p.experts.weights[w]].name)) return true;
    return false;
}

static const struct plan_override *find_override(const struct plan_rules *r, const struct graph *g,
                                                 int i, const char *name) {
    for (int o = 0; o < r->n_overrides; o++)
        if (override_matches(&r->overrides[o], g, i, name)) return &r->overrides[o];
    return NULL;
}

static int layer_home(const struct plan_rules *r, const struct graph_op *op, int n_layers) {
    if (op->kind == OP_EXPERTS && op->layer >= 0 && op->layer < r->n_cpu_moe) return r->cpu;
    if (r->n_gpu_layers == PLAN_LAYERS_AUTO) return PLAN_HOME_FREE;
    if (op->layer < 0) /* the embedding; the head counts as one more layer */
        return op->kind != OP_EMBED && r->n_gpu_layers > n_layers ? r->gpu : r->cpu;
    return op->layer >= n_layers - r->n_gpu_layers ? r->gpu : r->cpu;
}

static const char *lacking(const struct plan_rules *r, int i) {
    return r->lacking ? r->lacking[i] : NULL;
}

static bool is_used(const struct graph *g, const struct plan_override *o, const char **names) {
    for (int i = 0; i < g->n_ops; i++)
        if (names[i] && override_matches(o, g, i, names[i])) return true;
    return false;
}

ats_status plan_rules_check(const struct graph *g, const struct plan_rules *r) {
    struct arena arena = {0};
    const char **names = plan_names(&arena, g);
    ats_status status = ATS_OK;
    for (int o = 0; o < r->n_overrides && status == ATS_OK; o++)
        if (!is_used(g, &r->overrides[o], names))
            status = fail(ATS_BAD_ARGUMENT, "\"%.100s\" matches no tensor that has a home",
                          r->overrides[o].text);
    for (int i = 0; i < g->n_ops && status == ATS_OK; i++) {
        const struct plan_override *o =
            names[i] && lacking(r, i) ? find_override(r, g, i, names[i]) : NULL;
        if (o && o->device == r->gpu)
            status = fail(ATS_UNSUPPORTED, "\"%.100s\": %s cannot be there, the GPU has %s",
                          o->text, names[i], lacking(r, i));
    }
    arena_free(&arena);
    return status;
}

void plan_rules_homes(const struct graph *g, const struct plan_rules *r, int *home) {
    struct arena scratch = {0};
    const char **names = plan_names(&scratch, g);
    int n_layers = graph_n_layers(g);
    for (int i = 0; i < g->n_ops; i++) {
        home[i] = PLAN_HOME_FREE;
        if (!names[i]) continue;
        const struct plan_override *o = find_override(r, g, i, names[i]);
        home[i] = o ? o->device : layer_home(r, &g->ops[i], n_layers);
    }
    arena_free(&scratch);
}

struct plan *plan_by_rules(struct arena *arena, const struct graph *g, int n_devices,
                           const struct plan_rules *r, int *n_lacking) {
    struct arena scratch = {0};
    int *home = ARENA_ARRAY(&scratch, int, g->n_ops);
    int n_missed = 0;
    plan_rules_homes(g, r, home);
    for (int i = 0; i < g->n_ops; i++) {
        bool missed = home[i] == r->gpu && op_is_placed(&g->ops[i]) && lacking(r, i);
        if (missed) home[i] = r->cpu;
        n_missed += missed;
    }
    struct plan *plan = plan_of_homes(arena, g, n_devices, home);
    arena_free(&scratch);
    if (n_lacking) *n_lacking = n_missed;
    return plan;
}
