/*
 * Any placement, same answer: random divisions of every operator give the reference's logits
 * (--math f32), in chunks and token by token, for several sequences in the same rounds, also where
 * another plan follows in their middle; on two or three CPUs, on simulated devices whose segments
 * end in any order that their waits allow, or (--vulkan) on a Vulkan device beside CPUs, with its
 * optional features on and off. What the plans have met is counted and, with enough of them,
 * insisted on. By hand:
 *   test_run_plans [--vulkan] [--n N] [--seed S] [--family NAME]
 * N plans a family, from seed S on; a failure prints its family and seed, which repeat it.
 */
#include "agree.h"

#include <stdio.h>
#include "base/rng.h"
#include "coverage.h"
#include "made.h"
#include "run/engine.h"
#include "run/switch.h"

#define BOUND 1e-3

/* Plans take turns over a family's files; without one it is made. */
static const struct family {
    const char *name;
    const char *files[4];
    enum made_kind made;
} families[] = {
    {"llama", {"llama/llama-f16", "llama256/llama256-f16", "quants/Q8_0", "quants/Q4_K_M"}, 0},
    {"mistral", {"mistral/mistral-f32"}, 0},
    {"qwen2", {"qwen2/qwen2-bf16"}, 0},
    {"qwen3", {"qwen3/qwen3-f16"}, 0},
    {"phi3", {"phi3/phi3-f32"}, 0},
    {"smollm3", {"smollm3/smollm3-f32"}, 0},
    {"mixtral", {"mixtral/mixtral-f32"}, 0},
    {"qwen3moe", {"qwen3moe/qwen3moe-f32", "quants/moe-Q4_K_M"}, 0},
    {"glm4", {"glm4/glm4-f32"}, 0},
    {"gemma3", {"gemma3/gemma3-f16"}, 0},
    {"gptoss", {"gptoss/gptoss-f16", "gptoss/gptoss-mxfp4"}, 0},
    {"glm4moe", {"glm4moe/glm4moe-f32"}, 0},
    {"llama4", {"llama4/llama4-f32"}, 0},
    {"qwen3next", {"qwen3next/qwen3next-f16"}, 0},
    {"qwen35", {"qwen35/qwen35-f16"}, 0},
    {"qwen35moe", {"qwen35moe/qwen35moe-f16"}, 0},
    {"made-ratio", {NULL}, MADE_RATIO},
    {"made-llama", {NULL}, MADE_LLAMA},
    {"made-moe", {NULL}, MADE_MOE},
};

static int n_plans = TEST_SANITIZED ? 1 : 12;
static uint64_t first_seed = 1;
static const char *only_family;
static bool on_vulkan;

/* ---- what they must agree with ---- */

enum { N_LONG = 70, N_SHORT = 21, N_SEQS = 2 };
static const size_t lengths[N_SEQS] = {N_LONG, N_SHORT}; /* one crosses a border of pages */

struct reference {
    char path[512];
    int32_t ids[N_SEQS][N_LONG];
    float *want[N_SEQS]; /* (lengths[i], width) */
    size_t width;
};

static ats_options options_of(const struct reference *r) {
    ats_options o = agree_options(r->path);
    o.n_seqs = N_SEQS;
    o.n_rows = N_LONG + N_SHORT; /* no round is cut for its rows */
    return o;
}

/* All on one CPU with the reference kernels; a model that was made: by made.c. */
static void reference_open(struct reference *r, const struct family *f, const char *file) {
    char name[128];
    if (file) {
        snprintf(name, sizeof name, "models/%s.gguf", file);
        test_shared_path(r->path, sizeof r->path, name);
    } else {
        made_write(f->made, r->path, sizeof r->path);
    }
    ats_options o = options_of(r);
    o.cpu_isa = "ref";
    ats_engine *e = agree_open(&o);
    r->width = (size_t)agree_vocab(e);
    for (int i = 0; i < N_SEQS; i++) {
        for (size_t j = 0; j < lengths[i]; j++)
            r->ids[i][j] = (int32_t)((j * 37 + 11 + 101 * (size_t)i) % r->width);
        r->want[i] = file ? agree_logits(e, r->ids[i], lengths[i], 0)
                          : made_logits(r->path, r->ids[i], lengths[i]);
    }
    ats_engine_close(e);
}

