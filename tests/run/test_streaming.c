/*
 * Everything that can be streamed is streamed to one device: not a bit of the logits changes, for
 * any type, packed or as the file has it; and, on simulated devices in virtual time, what is copied
 * hides behind what is computed, or the other way round.
 */
#include "agree.h"

#include "backend/cpu/cpu.h"
#include "backend/sim/sim.h"
#ifdef STREAM_ON_VULKAN
#include "backend/vulkan/vulkan.h"
#endif
#include "model/model.h"
#include "run/executor.h"

enum { N_TOKENS = 8, N_CTX = 64, N_ROUNDS = 4 };

struct bench {
    struct arena arena;
    struct gguf *file;
    struct model *model;
    struct plan *plan;
    struct backend *device;
    struct executor *executor;
    int n_done; /* tokens */
};

/* To be closed whatever comes out. */
static ats_status bench_try(struct bench *b, const char *path, int n_slots,
                            struct backend *device) {
    memset(b, 0, sizeof *b);
    const struct model_options model_options = {.n_ctx = N_CTX, .math = MATH_Q8, .row_group = 1};
    TEST_OK(gguf_open(path, &b->file));
    TEST_OK(model_open(b->file, &model_options, &b->model));
    const struct graph *g = b->model->graph;
    b->plan = plan_whole(&b->arena, g, 1, 0);
    for (int i = 0; i < b->plan->n_parts && n_slots; i++)
        b->plan->parts[i].streamed = op_can_stream(&g->ops[b->plan->parts[i].op]);
    b->plan->n_slots[0] = n_slots;
    TEST_OK(plan_check(g, b->plan, 1, 1));
    b->device = device;
    const struct executor_options o = {.n_tokens = N_TOKENS,
                                       .n_rows = N_TOKENS,
                                       .n_ctx = N_CTX,
                                       .n_pages = {1, 1},
                                       .type_k = KV_F32,
                                       .type_v = KV_F32,
                                       .host_bytes = (int64_t)1 << 30};
    TRY(executor_open(b->model, b->plan, &b->device, &o, &b->executor));
    return executor_load(b->executor, NULL, NULL);
}

static void bench_open(struct bench *b, const char *path, int n_slots, struct backend *device) {
    TEST_OK(bench_try(b, path, n_slots, device));
}

static void bench_close(struct bench *b) {
    executor_close(b->executor);
    backend_close(b->device);
    model_close(b->model);
    gguf_close(b->file);
    arena_free(&b->arena);
}

/* A round of n tokens after those before, all rows. Borrowed until the next. */
static const float *run_round(struct bench *b, int n) {
    static const int32_t rows[N_TOKENS] = {0, 1, 2, 3, 4, 5, 6, 7}, page = 0;
    int32_t tokens[N_TOKENS], positions[N_TOKENS];
    for (int i = 0; i < n; i++) {
        positions[i] = b->n_done + i;
        tokens[i] = (positions[i] * 89 + 5) % b->model->graph->n_vocab;
    }
    const struct round_run run = {.n_tokens = n, .position = b->n_done, .pages = {&page, &page}};
    const struct round round = {.n_tokens = n,
                                .tokens = tokens,
                                .positions = positions,
                                .runs = &run,
                                .n_runs = 1,
                                .rows = rows,
                                .n_rows = n};
    const float *logits;
    TEST_OK(executor_run(b->executor, &round, &logits));
    b->n_done += n;
    return logits;
}

/* ---- the same bits ---- */

static const char *const models[] = {
    "quants/Q4_0.gguf",         "quants/Q4_1.gguf",       "quants/Q5_0.gguf",
    "quants/Q5_1.gguf",         "quants/Q8_0.gguf",       "quants/Q2_K.gguf",
    "quants/Q3_K.gguf",         "quants/Q4_K.gguf",       "quants/Q5_K.gguf",
    "quants/Q6_K.gguf",         "quants/IQ4_NL.gguf",     "quants/IQ4_XS.gguf",
    "quants/MXFP4.gguf",        "llama/llama-f16.gguf",   "qwen2/qwen2-bf16.gguf",
    "phi3/phi3-f32.gguf",       "quants/moe-Q4_K_M.gguf", "gptoss/gptoss-mxfp4.gguf",
    "mixtral/mixtral-f32.gguf",
};

#ifdef STREAM_ON_VULKAN
#define DEVICE "vulkan"
#else
#define DEVICE "sim:chaos:3"
#endif

