/* Messages in OpenAI's shape through the templates of real families: what the chat layer changes on
 * the way, and what it refuses. */
#include "text/chat.h"

#include "base/file.h"
#include "base/log.h"
#include "support.h"

#include <stdio.h>
#include <time.h>

static const struct tm now = {
    .tm_year = 126, .tm_mon = 2, .tm_mday = 4, .tm_wday = 3, .tm_yday = 62};

static struct chat *open_text(const char *text, const char *bos) {
    struct chat *chat;
    struct chat_source source = {"default", text, strlen(text)};
    TEST_OK(chat_open(&source, 1, bos, "</s>", &chat));
    return chat;
}

/* A template of shared/templates; NULL with ATS_SHARED=none. */
static struct chat *open_shared(const char *name) {
    char path[512], relative[64], *text;
    size_t n;
    snprintf(relative, sizeof relative, "templates/%s.jinja", name);
    if (!test_shared_path(path, sizeof path, relative)) return NULL;
    TEST_OK(file_read(path, 1 << 20, &text, &n));
    struct chat *chat;
    struct chat_source source = {"default", text, n};
    TEST_OK(chat_open(&source, 1, "<s>", "</s>", &chat));
    free(text);
    return chat;
}

static json_t *parse(const char *text) {
    json_t *json;
    TEST_OK(json_parse(text, strlen(text), &json));
    return json;
}

/* Renders JSON messages; messages are not changed. */
static ats_status render(const struct chat *chat, const char *messages,
                         const struct chat_options *options, struct buf *out) {
    json_t *json = parse(messages), *before = json_deep_copy(json);
    struct chat_options plain = {.add_generation_prompt = true, .now = &now};
    ats_status status = chat_render(chat, json, options ? options : &plain, out);
    assert_true(json_equal(json, before));
    json_decref(json);
    json_decref(before);
    return status;
}

static void expect(const struct chat *chat, const char *messages,
                   const struct chat_options *options, const char *want) {
    struct buf out = {0};
    TEST_OK(render(chat, messages, options, &out));
    assert_string_equal(buf_str(&out), want);
    buf_free(&out);
}

static void expect_error(const struct chat *chat, const char *messages, const char *error) {
    struct buf out = {0};
    buf_add_str(&out, "kept");
    TEST_STATUS(render(chat, messages, NULL, &out), ATS_BAD_INPUT);
    TEST_ERROR_HAS(error);
    assert_string_equal(buf_str(&out), "kept");
    buf_free(&out);
}

/* ---- against the oracles ---- */

/* Cases of the oracle whose context is only what chat_render makes itself; arguments of calls are
 * handed over as JSON text, as clients do. */
static size_t check_oracle(const char *name) {
    char path[512], relative[64];
    snprintf(relative, sizeof relative, "templates/%s.json", name);
    struct chat *chat = open_shared(name);
    if (!chat || !test_shared_path(path, sizeof path, relative)) skip();
    json_t *doc = test_json_read(path), *c, *message, *call;
    size_t i, k, m, n_checked = 0;
    json_array_foreach(test_json_get(doc, "cases"), i, c) {
        const char *label = json_string_value(test_json_get(c, "name"));
        json_t *context = test_json_get(c, "context");
        json_t *want = json_object_get(c, "output"), *messages = test_json_get(context, "messages");
        /* these hold what is not OpenAI's shape, or what the chat layer makes better */
        if (!want || strstr(label, "parts") || strstr(label, "structured") ||
            strstr(label, "kwargs") || strstr(label, "builtin") || strstr(label, "developer") ||
            strstr(label, "string_arguments") || strstr(label, "tools_empty"))
            continue;
        json_array_foreach(messages, k, message) {
            json_array_foreach(json_object_get(message, "tool_calls"), m, call) {
                json_t *function = test_json_get(call, "function");
                char *text = json_dumps(test_json_get(function, "arguments"), 0);
                json_object_set_new(function, "arguments", json_string(text));
                free(text);
            }
        }
        struct tm frozen = now;
        frozen.tm_hour = 15, frozen.tm_min = 6, frozen.tm_sec = 7;
        json_t *thinking = json_object_get(context, "enable_thinking");
        json_t *tools = json_object_get(context, "tools");
        struct chat_options options = {
            .add_generation_prompt = json_is_true(test_json_get(context, "add_generation_prompt")),
            .enable_thinking = !thinking                ? CHAT_UNSET
                               : json_is_true(thinking) ? CHAT_ON
                                                        : CHAT_OFF,
            .tools = json_is_array(tools) ? tools : NULL,
            .now = &frozen,
        };
        struct buf out = {0};
        if (chat_render(chat, messages, &options, &out) != ATS_OK)
            fail_msg("%s %s: %s", name, label, error_text());
        if (strcmp(buf_str(&out), json_string_value(want)) != 0)
            fail_msg("%s %s: got\n%s\nwant\n%s", name, label, buf_str(&out),
                     json_string_value(want));
        buf_free(&out);
        n_checked++;
    }
    json_decref(doc);
    chat_close(chat);
    return n_checked;
}

