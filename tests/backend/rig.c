#include "rig.h"

#include <math.h>
#include <stdatomic.h>
#include "base/file.h"
#include "base/log.h"

#define BUFFER_FLOATS ((size_t)RIG_TOKENS * RIG_STRIDE)
#define SPACE_FLOATS  (RIG_BUFFERS * BUFFER_FLOATS)

struct backend_options rig_options(int n_threads, const char *isa) {
    struct backend_options o = {
        .n_threads = n_threads, .n_threads_batch = n_threads, .driven = true};
    assert_true(backend_cpu_isa_parse(isa, &o.cpu_isa_mask));
    return o;
}

/* r->limits says what there is of experts. */
static void reserve(struct rig *r, const char *device, const struct backend_options *options) {
    TEST_OK(backend_open(device, options, &r->b));
    r->limits.n_tokens = RIG_TOKENS;
    r->limits.n_rows = RIG_ROWS;
    r->limits.n_ctx = RIG_CTX;
    r->limits.n_kv_classes = 1;
    r->limits.local_bytes = (int64_t)(SPACE_FLOATS * sizeof(float));
    r->limits.exchange = r->exchange;
    r->limits.exchange_bytes = (int64_t)(SPACE_FLOATS * sizeof(float));
    r->limits.max_cols = RIG_STRIDE;
    r->limits.max_heads = RIG_HEADS;
    r->limits.max_head_dim = RIG_HEAD_DIM;
    assert_true(r->b->fn->work_bytes(r->b, &r->limits) >= r->limits.local_bytes);
    TEST_OK(r->b->fn->reserve(r->b, &r->limits));
    rng_seed(&r->rng, 1);
}

/* ---- devices that are kept ---- */

static struct kept {
    struct kept *next;
    char key[256];
    struct rig rig;
} * kept;
static bool keeps;

void rig_keep_devices(void) {
    keeps = true;
}

/* All that a kept device was opened with. */
static void kept_key(const struct rig *r, const char *device, char key[256]) {
    const char *disable = getenv("ATSINFER_VK_DISABLE"), *range = getenv("ATSINFER_VK_MAX_RANGE");
    const char *shape = getenv("ATSINFER_VK_SHAPE");
    snprintf(key, 256, "%s %d %d %d %s %s %s", device, r->limits.max_experts,
             r->limits.max_expert_cols, r->limits.max_expert_ff, disable ? disable : "",
             range ? range : "", shape ? shape : "");
}

static bool take_kept(struct rig *r, const char *key) {
    for (struct kept **at = &kept; *at; at = &(*at)->next) {
        struct kept *k = *at;
        if (strcmp(k->key, key) != 0) continue;
        *r = k->rig;
        *at = k->next;
        free(k);
        return true;
    }
    return false;
}

static void close_rig(struct rig *r) {
    backend_close(r->b);
    if (!r->before) return; /* the exchange is another's */
    pages_free(r->exchange, SPACE_FLOATS * sizeof(float));
    free(r->before);
}

void rig_close(struct rig *r) {
    if (!r->key[0]) {
        close_rig(r);
        return;
    }
    struct kept *k = calloc(1, sizeof *k);
    memcpy(k->key, r->key, sizeof k->key);
    k->rig = *r;
    k->next = kept;
    kept = k;
}

static void close_kept(void) {
    while (kept) {
        struct kept *next = kept->next;
        close_rig(&kept->rig);
        free(kept);
        kept = next;
    }
}

static void open_on(struct rig *r, const char *device, const struct backend_options *options) {
    char key[256] = "";
    if (keeps) kept_key(r, device, key);
    if (!keeps || !take_kept(r, key)) {
        void *exchange; /* pages of its own, so that a device may take them as they are */
        TEST_OK(pages_alloc(SPACE_FLOATS * sizeof(float), &exchange));
        r->exchange = exchange;
        r->before = malloc(SPACE_FLOATS * sizeof(float));
        reserve(r, device, options);
        memcpy(r->key, key, sizeof key);
    }
    rng_seed(&r->rng, 1);
    for (size_t i = 0; i < SPACE_FLOATS; i++)
        r->exchange[i] = NAN;
}

void rig_open_on(struct rig *r, const char *device, const struct backend_options *options) {
    memset(r, 0, sizeof *r);
    open_on(r, device, options);
}

void rig_open_experts(struct rig *r, const char *device, const struct backend_options *options,
                      int n_experts, int n_used, int n_embd, int n_ff) {
    memset(r, 0, sizeof *r);
    r->limits.max_experts = n_experts;
    r->limits.max_experts_used = n_used;
    r->limits.max_expert_cols = n_embd;
    r->limits.max_expert_ff = n_ff;
    r->limits.expert_floats = true;
    open_on(r, device, options);
}