static struct backend *open_device(bool no_repack) {
    struct backend *b;
    const struct backend_options o = {
        .n_threads = 1, .n_threads_batch = 1, .cpu_isa_mask = ~0U, .no_repack = no_repack};
    TEST_OK(backend_open(DEVICE, &o, &b));
    return b;
}

/* Rounds of many tokens and of one, of a file and of another that has the same weights. */
static void check_bits_of(const char *path, const char *other, int n_slots, bool no_repack) {
    static const int n_tokens[] = {5, 1, 1, N_TOKENS, 1};
    struct bench resident, streamed;
    bench_open(&resident, path, 0, open_device(no_repack));
    bench_open(&streamed, other, n_slots, open_device(no_repack));
    const struct program *p = executor_program(streamed.executor);
    assert_true(p->n_transfers >= 2);
    assert_int_equal(executor_program(resident.executor)->n_transfers, 0);
    struct executor_ledger l;
    executor_ledger(streamed.executor, 0, &l);
    assert_true(l.slot_bytes > 0 &&
                l.streamed_bytes + l.pageable_bytes > l.slot_bytes / p->n_slots[0]);
    assert_int_equal(streamed.device->pins ? l.pageable_bytes : l.streamed_bytes, 0);
    assert_true(!streamed.device->stages || l.pinned_bytes > l.slot_bytes);
    assert_int_equal(streamed.device->unpinned_bytes, 0);
    for (size_t i = 0; i < COUNT_OF(n_tokens); i++) {
        const float *want = run_round(&resident, n_tokens[i]);
        const float *got = run_round(&streamed, n_tokens[i]);
        size_t n = (size_t)n_tokens[i] * (size_t)streamed.model->graph->n_vocab;
        if (memcmp(got, want, n * sizeof *got) != 0)
            fail_msg("%s, %d slots%s: round %zu differs", path, n_slots, no_repack ? ", raw" : "",
                     i);
    }
    bench_close(&streamed);
    bench_close(&resident);
}

static void check_bits(const char *path, int n_slots, bool no_repack) {
    check_bits_of(path, path, n_slots, no_repack);
}

/* As old files have them: they come to rest and stream like those that stand in one tensor. */
static void experts_in_tensors_of_their_own_change_no_bit(void **state) {
    (void)state;
    static const char *const files[] = {"models/quants/moe-Q4_K_M.gguf",
                                        "models/mixtral/mixtral-f32.gguf"};
    for (size_t i = 0; i < COUNT_OF(files); i++) {
        char path[512], split[512];
        if (!test_shared_path(path, sizeof path, files[i])) skip();
        test_tmp_path(split, sizeof split, "split.gguf");
        agree_copy(path, split, &(struct agree_change){.tensor = agree_split_experts});
        check_bits_of(path, split, 2, false);
        check_bits_of(split, path, 2, false);
#ifndef STREAM_ON_VULKAN
        check_bits_of(path, split, 2, true);
#endif
        remove(split);
    }
}

#ifdef STREAM_ON_VULKAN
/* Nothing is streamed here: weights of more than an allocation lie in parts. */
static void parts_of_weights_change_no_bit(void **state) {
    (void)state;
    static const int n_tokens[] = {5, 1, N_TOKENS};
    static const struct {
        const char *model, *most, *off;
    } cases[] = {{"quants/Q4_0.gguf", "20000", ""}, /* groups of rows */
                 {"quants/Q6_K.gguf", "20000", "hostvram"},
                 {"phi3/phi3-f32.gguf", "20000", "hostvram"},
                 {"mixtral/mixtral-f32.gguf", "50000", ""}, /* experts */
                 {"quants/moe-Q4_K_M.gguf", "50000", "hostvram"},
                 {"gptoss/gptoss-mxfp4.gguf", "20000", ""}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        char name[128], path[512];
        struct bench whole, parts;
        snprintf(name, sizeof name, "models/%s", cases[i].model);
        if (!test_shared_path(path, sizeof path, name)) skip();
        bench_open(&whole, path, 0, open_device(false));
        setenv("ATSINFER_VK_DISABLE", cases[i].off, 1);
        setenv("ATSINFER_VK_MAX_PART", cases[i].most, 1);
        bench_open(&parts, path, 0, open_device(false));
        setenv("ATSINFER_VK_MAX_PART", "0", 1);
        setenv("ATSINFER_VK_DISABLE", "", 1);
        assert_int_equal(vulkan_backend_parts(whole.device), 0);
        print_message("%s: %d parts more\n", name, vulkan_backend_parts(parts.device));
        assert_true(vulkan_backend_parts(parts.device) >= 4);
        for (size_t j = 0; j < COUNT_OF(n_tokens); j++) {
            const float *want = run_round(&whole, n_tokens[j]);
            const float *got = run_round(&parts, n_tokens[j]);
            size_t n = (size_t)n_tokens[j] * (size_t)whole.model->graph->n_vocab;
            if (memcmp(got, want, n * sizeof *got) != 0) fail_msg("%s: round %zu differs", path, j);
        }
        bench_close(&parts);
        bench_close(&whole);
    }
}
#endif

