/* UTF-8 only as bytes and code points; properties of characters are utf8proc's job. */
#pragma once

#include "base/base.h"

/* Decodes one code point at s[0..n), n >= 1. Returns its length 1..4, or 0 if the bytes there are
 * not UTF-8 (overlong, surrogate, > U+10FFFF, cut short); *cp is then undefined. */
int utf8_decode(const char *s, size_t n, uint32_t *cp);
/* Writes 1..4 bytes; cp <= 0x10FFFF. */
int utf8_encode(uint32_t cp, char out[4]);
/* True if all of s[0..n) is UTF-8. */
bool utf8_valid(const char *s, size_t n);
/* Length of the longest prefix of s[0..n) that does not end inside a character: only an
 * incomplete but so far valid tail of at most 3 bytes is left out. */
size_t utf8_complete_prefix(const char *s, size_t n);
/* Bytes to skip for one U+FFFD at invalid input s[0..n), n >= 1: the maximal subpart, >= 1
 * (Unicode 15, 3.9, "substitution of maximal subparts"; Python's errors="replace"). */
size_t utf8_invalid_span(const char *s, size_t n);

struct buf;
/* Appends s with each maximal invalid part replaced by U+FFFD. */
void utf8_add_replaced(struct buf *out, const char *s, size_t n);
