/* Short convolution and gated delta rule: a step of the sequence at a time against the formula. */
#include "data.h"

#include <float.h>
#include <math.h>
#include <string.h>

static float *floats(struct check *c, size_t n, float scale) {
    float *x = check_input(c, n * sizeof *x);
    for (size_t i = 0; i < n; i++)
        x[i] = scale * check_random(c);
    return x;
}

/* ---- convolution ---- */

struct conv_case {
    int n_taps, n_columns, n_tokens;
    bool past, silu;
};

static double silu(double x) {
    return x / (1 + exp(-x));
}

static void conv_shape(struct check *c, const struct conv_case *s) {
    check_case(c, "%d taps, %d columns, %d tokens, past %d, silu %d", s->n_taps, s->n_columns,
               s->n_tokens, s->past, s->silu);
    const int stride = s->n_columns + 3, n_past = s->n_taps - 1;
    const float *w = floats(c, (size_t)(s->n_columns * s->n_taps), 1);
    const float *x = floats(c, (size_t)((s->n_tokens - 1) * stride + s->n_columns), 2);
    const float *past = floats(c, (size_t)(max_int(n_past, 1) * s->n_columns), 2);
    check_seal(c);
    const struct conv_rows rows = {x, s->past ? past : NULL, stride, s->n_columns};
    const size_t n = (size_t)(s->n_tokens * stride);
    float *out = check_output(c, n), *ref = check_output(c, n);
    c->isa->conv(&rows, w, s->n_taps, s->n_columns, s->n_tokens, s->silu, out, stride);
    c->ref->conv(&rows, w, s->n_taps, s->n_columns, s->n_tokens, s->silu, ref, stride);
    for (int t = 0; t < s->n_tokens; t++)
        for (int i = 0; i < s->n_columns; i++) {
            double sum = 0, magnitude = 0;
            for (int j = 0; j < s->n_taps; j++) {
                int row = t + j - n_past;
                float in = row >= 0  ? x[row * stride + i]
                           : s->past ? past[(row + n_past) * s->n_columns + i]
                                     : 0;
                double term = (double)w[i * s->n_taps + j] * (double)in;
                sum += term, magnitude += fabs(term);
            }
            double want = s->silu ? silu(sum) : sum, by_ref = (double)ref[t * stride + i];
            double limit = 8 * (double)FLT_EPSILON * (magnitude + fabs(want)) + (double)FLT_MIN;
            check_near(c, "the oracle", out + t * stride + i, &want, &limit, 1);
            check_near(c, "the reference", out + t * stride + i, &by_ref, &limit, 1);
        }
    if (s->n_tokens > n_past && s->n_columns > 1) { /* in two runs and two ranges: the same bits */
        float *cut = check_output(c, n);
        const int t0 = n_past, c0 = s->n_columns / 2;
        for (int half = 0; half < 2; half++) {
            const int first = half ? c0 : 0, width = half ? s->n_columns - c0 : c0;
            struct conv_rows r = {x + first, s->past ? past + first : NULL, stride, s->n_columns};
            if (t0 > 0)
                c->isa->conv(&r, w + first * s->n_taps, s->n_taps, width, t0, s->silu, cut + first,
                             stride);
            struct conv_rows rest = {x + t0 * stride + first, x + first, stride, stride};
            c->isa->conv(&rest, w + first * s->n_taps, s->n_taps, width, s->n_tokens - t0, s->silu,
                         cut + t0 * stride + first, stride);
        }
        check_same(c, "in pieces", out, cut, n * sizeof *out);
    }
    check_case_end(c);
}

static void convolutions(struct check *c) {
    static const int taps[] = {1, 2, 4, CONV_MAX_TAPS}, columns[] = {1, 7, 16, 40, 64, 65, 200};
    static const int tokens[] = {1, 2, 5, 37};
    for (size_t i = 0; i < COUNT_OF(taps); i++)
        for (size_t j = 0; j < COUNT_OF(columns); j++)
            for (size_t k = 0; k < COUNT_OF(tokens); k++)
                for (int flags = 0; flags < 4; flags++)
                    conv_shape(c, &(struct conv_case){taps[i], columns[j], tokens[k], flags & 1,
                                                      flags & 2});
}

/* ---- delta rule ---- */

struct delta_case {
    int dim_k, n_blocks, n_tokens;
};

/* One column of the state through all tokens in double; magnitudes beside it bound the error. */
static void delta_oracle(const struct delta_rows *r, int column, double *s, double *out,
                         double *limit) {
    double grown = 0;
    for (int t = 0; t < r->n_tokens; t++) {
        const float *k = r->k + t * r->k_stride, *q = r->q + t * r->q_stride;
        double old = 0, v = (double)r->v[t * r->v_stride + column], sum = 0, wide = 0;
        for (int i = 0; i < r->dim_k; i++)
            old += (double)k[i] * s[i], grown = fmax(grown, fabs(s[i]));
        double delta = (double)r->beta[t] * (v - (double)r->decay[t] * old);
        for (int i = 0; i < r->dim_k; i++) {
            s[i] = (double)r->decay[t] * s[i] + (double)k[i] * delta;
            sum += (double)q[i] * s[i];
            wide += fabs((double)q[i]) * (fabs(s[i]) + grown);
        }
        out[t] = sum;
        limit[t] = 2 * (double)FLT_EPSILON * (wide + fabs(v));
    }
}

