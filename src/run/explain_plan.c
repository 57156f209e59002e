/*
 * The plan that the planner makes for a model on a described machine, explained (plan/explain.h):
 * ats_explain. The budget is that of the best way to simulate it; no weights are read.
 */
#include "plan/explain.h"
#include "run/simulate.h"

static json_t *memory_json(const struct simulation *s) {
    const struct simulation_way *w = &s->best;
    return json_pack("{s:f, s:f, s:f, s:i, s:f}", "usable_bytes", s->vram_bytes, "budget_bytes",
                     w->budget_bytes, "work_bytes", w->work_bytes, "slots", w->n_slots,
                     "slot_bytes", w->slot_bytes);
}

static ats_status explain_best(struct simulation *s, json_t **out) {
    struct explain_problem problem = {.graph = s->model->graph,
                                      .profile = s->machine,
                                      .items = s->items_options,
                                      .placement = s->placement_options,
                                      .budget_bytes = (int64_t)s->best.budget_bytes};
    struct explanation *e;
    TRY(explain(&s->arena, &problem, s->constraints.placed, &e));
    *out = explain_to_json(e, "cpu", "gpu");
    json_object_set_new(*out, "schema", json_integer(1));
    json_object_set_new(*out, "memory", memory_json(s));
    json_object_set_new(*out, "granularity", json_string(s->o.granularity));
    json_object_set_new(*out, "n_layers", json_integer(s->model->hp.n_layers));
    json_object_set_new(*out, "context", json_integer(s->o.n_ctx));
    return ATS_OK;
}

ats_status ats_explain(const ats_simulation *given, char **json) {
    struct simulation s = {0};
    json_t *root = NULL;
    *json = NULL;
    ats_status status = simulation_run(&s, given);
    if (status == ATS_OK) status = explain_best(&s, &root);
    if (status == ATS_OK) *json = json_print(root, false);
    json_decref(root);
    simulation_close(&s);
    return status;
}
