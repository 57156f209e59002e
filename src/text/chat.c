#include "text/chat.h"

#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/json.h"
#include "base/log.h"
#include "text/template.h"

/* What "content" a template reads, found by rendering a probe at open. */
enum content_form { CONTENT_TEXT, CONTENT_EITHER, CONTENT_PARTS };

struct chat_template {
    char *name;
    struct template *t;
    enum content_form content;
    bool knows_developer;
};

struct chat {
    struct chat_template *templates; /* owned, (n); the default one first */
    size_t n;
    char *bos, *eos; /* owned; never NULL */
    bool built_in;
};

/* Each is compiled and tried at open; files have two or three. */
#define MAX_TEMPLATES 16

/* For files that bring no template: ChatML, which most small models have seen. */
static const char built_in_text[] =
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

/* ---- the context ---- */

/* The tools asked for, NULL if there are none. */
static const json_t *given_tools(const struct chat_options *options) {
    const json_t *tools = options->tools;
    if (!tools) tools = json_object_get(options->extra, "tools");
    return json_array_size(tools) > 0 ? tools : NULL;
}

static json_t *context_new(const struct chat *chat, const struct chat_options *options,
                           json_t *messages) {
    json_t *context = json_object();
    const json_t *tools = given_tools(options);
    json_object_set_new(context, "documents", json_null());
    json_object_set_new(context, "add_generation_prompt",
                        json_boolean(options->add_generation_prompt));
    json_object_set_new(context, "bos_token", json_string_replaced(chat->bos, strlen(chat->bos)));
    json_object_set_new(context, "eos_token", json_string_replaced(chat->eos, strlen(chat->eos)));
    if (options->enable_thinking != CHAT_UNSET)
        json_object_set_new(context, "enable_thinking",
                            json_boolean(options->enable_thinking == CHAT_ON));
    if (options->extra) {
        json_t *extra = json_deep_copy(options->extra);
        json_object_update(context, extra);
        json_decref(extra);
    }
    json_object_set_new(context, "messages", messages);
    json_object_set_new(context, "tools", tools ? json_deep_copy(tools) : json_null());
    return context;
}

/* ---- probing ---- */

static const char needle[] = "needle7ab";

/* The prompt for one user message; *after is the byte behind the needle, -1 if it is not there. */
static void probe(const struct chat *chat, const struct template *t, json_t *content, int *after) {
    static const struct tm some_day = {.tm_mday = 1, .tm_year = 100, .tm_wday = 6};
    struct chat_options options = {.add_generation_prompt = true};
    struct template_options limits = {.now = &some_day, .max_steps = 1000000};
    json_t *context =
        context_new(chat, &options, json_pack("[{s:s, s:o}]", "role", "user", "content", content));
    struct buf out = {0};
    ats_status status = template_render(t, context, &limits, &out);
    const char *found = status == ATS_OK ? strstr(buf_str(&out), needle) : NULL;
    *after = found ? (unsigned char)found[strlen(needle)] : -1;
    buf_free(&out);
    json_decref(context);
    error_clear();
}

static enum content_form find_content_form(const struct chat *chat, const struct template *t) {
    int text, parts;
    probe(chat, t, json_string(needle), &text);
    probe(chat, t, json_pack("[{s:s, s:s}]", "type", "text", "text", needle), &parts);
    /* a quote behind it: the list itself was printed */
    bool printed = parts >= 0 && (parts == '\'' || parts == '"') && parts != text;
    if (parts < 0 || printed) return CONTENT_TEXT;
    return text >= 0 ? CONTENT_EITHER : CONTENT_PARTS;
}

/* ---- open, close ---- */

static bool is_blank(const char *s, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!strchr(" \t\r\n", s[i]) || !s[i]) return false;
    return true;
}

static ats_status add_source(struct chat *chat, const struct chat_source *source) {
    struct template *t;
    ats_status status = template_open(source->text, source->n_bytes, &t);
    if (status != ATS_OK) return fail_in(status, "chat template '%s'", source->name);
    struct chat_template *entry = &chat->templates[chat->n++];
    *entry = (struct chat_template){.name = xstrdup(source->name), .t = t};
    entry->content = find_content_form(chat, t);
    entry->knows_developer = memmem(source->text, source->n_bytes, "developer", 9) != NULL;
    if (chat->n > 1 && strcmp(source->name, "default") == 0) {
        struct chat_template first = chat->templates[0];
        chat->templates[0] = *entry;
        *entry = first;
    }
    return ATS_OK;
}

