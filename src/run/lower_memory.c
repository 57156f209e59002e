#include "run/lower_internal.h"

#include <stdlib.h>
#include <string.h>

#define BUFFER_ALIGN 64

/* Steps for which a buffer is kept after its last use, so that a backend may fold a norm, three
 * products and what follows them into one without overwriting the input. */
#define LINGER_STEPS 4

/* Bytes of the exchange are not used again for so many steps if their writer would have to wait for
 * readers that it has not waited for anyway. */
#define AVOID_WAIT_STEPS 64

/* For each step and device, the latest of its steps that the step's device has waited for by then,
 * to read what it wrote; -1: none. (n_steps, n_devices), owned. */
static int *known_steps(const struct lowering *l) {
    size_t n = (size_t)l->n_devices;
    int *known = xcalloc(l->n_steps * n + 1, sizeof *known);
    int *last = xcalloc(n * n, sizeof *last); /* by device */
    for (size_t i = 0; i < n * n; i++)
        last[i] = -1;
    for (size_t i = 0; i < l->n_steps; i++) {
        int *mine = last + (size_t)l->steps[i].s.device * n;
        for (size_t d = 0; d < n; d++)
            known[i * n + d] = mine[d] = max_int(mine[d], l->steps[i].wait[d]);
    }
    free(last);
    return known;
}

/* May a step write where a buffer of the exchange stood, without another wait? */
static bool is_read(const struct lowering *l, const struct buffer *b, int step, const int *known) {
    for (int d = 0; d < l->n_devices; d++)
        if (d != l->steps[step].s.device && b->readers[d] > known[step * l->n_devices + d])
            return false;
    return true;
}

/* Is a buffer not needed any more when a step begins to write, whichever it is? Logits stay. */
static bool is_over(const struct lowering *l, const struct buffer *b, int step) {
    int more = b->device < 0 ? AVOID_WAIT_STEPS : LINGER_STEPS;
    return b != &l->buffers[l->logits_buffer] && b->last_use + more < step;
}

/* One that is not over: must the step, in particular, write elsewhere? */
static bool is_in_use(const struct lowering *l, const struct buffer *b, int step,
                      const int *known) {
    bool lingers = b == &l->buffers[l->logits_buffer] || b->last_use + LINGER_STEPS >= step;
    return lingers || !is_read(l, b, step, known);
}

struct placed {
    const struct buffer *buffer;
    int64_t begin, end;
};

static int by_begin(const void *a, const void *b) {
    int64_t x = ((const struct placed *)a)->begin, y = ((const struct placed *)b)->begin;
    return (x > y) - (x < y);
}

static int by_birth(const void *a, const void *b) {
    const struct buffer *x = *(struct buffer *const *)a, *y = *(struct buffer *const *)b;
    return x->writer != y->writer ? x->writer - y->writer : (x > y) - (x < y);
}

/* Those of a space that are written, in order of birth, to `out`; returns how many. */
static size_t list_buffers(struct lowering *l, int device, struct buffer **out) {
    size_t n = 0;
    for (size_t i = 0; i < l->n_buffers; i++)
        if (l->buffers[i].device == device && l->buffers[i].writer >= 0) out[n++] = &l->buffers[i];
    qsort(out, n, sizeof *out, by_birth);
    return n;
}

/* The first bytes that none of the buffers has which are in use when b is born; recent: (n) by
 * their beginning. */
static int64_t first_fit(const struct lowering *l, const struct placed *recent, size_t n,
                         const struct buffer *b, int64_t bytes, const int *known) {
    int64_t at = 0;
    for (size_t i = 0; i < n && recent[i].begin < at + bytes; i++)
        if (is_in_use(l, recent[i].buffer, b->writer, known)) at = max_i64(at, recent[i].end);
    return at;
}

/* In order of birth: buffers of one space may share bytes if their lives do not touch. Returns the
 * bytes of the space. */
