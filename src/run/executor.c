#include "run/executor.h"

#include <stdio.h>
#include <stdlib.h>
#include "base/arena.h"

#define MAX_DEVICES 4 /* a residual add of two partial sums has 2 inputs a device: STEP_MAX_IN */

struct executor {
    struct arena arena;
    const struct model *model;
    const struct plan *plan;
    struct executor_options o;
    struct program *program;
    struct backend *devices[MAX_DEVICES];
    int n_devices;
    bool *raw;                         /* (n_shards) stays as it is in the file's map */
    struct backend_weight **weights;   /* (n_shards) */
    struct backend_kv **kvs;           /* (n_kvs) */
    struct step *steps;                /* in the program's `order`; what segments borrow */
    struct backend_segment **segments; /* (n_segments) */
    void *exchange;
    struct executor_ledger ledger[MAX_DEVICES];
    uint64_t value[MAX_DEVICES];     /* timelines, before the current round */
    uint64_t submitted[MAX_DEVICES]; /* the last value that each was asked for */
    uint64_t per_round[MAX_DEVICES]; /* how far a round moves them: segments of the device */
};

/* ---- what a device must be ready for ---- */

static struct weight_source shard_source(const struct executor *e, int shard) {
    const struct program_shard *s = &e->program->shards[shard];
    const struct graph_weight *w = &e->model->graph->weights[s->weight];
    const struct dtype_info *type = dtype_info(w->dtype);
    struct weight_source source = {.name = w->name,
                                   .dtype = w->dtype,
                                   .n_rows = w->n_rows,
                                   .n_cols = w->n_cols,
                                   .n_experts = max_int(1, w->n_experts),
                                   .raw = e->raw && e->raw[shard]};
    source.data = model_weight_data(e->model, s->weight, &source.row_bytes);
    source.matrix_bytes = w->matrix_rows * source.row_bytes;
    if (s->axis == AXIS_ROWS) {
        source.data += s->begin * source.row_bytes;
        source.n_rows = s->end - s->begin;
    } else if (s->axis == AXIS_EXPERTS) {
        source.data = weight_matrix(&source, s->begin);
        source.n_experts = s->end - s->begin;
    } else {
        source.data += (int64_t)s->begin / type->block_elements * type->block_bytes;
        source.n_cols = s->end - s->begin;
    }
    return source;
}

static int64_t source_bytes(const struct weight_source *s) {
    return dtype_row_bytes(s->dtype, s->n_cols) * s->n_rows * s->n_experts;
}

static struct kv_layout kv_layout(const struct executor *e, const struct program_kv *kv) {
    const struct attention_params *a = &e->model->graph->ops[kv->op].p.attention;
    return (struct kv_layout){.type_k = e->o.type_k,
                              .type_v = e->o.type_v,
                              .n_kv_heads = kv->head_end - kv->head_begin,
                              .head_dim = a->head_dim,
                              .n_pages = e->o.n_pages};
}

static void take_experts(const struct graph *g, const struct graph_op *op,
                         struct backend_limits *l) {
    const struct experts_params *p = &op->p.experts;
    const int n_embd = g->weights[p->weights[EXPERT_GATE]].n_cols;
    l->max_cols = max_int(l->max_cols, max_int(n_embd, p->n_ff));
    l->max_experts = max_int(l->max_experts, p->n_experts);
    l->max_experts_used = max_int(l->max_experts_used, p->n_used);
    l->max_expert_cols = max_int(l->max_expert_cols, n_embd);
    l->max_expert_ff = max_int(l->max_expert_ff, p->n_ff);
    l->expert_floats |=
        p->math[EXPERT_GATE] == MATH_F32 || p->math[EXPERT_UP] == MATH_F32 || p->scale_input;
}

static struct backend_limits device_limits(const struct executor *e, int device) {
    const struct graph *g = e->model->graph;
    struct backend_limits l = {.n_tokens = e->o.n_tokens,
                               .n_rows = e->o.n_rows,
                               .n_ctx = e->o.n_ctx,
                               .local_bytes = e->program->local_bytes[device],
                               .exchange = e->exchange,
                               .exchange_bytes = e->program->exchange_bytes};
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        if (op->kind == OP_MATMUL) l.max_cols = max_int(l.max_cols, g->weights[op->weight].n_cols);
        if (op->kind == OP_EXPERTS) take_experts(g, op, &l);
        if (op->kind != OP_ATTENTION) continue;
        l.max_heads = max_int(l.max_heads, op->p.attention.n_heads);
        l.max_head_dim = max_int(l.max_head_dim, op->p.attention.head_dim);
    }
    return l;
}

