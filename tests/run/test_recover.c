/*
 * A device that is lost in the middle of a request: the CPU goes on alone, and every logit is what
 * it would have been. On simulated devices; built once more for a Vulkan device, alone and beside
 * the CPU.
 */
#include "agree.h"

#ifdef RECOVER_FROM_VULKAN
#define LOSE "ATSINFER_VK_LOSE_SUBMISSION"
static const char *const devices[] = {"vulkan", "cpu,vulkan"};
#define MAX_LOSE 20
#else
#define LOSE     "ATSINFER_SIM_LOSE_SUBMISSION"
static const char *const devices[] = {"sim:cpu,sim:gpu", "sim:chaos,sim:chaos,sim:chaos"};
#define MAX_LOSE 400
#endif

#define BOUND 1e-3

enum { N_PROMPT = 75, N_SHORT = 9, N_DECODE = 8, N_RESULTS = 1 + 2 * N_DECODE };

/* One with windows that give pages back, one with recurrent state, which is spoilt where it was
 * worked on in place. */
static const char *const models[] = {"llama/llama-f16.gguf", "gemma3/gemma3-f16.gguf",
                                     "qwen35/qwen35-f16.gguf"};

/* Two sessions: prompts of both (one in several rounds), then rounds of both. Logits of each go to
 * out, (N_RESULTS, n_vocab); returns how many devices were lost. A third session holds tokens, and
 * logits that stay as they were. */
static int run(const char *path, const char *device_list, uint64_t seed, float *out) {
    ats_options options = agree_options(path);
    options.devices = device_list;
    options.plan_seed = seed;
    options.n_threads = options.n_threads_batch = 1;
    options.n_seqs = 3;
    options.n_batch = 32;
    ats_engine *e = agree_open(&options);
    size_t width = (size_t)agree_vocab(e);
    ats_session *s[3];
    int32_t ids[N_PROMPT];
    for (int i = 0; i < N_PROMPT; i++)
        ids[i] = (i * 37 + 11) % (int32_t)width;
    for (int i = 0; i < 3; i++)
        TEST_OK(ats_session_open(e, &s[i]));
    ats_run idle = {s[2], ids + 5, 7, ATS_WANT_LAST, NULL};
    TEST_OK(ats_eval(e, &idle, 1));
    float *kept = malloc(width * sizeof *kept);
    memcpy(kept, ats_session_logits(s[2]), width * sizeof *kept);

    ats_run prompts[2] = {{s[0], ids, N_PROMPT, ATS_WANT_LAST, out},
                          {s[1], ids + 20, N_SHORT, ATS_WANT_NONE, NULL}};
    TEST_OK(ats_eval(e, prompts, 2));
    for (int i = 0; i < N_DECODE; i++) {
        float *row = out + (size_t)(1 + 2 * i) * width;
        ats_run both[2] = {{s[0], &ids[i], 1, ATS_WANT_LAST, row},
                           {s[1], &ids[i + 30], 1, ATS_WANT_LAST, row + width}};
        TEST_OK(ats_eval(e, both, 2));
    }
    assert_memory_equal(kept, ats_session_logits(s[2]), width * sizeof *kept);
    size_t n[3];
    for (int i = 0; i < 3; i++) {
        const int32_t *tokens = ats_session_tokens(s[i], &n[i]);
        const int32_t *wanted = i == 0 ? ids : i == 1 ? ids + 20 : ids + 5;
        assert_memory_equal(tokens, wanted, (i == 0 ? N_PROMPT : i == 1 ? N_SHORT : 7) * 4);
        ats_session_close(s[i]);
    }
    assert_int_equal(n[0], N_PROMPT + N_DECODE);
    assert_int_equal(n[1], N_SHORT + N_DECODE);
    ats_stats stats;
    ats_engine_stats(e, &stats);
    ats_engine_close(e);
    free(kept);
    return (int)stats.n_lost_devices;
}

static int vocab_of(const char *path) {
    ats_options options = agree_options(path);
    ats_engine *e = agree_open(&options);
    int n = agree_vocab(e);
    ats_engine_close(e);
    return n;
}

