#include "plan/items.h"

#include <math.h>
#include <string.h>
#include "model/fold.h"
#include "plan/names.h"

enum { KV_PAGE = 64 }; /* tokens; house.md 6 */
enum { FINE_CELLS = 2048, FINE_ALIGN = 4096 };
static const int64_t quantum_default = 1 << 20, small_model = INT64_C(2) << 30;

struct items_options items_options_default(void) {
    return (struct items_options){.n_ctx = 4096,
                                  .n_seqs = 1,
                                  .n_batch = 512,
                                  .kv_k = DTYPE_F16,
                                  .kv_v = DTYPE_F16,
                                  .repeat_rate = 0.4};
}

struct maker {
    struct arena *arena;
    const struct graph *g;
    const struct items_options *o;
    struct items *out;
    int *item_of_op; /* (n_ops) -1: none */
    int *n_readers;  /* (n_values) */
    int first_op;    /* of the operators that were started together */
};

const char *items_name(const struct items *items, int item) {
    return items->names[items->items[item].op];
}

/* ---- sizes ---- */

static int64_t matrix_bytes(const struct maker *m, int weight) {
    const struct graph_weight *w = &m->g->weights[weight];
    int64_t one = m->o->matrix_bytes ? m->o->matrix_bytes(w->dtype, w->n_rows, w->n_cols)
                                     : dtype_row_bytes(w->dtype, w->n_cols) * w->n_rows;
    return one * (w->n_experts > 0 ? w->n_experts : 1);
}

/* Tokens of cache that one sequence reserves: all, or a window, a batch and the page borders. */
static int64_t kv_tokens(const struct items_options *o, int window) {
    int64_t pages = (o->n_ctx + KV_PAGE - 1) / KV_PAGE;
    if (window > 0) pages = min_i64(pages, (window - 1 + o->n_batch + KV_PAGE - 1) / KV_PAGE + 1);
    return pages * KV_PAGE;
}

static int64_t kv_bytes(const struct maker *m, const struct attention_params *p) {
    int64_t row =
        dtype_row_bytes(m->o->kv_k, p->head_dim) + dtype_row_bytes(m->o->kv_v, p->head_dim);
    return kv_tokens(m->o, p->window) * m->o->n_seqs * p->n_kv_heads * row;
}

/* Of a sequence. */
static int64_t state_bytes(const struct maker *m, const struct graph_op *op) {
    enum axis axis = op_has_axis(op, AXIS_HEADS) ? AXIS_HEADS : AXIS_ROWS;
    return 4 * op_state_floats(op, 0, op_axis_length(m->g, op, axis));
}

static int n_states(const struct items_options *o) {
    return o->n_states > 0 ? o->n_states : o->n_seqs;
}

/* The tensors of an item, each of which is rounded up to the grid by itself. */
static int item_tensors(const struct maker *m, const struct graph_op *op, int64_t *bytes) {
    int n = 0;
    if (op->kind == OP_EXPERTS)
        for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
            bytes[n++] = matrix_bytes(m, op->p.experts.weights[i]);
    else if (op->kind == OP_MATMUL) /* sinks, filters, decays are too small to count */
        bytes[n++] = matrix_bytes(m, op->weight);
    return n;
}

static int quanta(int64_t bytes, int64_t quantum) {
    return (int)((bytes + quantum - 1) / quantum);
}

static void set_sizes(const struct maker *m) {
    struct items *out = m->out;
    int64_t total = 0, tensors[N_EXPERT_WEIGHTS];
    for (int i = 0; i < out->n_items; i++) {
        struct item *item = &out->items[i];
        const struct graph_op *op = &m->g->ops[item->op];
        int n = item_tensors(m, op, tensors);
        for (int t = 0; t < n; t++)
            item->weight_bytes += tensors[t];
        if (op->kind == OP_ATTENTION) item->kv_bytes = kv_bytes(m, &op->p.attention);
        if (op_has_state(op)) item->kv_bytes = state_bytes(m, op) * n_states(m->o);
        total += item->weight_bytes + item->kv_bytes;
    }
    /* by the model, not by the budget: a quantum that depends on it is not monotone */
    out->quantum_bytes = m->o->quantum_bytes;
    if (out->quantum_bytes <= 0)
        out->quantum_bytes = total >= small_model
                                 ? quantum_default
                                 : (int64_t)round_up((size_t)(total / FINE_CELLS) + 1, FINE_ALIGN);
    for (int i = 0; i < out->n_items; i++) {
        struct item *item = &out->items[i];
        int n = item_tensors(m, &m->g->ops[item->op], tensors);
        for (int t = 0; t < n; t++)
            item->quanta += quanta(tensors[t], out->quantum_bytes);
        item->quanta += quanta(item->kv_bytes, out->quantum_bytes);
        out->total_quanta += item->quanta;
    }
}

