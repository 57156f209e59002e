#include "model/quant.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* The simple types, and the two functions of dtype.h that dispatch. */

static void f16_to_float(const uint16_t *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = half_to_float(x[i]);
}

static void bf16_rows_to_float(const uint16_t *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_to_float(x[i]);
}

static void q8_0_to_float(const struct block_q8_0 *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SMALL) {
        float d = half_to_float(b->d);
        for (int i = 0; i < QK_SMALL; i++)
            out[i] = d * (float)b->qs[i];
    }
}

static void q4_0_to_float(const struct block_q4_0 *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SMALL) {
        float d = half_to_float(b->d);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)((b->qs[i] & 15) - 8);
            out[i + 16] = d * (float)((b->qs[i] >> 4) - 8);
        }
    }
}

static void q4_1_to_float(const struct block_q4_1 *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SMALL) {
        float d = half_to_float(b->d), m = half_to_float(b->m);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)(b->qs[i] & 15) + m;
            out[i + 16] = d * (float)(b->qs[i] >> 4) + m;
        }
    }
}

/* Level 0..31 of element i, of the 32 of a Q5_0 or Q5_1 block. */
static int q5_level(const uint8_t qs[16], const uint8_t qh[4], int i) {
    int low = i < 16 ? qs[i] & 15 : qs[i - 16] >> 4;
    return low | (qh[i / 8] >> (i % 8) & 1) << 4;
}

static void q5_0_to_float(const struct block_q5_0 *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SMALL) {
        float d = half_to_float(b->d);
        for (int i = 0; i < QK_SMALL; i++)
            out[i] = d * (float)(q5_level(b->qs, b->qh, i) - 16);
    }
}

static void q5_1_to_float(const struct block_q5_1 *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SMALL) {
        float d = half_to_float(b->d), m = half_to_float(b->m);
        for (int i = 0; i < QK_SMALL; i++)
            out[i] = d * (float)q5_level(b->qs, b->qh, i) + m;
    }
}

static void iq4_nl_to_float(const struct block_iq4_nl *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SMALL) {
        float d = half_to_float(b->d);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)iq4_values[b->qs[i] & 15];
            out[i + 16] = d * (float)iq4_values[b->qs[i] >> 4];
        }
    }
}

static void mxfp4_to_float(const struct block_mxfp4 *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SMALL) {
        float d = e8m0_half(b->e);
        for (int i = 0; i < 16; i++) {
            out[i] = d * (float)mxfp4_values[b->qs[i] & 15];
            out[i + 16] = d * (float)mxfp4_values[b->qs[i] >> 4];
        }
    }
}

static void f16_from_float(const float *x, uint16_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = half_from_float(x[i]);
}

static void bf16_rows_from_float(const float *x, uint16_t *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = bf16_from_float(x[i]);
}

/* Levels are rounded with the scale that is stored, not with the one before its rounding. */
static void q8_0_from_float(const float *x, struct block_q8_0 *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SMALL) {
        float max = 0;
        for (int i = 0; i < QK_SMALL; i++) {
            if (fabsf(x[i]) > max) max = fabsf(x[i]);
        }
        b->d = quant_half((double)max / 127);
        float d = half_to_float(b->d), inverse = d != 0 ? 1 / d : 0;
        for (int i = 0; i < QK_SMALL; i++)
            b->qs[i] = (int8_t)quant_round(x[i] * inverse, -127, 127);
    }
}

static void put_nibbles(const uint8_t level[QK_SMALL], uint8_t qs[16]) {
    for (int i = 0; i < 16; i++)
        qs[i] = (uint8_t)((level[i] & 15) | (level[i + 16] & 15) << 4);
}

static void put_fifth_bits(const uint8_t level[QK_SMALL], uint8_t qh[4]) {
    memset(qh, 0, 4);
    for (int i = 0; i < QK_SMALL; i++)
        qh[i / 8] |= (uint8_t)((level[i] >> 4 & 1) << (i % 8));
}

static uint16_t symmetric_levels(const float *x, int n_max, uint8_t level[QK_SMALL]) {
    int8_t q[QK_SMALL];
    float d = quant_fit_symmetric(x, QK_SMALL, n_max, true, q);
    for (int i = 0; i < QK_SMALL; i++)
        level[i] = (uint8_t)(q[i] + n_max);
    return quant_half((double)d);
}

static void q4_0_from_float(const float *x, struct block_q4_0 *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SMALL) {
        uint8_t level[QK_SMALL];
        b->d = symmetric_levels(x, 8, level);
        put_nibbles(level, b->qs);
    }
}

static void q5_0_from_float(const float *x, struct block_q5_0 *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SMALL) {
        uint8_t level[QK_SMALL];
        b->d = symmetric_levels(x, 16, level);
        put_nibbles(level, b->qs);
        put_fifth_bits(level, b->qh);
    }
}

static void q4_1_from_float(const float *x, struct block_q4_1 *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SMALL) {
        uint8_t level[QK_SMALL];
        float d, m;
        quant_fit_affine(x, QK_SMALL, 15, true, false, &d, &m, level);
        b->d = quant_half((double)d);
        b->m = quant_half((double)m);
        put_nibbles(level, b->qs);
    }
}

static void q5_1_from_float(const float *x, struct block_q5_1 *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SMALL) {
        uint8_t level[QK_SMALL];
        float d, m;
        quant_fit_affine(x, QK_SMALL, 31, true, false, &d, &m, level);
        b->d = quant_half((double)d);
        b->m = quant_half((double)m);
        put_nibbles(level, b->qs);
        put_fifth_bits(level, b->qh);
    }
}

