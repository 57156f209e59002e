/*
 * gpt-oss: attention with sinks and biases, a window on every second layer from the first on, YaRN;
 * experts with biases and a clamped gate, chosen before the softmax. Facts: ecosystem.md 4.3,
 * models/README.md.
 */
#include "model/parts.h"

#define FULL_EVERY 2

struct gptoss {
    struct rope_params full, local;
    bool *slides; /* (n_layers) */
    struct experts_hparams experts;
};

static ats_status attention(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct gptoss *m = user;
    const bool slides = m->slides[layer];
    struct attention_options o = {.rope = slides ? &m->local : &m->full,
                                  .window = slides ? b->hp.sliding_window : 0,
                                  .need_biases = true,
                                  .sinks = true};
    (void)x;
    return part_attention(b, &o, layer, h, y);
}

static ats_status feed_forward(struct binding *b, const void *user, int layer, int h, int *x,
                               int *y) {
    static const struct experts_options experts = {
        .gating = GATING_SOFTMAX_CHOSEN, .act = ACT_CLAMPED, .biases = true};
    const struct gptoss *m = user;
    (void)x;
    return experts_add(b, &experts, &m->experts, layer, h, y);
}

ats_status arch_gptoss_build(struct binding *b, int *hidden, int *logits) {
    struct gptoss m;
    uint32_t window;
    float base = 0;
    TRY(gguf_get_u32(b->file, ".attention.sliding_window", &window)); /* hp has 0 for too large */
    TRY(bind_window_layers(b, window, FULL_EVERY, &m.slides));
    TRY(experts_need(b, &m.experts));
    TRY(rope_read_base_swa(b, &base));
    TRY(rope_read(b, &(struct rope_options){.halves = true}, &m.full));
    TRY(rope_read(b, &(struct rope_options){.halves = true, .freq_base = base}, &m.local));
    const struct decoder_options o = {.ffn_norm = "post_attention_norm",
                                      .mix = attention,
                                      .feed_forward = feed_forward,
                                      .user = &m};
    return part_decoder(b, &o, hidden, logits);
}
