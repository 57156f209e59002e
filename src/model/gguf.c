#include "model/gguf.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/gguf_parse.h"

#define ARCH_MAX_BYTES 63

/* Everything while it is being opened; gguf_open hands over what the lists have grown. */
struct loader {
    struct gguf *g;
    struct gguf_tensor_list tensors;
};

static void loader_open(struct loader *l) {
    *l = (struct loader){.g = xcalloc(1, sizeof *l->g)};
    l->g->arch = "";
}

static void loader_drop(struct loader *l) {
    free(l->tensors.items);
    gguf_close(l->g);
}

/* Parses one file and appends its tensors; kvs are an empty list. */
static ats_status load_file(struct loader *l, int file_index, struct gguf_kv_list *kvs,
                            struct gguf_header *header) {
    struct gguf_file *file = &l->g->files[file_index];
    TRY(gguf_parse(file->map.data, file->map.size_bytes, l->g->no_data, file_index, &l->g->arena,
                   kvs, &l->tensors, header));
    file->data_offset = header->data_offset;
    return ATS_OK;
}

static ats_status map_file(struct gguf *g, int file_index, const char *path) {
    TRY(file_map_open(path, &g->files[file_index].map));
    g->files[file_index].mapped = true;
    return ATS_OK;
}

static void set_kvs(struct gguf *g, const struct gguf_kv_list *kvs) {
    g->kvs = kvs->items;
    g->n_kvs = (int)kvs->n;
    g->kv_names = kvs->names;
}

/* The first file: its metadata is the model's. */
static ats_status load_first(struct loader *l) {
    struct gguf *g = l->g;
    struct gguf_kv_list kvs = {0};
    struct gguf_header header;
    ats_status status = load_file(l, 0, &kvs, &header);
    if (status != ATS_OK) {
        free(kvs.items);
        return status;
    }
    set_kvs(g, &kvs);
    g->version = header.version;
    g->alignment = header.alignment;
    return ATS_OK;
}

/* The strings that everything else hangs on. */
static ats_status read_arch(struct gguf *g) {
    struct gguf_str arch = {0};
    TRY(gguf_opt_str(g, "general.architecture", &arch));
    if (arch.data == NULL) return ATS_OK;
    bool plain = arch.n > 0 && arch.n <= ARCH_MAX_BYTES;
    for (size_t i = 0; i < arch.n && plain; i++)
        plain = arch.data[i] > ' ' && arch.data[i] < 0x7f;
    if (!plain) return fail(ATS_BAD_FILE, "key general.architecture does not hold a name");
    g->arch = arena_strndup(&g->arena, arch.data, arch.n);
    return ATS_OK;
}

/* When all files are in. */
static ats_status finish(struct loader *l) {
    struct gguf *g = l->g;
    g->tensors = l->tensors.items;
    g->n_tensors = (int)l->tensors.n;
    l->tensors = (struct gguf_tensor_list){0};
    g->tensor_names = ARENA_ARRAY(&g->arena, struct gguf_name, g->n_tensors);
    for (int i = 0; i < g->n_tensors; i++) {
        g->tensor_names[i] = (struct gguf_name){g->tensors[i].name, i};
    }
    const char *twice;
    gguf_sort_names(g->tensor_names, (size_t)g->n_tensors, &twice);
    if (twice != NULL) return fail(ATS_BAD_FILE, "tensor %s appears twice", twice);
    return read_arch(g);
}

/* ---- Split files ---- */

struct split {
    uint32_t no, count;
    uint64_t n_tensors;
};

/* count 1 when the file is whole. */
static ats_status read_split(const struct gguf *g, struct split *s) {
    *s = (struct split){.count = 1};
    TRY(gguf_opt_u32(g, "split.count", &s->count));
    if (s->count <= 1) {
        s->count = 1;
        return ATS_OK;
    }
    if (s->count > UINT16_MAX) {
        return fail(ATS_BAD_FILE, "key split.count is %" PRIu32, s->count);
    }
    TRY(gguf_get_u32(g, "split.no", &s->no));
    TRY(gguf_get_u64(g, "split.tensors.count", &s->n_tensors));
    if (s->no >= s->count) {
        return fail(ATS_BAD_FILE, "key split.no is %" PRIu32 ", split.count %" PRIu32, s->no,
                    s->count);
    }
    return ATS_OK;
}

/* Bytes of path before "-00001-of-00003.gguf"; -1 if it does not end so. */
static int split_stem_bytes(const char *path, uint32_t no, uint32_t count) {
    char suffix[64];
    int n = snprintf(suffix, sizeof suffix, "-%05" PRIu32 "-of-%05" PRIu32 ".gguf", no + 1, count);
    size_t length = strlen(path);
    if (length < (size_t)n || length > INT32_MAX) return -1;
    return strcmp(path + length - (size_t)n, suffix) == 0 ? (int)length - n : -1;
}

/* Part `no` beyond the first: its own keys are looked at for the split only. */
static ats_status load_part(struct loader *l, uint32_t no, const struct split *first) {
    struct gguf_kv_list kvs = {0};
    struct gguf_header header;
    struct split s = {0};
    ats_status status = load_file(l, (int)no, &kvs, &header);
    if (status == ATS_OK) {
        struct gguf part = {.arch = ""};
        set_kvs(&part, &kvs);
        status = read_split(&part, &s);
    }
    free(kvs.items);
    TRY(status);
    if (s.no != no || s.count != first->count || s.n_tensors != first->n_tensors) {
        return fail(ATS_BAD_FILE,
                    "it is part %" PRIu32 " of %" PRIu32 " with %" PRIu64
                    " tensors in all, but part %" PRIu32 " of %" PRIu32 " with %" PRIu64
                    " is wanted",
                    s.no + 1, s.count, s.n_tensors, no + 1, first->count, first->n_tensors);
    }
    return ATS_OK;
}

