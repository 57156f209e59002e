/* An engine that decides by itself, with a profile that is made up (nothing is measured) on
 * simulated devices: within its memory and the user's rules, with the same results; what it says.
 */
#include "agree.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"
#include "run/engine.h"

#ifdef PLANNER_ON_VULKAN
#define DEVICES "cpu,vulkan"
enum { WORK_MIB = 64, LEAST_PAIRS = 1 }; /* memory comes in blocks of that size */
#else
#define DEVICES "sim:cpu,sim:gpu"
enum { WORK_MIB = 0, LEAST_PAIRS = TEST_SANITIZED ? 1 : 2 };
#endif
enum { N_IDS = 24, N_CTX = 64 };

/* by_products: of a processor that is slow at what a prompt does. */
static char profile[512], by_products[512];

/* A GPU so much faster than a processor of so many flop/s, `key` of a machine. */
static void write_rates(const char *path, const char *key, double gpu, double flop, double link) {
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f,
            "{\"atsinfer\": \"profile\", \"version\": 1, \"name\": \"made up\", \"key\": \"%s\","
            "\"memory\": {\"gpu_bytes\": 1073741824, \"host_bytes\": 8589934592},"
            "\"bandwidth\": {\"dram\": 1e9, \"vram\": 1e10},"
            "\"link\": {\"up_pinned\": %g, \"up_staged\": %g, \"down_pinned\": 5e8,"
            "\"down_staged\": 5e8, \"activation_up\": 4e8, \"activation_down\": 4e8,"
            "\"kappa_up\": 1e-7, \"kappa_down\": 1e-7, \"kappa_x\": 1e-7},"
            "\"interference\": {\"cpu_speed_copying\": 0.95, \"copy_speed_cpu\": 0.95},"
            "\"op\": {\"cpu\": 1e-7, \"gpu\": 1e-7},"
            "\"rates\": {\"cpu\": {\"bytes\": 1e9, \"flop\": %g, \"kv_bytes\": 1e9,"
            "\"kv_flop\": 1e10}, \"gpu\": {\"bytes\": %g, \"flop\": %g, \"kv_bytes\": %g,"
            "\"kv_flop\": %g}}}",
            key, link, link, flop, gpu * 1e9, gpu * 1e10, gpu * 1e9, gpu * 1e10);
    fclose(f);
}

static void write_profile(const char *path, const char *key, double gpu) {
    write_rates(path, key, gpu, 1e10, 5e8);
}

static int setup(void **state) {
    (void)state;
    test_tmp_path(profile, sizeof profile, "profile.json");
    write_profile(profile, "", 10);
    test_tmp_path(by_products, sizeof by_products, "by_products.json");
    write_rates(by_products, "", 10, 1e9, 4e8);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    unlink(profile), unlink(by_products);
    return 0;
}

static ats_options planned(const char *model) {
    static char path[512];
    if (!test_shared_path(path, sizeof path, model)) skip();
    ats_options o = agree_options(path);
    o.profile = profile;
    o.devices = DEVICES;
    o.n_ctx = N_CTX;
    o.n_batch = 16;
    return o;
}

/* What an engine that only plans answers. */
static json_t *told_by(ats_options o, char *(*ask)(const ats_engine *)) {
    ats_engine *e;
    json_t *told;
    o.plan_only = true;
    TEST_OK(ats_engine_open(&o, &e));
    char *text = ask(e);
    assert_non_null(text);
    TEST_OK(json_parse(text, strlen(text), &told));
    ats_free(text);
    ats_engine_close(e);
    return told;
}
static json_t *plan_of(ats_options o) {
    return told_by(o, ats_engine_describe);
}

static double number(const json_t *o, const char *key) {
    return json_number_value(test_json_get(o, key));
}

/* Device of the first part of a tensor; and how many parts it has. */
static const char *home_of(const json_t *told, const char *tensor, size_t *n) {
    const json_t *list = test_json_get(test_json_get(told, "plan"), "tensors");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *t = json_array_get(list, i), *parts = test_json_get(t, "parts");
        *n = json_array_size(parts);
        if (strcmp(json_string_value(test_json_get(t, "name")), tensor) == 0)
            return json_string_value(test_json_get(json_array_get(parts, 0), "device"));
    }
    fail_msg("no tensor %s", tensor);
    return NULL;
}

