/* Generation: what ends it, what text comes out, what the session holds afterwards. */
#include "agree.h"

#include "base/buf.h"
#include "base/utf8.h"

#define LLAMA "models/llama/llama-f16.gguf"

/* An engine with the oracle's prompt evaluated. */
struct talk {
    ats_engine *e;
    ats_session *s;
    json_t *ref;
    int32_t *prompt, *greedy;
    size_t n_prompt, n_greedy;
};

static void talk_open(struct talk *t, int n_ctx, int n_threads) {
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/ref.json")) skip();
    t->ref = test_json_read(path);
    t->prompt = test_json_ids(test_json_get(t->ref, "prompt"), &t->n_prompt);
    t->greedy = test_json_ids(test_json_get(t->ref, "greedy"), &t->n_greedy);
    test_shared_path(path, sizeof path, LLAMA);
    ats_options o = agree_options(path);
    o.n_ctx = n_ctx;
    o.n_threads = o.n_threads_batch = n_threads;
    o.n_seqs = 2;
    t->e = agree_open(&o);
    TEST_OK(ats_session_open(t->e, &t->s));
    TEST_OK(ats_session_set(t->s, t->prompt, t->n_prompt, NULL));
}

static void talk_close(struct talk *t) {
    ats_session_close(t->s);
    ats_engine_close(t->e);
    json_decref(t->ref);
    free(t->prompt), free(t->greedy);
}

/* What on_text was given. */
struct heard {
    struct buf text;
    int32_t tokens[512];
    int n_tokens, n_last; /* calls with a token, and those without one: at most one, at the end */
    int stop_after;       /* tokens after which false is returned; 0: never */
};

static bool hear(void *user, const char *text, size_t n_bytes, int32_t token) {
    struct heard *h = user;
    assert_true(utf8_valid(text, n_bytes)); /* whole characters only */
    assert_int_equal(h->n_last, 0);
    buf_add(&h->text, text, n_bytes);
    if (token < 0)
        h->n_last++;
    else
        h->tokens[h->n_tokens++] = token;
    assert_true(h->n_tokens < 512);
    return h->n_tokens != h->stop_after;
}

/* Greedy generation with `g`'s limits and stops. */
static void speak(struct talk *t, ats_generation *g, struct heard *h) {
    ats_sampling sampling;
    ats_sampler *sampler;
    ats_sampling_default(t->e, &sampling);
    sampling.temperature = 0;
    TEST_OK(ats_sampler_open(t->e, &sampling, &sampler));
    if (h) {
        memset(h, 0, offsetof(struct heard, stop_after));
        g->on_text = hear;
        g->user = h;
    }
    TEST_OK(ats_generate(t->s, sampler, g));
    ats_sampler_close(sampler);
}

static void expect_text(const struct heard *h, const char *want, size_t n) {
    assert_int_equal(h->text.len, n);
    if (n) assert_memory_equal(h->text.data, want, n);
}

/* The session is the prompt and the first n generated tokens, and goes on from there as if it had
 * been fed them. */
static void expect_session(struct talk *t, const int32_t *generated, size_t n) {
    size_t has, width = (size_t)agree_vocab(t->e);
    const int32_t *tokens = ats_session_tokens(t->s, &has);
    assert_int_equal(has, t->n_prompt + n);
    assert_memory_equal(tokens, t->prompt, t->n_prompt * sizeof *tokens);
    if (n) assert_memory_equal(tokens + t->n_prompt, generated, n * sizeof *tokens);
    ats_session *fresh;
    TEST_OK(ats_session_open(t->e, &fresh));
    TEST_OK(ats_session_set(fresh, tokens, has, NULL));
    assert_non_null(ats_session_logits(t->s));
    assert_memory_equal(ats_session_logits(t->s), ats_session_logits(fresh), width * sizeof(float));
    ats_session_close(fresh);
}

/* ---- what comes out ---- */

