#include "run/candidates.h"

#include <float.h>
#include <math.h>

#include "base/arena.h"
#include "base/rng.h"

#include "support.h"

enum { N_MAX = 5000 };

/* Logits with many equal values if `coarse`, and some that must never count if `dirty`. */
static void random_logits(struct rng *rng, float *logits, int n, bool coarse, bool dirty) {
    for (int i = 0; i < n; i++) {
        logits[i] = 3 * rng_normal(rng);
        if (coarse) logits[i] = rintf(logits[i]);
        if (dirty && rng_below(rng, 10) == 0) logits[i] = rng_below(rng, 2) ? NAN : -INFINITY;
        if (dirty && rng_below(rng, 1000) == 0) logits[i] = INFINITY;
    }
}

/* The oracle of every selection: sorts everything. */
struct entry {
    double key; /* smaller is better */
    double p;
    int32_t id;
};

static int compare_entries(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    if (x->key != y->key) return x->key < y->key ? -1 : 1;
    return (x->id > y->id) - (x->id < y->id);
}

static int compare_entry_ids(const void *a, const void *b) {
    const struct entry *x = a, *y = b;
    return (x->id > y->id) - (x->id < y->id);
}

/* Fails unless c holds the ids of the first n entries, in ascending order. */
static void assert_holds(const struct candidates *c, struct entry *entries, size_t n) {
    qsort(entries, n, sizeof *entries, compare_entry_ids);
    assert_int_equal(c->n, n);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(c->items[i].id, entries[i].id);
}

static void argmax_is_the_lowest_id_of_the_largest_number(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 1);
    float logits[200];
    for (int round = 0; round < 20000; round++) {
        int n = 1 + (int)rng_below(&rng, 200), best = -1;
        random_logits(&rng, logits, n, true, true);
        for (int i = 0; i < n; i++)
            if (logits[i] > (best < 0 ? -INFINITY : logits[best])) best = i;
        assert_int_equal(logits_argmax(logits, n), best);
    }
    for (int i = 0; i < 200; i++)
        logits[i] = i % 2 ? NAN : -INFINITY;
    assert_int_equal(logits_argmax(logits, 200), -1);
}

static void gathering_the_top_k_equals_sorting(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 2);
    static float logits[N_MAX];
    static struct entry entries[N_MAX];
    struct candidates c = {0};
    const int ks[] = {1, 2, 40, 1000, 1024, 1025, 3000, N_MAX - 1, N_MAX, N_MAX + 1, INT32_MAX};
    for (int round = 0; round < 24; round++)
        for (size_t k = 0; k < COUNT_OF(ks); k++) {
            int n = round % 3 ? N_MAX : 1 + (int)rng_below(&rng, 100);
            random_logits(&rng, logits, n, round % 2, round % 4 >= 2);
            size_t n_entries = 0;
            for (int i = 0; i < n; i++) {
                float x = logits[i] > FLT_MAX ? FLT_MAX : logits[i];
                if (x > -INFINITY) entries[n_entries++] = (struct entry){-(double)x, 0, i};
            }
            qsort(entries, n_entries, sizeof *entries, compare_entries);
            candidates_gather_top(&c, logits, n, ks[k]);
            assert_holds(&c, entries, min_size(n_entries, (size_t)ks[k]));
            for (size_t i = 0; i < c.n; i++)
                assert_true(isfinite(c.items[i].logit));
        }
    candidates_free(&c);
}

static void the_top_k_of_ascending_logits_are_the_last(void **state) {
    (void)state;
    static float logits[N_MAX];
    struct candidates c = {0};
    for (int i = 0; i < N_MAX; i++)
        logits[i] = (float)i;
    for (int k = 1; k < N_MAX; k += 777) {
        candidates_gather_top(&c, logits, N_MAX, k);
        assert_int_equal(c.n, k);
        assert_int_equal(c.items[0].id, N_MAX - k);
    }
    candidates_free(&c);
}

