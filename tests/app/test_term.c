#include "app/term.h"
#include "support.h"

static void expect(const char *in, size_t n, const char *out) {
    struct buf b = {0};
    term_add_safe(&b, in, n);
    assert_string_equal(buf_str(&b), out);
    buf_free(&b);
}
#define EXPECT(in, out) expect((in), sizeof(in) - 1, (out))

static void plain_text_is_unchanged(void **state) {
    (void)state;
    EXPECT("a\tb\nc äöü 漢字 \xf0\x9f\x98\x80", "a\tb\nc äöü 漢字 \xf0\x9f\x98\x80");
    EXPECT("", "");
}

static void control_characters_become_visible(void **state) {
    (void)state;
    EXPECT("a\x1b[31mb", "a^[[31mb");
    EXPECT("a\0b", "a^@b");
    EXPECT("\r\x07\x7f", "^M^G^?");
    EXPECT("\xc2\x9b"
           "2J",
           "<9B>2J"); /* an 8-bit escape */
}

static void bytes_that_are_no_characters_are_replaced(void **state) {
    (void)state;
    EXPECT("a\xff"
           "b",
           "a\xef\xbf\xbd"
           "b");
    EXPECT("\xf0\x9f\x98", "\xef\xbf\xbd");
    EXPECT("\x9b"
           "2J",
           "\xef\xbf\xbd"
           "2J");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_is_unchanged),
        cmocka_unit_test(control_characters_become_visible),
        cmocka_unit_test(bytes_that_are_no_characters_are_replaced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