static void a_lost_device_changes_no_token(void **state) {
    (void)state;
    int n_lost = 0, n_kept = 0;
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        char name[128], path[512], nth[16];
        snprintf(name, sizeof name, "models/%s", models[m]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        size_t n = (size_t)N_RESULTS * (size_t)vocab_of(path);
        float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
        run(path, "cpu", 0, want);
        for (int lose = 1; lose < MAX_LOSE; lose = lose < 4 ? lose + 1 : lose * 2 + 1) {
            snprintf(nth, sizeof nth, "%d", lose);
            memset(got, 0, n * sizeof *got);
            setenv(LOSE, nth, 1);
            int lost = run(path, devices[lose % COUNT_OF(devices)], (uint64_t)lose % 3, got);
            setenv(LOSE, "0", 1);
            double d = test_max_abs_diff(got, want, n);
            if (!(d <= BOUND))
                fail_msg("%s: with submission %d lost, a logit differs by %g", path, lose, d);
            n_lost += lost;
            n_kept += !lost; /* there were fewer submissions */
        }
        free(want), free(got);
    }
    print_message("%d devices lost, %d runs without a loss\n", n_lost, n_kept);
    assert_true(n_lost >= 6);
}

/* What the user hears of it. */
static int n_warnings;

static void count_warnings(void *user, int level, const char *text) {
    (void)user;
    n_warnings += level == 1 && strstr(text, "the CPU goes on alone") != NULL;
}

static void a_loss_is_said_once(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    ats_options options = agree_options(path);
    options.devices = devices[1];
    setenv(LOSE, "3", 1);
    ats_engine *e = agree_open(&options);
    setenv(LOSE, "0", 1);
    ats_log_set(count_warnings, NULL, 1);
    ats_session *s;
    TEST_OK(ats_session_open(e, &s));
    for (int32_t i = 0; i < 8; i++) {
        ats_run one = {s, &i, 1, ATS_WANT_LAST, NULL};
        TEST_OK(ats_eval(e, &one, 1));
    }
    assert_int_equal(n_warnings, 1);
    assert_string_equal(ats_error_text(), "");
    char *text = ats_engine_describe(e);
    assert_non_null(strstr(text, "\"cpu\""));
    assert_null(strstr(text, "vulkan"));
    assert_null(strstr(text, "sim:"));
    ats_free(text);
    ats_session_close(s);
    ats_engine_close(e);
    ats_log_set(NULL, NULL, 0);
}

#ifdef RECOVER_FROM_VULKAN
/* A submission that never ends. */
static void a_device_that_does_not_answer_is_lost(void **state) {
    (void)state;
    char path[512], name[128];
    snprintf(name, sizeof name, "models/%s", models[0]);
    if (!test_shared_path(path, sizeof path, name)) skip();
    size_t n = (size_t)N_RESULTS * (size_t)vocab_of(path);
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    run(path, "cpu", 0, want);
    setenv("ATSINFER_VK_TIMEOUT_MS", "1500", 1);
    for (int i = 0; i < 2; i++) {
        setenv("ATSINFER_VK_HANG_SUBMISSION", i ? "9" : "1", 1);
        assert_int_equal(run(path, devices[i], 0, got), 1);
        double d = test_max_abs_diff(got, want, n);
        if (!(d <= BOUND)) fail_msg("on %s, a logit differs by %g", devices[i], d);
    }
    setenv("ATSINFER_VK_HANG_SUBMISSION", "0", 1);
    setenv("ATSINFER_VK_TIMEOUT_MS", "0", 1);
    free(want), free(got);
}
#endif

int main(void) {
#ifdef RECOVER_FROM_VULKAN
    if (!agree_has_vulkan()) return 77;
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_lost_device_changes_no_token),
        cmocka_unit_test(a_loss_is_said_once),
#ifdef RECOVER_FROM_VULKAN
        cmocka_unit_test(a_device_that_does_not_answer_is_lost),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
