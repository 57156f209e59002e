/*
 * A model: the facts of its file (hyper-parameters), its weights bound to tensors and
 * shape-checked, and its graph. Says WHAT is computed; holds no weight data (tensors are views into
 * the file's map) and knows no device. Opened by run/engine; built by arch_*.c.
 */
#pragma once

#include "model/gguf.h"
#include "model/graph.h"

/* Hyper-parameters that every decoder has; keys of ecosystem.md 4.2. */
struct hparams {
    int n_layers, n_embd, n_ff, n_heads, n_kv_heads, head_dim, n_vocab;
    int n_ctx_train;
    float norm_eps;
    float rope_freq_base;
    int n_rot;
    int sliding_window;        /* 0: none */
    float attn_scale;          /* of the scores; 0: the architecture's */
    float attn_cap, logit_cap; /* soft caps of scores and of logits; 0: none */
    int n_nextn; /* layers after the n_layers that predict further tokens: not in the graph */
};

struct model_options {
    int n_ctx;      /* configured context: LongRoPE chooses its factors by it; 0: n_ctx_train */
    enum math math; /* class of products with quantised weights; plain types are f32. MATH_BF16: q8,
                       and BF16 weights bf16 */
    int row_group;  /* rows that the host layout keeps together; 1 for raw blocks */
    bool force;     /* tensors and keys that nothing reads are tolerated */
    bool planning;  /* a file without data will do (shape.h): the model can be planned, not run */
};

struct model {
    struct arena arena;
    const struct gguf *file; /* borrowed */
    struct hparams hp;
    struct graph *graph;
    const uint8_t *const **matrices; /* (n_weights) model_weight_matrices */
    uint64_t n_params, weight_bytes; /* of the tensors in use */
    int n_idle; /* tensors of blocks that predict further tokens: mapped, not read (bind.h) */
    uint64_t idle_bytes;
};

/* Reads hyper-parameters, binds and checks every weight, builds the graph. file is borrowed and
 * must outlive the model. *out owned. Errors: BAD_FILE naming the key or tensor, UNSUPPORTED for an
 * architecture we do not know or tensors that nothing would read. */
MUST_CHECK ats_status model_open(const struct gguf *file, const struct model_options *options,
                                 struct model **out);
void model_close(struct model *m); /* accepts NULL */

/* The bytes of a graph weight: first row, distance of rows. Borrowed from the file's map. */
const uint8_t *model_weight_data(const struct model *m, int weight, int64_t *row_bytes);
/* The bytes of each expert's matrix where each is a tensor of its own, (n_experts); else NULL. */
const uint8_t *const *model_weight_matrices(const struct model *m, int weight);
/* A copy was made: its pages need not stay in this process. They can be read again. */
void model_weight_done(const struct model *m, int weight);
