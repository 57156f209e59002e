#include "run/breakers.h"

#include <stdlib.h>
#include <string.h>
#include "run/sampler.h"

struct maker {
    struct arena *arena;
    const struct tokenizer *t;
    struct dry_breaker *items;
    size_t n, cap;
};

/* first, then the tokens of rest[0..n). */
static ats_status add(struct maker *m, int32_t first, const char *rest, size_t n) {
    struct token_list list = {0};
    token_list_add(&list, first);
    ats_status status = n ? tokenizer_encode(m->t, rest, n, 0, &list) : ATS_OK;
    if (status == ATS_OK && list.n <= DRY_BREAKER_TOKENS_MAX) {
        int32_t *tokens = ARENA_ARRAY(m->arena, int32_t, list.n);
        memcpy(tokens, list.ids, list.n * sizeof *tokens);
        GROW(m->items, m->n, m->cap, 1);
        m->items[m->n++] = (struct dry_breaker){tokens, (int)list.n};
    }
    token_list_free(&list);
    return status;
}

static ats_status add_string(struct maker *m, const char *s, size_t n) {
    for (int32_t id = 0; id < tokenizer_n_tokens(m->t); id++) {
        struct text_span piece = tokenizer_piece(m->t, id);
        if (memmem(piece.data, piece.len, s, n)) {
            TRY(add(m, id, NULL, 0));
            continue;
        }
        for (size_t head = min_size(n - 1, piece.len); head > 0; head--)
            if (memcmp(piece.data + piece.len - head, s, head) == 0)
                TRY(add(m, id, s + head, n - head));
    }
    return ATS_OK;
}

ats_status dry_breakers_make(struct arena *arena, const struct tokenizer *t,
                             const char *const *strings, int n_strings, struct dry_breaker **out,
                             int *n_out) {
    struct maker m = {.arena = arena, .t = t};
    *n_out = 0;
    for (int i = 0; i < n_strings; i++) {
        size_t n = strlen(strings[i]);
        ats_status status = ATS_OK;
        if (n == 0 || n > DRY_BREAKER_BYTES_MAX)
            status = fail(ATS_BAD_ARGUMENT, "a DRY breaker must have 1 to %d bytes",
                          DRY_BREAKER_BYTES_MAX);
        if (status == ATS_OK) status = add_string(&m, strings[i], n);
        if (status != ATS_OK) {
            free(m.items);
            return status;
        }
    }
    *out = arena_adopt(arena, m.items, m.n * sizeof *m.items);
    *n_out = (int)m.n;
    return ATS_OK;
}
