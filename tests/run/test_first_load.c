/* The first load of a model on a machine measures it, once, and says so; a kept profile that is
 * broken is measured again; what is only told is not measured. On a CPU and a Vulkan device. */
#include "agree.h"

#include <glob.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "base/file.h"

static char cache[512], messages[8192];
static int n_measured;

static void note(void *user, int level, const char *text) {
    (void)user, (void)level;
    size_t n = strlen(messages);
    snprintf(messages + n, sizeof messages - n, "%s\n", text);
}

/* Ends what is measured at its first step where `user` says so. */
static bool on_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    const bool *ends = user;
    (void)done, (void)total;
    if (strcmp(what, "measuring") != 0) return true;
    n_measured++;
    return !*ends;
}

static ats_options options(bool *ends) {
    static char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    ats_options o = agree_options(path);
    o.profile = NULL;
    o.devices = "cpu,vulkan";
    o.n_ctx = 64;
    o.n_batch = 16;
    o.progress = on_progress;
    o.progress_user = ends;
    messages[0] = 0;
    n_measured = 0;
    return o;
}

static void open_and_close(const ats_options *o, bool is_planned) {
    ats_engine *e;
    TEST_OK(ats_engine_open(o, &e));
    char *explained = ats_engine_explain(e);
    assert_int_equal(explained != NULL, is_planned);
    ats_free(explained);
    ats_engine_close(e);
}

static void kept_file(char *path, size_t n) {
    char pattern[600];
    glob_t found;
    snprintf(pattern, sizeof pattern, "%s/atsinfer/profile-*.json", cache);
    assert_int_equal(glob(pattern, 0, NULL, &found), 0);
    snprintf(path, n, "%s", found.gl_pathv[0]);
    globfree(&found);
}

static void the_first_load_measures_and_the_second_does_not(void **state) {
    (void)state;
    bool ends = false;
    char path[700];
    ats_options o = options(&ends);
    o.plan_only = true; /* told at once */
    open_and_close(&o, false);
    assert_int_equal(n_measured, 0);
    o = options(&ends);
    o.gpu_layers = "1"; /* by hand */
    open_and_close(&o, false);
    assert_int_equal(n_measured, 0);
    o = options(&ends);
    open_and_close(&o, true);
    assert_true(n_measured > 0);
    assert_non_null(strstr(messages, "measuring this machine for this model, once"));
    o = options(&ends);
    open_and_close(&o, true);
    assert_int_equal(n_measured, 0);
    assert_null(strstr(messages, "measuring"));
    o = options(&ends);
    o.gpu_layers = "1"; /* what it costs is known now */
    open_and_close(&o, true);
    assert_non_null(strstr(messages, "what the rules say costs"));
    kept_file(path, sizeof path);
    TEST_OK(file_write(path, "{\"atsinfer\": \"profile\"", 22));
    ats_engine *e;
    ends = true;
    o = options(&ends);
    TEST_STATUS(ats_engine_open(&o, &e), ATS_CANCELLED);
    assert_int_equal(n_measured, 1);
    assert_non_null(strstr(messages, "a kept profile is not used"));
    o = options(&ends);
    o.profile = "off";
    open_and_close(&o, false);
    assert_int_equal(n_measured, 0);
    unlink(path);
}

/* Measuring fails: layers, as they fit. */
static void what_cannot_be_measured_is_no_failed_load(void **state) {
    (void)state;
    bool ends = false;
    ats_options o = options(&ends);
    setenv("ATSINFER_VK_LOSE_SUBMISSION", "1", 1);
    ats_engine *e;
    TEST_OK(ats_engine_open(&o, &e));
    unsetenv("ATSINFER_VK_LOSE_SUBMISSION");
    assert_non_null(strstr(messages, "layers are placed as they fit"));
    ats_engine_close(e);
}

static int setup(void **state) {
    (void)state;
    test_tmp_path(cache, sizeof cache, "cache");
    setenv("XDG_CACHE_HOME", cache, 1);
    ats_log_set(note, NULL, 2);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    char pattern[600];
    glob_t found;
    ats_log_set(NULL, NULL, 0);
    snprintf(pattern, sizeof pattern, "%s/atsinfer/*", cache);
    if (glob(pattern, 0, NULL, &found) == 0) {
        for (size_t i = 0; i < found.gl_pathc; i++)
            unlink(found.gl_pathv[i]);
        globfree(&found);
    }
    snprintf(pattern, sizeof pattern, "%s/atsinfer", cache);
    rmdir(pattern);
    rmdir(cache);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_load_measures_and_the_second_does_not),
        cmocka_unit_test(what_cannot_be_measured_is_no_failed_load),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
