/* Byte-level BPE: merges by rank inside the words that pretok.c cuts. */
#include "base/arena.h"
#include "base/log.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

static uint32_t merge_slot(int32_t left, int32_t right, uint32_t mask) {
    uint64_t key = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    key = (key ^ key >> 29) * 0x9E3779B97F4A7C15u;
    return (uint32_t)(key >> 32) & mask;
}

/* The slot of a pair, or the empty one where it would go; NULL if that is too far. */
static struct bpe_merge *find_merge(struct bpe_merge *merges, uint32_t mask, int32_t left,
                                    int32_t right) {
    uint32_t at = merge_slot(left, right, mask);
    for (int i = 0; i <= VOCAB_MAX_SEARCH; i++, at = (at + 1) & mask) {
        struct bpe_merge *m = &merges[at];
        if (m->merged < 0 || (m->left == left && m->right == right)) return m;
    }
    return NULL;
}

/* A merge read from the file: bytes of both sides, one after the other, in *buf. */
struct merge_text {
    struct buf bytes;
    size_t left_bytes;
};

static ats_status read_merge(const struct tokenizer_spec *spec, size_t i, struct merge_text *m) {
    struct text_span s = spec->merges[i];
    const char *space = s.len > 1 ? memchr(s.data + 1, ' ', s.len - 1) : NULL;
    if (!space || space + 1 == s.data + s.len) {
        return fail(ATS_BAD_FILE, "merge %zu is not two tokens with a space between", i);
    }
    if (s.len > m->bytes.cap) GROW(m->bytes.data, 0, m->bytes.cap, s.len);
    struct text_span sides[2] = {{s.data, (size_t)(space - s.data)}, {space + 1, 0}};
    sides[1].len = s.len - sides[0].len - 1;
    m->bytes.len = 0;
    for (int k = 0; k < 2; k++) {
        char *to = m->bytes.data + m->bytes.len;
        size_t n = vocab_unspell(sides[k], to);
        if (n == SIZE_MAX) { /* such a token stands for itself in the vocabulary too */
            n = sides[k].len;
            memcpy(to, sides[k].data, n);
        }
        m->bytes.len += n;
        if (k == 0) m->left_bytes = n;
    }
    return ATS_OK;
}

/* Vocabularies are mostly in the order of their merges: the token after the last result is tried
 * before the hash table. */
static int32_t find_result(const struct vocab *v, const char *bytes, size_t n, int32_t guess) {
    if (guess < v->n_tokens && v->types[guess] == TOKEN_NORMAL) {
        struct text_span piece = vocab_piece(v, guess);
        bool equal = piece.len == n && memcmp(piece.data, bytes, n) == 0;
        if (equal && !v->has_twins) return guess; /* else it may not be the first of its kind */
    }
    return vocab_find(v, bytes, n);
}

ats_status bpe_open_merges(const struct tokenizer_spec *spec, struct tokenizer *t) {
    const struct vocab *v = &t->vocab;
    if (!spec->merges) return fail(ATS_BAD_FILE, "the vocabulary has no merges");
    if (spec->n_merges >= UINT32_MAX / 4) return fail(ATS_BAD_FILE, "too many merges");
    size_t n_slots = 16, n_lost = 0;
    while (n_slots < spec->n_merges + spec->n_merges / 2)
        n_slots *= 2;
    t->merge_mask = (uint32_t)(n_slots - 1);
    t->merges = xmalloc(n_slots * sizeof *t->merges);
    memset(t->merges, 0xFF, n_slots * sizeof *t->merges);
    struct merge_text m = {0};
    int32_t last = -1;
    for (size_t i = 0; i < spec->n_merges; i++) {
        ats_status status = read_merge(spec, i, &m);
        if (status != ATS_OK) {
            free(m.bytes.data);
            return status;
        }
        int32_t left = vocab_find(v, m.bytes.data, m.left_bytes);
        int32_t right = vocab_find(v, m.bytes.data + m.left_bytes, m.bytes.len - m.left_bytes);
        int32_t merged = find_result(v, m.bytes.data, m.bytes.len, last + 1);
        if (left < 0 || right < 0 || merged < 0) {
            n_lost++;
            continue;
        }
        last = merged;
        struct bpe_merge *slot = find_merge(t->merges, t->merge_mask, left, right);
        if (!slot) {
            free(m.bytes.data);
            return fail(ATS_BAD_FILE, "merge %zu collides with %d others", i, VOCAB_MAX_SEARCH);
        }
        if (slot->merged < 0) *slot = (struct bpe_merge){left, right, (uint32_t)i, merged};
    }
    free(m.bytes.data);
    if (n_lost > 0) log_msg(LOG_WARN, "vocabulary: %zu merges name no tokens: not used", n_lost);
    return ATS_OK;
}

