/* Lowering: what programs of known plans cost, and that programs of any plan compute the graph. */
#include "replay.h"
#include "support.h"
#include "tiny_graph.h"

enum { N_TOKENS = 3, N_ROWS = 2 };

/* ---- single plans ---- */

struct lowered {
    struct arena arena;
    struct graph *g;
    struct plan *plan;
    struct replay_case c;
};

static void lowered_open(struct lowered *l, const struct tiny_shape *shape, int n_devices) {
    memset(l, 0, sizeof *l);
    l->g = tiny_graph(&l->arena, shape);
    l->plan = n_devices ? plan_even(&l->arena, l->g, n_devices) : plan_whole(&l->arena, l->g, 1, 0);
}

/* Lowers, and checks that the program computes the graph. */
static const struct program *lower(struct lowered *l) {
    struct rng rng;
    rng_seed(&rng, 1);
    TEST_OK(plan_check(l->g, l->plan, 1, 1));
    const struct program *p = program_lower(&l->arena, l->g, l->plan, N_TOKENS, N_ROWS);
    l->c = (struct replay_case){l->g, l->plan, p, N_TOKENS, N_ROWS};
    replay_check_form(&l->c);
    for (int i = 0; i < 5; i++)
        replay_run(&l->c, &rng);
    assert_false(replay_has_race(&l->c, -1, -1));
    return p;
}

/* Moves all parts of a block's ops to a device. */
static void move_block(struct lowered *l, int block, int device) {
    for (int op = l->g->blocks[block].op_begin; op < l->g->blocks[block].op_end; op++)
        for (int i = l->plan->first[op]; i < l->plan->first[op + 1]; i++)
            l->plan->parts[i].device = device;
}

static void one_device_copies_and_waits_for_nothing(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 0);
    const struct program *p = lower(&l);
    assert_int_equal(p->n_copies, 0);
    assert_int_equal(p->n_segments, 1);
    assert_int_equal(p->segments[0].n_waits, 0);
    assert_int_equal(p->n_steps, l.g->n_ops);
    for (int i = 0; i < p->n_steps; i++)
        assert_int_not_equal(p->steps[i].step.kind, STEP_COPY);
    /* only the logits stand in the exchange */
    assert_in_range(p->exchange_bytes, 4 * N_ROWS * l.g->n_vocab, 4 * N_ROWS * l.g->n_vocab + 63);
    arena_free(&l.arena);
}

static void memory_does_not_grow_with_layers(void **state) {
    (void)state;
    for (int n_devices = 0; n_devices <= 3; n_devices++) {
        int64_t local[3] = {0}, exchange = 0;
        for (int n_layers = 4; n_layers <= 12; n_layers += 4) {
            struct lowered l;
            struct tiny_shape shape = tiny_plain;
            shape.n_layers = n_layers;
            lowered_open(&l, &shape, n_devices);
            const struct program *p = lower(&l);
            for (int d = 0; d < p->n_devices; d++) {
                if (n_layers > 4) assert_int_equal(p->local_bytes[d], local[d]);
                local[d] = p->local_bytes[d];
            }
            if (n_layers > 4) assert_int_equal(p->exchange_bytes, exchange);
            exchange = p->exchange_bytes;
            arena_free(&l.arena);
        }
    }
}

/* Embedding from the first device to each other; then, for each attention and feed-forward block,
 * every device hands its partial sum over once. The residual stream is kept on all. */
static void a_split_block_pays_one_exchange_a_direction(void **state) {
    (void)state;
    struct tiny_shape shape = tiny_plain;
    shape.n_heads = shape.n_kv_heads = 4;
    for (int n_devices = 2; n_devices <= 4; n_devices++) {
        struct lowered l;
        lowered_open(&l, &shape, n_devices);
        const struct program *p = lower(&l);
        assert_int_equal(p->n_copies, 1 + 4 * n_devices);
        int n_sums = 0;
        for (int i = 0; i < p->n_steps; i++)
            n_sums += p->steps[i].step.kind == STEP_SUM;
        assert_int_equal(n_sums, 4 * n_devices); /* adds, the partial sums folded in */
        /* a segment between two exchanges; nobody waits for his bytes to be read, nor for another's
         * sum before his own */
        int n_waits = 0;
        for (int i = 0; i < p->n_segments; i++)
            n_waits += p->segments[i].n_waits;
        assert_int_equal(p->n_segments, 1 + 5 * n_devices);
        assert_int_equal(n_waits, (1 + 4 * n_devices) * (n_devices - 1));
        arena_free(&l.arena);
    }
}

