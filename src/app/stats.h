/* Small statistics of measurements and of log-likelihoods. */
#pragma once

#include "base/base.h"

/* Sorts v. 0 for none. */
double stats_median(double *v, size_t n);
double stats_mean(const double *v, size_t n);
/* Of a sample (n - 1); 0 for fewer than two values. */
double stats_deviation(const double *v, size_t n);

/* Negative log-likelihood of `target` under softmax(logits[0..n_vocab)), natural, in double. */
double nll_of(const float *logits, int n_vocab, int32_t target);

/* Mean NLL and perplexity with its standard error, from sums over n counted tokens. */
struct perplexity {
    double nll_sum, nll_squares;
    uint64_t n;
};
void perplexity_add(struct perplexity *p, double nll);
double perplexity_value(const struct perplexity *p);
/* Standard error of the mean NLL times the perplexity (first order); 0 for fewer than two. */
double perplexity_error(const struct perplexity *p);
