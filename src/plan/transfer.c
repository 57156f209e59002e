#include "plan/transfer.h"

#include "base/rng.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Events of the timeline that single flips may cost: a few milliseconds. Small problems end before.
 */
#define MAX_EVENTS   80000
#define N_SHARES     8    /* shares tried: eighths */
#define GAIN         1e-6 /* of a round: less is no gain */
#define N_NEAR       12   /* items that one is paired with */
#define N_RESTARTS   48
#define N_PERTURBED  4
#define LONG         64 /* items: of more, fewer starts */
#define N_STARTS     4  /* where the engine may stand when rounds follow each other */
#define N_PROPOSALS  (2 + 2 * (2 + 2 * N_STARTS) + N_SHARES)
#define MAX_IMPROVED 8 /* proposals that single flips start from */

const char *transfer_rule_name(enum transfer_rule rule) {
    static const char *const names[N_TRANSFER_RULES] = {"none",  "paper", "labels",
                                                        "share", "all",   "given"};
    return (unsigned)rule < N_TRANSFER_RULES ? names[rule] : "?";
}

struct timeline_item transfer_apply(const struct transfer_item *item, int k) {
    struct timeline_item result = item->base;
    if (k <= 0 || item->n_units <= 0) return result;
    double share = (double)k / item->n_units;
    result.streamed = true;
    result.place = k < item->n_units ? TIMELINE_BOTH : TIMELINE_GPU;
    result.cpu_s = k < item->n_units ? item->base.cpu_s * (1 - share) : 0;
    result.copy_s = item->copy_s * share;
    result.streamed_s = item->streamed_s * share;
    result.n_pieces = (int)((int64_t)item->n_pieces * k + item->n_units - 1) / item->n_units;
    return result;
}

int transfer_division(const struct transfer_item *item, const struct timeline_machine *m) {
    double a = m->cpu_speed_copying, b = m->copy_speed_cpu;
    double cpu_s = item->base.cpu_s, copy_s = item->copy_s;
    if (item->n_units < 2 || cpu_s <= 0 || copy_s <= 0 || a + b * cpu_s / copy_s <= 1) return 0;
    double share = cpu_s / a / (cpu_s / a + copy_s / b);
    return min_int(item->n_units - 1, max_int(0, (int)lround(share * item->n_units)));
}

/* ---- judging ---- */

struct proposal {
    int *units; /* (n) */
    double round_s;
    enum transfer_rule from;
};

struct solver {
    struct arena arena; /* of the search */
    const struct transfer_problem *p;
    struct timeline_item *items; /* (n) what is being judged */
    struct proposal proposals[N_PROPOSALS];
    int n_proposals, n_flips;
    int64_t n_events;
};

static void judge(const struct transfer_problem *p, const struct timeline_item *items,
                  double limit_s, struct timeline_result *r, struct timeline_span *spans) {
    if (p->periodic)
        timeline_periodic(items, p->n, &p->machine, limit_s, r, spans);
    else
        timeline_round(items, p->n, &p->machine, NULL, limit_s, r, spans);
}

static void apply(const struct transfer_problem *p, const int *units, struct timeline_item *items) {
    for (int i = 0; i < p->n; i++)
        items[i] = transfer_apply(&p->items[i], units[i]);
}

void transfer_evaluate(struct arena *arena, const struct transfer_problem *p, const int *units,
                       struct timeline_result *result, struct timeline_span *spans) {
    struct timeline_item *items = ARENA_ARRAY(arena, struct timeline_item, p->n);
    apply(p, units, items);
    judge(p, items, HUGE_VAL, result, spans);
}

/* Takes part from now on; units are copied. spans: (n) or NULL. */
static void propose(struct solver *s, enum transfer_rule from, const int *units,
                    struct timeline_span *spans) {
    struct timeline_result r;
    struct proposal *proposal = &s->proposals[s->n_proposals++];
    REQUIRE(s->n_proposals <= N_PROPOSALS);
    proposal->units = ARENA_ARRAY(&s->arena, int, s->p->n);
    if (s->p->n) memcpy(proposal->units, units, sizeof(int) * (size_t)s->p->n);
    apply(s->p, units, s->items);
    judge(s->p, s->items, HUGE_VAL, &r, spans);
    proposal->round_s = r.round_s;
    proposal->from = from;
}

