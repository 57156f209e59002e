/* Integer dot products with AVX2: products in 16 bits, added up there as long as they fit. */
#pragma once

#include "backend/cpu/kernels_vec_avx2.h"

#define S8_OFFSET 0
#define S8_PLANES 2 /* two sums of nibbles take fewer multiplications than one of S8 */

/* Here v is in a register: compilers else put off the additions of many sums, and spill. */
#define KEEP_ORDER(v) __asm__("" : "+x"(v))

/* maddubs adds two products of 8 bits in 16: products that may be added up there before they are
 * widened follow from the largest weight, with |x| <= 127:
 * U4 8 steps: 8 * 2 * 15 * 127 = 30480; U5 4 steps: 4 * 2 * 31 * 127 = 31496; U6 2 steps:
 * 2 * 2 * 63 * 127 = 32004; S8 1 step: 2 * 128 * 127 = 32512; all at most 32767. */
struct dot {
    __m256i wide, narrow;
};
ALWAYS_INLINE void dot_start(struct dot *d, vi start) {
    d->wide = start;
    d->narrow = _mm256_setzero_si256(); /* replaced by the first step; for the compiler's peace */
}
ALWAYS_INLINE void dot_step(enum weight_kind kind, int step, int n_steps, struct dot *d, vi w,
                            vi x) {
    const int n_narrow = 8 >> kind, place = step % n_narrow;
    __m256i products = kind == WEIGHT_S8
                           ? _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
                           : _mm256_maddubs_epi16(w, x);
    d->narrow = place == 0 ? products : _mm256_add_epi16(d->narrow, products);
    KEEP_ORDER(d->narrow);
    if (place == n_narrow - 1 || step == n_steps - 1)
        d->wide = _mm256_add_epi32(d->wide, _mm256_madd_epi16(d->narrow, _mm256_set1_epi16(1)));
}
ALWAYS_INLINE vi dot_end(const struct dot *d) {
    return d->wide;
}
