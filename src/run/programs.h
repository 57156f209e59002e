/*
 * The programs of a plan: one for every round, or, where it has a partner for prompts, one for
 * rounds of few tokens and one for those of many. They share devices, exchange, caches, states and
 * the bytes of weights; here it is said who shares what. Arithmetic only. Read by the ledger, the
 * executor and whoever tells of its rounds.
 */
#pragma once

#include "run/lower.h"

enum { PROGRAM_DECODE, PROGRAM_PROMPTS, MAX_PROGRAMS };

struct programs {
    struct program *at[MAX_PROGRAMS];
    int n;
    int prompts_from; /* rounds of so many tokens and more follow the second, if there is one */
    /* Bytes of weights that are there once, whichever shards of whichever program read them. One
     * that is of a transfer (of none in particular) is a home in host memory: copies bring it to
     * the slots of its device, and processors read it where it stands. The others are in the memory
     * of their device. */
    struct program_shard *holdings;
    int n_holdings;
    int *holding[MAX_PROGRAMS]; /* (n_shards) of each shard */
    /* Caches and states are those of the first program: (n_kvs), (n_states) which of its. */
    int *kv[MAX_PROGRAMS], *state[MAX_PROGRAMS];
    int *n_slots;         /* (n_devices) as many as one of them needs; the same of */
    int64_t *local_bytes; /* (n_devices) */
    int64_t exchange_bytes;
};

/* n_tokens, n_rows: as program_lower has them. The plan has passed plan_check, and with its partner
 * plan_check_pair. devices: (plan->n_devices). Everything in the arena. */
void programs_lower(struct arena *arena, const struct graph *g, const struct plan *plan,
                    struct backend *const *devices, int n_tokens, int n_rows, struct programs *out);
/* Which of them a round of so many tokens follows. */
static inline int programs_of_round(const struct programs *p, int n_tokens) {
    return p->n > 1 && n_tokens >= p->prompts_from ? PROGRAM_PROMPTS : PROGRAM_DECODE;
}
static inline bool holding_is_home(const struct program_shard *holding) {
    return holding->transfer >= 0;
}

bool same_kv(const struct program_kv *a, const struct program_kv *b);
bool same_state(const struct program_state *a, const struct program_state *b);
