/*
 * A Jinja interpreter: the part of the language that chat templates use, with Python's printing
 * rules, as HF transformers renders them (trim_blocks, lstrip_blocks, loop controls, generation
 * tags, sandbox). It knows nothing of models, messages or tokens (that is chat.h), and it has no
 * access to files, the clock or the environment: template text and context are hostile input.
 *
 * Compile once, render many; called by chat.c and the fuzz target.
 */
#pragma once

#include <jansson.h>
#include <time.h>
#include "base/buf.h"
#include "base/error.h"

struct template;

enum {
    TEMPLATE_MAX_SOURCE_BYTES = 1 << 20,
    /* Brackets and tags inside each other. This and the next fit a stack of 256 KiB. */
    TEMPLATE_MAX_NESTING = 64,
    /* Height of the tree: also a chain like a + b + c... counts. */
    TEMPLATE_MAX_HEIGHT = 200,
    /* Nested evaluation at run time: recursive macros, deep values. */
    TEMPLATE_MAX_DEPTH = 300,
    /* Different names of variables: a scope is searched from end to end. */
    TEMPLATE_MAX_NAMES = 4096,
};

struct template_options {
    const struct tm *now; /* all fields set, as localtime_r does; NULL: no strftime_now */
    /* Limits; 0 is the default. A render that reaches one fails with its name. */
    uint64_t max_steps;      /* 10 million; long strings and lists count by length */
    size_t max_output_bytes; /* 16 MiB */
    size_t max_memory_bytes; /* 256 MiB: everything made while rendering */
    /* Lists and dicts cannot be changed by methods (append, pop, update...), as in HF's sandbox.
     * Off by default: public templates use append and pop. */
    bool immutable;
    /* Asked now and then, if it takes long (may be NULL): true ends it with ATS_CANCELLED. */
    ats_cancel_fn *cancel;
    void *cancel_user;
};

/*
 * text[0..n): UTF-8, at most TEMPLATE_MAX_SOURCE_BYTES; copied. *out owned (template_close).
 * A syntax error, an unknown tag, filter or test, or too deep nesting: ATS_BAD_INPUT with the line
 * and the construct.
 */
MUST_CHECK ats_status template_open(const char *text, size_t n, struct template **out);
void template_close(struct template *t); /* accepts NULL */

/*
 * Appends the rendered text to *out. context: an object, its members are the variables; borrowed,
 * not changed, key order kept. options may be NULL. A template may be rendered by several threads
 * at once (each with its own context and out).
 * Errors: ATS_BAD_INPUT with line and construct (also raise_exception, with its text, and limits);
 * *out is then as before.
 */
MUST_CHECK ats_status template_render(const struct template *t, const json_t *context,
                                      const struct template_options *options, struct buf *out);

/* True if a JSON text nests no deeper than templates may: what is deeper must not be parsed for
 * them (jansson's parser recurses, and so would printing it). */
bool template_json_fits(const char *s, size_t n);
