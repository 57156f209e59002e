/* The vector words (see kernels_vec_avx512.h for what each means) for AArch64 NEON: 4 lanes. The
 * dot products are in kernels_dot_neon.h or kernels_dot_neon_dot.h. */
#pragma once

#include <arm_neon.h>

#include "backend/cpu/kernels_isa.h"

#define LANES            4
#define TILE_TOKENS      8
#define SETS             2
#define SET_TOKENS       4
#define SET_TOKENS_SUB16 4
#define FEW_REGISTERS    false
#define DOT_TURN(kind)   1 /* steps of a token before the next one's turn */
#define FLOAT_GROUPS     1
#define FLOAT_TOKENS     6
#define VALUE_VECTORS    4
#define VALUE_QUERIES    4
#define S8_OFFSET        0

typedef float32x4_t vf;
typedef int32x4_t vi;

/* ---- Floats ---- */

ALWAYS_INLINE vf vf_zero(void) {
    return vdupq_n_f32(0);
}
ALWAYS_INLINE vf vf_set1(float x) {
    return vdupq_n_f32(x);
}
ALWAYS_INLINE vf vf_load(const float *p) {
    return vld1q_f32(p);
}
ALWAYS_INLINE void vf_store(float *p, vf v) {
    vst1q_f32(p, v);
}
ALWAYS_INLINE vf vf_load_part(const float *p, int n) {
    float stage[LANES] = {0};
    __builtin_memcpy(stage, p, (size_t)n * sizeof *p);
    return vld1q_f32(stage);
}
ALWAYS_INLINE void vf_store_part(float *p, vf v, int n) {
    float stage[LANES];
    vst1q_f32(stage, v);
    __builtin_memcpy(p, stage, (size_t)n * sizeof *p);
}
ALWAYS_INLINE vf vf_add(vf a, vf b) {
    return vaddq_f32(a, b);
}
ALWAYS_INLINE vf vf_sub(vf a, vf b) {
    return vsubq_f32(a, b);
}
ALWAYS_INLINE vf vf_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}
ALWAYS_INLINE vf vf_div(vf a, vf b) {
    return vdivq_f32(a, b);
}
ALWAYS_INLINE vf vf_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}
ALWAYS_INLINE vf vf_max(vf a, vf b) { /* NaN if either is */
    return vmaxq_f32(a, b);
}
ALWAYS_INLINE vf vf_min(vf a, vf b) {
    return vminq_f32(a, b);
}
ALWAYS_INLINE vf vf_abs(vf a) {
    return vabsq_f32(a);
}
ALWAYS_INLINE float vf_sum(vf a) {
    return vaddvq_f32(a);
}
ALWAYS_INLINE float vf_top(vf a) {
    return vmaxvq_f32(a);
}

/* ---- 32-bit lanes and their bytes ---- */

ALWAYS_INLINE vi vi_set1(int32_t x) {
    return vdupq_n_s32(x);
}
ALWAYS_INLINE vi vi_load1(const void *p) {
    int32_t x;
    __builtin_memcpy(&x, p, sizeof x);
    return vdupq_n_s32(x);
}
ALWAYS_INLINE vi vi_load(const void *p) {
    return vreinterpretq_s32_u8(vld1q_u8(p));
}
ALWAYS_INLINE vi vi_load_u8(const uint8_t *p) {
    uint32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    uint16x8_t wide = vmovl_u8(vreinterpret_u8_u32(vdup_n_u32(bytes)));
    return vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(wide)));
}
ALWAYS_INLINE vi vi_and(vi a, vi b) {
    return vandq_s32(a, b);
}
ALWAYS_INLINE vi vi_or(vi a, vi b) {
    return vorrq_s32(a, b);
}
ALWAYS_INLINE vi vi_xor(vi a, vi b) {
    return veorq_s32(a, b);
}
ALWAYS_INLINE vi vi_add(vi a, vi b) {
    return vaddq_s32(a, b);
}
ALWAYS_INLINE vi vi_sub(vi a, vi b) {
    return vsubq_s32(a, b);
}
ALWAYS_INLINE vi vi_max(vi a, vi b) {
    return vmaxq_s32(a, b);
}
ALWAYS_INLINE vi vi_shl(vi a, unsigned n) {
    return vshlq_s32(a, vdupq_n_s32((int)n));
}
ALWAYS_INLINE vi vi_shr(vi a, unsigned n) {
    return vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-(int)n)));
}
ALWAYS_INLINE vi vi_sar(vi a, unsigned n) {
    return vshlq_s32(a, vdupq_n_s32(-(int)n));
}
ALWAYS_INLINE int vi_sum(vi a) {
    return vaddvq_s32(a);
}
ALWAYS_INLINE vf vi_float(vi a) {
    return vcvtq_f32_s32(a);
}
ALWAYS_INLINE vi vf_round(vf a) {
    return vcvtnq_s32_f32(a);
}
ALWAYS_INLINE vf vi_as_float(vi a) {
    return vreinterpretq_f32_s32(a);
}
ALWAYS_INLINE vi vb_table(const int8_t table[16]) {
    return vreinterpretq_s32_s8(vld1q_s8(table));
}
ALWAYS_INLINE vi vb_lookup(vi table, vi index) {
    return vreinterpretq_s32_s8(
        vqtbl1q_s8(vreinterpretq_s8_s32(table), vreinterpretq_u8_s32(index)));
}
ALWAYS_INLINE vi vb_fifth_bits(vi bits, unsigned group) {
    uint32_t byte = group / 2 * 0x01010101u;
    uint32x4_t lanes = {0x00000000, 0x04040404, 0x08080808, 0x0c0c0c0c};
    uint8x16_t pick = vreinterpretq_u8_u32(vaddq_u32(lanes, vdupq_n_u32(byte)));
    uint8x16_t which = vreinterpretq_u8_u32(vdupq_n_u32(group % 2 ? 0x80402010u : 0x08040201u));
    uint8x16_t set = vtstq_u8(vqtbl1q_u8(vreinterpretq_u8_s32(bits), pick), which);
    return vreinterpretq_s32_u8(vandq_u8(set, vdupq_n_u8(16)));
}

