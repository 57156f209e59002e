/* A placement and what its schedule streams as a plan, which the executor runs. */
#include <math.h>

#include "plan/schedule.h"

/* What of an item is streamed. */
struct streamed {
    bool comes;
    int units; /* of its block's; or 0: all of the item's host part */
    int lot;   /* of the first piece that it is in */
    /* Of the entry's pieces, which are of equal size: where the item begins and ends. */
    double piece_begin, piece_end;
};

struct writer {
    struct arena *arena;
    const struct items *items;
    const struct placement *p;
    int n_devices, cpu, gpu;
};

/* The parts of one operator by one schedule. */
struct parts {
    struct plan_part at[PLAN_MAX_PARTS];
    int n;
};

/* A range of an operator's axis on a device, which may be cut at whole steps. */
struct range {
    int device;
    enum axis axis;
    int begin, end, step;
};

/* Pieces of its entry that it is in. What ends at a border by rounding is in one more. */
static int n_pieces(const struct streamed *s) {
    return (int)(s->piece_end - 1e-9) - (int)s->piece_begin + 1;
}

static void add_part(struct parts *out, int op, const struct range *r, int lot) {
    if (r->begin >= r->end) return;
    REQUIRE(out->n < PLAN_MAX_PARTS);
    out->at[out->n++] = (struct plan_part){.op = op,
                                           .device = r->device,
                                           .axis = r->axis,
                                           .begin = r->begin,
                                           .end = r->end,
                                           .streamed = lot > 0,
                                           .lot = lot};
}

/* Streamed, cut where a piece of the entry ends. */
static void add_streamed(struct parts *out, int op, const struct range *r,
                         const struct streamed *s) {
    int first = (int)s->piece_begin, n = n_pieces(s), n_steps = (r->end - r->begin) / r->step;
    struct range piece = *r;
    for (int k = 0; k < n; k++, piece.begin = piece.end) {
        double share = (first + k + 1 - s->piece_begin) / (s->piece_end - s->piece_begin);
        piece.end = r->begin + (int)(fmin(share, 1) * n_steps + 0.5) * r->step;
        if (k + 1 == n) piece.end = r->end;
        add_part(out, op, &piece, s->lot + k);
    }
}

static void add_whole(const struct writer *w, int op, int device, const struct streamed *s,
                      struct parts *out) {
    const struct graph_op *o = &w->items->graph->ops[op];
    enum axis axis = plan_whole_axis(o);
    struct range r = {.device = device,
                      .axis = axis,
                      .end = op_axis_length(w->items->graph, o, axis),
                      .step = axis == AXIS_ROWS ? PLAN_ROW_GROUP : 1};
    if (s && s->comes)
        add_streamed(out, op, &r, s);
    else
        add_part(out, op, &r, 0);
}

/* In units of its block: what stays on the GPU, what is streamed beside it, what the CPU has; or
 * the other way round, as the device order has it, and of experts where the residents are. */
static void add_units(const struct writer *w, int i, const struct streamed *s, struct parts *out) {
    const struct item *item = &w->items->items[i];
    const struct graph_op *op = &w->items->graph->ops[item->op];
    const struct items_block *b = &w->items->blocks[item->block];
    const uint8_t *residents = w->p->residents[item->block];
    int each = op->unit_elements, stays = w->p->units[item->block], rest = b->n_units - stays;
    int comes = !s->comes ? 0 : s->units > 0 ? s->units : rest;
    const int units[3] = {stays, comes, rest - comes};
    bool gpu_first = residents ? residents[0] : w->gpu < w->cpu;
    for (int u = 0; residents && u < b->n_units; u++)
        REQUIRE(residents[u] == ((u < (gpu_first ? stays : rest)) == gpu_first));
    for (int k = 0, at = 0; k < 3; k++) {
        int which = gpu_first ? k : 2 - k;
        struct range r = {.device = which == 2 ? w->cpu : w->gpu,
                          .axis = op->unit_axis,
                          .begin = at,
                          .end = at + units[which] * each,
                          .step = each};
        at = r.end;
        if (which != 1)
            add_part(out, item->op, &r, 0);
        else if (comes > 0)
            add_streamed(out, item->op, &r, s);
    }
}

/* by_units: another schedule of the placement cuts the item so. */
static void item_parts(const struct writer *w, int i, const struct streamed *s, bool by_units,
                       struct parts *out) {
    const struct item *item = &w->items->items[i];
    bool on_gpu = w->p->homes[i] == SIDE_GPU || s->comes;
    out->n = 0;
    if (w->p->units[item->block] > 0 || by_units)
        add_units(w, i, s, out);
    else
        add_whole(w, item->op, on_gpu ? w->gpu : w->cpu, s, out);
}

/* ---- what is streamed ---- */

/* An entry's units are shares of the host's units of a block, or all of an item. *lot: of its first
 * piece, then of the next entry's. */
