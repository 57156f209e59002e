#include "app/chat.h"

#include "app/line_edit.h"
#include "base/file.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct chat {
    struct talker *talker;
    struct line_editor *editor;
    json_t *messages; /* OpenAI's shape: what the template gets */
    struct answer answer;
    struct timing total, last;
    uint64_t n_tries; /* answers asked for, also those thrown away: moves the seed */
    bool over;
    int exit_code;
};

json_t *chat_message(const char *role, const char *content) {
    json_t *m = json_object();
    json_object_set_new(m, "role", json_string(role));
    json_object_set_new(m, "content", json_string_replaced(content, strlen(content)));
    return m;
}

static size_t n_messages(const struct chat *c) {
    return json_array_size(c->messages);
}

static void drop_last(struct chat *c) {
    json_array_remove(c->messages, n_messages(c) - 1);
}

static bool role_is(const struct chat *c, size_t i, const char *role) {
    const json_t *m = json_array_get(c->messages, i);
    return m && !strcmp(json_string_value(json_object_get(m, "role")), role);
}

/* A failure in the chat is told, and the chat goes on. */
static void tell_failure(struct chat *c, ats_status status) {
    struct app *app = c->talker->app;
    if (status == ATS_CANCELLED) {
        app_note(app, "stopped before the answer began");
        return;
    }
    app_fail(app, status == ATS_BAD_ARGUMENT ? ATS_FAILED : status);
    if (status == ATS_CONTEXT_FULL) app_note(app, "/reset starts a new conversation");
}

/* Answers the conversation as it stands; its last message is the user's. False if there is none. */
static bool answer(struct chat *c) {
    struct talker *t = c->talker;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    ats_status status = talker_render(t, c->messages, &ids, &n_ids);
    if (status == ATS_OK) status = talker_answer(t, ids, n_ids, c->n_tries++, &c->answer);
    ats_free(ids);
    const struct answer *a = &c->answer;
    interrupt_clear();
    if (interrupt_is_term() || a->write_status != ATS_OK) {
        c->over = true;
        c->exit_code = a->write_status != ATS_OK ? app_fail(t->app, status) : EXIT_INTERRUPTED;
        return false;
    }
    if (status != ATS_OK) {
        if (a->n_ids) fputc('\n', stdout);
        tell_failure(c, status);
        return false;
    }
    fputs(a->stop == ATS_STOP_CALLER ? " ...\n\n" : "\n\n", stdout);
    fflush(stdout);
    c->last = (struct timing){0};
    timing_add(&c->last, t, a);
    timing_add(&c->total, t, a);
    json_t *message = chat_message("assistant", buf_str(answer_text(a)));
    const struct buf *thought = &a->parts[REPLY_THOUGHT]; /* a template may want it again */
    if (thought->len)
        json_object_set_new(message, "reasoning_content",
                            json_string_replaced(thought->data, thought->len));
    json_array_append_new(c->messages, message);
    if (a->stop == ATS_STOP_CONTEXT)
        app_note(t->app, "the context of %d tokens is full: /reset, or start again with -c %d",
                 t->info.n_ctx, 2 * t->info.n_ctx);
    return true;
}

static void say(struct chat *c, const char *text) {
    json_array_append_new(c->messages, chat_message("user", text));
    if (!answer(c)) drop_last(c);
}

/* ------------------------------------------------------------------------------------- commands */

static void do_help(struct chat *c, const char *argument);

static void do_reset(struct chat *c, const char *argument) {
    (void)argument;
    while (n_messages(c) > 0 && !role_is(c, n_messages(c) - 1, "system"))
        drop_last(c);
    app_note(c->talker->app, "a new conversation");
}

static void do_regen(struct chat *c, const char *argument) {
    (void)argument;
    if (n_messages(c) < 2 || !role_is(c, n_messages(c) - 1, "assistant")) {
        app_note(c->talker->app, "there is no answer to make again");
        return;
    }
    json_t *old = json_incref(json_array_get(c->messages, n_messages(c) - 1));
    drop_last(c);
    if (!answer(c)) json_array_append(c->messages, old);
    json_decref(old);
}

static void do_system(struct chat *c, const char *argument) {
    json_array_clear(c->messages);
    if (*argument) json_array_append_new(c->messages, chat_message("system", argument));
    app_note(c->talker->app, "a new conversation %s",
             *argument ? "with this system message" : "without a system message");
}

static void do_save(struct chat *c, const char *argument) {
    struct app *app = c->talker->app;
    if (!*argument) {
        app_note(app, "say where to: /save FILE");
        return;
    }
    json_t *o = json_object();
    json_object_set_new(o, "schema", json_integer(1));
    json_object_set_new(o, "model", json_string_replaced(app->model, strlen(app->model)));
    json_object_set(o, "messages", c->messages);
    char *text = json_print(o, true);
    ats_status status = file_check_output(argument, "{");
    if (status == ATS_OK) status = file_write(argument, text, strlen(text));
    if (status == ATS_OK)
        app_note(app, "saved in %s", argument);
    else
        tell_failure(c, status);
    free(text);
    json_decref(o);
}

static void do_stats(struct chat *c, const char *argument) {
    (void)argument;
    struct talker *t = c->talker;
    struct buf line = {0};
    size_t n = 0;
    (void)ats_session_tokens(t->session, &n);
    timing_line(&line, &c->last);
    fprintf(stderr, "last: %s\ncontext: %zu of %d tokens, %zu reused for the last answer\n",
            line.data, n, t->info.n_ctx, c->answer.n_reused);
    buf_free(&line);
}

