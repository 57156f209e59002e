/* What an engine makes of the rules of a plan: which devices, what fits, what it says; on
 * simulated devices, whose GPU has as much memory as its name says. */
#include "agree.h"

#include "base/file.h"

#define LLAMA "models/llama/llama-f16.gguf"

enum { N_IDS = 12 };

static ats_options sim_options(const char *devices) {
    static char path[512];
    if (!test_shared_path(path, sizeof path, LLAMA)) skip();
    ats_options o = agree_options(path);
    o.devices = devices;
    o.n_ctx = 64;
    o.n_batch = 16;
    return o;
}

static json_t *describe(const ats_engine *e) {
    json_t *o;
    char *text = ats_engine_describe(e);
    TEST_OK(json_parse(text, strlen(text), &o));
    ats_free(text);
    return o;
}

/* The plan without weights; owned. */
static json_t *plan_of(ats_options o) {
    ats_engine *e;
    o.plan_only = true;
    TEST_OK(ats_engine_open(&o, &e));
    json_t *described = describe(e);
    ats_engine_close(e);
    return described;
}

static json_int_t int_at(const json_t *o, const char *key) {
    return json_integer_value(test_json_get(o, key));
}

/* Layers whose feed-forward is on a device of this name. */
static int layers_on(const json_t *described, const char *device) {
    const json_t *tensors = test_json_get(test_json_get(described, "plan"), "tensors");
    int n = 0;
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *t = json_array_get(tensors, i);
        const json_t *part = json_array_get(test_json_get(t, "parts"), 0);
        n += strstr(json_string_value(test_json_get(t, "name")), "ffn_up") != NULL &&
             strcmp(json_string_value(test_json_get(part, "device")), device) == 0;
    }
    return n;
}

static int n_layers_of(const json_t *described) {
    return (int)int_at(described, "n_layers");
}

static void expect_refused(const ats_options *o, ats_status status, const char *part) {
    ats_engine *e;
    TEST_STATUS(ats_engine_open(o, &e), status);
    TEST_ERROR_HAS(part);
    assert_null(e);
}

static void layers_go_where_rules_say(void **state) {
    (void)state;
    ats_options o = sim_options("sim:cpu,sim:gpu");
    static const char *const texts[] = {"0", "1", "all", "auto"};
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        o.gpu_layers = texts[i];
        json_t *d = plan_of(o);
        int n = n_layers_of(d), want = i < 2 ? (int)i : n;
        assert_int_equal(layers_on(d, "sim:gpu"), want);
        assert_int_equal(layers_on(d, "sim:cpu"), n - want);
        assert_int_equal(json_array_size(test_json_get(d, "devices")), want ? 2 : 1);
        json_decref(d);
    }
    o.devices = "sim:gpu"; /* the CPU joins for the rest */
    o.gpu_layers = "1";
    json_t *d = plan_of(o);
    assert_int_equal(layers_on(d, "sim:gpu"), 1);
    assert_int_equal(layers_on(d, "sim:cpu"), n_layers_of(d) - 1);
    json_decref(d);
}

static void overrides_win_over_layers(void **state) {
    (void)state;
    ats_options o = sim_options("sim:gpu,sim:cpu");
    const char *overrides[] = {"blk\\.0\\.ffn=gpu,ffn=cpu", "attn=GPU"};
    o.gpu_layers = "all";
    o.overrides = overrides;
    o.n_overrides = 2;
    json_t *d = plan_of(o);
    assert_int_equal(layers_on(d, "sim:gpu"), 1);
    json_decref(d);
}

/* What each number of MiB holds: more and more, and never more than it is. */
static void a_budget_is_filled_and_never_exceeded(void **state) {
    (void)state;
    ats_options o = sim_options("sim:cpu,sim:gpu");
    int last = 0, n_steps = 0;
    for (int mib = 1; mib <= 24; mib++) {
        o.vram_mib = mib;
        json_t *d = plan_of(o);
        const json_t *devices = test_json_get(d, "devices");
        int n = layers_on(d, "sim:gpu");
        assert_true(n >= last);
        n_steps += n > last;
        last = n;
        if (json_array_size(devices) == 2) {
            const json_t *gpu = json_array_get(devices, 1);
            assert_true(int_at(gpu, "own_bytes") <= (json_int_t)mib << 20);
            assert_int_equal(int_at(gpu, "limit_bytes"), (json_int_t)mib << 20);
        } else {
            assert_int_equal(n, 0);
        }
        json_decref(d);
    }
    assert_true(n_steps >= 1);
    const json_int_t gib8 = INT64_C(8) << 30;
    o.vram_mib = 1 << 20; /* more than it has: said, and its own are used */
    json_t *d = plan_of(o);
    const json_t *gpu = json_array_get(test_json_get(d, "devices"), 1);
    assert_int_equal(int_at(gpu, "limit_bytes"), gib8 - gib8 / 20);
    json_decref(d);
}

