/* The plain-C reference of the float kernels, in the order of the formula. */
#include "backend/cpu/kernels_isa.h"
#include "backend/kv_layout.h"

#include <math.h>
#include <string.h>

/* Sum of products in double: four chains only so that the adds overlap. */
float kernels_ref_dot(const float *a, const float *b, int n) {
    double sum[4] = {0, 0, 0, 0};
    int i = 0;
    for (; i + 4 <= n; i += 4) {
        for (int j = 0; j < 4; j++)
            sum[j] += (double)a[i + j] * (double)b[i + j];
    }
    for (; i < n; i++)
        sum[0] += (double)a[i] * (double)b[i];
    return (float)((sum[0] + sum[1]) + (sum[2] + sum[3]));
}

/* scratch: one row as floats. */
static void matmul(enum dtype type, const void *w, size_t row_bytes, int n_rows, int n_cols,
                   const float *x, int64_t x_stride, int n_tokens, float *out, int64_t out_stride,
                   float *scratch) {
    for (int r = 0; r < n_rows; r++) {
        dtype_to_float(type, (const uint8_t *)w + (size_t)r * row_bytes, scratch, n_cols);
        for (int t = 0; t < n_tokens; t++)
            out[t * out_stride + r] = kernels_ref_dot(scratch, x + t * x_stride, n_cols);
    }
}

#define TYPE(lower, upper)                                                                         \
    static void matmul_##lower(const void *w, size_t row_bytes, int n_rows, int n_cols,            \
                               const float *x, int64_t x_stride, int n_tokens, float *out,         \
                               int64_t out_stride, void *scratch) {                                \
        matmul(DTYPE_##upper, w, row_bytes, n_rows, n_cols, x, x_stride, n_tokens, out,            \
               out_stride, scratch);                                                               \
    }                                                                                              \
    static void dequant_##lower(const void *blocks, float *out, int64_t n) {                       \
        dtype_to_float(DTYPE_##upper, blocks, out, n);                                             \
    }
FLOAT_WEIGHT_MAP(TYPE)
Q8_WEIGHT_MAP(TYPE)

static float kv_at(enum kv_type type, const void *row, int i) {
    if (type == KV_F32) return ((const float *)row)[i];
    if (type == KV_F16) return half_to_float(((const uint16_t *)row)[i]);
    const struct block_q8_0 *block = (const struct block_q8_0 *)row + i / QK_SMALL;
    return half_to_float(block->d) * block->qs[i % QK_SMALL];
}

static float key_at(enum kv_type type, const uint8_t *keys, int head_dim, int slot, int i) {
    const uint8_t *at = keys + kv_key_at(type, head_dim, slot, i);
    if (type == KV_F32) {
        float x;
        memcpy(&x, at, sizeof x);
        return x;
    }
    uint16_t half;
    memcpy(&half, type == KV_F16 ? at : keys + kv_key_scale_at(head_dim, slot, i), sizeof half);
    return type == KV_F16 ? half_to_float(half) : half_to_float(half) * (int8_t)*at;
}

static void attn_scores(enum kv_type type, const float *q, int64_t q_stride, int n_q, const void *k,
                        int n_keys, int head_dim, float scale, float *scores,
                        int64_t score_stride) {
    for (int i = 0; i < n_keys; i++) {
        for (int j = 0; j < n_q; j++) {
            double sum = 0;
            for (int c = 0; c < head_dim; c++)
                sum += (double)q[j * q_stride + c] * (double)key_at(type, k, head_dim, i, c);
            scores[j * score_stride + i] = scale * (float)sum;
        }
    }
}

static void attn_values(enum kv_type type, const float *p, int64_t p_stride, int n_q, const void *v,
                        size_t v_row_bytes, int n_keys, int head_dim, float *acc,
                        int64_t acc_stride) {
    for (int i = 0; i < n_keys; i++) {
        const void *value = (const uint8_t *)v + (size_t)i * v_row_bytes;
        for (int c = 0; c < head_dim; c++) {
            float element = kv_at(type, value, c);
            for (int j = 0; j < n_q; j++)
                acc[j * acc_stride + c] += p[j * p_stride + i] * element;
        }
    }
}

#define KV(lower, upper)                                                                           \
    static void attn_scores_##lower(const float *q, int64_t q_stride, int n_q, const void *k,      \
                                    int n_keys, int head_dim, float scale, float *scores,          \
                                    int64_t score_stride, const void *next) {                      \
        (void)next;                                                                                \
        attn_scores(KV_##upper, q, q_stride, n_q, k, n_keys, head_dim, scale, scores,              \
                    score_stride);                                                                 \
    }                                                                                              \
    static void attn_values_##lower(const float *p, int64_t p_stride, int n_q, const void *v,      \
                                    size_t v_row_bytes, int n_keys, int head_dim, float *acc,      \
                                    int64_t acc_stride, const void *next) {                        \
        (void)next;                                                                                \
        attn_values(KV_##upper, p, p_stride, n_q, v, v_row_bytes, n_keys, head_dim, acc,           \
                    acc_stride);                                                                   \
    }
KV(f32, F32)
KV(f16, F16)
KV(q8_0, Q8_0)

