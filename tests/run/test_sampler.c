/* What is drawn, and how often. */
#include "sampling.h"

#include <float.h>
#include <math.h>

#include "base/rng.h"

enum { N_DRAWS = 100000, N_BINS_MAX = 64 };

/* ------------------------------------------------------------------------------- distributions */

/* The value that chi-square with n degrees of freedom passes once in 10000 (Wilson and Hilferty,
 * 1931); the seeds are fixed, so a test that passes always does. */
static double chi_square_limit(int n) {
    double a = 2.0 / (9.0 * n), z = 3.719;
    return n * pow(1 - a + z * sqrt(a), 3);
}

/* Fails unless the draws follow `want` (n probabilities; 0: never drawn). */
static void assert_draws(const ats_sampling *params, const float *logits, int n, const double *want,
                         double sum) {
    int counts[N_BINS_MAX] = {0}, n_bins = 0;
    assert_true(n <= N_BINS_MAX);
    struct sampler *s = sampling_open(params, n);
    for (int i = 0; i < N_DRAWS; i++) {
        int32_t token = sampler_pick(s, logits);
        assert_true(token >= 0 && token < n);
        counts[token]++;
    }
    sampler_close(s);
    double chi_square = 0;
    for (int i = 0; i < n; i++) {
        double expected = want[i] / sum * N_DRAWS;
        if (want[i] == 0) assert_int_equal(counts[i], 0);
        if (want[i] == 0) continue;
        assert_true(expected > 5); /* else the test means nothing */
        chi_square += (counts[i] - expected) * (counts[i] - expected) / expected;
        n_bins++;
    }
    if (n_bins == 1) return; /* all draws were that one */
    if (chi_square > chi_square_limit(n_bins - 1))
        fail_msg("chi-square %g with %d bins", chi_square, n_bins);
}

/* Logits of given probabilities, for a sampler to be told the very distribution. */
static void logits_of(const double *p, int n, float *logits) {
    for (int i = 0; i < n; i++)
        logits[i] = (float)log(p[i]) + 3;
}

/* Draws from `p` (n) must follow `want`, in any scale. */
static void assert_draws_of(const ats_sampling *params, const double *p, int n,
                            const double *want) {
    float logits[N_BINS_MAX];
    double sum = 0;
    logits_of(p, n, logits);
    for (int i = 0; i < n; i++)
        sum += want[i];
    assert_draws(params, logits, n, want, sum);
}

static const double spread[] = {0.05, 0.3, 0.02, 0.25, 0.13, 0.1, 0.15};
enum { N_SPREAD = COUNT_OF(spread) };

static void draws_follow_the_softmax(void **state) {
    (void)state;
    ats_sampling p = sampling_plain();
    assert_draws_of(&p, spread, N_SPREAD, spread);
    p.seed = 2;
    assert_draws_of(&p, spread, N_SPREAD, spread);
}

static void temperature_is_the_power_of_the_probabilities(void **state) {
    (void)state;
    const float temperatures[] = {0.5F, 0.8F, 2, 10};
    for (size_t t = 0; t < COUNT_OF(temperatures); t++) {
        ats_sampling p = sampling_plain();
        p.temperature = temperatures[t];
        double want[N_SPREAD];
        for (int i = 0; i < N_SPREAD; i++)
            want[i] = pow(spread[i], 1 / (double)p.temperature);
        assert_draws_of(&p, spread, N_SPREAD, want);
    }
}

static void top_k_keeps_the_k_most_probable(void **state) {
    (void)state;
    ats_sampling p = sampling_plain();
    p.top_k = 3;
    const double want[N_SPREAD] = {0, 0.3, 0, 0.25, 0, 0, 0.15};
    assert_draws_of(&p, spread, N_SPREAD, want);
    p.top_k = 1000;
    assert_draws_of(&p, spread, N_SPREAD, spread);
    p.top_k = -1;
    assert_draws_of(&p, spread, N_SPREAD, spread);
    p.top_k = 1;
    const double one[N_SPREAD] = {0, 1, 0, 0, 0, 0, 0};
    assert_draws_of(&p, spread, N_SPREAD, one);
}

