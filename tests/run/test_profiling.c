/* Kept profiles, on simulated devices: found again for the same machine and model, not for others;
 * a file that is broken, or of something else, is measured again. */
#include "atsinfer.h"
#include "base/file.h"
#include "support.h"

#include <stdio.h>
#include <unistd.h>

static const char shape[] =
    "{\"atsinfer\": \"shape\", \"version\": 1, \"metadata\": {"
    "\"general.architecture\": \"qwen3\", \"general.name\": \"small\","
    "\"qwen3.block_count\": 1, \"qwen3.context_length\": 256,"
    "\"qwen3.embedding_length\": 256, \"qwen3.feed_forward_length\": 256,"
    "\"qwen3.attention.head_count\": 4, \"qwen3.attention.head_count_kv\": 4,"
    "\"qwen3.attention.key_length\": 64, \"qwen3.attention.value_length\": 64,"
    "\"qwen3.attention.layer_norm_rms_epsilon\": 1e-06, \"qwen3.rope.freq_base\": 10000.0},"
    "\"tensors\": [[\"token_embd.weight\", \"Q4_K\", [256, 256]],"
    "[\"output_norm.weight\", \"F32\", [256]], [\"output.weight\", \"Q4_K\", [256, %d]],"
    "[\"blk.0.attn_norm.weight\", \"F32\", [256]], [\"blk.0.ffn_norm.weight\", \"F32\", [256]],"
    "[\"blk.0.attn_q.weight\", \"Q4_K\", [256, 256]],"
    "[\"blk.0.attn_k.weight\", \"Q4_K\", [256, 256]],"
    "[\"blk.0.attn_v.weight\", \"%s\", [256, 256]],"
    "[\"blk.0.attn_output.weight\", \"Q4_K\", [256, 256]],"
    "[\"blk.0.attn_q_norm.weight\", \"F32\", [64]], [\"blk.0.attn_k_norm.weight\", \"F32\", [64]],"
    "[\"blk.0.ffn_gate.weight\", \"Q4_K\", [256, 256]],"
    "[\"blk.0.ffn_up.weight\", \"Q4_K\", [256, 256]],"
    "[\"blk.0.ffn_down.weight\", \"Q4_K\", [256, 256]]]}";

static char model[512], other_model[512], cache[512];

