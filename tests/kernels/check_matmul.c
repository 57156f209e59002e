/* Products of both classes: oracle, reference, exact integers, splits over rows and tokens. */
#include "data.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const int n_rows_tried[] = {1, 2, 3, 5, 8, 15, 16, 17, 33};
static const int n_tokens_tried[] = {1, 2, 3, 4, 5, 7, 8, 9, 12, 13, 16, 32, 33};

/* One product: everything a kernel of either class takes. */
struct product {
    enum dtype type;
    bool q8;
    int n_rows, n_cols, n_tokens;
    size_t row_bytes;
    const uint8_t *w;
    struct q8_rows q; /* class q8 */
    const float *x;   /* class f32 */
    int64_t x_stride, out_stride;
};

static void run(const struct kernels *k, const struct product *p, int row, int n_rows, int token,
                int n_tokens, float *out, void *scratch) {
    const uint8_t *w = p->w + (size_t)row * p->row_bytes;
    float *to = out + token * p->out_stride + row;
    if (p->q8) {
        int64_t at = (int64_t)token * p->n_cols;
        struct q8_rows q = {p->q.q + at, p->q.scale + at / 32, p->q.sum16 + at / 16, p->n_cols};
        k->matmul_q8[p->type](w, p->row_bytes, n_rows, p->n_cols, &q, n_tokens, to, p->out_stride,
                              scratch);
    } else {
        k->matmul_f32[p->type](w, p->row_bytes, n_rows, p->n_cols, p->x + token * p->x_stride,
                               p->x_stride, n_tokens, to, p->out_stride, scratch);
    }
}

static struct product product_new(struct check *c, enum data data, enum dtype type, bool q8,
                                  int n_rows, int n_cols, int n_tokens) {
    size_t tight = (size_t)dtype_row_bytes(type, n_cols);
    size_t padding =
        (n_rows + n_cols / 32) % 3 == 0 ? 2 * (size_t)dtype_info(type)->block_bytes : 0;
    struct product p = {.type = type,
                        .q8 = q8,
                        .n_rows = n_rows,
                        .n_cols = n_cols,
                        .n_tokens = n_tokens,
                        .row_bytes = tight + padding,
                        .out_stride = n_rows + 3};
    uint8_t *w = check_input(c, (size_t)(n_rows - 1) * p.row_bytes + tight);
    for (int r = 0; r < n_rows; r++)
        data_weights(c, data, type, w + (size_t)r * p.row_bytes, n_cols);
    p.w = w;
    if (q8) {
        p.q = data_q8_rows(c, data, n_cols, n_tokens);
    } else {
        p.x_stride = n_cols + (n_tokens % 2 ? 0 : 5);
        size_t n = (size_t)(n_tokens - 1) * (size_t)p.x_stride + (size_t)n_cols;
        float *x = check_input(c, n * sizeof(float));
        data_floats(c, data, x, n);
        p.x = x;
    }
    check_seal(c);
    return p;
}

/* want (n_tokens, out_stride), and the sum of |w x| beside it. */
static void oracle(struct check *c, const struct product *p, double *want, double *magnitude) {
    float *row = check_memory(c, (size_t)p->n_cols * sizeof(float));
    for (int r = 0; r < p->n_rows; r++) {
        dtype_to_float(p->type, p->w + (size_t)r * p->row_bytes, row, p->n_cols);
        for (int t = 0; t < p->n_tokens; t++) {
            double sum = 0, sum_abs = 0;
            for (int i = 0; i < p->n_cols; i++) {
                int64_t at = (int64_t)t * p->n_cols + i;
                double x = p->q8 ? (double)p->q.scale[at / 32] * p->q.q[at]
                                 : (double)p->x[t * p->x_stride + i];
                sum += (double)row[i] * x;
                sum_abs += fabs((double)row[i] * x);
            }
            want[t * p->out_stride + r] = sum;
            magnitude[t * p->out_stride + r] = sum_abs;
        }
    }
}

/* Outputs against both judges; the columns between rows of out must stay poison. */
static void judge(struct check *c, const struct product *p, const float *out, const float *ref,
                  const double *want, const double *magnitude, bool exact) {
    for (int t = 0; t < p->n_tokens; t++) {
        for (int r = 0; r < (int)p->out_stride; r++) {
            size_t i = (size_t)(t * p->out_stride + r);
            if (r >= p->n_rows) {
                if (!check_is_poison(out[i])) check_fail(c, "token %d: wrote past its rows", t);
                continue;
            }
            double limit = 4 * (double)FLT_EPSILON * sqrt(p->n_cols) * magnitude[i];
            if (exact) limit = 0;
            double by_ref = (double)ref[i];
            check_near(c, "the oracle", out + i, want + i, &limit, 1);
            check_near(c, "the reference", out + i, &by_ref, &limit, 1);
        }
    }
}