static void top_p_keeps_the_fewest_that_reach_it(void **state) {
    (void)state;
    ats_sampling p = sampling_plain();
    p.top_p = 0.6F; /* 0.3 + 0.25 are too little */
    const double want[N_SPREAD] = {0, 0.3, 0, 0.25, 0, 0, 0.15};
    assert_draws_of(&p, spread, N_SPREAD, want);
    p.top_p = 0;
    const double one[N_SPREAD] = {0, 1, 0, 0, 0, 0, 0};
    assert_draws_of(&p, spread, N_SPREAD, one);
}

static void min_p_is_relative_to_the_most_probable(void **state) {
    (void)state;
    ats_sampling p = sampling_plain();
    p.min_p = 0.4F; /* of 0.3: 0.12 */
    const double want[N_SPREAD] = {0, 0.3, 0, 0.25, 0.13, 0, 0.15};
    assert_draws_of(&p, spread, N_SPREAD, want);
    p.min_p = 1;
    const double one[N_SPREAD] = {0, 1, 0, 0, 0, 0, 0};
    assert_draws_of(&p, spread, N_SPREAD, one);
}

static void typical_keeps_what_surprises_as_expected(void **state) {
    (void)state;
    /* The entropy is 1.43: 0.25 (surprise 1.39) is nearest, then 0.15 (1.90), then 0.4 (0.92). */
    const double probabilities[] = {0.4, 0.15, 0.15, 0.25, 0.05};
    double entropy = 0;
    for (int i = 0; i < 5; i++)
        entropy -= probabilities[i] * log(probabilities[i]);
    assert_true(fabs(entropy - 1.43) < 0.01);
    ats_sampling p = sampling_plain();
    p.typical_p = 0.2F;
    assert_draws_of(&p, probabilities, 5, (const double[]){0, 0, 0, 1, 0});
    p.typical_p = 0.35F; /* ids 1 and 2 are equally far: the lower one goes first */
    assert_draws_of(&p, probabilities, 5, (const double[]){0, 0.15, 0, 0.25, 0});
    p.typical_p = 0.6F;
    assert_draws_of(&p, probabilities, 5, (const double[]){0.4, 0.15, 0.15, 0.25, 0});
}

static void steps_come_in_the_documented_order(void **state) {
    (void)state;
    const double probabilities[] = {0.4, 0.3, 0.2, 0.1};
    ats_sampling p = sampling_plain();
    p.top_k = 2; /* before top-p: 0.57 + 0.43, the first is enough for 0.5 */
    p.top_p = 0.5F;
    assert_draws_of(&p, probabilities, 4, (const double[]){1, 0, 0, 0});
    p = sampling_plain();
    p.top_p = 0.75F; /* before min-p, which would make 0.4 + 0.3 enough: 0.78 of 0.9 */
    p.min_p = 0.45F;
    assert_draws_of(&p, probabilities, 4, (const double[]){0.4, 0.3, 0.2, 0});
    p = sampling_plain();
    p.min_p = 0.6F; /* before temperature, which would lift 0.2 to 0.7 of 0.4 */
    p.temperature = 2;
    assert_draws_of(&p, probabilities, 4, (const double[]){sqrt(0.4), sqrt(0.3), 0, 0});
    p = sampling_plain();
    p.min_p = 0.6F; /* before XTC, which leaves 0.3, of which 0.2 is more than 0.6 */
    p.xtc_probability = 1;
    p.xtc_threshold = 0.25F;
    assert_draws_of(&p, probabilities, 4, (const double[]){0, 1, 0, 0});
    p = sampling_plain();
    p.xtc_probability = 1; /* before temperature, which would leave 0.13 of the 0.2 */
    p.xtc_threshold = 0.15F;
    p.temperature = 0.5F;
    assert_draws_of(&p, probabilities, 4, (const double[]){0, 0, 0.04, 0.01});
}

static void typical_comes_before_top_p(void **state) {
    (void)state;
    /* Typical takes 0.25 and both 0.15; top-p would have taken 0.4. */
    const double probabilities[] = {0.4, 0.15, 0.15, 0.25, 0.05};
    ats_sampling p = sampling_plain();
    p.typical_p = 0.5F;
    p.top_p = 0.4F; /* 0.25 is 0.45 of what is left */
    assert_draws_of(&p, probabilities, 5, (const double[]){0, 0, 0, 1, 0});
    p = sampling_plain();
    p.top_k = 1; /* top-k comes before typical: the most probable is all that is left */
    p.typical_p = 0.2F;
    assert_draws_of(&p, probabilities, 5, (const double[]){1, 0, 0, 0, 0});
}

