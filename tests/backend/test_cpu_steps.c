/* Each kind of step of a device against a naive computation in double: of the CPU, on the reference
 * and on the best kernels; built once more for Vulkan, with all features and with all that can be
 * switched off. Nothing else is written. */
#include "rig.h"

#include <math.h>

static const char *const isas[] = {"ref", "native"}; /* on Vulkan: all features off, on */
static const int line_counts[] = {1, 3, 8, 9, 70};   /* both sides of the borders between paths */

#ifdef STEPS_ON_VULKAN
#include "backend/vulkan/vulkan.h"
/* Bytes that a shader sees: less than a value has, or a KV cache. */
static const char *const shader_range = "65536";
static bool shaped; /* dispatches as on hardware, even if the device is software */

/* Opens the device that case i of a test runs on. */
static void open_case(struct rig *r, size_t i, int n_threads) {
    bool bare = i % COUNT_OF(isas) == 0;
    struct backend_options o = rig_options(n_threads, isas[!bare]);
    setenv("ATSINFER_VK_DISABLE", bare ? "fp16,idot,import,xfer,hostvram,budget" : "", 1);
    setenv("ATSINFER_VK_MAX_RANGE", bare ? shader_range : "0", 1);
    setenv("ATSINFER_VK_SHAPE", shaped ? "1" : "0", 1);
    rig_open_on(r, "vulkan", &o);
}
#else
static void open_case(struct rig *r, size_t i, int n_threads) {
    struct backend_options o = rig_options(n_threads, isas[i % COUNT_OF(isas)]);
    rig_open(r, &o);
}
#endif

/* ---- light steps ---- */

static void embed_gives_the_rows_of_its_tokens(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_F16, DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_MXFP4};
    for (size_t i = 0; i < COUNT_OF(types) * 2; i++) {
        struct rig r;
        struct rig_round round;
        open_case(&r, i, 2);
        struct rig_matrix m = rig_matrix(&r.rng, types[i / 2], 50, 256);
        struct graph_op op = {.kind = OP_EMBED, .p.embed.scale = i % 4 < 2 ? 1 : 3.5F};
        struct step s = {.kind = STEP_OP, .op = &op, .end = 256};
        s.out = rig_span(SPACE_EXCHANGE, 1, 0);
        s.weight = rig_load(&r, &m, 0, 50, 0, 256);
        rig_round_plain(&round, 11, 1);
        rig_run_watched(&r, &s, &round.round, 1, 11);
        for (int t = 0; t < 11; t++)
            for (int c = 0; c < 256; c++) {
                double want =
                    (double)m.values[round.tokens[t] * 256 + c] * (double)op.p.embed.scale;
                rig_expect("embed", t, c, (double)rig_line(&r, 1, t)[c], want, fabs(want), 1e-6);
            }
        r.b->fn->weight_free(r.b, s.weight);
        rig_matrix_free(&m);
        rig_close(&r);
    }
}

/* The whole row; heads of it; heads without a weight; scaled. */
static void norm_divides_each_group_by_its_root_mean_square(void **state) {
    (void)state;
    static const struct {
        int group, begin, end;
        bool weight;
        float scale;
    } cases[] = {{320, 0, 320, true, 0},
                 {32, 0, 320, true, 0},
                 {64, 64, 256, true, 0},
                 {16, 32, 96, false, 0},
                 {32, 64, 288, false, 0.3F}};
    for (size_t i = 0; i < COUNT_OF(cases) * 2; i++) {
        struct rig r;
        struct rig_round round;
        open_case(&r, i, 3);
        int group = cases[i / 2].group, begin = cases[i / 2].begin, end = cases[i / 2].end;
        struct rig_matrix w = rig_matrix(&r.rng, DTYPE_F32, 1, group);
        struct graph_op op = {.kind = OP_NORM, .p.norm = {group, 1e-5F, cases[i / 2].scale}};
        struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .begin = begin, .end = end};
        s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
        s.out = rig_span(SPACE_EXCHANGE, 1, begin);
        if (cases[i / 2].weight) s.weight = rig_load(&r, &w, 0, 1, 0, group);
        rig_round_plain(&round, 13, 1);
        rig_fill(&r, 0, 13, RIG_STRIDE);
        rig_run_watched(&r, &s, &round.round, 1, 13);
        for (int t = 0; t < 13; t++)
            for (int c = begin; c < end; c++) {
                const float *x = rig_line(&r, 0, t);
                double sum = 0, wide = s.weight ? (double)w.values[c % group] : 1;
                for (int j = c / group * group; j < c / group * group + group; j++)
                    sum += (double)x[j] * (double)x[j];
                double want = (double)x[c] / sqrt(sum / group + 1e-5) * wide;
                if (op.p.norm.scale > 0) want *= (double)op.p.norm.scale;
                rig_expect("norm", t, c, (double)rig_line(&r, 1, t)[c - begin], want,
                           fabs(want) + 1e-3, 1e-5);
            }
        if (s.weight) r.b->fn->weight_free(r.b, s.weight);
        rig_matrix_free(&w);
        rig_close(&r);
    }
}

