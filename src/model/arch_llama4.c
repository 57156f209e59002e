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
    bool *slides; /* (n_layers) attend within chunks */
    float temp_scale;
    struct experts_hparams experts;
};

static ats_status attention(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct llama4 *m = user;
    struct attention_options o = {.chunk = m->slides[layer] ? CHUNK : 0};
    (void)x;
    if ((layer + 1) % FULL_EVERY == 0) {
        o.temp_scale = m->temp_scale;
        o.temp_length = TEMP_LENGTH;
    } else {
        o.rope = &m->rope;
        o.norm_turned = m->experts.n_experts != EXPERTS_WITHOUT_NORMS;
    }
    return part_attention(b, &o, layer, h, y);
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
    struct llama4 m = {.temp_scale = TEMP_SCALE};
    uint32_t window = CHUNK;
    float base = 0;
    TRY(gguf_opt_f32(b->file, ".attention.temperature_scale", &m.temp_scale));
    if (m.temp_scale < 0)
        return fail(ATS_BAD_FILE, "key llama4.attention.temperature_scale is %g",
                    (double)m.temp_scale);
    TRY(gguf_opt_u32(b->file, ".attention.sliding_window", &window));
    if (window != CHUNK)
        return fail(ATS_UNSUPPORTED, "key llama4.attention.sliding_window is %u, not %d", window,
                    CHUNK);
    TRY(bind_window_layers(b, window, FULL_EVERY, &m.slides));
    TRY(experts_need(b, &m.experts));
    TRY(rope_read_base_swa(b, &base));
    TRY(rope_read(b, &(struct rope_options){.halves = false, .freq_base = base}, &m.rope));
    const struct decoder_options o = {.mix = attention, .feed_forward = feed_forward, .user = &m};
    return part_decoder(b, &o, hidden, logits);
}
