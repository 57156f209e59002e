#include "model/parts.h"

#include <math.h>

static int matmul(struct binding *b, int in, int weight, int bias) {
    return graph_matmul(b->builder, in, weight, bias, bind_math(b, weight));
}

ats_status part_embed(struct binding *b, float scale, int *embedding, int *x) {
    TRY(bind_matrix(b, b->hp.n_vocab, b->hp.n_embd, embedding, "token_embd.weight"));
    *x = graph_embed(b->builder, *embedding, scale);
    return ATS_OK;
}

ats_status part_norm(struct binding *b, const char *name, int layer, int in, int *out) {
    int weight;
    TRY(bind_vector(b, b->hp.n_embd, false, &weight, "blk.%d.%s.weight", layer, name));
    *out = graph_norm(b->builder, in, weight, b->hp.n_embd, b->hp.norm_eps);
    return ATS_OK;
}

/* ---- attention ---- */

/* Weights of q, k, v: three tensors, or row ranges of one; their biases likewise. */
static ats_status bind_qkv(struct binding *b, const struct attention_options *o, int layer,
                           int w[3], int bias[3]) {
    static const char *const names[] = {"attn_q", "attn_k", "attn_v"};
    const struct hparams *hp = &b->hp;
    const bool fused = o->fused || bind_has(b, "blk.%d.attn_qkv.weight", layer);
    const bool fused_bias = bind_has(b, "blk.%d.attn_qkv.bias", layer);
    int q = hp->n_heads * hp->head_dim * (o->gated ? 2 : 1), kv = hp->n_kv_heads * hp->head_dim;
    const int rows[] = {q, kv, kv}, begin[] = {0, q, q + kv}, all = q + 2 * kv;
    for (int i = 0; i < 3; i++) {
        if (fused)
            TRY(bind_rows(b, begin[i], rows[i], all, hp->n_embd, &w[i], "blk.%d.attn_qkv.weight",
                          layer));
        else
            TRY(bind_matrix(b, rows[i], hp->n_embd, &w[i], "blk.%d.%s.weight", layer, names[i]));
        if (fused_bias)
            TRY(bind_part(b, begin[i], rows[i], all, &bias[i], "blk.%d.attn_qkv.bias", layer));
        else
            TRY(bind_vector(b, rows[i], !o->need_biases, &bias[i], "blk.%d.%s.bias", layer,
                            names[i]));
    }
    return ATS_OK;
}

/* q or k: norm per head if the file has one, then the rotary embedding, then a norm without
 * weights. */
static ats_status turn_heads(struct binding *b, const struct attention_options *o, int layer,
                             const char *norm, int *value) {
    const struct hparams *hp = &b->hp;
    int weight;
    TRY(bind_vector(b, hp->head_dim, !o->need_head_norms, &weight, "blk.%d.%s.weight", layer,
                    norm));
    if (weight >= 0) *value = graph_norm(b->builder, *value, weight, hp->head_dim, hp->norm_eps);
    if (o->rope) *value = graph_rope(b->builder, *value, *o->rope);
    if (o->norm_turned) *value = graph_norm(b->builder, *value, -1, hp->head_dim, hp->norm_eps);
    return ATS_OK;
}

/* Columns of q and of the gate, from those of both head by head. */
static void split_gate(struct binding *b, int *q, int *gate) {
    const int dim = b->hp.head_dim, both = *q;
    *q = graph_slice(b->builder, both, (struct slice_params){2 * dim, 0, dim});
    *gate = graph_slice(b->builder, both, (struct slice_params){2 * dim, dim, dim});
}

ats_status part_attention(struct binding *b, const struct attention_options *o, int layer, int h,
                          int *out) {
    struct graph_builder *g = b->builder;
    const struct hparams *hp = &b->hp;
    int w[3], bias[3], w_out, bias_out, sinks = -1, value[3], gate = -1;
    TRY(bind_qkv(b, o, layer, w, bias));
    TRY(bind_matrix(b, hp->n_embd, hp->n_heads * hp->head_dim, &w_out, "blk.%d.attn_output.weight",
                    layer));
    TRY(bind_vector(b, hp->n_embd, !o->need_biases, &bias_out, "blk.%d.attn_output.bias", layer));
    if (o->sinks)
        TRY(bind_vector(b, hp->n_heads, false, &sinks, "blk.%d.attn_sinks.weight", layer));

    graph_block_begin(g, BLOCK_ATTENTION);
    for (int i = 0; i < 3; i++)
        value[i] = matmul(b, h, w[i], bias[i]);
    if (o->gated) split_gate(b, &value[0], &gate);
    TRY(turn_heads(b, o, layer, "attn_q_norm", &value[0]));
    TRY(turn_heads(b, o, layer, "attn_k_norm", &value[1]));
    const float scale = hp->attn_scale > 0 ? hp->attn_scale : o->scale;
    struct attention_params p = {.n_heads = hp->n_heads,
                                 .n_kv_heads = hp->n_kv_heads,
                                 .head_dim = hp->head_dim,
                                 .scale = scale > 0 ? scale : 1 / sqrtf((float)hp->head_dim),
                                 .window = o->window,
                                 .kv_layer = layer,
                                 .chunk = o->chunk,
                                 .temp_scale = o->temp_scale,
                                 .temp_length = o->temp_length,
                                 .soft_cap = hp->attn_cap};
    int y = graph_attention(g, value[0], value[1], value[2], sinks, p);
    if (o->gated) y = graph_gated(g, gate, y, ACT_SIGMOID);
    *out = matmul(b, y, w_out, bias_out);
    graph_block_end(g);
    return ATS_OK;
}

