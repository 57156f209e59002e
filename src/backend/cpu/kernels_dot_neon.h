/* Integer dot products with baseline NEON: products in 16 bits, added in pairs to 32. */
#pragma once

#include "backend/cpu/kernels_vec_neon.h"

struct dot {
    int32x4_t start, low, high; /* two partial sums a lane: of lanes 0 and 1, of 2 and 3 */
};
ALWAYS_INLINE void dot_start(struct dot *d, vi start) {
    d->start = start;
    d->low = d->high = vdupq_n_s32(0);
}
ALWAYS_INLINE void dot_step(enum weight_kind kind, int step, int n_steps, struct dot *d, vi w,
                            vi x) {
    (void)kind;
    (void)step;
    (void)n_steps;
    int8x16_t a = vreinterpretq_s8_s32(w), b = vreinterpretq_s8_s32(x);
    d->low = vpadalq_s16(d->low, vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    d->high = vpadalq_s16(d->high, vmull_high_s8(a, b));
}
ALWAYS_INLINE vi dot_end(const struct dot *d) {
    return vaddq_s32(d->start, vpaddq_s32(d->low, d->high));
}
