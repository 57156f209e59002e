/* Speed of the products of class q8, over raw blocks and over the packed layout, as shares of what
 * one thread of this machine reads (few tokens) and of what its integer dot products reach (many);
 * and of repacking. */
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/packed.h"

/* ---- Products ---- */

struct product {
    const struct kernels *k;
    enum dtype type;
    int n_rows, n_cols, n_tokens, n_matrices;
    size_t raw_bytes, packed_bytes;
    uint8_t *raw, *packed;
    struct q8_rows q;
    float *out;
    void *scratch;
};

static void packed_once(void *context, int call) {
    struct product *p = context;
    const uint8_t *now = p->packed + (size_t)(call % p->n_matrices) * p->packed_bytes;
    const uint8_t *then = p->packed + (size_t)((call + 1) % p->n_matrices) * p->packed_bytes;
    p->k->matmul_packed_q8[p->type](now, 0, pack_n_groups(p->n_rows), p->n_rows, p->n_cols, &p->q,
                                    p->n_tokens, p->out, p->n_rows, then, p->scratch);
}

static void raw_once(void *context, int call) {
    struct product *p = context;
    p->k->matmul_q8[p->type](p->raw + (size_t)(call % p->n_matrices) * p->raw_bytes,
                             p->raw_bytes / (size_t)p->n_rows, p->n_rows, p->n_cols, &p->q,
                             p->n_tokens, p->out, p->n_rows, p->scratch);
}

static void pack_once(void *context, int call) {
    struct product *p = context;
    size_t at = (size_t)(call % p->n_matrices);
    pack_rows(p->type, p->raw + at * p->raw_bytes, p->raw_bytes / (size_t)p->n_rows, p->n_rows,
              p->n_cols, p->packed + at * p->packed_bytes, 0, pack_n_groups(p->n_rows));
}

/* Matrices enough to come from memory, or one. */
static struct product product_new(struct check *c, enum dtype type, int n_rows, int n_cols,
                                  bool stream) {
    struct product p = {.k = c->isa, .type = type, .n_rows = n_rows, .n_cols = n_cols};
    p.raw_bytes = (size_t)n_rows * (size_t)dtype_row_bytes(type, n_cols);
    p.packed_bytes = pack_bytes(type, n_rows, n_cols);
    p.n_matrices = stream ? (int)(3 * bench_llc_bytes() / p.packed_bytes) + 1 : 1;
    p.raw = bench_memory(p.raw_bytes * (size_t)p.n_matrices);
    p.packed = bench_memory(p.packed_bytes * (size_t)p.n_matrices);
    data_weights(c, DATA_RANDOM, type, p.raw, (int64_t)n_rows * n_cols);
    for (int i = 0; i < p.n_matrices; i++) {
        if (i) memcpy(p.raw + (size_t)i * p.raw_bytes, p.raw, p.raw_bytes);
        pack_once(&p, i);
    }
    p.scratch = bench_memory(matmul_scratch_bytes(n_cols));
    return p;
}

static void product_free(struct product *p) {
    free(p->raw);
    free(p->packed);
    free(p->scratch);
}

/* ns of a product with n_tokens. */
static double product_ns(struct check *c, struct product *p, bench_fn *fn, int n_tokens) {
    void *memory = bench_memory(q8_rows_bytes(p->n_cols, n_tokens));
    size_t n = (size_t)n_tokens * (size_t)p->n_cols;
    float *x = bench_memory(n * sizeof *x);
    p->n_tokens = n_tokens;
    p->q = q8_rows_at(memory, p->n_cols, n_tokens);
    data_floats(c, DATA_RANDOM, x, n);
    c->ref->quantise_q8(x, p->n_cols, 0, n_tokens, &p->q);
    p->out = bench_memory((size_t)n_tokens * (size_t)p->n_rows * sizeof(float));
    double ns = bench_ns(fn, p);
    free(p->out);
    free(x);
    free(memory);
    return ns;
}

/* A line of the table: 1, 4, 8 and 512 tokens. Memory's limit is measured on each. */
static void bench_line(struct check *c, struct product *p, bool packed, double peak) {
    bench_fn *fn = packed ? packed_once : raw_once;
    double bytes = (double)(packed ? p->packed_bytes : p->raw_bytes), read = bench_read_gbs();
    printf("%-8s %-24s %5d x %-5d", c->isa_name, c->kernel, p->n_rows, p->n_cols);
    for (int n_tokens = 1; n_tokens <= 8; n_tokens *= n_tokens == 1 ? 4 : 2) {
        double gbs = bytes / product_ns(c, p, fn, n_tokens);
        printf(" %7.1f %4.0f%%", gbs, 100 * gbs / read);
    }
    double gops = 2.0 * p->n_rows * p->n_cols * 512 / product_ns(c, p, fn, 512);
    printf(" %7.1f", gops);
    if (peak > 0) printf(" %4.0f%%", 100 * gops / peak);
    printf("\n");
    fflush(stdout);
}

/* The shapes of a dense model of 1B, and of one of 135M where the type allows its width. */
static void bench_type(struct check *c, enum dtype type, bool packed, double peak) {
    static const int shapes[][2] = {{2048, 2048}, {8192, 2048}, {2048, 8192},
                                    {192, 576},   {576, 1536},  {1536, 576}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++) {
        if (shapes[i][1] % dtype_info(type)->block_elements) continue;
        struct product p = product_new(c, type, shapes[i][0], shapes[i][1], true);
        bench_line(c, &p, packed, peak);
        product_free(&p);
    }
}

void bench_products_q8(struct check *c) {
    bool head = false;
    double peak = 0;
    for (int i = 0; i < 2 * N_DTYPES_WEIGHT; i++) {
        const enum dtype type = (enum dtype)(i / 2);
        const bool packed = i % 2;
        if (!pack_can(type) || !c->isa->matmul_q8[type]) continue;
        if (!check_kernel(c, true, "matmul_%sq8/%s", packed ? "packed_" : "", dtype_name(type)))
            continue;
        if (!head) {
            peak = bench_int8_gops(c);
            printf("%s, one thread: reads %.1f GB/s; int8 peak %.0f GOP/s (0: not known)\n",
                   c->isa_name, bench_read_gbs(), peak);
            printf("weights from memory; GB/s of them and share of a read beside it\n"
                   "%47s %13s %13s %13s %13s\n",
                   "", "1 token", "4 tokens", "8 tokens", "512: GOP/s");
            head = true;
        }
        bench_type(c, type, packed, peak);
    }
    for (int i = 0; i < N_DTYPES_WEIGHT; i++) {
        const enum dtype type = (enum dtype)i;
        if (!pack_can(type) || !check_kernel(c, true, "pack/%s", dtype_name(type))) continue;
        struct product p = product_new(c, type, 8192, 2048, true);
        double gbs = (double)p.raw_bytes / bench_ns(pack_once, &p);
        printf("%-8s %-24s %5d x %-5d %7.1f GB/s, %.2f of copying\n", c->isa_name, c->kernel,
               p.n_rows, p.n_cols, gbs, gbs / (bench_copy_gbs() / 2));
        product_free(&p);
    }
}
