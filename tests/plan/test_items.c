/* Items: what is placed, how large it is, who needs whose result, and how long it takes. */
#include "machine.h"
#include "plan/items.h"
#include "support.h"
#include "tiny_graph.h"

#include <math.h>

#define MIB (1 << 20)

static const struct tiny_shape dense = {.n_layers = 2,
                                        .n_heads = 9,
                                        .n_kv_heads = 3,
                                        .head_dim = 64,
                                        .n_embd = 576,
                                        .n_ff = 1536,
                                        .n_vocab = 640,
                                        .dtype = DTYPE_Q4_1,
                                        .dtype_down = DTYPE_Q6_K,
                                        .head_norm = true,
                                        .row_group = 16};
static const struct tiny_shape moe = {.n_layers = 3,
                                      .n_heads = 4,
                                      .n_kv_heads = 2,
                                      .head_dim = 16,
                                      .n_embd = 64,
                                      .n_ff = 32,
                                      .n_vocab = 33,
                                      .dtype = DTYPE_Q8_0,
                                      .n_experts = 8,
                                      .n_used = 2,
                                      .sinks = true};

static struct items *build(struct arena *arena, const struct tiny_shape *shape,
                           const struct items_options *options) {
    struct items *items;
    TEST_OK(items_build(arena, tiny_graph(arena, shape), machine_laptop(arena), options, &items));
    return items;
}

static void assert_close(double a, double b) {
    if (!(fabs(a - b) <= 1e-12 * fabs(b))) fail_msg("%.15g instead of %.15g", a, b);
}

static void every_placed_operator_but_the_embedding_is_an_item_of_a_block(void **state) {
    (void)state;
    const struct tiny_shape *shapes[] = {&dense, &moe, &tiny_plain};
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        struct arena arena = {0};
        struct items_options o = items_options_default();
        const struct items *items = build(&arena, shapes[s], &o);
        int n = 0, at = 0, small = 0;
        for (int i = 0; i < items->graph->n_ops; i++) {
            const struct graph_op *op = &items->graph->ops[i];
            if (op->kind == OP_EMBED) continue;
            small += !op_is_placed(op);
            if (op_is_placed(op)) assert_int_equal(items->items[n++].op, i);
        }
        assert_int_equal(items->n_items, n);
        for (int i = 0; i < n; i++)
            small -= items->items[i].n_small;
        assert_int_equal(small, 0);
        for (int b = 0; b < items->n_blocks; b++) {
            assert_int_equal(items->blocks[b].first, at);
            for (int i = 0; i < items->blocks[b].n; i++)
                assert_int_equal(items->items[at + i].block, b);
            at += items->blocks[b].n;
        }
        assert_int_equal(at, n);
        arena_free(&arena);
    }
}

static void blocks_know_their_units_and_what_enters(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    const struct items *items = build(&arena, &dense, &o);
    assert_int_equal(items->n_blocks, 5);
    assert_int_equal(items->blocks[0].n, 5); /* q k v attention o */
    assert_int_equal(items->blocks[0].n_units, 3);
    assert_int_equal(items->blocks[1].n, 3);       /* gate up down */
    assert_int_equal(items->blocks[1].n_units, 6); /* 256-blocks of Q6_K */
    assert_int_equal(items->blocks[4].layer, -1);
    for (int b = 0; b < 4; b++) {
        assert_int_equal(items->blocks[b].entry_width, 576);
        assert_int_equal(items->blocks[b].exit_width, 576);
    }
    assert_int_equal(items->blocks[4].exit_width, 640);

    items = build(&arena, &moe, &o);
    assert_int_equal(items->n_blocks, 3 * 3 + 1); /* attention, router, experts */
    assert_int_equal(items->blocks[1].graph_block, -1);
    assert_int_equal(items->blocks[1].n_units, 1);
    assert_int_equal(items->blocks[2].n_units, 8);
    assert_int_equal(items->blocks[2].entry_width, 64 + 4); /* and the route */
    arena_free(&arena);
}