static void reference_close(struct reference *r) {
    for (int i = 0; i < N_SEQS; i++)
        free(r->want[i]);
}

/* Those of models that are made, which is dear: for all tests. */
static struct reference made_references[N_MADE];

static struct reference *made_reference(enum made_kind kind) {
    struct reference *r = &made_references[kind];
    const struct family made = {.name = made_name(kind), .made = kind};
    if (!r->width) reference_open(r, &made, NULL);
    return r;
}

static int close_made_references(void **state) {
    (void)state;
    for (int kind = 0; kind < N_MADE; kind++)
        reference_close(&made_references[kind]);
    return 0;
}

/* ---- a plan ---- */

struct trial {
    const struct reference *r;
    struct rng rng;
    ats_options options;
    char devices[200], what[600];
    struct coverage *coverage;
    size_t max_range;
    ats_engine *e;
    ats_session *sessions[N_SEQS];
    size_t fed[N_SEQS];
};

static void check_logits(const struct trial *t, const char *how, int seq, size_t begin, size_t n,
                         const float *got) {
    const float *want = t->r->want[seq] + begin * t->r->width;
    double d = test_max_abs_diff(got, want, n * t->r->width);
    if (!(d <= BOUND))
        fail_msg("%s, %s, sequence %d, tokens %zu to %zu: differs by %g", t->what, how, seq, begin,
                 begin + n, d);
}

/* The next n[i] tokens of each sequence, 0: none, together. */
static void feed(struct trial *t, const char *how, const size_t n[N_SEQS]) {
    ats_run runs[N_SEQS];
    float *logits[N_SEQS] = {0};
    int n_runs = 0;
    for (int i = 0; i < N_SEQS; i++) {
        if (!n[i]) continue;
        logits[i] = malloc(n[i] * t->r->width * sizeof(float));
        runs[n_runs++] =
            (ats_run){t->sessions[i], t->r->ids[i] + t->fed[i], n[i], ATS_WANT_ALL, logits[i]};
    }
    if (n_runs) TEST_OK(ats_eval(t->e, runs, n_runs));
    for (int i = 0; i < N_SEQS; i++) {
        if (!n[i]) continue;
        coverage_round(t->coverage, t->e, t->fed[i], t->fed[i] + n[i], n_runs);
        check_logits(t, how, i, t->fed[i], n[i], logits[i]);
        t->fed[i] += n[i];
        free(logits[i]);
    }
}

/* Mostly as many as there may be: rounds are dear on a software device. */
static size_t draw(struct trial *t, size_t most) {
    return most && rng_below(&t->rng, 3) == 0 ? 1 + rng_below(&t->rng, (uint32_t)most) : most;
}

/* Prompts in chunks, up to `end` of each sequence. */
static void feed_chunks(struct trial *t, const size_t end[N_SEQS]) {
    bool whole = rng_below(&t->rng, 4) == 0;
    size_t most = 4 + rng_below(&t->rng, 40);
    while (t->fed[0] < end[0] || t->fed[1] < end[1]) {
        size_t n[N_SEQS];
        for (int i = 0; i < N_SEQS; i++) {
            size_t left = end[i] - t->fed[i];
            n[i] = whole ? left : draw(t, left < most ? left : most);
        }
        feed(t, "in chunks", n);
    }
}

/* In every third trial: another plan, in the middle of everything. */
static void switch_plan(struct trial *t) {
    struct arena arena = {0};
    struct switch_report report;
    plan_devices streaming = 0;
    for (int d = 0; d < t->e->n_devices; d++)
        streaming |= (plan_devices)t->e->devices[d]->streams << d;
    struct plan *plan =
        plan_random(&arena, t->e->model->graph, t->e->n_devices, 1, streaming, &t->rng);
    choose_random_prompts(t->e, &arena, plan, &t->rng);
    TEST_OK(choose_check_plan(t->e, plan));
    TEST_OK(engine_switch(t->e, &arena, plan, &report));
    arena_free(&arena);
    cover(t->coverage, "plans switched");
    coverage_engine(t->coverage, t->e, t->max_range);
}

