/* The CPU as a device: one timeline, several of them side by side, fusion and threads that change
 * no bit, pages, and what is refused. Built once more for a Vulkan device, alone and beside CPUs.
 */
#include "rig.h"

#include "backend/kv_layout.h"

#ifdef DEVICE_IS_VULKAN
#define DEVICE "vulkan"
#else
#define DEVICE "cpu"
#endif

/* ---- a layer: what fusion folds together ---- */

enum { EMBD = 96, FF = 160, HEADS = 6, KV_HEADS = 3, DIM = 16 };
enum { X, NORMED, Q, K, V, Q2, K2, ATT, AFTER, NORMED2, GATE, UP, ACT, END, N_LAYER = 18 };

struct layer {
    struct graph_op ops[N_LAYER];
    struct step steps[N_LAYER];
    int n;
    struct rig_matrix m[8];
    struct backend_weight *w[9];
    struct rope_params rope;
    float inv_freq[DIM / 2];
};

static struct step *add(struct layer *l, enum op_kind kind, int in, int out, int width,
                        int n_readers) {
    struct step *s = &l->steps[l->n];
    l->ops[l->n].kind = kind;
    *s = (struct step){
        .kind = STEP_OP, .op = &l->ops[l->n], .n_in = 1, .end = width, .n_readers = n_readers};
    s->in[0] = rig_span(SPACE_LOCAL, in, 0);
    s->out = rig_span(SPACE_LOCAL, out, 0);
    l->n++;
    return s;
}

static void add_norm(struct layer *l, int in, int out, int width, struct backend_weight *w,
                     int n_readers) {
    struct step *s = add(l, OP_NORM, in, out, width, n_readers);
    l->ops[l->n - 1].p.norm.group = width;
    l->ops[l->n - 1].p.norm.eps = 1e-5F;
    s->weight = w;
}

static void add_matmul(struct layer *l, int in, int out, const struct rig_matrix *m,
                       struct backend_weight *w, enum math math, int n_readers) {
    struct step *s = add(l, OP_MATMUL, in, out, m->n_rows, n_readers);
    l->ops[l->n - 1].p.matmul.math = math;
    s->in_end = m->n_cols;
    s->weight = w;
}

static void add_copy(struct layer *l, struct span in, struct span out, int n_readers) {
    struct step *s = &l->steps[l->n++];
    *s = (struct step){.kind = STEP_COPY, .n_in = 1, .end = EMBD, .n_readers = n_readers};
    s->in[0] = in;
    s->out = out;
}

static void add_sum(struct layer *l, int a, int b, int out, int n_readers) {
    struct step *s = &l->steps[l->n++];
    *s = (struct step){.kind = STEP_SUM, .n_in = 2, .end = EMBD, .n_readers = n_readers};
    s->in[0] = rig_span(SPACE_LOCAL, a, 0);
    s->in[1] = rig_span(SPACE_LOCAL, b, 0);
    s->out = rig_span(SPACE_LOCAL, out, 0);
}

static void layer_weights(struct layer *l, struct rig *r, enum dtype dtype) {
    static const int shapes[7][2] = {{HEADS * DIM, EMBD},
                                     {KV_HEADS * DIM, EMBD},
                                     {KV_HEADS * DIM, EMBD},
                                     {EMBD, HEADS * DIM},
                                     {FF, EMBD},
                                     {FF, EMBD},
                                     {EMBD, FF}};
    for (int i = 0; i < 7; i++) {
        l->m[i] = rig_matrix(&r->rng, dtype, shapes[i][0], shapes[i][1]);
        l->w[i] = rig_load(r, &l->m[i], 0, shapes[i][0], 0, shapes[i][1]);
    }
    l->m[7] = rig_matrix(&r->rng, DTYPE_F32, 2, EMBD);
    l->w[7] = rig_load(r, &l->m[7], 0, 1, 0, EMBD);
    l->w[8] = rig_load(r, &l->m[7], 1, 2, 0, EMBD);
}