static void items_know_whose_results_they_need(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    const struct items *items = build(&arena, &dense, &o);
    const struct item *q = &items->items[0], *attention = &items->items[3], *out = &items->items[4];
    const struct item *gate = &items->items[5], *down = &items->items[7];
    assert_true(q->from_entry && gate->from_entry);
    assert_int_equal(q->n_sources, 0);
    assert_false(attention->from_entry);
    assert_int_equal(attention->n_sources, 3);
    assert_int_equal(attention->sources[0].width, 576);
    assert_int_equal(attention->sources[1].width, 192);
    assert_int_equal(out->n_sources, 1);
    assert_int_equal(out->sources[0].item, 3);
    assert_int_equal(down->n_sources, 2); /* gate and up; what crosses is their product */
    assert_int_equal(down->direct_width, 1536);
    arena_free(&arena);
}

static void sizes_are_those_of_tensors_and_caches(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    o.quantum_bytes = 4096;
    o.n_ctx = 1000, o.n_seqs = 2;
    const struct items *items = build(&arena, &dense, &o);
    int64_t q = 576 * 576 / 32 * 20, kv = 1024 * 2 * 3 * 64 * 2 * 2;
    assert_int_equal(items->items[0].weight_bytes, q);
    assert_int_equal(items->items[0].quanta, (q + 4095) / 4096);
    assert_int_equal(items->items[3].weight_bytes, 0);
    assert_int_equal(items->items[3].kv_bytes, kv);
    int64_t block = 2 * q + 2 * q / 3 + kv; /* q and o, k and v are a third each */
    assert_int_equal(items_share_quanta(items, 0, 1), (block / 3 + 4095) / 4096);
    assert_int_equal(items_share_quanta(items, 0, 3), (block + 4095) / 4096);
    assert_int_equal(items_share_quanta(items, 0, 0), 0);

    const struct items *experts = build(&arena, &moe, &o);
    int64_t matrix = 64 * 32 / 32 * 34;
    assert_int_equal(experts->items[6].n_experts, 8);
    assert_int_equal(experts->items[6].weight_bytes, 3 * 8 * matrix);
    assert_int_equal(experts->items[6].quanta, 3 * ((8 * matrix + 4095) / 4096));
    arena_free(&arena);
}

static void the_grid_follows_the_model_and_not_the_budget(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    assert_true(build(&arena, &dense, &o)->quantum_bytes < MIB);
    assert_true(build(&arena, &dense, &o)->quantum_bytes % 4096 == 0);
    o.n_ctx = 8 << 20;
    assert_int_equal(build(&arena, &dense, &o)->quantum_bytes, MIB);
    arena_free(&arena);
}

static void times_add_what_comes_with_an_item(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    const struct items *items = build(&arena, &dense, &o);
    const struct profile *p = items->profile;
    const struct item *q = &items->items[0];
    assert_int_equal(q->n_small, 1); /* the norm */
    assert_close(items_time(items, 0, SIDE_GPU, 4, 0, 0.5),
                 3e-6 + profile_time(p, NULL, &q->key, SIDE_GPU, 4, 0, 0.5));
    assert_true(items_time(items, 0, SIDE_GPU, 4, 0, 0) == 0);
    assert_close(items_up_time(items, 512, 576), 30e-6 + 512 * 576 * 4 / 8e9);
    assert_close(items_down_time(items, 1, 576), 31e-6 + 576 * 4 / 7e9);
    assert_close(items_exchange_time(items, 1, 576), 40e-6 + 576 * 4 / 7e9 + 576 * 4 / 8e9);
    arena_free(&arena);
}

