/* Plans: what the makers make is legal and divides as said; what is illegal is refused by name. */
#include "plan/plan.h"
#include "support.h"
#include "tiny_graph.h"

/* Shapes with every kind of border: plain types, 32- and 256-blocks, row groups. */
static const struct tiny_shape shapes[] = {
    {2, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, true, true, 1, 0, 0, false, false, 0, false},
    {2, 9, 3, 64, 576, 1536, 640, DTYPE_Q4_1, DTYPE_Q6_K, false, false, 16, 0, 0, false, false, 0,
     false},
    {1, 8, 8, 32, 256, 512, 130, DTYPE_Q4_K, DTYPE_F32, false, true, 4, 0, 0, false, false, 0,
     false},
    {3, 2, 1, 16, 32, 64, 33, DTYPE_Q8_0, DTYPE_F32, true, false, 1, 0, 0, false, false, 0, false},
    {2, 4, 2, 16, 64, 32, 33, DTYPE_F32, DTYPE_F32, false, false, 1, 6, 2, false, false, 0, false},
    {2, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, false, false, 1, 0, 0, false, false, 4, false},
    {2, 4, 2, 4, 12, 10, 9, DTYPE_F32, DTYPE_F32, false, false, 1, 0, 0, false, false, 4, true},
};

static int row_group(const struct tiny_shape *s) {
    return s->row_group ? s->row_group : 1;
}

/* Elements of an op's axis that a device has. */
static int device_elements(const struct plan *p, int op, int device) {
    int n = 0;
    for (int i = p->first[op]; i < p->first[op + 1]; i++)
        if (p->parts[i].device == device) n += p->parts[i].end - p->parts[i].begin;
    return n;
}

enum { EVERY_DEVICE = 15 };

/* ---- the makers ---- */

static void a_whole_plan_has_one_part_per_op(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int device = 0; device < 3; device++) {
            struct arena arena = {0};
            const struct graph *g = tiny_graph(&arena, &shapes[i]);
            const struct plan *p = plan_whole(&arena, g, 3, device);
            TEST_OK(plan_check(g, p, row_group(&shapes[i]), 0));
            assert_int_equal(p->n_devices, 3);
            for (int op = 0; op < g->n_ops; op++) {
                assert_int_equal(p->first[op + 1] - p->first[op], op_is_placed(&g->ops[op]));
                assert_false(plan_op_is_partial(p, op));
            }
            for (int part = 0; part < p->n_parts; part++)
                assert_int_equal(p->parts[part].device, device);
            arena_free(&arena);
        }
}

static void an_even_plan_gives_every_device_its_share_of_units(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (int n_devices = 1; n_devices <= 4; n_devices++) {
            struct arena arena = {0};
            const struct graph *g = tiny_graph(&arena, &shapes[i]);
            const struct plan *p = plan_even(&arena, g, n_devices);
            TEST_OK(plan_check(g, p, row_group(&shapes[i]), 0));
            for (int op = 0; op < g->n_ops; op++) {
                const struct graph_op *o = &g->ops[op];
                if (!op_is_placed(o) || o->block < 0) continue;
                int n_units = g->blocks[o->block].n_units;
                for (int d = 0; d < n_devices && n_units >= n_devices; d++) {
                    int n = device_elements(p, op, d);
                    assert_int_equal(n % o->unit_elements, 0);
                    assert_in_range(n / o->unit_elements, n_units / n_devices,
                                    (n_units + n_devices - 1) / n_devices);
                }
                if (n_units < n_devices) assert_int_equal(p->first[op + 1] - p->first[op], 1);
            }
            assert_int_equal(p->parts[0].op, 0); /* the embedding */
            assert_int_equal(p->parts[0].device, 0);
            arena_free(&arena);
        }
}

/* What ways of dividing an op or a block a plan shows. */
enum mode {
    ROWS_CUT,
    COLS_CUT,
    HEADS_CUT,
    EXPERTS_CUT,
    WHOLE_BLOCK,
    UNIT_BLOCK,
    MIXED_BLOCK,
    N_MODES
};