/* ---- proposals ---- */

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* How a round leaves the engine and the slots to the next, in its time: (n_slots + 1). */
static void tail_of(struct solver *s, const struct timeline_span *spans, double round_s,
                    double *start) {
    int n = s->p->n, n_slots = s->p->machine.n_slots, n_ends = 0;
    double *ends = ARENA_ARRAY(&s->arena, double, n + n_slots);
    start[0] = -round_s;
    for (int i = 0; i < n; i++) {
        if (!s->items[i].streamed) continue;
        start[0] = fmax(start[0], spans[i].copy_end_s - round_s);
        ends[n_ends++] = spans[i].end_s - round_s;
    }
    while (n_ends < n_slots)
        ends[n_ends++] = -round_s;
    qsort(ends, (size_t)n_ends, sizeof *ends, compare);
    for (int k = 0; k < n_slots; k++)
        start[1 + k] = ends[n_ends - n_slots + k];
}

/* The problem with interference as if the CPU always computed while a copy runs: what a copy costs
 * the CPU is added to its item. The truth lies between this and none. */
static struct transfer_problem hindered(struct solver *s) {
    const struct transfer_problem *p = s->p;
    const struct timeline_machine *m = &p->machine;
    struct transfer_problem q = *p;
    struct transfer_item *items = ARENA_ARRAY(&s->arena, struct transfer_item, p->n);
    for (int i = 0; i < p->n; i++) {
        items[i] = p->items[i];
        items[i].copy_s /= m->copy_speed_cpu;
        items[i].streamed_s += items[i].copy_s * (1 - m->cpu_speed_copying);
    }
    q.items = items;
    return q;
}

/* Labels of q, which is s->p or its hindered form, from one state of the engine and the slots at
 * the start; *best_s and tail (n_slots + 1) follow the best. */
static void propose_from(struct solver *s, const struct transfer_problem *q, const double *start,
                         double *best_s, double *tail) {
    int *units = ARENA_ARRAY(&s->arena, int, s->p->n);
    struct timeline_span *spans = ARENA_ARRAY(&s->arena, struct timeline_span, s->p->n);
    transfer_labels(&s->arena, q, start, units);
    propose(s, TRANSFER_LABELS, units, spans);
    double round_s = s->proposals[s->n_proposals - 1].round_s;
    if (!(round_s < *best_s)) return;
    *best_s = round_s;
    tail_of(s, spans, round_s, tail);
}

/* Where rounds follow each other the state at the start is that at the end: labels from an engine
 * that is ahead by more and more of a round, slots all free or one after the other, and from the
 * tail of the best that came out. */
static void propose_labels(struct solver *s, const struct transfer_problem *q) {
    const struct transfer_problem *p = s->p;
    int n_slots = p->machine.n_slots;
    double *start = ARENA_ARRAY(&s->arena, double, n_slots + 1);
    double *tail = ARENA_ARRAY(&s->arena, double, n_slots + 1), best_s = HUGE_VAL;
    propose_from(s, q, start, &best_s, tail);
    if (!p->periodic) return;
    int n_starts = p->n > LONG ? 1 : N_STARTS;
    for (int ahead = 1; ahead <= n_starts; ahead++)
        for (int apart = 0; apart < (p->n > LONG || n_slots < 2 ? 1 : 2); apart++) {
            double first_s = -s->proposals[0].round_s * ahead / n_starts;
            for (int k = 0; k <= n_slots; k++)
                start[k] = apart && k ? first_s * (n_slots - k) / n_slots : first_s;
            propose_from(s, q, start, &best_s, tail);
        }
    memcpy(start, tail, sizeof *tail * (size_t)(n_slots + 1));
    propose_from(s, q, start, &best_s, tail);
}

/* A part of every host part, up to all: the engine may copy while the device computes as well, so
 * that more than S4's division may pay. */