static ats_status check_kv_types(const struct executor *e) {
    if (e->o.type_k != KV_Q8_0 && e->o.type_v != KV_Q8_0) return ATS_OK;
    int dim = device_limits(e, 0).max_head_dim;
    if (dim % 32 == 0) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "a q8_0 KV cache needs heads of a multiple of 32, not %d", dim);
}

/* Copies of weights are made up to this share of the memory; the rest stays in the file's map, so
 * that a model larger than memory still runs (house.md 4). */
#define COPIES_SHARE 0.7

static void count_weights(struct executor *e, int64_t limit) {
    const struct program *p = e->program;
    int64_t all = 0;
    for (int i = 0; i < p->n_shards; i++) {
        struct weight_source s = shard_source(e, i);
        struct backend *b = e->devices[p->shards[i].device];
        struct executor_ledger *ledger = &e->ledger[p->shards[i].device];
        int64_t copied = b->fn->weight_bytes(b, &s);
        e->raw[i] = all + copied > limit;
        if (e->raw[i]) copied = 0;
        all += copied;
        ledger->weight_bytes += copied;
        if (copied == 0) ledger->mapped_bytes += source_bytes(&s);
    }
}

/* Every byte before any is reserved. */
static void count_ledger(struct executor *e) {
    const struct program *p = e->program;
    int64_t left = e->o.host_bytes;
    for (int i = 0; i < p->n_kvs; i++) {
        struct kv_layout l = kv_layout(e, &p->kvs[i]);
        e->ledger[p->kvs[i].device].kv_bytes += (int64_t)kv_layout_bytes(&l);
    }
    for (int d = 0; d < e->n_devices; d++) {
        struct backend_limits limits = device_limits(e, d);
        e->ledger[d].work_bytes = e->devices[d]->fn->work_bytes(e->devices[d], &limits);
    }
    e->ledger[0].work_bytes += p->exchange_bytes;
    for (int d = 0; d < e->n_devices; d++)
        left -= e->ledger[d].kv_bytes + e->ledger[d].work_bytes;
    e->raw = ARENA_ARRAY(&e->arena, bool, p->n_shards);
    count_weights(e, min_i64(left, (int64_t)(COPIES_SHARE * (double)e->o.host_bytes)));
}

static double mib(int64_t bytes) {
    return (double)bytes / (1 << 20);
}

/* All devices are in host memory so far. What is mapped can be read again and does not count. */
static ats_status check_memory(const struct executor *e) {
    int64_t weights = 0, kv = 0, work = 0;
    for (int d = 0; d < e->n_devices; d++) {
        weights += e->ledger[d].weight_bytes;
        kv += e->ledger[d].kv_bytes;
        work += e->ledger[d].work_bytes;
    }
    if (weights + kv + work <= e->o.host_bytes) return ATS_OK;
    return fail(ATS_NO_MEMORY,
                "%.0f MiB of memory are free, but %.0f are needed: weights %.0f, KV cache of %d "
                "pages %.0f, work %.0f; a smaller context or KV type needs less",
                mib(e->o.host_bytes), mib(weights + kv + work), mib(weights), e->o.n_pages, mib(kv),
                mib(work));
}

/* ---- opening ---- */

static ats_status open_caches(struct executor *e) {
    const struct program *p = e->program;
    e->kvs = ARENA_ARRAY(&e->arena, struct backend_kv *, p->n_kvs);
    for (int i = 0; i < p->n_kvs; i++) {
        struct backend *b = e->devices[p->kvs[i].device];
        struct kv_layout l = kv_layout(e, &p->kvs[i]);
        TRY(b->fn->kv_open(b, &l, &e->kvs[i]));
    }
    return ATS_OK;
}

