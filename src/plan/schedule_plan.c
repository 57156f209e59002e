/* A placement and what its schedule streams as a plan, which the executor runs. */
#include <math.h>

#include "plan/schedule.h"

#define ROW_GROUP 16 /* rows that stay together where a matrix comes in pieces (packed.h) */

/* What of an item is streamed. */
struct streamed {
    bool comes;
    int units;    /* of its block's; or 0: all of the item's host part */
    double share; /* of its bytes */
    int lot;      /* 0: the entry is larger than a slot */
};

struct writer {
    struct plan *plan;
    const struct items *items;
    const struct placement *p;
    const struct streamed *streamed; /* (n_items) */
    double slot_bytes;
    int cpu, gpu;
};

/* A range of an operator's axis on a device, cut in pieces at whole steps. */
struct range {
    int device;
    enum axis axis;
    int begin, end, step, n_pieces;
};

static void add_range(struct writer *w, int op, const struct range *r, const struct streamed *s) {
    int64_t n_steps = (r->end - r->begin + r->step - 1) / r->step;
    for (int k = 0; k < r->n_pieces; k++) {
        int begin = r->begin + (int)(n_steps * k / r->n_pieces) * r->step,
            end = r->begin + (int)(n_steps * (k + 1) / r->n_pieces) * r->step;
        end = min_int(end, r->end);
        if (begin < end)
            w->plan->parts[w->plan->n_parts++] = (struct plan_part){.op = op,
                                                                    .device = r->device,
                                                                    .axis = r->axis,
                                                                    .begin = begin,
                                                                    .end = end,
                                                                    .streamed = s != NULL,
                                                                    .lot = s ? s->lot : 0};
    }
}

static int n_pieces(const struct writer *w, int i, const struct streamed *s) {
    if (s->lot || !(w->slot_bytes > 0)) return 1;
    double bytes = s->share * (double)w->items->items[i].weight_bytes;
    return (int)fmin(PLAN_MAX_PARTS - 2, ceil(bytes / w->slot_bytes));
}

static void add_whole(struct writer *w, int op, int device) {
    const struct graph_op *o = &w->items->graph->ops[op];
    enum axis axis = plan_whole_axis(o);
    struct range r = {device, axis, 0, op_axis_length(w->items->graph, o, axis), 1, 1};
    add_range(w, op, &r, NULL);
}

static void add_whole_streamed(struct writer *w, int i, const struct streamed *s) {
    int op = w->items->items[i].op;
    const struct graph_op *o = &w->items->graph->ops[op];
    enum axis axis = plan_whole_axis(o);
    struct range r = {.device = w->gpu,
                      .axis = axis,
                      .end = op_axis_length(w->items->graph, o, axis),
                      .step = axis == AXIS_ROWS ? ROW_GROUP : 1,
                      .n_pieces = n_pieces(w, i, s)};
    add_range(w, op, &r, s);
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
                          .step = each,
                          .n_pieces = which == 1 ? n_pieces(w, i, s) : 1};
        add_range(w, item->op, &r, which == 1 ? s : NULL);
        at = r.end;
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

/* An entry's units are shares of the host's units of a block, or all of an item. */
static void read_entry(const struct items *items, const struct placement *p,
                       const struct schedule *s, int entry, double slot_bytes,
                       struct streamed *out) {
    const struct schedule_entry *e = &s->entries[entry];
    int units = s->transfer.units[entry], n_units = s->problem.items[entry].n_units;
    int block = items->items[e->first].block, all = items->blocks[block].n_units;
    if (units == 0) return;
    double part = (double)units / n_units, host = 1 - (double)p->units[block] / all;
    bool fits = !(slot_bytes > 0) || part * e->slot_bytes <= slot_bytes;
    for (int i = e->first; i < e->first + e->n; i++) {
        out[i] =
            (struct streamed){.comes = true, .share = part * host, .lot = fits ? entry + 1 : 0};
        if (units < n_units)
            out[i].units = max_int(1, (int)((int64_t)(all - p->units[block]) * units / n_units));
    }
}

struct plan *schedule_plan(struct arena *arena, const struct items *items,
                           const struct placement *p, const struct schedule *s, int n_slots,
                           double slot_bytes, int n_devices, int cpu, int gpu) {
    const struct graph *g = items->graph;
    struct plan *plan = ARENA_NEW(arena, struct plan);
    struct streamed *streamed = ARENA_ARRAY(arena, struct streamed, items->n_items);
    struct writer w = {plan, items, p, streamed, slot_bytes, cpu, gpu};
    size_t n_parts = (size_t)g->n_ops;
    for (int k = 0; k < s->problem.n; k++)
        read_entry(items, p, s, k, slot_bytes, streamed);
    for (int i = 0; i < items->n_items; i++)
        n_parts += 2 + (streamed[i].comes ? (size_t)n_pieces(&w, i, &streamed[i]) : 0);
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
