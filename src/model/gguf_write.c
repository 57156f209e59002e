#include "model/gguf_write.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_parse.h"

struct entry {
    const char *key;
    struct buf value; /* type and encoded value */
};

struct out_tensor {
    const char *name;
    enum dtype dtype;
    int n_dims;
    int64_t dims[GGUF_MAX_DIMS];
    uint64_t n_bytes;
    int part;
    uint64_t offset; /* from the begin of its part's data */
};

struct gguf_writer {
    struct arena arena;
    uint32_t version, alignment;
    struct entry *entries; /* owned */
    size_t n_entries, cap_entries;
    struct out_tensor *tensors; /* owned */
    size_t n_tensors, cap_tensors;
    int max_tensors; /* a part; 0 = one file */
    int n_parts;
    /* While writing: */
    bool begun;
    struct buf *memory;         /* borrowed, or */
    const char *path;           /* the stem when split */
    FILE *file;                 /* of the part being written, owned */
    char *part_path, *tmp_path; /* of that part, in the arena */
    int part;
    size_t tensor_index;   /* being written */
    uint64_t n_bytes_done; /* of it */
};

struct gguf_writer *gguf_writer_open(void) {
    struct gguf_writer *w = xcalloc(1, sizeof *w);
    w->version = 3;
    w->alignment = 32;
    return w;
}

static void drop_file(struct gguf_writer *w) {
    if (w->file == NULL) return;
    fclose(w->file);
    w->file = NULL;
    remove(w->tmp_path);
}

void gguf_writer_close(struct gguf_writer *w) {
    if (w == NULL) return;
    drop_file(w);
    for (size_t i = 0; i < w->n_entries; i++)
        buf_free(&w->entries[i].value);
    free(w->entries);
    free(w->tensors);
    arena_free(&w->arena);
    free(w);
}

void gguf_writer_version(struct gguf_writer *w, uint32_t version) {
    REQUIRE(!w->begun && (version == 2 || version == 3));
    w->version = version;
}

void gguf_writer_alignment(struct gguf_writer *w, uint32_t alignment) {
    REQUIRE(!w->begun && alignment >= 8 && (alignment & (alignment - 1)) == 0);
    w->alignment = alignment;
}

void gguf_writer_split(struct gguf_writer *w, int max_tensors) {
    REQUIRE(!w->begun && max_tensors >= 1);
    w->max_tensors = max_tensors;
}

/* ---- Metadata ---- */

static void add_u32(struct buf *b, uint32_t v) {
    buf_add(b, &v, sizeof v);
}

static void add_count(struct buf *b, uint64_t v) {
    buf_add(b, &v, sizeof v);
}

static void add_str(struct buf *b, const char *s, size_t n) {
    add_count(b, n);
    if (n > 0) buf_add(b, s, n);
}

static struct buf *add_entry(struct gguf_writer *w, const char *key, enum gguf_type type) {
    REQUIRE(!w->begun && key[0] != '\0');
    GROW(w->entries, w->n_entries, w->cap_entries, 1);
    struct entry *e = &w->entries[w->n_entries++];
    *e = (struct entry){.key = arena_strdup(&w->arena, key)};
    add_u32(&e->value, (uint32_t)type);
    return &e->value;
}

void gguf_put_encoded(struct gguf_writer *w, const char *key, enum gguf_type type,
                      const void *bytes, size_t n_bytes) {
    struct buf *value = add_entry(w, key, type);
    if (n_bytes > 0) buf_add(value, bytes, n_bytes);
}

#define DEFINE_PUT(name, c_type, type)                                                             \
    void gguf_put_##name(struct gguf_writer *w, const char *key, c_type v) {                       \
        gguf_put_encoded(w, key, type, &v, sizeof v);                                              \
    }