static void rope_turns_the_heads_of_a_range(void **state) {
    (void)state;
    for (size_t i = 0; i < 8; i++) {
        struct rig r;
        struct rig_round round;
        open_case(&r, i, 2);
        const int dim = 32, n_rot = i & 2 ? 16 : 32, begin = 64, end = 192;
        bool halves = i & 4;
        float inv_freq[16];
        for (int j = 0; j < n_rot / 2; j++)
            inv_freq[j] = (float)pow(10000, -2.0 * j / n_rot);
        struct graph_op op = {.kind = OP_ROPE, .p.rope = {dim, n_rot, halves, inv_freq, 1.25F}};
        struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .begin = begin, .end = end};
        s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
        s.out = rig_span(SPACE_EXCHANGE, 1, begin);
        rig_round_open(&round, 2, (int[]){7, 5}, (int[]){900, 0}, 1);
        rig_fill(&r, 0, 12, RIG_STRIDE);
        rig_run_watched(&r, &s, &round.round, 1, 12);
        for (int t = 0; t < 12; t++)
            for (int c = begin; c < end; c++) {
                const float *x = rig_line(&r, 0, t) + c / dim * dim; /* the head */
                int e = c % dim, pair = halves ? e % (n_rot / 2) : e / 2;
                double want = (double)x[e];
                if (e < n_rot) {
                    double angle = round.positions[t] * (double)inv_freq[pair];
                    bool second = halves ? e >= n_rot / 2 : e % 2;
                    double a = (double)x[halves ? pair : 2 * pair];
                    double b = (double)x[halves ? pair + n_rot / 2 : 2 * pair + 1];
                    want = 1.25 * (second ? a * sin(angle) + b * cos(angle)
                                          : a * cos(angle) - b * sin(angle));
                }
                rig_expect("rope", t, c, (double)rig_line(&r, 1, t)[c - begin], want, 1, 1e-5);
            }
        rig_close(&r);
    }
}

static double gate(enum activation act, double g, double u) {
    const double limit = (double)ACT_CLAMPED_LIMIT;
    if (act == ACT_GELU)
        return g * (1 + tanh(sqrt(2 / 3.14159265358979) * (g + 0.044715 * g * g * g))) / 2 * u;
    if (act == ACT_SILU) return g / (1 + exp(-g)) * u;
    if (act == ACT_SIGMOID) return u / (1 + exp(-g));
    g = fmin(g, limit), u = fmax(-limit, fmin(u, limit));
    return g / (1 + exp((double)-ACT_CLAMPED_SLOPE * g)) * (u + 1);
}

