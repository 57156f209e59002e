#include "support.h"

#include "base/clock.h"
#include "base/rng.h"

#include <math.h>

/* splitmix64's first outputs for the seed 1234567 are in Vigna's own test; they seed the state. */
static void the_seed_is_spread_by_splitmix64(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 1234567);
    assert_true(r.s[0] == 6457827717110365317u);
    assert_true(r.s[1] == 3203168211198807973u);
    assert_true(r.s[2] == 9817491932198370423u);
    assert_true(r.s[3] == 4593380528125082431u);
}

/* With the state 1, 2, 3, 4, the first outputs follow from the definition by hand. */
static void the_sequence_is_that_of_xoshiro256starstar(void **state) {
    (void)state;
    struct rng r = {{1, 2, 3, 4}};
    const uint64_t want[] = {11520, 0, 1509978240, 1215971899390074240};
    for (size_t i = 0; i < COUNT_OF(want); i++)
        assert_true(rng_next(&r) == want[i]);
}

static void same_seed_same_numbers(void **state) {
    (void)state;
    struct rng a, b, c;
    rng_seed(&a, 42);
    rng_seed(&b, 42);
    rng_seed(&c, 43);
    int n_equal = 0;
    for (int i = 0; i < 1000; i++) {
        uint64_t x = rng_next(&a);
        assert_true(x == rng_next(&b));
        n_equal += x == rng_next(&c);
    }
    assert_int_equal(n_equal, 0);
}

static void numbers_below_n_are_uniform(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 7);
    int count[6] = {0};
    for (int i = 0; i < 600000; i++) {
        uint32_t x = rng_below(&r, 6);
        assert_in_range(x, 0, 5);
        count[x]++;
    }
    for (int i = 0; i < 6; i++)
        assert_in_range(count[i], 98500, 101500); /* 5 deviations */
    for (int i = 0; i < 1000; i++)
        assert_int_equal(rng_below(&r, 1), 0);
    int n_high = 0; /* n just over 2^31: plain modulo would give the low half twice as often */
    for (int i = 0; i < 10000; i++)
        n_high += rng_below(&r, 0x80000001u) >= 0x40000000u;
    assert_in_range(n_high, 4750, 5250);
}

static void unit_and_normal_numbers_have_their_moments(void **state) {
    (void)state;
    struct rng r;
    rng_seed(&r, 9);
    double sum = 0, sum_n = 0, sum_n2 = 0;
    const int n = 200000;
    for (int i = 0; i < n; i++) {
        double u = rng_unit(&r), z = (double)rng_normal(&r);
        assert_true(u >= 0 && u < 1 && isfinite(z));
        sum += u;
        sum_n += z;
        sum_n2 += z * z;
    }
    assert_true(fabs(sum / n - 0.5) < 0.004);
    assert_true(fabs(sum_n / n) < 0.012);
    assert_true(fabs(sum_n2 / n - 1) < 0.02);
}

static void the_clock_never_goes_back_and_seeds_differ(void **state) {
    (void)state;
    uint64_t last = clock_ns();
    for (int i = 0; i < 10000; i++) {
        uint64_t now = clock_ns();
        assert_true(now >= last);
        last = now;
    }
    assert_true(clock_entropy() != clock_entropy());
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_seed_is_spread_by_splitmix64),
        cmocka_unit_test(the_sequence_is_that_of_xoshiro256starstar),
        cmocka_unit_test(same_seed_same_numbers),
        cmocka_unit_test(numbers_below_n_are_uniform),
        cmocka_unit_test(unit_and_normal_numbers_have_their_moments),
        cmocka_unit_test(the_clock_never_goes_back_and_seeds_differ),
    };
    return cmocka_run_group_tests_name("base/rng", tests, NULL, NULL);
}
