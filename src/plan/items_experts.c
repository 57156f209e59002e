/* How many experts of a layer a round uses, and which. */
#include "plan/items.h"

#include <math.h>
#include <stdlib.h>

/* Rounds of other token counts are computed when they are asked for. */
static const int counts[EXPERT_COUNTS] = {1,  2,  3,   4,   5,   6,    7,    8,
                                          16, 32, 128, 256, 512, 1024, 2048, 4096};

/* A chain in which an expert stays with probability `rate`, and what is dropped is drawn anew from
 * the others: r is the chance of one that is out to come in, such that p remains what it is. */
double items_experts_in_use(const double *p, int n, double n_tokens, double rate) {
    double sum = 0;
    for (int e = 0; e < n; e++) {
        if (n_tokens <= 1) {
            sum += p[e];
            continue;
        }
        double r = p[e] < 1 ? p[e] * (1 - rate) / (1 - p[e] * rate) : 1;
        sum += 1 - (1 - p[e]) * pow(1 - r, n_tokens - 1);
    }
    return sum;
}

static int by_popularity(const void *a, const void *b) {
    const double *p = *(const double *const *)a, *q = *(const double *const *)b;
    if (*p != *q) return *p < *q ? 1 : -1;
    return p < q ? -1 : p > q;
}

static const uint16_t *order_of(struct arena *arena, const double *p, int n) {
    uint16_t *order = ARENA_ARRAY(arena, uint16_t, n);
    const double **sorted = xcalloc((size_t)n + 1, sizeof *sorted);
    for (int e = 0; e < n; e++)
        sorted[e] = &p[e];
    qsort(sorted, (size_t)n, sizeof *sorted, by_popularity);
    for (int e = 0; e < n; e++)
        order[e] = (uint16_t)(sorted[e] - p);
    free(sorted);
    return order;
}

const struct item_experts *item_experts_make(struct arena *arena, const double *p, int n,
                                             double repeat_rate) {
    struct item_experts *x = ARENA_NEW(arena, struct item_experts);
    x->repeat_rate = repeat_rate;
    x->popularity = p;
    x->order = order_of(arena, p, n);
    for (int k = 0; k < EXPERT_COUNTS; k++) {
        double *use = ARENA_ARRAY(arena, double, n);
        for (int e = 0; e < n; e++)
            x->in_use[k] += use[e] = items_experts_in_use(&p[e], 1, counts[k], repeat_rate);
        x->use[k] = use;
    }
    return x;
}

/* Which count it is, or -1. */
static int count_index(double n_tokens) {
    for (int k = 0; k < EXPERT_COUNTS; k++)
        if (!(n_tokens > counts[k])) return n_tokens >= counts[k] ? k : -1;
    return -1;
}

double items_in_use(const struct item *item, double n_tokens) {
    const struct item_experts *x = item->experts;
    int k = count_index(n_tokens);
    if (k >= 0) return x->in_use[k];
    return items_experts_in_use(x->popularity, item->n_experts, n_tokens, x->repeat_rate);
}

double items_use(const struct item *item, int e, double n_tokens) {
    const struct item_experts *x = item->experts;
    int k = count_index(n_tokens);
    if (k >= 0) return x->use[k][e];
    return items_experts_in_use(&x->popularity[e], 1, n_tokens, x->repeat_rate);
}
