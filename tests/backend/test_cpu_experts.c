/*
 * Routed experts of a device against plain loops in double: ranges of experts, biases, gates, and
 * weights that multiply the input; on the CPU by its best and its reference kernels, built once
 * more for Vulkan, with all features and with all that can be switched off. Inputs are whole
 * numbers of which each 32 reach 127, and a route's weights powers of two: rounding to 8 bits then
 * loses nothing, so both classes are held to the same bound.
 */
#include "rig.h"

#include <math.h>

enum { N_EXPERTS = 5, N_USED = 2, N_EMBD = 256, N_FF = 96 };

struct experts_case {
    enum dtype dtype; /* of gate and up; down is F32, or this too if down_math is Q8 */
    enum math math;
    enum activation act;
    int begin, end; /* of the experts */
    bool biased, scale_input, no_repack;
    enum math down_math;
    bool blocks; /* any blocks: of a type that nothing rounds to */
};

struct stack {
    struct rig_matrix m[N_EXPERT_WEIGHTS], bias[N_EXPERT_WEIGHTS];
};

static const char *const isas[] = {"ref", "native"}; /* on Vulkan: all features off, on */

#ifdef EXPERTS_ON_VULKAN
static const int line_counts[] = {1, 9, 70};

static void open_case(struct rig *r, const struct experts_case *c, size_t isa, int n_threads) {
    struct backend_options o = rig_options(n_threads, isas[isa]);
    setenv("ATSINFER_VK_DISABLE", isa ? "" : "fp16,idot,import,xfer,hostvram,budget", 1);
    /* as on hardware, with large tiles; there is one layout */
    setenv("ATSINFER_VK_SHAPE", !isa && c->dtype != DTYPE_MXFP4 ? "1" : "0", 1);
    setenv("ATSINFER_VK_MAX_RANGE", isa ? "0" : "65536", 1); /* windows, of values too */
    rig_open_experts(r, "vulkan", &o, N_EXPERTS, N_USED, N_EMBD, N_FF);
}
#else
static const int line_counts[] = {1, 3, 8, 9, 70}; /* both sides of the borders between paths */

static void open_case(struct rig *r, const struct experts_case *c, size_t isa, int n_threads) {
    struct backend_options o = rig_options(n_threads, isas[isa]);
    o.no_repack = c->no_repack;
    rig_open_experts(r, "cpu", &o, N_EXPERTS, N_USED, N_EMBD, N_FF);
}
#endif

static void stack_open(struct rig *r, const struct experts_case *c, struct stack *s) {
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        bool down = i == EXPERT_DOWN;
        int n_rows = down ? N_EMBD : N_FF, n_cols = down ? N_FF : N_EMBD;
        enum dtype type = down && c->down_math == MATH_F32 ? DTYPE_F32 : c->dtype;
        s->m[i] = (c->blocks && !down ? rig_matrix_integers
                                      : rig_matrix)(&r->rng, type, N_EXPERTS * n_rows, n_cols);
        s->bias[i] = rig_matrix(&r->rng, DTYPE_F32, N_EXPERTS, n_rows);
    }
}

static void stack_free(struct stack *s) {
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        rig_matrix_free(&s->m[i]), rig_matrix_free(&s->bias[i]);
}

/* The experts of the case's range, n_rows rows each. */
static struct backend_weight *load(struct rig *r, const struct experts_case *c,
                                   const struct rig_matrix *m, int n_rows) {
    struct backend_weight *w;
    struct weight_source source = {.name = "experts",
                                   .dtype = m->dtype,
                                   .n_rows = n_rows,
                                   .n_cols = m->n_cols,
                                   .n_experts = c->end - c->begin,
                                   .row_bytes = m->row_bytes,
                                   .data = m->blocks + c->begin * n_rows * m->row_bytes};
    TEST_OK(r->b->fn->weight_load(r->b, &source, &w));
    return w;
}

