#include "run/metrics.h"

#include <stdlib.h>
#include "base/arena.h"

/* ---- facts ---- */

/* What one step of a GPU moves over the link, a line. */
static int64_t step_bytes(const struct step *s) {
    int64_t n_spans = s->out.space == SPACE_EXCHANGE;
    for (int i = 0; i < s->n_in; i++)
        n_spans += s->in[i].space == SPACE_EXCHANGE;
    return n_spans * (s->end - s->begin) * (int64_t)sizeof(float);
}

/* Whole rows or columns of blocks, of all experts of the range. */
static int64_t shard_bytes(const struct graph *g, const struct program_shard *s) {
    const struct graph_weight *w = &g->weights[s->weight];
    int n = s->end - s->begin;
    int rows = s->axis == AXIS_ROWS ? n : w->n_rows, cols = s->axis == AXIS_COLS ? n : w->n_cols;
    int experts = s->axis == AXIS_EXPERTS ? n : w->n_experts > 1 ? w->n_experts : 1;
    return dtype_row_bytes(w->dtype, cols) * rows * experts;
}

void metrics_facts(struct arena *arena, const struct graph *g, const struct program *program,
                   struct backend *const *devices, struct metrics_facts *out) {
    *out = (struct metrics_facts){.gpu = ARENA_ARRAY(arena, bool, program->n_devices),
                                  .driven = ARENA_ARRAY(arena, bool, program->n_devices),
                                  .room = ARENA_ARRAY(arena, struct backend_times,
                                                      program->n_segments + program->n_transfers)};
    for (int d = 0; d < program->n_devices; d++) {
        out->gpu[d] = devices[d]->gpu;
        out->driven[d] = devices[d]->driven;
    }
    for (int i = 0; i < program->n_segments; i++)
        out->n_splits += program->segments[i].n_waits;
    for (int i = 0; i < program->n_shards; i++)
        if (program->shards[i].transfer >= 0)
            out->weight_bytes += shard_bytes(g, &program->shards[i]);
    for (int i = 0; i < program->n_steps; i++) {
        const struct program_step *s = &program->steps[i];
        if (!out->gpu[s->device]) continue;
        *(s->step.rows ? &out->bytes_row : &out->bytes_token) += step_bytes(&s->step);
    }
}

/* ---- a round ---- */

static int by_begin(const void *a, const void *b) {
    uint64_t x = ((const struct backend_times *)a)->begin_ns;
    uint64_t y = ((const struct backend_times *)b)->begin_ns;
    return (x > y) - (x < y);
}

/* Length of the union of intervals, which are sorted here. */
static uint64_t union_ns(struct backend_times *items, size_t n) {
    uint64_t sum = 0, end = 0;
    qsort(items, n, sizeof *items, by_begin);
    for (size_t i = 0; i < n; i++) {
        uint64_t begin = items[i].begin_ns > end ? items[i].begin_ns : end;
        if (items[i].end_ns <= begin) continue;
        sum += items[i].end_ns - begin;
        end = items[i].end_ns;
    }
    return sum;
}

uint64_t metrics_busy_ns(const struct program *p, const struct metrics_facts *f,
                         const struct round_times *t, unsigned kinds) {
    size_t n = 0;
    for (int i = 0; i < p->n_segments; i++) {
        unsigned kind = f->gpu[p->segments[i].device] ? METRICS_GPU : METRICS_CPU;
        if ((kinds & kind) && t->segments[i].known) f->room[n++] = t->segments[i].ran;
    }
    for (int i = 0; i < p->n_transfers && (kinds & METRICS_LINK); i++)
        if (t->copies[i].known) f->room[n++] = t->copies[i].ran;
    return union_ns(f->room, n);
}

/* ---- exposed transfer ---- */

/* Since when a segment could have begun but for a copy: the round's begin, the end of the one
 * before it on its device, of those that it waits for. */