static int64_t place_buffers(struct lowering *l, int device) {
    struct placed *recent = xcalloc(l->n_buffers + 1, sizeof *recent);
    struct buffer **list = xcalloc(l->n_buffers + 1, sizeof *list);
    int *known = known_steps(l);
    size_t n_recent = 0, n = list_buffers(l, device, list);
    int64_t top = 0;
    for (size_t i = 0; i < n; i++) {
        struct buffer *b = list[i];
        size_t kept = 0;
        for (size_t j = 0; j < n_recent; j++)
            if (!is_over(l, recent[j].buffer, b->writer)) recent[kept++] = recent[j];
        n_recent = kept;
        qsort(recent, n_recent, sizeof *recent, by_begin);
        int64_t bytes = (int64_t)round_up((size_t)b->bytes, BUFFER_ALIGN);
        int64_t at = first_fit(l, recent, n_recent, b, bytes, known);
        b->offset_bytes = at;
        recent[n_recent++] = (struct placed){b, at, at + bytes};
        top = max_i64(top, at + bytes);
    }
    free(recent), free(list), free(known);
    return top;
}

static bool overlap(const struct buffer *a, const struct buffer *b) {
    return a->offset_bytes < b->offset_bytes + b->bytes &&
           b->offset_bytes < a->offset_bytes + a->bytes;
}

/* Bytes of the exchange that are used again: the next writer waits for the readers before it. */
static void wait_for_readers(struct lowering *l) {
    struct buffer **list = xcalloc(l->n_buffers + 1, sizeof *list);
    size_t n = list_buffers(l, -1, list);
    for (size_t i = 0; i < n; i++) {
        const struct buffer *now = list[i];
        struct lower_step *writer = &l->steps[now->writer];
        for (size_t j = 0; j < i; j++) {
            const struct buffer *old = list[j];
            if (!overlap(now, old)) continue;
            for (int d = 0; d < l->n_devices; d++)
                if (d != writer->s.device)
                    writer->wait[d] = max_int(writer->wait[d], old->readers[d]);
        }
    }
    free(list);
}

static struct span span_of(const struct lowering *l, int buffer) {
    const struct buffer *b = &l->buffers[buffer];
    return (struct span){b->device < 0 ? SPACE_EXCHANGE : SPACE_LOCAL, b->offset_bytes, b->stride,
                         b->first_column};
}

static void fill_spans(struct lowering *l) {
    struct program *p = l->program;
    p->n_steps = (int)l->n_steps;
    p->steps = ARENA_ARRAY(l->arena, struct program_step, l->n_steps);
    for (size_t i = 0; i < l->n_steps; i++) {
        struct lower_step *s = &l->steps[i];
        for (int j = 0; j < s->s.step.n_in; j++)
            s->s.step.in[j] = span_of(l, s->in[j]);
        s->s.step.out = span_of(l, s->out);
        s->s.step.n_readers = l->buffers[s->out].n_readers;
        p->steps[i] = s->s;
    }
}

static bool must_wait(const struct lowering *l, const struct lower_step *s) {
    for (int d = 0; d < l->n_devices; d++)
        if (s->wait[d] >= 0) return true;
    return false;
}

/* The last of the copies right behind a step of its device, which take no time and wait for nobody:
 * who waits for one of several results waits for all at once, and is not cut for each. */
static int last_copy(const struct lowering *l, int step) {
    const int device = l->steps[step].s.device;
    int last = step;
    for (size_t i = (size_t)step + 1; i < l->n_steps && !l->steps[last].cut_after; i++) {
        const struct lower_step *s = &l->steps[i];
        if (s->s.device != device) continue;
        if (s->s.step.kind != STEP_COPY || must_wait(l, s)) break;
        last = (int)i;
    }
    return last;
}

/* Forgets waits for what the device has waited for already. */
static void forget_waits(struct lowering *l) {
    int *seen = xcalloc((size_t)(l->n_devices * l->n_devices), sizeof *seen); /* + 1 */
    for (size_t i = 0; i < l->n_steps; i++) {
        struct lower_step *s = &l->steps[i];
        for (int d = 0; d < l->n_devices; d++) {
            int *last = &seen[s->s.device * l->n_devices + d];
            if (s->wait[d] < *last) s->wait[d] = -1;
            *last = max_int(*last, s->wait[d] + 1);
        }
    }
    free(seen);
}

/* Cuts behind what others wait for. */
static void mark_cuts(struct lowering *l) {
    forget_waits(l);
    for (size_t i = 0; i < l->n_steps; i++)
        for (int d = 0; d < l->n_devices; d++) {
            int *wait = &l->steps[i].wait[d];
            if (*wait >= 0) l->steps[ *wait = last_copy(l, *wait)].cut_after = true;
        }
    forget_waits(l);
}

