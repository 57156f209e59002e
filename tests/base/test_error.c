#include "support.h"

#include "base/threads.h"
#include "base/utf8.h"

static void every_status_has_a_text(void **state) {
    (void)state;
#define CHECK(name, value, text)                                                                   \
    assert_int_equal(name, value);                                                                 \
    assert_string_equal(ats_status_text(name), text);
    ATS_STATUS_MAP(CHECK)
#undef CHECK
    assert_non_null(ats_status_text((ats_status)999));
}

static void the_text_of_the_last_failure_is_kept(void **state) {
    (void)state;
    assert_int_equal(fail(ATS_IO, "first %d", 1), ATS_IO);
    assert_int_equal(fail(ATS_BAD_FILE, "key %s", "a.b"), ATS_BAD_FILE);
    assert_string_equal(error_text(), "key a.b");
    assert_string_equal(ats_error_text(), "key a.b");
    error_clear();
    assert_string_equal(error_text(), "");
}

static void a_prefix_goes_before_the_kept_text(void **state) {
    (void)state;
    TEST_STATUS(fail(ATS_IO, "inner"), ATS_IO);
    assert_int_equal(fail_in(ATS_BAD_FILE, "file %s", "x"), ATS_BAD_FILE);
    assert_string_equal(error_text(), "file x: inner");
}

static void arguments_may_be_the_kept_text_itself(void **state) {
    (void)state;
    TEST_STATUS(fail(ATS_IO, "abc"), ATS_IO);
    TEST_STATUS(fail(ATS_IO, "%s, then %s", error_text(), error_text()), ATS_IO);
    assert_string_equal(error_text(), "abc, then abc");
    TEST_STATUS(fail_in(ATS_IO, "in %s", error_text() + 5), ATS_IO);
    assert_string_equal(error_text(), "in then abc: abc, then abc");
    error_set_text(error_text() + 3);
    assert_string_equal(error_text(), "then abc: abc, then abc");
}

static void long_texts_are_cut_between_characters(void **state) {
    (void)state;
    char text[1200];
    for (size_t shift = 0; shift < 3; shift++) {
        memset(text, 'x', shift);
        size_t n = shift;
        for (; n + 3 < sizeof text; n += 3)
            memcpy(text + n, "\xE2\x82\xAC", 3);
        text[n] = 0;
        TEST_STATUS(fail(ATS_IO, "%s", text), ATS_IO);
        size_t kept = strlen(error_text());
        assert_in_range(kept, 509, 511);
        assert_true(utf8_valid(error_text(), kept));
        assert_memory_equal(error_text(), text, kept);
        TEST_STATUS(fail_in(ATS_IO, "%s", text), ATS_IO);
        assert_true(utf8_valid(error_text(), strlen(error_text())));
    }
    memset(text, 0xFF, sizeof text - 1); /* each byte becomes three */
    text[sizeof text - 1] = 0;
    TEST_STATUS(fail(ATS_IO, "%s", text), ATS_IO);
    assert_int_equal(strlen(error_text()), 510);
}

static void texts_are_one_line_of_utf8_without_escapes(void **state) {
    (void)state;
    TEST_STATUS(fail(ATS_IO, "a\nb\x1b[31m\xC2\x9B"
                             "c\xFF"),
                ATS_IO);
    assert_string_equal(error_text(), "a b [31m c\xEF\xBF\xBD");
}

static void *fail_in_a_thread(void *arg) {
    *(ats_status *)arg = fail(ATS_DEVICE, "other thread");
    return NULL;
}

static void each_thread_keeps_its_own_text(void **state) {
    (void)state;
    struct thread t;
    ats_status status;
    TEST_STATUS(fail(ATS_IO, "mine"), ATS_IO);
    TEST_OK(thread_start(&t, fail_in_a_thread, &status));
    thread_join(&t);
    assert_int_equal(status, ATS_DEVICE);
    assert_string_equal(error_text(), "mine");
}

MUST_CHECK static ats_status pass_up(ats_status status, int *reached) {
    TRY(status);
    ++*reached;
    TRY_TO(out, status, ATS_OK);
    ++*reached;
    TRY_TO(out, status, ATS_NO_MEMORY);
    ++*reached;
out:
    return status;
}

static void try_leaves_at_the_first_failure(void **state) {
    (void)state;
    int reached = 0;
    assert_int_equal(pass_up(ATS_IO, &reached), ATS_IO);
    assert_int_equal(reached, 0);
    assert_int_equal(pass_up(ATS_OK, &reached), ATS_NO_MEMORY);
    assert_int_equal(reached, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text),
        cmocka_unit_test(the_text_of_the_last_failure_is_kept),
        cmocka_unit_test(a_prefix_goes_before_the_kept_text),
        cmocka_unit_test(arguments_may_be_the_kept_text_itself),
        cmocka_unit_test(long_texts_are_cut_between_characters),
        cmocka_unit_test(texts_are_one_line_of_utf8_without_escapes),
        cmocka_unit_test(each_thread_keeps_its_own_text),
        cmocka_unit_test(try_leaves_at_the_first_failure),
    };
    return cmocka_run_group_tests_name("base/error", tests, NULL, NULL);
}
