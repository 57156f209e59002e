/*
 * Finds stop strings in a stream of text, across any borders of pushes, and holds back text that
 * may be the beginning of one. Knows bytes only. The first match is the one that is complete first
 * (of several complete at the same byte, the longest), so it does not depend on how the text was
 * cut into pushes. Time linear in the text for each string.
 */
#pragma once

#include "base/buf.h"
#include "text/tokenizer.h"

struct stop;

/* Strings are copied; none may be empty (ATS_BAD_ARGUMENT). n may be 0. *out owned. */
MUST_CHECK ats_status stop_open(const struct text_span *strings, size_t n, struct stop **out);
void stop_close(struct stop *s); /* accepts NULL */

/*
 * Appends to *out the text that is certainly not part of a stop string. True when a stop string is
 * complete: all text before it is out then, and what follows it is dropped, now and in later calls.
 * Text of whole characters comes out as whole characters if the strings are valid UTF-8.
 */
bool stop_push(struct stop *s, const char *text, size_t n, struct buf *out);
/* The end of the text: what was held back goes out, unless a stop string was found. */
void stop_flush(struct stop *s, struct buf *out);
/* For tests: index of the string found, -1: none yet. */
int stop_found(const struct stop *s);