static void streaming_changes_no_bit(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(models); i++) {
        char name[128], path[512];
        snprintf(name, sizeof name, "models/%s", models[i]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        check_bits(path, 1 + (int)i % 3, false);
#ifndef STREAM_ON_VULKAN
        check_bits(path, 3 - (int)i % 3, true);
#endif
    }
}

/* ---- hiding one behind the other ---- */

#ifndef STREAM_ON_VULKAN
/* Rates of a device whose kernels take no time but for what they read. */
static struct backend *open_timed(int bytes_per_ns, int copy_bytes_per_ns) {
    const struct backend_options o = {
        .n_threads = 1, .n_threads_batch = 1, .cpu_isa_mask = ~0U, .driven = true};
    const struct sim_options sim = {.rates = {.bytes_per_ns = bytes_per_ns,
                                              .launch_ns = 0,
                                              .step_ns = 0,
                                              .copy_bytes_per_ns = copy_bytes_per_ns},
                                    .gpu = true,
                                    .memory_bytes = (int64_t)1 << 30};
    struct backend *inner;
    TEST_OK(cpu_backend_open(&o, &inner));
    return sim_backend_open(inner, &sim, NULL);
}

static uint64_t round_ns(struct bench *b) {
    uint64_t start = b->device->fn->now(b->device);
    run_round(b, N_TOKENS);
    return b->device->fn->now(b->device) - start;
}

/* scheduling.md 4, 5: a round takes what the longer of the two takes, within a tenth, and once the
 * time in which the first slot fills; from the second round on that has happened in the one before.
 */
static void check_overlap(const char *path, int n_slots, int bytes_per_ns, int copy_bytes_per_ns) {
    struct bench b;
    bench_open(&b, path, 0, open_timed(bytes_per_ns, copy_bytes_per_ns));
    uint64_t compute = round_ns(&b);
    bench_close(&b);
    bench_open(&b, path, n_slots, open_timed(bytes_per_ns, copy_bytes_per_ns));
    struct executor_ledger l;
    executor_ledger(b.executor, 0, &l);
    uint64_t copies = (uint64_t)((l.streamed_bytes + l.pageable_bytes) / copy_bytes_per_ns);
    uint64_t fill = (uint64_t)(l.slot_bytes / n_slots / copy_bytes_per_ns);
    uint64_t longer = compute > copies ? compute : copies;
    for (int i = 0; i < N_ROUNDS; i++) {
        uint64_t took = round_ns(&b), limit = longer + longer / 10 + fill;
        if (took > limit)
            fail_msg("%s, %d slots, round %d: %llu ns, computing takes %llu, copying %llu, a slot "
                     "%llu",
                     path, n_slots, i, (unsigned long long)took, (unsigned long long)compute,
                     (unsigned long long)copies, (unsigned long long)fill);
        if (i) continue;
        print_message("%d slots, copying / computing %.2f: %.2f of the longer, a slot is %.2f\n",
                      n_slots, (double)copies / (double)compute, (double)took / (double)longer,
                      (double)fill / (double)longer);
    }
    bench_close(&b);
}

static void copies_hide_behind_computing_and_it_behind_them(void **state) {
    (void)state;
    static const char *const dense[] = {"models/llama/llama-f16.gguf",
                                        "models/llama256/llama256-f16.gguf",
                                        "models/qwen2/qwen2-bf16.gguf"};
    for (size_t i = 0; i < COUNT_OF(dense); i++) {
        char path[512];
        if (!test_shared_path(path, sizeof path, dense[i])) skip();
        for (int n_slots = 2; n_slots <= 4; n_slots++) {
            check_overlap(path, n_slots, 6, 2);
            check_overlap(path, n_slots, 4, 4);
            check_overlap(path, n_slots, 2, 6);
        }
    }
}
#endif

#ifdef STREAM_ON_VULKAN
static int n_messages; /* of the validation layer */
static int n_unpinned; /* that memory could not be pinned */