static void do_quit(struct chat *c, const char *argument) {
    (void)argument;
    c->over = true;
}

static const struct chat_command {
    const char *name, *argument, *help;
    void (*fn)(struct chat *c, const char *argument);
} chat_commands[] = {
    {"/help", "", "this list", do_help},
    {"/reset", "", "start a new conversation", do_reset},
    {"/regen", "", "answer the last question again, differently", do_regen},
    {"/system", "TEXT", "start again with this system message", do_system},
    {"/save", "FILE", "write the conversation as JSON", do_save},
    {"/stats", "", "speed and use of the context", do_stats},
    {"/quit", "", "leave (also Ctrl-D)", do_quit},
};

static void do_help(struct chat *c, const char *argument) {
    (void)c;
    (void)argument;
    for (size_t i = 0; i < COUNT_OF(chat_commands); i++)
        fprintf(stderr, "  %-8s %-5s %s\n", chat_commands[i].name, chat_commands[i].argument,
                chat_commands[i].help);
    fputs("  A line that ends in \\ goes on with the next one; \"\"\" begins and ends a block.\n"
          "  Ctrl-C stops an answer, and leaves at the empty prompt when pressed twice.\n",
          stderr);
}

static void obey(struct chat *c, const char *line) {
    size_t n = strcspn(line, " \t");
    const char *argument = line + n + strspn(line + n, " \t");
    for (size_t i = 0; i < COUNT_OF(chat_commands); i++) {
        const struct chat_command *command = &chat_commands[i];
        if (strlen(command->name) == n && !memcmp(line, command->name, n)) {
            command->fn(c, argument);
            return;
        }
    }
    app_note(c->talker->app, "there is no command %.*s; /help lists them", (int)n, line);
}

/* ---------------------------------------------------------------------------------------- input */

/* A message: one line, lines joined by a backslash at their ends, or a block between """. */
static enum line_result read_message(struct chat *c, struct buf *message) {
    struct buf line = {0};
    buf_clear(message);
    bool in_block = false;
    enum line_result result;
    for (;;) {
        bool first = message->len == 0 && !in_block;
        result = line_read(c->editor, first ? "> " : ". ", &line);
        if (result != LINE_OK) break;
        const char *text = buf_str(&line);
        size_t n = strlen(text);
        if (first && !strncmp(text, "\"\"\"", 3)) {
            in_block = true;
            text += 3;
            n -= 3;
        }
        bool ends = in_block && n >= 3 && !strcmp(text + n - 3, "\"\"\"");
        bool goes_on = in_block ? !ends : n > 0 && text[n - 1] == '\\';
        if (ends) n -= 3;
        if (!in_block && goes_on) n--;
        utf8_add_replaced(message, text, n);
        if (!goes_on) break;
        if (message->len || !in_block) buf_add_char(message, '\n');
    }
    buf_free(&line);
    return result;
}

static char *history_path(const struct app *app) {
    char *dir, *path = NULL;
    if (flag_on(&app->flags, FLAG_NO_HISTORY) || dir_path(DIR_STATE, true, &dir) != ATS_OK)
        return NULL;
    struct buf text = {0};
    buf_printf(&text, "%s/history", dir);
    path = buf_take(&text);
    free(dir);
    return path;
}

static void greet(const struct talker *t) {
    const ats_info *i = &t->info;
    char size[32];
    app_note(t->app, "%s%s%s, %s, context %d tokens; /help lists commands",
             *i->name ? i->name : i->architecture, *i->file_type ? " " : "", i->file_type,
             format_bytes(size, sizeof size, i->weight_bytes), i->n_ctx);
}

static void chat_loop(struct chat *c) {
    struct buf message = {0};
    bool warned = false; /* the last thing that happened was a Ctrl-C */
    while (!c->over) {
        enum line_result result = read_message(c, &message);
        if (result == LINE_INTERRUPTED) {
            interrupt_clear();
            fputc('\n', stderr);
            if (interrupt_is_term()) c->exit_code = EXIT_INTERRUPTED;
            if (warned || interrupt_is_term()) break;
            app_note(c->talker->app, "Ctrl-C again, or Ctrl-D, leaves");
            warned = true;
            continue;
        }
        warned = false;
        if (result == LINE_END) {
            fputc('\n', stderr);
            break;
        }
        const char *text = buf_str(&message);
        if (!text[strspn(text, " \t\n")]) continue;
        line_remember(c->editor, text);
        if (*text == '/')
            obey(c, text);
        else
            say(c, text);
    }
    buf_free(&message);
}

int chat_run(struct talker *t) {
    struct chat c = {.talker = t, .messages = json_array(), .exit_code = EXIT_OK};
    t->stream = true;
    char *path = history_path(t->app);
    c.editor = line_editor_open(&t->app->term, path);
    free(path);
    const char *system = flag_text(&t->app->flags, FLAG_SYSTEM_PROMPT);
    if (system) json_array_append_new(c.messages, chat_message("system", system));
    greet(t);
    chat_loop(&c);
    if (c.total.n_answers) {
        struct buf line = {0};
        timing_line(&line, &c.total);
        app_note(t->app, "%s", line.data);
        buf_free(&line);
    }
    line_editor_close(c.editor);
    answer_free(&c.answer);
    json_decref(c.messages);
    return c.exit_code;
}
