/* The steps of recurrent layers on the CPU, on the reference and on the best kernels, against a
 * naive computation in double: two sequences that grow by rounds of several lengths, with the state
 * in place and from slot to slot. */
#include "rig.h"

#include <math.h>

static const char *const isas[] = {"ref", "native"};

enum { N_SEQUENCES = 2, N_SLOTS = 2 * N_SEQUENCES, N_LINES = RIG_TOKENS };
static const int lengths[][N_SEQUENCES] = {{9, 1}, {1, 2}, {2, 30}, {1, 1}, {60, 10}, {3, 8}};

/* A step with a state, and the naive one of each sequence. */
struct recurrence {
    struct step s;
    void (*fill)(struct rig *r, const struct recurrence *x, int n_lines);
    /* One token: what line `line` should be, and the state after it. */
    void (*token)(const struct rig *r, const struct recurrence *x, double *state, int line);
    int64_t n_floats; /* of the naive state, all columns */
    const float *weight, *bias;
};

static void check_round(const struct rig *r, const struct recurrence *x, double *states,
                        const struct round *round) {
    for (int i = 0; i < round->n_runs; i++)
        for (int j = 0; j < round->runs[i].n_tokens; j++)
            x->token(r, x, states + i * x->n_floats, round->runs[i].token_begin + j);
}

/* From one slot to another: the first stays as it is, so that the round can be had again. */
static void check_again(struct rig *r, const struct recurrence *x, const struct round *round) {
    static float was[N_LINES][RIG_STRIDE];
    const size_t bytes = (size_t)(x->s.end - x->s.begin) * sizeof(float);
    for (int t = 0; t < round->n_tokens; t++)
        memcpy(was[t], rig_line(r, 1, t), bytes);
    rig_run_watched(r, &x->s, round, 1, round->n_tokens);
    for (int t = 0; t < round->n_tokens; t++)
        assert_memory_equal(was[t], rig_line(r, 1, t), bytes);
}

/* Every round's outputs; then all anew from no state, with slots that hold that of before. */
static void run_rounds(struct rig *r, struct recurrence *x, int64_t n_floats) {
    const struct state_layout layout = {n_floats, N_SLOTS};
    double *states = xcalloc((size_t)(N_SEQUENCES * x->n_floats), sizeof *states);
    TEST_OK(r->b->fn->state_open(r->b, &layout, &x->s.state));
    for (size_t i = 0; i < 2 * COUNT_OF(lengths); i++) {
        struct rig_round round;
        const size_t at = i % COUNT_OF(lengths);
        const bool in_place = at % 2;
        rig_round_open(&round, N_SEQUENCES, lengths[at], (int[N_SEQUENCES]){0}, 1);
        if (at == 0) memset(states, 0, (size_t)(N_SEQUENCES * x->n_floats) * sizeof *states);
        for (int j = 0; j < N_SEQUENCES; j++) { /* of its two slots, the one of the last round */
            const int slot = j + (int)((at + 1) / 2 % 2) * N_SEQUENCES;
            round.runs[j].state_in = at == 0 ? STATE_NONE : slot;
            round.runs[j].state_out = in_place ? slot : (slot + N_SEQUENCES) % N_SLOTS;
        }
        x->fill(r, x, round.round.n_tokens);
        rig_run_watched(r, &x->s, &round.round, 1, round.round.n_tokens);
        check_round(r, x, states, &round.round);
        if (!in_place) check_again(r, x, &round.round);
    }
    r->b->fn->state_close(r->b, x->s.state);
    free(states);
}

static void open_case(struct rig *r, size_t i) {
    const struct backend_options o = rig_options(1 + (int)(i % 3), isas[i % COUNT_OF(isas)]);
    rig_open(r, &o);
}

/* ---- convolution ---- */

enum { CONV_COLUMNS = 200 };

static void conv_fill(struct rig *r, const struct recurrence *x, int n_lines) {
    (void)x;
    rig_fill(r, 0, n_lines, CONV_COLUMNS);
}

/* State: the inputs of n_taps - 1 tokens, the oldest first. */
static void conv_token(const struct rig *r, const struct recurrence *x, double *state, int line) {
    const int n_taps = x->s.op->p.conv.n_taps;
    for (int c = x->s.begin; c < x->s.end; c++) {
        double *past = state + c * n_taps, want = 0, scale = 1e-3;
        past[n_taps - 1] = (double)rig_line(r, 0, line)[c];
        for (int j = 0; j < n_taps; j++) {
            want += (double)x->weight[c * n_taps + j] * past[j];
            scale += fabs((double)x->weight[c * n_taps + j] * past[j]);
        }
        if (x->s.op->p.conv.silu) want /= 1 + exp(-want);
        rig_expect("conv", line, c, (double)rig_line(r, 1, line)[c - x->s.begin], want, scale,
                   2e-6);
        memmove(past, past + 1, (size_t)(n_taps - 1) * sizeof *past);
    }
}

