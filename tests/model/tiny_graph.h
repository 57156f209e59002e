/*
 * Graphs without a file, for tests of units, plans and lowering: the dense decoder that
 * arch_dense.c builds, in any shape. Its weights name no real tensors.
 */
#pragma once

#include "model/graph.h"

struct tiny_shape {
    int n_layers;
    int n_heads, n_kv_heads, head_dim;
    int n_embd, n_ff, n_vocab;
    enum dtype dtype, dtype_down; /* of matrices; of ffn_down (0, F32: plain) */
    bool bias;                    /* on q, k, v and the attention's output */
    bool head_norm;               /* q and k normed per head */
    int row_group;                /* 0: 1 */
    int n_experts, n_used;        /* 0: a dense feed-forward */
    bool sinks;                   /* of attention */
    bool expert_biases;
    int delta_heads; /* not 0: layers but the last have a delta net of so many heads on 2 key heads
                      */
    bool delta_tiled;
};

/* 2 layers, 4 heads on 2 KV heads of 4, n_embd 12, n_ff 10, n_vocab 9, F32. */
extern const struct tiny_shape tiny_plain;

/* Everything in the arena. */
struct graph *tiny_graph(struct arena *arena, const struct tiny_shape *shape);

/* Index of the op whose weight has this name, -1 if there is none. */
int tiny_op(const struct graph *g, const char *weight);
/* Index of the first block of a kind. */
int tiny_block(const struct graph *g, enum block_kind kind);
