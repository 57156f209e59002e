/* Integer dot products with the instruction made for them, 8 lanes (AVX-VNNI; the same source is
 * AVX-512 VL and VNNI under those flags, which is how tests run it on processors without). */
#pragma once

#include "backend/cpu/kernels_vec_avx2.h"

#define S8_OFFSET        128 /* unsigned by signed: see kernels_vec_avx512.h */
#define SET_TOKENS_SUB16 4
#define DOT_TURN(kind)   1

struct dot {
    __m256i sum;
};
ALWAYS_INLINE void dot_start(struct dot *d, vi start) {
    d->sum = start;
}
ALWAYS_INLINE void dot_step(enum weight_kind kind, int step, int n_steps, struct dot *d, vi w,
                            vi x) {
    (void)kind;
    (void)step;
    (void)n_steps;
    d->sum = _mm256_dpbusd_epi32(d->sum, w, x);
}
ALWAYS_INLINE vi dot_end(const struct dot *d) {
    return d->sum;
}