static void a_device_of_its_own_memory_is_not_the_hosts(void **state) {
    (void)state;
    ats_options o = sim_options("sim:cpu,sim:gpu");
    o.gpu_layers = "all";
    json_t *d = plan_of(o);
    const json_t *devices = test_json_get(d, "devices");
    const json_t *cpu = json_array_get(devices, 0), *gpu = json_array_get(devices, 1);
    assert_false(json_is_true(test_json_get(gpu, "host_memory")));
    assert_true(int_at(gpu, "own_bytes") > 0 && int_at(gpu, "kv_bytes") > 0);
    assert_int_equal(int_at(test_json_get(d, "host"), "needed_bytes"),
                     int_at(cpu, "own_bytes") + int_at(cpu, "pinned_bytes") +
                         int_at(gpu, "pinned_bytes"));
    json_decref(d);
}

static void memory_that_is_short_is_told_with_the_sums(void **state) {
    (void)state;
    ats_options o = sim_options("sim:cpu,sim:gpu");
    o.gpu_layers = "all";
    o.vram_mib = 1;
    expect_refused(&o, ATS_NO_MEMORY, "1 MiB of its memory may be used");
    TEST_ERROR_HAS("weights");
    o.vram_mib = 0;
    o.devices = "sim:cpu,sim:gpu:100"; /* less than what has to stay free */
    expect_refused(&o, ATS_NO_MEMORY, "0 MiB of its memory may be used (100 of 100 are free)");
    o.gpu_layers = NULL;
    json_t *d = plan_of(o);
    assert_int_equal(json_array_size(test_json_get(d, "devices")), 1);
    json_decref(d);
}

/* Saved, read again, and the same to the bit: the file alone says which devices. */
static void a_saved_plan_gives_the_same_logits(void **state) {
    (void)state;
    char path[512];
    int32_t ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 11) % 620;
    test_tmp_path(path, sizeof path, "plan.json");
    for (uint64_t seed = 1; seed <= 4; seed++) {
        ats_options o = sim_options("sim:cpu,sim:gpu,sim:cpu");
        o.plan_seed = seed;
        ats_engine *e = agree_open(&o);
        float *want = agree_logits(e, ids, N_IDS, 0);
        char *plan = ats_engine_plan(e);
        size_t n = (size_t)agree_vocab(e) * N_IDS;
        TEST_OK(file_write(path, plan, strlen(plan)));
        ats_engine_close(e);
        o.plan_seed = 0;
        o.devices = NULL;
        o.plan = path;
        e = agree_open(&o);
        char *again = ats_engine_plan(e);
        assert_string_equal(plan, again);
        float *got = agree_logits(e, ids, N_IDS, 0);
        assert_memory_equal(got, want, n * sizeof *got);
        free(got), free(want);
        ats_free(plan), ats_free(again);
        ats_engine_close(e);
        o.devices = "sim:cpu,sim:chaos,sim:cpu";
        expect_refused(&o, ATS_BAD_ARGUMENT, "\"sim:gpu\" is not among");
    }
}

/* The parts of a tensor if the first half of its block's units goes to the second device. */
static json_t *halves(const json_t *tensor) {
    if (!json_object_get(tensor, "n_units")) return json_string("sim:cpu");
    json_int_t unit = int_at(tensor, "unit_elements"), n = int_at(tensor, "n_units");
    const char *axis = json_string_value(test_json_get(tensor, "unit_axis"));
    return json_pack("[{s:s, s:s, s:I, s:I}, {s:s, s:s, s:I, s:I}]", "device", "sim:gpu", "axis",
                     axis, "begin", (json_int_t)0, "end", n / 2 * unit, "device", "sim:cpu", "axis",
                     axis, "begin", n / 2 * unit, "end", n * unit);
}