static void weights_are_a_softmax(void **state) {
    (void)state;
    const float logits[] = {1, NAN, 3, -INFINITY, 2.5F, -100, 3};
    struct candidates c = {0};
    const float temperatures[] = {0.1F, 1, 7};
    for (size_t t = 0; t < COUNT_OF(temperatures); t++) {
        candidates_gather(&c, logits, COUNT_OF(logits));
        candidates_weigh(&c, temperatures[t]);
        assert_int_equal(c.n, 5);
        double sum = 0;
        for (size_t i = 0; i < c.n; i++)
            sum += exp((double)c.items[i].logit / (double)temperatures[t]);
        for (size_t i = 0; i < c.n; i++) {
            double want = exp((double)c.items[i].logit / (double)temperatures[t]) / sum;
            assert_true(fabs((double)c.items[i].p - want) < 1e-6);
        }
    }
    candidates_free(&c);
}

static void extreme_logits_and_temperatures_weigh_finitely(void **state) {
    (void)state;
    const float logits[] = {INFINITY, -FLT_MAX, FLT_MAX, 0, -FLT_TRUE_MIN};
    const float temperatures[] = {FLT_TRUE_MIN, 1e-30F, 1, 1e6F};
    struct candidates c = {0};
    for (size_t t = 0; t < COUNT_OF(temperatures); t++) {
        candidates_gather(&c, logits, COUNT_OF(logits));
        candidates_weigh(&c, temperatures[t]);
        assert_true(c.items[0].p == 0.5F && c.items[2].p == 0.5F && c.items[3].p == 0);
    }
    candidates_free(&c);
}

/* Candidates of random logits, their probabilities written to entries as well. */
static size_t random_candidates(struct rng *rng, struct candidates *c, struct entry *entries,
                                bool coarse) {
    static float logits[N_MAX];
    int n = rng_below(rng, 2) ? 1 + (int)rng_below(rng, 50) : N_MAX;
    random_logits(rng, logits, n, coarse, false);
    candidates_gather(c, logits, n);
    candidates_weigh(c, 1);
    for (size_t i = 0; i < c->n; i++)
        entries[i] = (struct entry){0, (double)c->items[i].p, c->items[i].id};
    return c->n;
}

/* How many of the sorted entries have mass together. 0: so close to it after one of them that
 * rounding decides. */
static size_t entries_with_mass(const struct entry *entries, size_t n, double mass) {
    double sum = 0;
    for (size_t i = 0; i < n; i++) {
        sum += entries[i].p;
        if (fabs(sum - mass) < 1e-7) return 0;
        if (sum > mass) return i + 1;
    }
    return n;
}

static void keeping_mass_equals_sorting(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 3);
    static struct entry entries[N_MAX];
    struct candidates c = {0};
    int n_checked = 0;
    for (int round = 0; round < 400; round++) {
        size_t n = random_candidates(&rng, &c, entries, round % 2);
        double mass = rng_unit(&rng);
        if (round % 5 == 0) mass = 0.95 + 0.05 * mass;
        for (size_t i = 0; i < n; i++)
            entries[i].key = -entries[i].p;
        qsort(entries, n, sizeof *entries, compare_entries);
        size_t n_kept = entries_with_mass(entries, n, (double)(float)mass);
        candidates_keep_mass(&c, (float)mass);
        if (n_kept == 0) continue;
        assert_holds(&c, entries, n_kept);
        n_checked++;
    }
    assert_true(n_checked > 350);
    candidates_free(&c);
}

static void keeping_the_typical_equals_sorting(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 4);
    static struct entry entries[N_MAX];
    struct candidates c = {0};
    int n_checked = 0;
    for (int round = 0; round < 400; round++) {
        size_t n = random_candidates(&rng, &c, entries, round % 2);
        float mass = (float)rng_unit(&rng);
        double entropy = 0;
        for (size_t i = 0; i < n; i++)
            entropy -= entries[i].p * log(entries[i].p);
        for (size_t i = 0; i < n; i++) /* the keys in the same precision: ties must be ties */
            entries[i].key = (double)fabsf(-logf((float)entries[i].p) - (float)entropy);
        qsort(entries, n, sizeof *entries, compare_entries);
        size_t n_kept = entries_with_mass(entries, n, (double)mass);
        candidates_keep_typical(&c, mass);
        if (n_kept == 0) continue;
        assert_holds(&c, entries, n_kept);
        n_checked++;
    }
    assert_true(n_checked > 350);
    candidates_free(&c);
}

