#include "support.h"

#include "base/buf.h"
#include "base/file.h"

#include <math.h>

static json_t *parse(const char *text) {
    json_t *value;
    TEST_OK(json_parse(text, strlen(text), &value));
    return value;
}

static void expect_refused(const char *text, size_t n, const char *part) {
    json_t *value = (json_t *)1;
    TEST_STATUS(json_parse(text, n, &value), ATS_BAD_INPUT);
    TEST_ERROR_HAS(part);
    assert_null(value);
}

static void any_value_may_stand_alone(void **state) {
    (void)state;
    const char *texts[] = {"1", "\"a\"", "null", "true", "[]", "{}", " 1.5 "};
    for (size_t i = 0; i < COUNT_OF(texts); i++)
        json_decref(parse(texts[i]));
}

static void malformed_text_is_refused_with_its_place(void **state) {
    (void)state;
    expect_refused("{\"a\":1,\n \"a\":2}", 15, "line 2");
    expect_refused("{\"a\":1,\"a\":2}", 13, "duplicate");
    expect_refused("", 0, "line");
    expect_refused("[1", 2, "line");
    expect_refused("[1] 2", 5, "end of file");
    expect_refused("\"\xFF\"", 3, "decode byte");
    expect_refused("\"\xED\xA0\x80\"", 5, "decode byte");
    expect_refused("[1e999]", 7, "overflow");
    expect_refused("[99999999999999999999]", 22, "too big");
    expect_refused("\"\\ud800\"", 8, "Unicode");
    expect_refused("nan", 3, "line");
}

static void depth_is_limited(void **state) {
    (void)state;
    struct buf b = {0};
    for (int i = 0; i < 1000; i++)
        buf_add_char(&b, '[');
    for (int i = 0; i < 1000; i++)
        buf_add_char(&b, ']');
    json_t *value = parse(b.data);
    char *text = json_print(value, false);
    assert_string_equal(text, b.data);
    free(text);
    json_decref(value);
    buf_clear(&b);
    for (int i = 0; i < 2000000; i++)
        buf_add_char(&b, '[');
    expect_refused(b.data, b.len, "depth");
    buf_free(&b);
}

static void strings_may_hold_nul(void **state) {
    (void)state;
    json_t *value = parse("\"a\\u0000b\"");
    assert_int_equal(json_string_length(value), 3);
    char *text = json_print(value, false);
    assert_string_equal(text, "\"a\\u0000b\"");
    free(text);
    json_decref(value);
}

static void no_control_character_is_printed_as_it_is(void **state) {
    (void)state;
    json_t *value = json_string("\x1b[2J\x7f\xC2\x80\xC2\x9B"
                                "2J\xC2\x9F\xC2\xA0\xC3\x9B");
    char *text = json_print(value, false);
    assert_string_equal(text, "\"\\u001b[2J\\u007f\\u0080\\u009b2J\\u009f\xC2\xA0\xC3\x9B\"");
    json_t *again = parse(text);
    assert_true(json_equal(value, again));
    free(text);
    json_decref(value);
    json_decref(again);
}

static void printing_is_exact_and_keeps_the_order(void **state) {
    (void)state;
    const char *text = "{\"z\": [1, -2, 0.1, 1e+300, 3.0, true, null], \"a\": {}, \"s\": "
                       "\"q\\\"\\\\\\n\\t\\u0001\xC3\xA9/\"}";
    json_t *value = parse(text);
    char *one_line = json_print(value, false);
    assert_string_equal(one_line, text);
    char *lines = json_print(value, true);
    json_t *again = parse(lines);
    assert_true(json_equal(value, again));
    assert_true(strstr(lines, "{\n  \"z\": [\n    1,\n    -2,\n") == lines);
    assert_non_null(strstr(lines, "\"a\": {},\n"));
    free(one_line);
    free(lines);
    json_decref(value);
    json_decref(again);
}

static void numbers_read_back_as_they_were(void **state) {
    (void)state;
    const double numbers[] = {0.1,
                              1.0 / 3,
                              1e-320,
                              -0.0,
                              123456789012345678.0,
                              1e22,
                              5e-324,
                              1.7976931348623157e308,
                              2.5,
                              0.30000000000000004};
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        json_t *value = json_real(numbers[i]);
        char *text = json_print(value, false);
        json_t *back = parse(text);
        assert_true(json_is_real(back) && json_real_value(back) == numbers[i]);
        assert_int_equal(signbit(json_real_value(back)) != 0, signbit(numbers[i]) != 0);
        free(text);
        json_decref(value);
        json_decref(back);
    }
}

static void invalid_bytes_in_a_string_are_replaced(void **state) {
    (void)state;
    json_t *value = json_string_replaced("a\xFF"
                                         "b\0c",
                                         5);
    assert_int_equal(json_string_length(value), 7);
    assert_memory_equal(json_string_value(value),
                        "a\xEF\xBF\xBD"
                        "b\0c",
                        7);
    json_decref(value);
    value = json_string_replaced("", 0);
    assert_string_equal(json_string_value(value), "");
    json_decref(value);
}

static void errors_of_files_name_the_file(void **state) {
    (void)state;
    char path[512];
    json_t *value;
    test_tmp_path(path, sizeof path, "bad.json");
    TEST_STATUS(json_read_file(path, 100, &value), ATS_IO);
    TEST_OK(file_write(path, "{", 1));
    TEST_STATUS(json_read_file(path, 100, &value), ATS_BAD_FILE);
    TEST_ERROR_HAS("bad.json: JSON, line 1");
    TEST_OK(file_write(path, "{\"a\": [1, 2]}", 13));
    TEST_STATUS(json_read_file(path, 12, &value), ATS_BAD_FILE);
    value = test_json_read(path);
    size_t n;
    int32_t *ids = test_json_ids(test_json_get(value, "a"), &n);
    assert_int_equal(n, 2);
    assert_int_equal(ids[1], 2);
    free(ids);
    json_decref(value);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_value_may_stand_alone),
        cmocka_unit_test(malformed_text_is_refused_with_its_place),
        cmocka_unit_test(depth_is_limited),
        cmocka_unit_test(strings_may_hold_nul),
        cmocka_unit_test(no_control_character_is_printed_as_it_is),
        cmocka_unit_test(printing_is_exact_and_keeps_the_order),
        cmocka_unit_test(numbers_read_back_as_they_were),
        cmocka_unit_test(invalid_bytes_in_a_string_are_replaced),
        cmocka_unit_test(errors_of_files_name_the_file),
    };
    return cmocka_run_group_tests_name("base/json", tests, NULL, NULL);
}
