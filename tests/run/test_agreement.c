/* Models against an independent implementation's logits (shared/models), in every way of
 * feeding them. The bounds are those of shared/models/README.md.
 *   test_run_agreement [DEVICES]     on these, the ways that test_vulkan_oracles.c leaves out */
#include "agree.h"

#include <math.h>

#include "backend/backend.h"

#define F32_BOUND 1e-3

static const struct case_ {
    const char *dir, *file;
} cases[] = {
    {"llama", "llama-f16.gguf"},
    {"llama256", "llama256-f16.gguf"},
    {"mistral", "mistral-f32.gguf"},
    {"qwen2", "qwen2-f32.gguf"},
    {"qwen2", "qwen2-bf16.gguf"},
    {"qwen2", "qwen2-split-00001-of-00003.gguf"},
    {"qwen2", "qwen2-split-00003-of-00003.gguf"},
    {"qwen3", "qwen3-f16.gguf"},
    {"phi3", "phi3-f32.gguf"},
    {"smollm3", "smollm3-f32.gguf"},
    {"mixtral", "mixtral-f32.gguf"},
    {"qwen3moe", "qwen3moe-f32.gguf"},
    {"glm4", "glm4-f32.gguf"},
    {"gemma3", "gemma3-f16.gguf"},
    {"gptoss", "gptoss-f16.gguf"},
    {"gptoss", "gptoss-mxfp4.gguf"},
    {"glm4moe", "glm4moe-f32.gguf"},
    {"llama4", "llama4-f32.gguf"},
    {"qwen3next", "qwen3next-f16.gguf"},
    {"qwen35", "qwen35-f16.gguf"},
    {"qwen35moe", "qwen35moe-f16.gguf"},
    {"qwen35moe", "qwen35moe-mtp-f16.gguf"},
};
enum { N_CASES = sizeof cases / sizeof *cases };

/* Under a sanitizer each model is met in one or two ways, and only some in all. */
static bool in_all_ways(int i) {
    return !TEST_SANITIZED || i % 8 == 0;
}

/* Under a sanitizer some of each kind: dense, experts, recurrent; the threads are the same for all.
 */
static bool is_one_of_some(int i) {
    return !TEST_SANITIZED || i % 3 == 0;
}

static const char *devices; /* NULL: the CPU */

struct oracle {
    char model[512];
    json_t *ref;
    int32_t *prompt, *long_prompt, *greedy, *long_positions;
    size_t n_prompt, n_long, n_greedy, n_long_positions;
    struct test_npy logits, long_logits;
};

static bool oracle_open(const struct case_ *c, struct oracle *o) {
    char name[256], path[512];
    memset(o, 0, sizeof *o);
    snprintf(name, sizeof name, "models/%s/%s", c->dir, c->file);
    if (!test_shared_path(o->model, sizeof o->model, name)) return false;
    snprintf(name, sizeof name, "models/%s/ref.json", c->dir);
    test_shared_path(path, sizeof path, name);
    o->ref = test_json_read(path);
    o->prompt = test_json_ids(test_json_get(o->ref, "prompt"), &o->n_prompt);
    o->long_prompt = test_json_ids(test_json_get(o->ref, "long_prompt"), &o->n_long);
    o->greedy = test_json_ids(test_json_get(o->ref, "greedy"), &o->n_greedy);
    o->long_positions =
        test_json_ids(test_json_get(o->ref, "long_positions"), &o->n_long_positions);
    snprintf(name, sizeof name, "models/%s/logits.npy", c->dir);
    test_shared_path(path, sizeof path, name);
    test_npy_read(path, &o->logits);
    snprintf(name, sizeof name, "models/%s/logits_long.npy", c->dir);
    test_shared_path(path, sizeof path, name);
    test_npy_read(path, &o->long_logits);
    return true;
}

static void oracle_close(struct oracle *o) {
    json_decref(o->ref);
    free(o->prompt), free(o->long_prompt), free(o->greedy), free(o->long_positions);
    test_npy_free(&o->logits);
    test_npy_free(&o->long_logits);
}