static ats_status load_split(struct loader *l, const char *path, int stem_bytes,
                             const struct split *wanted) {
    struct gguf *g = l->g;
    /* Files grow with the parts that are there: a count alone allocates nothing. */
    size_t cap = 0;
    for (uint32_t no = 0; no < wanted->count; no++) {
        GROW(g->files, g->n_files, cap, 1);
        g->files[no] = (struct gguf_file){0};
        g->n_files++;
        char *part = arena_printf(&g->arena, "%.*s-%05" PRIu32 "-of-%05" PRIu32 ".gguf", stem_bytes,
                                  path, no + 1, wanted->count);
        TRY(map_file(g, (int)no, part));
        ats_status status;
        if (no == 0) {
            struct split s;
            status = load_first(l);
            if (status == ATS_OK) status = read_split(g, &s);
            if (status == ATS_OK &&
                (s.no != 0 || s.count != wanted->count || s.n_tensors != wanted->n_tensors)) {
                status = fail(ATS_BAD_FILE, "its split keys do not agree with those of %s", path);
            }
        } else {
            status = load_part(l, no, wanted);
        }
        if (status != ATS_OK) return fail_in(status, "%s", part);
    }
    if (l->tensors.n != wanted->n_tensors) {
        ats_status status =
            fail(ATS_BAD_FILE, "the parts hold %zu tensors, but split.tensors.count is %" PRIu64,
                 l->tensors.n, wanted->n_tensors);
        return fail_in(status, "%s", path);
    }
    return ATS_OK;
}

/* The file alone, or, when it says that it is a part, all parts from the first on. */
static ats_status load_path(struct loader *l, const char *path) {
    l->g->files = xcalloc(1, sizeof *l->g->files);
    l->g->n_files = 1;
    TRY(map_file(l->g, 0, path));
    struct split s;
    ats_status status = load_first(l);
    if (status == ATS_OK) status = read_split(l->g, &s);
    if (status != ATS_OK) return fail_in(status, "%s", path);
    if (s.count == 1) return ATS_OK;
    int stem_bytes = split_stem_bytes(path, s.no, s.count);
    if (stem_bytes < 0) {
        return fail(ATS_BAD_FILE,
                    "%s: it is part %" PRIu32 " of %" PRIu32 ", but its name does not end in "
                    "-%05" PRIu32 "-of-%05" PRIu32 ".gguf",
                    path, s.no + 1, s.count, s.no + 1, s.count);
    }
    loader_drop(l);
    loader_open(l);
    return load_split(l, path, stem_bytes, &s);
}

/* ---- Opening and closing ---- */

ats_status gguf_open(const char *path, struct gguf **out) {
    *out = NULL;
    struct loader l;
    loader_open(&l);
    ats_status status = load_path(&l, path);
    if (status == ATS_OK) {
        status = finish(&l);
        if (status != ATS_OK) status = fail_in(status, "%s", path);
    }
    if (status != ATS_OK) {
        loader_drop(&l);
        return status;
    }
    *out = l.g;
    return ATS_OK;
}

static ats_status load_memory(struct loader *l, const void *data, size_t n) {
    l->g->files = xcalloc(1, sizeof *l->g->files);
    l->g->n_files = 1;
    l->g->files[0].map.data = data;
    l->g->files[0].map.size_bytes = n;
    TRY(load_first(l));
    struct split s;
    TRY(read_split(l->g, &s));
    if (s.count > 1) return fail(ATS_BAD_FILE, "a part of a split file cannot be read by itself");
    return finish(l);
}

ats_status gguf_open_memory(const void *data, size_t n, struct gguf **out) {
    REQUIRE((uintptr_t)data % 8 == 0);
    *out = NULL;
    struct loader l;
    loader_open(&l);
    ats_status status = load_memory(&l, data, n);
    if (status != ATS_OK) {
        loader_drop(&l);
        return status;
    }
    *out = l.g;
    return ATS_OK;
}

ats_status gguf_open_header(const void *data, size_t n, struct gguf **out) {
    *out = NULL;
    struct loader l;
    loader_open(&l);
    l.g->no_data = true;
    void *copy = arena_alloc(&l.g->arena, n);
    if (n > 0) memcpy(copy, data, n);
    ats_status status = load_memory(&l, copy, n);
    if (status != ATS_OK) {
        loader_drop(&l);
        return status;
    }
    *out = l.g;
    return ATS_OK;
}

void gguf_close(struct gguf *g) {
    if (g == NULL) return;
    for (int i = 0; i < g->n_files; i++) {
        if (g->files[i].mapped) file_map_close(&g->files[i].map);
    }
    free(g->files);
    free(g->kvs);
    free(g->tensors);
    arena_free(&g->arena);
    free(g);
}

ats_status gguf_check_files(const struct gguf *g) {
    for (int i = 0; i < g->n_files; i++) {
        if (g->files[i].mapped) TRY(file_map_check(&g->files[i].map));
    }
    return ATS_OK;
}

const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name) {
    int index = gguf_name_find(g->tensor_names, (size_t)g->n_tensors, name);
    return index < 0 ? NULL : &g->tensors[index];
}

ats_status gguf_tensor_get(const struct gguf *g, const char *name, const struct gguf_tensor **out) {
    *out = gguf_tensor_find(g, name);
    if (*out == NULL) return fail(ATS_UNSUPPORTED, "tensor %s is missing", name);
    return ATS_OK;
}