/* Decoding alone and together, across the border of the first page. */
static void run_trial(struct trial *t) {
    size_t prompt = 62 + rng_below(&t->rng, 5);
    feed_chunks(t, (size_t[]){prompt, 12});
    if (rng_below(&t->rng, 3) == 0) switch_plan(t);
    for (int i = 0; i < 2; i++)
        feed(t, "alone", (size_t[]){i == 0, i == 1});
    while (t->fed[0] < N_LONG)
        feed(t, "decoding", (size_t[]){1, t->fed[1] < N_SHORT && rng_below(&t->rng, 2)});
    size_t short_of[] = {0, N_SHORT - t->fed[1]};
    feed(t, "the rest", short_of);
}

/* ---- devices ---- */

static void draw_cpus(struct trial *t, uint64_t seed) {
    snprintf(t->devices, sizeof t->devices, "%s", seed % 3 == 0 ? "cpu,cpu,cpu" : "cpu,cpu");
}

static void draw_simulated(struct trial *t, uint64_t seed) {
    size_t used = 0;
    for (uint64_t i = 0; i < 2 + seed % 3; i++)
        used += (size_t)snprintf(t->devices + used, sizeof t->devices - used, "%ssim:chaos:%llu",
                                 i ? "," : "", (unsigned long long)seed);
}

/* Each in every way with each other one: in the first of 7 plans nothing is off, of the 6 others a
 * switch is off in 4, for each another 4. (The first and the last are not of ATSINFER_VK_DISABLE:
 * small bindings, the sizes of hardware.) */
static const char *const switches[] = {"range",    "fp16",      "idot", "import",     "xfer",
                                       "hostvram", "budget",    "pin",  "timestamps", "fold",
                                       "two-rows", "four-rows", "shape"};
enum { N_SWITCHES = COUNT_OF(switches), N_ROWS = 7, N_OFF = 4, SMALL_RANGE = 65536 };

static bool is_off(size_t which, uint64_t seed) {
    unsigned row = (unsigned)(seed % N_ROWS), at = 0;
    for (unsigned bits = 0; bits < 1U << (N_ROWS - 1); bits++) {
        int n = 0;
        for (unsigned i = 0; i < N_ROWS - 1; i++)
            n += (int)(bits >> i & 1);
        if (n == N_OFF && at++ == which) return row && bits >> (row - 1) & 1;
    }
    fail_msg("too many switches");
    return false;
}

static void cover_switches(struct coverage *c, uint64_t seed) {
    for (size_t i = 0; i < N_SWITCHES; i++)
        for (size_t j = 0; j < i; j++)
            cover(c, "switches %s %d, %s %d", switches[i], is_off(i, seed), switches[j],
                  is_off(j, seed));
}

static void check_switches(const struct coverage *c) {
    int missing = 0;
    for (size_t i = 0; i < N_SWITCHES; i++)
        for (size_t j = 0; j < i; j++)
            for (int off = 0; off < 4; off++)
                coverage_need(c, &missing, "switches %s %d, %s %d", switches[i], off & 1,
                              switches[j], off >> 1);
    assert_int_equal(missing, 0);
}

static void draw_vulkan(struct trial *t, uint64_t seed) {
    static const char *const lists[] = {"cpu,vulkan", "vulkan,cpu", "cpu,vulkan,cpu",
                                        "vulkan,vulkan", "cpu,vulkan"};
    char off[100] = "";
    snprintf(t->devices, sizeof t->devices, "%s", lists[rng_below(&t->rng, COUNT_OF(lists))]);
    for (size_t i = 1; i < N_SWITCHES - 1; i++)
        if (is_off(i, seed)) {
            strcat(off, *off ? "," : "");
            strcat(off, switches[i]);
        }
    if (is_off(0, seed)) t->max_range = SMALL_RANGE;
    setenv("ATSINFER_VK_DISABLE", off, 1);
    setenv("ATSINFER_VK_MAX_RANGE", t->max_range ? "65536" : "0", 1);
    setenv("ATSINFER_VK_SHAPE", is_off(N_SWITCHES - 1, seed) ? "1" : "0", 1);
    cover_switches(t->coverage, seed);
}

