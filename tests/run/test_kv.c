#include "run/kv.h"

#include "base/arena.h"
#include "base/rng.h"

#include "support.h"

enum { N_CTX = 300 };

static struct kv *open_one(int window, int n_pages, int n_ctx) {
    struct kv *kv;
    TEST_OK(kv_open(&(struct kv_class){.window = window, .n_pages = n_pages}, 1, n_ctx, &kv));
    return kv;
}

static void append(struct kv_seq *seq, int32_t first, size_t n) {
    int32_t tokens[N_CTX];
    assert_true(n <= N_CTX);
    for (size_t i = 0; i < n; i++)
        tokens[i] = first + (int32_t)i;
    TEST_OK(kv_append(seq, tokens, n));
}

static void appending_takes_a_page_per_64_tokens(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 5, N_CTX);
    struct kv_seq *seq = kv_seq_open(kv);
    append(seq, 0, 0);
    assert_int_equal(seq->tables[0].n_pages, 0);
    append(seq, 0, 64);
    assert_int_equal(seq->tables[0].n_pages, 1);
    append(seq, 64, 1);
    assert_int_equal(seq->tables[0].n_pages, 2);
    append(seq, 65, 235);
    assert_int_equal(seq->tables[0].n_pages, 5);
    assert_int_equal(kv_free_pages(kv, 0), 0);
    for (int i = 0; i < N_CTX; i++)
        assert_int_equal(seq->tokens[i], i);
    for (int i = 0; i < 5; i++)
        assert_int_equal(seq->tables[0].pages[i], i);
    kv_seq_close(seq);
    assert_int_equal(kv_free_pages(kv, 0), 5);
    kv_close(kv);
}

static void a_full_context_is_refused_and_changes_nothing(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 10, 100);
    struct kv_seq *seq = kv_seq_open(kv);
    append(seq, 0, 90);
    int32_t tokens[11] = {0};
    TEST_STATUS(kv_append(seq, tokens, 11), ATS_CONTEXT_FULL);
    TEST_ERROR_HAS("100");
    TEST_STATUS(kv_append(seq, tokens, SIZE_MAX), ATS_CONTEXT_FULL);
    assert_int_equal(seq->n_tokens, 90);
    assert_int_equal(seq->tables[0].n_pages, 2);
    assert_int_equal(kv_free_pages(kv, 0), 8);
    append(seq, 90, 10);
    kv_seq_close(seq);
    kv_close(kv);
}

static void exhausted_pages_are_refused_and_change_nothing(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 3, N_CTX);
    struct kv_seq *a = kv_seq_open(kv), *b = kv_seq_open(kv);
    append(a, 0, 100);
    int32_t tokens[65] = {0};
    TEST_STATUS(kv_append(b, tokens, 65), ATS_NO_MEMORY);
    TEST_ERROR_HAS("1 of 3");
    assert_int_equal(b->n_tokens, 0);
    assert_int_equal(b->tables[0].n_pages, 0);
    append(b, 0, 64);
    struct kv_seq *fork = kv_fork(a); /* its next token needs a copy, and no page is left */
    TEST_STATUS(kv_append(fork, tokens, 1), ATS_NO_MEMORY);
    TEST_STATUS(kv_append(a, tokens, 1), ATS_NO_MEMORY);
    size_t n_copies;
    kv_copies(kv, &n_copies);
    assert_int_equal(n_copies, 0);
    assert_int_equal(kv_page_refs(kv, 0, a->tables[0].pages[1]), 2);
    kv_seq_close(fork);
    append(a, 100, 1);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_close(kv);
}

static void truncating_gives_back_the_pages_behind(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 5, N_CTX);
    struct kv_seq *seq = kv_seq_open(kv);
    append(seq, 0, 200);
    assert_int_equal(kv_truncate(seq, 129), 129);
    assert_int_equal(seq->tables[0].n_pages, 3);
    assert_int_equal(kv_truncate(seq, 128), 128);
    assert_int_equal(seq->tables[0].n_pages, 2);
    assert_int_equal(kv_free_pages(kv, 0), 3);
    assert_int_equal(kv_truncate(seq, 0), 0);
    assert_int_equal(kv_free_pages(kv, 0), 5);
    kv_seq_close(seq);
    kv_close(kv);
}