/* q starts behind its norm, k and v beside it; gate and up, by a description, start together. */
static void what_waits_for_nothing_starts_beside(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    const struct items *items = build(&arena, &dense, &o);
    assert_int_equal(items->items[0].n_starts, 2);
    assert_int_equal(items->items[1].n_starts, 0);
    assert_int_equal(items->items[2].n_starts, 0);
    const struct item *k = &items->items[1];
    assert_close(items_time(items, 1, SIDE_GPU, 1, 0, 1),
                 profile_time(items->profile, NULL, &k->key, SIDE_GPU, 1, 0, 1) -
                     items->profile->op_s[SIDE_GPU]);
    for (int b = 1; b < items->n_blocks; b++) /* residual adds read both blocks before */
        assert_false(items_beside(items, b, b - 1));
    arena_free(&arena);
}

/* The sum behind a product starts with it; behind a part of one it does not, but with a norm behind
 * it. */
static void sums_start_with_whole_products(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    const struct items *folded = build(&arena, &dense, &o);
    o.no_fusion = true;
    const struct items *apart = build(&arena, &dense, &o);
    const struct item *gate = &folded->items[5], *last = &folded->items[8 + 4];
    double op_s = folded->profile->op_s[SIDE_GPU];
    assert_true(last->has_sum); /* rows are taken behind it */
    assert_false(apart->items[8 + 4].has_sum || folded->items[4].has_sum || gate->has_sum);
    assert_int_equal(gate->n_starts, 2); /* behind its norm */
    assert_int_equal(apart->items[5].n_starts, 3);
    assert_close(items_time(folded, 4, SIDE_GPU, 1, 0, 1), items_time(apart, 4, SIDE_GPU, 1, 0, 1));
    assert_close(items_time(folded, 4, SIDE_GPU, 1, 0, 0.5),
                 items_time(apart, 4, SIDE_GPU, 1, 0, 0.5));
    assert_close(items_time(folded, 8 + 4, SIDE_GPU, 1, 0, 0.5),
                 items_time(apart, 8 + 4, SIDE_GPU, 1, 0, 0.5) + op_s);
    assert_close(items_others_time(folded, 8 + 4, SIDE_GPU, 0.5), op_s);
    assert_close(items_others_time(folded, 5, SIDE_GPU, 1), op_s);
    arena_free(&arena);
}

/* Up and the activation start with gate, whether times are described or measured. */
static void gate_up_and_activation_start_once(void **state) {
    (void)state;
    for (int measured = 0; measured < 2; measured++) {
        struct arena arena = {0};
        struct profile *p = machine_laptop(&arena);
        struct items_options o = items_options_default();
        struct items *folded, *apart;
        json_t *json;
        TEST_OK(json_parse(machine_measured, strlen(machine_measured), &json));
        if (measured) TEST_OK(profile_from_json(&arena, json, "laptop", &p));
        json_decref(json);
        const struct graph *g = tiny_graph(&arena, &dense);
        TEST_OK(items_build(&arena, g, p, &o, &folded));
        o.no_fusion = true;
        TEST_OK(items_build(&arena, g, p, &o, &apart));
        assert_int_equal(folded->items[6].n_starts, 0);
        assert_int_equal(folded->items[7].n_starts, 1);
        assert_int_equal(apart->items[6].n_starts, measured);
        assert_int_equal(apart->items[7].n_starts, 2);
        assert_true(items_start_time(folded, folded->items[6].op, SIDE_GPU) == 0);
        assert_close(items_time(folded, 7, SIDE_GPU, 1, 0, 1),
                     items_time(apart, 7, SIDE_GPU, 1, 0, 1) - p->op_s[SIDE_GPU]);
        arena_free(&arena);
    }
}

static void a_window_ends_the_growth_with_depth(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    o.n_ctx = 100000;
    struct graph *g = tiny_graph(&arena, &dense);
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == OP_ATTENTION && g->ops[i].layer == 0)
            g->ops[i].p.attention.window = 1000;
    struct items *items;
    TEST_OK(items_build(&arena, g, machine_laptop(&arena), &o, &items));
    int narrow = 3, wide = 3 + 8;
    assert_close(items_time(items, narrow, SIDE_CPU, 1, 1000, 1),
                 items_time(items, narrow, SIDE_CPU, 1, 90000, 1));
    assert_close(items_time(items, wide, SIDE_CPU, 1, 1000, 1),
                 items_time(items, narrow, SIDE_CPU, 1, 1000, 1));
    assert_true(items_time(items, wide, SIDE_CPU, 1, 2000, 1) >
                items_time(items, wide, SIDE_CPU, 1, 1000, 1));
    /* window, batch and page borders */
    assert_int_equal(items->items[narrow].kv_bytes, 25 * 64 * 3 * 64 * 2 * 2);
    arena_free(&arena);
}

