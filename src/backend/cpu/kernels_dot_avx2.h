/* Integer dot products with AVX2: products in 16 bits, added up there as long as they fit. */
#pragma once

#include "backend/cpu/kernels_vec_avx2.h"

#define S8_OFFSET        0
#define SET_TOKENS_SUB16 3

/* Steps of a token before the next one's turn: where few fit, so that its narrow sum ends. */
#define DOT_TURN(kind) ((kind) == WEIGHT_U6 ? 2 : 1)

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
    if (place == n_narrow - 1 || step == n_steps - 1) {
        d->wide = _mm256_add_epi32(d->wide, _mm256_madd_epi16(d->narrow, _mm256_set1_epi16(1)));
        if (kind >= WEIGHT_U6) KEEP_ORDER(d->wide); /* U5: 8 of them would spill */
    }
}
ALWAYS_INLINE vi dot_end(const struct dot *d) {
    return d->wide;
}

/* The same by words: two signed ones of a and of b. */
ALWAYS_INLINE vi vi_dot_words(vi a, vi b) {
    return _mm256_madd_epi16(a, b);
}
/* The 4 bytes of each lane as words: the first two, and the others. */
ALWAYS_INLINE void vi_widen(vi v, vi words[2]) {
    const __m256i low = _mm256_setr_epi8(-1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13,
                                         -1, 0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13);
    const __m256i high = _mm256_or_si256(low, _mm256_set1_epi8(2));
    words[0] = _mm256_srai_epi16(_mm256_shuffle_epi8(v, low), 8);
    words[1] = _mm256_srai_epi16(_mm256_shuffle_epi8(v, high), 8);
}
/* 16 bytes as words. */
ALWAYS_INLINE void vi_store_words(int16_t *to, const int8_t *from) {
    _mm256_storeu_si256((__m256i *)(void *)to,
                        _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)from)));
}
