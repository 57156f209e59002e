/*
 * Tensor types: names, sizes, block layouts, tables, and the scalar reference conversions to and
 * from float. It is where every room learns how many bytes a row takes; it is not a kernel (those
 * are in backend/cpu) and reads no file. Layout facts: the GGUF types of ecosystem.md 4.5.
 *
 * All multi-byte fields are little-endian. Data of a quantised type needs an alignment of 2, plain
 * types that of their element; a GGUF tensor always has at least 8.
 */
#pragma once

#include "base/base.h"
#include "base/error.h"
#include "base/half.h"

/*
 * Every type a GGUF file may hold, once: enum and printed name, id in the file, elements and bytes
 * of a block, quantised. The first group can be weights: it has a reference de-quantiser and must
 * stay first. The rest is known by size only, so that a file can be listed; models refuse them.
 */
#define DTYPE_WEIGHT_MAP(X)                                                                        \
    X(F32, 0, 1, 4, false)                                                                         \
    X(F16, 1, 1, 2, false)                                                                         \
    X(BF16, 30, 1, 2, false)                                                                       \
    X(Q8_0, 8, 32, 34, true)                                                                       \
    X(Q4_0, 2, 32, 18, true)                                                                       \
    X(Q4_1, 3, 32, 20, true)                                                                       \
    X(Q5_0, 6, 32, 22, true)                                                                       \
    X(Q5_1, 7, 32, 24, true)                                                                       \
    X(Q2_K, 10, 256, 84, true)                                                                     \
    X(Q3_K, 11, 256, 110, true)                                                                    \
    X(Q4_K, 12, 256, 144, true)                                                                    \
    X(Q5_K, 13, 256, 176, true)                                                                    \
    X(Q6_K, 14, 256, 210, true)                                                                    \
    X(IQ4_NL, 20, 32, 18, true)                                                                    \
    X(IQ4_XS, 23, 256, 136, true)                                                                  \
    X(MXFP4, 39, 32, 17, true)
#define DTYPE_OTHER_MAP(X)                                                                         \
    X(Q8_1, 9, 32, 36, true)                                                                       \
    X(Q8_K, 15, 256, 292, true)                                                                    \
    X(IQ2_XXS, 16, 256, 66, true)                                                                  \
    X(IQ2_XS, 17, 256, 74, true)                                                                   \
    X(IQ3_XXS, 18, 256, 98, true)                                                                  \
    X(IQ1_S, 19, 256, 50, true)                                                                    \
    X(IQ3_S, 21, 256, 110, true)                                                                   \
    X(IQ2_S, 22, 256, 82, true)                                                                    \
    X(I8, 24, 1, 1, false)                                                                         \
    X(I16, 25, 1, 2, false)                                                                        \
    X(I32, 26, 1, 4, false)                                                                        \
    X(I64, 27, 1, 8, false)                                                                        \
    X(F64, 28, 1, 8, false)                                                                        \
    X(IQ1_M, 29, 256, 56, true)                                                                    \
    X(TQ1_0, 34, 256, 54, true)                                                                    \
    X(TQ2_0, 35, 256, 66, true)                                                                    \
    X(NVFP4, 40, 64, 36, true)                                                                     \
    X(Q1_0, 41, 128, 18, true)

enum dtype {
#define DTYPE_ENUM(name, id, elements, bytes, quantised) DTYPE_##name,
    DTYPE_WEIGHT_MAP(DTYPE_ENUM) N_DTYPES_WEIGHT,
    DTYPE_BEFORE_OTHER = N_DTYPES_WEIGHT - 1, /* so that the next one continues the count */
    DTYPE_OTHER_MAP(DTYPE_ENUM) N_DTYPES
#undef DTYPE_ENUM
};

struct dtype_info {
    const char *name; /* as GGUF spells it: "Q4_K" */
    uint32_t ggml_id; /* in the file */
    int block_elements;
    int block_bytes;
    bool quantised; /* blocks of several elements, scales inside */
    bool weight;    /* dtype_to_float knows it */
};

/* Never NULL; type must be below N_DTYPES. */
const struct dtype_info *dtype_info(enum dtype type);
const char *dtype_name(enum dtype type);
/* ATS_UNSUPPORTED with a text that names the id (and what it once was, when retired). */
MUST_CHECK ats_status dtype_from_ggml(uint32_t ggml_id, enum dtype *out);
/* "q4_k" or "Q4_K"; false if there is none. */
MUST_CHECK bool dtype_from_name(const char *name, enum dtype *out);

