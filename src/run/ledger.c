#include "run/ledger.h"

/* Copies of weights are made up to this share of the memory; the rest stays in the file's map, so
 * that a model larger than memory still runs (house.md 4). */
#define COPIES_SHARE 0.7

/* ---- what stands where ---- */

struct weight_source shard_source(const struct model *model, const struct program_shard *shard,
                                  bool raw) {
    const struct graph_weight *w = &model->graph->weights[shard->weight];
    const struct dtype_info *type = dtype_info(w->dtype);
    struct weight_source source = {.name = w->name,
                                   .dtype = w->dtype,
                                   .n_rows = w->n_rows,
                                   .n_cols = w->n_cols,
                                   .n_experts = max_int(1, w->n_experts),
                                   .raw = raw,
                                   .streamed = shard->transfer >= 0};
    source.data = model_weight_data(model, shard->weight, &source.row_bytes);
    source.matrices = model_weight_matrices(model, shard->weight);
    source.matrix_bytes = w->matrix_rows * source.row_bytes;
    int64_t offset = 0;
    if (shard->axis == AXIS_ROWS) {
        offset = shard->begin * source.row_bytes;
        source.n_rows = shard->end - shard->begin;
    } else if (shard->axis == AXIS_EXPERTS) {
        offset = shard->begin *
                 (source.matrix_bytes ? source.matrix_bytes : source.n_rows * source.row_bytes);
        source.n_experts = shard->end - shard->begin;
        if (source.matrices) source.matrices += shard->begin;
    } else {
        offset = (int64_t)shard->begin / type->block_elements * type->block_bytes;
        source.n_cols = shard->end - shard->begin;
    }
    REQUIRE(!source.matrices || shard->axis == AXIS_EXPERTS || offset == 0); /* cut by experts */
    if (source.matrices)
        source.data = source.matrices[0];
    else if (source.data)
        source.data += offset;
    return source;
}

struct kv_layout program_kv_layout(const struct model *model, const struct program_kv *kv,
                                   const struct executor_options *options) {
    const struct attention_params *a = &model->graph->ops[kv->op].p.attention;
    return (struct kv_layout){.type_k = options->type_k,
                              .type_v = options->type_v,
                              .n_kv_heads = kv->head_end - kv->head_begin,
                              .head_dim = a->head_dim,
                              .n_pages = options->n_pages[a->kv_class]};
}