typedef void draw_devices(struct trial *t, uint64_t seed);

static void open_trial(struct trial *t, uint64_t seed) {
    t->options = options_of(t->r);
    t->options.devices = t->devices;
    t->options.plan_seed = seed;
    t->options.n_threads = t->options.n_threads_batch = on_vulkan ? 1 : 1 + (int)(seed % 2);
    t->e = agree_open(&t->options);
    for (int i = 0; i < N_SEQS; i++)
        TEST_OK(ats_session_open(t->e, &t->sessions[i]));
    coverage_engine(t->coverage, t->e, t->max_range);
}

static void check_plan(const struct family *f, const struct reference *r, uint64_t seed,
                       draw_devices *devices, struct coverage *coverage) {
    struct trial t = {.r = r, .coverage = coverage};
    rng_seed(&t.rng, seed);
    devices(&t, seed);
    int n = snprintf(t.what, sizeof t.what, "--family %s --n 1 --seed %llu (%s", f->name,
                     (unsigned long long)seed, t.devices);
    if (on_vulkan)
        snprintf(t.what + n, sizeof t.what - (size_t)n, " without \"%s\", bindings of %zu bytes)",
                 getenv("ATSINFER_VK_DISABLE"), t.max_range);
    else
        snprintf(t.what + n, sizeof t.what - (size_t)n, ")");
    open_trial(&t, seed);
    run_trial(&t);
    for (int i = 0; i < N_SEQS; i++)
        ats_session_close(t.sessions[i]);
    ats_engine_close(t.e);
}

/* A seed says its file too. */
static const char *file_of(const struct family *f, uint64_t seed) {
    uint64_t n = 0;
    while (n < COUNT_OF(f->files) && f->files[n])
        n++;
    return n ? f->files[seed % n] : NULL;
}

/* With one plan a family, families take turns over what a seed decides. */
static uint64_t first_of(const struct family *f) {
    return first_seed + (n_plans == 1 && !only_family ? (uint64_t)(f - families) : 0);
}

static void check_family(const struct family *f, draw_devices *devices, struct coverage *coverage) {
    struct reference references[COUNT_OF(f->files)] = {0};
    int n = f->files[0] ? n_plans : (n_plans + 2) / 3; /* those that are made are dear */
    for (int i = 0; i < n; i++) {
        uint64_t seed = first_of(f) + (uint64_t)i;
        const char *file = file_of(f, seed);
        size_t at = 0;
        while (file && f->files[at] != file)
            at++;
        struct reference *r = file ? &references[at] : made_reference(f->made);
        if (!r->width) reference_open(r, f, file);
        check_plan(f, r, seed, devices, coverage);
    }
    for (size_t i = 0; i < COUNT_OF(references); i++)
        reference_close(&references[i]);
}

/* Few plans need not meet everything. */
static bool must_cover(void) {
    return n_plans >= 12 && !only_family;
}

static void check_plans(draw_devices *devices, const char *gpu) {
    char path[512];
    struct coverage coverage = {0};
    if (!test_shared_path(path, sizeof path, "models/README.md")) skip();
    for (size_t i = 0; i < COUNT_OF(families); i++)
        if (!only_family || strcmp(only_family, families[i].name) == 0)
            check_family(&families[i], devices, &coverage);
    print_message("%zu things met\n", coverage.n);
    if (getenv("ATS_TEST_COVERAGE"))
        for (size_t i = 0; i < coverage.n; i++)
            print_message("%6d %s\n", coverage.items[i].n, coverage.items[i].name);
    if (must_cover()) coverage_check(&coverage, gpu);
    if (must_cover() && on_vulkan) check_switches(&coverage);
    coverage_close(&coverage);
}

static void on_cpus(void **state) {
    (void)state;
    check_plans(draw_cpus, NULL);
}

static void in_any_order_of_events(void **state) {
    (void)state;
    check_plans(draw_simulated, "sim");
}

static void beside_a_vulkan_device(void **state) {
    (void)state;
    check_plans(draw_vulkan, "vulkan");
}