/* ---- budgets ---- */

static void more_memory_is_used_and_never_exceeded(void **state) {
    (void)state;
    ats_options o = planned("models/llama/llama-f16.gguf");
    double last_s = 1e9, first_s = 0;
    int n_shared = 0;
    for (int mib = 1; mib <= 16; mib += TEST_SANITIZED ? 5 : 1) {
        o.vram_mib = mib;
        json_t *told = plan_of(o);
        const json_t *devices = test_json_get(told, "devices");
        const json_t *prediction = json_object_get(test_json_get(told, "plan"), "prediction");
        if (json_array_size(devices) == 2) {
            const json_t *gpu = json_array_get(devices, 1);
            assert_true(number(gpu, "own_bytes") <= mib * 1048576.0);
            n_shared += number(json_array_get(devices, 0), "weight_bytes") > 0;
        }
        if (prediction) { /* none: not even buffers fit */
            double s = number(prediction, "request_s");
            assert_true(s > 0 && s <= last_s * 1.0001);
            if (first_s == 0) first_s = s;
            last_s = s;
        }
        json_decref(told);
    }
    assert_true(n_shared >= 1);
    assert_true(last_s < first_s / 4); /* in the end all of it is on the GPU */
}

/* Of a recurrent model's memory most is states, several for each sequence. */
static void states_are_counted_as_they_are_reserved(void **state) {
    (void)state;
    ats_options o = planned("models/qwen35/qwen35-f16.gguf");
    for (o.vram_mib = 2; o.vram_mib <= 5; o.vram_mib++) {
        json_t *told = plan_of(o);
        const json_t *gpu = json_array_get(test_json_get(told, "devices"), 1);
        const char *how = json_string_value(test_json_get(test_json_get(told, "plan"), "how"));
        assert_non_null(strstr(how, "by measured times"));
        assert_true(number(gpu, "own_bytes") <= o.vram_mib * 1048576.0);
        assert_true(number(gpu, "own_bytes") >= 0.4 * o.vram_mib * 1048576.0);
        json_decref(told);
    }
}

static void a_slow_gpu_is_left_alone(void **state) {
    (void)state;
    char slow[512];
    test_tmp_path(slow, sizeof slow, "slow.json");
    write_profile(slow, "", 0.01);
    ats_options o = planned("models/llama/llama-f16.gguf");
    o.profile = slow;
    json_t *told = plan_of(o);
    const json_t *plan = test_json_get(told, "plan");
    assert_int_equal(json_array_size(test_json_get(told, "devices")), 1);
    assert_non_null(strstr(json_string_value(test_json_get(plan, "how")), "all on the CPU"));
    assert_string_equal(
        json_string_value(test_json_get(test_json_get(plan, "prediction"), "binds")), "cpu");
    json_decref(told);
    unlink(slow);
}

/* ---- rules ---- */

static void rules_are_kept_and_their_cost_is_told(void **state) {
    (void)state;
    const char *override = "blk\\.0\\.ffn=cpu,blk\\.1\\.attn=gpu";
    ats_options o = planned("models/llama/llama-f16.gguf");
    o.overrides = &override;
    o.n_overrides = 1;
    json_t *told = plan_of(o);
    size_t n;
    assert_string_equal(home_of(told, "blk.0.ffn_up.weight", &n), "sim:cpu");
    assert_int_equal(n, 1);
    assert_string_equal(home_of(told, "blk.1.attn_q.weight", &n), "sim:gpu");
    assert_string_equal(home_of(told, "blk.1.ffn_up.weight", &n), "sim:gpu"); /* it all fits */
    const json_t *p = test_json_get(test_json_get(told, "plan"), "prediction");
    assert_true(number(p, "given_items") >= 3);
    assert_true(number(p, "request_s") > number(p, "free_request_s"));
    assert_true(number(p, "cost_ms") > 0);
    json_decref(told);
    o.n_overrides = 0;
    o.gpu_layers = "1"; /* by hand: what it costs is told */
    told = plan_of(o);
    p = test_json_get(test_json_get(told, "plan"), "prediction");
    assert_int_equal(number(test_json_get(told, "plan"), "gpu_layers"), 1);
    assert_true(number(p, "cost_ms") > 0);
    json_decref(told);
    o.gpu_layers = NULL;
    o.profile = "off";
    told = plan_of(o);
    assert_null(json_object_get(test_json_get(told, "plan"), "prediction"));
    assert_true(number(test_json_get(told, "plan"), "gpu_layers") > 1);
    json_decref(told);
}

