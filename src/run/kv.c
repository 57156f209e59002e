#include "run/kv.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

struct page_pool {
    int window, n_pages;
    int32_t *free_pages; /* (n_free) a stack, so that a page just given back is used next */
    int n_free;
    int32_t *refs; /* (n_pages) sequences that hold the page */
};

struct kv {
    int n_ctx, n_classes, n_seqs;
    struct page_pool pools[KV_MAX_CLASSES];
    struct kv_copy *copies; /* (n_copies) */
    size_t n_copies, copies_cap;
};

static size_t pages_of(size_t n_tokens) {
    return (n_tokens + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS;
}

/* Pages at the beginning that no token from position n on looks at. */
static size_t pages_out_of_window(int window, size_t n) {
    if (window == 0 || n < (size_t)window) return 0;
    return (n - (size_t)window + 1) / KV_PAGE_TOKENS;
}

int kv_pages_needed(int window, int n_ctx, int n_seqs, int n_batch) {
    REQUIRE(window >= 0 && n_ctx > 0 && n_seqs > 0 && n_batch > 0);
    int64_t per_seq = (int64_t)pages_of((size_t)n_ctx);
    if (window > 0) { /* window - 1 old tokens and a batch, lying across one more page border */
        int64_t live = (int64_t)pages_of((size_t)window - 1 + (size_t)n_batch) + 1;
        per_seq = min_i64(per_seq, live);
    }
    int64_t total = per_seq * n_seqs;
    return total <= INT32_MAX ? (int)total : 0;
}

ats_status kv_open(const struct kv_class *classes, int n_classes, int n_ctx, struct kv **out) {
    *out = NULL;
    if (n_ctx < 1) return fail(ATS_BAD_ARGUMENT, "KV cache: n_ctx %d is below 1", n_ctx);
    if (n_classes < 1 || n_classes > KV_MAX_CLASSES)
        return fail(ATS_BAD_ARGUMENT, "KV cache: %d layer classes, 1 to %d can be", n_classes,
                    KV_MAX_CLASSES);
    for (int c = 0; c < n_classes; c++)
        if (classes[c].window < 0 || classes[c].n_pages < 1)
            return fail(ATS_BAD_ARGUMENT, "KV cache: class %d has window %d and %d pages", c,
                        classes[c].window, classes[c].n_pages);
    struct kv *kv = xcalloc(1, sizeof *kv);
    kv->n_ctx = n_ctx;
    kv->n_classes = n_classes;
    for (int c = 0; c < n_classes; c++) {
        struct page_pool *pool = &kv->pools[c];
        int n = classes[c].n_pages;
        *pool = (struct page_pool){.window = classes[c].window, .n_pages = n, .n_free = n};
        pool->free_pages = xcalloc((size_t)n, sizeof *pool->free_pages);
        pool->refs = xcalloc((size_t)n, sizeof *pool->refs);
        for (int i = 0; i < n; i++)
            pool->free_pages[i] = n - 1 - i; /* page 0 goes first */
    }
    *out = kv;
    return ATS_OK;
}

void kv_close(struct kv *kv) {
    if (!kv) return;
    REQUIRE(kv->n_seqs == 0);
    for (int c = 0; c < kv->n_classes; c++) {
        free(kv->pools[c].free_pages);
        free(kv->pools[c].refs);
    }
    free(kv->copies);
    free(kv);
}

int kv_n_classes(const struct kv *kv) {
    return kv->n_classes;
}

int kv_free_pages(const struct kv *kv, int class_index) {
    REQUIRE(class_index >= 0 && class_index < kv->n_classes);
    return kv->pools[class_index].n_free;
}

int kv_page_refs(const struct kv *kv, int class_index, int32_t page) {
    REQUIRE(class_index >= 0 && class_index < kv->n_classes);
    const struct page_pool *pool = &kv->pools[class_index];
    REQUIRE(page >= 0 && page < pool->n_pages);
    return pool->refs[page];
}

static int32_t page_take(struct page_pool *pool) {
    REQUIRE(pool->n_free > 0);
    int32_t page = pool->free_pages[--pool->n_free];
    pool->refs[page] = 1;
    return page;
}

static void page_release(struct page_pool *pool, int32_t page) {
    if (page == KV_NO_PAGE) return;
    REQUIRE(pool->refs[page] > 0);
    if (--pool->refs[page] == 0) pool->free_pages[pool->n_free++] = page;
}

struct kv_seq *kv_seq_open(struct kv *kv) {
    struct kv_seq *seq = xcalloc(1, sizeof *seq);
    seq->kv = kv;
    for (int c = 0; c < kv->n_classes; c++)
        seq->tables[c].pages = xcalloc(pages_of((size_t)kv->n_ctx), sizeof(int32_t));
    kv->n_seqs++;
    return seq;
}

/* Gives back the pages from n_kept on. */
static void table_shrink(struct page_pool *pool, struct kv_table *table, size_t n_kept) {
    while ((size_t)table->n_pages > n_kept)
        page_release(pool, table->pages[--table->n_pages]);
    table->n_dropped = min_int(table->n_dropped, table->n_pages);
}

void kv_seq_close(struct kv_seq *seq) {
    if (!seq) return;
    struct kv *kv = seq->kv;
    for (int c = 0; c < kv->n_classes; c++) {
        table_shrink(&kv->pools[c], &seq->tables[c], 0);
        free(seq->tables[c].pages);
    }
    kv->n_seqs--;
    free(seq->tokens);
    free(seq);
}

struct kv_seq *kv_fork(const struct kv_seq *seq) {
    struct kv *kv = seq->kv;
    struct kv_seq *copy = kv_seq_open(kv);
    if (seq->n_tokens > 0) {
        GROW(copy->tokens, 0, copy->tokens_cap, seq->n_tokens);
        memcpy(copy->tokens, seq->tokens, seq->n_tokens * sizeof *seq->tokens);
    }
    copy->n_tokens = seq->n_tokens;
    for (int c = 0; c < kv->n_classes; c++) {
        const struct kv_table *from = &seq->tables[c];
        struct kv_table *to = &copy->tables[c];
        to->n_pages = from->n_pages;
        to->n_dropped = from->n_dropped;
        for (int i = 0; i < from->n_pages; i++) {
            to->pages[i] = from->pages[i];
            if (to->pages[i] != KV_NO_PAGE) kv->pools[c].refs[to->pages[i]]++;
        }
    }
    return copy;
}

/* True if the page that the next token goes into holds tokens and is not this sequence's alone. */
static bool last_page_is_shared(const struct page_pool *pool, const struct kv_table *table,
                                size_t n_tokens) {
    if (n_tokens % KV_PAGE_TOKENS == 0) return false;
    return pool->refs[table->pages[n_tokens / KV_PAGE_TOKENS]] > 1;
}

/* Whether the pages for n tokens more are there, counting those that the append gives back. */
static bool pages_suffice(const struct page_pool *pool, const struct kv_table *table,
                          size_t n_tokens, size_t n) {
    size_t n_wanted = pages_of(n_tokens + n) - (size_t)table->n_pages;
    n_wanted += last_page_is_shared(pool, table, n_tokens);
    size_t n_there = (size_t)pool->n_free, n_out = pages_out_of_window(pool->window, n_tokens);
    for (size_t i = (size_t)table->n_dropped; i < n_out; i++)
        n_there += pool->refs[table->pages[i]] == 1;
    return n_wanted <= n_there;
}

/* Gives back what has left the window for the token at position n and all later ones. */
static void table_drop(struct page_pool *pool, struct kv_table *table, size_t n) {
    size_t n_out = pages_out_of_window(pool->window, n);
    for (; (size_t)table->n_dropped < n_out; table->n_dropped++) {
        page_release(pool, table->pages[table->n_dropped]);
        table->pages[table->n_dropped] = KV_NO_PAGE;
    }
}

static void table_append(struct kv *kv, struct kv_seq *seq, int class_index, size_t n) {
    struct page_pool *pool = &kv->pools[class_index];
    struct kv_table *table = &seq->tables[class_index];
    table_drop(pool, table, seq->n_tokens);
    if (last_page_is_shared(pool, table, seq->n_tokens)) {
        int32_t *page = &table->pages[seq->n_tokens / KV_PAGE_TOKENS];
        GROW(kv->copies, kv->n_copies, kv->copies_cap, 1);
        struct kv_copy *copy = &kv->copies[kv->n_copies++];
        *copy = (struct kv_copy){.class_index = class_index, .src = *page};
        copy->n_tokens = (int)(seq->n_tokens % KV_PAGE_TOKENS);
        copy->dst = page_take(pool);
        page_release(pool, *page);
        *page = copy->dst;
    }
    size_t n_pages = pages_of(seq->n_tokens + n);
    while ((size_t)table->n_pages < n_pages)
        table->pages[table->n_pages++] = page_take(pool);
}

ats_status kv_append(struct kv_seq *seq, const int32_t *tokens, size_t n) {
    struct kv *kv = seq->kv;
    if (n > (size_t)kv->n_ctx - seq->n_tokens)
        return fail(ATS_CONTEXT_FULL, "%zu tokens and %zu more do not fit a context of %d",
                    seq->n_tokens, n, kv->n_ctx);
    if (n == 0) return ATS_OK;
    for (int c = 0; c < kv->n_classes; c++)
        if (!pages_suffice(&kv->pools[c], &seq->tables[c], seq->n_tokens, n))
            return fail(ATS_NO_MEMORY, "KV cache: %d of %d pages are free, too few for %zu tokens",
                        kv->pools[c].n_free, kv->pools[c].n_pages, n);
    for (int c = 0; c < kv->n_classes; c++)
        table_append(kv, seq, c, n);
    GROW(seq->tokens, seq->n_tokens, seq->tokens_cap, n);
    memcpy(seq->tokens + seq->n_tokens, tokens, n * sizeof *tokens);
    seq->n_tokens += n;
    return ATS_OK;
}

size_t kv_truncate(struct kv_seq *seq, size_t n) {
    REQUIRE(n <= seq->n_tokens);
    struct kv *kv = seq->kv;
    for (int c = 0; c < kv->n_classes; c++)
        if (pages_out_of_window(kv->pools[c].window, n) < (size_t)seq->tables[c].n_dropped) n = 0;
    for (int c = 0; c < kv->n_classes; c++)
        table_shrink(&kv->pools[c], &seq->tables[c], pages_of(n));
    seq->n_tokens = n;
    return n;
}

void kv_rollback(struct kv_seq *seq, size_t n_before) {
    size_t n_kept = kv_truncate(seq, n_before);
    REQUIRE(n_kept == n_before); /* one append drops only what position n_before cannot see */
}

size_t kv_common_prefix(const struct kv_seq *seq, const int32_t *tokens, size_t n) {
    size_t i = 0, end = min_size(n, seq->n_tokens);
    while (i < end && seq->tokens[i] == tokens[i])
        i++;
    return i;
}

const struct kv_copy *kv_copies(const struct kv *kv, size_t *n) {
    *n = kv->n_copies;
    return kv->copies;
}

void kv_copies_done(struct kv *kv) {
    kv->n_copies = 0;
}