static void greedy_text_is_the_oracle_s(void **state) {
    (void)state;
    struct talk t;
    struct heard h = {0};
    char *text;
    size_t n_bytes;
    talk_open(&t, 256, 2);
    ats_generation g = {.max_tokens = (int)t.n_greedy, .ignore_end = true};
    speak(&t, &g, &h);
    assert_int_equal(g.stop, ATS_STOP_LENGTH);
    assert_int_equal(g.n_tokens, t.n_greedy);
    assert_int_equal(h.n_tokens, t.n_greedy);
    assert_memory_equal(h.tokens, t.greedy, t.n_greedy * sizeof *t.greedy);
    TEST_OK(ats_detokenize(t.e, t.greedy, t.n_greedy, false, &text, &n_bytes));
    expect_text(&h, text, n_bytes);
    ats_free(text);
    buf_free(&h.text);
    talk_close(&t);
}

/* A model of random weights draws bytes that are no characters, and halves of characters. */
static void any_tokens_give_whole_characters(void **state) {
    (void)state;
    struct talk t;
    talk_open(&t, 512, 2);
    size_t n_replaced = 0;
    for (uint64_t seed = 1; seed <= 4; seed++) {
        struct heard h = {0};
        ats_generation g = {.max_tokens = 200, .ignore_end = true, .on_text = hear, .user = &h};
        ats_sampling sampling;
        ats_sampler *sampler;
        char *text;
        size_t n_bytes;
        ats_sampling_default(t.e, &sampling);
        sampling.temperature = 3;
        sampling.top_k = 0, sampling.top_p = 1, sampling.min_p = 0;
        sampling.seed = seed;
        TEST_OK(ats_sampler_open(t.e, &sampling, &sampler));
        TEST_OK(ats_session_set(t.s, t.prompt, t.n_prompt, NULL));
        TEST_OK(ats_generate(t.s, sampler, &g));
        TEST_OK(ats_detokenize(t.e, h.tokens, (size_t)h.n_tokens, false, &text, &n_bytes));
        expect_text(&h, text, n_bytes);
        n_replaced += strstr(text, "\xef\xbf\xbd") != NULL;
        ats_free(text);
        ats_sampler_close(sampler);
        buf_free(&h.text);
    }
    assert_true(n_replaced > 0); /* there were such bytes */
    talk_close(&t);
}

static void the_seed_decides_and_threads_do_not(void **state) {
    (void)state;
    struct heard h[5];
    for (int i = 0; i < 5; i++) {
        struct talk t;
        ats_sampling sampling;
        ats_sampler *sampler;
        memset(&h[i], 0, sizeof h[i]);
        talk_open(&t, 256, 1 + i % 3);
        ats_sampling_default(t.e, &sampling);
        sampling.seed = i < 4 ? 42 : 43;
        ats_generation g = {.max_tokens = 60, .ignore_end = true, .on_text = hear, .user = &h[i]};
        TEST_OK(ats_sampler_open(t.e, &sampling, &sampler));
        TEST_OK(ats_generate(t.s, sampler, &g));
        ats_sampler_close(sampler);
        talk_close(&t);
    }
    for (int i = 1; i < 4; i++)
        assert_memory_equal(h[i].tokens, h[0].tokens, 60 * sizeof(int32_t));
    assert_memory_not_equal(h[4].tokens, h[0].tokens, 60 * sizeof(int32_t));
    for (int i = 0; i < 5; i++)
        buf_free(&h[i].text);
}

/* ---- what ends it ---- */

static void length_ends_it_and_it_can_go_on(void **state) {
    (void)state;
    struct talk t;
    struct heard h = {0};
    talk_open(&t, 256, 2);
    ats_generation g = {.max_tokens = 0, .ignore_end = true};
    speak(&t, &g, &h);
    assert_int_equal(g.n_tokens, 0);
    assert_int_equal(g.stop, ATS_STOP_LENGTH);
    expect_text(&h, "", 0);
    expect_session(&t, NULL, 0);
    size_t n = 0;
    for (int step = 1; n + (size_t)step <= t.n_greedy; step++) { /* 1, 2, 3, ... tokens */
        g.max_tokens = step;
        speak(&t, &g, &h);
        assert_int_equal(g.n_tokens, step);
        assert_int_equal(g.stop, ATS_STOP_LENGTH);
        assert_memory_equal(h.tokens, t.greedy + n, (size_t)step * sizeof *h.tokens);
        buf_free(&h.text);
        n += (size_t)step;
        expect_session(&t, t.greedy, n);
    }
    assert_true(n > 15);
    talk_close(&t);
}