ats_status chat_open(const struct chat_source *sources, size_t n_sources, const char *bos,
                     const char *eos, struct chat **out) {
    if (n_sources > MAX_TEMPLATES)
        return fail(ATS_BAD_INPUT, "%zu chat templates are too many", n_sources);
    struct chat *chat = xcalloc(1, sizeof *chat);
    chat->bos = xstrdup(bos ? bos : "");
    chat->eos = xstrdup(eos ? eos : "");
    chat->templates = xcalloc(n_sources + 1, sizeof *chat->templates);
    ats_status status = ATS_OK;
    for (size_t i = 0; i < n_sources && status == ATS_OK; i++)
        if (!is_blank(sources[i].text, sources[i].n_bytes)) status = add_source(chat, &sources[i]);
    if (status == ATS_OK && chat->n == 0) {
        log_msg(LOG_WARN, "the model brings no chat template: using a built-in one (ChatML)");
        struct chat_source source = {"built-in", built_in_text, strlen(built_in_text)};
        chat->built_in = true;
        status = add_source(chat, &source);
    }
    if (status != ATS_OK) {
        chat_close(chat);
        return status;
    }
    *out = chat;
    return ATS_OK;
}

void chat_close(struct chat *chat) {
    if (!chat) return;
    for (size_t i = 0; i < chat->n; i++) {
        free(chat->templates[i].name);
        template_close(chat->templates[i].t);
    }
    free(chat->templates);
    free(chat->bos);
    free(chat->eos);
    free(chat);
}

static const struct chat_template *pick(const struct chat *chat, bool with_tools) {
    for (size_t i = 0; with_tools && i < chat->n; i++)
        if (strcmp(chat->templates[i].name, "tool_use") == 0) return &chat->templates[i];
    return &chat->templates[0];
}

/* ---- messages ---- */

/* Not nested deeper than a template may read; copying and reading recurse. */
static bool is_shallow(const json_t *v, int levels) {
    union { /* jansson's iterators only read, but are not declared so */
        const json_t *in;
        json_t *out;
    } object = {.in = v};
    const json_t *item;
    size_t i;
    if (levels == 0) return false;
    json_array_foreach(v, i, item) {
        if (!is_shallow(item, levels - 1)) return false;
    }
    void *it = json_is_object(v) ? json_object_iter(object.out) : NULL;
    for (; it; it = json_object_iter_next(object.out, it))
        if (!is_shallow(json_object_iter_value(it), levels - 1)) return false;
    return true;
}

static ats_status check_part(const json_t *part, size_t i_message) {
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!json_is_object(part) || !type)
        return fail(ATS_BAD_INPUT, "messages[%zu]: a content part has no \"type\"", i_message);
    bool text = strcmp(type, "text") == 0 || strcmp(type, "input_text") == 0 ||
                strcmp(type, "output_text") == 0;
    if (!text)
        return fail(ATS_BAD_INPUT, "messages[%zu]: content of type \"%.40s\" is not supported",
                    i_message, type);
    if (!json_is_string(json_object_get(part, "text")))
        return fail(ATS_BAD_INPUT, "messages[%zu]: a text part has no \"text\"", i_message);
    return ATS_OK;
}

static ats_status check_message(const json_t *message, size_t i) {
    if (!json_is_object(message)) return fail(ATS_BAD_INPUT, "messages[%zu] is not an object", i);
    if (!is_shallow(message, TEMPLATE_MAX_DEPTH))
        return fail(ATS_BAD_INPUT, "messages[%zu] is nested too deep", i);
    if (!json_is_string(json_object_get(message, "role")))
        return fail(ATS_BAD_INPUT, "messages[%zu]: \"role\" is not a string", i);
    const json_t *content = json_object_get(message, "content"), *part;
    if (content && !json_is_string(content) && !json_is_null(content) && !json_is_array(content))
        return fail(ATS_BAD_INPUT,
                    "messages[%zu]: \"content\" is neither a string nor an array of parts", i);
    size_t k;
    json_array_foreach(content, k, part) TRY(check_part(part, i));
    const json_t *calls = json_object_get(message, "tool_calls");
    if (calls && !json_is_null(calls) && !json_is_array(calls))
        return fail(ATS_BAD_INPUT, "messages[%zu]: \"tool_calls\" is not an array", i);
    return ATS_OK;
}

