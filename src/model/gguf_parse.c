#include "model/gguf_parse.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "GGUF is read as it lies in memory");
_Static_assert(sizeof(size_t) == 8, "lengths of a checked file fit a size_t");

#define NAME_MAX_BYTES 65535
#define COUNT_MAX      (1 << 24) /* keys or tensors: far above any real file, fits an int */
#define ALIGNMENT_MIN  8
#define ALIGNMENT_MAX  (1 << 20)
/* What an entry takes at least: key length, a byte of key, type, value; name length, a byte of
 * name, number of dimensions, one of them, type, offset. */
#define KV_MIN_BYTES     (8 + 1 + 4 + 1)
#define TENSOR_MIN_BYTES (8 + 1 + 4 + 8 + 4 + 8)

struct cursor {
    const uint8_t *data;
    uint64_t size, at;       /* at <= size */
    const char *kind, *name; /* what is being read, for messages: "key ", "general.name" */
};

/* The guard of every read. */
static ats_status need(const struct cursor *c, uint64_t n_bytes) {
    uint64_t left = c->size - c->at;
    if (LIKELY(n_bytes <= left)) return ATS_OK;
    return fail(ATS_BAD_FILE,
                "the file ends inside %s%s at byte %" PRIu64 ": at least %" PRIu64
                " bytes are missing",
                c->kind, c->name, c->at, n_bytes - left);
}

static ats_status read_u32(struct cursor *c, uint32_t *v) {
    TRY(need(c, sizeof *v));
    memcpy(v, c->data + c->at, sizeof *v);
    c->at += sizeof *v;
    return ATS_OK;
}

static ats_status read_u64(struct cursor *c, uint64_t *v) {
    TRY(need(c, sizeof *v));
    memcpy(v, c->data + c->at, sizeof *v);
    c->at += sizeof *v;
    return ATS_OK;
}

/* A number of entries, each of which takes at least min_bytes. */
static ats_status check_count(const struct cursor *c, uint64_t n, uint64_t min_bytes,
                              const char *what) {
    uint64_t left = c->size - c->at;
    if (n <= left / min_bytes) return ATS_OK;
    return fail(ATS_BAD_FILE,
                "%s%s is said to have %" PRIu64 " %s, but the file has only %" PRIu64 " bytes more",
                c->kind, c->name, n, what, left);
}

static bool printable(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++) {
        if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) return false;
    }
    return utf8_valid(s, n);
}

/* A key or a tensor's name, copied to the arena; from here on messages carry it. */
static ats_status read_name(struct cursor *c, struct arena *arena, const char *kind,
                            const char **name) {
    uint64_t begin = c->at, n = 0;
    c->kind = kind;
    c->name = "name";
    TRY(read_u64(c, &n));
    if (n == 0) return fail(ATS_BAD_FILE, "the %sname at byte %" PRIu64 " is empty", kind, begin);
    if (n > NAME_MAX_BYTES) {
        return fail(ATS_BAD_FILE,
                    "the %sname at byte %" PRIu64 " is said to be %" PRIu64 " bytes long", kind,
                    begin, n);
    }
    TRY(need(c, n));
    const char *s = (const char *)c->data + c->at;
    if (!printable(s, (size_t)n)) {
        return fail(ATS_BAD_FILE, "the %sname at byte %" PRIu64 " is not printable UTF-8", kind,
                    begin);
    }
    *name = arena_strndup(arena, s, (size_t)n);
    c->name = *name;
    c->at += n;
    return ATS_OK;
}

/* ---- Values ---- */

