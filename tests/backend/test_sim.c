/* Simulated devices over a device that only notes what it runs: order, virtual time, chaos, what
 * cannot end; and, over the processor, poison. */
#include "backend/sim/sim.h"

#include <math.h>
#include "rig.h"

/* ---- a device that notes what it runs ---- */

enum { MAX_RUNS = 64 };
static struct {
    int ids[MAX_RUNS]; /* of segments, in the order in which they were run */
    int n;
    int failing; /* segment that cannot be run, 0: none */
} runs;

struct backend_segment {
    int id;
};
static int next_id; /* of the segment being built */

struct fake {
    struct backend base;
    uint64_t value;
};

static void fake_close(struct backend *b) {
    free(CONTAINER_OF(b, struct fake, base));
}
static uint64_t fake_now(struct backend *b) {
    (void)b;
    fail_msg("the wrapped device's clock was asked");
    return 0;
}
static ats_status fake_host_alloc(struct backend *b, size_t bytes, void **out) {
    (void)b;
    *out = malloc(bytes);
    return ATS_OK;
}
static void fake_host_free(struct backend *b, void *p, size_t bytes) {
    (void)b, (void)bytes;
    free(p);
}
static int64_t fake_work_bytes(struct backend *b, const struct backend_limits *limits) {
    (void)b;
    return limits->local_bytes + 100;
}
static ats_status fake_reserve(struct backend *b, const struct backend_limits *limits) {
    (void)b, (void)limits;
    return ATS_OK;
}
static int64_t fake_weight_bytes(struct backend *b, const struct weight_source *source) {
    (void)b, (void)source;
    return 77;
}
static ats_status fake_weight_load(struct backend *b, const struct weight_source *source,
                                   struct backend_weight **out) {
    (void)b, (void)source;
    *out = malloc(1);
    return ATS_OK;
}
static ats_status fake_weights_ready(struct backend *b) {
    (void)b;
    return ATS_OK;
}
static void fake_weight_free(struct backend *b, struct backend_weight *w) {
    (void)b;
    free(w);
}
static ats_status fake_kv_open(struct backend *b, const struct kv_layout *layout,
                               struct backend_kv **out) {
    (void)b, (void)layout;
    *out = malloc(1);
    return ATS_OK;
}
static void fake_kv_close(struct backend *b, struct backend_kv *kv) {
    (void)b;
    free(kv);
}
static void fake_kv_copy_page(struct backend *b, struct backend_kv *kv, int src, int dst) {
    (void)b, (void)kv, (void)src, (void)dst;
}
static ats_status fake_segment_build(struct backend *b, const struct step *steps, int n_steps,
                                     struct backend_segment **out) {
    (void)b, (void)steps, (void)n_steps;
    *out = malloc(sizeof **out);
    (*out)->id = next_id;
    return ATS_OK;
}
static void fake_segment_free(struct backend *b, struct backend_segment *s) {
    (void)b;
    free(s);
}
static ats_status fake_submit(struct backend *b, struct backend_segment *s,
                              const struct round *round, const struct backend_wait *waits,
                              int n_waits, uint64_t value) {
    (void)waits;
    struct fake *f = CONTAINER_OF(b, struct fake, base);
    assert_non_null(round);
    assert_int_equal(n_waits, 0);
    assert_true(value > f->value);
    if (s->id == runs.failing) return fail(ATS_DEVICE, "segment %d burnt", s->id);
    assert_true(runs.n < MAX_RUNS);
    runs.ids[runs.n++] = s->id;
    f->value = value;
    return ATS_OK;
}
static ats_status fake_wait(struct backend *b, uint64_t value) {
    assert_true(CONTAINER_OF(b, struct fake, base)->value >= value);
    return ATS_OK;
}

static const struct backend_vtable fake_vtable = {
    .close = fake_close,
    .now = fake_now,
    .host_alloc = fake_host_alloc,
    .host_free = fake_host_free,
    .work_bytes = fake_work_bytes,
    .reserve = fake_reserve,
    .weight_bytes = fake_weight_bytes,
    .weight_load = fake_weight_load,
    .weights_ready = fake_weights_ready,
    .weight_free = fake_weight_free,
    .kv_open = fake_kv_open,
    .kv_close = fake_kv_close,
    .kv_copy_page = fake_kv_copy_page,
    .segment_build = fake_segment_build,
    .segment_free = fake_segment_free,
    .submit = fake_submit,
    .wait = fake_wait,
};

