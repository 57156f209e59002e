#include "model/gguf.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "model/gguf_parse.h"

const char *gguf_type_name(enum gguf_type type) {
    static const char *const names[N_GGUF_TYPES] = {
        [GGUF_U8] = "u8",      [GGUF_I8] = "i8",       [GGUF_U16] = "u16", [GGUF_I16] = "i16",
        [GGUF_U32] = "u32",    [GGUF_I32] = "i32",     [GGUF_F32] = "f32", [GGUF_BOOL] = "bool",
        [GGUF_STR] = "string", [GGUF_ARRAY] = "array", [GGUF_U64] = "u64", [GGUF_I64] = "i64",
        [GGUF_F64] = "f64",
    };
    REQUIRE((unsigned)type < N_GGUF_TYPES);
    return names[type];
}

/* What precedes a key that begins with a dot. */
static const char *prefix_of(const struct gguf *g, const char *key) {
    return key[0] == '.' ? g->arch : "";
}

const struct gguf_kv *gguf_find(const struct gguf *g, const char *key) {
    char full[256];
    if (key[0] == '.') {
        if (g->arch[0] == '\0') return NULL;
        int n = snprintf(full, sizeof full, "%s%s", g->arch, key);
        REQUIRE(n > 0 && (size_t)n < sizeof full);
        key = full;
    }
    int index = gguf_name_find(g->kv_names, (size_t)g->n_kvs, key);
    return index < 0 ? NULL : &g->kvs[index];
}

static ats_status missing(const struct gguf *g, const char *key) {
    if (key[0] == '.' && g->arch[0] == '\0') {
        return fail(ATS_BAD_FILE, "key general.architecture is missing");
    }
    return fail(ATS_BAD_FILE, "key %s%s is missing", prefix_of(g, key), key);
}

static ats_status wrong_type(const struct gguf_kv *kv, const char *wanted) {
    bool array = kv->type == GGUF_ARRAY;
    return fail(ATS_BAD_FILE, "key %s is of type %s%s, not %s", kv->key, array ? "array of " : "",
                gguf_type_name(array ? kv->array.type : kv->type), wanted);
}

/* ---- Scalars ---- */

static ats_status read_signed(const struct gguf_kv *kv, int64_t low, int64_t high, int64_t *v) {
    bool above = false;
    int64_t value = 0;
    if (kv->type == GGUF_BOOL || !gguf_read_int(kv->type, kv->data, &value, &above)) {
        return wrong_type(kv, "an integer");
    }
    if (above || value < low || value > high) {
        /* A u64 is shown as such: above is set when its top bit is. */
        char text[32];
        if (above)
            snprintf(text, sizeof text, "%" PRIu64, (uint64_t)value);
        else
            snprintf(text, sizeof text, "%" PRId64, value);
        return fail(ATS_BAD_FILE, "key %s is %s, which is out of range", kv->key, text);
    }
    *v = value;
    return ATS_OK;
}

static ats_status read_kv_u32(const struct gguf_kv *kv, uint32_t *v) {
    int64_t value = 0;
    TRY(read_signed(kv, 0, UINT32_MAX, &value));
    *v = (uint32_t)value;
    return ATS_OK;
}

static ats_status read_kv_i32(const struct gguf_kv *kv, int32_t *v) {
    int64_t value = 0;
    TRY(read_signed(kv, INT32_MIN, INT32_MAX, &value));
    *v = (int32_t)value;
    return ATS_OK;
}

static ats_status read_kv_i64(const struct gguf_kv *kv, int64_t *v) {
    return read_signed(kv, INT64_MIN, INT64_MAX, v);
}

static ats_status read_kv_u64(const struct gguf_kv *kv, uint64_t *v) {
    if (kv->type == GGUF_U64) {
        memcpy(v, kv->data, sizeof *v);
        return ATS_OK;
    }
    int64_t value = 0;
    TRY(read_signed(kv, 0, INT64_MAX, &value));
    *v = (uint64_t)value;
    return ATS_OK;
}

static ats_status read_kv_f32(const struct gguf_kv *kv, float *v) {
    if (kv->type != GGUF_F32 && kv->type != GGUF_F64) return wrong_type(kv, "a float");
    float value = (float)gguf_kv_float(kv);
    if (!isfinite(value)) return fail(ATS_BAD_FILE, "key %s is not a finite float", kv->key);
    *v = value;
    return ATS_OK;
}

static ats_status read_kv_bool(const struct gguf_kv *kv, bool *v) {
    if (kv->type != GGUF_BOOL) return wrong_type(kv, "a bool");
    *v = kv->data[0] != 0;
    return ATS_OK;
}

static ats_status read_kv_str(const struct gguf_kv *kv, struct gguf_str *v) {
    if (kv->type != GGUF_STR) return wrong_type(kv, "a string");
    *v = gguf_kv_str(kv);
    return ATS_OK;
}

