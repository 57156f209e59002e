/*
 * GGUF files in memory for tests: a small valid one, and pieces to put together any wrong one.
 */
#pragma once

#include "base/buf.h"
#include "model/gguf.h"

/* A valid file with every value type, nested arrays and three tensors. */
void sample_file(struct buf *out);

/* The encoding of the file, piece by piece; nothing is checked. */
void raw_u32(struct buf *b, uint32_t v);
void raw_u64(struct buf *b, uint64_t v);
void raw_f32(struct buf *b, float v);
void raw_str(struct buf *b, const char *s); /* length and bytes */
void raw_str_n(struct buf *b, const char *s, size_t n);
void raw_begin(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kvs);
void raw_key(struct buf *b, const char *key, uint32_t type);
void raw_kv_u32(struct buf *b, const char *key, uint32_t v);
void raw_array(struct buf *b, const char *key, uint32_t type, uint64_t n); /* elements follow */
void raw_tensor(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dims,
                uint32_t type, uint64_t offset);
/* Zeros up to the alignment of 32, then n more. */
void raw_data(struct buf *b, size_t n);

bool sample_str_is(struct gguf_str s, const char *want, size_t n);

/* Opens a copy of b that has exactly its size, so that the address sanitiser sees a read past it.
 * *copy is owned (free) and must outlive *g. */
ats_status sample_open(const struct buf *b, void **copy, struct gguf **g);