static ats_status reserve(struct executor *e) {
    struct backend *first = e->devices[0];
    TRY(first->fn->host_alloc(first, (size_t)e->program->exchange_bytes, &e->exchange));
    for (int d = 0; d < e->n_devices; d++) {
        struct backend_limits limits = device_limits(e, d);
        TRY(e->devices[d]->fn->reserve(e->devices[d], &limits));
    }
    return open_caches(e);
}

ats_status executor_open(const struct model *model, const struct plan *plan,
                         struct backend *const *devices, const struct executor_options *options,
                         struct executor **out) {
    *out = NULL;
    REQUIRE(plan->n_devices >= 1 && plan->n_devices <= MAX_DEVICES);
    struct executor *e = xcalloc(1, sizeof *e);
    e->model = model;
    e->plan = plan;
    e->o = *options;
    e->n_devices = plan->n_devices;
    for (int d = 0; d < e->n_devices; d++)
        e->devices[d] = devices[d];
    e->program = program_lower(&e->arena, model->graph, plan, options->n_tokens, options->n_rows);
    ats_status status = check_kv_types(e);
    if (status == ATS_OK) {
        count_ledger(e);
        status = check_memory(e);
    }
    if (status == ATS_OK) status = reserve(e);
    if (status != ATS_OK) {
        executor_close(e);
        return status;
    }
    *out = e;
    return ATS_OK;
}

void executor_close(struct executor *e) {
    if (!e) return;
    const struct program *p = e->program;
    for (int i = 0; e->segments && i < p->n_segments; i++) {
        struct backend *b = e->devices[p->segments[i].device];
        b->fn->segment_free(b, e->segments[i]);
    }
    for (int i = 0; e->weights && i < p->n_shards; i++) {
        struct backend *b = e->devices[p->shards[i].device];
        if (e->weights[i]) b->fn->weight_free(b, e->weights[i]);
    }
    for (int i = 0; e->kvs && i < p->n_kvs; i++) {
        struct backend *b = e->devices[p->kvs[i].device];
        b->fn->kv_close(b, e->kvs[i]);
    }
    if (e->exchange)
        e->devices[0]->fn->host_free(e->devices[0], e->exchange, (size_t)p->exchange_bytes);
    arena_free(&e->arena);
    free(e);
}

/* ---- loading ---- */

/* Copies the program's steps into submission order with their shards and caches filled in. */
static void bind_steps(struct executor *e) {
    const struct program *p = e->program;
    e->steps = ARENA_ARRAY(&e->arena, struct step, p->n_steps);
    for (int i = 0; i < p->n_steps; i++) {
        const struct program_step *s = &p->steps[p->order[i]];
        e->steps[i] = s->step;
        e->steps[i].weight = s->shard >= 0 ? e->weights[s->shard] : NULL;
        e->steps[i].bias = s->bias >= 0 ? e->weights[s->bias] : NULL;
        e->steps[i].kv = s->kv >= 0 ? e->kvs[s->kv] : NULL;
        for (int j = 0; j < N_EXPERT_WEIGHTS; j++) {
            int bias = s->expert_biases[j];
            e->steps[i].experts[j] = s->experts[j] >= 0 ? e->weights[s->experts[j]] : NULL;
            e->steps[i].expert_biases[j] = bias >= 0 ? e->weights[bias] : NULL;
        }
    }
}

static ats_status build_segments(struct executor *e) {
    const struct program *p = e->program;
    e->segments = ARENA_ARRAY(&e->arena, struct backend_segment *, p->n_segments);
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[i];
        struct backend *b = e->devices[s->device];
        e->per_round[s->device]++;
        TRY(b->fn->segment_build(b, e->steps + s->step_begin, s->step_end - s->step_begin,
                                 &e->segments[i]));
    }
    return ATS_OK;
}

/* Shards are loaded in batches of this size: all threads work on each, and what a batch was made
 * from can leave memory before the next one comes. */
#define BATCH_BYTES ((uint64_t)64 << 20)

