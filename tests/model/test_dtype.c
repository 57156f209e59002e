/* Types: their table, and the reference de-quantisers against the oracles, bit for bit. */
#include "model/dtype.h"
#include "model/gguf.h"
#include "sha256.h"
#include "support.h"

#include <stdio.h>

static void ids_and_names_lead_to_the_type(void **state) {
    (void)state;
    enum dtype type;
    for (int i = 0; i < N_DTYPES; i++) {
        TEST_OK(dtype_from_ggml(dtype_info((enum dtype)i)->ggml_id, &type));
        assert_int_equal(type, i);
        assert_true(dtype_from_name(dtype_name((enum dtype)i), &type));
        assert_int_equal(type, i);
        assert_int_equal(dtype_info((enum dtype)i)->weight, i < N_DTYPES_WEIGHT);
    }
    assert_true(dtype_from_name("q4_k", &type));
    assert_int_equal(type, DTYPE_Q4_K);
    assert_false(dtype_from_name("Q4_K_M", &type));
    assert_false(dtype_from_name("", &type));
}

static void unknown_and_retired_ids_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        uint32_t id;
        const char *text;
    } bad[] = {
        {4, "Q4_2"},      {5, "Q4_3"},      {31, "Q4_0_4_4"},           {32, "Q4_0_4_8"},
        {33, "Q4_0_8_8"}, {36, "IQ4_NL_4"}, {37, "IQ4_NL_4_8"},         {38, "IQ4_NL_8_8"},
        {42, "42"},       {1000, "1000"},   {UINT32_MAX, "4294967295"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        enum dtype type;
        TEST_STATUS(dtype_from_ggml(bad[i].id, &type), ATS_UNSUPPORTED);
        TEST_ERROR_HAS(bad[i].text);
    }
}

static void row_sizes_are_checked(void **state) {
    (void)state;
    int64_t bytes;
    assert_true(dtype_row_size(DTYPE_Q4_K, 512, &bytes));
    assert_int_equal(bytes, 288);
    assert_true(dtype_row_size(DTYPE_Q8_0, 0, &bytes));
    assert_int_equal(bytes, 0);
    assert_int_equal(dtype_row_bytes(DTYPE_MXFP4, 64), 34);
    assert_int_equal(dtype_row_bytes(DTYPE_BF16, 3), 6);
    assert_false(dtype_row_size(DTYPE_Q4_K, 288, &bytes));
    assert_false(dtype_row_size(DTYPE_Q4_0, 33, &bytes));
    assert_false(dtype_row_size(DTYPE_F32, -1, &bytes));
    assert_false(dtype_row_size(DTYPE_F32, INT64_MAX / 2, &bytes));
    assert_true(dtype_row_size(DTYPE_F32, INT64_MAX / 4, &bytes));
}

static void e8m0_is_half_the_power_of_two(void **state) {
    (void)state;
    for (int e = 0; e < 256; e++) {
        float want = 1;
        for (int i = 128; i < e; i++)
            want *= 2;
        for (int i = e; i < 128; i++)
            want /= 2;
        assert_true(e8m0_half((uint8_t)e) == want);
    }
}

/* Every tensor of one file of quants/ has the digest that index.json gives. */
static void check_digests(const char *file, const json_t *digests) {
    char relative[256], path[4096];
    snprintf(relative, sizeof relative, "models/quants/%s", file);
    assert_true(test_shared_path(path, sizeof path, relative));
    struct gguf *g;
    TEST_OK(gguf_open(path, &g));
    assert_int_equal(g->n_tensors, json_object_size(digests));
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        float *out = malloc((size_t)t->n_elements * sizeof *out);
        assert_non_null(out);
        dtype_to_float(t->dtype, t->data, out, t->n_elements);
        char hex[65];
        sha256_hex(out, (size_t)t->n_elements * sizeof *out, hex);
        free(out);
        if (strcmp(hex, json_string_value(test_json_get(digests, t->name))) != 0) {
            fail_msg("%s: %s (%s) differs", file, t->name, dtype_name(t->dtype));
        }
    }
    gguf_close(g);
}