/* A bias makes `token` the certain choice. */
static ats_sampler *certain(const struct talk *t, const ats_logit_bias *bias) {
    ats_sampling sampling;
    ats_sampler *sampler;
    ats_sampling_default(t->e, &sampling);
    sampling.temperature = 0;
    sampling.logit_bias = bias;
    sampling.n_logit_bias = 1;
    TEST_OK(ats_sampler_open(t->e, &sampling, &sampler));
    return sampler;
}

static void every_end_token_ends_it_and_is_not_kept(void **state) {
    (void)state;
    struct talk t;
    talk_open(&t, 256, 2);
    int n_ends = 0;
    for (int32_t token = 0; token < 640; token++) {
        if (!ats_token_is_end(t.e, token)) continue;
        n_ends++;
        struct heard h = {0};
        ats_logit_bias bias = {token, 1000};
        ats_sampler *sampler = certain(&t, &bias);
        ats_generation g = {.max_tokens = 9, .on_text = hear, .user = &h};
        TEST_OK(ats_generate(t.s, sampler, &g));
        assert_int_equal(g.stop, ATS_STOP_END);
        assert_int_equal(g.n_tokens, 1);
        expect_text(&h, "", 0);
        expect_session(&t, NULL, 0);
        ats_sampler_close(sampler);
    }
    assert_int_equal(n_ends, 3);
    talk_close(&t);
}

static void ignored_end_tokens_go_on_without_text(void **state) {
    (void)state;
    struct talk t;
    struct heard h = {0};
    talk_open(&t, 256, 2);
    ats_logit_bias bias = {629, 1000};
    ats_sampler *sampler = certain(&t, &bias);
    ats_generation g = {.max_tokens = 7, .ignore_end = true, .on_text = hear, .user = &h};
    TEST_OK(ats_generate(t.s, sampler, &g));
    assert_int_equal(g.stop, ATS_STOP_LENGTH);
    assert_int_equal(g.n_tokens, 7);
    expect_text(&h, "", 0);
    expect_session(&t, h.tokens, 7);
    ats_sampler_close(sampler);
    talk_close(&t);
}

static void a_full_context_ends_it(void **state) {
    (void)state;
    struct talk t;
    struct heard h = {0};
    talk_open(&t, 64, 2);
    ats_generation g = {.max_tokens = -1, .ignore_end = true};
    speak(&t, &g, &h);
    assert_int_equal(g.stop, ATS_STOP_CONTEXT);
    assert_int_equal(g.n_tokens, 64 - (int)t.n_prompt + 1); /* the last is said, not evaluated */
    expect_session(&t, t.greedy, 64 - t.n_prompt);
    assert_memory_equal(h.tokens, t.greedy, (size_t)g.n_tokens * sizeof *h.tokens);
    buf_free(&h.text);
    speak(&t, &g, &h); /* from a full one: one more token */
    assert_int_equal(g.stop, ATS_STOP_CONTEXT);
    assert_int_equal(g.n_tokens, 1);
    buf_free(&h.text);
    /* both limits at once: the length was reached */
    TEST_OK(ats_session_set(t.s, t.prompt, t.n_prompt, NULL));
    g.max_tokens = 64 - (int)t.n_prompt + 1;
    speak(&t, &g, &h);
    assert_int_equal(g.stop, ATS_STOP_LENGTH);
    buf_free(&h.text);
    talk_close(&t);
}

/* Every piece of the text, of 1 to 6 bytes, as a stop string: the text ends right before its first
 * occurrence, though it may cross tokens. */
static void stop_strings_end_the_text_before_them(void **state) {
    (void)state;
    struct talk t;
    struct heard whole = {0};
    talk_open(&t, 256, 2);
    ats_generation g = {.max_tokens = 40, .ignore_end = true};
    speak(&t, &g, &whole);
    const char *text = buf_str(&whole.text);
    size_t n = strlen(text), n_checked = 0;
    for (size_t at = 0; at < n; at += 3)
        for (size_t len = 1; len <= 6 && at + len <= n; len += 2) {
            char stop[8] = {0};
            memcpy(stop, text + at, len);
            if (!utf8_valid(stop, len)) continue;
            const char *stops[] = {"not in this text", stop};
            struct heard h = {0};
            TEST_OK(ats_session_set(t.s, t.prompt, t.n_prompt, NULL));
            g = (ats_generation){
                .max_tokens = 40, .ignore_end = true, .stops = stops, .n_stops = 2};
            speak(&t, &g, &h);
            assert_int_equal(g.stop, ATS_STOP_STRING);
            expect_text(&h, text, (size_t)(strstr(text, stop) - text));
            assert_int_equal(h.n_tokens, g.n_tokens);
            buf_free(&h.text);
            n_checked++;
        }
    assert_true(n_checked > 10);
    buf_free(&whole.text);
    talk_close(&t);
}

