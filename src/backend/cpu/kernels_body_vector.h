/*
 * Sums over values, softmax parts, norm, gate, rope and the rest that runs along one row. Included
 * by a kernels_ISA.c after its kernels_vec_ISA.h.
 */
#pragma once

#include <math.h>
#include <string.h>

/* ---- Sums over values of the cache: acc[j] += p[j][i] * v[i], i ascending ---- */

/* LANES (or the n < LANES there are) elements of a row from column c on. */
ALWAYS_INLINE vf kv_load(enum kv_type type, const uint8_t *row, int c, int n) {
    if (type == KV_F32) {
        const float *p = (const float *)(const void *)row + c;
        return n < LANES ? vf_load_part(p, n) : vf_load(p);
    }
    if (type == KV_F16) {
        const uint16_t *p = (const uint16_t *)(const void *)row + c;
        return n < LANES ? vf_load_f16_part(p, n) : vf_load_f16(p);
    }
    const struct block_q8_0 *block = (const struct block_q8_0 *)(const void *)row + c / QK_SMALL;
    return vf_mul(vf_load_s8(block->qs + c % QK_SMALL), vf_set1_f16(block->d));
}

struct values {
    const float *p;
    int64_t p_stride;
    const uint8_t *v;
    size_t row_bytes;
    int n_keys;
    float *acc;
    int64_t acc_stride;
    const uint8_t *next; /* what will be read afterwards, or NULL */
};

/* n_q queries, n_vectors whole vectors of columns from c on; both are constants. */
ALWAYS_INLINE void values_tile(enum kv_type type, const struct values *a, int j0, int n_q, int c,
                               int n_vectors) {
    vf acc[VALUE_QUERIES][VALUE_VECTORS];
    for (int j = 0; j < n_q; j++) {
        for (int i = 0; i < n_vectors; i++)
            acc[j][i] = vf_load(a->acc + (j0 + j) * a->acc_stride + c + LANES * i);
    }
    const uint8_t *row = a->v, *next = j0 == 0 ? a->next : NULL;
    for (int key = 0; key < a->n_keys; key++, row += a->row_bytes) {
        if (next) {
            const int bytes = n_vectors * LANES * (type == KV_F32 ? 4 : type == KV_F16 ? 2 : 1);
            const uint8_t *at =
                next + (size_t)key * a->row_bytes + (size_t)(c / LANES / n_vectors * bytes);
            for (int i = 0; i < bytes; i += 64)
                __builtin_prefetch(at + i, 0, 3);
        }
        vf v[VALUE_VECTORS];
        for (int i = 0; i < n_vectors; i++)
            v[i] = kv_load(type, row, c + LANES * i, LANES);
        for (int j = 0; j < n_q; j++) {
            vf p = vf_set1(a->p[(j0 + j) * a->p_stride + key]);
            for (int i = 0; i < n_vectors; i++)
                acc[j][i] = vf_fma(p, v[i], acc[j][i]);
        }
    }
    for (int j = 0; j < n_q; j++) {
        for (int i = 0; i < n_vectors; i++)
            vf_store(a->acc + (j0 + j) * a->acc_stride + c + LANES * i, acc[j][i]);
    }
}

/* One query, the n < LANES last columns. */
ALWAYS_INLINE void values_tail(enum kv_type type, const struct values *a, int j, int c, int n) {
    float *to = a->acc + j * a->acc_stride + c;
    vf acc = vf_load_part(to, n);
    for (int key = 0; key < a->n_keys; key++) {
        vf v = kv_load(type, a->v + (size_t)key * a->row_bytes, c, n);
        acc = vf_fma(vf_set1(a->p[j * a->p_stride + key]), v, acc);
    }
    vf_store_part(to, acc, n);
}

ALWAYS_INLINE void values_columns(enum kv_type type, const struct values *a, int j0, int n_q,
                                  int head_dim) {
    int c = 0;
    for (; c + VALUE_VECTORS * LANES <= head_dim; c += VALUE_VECTORS * LANES)
        values_tile(type, a, j0, n_q, c, VALUE_VECTORS);
    for (; c + LANES <= head_dim; c += LANES)
        values_tile(type, a, j0, n_q, c, 1);
    if (c < head_dim) {
        for (int j = 0; j < n_q; j++)
            values_tail(type, a, j0 + j, c, head_dim - c);
    }
}

