#include "model/bind.h"

#include <stdarg.h>
#include <stdio.h>

#define NAME_BYTES 128

PRINTF_LIKE(2, 0)
static const struct gguf_tensor *find(const struct binding *b, const char *format, va_list args,
                                      char name[NAME_BYTES]) {
    vsnprintf(name, NAME_BYTES, format, args);
    return gguf_tensor_find(b->file, name);
}

/* In a function whose last named parameter is `format`: the tensor of that name, and the name. */
#define FIND(t, b, name, format)                                                                   \
    do {                                                                                           \
        va_list args;                                                                              \
        va_start(args, format);                                                                    \
        t = find(b, format, args, name);                                                           \
        va_end(args);                                                                              \
    } while (0)

static ats_status missing(const char *name) {
    return fail(ATS_UNSUPPORTED, "tensor %s is missing", name);
}

static ats_status check_shape(const struct gguf_tensor *t, int64_t n_cols, int64_t n_rows) {
    int64_t rows = t->dims[1] * t->dims[2] * t->dims[3];
    if (t->dims[0] == n_cols && rows == n_rows) return ATS_OK;
    return fail(ATS_BAD_FILE, "tensor %s is %lld x %lld, expected %lld x %lld", t->name,
                (long long)rows, (long long)t->dims[0], (long long)n_rows, (long long)n_cols);
}

static ats_status add_weight(struct binding *b, const struct gguf_tensor *t, struct graph_weight w,
                             int *weight) {
    int tensor = (int)(t - b->file->tensors);
    int64_t n_elements = (int64_t)w.n_rows * w.n_cols * max_int(1, w.n_experts);
    bool whole = w.row_begin == 0 && n_elements == t->n_elements;
    if (!dtype_info(t->dtype)->weight)
        return fail(ATS_UNSUPPORTED, "tensor %s has the type %s, which is not supported", t->name,
                    dtype_name(t->dtype));
    b->used[tensor] = true;
    if (whole && b->bound[tensor] >= 0) {
        *weight = b->bound[tensor];
        return ATS_OK;
    }
    w.name = t->name;
    w.tensor = tensor;
    w.dtype = t->dtype;
    *weight = graph_weight_add(b->builder, w);
    if (whole) b->bound[tensor] = *weight;
    return ATS_OK;
}

ats_status bind_matrix(struct binding *b, int n_rows, int n_cols, int *weight, const char *format,
                       ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    if (!t) return missing(name);
    TRY(check_shape(t, n_cols, n_rows));
    return add_weight(b, t, (struct graph_weight){.n_rows = n_rows, .n_cols = n_cols}, weight);
}

static ats_status check_f32(const struct gguf_tensor *t) {
    if (t->dtype == DTYPE_F32) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "tensor %s has the type %s, expected F32", t->name,
                dtype_name(t->dtype));
}

static ats_status check_experts(const struct gguf_tensor *t, int n_experts, int n_rows,
                                int n_cols) {
    if (t->dims[0] == n_cols && t->dims[1] == n_rows && t->dims[2] == n_experts && t->dims[3] == 1)
        return ATS_OK;
    return fail(ATS_BAD_FILE, "tensor %s is %lld x %lld x %lld, expected %d x %d x %d", t->name,
                (long long)t->dims[2], (long long)t->dims[1], (long long)t->dims[0], n_experts,
                n_rows, n_cols);
}

ats_status bind_experts(struct binding *b, int n_experts, int n_rows, int n_cols, int *weight,
                        const char *format, ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    if (!t) return missing(name);
    TRY(check_experts(t, n_experts, n_rows, n_cols));
    struct graph_weight w = {.n_rows = n_rows, .n_cols = n_cols, .n_experts = n_experts};
    return add_weight(b, t, w, weight);
}

/* The tensor of the e-th expert; the first says which type they all have. */
static ats_status find_expert(struct binding *b, const char *stem, int e, struct graph_weight *w,
                              const struct gguf_tensor **out) {
    char name[NAME_BYTES + 32];
    snprintf(name, sizeof name, "%s.%d.weight", stem, e);
    const struct gguf_tensor *t = gguf_tensor_find(b->file, name);
    if (!t) return missing(name);
    TRY(check_shape(t, w->n_cols, w->n_rows));
    if (e == 0) w->dtype = t->dtype;
    if (t->dtype != w->dtype)
        return fail(ATS_UNSUPPORTED,
                    "tensor %s has the type %s, the expert before it %s: experts of several types "
                    "are not supported",
                    name, dtype_name(t->dtype), dtype_name(w->dtype));
    *out = t;
    return ATS_OK;
}

ats_status bind_each_expert(struct binding *b, int n_experts, int n_rows, int n_cols, int *weight,
                            const char *format, ...) {
    char stem[NAME_BYTES];
    const struct gguf_tensor *t, *first = NULL;
    int *tensors = ARENA_ARRAY(b->arena, int, n_experts);
    struct graph_weight w = {.n_rows = n_rows, .n_cols = n_cols, .n_experts = n_experts};
    FIND(t, b, stem, format);
    for (int e = 0; e < n_experts; e++) {
        TRY(find_expert(b, stem, e, &w, &t));
        if (!first) first = t;
        tensors[e] = (int)(t - b->file->tensors);
        b->used[tensors[e]] = true;
    }
    w.tensors = tensors;
    return add_weight(b, first, w, weight);
}