static void gated_multiplies_by_its_activation(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(line_counts) * 2 * (ACT_COUNT + 1); i++) {
        const bool one = i % (ACT_COUNT + 1) == ACT_COUNT; /* gate for all columns */
        enum activation act = one ? ACT_SIGMOID : (enum activation)(i % (ACT_COUNT + 1));
        struct rig r;
        struct rig_round round;
        open_case(&r, i / (ACT_COUNT + 1), 2);
        int n = line_counts[i / (2 * (ACT_COUNT + 1))], begin = 17, end = 250;
        struct graph_op op = {.kind = OP_GATED, .p.gated = {act, one}};
        struct step s = {.kind = STEP_OP, .op = &op, .n_in = 2, .begin = begin, .end = end};
        s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
        s.in[1] = rig_span(SPACE_EXCHANGE, 2, 0);
        s.out = rig_span(SPACE_EXCHANGE, 1, begin);
        rig_round_plain(&round, n, 1);
        rig_fill(&r, 0, n, RIG_STRIDE);
        rig_fill(&r, 2, n, RIG_STRIDE);
        rig_run_watched(&r, &s, &round.round, 1, n);
        for (int t = 0; t < n; t++)
            for (int c = begin; c < end; c++) {
                double g = (double)rig_line(&r, 0, t)[one ? 0 : c],
                       u = (double)rig_line(&r, 2, t)[c];
                rig_expect("gated", t, c, (double)rig_line(&r, 1, t)[c - begin], gate(act, g, u),
                           fabs(g) * (fabs(u) + 1) + fabs(u) + 1e-3, 2e-6);
            }
        rig_close(&r);
    }
}

static void rows_takes_the_wanted_lines(void **state) {
    (void)state;
    struct rig r;
    struct rig_round round;
    open_case(&r, 1, 2);
    struct graph_op op = {.kind = OP_ROWS};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .begin = 3, .end = 200, .rows = true};
    s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1, 3);
    rig_round_plain(&round, 30, 5);
    for (int j = 0; j < 5; j++)
        round.rows[j] = j * j + 1; /* 1 2 5 10 17 */
    rig_fill(&r, 0, 30, RIG_STRIDE);
    rig_run_watched(&r, &s, &round.round, 1, 5);
    for (int j = 0; j < 5; j++)
        assert_memory_equal(rig_line(&r, 1, j), rig_line(&r, 0, j * j + 1) + 3,
                            197 * sizeof(float));
    round.round.n_rows = 0; /* no row wanted: nothing is written */
    rig_run_watched(&r, &s, &round.round, 1, 0);
    rig_close(&r);
}

/* Left to right in f32: the bits are those of the same additions in C. */
static void sums_are_added_left_to_right(void **state) {
    (void)state;
    for (int n_in = 1; n_in <= STEP_MAX_IN; n_in++) {
        struct rig r;
        struct rig_round round;
        open_case(&r, (size_t)n_in, 2);
        struct step s = {.kind = STEP_SUM, .n_in = n_in, .begin = 5, .end = 300};
        for (int i = 0; i < n_in; i++) {
            s.in[i] = rig_span(SPACE_EXCHANGE, 2 + i, 0);
            rig_fill(&r, 2 + i, 20, RIG_STRIDE);
        }
        s.out = rig_span(SPACE_EXCHANGE, 1, 5);
        rig_round_plain(&round, 20, 1);
        rig_run_watched(&r, &s, &round.round, 1, 20);
        for (int t = 0; t < 20; t++)
            for (int c = 5; c < 300; c++) {
                float want = rig_line(&r, 2, t)[c];
                for (int i = 1; i < n_in; i++)
                    want += rig_line(&r, 2 + i, t)[c];
                assert_memory_equal(&rig_line(&r, 1, t)[c - 5], &want, sizeof want);
            }
        rig_close(&r);
    }
}

static void copies_go_through_local_memory_and_back(void **state) {
    (void)state;
    struct rig r;
    struct rig_round round;
    open_case(&r, 1, 3);
    struct step s[2] = {{.kind = STEP_COPY, .n_in = 1, .begin = 20, .end = 220}};
    s[1] = s[0];
    s[0].in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s[0].out = s[1].in[0] = rig_span(SPACE_LOCAL, 3, 0);
    s[1].out = rig_span(SPACE_EXCHANGE, 1, 20);
    s[0].n_readers = 1;
    rig_round_plain(&round, 33, 1);
    rig_fill(&r, 0, 33, RIG_STRIDE);
    rig_run(&r, s, 2, &round.round);
    for (int t = 0; t < 33; t++)
        assert_memory_equal(rig_line(&r, 1, t), rig_line(&r, 0, t) + 20, 200 * sizeof(float));
    rig_close(&r);
}

/* ---- products ---- */

