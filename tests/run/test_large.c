/* Models larger than what is read of them: their files are holes. Of 70 GB the headers; of 400 MB
 * of experts those that a token uses. */
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

/* Writes the shape, which is closed, as a split file of holes, `parts`; returns the bytes of its
 * weights. */
static uint64_t write_holes(struct gguf *shape) {
    char stem[480];
    uint64_t sum = 0;
    int n_vocab = 0;
    struct gguf_writer *w = gguf_writer_open();
    test_tmp_path(stem, sizeof stem, "large");
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
    assert_true(n_parts <= MAX_PARTS);
    for (int i = 0; i < n_parts; i++)
        assert_true((size_t)snprintf(parts[i], sizeof parts[i], "%s-%05d-of-%05d.gguf", stem, i + 1,
                                     n_parts) < sizeof parts[i]);
    gguf_close(shape);
    return sum;
}

static int remove_parts(void **state) {
    (void)state;
    for (int i = 0; i < n_parts; i++)
        remove(parts[i]);
    return 0;
}

/* Pages of files that are mapped and in memory, KiB, wherever the files lie. */
static long mapped_kib(void) {
    char line[256];
    long kib = -1, shared = 0;
    FILE *f = fopen("/proc/self/status", "r");
    assert_non_null(f);
    while (fgets(line, sizeof line, f)) {
        (void)sscanf(line, "RssFile: %ld", &kib);
        (void)sscanf(line, "RssShmem: %ld", &shared);
    }
    fclose(f);
    assert_true(kib >= 0);
    return kib + shared;
}

static double cpu_seconds(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static void its_plan_takes_a_second_and_reads_no_weights(void **state) {
    (void)state;
    char path[512];
    struct gguf *shape;
    test_source_path(path, sizeof path, "shapes/qwen3.5-122b-a10b.json");
    TEST_OK(shape_open(path, &shape));
    uint64_t bytes = write_holes(shape);
    assert_true(bytes > UINT64_C(60) << 30);
    assert_true(n_parts > 1);
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

/* 128 experts of three matrices of 272 KiB in each of 4 layers. */
enum { EXPERT_KIB = 272, N_USED = 4 * 2 * 3, N_EXPERT_MATRICES = 4 * 128 * 3 };
static const char experts[] =
    "{\"atsinfer\": \"shape\", \"version\": 1, \"metadata\": {"
    "\"general.architecture\": \"qwen3moe\", \"qwen3moe.block_count\": 4,"
    "\"qwen3moe.context_length\": 256, \"qwen3moe.embedding_length\": 512,"
    "\"qwen3moe.feed_forward_length\": 512, \"qwen3moe.attention.head_count\": 4,"
    "\"qwen3moe.attention.key_length\": 64, \"qwen3moe.attention.value_length\": 64,"
    "\"qwen3moe.attention.layer_norm_rms_epsilon\": 1e-6, \"qwen3moe.expert_count\": 128,"
    "\"qwen3moe.expert_used_count\": 2, \"qwen3moe.expert_feed_forward_length\": 512},"
    "\"tensors\": [[\"token_embd.weight\", \"Q8_0\", [512, 320]],"
    "[\"output_norm.weight\", \"F32\", [512]], {\"layers\": [0, 3], \"tensors\": ["
    "[\"attn_norm.weight\", \"F32\", [512]], [\"ffn_norm.weight\", \"F32\", [512]],"
    "[\"attn_q_norm.weight\", \"F32\", [64]], [\"attn_k_norm.weight\", \"F32\", [64]],"
    "[\"attn_q.weight\", \"Q8_0\", [512, 256]], [\"attn_k.weight\", \"Q8_0\", [512, 256]],"
    "[\"attn_v.weight\", \"Q8_0\", [512, 256]], [\"attn_output.weight\", \"Q8_0\", [256, 512]],"
    "[\"ffn_gate_inp.weight\", \"F32\", [512, 128]],"
    "[\"ffn_gate_exps.weight\", \"Q8_0\", [512, 512, 128]],"
    "[\"ffn_up_exps.weight\", \"Q8_0\", [512, 512, 128]],"
    "[\"ffn_down_exps.weight\", \"Q8_0\", [512, 512, 128]]]}]}";

/* Experts are read where the file's map has them: of a layer the two that the token chose. (Around
 * each the system maps some pages more.) */
static void a_token_reads_the_experts_that_it_uses(void **state) {
    (void)state;
    struct gguf *shape;
    TEST_OK(shape_parse(experts, strlen(experts), "experts", &shape));
    uint64_t bytes = write_holes(shape);
    assert_true(bytes / 1024 > (uint64_t)EXPERT_KIB * N_EXPERT_MATRICES);
    ats_options o = agree_options(parts[0]);
    o.no_repack = true;
    ats_engine *e = agree_open(&o);
    const int32_t id = 7;
    const long before = mapped_kib();
    free(agree_logits(e, &id, 1, 0));
    const long kib = mapped_kib() - before;
    ats_engine_close(e);
    print_message("%ld of %ld MiB of a file were read for a token\n", kib >> 10,
                  (long)(bytes >> 20));
    assert_true(kib >= (long)EXPERT_KIB * N_USED);
    assert_true(kib < 4L * EXPERT_KIB * N_USED);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_teardown(its_plan_takes_a_second_and_reads_no_weights, remove_parts),
        cmocka_unit_test_teardown(a_token_reads_the_experts_that_it_uses, remove_parts),
    };
    return cmocka_run_group_tests_name("large", tests, NULL, NULL);
}