static void kv_store_f32(const float *x, void *row, int head_dim) {
    memcpy(row, x, (size_t)head_dim * sizeof *x);
}

static void kv_store_f16(const float *x, void *row, int head_dim) {
    uint16_t *out = row;
    for (int i = 0; i < head_dim; i++)
        out[i] = half_from_float(x[i]);
}

static void kv_store_q8_0(const float *x, void *row, int head_dim) {
    struct block_q8_0 *out = row;
    for (int b = 0; b < head_dim / QK_SMALL; b++, x += QK_SMALL) {
        float max = 0;
        for (int i = 0; i < QK_SMALL; i++)
            max = fmaxf(max, fabsf(x[i]));
        float inverse = max < Q8_MIN_MAX ? 0 : 127.0f / max;
        out[b].d = half_from_float(max < Q8_MIN_MAX ? 0 : max / 127.0f);
        for (int i = 0; i < QK_SMALL; i++)
            out[b].qs[i] = (int8_t)lrintf(x[i] * inverse);
    }
}

static float exp_sum(float *p, int n, float max) {
    double sum = 0;
    for (int i = 0; i < n; i++) {
        p[i] = expf(p[i] - max);
        sum += (double)p[i];
    }
    return (float)sum;
}

static float max_of(const float *x, int n) {
    float max = -INFINITY;
    for (int i = 0; i < n; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

static void rms_norm(const float *x, const float *w, int n, float eps, float *out) {
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    float factor = 1.0f / sqrtf((float)(sum / n) + eps);
    for (int i = 0; i < n; i++)
        out[i] = x[i] * factor * (w ? w[i] : 1.0f);
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
        for (int i = 0; i < half; i++) {
            float a = x[i], b = x[half + i];
            x[i] = a * cos[i] - b * sin[i];
            x[half + i] = a * sin[i] + b * cos[i];
        }
    }
}

static void add(const float *a, const float *b, int n, float *out) {
    for (int i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

static void add_scaled(float *x, const float *a, int n, float factor) {
    for (int i = 0; i < n; i++)
        x[i] = fmaf(factor, a[i], x[i]);
}

static void scale(float *x, int n, float factor) {
    for (int i = 0; i < n; i++)
        x[i] *= factor;
}

static void soft_cap(float *x, int n, float cap) {
    for (int i = 0; i < n; i++)
        x[i] = cap * tanhf(x[i] / cap);
}

static float sigmoid_times(float x, float arg) {
    return x / (1.0f + expf(-arg));
}

static void gated_silu(const float *gate, const float *up, int n, float *out) {
    for (int i = 0; i < n; i++)
        out[i] = sigmoid_times(gate[i], gate[i]) * up[i];
}

/* (1 + tanh z) / 2 is sigmoid(2 z), which does not cancel. */
static void gated_gelu(const float *gate, const float *up, int n, float *out) {
    for (int i = 0; i < n; i++) {
        float x = gate[i], z = 0.7978845608f * (x + 0.044715f * x * x * x);
        out[i] = sigmoid_times(x, 2 * z) * up[i];
    }
}

static void gated_clamped(const float *gate, const float *up, int n, float *out) {
    const float limit = ACT_CLAMPED_LIMIT;
    for (int i = 0; i < n; i++) {
        float g = fminf(gate[i], limit), u = fmaxf(-limit, fminf(up[i], limit));
        out[i] = sigmoid_times(g, ACT_CLAMPED_SLOPE * g) * (u + 1);
    }
}

static void gated_sigmoid(const float *gate, const float *up, int n, float *out) {
    for (int i = 0; i < n; i++)
        out[i] = sigmoid_times(up[i], gate[i]);
}

void kernels_ref_fill(struct kernels *k) {
#define ENTRY(lower, upper)                                                                        \
    k->matmul_f32[DTYPE_##upper] = matmul_##lower;                                                 \
    k->dequant[DTYPE_##upper] = dequant_##lower;
    FLOAT_WEIGHT_MAP(ENTRY)
    Q8_WEIGHT_MAP(ENTRY)
#undef ENTRY
#define ENTRY(lower, upper)                                                                        \
    k->attn_scores[KV_##upper] = attn_scores_##lower;                                              \
    k->attn_values[KV_##upper] = attn_values_##lower;                                              \
    k->kv_store[KV_##upper] = kv_store_##lower;
    ENTRY(f32, F32)
    ENTRY(f16, F16)
    ENTRY(q8_0, Q8_0)
#undef ENTRY
    k->exp_sum = exp_sum;
    k->max = max_of;
    k->rms_norm = rms_norm;
    k->rope_pairs = rope_pairs;
    k->rope_halves = rope_halves;
    k->soft_cap = soft_cap;
    k->add = add;
    k->scale = scale;
    k->add_scaled = add_scaled;
    k->gated[ACT_SILU] = gated_silu;
    k->gated[ACT_GELU] = gated_gelu;
    k->gated[ACT_CLAMPED] = gated_clamped;
    k->gated[ACT_SIGMOID] = gated_sigmoid;
    kernels_ref_q8_fill(k);
    kernels_ref_bf16_fill(k);
    kernels_ref_packed_fill(k);
    kernels_ref_recurrent_fill(k);
}
