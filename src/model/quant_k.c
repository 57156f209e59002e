#include "model/quant.h"

#include <math.h>
#include <string.h>

/* Types in super-blocks of 256: two levels of scales. */

#define SUBS_32 (QK_SUPER / 32)
#define SUBS_16 (QK_SUPER / 16)

void q2_k_to_float(const struct block_q2_k *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SUPER) {
        float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
        for (int s = 0; s < SUBS_16; s++) {
            float scale = d * (float)(b->scales[s] & 15), min = dmin * (float)(b->scales[s] >> 4);
            const uint8_t *qs = b->qs + s / 8 * 32 + s % 2 * 16;
            int shift = s % 8 / 2 * 2;
            for (int i = 0; i < 16; i++)
                out[16 * s + i] = scale * (float)(qs[i] >> shift & 3) - min;
        }
    }
}

void q3_k_to_float(const struct block_q3_k *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SUPER) {
        float d = half_to_float(b->d);
        int8_t scales[SUBS_16];
        q3_k_scales(b->scales, scales);
        for (int s = 0; s < SUBS_16; s++) {
            float scale = d * (float)scales[s];
            const uint8_t *qs = b->qs + s / 8 * 32 + s % 2 * 16, *hmask = b->hmask + s % 2 * 16;
            int shift = s % 8 / 2 * 2;
            for (int i = 0; i < 16; i++) {
                int high = hmask[i] >> (s / 2) & 1;
                out[16 * s + i] = scale * (float)((qs[i] >> shift & 3) - (high ? 0 : 4));
            }
        }
    }
}

void q4_k_to_float(const struct block_q4_k *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SUPER) {
        float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
        for (int s = 0; s < SUBS_32; s++) {
            uint8_t sc, m;
            k_scale_min(b->scales, s, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            const uint8_t *qs = b->qs + s / 2 * 32;
            for (int i = 0; i < 32; i++)
                out[32 * s + i] = scale * (float)(qs[i] >> (s % 2 * 4) & 15) - min;
        }
    }
}

void q5_k_to_float(const struct block_q5_k *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SUPER) {
        float d = half_to_float(b->d), dmin = half_to_float(b->dmin);
        for (int s = 0; s < SUBS_32; s++) {
            uint8_t sc, m;
            k_scale_min(b->scales, s, &sc, &m);
            float scale = d * (float)sc, min = dmin * (float)m;
            const uint8_t *qs = b->qs + s / 2 * 32;
            for (int i = 0; i < 32; i++) {
                int level = (qs[i] >> (s % 2 * 4) & 15) | (b->qh[i] >> s & 1) << 4;
                out[32 * s + i] = scale * (float)level - min;
            }
        }
    }
}

/* Where element 16 s + i of a Q6_K block keeps its bits (see struct block_q6_k). */
struct q6_place {
    int ql, ql_shift, qh, qh_shift;
};
static struct q6_place q6_place(int s, int i) {
    int half = s / 8, quarter = s % 8 / 2, l = s % 2 * 16 + i;
    return (struct q6_place){64 * half + quarter % 2 * 32 + l, quarter / 2 * 4, 32 * half + l,
                             quarter * 2};
}

void q6_k_to_float(const struct block_q6_k *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SUPER) {
        float d = half_to_float(b->d);
        for (int s = 0; s < SUBS_16; s++) {
            float scale = d * (float)b->scales[s];
            for (int i = 0; i < 16; i++) {
                struct q6_place p = q6_place(s, i);
                int level = (b->ql[p.ql] >> p.ql_shift & 15) | (b->qh[p.qh] >> p.qh_shift & 3) << 4;
                out[16 * s + i] = scale * (float)(level - 32);
            }
        }
    }
}

void iq4_xs_to_float(const struct block_iq4_xs *b, float *out, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, out += QK_SUPER) {
        float d = half_to_float(b->d);
        for (int s = 0; s < SUBS_32; s++) {
            float scale = d * (float)iq4_xs_scale(b, s);
            const uint8_t *qs = b->qs + 16 * s;
            for (int i = 0; i < 16; i++) {
                out[32 * s + i] = scale * (float)iq4_values[qs[i] & 15];
                out[32 * s + 16 + i] = scale * (float)iq4_values[qs[i] >> 4];
            }
        }
    }
}

/* ---- Q4_K quantiser ---- */