/* Code 0..15 of the e2m1 value nearest to v (in doubled units), ties to the even code. */
static int e2m1_code(float v) {
    float magnitude = fabsf(v);
    int best = 0;
    for (int code = 1; code < 8; code++) {
        float middle = 0.5f * (float)(mxfp4_values[code - 1] + mxfp4_values[code]);
        if (magnitude > middle || (magnitude == middle && code % 2 == 0)) best = code;
    }
    return v < 0 && best > 0 ? best + 8 : best;
}

static double mxfp4_levels(const float *x, uint8_t e, uint8_t level[QK_SMALL]) {
    float d = e8m0_half(e);
    double error = 0;
    for (int i = 0; i < QK_SMALL; i++) {
        level[i] = (uint8_t)e2m1_code(x[i] / d);
        double diff = (double)x[i] - (double)d * mxfp4_values[level[i]];
        error += diff * diff;
    }
    return error;
}

#define MXFP4_MAX_E 252 /* 6 times its scale is still a float */

/* The largest value lies between 4 and 8 at scale e (6 is the largest that e2m1 has): the scales
 * around it are tried too. */
static void mxfp4_from_float(const float *x, struct block_mxfp4 *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SMALL) {
        float max = 0;
        for (int i = 0; i < QK_SMALL; i++) {
            if (fabsf(x[i]) > max) max = fabsf(x[i]);
        }
        if (max > FLT_MAX) max = FLT_MAX;
        uint8_t level[QK_SMALL] = {0};
        int exponent = 0;
        frexpf(max, &exponent); /* max = m * 2^exponent, 0.5 <= m < 1 */
        int e = max > 0 ? exponent - 3 + 127 : 0;
        b->e = 0;
        double best_error = max > 0 ? (double)INFINITY : 0;
        for (int trial = max_int(e - 1, 0); trial <= min_int(e + 1, MXFP4_MAX_E) && max > 0;
             trial++) {
            uint8_t trial_level[QK_SMALL];
            double error = mxfp4_levels(x, (uint8_t)trial, trial_level);
            if (!(error < best_error)) continue;
            best_error = error;
            b->e = (uint8_t)trial;
            memcpy(level, trial_level, sizeof level);
        }
        put_nibbles(level, b->qs);
    }
}

void dtype_to_float(enum dtype type, const void *blocks, float *out, int64_t n) {
    int64_t n_blocks = n / dtype_info(type)->block_elements;
    REQUIRE(n >= 0 && n % dtype_info(type)->block_elements == 0);
    switch (type) {
    case DTYPE_F32:
        memcpy(out, blocks, (size_t)n * sizeof *out);
        return;
    case DTYPE_F16:
        f16_to_float(blocks, out, n);
        return;
    case DTYPE_BF16:
        bf16_rows_to_float(blocks, out, n);
        return;
    case DTYPE_Q8_0:
        q8_0_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q4_0:
        q4_0_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q4_1:
        q4_1_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q5_0:
        q5_0_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q5_1:
        q5_1_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q2_K:
        q2_k_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q3_K:
        q3_k_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q4_K:
        q4_k_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q5_K:
        q5_k_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_Q6_K:
        q6_k_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_IQ4_NL:
        iq4_nl_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_IQ4_XS:
        iq4_xs_to_float(blocks, out, n_blocks);
        return;
    case DTYPE_MXFP4:
        mxfp4_to_float(blocks, out, n_blocks);
        return;
    default:
        REQUIRE(!"a type without de-quantiser");
    }
}

bool dtype_can_quantise(enum dtype type) {
    switch (type) {
    case DTYPE_F32:
    case DTYPE_F16:
    case DTYPE_BF16:
    case DTYPE_Q8_0:
    case DTYPE_Q4_0:
    case DTYPE_Q4_1:
    case DTYPE_Q5_0:
    case DTYPE_Q5_1:
    case DTYPE_Q4_K:
    case DTYPE_Q6_K:
    case DTYPE_MXFP4:
        return true;
    default:
        return false;
    }
}

void dtype_from_float(enum dtype type, const float *x, void *blocks, int64_t n) {
    int64_t n_blocks = n / dtype_info(type)->block_elements;
    REQUIRE(n >= 0 && n % dtype_info(type)->block_elements == 0);
    switch (type) {
    case DTYPE_F32:
        memcpy(blocks, x, (size_t)n * sizeof *x);
        return;
    case DTYPE_F16:
        f16_from_float(x, blocks, n);
        return;
    case DTYPE_BF16:
        bf16_rows_from_float(x, blocks, n);
        return;
    case DTYPE_Q8_0:
        q8_0_from_float(x, blocks, n_blocks);
        return;
    case DTYPE_Q4_0:
        q4_0_from_float(x, blocks, n_blocks);
        return;
    case DTYPE_Q4_1:
        q4_1_from_float(x, blocks, n_blocks);
        return;
    case DTYPE_Q5_0:
        q5_0_from_float(x, blocks, n_blocks);
        return;
    case DTYPE_Q5_1:
        q5_1_from_float(x, blocks, n_blocks);
        return;
    case DTYPE_Q4_K:
        q4_k_from_float(x, blocks, n_blocks);
        return;
    case DTYPE_Q6_K:
        q6_k_from_float(x, blocks, n_blocks);
        return;
    case DTYPE_MXFP4:
        mxfp4_from_float(x, blocks, n_blocks);
        return;
    default:
        REQUIRE(!"a type without quantiser");
    }
}
