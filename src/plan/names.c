#include "plan/names.h"

#include <stdlib.h>
#include <string.h>

struct entry {
    const char *name;
    int index;
};

static int by_name(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order ? order : (x->index > y->index) - (x->index < y->index);
}

void names_number(struct arena *arena, const char **names, int n) {
    struct entry *entries = xcalloc((size_t)max_int(n, 1), sizeof *entries);
    size_t n_entries = 0;
    for (int i = 0; i < n; i++)
        if (names[i]) entries[n_entries++] = (struct entry){names[i], i};
    qsort(entries, n_entries, sizeof *entries, by_name);
    int nth = 1;
    for (size_t i = 1; i < n_entries; i++) {
        nth = strcmp(entries[i].name, entries[i - 1].name) == 0 ? nth + 1 : 1;
        if (nth > 1) names[entries[i].index] = arena_printf(arena, "%s#%d", entries[i].name, nth);
    }
    free(entries);
}

const char *plan_name(struct arena *arena, const struct graph *g, const struct graph_op *op) {
    if (op->kind == OP_EXPERTS) return g->weights[op->p.experts.weights[EXPERT_GATE]].name;
    if (op->kind == OP_ATTENTION) return arena_printf(arena, "blk.%d.attn_kv", op->layer);
    if (op->weight >= 0) return g->weights[op->weight].name;
    return arena_printf(arena, "blk.%d.%s", op->layer, op_kind_name(op->kind));
}

const char **plan_names(struct arena *arena, const struct graph *g) {
    const char **names = ARENA_ARRAY(arena, const char *, g->n_ops);
    for (int i = 0; i < g->n_ops; i++)
        if (op_is_placed(&g->ops[i])) names[i] = plan_name(arena, g, &g->ops[i]);
    names_number(arena, names, g->n_ops);
    return names;
}
