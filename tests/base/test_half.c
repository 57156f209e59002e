#include "support.h"

#include "base/half.h"
#include "base/rng.h"

#include <math.h>

/* The value of a half by its definition, in double. */
static double half_value(uint16_t h) {
    int exponent = h >> 10 & 31, mantissa = h & 0x3ff;
    double v = exponent == 0 ? ldexp(mantissa, -24) : ldexp(mantissa + 1024, exponent - 25);
    if (exponent == 31) v = mantissa ? (double)NAN : (double)INFINITY;
    return h & 0x8000 ? -v : v;
}

static void every_half_converts_to_its_value(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        float got = half_to_float((uint16_t)h);
        double want = half_value((uint16_t)h);
        assert_int_equal(float_bits(got) >> 31, h >> 15);
        if (isnan(want)) {
            assert_true(isnan(got));
            assert_int_equal(float_bits(got) >> 13 & 0x3ff, h & 0x3ff);
        } else {
            assert_true((double)got == want);
        }
    }
}

static void every_half_survives_the_way_there_and_back(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        bool nan = (h & 0x7fff) > 0x7c00;
        assert_int_equal(half_from_float(half_to_float((uint16_t)h)), nan ? h | 0x200 : h);
    }
}

/* Nearest half to a finite f by trying the neighbours; ties to the even one. */
static uint16_t nearest_half(float f) {
    uint16_t sign = (uint16_t)(float_bits(f) >> 16 & 0x8000);
    double v = fabs((double)f);
    if (v >= 65520.0) return sign | 0x7c00;
    uint16_t lo = 0, hi = 0x7bff; /* largest half <= v */
    while (lo < hi) {
        uint16_t mid = (uint16_t)((lo + hi + 1) / 2);
        if (half_value(mid) <= v)
            lo = mid;
        else
            hi = (uint16_t)(mid - 1);
    }
    double below = v - half_value(lo);
    double above = (lo == 0x7bff ? 65536.0 : half_value((uint16_t)(lo + 1))) - v;
    if (above < below || (above == below && (lo & 1))) lo++;
    return sign | lo;
}

static void floats_round_to_the_nearest_half_ties_to_even(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 0x7c00; h++) { /* each border between two halves, and beside it */
        double next = h == 0x7bff ? 65536.0 : half_value((uint16_t)(h + 1));
        float middle = (float)((half_value((uint16_t)h) + next) / 2);
        float probes[] = {middle, nextafterf(middle, 0), nextafterf(middle, INFINITY), -middle};
        for (size_t i = 0; i < COUNT_OF(probes); i++)
            assert_int_equal(half_from_float(probes[i]), nearest_half(probes[i]));
    }
    struct rng r;
    rng_seed(&r, 1);
    for (int i = 0; i < 300000; i++) {
        float f = float_from_bits((uint32_t)rng_next(&r));
        if (isfinite(f)) assert_int_equal(half_from_float(f), nearest_half(f));
    }
    assert_int_equal(half_from_float(INFINITY), 0x7c00);
    assert_int_equal(half_from_float(-INFINITY), 0xfc00);
    assert_true(half_from_float(NAN) & 0x200);
}

static void bfloat16_rounds_ties_to_even_and_keeps_nan(void **state) {
    (void)state;
    for (uint32_t h = 0; h < 65536; h++) {
        bool nan = (h & 0x7fff) > 0x7f80;
        assert_int_equal(bf16_from_float(bf16_to_float((uint16_t)h)), nan ? h | 64 : h);
        if ((h & 0x7fff) >= 0x7f80) continue;
        assert_int_equal(bf16_from_float(float_from_bits(h << 16 | 0x7fff)), h);
        assert_int_equal(bf16_from_float(float_from_bits(h << 16 | 0x8000)), h + (h & 1));
        assert_int_equal(bf16_from_float(float_from_bits(h << 16 | 0x8001)), h + 1);
    }
    assert_int_equal(bf16_from_float(float_from_bits(0x7f800001)), 0x7fc0);
    assert_int_equal(bf16_from_float(float_from_bits(0xffffffff)), 0xffff);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_half_converts_to_its_value),
        cmocka_unit_test(every_half_survives_the_way_there_and_back),
        cmocka_unit_test(floats_round_to_the_nearest_half_ties_to_even),
        cmocka_unit_test(bfloat16_rounds_ties_to_even_and_keeps_nan),
    };
    return cmocka_run_group_tests_name("base/half", tests, NULL, NULL);
}