static void rolling_back_restores_a_failed_round(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 5, N_CTX);
    struct kv_seq *seq = kv_seq_open(kv);
    append(seq, 0, 60);
    append(seq, 60, 100);
    kv_rollback(seq, 60);
    assert_int_equal(seq->n_tokens, 60);
    assert_int_equal(seq->tables[0].n_pages, 1);
    assert_int_equal(kv_free_pages(kv, 0), 4);
    kv_seq_close(seq);
    kv_close(kv);
}

static void a_shared_partial_page_is_copied_before_it_is_written(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 5, N_CTX);
    struct kv_seq *a = kv_seq_open(kv);
    append(a, 0, 100);
    struct kv_seq *b = kv_fork(a);
    assert_int_equal(kv_free_pages(kv, 0), 3);
    assert_memory_equal(b->tokens, a->tokens, 100 * sizeof(int32_t));
    append(b, 1000, 1);
    size_t n;
    const struct kv_copy *copies = kv_copies(kv, &n);
    assert_int_equal(n, 1);
    assert_int_equal(copies[0].src, a->tables[0].pages[1]);
    assert_int_equal(copies[0].dst, b->tables[0].pages[1]);
    assert_int_equal(copies[0].n_tokens, 36);
    assert_int_not_equal(copies[0].src, copies[0].dst);
    assert_int_equal(a->tables[0].pages[0], b->tables[0].pages[0]);
    append(a, 100, 1); /* alone on its page by now */
    kv_copies(kv, &n);
    assert_int_equal(n, 1);
    kv_copies_done(kv);
    kv_copies(kv, &n);
    assert_int_equal(n, 0);
    kv_seq_close(a);
    assert_int_equal(kv_page_refs(kv, 0, b->tables[0].pages[0]), 1);
    kv_seq_close(b);
    kv_close(kv);
}

static void a_full_shared_page_is_not_copied(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 5, N_CTX);
    struct kv_seq *a = kv_seq_open(kv);
    append(a, 0, 128);
    struct kv_seq *b = kv_fork(a);
    append(b, 128, 1);
    append(a, 128, 1);
    size_t n;
    kv_copies(kv, &n);
    assert_int_equal(n, 0);
    assert_int_not_equal(a->tables[0].pages[2], b->tables[0].pages[2]);
    kv_truncate(b, 100); /* writing into the middle of a shared page does copy it */
    append(b, 500, 1);
    const struct kv_copy *copies = kv_copies(kv, &n);
    assert_int_equal(n, 1);
    assert_int_equal(copies[0].n_tokens, 36);
    kv_seq_close(a);
    kv_seq_close(b);
    kv_close(kv);
}

static void common_prefix_stops_at_the_first_difference_or_end(void **state) {
    (void)state;
    struct kv *kv = open_one(0, 5, N_CTX);
    struct kv_seq *seq = kv_seq_open(kv);
    int32_t tokens[5] = {0, 1, 2, 7, 8};
    assert_int_equal(kv_common_prefix(seq, tokens, 5), 0);
    append(seq, 0, 4);
    assert_int_equal(kv_common_prefix(seq, tokens, 5), 3);
    assert_int_equal(kv_common_prefix(seq, tokens, 2), 2);
    assert_int_equal(kv_common_prefix(seq, NULL, 0), 0);
    tokens[3] = 3;
    assert_int_equal(kv_common_prefix(seq, tokens, 5), 4);
    kv_seq_close(seq);
    kv_close(kv);
}

static void pages_that_left_the_window_are_given_back(void **state) {
    (void)state;
    int n_pages = kv_pages_needed(100, N_CTX, 1, 1);
    assert_int_equal(n_pages, 3); /* 99 old tokens and a new one lie on three at most */
    struct kv *kv = open_one(100, n_pages, N_CTX);
    struct kv_seq *seq = kv_seq_open(kv);
    const struct kv_table *table = &seq->tables[0];
    for (int p = 0; p < N_CTX; p++) { /* the token at p sees p - 99 .. p */
        append(seq, p, 1);
        for (int i = max_int(p - 99, 0) / 64; i <= p / 64; i++)
            assert_int_not_equal(table->pages[i], KV_NO_PAGE);
        if (p == 162) assert_int_equal(table->n_dropped, 0); /* still sees 63 */
        if (p == 163) assert_int_equal(table->n_dropped, 1);
        if (p == 163) assert_int_equal(table->pages[0], KV_NO_PAGE);
    }
    assert_int_equal(kv_truncate(seq, 291), 291); /* sees 192 and later, as kept */
    assert_int_equal(kv_truncate(seq, 200), 0);   /* would see 101, which is gone */
    assert_int_equal(seq->n_tokens, 0);
    assert_int_equal(kv_free_pages(kv, 0), 3);
    append(seq, 0, 1);
    kv_seq_close(seq);
    kv_close(kv);
}

