/* Decode under load, in virtual time: what planning again must reach, how soon, how often, and that
 * it leads back. */
#include "atsinfer.h"
#include "base/json.h"
#include "support.h"

#include <math.h>
#include <stdio.h>

/* The CPU at 40%, then the GPU and its link. */
static const char trace[] =
    "{\"atsinfer\": \"load\", \"version\": 1, \"steps\": ["
    "{\"resource\": \"cpu\", \"start\": 10, \"end\": 40, \"share\": 0.6},"
    "{\"resource\": \"gpu\", \"start\": 60, \"end\": 90, \"share\": 0.6},"
    "{\"resource\": \"link\", \"start\": 60, \"end\": 90, \"share\": 0.6}]}";
enum { N_SEGMENTS = 5, CPU_SEGMENT = 1, GPU_SEGMENT = 3 };

static ats_status simulate(const char *shape, const char *text, double threshold, json_t **out) {
    char relative[96], model[512], machine[512], load[512], *answer;
    ats_simulation s;
    ats_simulation_default(&s);
    snprintf(relative, sizeof relative, "shapes/%s.json", shape);
    test_source_path(model, sizeof model, relative);
    test_source_path(machine, sizeof machine, "machines/laptop-rtx3060-6gb.json");
    test_tmp_path(load, sizeof load, "load.json");
    FILE *file = fopen(load, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0 && fclose(file) == 0);
    s.model = model, s.machine = machine, s.load = load;
    s.n_batch = 512;
    s.replan_threshold = threshold;
    TRY(ats_simulate(&s, &answer));
    json_t *json;
    TEST_OK(json_parse(answer, strlen(answer), &json));
    ats_free(answer);
    *out = json_incref(test_json_get(json, "load"));
    json_decref(json);
    return ATS_OK;
}

static double number(const json_t *json, const char *key) {
    const json_t *v = test_json_get(json, key);
    assert_true(json_is_number(v));
    return json_number_value(v);
}

static void check_segment(const json_t *o) {
    double round_s = number(o, "static_s"), settled_s = number(o, "replanned_s");
    assert_true(settled_s <= 1.05 * number(o, "oracle_s"));
    assert_true(settled_s <= 1.02 * round_s);
    assert_true(number(o, "oracle_s") <= round_s * (1 + 1e-9));
    assert_true(number(o, "reaction_s") <= fmax(2, 10 * round_s));
    assert_true(number(o, "switches") <= 2);
    if (number(o, "end_s") - number(o, "start_s") > 25) /* switches paid for */
        assert_true(number(o, "mean_s") <= 1.02 * round_s);
}

static const char *const shapes[] = {"qwen3-14b", "qwen3-30b-a3b"};

static void planning_again_is_soon_rare_and_near_the_best(void **state) {
    (void)state;
    for (size_t i = 0; i < (TEST_SANITIZED ? 1 : COUNT_OF(shapes)); i++) {
        json_t *load;
        TEST_OK(simulate(shapes[i], trace, 0, &load));
        const json_t *segments = test_json_get(load, "segments");
        assert_int_equal(json_array_size(segments), N_SEGMENTS);
        for (size_t k = 0; k < N_SEGMENTS; k++) {
            const json_t *o = json_array_get(segments, k);
            check_segment(o);
            if (k % 2 == 0) assert_true(number(o, "plan") <= 0); /* the old plan is back */
        }
        /* more than the paper's 13% and 38% less, or near them */
        assert_true(number(json_array_get(segments, CPU_SEGMENT), "reduction") > 0.15);
        assert_true(number(json_array_get(segments, GPU_SEGMENT), "reduction") > 0.3);
        const json_t *switches = test_json_get(load, "switches");
        assert_int_equal(json_array_size(switches), 4);
        const json_t *first = json_array_get(switches, 0);
        assert_string_equal(json_string_value(test_json_get(first, "reason")),
                            "cpu 2.50 times as slow");
        assert_true(number(first, "gain") > 0.1 && number(first, "cost_s") > 0);
        assert_true(number(load, "probes") > 0); /* of the link while nothing is streamed */
        json_decref(load);
    }
}

static void what_is_not_felt_changes_nothing(void **state) {
    (void)state;
    json_t *load;
    static const char mild[] =
        "{\"atsinfer\": \"load\", \"version\": 1, \"steps\": ["
        "{\"resource\": \"cpu\", \"start\": 10, \"end\": 20, \"share\": 0.1}]}";
    TEST_OK(simulate("qwen3-14b", mild, 0, &load));
    assert_int_equal(json_array_size(test_json_get(load, "switches")), 0);
    assert_true(number(load, "solved") <= 0);
    json_decref(load);
    TEST_OK(simulate("qwen3-14b", trace, 9, &load)); /* a threshold beyond all of it */
    assert_int_equal(json_array_size(test_json_get(load, "switches")), 0);
    json_decref(load);
}

static void a_wrong_trace_is_refused(void **state) {
    (void)state;
    json_t *load;
    TEST_STATUS(simulate("qwen3-14b", "{\"atsinfer\": \"profile\"}", 0, &load), ATS_BAD_FILE);
    TEST_ERROR_HAS("no trace of load");
    TEST_STATUS(simulate("qwen3-14b", trace, -1, &load), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("replan_threshold");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(planning_again_is_soon_rare_and_near_the_best),
        cmocka_unit_test(what_is_not_felt_changes_nothing),
        cmocka_unit_test(a_wrong_trace_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
