#include "run/lower_internal.h"

#include <stdlib.h>
#include <string.h>

#define BUFFER_ALIGN 64

/* Steps for which a buffer is kept after its last use, so that a backend may fold a norm, three
 * products and what follows them into one without overwriting the input. */
#define LINGER_STEPS 4

/* True if a buffer is still needed when another one begins to be written. Logits stay. */
static bool alive_at(const struct lowering *l, const struct buffer *b, int step) {
    return b == &l->buffers[l->logits_buffer] || b->last_use + LINGER_STEPS >= step;
}

struct placed {
    const struct buffer *buffer;
    int64_t begin, end;
};

static int by_begin(const void *a, const void *b) {
    int64_t x = ((const struct placed *)a)->begin, y = ((const struct placed *)b)->begin;
    return (x > y) - (x < y);
}

/* First fit, in order of birth: buffers of one space may share bytes if their lives do not touch.
 * Returns the bytes of the space. */
static int64_t place_buffers(struct lowering *l, int device) {
    struct placed *live = xcalloc(l->n_buffers + 1, sizeof *live);
    size_t n_live = 0;
    int64_t top = 0;
    for (size_t i = 0; i < l->n_buffers; i++) { /* buffers are born in step order */
        struct buffer *b = &l->buffers[i];
        if (b->device != device || b->writer < 0) continue;
        size_t kept = 0;
        for (size_t j = 0; j < n_live; j++)
            if (alive_at(l, live[j].buffer, b->writer)) live[kept++] = live[j];
        n_live = kept;
        qsort(live, n_live, sizeof *live, by_begin);
        int64_t bytes = (int64_t)round_up((size_t)b->bytes, BUFFER_ALIGN), at = 0;
        for (size_t j = 0; j < n_live && live[j].begin < at + bytes; j++)
            at = live[j].end;
        b->offset_bytes = at;
        live[n_live++] = (struct placed){b, at, at + bytes};
        top = max_i64(top, at + bytes);
    }
    free(live);
    return top;
}

static bool overlap(const struct buffer *a, const struct buffer *b) {
    return a->offset_bytes < b->offset_bytes + b->bytes &&
           b->offset_bytes < a->offset_bytes + a->bytes;
}

/* Bytes of the exchange that are used again: the next writer waits for the readers before it. */
static void wait_for_readers(struct lowering *l) {
    for (size_t i = 0; i < l->n_buffers; i++) {
        const struct buffer *now = &l->buffers[i];
        if (now->device >= 0 || now->writer < 0) continue;
        struct lower_step *writer = &l->steps[now->writer];
        for (size_t j = 0; j < i; j++) {
            const struct buffer *old = &l->buffers[j];
            if (old->device >= 0 || old->writer < 0 || !overlap(now, old)) continue;
            for (int d = 0; d < l->n_devices; d++)
                if (d != writer->s.device)
                    writer->wait[d] = max_int(writer->wait[d], old->readers[d]);
        }
    }
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

static void mark_cuts(struct lowering *l) {
    for (size_t i = 0; i < l->n_steps; i++)
        for (int d = 0; d < l->n_devices; d++)
            if (l->steps[i].wait[d] >= 0) l->steps[l->steps[i].wait[d]].cut_after = true;
}

/* Does the step wait for anything that this device has not waited for already? */
static bool must_wait(const struct lowering *l, const struct lower_step *s, const int *seen) {
    for (int d = 0; d < l->n_devices; d++)
        if (s->wait[d] > seen[d]) return true;
    return false;
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
    int *seen = ARENA_ARRAY(l->arena, int, l->n_devices);
    for (int d = 0; d < l->n_devices; d++)
        seen[d] = -1;
    struct program_segment *segment = NULL;
    int ordinal = 0;
    for (size_t i = 0; i < l->n_steps; i++) {
        const struct lower_step *s = &l->steps[i];
        if (s->s.device != device) continue;
        const struct program_transfer *t = s->s.transfer >= 0 ? &p->transfers[s->s.transfer] : NULL;
        bool wait = must_wait(l, s, seen), arrives = t && t->first_step == (int)i;
        if (!segment || wait || arrives)
            segment = open_segment(l, device, *n_order, (int)i, ++ordinal, cap);
        if (arrives) segment->arrival = t->ordinal;
        for (int d = 0; wait && d < l->n_devices; d++) {
            if (s->wait[d] <= seen[d]) continue;
            segment->waits[segment->n_waits++] = (struct program_wait){d, s->wait[d]};
            seen[d] = s->wait[d];
        }
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
