/*
 * Plain decoders: llama (Mistral, SmolLM2; with experts: Mixtral), qwen2, qwen3, qwen3moe, smollm3,
 * phi3, glm4. One builder; what differs is whether rotary pairs are halves, which layers have none,
 * whether outputs are normed before they join the residual stream, and which tensors the file holds
 * (biases, q/k norms, fused q/k/v and gate/up, experts in place of the feed-forward). Facts:
 * ecosystem.md 4.3, models/README.md.
 */
#include "model/parts.h"

#include <string.h>

struct dense_options {
    const char *arch;
    bool rope_halves;
    bool may_have_sections; /* of rotary pairs, which are halves then */
    bool fused_qkv;         /* attn_qkv */
    bool head_norms;        /* of q and k, needed */
    bool fused_up;          /* gate and up in ffn_up */
    bool post_norms;        /* of the outputs of attention and feed-forward */
    int no_rope_every;      /* each n-th layer has no rotary embedding; 0: all have it */
};

static const struct dense_options dense_archs[] = {
    {.arch = "llama"},
    {.arch = "qwen2", .rope_halves = true},
    {.arch = "qwen3", .rope_halves = true, .head_norms = true},
    {.arch = "qwen3moe", .rope_halves = true, .head_norms = true},
    {.arch = "smollm3", .no_rope_every = 4},
    {.arch = "phi3", .rope_halves = true, .fused_qkv = true, .fused_up = true},
    {.arch = "glm4", .may_have_sections = true, .fused_up = true, .post_norms = true},
};

struct dense {
    const struct dense_options *o;
    bool *slides; /* (n_layers) */
    struct rope_params rope;
    struct experts_hparams experts;
};

static ats_status attention(struct binding *b, const void *user, int layer, int h, int *x, int *y) {
    const struct dense *d = user;
    bool rope = !d->o->no_rope_every || (layer + 1) % d->o->no_rope_every != 0;
    struct attention_options o = {.rope = rope ? &d->rope : NULL,
                                  .fused = d->o->fused_qkv,
                                  .window = d->slides[layer] ? b->hp.sliding_window : 0,
                                  .need_head_norms = d->o->head_norms};
    (void)x;
    return part_attention(b, &o, layer, h, y);
}

/* Models with experts may have dense layers as well. */
static ats_status feed_forward(struct binding *b, const void *user, int layer, int h, int *x,
                               int *y) {
    static const struct experts_options experts = {
        .gating = GATING_SOFTMAX, .normalise = true, .act = ACT_SILU};
    const struct dense *d = user;
    (void)x;
    if (d->experts.n_experts > 0 && !bind_has(b, "blk.%d.ffn_gate.weight", layer))
        return experts_add(b, &experts, &d->experts, layer, h, y);
    return part_gated(b, &(struct gated_options){.fused = d->o->fused_up, .act = ACT_SILU}, layer,
                      h, y);
}

ats_status arch_dense_build(struct binding *b, int *hidden, int *logits) {
    struct dense d = {.o = NULL};
    for (size_t i = 0; i < COUNT_OF(dense_archs); i++)
        if (strcmp(dense_archs[i].arch, b->file->arch) == 0) d.o = &dense_archs[i];
    REQUIRE(d.o);
    bool sectioned = false;
    if (d.o->may_have_sections) TRY(rope_read_sections(b, &sectioned));
    TRY(bind_window_layers(b, (uint32_t)b->hp.sliding_window, 0, &d.slides));
    TRY(experts_read(b, &d.experts));
    TRY(rope_read(b, &(struct rope_options){.halves = d.o->rope_halves || sectioned}, &d.rope));
    const struct decoder_options o = {
        .post_norms = d.o->post_norms, .mix = attention, .feed_forward = feed_forward, .user = &d};
    return part_decoder(b, &o, hidden, logits);
}
