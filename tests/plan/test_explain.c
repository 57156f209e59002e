/* Explanations: they account for every byte and item, their reasons follow from the times, and what
 * would change goes the way that it must. */
#include "machine.h"
#include "plan/explain.h"
#include "support.h"
#include "tiny_graph.h"

#include <math.h>

#define GIB ((int64_t)1 << 30)

static const struct tiny_shape dense = {.n_layers = 12,
                                        .n_heads = 32,
                                        .n_kv_heads = 8,
                                        .head_dim = 128,
                                        .n_embd = 4096,
                                        .n_ff = 12288,
                                        .n_vocab = 32000,
                                        .dtype = DTYPE_Q4_K,
                                        .dtype_down = DTYPE_Q6_K,
                                        .row_group = 16};
static const struct tiny_shape moe = {.n_layers = 8,
                                      .n_heads = 32,
                                      .n_kv_heads = 4,
                                      .head_dim = 128,
                                      .n_embd = 2048,
                                      .n_ff = 768,
                                      .n_vocab = 32000,
                                      .dtype = DTYPE_Q4_K,
                                      .row_group = 16,
                                      .n_experts = 64,
                                      .n_used = 4};

static struct explain_problem problem_of(struct arena *arena, const struct tiny_shape *shape,
                                         enum granularity granularity, int64_t budget_bytes) {
    struct explain_problem p = {.graph = tiny_graph(arena, shape),
                                .profile = machine_laptop(arena),
                                .items = items_options_default(),
                                .placement = placement_options_default(16384),
                                .budget_bytes = budget_bytes};
    p.items.n_ctx = 16384;
    p.placement.granularity = granularity;
    p.placement.prompt_tokens = 0, p.placement.tie = 0;
    return p;
}

static struct explanation *explained(struct arena *arena, const struct explain_problem *p,
                                     const struct placement *given) {
    struct explanation *e;
    TEST_OK(explain(arena, p, given, &e));
    return e;
}

static int count(const struct explanation *e, enum explain_reason reason) {
    int n = 0;
    for (int i = 0; i < e->items->n_items; i++)
        n += e->rows[i].reason == reason;
    return n;
}

static void every_byte_is_accounted_for(void **state) {
    (void)state;
    for (int k = 0; k < 8; k++) {
        struct arena arena = {0};
        struct explain_problem p =
            problem_of(&arena, k & 1 ? &moe : &dense, (enum granularity)(k / 2), GIB);
        const struct explanation *e = explained(&arena, &p, NULL);
        int64_t weights = 0, caches = 0;
        for (int i = 0; i < e->items->n_items; i++) {
            weights += e->items->items[i].weight_bytes;
            caches += e->items->items[i].kv_bytes;
            assert_true(e->rows[i].cpu_s > 0 && e->rows[i].gpu_s > 0);
            if (e->rows[i].gpu_share < 1)
                assert_true(e->rows[i].gpu_share > 0 || e->placement->homes[i] == SIDE_CPU);
        }
        int64_t lost = e->items->n_items; /* shares are rounded down on both sides */
        assert_in_range(weights - e->gpu.weights - e->host.weights, 0, lost);
        assert_in_range(caches - e->gpu.caches - e->host.caches, 0, lost);
        assert_true(llabs(e->gpu.weights + e->gpu.caches - e->placement->gpu_bytes) <= lost);
        assert_true(e->gpu.weights + e->gpu.caches <= p.budget_bytes);
        arena_free(&arena);
    }
}

static void reasons_follow_from_times(void **state) {
    (void)state;
    struct arena arena = {0};
    struct explain_problem p = problem_of(&arena, &dense, GRANULARITY_TENSOR, GIB);
    const struct explanation *e = explained(&arena, &p, NULL);
    assert_true(e->price_s_per_gib > 0);
    assert_true(count(e, EXPLAIN_GAIN) > 0 && count(e, EXPLAIN_LOSS) > 0);
    assert_int_equal(count(e, EXPLAIN_DIVIDED), 0);
    for (int i = 0; i < e->items->n_items; i++) {
        const struct explain_item *row = &e->rows[i];
        double gib = (double)e->items->items[i].quanta * (double)e->items->quantum_bytes / GIB;
        double gain = row->cpu_s - row->gpu_s, cost = e->price_s_per_gib * gib;
        if (row->reason == EXPLAIN_GAIN) assert_true(row->gpu_share > 0 && gain >= cost);
        if (row->reason == EXPLAIN_LOSS) assert_true(row->gpu_share == 0 && gain <= cost);
    }
    p.placement.granularity = GRANULARITY_SHARD;
    e = explained(&arena, &p, NULL);
    assert_true(count(e, EXPLAIN_DIVIDED) > 0);
    for (int i = 0; i < e->items->n_items; i++)
        assert_int_equal(e->rows[i].reason == EXPLAIN_DIVIDED,
                         e->placement->units[e->items->items[i].block] > 0);
    p.budget_bytes = 16 * GIB;
    e = explained(&arena, &p, NULL);
    assert_int_equal(count(e, EXPLAIN_FITS), e->items->n_items);
    assert_true(e->price_s_per_gib == 0);
    arena_free(&arena);
}

