/*
 * WHAT is computed: one round (a forward pass over n_tokens tokens of one or more sequences) as a
 * flat array of operators over values and weights, joined by index. Built once per model by
 * arch_*.c; tokens, positions, sequences are parameters of a round, not of the graph. Knows no
 * device and no placement. Read by plan/, run/ and the backends.
 *
 * A value is float32, row-major (n_tokens, width), or (n_rows, width) after OP_ROWS, where rows
 * are those whose result is wanted. A weight is a logical matrix (n_rows, n_cols): a whole tensor
 * of the file or a range of its rows (a fused qkv becomes three weights); or n_experts of them, one
 * after the other.
 */
#pragma once

#include "base/arena.h"
#include "model/dtype.h"

enum op_kind {
    OP_EMBED,     /* out[t] = row id(t) of weight */
    OP_NORM,      /* RMS norm over groups of `group` elements, times weight (group wide; or -1) and
                     scale (0: 1) */
    OP_MATMUL,    /* out = W in (+ bias) */
    OP_ROPE,      /* rotary embedding of each head by the token's position */
    OP_ATTENTION, /* in: q, k, v; stores k and v in the layer's cache, then attends causally. The
                     weight, if any, has a sink for each query head: a score that takes part in the
                     softmax and has no value */
    OP_GATED,   /* out = act(in0) * in1, see enum activation; in0 of one column serves all of in1 */
    OP_ADD,     /* out = in0 + in1 */
    OP_ROWS,    /* out[j] = in[row(j)]: only the rows whose result is wanted go on */
    OP_ROUTE,   /* chooses n_used experts by their scores: ids as floats, then their weights */
    OP_EXPERTS, /* in: x, route; out = sum over the chosen e of weight * expert e of x */
    OP_SLICE,   /* of each group of columns a few: a view of a fused product */
    OP_CONV,    /* short causal convolution of each column with its past; a state */
    OP_DELTA,   /* in: q, k, v, a, b; gated delta rule of each head; a state */
};

enum axis {
    AXIS_ROWS,
    AXIS_COLS,
    AXIS_HEADS,
    AXIS_EXPERTS
};                                          /* output rows, input columns, KV
                                               heads, experts */
enum math { MATH_F32, MATH_Q8, MATH_BF16 }; /* arithmetic class of a product, house.md 8 */
/* act(gate) * up, element by element. */
enum activation {
    ACT_SILU,    /* gate * sigmoid(gate) * up */
    ACT_GELU,    /* its tanh form */
    ACT_CLAMPED, /* gpt-oss: g = min(gate, LIMIT), g * sigmoid(SLOPE g) * (clamp(up, LIMIT) + 1) */
    ACT_SIGMOID, /* sigmoid(gate) * up */
    ACT_COUNT
};
#define ACT_CLAMPED_LIMIT 7.0f
#define ACT_CLAMPED_SLOPE 1.702f

/* Rotary embedding: angle(i, pos) = pos * freq_base^(-2i/n_rot) / factor[i]. */
struct rope_params {
    int head_dim, n_rot;
    bool halves;           /* pairs (i, i + n_rot/2) instead of (2i, 2i+1) */
    const float *inv_freq; /* n_rot / 2, everything folded in; owned by the graph's arena */
    float magnitude;       /* multiplies cos and sin (YaRN, LongRoPE) */
};

#define KV_MAX_CLASSES 4 /* layer classes: what layers that see the same span of the past share */

struct attention_params {
    int n_heads, n_kv_heads, head_dim; /* n_heads is a multiple of n_kv_heads */
    float scale;
    int window;   /* keys seen, itself included; 0 = all */
    int kv_layer; /* index of this layer's cache, 0.. */
    int kv_class; /* its layer class: set by graph_attention */
    int chunk;    /* only keys of the same chunk of so many positions are seen; 0: no chunks */
    /* queries at position p times 1 + temp_scale * ln(1 + floor((p + 1) / temp_length)); 0: not */
    float temp_scale;
    int temp_length;
    float soft_cap; /* scores become soft_cap * tanh(score / soft_cap); 0: they do not */
};

/* How scores become weights. */
enum gating {
    GATING_SOFTMAX,        /* over all experts, then the best */
    GATING_SOFTMAX_CHOSEN, /* the best, softmax over these */
    GATING_SIGMOID,        /* of each */
};
/* The n_used experts of the greatest (gated score + bias), ties to the lower id, in that order;
 * weight = gated score without the bias, / their sum if `normalise`, * scale. */
struct route_params {
    int n_experts, n_used;
    enum gating gating;
    bool normalise;
    float scale;
};

/* Expert e of x: down_e (act(gate_e x, up_e x)). Each weight is n_experts matrices, each bias as
 * many rows, added to its product. */
