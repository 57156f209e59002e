#include "app/npy.h"
#include "base/file.h"
#include "support.h"

#include <dirent.h>
#include <sys/stat.h>
#include <unistd.h>

static void write_rows(const char *path, uint64_t n_rows, uint64_t n_cols) {
    struct npy_writer w;
    TEST_OK(npy_open(path, n_rows, n_cols, &w));
    for (uint64_t i = 0; i < n_rows * n_cols; i++) {
        float value = (float)i - 2.5f;
        TEST_OK(npy_write(&w, &value, 1));
    }
    TEST_OK(npy_finish(&w));
}

static void what_is_written_reads_back(void **state) {
    (void)state;
    static const uint64_t shapes[][2] = {{1, 1}, {3, 5}, {100, 7}, {0, 9}};
    for (size_t s = 0; s < COUNT_OF(shapes); s++) {
        char path[600];
        struct test_npy a;
        test_tmp_path(path, sizeof path, "a.npy");
        write_rows(path, shapes[s][0], shapes[s][1]);
        test_npy_read(path, &a);
        assert_int_equal(a.n_dims, 2);
        assert_int_equal(a.shape[0], shapes[s][0]);
        assert_int_equal(a.shape[1], shapes[s][1]);
        for (size_t i = 0; i < a.n; i++)
            assert_true(a.data[i] == (float)i - 2.5f);
        test_npy_free(&a);
    }
}

static void the_header_is_of_version_one_and_aligned(void **state) {
    (void)state;
    char path[600], *data;
    size_t n;
    test_tmp_path(path, sizeof path, "a.npy");
    write_rows(path, 2, 3);
    TEST_OK(file_read(path, 1 << 20, &data, &n));
    assert_memory_equal(data, "\x93NUMPY\x01\x00", 8);
    size_t n_header = (unsigned char)data[8] + 256u * (unsigned char)data[9];
    assert_int_equal((10 + n_header) % 64, 0);
    assert_int_equal(data[10 + n_header - 1], '\n');
    assert_int_equal(n, 10 + n_header + 2 * 3 * 4);
    free(data);
}

static void another_kind_of_file_is_not_replaced(void **state) {
    (void)state;
    char path[600];
    struct npy_writer w;
    test_tmp_path(path, sizeof path, "model.gguf");
    TEST_OK(file_write(path, "GGUF", 4));
    TEST_STATUS(npy_open(path, 1, 1, &w), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("model.gguf is there already and is something else");
    write_rows("/dev/null", 1, 1);
}

static int n_parts(const char *path) {
    char dir[600];
    snprintf(dir, sizeof dir, "%s", path);
    *strrchr(dir, '/') = 0;
    DIR *d = opendir(dir);
    assert_non_null(d);
    int n = 0;
    for (struct dirent *e; (e = readdir(d));)
        n += strstr(e->d_name, ".part") != NULL;
    closedir(d);
    return n;
}

static void an_abandoned_file_leaves_nothing_and_the_old_one_in_place(void **state) {
    (void)state;
    char path[600];
    struct npy_writer w;
    struct test_npy a;
    test_tmp_path(path, sizeof path, "a.npy");
    write_rows(path, 1, 2);
    TEST_OK(npy_open(path, 5, 5, &w));
    assert_int_equal(n_parts(path), 1);
    npy_abandon(&w);
    npy_abandon(&w);
    assert_int_equal(n_parts(path), 0);
    test_npy_read(path, &a);
    assert_int_equal(a.n, 2);
    test_npy_free(&a);
}

static void a_device_is_written_to_and_not_replaced(void **state) {
    (void)state;
    struct stat st;
    write_rows("/dev/null", 2, 2);
    assert_int_equal(stat("/dev/null", &st), 0);
    assert_true(S_ISCHR(st.st_mode));
}

static void a_full_disk_is_an_error(void **state) {
    (void)state;
    if (!file_exists("/dev/full")) {
        print_message("there is no /dev/full\n");
        skip();
    }
    static float rows[100000];
    struct npy_writer w;
    TEST_OK(npy_open("/dev/full", 1000, 100, &w));
    ats_status status = npy_write(&w, rows, COUNT_OF(rows));
    if (status == ATS_OK) status = npy_finish(&w);
    TEST_STATUS(status, ATS_IO);
    TEST_ERROR_HAS("/dev/full");
    npy_abandon(&w);
}

static void a_folder_that_is_not_there_is_an_error(void **state) {
    (void)state;
    struct npy_writer w;
    TEST_STATUS(npy_open("/nonexistent/a.npy", 1, 1, &w), ATS_IO);
    TEST_STATUS(npy_open("/", 1, 1, &w), ATS_IO);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_reads_back),
        cmocka_unit_test(another_kind_of_file_is_not_replaced),
        cmocka_unit_test(the_header_is_of_version_one_and_aligned),
        cmocka_unit_test(an_abandoned_file_leaves_nothing_and_the_old_one_in_place),
        cmocka_unit_test(a_device_is_written_to_and_not_replaced),
        cmocka_unit_test(a_full_disk_is_an_error),
        cmocka_unit_test(a_folder_that_is_not_there_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
