#include "model/graph.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

const char *op_kind_name(enum op_kind kind) {
    static const char *const names[] = {
        [OP_EMBED] = "embed",         [OP_NORM] = "norm",   [OP_MATMUL] = "matmul",
        [OP_ROPE] = "rope",           [OP_GATED] = "gated", [OP_ADD] = "add",
        [OP_ATTENTION] = "attention", [OP_ROWS] = "rows",   [OP_ROUTE] = "route",
        [OP_EXPERTS] = "experts",     [OP_SLICE] = "slice", [OP_CONV] = "conv",
        [OP_DELTA] = "delta",
    };
    return (size_t)kind < COUNT_OF(names) ? names[kind] : "?";
}

int64_t op_state_floats(const struct graph_op *op, int begin, int end) {
    int64_t n = end - begin;
    if (op->kind == OP_CONV) return n * (op->p.conv.n_taps - 1);
    REQUIRE(op->kind == OP_DELTA);
    return n * op->p.delta.dim_k * op->p.delta.dim_v;
}

struct graph_builder {
    struct arena *arena;
    struct graph *graph; /* its arrays are grown on the heap and moved to the arena at the end */
    size_t cap_ops, cap_values, cap_weights, cap_blocks;
    int layer, block;
};

struct graph_builder *graph_builder_open(struct arena *arena) {
    struct graph_builder *b = ARENA_NEW(arena, struct graph_builder);
    b->arena = arena;
    b->graph = ARENA_NEW(arena, struct graph);
    b->layer = -1;
    b->block = -1;
    return b;
}

int graph_weight_add(struct graph_builder *b, struct graph_weight weight) {
    struct graph *g = b->graph;
    GROW(g->weights, g->n_weights, b->cap_weights, 1);
    g->weights[g->n_weights] = weight;
    return g->n_weights++;
}

const struct graph_weight *graph_builder_weight(const struct graph_builder *b, int weight) {
    REQUIRE(weight >= 0 && weight < b->graph->n_weights);
    return &b->graph->weights[weight];
}

static struct graph_op *add_op(struct graph_builder *b, enum op_kind kind, int width, bool rows,
                               const int *in, int n_in) {
    struct graph *g = b->graph;
    GROW(g->values, g->n_values, b->cap_values, 1);
    g->values[g->n_values] = (struct graph_value){width, rows, g->n_ops};
    GROW(g->ops, g->n_ops, b->cap_ops, 1);
    struct graph_op *op = &g->ops[g->n_ops++];
    *op = (struct graph_op){.kind = kind,
                            .n_in = n_in,
                            .out = g->n_values++,
                            .weight = -1,
                            .bias = -1,
                            .layer = b->layer,
                            .block = b->block};
    for (int i = 0; i < n_in; i++) {
        REQUIRE(in[i] >= 0 && in[i] < op->out);
        op->in[i] = in[i];
    }
    return op;
}

int graph_embed(struct graph_builder *b, int weight, float scale) {
    struct graph_op *op = add_op(b, OP_EMBED, b->graph->weights[weight].n_cols, false, NULL, 0);
    op->weight = weight;
    op->p.embed.scale = scale;
    return op->out;
}

int graph_norm(struct graph_builder *b, int in, int weight, int group, float eps) {
    const struct graph_value v = b->graph->values[in];
    REQUIRE(v.width % group == 0);
    struct graph_op *op = add_op(b, OP_NORM, v.width, v.rows, &in, 1);
    op->weight = weight;
    op->p.norm.group = group;
    op->p.norm.eps = eps;
    return op->out;
}

/* sum + eps = group * (mean + eps / group). */
int graph_l2_norm(struct graph_builder *b, int in, int group, float eps, float scale) {
    int out = graph_norm(b, in, -1, group, eps / (float)group);
    b->graph->ops[b->graph->n_ops - 1].p.norm.scale = scale / sqrtf((float)group);
    return out;
}

