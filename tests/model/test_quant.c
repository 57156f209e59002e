/* The quantisers: how much they lose, that what they wrote they write again, and odd input. */
#include "model/dtype.h"
#include "base/rng.h"
#include "support.h"

#include <float.h>
#include <math.h>

enum { N = 256 * 64 };

static const enum dtype quantisers[] = {
    DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0,  DTYPE_Q4_1,
    DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_MXFP4,
};

static void fill_normal(float *x, int n, uint64_t seed) {
    struct rng r;
    rng_seed(&r, seed);
    for (int i = 0; i < n; i++)
        x[i] = rng_normal(&r);
}

/* Quantises and de-quantises x (n) through blocks of exactly the right size, so that the address
 * sanitiser sees a write beyond the row. */
static void round_trip(enum dtype type, const float *x, float *y, int n) {
    void *blocks = malloc((size_t)dtype_row_bytes(type, n));
    assert_non_null(blocks);
    dtype_from_float(type, x, blocks, n);
    dtype_to_float(type, blocks, y, n);
    free(blocks);
}

/* Root of the mean squared error over the root of the mean square. */
static double relative_rmse(const float *x, const float *y, int n) {
    double error = 0, power = 0;
    for (int i = 0; i < n; i++) {
        double d = (double)x[i] - (double)y[i];
        error += d * d;
        power += (double)x[i] * (double)x[i];
    }
    return sqrt(error / power);
}

static void every_listed_type_has_a_quantiser(void **state) {
    (void)state;
    int n = 0;
    for (int i = 0; i < N_DTYPES; i++)
        n += dtype_can_quantise((enum dtype)i);
    assert_int_equal(n, COUNT_OF(quantisers));
    for (size_t i = 0; i < COUNT_OF(quantisers); i++) {
        assert_true(dtype_can_quantise(quantisers[i]));
    }
}

/* For normal numbers. The bound of a type of b bits is what a uniform grid of 2^b levels over the
 * range of a block leaves, less what the search for scales gains. */
static void loss_stays_below_the_bound_of_the_type(void **state) {
    (void)state;
    static const struct {
        enum dtype type;
        double bound;
    } cases[] = {
        {DTYPE_F32, 0},      {DTYPE_F16, 0.00025}, {DTYPE_BF16, 0.002},  {DTYPE_Q8_0, 0.006},
        {DTYPE_Q4_0, 0.085}, {DTYPE_Q4_1, 0.075},  {DTYPE_Q5_0, 0.043},  {DTYPE_Q5_1, 0.037},
        {DTYPE_Q4_K, 0.072}, {DTYPE_Q6_K, 0.018},  {DTYPE_MXFP4, 0.115},
    };
    static float x[N], y[N];
    fill_normal(x, N, 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        round_trip(cases[i].type, x, y, N);
        double loss = relative_rmse(x, y, N);
        print_message("%-6s relative RMSE %.5f\n", dtype_name(cases[i].type), loss);
        if (loss > cases[i].bound) {
            fail_msg("%s loses %.5f, more than %.5f", dtype_name(cases[i].type), loss,
                     cases[i].bound);
        }
    }
}

/* The scale of the numbers does not matter within the range of the scales' type. */
static void loss_does_not_depend_on_magnitude(void **state) {
    (void)state;
    static float x[N], scaled[N], y[N];
    fill_normal(x, N, 2);
    for (size_t i = 0; i < COUNT_OF(quantisers); i++) {
        round_trip(quantisers[i], x, y, N);
        double loss = relative_rmse(x, y, N);
        for (int k = -6; k <= 6; k += 3) {
            for (int j = 0; j < N; j++)
                scaled[j] = ldexpf(x[j], k);
            round_trip(quantisers[i], scaled, y, N);
            double scaled_loss = relative_rmse(scaled, y, N);
            if (fabs(scaled_loss - loss) > 0.02 * loss + 1e-6) {
                fail_msg("%s: %.5f at 2^%d, %.5f at 1", dtype_name(quantisers[i]), scaled_loss, k,
                         loss);
            }
        }
    }
}

static void what_was_quantised_is_kept(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_F32,  DTYPE_F16,  DTYPE_BF16, DTYPE_Q8_0, DTYPE_Q4_0,
                                       DTYPE_Q4_1, DTYPE_Q5_0, DTYPE_Q5_1, DTYPE_MXFP4};
    static float x[N], y[N], z[N];
    fill_normal(x, N, 3);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        round_trip(types[i], x, y, N);
        round_trip(types[i], y, z, N);
        for (int j = 0; j < N; j++) {
            if (y[j] != z[j]) {
                fail_msg("%s: element %d was %a and became %a", dtype_name(types[i]), j,
                         (double)y[j], (double)z[j]);
            }
        }
    }
}

/* The two-level types may choose other scales for numbers that are on a grid already, but must
 * then lose next to nothing. */
static void super_blocks_lose_little_the_second_time(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_Q4_K, DTYPE_Q6_K};
    static float x[N], y[N], z[N];
    fill_normal(x, N, 4);
    for (size_t i = 0; i < COUNT_OF(types); i++) {
        round_trip(types[i], x, y, N);
        round_trip(types[i], y, z, N);
        double first = relative_rmse(x, y, N), second = relative_rmse(y, z, N);
        print_message("%s: %.5f, then %.5f\n", dtype_name(types[i]), first, second);
        if (second > 0.2 * first) fail_msg("%s loses again", dtype_name(types[i]));
    }
}

