/* The ledger: which bytes count against which memory, and what stays in the file when the host's is
 * short. A processor and a simulated GPU with memory of its own; nothing is loaded. */
#include "base/file.h"
#include "run/ledger.h"
#include "support.h"

#define MODEL "models/quants/Q4_0.gguf"

enum { N_TOKENS = 16, CPU = 0, GPU = 1 };

struct bench {
    struct arena arena;
    struct gguf *file;
    struct model *model;
    struct backend *devices[2];
    struct programs programs;
    struct executor_options o;
};

/* Every block divided evenly. */
static void bench_open(struct bench *b, const char *gpu) {
    char path[512];
    if (!test_shared_path(path, sizeof path, MODEL)) skip();
    memset(b, 0, sizeof *b);
    const struct model_options model_options = {.n_ctx = 64, .math = MATH_Q8, .row_group = 1};
    TEST_OK(gguf_open(path, &b->file));
    TEST_OK(model_open(b->file, &model_options, &b->model));
    for (int d = 0; d < 2; d++) {
        struct backend_options o = {
            .n_threads = 1, .n_threads_batch = 1, .cpu_isa_mask = ~0U, .peer = b->devices[0]};
        TEST_OK(backend_open(d == CPU ? "sim:cpu" : gpu, &o, &b->devices[d]));
    }
    const struct plan *plan = plan_even(&b->arena, b->model->graph, 2);
    programs_lower(&b->arena, b->model->graph, plan, b->devices, N_TOKENS, N_TOKENS, &b->programs);
    b->o = (struct executor_options){.n_tokens = N_TOKENS,
                                     .n_rows = N_TOKENS,
                                     .n_ctx = 64,
                                     .n_pages = {2},
                                     .type_k = KV_F16,
                                     .type_v = KV_F16,
                                     .host_bytes = (int64_t)1 << 30};
}

static void bench_close(struct bench *b) {
    for (int d = 1; d >= 0; d--)
        backend_close(b->devices[d]);
    model_close(b->model);
    gguf_close(b->file);
    arena_free(&b->arena);
}

static void count(struct bench *b, struct ledger *l) {
    ledger_count(&b->arena, b->model, &b->programs, b->devices, &b->o, l);
}

static int count_raw(const struct bench *b, const struct ledger *l, int device) {
    int n = 0;
    for (int i = 0; i < b->programs.n_holdings; i++)
        n += b->programs.holdings[i].device == device && l->raw[i];
    return n;
}

static void each_memory_gets_what_lies_in_it(void **state) {
    (void)state;
    struct bench b;
    struct ledger l;
    bench_open(&b, "sim:gpu");
    count(&b, &l);
    const struct executor_ledger *cpu = &l.devices[CPU], *gpu = &l.devices[GPU];
    assert_true(cpu->memory.host && !gpu->memory.host);
    assert_true(cpu->weight_bytes > 0 && gpu->weight_bytes > 0);
    assert_true(cpu->kv_bytes > 0 && cpu->kv_bytes == gpu->kv_bytes);
    assert_true(cpu->pinned_bytes >= b.programs.exchange_bytes);
    assert_int_equal(l.host_bytes, ledger_own_bytes(cpu) + cpu->pinned_bytes + gpu->pinned_bytes);
    assert_int_equal(count_raw(&b, &l, CPU) + count_raw(&b, &l, GPU), 0);
    TEST_OK(ledger_check(&l, b.devices));
    bench_close(&b);
}

/* What the processor computes in decode and the device in prompts is in memory once. */
static void two_programs_share_what_is_streamed_in_one(void **state) {
    (void)state;
    struct bench b;
    struct ledger one, two;
    bench_open(&b, "sim:gpu");
    count(&b, &one);
    const struct graph *g = b.model->graph;
    struct plan *decode = plan_even(&b.arena, g, 2), *prompts = plan_even(&b.arena, g, 2);
    for (int i = 0; i < prompts->n_parts; i++) {
        struct plan_part *p = &prompts->parts[i];
        if (p->device == CPU && op_can_stream(&g->ops[p->op])) p->device = GPU, p->streamed = true;
    }
    prompts->n_slots[GPU] = 2;
    TEST_OK(plan_check_pair(g, decode, prompts, 1, 1 << GPU, 1 << CPU));
    decode->prompts = prompts;
    decode->prompts_from = 2;
    programs_lower(&b.arena, g, decode, b.devices, N_TOKENS, N_TOKENS, &b.programs);
    count(&b, &two);
    const struct executor_ledger *cpu = &two.devices[CPU], *gpu = &two.devices[GPU];
    assert_true(gpu->pageable_bytes > 0 && gpu->slot_bytes > 0);
    assert_int_equal(cpu->weight_bytes + gpu->pageable_bytes, one.devices[CPU].weight_bytes);
    assert_int_equal(gpu->kv_bytes, one.devices[GPU].kv_bytes);
    assert_true(gpu->slot_bytes < gpu->pageable_bytes);
    bench_close(&b);
}

/* Copies that the host cannot hold stay in the file; the GPU's own are not among them. */
static void short_host_memory_leaves_weights_in_the_file(void **state) {
    (void)state;
    struct bench b;
    struct ledger all, some, none;
    bench_open(&b, "sim:gpu");
    count(&b, &all);
    int64_t weights = all.devices[CPU].weight_bytes, rest = all.host_bytes - weights;
    b.o.host_bytes = rest + weights / 2;
    count(&b, &some);
    assert_in_range(some.devices[CPU].weight_bytes, 1, weights / 2);
    assert_true(some.devices[CPU].mapped_bytes > all.devices[CPU].mapped_bytes);
    assert_int_equal(some.devices[GPU].weight_bytes, all.devices[GPU].weight_bytes);
    assert_true(count_raw(&b, &some, CPU) > 0);
    assert_int_equal(count_raw(&b, &some, GPU), 0);
    assert_true(some.host_bytes <= b.o.host_bytes);
    TEST_OK(ledger_check(&some, b.devices));
    b.o.host_bytes = rest - 1;
    count(&b, &none);
    assert_int_equal(none.devices[CPU].weight_bytes, 0);
    TEST_STATUS(ledger_check(&none, b.devices), ATS_NO_MEMORY);
    TEST_ERROR_HAS("of memory are free");
    bench_close(&b);
}

static void a_gpu_is_held_to_its_budget(void **state) {
    (void)state;
    struct bench b;
    struct ledger l;
    bench_open(&b, "sim:gpu:1000");
    count(&b, &l);
    assert_int_equal(l.devices[GPU].limit_bytes, (1000 - 256) << 20);
    b.o.device_bytes[GPU] = ledger_own_bytes(&l.devices[GPU]);
    count(&b, &l);
    TEST_OK(ledger_check(&l, b.devices));
    b.o.device_bytes[GPU]--;
    count(&b, &l);
    TEST_STATUS(ledger_check(&l, b.devices), ATS_NO_MEMORY);
    TEST_ERROR_HAS("of its memory may be used (1000 of 1000 are free)");
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_memory_gets_what_lies_in_it),
        cmocka_unit_test(two_programs_share_what_is_streamed_in_one),
        cmocka_unit_test(short_host_memory_leaves_weights_in_the_file),
        cmocka_unit_test(a_gpu_is_held_to_its_budget),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