/* From exchange buffer 0 to exchange buffer 1. Memory is used again as a program would. */
static void layer_open(struct layer *l, struct rig *r, enum dtype dtype, struct backend_kv *kv) {
    memset(l, 0, sizeof *l);
    layer_weights(l, r, dtype);
    enum math math = dtype == DTYPE_F32 ? MATH_F32 : MATH_Q8;
    for (int i = 0; i < DIM / 2; i++)
        l->inv_freq[i] = 1 / (float)(i + 1);
    l->rope = (struct rope_params){DIM, DIM, true, l->inv_freq, 1};
    add_copy(l, rig_span(SPACE_EXCHANGE, 0, 0), rig_span(SPACE_LOCAL, X, 0), 2);
    add_norm(l, X, NORMED, EMBD, l->w[7], 3);
    add_matmul(l, NORMED, Q, &l->m[0], l->w[0], math, 1);
    add_matmul(l, NORMED, K, &l->m[1], l->w[1], math, 1);
    add_matmul(l, NORMED, V, &l->m[2], l->w[2], math, 1);
    add(l, OP_ROPE, Q, Q2, HEADS * DIM, 1);
    l->ops[l->n - 1].p.rope = l->rope;
    add(l, OP_ROPE, K, K2, KV_HEADS * DIM, 1);
    l->ops[l->n - 1].p.rope = l->rope;
    struct step *s = add(l, OP_ATTENTION, Q2, ATT, HEADS * DIM, 1);
    l->ops[l->n - 1].p.attention = (struct attention_params){
        .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_dim = DIM, .scale = 0.25F};
    s->in[1] = rig_span(SPACE_LOCAL, K2, 0);
    s->in[2] = rig_span(SPACE_LOCAL, V, 0);
    s->n_in = 3;
    s->head_end = KV_HEADS;
    s->kv = kv;
    add_matmul(l, ATT, Q, &l->m[3], l->w[3], math, 1);
    add_sum(l, X, Q, AFTER, 2);
    add_norm(l, AFTER, NORMED2, EMBD, l->w[8], 2);
    add_matmul(l, NORMED2, GATE, &l->m[4], l->w[4], math, 1);
    add_matmul(l, NORMED2, UP, &l->m[5], l->w[5], math, 1);
    s = add(l, OP_GATED, GATE, ACT, FF, 1);
    s->in[1] = rig_span(SPACE_LOCAL, UP, 0);
    s->n_in = 2;
    add_matmul(l, ACT, K, &l->m[6], l->w[6], math, 1);
    add_sum(l, AFTER, K, END, 1);
    add_copy(l, rig_span(SPACE_LOCAL, END, 0), rig_span(SPACE_EXCHANGE, 1, 0), 0);
    assert_true(l->n <= N_LAYER);
}

static void layer_close(struct layer *l, struct rig *r) {
    for (int i = 0; i < 9; i++)
        r->b->fn->weight_free(r->b, l->w[i]);
    for (int i = 0; i < 8; i++)
        rig_matrix_free(&l->m[i]);
}

/* The layer's output for rounds of these lengths, one after the other in one sequence: (sum of
 * lengths, EMBD), owned. The same numbers whatever the options. */
static float *run_layer(const struct backend_options *options, enum dtype dtype, const int *lengths,
                        int n_rounds) {
    struct rig r;
    struct layer l;
    struct rig_round round;
    struct backend_kv *kv;
    rig_open_on(&r, DEVICE, options);
    struct kv_layout layout = {KV_F16, KV_F16, KV_HEADS, DIM, RIG_PAGES};
    TEST_OK(r.b->fn->kv_open(r.b, &layout, &kv));
    layer_open(&l, &r, dtype, kv);
    float *out = malloc(sizeof *out * RIG_CTX * EMBD);
    int position = 0;
    for (int i = 0; i < n_rounds; i++) {
        rig_round_open(&round, 1, &lengths[i], &position, 1);
        for (int j = 0; j < RIG_CTX / 64; j++)
            round.pages[0][j] = j;
        rig_fill(&r, 0, lengths[i], EMBD);
        rig_run(&r, l.steps, l.n, &round.round);
        for (int j = 0; j < lengths[i]; j++)
            memcpy(out + (int64_t)(position + j) * EMBD, rig_line(&r, 1, j), EMBD * sizeof *out);
        position += lengths[i];
    }
    layer_close(&l, &r);
    r.b->fn->kv_close(r.b, kv);
    rig_close(&r);
    return out;
}

