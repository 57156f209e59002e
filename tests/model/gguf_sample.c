#include "gguf_sample.h"

#include <stdlib.h>
#include <string.h>

bool sample_str_is(struct gguf_str s, const char *want, size_t n) {
    return s.n == n && memcmp(s.data, want, n) == 0;
}

void raw_u32(struct buf *b, uint32_t v) {
    buf_add(b, &v, sizeof v);
}

void raw_u64(struct buf *b, uint64_t v) {
    buf_add(b, &v, sizeof v);
}

void raw_f32(struct buf *b, float v) {
    buf_add(b, &v, sizeof v);
}

void raw_str_n(struct buf *b, const char *s, size_t n) {
    raw_u64(b, n);
    if (n > 0) buf_add(b, s, n);
}

void raw_str(struct buf *b, const char *s) {
    raw_str_n(b, s, strlen(s));
}

void raw_begin(struct buf *b, uint32_t version, uint64_t n_tensors, uint64_t n_kvs) {
    buf_add(b, "GGUF", 4);
    raw_u32(b, version);
    raw_u64(b, n_tensors);
    raw_u64(b, n_kvs);
}

void raw_key(struct buf *b, const char *key, uint32_t type) {
    raw_str(b, key);
    raw_u32(b, type);
}

void raw_kv_u32(struct buf *b, const char *key, uint32_t v) {
    raw_key(b, key, GGUF_U32);
    raw_u32(b, v);
}

void raw_array(struct buf *b, const char *key, uint32_t type, uint64_t n) {
    raw_key(b, key, GGUF_ARRAY);
    raw_u32(b, type);
    raw_u64(b, n);
}

void raw_tensor(struct buf *b, const char *name, uint32_t n_dims, const uint64_t *dims,
                uint32_t type, uint64_t offset) {
    raw_str(b, name);
    raw_u32(b, n_dims);
    for (uint32_t i = 0; i < n_dims; i++)
        raw_u64(b, dims[i]);
    raw_u32(b, type);
    raw_u64(b, offset);
}

void raw_data(struct buf *b, size_t n) {
    while (b->len % 32 != 0)
        buf_add_char(b, '\0');
    for (size_t i = 0; i < n; i++)
        buf_add_char(b, '\0');
}

static void raw_value(struct buf *b, const char *key, uint32_t type, const void *v, size_t n) {
    raw_key(b, key, type);
    buf_add(b, v, n);
}

void sample_file(struct buf *b) {
    raw_begin(b, 3, 3, 16);
    raw_key(b, "general.architecture", GGUF_STR);
    raw_str(b, "llama");
    raw_value(b, "llama.u8", GGUF_U8, &(uint8_t){200}, 1);
    raw_value(b, "llama.i8", GGUF_I8, &(int8_t){-100}, 1);
    raw_value(b, "llama.u16", GGUF_U16, &(uint16_t){60000}, 2);
    raw_value(b, "llama.i16", GGUF_I16, &(int16_t){-30000}, 2);
    raw_kv_u32(b, "llama.u32", 4000000000u);
    raw_value(b, "llama.i32", GGUF_I32, &(int32_t){-2000000000}, 4);
    raw_value(b, "llama.f32", GGUF_F32, &(float){0.25f}, 4);
    raw_value(b, "llama.bool", GGUF_BOOL, &(uint8_t){1}, 1);
    raw_value(b, "llama.u64", GGUF_U64, &(uint64_t){UINT64_MAX}, 8);
    raw_value(b, "llama.i64", GGUF_I64, &(int64_t){INT64_MIN}, 8);
    raw_value(b, "llama.f64", GGUF_F64, &(double){0.1}, 8);
    raw_array(b, "tokenizer.ggml.tokens", GGUF_STR, 3);
    raw_str(b, "a");
    raw_str(b, "");
    raw_str_n(b, "\xff\0b", 3);
    raw_array(b, "llama.list", GGUF_U16, 3);
    for (uint16_t i = 0; i < 3; i++)
        buf_add(b, &i, 2);
    raw_array(b, "llama.nested", GGUF_ARRAY, 2);
    raw_u32(b, GGUF_STR);
    raw_u64(b, 1);
    raw_str(b, "inner");
    raw_u32(b, GGUF_F32);
    raw_u64(b, 2);
    raw_f32(b, 1.5f);
    raw_f32(b, -2);
    raw_array(b, "llama.flags", GGUF_BOOL, 2);
    buf_add(b, "\1\0", 2);
    raw_tensor(b, "token_embd.weight", 2, (uint64_t[]){32, 3}, 8, 0);  /* Q8_0: 102 bytes */
    raw_tensor(b, "norm.weight", 1, (uint64_t[]){5}, 0, 128);          /* F32: 20 */
    raw_tensor(b, "exps.weight", 4, (uint64_t[]){4, 1, 2, 1}, 1, 160); /* F16: 16 */
    raw_data(b, 176);
    for (int i = 0; i < 176; i++)
        b->data[b->len - 176 + (size_t)i] = (char)i;
}

ats_status sample_open(const struct buf *b, void **copy, struct gguf **g) {
    *copy = malloc(b->len > 0 ? b->len : 1);
    if (b->len > 0) memcpy(*copy, b->data, b->len);
    return gguf_open_memory(*copy, b->len, g);
}