/* The beginning of a stop string that never comes is held back, then given. */
static void what_was_held_back_is_given_at_the_end(void **state) {
    (void)state;
    struct talk t;
    struct heard whole = {0}, h = {0};
    talk_open(&t, 256, 2);
    ats_generation g = {.max_tokens = 12, .ignore_end = true};
    speak(&t, &g, &whole);
    char stop[256];
    size_t n = whole.text.len;
    snprintf(stop, sizeof stop, "%s and more", buf_str(&whole.text) + n / 2);
    const char *stops[] = {stop};
    TEST_OK(ats_session_set(t.s, t.prompt, t.n_prompt, NULL));
    g = (ats_generation){.max_tokens = 12, .ignore_end = true, .stops = stops, .n_stops = 1};
    speak(&t, &g, &h);
    assert_int_equal(g.stop, ATS_STOP_LENGTH);
    assert_int_equal(h.n_last, 1);
    expect_text(&h, whole.text.data, n);
    buf_free(&whole.text), buf_free(&h.text);
    talk_close(&t);
}

static void the_caller_may_end_it_at_any_token(void **state) {
    (void)state;
    struct talk t;
    talk_open(&t, 256, 2);
    for (int stop_after = 1; stop_after <= 9; stop_after += 4) {
        struct heard h = {.stop_after = stop_after};
        ats_generation g = {.max_tokens = -1, .ignore_end = true};
        TEST_OK(ats_session_set(t.s, t.prompt, t.n_prompt, NULL));
        speak(&t, &g, &h);
        assert_int_equal(g.stop, ATS_STOP_CALLER);
        assert_int_equal(g.n_tokens, stop_after);
        assert_int_equal(h.n_tokens, stop_after);
        assert_int_equal(h.n_last, 0);                        /* who wants no more gets no more */
        expect_session(&t, t.greedy, (size_t)stop_after - 1); /* what was evaluated */
        buf_free(&h.text);
    }
    talk_close(&t);
}

static bool cancel_at_fourth(void *user) {
    return ++*(int *)user > 3;
}

static void cancelling_is_no_failure(void **state) {
    (void)state;
    struct talk t;
    struct heard h = {0};
    int n_calls = 0;
    talk_open(&t, 256, 2);
    ats_engine_set_cancel(t.e, cancel_at_fourth, &n_calls);
    ats_generation g = {.max_tokens = -1, .ignore_end = true};
    speak(&t, &g, &h);
    ats_engine_set_cancel(t.e, NULL, NULL);
    assert_int_equal(g.stop, ATS_STOP_CALLER);
    assert_int_equal(g.n_tokens, 4);
    assert_string_equal(ats_error_text(), "");
    expect_session(&t, t.greedy, 3);
    buf_free(&h.text);
    talk_close(&t);
}

/* ---- what is refused ---- */

