/*
 * Debug builds: the checker of base/races.h on a Vulkan device beside CPUs. Of random programs each
 * wait is left out in turn, between devices, for what arrives in a slot and for its release: it
 * finds a race where replay.c, which knows only the program, says that there is one, and none with
 * all waits in place. (The software device runs in order and has one queue: neither its results nor
 * the validation layer show what is missing between queues, or beside the host.) By hand:
 *   test_run_races [N] [SEED]     N plans for each model and list of devices, from SEED on
 */
#include "replay.h"

#include "agree.h"
#include "model/model.h"
#include "run/executor.h"

enum { N_TOKENS = 4, N_CTX = 64, MAX_DEVICES = 3 };

static int n_plans = 1;
static uint64_t first_seed = 1;

static const char *const models[] = {"llama/llama-f16.gguf", "qwen3moe/qwen3moe-f32.gguf",
                                     "qwen35/qwen35-f16.gguf"};
static const char *const lists[][MAX_DEVICES] = {
    {"cpu", "vulkan", NULL}, {"vulkan", "cpu", NULL}, {"cpu", "vulkan", "cpu"}};

struct bench {
    struct arena arena;
    struct gguf *file;
    struct model *model;
    struct plan *plan;
    struct backend *devices[MAX_DEVICES];
    int n_devices;
    struct executor *executor;
    char what[600];
};

static ats_status open_devices(struct bench *b, const char *const list[MAX_DEVICES]) {
    bool driven = false; /* one of them is */
    for (; b->n_devices < MAX_DEVICES && list[b->n_devices]; b->n_devices++) {
        const char *name = list[b->n_devices];
        bool cpu = strcmp(name, "cpu") == 0;
        struct backend_options o = {
            .n_threads = 1, .n_threads_batch = 1, .cpu_isa_mask = ~0U, .driven = cpu && !driven};
        TRY(backend_open(name, &o, &b->devices[b->n_devices]));
        driven |= cpu;
    }
    return ATS_OK;
}

static void bench_open(struct bench *b, const char *path, const char *const list[MAX_DEVICES],
                       uint64_t seed) {
    memset(b, 0, sizeof *b);
    const struct model_options options = {.n_ctx = N_CTX, .math = MATH_F32, .row_group = 1};
    TEST_OK(gguf_open(path, &b->file));
    TEST_OK(model_open(b->file, &options, &b->model));
    TEST_OK(open_devices(b, list));
    plan_devices streaming = 0;
    for (int d = 0; d < b->n_devices; d++)
        streaming |= (plan_devices)b->devices[d]->streams << d;
    struct rng rng;
    rng_seed(&rng, seed);
    b->plan = plan_random(&b->arena, b->model->graph, b->n_devices, 1, streaming, &rng);
    const struct executor_options o = {.n_tokens = N_TOKENS,
                                       .n_rows = N_TOKENS,
                                       .n_ctx = N_CTX,
                                       .n_pages = {1},
                                       .n_states = 2,
                                       .type_k = KV_F32,
                                       .type_v = KV_F32,
                                       .host_bytes = (int64_t)1 << 30};
    TEST_OK(executor_open(b->model, b->plan, b->devices, &o, &b->executor));
    TEST_OK(executor_load(b->executor, NULL, NULL));
    snprintf(b->what, sizeof b->what, "%s on %s,%s,%s, seed %llu", path, list[0], list[1],
             list[2] ? list[2] : "", (unsigned long long)seed);
}

static void bench_close(struct bench *b) {
    executor_close(b->executor);
    for (int d = 0; d < b->n_devices; d++)
        backend_close(b->devices[d]);
    model_close(b->model);
    gguf_close(b->file);
    arena_free(&b->arena);
}

/* A round; returns how many races were found in it. */
static int run_round(struct bench *b) {
    static const int32_t rows[N_TOKENS] = {0, 1, 2, 3}, tokens[N_TOKENS] = {5, 7, 11, 13}, page = 0;
    const int32_t positions[N_TOKENS] = {0, 1, 2, 3};
    const struct round_run run = {.n_tokens = N_TOKENS, .pages = {&page}, .state_in = STATE_NONE};
    const struct round round = {.n_tokens = N_TOKENS,
                                .tokens = tokens,
                                .positions = positions,
                                .runs = &run,
                                .n_runs = 1,
                                .rows = rows,
                                .n_rows = N_TOKENS};
    const float *logits;
    int before = executor_races(b->executor);
    TEST_OK(executor_run(b->executor, &round, &logits));
    return executor_races(b->executor) - before;
}

/* ---- waits that are left out ---- */

enum kind { OF_GPU, OF_CPU, ARRIVAL, RELEASE, N_KINDS };
static const char *const kind_names[] = {"a GPU's wait", "a CPU's wait", "an arrival", "a release"};
static int n_waits[N_KINDS], n_needed[N_KINDS], n_found[N_KINDS];

