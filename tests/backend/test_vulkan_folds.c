/* What a Vulkan device computes in one dispatch that are several steps: the same bits as one after
 * the other, in fewer dispatches. Each chain of steps begins and ends in the exchange. */
#include "rig.h"

#include "backend/vulkan/vulkan.h"

enum { MAX_STEPS = 16, MAX_WEIGHTS = 8 };
static const int line_counts[] = {1, 3, 8, 9, 70}; /* both sides of the borders between paths */

struct chain {
    struct rig *r;
    enum dtype dtype;
    enum math math;
    int n_embd, n_ff;
    struct graph_op ops[MAX_STEPS];
    struct step steps[MAX_STEPS];
    struct rig_matrix m[MAX_WEIGHTS];
    struct backend_weight *w[MAX_WEIGHTS];
    int n, n_weights;
    struct backend_kv *kv; /* or NULL */
};

static struct span at(int local) {
    return rig_span(SPACE_LOCAL, local, 0);
}
static struct span beyond(int exchange) {
    return rig_span(SPACE_EXCHANGE, exchange, 0);
}

static struct step *add(struct chain *c, enum step_kind kind, struct span in, struct span out,
                        int width, int n_readers) {
    struct step *s = &c->steps[c->n];
    assert_true(c->n < MAX_STEPS);
    *s = (struct step){.kind = kind, .op = &c->ops[c->n], .n_in = 1, .end = width};
    s->n_readers = n_readers;
    s->in[0] = in;
    s->out = out;
    c->n++;
    return s;
}

static struct backend_weight *weight(struct chain *c, enum dtype dtype, int n_rows, int n_cols) {
    int i = c->n_weights++;
    assert_true(i < MAX_WEIGHTS);
    c->m[i] = rig_matrix(&c->r->rng, dtype, n_rows, n_cols);
    return c->w[i] = rig_load(c->r, &c->m[i], 0, n_rows, 0, n_cols);
}

static struct step *op(struct chain *c, enum op_kind kind, int in, struct span out, int width,
                       int n_readers) {
    c->ops[c->n].kind = kind;
    return add(c, STEP_OP, at(in), out, width, n_readers);
}

static void norm(struct chain *c, int in, int out, int width, int group, int n_readers) {
    struct step *s = op(c, OP_NORM, in, at(out), width, n_readers);
    c->ops[c->n - 1].p.norm.group = group;
    c->ops[c->n - 1].p.norm.eps = 1e-5F;
    s->weight = weight(c, DTYPE_F32, 1, group);
}

static void product(struct chain *c, enum dtype dtype, int in, struct span out, int n_rows,
                    int n_cols) {
    struct step *s = op(c, OP_MATMUL, in, out, n_rows, 1);
    c->ops[c->n - 1].p.matmul.math = dtype == DTYPE_F32 ? MATH_F32 : c->math;
    s->in_end = n_cols;
    s->weight = weight(c, dtype, n_rows, n_cols);
}

static void gated(struct chain *c, int gate, int up, int out, int width, enum activation act) {
    struct step *s = op(c, OP_GATED, gate, at(out), width, 1);
    s->in[s->n_in++] = at(up);
    c->ops[c->n - 1].p.gated.act = act;
}

static void second(struct chain *c, struct span in) {
    struct step *s = &c->steps[c->n - 1];
    s->in[s->n_in++] = in;
}

/* ---- chains ---- */

/* A device's part of a feed-forward: what comes from another one is normed, its sum goes there. */
static void divided_feed_forward(struct chain *c) {
    add(c, STEP_COPY, beyond(0), at(0), c->n_embd, 1);
    norm(c, 0, 1, c->n_embd, c->n_embd, 2);
    product(c, c->dtype, 1, at(2), c->n_ff, c->n_embd);
    product(c, c->dtype, 1, at(3), c->n_ff, c->n_embd);
    gated(c, 2, 3, 4, c->n_ff, ACT_SILU);
    product(c, c->dtype, 4, at(5), c->n_embd, c->n_ff);
    add(c, STEP_COPY, at(5), beyond(4), c->n_embd, 1);
}

/* Both devices sum up: three values, of which two come from elsewhere; the sum and what is made of
 * it are read by others besides, in floats. */
