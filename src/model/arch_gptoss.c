/*
 * gpt-oss: attention with sinks and biases, a window on every second layer from the first on, YaRN;
 * experts with biases and a clamped gate, chosen before the softmax. Facts: ecosystem.md 4.3,
 * models/README.md.
 */
#include "model/parts.h"

#define WINDOW_EVERY 2

static ats_status layer_add(struct binding *b, const struct rope_params *rope,
                            const struct experts_hparams *hp, int layer, int *x) {
    static const struct experts_options experts = {
        .gating = GATING_SOFTMAX_CHOSEN, .act = ACT_CLAMPED, .biases = true};
    struct attention_options o = {.rope = rope,
                                  .window = layer % WINDOW_EVERY == 0 ? b->hp.sliding_window : 0,
                                  .need_biases = true,
                                  .sinks = true};
    int h, y;
    TRY(part_norm(b, "attn_norm", layer, *x, &h));
    TRY(part_attention(b, &o, layer, h, &y));
    *x = graph_add(b->builder, *x, y);
    if (layer == b->hp.n_layers - 1) *x = graph_rows(b->builder, *x);
    TRY(part_norm(b, "post_attention_norm", layer, *x, &h));
    TRY(experts_add(b, &experts, hp, layer, h, &y));
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

ats_status arch_gptoss_build(struct binding *b, int *hidden, int *logits) {
    struct experts_hparams hp;
    struct rope_params rope;
    uint32_t window;
    int embedding, x;
    TRY(gguf_get_u32(b->file, ".attention.sliding_window", &window)); /* hp has 0 for too large */
    TRY(experts_need(b, &hp));
    TRY(rope_read(b, &(struct rope_options){.halves = true}, &rope));
    TRY(part_embed(b, 1, &embedding, &x));
    for (int layer = 0; layer < b->hp.n_layers; layer++) {
        graph_layer(b->builder, layer);
        TRY(layer_add(b, &rope, &hp, layer, &x));
    }
    return part_head(b, embedding, x, hidden, logits);
}
