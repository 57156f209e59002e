/* What is given to a simulation: homes, whole plans, plans that stream, plans to compare with. They
 * are obeyed as they are, told as they were made, and refused where they do not fit. */
#include "base/file.h"
#include "described.h"
#include "plan/file.h"
#include "run/simulate.h"

#include <math.h>
#include <stdlib.h>

/* ---- given homes ---- */

static ats_simulation given(void) {
    ats_simulation s = described("gpt-oss-20b", "desktop-rtx5070-12gb");
    s.n_slots = 0;
    s.vram_mib = 8000; /* not all of it fits */
    return s;
}

static double fixed_items(const json_t *json) {
    return number(test_json_get(json, "fixed"), "items");
}

/* The cost is that against the plan with nothing given. */
static void assert_cost(const json_t *json, const json_t *free) {
    const json_t *fixed = test_json_get(json, "fixed");
    assert_true(fabs(number(fixed, "decode_free_tok_s") / number(free, "decode_tok_s") - 1) < 1e-9);
}

static const char *home_of(const json_t *row) {
    return json_string_value(test_json_get(row, "home"));
}

static void given_homes_are_obeyed(void **state) {
    (void)state;
    static const char *const granularities[] = {"layer", "expert", "tensor", "shard"};
    static const char *const overrides[] = {"blk\\.3\\.attn_(q|kv).*=cpu,blk.5.*=gpu"};
    ats_simulation s = given();
    for (size_t g = 0; g < COUNT_OF(granularities); g++) {
        s.granularity = granularities[g];
        s.overrides = NULL, s.n_overrides = s.n_cpu_moe = 0;
        json_t *free = explained(&s);
        assert_true(fixed_items(free) <= 0);
        s.overrides = overrides, s.n_overrides = 1, s.n_cpu_moe = 2;
        json_t *json = explained(&s);
        const json_t *items = test_json_get(json, "items"), *row;
        size_t i;
        int n_fixed = 0;
        json_array_foreach(items, i, row) {
            double layer = number(row, "layer");
            const char *op = json_string_value(test_json_get(row, "op"));
            const char *name = json_string_value(test_json_get(row, "name"));
            bool cpu = (layer == 3 && (strcmp(op, "attention") == 0 || strstr(name, "attn_q"))) ||
                       (layer < 2 && strcmp(op, "experts") == 0);
            bool told = cpu || layer == 5;
            if (told) assert_string_equal(home_of(row), cpu ? "cpu" : "gpu");
            assert_int_equal(
                strcmp(json_string_value(test_json_get(row, "why")), "told to be there") == 0,
                told);
            n_fixed += told;
        }
        assert_true(n_fixed > 8 && fixed_items(json) == n_fixed);
        /* homes that cut a layer may gain over whole ones */
        assert_true(g < 2 || number(test_json_get(json, "fixed"), "slower") > 0);
        assert_cost(json, free);
        json_decref(json), json_decref(free);
    }
}

/* With a number of layers nothing is left open. */
static void given_layers_are_a_whole_plan(void **state) {
    (void)state;
    char *text;
    ats_simulation s = given();
    json_t *free = explained(&s), *json, *row;
    size_t i;
    s.gpu_layers = "6";
    json = explained(&s);
    double first = number(json, "n_layers") - 6;
    json_array_foreach(test_json_get(json, "items"), i, row) {
        double layer = number(row, "layer");
        assert_string_equal(home_of(row), layer >= first ? "gpu" : "cpu");
    }
    assert_true(fixed_items(json) == (double)i);
    assert_true(number(test_json_get(json, "fixed"), "slower") > 0);
    assert_cost(json, free);
    json_decref(json), json_decref(free);
    s.gpu_layers = "auto";
    json = explained(&s);
    assert_true(fixed_items(json) <= 0);
    json_decref(json);
    s.gpu_layers = "all", s.vram_mib = 4000;
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("do not fit into 4000 MiB");
    s.gpu_layers = "seven";
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("seven");
    s.gpu_layers = "7", s.plan = "plan.json";
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("excludes rules");
    s.gpu_layers = s.plan = NULL;
    s.overrides = (const char *const[]){"blk=vulkan0"}, s.n_overrides = 1;
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("vulkan0");
}