void rig_open(struct rig *r, const struct backend_options *options) {
    rig_open_on(r, "cpu", options);
}

void rig_open_beside_on(struct rig *other, const char *device, const struct rig *r,
                        const struct backend_options *options) {
    memset(other, 0, sizeof *other);
    other->exchange = r->exchange;
    reserve(other, device, options);
}

void rig_open_beside(struct rig *other, const struct rig *r,
                     const struct backend_options *options) {
    rig_open_beside_on(other, "cpu", r, options);
}

static atomic_int n_messages; /* of the validation layer */
static atomic_bool not_validated;

static void count_messages(void *user, enum log_level level, const char *text) {
    (void)user, (void)level;
    if (strstr(text, "no validation layer")) not_validated = true;
    if (!strstr(text, "vulkan validation")) return;
    n_messages++;
    if (n_messages < 8) print_error("%s\n", text);
}

bool rig_is_validated(void) {
    return getenv("ATSINFER_VK_VALIDATE") && !not_validated;
}

int rig_take_messages(void) {
    return atomic_exchange(&n_messages, 0);
}

bool rig_has_device(const char *device) {
    struct backend_options o = rig_options(1, "ref");
    struct backend *b;
    log_set(count_messages, NULL, LOG_WARN);
    ats_status status = backend_open(device, &o, &b);
    if (status == ATS_UNSUPPORTED) print_message("skipped: %s\n", error_text());
    if (status == ATS_OK) backend_close(b);
    return status != ATS_UNSUPPORTED;
}

int rig_verdict(int failed) {
    close_kept();
    if (n_messages) print_error("%d messages of the validation layer\n", n_messages);
    return failed ? failed : n_messages > 0;
}

struct span rig_span(enum space space, int index, int first) {
    assert_in_range(index, 0, RIG_BUFFERS - 1);
    return (struct span){space, (int64_t)(index * BUFFER_FLOATS * sizeof(float)), RIG_STRIDE,
                         first};
}

float *rig_line(const struct rig *r, int index, int line) {
    return r->exchange + (size_t)index * BUFFER_FLOATS + (size_t)line * RIG_STRIDE;
}

void rig_fill(struct rig *r, int index, int n_lines, int width) {
    for (int line = 0; line < n_lines; line++)
        for (int i = 0; i < width; i++)
            rig_line(r, index, line)[i] = rng_normal(&r->rng);
}

void rig_run(struct rig *r, const struct step *steps, int n_steps, const struct round *round) {
    struct backend_segment *segment;
    TEST_OK(r->b->fn->segment_build(r->b, steps, n_steps, &segment));
    TEST_OK(r->b->fn->submit(r->b, segment, round, NULL, 0, ++r->value));
    TEST_OK(r->b->fn->wait(r->b, r->value));
    r->b->fn->segment_free(r->b, segment);
}

void rig_run_watched(struct rig *r, const struct step *step, const struct round *round, int index,
                     int n_lines) {
    memcpy(r->before, r->exchange, SPACE_FLOATS * sizeof(float));
    rig_run(r, step, 1, round);
    int width = step->end - step->begin;
    for (size_t i = 0; i < SPACE_FLOATS; i++) {
        size_t in_buffer = i % BUFFER_FLOATS;
        bool written = i / BUFFER_FLOATS == (size_t)index &&
                       in_buffer / RIG_STRIDE < (size_t)n_lines &&
                       in_buffer % RIG_STRIDE < (size_t)width;
        if (!written && memcmp(&r->before[i], &r->exchange[i], sizeof(float)) != 0)
            fail_msg("a step wrote float %zu of buffer %zu", in_buffer, i / BUFFER_FLOATS);
    }
}

struct rig_matrix rig_matrix(struct rng *rng, enum dtype dtype, int n_rows, int n_cols) {
    struct rig_matrix m = {.dtype = dtype, .n_rows = n_rows, .n_cols = n_cols};
    size_t n = (size_t)n_rows * (size_t)n_cols;
    m.row_bytes = dtype_row_bytes(dtype, n_cols);
    m.blocks = malloc((size_t)m.row_bytes * (size_t)n_rows);
    m.values = malloc(n * sizeof *m.values);
    for (size_t i = 0; i < n; i++)
        m.values[i] = rng_normal(rng);
    for (int row = 0; row < n_rows; row++) {
        dtype_from_float(dtype, m.values + (int64_t)row * n_cols, m.blocks + row * m.row_bytes,
                         n_cols);
        dtype_to_float(dtype, m.blocks + row * m.row_bytes, m.values + (int64_t)row * n_cols,
                       n_cols);
    }
    return m;
}

