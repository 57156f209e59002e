#include "base/arena.h"
#include "base/log.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

/*
 * Which special token begins at a place of the text, the longest of several: the text is read
 * backwards, by an automaton (Aho and Corasick) of the tokens as they read backwards. Where the
 * token's first byte is reached, the automaton's state says so. Time is linear in the text,
 * whatever the tokens have in common.
 */

/* A longer one is in no use: this far a block of the text is read beyond its end. All of them
 * together: a state of the automaton takes 20 bytes. */
#define MAX_SPECIAL_BYTES     256
#define MAX_ALL_SPECIAL_BYTES ((size_t)4 << 20)
/* Places of the text that are answered at once. */
#define BLOCK_BYTES ((size_t)1 << 16)

/* The bytes read last are, as they stand in the text, the end of a token: as many as can be. */
struct special_state {
    uint32_t first; /* the states with one byte more are first .. first + n_more - 1, ascending */
    uint32_t fallback; /* what is left when the text goes on otherwise: as many bytes as can be */
    int32_t id[2];     /* the longest token that begins here: [0] user-defined, [1] any; -1: none */
    uint16_t n_more;
    uint8_t byte; /* read last */
};

static bool is_special_type(enum token_type type) {
    return type == TOKEN_CONTROL || type == TOKEN_UNKNOWN || type == TOKEN_USER_DEFINED;
}

struct sort_context {
    const struct vocab *vocab;
};

static int compare_pieces(const void *a, const void *b, void *context) {
    const struct vocab *v = ((const struct sort_context *)context)->vocab;
    int32_t id_a = *(const int32_t *)a, id_b = *(const int32_t *)b;
    struct text_span x = vocab_piece(v, id_a), y = vocab_piece(v, id_b);
    int order = memcmp(x.data, y.data, min_size(x.len, y.len));
    if (order != 0) return order;
    if (x.len != y.len) return x.len < y.len ? -1 : 1;
    return id_a < id_b ? -1 : id_a > id_b;
}

static bool same_piece(const struct vocab *v, int32_t a, int32_t b) {
    struct text_span x = vocab_piece(v, a), y = vocab_piece(v, b);
    return x.len == y.len && memcmp(x.data, y.data, x.len) == 0;
}

/* By their bytes from the last to the first. */
static int compare_backwards(const void *a, const void *b, void *context) {
    const struct vocab *v = ((const struct sort_context *)context)->vocab;
    struct text_span x = vocab_piece(v, *(const int32_t *)a);
    struct text_span y = vocab_piece(v, *(const int32_t *)b);
    size_t n = min_size(x.len, y.len);
    for (size_t i = 1; i <= n; i++) {
        int order = (unsigned char)x.data[x.len - i] - (unsigned char)y.data[y.len - i];
        if (order != 0) return order;
    }
    return x.len < y.len ? -1 : x.len > y.len;
}

/* ---- the automaton ---- */

/* While it is built: the tokens sorted backwards, and which of them go through a state. */
struct special_builder {
    struct special_set *set;
    const struct vocab *vocab;
    int32_t *ids; /* (set->n) */
    struct range {
        uint32_t begin, end;
        uint32_t n_bytes; /* that were read */
    } * ranges;           /* (n) of each state */
    uint32_t n;
    size_t cap, ranges_cap;
};

static uint8_t byte_backwards(const struct special_builder *b, uint32_t i, uint32_t n_read) {
    struct text_span piece = vocab_piece(b->vocab, b->ids[i]);
    return (uint8_t)piece.data[piece.len - 1 - n_read];
}

/* The state after one byte more; in state 0 nothing is read. */
static uint32_t next_state(const struct special_set *set, uint32_t at, uint8_t byte) {
    const struct special_state *states = set->states;
    for (; at != 0; at = states[at].fallback) {
        const struct special_state *s = &states[at];
        uint32_t lo = s->first, hi = s->first + s->n_more;
        while (lo < hi) {
            uint32_t mid = lo + (hi - lo) / 2;
            if (states[mid].byte == byte) return mid;
            if (states[mid].byte < byte)
                lo = mid + 1;
            else
                hi = mid;
        }
    }
    return set->start[byte];
}

static void add_state(struct special_builder *b, struct range range, uint8_t byte,
                      uint32_t fallback) {
    struct special_set *set = b->set;
    GROW(set->states, b->n, b->cap, 1);
    GROW(b->ranges, b->n, b->ranges_cap, 1);
    set->states[b->n] = (struct special_state){.fallback = fallback, .id = {-1, -1}, .byte = byte};
    b->ranges[b->n++] = range;
}

/* The token that ends with this state, if there is one, and the states with a byte more. Those it
 * falls back to have fewer bytes: they are complete. */