#ifndef DEVICE_IS_VULKAN
static void fusion_and_threads_change_no_bit(void **state) {
    (void)state;
    static const enum dtype types[] = {DTYPE_F32, DTYPE_Q8_0};
    static const int lengths[] = {1, 8, 9, 70, 1, 5, 64};
    static const char *const isas[] = {"ref", "native"};
    size_t bytes = 0;
    for (size_t i = 0; i < COUNT_OF(lengths); i++)
        bytes += (size_t)lengths[i] * EMBD * sizeof(float);
    for (size_t i = 0; i < COUNT_OF(types) * COUNT_OF(isas); i++) {
        enum dtype dtype = types[i / 2];
        struct backend_options o = rig_options(1, isas[i % 2]);
        o.no_fusion = true;
        float *want = run_layer(&o, dtype, lengths, COUNT_OF(lengths));
        for (int way = 0; way < 6; way++) {
            o = rig_options(1 + way % 3, isas[i % 2]);
            o.no_fusion = way >= 3;
            float *got = run_layer(&o, dtype, lengths, COUNT_OF(lengths));
            if (memcmp(got, want, bytes) != 0)
                fail_msg("%s, %s, %d threads%s: other bits", dtype_name(dtype), isas[i % 2],
                         o.n_threads, o.no_fusion ? "" : ", fused");
            free(got);
        }
        free(want);
    }
}

#endif

/* The same tokens in other rounds, of up to 8 tokens and more. */
static void check_cuts(enum dtype dtype) {
    static const int ways[3][4] = {{24, 0}, {8, 8, 8}, {1, 3, 20}};
    struct backend_options o = rig_options(2, "native");
    float *want = NULL;
    for (int i = 0; i < 3; i++) {
        int n = 0;
        while (n < 4 && ways[i][n] > 0)
            n++;
        float *got = run_layer(&o, dtype, ways[i], n);
        if (want) assert_memory_equal(got, want, 24 * EMBD * sizeof *got);
        if (want)
            free(got);
        else
            want = got;
    }
    free(want);
}

static void the_cut_into_rounds_changes_no_bit(void **state) {
    (void)state;
    check_cuts(DTYPE_Q8_0);
#ifdef DEVICE_IS_VULKAN
    setenv("ATSINFER_VK_SHAPE", "1", 1); /* dispatches as on hardware, with large tiles */
    check_cuts(DTYPE_Q8_0);
    check_cuts(DTYPE_Q4_1);
    for (enum dtype type = DTYPE_F32; type <= DTYPE_BF16; type++)
        check_cuts(type);
    setenv("ATSINFER_VK_SHAPE", "0", 1);
#endif
}

/* ---- pages ---- */

static void a_copied_page_serves_as_the_first(void **state) {
    (void)state;
    for (enum kv_type type = KV_F32; type < KV_TYPE_COUNT; type++) {
        struct rig r;
        struct rig_round round;
        struct backend_options o = rig_options(2, "native");
        rig_open_on(&r, DEVICE, &o);
        struct graph_op op = {
            .kind = OP_ATTENTION,
            .p.attention = {.n_heads = 4, .n_kv_heads = 2, .head_dim = 32, .scale = 0.2F}};
        struct step s = {.kind = STEP_OP, .op = &op, .n_in = 3, .end = 128, .head_end = 2};
        for (int i = 0; i < 3; i++)
            s.in[i] = rig_span(SPACE_EXCHANGE, 2 + i, 0);
        s.out = rig_span(SPACE_EXCHANGE, 1, 0);
        struct kv_layout layout = {type, type == KV_F32 ? KV_F16 : type, 2, 32, RIG_PAGES};
        TEST_OK(r.b->fn->kv_open(r.b, &layout, &s.kv));
        for (int i = 0; i < 3; i++)
            rig_fill(&r, 2 + i, 65, 128);
        rig_round_plain(&round, 64, 1);
        round.pages[0][0] = 3;
        rig_run(&r, &s, 1, &round.round);
        float out[2][128];
        for (int way = 0; way < 2; way++) { /* token 64 on page 3, then on its copy */
            if (way) r.b->fn->kv_copy_page(r.b, s.kv, 3, 39);
            rig_round_open(&round, 1, (int[]){1}, (int[]){64}, 1);
            round.pages[0][0] = way ? 39 : 3;
            round.pages[0][1] = 7 + way;
            rig_run(&r, &s, 1, &round.round);
            memcpy(out[way], rig_line(&r, 1, 0), sizeof out[way]);
        }
        assert_memory_equal(out[0], out[1], sizeof out[0]);
        r.b->fn->kv_close(r.b, s.kv);
        rig_close(&r);
    }
}