static void one_shape(struct check *c, enum data data, enum dtype type, bool q8, int n_rows,
                      int n_cols, int n_tokens) {
    check_case(c, "%s %d x %d, %d tokens", data_name(data), n_rows, n_cols, n_tokens);
    struct product p = product_new(c, data, type, q8, n_rows, n_cols, n_tokens);
    size_t n = (size_t)n_tokens * (size_t)p.out_stride;
    float *out = check_output(c, n), *ref = check_memory(c, n * sizeof *ref);
    void *scratch = check_memory(c, matmul_scratch_bytes(n_cols));
    double *want = check_memory(c, n * sizeof *want);
    double *magnitude = check_memory(c, n * sizeof *magnitude);
    oracle(c, &p, want, magnitude);
    run(c->ref, &p, 0, n_rows, 0, n_tokens, ref, scratch);
    run(c->isa, &p, 0, n_rows, 0, n_tokens, out, scratch);
    judge(c, &p, out, ref, want, magnitude, q8 && data != DATA_RANDOM);
    check_case_end(c);
}

/* The value of an output depends on its row and its token only: any cut gives the same bits. */
static void splits(struct check *c, enum dtype type, bool q8, int n_rows, int n_cols,
                   int n_tokens) {
    static const struct cut {
        int n_parts, chunk;
    } cuts[] = {{1, 1}, {2, 1}, {3, 2}, {7, 3}, {2, 4}, {3, 5}, {7, 8}, {1, 13}};
    check_case(c, "split %d x %d, %d tokens", n_rows, n_cols, n_tokens);
    struct product p = product_new(c, DATA_RANDOM, type, q8, n_rows, n_cols, n_tokens);
    size_t n = (size_t)n_tokens * (size_t)p.out_stride;
    float *whole = check_output(c, n);
    void *scratch = check_memory(c, matmul_scratch_bytes(n_cols));
    run(c->isa, &p, 0, n_rows, 0, n_tokens, whole, scratch);
    for (const struct cut *u = cuts; u < cuts + COUNT_OF(cuts); u++) {
        float *cut = check_output(c, n);
        for (int t = 0; t < n_tokens; t += u->chunk) {
            for (int s = 0; s < u->n_parts; s++) {
                int begin = n_rows * s / u->n_parts, end = n_rows * (s + 1) / u->n_parts;
                run(c->isa, &p, begin, end - begin, t, min_int(u->chunk, n_tokens - t), cut,
                    scratch);
            }
        }
        char judge[64];
        snprintf(judge, sizeof judge, "the whole (%d parts, chunks of %d)", u->n_parts, u->chunk);
        check_same(c, judge, cut, whole, n * sizeof *cut);
    }
    check_case_end(c);
}

static void one_type(struct check *c, enum dtype type, bool q8) {
    int unit = dtype_info(type)->block_elements;
    static const int small[] = {32, 64, 96, 160, 576}, super[] = {256, 512, 768},
                     plain[] = {1, 7, 31, 32, 33, 100, 576};
    const int *cols = unit == 32 ? small : unit == 256 ? super : plain;
    size_t n_cols = unit == 32 ? COUNT_OF(small) : unit == 256 ? COUNT_OF(super) : COUNT_OF(plain);
    for (size_t i = 0; i < n_cols; i++) {
        for (size_t r = 0; r < COUNT_OF(n_rows_tried); r++) {
            for (size_t t = 0; t < COUNT_OF(n_tokens_tried); t += TEST_SANITIZED ? 2 : 1)
                one_shape(c, DATA_RANDOM, type, q8, n_rows_tried[r], cols[i], n_tokens_tried[t]);
        }
    }
    for (int data = DATA_ZERO; data < DATA_COUNT; data++) {
        for (int i = 0; i < 4; i++) {
            one_shape(c, (enum data)data, type, q8, 17, unit == 1 ? 32 : unit, 1 + 8 * (i % 2));
            one_shape(c, (enum data)data, type, q8, 16, unit == 1 ? 64 : unit, 1 + 8 * (i % 2));
        }
    }
    one_shape(c, DATA_RANDOM, type, q8, 19, max_int(unit, 32), 150); /* several token chunks */
    one_shape(c, DATA_RANDOM, type, q8, 64, unit == 256 ? 1536 : 1536, 3);
    splits(c, type, q8, 37, max_int(unit, 96), 27);
    splits(c, type, q8, 5, max_int(unit, 32), 140);
}

void check_matmul_q8(struct check *c) {
    for (int type = 0; type < N_DTYPES_WEIGHT; type++) {
        if (!c->isa->matmul_q8[type]) continue;
        bool own = !c->below || c->isa->matmul_q8[type] != c->below->matmul_q8[type];
        if (!check_kernel(c, own, "matmul_q8/%s", dtype_name((enum dtype)type))) continue;
        one_type(c, (enum dtype)type, true);
        check_kernel_end(c);
    }
}

void check_matmul_f32(struct check *c) {
    for (int type = 0; type < N_DTYPES_WEIGHT; type++) {
        bool own = !c->below || c->isa->matmul_f32[type] != c->below->matmul_f32[type];
        if (!check_kernel(c, own, "matmul_f32/%s", dtype_name((enum dtype)type))) continue;
        one_type(c, (enum dtype)type, false);
        check_kernel_end(c);
    }
}
