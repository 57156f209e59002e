/* Small operators on rows: softmax parts, norm, gate, rope, add, scale. */
#include "data.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/half.h"

static const int lengths[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 32, 33, 64, 100, 256, 576, 1536};

/* Of an element computed by a few roundings, relative to `magnitude`; below the normal range
 * nothing is promised. */
static double few_roundings(double magnitude) {
    return 4 * (double)FLT_EPSILON * magnitude + (double)FLT_MIN;
}

static float *input_row(struct check *c, int n, float scale) {
    float *x = check_input(c, (size_t)n * sizeof *x);
    data_floats(c, DATA_RANDOM, x, (size_t)n);
    for (int i = 0; i < n; i++)
        x[i] *= scale;
    return x;
}

enum softmax_data {
    SOFTMAX_RANDOM,
    SOFTMAX_WIDE,
    SOFTMAX_EQUAL,
    SOFTMAX_ONE,
    SOFTMAX_MASKED,
    N_SOFTMAX
};

static float softmax_input(struct check *c, enum softmax_data data, int i, int n) {
    switch (data) {
    case SOFTMAX_RANDOM:
        return 4 * check_random(c);
    case SOFTMAX_WIDE:
        return 60 * check_random(c);
    case SOFTMAX_EQUAL:
        return 3.5f;
    case SOFTMAX_ONE:
        return i == n / 2 ? 30.0f : -300.0f;
    default:
        return i % 3 == 1 ? -INFINITY : check_random(c);
    }
}

static void exp_sum_shape(struct check *c, enum softmax_data data, int n) {
    check_case(c, "data %d, n %d", (int)data, n);
    float *p = check_output(c, (size_t)n), *ref = check_output(c, (size_t)n), max = -INFINITY;
    double *want = check_memory(c, (size_t)n * sizeof *want), sum = 0;
    for (int i = 0; i < n; i++) {
        p[i] = ref[i] = softmax_input(c, data, i, n);
        if (p[i] > max) max = p[i];
    }
    for (int i = 0; i < n; i++) {
        want[i] = exp((double)(p[i] - max));
        sum += want[i];
    }
    float got = c->isa->exp_sum(p, n, max), by_ref = c->ref->exp_sum(ref, n, max);
    for (int i = 0; i < n; i++) {
        double limit = 2.4e-7 * want[i] + (double)FLT_MIN, ref_i = (double)ref[i];
        check_near(c, "the oracle", p + i, want + i, &limit, 1);
        check_near(c, "the reference", p + i, &ref_i, &limit, 1);
    }
    double limit = 4 * (double)FLT_EPSILON * sqrt(n) * sum, ref_sum = (double)by_ref;
    check_near(c, "the oracle of the sum", &got, &sum, &limit, 1);
    check_near(c, "the reference of the sum", &got, &ref_sum, &limit, 1);
    check_case_end(c);
}

static void max_shape(struct check *c, int n) {
    for (int at = 0; at < min_int(n, 20); at++) {
        check_case(c, "n %d, largest at %d", n, at);
        float *x = input_row(c, n, 1);
        if (at % 2 == 0) {
            for (int i = 0; i < n; i++)
                x[i] -= 100;
        }
        x[at] = at % 3 == 0 ? 2.0f : -0.5f;
        check_seal(c);
        double want = (double)x[0], limit = 0;
        for (int i = 0; i < n; i++) {
            if ((double)x[i] > want) want = (double)x[i];
        }
        float got = c->isa->max(x, n);
        check_near(c, "the oracle", &got, &want, &limit, 1);
        check_case_end(c);
    }
}

