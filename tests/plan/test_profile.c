/* Profiles: what is written is read again, whatever is wrong is refused by its place, and times
 * between what was measured are those that scheduling.md says. */
#include "machine.h"
#include "support.h"

#include <math.h>

static json_t *measured_json(void) {
    json_t *json;
    TEST_OK(json_parse(machine_measured, strlen(machine_measured), &json));
    return json;
}

static struct profile *measured(struct arena *arena) {
    json_t *json = measured_json();
    struct profile *p;
    TEST_OK(profile_from_json(arena, json, "measured", &p));
    json_decref(json);
    return p;
}

#define assert_close(a, b)                                                                         \
    do {                                                                                           \
        double a_ = (a), b_ = (b);                                                                 \
        if (!(fabs(a_ - b_) <= 1e-9 * fabs(b_)))                                                   \
            fail_msg("line %d: %.12g instead of %.12g", __LINE__, a_, b_);                         \
    } while (0)

/* ---- JSON ---- */

static void a_profile_is_read_as_it_was_written(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct profile *p = measured(&arena);
    struct profile *again;
    json_t *json = profile_to_json(p);
    TEST_OK(profile_from_json(&arena, json, "again", &again));
    json_t *json_again = profile_to_json(again);
    assert_true(json_equal(json, json_again));
    assert_string_equal(again->name, "laptop");
    assert_int_equal(again->n_items, 2);
    assert_true(again->rates[SIDE_CPU].bytes[DTYPE_Q6_K] == 35e9);
    assert_true(again->rates[SIDE_CPU].bytes[DTYPE_Q4_K] == 40e9);
    assert_true(again->rates[SIDE_CPU].flop[DTYPE_Q6_K] == 4e11);
    assert_true(again->items[0].sides[SIDE_CPU].work_s[2][3] == 16e-3);
    assert_true(profile_key_equal(&p->items[1].key, &again->items[1].key));
    json_decref(json), json_decref(json_again);
    arena_free(&arena);
}

/* Follows `a.b[2].c`; the last step is set to a value (stolen), or removed when it is NULL. */
static void put(json_t *json, const char *path, json_t *value) {
    for (;;) {
        char name[40];
        size_t n = strcspn(path, ".[]");
        bool index = *path == '[';
        if (index) n = strcspn(++path, "]");
        snprintf(name, sizeof name, "%.*s", (int)n, path);
        const char *next = path + n + (index ? 1 : 0);
        if (*next == '.') next++;
        if (*next == 0) {
            if (index)
                json_array_set_new(json, (size_t)atoi(name), value);
            else if (value)
                json_object_set_new(json, name, value);
            else
                json_object_del(json, name);
            return;
        }
        json = index ? json_array_get(json, (size_t)atoi(name)) : json_object_get(json, name);
        assert_non_null(json);
        path = next;
    }
}

static const struct wrong {
    const char *path, *value; /* NULL: removed */
    const char *says;         /* NULL: the path itself */
} wrongs[] = {
    {"atsinfer", "\"plan\"", "not a profile"},
    {"version", "2", NULL},
    {"memory", NULL, NULL},
    {"memory", "3", NULL},
    {"memory.gpu_bytes", "0", NULL},
    {"memory.gpu_bytes", "-5", NULL},
    {"memory.gpu_bytes", "\"6\"", NULL},
    {"memory.gpu_bytes", "1e30", NULL},
    {"memory.usable_bytes", "7e9", NULL},
    {"memory.shared", "1", NULL},
    {"memory.gpu_byte", "5", NULL},
    {"bandwidth.dram", NULL, NULL},
    {"bandwidth.vram", "0", NULL},
    {"bandwidth.dram", "5e-324", NULL},
    {"link.up_pinned", "0", NULL},
    {"link.kappa_x", "0.0", NULL},
    {"link.kappa_x", "-1e-6", NULL},
    {"link.cut", "-1e-6", NULL},
    {"link.cut", "\"0\"", NULL},
    {"link.kappa_up", "1e9", NULL},
    {"link.kappa_down", "true", NULL},
    {"interference.copy_speed_cpu", "1.5", NULL},
    {"interference.cpu_speed_copying", "0", NULL},
    {"interference.copy_speed_cpu", "1e-300", NULL},
    {"interference.gpu_speed_cpu", "2", NULL},
    {"op.gpu", NULL, NULL},
    {"op.cpu", "0", NULL},
    {"rates.cpu", NULL, NULL},
    {"rates.gpu.flop", "0", NULL},
    {"rates.gpu.bytes", "null", NULL},
    {"rates.cpu.kv_flop", "0.9", NULL},
    {"rates.cpu.types", "[]", NULL},
    {"rates.cpu.types.Q6_K.bytes", "0", NULL},
    {"rates.cpu.types.Q6_K.bits", "1", NULL},
    {"rates.cpu.types.Q9", "{}", NULL},
    {"rates.cpu.types.I32", "{}", NULL},
    {"remark", "1", NULL},
    {"tokens", "[2, 3, 4, 5]", NULL},
    {"tokens", "[1, 3, 3, 5]", NULL},
    {"tokens", "[1, 1.5, 3, 5]", NULL},
    {"depths", "[0, 0.5]", NULL},
    {"tokens", "[]", NULL},
    {"shares", "[0, 0.5, 1]", NULL},
    {"shares", "[0.25, 0.5, 0.75]", NULL},
    {"depths", "[1, 2]", NULL},
    {"items", "{}", NULL},
    {"items[1]", "7", NULL},
    {"items[0].op", NULL, NULL},
    {"items[0].types[0]", "\"Q4\"", "items[0].types"},
    {"items[0].math", "\"f64\"", NULL},
    {"items[0].axis", "\"rows \"", NULL},
    {"items[0].dims", "[1, 2, 3, 4, 5, 6, 7]", NULL},
    {"items[0].dims[1]", "2.5", "items[0].dims"},
    {"items[0].dims[1]", "-1", "items[0].dims"},
    {"items[0].cpu", NULL, NULL},
    {"items[0].cpu.work", NULL, NULL},
    {"items[0].gpu.work", "[[1, 1, 1, 1]]", NULL},
    {"items[0].gpu.work[1]", "[1, 1, 1]", NULL},
    {"items[0].gpu.work[1]", "[1, 1, 1, 1, 1]", NULL},
    {"items[0].gpu.work[1][2]", "0", NULL},
    {"items[0].gpu.work[1][2]", "-1", NULL},
    {"items[0].gpu.work[1][2]", "1e300", NULL},
    {"items[0].gpu.work[1][2]", "\"x\"", "items[0].gpu.work[1]"},
    {"items[1].cpu.kv", NULL, "kv"},
    {"items[1].cpu.kv[1][0]", "-1", NULL},
};

