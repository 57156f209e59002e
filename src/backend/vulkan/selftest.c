/*
 * Whether a device and its driver compute what they should: small products, a norm and an
 * activation against plain C, at their first use together; the verdict stands in the file of
 * cache.c. What is wrong with an optional variant is switched off, with a message; a device that is
 * wrong without them is refused. Operators of selftest_ops.c that are wrong stay on the CPU, with a
 * message. Runs on a second, short-lived opening of the device.
 */
#include "backend/vulkan/selftest.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/log.h"

enum { COLS = TRIAL_COLS, ROWS = 80, LINES = TRIAL_LINES };
#define EXCHANGE_BYTES ((int64_t)TRIAL_BUFFERS * LINES * COLS * 4)

/* Whole numbers, of which each 32 inputs hold a 127: 8 bits lose nothing, every order of additions
 * gives the same. */
static void fill(struct vk_trial *t) {
    const int block = dtype_info(DTYPE_Q8_0)->block_bytes;
    uint32_t state = 1;
    for (int i = 0; i < ROWS * COLS; i++) {
        state = state * 1664525 + 1013904223;
        int code = (int)(state >> 24) - 128;
        uint8_t *at = t->blocks + i / 32 * block;
        const uint16_t one = 0x3c00;
        memcpy(at, &one, sizeof one);
        at[2 + i % 32] = (uint8_t)code;
        t->values[i] = (float)code;
    }
    for (int i = 0; i < LINES * COLS; i++) {
        state = state * 1664525 + 1013904223;
        float x = (float)(int)(state >> 29) - 3;
        t->exchange[i] = i % 32 == 5 ? 127 : x;
        t->exchange[2 * LINES * COLS + i] = x / 2;
    }
}

ats_status vk_trial_run(struct vk_trial *t, const struct step *s, int n_lines, int position) {
    int32_t tokens[LINES] = {0}, positions[LINES], row = 0;
    const int32_t page = 0;
    const struct round_run one = {
        .n_tokens = n_lines, .position = position, .pages = {&page}, .state_in = STATE_NONE};
    const struct round round = {n_lines, tokens, positions, &one, 1, &row, 1};
    struct backend_segment *segment;
    for (int i = 0; i < n_lines; i++)
        positions[i] = position + i;
    for (int i = 0; i < LINES * COLS; i++)
        vk_trial_line(t, TRIAL_OUT, 0)[i] = NAN;
    TRY(t->b->fn->segment_build(t->b, s, 1, &segment));
    ats_status status = t->b->fn->submit(t->b, segment, &round, NULL, 0, ++t->value);
    if (status == ATS_OK) status = t->b->fn->wait(t->b, t->value);
    t->b->fn->segment_free(t->b, segment);
    return status;
}

static bool near_to(float got, double want) {
    return fabs((double)got - want) <= 1e-5 * (fabs(want) + 1e-3);
}

/* Sets *right to false if any output differs. */
static ats_status try_product(struct vk_trial *t, struct backend_weight *w, enum math math,
                              int n_lines, bool *right) {
    struct graph_op op = {.kind = OP_MATMUL, .p.matmul.math = math};
    struct step s = {
        .kind = STEP_OP, .op = &op, .n_in = 1, .end = ROWS, .in_end = COLS, .weight = w};
    s.in[0] = vk_trial_span(0);
    s.out = vk_trial_span(1);
    TRY(vk_trial_run(t, &s, n_lines, 0));
    for (int i = 0; i < n_lines * ROWS; i++) {
        int line = i / ROWS, row = i % ROWS;
        double want = 0;
        for (int c = 0; c < COLS; c++)
            want += (double)t->values[row * COLS + c] * (double)t->exchange[line * COLS + c];
        *right &= near_to(t->exchange[(LINES + line) * COLS + row], want);
    }
    return ATS_OK;
}

static ats_status try_light(struct vk_trial *t, bool *right) {
    struct graph_op norm = {.kind = OP_NORM, .p.norm = {.group = COLS, .eps = 1e-5F}};
    struct graph_op gated = {.kind = OP_GATED, .p.gated.act = ACT_SILU};
    struct step s = {.kind = STEP_OP, .op = &norm, .n_in = 1, .end = COLS};
    const float *x = t->exchange, *out = x + LINES * COLS, *up = out + LINES * COLS;
    s.in[0] = vk_trial_span(0);
    s.in[1] = vk_trial_span(2);
    s.out = vk_trial_span(1);
    TRY(vk_trial_run(t, &s, LINES, 0));
    for (int i = 0; i < LINES * COLS; i++) {
        double sum = 0;
        for (int c = 0; c < COLS; c++)
            sum += (double)x[i / COLS * COLS + c] * (double)x[i / COLS * COLS + c];
        *right &= near_to(out[i], (double)x[i] / sqrt(sum / COLS + 1e-5));
    }
    s.op = &gated;
    s.n_in = 2;
    TRY(vk_trial_run(t, &s, LINES, 0));
    for (int i = 0; i < LINES * COLS; i++)
        *right &= near_to(out[i], (double)x[i] / (1 + exp(-(double)x[i])) * (double)up[i]);
    return ATS_OK;
}

