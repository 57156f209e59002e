/*
 * The plan that the planner makes for a model on a described machine, explained (plan/explain.h):
 * ats_explain. The budget is that of the best way to simulate it; no weights are read.
 */
#include "plan/diff.h"
#include "plan/explain.h"
#include "run/engine.h"
#include "run/simulate.h"

static json_t *memory_json(const struct decide_way *w, double usable_bytes) {
    return json_pack("{s:f, s:f, s:f, s:i, s:f}", "usable_bytes", usable_bytes, "budget_bytes",
                     w->budget_bytes, "work_bytes", w->work_bytes, "slots", w->n_slots,
                     "slot_bytes", w->slot_bytes);
}

/* ---- another plan ---- */

/* Sizes and times are set for the options of the one that is told. */
static ats_status find_other(struct simulation *s, struct placement **out) {
    struct placement_options o = s->placement_options;
    const int64_t budget = (int64_t)s->best.budget_bytes;
    if (simulation_granularity(s->o.diff, &o.granularity)) {
        o.fixed = o.fixed_units = NULL;
        o.scattered_experts = o.granularity == GRANULARITY_SHARD;
        return placement_solve(&s->arena, s->items, &o, &budget, 1, out);
    }
    struct given_plan plan;
    TRY(constraints_read_plan(&s->arena, s->o.diff, s->file->arch, s->items, &plan));
    *out = plan.placement;
    placement_finish(s->items, &o, *out);
    return ATS_OK;
}

static ats_status add_diff(struct simulation *s, const struct explanation *e, json_t *answer) {
    struct placement *other;
    const struct placement *here = e->placement;
    if (!s->o.diff) return ATS_OK;
    TRY(find_other(s, &other));
    json_t *o = diff_to_json(placement_diff(&s->arena, s->items, here, other), s->items);
    bool fits = other->quanta * s->items->quantum_bytes <= (int64_t)s->best.budget_bytes;
    json_object_set_new(o, "with", json_string(s->o.diff));
    json_object_set_new(o, "decode_tok_s", json_real(e->n_tokens / other->decode_s));
    json_object_set_new(o, "prefill_tok_s", json_real(e->prefill_tokens / other->prefill_s));
    json_object_set_new(o, "gpu_bytes", json_integer(here->gpu_bytes));
    json_object_set_new(o, "other_gpu_bytes", json_integer(other->gpu_bytes));
    json_object_set_new(o, "fits", json_boolean(fits));
    json_object_set_new(o, "slower", json_real(other->objective_s / here->objective_s - 1));
    json_object_set_new(answer, "diff", o);
    return ATS_OK;
}

/* ---- with what is streamed ---- */

/* Of a schedule as it was decided, at another depth. */
static json_t *rate_at(struct simulation *s, const struct schedule *as, enum transfer_rule rule,
                       int n_tokens, double depth) {
    struct decide_options o = simulation_options(s, s->best.n_batch);
    struct schedule_options so = decide_schedule_options(&o, &s->best, n_tokens, depth);
    struct schedule there;
    so.rule = rule;
    schedule_retime(&s->arena, s->items, s->best.placement, &so, as, &there);
    return json_real(n_tokens / there.transfer.result.round_s);
}

/* Beside what placements are chosen by: the plan as it is simulated, slots in use. */
static void add_streaming(struct simulation *s, json_t *answer) {
    int chunk = min_int(s->best.n_batch, s->o.n_prompt);
    size_t i;
    json_t *row;
    if (s->best.n_slots == 0) return;
    json_array_foreach(json_object_get(answer, "predictions"), i, row) {
        double depth = json_number_value(json_object_get(row, "depth"));
        json_object_set_new(row, "streamed_decode_tok_s",
                            rate_at(s, &s->best.decode, s->rule, 1, depth));
        json_object_set_new(row, "streamed_prefill_tok_s",
                            rate_at(s, &s->best.prefill, s->prefill_rule, chunk, depth));
    }
}

static ats_status explain_best(struct simulation *s, json_t **out) {
    struct explain_problem problem = {.graph = s->model->graph,
                                      .profile = s->machine,
                                      .items = s->items_options,
                                      .placement = s->placement_options,
                                      .budget_bytes = (int64_t)s->best.budget_bytes};
    struct explanation *e;
    TRY(explain(&s->arena, &problem, s->constraints.given.placement, &e));
    *out = explain_to_json(e, "cpu", "gpu");
    json_object_set_new(*out, "schema", json_integer(1));
    json_object_set_new(*out, "memory", memory_json(&s->best, s->vram_bytes));
    json_object_set_new(*out, "granularity", json_string(s->o.granularity));
    json_object_set_new(*out, "n_layers", json_integer(s->model->hp.n_layers));
    json_object_set_new(*out, "context", json_integer(s->o.n_ctx));
    add_streaming(s, *out);
    return add_diff(s, e, *out);
}

ats_status ats_explain(const ats_simulation *given, char **json) {
    struct simulation s = {.explains = true};
    json_t *root = NULL;
    *json = NULL;
    ats_status status = simulation_run(&s, given);
    if (status == ATS_OK) status = explain_best(&s, &root);
    if (status == ATS_OK) *json = json_print(root, false);
    json_decref(root);
    simulation_close(&s);
    return status;
}

/* ---- an engine's own ---- */

static bool same_homes(const struct items *items, const struct placement *a,
                       const struct placement *b) {
    for (int i = 0; i < items->n_items; i++)
        if (a->homes[i] != b->homes[i]) return false;
    for (int k = 0; k < items->n_blocks; k++)
        if (a->units[k] != b->units[k]) return false;
    return true;
}

/* As it would be placed again, if that is what is in force: then changes can be told; else what is
 * there is explained. */
static ats_status explain_way(struct arena *arena, const struct planner *p,
                              const struct decide_way *w, struct explanation **out) {
    struct explain_problem problem = {.graph = p->model->graph,
                                      .profile = p->profile,
                                      .items = p->items_options,
                                      .placement = p->options.placement,
                                      .budget_bytes = (int64_t)w->budget_bytes};
    if (problem.placement.n_depths == 0) problem.placement = p->base.placement;
    problem.placement.prompts_in_place = w->prompts_from == 0;
    TRY(explain(arena, &problem, NULL, out));
    if (same_homes(p->items, (*out)->placement, w->placement)) return ATS_OK;
    problem.budget_bytes = max_i64(problem.budget_bytes, w->placement->gpu_bytes);
    return explain(arena, &problem, w->placement, out);
}

char *ats_engine_explain(const ats_engine *e) {
    const struct planner *p = e->planner;
    struct arena arena = {0};
    struct explanation *x;
    char *text = NULL;
    const struct decide_way *way = adapt_way(e);
    if (!way) return NULL;
    if (explain_way(&arena, p, way, &x) == ATS_OK) {
        json_t *o = explain_to_json(x, "cpu", "gpu");
        json_object_set_new(o, "schema", json_integer(1));
        json_object_set_new(o, "memory", memory_json(way, (double)e->choice.budget_bytes));
        json_object_set_new(o, "granularity", json_string("shard"));
        json_object_set_new(o, "n_layers", json_integer(e->model->hp.n_layers));
        json_object_set_new(o, "context", json_integer(e->options.n_ctx));
        json_object_set_new(o, "prediction", planner_json(p, way));
        text = json_print(o, false);
        json_decref(o);
    }
    error_clear();
    arena_free(&arena);
    return text;
}
