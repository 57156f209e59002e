/* Load traces, and the controller alone: what it makes of times, when it asks, what it accepts. */
#include "machine.h"
#include "base/rng.h"
#include "plan/replan.h"
#include "support.h"

#include <math.h>

/* ---- traces ---- */

static ats_status read_text(struct arena *arena, const char *text, struct load **out) {
    json_t *json;
    TEST_OK(json_parse(text, strlen(text), &json));
    ats_status status = load_from_json(arena, json, "trace", out);
    json_decref(json);
    return status;
}

#define HEAD "{\"atsinfer\": \"load\", \"version\": 1, \"steps\": "

static void a_trace_says_who_is_slow_and_when(void **state) {
    (void)state;
    struct arena arena = {0};
    struct load *load;
    TEST_OK(read_text(&arena,
                      HEAD "[{\"resource\": \"cpu\", \"start\": 1, \"end\": 3, \"share\": 0.6},"
                           " {\"resource\": \"cpu\", \"start\": 2, \"end\": 4, \"share\": 0.5},"
                           " {\"resource\": \"link\", \"start\": 2, \"end\": 9, \"share\": 0.75}]}",
                      &load));
    static const struct {
        double at, cpu, link, next;
    } cases[] = {{0, 1, 1, 1}, {1, 2.5, 1, 2}, {2.5, 5, 4, 3}, {3, 2, 4, 4}, {5, 1, 4, 9}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct load_factors f = load_at(load, cases[i].at);
        assert_true(fabs(f.slow[LOAD_CPU] - cases[i].cpu) < 1e-9);
        assert_true(fabs(f.slow[LOAD_LINK] - cases[i].link) < 1e-9);
        assert_true(fabs(f.slow[LOAD_GPU] - 1) < 1e-9);
        assert_true(fabs(load_next_change(load, cases[i].at) - cases[i].next) < 1e-9);
    }
    assert_true(isinf(load_next_change(load, 9)));
    arena_free(&arena);
}

static void a_wrong_trace_is_refused_by_its_place(void **state) {
    (void)state;
    static const char step[] = "{\"resource\": \"cpu\", \"start\": 1, \"end\": 3, \"share\": 0.6}";
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"[]", "not an object"},
        {"{\"atsinfer\": \"profile\", \"version\": 1, \"steps\": []}", "no trace of load"},
        {"{\"atsinfer\": \"load\", \"version\": 2, \"steps\": []}", "version"},
        {"{\"atsinfer\": \"load\", \"version\": 1}", "steps"},
        {"{\"atsinfer\": \"load\", \"version\": 1, \"steps\": [], \"x\": 1}", "unknown key x"},
        {HEAD "[1]}", "steps[0] is not an object"},
        {HEAD "[{\"resource\": \"disk\", \"start\": 1, \"end\": 3, \"share\": 0.6}]}", "resource"},
        {HEAD "[{\"resource\": \"cpu\", \"start\": -1, \"end\": 3, \"share\": 0.6}]}",
         "steps[0].start"},
        {HEAD "[{\"resource\": \"cpu\", \"start\": 3, \"end\": 3, \"share\": 0.6}]}",
         "ends before"},
        {HEAD "[{\"resource\": \"cpu\", \"start\": 1, \"end\": 3, \"share\": 1}]}",
         "steps[0].share"},
        {HEAD "[{\"resource\": \"cpu\", \"start\": 1, \"end\": 3}]}",
         "steps[0].share is no number"},
        {HEAD "[{\"resource\": \"cpu\", \"start\": 1, \"end\": 1e300, \"share\": 0.5}]}",
         "steps[0].end"},
    };
    struct arena arena = {0};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct load *load;
        TEST_STATUS(read_text(&arena, cases[i].text, &load), ATS_BAD_FILE);
        TEST_ERROR_HAS("trace: ");
        TEST_ERROR_HAS(cases[i].error);
        assert_null(load);
    }
    char *many = malloc(2000 * sizeof step), *end = many; /* too many */
    end += sprintf(end, HEAD "[%s", step);
    for (int i = 0; i < 1024; i++)
        end += sprintf(end, ", %s", step);
    memcpy(end, "]}", 3);
    struct load *load;
    TEST_STATUS(read_text(&arena, many, &load), ATS_BAD_FILE);
    free(many);
    arena_free(&arena);
}

/* ---- the controller ---- */