static void what_is_wrong_is_refused_by_its_place(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(wrongs); i++) {
        struct arena arena = {0};
        struct profile *p;
        json_t *json = measured_json(), *value = NULL;
        if (wrongs[i].value) TEST_OK(json_parse(wrongs[i].value, strlen(wrongs[i].value), &value));
        put(json, wrongs[i].path, value);
        if (profile_from_json(&arena, json, "here", &p) != ATS_BAD_FILE)
            fail_msg("%s = %s was not refused", wrongs[i].path,
                     wrongs[i].value ? wrongs[i].value : "nothing");
        TEST_ERROR_HAS("here");
        TEST_ERROR_HAS(wrongs[i].says ? wrongs[i].says : wrongs[i].path);
        assert_null(p);
        json_decref(json);
        arena_free(&arena);
    }
}

static void a_profile_needs_rates_or_items(void **state) {
    (void)state;
    struct arena arena = {0};
    struct profile *p;
    json_t *json = measured_json();
    json_object_del(json, "rates");
    TEST_OK(profile_from_json(&arena, json, "items only", &p));
    assert_false(p->has_rates);
    assert_true(profile_knows(p, &p->items[0].key));
    struct profile_key other = p->items[0].key;
    other.dims[0]++;
    assert_false(profile_knows(p, &other));
    json_object_del(json, "items");
    TEST_STATUS(profile_from_json(&arena, json, "nothing", &p), ATS_BAD_FILE);
    json_decref(json);
    arena_free(&arena);
}

static void a_measurement_that_is_no_time_is_refused(void **state) {
    (void)state;
    const double wrong[] = {0, -1, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        struct arena arena = {0};
        struct profile *p = measured(&arena);
        p->items[1].sides[SIDE_GPU].work_s[2][1] = wrong[i];
        TEST_STATUS(profile_finish(p, "fresh"), ATS_BAD_FILE);
        TEST_ERROR_HAS("items[1].gpu.work[2][1]");
        arena_free(&arena);
    }
}

/* ---- times ---- */

static double time_at(const struct profile *p, int item, enum side side, double T, double depth,
                      double share) {
    return profile_time(p, &p->items[item], &p->items[item].key, side, T, depth, share);
}

static void times_between_tokens_are_interpolated(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct profile *p = measured(&arena);
    assert_close(time_at(p, 0, SIDE_CPU, 1, 0, 1), 4e-4);
    assert_close(time_at(p, 0, SIDE_CPU, 2, 0, 1), 4.4e-4);
    assert_close(time_at(p, 0, SIDE_CPU, 1.5, 0, 1), 4.2e-4);
    assert_close(time_at(p, 0, SIDE_CPU, 512, 0, 1), 16e-3);
    /* log-log: half way between 128 and 512 is 256, half way between 4 and 16 ms is 8 */
    assert_close(time_at(p, 0, SIDE_CPU, 256, 0, 1), 8e-3);
    assert_close(time_at(p, 0, SIDE_CPU, 16, 0, 1), sqrt(4.4e-4 * 4e-3));
    assert_close(time_at(p, 0, SIDE_CPU, 1024, 0, 1), 32e-3);
    assert_true(time_at(p, 0, SIDE_CPU, 0, 0, 1) == 0);
    arena_free(&arena);
}

