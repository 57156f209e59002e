/*
 * Any placement, same answer: random divisions of every operator over two and three CPU devices,
 * and over two to four simulated ones whose segments end in any order that their waits allow, give
 * the all-CPU logits (--math f32), whole, in chunks and token by token. By hand:
 *   test_run_plans [N] [SEED]     N plans a model and kind, from SEED on; a failure prints its seed
 */
#include "agree.h"

static const char *const models[] = {
    "llama/llama-f16.gguf",         "llama256/llama256-f16.gguf", "mistral/mistral-f32.gguf",
    "qwen2/qwen2-bf16.gguf",        "qwen3/qwen3-f16.gguf",       "phi3/phi3-f32.gguf",
    "smollm3/smollm3-f32.gguf",     "quants/Q8_0.gguf",           "quants/Q4_K_M.gguf",
    "mixtral/mixtral-f32.gguf",     "qwen3moe/qwen3moe-f32.gguf", "quants/moe-Q4_K_M.gguf",
    "glm4/glm4-f32.gguf",           "gemma3/gemma3-f16.gguf",     "gptoss/gptoss-f16.gguf",
    "gptoss/gptoss-mxfp4.gguf",     "glm4moe/glm4moe-f32.gguf",   "llama4/llama4-f32.gguf",
    "qwen3next/qwen3next-f16.gguf", "qwen35/qwen35-f16.gguf",     "qwen35moe/qwen35moe-f16.gguf",
};
enum { N_MODELS = sizeof models / sizeof *models };

static int n_plans = TEST_SANITIZED ? 4 : 12;
static uint64_t first_seed = 1;

#define BOUND 1e-3

/* A list of devices for a seed. */
typedef void devices_fn(char *out, size_t n, uint64_t seed);

static void real_devices(char *out, size_t n, uint64_t seed) {
    snprintf(out, n, "%s", seed % 3 == 0 ? "cpu,cpu,cpu" : "cpu,cpu");
}

static void simulated_devices(char *out, size_t n, uint64_t seed) {
    char one[40];
    snprintf(one, sizeof one, "sim:chaos:%llu", (unsigned long long)seed);
    size_t used = (size_t)snprintf(out, n, "%s", one);
    for (uint64_t i = 0; i < 1 + seed % 3; i++)
        used += (size_t)snprintf(out + used, n - used, ",%s", one);
}

static void check_plan(const char *path, const float *want, const int32_t *ids, size_t n,
                       devices_fn *devices, uint64_t seed) {
    char list[200];
    ats_options options = agree_options(path);
    devices(list, sizeof list, seed);
    options.devices = list;
    options.plan_seed = seed;
    options.n_threads = options.n_threads_batch = 1 + (int)(seed % 2);
    ats_engine *e = agree_open(&options);
    size_t width = (size_t)agree_vocab(e);
    const size_t chunks[] = {0, 1 + seed % 20};
    for (int i = 0; i < 2; i++) {
        float *got = agree_logits(e, ids, n, chunks[i]);
        double d = test_max_abs_diff(got, want, n * width);
        if (!(d <= BOUND))
            fail_msg("%s on %s, plan seed %llu, pieces of %zu: differs by %g", path, list,
                     (unsigned long long)seed, chunks[i], d);
        free(got);
    }
    ats_engine_close(e);
}

static void check_plans(devices_fn *devices) {
    enum { N = 70 };
    for (int i = 0; i < N_MODELS; i++) {
        char name[128], path[512];
        snprintf(name, sizeof name, "models/%s", models[i]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        int32_t ids[N];
        float *want = agree_plain(path, ids, N);
        for (int j = 0; j < n_plans; j++)
            check_plan(path, want, ids, N, devices, first_seed + (uint64_t)j);
        free(want);
    }
}

static void random_plans_change_nothing(void **state) {
    (void)state;
    check_plans(real_devices);
}

static void nor_does_the_order_of_events(void **state) {
    (void)state;
    check_plans(simulated_devices);
}

/* The default for several devices: blocks split evenly, with several sequences in a round. */
static void even_split_serves_several_sequences(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    ats_options options = agree_options(path);
    options.n_seqs = 2;
    int32_t ids[40];
    float *logits[2][2]; /* one device, two devices; by sequence */
    size_t width = 0;
    for (int way = 0; way < 2; way++) {
        options.devices = way ? "cpu,cpu" : "cpu";
        ats_engine *e = agree_open(&options);
        width = (size_t)agree_vocab(e);
        for (int j = 0; j < 40; j++)
            ids[j] = (j * 53 + 7) % (int)width;
        ats_session *s[2];
        ats_run runs[2];
        for (int j = 0; j < 2; j++) {
            TEST_OK(ats_session_open(e, &s[j]));
            logits[way][j] = calloc(40 * width, sizeof(float));
            runs[j] = (ats_run){s[j], ids + j, 39, ATS_WANT_ALL, logits[way][j]};
        }
        TEST_OK(ats_eval(e, runs, 2));
        for (int j = 0; j < 2; j++)
            ats_session_close(s[j]);
        ats_engine_close(e);
    }
    for (int j = 0; j < 2; j++) {
        assert_true(test_max_abs_diff(logits[0][j], logits[1][j], 39 * width) <= BOUND);
        free(logits[0][j]), free(logits[1][j]);
    }
}

int main(int argc, char **argv) {
    if (argc > 1) n_plans = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_plans_change_nothing),
        cmocka_unit_test(nor_does_the_order_of_events),
        cmocka_unit_test(even_split_serves_several_sequences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
