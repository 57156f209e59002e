#include "base/buf.h"

#include "base/arena.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_free(struct buf *b) {
    free(b->data);
    *b = (struct buf){0};
}

void buf_clear(struct buf *b) {
    b->len = 0;
    if (b->data) b->data[0] = 0;
}

void buf_add(struct buf *b, const void *bytes, size_t n) {
    if (n == 0) return;
    REQUIRE(n < SIZE_MAX);
    GROW(b->data, b->len, b->cap, n + 1);
    memcpy(b->data + b->len, bytes, n);
    b->len += n;
    b->data[b->len] = 0;
}

void buf_add_str(struct buf *b, const char *s) {
    buf_add(b, s, strlen(s));
}
void buf_add_char(struct buf *b, char c) {
    buf_add(b, &c, 1);
}

void buf_vprintf(struct buf *b, const char *format, va_list args) {
    va_list again;
    va_copy(again, args);
    int n = vsnprintf(NULL, 0, format, args);
    REQUIRE(n >= 0);
    GROW(b->data, b->len, b->cap, (size_t)n + 1);
    vsnprintf(b->data + b->len, (size_t)n + 1, format, again);
    va_end(again);
    b->len += (size_t)n;
}

void buf_printf(struct buf *b, const char *format, ...) {
    va_list args;
    va_start(args, format);
    buf_vprintf(b, format, args);
    va_end(args);
}

const char *buf_str(const struct buf *b) {
    return b->data ? b->data : "";
}

char *buf_take(struct buf *b) {
    char *data = b->data ? b->data : xstrdup("");
    *b = (struct buf){0};
    return data;
}
