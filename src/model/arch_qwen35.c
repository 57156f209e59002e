/*
 * Qwen3-Next, Qwen3.5, Qwen3.5 MoE: most layers have a gated delta net (arXiv 2412.06464) behind a
 * short convolution in place of attention; every n-th attends, with an output gate. Experts, if
 * any, beside a shared one with a gate. Facts: ecosystem.md 4.3 and 4.4, models/README.md.
 *
 * For text the sections of the rotary embedding have one position, so it is a plain partial one.
 */
#include "model/parts.h"

#include <math.h>
#include <string.h>

#define FULL_EVERY  4     /* unless a key says otherwise */
#define L2_NORM_EPS 1e-6f /* of q and k, no key */

struct qwen35 {
    bool tiled;      /* value head j has key head j % n_keys, not neighbours one */
    bool *recurrent; /* (n_layers) */
    int n_taps;
    struct delta_params delta;
    struct rope_params rope;
    struct experts_hparams experts;
};

/* ---- hyper-parameters ---- */

static ats_status read_layers(struct binding *b, struct qwen35 *m) {
    uint32_t every = FULL_EVERY;
    TRY(gguf_opt_u32(b->file, ".full_attention_interval", &every));
    if (every < 1) return fail(ATS_BAD_FILE, "key %s.full_attention_interval is 0", b->file->arch);
    return bind_layer_flags(b, ".attention.recurrent_layers", every, &m->recurrent);
}

static ats_status read_delta(struct binding *b, struct qwen35 *m) {
    struct delta_params *p = &m->delta;
    int inner;
    TRY(bind_count(b->file, ".ssm.conv_kernel", CONV_MAX_TAPS, &m->n_taps));
    TRY(bind_count(b->file, ".ssm.state_size", 1024, &p->dim_k));
    TRY(bind_count(b->file, ".ssm.group_count", 1024, &p->n_key_heads));
    TRY(bind_count(b->file, ".ssm.time_step_rank", 1024, &p->n_heads));
    TRY(bind_count(b->file, ".ssm.inner_size", 1 << 20, &inner));
    p->dim_v = p->dim_k;
    p->tiled = m->tiled;
    if (p->n_heads % p->n_key_heads != 0 || inner != p->n_heads * p->dim_v)
        return fail(ATS_BAD_FILE,
                    "keys %s.ssm.*: %d value heads of %d, %d key heads and an inner size of %d do "
                    "not fit",
                    b->file->arch, p->n_heads, p->dim_v, p->n_key_heads, inner);
    if (p->dim_k % DELTA_BLOCK != 0)
        return fail(ATS_UNSUPPORTED, "key %s.ssm.state_size is %d, not a multiple of %d",
                    b->file->arch, p->dim_k, DELTA_BLOCK);
    return ATS_OK;
}

/* ---- the delta net ---- */

/* Values of a layer's delta net, before and after its convolution. */
struct mixer {
    struct binding *b;
    const struct qwen35 *m;
    int layer, h;
    int n_keys, n_values; /* channels of q and of k; of v and of the gate */
    int q, k, v, z;       /* values */
    int a, beta, ba;      /* ba: both in one, or -1 */
};

static int product(struct mixer *x, int weight) {
    return graph_matmul(x->b->builder, x->h, weight, -1, bind_math(x->b, weight));
}

static int slice(struct mixer *x, int in, int group, int first, int n) {
    return graph_slice(x->b->builder, in, (struct slice_params){group, first, n});
}

/* How much each head forgets and takes: two matrices, or one whose rows are, for each key head,
 * those of its value heads' beta and then of their alpha. Small, and wanted wherever a head is:
 * before the block. */
static ats_status add_gates(struct mixer *x) {
    const struct delta_params *p = &x->m->delta;
    int alpha, beta, n_embd = x->b->hp.n_embd;
    x->ba = -1;
    if (bind_has(x->b, "blk.%d.ssm_ba.weight", x->layer)) {
        TRY(bind_matrix(x->b, 2 * p->n_heads, n_embd, &beta, "blk.%d.ssm_ba.weight", x->layer));
        x->ba = product(x, beta);
        return ATS_OK;
    }
    TRY(bind_matrix(x->b, p->n_heads, n_embd, &alpha, "blk.%d.ssm_alpha.weight", x->layer));
    TRY(bind_matrix(x->b, p->n_heads, n_embd, &beta, "blk.%d.ssm_beta.weight", x->layer));
    x->a = product(x, alpha);
    x->beta = product(x, beta);
    return ATS_OK;
}

/* Where they are wanted: nothing waits for them by itself. */
static void split_gates(struct mixer *x) {
    const int group = x->m->delta.n_heads / x->m->delta.n_key_heads;
    if (x->ba < 0) return;
    x->beta = slice(x, x->ba, 2 * group, 0, group);
    x->a = slice(x, x->ba, 2 * group, group, group);
}

/* Older files: for each key head the rows of q, k, and its value heads' v and gates. */
static ats_status add_fused_inputs(struct mixer *x) {
    const struct delta_params *p = &x->m->delta;
    const int values = p->n_heads / p->n_key_heads * p->dim_v, group = 2 * p->dim_k + 2 * values;
    int w;
    TRY(bind_matrix(x->b, p->n_key_heads * group, x->b->hp.n_embd, &w, "blk.%d.ssm_in.weight",
                    x->layer));
    int all = product(x, w);
    x->q = slice(x, all, group, 0, p->dim_k);
    x->k = slice(x, all, group, p->dim_k, p->dim_k);
    x->v = slice(x, all, group, 2 * p->dim_k, values);
    x->z = slice(x, all, group, 2 * p->dim_k + values, values);
    return ATS_OK;
}

