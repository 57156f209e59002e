#include "tiny_graph.h"

#include <string.h>

const struct tiny_shape tiny_plain = {.n_layers = 2,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 4,
                                      .n_embd = 12,
                                      .n_ff = 10,
                                      .n_vocab = 9};

struct tiny {
    struct arena *arena;
    struct graph_builder *b;
    const struct tiny_shape *s;
    int layer;
    struct rope_params rope;
};

static int weight(struct tiny *t, int n_rows, int n_cols, enum dtype dtype, const char *name) {
    const char *full = t->layer >= 0 ? arena_printf(t->arena, "blk.%d.%s", t->layer, name) : name;
    return graph_weight_add(
        t->b,
        (struct graph_weight){.name = full, .n_rows = n_rows, .n_cols = n_cols, .dtype = dtype});
}

static int norm(struct tiny *t, int in, int width, const char *name) {
    return graph_norm(t->b, in, weight(t, 1, width, DTYPE_F32, name), width, 1e-5F);
}

static int product(struct tiny *t, int in, int n_rows, int n_cols, const char *name, bool bias) {
    int w = weight(t, n_rows, n_cols, t->s->dtype, name);
    int b = bias ? weight(t, 1, n_rows, DTYPE_F32, arena_printf(t->arena, "%s.bias", name)) : -1;
    return graph_matmul(t->b, in, w, b, MATH_F32);
}

static int attention(struct tiny *t, int x) {
    const struct tiny_shape *s = t->s;
    int q_rows = s->n_heads * s->head_dim, kv_rows = s->n_kv_heads * s->head_dim;
    int h = norm(t, x, s->n_embd, "attn_norm");
    graph_block_begin(t->b, BLOCK_ATTENTION);
    int q = product(t, h, q_rows, s->n_embd, "attn_q", s->bias);
    int k = product(t, h, kv_rows, s->n_embd, "attn_k", s->bias);
    int v = product(t, h, kv_rows, s->n_embd, "attn_v", s->bias);
    if (s->head_norm) {
        q = norm(t, q, s->head_dim, "attn_q_norm");
        k = norm(t, k, s->head_dim, "attn_k_norm");
    }
    q = graph_rope(t->b, q, t->rope);
    k = graph_rope(t->b, k, t->rope);
    int sinks = s->sinks ? weight(t, 1, s->n_heads, DTYPE_F32, "attn_sinks") : -1;
    int y = graph_attention(t->b, q, k, v, sinks,
                            (struct attention_params){.n_heads = s->n_heads,
                                                      .n_kv_heads = s->n_kv_heads,
                                                      .head_dim = s->head_dim,
                                                      .scale = 0.5F,
                                                      .kv_layer = t->layer});
    y = product(t, y, s->n_embd, q_rows, "attn_output", s->bias);
    graph_block_end(t->b);
    return graph_add(t->b, x, y);
}

static int convolved(struct tiny *t, int h, int width, const char *name) {
    int x = product(t, h, width, t->s->n_embd, name, false);
    int w = weight(t, 1, 2 * width, DTYPE_F32, arena_printf(t->arena, "conv_%s", name));
    return graph_conv(t->b, x, w, (struct conv_params){2, true});
}

/* alpha and beta in one product, group by group; a gate of one column. */
static int delta_net(struct tiny *t, int x) {
    enum { N_KEYS = 2, DIM = DELTA_BLOCK };
    const int n = t->s->delta_heads, group = n / N_KEYS, n_embd = t->s->n_embd;
    int h = norm(t, x, n_embd, "attn_norm");
    int ba = product(t, h, 2 * n, n_embd, "ssm_ba", false);
    int b = graph_slice(t->b, ba, (struct slice_params){2 * group, 0, group});
    int a = graph_slice(t->b, ba, (struct slice_params){2 * group, group, group});
    int gate = product(t, h, 1, n_embd, "ssm_gate", false);
    graph_block_begin(t->b, BLOCK_RECURRENT);
    int q = graph_l2_norm(t->b, convolved(t, h, N_KEYS * DIM, "ssm_q"), DIM, 1e-6F, 1);
    int k = graph_l2_norm(t->b, convolved(t, h, N_KEYS * DIM, "ssm_k"), DIM, 1e-6F, 1);
    int v = convolved(t, h, n * DIM, "ssm_v");
    int decay = weight(t, 1, n, DTYPE_F32, "ssm_a"), dt = weight(t, 1, n, DTYPE_F32, "ssm_dt");
    int y = graph_delta(t->b, (int[]){q, k, v, a, b}, decay, dt,
                        (struct delta_params){n, N_KEYS, DIM, DIM, t->s->delta_tiled});
    y = graph_gated(t->b, gate, y, ACT_SIGMOID);
    y = product(t, y, n_embd, n * DIM, "ssm_out", false);
    graph_block_end(t->b);
    return graph_add(t->b, x, y);
}

