/* Speed of attention: decode over a cache that comes from memory, page by page as a sequence's
 * pages lie, and a tile of a prompt's queries in cache. */
#include "data.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/kv_layout.h"
#include "base/file.h"

#define PAGE 64 /* keys */

struct heads {
    const struct kernels *k;
    enum kv_type type;
    int head_dim, n_q, n_pages;
    size_t row_bytes;
    uint8_t *kv; /* (n_pages, PAGE) of one head; serves as K and as V */
    size_t kv_bytes;
    float *q, *scores, *acc;
};

/* Pages in an order that no prefetcher knows. */
static const uint8_t *page_at(const struct heads *h, int call) {
    uint32_t page = (uint32_t)call * 2654435761u % (uint32_t)h->n_pages;
    return h->kv + page * PAGE * h->row_bytes;
}

static const uint8_t *next_page(const struct heads *h, int call) {
    return h->n_pages > 1 ? page_at(h, call + 1) : NULL;
}

static void scores_once(void *context, int call) {
    struct heads *h = context;
    h->k->attn_scores[h->type](h->q, h->head_dim, h->n_q, page_at(h, call), PAGE, h->head_dim,
                               0.125f, h->scores, PAGE, next_page(h, call));
}

static void values_once(void *context, int call) {
    struct heads *h = context;
    h->k->attn_values[h->type](h->scores, PAGE, h->n_q, page_at(h, call), h->row_bytes, PAGE,
                               h->head_dim, h->acc, h->head_dim, next_page(h, call));
}

static void exp_once(void *context, int call) {
    struct heads *h = context;
    (void)call;
    for (int j = 0; j < h->n_q; j++)
        h->scores[j * PAGE] += h->k->exp_sum(h->scores + j * PAGE, PAGE, 1.0f);
}

/* Pages with their numbers all alike: zeros and small ones would be another speed on some. */
static struct heads heads_new(struct check *c, enum kv_type type, int head_dim, int n_q,
                              int n_pages) {
    struct heads h = {.k = c->isa,
                      .type = type,
                      .head_dim = head_dim,
                      .n_q = n_q,
                      .n_pages = n_pages,
                      .row_bytes = kv_row_bytes(type, head_dim)};
    size_t page_bytes = PAGE * h.row_bytes;
    void *memory; /* as the CPU backend has its cache: in huge pages where there are any */
    REQUIRE(pages_alloc(page_bytes * (size_t)n_pages, &memory) == ATS_OK);
    h.kv = memory;
    h.kv_bytes = page_bytes * (size_t)n_pages;
    h.q = bench_memory((size_t)(n_q * head_dim) * sizeof(float));
    h.acc = bench_memory((size_t)(n_q * head_dim) * sizeof(float));
    h.scores = bench_memory((size_t)(n_q * PAGE) * sizeof(float));
    data_floats(c, DATA_RANDOM, h.q, (size_t)(n_q * head_dim));
    void *row = bench_memory(h.row_bytes);
    c->ref->kv_store[type](h.q, row, head_dim);
    for (int i = 0; i < n_pages; i++) {
        if (i) memcpy(h.kv + (size_t)i * page_bytes, h.kv, page_bytes);
        for (int slot = 0; i == 0 && slot < PAGE; slot++)
            kv_key_put(type, head_dim, row, h.kv, slot);
    }
    free(row);
    return h;
}

static void heads_free(struct heads *h) {
    pages_free(h->kv, h->kv_bytes);
    free(h->q);
    free(h->acc);
    free(h->scores);
}

/* Values of V's form; scores between 0 and 1. */
static void as_values(struct check *c, struct heads *h) {
    for (int i = 0; i < h->n_pages * PAGE; i++)
        c->isa->kv_store[h->type](h->q, h->kv + (size_t)i * h->row_bytes, h->head_dim);
    for (int i = 0; i < h->n_q * PAGE; i++)
        h->scores[i] = (float)(i % 8) / 8;
}

static void bench_decode(struct check *c, enum kv_type type, int head_dim, int n_q) {
    size_t page_bytes = PAGE * kv_row_bytes(type, head_dim);
    int n_pages = (int)(3 * bench_llc_bytes() / page_bytes);
    struct heads h = heads_new(c, type, head_dim, n_q, n_pages);
    double read = bench_read_gbs();
    printf("%-10s %-5s head_dim %3d, %2d queries", c->isa_name, kv_type_name(type), head_dim, n_q);
    for (int cached = 0; cached < 2; cached++) {
        h.n_pages = cached ? 1 : n_pages;
        double gbs = (double)page_bytes / bench_ns(scores_once, &h);
        printf("  K %s %6.1f GB/s", cached ? "cached" : "memory", gbs);
        if (!cached) printf(" %3.0f%%", 100 * gbs / read);
    }
    h.n_pages = n_pages;
    as_values(c, &h);
    for (int cached = 0; cached < 2; cached++) {
        h.n_pages = cached ? 1 : n_pages;
        double gbs = (double)page_bytes / bench_ns(values_once, &h);
        printf("  V %s %6.1f GB/s", cached ? "cached" : "memory", gbs);
        if (!cached) printf(" %3.0f%%", 100 * gbs / read);
    }
    printf("\n");
    fflush(stdout);
    heads_free(&h);
}

static void bench_prompt(struct check *c, enum kv_type type, int head_dim, double peak) {
    const int n_q = 48;
    struct heads h = heads_new(c, type, head_dim, n_q, 1);
    double ops = 2.0 * n_q * PAGE * head_dim, scores = ops / bench_ns(scores_once, &h);
    as_values(c, &h);
    double values = ops / bench_ns(values_once, &h);
    printf("%-10s %-5s head_dim %3d, %2d queries  K %6.1f GFLOP/s", c->isa_name, kv_type_name(type),
           head_dim, n_q, scores);
    if (peak > 0) printf(" %3.0f%%", 100 * scores / peak);
    printf("  V %6.1f GFLOP/s", values);
    if (peak > 0) printf(" %3.0f%%", 100 * values / peak);
    printf("  %.2f ns an exponential\n", bench_ns(exp_once, &h) / (n_q * PAGE));
    fflush(stdout);
    heads_free(&h);
}

void bench_attention(struct check *c) {
    bool head = false;
    double peak = 0;
    for (int i = 0; i < KV_TYPE_COUNT; i++) {
        const enum kv_type type = (enum kv_type)i;
        if (!check_kernel(c, true, "attention/%s", kv_type_name(type))) continue;
        if (!head) peak = bench_float_gflops(c, false);
        if (!head)
            printf("a page of a head of the cache: from memory (share of a read beside it) and "
                   "cached; many queries: share of %.0f GFLOP/s (0: not known)\n",
                   peak);
        head = true;
        bench_decode(c, type, 64, 1);
        bench_decode(c, type, 64, 3);
        bench_decode(c, type, 128, 4);
        bench_decode(c, type, 128, 8);
        bench_prompt(c, type, 64, peak);
        bench_prompt(c, type, 128, peak);
    }
}
