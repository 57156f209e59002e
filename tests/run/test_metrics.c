/* Metrics of rounds whose times are written down here. */
#include "run/metrics.h"

#include "base/arena.h"
#include "support.h"

/* A device of the caller, a GPU, and another one that runs by itself. */
enum { N_DEVICES = 3, N_SEGMENTS = 4 };

static void sums_are_those_of_the_definitions(void **state) {
    (void)state;
    struct arena arena = {0};
    struct backend cpu = {.driven = true}, gpu = {.gpu = true}, other = {.gpu = false};
    struct backend *devices[N_DEVICES] = {&cpu, &gpu, &other};
    struct program_step steps[3] = {
        {.device = 1, .step = {.kind = STEP_COPY, .n_in = 1, .begin = 10, .end = 30}},
        {.device = 1, .step = {.kind = STEP_COPY, .n_in = 1, .end = 7, .rows = true}},
        {.device = 0, .step = {.kind = STEP_COPY, .n_in = 1, .end = 100}}};
    steps[0].step.in[0].space = SPACE_EXCHANGE; /* in, 20 columns */
    steps[1].step.out.space = SPACE_EXCHANGE;   /* out, 7 of a row */
    steps[2].step.out.space = SPACE_EXCHANGE;   /* not over the link */
    struct program_wait waits[2] = {{1, 1}, {0, 1}};
    struct program_segment segments[N_SEGMENTS] = {
        {.device = 1, .ordinal = 1},
        {.device = 0, .ordinal = 1, .waits = waits, .n_waits = 1},
        {.device = 1, .ordinal = 2, .waits = waits + 1, .n_waits = 1},
        {.device = 2, .ordinal = 1}};
    struct program p = {.n_devices = N_DEVICES,
                        .steps = steps,
                        .n_steps = 3,
                        .segments = segments,
                        .n_segments = N_SEGMENTS};
    struct metrics_facts facts;
    metrics_facts(&arena, NULL, &p, devices, &facts);
    assert_int_equal(facts.n_splits, 2);
    assert_int_equal(facts.bytes_token, 20 * 4);
    assert_int_equal(facts.bytes_row, 7 * 4);

    struct segment_times s[N_SEGMENTS] = {
        {.submit_ns = 1010, .ran = {1030, 1100}, .known = true},
        /* called at 1030, waits until 1110, computes until 1300 */
        {.submit_ns = 1030, .ran = {1110, 1300}, .known = true},
        {.submit_ns = 1020, .ran = {1310, 1400}, .known = true},
        /* overlaps the caller's device by 50 */
        {.submit_ns = 1000, .ran = {1250, 1350}, .known = true}};
    struct backend_times ends[N_DEVICES] = {{1305, 1306}, {1306, 1420}, {1420, 1420}};
    struct round_times t = {.begin_ns = 1000,
                            .end_ns = 1500,
                            .segments = s,
                            .waits = ends,
                            .n_submissions = 2,
                            .thread_ns = 40,
                            .driver_ns = 15,
                            .caller_driver_ns = 5};
    const struct round round = {.n_tokens = 3, .n_rows = 2};
    ats_metrics m = {0};
    metrics_add(&p, &facts, &round, &t, &m);
    assert_int_equal(m.n_rounds, 1);
    assert_int_equal(m.n_tokens, 3);
    assert_int_equal(m.round_ns, 500);
    assert_int_equal(m.cpu_busy_ns, 240);
    assert_int_equal(m.gpu_busy_ns, 160);
    assert_int_equal(m.activation_bytes, 3 * 80 + 2 * 28);
    assert_int_equal(m.n_splits, 2);
    assert_int_equal(m.n_submissions, 2);
    assert_int_equal(m.wait_ns, 80 + 1 + 114);
    assert_int_equal(m.driver_ns, 15);
    assert_int_equal(m.host_ns, 500 - 190 - 195 - 5 + 40);
    assert_int_equal(m.n_untimed, 0);

    s[2].known = false; /* a second round, in which the GPU cannot tell */
    s[2].ran = (struct backend_times){0};
    metrics_add(&p, &facts, &round, &t, &m);
    assert_int_equal(m.n_rounds, 2);
    assert_int_equal(m.gpu_busy_ns, 160 + 70);
    assert_int_equal(m.n_untimed, 1);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sums_are_those_of_the_definitions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