static void expect_close(const char *what, const struct oracle *o, double got, double bound) {
    if (!(got <= bound)) fail_msg("%s: %s differs by %g, bound %g", o->model, what, got, bound);
}

static void check_prompt(ats_engine *e, const struct oracle *o, size_t chunk) {
    char what[64];
    snprintf(what, sizeof what, "the prompt in pieces of %zu", chunk);
    float *logits = agree_logits(e, o->prompt, o->n_prompt, chunk);
    expect_close(what, o, test_max_abs_diff(logits, o->logits.data, o->logits.n), F32_BOUND);
    free(logits);
}

static void check_long_prompt(ats_engine *e, const struct oracle *o, size_t chunk) {
    char what[64];
    size_t width = (size_t)agree_vocab(e);
    snprintf(what, sizeof what, "the long prompt in pieces of %zu", chunk);
    float *logits = agree_logits(e, o->long_prompt, o->n_long, chunk);
    for (size_t i = 0; i < o->n_long_positions; i++) {
        const float *row = logits + (size_t)o->long_positions[i] * width;
        expect_close(what, o, test_max_abs_diff(row, o->long_logits.data + i * width, width),
                     F32_BOUND);
    }
    free(logits);
}

static void check_greedy(ats_engine *e, const struct oracle *o) {
    int32_t got[64];
    assert_true(o->n_greedy <= 64);
    agree_greedy(e, o->prompt, o->n_prompt, got, o->n_greedy);
    for (size_t i = 0; i < o->n_greedy; i++)
        if (got[i] != o->greedy[i])
            fail_msg("%s: greedy token %zu is %d, expected %d", o->model, i, got[i], o->greedy[i]);
}

static ats_options options_of(const struct oracle *o) {
    ats_options options = agree_options(o->model);
    options.devices = devices;
    return options;
}

/* ---- the tests ---- */

static void logits_equal_the_oracles(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct oracle o;
        if (TEST_THREADS_SANITIZED && !is_one_of_some(i)) continue;
        if (!oracle_open(&cases[i], &o)) skip();
        ats_options options = options_of(&o);
        ats_engine *e = agree_open(&options);
        check_prompt(e, &o, 7);
        check_long_prompt(e, &o, 37);
        if (devices) {
            check_greedy(e, &o);
        } else if (in_all_ways(i)) {
            check_prompt(e, &o, 0);
            check_prompt(e, &o, 1);
            check_long_prompt(e, &o, 0);
            check_long_prompt(e, &o, 64);
            check_greedy(e, &o);
        }
        ats_engine_close(e);
        oracle_close(&o);
    }
}

static void every_kernel_set_equals_the_oracles(void **state) {
    (void)state;
    static const char *const isas[] = {"ref",        "avx2", "avxvnni", "avx512",
                                       "avx512bf16", "amx",  "amxbf16", "neon"};
    struct backend_cpu_info cpu;
    backend_cpu_info(&cpu);
    for (int i = 0; i < N_CASES; i++) {
        struct oracle o;
        if (!in_all_ways(i) || (TEST_THREADS_SANITIZED && i > 0)) continue;
        if (!oracle_open(&cases[i], &o)) skip();
        for (size_t j = 0; j < sizeof isas / sizeof *isas; j++) {
            unsigned mask;
            assert_true(backend_cpu_isa_parse(isas[j], &mask));
            if (strcmp(backend_cpu_isa_name(mask), isas[j]) != 0) continue; /* not this machine's */
            ats_options options = agree_options(o.model);
            options.cpu_isa = isas[j];
            ats_engine *e = agree_open(&options);
            check_prompt(e, &o, 0);
            check_prompt(e, &o, 1);
            check_long_prompt(e, &o, 50);
            ats_engine_close(e);
        }
        oracle_close(&o);
    }
}

