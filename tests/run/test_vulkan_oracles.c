/*
 * A Vulkan device on whole models, alone or by rules beside the CPU, against numbers that are not
 * ours; what the validation layer says when waits are missing (else it must say nothing); memory
 * that runs out. Random plans are test_plans.c's.
 */
#include "agree.h"

#include <stdatomic.h>

#include "backend/vulkan/vulkan.h"
#include "base/file.h"
#include "run/engine.h"

#define BOUND 1e-3

static atomic_int n_messages, n_in_place, n_left_out;
static atomic_bool is_expected; /* they are not printed */

static void count_messages(void *user, int level, const char *text) {
    (void)user, (void)level;
    n_in_place += strstr(text, "are used in place") != NULL;
    n_left_out += strstr(text, "way in prompts is left out") != NULL;
    if (!strstr(text, "vulkan validation")) return;
    n_messages++;
    if (!is_expected) print_error("%s\n", text);
}

/* Of an engine's program and of its partner for prompts, 0 without one. */
struct transfers {
    int decode, prompts;
};

static struct transfers count_transfers(const ats_engine *e) {
    char *text = ats_engine_describe(e);
    json_t *root = json_loads(text, 0, NULL);
    const json_t *prompts = json_object_get(root, "prompts");
    struct transfers n = {
        (int)json_integer_value(test_json_get(root, "transfers")),
        (int)json_integer_value(json_object_get(prompts, "transfers")),
    };
    json_decref(root);
    ats_free(text);
    return n;
}

/* A plan that has more transfers than slots, and so has its partner for prompts; for this one
 * device of any kind. */
static uint64_t find_streaming_seed(const char *path) {
    ats_options options = agree_options(path);
    options.devices = "sim:chaos";
    for (options.plan_seed = 1; options.plan_seed < 200; options.plan_seed++) {
        ats_engine *e = agree_open(&options);
        struct transfers n = count_transfers(e);
        ats_engine_close(e);
        if (min_int(n.decode, n.prompts) > 8) return options.plan_seed;
    }
    fail_msg("no random plan streams");
    return 0;
}

/* What copies and their readers wait for: the software device runs in order and shows no loss in
 * its results, the validation layer does. */
static void missing_waits_of_streaming_are_reported(void **state) {
    (void)state;
    static const char *const switches[] = {"", "arrivals", "releases", "unread"};
    enum { N_PROMPT = 30 }; /* as many as any partner asks for */
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    uint64_t seed = find_streaming_seed(path);
    for (size_t i = 0; i < COUNT_OF(switches); i++) {
        ats_options options = agree_options(path);
        const int32_t ids[N_PROMPT] = {3, 1, 4, 1};
        int n_before = n_messages;
        options.devices = "vulkan";
        options.plan_seed = seed;
        setenv("ATSINFER_VK_DISABLE", switches[i], 1);
        is_expected = i > 0;
        ats_engine *e = agree_open(&options);
        for (int j = 0; j < 2; j++) { /* by turns */
            free(agree_logits(e, ids, 4, 1));
            free(agree_logits(e, ids, N_PROMPT, 0));
        }
        ats_engine_close(e);
        setenv("ATSINFER_VK_DISABLE", "", 1);
        assert_int_equal(n_messages > n_before, i > 0);
        is_expected = false;
        n_messages = n_before;
    }
}