static void generating_needs_logits_and_stops_that_are_strings(void **state) {
    (void)state;
    struct talk t;
    talk_open(&t, 256, 2);
    ats_logit_bias bias = {5, 1};
    ats_sampler *sampler = certain(&t, &bias);
    ats_generation g = {.max_tokens = 3};
    ats_session *empty;
    TEST_OK(ats_session_open(t.e, &empty));
    TEST_STATUS(ats_generate(empty, sampler, &g), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("no logits");
    assert_int_equal(g.n_tokens, 0);
    ats_session_close(empty);
    const char *stops[] = {"fine", ""};
    g.stops = stops;
    g.n_stops = 2;
    TEST_STATUS(ats_generate(t.s, sampler, &g), ATS_BAD_ARGUMENT);
    expect_session(&t, NULL, 0);
    g.n_stops = 1;
    TEST_OK(ats_generate(t.s, sampler, &g)); /* without on_text, too */
    assert_int_equal(g.n_tokens, 3);
    ats_sampler_close(sampler);
    ats_sampler_close(NULL);
    talk_close(&t);
}

static void sampling_out_of_range_is_named(void **state) {
    (void)state;
    struct talk t;
    talk_open(&t, 256, 2);
    ats_sampling good;
    ats_sampling_default(t.e, &good);
    ats_sampler *s;
    static const ats_logit_bias strange = {640, 1};
#define REFUSED(field, value)                                                                      \
    do {                                                                                           \
        ats_sampling bad = good;                                                                   \
        bad.field = (value);                                                                       \
        TEST_STATUS(ats_sampler_open(t.e, &bad, &s), ATS_BAD_ARGUMENT);                            \
        TEST_ERROR_HAS(#field);                                                                    \
        assert_null(s);                                                                            \
    } while (0)
    REFUSED(top_p, 1.5F);
    REFUSED(min_p, -0.1F);
    REFUSED(top_k, -2);
    REFUSED(repeat_penalty, 0);
    REFUSED(mirostat, 1);
    good.n_logit_bias = 1;
    REFUSED(logit_bias, &strange);
#undef REFUSED
    talk_close(&t);
}

/* The files of some makers say how they are to be sampled; these do not. */
static void sampling_defaults_are_documented_ones(void **state) {
    (void)state;
    struct talk t;
    talk_open(&t, 256, 2);
    ats_sampling own, plain;
    ats_sampling_default(t.e, &own);
    ats_sampling_default(NULL, &plain);
    assert_true(own.temperature == 0.8F && plain.temperature == 0.8F);
    assert_int_equal(own.top_k, 40);
    assert_true(own.top_p == 0.95F && own.min_p == 0.05F && own.typical_p == 1);
    assert_true(own.repeat_penalty == 1 && own.presence_penalty == 0);
    assert_int_equal(own.penalty_last_n, 64);
    assert_int_equal(own.mirostat, 0);
    assert_true(own.seed != plain.seed); /* random */
    talk_close(&t);
}

struct maker {
    float top_p;
    int top_k;
};

/* What a maker wrote, in either kind of number. */
static void put_sampling(struct gguf_writer *w, const void *user) {
    const struct maker *m = user;
    gguf_put_f32(w, "general.sampling.temp", 0.25F);
    gguf_put_i32(w, "general.sampling.top_k", m->top_k);
    gguf_put_f32(w, "general.sampling.top_p", m->top_p);
    gguf_put_f32(w, "general.sampling.min_p", 0);
    gguf_put_f32(w, "general.sampling.xtc_probability", 0.5F);
    gguf_put_f32(w, "general.sampling.xtc_threshold", 0.2F);
    gguf_put_i32(w, "general.sampling.penalty_last_n", 32);
    gguf_put_str(w, "general.sampling.penalty_repeat", "of another type");
    gguf_put_i32(w, "general.sampling.mirostat", 2);
    gguf_put_f32(w, "general.sampling.mirostat_tau", 4);
    gguf_put_f32(w, "general.sampling.mirostat_eta", 0.3F);
}

/* The file's, if they can be used together; else none of them. */
static void sampling_defaults_of_the_file_are_taken(void **state) {
    (void)state;
    static const struct maker makers[] = {{0.5F, 7}, {0.5F, -1}, {5, 7}};
    char from[512], path[512];
    if (!test_shared_path(from, sizeof from, LLAMA)) skip();
    test_tmp_path(path, sizeof path, "sampling.gguf");
    for (size_t i = 0; i < COUNT_OF(makers); i++) {
        const bool none = makers[i].top_p > 1;
        ats_sampling own;
        agree_copy(from, path, &(struct agree_change){.put = put_sampling, .user = &makers[i]});
        ats_options o = agree_options(path);
        ats_engine *e = agree_open(&o);
        ats_sampling_default(e, &own);
        assert_true(own.temperature == (none ? 0.8F : 0.25F));
        assert_int_equal(own.top_k, none ? 40 : max_int(makers[i].top_k, 0));
        assert_true(own.top_p == (none ? 0.95F : 0.5F));
        assert_true(own.min_p == (none ? 0.05F : 0));
        assert_true(own.xtc_probability == (none ? 0 : 0.5F));
        assert_true(own.xtc_threshold == (none ? 0.1F : 0.2F));
        assert_int_equal(own.penalty_last_n, none ? 64 : 32);
        assert_true(own.repeat_penalty == 1);
        assert_int_equal(own.mirostat, none ? 0 : 2);
        assert_true(own.mirostat_tau == (none ? 5 : 4));
        assert_true(own.mirostat_eta == (none ? 0.1F : 0.3F));
        assert_string_equal(ats_error_text(), ""); /* nothing has failed */
        ats_engine_close(e);
    }
    remove(path);
}

static void put_sequence(struct gguf_writer *w, const void *user) {
    gguf_put_str(w, "general.sampling.sequence", user);
    gguf_put_f32(w, "general.sampling.temp", 0.25F);
    gguf_put_f32(w, "general.sampling.penalty_repeat", 1.5F);
    gguf_put_f32(w, "general.sampling.xtc_probability", 0.5F);
}

static int n_told;
static void count_told(void *user, int level, const char *text) {
    (void)user, (void)level;
    n_told += strstr(text, "general.sampling.sequence") != NULL;
}

/* Those that a file's list does not name, if it can be followed. */
static void steps_that_the_file_leaves_out_are_off(void **state) {
    (void)state;
    static const struct {
        const char *list;
        bool followed, penalties, top_k, top_p, min_p, xtc, temperature;
    } cases[] = {
        {"penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature", true, true, true,
         true, true, true, true},
        {"top_k;top_p;temperature", true, false, true, true, false, false, true},
        {"min-p;xtc", true, false, false, false, true, true, false},
        {"", true, true, true, true, true, true, true},
        {"temperature;top_p", false, true, true, true, true, true, true},
        {"top_k;top_k", false, true, true, true, true, true, true},
        {"top_k;;top_p", false, true, true, true, true, true, true},
        {"top_k;infill", false, true, true, true, true, true, true},
        {"top_k top-k", false, true, true, true, true, true, true},
        {"top_k;", false, true, true, true, true, true, true},
    };
    char from[512], path[512];
    if (!test_shared_path(from, sizeof from, LLAMA)) skip();
    test_tmp_path(path, sizeof path, "sequence.gguf");
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        ats_sampling own;
        agree_copy(from, path, &(struct agree_change){.put = put_sequence, .user = cases[i].list});
        n_told = 0;
        ats_log_set(count_told, NULL, 1);
        ats_options o = agree_options(path);
        ats_engine *e = agree_open(&o);
        ats_sampling_default(e, &own);
        ats_log_set(NULL, NULL, 3);
        assert_int_equal(n_told, !cases[i].followed);
        assert_true(own.repeat_penalty == (cases[i].penalties ? 1.5F : 1));
        assert_int_equal(own.top_k, cases[i].top_k ? 40 : 0);
        assert_true(own.top_p == (cases[i].top_p ? 0.95F : 1));
        assert_true(own.min_p == (cases[i].min_p ? 0.05F : 0));
        assert_true(own.xtc_probability == (cases[i].xtc ? 0.5F : 0));
        assert_true(own.temperature == (cases[i].temperature ? 0.25F : 1));
        assert_string_equal(ats_error_text(), "");
        ats_engine_close(e);
    }
    remove(path);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_text_is_the_oracle_s),
        cmocka_unit_test(any_tokens_give_whole_characters),
        cmocka_unit_test(the_seed_decides_and_threads_do_not),
        cmocka_unit_test(length_ends_it_and_it_can_go_on),
        cmocka_unit_test(every_end_token_ends_it_and_is_not_kept),
        cmocka_unit_test(ignored_end_tokens_go_on_without_text),
        cmocka_unit_test(a_full_context_ends_it),
        cmocka_unit_test(stop_strings_end_the_text_before_them),
        cmocka_unit_test(what_was_held_back_is_given_at_the_end),
        cmocka_unit_test(the_caller_may_end_it_at_any_token),
        cmocka_unit_test(cancelling_is_no_failure),
        cmocka_unit_test(generating_needs_logits_and_stops_that_are_strings),
        cmocka_unit_test(sampling_out_of_range_is_named),
        cmocka_unit_test(sampling_defaults_are_documented_ones),
        cmocka_unit_test(sampling_defaults_of_the_file_are_taken),
        cmocka_unit_test(steps_that_the_file_leaves_out_are_off),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
