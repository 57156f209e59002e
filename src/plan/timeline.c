#include "plan/timeline.h"

#include <math.h>

/* Below this nothing is left of an activity: rounding, not work. */
#define NOTHING_S  1e-15
#define MAX_ROUNDS 32
#define MAX_SWING  1.5 /* of the limit: what one of rounds that do not settle may take */
#define NOT_YET    (-1.0)
#define SAME       1e-8 /* of a round: two states are one */

struct timeline_machine timeline_machine_ideal(int n_slots) {
    return (struct timeline_machine){.n_slots = n_slots,
                                     .cpu_speed_copying = 1,
                                     .copy_speed_cpu = 1,
                                     .cpu_speed_gpu = 1,
                                     .gpu_speed_cpu = 1};
}

struct run {
    const struct timeline_item *items;
    int n;
    const struct timeline_machine *m;
    struct timeline_span *spans; /* or NULL */
    struct timeline_result *r;
    double now;
    int item;                     /* the one that runs */
    int n_ahead, n_ahead_arrived; /* copies that the round began with; of them, done */
    int n_copies;                 /* all of a round's */
    /* The engine: copies are counted through the round. */
    int n_streamed, n_arrived, n_used; /* begun; done; whose slot is free again */
    int copy_item;                     /* that is being copied, or is next; from n on: the next
                                          round's */
    int copy_piece;                    /* of it */
    double copy_left;                  /* > 0: running */
    /* Of the running item: until each begins, and what is left of its work. */
    double cpu_wait, gpu_wait, cpu_left, gpu_left;
    /* How long before the end of the item before each had done its part. */
    double cpu_early, gpu_early;
};

/* The first streamed item from i on, through the end of the next round. */
static int next_streamed(const struct run *q, int i) {
    for (; i < 2 * q->n; i++)
        if (q->items[i < q->n ? i : i - q->n].streamed) return i;
    return 2 * q->n;
}

static int pieces(const struct timeline_item *item) {
    return !item->streamed ? 0 : item->n_pieces > 1 ? item->n_pieces : 1;
}

static const struct timeline_item *copied_item(const struct run *q) {
    return &q->items[q->copy_item < q->n ? q->copy_item : q->copy_item - q->n];
}

/* The piece that is being copied, or is next, has arrived. */
static void next_piece(struct run *q) {
    q->n_arrived++;
    if (++q->copy_piece < pieces(copied_item(q))) return;
    q->copy_piece = 0;
    q->copy_item = next_streamed(q, q->copy_item + 1);
}

static double ratio(double left, double speed) {
    return left > 0 ? left / speed : HUGE_VAL;
}

/* Notes that the engine's copy begins or ends now, of an item the first piece's begin and the last
 * one's end. One of the next round goes into this round's span only where this round's own was
 * ahead: in the long run the two are a round apart (place_ahead). */
static void note_copy(struct run *q, bool ends) {
    if (!q->spans) return;
    if (q->copy_piece != (ends ? pieces(copied_item(q)) - 1 : 0)) return;
    bool next_round = q->copy_item >= q->n;
    if (next_round && q->n_streamed - 1 - q->n_copies >= q->n_ahead) return;
    struct timeline_span *span = &q->spans[next_round ? q->copy_item - q->n : q->copy_item];
    *(ends ? &span->copy_end_s : &span->copy_begin_s) = q->now;
}

/* Starts the next copy if the engine, a slot and the knowledge of what to copy are there. */
static void start_copy(struct run *q) {
    while (q->copy_left <= 0 && q->copy_item < 2 * q->n &&
           q->n_streamed - q->n_used < q->m->n_slots) {
        bool next_round = q->copy_item >= q->n;
        int i = next_round ? q->copy_item - q->n : q->copy_item;
        if (q->items[i].late && (next_round || q->item < i)) return;
        q->copy_left = q->items[i].copy_s / pieces(&q->items[i]);
        q->n_streamed++;
        note_copy(q, false);
        if (q->copy_left > 0) return;
        note_copy(q, true); /* of no length */
        next_piece(q);
    }
}

static void end_copy(struct run *q) {
    q->copy_left = 0;
    note_copy(q, true);
    next_piece(q);
    start_copy(q);
}

/* Inline, as fmin is not: it would have to mind what is no number. */
static double sooner(double a, double b) {
    return a < b ? a : b;
}

/* Until a device has something new to do: what it waits for, or the end of its work. */
static double next_of(double wait, double left, double speed) {
    return wait > 0 ? wait : ratio(left, speed);
}

/* A device waits or works for dt. Of what takes next_s, the sooner of all, nothing is left. */
static void pass(double *wait, double *left, double speed, double next_s, double dt) {
    double *what = *wait > 0 ? wait : left;
    if (*what <= 0) return;
    *what = next_s <= dt ? 0 : *what - dt * (*wait > 0 ? 1 : speed);
    if (*what < NOTHING_S) *what = 0;
}

/* To the next event: whoever comes first has nothing left, the others what their speed leaves
 * them. False: nothing runs, so nothing will ever come. */
