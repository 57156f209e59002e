/*
 * GLM-4.5 and later: leading dense layers, then experts chosen by sigmoid and a correction bias,
 * beside a shared one. Facts: ecosystem.md 4.3, models/README.md.
 */
#include "model/parts.h"

struct glm4moe {
    struct rope_params rope;
    struct experts_hparams experts;
};

static ats_status attention(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct glm4moe *m = user;
    (void)x;
    return part_attention(b, &(struct attention_options){.rope = &m->rope}, layer, h, y);
}

static ats_status feed_forward(struct binding *b, const void *user, int layer, int h, int *x,
                               int *y) {
    static const struct experts_options experts = {
        .gating = GATING_SIGMOID, .normalise = true, .act = ACT_SILU, .choice_bias = true};
    const struct glm4moe *m = user;
    if (!experts_in_layer(&m->experts, layer))
        return part_gated(b, &(struct gated_options){.act = ACT_SILU}, layer, h, y);
    TRY(experts_add(b, &experts, &m->experts, layer, h, y));
    return part_shared(b, &m->experts, false, layer, h, x);
}

ats_status arch_glm4moe_build(struct binding *b, int *hidden, int *logits) {
    struct glm4moe m;
    bool sectioned; /* these turn halves anyway */
    TRY(experts_need(b, &m.experts));
    TRY(rope_read_sections(b, &sectioned));
    TRY(rope_read(b, &(struct rope_options){.halves = true}, &m.rope));
    const struct decoder_options o = {.ffn_norm = "post_attention_norm",
                                      .mix = attention,
                                      .feed_forward = feed_forward,
                                      .user = &m};
    return part_decoder(b, &o, hidden, logits);
}
