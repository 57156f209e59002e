/* What sessions hold after every kind of success and failure, and what an evaluation gives: to the
 * bit what a fresh session would have. Models: the oracles, for their size. */
#include "agree.h"

#include "base/file.h"

#include <math.h>
#include <unistd.h>

enum { N_IDS = 150 };
static int32_t ids[N_IDS]; /* any tokens of the vocabulary of 640 */

static ats_options llama_options(void) {
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 11) % 620;
    return agree_llama();
}

static ats_session *session_open(ats_engine *e) {
    ats_session *s;
    TEST_OK(ats_session_open(e, &s));
    return s;
}

static ats_status feed(ats_engine *e, ats_session *s, const int32_t *tokens, size_t n) {
    ats_run run = {s, tokens, n, ATS_WANT_LAST, NULL};
    return ats_eval(e, &run, 1);
}

static void expect_tokens(const ats_session *s, const int32_t *want, size_t n) {
    size_t has;
    const int32_t *tokens = ats_session_tokens(s, &has);
    assert_int_equal(has, n);
    if (n) assert_memory_equal(tokens, want, n * sizeof *want);
}

/* The session's logits are, to the bit, those of a fresh session after the same tokens. */
static void expect_fresh(ats_engine *e, ats_session *s) {
    size_t n, width = (size_t)agree_vocab(e);
    const int32_t *tokens = ats_session_tokens(s, &n);
    const float *logits = ats_session_logits(s);
    assert_non_null(logits);
    ats_session *fresh = session_open(e);
    TEST_OK(feed(e, fresh, tokens, n));
    assert_memory_equal(logits, ats_session_logits(fresh), width * sizeof *logits);
    ats_session_close(fresh);
}

/* ---- sessions ---- */

