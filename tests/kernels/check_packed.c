/* Products over the packed layout: bit-equal to those of the raw blocks by the same table, whatever
 * the range of groups and the number of tokens. (The raw ones have their own judges.) */
#include "data.h"

#include <stdio.h>
#include <string.h>

#include "backend/packed.h"

/* A weight both raw and packed, activations of either class. */
struct pair {
    enum dtype type;
    bool q8;
    int n_rows, n_cols, n_tokens;
    size_t row_bytes;
    const uint8_t *raw, *packed;
    struct q8_rows q;
    const float *x;
    int64_t x_stride, out_stride;
};

static struct pair pair_new(struct check *c, enum data data, enum dtype type, bool q8, int n_rows,
                            int n_cols, int n_tokens) {
    struct pair p = {.type = type,
                     .q8 = q8,
                     .n_rows = n_rows,
                     .n_cols = n_cols,
                     .n_tokens = n_tokens,
                     .row_bytes = (size_t)dtype_row_bytes(type, n_cols),
                     .x_stride = n_cols + (n_tokens % 2 ? 0 : 5),
                     .out_stride = n_rows + 3};
    uint8_t *raw = check_input(c, (size_t)n_rows * p.row_bytes);
    uint8_t *packed = check_input(c, pack_bytes(type, n_rows, n_cols));
    data_weights(c, data, type, raw, (int64_t)n_rows * n_cols);
    pack_rows(type, raw, p.row_bytes, n_rows, n_cols, packed, 0, pack_n_groups(n_rows));
    p.raw = raw;
    p.packed = packed;
    if (q8) {
        p.q = data_q8_rows(c, data, n_cols, n_tokens);
    } else {
        size_t n = (size_t)(n_tokens - 1) * (size_t)p.x_stride + (size_t)n_cols;
        float *x = check_input(c, n * sizeof(float));
        data_floats(c, data, x, n);
        p.x = x;
    }
    check_seal(c);
    return p;
}

static void run_raw(const struct kernels *k, const struct pair *p, float *out, void *scratch) {
    if (p->q8)
        k->matmul_q8[p->type](p->raw, p->row_bytes, p->n_rows, p->n_cols, &p->q, p->n_tokens, out,
                              p->out_stride, scratch);
    else
        k->matmul_f32[p->type](p->raw, p->row_bytes, p->n_rows, p->n_cols, p->x, p->x_stride,
                               p->n_tokens, out, p->out_stride, scratch);
}

/* Groups [begin, end) of some tokens; out: of all rows and tokens. What comes then is a hint: the
 * matrix itself, or nothing. */
static void run_packed(const struct kernels *k, const struct pair *p, int begin, int end, int token,
                       int n_tokens, float *out, void *scratch) {
    float *to = out + token * p->out_stride + begin * PACK_ROWS;
    if (p->q8) {
        int64_t at = (int64_t)token * p->n_cols;
        struct q8_rows q = {p->q.q + at, p->q.scale + at / 32, p->q.sum16 + at / 16, p->n_cols};
        k->matmul_packed_q8[p->type](p->packed, begin, end, p->n_rows, p->n_cols, &q, n_tokens, to,
                                     p->out_stride, begin > 0 ? p->packed : NULL, scratch);
    } else {
        k->matmul_packed_f32[p->type](p->packed, begin, end, p->n_rows, p->n_cols,
                                      p->x + token * p->x_stride, p->x_stride, n_tokens, to,
                                      p->out_stride, scratch);
    }
}

static void one_shape(struct check *c, enum data data, enum dtype type, bool q8, int n_rows,
                      int n_cols, int n_tokens) {
    check_case(c, "%s %d x %d, %d tokens", data_name(data), n_rows, n_cols, n_tokens);
    struct pair p = pair_new(c, data, type, q8, n_rows, n_cols, n_tokens);
    size_t n = (size_t)n_tokens * (size_t)p.out_stride;
    float *out = check_output(c, n), *want = check_output(c, n);
    void *scratch = check_memory(c, matmul_scratch_bytes(n_cols));
    run_raw(c->isa, &p, want, scratch);
    run_packed(c->isa, &p, 0, pack_n_groups(n_rows), 0, n_tokens, out, scratch);
    /* the columns between the rows are poison in both */
    check_same(c, "the raw blocks' product", out, want, n * sizeof *out);
    check_case_end(c);
}