static void fill_lines(struct rig *r, int n_lines) {
    for (int line = 0; line < n_lines; line++) {
        for (int i = 0; i < N_EMBD; i++)
            rig_line(r, 0, line)[i] = (float)((int)rng_below(&r->rng, 255) - 127);
        for (int i = 0; i < N_EMBD; i += 32)
            rig_line(r, 0, line)[i + line % 32] = 127;
        for (int j = 0; j < N_USED; j++) {
            float *id = rig_line(r, 2, line) + j;
            do
                *id = (float)rng_below(&r->rng, N_EXPERTS);
            while (j > 0 && id[-1] >= *id && id[-1] <= *id);
            id[N_USED] = ldexpf(1, -7 - (int)rng_below(&r->rng, 3));
        }
    }
}

static double gate(enum activation act, double g, double u) {
    if (act == ACT_SILU) return g / (1 + exp(-g)) * u;
    const double limit = (double)ACT_CLAMPED_LIMIT;
    g = fmin(g, limit), u = fmax(-limit, fmin(u, limit));
    return g / (1 + exp((double)-ACT_CLAMPED_SLOPE * g)) * (u + 1);
}

/* To 8 bits per 32: house.md 8. */
static void round_bytes(double *x, int n) {
    for (int i = 0; i < n; i += 32) {
        double most = 0;
        for (int j = i; j < i + 32; j++)
            most = fmax(most, fabs(x[j]));
        for (int j = i; most > 0 && j < i + 32; j++)
            x[j] = rint(x[j] * 127 / most) * most / 127;
    }
}

static double dot(const struct rig_matrix *m, int row, const double *x) {
    double sum = 0;
    for (int i = 0; i < m->n_cols; i++)
        sum += (double)m->values[(int64_t)row * m->n_cols + i] * x[i];
    return sum;
}

/* Adds weight * expert e of x to out; magnitude grows by the sizes of down's terms. */
static void naive_expert(const struct experts_case *c, const struct stack *s, int e, const float *x,
                         double weight, double *out, double *magnitude) {
    double in[N_EMBD], h[N_FF];
    for (int i = 0; i < N_EMBD; i++)
        in[i] = (double)x[i] * (c->scale_input ? weight : 1);
    for (int i = 0; i < N_FF; i++) {
        double v[2];
        for (int j = 0; j < 2; j++) {
            v[j] = dot(&s->m[j], e * N_FF + i, in);
            if (c->biased) v[j] += (double)s->bias[j].values[e * N_FF + i];
        }
        h[i] = gate(c->act, v[EXPERT_GATE], v[EXPERT_UP]);
    }
    if (c->scale_input) weight = 1;
    if (c->down_math == MATH_Q8) round_bytes(h, N_FF);
    for (int i = 0; i < N_EMBD; i++) {
        const struct rig_matrix *down = &s->m[EXPERT_DOWN];
        double y = dot(down, e * N_EMBD + i, h);
        if (c->biased) y += (double)s->bias[EXPERT_DOWN].values[e * N_EMBD + i];
        out[i] += weight * y;
        for (int j = 0; j < N_FF; j++)
            magnitude[i] += weight * fabs((double)down->values[(e * N_EMBD + i) * N_FF + j] * h[j]);
    }
}

static void check_lines(struct rig *r, const struct experts_case *c, const struct stack *s,
                        int n_lines) {
    for (int line = 0; line < n_lines; line++) {
        double want[N_EMBD] = {0}, magnitude[N_EMBD] = {0};
        const float *ids = rig_line(r, 2, line);
        for (int j = 0; j < N_USED; j++)
            if ((int)ids[j] >= c->begin && (int)ids[j] < c->end)
                naive_expert(c, s, (int)ids[j], rig_line(r, 0, line), (double)ids[N_USED + j], want,
                             magnitude);
        for (int i = 0; i < N_EMBD; i++)
            /* a half-way case of the rounding may fall to the other side: 1/127 of an input */
            rig_expect("experts", line, i, (double)rig_line(r, 1, line)[i], want[i],
                       magnitude[i] + 1e-6, c->down_math == MATH_Q8 ? 2e-4 : 4e-6);
    }
}

