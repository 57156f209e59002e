#include "text/stop.h"

#include "base/arena.h"

#include <stdlib.h>
#include <string.h>

/* One string with its failure function (Knuth, Morris, Pratt). */
struct needle {
    char *bytes;
    size_t len;
    size_t *fail;   /* (len + 1): length of the longest border of each prefix */
    size_t n_match; /* bytes of the string that the text so far ends with */
};

struct stop {
    struct needle *needles; /* (n) */
    size_t n;
    int found;
    struct buf held; /* text not given out yet */
};

static void needle_init(struct needle *k, struct text_span s) {
    k->bytes = xstrndup(s.data, s.len);
    k->len = s.len;
    k->fail = xcalloc(s.len + 1, sizeof *k->fail);
    for (size_t i = 1, border = 0; i < s.len; i++) {
        while (border > 0 && s.data[i] != s.data[border])
            border = k->fail[border];
        if (s.data[i] == s.data[border]) border++;
        k->fail[i + 1] = border;
    }
}

ats_status stop_open(const struct text_span *strings, size_t n, struct stop **out) {
    *out = NULL;
    for (size_t i = 0; i < n; i++) {
        if (strings[i].len == 0) return fail(ATS_BAD_ARGUMENT, "stop string %zu is empty", i);
    }
    struct stop *s = xcalloc(1, sizeof *s);
    s->n = n;
    s->needles = xcalloc(n + 1, sizeof *s->needles);
    for (size_t i = 0; i < n; i++)
        needle_init(&s->needles[i], strings[i]);
    s->found = -1;
    *out = s;
    return ATS_OK;
}

void stop_close(struct stop *s) {
    if (!s) return;
    for (size_t i = 0; i < s->n; i++) {
        free(s->needles[i].bytes);
        free(s->needles[i].fail);
    }
    free(s->needles);
    buf_free(&s->held);
    free(s);
}

static bool needle_step(struct needle *k, char c) {
    while (k->n_match > 0 && k->bytes[k->n_match] != c)
        k->n_match = k->fail[k->n_match];
    if (k->bytes[k->n_match] == c) k->n_match++;
    return k->n_match == k->len;
}

/* Gives out the first n bytes of what is held. */
static void release(struct stop *s, size_t n, struct buf *out) {
    if (n == 0) return;
    buf_add(out, s->held.data, n);
    s->held.len -= n;
    memmove(s->held.data, s->held.data + n, s->held.len);
}

/* One byte to every string; the longest that is complete now, -1: none. */
static int step(struct stop *s, char c) {
    int found = -1;
    for (size_t i = 0; i < s->n; i++) {
        if (!needle_step(&s->needles[i], c)) continue;
        if (found < 0 || s->needles[i].len > s->needles[found].len) found = (int)i;
    }
    return found;
}

bool stop_push(struct stop *s, const char *text, size_t n, struct buf *out) {
    if (s->found >= 0) return true;
    size_t n_before = s->held.len, n_keep = 0;
    if (n > 0) buf_add(&s->held, text, n);
    for (size_t i = 0; i < n; i++) {
        int found = step(s, text[i]);
        if (found < 0) continue;
        s->found = found;
        release(s, n_before + i + 1 - s->needles[found].len, out);
        buf_clear(&s->held);
        return true;
    }
    for (size_t i = 0; i < s->n; i++)
        n_keep = max_size(n_keep, s->needles[i].n_match);
    release(s, s->held.len - n_keep, out);
    return false;
}

void stop_flush(struct stop *s, struct buf *out) {
    if (s->found < 0) release(s, s->held.len, out);
    buf_clear(&s->held);
}

int stop_found(const struct stop *s) {
    return s->found;
}
