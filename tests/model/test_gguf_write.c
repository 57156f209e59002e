/* The GGUF writer, and the reader on what it wrote: whole files, splits, real models. */
#include "gguf_sample.h"
#include "model/gguf.h"
#include "model/gguf_write.h"
#include "support.h"

#include <glob.h>
#include <stdio.h>
#include <unistd.h>

/* ---- Writing ---- */

static void put_everything(struct gguf_writer *w) {
    static const struct gguf_str words[] = {{"one", 3}, {"", 0}, {"t\0o", 3}};
    gguf_put_str(w, "general.architecture", "test");
    gguf_put_u8(w, "a.u8", 255);
    gguf_put_i8(w, "a.i8", -128);
    gguf_put_u16(w, "a.u16", 65535);
    gguf_put_i16(w, "a.i16", -32768);
    gguf_put_u32(w, "a.u32", UINT32_MAX);
    gguf_put_i32(w, "a.i32", INT32_MIN);
    gguf_put_u64(w, "a.u64", UINT64_MAX);
    gguf_put_i64(w, "a.i64", INT64_MIN);
    gguf_put_f32(w, "a.f32", -0.5f);
    gguf_put_f64(w, "a.f64", 1e300);
    gguf_put_bool(w, "a.bool", true);
    gguf_put_str_n(w, "a.str", "x\0y", 3);
    gguf_put_strs(w, "a.strs", words, 3);
    gguf_put_array(w, "a.ints", GGUF_I64, (int64_t[]){-1, INT64_MAX}, 2);
    gguf_put_array(w, "a.floats", GGUF_F64, (double[]){0.5}, 1);
    gguf_put_array(w, "a.none", GGUF_F32, NULL, 0);
    struct buf nested = {0};
    raw_u32(&nested, GGUF_ARRAY);
    raw_u64(&nested, 1);
    raw_u32(&nested, GGUF_STR);
    raw_u64(&nested, 1);
    raw_str(&nested, "deep");
    gguf_put_encoded(w, "a.nested", GGUF_ARRAY, nested.data, nested.len);
    buf_free(&nested);
}

static void check_everything(const struct gguf *g) {
    int64_t i64 = 0;
    uint64_t u64 = 0;
    double f64;
    struct gguf_str s = {NULL, 0};
    const struct gguf_array *a = NULL;
    static const struct {
        const char *key;
        enum gguf_type type;
        int64_t v;
    } ints[] = {{"a.u8", GGUF_U8, 255},          {"a.i8", GGUF_I8, -128},
                {"a.u16", GGUF_U16, 65535},      {"a.i16", GGUF_I16, -32768},
                {"a.u32", GGUF_U32, UINT32_MAX}, {"a.i32", GGUF_I32, INT32_MIN},
                {"a.i64", GGUF_I64, INT64_MIN}};
    for (size_t i = 0; i < COUNT_OF(ints); i++) {
        assert_int_equal(gguf_find(g, ints[i].key)->type, ints[i].type);
        TEST_OK(gguf_get_i64(g, ints[i].key, &i64));
        assert_true(i64 == ints[i].v);
    }
    TEST_OK(gguf_get_u64(g, "a.u64", &u64));
    assert_true(u64 == UINT64_MAX);
    f64 = gguf_kv_float(gguf_find(g, "a.f32"));
    assert_true(f64 == -0.5);
    f64 = gguf_kv_float(gguf_find(g, "a.f64"));
    assert_true(f64 == 1e300);
    bool b = false;
    TEST_OK(gguf_get_bool(g, "a.bool", &b));
    assert_true(b);
    TEST_OK(gguf_get_str(g, "a.str", &s));
    assert_true(sample_str_is(s, "x\0y", 3));
    TEST_OK(gguf_get_strs(g, "a.strs", &a));
    assert_true(a->n == 3 && sample_str_is(gguf_array_str(a, 2), "t\0o", 3));
    TEST_OK(gguf_get_ints(g, "a.ints", &a));
    assert_true(a->n == 2 && gguf_array_int(a, 1) == INT64_MAX);
    TEST_OK(gguf_get_floats(g, "a.floats", &a));
    assert_true(a->n == 1 && gguf_array_float(a, 0) == 0.5f);
    TEST_OK(gguf_get_floats(g, "a.none", &a));
    assert_int_equal(a->n, 0);
    const struct gguf_kv *nested = gguf_find(g, "a.nested");
    assert_true(sample_str_is(gguf_array_str(&nested->array.arrays[0], 0), "deep", 4));
    assert_string_equal(g->arch, "test");
}

