/* What a plan streams, as schedules have it. */
#include <math.h>

#include "plan/schedule.h"

#define ROUNDING 1.000001 /* of a lot's bytes: pieces of its size are not one more */

/* An item's axis: what stays on the GPU, what is streamed to it, all. */
struct extent {
    int64_t stays, comes, length;
    int lot, n_lots;
};

static struct extent extent_of(const struct plan *plan, int op, int gpu) {
    struct extent x = {0};
    int last = 0;
    for (int k = plan->first[op]; k < plan->first[op + 1]; k++) {
        const struct plan_part *p = &plan->parts[k];
        x.length = p->end;
        if (p->device != gpu) continue;
        *(p->streamed ? &x.comes : &x.stays) += p->end - p->begin;
        if (!p->streamed) continue;
        if (x.lot == 0) x.lot = p->lot;
        x.n_lots += p->lot != last;
        last = p->lot;
    }
    return x;
}

/* A share of the host's units is streamed of the whole block. */
static ats_status check_share(const struct items *items, const struct plan *plan, int i,
                              const struct schedule_given *given) {
    const struct item *item = &items->items[i];
    const struct items_block *b = &items->blocks[item->block];
    const struct graph_op *op = &items->graph->ops[item->op];
    bool units = b->n_units > 1 && op->unit_elements > 0 &&
                 plan->parts[plan->first[item->op]].axis == op->unit_axis;
    bool alike = true;
    for (int k = b->first; k < b->first + b->n; k++)
        alike = alike && given[k].share > given[i].share - 1e-9 &&
                given[k].share < given[i].share + 1e-9;
    if (given[i].share <= 0 || given[i].share >= 1 || (units && alike)) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "a part of %s is streamed by itself, not of its block",
                items_name(items, i));
}

/* Parts that follow each other in one lot come into one slot. */
static double largest_lot(const struct items *items, const struct plan *plan, int gpu) {
    double most = 0, bytes = 0;
    int lot = 0;
    for (int k = 0; k < plan->n_parts; k++) {
        const struct plan_part *p = &plan->parts[k];
        if (p->device != gpu || !p->streamed) continue;
        if (p->lot == 0 || p->lot != lot) bytes = 0;
        lot = p->lot;
        bytes += (double)plan_part_bytes(items->graph, p);
        if (bytes > most) most = bytes;
    }
    return most * ROUNDING;
}

static ats_status read_one(struct arena *arena, const struct items *items, const struct plan *plan,
                           int gpu, const struct schedule_given **out) {
    struct schedule_given *given = ARENA_ARRAY(arena, struct schedule_given, items->n_items);
    *out = given;
    for (int i = 0; i < items->n_items; i++) {
        struct extent x = extent_of(plan, items->items[i].op, gpu);
        if (x.comes > 0) given[i].share = (double)x.comes / (double)(x.length - x.stays);
        given[i].lot = x.lot;
        given[i].n_lots = x.n_lots;
    }
    for (int i = 0; i < items->n_items; i++)
        TRY(check_share(items, plan, i, given));
    return ATS_OK;
}

ats_status schedule_read_plan(struct arena *arena, const struct items *items,
                              const struct plan *plan, int gpu, struct schedule_streams *out) {
    const struct plan *prompts = plan->prompts;
    *out = (struct schedule_streams){.n_slots = plan->n_slots[gpu],
                                     .slot_bytes = largest_lot(items, plan, gpu)};
    TRY(read_one(arena, items, plan, gpu, &out->given));
    if (prompts) {
        TRY(read_one(arena, items, prompts, gpu, &out->prompts));
        out->prompts_from = plan->prompts_from;
        out->n_slots = max_int(out->n_slots, prompts->n_slots[gpu]);
        out->slot_bytes = fmax(out->slot_bytes, largest_lot(items, prompts, gpu));
    }
    if (out->slot_bytes <= 0) out->n_slots = 0;
    return ATS_OK;
}
