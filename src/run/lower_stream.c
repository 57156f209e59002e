/* Streamed parts: which come together, in which slot, and who waits for whom there. */
#include "run/lower_internal.h"

void lower_stream_start(struct lowering *l) {
    l->streams = ARENA_ARRAY(l->arena, struct stream, l->n_devices);
    for (int i = 0; i < l->plan->n_parts; i++) {
        const struct plan_part *p = &l->plan->parts[i];
        struct stream *s = &l->streams[p->device];
        if (p->streamed) s->slot_bytes = max_i64(s->slot_bytes, plan_part_bytes(l->g, p));
    }
    for (int d = 0; d < l->n_devices; d++)
        l->streams[d].transfer = -1;
}

/* Parts that follow each other share a transfer while they fit a slot, so that transfers are about
 * equal: with two slots a small one would hide little of the large one behind it. */
int lower_stream_part(struct lowering *l, const struct plan_part *part) {
    struct program *p = l->program;
    struct stream *s = &l->streams[part->device];
    if (!part->streamed) return -1;
    int64_t bytes = plan_part_bytes(l->g, part);
    if (s->transfer < 0 || s->used + bytes > s->slot_bytes) {
        GROW(p->transfers, p->n_transfers, l->cap_transfers, 1);
        p->transfers[p->n_transfers] = (struct program_transfer){
            .device = part->device, .ordinal = ++s->n, .first_step = -1, .last_step = -1};
        s->transfer = p->n_transfers++;
        s->used = 0;
    }
    s->used += bytes;
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
}
