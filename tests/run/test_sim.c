/*
 * The executor on simulated devices in chaos: with all its waits a program gives the same bits in
 * every order of events; without any wait that the happens-before checker calls needed, some order
 * gives others. (A real device, or a software one, mostly runs in order and shows neither.) By
 * hand: test_run_sim [N] [SEED]     N plans for each model and number of devices, from SEED on
 */
#include "replay.h"

#include "agree.h"
#include "model/model.h"
#include "run/executor.h"

/* Rounds take turns over sets of tokens: a router must choose every expert in one of them. */
enum { N_TOKENS = 4, N_SETS = 700, N_CTX = 64, MAX_DEVICES = 4, STREAMING = 15 };

static int n_plans = TEST_SANITIZED ? 1 : 3;
static uint64_t first_seed = 1;

static const char *const models[] = {"llama/llama-f16.gguf", "qwen3/qwen3-f16.gguf",
                                     "phi3/phi3-f32.gguf", "qwen3moe/qwen3moe-f32.gguf"};

/* A random plan of a model, ready to run on chaos. */
struct bench {
    struct arena arena;
    struct gguf *file;
    struct model *model;
    struct plan *plan;
    struct backend *devices[MAX_DEVICES];
    int n_devices;
    struct executor *executor;
    float *want[N_SETS]; /* (N_TOKENS, n_vocab) of each set of tokens */
    char what[640];
};

static void bench_open(struct bench *b, const char *path, int n_devices, uint64_t seed) {
    memset(b, 0, sizeof *b);
    snprintf(b->what, sizeof b->what, "%s, %d devices, seed %llu", path, n_devices,
             (unsigned long long)seed);
    const struct model_options model_options = {.n_ctx = N_CTX, .math = MATH_F32, .row_group = 1};
    TEST_OK(gguf_open(path, &b->file));
    TEST_OK(model_open(b->file, &model_options, &b->model));
    struct rng rng;
    rng_seed(&rng, seed);
    b->plan = plan_random(&b->arena, b->model->graph, n_devices, 1, STREAMING, &rng);
    for (; b->n_devices < n_devices; b->n_devices++) {
        char name[40];
        struct backend_options o = {
            .n_threads = 1, .n_threads_batch = 1, .cpu_isa_mask = ~0U, .peer = b->devices[0]};
        snprintf(name, sizeof name, "sim:chaos:%llu", (unsigned long long)seed);
        TEST_OK(backend_open(name, &o, &b->devices[b->n_devices]));
    }
    const struct executor_options o = {.n_tokens = N_TOKENS,
                                       .n_rows = N_TOKENS,
                                       .n_ctx = N_CTX,
                                       .n_pages = {1},
                                       .type_k = KV_F32,
                                       .type_v = KV_F32,
                                       .host_bytes = (int64_t)1 << 30};
    TEST_OK(executor_open(b->model, b->plan, b->devices, &o, &b->executor));
    TEST_OK(executor_load(b->executor, NULL, NULL));
}

static void bench_close(struct bench *b) {
    executor_close(b->executor);
    for (int d = 0; d < b->n_devices; d++)
        backend_close(b->devices[d]);
    model_close(b->model);
    gguf_close(b->file);
    arena_free(&b->arena);
    for (int i = 0; i < N_SETS; i++)
        free(b->want[i]);
}

static size_t logits_bytes(const struct bench *b) {
    return (size_t)N_TOKENS * (size_t)b->model->graph->n_vocab * sizeof(float);
}

/* A set of tokens from this position on, all rows. Borrowed until the next. */
static const float *run_round(struct bench *b, int set, int position) {
    static const int32_t rows[N_TOKENS] = {0, 1, 2, 3}, page = 0;
    int32_t tokens[N_TOKENS], positions[N_TOKENS];
    for (int i = 0; i < N_TOKENS; i++) {
        tokens[i] = (set * 89 + i * 31 + 5) % b->model->graph->n_vocab;
        positions[i] = position + i;
    }
    const struct round_run run = {.n_tokens = N_TOKENS, .position = position, .pages = {&page}};
    const struct round round = {.n_tokens = N_TOKENS,
                                .tokens = tokens,
                                .positions = positions,
                                .runs = &run,
                                .n_runs = 1,
                                .rows = rows,
                                .n_rows = N_TOKENS};
    const float *logits;
    TEST_OK(executor_run(b->executor, &round, &logits));
    return logits;
}

/* The round that is run again and again. It finds the cache of one before it (so that every query
 * has a choice of keys, and a wrong one shows), and writes what else it reads of the cache itself:
 * it knows nothing of the last time. */
static const float *run_again(struct bench *b, int set) {
    return run_round(b, set, N_TOKENS);
}

static void learn_what_is_wanted(struct bench *b) {
    run_round(b, 0, 0);
    for (int i = 0; i < N_SETS; i++) {
        b->want[i] = malloc(logits_bytes(b));
        memcpy(b->want[i], run_again(b, i), logits_bytes(b));
    }
}

/* Rounds until the logits differ from what is wanted in any bit; 0: they did not in n. */
static int rounds_until_different(struct bench *b, int n) {
    for (int i = 0; i < n; i++)
        if (memcmp(run_again(b, i % N_SETS), b->want[i % N_SETS], logits_bytes(b)) != 0)
            return i + 1;
    return 0;
}

/* The program reads its waits anew in each round: here is where one is left out and put back. */
static struct program_wait drop_wait(struct program_segment *s, int wait) {
    struct program_wait dropped = s->waits[wait];
    s->waits[wait] = s->waits[--s->n_waits];
    return dropped;
}

