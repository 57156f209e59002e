#include "app/term.h"
#include "base/file.h"
#include "support.h"

#include <sys/wait.h>
#include <unistd.h>

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

/* What a process prints that reads a map of a file after it was cut; its status. */
static int read_behind_the_end(const char *path, char *said, size_t n_said) {
    int err[2], status;
    assert_int_equal(pipe(err), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        struct file_map map;
        struct term term;
        dup2(err[1], STDERR_FILENO);
        term_init(&term);
        if (file_map_open(path, &map) != ATS_OK || truncate(path, 0) != 0) _exit(99);
        _exit(*(const volatile uint8_t *)map.data);
    }
    close(err[1]);
    ssize_t n = read(err[0], said, n_said - 1);
    said[n > 0 ? n : 0] = 0;
    close(err[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void a_file_that_shrinks_while_it_is_read_is_told(void **state) {
    (void)state;
    char path[512], said[512];
    test_tmp_path(path, sizeof path, "shrinks");
    TEST_OK(file_write(path, "text", 4));
    assert_int_equal(read_behind_the_end(path, said, sizeof said), 1);
    assert_non_null(strstr(said, "atsinfer: error: the model's file cannot be read any more"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_text_is_unchanged),
        cmocka_unit_test(control_characters_become_visible),
        cmocka_unit_test(bytes_that_are_no_characters_are_replaced),
        cmocka_unit_test(a_file_that_shrinks_while_it_is_read_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