/* Loads shards from *next on, at most a batch; adds their bytes to *done. */
static ats_status load_batch(struct executor *e, int *next, uint64_t *done) {
    const struct program *p = e->program;
    int first = *next;
    uint64_t stop = *done + BATCH_BYTES;
    for (; *next < p->n_shards && *done < stop; ++*next) {
        struct backend *b = e->devices[p->shards[*next].device];
        struct weight_source s = shard_source(e, *next);
        TRY(b->fn->weight_load(b, &s, &e->weights[*next]));
        *done += (uint64_t)source_bytes(&s);
    }
    for (int d = 0; d < e->n_devices; d++)
        TRY(e->devices[d]->fn->weights_ready(e->devices[d]));
    for (int i = first; i < *next; i++) {
        struct backend *b = e->devices[p->shards[i].device];
        struct weight_source s = shard_source(e, i);
        if (b->fn->weight_bytes(b, &s) > 0) model_weight_done(e->model, p->shards[i].weight);
    }
    return ATS_OK;
}

ats_status executor_load(struct executor *e, executor_progress_fn *progress, void *user) {
    const struct program *p = e->program;
    uint64_t done = 0, total = 0;
    for (int i = 0; i < p->n_shards; i++) {
        struct weight_source s = shard_source(e, i);
        total += (uint64_t)source_bytes(&s);
    }
    e->weights = ARENA_ARRAY(&e->arena, struct backend_weight *, p->n_shards);
    for (int next = 0;;) {
        if (progress && !progress(user, done, total))
            return fail(ATS_CANCELLED, "loading was cancelled");
        if (next == p->n_shards) break;
        TRY(load_batch(e, &next, &done));
    }
    bind_steps(e);
    return build_segments(e);
}

/* ---- running ---- */

static ats_status submit(struct executor *e, int segment, const struct round *round) {
    const struct program_segment *s = &e->program->segments[segment];
    struct backend_wait waits[MAX_DEVICES];
    for (int i = 0; i < s->n_waits; i++) {
        int other = s->waits[i].device;
        waits[i] = (struct backend_wait){e->devices[other],
                                         e->value[other] + (uint64_t)s->waits[i].ordinal};
    }
    struct backend *b = e->devices[s->device];
    uint64_t value = e->value[s->device] + (uint64_t)s->ordinal;
    TRY(b->fn->submit(b, e->segments[segment], round, waits, s->n_waits, value));
    e->submitted[s->device] = value;
    return ATS_OK;
}

/* Devices that run by themselves get all their segments first and wait for the others' values;
 * then this thread drives its own. */
static ats_status submit_all(struct executor *e, const struct round *round) {
    const struct program *p = e->program;
    for (int driven = 0; driven < 2; driven++)
        for (int i = 0; i < p->n_segments; i++)
            if (e->devices[p->segments[i].device]->driven == driven) TRY(submit(e, i, round));
    return ATS_OK;
}

ats_status executor_run(struct executor *e, const struct round *round, const float **logits) {
    const struct program *p = e->program;
    REQUIRE(round->n_tokens >= 1 && round->n_tokens <= e->o.n_tokens);
    REQUIRE(round->n_rows >= 0 && round->n_rows <= e->o.n_rows);
    ats_status status = submit_all(e, round);
    char text[256] = "";
    if (status != ATS_OK) snprintf(text, sizeof text, "%s", error_text());
    for (int d = 0; d < e->n_devices; d++) { /* all of them: what runs still reads the round */
        e->value[d] += e->per_round[d];
        ats_status waited = e->devices[d]->fn->wait(e->devices[d], e->submitted[d]);
        if (waited == ATS_OK || status != ATS_OK) continue;
        status = waited;
        snprintf(text, sizeof text, "%s", error_text());
    }
    if (status != ATS_OK) return fail(status, "%s", text);
    *logits = (const float *)(const void *)((const uint8_t *)e->exchange + p->logits_offset_bytes);
    return ATS_OK;
}

void executor_copy_page(struct executor *e, int src, int dst) {
    for (int i = 0; i < e->program->n_kvs; i++) {
        struct backend *b = e->devices[e->program->kvs[i].device];
        b->fn->kv_copy_page(b, e->kvs[i], src, dst);
    }
}

void executor_ledger(const struct executor *e, int device, struct executor_ledger *out) {
    *out = e->ledger[device];
}

const struct program *executor_program(const struct executor *e) {
    return e->program;
}
