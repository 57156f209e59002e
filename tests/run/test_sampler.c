#include "run/sampler.h"

#include <float.h>
#include <math.h>

#include "base/arena.h"
#include "base/rng.h"

#include "support.h"

enum { N_CTX = 1000, N_DRAWS = 100000, N_BINS_MAX = 64 };

/* Every step off: draws follow softmax(logits). */
static ats_sampling plain(void) {
    ats_sampling p;
    sampler_defaults(&p);
    p.temperature = 1;
    p.top_k = 0;
    p.top_p = 1;
    p.min_p = 0;
    p.seed = 1;
    return p;
}

static ats_sampling greedy(void) {
    ats_sampling p = plain();
    p.temperature = 0;
    return p;
}

static struct sampler *open_sampler(const ats_sampling *params, int n_vocab) {
    struct sampler *s;
    TEST_OK(sampler_open(params, &(struct sampler_env){.n_vocab = n_vocab, .n_ctx = N_CTX}, &s));
    return s;
}

/* The first pick after a history. */
static int32_t pick_after(const ats_sampling *params, const float *logits, int n_vocab,
                          const int32_t *history, size_t n) {
    struct sampler *s = open_sampler(params, n_vocab);
    for (size_t i = 0; i < n; i++)
        sampler_accept(s, history[i]);
    int32_t token = sampler_pick(s, logits);
    sampler_close(s);
    return token;
}

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
    struct sampler *s = open_sampler(params, n);
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
    ats_sampling p = plain();
    assert_draws_of(&p, spread, N_SPREAD, spread);
    p.seed = 2;
    assert_draws_of(&p, spread, N_SPREAD, spread);
}

static void temperature_is_the_power_of_the_probabilities(void **state) {
    (void)state;
    const float temperatures[] = {0.5F, 0.8F, 2, 10};
    for (size_t t = 0; t < COUNT_OF(temperatures); t++) {
        ats_sampling p = plain();
        p.temperature = temperatures[t];
        double want[N_SPREAD];
        for (int i = 0; i < N_SPREAD; i++)
            want[i] = pow(spread[i], 1 / (double)p.temperature);
        assert_draws_of(&p, spread, N_SPREAD, want);
    }
}

static void top_k_keeps_the_k_most_probable(void **state) {
    (void)state;
    ats_sampling p = plain();
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
    ats_sampling p = plain();
    p.top_p = 0.6F; /* 0.3 + 0.25 are too little */
    const double want[N_SPREAD] = {0, 0.3, 0, 0.25, 0, 0, 0.15};
    assert_draws_of(&p, spread, N_SPREAD, want);
    p.top_p = 0;
    const double one[N_SPREAD] = {0, 1, 0, 0, 0, 0, 0};
    assert_draws_of(&p, spread, N_SPREAD, one);
}

static void min_p_is_relative_to_the_most_probable(void **state) {
    (void)state;
    ats_sampling p = plain();
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
    ats_sampling p = plain();
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
    ats_sampling p = plain();
    p.top_k = 2; /* before top-p: 0.57 + 0.43, the first is enough for 0.5 */
    p.top_p = 0.5F;
    assert_draws_of(&p, probabilities, 4, (const double[]){1, 0, 0, 0});
    p = plain();
    p.top_p = 0.75F; /* before min-p, which would make 0.4 + 0.3 enough: 0.78 of 0.9 */
    p.min_p = 0.45F;
    assert_draws_of(&p, probabilities, 4, (const double[]){0.4, 0.3, 0.2, 0});
    p = plain();
    p.min_p = 0.6F; /* before temperature, which would lift 0.2 to 0.7 of 0.4 */
    p.temperature = 2;
    assert_draws_of(&p, probabilities, 4, (const double[]){sqrt(0.4), sqrt(0.3), 0, 0});
    p = plain();
    p.min_p = 0.6F; /* before XTC, which leaves 0.3, of which 0.2 is more than 0.6 */
    p.xtc_probability = 1;
    p.xtc_threshold = 0.25F;
    assert_draws_of(&p, probabilities, 4, (const double[]){0, 1, 0, 0});
    p = plain();
    p.xtc_probability = 1; /* before temperature, which would leave 0.13 of the 0.2 */
    p.xtc_threshold = 0.15F;
    p.temperature = 0.5F;
    assert_draws_of(&p, probabilities, 4, (const double[]){0, 0, 0.04, 0.01});
}

