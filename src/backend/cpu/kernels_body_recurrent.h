/*
 * Recurrent operators: the short convolution and the gated delta rule. Included by a
 * kernels_ISA.c after kernels_body_vector.h.
 */
#pragma once

/* ---- Short convolution ---- */

#define CONV_COLUMNS 64 /* at a time: their filters stand on the stack, tap by tap */

/* Filters of n columns, tap by tap; where both numbers are constants, by whole vectors. */
ALWAYS_INLINE void filters_by_tap(const float *filters, int n_taps, int n,
                                  float w[][CONV_COLUMNS]) {
    for (int c = 0; c < n; c++)
        for (int j = 0; j < n_taps; j++)
            w[j][c] = filters[c * n_taps + j];
}

static void conv(const struct conv_rows *r, const float *filters, int n_taps, int n_columns,
                 int n_tokens, bool silu, float *out, int64_t out_stride) {
    static const float zeros[CONV_COLUMNS];
    float w[CONV_MAX_TAPS][CONV_COLUMNS];
    for (int c0 = 0; c0 < n_columns; c0 += CONV_COLUMNS) {
        const int n = min_int(CONV_COLUMNS, n_columns - c0);
        const float *from = filters + (int64_t)c0 * n_taps;
        if (n_taps == 4 && n == CONV_COLUMNS)
            filters_by_tap(from, 4, CONV_COLUMNS, w);
        else
            filters_by_tap(from, n_taps, n, w);
        for (int t = 0; t < n_tokens; t++) {
            const float *row[CONV_MAX_TAPS];
            for (int j = 0; j < n_taps; j++)
                row[j] = conv_row(r, n_taps, t, j, c0, zeros);
            for (int c = 0; c < n; c += LANES) {
                const int here = min_int(LANES, n - c);
                const bool part = here < LANES;
                vf sum = vf_zero();
                for (int j = 0; j < n_taps; j++) {
                    vf x = part ? vf_load_part(row[j] + c, here) : vf_load(row[j] + c);
                    vf f = part ? vf_load_part(w[j] + c, here) : vf_load(w[j] + c);
                    sum = vf_fma(f, x, sum);
                }
                if (silu) sum = sigmoid_times(sum, sum);
                float *to = out + t * out_stride + c0 + c;
                if (part)
                    vf_store_part(to, sum, here);
                else
                    vf_store(to, sum);
            }
        }
    }
}

/* ---- Gated delta rule ---- */

#define DELTA_VECTORS (DELTA_BLOCK / LANES)
#define DELTA_CHAINS  (DELTA_VECTORS == 1 ? 4 : 2) /* a sum over rows is so many, row by row */
_Static_assert(DELTA_BLOCK % LANES == 0 && DELTA_BLOCK % DELTA_CHAINS == 0, "whole blocks");

ALWAYS_INLINE vf delta_total(vf sum[DELTA_CHAINS][DELTA_VECTORS], int j) {
    if (DELTA_CHAINS == 2) return vf_add(sum[0][j], sum[1][j]);
    return vf_add(vf_add(sum[0][j], sum[1][j]),
                  vf_add(sum[DELTA_CHAINS - 2][j], sum[DELTA_CHAINS - 1][j]));
}

/* One token against a block, whose first column is `column`. */
ALWAYS_INLINE void delta_token(const struct delta_rows *r, int t, int column, const float *from,
                               float *to) {
    const float *k = r->k + t * r->k_stride, *q = r->q + t * r->q_stride;
    const vf decay = vf_set1(r->decay[t]), beta = vf_set1(r->beta[t]);
    vf old[DELTA_CHAINS][DELTA_VECTORS], out[DELTA_CHAINS][DELTA_VECTORS], delta[DELTA_VECTORS];
    for (int c = 0; c < DELTA_CHAINS; c++)
        for (int j = 0; j < DELTA_VECTORS; j++)
            old[c][j] = out[c][j] = vf_zero();
    for (int i = 0; i < r->dim_k; i += DELTA_CHAINS)
        for (int c = 0; c < DELTA_CHAINS; c++) {
            const vf ki = vf_set1(k[i + c]);
            for (int j = 0; j < DELTA_VECTORS; j++) {
                vf s = vf_load(from + (i + c) * DELTA_BLOCK + j * LANES);
                old[c][j] = vf_fma(ki, s, old[c][j]);
            }
        }
    for (int j = 0; j < DELTA_VECTORS; j++) {
        vf v = vf_load(r->v + t * r->v_stride + column + j * LANES);
        delta[j] = vf_mul(beta, vf_sub(v, vf_mul(decay, delta_total(old, j))));
    }
    for (int i = 0; i < r->dim_k; i += DELTA_CHAINS)
        for (int c = 0; c < DELTA_CHAINS; c++) {
            const vf ki = vf_set1(k[i + c]), qi = vf_set1(q[i + c]);
            for (int j = 0; j < DELTA_VECTORS; j++) {
                const int at = (i + c) * DELTA_BLOCK + j * LANES;
                vf s = vf_fma(ki, delta[j], vf_mul(decay, vf_load(from + at)));
                vf_store(to + at, s);
                out[c][j] = vf_fma(qi, s, out[c][j]);
            }
        }
    for (int j = 0; j < DELTA_VECTORS; j++)
        vf_store(r->out + t * r->out_stride + column + j * LANES, delta_total(out, j));
}

/* A block stays in the first cache while all tokens pass. Two of them side by side would lie a
 * multiple of 4 KiB apart, where loads wait for stores that only look like theirs. */
static void delta(const struct delta_rows *r, const float *in, float *state, int n_blocks) {
    for (int block = 0; block < n_blocks; block++) {
        const int64_t at = (int64_t)block * r->dim_k * DELTA_BLOCK;
        for (int t = 0; t < r->n_tokens; t++)
            delta_token(r, t, block * DELTA_BLOCK, t == 0 ? in + at : state + at, state + at);
    }
}