static void norm_shape(struct check *c, int n, bool weight, bool in_place, float scale) {
    check_case(c, "n %d, weight %d, in place %d, inputs %g", n, weight, in_place, (double)scale);
    const float *x = input_row(c, n, scale), *w = weight ? input_row(c, n, 2) : NULL;
    check_seal(c);
    float *out = check_output(c, (size_t)n), *ref = check_output(c, (size_t)n);
    if (in_place) memcpy(out, x, (size_t)n * sizeof *x);
    float eps = 1e-5f;
    c->isa->rms_norm(in_place ? out : x, w, n, eps, out);
    c->ref->rms_norm(x, w, n, eps, ref);
    double sum = 0;
    for (int i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    double factor = 1 / sqrt(sum / n + (double)eps);
    for (int i = 0; i < n; i++) {
        double want = (double)x[i] * factor * (w ? (double)w[i] : 1.0), by_ref = (double)ref[i];
        double limit = few_roundings(fabs(want)) * fmax(1, sqrt(n) / 8);
        check_near(c, "the oracle", out + i, &want, &limit, 1);
        check_near(c, "the reference", out + i, &by_ref, &limit, 1);
    }
    check_case_end(c);
}

static const char *const act_names[ACT_COUNT] = {"silu", "gelu", "clamped", "sigmoid"};

/* What exp is taken of, and the factors before and after the sigmoid. */
struct gate {
    double arg, x, y;
};

static struct gate gate_of(enum activation act, double g, double u) {
    double limit = (double)ACT_CLAMPED_LIMIT;
    if (act == ACT_GELU)
        return (struct gate){2 * sqrt(2 / 3.14159265358979) * (g + 0.044715 * g * g * g), g, u};
    if (act == ACT_SILU) return (struct gate){g, g, u};
    if (act == ACT_SIGMOID) return (struct gate){g, u, 1};
    g = fmin(g, limit);
    return (struct gate){(double)ACT_CLAMPED_SLOPE * g, g, fmax(-limit, fmin(u, limit)) + 1};
}

static void gated_shape(struct check *c, enum activation act, int n, float scale, int alias) {
    check_case(c, "n %d, inputs %g, alias %d", n, (double)scale, alias);
    const float *gate = input_row(c, n, scale);
    const float *up = input_row(c, n, act == ACT_CLAMPED ? 10.0f : 1.0f);
    check_seal(c);
    float *out = check_output(c, (size_t)n), *ref = check_output(c, (size_t)n);
    if (alias) memcpy(out, alias == 1 ? gate : up, (size_t)n * sizeof *out);
    c->isa->gated[act](alias == 1 ? out : gate, alias == 2 ? out : up, n, out);
    c->ref->gated[act](gate, up, n, ref);
    for (int i = 0; i < n; i++) {
        struct gate gate_i = gate_of(act, (double)gate[i], (double)up[i]);
        double want = gate_i.x / (1 + exp(-gate_i.arg)) * gate_i.y, by_ref = (double)ref[i];
        /* exp's argument is rounded, but for silu, and exp makes that relative to the result;
         * where exp overflows the result is 0: less than 90 e^-88 is lost */
        double sharp = act == ACT_SILU || act == ACT_SIGMOID ? 1 : fmax(1, fabs(gate_i.arg));
        double limit = few_roundings(fabs(want)) * sharp + 1e-35;
        check_near(c, "the oracle", out + i, &want, &limit, 1);
        check_near(c, "the reference", out + i, &by_ref, &limit, 1);
    }
    check_case_end(c);
}

static void rope_shape(struct check *c, bool halves, int n_heads, int head_dim, int n_rot) {
    int position = head_dim % 3 == 0 ? 100000 : 7;
    check_case(c, "%d heads of %d, %d turn, position %d", n_heads, head_dim, n_rot, position);
    int stride = head_dim + (n_heads == 3 ? 5 : 0), half = n_rot / 2;
    size_t n = (size_t)((n_heads - 1) * stride + head_dim);
    const float *x = input_row(c, (int)n, 1);
    float *cos_row = input_row(c, half, 1), *sin_row = input_row(c, half, 1);
    for (int i = 0; i < half; i++) {
        double angle = position * pow(10000, -2.0 * i / n_rot);
        cos_row[i] = (float)cos(angle), sin_row[i] = (float)sin(angle);
    }
    check_seal(c);
    float *out = check_output(c, n), *ref = check_output(c, n);
    memcpy(out, x, n * sizeof *x);
    memcpy(ref, x, n * sizeof *x);
    (halves ? c->isa->rope_halves : c->isa->rope_pairs)(out, n_heads, stride, n_rot, cos_row,
                                                        sin_row);
    (halves ? c->ref->rope_halves : c->ref->rope_pairs)(ref, n_heads, stride, n_rot, cos_row,
                                                        sin_row);
    for (size_t i = 0; i < n; i++) {
        int in_head = (int)i % stride, pair = halves ? in_head % half : in_head / 2;
        double want = (double)x[i], magnitude = 0;
        if (in_head < n_rot) {
            bool second = halves ? in_head >= half : in_head % 2 == 1;
            size_t other = halves ? (second ? i - (size_t)half : i + (size_t)half) : (i ^ 1);
            if (!halves) other = second ? i - 1 : i + 1;
            double a = want * (double)cos_row[pair];
            double b = (double)x[other] * (double)sin_row[pair];
            want = second ? a + b : a - b;
            magnitude = fabs(a) + fabs(b);
        }
        double limit = magnitude == 0 ? 0 : few_roundings(magnitude), by_ref = (double)ref[i];
        check_near(c, "the oracle", out + i, &want, &limit, 1);
        check_near(c, "the reference", out + i, &by_ref, &limit, 1);
    }
    check_case_end(c);
}

static void add_shape(struct check *c, int n, int alias) {
    check_case(c, "n %d, alias %d", n, alias);
    const float *a = input_row(c, n, 1), *b = input_row(c, n, 3);
    check_seal(c);
    float *out = check_output(c, (size_t)n), *want = check_memory(c, (size_t)n * sizeof *want);
    for (int i = 0; i < n; i++)
        want[i] = a[i] + b[i];
    if (alias) memcpy(out, alias == 1 ? a : b, (size_t)n * sizeof *out);
    c->isa->add(alias == 1 ? out : a, alias == 2 ? out : b, n, out);
    check_same(c, "the oracle", out, want, (size_t)n * sizeof *out);
    check_case_end(c);
}

static void scale_shape(struct check *c, int n) {
    check_case(c, "n %d", n);
    const float *x = input_row(c, n, 1);
    check_seal(c);
    float *out = check_output(c, (size_t)n), *want = check_memory(c, (size_t)n * sizeof *want);
    memcpy(out, x, (size_t)n * sizeof *out);
    for (int i = 0; i < n; i++)
        want[i] = x[i] * 0.3f;
    c->isa->scale(out, n, 0.3f);
    check_same(c, "the oracle", out, want, (size_t)n * sizeof *out);
    check_case_end(c);
}

static void add_scaled_shape(struct check *c, int n) {
    check_case(c, "n %d", n);
    const float *x = input_row(c, n, 1), *a = input_row(c, n, 3);
    check_seal(c);
    float *out = check_output(c, (size_t)n), *want = check_memory(c, (size_t)n * sizeof *want);
    memcpy(out, x, (size_t)n * sizeof *out);
    for (int i = 0; i < n; i++)
        want[i] = fmaf(0.3f, a[i], x[i]);
    c->isa->add_scaled(out, a, n, 0.3f);
    check_same(c, "the oracle", out, want, (size_t)n * sizeof *out);
    check_case_end(c);
}

/* To a unit of the cap: scores are compared with each other. */
static void soft_cap_shape(struct check *c, int n, float scale) {
    check_case(c, "n %d, inputs %g", n, (double)scale);
    const float cap = 30;
    const float *x = input_row(c, n, scale);
    check_seal(c);
    float *out = check_output(c, (size_t)n);
    memcpy(out, x, (size_t)n * sizeof *out);
    c->isa->soft_cap(out, n, cap);
    for (int i = 0; i < n; i++) {
        double want = (double)cap * tanh((double)x[i] / (double)cap), limit = 3e-7 * (double)cap;
        check_near(c, "the oracle", out + i, &want, &limit, 1);
    }
    check_case_end(c);
}

static void softmax_parts(struct check *c) {
    const struct kernels *isa = c->isa, *below = c->below;
    if (check_kernel(c, !below || isa->exp_sum != below->exp_sum, "exp_sum")) {
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            for (int data = 0; data < N_SOFTMAX; data++)
                exp_sum_shape(c, (enum softmax_data)data, lengths[i]);
        }
        check_kernel_end(c);
    }
    if (check_kernel(c, !below || isa->max != below->max, "max")) {
        for (size_t i = 0; i < COUNT_OF(lengths); i++)
            max_shape(c, lengths[i]);
        check_kernel_end(c);
    }
}