/* Figures of the prototype moe.py, which draws choices: 20 distinct of 128 with 8 used, 4 tokens,
 * repeating at 0.45; independent draws would be 29. */
static void experts_in_use_are_those_of_repeating_choices(void **state) {
    (void)state;
    double p[128];
    for (int e = 0; e < 128; e++)
        p[e] = 8.0 / 128;
    assert_close(items_experts_in_use(p, 128, 1, 0.45), 8);
    assert_true(fabs(items_experts_in_use(p, 128, 4, 0.45) - 20.2) < 0.5);
    assert_true(fabs(items_experts_in_use(p, 128, 4, 0) - 29.1) < 0.1);
    assert_close(items_experts_in_use(p, 128, 100, 1), 8);
    assert_true(items_experts_in_use(p, 128, 5000, 0.4) > 127.9);
}

static void popular_experts_sum_to_those_used(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    const double counts[8] = {9, 1, 0, 1, 1, 1, 1, 1}, *rows[3] = {NULL, counts, NULL};
    o.popularity = rows;
    const struct items *items = build(&arena, &moe, &o);
    const double *p = items->items[6 + 7].experts->popularity; /* of layer 1 */
    assert_close(items->items[6].experts->popularity[3], 0.25);
    assert_close(p[0], 1); /* 18 / 15: certain */
    assert_close(p[1], 2.0 / 15);
    assert_true(p[2] == 0);
    for (int n = 1; n <= 200; n += 33) { /* counts that are kept, and others */
        double kept = items_in_use(&items->items[6 + 7], n), use = 0;
        assert_close(kept, items_experts_in_use(p, 8, n, o.repeat_rate));
        for (int e = 0; e < 8; e++)
            use += items_use(&items->items[6 + 7], e, n);
        assert_close(use, kept);
    }
    assert_close(items_in_use(&items->items[6 + 7], 512),
                 items_experts_in_use(p, 8, 512, o.repeat_rate));
    assert_close(items_active_bytes(items, 6, 1), (double)items->items[6].weight_bytes / 4);
    assert_close(items_time(items, 6, SIDE_CPU, 1, 0, 0.5),
                 items->items[6].n_small * 2e-6 +
                     profile_time(items->profile, NULL, &items->items[6].key, SIDE_CPU, 1, 0, 0.5));
    arena_free(&arena);
}

/* A short convolution and a delta rule between two products. */
static struct graph *recurrent_graph(struct arena *arena) {
    enum { EMBD = 64, KEYS = 2 * 16, VALUES = 4 * 16, MIXED = 2 * KEYS + VALUES, HEADS = 4 };
    struct graph_builder *b = graph_builder_open(arena);
    struct graph_weight w = {.name = "w", .dtype = DTYPE_F32, .n_rows = MIXED, .n_cols = EMBD};
    int in = graph_weight_add(b, w);
    w.n_rows = 2 * HEADS;
    int rates = graph_weight_add(b, w);
    w.n_rows = EMBD, w.n_cols = VALUES;
    int out = graph_weight_add(b, w);
    w.n_rows = 1, w.n_cols = MIXED * 4;
    int filters = graph_weight_add(b, w);
    w.n_cols = HEADS;
    int decay = graph_weight_add(b, w);
    w.n_rows = 100, w.n_cols = EMBD;
    int words = graph_weight_add(b, w);

