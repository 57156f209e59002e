/*
 * Which operators devices compute together, one right after the other: the rule that the planner
 * counts starts by (plan/items.c) and backends fold steps by (backend/fold.h, which has what else
 * must hold of them).
 */
#pragma once

#include "model/graph.h"

/* May an op be computed with the one of kind `first` before it, whose result is its input `at`?
 * op: of a GATED one, else not read. */
static inline bool op_folds(enum op_kind first, enum op_kind kind, const struct graph_op *op,
                            int at) {
    switch (kind) {
    case OP_ADD:
        return first == OP_MATMUL;
    case OP_NORM:
        return first == OP_ADD;
    case OP_GATED: /* of a shared expert, which has a gate of its own; of heads that are normed */
        return at == 1 && first == (op->p.gated.one_gate ? OP_GATED : OP_NORM);
    default:
        return false;
    }
}

/* May an activation be computed with the two ops right before it, whose results are its inputs, if
 * both read the same? Vulkan does so with weights of one type and without a bias. */
static inline bool op_folds_products(enum op_kind gate, enum op_kind up,
                                     const struct graph_op *op) {
    return gate == OP_MATMUL && up == OP_MATMUL && op->kind == OP_GATED && !op->p.gated.one_gate;
}

/* Does such an op keep what the one before it makes, so that others may read that too? */
static inline bool op_fold_keeps(enum op_kind kind) {
    return kind == OP_NORM;
}
