/*
 * Llama 4: every n-th layer attends to everything without rotary embedding, its queries scaled by
 * position; the others within chunks, q and k normed after they are turned. Every n-th layer has
 * experts, whose weight multiplies their input, beside a shared one. Facts: ecosystem.md 4.3;
 * constants that the file does not hold: models/README.md.
 */
#include "model/parts.h"

#define FULL_EVERY            4
#define CHUNK                 8192
#define TEMP_SCALE            0.1f
#define TEMP_LENGTH           8192
#define EXPERTS_WITHOUT_NORMS 128 /* the model of so many experts does not norm q and k */

static ats_status attention(struct binding *b, const struct rope_params *rope,
                            const struct experts_hparams *hp, int layer, int *x) {
    const struct attention_options full = {.temp_scale = TEMP_SCALE, .temp_length = TEMP_LENGTH};
    const struct attention_options local = {
        .rope = rope, .chunk = CHUNK, .norm_turned = hp->n_experts != EXPERTS_WITHOUT_NORMS};
    bool is_full = (layer + 1) % FULL_EVERY == 0;
    int h, y;
    TRY(part_norm(b, "attn_norm", layer, *x, &h));
    TRY(part_attention(b, is_full ? &full : &local, layer, h, &y));
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

static ats_status feed_forward(struct binding *b, const struct experts_hparams *hp, int layer,
                               int *x) {
    static const struct experts_options experts = {
        .gating = GATING_SIGMOID, .act = ACT_SILU, .scale_input = true};
    int h, y;
    TRY(part_norm(b, "ffn_norm", layer, *x, &h));
    if (!experts_in_layer(hp, layer)) {
        TRY(part_gated(b, &(struct gated_options){.act = ACT_SILU}, layer, h, &y));
    } else {
        TRY(part_shared(b, hp, false, layer, h, x));
        TRY(experts_add(b, &experts, hp, layer, h, &y));
    }
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

ats_status arch_llama4_build(struct binding *b, int *hidden, int *logits) {
    struct experts_hparams hp;
    struct rope_params rope;
    int embedding, x;
    TRY(experts_need(b, &hp));
    TRY(rope_read(b, &(struct rope_options){.halves = false}, &rope));
    TRY(part_embed(b, 1, &embedding, &x));
    for (int layer = 0; layer < b->hp.n_layers; layer++) {
        graph_layer(b->builder, layer);
        TRY(attention(b, &rope, &hp, layer, &x));
        if (layer == b->hp.n_layers - 1) x = graph_rows(b->builder, x);
        TRY(feed_forward(b, &hp, layer, &x));
    }
    return part_head(b, embedding, x, hidden, logits);
}