static void made_models_are_what_they_are_said_to_be(void **state) {
    (void)state;
    for (int kind = 0; kind < N_MADE; kind++) {
        const struct reference *r = made_reference((enum made_kind)kind);
        ats_options o = options_of(r);
        ats_engine *e = agree_open(&o);
        float *got = agree_logits(e, r->ids[0], N_LONG, 0);
        double d = test_max_abs_diff(got, r->want[0], N_LONG * r->width);
        print_message("%s: %g from the engine on one CPU\n", made_name(kind), d);
        assert_true(d <= BOUND);
        free(got);
        ats_engine_close(e);
    }
}

/* The default for several devices: blocks split evenly, with several sequences in a round. */
static void even_split_serves_several_sequences(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    ats_options options = agree_options(path);
    options.n_seqs = 2;
    int32_t ids[40];
    float *logits[2][2]; /* one device, two devices; by sequence */
    size_t width = 0;
    for (int way = 0; way < 2; way++) {
        options.devices = way ? "cpu,cpu" : "cpu";
        ats_engine *e = agree_open(&options);
        width = (size_t)agree_vocab(e);
        for (int j = 0; j < 40; j++)
            ids[j] = (j * 53 + 7) % (int)width;
        ats_session *s[2];
        ats_run runs[2];
        for (int j = 0; j < 2; j++) {
            TEST_OK(ats_session_open(e, &s[j]));
            logits[way][j] = calloc(40 * width, sizeof(float));
            runs[j] = (ats_run){s[j], ids + j, 39, ATS_WANT_ALL, logits[way][j]};
        }
        TEST_OK(ats_eval(e, runs, 2));
        for (int j = 0; j < 2; j++)
            ats_session_close(s[j]);
        ats_engine_close(e);
    }
    for (int j = 0; j < 2; j++) {
        assert_true(test_max_abs_diff(logits[0][j], logits[1][j], 39 * width) <= BOUND);
        free(logits[0][j]), free(logits[1][j]);
    }
}

/* ---- the program ---- */

static int n_messages; /* of the validation layer, or of races */

static void count_messages(void *user, int level, const char *text) {
    (void)user, (void)level;
    if (!strstr(text, "vulkan validation") && strncmp(text, "race:", 5) != 0) return;
    n_messages++;
    print_error("%s\n", text);
}

/* 77: there is no device, which is said. */
static int open_vulkan(void) {
    char path[512];
    ats_engine *e;
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) return 77;
    ats_options options = agree_options(path);
    options.devices = "vulkan";
    ats_status status = ats_engine_open(&options, &e);
    if (status != ATS_OK) print_message("skipped: %s\n", ats_error_text());
    if (status == ATS_OK) ats_engine_close(e);
    return status == ATS_UNSUPPORTED ? 77 : status != ATS_OK;
}

static int run_vulkan(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(beside_a_vulkan_device)};
    setenv("LP_NUM_THREADS", "0", 0); /* a dispatch is dear otherwise */
    ats_log_set(count_messages, NULL, 1);
    int status = open_vulkan();
    if (status) return status;
    status = cmocka_run_group_tests(tests, NULL, close_made_references);
    return status ? status : n_messages > 0;
}

int main(int argc, char **argv) {
    for (int i = 1; i < argc; i++) {
        bool more = i + 1 < argc;
        if (strcmp(argv[i], "--vulkan") == 0)
            on_vulkan = true;
        else if (more && strcmp(argv[i], "--n") == 0)
            n_plans = atoi(argv[++i]);
        else if (more && strcmp(argv[i], "--seed") == 0)
            first_seed = strtoull(argv[++i], NULL, 10);
        else if (more && strcmp(argv[i], "--family") == 0)
            only_family = argv[++i];
        else
            return fprintf(stderr, "usage: see the file's first lines\n"), 2;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(made_models_are_what_they_are_said_to_be),
        cmocka_unit_test(on_cpus),
        cmocka_unit_test(in_any_order_of_events),
        cmocka_unit_test(even_split_serves_several_sequences),
    };
    return on_vulkan ? run_vulkan() : cmocka_run_group_tests(tests, NULL, close_made_references);
}
