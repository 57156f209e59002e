#include "model/shape.h"

#include <math.h>
#include <string.h>

#include "base/json.h"
#include "model/gguf_write.h"

#define MAX_FILE_BYTES   (4 << 20)
#define MAX_LAYERS       1024
#define MAX_TENSORS      65536
#define MAX_TENSOR_BYTES (INT64_C(1) << 44) /* so that no sum of sizes overflows */
#define MAX_ARRAY        4096
/* A name stands once in the file, but once a layer in memory. (ggml's own limit is 63.) */
#define MAX_NAME_BYTES 255

struct reader {
    struct gguf_writer *writer;
    int n_tensors;
};

bool shape_is_path(const char *path) {
    size_t n = strlen(path);
    return n > 5 && strcmp(path + n - 5, ".json") == 0;
}

/* ---- metadata ---- */

static void put_integer(struct gguf_writer *w, const char *key, int64_t v) {
    if (v >= 0 && v <= UINT32_MAX)
        gguf_put_u32(w, key, (uint32_t)v);
    else
        gguf_put_i64(w, key, v);
}

static ats_status put_array(struct gguf_writer *w, const char *key, const json_t *array) {
    size_t n = json_array_size(array);
    json_type type = n > 0 ? json_typeof(json_array_get(array, 0)) : JSON_NULL;
    bool boolean = type == JSON_TRUE || type == JSON_FALSE, real = type == JSON_REAL;
    if (n == 0 || n > MAX_ARRAY || !(boolean || real || type == JSON_INTEGER))
        return fail(ATS_BAD_FILE, "metadata %s is not a list of 1 to %d numbers or booleans", key,
                    MAX_ARRAY);
    struct arena arena = {0};
    uint8_t *bools = ARENA_ARRAY(&arena, uint8_t, n);
    float *reals = ARENA_ARRAY(&arena, float, n);
    int64_t *integers = ARENA_ARRAY(&arena, int64_t, n);
    bool same = true;
    for (size_t i = 0; i < n; i++) {
        const json_t *v = json_array_get(array, i);
        same = same && (boolean ? json_is_boolean(v) : real ? json_is_real(v) : json_is_integer(v));
        bools[i] = json_is_true(v);
        reals[i] = (float)json_number_value(v);
        integers[i] = json_integer_value(v);
    }
    if (same && boolean) gguf_put_array(w, key, GGUF_BOOL, bools, n);
    if (same && real) gguf_put_array(w, key, GGUF_F32, reals, n);
    if (same && !boolean && !real) gguf_put_array(w, key, GGUF_I64, integers, n);
    arena_free(&arena);
    if (same) return ATS_OK;
    return fail(ATS_BAD_FILE, "metadata %s is a list of several types", key);
}

static ats_status put_value(struct gguf_writer *w, const char *key, const json_t *v) {
    if (key[0] == 0) return fail(ATS_BAD_FILE, "a key of the metadata is empty");
    if (json_is_string(v))
        gguf_put_str_n(w, key, json_string_value(v), json_string_length(v));
    else if (json_is_boolean(v))
        gguf_put_bool(w, key, json_is_true(v));
    else if (json_is_integer(v))
        put_integer(w, key, json_integer_value(v));
    else if (json_is_real(v))
        gguf_put_f32(w, key, (float)json_real_value(v));
    else if (json_is_array(v))
        return put_array(w, key, v);
    else
        return fail(ATS_BAD_FILE, "metadata %s is neither a string, boolean, number nor list", key);
    return ATS_OK;
}

/* ---- tensors ---- */

static ats_status read_dims(const char *name, enum dtype type, const json_t *list, int64_t *dims,
                            int *n_dims) {
    size_t n = json_array_size(list);
    if (n < 1 || n > GGUF_MAX_DIMS)
        return fail(ATS_BAD_FILE, "tensor %s has no list of 1 to %d dimensions", name,
                    GGUF_MAX_DIMS);
    int64_t n_bytes = 1;
    for (size_t i = 0; i < n; i++) {
        dims[i] = json_integer_value(json_array_get(list, i)); /* 0 if it is no integer */
        bool fits = dims[i] > 0 && (i > 0 || dtype_row_size(type, dims[0], &n_bytes));
        if (i > 0 && fits) fits = !__builtin_mul_overflow(n_bytes, dims[i], &n_bytes);
        if (!fits || n_bytes > MAX_TENSOR_BYTES)
            return fail(ATS_BAD_FILE, "dimension %zu of tensor %s is not possible in %s", i, name,
                        dtype_name(type));
    }
    *n_dims = (int)n;
    return ATS_OK;
}

/* One [name, type, dims]; layer -1: of no layer. */
static ats_status put_tensor(struct reader *r, const json_t *entry, int layer) {
    const char *name = json_string_value(json_array_get(entry, 0));
    const char *type_name = json_string_value(json_array_get(entry, 1));
    enum dtype type;
    if (!name || !name[0] || !type_name || json_array_size(entry) != 3)
        return fail(ATS_BAD_FILE, "tensor %d is not of the form [name, type, dimensions]",
                    r->n_tensors);
    size_t n_name = json_string_length(json_array_get(entry, 0));
    if (n_name > MAX_NAME_BYTES)
        return fail(ATS_BAD_FILE, "the name of tensor %d has %zu bytes, more than %d", r->n_tensors,
                    n_name, MAX_NAME_BYTES);
    if (!dtype_from_name(type_name, &type))
        return fail(ATS_BAD_FILE, "tensor %s has the unknown type %s", name, type_name);
    if (++r->n_tensors > MAX_TENSORS)
        return fail(ATS_BAD_FILE, "it has more than %d tensors", MAX_TENSORS);
    int64_t dims[GGUF_MAX_DIMS];
    int n_dims = 0;
    TRY(read_dims(name, type, json_array_get(entry, 2), dims, &n_dims));
    struct buf full = {0};
    if (layer >= 0) buf_printf(&full, "blk.%d.", layer);
    buf_add_str(&full, name);
    gguf_put_tensor(r->writer, buf_str(&full), type, n_dims, dims);
    buf_free(&full);
    return ATS_OK;
}

