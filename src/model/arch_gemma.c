/*
 * Gemma 3: every n-th layer attends to everything, the others through a window, each kind with its
 * own rotary embedding; embeddings are scaled, outputs are normed before they join the residual
 * stream. Facts: ecosystem.md 4.3; constants that the file does not hold: models/README.md.
 */
#include "model/parts.h"

#include <math.h>

#define FULL_EVERY      6
#define LOCAL_FREQ_BASE 10000
#define LAYERS_OF_27B   62 /* whose scores are scaled by n_embd / n_heads, not by the head */

struct gemma {
    struct rope_params full, local;
    bool *slides; /* (n_layers) */
};

static ats_status read_options(struct binding *b, struct gemma *m) {
    uint32_t window = 0; /* absent in models without any */
    float base = LOCAL_FREQ_BASE;
    TRY(gguf_opt_u32(b->file, ".attention.sliding_window", &window)); /* hp has 0 for too large */
    TRY(bind_window_layers(b, window, FULL_EVERY, &m->slides));
    TRY(rope_read_base_swa(b, &base));
    TRY(rope_read(b, &(struct rope_options){.halves = true}, &m->full));
    return rope_read(b, &(struct rope_options){.halves = true, .unscaled = true, .freq_base = base},
                     &m->local);
}

static ats_status attention(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct gemma *m = user;
    const struct hparams *hp = &b->hp;
    const bool slides = m->slides[layer];
    struct attention_options o = {.rope = slides ? &m->local : &m->full,
                                  .window = slides ? hp->sliding_window : 0,
                                  .need_head_norms = true};
    if (hp->n_layers == LAYERS_OF_27B) o.scale = sqrtf((float)hp->n_heads / (float)hp->n_embd);
    (void)x;
    return part_attention(b, &o, layer, h, y);
}

static ats_status feed_forward(struct binding *b, const void *user, int layer, int h, int *x,
                               int *y) {
    (void)user, (void)x;
    return part_gated(b, &(struct gated_options){.act = ACT_GELU}, layer, h, y);
}

ats_status arch_gemma_build(struct binding *b, int *hidden, int *logits) {
    struct gemma m;
    TRY(read_options(b, &m));
    const struct decoder_options o = {.embed_scale = sqrtf((float)b->hp.n_embd),
                                      .post_norms = true,
                                      .mix = attention,
                                      .feed_forward = feed_forward,
                                      .user = &m};
    return part_decoder(b, &o, hidden, logits);
}
