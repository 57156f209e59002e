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
    double cpu_early, gpu_early; /* how long before each device had done its part (timeline.h) */
    /* free[0]: when the next copy can begin (engine and slot); free[k]: the one after k more, if
     * the engine lets it. Ascending; (n_slots). */
    double free[MAX_SLOTS];
    int from;  /* index of the label before, in its layer */
    int units; /* of the item */
};

/* The labels of an item and a place. Only their numbers are moved: order begins with those of the n
 * that are kept, by time; the rest are free, one more than may be kept. */
struct front {
    struct label labels[MAX_LABELS + 1];
    uint8_t order[MAX_LABELS + 1];
    int n;
};

/* What is left of a label once the next item has been run: the way back. */
struct step {
    int from, units;
};

struct labels {
    const struct transfer_problem *p;
    int n_slots, cap;
    struct front *now, *next; /* (N_PLACES), of the item before and of the item */
    struct step *steps;       /* (n, N_PLACES, cap + 1) */
};

/* Inline, as fmax is not: it would have to mind what is no number. */
static double later(double a, double b) {
    return a > b ? a : b;
}

/* b is nowhere better than a, which is not later. */
static bool dominates(const struct label *a, const struct label *b, int n_slots) {
    if (a->t - a->cpu_early > b->t - b->cpu_early) return false;
    if (a->t - a->gpu_early > b->t - b->gpu_early) return false;
    for (int k = 0; k < n_slots; k++)
        if (a->free[k] > b->free[k]) return false;
    return true;
}

/* All that are kept are no later than t. */
static bool is_full_before(const struct labels *l, const struct front *f, double t) {
    return f->n == l->cap && f->labels[f->order[f->n - 1]].t <= t;
}

/* One that the front is not full before. */
static void add(const struct labels *l, struct front *f, const struct label *label) {
    uint8_t *order = f->order;
    int n = f->n, at = n;
    for (int i = 0; i < n; i++) {
        const struct label *other = &f->labels[order[i]];
        if (other->t > label->t) {
            at = i;
            break;
        }
        if (dominates(other, label, l->n_slots)) return;
    }
    int kept = at; /* of those that are later, what the new one does not dominate */
    for (int i = at; i < n; i++) {
        uint8_t number = order[i];
        if (dominates(label, &f->labels[number], l->n_slots)) continue;
        order[i] = order[kept];
        order[kept++] = number;
    }
    uint8_t fresh = order[kept];
    memmove(order + at + 1, order + at, (size_t)(kept - at));
    order[at] = fresh;
    f->labels[fresh] = *label;
    f->n = min_int(kept + 1, l->cap);
}

/* The slot that the copy took is free when its item has ended; nothing before the engine is. */
static void use_slot(struct label *label, int n_slots, double engine_s, double end_s) {
    for (int k = 0; k + 1 < n_slots; k++)
        label->free[k] = label->free[k + 1];
    label->free[n_slots - 1] = end_s;
    for (int k = 0; k < n_slots; k++)
        label->free[k] = later(label->free[k], engine_s);
}

/* One way to run an item: as so many of its units streamed make it. */
struct way {
    struct timeline_item item;
    int units;
};

static void run_item(const struct labels *l, const struct way *way, int from,
                     enum timeline_place from_place) {
    const struct timeline_item *item = &way->item;
    const struct label *before = &l->now[from_place].labels[from];
    struct timeline_waits waits =
        timeline_enter(item, from_place, before->cpu_early, before->gpu_early);
    double cpu_end_s = before->t + waits.cpu_s + item->cpu_s;
    double gpu_end_s = before->t + waits.gpu_s + item->gpu_s, engine_s = 0;
    if (item->streamed) {
        engine_s = later(before->free[0], item->late ? before->t : -HUGE_VAL) + item->copy_s;
        gpu_end_s = later(gpu_end_s, engine_s) + item->streamed_s;
    }
    double t = later(cpu_end_s, gpu_end_s);
    struct front *next = &l->next[item->place];
    if (is_full_before(l, next, t)) return;
    struct label label = *before;
    bool both = item->place == TIMELINE_BOTH;
    label.t = t;
    label.cpu_early = both ? t - cpu_end_s : 0;
    label.gpu_early = both ? t - gpu_end_s : 0;
    label.from = from * N_PLACES + (int)from_place;
    label.units = way->units;
    if (item->streamed) use_slot(&label, l->n_slots, engine_s, t);
    add(l, next, &label);
}

