/*
 * What several test programs share: where the oracles lie, reading them, temporary files. Built on
 * cmocka: whatever is missing or malformed fails the running test with a message.
 */
#pragma once

#include "base/json.h"
#include "sanitized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

/* cmocka's fail() would hide ours (base/error.h); fail_msg() is what tests use. */
#undef fail
#undef fail_msg
#define fail_msg(...)                                                                              \
    do {                                                                                           \
        print_error("ERROR: " __VA_ARGS__);                                                        \
        print_error("\n");                                                                         \
        _fail(__FILE__, __LINE__);                                                                 \
    } while (0)

/* Path of an oracle, `relative` to the shared folder beside the source (ATS_SHARED=DIR: there).
 * Fails the test if it does not exist. False only with ATS_SHARED=none: then skip(). */
bool test_shared_path(char *out, size_t n, const char *relative);

/* The one real model (SmolLM2-135M-Instruct Q4_1; ATS_TEST_MODEL=FILE, else where
 * scripts/fetch-model puts it). Fails if it is not there; false only with ATS_TEST_MODEL=none. */
bool test_model_path(char *out, size_t n);

/* Path of a committed file, relative to the source root. */
void test_source_path(char *out, size_t n, const char *relative);

/* A fresh path for this process in the temporary folder; the file does not exist yet. Removed, if
 * it is a file, when the process ends. */
void test_tmp_path(char *out, size_t n, const char *name);

/* A float32 array of a .npy file, C order, row-major. */
struct test_npy {
    float *data; /* owned */
    size_t n;    /* product of shape */
    int n_dims;
    int64_t shape[8];
};
void test_npy_read(const char *path, struct test_npy *out);
void test_npy_free(struct test_npy *a);

/* Parsed file, owned by the caller (json_decref). */
json_t *test_json_read(const char *path);
json_t *test_fixture(const char *name); /* the same, of a file of tests/fixtures */
/* json_object_get() that fails the test when the key is missing. */
json_t *test_json_get(const json_t *object, const char *key);
/* An array of integers as int32; owned (free); *n its length. */
int32_t *test_json_ids(const json_t *array, size_t *n);

/* Fails unless expr is ATS_OK, printing the kept error text. */
#define TEST_OK(expr) test_status_((expr), ATS_OK, #expr, __FILE__, __LINE__)
/* Fails unless expr is `status`. */
#define TEST_STATUS(expr, status) test_status_((expr), (status), #expr, __FILE__, __LINE__)
/* Fails unless the kept error text contains `part`. */
#define TEST_ERROR_HAS(part) test_error_has_((part), __FILE__, __LINE__)

void test_status_(ats_status got, ats_status want, const char *expr, const char *file, int line);
void test_error_has_(const char *part, const char *file, int line);

/* Largest |a[i] - b[i]|; infinity if any is not a number. */
double test_max_abs_diff(const float *a, const float *b, size_t n);