struct q4_k_fit {
    float d, dmin; /* as halves hold them */
    uint8_t sc[SUBS_32], m[SUBS_32];
    uint8_t q[QK_SUPER];
    double error;
};

/* Levels of sub-block x (32) for scale sc and min m; returns the squared error. */
static double q4_k_round_sub(const float *x, float d, float dmin, int sc, int m, uint8_t *q) {
    float scale = d * (float)sc, min = dmin * (float)m, inverse = scale != 0 ? 1 / scale : 0;
    double error = 0;
    for (int i = 0; i < 32; i++) {
        q[i] = (uint8_t)quant_round((x[i] + min) * inverse, 0, 15);
        double e = (double)x[i] - ((double)scale * q[i] - (double)min);
        error += e * e;
    }
    return error;
}

/* The best 6-bit scale and min of each sub-block, among the neighbours of those that come nearest
 * to the free fit (scale, min). Fills sc, m, q and error for f->d and f->dmin. */
static void q4_k_choose(const float *x, const float scale[SUBS_32], const float min[SUBS_32],
                        struct q4_k_fit *f) {
    f->error = 0;
    for (int s = 0; s < SUBS_32; s++) {
        int sc0 = f->d != 0 ? quant_round(scale[s] / f->d, 0, 63) : 0;
        int m0 = f->dmin != 0 ? quant_round(min[s] / f->dmin, 0, 63) : 0;
        double best = (double)INFINITY;
        f->sc[s] = f->m[s] = 0;
        memset(f->q + 32 * s, 0, 32);
        for (int sc = max_int(sc0 - 1, 0); sc <= min_int(sc0 + 1, 63); sc++) {
            for (int m = max_int(m0 - 1, 0); m <= min_int(m0 + 1, 63); m++) {
                uint8_t q[32];
                double error = q4_k_round_sub(x + 32 * s, f->d, f->dmin, sc, m, q);
                if (!(error < best)) continue;
                best = error;
                f->sc[s] = (uint8_t)sc;
                f->m[s] = (uint8_t)m;
                memcpy(f->q + 32 * s, q, sizeof q);
            }
        }
        f->error += best;
    }
}

/* d and dmin of least squared error for the integers of f: x ~ d (sc q) - dmin m. */
static void q4_k_solve(const float *x, const struct q4_k_fit *f, float *d, float *dmin) {
    double aa = 0, am = 0, mm = 0, ax = 0, mx = 0;
    for (int i = 0; i < QK_SUPER; i++) {
        double a = f->sc[i / 32] * f->q[i], m = f->m[i / 32];
        aa += a * a;
        am += a * m;
        mm += m * m;
        ax += a * (double)x[i];
        mx += m * (double)x[i];
    }
    *d = f->d;
    *dmin = f->dmin;
    double det = aa * mm - am * am;
    if (det > 1e-9 * aa * mm) {
        *d = half_to_float(quant_half((ax * mm - mx * am) / det));
        *dmin = half_to_float(quant_half((ax * am - mx * aa) / det));
    } else if (aa > 0 && mm == 0) {
        *d = half_to_float(quant_half(ax / aa));
    }
    if (*d < 0) *d = 0;
    if (*dmin < 0) *dmin = 0;
}

static void q4_k_pack(const struct q4_k_fit *f, struct block_q4_k *b) {
    b->d = quant_half((double)f->d);
    b->dmin = quant_half((double)f->dmin);
    for (int s = 0; s < 4; s++) {
        b->scales[s] = (uint8_t)(f->sc[s] | f->sc[s + 4] >> 4 << 6);
        b->scales[s + 4] = (uint8_t)(f->m[s] | f->m[s + 4] >> 4 << 6);
        b->scales[s + 8] = (uint8_t)((f->sc[s + 4] & 15) | (f->m[s + 4] & 15) << 4);
    }
    for (int i = 0; i < QK_SUPER / 2; i++) {
        int at = i / 32 * 64 + i % 32;
        b->qs[i] = (uint8_t)(f->q[at] | f->q[at + 32] << 4);
    }
}

/* Each sub-block is fitted freely; the scales are put on the 6-bit grid of the largest; then the
 * grid's two steps and the integers are improved in turn, as long as the error falls. */
