/* The reference of the q8 class: integer sums per block, in the order of each format's formula. */
#include "backend/cpu/kernels_isa.h"

#include <math.h>

/* 32 weights of a row: x[i] = scale[i / 16] * q[i] + min[i / 16]. */
struct ref_block {
    int8_t q[32];
    float scale[2], min[2];
};
typedef void unpack_fn(const void *row, int b, struct ref_block *out);

static void block_scale(struct ref_block *out, float scale, float min) {
    out->scale[0] = out->scale[1] = scale;
    out->min[0] = out->min[1] = min;
}

/* Element i of 16 bytes whose low nibbles are 0..15 and high nibbles 16..31. */
static int nibble(const uint8_t *qs, int i) {
    return i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
}

static int fifth_bit(const uint8_t qh[4], int i) {
    return (qh[i / 8] >> i % 8 & 1) << 4;
}

static void unpack_q8_0(const void *row, int b, struct ref_block *out) {
    const struct block_q8_0 *w = (const struct block_q8_0 *)row + b;
    block_scale(out, half_to_float(w->d), 0);
    for (int i = 0; i < 32; i++)
        out->q[i] = w->qs[i];
}

static void unpack_q4_0(const void *row, int b, struct ref_block *out) {
    const struct block_q4_0 *w = (const struct block_q4_0 *)row + b;
    block_scale(out, half_to_float(w->d), 0);
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)(nibble(w->qs, i) - 8);
}

static void unpack_q4_1(const void *row, int b, struct ref_block *out) {
    const struct block_q4_1 *w = (const struct block_q4_1 *)row + b;
    block_scale(out, half_to_float(w->d), half_to_float(w->m));
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)nibble(w->qs, i);
}

static void unpack_q5_0(const void *row, int b, struct ref_block *out) {
    const struct block_q5_0 *w = (const struct block_q5_0 *)row + b;
    block_scale(out, half_to_float(w->d), 0);
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)((nibble(w->qs, i) | fifth_bit(w->qh, i)) - 16);
}

static void unpack_q5_1(const void *row, int b, struct ref_block *out) {
    const struct block_q5_1 *w = (const struct block_q5_1 *)row + b;
    block_scale(out, half_to_float(w->d), half_to_float(w->m));
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)(nibble(w->qs, i) | fifth_bit(w->qh, i));
}

static void unpack_iq4_nl(const void *row, int b, struct ref_block *out) {
    const struct block_iq4_nl *w = (const struct block_iq4_nl *)row + b;
    block_scale(out, half_to_float(w->d), 0);
    for (int i = 0; i < 32; i++)
        out->q[i] = iq4_values[nibble(w->qs, i)];
}

static void unpack_mxfp4(const void *row, int b, struct ref_block *out) {
    const struct block_mxfp4 *w = (const struct block_mxfp4 *)row + b;
    block_scale(out, e8m0_half(w->e), 0);
    for (int i = 0; i < 32; i++)
        out->q[i] = mxfp4_values[nibble(w->qs, i)];
}

/* Below: b counts sub-blocks of 32, s is the one within its super-block. */

static void unpack_q2_k(const void *row, int b, struct ref_block *out) {
    const struct block_q2_k *w = (const struct block_q2_k *)row + b / 8;
    int s = b % 8;
    for (int h = 0; h < 2; h++) {
        uint8_t scale = w->scales[2 * s + h];
        out->scale[h] = half_to_float(w->d) * (float)(scale & 15);
        out->min[h] = -(half_to_float(w->dmin) * (float)(scale >> 4));
    }
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)(w->qs[32 * (s / 4) + i] >> (2 * (s % 4)) & 3);
}

static void unpack_q3_k(const void *row, int b, struct ref_block *out) {
    const struct block_q3_k *w = (const struct block_q3_k *)row + b / 8;
    int s = b % 8;
    int8_t scales[16];
    q3_k_scales(w->scales, scales);
    block_scale(out, 0, 0);
    for (int h = 0; h < 2; h++)
        out->scale[h] = half_to_float(w->d) * (float)scales[2 * s + h];
    for (int i = 0; i < 32; i++) {
        int low = w->qs[32 * (s / 4) + i] >> (2 * (s % 4)) & 3;
        out->q[i] = (int8_t)(low - (w->hmask[i] >> s & 1 ? 0 : 4));
    }
}

static void unpack_q4_k(const void *row, int b, struct ref_block *out) {
    const struct block_q4_k *w = (const struct block_q4_k *)row + b / 8;
    int s = b % 8;
    uint8_t scale, min;
    k_scale_min(w->scales, s, &scale, &min);
    block_scale(out, half_to_float(w->d) * scale, -(half_to_float(w->dmin) * min));
    for (int i = 0; i < 32; i++)
        out->q[i] = (int8_t)(w->qs[32 * (s / 2) + i] >> (4 * (s % 2)) & 15);
}

