/* Routed experts (ecosystem.md 4.2, 4.3): their keys, tensors and part of the graph, for every
 * architecture that has them. */
#include "model/bind.h"

#include <math.h>

#define MAX_EXPERTS 4096

/* Which layers have experts, and how wide the shared ones are. */
static ats_status read_layers(const struct binding *b, struct experts_hparams *out) {
    int n_shared = 1;
    uint32_t n_dense = 0;
    TRY(gguf_opt_u32(b->file, ".leading_dense_block_count", &n_dense));
    out->n_dense = (int)min_i64(n_dense, INT32_MAX);
    if (gguf_find(b->file, ".interleave_moe_layer_step"))
        TRY(bind_count(b->file, ".interleave_moe_layer_step", INT32_MAX, &out->step));
    if (gguf_find(b->file, ".expert_shared_count"))
        TRY(bind_count(b->file, ".expert_shared_count", 64, &n_shared));
    out->n_ff_shared = out->n_ff * n_shared;
    if (gguf_find(b->file, ".expert_shared_feed_forward_length"))
        TRY(bind_count(b->file, ".expert_shared_feed_forward_length", 1 << 20, &out->n_ff_shared));
    return ATS_OK;
}

bool experts_in_layer(const struct experts_hparams *hp, int layer) {
    return layer >= hp->n_dense && (layer + 1) % hp->step == 0;
}

/* The file's numbers for enum gating; 0: it says nothing. */
static ats_status read_gating(const struct binding *b, enum gating *gating) {
    uint32_t v = 0;
    TRY(gguf_opt_u32(b->file, ".expert_gating_func", &v));
    if (v > 3)
        return fail(ATS_UNSUPPORTED, "key %s.expert_gating_func is %u, which is not supported",
                    b->file->arch, v);
    if (v == 1) *gating = GATING_SOFTMAX;
    if (v == 2) *gating = GATING_SIGMOID;
    if (v == 3) *gating = GATING_SOFTMAX_CHOSEN;
    return ATS_OK;
}

ats_status experts_read(const struct binding *b, struct experts_hparams *out) {
    *out = (struct experts_hparams){.n_ff = b->hp.n_ff, .step = 1, .scale = 1};
    uint32_t n = 0, n_groups = 1;
    TRY(gguf_opt_u32(b->file, ".expert_count", &n));
    if (n == 0) return ATS_OK;
    TRY(bind_count(b->file, ".expert_count", MAX_EXPERTS, &out->n_experts));
    TRY(bind_count(b->file, ".expert_used_count", out->n_experts, &out->n_used));
    if (gguf_find(b->file, ".expert_feed_forward_length"))
        TRY(bind_count(b->file, ".expert_feed_forward_length", 1 << 20, &out->n_ff));
    TRY(gguf_opt_u32(b->file, ".expert_group_count", &n_groups));
    if (n_groups > 1)
        return fail(ATS_UNSUPPORTED,
                    "key %s.expert_group_count is %u, groups of experts are not "
                    "supported",
                    b->file->arch, n_groups);
    TRY(read_layers(b, out));
    TRY(gguf_opt_f32(b->file, ".expert_weights_scale", &out->scale));
    if (!isfinite(out->scale)) return fail(ATS_BAD_FILE, "key expert_weights_scale is not finite");
    if (out->scale <= 0) out->scale = 1; /* some converters write 0 for none */
    return ATS_OK;
}

ats_status experts_need(const struct binding *b, struct experts_hparams *out) {
    TRY(experts_read(b, out));
    if (out->n_experts > 0) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "a %s file without experts is not supported", b->file->arch);
}

/* Gate and up of each expert one after the other in one tensor, as newer files may have them. */
static ats_status bind_fused(struct binding *b, const struct experts_hparams *hp, int layer,
                             int which, int *weight) {
    return bind_expert_rows(b, hp->n_experts, which == EXPERT_UP ? hp->n_ff : 0, hp->n_ff,
                            2 * hp->n_ff, b->hp.n_embd, weight, "blk.%d.ffn_gate_up_exps.weight",
                            layer);
}

/* One of the three. Old files have a tensor for each expert. */
static ats_status bind_stack(struct binding *b, const struct experts_hparams *hp, int layer,
                             const char *name, int n_rows, int n_cols, int *weight) {
    if (bind_has(b, "blk.%d.ffn_%s.0.weight", layer, name))
        return bind_each_expert(b, hp->n_experts, n_rows, n_cols, weight, "blk.%d.ffn_%s", layer,
                                name);
    return bind_experts(b, hp->n_experts, n_rows, n_cols, weight, "blk.%d.ffn_%s_exps.weight",
                        layer, name);
}

static ats_status bind_three(struct binding *b, const struct experts_hparams *hp, int layer,
                             struct experts_params *p) {
    static const char *const names[] = {"gate", "up", "down"};
    bool fused = bind_has(b, "blk.%d.ffn_gate_up_exps.weight", layer);
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        int n_rows = i == EXPERT_DOWN ? b->hp.n_embd : hp->n_ff;
        int n_cols = i == EXPERT_DOWN ? hp->n_ff : b->hp.n_embd;
        if (fused && i != EXPERT_DOWN)
            TRY(bind_fused(b, hp, layer, i, &p->weights[i]));
        else
            TRY(bind_stack(b, hp, layer, names[i], n_rows, n_cols, &p->weights[i]));
        p->math[i] = bind_math(b, p->weights[i]);
        if (p->math[i] == MATH_BF16) p->math[i] = MATH_F32; /* no kernels for them */
        if (p->biased)
            TRY(bind_expert_vectors(b, hp->n_experts, n_rows, &p->biases[i],
                                    "blk.%d.ffn_%s_exps.bias", layer, names[i]));
    }
    return ATS_OK;
}

/* The scores' product and what is chosen by them. */
static ats_status add_route(struct binding *b, const struct experts_options *options,
                            const struct experts_hparams *hp, int layer, int h, int *route) {
    int router, bias = -1, choice_bias = -1;
    struct route_params p = {.n_experts = hp->n_experts,
                             .n_used = hp->n_used,
                             .gating = options->gating,
                             .normalise = options->normalise,
                             .scale = hp->scale};
    TRY(read_gating(b, &p.gating));
    TRY(gguf_opt_bool(b->file, ".expert_weights_norm", &p.normalise));
    TRY(bind_matrix(b, hp->n_experts, b->hp.n_embd, &router, "blk.%d.ffn_gate_inp.weight", layer));
    if (options->biases)
        TRY(bind_vector(b, hp->n_experts, false, &bias, "blk.%d.ffn_gate_inp.bias", layer));
    if (options->choice_bias)
        TRY(bind_vector(b, hp->n_experts, false, &choice_bias, "blk.%d.exp_probs_b.bias", layer));
    int scores = graph_matmul(b->builder, h, router, bias, bind_math(b, router));
    *route = graph_route(b->builder, scores, choice_bias, p);
    return ATS_OK;
}

ats_status experts_add(struct binding *b, const struct experts_options *options,
                       const struct experts_hparams *hp, int layer, int h, int *out) {
    struct experts_params p = {.n_experts = hp->n_experts,
                               .n_used = hp->n_used,
                               .n_ff = hp->n_ff,
                               .act = options->act,
                               .biased = options->biases,
                               .scale_input = options->scale_input};
    int route;
    TRY(add_route(b, options, hp, layer, h, &route));
    TRY(bind_three(b, hp, layer, &p));
    graph_block_begin(b->builder, BLOCK_EXPERTS);
    *out = graph_experts(b->builder, h, route, p);
    graph_block_end(b->builder);
    return ATS_OK;
}
