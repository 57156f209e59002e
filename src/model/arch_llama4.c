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

struct llama4 {
    struct rope_params rope;
    struct experts_hparams experts;
};

static ats_status attention(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct llama4 *m = user;
    const struct attention_options full = {.temp_scale = TEMP_SCALE, .temp_length = TEMP_LENGTH};
    const struct attention_options local = {.rope = &m->rope,
                                            .chunk = CHUNK,
                                            .norm_turned =
                                                m->experts.n_experts != EXPERTS_WITHOUT_NORMS};
    bool is_full = (layer + 1) % FULL_EVERY == 0;
    (void)x;
    return part_attention(b, is_full ? &full : &local, layer, h, y);
}

static ats_status feed_forward(struct binding *b, const void *user, int layer, int h, int *x,
                               int *y) {
    static const struct experts_options experts = {
        .gating = GATING_SIGMOID, .act = ACT_SILU, .scale_input = true};
    const struct llama4 *m = user;
    if (!experts_in_layer(&m->experts, layer))
        return part_gated(b, &(struct gated_options){.act = ACT_SILU}, layer, h, y);
    TRY(experts_add(b, &experts, &m->experts, layer, h, y));
    return part_shared(b, &m->experts, false, layer, h, x);
}

ats_status arch_llama4_build(struct binding *b, int *hidden, int *logits) {
    struct llama4 m;
    TRY(experts_need(b, &m.experts));
    TRY(rope_read(b, &(struct rope_options){.halves = false}, &m.rope));
    const struct decoder_options o = {.mix = attention, .feed_forward = feed_forward, .user = &m};
    return part_decoder(b, &o, hidden, logits);
}