/* ---- a world of them ---- */

enum { MAX_DEVICES = 4, MAX_SEGMENTS = 16 };
struct world {
    struct backend *d[MAX_DEVICES];
    int n;
    struct backend_segment *s[MAX_SEGMENTS + 1]; /* by id, from 1 */
    int device[MAX_SEGMENTS + 1];
};

static const struct round one_token = {.n_tokens = 1};

static struct backend *open_one(const struct sim_options *o, struct backend *peer) {
    struct fake *f = calloc(1, sizeof *f);
    f->base = (struct backend){.fn = &fake_vtable, .name = "fake", .driven = true};
    return sim_backend_open(&f->base, o, peer);
}

static void world_open(struct world *w, int n, const struct sim_options *o) {
    memset(w, 0, sizeof *w);
    memset(&runs, 0, sizeof runs);
    for (w->n = 0; w->n < n; w->n++)
        w->d[w->n] = open_one(&o[w->n], w->n ? w->d[0] : NULL);
}

static void world_close(struct world *w) {
    for (int i = 1; i <= MAX_SEGMENTS; i++)
        if (w->s[i]) w->d[w->device[i]]->fn->segment_free(w->d[w->device[i]], w->s[i]);
    for (int i = 0; i < w->n; i++)
        backend_close(w->d[i]);
}

/* A segment of these steps; ids count from 1. */
static void build(struct world *w, int id, int device, const struct step *steps, int n_steps) {
    struct backend *b = w->d[device];
    next_id = id;
    w->device[id] = device;
    TEST_OK(b->fn->segment_build(b, steps, n_steps, &w->s[id]));
}

/* Copies: what counts is their number. */
static void build_steps(struct world *w, int id, int device, int n_steps) {
    struct step steps[8];
    for (int i = 0; i < 8; i++)
        steps[i] = (struct step){.kind = STEP_COPY};
    build(w, id, device, steps, n_steps);
}

static ats_status submit(struct world *w, int id, uint64_t value, int wait_device,
                         uint64_t wait_value) {
    struct backend *b = w->d[w->device[id]];
    struct backend_wait wait = {.backend = w->d[max_int(wait_device, 0)], .value = wait_value};
    return b->fn->submit(b, w->s[id], &one_token, &wait, wait_device >= 0, value);
}

static ats_status wait(struct world *w, int device, uint64_t value) {
    return w->d[device]->fn->wait(w->d[device], value);
}

static uint64_t now(const struct world *w) {
    uint64_t t = w->d[0]->fn->now(w->d[0]);
    for (int i = 1; i < w->n; i++)
        assert_int_equal(w->d[i]->fn->now(w->d[i]), t);
    return t;
}

static void expect_runs(const int *ids, int n) {
    assert_int_equal(runs.n, n);
    assert_memory_equal(runs.ids, ids, (size_t)n * sizeof *ids);
}

/* ---- virtual time ---- */

static const struct sim_options two_rates[] = {
    {.rates = {.bytes_per_ns = 10, .launch_ns = 100, .step_ns = 10}},
    {.rates = {.bytes_per_ns = 40, .launch_ns = 500, .step_ns = 10}},
};

static void nothing_runs_before_it_is_waited_for(void **state) {
    (void)state;
    struct world w;
    world_open(&w, 1, two_rates);
    build_steps(&w, 1, 0, 1);
    build_steps(&w, 2, 0, 2);
    TEST_OK(submit(&w, 1, 3, -1, 0));
    TEST_OK(submit(&w, 2, 7, -1, 0));
    assert_int_equal(runs.n, 0);
    assert_int_equal(now(&w), 0);
    TEST_OK(wait(&w, 0, 2)); /* reached by 3 */
    expect_runs((int[]){1}, 1);
    assert_int_equal(now(&w), 110);
    TEST_OK(wait(&w, 0, 7));
    expect_runs((int[]){1, 2}, 2);
    assert_int_equal(now(&w), 110 + 120);
    TEST_OK(wait(&w, 0, 5)); /* long ago */
    assert_int_equal(now(&w), 230);
    world_close(&w);
}