static void test_families_render_openai_messages_as_the_oracle(void **state) {
    (void)state;
    static const char *const names[] = {
        "chatml",         "smollm2", "gemma_turns",    "glm4",         "llama31_tools",
        "qwen3_thinking", "harmony", "mistral_strict", "r1_namespace", "smollm3_modes"};
    for (size_t i = 0; i < COUNT_OF(names); i++)
        if (check_oracle(names[i]) < 10) fail_msg("%s: too few cases", names[i]);
}

/* ---- tool calls ---- */

#define CALL(arguments)                                                                            \
    "[{\"role\": \"user\", \"content\": \"q\"}, {\"role\": \"assistant\", \"content\": null, "     \
    "\"tool_calls\": [{\"id\": \"abcdefghi\", \"type\": \"function\", \"function\": {\"name\": "   \
    "\"f\", \"arguments\": " arguments "}}]}, {\"role\": \"tool\", \"content\": \"r\", "           \
    "\"tool_call_id\": \"abcdefghi\"}, {\"role\": \"assistant\", \"content\": \"ok\"}, "           \
    "{\"role\": \"user\", \"content\": \"go on\"}]"

static void test_unfinished_arguments_pass_as_text(void **state) {
    (void)state;
    static const char *const names[] = {"chatml",         "smollm2",        "glm4",
                                        "qwen3_thinking", "mistral_strict", "r1_namespace",
                                        "smollm3_modes",  "harmony"};
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        struct chat *chat = open_shared(names[i]);
        if (!chat) skip();
        struct buf out = {0};
        if (render(chat, CALL("\"{\""), NULL, &out) != ATS_OK)
            fail_msg("%s: %s", names[i], error_text());
        assert_non_null(strstr(buf_str(&out), "go on"));
        buf_free(&out);
        chat_close(chat);
    }
}

static void test_arguments_as_text_become_an_object(void **state) {
    (void)state;
    struct chat *chat =
        open_text("{{ messages[1].tool_calls[0].function.arguments | tojson }}", "");
    expect(chat, CALL("\"{\\\"b\\\": 1, \\\"a\\\":[2.0]}\""), NULL, "{\"b\": 1, \"a\": [2.0]}");
    expect(chat, CALL("{\"b\": 1}"), NULL, "{\"b\": 1}");
    expect(chat, CALL("\"{\\\"b\\\": \""), NULL, "\"{\\\"b\\\": \"");
    expect(chat, CALL("\"\""), NULL, "{}");
    expect(chat, CALL("\"[1]\""), NULL, "\"[1]\"");
    chat_close(chat);
}

static void test_templates_that_want_text_get_text(void **state) {
    (void)state;
    struct chat *chat =
        open_text("{{ 'call ' + messages[1].tool_calls[0].function.arguments }}", "");
    expect(chat, CALL("{\"b\": 1}"), NULL, "call {\"b\": 1}");
    expect(chat, CALL("\"{\\\"b\\\": 1}\""), NULL, "call {\"b\": 1}");
    expect(chat, CALL("\"{\""), NULL, "call {");
    chat_close(chat);
}

