#include "backend/watch.h"

#ifdef ATS_CHECK_RACES
#include "base/arena.h"

void watch(struct watched *w, struct race_access access) {
    GROW(w->items, w->n, w->cap, 1);
    w->items[w->n++] = access;
}

static void watch_span(struct watched *w, const struct backend_limits *l, const struct span *s,
                       int begin, int end, int lines, struct race_access a) {
    if (s->space != SPACE_EXCHANGE || lines == 0) return;
    a.memory = l->exchange;
    a.begin = s->offset_bytes + 4 * (int64_t)(begin - s->first);
    a.bytes = 4 * (int64_t)(end - begin);
    a.stride_bytes = 4 * (int64_t)s->stride;
    a.lines = lines;
    watch(w, a);
}

static void watch_step(struct watched *w, const struct backend_limits *l, const struct step *s,
                       int index, const struct round *round) {
    static const char *const kinds[] = {"an operator", "a sum", "a copy"};
    struct race_access a = {.what = kinds[s->kind], .step_index = index};
    bool whole = s->kind == STEP_OP; /* which columns of its inputs is its own affair */
    bool rows = whole ? s->in_rows : s->rows;
    int lines = rows ? round->n_rows : round->n_tokens;
    for (int i = 0; i < s->n_in; i++) {
        const struct span *in = &s->in[i];
        watch_span(w, l, in, whole ? in->first : s->begin, whole ? in->first + in->stride : s->end,
                   lines, a);
    }
    a.write = true;
    watch_span(w, l, &s->out, s->begin, s->end, s->rows ? round->n_rows : round->n_tokens, a);
}

void watch_steps(struct watched *w, const struct backend_limits *l, const struct step *steps,
                 int n_steps, const struct round *round) {
    for (int i = 0; i < n_steps; i++)
        watch_step(w, l, &steps[i], i, round);
}
#endif