/* Whole layers on the device, all or a few, and what must be beside them. */
static void plans_by_rules_change_nothing(void **state) {
    (void)state;
    enum { N = 20 };
    static const char *const files[] = {"qwen3moe/qwen3moe-f32.gguf",
                                        "qwen3next/qwen3next-f16.gguf",
                                        "qwen35moe/qwen35moe-f16.gguf"};
    static const char *const layers[] = {"all", "2"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char name[128], path[512];
        snprintf(name, sizeof name, "models/%s", files[i]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        int32_t ids[N];
        float *want = agree_plain(path, ids, N);
        for (size_t j = 0; j < COUNT_OF(layers); j++) {
            ats_options options = agree_options(path);
            options.devices = "cpu,vulkan";
            options.gpu_layers = layers[j];
            ats_engine *e = agree_open(&options);
            float *got = agree_logits(e, ids, N, 0);
            double d = test_max_abs_diff(got, want, N * (size_t)agree_vocab(e));
            if (!(d <= BOUND)) fail_msg("%s, %s layers: differs by %g", path, layers[j], d);
            free(got);
            ats_engine_close(e);
        }
        free(want);
    }
}

/* Sums, norms and gates are computed with the step before them, or not: the same bits, in one piece
 * and token by token. Of each file how often that is in a layer at least, for a kind of round. */
static void folding_changes_no_bit(void **state) {
    (void)state;
    enum { N = 20 };
    static const struct {
        const char *file;
        int n_folds;
    } files[] = {
        {"models/llama/llama-f16.gguf", 2},         {"models/quants/Q8_0.gguf", 2},
        {"models/quants/Q4_K_M.gguf", 2},           {"models/gptoss/gptoss-mxfp4.gguf", 2},
        {"models/qwen3next/qwen3next-f16.gguf", 4}, {"models/qwen35moe/qwen35moe-f16.gguf", 4},
        {"models/gemma3/gemma3-f16.gguf", 2}};
    for (size_t i = 0; i < 4 * COUNT_OF(files); i += TEST_SANITIZED ? 3 : 1) {
        char path[512];
        float *got[2];
        int n_vocab = 0;
        if (!test_shared_path(path, sizeof path, files[i / 4].file)) skip();
        setenv("ATSINFER_VK_SHAPE", i & 2 ? "1" : "0", 1); /* as a GPU has it, large tiles too */
        for (int fold = 0; fold < 2; fold++) {
            ats_options options = agree_options(path);
            const int32_t ids[N] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4};
            options.devices = "vulkan";
            options.no_fusion = !fold;
            if (i & 1) options.math = ATS_MATH_DEFAULT;
            ats_engine *e = agree_open(&options);
            int n_folds = vulkan_backend_folds(e->devices[0]);
            int least = 2 * (files[i / 4].n_folds * e->model->hp.n_layers - 1);
            assert_true(fold ? n_folds >= least : n_folds == 0);
            float *whole = agree_logits(e, ids, N, 0), *single = agree_logits(e, ids, N, 1);
            n_vocab = agree_vocab(e);
            got[fold] = realloc(whole, 2 * N * (size_t)n_vocab * sizeof *whole);
            memcpy(got[fold] + N * n_vocab, single, N * (size_t)n_vocab * sizeof *single);
            free(single);
            ats_engine_close(e);
        }
        assert_memory_equal(got[0], got[1], 2 * N * (size_t)n_vocab * sizeof *got[0]);
        free(got[0]);
        free(got[1]);
    }
    unsetenv("ATSINFER_VK_SHAPE");
}

/* ---- devices that work in host memory ---- */

enum { N_PLACED = 20, N_SEEDS = TEST_SANITIZED ? 1 : 3 };

/* What a plan has that the device of the test is an integrated one does not change. */
struct placed {
    char *plan;
    float *logits;
    struct transfers n;
    int n_told, n_left_out; /* that something is used in place, that a partner is left out */
};

static struct placed run_placed(ats_options options, const char *off, const int32_t *ids) {
    struct placed p = {.n_told = -n_in_place, .n_left_out = -n_left_out};
    setenv("ATSINFER_VK_DISABLE", off, 1);
    ats_engine *e = agree_open(&options);
    p.plan = ats_engine_plan(e);
    p.n = count_transfers(e);
    p.logits = agree_logits(e, ids, N_PLACED, 7);
    p.n_told += n_in_place;
    p.n_left_out += n_left_out;
    ats_engine_close(e);
    setenv("ATSINFER_VK_DISABLE", "", 1);
    return p;
}

/* A plan that streams is taken where nothing is: what it streams is there already. Saved again, it
 * says so, and means the same on a device that streams. */