/* The texts of the parts, joined by newlines. Owned. */
static json_t *parts_to_text(const json_t *parts) {
    struct buf text = {0};
    const json_t *part;
    size_t i;
    json_array_foreach(parts, i, part) {
        const json_t *s = json_object_get(part, "text");
        if (i > 0) buf_add_char(&text, '\n');
        buf_add(&text, json_string_value(s), json_string_length(s));
    }
    json_t *joined = json_string_replaced(buf_str(&text), text.len);
    buf_free(&text);
    return joined;
}

static void shape_content(json_t *message, enum content_form form) {
    json_t *content = json_object_get(message, "content"), *part;
    size_t i;
    if (json_is_array(content) && form == CONTENT_TEXT) {
        json_object_set_new(message, "content", parts_to_text(content));
    } else if (json_is_array(content)) {
        json_array_foreach(content, i, part) json_object_set_new(part, "type", json_string("text"));
    } else if (json_is_string(content) && form == CONTENT_PARTS) {
        json_incref(content);
        json_object_set_new(message, "content",
                            json_pack("[{s:s, s:o}]", "type", "text", "text", content));
    }
}

/* One thing under three names. */
static void share_reasoning(json_t *message) {
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    json_t *given = NULL;
    for (size_t i = 0; i < COUNT_OF(names) && !given; i++) {
        json_t *v = json_object_get(message, names[i]);
        if (json_is_string(v)) given = v;
    }
    for (size_t i = 0; given && i < COUNT_OF(names); i++)
        if (!json_is_string(json_object_get(message, names[i])))
            json_object_set(message, names[i], given);
}

/* ---- tool calls ---- */

/* How messages with calls are shown, from what templates expect to what any can read. */
enum call_form { CALLS_AS_OBJECTS, CALLS_NO_NULL, CALLS_AS_TEXT, CALLS_WRAPPED, N_CALL_FORMS };

/* The object that the text is, else NULL; owned. */
static json_t *arguments_object(const char *s, size_t n) {
    json_t *v = NULL;
    if (is_blank(s, n)) return json_object();
    if (!template_json_fits(s, n) || json_parse(s, n, &v) != ATS_OK) {
        error_clear();
        return NULL;
    }
    if (json_is_object(v)) return v;
    json_decref(v);
    return NULL;
}

/* function: the object that holds "arguments". *unfinished: they are text and no object. */
static void shape_arguments(json_t *function, enum call_form form, bool *unfinished) {
    json_t *arguments = json_object_get(function, "arguments");
    if (!json_is_string(arguments)) {
        if (form == CALLS_AS_TEXT && arguments) {
            char *text = json_dumps(arguments, JSON_ENCODE_ANY);
            if (text) json_object_set_new(function, "arguments", json_string(text));
            free(text);
        }
        return;
    }
    json_t *object = arguments_object(json_string_value(arguments), json_string_length(arguments));
    if (!object) *unfinished = true;
    if (!object && form == CALLS_WRAPPED) object = json_pack("{s:O}", "arguments", arguments);
    if (object && form != CALLS_AS_TEXT) json_object_set(function, "arguments", object);
    json_decref(object);
}

static void shape_calls(json_t *message, enum call_form form, bool *unfinished) {
    json_t *call;
    size_t i;
    json_array_foreach(json_object_get(message, "tool_calls"), i, call) {
        json_t *function = json_object_get(call, "function");
        shape_arguments(json_is_object(function) ? function : call, form, unfinished);
    }
    if (form != CALLS_AS_OBJECTS && json_is_null(json_object_get(message, "content")))
        json_object_set_new(message, "content", json_string(""));
    if (form != CALLS_AS_OBJECTS && !json_object_get(message, "content"))
        json_object_set_new(message, "content", json_string(""));
}