size_t gguf_type_bytes(enum gguf_type type) {
    static const uint8_t bytes[N_GGUF_TYPES] = {
        [GGUF_U8] = 1,  [GGUF_I8] = 1,  [GGUF_U16] = 2, [GGUF_I16] = 2,
        [GGUF_U32] = 4, [GGUF_I32] = 4, [GGUF_F32] = 4, [GGUF_BOOL] = 1,
        [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8,
    };
    return bytes[type];
}

static ats_status read_type(struct cursor *c, const char *key, enum gguf_type *type) {
    uint32_t v = 0;
    TRY(read_u32(c, &v));
    if (v >= N_GGUF_TYPES) {
        return fail(ATS_BAD_FILE, "key %s has a value of unknown type %" PRIu32, key, v);
    }
    *type = (enum gguf_type)v;
    return ATS_OK;
}

static ats_status skip_string(struct cursor *c, const char *key, bool any_bytes) {
    uint64_t n = 0;
    TRY(read_u64(c, &n));
    TRY(need(c, n));
    if (!any_bytes && !utf8_valid((const char *)c->data + c->at, (size_t)n)) {
        return fail(ATS_BAD_FILE, "key %s holds a string that is not UTF-8 at byte %" PRIu64, key,
                    c->at);
    }
    c->at += n;
    return ATS_OK;
}

static ats_status check_bools(const struct cursor *c, const char *key, uint64_t n) {
    for (uint64_t i = 0; i < n; i++) {
        if (c->data[c->at + i] > 1) {
            return fail(ATS_BAD_FILE, "key %s holds a bool that is %d", key, c->data[c->at + i]);
        }
    }
    return ATS_OK;
}

/*
 * Checks an array from its element type on and leaves the cursor behind it. Allocates nothing, so
 * that fill_array afterwards allocates only for elements that are there. Depth is bounded.
 */
static ats_status check_array(struct cursor *c, const char *key, bool any_bytes, int depth) {
    if (depth > GGUF_MAX_DEPTH) {
        return fail(ATS_BAD_FILE, "key %s holds arrays nested more than %d deep", key,
                    GGUF_MAX_DEPTH);
    }
    enum gguf_type type = GGUF_U8;
    uint64_t n = 0;
    TRY(read_type(c, key, &type));
    TRY(read_u64(c, &n));
    size_t each = gguf_type_bytes(type);
    if (each != 0) {
        uint64_t n_bytes;
        if (!mul_u64(n, each, &n_bytes)) {
            return fail(ATS_BAD_FILE, "key %s is an array of %" PRIu64 " elements", key, n);
        }
        TRY(need(c, n_bytes));
        if (type == GGUF_BOOL) TRY(check_bools(c, key, n));
        c->at += n_bytes;
        return ATS_OK;
    }
    TRY(check_count(c, n, type == GGUF_STR ? 8 : 4 + 8, "elements"));
    for (uint64_t i = 0; i < n; i++) {
        if (type == GGUF_STR) {
            TRY(skip_string(c, key, any_bytes));
        } else {
            TRY(check_array(c, key, any_bytes, depth + 1));
        }
    }
    return ATS_OK;
}

static uint64_t take_u64(struct cursor *c) {
    uint64_t v;
    memcpy(&v, c->data + c->at, sizeof v);
    c->at += sizeof v;
    return v;
}

/* The same walk over an array that check_array has passed: fills a and its indexes. */
static void fill_array(struct cursor *c, struct arena *arena, struct gguf_array *a) {
    uint32_t type;
    memcpy(&type, c->data + c->at, sizeof type);
    c->at += sizeof type;
    a->type = (enum gguf_type)type;
    a->n = (size_t)take_u64(c);
    a->data = c->data + c->at;
    if (a->type == GGUF_STR) {
        uint64_t *offsets = ARENA_ARRAY(arena, uint64_t, a->n);
        uint64_t begin = c->at;
        for (size_t i = 0; i < a->n; i++) {
            offsets[i] = c->at - begin;
            uint64_t n = take_u64(c);
            c->at += n;
        }
        a->str_offsets = offsets;
    } else if (a->type == GGUF_ARRAY) {
        struct gguf_array *arrays = ARENA_ARRAY(arena, struct gguf_array, a->n);
        for (size_t i = 0; i < a->n; i++)
            fill_array(c, arena, &arrays[i]);
        a->arrays = arrays;
    } else {
        c->at += a->n * gguf_type_bytes(a->type);
    }
}

static ats_status read_value(struct cursor *c, struct arena *arena, struct gguf_kv *kv) {
    if (kv->type == GGUF_STR) return skip_string(c, kv->key, false);
    if (kv->type == GGUF_ARRAY) {
        bool any_bytes = strcmp(kv->key, "tokenizer.ggml.tokens") == 0 ||
                         strcmp(kv->key, "tokenizer.ggml.merges") == 0;
        struct cursor begin = *c;
        TRY(check_array(c, kv->key, any_bytes, 1));
        fill_array(&begin, arena, &kv->array);
        return ATS_OK;
    }
    size_t n_bytes = gguf_type_bytes(kv->type);
    TRY(need(c, n_bytes));
    if (kv->type == GGUF_BOOL) TRY(check_bools(c, kv->key, 1));
    c->at += n_bytes;
    return ATS_OK;
}

static ats_status read_kv(struct cursor *c, struct arena *arena, struct gguf_kv *kv) {
    TRY(read_name(c, arena, "key ", &kv->key));
    if (kv->key[0] == '.') return fail(ATS_BAD_FILE, "key %s begins with a dot", kv->key);
    TRY(read_type(c, kv->key, &kv->type));
    uint64_t begin = c->at;
    TRY(read_value(c, arena, kv));
    kv->data = c->data + begin;
    kv->n_bytes = c->at - begin;
    return ATS_OK;
}

bool gguf_read_int(enum gguf_type type, const uint8_t *data, int64_t *out, bool *above) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        int64_t i64;
    } v = {0};
    memcpy(&v, data, gguf_type_bytes(type));
    *above = false;
    switch (type) {
    case GGUF_U8:
        *out = v.u8;
        return true;
    case GGUF_I8:
        *out = v.i8;
        return true;
    case GGUF_U16:
        *out = v.u16;
        return true;
    case GGUF_I16:
        *out = v.i16;
        return true;
    case GGUF_U32:
        *out = v.u32;
        return true;
    case GGUF_I32:
        *out = v.i32;
        return true;
    case GGUF_BOOL:
        *out = v.u8;
        return true;
    case GGUF_I64:
        *out = v.i64;
        return true;
    case GGUF_U64:
        *out = v.i64;
        *above = v.i64 < 0;
        return true;
    default:
        return false;
    }
}