/* Inputs as the class makes them: rounded to 8 bits per 32, or as they are. house.md 8. */
static void round_inputs(enum math math, const float *x, int n, double *out) {
    for (int i = 0; i < n; i += 32) {
        double max = 0;
        for (int j = i; j < i + 32 && j < n; j++)
            max = fmax(max, fabs((double)x[j]));
        for (int j = i; j < i + 32 && j < n; j++) {
            out[j] = (double)x[j];
            if (math == MATH_Q8) out[j] = rint((double)x[j] * 127 / max) * max / 127;
        }
    }
}

struct product {
    enum dtype dtype;
    enum math math;
    int begin, end, in_begin, in_end; /* of 150 rows and 256 columns */
    bool bias, rows;
};

static void check_product(struct rig *r, const struct product *p, const struct rig_matrix *m,
                          const struct rig_matrix *bias, int n_lines) {
    double x[RIG_STRIDE];
    for (int t = 0; t < n_lines; t++) {
        round_inputs(p->math, rig_line(r, 0, t) + p->in_begin, p->in_end - p->in_begin, x);
        for (int row = p->begin; row < p->end; row++) {
            double want = p->bias ? (double)bias->values[row] : 0, scale = fabs(want) + 1e-3;
            for (int c = p->in_begin; c < p->in_end; c++) {
                double term = x[c - p->in_begin] * (double)m->values[row * m->n_cols + c];
                want += term;
                scale += fabs(term);
            }
            /* a half-way case of the rounding may fall to the other side: 1/127 of an input */
            rig_expect("product", t, row, (double)rig_line(r, 1, t)[row - p->begin], want, scale,
                       p->math == MATH_Q8 ? 1e-4 : 1e-6);
        }
    }
}

static void run_product(const struct product *p, int n_lines, size_t which, int n_threads) {
    struct rig r;
    struct rig_round round;
    open_case(&r, which, n_threads);
    struct rig_matrix m = rig_matrix(&r.rng, p->dtype, 150, 256);
    struct rig_matrix bias = rig_matrix(&r.rng, DTYPE_F32, 1, 150);
    struct graph_op op = {.kind = OP_MATMUL, .p.matmul.math = p->math};
    struct step s = {.kind = STEP_OP,
                     .op = &op,
                     .n_in = 1,
                     .begin = p->begin,
                     .end = p->end,
                     .in_begin = p->in_begin,
                     .in_end = p->in_end,
                     .rows = p->rows,
                     .in_rows = p->rows};
    s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1, p->begin);
    s.weight = rig_load(&r, &m, p->begin, p->end, p->in_begin, p->in_end);
    if (p->bias) s.bias = rig_load(&r, &bias, 0, 1, p->begin, p->end);
    rig_round_plain(&round, p->rows ? RIG_TOKENS - 1 : n_lines, p->rows ? n_lines : 1);
    rig_fill(&r, 0, n_lines, RIG_STRIDE);
    rig_run_watched(&r, &s, &round.round, 1, n_lines);
    check_product(&r, p, &m, &bias, n_lines);
    r.b->fn->weight_free(r.b, s.weight);
    if (s.bias) r.b->fn->weight_free(r.b, s.bias);
    rig_matrix_free(&m);
    rig_matrix_free(&bias);
    rig_close(&r);
}