static void a_chain_that_leaves_and_returns_crosses_twice(void **state) {
    (void)state;
    for (int block = 0; block < 4; block++) { /* each block but the head */
        struct lowered l;
        lowered_open(&l, &tiny_plain, 0);
        l.plan->n_devices = 2;
        move_block(&l, block, 1);
        const struct program *p = lower(&l);
        assert_int_equal(p->n_copies, 2);
        assert_int_equal(p->n_segments, 3);
        arena_free(&l.arena);
    }
}

static void a_chain_that_goes_on_elsewhere_crosses_once(void **state) {
    (void)state;
    for (int from = 1; from < 5; from++) {
        struct lowered l;
        lowered_open(&l, &tiny_plain, 0);
        l.plan->n_devices = 2;
        for (int block = from; block < 5; block++)
            move_block(&l, block, 1);
        const struct program *p = lower(&l);
        assert_int_equal(p->n_copies, 1);
        assert_int_equal(p->n_segments, 2);
        arena_free(&l.arena);
    }
}

/* The order is that of devices, whichever part of the columns each has. */
static void partial_sums_are_added_in_device_order(void **state) {
    (void)state;
    struct tiny_shape shape = tiny_plain;
    shape.bias = true;
    for (int reversed = 0; reversed < 2; reversed++) {
        struct lowered l;
        lowered_open(&l, &shape, 2);
        for (int i = 0; reversed && i < l.plan->n_parts; i++)
            l.plan->parts[i].device = 1 - l.plan->parts[i].device;
        const struct program *p = lower(&l); /* the replay knows the order */
        int n_partial = 0;
        for (int i = 0; i < p->n_steps; i++) {
            const struct step *s = &p->steps[i].step;
            if (s->kind != STEP_SUM) continue;
            assert_int_equal(s->n_in, 3); /* the residual stream, device 0, device 1 */
            enum space own = SPACE_LOCAL, other = SPACE_EXCHANGE;
            assert_int_equal(s->in[0].space, SPACE_LOCAL);
            assert_int_equal(s->in[1].space, p->steps[i].device == 0 ? own : other);
            assert_int_equal(s->in[2].space, p->steps[i].device == 1 ? own : other);
            n_partial++;
        }
        assert_int_equal(n_partial, 8);
        arena_free(&l.arena);
    }
}

static void a_head_cut_by_columns_is_summed_on_the_first_device(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 2);
    int head = tiny_op(l.g, "output");
    for (int i = l.plan->first[head]; i < l.plan->first[head + 1]; i++) {
        bool first = i == l.plan->first[head];
        l.plan->parts[i].axis = AXIS_COLS;
        l.plan->parts[i].begin = first ? 0 : 5;
        l.plan->parts[i].end = first ? 5 : l.g->n_embd;
    }
    const struct program *p = lower(&l);
    const struct program_step *last = &p->steps[p->n_steps - 1];
    assert_int_equal(last->step.kind, STEP_SUM);
    assert_int_equal(last->device, 0);
    assert_int_equal(last->step.out.offset_bytes, p->logits_offset_bytes);
    arena_free(&l.arena);
}

/* Devices without work have no segment, and nobody waits for them. */
static void idle_devices_cost_nothing(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 0);
    l.plan->n_devices = 4;
    const struct program *p = lower(&l);
    assert_int_equal(p->n_segments, 1);
    for (int d = 1; d < 4; d++)
        assert_int_equal(p->local_bytes[d], 0);
    arena_free(&l.arena);
}

/* ---- streaming ---- */

enum { EVERY_DEVICE = 15 };