static void convolutions_reach_back_over_rounds(void **state) {
    (void)state;
    static const struct {
        int n_taps, begin, end;
        bool silu;
    } cases[] = {
        {4, 0, CONV_COLUMNS, true}, {4, 17, 150, true}, {2, 60, 61, false}, {12, 3, 90, false}};
    for (size_t i = 0; i < COUNT_OF(cases) * 2; i++) {
        struct rig r;
        open_case(&r, i);
        const int n_taps = cases[i / 2].n_taps, begin = cases[i / 2].begin, end = cases[i / 2].end;
        struct rig_matrix filters = rig_matrix(&r.rng, DTYPE_F32, 1, CONV_COLUMNS * n_taps);
        struct graph_op op = {.kind = OP_CONV, .p.conv = {n_taps, cases[i / 2].silu}};
        struct recurrence x = {
            .s = {.kind = STEP_OP, .op = &op, .n_in = 1, .begin = begin, .end = end},
            .fill = conv_fill,
            .token = conv_token,
            .n_floats = CONV_COLUMNS * n_taps,
            .weight = filters.values,
        };
        x.s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
        x.s.out = rig_span(SPACE_EXCHANGE, 1, begin);
        x.s.weight = rig_load(&r, &filters, 0, 1, begin * n_taps, end * n_taps);
        run_rounds(&r, &x, (int64_t)(n_taps - 1) * (end - begin));
        r.b->fn->weight_free(r.b, x.s.weight);
        rig_matrix_free(&filters);
        rig_close(&r);
    }
}

/* ---- delta rule ---- */

enum { Q = 0, K = 2, V = 3, A = 4, B = 5 }; /* buffers of its inputs */

/* Keys of length 1, as a model has them: else states grow without bound. */
static void delta_fill(struct rig *r, const struct recurrence *x, int n_lines) {
    const struct delta_params *p = &x->s.op->p.delta;
    rig_fill(r, Q, n_lines, p->n_key_heads * p->dim_k);
    rig_fill(r, K, n_lines, p->n_key_heads * p->dim_k);
    rig_fill(r, V, n_lines, p->n_heads * p->dim_v);
    rig_fill(r, A, n_lines, p->n_heads);
    rig_fill(r, B, n_lines, p->n_heads);
    for (int t = 0; t < n_lines; t++)
        for (int head = 0; head < p->n_key_heads; head++) {
            float *k = rig_line(r, K, t) + head * p->dim_k, sum = 0;
            for (int i = 0; i < p->dim_k; i++)
                sum += k[i] * k[i];
            for (int i = 0; i < p->dim_k; i++)
                k[i] /= sqrtf(sum);
        }
}

/* One head: S (dim_k, dim_v) as graph.h says, column by column. */
static void delta_head(const struct rig *r, const struct recurrence *x, double *s, int line,
                       int head) {
    const struct delta_params *p = &x->s.op->p.delta;
    const int key = p->tiled ? head % p->n_key_heads : head / (p->n_heads / p->n_key_heads);
    const float *q = rig_line(r, Q, line) + key * p->dim_k;
    const float *k = rig_line(r, K, line) + key * p->dim_k;
    const double a = (double)rig_line(r, A, line)[head] + (double)x->bias[head];
    const double decay = exp((double)x->weight[head] * log1p(exp(a)));
    const double beta = 1 / (1 + exp(-(double)rig_line(r, B, line)[head]));
    for (int c = 0; c < p->dim_v; c++) {
        double v = (double)rig_line(r, V, line)[head * p->dim_v + c], want = 0;
        for (int i = 0; i < p->dim_k; i++) {
            s[i * p->dim_v + c] *= decay;
            v -= s[i * p->dim_v + c] * (double)k[i];
        }
        for (int i = 0; i < p->dim_k; i++) {
            s[i * p->dim_v + c] += (double)k[i] * beta * v;
            want += s[i * p->dim_v + c] * (double)q[i];
        }
        const int column = head * p->dim_v + c;
        rig_expect("delta", line, column, (double)rig_line(r, 1, line)[column - x->s.begin], want,
                   1, 1e-5);
    }
}

