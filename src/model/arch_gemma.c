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
    int full_every;
};

static ats_status read_options(struct binding *b, struct gemma *m) {
    uint32_t every = FULL_EVERY, window;
    float base = LOCAL_FREQ_BASE;
    TRY(gguf_get_u32(b->file, ".attention.sliding_window", &window)); /* hp has 0 for too large */
    TRY(gguf_opt_u32(b->file, ".attention.sliding_window_pattern", &every));
    TRY(gguf_opt_f32(b->file, ".rope.freq_base_swa", &base));
    if (every < 1 || every > INT32_MAX || !(base > 1))
        return fail(ATS_BAD_FILE,
                    "keys attention.sliding_window_pattern and rope.freq_base_swa "
                    "are %u and %g, out of range",
                    every, (double)base);
    m->full_every = (int)every;
    TRY(rope_read(b, &(struct rope_options){.halves = true}, &m->full));
    return rope_read(b, &(struct rope_options){.halves = true, .unscaled = true, .freq_base = base},
                     &m->local);
}

static ats_status attention(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct gemma *m = user;
    const struct hparams *hp = &b->hp;
    bool full = (layer + 1) % m->full_every == 0;
    struct attention_options o = {.rope = full ? &m->full : &m->local,
                                  .window = full ? 0 : hp->sliding_window,
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
