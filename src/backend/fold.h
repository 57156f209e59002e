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

/* Do products read the same columns? */
static inline bool steps_share_input(const struct step *x, const struct step *y) {
    return span_same(&x->in[0], &y->in[0]) && x->in_begin == y->in_begin &&
           x->in_end == y->in_end && x->in_rows == y->in_rows;
}

/* Is s the activation of just these two products, which nobody else reads? */
static inline bool fold_gates(const struct step *gate, const struct step *up,
                              const struct step *s) {
    const struct step *const products[2] = {gate, up};
    bool fits = gate->kind == STEP_OP && up->kind == STEP_OP && s->kind == STEP_OP &&
                op_folds_products(gate->op->kind, up->op->kind, s->op);
    for (int i = 0; i < 2 && fits; i++) {
        const struct step *m = products[i];
        fits = span_same(&s->in[i], &m->out) && m->n_readers == 1 && m->begin == s->begin &&
               m->end == s->end;
    }
    return fits;
}

/* Lanes of s, with those of `first`, write while others still read: s may stand in the place of an
 * input of which each reads just what it writes itself, else nowhere that is read. */
static inline bool fold_spares(const struct backend_limits *l, const struct step *s,
                               const struct span *in, bool own_place) {
    return (own_place && span_same(&s->out, in)) ||
           !spans_meet(l, &s->out, s->rows, in, s->in_rows);
}

/* May s, whose input `at` is what `first` makes, write before others have read? */
static inline bool fold_order(const struct backend_limits *l, const struct step *first,
                              const struct step *s, int at) {
    const bool product = step_is(first, OP_MATMUL), norm = step_is(s, OP_NORM);
    bool fits = true;
    for (int i = 0; i < first->n_in; i++) {
        fits = fits && fold_spares(l, s, &first->in[i], !product && !norm);
        if (norm) fits = fits && fold_spares(l, first, &first->in[i], true);
    }
    for (int i = 0; i < s->n_in; i++)
        if (i != at)
            fits = fits &&
                   fold_spares(l, s, &s->in[i], !(step_is(s, OP_GATED) && s->op->p.gated.one_gate));
    return fits && !(norm && spans_meet(l, &s->out, s->rows, &first->out, first->rows));
}

/* May two products and their activation be computed together? What they make is in local memory. */
static inline bool steps_fold_gated(const struct backend_limits *l, const struct step *steps,
                                    int n_steps) {
    const struct step *up = steps + 1, *s = steps + 2;
    if (n_steps < 3 || !fold_gates(steps, up, s)) return false;
    return steps_share_input(steps, up) && steps->out.space == SPACE_LOCAL &&
           up->out.space == SPACE_LOCAL && steps->rows == s->rows && steps->in_rows == s->rows &&
           up->rows == s->rows && !spans_meet(l, &s->out, s->rows, &steps->in[0], steps->in_rows);
}

/* Is steps[1] computed with steps[0]? What stands between them is in local memory; a sum is one of
 * two values, or before a norm of three. A copy counts as a sum of one. */
static inline bool steps_fold(const struct backend_limits *l, const struct step *steps,
                              int n_steps) {
    const struct step *first = steps, *s = steps + 1;
    if (n_steps < 2) return false;
    enum op_kind of_first = first->kind == STEP_OP ? first->op->kind : OP_ADD;
    enum op_kind kind = s->kind == STEP_OP ? s->op->kind : OP_ADD;
    const int at = fold_input(first, s);
    if (at < 0 || !op_folds(of_first, kind, s->op, at)) return false;
    if (first->out.space != SPACE_LOCAL || s->in_rows != first->rows || s->rows != first->rows ||
        first->in_rows != first->rows)
        return false;
    if (first->n_readers != 1 && !op_fold_keeps(kind)) return false;
    if (kind == OP_ADD && s->n_in > 2) return false;
    if (of_first == OP_ADD && first->n_in > 3) return false;
    return fold_order(l, first, s, at);
}