/* ---- timelines ---- */

/* Hop i adds buffer 15 to buffer i % 2 and puts it into the other one: whoever runs early reads an
 * old number. */
static struct step hop_step(int i) {
    struct step s = {.kind = STEP_SUM, .n_in = 2, .end = 64};
    s.in[0] = rig_span(SPACE_EXCHANGE, i % 2, 0);
    s.in[1] = rig_span(SPACE_EXCHANGE, 15, 0);
    s.out = rig_span(SPACE_EXCHANGE, 1 - i % 2, 0);
    return s;
}

enum { HOPS = 60, TURNS = 10, MAX_DEVICES = 3 };

/* Where the driven device stands, which is the first if there is one. */
static void tell_others(struct rig *r, int n, uint64_t value) {
    for (int d = 1; d < n && r[0].b->driven; d++)
        r[d].b->fn->reached(r[d].b, r[0].b, value);
}

/* One turn: hop i on device i % n, waiting for hop i - 1. Devices that run by themselves get all
 * their segments first. */
static void run_hops(struct rig *r, int n, struct backend_segment *const *segments,
                     const struct round *round) {
    for (int driven = 0; driven < 2; driven++) {
        tell_others(r, n, r[0].value);
        for (int i = 0; i < HOPS; i++) {
            struct rig *own = &r[i % n], *other = &r[(i + n - 1) % n];
            if (own->b->driven != driven) continue;
            /* a device has every n-th hop: its k-th sets its value to value + k + 1 */
            struct backend_wait wait = {.backend = other->b,
                                        .value = other->value + (uint64_t)((i - 1) / n) + 1};
            uint64_t value = own->value + (uint64_t)(i / n) + 1;
            TEST_OK(own->b->fn->submit(own->b, segments[i], round, &wait, i > 0, value));
            if (driven) tell_others(r, n, value);
        }
    }
    for (int d = 0; d < n; d++) {
        r[d].value += HOPS / (uint64_t)n;
        TEST_OK(r[d].b->fn->wait(r[d].b, r[d].value));
    }
}

/* Hops follow each other, by the clocks as well: exactly on one device, else as far as two clocks
 * are known to agree. */
static void check_hop_times(struct rig *r, int n, struct backend_segment *const *segments,
                            bool timed, uint64_t start) {
    const uint64_t slack = 1000000;
    uint64_t before = start, end[MAX_DEVICES] = {0}, now = r[0].b->fn->now(r[0].b);
    for (int i = 0; i < HOPS; i++) {
        struct backend_times t;
        struct backend *b = r[i % n].b;
        assert_int_equal(b->fn->segment_times(b, segments[i], &t), timed);
        if (!timed) continue;
        assert_true(t.begin_ns >= start && t.begin_ns <= t.end_ns && t.end_ns <= now + slack);
        assert_true(t.begin_ns >= end[i % n]);
        assert_true(t.begin_ns + slack >= before);
        end[i % n] = before = t.end_ns;
    }
    for (int d = 0; d < n; d++) {
        struct backend_counters c;
        r[d].b->fn->counters(r[d].b, &c);
        assert_true(c.n_submissions > 0);
        if (!r[d].b->gpu) assert_true(c.n_submissions >= (uint64_t)(HOPS / n));
    }
}

