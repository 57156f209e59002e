#include "base/arena.h"
#include "base/log.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>

/* Every place of a text is compared with the start of a special token: one that is longer than any
 * in use would make that quadratic. */
#define MAX_SPECIAL_BYTES 256

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

void special_open(struct special_set *set, const struct vocab *v) {
    *set = (struct special_set){0};
    uint32_t n = 0, n_long = 0, kept = 0;
    for (int32_t id = 0; id < v->n_tokens; id++)
        n += is_special_type(v->types[id]);
    set->ids = xmalloc((n + 1) * sizeof *set->ids);
    for (int32_t id = 0; id < v->n_tokens; id++) {
        struct text_span piece = vocab_piece(v, id);
        if (!is_special_type(v->types[id]) || piece.len == 0) continue;
        if (piece.len > MAX_SPECIAL_BYTES) {
            n_long++;
            continue;
        }
        /* one that is not whole characters would cut those of the text */
        if (utf8_valid(piece.data, piece.len)) set->ids[set->n++] = id;
    }
    if (n_long > 0)
        log_msg(LOG_WARN, "vocabulary: %u special tokens are too long to be looked for", n_long);
    struct sort_context context = {v};
    qsort_r(set->ids, set->n, sizeof *set->ids, compare_pieces, &context);
    for (uint32_t i = 0; i < set->n; i++) { /* of equal ones the first id stays */
        if (kept > 0 && same_piece(v, set->ids[kept - 1], set->ids[i])) continue;
        set->ids[kept++] = set->ids[i];
    }
    set->n = kept;
    for (uint32_t i = 0; i < set->n; i++) {
        unsigned char c = (unsigned char)v->bytes[v->offset[set->ids[i]]];
        bool user = v->types[set->ids[i]] == TOKEN_USER_DEFINED;
        set->starts[1][c] = true;
        set->starts[0][c] |= user;
        set->any_user_defined |= user;
        set->first[c + 1] = i + 1;
    }
    for (int c = 1; c <= 256; c++)
        set->first[c] = set->first[c] ? set->first[c] : set->first[c - 1];
}

void special_close(struct special_set *set) {
    free(set->ids);
    set->ids = NULL;
    set->n = 0;
}

/* First index in [lo, hi) whose byte at `depth` is >= c; all of them are longer than depth. */
static uint32_t lower_bound(const struct special_set *set, const struct vocab *v, uint32_t lo,
                            uint32_t hi, size_t depth, int c) {
    while (lo < hi) {
        uint32_t mid = lo + (hi - lo) / 2;
        if ((unsigned char)v->bytes[v->offset[set->ids[mid]] + depth] < c) {
            lo = mid + 1;
        } else {
            hi = mid;
        }
    }
    return lo;
}

/* Narrows the range of the sorted table that shares the text's first bytes, byte by byte. */
size_t special_match(const struct special_set *set, const struct vocab *v, const char *text,
                     size_t n, bool parse_control, int32_t *id) {
    unsigned char c = (unsigned char)text[0];
    if (!set->starts[parse_control][c]) return 0;
    uint32_t lo = set->first[c], hi = set->first[c + 1];
    size_t best = 0;
    for (size_t depth = 1; lo < hi; depth++) {
        if (vocab_piece(v, set->ids[lo]).len == depth) { /* the shortest of the range comes first */
            if (parse_control || v->types[set->ids[lo]] == TOKEN_USER_DEFINED) {
                *id = set->ids[lo];
                best = depth;
            }
            lo++;
        }
        if (depth == n) break;
        c = (unsigned char)text[depth];
        lo = lower_bound(set, v, lo, hi, depth, c);
        hi = lower_bound(set, v, lo, hi, depth, c + 1);
    }
    return best;
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
