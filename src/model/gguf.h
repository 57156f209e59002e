/*
 * Reads GGUF files, versions 2 and 3, whole or split: metadata and the list of tensors, as views
 * into read-only maps. Everything in the file is hostile: what cannot be right is refused with
 * ATS_BAD_FILE and a text naming the key or tensor (ATS_UNSUPPORTED: right, but not for us), and no
 * allocation is larger than in proportion to the bytes already checked. It knows containers, not
 * models: which keys must be there is asked by model.c and text/ through the getters.
 *
 * After gguf_open nothing changes: any number of threads may read. A file that another program
 * shortens while it is mapped raises SIGBUS on access: GGUF files must not be rewritten in place
 * while in use, and gguf_check_files() tells before a round whether one was.
 *
 * Policy on strings. Keys and tensor names: 1 to 65535 bytes of UTF-8 without control characters;
 * no key begins with a dot (see the getters).
 * String values: UTF-8, but for the elements of tokenizer.ggml.tokens and tokenizer.ggml.merges,
 * which may hold any bytes (vocabularies of byte pieces exist).
 */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/file.h"
#include "model/dtype.h"

#define GGUF_MAX_DIMS  4
#define GGUF_MAX_DEPTH 4 /* arrays in arrays */

/* The values of the file. */
enum gguf_type {
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STR,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    N_GGUF_TYPES,
};
const char *gguf_type_name(enum gguf_type type); /* "u32", "string", ... */

/* A view into the file: not NUL-terminated, may hold NULs. */
struct gguf_str {
    const char *data;
    size_t n;
};
bool gguf_str_is(struct gguf_str s, const char *text);

struct gguf_array {
    enum gguf_type type; /* of the elements */
    size_t n;
    const uint8_t *data;             /* the elements as in the file, unaligned */
    const uint64_t *str_offsets;     /* GGUF_STR: of each length field in data, (n) */
    const struct gguf_array *arrays; /* GGUF_ARRAY: (n) */
};

struct gguf_kv {
    const char *key; /* NUL-terminated */
    enum gguf_type type;
    const uint8_t *data; /* the value as in the file, unaligned; of a string, its length field */
    uint64_t n_bytes;    /* of data */
    struct gguf_array array; /* type GGUF_ARRAY */
};

struct gguf_tensor {
    const char *name; /* NUL-terminated */
    enum dtype dtype;
    int n_dims;                  /* 1..4 */
    int64_t dims[GGUF_MAX_DIMS]; /* from the fastest: [0] is the row length; 1 beyond n_dims */
    int64_t n_elements;
    int64_t row_bytes;
    int64_t n_bytes;
    const uint8_t *data; /* in the map, aligned to >= 8; NULL: struct gguf's no_data */
    int file_index;
    uint64_t file_offset; /* of data in that file */
};

struct gguf_file {
    struct file_map map; /* fd and path unset when opened from memory */
    bool mapped;
    uint64_t data_offset; /* of the tensor data; = size_bytes when there is none */
};

/* A sorted index: looking up costs log2(n) comparisons whatever names a file has (no hash that a
 * hostile file could make collide). */
struct gguf_name {
    const char *name;
    int index;
};

/* Read the fields, never write them. */
struct gguf {
    uint32_t version;
    uint32_t alignment; /* of the first file */
    const char *arch;   /* general.architecture, "" if absent */
    int n_files;
    struct gguf_file *files;
    int n_kvs;
    struct gguf_kv *kvs; /* of the first file, in its order */
    int n_tensors;
    struct gguf_tensor *tensors;    /* file by file, in their order */
    struct gguf_name *kv_names;     /* (n_kvs), sorted by name, all different */
    struct gguf_name *tensor_names; /* (n_tensors), the same */
    bool no_data;                   /* a header alone: data of tensors is NULL */
    struct arena arena;             /* model lifetime: keys, names, indexes */
};

/* Opens a file, and its siblings if it is a part of a split (any part may be given: the parts are
 * NAME-00001-of-0000N.gguf). *out owned, NULL on failure. */
MUST_CHECK ats_status gguf_open(const char *path, struct gguf **out);
/* For tests: the same on memory that is aligned to 8, borrowed until gguf_close; no split files. */
MUST_CHECK ats_status gguf_open_memory(const void *data, size_t n, struct gguf **out);
/* A file's header alone, whose tensors have sizes and no data (no_data): for plans. Copied. */
MUST_CHECK ats_status gguf_open_header(const void *data, size_t n, struct gguf **out);
void gguf_close(struct gguf *g); /* accepts NULL */
/* Fails if one of the files has become shorter since it was opened. */
MUST_CHECK ats_status gguf_check_files(const struct gguf *g);

