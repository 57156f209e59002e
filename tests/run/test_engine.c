/* The library's calls: what options may be, what is told of models, texts and chats, and that
 * nothing said wrong does any harm. Sessions are test_session.c's. */
#include "agree.h"

#include <unistd.h>
#include "base/threads.h"
#include "base/utf8.h"

/* ---- options ---- */

static void expect_refused(const ats_options *o, ats_status status, const char *part) {
    ats_engine *e = (ats_engine *)(void *)&part; /* must be cleared */
    TEST_STATUS(ats_engine_open(o, &e), status);
    TEST_ERROR_HAS(part);
    assert_null(e);
}

static void options_out_of_range_are_named(void **state) {
    (void)state;
    const ats_options good = agree_llama();
    static const struct {
        const char *name;
        size_t offset;
        int value;
    } cases[] = {
#define FIELD(field, value) {#field, offsetof(ats_options, field), value}
        FIELD(n_ctx, -1),
        FIELD(n_ctx, (1 << 28) + 1),
        FIELD(n_seqs, -1),
        FIELD(n_seqs, 1025),
        FIELD(n_batch, -1),
        FIELD(n_batch, (1 << 16) + 1),
        FIELD(n_rows, -1),
        FIELD(n_rows, (1 << 16) + 1),
        FIELD(n_threads, -1),
        FIELD(n_threads, 513),
        FIELD(n_threads_batch, -1),
        FIELD(n_threads_batch, 513),
        FIELD(kv_k, 3),
        FIELD(kv_v, 77),
        FIELD(math, 3),
#undef FIELD
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ats_options o = good;
        memcpy((char *)&o + cases[i].offset, &cases[i].value, sizeof(int));
        expect_refused(&o, ATS_BAD_ARGUMENT, cases[i].name);
    }
}

static void models_that_are_not_there_are_named(void **state) {
    (void)state;
    ats_options o;
    ats_options_default(&o);
    expect_refused(&o, ATS_BAD_ARGUMENT, "no model");
    o.model = "";
    expect_refused(&o, ATS_BAD_ARGUMENT, "no model");
    o.model = "no/such/file.gguf";
    expect_refused(&o, ATS_IO, "no/such/file.gguf");
    o.model = TEST_SOURCE_ROOT; /* a folder */
    TEST_STATUS(ats_engine_open(&o, &(ats_engine *){NULL}), ATS_IO);
    o.model = TEST_SOURCE_ROOT "/shapes/qwen3-14b.json";
    expect_refused(&o, ATS_BAD_ARGUMENT, "has no weights");
    o.model = TEST_SOURCE_ROOT "/meson.build";
    expect_refused(&o, ATS_BAD_FILE, "");
}

static void devices_and_kernels_are_checked(void **state) {
    (void)state;
    ats_options o = agree_llama();
    o.devices = "cpu,";
    expect_refused(&o, ATS_BAD_ARGUMENT, "devices");
    o.devices = "";
    expect_refused(&o, ATS_BAD_ARGUMENT, "devices");
    o.devices = "cpu,cpu,cpu,cpu,cpu";
    expect_refused(&o, ATS_BAD_ARGUMENT, "devices");
    o.devices = "cpu,abacus";
    expect_refused(&o, ATS_UNSUPPORTED, "abacus");
    o.devices = NULL;
    o.cpu_isa = "mmx";
    expect_refused(&o, ATS_BAD_ARGUMENT, "mmx");
}

static void a_q8_0_cache_needs_heads_of_32(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/qwen2/qwen2-f32.gguf")) skip();
    ats_options o = agree_options(path); /* heads of 16 */
    o.kv_v = ATS_KV_Q8_0;
    expect_refused(&o, ATS_UNSUPPORTED, "16");
    o.kv_v = ATS_KV_F16;
    ats_engine_close(agree_open(&o));
}

/* Sizes are added up before anything is reserved. */
static void a_context_beyond_memory_is_refused_with_the_sums(void **state) {
    (void)state;
    ats_options o = agree_llama();
    o.n_ctx = 1 << 21; /* KV of 1536 bytes a token: 3 TiB */
    o.n_seqs = 1024;
    expect_refused(&o, ATS_NO_MEMORY, "KV cache");
    TEST_ERROR_HAS("MiB of memory are free");
    TEST_ERROR_HAS("3145728"); /* MiB */
    TEST_ERROR_HAS("weights");
    o.n_ctx = 1 << 28; /* more pages than can be counted */
    expect_refused(&o, ATS_BAD_ARGUMENT, "1024 sessions");
}