static ats_status add_inputs(struct mixer *x) {
    if (bind_has(x->b, "blk.%d.ssm_in.weight", x->layer)) return add_fused_inputs(x);
    const int rows[3] = {x->n_keys, x->n_keys, x->n_values};
    const int n_embd = x->b->hp.n_embd, whole = 2 * x->n_keys + x->n_values;
    int w[3], gate, begin = 0;
    for (int i = 0; i < 3; begin += rows[i++])
        TRY(bind_rows(x->b, begin, rows[i], whole, n_embd, &w[i], "blk.%d.attn_qkv.weight",
                      x->layer));
    TRY(bind_matrix(x->b, x->n_values, n_embd, &gate, "blk.%d.attn_gate.weight", x->layer));
    x->q = product(x, w[0]);
    x->k = product(x, w[1]);
    x->v = product(x, w[2]);
    x->z = product(x, gate);
    return ATS_OK;
}

static ats_status convolve(struct mixer *x, int first, int n, int *value) {
    int filters;
    TRY(bind_filters(x->b, first, n, 2 * x->n_keys + x->n_values, x->m->n_taps, &filters,
                     "blk.%d.ssm_conv1d.weight", x->layer));
    *value = graph_conv(x->b->builder, *value, filters, (struct conv_params){x->m->n_taps, true});
    return ATS_OK;
}

/* q, k, v after convolution and norms to the heads' outputs, normed and gated. */
static ats_status add_heads(struct mixer *x, int *y) {
    const struct delta_params *p = &x->m->delta;
    struct graph_builder *g = x->b->builder;
    int decay, dt, norm;
    TRY(bind_vector(x->b, p->n_heads, false, &decay, "blk.%d.ssm_a", x->layer));
    TRY(bind_vector(x->b, p->n_heads, false, &dt, "blk.%d.ssm_dt.bias", x->layer));
    TRY(bind_vector(x->b, p->dim_v, false, &norm, "blk.%d.ssm_norm.weight", x->layer));
    int q = graph_l2_norm(g, x->q, p->dim_k, L2_NORM_EPS, 1 / sqrtf((float)p->dim_k));
    int k = graph_l2_norm(g, x->k, p->dim_k, L2_NORM_EPS, 1);
    *y = graph_delta(g, (int[]){q, k, x->v, x->a, x->beta}, decay, dt, *p);
    *y = graph_norm(g, *y, norm, p->dim_v, x->b->hp.norm_eps);
    *y = graph_gated(g, x->z, *y, ACT_SILU);
    return ATS_OK;
}

static ats_status add_delta_net(struct binding *b, const struct qwen35 *m, int layer, int h,
                                int *out) {
    const struct delta_params *p = &m->delta;
    struct mixer x = {.b = b, .m = m, .layer = layer, .h = h};
    int w;
    x.n_keys = p->n_key_heads * p->dim_k;
    x.n_values = p->n_heads * p->dim_v;
    TRY(add_gates(&x));
    TRY(bind_matrix(b, b->hp.n_embd, x.n_values, &w, "blk.%d.ssm_out.weight", layer));
    graph_block_begin(b->builder, BLOCK_RECURRENT);
    TRY(add_inputs(&x));
    TRY(convolve(&x, 0, x.n_keys, &x.q));
    TRY(convolve(&x, x.n_keys, x.n_keys, &x.k));
    TRY(convolve(&x, 2 * x.n_keys, x.n_values, &x.v));
    split_gates(&x);
    TRY(add_heads(&x, out));
    *out = graph_matmul(b->builder, *out, w, -1, bind_math(b, w));
    graph_block_end(b->builder);
    return ATS_OK;
}

/* ---- layers ---- */

static ats_status mix(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct qwen35 *m = user;
    (void)x;
    if (m->recurrent[layer]) return add_delta_net(b, m, layer, h, y);
    return part_attention(
        b, &(struct attention_options){.rope = &m->rope, .gated = true, .need_head_norms = true},
        layer, h, y);
}

static ats_status feed_forward(struct binding *b, const void *user, int layer, int h, int *x,
                               int *y) {
    static const struct experts_options experts = {
        .gating = GATING_SOFTMAX, .normalise = true, .act = ACT_SILU};
    const struct qwen35 *m = user;
    if (m->experts.n_experts == 0)
        return part_gated(b, &(struct gated_options){.act = ACT_SILU}, layer, h, y);
    TRY(experts_add(b, &experts, &m->experts, layer, h, y));
    return part_shared(b, &m->experts, true, layer, h, x);
}

ats_status arch_qwen35_build(struct binding *b, int *hidden, int *logits) {
    struct qwen35 m = {.tiled = strcmp(b->file->arch, "qwen3next") != 0};
    bool sectioned; /* these turn halves anyway */
    TRY(read_layers(b, &m));
    TRY(read_delta(b, &m));
    TRY(experts_read(b, &m.experts));
    TRY(rope_read_sections(b, &sectioned));
    TRY(rope_read(b, &(struct rope_options){.halves = true}, &m.rope));
    const struct decoder_options o = {
        .ffn_norm = "post_attention_norm", .mix = mix, .feed_forward = feed_forward, .user = &m};
    return part_decoder(b, &o, hidden, logits);
}
