/* Conversions: bit-equal to the reference in every set. */
#include "data.h"

#include <math.h>
#include <string.h>

#include "backend/backend.h"

/* Rows whose blocks are random, zero, tiny, huge, one hot, or ties of the rounding. */
static float quantise_input(struct check *c, int block, int i) {
    switch (block % 8) {
    case 0:
        return 0;
    case 1:
        return i == 5 ? -3.0f : 0.0f;
    case 2:
        return check_random(c) * 0x1p-118f;
    case 3:
        return check_random(c) * 0x1p-130f;
    case 4:
        return check_random(c) * 0x1p120f;
    case 5:
        return i == 0 ? 127.0f : (float)(i % 16) + 0.5f;
    case 6:
        return i % 2 ? -1.0f : 1.0f;
    default:
        return check_random(c);
    }
}

static void quantise_shape(struct check *c, int n_cols, int n_tokens) {
    int begin = n_tokens > 3 ? 1 : 0, end = n_tokens > 3 ? n_tokens - 1 : n_tokens;
    check_case(c, "%d columns, %d tokens, [%d, %d)", n_cols, n_tokens, begin, end);
    int64_t stride = n_cols + 3;
    float *x = check_input(c, (size_t)((n_tokens - 1) * stride + n_cols) * sizeof *x);
    for (int t = 0; t < n_tokens; t++) {
        for (int i = 0; i < n_cols; i++)
            x[t * stride + i] = quantise_input(c, i / 32 + t, i % 32);
        if (t + 1 < n_tokens) memset(x + t * stride + n_cols, 0, 3 * sizeof *x);
    }
    check_seal(c);
    size_t n = (size_t)n_cols * (size_t)n_tokens;
    struct q8_rows rows[2];
    for (int i = 0; i < 2; i++) { /* frames and poison look after what must not be written */
        rows[i] = (struct q8_rows){(int8_t *)check_output(c, n / 4), check_output(c, n / 32),
                                   (int16_t *)(void *)check_output(c, n / 32), n_cols};
        const struct kernels *k = i ? c->ref : c->isa;
        k->quantise_q8(x, stride, begin, end, &rows[i]);
    }
    check_same(c, "the reference's q", rows[0].q, rows[1].q, n);
    check_same(c, "the reference's scale", rows[0].scale, rows[1].scale, n / 32 * sizeof(float));
    check_same(c, "the reference's sum16", rows[0].sum16, rows[1].sum16, n / 16 * 2);
    for (int t = begin; t < end; t++) {
        for (int i = 0; i < n_cols; i++) { /* each within half a step of its input */
            size_t at = (size_t)t * (size_t)n_cols + (size_t)i;
            double scale = (double)rows[0].scale[at / 32], got = scale * rows[0].q[at];
            double limit = scale * 0.50001 + 0x1p-119;
            if (!(fabs(got - (double)x[t * stride + i]) <= limit))
                check_fail(c, "token %d column %d is off by more than half a step", t, i);
        }
    }
    check_case_end(c);
}

static void store_shape(struct check *c, enum kv_type type, int head_dim, int repeat) {
    check_case(c, "head_dim %d, %d", head_dim, repeat);
    float *x = check_input(c, (size_t)head_dim * sizeof *x);
    for (int i = 0; i < head_dim; i++)
        x[i] = quantise_input(c, i / 32 + repeat, i % 32);
    check_seal(c);
    size_t bytes = kv_row_bytes(type, head_dim);
    float *out = check_output(c, (bytes + 3) / 4), *ref = check_output(c, (bytes + 3) / 4);
    c->isa->kv_store[type](x, out, head_dim);
    c->ref->kv_store[type](x, ref, head_dim);
    check_same(c, "the reference", out, ref, (bytes + 3) / 4 * 4);
    check_case_end(c);
}

static void dequant_shape(struct check *c, enum dtype type, int64_t n) {
    check_case(c, "%d elements", (int)n);
    void *blocks = check_input(c, (size_t)dtype_row_bytes(type, n));
    data_weights(c, DATA_RANDOM, type, blocks, n);
    check_seal(c);
    float *out = check_output(c, (size_t)n), *want = check_memory(c, (size_t)n * sizeof *want);
    c->isa->dequant[type](blocks, out, n);
    dtype_to_float(type, blocks, want, n);
    check_same(c, "the format's definition", out, want, (size_t)n * sizeof *out);
    check_case_end(c);
}

void check_convert(struct check *c) {
    static const char *const kv_names[KV_TYPE_COUNT] = {"f32", "f16", "q8_0"};
    const struct kernels *isa = c->isa, *below = c->below;
    if (check_kernel(c, !below || isa->quantise_q8 != below->quantise_q8, "quantise_q8")) {
        static const int cols[] = {32, 64, 96, 256, 576};
        for (size_t i = 0; i < COUNT_OF(cols); i++) {
            for (int n_tokens = 1; n_tokens < 10; n_tokens++)
                quantise_shape(c, cols[i], n_tokens);
        }
        check_kernel_end(c);
    }
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        bool own = !below || isa->kv_store[type] != below->kv_store[type];
        if (!check_kernel(c, own, "kv_store/%s", kv_names[type])) continue;
        static const int dims[] = {5, 8, 16, 24, 32, 33, 64, 96, 128, 256};
        for (size_t i = 0; i < COUNT_OF(dims); i++) {
            if (type == KV_Q8_0 && dims[i] % 32 != 0) continue;
            for (int repeat = 0; repeat < 8; repeat++)
                store_shape(c, (enum kv_type)type, dims[i], repeat);
        }
        check_kernel_end(c);
    }
    for (int type = 0; type < N_DTYPES_WEIGHT; type++) {
        bool own = !below || isa->dequant[type] != below->dequant[type];
        if (!check_kernel(c, own, "dequant/%s", dtype_name((enum dtype)type))) continue;
        int unit = dtype_info((enum dtype)type)->block_elements;
        for (int n = 1; n < 6; n++)
            dequant_shape(c, (enum dtype)type, (int64_t)n * unit);
        dequant_shape(c, (enum dtype)type, 1536);
        check_kernel_end(c);
    }
}
