/*
 * Reads lines from the terminal, with editing and history where libedit was there at build
 * (HAVE_LIBEDIT), else plainly. Ctrl-C ends a read with LINE_INTERRUPTED.
 */
#pragma once

#include "app/term.h"

enum line_result { LINE_OK, LINE_END, LINE_INTERRUPTED };

struct line_editor;
/* history_path: NULL keeps none. Owned. */
struct line_editor *line_editor_open(const struct term *term, const char *history_path);
/* Saves the history; accepts NULL. */
void line_editor_close(struct line_editor *e);
/* One line without its end, replacing *line. */
enum line_result line_read(struct line_editor *e, const char *prompt, struct buf *line);
void line_remember(struct line_editor *e, const char *text);