static void xtc_leaves_out_the_top_choices_that_often(void **state) {
    (void)state;
    ats_sampling p = sampling_plain();
    p.xtc_probability = 0.3F;
    p.xtc_threshold = 0.12F; /* 0.3, 0.25, 0.13, 0.15: all but 0.13 go */
    const double left[N_SPREAD] = {0.05, 0, 0.02, 0, 0.13, 0.1, 0};
    double want[N_SPREAD];
    for (int i = 0; i < N_SPREAD; i++)
        want[i] = 0.7 * spread[i] + 0.3 * left[i] / 0.3;
    assert_draws_of(&p, spread, N_SPREAD, want);
    p.xtc_threshold = 0.28F; /* one choice only: it stays */
    assert_draws_of(&p, spread, N_SPREAD, spread);
}

static void the_default_chain_draws_what_its_steps_leave(void **state) {
    (void)state;
    ats_sampling p;
    sampler_defaults(&p);
    p.seed = 5;
    float logits[N_BINS_MAX];
    double want[N_BINS_MAX], sum = 0, largest = 0;
    for (int i = 0; i < N_BINS_MAX; i++)
        logits[i] = 4 * sinf((float)(i * i));
    int order[N_BINS_MAX];
    for (int i = 0; i < N_BINS_MAX; i++) { /* by insertion */
        int j = i;
        for (; j > 0 && logits[order[j - 1]] < logits[i]; j--)
            order[j] = order[j - 1];
        order[j] = i;
    }
    for (int j = 0; j < N_BINS_MAX; j++)
        want[order[j]] = j < 40 ? exp((double)logits[order[j]]) : 0;
    for (int i = 0; i < N_BINS_MAX; i++)
        sum += want[i];
    double seen = 0;
    for (int j = 0; j < N_BINS_MAX; j++) {
        double share = want[order[j]] / sum;
        if (seen >= 0.95) want[order[j]] = 0;
        seen += share;
    }
    for (int i = 0; i < N_BINS_MAX; i++)
        largest = fmax(largest, want[i]);
    sum = 0;
    for (int i = 0; i < N_BINS_MAX; i++) {
        want[i] = want[i] >= 0.05 * largest ? pow(want[i], 1 / 0.8) : 0;
        sum += want[i];
    }
    assert_draws(&p, logits, N_BINS_MAX, want, sum);
}

/* ----------------------------------------------------------------------------------------- bias */

static void bias_is_added(void **state) {
    (void)state;
    const double probabilities[] = {0.5, 0.3, 0.2};
    const ats_logit_bias bias[] = {{1, (float)log(2)}, {2, -INFINITY}, {1, (float)log(1.5)}};
    ats_sampling p = sampling_plain();
    p.logit_bias = bias;
    p.n_logit_bias = 3;
    assert_draws_of(&p, probabilities, 3, (const double[]){0.5, 0.9, 0});
}

static void a_banned_token_is_never_picked(void **state) {
    (void)state;
    const ats_logit_bias bias[] = {{0, -INFINITY}, {2, -INFINITY}};
    const float nan_or_inf[] = {INFINITY, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) { /* greedy, sampled, mirostat */
        ats_sampling p = i == 0 ? sampling_greedy() : sampling_plain();
        if (i == 2) p.mirostat = 2;
        p.logit_bias = bias;
        p.n_logit_bias = 2;
        const float logits[] = {9, 1, 9, -FLT_MAX};
        assert_int_equal(sampling_pick(&p, logits, 3, NULL, 0), 1);
        assert_int_equal(sampling_pick(&p, nan_or_inf, 4, NULL, 0), 1);
    }
}

/* --------------------------------------------------------------------------------------- greedy */

static void greedy_takes_the_lowest_id_of_the_best(void **state) {
    (void)state;
    float logits[100];
    for (int i = 0; i < 100; i++)
        logits[i] = (float)(i % 7);
    ats_sampling p = sampling_greedy();
    assert_int_equal(sampling_pick(&p, logits, 100, NULL, 0), 6);
    p.temperature = -1;
    p.mirostat = 2;
    p.xtc_probability = 1;
    assert_int_equal(sampling_pick(&p, logits, 100, NULL, 0), 6);
    logits[50] = NAN;
    logits[60] = 6.5F;
    assert_int_equal(sampling_pick(&p, logits, 100, NULL, 0), 60);
}