/* A machine whose rounds take a second: so much of each resource, alone. */
struct machine {
    struct replan r;
    double alone_s[N_LOAD_RESOURCES], slow[N_LOAD_RESOURCES];
    double now_s, noise, probe_cost_s;
    struct rng rng;
    int n_probes;
};

static struct machine machine_begin(double cpu_s, double gpu_s, double link_s, int n_calibrate) {
    struct machine m = {.alone_s = {cpu_s, gpu_s, link_s}, .slow = {1, 1, 1}, .probe_cost_s = 1e-3};
    struct replan_options o = replan_options_default();
    o.n_calibrate = n_calibrate;
    o.probe_s = 1e9;
    rng_seed(&m.rng, 7);
    replan_begin(&m.r, &o);
    return m;
}

static double noisy(struct machine *m) {
    return 1 + m->noise * (2 * rng_unit(&m->rng) - 1);
}

static void run_rounds(struct machine *m, int n) {
    for (int i = 0; i < n; i++) {
        struct replan_observation o = {.round_s = 1};
        unsigned probes = replan_probes(&m->r);
        for (int k = 0; k < N_LOAD_RESOURCES; k++) {
            o.alone_s[k] = m->alone_s[k];
            o.busy_s[k] = m->alone_s[k] * m->slow[k] * noisy(m);
            if (!(probes >> k & 1)) continue;
            replan_probed(&m->r, (enum load_resource)k, 1e-3, 1e-3 * m->slow[k] * noisy(m),
                          m->probe_cost_s);
            m->n_probes++;
        }
        replan_observe(&m->r, ++m->now_s, &o);
    }
}

/* Rounds until a plan is due, at most `most`. */
static int rounds_until_due(struct machine *m, int most) {
    int n = 0;
    while (n < most && !replan_due(&m->r)) {
        run_rounds(m, 1);
        n++;
    }
    return n;
}

static void load_is_noticed_in_a_few_rounds(void **state) {
    (void)state;
    for (int resource = 0; resource < N_LOAD_RESOURCES; resource++) {
        struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
        m.noise = 0.04;
        assert_int_equal(rounds_until_due(&m, 200), 200); /* none: nothing is asked */
        m.slow[resource] = 2.5;
        assert_in_range(rounds_until_due(&m, 10), 3, 5);
        struct load_factors f = replan_ask(&m.r);
        for (int k = 0; k < N_LOAD_RESOURCES; k++)
            assert_true(fabs(f.slow[k] - m.slow[k]) < 0.08 * m.slow[k]);
        assert_int_equal(rounds_until_due(&m, 100), 100); /* once is enough */
        replan_switched(&m.r, &(struct replan_offer){1, 0.8, 0, false, false});
        m.slow[resource] = 1;
        assert_in_range(rounds_until_due(&m, 10), 3, 5);
    }
}

static void one_slow_round_is_no_load(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    for (int i = 0; i < 50; i++) {
        m.slow[LOAD_CPU] = 3;
        run_rounds(&m, 2);
        m.slow[LOAD_CPU] = 1;
        run_rounds(&m, 5);
        assert_false(replan_due(&m.r));
    }
}

static void small_loads_are_left_alone(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    m.slow[LOAD_GPU] = 1.13;
    assert_int_equal(rounds_until_due(&m, 300), 300);
    m.slow[LOAD_GPU] = 1.2;
    assert_true(rounds_until_due(&m, 300) < 300);
}

static void what_is_not_used_is_probed(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0, 0);
    run_rounds(&m, 1300);
    assert_in_range(m.n_probes, 4, 6); /* every 256 rounds, while it is free */
    m.slow[LOAD_LINK] = 2.5;
    assert_int_equal(rounds_until_due(&m, 300), 300); /* it is not used: that helps no plan */
    assert_true(fabs(m.r.resources[LOAD_LINK].slow - 2.5) < 0.01);
    m.n_probes = 0;
    run_rounds(&m, 320);
    assert_in_range(m.n_probes, 9, 11); /* every 32 */
    /* another resource's news: the unused one is looked at as well, and both are planned for */
    m.slow[LOAD_GPU] = 2.5;
    m.slow[LOAD_LINK] = 4;
    assert_in_range(rounds_until_due(&m, 100), 3, 10);
    struct load_factors f = replan_ask(&m.r);
    assert_true(fabs(f.slow[LOAD_LINK] - 4) < 0.05 && fabs(f.slow[LOAD_GPU] - 2.5) < 0.05);
    replan_switched(&m.r, &(struct replan_offer){1, 0.8, 0, false, false});
    m.slow[LOAD_LINK] = 1; /* it is free again, and might be used */
    assert_in_range(rounds_until_due(&m, 100), 3, 40);
    assert_true(fabs(replan_ask(&m.r).slow[LOAD_LINK] - 1) < 0.01);
}

