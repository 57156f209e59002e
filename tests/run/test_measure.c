/* Measuring on simulated devices, whose rates are known (backend/sim/cost.c): the profile says what
 * the cost model says, for products, caches and experts, at every share and depth, and for what a
 * change of device costs. */
#include "run/measure.h"
#include "model/shape.h"
#include "support.h"

#include <math.h>
#include <stdio.h>

/* Of backend/sim/cost.c: bytes a nanosecond, and nanoseconds. */
static const struct {
    const char *name;
    double bytes_per_ns, launch_ns, step_ns;
} sides[] = {{"sim:cpu", 50, 1000, 1000}, {"sim:gpu", 300, 5000, 2000}};

static const char shape[] =
    "{\"atsinfer\": \"shape\", \"version\": 1, \"metadata\": {"
    "\"general.architecture\": \"qwen3moe\", \"general.name\": \"small\","
    "\"qwen3moe.block_count\": 2, \"qwen3moe.context_length\": 4096,"
    "\"qwen3moe.embedding_length\": 256, \"qwen3moe.feed_forward_length\": 512,"
    "\"qwen3moe.attention.head_count\": 8, \"qwen3moe.attention.head_count_kv\": 4,"
    "\"qwen3moe.attention.key_length\": 32, \"qwen3moe.attention.value_length\": 32,"
    "\"qwen3moe.attention.layer_norm_rms_epsilon\": 1e-06,"
    "\"qwen3moe.rope.freq_base\": 10000.0, \"qwen3moe.expert_count\": 8,"
    "\"qwen3moe.expert_used_count\": 4, \"qwen3moe.expert_feed_forward_length\": 256},"
    "\"tensors\": [[\"token_embd.weight\", \"Q4_K\", [256, 1024]],"
    "[\"output_norm.weight\", \"F32\", [256]], [\"output.weight\", \"Q6_K\", [256, 1024]],"
    "{\"layers\": [[0, 1]], \"tensors\": [[\"attn_norm.weight\", \"F32\", [256]],"
    "[\"ffn_norm.weight\", \"F32\", [256]], [\"attn_q.weight\", \"Q4_K\", [256, 256]],"
    "[\"attn_k.weight\", \"Q4_K\", [256, 128]], [\"attn_v.weight\", \"Q8_0\", [256, 128]],"
    "[\"attn_output.weight\", \"Q4_0\", [256, 256]],"
    "[\"attn_q_norm.weight\", \"F32\", [32]], [\"attn_k_norm.weight\", \"F32\", [32]],"
    "[\"ffn_gate_inp.weight\", \"F32\", [256, 8]],"
    "[\"ffn_gate_exps.weight\", \"Q4_K\", [256, 256, 8]],"
    "[\"ffn_up_exps.weight\", \"Q4_K\", [256, 256, 8]],"
    "[\"ffn_down_exps.weight\", \"Q6_K\", [256, 256, 8]]]}]}";

static struct gguf *file;
static struct model *model;
static struct arena arena; /* of what all tests read */
static struct profile *measured;

static struct measure_options quick(void) {
    return (struct measure_options){.cpu = sides[0].name,
                                    .gpu = sides[1].name,
                                    .n_threads = 1,
                                    .quick = true,
                                    .n_ctx = 4096,
                                    .cold_bytes = 1 << 20};
}

static int open_model(void **state) {
    (void)state;
    char path[512];
    test_tmp_path(path, sizeof path, "small.json");
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    fputs(shape, f);
    fclose(f);
    TEST_OK(shape_open(path, &file));
    TEST_OK(model_open(file, &(struct model_options){.planning = true, .row_group = 16}, &model));
    struct measure_options o = quick();
    TEST_OK(measure_profile(&arena, model, &o, &measured));
    return 0;
}

static int close_model(void **state) {
    (void)state;
    arena_free(&arena);
    model_close(model);
    gguf_close(file);
    return 0;
}