static void nearly_no_temperature_is_greedy(void **state) {
    (void)state;
    const float logits[] = {1, 3, 2};
    ats_sampling p = sampling_plain();
    p.temperature = FLT_TRUE_MIN;
    struct sampler *s = sampling_open(&p, 3);
    for (int i = 0; i < 1000; i++)
        assert_int_equal(sampler_pick(s, logits), 1);
    sampler_close(s);
}

/* ------------------------------------------------------------------------------------- mirostat */

static void mirostat_holds_the_surprise_at_tau(void **state) {
    (void)state;
    enum { N = 2000 };
    static float logits[N];
    static double bits[N];
    struct rng rng;
    rng_seed(&rng, 3);
    for (int i = 0; i < N; i++)
        logits[i] = 2 * rng_normal(&rng);
    double sum = 0;
    for (int i = 0; i < N; i++)
        sum += exp((double)logits[i]);
    for (int i = 0; i < N; i++)
        bits[i] = -log2(exp((double)logits[i]) / sum);
    const float taus[] = {2, 4, 6};
    for (size_t t = 0; t < COUNT_OF(taus); t++) {
        ats_sampling p = sampling_plain();
        p.mirostat = 2;
        p.mirostat_tau = taus[t];
        p.top_k = 1; /* replaced, with all the steps that follow */
        struct sampler *s = sampling_open(&p, N);
        double mean = 0, max_bits = 0;
        for (int i = 0; i < 3000; i++) {
            int32_t token = sampler_pick(s, logits);
            if (i < 1000) continue;
            /* What is measured is the surprise after the cut; all tokens lie above it alike. */
            mean += bits[token] / 2000;
            max_bits = fmax(max_bits, bits[token]);
        }
        double kept = 0;
        for (int i = 0; i < N; i++)
            if (bits[i] <= max_bits) kept += exp((double)logits[i]) / sum;
        mean += log2(kept); /* about: mu moves a little */
        if (fabs(mean - (double)taus[t]) > 0.25) fail_msg("mean surprise %g", mean);
        sampler_close(s);
    }
}

static void mirostat_without_learning_cuts_at_twice_tau(void **state) {
    (void)state;
    const double probabilities[] = {0.5, 0.25, 0.125, 0.1, 0.025};
    ats_sampling p = sampling_plain();
    p.mirostat = 2;
    p.mirostat_eta = 0;
    p.mirostat_tau = 1.51F; /* 3.02 bits: 0.123 */
    assert_draws_of(&p, probabilities, 5, (const double[]){0.5, 0.25, 0.125, 0, 0});
    p.mirostat_tau = 0; /* even the most probable surprises more: it stays alone */
    assert_draws_of(&p, probabilities, 5, (const double[]){1, 0, 0, 0, 0});
}

static void infinite_logits_share_the_draws(void **state) {
    (void)state;
    const float logits[] = {INFINITY, 5, INFINITY, NAN};
    ats_sampling p = sampling_plain();
    assert_draws(&p, logits, 4, (const double[]){0.5, 0, 0.5, 0}, 1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(draws_follow_the_softmax),
        cmocka_unit_test(temperature_is_the_power_of_the_probabilities),
        cmocka_unit_test(top_k_keeps_the_k_most_probable),
        cmocka_unit_test(top_p_keeps_the_fewest_that_reach_it),
        cmocka_unit_test(min_p_is_relative_to_the_most_probable),
        cmocka_unit_test(typical_keeps_what_surprises_as_expected),
        cmocka_unit_test(steps_come_in_the_documented_order),
        cmocka_unit_test(typical_comes_before_top_p),
        cmocka_unit_test(xtc_leaves_out_the_top_choices_that_often),
        cmocka_unit_test(the_default_chain_draws_what_its_steps_leave),
        cmocka_unit_test(bias_is_added),
        cmocka_unit_test(a_banned_token_is_never_picked),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_the_best),
        cmocka_unit_test(nearly_no_temperature_is_greedy),
        cmocka_unit_test(mirostat_holds_the_surprise_at_tau),
        cmocka_unit_test(mirostat_without_learning_cuts_at_twice_tau),
        cmocka_unit_test(infinite_logits_share_the_draws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
