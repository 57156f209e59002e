/* Tiny cases of operators that a device may do without: each against plain C in double. */
#include <math.h>
#include <string.h>
#include "backend/vulkan/selftest.h"

enum {
    FEW_LINES = 9,
    HEADS = 2,
    HEAD_DIM = 32,
    EXPERTS = 4,
    USED = 2,
    WIDTH = 32, /* of experts: inputs, inner and outputs */
    TAPS = 4,
    DIM = 16, /* of a delta rule's head */
    LINES_MOST = 16,
};

void vk_trial_limits(struct backend_limits *l) {
    l->n_kv_classes = 1;
    l->max_heads = HEADS;
    l->max_head_dim = HEAD_DIM;
    l->max_experts = EXPERTS;
    l->max_experts_used = USED;
    l->max_expert_cols = l->max_expert_ff = WIDTH;
    l->expert_floats = true;
}

static bool near_to(float got, double want) {
    return fabs((double)got - want) <= 1e-4 * (fabs(want) + 0.1); /* NaN is not */
}

/* Multiples of 1/8 in [-1, 1): exact in 16 bits. */
static float eighths(uint32_t *state) {
    *state = *state * 1664525 + 1013904223;
    return (float)((int)(*state >> 28) - 8) / 8;
}

static void fill(const struct vk_trial *t) {
    uint32_t state = 7;
    for (int buffer = 0; buffer < TRIAL_BUFFERS; buffer++)
        for (int i = 0; i < LINES_MOST * TRIAL_COLS; i++)
            vk_trial_line(t, buffer, 0)[i] = eighths(&state);
}

static ats_status load(struct vk_trial *t, const float *values, int n_rows, int n_cols,
                       int n_experts, struct backend_weight **out) {
    const struct weight_source s = {.name = "a trial",
                                    .dtype = DTYPE_F32,
                                    .n_rows = n_rows,
                                    .n_cols = n_cols,
                                    .n_experts = n_experts,
                                    .row_bytes = n_cols * 4,
                                    .data = (const uint8_t *)values};
    TRY(t->b->fn->weight_load(t->b, &s, out));
    return t->b->fn->weights_ready(t->b);
}

static void unload(struct vk_trial *t, struct backend_weight **weights, int n) {
    for (int i = 0; i < n; i++)
        if (weights[i]) t->b->fn->weight_free(t->b, weights[i]);
}

/* ---- attention, and the rotary embedding that feeds it ---- */

static ats_status try_rope(struct vk_trial *t, bool *right) {
    const int half = HEAD_DIM / 2, position = 40;
    float freq[HEAD_DIM / 2];
    for (int i = 0; i < half; i++)
        freq[i] = powf(0.6F, (float)i);
    struct graph_op op = {.kind = OP_ROPE,
                          .p.rope = {.head_dim = HEAD_DIM,
                                     .n_rot = HEAD_DIM,
                                     .halves = true,
                                     .inv_freq = freq,
                                     .magnitude = 1}};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .end = HEADS * HEAD_DIM};
    s.in[0] = vk_trial_span(0);
    s.out = vk_trial_span(TRIAL_OUT);
    TRY(vk_trial_run(t, &s, FEW_LINES, position));
    for (int i = 0; i < FEW_LINES * HEADS * half; i++) {
        int line = i / (HEADS * half), head = i / half % HEADS, j = i % half;
        const float *x = vk_trial_line(t, 0, line) + head * HEAD_DIM;
        const float *y = vk_trial_line(t, TRIAL_OUT, line) + head * HEAD_DIM;
        double angle = (double)(position + line) * (double)freq[j], a = (double)x[j];
        double b = (double)x[j + half];
        *right &= near_to(y[j], a * cos(angle) - b * sin(angle));
        *right &= near_to(y[j + half], a * sin(angle) + b * cos(angle));
    }
    return ATS_OK;
}

/* Query `line` at `position` sees keys 0 to position, which stand in lines p % FEW_LINES. */
static void check_query(const struct vk_trial *t, int line, int position, float scale,
                        bool *right) {
    for (int i = 0; i < HEADS * HEAD_DIM; i++) {
        const float *q = vk_trial_line(t, 0, line) + i / HEAD_DIM * HEAD_DIM;
        double sum = 0, out = 0;
        for (int p = 0; p <= position; p++) {
            double dot = 0;
            for (int j = 0; j < HEAD_DIM; j++)
                dot += (double)q[j] * (double)vk_trial_line(t, 2, p % FEW_LINES)[j];
            double weight = exp(dot * (double)scale);
            sum += weight;
            out += weight * (double)vk_trial_line(t, 3, p % FEW_LINES)[i % HEAD_DIM];
        }
        *right &= near_to(vk_trial_line(t, TRIAL_OUT, line)[i], out / sum);
    }
}