static void delta_token(const struct rig *r, const struct recurrence *x, double *state, int line) {
    const struct delta_params *p = &x->s.op->p.delta;
    for (int head = x->s.head_begin; head < x->s.head_end; head++)
        delta_head(r, x, state + head * p->dim_k * p->dim_v, line, head);
}

static void run_delta(struct rig *r, const struct delta_params *p, int head_begin, int head_end) {
    struct rig_matrix decay = rig_matrix(&r->rng, DTYPE_F32, 1, p->n_heads);
    struct rig_matrix dt = rig_matrix(&r->rng, DTYPE_F32, 1, p->n_heads);
    for (int i = 0; i < p->n_heads; i++) /* what is left is less than there was */
        decay.values[i] = -0.05F - fabsf(decay.values[i]);
    memcpy(decay.blocks, decay.values, (size_t)p->n_heads * sizeof(float));
    struct graph_op op = {.kind = OP_DELTA, .p.delta = *p};
    struct recurrence x = {
        .s = {.kind = STEP_OP,
              .op = &op,
              .n_in = 5,
              .begin = head_begin * p->dim_v,
              .end = head_end * p->dim_v,
              .head_begin = head_begin,
              .head_end = head_end},
        .fill = delta_fill,
        .token = delta_token,
        .n_floats = p->n_heads * p->dim_k * p->dim_v,
        .weight = decay.values,
        .bias = dt.values,
    };
    static const int buffers[] = {Q, K, V, A, B};
    for (size_t i = 0; i < COUNT_OF(buffers); i++)
        x.s.in[i] = rig_span(SPACE_EXCHANGE, buffers[i], 0);
    x.s.out = rig_span(SPACE_EXCHANGE, 1, x.s.begin);
    x.s.weight = rig_load(r, &decay, 0, 1, head_begin, head_end);
    x.s.bias = rig_load(r, &dt, 0, 1, head_begin, head_end);
    run_rounds(r, &x, (int64_t)(head_end - head_begin) * p->dim_k * p->dim_v);
    r->b->fn->weight_free(r->b, x.s.weight);
    r->b->fn->weight_free(r->b, x.s.bias);
    rig_matrix_free(&decay);
    rig_matrix_free(&dt);
}

static void delta_rules_reach_back_over_rounds(void **state) {
    (void)state;
    static const struct {
        struct delta_params p;
        int head_begin, head_end;
    } cases[] = {
        {{4, 2, 32, 48, false}, 0, 4},
        {{4, 2, 32, 48, false}, 1, 4}, /* of this device only */
        {{6, 3, 16, 32, true}, 2, 5},
        {{1, 1, 64, 64, false}, 0, 1},
    };
    for (size_t i = 0; i < COUNT_OF(cases) * 2; i++) {
        struct rig r;
        open_case(&r, i);
        run_delta(&r, &cases[i / 2].p, cases[i / 2].head_begin, cases[i / 2].head_end);
        rig_close(&r);
    }
}

/* ---- slices ---- */

static void slices_take_a_few_columns_of_each_group(void **state) {
    (void)state;
    static const struct {
        struct slice_params p;
        int begin, end;
    } cases[] = {
        {{24, 5, 9}, 7, 80}, {{24, 0, 24}, 0, 240}, {{300, 100, 128}, 0, 128}, {{2, 1, 1}, 3, 150}};
    for (size_t i = 0; i < COUNT_OF(cases) * 2; i++) {
        struct rig r;
        struct rig_round round;
        open_case(&r, i);
        const struct slice_params *p = &cases[i / 2].p;
        const int begin = cases[i / 2].begin, end = cases[i / 2].end;
        struct graph_op op = {.kind = OP_SLICE, .p.slice = *p};
        struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .begin = begin, .end = end};
        s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
        s.out = rig_span(SPACE_EXCHANGE, 1, begin);
        rig_round_plain(&round, 13, 1);
        rig_fill(&r, 0, 13, RIG_STRIDE);
        rig_run_watched(&r, &s, &round.round, 1, 13);
        for (int t = 0; t < 13; t++)
            for (int c = begin; c < end; c++) {
                const float *want = rig_line(&r, 0, t) + c / p->n * p->group + p->first + c % p->n;
                assert_memory_equal(rig_line(&r, 1, t) + c - begin, want, sizeof *want);
            }
        rig_close(&r);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_reach_back_over_rounds),
        cmocka_unit_test(delta_rules_reach_back_over_rounds),
        cmocka_unit_test(slices_take_a_few_columns_of_each_group),
    };
    return rig_verdict(cmocka_run_group_tests(tests, NULL, NULL));
}