enum { N_WRITTEN = 5 };
static const struct {
    const char *name;
    enum dtype dtype;
    int n_dims;
    int64_t dims[4];
} written[N_WRITTEN] = {
    {"a", DTYPE_F32, 1, {7}},          {"b", DTYPE_Q4_K, 2, {512, 3}},
    {"c", DTYPE_MXFP4, 3, {32, 2, 2}}, {"d", DTYPE_F16, 4, {3, 1, 2, 2}},
    {"e", DTYPE_I32, 1, {1}},
};

/* Declares and writes the five tensors in pieces of odd sizes; data is a running count. */
static void write_all(struct gguf_writer *w, const char *path, struct buf *memory) {
    uint8_t bytes[2048];
    size_t n = 0, at = 0;
    for (int i = 0; i < N_WRITTEN; i++) {
        gguf_put_tensor(w, written[i].name, written[i].dtype, written[i].n_dims, written[i].dims);
        int64_t n_rows = 1;
        for (int k = 1; k < written[i].n_dims; k++)
            n_rows *= written[i].dims[k];
        n += (size_t)(dtype_row_bytes(written[i].dtype, written[i].dims[0]) * n_rows);
    }
    assert_true(n < sizeof bytes);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (uint8_t)(i % 251);
    if (memory != NULL) {
        TEST_OK(gguf_writer_begin_memory(w, memory));
    } else {
        TEST_OK(gguf_writer_begin(w, path));
    }
    for (size_t piece = 1; at < n; piece = piece * 3 + 1) {
        size_t now = min_size(piece, n - at);
        TEST_OK(gguf_writer_data(w, bytes + at, now));
        at += now;
    }
    TEST_STATUS(gguf_writer_data(w, bytes, 1), ATS_BAD_ARGUMENT);
    TEST_OK(gguf_writer_end(w));
}

static void check_tensors(const struct gguf *g) {
    assert_int_equal(g->n_tensors, N_WRITTEN);
    size_t at = 0;
    for (int i = 0; i < N_WRITTEN; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        assert_string_equal(t->name, written[i].name);
        assert_int_equal(t->dtype, written[i].dtype);
        assert_int_equal(t->n_dims, written[i].n_dims);
        for (int k = 0; k < t->n_dims; k++)
            assert_int_equal(t->dims[k], written[i].dims[k]);
        for (int64_t k = 0; k < t->n_bytes; k++, at++)
            assert_int_equal(t->data[k], at % 251);
        assert_int_equal(t->file_offset % g->alignment, 0);
        assert_ptr_equal(t->data, g->files[t->file_index].map.data + t->file_offset);
    }
}

static void what_was_written_is_read(void **state) {
    (void)state;
    for (uint32_t version = 2; version <= 3; version++) {
        for (uint32_t alignment = 8; alignment <= 4096; alignment *= 2) {
            struct buf b = {0};
            struct gguf_writer *w = gguf_writer_open();
            gguf_writer_version(w, version);
            gguf_writer_alignment(w, alignment);
            put_everything(w);
            write_all(w, NULL, &b);
            gguf_writer_close(w);
            void *copy;
            struct gguf *g;
            TEST_OK(sample_open(&b, &copy, &g));
            assert_int_equal(g->version, version);
            assert_int_equal(g->alignment, alignment);
            check_everything(g);
            check_tensors(g);
            gguf_close(g);
            free(copy);
            buf_free(&b);
        }
    }
}

