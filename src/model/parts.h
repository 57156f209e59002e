/*
 * Parts of a decoder layer that architectures share: embedding, norms, attention, gated
 * feed-forward, head. Each binds its weights by the usual names (ecosystem.md 4.3) and adds its
 * ops; what differs between families is in the options. Used by the builders (arch_*.c), which
 * write the residual stream themselves; routed experts are in experts.c.
 */
#pragma once

#include "model/bind.h"

/* The table of tokens; *x: (n_tokens, n_embd), times scale. */
MUST_CHECK ats_status part_embed(struct binding *b, float scale, int *embedding, int *x);
/* RMS norm of (n, n_embd) with blk.LAYER.NAME.weight. */
MUST_CHECK ats_status part_norm(struct binding *b, const char *name, int layer, int in, int *out);

struct attention_options {
    const struct rope_params *rope; /* NULL: positions turn nothing */
    bool fused;                     /* q, k and v must be rows of attn_qkv; else they may be */
    float scale;                    /* of the scores, unless a key says it; 0: 1/sqrt(head_dim) */
    int window;                     /* keys seen, itself included; 0: all */
    int chunk;                      /* graph.h, as the next two */
    float temp_scale;
    int temp_length;
    bool need_head_norms; /* of q and k */
    bool need_biases;     /* of q, k, v and the output */
    bool sinks;           /* attn_sinks, needed */
    bool norm_turned;     /* q and k per head after they were turned, without weights */
    bool gated;           /* rows of attn_q are, head by head, q and a gate of the output */
};
/* h, normed, to the output of the layer's attention, before the residual add. Biases and norms per
 * head that are not needed are used if the file has them. */
MUST_CHECK ats_status part_attention(struct binding *b, const struct attention_options *o,
                                     int layer, int h, int *out);

struct gated_options {
    bool fused; /* gate and up are rows of ffn_up */
    enum activation act;
    const char *suffix; /* of the tensors' names: "_shexp"; NULL: none */
    int n_ff;           /* 0: the file's feed_forward_length */
    int gate;           /* value of one column, whose sigmoid multiplies all; 0: none */
};
/* down(act(gate h) * up h), before the residual add. */
MUST_CHECK ats_status part_gated(struct binding *b, const struct gated_options *o, int layer, int h,
                                 int *out);

/* Adds the output of the shared experts, which every token goes through, to *x. gated: times the
 * sigmoid of a product of one row. */
MUST_CHECK ats_status part_shared(struct binding *b, const struct experts_hparams *hp, bool gated,
                                  int layer, int h, int *x);

/* The last norm and the head, which is the embedding unless the file has one. */
MUST_CHECK ats_status part_head(struct binding *b, int embedding, int x, int *hidden, int *logits);

/* What a layer adds to the residual stream *x: *y, of h, the normed stream. It may add to *x more
 * that is not normed. user: the builder's. */
typedef ats_status part_layer_fn(struct binding *b, const void *user, int layer, int h, int *x,
                                 int *y);
struct decoder_options {
    float embed_scale;    /* 0: 1 */
    const char *ffn_norm; /* before the feed-forward; NULL: ffn_norm */
    bool post_norms;      /* of the outputs: post_attention_norm, post_ffw_norm */
    part_layer_fn *mix;   /* over tokens: attention or what stands in its place */
    part_layer_fn *feed_forward;
    const void *user;
};
/* The whole decoder: embedding, layers, head. Behind the last layer's `mix` only rows whose result
 * is wanted go on. */
MUST_CHECK ats_status part_decoder(struct binding *b, const struct decoder_options *o, int *hidden,
                                   int *logits);
