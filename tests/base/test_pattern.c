/* Patterns of the command line. */
#include "base/pattern.h"
#include "support.h"

static bool matches(const char *pattern, const char *text) {
    struct pattern *p;
    TEST_OK(pattern_open(pattern, &p));
    bool found = pattern_matches(p, text);
    pattern_close(p);
    return found;
}

static void a_pattern_matches_anywhere(void **state) {
    (void)state;
    assert_true(matches("ffn", "blk.1.ffn_up.weight"));
    assert_true(matches("^blk\\.[0-3]\\.", "blk.3.ffn_up.weight"));
    assert_false(matches("^blk\\.[0-3]\\.", "blk.4.ffn_up.weight"));
    assert_true(matches("ffn_(up|down)_exps", "blk.4.ffn_down_exps.weight"));
    assert_false(matches("ffn_(up|down)_exps", "blk.4.ffn_gate_exps.weight"));
    assert_true(matches("a{2,3}b", "xaab"));
    assert_false(matches("a{2,3}b", "xab"));
}

static void forms_of_other_programs_are_understood(void **state) {
    (void)state;
    assert_true(matches("blk\\.\\d+\\.ffn", "blk.17.ffn_up.weight"));
    assert_false(matches("blk\\.\\d+\\.ffn", "blk.d.ffn_up.weight"));
    assert_true(matches("blk\\.(?:1|2[\\d])\\.", "blk.25.x"));
    assert_false(matches("blk\\.(?:1|2[\\d])\\.", "blk.2d.x"));
    assert_false(matches("a\\\\d", "a1")); /* a backslash, then a d */
    assert_true(matches("a\\\\d", "a\\d"));
}

static void what_is_no_pattern_is_refused(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"", "is empty"},
        {"(", "regular expression"},
        {"[a", "regular expression"},
        {"*\\", "regular expression"},
        {"a{2,1}", "regular expression"},
        {"((a{1,200}){1,200}){1,200}", "too large"},
        {"a{99999}", "too large"},
    };
    struct pattern *p;
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        TEST_STATUS(pattern_open(bad[i][0], &p), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS(bad[i][1]);
        assert_null(p);
    }
    char longer[5000];
    memset(longer, 'a', sizeof longer);
    longer[sizeof longer - 1] = 0;
    TEST_STATUS(pattern_open(longer, &p), ATS_BAD_ARGUMENT);
    pattern_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_pattern_matches_anywhere),
        cmocka_unit_test(forms_of_other_programs_are_understood),
        cmocka_unit_test(what_is_no_pattern_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