static void prompts_are_a_reason(void **state) {
    (void)state;
    struct arena arena = {0};
    struct explain_problem p = problem_of(&arena, &dense, GRANULARITY_TENSOR, GIB);
    const struct explanation *decode = explained(&arena, &p, NULL);
    p.placement.prompt_tokens = 32;
    const struct explanation *both = explained(&arena, &p, NULL);
    assert_true(both->host.caches <= decode->host.caches);
    assert_true(both->placement->prefill_s < decode->placement->prefill_s);
    assert_true(count(both, EXPLAIN_PROMPTS) > 0);
    assert_int_equal(count(decode, EXPLAIN_PROMPTS), 0);
    arena_free(&arena);
}

static void what_is_fixed_says_so_and_what_it_costs(void **state) {
    (void)state;
    struct arena arena = {0};
    struct explain_problem p = problem_of(&arena, &dense, GRANULARITY_TENSOR, GIB);
    int *fixed = ARENA_ARRAY(&arena, int, p.graph->n_ops);
    for (int i = 0; i < p.graph->n_ops; i++)
        fixed[i] = i < 16 ? SIDE_CPU : PLACEMENT_FREE;
    double free_s = explained(&arena, &p, NULL)->placement->decode_s;
    p.placement.fixed = fixed;
    const struct explanation *e = explained(&arena, &p, NULL);
    assert_int_equal(count(e, EXPLAIN_FIXED), 16);
    assert_true(e->free_decode_s == free_s);
    assert_true(e->placement->decode_s >= free_s);
    assert_int_equal(e->n_fixed, 16);
    assert_true(e->placement->objective_s > e->free_objective_s);
    assert_true(e->free_prefill_s > 0);
    for (int i = 0; i < p.graph->n_ops; i++)
        fixed[i] = SIDE_GPU;
    struct explanation *none;
    TEST_STATUS(explain(&arena, &p, NULL, &none), ATS_BAD_ARGUMENT);
    assert_null(none);
    arena_free(&arena);
}

static void a_given_placement_is_told_as_it_is(void **state) {
    (void)state;
    struct arena arena = {0};
    struct explain_problem p = problem_of(&arena, &dense, GRANULARITY_SHARD, GIB);
    const struct explanation *best = explained(&arena, &p, NULL);
    const struct placement *cpu = placement_whole(&arena, best->items, &p.placement, SIDE_CPU);
    const struct explanation *e = explained(&arena, &p, cpu);
    assert_int_equal(e->gpu.weights + e->gpu.caches, 0);
    assert_int_equal(e->n_changes, 0);
    assert_true(e->placement->decode_s == cpu->decode_s);
    assert_true(e->free_decode_s == best->placement->decode_s);
    assert_false(e->more_memory.valid || e->less_memory.valid || e->smaller_cache.valid ||
                 e->half_bus.valid);
    arena_free(&arena);
}

static void predictions_know_their_regret(void **state) {
    (void)state;
    struct arena arena = {0};
    struct explain_problem p = problem_of(&arena, &dense, GRANULARITY_SHARD, GIB);
    p.placement.n_depths = 1, p.placement.depths[0] = 2048, p.placement.weights[0] = 1;
    const struct explanation *e = explained(&arena, &p, NULL);
    for (int k = 0; k < EXPLAIN_DEPTHS; k++) {
        const struct explain_prediction *d = &e->predictions[k];
        assert_int_equal(d->valid, d->depth < 16384);
        if (!d->valid) continue;
        assert_true(d->decode_s >= d->best_s && d->best_s > 0);
        assert_true(d->prefill_s > 0);
        if (k > 0) assert_true(d->decode_s > e->predictions[k - 1].decode_s);
        if (d->depth == 2048)
            assert_true(d->decode_s <= d->best_s * (1 + 1e-6) &&
                        d->decode_s == e->placement->decode_s);
    }
    arena_free(&arena);
}