/*
 * Metadata. A key that begins with '.' stands under the architecture: ".block_count" is
 * "llama.block_count" in a llama file; messages name the full key.
 *
 * get: the key must be there. opt: *v keeps its value when it is not (so set the default before).
 * Both fail with ATS_BAD_FILE and leave *v alone when the type is wrong or the value does not fit:
 * integers may be of any width and sign in the file; f32 takes f32 and f64 and must be finite.
 * Both are there for every type, though some are called by tests only.
 */
const struct gguf_kv *gguf_find(const struct gguf *g, const char *key); /* NULL if there is none */

MUST_CHECK ats_status gguf_get_u32(const struct gguf *g, const char *key, uint32_t *v);
MUST_CHECK ats_status gguf_get_i32(const struct gguf *g, const char *key, int32_t *v);
MUST_CHECK ats_status gguf_get_u64(const struct gguf *g, const char *key, uint64_t *v);
MUST_CHECK ats_status gguf_get_i64(const struct gguf *g, const char *key, int64_t *v);
MUST_CHECK ats_status gguf_get_f32(const struct gguf *g, const char *key, float *v);
MUST_CHECK ats_status gguf_get_bool(const struct gguf *g, const char *key, bool *v);
MUST_CHECK ats_status gguf_get_str(const struct gguf *g, const char *key, struct gguf_str *v);
MUST_CHECK ats_status gguf_opt_u32(const struct gguf *g, const char *key, uint32_t *v);
MUST_CHECK ats_status gguf_opt_i32(const struct gguf *g, const char *key, int32_t *v);
MUST_CHECK ats_status gguf_opt_u64(const struct gguf *g, const char *key, uint64_t *v);
MUST_CHECK ats_status gguf_opt_i64(const struct gguf *g, const char *key, int64_t *v);
MUST_CHECK ats_status gguf_opt_f32(const struct gguf *g, const char *key, float *v);
MUST_CHECK ats_status gguf_opt_bool(const struct gguf *g, const char *key, bool *v);
MUST_CHECK ats_status gguf_opt_str(const struct gguf *g, const char *key, struct gguf_str *v);

/* Arrays: of strings; of integers of any width, or bools; of floats (f32 or f64). *a borrowed,
 * lives as long as g. opt leaves *a alone (set it to NULL before). get is called by tests, but for
 * ints. */
MUST_CHECK ats_status gguf_get_strs(const struct gguf *g, const char *key,
                                    const struct gguf_array **a);
MUST_CHECK ats_status gguf_get_ints(const struct gguf *g, const char *key,
                                    const struct gguf_array **a);
MUST_CHECK ats_status gguf_get_floats(const struct gguf *g, const char *key,
                                      const struct gguf_array **a);
MUST_CHECK ats_status gguf_opt_strs(const struct gguf *g, const char *key,
                                    const struct gguf_array **a);
MUST_CHECK ats_status gguf_opt_ints(const struct gguf *g, const char *key,
                                    const struct gguf_array **a);
MUST_CHECK ats_status gguf_opt_floats(const struct gguf *g, const char *key,
                                      const struct gguf_array **a);
/* Fails, naming the key and both lengths, unless the key is an array of n elements. */
MUST_CHECK ats_status gguf_check_length(const struct gguf *g, const char *key, size_t n);

/* Elements; i below a->n, and the type must be of the kind (REQUIREd). O(1). */
struct gguf_str gguf_array_str(const struct gguf_array *a, size_t i);
int64_t gguf_array_int(const struct gguf_array *a, size_t i); /* u64 beyond 2^63 - 1: capped */
float gguf_array_float(const struct gguf_array *a, size_t i);

/* The value of a scalar entry, for listing. */
struct gguf_str gguf_kv_str(const struct gguf_kv *kv); /* type GGUF_STR */
int64_t gguf_kv_int(const struct gguf_kv *kv);         /* integers and bool; u64: capped */
double gguf_kv_float(const struct gguf_kv *kv);        /* GGUF_F32, GGUF_F64 */

/* NULL if there is none. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *g, const char *name);
/* ATS_UNSUPPORTED naming the tensor if there is none: another kind of model, not a broken file. */
MUST_CHECK ats_status gguf_tensor_get(const struct gguf *g, const char *name,
                                      const struct gguf_tensor **out);