static ats_status put_layers(struct reader *r, const json_t *tensors, const json_t *pair,
                             int step) {
    int64_t first = json_integer_value(json_array_get(pair, 0));
    int64_t last = json_integer_value(json_array_get(pair, 1));
    bool ok = json_array_size(pair) == 2 && json_is_integer(json_array_get(pair, 0)) &&
              json_is_integer(json_array_get(pair, 1)) && first >= 0 && last >= first &&
              last < MAX_LAYERS;
    if (!ok) return fail(ATS_BAD_FILE, "layers are not [first, last] of 0 to %d", MAX_LAYERS - 1);
    for (int64_t layer = first; layer <= last; layer += step)
        for (size_t i = 0; i < json_array_size(tensors); i++)
            TRY(put_tensor(r, json_array_get(tensors, i), (int)layer));
    return ATS_OK;
}

static ats_status put_group(struct reader *r, const json_t *group) {
    const json_t *layers = json_object_get(group, "layers");
    const json_t *tensors = json_object_get(group, "tensors");
    const json_t *step = json_object_get(group, "step");
    int64_t n = step ? json_integer_value(step) : 1;
    if (!json_is_array(layers) || !json_is_array(tensors) || n < 1 || n > MAX_LAYERS)
        return fail(ATS_BAD_FILE, "a group of tensors has no \"layers\", \"tensors\" or \"step\" "
                                  "that can be used");
    if (json_array_size(layers) > MAX_LAYERS)
        return fail(ATS_BAD_FILE, "layers has %zu entries, more than %d", json_array_size(layers),
                    MAX_LAYERS);
    bool nested = false;
    for (size_t i = 0; i < json_array_size(layers); i++)
        nested = nested || json_is_array(json_array_get(layers, i));
    if (!nested) return put_layers(r, tensors, layers, (int)n);
    for (size_t i = 0; i < json_array_size(layers); i++) {
        const json_t *one = json_array_get(layers, i);
        if (json_is_array(one)) {
            TRY(put_layers(r, tensors, one, (int)n));
            continue;
        }
        json_t *pair = json_pack("[I, I]", json_integer_value(one), json_integer_value(one));
        ats_status status = json_is_integer(one)
                                ? put_layers(r, tensors, pair, 1)
                                : fail(ATS_BAD_FILE, "an entry of layers is no number");
        json_decref(pair);
        TRY(status);
    }
    return ATS_OK;
}

/* ---- the file ---- */

static ats_status put_all(struct reader *r, json_t *shape) {
    const char *kind = json_string_value(json_object_get(shape, "atsinfer"));
    if (!kind || strcmp(kind, "shape") != 0 ||
        json_integer_value(json_object_get(shape, "version")) != 1)
        return fail(ATS_BAD_FILE, "it does not say \"atsinfer\": \"shape\" and \"version\": 1");
    json_t *metadata = json_object_get(shape, "metadata"), *value;
    const json_t *tensors = json_object_get(shape, "tensors");
    const char *key;
    if (!json_is_object(metadata) || !json_is_array(tensors))
        return fail(ATS_BAD_FILE, "it has no \"metadata\" or no \"tensors\"");
    json_object_foreach(metadata, key, value) TRY(put_value(r->writer, key, value));
    for (size_t i = 0; i < json_array_size(tensors); i++) {
        const json_t *entry = json_array_get(tensors, i);
        if (json_is_object(entry))
            TRY(put_group(r, entry));
        else
            TRY(put_tensor(r, entry, -1));
    }
    return ATS_OK;
}

/* As the header of a file, which is then read like any other. */
static ats_status make(json_t *shape, struct gguf **out) {
    struct reader r = {.writer = gguf_writer_open()};
    struct buf header = {0};
    ats_status status = put_all(&r, shape);
    if (status == ATS_OK) status = gguf_writer_begin_memory(r.writer, &header);
    if (status == ATS_OK) status = gguf_open_header(header.data, header.len, out);
    gguf_writer_close(r.writer);
    buf_free(&header);
    return status;
}

ats_status shape_parse(const char *text, size_t n, const char *where, struct gguf **out) {
    json_t *shape;
    *out = NULL;
    ats_status status = json_parse(text, n, &shape);
    if (status == ATS_OK) {
        status = make(shape, out);
        json_decref(shape);
    }
    return status == ATS_OK ? ATS_OK : fail_in(ATS_BAD_FILE, "%s", where);
}

ats_status shape_open(const char *path, struct gguf **out) {
    json_t *shape;
    *out = NULL;
    TRY(json_read_file(path, MAX_FILE_BYTES, &shape));
    ats_status status = make(shape, out);
    json_decref(shape);
    return status == ATS_OK ? ATS_OK : fail_in(ATS_BAD_FILE, "%s", path);
}
