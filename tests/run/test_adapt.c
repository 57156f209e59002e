/* A plan that changes by itself: load that is made up leads to another plan, its end leads back,
 * memory that others take makes shards leave, and no logit changes. Simulated devices, a profile
 * that is made up, a thread that makes plans. Memory once more on a Vulkan device. */
#include "agree.h"
#include "plan/replan.h"
#include "run/adapt_internal.h"

#include <stdio.h>

#define BOUND 1e-3

#ifdef ADAPT_ON_VULKAN
#define DEVICES "cpu,vulkan"
#define FREE    "ATSINFER_VK_FREE_KIB"
enum { N_SEQS = 64 }; /* caches that are not small beside what a round needs */
#else
#define DEVICES "sim:cpu,sim:gpu"
#define FREE    "ATSINFER_SIM_FREE_KIB"
enum { N_SEQS = 1 };
#endif

enum { N_BEFORE = 2, /* none of them is measured */ N_CTX = 200 };

static char profile[512];

/* A GPU ten times as fast as a CPU of so many flop/s. */
static void write_profile(char *path, size_t n, const char *name, double flop) {
    test_tmp_path(path, n, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"atsinfer\": \"profile\", \"version\": 1, \"name\": \"made up\","
            "\"memory\": {\"gpu_bytes\": 1073741824, \"host_bytes\": 8589934592},"
            "\"bandwidth\": {\"dram\": 1e8, \"vram\": 1e9},"
            "\"link\": {\"up_pinned\": 5e8, \"up_staged\": 5e8, \"down_pinned\": 5e8,"
            "\"down_staged\": 5e8, \"activation_up\": 4e8, \"activation_down\": 4e8,"
            "\"kappa_up\": 1e-7, \"kappa_down\": 1e-7, \"kappa_x\": 1e-7},"
            "\"interference\": {\"cpu_speed_copying\": 0.95, \"copy_speed_cpu\": 0.95},"
            "\"op\": {\"cpu\": 1e-7, \"gpu\": 1e-7},"
            "\"rates\": {\"cpu\": {\"bytes\": 1e8, \"flop\": %g, \"kv_bytes\": 1e8,"
            "\"kv_flop\": 1e9}, \"gpu\": {\"bytes\": 1e9, \"flop\": 1e10, \"kv_bytes\": 1e9,"
            "\"kv_flop\": 1e10}}}",
            flop);
    assert_int_equal(fclose(f), 0);
}

static int setup(void **state) {
    (void)state;
    write_profile(profile, sizeof profile, "profile.json", 1e9);
    return 0;
}

static ats_options options_of(const char *path, ats_dynamic dynamic) {
    ats_options o = agree_options(path);
    o.profile = profile;
    o.devices = DEVICES;
    o.n_ctx = N_CTX;
    o.n_batch = 16;
    o.dynamic = dynamic;
    return o;
}

static uint64_t count_switches(const ats_engine *e) {
    ats_stats stats;
    ats_engine_stats(e, &stats);
    return stats.n_plan_switches;
}