static void a_shared_page_that_leaves_the_window_frees_nothing(void **state) {
    (void)state;
    struct kv *kv = open_one(10, 3, N_CTX);
    struct kv_seq *a = kv_seq_open(kv);
    append(a, 0, 128);
    struct kv_seq *b = kv_fork(a);
    int32_t tokens[65] = {0};
    TEST_STATUS(kv_append(a, tokens, 65), ATS_NO_MEMORY); /* two pages; b still holds the first */
    assert_int_equal(a->tables[0].n_dropped, 0);
    kv_seq_close(b);
    TEST_OK(kv_append(a, tokens, 65));
    assert_int_equal(a->tables[0].n_dropped, 1);
    kv_seq_close(a);
    kv_close(kv);
}

static void a_window_never_stands_in_the_way_of_a_rollback(void **state) {
    (void)state;
    struct kv *kv = open_one(10, 4, N_CTX);
    struct kv_seq *seq = kv_seq_open(kv);
    for (size_t n = 0; n < N_CTX - 70; n += 7) {
        append(seq, 0, 70);
        kv_rollback(seq, n);
        append(seq, 0, 7);
    }
    kv_seq_close(seq);
    assert_int_equal(kv_free_pages(kv, 0), 4);
    kv_close(kv);
}

static void the_reserve_lets_every_sequence_reach_n_ctx(void **state) {
    (void)state;
    const int windows[] = {0, 1, 63, 64, 65, 128, 200, 1000};
    const int batches[] = {1, 3, 64, 100, 300};
    for (size_t w = 0; w < COUNT_OF(windows); w++)
        for (size_t b = 0; b < COUNT_OF(batches); b++) {
            int n_pages = kv_pages_needed(windows[w], N_CTX, 3, batches[b]);
            assert_true(n_pages <= 15);
            struct kv *kv = open_one(windows[w], n_pages, N_CTX);
            struct kv_seq *seqs[3];
            for (int s = 0; s < 3; s++)
                seqs[s] = kv_seq_open(kv);
            for (int at = 0; at < N_CTX; at += batches[b])
                for (int s = 0; s < 3; s++)
                    append(seqs[s], at, (size_t)min_int(batches[b], N_CTX - at));
            for (int s = 0; s < 3; s++)
                kv_seq_close(seqs[s]);
            kv_close(kv);
        }
    assert_int_equal(kv_pages_needed(0, 65, 2, 512), 4);
    assert_int_equal(kv_pages_needed(0, INT32_MAX, 1000, 512), 0);
}