/* All products of a plan are streamed. */
static void stream_all(struct lowered *l, int n_slots) {
    for (int i = 0; i < l->plan->n_parts; i++)
        l->plan->parts[i].streamed = op_can_stream(&l->g->ops[l->plan->parts[i].op]);
    for (int d = 0; d < l->plan->n_devices; d++)
        l->plan->n_slots[d] = n_slots;
}

/* Of a layer 4 x 8 query rows, twice 2 x 8 of K and V, 32 x 4 of the output and three times 12 x 8
 * of the feed-forward: what is small comes together. */
static void small_parts_come_together(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 0);
    stream_all(&l, 2);
    const struct program *p = lower(&l);
    replay_check_streams(&l.c);
    assert_false(replay_has_slot_race(&l.c, -1, -1));
    int n_streamed = 0;
    for (int i = 0; i < l.plan->n_parts; i++)
        n_streamed += l.plan->parts[i].streamed;
    assert_true(p->n_transfers > 2 && p->n_transfers < n_streamed);
    assert_int_equal(p->n_slots[0], 2);
    /* a segment for each, which begins with its first reader; the rest goes with them or between */
    assert_in_range(p->n_segments, p->n_transfers, 2 * p->n_transfers + 1);
    arena_free(&l.arena);
}

/* All of a layer in one lot, what is in none between them as it likes. */
static void a_lot_comes_together(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 0);
    stream_all(&l, 2);
    int n_layers = 0;
    for (int i = 0; i < l.plan->n_parts; i++) {
        int layer = l.g->ops[l.plan->parts[i].op].layer;
        l.plan->parts[i].lot = layer + 1; /* the head has none */
        n_layers = max_int(n_layers, layer + 1);
    }
    const struct program *p = lower(&l);
    assert_int_equal(p->n_transfers, n_layers + 1);
    for (int i = 0; i < p->n_steps; i++) {
        const struct program_step *s = &p->steps[i];
        if (s->transfer < 0) continue;
        int layer = s->step.op->layer;
        assert_int_equal(s->transfer, layer < 0 ? n_layers : layer);
    }
    assert_false(replay_has_slot_race(&l.c, -1, -1));
    arena_free(&l.arena);
}

/* A device has a half of each matrix, the other half is streamed to it in two parts: columns of
 * down and of the attention's output are added up there, once. */
static void what_is_streamed_joins_what_is_there(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 0);
    int n_before = lower(&l)->n_steps, n_added = 0, n = 0;
    struct plan_part *parts = ARENA_ARRAY(&l.arena, struct plan_part, 3 * l.plan->n_parts);
    for (int op = 0; op < l.g->n_ops; op++) {
        int from = l.plan->first[op], to = l.plan->first[op + 1];
        l.plan->first[op] = n;
        for (int i = from; i < to; i++) {
            struct plan_part p = l.plan->parts[i];
            bool cut = l.g->ops[op].kind == OP_MATMUL;
            if (cut && l.g->ops[op].unit_axis == AXIS_COLS) {
                p.axis = AXIS_COLS;
                p.end = l.g->weights[l.g->ops[op].weight].n_cols;
            }
            int half = cut ? p.end / 2 : p.end, end = p.end;
            p.end = half;
            parts[n++] = p;
            if (!cut) continue;
            p.streamed = true;
            parts[n++] = (p.begin = half, p.end = half + 1, p);
            parts[n++] = (p.begin = half + 1, p.end = end, p);
            n_added += p.axis == AXIS_COLS ? 4 : 2; /* each with its addition */
        }
    }
    l.plan->first[l.g->n_ops] = l.plan->n_parts = n;
    l.plan->parts = parts;
    l.plan->n_slots[0] = 1;
    const struct program *p = lower(&l);
    replay_check_streams(&l.c);
    assert_int_equal(p->n_copies, 0);
    assert_int_equal(p->n_steps, n_before + n_added);
    assert_false(replay_has_slot_race(&l.c, -1, -1));
    arena_free(&l.arena);
}