static void depth_adds_in_proportion(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct profile *p = measured(&arena);
    assert_close(time_at(p, 1, SIDE_CPU, 1, 0, 1), 2e-5);
    assert_close(time_at(p, 1, SIDE_CPU, 1, 500, 1), 2e-5 + 0.5e-4);
    assert_close(time_at(p, 1, SIDE_CPU, 1, 3000, 1), 2e-5 + 3e-4);
    assert_close(time_at(p, 1, SIDE_CPU, 2, 500, 0.5), 1e-5 + 0.5e-4);
    assert_close(time_at(p, 0, SIDE_CPU, 1, 3000, 1), 4e-4); /* no cache, no depth */
    arena_free(&arena);
}

static void shares_are_monotone(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct profile *p = measured(&arena);
    assert_close(time_at(p, 0, SIDE_CPU, 1, 0, 0.5), 2.2e-4);
    assert_close(time_at(p, 0, SIDE_CPU, 1, 0, 0.75), 3.1e-4);
    assert_true(time_at(p, 0, SIDE_CPU, 1, 0, 0) == 0);
    /* 3e-5 at a quarter and 2e-5 at half: their mean at both */
    assert_close(time_at(p, 0, SIDE_GPU, 1, 0, 0.25), 2.5e-5);
    assert_close(time_at(p, 0, SIDE_GPU, 1, 0, 0.5), 2.5e-5);
    /* more than all (experts): the slope from half to all */
    assert_close(time_at(p, 0, SIDE_CPU, 1, 0, 2), 4e-4 + 3.6e-4);
    for (int side = 0; side < N_SIDES; side++)
        for (int T = 1; T <= 1024; T *= 2) {
            double before = 0;
            for (double share = 0.01; share < 3; share += 0.01) {
                double t = time_at(p, 0, (enum side)side, T, 0, share);
                assert_true(t >= before && t > 0);
                before = t;
            }
        }
    arena_free(&arena);
}

static void rates_give_times(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct profile *p = machine_laptop(&arena);
    struct profile_key matmul = {
        .op = "matmul", .types = {DTYPE_Q6_K}, .n_types = 1, .dims = {1024, 2048}, .n_dims = 2};
    assert_true(profile_knows(p, &matmul));
    assert_null(profile_find(p, &matmul));
    double elements = 1024 * 2048, weight = elements / 256 * 210;
    assert_close(profile_time(p, NULL, &matmul, SIDE_CPU, 1, 0, 1), 2e-6 + weight / 35e9);
    assert_close(profile_time(p, NULL, &matmul, SIDE_CPU, 1, 0, 0.25), 2e-6 + weight / 4 / 35e9);
    assert_close(profile_time(p, NULL, &matmul, SIDE_GPU, 1, 0, 1), 3e-6 + weight / 300e9);
    assert_close(profile_time(p, NULL, &matmul, SIDE_CPU, 512, 0, 1),
                 2e-6 + 1024 * elements / 4e11);

    struct profile_key attention = {.op = "attention",
                                    .types = {DTYPE_F16, DTYPE_F16},
                                    .n_types = 2,
                                    .dims = {32, 8, 128},
                                    .n_dims = 3};
    double kv = 8 * 128 * 2 * 2;
    assert_close(profile_time(p, NULL, &attention, SIDE_CPU, 1, 1023, 1), 2e-6 + 1024 * kv / 30e9);
    assert_close(profile_time(p, NULL, &attention, SIDE_GPU, 100, 0, 1),
                 3e-6 + 4 * 100 * 50.5 * 32 * 128 / 5e12);

    struct profile_key experts = {.op = "experts",
                                  .types = {DTYPE_Q4_K, DTYPE_Q4_K, DTYPE_Q6_K},
                                  .n_types = 3,
                                  .dims = {64, 4, 256, 512},
                                  .n_dims = 4};
    double matrix = 256 * 512, one = matrix / 256 * (2 * 144 / 40e9 + 210 / 35e9);
    assert_close(profile_time(p, NULL, &experts, SIDE_CPU, 1, 0, 1), 2e-6 + 4 * one);
    assert_close(profile_time(p, NULL, &experts, SIDE_CPU, 1, 0, 0.25), 2e-6 + one);
    assert_close(profile_time(p, NULL, &experts, SIDE_CPU, 1, 0, 10), 2e-6 + 40 * one);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_is_read_as_it_was_written),
        cmocka_unit_test(what_is_wrong_is_refused_by_its_place),
        cmocka_unit_test(a_profile_needs_rates_or_items),
        cmocka_unit_test(a_measurement_that_is_no_time_is_refused),
        cmocka_unit_test(times_between_tokens_are_interpolated),
        cmocka_unit_test(depth_adds_in_proportion),
        cmocka_unit_test(shares_are_monotone),
        cmocka_unit_test(rates_give_times),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
