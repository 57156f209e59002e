/* Recurrent steps on Vulkan against the formulas in double: three sequences through rounds of any
 * size, with the slots of their states; with all features off, on, and with dispatches as on
 * hardware. The CPU's: test_cpu_state.c. */
#include "rig.h"

#include <math.h>

enum { N_SEQS = 3, N_TOKENS = 44, N_SLOTS = 24, OUT = 9 };

enum { N_FORMS = 3 };

static void open_form(struct rig *r, size_t i) {
    struct backend_options o = rig_options(1, "ref");
    setenv("ATSINFER_VK_DISABLE", i == 0 ? "fp16,idot,import,xfer,hostvram,budget" : "", 1);
    setenv("ATSINFER_VK_MAX_RANGE", i == 0 ? "32768" : "0",
           1); /* less than a value, or the slots */
    setenv("ATSINFER_VK_SHAPE", i == 2 ? "1" : "0", 1);
    rig_open_on(r, "vulkan", &o);
}

/* A step and what three sequences bring to it. */
struct job {
    struct graph_op op;
    struct step step;
    float in[N_SEQS][N_TOKENS][STEP_MAX_IN][RIG_STRIDE];
    float out[N_SEQS][N_TOKENS][RIG_STRIDE]; /* from the step's first column on */
};

static struct job *job_open(struct rig *r, enum op_kind kind, int n_in) {
    struct job *j = calloc(1, sizeof *j);
    j->op.kind = kind;
    j->step = (struct step){.kind = STEP_OP, .op = &j->op, .n_in = n_in};
    for (int s = 0; s < N_SEQS; s++)
        for (int t = 0; t < N_TOKENS; t++)
            for (int i = 0; i < n_in; i++)
                for (int c = 0; c < RIG_STRIDE; c++)
                    j->in[s][t][i][c] = rng_normal(&r->rng);
    return j;
}

/* Ends a job's step, opens its slots. */
static void job_ready(struct rig *r, struct job *j, int begin, int end) {
    struct state_layout layout = {op_state_floats(&j->op, begin, end), N_SLOTS};
    TEST_OK(r->b->fn->state_open(r->b, &layout, &j->step.state));
    for (int i = 0; i < j->step.n_in; i++)
        j->step.in[i] = rig_span(SPACE_EXCHANGE, i, 0);
    j->step.out = rig_span(SPACE_EXCHANGE, OUT, j->step.begin);
}

static void job_close(struct rig *r, struct job *j) {
    r->b->fn->state_close(r->b, j->step.state);
    r->b->fn->weight_free(r->b, j->step.weight);
    if (j->step.bias) r->b->fn->weight_free(r->b, j->step.bias);
    free(j);
}

/* One round: lengths[s] tokens of each sequence that has so many left. */
static void feed_round(struct rig *r, struct job *j, const int lengths[N_SEQS], int done[N_SEQS],
                       int32_t slots[N_SEQS], bool in_place) {
    struct rig_round round;
    int seqs[N_SEQS], n[N_SEQS], first[N_SEQS], n_runs = 0, line = 0;
    for (int s = 0; s < N_SEQS; s++) {
        int left = min_int(lengths[s], N_TOKENS - done[s]);
        if (left == 0) continue;
        seqs[n_runs] = s, n[n_runs] = left, first[n_runs++] = done[s];
    }
    rig_round_open(&round, n_runs, n, first, 0);
    for (int i = 0; i < n_runs; i++) {
        const int s = seqs[i];
        round.runs[i].state_in = slots[s];
        if (!in_place || slots[s] == STATE_NONE) slots[s] = 7 * s + 1 + (slots[s] == 7 * s + 1);
        round.runs[i].state_out = slots[s];
        for (int t = 0; t < n[i]; t++, line++)
            for (int k = 0; k < j->step.n_in; k++)
                memcpy(rig_line(r, k, line), j->in[s][first[i] + t][k], RIG_STRIDE * 4);
    }
    rig_run_watched(r, &j->step, &round.round, OUT, line);
    if (!in_place) rig_run(r, &j->step, 1, &round.round); /* what it began with is still there */
    for (int i = 0, at = 0; i < n_runs; done[seqs[i]] += n[i], i++)
        for (int t = 0; t < n[i]; t++, at++)
            memcpy(j->out[seqs[i]][first[i] + t], rig_line(r, OUT, at), RIG_STRIDE * 4);
}