/* Rounds without the wait. A copy may follow its slot's reader all the same, since the thread that
 * hands it over has waited for somebody who had; the program does not promise that. */
static void check_hole(struct bench *b, enum kind kind, int index, bool needed) {
    bool found = run_round(b) + run_round(b) > 0;
    if (found != needed && !(kind == RELEASE && needed))
        fail_msg("%s: without %s of %d there is %s race", b->what, kind_names[kind], index,
                 needed ? "no" : "a");
    n_waits[kind]++;
    n_needed[kind] += needed;
    n_found[kind] += found;
}

static void check_waits(struct bench *b, const struct replay_case *c) {
    const struct program *p = c->program;
    for (int i = 0; i < p->n_segments; i++) {
        struct program_segment *s = &p->segments[i];
        for (int j = 0; j < s->n_waits; j++) {
            bool needed = replay_has_race(c, i, j);
            struct program_wait last = s->waits[s->n_waits - 1], dropped = s->waits[j];
            s->waits[j] = last;
            s->n_waits--;
            check_hole(b, b->devices[s->device]->gpu ? OF_GPU : OF_CPU, i, needed);
            s->waits[s->n_waits++] = last;
            s->waits[j] = dropped;
            run_round(b);
        }
        if (!s->arrival) continue;
        int arrival = s->arrival;
        bool needed = replay_has_slot_race(c, i, -1);
        s->arrival = 0;
        check_hole(b, ARRIVAL, i, needed);
        s->arrival = arrival;
        run_round(b);
    }
}

static void check_releases(struct bench *b, const struct replay_case *c) {
    const struct program *p = c->program;
    for (int i = 0; i < p->n_transfers; i++) {
        int wait = p->transfers[i].wait;
        bool needed = replay_has_slot_race(c, -1, i);
        p->transfers[i].wait = 0;
        check_hole(b, RELEASE, i, needed);
        p->transfers[i].wait = wait;
        run_round(b);
    }
}

static int n_messages;

static void count_races(void *user, int level, const char *text) {
    (void)user, (void)level;
    n_messages += strncmp(text, "race: ", 6) == 0;
}

static void each_wait_that_is_left_out_is_a_race(void **state) {
    (void)state;
    for (size_t m = 0; m < COUNT_OF(models); m++) {
        char name[128], path[512];
        snprintf(name, sizeof name, "models/%s", models[m]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        for (size_t l = 0; l < COUNT_OF(lists); l++)
            for (int i = 0; i < n_plans; i++) {
                struct bench b;
                bench_open(&b, path, lists[l], first_seed + 10 * l + m + (uint64_t)i);
                const struct replay_case c = {b.model->graph, b.plan, executor_program(b.executor),
                                              N_TOKENS, N_TOKENS};
                for (int j = 0; j < 4; j++)
                    assert_int_equal(run_round(&b), 0);
                check_waits(&b, &c);
                check_releases(&b, &c);
                bench_close(&b);
            }
    }
    for (int kind = 0; kind < N_KINDS; kind++) {
        print_message("%s: %d, of which %d are needed, and %d found\n", kind_names[kind],
                      n_waits[kind], n_needed[kind], n_found[kind]);
        assert_true(n_found[kind] >= 10 * n_plans && 4 * n_found[kind] >= 3 * n_needed[kind]);
    }
    assert_true(n_messages > 0);
}

/* The same by the backend's switches: what it does not tell its queue. */
static void waits_that_the_backend_leaves_out_are_races(void **state) {
    (void)state;
    static const char *const switches[] = {"", "arrivals", "releases"};
    char path[512];
    int n[COUNT_OF(switches)] = {0};
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    for (size_t i = 0; i < COUNT_OF(switches); i++)
        for (uint64_t seed = 1; seed <= 4; seed++) {
            struct bench b;
            setenv("ATSINFER_VK_DISABLE", switches[i], 1);
            bench_open(&b, path, lists[0], seed);
            for (int j = 0; j < 3; j++)
                n[i] += run_round(&b);
            bench_close(&b);
            setenv("ATSINFER_VK_DISABLE", "", 1);
        }
    print_message("races: %d; without arrivals %d, without releases %d\n", n[0], n[1], n[2]);
    assert_true(n[0] == 0 && n[1] > 0 && n[2] > 0);
}

int main(int argc, char **argv) {
    if (argc > 1) n_plans = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    ats_log_set(count_races, NULL, 1);
    struct backend_options o = {.n_threads = 1, .n_threads_batch = 1};
    struct backend *probe;
    if (backend_open("vulkan", &o, &probe) != ATS_OK) {
        print_message("skipped: %s\n", ats_error_text());
        return 77;
    }
    backend_close(probe);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_wait_that_is_left_out_is_a_race),
        cmocka_unit_test(waits_that_the_backend_leaves_out_are_races),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
