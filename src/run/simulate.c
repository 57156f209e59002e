#include "run/simulate.h"

#include <math.h>
#include <string.h>

#include "model/shape.h"
#include "run/engine.h"
#include "run/granularity.h"
#include "run/measure.h"

#define MOST_CHUNK 4096

void ats_simulation_default(ats_simulation *s) {
    *s = (ats_simulation){.granularity = "shard", .transfer = "ours", .n_slots = -1};
}

/* ---- what is asked ---- */

static ats_status check_range(const char *name, int value, int min, int max) {
    if (value >= min && value <= max) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%s is %d, expected %d to %d", name, value, min, max);
}

static ats_status open_file(struct simulation *s) {
    if (!s->o.model) return fail(ATS_BAD_ARGUMENT, "no model is given");
    if (!s->o.machine) return fail(ATS_BAD_ARGUMENT, "no machine is given");
    return shape_is_path(s->o.model) ? shape_open(s->o.model, &s->file)
                                     : gguf_open(s->o.model, &s->file);
}

static ats_status read_options(struct simulation *s) {
    ats_simulation *o = &s->o;
    if (!o->granularity) o->granularity = "shard";
    if (!o->transfer) o->transfer = "ours";
    TRY(granularity_read(o->granularity, &s->granularity));
    TRY(transfer_read(o->transfer, &s->rule));
    s->prefill_rule = s->rule;
    TRY(check_range("n_ctx", o->n_ctx, 0, 1 << 24));
    if (o->n_ctx == 0 && !s->explains) o->n_ctx = 4096;
    TRY(engine_context(s->file, &o->n_ctx));
    if (o->n_prompt == 0) o->n_prompt = min_int(2048, o->n_ctx);
    s->depth_open = o->depth == 0;
    if (s->depth_open) o->depth = o->n_prompt;
    if (s->explains) o->depth = min_int(o->depth, o->n_ctx); /* as engines have it */
    TRY(measure_check_types(o->kv_k, o->kv_v, o->math));
    TRY(check_range("n_prompt", o->n_prompt, 1, o->n_ctx));
    TRY(check_range("depth", o->depth, 0, o->n_ctx));
    TRY(check_range("n_batch", o->n_batch, 0, 1 << 16));
    TRY(check_range("vram_mib", o->vram_mib, 0, 1 << 24));
    TRY(check_range("n_slots", o->n_slots, -1, 64));
    if (!(o->replan_threshold >= 0 && o->replan_threshold <= 10))
        return fail(ATS_BAD_ARGUMENT, "replan_threshold is %g, expected 0 to 10",
                    o->replan_threshold);
    if (!(o->replan_interval >= 0 && o->replan_interval <= 1e6))
        return fail(ATS_BAD_ARGUMENT, "replan_interval is %g, expected 0 to 1e6",
                    o->replan_interval);
    if (!(o->expert_hit_exponent >= 0 && o->expert_hit_exponent <= 1))
        return fail(ATS_BAD_ARGUMENT, "expert_hit_exponent is %g, expected 0 to 1",
                    o->expert_hit_exponent);
    return ATS_OK;
}

/* ---- what is there ---- */

static ats_status open_model(struct simulation *s) {
    const struct model_options options = {.n_ctx = s->o.n_ctx,
                                          .math = measure_math(s->o.math),
                                          .row_group = PLAN_ROW_GROUP,
                                          .planning = true};
    TRY(model_open(s->file, &options, &s->model));
    float exponent = 1;
    TRY(gguf_opt_f32(s->file, "atsinfer.expert_hit_exponent", &exponent));
    if (!(exponent > 0 && exponent <= 1))
        return fail(ATS_BAD_FILE, "key atsinfer.expert_hit_exponent is %g, expected 0 to 1",
                    (double)exponent);
    s->hit_exponent = s->o.expert_hit_exponent > 0 ? s->o.expert_hit_exponent : (double)exponent;
    return ATS_OK;
}

