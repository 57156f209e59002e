/* A plan that changes by itself: load that is made up leads to another plan, its end leads back,
 * and no logit changes. Simulated devices, a profile that is made up, a thread that makes plans. */
#include "agree.h"
#include "plan/replan.h"
#include "run/engine.h"

#include <stdio.h>

#define BOUND 1e-3

enum { N_BEFORE = 2, /* none of them is measured */ N_CTX = 200 };

static char profile[512];

/* A GPU ten times as fast as the CPU, and memory for half of the model. */
static int setup(void **state) {
    (void)state;
    test_tmp_path(profile, sizeof profile, "profile.json");
    FILE *f = fopen(profile, "w");
    assert_non_null(f);
    fputs("{\"atsinfer\": \"profile\", \"version\": 1, \"name\": \"made up\","
          "\"memory\": {\"gpu_bytes\": 1073741824, \"host_bytes\": 8589934592},"
          "\"bandwidth\": {\"dram\": 1e8, \"vram\": 1e9},"
          "\"link\": {\"up_pinned\": 5e8, \"up_staged\": 5e8, \"down_pinned\": 5e8,"
          "\"down_staged\": 5e8, \"activation_up\": 4e8, \"activation_down\": 4e8,"
          "\"kappa_up\": 1e-7, \"kappa_down\": 1e-7, \"kappa_x\": 1e-7},"
          "\"interference\": {\"cpu_speed_copying\": 0.95, \"copy_speed_cpu\": 0.95},"
          "\"op\": {\"cpu\": 1e-7, \"gpu\": 1e-7},"
          "\"rates\": {\"cpu\": {\"bytes\": 1e8, \"flop\": 1e9, \"kv_bytes\": 1e8,"
          "\"kv_flop\": 1e9}, \"gpu\": {\"bytes\": 1e9, \"flop\": 1e10, \"kv_bytes\": 1e9,"
          "\"kv_flop\": 1e10}}}",
          f);
    assert_int_equal(fclose(f), 0);
    return 0;
}

static ats_engine *open_engine(const char *path, bool dynamic) {
    ats_options o = agree_options(path);
    o.profile = profile;
    o.devices = "sim:cpu,sim:gpu";
    o.n_ctx = N_CTX;
    o.n_batch = 16;
    o.vram_mib = 3;
    o.dynamic = dynamic;
    return agree_open(&o);
}

static uint64_t count_switches(const ats_engine *e) {
    ats_stats stats;
    ats_engine_stats(e, &stats);
    return stats.n_plan_switches;
}

/* As if so many rounds of a second had been measured, each resource busy for a third of it. */
static double now_s = 1e6; /* later than any virtual time */
static void observe(ats_engine *e, int n, double gpu_slow) {
    for (int i = 0; i < n; i++) {
        struct replan_observation o = {.round_s = 1e-3,
                                       .alone_s = {3e-4, 3e-4, 3e-4},
                                       .busy_s = {3e-4, 3e-4 * gpu_slow, 3e-4}};
        adapt_observe(e, now_s += 1, &o);
    }
}

struct decode {
    ats_engine *e;
    ats_session *s;
    int32_t ids[N_CTX];
    int n;
    const float *want; /* (N_CTX, width) of one CPU */
    size_t width;
};

static void step(struct decode *d) {
    ats_run run = {d->s, &d->ids[d->n], 1, ATS_WANT_LAST, NULL};
    TEST_OK(ats_eval(d->e, &run, 1));
    const float *got = ats_session_logits(d->s);
    double diff = test_max_abs_diff(got, d->want + (size_t)d->n * d->width, d->width);
    if (!(diff <= BOUND)) fail_msg("token %d differs by %g", d->n, diff);
    d->n++;
}

static void load_leads_to_another_plan_and_back(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    struct decode d = {.e = open_engine(path, true)};
    d.width = (size_t)agree_vocab(d.e);
    for (int i = 0; i < N_CTX; i++)
        d.ids[i] = (i * 37 + 11) % (int32_t)d.width;
    ats_options plain = agree_options(path);
    plain.n_ctx = N_CTX;
    ats_engine *cpu = agree_open(&plain);
    float *want = agree_logits(cpu, d.ids, N_CTX, 0);
    ats_engine_close(cpu);
    d.want = want;
    assert_non_null(d.e->adapt);
    TEST_OK(ats_session_open(d.e, &d.s));
    observe(d.e, 16, 1); /* calibrated */
    for (int i = 0; i < N_BEFORE; i++)
        step(&d);
    uint64_t before = count_switches(d.e);
    observe(d.e, 16, 30);
    adapt_wait(d.e);
    step(&d);
    assert_int_equal(count_switches(d.e), before + 1);
    const struct plan *loaded = d.e->plan;
    step(&d);
    observe(d.e, 16, 1); /* it is over */
    adapt_wait(d.e);
    step(&d);
    assert_int_equal(count_switches(d.e), before + 2);
    assert_ptr_not_equal(d.e->plan, loaded);
    ats_stats stats;
    ats_engine_stats(d.e, &stats);
    assert_true(stats.n_plans_made >= 2 && stats.switch_ns > 0);
    for (int i = 0; i < 20; i++) /* rounds that are measured */
        step(&d);
    observe(d.e, 16, 30);
    ats_session_close(d.s);
    ats_engine_close(d.e); /* also while a plan is being made */
    free(want);
}

static void a_plan_that_may_not_change_does_not(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    ats_engine *e = open_engine(path, false);
    assert_null(e->adapt);
    ats_engine_close(e);
    ats_options o = agree_options(path); /* a plan by rules is the user's */
    o.devices = "sim:cpu,sim:gpu";
    o.profile = profile;
    o.gpu_layers = "1";
    o.dynamic = true;
    e = agree_open(&o);
    assert_null(e->adapt);
    ats_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(load_leads_to_another_plan_and_back),
        cmocka_unit_test(a_plan_that_may_not_change_does_not),
    };
    return cmocka_run_group_tests(tests, setup, NULL);
}