struct decode {
    ats_engine *e;
    ats_session *s;
    int32_t ids[N_CTX];
    int n;
    float *want; /* (N_CTX, width) of one CPU; owned */
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

/* What one CPU makes of them is what is wanted. */
static void decode_open(struct decode *d, const char *path, const ats_options *o) {
    *d = (struct decode){.e = agree_open(o)};
    d->width = (size_t)agree_vocab(d->e);
    for (int i = 0; i < N_CTX; i++)
        d->ids[i] = (i * 37 + 11) % (int32_t)d->width;
    ats_options plain = agree_options(path);
    plain.n_ctx = N_CTX;
    ats_engine *cpu = agree_open(&plain);
    d->want = agree_logits(cpu, d->ids, N_CTX, 0);
    ats_engine_close(cpu);
    TEST_OK(ats_session_open(d->e, &d->s));
}

static void decode_close(struct decode *d) {
    ats_session_close(d->s);
    ats_engine_close(d->e);
    free(d->want);
}

#ifndef ADAPT_ON_VULKAN
/* As if so many rounds, one a second, had been measured, each resource busy for a third of them. */
static double now_s = 1e6; /* later than any virtual time */
static const double seen_s = 2e-2, part_s = 6e-3;
static void observe(ats_engine *e, int n, double gpu_slow) {
    for (int i = 0; i < n; i++) {
        struct replan_observation o = {.round_s = seen_s,
                                       .alone_s = {part_s, part_s, part_s},
                                       .busy_s = {part_s, part_s * gpu_slow, part_s}};
        adapt_observe(e, now_s += 1, &o);
    }
}

/* Another session's, in rounds of as many tokens as go. */
static void prompt(struct decode *d, const char *path) {
    int32_t ids[40];
    float *want = agree_plain(path, ids, COUNT_OF(ids));
    float *got = agree_logits(d->e, ids, COUNT_OF(ids), 0);
    assert_true(test_max_abs_diff(got, want, COUNT_OF(ids) * d->width) <= BOUND);
    free(got), free(want);
}

/* What is told is what is in force, not what was chosen. */
static void expect_told(const ats_engine *e) {
    char *text = ats_engine_describe(e);
    const struct decide_way *now = &e->adapt->now;
    json_t *told;
    TEST_OK(json_parse(text, strlen(text), &told));
    ats_free(text);
    const json_t *plan = test_json_get(told, "plan"), *p = test_json_get(plan, "prediction");
    assert_non_null(strstr(json_string_value(test_json_get(plan, "how")), "planned again"));
    assert_int_equal(json_integer_value(test_json_get(p, "gpu_bytes")), now->placement->gpu_bytes);
    double round_s = now->decode.transfer.result.round_s;
    double ratio = json_number_value(test_json_get(p, "decode_s")) / round_s;
    assert_true(ratio > 1 - 1e-9 && ratio < 1 + 1e-9);
    json_decref(told);
}

static void expect_change_and_back(const char *path, const ats_options *o, bool pair) {
    struct decode d;
    decode_open(&d, path, o);
    assert_int_equal(d.e->plan->prompts != NULL, pair);
    assert_non_null(d.e->adapt);
    observe(d.e, 16, 1); /* calibrated */
    for (int i = 0; i < N_BEFORE; i++)
        step(&d);
    uint64_t before = count_switches(d.e);
    observe(d.e, 16, 30);
    adapt_wait(d.e);
    step(&d);
    assert_int_equal(count_switches(d.e), before + 1);
    const struct plan *loaded = d.e->plan;
    assert_int_equal(d.e->plan->prompts != NULL, pair);
    if (pair) prompt(&d, path);
    expect_told(d.e);
    assert_int_not_equal(d.e->adapt->now.placement->gpu_bytes,
                         d.e->planner->way.placement->gpu_bytes);
    step(&d);
    observe(d.e, 16, 1); /* it is over */
    adapt_wait(d.e);
    step(&d);
    assert_int_equal(count_switches(d.e), before + 2);
    assert_ptr_not_equal(d.e->plan, loaded);
    assert_int_equal(d.e->plan->prompts != NULL, pair);
    if (pair) prompt(&d, path);
    ats_stats stats;
    ats_engine_stats(d.e, &stats);
    assert_true(stats.n_plans_made >= 2 && stats.switch_ns > 0);
    for (int i = 0; i < 20; i++)
        step(&d);
    assert_true(d.e->adapt->alone_depth >= 0); /* some were measured */
    observe(d.e, 16, 30);
    decode_close(&d); /* also while a plan is being made */
}

static void load_leads_to_another_plan_and_back(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    ats_options o = options_of(path, ATS_DYNAMIC_ON);
    o.vram_mib = 3;
    o.one_program = true;
    expect_change_and_back(path, &o, false);
}

/* Prompts keep a program of their own. */
static void so_it_does_with_two_programs(void **state) {
    (void)state;
    char path[512], slow[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    write_profile(slow, sizeof slow, "slow.json", 2e8);
    ats_options o = options_of(path, ATS_DYNAMIC_ON);
    o.vram_mib = 3;
    o.profile = slow;
    o.n_seqs = 2;
    expect_change_and_back(path, &o, true);
}

/* The link's part of it; 0: as if it were not used by what is measured. */
static void observe_link(ats_engine *e, int n, double slow) {
    double alone_s = slow > 0 ? part_s : 0;
    for (int i = 0; i < n; i++) {
        struct replan_observation o = {.round_s = seen_s,
                                       .alone_s = {part_s, part_s, alone_s},
                                       .busy_s = {part_s, part_s, slow * alone_s}};
        adapt_observe(e, now_s += 1, &o);
    }
}

static bool streams(const ats_engine *e) {
    for (int i = 0; i < e->plan->n_parts; i++)
        if (e->plan->parts[i].streamed) return true;
    return false;
}

static void a_link_that_is_free_again_is_noticed(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    struct decode d;
    ats_options o = options_of(path, ATS_DYNAMIC_ON);
    o.vram_mib = 2;
    o.n_seqs = 2; /* so that a plan is found sooner */
    decode_open(&d, path, &o);
    assert_true(streams(d.e));
    observe_link(d.e, 16, 1);
    assert_int_equal(count_switches(d.e), 0);
    setenv("ATSINFER_SIM_LINK_SLOW", "40", 1);
    observe_link(d.e, 16, 40);
    adapt_wait(d.e);
    step(&d);
    assert_int_equal(count_switches(d.e), 1);
    assert_false(streams(d.e));
    observe_link(d.e, 16, 0);
    unsetenv("ATSINFER_SIM_LINK_SLOW");
    observe_link(d.e, 16, 0);
    adapt_wait(d.e);
    step(&d);
    assert_int_equal(count_switches(d.e), 2);
    assert_true(streams(d.e));
    step(&d);
    decode_close(&d);
}

static void a_plan_that_may_not_change_does_not(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    setenv(FREE, "100000000", 1);
    ats_options o = options_of(path, ATS_DYNAMIC_OFF);
    ats_engine *e = agree_open(&o);
    assert_null(e->adapt);
    ats_engine_close(e);
    o.dynamic = ATS_DYNAMIC_ON;
    o.gpu_layers = "1"; /* a plan by rules is the user's */
    e = agree_open(&o);
    assert_null(e->adapt);
    ats_engine_close(e);
    unsetenv(FREE);
}
#endif

/* ---- memory ---- */

static const struct executor_ledger *gpu_of(const ats_engine *e) {
    return &e->ledger.devices[1];
}

/* As if other programs had left so many bytes for this one. */
static void leave(const ats_engine *e, int64_t bytes) {
    char text[32];
    struct backend_memory m;
    e->devices[1]->fn->memory(e->devices[1], &m);
    snprintf(text, sizeof text, "%lld",
             (long long)((bytes + backend_headroom_bytes(m.total_bytes)) >> 10));
    setenv(FREE, text, 1);
}

/* So many looks, each with the plan that comes of it. */
static void look(struct decode *d, int n) {
    for (int i = 0; i < n; i++) {
        adapt_look(d->e);
        step(d);
        adapt_wait(d->e);
        step(d);
    }
}

static void memory_comes_and_goes(const char *path, const char *how) {
    struct decode d;
    ats_options o = options_of(path, ATS_DYNAMIC_MEMORY);
    o.n_seqs = N_SEQS;
    setenv(FREE, "100000000", 1);
    if (how) o.profile = how;
    decode_open(&d, path, &o);
    int64_t all = ledger_own_bytes(gpu_of(d.e)), kept = ledger_kept_bytes(gpu_of(d.e));
    int64_t some = all - kept * 9 / 16; /* a plan for it is found sooner than for half */
    assert_true(kept > 0);
    print_message("%s: %.1f MiB on the GPU, %.1f of it kept\n", how ? "layers" : "by a profile",
                  (double)all / 1048576, (double)kept / 1048576);
    step(&d);
    look(&d, 2);
    assert_int_equal(count_switches(d.e), 0);
    leave(d.e, some);
    look(&d, 1);
    assert_int_equal(count_switches(d.e), 1);
    assert_true(ledger_own_bytes(gpu_of(d.e)) <= some && ledger_kept_bytes(gpu_of(d.e)) > 0);
    setenv(FREE, "1", 1); /* nothing at all */
    look(&d, 2);
    assert_int_equal(count_switches(d.e), 2);
    assert_int_equal(ledger_kept_bytes(gpu_of(d.e)), 0);
    leave(d.e, all);
    look(&d, 7); /* it could be for a moment */
    assert_int_equal(count_switches(d.e), 2);
    look(&d, 1);
    assert_int_equal(count_switches(d.e), 3);
    assert_true(ledger_kept_bytes(gpu_of(d.e)) > kept / 4 * 3);
    leave(d.e, some);
    look(&d, 1);
    leave(d.e, all);
    look(&d, 15); /* it was for a moment: this time it takes twice as long */
    assert_int_equal(count_switches(d.e), 4);
    look(&d, 1);
    assert_int_equal(count_switches(d.e), 5);
    leave(d.e, some);
    adapt_look(d.e);
    step(&d);
    decode_close(&d);
    unsetenv(FREE);
}

static void what_others_take_leaves_the_gpu_and_returns(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    memory_comes_and_goes(path, NULL);
    memory_comes_and_goes(path, "off"); /* by layers */
}

#ifdef ADAPT_ON_VULKAN
/* Where weights go through the staging buffer, a copy of it is timed, and nothing is changed. */
static void a_link_is_probed_between_rounds(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    struct decode d;
    ats_options o = options_of(path, ATS_DYNAMIC_ON);
    double seconds = 0;
    setenv("ATSINFER_VK_DISABLE", "hostvram", 1);
    o.n_batch = 256;
    decode_open(&d, path, &o);
    step(&d);
    TEST_OK(d.e->devices[1]->fn->probe_copy(d.e->devices[1], &seconds));
    assert_true(seconds > 0);
    step(&d);
    TEST_STATUS(d.e->devices[0]->fn->probe_copy(d.e->devices[0], &seconds), ATS_UNSUPPORTED);
    decode_close(&d);
    unsetenv("ATSINFER_VK_DISABLE");
}
#endif

int main(void) {
#ifdef ADAPT_ON_VULKAN
    if (!agree_has_vulkan()) return 77;
#endif
    int n_failed = 0;
    const struct CMUnitTest tests[] = {
#ifndef ADAPT_ON_VULKAN
        cmocka_unit_test(so_it_does_with_two_programs),
        cmocka_unit_test(a_link_that_is_free_again_is_noticed),
        cmocka_unit_test(a_plan_that_may_not_change_does_not),
#endif
#ifdef ADAPT_ON_VULKAN
        cmocka_unit_test(a_link_is_probed_between_rounds),
#endif
        cmocka_unit_test(what_others_take_leaves_the_gpu_and_returns),
    };
#ifndef ADAPT_ON_VULKAN
    const struct CMUnitTest more[] = {
        /* under a sanitizer two programs do for one: a plan takes it many seconds */
        cmocka_unit_test(load_leads_to_another_plan_and_back),
    };
    if (!TEST_SANITIZED) n_failed = cmocka_run_group_tests_name("one program", more, setup, NULL);
#endif
    return n_failed + cmocka_run_group_tests(tests, setup, NULL);
}
