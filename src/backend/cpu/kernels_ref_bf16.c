/* The reference of class bf16: fixes the order of operations (kernels.h). */
#include "backend/cpu/kernels_isa.h"

#include "backend/packed.h"

#include <math.h>

/* w: n_cols weights; x goes on with zeros up to a multiple of 32 columns, and so do they. */
static float dot(const float *w, int n_cols, const uint16_t *x) {
    float sum = 0;
    for (int c = 0; c < n_cols; c += 32) {
        float part = 0;
        for (int i = c; i < min_int(c + 32, n_cols); i += 2) {
            if (i + 1 < n_cols) part = fmaf(w[i + 1], bf16_to_float(x[i + 1]), part);
            part = fmaf(w[i], bf16_to_float(x[i]), part);
        }
        sum += part;
    }
    return sum;
}

static void matmul_bf16(const void *w, size_t row_bytes, int n_rows, int n_cols, const uint16_t *x,
                        int64_t x_stride, int n_tokens, float *out, int64_t out_stride,
                        void *scratch) {
    for (int r = 0; r < n_rows; r++) {
        dtype_to_float(DTYPE_BF16, (const uint8_t *)w + (size_t)r * row_bytes, scratch, n_cols);
        for (int t = 0; t < n_tokens; t++)
            out[t * out_stride + r] = dot(scratch, n_cols, x + t * x_stride);
    }
}

static void matmul_packed_bf16(const uint8_t *packed, int group_begin, int group_end, int n_rows,
                               int n_cols, const uint16_t *x, int64_t x_stride, int n_tokens,
                               float *out, int64_t out_stride, void *scratch) {
    const int begin = group_begin * PACK_ROWS, end = min_int(n_rows, group_end * PACK_ROWS);
    for (int r = begin; r < end; r++) {
        pack_to_float(DTYPE_BF16, packed, n_cols, r, scratch);
        for (int t = 0; t < n_tokens; t++)
            out[t * out_stride + r - begin] = dot(scratch, n_cols, x + t * x_stride);
    }
}

static void round_bf16(const float *x, int n_cols, uint16_t *out) {
    for (int c = 0; c < n_cols; c++)
        out[c] = bf16_from_float(x[c]);
    for (int c = n_cols; c % 32; c++)
        out[c] = 0;
}

void kernels_ref_bf16_fill(struct kernels *k) {
    k->matmul_bf16 = matmul_bf16;
    k->matmul_packed_bf16 = matmul_packed_bf16;
    k->round_bf16 = round_bf16;
}