static void count_messages(void *user, int level, const char *text) {
    (void)user, (void)level;
    n_unpinned += strstr(text, "cannot be pinned") != NULL;
    if (!strstr(text, "vulkan validation")) return;
    n_messages++;
    print_error("%s\n", text);
}
#endif

#ifdef STREAM_ON_VULKAN
/* Where no memory is pinned, homes are read in place or go through a buffer that is; the same when
 * the driver refuses one of them, whichever. */
static void memory_that_cannot_be_pinned_changes_no_bit(void **state) {
    (void)state;
    static const char *const switches[] = {"pin", "pin,import"};
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/quants/Q4_K.gguf")) skip();
    for (int i = 0; i < 4; i++) {
        int n_before = n_unpinned;
        setenv("ATSINFER_VK_DISABLE", switches[i % 2], 1);
        check_bits(path, 1 + i / 2, false);
        setenv("ATSINFER_VK_DISABLE", "", 1);
        assert_int_equal(n_unpinned, n_before + 1);
    }
}

/* Opens it with the n-th allocation failing; what comes out, if it opens, is as it should be. */
static ats_status open_failing(const char *path, int nth, const float *want,
                               int64_t *unpinned_bytes) {
    struct bench b;
    char text[16];
    snprintf(text, sizeof text, "%d", nth);
    setenv("ATSINFER_VK_FAIL_ALLOCATION", text, 1);
    struct backend *device = open_device(false);
    setenv("ATSINFER_VK_FAIL_ALLOCATION", "0", 1);
    ats_status status = bench_try(&b, path, 2, device);
    if (status == ATS_OK) {
        const float *got = run_round(&b, N_TOKENS);
        size_t n = (size_t)N_TOKENS * (size_t)b.model->graph->n_vocab;
        assert_memory_equal(got, want, n * sizeof *got);
        *unpinned_bytes = b.device->unpinned_bytes;
    } else {
        TEST_ERROR_HAS("vulkan");
    }
    bench_close(&b);
    return status;
}

static void fail_each(const char *path, bool import, const float *want) {
    int nth, n_failed = 0, n_made_up = 0;
    setenv("ATSINFER_VK_DISABLE", import ? "" : "import", 1);
    for (nth = 1; nth < 100; nth++) {
        int n_before = n_unpinned;
        int64_t unpinned_bytes = 0;
        ats_status status = open_failing(path, nth, want, &unpinned_bytes);
        bool made_up = n_unpinned > n_before;
        if (status == ATS_OK && !made_up) break;
        assert_int_equal(status, made_up ? ATS_OK : ATS_NO_MEMORY);
        assert_int_equal(unpinned_bytes > 0, made_up && !import);
        n_made_up += made_up;
        n_failed += !made_up;
    }
    setenv("ATSINFER_VK_DISABLE", "", 1);
    print_message("%d allocations: %d are needed, %d can be made up for\n", nth - 1, n_failed,
                  n_made_up);
    assert_true(nth < 100 && n_made_up >= 1 && n_failed >= 6);
}

static void each_refused_allocation_is_said_or_made_up_for(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    struct bench b;
    bench_open(&b, path, 2, open_device(false));
    const float *want = run_round(&b, N_TOKENS);
    fail_each(path, true, want);
    fail_each(path, false, want);
    bench_close(&b);
}
#endif

int main(void) {
#ifdef STREAM_ON_VULKAN
    ats_log_set(count_messages, NULL, 1);
    struct backend *b;
    const struct backend_options o = {.n_threads = 1};
    ats_status status = backend_open(DEVICE, &o, &b);
    if (status == ATS_UNSUPPORTED) print_message("skipped: %s\n", error_text());
    if (status == ATS_UNSUPPORTED) return 77;
    if (status == ATS_OK) backend_close(b);
#endif
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(streaming_changes_no_bit),
        cmocka_unit_test(experts_in_tensors_of_their_own_change_no_bit),
#ifdef STREAM_ON_VULKAN
        cmocka_unit_test(parts_of_weights_change_no_bit),
        cmocka_unit_test(memory_that_cannot_be_pinned_changes_no_bit),
        cmocka_unit_test(each_refused_allocation_is_said_or_made_up_for),
#endif
#ifndef STREAM_ON_VULKAN
        cmocka_unit_test(copies_hide_behind_computing_and_it_behind_them),
#endif
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
#ifdef STREAM_ON_VULKAN
    if (n_messages) failed = 1;
#endif
    return failed;
}
