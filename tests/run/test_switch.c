/*
 * Another plan in the middle of everything: logits are those of one CPU that never changed,
 * whatever plans follow each other, and also when a switch finds no memory. On CPUs and simulated
 * devices; built once more for a Vulkan device beside the CPU.
 */
#include "agree.h"
#include "run/engine.h"
#include "run/switch.h"

#define BOUND 1e-3

enum { N_PROMPT = 75, N_SHORT = 9, N_DECODE = 6, N_RESULTS = 2 + 2 * N_DECODE };

#ifdef SWITCH_ON_VULKAN
static const char *const device_lists[] = {"cpu,vulkan", "vulkan,cpu"};
static const char *const models[] = {"qwen3next/qwen3next-f16.gguf", "gptoss/gptoss-mxfp4.gguf"};
enum { N_SEEDS = 1 };
#else
static const char *const device_lists[] = {"sim:chaos,sim:chaos", "cpu,cpu",
                                           "sim:chaos,sim:chaos,sim:chaos"};
/* Windows that give pages back, routed experts, repacked types, recurrent layers. */
static const char *const models[] = {"llama/llama-f16.gguf",         "gemma3/gemma3-f16.gguf",
                                     "gptoss/gptoss-f16.gguf",       "quants/Q4_K_M.gguf",
                                     "qwen3next/qwen3next-f16.gguf", "qwen35/qwen35-f16.gguf"};
enum { N_SEEDS = TEST_SANITIZED ? 1 : 2 };
#endif

static plan_devices streaming_of(const ats_engine *e) {
    plan_devices bits = 0;
    for (int d = 0; d < e->n_devices; d++)
        bits |= (plan_devices)e->devices[d]->streams << d;
    return bits;
}

static ats_status switch_to_random(ats_engine *e, uint64_t seed, struct switch_report *report) {
    struct arena arena = {0};
    struct rng rng;
    rng_seed(&rng, seed);
    struct plan *plan =
        plan_random(&arena, e->model->graph, e->n_devices, 1, streaming_of(e), &rng);
    choose_random_prompts(e, &arena, plan, &rng);
    TEST_OK(choose_check_plan(e, plan));
    ats_status status = engine_switch(e, &arena, plan, report);
    arena_free(&arena);
    return status;
}

/* What stands between rounds: a switch, with what it may do to memory. */
typedef void between_fn(ats_engine *e, uint64_t step);

static void do_nothing(ats_engine *e, uint64_t step) {
    (void)e, (void)step;
}

static void change_plan(ats_engine *e, uint64_t step) {
    struct switch_report report;
    TEST_OK(switch_to_random(e, step, &report));
    assert_true(report.kept_bytes + report.loaded_bytes > 0);
}

static ats_engine *open_engine(const char *path, const char *devices, uint64_t seed) {
    ats_options options = agree_options(path);
    options.devices = devices;
    options.plan_seed = strchr(devices, ',') ? seed : 0;
    options.n_threads = options.n_threads_batch = 1;
    options.n_seqs = 3;
    options.n_batch = 32;
    return agree_open(&options);
}

/* Two sessions that evaluate together and one that waits with its tokens; `between` every two
 * calls. out: (N_RESULTS, n_vocab). */
static void run(ats_engine *e, uint64_t seed, between_fn *between, float *out) {
    size_t width = (size_t)agree_vocab(e);
    ats_session *s[3];
    int32_t ids[N_PROMPT];
    uint64_t step = 1000 * seed;
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = (i * 37 + 11) % (int32_t)width;
    for (int i = 0; i < 3; i++)
        TEST_OK(ats_session_open(e, &s[i]));
    ats_run idle = {s[2], ids + 5, 7, ATS_WANT_NONE, NULL};
    TEST_OK(ats_eval(e, &idle, 1));
    between(e, ++step);
    ats_run prompts[2] = {{s[0], ids, N_PROMPT, ATS_WANT_LAST, out},
                          {s[1], ids + 20, N_SHORT, ATS_WANT_NONE, NULL}};
    TEST_OK(ats_eval(e, prompts, 2));
    ats_session_snapshot(s[0]);
    for (int i = 0; i < N_DECODE; i++) {
        float *row = out + (size_t)(1 + 2 * i) * width;
        between(e, ++step);
        ats_run both[2] = {{s[0], &ids[i], 1, ATS_WANT_LAST, row},
                           {s[1], &ids[i + 30], 1, ATS_WANT_LAST, row + width}};
        TEST_OK(ats_eval(e, both, 2));
    }
    between(e, ++step);
    TEST_OK(ats_session_truncate(s[0], N_PROMPT)); /* to the snapshot, where there is state */
    ats_run last[2] = {{s[0], ids + 3, 2, ATS_WANT_NONE, NULL},
                       {s[2], ids + 9, 1, ATS_WANT_LAST, out + (N_RESULTS - 1) * width}};
    TEST_OK(ats_eval(e, last, 2));
    for (int i = 0; i < 3; i++)
        ats_session_close(s[i]);
}