/* Device 0: 1 [0, 110], 2 [110, 240] and, after 4, 3 [560, 710]; device 1: 4 [0, 560], and after 2,
 * which is long done, 5 [560, 1100]. */
static void time_is_that_of_the_longest_chain(void **state) {
    (void)state;
    struct world w;
    world_open(&w, 2, two_rates);
    for (int i = 1; i <= 3; i++)
        build_steps(&w, i, 0, i == 1 ? 1 : i == 2 ? 3 : 5);
    build_steps(&w, 4, 1, 6);
    build_steps(&w, 5, 1, 4);
    for (int d = 0; d < 2; d++)
        w.d[d]->fn->set_timed(w.d[d], true);
    TEST_OK(submit(&w, 4, 1, -1, 0));
    TEST_OK(submit(&w, 5, 2, 0, 2));
    TEST_OK(submit(&w, 1, 1, -1, 0));
    TEST_OK(submit(&w, 2, 2, -1, 0));
    TEST_OK(submit(&w, 3, 3, 1, 1));
    TEST_OK(wait(&w, 0, 2));
    assert_int_equal(now(&w), 240);
    expect_runs((int[]){1, 2}, 2);
    TEST_OK(wait(&w, 0, 3));
    assert_int_equal(now(&w), 710);
    expect_runs((int[]){1, 2, 4, 3}, 4);
    TEST_OK(wait(&w, 1, 2));
    assert_int_equal(now(&w), 1100);
    expect_runs((int[]){1, 2, 4, 3, 5}, 5);
    static const uint64_t ran[5][2] = {{0, 110}, {110, 240}, {560, 710}, {0, 560}, {560, 1100}};
    for (int i = 1; i <= 5; i++) {
        struct backend_times t;
        assert_true(w.d[0]->fn->segment_times(w.d[w.device[i]], w.s[i], &t));
        assert_int_equal(t.begin_ns, ran[i - 1][0]);
        assert_int_equal(t.end_ns, ran[i - 1][1]);
    }
    TEST_OK(submit(&w, 1, 4, -1, 0)); /* a later round begins when it is submitted */
    TEST_OK(wait(&w, 0, 4));
    assert_int_equal(now(&w), 1210);
    world_close(&w);
}

static void what_is_read_takes_time(void **state) {
    (void)state;
    struct world w;
    struct backend_weight *weight[2];
    struct backend_kv *kv;
    world_open(&w, 2, two_rates);
    for (int i = 0; i < 2; i++) {
        struct weight_source source = {.dtype = DTYPE_Q8_0, .n_rows = 100, .n_cols = 64};
        assert_int_equal(w.d[i]->fn->weight_bytes(w.d[i], &source), 77);
        TEST_OK(w.d[i]->fn->weight_load(w.d[i], &source, &weight[i])); /* 6800 bytes */
    }
    struct kv_layout layout = {KV_F16, KV_F32, 2, 8, 4}; /* 96 bytes a position */
    TEST_OK(w.d[1]->fn->kv_open(w.d[1], &layout, &kv));
    struct graph_op product = {.kind = OP_MATMUL}, gather = {.kind = OP_EMBED},
                    attention = {.kind = OP_ATTENTION};
    struct step steps[] = {{.kind = STEP_OP, .op = &product, .weight = weight[0]},
                           {.kind = STEP_OP, .op = &gather, .weight = weight[0]}};
    build(&w, 1, 0, steps, 2);
    steps[0].weight = weight[1];
    steps[1] = (struct step){.kind = STEP_OP, .op = &attention, .kv = kv};
    build(&w, 2, 1, steps, 2);
    TEST_OK(submit(&w, 1, 1, -1, 0));
    TEST_OK(wait(&w, 0, 1));
    assert_int_equal(now(&w), 120 + 680);
    struct round_run parts[] = {{.position = 90, .n_tokens = 4}, {.position = 0, .n_tokens = 6}};
    struct round round = {.n_tokens = 10, .runs = parts, .n_runs = 2};
    TEST_OK(w.d[1]->fn->submit(w.d[1], w.s[2], &round, NULL, 0, 1));
    TEST_OK(wait(&w, 1, 1));
    assert_int_equal(now(&w), 800 + 520 + (6800 + 9600) / 40);
    w.d[1]->fn->kv_close(w.d[1], kv);
    for (int i = 0; i < 2; i++)
        w.d[i]->fn->weight_free(w.d[i], weight[i]);
    world_close(&w);
}