/* Keys of length 1, as the operator gets them: the rule does not grow then. */
static float *unit_rows(struct check *c, int n_rows, int stride, int n) {
    float *x = floats(c, (size_t)((n_rows - 1) * stride + n), 1);
    for (int t = 0; t < n_rows; t++) {
        double sum = 1e-6;
        for (int i = 0; i < n; i++)
            sum += (double)x[t * stride + i] * (double)x[t * stride + i];
        for (int i = 0; i < n; i++)
            x[t * stride + i] = (float)((double)x[t * stride + i] / sqrt(sum));
    }
    return x;
}

static float *gates(struct check *c, int n) {
    float *x = floats(c, (size_t)n, 0.5f);
    for (int i = 0; i < n; i++)
        x[i] += 0.5f;
    return x;
}

static void delta_in_pieces(struct check *c, const struct delta_case *s,
                            const struct delta_rows *rows, const float *start, const float *state) {
    const size_t n = (size_t)(s->n_tokens * rows->out_stride);
    const size_t n_state = (size_t)(s->dim_k * s->n_blocks * DELTA_BLOCK);
    float *out = check_output(c, n), *at = check_output(c, n_state);
    for (int block = 0; block < s->n_blocks; block++)
        for (int t = 0; t < s->n_tokens; t++) {
            struct delta_rows one = *rows;
            const int64_t first = (int64_t)block * s->dim_k * DELTA_BLOCK;
            one.q += t * one.q_stride, one.k += t * one.k_stride;
            one.v += t * one.v_stride + block * DELTA_BLOCK;
            one.decay += t, one.beta += t;
            one.out = out + t * one.out_stride + block * DELTA_BLOCK;
            one.n_tokens = 1;
            c->isa->delta(&one, t ? at + first : start + first, at + first, 1);
        }
    check_same(c, "a token and a block at a time", rows->out, out, n * sizeof *out);
    check_same(c, "a token and a block at a time", state, at, n_state * sizeof *at);
}

static void delta_shape(struct check *c, const struct delta_case *s) {
    check_case(c, "keys of %d, %d blocks, %d tokens", s->dim_k, s->n_blocks, s->n_tokens);
    const int width = s->n_blocks * DELTA_BLOCK, stride = width + 5, k_stride = s->dim_k + 3;
    const size_t n_state = (size_t)(s->dim_k * width), n = (size_t)(s->n_tokens * stride);
    struct delta_rows r = {.q = unit_rows(c, s->n_tokens, k_stride, s->dim_k),
                           .k = unit_rows(c, s->n_tokens, k_stride, s->dim_k),
                           .v = floats(c, (size_t)((s->n_tokens - 1) * stride + width), 1),
                           .q_stride = k_stride,
                           .k_stride = k_stride,
                           .v_stride = stride,
                           .decay = gates(c, s->n_tokens),
                           .beta = gates(c, s->n_tokens),
                           .out_stride = stride,
                           .n_tokens = s->n_tokens,
                           .dim_k = s->dim_k};
    const float *start = floats(c, n_state, 1);
    check_seal(c);
    float *state = check_output(c, n_state), *ref_state = check_output(c, n_state);
    float *ref = check_output(c, n), *out = check_output(c, n);
    r.out = ref;
    c->ref->delta(&r, start, ref_state, s->n_blocks);
    r.out = out;
    c->isa->delta(&r, start, state, s->n_blocks);
    double *want = check_memory(c, (size_t)s->n_tokens * sizeof *want);
    double *limit = check_memory(c, (size_t)s->n_tokens * sizeof *limit);
    double *column = check_memory(c, (size_t)s->dim_k * sizeof *column);
    for (int j = 0; j < width; j++) {
        const size_t at = (size_t)(j / DELTA_BLOCK * s->dim_k * DELTA_BLOCK + j % DELTA_BLOCK);
        for (int i = 0; i < s->dim_k; i++)
            column[i] = (double)start[at + (size_t)(i * DELTA_BLOCK)];
        delta_oracle(&r, j, column, want, limit);
        for (int t = 0; t < s->n_tokens; t++) {
            double by_ref = (double)ref[t * stride + j];
            check_near(c, "the oracle", out + t * stride + j, want + t, limit + t, 1);
            check_near(c, "the reference", out + t * stride + j, &by_ref, limit + t, 1);
        }
        for (int i = 0; i < s->dim_k; i++) {
            double last = limit[s->n_tokens - 1];
            check_near(c, "the oracle's state", state + at + i * DELTA_BLOCK, column + i, &last, 1);
        }
    }
    delta_in_pieces(c, s, &r, start, state);
    check_case_end(c);
}

static void delta_rules(struct check *c) {
    static const int dims[] = {16, 32, 128}, blocks[] = {1, 2, 3, 8}, tokens[] = {1, 2, 3, 33};
    for (size_t i = 0; i < COUNT_OF(dims); i++)
        for (size_t j = 0; j < COUNT_OF(blocks); j++)
            for (size_t k = 0; k < COUNT_OF(tokens); k++)
                delta_shape(c, &(struct delta_case){dims[i], blocks[j], tokens[k]});
}

void check_recurrent(struct check *c) {
    const struct kernels *isa = c->isa, *below = c->below;
    if (check_kernel(c, !below || isa->conv != below->conv, "conv")) {
        convolutions(c);
        check_kernel_end(c);
    }
    if (check_kernel(c, !below || isa->delta != below->delta, "delta")) {
        delta_rules(c);
        check_kernel_end(c);
    }
}