int items_share_quanta(const struct items *items, int block, int n_units) {
    const struct items_block *b = &items->blocks[block];
    int64_t bytes = 0;
    for (int i = b->first; i < b->first + b->n; i++) {
        int64_t all = items->items[i].weight_bytes + items->items[i].kv_bytes;
        bytes += (all / b->n_units) * n_units +
                 (all % b->n_units * n_units + b->n_units - 1) / b->n_units;
    }
    return quanta(bytes, items->quantum_bytes);
}

/* ---- keys ---- */

static void matmul_key(const struct maker *m, const struct graph_op *op, struct profile_key *key) {
    const struct graph_weight *w = &m->g->weights[op->weight];
    key->types[key->n_types++] = w->dtype;
    key->math = op->p.matmul.math;
    key->axis = op->unit_elements > 0 ? op->unit_axis : AXIS_ROWS;
    key->dims[key->n_dims++] = w->n_rows;
    key->dims[key->n_dims++] = w->n_cols;
}

static void attention_key(const struct maker *m, const struct graph_op *op,
                          struct profile_key *key) {
    const struct attention_params *p = &op->p.attention;
    key->types[key->n_types++] = m->o->kv_k;
    key->types[key->n_types++] = m->o->kv_v;
    key->axis = AXIS_HEADS;
    key->dims[key->n_dims++] = p->n_heads;
    key->dims[key->n_dims++] = p->n_kv_heads;
    key->dims[key->n_dims++] = p->head_dim;
}

static void experts_key(const struct maker *m, const struct graph_op *op, struct profile_key *key) {
    const struct experts_params *p = &op->p.experts;
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        key->types[key->n_types++] = m->g->weights[p->weights[i]].dtype;
    key->math = p->math[EXPERT_GATE];
    key->axis = AXIS_EXPERTS;
    key->dims[key->n_dims++] = p->n_experts;
    key->dims[key->n_dims++] = p->n_used;
    key->dims[key->n_dims++] = p->n_ff;
    key->dims[key->n_dims++] = m->g->values[op->out].width;
}

static void set_key(const struct maker *m, struct item *item) {
    const struct graph_op *op = &m->g->ops[item->op];
    struct profile_key *key = &item->key;
    key->op = op_kind_name(op->kind);
    if (op->kind == OP_MATMUL)
        matmul_key(m, op, key);
    else if (op->kind == OP_ATTENTION)
        attention_key(m, op, key);
    else if (op->kind == OP_EXPERTS)
        experts_key(m, op, key);
    else {
        key->axis = AXIS_ROWS;
        key->dims[key->n_dims++] = m->g->values[op->out].width;
        key->dims[key->n_dims++] = op_has_state(op) ? state_bytes(m, op) : 0;
    }
}

/* Of the layer before, if it has the same. */
static const struct item_experts *shared_experts(const struct maker *m, const double *p, int n) {
    for (int i = m->out->n_items - 1; i >= 0; i--) {
        const struct item *item = &m->out->items[i];
        if (item->n_experts == 0) continue;
        bool same = item->n_experts == n && item->experts &&
                    memcmp(item->experts->popularity, p, sizeof *p * (size_t)n) == 0;
        if (same) return item->experts;
        if (item->experts) return NULL;
    }
    return NULL;
}

static void set_popularity(const struct maker *m, struct item *item) {
    const struct experts_params *p = &m->g->ops[item->op].p.experts;
    item->n_experts = p->n_experts;
    item->n_used = p->n_used;
    double *to = ARENA_ARRAY(m->arena, double, p->n_experts), sum = 0;
    const double *from = m->o->popularity ? m->o->popularity[item->layer] : NULL;
    for (int e = 0; e < p->n_experts; e++)
        sum += to[e] = from ? fmax(from[e], 0) : 1;
    for (int e = 0; e < p->n_experts; e++)
        to[e] = sum > 0 ? fmin(to[e] * p->n_used / sum, 1) : (double)p->n_used / p->n_experts;
    item->experts = shared_experts(m, to, p->n_experts);
    if (!item->experts)
        item->experts = item_experts_make(m->arena, to, p->n_experts, m->o->repeat_rate);
}

