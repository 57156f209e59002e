/* Compiled pipelines are kept for the next start; a file that is not what was written is ignored,
 * and replaced. */
#include "backend/vulkan/vulkan.h"
#include "rig.h"

#include <glob.h>
#include <unistd.h>
#include "base/file.h"

static char home[600];

/* Opens a device, runs something, closes it. Returns the bytes that it found. */
static int64_t run_once(void) {
    struct rig r;
    struct rig_round round;
    struct backend_options o = rig_options(1, "ref");
    struct step s = {.kind = STEP_COPY, .n_in = 1, .end = 64};
    s.in[0] = rig_span(SPACE_EXCHANGE, 0, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1, 0);
    rig_open_on(&r, "vulkan", &o);
    int64_t found = vulkan_backend_cached(r.b);
    rig_round_plain(&round, 3, 1);
    rig_fill(&r, 0, 3, 64);
    rig_run_watched(&r, &s, &round.round, 1, 3);
    assert_memory_equal(rig_line(&r, 1, 2), rig_line(&r, 0, 2), 64 * sizeof(float));
    rig_close(&r);
    return found;
}

/* The one file there is; *data owned. */
static void read_cache(char path[700], char **data, size_t *n) {
    glob_t found;
    snprintf(path, 700, "%s/atsinfer/vulkan-*.bin", home);
    assert_int_equal(glob(path, 0, NULL, &found), 0);
    assert_int_equal(found.gl_pathc, 1);
    snprintf(path, 700, "%s", found.gl_pathv[0]);
    globfree(&found);
    TEST_OK(file_read(path, (size_t)64 << 20, data, n));
}

static void a_second_start_finds_the_pipelines(void **state) {
    (void)state;
    char path[700], *data, *again;
    size_t n, n_again;
    assert_int_equal(run_once(), 0);
    read_cache(path, &data, &n);
    assert_true(run_once() > 0);
    read_cache(path, &again, &n_again);
    assert_int_equal(n_again, n);
    assert_memory_equal(again, data, n);
    free(data), free(again);
}

static void other_files_are_ignored_and_replaced(void **state) {
    (void)state;
    char path[700], *data, *bad, *after;
    size_t n, n_after;
    run_once();
    read_cache(path, &data, &n);
    bad = malloc(n + 1);
    for (size_t i = 0; i < 5; i++) {
        size_t n_bad = (size_t[]){n, n, n - 1, n + 1, 0}[i];
        memcpy(bad, data, n);
        bad[n] = 0;
        if (i < 2) bad[i ? n - 1 : 9] ^= 1; /* the driver's data; another device */
        TEST_OK(file_write(path, bad, n_bad));
        assert_int_equal(run_once(), 0);
        read_cache(path, &after, &n_after);
        assert_int_equal(n_after, n);
        free(after);
        assert_true(run_once() > 0);
    }
    free(data), free(bad);
}

/* Operators with their bits: only those that are wrong are lacking. */
static void check_lacking(struct backend *b, int wrong) {
    static const struct {
        enum op_kind kind;
        int bit;
    } ops[] = {{OP_ATTENTION, 8}, {OP_EXPERTS, 16}, {OP_CONV, 32}, {OP_DELTA, 32}, {OP_MATMUL, 0}};
    for (size_t i = 0; i < COUNT_OF(ops); i++) {
        const struct graph_op op = {.kind = ops[i].kind};
        assert_int_equal(b->fn->lacks(b, NULL, &op) != NULL, (wrong & ops[i].bit) != 0);
    }
}

/* Bits 1: integer dot products, 2: large tiles, 4: tested, 8: attention, 16: experts, 32: recurrent
 * operators. A new start knows it from the file. */
static void what_a_device_computes_wrongly_is_off(void **state) {
    (void)state;
    struct backend_options o = rig_options(1, "ref");
    char path[700], *data;
    size_t n;
    static const int all[] = {0, 1, 2, 3, 8, 48, 4};
    for (size_t i = 0; i < COUNT_OF(all); i++) {
        const int wrong = all[i];
        char text[8];
        struct backend *b;
        read_cache(path, &data, &n);
        free(data);
        if (wrong != 4) assert_int_equal(unlink(path), 0);
        if (wrong == 4) TEST_OK(file_write(path, "", 0));
        snprintf(text, sizeof text, "%d", wrong);
        setenv("ATSINFER_VK_WRONG", text, 1);
        ats_status status = backend_open("vulkan", &o, &b);
        setenv("ATSINFER_VK_WRONG", "0", 1);
        if (wrong == 4) {
            assert_int_equal(status, ATS_UNSUPPORTED);
            TEST_ERROR_HAS("computes wrongly");
            break;
        }
        for (int start = 0; start < 2; start++) {
            if (start) status = backend_open("vulkan", &o, &b);
            assert_int_equal(status, ATS_OK);
            assert_int_equal(vulkan_backend_verdict(b), 4 | wrong);
            check_lacking(b, wrong);
            backend_close(b);
        }
    }
}

static void without_a_place_for_it_all_works(void **state) {
    (void)state;
    setenv("XDG_CACHE_HOME", "/proc/nowhere", 1);
    assert_int_equal(run_once(), 0);
    setenv("XDG_CACHE_HOME", home, 1);
    setenv("ATSINFER_VK_DISABLE", "cache", 1);
    assert_int_equal(run_once(), 0);
    setenv("ATSINFER_VK_DISABLE", "", 1);
    char path[700], *data;
    size_t n;
    read_cache(path, &data, &n);
    free(data);
    assert_int_equal(unlink(path), 0);
    snprintf(path, sizeof path, "%s/atsinfer", home);
    assert_int_equal(rmdir(path), 0);
    glob_t others; /* the validation layer keeps something there as well */
    snprintf(path, sizeof path, "%s/*", home);
    if (glob(path, 0, NULL, &others) == 0)
        for (size_t i = 0; i < others.gl_pathc; i++)
            unlink(others.gl_pathv[i]);
    globfree(&others);
    assert_int_equal(rmdir(home), 0);
}

int main(void) {
    char drivers[700]; /* compiled shaders of its own, if it is Mesa's, stay where they are */
    const char *xdg = getenv("XDG_CACHE_HOME"), *user = getenv("HOME");
    snprintf(drivers, sizeof drivers, "%s%s", xdg ? xdg : user ? user : "", xdg ? "" : "/.cache");
    setenv("MESA_SHADER_CACHE_DIR", drivers, 0);
    setenv("ATSINFER_VK_SHAPE", "1", 1); /* large tiles are tried too */
    if (!rig_has_device("vulkan")) return 77;
    unsetenv("ATSINFER_VK_NO_CACHE");
    test_tmp_path(home, sizeof home, "cache");
    setenv("XDG_CACHE_HOME", home, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_second_start_finds_the_pipelines),
        cmocka_unit_test(other_files_are_ignored_and_replaced),
        cmocka_unit_test(what_a_device_computes_wrongly_is_off),
        cmocka_unit_test(without_a_place_for_it_all_works),
    };
    return rig_verdict(cmocka_run_group_tests(tests, NULL, NULL));
}
