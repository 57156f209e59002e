/* IEEE half and bfloat16 <-> float, bit-exact in plain C (round to nearest even, NaN kept quiet).
 */
#pragma once

#include <string.h>
#include "base/base.h"

ALWAYS_INLINE uint32_t float_bits(float f) {
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
ALWAYS_INLINE float float_from_bits(uint32_t u) {
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

/* Subnormals, infinities and NaN included. */
ALWAYS_INLINE float half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, mag = h & 0x7fff;
    if (mag >= 0x7c00) return float_from_bits(sign | 0x7f800000u | (mag & 0x3ff) << 13);
    if (mag >= 0x0400) return float_from_bits(sign | ((mag << 13) + 0x38000000u));
    float f = (float)mag * 0x1p-24f; /* subnormal: exact */
    return sign ? -f : f;
}
ALWAYS_INLINE uint16_t half_from_float(float f) {
    uint32_t u = float_bits(f), sign = (u >> 16) & 0x8000, mag = u & 0x7fffffff;
    if (mag > 0x7f800000u) return (uint16_t)(sign | 0x7e00 | (mag >> 13 & 0x3ff));
    if (mag >= 0x477ff000u) return (uint16_t)(sign | 0x7c00); /* rounds past 65504 */
    if (mag < 0x38800000u) { /* below the smallest normal: let the FPU round at 2^-24 */
        float r = float_from_bits(mag) + 0.5f;
        return (uint16_t)(sign | (float_bits(r) - 0x3f000000u));
    }
    mag += 0x0fff + (mag >> 13 & 1);
    return (uint16_t)(sign | (mag - 0x38000000u) >> 13);
}
ALWAYS_INLINE float bf16_to_float(uint16_t h) {
    return float_from_bits((uint32_t)h << 16);
}
ALWAYS_INLINE uint16_t bf16_from_float(float f) {
    uint32_t u = float_bits(f);
    if ((u & 0x7fffffff) > 0x7f800000u) return (uint16_t)(u >> 16 | 64);
    return (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
