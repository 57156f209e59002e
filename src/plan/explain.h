/*
 * Why a placement is what it is, and what would change it: for each item its home, size, times and
 * the reason; totals; predictions by depth with the regret of having planned for other depths; the
 * limits of scheduling.md 7; and what more or less memory, a smaller cache or half the bus would
 * do. Arithmetic only: no weights, no device. What `plan` prints.
 */
#pragma once

#include "plan/limit.h"
#include "plan/placement.h"

/* A byte of device memory has a price: what the objective would gain by one more. */
enum explain_reason {
    EXPLAIN_FITS,    /* on the GPU, as everything is */
    EXPLAIN_FIXED,   /* where it was told to be */
    EXPLAIN_DIVIDED, /* both devices work on it at once */
    EXPLAIN_GAIN,    /* on the GPU: it saves more than its bytes cost */
    EXPLAIN_PROMPTS, /* on the GPU: not for decode, but prompts would wait for it */
    EXPLAIN_LOSS,    /* on the host: it would save less than its bytes cost */
    EXPLAIN_SLOWER,  /* on the host: the GPU is no faster at it */
    EXPLAIN_CHANGES, /* against all that: with what is beside it, device changes cost less */
    N_EXPLAIN_REASONS
};
/* "saves more than its bytes cost" */
const char *explain_reason_text(enum explain_reason reason);

struct explain_item {
    double gpu_share;    /* of its units */
    int64_t bytes;       /* all of it: weight and cache */
    double cpu_s, gpu_s; /* of the decode objective, alone on either */
    enum explain_reason reason;
};

/* Bytes on a device, as devices store them. */
struct explain_bytes {
    int64_t weights, caches;
};

enum { EXPLAIN_DEPTHS = 4 };
extern const int explain_depths[EXPLAIN_DEPTHS]; /* 0, 2k, 8k, 32k */
struct explain_prediction {
    int depth;
    bool valid;       /* within the context */
    double decode_s;  /* of a round */
    double best_s;    /* had only this depth been planned for: decode_s less this is the regret */
    double prefill_s; /* of a chunk at this depth */
};

/* A change and the placement that would then be chosen. */
struct explain_change {
    bool valid; /* it can be had, and its times are known */
    double decode_s, prefill_s;
    int64_t gpu_bytes;
    const struct items *items;         /* as they would be, */
    const struct placement *placement; /* of which this would be chosen */
};

struct explanation {
    const struct items *items;
    const struct placement *placement; /* the chosen, or the given one */
    struct explain_item *rows;         /* (n_items) */
    struct explain_bytes gpu, host;
    int64_t budget_bytes;
    double n_tokens; /* of a round, and of a chunk, for rates */
    int prefill_tokens;
    int n_changes;          /* of device, in a round */
    double price_s_per_gib; /* of memory, in the objective */
    /* With nothing fixed and nothing given, same budget: decode, a chunk, the objective. What was
     * fixed costs the difference; of the objective it is not below zero by tensor and by shard; by
     * layer and by expert it need not be, since what is fixed may cut a layer. */
    double free_decode_s, free_prefill_s, free_objective_s;
    int n_fixed; /* items */
    struct explain_prediction predictions[EXPLAIN_DEPTHS];
    struct limit round, blocks, prefill; /* S6, S6b, of a chunk; at the first depth planned for */
    /* Of the best placements; not with a given one. `here`: as it is. */
    struct explain_change here;
    struct explain_change more_memory, less_memory; /* by a GiB */
    struct explain_change smaller_cache;            /* F32 to F16, F16 to Q8_0 */
    struct explain_change half_bus;
};

struct explain_problem {
    const struct graph *graph;
    const struct profile *profile;
    struct items_options items;
    struct placement_options placement; /* fixed, if given, is of the same items */
    int64_t budget_bytes;               /* of device memory for weights and caches */
    /* What was decided, with more in view than this problem has; NULL: nothing. If it is what would
     * be placed here too, what would change is told, else it is explained as if it were given. */
    const struct placement *decided;
};

/* given: a placement to explain (its homes, units, residents are read), NULL: the best is.
 * Everything in the arena; graph, profile and given are borrowed. Errors: those of items_build and
 * placement_solve. */
MUST_CHECK ats_status explain(struct arena *arena, const struct explain_problem *problem,
                              const struct placement *given, struct explanation **out);
/* Owned (decref). Device names: as they are to be printed. */
json_t *explain_to_json(const struct explanation *e, const char *cpu, const char *gpu);
