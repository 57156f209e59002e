#include "support.h"

#include "base/buf.h"

static void an_empty_buf_reads_as_an_empty_string(void **state) {
    (void)state;
    struct buf b = {0};
    assert_string_equal(buf_str(&b), "");
    buf_add(&b, NULL, 0);
    assert_int_equal(b.len, 0);
    char *taken = buf_take(&b);
    assert_string_equal(taken, "");
    free(taken);
    buf_free(&b);
}

static void pieces_are_joined_and_terminated(void **state) {
    (void)state;
    struct buf b = {0};
    buf_add_str(&b, "ab");
    buf_add_char(&b, 'c');
    buf_add(&b, "d\0e", 3);
    buf_printf(&b, "%05d", 42);
    assert_int_equal(b.len, 11);
    assert_memory_equal(b.data, "abcd\0e00042", 12);
    buf_clear(&b);
    assert_string_equal(buf_str(&b), "");
    buf_printf(&b, "%s", "");
    assert_string_equal(buf_str(&b), "");
    buf_free(&b);
    assert_null(b.data);
}

static void it_grows_without_loss(void **state) {
    (void)state;
    struct buf b = {0};
    for (int i = 0; i < 5000; i++)
        buf_printf(&b, "%04d", i);
    assert_int_equal(b.len, 20000);
    for (int i = 0; i < 5000; i++) {
        char number[8] = {0};
        memcpy(number, b.data + 4 * i, 4);
        assert_int_equal(atoi(number), i);
    }
    buf_free(&b);
}

static void taking_leaves_it_empty(void **state) {
    (void)state;
    struct buf b = {0};
    buf_add_str(&b, "text");
    char *taken = buf_take(&b);
    assert_string_equal(taken, "text");
    assert_null(b.data);
    assert_int_equal(b.len + b.cap, 0);
    free(taken);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_empty_buf_reads_as_an_empty_string),
        cmocka_unit_test(pieces_are_joined_and_terminated),
        cmocka_unit_test(it_grows_without_loss),
        cmocka_unit_test(taking_leaves_it_empty),
    };
    return cmocka_run_group_tests_name("base/buf", tests, NULL, NULL);
}
