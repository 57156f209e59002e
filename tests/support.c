#include "support.h"

#include "base/file.h"

#include <math.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

bool test_shared_path(char *out, size_t n, const char *relative) {
    const char *dir = getenv("ATS_SHARED");
    if (dir && strcmp(dir, "none") == 0) return false;
    if (!dir || !*dir) dir = TEST_SOURCE_ROOT "/../shared";
    if ((size_t)snprintf(out, n, "%s/%s", dir, relative) >= n) fail_msg("path too long");
    if (!file_exists(out)) fail_msg("oracle %s is missing (ATS_SHARED=none skips)", out);
    return true;
}

bool test_model_path(char *out, size_t n) {
    const char *path = getenv("ATS_TEST_MODEL");
    if (path && strcmp(path, "none") == 0) return false;
    if (path && *path) {
        snprintf(out, n, "%s", path);
    } else {
        char *dir;
        TEST_OK(dir_path(DIR_DATA, false, &dir));
        snprintf(out, n, "%s/models/SmolLM2-135M-Instruct.Q4_1.gguf", dir);
        free(dir);
    }
    if (!file_exists(out))
        fail_msg("%s is missing: scripts/fetch-model fetches it (ATS_TEST_MODEL=none skips)", out);
    return true;
}

void test_source_path(char *out, size_t n, const char *relative) {
    if ((size_t)snprintf(out, n, "%s/%s", TEST_SOURCE_ROOT, relative) >= n)
        fail_msg("path too long");
}

static char tmp_dir[512];
static char *tmp_paths[256];
static int n_tmp_paths;

static void remove_tmp(void) {
    for (int i = 0; i < n_tmp_paths; i++) {
        remove(tmp_paths[i]);
        free(tmp_paths[i]);
    }
    n_tmp_paths = 0;
    rmdir(tmp_dir);
}

void test_tmp_path(char *out, size_t n, const char *name) {
    if (!tmp_dir[0]) {
        const char *base = getenv("TMPDIR");
        snprintf(tmp_dir, sizeof tmp_dir, "%s/atsinfer-test-XXXXXX", base && *base ? base : "/tmp");
        if (!mkdtemp(tmp_dir)) fail_msg("cannot create %s", tmp_dir);
        atexit(remove_tmp);
    }
    if ((size_t)snprintf(out, n, "%s/%s", tmp_dir, name) >= n) fail_msg("path too long");
    for (int i = 0; i < n_tmp_paths; i++)
        if (strcmp(tmp_paths[i], out) == 0) {
            remove(out);
            return;
        }
    assert_true((size_t)n_tmp_paths < COUNT_OF(tmp_paths));
    tmp_paths[n_tmp_paths++] = strdup(out);
}

/* The part of a header like {'descr': '<f4', 'fortran_order': False, 'shape': (45, 640), } that
 * follows the key and its colon. */
static const char *npy_field(const char *header, const char *key, const char *path) {
    const char *at = strstr(header, key);
    if (!at) fail_msg("%s: no %s in the header", path, key);
    return at + strlen(key) + strspn(at + strlen(key), "': ");
}

void test_npy_read(const char *path, struct test_npy *out) {
    char *bytes;
    size_t n_bytes;
    memset(out, 0, sizeof *out);
    TEST_OK(file_read(path, (size_t)1 << 30, &bytes, &n_bytes));
    if (n_bytes < 12 || memcmp(bytes, "\x93NUMPY", 6) != 0) fail_msg("%s: not .npy", path);
    const uint8_t *u = (const uint8_t *)bytes;
    size_t at = u[6] == 1 ? 10 : 12;
    size_t n_header = u[8] | (size_t)u[9] << 8;
    if (u[6] > 1) n_header |= (size_t)u[10] << 16 | (size_t)u[11] << 24;
    if (n_header > n_bytes - at) fail_msg("%s: cut in the header", path);
    char *header = strndup(bytes + at, n_header);
    if (strncmp(npy_field(header, "descr'", path), "<f4", 3) != 0) fail_msg("%s: not <f4", path);
    if (strncmp(npy_field(header, "fortran_order'", path), "False", 5) != 0)
        fail_msg("%s: not in C order", path);
    const char *shape = npy_field(header, "shape'", path) + 1; /* after the parenthesis */
    out->n = 1;
    while (*shape >= '0' && *shape <= '9') {
        char *end;
        assert_true(out->n_dims < 8);
        int64_t size = strtoll(shape, &end, 10);
        out->shape[out->n_dims++] = size;
        out->n *= (size_t)size;
        shape = end + strspn(end, ", ");
    }
    free(header);
    at += n_header;
    if (out->n > (n_bytes - at) / 4) fail_msg("%s: cut in the data", path);
    out->data = malloc(out->n * 4 + 1);
    memcpy(out->data, bytes + at, out->n * 4);
    free(bytes);
}

void test_npy_free(struct test_npy *a) {
    free(a->data);
    memset(a, 0, sizeof *a);
}

json_t *test_json_read(const char *path) {
    json_t *value;
    TEST_OK(json_read_file(path, (size_t)1 << 28, &value));
    return value;
}

json_t *test_fixture(const char *name) {
    char relative[256], path[512];
    snprintf(relative, sizeof relative, "tests/fixtures/%s", name);
    test_source_path(path, sizeof path, relative);
    return test_json_read(path);
}

json_t *test_json_get(const json_t *object, const char *key) {
    json_t *value = json_object_get(object, key);
    if (!value) fail_msg("key %s is missing", key);
    return value;
}

int32_t *test_json_ids(const json_t *array, size_t *n) {
    assert_true(json_is_array(array));
    *n = json_array_size(array);
    int32_t *ids = malloc(*n * sizeof *ids + 1);
    for (size_t i = 0; i < *n; i++) {
        assert_true(json_is_integer(json_array_get(array, i)));
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    }
    return ids;
}

void test_status_(ats_status got, ats_status want, const char *expr, const char *file, int line) {
    if (got == want) return;
    print_error("%s: status \"%s\" (%s), not \"%s\"\n", expr, ats_status_text(got),
                got == ATS_OK ? "" : error_text(), ats_status_text(want));
    _fail(file, line);
}

void test_error_has_(const char *part, const char *file, int line) {
    if (strstr(error_text(), part)) return;
    print_error("error text \"%s\" does not contain \"%s\"\n", error_text(), part);
    _fail(file, line);
}

double test_max_abs_diff(const float *a, const float *b, size_t n) {
    double max = 0;
    for (size_t i = 0; i < n; i++) {
        double diff = fabs((double)a[i] - (double)b[i]);
        if (!(diff <= max)) max = isnan(diff) ? (double)INFINITY : diff;
    }
    return max;
}