static void soft_caps(struct check *c) {
    if (!check_kernel(c, !c->below || c->isa->soft_cap != c->below->soft_cap, "soft_cap")) return;
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        for (int scale = 0; scale < 3; scale++)
            soft_cap_shape(c, lengths[i], (const float[]){0.01f, 20.0f, 2000.0f}[scale]);
    check_kernel_end(c);
}

static void norm_and_gate(struct check *c) {
    const struct kernels *isa = c->isa, *below = c->below;
    if (check_kernel(c, !below || isa->rms_norm != below->rms_norm, "rms_norm")) {
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            for (int how = 0; how < 8; how++)
                norm_shape(c, lengths[i], how & 1, how & 2, how & 4 ? 1e-4f : 10.0f);
        }
        check_kernel_end(c);
    }
    for (int act = 0; act < ACT_COUNT; act++) {
        static const float scales[] = {0.01f, 5.0f, 50.0f, 1000.0f};
        if (!check_kernel(c, !below || isa->gated[act] != below->gated[act], "gated %s",
                          act_names[act]))
            continue;
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            for (size_t s = 0; s < COUNT_OF(scales); s++) {
                for (int alias = 0; alias < 3; alias++)
                    gated_shape(c, (enum activation)act, lengths[i], scales[s], alias);
            }
        }
        check_kernel_end(c);
    }
}