static void sums_are_read_again(struct chain *c) {
    add(c, STEP_COPY, beyond(0), at(0), c->n_embd, 1);
    add(c, STEP_SUM, at(0), at(1), c->n_embd, 2);
    second(c, beyond(1));
    second(c, beyond(2));
    norm(c, 1, 2, c->n_embd, c->n_embd, 3);
    product(c, c->dtype, 2, at(3), c->n_ff, c->n_embd);
    product(c, DTYPE_F32, 2, at(4), c->n_ff, c->n_embd);
    gated(c, 3, 4, 5, c->n_ff, ACT_GELU);
    product(c, c->dtype, 5, at(6), c->n_embd, c->n_ff);
    add(c, STEP_SUM, at(6), at(7), c->n_embd, 1);
    second(c, at(1));
    add(c, STEP_COPY, at(7), beyond(4), c->n_embd, 1);
    add(c, STEP_COPY, at(2), beyond(5), c->n_embd, 1);
}

/* Heads are normed, each by itself, and gated; a shared expert has a gate of its own. */
static void gates_of_heads_and_experts(struct chain *c) {
    add(c, STEP_COPY, beyond(0), at(0), c->n_embd, 1);
    add(c, STEP_COPY, beyond(1), at(1), c->n_embd, 1);
    norm(c, 0, 2, c->n_embd, 32, 1);
    gated(c, 1, 2, 3, c->n_embd, ACT_SILU);
    product(c, c->dtype, 3, at(4), c->n_ff, c->n_embd);
    product(c, c->dtype, 3, at(5), c->n_ff, c->n_embd);
    gated(c, 4, 5, 6, c->n_ff, ACT_SILU);
    gated(c, 1, 6, 7, c->n_ff, ACT_SIGMOID);
    c->ops[c->n - 1].p.gated.one_gate = true;
    product(c, c->dtype, 7, at(8), c->n_embd, c->n_ff);
    add(c, STEP_COPY, at(8), beyond(4), c->n_embd, 1);
}

/* Who reads a product besides keeps it here; norms of groups that are no blocks are not rounded. */
static void what_others_read_stays(struct chain *c) {
    add(c, STEP_COPY, beyond(0), at(0), c->n_embd, 2);
    norm(c, 0, 1, c->n_embd, 16, 1);
    product(c, c->dtype, 1, at(2), c->n_embd, c->n_embd);
    c->steps[c->n - 1].n_readers = 2;
    add(c, STEP_COPY, at(2), beyond(4), c->n_embd, 1);
    add(c, STEP_SUM, at(2), at(3), c->n_embd, 1);
    second(c, at(0));
    add(c, STEP_COPY, at(3), beyond(5), c->n_embd, 1);
}

/* What heads come to is rounded where they are put together; each has keys of its own, so that
 * they differ at the first position too. */
static void attention_before_a_product(struct chain *c) {
    const int dim = c->n_embd % 64 == 0 ? 64 : 32, n_heads = c->n_embd / dim;
    const struct kv_layout layout = {KV_F16, KV_Q8_0, n_heads, dim, RIG_PAGES};
    for (int i = 0; i < 3; i++)
        add(c, STEP_COPY, beyond(i), at(i), c->n_embd, 1);
    struct step *s = op(c, OP_ATTENTION, 0, at(3), c->n_embd, 1);
    c->ops[c->n - 1].p.attention = (struct attention_params){
        .n_heads = n_heads, .n_kv_heads = n_heads, .head_dim = dim, .scale = 0.125F};
    second(c, at(1));
    second(c, at(2));
    TEST_OK(c->r->b->fn->kv_open(c->r->b, &layout, &c->kv));
    s->kv = c->kv;
    s->head_end = n_heads;
    product(c, c->dtype, 3, at(4), c->n_embd, c->n_embd);
    add(c, STEP_COPY, at(4), beyond(4), c->n_embd, 1);
}

/* ---- running them ---- */

struct result {
    float
        *lines; /* (COUNT_OF(line_counts), 70, 2, RIG_STRIDE) of exchange buffers 4 and 5, owned */
    int n_folds, n_dispatches;
};
static const size_t result_floats = COUNT_OF(line_counts) * 70 * 2 * RIG_STRIDE;

typedef void make_chain(struct chain *c);

/* Weights of a type, in a class. */
struct kind {
    enum dtype dtype;
    enum math math;
};

