#include "run/dry.h"

#include <float.h>
#include <math.h>

#include "base/arena.h"
#include "base/rng.h"

#include "support.h"

enum { N_VOCAB = 100 };

static const struct dry_params usual = {.multiplier = 0.8F, .base = 1.75F, .allowed_length = 2};

/* The lengths that the penalties of all tokens show: -1 where there is none. */
static void lengths_of(const struct dry_params *params, const struct dry_breaker *breakers,
                       int n_breakers, const int32_t *tokens, size_t n, int *lengths) {
    struct dry *dry = dry_open(params, breakers, n_breakers, N_VOCAB);
    float logits[N_VOCAB] = {0};
    int32_t tally[N_VOCAB] = {0};
    dry_apply(dry, tokens, n, logits, tally);
    for (int i = 0; i < N_VOCAB; i++) {
        assert_int_equal(tally[i], 0);
        double penalty = -(double)logits[i] / (double)params->multiplier;
        double exponent = log(penalty) / log((double)params->base);
        lengths[i] = logits[i] == 0 ? -1 : (int)lrint(exponent) + params->allowed_length;
    }
    dry_close(dry);
}

/* Fails unless exactly the tokens of `want` (pairs of token and length) are lowered. */
#define ASSERT_LENGTHS(breakers, n_breakers, tokens, ...)                                          \
    assert_lengths((breakers), (n_breakers), (tokens), COUNT_OF(tokens),                           \
                   (const int[]){__VA_ARGS__}, COUNT_OF(((const int[]){__VA_ARGS__})))

static void assert_lengths(const struct dry_breaker *breakers, int n_breakers,
                           const int32_t *tokens, size_t n, const int *want, size_t n_want) {
    int lengths[N_VOCAB], expected[N_VOCAB];
    lengths_of(&usual, breakers, n_breakers, tokens, n, lengths);
    for (int i = 0; i < N_VOCAB; i++)
        expected[i] = -1;
    for (size_t i = 0; i + 1 < n_want; i += 2)
        expected[want[i]] = want[i + 1];
    for (int i = 0; i < N_VOCAB; i++)
        assert_int_equal(lengths[i], expected[i]);
}

static void what_followed_the_same_words_is_lowered(void **state) {
    (void)state;
    const int32_t three[] = {1, 2, 3, 7, 9, 1, 2, 3};
    ASSERT_LENGTHS(NULL, 0, three, 7, 3);
    const int32_t too_short[] = {3, 7, 9, 3};
    ASSERT_LENGTHS(NULL, 0, too_short, -1);
    const int32_t two_places[] = {1, 2, 8, 5, 1, 2, 9, 4, 5, 1, 2};
    ASSERT_LENGTHS(NULL, 0, two_places, 8, 2, 9, 3); /* 5 1 2 -> 9 is longer than 1 2 -> 8 */
    const int32_t longest_counts[] = {5, 1, 2, 8, 1, 2, 8, 5, 1, 2};
    ASSERT_LENGTHS(NULL, 0, longest_counts, 8, 3);
    const int32_t nothing[] = {1, 2, 3, 4, 5};
    ASSERT_LENGTHS(NULL, 0, nothing, -1);
}

static void repetitions_may_overlap_themselves(void **state) {
    (void)state;
    const int32_t same[] = {4, 4, 4, 4};
    ASSERT_LENGTHS(NULL, 0, same, 4, 3);
    const int32_t cycle[] = {1, 2, 1, 2, 1, 2};
    ASSERT_LENGTHS(NULL, 0, cycle, 1, 4);
}

static void the_penalty_grows_by_the_base(void **state) {
    (void)state;
    const int32_t tokens[] = {1, 2, 3, 4, 5, 7, 1, 2, 3, 4, 5};
    struct dry *dry = dry_open(&usual, NULL, 0, N_VOCAB);
    float logits[N_VOCAB] = {[7] = 10};
    int32_t tally[N_VOCAB] = {0};
    dry_apply(dry, tokens, COUNT_OF(tokens), logits, tally);
    assert_true(fabs((double)logits[7] - (10 - 0.8 * 1.75 * 1.75 * 1.75)) < 1e-5);
    dry_close(dry);
}

static void no_repetition_reaches_over_a_breaker(void **state) {
    (void)state;
    const int32_t ten = 10, pair[] = {20, 21};
    const struct dry_breaker breakers[] = {{&ten, 1}, {pair, 2}};
    const int32_t within[] = {1, 2, 3, 7, 10, 1, 2, 3};
    ASSERT_LENGTHS(breakers, 2, within, 7, 3);
    const int32_t cut[] = {1, 10, 2, 3, 7, 1, 10, 2, 3}; /* only 2 3 counts */
    ASSERT_LENGTHS(breakers, 2, cut, 7, 2);
    const int32_t cut_short[] = {1, 2, 10, 3, 7, 1, 2, 10, 3};
    ASSERT_LENGTHS(breakers, 2, cut_short, -1);
    const int32_t at_end[] = {1, 2, 10, 7, 1, 2, 10};
    ASSERT_LENGTHS(breakers, 2, at_end, -1);
    const int32_t two_tokens[] = {1, 20, 21, 2, 3, 7, 1, 20, 21, 2, 3};
    ASSERT_LENGTHS(breakers, 2, two_tokens, 7, 2);
    const int32_t half[] = {1, 20, 2, 3, 7, 1, 20, 2, 3}; /* 20 alone is no breaker */
    ASSERT_LENGTHS(breakers, 2, half, 7, 4);
    const int32_t half_at_end[] = {1, 2, 20, 7, 1, 2, 20};
    ASSERT_LENGTHS(breakers, 2, half_at_end, 7, 3);
}

