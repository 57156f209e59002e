/* Streamed parts: which come together, in which slot, and who waits for whom there. */
#include "run/lower_internal.h"

#include <stdlib.h>

/* The first n parts of a device's, in as few lots as a slot for the largest allows and these as
 * even as can be: with two slots a small lot would hide little of a large one behind it. */
struct lots {
    int n, last; /* the last one begins with this part */
    double squares;
};

static bool is_better(struct lots a, struct lots b) {
    return b.n == 0 || a.n < b.n || (a.n == b.n && a.squares < b.squares);
}

/* bytes: (n) of the parts. Marks the first of each lot. */
static void divide(const int64_t *bytes, int n, bool *first) {
    struct lots *best = xcalloc((size_t)n + 1, sizeof *best);
    int64_t slot = 0;
    for (int i = 0; i < n; i++)
        slot = max_i64(slot, bytes[i]);
    for (int end = 1; end <= n; end++) {
        int64_t lot = 0;
        for (int i = end - 1; i >= 0 && lot + bytes[i] <= slot; i--) {
            lot += bytes[i];
            double square = (double)lot * (double)lot;
            struct lots lots = {best[i].n + 1, i, best[i].squares + square};
            if (is_better(lots, best[end])) best[end] = lots;
        }
    }
    for (int end = n; end > 0; end = best[end].last)
        first[best[end].last] = true;
    free(best);
}

static void divide_device(struct lowering *l, int device) {
    size_t n_parts = (size_t)l->plan->n_parts;
    int64_t *bytes = xcalloc(n_parts + 1, sizeof *bytes);
    int *parts = xcalloc(n_parts + 1, sizeof *parts), n = 0;
    bool *first = xcalloc(n_parts + 1, sizeof *first);
    for (int i = 0; i < l->plan->n_parts; i++) { /* in the order of steps */
        const struct plan_part *p = &l->plan->parts[i];
        if (p->device != device || !p->streamed) continue;
        parts[n] = i;
        bytes[n++] = plan_part_bytes(l->g, p);
    }
    for (int i = 0, k; i < n; i = k) { /* those of no lot by themselves, between lots */
        int lot = l->plan->parts[parts[i]].lot;
        for (k = i + 1; k < n && l->plan->parts[parts[k]].lot == lot; k++)
            ;
        if (lot)
            first[i] = true;
        else
            divide(bytes + i, k - i, first + i);
    }
    for (int i = 0; i < n; i++)
        l->opens_transfer[parts[i]] = first[i];
    free(bytes), free(parts), free(first);
}

void lower_stream_start(struct lowering *l) {
    l->streams = ARENA_ARRAY(l->arena, struct stream, l->n_devices);
    l->opens_transfer = ARENA_ARRAY(l->arena, bool, l->plan->n_parts);
    for (int d = 0; d < l->n_devices; d++) {
        l->streams[d].transfer = -1;
        divide_device(l, d);
    }
}

int lower_stream_part(struct lowering *l, const struct plan_part *part) {
    struct program *p = l->program;
    struct stream *s = &l->streams[part->device];
    if (!part->streamed) return -1;
    if (l->opens_transfer[part - l->plan->parts]) {
        GROW(p->transfers, p->n_transfers, l->cap_transfers, 1);
        p->transfers[p->n_transfers] = (struct program_transfer){
            .device = part->device, .ordinal = ++s->n, .first_step = -1, .last_step = -1};
        s->transfer = p->n_transfers++;
    }
    return s->transfer;
}

void lower_stream_step(struct lowering *l, int transfer) {
    int step = (int)l->n_steps - 1;
    if (transfer < 0) return;
    struct program_transfer *t = &l->program->transfers[transfer];
    l->steps[step].s.transfer = transfer;
    if (t->first_step < 0) t->first_step = step;
    t->last_step = step;
}

void lower_stream_place(struct lowering *l) {
    struct program *p = l->program;
    p->n_slots = ARENA_ARRAY(l->arena, int, l->n_devices);
    for (int d = 0; d < l->n_devices; d++)
        if (l->streams[d].n) p->n_slots[d] = min_int(l->plan->n_slots[d], l->streams[d].n);
    for (int i = 0; i < p->n_transfers; i++) {
        struct program_transfer *t = &p->transfers[i];
        t->slot = (t->ordinal - 1) % p->n_slots[t->device];
    }
}

static int find_transfer(const struct program *p, int device, int ordinal) {
    for (int i = 0; i < p->n_transfers; i++)
        if (p->transfers[i].device == device && p->transfers[i].ordinal == ordinal) return i;
    REQUIRE(!"a device's transfers are numbered from 1 on");
    return -1;
}

/* What comes next to the slot: later in the round, or as the first of the next round. */
void lower_stream_release(struct lowering *l, int transfer, struct program_segment *segment) {
    struct program *p = l->program;
    const struct program_transfer *t = &p->transfers[transfer];
    int next = t->ordinal + p->n_slots[t->device];
    bool ahead = next > l->streams[t->device].n;
    int index = find_transfer(p, t->device, ahead ? t->slot + 1 : next);
    p->transfers[index].wait = segment->ordinal;
    p->transfers[index].ahead = ahead;
    if (!ahead) segment->release = index;
    p->steps[t->last_step].step.releases = true;
}