static void test_templates_that_want_an_object_get_one(void **state) {
    (void)state;
    struct chat *chat = open_text("{% for k, v in messages[1].tool_calls[0].function.arguments | "
                                  "items %}{{ k }}={{ v }};{% endfor %}",
                                  "");
    expect(chat, CALL("\"{\\\"b\\\": 1}\""), NULL, "b=1;");
    expect(chat, CALL("\"{\\\"b\""), NULL, "arguments={\"b;");
    chat_close(chat);
}

static void test_null_content_of_a_call_is_no_error(void **state) {
    (void)state;
    struct chat *chat =
        open_text("{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}", "");
    expect(chat, CALL("\"{}\""), NULL, "user:q;assistant:;tool:r;assistant:ok;user:go on;");
    expect(chat, "[{\"role\": \"assistant\"}]", NULL, "assistant:;");
    chat_close(chat);
}

static void test_the_first_error_is_told(void **state) {
    (void)state;
    struct chat *chat = open_text("{% if messages[1].tool_calls %}\n{{ raise_exception('no calls "
                                  "here') }}{% endif %}",
                                  "");
    expect_error(chat, CALL("\"{}\""), "template line 2: raise_exception: no calls here");
    expect_error(chat, CALL("\"{\""),
                 "messages[1]: tool call with unfinished arguments: template line 2");
    chat_close(chat);
}

/* ---- content ---- */

#define PARTS                                                                                      \
    "[{\"role\": \"user\", \"content\": [{\"type\": \"text\", \"text\": \"one\"}, "                \
    "{\"type\": \"text\", \"text\": \"two\"}]}]"

static void test_parts_become_text_where_the_template_reads_text(void **state) {
    (void)state;
    static const char *const texts[] = {
        "{{ messages[0].content }}",
        "{{ messages[0].content if messages[0].content is string else '' }}",
        "{{ '' + messages[0].content }}",
    };
    for (size_t i = 0; i < COUNT_OF(texts); i++) {
        struct chat *chat = open_text(texts[i], "");
        expect(chat, PARTS, NULL, "one\ntwo");
        chat_close(chat);
    }
}

static void test_parts_stay_where_the_template_reads_them(void **state) {
    (void)state;
    struct chat *either =
        open_text("{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}"
                  "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}",
                  "");
    expect(either, PARTS, NULL, "[one][two]");
    expect(either, "[{\"role\": \"user\", \"content\": \"x\"}]", NULL, "x");
    chat_close(either);
    struct chat *only = open_text("{% for m in messages %}{% for p in m.content %}"
                                  "[{{ p['text'] }}]{% endfor %}{% endfor %}",
                                  "");
    expect(only, PARTS, NULL, "[one][two]");
    expect(only, "[{\"role\": \"user\", \"content\": \"x\"}]", NULL, "[x]");
    chat_close(only);
}

static void test_reasoning_has_one_meaning_under_three_names(void **state) {
    (void)state;
    struct chat *chat =
        open_text("{{ messages[0].thinking }}{{ messages[0].reasoning_content }}", "");
    expect(chat, "[{\"role\": \"a\", \"content\": \"\", \"reasoning_content\": \"r\"}]", NULL,
           "rr");
    expect(chat, "[{\"role\": \"a\", \"content\": \"\", \"thinking\": \"t\"}]", NULL, "tt");
    expect(chat, "[{\"role\": \"a\", \"content\": \"\", \"reasoning\": \"o\"}]", NULL, "oo");
    expect(chat, "[{\"role\": \"a\", \"content\": \"\"}]", NULL, "");
    chat_close(chat);
}