/* ---- Halves and bytes as floats ---- */

ALWAYS_INLINE vf float_from_halves(uint16x4_t halves) {
    return vcvt_f32_f16(vreinterpret_f16_u16(halves));
}
ALWAYS_INLINE void vf_from_halves(vi v, vf *low, vf *high) {
    *low = float_from_halves(vmovn_u32(vreinterpretq_u32_s32(v)));
    *high = float_from_halves(vshrn_n_u32(vreinterpretq_u32_s32(v), 16));
}
ALWAYS_INLINE vf vf_from_low_half(vi v) {
    return float_from_halves(vmovn_u32(vreinterpretq_u32_s32(v)));
}
ALWAYS_INLINE vf vf_load_f16(const uint16_t *p) {
    return float_from_halves(vld1_u16(p));
}
/* A half in every lane. */
ALWAYS_INLINE vf vf_set1_f16(uint16_t half) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(half)));
}
ALWAYS_INLINE vf vf_load_f16_part(const uint16_t *p, int n) {
    uint16_t stage[LANES] = {0};
    __builtin_memcpy(stage, p, (size_t)n * sizeof *p);
    return vf_load_f16(stage);
}
ALWAYS_INLINE void vf_store_f16(uint16_t *p, vf v) {
    vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32(v)));
}
ALWAYS_INLINE void vf_store_f16_part(uint16_t *p, vf v, int n) {
    uint16_t stage[LANES];
    vf_store_f16(stage, v);
    __builtin_memcpy(p, stage, (size_t)n * sizeof *p);
}
ALWAYS_INLINE vf vf_load_s8(const int8_t *p) {
    int32_t bytes;
    __builtin_memcpy(&bytes, p, sizeof bytes);
    int16x8_t wide = vmovl_s8(vreinterpret_s8_s32(vdup_n_s32(bytes)));
    return vcvtq_f32_s32(vmovl_s16(vget_low_s16(wide)));
}
ALWAYS_INLINE void vi_store_s8(int8_t *p, vi v) {
    int16x4_t words = vmovn_s32(v);
    int8x8_t bytes = vmovn_s16(vcombine_s16(words, words));
    int32_t word = vget_lane_s32(vreinterpret_s32_s8(bytes), 0);
    __builtin_memcpy(p, &word, sizeof word);
}

/* ---- Rows: lane r holds bytes of row r ---- */

ALWAYS_INLINE void rows_load4(const uint8_t *const row[LANES], size_t at, vi out[4]) {
    int32x4_t a = vreinterpretq_s32_u8(vld1q_u8(row[0] + at));
    int32x4_t b = vreinterpretq_s32_u8(vld1q_u8(row[1] + at));
    int32x4_t c = vreinterpretq_s32_u8(vld1q_u8(row[2] + at));
    int32x4_t d = vreinterpretq_s32_u8(vld1q_u8(row[3] + at));
    int64x2_t ab_low = vreinterpretq_s64_s32(vzip1q_s32(a, b));
    int64x2_t ab_high = vreinterpretq_s64_s32(vzip2q_s32(a, b));
    int64x2_t cd_low = vreinterpretq_s64_s32(vzip1q_s32(c, d));
    int64x2_t cd_high = vreinterpretq_s64_s32(vzip2q_s32(c, d));
    out[0] = vreinterpretq_s32_s64(vzip1q_s64(ab_low, cd_low));
    out[1] = vreinterpretq_s32_s64(vzip2q_s64(ab_low, cd_low));
    out[2] = vreinterpretq_s32_s64(vzip1q_s64(ab_high, cd_high));
    out[3] = vreinterpretq_s32_s64(vzip2q_s64(ab_high, cd_high));
}
ALWAYS_INLINE vi rows_load1(const uint8_t *const row[LANES], size_t at) {
    int32_t words[LANES];
    for (int r = 0; r < LANES; r++)
        __builtin_memcpy(&words[r], row[r] + at, sizeof words[r]);
    return vld1q_s32(words);
}

/* a * pair[0] + b * pair[1] in every lane. */
ALWAYS_INLINE vi vi_pair(const int16_t *pair, int a, int b) {
    return vdupq_n_s32(a * pair[0] + b * pair[1]);
}

/* All weights fit signed bytes, so their kind does not matter here. */
enum weight_kind { WEIGHT_U4, WEIGHT_U5, WEIGHT_U6, WEIGHT_S8 };
