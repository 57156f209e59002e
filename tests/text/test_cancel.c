/* What takes long asks now and then whether to go on, and ends when it must not. */
#include "rendered.h"
#include "vocab_maker.h"

#include "text/chat.h"

#include <limits.h>
#include <stdlib.h>

struct caller {
    int n_asked, stop_at;
};

static bool ask(void *user) {
    struct caller *c = user;
    return ++c->n_asked >= c->stop_at;
}

/* ---- tokenizing ---- */

static ats_status encode(const struct tokenizer *t, const char *text, size_t n, int stop_at,
                         int *n_asked, struct token_list *out) {
    struct caller c = {.stop_at = stop_at};
    token_list_add(out, 7);
    ats_status status = tokenizer_encode_until(t, text, n, ENCODE_PARSE_SPECIAL, ask, &c, out);
    *n_asked = c.n_asked;
    return status;
}

/* The first and the last time it asks, and that asking changes nothing. */
static void stops_where_it_asks(const struct tokenizer *t, const char *unit, size_t n_units) {
    size_t n_unit = strlen(unit), n = n_unit * n_units;
    char *text = malloc(n);
    for (size_t i = 0; i < n; i++)
        text[i] = unit[i % n_unit];
    struct token_list plain = {0}, asking = {0};
    int n_asked, n_times;
    token_list_add(&plain, 7);
    TEST_OK(tokenizer_encode(t, text, n, ENCODE_PARSE_SPECIAL, &plain));
    TEST_OK(encode(t, text, n, INT_MAX, &n_times, &asking));
    assert_true(n_times >= 2);
    assert_int_equal(asking.n, plain.n);
    assert_memory_equal(asking.ids, plain.ids, plain.n * sizeof *plain.ids);
    for (int stop_at = 1; stop_at <= n_times; stop_at += max_int(n_times - 1, 1)) {
        asking.n = 0;
        TEST_STATUS(encode(t, text, n, stop_at, &n_asked, &asking), ATS_CANCELLED);
        assert_int_equal(n_asked, stop_at); /* no more after it was told */
        assert_int_equal(asking.n, 1);
        assert_int_equal(asking.ids[0], 7);
    }
    asking.n = 0;
    TEST_OK(encode(t, text, n_unit, 1, &n_asked, &asking)); /* soon done: not asked */
    assert_int_equal(n_asked, 0);
    token_list_free(&plain);
    token_list_free(&asking);
    free(text);
}

static void a_long_text_can_be_stopped_while_it_is_tokenized(void **state) {
    (void)state;
    struct maker m;
    make_bpe(&m, "gpt-2");
    add_token(&m, "aa", TOKEN_NORMAL, 0);
    add_token(&m, "<c>", TOKEN_CONTROL, 0);
    add_merge(&m, "a a");
    struct tokenizer *t = open_it(&m);
    stops_where_it_asks(t, "a", 300000); /* one word */
    stops_where_it_asks(t, "a b ", 200000);
    stops_where_it_asks(t, "<c>", 200000);
    tokenizer_close(t);
    maker_free(&m);
    make_spm(&m);
    add_token(&m, "a", TOKEN_NORMAL, -1);
    add_token(&m, "aa", TOKEN_NORMAL, 1);
    add_token(&m, "<c>", TOKEN_CONTROL, 0);
    t = open_it(&m);
    stops_where_it_asks(t, "a", 300000);
    stops_where_it_asks(t, "<c>a", 200000);
    tokenizer_close(t);
    maker_free(&m);
}

/* ---- templates ---- */

#define LONG_TEMPLATE "{% for i in range(300) %}{% for j in range(300) %}x{% endfor %}{% endfor %}"

static void a_template_can_be_stopped_while_it_renders(void **state) {
    (void)state;
    static const char *const texts[] = {
        LONG_TEMPLATE,
        "{% set s = 'ab' * 4000000 %}{% for i in range(5) %}{{ 'c' in s }}{% endfor %}",
        "{{ ('a' * 12000000) | length }}",
    };
    json_t *context = json_object();
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct caller c = {.stop_at = INT_MAX};
        struct template_options options = {.cancel = ask, .cancel_user = &c};
        struct buf out = {0};
        TEST_OK(render(texts[i], strlen(texts[i]), context, &options, &out));
        int n_times = c.n_asked;
        assert_true(n_times >= 1);
        for (int stop_at = 1; stop_at <= n_times; stop_at += max_int(n_times - 1, 1)) {
            c = (struct caller){.stop_at = stop_at};
            buf_clear(&out);
            buf_add_str(&out, "before");
            TEST_STATUS(render(texts[i], strlen(texts[i]), context, &options, &out), ATS_CANCELLED);
            assert_string_equal(buf_str(&out), "before");
            assert_int_equal(c.n_asked, stop_at);
        }
        c = (struct caller){.stop_at = 1};
        TEST_OK(render("{{ 1 }}", 7, context, &options, &out)); /* soon done: not asked */
        assert_int_equal(c.n_asked, 0);
        buf_free(&out);
    }
    json_decref(context);
}

/* A template that fails is tried again with plainer forms of the calls; one that was stopped is
 * not. */
static void a_chat_that_was_stopped_is_not_tried_in_other_forms(void **state) {
    (void)state;
    static const char text[] = LONG_TEMPLATE "{{ raise_exception('no') }}";
    const struct chat_source source = {"default", text, strlen(text)};
    struct chat *chat;
    TEST_OK(chat_open(&source, 1, NULL, NULL, &chat));
    json_t *messages = json_pack("[{s:s, s:[{s:{s:s, s:s}}]}]", "role", "assistant", "tool_calls",
                                 "function", "name", "f", "arguments", "{}");
    struct caller c = {.stop_at = INT_MAX};
    struct chat_options options = {.cancel = ask, .cancel_user = &c};
    struct buf out = {0};
    TEST_STATUS(chat_render(chat, messages, &options, &out), ATS_BAD_INPUT);
    int n_times = c.n_asked;
    assert_true(n_times > 2);
    for (int stop_at = 1; stop_at <= n_times; stop_at += n_times - 1) {
        c = (struct caller){.stop_at = stop_at};
        TEST_STATUS(chat_render(chat, messages, &options, &out), ATS_CANCELLED);
        assert_int_equal(c.n_asked, stop_at);
        TEST_ERROR_HAS("cancelled");
        assert_int_equal(out.len, 0);
    }
    json_decref(messages);
    chat_close(chat);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_long_text_can_be_stopped_while_it_is_tokenized),
        cmocka_unit_test(a_template_can_be_stopped_while_it_renders),
        cmocka_unit_test(a_chat_that_was_stopped_is_not_tried_in_other_forms),
    };
    return cmocka_run_group_tests_name("cancel", tests, NULL, NULL);
}
