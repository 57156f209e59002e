/* Products of class bf16: oracle, reference, and the same bits raw, packed and cut. */
#include "data.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/packed.h"

struct product {
    int n_rows, n_cols, n_tokens;
    size_t row_bytes;
    uint8_t *raw, *packed;
    uint16_t *x;
    int64_t x_stride, out_stride;
};

static struct product product_new(struct check *c, enum data data, int n_rows, int n_cols,
                                  int n_tokens, float scale) {
    struct product p = {.n_rows = n_rows,
                        .n_cols = n_cols,
                        .n_tokens = n_tokens,
                        .row_bytes = (size_t)n_cols * sizeof(uint16_t),
                        .x_stride = (int64_t)round_up((size_t)n_cols, 32),
                        .out_stride = n_rows + 3};
    p.raw = check_input(c, (size_t)n_rows * p.row_bytes);
    p.packed = check_input(c, pack_bytes(DTYPE_BF16, n_rows, n_cols));
    p.x = check_input(c, (size_t)(n_tokens * p.x_stride) * sizeof *p.x);
    data_weights(c, data, DTYPE_BF16, p.raw, (int64_t)n_rows * n_cols);
    pack_rows(DTYPE_BF16, p.raw, p.row_bytes, n_rows, n_cols, p.packed, 0, pack_n_groups(n_rows));
    float *row = check_memory(c, (size_t)n_cols * sizeof *row);
    for (int t = 0; t < n_tokens; t++) {
        data_floats(c, data, row, (size_t)n_cols);
        for (int i = 0; i < n_cols; i++)
            row[i] *= scale;
        c->ref->round_bf16(row, n_cols, p.x + t * p.x_stride);
    }
    check_seal(c);
    return p;
}

static void run(const struct kernels *k, const struct product *p, bool packed, int token,
                int n_tokens, float *out, void *scratch) {
    const uint16_t *x = p->x + token * p->x_stride;
    float *to = out + token * p->out_stride;
    if (packed)
        k->matmul_packed_bf16(p->packed, 0, pack_n_groups(p->n_rows), p->n_rows, p->n_cols, x,
                              p->x_stride, n_tokens, to, p->out_stride, scratch);
    else
        k->matmul_bf16(p->raw, p->row_bytes, p->n_rows, p->n_cols, x, p->x_stride, n_tokens, to,
                       p->out_stride, scratch);
}

/* AMX has an order of its own for more than few tokens (kernels.h). */
static bool is_tiled(const struct check *c, int n_tokens) {
    return strcmp(c->isa_name, cpu_isa_name(ISA_AMXBF16)) == 0 && n_tokens > BF16_FEW;
}

/* One output in that order. */
static float tiled_dot(const float *w, const uint16_t *x, int n_cols) {
    float sum = 0;
    for (int i = 0; i < n_cols; i += 32) {
        float part[2] = {0, 0};
        for (int j = i; j < min_int(i + 32, n_cols); j++)
            part[j % 2] = fmaf(w[j], bf16_to_float(x[j]), part[j % 2]);
        sum += part[0] + part[1];
    }
    return sum;
}

/* Against the oracle in double, and against the reference (tiles: the same in their order): its
 * bits if nothing is tiny. */
static void judge(struct check *c, const struct product *p, const float *out, const float *ref,
                  bool tiny) {
    const bool tiled = is_tiled(c, p->n_tokens);
    float *row = check_memory(c, (size_t)p->n_cols * sizeof *row);
    for (int r = 0; r < p->n_rows; r++) {
        dtype_to_float(DTYPE_BF16, p->raw + (size_t)r * p->row_bytes, row, p->n_cols);
        for (int t = 0; t < p->n_tokens; t++) {
            double sum = 0, sum_abs = 0;
            for (int i = 0; i < p->n_cols; i++) {
                double product = (double)row[i] * (double)bf16_to_float(p->x[t * p->x_stride + i]);
                sum += product;
                sum_abs += fabs(product);
            }
            const int64_t at = t * p->out_stride + r;
            double limit = 4 * (double)FLT_EPSILON * sqrt(p->n_cols) * sum_abs,
                   by_ref = (double)ref[at];
            if (tiled) by_ref = (double)tiled_dot(row, p->x + t * p->x_stride, p->n_cols);
            limit += 4 * p->n_cols * (double)FLT_MIN; /* what is taken for 0 */
            check_near(c, "the oracle", out + at, &sum, &limit, 1);
            limit = tiny ? 4 * p->n_cols * (double)FLT_MIN : 0;
            check_near(c, "the reference", out + at, &by_ref, &limit, 1);
        }
    }
}

