#include "run/rehearse.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "run/executor.h"
#include "run/kv.h"
#include "run/state.h"
#include "run/trace.h"

enum { CPU, GPU, N_DEVICES };
/* As placement_choices.c has it: of so many experts the number that a part has is chance. */
enum { MAX_DRAWN = 32 };
enum { WARM_ROUNDS = 2, EXPERT_ROUNDS = 16 };

struct rehearsing {
    struct arena arena;
    const struct model *model;
    const struct items *items;
    const struct rehearsal_options *o;
    int *item_of_op; /* (n_ops) -1: none */
    struct backend_machine machine;
    struct backend *devices[N_DEVICES];
    struct plan *plan;
    struct executor *executor;
    struct trace *trace;
    int32_t *tokens, *positions, *pages; /* pages: (n_ctx / 64 + 2) */
    int round;
};

struct rehearsal_options rehearsal_options_default(const struct graph *g, int n_tokens, int depth,
                                                   int n_ctx) {
    struct rehearsal_options o = {.n_tokens = n_tokens,
                                  .depth = depth,
                                  .n_ctx = n_ctx,
                                  .kv_k = DTYPE_F16,
                                  .kv_v = DTYPE_F16,
                                  .n_warm = WARM_ROUNDS,
                                  .n_rounds = 1};
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == OP_EXPERTS) o.n_rounds = EXPERT_ROUNDS;
    return o;
}

/* ---- what a step costs ---- */

/* Of the experts that a round's tokens use, the share before expert e, expected. */
static double use_before(const struct item *item, double n_tokens, int e, double in_use) {
    const struct item_experts *x = item->experts;
    return items_experts_in_use(x->popularity, e, n_tokens, x->repeat_rate) / in_use;
}

/* The share of the experts in use that a part has: drawn for each of them, the same for all parts
 * of the operator in a round. */
static double experts_share(const struct rehearsing *r, const struct item *item,
                            const struct step *step, double n_tokens, double in_use) {
    double begin = use_before(item, n_tokens, step->expert_begin, in_use);
    double end = use_before(item, n_tokens, step->expert_end, in_use);
    int n = (int)fmin(floor(in_use + 0.5), MAX_DRAWN + 1), n_hits = 0;
    struct rng rng;
    if (n > MAX_DRAWN || in_use >= ITEMS_MOST_EXPERTS * item->n_experts) return end - begin;
    rng_seed(&rng, (uint64_t)r->round << 32 | (uint64_t)item->op);
    for (int i = 0; i < n; i++) {
        double u = rng_unit(&rng);
        n_hits += u >= begin && u < end;
    }
    return (double)n_hits / n;
}

static double item_s(const struct rehearsing *r, int index, enum side side, const struct step *step,
                     const struct round *round) {
    const struct items *items = r->items;
    const struct item *item = &items->items[index];
    const struct graph_op *op = step->op;
    double n_tokens = step->rows ? round->n_rows : round->n_tokens, share = 1;
    if (op->kind == OP_EXPERTS) {
        double in_use = items_in_use(item, n_tokens);
        if (step->expert_end - step->expert_begin < item->n_experts)
            share = experts_share(r, item, step, n_tokens, in_use);
        double s = items_experts_time(items, index, side, n_tokens, in_use, share);
        return share > 0 ? s - items_others_time(items, index, side, share) : 0;
    }
    if (op->kind == OP_ATTENTION)
        share = (double)(step->head_end - step->head_begin) / op->p.attention.n_kv_heads;
    else if (op->kind == OP_MATMUL)
        share = (double)(step->end - step->begin) * (step->in_end - step->in_begin) /
                ((double)item->key.dims[0] * (double)item->key.dims[1]);
    else
        share = (double)(step->end - step->begin) / r->model->graph->values[op->out].width;
    return items_time(items, index, side, n_tokens, round->positions[0], share) -
           items_others_time(items, index, side, share); /* steps of their own here */
}

/* As items.h counts: what has no home takes an operator's start. Copies take their bytes, which
 * the world counts; a gather is none of the items. */