ALWAYS_INLINE void values_queries(enum kv_type type, const struct values *a, int n_q,
                                  int head_dim) {
    int j = 0;
    for (; j + VALUE_QUERIES <= n_q; j += VALUE_QUERIES)
        values_columns(type, a, j, VALUE_QUERIES, head_dim);
    if (n_q - j == 3) {
        values_columns(type, a, j, 3, head_dim);
    } else if (n_q - j == 2) {
        values_columns(type, a, j, 2, head_dim);
    } else if (n_q - j == 1) {
        values_columns(type, a, j, 1, head_dim);
    }
}

#define VALUE_PANEL_KEYS    64
#define VALUE_PANEL_COLS    (VALUE_VECTORS * LANES)
#define VALUE_PANEL_QUERIES 16 /* from more on */

/* Asks for columns of a row of a page that comes later. */
ALWAYS_INLINE void values_fetch(enum kv_type type, const uint8_t *row, int c, int cols) {
    const size_t at =
        type == KV_F16 ? (size_t)c * 2 : (size_t)(c / QK_SMALL) * sizeof(struct block_q8_0);
    for (int i = 0; i < cols * (type == KV_F16 ? 2 : 1); i += 64)
        __builtin_prefetch(row + at + i, 0, 2);
}

/* Many queries share the floats that values become, some columns of some keys at a time. */
static __attribute__((noinline)) void values_of_panel(const struct values *a, int n_q, int cols) {
    values_queries(KV_F32, a, n_q, cols);
}
ALWAYS_INLINE void values_many(enum kv_type type, const struct values *a, int n_q, int head_dim) {
    float panel[VALUE_PANEL_KEYS * VALUE_PANEL_COLS];
    for (int first = 0; first < a->n_keys; first += VALUE_PANEL_KEYS) {
        const int n_keys = min_int(VALUE_PANEL_KEYS, a->n_keys - first);
        for (int c = 0; c < head_dim; c += VALUE_PANEL_COLS) {
            const int cols = min_int(VALUE_PANEL_COLS, head_dim - c);
            for (int key = 0; key < n_keys; key++) {
                const uint8_t *row = a->v + (size_t)(first + key) * a->row_bytes;
                float *to = panel + key * VALUE_PANEL_COLS;
                int i = 0;
                for (; i + LANES <= cols; i += LANES)
                    vf_store(to + i, kv_load(type, row, c + i, LANES));
                if (i < cols) vf_store_part(to + i, kv_load(type, row, c + i, cols - i), cols - i);
                if (a->next) values_fetch(type, a->next + (row - a->v), c, cols);
            }
            const struct values part = {.p = a->p + first,
                                        .p_stride = a->p_stride,
                                        .v = (const uint8_t *)(const void *)panel,
                                        .row_bytes = VALUE_PANEL_COLS * sizeof *panel,
                                        .n_keys = n_keys,
                                        .acc = a->acc + c,
                                        .acc_stride = a->acc_stride};
            values_of_panel(&part, n_q, cols);
        }
    }
}

ALWAYS_INLINE void attn_values(enum kv_type type, const struct values *a, int n_q, int head_dim) {
    if (type != KV_F32 && n_q > VALUE_PANEL_QUERIES)
        values_many(type, a, n_q, head_dim);
    else
        values_queries(type, a, n_q, head_dim);
}

