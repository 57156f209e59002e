#include "support.h"

#include "base/file.h"

#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

static void a_map_shows_the_whole_file(void **state) {
    (void)state;
    char path[512];
    struct file_map map;
    test_tmp_path(path, sizeof path, "map");
    char *data = malloc(100001);
    for (int i = 0; i < 100001; i++)
        data[i] = (char)(i * 7);
    TEST_OK(file_write(path, data, 100001));
    TEST_OK(file_map_open(path, &map));
    assert_int_equal(map.size_bytes, 100001);
    assert_memory_equal(map.data, data, 100001);
    assert_string_equal(map.path, path);
    file_map_dontneed(&map, 5000, 60000);
    file_map_dontneed(&map, 0, UINT64_MAX);
    file_map_dontneed(&map, 3, UINT64_MAX);
    assert_memory_equal(map.data, data, 100001);
    file_map_close(&map);
    file_map_close(&map);
    free(data);
}

static void an_empty_file_maps_to_nothing(void **state) {
    (void)state;
    char path[512];
    struct file_map map;
    test_tmp_path(path, sizeof path, "empty");
    TEST_OK(file_write(path, "", 0));
    TEST_OK(file_map_open(path, &map));
    assert_null(map.data);
    assert_int_equal(map.size_bytes, 0);
    file_map_dontneed(&map, 0, 10);
    file_map_close(&map);
    struct file_map none = {0};
    file_map_close(&none);
}

static void a_map_notices_that_its_file_shrank(void **state) {
    (void)state;
    char path[512];
    struct file_map map;
    test_tmp_path(path, sizeof path, "shrinks");
    TEST_OK(file_write(path, "0123456789", 10));
    TEST_OK(file_map_open(path, &map));
    TEST_OK(file_map_check(&map));
    assert_int_equal(truncate(path, 4), 0);
    TEST_STATUS(file_map_check(&map), ATS_IO);
    TEST_ERROR_HAS("shrinks");
    file_map_close(&map);
}

static void missing_files_and_directories_are_refused_by_name(void **state) {
    (void)state;
    char path[512], *data;
    size_t n;
    struct file_map map;
    test_tmp_path(path, sizeof path, "absent");
    TEST_STATUS(file_map_open(path, &map), ATS_IO);
    TEST_ERROR_HAS("absent: No such file");
    TEST_STATUS(file_read(path, 10, &data, &n), ATS_IO);
    TEST_ERROR_HAS("absent: No such file");
    assert_null(data);
    assert_false(file_exists(path));
    TEST_STATUS(file_map_open("/", &map), ATS_IO);
    TEST_ERROR_HAS("/ is a directory");
    TEST_STATUS(file_read("/", 10, &data, &n), ATS_IO);
    TEST_ERROR_HAS("/ is a directory");
    TEST_STATUS(file_map_open("/dev/null", &map), ATS_IO);
    TEST_ERROR_HAS("not a regular file");
    TEST_STATUS(file_write("/", "x", 1), ATS_IO);
    TEST_ERROR_HAS("directory");
    TEST_STATUS(file_write("/no-such-directory/x", "x", 1), ATS_IO);
    file_map_close(&map);
}

static void a_pipe_that_nobody_writes_is_refused_at_once(void **state) {
    (void)state;
    char path[512];
    struct file_map map;
    test_tmp_path(path, sizeof path, "fifo");
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(60); /* else this would wait forever */
    TEST_STATUS(file_map_open(path, &map), ATS_IO);
    alarm(0);
    TEST_ERROR_HAS("fifo is not a regular file");
    unlink(path);
}

static void reading_gives_the_bytes_and_a_final_nul(void **state) {
    (void)state;
    char path[512], *data;
    size_t n;
    test_tmp_path(path, sizeof path, "read");
    TEST_OK(file_write(path, "a\0b", 3));
    TEST_OK(file_read(path, 3, &data, &n));
    assert_int_equal(n, 3);
    assert_memory_equal(data, "a\0b", 4);
    free(data);
    TEST_STATUS(file_read(path, 2, &data, &n), ATS_BAD_FILE);
    TEST_ERROR_HAS("longer than 2 bytes");
    TEST_OK(file_read("/dev/null", 10, &data, &n));
    assert_int_equal(n, 0);
    assert_string_equal(data, "");
    free(data);
    TEST_STATUS(file_read("/dev/zero", 100000, &data, &n), ATS_BAD_FILE);
    TEST_OK(file_read("/proc/self/status", 1 << 20, &data, &n)); /* its size reads as 0 */
    assert_true(n > 100);
    free(data);
}

static void standard_input_is_read_to_its_end(void **state) {
    (void)state;
    char path[512], *data;
    size_t n;
    test_tmp_path(path, sizeof path, "stdin");
    char *text = calloc(1, 50000);
    memset(text, 'y', 49999);
    TEST_OK(file_write(path, text, 49999));
    assert_non_null(freopen(path, "r", stdin));
    TEST_OK(file_read_stdin(1 << 20, &data, &n));
    assert_int_equal(n, 49999);
    assert_string_equal(data, text);
    free(data);
    assert_non_null(freopen(path, "r", stdin));
    TEST_STATUS(file_read_stdin(100, &data, &n), ATS_BAD_FILE);
    free(text);
}