ats_status bind_expert_rows(struct binding *b, int n_experts, int row_begin, int n_rows,
                            int n_rows_whole, int n_cols, int *weight, const char *format, ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    if (!t) return missing(name);
    TRY(check_experts(t, n_experts, n_rows_whole, n_cols));
    struct graph_weight w = {.row_begin = row_begin,
                             .n_rows = n_rows,
                             .n_cols = n_cols,
                             .n_experts = n_experts,
                             .matrix_rows = n_rows_whole};
    return add_weight(b, t, w, weight);
}

ats_status bind_expert_vectors(struct binding *b, int n_experts, int n, int *weight,
                               const char *format, ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    if (!t) return missing(name);
    TRY(check_shape(t, n, n_experts));
    TRY(check_f32(t));
    struct graph_weight w = {.n_rows = 1, .n_cols = n, .n_experts = n_experts};
    return add_weight(b, t, w, weight);
}

ats_status bind_rows(struct binding *b, int row_begin, int n_rows, int n_rows_whole, int n_cols,
                     int *weight, const char *format, ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    if (!t) return missing(name);
    TRY(check_shape(t, n_cols, n_rows_whole));
    struct graph_weight w = {.row_begin = row_begin, .n_rows = n_rows, .n_cols = n_cols};
    return add_weight(b, t, w, weight);
}

ats_status bind_filters(struct binding *b, int first, int n, int n_whole, int n_taps, int *weight,
                        const char *format, ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    if (!t) return missing(name);
    TRY(check_shape(t, n_taps, n_whole));
    TRY(check_f32(t));
    return add_weight(
        b, t, (struct graph_weight){.row_begin = first, .n_rows = 1, .n_cols = n * n_taps}, weight);
}

ats_status bind_vector(struct binding *b, int n, bool optional, int *weight, const char *format,
                       ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    *weight = -1;
    if (!t) return optional ? ATS_OK : missing(name);
    TRY(check_shape(t, n, 1));
    TRY(check_f32(t));
    return add_weight(b, t, (struct graph_weight){.n_rows = 1, .n_cols = n}, weight);
}

ats_status bind_part(struct binding *b, int first, int n, int n_whole, int *weight,
                     const char *format, ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    if (!t) return missing(name);
    TRY(check_shape(t, n_whole, 1));
    TRY(check_f32(t));
    return add_weight(b, t, (struct graph_weight){.row_begin = first, .n_rows = 1, .n_cols = n},
                      weight);
}

ats_status bind_constants(struct binding *b, int n, const char *name, const float **values) {
    const struct gguf_tensor *t = gguf_tensor_find(b->file, name);
    *values = NULL;
    if (!t) return ATS_OK;
    TRY(check_shape(t, n, 1));
    TRY(check_f32(t));
    b->used[t - b->file->tensors] = true;
    *values = (const float *)(const void *)t->data;
    return ATS_OK;
}

bool bind_has(const struct binding *b, const char *format, ...) {
    char name[NAME_BYTES];
    const struct gguf_tensor *t;
    FIND(t, b, name, format);
    return t != NULL;
}

enum math bind_math(const struct binding *b, int weight) {
    const struct graph_weight *w = graph_builder_weight(b->builder, weight);
    const bool bf16 = b->options->math == MATH_BF16;
    if (dtype_info(w->dtype)->quantised) return bf16 ? MATH_Q8 : b->options->math;
    return bf16 && w->dtype == DTYPE_BF16 ? MATH_BF16 : MATH_F32;
}

/* A list has a number for each layer, 0 where the layer has no such thing: all others must be one,
 * as nothing here differs between layers. */
static ats_status read_count(const struct gguf *g, const char *key, uint32_t *v) {
    const struct gguf_kv *kv = gguf_find(g, key);
    const struct gguf_array *list;
    if (!kv || kv->type != GGUF_ARRAY) return gguf_get_u32(g, key, v);
    TRY(gguf_get_ints(g, key, &list));
    *v = 0;
    for (size_t i = 0; i < list->n; i++) {
        const int64_t x = gguf_array_int(list, i);
        if (x < 0 || x > UINT32_MAX || (*v && x && x != *v))
            return fail(ATS_UNSUPPORTED, "key %s differs between layers, which is not supported",
                        kv->key);
        if (x) *v = (uint32_t)x;
    }
    return ATS_OK;
}

ats_status bind_count(const struct gguf *g, const char *key, int max, int *out) {
    uint32_t v;
    TRY(read_count(g, key, &v));
    if (v < 1 || v > (uint32_t)max)
        return fail(ATS_BAD_FILE, "key %s%s is %u, expected 1 to %d", key[0] == '.' ? g->arch : "",
                    key, v, max);
    *out = (int)v;
    return ATS_OK;
}
