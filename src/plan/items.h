/*
 * What is placed: a graph as a chain of items in topological order (scheduling.md 1), with their
 * sizes and times on both sides, and the blocks that one exchange can serve. An item is an operator
 * with a weight, an attention with its cache, all experts of a layer, or any other operator whose
 * home a plan decides; the embedding is none (it stays on the host). Operators without a home go
 * with the next item. Arithmetic only. Read by placement.c, transfer.c, timeline.c.
 */
#pragma once

#include "plan/profile.h"

struct items_options {
    int n_ctx, n_seqs, n_batch; /* of the cache: what is reserved; tokens of a round */
    int n_states;               /* of each recurrent operator, reserved; 0: one a sequence */
    enum dtype kv_k, kv_v;      /* F32, F16 or Q8_0 */
    int64_t quantum_bytes;      /* of the byte grid; 0: by the model's size, see items.c */
    /* Bytes of a matrix as devices store it; NULL: those of the file. */
    int64_t (*matrix_bytes)(enum dtype type, int n_rows, int n_cols);
    /* By layer, NULL or a row NULL: uniform. Probability of each expert to be used by a token;
     * scaled so that the sum is n_used. Copied. */
    const double *const *popularity;
    /* Share of a token's experts that the next token uses again (0.4 without measurement). */
    double repeat_rate;
    bool no_fusion; /* nothing is folded (backend_options) */
};
/* Context 4096, one sequence, batches of 512, F16 caches, repeat rate 0.4. */
struct items_options items_options_default(void);

/* A value that an item needs: what another item of its block makes. */
struct item_source {
    int item;  /* index in items */
    int width; /* floats a token, as the producer makes them */
};
enum { ITEM_MAX_SOURCES = 8 };

/* The experts of a layer, as rounds use them: made once, of the token counts that plans are timed
 * at. Layers of the same popularity share one. */
enum { EXPERT_COUNTS = 16 };
struct item_experts {
    double repeat_rate;
    const double *popularity;         /* (n) of one token; sum n_used */
    const uint16_t *order;            /* (n) the most popular first, of equals the first */
    double in_use[EXPERT_COUNTS];     /* expected, by count */
    const double *use[EXPERT_COUNTS]; /* (n) of each, the probability of being used at all */
};

struct item {
    int op, layer, block; /* block: of items */
    struct profile_key key;
    const struct profile_item *measured; /* NULL: from rates */
    int64_t weight_bytes, kv_bytes;      /* of a device that has all of it; kv: cache or states */
    int quanta;                          /* each tensor and cache rounded up to the grid */
    int n_small;                         /* operators without a home that come just before it */
    int n_starts;    /* of those and itself that are waited for, items_start_time */
    bool has_sum;    /* a sum starts with it that, where it is divided, starts by itself */
    bool rows;       /* works on the rows that are wanted, not on tokens */
    int span;        /* keys that an attention sees at most; 0: all */
    bool from_entry; /* needs what enters the block */
    struct item_source sources[ITEM_MAX_SOURCES];
    int n_sources;
    int direct_width; /* floats a token of its inputs as they are just before it */
    int out_width;
    /* experts */
    int n_experts, n_used;
    const struct item_experts *experts;
};

struct items_block {
    int first, n;    /* items */
    int graph_block; /* -1: an item outside blocks */
    int layer;       /* -1 outside layers */
    int n_units;     /* 1: not divisible */
    int entry_width; /* floats a token that enter */
    int exit_width;  /* that leave */
};

struct items {
    const struct graph *graph;
    const char **names; /* (operators of the graph) of names.h */
    const struct profile *profile;
    struct item *items;
    int n_items;
    struct items_block *blocks; /* cover the items, ascending */
    int n_blocks;
    int64_t quantum_bytes;
    int total_quanta;
    bool *waits; /* (operators of the graph) reads what was made since the last that waits */
    bool *folds; /* (the same) is computed with the one before it: has no start */
    double slow[N_SIDES]; /* times are the profile's times these: 1; load.h has others */
};

/* Everything in the arena; graph and profile are borrowed. Errors: BAD_ARGUMENT naming the operator
 * whose time the profile cannot tell. */
MUST_CHECK ats_status items_build(struct arena *arena, const struct graph *graph,
                                  const struct profile *profile,
                                  const struct items_options *options, struct items **out);

/* No operator of a block, small ones before its items included, reads a result of another: a block
 * on one device may run beside it. */
bool items_beside(const struct items *items, int block, int other);

/* Seconds of an item (its small operators and `slow` included) for n_tokens >= 1 lines (of an item
 * with `rows`: wanted ones) after `depth` tokens, for a share of its units in [0, 1]; of experts:
 * of those in use. */
double items_time(const struct items *items, int item, enum side side, double n_tokens,
                  double depth, double share);
/* The same of experts of which `in_use` are (items_in_use). */
double items_experts_time(const struct items *items, int item, enum side side, double n_tokens,
                          double in_use, double share);
/* Bytes of weights that such a round reads: of experts those expected to be in use. */
double items_active_bytes(const struct items *items, int item, double n_tokens);

/* ---- items_experts.c ---- */

/* Distinct experts in use, expected, of n_tokens of one sequence whose choices repeat at `rate`:
 * sum over e in [0, n) of the probability that e is chosen at all. p: of one token. */
double items_experts_in_use(const double *p, int n, double n_tokens, double rate);
/* p (n): borrowed. */
const struct item_experts *item_experts_make(struct arena *arena, const double *p, int n,
                                             double repeat_rate);
/* Of an item's experts: those in use of so many tokens, and the probability that expert e is. */
double items_in_use(const struct item *item, double n_tokens);
double items_use(const struct item *item, int e, double n_tokens);

/* Seconds of starting an operator that is not folded: by a description nothing where it waits for
 * none that was started before, as both backends have it. Where times were measured it was each by
 * itself. */
double items_start_time(const struct items *items, int op, enum side side);
/* Of those of other operators, what items_time has in it. */
double items_others_time(const struct items *items, int item, enum side side, double share);

/* From this share of a layer's experts on it hardly matters which are in use: all are. */
#define ITEMS_MOST_EXPERTS 0.9

/* Seconds of a device change of so many floats a token: up, down, both ways. */
double items_up_time(const struct items *items, double n_tokens, double width);
double items_down_time(const struct items *items, double n_tokens, double width);
double items_exchange_time(const struct items *items, double n_tokens, double width);
/* Of these, what the GPU is busy with: to read what comes, to write what goes. */
double items_pull_time(const struct items *items, double n_tokens, double width);
double items_push_time(const struct items *items, double n_tokens, double width);

/* Bytes, rounded up to the grid, of n_units of a block's units. */
int items_share_quanta(const struct items *items, int block, int n_units);
/* What plan files, overrides and messages call it (names.h). */
const char *items_name(const struct items *items, int item);