static void typical_comes_before_top_p(void **state) {
    (void)state;
    /* Typical takes 0.25 and both 0.15; top-p would have taken 0.4. */
    const double probabilities[] = {0.4, 0.15, 0.15, 0.25, 0.05};
    ats_sampling p = plain();
    p.typical_p = 0.5F;
    p.top_p = 0.4F; /* 0.25 is 0.45 of what is left */
    assert_draws_of(&p, probabilities, 5, (const double[]){0, 0, 0, 1, 0});
    p = plain();
    p.top_k = 1; /* top-k comes before typical: the most probable is all that is left */
    p.typical_p = 0.2F;
    assert_draws_of(&p, probabilities, 5, (const double[]){1, 0, 0, 0, 0});
}

static void xtc_leaves_out_the_top_choices_that_often(void **state) {
    (void)state;
    ats_sampling p = plain();
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

/* ------------------------------------------------------------------------------------- penalties
 */

/* Fails unless after the history the first token loses against the second when that has a logit of
 * `value` + 0.001, and wins when it has 0.001 less: its own logit then is `value`. */
static void assert_logit_becomes(const ats_sampling *params, float logit, const int32_t *history,
                                 size_t n, double value) {
    for (int above = 0; above < 2; above++) {
        const float logits[] = {-1000, logit, (float)(value + (above ? 0.001 : -0.001)), -1000};
        assert_int_equal(pick_after(params, logits, 4, history, n), above ? 2 : 1);
    }
}

static void penalties_change_the_logit_as_documented(void **state) {
    (void)state;
    const int32_t twice[] = {1, 3, 1};
    ats_sampling p = greedy();
    assert_logit_becomes(&p, 2, twice, 3, 2);
    p.repeat_penalty = 1.25F; /* once, however often it came */
    assert_logit_becomes(&p, 2, twice, 3, 1.6);
    assert_logit_becomes(&p, -2, twice, 3, -2.5);
    assert_logit_becomes(&p, 2, twice + 1, 1, 2);
    p.presence_penalty = 0.5F;
    assert_logit_becomes(&p, 2, twice, 3, 1.1);
    p.frequency_penalty = 0.25F;
    assert_logit_becomes(&p, 2, twice, 3, 0.6);
    p.presence_penalty = -1;
    p.repeat_penalty = 1;
    assert_logit_becomes(&p, 2, twice, 3, 2.5);
}

static void penalties_see_the_last_n_tokens_only(void **state) {
    (void)state;
    int32_t history[3 * N_CTX];
    for (int i = 0; i < 3 * N_CTX; i++)
        history[i] = 3;
    ats_sampling p = greedy();
    p.presence_penalty = 1;
    p.frequency_penalty = 0.5F;
    p.penalty_last_n = 5;
    for (size_t back = 1; back < 20; back++) { /* the token came `back` tokens ago */
        history[100 - back] = 1;
        assert_logit_becomes(&p, 4, history, 100, back <= 5 ? 2.5 : 4);
        history[100 - back] = 3;
    }
    p.penalty_last_n = 0;
    history[99] = 1;
    assert_logit_becomes(&p, 4, history, 100, 4);
    p.penalty_last_n = -1; /* the context: 1000 */
    for (size_t n = 1000; n <= 3000; n += 333) {
        for (int i = 0; i < 3 * N_CTX; i++)
            history[i] = 3;
        history[n - 1000] = 1;
        assert_logit_becomes(&p, 4, history, n, 2.5);
        if (n == 1000) continue;
        history[n - 1000] = 3;
        history[n - 1001] = 1;
        assert_logit_becomes(&p, 4, history, n, 4);
    }
}

static void what_is_picked_counts_as_history(void **state) {
    (void)state;
    ats_sampling p = greedy();
    p.presence_penalty = 5;
    const float logits[] = {3, 2, 1};
    struct sampler *s = open_sampler(&p, 3);
    assert_int_equal(sampler_pick(s, logits), 0);
    assert_int_equal(sampler_pick(s, logits), 1);
    assert_int_equal(sampler_pick(s, logits), 2);
    assert_int_equal(sampler_pick(s, logits), 0); /* all are lowered alike */
    sampler_close(s);
    assert_true(logits[0] == 3 && logits[1] == 2 && logits[2] == 1);
}

static void tokens_outside_the_vocabulary_are_ignored(void **state) {
    (void)state;
    ats_sampling p = greedy();
    p.presence_penalty = 1;
    const int32_t history[] = {-1, 4, INT32_MAX, INT32_MIN};
    assert_logit_becomes(&p, 2, history, 4, 2);
}

static void dry_lowers_what_would_repeat(void **state) {
    (void)state;
    const int32_t history[] = {2, 3, 0, 1, 0, 2, 3, 0};
    ats_sampling p = greedy();
    p.dry_multiplier = 0.8F;
    assert_logit_becomes(&p, 2, history, 8, 2 - 0.8 * 1.75); /* 2 3 0 -> 1 */
    p.dry_allowed_length = 3;
    assert_logit_becomes(&p, 2, history, 8, 2 - 0.8);
    p.dry_allowed_length = 4;
    assert_logit_becomes(&p, 2, history, 8, 2);
    p.dry_allowed_length = 2;
    p.dry_last_n = 7; /* the first 2 is out of sight */
    assert_logit_becomes(&p, 2, history, 8, 2 - 0.8);
    p.dry_last_n = 0;
    assert_logit_becomes(&p, 2, history, 8, 2);
}

static void dry_stops_at_breakers(void **state) {
    (void)state;
    ats_sampling p = greedy();
    p.dry_multiplier = 1;
    p.dry_base = 2;
    const int32_t history[] = {2, 3, 0, 1, 2, 3, 0}, breaker = 2;
    const struct dry_breaker list[] = {{&breaker, 1}};
    struct sampler_env env = {4, N_CTX, list, 1};
    for (int n = 0; n < 2; n++) {
        const float logits[] = {0, 2.5F, 1, -9}; /* 3 tokens repeated cost 2, 2 tokens 1 */
        struct sampler *s;
        env.n_breakers = n;
        TEST_OK(sampler_open(&p, &env, &s));
        for (int i = 0; i < 7; i++)
            sampler_accept(s, history[i]);
        assert_int_equal(sampler_pick(s, logits), n ? 1 : 2);
        sampler_close(s);
    }
}

static void bias_penalties_and_dry_come_in_that_order(void **state) {
    (void)state;
    const int32_t history[] = {3, 0, 1, 3, 0};
    const ats_logit_bias bias = {1, 2};
    ats_sampling p = greedy();
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    p.repeat_penalty = 2;
    p.dry_multiplier = 1;
    assert_logit_becomes(&p, 4, history, 5, (4 + 2) / 2.0 - 1);
}

/* ----------------------------------------------------------------------------------------- bias */

static void bias_is_added(void **state) {
    (void)state;
    const double probabilities[] = {0.5, 0.3, 0.2};
    const ats_logit_bias bias[] = {{1, (float)log(2)}, {2, -INFINITY}, {1, (float)log(1.5)}};
    ats_sampling p = plain();
    p.logit_bias = bias;
    p.n_logit_bias = 3;
    assert_draws_of(&p, probabilities, 3, (const double[]){0.5, 0.9, 0});
}

static void a_banned_token_is_never_picked(void **state) {
    (void)state;
    const ats_logit_bias bias[] = {{0, -INFINITY}, {2, -INFINITY}};
    const float nan_or_inf[] = {INFINITY, NAN, INFINITY, -INFINITY};
    for (int i = 0; i < 3; i++) { /* greedy, sampled, mirostat */
        ats_sampling p = i == 0 ? greedy() : plain();
        if (i == 2) p.mirostat = 2;
        p.logit_bias = bias;
        p.n_logit_bias = 2;
        const float logits[] = {9, 1, 9, -FLT_MAX};
        assert_int_equal(pick_after(&p, logits, 3, NULL, 0), 1);
        assert_int_equal(pick_after(&p, nan_or_inf, 4, NULL, 0), 1);
    }
}

/* --------------------------------------------------------------------------------------- greedy */

static void greedy_takes_the_lowest_id_of_the_best(void **state) {
    (void)state;
    float logits[100];
    for (int i = 0; i < 100; i++)
        logits[i] = (float)(i % 7);
    ats_sampling p = greedy();
    assert_int_equal(pick_after(&p, logits, 100, NULL, 0), 6);
    p.temperature = -1;
    p.mirostat = 2;
    p.xtc_probability = 1;
    assert_int_equal(pick_after(&p, logits, 100, NULL, 0), 6);
    logits[50] = NAN;
    logits[60] = 6.5F;
    assert_int_equal(pick_after(&p, logits, 100, NULL, 0), 60);
}

static void nearly_no_temperature_is_greedy(void **state) {
    (void)state;
    const float logits[] = {1, 3, 2};
    ats_sampling p = plain();
    p.temperature = FLT_TRUE_MIN;
    struct sampler *s = open_sampler(&p, 3);
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
        ats_sampling p = plain();
        p.mirostat = 2;
        p.mirostat_tau = taus[t];
        p.top_k = 1; /* replaced, with all the steps that follow */
        struct sampler *s = open_sampler(&p, N);
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
    ats_sampling p = plain();
    p.mirostat = 2;
    p.mirostat_eta = 0;
    p.mirostat_tau = 1.51F; /* 3.02 bits: 0.123 */
    assert_draws_of(&p, probabilities, 5, (const double[]){0.5, 0.25, 0.125, 0, 0});
    p.mirostat_tau = 0; /* even the most probable surprises more: it stays alone */
    assert_draws_of(&p, probabilities, 5, (const double[]){1, 0, 0, 0, 0});
}

/* ------------------------------------------------------------------------- determinism, NaN, speed
 */

static void everything_on(ats_sampling *p) {
    p->top_k = 30;
    p->typical_p = 0.97F;
    p->repeat_penalty = 1.1F;
    p->frequency_penalty = 0.1F;
    p->dry_multiplier = 0.8F;
    p->xtc_probability = 0.5F;
    p->xtc_threshold = 0.05F;
}

static void the_same_seed_gives_the_same_tokens(void **state) {
    (void)state;
    enum { N = 500, N_TOKENS = 300 };
    static float logits[N];
    int n_same = 0;
    for (int variant = 0; variant < 3; variant++) {
        ats_sampling p;
        sampler_defaults(&p);
        if (variant == 1) everything_on(&p);
        if (variant == 2) p.mirostat = 2;
        p.seed = 99;
        struct sampler *a = open_sampler(&p, N), *b = open_sampler(&p, N);
        p.seed = 100;
        struct sampler *c = open_sampler(&p, N);
        struct rng rng;
        rng_seed(&rng, 1);
        for (int t = 0; t < N_TOKENS; t++) {
            for (int i = 0; i < N; i++)
                logits[i] = 2 * rng_normal(&rng);
            int32_t token = sampler_pick(a, logits);
            assert_int_equal(sampler_pick(b, logits), token);
            n_same += sampler_pick(c, logits) == token;
        }
        sampler_close(a);
        sampler_close(b);
        sampler_close(c);
    }
    assert_true(n_same < N_TOKENS);
}

static void default_seeds_differ(void **state) {
    (void)state;
    ats_sampling a, b;
    sampler_defaults(&a);
    sampler_defaults(&b);
    assert_true(a.seed != b.seed);
}

static void hostile_logits_give_a_token_of_the_vocabulary(void **state) {
    (void)state;
    enum { N = 70 };
    const float bad[] = {NAN, INFINITY, -INFINITY,    FLT_MAX, -FLT_MAX,
                         0,   -0.0F,    FLT_TRUE_MIN, 1e30F};
    struct rng rng;
    rng_seed(&rng, 8);
    for (int round = 0; round < 3000; round++) {
        ats_sampling p;
        sampler_defaults(&p);
        if (round % 2) everything_on(&p);
        if (round % 3 == 0) p.mirostat = 2;
        if (round % 5 == 0) p.temperature = 0;
        if (round % 7 == 0) p.top_k = 0;
        p.seed = (uint64_t)round;
        const ats_logit_bias bias = {3, rng_below(&rng, 2) ? -INFINITY : 1e6F};
        p.logit_bias = &bias;
        p.n_logit_bias = (int)rng_below(&rng, 2);
        struct sampler *s = open_sampler(&p, N);
        uint32_t n_kinds = 1 + rng_below(&rng, COUNT_OF(bad));
        for (int t = 0; t < 10; t++) {
            float logits[N];
            for (int i = 0; i < N; i++)
                logits[i] = bad[rng_below(&rng, n_kinds)];
            int32_t token = sampler_pick(s, logits);
            assert_true(token >= 0 && token < N);
            if (p.n_logit_bias && bias.bias < 0) assert_int_not_equal(token, 3);
        }
        sampler_close(s);
    }
}

static void nothing_to_pick_gives_the_first_allowed_token(void **state) {
    (void)state;
    const float logits[] = {NAN, -INFINITY, NAN};
    const ats_logit_bias bans[] = {{0, -INFINITY}, {1, -INFINITY}, {2, -INFINITY}};
    for (int i = 0; i < 3; i++)
        for (int n = 0; n <= 3; n++) {
            ats_sampling p = i == 0 ? greedy() : plain();
            if (i == 2) p.mirostat = 2;
            p.logit_bias = bans;
            p.n_logit_bias = n;
            assert_int_equal(pick_after(&p, logits, 3, NULL, 0), n % 3);
        }
}

static void infinite_logits_share_the_draws(void **state) {
    (void)state;
    const float logits[] = {INFINITY, 5, INFINITY, NAN};
    ats_sampling p = plain();
    assert_draws(&p, logits, 4, (const double[]){0.5, 0, 0.5, 0}, 1);
}

/* -------------------------------------------------------------------------------------- checking
 */

#define ASSERT_REFUSED(field, value)                                                               \
    do {                                                                                           \
        ats_sampling p_ = plain();                                                                 \
        p_.dry_multiplier = p_.xtc_probability = 0.5F;                                             \
        p_.mirostat = 2;                                                                           \
        TEST_OK(sampler_check(&p_, 10));                                                           \
        p_.field = (value);                                                                        \
        TEST_STATUS(sampler_check(&p_, 10), ATS_BAD_ARGUMENT);                                     \
        TEST_ERROR_HAS(#field);                                                                    \
    } while (0)

static void a_field_out_of_range_is_named(void **state) {
    (void)state;
    ASSERT_REFUSED(temperature, NAN);
    ASSERT_REFUSED(temperature, INFINITY);
    ASSERT_REFUSED(top_k, -2);
    ASSERT_REFUSED(top_p, 1.01F);
    ASSERT_REFUSED(top_p, -0.1F);
    ASSERT_REFUSED(top_p, NAN);
    ASSERT_REFUSED(min_p, 2);
    ASSERT_REFUSED(typical_p, -1);
    ASSERT_REFUSED(repeat_penalty, 0);
    ASSERT_REFUSED(repeat_penalty, -1);
    ASSERT_REFUSED(presence_penalty, INFINITY);
    ASSERT_REFUSED(frequency_penalty, NAN);
    ASSERT_REFUSED(penalty_last_n, -2);
    ASSERT_REFUSED(dry_multiplier, -1);
    ASSERT_REFUSED(dry_base, 0.5F);
    ASSERT_REFUSED(dry_allowed_length, 0);
    ASSERT_REFUSED(dry_last_n, -2);
    ASSERT_REFUSED(xtc_probability, 1.5F);
    ASSERT_REFUSED(xtc_threshold, -0.5F);
    ASSERT_REFUSED(mirostat, 1);
    ASSERT_REFUSED(mirostat_tau, -1);
    ASSERT_REFUSED(mirostat_eta, NAN);
    ASSERT_REFUSED(n_logit_bias, -1);
    ASSERT_REFUSED(n_logit_bias, 1); /* of none */
}

static void fields_of_steps_that_are_off_do_not_count(void **state) {
    (void)state;
    ats_sampling p = plain();
    p.dry_base = p.xtc_threshold = p.mirostat_tau = p.mirostat_eta = NAN;
    p.dry_allowed_length = p.dry_last_n = -5;
    TEST_OK(sampler_check(&p, 10));
    sampler_close(open_sampler(&p, 10));
}

static void a_bias_out_of_range_is_named(void **state) {
    (void)state;
    const ats_logit_bias bad[] = {{10, 0}, {-1, 0}, {0, NAN}, {0, INFINITY}, {0, 2e6F}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        const ats_logit_bias bias[] = {{9, -INFINITY}, bad[i]};
        ats_sampling p = plain();
        p.logit_bias = bias;
        p.n_logit_bias = 1;
        TEST_OK(sampler_check(&p, 10));
        p.n_logit_bias = 2;
        TEST_STATUS(sampler_check(&p, 10), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS("logit_bias[1]");
    }
}

static void breakers_out_of_range_are_named(void **state) {
    (void)state;
    char long_text[DRY_BREAKER_BYTES_MAX + 2];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = 0;
    const char *const bad[] = {"", NULL, long_text};
    ats_sampling p = plain();
    p.dry_multiplier = 1;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        const char *texts[] = {long_text + 1, bad[i]};
        p.dry_breakers = texts;
        p.n_dry_breakers = 1;
        TEST_OK(sampler_check(&p, 10));
        p.n_dry_breakers = 2;
        TEST_STATUS(sampler_check(&p, 10), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS("dry_breakers[1]");
        p.n_dry_breakers = INT32_MAX;
        TEST_STATUS(sampler_check(&p, 10), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS("n_dry_breakers");
    }
    p.dry_breakers = NULL;
    const int32_t id = 10;
    struct sampler *s;
    const struct dry_breaker breakers[] = {{&id, 1}, {&id, 0}};
    TEST_STATUS(sampler_open(&p, &(struct sampler_env){10, 100, breakers, 1}, &s),
                ATS_BAD_ARGUMENT);
    TEST_STATUS(sampler_open(&p, &(struct sampler_env){11, 100, breakers, 2}, &s),
                ATS_BAD_ARGUMENT);
    assert_null(s);
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
        cmocka_unit_test(penalties_change_the_logit_as_documented),
        cmocka_unit_test(penalties_see_the_last_n_tokens_only),
        cmocka_unit_test(what_is_picked_counts_as_history),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_ignored),
        cmocka_unit_test(dry_lowers_what_would_repeat),
        cmocka_unit_test(dry_stops_at_breakers),
        cmocka_unit_test(bias_penalties_and_dry_come_in_that_order),
        cmocka_unit_test(bias_is_added),
        cmocka_unit_test(a_banned_token_is_never_picked),
        cmocka_unit_test(greedy_takes_the_lowest_id_of_the_best),
        cmocka_unit_test(nearly_no_temperature_is_greedy),
        cmocka_unit_test(mirostat_holds_the_surprise_at_tau),
        cmocka_unit_test(mirostat_without_learning_cuts_at_twice_tau),
        cmocka_unit_test(the_same_seed_gives_the_same_tokens),
        cmocka_unit_test(default_seeds_differ),
        cmocka_unit_test(hostile_logits_give_a_token_of_the_vocabulary),
        cmocka_unit_test(nothing_to_pick_gives_the_first_allowed_token),
        cmocka_unit_test(infinite_logits_share_the_draws),
        cmocka_unit_test(a_field_out_of_range_is_named),
        cmocka_unit_test(fields_of_steps_that_are_off_do_not_count),
        cmocka_unit_test(a_bias_out_of_range_is_named),
        cmocka_unit_test(breakers_out_of_range_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