DEFINE_PUT(u8, uint8_t, GGUF_U8)
DEFINE_PUT(i8, int8_t, GGUF_I8)
DEFINE_PUT(u16, uint16_t, GGUF_U16)
DEFINE_PUT(i16, int16_t, GGUF_I16)
DEFINE_PUT(u32, uint32_t, GGUF_U32)
DEFINE_PUT(i32, int32_t, GGUF_I32)
DEFINE_PUT(u64, uint64_t, GGUF_U64)
DEFINE_PUT(i64, int64_t, GGUF_I64)
DEFINE_PUT(f32, float, GGUF_F32)
DEFINE_PUT(f64, double, GGUF_F64)

void gguf_put_bool(struct gguf_writer *w, const char *key, bool v) {
    gguf_put_encoded(w, key, GGUF_BOOL, &(uint8_t){v}, 1);
}

void gguf_put_str(struct gguf_writer *w, const char *key, const char *v) {
    gguf_put_str_n(w, key, v, strlen(v));
}

void gguf_put_str_n(struct gguf_writer *w, const char *key, const char *v, size_t n) {
    add_str(add_entry(w, key, GGUF_STR), v, n);
}

void gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type type, const void *v,
                    size_t n) {
    REQUIRE(gguf_type_bytes(type) != 0);
    struct buf *value = add_entry(w, key, GGUF_ARRAY);
    add_u32(value, (uint32_t)type);
    add_count(value, n);
    if (n > 0) buf_add(value, v, n * gguf_type_bytes(type));
}

void gguf_put_strs(struct gguf_writer *w, const char *key, const struct gguf_str *v, size_t n) {
    struct buf *value = add_entry(w, key, GGUF_ARRAY);
    add_u32(value, GGUF_STR);
    add_count(value, n);
    for (size_t i = 0; i < n; i++)
        add_str(value, v[i].data, v[i].n);
}

void gguf_put_kv(struct gguf_writer *w, const struct gguf_kv *kv) {
    gguf_put_encoded(w, kv->key, kv->type, kv->data, kv->n_bytes);
}

void gguf_put_tensor(struct gguf_writer *w, const char *name, enum dtype type, int n_dims,
                     const int64_t *dims) {
    REQUIRE(!w->begun && name[0] != '\0' && n_dims >= 1 && n_dims <= GGUF_MAX_DIMS);
    GROW(w->tensors, w->n_tensors, w->cap_tensors, 1);
    struct out_tensor *t = &w->tensors[w->n_tensors++];
    *t = (struct out_tensor){arena_strdup(&w->arena, name), type, n_dims, {0}, 0, 0, 0};
    uint64_t n_rows = 1;
    for (int i = 0; i < n_dims; i++) {
        REQUIRE(dims[i] > 0);
        t->dims[i] = dims[i];
        bool fits = i == 0 || mul_u64(n_rows, (uint64_t)dims[i], &n_rows);
        REQUIRE(fits);
    }
    bool fits = mul_u64(n_rows, (uint64_t)dtype_row_bytes(type, dims[0]), &t->n_bytes);
    REQUIRE(fits && t->n_bytes <= INT64_MAX / 2);
}

/* ---- Parts ---- */

static ats_status check_names(struct gguf_writer *w) {
    const char *twice;
    size_t n = w->n_entries > w->n_tensors ? w->n_entries : w->n_tensors;
    struct gguf_name *names = ARENA_ARRAY(&w->arena, struct gguf_name, n);
    for (size_t i = 0; i < w->n_entries; i++)
        names[i] = (struct gguf_name){w->entries[i].key, 0};
    gguf_sort_names(names, w->n_entries, &twice);
    if (twice != NULL) return fail(ATS_BAD_ARGUMENT, "key %s is given twice", twice);
    for (size_t i = 0; i < w->n_tensors; i++)
        names[i] = (struct gguf_name){w->tensors[i].name, 0};
    gguf_sort_names(names, w->n_tensors, &twice);
    if (twice != NULL) return fail(ATS_BAD_ARGUMENT, "tensor %s is given twice", twice);
    return ATS_OK;
}