/* Two of eight experts a token, four of the eight here. */
static void of_experts_those_that_are_chosen_take_time(void **state) {
    (void)state;
    static const int n_tokens[] = {1, 3, 4, 9};
    static const int64_t bytes[] = {3 * 6800, 3 * 3 * 6800, 4 * 3 * 6800, 4 * 3 * 6800};
    struct world w;
    world_open(&w, 1, two_rates);
    struct weight_source source = {
        .dtype = DTYPE_Q8_0, .n_rows = 100, .n_cols = 64, .n_experts = 4};
    struct graph_op op = {.kind = OP_EXPERTS};
    struct step step = {.kind = STEP_OP, .op = &op};
    op.p.experts.n_experts = 8;
    op.p.experts.n_used = 2;
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        TEST_OK(w.d[0]->fn->weight_load(w.d[0], &source, &step.experts[i]));
    build(&w, 1, 0, &step, 1);
    for (int i = 0; i < 4; i++) {
        const struct round round = {.n_tokens = n_tokens[i]};
        uint64_t before = now(&w), value = (uint64_t)i + 1;
        TEST_OK(w.d[0]->fn->submit(w.d[0], w.s[1], &round, NULL, 0, value));
        TEST_OK(wait(&w, 0, value));
        assert_int_equal(now(&w) - before, 110 + bytes[i] / 10);
    }
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        w.d[0]->fn->weight_free(w.d[0], step.experts[i]);
    world_close(&w);
}

/* ---- what cannot end ---- */

static void a_wait_that_nothing_fulfils_is_an_error(void **state) {
    (void)state;
    struct world w;
    for (int way = 0; way < 4; way++) {
        world_open(&w, 2, two_rates);
        build_steps(&w, 1, 0, 1);
        build_steps(&w, 2, 1, 1);
        TEST_OK(submit(&w, 1, 1, way == 1 ? 1 : -1, 2));
        if (way == 2) TEST_OK(submit(&w, 1, 2, 1, 1)); /* each waits for the other */
        if (way == 2) TEST_OK(submit(&w, 2, 1, 0, 2));
        if (way == 3) TEST_OK(submit(&w, 1, 2, 0, 2)); /* for itself */
        TEST_STATUS(wait(&w, way != 3, 2), ATS_DEVICE);
        TEST_ERROR_HAS("deadlock");
        TEST_ERROR_HAS(way == 0   ? "device 1 stands at 0 and nothing is submitted"
                       : way == 1 ? "device 0 stands before 1 and waits for 2 of device 1"
                       : way == 2 ? "device 0 stands before 2 and waits for 1 of device 1"
                                  : "device 0 stands before 2 and waits for 2 of device 0");
        TEST_STATUS(submit(&w, 2, 9, -1, 0), ATS_DEVICE); /* and so is all that follows */
        TEST_ERROR_HAS("deadlock");
        TEST_STATUS(wait(&w, 0, 9), ATS_DEVICE);
        TEST_ERROR_HAS("deadlock");
        world_close(&w);
    }
}

static void worlds_do_not_wait_for_each_other(void **state) {
    (void)state;
    struct world w, other;
    world_open(&other, 1, two_rates);
    world_open(&w, 1, two_rates);
    build_steps(&w, 1, 0, 1);
    struct backend_wait wait_other = {.backend = other.d[0], .value = 1};
    TEST_STATUS(w.d[0]->fn->submit(w.d[0], w.s[1], &one_token, &wait_other, 1, 1), ATS_DEVICE);
    TEST_ERROR_HAS("those of its world");
    build_steps(&other, 2, 0, 1);
    TEST_OK(submit(&other, 2, 1, -1, 0)); /* the other world goes on, with a clock of its own */
    TEST_OK(wait(&other, 0, 1));
    assert_int_equal(now(&other), 110);
    assert_int_equal(now(&w), 0);
    world_close(&w);
    world_close(&other);
}