static ats_status find_alignment(const struct gguf_kv_list *kvs, uint32_t *alignment) {
    *alignment = 32;
    int index = gguf_name_find(kvs->names, kvs->n, "general.alignment");
    if (index < 0) return ATS_OK;
    const struct gguf_kv *kv = &kvs->items[index];
    int64_t v;
    bool above;
    if (kv->type == GGUF_BOOL || !gguf_read_int(kv->type, kv->data, &v, &above)) {
        return fail(ATS_BAD_FILE, "key general.alignment is of type %s, not an integer",
                    gguf_type_name(kv->type));
    }
    if (above || v < ALIGNMENT_MIN || v > ALIGNMENT_MAX || (v & (v - 1)) != 0) {
        return fail(ATS_BAD_FILE,
                    "key general.alignment is %" PRId64 ", not a power of two from %d to %d", v,
                    ALIGNMENT_MIN, ALIGNMENT_MAX);
    }
    *alignment = (uint32_t)v;
    return ATS_OK;
}

/* ---- Names ---- */

static int compare_names(const void *a, const void *b) {
    const struct gguf_name *x = a, *y = b;
    int order = strcmp(x->name, y->name);
    return order != 0 ? order : (x->index > y->index) - (x->index < y->index);
}

void gguf_sort_names(struct gguf_name *names, size_t n, const char **twice) {
    if (n > 0) qsort(names, n, sizeof *names, compare_names);
    *twice = NULL;
    for (size_t i = 1; i < n && *twice == NULL; i++) {
        if (strcmp(names[i - 1].name, names[i].name) == 0) *twice = names[i].name;
    }
}