static struct result run_chain(make_chain *make, struct kind kind, bool fold) {
    struct rig r;
    const bool wide = kind.dtype == DTYPE_Q4_K; /* else lines end within four words of 8 bits */
    struct chain c = {.r = &r,
                      .dtype = kind.dtype,
                      .math = kind.math,
                      .n_embd = wide ? 256 : 96,
                      .n_ff = wide ? 256 : 160};
    struct backend_options o = rig_options(1, "native");
    setenv("ATSINFER_VK_DISABLE", fold ? "" : "fold", 1);
    rig_open_on(&r, "vulkan", &o);
    make(&c);
    int n_folds = vulkan_backend_folds(r.b), n_dispatches = vulkan_backend_dispatches(r.b);
    struct result out = {.lines = calloc(result_floats, sizeof(float))};
    for (size_t i = 0; i < COUNT_OF(line_counts); i++) {
        struct rig_round round;
        rig_round_plain(&round, line_counts[i], 1);
        for (int j = 0; j < 3; j++)
            rig_fill(&r, j, line_counts[i], c.n_embd);
        rig_run(&r, c.steps, c.n, &round.round);
        for (int line = 0; line < line_counts[i]; line++)
            for (int j = 0; j < 2; j++)
                memcpy(out.lines + ((i * 70 + (size_t)line) * 2 + (size_t)j) * RIG_STRIDE,
                       rig_line(&r, 4 + j, line), RIG_STRIDE * sizeof(float));
    }
    out.n_folds = vulkan_backend_folds(r.b) - n_folds;
    out.n_dispatches = (vulkan_backend_dispatches(r.b) - n_dispatches) / (int)COUNT_OF(line_counts);
    for (int i = 0; i < c.n_weights; i++) {
        r.b->fn->weight_free(r.b, c.w[i]);
        rig_matrix_free(&c.m[i]);
    }
    r.b->fn->kv_close(r.b, c.kv);
    rig_close(&r);
    return out;
}

/* Dispatches of a round of one token: one after the other and folded, in class q8 and in f32, there
 * of packed and of plain types. */
struct want {
    int apart_q8, q8, apart_f32, packed, plain;
};

static void check_chain(const char *what, make_chain *make, struct want want) {
    static const struct kind kinds[] = {{DTYPE_Q8_0, MATH_Q8},
                                        {DTYPE_Q4_1, MATH_Q8},
                                        {DTYPE_Q4_K, MATH_Q8},
                                        {DTYPE_Q5_0, MATH_F32},
                                        {DTYPE_F32, MATH_F32}};
    for (size_t i = 0; i < 2 * COUNT_OF(kinds); i++) {
        const struct kind kind = kinds[i / 2];
        const bool q8 = kind.math == MATH_Q8, plain = kind.dtype == DTYPE_F32;
        setenv("ATSINFER_VK_SHAPE", i % 2 ? "1" : "0", 1);
        struct result apart = run_chain(make, kind, false), folded = run_chain(make, kind, true);
        if (memcmp(apart.lines, folded.lines, result_floats * sizeof(float)) != 0)
            fail_msg("%s, %s, shape %zu: other bits", what, dtype_name(kind.dtype), i % 2);
        assert_int_equal(apart.n_folds, 0);
        assert_int_equal(apart.n_dispatches, q8 ? want.apart_q8 : want.apart_f32);
        assert_int_equal(folded.n_dispatches, q8 ? want.q8 : plain ? want.plain : want.packed);
        free(apart.lines);
        free(folded.lines);
    }
    unsetenv("ATSINFER_VK_SHAPE");
}

static void a_divided_feed_forward_takes_fewer_dispatches(void **state) {
    (void)state;
    check_chain("a divided feed-forward", divided_feed_forward, (struct want){9, 3, 7, 3, 3});
}

static void sums_that_are_read_again_are_kept(void **state) {
    (void)state;
    check_chain("sums", sums_are_read_again, (struct want){12, 8, 10, 8, 6});
}

static void gates_are_rounded_with_what_they_gate(void **state) {
    (void)state;
    check_chain("gates", gates_of_heads_and_experts, (struct want){12, 6, 10, 6, 6});
}

static void products_that_others_read_are_kept(void **state) {
    (void)state;
    check_chain("kept", what_others_read_stays, (struct want){7, 6, 6, 5, 5});
}

static void attention_is_rounded_where_it_is_merged(void **state) {
    (void)state;
    check_chain("attention", attention_before_a_product, (struct want){9, 7, 8, 7, 7});
}

int main(void) {
    if (!rig_has_device("vulkan")) return 77;
    rig_keep_devices();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_divided_feed_forward_takes_fewer_dispatches),
        cmocka_unit_test(sums_that_are_read_again_are_kept),
        cmocka_unit_test(gates_are_rounded_with_what_they_gate),
        cmocka_unit_test(products_that_others_read_are_kept),
        cmocka_unit_test(attention_is_rounded_where_it_is_merged),
    };
    return rig_verdict(cmocka_run_group_tests(tests, NULL, NULL));
}