static void the_writer_refuses_what_is_given_twice_or_missing(void **state) {
    (void)state;
    struct buf b = {0};
    struct gguf_writer *w = gguf_writer_open();
    gguf_put_u32(w, "k", 1);
    gguf_put_u32(w, "k", 1);
    TEST_STATUS(gguf_writer_begin_memory(w, &b), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("key k");
    gguf_writer_close(w);
    w = gguf_writer_open();
    gguf_put_tensor(w, "t", DTYPE_F32, 1, (int64_t[]){2});
    gguf_put_tensor(w, "t", DTYPE_F32, 1, (int64_t[]){2});
    TEST_STATUS(gguf_writer_begin_memory(w, &b), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("tensor t");
    gguf_writer_close(w);
    w = gguf_writer_open();
    gguf_put_tensor(w, "t", DTYPE_F32, 1, (int64_t[]){2});
    char path[4096], part[4200];
    test_tmp_path(path, sizeof path, "unfinished.gguf");
    TEST_OK(gguf_writer_begin(w, path));
    TEST_OK(gguf_writer_data(w, "abcd", 4));
    TEST_STATUS(gguf_writer_end(w), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("tensor t");
    gguf_writer_close(w);
    snprintf(part, sizeof part, "%s.part", path);
    assert_false(file_exists(path));
    assert_false(file_exists(part));
    buf_free(&b);
    w = gguf_writer_open();
    TEST_STATUS(gguf_writer_begin(w, "/nowhere/at/all.gguf"), ATS_IO);
    gguf_writer_close(w);
}

/* ---- Splits ---- */

/* Writes parts of two tensors each: three of them. stem gets their common begin. */
static void write_parts(char *stem, size_t n) {
    test_tmp_path(stem, n, "split");
    struct gguf_writer *w = gguf_writer_open();
    gguf_writer_split(w, 2);
    gguf_writer_alignment(w, 64);
    put_everything(w);
    write_all(w, stem, NULL);
    gguf_writer_close(w);
}

static void part_path(char *out, size_t n, const char *stem, int no) {
    snprintf(out, n, "%s-%05d-of-00003.gguf", stem, no);
}

static void remove_parts(const char *stem) {
    char path[4200];
    for (int no = 1; no <= 3; no++) {
        part_path(path, sizeof path, stem, no);
        remove(path);
    }
}

static void any_part_opens_all(void **state) {
    (void)state;
    char stem[4096], path[4200];
    write_parts(stem, sizeof stem);
    for (int no = 1; no <= 3; no++) {
        part_path(path, sizeof path, stem, no);
        struct gguf *g;
        TEST_OK(gguf_open(path, &g));
        assert_int_equal(g->n_files, 3);
        check_everything(g);
        check_tensors(g);
        for (int i = 0; i < N_WRITTEN; i++)
            assert_int_equal(g->tensors[i].file_index, i / 2);
        TEST_OK(gguf_check_files(g));
        gguf_close(g);
    }
    remove_parts(stem);
}

static void a_split_with_a_part_wrong_is_refused(void **state) {
    (void)state;
    char stem[4096], first[4200], second[4200], third[4200], other[4200];
    struct gguf *g;
    write_parts(stem, sizeof stem);
    part_path(first, sizeof first, stem, 1);
    part_path(second, sizeof second, stem, 2);
    part_path(third, sizeof third, stem, 3);
    snprintf(other, sizeof other, "%s-other.gguf", stem);
    /* the second is missing */
    assert_int_equal(rename(second, other), 0);
    TEST_STATUS(gguf_open(first, &g), ATS_IO);
    TEST_ERROR_HAS("00002-of-00003");
    assert_null(g);
    /* a part under another name */
    TEST_STATUS(gguf_open(other, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("part 2 of 3");
    assert_int_equal(rename(other, second), 0);
    /* two parts swapped */
    assert_int_equal(rename(second, other), 0);
    assert_int_equal(rename(third, second), 0);
    assert_int_equal(rename(other, third), 0);
    TEST_STATUS(gguf_open(first, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("part 3 of 3");
    remove_parts(stem);
}

static void write_part(const char *path, uint16_t no, uint16_t count, int32_t n_tensors,
                       const char *tensor) {
    struct gguf_writer *w = gguf_writer_open();
    gguf_put_u16(w, "split.no", no);
    gguf_put_u16(w, "split.count", count);
    gguf_put_i32(w, "split.tensors.count", n_tensors);
    gguf_put_tensor(w, tensor, DTYPE_F32, 1, (int64_t[]){1});
    TEST_OK(gguf_writer_begin(w, path));
    TEST_OK(gguf_writer_data(w, "abcd", 4));
    TEST_OK(gguf_writer_end(w));
    gguf_writer_close(w);
}

static void split_keys_are_checked(void **state) {
    (void)state;
    char stem[4096], a[4200], b[4200];
    struct gguf *g;
    test_tmp_path(stem, sizeof stem, "keys");
    snprintf(a, sizeof a, "%s-00001-of-00002.gguf", stem);
    snprintf(b, sizeof b, "%s-00002-of-00002.gguf", stem);
    write_part(a, 0, 2, 3, "x");
    write_part(b, 1, 2, 3, "y");
    TEST_STATUS(gguf_open(a, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("2 tensors, but split.tensors.count is 3");
    write_part(a, 0, 2, 2, "x");
    TEST_STATUS(gguf_open(a, &g), ATS_BAD_FILE);
    TEST_STATUS(gguf_open(b, &g), ATS_BAD_FILE);
    write_part(b, 1, 2, 2, "x");
    TEST_STATUS(gguf_open(a, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("tensor x appears twice");
    write_part(b, 2, 2, 2, "y");
    TEST_STATUS(gguf_open(a, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("split.no");
    write_part(b, 1, 2, -1, "y");
    TEST_STATUS(gguf_open(a, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("split.tensors.count");
    write_part(b, 1, 2, 2, "y");
    TEST_OK(gguf_open(b, &g));
    assert_int_equal(g->n_tensors, 2);
    gguf_close(g);
    remove(a);
    remove(b);
}

/* ---- Files ---- */

static void a_file_that_became_shorter_is_told(void **state) {
    (void)state;
    char path[4096];
    test_tmp_path(path, sizeof path, "shrinks.gguf");
    struct buf b = {0};
    sample_file(&b);
    TEST_OK(file_write(path, b.data, b.len));
    struct gguf *g;
    TEST_OK(gguf_open(path, &g));
    TEST_OK(gguf_check_files(g));
    assert_int_equal(truncate(path, 10), 0);
    TEST_STATUS(gguf_check_files(g), ATS_IO);
    TEST_ERROR_HAS("shrinks");
    gguf_close(g);
    TEST_STATUS(gguf_open(path, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("shrinks");
    assert_null(g);
    buf_free(&b);
}

static void files_that_cannot_be_opened_are_named(void **state) {
    (void)state;
    struct gguf *g;
    char path[4096];
    TEST_STATUS(gguf_open("no/such/file.gguf", &g), ATS_IO);
    TEST_ERROR_HAS("no/such/file.gguf");
    TEST_STATUS(gguf_open("/", &g), ATS_IO);
    test_tmp_path(path, sizeof path, "empty.gguf");
    TEST_OK(file_write(path, "", 0));
    TEST_STATUS(gguf_open(path, &g), ATS_BAD_FILE);
    TEST_ERROR_HAS("not a GGUF file");
}

static void check_model(const char *path) {
    struct gguf *g;
    TEST_OK(gguf_open(path, &g));
    assert_true(g->arch[0] != '\0' && g->n_tensors > 0);
    uint32_t n_blocks = 0;
    const struct gguf_array *tokens = NULL;
    TEST_OK(gguf_get_u32(g, ".block_count", &n_blocks));
    TEST_OK(gguf_get_strs(g, "tokenizer.ggml.tokens", &tokens));
    TEST_OK(gguf_check_length(g, "tokenizer.ggml.token_type", tokens->n));
    assert_true(n_blocks > 0 && tokens->n > 0);
    for (size_t i = 0; i < tokens->n; i++)
        assert_true(gguf_array_str(tokens, i).n < 256);
    const struct gguf_tensor *embd = gguf_tensor_find(g, "token_embd.weight");
    assert_non_null(embd);
    assert_int_equal(embd->dims[1], tokens->n);
    for (int i = 0; i < g->n_tensors; i++) {
        assert_ptr_equal(gguf_tensor_find(g, g->tensors[i].name), &g->tensors[i]);
    }
    for (int i = 0; i < g->n_kvs; i++) {
        assert_ptr_equal(gguf_find(g, g->kvs[i].key), &g->kvs[i]);
    }
    gguf_close(g);
}

static void every_model_opens(void **state) {
    (void)state;
    char pattern[4096];
    if (!test_shared_path(pattern, sizeof pattern, "models")) skip();
    strncat(pattern, "/*/*.gguf", sizeof pattern - strlen(pattern) - 1);
    glob_t files;
    assert_int_equal(glob(pattern, 0, NULL, &files), 0);
    assert_true(files.gl_pathc >= 36);
    for (size_t i = 0; i < files.gl_pathc; i++)
        check_model(files.gl_pathv[i]);
    globfree(&files);
}

static void a_split_holds_what_the_whole_file_holds(void **state) {
    (void)state;
    char path[4096];
    struct gguf *whole, *split;
    if (!test_shared_path(path, sizeof path, "models/qwen2/qwen2-f32.gguf")) skip();
    TEST_OK(gguf_open(path, &whole));
    assert_true(
        test_shared_path(path, sizeof path, "models/qwen2/qwen2-split-00002-of-00003.gguf"));
    TEST_OK(gguf_open(path, &split));
    assert_int_equal(split->n_files, 3);
    assert_int_equal(whole->n_tensors, split->n_tensors);
    for (int i = 0; i < whole->n_tensors; i++) {
        const struct gguf_tensor *a = &whole->tensors[i], *b;
        TEST_OK(gguf_tensor_get(split, a->name, &b));
        assert_int_equal(a->n_elements, b->n_elements);
        float *floats = malloc((size_t)b->n_elements * sizeof *floats);
        assert_non_null(floats);
        dtype_to_float(b->dtype, b->data, floats, b->n_elements); /* exact in F16 */
        assert_memory_equal(a->data, floats, (size_t)a->n_bytes);
        free(floats);
    }
    for (int i = 0; i < whole->n_kvs; i++)
        assert_non_null(gguf_find(split, whole->kvs[i].key));
    gguf_close(whole);
    gguf_close(split);
}

/* A model copied through the writer, in whole and in parts, is the same model. */
static void a_model_survives_the_writer(void **state) {
    (void)state;
    char path[4096], copy[4096];
    struct gguf *g, *again;
    if (!test_shared_path(path, sizeof path, "models/quants/moe-Q4_K_M.gguf")) skip();
    TEST_OK(gguf_open(path, &g));
    test_tmp_path(copy, sizeof copy, "copy.gguf");
    struct gguf_writer *w = gguf_writer_open();
    for (int i = 0; i < g->n_kvs; i++)
        gguf_put_kv(w, &g->kvs[i]);
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        gguf_put_tensor(w, t->name, t->dtype, t->n_dims, t->dims);
    }
    TEST_OK(gguf_writer_begin(w, copy));
    for (int i = 0; i < g->n_tensors; i++) {
        TEST_OK(gguf_writer_data(w, g->tensors[i].data, (size_t)g->tensors[i].n_bytes));
    }
    TEST_OK(gguf_writer_end(w));
    gguf_writer_close(w);
    TEST_OK(gguf_open(copy, &again));
    assert_int_equal(g->n_kvs, again->n_kvs);
    for (int i = 0; i < g->n_kvs; i++) {
        const struct gguf_kv *a = &g->kvs[i], *b = &again->kvs[i];
        assert_string_equal(a->key, b->key);
        assert_int_equal(a->type, b->type);
        assert_int_equal(a->n_bytes, b->n_bytes);
        assert_memory_equal(a->data, b->data, (size_t)a->n_bytes);
    }
    assert_int_equal(g->n_tensors, again->n_tensors);
    for (int i = 0; i < g->n_tensors; i++) {
        assert_int_equal(g->tensors[i].dtype, again->tensors[i].dtype);
        assert_memory_equal(g->tensors[i].data, again->tensors[i].data,
                            (size_t)g->tensors[i].n_bytes);
    }
    gguf_close(again);
    gguf_close(g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(the_writer_refuses_what_is_given_twice_or_missing),
        cmocka_unit_test(any_part_opens_all),
        cmocka_unit_test(a_split_with_a_part_wrong_is_refused),
        cmocka_unit_test(split_keys_are_checked),
        cmocka_unit_test(a_file_that_became_shorter_is_told),
        cmocka_unit_test(files_that_cannot_be_opened_are_named),
        cmocka_unit_test(every_model_opens),
        cmocka_unit_test(a_split_holds_what_the_whole_file_holds),
        cmocka_unit_test(a_model_survives_the_writer),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