static bool block_is_units(const struct graph *g, const struct plan *p, int block) {
    for (int d = 0; d < p->n_devices; d++) {
        int units = -1;
        for (int op = g->blocks[block].op_begin; op < g->blocks[block].op_end; op++) {
            const struct graph_op *o = &g->ops[op];
            if (!op_is_placed(o)) continue;
            if (p->parts[p->first[op]].axis != o->unit_axis) return false;
            int n = device_elements(p, op, d);
            if (n % o->unit_elements) return false;
            if (units >= 0 && n / o->unit_elements != units) return false;
            units = n / o->unit_elements;
        }
    }
    return true;
}

static void note_modes(const struct graph *g, const struct plan *p, int seen[N_MODES]) {
    for (int op = 0; op < g->n_ops; op++) {
        if (p->first[op + 1] - p->first[op] < 2) continue;
        static const enum mode modes[] = {[AXIS_ROWS] = ROWS_CUT,
                                          [AXIS_COLS] = COLS_CUT,
                                          [AXIS_HEADS] = HEADS_CUT,
                                          [AXIS_EXPERTS] = EXPERTS_CUT};
        seen[modes[p->parts[p->first[op]].axis]]++;
    }
    for (int b = 0; b < g->n_blocks; b++) {
        int n_whole = 0, n_placed = 0, device = -1;
        bool same = true;
        for (int op = g->blocks[b].op_begin; op < g->blocks[b].op_end; op++) {
            if (!op_is_placed(&g->ops[op])) continue;
            n_placed++;
            n_whole += p->first[op + 1] - p->first[op] == 1;
            if (device >= 0 && p->parts[p->first[op]].device != device) same = false;
            device = p->parts[p->first[op]].device;
        }
        if (n_whole == n_placed && same)
            seen[WHOLE_BLOCK]++;
        else if (block_is_units(g, p, b))
            seen[UNIT_BLOCK]++;
        else
            seen[MIXED_BLOCK]++;
    }
}

static void random_plans_are_legal_and_reach_every_division(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        int seen[N_MODES] = {0}, n_used[4] = {0};
        for (uint64_t seed = 1; seed <= 100; seed++) {
            struct arena arena = {0};
            struct rng rng;
            rng_seed(&rng, seed);
            const struct graph *g = tiny_graph(&arena, &shapes[i]);
            int n_devices = 1 + (int)(seed % 4);
            const struct plan *p =
                plan_random(&arena, g, n_devices, row_group(&shapes[i]), 0, &rng);
            TEST_OK(plan_check(g, p, row_group(&shapes[i]), 0));
            note_modes(g, p, seen);
            for (int part = 0; part < p->n_parts; part++)
                n_used[p->parts[part].device]++;
            arena_free(&arena);
        }
        for (int mode = 0; mode < N_MODES; mode++)
            /* a cache of one KV head is never cut */
            if ((mode != HEADS_CUT || shapes[i].n_kv_heads > 1) &&
                (mode != EXPERTS_CUT || shapes[i].n_experts > 1))
                assert_true(seen[mode] > 0);
        for (int d = 0; d < 4; d++)
            assert_true(n_used[d] > 0);
    }
}

static void the_same_seed_gives_the_same_plan(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &shapes[0]);
    struct rng a, b;
    rng_seed(&a, 7), rng_seed(&b, 7);
    const struct plan *p = plan_random(&arena, g, 3, 1, EVERY_DEVICE, &a);
    const struct plan *q = plan_random(&arena, g, 3, 1, EVERY_DEVICE, &b);
    assert_int_equal(p->n_parts, q->n_parts);
    for (int i = 0; i < p->n_parts; i++) {
        const struct plan_part *x = &p->parts[i], *y = &q->parts[i];
        assert_true(x->op == y->op && x->device == y->device && x->axis == y->axis);
        assert_true(x->begin == y->begin && x->end == y->end && x->streamed == y->streamed);
    }
    assert_memory_equal(p->n_slots, q->n_slots, 3 * sizeof *p->n_slots);
    arena_free(&arena);
}

