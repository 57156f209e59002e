/*
 * Plain decoders: llama (Mistral, SmolLM2; with experts: Mixtral), qwen2, qwen3, qwen3moe, smollm3,
 * phi3. One builder; what differs is whether rotary pairs are halves, which layers have none, and
 * which tensors the file holds (biases, q/k norms, fused q/k/v and gate/up, experts in place of the
 * feed-forward). Facts: ecosystem.md 4.3, models/README.md.
 */
#include "model/bind.h"

#include <math.h>
#include <string.h>

struct dense_options {
    const char *arch;
    bool rope_halves;
    bool fused;        /* attn_qkv, and gate and up in ffn_up */
    int no_rope_every; /* each n-th layer has no rotary embedding; 0: all have it */
};

static const struct dense_options dense_archs[] = {
    {"llama", false, false, 0},   {"qwen2", true, false, 0}, {"qwen3", true, false, 0},
    {"smollm3", false, false, 4}, {"phi3", true, true, 0},   {"qwen3moe", true, false, 0},
};

struct dense {
    struct binding *b;
    const struct dense_options *o;
    struct rope_params rope;
    struct experts_hparams experts;
};

static int matmul(struct dense *d, int in, int weight, int bias) {
    return graph_matmul(d->b->builder, in, weight, bias, bind_math(d->b, weight));
}

/* Weights of q, k, v: three tensors, or row ranges of one. */
static ats_status bind_qkv(struct dense *d, int layer, int w[3], int bias[3]) {
    static const char *const names[] = {"attn_q", "attn_k", "attn_v"};
    struct binding *b = d->b;
    const struct hparams *hp = &b->hp;
    int q = hp->n_heads * hp->head_dim, kv = hp->n_kv_heads * hp->head_dim;
    const int rows[] = {q, kv, kv}, begin[] = {0, q, q + kv};
    for (int i = 0; i < 3; i++) {
        bias[i] = -1;
        if (d->o->fused) {
            TRY(bind_rows(b, begin[i], rows[i], q + 2 * kv, hp->n_embd, &w[i],
                          "blk.%d.attn_qkv.weight", layer));
            continue;
        }
        TRY(bind_matrix(b, rows[i], hp->n_embd, &w[i], "blk.%d.%s.weight", layer, names[i]));
        TRY(bind_vector(b, rows[i], true, &bias[i], "blk.%d.%s.bias", layer, names[i]));
    }
    return ATS_OK;
}

/* q or k: norm per head if the file has one, then the rotary embedding. */
static ats_status turn_heads(struct dense *d, int layer, const char *norm, int *value) {
    struct graph_builder *g = d->b->builder;
    const struct hparams *hp = &d->b->hp;
    int weight;
    TRY(bind_vector(d->b, hp->head_dim, true, &weight, "blk.%d.%s.weight", layer, norm));
    if (weight >= 0) *value = graph_norm(g, *value, weight, hp->head_dim, hp->norm_eps);
    bool rope = !d->o->no_rope_every || (layer + 1) % d->o->no_rope_every != 0;
    if (rope) *value = graph_rope(g, *value, d->rope);
    return ATS_OK;
}

static ats_status attention(struct dense *d, int layer, int *x) {
    struct binding *b = d->b;
    struct graph_builder *g = b->builder;
    const struct hparams *hp = &b->hp;
    int norm, w[3], bias[3], w_out, bias_out, value[3];
    TRY(bind_vector(b, hp->n_embd, false, &norm, "blk.%d.attn_norm.weight", layer));
    TRY(bind_qkv(d, layer, w, bias));
    TRY(bind_matrix(b, hp->n_embd, hp->n_heads * hp->head_dim, &w_out, "blk.%d.attn_output.weight",
                    layer));
    TRY(bind_vector(b, hp->n_embd, true, &bias_out, "blk.%d.attn_output.bias", layer));

    int h = graph_norm(g, *x, norm, hp->n_embd, hp->norm_eps);
    graph_block_begin(g, BLOCK_ATTENTION);
    for (int i = 0; i < 3; i++)
        value[i] = matmul(d, h, w[i], bias[i]);
    TRY(turn_heads(d, layer, "attn_q_norm", &value[0]));
    TRY(turn_heads(d, layer, "attn_k_norm", &value[1]));
    int y = graph_attention(g, value[0], value[1], value[2],
                            (struct attention_params){.n_heads = hp->n_heads,
                                                      .n_kv_heads = hp->n_kv_heads,
                                                      .head_dim = hp->head_dim,
                                                      .scale = 1 / sqrtf((float)hp->head_dim),
                                                      .window = hp->sliding_window,
                                                      .kv_layer = layer});
    y = matmul(d, y, w_out, bias_out);
    graph_block_end(g);
    *x = graph_add(g, *x, y);
    return ATS_OK;
}

