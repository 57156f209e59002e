/*
 * The terminal: width, colour, progress bar, and Ctrl-C. Knows nothing of models. Progress goes to
 * standard error and only to a terminal.
 */
#pragma once

#include "base/base.h"
#include "base/buf.h"

struct term {
    bool in_tty, out_tty, err_tty;
    bool colour;          /* on standard error: a terminal, and NO_COLOR is not set */
    bool progress;        /* bars wanted: standard error is a terminal, and not --quiet */
    uint64_t bar_next_ns; /* not drawn again before */
    bool bar_drawn;
};

/* Also makes a write to a closed pipe fail instead of kill, and a mapped file that is cut short end
 * the program with a message. */
void term_init(struct term *t);
int term_width(int fd); /* columns; 80 if it is no terminal */

/* Draws "what [####    ]  45%  detail" at most ten times a second. total 0: no bar, text only. */
void term_bar(struct term *t, const char *what, uint64_t done, uint64_t total, const char *detail);
void term_bar_clear(struct term *t); /* before anything else is written to standard error */

/* Text from files and models with control characters (but newline and tab) made visible, so that
 * it cannot steer a terminal. s need not be UTF-8. */
void term_add_safe(struct buf *out, const char *s, size_t n);

/* From now on Ctrl-C (SIGINT), SIGTERM and SIGHUP set a flag instead of ending the program; a third
 * one that nobody looked at ends it. One that the caller ignores (nohup) stays ignored. For
 * commands that compute, once their input is read. */
void interrupt_install(void);
bool interrupt_pending(void);
bool interrupt_is_term(void); /* it was SIGTERM or SIGHUP: do not go on */
void interrupt_clear(void);
/* One byte from standard input: 1; 0 at its end; -1 interrupted; -2 failed. Between the test for
 * an interrupt and the wait nothing is lost. */
int interrupt_read_byte(char *byte);
