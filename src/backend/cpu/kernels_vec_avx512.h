/*
 * The vector words in which kernels_body_*.h are written, for AVX-512 (F BW VL DQ VNNI): 16 lanes.
 * Each instruction set has such a header with the same names; a kernels_ISA.c includes one of them
 * and then the bodies. vf: float lanes; vi: 32-bit lanes, also seen as 4 bytes each.
 */
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels_isa.h"

#define LANES            16
#define TILE_TOKENS      8 /* accumulators that fit in registers */
#define SETS             2 /* row sets and tokens of a tile over packed weights */
#define SET_TOKENS       6
#define SET_TOKENS_SUB16 4
#define FEW_REGISTERS    false /* 16, not 32 */
#define DOT_TURN(kind)   1     /* steps of a token before the next one's turn */
#define VALUE_VECTORS    4     /* of acc, for each of VALUE_QUERIES */
#define FLOAT_GROUPS     2     /* of 16 rows, and tokens of a tile of floats */
#define FLOAT_TOKENS     8
#define VALUE_QUERIES    4
#define S8_OFFSET        128 /* VNNI multiplies unsigned by signed: signed weights are kept + 128 */

typedef __m512 vf;
typedef __m512i vi;

/* ---- Floats ---- */

ALWAYS_INLINE vf vf_zero(void) {
    return _mm512_setzero_ps();
}
ALWAYS_INLINE vf vf_set1(float x) {
    return _mm512_set1_ps(x);
}
ALWAYS_INLINE vf vf_load(const float *p) {
    return _mm512_loadu_ps(p);
}
ALWAYS_INLINE void vf_store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}
ALWAYS_INLINE __mmask16 first_lanes(int n) {
    return (__mmask16)((1u << n) - 1);
}
/* The first n < LANES; the other lanes are 0. */
ALWAYS_INLINE vf vf_load_part(const float *p, int n) {
    return _mm512_maskz_loadu_ps(first_lanes(n), p);
}
ALWAYS_INLINE void vf_store_part(float *p, vf v, int n) {
    _mm512_mask_storeu_ps(p, first_lanes(n), v);
}
ALWAYS_INLINE vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}
ALWAYS_INLINE vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}
ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}
ALWAYS_INLINE vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}
/* a * b + c, one rounding. */
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}
/* b if either is NaN. */
ALWAYS_INLINE vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}
ALWAYS_INLINE vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}
ALWAYS_INLINE vf vf_abs(vf a) {
    return _mm512_abs_ps(a);
}
ALWAYS_INLINE float vf_sum(vf a) {
    return _mm512_reduce_add_ps(a);
}
ALWAYS_INLINE float vf_top(vf a) {
    return _mm512_reduce_max_ps(a);
}

/* ---- 32-bit lanes and their bytes ---- */

ALWAYS_INLINE vi vi_set1(int32_t x) {
    return _mm512_set1_epi32(x);
}
/* Four bytes of memory in every lane. */
ALWAYS_INLINE vi vi_load1(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm512_set1_epi32(x);
}
ALWAYS_INLINE vi vi_load(const void *p) {
    return _mm512_loadu_si512(p);
}
/* LANES bytes, one in each lane. */
ALWAYS_INLINE vi vi_load_u8(const uint8_t *p) {
    return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p));
}
ALWAYS_INLINE vi vi_and(vi a, vi b) {
    return _mm512_and_si512(a, b);
}
ALWAYS_INLINE vi vi_or(vi a, vi b) {
    return _mm512_or_si512(a, b);
}
ALWAYS_INLINE vi vi_xor(vi a, vi b) {
    return _mm512_xor_si512(a, b);
}
ALWAYS_INLINE vi vi_add(vi a, vi b) {
    return _mm512_add_epi32(a, b);
}
ALWAYS_INLINE vi vi_sub(vi a, vi b) {
    return _mm512_sub_epi32(a, b);
}
ALWAYS_INLINE vi vi_max(vi a, vi b) {
    return _mm512_max_epi32(a, b);
}
ALWAYS_INLINE vi vi_shl(vi a, unsigned n) {
    return _mm512_slli_epi32(a, n);
}
ALWAYS_INLINE vi vi_shr(vi a, unsigned n) { /* zeros come in */
    return _mm512_srli_epi32(a, n);
}
ALWAYS_INLINE vi vi_sar(vi a, unsigned n) { /* the sign comes in */
    return _mm512_srai_epi32(a, n);
}
ALWAYS_INLINE int vi_sum(vi a) {
    return _mm512_reduce_add_epi32(a);
}
ALWAYS_INLINE vf vi_float(vi a) {
    return _mm512_cvtepi32_ps(a);
}
ALWAYS_INLINE vi vf_round(vf a) { /* to nearest, ties to even */
    return _mm512_cvtps_epi32(a);
}
ALWAYS_INLINE vf vi_as_float(vi a) {
    return _mm512_castsi512_ps(a);
}
/* 16 bytes again and again, and table[b & 15] of these for every byte b below 128. */
ALWAYS_INLINE vi vb_table(const int8_t table[16]) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128((const __m128i *)(const void *)table));
}
ALWAYS_INLINE vi vb_lookup(vi table, vi index) {
    return _mm512_shuffle_epi8(table, index);
}
/* 16 in byte k of a lane where bit 4 * group + k of the lane of bits is set, else 0. */
ALWAYS_INLINE vi vb_fifth_bits(vi bits, unsigned group) {
    int byte = (int)(group / 2);
    __m512i picked = _mm512_shuffle_epi8(
        bits,
        _mm512_broadcast_i32x4(_mm_setr_epi32(byte * 0x01010101, (byte + 4) * 0x01010101,
                                              (byte + 8) * 0x01010101, (byte + 12) * 0x01010101)));
    __m512i which = _mm512_set1_epi32(group % 2 ? (int)0x80402010 : 0x08040201);
    return _mm512_maskz_mov_epi8(_mm512_test_epi8_mask(picked, which), _mm512_set1_epi8(16));
}

