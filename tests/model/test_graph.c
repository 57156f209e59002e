/* The graph: values, producers and flags of what the builder makes, and the units of its blocks. */
#include "support.h"
#include "tiny_graph.h"

/* ---- structure ---- */

static void every_value_has_its_producer_and_width(void **state) {
    (void)state;
    struct arena arena = {0};
    struct tiny_shape shape = tiny_plain;
    shape.head_norm = shape.bias = true;
    const struct graph *g = tiny_graph(&arena, &shape);
    assert_int_equal(g->n_values, g->n_ops);
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        assert_int_equal(g->values[op->out].producer, i);
        for (int j = 0; j < op->n_in; j++)
            assert_true(g->values[op->in[j]].producer < i);
        if (op->kind == OP_MATMUL) {
            assert_int_equal(g->values[op->out].width, g->weights[op->weight].n_rows);
            assert_int_equal(g->values[op->in[0]].width, g->weights[op->weight].n_cols);
        }
    }
    assert_int_equal(g->n_vocab, 9);
    assert_int_equal(g->n_embd, 12);
    assert_int_equal(g->n_kv_layers, 2);
    assert_int_equal(g->values[g->logits].width, 9);
    assert_int_equal(g->values[g->hidden].width, 12);
    arena_free(&arena);
}

static void after_rows_values_have_a_line_per_wanted_row(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &tiny_plain);
    bool seen = false;
    int n_rows = 0;
    for (int i = 0; i < g->n_ops; i++) {
        if (g->ops[i].kind == OP_ROWS) seen = true;
        assert_int_equal(g->values[g->ops[i].out].rows, seen);
        n_rows += g->ops[i].kind == OP_ROWS;
    }
    assert_int_equal(n_rows, 1);
    arena_free(&arena);
}

static void blocks_span_their_ops(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &tiny_plain);
    assert_int_equal(g->n_blocks, 5); /* two layers of two, and the head */
    for (int i = 0; i < g->n_ops; i++) {
        int block = -1;
        for (int j = 0; j < g->n_blocks; j++)
            if (i >= g->blocks[j].op_begin && i < g->blocks[j].op_end) block = j;
        assert_int_equal(g->ops[i].block, block);
        if (block >= 0) assert_int_equal(g->ops[i].layer, g->blocks[block].layer);
    }
    assert_int_equal(g->blocks[4].kind, BLOCK_HEAD);
    assert_int_equal(g->blocks[4].layer, -1);
    arena_free(&arena);
}

static void a_discarded_builder_frees_what_it_holds(void **state) {
    (void)state; /* the leak checker of the sanitizer build looks */
    struct arena arena = {0};
    struct graph_builder *b = graph_builder_open(&arena);
    int w = graph_weight_add(b, (struct graph_weight){.name = "w", .n_rows = 3, .n_cols = 4});
    graph_block_begin(b, BLOCK_HEAD);
    graph_matmul(b, graph_embed(b, w, 1), w, -1, MATH_F32);
    graph_block_end(b);
    graph_discard(b);
    arena_free(&arena);
}

static void every_kind_has_a_name(void **state) {
    (void)state;
    for (int kind = OP_EMBED; kind <= OP_DELTA; kind++)
        assert_string_not_equal(op_kind_name((enum op_kind)kind), "?");
    assert_string_equal(op_kind_name((enum op_kind)(OP_DELTA + 1)), "?");
}

/* ---- units ---- */

struct units {
    int attention, ffn, head;
};

static struct units units_of(const struct tiny_shape *shape) {
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, shape);
    struct units u = {g->blocks[tiny_block(g, BLOCK_ATTENTION)].n_units,
                      g->blocks[tiny_block(g, BLOCK_FFN)].n_units,
                      g->blocks[tiny_block(g, BLOCK_HEAD)].n_units};
    arena_free(&arena);
    return u;
}

static void expect_units(const struct tiny_shape *shape, int attention, int ffn, int head) {
    struct units u = units_of(shape);
    assert_int_equal(u.attention, attention);
    assert_int_equal(u.ffn, ffn);
    assert_int_equal(u.head, head);
}

/* SmolLM2-135M: a unit of attention is one KV head with its three query heads, 192 columns of
 * the output matrix; of the feed-forward the columns of a block of ffn_down. */
static const struct tiny_shape smollm2 = {.n_layers = 2,
                                          .n_heads = 9,
                                          .n_kv_heads = 3,
                                          .head_dim = 64,
                                          .n_embd = 576,
                                          .n_ff = 1536,
                                          .n_vocab = 49152};

static void a_unit_is_the_least_that_every_weight_allows(void **state) {
    (void)state;
    struct tiny_shape s = smollm2;
    expect_units(&s, 3, 1536, 49152); /* F32: one channel, one row */
    s.row_group = 16;
    expect_units(&s, 3, 96, 3072); /* rows of gate, up and the head in groups of 16 */
    s.dtype = DTYPE_Q4_1;
    expect_units(&s, 3, 48, 3072); /* and 32 columns of ffn_down */
    s.row_group = 1;
    expect_units(&s, 3, 48, 49152);
    s.dtype_down = DTYPE_Q6_K; /* blocks of 256: 6 units */
    expect_units(&s, 3, 6, 49152);
    s.row_group = 16;
    expect_units(&s, 3, 6, 3072);
}