int graph_matmul(struct graph_builder *b, int in, int weight, int bias, enum math math) {
    const struct graph_value v = b->graph->values[in];
    REQUIRE(v.width == b->graph->weights[weight].n_cols);
    struct graph_op *op = add_op(b, OP_MATMUL, b->graph->weights[weight].n_rows, v.rows, &in, 1);
    op->weight = weight;
    op->bias = bias;
    op->p.matmul.math = math;
    return op->out;
}

int graph_rope(struct graph_builder *b, int in, struct rope_params rope) {
    const struct graph_value v = b->graph->values[in];
    REQUIRE(v.width % rope.head_dim == 0 && !v.rows);
    struct graph_op *op = add_op(b, OP_ROPE, v.width, v.rows, &in, 1);
    op->p.rope = rope;
    return op->out;
}

/* Positions that a token looks back at most, itself included; 0: all. */
static int reach(const struct attention_params *p) {
    if (p->chunk <= 0 || p->window <= 0) return max_int(p->chunk, p->window);
    return min_int(p->chunk, p->window);
}

/* Layers of more spans than there may be classes go with those that see everything. */
static int kv_class(struct graph *g, int window) {
    for (int c = 0; c < g->n_kv_classes; c++)
        if (g->kv_windows[c] == window) return c;
    if (g->n_kv_classes < KV_MAX_CLASSES) {
        g->kv_windows[g->n_kv_classes] = window;
        return g->n_kv_classes++;
    }
    for (int c = 0; c < g->n_kv_classes; c++)
        if (g->kv_windows[c] == 0) return c;
    g->kv_windows[KV_MAX_CLASSES - 1] = 0;
    return KV_MAX_CLASSES - 1;
}

int graph_attention(struct graph_builder *b, int q, int k, int v, int sinks,
                    struct attention_params p) {
    const struct graph_value *values = b->graph->values;
    REQUIRE(values[q].width == p.n_heads * p.head_dim);
    REQUIRE(values[k].width == p.n_kv_heads * p.head_dim && values[v].width == values[k].width);
    REQUIRE(sinks < 0 || b->graph->weights[sinks].n_cols == p.n_heads);
    struct graph_op *op = add_op(b, OP_ATTENTION, values[q].width, false, (int[]){q, k, v}, 3);
    op->weight = sinks;
    op->p.attention = p;
    op->p.attention.kv_class = kv_class(b->graph, reach(&p));
    b->graph->n_kv_layers = max_int(b->graph->n_kv_layers, p.kv_layer + 1);
    return op->out;
}

int graph_gated(struct graph_builder *b, int gate, int up, enum activation act) {
    const struct graph_value v = b->graph->values[gate];
    int width = b->graph->values[up].width;
    REQUIRE((v.width == width || v.width == 1) && v.rows == b->graph->values[up].rows);
    struct graph_op *op = add_op(b, OP_GATED, width, v.rows, (int[]){gate, up}, 2);
    op->p.gated.act = act;
    op->p.gated.one_gate = v.width != width;
    return op->out;
}

int graph_add(struct graph_builder *b, int a, int c) {
    const struct graph_value v = b->graph->values[a];
    REQUIRE(v.width == b->graph->values[c].width && v.rows == b->graph->values[c].rows);
    return add_op(b, OP_ADD, v.width, v.rows, (int[]){a, c}, 2)->out;
}

int graph_rows(struct graph_builder *b, int in) {
    REQUIRE(!b->graph->values[in].rows);
    return add_op(b, OP_ROWS, b->graph->values[in].width, true, &in, 1)->out;
}

int graph_route(struct graph_builder *b, int scores, int bias, struct route_params p) {
    const struct graph_value v = b->graph->values[scores];
    REQUIRE(v.width == p.n_experts && p.n_used >= 1 && p.n_used <= p.n_experts);
    struct graph_op *op = add_op(b, OP_ROUTE, 2 * p.n_used, v.rows, &scores, 1);
    op->bias = bias;
    op->p.route = p;
    return op->out;
}