/* What is told of units is enough to write a plan that divides every block. */
static void told_units_make_a_plan(void **state) {
    (void)state;
    char path[512];
    ats_options o = sim_options("sim:cpu,sim:gpu");
    json_t *d = plan_of(o), *tensor;
    const json_t *tensors = test_json_get(test_json_get(d, "plan"), "tensors");
    size_t i, n_divided = 0;
    ats_engine *e;
    o.plan_only = true;
    TEST_OK(ats_engine_open(&o, &e));
    char *plan = ats_engine_plan(e), *text;
    json_t *file;
    TEST_OK(json_parse(plan, strlen(plan), &file));
    ats_free(plan);
    ats_engine_close(e);
    json_array_foreach(tensors, i, tensor) {
        const char *name = json_string_value(test_json_get(tensor, "name"));
        json_object_set_new(json_object_get(file, "homes"), name, halves(tensor));
    }
    text = json_print(file, false);
    test_tmp_path(path, sizeof path, "halves.json");
    TEST_OK(file_write(path, text, strlen(text)));
    free(text);
    json_decref(file), json_decref(d);
    o.devices = NULL;
    o.plan = path;
    d = plan_of(o);
    json_array_foreach(test_json_get(test_json_get(d, "plan"), "tensors"), i, tensor) {
        bool divided = json_array_size(test_json_get(tensor, "parts")) == 2;
        assert_int_equal(divided, json_object_get(tensor, "n_units") != NULL);
        n_divided += divided;
    }
    assert_true(n_divided >= 8 * (size_t)n_layers_of(d)); /* q k v kv o, gate up down */
    json_decref(d);
}

static void wrong_rules_are_refused(void **state) {
    (void)state;
    ats_options o = sim_options("sim:cpu,sim:gpu");
    const char *override = "ffn=tpu";
    o.overrides = &override;
    o.n_overrides = 1;
    expect_refused(&o, ATS_BAD_ARGUMENT, "no device \"tpu\"; devices: cpu, gpu, sim:cpu, sim:gpu");
    override = "nothing_of_this=cpu";
    expect_refused(&o, ATS_BAD_ARGUMENT, "matches no tensor");
    o.n_overrides = 0;
    o.gpu_layers = "many";
    expect_refused(&o, ATS_BAD_ARGUMENT, "\"many\" is no number of layers");
    o.gpu_layers = "1";
    o.plan = "x.json";
    expect_refused(&o, ATS_BAD_ARGUMENT, "excludes rules");
    o.plan = NULL;
    o.plan_seed = 1;
    expect_refused(&o, ATS_BAD_ARGUMENT, "random");
    o.plan_seed = 0;
    o.devices = "sim:cpu,sim:gpu,sim:gpu";
    expect_refused(&o, ATS_UNSUPPORTED, "one CPU and one GPU");
    o = sim_options(NULL);
    o.plan = "no/such/plan.json";
    expect_refused(&o, ATS_IO, "no/such/plan.json");
    o.plan = TEST_SOURCE_ROOT "/meson.build";
    expect_refused(&o, ATS_BAD_FILE, "meson.build: JSON");
    static const char other[] = "{\"format\": \"atsinfer plan\", \"version\": 1, \"model\": {}, "
                                "\"devices\": [\"cpu\", \"tpu\"], \"homes\": {}}";
    char path[512];
    test_tmp_path(path, sizeof path, "other.json");
    o.plan = path;
    TEST_OK(file_write(path, other, strlen(other)));
    expect_refused(&o, ATS_UNSUPPORTED, "other.json: there is no device \"tpu\"");
    o.plan = NULL;
    o.vram_mib = -1;
    expect_refused(&o, ATS_BAD_ARGUMENT, "vram_mib");
}

static void a_plan_alone_has_no_sessions(void **state) {
    (void)state;
    ats_options o = sim_options("sim:cpu,sim:gpu");
    ats_engine *e;
    ats_session *s;
    o.plan_only = true;
    TEST_OK(ats_engine_open(&o, &e));
    TEST_STATUS(ats_session_open(e, &s), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("plan only");
    ats_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layers_go_where_rules_say),
        cmocka_unit_test(overrides_win_over_layers),
        cmocka_unit_test(a_budget_is_filled_and_never_exceeded),
        cmocka_unit_test(a_device_of_its_own_memory_is_not_the_hosts),
        cmocka_unit_test(memory_that_is_short_is_told_with_the_sums),
        cmocka_unit_test(a_saved_plan_gives_the_same_logits),
        cmocka_unit_test(told_units_make_a_plan),
        cmocka_unit_test(wrong_rules_are_refused),
        cmocka_unit_test(a_plan_alone_has_no_sessions),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
