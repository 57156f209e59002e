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
};
struct limit_block {
    double gpu_flop_s, cpu_flop_s; /* of its products, on either */
};
struct limit_problem {
    struct limit_part *parts;
    int n_parts;
    struct limit_block *blocks;
    int n_blocks;
    double vram_bytes, dram_bytes, up_bytes; /* a second */
    double weight_bytes;                     /* of all parts but caches */
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
/* S6b: blocks follow each other; each has the share resident that is best, of one budget, and a
 * divided one costs exchange_s. */
struct limit limit_blocks(const struct limit_problem *p, double budget_bytes, double exchange_s);
/* A chunk of a prompt: max(F / (P_g + P_c), streamed bytes / B_up). */
struct limit limit_prefill(const struct limit_problem *p, double budget_bytes);

/* Probabilities of a token's experts, the most used first, of which any share s receives s^exponent
 * of the choices: p (n_experts), sum n_used; none above 1. exponent 1: uniform. */
void limit_popularity(double exponent, int n_experts, int n_used, double *p);