static void no_more_sessions_than_said(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 2;
    ats_engine *e = agree_open(&o);
    ats_session *a = session_open(e), *b = session_open(e), *c;
    TEST_STATUS(ats_session_open(e, &c), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("2 sessions");
    assert_null(c);
    ats_session_close(a);
    a = session_open(e);
    expect_tokens(a, NULL, 0);
    assert_null(ats_session_logits(a));
    ats_session_close(a), ats_session_close(b), ats_session_close(NULL);
    ats_engine_close(e);
    ats_engine_close(NULL);
}

static void every_session_may_fill_its_context_at_once(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 3;
    o.n_ctx = 100;
    o.n_batch = 64;
    ats_engine *e = agree_open(&o);
    ats_session *s[3];
    ats_run runs[3];
    for (int i = 0; i < 3; i++) {
        s[i] = session_open(e);
        runs[i] = (ats_run){s[i], ids + i, 100, ATS_WANT_LAST, NULL};
    }
    TEST_OK(ats_eval(e, runs, 3));
    for (int i = 0; i < 3; i++) {
        expect_tokens(s[i], ids + i, 100);
        assert_non_null(ats_session_logits(s[i]));
    }
    for (int i = 0; i < 3; i++)
        ats_session_close(s[i]);
    ats_engine_close(e);
}

static void a_full_context_leaves_everything_as_it_was(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_ctx = 64;
    o.n_seqs = 3;
    ats_engine *e = agree_open(&o);
    ats_session *s = session_open(e), *other = session_open(e);
    TEST_OK(feed(e, s, ids, 60));
    TEST_STATUS(feed(e, s, ids + 60, 5), ATS_CONTEXT_FULL);
    TEST_ERROR_HAS("60");
    expect_tokens(s, ids, 60);
    expect_fresh(e, s);
    /* of two runs, one does not fit: neither is evaluated */
    ats_run runs[2] = {{other, ids, 10, ATS_WANT_LAST, NULL}, {s, ids, 5, ATS_WANT_LAST, NULL}};
    TEST_STATUS(ats_eval(e, runs, 2), ATS_CONTEXT_FULL);
    expect_tokens(other, NULL, 0);
    expect_tokens(s, ids, 60);
    assert_non_null(ats_session_logits(s));
    TEST_OK(feed(e, s, ids + 60, 4)); /* the last that fit */
    expect_tokens(s, ids, 64);
    expect_fresh(e, s);
    TEST_STATUS(feed(e, s, ids, 1), ATS_CONTEXT_FULL);
    TEST_STATUS(ats_session_set(s, ids, 65, NULL), ATS_CONTEXT_FULL);
    expect_tokens(s, ids, 64);
    ats_session_close(s), ats_session_close(other);
    ats_engine_close(e);
}

static void ids_outside_the_vocabulary_are_refused(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 2;
    ats_engine *e = agree_open(&o);
    ats_session *s = session_open(e);
    TEST_OK(feed(e, s, ids, 5));
    static const int32_t bad[] = {-1, 640, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < 4; i++) {
        int32_t tokens[] = {1, 2, bad[i]};
        char text[32];
        snprintf(text, sizeof text, "%d", bad[i]);
        TEST_STATUS(feed(e, s, tokens, 3), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS(text);
        expect_tokens(s, ids, 5);
        TEST_STATUS(ats_session_set(s, tokens, 3, NULL), ATS_BAD_ARGUMENT);
        expect_tokens(s, ids, 5);
        expect_fresh(e, s);
        char *out;
        size_t n, n_bytes;
        TEST_STATUS(ats_detokenize(e, &bad[i], 1, true, &out, &n_bytes), ATS_BAD_ARGUMENT);
        assert_null(ats_token_text(e, bad[i], &n));
        assert_int_equal(n, 0);
        assert_false(ats_token_is_end(e, bad[i]));
    }
    ats_session_close(s);
    ats_engine_close(e);
}

static void truncating_forgets_the_rest(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 2;
    ats_engine *e = agree_open(&o);
    ats_session *s = session_open(e);
    TEST_OK(feed(e, s, ids, 130));
    TEST_STATUS(ats_session_truncate(s, 131), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("131");
    expect_tokens(s, ids, 130);
    TEST_OK(ats_session_truncate(s, 130));
    expect_fresh(e, s); /* nothing happened */
    static const size_t keeps[] = {129, 128, 100, 64, 63, 1, 0};
    for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++) {
        TEST_OK(ats_session_truncate(s, keeps[i]));
        expect_tokens(s, ids, keeps[i]);
        assert_null(ats_session_logits(s));
        TEST_OK(feed(e, s, ids + 7, 3)); /* another continuation */
        expect_fresh(e, s);
        TEST_OK(ats_session_truncate(s, keeps[i]));
    }
    ats_session_close(s);
    ats_engine_close(e);
}

/* gemma3: a window of 8 on six of the seven layers. */
static ats_options window_options(void) {
    static char path[512];
    if (!test_shared_path(path, sizeof path, "models/gemma3/gemma3-f16.gguf")) skip();
    ats_options o = agree_options(path);
    o.n_batch = 16;
    o.n_seqs = 2;
    return o;
}

/* 4 pages see all of a context of 256; a window of 8 and a batch of 16 touch at most 2 at once. */
static void windows_need_less_cache(void **state) {
    (void)state;
    ats_options o = window_options();
    ats_engine *e = agree_open(&o);
    ats_stats small, large;
    ats_engine_stats(e, &small);
    ats_engine_close(e);
    o.n_ctx = 512;
    e = agree_open(&o);
    ats_engine_stats(e, &large);
    ats_engine_close(e);
    assert_true(small.kv_bytes < large.kv_bytes);
    /* only one layer grows: (1 * 8 + 6 * 2) / (1 * 4 + 6 * 2) pages */
    assert_int_equal(large.kv_bytes * (4 + 6 * 2), small.kv_bytes * (8 + 6 * 2));
}

static void what_left_a_window_is_evaluated_again(void **state) {
    (void)state;
    ats_options o = window_options();
    ats_engine *e = agree_open(&o);
    ats_session *s = session_open(e);
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (i * 37 + 11) % 200 + 3;
    TEST_OK(feed(e, s, ids, 150)); /* pages 0 and 1 are gone but for the full layer */
    static const size_t keeps[] = {149, 130, 100, 64, 7, 1, 0};
    for (size_t i = 0; i < sizeof keeps / sizeof *keeps; i++) {
        TEST_OK(ats_session_truncate(s, keeps[i]));
        expect_tokens(s, ids, keeps[i]);
        assert_null(ats_session_logits(s));
        TEST_OK(feed(e, s, ids + 7, 3));
        expect_fresh(e, s);
        TEST_OK(ats_session_truncate(s, keeps[i]));
    }
    size_t n_reused;
    TEST_OK(ats_session_set(s, ids, 150, &n_reused));
    assert_int_equal(n_reused, 0);
    TEST_OK(ats_session_set(s, ids, 60, &n_reused));
    assert_int_equal(n_reused, 0); /* the same tokens, but no longer seen */
    expect_fresh(e, s);
    TEST_OK(ats_session_set(s, ids, 62, &n_reused));
    assert_int_equal(n_reused, 60);
    expect_fresh(e, s);
    ats_session_close(s);
    ats_engine_close(e);
}

static void setting_reuses_what_is_the_same(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 2;
    ats_engine *e = agree_open(&o);
    ats_session *s = session_open(e);
    size_t reused = 99;
    TEST_STATUS(ats_session_set(s, ids, 0, NULL), ATS_BAD_ARGUMENT);
    int32_t other[N_IDS];
    memcpy(other, ids, sizeof other);
    other[70] = (other[70] + 1) % 620; /* parts ways at 70 */
    const struct {
        const int32_t *tokens;
        size_t n, reused;
    } turns[] = {
        {ids, 100, 0},   {ids, 100, 100}, /* the same: nothing is evaluated */
        {ids, 140, 100}, {other, 140, 70}, {ids, 90, 70},
        {ids, 64, 63}, /* shorter: its last token again, for the logits */
        {ids, 65, 64},   {other, 1, 0},    {ids, 149, 1},
    };
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i++) {
        ats_stats before, after;
        ats_engine_stats(e, &before);
        TEST_OK(ats_session_set(s, turns[i].tokens, turns[i].n, &reused));
        ats_engine_stats(e, &after);
        assert_int_equal(reused, turns[i].reused);
        assert_int_equal(after.n_prefill_tokens + after.n_decode_tokens - before.n_prefill_tokens -
                             before.n_decode_tokens,
                         turns[i].n - turns[i].reused);
        expect_tokens(s, turns[i].tokens, turns[i].n);
        expect_fresh(e, s);
    }
    TEST_OK(ats_session_set(s, ids, 3, NULL));
    expect_tokens(s, ids, 3);
    ats_session_close(s);
    ats_engine_close(e);
}

/* ---- evaluation ---- */

static void runs_that_make_no_sense_are_refused(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 2;
    ats_engine *e = agree_open(&o), *other = agree_open(&o);
    ats_session *s = session_open(e), *strange = session_open(other);
    ats_run twice[2] = {{s, ids, 2, ATS_WANT_LAST, NULL}, {s, ids, 2, ATS_WANT_LAST, NULL}};
    TEST_STATUS(ats_eval(e, twice, 2), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("two runs");
    expect_tokens(s, NULL, 0);
    ats_run stray = {strange, ids, 2, ATS_WANT_LAST, NULL};
    TEST_STATUS(ats_eval(e, &stray, 1), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("another engine");
    TEST_OK(ats_eval(e, NULL, 0)); /* nothing to do */
    TEST_OK(feed(e, s, NULL, 0));
    expect_tokens(s, NULL, 0);
    assert_null(ats_session_logits(s));
    TEST_OK(feed(e, s, ids, 4));
    TEST_OK(feed(e, s, NULL, 0));
    expect_fresh(e, s);
    ats_session_close(s), ats_session_close(strange);
    ats_engine_close(e), ats_engine_close(other);
}

/* What is wanted changes where logits go, never what they are. */
static void wanted_rows_are_given(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_rows = 4; /* fewer than tokens: more rounds */
    o.n_batch = 32;
    ats_engine *e = agree_open(&o);
    size_t width = (size_t)agree_vocab(e);
    float *all = agree_logits(e, ids, 50, 0), *last = calloc(width, sizeof *last);
    for (size_t i = 0; i < 50 * width; i++)
        assert_true(isfinite(all[i]));
    ats_session *s = session_open(e);
    ats_run run = {s, ids, 50, ATS_WANT_LAST, last};
    TEST_OK(ats_eval(e, &run, 1));
    assert_memory_equal(last, all + 49 * width, width * sizeof *last);
    assert_memory_equal(ats_session_logits(s), last, width * sizeof *last);
    TEST_OK(ats_session_truncate(s, 0));
    run = (ats_run){s, ids, 49, ATS_WANT_NONE, NULL};
    TEST_OK(ats_eval(e, &run, 1));
    assert_null(ats_session_logits(s));
    run = (ats_run){s, ids + 49, 1, ATS_WANT_ALL, NULL}; /* kept by the session only */
    TEST_OK(ats_eval(e, &run, 1));
    assert_memory_equal(ats_session_logits(s), last, width * sizeof *last);
    ats_session_close(s);
    free(all), free(last);
    ats_engine_close(e);
}

/* Sessions that want different things and stop at different places, in one call. */
static void mixed_runs_are_each_as_if_alone(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 5;
    o.n_batch = 24;
    o.n_rows = 5;
    ats_engine *e = agree_open(&o);
    size_t width = (size_t)agree_vocab(e);
    static const struct {
        size_t n;
        ats_want want;
    } what[] = {{40, ATS_WANT_ALL}, {1, ATS_WANT_LAST}, {70, ATS_WANT_NONE}, {13, ATS_WANT_ALL}};
    ats_session *s[4];
    ats_run runs[4];
    float *logits[4];
    for (int i = 0; i < 4; i++) {
        s[i] = session_open(e);
        logits[i] = calloc(what[i].n * width, sizeof(float));
        runs[i] = (ats_run){s[i], ids + 5 * i, what[i].n, what[i].want,
                            what[i].want == ATS_WANT_NONE ? NULL : logits[i]};
    }
    TEST_OK(ats_eval(e, runs, 4));
    for (int i = 0; i < 4; i++) {
        expect_tokens(s[i], ids + 5 * i, what[i].n);
        float *want = agree_logits(e, ids + 5 * i, what[i].n, 0);
        const float *last = want + (what[i].n - 1) * width;
        if (what[i].want == ATS_WANT_ALL)
            assert_memory_equal(logits[i], want, what[i].n * width * sizeof *want);
        if (what[i].want == ATS_WANT_LAST)
            assert_memory_equal(logits[i], last, width * sizeof *want);
        if (what[i].want == ATS_WANT_NONE)
            assert_null(ats_session_logits(s[i]));
        else
            assert_memory_equal(ats_session_logits(s[i]), last, width * sizeof *want);
        free(want);
    }
    for (int i = 0; i < 4; i++)
        ats_session_close(s[i]), free(logits[i]);
    ats_engine_close(e);
}

struct cancel_after {
    int n_calls, limit;
};
static bool cancel(void *user) {
    struct cancel_after *c = user;
    return ++c->n_calls > c->limit;
}

static void a_cancelled_evaluation_keeps_whole_rounds(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_seqs = 3;
    o.n_batch = 16;
    ats_engine *e = agree_open(&o);
    for (int limit = 0; limit <= 5; limit++) {
        ats_session *s[2] = {session_open(e), session_open(e)};
        struct cancel_after c = {0, limit};
        TEST_OK(feed(e, s[0], ids, 3));
        ats_engine_set_cancel(e, cancel, &c);
        ats_run runs[2] = {{s[0], ids + 3, 50, ATS_WANT_LAST, NULL},
                           {s[1], ids, 50, ATS_WANT_LAST, NULL}};
        TEST_STATUS(ats_eval(e, runs, 2), ATS_CANCELLED);
        assert_int_equal(c.n_calls, limit + 1);
        ats_engine_set_cancel(e, NULL, NULL);
        size_t n[2];
        for (int i = 0; i < 2; i++)
            ats_session_tokens(s[i], &n[i]);
        assert_int_equal(n[0] + n[1], (size_t)(3 + 16 * limit));
        for (int i = 0; i < 2; i++) {
            expect_tokens(s[i], ids, n[i]);
            if (limit == 0 && i == 0) expect_fresh(e, s[0]); /* nothing happened */
            TEST_OK(feed(e, s[i], ids + n[i], 55 - n[i]));
            expect_fresh(e, s[i]);
        }
        ats_session_close(s[0]), ats_session_close(s[1]);
    }
    ats_engine_close(e);
}

static void counters_count_tokens_and_rounds(void **state) {
    (void)state;
    ats_options o = llama_options();
    o.n_batch = 32;
    ats_engine *e = agree_open(&o);
    ats_stats stats;
    ats_engine_stats(e, &stats);
    assert_true(stats.load_ns > 0 && stats.kv_bytes > 0 && stats.work_bytes > 0);
    assert_int_equal(stats.n_rounds, 0);
    ats_session *s = session_open(e);
    TEST_OK(feed(e, s, ids, 70));
    for (int i = 0; i < 5; i++)
        TEST_OK(feed(e, s, ids + 70 + i, 1));
    ats_engine_stats(e, &stats);
    assert_int_equal(stats.n_prefill_tokens, 70);
    assert_int_equal(stats.n_decode_tokens, 5);
    assert_int_equal(stats.n_rounds, 3 + 5);
    assert_true(stats.prefill_ns > 0 && stats.decode_ns > 0);
    ats_engine_stats_reset(e);
    ats_stats reset;
    ats_engine_stats(e, &reset);
    assert_int_equal(reset.n_prefill_tokens + reset.n_decode_tokens + reset.n_rounds, 0);
    assert_int_equal(reset.prefill_ns + reset.decode_ns, 0);
    assert_int_equal(reset.kv_bytes, stats.kv_bytes);
    assert_int_equal(reset.load_ns, stats.load_ns);
    ats_session_close(s);
    ats_engine_close(e);
}

/* Instead of reading pages that are gone, which ends a process. */
static void a_file_that_was_cut_ends_the_evaluation(void **state) {
    (void)state;
    ats_options o = llama_options();
    char path[512], *data;
    size_t n;
    test_tmp_path(path, sizeof path, "cut.gguf");
    TEST_OK(file_read(o.model, 1 << 28, &data, &n));
    TEST_OK(file_write(path, data, n));
    free(data);
    o.model = path;
    o.no_repack = true;
    ats_engine *e = agree_open(&o);
    ats_session *s = session_open(e);
    TEST_OK(feed(e, s, ids, 10));
    assert_int_equal(truncate(path, (off_t)(n / 2)), 0);
    TEST_STATUS(feed(e, s, ids + 10, 5), ATS_IO);
    TEST_ERROR_HAS("became shorter");
    expect_tokens(s, ids, 10);
    ats_session_close(s);
    ats_engine_close(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_more_sessions_than_said),
        cmocka_unit_test(every_session_may_fill_its_context_at_once),
        cmocka_unit_test(a_full_context_leaves_everything_as_it_was),
        cmocka_unit_test(ids_outside_the_vocabulary_are_refused),
        cmocka_unit_test(truncating_forgets_the_rest),
        cmocka_unit_test(windows_need_less_cache),
        cmocka_unit_test(what_left_a_window_is_evaluated_again),
        cmocka_unit_test(setting_reuses_what_is_the_same),
        cmocka_unit_test(runs_that_make_no_sense_are_refused),
        cmocka_unit_test(wanted_rows_are_given),
        cmocka_unit_test(mixed_runs_are_each_as_if_alone),
        cmocka_unit_test(a_cancelled_evaluation_keeps_whole_rounds),
        cmocka_unit_test(counters_count_tokens_and_rounds),
        cmocka_unit_test(a_file_that_was_cut_ends_the_evaluation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