/* Nothing, some or all of what a device can stream, with one slot and with many. */
static void random_plans_stream_in_every_way(void **state) {
    (void)state;
    int n_ways[3] = {0}, n_slots[9] = {0};
    for (uint64_t seed = 1; seed <= 100; seed++) {
        const struct tiny_shape *shape = &shapes[seed % COUNT_OF(shapes)];
        struct arena arena = {0};
        struct rng rng;
        rng_seed(&rng, seed);
        const struct graph *g = tiny_graph(&arena, shape);
        plan_devices streaming = 5; /* of four: two */
        const struct plan *p = plan_random(&arena, g, 4, row_group(shape), streaming, &rng);
        TEST_OK(plan_check(g, p, row_group(shape), streaming));
        int n[2] = {0};
        for (int i = 0; i < p->n_parts; i++) {
            const struct plan_part *part = &p->parts[i];
            if (part->device == 0 && op_can_stream(&g->ops[part->op])) n[part->streamed]++;
            if (part->device % 2 || !op_can_stream(&g->ops[part->op])) assert_false(part->streamed);
        }
        n_ways[n[1] == 0 ? 0 : n[0] == 0 ? 2 : 1]++;
        assert_in_range(p->n_slots[0], 1, 8);
        n_slots[p->n_slots[0]]++;
        arena_free(&arena);
    }
    assert_true(n_ways[0] >= 10 && n_ways[1] >= 10 && n_ways[2] >= 10);
    assert_true(n_slots[1] >= 10 && n_slots[2] >= 10 && n_slots[8] >= 10);
}

/* What device d has of an op. */
static int held(const struct plan *p, int op, int d) {
    int n = 0;
    for (int i = p->first[op]; i < p->first[op + 1]; i++)
        n += p->parts[i].device == d ? p->parts[i].end - p->parts[i].begin : 0;
    return n;
}

static bool has_streamed(const struct plan *p, plan_devices to) {
    for (int i = 0; i < p->n_parts; i++)
        if (p->parts[i].streamed && to >> p->parts[i].device & 1) return true;
    return false;
}

/* A pair stays one where it differs in what other devices do. */
static bool expect_pair_in_place(const struct graph *g, int row_group, const struct plan *from,
                                 const struct plan *to, plan_devices in_place, plan_devices hosts) {
    const struct plan *prompts = to->prompts;
    if (!prompts) {
        if (from->prompts)
            assert_false(has_streamed(to, ~in_place) != has_streamed(from->prompts, ~in_place));
        return false;
    }
    TEST_OK(plan_check_pair(g, to, prompts, row_group, ~in_place, hosts));
    assert_false(has_streamed(prompts, in_place));
    assert_int_equal(to->prompts_from, from->prompts_from);
    for (int d = 0; d < 4; d++)
        assert_int_equal(prompts->n_slots[d], in_place >> d & 1 ? 0 : from->prompts->n_slots[d]);
    return true;
}