static ats_status try_all(struct vk_trial *t, bool *right, unsigned *wrong) {
    static const int lines[] = {1, 9, LINES}; /* one of each size of round */
    struct backend_limits l = {.n_tokens = LINES,
                               .n_rows = 1,
                               .n_ctx = 64,
                               .local_bytes = 256,
                               .exchange = t->exchange,
                               .exchange_bytes = EXCHANGE_BYTES,
                               .max_cols = COLS};
    struct weight_source source = {.name = "a trial",
                                   .dtype = DTYPE_Q8_0,
                                   .n_rows = ROWS,
                                   .n_cols = COLS,
                                   .row_bytes = dtype_row_bytes(DTYPE_Q8_0, COLS),
                                   .data = t->blocks};
    struct backend_weight *packed, *plain = NULL;
    vk_trial_limits(&l);
    TRY(t->b->fn->reserve(t->b, &l));
    TRY(t->b->fn->weight_load(t->b, &source, &packed));
    source.dtype = DTYPE_F32;
    source.row_bytes = COLS * 4;
    source.data = (const uint8_t *)t->values;
    ats_status status = t->b->fn->weight_load(t->b, &source, &plain);
    for (int i = 0; status == ATS_OK && i < 3; i++) {
        status = try_product(t, packed, MATH_Q8, lines[i], right);
        if (status == ATS_OK) status = try_product(t, packed, MATH_F32, lines[i], right);
        if (status == ATS_OK) status = try_product(t, plain, MATH_F32, lines[i], right);
    }
    if (status == ATS_OK) status = try_light(t, right);
    if (status == ATS_OK && *right) status = vk_trial_ops(t, wrong);
    t->b->fn->weight_free(t->b, packed);
    if (plain) t->b->fn->weight_free(t->b, plain);
    return status;
}

/* Is it right without what `off` names, and which operators are not? Tests say with
 * ATSINFER_VK_WRONG what is wrong. */
static ats_status try_without(const struct vulkan *v, unsigned off, bool *right, unsigned *ops) {
    const unsigned said = (unsigned)vk_switch("ATSINFER_VK_WRONG");
    struct vk_trial t = {0};
    void *exchange;
    *right = !(said & VERDICT_TESTED || said & ~off & ~(unsigned)VERDICT_OPS);
    *ops = said & VERDICT_OPS;
    if (!*right) return ATS_OK;
    TRY(pages_alloc((size_t)(EXCHANGE_BYTES), &exchange));
    t.exchange = exchange;
    t.blocks = xcalloc(ROWS, (size_t)dtype_row_bytes(DTYPE_Q8_0, COLS));
    t.values = xcalloc(ROWS * COLS, sizeof *t.values);
    fill(&t);
    ats_status status = vk_open_trial(v->name, off, &t.b);
    if (status == ATS_OK) status = try_all(&t, right, ops);
    backend_close(t.b);
    free(t.blocks);
    free(t.values);
    pages_free(exchange, (size_t)(EXCHANGE_BYTES));
    return status;
}

static void say_ops(const struct vulkan *v, unsigned wrong) {
    static const char *const names[] = {"attention", "routed experts", "recurrent operators"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (wrong & (unsigned)VERDICT_NO_ATTENTION << i)
            log_msg(LOG_WARN, "%s (%s) computes %s wrongly: the CPU does that", v->name,
                    v->gpu.properties.deviceName, names[i]);
}

ats_status vk_self_test(struct vulkan *v) {
    static const struct {
        unsigned off;
        const char *what;
    } tries[] = {{0, NULL},
                 {VERDICT_NO_IDOT, "integer dot products"},
                 {VERDICT_NO_TILES, "large tiles"},
                 {VERDICT_NO_IDOT | VERDICT_NO_TILES, "integer dot products and large tiles"}};
    if (v->verdict & VERDICT_TESTED) return ATS_OK;
    for (size_t i = 0; i < COUNT_OF(tries); i++) {
        bool right;
        unsigned ops;
        TRY(try_without(v, tries[i].off, &right, &ops));
        if (!right) continue;
        v->verdict = VERDICT_TESTED | tries[i].off | ops;
        say_ops(v, ops);
        if (tries[i].what)
            log_msg(LOG_WARN, "%s (%s) computes wrongly with %s: they are off", v->name,
                    v->gpu.properties.deviceName, tries[i].what);
        return ATS_OK;
    }
    return fail(ATS_UNSUPPORTED, "%s (%s) computes wrongly: its driver cannot be used", v->name,
                v->gpu.properties.deviceName);
}