static void what_fails_below_stops_the_world(void **state) {
    (void)state;
    struct world w;
    world_open(&w, 2, two_rates);
    runs.failing = 2;
    for (int i = 1; i <= 3; i++)
        build_steps(&w, i, i == 3, 1);
    TEST_OK(submit(&w, 1, 1, -1, 0));
    TEST_OK(submit(&w, 2, 2, -1, 0));
    TEST_OK(submit(&w, 3, 1, 0, 2));
    TEST_STATUS(wait(&w, 1, 1), ATS_DEVICE);
    TEST_ERROR_HAS("segment 2 burnt");
    expect_runs((int[]){1}, 1);
    TEST_OK(wait(&w, 0, 1)); /* this much was done */
    TEST_STATUS(wait(&w, 0, 2), ATS_DEVICE);
    TEST_ERROR_HAS("segment 2 burnt");
    world_close(&w);
}

static void closing_amid_a_round_stops_the_others(void **state) {
    (void)state;
    struct world w;
    world_open(&w, 2, two_rates);
    build_steps(&w, 1, 0, 1);
    TEST_OK(submit(&w, 1, 1, 1, 1));
    backend_close(w.d[1]);
    w.n = 1;
    TEST_STATUS(wait(&w, 0, 1), ATS_DEVICE);
    TEST_ERROR_HAS("closed amid a round");
    world_close(&w);
}

/* ---- chaos ---- */

enum { ROUNDS = 4000 };
/* Three segments on each of two devices: 1 2 3 and 4 5 6. An order as a number of six digits. */
static int draw_order(struct world *w, int round, bool waits) {
    runs.n = 0;
    uint64_t base = (uint64_t)round * 3;
    for (int i = 1; i <= 6; i++) {
        bool waiting = waits && (i == 3 || i == 5); /* 5 waits for 1, 3 for 5 */
        TEST_OK(submit(w, i, base + (uint64_t)(i <= 3 ? i : i - 3), waiting ? i == 3 : -1,
                       base + (i == 3 ? 2 : 1)));
    }
    for (int d = 0; d < 2; d++)
        TEST_OK(wait(w, d, base + 3));
    assert_int_equal(runs.n, 6);
    int order = 0;
    for (int i = 0; i < 6; i++)
        order = 10 * order + runs.ids[i];
    return order;
}

static struct sim_options chaos_options(uint64_t seed) {
    return (struct sim_options){.rates = two_rates[0].rates, .chaos = true, .seed = seed};
}

static void chaos_open(struct world *w, uint64_t seed) {
    const struct sim_options o[2] = {chaos_options(seed), chaos_options(seed)};
    world_open(w, 2, o);
    for (int i = 1; i <= 6; i++)
        build_steps(w, i, i > 3, 1);
}

static int place_of(int order, int id) {
    int place = 6;
    for (; order % 10 != id; order /= 10)
        place--;
    return place;
}

static bool is_legal(int order, bool waits) {
    for (int i = 1; i <= 5; i++)
        if (i != 3 && place_of(order, i) > place_of(order, i + 1)) return false;
    return !waits ||
           (place_of(order, 1) < place_of(order, 5) && place_of(order, 5) < place_of(order, 3));
}

/* How many orders there are with these waits. */
static int count_legal(bool waits, int order, int used) {
    if (used == 0x3F) return is_legal(order, waits);
    int n = 0;
    for (int i = 0; i < 6; i++)
        if (!(used >> i & 1)) n += count_legal(waits, 10 * order + i + 1, used | 1 << i);
    return n;
}