/* Ranges of the others stay apart, and streamed. Every second plan has a partner. */
static void nothing_is_streamed_to_devices_in_host_memory(void **state) {
    (void)state;
    int n_streamed = 0, n_left = 0, n_gathered = 0, n_pairs = 0, n_single = 0;
    for (uint64_t seed = 1; seed <= 200; seed++) {
        const struct tiny_shape *shape = &shapes[seed % COUNT_OF(shapes)];
        struct arena arena = {0};
        struct rng rng;
        rng_seed(&rng, seed);
        const struct graph *g = tiny_graph(&arena, shape);
        struct plan *p = plan_random(&arena, g, 4, row_group(shape), EVERY_DEVICE, &rng);
        plan_devices in_place = 1 + seed % 15, streaming = EVERY_DEVICE & ~in_place,
                     hosts = 5 & ~in_place;
        TEST_OK(plan_check(g, p, row_group(shape), EVERY_DEVICE));
        if (seed % 2) {
            p->prompts = plan_random_prompts(&arena, g, p, EVERY_DEVICE, hosts, &rng);
            p->prompts_from = (int)seed + 1;
        }
        const struct plan *q = plan_in_place(&arena, g, p, in_place);
        TEST_OK(plan_check(g, q, row_group(shape), streaming));
        bool pair = expect_pair_in_place(g, row_group(shape), p, q, in_place, hosts);
        n_pairs += pair;
        n_single += p->prompts && !pair;
        for (int op = 0; op < g->n_ops; op++)
            for (int d = 0; d < 4; d++)
                assert_int_equal(held(q, op, d), held(p, op, d));
        for (int d = 0; d < 4; d++)
            assert_int_equal(q->n_slots[d], in_place >> d & 1 ? 0 : p->n_slots[d]);
        for (int i = 0; i < p->n_parts; i++)
            n_streamed += p->parts[i].streamed;
        for (int i = 0; i < q->n_parts; i++)
            n_left += q->parts[i].streamed;
        n_gathered += p->n_parts - q->n_parts;
        arena_free(&arena);
    }
    assert_true(n_left >= 100 && n_streamed >= n_left + 100 && n_gathered >= 20);
    assert_true(n_pairs >= 50 && n_single >= 3);
}

static void the_bytes_of_a_part_are_its_share_of_the_file(void **state) {
    (void)state;
    struct arena arena = {0};
    const struct graph *g = tiny_graph(&arena, &shapes[1]);
    int gate = tiny_op(g, "blk.0.ffn_gate"), down = tiny_op(g, "blk.0.ffn_down");
    const struct plan_part rows = {gate, 0, AXIS_ROWS, 16, 48, false, 0};
    const struct plan_part cols = {down, 0, AXIS_COLS, 256, 768, false, 0};
    assert_int_equal(plan_part_bytes(g, &rows), 32 * dtype_row_bytes(DTYPE_Q4_1, 576));
    assert_int_equal(plan_part_bytes(g, &cols), 576 * dtype_row_bytes(DTYPE_Q6_K, 512));
    arena_free(&arena);
    struct arena other = {0};
    g = tiny_graph(&other, &shapes[4]);
    for (int op = 0; op < g->n_ops; op++) {
        const struct plan_part experts = {op, 0, AXIS_EXPERTS, 1, 4, false, 0};
        const struct plan_part heads = {op, 0, AXIS_HEADS, 0, 1, false, 0};
        if (g->ops[op].kind == OP_EXPERTS)
            assert_int_equal(plan_part_bytes(g, &experts), 3 * 3 * 64 * 32 * 4);
        if (g->ops[op].kind == OP_ATTENTION) assert_int_equal(plan_part_bytes(g, &heads), 0);
    }
    arena_free(&other);
}

/* ---- illegal plans ---- */

/* A plan of an even split over two devices that a test makes wrong in one place. */
struct wrong {
    struct arena arena;
    const struct graph *g;
    struct plan *plan;
    int row_group;
};

static struct wrong wrong_open(const struct tiny_shape *shape) {
    struct wrong w = {.row_group = row_group(shape)};
    w.g = tiny_graph(&w.arena, shape);
    w.plan = plan_even(&w.arena, w.g, 2);
    TEST_OK(plan_check(w.g, w.plan, w.row_group, 1));
    return w;
}

static struct plan_part *part_of(const struct wrong *w, const char *weight, int index) {
    int op = tiny_op(w->g, weight);
    assert_true(op >= 0 && index < w->plan->first[op + 1] - w->plan->first[op]);
    return &w->plan->parts[w->plan->first[op] + index];
}

static void expect_refused(struct wrong *w, const char *name) {
    TEST_STATUS(plan_check(w->g, w->plan, w->row_group, 1), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS(name);
    arena_free(&w->arena);
}

/* Takes the last part of an op out of the plan. */
static void drop_last_part(struct wrong *w, int op) {
    struct plan *p = w->plan;
    int at = p->first[op + 1] - 1;
    memmove(p->parts + at, p->parts + at + 1, sizeof *p->parts * (size_t)(p->n_parts - at - 1));
    p->n_parts--;
    for (int i = op + 1; i <= w->g->n_ops; i++)
        p->first[i]--;
}

static void a_plan_without_a_home_is_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]);
    drop_last_part(&w, tiny_op(w.g, "token_embd"));
    expect_refused(&w, "no home for token_embd");
}