/* By one CPU that never changes. */
static float *plain(const char *path, size_t *n) {
    ats_engine *e = open_engine(path, "cpu", 0);
    *n = N_RESULTS * (size_t)agree_vocab(e);
    float *out = calloc(*n, sizeof *out);
    run(e, 0, do_nothing, out);
    ats_engine_close(e);
    return out;
}

static void compare(const char *path, const char *devices, uint64_t seed, between_fn *between,
                    const float *want, size_t n) {
    float *got = calloc(n, sizeof *got);
    ats_engine *e = open_engine(path, devices, seed);
    run(e, seed, between, got);
    ats_engine_close(e);
    double d = test_max_abs_diff(got, want, n);
    if (!(d <= BOUND))
        fail_msg("%s on %s, seed %d: a logit differs by %g", path, devices, (int)seed, d);
    free(got);
}

static bool model_path(char *path, size_t n, const char *model) {
    char name[128];
    snprintf(name, sizeof name, "models/%s", model);
    return test_shared_path(path, n, name);
}

static void a_switch_changes_no_logit(void **state) {
    (void)state;
    char path[512];
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        size_t n;
        if (!model_path(path, sizeof path, models[m])) skip();
        float *want = plain(path, &n);
        for (size_t d = 0; d < COUNT_OF(device_lists); d++)
            for (uint64_t seed = 1; seed <= N_SEEDS; seed++)
                compare(path, device_lists[d], seed, change_plan, want, n);
        free(want);
    }
}

/* ---- what stays ---- */

static struct plan *plan_from_layer(struct arena *arena, const ats_engine *e, int layer) {
    const struct graph *g = e->model->graph;
    int *home = ARENA_ARRAY(arena, int, g->n_ops);
    for (int i = 0; i < g->n_ops; i++)
        home[i] = g->ops[i].layer >= layer;
    return plan_of_homes(arena, g, e->n_devices, home);
}

static void only_what_moves_is_loaded(void **state) {
    (void)state;
    char path[512];
    if (!model_path(path, sizeof path, models[0])) skip();
    ats_engine *e = open_engine(path, device_lists[0], 1);
    struct switch_report report, again;
    int n_layers = e->model->hp.n_layers;
    assert_true(n_layers >= 2);
    for (int layer = 0; layer <= n_layers; layer++) {
        struct arena arena = {0}, same = {0};
        TEST_OK(engine_switch(e, &arena, plan_from_layer(&arena, e, layer), &report));
        if (layer > 0) { /* one layer has moved */
            assert_true(report.loaded_bytes > 0);
            assert_true(report.loaded_bytes * (n_layers - 1) < report.kept_bytes * 2);
        }
        TEST_OK(engine_switch(e, &same, plan_from_layer(&same, e, layer), &again));
        assert_int_equal(again.loaded_bytes, 0);
        assert_int_equal(again.carried_bytes, 0);
    }
    ats_engine_close(e);
}

/* What the first device computes in decode is streamed to the second in prompts. */
static struct plan *plan_with_prompts(struct arena *arena, const ats_engine *e, int n_slots) {
    struct plan *decode = plan_from_layer(arena, e, 1), *prompts = plan_from_layer(arena, e, 1);
    for (int i = 0; i < prompts->n_parts; i++) {
        struct plan_part *p = &prompts->parts[i];
        if (p->device == 0 && op_can_stream(&e->model->graph->ops[p->op]))
            p->device = 1, p->streamed = true;
    }
    prompts->n_slots[1] = n_slots;
    decode->prompts = prompts;
    decode->prompts_from = 2;
    TEST_OK(choose_check_plan(e, decode));
    return decode;
}

static void homes_of_streamed_weights_stay(void **state) {
    (void)state;
    char path[512];
    if (!model_path(path, sizeof path, models[0])) skip();
    ats_engine *e = open_engine(path, device_lists[0], 1);
    struct switch_report report;
    struct arena arena[3] = {{0}};
    TEST_OK(engine_switch(e, &arena[0], plan_with_prompts(&arena[0], e, 1), &report));
    TEST_OK(engine_switch(e, &arena[1], plan_with_prompts(&arena[1], e, 2), &report));
    assert_int_equal(report.loaded_bytes, 0);
    assert_true(report.kept_bytes > 0);
    TEST_OK(engine_switch(e, &arena[2], plan_from_layer(&arena[2], e, 1), &report));
    assert_true(report.loaded_bytes > 0 && report.kept_bytes > 0);
    ats_engine_close(e);
}

/* ---- memory ---- */

