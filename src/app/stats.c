#include "app/stats.h"

#include <math.h>
#include <stdlib.h>

static int compare(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double stats_median(double *v, size_t n) {
    if (n == 0) return 0;
    qsort(v, n, sizeof *v, compare);
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

double stats_mean(const double *v, size_t n) {
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += v[i];
    return n ? sum / (double)n : 0;
}

double stats_deviation(const double *v, size_t n) {
    if (n < 2) return 0;
    double mean = stats_mean(v, n), sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (v[i] - mean) * (v[i] - mean);
    return sqrt(sum / (double)(n - 1));
}

double nll_of(const float *logits, int n_vocab, int32_t target) {
    float best = logits[0];
    for (int i = 1; i < n_vocab; i++)
        if (logits[i] > best) best = logits[i];
    double sum = 0;
    for (int i = 0; i < n_vocab; i++)
        sum += exp((double)logits[i] - (double)best);
    return log(sum) - ((double)logits[target] - (double)best);
}

void perplexity_add(struct perplexity *p, double nll) {
    p->nll_sum += nll;
    p->nll_squares += nll * nll;
    p->n++;
}

double perplexity_value(const struct perplexity *p) {
    return p->n ? exp(p->nll_sum / (double)p->n) : 0;
}

double perplexity_error(const struct perplexity *p) {
    if (p->n < 2) return 0;
    double mean = p->nll_sum / (double)p->n;
    double variance = p->nll_squares / (double)p->n - mean * mean;
    return variance > 0 ? perplexity_value(p) * sqrt(variance / (double)(p->n - 1)) : 0;
}