static void run_case(const struct experts_case *c, size_t isa, int n_lines, int n_threads) {
    struct rig r;
    struct rig_round round;
    struct stack stack;
    open_case(&r, c, isa, n_threads);
    stack_open(&r, c, &stack);
    struct graph_op op = {.kind = OP_EXPERTS,
                          .p.experts = {.n_experts = N_EXPERTS,
                                        .n_used = N_USED,
                                        .n_ff = N_FF,
                                        .math = {c->math, c->math, c->down_math},
                                        .act = c->act,
                                        .biased = c->biased,
                                        .scale_input = c->scale_input}};
    struct step s = {.kind = STEP_OP,
                     .op = &op,
                     .n_in = 2,
                     .end = N_EMBD,
                     .expert_begin = c->begin,
                     .expert_end = c->end};
    s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s.in[1] = rig_span(SPACE_EXCHANGE, 2, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1, 0);
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        s.experts[i] = load(&r, c, &stack.m[i], i == EXPERT_DOWN ? N_EMBD : N_FF);
        if (c->biased) s.expert_biases[i] = load(&r, c, &stack.bias[i], 1);
    }
    TEST_OK(r.b->fn->weights_ready(r.b));
    rig_round_plain(&round, n_lines, 1);
    fill_lines(&r, n_lines);
    rig_run_watched(&r, &s, &round.round, 1, n_lines);
    check_lines(&r, c, &stack, n_lines);
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        r.b->fn->weight_free(r.b, s.experts[i]);
        if (c->biased) r.b->fn->weight_free(r.b, s.expert_biases[i]);
    }
    stack_free(&stack);
    rig_close(&r);
}

static void experts_equal_the_naive_ones(void **state) {
    (void)state;
    static const struct experts_case cases[] = {
        {DTYPE_F32, MATH_F32, ACT_SILU, 0, 5, false, false, false, MATH_F32, false},
        {DTYPE_Q8_0, MATH_Q8, ACT_SILU, 1, 4, false, false, false, MATH_F32, false},
        {DTYPE_F32, MATH_F32, ACT_CLAMPED, 1, 4, true, false, false, MATH_F32, false},
        {DTYPE_MXFP4, MATH_Q8, ACT_CLAMPED, 0, 5, true, false, false, MATH_F32, false},
        {DTYPE_MXFP4, MATH_F32, ACT_CLAMPED, 2, 5, true, false, true, MATH_F32, false},
        {DTYPE_F16, MATH_F32, ACT_SILU, 0, 5, false, true, false, MATH_F32, false},
        {DTYPE_Q8_0, MATH_Q8, ACT_SILU, 0, 3, false, true, false, MATH_F32, false},
        {DTYPE_Q8_0, MATH_Q8, ACT_SILU, 0, 5, true, true, true, MATH_F32, false},
        {DTYPE_Q8_0, MATH_Q8, ACT_SILU, 0, 4, false, false, false, MATH_Q8, false},
        {DTYPE_Q4_1, MATH_F32, ACT_CLAMPED, 1, 5, true, false, false, MATH_Q8, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t isa = 0; isa < COUNT_OF(isas); isa++)
            for (size_t n = 0; n < COUNT_OF(line_counts); n++)
                run_case(&cases[i], isa, line_counts[n], 1 + (int)((i + n) % 3));
}

/* Either class, a round of one token and a larger one. */
static void every_type_has_experts(void **state) {
    (void)state;
    for (int type = 0; type < N_DTYPES_WEIGHT; type++) {
        bool blocks = dtype_info((enum dtype)type)->quantised, q8 = blocks && type % 2;
        struct experts_case c = {(enum dtype)type,
                                 q8 ? MATH_Q8 : MATH_F32,
                                 ACT_SILU,
                                 0,
                                 4,
                                 false,
                                 false,
                                 false,
                                 MATH_F32,
                                 blocks};
        run_case(&c, type % 4 > 1, 1, 2);
        run_case(&c, 1, 11, 2);
    }
}

/* ---- the choice ---- */

enum { N_CHOICE = 40, N_CHOSEN = 6 };

static double gated_score(enum gating gating, const float *scores, int e) {
    double all = 0;
    if (gating == GATING_SIGMOID) return 1 / (1 + exp(-(double)scores[e]));
    if (gating == GATING_SOFTMAX_CHOSEN) return exp((double)scores[e]);
    for (int i = 0; i < N_CHOICE; i++)
        all += exp((double)scores[i]);
    return exp((double)scores[e]) / all;
}

/* Scores are eighths, of which many are equal; what a bias adds keeps them apart or equal. */
static void check_choice(const struct rig *r, const struct route_params *p, const float *bias,
                         int line) {
    const float *scores = rig_line(r, 0, line), *got = rig_line(r, 1, line);
    double weight[N_CHOSEN], sum = 0;
    bool taken[N_CHOICE] = {false};
    for (int j = 0; j < N_CHOSEN; j++) {
        int best = -1;
        double most = -1e9;
        for (int e = 0; e < N_CHOICE; e++) {
            double key = (double)scores[e];
            if (p->gating == GATING_SIGMOID) key = gated_score(p->gating, scores, e);
            if (bias) key += (double)bias[e];
            if (!taken[e] && key > most) most = key, best = e;
        }
        taken[best] = true;
        assert_int_equal((int)got[j], best);
        sum += weight[j] = gated_score(p->gating, scores, best);
    }
    bool shares = p->normalise || p->gating == GATING_SOFTMAX_CHOSEN;
    for (int j = 0; j < N_CHOSEN; j++) {
        double want = weight[j] / (shares ? sum : 1) * (double)p->scale;
        rig_expect("a weight", line, j, (double)got[N_CHOSEN + j], want, want, 2e-6);
    }
}

static void run_choice(const struct route_params *p, bool biased, size_t isa, int n_lines) {
    struct rig r;
    struct rig_round round;
    const struct experts_case c = {.dtype = DTYPE_F32};
    open_case(&r, &c, isa, 2);
    struct rig_matrix bias = rig_matrix(&r.rng, DTYPE_F32, 1, N_CHOICE);
    for (int e = 0; e < N_CHOICE; e++)
        bias.values[e] = (float)rng_below(&r.rng, 3) / 4;
    memcpy(bias.blocks, bias.values, sizeof(float) * N_CHOICE);
    struct graph_op op = {.kind = OP_ROUTE, .p.route = *p};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .end = 2 * N_CHOSEN};
    s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1, 0);
    if (biased) s.bias = rig_load(&r, &bias, 0, 1, 0, N_CHOICE);
    rig_round_plain(&round, n_lines, 1);
    for (int line = 0; line < n_lines; line++)
        for (int e = 0; e < N_CHOICE; e++)
            rig_line(&r, 0, line)[e] = (float)((int)rng_below(&r.rng, 17) - 8) / 8;
    rig_run_watched(&r, &s, &round.round, 1, n_lines);
    for (int line = 0; line < n_lines; line++)
        check_choice(&r, p, biased ? bias.values : NULL, line);
    if (biased) r.b->fn->weight_free(r.b, s.bias);
    rig_matrix_free(&bias);
    rig_close(&r);
}

