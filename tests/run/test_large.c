/* A model of 70 GB on this machine: its file is a hole, so only what reads headers can work on it.
 */
#include "agree.h"

#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include "made.h"
#include "model/shape.h"

#define MAX_SECONDS (TEST_SANITIZED ? 20.0 : 1.0)
enum { MAX_PARTS = 64 };

static char parts[MAX_PARTS][512];
static int n_parts;

/* Writes the shape as a split file of holes; returns the bytes of its weights. */
static uint64_t write_holes(const char *shape_path, char *stem, size_t n_stem) {
    struct gguf *shape;
    uint64_t sum = 0;
    int n_vocab = 0;
    TEST_OK(shape_open(shape_path, &shape));
    struct gguf_writer *w = gguf_writer_open();
    test_tmp_path(stem, n_stem, "large");
    gguf_writer_split(w, 64);
    for (int i = 0; i < shape->n_kvs; i++)
        gguf_put_kv(w, &shape->kvs[i]);
    for (int i = 0; i < shape->n_tensors; i++) {
        const struct gguf_tensor *t = &shape->tensors[i];
        gguf_put_tensor(w, t->name, t->dtype, t->n_dims, t->dims);
        if (strcmp(t->name, "token_embd.weight") == 0) n_vocab = (int)t->dims[1];
    }
    assert_true(n_vocab > 0);
    made_vocabulary(w, n_vocab);
    TEST_OK(gguf_writer_begin(w, stem));
    for (int i = 0; i < shape->n_tensors; i++, sum += (uint64_t)shape->tensors[i - 1].n_bytes)
        TEST_OK(gguf_writer_data(w, NULL, (size_t)shape->tensors[i].n_bytes));
    TEST_OK(gguf_writer_end(w));
    gguf_writer_close(w);
    n_parts = (shape->n_tensors + 63) / 64;
    gguf_close(shape);
    return sum;
}

static int remove_parts(void **state) {
    (void)state;
    for (int i = 0; i < n_parts; i++)
        remove(parts[i]);
    return 0;
}

/* Pages of files that are mapped and in memory, KiB. */
static long mapped_kib(void) {
    char line[256];
    long kib = -1;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "RssFile: %ld", &kib) == 1) break;
    fclose(f);
    assert_true(kib >= 0);
    return kib;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void its_plan_takes_a_second_and_reads_no_weights(void **state) {
    (void)state;
    char shape[512], stem[512];
    test_source_path(shape, sizeof shape, "shapes/qwen3.5-122b-a10b.json");
    uint64_t bytes = write_holes(shape, stem, sizeof stem);
    assert_true(bytes > UINT64_C(60) << 30);
    assert_true(n_parts > 1 && n_parts <= MAX_PARTS);
    for (int i = 0; i < n_parts; i++)
        assert_true((size_t)snprintf(parts[i], sizeof parts[i], "%s-%05d-of-%05d.gguf", stem, i + 1,
                                     n_parts) < sizeof parts[i]);
    ats_options o = agree_options(parts[0]);
    o.math = ATS_MATH_DEFAULT;
    o.n_ctx = 4096;
    o.plan_only = true;
    long before = mapped_kib();
    double start = cpu_seconds();
    ats_engine *e = agree_open(&o);
    char *ledger = ats_engine_describe(e);
    double seconds = cpu_seconds() - start;
    long grown = mapped_kib() - before;
    print_message("%.1f GiB in %d parts: %.3f s, %ld KiB of files in memory\n",
                  (double)bytes / (1 << 30), n_parts, seconds, grown);
    assert_true(seconds < MAX_SECONDS);
    assert_true(grown < 64 * 1024); /* headers and the vocabulary */
    ats_info info;
    ats_engine_info(e, &info);
    assert_int_equal(info.weight_bytes, bytes);
    assert_non_null(strstr(ledger, "mapped_bytes"));
    ats_free(ledger);
    ats_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(its_plan_takes_a_second_and_reads_no_weights, remove_parts),
    };
    return cmocka_run_group_tests_name("large", tests, NULL, NULL);
}
