/* One answer from -p, -f or standard input, or the chat. */
#include "app/answer.h"
#include "app/chat.h"
#include "app/cmd.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Adds a file's text, on a new line after what is there, without its last line break. */
MUST_CHECK static ats_status add_file(struct buf *prompt, const char *path) {
    char *text;
    size_t n;
    TRY(app_read_input(path, &text, &n));
    if (n && text[n - 1] == '\n') n--;
    if (n && text[n - 1] == '\r') n--;
    if (n && prompt->len) buf_add_char(prompt, '\n');
    utf8_add_replaced(prompt, text, n);
    free(text);
    return ATS_OK;
}

/* *given: false if there is no prompt at all, which means a chat. */
MUST_CHECK static ats_status read_prompt(const struct app *app, struct buf *prompt, bool *given) {
    const struct flags *f = &app->flags;
    const char *text = flag_text(f, FLAG_PROMPT), *file = flag_text(f, FLAG_FILE);
    if (text) utf8_add_replaced(prompt, text, strlen(text));
    if (file) TRY(add_file(prompt, file));
    if (!file && !app->term.in_tty) TRY(add_file(prompt, "-"));
    *given = text || file || !app->term.in_tty;
    if (*given && prompt->len == 0 && !text)
        return fail(ATS_BAD_ARGUMENT, file ? "-f: %s is empty" : "%s is empty, and there is no -p",
                    file ? file : "standard input");
    return ATS_OK;
}

MUST_CHECK static ats_status check_flags(const struct app *app, bool has_prompt) {
    const struct flags *f = &app->flags;
    if (flag_on(f, FLAG_NO_TEMPLATE) && flag_given(f, FLAG_SYSTEM_PROMPT))
        return fail(ATS_BAD_ARGUMENT, "--system-prompt has no place without the chat template "
                                      "(--no-template)");
    if (has_prompt) return ATS_OK;
    if (flag_on(f, FLAG_NO_TEMPLATE))
        return fail(ATS_BAD_ARGUMENT, "--no-template continues a prompt: give one with -p or -f");
    if (app->json)
        return fail(ATS_BAD_ARGUMENT, "--json prints one answer: give a prompt with -p or -f");
    return ATS_OK;
}

MUST_CHECK static ats_status prompt_ids(struct talker *t, const struct buf *prompt, int32_t **ids,
                                        size_t *n_ids) {
    const struct flags *f = &t->app->flags;
    if (flag_on(f, FLAG_NO_TEMPLATE))
        return ats_tokenize(t->engine, buf_str(prompt), prompt->len, ATS_TOKENIZE_SPECIAL, ids,
                            n_ids);
    json_t *messages = json_array();
    if (flag_text(f, FLAG_SYSTEM_PROMPT))
        json_array_append_new(messages, chat_message("system", flag_text(f, FLAG_SYSTEM_PROMPT)));
    json_array_append_new(messages, chat_message("user", buf_str(prompt)));
    ats_status status = talker_render(t, messages, ids, n_ids);
    json_decref(messages);
    return status;
}

static json_t *part_json(const struct answer *a, enum reply_part part) {
    return json_string_replaced(buf_str(&a->parts[part]), a->parts[part].len);
}

static int print_answer_json(const struct talker *t, const struct answer *a,
                             const struct timing *timing) {
    json_t *o = app_json(t->app), *ids = json_array(), *tokens = json_object();
    json_object_set_new(o, "model", json_string_replaced(t->app->model, strlen(t->app->model)));
    json_object_set_new(o, "text", part_json(a, REPLY_ANSWER));
    if (a->parts[REPLY_THOUGHT].len)
        json_object_set_new(o, "reasoning_content", part_json(a, REPLY_THOUGHT));
    if (a->parts[REPLY_CALL].len) json_object_set_new(o, "tool_call", part_json(a, REPLY_CALL));
    json_object_set_new(o, "stop", json_string(stop_name(a->stop)));
    json_object_set_new(tokens, "prompt", json_integer((json_int_t)a->n_prompt));
    json_object_set_new(tokens, "generated", json_integer(a->n_tokens));
    json_object_set_new(o, "tokens", tokens);
    for (size_t i = 0; i < a->n_ids; i++)
        json_array_append_new(ids, json_integer(a->ids[i]));
    json_object_set_new(o, "token_ids", ids);
    /* As text: a number of 64 bits does not survive every reader. */
    char *seed = arena_printf(&t->app->arena, "%llu", (unsigned long long)t->sampling.seed);
    json_object_set_new(o, "seed", json_string(seed));
    json_object_set_new(o, "timings", timing_json(timing));
    return app_print_json(t->app, o);
}

static int finish_answer(struct talker *t, const struct answer *a) {
    struct app *app = t->app;
    struct timing timing = {0};
    timing_add(&timing, t, a);
    const struct buf *text = answer_text(a);
    int code = EXIT_OK;
    if (app->json)
        code = print_answer_json(t, a, &timing);
    else if (app->term.out_tty || !text->len || text->data[text->len - 1] != '\n')
        code = app_print(app, "\n", 1);
    if (a->stop == ATS_STOP_CONTEXT)
        app_note(app, "stopped: the context of %d tokens is full; -c enlarges it", t->info.n_ctx);
    struct buf line = {0};
    timing_line(&line, &timing);
    if (!app->quiet && !app->json) app_note(app, "%s", line.data);
    buf_free(&line);
    return code == EXIT_OK && a->interrupted ? EXIT_INTERRUPTED : code;
}

static int answer_once(struct talker *t, const struct buf *prompt) {
    int32_t *ids = NULL;
    size_t n_ids = 0;
    struct answer answer = {0};
    t->stream = !t->app->json;
    int code;
    ats_status status = prompt_ids(t, prompt, &ids, &n_ids);
    if (status == ATS_OK && n_ids == 0) status = fail(ATS_BAD_ARGUMENT, "the prompt is empty");
    if (status == ATS_OK) status = talker_answer(t, ids, n_ids, 0, &answer);
    code = status == ATS_OK ? finish_answer(t, &answer) : app_fail(t->app, status);
    ats_free(ids);
    answer_free(&answer);
    return code;
}

int cmd_run(struct app *app) {
    struct buf prompt = {0};
    bool given = false;
    struct talker t = {0};
    ats_status status = app_find_model(app);
    if (status == ATS_OK) status = check_flags(app, true);
    if (status == ATS_OK) status = read_prompt(app, &prompt, &given);
    if (status == ATS_OK) status = check_flags(app, given);
    if (status == ATS_OK) status = talker_open(app, &t);
    int code = status != ATS_OK ? app_fail(app, status)
               : given          ? answer_once(&t, &prompt)
                                : chat_run(&t);
    talker_close(&t);
    buf_free(&prompt);
    return code;
}