/* With a slot for each nothing comes into the middle of a round: all come ahead. */
static void there_are_no_more_slots_than_transfers(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 0);
    stream_all(&l, 1000);
    const struct program *p = lower(&l);
    assert_int_equal(p->n_slots[0], p->n_transfers);
    for (int i = 0; i < p->n_transfers; i++)
        assert_true(p->transfers[i].ahead);
    for (int i = 0; i < p->n_segments; i++)
        assert_int_equal(p->segments[i].release, -1);
    arena_free(&l.arena);
}

static void nothing_is_streamed_unasked(void **state) {
    (void)state;
    struct lowered l;
    lowered_open(&l, &tiny_plain, 2);
    const struct program *p = lower(&l);
    assert_int_equal(p->n_transfers, 0);
    assert_int_equal(p->n_slots[0] + p->n_slots[1], 0);
    for (int i = 0; i < p->n_segments; i++)
        assert_int_equal(p->segments[i].arrival, 0);
    arena_free(&l.arena);
}

/* ---- any plan ---- */

static const struct tiny_shape shapes[] = {
    {2, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, true, false, 1, 0, 0, false, false, 0, false},
    {2, 4, 4, 2, 8, 6, 5, DTYPE_F32, DTYPE_F32, false, true, 1, 0, 0, false, false, 0, false},
    {3, 6, 3, 2, 10, 8, 7, DTYPE_F32, DTYPE_F32, true, true, 2, 0, 0, false, false, 0, false},
    {1, 2, 1, 32, 64, 96, 40, DTYPE_Q8_0, DTYPE_F32, true, false, 4, 0, 0, false, false, 0, false},
    {2, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, false, false, 1, 5, 2, false, false, 0, false},
    {2, 6, 3, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, true, false, 1, 5, 2, true, true, 0, false},
    {2, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, false, false, 1, 0, 0, false, false, 4, false},
    {3, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, false, false, 1, 0, 0, false, false, 6, true},
};

static void random_open(struct lowered *l, uint64_t seed, plan_devices streaming, struct rng *rng) {
    const struct tiny_shape *shape = &shapes[seed % COUNT_OF(shapes)];
    int row_group = max_int(shape->row_group, 1),
        n_devices = 1 + (int)(seed / COUNT_OF(shapes) % 4);
    rng_seed(rng, seed);
    memset(l, 0, sizeof *l);
    l->g = tiny_graph(&l->arena, shape);
    l->plan = plan_random(&l->arena, l->g, n_devices, row_group, streaming, rng);
    TEST_OK(plan_check(l->g, l->plan, row_group, streaming));
    const struct program *p = program_lower(&l->arena, l->g, l->plan, N_TOKENS, N_ROWS);
    l->c = (struct replay_case){l->g, l->plan, p, N_TOKENS, N_ROWS};
}

static void any_plan_computes_the_graph_in_any_order_of_segments(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct lowered l;
        struct rng rng;
        random_open(&l, seed, 0, &rng);
        replay_check_form(&l.c);
        for (int i = 0; i < 4; i++)
            replay_run(&l.c, &rng);
        arena_free(&l.arena);
    }
}

static void waits_order_every_conflict_in_the_exchange(void **state) {
    (void)state;
    for (uint64_t seed = 1; seed <= 500; seed++) {
        struct lowered l;
        struct rng rng;
        random_open(&l, seed, 0, &rng);
        if (replay_has_race(&l.c, -1, -1)) fail_msg("seed %d: a wait is missing", (int)seed);
        arena_free(&l.arena);
    }
}

/* Somewhere a device goes through a block with what it holds before it begins it again with what is
 * streamed. */
static bool takes_turns(const struct lowered *l) {
    const struct program *p = l->c.program;
    for (int i = 0; i < p->n_steps; i++)
        for (int j = i + 1; j < p->n_steps; j++) {
            const struct program_step *a = &p->steps[i], *b = &p->steps[j];
            if (a->device == b->device && a->transfer < 0 && b->transfer >= 0 &&
                a->step.kind == STEP_OP && op_is_placed(a->step.op) && a->step.op > b->step.op)
                return true;
        }
    return false;
}

/* One of all that is waited for in slots left out: there is a race, but where a device waits for a
 * slot of its own that another wait has covered. */