void q4_k_from_float(const float *x, struct block_q4_k *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SUPER) {
        float scale[SUBS_32], min[SUBS_32], max_scale = 0, max_min = 0;
        for (int s = 0; s < SUBS_32; s++) {
            uint8_t q[32];
            float offset;
            quant_fit_affine(x + 32 * s, 32, 15, false, true, &scale[s], &offset, q);
            min[s] = -offset;
            if (scale[s] > max_scale) max_scale = scale[s];
            if (min[s] > max_min) max_min = min[s];
        }
        struct q4_k_fit best = {.d = half_to_float(quant_half((double)max_scale / 63)),
                                .dmin = half_to_float(quant_half((double)max_min / 63))};
        q4_k_choose(x, scale, min, &best);
        for (int round = 0; round < 3; round++) {
            struct q4_k_fit next;
            q4_k_solve(x, &best, &next.d, &next.dmin);
            q4_k_choose(x, scale, min, &next);
            if (!(next.error < best.error)) break;
            best = next;
        }
        q4_k_pack(&best, b);
    }
}

/* ---- Q6_K quantiser ---- */

struct q6_k_fit {
    float d;
    int8_t sc[SUBS_16];
    int8_t q[QK_SUPER];
    double error;
};

static double q6_k_round_sub(const float *x, float scale, int8_t *q) {
    float inverse = scale != 0 ? 1 / scale : 0;
    double error = 0;
    for (int i = 0; i < 16; i++) {
        q[i] = (int8_t)quant_round(x[i] * inverse, -32, 31);
        double e = (double)x[i] - (double)scale * q[i];
        error += e * e;
    }
    return error;
}

static void q6_k_choose(const float *x, const float scale[SUBS_16], struct q6_k_fit *f) {
    f->error = 0;
    for (int s = 0; s < SUBS_16; s++) {
        int sc0 = f->d != 0 ? quant_round(scale[s] / f->d, -127, 127) : 0;
        double best = (double)INFINITY;
        f->sc[s] = 0;
        memset(f->q + 16 * s, 0, 16);
        for (int sc = max_int(sc0 - 1, -128); sc <= min_int(sc0 + 1, 127); sc++) {
            int8_t q[16];
            double error = q6_k_round_sub(x + 16 * s, f->d * (float)sc, q);
            if (!(error < best)) continue;
            best = error;
            f->sc[s] = (int8_t)sc;
            memcpy(f->q + 16 * s, q, sizeof q);
        }
        f->error += best;
    }
}

static float q6_k_solve(const float *x, const struct q6_k_fit *f) {
    double ax = 0, aa = 0;
    for (int i = 0; i < QK_SUPER; i++) {
        double a = f->sc[i / 16] * f->q[i];
        ax += a * (double)x[i];
        aa += a * a;
    }
    return aa > 0 ? half_to_float(quant_half(ax / aa)) : f->d;
}

static void q6_k_pack(const struct q6_k_fit *f, struct block_q6_k *b) {
    memset(b, 0, sizeof *b);
    b->d = quant_half((double)f->d);
    for (int s = 0; s < SUBS_16; s++) {
        b->scales[s] = f->sc[s];
        for (int i = 0; i < 16; i++) {
            struct q6_place p = q6_place(s, i);
            int level = f->q[16 * s + i] + 32;
            b->ql[p.ql] |= (uint8_t)((level & 15) << p.ql_shift);
            b->qh[p.qh] |= (uint8_t)(level >> 4 << p.qh_shift);
        }
    }
}

void q6_k_from_float(const float *x, struct block_q6_k *b, int64_t n_blocks) {
    for (int64_t k = 0; k < n_blocks; k++, b++, x += QK_SUPER) {
        float scale[SUBS_16], max_scale = 0;
        for (int s = 0; s < SUBS_16; s++) {
            int8_t q[16];
            scale[s] = quant_fit_symmetric(x + 16 * s, 16, 32, false, q);
            if (fabsf(scale[s]) > max_scale) max_scale = fabsf(scale[s]);
        }
        struct q6_k_fit best = {.d = half_to_float(quant_half((double)max_scale / 127))};
        q6_k_choose(x, scale, &best);
        for (int round = 0; round < 3; round++) {
            struct q6_k_fit next = {.d = q6_k_solve(x, &best)};
            q6_k_choose(x, scale, &next);
            if (!(next.error < best.error)) break;
            best = next;
        }
        q6_k_pack(&best, b);
    }
}