/* ---- who needs what ---- */

/* Adds the items of this block that make `value`, through operators without a home; whatever comes
 * from outside the block is the entry. Depth is bounded by the few such operators of a block. */
static void add_sources(const struct maker *m, const struct items_block *block, struct item *item,
                        int value) {
    int producer = m->g->values[value].producer;
    int begin = m->out->items[block->first].op;
    if (block->graph_block >= 0) begin = m->g->blocks[block->graph_block].op_begin;
    if (producer < begin) {
        item->from_entry = true;
        return;
    }
    const struct graph_op *op = &m->g->ops[producer];
    int source = m->item_of_op[producer];
    if (source < 0) {
        for (int i = 0; i < op->n_in; i++)
            add_sources(m, block, item, op->in[i]);
        return;
    }
    for (int i = 0; i < item->n_sources; i++)
        if (item->sources[i].item == source) return;
    REQUIRE(item->n_sources < ITEM_MAX_SOURCES);
    item->sources[item->n_sources++] = (struct item_source){source, m->g->values[value].width};
}

/* Widths of the distinct values from outside that the block's items read. */
static int entry_width(const struct maker *m, const struct items_block *b) {
    int seen[4 * ITEM_MAX_SOURCES], n = 0, width = 0;
    int begin = m->out->items[b->first].op;
    int end = m->out->items[b->first + b->n - 1].op + 1;
    if (b->graph_block >= 0) begin = m->g->blocks[b->graph_block].op_begin;
    for (int i = begin; i < end; i++)
        for (int k = 0; k < m->g->ops[i].n_in; k++) {
            int value = m->g->ops[i].in[k], j = 0;
            if (m->g->values[value].producer >= begin) continue;
            while (j < n && seen[j] != value)
                j++;
            if (j < n || n == (int)COUNT_OF(seen)) continue;
            seen[n++] = value;
            width += m->g->values[value].width;
        }
    return width;
}

static void link_block(const struct maker *m, struct items_block *b) {
    for (int i = b->first; i < b->first + b->n; i++) {
        struct item *item = &m->out->items[i];
        const struct graph_op *op = &m->g->ops[item->op];
        for (int k = 0; k < op->n_in; k++) {
            add_sources(m, b, item, op->in[k]);
            item->direct_width += m->g->values[op->in[k]].width;
        }
    }
    b->entry_width = entry_width(m, b);
    b->exit_width = m->out->items[b->first + b->n - 1].out_width;
}

bool items_beside(const struct items *items, int block, int other) {
    const struct graph *g = items->graph;
    const struct items_block *b = &items->blocks[block], *o = &items->blocks[other];
    int begin = items->items[b->first].op - items->items[b->first].n_small;
    int end = items->items[b->first + b->n - 1].op + 1;
    int from = items->items[o->first].op - items->items[o->first].n_small;
    int to = items->items[o->first + o->n - 1].op + 1;
    for (int i = begin; i < end; i++)
        for (int k = 0; k < g->ops[i].n_in; k++) {
            int producer = g->values[g->ops[i].in[k]].producer;
            if (producer >= from && producer < to) return false;
        }
    return true;
}

/* ---- the chain ---- */

static void count_readers(struct maker *m) {
    m->n_readers = ARENA_ARRAY(m->arena, int, m->g->n_values);
    for (int i = 0; i < m->g->n_ops; i++)
        for (int k = 0; k < m->g->ops[i].n_in; k++)
            m->n_readers[m->g->ops[i].in[k]]++;
}

/* Are this product, the one behind it and the activation of both one, as backend/fold.h has it of
 * steps? */
static bool folds_products(const struct maker *m, int op_index) {
    if (m->o->no_fusion || op_index < 0 || op_index + 2 >= m->g->n_ops) return false;
    const struct graph_op *gate = &m->g->ops[op_index], *up = gate + 1, *op = gate + 2;
    return op_folds_products(gate->kind, up->kind, op) && gate->in[0] == up->in[0] &&
           op->in[0] == gate->out && op->in[1] == up->out && m->n_readers[gate->out] == 1 &&
           m->n_readers[up->out] == 1;
}

