/*
 * The per-type conversions behind dtype_to_float and dtype_from_float (dtype.h): private to
 * quant.c and quant_k.c. n_blocks blocks each; plain C in the order of the formula, no FMA.
 */
#pragma once

#include "model/dtype.h"

/* quant_k.c: super-blocks of 256 */
void q2_k_to_float(const struct block_q2_k *b, float *out, int64_t n_blocks);
void q3_k_to_float(const struct block_q3_k *b, float *out, int64_t n_blocks);
void q4_k_to_float(const struct block_q4_k *b, float *out, int64_t n_blocks);
void q5_k_to_float(const struct block_q5_k *b, float *out, int64_t n_blocks);
void q6_k_to_float(const struct block_q6_k *b, float *out, int64_t n_blocks);
void iq4_xs_to_float(const struct block_iq4_xs *b, float *out, int64_t n_blocks);
void q4_k_from_float(const float *x, struct block_q4_k *b, int64_t n_blocks);
void q6_k_from_float(const float *x, struct block_q6_k *b, int64_t n_blocks);

/* quant_fit.c: the scale searches that the quantisers share. */

/* Nearest integer (ties to even) in [low, high]; NaN gives low. */
int quant_round(float v, int low, int high);
/* Nearest half that is finite; NaN gives 0. */
uint16_t quant_half(double v);

/*
 * x[i] ~ d * q[i] with q in [-n_max, n_max - 1]: returns the d that leaves the least squared error
 * among the scales tried; q (n). half_scale: d is one that a half holds exactly.
 */
float quant_fit_symmetric(const float *x, int n, int n_max, bool half_scale, int8_t *q);

/*
 * x[i] ~ *d * q[i] + *offset with q in [0, n_max], *d >= 0; q (n).
 * half_scales: both are ones that a half holds. offset_negative: *offset <= 0 (K-quants store it
 * as an unsigned number to be subtracted).
 */
void quant_fit_affine(const float *x, int n, int n_max, bool half_scales, bool offset_negative,
                      float *d, float *offset, uint8_t *q);