/* Threads, pieces of up to 8 tokens, fusion, several sequences and repetition change no bit. */
static void bits_depend_on_the_tokens_only(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct oracle o;
        if (!is_one_of_some(i)) continue;
        if (!oracle_open(&cases[i], &o)) skip();
        ats_options options = agree_options(o.model);
        options.math = ATS_MATH_DEFAULT;
        options.n_threads = options.n_threads_batch = 1;
        ats_engine *e = agree_open(&options);
        float *want = agree_logits(e, o.long_prompt, o.n_long, 0);
        size_t bytes = o.n_long * (size_t)agree_vocab(e) * sizeof *want;
        ats_engine_close(e);
        static const struct {
            int threads;
            size_t chunk;
            bool no_fusion;
        } ways[] = {
            {1, 1, false}, {2, 0, false}, {3, 8, false}, {3, 33, false}, {2, 1, true}, {1, 0, true},
        };
        for (size_t j = 0; j < sizeof ways / sizeof *ways; j++) {
            if (!in_all_ways(i) && j != 3) continue;
            options.n_threads = options.n_threads_batch = ways[j].threads;
            options.no_fusion = ways[j].no_fusion;
            e = agree_open(&options);
            float *got = agree_logits(e, o.long_prompt, o.n_long, ways[j].chunk);
            if (memcmp(got, want, bytes) != 0)
                fail_msg("%s: %d threads, pieces of %zu change the bits", o.model, ways[j].threads,
                         ways[j].chunk);
            free(got);
            ats_engine_close(e);
        }
        free(want);
        oracle_close(&o);
    }
}

/* A round of more tokens than are sorted by expert at a time: the same bits as in small ones. */
static void experts_of_a_long_round_are_those_of_short_ones(void **state) {
    (void)state;
    enum { N = 700 };
    struct oracle o;
    if (!oracle_open(&(struct case_){"qwen3moe", "qwen3moe-f32.gguf"}, &o)) skip();
    int32_t ids[N];
    float *logits[2];
    size_t bytes = 0;
    for (int way = 0; way < 2; way++) {
        ats_options options = agree_options(o.model);
        options.n_ctx = 1024;
        options.n_batch = way ? 64 : N;
        options.n_threads = options.n_threads_batch = 2 + way;
        ats_engine *e = agree_open(&options);
        for (int i = 0; i < N; i++)
            ids[i] = (i * 41 + 3) % agree_vocab(e);
        bytes = N * (size_t)agree_vocab(e) * sizeof(float);
        logits[way] = agree_logits(e, ids, N, 0);
        ats_engine_close(e);
    }
    if (memcmp(logits[0], logits[1], bytes) != 0) fail_msg("rounds of 64 give other bits");
    free(logits[0]), free(logits[1]);
    oracle_close(&o);
}