static void a_plan_that_leaves_something_out_is_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]);
    drop_last_part(&w, tiny_op(w.g, "blk.1.ffn_up"));
    expect_refused(&w, "covers 5 of 10 of blk.1.ffn_up");
    w = wrong_open(&shapes[0]); /* a gap between two parts */
    part_of(&w, "blk.0.attn_q", 1)->begin++;
    expect_refused(&w, "blk.0.attn_q");
    w = wrong_open(&shapes[0]); /* and before the first */
    part_of(&w, "output", 0)->begin = 1;
    expect_refused(&w, "output");
}

static void a_plan_that_covers_something_twice_is_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]);
    part_of(&w, "blk.0.ffn_down", 1)->begin--;
    expect_refused(&w, "4 to 10 of blk.0.ffn_down");
    w = wrong_open(&shapes[0]);
    part_of(&w, "blk.0.ffn_down", 1)->end++;
    expect_refused(&w, "5 to 11 of blk.0.ffn_down");
}

static void empty_and_backward_ranges_are_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]);
    part_of(&w, "blk.0.attn_v", 0)->end = 0;
    expect_refused(&w, "blk.0.attn_v");
    w = wrong_open(&shapes[0]);
    part_of(&w, "blk.0.attn_v", 0)->end = -4;
    expect_refused(&w, "blk.0.attn_v");
}

static void unknown_devices_are_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]);
    part_of(&w, "blk.1.attn_k", 1)->device = 2;
    expect_refused(&w, "blk.1.attn_k");
    w = wrong_open(&shapes[0]);
    part_of(&w, "blk.1.attn_k", 0)->device = -1;
    expect_refused(&w, "blk.1.attn_k");
}

static void a_device_may_have_two_parts_of_weights_not_of_a_cache(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]);
    part_of(&w, "blk.1.attn_output", 1)->device = 0;
    TEST_OK(plan_check(w.g, w.plan, w.row_group, 1));
    for (int i = 0; i < w.g->n_ops; i++)
        if (w.g->ops[i].kind == OP_ATTENTION) w.plan->parts[w.plan->first[i] + 1].device = 0;
    expect_refused(&w, "device 0 has two parts of blk.0.attn_kv");
}

static void axes_that_do_not_fit_are_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]); /* parts of an op along different axes */
    part_of(&w, "blk.0.attn_k", 1)->axis = AXIS_COLS;
    expect_refused(&w, "blk.0.attn_k");
    w = wrong_open(&shapes[0]); /* heads of a matrix */
    part_of(&w, "blk.0.attn_k", 0)->axis = part_of(&w, "blk.0.attn_k", 1)->axis = AXIS_HEADS;
    expect_refused(&w, "blk.0.attn_k along an axis");
    w = wrong_open(&shapes[0]); /* rows of a cache */
    for (int op = 0; op < w.g->n_ops; op++)
        if (w.g->ops[op].kind == OP_ATTENTION) w.plan->parts[w.plan->first[op]].axis = AXIS_ROWS;
    expect_refused(&w, "attn_kv along an axis");
}

static void a_cut_embedding_is_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]);
    struct plan *p = w.plan; /* op 0: room is made for a second part */
    memmove(p->parts + 1, p->parts, sizeof *p->parts * (size_t)p->n_parts);
    p->n_parts++;
    for (int i = 1; i <= w.g->n_ops; i++)
        p->first[i]++;
    p->parts[0].end = p->parts[1].begin = 4;
    p->parts[1].device = 1;
    expect_refused(&w, "token_embd along an axis");
}