/* The same of an operator and the one before it. */
static bool folds(const struct maker *m, int op_index) {
    const struct graph_op *op = &m->g->ops[op_index], *before = op - 1;
    int at = -1, n = 0;
    if (m->o->no_fusion || op_index == 0) return false;
    if (folds_products(m, op_index - 2)) return true;
    for (int i = 0; i < op->n_in; i++)
        if (op->in[i] == before->out) at = i, n++;
    if (n != 1 || !op_folds(before->kind, op->kind, op, at)) return false;
    return m->n_readers[op->in[at]] == 1 || op_fold_keeps(op->kind);
}

/* A sum that is folded into a product is so where that is whole, else into the norm behind it. */
static void note_fold(struct maker *m, int op_index) {
    struct items *out = m->out;
    bool *has_sum = out->n_items > 0 ? &out->items[out->n_items - 1].has_sum : NULL;
    if (!folds(m, op_index)) return;
    if (!out->folds[op_index - 1])
        out->folds[op_index] = true;
    else if (m->g->ops[op_index].kind == OP_NORM)
        *has_sum = false;
    if (m->g->ops[op_index].kind == OP_ADD) *has_sum = out->folds[op_index];
}

/* Backends wait only where an operator reads what another has made since the last wait. */
static void note_wait(struct maker *m, int op_index) {
    const struct graph_op *op = &m->g->ops[op_index];
    bool *wait = &m->out->waits[op_index];
    *wait = m->out->profile->n_items > 0;
    for (int i = 0; i < op->n_in; i++)
        *wait = *wait || m->g->values[op->in[i]].producer >= m->first_op;
    *wait = *wait && !folds_products(m, op_index - 1); /* it starts with the first of the two */
    if (*wait) m->first_op = op_index;
    note_fold(m, op_index);
}

static bool block_divisible(const struct maker *m, int graph_block) {
    const struct graph_block *b = &m->g->blocks[graph_block];
    for (int i = b->op_begin; i < b->op_end; i++)
        if (op_is_placed(&m->g->ops[i]) && m->g->ops[i].unit_elements <= 0) return false;
    return b->n_units > 1;
}

static void add_block(const struct maker *m, int item, int graph_block) {
    struct items *out = m->out;
    const struct graph_op *op = &m->g->ops[out->items[item].op];
    struct items_block *last = out->n_blocks > 0 ? &out->blocks[out->n_blocks - 1] : NULL;
    if (last && graph_block >= 0 && last->graph_block == graph_block) {
        last->n++;
        REQUIRE(last->n < 31); /* items of a block are bits of a word */
    } else {
        bool divisible = graph_block >= 0 && block_divisible(m, graph_block);
        out->blocks[out->n_blocks++] =
            (struct items_block){.first = item,
                                 .n = 1,
                                 .graph_block = graph_block,
                                 .layer = op->layer,
                                 .n_units = divisible ? m->g->blocks[graph_block].n_units : 1};
    }
    out->items[item].block = out->n_blocks - 1;
}

static ats_status add_item(const struct maker *m, int op_index, int n_small, int n_starts) {
    struct items *out = m->out;
    const struct graph_op *op = &m->g->ops[op_index];
    struct item *item = &out->items[out->n_items];
    *item = (struct item){.op = op_index,
                          .layer = op->layer,
                          .n_small = n_small,
                          .n_starts = n_starts,
                          .rows = m->g->values[op->out].rows,
                          .out_width = m->g->values[op->out].width};
    m->item_of_op[op_index] = out->n_items++;
    if (op->kind == OP_ATTENTION) {
        const struct attention_params *p = &op->p.attention;
        item->span = p->window > 0 ? p->window : p->chunk;
    }
    if (op->kind == OP_EXPERTS) set_popularity(m, item);
    set_key(m, item);
    item->measured = profile_find(out->profile, &item->key);
    add_block(m, out->n_items - 1, op->block);
    if (profile_knows(out->profile, &item->key)) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "the profile \"%.40s\" has no time for %.60s: measure again",
                out->profile->name, items_name(out, out->n_items - 1));
}

