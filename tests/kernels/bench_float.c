/* Speed of the products of floats over the packed layout: class f32 of the three types, and class
 * bf16. Weights from memory; shares of what one thread reads, and of its fma or bf16 peak. */
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/packed.h"

struct product {
    const struct kernels *k;
    enum dtype type;
    bool bf16; /* class */
    int n_rows, n_cols, n_tokens, n_matrices;
    size_t packed_bytes;
    uint8_t *packed;
    float *x;
    uint16_t *rounded;
    float *out;
    void *scratch;
};

static void product_once(void *context, int call) {
    struct product *p = context;
    const uint8_t *w = p->packed + (size_t)(call % p->n_matrices) * p->packed_bytes;
    int n_groups = pack_n_groups(p->n_rows);
    if (p->bf16)
        p->k->matmul_packed_bf16(w, 0, n_groups, p->n_rows, p->n_cols, p->rounded, p->n_cols,
                                 p->n_tokens, p->out, p->n_rows, p->scratch);
    else
        p->k->matmul_packed_f32[p->type](w, 0, n_groups, p->n_rows, p->n_cols, p->x, p->n_cols,
                                         p->n_tokens, p->out, p->n_rows, p->scratch);
}

/* ns of a product with n_tokens. */
static double product_ns(struct check *c, struct product *p, int n_tokens) {
    size_t n = (size_t)n_tokens * (size_t)p->n_cols;
    p->n_tokens = n_tokens;
    p->x = bench_memory(n * sizeof *p->x);
    p->rounded = bench_memory(n * sizeof *p->rounded);
    p->out = bench_memory((size_t)n_tokens * (size_t)p->n_rows * sizeof *p->out);
    data_floats(c, DATA_RANDOM, p->x, n);
    for (int t = 0; t < n_tokens; t++)
        p->k->round_bf16(p->x + (size_t)t * (size_t)p->n_cols, p->n_cols,
                         p->rounded + (size_t)t * (size_t)p->n_cols);
    double ns = bench_ns(product_once, p);
    free(p->x);
    free(p->rounded);
    free(p->out);
    return ns;
}

static void bench_shape(struct check *c, enum dtype type, bool bf16, int n_rows, int n_cols,
                        double peak) {
    struct product p = {
        .k = c->isa, .type = type, .bf16 = bf16, .n_rows = n_rows, .n_cols = n_cols};
    size_t row_bytes = (size_t)dtype_row_bytes(type, n_cols);
    p.packed_bytes = pack_bytes(type, n_rows, n_cols);
    p.n_matrices = (int)(3 * bench_llc_bytes() / p.packed_bytes) + 1;
    p.packed = bench_memory(p.packed_bytes * (size_t)p.n_matrices);
    p.scratch = bench_memory(matmul_scratch_bytes(n_cols));
    uint8_t *raw = bench_memory(row_bytes * (size_t)n_rows);
    data_weights(c, DATA_RANDOM, type, raw, (int64_t)n_rows * n_cols);
    pack_rows(type, raw, row_bytes, n_rows, n_cols, p.packed, 0, pack_n_groups(n_rows));
    for (int i = 1; i < p.n_matrices; i++)
        memcpy(p.packed + (size_t)i * p.packed_bytes, p.packed, p.packed_bytes);
    double read = bench_read_gbs();
    printf("%-10s %-24s %5d x %-5d", c->isa_name, c->kernel, n_rows, n_cols);
    for (int n_tokens = 1; n_tokens <= 8; n_tokens *= n_tokens == 1 ? 4 : 2) {
        double gbs = (double)p.packed_bytes / product_ns(c, &p, n_tokens);
        printf(" %7.1f %4.0f%%", gbs, 100 * gbs / read);
    }
    double gflops = 2.0 * n_rows * n_cols * 512 / product_ns(c, &p, 512);
    printf(" %7.1f", gflops);
    if (peak > 0) printf(" %4.0f%%", 100 * gflops / peak);
    printf("\n");
    fflush(stdout);
    free(raw);
    free(p.packed);
    free(p.scratch);
}

void bench_products_float(struct check *c) {
    static const int shapes[][2] = {{2048, 2048}, {576, 1536}};
    static const struct {
        enum dtype type;
        bool bf16;
        const char *name;
    } rows[] = {{DTYPE_F32, false, "matmul_packed_f32/f32"},
                {DTYPE_F16, false, "matmul_packed_f32/f16"},
                {DTYPE_BF16, false, "matmul_packed_f32/bf16"},
                {DTYPE_BF16, true, "matmul_packed_bf16"}};
    bool head = false;
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        if (!check_kernel(c, true, "%s", rows[i].name)) continue;
        if (!head)
            printf(
                "floats from memory; GB/s of them and share of a read; GFLOP/s and share of %.0f "
                "(fma) or %.0f (bf16), 0: not known\n%49s %13s %13s %13s %13s\n",
                bench_float_gflops(c, false), bench_float_gflops(c, true), "", "1 token",
                "4 tokens", "8 tokens", "512: GFLOP/s");
        head = true;
        double peak = bench_float_gflops(c, rows[i].bf16);
        for (size_t s = 0; s < COUNT_OF(shapes); s++)
            bench_shape(c, rows[i].type, rows[i].bf16, shapes[s][0], shapes[s][1], peak);
    }
}