/* Several sequences of different lengths in one round: each as if alone. */
static void sequences_in_a_round_do_not_meet(void **state) {
    (void)state;
    for (int i = 0; i < N_CASES; i++) {
        struct oracle o;
        if (!is_one_of_some(i)) continue;
        if (!oracle_open(&cases[i], &o)) skip();
        ats_options options = options_of(&o);
        options.n_seqs = 3;
        ats_engine *e = agree_open(&options);
        size_t width = (size_t)agree_vocab(e);
        ats_session *s[3];
        float *logits[3];
        ats_run runs[3];
        const size_t n[3] = {o.n_prompt, 5, o.n_prompt - 9};
        for (int j = 0; j < 3; j++) {
            TEST_OK(ats_session_open(e, &s[j]));
            logits[j] = calloc(n[j] * width, sizeof(float));
            runs[j] = (ats_run){s[j], o.prompt, n[j], ATS_WANT_ALL, logits[j]};
        }
        TEST_OK(ats_eval(e, runs, 3));
        for (int j = 0; j < 3; j++) {
            expect_close("a sequence among others", &o,
                         test_max_abs_diff(logits[j], o.logits.data, n[j] * width), F32_BOUND);
            ats_session_close(s[j]);
            free(logits[j]);
        }
        ats_engine_close(e);
        oracle_close(&o);
    }
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* MXFP4 experts with 8-bit activations: routing near-ties fall either way, so the README bounds the
 * median over positions, and the share of equal likeliest tokens. */
static void rounded_activations_stay_near_the_oracle(void **state) {
    (void)state;
    struct oracle o;
    if (!oracle_open(&(struct case_){"gptoss", "gptoss-mxfp4.gguf"}, &o)) skip();
    ats_options options = agree_options(o.model);
    options.math = ATS_MATH_DEFAULT;
    ats_engine *e = agree_open(&options);
    int width = agree_vocab(e);
    float *logits = agree_logits(e, o.prompt, o.n_prompt, 0);
    double *diffs = calloc(o.n_prompt, sizeof *diffs);
    size_t n_same = 0;
    for (size_t i = 0; i < o.n_prompt; i++) {
        const float *got = logits + i * (size_t)width, *want = o.logits.data + i * (size_t)width;
        diffs[i] = test_max_abs_diff(got, want, (size_t)width);
        n_same += agree_argmax(got, width) == agree_argmax(want, width);
    }
    qsort(diffs, o.n_prompt, sizeof *diffs, by_value);
    double median = diffs[o.n_prompt / 2], same = (double)n_same / (double)o.n_prompt;
    print_message("gptoss-mxfp4, q8: median %.3f, likeliest token %.1f %%\n", median, 100 * same);
    if (!(median <= 0.6) || !(median > 1e-3) || same < 0.85)
        fail_msg("%s: the median position differs by %g, %g of the likeliest tokens are equal",
                 o.model, median, same);
    free(diffs), free(logits);
    ats_engine_close(e);
    oracle_close(&o);
}

/* LongRoPE goes by the configured context: beyond the original one every position uses the long
 * factors, as in the oracle of a long sequence. */
static void longrope_follows_the_configured_context(void **state) {
    (void)state;
    struct oracle o;
    char path[512];
    struct test_npy want;
    if (!oracle_open(&(struct case_){"phi3", "phi3-f32.gguf"}, &o)) skip();
    test_shared_path(path, sizeof path, "models/phi3/logits_over.npy");
    test_npy_read(path, &want);
    size_t n, n_positions;
    int32_t *ids = test_json_ids(test_json_get(o.ref, "over_prompt"), &n);
    int32_t *positions = test_json_ids(test_json_get(o.ref, "over_positions"), &n_positions);
    ats_options options = agree_options(o.model);
    options.n_ctx = 512;
    ats_engine *e = agree_open(&options);
    size_t width = (size_t)agree_vocab(e);
    float *logits = agree_logits(e, ids, n, 100);
    for (size_t i = 0; i < n_positions; i++)
        expect_close(
            "a long sequence", &o,
            test_max_abs_diff(logits + (size_t)positions[i] * width, want.data + i * width, width),
            F32_BOUND);
    free(logits), free(ids), free(positions);
    test_npy_free(&want);
    ats_engine_close(e);
    oracle_close(&o);
}

/* Class bf16 rounds to 8 bits what F16 rounds to 11: at most 8 times the bound of F16 activations
 * (0.2), and 0.21 was seen, so 0.5. The bits are those of f32 where no weight is BF16, and never
 * depend on the way of feeding or the layout. */
static void bf16_activations_stay_near_the_oracle(void **state) {
    (void)state;
    static const struct case_ plain = {"qwen2", "qwen2-f32.gguf"},
                              bf16 = {"qwen2", "qwen2-bf16.gguf"};
    struct oracle o;
    if (!oracle_open(&plain, &o)) skip();
    ats_options options = agree_options(o.model);
    ats_engine *e = agree_open(&options);
    const size_t n = o.n_prompt * (size_t)agree_vocab(e);
    float *exact = agree_logits(e, o.prompt, o.n_prompt, 0);
    ats_engine_close(e);
    options.math = ATS_MATH_BF16;
    e = agree_open(&options);
    float *got = agree_logits(e, o.prompt, o.n_prompt, 0);
    assert_memory_equal(got, exact, n * sizeof *got);
    free(got);
    ats_engine_close(e);
    oracle_close(&o);
    if (!oracle_open(&bf16, &o)) skip();
    options.model = o.model;
    for (int raw = 0; raw < 2; raw++) {
        options.no_repack = raw;
        e = agree_open(&options);
        float *whole = agree_logits(e, o.prompt, o.n_prompt, 0);
        float *single = agree_logits(e, o.prompt, o.n_prompt, 1);
        double worst = 0;
        for (size_t i = 0; i < n; i++)
            worst = fmax(worst, fabs((double)whole[i] - (double)exact[i]));
        print_message("bf16 activations: %g from f32\n", worst);
        assert_true(worst > 1e-4); /* they were rounded */
        assert_true(worst < 0.5);
        assert_memory_equal(whole, single, n * sizeof *whole);
        free(whole), free(single);
        ats_engine_close(e);
    }
    free(exact);
    oracle_close(&o);
}

struct soft_cap {
    const char *key;
    float cap;
};
static void put_soft_cap(struct gguf_writer *w, const void *user) {
    const struct soft_cap *c = user;
    gguf_put_f32(w, c->key, c->cap);
}

/* Logits of the oracle's prompt from a copy whose key is set. Owned. */
static float *capped_logits(const struct oracle *o, struct soft_cap cap, ats_options options,
                            size_t chunk) {
    char path[512];
    test_tmp_path(path, sizeof path, "soft_cap.gguf");
    agree_copy(o->model, path, &(struct agree_change){.put = put_soft_cap, .user = &cap});
    options.model = path;
    ats_engine *e = agree_open(&options);
    float *logits = agree_logits(e, o->prompt, o->n_prompt, chunk);
    ats_engine_close(e);
    remove(path);
    return logits;
}

/* No oracle has them. */
static void soft_caps_bend_scores_and_logits(void **state) {
    (void)state;
    static const struct soft_cap of_logits = {"gemma3.final_logit_softcapping", 5},
                                 of_scores = {"gemma3.attn_logit_softcapping", 0.5F};
    const double cap = (double)of_logits.cap;
    struct oracle o;
    if (!oracle_open(&(struct case_){"gemma3", "gemma3-f16.gguf"}, &o)) skip();
    ats_options options = options_of(&o), plain = agree_options(o.model);
    plain.cpu_isa = "ref";
    float *bent = capped_logits(&o, of_logits, options, 0);
    double worst = 0;
    for (size_t i = 0; i < o.logits.n; i++)
        worst = fmax(worst, fabs((double)bent[i] - cap * tanh((double)o.logits.data[i] / cap)));
    expect_close("a logit with a soft cap", &o, worst, F32_BOUND);
    float *whole = capped_logits(&o, of_scores, options, 0);
    float *single = capped_logits(&o, of_scores, options, 1);
    float *want = capped_logits(&o, of_scores, plain, 0);
    assert_memory_equal(whole, single, o.logits.n * sizeof *whole);
    expect_close("a soft cap of scores", &o, test_max_abs_diff(whole, want, o.logits.n), F32_BOUND);
    assert_true(test_max_abs_diff(whole, o.logits.data, o.logits.n) > 0.1); /* it is felt */
    free(bent), free(whole), free(single), free(want);
    oracle_close(&o);
}

/* 77: there is no such device, which is said. */
static int run_on_devices(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_the_oracles),
        cmocka_unit_test(sequences_in_a_round_do_not_meet),
        cmocka_unit_test(soft_caps_bend_scores_and_logits),
    };
    if (!agree_has_vulkan()) return 77;
    return cmocka_run_group_tests(tests, NULL, NULL);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        devices = argv[1];
        return run_on_devices();
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_the_oracles),
        cmocka_unit_test(every_kernel_set_equals_the_oracles),
        cmocka_unit_test(bits_depend_on_the_tokens_only),
        cmocka_unit_test(experts_of_a_long_round_are_those_of_short_ones),
        cmocka_unit_test(sequences_in_a_round_do_not_meet),
        cmocka_unit_test(rounded_activations_stay_near_the_oracle),
        cmocka_unit_test(bf16_activations_stay_near_the_oracle),
        cmocka_unit_test(longrope_follows_the_configured_context),
        cmocka_unit_test(soft_caps_bend_scores_and_logits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