static void test_developer_is_system_unless_the_template_knows_it(void **state) {
    (void)state;
    struct chat *plain = open_text("{{ messages[0].role }}", "");
    struct chat *knows = open_text("{{ messages[0].role }}{# developer #}", "");
    expect(plain, "[{\"role\": \"developer\", \"content\": \"\"}]", NULL, "system");
    expect(knows, "[{\"role\": \"developer\", \"content\": \"\"}]", NULL, "developer");
    chat_close(plain);
    chat_close(knows);
}

static void test_wrong_messages_are_named(void **state) {
    (void)state;
    struct chat *chat = open_text("x", "");
    expect_error(chat, "{}", "messages is not an array");
    expect_error(chat, "[{\"role\": \"user\"}, 3]", "messages[1] is not an object");
    expect_error(chat, "[{\"content\": \"x\"}]", "messages[0]: \"role\"");
    expect_error(chat, "[{\"role\": \"u\", \"content\": 3}]", "messages[0]: \"content\"");
    expect_error(chat, "[{\"role\": \"u\", \"content\": [3]}]", "messages[0]: a content part");
    expect_error(chat, "[{\"role\": \"u\", \"content\": [{\"type\": \"image_url\"}]}]",
                 "messages[0]: content of type \"image_url\" is not supported");
    expect_error(chat, "[{\"role\": \"u\", \"content\": [{\"type\": \"text\"}]}]",
                 "messages[0]: a text part");
    expect_error(chat, "[{\"role\": \"u\", \"tool_calls\": {}}]", "messages[0]: \"tool_calls\"");
    struct buf deep = {0};
    buf_add_str(&deep, "[{\"role\": \"u\", \"x\": ");
    for (int i = 0; i < 1000; i++)
        buf_add_char(&deep, '[');
    for (int i = 0; i < 1000; i++)
        buf_add_char(&deep, ']');
    buf_add_str(&deep, "}]");
    expect_error(chat, buf_str(&deep), "messages[0] is nested too deep");
    buf_free(&deep);
    chat_close(chat);
}

/* ---- options, templates ---- */

static void test_options_reach_the_template(void **state) {
    (void)state;
    struct chat *chat =
        open_text("{{ bos_token }}{{ eos_token }} {{ add_generation_prompt }} {{ tools }} "
                  "{{ enable_thinking | default('unset') }} {{ effort | default('-') }} "
                  "{{ strftime_now('%Y-%m-%d') if strftime_now is defined else 'no clock' }}",
                  "<s>");
    json_t *tools = parse("[{\"type\": \"function\"}]"), *none = json_array();
    json_t *extra = parse("{\"effort\": \"high\", \"enable_thinking\": 1}");
    struct chat_options options = {.now = &now};
    expect(chat, "[]", &options, "<s></s> False None unset - 2026-03-04");
    options = (struct chat_options){
        .add_generation_prompt = true, .enable_thinking = CHAT_OFF, .tools = none};
    expect(chat, "[]", &options, "<s></s> True None False - no clock");
    options.tools = tools;
    options.enable_thinking = CHAT_ON;
    expect(chat, "[]", &options, "<s></s> True [{'type': 'function'}] True - no clock");
    options.extra = tools; /* no object */
    struct buf out = {0};
    TEST_STATUS(render(chat, "[]", &options, &out), ATS_BAD_INPUT);
    options.extra = extra;
    expect(chat, "[]", &options, "<s></s> True [{'type': 'function'}] 1 high no clock");
    options.tools = NULL;
    json_object_set(extra, "tools", none);
    expect(chat, "[]", &options, "<s></s> True None 1 high no clock");
    json_object_set(extra, "tools", tools);
    expect(chat, "[]", &options, "<s></s> True [{'type': 'function'}] 1 high no clock");
    json_object_set_new(extra, "messages", json_array());
    TEST_STATUS(render(chat, "[]", &options, &out), ATS_BAD_INPUT);
    options = (struct chat_options){.tools = extra};
    TEST_STATUS(render(chat, "[]", &options, &out), ATS_BAD_INPUT);
    json_decref(tools);
    json_decref(none);
    json_decref(extra);
    chat_close(chat);
}