static void probes_take_a_small_share_of_the_time(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0, 0);
    m.noise = 0.9; /* news all the time */
    m.probe_cost_s = 0.1;
    run_rounds(&m, 1);
    m.n_probes = 0;
    run_rounds(&m, 2000);
    assert_in_range(m.n_probes, 50, 105); /* half a percent, and four at first */
}

static void what_was_in_vain_is_not_asked_again(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    static const double tried[] = {2.5, 4, 1.6};
    for (size_t i = 0; i < COUNT_OF(tried); i++) {
        m.slow[LOAD_CPU] = tried[i];
        assert_in_range(rounds_until_due(&m, 20), 3, 12);
        replan_ask(&m.r);
        replan_declined(&m.r, 0.1);
        m.slow[LOAD_CPU] = 1; /* the plan in force was made for that */
        assert_int_equal(rounds_until_due(&m, 30), 30);
    }
    for (size_t i = 0; i < COUNT_OF(tried); i++) {
        m.slow[LOAD_CPU] = 1.05 * tried[i];
        assert_int_equal(rounds_until_due(&m, 30), 30);
    }
    m.slow[LOAD_CPU] = 7;
    assert_in_range(rounds_until_due(&m, 20), 3, 12);
    replan_ask(&m.r);
    replan_switched(&m.r, &(struct replan_offer){1, 0.8, 0, false, false});
    m.slow[LOAD_CPU] = 2.5; /* to another plan it is new */
    assert_in_range(rounds_until_due(&m, 20), 3, 12);
    replan_ask(&m.r);
    replan_declined(&m.r, 0.1);
    replan_forget(&m.r);
    assert_in_range(rounds_until_due(&m, 20), 1, 12);
}

static void what_was_in_vain_is_followed_by_a_rest(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    double slow = 1, rest = 0;
    for (int i = 0; i < 7; i++) {
        m.slow[LOAD_CPU] = slow *= 1.5;
        int n = rounds_until_due(&m, 500);
        assert_true(n >= rest && n <= rest + 12);
        replan_ask(&m.r);
        replan_declined(&m.r, 0.9);
        rest = 1.5 * pow(2, i); /* less and less of a core */
    }
    run_rounds(&m, 1000); /* long ago */
    for (int i = 0; i < 2; i++) {
        m.slow[LOAD_CPU] = slow *= 1.5;
        assert_in_range(rounds_until_due(&m, 20), 3, 12);
        replan_ask(&m.r);
        replan_declined(&m.r, 0.9);
    }
}

static void it_is_calm_while_nothing_changes(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 8);
    run_rounds(&m, 7);
    assert_false(replan_is_calm(&m.r)); /* what is its own pace? */
    run_rounds(&m, 2);
    assert_true(replan_is_calm(&m.r));
    m.slow[LOAD_CPU] = 2.5;
    for (int i = 0; i < 3; i++) {
        run_rounds(&m, 1);
        assert_false(replan_is_calm(&m.r));
    }
    rounds_until_due(&m, 10);
    replan_ask(&m.r);
    replan_declined(&m.r, 0.1);
    run_rounds(&m, 2);
    assert_true(replan_is_calm(&m.r));
}

static void a_profile_that_is_off_is_no_load(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0, 8);
    m.noise = 0.03;
    m.slow[LOAD_CPU] = 1.4, m.slow[LOAD_GPU] = 0.7, m.slow[LOAD_LINK] = 2;
    assert_int_equal(rounds_until_due(&m, 200), 200);
    m.slow[LOAD_CPU] *= 2.5;
    assert_in_range(rounds_until_due(&m, 10), 3, 5);
    assert_true(fabs(replan_ask(&m.r).slow[LOAD_CPU] - 2.5) < 0.2);
}