/* All tokens in these rounds, repeated, and then in other ones: with the same bits. */
static void feed(struct rig *r, struct job *j) {
    static const int rounds[2][4][N_SEQS] = {
        {{40, 3, 2}, {1, 30, 1}, {2, 1, 20}, {1, 10, 21}}, /* beside each other */
        {{1, 44, 0}, {1, 0, 17}, {1, 0, 1}, {1, 0, 9}},
    };
    static float first[N_SEQS][N_TOKENS][RIG_STRIDE];
    for (int i = 0; i < 2; i++) {
        int done[N_SEQS] = {0};
        int32_t slots[N_SEQS] = {STATE_NONE, STATE_NONE, STATE_NONE};
        for (int k = 0; done[0] + done[1] + done[2] < N_SEQS * N_TOKENS; k++)
            feed_round(r, j, rounds[i][k % 4], done, slots, (i + k) % 2);
        if (i == 0) memcpy(first, j->out, sizeof first);
    }
    const size_t width = (size_t)(j->step.end - j->step.begin) * sizeof(float);
    for (int s = 0; s < N_SEQS; s++)
        for (int t = 0; t < N_TOKENS; t++)
            assert_memory_equal(first[s][t], j->out[s][t], width);
}

/* ---- convolution ---- */

static void check_conv(const struct job *j, int s, const float *filters) {
    const int n_taps = j->op.p.conv.n_taps;
    for (int t = 0; t < N_TOKENS; t++)
        for (int c = j->step.begin; c < j->step.end; c++) {
            double sum = 0, size = 0;
            for (int k = 0; k < n_taps; k++) {
                const int from = t - (n_taps - 1) + k;
                double x = from < 0 ? 0 : (double)j->in[s][from][0][c];
                sum += (double)filters[c * n_taps + k] * x;
                size += fabs((double)filters[c * n_taps + k] * x);
            }
            double want = j->op.p.conv.silu ? sum / (1 + exp(-sum)) : sum;
            rig_expect("conv", t, c, (double)j->out[s][t][c - j->step.begin], want, size + 1e-3,
                       2e-6);
        }
}

static void convolutions_see_what_a_sequence_had_before(void **state) {
    (void)state;
    static const struct {
        int n_taps, begin, end;
        bool silu;
    } cases[] = {{4, 0, 300, true}, {4, 17, 120, false}, {2, 33, 34, true}, {16, 5, 90, false}};
    for (size_t i = 0; i < COUNT_OF(cases) * N_FORMS; i++) {
        struct rig r;
        open_form(&r, i % N_FORMS);
        const int n_taps = cases[i / N_FORMS].n_taps;
        const int begin = cases[i / N_FORMS].begin, end = cases[i / N_FORMS].end;
        struct rig_matrix w = rig_matrix(&r.rng, DTYPE_F32, 1, 300 * n_taps);
        struct job *j = job_open(&r, OP_CONV, 1);
        j->op.p.conv = (struct conv_params){n_taps, cases[i / N_FORMS].silu};
        j->step.begin = begin, j->step.end = end;
        j->step.weight = rig_load(&r, &w, 0, 1, begin * n_taps, end * n_taps);
        job_ready(&r, j, begin, end);
        feed(&r, j);
        for (int s = 0; s < N_SEQS; s++)
            check_conv(j, s, w.values);
        job_close(&r, j);
        rig_matrix_free(&w);
        rig_close(&r);
    }
}

/* ---- delta rule ---- */

struct delta_case {
    struct delta_params p;
    int begin, end;
};