static void place(struct gguf_writer *w) {
    int part = 0, n_in_part = 0;
    uint64_t offset = 0;
    for (size_t i = 0; i < w->n_tensors; i++) {
        if (w->max_tensors > 0 && n_in_part == w->max_tensors) {
            part++;
            n_in_part = 0;
            offset = 0;
        }
        w->tensors[i].part = part;
        w->tensors[i].offset = offset;
        offset += round_up(w->tensors[i].n_bytes, w->alignment);
        n_in_part++;
    }
    w->n_parts = part + 1;
}

/* Keys of our own: the alignment, and what makes a part a part. */
static void add_own_keys(const struct gguf_writer *w, int part, struct buf *kvs, uint64_t *n_kvs) {
    if (w->alignment != 32) {
        add_str(kvs, "general.alignment", strlen("general.alignment"));
        add_u32(kvs, GGUF_U32);
        add_u32(kvs, w->alignment);
        ++*n_kvs;
    }
    if (w->max_tensors == 0) return;
    uint16_t no = (uint16_t)part, count = (uint16_t)w->n_parts;
    int32_t n_tensors = (int32_t)w->n_tensors;
    add_str(kvs, "split.no", strlen("split.no"));
    add_u32(kvs, GGUF_U16);
    buf_add(kvs, &no, sizeof no);
    add_str(kvs, "split.count", strlen("split.count"));
    add_u32(kvs, GGUF_U16);
    buf_add(kvs, &count, sizeof count);
    add_str(kvs, "split.tensors.count", strlen("split.tensors.count"));
    add_u32(kvs, GGUF_I32);
    buf_add(kvs, &n_tensors, sizeof n_tensors);
    *n_kvs += 3;
}

static void add_padding(struct buf *b, size_t alignment) {
    while (b->len % alignment != 0)
        buf_add_char(b, '\0');
}

/* Everything before the data of one part. */
static void add_header(const struct gguf_writer *w, int part, struct buf *out) {
    struct buf kvs = {0}, infos = {0};
    uint64_t n_kvs = 0, n_tensors = 0;
    for (size_t i = 0; part == 0 && i < w->n_entries; i++, n_kvs++) {
        add_str(&kvs, w->entries[i].key, strlen(w->entries[i].key));
        buf_add(&kvs, w->entries[i].value.data, w->entries[i].value.len);
    }
    add_own_keys(w, part, &kvs, &n_kvs);
    for (size_t i = 0; i < w->n_tensors; i++) {
        const struct out_tensor *t = &w->tensors[i];
        if (t->part != part) continue;
        n_tensors++;
        add_str(&infos, t->name, strlen(t->name));
        add_u32(&infos, (uint32_t)t->n_dims);
        buf_add(&infos, t->dims, (size_t)t->n_dims * sizeof *t->dims);
        add_u32(&infos, dtype_info(t->dtype)->ggml_id);
        add_count(&infos, t->offset);
    }
    buf_add(out, "GGUF", 4);
    add_u32(out, w->version);
    add_count(out, n_tensors);
    add_count(out, n_kvs);
    if (kvs.len > 0) buf_add(out, kvs.data, kvs.len);
    if (infos.len > 0) buf_add(out, infos.data, infos.len);
    add_padding(out, w->alignment);
    buf_free(&kvs);
    buf_free(&infos);
}

/* ---- Writing ---- */

static ats_status put_bytes(struct gguf_writer *w, const void *bytes, size_t n) {
    if (w->memory != NULL) {
        if (n > 0) buf_add(w->memory, bytes, n);
        return ATS_OK;
    }
    if (bytes == NULL && n > 0) { /* the last byte of a hole makes it part of the file */
        if (fseeko(w->file, (off_t)n - 1, SEEK_CUR) == 0 && putc(0, w->file) == 0) return ATS_OK;
    } else if (fwrite(bytes, 1, n, w->file) == n) {
        return ATS_OK;
    }
    return fail(ATS_IO, "cannot write %s: %s", w->tmp_path, strerror(errno));
}

