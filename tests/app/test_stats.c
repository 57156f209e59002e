#include "app/stats.h"
#include "support.h"

#include <math.h>

static void near(double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance)) fail_msg("%.17g is not near %.17g", got, want);
}

static void mean_and_deviation_are_those_of_a_sample(void **state) {
    (void)state;
    const double v[] = {2, 4, 4, 4, 5, 5, 7, 9}; /* squares about the mean: 32 */
    near(stats_mean(v, 8), 5, 0);
    near(stats_deviation(v, 8), sqrt(32.0 / 7), 1e-15);
    near(stats_deviation(v, 1), 0, 0);
    near(stats_mean(v, 0), 0, 0);
    double odd[] = {9, 1, 5}, even[] = {8, 1, 2, 4};
    near(stats_median(odd, 3), 5, 0);
    near(stats_median(even, 4), 3, 0);
    near(stats_median(even, 0), 0, 0);
}

static void nll_is_that_of_the_softmax(void **state) {
    (void)state;
    const float uniform[4] = {7, 7, 7, 7};
    near(nll_of(uniform, 4, 2), log(4), 1e-15);
    const float skewed[3] = {0, (float)log(2.0), (float)log(5.0)};
    near(nll_of(skewed, 3, 0), log(8), 1e-7);
    near(nll_of(skewed, 3, 2), log(8.0 / 5), 1e-7);
}

static void nll_survives_logits_far_from_zero(void **state) {
    (void)state;
    const float far[3] = {10000, 10001, -10000};
    near(nll_of(far, 3, 1), log1p(exp(-1)), 1e-12);
    near(nll_of(far, 3, 2), 20001 + log1p(exp(-1)), 1e-9);
}

static void perplexity_of_a_uniform_model_is_the_vocabulary(void **state) {
    (void)state;
    struct perplexity p = {0};
    for (int i = 0; i < 100; i++)
        perplexity_add(&p, log(50));
    near(perplexity_value(&p), 50, 1e-11);
    near(perplexity_error(&p), 0, 1e-5);
}

static void the_error_of_perplexity_is_that_of_the_mean(void **state) {
    (void)state;
    struct perplexity p = {0};
    perplexity_add(&p, 1);
    near(perplexity_error(&p), 0, 0);
    perplexity_add(&p, 3);
    /* mean 2, variance (over n) 1, error of the mean sqrt(1 / (2 - 1)) */
    near(perplexity_value(&p), exp(2), 1e-14);
    near(perplexity_error(&p), exp(2), 1e-14);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(mean_and_deviation_are_those_of_a_sample),
        cmocka_unit_test(nll_is_that_of_the_softmax),
        cmocka_unit_test(nll_survives_logits_far_from_zero),
        cmocka_unit_test(perplexity_of_a_uniform_model_is_the_vocabulary),
        cmocka_unit_test(the_error_of_perplexity_is_that_of_the_mean),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