enum { EXPERT_GATE, EXPERT_UP, EXPERT_DOWN, N_EXPERT_WEIGHTS };
struct experts_params {
    int n_experts, n_used, n_ff;
    int weights[N_EXPERT_WEIGHTS];
    enum math math[N_EXPERT_WEIGHTS];
    enum activation act;
    bool biased;
    int biases[N_EXPERT_WEIGHTS]; /* if biased */
    bool scale_input;             /* the route's weight multiplies x, not the output */
};

/* Columns first .. first + n - 1 of each group of `group`; groups stay in order. */
struct slice_params {
    int group, first, n;
};

/* out[t][c] = act(sum over j < n_taps of w[c][j] * in[t - (n_taps - 1) + j][c]); before the
 * sequence's beginning stand zeros. The weight is a vector: n_taps elements a column. State of a
 * sequence: its last n_taps - 1 inputs, (n_taps - 1, n_columns). */
struct conv_params {
    int n_taps;
    bool silu; /* act; else none */
};
#define CONV_MAX_TAPS 16

/* Gated delta rule (arXiv 2412.06464, eq. 10). Head j has a state S of (dim_k, dim_v), 0 at the
 * sequence's beginning; with k and q of its key head, a and b the j-th columns, A the j-th element
 * of the weight and dt of the bias, a token makes
 *   S *= exp(A softplus(a + dt));  S += k (sigmoid(b) (v - S' k))';  out = S' q. */
struct delta_params {
    int n_heads, n_key_heads; /* n_heads is a multiple of n_key_heads */
    int dim_k, dim_v;         /* multiples of DELTA_BLOCK */
    bool tiled;               /* head j has key head j % n_key_heads; else heads of one key head are
                                 neighbours */
};
#define DELTA_BLOCK 16
/* Key heads [*first, *last) are those that heads [begin, end) need. */
static inline void delta_key_heads(const struct delta_params *p, int begin, int end, int *first,
                                   int *last) {
    const int group = p->n_heads / p->n_key_heads, n = p->n_key_heads;
    const bool all = p->tiled && begin / n != (end - 1) / n;
    *first = all ? 0 : p->tiled ? begin % n : begin / group;
    *last = all ? n : (p->tiled ? (end - 1) % n : (end - 1) / group) + 1;
}

struct graph_weight {
    const char *name;   /* of the file's tensor, for messages and plans only */
    int tensor;         /* index in the model's tensor table */
    const int *tensors; /* (n_experts) where each expert's matrix is a tensor of its own, of which
                           `tensor` is the first; else NULL */
    int64_t row_begin;  /* first row of the tensor that belongs to this weight; of a part of a
                           vector: first element */
    int n_rows, n_cols; /* a vector has one row */
    int n_experts;      /* matrices, n_rows * n_cols each; 0: one, of no expert */
    int matrix_rows;    /* of the tensor, from one matrix to the next; 0: n_rows, back to back */
    enum dtype dtype;
};

struct graph_value {
    int width;
    bool rows;    /* (n_rows, width): one line per wanted row */
    int producer; /* op index */
};

struct graph_op {
    enum op_kind kind;
    int in[5], n_in;     /* value indices */
    int out;             /* value index */
    int weight, bias;    /* weight indices or -1; bias: a vector added by the first shard, or to the
                            scores of a route, or dt of a delta rule */
    int layer;           /* -1 outside layers */
    int block;           /* index of the block it belongs to, or -1 */
    enum axis unit_axis; /* how a unit of its block cuts this op: rows, columns or KV heads */
    int unit_elements;   /* elements of that axis per unit; 0 = the op is not cut */
    union {
        struct {
            int group;
            float eps, scale;
        } norm;
        struct {
            enum math math;
        } matmul;
        struct rope_params rope;
        struct attention_params attention;
        struct route_params route;
        struct experts_params experts;
        struct slice_params slice;
        struct conv_params conv;
        struct delta_params delta;
        struct {
            enum activation act;
            bool one_gate; /* for all columns */
        } gated;
        struct {
            float scale;
        } embed;
    } p;
};

enum block_kind { BLOCK_ATTENTION, BLOCK_FFN, BLOCK_EXPERTS, BLOCK_HEAD, BLOCK_RECURRENT };
/* Ops [op_begin, op_end) that one division along an inner axis serves (house.md 2). */
struct graph_block {
    enum block_kind kind;
    int layer;
    int op_begin, op_end;
    int n_units; /* 1: not divisible */
};

struct graph {
    struct graph_op *ops;
    int n_ops;
    struct graph_value *values;
    int n_values;
    struct graph_weight *weights;
    int n_weights;
    struct graph_block *blocks;
    int n_blocks;
    int n_kv_layers;
    int kv_windows[KV_MAX_CLASSES]; /* of each class: positions that its layers look back, 0: all */
    int n_kv_classes;
    int n_vocab, n_embd;
    int hidden; /* value: (n_rows, n_embd), normalised state before the head */
    int logits; /* value: (n_rows, n_vocab) */
    float
        logit_cap; /* soft cap of the logits, as of scores: by whom they are handed out; 0: none */
};