#define ATTN_VALUES(lower, upper)                                                                  \
    static void attn_values_##lower(const float *p, int64_t p_stride, int n_q, const void *v,      \
                                    size_t v_row_bytes, int n_keys, int head_dim, float *acc,      \
                                    int64_t acc_stride, const void *next) {                        \
        const struct values a = {p, p_stride, v, v_row_bytes, n_keys, acc, acc_stride, next};      \
        attn_values(KV_##upper, &a, n_q, head_dim);                                                \
    }
ATTN_VALUES(f32, F32)
ATTN_VALUES(f16, F16)
ATTN_VALUES(q8_0, Q8_0)
#undef ATTN_VALUES

static void kv_store_f16(const float *x, void *row, int head_dim) {
    uint16_t *out = row;
    int i = 0;
    for (; i + LANES <= head_dim; i += LANES)
        vf_store_f16(out + i, vf_load(x + i));
    if (i < head_dim) vf_store_f16_part(out + i, vf_load_part(x + i, head_dim - i), head_dim - i);
}

static void kv_store_q8_0(const float *x, void *row, int head_dim) {
    struct block_q8_0 *out = row;
    for (int b = 0; b < head_dim / QK_SMALL; b++) {
        int16_t unused[2];
        out[b].d = half_from_float(quantise_block(x + b * QK_SMALL, out[b].qs, unused));
    }
}

/* ---- exp ---- */

/* x = n ln 2 + r, |r| <= ln 2 / 2; e^r by its series to r^7 (the rest is below 6e-9), 2^n in two
 * factors so that results may be subnormal. Below -110 the result is 0, above 89 infinite. */
ALWAYS_INLINE vf vf_exp(vf x) {
    x = vf_min(vf_set1(89.0f), vf_max(vf_set1(-110.0f), x)); /* NaN passes */
    vi n = vf_round(vf_mul(x, vf_set1(0x1.715476p+0f)));
    vf nf = vi_float(n);
    vf r = vf_fma(nf, vf_set1(-0x1.62e400p-1f), x); /* exact: 15 bits of ln 2 times 8 of n */
    r = vf_fma(nf, vf_set1(-0x1.7f7d1cp-20f), r);
    vf p = vf_set1(1.0f / 5040);
    p = vf_fma(p, r, vf_set1(1.0f / 720));
    p = vf_fma(p, r, vf_set1(1.0f / 120));
    p = vf_fma(p, r, vf_set1(1.0f / 24));
    p = vf_fma(p, r, vf_set1(1.0f / 6));
    p = vf_fma(p, r, vf_set1(0.5f));
    p = vf_fma(vf_mul(p, r), r, r);
    p = vf_add(p, vf_set1(1.0f));
    vi n1 = vi_sar(n, 1), n2 = vi_sub(n, n1);
    vf f1 = vi_as_float(vi_shl(vi_add(n1, vi_set1(127)), 23));
    vf f2 = vi_as_float(vi_shl(vi_add(n2, vi_set1(127)), 23));
    return vf_mul(vf_mul(p, f1), f2);
}

static float exp_sum(float *p, int n, float max) {
    vf sum = vf_zero(), top = vf_set1(max);
    int i = 0;
    for (; i + LANES <= n; i += LANES) {
        vf e = vf_exp(vf_sub(vf_load(p + i), top));
        vf_store(p + i, e);
        sum = vf_add(sum, e);
    }
    if (i < n) {
        vf_store_part(p + i, vf_exp(vf_sub(vf_load_part(p + i, n - i), top)), n - i);
        sum = vf_add(sum, vf_load_part(p + i, n - i));
    }
    return vf_sum(sum);
}

static float max_of(const float *x, int n) {
    vf top = vf_set1(-INFINITY);
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        top = vf_max(vf_load(x + i), top);
    float max = vf_top(top);
    for (; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

ALWAYS_INLINE vf sigmoid_times(vf x, vf arg) {
    return vf_div(x, vf_add(vf_set1(1.0f), vf_exp(vf_sub(vf_zero(), arg))));
}

/* One vector; act is a constant. GELU: (1 + tanh z) / 2 is sigmoid(2 z), which does not cancel. */
ALWAYS_INLINE vf gate_vector(enum activation act, vf g, vf u) {
    if (act == ACT_GELU) {
        const vf one = vf_set1(1.5957691216f), cube = vf_set1(0.07135481627f);
        vf twice_z = vf_mul(g, vf_fma(cube, vf_mul(g, g), one));
        return vf_mul(sigmoid_times(g, twice_z), u);
    }
    if (act == ACT_CLAMPED) {
        const vf limit = vf_set1(ACT_CLAMPED_LIMIT), low = vf_set1(-ACT_CLAMPED_LIMIT);
        g = vf_min(g, limit);
        u = vf_add(vf_max(vf_min(u, limit), low), vf_set1(1.0f));
        return vf_mul(sigmoid_times(g, vf_mul(vf_set1(ACT_CLAMPED_SLOPE), g)), u);
    }
    if (act == ACT_SIGMOID) return sigmoid_times(u, g);
    return vf_mul(sigmoid_times(g, g), u);
}

ALWAYS_INLINE void gated(enum activation act, const float *gate, const float *up, int n,
                         float *out) {
    for (int i = 0; i < n; i += LANES) {
        int here = min_int(LANES, n - i);
        bool part = here < LANES;
        vf g = part ? vf_load_part(gate + i, here) : vf_load(gate + i);
        vf u = part ? vf_load_part(up + i, here) : vf_load(up + i);
        vf y = gate_vector(act, g, u);
        if (part)
            vf_store_part(out + i, y, here);
        else
            vf_store(out + i, y);
    }
}

#define GATED(lower, act)                                                                          \
    static void gated_##lower(const float *gate, const float *up, int n, float *out) {             \
        gated(act, gate, up, n, out);                                                              \
    }
GATED(silu, ACT_SILU)
GATED(gelu, ACT_GELU)
GATED(clamped, ACT_CLAMPED)
GATED(sigmoid, ACT_SIGMOID)
#undef GATED

/* ---- Norm, rope, add, scale ---- */

/* The sum of squares is one chain a lane over two vectors in turn. */
static void rms_norm(const float *x, const float *w, int n, float eps, float *out) {
    vf sum[2] = {vf_zero(), vf_zero()};
    int i = 0;
    for (; i + 2 * LANES <= n; i += 2 * LANES) {
        vf a = vf_load(x + i), b = vf_load(x + i + LANES);
        sum[0] = vf_fma(a, a, sum[0]);
        sum[1] = vf_fma(b, b, sum[1]);
    }
    float squares = vf_sum(vf_add(sum[0], sum[1]));
    for (; i < n; i++)
        squares += x[i] * x[i];
    float factor = 1.0f / sqrtf(squares / (float)n + eps);
    if (!w) {
        for (i = 0; i < n; i++)
            out[i] = x[i] * factor;
        return;
    }
    for (i = 0; i < n; i++)
        out[i] = x[i] * factor * w[i];
}

static void rope_pairs(float *x, int n_heads, int head_stride, int n_rot, const float *cos,
                       const float *sin) {
    for (int h = 0; h < n_heads; h++, x += head_stride) {
        for (int i = 0; i < n_rot / 2; i++) {
            float a = x[2 * i], b = x[2 * i + 1];
            x[2 * i] = a * cos[i] - b * sin[i];
            x[2 * i + 1] = a * sin[i] + b * cos[i];
        }
    }
}

static void rope_halves(float *x, int n_heads, int head_stride, int n_rot, const float *cos,
                        const float *sin) {
    int half = n_rot / 2;
    for (int h = 0; h < n_heads; h++, x += head_stride) {
        float *restrict low = x, *restrict high = x + half;
        for (int i = 0; i < half; i++) {
            float a = low[i], b = high[i];
            low[i] = a * cos[i] - b * sin[i];
            high[i] = a * sin[i] + b * cos[i];
        }
    }
}

static void add(const float *a, const float *b, int n, float *out) {
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(out + i, vf_add(vf_load(a + i), vf_load(b + i)));
    for (; i < n; i++)
        out[i] = a[i] + b[i];
}

static void scale(float *x, int n, float factor) {
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(x + i, vf_mul(vf_load(x + i), vf_set1(factor)));
    for (; i < n; i++)
        x[i] *= factor;
}

/* tanh z = 2 sigmoid(2 z) - 1: near 0 exact to a unit of 1, not of z, as scores need it. */
static void soft_cap(float *x, int n, float cap) {
    const vf twice = vf_set1(2.0f * cap), inverse = vf_set1(2.0f / cap), one = vf_set1(cap);
    for (int i = 0; i < n; i += LANES) {
        const int here = min_int(LANES, n - i);
        vf v = here < LANES ? vf_load_part(x + i, here) : vf_load(x + i);
        v = vf_sub(sigmoid_times(twice, vf_mul(inverse, v)), one);
        if (here < LANES)
            vf_store_part(x + i, v, here);
        else
            vf_store(x + i, v);
    }
}

static void add_scaled(float *x, const float *a, int n, float factor) {
    int i = 0;
    for (; i + LANES <= n; i += LANES)
        vf_store(x + i, vf_fma(vf_set1(factor), vf_load(a + i), vf_load(x + i)));
    for (; i < n; i++)
        x[i] = __builtin_fmaf(factor, a[i], x[i]);
}
