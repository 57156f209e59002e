/*
 * Which steps a device may compute as one: the second reads what the first makes, and nobody else
 * does, or it is kept on the way. For backends that fold (vulkan), for who counts what is started
 * (sim), and the comparisons of spans for any. By kinds alone: model/fold.h, which the
 * planner reads. Pure functions.
 */
#pragma once

#include "backend/backend.h"
#include "model/fold.h"

static inline bool step_is(const struct step *s, enum op_kind kind) {
    return s->kind == STEP_OP && s->op->kind == kind;
}

/* The same place, column for column. */
static inline bool span_same(const struct span *x, const struct span *y) {
    return x->space == y->space && x->offset_bytes == y->offset_bytes && x->stride == y->stride &&
           x->first == y->first;
}

/* Do their lines share a byte? rows: a line per wanted row, else per token. */
static inline bool spans_meet(const struct backend_limits *l, const struct span *x, bool x_rows,
                              const struct span *y, bool y_rows) {
    int64_t x_lines = x_rows ? l->n_rows : l->n_tokens, y_lines = y_rows ? l->n_rows : l->n_tokens;
    return x->space == y->space && x->offset_bytes < y->offset_bytes + 4 * y_lines * y->stride &&
           y->offset_bytes < x->offset_bytes + 4 * x_lines * x->stride;
}

/* Index of the only input of s that is what `first` makes, all of it; -1: none or several. */
static inline int fold_input(const struct step *first, const struct step *s) {
    int at = -1, n = 0;
    for (int i = 0; i < s->n_in; i++)
        if (span_same(&s->in[i], &first->out)) at = i, n++;
    return n == 1 && first->begin == s->begin && first->end == s->end ? at : -1;
}

/* Lanes of s, with those of `first`, write while others still read: s may stand in the place of an
 * input of which each reads just what it writes itself, else nowhere that is read. */
static inline bool fold_spares(const struct backend_limits *l, const struct step *s,
                               const struct span *in, bool own_place) {
    return (own_place && span_same(&s->out, in)) ||
           !spans_meet(l, &s->out, s->rows, in, s->in_rows);
}

/* A sum of a product, which nobody else reads, and of an older value. */
static inline bool fold_sum(const struct backend_limits *l, const struct step *m,
                            const struct step *s) {
    int at = fold_input(m, s);
    return at >= 0 && s->n_in == 2 && m->n_readers == 1 && fold_spares(l, s, &m->in[0], false) &&
           fold_spares(l, s, &s->in[1 - at], true);
}

/* Are steps[1] and steps[0] of kinds that fold, and are they so that they can be? */
static inline bool steps_fold(const struct backend_limits *l, const struct step *steps,
                              int n_steps) {
    const struct step *first = steps, *s = steps + 1;
    if (n_steps < 2 || first->kind == STEP_COPY || s->kind == STEP_COPY) return false;
    enum op_kind of_first = first->kind == STEP_SUM ? OP_ADD : first->op->kind;
    enum op_kind of_second = s->kind == STEP_SUM ? OP_ADD : s->op->kind;
    if (!op_kinds_fold(of_first, of_second) || first->out.space != SPACE_LOCAL) return false;
    if (first->rows != first->in_rows || s->in_rows != first->rows || s->rows != first->rows)
        return false;
    return fold_sum(l, first, s);
}