/* What nobody says: chunks of 512 where nothing is gained by more, decode at the depth of half the
 * context. */
static void what_is_open_is_chosen(void **state) {
    (void)state;
    ats_options o = planned("models/llama/llama-f16.gguf");
    const int chunks[] = {0, 16}, told_chunks[] = {DECIDE_CHUNK, 16};
    for (size_t i = 0; i < COUNT_OF(chunks); i++) {
        o.n_batch = chunks[i], o.plan_depth = i ? 8 : 0;
        json_t *told = plan_of(o);
        const json_t *p = test_json_get(test_json_get(told, "plan"), "prediction");
        assert_int_equal(number(p, "n_batch"), told_chunks[i]);
        assert_int_equal(number(p, "depth"), i ? 8 : N_CTX / 2);
        json_decref(told);
    }
    o.plan_depth = -1;
    ats_engine *e;
    TEST_STATUS(ats_engine_open(&o, &e), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("plan_depth");
}

static json_t *explained(ats_options o) {
    return told_by(o, ats_engine_explain);
}

/* Whole layers, whole tensors, or neither, each no slower than the one before. */
static void plans_are_made_by_granularity(void **state) {
    (void)state;
    static const char *const granularities[] = {"layer", "tensor", "shard"};
    double before_s = 1e9;
    for (size_t g = 0; g < COUNT_OF(granularities); g++) {
        ats_options o = planned("models/llama/llama-f16.gguf");
        size_t i, n_cut = 0, n_mixed = 0;
        json_t *row;
        o.vram_mib = 3 + WORK_MIB, o.granularity = granularities[g], o.transfer = "none";
        json_t *told = plan_of(o), *e = explained(o), *of_layer[64] = {NULL};
        const json_t *p = test_json_get(test_json_get(told, "plan"), "prediction");
        json_array_foreach(test_json_get(e, "items"), i, row) {
            int layer = (int)number(row, "layer");
            double share = number(row, "gpu_share");
            n_cut += share > 0 && share < 1;
            if (layer < 0 || layer >= (int)COUNT_OF(of_layer)) continue;
            if (of_layer[layer]) n_mixed += number(of_layer[layer], "gpu_share") != share;
            of_layer[layer] = row;
        }
        if (g < 2) assert_int_equal(n_cut, 0);
        if (g == 0) assert_int_equal(n_mixed, 0);
        assert_string_equal(json_string_value(test_json_get(e, "granularity")), granularities[g]);
        assert_true(number(p, "streamed_bytes") == 0);
        assert_true(number(p, "request_s") <= 1.001 * before_s);
        before_s = number(p, "request_s");
        json_decref(told), json_decref(e);
    }
    ats_options o = planned("models/llama/llama-f16.gguf");
    ats_engine *e;
    o.granularity = "row";
    TEST_STATUS(ats_engine_open(&o, &e), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("no granularity \"row\"");
    o.granularity = NULL, o.transfer = "theirs";
    TEST_STATUS(ats_engine_open(&o, &e), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("no transfer \"theirs\"");
}

/* Of a plan by hand as well, which nobody gave a budget: as the ledger has it. */
static void memory_is_told_as_it_is_promised(void **state) {
    (void)state;
    ats_options o = planned("models/llama/llama-f16.gguf");
    for (int by_hand = 0; by_hand < 2; by_hand++) {
        o.gpu_layers = by_hand ? "1" : NULL;
        json_t *told = plan_of(o), *e = explained(o);
        const json_t *gpu = json_array_get(test_json_get(told, "devices"), 1),
                     *m = test_json_get(e, "memory");
        double slots = number(m, "slots") * number(m, "slot_bytes");
        assert_true(number(m, "usable_bytes") == number(gpu, "limit_bytes"));
        assert_true(number(m, "work_bytes") == number(gpu, "work_bytes"));
        assert_true(fabs(slots - number(gpu, "slot_bytes")) < 1);
        assert_true(fabs(number(m, "budget_bytes") + number(m, "work_bytes") + slots -
                         number(m, "usable_bytes")) < 1);
        assert_true(number(m, "budget_bytes") > 0 && number(m, "work_bytes") > 0);
        json_decref(told), json_decref(e);
    }
}

/* ---- results ---- */

static void logits_are_those_of_the_cpu(void **state) {
    (void)state;
    static const struct {
        const char *model;
        int mib;
    } cases[] = {{"models/llama/llama-f16.gguf", 3},
                 {"models/qwen3moe/qwen3moe-f32.gguf", 3},
                 {"models/gptoss/gptoss-f16.gguf", 4},
                 {"models/gemma3/gemma3-f16.gguf", 4},
                 {"models/qwen35/qwen35-f16.gguf", 4}};
    int32_t ids[N_IDS];
    int n_shared = 0;
    for (size_t i = 0; i < COUNT_OF(cases); i += TEST_SANITIZED ? 2 : 1) {
        ats_options o = planned(cases[i].model);
        float *want = agree_plain(o.model, ids, N_IDS);
        o.vram_mib = cases[i].mib + WORK_MIB;
        ats_engine *e = agree_open(&o);
        ats_info info;
        ats_engine_info(e, &info);
        n_shared += info.n_devices == 2;
        float *got = agree_logits(e, ids, N_IDS, 0);
        assert_true(test_max_abs_diff(got, want, (size_t)agree_vocab(e) * N_IDS) < 1e-3);
        free(got), free(want);
        ats_engine_close(e);
    }
    assert_true(n_shared >= (TEST_SANITIZED ? 2 : 3));
}

/* ---- two programs ---- */

/* One MiB of the GPU holds a part of the tiny models. */
static ats_options with_products(const char *model) {
    ats_options o = planned(model);
    o.profile = by_products;
    o.vram_mib = 1 + WORK_MIB;
    return o;
}

static size_t count_in_prompts(const json_t *plan) {
    const json_t *tensors = test_json_get(plan, "tensors"), *tensor, *part;
    size_t i, k, n = 0;
    json_array_foreach(tensors, i, tensor)
        json_array_foreach(test_json_get(tensor, "parts"), k, part) n +=
        json_object_get(part, "in_prompts") != NULL;
    return n;
}

/* Within the same memory, and never for nothing; told as it is. */
static void prompts_may_have_a_program_of_their_own(void **state) {
    (void)state;
    int n_pairs = 0;
    for (int n_ctx = 64; n_ctx <= 192; n_ctx += TEST_SANITIZED ? 96 : 32) {
        ats_options o = with_products("models/llama/llama-f16.gguf");
        o.n_ctx = n_ctx;
        json_t *told = plan_of(o);
        const json_t *plan = test_json_get(told, "plan"), *devices = test_json_get(told, "devices");
        const json_t *p = json_object_get(plan, "prediction");
        o.one_program = true;
        json_t *other = plan_of(o);
        const json_t *old = test_json_get(other, "plan"), *q = json_object_get(old, "prediction");
        assert_null(json_object_get(old, "prompts_from"));
        assert_int_equal(count_in_prompts(old), 0);
        assert_int_equal(p != NULL, q != NULL);
        if (p) assert_true(number(p, "request_s") <= number(q, "request_s"));
        if (p) assert_true(number(p, "prefill_tok_s") >= number(q, "prefill_tok_s"));
        if (json_array_size(devices) == 2)
            assert_true(number(json_array_get(devices, 1), "own_bytes") <= 1048576.0);
        if (json_object_get(plan, "prompts_from")) {
            n_pairs++;
            assert_true(number(p, "request_s") < 0.99 * number(q, "request_s"));
            assert_true(number(p, "prefill_tok_s") > number(q, "prefill_tok_s"));
            assert_true(number(p, "prompts_streamed_bytes") > 0);
            assert_int_equal(number(p, "prompts_from"), number(plan, "prompts_from"));
            assert_true(count_in_prompts(plan) > 0);
            assert_non_null(
                strstr(json_string_value(test_json_get(plan, "how")), "tokens and more"));
        } else {
            assert_int_equal(count_in_prompts(plan), 0);
        }
        json_decref(told), json_decref(other);
    }
    assert_true(n_pairs >= (TEST_SANITIZED ? 1 : 3));
}

static void prompts_of_two_programs_have_the_same_logits(void **state) {
    (void)state;
    static const char *const models[] = {
        "models/qwen35/qwen35-f16.gguf", "models/qwen3moe/qwen3moe-f32.gguf",
        "models/llama/llama-f16.gguf", "models/gptoss/gptoss-f16.gguf"};
    int32_t ids[N_IDS];
    int n_pairs = 0;
    for (size_t i = 0; i < COUNT_OF(models); i += TEST_SANITIZED ? 2 : 1) {
        ats_options o = with_products(models[i]);
        float *want = agree_plain(o.model, ids, N_IDS);
        ats_engine *e = agree_open(&o);
        const struct programs *programs = executor_programs(e->executor);
        n_pairs += programs->n == 2;
        if (programs->n == 2) { /* rounds of 16 and 8 tokens are prompts, of one are not */
            assert_int_equal(programs_of_round(programs, o.n_batch), PROGRAM_PROMPTS);
            assert_int_equal(programs_of_round(programs, 1), PROGRAM_DECODE);
            assert_true(programs->at[PROGRAM_PROMPTS]->n_transfers >
                        programs->at[PROGRAM_DECODE]->n_transfers);
        }
        for (size_t chunk = 0; chunk < 2; chunk++) {
            float *got = agree_logits(e, ids, N_IDS, chunk);
            assert_true(test_max_abs_diff(got, want, (size_t)agree_vocab(e) * N_IDS) < 1e-3);
            free(got);
        }
        free(want);
        ats_engine_close(e);
    }
    assert_true(n_pairs >= LEAST_PAIRS);
}

/* Saved and read again it is the same plan, and as fast. */
static void two_programs_are_kept_in_a_file(void **state) {
    (void)state;
    char path[512], *text[2];
    json_t *told[2];
    test_tmp_path(path, sizeof path, "pair.json");
    ats_options o = with_products("models/llama/llama-f16.gguf");
    o.plan_only = true;
    o.n_ctx = 128; /* where prompts have one of their own */
    for (int k = 0; k < 2; k++) {
        ats_engine *e;
        TEST_OK(ats_engine_open(&o, &e));
        text[k] = ats_engine_plan(e);
        ats_engine_close(e);
        told[k] = plan_of(o);
        if (k == 0) TEST_OK(file_write(path, text[k], strlen(text[k])));
        o.plan = path, o.vram_mib = 0;
    }
    assert_non_null(strstr(text[0], "\"prompts\""));
    assert_string_equal(text[0], text[1]);
    const json_t *p = test_json_get(test_json_get(told[0], "plan"), "prediction"),
                 *q = test_json_get(test_json_get(told[1], "plan"), "prediction");
    static const char *const keys[] = {"decode_tok_s", "prefill_tok_s", "prompts_streamed_bytes"};
    for (size_t i = 0; i < COUNT_OF(keys); i++) {
        double ratio = number(q, keys[i]) / number(p, keys[i]);
        if (!(ratio > 0.97 && ratio < 1.03)) fail_msg("%s: %g of it", keys[i], ratio);
    }
    assert_int_equal(number(q, "prompts_from"), number(p, "prompts_from"));
    for (int k = 0; k < 2; k++)
        ats_free(text[k]), json_decref(told[k]);
    unlink(path);
}

/* ---- profiles ---- */

static void expect_refused(const ats_options *o, ats_status status, const char *part) {
    ats_engine *e;
    TEST_STATUS(ats_engine_open(o, &e), status);
    TEST_ERROR_HAS(part);
    assert_null(e);
}

/* The engine's plan of the CPU alone, with the output streamed, as a file. */
static void write_streaming_plan(ats_options o, const char *path) {
    ats_engine *e;
    json_t *plan;
    int n_rows = 0;
    o.plan_only = true;
    o.gpu_layers = "1";
    TEST_OK(ats_engine_open(&o, &e));
    char *text = ats_engine_plan(e);
    TEST_OK(json_parse(text, strlen(text), &plan));
    ats_free(text);
    n_rows = (int)json_integer_value(test_json_get(test_json_get(plan, "model"), "n_vocab"));
    ats_engine_close(e);
    json_t *part = json_pack("{s:s, s:s, s:i, s:i, s:b}", "device", "sim:gpu", "axis", "rows",
                             "begin", 0, "end", n_rows, "streamed", 1);
    json_object_set_new(test_json_get(plan, "homes"), "output.weight", json_pack("[o]", part));
    json_object_set_new(plan, "slots", json_pack("{s:i}", "sim:gpu", 1));
    assert_int_equal(json_dump_file(plan, path, 0), 0);
    json_decref(plan);
}

/* What a plan by hand costs is told, what it streams included. */
static void a_plan_by_hand_that_streams_is_judged(void **state) {
    (void)state;
    char path[512];
    test_tmp_path(path, sizeof path, "plan.json");
    ats_options o = planned("models/llama/llama-f16.gguf");
    write_streaming_plan(o, path);
    o.plan = path;
    json_t *told = plan_of(o);
    const json_t *plan = test_json_get(told, "plan"), *p = test_json_get(plan, "prediction");
    assert_non_null(strstr(json_string_value(test_json_get(plan, "how")), "predicted"));
    assert_true(number(p, "streamed_bytes") > 0);
    assert_int_equal((int)number(p, "slots"), 1);
    assert_true(number(p, "cost_ms") > 0); /* all of it fits */
    assert_true(number(p, "decode_s") > number(p, "free_decode_s"));
    json_decref(told);
    unlink(path);
}

static void count_unread(void *user, int level, const char *text) {
    (void)level;
    if (strstr(text, "other.json is not read")) ++*(int *)user;
}

static void wrong_profiles_are_refused(void **state) {
    (void)state;
    char other[512];
    test_tmp_path(other, sizeof other, "other.json");
    ats_options o = planned("models/llama/llama-f16.gguf");
    o.plan_only = true;
    o.profile = other;
    expect_refused(&o, ATS_IO, "other.json");
    write_profile(other, "1; cpu on a Z80, ref, 1 threads; context 64; 1 operators 0", 10);
    expect_refused(&o, ATS_BAD_ARGUMENT, "of another machine");
    TEST_OK(file_write(other, "{}", 2));
    expect_refused(&o, ATS_BAD_FILE, "other.json");
    o.devices = "sim:cpu"; /* nothing to divide: not even read, which is said */
    ats_engine *e;
    int n_told = 0;
    ats_log_set(count_unread, &n_told, 1);
    TEST_OK(ats_engine_open(&o, &e));
    ats_log_set(NULL, NULL, 0);
    ats_engine_close(e);
    assert_int_equal(n_told, 1);
    unlink(other);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_are_those_of_the_cpu),
        cmocka_unit_test(prompts_of_two_programs_have_the_same_logits),
    };
    const struct CMUnitTest plans[] = {
        /* these only plan, which starts no thread */
        cmocka_unit_test(more_memory_is_used_and_never_exceeded),
        cmocka_unit_test(states_are_counted_as_they_are_reserved),
        cmocka_unit_test(a_slow_gpu_is_left_alone),
        cmocka_unit_test(rules_are_kept_and_their_cost_is_told),
        cmocka_unit_test(what_is_open_is_chosen),
        cmocka_unit_test(plans_are_made_by_granularity),
        cmocka_unit_test(memory_is_told_as_it_is_promised),
        cmocka_unit_test(prompts_may_have_a_program_of_their_own),
        cmocka_unit_test(two_programs_are_kept_in_a_file),
        cmocka_unit_test(a_plan_by_hand_that_streams_is_judged),
        cmocka_unit_test(wrong_profiles_are_refused),
    };
#ifdef PLANNER_ON_VULKAN
    if (!agree_has_vulkan()) return 77;
    const bool rounds_only = true;
#else
    const bool rounds_only = TEST_THREADS_SANITIZED;
#endif
    int n_failed = cmocka_run_group_tests_name("rounds", tests, setup, teardown);
    if (!rounds_only) n_failed += cmocka_run_group_tests_name("plans", plans, setup, teardown);
    return n_failed;
}
