/* The reference of the products over the packed layout: the raw ones' order of operations, weight
 * by weight as packed.c reads them. */
#include "backend/cpu/kernels_isa.h"

#include "backend/packed.h"

static float dot_block(const struct pack_block *w, const int8_t *q, float scale,
                       const int16_t sum16[2]) {
    float out = 0;
    for (int h = 0; h < 2; h++) {
        int sum = 0;
        for (int i = 16 * h; i < 16 * h + 16; i++)
            sum += w->q[i] * q[i];
        out += w->scale[h] * (float)sum + w->min[h] * (float)sum16[h];
    }
    return out * scale;
}

static void matmul_q8(enum dtype type, const uint8_t *packed, int group_begin, int group_end,
                      int n_rows, int n_cols, const struct q8_rows *x, int n_tokens, float *out,
                      int64_t out_stride) {
    const int begin = group_begin * PACK_ROWS, end = min_int(n_rows, group_end * PACK_ROWS);
    for (int r = begin; r < end; r++, out++) {
        for (int t = 0; t < n_tokens; t++)
            out[t * out_stride] = 0;
        for (int b = 0; b < n_cols / 32; b++) {
            struct pack_block block;
            pack_block_read(type, packed, n_cols, r, b, &block);
            for (int t = 0; t < n_tokens; t++) {
                int64_t at = (int64_t)t * x->n_cols + 32 * b;
                out[t * out_stride] +=
                    dot_block(&block, x->q + at, x->scale[at / 32], x->sum16 + at / 16);
            }
        }
    }
}

/* scratch: one row as floats. Each pass over it is the raw product's of an F32 row. */
static void matmul_f32(enum dtype type, const uint8_t *packed, int group_begin, int group_end,
                       int n_rows, int n_cols, const float *x, int64_t x_stride, int n_tokens,
                       float *out, int64_t out_stride, float *scratch) {
    const int begin = group_begin * PACK_ROWS, end = min_int(n_rows, group_end * PACK_ROWS);
    for (int r = begin; r < end; r++, out++) {
        pack_to_float(type, packed, n_cols, r, scratch);
        for (int t = 0; t < n_tokens; t++)
            out[t * out_stride] = kernels_ref_dot(scratch, x + t * x_stride, n_cols);
    }
}

#define TYPE_F32(lower, upper)                                                                     \
    static void matmul_f32_##lower(const uint8_t *packed, int group_begin, int group_end,          \
                                   int n_rows, int n_cols, const float *x, int64_t x_stride,       \
                                   int n_tokens, float *out, int64_t out_stride, void *scratch) {  \
        matmul_f32(DTYPE_##upper, packed, group_begin, group_end, n_rows, n_cols, x, x_stride,     \
                   n_tokens, out, out_stride, scratch);                                            \
    }
#define TYPE_Q8(lower, upper)                                                                      \
    static void matmul_q8_##lower(const uint8_t *packed, int group_begin, int group_end,           \
                                  int n_rows, int n_cols, const struct q8_rows *x, int n_tokens,   \
                                  float *out, int64_t out_stride, const uint8_t *then,             \
                                  void *scratch) {                                                 \
        (void)then, (void)scratch;                                                                 \
        matmul_q8(DTYPE_##upper, packed, group_begin, group_end, n_rows, n_cols, x, n_tokens, out, \
                  out_stride);                                                                     \
    }
FLOAT_WEIGHT_MAP(TYPE_F32)
Q8_WEIGHT_MAP(TYPE_F32)
Q8_WEIGHT_MAP(TYPE_Q8)

void kernels_ref_packed_fill(struct kernels *k) {
#define ENTRY(lower, upper) k->matmul_packed_f32[DTYPE_##upper] = matmul_f32_##lower;
    FLOAT_WEIGHT_MAP(ENTRY)
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
#define ENTRY(lower, upper) k->matmul_packed_q8[DTYPE_##upper] = matmul_q8_##lower;
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
}
