#include "model/quant.h"

#include <math.h>

int quant_round(float v, int low, int high) {
    if (!(v > (float)low)) return low;
    if (v >= (float)high) return high;
    return (int)rintf(v);
}

uint16_t quant_half(double v) {
    if (!(v == v)) return 0;
    if (v > 65504) v = 65504;
    if (v < -65504) v = -65504;
    return half_from_float((float)v);
}

static float stored_scale(double v, bool half_scale) {
    return half_scale ? half_to_float(quant_half(v)) : (float)v;
}

/* Rounds x / d to levels and returns the squared error that is left. */
static double round_symmetric(const float *x, int n, float d, int n_max, int8_t *q) {
    float inverse = d != 0 ? 1 / d : 0;
    double error = 0;
    for (int i = 0; i < n; i++) {
        q[i] = (int8_t)quant_round(x[i] * inverse, -n_max, n_max - 1);
        double e = (double)x[i] - (double)d * q[i];
        error += e * e;
    }
    return error;
}

/* The scale of least squared error for given levels; 0 if all are 0. */
static double best_scale(const float *x, int n, const int8_t *q) {
    double xq = 0, qq = 0;
    for (int i = 0; i < n; i++) {
        xq += (double)x[i] * q[i];
        qq += (double)q[i] * q[i];
    }
    return qq > 0 ? xq / qq : 0;
}

/*
 * The element of the largest magnitude is put on a series of levels (also between two); each start
 * is rounded, its scale improved by least squares, and rounded again. Whole levels are among the
 * starts, so that values which lie on a grid are found exactly.
 */
float quant_fit_symmetric(const float *x, int n, int n_max, bool half_scale, int8_t *q) {
    float extreme = 0;
    for (int i = 0; i < n; i++) {
        if (fabsf(x[i]) > fabsf(extreme)) extreme = x[i];
    }
    float best_d = 0;
    double best_error = round_symmetric(x, n, 0, n_max, q);
    for (int step = 0; step <= 16 && extreme != 0; step++) {
        /* -n_max, then 0.5 a step inwards; from the 10th on the positive side */
        float level = step < 10 ? -(float)n_max + 0.5f * (float)step
                                : (float)n_max - 0.5f * (float)(step - 9);
        int8_t trial[QK_SMALL];
        round_symmetric(x, n, extreme / level, n_max, trial);
        float d = stored_scale(best_scale(x, n, trial), half_scale);
        double error = round_symmetric(x, n, d, n_max, trial);
        if (!(error < best_error)) continue;
        best_error = error;
        best_d = d;
        for (int i = 0; i < n; i++)
            q[i] = trial[i];
    }
    return best_d;
}

static double round_affine(const float *x, int n, float d, float offset, int n_max, uint8_t *q) {
    float inverse = d != 0 ? 1 / d : 0;
    double error = 0;
    for (int i = 0; i < n; i++) {
        q[i] = (uint8_t)quant_round((x[i] - offset) * inverse, 0, n_max);
        double e = (double)x[i] - ((double)d * q[i] + (double)offset);
        error += e * e;
    }
    return error;
}

/* The line of least squared error through (q, x); keeps *d and *offset if there is none. */
static void best_line(const float *x, int n, const uint8_t *q, bool offset_negative, double *d,
                      double *offset) {
    double sum_x = 0, sum_q = 0, xq = 0, qq = 0;
    for (int i = 0; i < n; i++) {
        sum_x += (double)x[i];
        sum_q += q[i];
        xq += (double)x[i] * q[i];
        qq += (double)q[i] * q[i];
    }
    double det = n * qq - sum_q * sum_q;
    if (!(det > 0)) return;
    *d = (n * xq - sum_q * sum_x) / det;
    *offset = (qq * sum_x - sum_q * xq) / det;
    if (offset_negative && *offset > 0) {
        *offset = 0;
        *d = xq / qq;
    }
    if (!(*d > 0)) *d = 0;
}

/* As above, with the range of the values spread over somewhat more or fewer levels than there
 * are. */
void quant_fit_affine(const float *x, int n, int n_max, bool half_scales, bool offset_negative,
                      float *d, float *offset, uint8_t *q) {
    float low = x[0], high = x[0];
    for (int i = 1; i < n; i++) {
        if (x[i] < low) low = x[i];
        if (x[i] > high) high = x[i];
    }
    if (offset_negative && low > 0) low = 0;
    *d = 0;
    *offset = stored_scale((double)low, half_scales);
    double best_error = round_affine(x, n, 0, *offset, n_max, q);
    for (int step = 0; step <= 8; step++) {
        double d_trial = ((double)high - (double)low) / (n_max + 0.5 * (step - 2));
        double offset_trial = (double)low;
        uint8_t trial[QK_SMALL];
        round_affine(x, n, (float)d_trial, low, n_max, trial);
        best_line(x, n, trial, offset_negative, &d_trial, &offset_trial);
        float d_stored = stored_scale(d_trial, half_scales);
        float offset_stored = stored_scale(offset_trial, half_scales);
        double error = round_affine(x, n, d_stored, offset_stored, n_max, trial);
        if (!(error < best_error)) continue;
        best_error = error;
        *d = d_stored;
        *offset = offset_stored;
        for (int i = 0; i < n; i++)
            q[i] = trial[i];
    }
}