static uint64_t ready_ns(const struct program *p, const struct round_times *t, int segment) {
    const struct program_segment *s = &p->segments[segment];
    uint64_t ready = t->begin_ns;
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *other = &p->segments[i];
        bool waits = other->device == s->device && other->ordinal == s->ordinal - 1;
        for (int j = 0; j < s->n_waits; j++)
            waits |= other->device == s->waits[j].device && other->ordinal == s->waits[j].ordinal;
        if (waits && t->segments[i].ran.end_ns > ready) ready = t->segments[i].ran.end_ns;
    }
    return ready;
}

static uint64_t arrival_ns(const struct program *p, const struct round_times *t,
                           const struct program_segment *s) {
    for (int i = 0; i < p->n_transfers; i++)
        if (p->transfers[i].device == s->device && p->transfers[i].ordinal == s->arrival)
            return t->copies[i].ran.end_ns;
    return 0;
}

static uint64_t exposed_ns(const struct program *p, const struct round_times *t) {
    uint64_t sum = 0;
    for (int i = 0; i < p->n_segments; i++) {
        if (!p->segments[i].arrival || !t->segments[i].known) continue;
        uint64_t ready = ready_ns(p, t, i), arrival = arrival_ns(p, t, &p->segments[i]);
        if (arrival > t->segments[i].ran.begin_ns) arrival = t->segments[i].ran.begin_ns;
        if (arrival > ready) sum += arrival - ready;
    }
    return sum;
}

/* ---- the host ---- */

/* The caller's thread waits inside a segment that it drives, before it computes, and at the end. */
static uint64_t wait_ns(const struct program *p, const struct metrics_facts *f,
                        const struct round_times *t) {
    uint64_t sum = 0;
    for (int d = 0; d < p->n_devices; d++)
        sum += t->waits[d].end_ns - t->waits[d].begin_ns;
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[i];
        if (f->driven[s->device] && s->n_waits && t->segments[i].known)
            sum += t->segments[i].ran.begin_ns - t->segments[i].submit_ns;
    }
    return sum;
}

static uint64_t driven_ns(const struct program *p, const struct metrics_facts *f,
                          const struct round_times *t) {
    uint64_t sum = 0;
    for (int i = 0; i < p->n_segments; i++)
        if (f->driven[p->segments[i].device] && t->segments[i].known)
            sum += t->segments[i].ran.end_ns - t->segments[i].ran.begin_ns;
    return sum;
}

void metrics_add(const struct program *p, const struct metrics_facts *f, const struct round *round,
                 const struct round_times *t, ats_metrics *sum) {
    uint64_t round_ns = t->end_ns - t->begin_ns, waited = wait_ns(p, f, t);
    uint64_t away = driven_ns(p, f, t) + waited + t->caller_driver_ns;
    sum->n_rounds++;
    sum->n_tokens += (uint64_t)round->n_tokens;
    sum->round_ns += round_ns;
    sum->cpu_busy_ns += metrics_busy_ns(p, f, t, METRICS_CPU);
    sum->gpu_busy_ns += metrics_busy_ns(p, f, t, METRICS_GPU);
    sum->link_busy_ns += metrics_busy_ns(p, f, t, METRICS_LINK);
    sum->exposed_ns += exposed_ns(p, t);
    sum->weight_bytes += (uint64_t)f->weight_bytes;
    sum->n_copies += (uint64_t)p->n_transfers;
    sum->activation_bytes +=
        (uint64_t)(f->bytes_token * round->n_tokens + f->bytes_row * round->n_rows);
    sum->n_splits += (uint64_t)f->n_splits;
    sum->n_submissions += t->n_submissions;
    sum->wait_ns += waited;
    sum->driver_ns += t->driver_ns;
    sum->host_ns += (round_ns > away ? round_ns - away : 0) + t->thread_ns;
    for (int i = 0; i < p->n_segments; i++)
        sum->n_untimed += !t->segments[i].known;
    for (int i = 0; i < p->n_transfers; i++)
        sum->n_untimed += !t->copies[i].known;
}