static void products_equal_the_naive_ones(void **state) {
    (void)state;
    static const struct product cases[] = {
        {DTYPE_F32, MATH_F32, 0, 150, 0, 256, false, false},
        {DTYPE_F32, MATH_F32, 30, 101, 0, 256, true, false}, /* rows */
        {DTYPE_F32, MATH_F32, 0, 150, 7, 200, true, false},  /* columns: a partial sum */
        {DTYPE_F16, MATH_F32, 11, 140, 0, 256, true, false},
        {DTYPE_BF16, MATH_F32, 0, 150, 64, 255, false, false},
        {DTYPE_Q8_0, MATH_F32, 0, 150, 32, 224, true, false},
        {DTYPE_Q8_0, MATH_Q8, 0, 150, 0, 256, true, false},
        {DTYPE_Q4_0, MATH_Q8, 50, 55, 0, 256, false, false},
        {DTYPE_Q4_1, MATH_Q8, 0, 150, 96, 128, true, false},
        {DTYPE_Q4_K, MATH_Q8, 1, 149, 0, 256, true, false},
        {DTYPE_Q6_K, MATH_F32, 0, 33, 0, 256, false, false},
        {DTYPE_MXFP4, MATH_Q8, 0, 150, 0, 256, false, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t j = 0; j < COUNT_OF(line_counts); j++)
            for (size_t isa = 0; isa < COUNT_OF(isas); isa++)
                run_product(&cases[i], line_counts[j], isa, 1 + (int)((i + j) % 3));
}

static void products_over_wanted_rows_have_a_line_for_each(void **state) {
    (void)state;
    static const struct product head = {DTYPE_Q8_0, MATH_Q8, 0, 150, 0, 256, false, true};
    for (int n = 0; n <= RIG_ROWS; n++)
        run_product(&head, n, 1, 2);
}

/* Inputs are integers of which each 32 hold a 127, so that their 8-bit form is themselves; all sums
 * stay below 2^24. Then every order of the additions gives the same floats. */
static void fill_integers(struct rig *r, int index, int n_lines, int width) {
    for (int line = 0; line < n_lines; line++) {
        float *x = rig_line(r, index, line);
        for (int i = 0; i < width; i++)
            x[i] = (float)rng_below(&r->rng, 7) - 3;
        for (int i = 0; i < width; i += 32)
            x[i + (int)rng_below(&r->rng, 32)] = rng_below(&r->rng, 2) ? 127 : -127;
    }
}

static void check_integers(struct rig *r, enum dtype dtype, enum math math, int n_lines) {
    enum { ROWS = 37, COLS = 256 };
    struct rig_round round;
    struct rig_matrix m = rig_matrix_integers(&r->rng, dtype, ROWS, COLS);
    struct graph_op op = {.kind = OP_MATMUL, .p.matmul.math = math};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .end = ROWS, .in_end = COLS};
    s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1, 0);
    s.weight = rig_load(r, &m, 0, ROWS, 0, COLS);
    rig_round_plain(&round, n_lines, 1);
    fill_integers(r, 0, n_lines, COLS);
    rig_run_watched(r, &s, &round.round, 1, n_lines);
    for (int t = 0; t < n_lines; t++)
        for (int row = 0; row < ROWS; row++) {
            double want = 0;
            for (int c = 0; c < COLS; c++)
                want += (double)m.values[row * COLS + c] * (double)rig_line(r, 0, t)[c];
            rig_expect(dtype_name(dtype), t, row, (double)rig_line(r, 1, t)[row], want, 0, 0);
        }
    r->b->fn->weight_free(r->b, s.weight);
    rig_matrix_free(&m);
}

static void integers_are_multiplied_exactly_in_every_type(void **state) {
    (void)state;
    for (size_t isa = 0; isa < COUNT_OF(isas); isa++) {
        struct rig r;
        open_case(&r, isa, 2);
        for (enum dtype type = DTYPE_Q8_0; type < N_DTYPES_WEIGHT; type++)
            for (int i = 0; i < 6; i++)
                check_integers(&r, type, i < 3 ? MATH_Q8 : MATH_F32, (int[]){1, 11, 45}[i % 3]);
        rig_close(&r);
    }
}

#ifdef STEPS_ON_VULKAN
/* Large tiles, lanes that share a row: with and without integer dot products. */
static void dispatches_for_hardware_compute_the_same(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_Q8_0, DTYPE_Q4_K, DTYPE_Q6_K};
    static const struct product q8 = {DTYPE_Q4_1, MATH_Q8, 1, 149, 0, 256, true, false};
    static const struct product raw[] = {
        {DTYPE_F16, MATH_F32, 0, 150, 0, 256, false, false},
        {DTYPE_F32, MATH_F32, 30, 101, 7, 200, true, false},
        {DTYPE_F16, MATH_F32, 11, 140, 0, 255, true, false},
        {DTYPE_BF16, MATH_F32, 149, 150, 64, 70, true, false},
        {DTYPE_BF16, MATH_F32, 0, 128, 0, 256, false, false},
        {DTYPE_F32, MATH_F32, 0, 150, 0, 1, false, false},
    };
    shaped = true;
    for (size_t isa = 0; isa < COUNT_OF(isas); isa++) {
        struct rig r;
        open_case(&r, isa, 2);
        for (size_t i = 0; i < COUNT_OF(types); i++)
            for (int j = 0; j < 4; j++)
                check_integers(&r, types[i], j < 3 ? MATH_Q8 : MATH_F32, (int[]){1, 45, 11, 9}[j]);
        rig_close(&r);
        run_product(&q8, 70, isa, 1);
        for (size_t i = 0; i < COUNT_OF(raw); i++)
            for (int j = 0; j < 3; j++)
                run_product(&raw[i], (int[]){9, 17, 70}[j], isa, 1);
    }
    shaped = false;
}

