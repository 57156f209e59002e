/*
 * Which kinds of operators devices compute together, one right after the other: the rule that the
 * planner counts starts by (plan/items.c) and backends fold steps by (backend/fold.h).
 */
#pragma once

#include "model/graph.h"

/* May an op of the second kind be computed with the one before it, whose result it reads? */
static inline bool op_kinds_fold(enum op_kind first, enum op_kind second) {
    return first == OP_MATMUL && second == OP_ADD; /* the sum behind a product */
}