#ifdef SWITCH_ON_VULKAN
#define REFUSE "ATSINFER_VK_FAIL_ALLOCATION"
enum { REFUSED_STEP = 1, N_REFUSED_RUNS = 1 };
#else
#define REFUSE "ATSINFER_SIM_FAIL_ALLOCATION"
enum { REFUSED_STEP = TEST_SANITIZED ? 11 : 3, N_REFUSED_RUNS = TEST_SANITIZED ? 1 : 3 };
#endif
static int refuse_from, n_refused, n_restored;

/* Each switch is refused another allocation; the plan remains, and is asked for what it knows. */
static void change_plan_in_vain(ats_engine *e, uint64_t step) {
    char text[24];
    struct switch_report report;
    const struct plan *before = e->plan;
    snprintf(text, sizeof text, "%d", refuse_from + (int)(step % 1000) * REFUSED_STEP);
    setenv(REFUSE, text, 1);
    ats_status status = switch_to_random(e, step, &report);
    setenv(REFUSE, "0", 1);
    if (status == ATS_OK) return; /* it took fewer */
    assert_int_equal(status, ATS_NO_MEMORY);
    assert_true(e->executor && e->plan == before);
    n_refused++;
    n_restored += report.restored;
}

static void without_memory_the_old_plan_stays(void **state) {
    (void)state;
    char path[512];
    n_refused = n_restored = 0;
    for (size_t m = 0; m < COUNT_OF(models); m += 2) {
        size_t n;
        if (!model_path(path, sizeof path, models[m])) skip();
        float *want = plain(path, &n);
        for (refuse_from = 0; refuse_from < N_REFUSED_RUNS; refuse_from++)
            compare(path, device_lists[0], 1, change_plan_in_vain, want, n);
        free(want);
    }
    print_message("%d switches refused, %d had begun\n", n_refused, n_restored);
    assert_true(n_refused >= 6 && n_restored >= 4);
}

#ifndef SWITCH_ON_VULKAN
/* Not even the way back: the next request begins from the file and the tokens. */
static void lose_everything(ats_engine *e, uint64_t step) {
    struct switch_report report;
    if (step % 1000 != 4) return;
    setenv(REFUSE, "-9", 1);
    TEST_STATUS(switch_to_random(e, step, &report), ATS_NO_MEMORY);
    TEST_ERROR_HAS("cannot be had back");
    setenv(REFUSE, "0", 1);
    assert_null(e->executor);
}

static void what_is_lost_is_evaluated_again(void **state) {
    (void)state;
    char path[512];
    for (size_t m = 0; m < COUNT_OF(models); m += 4) {
        size_t n;
        if (!model_path(path, sizeof path, models[m])) skip();
        float *want = plain(path, &n);
        compare(path, device_lists[0], 1, lose_everything, want, n);
        free(want);
    }
}
#endif

/* Logits stand where the round left them until something else needs the place. */
static void logits_stay_until_their_session_goes_on(void **state) {
    (void)state;
    static const int32_t ids[3] = {11, 48, 85};
    char path[512];
    for (size_t i = 0; i < COUNT_OF(device_lists); i++) {
        if (!model_path(path, sizeof path, models[0])) skip();
        ats_engine *e = open_engine(path, device_lists[i], 3);
        size_t bytes = (size_t)agree_vocab(e) * sizeof(float);
        float *before = malloc(bytes);
        ats_session *s[2];
        struct switch_report report;
        for (int j = 0; j < 2; j++)
            TEST_OK(ats_session_open(e, &s[j]));
        ats_run first = {s[0], ids, 3, ATS_WANT_LAST, NULL},
                other = {s[1], ids, 2, ATS_WANT_LAST, NULL};
        TEST_OK(ats_eval(e, &first, 1));
        memcpy(before, ats_session_logits(s[0]), bytes);
        TEST_OK(ats_eval(e, &other, 1));
        assert_memory_equal(ats_session_logits(s[0]), before, bytes);
        assert_memory_not_equal(ats_session_logits(s[1]), before, bytes);
        memcpy(before, ats_session_logits(s[1]), bytes);
        TEST_OK(switch_to_random(e, 4, &report));
        assert_memory_equal(ats_session_logits(s[1]), before, bytes);
        for (int j = 0; j < 2; j++)
            ats_session_close(s[j]);
        ats_engine_close(e);
        free(before);
    }
}

int main(void) {
#ifdef SWITCH_ON_VULKAN
    if (!agree_has_vulkan()) return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_switch_changes_no_logit),
        cmocka_unit_test(only_what_moves_is_loaded),
        cmocka_unit_test(homes_of_streamed_weights_stay),
        cmocka_unit_test(without_memory_the_old_plan_stays),
        cmocka_unit_test(logits_stay_until_their_session_goes_on),
#ifndef SWITCH_ON_VULKAN
        cmocka_unit_test(what_is_lost_is_evaluated_again),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
