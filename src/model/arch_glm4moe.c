/*
 * GLM-4.5 and later: leading dense layers, then experts chosen by sigmoid and a correction bias,
 * beside a shared one. Facts: ecosystem.md 4.3, models/README.md.
 */
#include "model/parts.h"

static ats_status feed_forward(struct binding *b, const struct experts_hparams *hp, int layer,
                               int *x) {
    static const struct experts_options experts = {
        .gating = GATING_SIGMOID, .normalise = true, .act = ACT_SILU, .choice_bias = true};
    int h, y;
    TRY(part_norm(b, "post_attention_norm", layer, *x, &h));
    if (!experts_in_layer(hp, layer)) {
        TRY(part_gated(b, &(struct gated_options){.act = ACT_SILU}, layer, h, &y));
    } else {
        TRY(part_shared(b, hp, false, layer, h, x));
        TRY(experts_add(b, &experts, hp, layer, h, &y));
    }
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

static ats_status attention(struct binding *b, const struct rope_params *rope, int layer, int *x) {
    int h, y;
    TRY(part_norm(b, "attn_norm", layer, *x, &h));
    TRY(part_attention(b, &(struct attention_options){.rope = rope}, layer, h, &y));
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

ats_status arch_glm4moe_build(struct binding *b, int *hidden, int *logits) {
    struct experts_hparams hp;
    struct rope_params rope;
    int embedding, x;
    TRY(experts_need(b, &hp));
    TRY(rope_read(b, &(struct rope_options){.halves = true}, &rope));
    TRY(part_embed(b, 1, &embedding, &x));
    for (int layer = 0; layer < b->hp.n_layers; layer++) {
        graph_layer(b->builder, layer);
        TRY(attention(b, &rope, layer, &x));
        if (layer == b->hp.n_layers - 1) x = graph_rows(b->builder, x);
        TRY(feed_forward(b, &hp, layer, &x));
    }
    return part_head(b, embedding, x, hidden, logits);
}
