/* A growing byte string. Always NUL-terminated once non-empty; may hold any bytes. */
#pragma once

#include <stdarg.h>
#include "base/base.h"

struct buf {
    char *data; /* owned; NULL when empty */
    size_t len;
    size_t cap;
};

void buf_free(struct buf *b);
void buf_clear(struct buf *b); /* len = 0, memory kept */
void buf_add(struct buf *b, const void *bytes, size_t n);
void buf_add_str(struct buf *b, const char *s);
void buf_add_char(struct buf *b, char c);
void buf_printf(struct buf *b, const char *format, ...) PRINTF_LIKE(2, 3);
void buf_vprintf(struct buf *b, const char *format, va_list args) PRINTF_LIKE(2, 0);
/* The string, never NULL ("" when empty); borrowed. */
const char *buf_str(const struct buf *b);
/* Hands the string over (never NULL, free()d by the caller) and empties b. */
char *buf_take(struct buf *b);