static void what_would_be_streamed_is_used_in_place(void **state) {
    (void)state;
    static const char *const files[] = {"qwen3moe/qwen3moe-f32.gguf", "llama/llama-f16.gguf"};
    char path[512], plan[512];
    int n_streamed = 0;
    test_tmp_path(plan, sizeof plan, "in_place.json");
    for (size_t i = 0; i < 2 * COUNT_OF(files); i++) {
        char name[128];
        int32_t ids[N_PLACED];
        snprintf(name, sizeof name, "models/%s", files[i / 2]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        float *want = agree_plain(path, ids, N_PLACED);
        ats_options options = agree_options(path);
        options.devices = i % 2 ? "cpu,vulkan" : "vulkan";
        for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
            options.plan = NULL;
            options.plan_seed = seed;
            struct placed streamed = run_placed(options, "", ids);
            options.plan = plan;
            options.plan_seed = 0;
            TEST_OK(file_write(plan, streamed.plan, strlen(streamed.plan)));
            struct placed in_place = run_placed(options, "vram", ids);
            TEST_OK(file_write(plan, in_place.plan, strlen(in_place.plan)));
            struct placed resident = run_placed(options, "", ids);
            size_t n = (size_t)N_PLACED * 640;
            assert_int_equal(in_place.n_told, streamed.n.decode > 0);
            assert_int_equal(in_place.n_left_out, strstr(streamed.plan, "\"prompts\"") != NULL);
            assert_int_equal(in_place.n.decode + in_place.n.prompts, 0);
            assert_int_equal(resident.n.decode + resident.n.prompts, 0);
            assert_null(strstr(in_place.plan, "streamed"));
            assert_string_equal(in_place.plan, resident.plan);
            assert_true(test_max_abs_diff(streamed.logits, want, n) <= BOUND);
            assert_true(test_max_abs_diff(in_place.logits, want, n) <= BOUND);
            assert_true(test_max_abs_diff(resident.logits, want, n) <= BOUND);
            n_streamed += streamed.n.decode > 0;
            struct placed *const all[] = {&streamed, &in_place, &resident};
            for (size_t j = 0; j < COUNT_OF(all); j++)
                ats_free(all[j]->plan), free(all[j]->logits);
        }
        free(want);
    }
    print_message("%d plans of %zu streamed\n", n_streamed, 2 * N_SEEDS * COUNT_OF(files));
    assert_true(n_streamed >= N_SEEDS);
}

/* ---- against numbers that are not ours ---- */

struct oracle {
    char model[512];
    int32_t *prompt, *positions; /* positions NULL: all of the prompt */
    size_t n_prompt, n_positions;
    struct test_npy logits; /* (positions, n_vocab) */
};

/* The prompt and the logits of `model`, whose facts stand in `index` (under "types", `type`). */
static bool oracle_open(struct oracle *o, const char *model, const char *index, const char *type,
                        const char *logits) {
    char path[512];
    memset(o, 0, sizeof *o);
    if (!test_shared_path(o->model, sizeof o->model, model)) return false;
    test_shared_path(path, sizeof path, index);
    json_t *root = test_json_read(path);
    const json_t *entry = type ? test_json_get(test_json_get(root, "types"), type) : root;
    o->prompt = test_json_ids(test_json_get(entry, "prompt"), &o->n_prompt);
    if (type)
        o->positions = test_json_ids(test_json_get(entry, "logits_positions"), &o->n_positions);
    json_decref(root);
    test_shared_path(path, sizeof path, logits);
    test_npy_read(path, &o->logits);
    return true;
}

static void check_oracle(struct oracle *o, double bound) {
    ats_options options = agree_options(o->model);
    options.devices = "vulkan";
    ats_engine *e = agree_open(&options);
    size_t width = (size_t)agree_vocab(e), n = o->positions ? o->n_positions : o->n_prompt;
    assert_int_equal(o->logits.n, n * width);
    float *whole = NULL;
    for (size_t chunk = 0; chunk < 2; chunk++) { /* at once; token by token: the same bits */
        float *got = agree_logits(e, o->prompt, o->n_prompt, chunk);
        for (size_t i = 0; i < n; i++) {
            size_t at = o->positions ? (size_t)o->positions[i] : i;
            double d = test_max_abs_diff(got + at * width, o->logits.data + i * width, width);
            if (!(d <= bound)) fail_msg("%s: position %zu differs by %g", o->model, at, d);
        }
        if (whole) assert_memory_equal(got, whole, o->n_prompt * width * sizeof *got);
        free(whole);
        whole = got;
    }
    free(whole);
    ats_engine_close(e);
    free(o->prompt), free(o->positions);
    test_npy_free(&o->logits);
}

