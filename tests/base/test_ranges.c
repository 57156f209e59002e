/* Free ranges: what is taken never overlaps, and what is given back is whole again. */
#include "base/ranges.h"
#include "base/rng.h"
#include "support.h"

enum { BYTES = 200, ROUNDS = 5000 };

static void nothing_is_handed_out_twice(void **state) {
    (void)state;
    struct ranges r;
    struct rng rng;
    struct range taken[BYTES];
    uint8_t owner[BYTES] = {0};
    size_t n = 0;
    rng_seed(&rng, 5);
    ranges_open(&r, BYTES);
    assert_true(ranges_all_free(&r));
    for (int i = 0; i < ROUNDS; i++) {
        size_t begin, bytes = 1 + rng_below(&rng, 30);
        if (rng_below(&rng, 2) && ranges_take(&r, bytes, &begin)) {
            for (size_t k = begin; k < begin + bytes; k++)
                assert_true(k < BYTES && owner[k]++ == 0);
            taken[n++] = (struct range){begin, bytes};
        } else if (n > 0) {
            size_t k = rng_below(&rng, (uint32_t)n);
            memset(owner + taken[k].begin, 0, taken[k].bytes);
            ranges_give(&r, taken[k].begin, taken[k].bytes);
            taken[k] = taken[--n];
        }
        size_t n_free = 0, n_owned = 0;
        for (size_t k = 0; k < r.n; k++)
            n_free += r.free[k].bytes;
        for (size_t k = 0; k < BYTES; k++)
            n_owned += owner[k];
        assert_int_equal(n_free + n_owned, BYTES);
    }
    while (n-- > 0)
        ranges_give(&r, taken[n].begin, taken[n].bytes);
    assert_true(ranges_all_free(&r));
    ranges_close(&r);
}

static void what_does_not_fit_is_refused(void **state) {
    (void)state;
    struct ranges r;
    size_t begin;
    ranges_open(&r, 10);
    assert_true(ranges_take(&r, 4, &begin) && begin == 0);
    assert_true(ranges_take(&r, 4, &begin) && begin == 4);
    assert_false(ranges_take(&r, 4, &begin));
    ranges_give(&r, 0, 4);
    assert_false(ranges_take(&r, 5, &begin)); /* in two pieces */
    ranges_give(&r, 4, 4);
    assert_true(ranges_take(&r, 10, &begin) && begin == 0 && r.n == 0);
    assert_true(ranges_take(&r, 0, &begin) && !ranges_all_free(&r));
    ranges_close(&r);
    ranges_open(&r, 0);
    assert_true(ranges_all_free(&r) && !ranges_take(&r, 1, &begin));
    ranges_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_is_handed_out_twice),
        cmocka_unit_test(what_does_not_fit_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
