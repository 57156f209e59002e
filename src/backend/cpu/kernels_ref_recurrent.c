/* The plain-C reference of the recurrent operators, in the order of the formula. */
#include "backend/cpu/kernels_isa.h"

#include <math.h>

static void conv(const struct conv_rows *r, const float *filters, int n_taps, int n_columns,
                 int n_tokens, bool silu, float *out, int64_t out_stride) {
    static const float zero;
    for (int t = 0; t < n_tokens; t++)
        for (int c = 0; c < n_columns; c++) {
            double sum = 0;
            for (int j = 0; j < n_taps; j++) {
                const bool before = t + j < n_taps - 1 && !r->past;
                float x = before ? zero : *conv_row(r, n_taps, t, j, c, NULL);
                sum += (double)filters[(int64_t)c * n_taps + j] * (double)x;
            }
            float y = (float)sum;
            out[t * out_stride + c] = silu ? y / (1.0f + expf(-y)) : y;
        }
}

static void delta_column(const struct delta_rows *r, int column, const float *in, float *state) {
    for (int t = 0; t < r->n_tokens; t++, in = state) {
        const float *k = r->k + t * r->k_stride, *q = r->q + t * r->q_stride;
        double old = 0, out = 0;
        for (int i = 0; i < r->dim_k; i++)
            old += (double)k[i] * (double)in[i * DELTA_BLOCK];
        const double v = (double)r->v[t * r->v_stride + column];
        const float delta = (float)((double)r->beta[t] * (v - (double)r->decay[t] * old));
        for (int i = 0; i < r->dim_k; i++) {
            state[i * DELTA_BLOCK] = fmaf(k[i], delta, r->decay[t] * in[i * DELTA_BLOCK]);
            out += (double)q[i] * (double)state[i * DELTA_BLOCK];
        }
        r->out[t * r->out_stride + column] = (float)out;
    }
}

static void delta(const struct delta_rows *r, const float *in, float *state, int n_blocks) {
    for (int column = 0; column < n_blocks * DELTA_BLOCK; column++) {
        int64_t at =
            (int64_t)(column / DELTA_BLOCK) * r->dim_k * DELTA_BLOCK + column % DELTA_BLOCK;
        delta_column(r, column, in + at, state + at);
    }
}

void kernels_ref_recurrent_fill(struct kernels *k) {
    k->conv = conv;
    k->delta = delta;
}
