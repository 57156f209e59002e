/* The GGUF reader on a good file: values and tensors. */
#include "gguf_sample.h"
#include "model/gguf.h"
#include "support.h"

#include <math.h>

/* ---- Reading ---- */

struct sample {
    struct buf bytes;
    void *copy;
    struct gguf *g;
};

static int open_sample(void **state) {
    struct sample *s = calloc(1, sizeof *s);
    assert_non_null(s);
    sample_file(&s->bytes);
    TEST_OK(sample_open(&s->bytes, &s->copy, &s->g));
    *state = s;
    return 0;
}

static int close_sample(void **state) {
    struct sample *s = *state;
    gguf_close(s->g);
    free(s->copy);
    buf_free(&s->bytes);
    free(s);
    return 0;
}

static void integers_of_every_width_are_read(void **state) {
    const struct gguf *g = ((struct sample *)*state)->g;
    static const struct {
        const char *key;
        int64_t value;
    } ints[] = {{".u8", 200},         {".i8", -100},         {".u16", 60000},    {".i16", -30000},
                {".u32", 4000000000}, {".i32", -2000000000}, {".i64", INT64_MIN}};
    for (size_t i = 0; i < COUNT_OF(ints); i++) {
        int64_t v = 0;
        TEST_OK(gguf_get_i64(g, ints[i].key, &v));
        assert_true(v == ints[i].value);
        assert_true(gguf_kv_int(gguf_find(g, ints[i].key)) == v);
        uint32_t u32 = 7;
        if (v >= 0 && v <= UINT32_MAX) {
            TEST_OK(gguf_get_u32(g, ints[i].key, &u32));
            assert_int_equal(u32, v);
        } else {
            TEST_STATUS(gguf_get_u32(g, ints[i].key, &u32), ATS_BAD_FILE);
            TEST_ERROR_HAS("llama");
            TEST_ERROR_HAS("out of range");
            assert_int_equal(u32, 7);
        }
        int32_t i32 = 7;
        if (v >= INT32_MIN && v <= INT32_MAX) {
            TEST_OK(gguf_opt_i32(g, ints[i].key, &i32));
            assert_int_equal(i32, v);
        } else {
            TEST_STATUS(gguf_opt_i32(g, ints[i].key, &i32), ATS_BAD_FILE);
        }
    }
    uint64_t u64 = 0;
    int64_t i64 = 7;
    TEST_OK(gguf_get_u64(g, ".u64", &u64));
    assert_true(u64 == UINT64_MAX);
    TEST_STATUS(gguf_get_i64(g, ".u64", &i64), ATS_BAD_FILE);
    TEST_ERROR_HAS("18446744073709551615");
    TEST_STATUS(gguf_get_u64(g, ".i8", &u64), ATS_BAD_FILE);
    assert_true(gguf_kv_int(gguf_find(g, ".u64")) == INT64_MAX);
}

static void floats_bools_and_strings_are_read(void **state) {
    const struct gguf *g = ((struct sample *)*state)->g;
    float f = 0;
    TEST_OK(gguf_get_f32(g, ".f32", &f));
    assert_true(f == 0.25f);
    TEST_OK(gguf_opt_f32(g, ".f64", &f));
    assert_true(f == 0.1f);
    assert_true(gguf_kv_float(gguf_find(g, ".f64")) == 0.1);
    bool b = false;
    TEST_OK(gguf_get_bool(g, ".bool", &b));
    assert_true(b);
    struct gguf_str s;
    TEST_OK(gguf_get_str(g, "general.architecture", &s));
    assert_true(sample_str_is(s, "llama", 5));
    assert_string_equal(g->arch, "llama");
}

