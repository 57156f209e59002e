/* Texts made from the flag table: help of the program and of a command, the manual page. */
#pragma once

#include "app/flags.h"
#include "base/buf.h"

/* width: columns to wrap at; 0: do not wrap. */
void help_program(struct buf *out, int width, bool whole);
void help_command(struct buf *out, enum command_id id, int width);
void help_man(struct buf *out, const char *version); /* roff, man macros */
void help_completion_bash(struct buf *out);
void help_completion_zsh(struct buf *out);
void help_completion_fish(struct buf *out);