int gguf_name_find(const struct gguf_name *names, size_t n, const char *name) {
    size_t low = 0, high = n;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(name, names[middle].name);
        if (order == 0) return names[middle].index;
        if (order < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return -1;
}

static ats_status read_kvs(struct cursor *c, struct arena *arena, uint64_t n,
                           struct gguf_kv_list *kvs) {
    for (uint64_t i = 0; i < n; i++) {
        GROW(kvs->items, kvs->n, kvs->cap, 1);
        struct gguf_kv *kv = &kvs->items[kvs->n];
        *kv = (struct gguf_kv){0};
        TRY(read_kv(c, arena, kv));
        kvs->n++;
    }
    kvs->names = ARENA_ARRAY(arena, struct gguf_name, kvs->n);
    for (size_t i = 0; i < kvs->n; i++) {
        kvs->names[i] = (struct gguf_name){kvs->items[i].key, (int)i};
    }
    const char *twice;
    gguf_sort_names(kvs->names, kvs->n, &twice);
    if (twice != NULL) return fail(ATS_BAD_FILE, "key %s appears twice", twice);
    return ATS_OK;
}

/* ---- Tensors ---- */

static ats_status read_dims(struct cursor *c, struct gguf_tensor *t) {
    uint32_t n_dims = 0;
    TRY(read_u32(c, &n_dims));
    if (n_dims < 1 || n_dims > GGUF_MAX_DIMS) {
        return fail(ATS_BAD_FILE, "tensor %s has %" PRIu32 " dimensions, not 1 to %d", t->name,
                    n_dims, GGUF_MAX_DIMS);
    }
    t->n_dims = (int)n_dims;
    t->n_elements = 1;
    for (int i = 0; i < GGUF_MAX_DIMS; i++) {
        uint64_t dim = 1;
        if (i < t->n_dims) TRY(read_u64(c, &dim));
        if (dim == 0) return fail(ATS_BAD_FILE, "tensor %s has a dimension of 0", t->name);
        if (dim > INT64_MAX ||
            __builtin_mul_overflow(t->n_elements, (int64_t)dim, &t->n_elements)) {
            return fail(ATS_BAD_FILE, "the dimensions of tensor %s overflow", t->name);
        }
        t->dims[i] = (int64_t)dim;
    }
    return ATS_OK;
}

static ats_status read_tensor(struct cursor *c, struct arena *arena, uint32_t alignment,
                              struct gguf_tensor *t) {
    TRY(read_name(c, arena, "tensor ", &t->name));
    TRY(read_dims(c, t));
    uint32_t type_id = 0;
    TRY(read_u32(c, &type_id));
    ats_status status = dtype_from_ggml(type_id, &t->dtype);
    if (status != ATS_OK) return fail_in(status, "tensor %s", t->name);
    const struct dtype_info *info = dtype_info(t->dtype);
    if (t->dims[0] % info->block_elements != 0) {
        return fail(ATS_BAD_FILE,
                    "tensor %s has rows of %" PRId64 " elements, not a multiple of the %d of a %s "
                    "block",
                    t->name, t->dims[0], info->block_elements, info->name);
    }
    int64_t n_rows = t->n_elements / t->dims[0];
    if (!dtype_row_size(t->dtype, t->dims[0], &t->row_bytes) ||
        __builtin_mul_overflow(t->row_bytes, n_rows, &t->n_bytes)) {
        return fail(ATS_BAD_FILE, "the size of tensor %s overflows", t->name);
    }
    TRY(read_u64(c, &t->file_offset)); /* from the data's begin, until place_tensors */
    if (t->file_offset % alignment != 0) {
        return fail(ATS_BAD_FILE,
                    "tensor %s begins at offset %" PRIu64
                    ", not a multiple of the alignment %" PRIu32,
                    t->name, t->file_offset, alignment);
    }
    return ATS_OK;
}

static int compare_offsets(const void *a, const void *b) {
    const struct gguf_tensor *x = *(const struct gguf_tensor *const *)a;
    const struct gguf_tensor *y = *(const struct gguf_tensor *const *)b;
    if (x->file_offset != y->file_offset) return x->file_offset < y->file_offset ? -1 : 1;
    return x < y ? -1 : x > y;
}

/* Turns offsets into places in the file; every tensor must lie inside it, none in another. */
static ats_status place_tensors(const struct cursor *c, uint64_t data_offset, bool header_only,
                                int file_index, struct gguf_tensor *tensors, size_t n) {
    for (size_t i = 0; i < n; i++) {
        struct gguf_tensor *t = &tensors[i];
        uint64_t begin, end;
        if (!add_u64(data_offset, t->file_offset, &begin) ||
            !add_u64(begin, (uint64_t)t->n_bytes, &end)) {
            return fail(ATS_BAD_FILE, "the offset of tensor %s overflows", t->name);
        }
        if (end > c->size && !header_only) {
            return fail(ATS_BAD_FILE,
                        "tensor %s ends at byte %" PRIu64 " of a file of %" PRIu64 ": %" PRIu64
                        " bytes are missing",
                        t->name, end, c->size, end - c->size);
        }
        t->file_index = file_index;
        t->file_offset = begin;
        t->data = header_only ? NULL : c->data + begin;
    }
    const struct gguf_tensor **order = xcalloc(n, sizeof(const struct gguf_tensor *));
    for (size_t i = 0; i < n; i++)
        order[i] = &tensors[i];
    if (n > 0) qsort(order, n, sizeof(const struct gguf_tensor *), compare_offsets);
    ats_status status = ATS_OK;
    for (size_t i = 1; i < n && status == ATS_OK; i++) {
        const struct gguf_tensor *before = order[i - 1], *t = order[i];
        if (before->file_offset + (uint64_t)before->n_bytes > t->file_offset) {
            status = fail(ATS_BAD_FILE, "tensors %s and %s overlap", before->name, t->name);
        }
    }
    free(order);
    return status;
}

/* ---- The file ---- */

static ats_status read_preamble(struct cursor *c, uint32_t *version, uint64_t *n_tensors,
                                uint64_t *n_kvs) {
    if (c->size < 4 || memcmp(c->data, "GGUF", 4) != 0) {
        return fail(ATS_BAD_FILE, "this is not a GGUF file: it does not begin with GGUF");
    }
    c->at = 4;
    TRY(read_u32(c, version));
    if (*version == 0x02000000 || *version == 0x03000000) {
        return fail(ATS_UNSUPPORTED, "this GGUF file is big-endian, which is not supported");
    }
    if (*version != 2 && *version != 3) {
        return fail(ATS_UNSUPPORTED, "GGUF version %" PRIu32 " is not supported (2 and 3 are)",
                    *version);
    }
    TRY(read_u64(c, n_tensors));
    TRY(read_u64(c, n_kvs));
    TRY(check_count(c, *n_kvs, KV_MIN_BYTES, "keys"));
    TRY(check_count(c, *n_tensors, TENSOR_MIN_BYTES, "tensors"));
    if (*n_kvs > COUNT_MAX || *n_tensors > COUNT_MAX) {
        return fail(ATS_BAD_FILE, "%" PRIu64 " keys and %" PRIu64 " tensors are too many", *n_kvs,
                    *n_tensors);
    }
    return ATS_OK;
}

ats_status gguf_parse(const uint8_t *data, uint64_t n_bytes, bool header_only, int file_index,
                      struct arena *arena, struct gguf_kv_list *kvs,
                      struct gguf_tensor_list *tensors, struct gguf_header *header) {
    struct cursor c = {data, n_bytes, 0, "the header", ""};
    uint64_t n_tensors = 0, n_kvs = 0;
    TRY(read_preamble(&c, &header->version, &n_tensors, &n_kvs));
    TRY(read_kvs(&c, arena, n_kvs, kvs));
    TRY(find_alignment(kvs, &header->alignment));
    size_t first = tensors->n;
    for (uint64_t i = 0; i < n_tensors; i++) {
        if (tensors->n >= COUNT_MAX) return fail(ATS_BAD_FILE, "too many tensors");
        GROW(tensors->items, tensors->n, tensors->cap, 1);
        struct gguf_tensor *t = &tensors->items[tensors->n];
        *t = (struct gguf_tensor){0};
        TRY(read_tensor(&c, arena, header->alignment, t));
        tensors->n++;
    }
    if (!round_up_u64(c.at, header->alignment, &header->data_offset)) {
        return fail(ATS_BAD_FILE, "the file is too large"); /* a size near 2^64: not on any disk */
    }
    if (n_tensors == 0) {
        if (header->data_offset > n_bytes) header->data_offset = n_bytes;
        return ATS_OK;
    }
    return place_tensors(&c, header->data_offset, header_only, file_index, tensors->items + first,
                         tensors->n - first);
}