static void wrong_classes_are_refused(void **state) {
    (void)state;
    struct kv *kv;
    struct kv_class c[KV_MAX_CLASSES + 1] = {{0, 1}, {0, 1}, {0, 1}, {0, 1}, {0, 1}};
    TEST_STATUS(kv_open(c, 0, 10, &kv), ATS_BAD_ARGUMENT);
    TEST_STATUS(kv_open(c, KV_MAX_CLASSES + 1, 10, &kv), ATS_BAD_ARGUMENT);
    TEST_STATUS(kv_open(c, 1, 0, &kv), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("n_ctx");
    c[1].n_pages = 0;
    TEST_STATUS(kv_open(c, 2, 10, &kv), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("class 1");
    c[1] = (struct kv_class){-1, 1};
    TEST_STATUS(kv_open(c, 2, 10, &kv), ATS_BAD_ARGUMENT);
    assert_null(kv);
    kv_close(NULL);
    kv_seq_close(NULL);
}

/* ------------------------------------------------------------------------- random operations */

/* The model: plain token arrays, and pages with a content, as an executor would have them. Slot
 * contents are what was written; a sequence must read its own tokens through its table. */
enum { M_CLASSES = 3, M_SEQS = 8, M_PAGES = 12 };

struct world {
    struct kv *kv;
    struct rng rng;
    struct kv_class classes[M_CLASSES];
    int32_t content[M_CLASSES][M_PAGES][KV_PAGE_TOKENS];
    struct kv_seq *seqs[M_SEQS]; /* NULL: not open */
    int32_t tokens[M_SEQS][N_CTX];
    size_t n_tokens[M_SEQS];
    int n_full, n_exhausted, n_copies, n_pending, n_forced; /* that each case was met */
};

/* What the executor does before a round. */
static void world_copies(struct world *w) {
    size_t n;
    const struct kv_copy *copies = kv_copies(w->kv, &n);
    for (size_t i = 0; i < n; i++)
        memcpy(w->content[copies[i].class_index][copies[i].dst],
               w->content[copies[i].class_index][copies[i].src],
               (size_t)copies[i].n_tokens * sizeof(int32_t));
    w->n_copies += (int)n;
    kv_copies_done(w->kv);
}

static void world_write(struct world *w, int s, size_t from) {
    for (int c = 0; c < M_CLASSES; c++)
        for (size_t p = from; p < w->n_tokens[s]; p++) {
            int32_t page = w->seqs[s]->tables[c].pages[p / KV_PAGE_TOKENS];
            w->content[c][page][p % KV_PAGE_TOKENS] = w->tokens[s][p];
        }
}

static void world_append(struct world *w, int s) {
    struct kv_seq *seq = w->seqs[s];
    int32_t tokens[130];
    size_t n = rng_below(&w->rng, 4) ? rng_below(&w->rng, 20) : rng_below(&w->rng, 130);
    for (size_t i = 0; i < n; i++)
        tokens[i] = (int32_t)(rng_next(&w->rng) >> 40);
    int n_free[M_CLASSES];
    for (int c = 0; c < M_CLASSES; c++)
        n_free[c] = kv_free_pages(w->kv, c);
    size_t n_before = w->n_tokens[s], copies_before, copies_after;
    kv_copies(w->kv, &copies_before);
    ats_status status = kv_append(seq, tokens, n);
    if (n_before + n > N_CTX) assert_int_equal(status, ATS_CONTEXT_FULL);
    if (status != ATS_OK) {
        if (status == ATS_CONTEXT_FULL) w->n_full++;
        if (status == ATS_NO_MEMORY) w->n_exhausted++;
        assert_true(status == ATS_NO_MEMORY || n_before + n > N_CTX);
        assert_int_equal(seq->n_tokens, n_before);
        for (int c = 0; c < M_CLASSES; c++)
            assert_int_equal(kv_free_pages(w->kv, c), n_free[c]);
        kv_copies(w->kv, &copies_after);
        assert_int_equal(copies_before, copies_after);
        return;
    }
    if (rng_below(&w->rng, 8) == 0) { /* the round fails, before or after the copies */
        if (rng_below(&w->rng, 2)) world_copies(w);
        kv_rollback(seq, n_before);
        return;
    }
    memcpy(w->tokens[s] + n_before, tokens, n * sizeof *tokens);
    w->n_tokens[s] += n;
    world_copies(w);
    world_write(w, s, n_before);
}

static void world_truncate(struct world *w, int s) {
    size_t n = rng_below(&w->rng, (uint32_t)w->n_tokens[s] + 1);
    bool lost = false;
    for (int c = 0; c < M_CLASSES; c++) {
        const struct kv_table *table = &w->seqs[s]->tables[c];
        size_t window = (size_t)w->classes[c].window;
        size_t first_seen = window && n >= window ? n - window + 1 : 0;
        if (n > 0 && first_seen / KV_PAGE_TOKENS < (size_t)table->n_dropped) lost = true;
    }
    size_t kept = kv_truncate(w->seqs[s], n);
    assert_int_equal(kept, lost ? 0 : n);
    w->n_forced += lost;
    w->n_tokens[s] = kept;
}

static void world_fork(struct world *w, int s) {
    int to = 0;
    while (to < M_SEQS && w->seqs[to])
        to++;
    if (to == M_SEQS) return;
    w->seqs[to] = kv_fork(w->seqs[s]);
    w->n_tokens[to] = w->n_tokens[s];
    memcpy(w->tokens[to], w->tokens[s], sizeof w->tokens[s]);
}

static void world_step(struct world *w) {
    int s = (int)rng_below(&w->rng, M_SEQS);
    if (!w->seqs[s]) {
        w->seqs[s] = kv_seq_open(w->kv);
        w->n_tokens[s] = 0;
        return;
    }
    uint32_t what = rng_below(&w->rng, 100);
    if (what < 70) {
        world_append(w, s);
    } else if (what < 85) {
        world_truncate(w, s);
    } else if (what < 92) {
        world_fork(w, s);
    } else {
        kv_seq_close(w->seqs[s]);
        w->seqs[s] = NULL;
    }
}

static void world_check_seq(const struct world *w, int s, int refs[M_CLASSES][M_PAGES]) {
    const struct kv_seq *seq = w->seqs[s];
    assert_int_equal(seq->n_tokens, w->n_tokens[s]);
    if (seq->n_tokens)
        assert_memory_equal(seq->tokens, w->tokens[s], seq->n_tokens * sizeof(int32_t));
    for (int c = 0; c < M_CLASSES; c++) {
        const struct kv_table *table = &seq->tables[c];
        size_t n = seq->n_tokens, window = (size_t)w->classes[c].window;
        assert_int_equal(table->n_pages, (n + KV_PAGE_TOKENS - 1) / KV_PAGE_TOKENS);
        for (int i = 0; i < table->n_pages; i++) {
            assert_true((table->pages[i] == KV_NO_PAGE) == (i < table->n_dropped));
            if (i >= table->n_dropped) refs[c][table->pages[i]]++;
        }
        for (size_t p = window && n >= window ? n - window + 1 : 0; p < n; p++) {
            int32_t page = table->pages[p / KV_PAGE_TOKENS];
            assert_true(page != KV_NO_PAGE);
            assert_int_equal(w->content[c][page][p % KV_PAGE_TOKENS], w->tokens[s][p]);
        }
    }
}

static void world_check(const struct world *w) {
    int refs[M_CLASSES][M_PAGES] = {{0}};
    for (int s = 0; s < M_SEQS; s++)
        if (w->seqs[s]) world_check_seq(w, s, refs);
    for (int c = 0; c < M_CLASSES; c++) {
        int n_free = 0;
        for (int p = 0; p < M_PAGES; p++) {
            assert_int_equal(kv_page_refs(w->kv, c, p), refs[c][p]);
            n_free += refs[c][p] == 0;
        }
        assert_int_equal(kv_free_pages(w->kv, c), n_free);
    }
}

static void random_operations_agree_with_a_plain_model(void **state) {
    (void)state;
    struct world *w = xcalloc(1, sizeof *w);
    rng_seed(&w->rng, 7);
    w->classes[0] = (struct kv_class){.window = 0, .n_pages = M_PAGES};
    w->classes[1] = (struct kv_class){.window = 70, .n_pages = M_PAGES};
    w->classes[2] = (struct kv_class){.window = 1, .n_pages = M_PAGES};
    TEST_OK(kv_open(w->classes, M_CLASSES, N_CTX, &w->kv));
    for (int step = 0; step < 100000; step++) {
        world_step(w);
        size_t n_copies;
        kv_copies(w->kv, &n_copies);
        if (n_copies > 0) w->n_pending++; /* content is right once they are made */
        if (n_copies == 0 && step % 8 == 0) world_check(w);
    }
    assert_true(w->n_full > 100);
    assert_true(w->n_exhausted > 100);
    assert_true(w->n_copies > 1000);
    assert_true(w->n_forced > 100);
    assert_true(w->n_pending > 100);
    world_copies(w);
    for (int s = 0; s < M_SEQS; s++) {
        kv_seq_close(w->seqs[s]);
        w->seqs[s] = NULL;
    }
    world_check(w);
    kv_close(w->kv);
    free(w);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appending_takes_a_page_per_64_tokens),
        cmocka_unit_test(a_full_context_is_refused_and_changes_nothing),
        cmocka_unit_test(exhausted_pages_are_refused_and_change_nothing),
        cmocka_unit_test(truncating_gives_back_the_pages_behind),
        cmocka_unit_test(rolling_back_restores_a_failed_round),
        cmocka_unit_test(a_shared_partial_page_is_copied_before_it_is_written),
        cmocka_unit_test(a_full_shared_page_is_not_copied),
        cmocka_unit_test(common_prefix_stops_at_the_first_difference_or_end),
        cmocka_unit_test(pages_that_left_the_window_are_given_back),
        cmocka_unit_test(a_shared_page_that_leaves_the_window_frees_nothing),
        cmocka_unit_test(a_window_never_stands_in_the_way_of_a_rollback),
        cmocka_unit_test(the_reserve_lets_every_sequence_reach_n_ctx),
        cmocka_unit_test(wrong_classes_are_refused),
        cmocka_unit_test(random_operations_agree_with_a_plain_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