/* Not one order that waits forbid, and each that they allow. */
static void chaos_draws_every_order_that_waits_allow(void **state) {
    (void)state;
    for (int waits = 0; waits < 2; waits++) {
        struct world w;
        int seen[ROUNDS], n_seen = 0;
        chaos_open(&w, 5);
        for (int i = 0; i < ROUNDS; i++) {
            int order = draw_order(&w, i, waits), j = 0;
            if (!is_legal(order, waits)) fail_msg("order %d is forbidden", order);
            while (j < n_seen && seen[j] != order)
                j++;
            if (j == n_seen) seen[n_seen++] = order;
        }
        assert_int_equal(n_seen, count_legal(waits, 0, 0));
        world_close(&w);
    }
    assert_int_equal(count_legal(false, 0, 0), 20);
}

static void a_seed_gives_the_same_orders_again(void **state) {
    (void)state;
    int orders[3][40];
    for (int way = 0; way < 3; way++) {
        struct world w;
        chaos_open(&w, way == 2 ? 8 : 7);
        for (int i = 0; i < 40; i++)
            orders[way][i] = draw_order(&w, i, false);
        world_close(&w);
    }
    assert_memory_equal(orders[0], orders[1], sizeof orders[0]);
    assert_memory_not_equal(orders[0], orders[2], sizeof orders[0]);
}

/* ---- poison ---- */

enum { WIDTH = 24, N_FLOATS = 96, PIECE = 16 }; /* an exchange smaller than the local memory */

static struct backend *open_reserved(const char *name, struct backend *peer, float *exchange) {
    struct backend_options o = rig_options(1, "ref");
    struct backend *b;
    o.peer = peer;
    TEST_OK(backend_open(name, &o, &b));
    struct backend_limits limits = {.n_tokens = 1,
                                    .n_rows = 1,
                                    .n_ctx = 64,
                                    .local_bytes = 4 * N_FLOATS,
                                    .exchange = exchange,
                                    .exchange_bytes = 4 * 2 * PIECE,
                                    .max_cols = WIDTH,
                                    .max_heads = 1,
                                    .max_head_dim = 8};
    TEST_OK(b->fn->reserve(b, &limits));
    return b;
}

/* Copies PIECE floats between the exchange at 0 or PIECE and the device's memory. */
static struct backend_segment *copy_segment(struct backend *b, struct step *step, bool in,
                                            int exchange_at, int local_at) {
    struct span exchange = {SPACE_EXCHANGE, 4 * exchange_at, PIECE, 0},
                local = {SPACE_LOCAL, 4 * local_at, PIECE, 0};
    struct backend_segment *s;
    *step = (struct step){.kind = STEP_COPY, .n_in = 1, .end = PIECE};
    step->in[0] = in ? exchange : local;
    step->out = in ? local : exchange;
    TEST_OK(b->fn->segment_build(b, step, 1, &s));
    return s;
}

static void expect_all(const float *x, bool nan, float value) {
    for (int i = 0; i < PIECE; i++)
        if (nan ? !isnan(x[i]) : x[i] != value) fail_msg("element %d is %g", i, (double)x[i]);
}

static void run_alone(struct backend *b, struct backend_segment *s, uint64_t value) {
    const struct round round = {.n_tokens = 1};
    TEST_OK(b->fn->submit(b, s, &round, NULL, 0, value));
    TEST_OK(b->fn->wait(b, value));
}

/* With chaos what a round left is gone in the next, in the exchange and in every device; inside a
 * round it stays. */
static void chaos_spoils_what_a_round_left(void **state) {
    (void)state;
    static const char *const names[] = {"sim", "sim:chaos"};
    for (int chaos = 0; chaos < 2; chaos++) {
        _Alignas(64) float exchange[2 * PIECE];
        struct backend *b[2] = {open_reserved(names[chaos], NULL, exchange), NULL};
        b[1] = open_reserved(names[chaos], b[0], exchange);
        const struct round round = {.n_tokens = 1};
        struct step steps[4];
        for (int at = 0; at + PIECE <= N_FLOATS; at += PIECE) { /* all of the local memory */
            struct backend_segment *out = copy_segment(b[1], &steps[0], false, PIECE, at);
            struct backend_segment *in = copy_segment(b[1], &steps[1], true, 0, at);
            uint64_t value = (uint64_t)at + 1;
            TEST_OK(b[1]->fn->submit(b[1], in, &round, NULL, 0, value));
            for (int i = 0; i < 2 * PIECE; i++)
                exchange[i] = 3; /* as if another device of the round had written it */
            TEST_OK(b[1]->fn->submit(b[1], out, &round, NULL, 0, value + 1));
            TEST_OK(b[1]->fn->wait(b[1], value + 1));
            expect_all(exchange + PIECE, false, 3); /* through the device's memory */
            run_alone(b[1], out, value + 2);        /* a round that finds what stood there */
            expect_all(exchange, chaos, 3);
            expect_all(exchange + PIECE, chaos, 3);
            b[1]->fn->segment_free(b[1], in);
            b[1]->fn->segment_free(b[1], out);
        }
        for (int i = 0; i < 2; i++)
            backend_close(b[i]);
    }
}