static void arrays_are_read(void **state) {
    const struct gguf *g = ((struct sample *)*state)->g;
    const struct gguf_array *a;
    TEST_OK(gguf_get_strs(g, "tokenizer.ggml.tokens", &a));
    assert_int_equal(a->n, 3);
    assert_true(sample_str_is(gguf_array_str(a, 0), "a", 1));
    assert_true(sample_str_is(gguf_array_str(a, 1), "", 0));
    assert_true(sample_str_is(gguf_array_str(a, 2), "\xff\0b", 3));
    TEST_OK(gguf_get_ints(g, ".list", &a));
    assert_int_equal(a->n, 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(gguf_array_int(a, i), i);
    TEST_OK(gguf_opt_ints(g, ".flags", &a));
    assert_int_equal(gguf_array_int(a, 0), 1);
    assert_int_equal(gguf_array_int(a, 1), 0);
    const struct gguf_kv *nested = gguf_find(g, ".nested");
    assert_non_null(nested);
    assert_int_equal(nested->array.type, GGUF_ARRAY);
    assert_int_equal(nested->array.n, 2);
    assert_true(sample_str_is(gguf_array_str(&nested->array.arrays[0], 0), "inner", 5));
    assert_true(gguf_array_float(&nested->array.arrays[1], 1) == -2);
    TEST_OK(gguf_check_length(g, ".list", 3));
}

static void a_missing_key_is_named_or_leaves_the_default(void **state) {
    const struct gguf *g = ((struct sample *)*state)->g;
    uint32_t u32 = 7;
    const struct gguf_array *a = NULL;
    struct gguf_str s = {NULL, 0};
    TEST_STATUS(gguf_get_u32(g, ".block_count", &u32), ATS_BAD_FILE);
    TEST_ERROR_HAS("llama.block_count is missing");
    TEST_STATUS(gguf_get_str(g, "general.name", &s), ATS_BAD_FILE);
    TEST_ERROR_HAS("general.name is missing");
    TEST_STATUS(gguf_get_floats(g, "tokenizer.ggml.scores", &a), ATS_BAD_FILE);
    TEST_ERROR_HAS("tokenizer.ggml.scores is missing");
    TEST_OK(gguf_opt_u32(g, ".block_count", &u32));
    TEST_OK(gguf_opt_str(g, "general.name", &s));
    TEST_OK(gguf_opt_floats(g, "tokenizer.ggml.scores", &a));
    assert_int_equal(u32, 7);
    assert_null(s.data);
    assert_null(a);
    assert_null(gguf_find(g, ".block_count"));
    assert_null(gguf_find(g, "llama"));
}

static void a_wrong_type_is_named(void **state) {
    const struct gguf *g = ((struct sample *)*state)->g;
    uint32_t u32 = 7;
    float f = 7;
    bool b = true;
    struct gguf_str s = {NULL, 0};
    const struct gguf_array *a = NULL;
    TEST_STATUS(gguf_get_u32(g, ".f32", &u32), ATS_BAD_FILE);
    TEST_ERROR_HAS("key llama.f32 is of type f32, not an integer");
    TEST_STATUS(gguf_opt_u32(g, ".bool", &u32), ATS_BAD_FILE);
    TEST_STATUS(gguf_opt_u32(g, ".list", &u32), ATS_BAD_FILE);
    TEST_ERROR_HAS("array of u16");
    TEST_STATUS(gguf_get_f32(g, ".u32", &f), ATS_BAD_FILE);
    TEST_STATUS(gguf_get_bool(g, ".u8", &b), ATS_BAD_FILE);
    TEST_STATUS(gguf_get_str(g, ".u8", &s), ATS_BAD_FILE);
    TEST_STATUS(gguf_get_strs(g, ".list", &a), ATS_BAD_FILE);
    TEST_STATUS(gguf_get_ints(g, ".u8", &a), ATS_BAD_FILE);
    TEST_STATUS(gguf_get_ints(g, ".nested", &a), ATS_BAD_FILE);
    TEST_STATUS(gguf_get_floats(g, ".list", &a), ATS_BAD_FILE);
    TEST_STATUS(gguf_check_length(g, ".list", 2), ATS_BAD_FILE);
    TEST_ERROR_HAS("llama.list has 3 elements, not 2");
    TEST_STATUS(gguf_check_length(g, ".u8", 2), ATS_BAD_FILE);
    assert_true(u32 == 7 && f == 7 && b && s.data == NULL && a == NULL);
}

static void a_float_that_is_not_finite_is_refused(void **state) {
    (void)state;
    static const float bad[] = {INFINITY, -INFINITY, NAN};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct buf b = {0};
        void *copy;
        struct gguf *g;
        raw_begin(&b, 3, 0, 1);
        raw_key(&b, "freq", GGUF_F32);
        raw_f32(&b, bad[i]);
        TEST_OK(sample_open(&b, &copy, &g));
        float f = 7;
        TEST_STATUS(gguf_get_f32(g, "freq", &f), ATS_BAD_FILE);
        TEST_ERROR_HAS("freq");
        assert_true(f == 7);
        gguf_close(g);
        free(copy);
        buf_free(&b);
    }
}