static void no_prediction_passes_the_limits(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        struct arena arena = {0};
        struct explain_problem p =
            problem_of(&arena, k & 1 ? &moe : &dense, GRANULARITY_SHARD, (k / 2 + 1) * GIB);
        p.placement.n_depths = 1, p.placement.depths[0] = 2048, p.placement.weights[0] = 1;
        const struct explanation *e = explained(&arena, &p, NULL);
        assert_true(e->round.round_s > 0 && e->round.round_s <= e->blocks.round_s);
        assert_true(e->round.round_s <= e->placement->decode_s);
        arena_free(&arena);
    }
}

static void changes_go_the_way_they_must(void **state) {
    (void)state;
    for (int k = 0; k < 2; k++) {
        struct arena arena = {0};
        struct explain_problem p =
            problem_of(&arena, k & 1 ? &moe : &dense, GRANULARITY_SHARD, 3 * GIB / 2);
        const struct explanation *e = explained(&arena, &p, NULL);
        double here = e->placement->decode_s, more = 1 + 1e-6;
        assert_true(e->more_memory.valid && e->more_memory.decode_s <= here * more);
        assert_true(e->less_memory.valid && e->less_memory.decode_s >= here / more);
        assert_true(e->half_bus.valid && e->half_bus.decode_s >= here / more);
        assert_true(e->smaller_cache.valid && e->smaller_cache.decode_s <= here * more);
        assert_true(e->less_memory.gpu_bytes <= p.budget_bytes - GIB);
        p.items.kv_k = p.items.kv_v = DTYPE_Q8_0;
        p.budget_bytes = GIB / 2;
        e = explained(&arena, &p, NULL);
        assert_false(e->smaller_cache.valid); /* there is none */
        assert_false(e->less_memory.valid);
        arena_free(&arena);
    }
}

static void json_tells_all_of_it(void **state) {
    (void)state;
    struct arena arena = {0};
    struct explain_problem p = problem_of(&arena, &moe, GRANULARITY_SHARD, GIB / 2);
    const struct explanation *e = explained(&arena, &p, NULL);
    json_t *json = explain_to_json(e, "cpu", "vulkan0");
    json_t *items = test_json_get(json, "items");
    assert_int_equal(json_array_size(items), e->items->n_items);
    const json_t *first = json_array_get(items, 0);
    assert_string_equal(json_string_value(test_json_get(first, "name")), "blk.0.attn_q");
    for (size_t i = 0; i < json_array_size(items); i++) {
        const json_t *item = json_array_get(items, i);
        const char *home = json_string_value(test_json_get(item, "home"));
        double share = json_real_value(test_json_get(item, "gpu_share"));
        assert_string_equal(home, share <= 0 ? "cpu" : share >= 1 ? "vulkan0" : "both");
        assert_string_equal(json_string_value(test_json_get(item, "why")),
                            explain_reason_text(e->rows[i].reason));
    }
    double tok_s = json_real_value(test_json_get(json, "decode_tok_s"));
    assert_true(fabs(tok_s * e->placement->decode_s - 1) < 1e-9);
    assert_int_equal(json_array_size(test_json_get(json, "predictions")), 3);
    assert_true(json_is_null(test_json_get(test_json_get(json, "changes"), "one_gib_less")));
    assert_true(json_is_object(test_json_get(test_json_get(json, "changes"), "half_bus")));
    const json_t *round = test_json_get(test_json_get(json, "limits"), "round");
    assert_string_equal(json_string_value(test_json_get(round, "binds")),
                        limit_binds_name(e->round.binds));
    json_decref(json);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_byte_is_accounted_for),
        cmocka_unit_test(reasons_follow_from_times),
        cmocka_unit_test(prompts_are_a_reason),
        cmocka_unit_test(what_is_fixed_says_so_and_what_it_costs),
        cmocka_unit_test(a_given_placement_is_told_as_it_is),
        cmocka_unit_test(predictions_know_their_regret),
        cmocka_unit_test(no_prediction_passes_the_limits),
        cmocka_unit_test(changes_go_the_way_they_must),
        cmocka_unit_test(json_tells_all_of_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