/* What joining symbol i with the next would give. */
static void look_up(struct encoder *e, uint32_t i, size_t n) {
    struct symbols *s = &e->symbols;
    s->priority[i] = NO_MERGE;
    if (asker_stops(&e->asker, 1)) return;
    if (s->next[i] >= n || s->id[i] < 0 || s->id[s->next[i]] < 0) return;
    const struct bpe_merge *m =
        find_merge(e->t->merges, e->t->merge_mask, s->id[i], s->id[s->next[i]]);
    if (!m || m->merged < 0) return;
    s->priority[i] = m->rank;
    s->merged[i] = m->merged;
    heap_push(&e->heap, (uint64_t)m->rank << 32 | i);
}

/* A byte that the vocabulary has no token for is left out, as the reference libraries do: its unk
 * may well be a control token (SmolLM2: <|endoftext|>). */
static void emit(struct encoder *e, int32_t id) {
    if (id >= 0) token_list_add(e->out, id);
}

static void encode_word(struct encoder *e, const char *word, size_t n) {
    const struct tokenizer *t = e->t;
    if (t->pretok->ignore_merges) {
        int32_t id = vocab_find(&t->vocab, word, n);
        if (id >= 0) {
            token_list_add(e->out, id);
            return;
        }
    }
    if (n == 1) {
        emit(e, t->vocab.byte_ids[(unsigned char)word[0]]);
        return;
    }
    struct symbols *s = &e->symbols;
    symbols_reserve(s, n);
    for (size_t i = 0; i < n && !asker_stops(&e->asker, 1); i++) {
        s->id[i] = t->vocab.byte_ids[(unsigned char)word[i]];
        s->next[i] = (uint32_t)i + 1;
        s->prev[i] = (uint32_t)i - 1; /* UINT32_MAX for the first */
    }
    for (size_t i = 0; i < n && !e->asker.stopped; i++)
        look_up(e, (uint32_t)i, n);
    while (e->heap.n > 0 && !asker_stops(&e->asker, 1)) {
        uint64_t best = heap_pop(&e->heap);
        uint32_t i = (uint32_t)best;
        /* an entry that no longer holds differs in priority; one that agrees is as good as new */
        if (s->priority[i] != best >> 32) continue;
        s->id[i] = s->merged[i];
        symbols_join(s, i, n);
        look_up(e, i, n);
        if (s->prev[i] != UINT32_MAX) look_up(e, s->prev[i], n);
    }
    for (size_t i = 0; i < n && !e->asker.stopped; i = s->next[i])
        emit(e, s->id[i]);
}

void bpe_encode(struct encoder *e, const char *text, size_t n) {
    pretok_split(&e->pretok, e->t->pretok->kind, text, n);
    size_t at = 0;
    for (size_t i = 0; i < e->pretok.n_words && !asker_stops(&e->asker, 1); i++) {
        encode_word(e, text + at, e->pretok.ends[i] - at);
        at = e->pretok.ends[i];
    }
}
