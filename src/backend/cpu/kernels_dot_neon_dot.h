/* Integer dot products with the instructions made for them (Armv8.2 DotProd). */
#pragma once

#include "backend/cpu/kernels_vec_neon.h"

struct dot {
    int32x4_t sum;
};
ALWAYS_INLINE void dot_start(struct dot *d, vi start) {
    d->sum = start;
}
ALWAYS_INLINE void dot_step(enum weight_kind kind, int step, int n_steps, struct dot *d, vi w,
                            vi x) {
    (void)kind;
    (void)step;
    (void)n_steps;
    d->sum = vdotq_s32(d->sum, vreinterpretq_s8_s32(w), vreinterpretq_s8_s32(x));
}
ALWAYS_INLINE vi dot_end(const struct dot *d) {
    return d->sum;
}