static void borders_inside_a_block_or_row_group_are_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[1]); /* Q4_1 rows in groups of 16 */
    part_of(&w, "blk.0.ffn_gate", 0)->end += 8;
    part_of(&w, "blk.0.ffn_gate", 1)->begin += 8;
    expect_refused(&w, "blk.0.ffn_gate");
    w = wrong_open(&shapes[1]); /* Q6_K columns in blocks of 256 */
    part_of(&w, "blk.0.ffn_down", 0)->end += 32;
    part_of(&w, "blk.0.ffn_down", 1)->begin += 32;
    expect_refused(&w, "blk.0.ffn_down");
    w = wrong_open(&shapes[1]); /* a legal shift of the border passes */
    part_of(&w, "blk.0.ffn_gate", 0)->end += 16;
    part_of(&w, "blk.0.ffn_gate", 1)->begin += 16;
    TEST_OK(plan_check(w.g, w.plan, w.row_group, 1));
    arena_free(&w.arena);
}

static void what_cannot_be_streamed_is_refused(void **state) {
    (void)state;
    struct wrong w = wrong_open(&shapes[0]); /* of two devices the first one streams */
    part_of(&w, "blk.0.ffn_gate", 0)->streamed = true;
    w.plan->n_slots[0] = 1;
    TEST_OK(plan_check(w.g, w.plan, w.row_group, 1));
    w.plan->n_slots[0] = 0;
    expect_refused(&w, "blk.0.ffn_gate to device 0, but gives it no slot");
    w = wrong_open(&shapes[0]);
    part_of(&w, "blk.0.ffn_gate", 1)->streamed = true;
    w.plan->n_slots[1] = 1;
    expect_refused(&w, "blk.0.ffn_gate to device 1, which cannot");
    w = wrong_open(&shapes[0]);
    part_of(&w, "token_embd", 0)->streamed = true;
    w.plan->n_slots[0] = 1;
    expect_refused(&w, "token_embd cannot be streamed");
}

/* ---- pairs ---- */

enum { PAIR_CPUS = 1 << 0 | 1 << 2, PAIR_GPUS = 1 << 1 | 1 << 3 };

/* Of an even division over two processors and two devices that stream, all that the first processor
 * has of products is streamed in prompts. */
struct pair {
    struct arena arena;
    const struct graph *g;
    struct plan *decode, *prompts;
};

static struct pair pair_open(void) {
    struct pair p = {0};
    p.g = tiny_graph(&p.arena, &shapes[0]);
    p.decode = plan_even(&p.arena, p.g, 4);
    p.prompts = plan_even(&p.arena, p.g, 4);
    for (int d = 0; d < 4; d++)
        p.decode->n_slots[d] = p.prompts->n_slots[d] = PAIR_GPUS >> d & 1;
    for (int i = 0; i < p.prompts->n_parts; i++) {
        struct plan_part *part = &p.prompts->parts[i];
        if (part->device == 0 && op_can_stream(&p.g->ops[part->op]))
            part->device = 1, part->streamed = true, part->lot = i;
    }
    return p;
}

static ats_status pair_check(const struct pair *p) {
    return plan_check_pair(p->g, p->decode, p->prompts, 1, PAIR_GPUS, PAIR_CPUS);
}

/* The first part of the weight in either plan that has the home. */
static struct plan_part *pair_part(const struct pair *p, const struct plan *plan,
                                   const char *weight, int device, bool streamed) {
    int op = tiny_op(p->g, weight);
    for (int i = plan->first[op]; i < plan->first[op + 1]; i++)
        if (plan->parts[i].device == device && plan->parts[i].streamed == streamed)
            return &plan->parts[i];
    fail_msg("%s has no such part", weight);
    return NULL;
}

