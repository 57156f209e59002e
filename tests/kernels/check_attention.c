/* Scores against keys and sums over values, for each type of the cache. */
#include "data.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "backend/kv_layout.h"
#include "base/half.h"

static const char *const kv_names[KV_TYPE_COUNT] = {"f32", "f16", "q8_0"};
static const int head_dims[] = {8, 16, 24, 32, 40, 64, 80, 96, 128, 256, 320, 5, 33};
static const int n_keys_tried[] = {1, 3, 15, 16, 17, 64};
static const int n_q_tried[] = {1, 2, 3, 4, 5, 8, 9, 27};

static float kv_element(enum kv_type type, const void *row, int i) {
    if (type == KV_F32) return ((const float *)row)[i];
    if (type == KV_F16) return half_to_float(((const uint16_t *)row)[i]);
    float block[QK_SMALL];
    dtype_to_float(DTYPE_Q8_0, (const struct block_q8_0 *)row + i / QK_SMALL, block, QK_SMALL);
    return block[i % QK_SMALL];
}

/* n_keys rows in fenced memory, row_bytes apart (a little padding now and then). */
static const uint8_t *kv_rows(struct check *c, enum kv_type type, int head_dim, int n_keys,
                              size_t *row_bytes) {
    size_t tight = kv_row_bytes(type, head_dim);
    *row_bytes = tight + (n_keys % 2 ? 0 : 8);
    uint8_t *rows = check_input(c, (size_t)(n_keys - 1) * *row_bytes + tight);
    float *x = check_memory(c, (size_t)head_dim * sizeof *x);
    for (int i = 0; i < n_keys; i++) {
        data_floats(c, DATA_RANDOM, x, (size_t)head_dim);
        c->ref->kv_store[type](x, rows + (size_t)i * *row_bytes, head_dim);
    }
    return rows;
}

/* The keys of a page up to the group of the last: n_keys positions, the rest is noise that must not
 * matter (not-a-number, in all types). rows: (n_keys) as floats. */
static const uint8_t *kv_keys(struct check *c, enum kv_type type, int head_dim, int n_keys,
                              float *rows) {
    size_t groups = (size_t)(n_keys + KV_KEY_GROUP - 1) / KV_KEY_GROUP;
    size_t bytes = groups * KV_KEY_GROUP * kv_row_bytes(type, head_dim);
    uint8_t *keys = check_input(c, bytes);
    memset(keys, 0xff, bytes);
    float *x = check_memory(c, (size_t)head_dim * sizeof *x);
    void *row = check_memory(c, kv_row_bytes(type, head_dim));
    for (int i = 0; i < n_keys; i++, rows += head_dim) {
        data_floats(c, DATA_RANDOM, x, (size_t)head_dim);
        c->ref->kv_store[type](x, row, head_dim);
        kv_key_put(type, head_dim, row, keys, i);
        for (int d = 0; d < head_dim; d++)
            rows[d] = kv_element(type, row, d);
    }
    return keys;
}

static const float *float_rows(struct check *c, size_t n) {
    float *x = check_input(c, n * sizeof *x);
    data_floats(c, DATA_RANDOM, x, n);
    return x;
}

static void scores_shape(struct check *c, enum kv_type type, int head_dim, int n_keys, int n_q) {
    check_case(c, "head_dim %d, %d keys, %d queries", head_dim, n_keys, n_q);
    float *rows = check_memory(c, (size_t)(n_keys * head_dim) * sizeof *rows);
    const uint8_t *k = kv_keys(c, type, head_dim, n_keys, rows);
    int q_stride = head_dim + 3, stride = n_keys + 2;
    const float *q = float_rows(c, (size_t)((n_q - 1) * q_stride + head_dim));
    check_seal(c);
    size_t n = (size_t)(n_q * stride);
    float *out = check_output(c, n), *single = check_output(c, n), *ref = check_output(c, n);
    float scale = 0.125f;
    c->isa->attn_scores[type](q, q_stride, n_q, k, n_keys, head_dim, scale, out, stride, NULL);
    c->ref->attn_scores[type](q, q_stride, n_q, k, n_keys, head_dim, scale, ref, stride, NULL);
    for (int j = 0; j < n_q; j++) {
        /* one query at a time, against fewer keys first: what is there may not touch the rest */
        for (int some = 1 + j % n_keys; some; some = some == n_keys ? 0 : n_keys)
            c->isa->attn_scores[type](q + j * q_stride, q_stride, 1, k, some, head_dim, scale,
                                      single + j * stride, stride, k);
        for (int i = 0; i < n_keys; i++) {
            double want = 0, magnitude = 0;
            for (int d = 0; d < head_dim; d++) {
                double term = (double)q[j * q_stride + d] * (double)rows[i * head_dim + d];
                want += term, magnitude += fabs(term);
            }
            want *= (double)scale, magnitude *= (double)scale;
            double limit = 4 * (double)FLT_EPSILON * sqrt(head_dim) * magnitude;
            size_t at = (size_t)(j * stride + i);
            double by_ref = (double)ref[at];
            check_near(c, "the oracle", out + at, &want, &limit, 1);
            check_near(c, "the reference", out + at, &by_ref, &limit, 1);
        }
    }
    check_same(c, "one query at a time", out, single, n * sizeof *out);
    check_case_end(c);
}