/* One column of one head: S is that column. */
static void check_column(const struct job *j, int s, int head, int column, double rate, double dt) {
    const struct delta_params *p = &j->op.p.delta;
    const int group = p->n_heads / p->n_key_heads;
    const int key = (p->tiled ? head % p->n_key_heads : head / group) * p->dim_k;
    double state[RIG_STRIDE] = {0};
    for (int t = 0; t < N_TOKENS; t++) {
        const float(*in)[RIG_STRIDE] = j->in[s][t];
        const float *q = in[0] + key, *k = in[1] + key;
        double keep = exp(rate * log1p(exp((double)in[3][head] + dt)));
        double old = 0, want = 0, size = 0, take = 1 / (1 + exp(-(double)in[4][head]));
        for (int i = 0; i < p->dim_k; i++) {
            state[i] *= keep;
            old += (double)k[i] * state[i];
        }
        for (int i = 0; i < p->dim_k; i++) {
            state[i] += (double)k[i] * take * ((double)in[2][column] - old);
            want += (double)q[i] * state[i];
            size += fabs((double)q[i] * state[i]);
        }
        rig_expect("delta", t, column, (double)j->out[s][t][column - j->step.begin], want, size + 1,
                   1e-5);
    }
}

/* Heads [begin, end) with keys of length about 1, as models have them: else a state grows. */
static void check_delta(struct rig *r, const struct delta_case *c) {
    const int dim_k = c->p.dim_k, dim_v = c->p.dim_v;
    struct rig_matrix rates = rig_matrix(&r->rng, DTYPE_F32, 1, 16);
    struct rig_matrix dts = rig_matrix(&r->rng, DTYPE_F32, 1, 16);
    struct job *j = job_open(r, OP_DELTA, 5);
    for (int i = 0; i < 16; i++)
        rates.values[i] = -0.05F * fabsf(rates.values[i]);
    memcpy(rates.blocks, rates.values, 16 * sizeof(float));
    for (int i = 0; i < N_SEQS * N_TOKENS * RIG_STRIDE; i++)
        (&j->in[0][0][1][0])[i / RIG_STRIDE * STEP_MAX_IN * RIG_STRIDE + i % RIG_STRIDE] /=
            sqrtf((float)dim_k);
    j->op.p.delta = c->p;
    j->step.begin = c->begin * dim_v, j->step.end = c->end * dim_v;
    j->step.head_begin = c->begin, j->step.head_end = c->end;
    j->step.weight = rig_load(r, &rates, 0, 1, c->begin, c->end);
    j->step.bias = rig_load(r, &dts, 0, 1, c->begin, c->end);
    job_ready(r, j, c->begin, c->end);
    feed(r, j);
    for (int s = 0; s < N_SEQS; s++)
        for (int column = j->step.begin; column < j->step.end; column++) {
            const int head = column / dim_v;
            check_column(j, s, head, column, (double)rates.values[head], (double)dts.values[head]);
        }
    job_close(r, j);
    rig_matrix_free(&rates);
    rig_matrix_free(&dts);
}

static void delta_rules_carry_the_state_of_each_head(void **state) {
    (void)state;
    static const struct delta_case cases[] = {
        {{4, 2, 64, 32, false}, 0, 4},
        {{4, 2, 64, 32, false}, 1, 3},
        {{6, 3, 16, 48, true}, 2, 6},
        {{2, 2, 128, 128, true}, 1, 2},
    };
    for (size_t i = 0; i < COUNT_OF(cases) * N_FORMS; i++) {
        struct rig r;
        open_form(&r, i % N_FORMS);
        check_delta(&r, &cases[i / N_FORMS]);
        rig_close(&r);
    }
}

int main(void) {
    if (!rig_has_device("vulkan")) return 77;
    rig_keep_devices();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(convolutions_see_what_a_sequence_had_before),
        cmocka_unit_test(delta_rules_carry_the_state_of_each_head),
    };
    return rig_verdict(cmocka_run_group_tests(tests, NULL, NULL));
}