int graph_experts(struct graph_builder *b, int in, int route, struct experts_params p) {
    const struct graph_value v = b->graph->values[in];
    const struct graph_weight *w = b->graph->weights;
    REQUIRE(v.rows == b->graph->values[route].rows);
    REQUIRE(b->graph->values[route].width == 2 * p.n_used);
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        const struct graph_weight *m = &w[p.weights[i]];
        REQUIRE(m->n_experts == p.n_experts && m->n_cols == (i == EXPERT_DOWN ? p.n_ff : v.width));
        REQUIRE(!p.biased || (w[p.biases[i]].n_experts == p.n_experts &&
                              w[p.biases[i]].n_rows == 1 && w[p.biases[i]].n_cols == m->n_rows));
    }
    struct graph_op *op =
        add_op(b, OP_EXPERTS, w[p.weights[EXPERT_DOWN]].n_rows, v.rows, (int[]){in, route}, 2);
    op->p.experts = p;
    return op->out;
}

int graph_slice(struct graph_builder *b, int in, struct slice_params p) {
    const struct graph_value v = b->graph->values[in];
    REQUIRE(p.first >= 0 && p.n >= 1 && p.first + p.n <= p.group && v.width % p.group == 0);
    struct graph_op *op = add_op(b, OP_SLICE, v.width / p.group * p.n, v.rows, &in, 1);
    op->p.slice = p;
    return op->out;
}

int graph_conv(struct graph_builder *b, int in, int filters, struct conv_params p) {
    const struct graph_value v = b->graph->values[in];
    const struct graph_weight *w = &b->graph->weights[filters];
    REQUIRE(p.n_taps >= 1 && p.n_taps <= CONV_MAX_TAPS && !v.rows);
    REQUIRE(w->n_rows == 1 && w->n_cols == v.width * p.n_taps);
    struct graph_op *op = add_op(b, OP_CONV, v.width, false, &in, 1);
    op->weight = filters;
    op->p.conv = p;
    return op->out;
}

int graph_delta(struct graph_builder *b, const int in[5], int decay, int dt,
                struct delta_params p) {
    const struct graph_value *v = b->graph->values;
    const int keys = p.n_key_heads * p.dim_k, values = p.n_heads * p.dim_v;
    const int widths[5] = {keys, keys, values, p.n_heads, p.n_heads};
    REQUIRE(p.n_heads % p.n_key_heads == 0);
    REQUIRE(p.dim_k % DELTA_BLOCK == 0 && p.dim_v % DELTA_BLOCK == 0);
    for (int i = 0; i < 5; i++)
        REQUIRE(v[in[i]].width == widths[i] && !v[in[i]].rows);
    REQUIRE(b->graph->weights[decay].n_cols == p.n_heads);
    REQUIRE(b->graph->weights[dt].n_cols == p.n_heads);
    struct graph_op *op = add_op(b, OP_DELTA, values, false, in, 5);
    op->weight = decay;
    op->bias = dt;
    op->p.delta = p;
    return op->out;
}

bool graph_has_state(const struct graph *g) {
    for (int i = 0; i < g->n_ops; i++)
        if (op_has_state(&g->ops[i])) return true;
    return false;
}

void graph_layer(struct graph_builder *b, int layer) {
    b->layer = layer;
}

void graph_block_begin(struct graph_builder *b, enum block_kind kind) {
    struct graph *g = b->graph;
    REQUIRE(b->block < 0);
    GROW(g->blocks, g->n_blocks, b->cap_blocks, 1);
    b->block = g->n_blocks;
    g->blocks[g->n_blocks++] =
        (struct graph_block){.kind = kind, .layer = b->layer, .op_begin = g->n_ops, .n_units = 1};
}

void graph_block_end(struct graph_builder *b) {
    REQUIRE(b->block >= 0);
    b->graph->blocks[b->block].op_end = b->graph->n_ops;
    b->block = -1;
}

/* The last product of a block takes columns (its output is a partial sum), all before it rows;
 * the head has no inner dimension: rows. */