static void near(const char *what, double value, double expected, double part) {
    if (fabs(value - expected) <= part * expected) return;
    fail_msg("%s: %.6g, expected %.6g", what, value, expected);
}

/* Bytes that a step reads at a share: of weights, and of caches for each position. */
static double weight_bytes(const struct profile_key *k) {
    if (strcmp(k->op, "matmul") == 0)
        return (double)(dtype_row_bytes(k->types[0], k->dims[1]) * k->dims[0]);
    double bytes = 0;
    for (int i = 0; i < k->n_types && strcmp(k->op, "experts") == 0; i++)
        bytes += (double)(dtype_row_bytes(k->types[i], k->dims[3]) * k->dims[2] * k->dims[1]);
    return bytes;
}

static double cache_bytes(const struct profile_key *k) {
    return strcmp(k->op, "attention") == 0 ? (double)(4 * k->dims[1] * k->dims[2]) : 0;
}

static void check_item(const struct profile *p, const struct profile_item *item, int side) {
    const struct profile_key *k = &item->key;
    const struct profile_times *t = &item->sides[side];
    double rate = sides[side].bytes_per_ns, step = sides[side].step_ns;
    for (int s = 0; s < p->n_shares; s++)
        for (int i = 0; i < p->n_tokens; i++) {
            double bytes = (weight_bytes(k) + cache_bytes(k) * p->tokens[i]) * p->shares[s];
            near(k->op, 1e9 * t->work_s[s][i], step + bytes / rate, 0.03);
        }
    for (int d = 1; d < p->n_depths && item->has_kv; d++)
        for (int i = 0; i < p->n_tokens; i++)
            near(k->op, 1e9 * t->kv_s[d][i], cache_bytes(k) * p->depths[d] / rate, 0.03);
}

static void profile_is_what_the_devices_cost(void **state) {
    (void)state;
    const struct profile *p = measured;
    int n_matmul = 0, n_attention = 0, n_experts = 0;
    for (int i = 0; i < p->n_items; i++) {
        n_matmul += strcmp(p->items[i].key.op, "matmul") == 0;
        n_attention += p->items[i].has_kv;
        n_experts += strcmp(p->items[i].key.op, "experts") == 0;
        for (int j = 0; j < i; j++)
            assert_false(profile_key_equal(&p->items[i].key, &p->items[j].key));
        for (int s = 0; s < N_SIDES; s++)
            check_item(p, &p->items[i], s);
    }
    /* q, k, v, o, router, head: layers are alike */
    assert_int_equal(n_matmul, 6);
    assert_int_equal(n_attention, 1);
    assert_int_equal(n_experts, 1);
    assert_int_equal(p->n_depths, 2);
    for (int s = 0; s < N_SIDES; s++)
        near("op", 1e9 * p->op_s[s], sides[s].step_ns, 0.01);
}

static void links_and_switches_are_what_they_cost(void **state) {
    (void)state;
    const struct profile *p = measured;
    near("up", p->link.up_pinned * 1e-9, 25, 0.01);
    near("staged", p->link.up_staged * 1e-9, 25, 0.01);
    near("kappa up", 1e9 * p->link.kappa_up_s, 5000, 0.03);
    near("kappa down", 1e9 * p->link.kappa_down_s, 1000, 0.03);
    near("kappa x", 1e9 * p->link.kappa_x_s, 5000, 0.03);
    near("cut", 1e9 * p->link.cut_s, 5000, 0.03);
    near("a", p->interference.cpu_speed_copying, 1, 0.01); /* simulated rates are not shared */
    near("b", p->interference.copy_speed_cpu, 1, 0.01);
    near("gpu", (double)p->gpu_bytes, 8192.0 * 1048576, 0);
    assert_true(p->usable_bytes > 0 && p->usable_bytes < p->gpu_bytes && !p->shared);
    assert_true(p->dram_bytes < 55e9 && p->vram_bytes < 330e9 && p->vram_bytes > 100e9);
}

