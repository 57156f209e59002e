/* The vector words (see kernels_vec_avx512.h for what each means) for AVX2, FMA and F16C: 8 lanes.
 * The dot products are in kernels_dot_avx2.h or kernels_dot_avxvnni.h. */
#pragma once

#include <immintrin.h>

#include "backend/cpu/kernels_isa.h"

#define LANES         8
#define TILE_TOKENS   4
#define SETS          2
#define SET_TOKENS    4
#define FEW_REGISTERS true /* 8 sums of a tile take all: outputs stay in memory */
#define FLOAT_GROUPS  1    /* of 16 rows, and tokens of a tile of floats */
#define FLOAT_TOKENS  6
#define VALUE_VECTORS 2
#define VALUE_QUERIES 4

typedef __m256 vf;
typedef __m256i vi;

/* ---- Floats ---- */

ALWAYS_INLINE vf vf_zero(void) {
    return _mm256_setzero_ps();
}
ALWAYS_INLINE vf vf_set1(float x) {
    return _mm256_set1_ps(x);
}
ALWAYS_INLINE vf vf_load(const float *p) {
    return _mm256_loadu_ps(p);
}
ALWAYS_INLINE void vf_store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}
ALWAYS_INLINE __m256i first_lanes(int n) {
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
ALWAYS_INLINE vf vf_load_part(const float *p, int n) {
    return _mm256_maskload_ps(p, first_lanes(n));
}
ALWAYS_INLINE void vf_store_part(float *p, vf v, int n) {
    _mm256_maskstore_ps(p, first_lanes(n), v);
}
ALWAYS_INLINE vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}
ALWAYS_INLINE vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}
ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}
ALWAYS_INLINE vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}
ALWAYS_INLINE vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}
ALWAYS_INLINE vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}
ALWAYS_INLINE vf vf_abs(vf a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}
ALWAYS_INLINE float vf_sum(vf a) {
    __m128 v = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    v = _mm_add_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_add_ss(v, _mm_movehdup_ps(v)));
}
ALWAYS_INLINE float vf_top(vf a) {
    __m128 v = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    v = _mm_max_ps(v, _mm_movehl_ps(v, v));
    return _mm_cvtss_f32(_mm_max_ss(v, _mm_movehdup_ps(v)));
}

/* ---- 32-bit lanes and their bytes ---- */

ALWAYS_INLINE vi vi_set1(int32_t x) {
    return _mm256_set1_epi32(x);
}
ALWAYS_INLINE vi vi_load1(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return _mm256_set1_epi32(x);
}
ALWAYS_INLINE vi vi_load(const void *p) {
    return _mm256_loadu_si256(p);
}
ALWAYS_INLINE vi vi_load_u8(const uint8_t *p) {
    return _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
}
ALWAYS_INLINE vi vi_and(vi a, vi b) {
    return _mm256_and_si256(a, b);
}
ALWAYS_INLINE vi vi_or(vi a, vi b) {
    return _mm256_or_si256(a, b);
}
ALWAYS_INLINE vi vi_xor(vi a, vi b) {
    return _mm256_xor_si256(a, b);
}
ALWAYS_INLINE vi vi_add(vi a, vi b) {
    return _mm256_add_epi32(a, b);
}
ALWAYS_INLINE vi vi_sub(vi a, vi b) {
    return _mm256_sub_epi32(a, b);
}
ALWAYS_INLINE vi vi_max(vi a, vi b) {
    return _mm256_max_epi32(a, b);
}
ALWAYS_INLINE vi vi_shl(vi a, unsigned n) {
    return _mm256_slli_epi32(a, (int)n);
}
ALWAYS_INLINE vi vi_shr(vi a, unsigned n) {
    return _mm256_srli_epi32(a, (int)n);
}
ALWAYS_INLINE vi vi_sar(vi a, unsigned n) {
    return _mm256_srai_epi32(a, (int)n);
}
ALWAYS_INLINE int vi_sum(vi a) {
    __m128i v = _mm_add_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256(a, 1));
    v = _mm_add_epi32(v, _mm_unpackhi_epi64(v, v));
    return _mm_cvtsi128_si32(v) + _mm_extract_epi32(v, 1);
}
ALWAYS_INLINE vf vi_float(vi a) {
    return _mm256_cvtepi32_ps(a);
}
ALWAYS_INLINE vi vf_round(vf a) {
    return _mm256_cvtps_epi32(a);
}
ALWAYS_INLINE vf vi_as_float(vi a) {
    return _mm256_castsi256_ps(a);
}
ALWAYS_INLINE vi vb_table(const int8_t table[16]) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)table));
}
ALWAYS_INLINE vi vb_lookup(vi table, vi index) {
    return _mm256_shuffle_epi8(table, index);
}
ALWAYS_INLINE vi vb_fifth_bits(vi bits, unsigned group) {
    int byte = (int)(group / 2);
    __m128i pick = _mm_setr_epi32(byte * 0x01010101, (byte + 4) * 0x01010101,
                                  (byte + 8) * 0x01010101, (byte + 12) * 0x01010101);
    __m256i which = _mm256_set1_epi32(group % 2 ? (int)0x80402010 : 0x08040201);
    __m256i picked = _mm256_shuffle_epi8(bits, _mm256_broadcastsi128_si256(pick));
    __m256i set = _mm256_cmpeq_epi8(_mm256_and_si256(picked, which), which);
    return _mm256_and_si256(set, _mm256_set1_epi8(16));
}

