#include "run/simulate.h"

#include <math.h>
#include <string.h>

#include "model/shape.h"

#define PROMPT_PLACES 4 /* places in a prompt at which its chunks are timed */

static const char *const granularities[] = {"layer", "expert", "tensor", "shard"};
static const char *const transfers[] = {"none", "paper", "ours"};
static const int chunks[] = {512, 1024, 2048, 4096};
static const int slots[] = {0, 2, 4};

void ats_simulation_default(ats_simulation *s) {
    *s = (ats_simulation){.granularity = "shard", .transfer = "ours", .n_slots = -1};
}

/* ---- what is asked ---- */

static ats_status choose(const char *what, const char *text, const char *const *names, int n,
                         int *out) {
    for (int i = 0; i < n; i++)
        if (text && strcmp(text, names[i]) == 0) {
            *out = i;
            return ATS_OK;
        }
    return fail(ATS_BAD_ARGUMENT, "there is no %s \"%.40s\"", what, text ? text : "");
}

bool simulation_granularity(const char *name, enum granularity *out) {
    int found = 0;
    bool ok = choose("granularity", name, granularities, COUNT_OF(granularities), &found) == ATS_OK;
    error_clear();
    *out = (enum granularity)found;
    return ok;
}

static ats_status check_range(const char *name, int value, int min, int max) {
    if (value >= min && value <= max) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%s is %d, expected %d to %d", name, value, min, max);
}

static ats_status read_options(struct simulation *s, const ats_simulation *given) {
    static const enum transfer_rule rules[] = {TRANSFER_NONE, TRANSFER_PAPER, TRANSFER_LABELS};
    ats_simulation *o = &s->o;
    int granularity = 0, transfer = 0;
    *o = *given;
    if (!o->granularity) o->granularity = "shard";
    if (!o->transfer) o->transfer = "ours";
    if (!o->model) return fail(ATS_BAD_ARGUMENT, "no model is given");
    if (!o->machine) return fail(ATS_BAD_ARGUMENT, "no machine is given");
    TRY(choose("granularity", o->granularity, granularities, COUNT_OF(granularities),
               &granularity));
    TRY(choose("transfer", o->transfer, transfers, COUNT_OF(transfers), &transfer));
    s->granularity = (enum granularity)granularity;
    s->rule = s->prefill_rule = rules[transfer];
    if (o->n_ctx == 0) o->n_ctx = 4096;
    if (o->n_prompt == 0) o->n_prompt = min_int(2048, o->n_ctx);
    if (o->depth == 0) o->depth = o->n_prompt;
    TRY(check_range("n_ctx", o->n_ctx, 1, 1 << 24));
    TRY(check_range("n_prompt", o->n_prompt, 1, o->n_ctx));
    TRY(check_range("depth", o->depth, 0, o->n_ctx));
    TRY(check_range("n_batch", o->n_batch, 0, 1 << 16));
    TRY(check_range("vram_mib", o->vram_mib, 0, 1 << 24));
    TRY(check_range("n_slots", o->n_slots, -1, 64));
    if (!(o->expert_hit_exponent >= 0 && o->expert_hit_exponent <= 1))
        return fail(ATS_BAD_ARGUMENT, "expert_hit_exponent is %g, expected 0 to 1",
                    o->expert_hit_exponent);
    return ATS_OK;
}

/* ---- what is there ---- */

static ats_status open_model(struct simulation *s) {
    const struct model_options options = {
        .n_ctx = s->o.n_ctx, .math = MATH_Q8, .row_group = 16, .planning = true};
    if (shape_is_path(s->o.model))
        TRY(shape_open(s->o.model, &s->file));
    else
        TRY(gguf_open(s->o.model, &s->file));
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
    o->n_batch = s->o.n_batch > 0 ? s->o.n_batch : chunks[0];
    o->popularity = make_popularity(s);
    TRY(simulation_items(s, s->machine, &s->items));
    if (s->items->n_items > 0) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "there is nothing to place");
}

/* ---- one way ---- */

struct placement_options simulation_placement(const struct simulation *s, int n_batch) {
    struct placement_options o = placement_options_default(s->o.n_ctx);
    o.granularity = s->granularity;
    o.paper_moe = s->o.paper_moe;
    o.depths[0] = s->o.depth;
    o.weights[0] = 1;
    o.n_depths = 1;
    o.prefill_tokens = n_batch;
    if (s->o.stream_caches) o.prompt_tokens = 0; /* the CPU does not have to attend */
    o.scattered_experts = s->granularity == GRANULARITY_SHARD;
    o.fixed = s->constraints.fixed;
    o.fixed_units = s->constraints.fixed_units;
    return o;
}

static struct schedule_options schedule_options_of(const struct simulation *s, int n_slots,
                                                   double n_tokens, double depth) {
    return (struct schedule_options){.n_tokens = n_tokens,
                                     .n_rows = 1,
                                     .depth = depth,
                                     .n_slots = n_slots,
                                     .periodic = true,
                                     .by_units = s->granularity == GRANULARITY_SHARD,
                                     .stream_caches = s->o.stream_caches,
                                     .rule = n_slots > 0 ? s->rule : TRANSFER_NONE};
}