/* Where the halves of a block stand that scale all of it. */
static void set_scales(enum dtype dtype, uint8_t *block) {
    static const uint16_t one = 0x3c00;
    const size_t first = dtype == DTYPE_Q2_K   ? offsetof(struct block_q2_k, d)
                         : dtype == DTYPE_Q3_K ? offsetof(struct block_q3_k, d)
                         : dtype == DTYPE_Q6_K ? offsetof(struct block_q6_k, d)
                                               : 0;
    const bool two = dtype == DTYPE_Q4_1 || dtype == DTYPE_Q5_1 || dtype == DTYPE_Q2_K ||
                     dtype == DTYPE_Q4_K || dtype == DTYPE_Q5_K;
    if (dtype == DTYPE_MXFP4)
        block[0] = 128; /* e8m0_half(128) is 1 */
    else
        memcpy(block + first, &one, sizeof one);
    if (two) memcpy(block + first + 2, &one, sizeof one);
}

struct rig_matrix rig_matrix_integers(struct rng *rng, enum dtype dtype, int n_rows, int n_cols) {
    struct rig_matrix m = {.dtype = dtype, .n_rows = n_rows, .n_cols = n_cols};
    const int block_bytes = dtype_info(dtype)->block_bytes;
    int64_t n = (int64_t)n_rows * n_cols;
    m.row_bytes = dtype_row_bytes(dtype, n_cols);
    int64_t bytes = m.row_bytes * n_rows;
    m.blocks = malloc((size_t)bytes);
    m.values = malloc((size_t)n * sizeof *m.values);
    for (int64_t i = 0; i < bytes; i++)
        m.blocks[i] = (uint8_t)rng_below(rng, 256);
    for (int64_t i = 0; i < bytes; i += block_bytes)
        set_scales(dtype, m.blocks + i);
    dtype_to_float(dtype, m.blocks, m.values, n);
    return m;
}

void rig_matrix_free(struct rig_matrix *m) {
    free(m->blocks);
    free(m->values);
}

struct backend_weight *rig_load(struct rig *r, const struct rig_matrix *m, int row_begin,
                                int row_end, int col_begin, int col_end) {
    const struct dtype_info *type = dtype_info(m->dtype);
    struct weight_source source = {.name = "matrix",
                                   .dtype = m->dtype,
                                   .n_rows = row_end - row_begin,
                                   .n_cols = col_end - col_begin,
                                   .row_bytes = m->row_bytes,
                                   .data = m->blocks + row_begin * m->row_bytes +
                                           col_begin / type->block_elements * type->block_bytes};
    struct backend_weight *weight;
    assert_true(r->b->fn->weight_bytes(r->b, &source) >= 0);
    TEST_OK(r->b->fn->weight_load(r->b, &source, &weight));
    TEST_OK(r->b->fn->weights_ready(r->b));
    return weight;
}

void rig_round_open(struct rig_round *r, int n_runs, const int *lengths, const int *first,
                    int n_rows) {
    memset(r, 0, sizeof *r);
    int n = 0, n_pages = 0;
    for (int i = 0; i < n_runs; i++) {
        r->runs[i] = (struct round_run){
            .token_begin = n, .n_tokens = lengths[i], .position = first[i], .pages = {r->pages[i]}};
        for (int j = 0; j < lengths[i]; j++, n++) {
            assert_true(n < RIG_TOKENS && first[i] + j < RIG_CTX);
            r->tokens[n] = (n * 7 + 3) % 50;
            r->positions[n] = first[i] + j;
        }
        for (int j = 0; j <= (first[i] + lengths[i] - 1) / 64; j++, n_pages++) {
            assert_true(n_pages < RIG_PAGES);
            r->pages[i][j] = n_pages * 17 % RIG_PAGES; /* 17 and 40 share no factor */
        }
    }
    assert_true(n_rows <= n && n_rows <= RIG_ROWS);
    for (int i = 0; i < n_rows; i++)
        r->rows[i] = n - n_rows + i;
    r->round = (struct round){n, r->tokens, r->positions, r->runs, n_runs, r->rows, n_rows};
}

void rig_round_plain(struct rig_round *r, int n_tokens, int n_rows) {
    rig_round_open(r, 1, &n_tokens, (int[]){0}, n_rows);
}

void rig_expect(const char *what, int line, int column, double got, double want, double scale,
                double bound) {
    if (fabs(got - want) <= bound * scale) return;
    fail_msg("%s: line %d, column %d is %.9g, expected %.9g", what, line, column, got, want);
}