struct state_layout program_state_layout(const struct model *model,
                                         const struct program_state *state,
                                         const struct executor_options *options) {
    const struct graph_op *op = &model->graph->ops[state->op];
    return (struct state_layout){op_state_floats(op, state->begin, state->end), options->n_states};
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

struct backend_limits device_limits(const struct model *model, const struct programs *programs,
                                    const struct executor_options *options, int device,
                                    void *exchange) {
    const struct graph *g = model->graph;
    struct backend_limits l = {.n_tokens = options->n_tokens,
                               .n_rows = options->n_rows,
                               .n_ctx = options->n_ctx,
                               .n_kv_classes = g->n_kv_classes,
                               .local_bytes = programs->local_bytes[device],
                               .exchange = exchange,
                               .exchange_bytes = programs->exchange_bytes,
                               .n_slots = programs->n_slots[device]};
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

/* ---- counting ---- */

int64_t ledger_limit_bytes(const struct backend_memory *m) {
    if (!m->measured) return m->total_bytes;
    return max_i64(0, m->free_bytes - backend_headroom_bytes(m->total_bytes));
}

/* Whose copies are given up when memory is short: a GPU cannot read the file's map. */
static bool may_stay_mapped(const struct backend *b) {
    return !b->gpu;
}

/* Holdings of either kind of device; copies of processors' weights are made up to *left bytes. */
static void count_weights(const struct model *model, const struct programs *p,
                          struct backend *const *devices, bool mappable, int64_t *left,
                          struct ledger *l) {
    for (int i = 0; i < p->n_holdings; i++) {
        const struct program_shard *h = &p->holdings[i];
        struct backend *b = devices[h->device];
        struct executor_ledger *line = &l->devices[h->device];
        struct weight_source s = shard_source(model, h, false);
        if (holding_is_home(h) || may_stay_mapped(b) != mappable) continue;
        int64_t copied = b->fn->weight_bytes(b, &s);
        l->raw[i] = mappable && copied > *left;
        if (l->raw[i]) copied = 0;
        if (line->memory.host) *left -= copied;
        line->weight_bytes += copied;
        if (copied == 0) line->mapped_bytes += weight_source_bytes(&s);
    }
}

static void count_homes(const struct model *model, const struct programs *p,
                        struct backend *const *devices, struct ledger *l) {
    for (int i = 0; i < p->n_holdings; i++) {
        const struct program_shard *h = &p->holdings[i];
        if (!holding_is_home(h)) continue;
        struct weight_source source = shard_source(model, h, false);
        struct backend *b = devices[h->device];
        struct executor_ledger *line = &l->devices[h->device];
        *(b->pins ? &line->streamed_bytes : &line->pageable_bytes) +=
            b->fn->weight_bytes(b, &source);
    }
}

/* Streamed shards stand in their slot one after the other, and a slot holds the largest lot. */
static void place_in_slots(struct arena *arena, const struct model *model, const struct program *p,
                           struct backend *const *devices, int64_t *slot_offset, struct ledger *l) {
    int64_t *used = ARENA_ARRAY(arena, int64_t, p->n_transfers);
    for (int i = 0; i < p->n_shards; i++) {
        const struct program_shard *s = &p->shards[i];
        if (s->transfer < 0) continue;
        struct weight_source source = shard_source(model, s, false);
        struct backend *b = devices[s->device];
        slot_offset[i] = used[s->transfer];
        used[s->transfer] +=
            (int64_t)round_up((size_t)b->fn->weight_bytes(b, &source), WEIGHT_ALIGN);
        l->slot_bytes[s->device] = max_i64(l->slot_bytes[s->device], used[s->transfer]);
    }
}

static void count_slots(struct arena *arena, const struct model *model, const struct programs *p,
                        struct backend *const *devices, struct ledger *l) {
    for (int k = 0; k < p->n; k++) {
        l->slot_offset[k] = ARENA_ARRAY(arena, int64_t, p->at[k]->n_shards);
        place_in_slots(arena, model, p->at[k], devices, l->slot_offset[k], l);
    }
    for (int d = 0; d < l->n_devices; d++) {
        l->devices[d].slot_bytes = p->n_slots[d] * l->slot_bytes[d];
        if (devices[d]->stages) l->devices[d].pinned_bytes += l->devices[d].slot_bytes;
    }
}

static void count_caches(const struct model *model, const struct program *p,
                         const struct executor_options *options, struct ledger *l) {
    for (int i = 0; i < p->n_kvs; i++) {
        struct kv_layout layout = program_kv_layout(model, &p->kvs[i], options);
        l->devices[p->kvs[i].device].kv_bytes += (int64_t)kv_layout_bytes(&layout);
    }
    for (int i = 0; i < p->n_states; i++) {
        struct state_layout layout = program_state_layout(model, &p->states[i], options);
        l->devices[p->states[i].device].state_bytes += 4 * layout.n_floats * layout.n_slots;
    }
}

void ledger_count(struct arena *arena, const struct model *model, const struct programs *programs,
                  struct backend *const *devices, const struct executor_options *options,
                  struct ledger *out) {
    *out = (struct ledger){.n_devices = programs->at[0]->n_devices,
                           .host_limit_bytes = options->host_bytes,
                           .n_ctx = options->n_ctx,
                           .raw = ARENA_ARRAY(arena, bool, programs->n_holdings)};
    for (int d = 0; d < out->n_devices; d++) {
        struct backend_limits limits = device_limits(model, programs, options, d, NULL);
        struct executor_ledger *line = &out->devices[d];
        devices[d]->fn->memory(devices[d], &line->memory);
        line->limit_bytes = ledger_limit_bytes(&line->memory);
        if (options->device_bytes[d])
            line->limit_bytes = min_i64(line->limit_bytes, options->device_bytes[d]);
        line->work_bytes = devices[d]->fn->work_bytes(devices[d], &limits);
        line->pinned_bytes = devices[d]->fn->pinned_bytes(devices[d], &limits);
    }
    out->devices[0].pinned_bytes += programs->exchange_bytes; /* it allocates it */
    count_caches(model, programs->at[0], options, out);
    count_homes(model, programs, devices, out);
    count_slots(arena, model, programs, devices, out);
    int64_t left = options->host_bytes;
    for (int d = 0; d < out->n_devices; d++) {
        const struct executor_ledger *line = &out->devices[d];
        left -= ledger_host_bytes(line) + (line->memory.host ? ledger_own_bytes(line) : 0);
    }
    count_weights(model, programs, devices, false, &left, out);
    left = min_i64(left, (int64_t)(COPIES_SHARE * (double)options->host_bytes));
    count_weights(model, programs, devices, true, &left, out);
    for (int d = 0; d < out->n_devices; d++) {
        const struct executor_ledger *line = &out->devices[d];
        out->host_bytes +=
            ledger_host_bytes(line) + (line->memory.host ? ledger_own_bytes(line) : 0);
    }
}

/* ---- checking ---- */

ats_status kv_types_check(const struct graph *g, const struct executor_options *options) {
    if (options->type_k != KV_Q8_0 && options->type_v != KV_Q8_0) return ATS_OK;
    for (int i = 0; i < g->n_ops; i++) {
        int dim = g->ops[i].kind == OP_ATTENTION ? g->ops[i].p.attention.head_dim : 0;
        if (dim % 32)
            return fail(ATS_UNSUPPORTED, "a q8_0 KV cache needs heads of a multiple of 32, not %d",
                        dim);
    }
    return ATS_OK;
}

/* A device that keeps nothing is not refused its buffers: no plan has less on it. */
static ats_status check_device(const struct executor_ledger *l, const char *name, int n_ctx) {
    int64_t needed = ledger_own_bytes(l);
    if (needed <= l->limit_bytes || ledger_kept_bytes(l) == 0) return ATS_OK;
    return fail(
        ATS_NO_MEMORY,
        "%s: %.0f MiB of its memory may be used (%.0f of %.0f are free), but %.0f are "
        "needed: weights %.0f, KV cache for contexts of %d %.0f, recurrent state %.0f, work and "
        "slots %.0f; fewer layers on it, a smaller context or KV type need less",
        name, ledger_mib(l->limit_bytes), ledger_mib(l->memory.free_bytes),
        ledger_mib(l->memory.total_bytes), ledger_mib(needed), ledger_mib(l->weight_bytes), n_ctx,
        ledger_mib(l->kv_bytes), ledger_mib(l->state_bytes),
        ledger_mib(l->work_bytes + l->slot_bytes));
}

static ats_status check_host(const struct ledger *l) {
    int64_t weights = 0, kv = 0, state = 0, work = 0;
    for (int d = 0; d < l->n_devices; d++) {
        const struct executor_ledger *line = &l->devices[d];
        work += line->pinned_bytes;
        weights += line->streamed_bytes + line->pageable_bytes;
        if (!line->memory.host) continue;
        weights += line->weight_bytes;
        kv += line->kv_bytes;
        state += line->state_bytes;
        work += line->work_bytes + line->slot_bytes;
    }
    if (l->host_bytes <= l->host_limit_bytes) return ATS_OK;
    return fail(ATS_NO_MEMORY,
                "%.0f MiB of memory are free, but %.0f are needed: weights %.0f, KV cache for "
                "contexts of %d %.0f, recurrent state %.0f, work %.0f; a smaller context or KV "
                "type needs less",
                ledger_mib(l->host_limit_bytes), ledger_mib(l->host_bytes), ledger_mib(weights),
                l->n_ctx, ledger_mib(kv), ledger_mib(state), ledger_mib(work));
}

ats_status ledger_check(const struct ledger *l, struct backend *const *devices) {
    TRY(check_host(l));
    for (int d = 0; d < l->n_devices; d++)
        if (devices[d]->gpu) TRY(check_device(&l->devices[d], devices[d]->name, l->n_ctx));
    return ATS_OK;
}
