/*
 * What the commands share: messages, exit codes, JSON answers, and opening an engine from flags.
 * Results go to standard output through app_print(), all else to standard error.
 */
#pragma once

#include "app/flags.h"
#include "app/term.h"
#include "base/json.h"

#ifndef ATS_VERSION
#define ATS_VERSION "0.1.0" /* the build gives the project's */
#endif

enum exit_code {
    EXIT_OK = 0,
    EXIT_FAILED = 1,
    EXIT_USAGE = 2,
    EXIT_NO_MEMORY = 3,
    EXIT_UNSUPPORTED = 4,
    EXIT_INTERRUPTED = 130
};

struct app {
    struct flags flags;
    struct term term;
    struct arena arena; /* lives as long as the command */
    const char *model;  /* the file to open, after app_find_model() */
    bool json, quiet, verbose;
};

int exit_code_of(ats_status status);

/* Prints "atsinfer: error: ..." from the kept error text (and, with --json, an object with
 * "error" on standard output), and returns the exit code. */
int app_fail(struct app *app, ats_status status);
void app_warn(struct app *app, const char *format, ...) PRINTF_LIKE(2, 3);
/* Information on standard error; silent with --quiet. */
void app_note(struct app *app, const char *format, ...) PRINTF_LIKE(2, 3);

/* Writes to standard output and flushes. IO if it is closed or full. */
MUST_CHECK ats_status app_write(const void *bytes, size_t n);
/* The same as the last act of a command: prints the error, returns the exit code. */
int app_print(struct app *app, const char *bytes, size_t n);
/* {"schema": 1, "command": "run"} to add to. */
json_t *app_json(const struct app *app);
/* Prints the object on one line and drops it; returns the exit code. */
int app_print_json(struct app *app, json_t *object);
/* The same with the keys of what the library told (borrowed). */
int app_print_told(struct app *app, json_t *told);

/* The model: positional argument or -m, environment, configuration, the one ./demo fetched. */
MUST_CHECK ats_status app_find_model(struct app *app);
/* -ctk, -ctv and --math. */
void app_types(const struct app *app, ats_kv_type *kv_k, ats_kv_type *kv_v, ats_math *math);
/* Options from the flags of commands that compute; borrows from app. */
void app_engine_options(struct app *app, ats_options *options);
/* The times of this machine for the model that was found: of the file that --profile names, or
 * those that are kept. In the arena; NULL: there are none, or they are not wanted. */
const char *app_find_profile(struct app *app);
/* -b (0: open) and -ub, under its name in the command: the smaller of the two. */
int app_batch(const struct flags *f, int n_batch, enum flag_id ubatch);
/* BAD_ARGUMENT if flags that give homes exclude each other. */
MUST_CHECK ats_status app_check_rules(const struct app *app);
/* Opens with a progress bar; Ctrl-C cancels that and evaluations, and is caught from here on. */
MUST_CHECK ats_status app_engine_open(struct app *app, ats_options *options, ats_engine **out);
/* For tokenize: no weights. */
MUST_CHECK ats_status app_vocabulary_open(struct app *app, ats_engine **out);

/* "-f FILE" or "-": a whole file or standard input, as text; refuses more than 1 GiB. Owned. */
MUST_CHECK ats_status app_read_input(const char *path, char **text, size_t *n_bytes);
/* Whitespace-separated token ids, each below n_vocab; `name` for messages. Owned (free). */
MUST_CHECK ats_status app_parse_ids(const char *name, const char *text, size_t n_bytes, int n_vocab,
                                    int32_t **ids, size_t *n_ids);

/* "98.1 MiB", "134.5 M". */
const char *format_bytes(char *out, size_t n, uint64_t bytes);
const char *format_count(char *out, size_t n, uint64_t count);
/* 0 if no time has passed. */
double per_second(uint64_t n, uint64_t ns);