static void restore_wait(struct program_segment *s, int wait, struct program_wait dropped) {
    s->waits[s->n_waits++] = s->waits[wait];
    s->waits[wait] = dropped;
}

/* ---- what is left out ---- */

/* A wait that the program reads anew in each round: left out, and put back. */
struct hole {
    struct program_segment *segment; /* the wait with this index, or (-1) for what arrives */
    int wait;
    struct program_transfer *transfer; /* or what a transfer waits for */
    struct program_wait dropped;
    int value;
};

static void open_hole(struct hole *h) {
    if (h->transfer) {
        h->value = h->transfer->wait;
        h->transfer->wait = 0;
    } else if (h->wait < 0) {
        h->value = h->segment->arrival;
        h->segment->arrival = 0;
    } else {
        h->dropped = drop_wait(h->segment, h->wait);
    }
}

static void close_hole(const struct hole *h) {
    if (h->transfer)
        h->transfer->wait = h->value;
    else if (h->wait < 0)
        h->segment->arrival = h->value;
    else
        restore_wait(h->segment, h->wait, h->dropped);
}

/* ---- every wait ---- */

enum {
    MAX_ROUNDS = 20000,    /* in which a needed wait must show; an expert may be chosen seldom */
    REDUNDANT_ROUNDS = 24, /* in which a redundant one must not */
    BUCKETS = 10,
};
struct counts {
    int n_waits, n_needed;
    int shown[BUCKETS]; /* needed waits that showed in at most 2^i rounds */
};
static struct counts counts[MAX_DEVICES + 1]; /* between devices, by their number */
static struct counts arrivals, releases;      /* of slots */

static void check_hole(struct bench *b, struct hole *h, bool needed, struct counts *count,
                       const char *what, int index) {
    open_hole(h);
    int n = rounds_until_different(b, needed ? MAX_ROUNDS : REDUNDANT_ROUNDS);
    close_hole(h);
    if (needed && n == 0) fail_msg("%s: without %s %d nothing changes", b->what, what, index);
    if (!needed && n > 0) fail_msg("%s: %s %d is not redundant", b->what, what, index);
    count->n_waits++;
    if (!needed) return;
    count->n_needed++;
    for (int i = 0; i < BUCKETS; i++)
        count->shown[i] += n <= 1 << i;
}

static void check_waits(struct bench *b, const struct replay_case *c) {
    const struct program *p = c->program;
    for (int i = 0; i < p->n_segments; i++)
        for (int j = 0; j < p->segments[i].n_waits; j++) {
            struct hole h = {.segment = &p->segments[i], .wait = j};
            check_hole(b, &h, replay_needs_wait(c, i, j), &counts[b->n_devices],
                       "a wait of segment", i);
        }
}

/* What came too early last round stands in a slot in this one: it is not compared. */
static void check_slot_waits(struct bench *b, const struct replay_case *c) {
    const struct program *p = c->program;
    for (int i = 0; i < p->n_segments; i++) {
        struct hole h = {.segment = &p->segments[i], .wait = -1};
        if (!p->segments[i].arrival) continue;
        check_hole(b, &h, replay_has_slot_race(c, i, -1), &arrivals, "the arrival for segment", i);
        run_again(b, 0);
    }
    for (int i = 0; i < p->n_transfers; i++) {
        struct hole h = {.transfer = &p->transfers[i]};
        check_hole(b, &h, replay_has_slot_race(c, -1, i), &releases, "the release for transfer", i);
        run_again(b, 0);
    }
}

static void check_plan(const char *path, int n_devices, uint64_t seed) {
    struct bench b;
    bench_open(&b, path, n_devices, seed);
    const struct program *p = executor_program(b.executor);
    const struct replay_case c = {b.model->graph, b.plan, p, N_TOKENS, N_TOKENS};
    assert_false(replay_has_race(&c, -1, -1));
    assert_false(replay_has_slot_race(&c, -1, -1));
    learn_what_is_wanted(&b);
    check_waits(&b, &c);
    check_slot_waits(&b, &c);
    if (rounds_until_different(&b, 100))
        fail_msg("%s: the order of events changes the logits", b.what);
    bench_close(&b);
}

static void print_counts(const struct counts *c) {
    print_message(": %d waits, %d needed; shown within 1, 2, 4, ... rounds:", c->n_waits,
                  c->n_needed);
    for (int i = 0; i < BUCKETS; i++)
        print_message(" %d", c->shown[i]);
    print_message("\n");
}

static void each_wait_that_is_left_out_shows(void **state) {
    (void)state;
    const size_t step = TEST_SANITIZED ? COUNT_OF(models) - 1 : 1; /* one dense, one of experts */
    for (size_t m = 0; m < COUNT_OF(models); m += step) {
        char name[128], path[512];
        snprintf(name, sizeof name, "models/%s", models[m]);
        if (!test_shared_path(path, sizeof path, name)) skip();
        for (int n = 2; n <= MAX_DEVICES; n++)
            for (int i = 0; i < n_plans; i++)
                check_plan(path, n, first_seed + (uint64_t)i);
    }
    for (int n = 2; n <= MAX_DEVICES; n++) {
        print_message("%d devices", n);
        print_counts(&counts[n]);
        assert_true(counts[n].n_needed >= 20 * n_plans);
    }
    print_message("arrivals");
    print_counts(&arrivals);
    print_message("releases");
    print_counts(&releases);
    assert_true(arrivals.n_needed >= 20 * n_plans && releases.n_needed >= 20 * n_plans);
}

int main(int argc, char **argv) {
    if (argc > 1) n_plans = atoi(argv[1]);
    if (argc > 2) first_seed = strtoull(argv[2], NULL, 10);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_wait_that_is_left_out_shows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