struct seen_progress {
    int n_calls, stop_at;
    uint64_t done, total;
    bool grows;
};

static bool note_progress(void *user, const char *what, uint64_t done, uint64_t total) {
    struct seen_progress *p = user;
    if (done < p->done || done > total || !what[0] || (p->n_calls && total != p->total))
        p->grows = false;
    p->done = done, p->total = total;
    return ++p->n_calls != p->stop_at;
}

static void loading_tells_its_progress_and_can_be_cancelled(void **state) {
    (void)state;
    ats_options o = agree_llama();
    struct seen_progress p = {.grows = true};
    o.progress = note_progress;
    o.progress_user = &p;
    ats_engine_close(agree_open(&o));
    assert_true(p.grows && p.n_calls > 1);
    assert_int_equal(p.done, p.total);
    for (int stop_at = 1; stop_at <= p.n_calls; stop_at++) {
        struct seen_progress q = {.grows = true, .stop_at = stop_at};
        o.progress_user = &q;
        expect_refused(&o, ATS_CANCELLED, "cancelled");
        assert_int_equal(q.n_calls, stop_at);
    }
}

static void defaults_are_filled_in(void **state) {
    (void)state;
    ats_options o;
    ats_info info;
    const char *model = agree_llama().model;
    ats_options_default(&o);
    o.model = model;
    ats_engine *e = agree_open(&o);
    ats_engine_info(e, &info);
    assert_string_equal(info.architecture, "llama");
    assert_string_equal(info.name, "Llama");
    assert_string_equal(info.file_type, "F16");
    assert_non_null(strstr(info.chat_template, "messages"));
    assert_int_equal(info.n_params, 680848);
    assert_int_equal(info.n_layers, 3);
    assert_int_equal(info.n_embd, 128);
    assert_int_equal(info.n_heads, 4);
    assert_int_equal(info.n_kv_heads, 2);
    assert_int_equal(info.n_vocab, 640);
    assert_int_equal(info.n_ctx_train, 512);
    assert_int_equal(info.n_ctx, 512); /* the model's */
    assert_int_equal(info.n_seqs, 1);
    assert_int_equal(info.n_batch, 512);
    assert_int_equal(info.n_rows, 32);
    assert_true(info.n_threads >= 1 && info.n_threads_batch >= info.n_threads);
    assert_int_equal(info.bos, 625);
    assert_int_equal(info.eos, 629);
    assert_true(info.adds_bos);
    assert_true(info.cpu_isa[0]);
    ats_engine_close(e);
    o.n_batch = 8;
    e = agree_open(&o);
    ats_engine_info(e, &info);
    assert_int_equal(info.n_rows, 8); /* no more than tokens */
    ats_engine_close(e);
}

static void metadata_alone_has_a_vocabulary_and_no_sessions(void **state) {
    (void)state;
    ats_options o = agree_llama();
    o.metadata_only = true;
    ats_engine *e = agree_open(&o);
    ats_info info;
    ats_engine_info(e, &info);
    assert_int_equal(info.n_vocab, 640);
    assert_int_equal(info.n_layers, 0);
    ats_session *s;
    TEST_STATUS(ats_session_open(e, &s), ATS_BAD_ARGUMENT);
    TEST_ERROR_HAS("metadata");
    assert_null(s);
    int32_t *got;
    size_t n;
    TEST_OK(ats_tokenize(e, "Hello", 5, ATS_TOKENIZE_SPECIAL, &got, &n));
    assert_true(n >= 2 && got[0] == 625);
    ats_free(got);
    char *json = ats_engine_describe(e);
    assert_non_null(json);
    ats_free(json);
    ats_stats stats;
    ats_engine_stats(e, &stats);
    assert_int_equal(stats.kv_bytes + stats.work_bytes, 0);
    ats_engine_close(e);
}

/* ---- text and facts ---- */