/* Written and read again it is the same, so it passes the checks of files. */
static void profile_passes_the_checks_of_files(void **state) {
    (void)state;
    struct arena own = {0};
    struct measure_options o = quick();
    struct profile *p, *again;
    o.gpu = NULL;
    TEST_OK(measure_profile(&own, model, &o, &p));
    p->name = "here";
    json_t *json = profile_to_json(p);
    TEST_OK(profile_from_json(&own, json, "test", &again));
    assert_int_equal(again->n_items, p->n_items);
    for (int i = 0; i < p->n_items; i++)
        assert_non_null(profile_find(again, &p->items[i].key));
    json_decref(json);
    arena_free(&own);
}

static uint64_t last_done, last_total;

static bool stop_at_three(void *user, uint64_t done, uint64_t total) {
    (void)user;
    last_done = done, last_total = total;
    return done < 3;
}

static void measuring_can_be_cancelled(void **state) {
    (void)state;
    struct arena own = {0};
    struct measure_options o = quick();
    struct profile *p;
    o.progress = stop_at_three;
    TEST_STATUS(measure_profile(&own, model, &o, &p), ATS_CANCELLED);
    assert_null(p);
    assert_int_equal(last_done, 3);
    assert_int_equal(last_total, 8 * 2 + 3);
    arena_free(&own);
}

#define WRONG "ATSINFER_SIM_WRONG_TIMES"

/* All operators have been measured: links are next. */
static bool then_copies(void *user, uint64_t done, uint64_t total) {
    if (done == total - 3) setenv(WRONG, user, 1);
    return true;
}

/* A clock that is wrong for a while, and one that stays so; of segments, and of copies. */
static void what_cannot_be_a_time_is_measured_again_then_refused(void **state) {
    (void)state;
    static const struct {
        const char *ops, *copies; /* so many wrong times, first and once copies come */
        const char *says;         /* NULL: it comes out right */
    } cases[] = {{"6", "-6", NULL},
                 {"1000000", "", "says that a copy of one number takes"},
                 {"0", "-1000000", "says that a copy of 32 MiB takes"}};
    struct measure_options o = quick();
    o.progress = then_copies;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena own = {0};
        struct profile *p;
        setenv(WRONG, cases[i].ops, 1);
        o.progress_user = (void *)(uintptr_t)cases[i].copies;
        if (cases[i].says) {
            TEST_STATUS(measure_profile(&own, model, &o, &p), ATS_DEVICE);
            TEST_ERROR_HAS(cases[i].says);
            TEST_ERROR_HAS("again and again");
            assert_null(p);
        } else {
            TEST_OK(measure_profile(&own, model, &o, &p));
            for (int k = 0; k < p->n_items; k++)
                check_item(p, &p->items[k], k % N_SIDES);
            near("up", p->link.up_pinned * 1e-9, 25, 0.01);
            near("kappa up", 1e9 * p->link.kappa_up_s, 5000, 0.03);
        }
        arena_free(&own);
    }
    unsetenv(WRONG);
}

static void devices_that_are_not_there_are_refused(void **state) {
    (void)state;
    struct arena own = {0};
    struct measure_options o = quick();
    struct profile *p;
    o.gpu = "sim:none";
    TEST_STATUS(measure_profile(&own, model, &o, &p), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("sim:none");
    arena_free(&own);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(profile_is_what_the_devices_cost),
        cmocka_unit_test(links_and_switches_are_what_they_cost),
        cmocka_unit_test(profile_passes_the_checks_of_files),
        cmocka_unit_test(measuring_can_be_cancelled),
        cmocka_unit_test(what_cannot_be_a_time_is_measured_again_then_refused),
        cmocka_unit_test(devices_that_are_not_there_are_refused),
    };
    return cmocka_run_group_tests(tests, open_model, close_model);
}