static bool advance(struct run *q) {
    const struct timeline_machine *m = q->m;
    struct timeline_result *r = q->r;
    bool waits = q->cpu_wait > 0 || q->gpu_wait > 0, copy = q->copy_left > 0;
    bool cpu = q->cpu_wait <= 0 && q->cpu_left > 0, gpu = q->gpu_wait <= 0 && q->gpu_left > 0;
    double cpu_speed = (copy ? m->cpu_speed_copying : 1) * (gpu ? m->cpu_speed_gpu : 1);
    double gpu_speed = cpu ? m->gpu_speed_cpu : 1, copy_speed = cpu ? m->copy_speed_cpu : 1;
    double cpu_in = next_of(q->cpu_wait, q->cpu_left, cpu_speed);
    double gpu_in = next_of(q->gpu_wait, q->gpu_left, gpu_speed);
    double copy_in = ratio(q->copy_left, copy_speed);
    double dt = sooner(sooner(cpu_in, gpu_in), copy_in);
    if (!(dt < HUGE_VAL)) return false;
    q->now += dt;
    r->n_events++;
    if (cpu) r->cpu_busy_s += dt;
    if (gpu) r->gpu_busy_s += dt;
    if (copy) r->copy_busy_s += dt;
    if (cpu && copy) r->cpu_copy_s += dt;
    if (cpu && gpu) r->cpu_gpu_s += dt;
    if (!cpu && !gpu) *(waits ? &r->switch_s : &r->exposed_s) += dt;
    pass(&q->cpu_wait, &q->cpu_left, cpu_speed, cpu_in, dt);
    pass(&q->gpu_wait, &q->gpu_left, gpu_speed, gpu_in, dt);
    if (copy) q->copy_left -= dt * copy_speed;
    if (copy && (copy_in <= dt || q->copy_left < NOTHING_S)) end_copy(q);
    return true;
}

double timeline_switch_s(const struct timeline_item *item, enum timeline_place from) {
    static const enum {
        NONE,
        UP,
        DOWN,
        EXCHANGE
    } kinds[3][3] = {
        [TIMELINE_CPU] = {NONE, UP, UP},
        [TIMELINE_GPU] = {DOWN, NONE, DOWN},
        [TIMELINE_BOTH] = {DOWN, UP, EXCHANGE},
    };
    const double costs[] = {0, item->up_s, item->down_s, item->exchange_s};
    return costs[kinds[from][item->place]];
}

/* When the devices begin the item and how much they have to do. */
static void enter(struct run *q, const struct timeline_item *item, enum timeline_place from,
                  struct timeline_span *span) {
    struct timeline_waits waits = timeline_enter(item, from, q->cpu_early, q->gpu_early);
    q->cpu_wait = waits.cpu_s;
    q->gpu_wait = waits.gpu_s;
    q->cpu_left = item->cpu_s;
    q->gpu_left = item->gpu_s;
    span->enter_s = q->now;
    if (item->place != TIMELINE_GPU) span->cpu_begin_s = q->now + waits.cpu_s;
    if (item->place != TIMELINE_CPU) span->gpu_begin_s = q->now + waits.gpu_s;
}

static void leave(struct run *q, const struct timeline_item *item, struct timeline_span *span,
                  double cpu_end_s, double gpu_end_s) {
    bool both = item->place == TIMELINE_BOTH;
    q->cpu_early = both ? q->now - cpu_end_s : 0;
    q->gpu_early = both ? q->now - gpu_end_s : 0;
    span->end_s = q->now;
    if (item->place != TIMELINE_GPU) span->cpu_end_s = cpu_end_s;
    if (item->place != TIMELINE_CPU) span->gpu_end_s = gpu_end_s;
}

/* Runs q->item, whose copy is number `copy` of the round. */
static bool run_item(struct run *q, enum timeline_place from, int copy, double limit_s) {
    const struct timeline_item *item = &q->items[q->item];
    struct timeline_span unseen = {0}, *span = q->spans ? &q->spans[q->item] : &unseen;
    if (from != item->place || from == TIMELINE_BOTH) q->r->n_splits++;
    if (item->streamed) q->r->n_splits++;
    enter(q, item, from, span);
    int n = pieces(item), begun = 0, freed = 0; /* pieces computed or being so; computed */
    double cpu_end_s = q->now, gpu_end_s = q->now;
    for (;;) {
        while (q->gpu_wait <= 0 && q->gpu_left <= 0 &&
               (freed < begun || (begun < n && q->n_arrived > copy + begun))) {
            if (freed < begun) {
                freed++, q->n_used++;
                start_copy(q);
            } else {
                q->gpu_left = item->streamed_s / n;
                begun++;
            }
        }
        bool cpu = q->cpu_wait > 0 || q->cpu_left > 0;
        bool gpu = q->gpu_wait > 0 || q->gpu_left > 0 || begun < n;
        if (!cpu && !gpu) break;
        if (q->now > limit_s || !advance(q)) return false;
        if (cpu) cpu_end_s = q->now;
        if (gpu) gpu_end_s = q->now;
    }
    leave(q, item, span, cpu_end_s, gpu_end_s);
    return q->now <= limit_s;
}

