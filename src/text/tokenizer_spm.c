/* SentencePiece BPE: characters merge by the score of the result; what is no token becomes bytes.
 */
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#include <string.h>

/* Ascending order of the result is descending order of the score. Never NO_MERGE: not a NaN. */
static uint32_t priority_of(float score) {
    uint32_t bits;
    if (score == 0) score = 0; /* -0 and 0 are equal */
    memcpy(&bits, &score, sizeof bits);
    return bits & 0x80000000u ? bits : ~bits & 0x7FFFFFFFu;
}

static uint32_t symbol_start(const struct symbols *s, uint32_t i) {
    return s->prev[i] == UINT32_MAX ? 0 : s->end[s->prev[i]];
}

/* What joining symbol i with the next would give. */
static void look_up(struct encoder *e, uint32_t i, size_t n) {
    struct symbols *s = &e->symbols;
    const struct vocab *v = &e->t->vocab;
    s->priority[i] = NO_MERGE;
    if (asker_stops(&e->asker, 1) || s->next[i] >= n) return;
    uint32_t start = symbol_start(s, i);
    int32_t id = vocab_find(v, e->text.data + start, s->end[s->next[i]] - start);
    if (id < 0) return;
    s->priority[i] = priority_of(v->scores[id]);
    s->merged[i] = id;
    heap_push(&e->heap, (uint64_t)s->priority[i] << 32 | i);
}

static void emit_bytes(struct encoder *e, const char *bytes, size_t n) {
    const int32_t *byte_ids = e->t->vocab.byte_ids;
    int32_t unk = e->t->role_ids[ROLE_UNK];
    if (n == 1 && bytes[0] == ' ') { /* the file's spelling of a space, which is not a token */
        bytes = "\xE2\x96\x81";
        n = 3;
    }
    bool whole = true;
    for (size_t i = 0; i < n; i++)
        whole &= byte_ids[(unsigned char)bytes[i]] >= 0;
    if (!whole) {
        if (unk >= 0) token_list_add(e->out, unk);
        return;
    }
    for (size_t i = 0; i < n; i++)
        token_list_add(e->out, byte_ids[(unsigned char)bytes[i]]);
}

/* The text with U+2581 as the space that it spells, behind the prefix. */
static void prepare(struct encoder *e, const char *text, size_t n, bool prefix) {
    buf_clear(&e->text);
    if (prefix) buf_add_char(&e->text, ' ');
    for (size_t at = 0; at < n;) {
        const char *found = memchr(text + at, 0xE2, n - at);
        size_t end = found ? (size_t)(found - text) : n;
        buf_add(&e->text, text + at, end - at);
        at = end;
        if (at == n) break;
        bool space = n - at >= 3 && memcmp(text + at, "\xE2\x96\x81", 3) == 0;
        buf_add(&e->text, space ? " " : text + at, 1);
        at += space ? 3 : 1;
    }
}

void spm_encode(struct encoder *e, const char *text, size_t n_bytes, bool prefix) {
    struct symbols *s = &e->symbols;
    const struct vocab *v = &e->t->vocab;
    prepare(e, text, n_bytes, prefix);
    size_t n = 0;
    symbols_reserve(s, e->text.len + 1);
    for (size_t at = 0; at < e->text.len && !asker_stops(&e->asker, 1); n++) {
        uint32_t cp;
        int len = utf8_decode(e->text.data + at, e->text.len - at, &cp);
        REQUIRE(len > 0);
        s->id[n] = vocab_find(v, e->text.data + at, (size_t)len);
        at += (size_t)len;
        s->end[n] = (uint32_t)at;
        s->next[n] = (uint32_t)n + 1;
        s->prev[n] = (uint32_t)n - 1; /* UINT32_MAX for the first */
    }
    for (size_t i = 0; i < n && !e->asker.stopped; i++)
        look_up(e, (uint32_t)i, n);
    while (e->heap.n > 0 && !asker_stops(&e->asker, 1)) {
        uint64_t best = heap_pop(&e->heap);
        uint32_t i = (uint32_t)best;
        /* an entry that no longer holds differs in priority; one that agrees is as good as new */
        if (s->priority[i] != best >> 32) continue;
        s->id[i] = s->merged[i];
        s->end[i] = s->end[s->next[i]];
        symbols_join(s, i, n);
        look_up(e, i, n);
        if (s->prev[i] != UINT32_MAX) look_up(e, s->prev[i], n);
    }
    for (uint32_t i = 0; i < n && !e->asker.stopped; i = s->next[i]) {
        uint32_t start = symbol_start(s, i);
        if (s->id[i] >= 0) {
            token_list_add(e->out, s->id[i]);
        } else {
            emit_bytes(e, e->text.data + start, s->end[i] - start);
        }
    }
}