static void dequantised_tensors_are_bit_equal(void **state) {
    (void)state;
    char path[4096];
    if (!test_shared_path(path, sizeof path, "models/quants/index.json")) skip();
    json_t *index = test_json_read(path);
    json_t *types = test_json_get(index, "types"), *type;
    const char *name;
    int n = 0;
    json_object_foreach(types, name, type) {
        check_digests(json_string_value(test_json_get(type, "file")),
                      test_json_get(type, "dequantised_sha256"));
        n++;
    }
    assert_int_equal(n, 15);
    json_decref(index);
}

/* The first rows of one tensor, as floats: says where a difference is when a digest only says that
 * there is one. */
static void dequantised_rows_are_equal(void **state) {
    (void)state;
    char path[4096], relative[256];
    if (!test_shared_path(path, sizeof path, "models/quants/index.json")) skip();
    json_t *index = test_json_read(path);
    json_t *types = test_json_get(index, "types"), *type;
    const char *name;
    json_object_foreach(types, name, type) {
        snprintf(relative, sizeof relative, "models/quants/%s.rows.npy", name);
        assert_true(test_shared_path(path, sizeof path, relative));
        struct test_npy rows;
        test_npy_read(path, &rows);
        snprintf(relative, sizeof relative, "models/quants/%s",
                 json_string_value(test_json_get(type, "file")));
        assert_true(test_shared_path(path, sizeof path, relative));
        struct gguf *g;
        TEST_OK(gguf_open(path, &g));
        const struct gguf_tensor *t;
        TEST_OK(gguf_tensor_get(g, json_string_value(test_json_get(type, "rows_tensor")), &t));
        assert_string_equal(dtype_name(t->dtype),
                            json_string_value(test_json_get(type, "rows_type")));
        assert_true((int64_t)rows.n <= t->n_elements && rows.n == 8 * (size_t)t->dims[0]);
        float *out = malloc(rows.n * sizeof *out);
        assert_non_null(out);
        dtype_to_float(t->dtype, t->data, out, (int64_t)rows.n);
        for (size_t i = 0; i < rows.n; i++) {
            if (float_bits(out[i]) != float_bits(rows.data[i])) {
                fail_msg("%s: element %zu is %a, not %a", name, i, (double)out[i],
                         (double)rows.data[i]);
            }
        }
        free(out);
        test_npy_free(&rows);
        gguf_close(g);
    }
    json_decref(index);
}

/* qwen2's weights are exact in BF16: both files hold the same numbers. */
static void bf16_holds_the_same_numbers_as_f32(void **state) {
    (void)state;
    char path[4096];
    struct gguf *f32, *bf16;
    if (!test_shared_path(path, sizeof path, "models/qwen2/qwen2-f32.gguf")) skip();
    TEST_OK(gguf_open(path, &f32));
    assert_true(test_shared_path(path, sizeof path, "models/qwen2/qwen2-bf16.gguf"));
    TEST_OK(gguf_open(path, &bf16));
    assert_int_equal(f32->n_tensors, bf16->n_tensors);
    int n_bf16 = 0;
    for (int i = 0; i < f32->n_tensors; i++) {
        const struct gguf_tensor *a = &f32->tensors[i], *b;
        TEST_OK(gguf_tensor_get(bf16, a->name, &b));
        assert_int_equal(a->dtype, DTYPE_F32);
        assert_int_equal(a->n_elements, b->n_elements);
        n_bf16 += b->dtype == DTYPE_BF16;
        float *out = malloc((size_t)b->n_elements * sizeof *out);
        assert_non_null(out);
        dtype_to_float(b->dtype, b->data, out, b->n_elements);
        assert_memory_equal(out, a->data, (size_t)a->n_bytes);
        free(out);
    }
    assert_true(n_bf16 > 0);
    gguf_close(f32);
    gguf_close(bf16);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_and_names_lead_to_the_type),
        cmocka_unit_test(unknown_and_retired_ids_are_refused_by_name),
        cmocka_unit_test(row_sizes_are_checked),
        cmocka_unit_test(e8m0_is_half_the_power_of_two),
        cmocka_unit_test(dequantised_rows_are_equal),
        cmocka_unit_test(dequantised_tensors_are_bit_equal),
        cmocka_unit_test(bf16_holds_the_same_numbers_as_f32),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