static void text_goes_to_ids_and_back(void **state) {
    (void)state;
    ats_options o = agree_llama();
    o.metadata_only = true;
    ats_engine *e = agree_open(&o);
    int32_t *got;
    size_t n, n_bytes;
    char *text;
    TEST_OK(ats_tokenize(e, "", 0, 0, &got, &n)); /* nothing: not NULL */
    assert_non_null(got);
    assert_int_equal(n, 0);
    TEST_OK(ats_detokenize(e, got, 0, true, &text, &n_bytes));
    assert_non_null(text);
    assert_int_equal(n_bytes, 0);
    ats_free(got), ats_free(text);
    static const char hello[] = "H\xc3\xa9llo <|eot_id|>";
    TEST_OK(ats_tokenize(e, hello, strlen(hello), 0, &got, &n));
    TEST_OK(ats_detokenize(e, got, n, false, &text, &n_bytes));
    assert_string_equal(text, hello); /* as letters: nothing is special */
    ats_free(got), ats_free(text);
    TEST_OK(ats_tokenize(e, hello, strlen(hello), ATS_TOKENIZE_PARSE_SPECIAL, &got, &n));
    assert_true(ats_token_is_end(e, got[n - 1]));
    TEST_OK(ats_detokenize(e, got, n, false, &text, &n_bytes));
    assert_string_equal(text, "H\xc3\xa9llo ");
    ats_free(text);
    TEST_OK(ats_detokenize(e, got, n, true, &text, &n_bytes));
    assert_string_equal(text, hello);
    ats_free(got), ats_free(text);
    ats_engine_close(e);
}

static void chats_are_rendered_and_begin_with_one_bos(void **state) {
    (void)state;
    ats_options o = agree_llama();
    o.metadata_only = true;
    ats_engine *e = agree_open(&o);
    char *text;
    int32_t *got;
    size_t n;
    TEST_OK(ats_chat_render(e, "[{\"role\":\"user\",\"content\":\"Hi\"}]", NULL, true, &text));
    TEST_OK(ats_tokenize_chat(e, text, &got, &n));
    assert_int_equal(got[0], 625);
    assert_int_not_equal(got[1], 625);
    ats_free(got);
    TEST_OK(ats_tokenize_chat(e, "Hi", &got, &n)); /* a text without it gets one */
    assert_int_equal(got[0], 625);
    ats_free(text), ats_free(got);
    static const char *const bad[] = {"", "{", "{}", "[1]", "[{\"role\":1}]", "null", "\xff"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        TEST_STATUS(ats_chat_render(e, bad[i], NULL, true, &text), ATS_BAD_INPUT);
        assert_null(text);
    }
    TEST_STATUS(ats_chat_render(e, "[]", "[]", true, &text), ATS_BAD_INPUT);
    TEST_STATUS(ats_chat_render(e, "[]", "{\"a\"", true, &text), ATS_BAD_INPUT);
    ats_engine_close(e);
}

static bool stop_at_once(void *user) {
    ++*(int *)user;
    return true;
}

static void long_texts_and_chats_can_be_cancelled(void **state) {
    (void)state;
    ats_options o = agree_llama();
    o.metadata_only = true;
    ats_engine *e = agree_open(&o);
    struct buf words = {0}, messages = {0};
    for (int i = 0; i < 100000; i++)
        buf_add_str(&words, "word ");
    for (int i = 0; i < 20000; i++)
        buf_printf(&messages, "%c{\"role\":\"%s\",\"content\":\"Hi\"}", i ? ',' : '[',
                   i % 2 ? "assistant" : "user");
    buf_add_char(&messages, ']');
    int32_t *got;
    char *text;
    size_t n;
    int n_asked = 0;
    ats_engine_set_cancel(e, stop_at_once, &n_asked);
    TEST_STATUS(ats_tokenize(e, words.data, words.len, 0, &got, &n), ATS_CANCELLED);
    assert_null(got);
    TEST_STATUS(ats_tokenize_chat(e, buf_str(&words), &got, &n), ATS_CANCELLED);
    assert_null(got);
    TEST_STATUS(ats_chat_render(e, buf_str(&messages), NULL, true, &text), ATS_CANCELLED);
    assert_null(text);
    assert_int_equal(n_asked, 3);
    ats_engine_set_cancel(e, NULL, NULL);
    TEST_OK(ats_tokenize(e, words.data, words.len, 0, &got, &n));
    ats_free(got);
    ats_engine_close(e);
    buf_free(&words), buf_free(&messages);
}

static json_t *parsed(char *text) {
    json_t *value;
    assert_non_null(text);
    TEST_OK(json_parse(text, strlen(text), &value));
    assert_true(json_is_object(value));
    ats_free(text);
    return value;
}

static void facts_are_json(void **state) {
    (void)state;
    ats_options o = agree_llama();
    o.devices = "cpu,cpu";
    ats_engine *e = agree_open(&o);
    json_decref(parsed(ats_engine_describe(e)));
    json_decref(parsed(ats_machine_describe()));
    ats_engine_close(e);
    char *text;
    TEST_OK(ats_file_describe(o.model, &text));
    json_t *file = parsed(text);
    assert_string_equal(json_string_value(test_json_get(file, "architecture")), "llama");
    json_decref(file);
    TEST_STATUS(ats_file_describe("no/such/file.gguf", &text), ATS_IO);
    assert_null(text);
    ats_free(NULL);
}

