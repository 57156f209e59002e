/*
 * How fast a round could be at all: the bounds S6 and S6b of scheduling.md 7, to judge plans by.
 * They know bytes, bandwidths and arithmetic; no schedule. Pure functions over items.
 */
#pragma once

#include "plan/items.h"

/* What can be resident or not, by itself: a weight, a cache, one expert. */
struct limit_part {
    int block;
    double bytes; /* of memory */
    double use; /* of them read in a round: 1; of an expert its probability; of a cache its filling
                 */
    bool cache; /* read in a round, but not for a chunk of a prompt */
};
struct limit_block {
    double gpu_flop_s, cpu_flop_s;   /* of its arithmetic, on either */
    double gpu_start_s, cpu_start_s; /* of starting its operators one after the other */
    double up_s, down_s, exchange_s; /* of a change of device into it */
};
struct limit_problem {
    struct limit_part *parts;
    int n_parts;
    struct limit_block *blocks;
    int n_blocks;
    double vram_bytes, dram_bytes, up_bytes; /* a second */
    /* Blocks take the time of starting their operators as well (limit_blocks): no bound of bytes
     * and arithmetic, but no schedule is without. */
    bool with_starts;
    double end_s; /* from the device to the host at the end */
};
/* A round of n_tokens after depth tokens. In the arena. */
void limit_problem_of(struct arena *arena, const struct items *items, double n_tokens, double depth,
                      struct limit_problem *out);

enum limit_binds { LIMIT_VRAM, LIMIT_GPU, LIMIT_DRAM, LIMIT_LINK, N_LIMITS };
const char *limit_binds_name(enum limit_binds binds); /* "vram", "gpu", "dram", "link" */

struct limit {
    double round_s;
    enum limit_binds binds;
    double resident_bytes; /* of the budget, used */
    double hit;            /* share of the bytes read that is resident */
    int n_divided;         /* blocks of which a part is resident: S6b */
};
/* S6: max(V / B_vram, F / P_g, D / B_dram) with what is used most resident, up to the budget. D
 * must leave DRAM whoever computes. */
struct limit limit_round(const struct limit_problem *p, double budget_bytes);
/* S6b: blocks follow each other; each has the share resident that is best, of one budget. Where the
 * round changes device the exchange costs what the profile says (struct limit_problem): down and up
 * again around a divided block among resident ones, an exchange between divided ones. */
struct limit limit_blocks(const struct limit_problem *p, double budget_bytes);
/* A chunk of a prompt: max(F / (P_g + P_c), streamed bytes / B_up): of the weights in use what is
 * not resident. */
struct limit limit_prefill(const struct limit_problem *p, double budget_bytes);

/* Probabilities of a token's experts, the most used first, of which any share s receives s^exponent
 * of the choices: p (n_experts), sum n_used; none above 1. exponent 1: uniform. */
void limit_popularity(double exponent, int n_experts, int n_used, double *p);
