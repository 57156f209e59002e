/* What each part of the system gains, and each granularity, with everything else equal
 * (scheduling.md 8): one chunk, one set of slots, one budget for weights and KV. */
#include "run/granularity.h"
#include "run/simulate.h"

#define LEAST_SLOTS 2

/* Slots, chunk and budget of what was found best; slots in any case, since every row reserves
 * them, whether it streams or not. */
static ats_status find_frame(const struct simulation *s, struct decide_way *frame) {
    const struct decide_way *w = &s->best;
    *frame = (struct decide_way){.n_slots = w->n_slots,
                                 .n_batch = w->n_batch,
                                 .slot_bytes = w->slot_bytes,
                                 .work_bytes = w->work_bytes};
    if (s->o.n_slots < 0) frame->n_slots = max_int(LEAST_SLOTS, frame->n_slots);
    if (s->constraints.n_fixed > 0)
        return fail(ATS_BAD_ARGUMENT, "an ablation needs all homes open");
    if (frame->n_slots == 0 || s->rule == TRANSFER_NONE)
        return fail(ATS_BAD_ARGUMENT, "an ablation needs slots and a rule of transfer");
    frame->budget_bytes = s->vram_bytes - frame->work_bytes - frame->n_slots * frame->slot_bytes;
    if (frame->budget_bytes >= 0) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%.0f MiB do not hold %d slots and the buffers of a round",
                s->vram_bytes / 1048576, frame->n_slots);
}

static ats_status place(struct simulation *s, const struct decide_way *frame,
                        struct placement **out) {
    struct decide_options o = simulation_options(s, frame->n_batch);
    int64_t budget = (int64_t)frame->budget_bytes;
    return placement_solve(&s->arena, s->items, &o.placement, &budget, 1, out);
}

/* Of s's items, granularity and rules. */
static ats_status fill(struct simulation *s, const struct decide_way *frame, const char *name,
                       struct ablation_row *row) {
    *row = (struct ablation_row){.name = name, .granularity = s->granularity, .way = *frame};
    TRY(place(s, frame, &row->way.placement));
    struct decide_options o = simulation_options(s, frame->n_batch);
    decide_time(&s->arena, s->items, &o, &row->way);
    return ATS_OK;
}

static ats_status fill_granularities(struct simulation *s, struct ablation *a) {
    for (int k = 0; k < SIMULATION_GRANULARITIES; k++) {
        s->granularity = (enum granularity)k;
        TRY(fill(s, &a->frame, granularity_name(s->granularity), &a->granularities[k]));
    }
    return ATS_OK;
}

/* Nothing at once: where the program changes its device the queue is drained, whichever way it
 * goes, so that both waits are paid; prompts copy every host weight before it is used. */
static ats_status fill_serial(struct simulation *s, struct ablation *a) {
    struct profile *drained = ARENA_ARRAY(&s->arena, struct profile, 1);
    *drained = *s->machine;
    drained->link.kappa_up_s += s->machine->link.kappa_down_s;
    drained->link.kappa_down_s = drained->link.kappa_up_s;
    TRY(simulation_items(s, drained, &s->items));
    s->rule = TRANSFER_NONE;
    s->prefill_rule = TRANSFER_ALL;
    s->granularity = GRANULARITY_LAYER;
    TRY(fill(s, &a->frame, "base", &a->steps[0]));
    s->granularity = GRANULARITY_TENSOR;
    TRY(fill(s, &a->frame, "+ placement", &a->steps[1]));
    a->steps[0].serial = a->steps[1].serial = true;
    return ATS_OK;
}

static ats_status fill_all(struct simulation *s, struct ablation *a) {
    struct items *items = s->items;
    TRY(find_frame(s, &a->frame));
    TRY(fill_granularities(s, a));
    TRY(fill_serial(s, a));
    s->items = items; /* by tensor, all host weights for prompts and none for decode */
    TRY(fill(s, &a->frame, "+ coordination", &a->steps[2]));
    a->steps[3] = a->granularities[GRANULARITY_TENSOR];
    a->steps[3].name = "+ transfer";
    a->steps[4] = a->granularities[GRANULARITY_SHARD];
    a->steps[4].name = "+ shard";
    return ATS_OK;
}

ats_status ablation_run(struct simulation *s) {
    struct items *items = s->items;
    enum granularity granularity = s->granularity;
    enum transfer_rule rule = s->rule, prefill_rule = s->prefill_rule;
    struct ablation *a = ARENA_ARRAY(&s->arena, struct ablation, 1);
    ats_status status = fill_all(s, a);
    s->items = items;
    s->granularity = granularity;
    s->rule = rule;
    s->prefill_rule = prefill_rule;
    if (status == ATS_OK) s->ablation = a;
    return status;
}