/* ---- feed-forward and head ---- */

ats_status part_gated(struct binding *b, const struct gated_options *o, int layer, int h,
                      int *out) {
    struct graph_builder *g = b->builder;
    const char *suffix = o->suffix ? o->suffix : "";
    int n_embd = b->hp.n_embd, n_ff = o->n_ff > 0 ? o->n_ff : b->hp.n_ff, gate, up, down;
    if (n_ff == 0) TRY(bind_count(b->file, ".feed_forward_length", 1 << 20, &n_ff));
    if (o->fused) {
        TRY(bind_rows(b, 0, n_ff, 2 * n_ff, n_embd, &gate, "blk.%d.ffn_up%s.weight", layer,
                      suffix));
        TRY(bind_rows(b, n_ff, n_ff, 2 * n_ff, n_embd, &up, "blk.%d.ffn_up%s.weight", layer,
                      suffix));
    } else {
        TRY(bind_matrix(b, n_ff, n_embd, &gate, "blk.%d.ffn_gate%s.weight", layer, suffix));
        TRY(bind_matrix(b, n_ff, n_embd, &up, "blk.%d.ffn_up%s.weight", layer, suffix));
    }
    TRY(bind_matrix(b, n_embd, n_ff, &down, "blk.%d.ffn_down%s.weight", layer, suffix));

    graph_block_begin(g, BLOCK_FFN);
    int gated = matmul(b, h, gate, -1); /* the order of arguments would be the compiler's choice */
    int y = graph_gated(g, gated, matmul(b, h, up, -1), o->act);
    if (o->gate) y = graph_gated(g, o->gate, y, ACT_SIGMOID); /* here a split block stays one */
    *out = matmul(b, y, down, -1);
    graph_block_end(g);
    return ATS_OK;
}

ats_status part_shared(struct binding *b, const struct experts_hparams *hp, bool gated, int layer,
                       int h, int *x) {
    int y, gate;
    struct gated_options o = {.act = ACT_SILU, .suffix = "_shexp", .n_ff = hp->n_ff_shared};
    if (gated) {
        TRY(bind_matrix(b, 1, b->hp.n_embd, &gate, "blk.%d.ffn_gate_inp_shexp.weight", layer));
        o.gate = matmul(b, h, gate, -1);
    }
    TRY(part_gated(b, &o, layer, h, &y));
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

ats_status part_head(struct binding *b, int embedding, int x, int *hidden, int *logits) {
    int norm, output = embedding;
    graph_layer(b->builder, -1);
    TRY(bind_vector(b, b->hp.n_embd, false, &norm, "output_norm.weight"));
    if (bind_has(b, "output.weight"))
        TRY(bind_matrix(b, b->hp.n_vocab, b->hp.n_embd, &output, "output.weight"));
    *hidden = graph_norm(b->builder, x, norm, b->hp.n_embd, b->hp.norm_eps);
    graph_block_begin(b->builder, BLOCK_HEAD);
    *logits = matmul(b, *hidden, output, -1);
    graph_block_end(b->builder);
    return ATS_OK;
}

ats_status part_decoder(struct binding *b, const struct decoder_options *o, int *hidden,
                        int *logits) {
    const char *ffn_norm = o->ffn_norm ? o->ffn_norm : "ffn_norm";
    int embedding, x, h, y;
    TRY(part_embed(b, o->embed_scale > 0 ? o->embed_scale : 1, &embedding, &x));
    for (int layer = 0; layer < b->hp.n_layers; layer++) {
        graph_layer(b->builder, layer);
        TRY(part_norm(b, "attn_norm", layer, x, &h));
        TRY(o->mix(b, o->user, layer, h, &x, &y));
        if (o->post_norms) TRY(part_norm(b, "post_attention_norm", layer, y, &y));
        x = graph_add(b->builder, x, y);
        if (layer == b->hp.n_layers - 1) x = graph_rows(b->builder, x);
        TRY(part_norm(b, ffn_norm, layer, x, &h));
        TRY(o->feed_forward(b, o->user, layer, h, &x, &y));
        if (o->post_norms) TRY(part_norm(b, "post_ffw_norm", layer, y, &y));
        x = graph_add(b->builder, x, y);
    }
    return part_head(b, embedding, x, hidden, logits);
}
