/* Routed experts (ecosystem.md 4.2, 4.3): their keys, tensors and part of the graph, for every
 * architecture that has them. */
#include "model/bind.h"

#include <math.h>

#define MAX_EXPERTS 4096

static ats_status get_count(const struct binding *b, const char *key, int most, int *out) {
    uint32_t v;
    TRY(gguf_get_u32(b->file, key, &v));
    if (v < 1 || v > (uint32_t)most)
        return fail(ATS_BAD_FILE, "key %s%s is %u, expected 1 to %d", b->file->arch, key, v, most);
    *out = (int)v;
    return ATS_OK;
}

ats_status experts_read(const struct binding *b, struct experts_hparams *out) {
    *out = (struct experts_hparams){.n_ff = b->hp.n_ff, .scale = 1};
    uint32_t n = 0;
    TRY(gguf_opt_u32(b->file, ".expert_count", &n));
    if (n == 0) return ATS_OK;
    TRY(get_count(b, ".expert_count", MAX_EXPERTS, &out->n_experts));
    TRY(get_count(b, ".expert_used_count", out->n_experts, &out->n_used));
    if (gguf_find(b->file, ".expert_feed_forward_length"))
        TRY(get_count(b, ".expert_feed_forward_length", 1 << 20, &out->n_ff));
    TRY(gguf_opt_f32(b->file, ".expert_weights_scale", &out->scale));
    if (!isfinite(out->scale)) return fail(ATS_BAD_FILE, "key expert_weights_scale is not finite");
    if (out->scale <= 0) out->scale = 1; /* some converters write 0 for none */
    return ATS_OK;
}

static ats_status bind_three(struct binding *b, const struct experts_hparams *hp, int layer,
                             struct experts_params *p) {
    static const char *const names[] = {"gate", "up", "down"};
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        int n_rows = i == EXPERT_DOWN ? b->hp.n_embd : hp->n_ff;
        int n_cols = i == EXPERT_DOWN ? hp->n_ff : b->hp.n_embd;
        TRY(bind_experts(b, hp->n_experts, n_rows, n_cols, &p->weights[i],
                         "blk.%d.ffn_%s_exps.weight", layer, names[i]));
        p->math[i] = bind_math(b, p->weights[i]);
    }
    return ATS_OK;
}

ats_status experts_add(struct binding *b, const struct experts_options *options,
                       const struct experts_hparams *hp, int layer, int h, int *out) {
    struct graph_builder *g = b->builder;
    struct experts_params p = {
        .n_experts = hp->n_experts, .n_used = hp->n_used, .n_ff = hp->n_ff, .act = options->act};
    int router;
    bool normalise = options->normalise;
    TRY(gguf_opt_bool(b->file, ".expert_weights_norm", &normalise));
    TRY(bind_matrix(b, hp->n_experts, b->hp.n_embd, &router, "blk.%d.ffn_gate_inp.weight", layer));
    TRY(bind_three(b, hp, layer, &p));
    int scores = graph_matmul(g, h, router, -1, bind_math(b, router));
    int route = graph_route(g, scores, -1,
                            (struct route_params){.n_experts = hp->n_experts,
                                                  .n_used = hp->n_used,
                                                  .gating = options->gating,
                                                  .normalise = normalise,
                                                  .scale = hp->scale});
    graph_block_begin(g, BLOCK_EXPERTS);
    *out = graph_experts(g, h, route, p);
    graph_block_end(g);
    return ATS_OK;
}