/* ---- Arrays ---- */

static bool is_int(enum gguf_type type) {
    return type != GGUF_F32 && type != GGUF_F64 && gguf_type_bytes(type) != 0;
}

static ats_status read_kv_strs(const struct gguf_kv *kv, const struct gguf_array **a) {
    if (kv->type != GGUF_ARRAY || kv->array.type != GGUF_STR) {
        return wrong_type(kv, "an array of strings");
    }
    *a = &kv->array;
    return ATS_OK;
}

static ats_status read_kv_ints(const struct gguf_kv *kv, const struct gguf_array **a) {
    if (kv->type != GGUF_ARRAY || !is_int(kv->array.type)) {
        return wrong_type(kv, "an array of integers");
    }
    *a = &kv->array;
    return ATS_OK;
}

static ats_status read_kv_floats(const struct gguf_kv *kv, const struct gguf_array **a) {
    if (kv->type != GGUF_ARRAY || (kv->array.type != GGUF_F32 && kv->array.type != GGUF_F64)) {
        return wrong_type(kv, "an array of floats");
    }
    *a = &kv->array;
    return ATS_OK;
}

/* gguf_get_NAME and gguf_opt_NAME of gguf.h over read_kv_NAME. */
#define DEFINE_GETTERS(name, type)                                                                 \
    ats_status gguf_get_##name(const struct gguf *g, const char *key, type v) {                    \
        const struct gguf_kv *kv = gguf_find(g, key);                                              \
        return kv == NULL ? missing(g, key) : read_kv_##name(kv, v);                               \
    }                                                                                              \
    ats_status gguf_opt_##name(const struct gguf *g, const char *key, type v) {                    \
        const struct gguf_kv *kv = gguf_find(g, key);                                              \
        return kv == NULL ? ATS_OK : read_kv_##name(kv, v);                                        \
    }

DEFINE_GETTERS(u32, uint32_t *)
DEFINE_GETTERS(i32, int32_t *)
DEFINE_GETTERS(u64, uint64_t *)
DEFINE_GETTERS(i64, int64_t *)
DEFINE_GETTERS(f32, float *)
DEFINE_GETTERS(bool, bool *)
DEFINE_GETTERS(str, struct gguf_str *)
DEFINE_GETTERS(strs, const struct gguf_array **)
DEFINE_GETTERS(ints, const struct gguf_array **)
DEFINE_GETTERS(floats, const struct gguf_array **)

ats_status gguf_check_length(const struct gguf *g, const char *key, size_t n) {
    const struct gguf_kv *kv = gguf_find(g, key);
    if (kv == NULL) return missing(g, key);
    if (kv->type != GGUF_ARRAY) return wrong_type(kv, "an array");
    if (kv->array.n != n) {
        return fail(ATS_BAD_FILE, "key %s has %zu elements, not %zu", kv->key, kv->array.n, n);
    }
    return ATS_OK;
}

/* ---- Elements ---- */

static struct gguf_str str_at(const uint8_t *data) {
    uint64_t n;
    memcpy(&n, data, sizeof n);
    return (struct gguf_str){(const char *)data + sizeof n, (size_t)n};
}

static int64_t int_at(enum gguf_type type, const uint8_t *data) {
    bool above = false;
    int64_t v = 0;
    bool ok = gguf_read_int(type, data, &v, &above);
    REQUIRE(ok);
    return above ? INT64_MAX : v;
}

static double float_at(enum gguf_type type, const uint8_t *data) {
    if (type == GGUF_F64) {
        double v;
        memcpy(&v, data, sizeof v);
        return v;
    }
    REQUIRE(type == GGUF_F32);
    float v;
    memcpy(&v, data, sizeof v);
    return (double)v;
}

struct gguf_str gguf_array_str(const struct gguf_array *a, size_t i) {
    REQUIRE(a->type == GGUF_STR && i < a->n);
    return str_at(a->data + a->str_offsets[i]);
}

int64_t gguf_array_int(const struct gguf_array *a, size_t i) {
    REQUIRE(i < a->n);
    return int_at(a->type, a->data + i * gguf_type_bytes(a->type));
}

float gguf_array_float(const struct gguf_array *a, size_t i) {
    REQUIRE(i < a->n);
    return (float)float_at(a->type, a->data + i * gguf_type_bytes(a->type));
}

struct gguf_str gguf_kv_str(const struct gguf_kv *kv) {
    REQUIRE(kv->type == GGUF_STR);
    return str_at(kv->data);
}

bool gguf_str_is(struct gguf_str s, const char *text) {
    return s.n == strlen(text) && memcmp(s.data, text, s.n) == 0;
}

int64_t gguf_kv_int(const struct gguf_kv *kv) {
    return int_at(kv->type, kv->data);
}

double gguf_kv_float(const struct gguf_kv *kv) {
    return float_at(kv->type, kv->data);
}