static ats_status open_machine(struct simulation *s) {
    TRY(profile_read(&s->arena, s->o.machine, &s->machine));
    if (s->machine->gpu_bytes <= 1) /* measured without one */
        return fail(ATS_UNSUPPORTED, "%s: \"%.60s\" has no GPU: there is nothing to divide",
                    s->o.machine, s->machine->name);
    s->vram_bytes = (double)s->machine->usable_bytes;
    if (s->o.vram_mib == 0) return ATS_OK;
    s->vram_bytes = (double)s->o.vram_mib * 1048576;
    if (s->vram_bytes <= (double)s->machine->gpu_bytes) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%d MiB are more than the %lld MiB of \"%.60s\"", s->o.vram_mib,
                (long long)(s->machine->gpu_bytes >> 20), s->machine->name);
}

/* Popularity of the layers that have experts, by the hit model. */
static const double *const *make_popularity(struct simulation *s) {
    const struct graph *g = s->model->graph;
    const double **layers = ARENA_ARRAY(&s->arena, const double *, s->model->hp.n_layers + 1);
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        if (op->kind != OP_EXPERTS || op->layer < 0) continue;
        double *p = ARENA_ARRAY(&s->arena, double, op->p.experts.n_experts);
        limit_popularity(s->hit_exponent, op->p.experts.n_experts, op->p.experts.n_used, p);
        layers[op->layer] = p;
    }
    return layers;
}

ats_status simulation_items(struct simulation *s, const struct profile *machine,
                            struct items **items) {
    return items_build(&s->arena, s->model->graph, machine, &s->items_options, items);
}

static ats_status make_items(struct simulation *s) {
    struct items_options *o = &s->items_options;
    *o = items_options_default();
    o->n_ctx = s->o.n_ctx;
    o->kv_k = measure_kv_dtype(s->o.kv_k);
    o->kv_v = measure_kv_dtype(s->o.kv_v);
    o->n_batch = s->o.n_batch > 0 ? s->o.n_batch : DECIDE_CHUNK;
    o->popularity = make_popularity(s);
    TRY(simulation_items(s, s->machine, &s->items));
    if (s->items->n_items > 0) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "there is nothing to place");
}

/* ---- what is decided ---- */

static struct placement_options placement_options_of(const struct simulation *s, int n_batch) {
    struct placement_options o = placement_options_default(s->o.n_ctx);
    o.granularity = s->granularity;
    o.paper_moe = s->o.paper_moe;
    if (!s->explains || !s->depth_open) {
        o.depths[0] = s->o.depth;
        o.weights[0] = o.n_depths = 1;
    }
    o.prefill_tokens = n_batch;
    if (s->o.stream_caches) o.prompt_tokens = 0; /* the CPU does not have to attend */
    o.scattered_experts = s->granularity == GRANULARITY_SHARD && !s->explains;
    o.fixed = s->constraints.fixed;
    o.fixed_units = s->constraints.fixed_units;
    return o;
}

/* What a given plan streams is what is streamed. */
static const struct given_plan *given_plan(const struct simulation *s) {
    return s->constraints.given.plan && !s->explains ? &s->constraints.given : NULL;
}

struct decide_options simulation_options(const struct simulation *s, int n_batch) {
    return (struct decide_options){.placement = placement_options_of(s, n_batch),
                                   .device_bytes = s->vram_bytes,
                                   .fixed_bytes = s->constraints.gpu_bytes,
                                   .n_batch = s->o.n_batch,
                                   .n_slots = s->o.n_slots,
                                   .n_prompt = s->o.n_prompt,
                                   .n_answer = DECIDE_ANSWER,
                                   .depth = s->o.depth,
                                   .decode_rule = s->rule,
                                   .prefill_rule = s->prefill_rule,
                                   .whole_experts = s->explains,
                                   .given = given_plan(s) ? &given_plan(s)->streams : NULL,
                                   .stream_caches = s->o.stream_caches};
}

