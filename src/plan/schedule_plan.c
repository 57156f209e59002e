/* A placement and what its schedule streams as a plan, which the executor runs. */
#include <math.h>

#include "plan/schedule.h"

#define ROW_GROUP 16 /* rows that stay together where a matrix comes in pieces (packed.h) */

/* What of an item is streamed. */
struct streamed {
    bool comes;
    int units; /* of its block's; or 0: all of the item's host part */
    int lot;   /* of the first piece that it is in */
    /* Of the entry's pieces, which are of equal size: where the item begins and ends. */
    double piece_begin, piece_end;
};

struct writer {
    struct plan *plan;
    const struct items *items;
    const struct placement *p;
    const struct streamed *streamed; /* (n_items) */
    int cpu, gpu;
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

static void add_part(struct writer *w, int op, const struct range *r, int lot) {
    if (r->begin < r->end)
        w->plan->parts[w->plan->n_parts++] = (struct plan_part){.op = op,
                                                                .device = r->device,
                                                                .axis = r->axis,
                                                                .begin = r->begin,
                                                                .end = r->end,
                                                                .streamed = lot > 0,
                                                                .lot = lot};
}

/* Streamed, cut where a piece of the entry ends. */
static void add_streamed(struct writer *w, int op, const struct range *r,
                         const struct streamed *s) {
    int first = (int)s->piece_begin, n = n_pieces(s), n_steps = (r->end - r->begin) / r->step;
    struct range piece = *r;
    for (int k = 0; k < n; k++, piece.begin = piece.end) {
        double share = (first + k + 1 - s->piece_begin) / (s->piece_end - s->piece_begin);
        piece.end = r->begin + (int)(fmin(share, 1) * n_steps + 0.5) * r->step;
        if (k + 1 == n) piece.end = r->end;
        add_part(w, op, &piece, s->lot + k);
    }
}

static void add_whole(struct writer *w, int op, int device) {
    const struct graph_op *o = &w->items->graph->ops[op];
    enum axis axis = plan_whole_axis(o);
    struct range r = {device, axis, 0, op_axis_length(w->items->graph, o, axis), 1};
    add_part(w, op, &r, 0);
}

static void add_whole_streamed(struct writer *w, int i, const struct streamed *s) {
    int op = w->items->items[i].op;
    const struct graph_op *o = &w->items->graph->ops[op];
    enum axis axis = plan_whole_axis(o);
    struct range r = {.device = w->gpu,
                      .axis = axis,
                      .end = op_axis_length(w->items->graph, o, axis),
                      .step = axis == AXIS_ROWS ? ROW_GROUP : 1};
    add_streamed(w, op, &r, s);
}

/* In units of its block: what stays on the GPU, what is streamed beside it, what the CPU has; or
 * the other way round, as the device order has it, and of experts where the residents are. */
static void add_units(struct writer *w, int i, const struct streamed *s) {
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
            add_part(w, item->op, &r, 0);
        else if (comes > 0)
            add_streamed(w, item->op, &r, s);
    }
}

static void add_item(struct writer *w, int i) {
    const struct item *item = &w->items->items[i];
    const struct streamed *s = &w->streamed[i];
    if (w->p->units[item->block] > 0 || s->units > 0)
        add_units(w, i, s);
    else if (s->comes)
        add_whole_streamed(w, i, s);
    else
        add_whole(w, item->op, w->p->homes[i] == SIDE_GPU ? w->gpu : w->cpu);
}

/* ---- what is streamed ---- */

/* An entry's units are shares of the host's units of a block, or all of an item. *lot: of its first
 * piece, then of the next entry's. */
static void read_entry(const struct items *items, const struct placement *p,
                       const struct schedule *s, int entry, double slot_bytes, int *lot,
                       struct streamed *out) {
    const struct schedule_entry *e = &s->entries[entry];
    int units = s->transfer.units[entry], n_units = s->problem.items[entry].n_units;
    int block = items->items[e->first].block, all = items->blocks[block].n_units;
    if (units == 0) return;
    double part = (double)units / n_units, host = 1 - (double)p->units[block] / all;
    double bytes = 0, so_far = 0;
    for (int i = e->first; i < e->first + e->n; i++)
        bytes += (double)items->items[i].weight_bytes;
    int n = slot_bytes > 0 ? (int)ceil(part * host * bytes / slot_bytes) : 1;
    if (items->items[e->first].n_experts > 0 && n > 1) { /* whole ones */
        double one = floor(fmax(1, slot_bytes * all / bytes));
        n = (int)ceil(part * host * all / one);
    }
    n = max_int(1, min_int(n, PLAN_MAX_PARTS - 2));
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

struct plan *schedule_plan(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule *s, int n_slots,
                           double slot_bytes, int n_devices, int cpu, int gpu) {
    const struct graph *g = items->graph;
    struct plan *plan = ARENA_NEW(arena, struct plan);
    struct streamed *streamed = ARENA_ARRAY(arena, struct streamed, items->n_items);
    struct writer w = {plan, items, p, streamed, cpu, gpu};
    size_t n_parts = (size_t)g->n_ops;
    for (int k = 0, lot = 1; k < s->problem.n; k++)
        read_entry(items, p, s, k, slot_bytes, &lot, streamed);
    for (int i = 0; i < items->n_items; i++)
        n_parts += 2 + (streamed[i].comes ? (size_t)n_pieces(&streamed[i]) : 0);
    plan->n_devices = n_devices;
    plan->first = ARENA_ARRAY(arena, int, g->n_ops + 1);
    plan->n_slots = ARENA_ARRAY(arena, int, n_devices);
    plan->parts = ARENA_ARRAY(arena, struct plan_part, n_parts);
    for (int op = 0, i = 0; op < g->n_ops; op++) {
        plan->first[op] = plan->n_parts;
        if (!op_is_placed(&g->ops[op])) continue;
        if (g->ops[op].kind == OP_EMBED) {
            add_whole(&w, op, cpu);
            continue;
        }
        if (streamed[i].comes) plan->n_slots[gpu] = n_slots;
        add_item(&w, i++);
    }
    plan->first[g->n_ops] = plan->n_parts;
    return plan;
}