/* Opens a segment at position `at` of the device's order; waits are filled once all exist. */
static struct program_segment *open_segment(struct lowering *l, int device, int at, int first_step,
                                            int ordinal, size_t *cap) {
    struct program *p = l->program;
    GROW(p->segments, p->n_segments, *cap, 1);
    struct program_segment *s = &p->segments[p->n_segments++];
    *s =
        (struct program_segment){.device = device,
                                 .step_begin = at,
                                 .step_end = at,
                                 .release = -1,
                                 .ordinal = ordinal,
                                 .first_step = first_step,
                                 .waits = ARENA_ARRAY(l->arena, struct program_wait, l->n_devices)};
    return s;
}

/* Cuts a device's steps where it waits, and after what others wait for: segments of other devices,
 * or transfers, both ways. The step numbers waited for stand in `ordinal` until number_waits. */
static void cut_device(struct lowering *l, int device, int *n_order, size_t *cap) {
    struct program *p = l->program;
    struct program_segment *segment = NULL;
    int ordinal = 0;
    for (size_t i = 0; i < l->n_steps; i++) {
        const struct lower_step *s = &l->steps[i];
        if (s->s.device != device) continue;
        const struct program_transfer *t = s->s.transfer >= 0 ? &p->transfers[s->s.transfer] : NULL;
        bool wait = must_wait(l, s), arrives = t && t->first_step == (int)i;
        if (!segment || wait || arrives)
            segment = open_segment(l, device, *n_order, (int)i, ++ordinal, cap);
        if (arrives) segment->arrival = t->ordinal;
        for (int d = 0; d < l->n_devices; d++)
            if (s->wait[d] >= 0)
                segment->waits[segment->n_waits++] = (struct program_wait){d, s->wait[d]};
        p->order[(*n_order)++] = (int)i;
        segment->step_end = *n_order;
        bool last = t && t->last_step == (int)i;
        if (last) lower_stream_release(l, s->s.transfer, segment);
        if (s->cut_after || last) segment = NULL;
    }
}

static const struct program_segment *segment_of(const struct program *p, int device, int step) {
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[i];
        if (s->device == device && p->order[s->step_end - 1] >= step) return s;
    }
    REQUIRE(!"a step has a segment");
    return NULL;
}

/* Step numbers waited for become ordinals of the segments that hold them. */
static void number_waits(struct program *p) {
    for (int i = 0; i < p->n_segments; i++)
        for (int j = 0; j < p->segments[i].n_waits; j++) {
            struct program_wait *w = &p->segments[i].waits[j];
            w->ordinal = segment_of(p, w->device, w->ordinal)->ordinal;
        }
}

static int by_first_step(const void *a, const void *b) {
    return ((const struct program_segment *)a)->first_step -
           ((const struct program_segment *)b)->first_step;
}

void lower_finish(struct lowering *l) {
    struct program *p = l->program;
    lower_order(l);
    p->local_bytes = ARENA_ARRAY(l->arena, int64_t, l->n_devices);
    l->buffers[l->logits_buffer].writer = 0;
    p->exchange_bytes = place_buffers(l, -1);
    for (int d = 0; d < l->n_devices; d++)
        p->local_bytes[d] = place_buffers(l, d);
    p->logits_offset_bytes = l->buffers[l->logits_buffer].offset_bytes;
    wait_for_readers(l);
    fill_spans(l);
    lower_stream_place(l);
    mark_cuts(l);

    size_t cap = 0;
    int n_order = 0;
    p->order = ARENA_ARRAY(l->arena, int, l->n_steps);
    for (int d = 0; d < l->n_devices; d++)
        cut_device(l, d, &n_order, &cap);
    number_waits(p);
    qsort(p->segments, (size_t)p->n_segments, sizeof *p->segments, by_first_step);
    p->segments = arena_adopt(l->arena, p->segments, sizeof *p->segments * (size_t)p->n_segments);
    p->shards = arena_adopt(l->arena, p->shards, sizeof *p->shards * (size_t)p->n_shards);
    p->kvs = arena_adopt(l->arena, p->kvs, sizeof *p->kvs * (size_t)p->n_kvs);
    p->transfers =
        arena_adopt(l->arena, p->transfers, sizeof *p->transfers * (size_t)p->n_transfers);
    p->states = arena_adopt(l->arena, p->states, sizeof *p->states * (size_t)p->n_states);
}