/* ---- Halves and bytes as floats ---- */

ALWAYS_INLINE void vf_from_halves(vi v, vf *low, vf *high) {
    __m256i packed = _mm256_packus_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0xffff)),
                                         _mm256_srli_epi32(v, 16));
    __m256i sorted = _mm256_permute4x64_epi64(packed, 0xd8);
    *low = _mm256_cvtph_ps(_mm256_castsi256_si128(sorted));
    *high = _mm256_cvtph_ps(_mm256_extracti128_si256(sorted, 1));
}
ALWAYS_INLINE vf vf_from_low_half(vi v) {
    __m256i low = _mm256_and_si256(v, _mm256_set1_epi32(0xffff));
    __m256i packed = _mm256_packus_epi32(low, low);
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(packed, 0xd8)));
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)p));
}
/* A half in every lane. */
ALWAYS_INLINE vf vf_set1_f16(uint16_t half) {
    return _mm256_cvtph_ps(_mm_set1_epi16((short)half));
}
ALWAYS_INLINE vf vf_load_f16_part(const uint16_t *p, int n) {
    uint16_t stage[LANES] = {0};
    __builtin_memcpy(stage, p, (size_t)n * sizeof *p);
    return vf_load_f16(stage);
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf v) {
    _mm_storeu_si128((__m128i *)(void *)p,
                     _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
ALWAYS_INLINE void vf_store_f16_part(uint16_t *p, vf v, int n) {
    uint16_t stage[LANES];
    vf_store_f16(stage, v);
    __builtin_memcpy(p, stage, (size_t)n * sizeof *p);
}
ALWAYS_INLINE vf vf_load_s8(const int8_t *p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p)));
}
ALWAYS_INLINE void vi_store_s8(int8_t *p, vi v) {
    __m256i words = _mm256_packs_epi32(v, v);
    __m128i sorted = _mm256_castsi256_si128(_mm256_permute4x64_epi64(words, 0xd8));
    _mm_storel_epi64((__m128i *)(void *)p, _mm_packs_epi16(sorted, sorted));
}

/* ---- Rows: lane r holds bytes of row r ---- */

ALWAYS_INLINE __m256i rows_load_half(const uint8_t *const row[LANES], int first, size_t at) {
    const __m128i *a = (const __m128i *)(const void *)(row[first] + at);
    const __m128i *b = (const __m128i *)(const void *)(row[first + 4] + at);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128(a)), _mm_loadu_si128(b),
                                   1);
}
ALWAYS_INLINE void rows_load4(const uint8_t *const row[LANES], size_t at, vi out[4]) {
    __m256i a = rows_load_half(row, 0, at), b = rows_load_half(row, 1, at);
    __m256i c = rows_load_half(row, 2, at), d = rows_load_half(row, 3, at);
    __m256i ab_low = _mm256_unpacklo_epi32(a, b), ab_high = _mm256_unpackhi_epi32(a, b);
    __m256i cd_low = _mm256_unpacklo_epi32(c, d), cd_high = _mm256_unpackhi_epi32(c, d);
    out[0] = _mm256_unpacklo_epi64(ab_low, cd_low);
    out[1] = _mm256_unpackhi_epi64(ab_low, cd_low);
    out[2] = _mm256_unpacklo_epi64(ab_high, cd_high);
    out[3] = _mm256_unpackhi_epi64(ab_high, cd_high);
}
ALWAYS_INLINE __m128i four_words(const uint8_t *const row[4], size_t at) {
    __m128i a = _mm_loadu_si32(row[0] + at), b = _mm_loadu_si32(row[1] + at);
    __m128i c = _mm_loadu_si32(row[2] + at), d = _mm_loadu_si32(row[3] + at);
    return _mm_unpacklo_epi64(_mm_unpacklo_epi32(a, b), _mm_unpacklo_epi32(c, d));
}
ALWAYS_INLINE vi rows_load1(const uint8_t *const row[LANES], size_t at) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(four_words(row, at)),
                                   four_words(row + 4, at), 1);
}

/* a * pair[0] + b * pair[1] in every lane. */
ALWAYS_INLINE vi vi_pair(const int16_t *pair, int a, int b) {
    __m256i factors = _mm256_set1_epi32((int)((uint32_t)a & 0xffff) | (int)((uint32_t)b << 16));
    return _mm256_madd_epi16(vi_load1(pair), factors);
}

/* What a weight byte may be: it decides how many products a narrow sum can hold. */
enum weight_kind { WEIGHT_U4, WEIGHT_U5, WEIGHT_U6, WEIGHT_S8 };
