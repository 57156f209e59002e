/*
 * Recurrent operators: the short convolution and the gated delta rule. Included by a
 * kernels_ISA.c after kernels_body_vector.h.
 */
#pragma once

/* ---- Short convolution ---- */

#define CONV_COLUMNS 64 /* at a time: their filters stand on the stack, tap by tap */

static void conv(const struct conv_rows *r, const float *filters, int n_taps, int n_columns,
                 int n_tokens, bool silu, float *out, int64_t out_stride) {
    static const float zeros[CONV_COLUMNS];
    float w[CONV_MAX_TAPS][CONV_COLUMNS];
    for (int c0 = 0; c0 < n_columns; c0 += CONV_COLUMNS) {
        const int n = min_int(CONV_COLUMNS, n_columns - c0);
        for (int c = 0; c < n; c++)
            for (int j = 0; j < n_taps; j++)
                w[j][c] = filters[(int64_t)(c0 + c) * n_taps + j];
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

#define DELTA_VECTORS (2 * DELTA_BLOCK / LANES > 4 ? 4 : 2) /* side by side */
#define DELTA_WIDE    (DELTA_VECTORS * LANES / DELTA_BLOCK) /* blocks */
_Static_assert(DELTA_BLOCK % LANES == 0 && DELTA_WIDE >= 1, "whole blocks");

/* Where column vector j of a block's row 0 stands. */
ALWAYS_INLINE int64_t delta_at(int dim_k, int j) {
    const int column = j * LANES;
    return (int64_t)(column / DELTA_BLOCK) * dim_k * DELTA_BLOCK + column % DELTA_BLOCK;
}

/* One token against n_vectors of columns, n_vectors a constant. Sums over rows are two chains, of
 * even rows and of odd ones. */
ALWAYS_INLINE void delta_token(const struct delta_rows *r, int t, int column, const float *from,
                               float *to, int n_vectors) {
    const float *k = r->k + t * r->k_stride, *q = r->q + t * r->q_stride;
    const vf decay = vf_set1(r->decay[t]), beta = vf_set1(r->beta[t]);
    vf sum[2][DELTA_VECTORS], delta[DELTA_VECTORS];
    for (int j = 0; j < n_vectors; j++)
        sum[0][j] = sum[1][j] = vf_zero();
    for (int i = 0; i < r->dim_k; i += 2)
        for (int odd = 0; odd < 2; odd++) {
            const vf ki = vf_set1(k[i + odd]);
            for (int j = 0; j < n_vectors; j++) {
                vf s = vf_load(from + delta_at(r->dim_k, j) + (i + odd) * DELTA_BLOCK);
                sum[odd][j] = vf_fma(ki, s, sum[odd][j]);
            }
        }
    for (int j = 0; j < n_vectors; j++) {
        vf old = vf_mul(decay, vf_add(sum[0][j], sum[1][j]));
        vf v = vf_load(r->v + t * r->v_stride + column + j * LANES);
        delta[j] = vf_mul(beta, vf_sub(v, old));
        sum[0][j] = sum[1][j] = vf_zero();
    }
    for (int i = 0; i < r->dim_k; i += 2)
        for (int odd = 0; odd < 2; odd++) {
            const vf ki = vf_set1(k[i + odd]), qi = vf_set1(q[i + odd]);
            for (int j = 0; j < n_vectors; j++) {
                const int64_t at = delta_at(r->dim_k, j) + (i + odd) * DELTA_BLOCK;
                vf s = vf_fma(ki, delta[j], vf_mul(decay, vf_load(from + at)));
                vf_store(to + at, s);
                sum[odd][j] = vf_fma(qi, s, sum[odd][j]);
            }
        }
    for (int j = 0; j < n_vectors; j++)
        vf_store(r->out + t * r->out_stride + column + j * LANES, vf_add(sum[0][j], sum[1][j]));
}

/* A few columns stay in the first cache while all tokens pass. */
ALWAYS_INLINE void delta_columns(const struct delta_rows *r, int block, const float *in,
                                 float *state, int n_vectors) {
    const int64_t at = (int64_t)block * r->dim_k * DELTA_BLOCK;
    for (int t = 0; t < r->n_tokens; t++)
        delta_token(r, t, block * DELTA_BLOCK, t == 0 ? in + at : state + at, state + at,
                    n_vectors);
}

static void delta(const struct delta_rows *r, const float *in, float *state, int n_blocks) {
    int block = 0;
    for (; block + DELTA_WIDE <= n_blocks; block += DELTA_WIDE)
        delta_columns(r, block, in, state, DELTA_VECTORS);
    for (; block < n_blocks; block++)
        delta_columns(r, block, in, state, DELTA_BLOCK / LANES);
}