static void propose_shares(struct solver *s) {
    int *units = ARENA_ARRAY(&s->arena, int, s->p->n);
    for (int share = 1; share <= N_SHARES; share++) {
        bool new = false;
        for (int i = 0; i < s->p->n; i++) {
            int n_units = s->p->items[i].n_units;
            units[i] = n_units * share / N_SHARES;
            new = new || units[i] != n_units *(share - 1) / N_SHARES;
        }
        if (new) propose(s, TRANSFER_SHARE, units, NULL);
    }
}

/* ---- single flips ---- */

/* What an item may become: nothing, all, S4's division, an eighth more or less. */
static int choices(const struct solver *s, int i, int now, int out[5]) {
    const struct transfer_item *item = &s->p->items[i];
    int step = max_int(1, item->n_units / N_SHARES), n = 0;
    const int all[] = {0, item->n_units, transfer_division(item, &s->p->machine), now - step,
                       now + step};
    for (size_t k = 0; k < COUNT_OF(all); k++) {
        bool new = all[k] != now &&all[k] >= 0 && all[k] <= item->n_units;
        for (int j = 0; j < n; j++)
            new = new &&out[j] != all[k];
        if (new) out[n++] = all[k];
    }
    return n;
}

/* Keeps what stands in s->items if it is better; else the caller puts it back. */
static bool gains(struct solver *s, struct proposal *proposal) {
    struct timeline_result r;
    double limit_s = proposal->round_s * (1 - GAIN);
    judge(s->p, s->items, limit_s, &r, NULL);
    s->n_events += r.n_events;
    if (!(r.round_s < limit_s)) return false;
    proposal->round_s = r.round_s;
    s->n_flips++;
    return true;
}

static bool flip(struct solver *s, struct proposal *proposal, int i, int units) {
    struct timeline_item before = s->items[i];
    s->items[i] = transfer_apply(&s->p->items[i], units);
    if (gains(s, proposal)) {
        proposal->units[i] = units;
        return true;
    }
    s->items[i] = before;
    return false;
}

/* Item i becomes something else, and so does one of the next that can: what one gives up another
 * may take. */
static bool flip_pair(struct solver *s, struct proposal *proposal, int i) {
    int n = s->p->n;
    for (int j = i + 1, near = 0; j < i + n && near < N_NEAR; j++) {
        int k = j % n, to[2] = {s->p->items[i].n_units, s->p->items[k].n_units};
        if (to[0] == 0) return false;
        if (to[1] == 0) continue;
        near++;
        if (proposal->units[i] > 0) to[0] = 0;
        if (proposal->units[k] > 0) to[1] = 0;
        struct timeline_item before[] = {s->items[i], s->items[k]};
        s->items[i] = transfer_apply(&s->p->items[i], to[0]);
        s->items[k] = transfer_apply(&s->p->items[k], to[1]);
        if (gains(s, proposal)) {
            proposal->units[i] = to[0];
            proposal->units[k] = to[1];
            return true;
        }
        s->items[i] = before[0];
        s->items[k] = before[1];
    }
    return false;
}

static bool flip_any(struct solver *s, struct proposal *proposal, int i) {
    int options[5], n_options = choices(s, i, proposal->units[i], options);
    bool gained = false;
    for (int k = 0; k < n_options; k++)
        gained = flip(s, proposal, i, options[k]) || gained;
    return gained;
}

/* Item after item, around and around, until nothing has gained since, or the budget is spent; pairs
 * once single flips do not gain. */
static void improve(struct solver *s, struct proposal *proposal, int64_t max_events) {
    int n = s->p->n, idle = 0;
    int64_t end = s->n_events + max_events;
    apply(s->p, proposal->units, s->items);
    for (int i = 0; idle < 2 * n && s->n_events < end; i = (i + 1) % n) {
        bool gained = idle < n ? flip_any(s, proposal, i) : flip_pair(s, proposal, i);
        idle = gained ? 0 : idle + 1;
    }
}

