/* Placements as plans, which the executor runs, and back. */
#include "plan/placement_internal.h"

#include <string.h>

struct writer {
    struct plan *plan;
    const struct items *items;
    const struct placement *p;
    int cpu, gpu;
};

static enum axis whole_axis(const struct graph_op *op) {
    if (op->kind == OP_EXPERTS) return AXIS_EXPERTS;
    return op_has_axis(op, AXIS_HEADS) ? AXIS_HEADS : AXIS_ROWS;
}

static void add_part(struct writer *w, int op, int device, enum axis axis, int begin, int end) {
    if (begin < end)
        w->plan->parts[w->plan->n_parts++] = (struct plan_part){
            .op = op, .device = device, .axis = axis, .begin = begin, .end = end};
}

static void add_whole(struct writer *w, int op, int device) {
    const struct graph_op *o = &w->items->graph->ops[op];
    add_part(w, op, device, whole_axis(o), 0, op_axis_length(w->items->graph, o, whole_axis(o)));
}

/* The GPU's units are the first, as the device order has them; of experts where they are. */
static void add_divided(struct writer *w, const struct item *item) {
    const struct graph_op *op = &w->items->graph->ops[item->op];
    const struct items_block *b = &w->items->blocks[item->block];
    const uint8_t *residents = w->p->residents[item->block];
    int units = w->p->units[item->block], n = b->n_units, e = op->unit_elements;
    bool gpu_first = residents ? residents[0] : w->gpu < w->cpu;
    int border = gpu_first ? units : n - units;
    for (int u = 0; residents && u < n; u++)
        REQUIRE(residents[u] == ((u < border) == gpu_first));
    add_part(w, item->op, gpu_first ? w->gpu : w->cpu, op->unit_axis, 0, border * e);
    add_part(w, item->op, gpu_first ? w->cpu : w->gpu, op->unit_axis, border * e, n * e);
}

struct plan *placement_plan(struct arena *arena, const struct items *items,
                            const struct placement *p, int n_devices, int cpu, int gpu) {
    const struct graph *g = items->graph;
    struct plan *plan = ARENA_NEW(arena, struct plan);
    plan->n_devices = n_devices;
    plan->first = ARENA_ARRAY(arena, int, g->n_ops + 1);
    plan->n_slots = ARENA_ARRAY(arena, int, n_devices);
    plan->parts = ARENA_ARRAY(arena, struct plan_part, 2 * (size_t)g->n_ops);
    struct writer w = {plan, items, p, cpu, gpu};
    for (int op = 0, i = 0; op < g->n_ops; op++) {
        plan->first[op] = plan->n_parts;
        if (!op_is_placed(&g->ops[op])) continue;
        if (g->ops[op].kind == OP_EMBED) {
            add_whole(&w, op, cpu);
            continue;
        }
        const struct item *item = &items->items[i++];
        if (p->units[item->block] > 0)
            add_divided(&w, item);
        else
            add_whole(&w, op, p->homes[i - 1] == SIDE_GPU ? gpu : cpu);
    }
    plan->first[g->n_ops] = plan->n_parts;
    return plan;
}

/* ---- back ---- */

struct reader {
    struct arena *arena;
    const struct items *items;
    const struct plan *plan;
    int cpu, gpu;
    struct placement *out;
    int64_t first_on_gpu, first_each; /* of the first item of a block that is divided */
};

static const char *op_name(const struct reader *r, int i) {
    return items_name(r->items, i);
}

/* Elements of an item on the GPU. */
static ats_status read_item(const struct reader *r, int i, int *length, int *on_gpu,
                            bool *gpu_first) {
    int op = r->items->items[i].op, from = r->plan->first[op], to = r->plan->first[op + 1];
    *length = *on_gpu = 0;
    *gpu_first = false;
    for (int k = from; k < to; k++) {
        const struct plan_part *p = &r->plan->parts[k];
        if (p->device != r->cpu && p->device != r->gpu)
            return fail(ATS_UNSUPPORTED, "%s has a third device", op_name(r, i));
        *length = p->end;
        if (p->device != r->gpu || p->streamed) continue;
        *on_gpu += p->end - p->begin;
        *gpu_first = p->begin == 0;
    }
    return ATS_OK;
}

/* All items of a block at the same border, which counts as the nearest unit's: the host packs rows
 * in groups, but a plan may cut between any two. */
static ats_status read_divided(struct reader *r, int i, int on_gpu, bool gpu_first) {
    const struct item *item = &r->items->items[i];
    const struct items_block *b = &r->items->blocks[item->block];
    const struct graph_op *op = &r->items->graph->ops[item->op];
    const struct plan_part *part = &r->plan->parts[r->plan->first[item->op]];
    int *units = &r->out->units[item->block], each = op->unit_elements;
    bool as_block = b->n_units > 1 && each > 0 && part->axis == op->unit_axis;
    if (i == b->first) r->first_on_gpu = on_gpu, r->first_each = each;
    if (i > b->first)
        as_block = as_block && *units > 0 && on_gpu * r->first_each == r->first_on_gpu * each;
    if (!as_block)
        return fail(ATS_UNSUPPORTED, "%s is cut by itself, not with its block", op_name(r, i));
    *units = max_int(1, min_int(b->n_units - 1, (on_gpu + each / 2) / each));
    r->out->homes[i] = SIDE_GPU;
    if (item->n_experts == 0) return ATS_OK;
    uint8_t *residents = ARENA_ARRAY(r->arena, uint8_t, item->n_experts);
    memset(gpu_first ? residents : residents + item->n_experts - *units, 1, (size_t)*units);
    r->out->residents[item->block] = residents;
    return ATS_OK;
}

ats_status placement_from_plan(struct arena *arena, const struct items *items,
                               const struct placement_options *options, const struct plan *plan,
                               int cpu, int gpu, struct placement **out) {
    struct reader r = {arena, items, plan, cpu, gpu, placement_blank(arena, items), 0, 0};
    *out = NULL;
    for (int i = 0; i < items->n_items; i++) {
        int length, on_gpu;
        bool gpu_first;
        const struct items_block *b = &items->blocks[items->items[i].block];
        TRY(read_item(&r, i, &length, &on_gpu, &gpu_first));
        if (on_gpu > 0 && on_gpu < length) {
            TRY(read_divided(&r, i, on_gpu, gpu_first));
            continue;
        }
        r.out->homes[i] = on_gpu > 0 ? SIDE_GPU : SIDE_CPU;
        if (i > b->first && r.out->units[items->items[i].block] > 0)
            return fail(ATS_UNSUPPORTED, "%s is not cut as its block is", op_name(&r, i));
    }
    placement_finish(items, options, r.out);
    *out = r.out;
    return ATS_OK;
}