ats_status items_build(struct arena *arena, const struct graph *graph,
                       const struct profile *profile, const struct items_options *options,
                       struct items **out) {
    struct items *items = ARENA_NEW(arena, struct items);
    *items = (struct items){.graph = graph,
                            .names = plan_names(arena, graph),
                            .profile = profile,
                            .items = ARENA_ARRAY(arena, struct item, graph->n_ops),
                            .blocks = ARENA_ARRAY(arena, struct items_block, graph->n_ops),
                            .waits = ARENA_ARRAY(arena, bool, graph->n_ops),
                            .folds = ARENA_ARRAY(arena, bool, graph->n_ops),
                            .slow = {1, 1}};
    struct maker m = {.arena = arena, .g = graph, .o = options, .out = items};
    int n_small = 0, n_starts = 0;
    m.item_of_op = ARENA_ARRAY(arena, int, graph->n_ops);
    count_readers(&m);
    for (int i = 0; i < graph->n_ops; i++) {
        m.item_of_op[i] = -1;
        if (graph->ops[i].kind == OP_EMBED) continue;
        note_wait(&m, i);
        n_starts += items->waits[i] && !items->folds[i];
        if (!op_is_placed(&graph->ops[i])) {
            n_small++;
            continue;
        }
        TRY(add_item(&m, i, n_small, n_starts));
        n_small = n_starts = 0;
    }
    set_sizes(&m);
    for (int b = 0; b < items->n_blocks; b++)
        link_block(&m, &items->blocks[b]);
    *out = items;
    return ATS_OK;
}

/* ---- times ---- */

double items_start_time(const struct items *items, int op, enum side side) {
    return items->waits[op] * items->slow[side] * items->profile->op_s[side];
}

/* Starts beside the one that the item's own time has. A divided product leaves its sum to others.
 */
static double starts_time(const struct items *items, const struct item *item, enum side side,
                          double share) {
    return (item->n_starts - 1 + (item->has_sum && share < 1)) * items->profile->op_s[side];
}

double items_others_time(const struct items *items, int index, enum side side, double share) {
    const struct item *item = &items->items[index];
    double all_s = starts_time(items, item, side, share) + items->profile->op_s[side];
    return items->slow[side] * all_s - items_start_time(items, item->op, side);
}

double items_experts_time(const struct items *items, int index, enum side side, double n_tokens,
                          double n_in_use, double share) {
    const struct item *item = &items->items[index];
    if (share <= 0) return 0;
    double s = profile_time(items->profile, item->measured, &item->key, side,
                            n_tokens * item->n_used / n_in_use, 0, n_in_use / item->n_used * share);
    return items->slow[side] * (starts_time(items, item, side, share) + s);
}

double items_time(const struct items *items, int index, enum side side, double n_tokens,
                  double depth, double share) {
    const struct item *item = &items->items[index];
    if (share <= 0) return 0;
    if (item->n_experts > 0)
        return items_experts_time(items, index, side, n_tokens, items_in_use(item, n_tokens),
                                  share);
    if (item->span > 0) depth = fmin(depth, item->span);
    double s =
        profile_time(items->profile, item->measured, &item->key, side, n_tokens, depth, share);
    return items->slow[side] * fmax(starts_time(items, item, side, share) + s, 0);
}

double items_active_bytes(const struct items *items, int index, double n_tokens) {
    const struct item *item = &items->items[index];
    if (item->n_experts == 0) return (double)item->weight_bytes;
    return (double)item->weight_bytes * items_in_use(item, n_tokens) / item->n_experts;
}

static double activation_bytes(double n_tokens, double width) {
    return n_tokens * width * (double)sizeof(float);
}

double items_pull_time(const struct items *items, double n_tokens, double width) {
    return activation_bytes(n_tokens, width) / items->profile->link.activation_up;
}

double items_push_time(const struct items *items, double n_tokens, double width) {
    return activation_bytes(n_tokens, width) / items->profile->link.activation_down;
}

double items_up_time(const struct items *items, double n_tokens, double width) {
    return items->profile->link.kappa_up_s + items_pull_time(items, n_tokens, width);
}

double items_down_time(const struct items *items, double n_tokens, double width) {
    return items->profile->link.kappa_down_s + items_push_time(items, n_tokens, width);
}

double items_exchange_time(const struct items *items, double n_tokens, double width) {
    return items->profile->link.kappa_x_s + items_pull_time(items, n_tokens, width) +
           items_push_time(items, n_tokens, width);
}