/* Groups in ranges of some, tokens in runs of others. */
static void splits(struct check *c, enum dtype type, bool q8, int n_rows, int n_cols,
                   int n_tokens) {
    static const struct cut {
        int n_parts, chunk;
    } cuts[] = {{1, 1}, {7, 1}, {7, 3}, {3, 5}, {2, 8}, {3, 129}};
    check_case(c, "split %d x %d, %d tokens", n_rows, n_cols, n_tokens);
    struct pair p = pair_new(c, DATA_RANDOM, type, q8, n_rows, n_cols, n_tokens);
    size_t n = (size_t)n_tokens * (size_t)p.out_stride;
    float *want = check_output(c, n);
    void *scratch = check_memory(c, matmul_scratch_bytes(n_cols));
    run_raw(c->isa, &p, want, scratch);
    const int n_groups = pack_n_groups(n_rows);
    for (const struct cut *u = cuts; u < cuts + COUNT_OF(cuts); u++) {
        float *out = check_output(c, n);
        for (int t = 0; t < n_tokens; t += u->chunk) {
            for (int s = 0; s < u->n_parts; s++)
                run_packed(c->isa, &p, n_groups * s / u->n_parts, n_groups * (s + 1) / u->n_parts,
                           t, min_int(u->chunk, n_tokens - t), out, scratch);
        }
        char judge[80];
        snprintf(judge, sizeof judge, "the raw blocks' product (%d parts, chunks of %d)",
                 u->n_parts, u->chunk);
        check_same(c, judge, out, want, n * sizeof *out);
    }
    check_case_end(c);
}

static void one_type(struct check *c, enum dtype type, bool q8) {
    const int unit = pack_layout(type).unit_cols, some = unit == 32 ? 96 : 512;
    static const int n_rows[] = {1, 2, 7, 15, 16, 17, 40};
    for (int n_tokens = 1; n_tokens <= 33; n_tokens++) {
        if (TEST_SANITIZED && n_tokens > 9 && n_tokens % 8 > 1) continue;
        for (size_t r = 0; r < COUNT_OF(n_rows); r++)
            one_shape(c, DATA_RANDOM, type, q8, n_rows[r], some, n_tokens);
    }
    static const int many[] = {47, 48, 49, 63, 64, 65, 100, 127, 128, 129, 161, 600};
    for (size_t i = 0; i < COUNT_OF(many); i++) {
        one_shape(c, DATA_RANDOM, type, q8, 17, some, many[i]);
        one_shape(c, DATA_RANDOM, type, q8, 40, some, many[i]);
    }
    for (int data = DATA_ZERO; data < DATA_COUNT; data++) {
        for (int n_tokens = 1; n_tokens < 20; n_tokens += 4)
            one_shape(c, (enum data)data, type, q8, 17, 2 * unit, n_tokens);
    }
    for (int n_tokens = 1; n_tokens < 20 && !dtype_info(type)->quantised; n_tokens += 3) {
        for (int n_cols = 1; n_cols < 300; n_cols = 2 * n_cols + n_tokens)
            one_shape(c, DATA_RANDOM, type, q8, 17 + 32 * (n_cols % 2), n_cols, n_tokens);
    }
    one_shape(c, DATA_RANDOM, type, q8, 17, unit, 1);
    one_shape(c, DATA_RANDOM, type, q8, 17, unit, 3);
    one_shape(c, DATA_RANDOM, type, q8, 33, 2048 + 768, 1); /* several panels */
    one_shape(c, DATA_RANDOM, type, q8, 33, 2048 + 768, 2);
    one_shape(c, DATA_RANDOM, type, q8, 19, 2048 + 768, 141); /* several passes over both */
    one_shape(c, DATA_RANDOM, type, q8, 3, 1536, 400);
    splits(c, type, q8, 101, some, 150);
}

void check_packed(struct check *c) {
    for (int q8 = 1; q8 >= 0; q8--) {
        for (int type = 0; type < N_DTYPES_WEIGHT; type++) {
            if (q8 && !c->isa->matmul_packed_q8[type]) continue;
            bool own = !c->below ||
                       (q8 ? c->isa->matmul_packed_q8[type] != c->below->matmul_packed_q8[type]
                           : c->isa->matmul_packed_f32[type] != c->below->matmul_packed_f32[type]);
            if (!check_kernel(c, own, "matmul_packed_%s/%s", q8 ? "q8" : "f32",
                              dtype_name((enum dtype)type)))
                continue;
            one_type(c, (enum dtype)type, q8);
            check_kernel_end(c);
        }
    }
}