static int experts(struct tiny *t, int h) {
    static const char *const names[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    const struct tiny_shape *s = t->s;
    struct experts_params p = {
        .n_experts = s->n_experts, .n_used = s->n_used, .n_ff = s->n_ff, .act = ACT_SILU};
    int bias = weight(t, 1, s->n_experts, DTYPE_F32, "exp_probs_b");
    int scores = product(t, h, s->n_experts, s->n_embd, "ffn_gate_inp", false);
    int route = graph_route(
        t->b, scores, bias,
        (struct route_params){.n_experts = s->n_experts, .n_used = s->n_used, .scale = 1});
    p.biased = s->expert_biases;
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        bool down = i == EXPERT_DOWN;
        struct graph_weight w = {.name = arena_printf(t->arena, "blk.%d.%s", t->layer, names[i]),
                                 .n_rows = down ? s->n_embd : s->n_ff,
                                 .n_cols = down ? s->n_ff : s->n_embd,
                                 .n_experts = s->n_experts,
                                 .dtype = s->dtype};
        p.weights[i] = graph_weight_add(t->b, w);
        if (!p.biased) continue;
        w.name = arena_printf(t->arena, "%s.bias", w.name);
        w.n_cols = w.n_rows;
        w.n_rows = 1;
        w.dtype = DTYPE_F32;
        p.biases[i] = graph_weight_add(t->b, w);
    }
    graph_block_begin(t->b, BLOCK_EXPERTS);
    int y = graph_experts(t->b, h, route, p);
    graph_block_end(t->b);
    return y;
}

static int feed_forward(struct tiny *t, int x) {
    const struct tiny_shape *s = t->s;
    int h = norm(t, x, s->n_embd, "ffn_norm");
    if (s->n_experts) return graph_add(t->b, x, experts(t, h));
    graph_block_begin(t->b, BLOCK_FFN);
    int gate = product(t, h, s->n_ff, s->n_embd, "ffn_gate", false);
    int up = product(t, h, s->n_ff, s->n_embd, "ffn_up", false);
    int y = graph_gated(t->b, gate, up, ACT_SILU);
    enum dtype dtype = s->dtype_down ? s->dtype_down : s->dtype;
    y = graph_matmul(t->b, y, weight(t, s->n_embd, s->n_ff, dtype, "ffn_down"), -1, MATH_F32);
    graph_block_end(t->b);
    return graph_add(t->b, x, y);
}

struct graph *tiny_graph(struct arena *arena, const struct tiny_shape *s) {
    struct tiny t = {.arena = arena, .b = graph_builder_open(arena), .s = s, .layer = -1};
    t.rope = (struct rope_params){.head_dim = s->head_dim, .n_rot = s->head_dim, .magnitude = 1};
    t.rope.inv_freq = ARENA_ARRAY(arena, float, s->head_dim);
    int x = graph_embed(t.b, weight(&t, s->n_vocab, s->n_embd, s->dtype, "token_embd"), 1);
    for (t.layer = 0; t.layer < s->n_layers; t.layer++) {
        graph_layer(t.b, t.layer);
        bool delta = s->delta_heads && t.layer < s->n_layers - 1;
        x = delta ? delta_net(&t, x) : attention(&t, x);
        if (t.layer == s->n_layers - 1) x = graph_rows(t.b, x);
        x = feed_forward(&t, x);
    }
    t.layer = -1;
    graph_layer(t.b, -1);
    int hidden = norm(&t, x, s->n_embd, "output_norm");
    graph_block_begin(t.b, BLOCK_HEAD);
    int logits = product(&t, hidden, s->n_vocab, s->n_embd, "output", false);
    graph_block_end(t.b);
    return graph_finish(t.b, hidden, logits, s->row_group ? s->row_group : 1);
}

int tiny_op(const struct graph *g, const char *name) {
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].weight >= 0 && strcmp(g->weights[g->ops[i].weight].name, name) == 0) return i;
    return -1;
}

int tiny_block(const struct graph *g, enum block_kind kind) {
    for (int i = 0; i < g->n_blocks; i++)
        if (g->blocks[i].kind == kind) return i;
    return -1;
}