/* What the cases above have shown for windows they have shown only if there were any. */
static void values_larger_than_a_binding_come_in_windows(void **state) {
    (void)state;
    for (size_t i = 0; i < 2; i++) {
        struct rig r;
        open_case(&r, i, 2);
        int n = vulkan_backend_windows(r.b);
        assert_true(i ? n == 0 : n > 100);
        rig_close(&r);
    }
}
#endif

/* ---- attention ---- */

struct attention_case {
    int n_heads, n_kv_heads, head_dim, window;
    int head_begin, head_end; /* KV heads of this device */
    enum kv_type k, v;
    double bound;
    int chunk, temp_length;
    bool sinks;
    double cap;
};

/* A sink's score for each query head: from far below the others to far above them. */
static float sink_of(int query_head) {
    return 4.0F * (float)query_head - 6;
}

/* Keys and values of everything that the sequences have seen: (position, kv head, dim). */
struct history {
    float *k[3], *v[3];
};

/* Attention of token t, query head h, in double over the whole history. */
static void naive_attention(const struct attention_case *a, const float *q, const float *k,
                            const float *v, int position, int head, double *out) {
    double *p = calloc((size_t)position + 1, sizeof *p), max = (double)-INFINITY, sum = 0;
    int first = a->window ? max_int(0, position + 1 - a->window) : 0, dim = a->head_dim;
    int kv_head = head / (a->n_heads / a->n_kv_heads);
    if (a->chunk) first = max_int(first, position - position % a->chunk);
    double temp = a->temp_length ? 1 + 0.5 * log(1 + floor((position + 1.0) / a->temp_length)) : 1;
    for (int i = first; i <= position; i++) {
        for (int c = 0; c < dim; c++)
            p[i] +=
                (double)q[c] * (double)k[(i * a->n_kv_heads + kv_head) * dim + c] * 0.125 * temp;
        if (a->cap > 0) p[i] = a->cap * tanh(p[i] / a->cap);
        max = fmax(max, p[i]);
    }
    if (a->sinks) {
        max = fmax(max, (double)sink_of(head));
        sum = exp((double)sink_of(head) - max);
    }
    for (int i = first; i <= position; i++)
        sum += p[i] = exp(p[i] - max);
    for (int c = 0; c < dim; c++) {
        out[c] = 0;
        for (int i = first; i <= position; i++)
            out[c] += p[i] / sum * (double)v[(i * a->n_kv_heads + kv_head) * dim + c];
    }
    free(p);
}

/* Draws this round's q, k and v; notes k and v. */
static void fill_round(struct rig *r, const struct attention_case *a, const struct rig_round *round,
                       struct history *h) {
    int width = a->n_kv_heads * a->head_dim;
    rig_fill(r, 0, round->round.n_tokens, a->n_heads * a->head_dim);
    rig_fill(r, 2, round->round.n_tokens, width);
    rig_fill(r, 3, round->round.n_tokens, width);
    for (int i = 0; i < round->round.n_runs; i++)
        for (int j = 0; j < round->runs[i].n_tokens; j++) {
            int64_t at = (int64_t)(round->runs[i].position + j) * width;
            int line = round->runs[i].token_begin + j;
            memcpy(h->k[i] + at, rig_line(r, 2, line), (size_t)width * sizeof(float));
            memcpy(h->v[i] + at, rig_line(r, 3, line), (size_t)width * sizeof(float));
        }
}