/* ---- Halves and bytes as floats ---- */

/* The low and the high half of each lane. */
ALWAYS_INLINE void vf_from_halves(vi v, vf *low, vf *high) {
    const __m512i order =
        _mm512_set_epi16(31, 29, 27, 25, 23, 21, 19, 17, 15, 13, 11, 9, 7, 5, 3, 1, 30, 28, 26, 24,
                         22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0);
    __m512i sorted = _mm512_permutexvar_epi16(order, v);
    *low = _mm512_cvtph_ps(_mm512_castsi512_si256(sorted));
    *high = _mm512_cvtph_ps(_mm512_extracti64x4_epi64(sorted, 1));
}
ALWAYS_INLINE vf vf_from_low_half(vi v) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(const void *)p));
}
/* A half in every lane. */
ALWAYS_INLINE vf vf_set1_f16(uint16_t half) {
    return _mm512_cvtph_ps(_mm256_set1_epi16((short)half));
}
ALWAYS_INLINE vf vf_load_f16_part(const uint16_t *p, int n) {
    return _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(first_lanes(n), p));
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf v) {
    _mm256_storeu_si256((__m256i *)(void *)p,
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ALWAYS_INLINE void vf_store_f16_part(uint16_t *p, vf v, int n) {
    _mm256_mask_storeu_epi16(p, first_lanes(n),
                             _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ALWAYS_INLINE vf vf_load_s8(const int8_t *p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)(const void *)p)));
}
ALWAYS_INLINE void vi_store_s8(int8_t *p, vi v) {
    _mm_storeu_si128((__m128i *)(void *)p, _mm512_cvtepi32_epi8(v));
}

/* ---- Rows: lane r holds bytes of row r ---- */

ALWAYS_INLINE __m512i rows_load_quarter(const uint8_t *const row[LANES], int first, size_t at) {
    const __m128i *a = (const __m128i *)(const void *)(row[first] + at);
    const __m128i *b = (const __m128i *)(const void *)(row[first + 4] + at);
    const __m128i *c = (const __m128i *)(const void *)(row[first + 8] + at);
    const __m128i *d = (const __m128i *)(const void *)(row[first + 12] + at);
    __m512i v = _mm512_castsi128_si512(_mm_loadu_si128(a));
    v = _mm512_inserti32x4(v, _mm_loadu_si128(b), 1);
    v = _mm512_inserti32x4(v, _mm_loadu_si128(c), 2);
    return _mm512_inserti32x4(v, _mm_loadu_si128(d), 3);
}
/* 16 bytes of each row as four vectors, 4 bytes a lane. */
ALWAYS_INLINE void rows_load4(const uint8_t *const row[LANES], size_t at, vi out[4]) {
    __m512i a = rows_load_quarter(row, 0, at), b = rows_load_quarter(row, 1, at);
    __m512i c = rows_load_quarter(row, 2, at), d = rows_load_quarter(row, 3, at);
    __m512i ab_low = _mm512_unpacklo_epi32(a, b), ab_high = _mm512_unpackhi_epi32(a, b);
    __m512i cd_low = _mm512_unpacklo_epi32(c, d), cd_high = _mm512_unpackhi_epi32(c, d);
    out[0] = _mm512_unpacklo_epi64(ab_low, cd_low);
    out[1] = _mm512_unpackhi_epi64(ab_low, cd_low);
    out[2] = _mm512_unpacklo_epi64(ab_high, cd_high);
    out[3] = _mm512_unpackhi_epi64(ab_high, cd_high);
}
ALWAYS_INLINE __m128i four_words(const uint8_t *const row[4], size_t at) {
    __m128i a = _mm_loadu_si32(row[0] + at), b = _mm_loadu_si32(row[1] + at);
    __m128i c = _mm_loadu_si32(row[2] + at), d = _mm_loadu_si32(row[3] + at);
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
}
/* 4 bytes of each row. */
ALWAYS_INLINE vi rows_load1(const uint8_t *const row[LANES], size_t at) {
    __m512i v = _mm512_castsi128_si512(four_words(row, at));
    v = _mm512_inserti32x4(v, four_words(row + 4, at), 1);
    v = _mm512_inserti32x4(v, four_words(row + 8, at), 2);
    return _mm512_inserti32x4(v, four_words(row + 12, at), 3);
}

/* ---- Integer dot products ---- */

/* What a weight byte may be: it decides how many products a narrow sum can hold. */
enum weight_kind { WEIGHT_U4, WEIGHT_U5, WEIGHT_U6, WEIGHT_S8 };
struct dot {
    __m512i sum;
};
ALWAYS_INLINE void dot_start(struct dot *d, vi start) {
    d->sum = start;
}
/* sum += w[4 bytes] * x[4 bytes] in each lane; the step counts from 0 to n_steps - 1, at most 7. */
ALWAYS_INLINE void dot_step(enum weight_kind kind, int step, int n_steps, struct dot *d, vi w,
                            vi x) {
    (void)kind;
    (void)step;
    (void)n_steps;
    d->sum = _mm512_dpbusd_epi32(d->sum, w, x);
}
ALWAYS_INLINE vi dot_end(const struct dot *d) {
    return d->sum;
}
/* a * pair[0] + b * pair[1] in every lane. */
ALWAYS_INLINE vi vi_pair(const int16_t *pair, int a, int b) {
    __m512i factors = _mm512_set1_epi32((int)((uint32_t)a & 0xffff) | (int)((uint32_t)b << 16));
    return _mm512_madd_epi16(vi_load1(pair), factors);
}