static void writing_replaces_the_file_and_leaves_no_other(void **state) {
    (void)state;
    char path[512], link_path[512], *data;
    size_t n;
    struct stat st;
    test_tmp_path(path, sizeof path, "target");
    test_tmp_path(link_path, sizeof link_path, "link");
    TEST_OK(file_write(path, "old text", 8));
    assert_int_equal(chmod(path, 0640), 0);
    assert_int_equal(symlink(path, link_path), 0);
    struct file_map before;
    TEST_OK(file_map_open(path, &before));
    TEST_OK(file_write(link_path, "new", 3));
    assert_memory_equal(before.data, "old text", 8); /* replaced, not written over */
    file_map_close(&before);
    TEST_OK(file_read(path, 100, &data, &n));
    assert_string_equal(data, "new");
    free(data);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0640);
    assert_int_equal(lstat(link_path, &st), 0);
    assert_true(S_ISLNK(st.st_mode));
    char temporary[600];
    snprintf(temporary, sizeof temporary, "%s.tmp%ld-0", path, (long)getpid());
    assert_false(file_exists(temporary));
    TEST_OK(file_write("/dev/null", "x", 1)); /* a device stays a device */
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

static void a_write_that_fails_keeps_the_old_file(void **state) {
    (void)state;
    TEST_STATUS(file_write("/dev/full", "x", 1), ATS_IO);
    TEST_ERROR_HAS("/dev/full: No space");
}

static void only_a_file_of_the_same_kind_may_be_written_over(void **state) {
    (void)state;
    char path[512];
    test_tmp_path(path, sizeof path, "output");
    TEST_OK(file_check_output(path, "{"));
    TEST_OK(file_write(path, "", 0));
    TEST_OK(file_check_output(path, "{"));
    TEST_OK(file_write(path, "{\"a\": 1}", 8));
    TEST_OK(file_check_output(path, "{"));
    TEST_STATUS(file_check_output(path, "\x93NUMPY"), ATS_BAD_ARGUMENT);
    TEST_OK(file_write(path, "GGUF", 4));
    TEST_STATUS(file_check_output(path, "{"), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("output is there already and is something else");
    TEST_OK(file_check_output("/dev/null", "{"));
    TEST_OK(file_check_output("/", "{")); /* refused by who writes */
}

static void directories_follow_xdg(void **state) {
    (void)state;
    char base[512], want[1024], *path;
    test_tmp_path(base, sizeof base, "xdg");
    setenv("XDG_CACHE_HOME", base, 1);
    TEST_OK(dir_path(DIR_CACHE, false, &path));
    snprintf(want, sizeof want, "%s/atsinfer", base);
    assert_string_equal(path, want);
    assert_false(file_exists(path));
    free(path);
    for (int i = 0; i < 2; i++) {
        TEST_OK(dir_path(DIR_CACHE, true, &path));
        struct stat st;
        assert_int_equal(stat(path, &st), 0);
        assert_true(S_ISDIR(st.st_mode));
        free(path);
    }
    rmdir(want);
    rmdir(base);
    setenv("HOME", "/some/home", 1);
    setenv("XDG_CONFIG_HOME", "relative", 1); /* ignored */
    TEST_OK(dir_path(DIR_CONFIG, false, &path));
    assert_string_equal(path, "/some/home/.config/atsinfer");
    free(path);
    unsetenv("XDG_DATA_HOME");
    TEST_OK(dir_path(DIR_DATA, false, &path));
    assert_string_equal(path, "/some/home/.local/share/atsinfer");
    free(path);
    unsetenv("HOME");
    unsetenv("XDG_STATE_HOME");
    TEST_STATUS(dir_path(DIR_STATE, false, &path), ATS_FAILED);
    TEST_ERROR_HAS("XDG_STATE_HOME");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_map_shows_the_whole_file),
        cmocka_unit_test(an_empty_file_maps_to_nothing),
        cmocka_unit_test(a_map_notices_that_its_file_shrank),
        cmocka_unit_test(missing_files_and_directories_are_refused_by_name),
        cmocka_unit_test(a_pipe_that_nobody_writes_is_refused_at_once),
        cmocka_unit_test(reading_gives_the_bytes_and_a_final_nul),
        cmocka_unit_test(standard_input_is_read_to_its_end),
        cmocka_unit_test(writing_replaces_the_file_and_leaves_no_other),
        cmocka_unit_test(a_write_that_fails_keeps_the_old_file),
        cmocka_unit_test(only_a_file_of_the_same_kind_may_be_written_over),
        cmocka_unit_test(directories_follow_xdg),
    };
    return cmocka_run_group_tests_name("base/file", tests, NULL, NULL);
}