static ats_status try_attention(struct vk_trial *t, bool *right) {
    const struct kv_layout layout = {KV_F16, KV_F16, 1, HEAD_DIM, 1};
    const float scale = 0.25F;
    struct graph_op op = {
        .kind = OP_ATTENTION,
        .p.attention = {.n_heads = HEADS, .n_kv_heads = 1, .head_dim = HEAD_DIM, .scale = scale}};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 3, .end = HEADS * HEAD_DIM, .head_end = 1};
    s.in[0] = vk_trial_span(0);
    s.in[1] = vk_trial_span(2);
    s.in[2] = vk_trial_span(3);
    s.out = vk_trial_span(TRIAL_OUT);
    TRY(t->b->fn->kv_open(t->b, &layout, &s.kv));
    ats_status status = vk_trial_run(t, &s, FEW_LINES, 0);
    for (int line = 0; line < FEW_LINES && status == ATS_OK; line++)
        check_query(t, line, line, scale, right);
    if (status == ATS_OK) status = vk_trial_run(t, &s, 1, FEW_LINES); /* as in decode */
    if (status == ATS_OK) check_query(t, 0, FEW_LINES, scale, right);
    t->b->fn->kv_close(t->b, s.kv);
    return status;
}

/* ---- experts, and the route to them ---- */

/* Scores are the first columns of buffer 0: the route goes to buffer 4. */
static ats_status try_route(struct vk_trial *t, int n_lines, bool *right) {
    struct graph_op op = {
        .kind = OP_ROUTE,
        .p.route = {.n_experts = EXPERTS, .n_used = USED, .normalise = true, .scale = 1}};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .end = 2 * USED};
    s.in[0] = vk_trial_span(0);
    s.out = vk_trial_span(4);
    TRY(vk_trial_run(t, &s, n_lines, 0));
    for (int line = 0; line < n_lines; line++) {
        const float *x = vk_trial_line(t, 0, line), *out = vk_trial_line(t, 4, line);
        int best = 0, second = -1;
        for (int e = 1; e < EXPERTS; e++)
            if (x[e] > x[best]) best = e;
        for (int e = 0; e < EXPERTS; e++)
            if (e != best && (second < 0 || x[e] > x[second])) second = e;
        double share = 1 / (1 + exp((double)x[second] - (double)x[best]));
        *right &= near_to(out[0], best) && near_to(out[1], second);
        *right &= near_to(out[USED], share) && near_to(out[USED + 1], 1 - share);
    }
    return ATS_OK;
}

static double expert_row(const float *matrix, int expert, int row, const double *x) {
    double sum = 0;
    for (int i = 0; i < WIDTH; i++)
        sum += (double)matrix[(expert * WIDTH + row) * WIDTH + i] * x[i];
    return sum;
}

static void check_experts(const struct vk_trial *t, int line, const float *const m[3],
                          bool *right) {
    const float *route = vk_trial_line(t, 4, line);
    double want[WIDTH] = {0}, x[WIDTH], h[WIDTH];
    for (int i = 0; i < WIDTH; i++)
        x[i] = (double)vk_trial_line(t, 0, line)[i];
    for (int j = 0; j < USED; j++) {
        int e = (int)route[j];
        if (e < 0 || e >= EXPERTS) return; /* the route is wrong, which is known */
        for (int i = 0; i < WIDTH; i++) {
            double gate = expert_row(m[EXPERT_GATE], e, i, x);
            h[i] = gate / (1 + exp(-gate)) * expert_row(m[EXPERT_UP], e, i, x);
        }
        for (int i = 0; i < WIDTH; i++)
            want[i] += (double)route[USED + j] * expert_row(m[EXPERT_DOWN], e, i, h);
    }
    for (int i = 0; i < WIDTH; i++)
        *right &= near_to(vk_trial_line(t, TRIAL_OUT, line)[i], want[i]);
}

static ats_status try_experts(struct vk_trial *t, bool *right) {
    static float values[N_EXPERT_WEIGHTS][EXPERTS * WIDTH * WIDTH];
    const float *const m[N_EXPERT_WEIGHTS] = {values[0], values[1], values[2]};
    uint32_t state = 3;
    struct graph_op op = {.kind = OP_EXPERTS,
                          .p.experts = {.n_experts = EXPERTS,
                                        .n_used = USED,
                                        .n_ff = WIDTH,
                                        .math = {MATH_F32, MATH_F32, MATH_F32},
                                        .act = ACT_SILU}};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 2, .end = WIDTH, .expert_end = EXPERTS};
    s.in[0] = vk_trial_span(0);
    s.in[1] = vk_trial_span(4);
    s.out = vk_trial_span(TRIAL_OUT);
    ats_status status = ATS_OK;
    for (int i = 0; i < N_EXPERT_WEIGHTS && status == ATS_OK; i++) {
        for (int j = 0; j < EXPERTS * WIDTH * WIDTH; j++)
            values[i][j] = eighths(&state) / 4;
        status = load(t, m[i], WIDTH, WIDTH, EXPERTS, &s.experts[i]);
    }
    for (int n = 1; n <= FEW_LINES && status == ATS_OK; n += FEW_LINES - 1) {
        status = try_route(t, n, right);
        if (status == ATS_OK) status = vk_trial_run(t, &s, n, 0);
        for (int line = 0; line < n && status == ATS_OK; line++)
            check_experts(t, line, m, right);
    }
    unload(t, s.experts, N_EXPERT_WEIGHTS);
    return status;
}