static void ropes(struct check *c) {
    const struct kernels *isa = c->isa, *below = c->below;
    static const int dims[] = {2, 8, 16, 24, 32, 40, 64, 128, 256};
    for (int halves = 0; halves < 2; halves++) {
        bool own = !below || (halves ? isa->rope_halves != below->rope_halves
                                     : isa->rope_pairs != below->rope_pairs);
        if (!check_kernel(c, own, "rope_%s", halves ? "halves" : "pairs")) continue;
        for (size_t i = 0; i < COUNT_OF(dims); i++) {
            for (int n_heads = 1; n_heads <= 3; n_heads++) {
                rope_shape(c, halves, n_heads, dims[i], dims[i]);
                if (dims[i] > 2) rope_shape(c, halves, n_heads, dims[i], dims[i] / 4 * 2);
            }
        }
        check_kernel_end(c);
    }
}

void check_vector(struct check *c) {
    const struct kernels *isa = c->isa, *below = c->below;
    softmax_parts(c);
    soft_caps(c);
    norm_and_gate(c);
    ropes(c);
    if (check_kernel(c, !below || isa->add != below->add, "add")) {
        for (size_t i = 0; i < COUNT_OF(lengths); i++) {
            for (int alias = 0; alias < 3; alias++)
                add_shape(c, lengths[i], alias);
        }
        check_kernel_end(c);
    }
    if (check_kernel(c, !below || isa->scale != below->scale, "scale")) {
        for (size_t i = 0; i < COUNT_OF(lengths); i++)
            scale_shape(c, lengths[i]);
        check_kernel_end(c);
    }
    if (check_kernel(c, !below || isa->add_scaled != below->add_scaled, "add_scaled")) {
        for (size_t i = 0; i < COUNT_OF(lengths); i++)
            add_scaled_shape(c, lengths[i]);
        check_kernel_end(c);
    }
}