static void unpack_q5_k(const void *row, int b, struct ref_block *out) {
    const struct block_q5_k *w = (const struct block_q5_k *)row + b / 8;
    int s = b % 8;
    uint8_t scale, min;
    k_scale_min(w->scales, s, &scale, &min);
    block_scale(out, half_to_float(w->d) * scale, -(half_to_float(w->dmin) * min));
    for (int i = 0; i < 32; i++) {
        int low = w->qs[32 * (s / 2) + i] >> (4 * (s % 2)) & 15;
        out->q[i] = (int8_t)(low | (w->qh[i] >> s & 1) << 4);
    }
}

static void unpack_q6_k(const void *row, int b, struct ref_block *out) {
    const struct block_q6_k *w = (const struct block_q6_k *)row + b / 8;
    int s = b % 8, half = s / 4, quarter = s % 4;
    block_scale(out, 0, 0);
    for (int h = 0; h < 2; h++)
        out->scale[h] = half_to_float(w->d) * (float)w->scales[2 * s + h];
    for (int i = 0; i < 32; i++) {
        int low = w->ql[64 * half + 32 * (quarter % 2) + i] >> (4 * (quarter / 2)) & 15;
        int high = w->qh[32 * half + i] >> (2 * quarter) & 3;
        out->q[i] = (int8_t)((low | high << 4) - 32);
    }
}

static void unpack_iq4_xs(const void *row, int b, struct ref_block *out) {
    const struct block_iq4_xs *w = (const struct block_iq4_xs *)row + b / 8;
    int s = b % 8;
    block_scale(out, half_to_float(w->d) * (float)iq4_xs_scale(w, s), 0);
    for (int i = 0; i < 32; i++)
        out->q[i] = iq4_values[nibble(w->qs + 16 * s, i)];
}

static float dot_block(const struct ref_block *w, const int8_t *q, float scale,
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

/* unpack, then every token of the block, so that a row is unpacked once. */
static void matmul(unpack_fn *unpack, const void *w, size_t row_bytes, int n_rows, int n_cols,
                   const struct q8_rows *x, int n_tokens, float *out, int64_t out_stride) {
    int n_blocks = n_cols / 32;
    for (int r = 0; r < n_rows; r++) {
        const uint8_t *row = (const uint8_t *)w + (size_t)r * row_bytes;
        for (int t = 0; t < n_tokens; t++)
            out[t * out_stride + r] = 0;
        for (int b = 0; b < n_blocks; b++) {
            struct ref_block block;
            unpack(row, b, &block);
            for (int t = 0; t < n_tokens; t++) {
                int64_t at = (int64_t)t * x->n_cols + 32 * b;
                out[t * out_stride + r] +=
                    dot_block(&block, x->q + at, x->scale[at / 32], x->sum16 + at / 16);
            }
        }
    }
}

#define MATMUL(lower, upper)                                                                       \
    static void matmul_##lower(const void *w, size_t row_bytes, int n_rows, int n_cols,            \
                               const struct q8_rows *x, int n_tokens, float *out,                  \
                               int64_t out_stride, void *scratch) {                                \
        (void)scratch;                                                                             \
        matmul(unpack_##lower, w, row_bytes, n_rows, n_cols, x, n_tokens, out, out_stride);        \
    }
Q8_WEIGHT_MAP(MATMUL)

static void quantise_q8(const float *x, int64_t x_stride, int token_begin, int token_end,
                        struct q8_rows *out) {
    for (int t = token_begin; t < token_end; t++) {
        for (int c = 0; c < out->n_cols; c += 32) {
            const float *in = x + t * x_stride + c;
            int64_t at = (int64_t)t * out->n_cols + c;
            float max = 0;
            for (int i = 0; i < 32; i++)
                max = fmaxf(max, fabsf(in[i]));
            float inverse = max < Q8_MIN_MAX ? 0 : 127.0f / max;
            out->scale[at / 32] = max < Q8_MIN_MAX ? 0 : max / 127.0f;
            int sum[2] = {0, 0};
            for (int i = 0; i < 32; i++) {
                int q = (int)lrintf(in[i] * inverse);
                out->q[at + i] = (int8_t)q;
                sum[i / 16] += q;
            }
            out->sum16[at / 16] = (int16_t)sum[0];
            out->sum16[at / 16 + 1] = (int16_t)sum[1];
        }
    }
}

void kernels_ref_q8_fill(struct kernels *k) {
    k->quantise_q8 = quantise_q8;
#define ENTRY(lower, upper) k->matmul_q8[DTYPE_##upper] = matmul_##lower;
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
}