static void complete_state(struct special_builder *b, uint32_t at) {
    struct range range = b->ranges[at];
    struct special_state *s = &b->set->states[at];
    if (at > 0) memcpy(s->id, b->set->states[s->fallback].id, sizeof s->id);
    if (range.n_bytes > 0 && vocab_piece(b->vocab, b->ids[range.begin]).len == range.n_bytes) {
        int32_t id = b->ids[range.begin++]; /* the shortest comes first */
        s->id[1] = id;
        if (b->vocab->types[id] == TOKEN_USER_DEFINED) s->id[0] = id;
    }
    uint32_t first = b->n, fallback = s->fallback;
    for (uint32_t i = range.begin, next; i < range.end; i = next) {
        uint8_t byte = byte_backwards(b, i, range.n_bytes);
        for (next = i + 1; next < range.end; next++)
            if (byte_backwards(b, next, range.n_bytes) != byte) break;
        uint32_t to = at == 0 ? 0 : next_state(b->set, fallback, byte);
        if (at == 0) b->set->start[byte] = b->n;
        add_state(b, (struct range){i, next, range.n_bytes + 1}, byte, to);
    }
    b->set->states[at].first = first;
    b->set->states[at].n_more = (uint16_t)(b->n - first);
}

static void build_automaton(struct special_set *set, const struct vocab *v) {
    struct special_builder b = {.set = set, .vocab = v};
    struct sort_context context = {v};
    b.ids = xmalloc((set->n + 1) * sizeof *b.ids);
    if (set->n > 0) memcpy(b.ids, set->ids, set->n * sizeof *b.ids);
    qsort_r(b.ids, set->n, sizeof *b.ids, compare_backwards, &context);
    add_state(&b, (struct range){0, set->n, 0}, 0, 0);
    for (uint32_t at = 0; at < b.n; at++)
        complete_state(&b, at);
    free(b.ids);
    free(b.ranges);
}

/* ---- the set ---- */

/* One that is not whole characters would cut those of the text. */
static bool can_be_looked_for(const struct vocab *v, int32_t id) {
    struct text_span piece = vocab_piece(v, id);
    return is_special_type(v->types[id]) && piece.len > 0 && utf8_valid(piece.data, piece.len);
}

void special_open(struct special_set *set, const struct vocab *v) {
    *set = (struct special_set){0};
    uint32_t n = 0, n_long = 0, kept = 0;
    size_t n_bytes = 0;
    for (int32_t id = 0; id < v->n_tokens; id++)
        n += is_special_type(v->types[id]);
    set->ids = xmalloc((n + 1) * sizeof *set->ids);
    for (int32_t id = 0; id < v->n_tokens; id++) {
        if (!can_be_looked_for(v, id)) continue;
        size_t len = vocab_piece(v, id).len;
        if (len > MAX_SPECIAL_BYTES || len > MAX_ALL_SPECIAL_BYTES - n_bytes) {
            n_long++;
            continue;
        }
        n_bytes += len;
        set->ids[set->n++] = id;
    }
    if (n_long > 0)
        log_msg(LOG_WARN, "vocabulary: %u special tokens are too long or too many to be looked for",
                n_long);
    struct sort_context context = {v};
    qsort_r(set->ids, set->n, sizeof *set->ids, compare_pieces, &context);
    for (uint32_t i = 0; i < set->n; i++) { /* of equal ones the first id stays */
        if (kept > 0 && same_piece(v, set->ids[kept - 1], set->ids[i])) continue;
        set->ids[kept++] = set->ids[i];
        set->any_user_defined |= v->types[set->ids[i]] == TOKEN_USER_DEFINED;
    }
    set->n = kept;
    build_automaton(set, v);
}

void special_close(struct special_set *set) {
    free(set->ids);
    free(set->states);
    *set = (struct special_set){0};
}

/* ---- looking for them ---- */

void special_search_free(struct special_search *s) {
    free(s->ids);
    s->ids = NULL;
}

/* A token that begins in the block ends at most MAX_SPECIAL_BYTES behind it. */
static void answer_block(struct special_search *s, size_t begin) {
    size_t end = begin + min_size(BLOCK_BYTES, s->n - begin);
    size_t from = end + min_size(MAX_SPECIAL_BYTES, s->n - end);
    uint32_t at = 0;
    if (!s->ids) s->ids = xmalloc(min_size(BLOCK_BYTES, s->n) * sizeof *s->ids);
    for (size_t i = from; i-- > begin;) {
        at = next_state(s->set, at, (uint8_t)s->text[i]);
        if (i < end) s->ids[i - begin] = s->set->states[at].id[s->parse_control];
    }
    s->begin = begin;
    s->end = end;
}

int32_t special_at(struct special_search *s, size_t at) {
    if (at < s->begin || at >= s->end) answer_block(s, at);
    return s->ids[at - s->begin];
}

int32_t special_find(const struct special_set *set, const struct vocab *v, const char *text,
                     size_t n) {
    uint32_t lo = 0, hi = set->n;
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        struct text_span piece = vocab_piece(v, set->ids[mid]);
        int order = memcmp(piece.data, text, min_size(piece.len, n));
        if (order == 0 && piece.len == n) return set->ids[mid];
        if (order < 0 || (order == 0 && piece.len < n)) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return -1;
}
