/*
 * The plan that the planner makes for a model on a described machine, explained (plan/explain.h):
 * ats_explain. The budget is that of the best way to simulate it; no weights are read.
 */
#include <math.h>

#include "plan/diff.h"
#include "plan/explain.h"
#include "run/engine.h"
#include "run/granularity.h"
#include "run/simulate.h"

/* total_bytes: of the device; what of it is not usable is left to others. */
static json_t *memory_json(const struct decide_way *w, double total_bytes, double usable_bytes) {
    return json_pack("{s:f, s:f, s:f, s:f, s:i, s:f}", "usable_bytes", usable_bytes,
                     "left_to_others_bytes", fmax(0, total_bytes - usable_bytes), "budget_bytes",
                     w->budget_bytes, "work_bytes", w->work_bytes, "slots", w->n_slots,
                     "slot_bytes", w->slot_bytes);
}

/* ---- another plan ---- */

/* Sizes and times are set for the options of the one that is told. */
static ats_status find_other(struct simulation *s, struct placement **out) {
    struct placement_options o = s->placement_options;
    const int64_t budget = (int64_t)s->best.budget_bytes;
    if (granularity_read(s->o.diff, &o.granularity) == ATS_OK) {
        o.fixed = o.fixed_units = NULL;
        return placement_solve(&s->arena, s->items, &o, &budget, 1, out);
    }
    error_clear();
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

/* A way that streams, and what it was decided by. */
struct streaming {
    struct arena *arena;
    const struct items *items;
    const struct decide_options *options;
    const struct decide_way *way;
    int chunk; /* tokens */
};

static void set_rates(json_t *o, int chunk, const struct schedule *decode,
                      const struct schedule *prefill) {
    json_object_set_new(o, "streamed_decode_tok_s", json_real(1 / decode->transfer.result.round_s));
    json_object_set_new(o, "streamed_prefill_tok_s",
                        json_real(chunk / prefill->transfer.result.round_s));
}

/* The schedules as they were decided, at a depth. */
static void add_at_depth(const struct streaming *s, double depth, json_t *row) {
    const struct decide_way *w = s->way;
    struct schedule_options one = decide_schedule_options(s->options, w, 1, depth),
                            many = decide_prompt_options(s->options, w, s->chunk, depth);
    struct schedule decode, prefill;
    schedule_retime(s->arena, s->items, w->placement, &one, &w->decode, &decode);
    schedule_retime(s->arena, s->items, w->placement, &many, &w->prefill, &prefill);
    set_rates(row, s->chunk, &decode, &prefill);
}

/* What would be streamed if something changed, through the same slots; of one program, in prompts
 * the same as in decode. */
static void add_change(const struct streaming *s, const struct explain_change *c, json_t *row) {
    const struct decide_options *o = s->options;
    struct schedule_options one = decide_schedule_options(o, s->way, 1, o->depth);
    struct schedule_options many =
        decide_prompt_options(o, s->way, s->chunk, (o->n_prompt - s->chunk) / 2.0);
    struct schedule decode, prefill;
    if (!c->valid) return;
    schedule_solve(s->arena, c->items, c->placement, &one, &decode);
    if (o->one_program)
        schedule_retime(s->arena, c->items, c->placement, &many, &decode, &prefill);
    else
        schedule_solve(s->arena, c->items, c->placement, &many, &prefill);
    set_rates(row, s->chunk, &decode, &prefill);
}

/* Beside what placements are chosen by: the plan with its slots in use. */
static void add_streaming(const struct streaming *s, const struct explanation *e, json_t *answer) {
    const struct {
        const char *name;
        const struct explain_change *change;
    } changes[] = {{"here", &e->here},
                   {"one_gib_more", &e->more_memory},
                   {"one_gib_less", &e->less_memory},
                   {"smaller_kv", &e->smaller_cache},
                   {"half_bus", &e->half_bus}};
    json_t *told = json_object_get(answer, "changes"), *row;
    size_t i;
    if (s->way->n_slots == 0) return;
    json_array_foreach(json_object_get(answer, "predictions"), i, row)
        add_at_depth(s, json_number_value(json_object_get(row, "depth")), row);
    for (i = 0; i < COUNT_OF(changes); i++)
        add_change(s, changes[i].change, json_object_get(told, changes[i].name));
}

static ats_status explain_best(struct simulation *s, json_t **out) {
    struct explain_problem problem = {.graph = s->model->graph,
                                      .profile = s->machine,
                                      .items = s->items_options,
                                      .placement = s->placement_options,
                                      .budget_bytes = (int64_t)s->best.budget_bytes,
                                      .decided = s->best.placement};
    struct explanation *e;
    if (s->constraints.n_fixed == 0) { /* else what it costs is told, against the usual plan */
        problem.placement.granularity = s->best.granularity;
        problem.placement.prompt_tokens = s->best.prompt_tokens;
    }
    TRY(explain(&s->arena, &problem, s->constraints.given.placement, &e));
    *out = explain_to_json(e, "cpu", "gpu");
    json_object_set_new(*out, "schema", json_integer(1));
    json_t *memory = memory_json(&s->best, (double)s->machine->gpu_bytes, s->vram_bytes);
    json_object_set_new(memory, "host_bytes", json_integer(s->machine->host_bytes));
    json_object_set_new(*out, "memory", memory);
    json_object_set_new(*out, "granularity", json_string(s->o.granularity));
    json_object_set_new(*out, "n_layers", json_integer(s->model->hp.n_layers));
    json_object_set_new(*out, "context", json_integer(s->o.n_ctx));
    const struct decide_options o = simulation_options(s, s->best.n_batch);
    const struct streaming streaming = {&s->arena, s->items, &o, &s->best,
                                        min_int(s->best.n_batch, s->o.n_prompt)};
    add_streaming(&streaming, e, *out);
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

static ats_status explain_own(struct arena *arena, const struct planner *p,
                              const struct decide_way *w, struct explanation **out) {
    struct explain_problem problem = {.graph = p->model->graph,
                                      .profile = p->profile,
                                      .items = p->items_options,
                                      .placement = p->options.placement,
                                      .decided = w->placement};
    problem.budget_bytes = max_i64((int64_t)w->budget_bytes, w->placement->gpu_bytes);
    if (problem.placement.n_depths == 0) problem.placement = p->base.placement;
    problem.placement.prompts_in_place = w->prompts_from == 0;
    return explain(arena, &problem, NULL, out);
}

/* What a plan's file streams is not told again: nobody decided it. */
static void add_own_streaming(struct arena *arena, const struct planner *p,
                              const struct decide_way *w, const struct explanation *e,
                              json_t *answer) {
    struct decide_options o = p->options;
    const struct streaming s = {arena, p->items, &o, w, min_int(w->n_batch, p->base.n_prompt)};
    o.one_program = w->prompts_from == 0;
    if (o.placement.n_depths > 0) add_streaming(&s, e, answer);
}

/* As the ledger has it: plans by hand have no budget, and a planner counts buffers roughly. Of a
 * GPU that was left alone what it might have had. */
static json_t *own_memory_json(const ats_engine *e) {
    struct decide_way w = {.budget_bytes = (double)e->choice.budget_bytes};
    double total = w.budget_bytes, usable = w.budget_bytes;
    for (int d = 0; d < e->n_devices; d++) {
        const struct executor_ledger *l = &e->ledger.devices[d];
        if (!e->devices[d]->gpu) continue;
        total = (double)l->memory.total_bytes;
        usable = (double)l->limit_bytes;
        w.work_bytes = (double)l->work_bytes;
        w.n_slots = e->plan->n_slots[d];
        if (e->plan->prompts) w.n_slots = max_int(w.n_slots, e->plan->prompts->n_slots[d]);
        if (w.n_slots > 0) w.slot_bytes = (double)l->slot_bytes / w.n_slots;
        w.budget_bytes = usable - w.work_bytes - (double)l->slot_bytes;
    }
    return memory_json(&w, total, usable);
}

char *ats_engine_explain(const ats_engine *e) {
    const struct planner *p = e->planner;
    struct arena arena = {0};
    struct explanation *x;
    char *text = NULL;
    const struct decide_way *way = adapt_way(e);
    if (!way) return NULL;
    if (explain_own(&arena, p, way, &x) == ATS_OK) {
        json_t *o = explain_to_json(x, "cpu", "gpu");
        json_object_set_new(o, "schema", json_integer(1));
        json_object_set_new(o, "memory", own_memory_json(e));
        add_own_streaming(&arena, p, way, x, o);
        json_object_set_new(o, "granularity",
                            json_string(granularity_name(p->base.placement.granularity)));
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