/* Of equal scores the lower id. A sigmoid's bias is not of the test: its sums may tie otherwise. */
static void routes_choose_the_greatest(void **state) {
    (void)state;
    static const struct {
        enum gating gating;
        bool normalise, biased;
        float scale;
    } cases[] = {{GATING_SOFTMAX, false, false, 1},        {GATING_SOFTMAX, true, false, 2.5F},
                 {GATING_SOFTMAX_CHOSEN, false, false, 1}, {GATING_SIGMOID, true, false, 1.5F},
                 {GATING_SIGMOID, false, false, 1},        {GATING_SOFTMAX, true, true, 1}};
    for (size_t i = 0; i < COUNT_OF(cases) * 4; i++) {
        size_t j = i / 4;
        const struct route_params p = {N_CHOICE, N_CHOSEN, cases[j].gating, cases[j].normalise,
                                       cases[j].scale};
        run_choice(&p, cases[j].biased, i % 2, i % 4 < 2 ? 1 : 37);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_equal_the_naive_ones),
        cmocka_unit_test(every_type_has_experts),
        cmocka_unit_test(routes_choose_the_greatest),
    };
#ifdef EXPERTS_ON_VULKAN
    if (!rig_has_device("vulkan")) return 77;
    rig_keep_devices();
    return rig_verdict(cmocka_run_group_tests(tests, NULL, NULL));
#else
    return cmocka_run_group_tests(tests, NULL, NULL);
#endif
}