static double step_s(const void *user, bool gpu, const struct step *step,
                     const struct round *round) {
    const struct rehearsing *r = user;
    enum side side = gpu ? SIDE_GPU : SIDE_CPU;
    if (step->kind == STEP_COPY) return 0;
    if (step->kind == STEP_SUM) return r->items->profile->op_s[side];
    if (step->op->kind == OP_EMBED) return 0;
    int op = (int)(step->op - r->model->graph->ops), item = r->item_of_op[op];
    return item < 0 ? items_start_time(r->items, op, side) : item_s(r, item, side, step, round);
}

static double speed(const void *user, enum machine_resource resource, double now_s,
                    double *until_s) {
    static const enum load_resource resources[] = {
        [MACHINE_CPU] = LOAD_CPU, [MACHINE_GPU] = LOAD_GPU, [MACHINE_LINK] = LOAD_LINK};
    const struct load *load = ((const struct rehearsing *)user)->o->load;
    *until_s = load_next_change(load, now_s);
    return 1 / load_at(load, now_s).slow[resources[resource]];
}

/* ---- the machine ---- */

static void set_machine(struct rehearsing *r) {
    const struct profile *p = r->items->profile;
    const struct profile_interference *f = &p->interference;
    r->machine = (struct backend_machine){.user = r,
                                          .step_s = step_s,
                                          .speed = r->o->load ? speed : NULL,
                                          .copy_bytes = p->shared ? 0 : p->link.up_pinned,
                                          .activation_up = p->link.activation_up,
                                          .activation_down = p->link.activation_down,
                                          .kappa_up_s = p->link.kappa_up_s,
                                          .kappa_down_s = p->link.kappa_down_s,
                                          .kappa_x_s = p->link.kappa_x_s,
                                          .cut_s = p->link.cut_s,
                                          .cpu_speed_copying = f->cpu_speed_copying,
                                          .copy_speed_cpu = f->copy_speed_cpu,
                                          .cpu_speed_gpu = f->cpu_speed_gpu,
                                          .gpu_speed_cpu = f->gpu_speed_cpu,
                                          .gpu_bytes = p->shared ? 0 : p->gpu_bytes,
                                          .host_bytes = p->host_bytes,
                                          .time_only = true};
    r->item_of_op = ARENA_ARRAY(&r->arena, int, r->model->graph->n_ops);
    for (int i = 0; i < r->model->graph->n_ops; i++)
        r->item_of_op[i] = -1;
    for (int i = 0; i < r->items->n_items; i++)
        r->item_of_op[r->items->items[i].op] = i;
}

/* Nothing is streamed where the GPU reads the host's memory. */
static void set_plan(struct rehearsing *r, const struct plan *from) {
    plan_devices in_place = r->items->profile->shared ? 1U << GPU : 0;
    r->plan = plan_in_place(&r->arena, r->model->graph, from, in_place);
}

static ats_status check_plan(const struct rehearsing *r) {
    const struct graph *g = r->model->graph;
    plan_devices streaming = r->items->profile->shared ? 0 : 1U << GPU;
    if (!r->plan->prompts) return plan_check(g, r->plan, 1, streaming);
    return plan_check_pair(g, r->plan, r->plan->prompts, 1, streaming, 1U << CPU);
}

static enum kv_type kv_type_of(enum dtype type) {
    return type == DTYPE_F32 ? KV_F32 : type == DTYPE_Q8_0 ? KV_Q8_0 : KV_F16;
}

static ats_status open_executor(struct rehearsing *r) {
    static const char *const names[N_DEVICES] = {[CPU] = "sim:cpu", [GPU] = "sim:gpu"};
    const struct graph *g = r->model->graph;
    const struct rehearsal_options *o = r->o;
    struct executor_options eo = {.n_tokens = o->n_tokens,
                                  .n_rows = 1,
                                  .n_ctx = o->n_ctx,
                                  .n_states = graph_has_state(g) ? state_slots_needed(1, true) : 0,
                                  .type_k = kv_type_of(o->kv_k),
                                  .type_v = kv_type_of(o->kv_v),
                                  .host_bytes = r->machine.host_bytes};
    for (int c = 0; c < g->n_kv_classes; c++)
        eo.n_pages[c] = kv_pages_needed(g->kv_windows[c], o->n_ctx, 1, o->n_tokens);
    TRY(check_plan(r));
    for (int d = 0; d < N_DEVICES; d++) {
        const struct backend_options bo = {.n_threads = 1,
                                           .n_threads_batch = 1,
                                           .cpu_isa_mask = ~0U,
                                           .peer = d ? r->devices[0] : NULL,
                                           .machine = &r->machine};
        TRY(backend_open(names[d], &bo, &r->devices[d]));
    }
    TRY(executor_open(r->model, r->plan, r->devices, &eo, &r->executor));
    return executor_load(r->executor, NULL, NULL);
}

