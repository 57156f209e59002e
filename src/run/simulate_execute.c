/* What was decided, carried out by the executor on the machine in virtual time (rehearse.h): its
 * rounds beside those that are predicted. */
#include <math.h>

#include "run/rehearse.h"
#include "run/simulate.h"

/* The executor's copies are known before a round: it brings neither just the experts that the round
 * chose nor caches. */
static struct schedule_options runnable(const struct simulation *s, int n_tokens, double depth,
                                        bool prompt) {
    struct decide_options o = simulation_options(s, s->best.n_batch);
    o.stream_caches = false;
    struct schedule_options so = prompt ? decide_prompt_options(&o, &s->best, n_tokens, depth)
                                        : decide_schedule_options(&o, &s->best, n_tokens, depth);
    so.whole_experts = true;
    if (so.n_slots > 0) /* of which a slot holds several, where they are many */
        so.slot_bytes =
            fmax(so.slot_bytes, schedule_least_slot_bytes(s->items, SCHEDULE_PIECES, true));
    return so;
}

/* trace: a file for one round, or NULL. */
static ats_status execute(struct simulation *s, int n_tokens, double depth, bool prompt,
                          const char *trace, struct simulation_executed *out) {
    struct schedule_options o = runnable(s, n_tokens, depth, prompt);
    struct schedule schedule;
    struct rehearsal r;
    schedule_solve(&s->arena, s->items, s->best.placement, &o, &schedule);
    const struct plan *plan = s->constraints.given.plan;
    if (!plan)
        plan = schedule_plan(&s->arena, s->items, s->best.placement, &schedule, o.n_slots,
                             o.slot_bytes, 2, SIDE_CPU, SIDE_GPU);
    struct rehearsal_options ro =
        rehearsal_options_default(s->model->graph, n_tokens, (int)depth, s->o.n_ctx);
    ro.kv_k = s->items_options.kv_k;
    ro.kv_v = s->items_options.kv_v;
    TRY(rehearse(s->model, s->items, plan, &ro, &r));
    *out = (struct simulation_executed){r.round_s, schedule.transfer.result.round_s};
    if (!trace) return ATS_OK;
    ro.n_rounds = 1;
    ro.trace = trace;
    return rehearse(s->model, s->items, plan, &ro, &r);
}

ats_status simulation_execute(struct simulation *s) {
    int n_batch = min_int(s->best.n_batch, s->o.n_prompt);
    double middle = floor(fmax(0, (s->o.n_prompt - n_batch) / 2.0));
    struct simulation_executed *e = s->executed;
    ats_status status = execute(s, 1, s->o.depth, false, s->o.executed_trace, &e[0]);
    if (status == ATS_OK) status = execute(s, n_batch, middle, true, NULL, &e[1]);
    if (status != ATS_NO_MEMORY) return status;
    s->not_executed = arena_strdup(&s->arena, error_text()); /* a machine is too small for it */
    error_clear();
    return ATS_OK;
}