/* A placed operator is one whose home a plan decides: it has a matrix, a cache or a state. All
 * others are computed wherever their result is needed; a route, which is a choice, on one device
 * only. */
static inline bool op_is_placed(const struct graph_op *op) {
    return op->kind == OP_EMBED || op->kind == OP_MATMUL || op->kind == OP_ATTENTION ||
           op->kind == OP_EXPERTS || op->kind == OP_CONV || op->kind == OP_DELTA;
}
/* Has a state for each sequence, which rounds read and write (backend.h). */
static inline bool op_has_state(const struct graph_op *op) {
    return op->kind == OP_CONV || op->kind == OP_DELTA;
}
/* Floats of its state in a sequence: of columns (CONV) or heads (DELTA) [begin, end). */
int64_t op_state_floats(const struct graph_op *op, int begin, int end);
/* May the op be cut along this axis? A convolution by its columns, which are rows of its filters.
 */
static inline bool op_has_axis(const struct graph_op *op, enum axis axis) {
    if (op->kind == OP_ATTENTION || op->kind == OP_DELTA) return axis == AXIS_HEADS;
    if (op->kind == OP_EXPERTS) return axis == AXIS_EXPERTS;
    return axis == AXIS_ROWS || (axis == AXIS_COLS && op->kind == OP_MATMUL);
}
/* Length of the axis along which an op may be cut. */
static inline int op_axis_length(const struct graph *g, const struct graph_op *op, enum axis axis) {
    if (op->kind == OP_ATTENTION) return op->p.attention.n_kv_heads;
    if (op->kind == OP_EXPERTS) return op->p.experts.n_experts;
    if (op->kind == OP_CONV) return g->values[op->out].width;
    if (op->kind == OP_DELTA) return op->p.delta.n_heads;
    const struct graph_weight *w = &g->weights[op->weight];
    return axis == AXIS_COLS ? w->n_cols : w->n_rows;
}
/* Short name of an op kind, for plans and traces. */
const char *op_kind_name(enum op_kind kind);

/*
 * Building. A builder collects ops in topological order; arrays grow, graph_finish freezes them
 * into the arena and computes units, producers and blocks' unit counts.
 */
struct graph_builder;
struct graph_builder *graph_builder_open(struct arena *arena);
int graph_weight_add(struct graph_builder *b, struct graph_weight weight);
const struct graph_weight *graph_builder_weight(const struct graph_builder *b, int weight);
int graph_embed(struct graph_builder *b, int weight, float scale);
int graph_norm(struct graph_builder *b, int in, int weight, int group, float eps);
/* scale * x / sqrt(sum of squares + eps) of each group. */
int graph_l2_norm(struct graph_builder *b, int in, int group, float eps, float scale);
int graph_matmul(struct graph_builder *b, int in, int weight, int bias, enum math math);
int graph_rope(struct graph_builder *b, int in, struct rope_params rope);
/* sinks: a weight (1, n_heads), or -1. */
int graph_attention(struct graph_builder *b, int q, int k, int v, int sinks,
                    struct attention_params p);
int graph_gated(struct graph_builder *b, int gate, int up, enum activation act);
int graph_add(struct graph_builder *b, int a, int c);
int graph_rows(struct graph_builder *b, int in);
/* scores: (n, n_experts); bias: a weight or -1. Returns (n, 2 * n_used). */
int graph_route(struct graph_builder *b, int scores, int bias, struct route_params p);
int graph_experts(struct graph_builder *b, int in, int route, struct experts_params p);
int graph_slice(struct graph_builder *b, int in, struct slice_params p);
/* filters: a weight of one row, n_taps elements for each column of in. */
int graph_conv(struct graph_builder *b, int in, int filters, struct conv_params p);
/* q, k: (n, n_key_heads * dim_k); v: (n, n_heads * dim_v); a, b: (n, n_heads); decay, dt: weights
 * (1, n_heads). Returns what v is wide. */
int graph_delta(struct graph_builder *b, const int in[5], int decay, int dt, struct delta_params p);
bool graph_has_state(const struct graph *g);
void graph_layer(struct graph_builder *b, int layer); /* ops added from now on belong to it */
/* Opens a block; its ops until graph_block_end share a division. */
void graph_block_begin(struct graph_builder *b, enum block_kind kind);
void graph_block_end(struct graph_builder *b);
/* row_group: rows that the host layout keeps together (1 for raw GGUF blocks). */
struct graph *graph_finish(struct graph_builder *b, int hidden, int logits, int row_group);
/* Gives up on an unfinished graph (a tensor was missing): frees what the builder holds. */
void graph_discard(struct graph_builder *b);
