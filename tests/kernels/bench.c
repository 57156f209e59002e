/* Speed of the kernels on real shapes: in cache, and streaming weights from memory. */
#include "data.h"

#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "backend/backend.h"
#include "base/arena.h"

#define MAX_BATCHES 64

static int compare_doubles(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Time of this thread, so that other work on the machine disturbs less. */
static uint64_t thread_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

double bench_ns(bench_fn *fn, void *context) {
    int calls = 1, call = 0;
    for (;; calls *= 2) { /* warm-up, until a batch takes 2 ms */
        uint64_t start = thread_ns();
        for (int i = 0; i < calls; i++)
            fn(context, call++);
        if (thread_ns() - start > 2000000) break;
    }
    double batches[MAX_BATCHES];
    int n = 0;
    uint64_t begin = thread_ns();
    while (n < MAX_BATCHES && (n < 5 || thread_ns() - begin < 100000000)) {
        uint64_t start = thread_ns();
        for (int i = 0; i < calls; i++)
            fn(context, call++);
        batches[n++] = (double)(thread_ns() - start) / calls;
    }
    qsort(batches, (size_t)n, sizeof batches[0], compare_doubles);
    return batches[n / 2];
}

size_t bench_llc_bytes(void) {
    long bytes = sysconf(_SC_LEVEL3_CACHE_SIZE); /* in a virtual machine that of the whole host */
    return bytes > 0 ? min_size((size_t)bytes, (size_t)128 << 20) : (size_t)32 << 20;
}

struct copy {
    uint8_t *from, *to;
    size_t bytes;
};

static void copy_once(void *context, int call) {
    struct copy *copy = context;
    copy->from[call & 63]++;
    memcpy(copy->to, copy->from, copy->bytes);
}

double bench_copy_gbs(void) {
    static double gbs;
    if (gbs > 0) return gbs;
    size_t bytes = 2 * bench_llc_bytes();
    struct copy copy = {xcalloc(bytes, 1), xcalloc(bytes, 1), bytes};
    memset(copy.from, 1, bytes);
    memset(copy.to, 1, bytes);
    gbs = 2 * (double)bytes / bench_ns(copy_once, &copy);
    free(copy.from);
    free(copy.to);
    return gbs;
}

/* A product of class f32 over n_matrices weights in turn. */
struct bench_product {
    const struct kernels *k;
    enum dtype type;
    int n_rows, n_cols, n_tokens, n_matrices;
    size_t row_bytes, matrix_bytes;
    uint8_t *w;
    float *x, *out;
    void *scratch;
};

static void product_once(void *context, int call) {
    struct bench_product *p = context;
    const uint8_t *w = p->w + (size_t)(call % p->n_matrices) * p->matrix_bytes;
    p->k->matmul_f32[p->type](w, p->row_bytes, p->n_rows, p->n_cols, p->x, p->n_cols, p->n_tokens,
                              p->out, p->n_rows, p->scratch);
}

static void *aligned_memory(size_t bytes) {
    void *p = aligned_alloc(64, round_up(max_size(bytes, 64), 64));
    REQUIRE(p);
    memset(p, 0, bytes);
    return p;
}

/* Weights: one random matrix, copied. */
static void product_weights(struct check *c, struct bench_product *p) {
    p->w = aligned_memory(p->matrix_bytes * (size_t)p->n_matrices);
    data_weights(c, DATA_RANDOM, p->type, p->w, (int64_t)p->n_rows * p->n_cols);
    for (int i = 1; i < p->n_matrices; i++)
        memcpy(p->w + (size_t)i * p->matrix_bytes, p->w, p->matrix_bytes);
}

static void bench_shape(struct check *c, enum dtype type, int n_rows, int n_cols, int n_tokens,
                        bool stream) {
    struct bench_product p = {.k = c->isa,
                              .type = type,
                              .n_rows = n_rows,
                              .n_cols = n_cols,
                              .n_tokens = n_tokens,
                              .n_matrices = 1};
    p.row_bytes = (size_t)dtype_row_bytes(type, n_cols);
    p.matrix_bytes = round_up(p.row_bytes * (size_t)n_rows, 256);
    if (stream) p.n_matrices = (int)(3 * bench_llc_bytes() / p.matrix_bytes) + 1;
    product_weights(c, &p);
    p.x = aligned_memory((size_t)n_tokens * (size_t)n_cols * sizeof(float));
    data_floats(c, DATA_RANDOM, p.x, (size_t)n_tokens * (size_t)n_cols);
    p.out = aligned_memory((size_t)n_tokens * (size_t)n_rows * sizeof(float));
    p.scratch = aligned_memory(matmul_scratch_bytes(n_cols));
    double ns = bench_ns(product_once, &p);
    double gbs = (double)p.row_bytes * n_rows / ns;
    double gops = 2.0 * n_rows * n_cols * n_tokens / ns;
    printf("%-8s %-20s %5d x %-5d %3d tokens %-6s %11.0f ns %7.2f GB/s %7.1f GOP/s", c->isa_name,
           c->kernel, n_rows, n_cols, n_tokens, stream ? "memory" : "cache", ns, gbs, gops);
    if (stream) printf(" %5.1f%% of copy", 100 * gbs / bench_copy_gbs());
    printf("\n");
    fflush(stdout);
    free(p.w);
    free(p.x);
    free(p.out);
    free(p.scratch);
}

static void bench_type(struct check *c, enum dtype type) {
    bool small = dtype_info(type)->block_elements != QK_SUPER;
    int width = small ? 576 : 2048, wide = small ? 1536 : 8192;
    bench_shape(c, type, width, width, 1, false);
    bench_shape(c, type, width, width, 1, true);
    bench_shape(c, type, wide, width, 1, true);
    bench_shape(c, type, width, wide, 1, true);
    if (small) bench_shape(c, type, 49152, 576, 1, true);
    bench_shape(c, type, width, width, 4, false);
    bench_shape(c, type, width, width, 512, false);
    bench_shape(c, type, width, wide, 512, false);
}

struct bench_quantise {
    const struct kernels *k;
    struct q8_rows out;
    const float *x;
};

static void quantise_once(void *context, int call) {
    struct bench_quantise *q = context;
    (void)call;
    q->k->quantise_q8(q->x, q->out.n_cols, 0, 8, &q->out);
}

static void bench_convert(struct check *c) {
    int n_cols = 1536;
    float *x = aligned_memory((size_t)n_cols * 8 * sizeof *x);
    void *memory = aligned_memory(q8_rows_bytes(n_cols, 8));
    data_floats(c, DATA_RANDOM, x, (size_t)n_cols * 8);
    struct bench_quantise q = {c->isa, q8_rows_at(memory, n_cols, 8), x};
    double ns = bench_ns(quantise_once, &q);
    printf("%-8s %-20s %d x 8 %11.0f ns %7.2f GB/s\n", c->isa_name, "quantise_q8", n_cols, ns,
           n_cols * 8 * sizeof(float) / ns);
    free(x);
    free(memory);
}

void bench_all(struct check *c) {
    printf("copy, one thread: %.1f GB/s read and written; last-level cache %zu MiB\n",
           bench_copy_gbs(), bench_llc_bytes() >> 20);
    bench_products_q8(c);
    for (int type = 0; type < N_DTYPES_WEIGHT; type++) {
        if (check_kernel(c, true, "matmul_f32/%s", dtype_name((enum dtype)type)))
            bench_type(c, (enum dtype)type);
    }
    bench_products_float(c);
    bench_attention(c);
    if (check_kernel(c, true, "quantise_q8")) bench_convert(c);
}