/* ---- names ---- */

static void names_choose_the_kind(void **state) {
    (void)state;
    struct sim_options o;
    TEST_OK(sim_options_parse("sim", &o));
    assert_false(o.chaos);
    int host = o.rates.bytes_per_ns;
    TEST_OK(sim_options_parse("sim:gpu", &o));
    assert_false(o.chaos);
    assert_true(o.rates.bytes_per_ns > host);
    assert_int_equal(o.memory_bytes, INT64_C(8) << 30);
    TEST_OK(sim_options_parse("sim:gpu:64", &o));
    assert_int_equal(o.memory_bytes, 64 << 20);
    TEST_OK(sim_options_parse("sim:chaos", &o));
    assert_int_equal(o.memory_bytes, 0);
    assert_true(o.chaos);
    TEST_OK(sim_options_parse("sim:chaos:18446744073709551615", &o));
    assert_true(o.chaos && o.seed == UINT64_MAX);
    static const char *const unknown[] = {"sim:", "sim:cp", "sim:cpus", "sim:cpu:3", "sim:x:1"};
    for (size_t i = 0; i < COUNT_OF(unknown); i++) {
        TEST_STATUS(sim_options_parse(unknown[i], &o), ATS_UNSUPPORTED);
        TEST_ERROR_HAS("sim:chaos[:SEED]");
    }
    static const char *const bad[][2] = {
        {"sim:chaos:", "seed"},   {"sim:chaos:-1", "seed"},
        {"sim:chaos:1x", "seed"}, {"sim:chaos:1:2", "seed"},
        {"sim:gpu:0", "MiB"},     {"sim:chaos:18446744073709551616", "seed"},
        {"sim:gpu:x", "MiB"},     {"sim:gpu:16777217", "MiB"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        TEST_STATUS(sim_options_parse(bad[i][0], &o), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS(bad[i][1]);
    }
}

static void simulated_and_real_devices_do_not_mix(void **state) {
    (void)state;
    static const char *const names[2][2] = {{"cpu", "sim"}, {"sim:chaos", "cpu"}};
    for (int i = 0; i < 2; i++) {
        struct backend_options o = rig_options(1, "ref");
        struct backend *other;
        TEST_OK(backend_open(names[i][0], &o, &o.peer));
        assert_int_equal(o.peer->driven, i == 0);
        TEST_STATUS(backend_open(names[i][1], &o, &other), ATS_UNSUPPORTED);
        TEST_ERROR_HAS("all devices are simulated or none");
        assert_null(other);
        backend_close(o.peer);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(nothing_runs_before_it_is_waited_for),
        cmocka_unit_test(time_is_that_of_the_longest_chain),
        cmocka_unit_test(what_is_read_takes_time),
        cmocka_unit_test(of_experts_those_that_are_chosen_take_time),
        cmocka_unit_test(a_wait_that_nothing_fulfils_is_an_error),
        cmocka_unit_test(worlds_do_not_wait_for_each_other),
        cmocka_unit_test(what_fails_below_stops_the_world),
        cmocka_unit_test(closing_amid_a_round_stops_the_others),
        cmocka_unit_test(chaos_draws_every_order_that_waits_allow),
        cmocka_unit_test(a_seed_gives_the_same_orders_again),
        cmocka_unit_test(chaos_spoils_what_a_round_left),
        cmocka_unit_test(names_choose_the_kind),
        cmocka_unit_test(simulated_and_real_devices_do_not_mix),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
