/* Starts the program under test (the one linked with the stand-in engine, ATSINFER_FAKE) and keeps
 * what it says. */
#pragma once

#include "base/buf.h"
#include "base/file.h"
#include "support.h"

#include <stdio.h>

struct spawned {
    struct buf out, err;
    int code; /* exit code; 1000 + n if killed by signal n */
};

/* Private directories instead of the user's; call once before the tests. */
int spawn_setup(void **state);
/* Variables for the next programs: "NAME=value"; "NAME" removes it. */
void spawn_env(const char *text);
/* Arguments end with NULL; input: standard input, NULL for /dev/null. Frees what *s held. */
void spawn(struct spawned *s, const char *input, const char *const *args);
void spawned_free(struct spawned *s);
/* spawn(s, input, {args...}) */
#define SPAWN(s, input, ...) spawn((s), (input), (const char *const[]){__VA_ARGS__, NULL})

void assert_has(const struct buf *text, const char *part);
void assert_lacks(const struct buf *text, const char *part);

/* The one object on standard output; owned by the caller. */
json_t *spawned_answer(const struct spawned *s, const char *command);
json_int_t int_at(const json_t *o, const char *key);
const char *text_at(const json_t *o, const char *key);
void tmp_file(char *path, size_t n, const char *name, const char *text);
