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
    struct binding *b;
    struct rope_params full, local;
    int full_every;
};

static ats_status read_options(struct gemma *m) {
    struct binding *b = m->b;
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

static ats_status attention(struct gemma *m, int layer, int *x) {
    struct binding *b = m->b;
    const struct hparams *hp = &b->hp;
    bool full = (layer + 1) % m->full_every == 0;
    struct attention_options o = {.rope = full ? &m->full : &m->local,
                                  .window = full ? 0 : hp->sliding_window,
                                  .need_head_norms = true};
    if (hp->n_layers == LAYERS_OF_27B) o.scale = sqrtf((float)hp->n_heads / (float)hp->n_embd);
    int h, y;
    TRY(part_norm(b, "attn_norm", layer, *x, &h));
    TRY(part_attention(b, &o, layer, h, &y));
    TRY(part_norm(b, "post_attention_norm", layer, y, &y));
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

static ats_status feed_forward(struct gemma *m, int layer, int *x) {
    struct binding *b = m->b;
    int h, y;
    TRY(part_norm(b, "ffn_norm", layer, *x, &h));
    TRY(part_gated(b, &(struct gated_options){.act = ACT_GELU}, layer, h, &y));
    TRY(part_norm(b, "post_ffw_norm", layer, y, &y));
    *x = graph_add(b->builder, *x, y);
    return ATS_OK;
}

ats_status arch_gemma_build(struct binding *b, int *hidden, int *logits) {
    struct gemma m = {.b = b};
    TRY(read_options(&m));
    int embedding, x;
    TRY(part_embed(b, sqrtf((float)b->hp.n_embd), &embedding, &x));
    for (int layer = 0; layer < b->hp.n_layers; layer++) {
        graph_layer(b->builder, layer);
        TRY(attention(&m, layer, &x));
        if (layer == b->hp.n_layers - 1) x = graph_rows(b->builder, x);
        TRY(feed_forward(&m, layer, &x));
    }
    return part_head(b, embedding, x, hidden, logits);
}