/* Devices `first`, `first` + 2, ... are of the kind under test. */
static void check_hops(int n, bool driven, int first) {
    struct rig r[MAX_DEVICES];
    struct rig_round round;
    struct step steps[HOPS];
    struct backend_segment *segments[HOPS];
    rig_round_plain(&round, 4, 1);
    for (int d = 0; d < n; d++) {
        struct backend_options o = rig_options(1 + d % 2, "native");
        o.driven = driven && d == 0;
        const char *device = d % 2 == first ? DEVICE : "cpu";
        if (d == 0)
            rig_open_on(&r[d], device, &o);
        else
            rig_open_beside_on(&r[d], device, &r[0], &o);
    }
    for (int i = 0; i < HOPS; i++) {
        steps[i] = hop_step(i);
        struct backend *b = r[i % n].b;
        TEST_OK(b->fn->segment_build(b, &steps[i], 1, &segments[i]));
    }
    for (int line = 0; line < 4; line++)
        for (int c = 0; c < 64; c++)
            rig_line(&r[0], 0, line)[c] = 0, rig_line(&r[0], 15, line)[c] = 1;
    for (int turn = 1; turn <= TURNS; turn++) {
        bool timed = turn % 3 == 2;
        uint64_t start = r[0].b->fn->now(r[0].b);
        for (int d = 0; d < n; d++)
            r[d].b->fn->set_timed(r[d].b, timed);
        run_hops(r, n, segments, &round.round);
        check_hop_times(r, n, segments, timed, start);
        for (int line = 0; line < 4; line++)
            for (int c = 0; c < 64; c++)
                assert_true(rig_line(&r[0], 0, line)[c] == (float)(turn * HOPS));
    }
    for (int i = 0; i < HOPS; i++)
        r[i % n].b->fn->segment_free(r[i % n].b, segments[i]);
    for (int d = n - 1; d >= 0; d--)
        rig_close(&r[d]);
}

static void devices_wait_for_each_other_s_values(void **state) {
    (void)state;
    for (int i = 0; i < 8; i++)
        check_hops(2 + i / 4, i & 2, i & 1);
}

/* A device that runs by itself may be closed right after its last value. */
static void an_idle_device_closes(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct backend_options o = rig_options(1 + i % 3, "ref");
        struct backend *b;
        o.driven = i % 2;
        TEST_OK(backend_open(DEVICE, &o, &b));
        TEST_OK(b->fn->wait(b, 0)); /* where every timeline begins */
        uint64_t now = b->fn->now(b);
        assert_true(b->fn->now(b) >= now);
        assert_memory_equal(b->name, DEVICE, strlen(DEVICE));
        backend_close(b);
    }
    backend_close(NULL);
}

/* ---- what is refused ---- */