static void test_tools_take_the_tool_use_template(void **state) {
    (void)state;
    struct chat *chat;
    const struct chat_source sources[] = {
        {"rag", "rag", 3}, {"tool_use", "tool", 4}, {"default", "plain", 5}};
    TEST_OK(chat_open(sources, 3, NULL, NULL, &chat));
    json_t *tools = parse("[{}]");
    struct chat_options options = {.tools = tools};
    expect(chat, "[]", NULL, "plain");
    expect(chat, "[]", &options, "tool");
    json_decref(tools);
    chat_close(chat);
    TEST_OK(chat_open(sources, 2, NULL, NULL, &chat));
    expect(chat, "[]", NULL, "rag");
    chat_close(chat);
}

static void test_a_file_of_countless_templates_is_refused(void **state) {
    (void)state;
    struct chat *chat = NULL;
    struct chat_source sources[17];
    for (size_t i = 0; i < COUNT_OF(sources); i++)
        sources[i] = (struct chat_source){"default", "x", 1};
    TEST_STATUS(chat_open(sources, COUNT_OF(sources), NULL, NULL, &chat), ATS_BAD_INPUT);
    TEST_ERROR_HAS("17 chat templates are too many");
    TEST_OK(chat_open(sources, COUNT_OF(sources) - 1, NULL, NULL, &chat));
    chat_close(chat);
}

static void take_log(void *user, enum log_level level, const char *text) {
    if (level == LOG_WARN) buf_add_str(user, text);
}

static void test_without_a_template_chatml_is_used_and_told(void **state) {
    (void)state;
    struct chat *chat;
    struct buf log = {0};
    struct chat_source blank = {"default", " \n", 2};
    log_set(take_log, &log, LOG_WARN);
    TEST_OK(chat_open(&blank, 1, "<s>", "</s>", &chat));
    log_set(NULL, NULL, LOG_WARN);
    assert_non_null(strstr(buf_str(&log), "no chat template"));
    expect(chat,
           "[{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", \"content\": \"u\"}]",
           NULL,
           "<|im_start|>system\ns<|im_end|>\n<|im_start|>user\nu<|im_end|>\n"
           "<|im_start|>assistant\n");
    buf_free(&log);
    chat_close(chat);
}

static void test_a_wrong_template_is_named_with_its_line(void **state) {
    (void)state;
    struct chat *chat = NULL;
    static const char text[] = "ok\n{% widget %}";
    const struct chat_source sources[] = {{"default", "fine", 4},
                                          {"tool_use", text, sizeof text - 1}};
    TEST_STATUS(chat_open(sources, 2, NULL, NULL, &chat), ATS_BAD_INPUT);
    TEST_ERROR_HAS("chat template 'tool_use': template: line 2: unknown tag 'widget'");
    assert_null(chat);
    chat_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_families_render_openai_messages_as_the_oracle),
        cmocka_unit_test(test_unfinished_arguments_pass_as_text),
        cmocka_unit_test(test_arguments_as_text_become_an_object),
        cmocka_unit_test(test_templates_that_want_text_get_text),
        cmocka_unit_test(test_templates_that_want_an_object_get_one),
        cmocka_unit_test(test_null_content_of_a_call_is_no_error),
        cmocka_unit_test(test_the_first_error_is_told),
        cmocka_unit_test(test_parts_become_text_where_the_template_reads_text),
        cmocka_unit_test(test_parts_stay_where_the_template_reads_them),
        cmocka_unit_test(test_reasoning_has_one_meaning_under_three_names),
        cmocka_unit_test(test_developer_is_system_unless_the_template_knows_it),
        cmocka_unit_test(test_wrong_messages_are_named),
        cmocka_unit_test(test_options_reach_the_template),
        cmocka_unit_test(test_a_file_of_countless_templates_is_refused),
        cmocka_unit_test(test_tools_take_the_tool_use_template),
        cmocka_unit_test(test_without_a_template_chatml_is_used_and_told),
        cmocka_unit_test(test_a_wrong_template_is_named_with_its_line),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