/* Bytes of n elements in a row; false if n is negative or no multiple of the block, or the size
 * passes 2^63 - 1. Safe with numbers from files. */
MUST_CHECK bool dtype_row_size(enum dtype type, int64_t n, int64_t *bytes);
/* The same for a count of our own: REQUIREs what the above reports. */
int64_t dtype_row_bytes(enum dtype type, int64_t n);

/*
 * The reference de-quantiser: n elements (a multiple of the block) of a weight type to float,
 * bit-equal to the format's definition (one multiply and one add or subtract, never fused).
 */
void dtype_to_float(enum dtype type, const void *blocks, float *out, int64_t n);

/*
 * The quantisers, deterministic, for F32 F16 BF16 Q8_0 Q4_0 Q4_1 Q5_0 Q5_1 Q4_K Q6_K MXFP4.
 * n is a multiple of the block. Values that are not finite give some value, never undefined
 * behaviour. For tests: they make their models with them.
 */
bool dtype_can_quantise(enum dtype type);
void dtype_from_float(enum dtype type, const float *x, void *blocks, int64_t n);

/* ---- Blocks, as they lie in the file ---- */

#define QK_SMALL 32  /* elements of the simple blocks */
#define QK_SUPER 256 /* elements of a super-block (K-quants, IQ4_XS) */

/* x = d * q */
struct block_q8_0 {
    uint16_t d; /* half */
    int8_t qs[QK_SMALL];
};
/* x = d * (q - 8); element i in the low nibble of qs[i], i + 16 in the high one */
struct block_q4_0 {
    uint16_t d;
    uint8_t qs[QK_SMALL / 2];
};
/* x = d * q + m; nibbles as in Q4_0 */
struct block_q4_1 {
    uint16_t d, m;
    uint8_t qs[QK_SMALL / 2];
};
/* x = d * (q - 16); nibbles as in Q4_0, the fifth bit of element i is bit i of qh (little-endian)
 */
struct block_q5_0 {
    uint16_t d;
    uint8_t qh[4];
    uint8_t qs[QK_SMALL / 2];
};
/* x = d * q + m */
struct block_q5_1 {
    uint16_t d, m;
    uint8_t qh[4];
    uint8_t qs[QK_SMALL / 2];
};
/* x = (d * (scales[s] & 15)) * q - dmin * (scales[s] >> 4), s = i / 16. Element 128 h + 32 j + l
 * is bits 2j, 2j + 1 of qs[32 h + l]. */
struct block_q2_k {
    uint8_t scales[QK_SUPER / 16];
    uint8_t qs[QK_SUPER / 4];
    uint16_t d, dmin;
};
/* x = (d * (scale[s] - 32)) * (q2 - (bit set ? 0 : 4)), s = i / 16; q2 as in Q2_K, the bit of
 * element 128 h + 32 j + l is bit 4 h + j of hmask[l]. Scales: q3_k_scales(). */
struct block_q3_k {
    uint8_t hmask[QK_SUPER / 8];
    uint8_t qs[QK_SUPER / 4];
    uint8_t scales[12];
    uint16_t d;
};
/* x = (d * scale[s]) * q - dmin * min[s], s = i / 32. Elements 64 j + l in the low and
 * 64 j + 32 + l in the high nibble of qs[32 j + l]. Scales and mins: k_scale_min(). */
struct block_q4_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qs[QK_SUPER / 2];
};
/* As Q4_K with a fifth bit: of element 32 s + l it is bit s of qh[l]. */
struct block_q5_k {
    uint16_t d, dmin;
    uint8_t scales[12];
    uint8_t qh[QK_SUPER / 8];
    uint8_t qs[QK_SUPER / 2];
};
/* x = (d * scales[s]) * (q - 32), s = i / 16. In each half h of 128: the low 4 bits of elements
 * l, 32 + l in the low nibbles of ql[64 h + l], ql[64 h + 32 + l], of 64 + l, 96 + l in the high
 * ones; their upper 2 bits are bits 0-1, 2-3, 4-5, 6-7 of qh[32 h + l]. */