static void garbage_is_not_believed(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    const double values[] = {0.0, -1.0, (double)NAN, (double)INFINITY};
    for (size_t i = 0; i < COUNT_OF(values); i++)
        for (int k = 0; k < 5; k++) {
            struct replan_observation o = {.round_s = 1,
                                           .alone_s = {0.5, 0.3, 0.4},
                                           .busy_s = {values[i], values[i], values[i]}};
            replan_observe(&m.r, ++m.now_s, &o);
            replan_probed(&m.r, LOAD_LINK, values[i], 1, 0);
        }
    assert_false(replan_due(&m.r));
    for (int k = 0; k < N_LOAD_RESOURCES; k++)
        assert_true(fabs(m.r.resources[k].slow - 1) < 1e-9);
}

static void a_plan_has_to_pay(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    m.slow[LOAD_CPU] = 2.5;
    rounds_until_due(&m, 10);
    replan_ask(&m.r);
    assert_true(replan_accept(&m.r, &(struct replan_offer){1, 0.9, 1, false, false}));
    assert_false(replan_accept(&m.r, &(struct replan_offer){1, 0.98, 0, false, false}));
    assert_false(replan_accept(&m.r, &(struct replan_offer){1, 0.9, 21, false, false}));
    assert_false(replan_accept(&m.r, &(struct replan_offer){1, 1.02, 0, true, false}));
    assert_false(replan_accept(&m.r, &(struct replan_offer){1, (double)NAN, 0, true, false}));
    m.slow[LOAD_CPU] = 1;
    run_rounds(&m, 5);
    rounds_until_due(&m, 10);
    replan_ask(&m.r); /* the load is over */
    assert_true(replan_accept(&m.r, &(struct replan_offer){1, 1.02, 50, true, false}));
    assert_false(replan_accept(&m.r, &(struct replan_offer){1, 1.05, 0, true, false}));
}

static void load_that_comes_and_goes_is_followed_less_and_less(void **state) {
    (void)state;
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    int n_switches[2] = {0, 0};
    for (int i = 0; i < 400; i++) {
        m.slow[LOAD_CPU] = i / 8 % 2 ? 2.5 : 1;
        run_rounds(&m, 1);
        if (!replan_due(&m.r)) continue;
        replan_ask(&m.r);
        n_switches[i >= 200]++;
        replan_switched(&m.r, &(struct replan_offer){1, 0.8, 0, false, true});
    }
    assert_true(n_switches[0] >= 3 && n_switches[1] < n_switches[0]);
    assert_true(m.r.interval_scale > 2);
}

static void the_reason_says_what_has_changed(void **state) {
    (void)state;
    char text[128];
    struct machine m = machine_begin(0.5, 0.3, 0.4, 0);
    m.slow[LOAD_CPU] = 2.5, m.slow[LOAD_LINK] = 4;
    rounds_until_due(&m, 10);
    replan_ask(&m.r);
    replan_reason(&m.r, text, sizeof text);
    assert_string_equal(text, "cpu 2.50 times as slow, link 4.00 times as slow");
    replan_reason(&m.r, text, 8); /* cut, not overrun */
    assert_string_equal(text, "cpu 2.5");
    replan_switched(&m.r, &(struct replan_offer){0});
    m.slow[LOAD_CPU] = 1;
    run_rounds(&m, 8);
    replan_ask(&m.r);
    replan_reason(&m.r, text, sizeof text);
    assert_string_equal(text, "cpu as at first");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_trace_says_who_is_slow_and_when),
        cmocka_unit_test(a_wrong_trace_is_refused_by_its_place),
        cmocka_unit_test(load_is_noticed_in_a_few_rounds),
        cmocka_unit_test(one_slow_round_is_no_load),
        cmocka_unit_test(small_loads_are_left_alone),
        cmocka_unit_test(what_is_not_used_is_probed),
        cmocka_unit_test(probes_take_a_small_share_of_the_time),
        cmocka_unit_test(what_was_in_vain_is_not_asked_again),
        cmocka_unit_test(what_was_in_vain_is_followed_by_a_rest),
        cmocka_unit_test(it_is_calm_while_nothing_changes),
        cmocka_unit_test(a_profile_that_is_off_is_no_load),
        cmocka_unit_test(garbage_is_not_believed),
        cmocka_unit_test(a_plan_has_to_pay),
        cmocka_unit_test(load_that_comes_and_goes_is_followed_less_and_less),
        cmocka_unit_test(the_reason_says_what_has_changed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