static void read_entry(const struct items *items, const struct placement *p,
                       const struct schedule *s, int entry, double slot_bytes, int *lot,
                       int most_pieces, struct streamed *out) {
    const struct schedule_entry *e = &s->entries[entry];
    int units = s->transfer.units[entry], n_units = s->problem.items[entry].n_units;
    int block = items->items[e->first].block, all = items->blocks[block].n_units;
    if (units == 0) return;
    double part = (double)units / n_units, host = 1 - (double)p->units[block] / all;
    double bytes = 0, so_far = 0;
    for (int i = e->first; i < e->first + e->n; i++)
        bytes += (double)items->items[i].weight_bytes;
    int n = min_int(most_pieces, schedule_pieces(items, e->first, e->n, part * host, slot_bytes));
    for (int i = e->first; i < e->first + e->n; i++) {
        struct streamed *to = &out[i];
        *to = (struct streamed){.comes = true, .piece_begin = n * so_far / bytes};
        so_far += (double)items->items[i].weight_bytes;
        to->piece_end = n * so_far / bytes;
        to->lot = *lot + (int)to->piece_begin;
        if (units < n_units)
            to->units = max_int(1, (int)((int64_t)(all - p->units[block]) * units / n_units));
    }
    *lot += n;
}

/* (n_items) In the arena. */
static struct streamed *read_streamed(const struct writer *w, const struct schedule *s,
                                      double slot_bytes, int most_pieces) {
    struct streamed *streamed = ARENA_ARRAY(w->arena, struct streamed, w->items->n_items);
    for (int k = 0, lot = 1; k < s->problem.n; k++)
        read_entry(w->items, w->p, s, k, slot_bytes, &lot, most_pieces, streamed);
    return streamed;
}

/* ---- plans ---- */

static struct plan *begin_plan(const struct writer *w, size_t n_parts) {
    struct plan *plan = ARENA_NEW(w->arena, struct plan);
    plan->n_devices = w->n_devices;
    plan->first = ARENA_ARRAY(w->arena, int, w->items->graph->n_ops + 1);
    plan->n_slots = ARENA_ARRAY(w->arena, int, w->n_devices);
    plan->parts = ARENA_ARRAY(w->arena, struct plan_part, n_parts);
    return plan;
}

static size_t most_parts(const struct writer *w, const struct streamed *streamed) {
    size_t n = (size_t)w->items->graph->n_ops;
    for (int i = 0; i < w->items->n_items; i++)
        n += 2 + (streamed[i].comes ? (size_t)n_pieces(&streamed[i]) : 0);
    return n;
}

static void put(const struct writer *w, int n_slots, const struct plan_part *part,
                struct plan *plan) {
    plan->parts[plan->n_parts++] = *part;
    if (part->streamed) plan->n_slots[w->gpu] = n_slots;
}

/* The same operator by two schedules: cut where either cuts. */
static void put_both(const struct writer *w, int n_slots, const struct parts *a,
                     const struct parts *b, struct plan *to_a, struct plan *to_b) {
    for (int i = 0, k = 0; i < a->n && k < b->n;) {
        struct plan_part x = a->at[i], y = b->at[k];
        x.begin = y.begin = max_int(x.begin, y.begin);
        x.end = y.end = min_int(x.end, y.end);
        i += x.end == a->at[i].end;
        k += y.end == b->at[k].end;
        put(w, n_slots, &x, to_a);
        put(w, n_slots, &y, to_b);
    }
}

/* b NULL: of a alone, in to_a. */
static void write_plans(const struct writer *w, int n_slots, const struct streamed *a,
                        const struct streamed *b, struct plan *to_a, struct plan *to_b) {
    const struct graph *g = w->items->graph;
    for (int op = 0, i = 0; op < g->n_ops; op++) {
        struct parts by_a = {.n = 0}, by_b = {.n = 0};
        to_a->first[op] = to_a->n_parts;
        if (b) to_b->first[op] = to_b->n_parts;
        if (!op_is_placed(&g->ops[op])) continue;
        if (g->ops[op].kind == OP_EMBED) {
            add_whole(w, op, w->cpu, NULL, &by_a);
            by_b = by_a;
        } else {
            bool by_units = a[i].units > 0 || (b && b[i].units > 0);
            item_parts(w, i, &a[i], by_units, &by_a);
            if (b) item_parts(w, i, &b[i], by_units, &by_b);
            i++;
        }
        if (b)
            put_both(w, n_slots, &by_a, &by_b, to_a, to_b);
        else
            for (int k = 0; k < by_a.n; k++)
                put(w, n_slots, &by_a.at[k], to_a);
    }
    to_a->first[g->n_ops] = to_a->n_parts;
    if (b) to_b->first[g->n_ops] = to_b->n_parts;
}

struct plan *schedule_plan(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule *s, int n_slots,
                           double slot_bytes, int n_devices, int cpu, int gpu) {
    const struct writer w = {arena, items, p, n_devices, cpu, gpu};
    const struct streamed *streamed = read_streamed(&w, s, slot_bytes, SCHEDULE_PIECES);
    struct plan *plan = begin_plan(&w, most_parts(&w, streamed));
    write_plans(&w, n_slots, streamed, NULL, plan, NULL);
    return plan;
}

struct plan *schedule_pair(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule *decode,
                           const struct schedule *prompts, int prompts_from, int n_slots,
                           double slot_bytes, int n_devices, int cpu, int gpu) {
    const struct writer w = {arena, items, p, n_devices, cpu, gpu};
    const struct streamed *a = read_streamed(&w, decode, slot_bytes, SCHEDULE_PAIR_PIECES),
                          *b = read_streamed(&w, prompts, slot_bytes, SCHEDULE_PAIR_PIECES);
    size_t n_parts = most_parts(&w, a) + most_parts(&w, b);
    struct plan *plan = begin_plan(&w, n_parts), *partner = begin_plan(&w, n_parts);
    write_plans(&w, n_slots, a, b, plan, partner);
    plan->prompts = partner;
    plan->prompts_from = prompts_from;
    return plan;
}