static void check_round(struct rig *r, const struct attention_case *a,
                        const struct rig_round *round, const struct history *h) {
    double want[RIG_HEAD_DIM];
    int group = a->n_heads / a->n_kv_heads, dim = a->head_dim;
    for (int i = 0; i < round->round.n_runs; i++)
        for (int j = 0; j < round->runs[i].n_tokens; j++)
            for (int head = a->head_begin * group; head < a->head_end * group; head++) {
                int line = round->runs[i].token_begin + j;
                naive_attention(a, rig_line(r, 0, line) + head * dim, h->k[i], h->v[i],
                                round->runs[i].position + j, head, want);
                for (int c = 0; c < dim; c++)
                    rig_expect(
                        "attention", line, head * dim + c,
                        (double)rig_line(r, 1, line)[(head - a->head_begin * group) * dim + c],
                        want[c], 1, a->bound);
            }
}

/* Three sequences grow by rounds of several lengths, past several ranges of 256 keys. */
static void run_attention(const struct attention_case *a, size_t which, int n_threads) {
    static const struct {
        int n_runs, lengths[3];
    } rounds[] = {{3, {9, 1, 20}}, {3, {1, 1, 1}}, {2, {2, 6}}, {3, {70, 1, 1}},
                  {2, {70, 2}},    {1, {72}},      {1, {72}},   {1, {8}},
                  {2, {1, 1}},     {1, {70}},      {1, {1}},    {1, {1}}};
    struct rig r;
    struct rig_round round;
    struct history h;
    open_case(&r, which, n_threads);
    size_t floats = (size_t)RIG_CTX * (size_t)(a->n_kv_heads * a->head_dim);
    for (int i = 0; i < 3; i++)
        h.k[i] = calloc(floats, sizeof(float)), h.v[i] = calloc(floats, sizeof(float));
    struct graph_op op = {.kind = OP_ATTENTION,
                          .p.attention = {.n_heads = a->n_heads,
                                          .n_kv_heads = a->n_kv_heads,
                                          .head_dim = a->head_dim,
                                          .scale = 0.125F,
                                          .window = a->window,
                                          .chunk = a->chunk,
                                          .temp_scale = a->temp_length ? 0.5F : 0,
                                          .temp_length = a->temp_length,
                                          .soft_cap = (float)a->cap}};
    int wide = a->n_heads / a->n_kv_heads * a->head_dim;
    struct step s = {.kind = STEP_OP,
                     .op = &op,
                     .n_in = 3,
                     .begin = a->head_begin * wide,
                     .end = a->head_end * wide,
                     .head_begin = a->head_begin,
                     .head_end = a->head_end};
    s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s.in[1] = rig_span(SPACE_EXCHANGE, 2, 0);
    s.in[2] = rig_span(SPACE_EXCHANGE, 3, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1, s.begin);
    struct kv_layout layout = {a->k, a->v, a->head_end - a->head_begin, a->head_dim, RIG_PAGES};
    TEST_OK(r.b->fn->kv_open(r.b, &layout, &s.kv));
    float sinks[RIG_HEADS];
    for (int i = 0; i < RIG_HEADS; i++)
        sinks[i] = sink_of(a->head_begin * (a->n_heads / a->n_kv_heads) + i);
    struct weight_source source = {.name = "sinks",
                                   .dtype = DTYPE_F32,
                                   .n_rows = 1,
                                   .n_cols = RIG_HEADS,
                                   .n_experts = 1,
                                   .row_bytes = sizeof sinks,
                                   .data = (const uint8_t *)sinks};
    if (a->sinks) TEST_OK(r.b->fn->weight_load(r.b, &source, &s.weight));
    int position[3] = {0};
    /* pages are those of the end, so that they stay the same from round to round */
    struct rig_round last;
    int end[3] = {0};
    for (size_t i = 0; i < COUNT_OF(rounds); i++)
        for (int j = 0; j < rounds[i].n_runs; j++)
            end[j] += rounds[i].lengths[j];
    rig_round_open(&last, 3, (int[]){1, 1, 1}, (int[]){end[0] - 1, end[1] - 1, end[2] - 1}, 1);
    for (size_t i = 0; i < COUNT_OF(rounds); i++) {
        rig_round_open(&round, rounds[i].n_runs, rounds[i].lengths, position, 1);
        memcpy(round.pages, last.pages, sizeof last.pages);
        fill_round(&r, a, &round, &h);
        rig_run_watched(&r, &s, &round.round, 1, round.round.n_tokens);
        check_round(&r, a, &round, &h);
        for (int j = 0; j < rounds[i].n_runs; j++)
            position[j] += rounds[i].lengths[j];
    }
    assert_true(position[0] > 256);
    r.b->fn->kv_close(r.b, s.kv);
    if (a->sinks) r.b->fn->weight_free(r.b, s.weight);
    for (int i = 0; i < 3; i++)
        free(h.k[i]), free(h.v[i]);
    rig_close(&r);
}

