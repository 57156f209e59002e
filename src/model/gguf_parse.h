/*
 * One GGUF file's header, parsed and checked: private to gguf.c and gguf_parse.c. Splits, duplicate
 * tensor names over several files and everything about paths is gguf.c's.
 */
#pragma once

#include "model/gguf.h"

struct gguf_kv_list {
    struct gguf_kv *items; /* owned (free); keys and indexes in the arena of the reader */
    size_t n, cap;
    struct gguf_name *names; /* sorted, in the arena */
};

struct gguf_tensor_list {
    struct gguf_tensor *items; /* owned (free) */
    size_t n, cap;
};

struct gguf_header {
    uint32_t version, alignment;
    uint64_t data_offset;
};

/* Parses data[0..n_bytes), which with header_only ends before the tensors' data: fills kvs (an
 * empty list) and appends to tensors. What it refuses is listed in gguf.h; on failure the lists
 * hold what was read so far. */
MUST_CHECK ats_status gguf_parse(const uint8_t *data, uint64_t n_bytes, bool header_only,
                                 int file_index, struct arena *arena, struct gguf_kv_list *kvs,
                                 struct gguf_tensor_list *tensors, struct gguf_header *header);

/* Sorts names (n); *twice is the first that appears twice, or NULL. */
void gguf_sort_names(struct gguf_name *names, size_t n, const char **twice);
/* Index of name, or -1. */
int gguf_name_find(const struct gguf_name *names, size_t n, const char *name);

/* Bytes of a value of a fixed size; 0 for strings and arrays. */
size_t gguf_type_bytes(enum gguf_type type);

/* An integer or bool at data; *out is the value, or its two's complement when *above is set (u64
 * beyond 2^63 - 1). False if the type is neither. */
bool gguf_read_int(enum gguf_type type, const uint8_t *data, int64_t *out, bool *above);