static ats_status open_trace(struct rehearsing *r) {
    if (!r->o->trace) return ATS_OK;
    TRY(trace_open(r->o->trace, &r->trace));
    return trace_programs(r->trace, r->model->graph, executor_programs(r->executor), r->devices);
}

static void close_all(struct rehearsing *r) {
    trace_close(r->trace);
    executor_close(r->executor);
    for (int d = N_DEVICES - 1; d >= 0; d--)
        backend_close(r->devices[d]);
    arena_free(&r->arena);
}

/* ---- rounds ---- */

static double now_s(const struct rehearsing *r) {
    return (double)r->devices[CPU]->fn->now(r->devices[CPU]) / 1e9;
}

/* Rounds of decode follow each other; chunks all stand where the one that is asked for does. */
static ats_status run_round(struct rehearsing *r, int index) {
    const struct rehearsal_options *o = r->o;
    int position = o->depth + (o->n_tokens == 1 ? index % max_int(1, o->n_ctx - o->depth) : 0);
    const int32_t row = o->n_tokens - 1;
    struct round_run run = {.n_tokens = o->n_tokens,
                            .position = position,
                            .state_in = graph_has_state(r->model->graph) ? 0 : STATE_NONE};
    const float *logits;
    for (int c = 0; c < KV_MAX_CLASSES; c++)
        run.pages[c] = r->pages;
    for (int i = 0; i < o->n_tokens; i++)
        r->positions[i] = position + i;
    const struct round round = {.n_tokens = o->n_tokens,
                                .tokens = r->tokens,
                                .positions = r->positions,
                                .runs = &run,
                                .n_runs = 1,
                                .rows = &row,
                                .n_rows = 1};
    r->round = index;
    bool traced = r->trace && index >= o->n_warm;
    if (traced) executor_set_timed(r->executor, true);
    TRY(executor_run(r->executor, &round, &logits));
    return traced ? trace_round(r->trace, &round, executor_times(r->executor)) : ATS_OK;
}

static ats_status run_all(struct rehearsing *r, struct rehearsal *out) {
    const struct programs *programs = executor_programs(r->executor);
    const struct program *p = programs->at[programs_of_round(programs, r->o->n_tokens)];
    struct executor_ledger ledger;
    r->tokens = ARENA_ARRAY(&r->arena, int32_t, r->o->n_tokens);
    r->positions = ARENA_ARRAY(&r->arena, int32_t, r->o->n_tokens);
    r->pages = ARENA_ARRAY(&r->arena, int32_t, (r->o->n_ctx >> KV_PAGE_TOKENS_LOG2) + 2);
    for (int i = 0; i < r->o->n_warm; i++)
        TRY(run_round(r, i));
    out->first_s = now_s(r);
    for (int i = 0; i < r->o->n_rounds; i++)
        TRY(run_round(r, r->o->n_warm + i));
    out->last_s = now_s(r);
    out->round_s = (out->last_s - out->first_s) / r->o->n_rounds;
    out->n_segments = p->n_segments;
    out->n_transfers = p->n_transfers;
    out->n_copies = p->n_copies;
    executor_ledger(r->executor, GPU, &ledger);
    out->slot_bytes = ledger.slot_bytes;
    return ATS_OK;
}

ats_status rehearse(const struct model *model, const struct items *items, const struct plan *plan,
                    const struct rehearsal_options *o, struct rehearsal *out) {
    struct rehearsing r = {.model = model, .items = items, .o = o};
    REQUIRE(plan->n_devices == N_DEVICES && o->n_rounds >= 1 && o->n_tokens >= 1);
    *out = (struct rehearsal){0};
    set_machine(&r);
    set_plan(&r, plan);
    ats_status status = open_executor(&r);
    if (status == ATS_OK) status = open_trace(&r);
    if (status == ATS_OK) status = run_all(&r, out);
    close_all(&r);
    return status;
}
