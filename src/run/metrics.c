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

void metrics_facts(struct arena *arena, const struct program *program,
                   struct backend *const *devices, struct metrics_facts *out) {
    *out = (struct metrics_facts){
        .gpu = ARENA_ARRAY(arena, bool, program->n_devices),
        .driven = ARENA_ARRAY(arena, bool, program->n_devices),
        .room = ARENA_ARRAY(arena, struct backend_times, program->n_segments)};
    for (int d = 0; d < program->n_devices; d++) {
        out->gpu[d] = devices[d]->gpu;
        out->driven[d] = devices[d]->driven;
    }
    for (int i = 0; i < program->n_segments; i++)
        out->n_splits += program->segments[i].n_waits;
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

/* Time in which any device of the kind computes. */
static uint64_t busy_ns(const struct program *p, const struct metrics_facts *f,
                        const struct round_times *t, bool gpu) {
    size_t n = 0;
    for (int i = 0; i < p->n_segments; i++)
        if (f->gpu[p->segments[i].device] == gpu && t->segments[i].known)
            f->room[n++] = t->segments[i].ran;
    return union_ns(f->room, n);
}

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
    uint64_t away = driven_ns(p, f, t) + waited;
    sum->n_rounds++;
    sum->n_tokens += (uint64_t)round->n_tokens;
    sum->round_ns += round_ns;
    sum->cpu_busy_ns += busy_ns(p, f, t, false);
    sum->gpu_busy_ns += busy_ns(p, f, t, true);
    sum->activation_bytes +=
        (uint64_t)(f->bytes_token * round->n_tokens + f->bytes_row * round->n_rows);
    sum->n_splits += (uint64_t)f->n_splits;
    sum->n_submissions += t->n_submissions;
    sum->wait_ns += waited;
    sum->driver_ns += t->driver_ns;
    uint64_t work = (round_ns > away ? round_ns - away : 0) + t->thread_ns;
    sum->host_ns += work > t->driver_ns ? work - t->driver_ns : 0;
    for (int i = 0; i < p->n_segments; i++)
        sum->n_untimed += !t->segments[i].known;
}