static void one_shape(struct check *c, enum data data, int n_rows, int n_cols, int n_tokens,
                      float scale) {
    check_case(c, "%s %d x %d, %d tokens, inputs %g", data_name(data), n_rows, n_cols, n_tokens,
               (double)scale);
    struct product p = product_new(c, data, n_rows, n_cols, n_tokens, scale);
    size_t n = (size_t)n_tokens * (size_t)p.out_stride;
    float *out = check_output(c, n), *cut = check_output(c, n), *packed = check_output(c, n);
    float *ref = check_memory(c, n * sizeof *ref);
    void *scratch = check_memory(c, matmul_scratch_bytes(n_cols));
    run(c->ref, &p, false, 0, n_tokens, ref, scratch);
    run(c->isa, &p, false, 0, n_tokens, out, scratch);
    run(c->isa, &p, true, 0, n_tokens, packed, scratch);
    const bool tiled = is_tiled(c, n_tokens); /* then no piece is of few tokens */
    for (int t = 0, piece; t < n_tokens; t += piece) {
        const int left = n_tokens - t;
        piece = tiled ? BF16_FEW + 1 : min_int(3, left);
        if (left < 2 * piece && tiled) piece = left;
        run(c->isa, &p, t % 2, t, piece, cut, scratch);
    }
    judge(c, &p, out, ref, scale < 1);
    check_same(c, "the raw product", packed, out, n * sizeof *out);
    check_same(c, "the whole", cut, out, n * sizeof *out);
    check_case_end(c);
}

static void rounding(struct check *c) {
    check_case(c, "rounding");
    float *x = check_input(c, 37 * sizeof *x);
    for (int i = 0; i < 37; i++)
        x[i] = check_random(c) * (i % 3 ? 1 : 0x1p-130f);
    uint32_t tie = 0x3f808000;
    memcpy(x, &tie, sizeof tie); /* to even: down */
    check_seal(c);
    uint16_t out[64], want[64];
    memset(out, 0xff, sizeof out);
    c->isa->round_bf16(x, 37, out);
    for (int i = 0; i < 64; i++)
        want[i] = i < 37 ? bf16_from_float(x[i]) : 0;
    if (out[0] != 0x3f80) check_fail(c, "a tie went up");
    check_same(c, "the scalar rounding", out, want, sizeof out);
    check_case_end(c);
}

void check_bf16(struct check *c) {
    const struct kernels *isa = c->isa, *below = c->below;
    if (!check_kernel(c, !below || isa->matmul_bf16 != below->matmul_bf16, "matmul_bf16")) return;
    static const int n_rows[] = {1, 15, 16, 17, 33, 70};
    static const int n_cols[] = {1, 2, 31, 32, 33, 100, 576, 1300};
    static const int n_tokens[] = {1, 2, 3, 5, 7, 8, 9, 17, 33};
    for (size_t r = 0; r < COUNT_OF(n_rows); r++) {
        for (size_t i = 0; i < COUNT_OF(n_cols); i++) {
            for (size_t t = 0; t < COUNT_OF(n_tokens); t++)
                one_shape(c, DATA_RANDOM, n_rows[r], n_cols[i], n_tokens[t], 1);
        }
    }
    for (int data = DATA_ZERO; data < DATA_COUNT; data++)
        one_shape(c, (enum data)data, 33, 96, 9, 1);
    one_shape(c, DATA_RANDOM, 19, 64, 530, 1); /* several chunks of tokens */
    one_shape(c, DATA_RANDOM, 33, 96, 9, 0x1p-124f);
    rounding(c);
    check_kernel_end(c);
}