enum { MAX_WAYS = 3 };

/* Nothing, all, and the division that suits the item by itself. */
static int ways_of(const struct labels *l, int i, struct way ways[MAX_WAYS]) {
    const struct transfer_item *item = &l->p->items[i];
    int units[MAX_WAYS] = {0, item->n_units}, n = 1;
    if (item->n_units > 0 && l->n_slots > 0) {
        units[2] = transfer_division(item, &l->p->machine);
        n = units[2] > 0 && units[2] < item->n_units ? 3 : 2;
    }
    for (int k = 0; k < n; k++) {
        ways[k].item = transfer_apply(item, units[k]);
        ways[k].units = units[k];
    }
    return n;
}

static void clear(const struct labels *l, struct front *fronts) {
    for (int place = 0; place < N_PLACES; place++) {
        fronts[place].n = 0;
        for (int i = 0; i <= l->cap; i++)
            fronts[place].order[i] = (uint8_t)i;
    }
}

static struct label first_label(const struct labels *l, const double *start) {
    struct label first = {0};
    for (int k = 0; start && k < l->n_slots; k++)
        first.free[k] = later(start[0], start[1 + k]);
    return first;
}

static struct step *step_of(const struct labels *l, int i, int place, int label) {
    return &l->steps[(i * N_PLACES + place) * (l->cap + 1) + label];
}

/* All ways to run the item, after which its labels are those before the next. */
static void pass_item(struct labels *l, int i) {
    struct way ways[MAX_WAYS];
    int n_ways = ways_of(l, i, ways);
    clear(l, l->next);
    for (int place = 0; place < N_PLACES; place++)
        for (int k = 0; k < l->now[place].n; k++)
            for (int w = 0; w < n_ways; w++)
                run_item(l, &ways[w], l->now[place].order[k], (enum timeline_place)place);
    struct front *run = l->next;
    l->next = l->now;
    l->now = run;
    for (int place = 0; place < N_PLACES; place++)
        for (int k = 0; k < run[place].n; k++) {
            int at = run[place].order[k];
            const struct label *label = &run[place].labels[at];
            *step_of(l, i, place, at) = (struct step){label->from, label->units};
        }
}

/* Rounds in a row take as long as whatever falls furthest behind from one to the next: the clock,
 * the engine or a slot. A round by itself ends with its clock. */
static double end_of(const struct labels *l, const struct label *first, const struct label *last,
                     int place) {
    double end_s =
        last->t + (place == TIMELINE_CPU ? 0 : later(0, l->p->machine.end_s - last->gpu_early));
    for (int k = 0; l->p->periodic && k < l->n_slots; k++)
        end_s = later(end_s, last->free[k] - first->free[k]);
    return end_s;
}

static double best_end(const struct labels *l, const struct label *first, int *place, int *at) {
    double best_s = HUGE_VAL;
    for (int k = 0; k < N_PLACES; k++)
        for (int i = 0; i < l->now[k].n; i++) {
            int label = l->now[k].order[i];
            double s = end_of(l, first, &l->now[k].labels[label], k);
            if (s >= best_s) continue;
            best_s = s;
            *place = k;
            *at = label;
        }
    return best_s;
}

double transfer_labels(struct arena *arena, const struct transfer_problem *p, const double *start,
                       int *units) {
    struct labels l = {.p = p,
                       .n_slots = min_int(p->machine.n_slots, MAX_SLOTS),
                       .cap =
                           min_int(MAX_LABELS, max_int(MIN_LABELS, LABEL_WORK / max_int(1, p->n))),
                       .now = ARENA_ARRAY(arena, struct front, N_PLACES),
                       .next = ARENA_ARRAY(arena, struct front, N_PLACES)};
    l.steps = ARENA_ARRAY(arena, struct step, p->n * N_PLACES * (l.cap + 1));
    const struct label first = first_label(&l, start);
    clear(&l, l.now);
    add(&l, &l.now[TIMELINE_CPU], &first);
    for (int i = 0; i < p->n; i++)
        pass_item(&l, i);
    int place = TIMELINE_CPU, at = 0;
    double best_s = best_end(&l, &first, &place, &at);
    for (int i = p->n; i > 0; i--) {
        const struct step *step = step_of(&l, i - 1, place, at);
        units[i - 1] = step->units;
        at = step->from / N_PLACES;
        place = step->from % N_PLACES;
    }
    return best_s;
}