static ats_status gated(struct dense *d, int layer, int h, int *out) {
    struct binding *b = d->b;
    struct graph_builder *g = b->builder;
    const struct hparams *hp = &b->hp;
    int gate, up, down;
    if (d->o->fused) {
        TRY(bind_rows(b, 0, hp->n_ff, 2 * hp->n_ff, hp->n_embd, &gate, "blk.%d.ffn_up.weight",
                      layer));
        TRY(bind_rows(b, hp->n_ff, hp->n_ff, 2 * hp->n_ff, hp->n_embd, &up, "blk.%d.ffn_up.weight",
                      layer));
    } else {
        TRY(bind_matrix(b, hp->n_ff, hp->n_embd, &gate, "blk.%d.ffn_gate.weight", layer));
        TRY(bind_matrix(b, hp->n_ff, hp->n_embd, &up, "blk.%d.ffn_up.weight", layer));
    }
    TRY(bind_matrix(b, hp->n_embd, hp->n_ff, &down, "blk.%d.ffn_down.weight", layer));

    graph_block_begin(g, BLOCK_FFN);
    int y = graph_gated(g, matmul(d, h, gate, -1), matmul(d, h, up, -1), ACT_SILU);
    *out = matmul(d, y, down, -1);
    graph_block_end(g);
    return ATS_OK;
}

/* Models with experts may have dense layers as well. */
static ats_status feed_forward(struct dense *d, int layer, int *x) {
    static const struct experts_options experts = {GATING_SOFTMAX, true, ACT_SILU};
    struct binding *b = d->b;
    int norm, y;
    TRY(bind_vector(b, b->hp.n_embd, false, &norm, "blk.%d.ffn_norm.weight", layer));
    int h = graph_norm(b->builder, *x, norm, b->hp.n_embd, b->hp.norm_eps);
    if (d->experts.n_experts > 0 && !bind_has(b, "blk.%d.ffn_gate.weight", layer))
        TRY(experts_add(b, &experts, &d->experts, layer, h, &y));
    else
        TRY(gated(d, layer, h, &y));
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

static ats_status head(struct dense *d, int embedding, int x, int *hidden, int *logits) {
    struct binding *b = d->b;
    int norm, output = embedding; /* tied unless the file has a matrix of its own */
    TRY(bind_vector(b, b->hp.n_embd, false, &norm, "output_norm.weight"));
    if (bind_has(b, "output.weight"))
        TRY(bind_matrix(b, b->hp.n_vocab, b->hp.n_embd, &output, "output.weight"));
    *hidden = graph_norm(b->builder, x, norm, b->hp.n_embd, b->hp.norm_eps);
    graph_block_begin(b->builder, BLOCK_HEAD);
    *logits = matmul(d, *hidden, output, -1);
    graph_block_end(b->builder);
    return ATS_OK;
}

ats_status arch_dense_build(struct binding *b, int *hidden, int *logits) {
    struct dense d = {.b = b};
    for (size_t i = 0; i < COUNT_OF(dense_archs); i++)
        if (strcmp(dense_archs[i].arch, b->file->arch) == 0) d.o = &dense_archs[i];
    REQUIRE(d.o);
    TRY(experts_read(b, &d.experts));
    TRY(rope_read(b, d.o->rope_halves, &d.rope));

    int embedding;
    TRY(bind_matrix(b, b->hp.n_vocab, b->hp.n_embd, &embedding, "token_embd.weight"));
    int x = graph_embed(b->builder, embedding, 1);
    for (int layer = 0; layer < b->hp.n_layers; layer++) {
        graph_layer(b->builder, layer);
        TRY(attention(&d, layer, &x));
        /* from the last feed-forward on, only rows whose result is wanted */
        if (layer == b->hp.n_layers - 1) x = graph_rows(b->builder, x);
        TRY(feed_forward(&d, layer, &x));
    }
    graph_layer(b->builder, -1);
    return head(&d, embedding, x, hidden, logits);
}
