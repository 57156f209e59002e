/* Algorithm 2 of the paper: which host items are promoted for a round, by a sum of times, switches
 * and exposed copies. Two promotions never follow each other, since each begins anew from an item
 * that ran on the CPU. */
#include "plan/transfer.h"

#include <math.h>
#include <stdlib.h>

enum { PLACED, PROMOTED };

struct paper {
    const struct transfer_problem *p;
    double *passed_s;  /* (n + 1) of each item as placed, after one as placed; of 0 none */
    double (*best)[2]; /* (n + 1): the first i items, the last as placed or promoted */
    int (*from)[2];    /* where it came from: PLACED or PROMOTED of i - 1; of a promotion: j */
};

static enum timeline_place place_of(const struct paper *a, int i, int how) {
    if (i == 0) return TIMELINE_CPU;
    return how == PROMOTED ? TIMELINE_GPU : a->p->items[i - 1].base.place;
}

static double placed_s(const struct timeline_item *item) {
    return fmax(item->cpu_s, item->gpu_s);
}

/* Item i (from 1) as placed, after i - 1 either way. */
static void extend(struct paper *a, int i) {
    const struct timeline_item *item = &a->p->items[i - 1].base;
    for (int how = PLACED; how <= PROMOTED; how++) {
        double s =
            a->best[i - 1][how] + timeline_switch_s(item, place_of(a, i - 1, how)) + placed_s(item);
        if (s >= a->best[i][PLACED]) continue;
        a->best[i][PLACED] = s;
        a->from[i][PLACED] = how;
    }
}

/* Inline, as fmax is not. */
static double later(double a, double b) {
    return a > b ? a : b;
}

/* Item i promoted: its copy began when the last item on the CPU, j, had ended; what runs between,
 * as placed, hides it. */
static void promote(struct paper *a, int i) {
    const struct transfer_item *item = &a->p->items[i - 1];
    struct timeline_item streamed = transfer_apply(item, item->n_units);
    double between_s = 0;
    for (int j = i - 1; j >= 0; j--) {
        if (place_of(a, j, PLACED) == TIMELINE_CPU) {
            double s = a->best[j][PLACED] + later(item->copy_s, between_s);
            if (s < a->best[i][PROMOTED]) {
                a->best[i][PROMOTED] = s;
                a->from[i][PROMOTED] = j;
            }
        }
        between_s += a->passed_s[j];
    }
    a->best[i][PROMOTED] += timeline_switch_s(&streamed, place_of(a, i - 1, PLACED)) +
                            streamed.gpu_s + streamed.streamed_s;
}

static void trace_back(const struct paper *a, int how, int *units) {
    for (int i = a->p->n; i > 0;) {
        int from = a->from[i][how];
        if (how == PROMOTED) {
            units[i - 1] = a->p->items[i - 1].n_units;
            i = from; /* all between are as placed */
            how = PLACED;
        } else {
            i--;
            how = from;
        }
    }
}

double transfer_paper(const struct transfer_problem *p, int *units) {
    size_t n = (size_t)p->n + 1;
    struct paper a = {.p = p,
                      .passed_s = xcalloc(n, sizeof *a.passed_s),
                      .best = xcalloc(n, sizeof *a.best),
                      .from = xcalloc(n, sizeof *a.from)};
    for (int i = 1; i <= p->n; i++) {
        const struct timeline_item *item = &p->items[i - 1].base;
        a.passed_s[i] = placed_s(item) + timeline_switch_s(item, place_of(&a, i - 1, PLACED));
    }
    for (int i = 0; i <= p->n; i++)
        a.best[i][PLACED] = a.best[i][PROMOTED] = HUGE_VAL;
    a.best[0][PLACED] = 0;
    for (int i = 1; i <= p->n; i++) {
        units[i - 1] = 0;
        extend(&a, i);
        if (p->items[i - 1].n_units > 0) promote(&a, i);
    }
    int how = PLACED;
    double end_s[2];
    for (int k = PLACED; k <= PROMOTED; k++)
        end_s[k] = a.best[p->n][k] + (place_of(&a, p->n, k) == TIMELINE_CPU ? 0 : p->machine.end_s);
    if (end_s[PROMOTED] < end_s[PLACED]) how = PROMOTED;
    trace_back(&a, how, units);
    free(a.passed_s);
    free(a.best);
    free(a.from);
    return end_s[how];
}