/* A plan as it is, chunks of so many tokens; out->placement NULL: they do not fit. */
static void time_given(struct simulation *s, int n_batch, struct decide_way *out) {
    const struct given_plan *given = given_plan(s);
    const struct schedule_streams *streams = &given->streams;
    struct decide_options o = simulation_options(s, n_batch);
    s->placement_options = o.placement;
    *out = (struct decide_way){
        .n_slots = streams->n_slots, .n_batch = n_batch, .slot_bytes = streams->slot_bytes};
    out->work_bytes = (double)schedule_work_bytes(s->items, n_batch);
    out->budget_bytes = s->vram_bytes - out->work_bytes - out->n_slots * out->slot_bytes;
    if ((double)given->placement->gpu_bytes > out->budget_bytes) return;
    out->placement = ARENA_NEW(&s->arena, struct placement);
    *out->placement = *given->placement;
    placement_finish(s->items, &o.placement, out->placement);
    decide_time(&s->arena, s->items, &o, out);
}

static ats_status decide_given(struct simulation *s) {
    const struct given_plan *given = given_plan(s);
    if (s->o.ablation || s->o.load)
        return fail(ATS_BAD_ARGUMENT, "%s makes plans of its own: it goes without a given one",
                    s->o.load ? "a trace of load" : "an ablation");
    int first = s->o.n_batch > 0 ? s->o.n_batch : DECIDE_CHUNK;
    for (int n = first; n == first || n <= MOST_CHUNK; n *= 2) {
        struct decide_way w;
        time_given(s, n, &w);
        if (w.placement && (!s->best.placement || w.request_s < s->best.request_s)) s->best = w;
        if (s->o.n_batch > 0 || n >= s->o.n_prompt) break;
    }
    if (s->best.placement) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT,
                "what the plan has on the GPU, %.0f MiB, its slots, %.0f MiB, and the buffers of a "
                "round do not fit into %.0f MiB",
                (double)given->placement->gpu_bytes / 1048576,
                given->streams.n_slots * given->streams.slot_bytes / 1048576,
                s->vram_bytes / 1048576);
}

static ats_status decide_best(struct simulation *s) {
    if (given_plan(s)) return decide_given(s);
    int n_batch = s->o.n_batch > 0 ? s->o.n_batch : DECIDE_CHUNK;
    struct decide_options o = simulation_options(s, n_batch);
    s->placement_options = o.placement;
    ats_status status = decide(&s->arena, s->items, &o, &s->best);
    if (status != ATS_BAD_ARGUMENT || s->o.vram_mib > 0 || o.fixed_bytes > 0) return status;
    return fail(ATS_BAD_FILE, "%s: memory.%s: %s", s->o.machine,
                s->machine->usable_bytes < s->machine->gpu_bytes ? "usable_bytes" : "gpu_bytes",
                error_text());
}

static void set_limits(struct simulation *s) {
    struct limit_problem p;
    double budget = s->best.budget_bytes;
    limit_problem_of(&s->arena, s->items, 1, s->o.depth, &p);
    s->round = limit_round(&p, budget);
    s->blocks = limit_blocks(&p, budget);
    p.with_starts = true;
    s->started = limit_blocks(&p, budget);
    int n_batch = min_int(s->best.n_batch, s->o.n_prompt);
    limit_problem_of(&s->arena, s->items, n_batch, fmax(0, (s->o.n_prompt - n_batch) / 2.0), &p);
    s->prompt = limit_prefill(&p, budget);
}

ats_status simulation_run(struct simulation *s, const ats_simulation *given) {
    s->o = *given;
    TRY(open_file(s));
    TRY(read_options(s));
    TRY(open_model(s));
    TRY(open_machine(s));
    TRY(make_items(s));
    TRY(constraints_read(&s->arena, &s->o, s->file->arch, s->items, &s->constraints));
    TRY(decide_best(s));
    set_limits(s);
    if (s->o.load) TRY(load_simulate(s, s->o.load));
    return s->o.ablation ? ablation_run(s) : ATS_OK;
}

void simulation_close(struct simulation *s) {
    model_close(s->model);
    gguf_close(s->file);
    arena_free(&s->arena);
}

ats_status ats_simulate(const ats_simulation *given, char **json) {
    struct simulation s = {0};
    *json = NULL;
    ats_status status = simulation_run(&s, given);
    if (status == ATS_OK) status = simulation_execute(&s);
    if (status == ATS_OK) {
        json_t *root = simulation_json(&s);
        *json = json_print(root, false);
        json_decref(root);
    }
    simulation_close(&s);
    return status;
}