#ifndef DEVICE_IS_VULKAN
static void unknown_devices_are_named(void **state) {
    (void)state;
    struct backend_options o = rig_options(1, "ref");
    struct backend *b;
    TEST_STATUS(backend_open("tpu", &o, &b), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("tpu");
    TEST_ERROR_HAS("cpu");
    assert_null(b);
    TEST_STATUS(backend_open("", &o, &b), ATS_UNSUPPORTED);
}

#endif

static void memory_that_is_not_there_is_a_status(void **state) {
    (void)state;
    struct rig r;
    struct backend_options o = rig_options(1, "ref");
    rig_open_on(&r, DEVICE, &o);
    struct backend_kv *kv = NULL;
    struct kv_layout huge = {KV_F32, KV_F32, 1024, 8192, 1 << 20};
    TEST_STATUS(r.b->fn->kv_open(r.b, &huge, &kv), ATS_NO_MEMORY);
    assert_null(kv);
    void *p = NULL;
    TEST_STATUS(r.b->fn->host_alloc(r.b, (size_t)1 << 60, &p), ATS_NO_MEMORY);
    TEST_OK(r.b->fn->host_alloc(r.b, 12345, &p));
    memset(p, 1, 12345);
    r.b->fn->host_free(r.b, p, 12345);
    struct backend *other;
    TEST_OK(backend_open(DEVICE, &o, &other));
    struct backend_limits limits = r.limits;
    limits.local_bytes = (int64_t)1 << 60;
    TEST_STATUS(other->fn->reserve(other, &limits), ATS_NO_MEMORY);
    backend_close(other);
    rig_close(&r);
}

#ifndef DEVICE_IS_VULKAN
static void instruction_sets_are_levels(void **state) {
    (void)state;
    unsigned ref, native, mask;
    assert_true(backend_cpu_isa_parse("ref", &ref));
    assert_true(backend_cpu_isa_parse("native", &native));
    assert_true((ref & native) == ref);
    assert_false(backend_cpu_isa_parse("sse9", &mask));
    assert_false(backend_cpu_isa_parse("", &mask));
    assert_string_equal(backend_cpu_isa_name(ref), "ref");
    struct backend_cpu_info info;
    backend_cpu_info(&info);
    assert_true(info.isa_mask & ref);
    assert_string_equal(info.isa, backend_cpu_isa_name(native));
}

static void kv_sizes_are_those_of_their_rows(void **state) {
    (void)state;
    assert_int_equal(kv_row_bytes(KV_F32, 64), 256);
    assert_int_equal(kv_row_bytes(KV_F16, 64), 128);
    assert_int_equal(kv_row_bytes(KV_Q8_0, 64), 68);
    struct kv_layout l = {KV_F16, KV_Q8_0, 3, 64, 5};
    assert_int_equal(kv_layout_bytes(&l), 5 * 3 * 64 * (128 + 68));
    assert_string_equal(kv_type_name(KV_Q8_0), "q8_0");
    assert_string_equal(kv_type_name(KV_TYPE_COUNT), "?");
}

static void keys_of_sixteen_positions_stand_side_by_side(void **state) {
    (void)state;
    assert_int_equal(kv_key_at(KV_F32, 64, 19, 5), 16 * 256 + (5 * 16 + 3) * 4);
    assert_int_equal(kv_key_at(KV_F16, 64, 19, 5), 16 * 128 + (5 * 16 + 3) * 2);
    assert_int_equal(kv_key_at(KV_Q8_0, 64, 19, 5), 16 * 68 + 64 + 3 * 4 + 1);
    assert_int_equal(kv_key_scale_at(64, 19, 31), 16 * 68 + 64 * 16 + 3 * 2);
    assert_int_equal(kv_key_scale_at(64, 19, 32), 16 * 68 + 64 * 16 + 16 * 2 + 3 * 2);
    for (enum kv_type type = KV_F32; type < KV_TYPE_COUNT; type++) {
        size_t row_bytes = kv_row_bytes(type, 64);
        uint8_t keys[64 * 256], row[256]; /* each byte of all positions is written once */
        memset(keys, 0, sizeof keys);
        memset(row, 1, sizeof row);
        for (int slot = 0; slot < 64; slot++)
            kv_key_put(type, 64, row, keys, slot);
        for (size_t i = 0; i < sizeof keys; i++)
            assert_int_equal(keys[i], i < 64 * row_bytes);
        for (size_t i = 0; i < row_bytes; i++)
            row[i] = (uint8_t)(i + 2);
        kv_key_put(type, 64, row, keys, 19);
        size_t bytes = type == KV_F32 ? 4 : type == KV_F16 ? 2 : 1;
        for (int c = 0; c < 64; c++) {
            size_t from = type == KV_Q8_0 ? (size_t)(c / 32 * 34 + 2 + c % 32) : (size_t)c * bytes;
            assert_memory_equal(keys + kv_key_at(type, 64, 19, c), row + from, bytes);
        }
        if (type == KV_Q8_0) assert_memory_equal(keys + kv_key_scale_at(64, 19, 40), row + 34, 2);
    }
}

#endif

#ifdef DEVICE_IS_VULKAN
/* Two segments of one round, the second of which reads what the first wrote. */
static void run_two_segments(void) {
    struct rig r;
    struct rig_round round;
    struct step steps[2] = {hop_step(0), hop_step(1)};
    struct backend_segment *segments[2];
    struct backend_options o = rig_options(1, "ref");
    rig_open_on(&r, DEVICE, &o);
    rig_round_plain(&round, 4, 1);
    for (int i = 0; i < 2; i++)
        TEST_OK(r.b->fn->segment_build(r.b, &steps[i], 1, &segments[i]));
    for (int i = 0; i < 2; i++)
        TEST_OK(r.b->fn->submit(r.b, segments[i], &round.round, NULL, 0, ++r.value));
    TEST_OK(r.b->fn->wait(r.b, r.value));
    for (int i = 0; i < 2; i++)
        r.b->fn->segment_free(r.b, segments[i]);
    rig_close(&r);
}

/* The software device shows no hazard in its results, whatever is missing: so the validation
 * layer's silence elsewhere must mean something. */
static void missing_barriers_are_reported(void **state) {
    (void)state;
    struct backend_options o = rig_options(1, "ref");
    for (int i = 0; i < 3; i++) { /* nothing missing; those in a segment; those between segments */
        static const char *const switches[] = {"", "barriers", "first-barriers"};
        setenv("ATSINFER_VK_DISABLE", switches[i], 1);
        assert_int_equal(rig_take_messages(), 0);
        if (i < 2) free(run_layer(&o, DTYPE_F32, (int[]){9, 9}, 2));
        if (i != 1) run_two_segments();
        assert_int_equal(rig_take_messages() > 0, i > 0);
        setenv("ATSINFER_VK_DISABLE", "", 1);
    }
}

/* The same hops where the device cannot reach the exchange itself. */
static void the_host_s_copy_of_the_exchange_serves_too(void **state) {
    (void)state;
    setenv("ATSINFER_VK_DISABLE", "import", 1);
    for (int i = 0; i < 4; i++)
        check_hops(2 + i / 2, i & 1, 1);
    setenv("ATSINFER_VK_DISABLE", "", 1);
}

/* Time without the driver's help, and none at all. */
static void a_device_may_have_no_clock(void **state) {
    (void)state;
    setenv("ATSINFER_VK_DISABLE", "calibration", 1);
    check_hops(2, true, 1);
    setenv("ATSINFER_VK_DISABLE", "timestamps", 1);
    struct rig r;
    struct rig_round round;
    struct step step = hop_step(0);
    struct backend_segment *segment;
    struct backend_times t;
    struct backend_options o = rig_options(1, "ref");
    rig_open_on(&r, DEVICE, &o);
    rig_round_plain(&round, 4, 1);
    TEST_OK(r.b->fn->segment_build(r.b, &step, 1, &segment));
    r.b->fn->set_timed(r.b, true);
    TEST_OK(r.b->fn->submit(r.b, segment, &round.round, NULL, 0, 1));
    TEST_OK(r.b->fn->wait(r.b, 1));
    assert_false(r.b->fn->segment_times(r.b, segment, &t));
    r.b->fn->segment_free(r.b, segment);
    rig_close(&r);
    setenv("ATSINFER_VK_DISABLE", "", 1);
}

static void a_machine_without_a_driver_says_so(void **state) {
    (void)state;
    struct backend_options o = rig_options(1, "ref");
    struct backend_device_info found[4];
    struct backend *b;
    assert_true(backend_list_devices(found, COUNT_OF(found)) >= 1);
    assert_string_equal(found[0].name, "vulkan0");
    TEST_STATUS(backend_open("vulkan99", &o, &b), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("vulkan99");
    TEST_STATUS(backend_open("vulkanx", &o, &b), ATS_UNSUPPORTED);
    setenv("VK_ICD_FILENAMES", "/nonexistent.json", 1);
    TEST_STATUS(backend_open("vulkan", &o, &b), ATS_UNSUPPORTED);
    TEST_ERROR_HAS("driver");
    assert_int_equal(backend_list_devices(found, COUNT_OF(found)), 0);
    TEST_ERROR_HAS("driver");
    unsetenv("VK_ICD_FILENAMES");
}

int main(void) {
    if (!rig_has_device(DEVICE)) return 77;
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_cut_into_rounds_changes_no_bit),
        cmocka_unit_test(a_copied_page_serves_as_the_first),
        cmocka_unit_test(devices_wait_for_each_other_s_values),
        cmocka_unit_test(the_host_s_copy_of_the_exchange_serves_too),
        cmocka_unit_test(a_device_may_have_no_clock),
        cmocka_unit_test(an_idle_device_closes),
        cmocka_unit_test(memory_that_is_not_there_is_a_status),
        cmocka_unit_test(a_machine_without_a_driver_says_so),
    };
    const struct CMUnitTest validated[] = {
        cmocka_unit_test(missing_barriers_are_reported),
    };
    int failed = rig_is_validated() ? cmocka_run_group_tests(validated, NULL, NULL) : 0;
    return rig_verdict(failed + cmocka_run_group_tests(tests, NULL, NULL));
}
#else
int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fusion_and_threads_change_no_bit),
        cmocka_unit_test(the_cut_into_rounds_changes_no_bit),
        cmocka_unit_test(a_copied_page_serves_as_the_first),
        cmocka_unit_test(devices_wait_for_each_other_s_values),
        cmocka_unit_test(an_idle_device_closes),
        cmocka_unit_test(unknown_devices_are_named),
        cmocka_unit_test(memory_that_is_not_there_is_a_status),
        cmocka_unit_test(instruction_sets_are_levels),
        cmocka_unit_test(kv_sizes_are_those_of_their_rows),
        cmocka_unit_test(keys_of_sixteen_positions_stand_side_by_side),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
#endif