static void expect_no_pair(struct pair *p, const char *error) {
    TEST_STATUS(pair_check(p), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS(error);
    arena_free(&p->arena);
}

static void what_a_processor_computes_in_decode_may_be_streamed_in_prompts(void **state) {
    (void)state;
    struct pair p = pair_open();
    TEST_OK(pair_check(&p));
    TEST_OK(plan_check_pair(p.g, p.prompts, p.decode, 1, PAIR_GPUS, PAIR_CPUS)); /* either way */
    TEST_OK(plan_check_pair(p.g, p.prompts, p.prompts, 1, PAIR_GPUS, PAIR_CPUS));
    arena_free(&p.arena);
}

static void plans_that_need_bytes_twice_are_no_pair(void **state) {
    (void)state;
    struct pair p = pair_open(); /* what stays on a device is streamed in prompts */
    pair_part(&p, p.prompts, "blk.0.ffn_up", 3, false)->streamed = true;
    expect_no_pair(&p, "blk.0.ffn_up has other homes");
    p = pair_open(); /* what is in host memory is cut elsewhere */
    pair_part(&p, p.prompts, "blk.0.ffn_up", 1, true)->end++;
    pair_part(&p, p.prompts, "blk.0.ffn_up", 1, false)->begin++;
    expect_no_pair(&p, "blk.0.ffn_up has other homes");
    p = pair_open(); /* another processor's */
    struct plan_part *first = pair_part(&p, p.prompts, "blk.1.ffn_up", 1, true);
    struct plan_part *third = pair_part(&p, p.prompts, "blk.1.ffn_up", 2, false);
    first->device = 2, first->streamed = false;
    third->device = 1, third->streamed = true;
    expect_no_pair(&p, "blk.1.ffn_up has other homes");
    p = pair_open(); /* streamed to another device */
    first = pair_part(&p, p.decode, "blk.1.ffn_up", 0, false);
    first->device = 3, first->streamed = true;
    expect_no_pair(&p, "blk.1.ffn_up has other homes");
}

static void caches_and_devices_of_a_pair_are_the_same(void **state) {
    (void)state;
    struct pair p = pair_open();
    for (int i = 0; i < p.prompts->n_parts; i++) {
        struct plan_part *part = &p.prompts->parts[i];
        if (p.g->ops[part->op].kind == OP_ATTENTION) part->device ^= 1;
    }
    expect_no_pair(&p, "attn_kv has other homes");
    p = pair_open();
    p.prompts->n_devices = 3;
    expect_no_pair(&p, "has 3 devices, that of decode 4");
    p = pair_open(); /* each must be legal */
    p.prompts->n_slots[1] = 0;
    expect_no_pair(&p, "gives it no slot");
    p = pair_open();
    pair_part(&p, p.decode, "output", 0, false)->begin = 1;
    expect_no_pair(&p, "of output is not legal");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_whole_plan_has_one_part_per_op),
        cmocka_unit_test(an_even_plan_gives_every_device_its_share_of_units),
        cmocka_unit_test(random_plans_are_legal_and_reach_every_division),
        cmocka_unit_test(the_same_seed_gives_the_same_plan),
        cmocka_unit_test(random_plans_stream_in_every_way),
        cmocka_unit_test(nothing_is_streamed_to_devices_in_host_memory),
        cmocka_unit_test(the_bytes_of_a_part_are_its_share_of_the_file),
        cmocka_unit_test(what_cannot_be_streamed_is_refused),
        cmocka_unit_test(a_plan_without_a_home_is_refused),
        cmocka_unit_test(a_plan_that_leaves_something_out_is_refused),
        cmocka_unit_test(a_plan_that_covers_something_twice_is_refused),
        cmocka_unit_test(empty_and_backward_ranges_are_refused),
        cmocka_unit_test(unknown_devices_are_refused),
        cmocka_unit_test(a_device_may_have_two_parts_of_weights_not_of_a_cache),
        cmocka_unit_test(axes_that_do_not_fit_are_refused),
        cmocka_unit_test(a_cut_embedding_is_refused),
        cmocka_unit_test(borders_inside_a_block_or_row_group_are_refused),
        cmocka_unit_test(what_a_processor_computes_in_decode_may_be_streamed_in_prompts),
        cmocka_unit_test(plans_that_need_bytes_twice_are_no_pair),
        cmocka_unit_test(caches_and_devices_of_a_pair_are_the_same),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