/* A file that --save-plan could have written. */
static void keep_plan(const struct simulation *sim, const struct plan *plan, const char *gpu,
                      const char *path) {
    const char *names[] = {"cpu", gpu};
    char *text = plan_file_print(sim->model->graph, plan, sim->file->arch, names);
    TEST_OK(file_write(path, text, strlen(text)));
    free(text);
}

/* The plan that the planner makes. */
static void write_plan(const ats_simulation *s, const char *gpu, const char *path) {
    struct simulation sim = {0};
    TEST_OK(simulation_run(&sim, s));
    keep_plan(&sim, placement_plan(&sim.arena, sim.items, sim.best.placement, 2, 0, 1), gpu, path);
    simulation_close(&sim);
}

/* A plan is taken over as it is, divided blocks and experts included, and told as the planner told
 * it when it made it. */
static void a_given_plan_is_taken_over(void **state) {
    (void)state;
    char other[512], path[512], *text;
    ats_simulation s = given();
    const ats_simulation plain = {.model = s.model, .machine = s.machine, .n_slots = -1};
    test_tmp_path(path, sizeof path, "plan.json");
    write_plan(&s, "vulkan0", path);
    json_t *free = explained(&s);
    s.plan = path;
    json_t *json = explained(&s), *before = test_json_get(free, "items"), *row;
    size_t i;
    int n_divided = 0;
    json_array_foreach(test_json_get(json, "items"), i, row) {
        const json_t *was = json_array_get(before, i);
        assert_string_equal(home_of(row), home_of(was));
        assert_true(fabs(number(row, "gpu_share") - number(was, "gpu_share")) < 1e-12);
        n_divided += strcmp(home_of(row), "both") == 0;
    }
    assert_true(n_divided > 0 && fixed_items(json) == (double)i);
    assert_true(fabs(number(json, "decode_tok_s") / number(free, "decode_tok_s") - 1) < 1e-9);
    assert_true(fabs(number(test_json_get(json, "fixed"), "slower")) < 1e-9);
    json_decref(json), json_decref(free);
    s.vram_mib = 3000;
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("do not fit into 3000 MiB");
    s.vram_mib = 8000;
    write_plan(&plain, "cpu#2", path);
    TEST_STATUS(ats_explain(&s, &text), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("\"cpu#2\" is a second CPU");
    test_source_path(other, sizeof other, "shapes/qwen3-14b.json");
    s.model = other;
    write_plan(&plain, "gpu", path);
    TEST_STATUS(ats_explain(&s, &text), ATS_BAD_FILE);
    TEST_ERROR_HAS("plan.json");
    assert_null(text);
}

/* With what its schedule streams; with what prompts stream, in rounds of so many tokens and more
 * (0: without). */
static void write_streaming_plan(const ats_simulation *s, int prompts_from, const char *path) {
    struct simulation sim = {0};
    TEST_OK(simulation_run(&sim, s));
    const struct decide_way *w = &sim.best;
    struct plan *plan =
        prompts_from > 0
            ? schedule_pair(&sim.arena, sim.items, w->placement, &w->decode, &w->prefill,
                            prompts_from, w->n_slots, w->slot_bytes, 2, 0, 1)
            : schedule_plan(&sim.arena, sim.items, w->placement, &w->decode, w->n_slots,
                            w->slot_bytes, 2, 0, 1);
    keep_plan(&sim, plan, "vulkan0", path);
    simulation_close(&sim);
}

static void expect_close(const json_t *a, const json_t *b, const char *key, double tolerance) {
    assert_true(fabs(number(a, key) / number(b, key) - 1) < tolerance);
}

/* What a plan streams is streamed, through its slots, and no more; and that is what is executed. */
static void a_plan_that_streams_is_simulated(void **state) {
    (void)state;
    char path[512], *text;
    ats_simulation s = described("qwen3-14b", "laptop-rtx3060-6gb");
    test_tmp_path(path, sizeof path, "plan.json");
    s.n_slots = 2;
    write_streaming_plan(&s, 0, path);
    json_t *free = simulated(&s);
    s.n_slots = -1, s.plan = path;
    json_t *json = simulated(&s);
    const json_t *streams = test_json_get(json, "decode"),
                 *streamed = test_json_get(free, "decode");
    assert_true(number(streamed, "copied_bytes") > 1e8);
    expect_close(streams, streamed, "copied_bytes", 0.02);
    assert_string_equal(json_string_value(test_json_get(streams, "from")), "given");
    assert_int_equal((int)number(json, "n_slots"), 2);
    assert_true(number(json, "slot_bytes") > 1e6); /* what lots take of them */
    assert_true(number(json, "slot_bytes") <= 1.01 * number(free, "slot_bytes"));
    expect_close(json, free, "decode_tok_s", 0.02);
    expect_close(json, free, "executed_decode_s", 1e-9); /* the same plan */
    const json_t *executed = test_json_get(test_json_get(json, "executed"), "decode");
    assert_true(fabs(number(executed, "gap")) < 0.05);
    json_decref(json), json_decref(free);
    s.vram_mib = 2000;
    TEST_STATUS(ats_simulate(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("do not fit into 2000 MiB");
    s.vram_mib = 0, s.ablation = true;
    TEST_STATUS(ats_simulate(&s, &text), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("goes without a given one");
}

/* So is its partner for prompts, in chunks that are as long. */
static void a_plan_with_a_partner_is_simulated(void **state) {
    (void)state;
    char path[512];
    ats_simulation s = described("qwen3-14b", "laptop-rtx3060-6gb");
    test_tmp_path(path, sizeof path, "plan.json");
    s.n_slots = 4;
    json_t *free = simulated(&s);
    s.plan = path;
    for (int from = 512; from <= 513; from++) {
        s.n_slots = 4, s.plan = NULL;
        write_streaming_plan(&s, from, path);
        s.n_slots = -1, s.plan = path;
        json_t *json = simulated(&s);
        const json_t *decode = test_json_get(json, "decode");
        const json_t *chunk = test_json_get(json, "prefill");
        bool used = from <= 512;
        expect_close(decode, test_json_get(free, "decode"), "copied_bytes", 0.02);
        if (used)
            expect_close(chunk, test_json_get(free, "prefill"), "copied_bytes", 0.02);
        else
            expect_close(chunk, decode, "copied_bytes", 1e-9);
        expect_close(json, free, "decode_tok_s", 0.02);
        if (used) expect_close(json, free, "prefill_tok_s", 0.05);
        assert_true(used || number(json, "prefill_tok_s") < 0.7 * number(free, "prefill_tok_s"));
        for (int k = 0; k < 2; k++) {
            const json_t *executed =
                test_json_get(test_json_get(json, "executed"), k ? "prefill" : "decode");
            assert_true(fabs(number(executed, "gap")) < 0.05);
        }
        json_decref(json);
    }
    json_decref(free);
}

/* A plan's file with another home for one tensor, in parts of its rows on the GPU and on the CPU.
 */
static void edit_plan(const char *path, const char *tensor, int border, int n_rows, bool streamed) {
    json_t *plan = json_load_file(path, 0, NULL);
    assert_non_null(plan);
    json_t *gpu = json_pack("{s:s, s:s, s:i, s:i, s:b}", "device", "gpu", "axis", "rows", "begin",
                            0, "end", border, "streamed", (int)streamed);
    json_t *parts = json_pack("[o, {s:s, s:s, s:i, s:i}]", gpu, "device", "cpu", "axis", "rows",
                              "begin", border, "end", n_rows);
    assert_true(json_object_get(test_json_get(plan, "homes"), tensor) != NULL);
    json_object_set_new(test_json_get(plan, "homes"), tensor, parts);
    json_object_set_new(plan, "slots", json_pack("{s:i}", "gpu", 1));
    assert_int_equal(json_dump_file(plan, path, 0), 0);
    json_decref(plan);
}

/* Between any two rows, where a block has no other tensor; a part of one tensor of a block by
 * itself is no share of it. */
static void a_plan_may_be_cut_by_hand(void **state) {
    (void)state;
    char path[512], *text;
    ats_simulation s = described("qwen3-14b", "laptop-rtx3060-6gb");
    test_tmp_path(path, sizeof path, "plan.json");
    s.granularity = "layer", s.n_slots = 0;
    write_plan(&s, "gpu", path);
    s.plan = path;
    edit_plan(path, "output.weight", 1001, 151936, false);
    json_t *json = simulated(&s);
    assert_int_equal((int)number(test_json_get(json, "placement"), "blocks_divided"), 1);
    json_decref(json);
    edit_plan(path, "output.weight", 1001, 151936, true);
    json = simulated(&s);
    const double bytes = number(test_json_get(json, "decode"), "copied_bytes");
    assert_true(bytes > 0 && bytes < 0.1 * 151936 * 5120);
    json_decref(json);
    edit_plan(path, "blk.0.ffn_up.weight", 1024, 17408, true);
    TEST_STATUS(ats_simulate(&s, &text), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("a part of blk.0.ffn_up.weight is streamed by itself");
    edit_plan(path, "blk.0.ffn_up.weight", 1024, 17408, false);
    TEST_STATUS(ats_simulate(&s, &text), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("cut by itself");
}

/* ---- two plans ---- */

/* GPU bytes of weights and caches that an explanation has. */
static double gpu_bytes(const json_t *json) {
    const json_t *gpu = test_json_get(json, "gpu");
    return number(gpu, "weight_bytes") + number(gpu, "kv_bytes");
}

/* Both ways: what comes one way leaves the other, and the balance is the difference. */
static void plans_are_compared(void **state) {
    (void)state;
    char path[512], *text;
    ats_simulation s = given();
    test_tmp_path(path, sizeof path, "other.json");
    s.granularity = "tensor";
    write_plan(&s, "vulkan0", path);
    json_t *tensor = explained(&s);
    s.granularity = "layer", s.diff = path;
    json_t *json = explained(&s), *diff = test_json_get(json, "diff");
    double up = number(diff, "to_gpu_bytes"), down = number(diff, "to_host_bytes");
    double ups = 0, downs = 0;
    size_t i;
    json_t *row;
    json_array_foreach(test_json_get(diff, "items"), i, row) {
        double from = number(row, "gpu_share"), to = number(row, "other_gpu_share");
        assert_true(from != to);
        ups += number(row, "to_gpu_bytes"), downs += number(row, "to_host_bytes");
    }
    assert_true(i > 4 && ups == up && downs == down);
    assert_true(fabs(gpu_bytes(json) + up - down - gpu_bytes(tensor)) < 1);
    assert_true(fabs(number(diff, "decode_tok_s") / number(tensor, "decode_tok_s") - 1) < 1e-9);
    assert_true(fabs(number(diff, "prefill_tok_s") / number(tensor, "prefill_tok_s") - 1) < 1e-9);
    assert_true(json_is_true(test_json_get(diff, "fits")) && number(diff, "slower") < 0);
    json_decref(json), json_decref(tensor);
    s.granularity = "tensor", s.diff = "layer";
    json = explained(&s), diff = test_json_get(json, "diff");
    assert_true(number(diff, "to_gpu_bytes") == down && number(diff, "to_host_bytes") == up);
    assert_true(number(diff, "slower") > 0);
    json_decref(json);
    s.diff = "tensor";
    json = explained(&s), diff = test_json_get(json, "diff");
    assert_int_equal(json_array_size(test_json_get(diff, "items")), 0);
    json_decref(json);
    s.vram_mib = 3000, s.diff = path;
    json = explained(&s);
    assert_true(json_is_false(test_json_get(test_json_get(json, "diff"), "fits")));
    json_decref(json);
    s.diff = "nowhere.json";
    TEST_STATUS(ats_explain(&s, &text), ATS_IO);
    TEST_ERROR_HAS("nowhere.json");
    assert_null(text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(given_homes_are_obeyed),
        cmocka_unit_test(given_layers_are_a_whole_plan),
        cmocka_unit_test(a_given_plan_is_taken_over),
        cmocka_unit_test(a_plan_that_streams_is_simulated),
        cmocka_unit_test(a_plan_with_a_partner_is_simulated),
        cmocka_unit_test(a_plan_may_be_cut_by_hand),
        cmocka_unit_test(plans_are_compared),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
