/* What the past changes, what must not change a pick, and what is refused. */
#include "sampling.h"

#include <float.h>
#include <math.h>

#include "base/rng.h"

/* ------------------------------------------------------------------------------------- penalties
 */

/* Fails unless after the history the first token loses against the second when that has a logit of
 * `value` + 0.001, and wins when it has 0.001 less: its own logit then is `value`. */
static void assert_logit_becomes(const ats_sampling *params, float logit, const int32_t *history,
                                 size_t n, double value) {
    for (int above = 0; above < 2; above++) {
        const float logits[] = {-1000, logit, (float)(value + (above ? 0.001 : -0.001)), -1000};
        assert_int_equal(sampling_pick(params, logits, 4, history, n), above ? 2 : 1);
    }
}

static void penalties_change_the_logit_as_documented(void **state) {
    (void)state;
    const int32_t twice[] = {1, 3, 1};
    ats_sampling p = sampling_greedy();
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
    int32_t history[3 * SAMPLING_N_CTX];
    for (int i = 0; i < 3 * SAMPLING_N_CTX; i++)
        history[i] = 3;
    ats_sampling p = sampling_greedy();
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
        for (int i = 0; i < 3 * SAMPLING_N_CTX; i++)
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
    ats_sampling p = sampling_greedy();
    p.presence_penalty = 5;
    const float logits[] = {3, 2, 1};
    struct sampler *s = sampling_open(&p, 3);
    assert_int_equal(sampler_pick(s, logits), 0);
    assert_int_equal(sampler_pick(s, logits), 1);
    assert_int_equal(sampler_pick(s, logits), 2);
    assert_int_equal(sampler_pick(s, logits), 0); /* all are lowered alike */
    sampler_close(s);
    assert_true(logits[0] == 3 && logits[1] == 2 && logits[2] == 1);
}

static void tokens_outside_the_vocabulary_are_ignored(void **state) {
    (void)state;
    ats_sampling p = sampling_greedy();
    p.presence_penalty = 1;
    const int32_t history[] = {-1, 4, INT32_MAX, INT32_MIN};
    assert_logit_becomes(&p, 2, history, 4, 2);
}

static void dry_lowers_what_would_repeat(void **state) {
    (void)state;
    const int32_t history[] = {2, 3, 0, 1, 0, 2, 3, 0};
    ats_sampling p = sampling_greedy();
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
    ats_sampling p = sampling_greedy();
    p.dry_multiplier = 1;
    p.dry_base = 2;
    const int32_t history[] = {2, 3, 0, 1, 2, 3, 0}, breaker = 2;
    const struct dry_breaker list[] = {{&breaker, 1}};
    struct sampler_env env = {4, SAMPLING_N_CTX, list, 1};
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
    ats_sampling p = sampling_greedy();
    p.logit_bias = &bias;
    p.n_logit_bias = 1;
    p.repeat_penalty = 2;
    p.dry_multiplier = 1;
    assert_logit_becomes(&p, 4, history, 5, (4 + 2) / 2.0 - 1);
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
        struct sampler *a = sampling_open(&p, N), *b = sampling_open(&p, N);
        p.seed = 100;
        struct sampler *c = sampling_open(&p, N);
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
        struct sampler *s = sampling_open(&p, N);
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
            ats_sampling p = i == 0 ? sampling_greedy() : sampling_plain();
            if (i == 2) p.mirostat = 2;
            p.logit_bias = bans;
            p.n_logit_bias = n;
            assert_int_equal(sampling_pick(&p, logits, 3, NULL, 0), n % 3);
        }
}

/* -------------------------------------------------------------------------------------- checking
 */

#define ASSERT_REFUSED(field, value)                                                               \
    do {                                                                                           \
        ats_sampling p_ = sampling_plain();                                                        \
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
    ats_sampling p = sampling_plain();
    p.dry_base = p.xtc_threshold = p.mirostat_tau = p.mirostat_eta = NAN;
    p.dry_allowed_length = p.dry_last_n = -5;
    TEST_OK(sampler_check(&p, 10));
    sampler_close(sampling_open(&p, 10));
}

static void a_bias_out_of_range_is_named(void **state) {
    (void)state;
    const ats_logit_bias bad[] = {{10, 0}, {-1, 0}, {0, NAN}, {0, INFINITY}, {0, 2e6F}};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        const ats_logit_bias bias[] = {{9, -INFINITY}, bad[i]};
        ats_sampling p = sampling_plain();
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
    ats_sampling p = sampling_plain();
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
        cmocka_unit_test(penalties_change_the_logit_as_documented),
        cmocka_unit_test(penalties_see_the_last_n_tokens_only),
        cmocka_unit_test(what_is_picked_counts_as_history),
        cmocka_unit_test(tokens_outside_the_vocabulary_are_ignored),
        cmocka_unit_test(dry_lowers_what_would_repeat),
        cmocka_unit_test(dry_stops_at_breakers),
        cmocka_unit_test(bias_penalties_and_dry_come_in_that_order),
        cmocka_unit_test(the_same_seed_gives_the_same_tokens),
        cmocka_unit_test(default_seeds_differ),
        cmocka_unit_test(hostile_logits_give_a_token_of_the_vocabulary),
        cmocka_unit_test(nothing_to_pick_gives_the_first_allowed_token),
        cmocka_unit_test(a_field_out_of_range_is_named),
        cmocka_unit_test(fields_of_steps_that_are_off_do_not_count),
        cmocka_unit_test(a_bias_out_of_range_is_named),
        cmocka_unit_test(breakers_out_of_range_are_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