/* A file's name may hold any bytes. */
static void names_of_files_need_not_be_utf_8(void **state) {
    (void)state;
    ats_options o = agree_llama();
    char path[512], *text;
    test_tmp_path(path, sizeof path, "odd \xff\xc3 name.gguf");
    assert_int_equal(symlink(o.model, path), 0);
    TEST_OK(ats_file_describe(path, &text));
    json_decref(parsed(text));
    o.model = path;
    ats_engine *e = agree_open(&o);
    json_decref(parsed(ats_engine_describe(e)));
    ats_engine_close(e);
    unlink(path);
    expect_refused(&o, ATS_IO, "name.gguf");
    assert_true(utf8_valid(ats_error_text(), strlen(ats_error_text())));
}

static void statuses_have_texts(void **state) {
    (void)state;
#define CHECK(name, value, text) assert_string_equal(ats_status_text(name), text);
    ATS_STATUS_MAP(CHECK)
#undef CHECK
    assert_non_null(ats_status_text((ats_status)-1));
    assert_non_null(ats_status_text((ats_status)1000));
}

struct seen_log {
    int n;
    char text[512];
};
static void note_log(void *user, int level, const char *text) {
    struct seen_log *l = user;
    assert_in_range(level, 0, 3);
    l->n++;
    snprintf(l->text, sizeof l->text, "%s", text);
}

static void messages_go_to_whom_they_are_given(void **state) {
    (void)state;
    ats_options o = agree_llama();
    struct seen_log log = {0};
    o.n_ctx = 600; /* the model's is 512 */
    ats_log_set(note_log, &log, 1);
    ats_engine_close(agree_open(&o));
    assert_int_equal(log.n, 1);
    assert_non_null(strstr(log.text, "600"));
    ats_log_set(note_log, &log, 0); /* errors only: a warning is none */
    ats_engine_close(agree_open(&o));
    ats_log_set(NULL, NULL, 3);
    ats_engine_close(agree_open(&o));
    assert_int_equal(log.n, 1);
}

/* Bound or not, a thread computes the same; where there are too few CPUs, a warning says so. */
static void bound_threads_change_no_bit(void **state) {
    (void)state;
    enum { N = 20 };
    ats_options o = agree_llama();
    struct seen_log log = {0};
    int32_t ids[N];
    float *logits[2];
    size_t width = 0;
    o.n_threads = cpu_count_usable();
    ats_log_set(note_log, &log, 1);
    for (int i = 0; i < N; i++)
        ids[i] = i * 37 % 620;
    for (int pin = 0; pin < 2; pin++) {
        o.pin = pin;
        ats_engine *e = agree_open(&o);
        logits[pin] = agree_logits(e, ids, N, 0);
        width = (size_t)agree_vocab(e);
        ats_engine_close(e);
    }
    assert_memory_equal(logits[0], logits[1], N * width * sizeof(float));
    free(logits[0]), free(logits[1]);
    assert_int_equal(log.n, 0);
    o.n_threads_batch = 512;
    static int order[CPU_ORDER_MAX];
    if (cpu_order(order) < 512) {
        ats_engine_close(agree_open(&o));
        assert_non_null(strstr(log.text, "not bound"));
    }
    ats_log_set(NULL, NULL, 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_out_of_range_are_named),
        cmocka_unit_test(models_that_are_not_there_are_named),
        cmocka_unit_test(devices_and_kernels_are_checked),
        cmocka_unit_test(a_q8_0_cache_needs_heads_of_32),
        cmocka_unit_test(a_context_beyond_memory_is_refused_with_the_sums),
        cmocka_unit_test(loading_tells_its_progress_and_can_be_cancelled),
        cmocka_unit_test(defaults_are_filled_in),
        cmocka_unit_test(metadata_alone_has_a_vocabulary_and_no_sessions),
        cmocka_unit_test(text_goes_to_ids_and_back),
        cmocka_unit_test(chats_are_rendered_and_begin_with_one_bos),
        cmocka_unit_test(long_texts_and_chats_can_be_cancelled),
        cmocka_unit_test(facts_are_json),
        cmocka_unit_test(names_of_files_need_not_be_utf_8),
        cmocka_unit_test(statuses_have_texts),
        cmocka_unit_test(messages_go_to_whom_they_are_given),
        cmocka_unit_test(bound_threads_change_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