static void kv_heads_join_until_their_columns_end_on_a_block(void **state) {
    (void)state;
    struct tiny_shape s = smollm2;
    /* 576 columns are no multiple of 256 at all: the block stays whole */
    s.dtype = DTYPE_Q4_K;
    expect_units(&s, 1, 6, 49152);
    /* 12 heads on 4: 192 columns a KV head, 384, 768 = 3 blocks: all four together */
    s.n_heads = 12, s.n_kv_heads = 4, s.n_embd = 768;
    expect_units(&s, 1, 6, 49152);
    /* 32 heads on 8 of 64: 256 columns a KV head */
    s.n_heads = 32, s.n_kv_heads = 8, s.n_embd = 2048;
    expect_units(&s, 8, 6, 49152);
    /* 16 heads on 8 of 64: 128 columns, so pairs */
    s.n_heads = 16, s.n_embd = 1024;
    expect_units(&s, 4, 6, 49152);
}

static void kv_heads_join_until_their_rows_fill_a_row_group(void **state) {
    (void)state;
    struct tiny_shape s = smollm2;
    s.n_heads = s.n_kv_heads = 4, s.head_dim = 40, s.n_embd = 160;
    expect_units(&s, 4, 1536, 49152);
    s.row_group = 16; /* 40 rows no, 80 rows yes */
    expect_units(&s, 2, 96, 3072);
    s.n_ff = 100; /* no number of whole groups: never cut */
    s.n_vocab = 49153;
    expect_units(&s, 2, 1, 1);
}

static void unit_elements_cut_every_op_alike(void **state) {
    (void)state;
    struct arena arena = {0};
    struct tiny_shape s = smollm2;
    s.dtype = DTYPE_Q4_1;
    s.row_group = 16;
    const struct graph *g = tiny_graph(&arena, &s);
    static const struct {
        const char *weight;
        enum axis axis;
        int elements;
    } want[] = {
        {"blk.1.attn_q", AXIS_ROWS, 192},  {"blk.1.attn_k", AXIS_ROWS, 64},
        {"blk.1.attn_v", AXIS_ROWS, 64},   {"blk.1.attn_output", AXIS_COLS, 192},
        {"blk.1.ffn_gate", AXIS_ROWS, 32}, {"blk.1.ffn_up", AXIS_ROWS, 32},
        {"blk.1.ffn_down", AXIS_COLS, 32}, {"output", AXIS_ROWS, 16},
    };
    for (size_t i = 0; i < COUNT_OF(want); i++) {
        const struct graph_op *op = &g->ops[tiny_op(g, want[i].weight)];
        assert_int_equal(op->unit_axis, want[i].axis);
        assert_int_equal(op->unit_elements, want[i].elements);
        assert_int_equal(op->unit_elements * g->blocks[op->block].n_units,
                         op_axis_length(g, op, op->unit_axis));
    }
    const struct graph_op *attention = NULL;
    for (int i = 0; i < g->n_ops; i++)
        if (g->ops[i].kind == OP_ATTENTION) attention = &g->ops[i];
    assert_non_null(attention);
    assert_int_equal(attention->unit_axis, AXIS_HEADS);
    assert_int_equal(attention->unit_elements, 1);
    arena_free(&arena);
}

/* By key heads, where their heads are neighbours; tiled ones are not. */
static void a_delta_net_divides_by_key_heads(void **state) {
    (void)state;
    static const struct {
        int heads;
        bool tiled;
        int n_units;
    } cases[] = {{4, false, 2}, {4, true, 1}, {2, true, 2}, {6, false, 2}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct arena arena = {0};
        struct tiny_shape shape = tiny_plain;
        shape.delta_heads = cases[i].heads;
        shape.delta_tiled = cases[i].tiled;
        const struct graph *g = tiny_graph(&arena, &shape);
        assert_true(graph_has_state(g));
        const struct graph_block *b = &g->blocks[tiny_block(g, BLOCK_RECURRENT)];
        assert_int_equal(b->n_units, cases[i].n_units);
        for (int op = b->op_begin; op < b->op_end; op++) {
            const struct graph_op *o = &g->ops[op];
            if (o->kind == OP_DELTA)
                assert_int_equal(o->unit_elements, cases[i].heads / cases[i].n_units);
            if (o->kind == OP_DELTA) assert_int_equal(o->unit_axis, AXIS_HEADS);
            if (o->kind == OP_CONV) assert_int_equal(o->unit_axis, AXIS_ROWS);
        }
        arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_value_has_its_producer_and_width),
        cmocka_unit_test(after_rows_values_have_a_line_per_wanted_row),
        cmocka_unit_test(blocks_span_their_ops),
        cmocka_unit_test(a_discarded_builder_frees_what_it_holds),
        cmocka_unit_test(every_kind_has_a_name),
        cmocka_unit_test(a_unit_is_the_least_that_every_weight_allows),
        cmocka_unit_test(kv_heads_join_until_their_columns_end_on_a_block),
        cmocka_unit_test(kv_heads_join_until_their_rows_fill_a_row_group),
        cmocka_unit_test(unit_elements_cut_every_op_alike),
        cmocka_unit_test(a_delta_net_divides_by_key_heads),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