/* c becomes candidates with ids 0.. and these probabilities, in units of 1/16. */
static void set_sixteenths(struct candidates *c, const int *p, int n) {
    float logits[16];
    assert_true(n <= 16);
    for (int i = 0; i < n; i++)
        logits[i] = 0;
    candidates_gather(c, logits, n);
    for (int i = 0; i < n; i++)
        c->items[i].p = (float)p[i] / 16;
}

static void mass_met_exactly_needs_no_more(void **state) {
    (void)state;
    const int p[] = {1, 8, 4, 2, 1};
    struct candidates c = {0};
    set_sixteenths(&c, p, 5);
    candidates_keep_mass(&c, 0.75F);
    assert_holds(&c, (struct entry[]){{0, 0, 1}, {0, 0, 2}}, 2);
    set_sixteenths(&c, p, 5);
    candidates_keep_mass(&c, 0);
    assert_holds(&c, (struct entry[]){{0, 0, 1}}, 1);
    set_sixteenths(&c, p, 5);
    candidates_keep_typical(&c, 0);
    assert_int_equal(c.n, 1);
    candidates_free(&c);
}

static void keeping_above_keeps_one_at_least(void **state) {
    (void)state;
    const int p[] = {4, 6, 6};
    struct candidates c = {0};
    set_sixteenths(&c, p, 3);
    candidates_keep_above(&c, 0.25F);
    assert_int_equal(c.n, 3);
    candidates_keep_above(&c, 0.26F);
    assert_holds(&c, (struct entry[]){{0, 0, 1}, {0, 0, 2}}, 2);
    candidates_keep_above(&c, 0.5F);
    assert_holds(&c, (struct entry[]){{0, 0, 1}}, 1);
    candidates_keep_above(&c, NAN);
    assert_int_equal(c.n, 1);
    candidates_free(&c);
}

static void dropping_top_choices_keeps_the_least_of_them(void **state) {
    (void)state;
    const int p[] = {2, 6, 1, 3, 3, 1};
    struct candidates c = {0};
    set_sixteenths(&c, p, 6);
    candidates_drop_top_choices(&c, 3.0F / 16); /* 1, 3, 4 qualify: equal ones go by id */
    assert_holds(&c, (struct entry[]){{0, 0, 0}, {0, 0, 2}, {0, 0, 4}, {0, 0, 5}}, 4);
    set_sixteenths(&c, p, 6);
    candidates_drop_top_choices(&c, 4.0F / 16); /* one choice only */
    assert_int_equal(c.n, 6);
    candidates_drop_top_choices(&c, 1);
    assert_int_equal(c.n, 6);
    candidates_drop_top_choices(&c, 0);
    assert_holds(&c, (struct entry[]){{0, 0, 5}}, 1);
    candidates_free(&c);
}

static void draws_follow_the_probabilities_and_never_take_a_zero(void **state) {
    (void)state;
    const int p[] = {0, 4, 0, 8, 4, 0};
    struct candidates c = {0};
    set_sixteenths(&c, p, 6);
    assert_int_equal(candidates_draw(&c, 0), 1);
    assert_int_equal(candidates_draw(&c, 0.2499), 1);
    assert_int_equal(candidates_draw(&c, 0.25), 3);
    assert_int_equal(candidates_draw(&c, 0.7499), 3);
    assert_int_equal(candidates_draw(&c, 0.75), 4);
    assert_int_equal(candidates_draw(&c, nextafter(1, 0)), 4);
    assert_int_equal(candidates_draw(&c, 1), 4);
    candidates_free(&c);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(argmax_is_the_lowest_id_of_the_largest_number),
        cmocka_unit_test(gathering_the_top_k_equals_sorting),
        cmocka_unit_test(the_top_k_of_ascending_logits_are_the_last),
        cmocka_unit_test(weights_are_a_softmax),
        cmocka_unit_test(extreme_logits_and_temperatures_weigh_finitely),
        cmocka_unit_test(keeping_mass_equals_sorting),
        cmocka_unit_test(keeping_the_typical_equals_sorting),
        cmocka_unit_test(mass_met_exactly_needs_no_more),
        cmocka_unit_test(keeping_above_keeps_one_at_least),
        cmocka_unit_test(dropping_top_choices_keeps_the_least_of_them),
        cmocka_unit_test(draws_follow_the_probabilities_and_never_take_a_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
