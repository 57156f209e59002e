/* Models made for tests, with random weights, and their logits by a computation of its own: plain C
 * in double that shares nothing with the engine but the file's reader and the de-quantiser. The
 * oracles of ../shared hardly divide; these have 8 KV heads, 1024 channels or 16 experts, K-quants,
 * and one the head ratio of Qwen3-14B. */
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "model/gguf_write.h"

/* Any vocabulary of n tokens. */
void made_vocabulary(struct gguf_writer *w, int n);

enum made_kind {
    MADE_RATIO, /* qwen3, 40 query heads over 8 */
    MADE_LLAMA, /* llama, 8 over 8 */
    MADE_MOE,   /* qwen3moe, 16 over 8, 16 experts of which 4 are used */
    N_MADE
};
const char *made_name(enum made_kind kind);
/* A file of that kind, the same each time; removed when the process ends. */
void made_write(enum made_kind kind, char *path, size_t n_path);
/* (n, n_vocab) logits of all ids, owned. */
float *made_logits(const char *path, const int32_t *ids, size_t n);