static void the_longest_breaker_at_a_place_counts(void **state) {
    (void)state;
    const int32_t head = 20, pair[] = {20, 2}, other[] = {20, 5};
    const struct dry_breaker breakers[] = {{pair, 2}, {&head, 1}, {other, 2}};
    const int32_t tokens[] = {20, 2, 3, 4, 7, 20, 2, 3, 4};
    ASSERT_LENGTHS(breakers, 3, tokens, 7, 2);
    ASSERT_LENGTHS(breakers + 1, 1, tokens, 7, 3);
}

static void a_huge_penalty_stays_finite(void **state) {
    (void)state;
    const struct dry_params params = {.multiplier = 1e6F, .base = 1e6F, .allowed_length = 1};
    int32_t tokens[1000], tally[N_VOCAB] = {0};
    for (int i = 0; i < 1000; i++)
        tokens[i] = 3;
    struct dry *dry = dry_open(&params, NULL, 0, N_VOCAB);
    float logits[N_VOCAB] = {0};
    dry_apply(dry, tokens, 1000, logits, tally);
    assert_true(logits[3] == -FLT_MAX);
    dry_close(dry);
}

/* ---------------------------------------------------------------------- against the definition */

static bool stands_at(const struct dry_breaker *b, const int32_t *tokens, size_t n, size_t at) {
    for (int i = 0; i < b->n_tokens; i++)
        if (at + (size_t)i >= n || tokens[at + (size_t)i] != b->tokens[i]) return false;
    return true;
}

static void naive_lengths(int allowed, const struct dry_breaker *breakers, int n_breakers,
                          const int32_t *tokens, size_t n, int *lengths) {
    for (int i = 0; i < N_VOCAB; i++)
        lengths[i] = -1;
    size_t limit = n;
    for (size_t at = 0; at < n; at++) { /* the last place where one begins, its longest */
        size_t longest = 0;
        for (int b = 0; b < n_breakers; b++)
            if (stands_at(&breakers[b], tokens, n, at))
                longest = max_size(longest, (size_t)breakers[b].n_tokens);
        if (longest > 0) limit = n - at - longest;
    }
    for (size_t next = 1; next < n; next++) { /* tokens[next] followed tokens[0..next) */
        size_t length = 0;
        while (length < next && length < limit &&
               tokens[next - 1 - length] == tokens[n - 1 - length])
            length++;
        if ((int)length >= allowed && (int)length > lengths[tokens[next]])
            lengths[tokens[next]] = (int)length;
    }
}

static void random_histories_agree_with_the_definition(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 11);
    int n_lowered = 0, n_cut = 0;
    for (int round = 0; round < 20000; round++) {
        int32_t tokens[80], sequences[4][3];
        struct dry_breaker breakers[4];
        size_t n = rng_below(&rng, 80);
        uint32_t n_letters = 1 + rng_below(&rng, 5);
        for (size_t i = 0; i < n; i++)
            tokens[i] = (int32_t)rng_below(&rng, n_letters);
        int n_breakers = (int)rng_below(&rng, 5);
        for (int b = 0; b < n_breakers; b++) {
            for (int i = 0; i < 3; i++)
                sequences[b][i] = (int32_t)rng_below(&rng, n_letters + 2);
            breakers[b] = (struct dry_breaker){sequences[b], 1 + (int)rng_below(&rng, 3)};
        }
        /* A base of 1.05 keeps the lengths apart and the penalties small. */
        const struct dry_params params = {1, 1.05F, 1 + (int)rng_below(&rng, 4)};
        int got[N_VOCAB], want[N_VOCAB], whole[N_VOCAB];
        lengths_of(&params, breakers, n_breakers, tokens, n, got);
        naive_lengths(params.allowed_length, breakers, n_breakers, tokens, n, want);
        naive_lengths(params.allowed_length, NULL, 0, tokens, n, whole);
        for (int i = 0; i < N_VOCAB; i++) {
            assert_int_equal(got[i], want[i]);
            n_lowered += want[i] >= 0;
            n_cut += want[i] < whole[i];
        }
    }
    assert_true(n_lowered > 10000);
    assert_true(n_cut > 5000);
}

static void a_long_history_of_one_token_takes_linear_time(void **state) {
    (void)state;
    enum { N = 1000000 }; /* squared: hours */
    int32_t *tokens = xcalloc(N, sizeof *tokens), tally[N_VOCAB] = {0};
    float logits[N_VOCAB] = {0};
    struct dry *dry = dry_open(&(struct dry_params){1, 1, 2}, NULL, 0, N_VOCAB);
    dry_apply(dry, tokens, N, logits, tally);
    assert_true(logits[0] == -1);
    dry_close(dry);
    free(tokens);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_followed_the_same_words_is_lowered),
        cmocka_unit_test(repetitions_may_overlap_themselves),
        cmocka_unit_test(the_penalty_grows_by_the_base),
        cmocka_unit_test(no_repetition_reaches_over_a_breaker),
        cmocka_unit_test(the_longest_breaker_at_a_place_counts),
        cmocka_unit_test(a_huge_penalty_stays_finite),
        cmocka_unit_test(random_histories_agree_with_the_definition),
        cmocka_unit_test(a_long_history_of_one_token_takes_linear_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