/* ---- operators with a state ---- */

static ats_status try_conv(struct vk_trial *t, bool *right) {
    const struct state_layout layout = {(TAPS - 1) * TRIAL_COLS, 1};
    float filters[TRIAL_COLS * TAPS];
    uint32_t state = 5;
    for (int i = 0; i < TRIAL_COLS * TAPS; i++)
        filters[i] = eighths(&state);
    struct graph_op op = {.kind = OP_CONV, .p.conv = {.n_taps = TAPS}};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 1, .end = TRIAL_COLS};
    s.in[0] = vk_trial_span(0);
    s.out = vk_trial_span(TRIAL_OUT);
    TRY(load(t, filters, 1, TRIAL_COLS * TAPS, 0, &s.weight));
    ats_status status = t->b->fn->state_open(t->b, &layout, &s.state);
    if (status == ATS_OK) status = vk_trial_run(t, &s, FEW_LINES, 0);
    for (int i = 0; i < FEW_LINES * TRIAL_COLS && status == ATS_OK; i++) {
        int line = i / TRIAL_COLS, column = i % TRIAL_COLS;
        double want = 0;
        for (int k = max_int(0, TAPS - 1 - line); k < TAPS; k++)
            want += (double)filters[column * TAPS + k] *
                    (double)vk_trial_line(t, 0, line - (TAPS - 1) + k)[column];
        *right &= near_to(vk_trial_line(t, TRIAL_OUT, line)[column], want);
    }
    if (s.state) t->b->fn->state_close(t->b, s.state);
    unload(t, &s.weight, 1);
    return status;
}

/* One head: queries and keys are buffers 0 and 2, values 3, a and b the first columns of 4 and 5.
 */
static void check_delta(const struct vk_trial *t, float rate, float dt, bool *right) {
    for (int column = 0; column < DIM; column++) {
        double state[DIM] = {0};
        for (int line = 0; line < FEW_LINES; line++) {
            const float *q = vk_trial_line(t, 0, line), *k = vk_trial_line(t, 2, line);
            double a = (double)*vk_trial_line(t, 4, line), b = (double)*vk_trial_line(t, 5, line);
            double keep = exp((double)rate * log1p(exp(a + (double)dt))), old = 0, want = 0;
            for (int i = 0; i < DIM; i++)
                old += (double)k[i] * (state[i] *= keep);
            for (int i = 0; i < DIM; i++) {
                double v = (double)vk_trial_line(t, 3, line)[column];
                state[i] += (double)k[i] / (1 + exp(-b)) * (v - old);
                want += (double)q[i] * state[i];
            }
            *right &= near_to(vk_trial_line(t, TRIAL_OUT, line)[column], want);
        }
    }
}

static ats_status try_delta(struct vk_trial *t, bool *right) {
    const struct state_layout layout = {DIM * DIM, 1};
    const float rate = -0.5F, dt = 0.25F;
    static const int inputs[5] = {0, 2, 3, 4, 5};
    struct graph_op op = {.kind = OP_DELTA,
                          .p.delta = {.n_heads = 1, .n_key_heads = 1, .dim_k = DIM, .dim_v = DIM}};
    struct step s = {.kind = STEP_OP, .op = &op, .n_in = 5, .end = DIM, .head_end = 1};
    struct backend_weight *weights[2] = {0};
    for (int i = 0; i < 5; i++)
        s.in[i] = vk_trial_span(inputs[i]);
    s.out = vk_trial_span(TRIAL_OUT);
    for (int i = 0; i < LINES_MOST * TRIAL_COLS; i++)
        vk_trial_line(t, 2, 0)[i] /= 4; /* keys of length about 1: else the state grows */
    ats_status status = load(t, &rate, 1, 1, 0, &weights[0]);
    if (status == ATS_OK) status = load(t, &dt, 1, 1, 0, &weights[1]);
    if (status == ATS_OK) status = t->b->fn->state_open(t->b, &layout, &s.state);
    s.weight = weights[0];
    s.bias = weights[1];
    if (status == ATS_OK) status = vk_trial_run(t, &s, FEW_LINES, 0);
    if (status == ATS_OK) check_delta(t, rate, dt, right);
    if (s.state) t->b->fn->state_close(t->b, s.state);
    unload(t, weights, 2);
    return status;
}

ats_status vk_trial_ops(struct vk_trial *t, unsigned *wrong) {
    bool attention = true, experts = true, recurrent = true;
    fill(t);
    TRY(try_rope(t, &attention));
    TRY(try_attention(t, &attention));
    TRY(try_experts(t, &experts));
    TRY(try_conv(t, &recurrent));
    if (vk_has_wide_layout(vulkan_of(t->b))) TRY(try_delta(t, &recurrent));
    if (!attention) *wrong |= VERDICT_NO_ATTENTION;
    if (!experts) *wrong |= VERDICT_NO_EXPERTS;
    if (!recurrent) *wrong |= VERDICT_NO_RECURRENT;
    return ATS_OK;
}