struct block_q6_k {
    uint8_t ql[QK_SUPER / 2];
    uint8_t qh[QK_SUPER / 4];
    int8_t scales[QK_SUPER / 16];
    uint16_t d;
};
/* x = d * iq4_values[q]; nibbles as in Q4_0 */
struct block_iq4_nl {
    uint16_t d;
    uint8_t qs[QK_SMALL / 2];
};
/* x = (d * (scale[s] - 32)) * iq4_values[q], s = i / 32; sub-block s has its 16 bytes of nibbles
 * (as in Q4_0) at qs[16 s]. Scale: low 4 bits from nibble s of scales_l, upper 2 are bits 2s,
 * 2s + 1 of scales_h: iq4_xs_scale(). */
struct block_iq4_xs {
    uint16_t d;
    uint16_t scales_h;
    uint8_t scales_l[QK_SUPER / 64];
    uint8_t qs[QK_SUPER / 2];
};
/* x = e8m0_half(e) * mxfp4_values[q]; nibbles as in Q4_0 */
struct block_mxfp4 {
    uint8_t e;
    uint8_t qs[QK_SMALL / 2];
};

_Static_assert(sizeof(struct block_q8_0) == 34, "Q8_0");
_Static_assert(sizeof(struct block_q4_0) == 18, "Q4_0");
_Static_assert(sizeof(struct block_q4_1) == 20, "Q4_1");
_Static_assert(sizeof(struct block_q5_0) == 22, "Q5_0");
_Static_assert(sizeof(struct block_q5_1) == 24, "Q5_1");
_Static_assert(sizeof(struct block_q2_k) == 84, "Q2_K");
_Static_assert(sizeof(struct block_q3_k) == 110, "Q3_K");
_Static_assert(sizeof(struct block_q4_k) == 144, "Q4_K");
_Static_assert(sizeof(struct block_q5_k) == 176, "Q5_K");
_Static_assert(sizeof(struct block_q6_k) == 210, "Q6_K");
_Static_assert(sizeof(struct block_iq4_nl) == 18, "IQ4_NL");
_Static_assert(sizeof(struct block_iq4_xs) == 136, "IQ4_XS");
_Static_assert(sizeof(struct block_mxfp4) == 17, "MXFP4");

/* ---- Tables and bit fields that kernels share ---- */

extern const int8_t iq4_values[16];   /* IQ4_NL and IQ4_XS */
extern const int8_t mxfp4_values[16]; /* e2m1 times two: 0 1 2 3 4 6 8 12 and their negatives */

/* Half of the e8m0 value, 2^(e - 128), exact: goes with the doubled mxfp4_values. */
ALWAYS_INLINE float e8m0_half(uint8_t e) {
    uint32_t subnormal = 0x00200000u << (e & 1); /* e is 0 or 1 */
    return float_from_bits(e < 2 ? subnormal : (uint32_t)(e - 1) << 23);
}

/* Scale and min (6 bits each) of sub-block s, 0..7, of Q4_K and Q5_K. */
ALWAYS_INLINE void k_scale_min(const uint8_t scales[12], int s, uint8_t *scale, uint8_t *min) {
    if (s < 4) {
        *scale = scales[s] & 63;
        *min = scales[s + 4] & 63;
    } else {
        *scale = (uint8_t)((scales[s + 4] & 15) | (scales[s - 4] >> 6 << 4));
        *min = (uint8_t)(scales[s + 4] >> 4 | (scales[s] >> 6 << 4));
    }
}

/* The 16 scales of Q3_K with the offset of 32 taken off: -32..31. */
ALWAYS_INLINE void q3_k_scales(const uint8_t scales[12], int8_t out[16]) {
    for (int s = 0; s < 16; s++) {
        int low = s < 8 ? scales[s] & 15 : scales[s - 8] >> 4;
        int high = scales[8 + s % 4] >> (s / 4 * 2) & 3;
        out[s] = (int8_t)((low | high << 4) - 32);
    }
}

/* Scale of sub-block s, 0..7, of IQ4_XS with the offset of 32 taken off. */
ALWAYS_INLINE int iq4_xs_scale(const struct block_iq4_xs *b, int s) {
    int low = b->scales_l[s / 2] >> (s % 2 * 4) & 15;
    return (low | (b->scales_h >> (2 * s) & 3) << 4) - 32;
}