static void write_shape(char *path, size_t n, const char *name, const char *type) {
    test_tmp_path(path, n, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fprintf(f, shape, 256, type);
    fclose(f);
}

static bool never(void *user, const char *what, uint64_t done, uint64_t total) {
    (void)what, (void)done, (void)total;
    ++*(int *)user;
    return false;
}

static ats_profiling quick(void) {
    ats_profiling p;
    ats_profiling_default(&p);
    p.model = model;
    p.devices = "sim:cpu,sim:gpu";
    p.n_threads = 1;
    p.quick = true;
    return p;
}

/* Measures once for all tests; path is the file's. */
static char kept[600];

static int measure_once(void **state) {
    (void)state;
    test_tmp_path(cache, sizeof cache, "cache");
    setenv("XDG_CACHE_HOME", cache, 1);
    write_shape(model, sizeof model, "small.json", "Q4_K");
    write_shape(other_model, sizeof other_model, "other.json", "Q6_K");
    ats_profiling p = quick();
    char *text, *path;
    json_t *json;
    assert_null(ats_profile_find(&p));
    TEST_OK(ats_profile(&p, &text));
    TEST_OK(json_parse(text, strlen(text), &json));
    ats_free(text);
    assert_true(json_is_true(test_json_get(json, "measured")));
    assert_true(json_number_value(test_json_get(json, "seconds")) > 0);
    assert_true(json_array_size(test_json_get(test_json_get(json, "profile"), "items")) > 2);
    path = ats_profile_find(&p);
    assert_non_null(path);
    assert_string_equal(path, json_string_value(test_json_get(json, "path")));
    snprintf(kept, sizeof kept, "%s", path);
    ats_free(path);
    json_decref(json);
    return 0;
}

static int remove_cache(void **state) {
    (void)state;
    char dir[600];
    snprintf(dir, sizeof dir, "%s/atsinfer", cache);
    unlink(kept);
    rmdir(dir);
    rmdir(cache);
    return 0;
}

static void kept_profile_is_not_measured_again(void **state) {
    (void)state;
    ats_profiling p = quick();
    int calls = 0;
    char *text;
    json_t *json;
    p.progress = never;
    p.progress_user = &calls;
    TEST_OK(ats_profile(&p, &text));
    TEST_OK(json_parse(text, strlen(text), &json));
    ats_free(text);
    assert_false(json_is_true(test_json_get(json, "measured")));
    assert_int_equal(calls, 0);
    json_decref(json);
    p.force = true;
    TEST_STATUS(ats_profile(&p, &text), ATS_CANCELLED);
    assert_int_equal(calls, 1);
}

static void expect_none(const ats_profiling *p) {
    char *path = ats_profile_find(p);
    assert_null(path);
}

static void other_models_threads_and_devices_have_none(void **state) {
    (void)state;
    ats_profiling p = quick();
    p.model = other_model;
    expect_none(&p);
    p = quick();
    p.n_threads = 2;
    expect_none(&p);
    p = quick();
    p.devices = "sim:cpu,sim:gpu:512";
    expect_none(&p);
    p = quick();
    p.devices = "sim:cpu"; /* no GPU, nothing to plan */
    expect_none(&p);
    p = quick();
    p.model = "/no/such/model.gguf";
    expect_none(&p);
}

/* Broken, of another key, or of no machine that there can be: each is passed over. */
static void what_is_wrong_with_the_file_is_measured_again(void **state) {
    (void)state;
    static const char *const edits[][2] = {
        {"1 threads", "9 threads"}, {"\"version\": 1", "\"version\": 2"}, {"{", "["}};
    char *whole, *text;
    size_t n;
    int calls = 0;
    TEST_OK(file_read(kept, 1 << 24, &whole, &n));
    for (size_t i = 0; i <= COUNT_OF(edits); i++) {
        char *copy = strdup(whole), *at = NULL;
        size_t length = i == COUNT_OF(edits) ? n / 2 : n; /* the last: half of it */
        if (i < COUNT_OF(edits)) at = strstr(copy, edits[i][0]);
        if (i == 1 && !at) at = strstr(copy, "\"version\":1"); /* as it is printed */
        if (i < COUNT_OF(edits)) assert_non_null(at);
        if (at && i == 1) at[strcspn(at, "1")] = '2';
        if (at && i != 1) memcpy(at, edits[i][1], strlen(edits[i][1]));
        TEST_OK(file_write(kept, copy, length));
        free(copy);
        ats_profiling p = quick();
        p.progress = never;
        p.progress_user = &calls;
        expect_none(&p);
        TEST_STATUS(ats_profile(&p, &text), ATS_CANCELLED);
        assert_int_equal(calls, (int)i + 1);
    }
    TEST_OK(file_write(kept, whole, n));
    free(whole);
    ats_profiling p = quick();
    char *path = ats_profile_find(&p);
    assert_non_null(path);
    ats_free(path);
}

static void kept_profile_is_a_machine_to_plan_for(void **state) {
    (void)state;
    ats_simulation s;
    char *text;
    json_t *json;
    ats_simulation_default(&s);
    s.model = model;
    s.machine = kept;
    s.n_ctx = 256;
    TEST_OK(ats_explain(&s, &text));
    TEST_OK(json_parse(text, strlen(text), &json));
    assert_string_equal(json_string_value(test_json_get(json, "machine")), "simulated devices");
    assert_true(json_array_size(test_json_get(json, "items")) > 2);
    json_decref(json);
    ats_free(text);
    s.model = other_model;
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("measure again");
}

/* Kept for its processor; there is nothing to divide. */
static void a_machine_without_a_gpu_is_none_to_plan_for(void **state) {
    (void)state;
    ats_profiling p = quick();
    ats_simulation s;
    char *text;
    json_t *json;
    p.devices = "sim:cpu";
    TEST_OK(ats_profile(&p, &text));
    TEST_OK(json_parse(text, strlen(text), &json));
    ats_free(text);
    ats_simulation_default(&s);
    s.model = model;
    s.machine = json_string_value(test_json_get(json, "path"));
    TEST_STATUS(ats_explain(&s, &text), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("has no GPU");
    TEST_STATUS(ats_simulate(&s, &text), ATS_UNSUPPORTED);
    unlink(s.machine);
    json_decref(json);
}

/* Other cache types and other arithmetic are other operators: of their own profile, which an engine
 * of these options finds and one of others does not. */
static void engine_finds_the_profile_of_its_types(void **state) {
    (void)state;
    char gguf[512];
    ats_profiling p = quick();
    if (!test_shared_path(gguf, sizeof gguf, "models/llama/llama-f16.gguf")) skip();
    p.model = gguf;
    p.kv_k = p.kv_v = ATS_KV_Q8_0;
    p.math = ATS_MATH_F32;
    expect_none(&p);
    char *text, *path;
    TEST_OK(ats_profile(&p, &text));
    assert_non_null(strstr(text, "Q8_0"));
    assert_non_null(strstr(text, "\"math\": \"f32\""));
    ats_free(text);
    path = ats_profile_find(&p);
    assert_non_null(path);
    for (int same = 0; same < 2; same++) {
        ats_options o;
        ats_options_default(&o);
        o.model = gguf;
        o.devices = p.devices;
        o.n_threads = p.n_threads;
        o.plan_only = true;
        o.kv_k = o.kv_v = same ? ATS_KV_Q8_0 : ATS_KV_F32;
        o.math = p.math;
        ats_engine *e;
        TEST_OK(ats_engine_open(&o, &e));
        text = ats_engine_explain(e);
        assert_int_equal(text && strstr(text, path), same);
        ats_free(text);
        ats_engine_close(e);
    }
    unlink(path);
    ats_free(path);
}

static void a_machine_is_planned_for_with_caches_of_a_type(void **state) {
    (void)state;
    ats_simulation s;
    char *text;
    ats_simulation_default(&s);
    s.model = model;
    s.machine = kept;
    s.n_ctx = 256;
    s.kv_k = s.kv_v = ATS_KV_Q8_0; /* whose attention was not measured */
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("no time for blk.0.attn_kv");
    s.kv_v = (ats_kv_type)7;
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("kv_v is 7");
}

static void wrong_devices_are_refused(void **state) {
    (void)state;
    static const char *const lists[] = {"sim:cpu,sim:cpu", "sim:gpu,sim:gpu", "sim:cpu,", ""};
    char *text;
    for (size_t i = 0; i < COUNT_OF(lists); i++) {
        ats_profiling p = quick();
        p.devices = lists[i];
        TEST_STATUS(ats_profile(&p, &text), ATS_BAD_ARGUMENT);
        assert_null(text);
    }
    ats_profiling p = quick();
    p.n_threads = -1;
    TEST_STATUS(ats_profile(&p, &text), ATS_BAD_ARGUMENT);
    p = quick();
    p.math = (ats_math)3;
    TEST_STATUS(ats_profile(&p, &text), ATS_BAD_ARGUMENT);
    p = quick();
    p.model = NULL;
    TEST_STATUS(ats_profile(&p, &text), ATS_BAD_ARGUMENT);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kept_profile_is_not_measured_again),
        cmocka_unit_test(other_models_threads_and_devices_have_none),
        cmocka_unit_test(what_is_wrong_with_the_file_is_measured_again),
        cmocka_unit_test(kept_profile_is_a_machine_to_plan_for),
        cmocka_unit_test(a_machine_without_a_gpu_is_none_to_plan_for),
        cmocka_unit_test(engine_finds_the_profile_of_its_types),
        cmocka_unit_test(a_machine_is_planned_for_with_caches_of_a_type),
        cmocka_unit_test(wrong_devices_are_refused),
    };
    return cmocka_run_group_tests(tests, measure_once, remove_cache);
}
