/*
 * Names of placed operators, for people and for plan files: that of the tensor, with #2, #3, ...
 * where several operators share it (a fused qkv; a tied embedding). Indices join everything else.
 */
#pragma once

#include "base/arena.h"
#include "model/graph.h"

/* That of one of them, before they are numbered: what has no tensor is called as one would be,
 * blk.3.attn_kv. In the arena, or the graph's. */
const char *plan_name(struct arena *arena, const struct graph *g, const struct graph_op *op);
/* (n_ops) texts, all different; NULL for operators that no plan places. In the arena. */
const char **plan_names(struct arena *arena, const struct graph *g);
/* Text i of n, made different from equal ones before it by #2, #3, ... In place; NULLs are left. */
void names_number(struct arena *arena, const char **names, int n);