static void the_same_numbers_give_the_same_bytes(void **state) {
    (void)state;
    static float x[N];
    fill_normal(x, N, 5);
    for (size_t i = 0; i < COUNT_OF(quantisers); i++) {
        size_t n_bytes = (size_t)dtype_row_bytes(quantisers[i], N);
        uint8_t *a = malloc(n_bytes), *b = malloc(n_bytes);
        assert_non_null(a);
        assert_non_null(b);
        memset(a, 0, n_bytes);
        memset(b, 0xff, n_bytes);
        dtype_from_float(quantisers[i], x, a, N);
        /* in pieces: blocks do not depend on their neighbours */
        for (int at = 0; at < N; at += 256) {
            dtype_from_float(quantisers[i], x + at, b + dtype_row_bytes(quantisers[i], at), 256);
        }
        assert_memory_equal(a, b, n_bytes);
        free(a);
        free(b);
    }
}

/* A row that ends in an odd number of blocks, and an empty one. */
static void only_the_row_is_written(void **state) {
    (void)state;
    static float x[768], y[768];
    fill_normal(x, 768, 6);
    for (size_t i = 0; i < COUNT_OF(quantisers); i++) {
        int block = dtype_info(quantisers[i])->block_elements;
        for (int n = 0; n <= 3 * block; n += block)
            round_trip(quantisers[i], x, y, n);
    }
}

static void constants_and_zeros_come_back(void **state) {
    (void)state;
    float x[256], y[256];
    for (size_t i = 0; i < COUNT_OF(quantisers); i++) {
        memset(x, 0, sizeof x);
        round_trip(quantisers[i], x, y, 256);
        for (int j = 0; j < 256; j++)
            assert_true(y[j] == 0);
        for (int sign = -1; sign <= 1; sign += 2) {
            for (int j = 0; j < 256; j++)
                x[j] = 1.5f * (float)sign;
            round_trip(quantisers[i], x, y, 256);
            for (int j = 0; j < 256; j++) {
                if (fabsf(y[j] - x[j]) > 0.002f) {
                    fail_msg("%s: %g became %g", dtype_name(quantisers[i]), (double)x[j],
                             (double)y[j]);
                }
            }
        }
    }
}

/* One large value in a block of small ones keeps its size and its sign. */
static void outliers_keep_their_size(void **state) {
    (void)state;
    float x[256], y[256];
    for (size_t i = 0; i < COUNT_OF(quantisers); i++) {
        for (int sign = -1; sign <= 1; sign += 2) {
            fill_normal(x, 256, 7);
            for (int j = 0; j < 256; j++)
                x[j] *= 0.01f;
            x[37] = 4 * (float)sign;
            round_trip(quantisers[i], x, y, 256);
            if (fabsf(y[37] - x[37]) > 0.1f) {
                fail_msg("%s: %g became %g", dtype_name(quantisers[i]), (double)x[37],
                         (double)y[37]);
            }
        }
    }
}

/* Not finite, huge, tiny: any result, but no undefined behaviour, and finite where the input was
 * (F16 overflows to infinity as IEEE says). */
static void odd_numbers_are_survived(void **state) {
    (void)state;
    static const float odd[] = {INFINITY, -INFINITY, NAN,  FLT_MAX, -FLT_MAX,
                                FLT_MIN,  1e-44f,    -0.f, 65504,   1e30f};
    float x[256], y[256];
    for (size_t i = 0; i < COUNT_OF(quantisers); i++) {
        for (size_t k = 0; k < COUNT_OF(odd); k++) {
            for (int fill = 0; fill < 3; fill++) {
                fill_normal(x, 256, 8);
                for (int j = 0; j < 256; j++) {
                    if (fill == 1 || (fill == 0 && j == 100)) x[j] = odd[k];
                    if (fill == 2) x[j] = odd[(k + (size_t)j) % COUNT_OF(odd)];
                }
                round_trip(quantisers[i], x, y, 256);
                bool plain = quantisers[i] == DTYPE_F32 || quantisers[i] == DTYPE_F16 ||
                             quantisers[i] == DTYPE_BF16;
                if (plain || fill == 2 || !isfinite(odd[k])) continue;
                for (int j = 0; j < 256; j++) {
                    if (!isfinite(y[j])) {
                        fail_msg("%s: %g became %g", dtype_name(quantisers[i]), (double)x[j],
                                 (double)y[j]);
                    }
                }
            }
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_listed_type_has_a_quantiser),
        cmocka_unit_test(loss_stays_below_the_bound_of_the_type),
        cmocka_unit_test(loss_does_not_depend_on_magnitude),
        cmocka_unit_test(what_was_quantised_is_kept),
        cmocka_unit_test(super_blocks_lose_little_the_second_time),
        cmocka_unit_test(the_same_numbers_give_the_same_bytes),
        cmocka_unit_test(only_the_row_is_written),
        cmocka_unit_test(constants_and_zeros_come_back),
        cmocka_unit_test(outliers_keep_their_size),
        cmocka_unit_test(odd_numbers_are_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