struct shaped {
    bool has_calls; /* or null content: another form may help */
    bool unfinished;
    size_t i_unfinished; /* first message with an unfinished call */
};

/* A copy of messages as the template is to see them; owned. */
static json_t *shape_messages(const json_t *messages, const struct chat_template *t,
                              enum call_form form, struct shaped *s) {
    json_t *copy = json_deep_copy(messages), *message;
    size_t i;
    *s = (struct shaped){0};
    json_array_foreach(copy, i, message) {
        bool unfinished = false;
        json_t *content = json_object_get(message, "content");
        s->has_calls |= !content || json_is_null(content) ||
                        json_array_size(json_object_get(message, "tool_calls")) > 0;
        shape_content(message, t->content);
        share_reasoning(message);
        shape_calls(message, form, &unfinished);
        if (unfinished && !s->unfinished) {
            s->unfinished = true;
            s->i_unfinished = i;
        }
        const char *role = json_string_value(json_object_get(message, "role"));
        if (!t->knows_developer && strcmp(role, "developer") == 0)
            json_object_set_new(message, "role", json_string("system"));
    }
    return copy;
}

static ats_status check_options(const struct chat_options *options) {
    if (!is_shallow(options->tools, TEMPLATE_MAX_DEPTH) ||
        !is_shallow(options->extra, TEMPLATE_MAX_DEPTH))
        return fail(ATS_BAD_INPUT, "tools or extra variables are nested too deep");
    const json_t *tools = options->tools;
    if (!tools) tools = json_object_get(options->extra, "tools");
    if (tools && !json_is_array(tools) && !json_is_null(tools))
        return fail(ATS_BAD_INPUT, "tools is not an array");
    if (!options->extra) return ATS_OK;
    if (!json_is_object(options->extra))
        return fail(ATS_BAD_INPUT, "the template's extra variables are not an object");
    if (json_object_get(options->extra, "messages"))
        return fail(ATS_BAD_INPUT, "the template's extra variables cannot replace \"messages\"");
    return ATS_OK;
}

static ats_status render_form(const struct chat *chat, const struct chat_template *t,
                              const json_t *messages, const struct chat_options *options,
                              enum call_form form, struct shaped *shaped, struct buf *out) {
    struct template_options limits = {.now = options->now,
                                      .max_output_bytes = options->max_output_bytes,
                                      .cancel = options->cancel,
                                      .cancel_user = options->cancel_user};
    json_t *context = context_new(chat, options, shape_messages(messages, t, form, shaped));
    ats_status status = template_render(t->t, context, &limits, out);
    json_decref(context);
    return status;
}

ats_status chat_render(const struct chat *chat, const json_t *messages,
                       const struct chat_options *options, struct buf *out) {
    const json_t *message;
    size_t i;
    if (!json_is_array(messages)) return fail(ATS_BAD_INPUT, "messages is not an array");
    json_array_foreach(messages, i, message) TRY(check_message(message, i));
    TRY(check_options(options));
    const struct chat_template *t = pick(chat, given_tools(options) != NULL);
    struct shaped shaped;
    ats_status status = render_form(chat, t, messages, options, CALLS_AS_OBJECTS, &shaped, out);
    if (status == ATS_OK || status == ATS_CANCELLED || !shaped.has_calls) return status;
    char *first_error = xstrdup(error_text());
    size_t i_unfinished = shaped.i_unfinished;
    bool unfinished = shaped.unfinished;
    for (int form = CALLS_NO_NULL; form < N_CALL_FORMS; form++) {
        status = render_form(chat, t, messages, options, (enum call_form)form, &shaped, out);
        if (status == ATS_OK || status == ATS_CANCELLED) break;
    }
    if (status == ATS_OK) {
        error_clear();
    } else if (status != ATS_CANCELLED) {
        error_set_text(first_error);
        if (unfinished)
            status =
                fail_in(status, "messages[%zu]: tool call with unfinished arguments", i_unfinished);
    }
    free(first_error);
    return status;
}