static ats_status open_part(struct gguf_writer *w, int part) {
    w->part = part;
    struct buf header = {0};
    add_header(w, part, &header);
    if (w->memory == NULL) {
        w->part_path = w->max_tensors == 0 ? arena_strdup(&w->arena, w->path)
                                           : arena_printf(&w->arena, "%s-%05d-of-%05d.gguf",
                                                          w->path, part + 1, w->n_parts);
        w->tmp_path = arena_printf(&w->arena, "%s.part", w->part_path);
        w->file = fopen(w->tmp_path, "wb");
        if (w->file == NULL) {
            buf_free(&header);
            return fail(ATS_IO, "cannot create %s: %s", w->tmp_path, strerror(errno));
        }
    }
    ats_status status = put_bytes(w, header.data, header.len);
    buf_free(&header);
    return status;
}

/* The part is complete and gets its name. */
static ats_status end_part(struct gguf_writer *w) {
    if (w->memory != NULL) return ATS_OK;
    int failed = fclose(w->file);
    w->file = NULL;
    if (failed != 0 || rename(w->tmp_path, w->part_path) != 0) {
        ats_status status = fail(ATS_IO, "cannot write %s: %s", w->part_path, strerror(errno));
        remove(w->tmp_path);
        return status;
    }
    return ATS_OK;
}

static ats_status begin(struct gguf_writer *w) {
    REQUIRE(!w->begun);
    TRY(check_names(w));
    place(w);
    if (w->n_parts > UINT16_MAX) return fail(ATS_BAD_ARGUMENT, "%d parts are too many", w->n_parts);
    w->begun = true;
    return open_part(w, 0);
}

ats_status gguf_writer_begin(struct gguf_writer *w, const char *path) {
    w->path = arena_strdup(&w->arena, path);
    return begin(w);
}

ats_status gguf_writer_begin_memory(struct gguf_writer *w, struct buf *out) {
    REQUIRE(w->max_tensors == 0);
    w->memory = out;
    return begin(w);
}

/* A tensor is complete: pads it, and goes to the next part if the next one lies there. */
static ats_status end_tensor(struct gguf_writer *w) {
    static const char zeros[64];
    uint64_t left = round_up(w->n_bytes_done, w->alignment) - w->n_bytes_done;
    while (left > 0) {
        size_t n = min_size(left, sizeof zeros);
        TRY(put_bytes(w, zeros, n));
        left -= n;
    }
    w->n_bytes_done = 0;
    w->tensor_index++;
    if (w->tensor_index == w->n_tensors || w->tensors[w->tensor_index].part == w->part)
        return ATS_OK;
    TRY(end_part(w));
    return open_part(w, w->part + 1);
}

ats_status gguf_writer_data(struct gguf_writer *w, const void *bytes, size_t n) {
    const char *at = bytes;
    REQUIRE(w->begun && (bytes != NULL || w->memory == NULL));
    while (n > 0) {
        if (w->tensor_index == w->n_tensors) {
            return fail(ATS_BAD_ARGUMENT, "%zu bytes of data beyond the last tensor", n);
        }
        uint64_t left = w->tensors[w->tensor_index].n_bytes - w->n_bytes_done;
        size_t now = min_size(n, left);
        TRY(put_bytes(w, at, now));
        if (at != NULL) at += now;
        n -= now;
        w->n_bytes_done += now;
        if (now == left) TRY(end_tensor(w));
    }
    return ATS_OK;
}

ats_status gguf_writer_end(struct gguf_writer *w) {
    REQUIRE(w->begun);
    if (w->tensor_index < w->n_tensors) {
        drop_file(w);
        return fail(ATS_BAD_ARGUMENT, "data of tensor %s is missing",
                    w->tensors[w->tensor_index].name);
    }
    return end_part(w);
}
