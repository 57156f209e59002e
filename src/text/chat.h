/*
 * Chat: a list of messages becomes the text that a model continues, through the model's template
 * (template.h). Knows the shape of messages (OpenAI's), nothing of models, token ids or GGUF: the
 * caller hands over the template texts and the texts of two special tokens.
 *
 * BOS. Nobody strips anything from the text. Most templates print the BOS token themselves; the
 * tokenizer must then not add another. The exact rule is one on ids, and the caller's: tokenize the
 * text without BOS (special tokens parsed), and put the BOS id in front only if the vocabulary asks
 * for it and the first id is not already it.
 *
 * Called by run/engine (generation), the server and `tokenize --chat`.
 */
#pragma once

#include <jansson.h>
#include <time.h>
#include "base/buf.h"
#include "base/error.h"

struct chat;

/* One template of a model: "tokenizer.chat_template" is "default", "tokenizer.chat_template.NAME"
 * is "NAME" ("tool_use" is the one taken when tools are given). */
struct chat_source {
    const char *name;
    const char *text; /* not NUL-terminated by need */
    size_t n_bytes;
};

/* Three-valued, since a template can ask whether the caller said anything at all. */
enum chat_switch { CHAT_UNSET, CHAT_OFF, CHAT_ON };

struct chat_options {
    bool add_generation_prompt;       /* open the assistant's turn */
    enum chat_switch enable_thinking; /* `enable_thinking` of the template */
    const json_t *tools; /* array in OpenAI's shape; NULL: those of extra; empty: none */
    /* Object: further variables (chat_template_kwargs); they win over ours. NULL: none. */
    const json_t *extra;
    /* Wall clock of strftime_now, all fields set; NULL: the template sees no such function. */
    const struct tm *now;
    size_t max_output_bytes; /* 0: the default of template.h */
    ats_cancel_fn *cancel;   /* as in template.h */
    void *cancel_user;
};

/*
 * Compiles every template. With no source (or only blank ones) a built-in ChatML-like template is
 * used, and a warning logged. bos and eos: texts of those tokens, NULL if the model has none.
 * Everything is copied. A template that is wrong or uses what is not supported: ATS_BAD_INPUT
 * naming template, line and construct; a caller can still serve raw completions then. *out owned
 * (chat_close). A chat is read-only afterwards: many threads may render at once.
 */
MUST_CHECK ats_status chat_open(const struct chat_source *sources, size_t n_sources,
                                const char *bos, const char *eos, struct chat **out);
void chat_close(struct chat *chat); /* accepts NULL */

/*
 * Appends the prompt to *out. messages: array of objects with "role" (string), "content" (string,
 * null or absent, or an array of {"type": "text", "text": ...} parts) and, as far as the template
 * cares, "name", "tool_calls", "tool_call_id", "reasoning_content"... Not changed.
 *
 * Before the template sees them:
 * - "arguments" of tool calls that are a JSON text become the object (what templates expect), a
 *   blank text the empty object; a text that is not JSON, as an unfinished call leaves it, stays;
 * - parts become one text (joined by newlines) unless the template reads parts itself, and a text
 *   one part if the template reads nothing else;
 * - "reasoning_content", "reasoning" and "thinking" are one: the first that is given fills the
 *   other two;
 * - the role "developer" becomes "system" if the template does not know it.
 * "tools" and "documents" are none where there are none, as in HF transformers.
 * If the template still fails, plainer forms of the calls are tried (no null content, "arguments"
 * as text, or the unfinished text inside an object) before its first error is returned.
 *
 * Errors: ATS_BAD_INPUT: a message of the wrong shape (by index), the template's own
 * raise_exception (its text), any other failure of it (line and construct), or a limit. *out is
 * then unchanged.
 */
MUST_CHECK ats_status chat_render(const struct chat *chat, const json_t *messages,
                                  const struct chat_options *options, struct buf *out);