static void tensors_are_found_with_their_shapes(void **state) {
    const struct sample *s = *state;
    const struct gguf_tensor *t;
    assert_int_equal(s->g->n_tensors, 3);
    TEST_OK(gguf_tensor_get(s->g, "token_embd.weight", &t));
    assert_int_equal(t->dtype, DTYPE_Q8_0);
    assert_int_equal(t->n_dims, 2);
    assert_int_equal(t->dims[0], 32);
    assert_int_equal(t->dims[1], 3);
    assert_int_equal(t->dims[2], 1);
    assert_int_equal(t->n_elements, 96);
    assert_int_equal(t->row_bytes, 34);
    assert_int_equal(t->n_bytes, 102);
    assert_ptr_equal(t->data, (const uint8_t *)s->copy + t->file_offset);
    assert_int_equal(t->file_offset, s->bytes.len - 176);
    assert_int_equal(t->data[5], 5);
    TEST_OK(gguf_tensor_get(s->g, "exps.weight", &t));
    assert_int_equal(t->n_dims, 4);
    assert_int_equal(t->n_bytes, 16);
    assert_int_equal(t->data[15], 175);
    assert_ptr_equal(gguf_tensor_find(s->g, "norm.weight"), &s->g->tensors[1]);
    assert_null(gguf_tensor_find(s->g, "norm"));
    TEST_STATUS(gguf_tensor_get(s->g, "output.weight", &t), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("output.weight");
}

static void without_an_architecture_its_key_is_missing(void **state) {
    (void)state;
    struct buf b = {0};
    void *copy;
    struct gguf *g;
    uint32_t v;
    raw_begin(&b, 2, 0, 1);
    raw_kv_u32(&b, "llama.block_count", 1);
    TEST_OK(sample_open(&b, &copy, &g));
    assert_int_equal(g->version, 2);
    assert_string_equal(g->arch, "");
    TEST_STATUS(gguf_get_u32(g, ".block_count", &v), ATS_BAD_FILE);
    TEST_ERROR_HAS("general.architecture is missing");
    gguf_close(g);
    free(copy);
    buf_free(&b);
}

#define WITH_SAMPLE(f) cmocka_unit_test_setup_teardown(f, open_sample, close_sample)

int main(void) {
    const struct CMUnitTest tests[] = {
        WITH_SAMPLE(integers_of_every_width_are_read),
        WITH_SAMPLE(floats_bools_and_strings_are_read),
        WITH_SAMPLE(arrays_are_read),
        WITH_SAMPLE(a_missing_key_is_named_or_leaves_the_default),
        WITH_SAMPLE(a_wrong_type_is_named),
        WITH_SAMPLE(tensors_are_found_with_their_shapes),
        cmocka_unit_test(a_float_that_is_not_finite_is_refused),
        cmocka_unit_test(without_an_architecture_its_key_is_missing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