static void any_streamed_plan_fills_its_slots_in_time(void **state) {
    (void)state;
    int n_arrivals = 0, n_releases = 0, n_needed = 0, n_one = 0, n_many = 0, n_turns = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) {
        struct lowered l;
        struct rng rng;
        random_open(&l, seed, EVERY_DEVICE, &rng);
        const struct program *p = l.c.program;
        replay_check_form(&l.c);
        replay_check_streams(&l.c);
        replay_run(&l.c, &rng);
        if (replay_has_slot_race(&l.c, -1, -1)) fail_msg("seed %d: a wait is missing", (int)seed);
        for (int d = 0; d < p->n_devices; d++)
            n_one += p->n_slots[d] == 1, n_many += p->n_slots[d] > 1;
        for (int i = 0; i < p->n_segments; i++) {
            if (!p->segments[i].arrival) continue;
            n_arrivals++;
            if (!replay_has_slot_race(&l.c, i, -1))
                fail_msg("seed %d: segment %d waits for nothing", (int)seed, i);
        }
        n_turns += takes_turns(&l);
        for (int i = 0; i < p->n_transfers; i++) {
            n_releases++;
            n_needed += replay_has_slot_race(&l.c, -1, i);
        }
        arena_free(&l.arena);
    }
    print_message("%d arrivals, all needed; %d of %d releases; %d with one slot, %d with more; %d "
                  "take turns\n",
                  n_arrivals, n_needed, n_releases, n_one, n_many, n_turns);
    assert_true(n_arrivals > 1000 && n_one > 50 && n_many > 50 && n_turns > 5);
    assert_true(10 * n_needed >= 9 * n_releases);
}

/* How many waits there are over 200 plans, and without how many of them something goes wrong. Of
 * three devices, what one waits for may follow from what it heard of another. */
static void few_waits_could_be_left_out(void **state) {
    (void)state;
    int n_waits[5] = {0}, n_needed[5] = {0};
    for (uint64_t seed = 1; seed <= 200; seed++) {
        struct lowered l;
        struct rng rng;
        random_open(&l, seed, 0, &rng);
        const struct program *p = l.c.program;
        for (int i = 0; i < p->n_segments; i++)
            for (int j = 0; j < p->segments[i].n_waits; j++) {
                n_waits[p->n_devices]++;
                n_needed[p->n_devices] += replay_has_race(&l.c, i, j);
            }
        arena_free(&l.arena);
    }
    assert_int_equal(n_waits[1], 0);
    for (int n = 2; n <= 4; n++) {
        print_message("%d devices: %d of %d waits are needed\n", n, n_needed[n], n_waits[n]);
        assert_true(n_waits[n] > 200);
        assert_true(n_needed[n] * 5 >= n_waits[n] * (n == 2 ? 5 : 4)); /* of two: every one */
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_device_copies_and_waits_for_nothing),
        cmocka_unit_test(memory_does_not_grow_with_layers),
        cmocka_unit_test(a_split_block_pays_one_exchange_a_direction),
        cmocka_unit_test(a_chain_that_leaves_and_returns_crosses_twice),
        cmocka_unit_test(a_chain_that_goes_on_elsewhere_crosses_once),
        cmocka_unit_test(partial_sums_are_added_in_device_order),
        cmocka_unit_test(a_head_cut_by_columns_is_summed_on_the_first_device),
        cmocka_unit_test(idle_devices_cost_nothing),
        cmocka_unit_test(small_parts_come_together),
        cmocka_unit_test(there_are_no_more_slots_than_transfers),
        cmocka_unit_test(a_lot_comes_together),
        cmocka_unit_test(what_is_streamed_joins_what_is_there),
        cmocka_unit_test(nothing_is_streamed_unasked),
        cmocka_unit_test(any_streamed_plan_fills_its_slots_in_time),
        cmocka_unit_test(any_plan_computes_the_graph_in_any_order_of_segments),
        cmocka_unit_test(waits_order_every_conflict_in_the_exchange),
        cmocka_unit_test(few_waits_could_be_left_out),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