    int x = graph_embed(b, words, 1);
    graph_layer(b, 0);
    graph_block_begin(b, BLOCK_RECURRENT);
    int mixed = graph_conv(b, graph_matmul(b, x, in, -1, MATH_F32), filters,
                           (struct conv_params){.n_taps = 4, .silu = true});
    int ab = graph_matmul(b, x, rates, -1, MATH_F32);
    int inputs[5];
    const int begin[] = {0, KEYS, 2 * KEYS}, n[] = {KEYS, KEYS, VALUES};
    for (int i = 0; i < 3; i++)
        inputs[i] = graph_slice(b, mixed, (struct slice_params){MIXED, begin[i], n[i]});
    for (int i = 0; i < 2; i++)
        inputs[3 + i] = graph_slice(b, ab, (struct slice_params){2 * HEADS, i * HEADS, HEADS});
    int y = graph_delta(
        b, inputs, decay, decay,
        (struct delta_params){.n_heads = HEADS, .n_key_heads = 2, .dim_k = 16, .dim_v = 16});
    y = graph_matmul(b, y, out, -1, MATH_F32);
    graph_block_end(b);
    int hidden = graph_rows(b, graph_add(b, x, y));
    graph_layer(b, -1);
    graph_block_begin(b, BLOCK_HEAD);
    int logits = graph_matmul(b, hidden, words, -1, MATH_F32);
    graph_block_end(b);
    return graph_finish(b, hidden, logits, 1);
}

static void states_are_items_with_memory(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    o.n_seqs = 3;
    struct items *items;
    TEST_OK(items_build(&arena, recurrent_graph(&arena), machine_laptop(&arena), &o, &items));
    assert_int_equal(items->n_items, 6); /* in, conv, rates, delta, out; head */
    const struct item *conv = &items->items[1], *delta = &items->items[3];
    assert_string_equal(conv->key.op, "conv");
    assert_string_equal(delta->key.op, "delta");
    assert_int_equal(conv->weight_bytes + delta->weight_bytes, 0);
    assert_int_equal(conv->kv_bytes, 3 * 128 * 3 * 4);
    assert_int_equal(delta->kv_bytes, 3 * 4 * 16 * 16 * 4);
    assert_int_equal(delta->key.dims[1], 4 * 16 * 16 * 4);
    assert_int_equal(delta->n_sources, 2); /* conv and rates */
    assert_int_equal(items->items[4].sources[0].item, 3);
    double t1 = items_time(items, 3, SIDE_CPU, 1, 0, 1),
           t9 = items_time(items, 3, SIDE_CPU, 1000, 0, 1);
    assert_true(t1 > 0 && t9 > t1);
    arena_free(&arena);
}

static void a_profile_that_cannot_tell_is_refused(void **state) {
    (void)state;
    struct arena arena = {0};
    struct items_options o = items_options_default();
    struct profile *p = machine_laptop(&arena);
    struct items *items;
    p->has_rates = false;
    TEST_STATUS(items_build(&arena, tiny_graph(&arena, &dense), p, &o, &items), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("attn_q");
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_placed_operator_but_the_embedding_is_an_item_of_a_block),
        cmocka_unit_test(blocks_know_their_units_and_what_enters),
        cmocka_unit_test(items_know_whose_results_they_need),
        cmocka_unit_test(sizes_are_those_of_tensors_and_caches),
        cmocka_unit_test(the_grid_follows_the_model_and_not_the_budget),
        cmocka_unit_test(times_add_what_comes_with_an_item),
        cmocka_unit_test(what_waits_for_nothing_starts_beside),
        cmocka_unit_test(sums_start_with_whole_products),
        cmocka_unit_test(gate_up_and_activation_start_once),
        cmocka_unit_test(a_window_ends_the_growth_with_depth),
        cmocka_unit_test(experts_in_use_are_those_of_repeating_choices),
        cmocka_unit_test(popular_experts_sum_to_those_used),
        cmocka_unit_test(states_are_items_with_memory),
        cmocka_unit_test(a_profile_that_cannot_tell_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
