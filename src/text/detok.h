/*
 * Token ids -> text, one token at a time: gives out whole UTF-8 characters only, holding back the
 * bytes of one that is not complete yet. Not a matcher of stop strings (stop.h).
 */
#pragma once

#include "base/buf.h"
#include "text/tokenizer.h"

enum detok_flags {
    DETOK_CONTROL = 1,    /* control tokens give their names, else nothing */
    DETOK_TEXT_START = 2, /* the first token begins a text: the space prefix is taken off */
};

/* One stream. May be copied; owns nothing. */
struct detok {
    const struct tokenizer *tokenizer; /* borrowed */
    bool control;
    bool strip_space; /* the next text is the first */
    size_t n_held;
    char held[4]; /* the first 1..3 bytes of a character */
};

void detok_init(struct detok *d, const struct tokenizer *t, unsigned flags);
/* Appends what is complete with this token. Bytes that cannot be UTF-8: U+FFFD for each maximal
 * invalid part. */
void detok_push(struct detok *d, int32_t id, struct buf *out);
/* The end: a character that never got complete becomes one U+FFFD. d is ready for more. */
void detok_flush(struct detok *d, struct buf *out);

/* All of it at once. */
void detok_all(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
               struct buf *out);
