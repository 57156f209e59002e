#include "support.h"

#include "base/buf.h"
#include "base/rng.h"
#include "base/utf8.h"

/* Length of the one encoding of cp, by the definition. */
static int encode_plainly(uint32_t cp, unsigned char *out) {
    if (cp < 0x80) {
        out[0] = (unsigned char)cp;
        return 1;
    }
    if (cp < 0x800) {
        out[0] = (unsigned char)(0xC0 + cp / 64);
        out[1] = (unsigned char)(0x80 + cp % 64);
        return 2;
    }
    if (cp < 0x10000) {
        out[0] = (unsigned char)(0xE0 + cp / 4096);
        out[1] = (unsigned char)(0x80 + cp / 64 % 64);
        out[2] = (unsigned char)(0x80 + cp % 64);
        return 3;
    }
    out[0] = (unsigned char)(0xF0 + cp / 262144);
    out[1] = (unsigned char)(0x80 + cp / 4096 % 64);
    out[2] = (unsigned char)(0x80 + cp / 64 % 64);
    out[3] = (unsigned char)(0x80 + cp % 64);
    return 4;
}

static bool is_surrogate(uint32_t cp) {
    return cp >= 0xD800 && cp < 0xE000;
}

static void every_code_point_is_encoded_and_decoded(void **state) {
    (void)state;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        unsigned char want[4];
        char got[4];
        uint32_t back;
        int n = encode_plainly(cp, want);
        assert_int_equal(utf8_encode(cp, got), n);
        assert_memory_equal(got, want, (size_t)n);
        if (is_surrogate(cp)) {
            assert_int_equal(utf8_decode(got, (size_t)n, &back), 0);
            continue;
        }
        assert_int_equal(utf8_decode(got, (size_t)n, &back), n);
        assert_int_equal(back, cp);
        for (int cut = 1; cut < n; cut++) {
            assert_int_equal(utf8_decode(got, (size_t)cut, &back), 0);
            assert_int_equal(utf8_complete_prefix(got, (size_t)cut), 0);
            assert_int_equal(utf8_invalid_span(got, (size_t)cut), cut);
        }
        assert_int_equal(utf8_complete_prefix(got, (size_t)n), n);
    }
}

/* All that decodes must be the one encoding of what it decodes to: no overlong form, surrogate or
 * number past the end gets through. All byte strings of length 1 to 3; of 4, all leads and seconds.
 */
static void nothing_else_decodes(void **state) {
    (void)state;
    size_t n_valid = 0;
    for (uint32_t i = 0; i < 1u << 24; i++) {
        char s[4] = {(char)(i >> 16), (char)(i >> 8), (char)i, (char)0x80};
        uint32_t cp;
        unsigned char back[4];
        int n = utf8_decode(s, 4, &cp);
        if (n == 0) continue;
        n_valid++;
        if (is_surrogate(cp) || cp > 0x10FFFF || encode_plainly(cp, back) != n ||
            memcmp(back, s, (size_t)n) != 0)
            fail_msg("bytes %06x decode to %x", i, cp);
    }
    /* 1 byte: 128 leads, 2^16 tails; 2 bytes: 1920, 2^8; 3 bytes: 63488 - 2048; 4 bytes: 2^20/64 */
    assert_int_equal(n_valid, (128u << 16) + (1920u << 8) + 61440u + (1u << 20) / 64);
}

static void validity_is_that_of_each_character(void **state) {
    (void)state;
    assert_true(utf8_valid("", 0));
    assert_true(utf8_valid("a\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80", 10));
    assert_true(utf8_valid("a\0b", 3));
    assert_false(utf8_valid("a\xC3", 2));
    assert_false(utf8_valid("\xED\xA0\x80", 3));
    assert_false(utf8_valid("\xC0\x80", 2));
}

/* Examples of Unicode 15, section 3.9, table 3-8 to 3-11, and of Python's decoder. */
static void invalid_parts_are_replaced_by_maximal_subpart(void **state) {
    (void)state;
#define R "\xEF\xBF\xBD"
    static const struct {
        const char *in, *out;
    } cases[] = {
        {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82"
         "A",
         R R R R R R R R "A"},
        {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF"
         "A",
         R R R R R R R R "A"},
        {"\xF4\x91\x92\x93\xFF"
         "A\x80\xBF"
         "B",
         R R R R R "A" R R "B"},
        {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF"
         "A",
         R R R R "A"},
        {"ok \xC3\xA9", "ok \xC3\xA9"},
        {"\xF0\x9F\x98", R},
        {"", ""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct buf b = {0};
        utf8_add_replaced(&b, cases[i].in, strlen(cases[i].in));
        assert_string_equal(buf_str(&b), cases[i].out);
        buf_free(&b);
    }
}

static void only_an_unfinished_character_is_held_back(void **state) {
    (void)state;
    static const struct {
        const char *s;
        size_t want;
    } cases[] = {
        {"", 0},
        {"abc", 3},
        {"ab\xC3", 2},
        {"ab\xC3\xA9", 4},
        {"ab\xE2\x82", 2},
        {"ab\xF0\x9F\x98", 2},
        {"ab\xF0\x9F\x98\x80", 6},
        {"ab\x80\x80\x80\x80", 6}, /* no lead byte: it will never become valid */
        {"ab\xE0\x80", 4},         /* overlong: the same */
        {"ab\xED\xA0", 4},
        {"ab\xC0", 3},
        {"ab\xF5\x80\x80", 5},
        {"ab\xC3\xA9\x80", 5},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++)
        assert_int_equal(utf8_complete_prefix(cases[i].s, strlen(cases[i].s)), cases[i].want);
}

static void replaced_text_is_always_valid(void **state) {
    (void)state;
    static const unsigned char bytes[] = {'a',  0x80, 0xBF, 0xC2, 0xE0, 0xED, 0xEF,
                                          0xF0, 0xF4, 0xFF, 0xA0, 0x90, 0x8F};
    struct rng r;
    rng_seed(&r, 3);
    for (int i = 0; i < 20000; i++) {
        char s[24];
        size_t n = rng_below(&r, sizeof s + 1);
        for (size_t j = 0; j < n; j++)
            s[j] = (char)bytes[rng_below(&r, sizeof bytes)];
        struct buf b = {0};
        utf8_add_replaced(&b, s, n);
        assert_true(utf8_valid(buf_str(&b), b.len));
        if (utf8_valid(s, n)) assert_memory_equal(buf_str(&b), s, n);
        assert_true(n - utf8_complete_prefix(s, n) <= 3);
        buf_free(&b);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_code_point_is_encoded_and_decoded),
        cmocka_unit_test(nothing_else_decodes),
        cmocka_unit_test(validity_is_that_of_each_character),
        cmocka_unit_test(invalid_parts_are_replaced_by_maximal_subpart),
        cmocka_unit_test(only_an_unfinished_character_is_held_back),
        cmocka_unit_test(replaced_text_is_always_valid),
    };
    return cmocka_run_group_tests_name("base/utf8", tests, NULL, NULL);
}