static void attention_equals_the_naive_one(void **state) {
    (void)state;
    static const struct attention_case cases[] = {
        {4, 2, 32, 0, 0, 2, KV_F32, KV_F32, 2e-5, 0, 0, false, 0},
        {8, 2, 32, 0, 1, 2, KV_F32, KV_F32, 2e-5, 0, 0, false, 0}, /* this device's KV head only */
        {3, 1, 64, 0, 0, 1, KV_F16, KV_F16, 3e-3, 0, 0, false, 0},
        {4, 4, 64, 0, 1, 3, KV_Q8_0, KV_Q8_0, 3e-2, 0, 0, false, 0},
        {4, 2, 32, 50, 0, 2, KV_F32, KV_F32, 2e-5, 0, 0, false, 0},  /* less than a page, */
        {4, 2, 32, 130, 0, 2, KV_F32, KV_F16, 3e-3, 0, 0, false, 0}, /* more; than a range */
        {2, 1, 20, 300, 0, 1, KV_F32, KV_F32, 2e-5, 0, 0, false, 0},
        {4, 2, 32, 0, 0, 2, KV_F32, KV_F32, 2e-5, 40, 0, false, 0}, /* chunks: likewise */
        {4, 2, 32, 100, 0, 2, KV_F32, KV_F32, 2e-5, 130, 0, false, 0},
        {2, 1, 32, 0, 0, 1, KV_F32, KV_F32, 2e-5, 300, 0, false, 0},
        {4, 2, 32, 0, 1, 2, KV_F32, KV_F32, 2e-5, 0, 0, true, 0},
        {4, 1, 32, 60, 0, 1, KV_F32, KV_F32, 2e-5, 0, 0, true, 0},
        {4, 2, 32, 0, 0, 2, KV_F32, KV_F32, 2e-5, 0, 50, false, 0},
        {4, 2, 32, 0, 0, 2, KV_F32, KV_F32, 2e-5, 0, 0, false, 0.75}, /* soft caps that are felt */
        {4, 2, 32, 50, 1, 2, KV_F32, KV_F32, 2e-5, 0, 0, true, 1.5},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        for (size_t isa = 0; isa < COUNT_OF(isas); isa++)
            run_attention(&cases[i], isa, 1 + (int)((i + isa) % 3));
}

int main(void) {
#ifdef STEPS_ON_VULKAN
    if (!rig_has_device("vulkan")) return 77;
    rig_keep_devices();
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(embed_gives_the_rows_of_its_tokens),
        cmocka_unit_test(norm_divides_each_group_by_its_root_mean_square),
        cmocka_unit_test(rope_turns_the_heads_of_a_range),
        cmocka_unit_test(gated_multiplies_by_its_activation),
        cmocka_unit_test(rows_takes_the_wanted_lines),
        cmocka_unit_test(sums_are_added_left_to_right),
        cmocka_unit_test(copies_go_through_local_memory_and_back),
        cmocka_unit_test(products_equal_the_naive_ones),
        cmocka_unit_test(products_over_wanted_rows_have_a_line_for_each),
        cmocka_unit_test(integers_are_multiplied_exactly_in_every_type),
#ifdef STEPS_ON_VULKAN
        cmocka_unit_test(dispatches_for_hardware_compute_the_same),
        cmocka_unit_test(values_larger_than_a_binding_come_in_windows),
#endif
        cmocka_unit_test(attention_equals_the_naive_one),
    };
    return rig_verdict(cmocka_run_group_tests(tests, NULL, NULL));
}
