/*
 * What an architecture's builder (arch_*.c) works with: the file, the builder, and functions that
 * bind a logical weight to a tensor by name and check its shape. After the build, tensors that
 * nobody asked for are reported.
 */
#pragma once

#include "model/model.h"

struct binding {
    const struct gguf *file;
    struct arena *arena; /* the model's */
    struct graph_builder *builder;
    const struct model_options *options;
    struct hparams hp;
    bool *used; /* (n_tensors) */
    int *bound; /* (n_tensors) graph weight that covers the whole tensor, or -1: tied ones share */
};

/* One architecture family: fills the graph from the binding; hp is already read. */
typedef ats_status arch_build_fn(struct binding *b, int *hidden, int *logits);

ats_status arch_dense_build(struct binding *b, int *hidden, int *logits);
ats_status arch_gemma_build(struct binding *b, int *hidden, int *logits);
ats_status arch_glm4moe_build(struct binding *b, int *hidden, int *logits);
ats_status arch_gptoss_build(struct binding *b, int *hidden, int *logits);
ats_status arch_llama4_build(struct binding *b, int *hidden, int *logits);
ats_status arch_qwen35_build(struct binding *b, int *hidden, int *logits);

/* A matrix of n_rows outputs and n_cols inputs; BAD_FILE if absent or of another shape. The name is
 * printf-style, for "blk.%d.attn_q.weight". */
MUST_CHECK ats_status bind_matrix(struct binding *b, int n_rows, int n_cols, int *weight,
                                  const char *format, ...) PRINTF_LIKE(5, 6);
/* A range of rows of a tensor that holds n_rows_whole in all (fused weights). */
MUST_CHECK ats_status bind_rows(struct binding *b, int row_begin, int n_rows, int n_rows_whole,
                                int n_cols, int *weight, const char *format, ...) PRINTF_LIKE(7, 8);
/* n_experts matrices of n_rows outputs and n_cols inputs, stacked in one tensor. */
MUST_CHECK ats_status bind_experts(struct binding *b, int n_experts, int n_rows, int n_cols,
                                   int *weight, const char *format, ...) PRINTF_LIKE(6, 7);
/* The same of n_experts tensors of one type, a matrix each. What is named is their stem: that of
 * blk.0.ffn_up.E.weight is blk.0.ffn_up. */
MUST_CHECK ats_status bind_each_expert(struct binding *b, int n_experts, int n_rows, int n_cols,
                                       int *weight, const char *format, ...) PRINTF_LIKE(6, 7);
/* Rows of each of them, of n_rows_whole in all (fused weights). */
MUST_CHECK ats_status bind_expert_rows(struct binding *b, int n_experts, int row_begin, int n_rows,
                                       int n_rows_whole, int n_cols, int *weight,
                                       const char *format, ...) PRINTF_LIKE(8, 9);
/* The same of n_experts vectors of n floats, which are F32. */
MUST_CHECK ats_status bind_expert_vectors(struct binding *b, int n_experts, int n, int *weight,
                                          const char *format, ...) PRINTF_LIKE(5, 6);
/* A vector of n floats (F32 in every file). *weight = -1 if it is absent and optional. */
MUST_CHECK ats_status bind_vector(struct binding *b, int n, bool optional, int *weight,
                                  const char *format, ...) PRINTF_LIKE(5, 6);
/* n of the n_whole floats of a vector, from `first` on, which are F32. */
MUST_CHECK ats_status bind_part(struct binding *b, int first, int n, int n_whole, int *weight,
                                const char *format, ...) PRINTF_LIKE(6, 7);
/* The filters of n of n_whole columns, from `first` on: a vector of n_taps floats a column, which
 * are F32. */
MUST_CHECK ats_status bind_filters(struct binding *b, int first, int n, int n_whole, int n_taps,
                                   int *weight, const char *format, ...) PRINTF_LIKE(7, 8);