/* The prompt's chunks, timed at a few depths; what is kept is the one in the middle. */
static void time_prompt(struct simulation *s, struct simulation_way *w) {
    int n_places = min_int(PROMPT_PLACES, (s->o.n_prompt + w->n_batch - 1) / w->n_batch);
    double n_tokens = min_int(w->n_batch, s->o.n_prompt);
    for (int i = 0; i < n_places; i++) {
        double depth = fmax(0, (i + 0.5) * s->o.n_prompt / n_places - n_tokens / 2);
        struct schedule_options o = schedule_options_of(s, w->n_slots, n_tokens, depth);
        struct schedule one;
        if (o.n_slots > 0) o.rule = s->prefill_rule;
        schedule_solve(&s->arena, s->items, w->placement, &o, &one);
        double n_chunks = s->o.n_prompt / n_tokens / n_places;
        w->prompt_s += n_chunks * one.transfer.result.round_s;
        w->prompt_serial_s += n_chunks * one.serial.round_s;
        if (i == n_places / 2) w->prefill = one;
    }
}

/* Slots of the largest host part, buffers, then weights and KV: all ways that leave memory. */
static int list_ways(struct simulation *s, const struct placement_options *placement,
                     struct simulation_way *ways) {
    struct schedule_options o = schedule_options_of(s, 1, 1, s->o.depth);
    struct placement *host = placement_whole(&s->arena, s->items, placement, SIDE_CPU);
    double slot_bytes = schedule_slot_bytes(&s->arena, s->items, host, &o);
    int n = 0;
    for (size_t b = 0; b < COUNT_OF(chunks); b++)
        for (size_t k = 0; k < COUNT_OF(slots); k++) {
            struct simulation_way w = {.n_slots = slots[k], .n_batch = chunks[b]};
            if (s->o.n_slots >= 0) w.n_slots = s->o.n_slots;
            if (s->o.n_batch > 0) w.n_batch = s->o.n_batch;
            w.slot_bytes = slot_bytes;
            w.work_bytes = (double)schedule_work_bytes(s->items, w.n_batch);
            w.budget_bytes = s->vram_bytes - w.work_bytes - w.n_slots * slot_bytes;
            bool more_slots = k > 0 && (s->rule == TRANSFER_NONE || s->o.n_slots >= 0);
            bool longer = b > 0 && (s->o.n_batch > 0 || chunks[b - 1] >= s->o.n_prompt);
            if (!more_slots && !longer && w.budget_bytes >= (double)s->constraints.gpu_bytes)
                ways[n++] = w;
        }
    return n;
}

void simulation_time(struct simulation *s, struct simulation_way *w) {
    struct schedule_options o = schedule_options_of(s, w->n_slots, 1, s->o.depth);
    schedule_solve(&s->arena, s->items, w->placement, &o, &w->decode);
    time_prompt(s, w);
    w->request_s = w->prompt_s + SIMULATION_ANSWER * w->decode.transfer.result.round_s;
}

static void try_way(struct simulation *s, struct simulation_way *w) {
    simulation_time(s, w);
    if (!s->best.placement || w->request_s < s->best.request_s) s->best = *w;
}

static ats_status try_all(struct simulation *s) {
    struct simulation_way ways[COUNT_OF(chunks) * COUNT_OF(slots)];
    struct placement_options o =
        simulation_placement(s, s->o.n_batch > 0 ? s->o.n_batch : chunks[0]);
    int64_t budgets[COUNT_OF(ways)];
    struct placement *placements;
    int n = list_ways(s, &o, ways);
    if (n == 0)
        return s->constraints.gpu_bytes == 0
                   ? fail(ATS_BAD_ARGUMENT, "%.0f MiB do not hold the buffers of a round",
                          s->vram_bytes / 1048576)
                   : fail(ATS_BAD_ARGUMENT,
                          "what is told to be on the GPU, %.0f MiB, and the buffers of a round do "
                          "not fit into %.0f MiB",
                          (double)s->constraints.gpu_bytes / 1048576, s->vram_bytes / 1048576);
    for (int i = 0; i < n; i++)
        budgets[i] = (int64_t)ways[i].budget_bytes;
    s->placement_options = o;
    TRY(placement_solve(&s->arena, s->items, &o, budgets, n, &placements));
    for (int i = 0; i < n; i++) {
        ways[i].placement = &placements[i];
        try_way(s, &ways[i]);
    }
    return ATS_OK;
}

static void set_limits(struct simulation *s) {
    struct limit_problem p;
    double exchange = s->machine->link.kappa_x_s;
    limit_problem_of(&s->arena, s->items, 1, s->o.depth, &p);
    s->round = limit_round(&p, s->vram_bytes);
    s->blocks = limit_blocks(&p, s->vram_bytes, exchange);
    limit_problem_of(&s->arena, s->items, min_int(s->best.n_batch, s->o.n_prompt),
                     s->o.n_prompt / 2, &p);
    s->prompt = limit_prefill(&p, s->best.budget_bytes);
}

ats_status simulation_run(struct simulation *s, const ats_simulation *given) {
    TRY(read_options(s, given));
    TRY(open_model(s));
    TRY(open_machine(s));
    TRY(make_items(s));
    TRY(constraints_read(&s->arena, &s->o, s->file->arch, s->items, &s->constraints));
    TRY(try_all(s));
    set_limits(s);
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
    if (status == ATS_OK) {
        json_t *root = simulation_json(&s);
        *json = json_print(root, false);
        json_decref(root);
    }
    simulation_close(&s);
    return status;
}