static void values_shape(struct check *c, enum kv_type type, int head_dim, int n_keys, int n_q) {
    check_case(c, "head_dim %d, %d keys, %d queries", head_dim, n_keys, n_q);
    size_t row_bytes;
    const uint8_t *v = kv_rows(c, type, head_dim, n_keys, &row_bytes);
    int p_stride = n_keys + 2, stride = head_dim + 3;
    const float *p = float_rows(c, (size_t)((n_q - 1) * p_stride + n_keys));
    const float *start = float_rows(c, (size_t)(n_q * stride));
    check_seal(c);
    size_t n = (size_t)(n_q * stride);
    float *out = check_output(c, n), *pieces = check_output(c, n), *ref = check_output(c, n);
    for (int j = 0; j < n_q; j++) {
        size_t at = (size_t)(j * stride), bytes = (size_t)head_dim * sizeof *out;
        memcpy(out + at, start + at, bytes);
        memcpy(pieces + at, start + at, bytes);
        memcpy(ref + at, start + at, bytes);
    }
    c->isa->attn_values[type](p, p_stride, n_q, v, row_bytes, n_keys, head_dim, out, stride, NULL);
    c->ref->attn_values[type](p, p_stride, n_q, v, row_bytes, n_keys, head_dim, ref, stride, NULL);
    for (int j = 0; j < n_q; j++) {
        int first = n_keys / 3; /* one query at a time, the keys in two runs */
        const float *row = p + j * p_stride;
        float *to = pieces + j * stride;
        c->isa->attn_values[type](row, p_stride, 1, v, row_bytes, first, head_dim, to, stride, v);
        c->isa->attn_values[type](row + first, p_stride, 1, v + (size_t)first * row_bytes,
                                  row_bytes, n_keys - first, head_dim, to, stride, v);
        for (int d = 0; d < head_dim; d++) {
            double want = (double)start[j * stride + d], magnitude = fabs(want);
            for (int i = 0; i < n_keys; i++) {
                double term =
                    (double)row[i] * (double)kv_element(type, v + (size_t)i * row_bytes, d);
                want += term, magnitude += fabs(term);
            }
            double limit = 4 * (double)FLT_EPSILON * sqrt(n_keys) * magnitude;
            size_t at = (size_t)(j * stride + d);
            double by_ref = (double)ref[at];
            check_near(c, "the oracle", out + at, &want, &limit, 1);
            check_near(c, "the reference", out + at, &by_ref, &limit, 1);
        }
    }
    check_same(c, "one query at a time", out, pieces, n * sizeof *out);
    check_case_end(c);
}

typedef void shape_fn(struct check *c, enum kv_type type, int head_dim, int n_keys, int n_q);

static void all_shapes(struct check *c, enum kv_type type, shape_fn *shape) {
    for (size_t d = 0; d < COUNT_OF(head_dims); d++) {
        if (type == KV_Q8_0 && head_dims[d] % QK_SMALL != 0) continue;
        for (size_t k = 0; k < COUNT_OF(n_keys_tried); k++) {
            for (size_t q = 0; q < COUNT_OF(n_q_tried); q += TEST_SANITIZED ? 2 : 1)
                shape(c, type, head_dims[d], n_keys_tried[k], n_q_tried[q]);
        }
    }
    check_kernel_end(c);
}

void check_attention(struct check *c) {
    const struct kernels *isa = c->isa, *below = c->below;
    for (int type = 0; type < KV_TYPE_COUNT; type++) {
        bool own = !below || isa->attn_scores[type] != below->attn_scores[type];
        if (check_kernel(c, own, "attn_scores/%s", kv_names[type]))
            all_shapes(c, (enum kv_type)type, scores_shape);
        own = !below || isa->attn_values[type] != below->attn_values[type];
        if (check_kernel(c, own, "attn_values/%s", kv_names[type]))
            all_shapes(c, (enum kv_type)type, values_shape);
    }
}
