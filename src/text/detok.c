#include "text/detok.h"

#include "base/utf8.h"

#include <string.h>

void detok_init(struct detok *d, const struct tokenizer *t, unsigned flags) {
    *d = (struct detok){.tokenizer = t, .control = flags & DETOK_CONTROL};
    d->strip_space = (flags & DETOK_TEXT_START) && tokenizer_adds_space_prefix(t);
}

/* held + bytes in one piece: what is whole goes out, the rest (at most 3 bytes) is held. */
static void add_bytes(struct detok *d, const char *bytes, size_t n, struct buf *out) {
    if (d->n_held == 0 && utf8_valid(bytes, n)) { /* nearly always */
        buf_add(out, bytes, n);
        return;
    }
    struct buf all = {0};
    buf_add(&all, d->held, d->n_held);
    buf_add(&all, bytes, n);
    size_t whole = utf8_complete_prefix(all.data, all.len);
    utf8_add_replaced(out, all.data, whole);
    d->n_held = all.len - whole;
    memcpy(d->held, all.data + whole, d->n_held);
    buf_free(&all);
}

void detok_push(struct detok *d, int32_t id, struct buf *out) {
    bool control = tokenizer_is_control(d->tokenizer, id);
    if (control && !d->control) return;
    struct text_span piece = tokenizer_piece(d->tokenizer, id);
    if (piece.len == 0) return;
    if (d->strip_space && !control) {
        d->strip_space = false;
        if (piece.data[0] == ' ') {
            piece.data++;
            piece.len--;
        }
    }
    if (piece.len > 0) add_bytes(d, piece.data, piece.len, out);
}

void detok_flush(struct detok *d, struct buf *out) {
    if (d->n_held > 0) buf_add_str(out, "\xEF\xBF\xBD");
    d->n_held = 0;
}

void detok_all(const struct tokenizer *t, const int32_t *ids, size_t n, unsigned flags,
               struct buf *out) {
    struct detok d;
    detok_init(&d, t, flags);
    for (size_t i = 0; i < n; i++)
        detok_push(&d, ids[i], out);
    detok_flush(&d, out);
}
