/* Stop strings across any borders (R54): the stream equals the text cut before the first one. */
#include "support.h"

#include "base/buf.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "text/stop.h"

#define MAX_STOPS 4

struct text_case {
    const char *stops[MAX_STOPS];
    const char *text, *want;
    int found;
};

static struct stop *open_stops(const char *const *strings, size_t n) {
    struct text_span spans[MAX_STOPS];
    struct stop *s;
    for (size_t i = 0; i < n; i++)
        spans[i] = (struct text_span){strings[i], strlen(strings[i])};
    TEST_OK(stop_open(spans, n, &s));
    return s;
}

static void the_text_before_the_first_stop_string_comes_out(void **state) {
    (void)state;
    static const struct text_case cases[] = {
        {{"STOP"}, "hello STOP more", "hello ", 0},
        {{"STOP"}, "hello STO", "hello STO", -1}, /* never complete: the tail comes at the end */
        {{"STOP"}, "STSTOP", "ST", 0},
        {{"aab"}, "aaab", "a", 0},
        {{"abab"}, "abaabab.", "aba", 0},
        {{"\n\n"}, "a\nb\n\nc", "a\nb", 0},
        {{"STOP"}, "STOP", "", 0},
        {{"STOP"}, "ends with STOP", "ends with ", 0},
        {{"</s>", "\nUser:"}, "fine\nUser: no", "fine", 1},
        {{"b", "abc"}, "xabc", "xa", 0}, /* complete first */
        {{"c", "abc"}, "xabc", "x", 1},  /* complete at once: the longest */
        {{"x"}, "", "", -1},
        {{NULL}, "no stops", "no stops", -1},
        {{"\xC3\xA9"}, "\xC3\xA8 caf\xC3\xA9.", "\xC3\xA8 caf", 0},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const struct text_case *c = &cases[i];
        size_t n = 0, len = strlen(c->text);
        while (n < MAX_STOPS && c->stops[n])
            n++;
        for (size_t portion = 1; portion <= len + 1; portion++) {
            struct stop *s = open_stops(c->stops, n);
            struct buf out = {0};
            for (size_t at = 0; at < len; at += portion) {
                stop_push(s, c->text + at, min_size(portion, len - at), &out);
            }
            stop_flush(s, &out);
            assert_string_equal(buf_str(&out), c->want);
            assert_int_equal(stop_found(s), c->found);
            buf_free(&out);
            stop_close(s);
        }
    }
}

static void nothing_comes_after_a_stop_string(void **state) {
    (void)state;
    struct stop *s = open_stops((const char *[]){"ab"}, 1);
    struct buf out = {0};
    assert_false(stop_push(s, "xa", 2, &out));
    assert_string_equal(buf_str(&out), "x"); /* the a is held back */
    assert_true(stop_push(s, "byab", 4, &out));
    assert_true(stop_push(s, "more", 4, &out));
    stop_flush(s, &out);
    assert_string_equal(buf_str(&out), "x");
    buf_free(&out);
    stop_close(s);
    stop_close(NULL);
}

static void an_empty_stop_string_is_refused(void **state) {
    (void)state;
    struct stop *s;
    struct text_span spans[2] = {{"a", 1}, {"", 0}};
    TEST_STATUS(stop_open(spans, 2, &s), ATS_BAD_ARGUMENT);
    assert_null(s);
    TEST_ERROR_HAS("stop string 1");
}

/* By definition: the first end of any string, of several there the longest. */
static size_t find_slowly(const char *text, size_t len, const struct text_span *stops, size_t n,
                          int *found) {
    *found = -1;
    for (size_t end = 1; end <= len; end++) {
        for (size_t i = 0; i < n; i++) {
            bool here = stops[i].len <= end &&
                        memcmp(text + end - stops[i].len, stops[i].data, stops[i].len) == 0;
            if (here && (*found < 0 || stops[i].len > stops[*found].len)) *found = (int)i;
        }
        if (*found >= 0) return end - stops[*found].len;
    }
    return len;
}

static void any_portions_of_any_text_give_the_same_cut(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 5);
    for (int round = 0; round < 20000; round++) {
        char strings[3][8], text[40];
        struct text_span spans[3];
        size_t n = 1 + rng_below(&rng, 3), len = rng_below(&rng, 40);
        for (size_t i = 0; i < n; i++) {
            spans[i] = (struct text_span){strings[i], 1 + rng_below(&rng, 6)};
            for (size_t k = 0; k < spans[i].len; k++)
                strings[i][k] = "ab"[rng_below(&rng, 2)];
        }
        for (size_t k = 0; k < len; k++)
            text[k] = "aab"[rng_below(&rng, 3)];
        struct stop *s;
        struct buf out = {0};
        int want_found;
        size_t want = find_slowly(text, len, spans, n, &want_found);
        TEST_OK(stop_open(spans, n, &s));
        for (size_t at = 0; at < len;) {
            size_t portion = min_size(len - at, rng_below(&rng, 5));
            stop_push(s, text + at, portion, &out);
            at += portion;
        }
        stop_flush(s, &out);
        assert_int_equal(out.len, want);
        if (want > 0) assert_memory_equal(out.data, text, want);
        if (want_found >= 0) assert_int_equal(spans[stop_found(s)].len, spans[want_found].len);
        if (want_found < 0) assert_int_equal(stop_found(s), -1);
        buf_free(&out);
        stop_close(s);
    }
}

/* Pushed by characters, text comes out by characters, however the strings begin. */
static void whole_characters_in_whole_characters_out(void **state) {
    (void)state;
    struct stop *s = open_stops((const char *[]){"\xC3\xA9\xC3\xA9!", "\xF0\x9F\x99\x82?"}, 2);
    static const char *const chars[] = {"\xC3\xA9", "\xC3\xA8", "\xF0\x9F\x99\x82",
                                        "\xF0\x9F\x99\x83", "a"};
    struct buf out = {0};
    struct rng rng;
    rng_seed(&rng, 9);
    for (int i = 0; i < 5000; i++) {
        const char *c = chars[rng_below(&rng, COUNT_OF(chars))];
        size_t before = out.len;
        assert_false(stop_push(s, c, strlen(c), &out));
        if (out.len > before) assert_true(utf8_valid(out.data + before, out.len - before));
    }
    stop_flush(s, &out);
    buf_free(&out);
    stop_close(s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_text_before_the_first_stop_string_comes_out),
        cmocka_unit_test(nothing_comes_after_a_stop_string),
        cmocka_unit_test(an_empty_stop_string_is_refused),
        cmocka_unit_test(any_portions_of_any_text_give_the_same_cut),
        cmocka_unit_test(whole_characters_in_whole_characters_out),
    };
    return cmocka_run_group_tests_name("stop", tests, NULL, NULL);
}