/* The values of an F32 vector that the graph folds in (rope factors); NULL if absent. Borrowed. */
MUST_CHECK ats_status bind_constants(struct binding *b, int n, const char *name,
                                     const float **values);
bool bind_has(const struct binding *b, const char *format, ...) PRINTF_LIKE(2, 3);

/* The value of a required key (".x": the architecture's), a count within [1, max]; else BAD_FILE
 * naming the key and the bounds. A list of one for each layer will do if they are equal, or 0. */
MUST_CHECK ats_status bind_count(const struct gguf *g, const char *key, int max, int *out);

/* One flag a layer: the file's list under `key` (NULL: it has none), else true for all but each
 * every-th layer (0: for all). keys.c. */
MUST_CHECK ats_status bind_layer_flags(struct binding *b, const char *key, uint32_t every,
                                       bool **flags);
/* Which layers have a window: as attention.sliding_window_pattern says, a number or a list, else by
 * `every`; none if the window is 0. keys.c. */
MUST_CHECK ats_status bind_window_layers(struct binding *b, uint32_t window, uint32_t every,
                                         bool **flags);
/* Keys that change what is computed and that this architecture's builder does not read: UNSUPPORTED
 * if one has a value that matters. keys.c. */
MUST_CHECK ats_status keys_check(const struct binding *b);

/* Blocks that predict further tokens are left idle: in the file's map, neither in the graph nor
 * ever read, so that they take no memory, and none of their tensors is missed. BAD_FILE if one has
 * another shape than in a layer of the model. Counts them. nextn.c. */
MUST_CHECK ats_status nextn_check(const struct binding *b, int *n_tensors, uint64_t *n_bytes);
/* The tensor of this name belongs to such a block. */
bool nextn_has(const struct hparams *hp, const char *name);

/* Class of a product with this weight: q8 only for quantised types, bf16 only for BF16. */
enum math bind_math(const struct binding *b, int weight);

/* Routed experts in place of a feed-forward: router, choice and experts of `layer` over h, the
 * normed input. experts.c. */
struct experts_options {
    enum gating gating; /* the file's key comes before it, as before the next */
    bool normalise;
    enum activation act;
    bool biases;      /* of the router and of the experts */
    bool choice_bias; /* exp_probs_b, added to the gated scores for the choice only */
    bool scale_input; /* graph.h */
};
struct experts_hparams {
    int n_experts, n_used, n_ff;
    int n_ff_shared;   /* of the shared experts together */
    int n_dense, step; /* see experts_in_layer */
    float scale;
};
/* The keys of this file; n_experts is 0 if it has no experts. */
MUST_CHECK ats_status experts_read(const struct binding *b, struct experts_hparams *out);
/* The same; UNSUPPORTED if it has none. */
MUST_CHECK ats_status experts_need(const struct binding *b, struct experts_hparams *out);
/* By the keys: the first layers are dense, then each step-th has experts. */
bool experts_in_layer(const struct experts_hparams *hp, int layer);
MUST_CHECK ats_status experts_add(struct binding *b, const struct experts_options *options,
                                  const struct experts_hparams *hp, int layer, int h, int *out);

/* The frequencies of this file's rotary embedding, scaling folded in (linear, YaRN, Llama 3's
 * rope_freqs, LongRoPE's factors chosen by the configured context). rope.c. */
struct rope_options {
    bool halves;
    bool unscaled;   /* the file's scaling is of other layers */
    float freq_base; /* 0: the file's */
};
MUST_CHECK ats_status rope_read(struct binding *b, const struct rope_options *options,
                                struct rope_params *out);
/* Another base, of layers with a window; *base stays where the file has none. */
MUST_CHECK ats_status rope_read_base_swa(const struct binding *b, float *base);
/* Sections of the pairs, each with a position of its own (M-RoPE). Those of text are equal, so that
 * nothing of the sections is left but that such files turn halves. UNSUPPORTED if they are not four
 * that fill the turned part of a head. *sectioned: the file has some. */
MUST_CHECK ats_status rope_read_sections(const struct binding *b, bool *sectioned);