static void whole_models_agree_with_their_oracles(void **state) {
    (void)state;
    static const char *const files[][2] = {
        {"llama", "llama-f16"},     {"mistral", "mistral-f32"},    {"gemma3", "gemma3-f16"},
        {"glm4", "glm4-f32"},       {"qwen2", "qwen2-bf16"},       {"qwen3", "qwen3-f16"},
        {"smollm3", "smollm3-f32"}, {"mixtral", "mixtral-f32"},    {"qwen3moe", "qwen3moe-f32"},
        {"gptoss", "gptoss-f16"},   {"gptoss", "gptoss-mxfp4"},    {"glm4moe", "glm4moe-f32"},
        {"llama4", "llama4-f32"},   {"phi3", "phi3-f32"},          {"qwen3next", "qwen3next-f16"},
        {"qwen35", "qwen35-f16"},   {"qwen35moe", "qwen35moe-f16"}};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char model[128], index[128], logits[128];
        struct oracle o;
        snprintf(model, sizeof model, "models/%s/%s.gguf", files[i][0], files[i][1]);
        snprintf(index, sizeof index, "models/%s/ref.json", files[i][0]);
        snprintf(logits, sizeof logits, "models/%s/logits.npy", files[i][0]);
        if (!oracle_open(&o, model, index, NULL, logits)) skip();
        check_oracle(&o, 1e-3);
    }
}

static void every_quantised_type_agrees_with_its_oracle(void **state) {
    (void)state;
    static const char *const types[] = {"Q4_0",   "Q4_1",   "Q5_0",  "Q5_1",   "Q8_0",
                                        "Q2_K",   "Q3_K",   "Q4_K",  "Q5_K",   "Q6_K",
                                        "IQ4_NL", "IQ4_XS", "MXFP4", "Q4_K_M", "moe-Q4_K_M"};
    for (size_t i = 0; i < COUNT_OF(types); i += TEST_SANITIZED ? 3 : 1) {
        char model[128], logits[128];
        struct oracle o;
        snprintf(model, sizeof model, "models/quants/%s.gguf", types[i]);
        snprintf(logits, sizeof logits, "models/quants/%s.logits.npy", types[i]);
        if (!oracle_open(&o, model, "models/quants/index.json", types[i], logits)) skip();
        check_oracle(&o, 2e-3);
    }
}

/* Each allocation in turn, until all that are made have had theirs: an error that says so, and
 * nothing left behind; where the engine chose what the device holds, it goes on with less, in the
 * end with nothing. */
static void memory_that_a_device_lacks_is_an_error(void **state) {
    (void)state;
    char path[512];
    int n_failed = 0, n_opened = 0; /* in a row */
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    for (int i = 0; n_opened < 6; i++) {
        char text[16];
        ats_options options = agree_options(path);
        ats_engine *e = NULL;
        options.devices = i % 2 ? "vulkan" : "cpu,vulkan";
        snprintf(text, sizeof text, "%d", 1 + i / 2);
        setenv("ATSINFER_VK_FAIL_ALLOCATION", text, 1);
        ats_status status = ats_engine_open(&options, &e);
        setenv("ATSINFER_VK_FAIL_ALLOCATION", "0", 1);
        if (status == ATS_OK) {
            ats_engine_close(e);
            n_opened++;
            continue;
        }
        assert_string_equal(options.devices, "vulkan");
        n_opened = 0;
        n_failed++;
        assert_null(e);
        assert_int_equal(status, ATS_NO_MEMORY);
        TEST_ERROR_HAS("vulkan");
    }
    assert_true(n_failed >= 6);
}

int main(void) {
    ats_log_set(count_messages, NULL, 1);
    if (!agree_has_vulkan()) return 77;
    const struct CMUnitTest validated[] = {
        cmocka_unit_test(missing_waits_of_streaming_are_reported),
    };
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_by_rules_change_nothing),
        cmocka_unit_test(folding_changes_no_bit),
        cmocka_unit_test(what_would_be_streamed_is_used_in_place),
        cmocka_unit_test(whole_models_agree_with_their_oracles),
        cmocka_unit_test(every_quantised_type_agrees_with_its_oracle),
        cmocka_unit_test(memory_that_a_device_lacks_is_an_error),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    if (getenv("ATSINFER_VK_VALIDATE")) failed += cmocka_run_group_tests(validated, NULL, NULL);
    if (n_messages) print_error("%d messages of the validation layer\n", n_messages);
    return failed ? failed : n_messages > 0;
}