/* From the best once more with a few items changed, for as long as the budget lasts. */
static void perturb(struct solver *s, struct proposal *best) {
    struct proposal other = {.units = ARENA_ARRAY(&s->arena, int, s->p->n), .from = best->from};
    struct timeline_result r;
    struct rng rng;
    rng_seed(&rng, 1);
    int *hosts = ARENA_ARRAY(&s->arena, int, s->p->n), n_hosts = 0;
    for (int i = 0; i < s->p->n; i++)
        if (s->p->items[i].n_units > 0) hosts[n_hosts++] = i;
    for (int again = 0; again < N_RESTARTS && s->n_events < MAX_EVENTS; again++) {
        memcpy(other.units, best->units, sizeof(int) * (size_t)s->p->n);
        int n_changed = again % 2 ? N_PERTURBED : n_hosts;
        for (int k = 0; k < n_changed; k++) {
            int i = hosts[rng_below(&rng, (uint32_t)n_hosts)];
            other.units[i] = other.units[i] > 0 ? 0 : s->p->items[i].n_units;
        }
        apply(s->p, other.units, s->items);
        judge(s->p, s->items, HUGE_VAL, &r, NULL);
        s->n_events += r.n_events;
        other.round_s = r.round_s;
        improve(s, &other, MAX_EVENTS - s->n_events);
        if (!(other.round_s < best->round_s)) continue;
        best->round_s = other.round_s;
        memcpy(best->units, other.units, sizeof(int) * (size_t)s->p->n);
    }
}

static int by_round(const void *a, const void *b) {
    const struct proposal *x = a, *y = b;
    if (x->round_s < y->round_s || x->round_s > y->round_s) return x->round_s < y->round_s ? -1 : 1;
    return (int)x->from - (int)y->from;
}

static bool can_stream(const struct transfer_problem *p) {
    bool can = false;
    for (int i = 0; i < p->n; i++)
        can = can || p->items[i].n_units > 0;
    return can && p->machine.n_slots > 0;
}

static void propose_all(struct solver *s, enum transfer_rule rule) {
    int *units = ARENA_ARRAY(&s->arena, int, s->p->n);
    if (rule == TRANSFER_ALL) {
        for (int i = 0; i < s->p->n; i++)
            units[i] = s->p->machine.n_slots > 0 ? s->p->items[i].n_units : 0;
        propose(s, TRANSFER_ALL, units, NULL);
        return;
    }
    propose(s, TRANSFER_NONE, units, NULL);
    if (rule == TRANSFER_NONE || !can_stream(s->p)) return;
    transfer_paper(s->p, units);
    propose(s, TRANSFER_PAPER, units, NULL);
    if (rule == TRANSFER_PAPER) return;
    propose_labels(s, s->p);
    struct transfer_problem q = hindered(s);
    if (s->p->n <= LONG) propose_labels(s, &q);
    propose_shares(s);
}

void transfer_solve(struct arena *arena, const struct transfer_problem *p, enum transfer_rule rule,
                    struct transfer_schedule *out) {
    struct solver s = {.p = p};
    *out = (struct transfer_schedule){.units = ARENA_ARRAY(arena, int, p->n)};
    s.items = ARENA_ARRAY(&s.arena, struct timeline_item, p->n);
    propose_all(&s, rule);
    for (int k = 0; k < N_TRANSFER_RULES; k++)
        out->proposed_s[k] = HUGE_VAL;
    for (int k = 0; k < s.n_proposals; k++) {
        double *least = &out->proposed_s[s.proposals[k].from];
        *least = fmin(*least, s.proposals[k].round_s);
    }
    qsort(s.proposals, (size_t)s.n_proposals, sizeof *s.proposals, by_round);
    bool improving = rule != TRANSFER_NONE && rule != TRANSFER_PAPER && s.n_proposals > 1;
    for (int k = 0; improving && k < s.n_proposals && k < MAX_IMPROVED; k++)
        improve(&s, &s.proposals[k], (MAX_EVENTS - s.n_events) / (MAX_IMPROVED - k));
    qsort(s.proposals, (size_t)s.n_proposals, sizeof *s.proposals, by_round);
    if (improving) perturb(&s, &s.proposals[0]);
    memcpy(out->units, s.proposals[0].units, sizeof(int) * (size_t)p->n);
    out->from = s.proposals[0].from;
    out->n_flips = s.n_flips;
    apply(p, out->units, s.items);
    judge(p, s.items, HUGE_VAL, &out->result, NULL);
    arena_free(&s.arena);
}