static void begin(struct run *q, const struct timeline_state *start) {
    q->copy_item = next_streamed(q, 0);
    for (int i = 0; i < q->n; i++)
        q->n_copies += pieces(&q->items[i]);
    if (start) {
        q->n_ahead = q->n_streamed = start->n_ahead;
        q->copy_left = start->left_s;
        q->n_arrived = q->n_ahead_arrived = start->n_ahead - (start->left_s > 0);
        q->n_arrived = 0;
        for (int i = 0; i < q->n_ahead_arrived; i++)
            next_piece(q);
    }
}

static bool run_round(struct run *q, double limit_s) {
    enum timeline_place from = TIMELINE_CPU;
    int copy = 0;
    for (q->item = 0; q->item < q->n; q->item++) {
        start_copy(q); /* a late one knows now, and a slot may have become free */
        if (!run_item(q, from, copy, limit_s)) return false;
        from = q->items[q->item].place;
        copy += pieces(&q->items[q->item]);
    }
    start_copy(q);
    if (from != TIMELINE_CPU && q->m->end_s > q->gpu_early)
        q->cpu_wait = q->m->end_s - q->gpu_early;
    while (q->cpu_wait > 0)
        if (!advance(q)) return false;
    q->r->n_splits += from != TIMELINE_CPU;
    q->r->state = (struct timeline_state){q->n_streamed - copy, q->copy_left};
    return q->now <= limit_s;
}

/* What note_copy writes for copies of the next round is a round later than this round's, which
 * began (and, of those that had arrived, ended) before: called before and after the round. */
static void place_ahead(const struct run *q, bool after) {
    for (int i = 0, copy = 0; copy < q->n_ahead && i < q->n; i++) {
        if (!q->items[i].streamed) continue;
        double *times[] = {&q->spans[i].copy_begin_s, &q->spans[i].copy_end_s};
        int n = pieces(&q->items[i]);
        for (int k = 0; k < 1 + (copy + n <= q->n_ahead_arrived); k++) {
            if (!after)
                *times[k] = NOT_YET;
            else
                *times[k] = *times[k] >= 0 ? *times[k] - q->now : 0;
        }
        copy += n;
    }
}

void timeline_round(const struct timeline_item *items, int n, const struct timeline_machine *m,
                    const struct timeline_state *start, double limit_s,
                    struct timeline_result *result, struct timeline_span *spans) {
    *result = (struct timeline_result){0};
    for (int i = 0; spans && i < n; i++)
        spans[i] = (struct timeline_span){0};
    struct run q = {.items = items, .n = n, .m = m, .spans = spans, .r = result};
    begin(&q, start);
    if (spans) place_ahead(&q, false);
    result->round_s = run_round(&q, limit_s) ? q.now : HUGE_VAL;
    if (spans) place_ahead(&q, true);
}

/* Everything that can be ahead is there: where most rounds end up that do not keep the engine busy.
 */
static struct timeline_state all_ahead(const struct timeline_item *items, int n,
                                       const struct timeline_machine *m) {
    struct timeline_state state = {0};
    for (int i = 0; i < n && state.n_ahead < m->n_slots; i++) {
        if (items[i].late) break;
        state.n_ahead = min_int(m->n_slots, state.n_ahead + pieces(&items[i]));
    }
    return state;
}

/* A round's copies need as long as this, whatever is ahead: the CPU hinders them at least while it
 * does its work undisturbed. */
static double engine_bound_s(const struct timeline_item *items, int n,
                             const struct timeline_machine *m) {
    double copy_s = 0, cpu_s = 0;
    for (int i = 0; i < n; i++) {
        cpu_s += items[i].cpu_s;
        if (items[i].streamed) copy_s += items[i].copy_s;
    }
    return fmin(copy_s / m->copy_speed_cpu, copy_s + (1 - m->copy_speed_cpu) * cpu_s);
}

void timeline_periodic(const struct timeline_item *items, int n, const struct timeline_machine *m,
                       double limit_s, struct timeline_result *result,
                       struct timeline_span *spans) {
    struct timeline_state state = all_ahead(items, n, m);
    int n_events = 0, n_late = 0;
    double late_s = 0, bound_s = engine_bound_s(items, n, m);
    bool restarted = false;
    *result = (struct timeline_result){.round_s = HUGE_VAL};
    if (bound_s > limit_s) return;
    for (int i = 0; i < MAX_ROUNDS; i++) {
        timeline_round(items, n, m, &state, MAX_SWING * limit_s, result, spans);
        n_events += result->n_events;
        if (!(result->round_s < HUGE_VAL)) break;
        bool same = result->state.n_ahead == state.n_ahead &&
                    fabs(result->state.left_s - state.left_s) <= SAME * result->round_s;
        if (same) break;
        state = result->state;
        if (!restarted && result->round_s < bound_s) {
            state = (struct timeline_state){0}; /* it would lose what is ahead bit by bit */
            restarted = true;
        }
        if (i < MAX_ROUNDS / 2) continue;
        late_s += result->round_s; /* it does not settle: the mean */
        n_late++;
        if (i + 1 == MAX_ROUNDS) result->round_s = late_s / n_late;
    }
    result->n_events = n_events;
}
