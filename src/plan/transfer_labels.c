/*
 * The label DP of S3: the state after an item is where it ran, and a label what the copies have
 * come to: the clock, when the engine can begin the next copy, and when further slots become free.
 * Interference is left out (timeline.h has it). Labels that are nowhere better than another are
 * dropped, and of the rest all but the earliest MAX_LABELS.
 */
#include "plan/transfer.h"

#include <math.h>
#include <string.h>

#define MAX_LABELS 64
#define LABEL_WORK 6000 /* labels of a state times items: long chains keep fewer */
#define MIN_LABELS 10
#define MAX_SLOTS  8 /* of more, the labels know of so many */
#define N_PLACES   3

struct label {
    double t;
    /* free[0]: when the next copy can begin (engine and slot); free[k]: the one after k more, if
     * the engine lets it. Ascending; (n_slots). */
    double free[MAX_SLOTS];
    int from;  /* index of the label before, in its layer */
    int units; /* of the item */
};

struct layer {
    struct label *labels[N_PLACES];
    int n[N_PLACES];
};

struct labels {
    const struct transfer_problem *p;
    int n_slots, cap;
    struct layer *layers; /* (n + 1) */
};

/* b is nowhere better than a, which is not later. */
static bool dominates(const struct label *a, const struct label *b, int n_slots) {
    for (int k = 0; k < n_slots; k++)
        if (a->free[k] > b->free[k]) return false;
    return true;
}

/* Labels of a place stand by time. */
static void add(const struct labels *l, struct layer *layer, enum timeline_place place,
                const struct label *label) {
    struct label *list = layer->labels[place];
    int n = layer->n[place], at = n;
    if (n == l->cap && list[n - 1].t <= label->t) return;
    for (int i = 0; i < n; i++) {
        if (list[i].t > label->t) {
            at = i;
            break;
        }
        if (dominates(&list[i], label, l->n_slots)) return;
    }
    int kept = at; /* of those that are later, what the new one does not dominate */
    struct label carry = *label;
    for (int i = at; i < n; i++) {
        if (dominates(label, &list[i], l->n_slots)) continue;
        struct label next = list[i];
        list[kept++] = carry;
        carry = next;
    }
    if (kept < l->cap) list[kept++] = carry;
    layer->n[place] = kept;
}

/* The slot that the copy took is free when its item has ended; nothing before the engine is. */
static void use_slot(struct label *label, int n_slots, double engine_s, double end_s) {
    for (int k = 0; k + 1 < n_slots; k++)
        label->free[k] = label->free[k + 1];
    label->free[n_slots - 1] = end_s;
    for (int k = 0; k < n_slots; k++)
        label->free[k] = fmax(label->free[k], engine_s);
}

static void run_item(const struct labels *l, int i, const struct label *before, int from,
                     enum timeline_place from_place, int units) {
    const struct timeline_item item = transfer_apply(&l->p->items[i], units);
    struct label label = *before;
    label.from = from * N_PLACES + (int)from_place;
    label.units = units;
    double begin_s = before->t + timeline_switch_s(&item, from_place);
    double cpu_end_s = begin_s + item.cpu_s, gpu_end_s = begin_s + item.gpu_s;
    if (item.streamed) {
        double engine_s = fmax(before->free[0], item.late ? before->t : -HUGE_VAL) + item.copy_s;
        gpu_end_s = fmax(gpu_end_s, engine_s) + item.streamed_s;
        label.t = fmax(cpu_end_s, gpu_end_s);
        use_slot(&label, l->n_slots, engine_s, label.t);
    } else {
        label.t = fmax(cpu_end_s, gpu_end_s);
    }
    add(l, &l->layers[i + 1], item.place, &label);
}

/* Nothing, all, and the division that suits the item by itself. */
static int options(const struct labels *l, int i, int units[3]) {
    const struct transfer_item *item = &l->p->items[i];
    int n = 0;
    units[n++] = 0;
    if (item->n_units == 0 || l->n_slots == 0) return n;
    units[n++] = item->n_units;
    int some = transfer_division(item, &l->p->machine);
    if (some > 0 && some < item->n_units) units[n++] = some;
    return n;
}

static void open_layers(struct labels *l, struct arena *arena, const double *start) {
    int n = l->p->n;
    l->layers = ARENA_ARRAY(arena, struct layer, n + 1);
    for (int i = 0; i <= n; i++)
        for (int place = 0; place < N_PLACES; place++)
            l->layers[i].labels[place] = ARENA_ARRAY(arena, struct label, l->cap);
    struct label first = {0};
    for (int k = 0; start && k < l->n_slots; k++)
        first.free[k] = fmax(start[0], start[1 + k]);
    add(l, &l->layers[0], TIMELINE_CPU, &first);
}

/* Rounds in a row take as long as whatever falls furthest behind from one to the next: the clock,
 * the engine or a slot. A round by itself ends with its clock. */
static double end_of(const struct labels *l, const struct label *first, const struct label *last,
                     int place) {
    double end_s = last->t + (place == TIMELINE_CPU ? 0 : l->p->machine.end_s);
    for (int k = 0; l->p->periodic && k < l->n_slots; k++)
        end_s = fmax(end_s, last->free[k] - first->free[k]);
    return end_s;
}

static double best_end(const struct labels *l, int *place, int *at) {
    const struct layer *last = &l->layers[l->p->n];
    const struct label *first = &l->layers[0].labels[TIMELINE_CPU][0];
    double best_s = HUGE_VAL;
    for (int k = 0; k < N_PLACES; k++)
        for (int i = 0; i < last->n[k]; i++) {
            double s = end_of(l, first, &last->labels[k][i], k);
            if (s >= best_s) continue;
            best_s = s;
            *place = k;
            *at = i;
        }
    return best_s;
}

double transfer_labels(struct arena *arena, const struct transfer_problem *p, const double *start,
                       int *units) {
    struct labels l = {.p = p,
                       .n_slots = min_int(p->machine.n_slots, MAX_SLOTS),
                       .cap =
                           min_int(MAX_LABELS, max_int(MIN_LABELS, LABEL_WORK / max_int(1, p->n)))};
    open_layers(&l, arena, start);
    for (int i = 0; i < p->n; i++) {
        int choice[3], n_choices = options(&l, i, choice);
        for (int place = 0; place < N_PLACES; place++)
            for (int k = 0; k < l.layers[i].n[place]; k++)
                for (int c = 0; c < n_choices; c++)
                    run_item(&l, i, &l.layers[i].labels[place][k], k, (enum timeline_place)place,
                             choice[c]);
    }
    int place = TIMELINE_CPU, at = 0;
    double best_s = best_end(&l, &place, &at);
    for (int i = p->n; i > 0; i--) {
        const struct label *label = &l.layers[i].labels[place][at];
        units[i - 1] = label->units;
        at = label->from / N_PLACES;
        place = label->from % N_PLACES;
    }
    return best_s;
}