static void set_axes(struct graph *g, const struct graph_block *block) {
    int last = -1;
    for (int i = block->op_begin; i < block->op_end; i++) {
        if (op_has_axis(&g->ops[i], AXIS_HEADS)) g->ops[i].unit_axis = AXIS_HEADS;
        if (g->ops[i].kind == OP_EXPERTS) g->ops[i].unit_axis = AXIS_EXPERTS;
        if (g->ops[i].kind != OP_MATMUL) continue;
        g->ops[i].unit_axis = AXIS_ROWS;
        last = i;
    }
    if (last >= 0 && block->kind != BLOCK_HEAD) g->ops[last].unit_axis = AXIS_COLS;
}

/* Can every weight of the block be cut into n equal units on legal borders? */
static bool units_fit(const struct graph *g, const struct graph_block *block, int n,
                      int row_group) {
    for (int i = block->op_begin; i < block->op_end; i++) {
        const struct graph_op *op = &g->ops[i];
        if (!op_is_placed(op)) continue;
        int length = op_axis_length(g, op, op->unit_axis), border = 1;
        if (op->unit_axis == AXIS_ROWS) border = row_group;
        if (op->unit_axis == AXIS_COLS)
            border = (int)dtype_info(g->weights[op->weight].dtype)->block_elements;
        if (length % n != 0 || length / n % border != 0) return false;
    }
    return true;
}

/* Key heads with all their heads, as far as these are one range: a unit of a delta rule. */
static int delta_units(const struct delta_params *p) {
    return p->tiled && p->n_heads != p->n_key_heads ? 1 : p->n_key_heads;
}

/* The axis whose cut all others follow: KV heads, channels (columns of the last product), experts,
 * or the head's rows. */
static int block_axis_length(const struct graph *g, const struct graph_block *block) {
    int length = 1;
    for (int i = block->op_begin; i < block->op_end; i++) {
        const struct graph_op *op = &g->ops[i];
        if (!op_is_placed(op)) continue;
        if (op->kind == OP_ATTENTION) return op->p.attention.n_kv_heads;
        if (op->kind == OP_DELTA) return delta_units(&op->p.delta);
        length = op_axis_length(g, op, op->unit_axis);
    }
    return length;
}

static void set_units(struct graph *g, struct graph_block *block, int row_group) {
    set_axes(g, block);
    int length = block_axis_length(g, block);
    for (int unit = 1; unit <= length; unit++) { /* the smallest unit that all weights allow */
        if (length % unit != 0 || !units_fit(g, block, length / unit, row_group)) continue;
        block->n_units = length / unit;
        break;
    }
    for (int i = block->op_begin; i < block->op_end; i++) {
        struct graph_op *op = &g->ops[i];
        if (op_is_placed(op))
            op->unit_elements = op_axis_length(g, op, op->unit_axis) / block->n_units;
    }
}

struct graph *graph_finish(struct graph_builder *b, int hidden, int logits, int row_group) {
    struct graph *g = b->graph;
    REQUIRE(b->block < 0 && row_group >= 1);
    g->ops = arena_adopt(b->arena, g->ops, sizeof *g->ops * (size_t)g->n_ops);
    g->values = arena_adopt(b->arena, g->values, sizeof *g->values * (size_t)g->n_values);
    g->weights = arena_adopt(b->arena, g->weights, sizeof *g->weights * (size_t)g->n_weights);
    g->blocks = arena_adopt(b->arena, g->blocks, sizeof *g->blocks * (size_t)g->n_blocks);
    for (int i = 0; i < g->n_blocks; i++)
        set_units(g, &g->blocks[i], row_group);
    g->hidden = hidden;
    g->logits = logits;
    g->n_embd = g->values[hidden].width;
    g->n_vocab = g->values[logits].width;
    return g;
}

void graph_discard(struct graph_builder *b) {
    struct graph *g = b->graph;
    free(g->ops), free(g->values), free(g->weights), free(g->blocks);
    memset(g, 0, sizeof *g);
}
