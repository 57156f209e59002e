#include "run/dry.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"

struct dry {
    struct dry_params params;
    struct arena arena;
    struct dry_breaker *breakers; /* (n_breakers) by first token */
    int n_breakers;
    uint64_t *is_head; /* one bit a token: a breaker begins with it */
    int32_t *lengths;  /* scratch (n), owned */
    size_t lengths_cap;
};

static int compare_heads(const void *a, const void *b) {
    int32_t x = ((const struct dry_breaker *)a)->tokens[0];
    int32_t y = ((const struct dry_breaker *)b)->tokens[0];
    return (x > y) - (x < y);
}

struct dry *dry_open(const struct dry_params *params, const struct dry_breaker *breakers,
                     int n_breakers, int n_vocab) {
    struct dry *dry = xcalloc(1, sizeof *dry);
    dry->params = *params;
    dry->breakers = ARENA_ARRAY(&dry->arena, struct dry_breaker, n_breakers);
    dry->is_head = ARENA_ARRAY(&dry->arena, uint64_t, n_vocab / 64 + 1);
    for (int i = 0; i < n_breakers; i++) {
        size_t n = (size_t)breakers[i].n_tokens;
        REQUIRE(n >= 1);
        int32_t *tokens = ARENA_ARRAY(&dry->arena, int32_t, n);
        memcpy(tokens, breakers[i].tokens, n * sizeof *tokens);
        REQUIRE(tokens[0] >= 0 && tokens[0] < n_vocab);
        dry->is_head[tokens[0] / 64] |= UINT64_C(1) << tokens[0] % 64;
        dry->breakers[dry->n_breakers++] = (struct dry_breaker){tokens, (int)n};
    }
    qsort(dry->breakers, (size_t)n_breakers, sizeof *dry->breakers, compare_heads);
    return dry;
}

void dry_close(struct dry *dry) {
    if (!dry) return;
    arena_free(&dry->arena);
    free(dry->lengths);
    free(dry);
}

/* Index of the first breaker whose first token is not below head. */
static int breaker_first(const struct dry *dry, int32_t head) {
    int lo = 0, hi = dry->n_breakers;
    while (lo < hi) {
        int mid = lo + (hi - lo) / 2;
        if (dry->breakers[mid].tokens[0] < head)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo;
}

/* Tokens of the longest breaker that stands at tokens[at..n), 0: none. */
static size_t breaker_length(const struct dry *dry, const int32_t *tokens, size_t n, size_t at) {
    int32_t head = tokens[at];
    if (!(dry->is_head[head / 64] >> head % 64 & 1)) return 0;
    size_t longest = 0;
    for (int i = breaker_first(dry, head); i < dry->n_breakers; i++) {
        const struct dry_breaker *b = &dry->breakers[i];
        size_t length = (size_t)b->n_tokens;
        if (b->tokens[0] != head) break;
        if (length > longest && length <= n - at &&
            memcmp(b->tokens, tokens + at, length * sizeof *tokens) == 0)
            longest = length;
    }
    return longest;
}

/* Tokens behind the breaker that begins last; n if there is none. */
static size_t repetition_limit(const struct dry *dry, const int32_t *tokens, size_t n) {
    for (size_t at = n; at-- > 0;) {
        size_t length = breaker_length(dry, tokens, n, at);
        if (length > 0) return n - at - length;
    }
    return n;
}

/* lengths[d], 1 <= d < n: how long the end of tokens equals what ends d tokens earlier (the two may
 * overlap). The Z algorithm (Gusfield 1997, section 1.4) on the tokens read backwards. */
static void repetition_lengths(const int32_t *tokens, size_t n, int32_t *lengths) {
    const int32_t *last = tokens + n - 1;
    size_t from = 0, end = 0; /* the match found that reaches furthest */
    for (size_t d = 1; d < n; d++) {
        size_t z = 0;
        if (d < end) z = min_size(end - d, (size_t)lengths[d - from]);
        while (d + z < n && *(last - z) == *(last - d - z))
            z++;
        if (d + z > end) {
            from = d;
            end = d + z;
        }
        lengths[d] = (int32_t)z;
    }
}

void dry_apply(struct dry *dry, const int32_t *tokens, size_t n, float *logits, int32_t *tally) {
    size_t allowed = (size_t)dry->params.allowed_length;
    if (n <= allowed) return;
    size_t limit = repetition_limit(dry, tokens, n);
    if (limit < allowed) return;
    GROW(dry->lengths, 0, dry->lengths_cap, n);
    repetition_lengths(tokens, n, dry->lengths);
    for (size_t d = 1; d < n; d++) {
        int32_t length = (int32_t)min_size((size_t)dry->lengths[d], limit), next = tokens[n - d];
        if ((size_t)length >= allowed && length > tally[next]) tally[next] = length;
    }
    for (size_t i = 0; i < n; i++) { /* the first visit of a token clears it */
        int32_t length = tally[tokens[i]];
        if (length == 0) continue;
        double penalty = (double)dry->params.multiplier *
                         pow((double)dry->params.base, (double)length - (double)allowed);
        logits[tokens[i]] -= (float)fmin(penalty, (double)FLT_MAX);
        tally[tokens[i]] = 0;
    }
}
