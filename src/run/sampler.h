/*
 * Picks tokens from logits: the steps of struct ats_sampling (include/atsinfer.h) in the order
 * given there, and the state of one generation: random numbers, history, mirostat's mu.
 *
 * It knows no engine and no tokenizer: the engine turns the strings of DRY's breakers into token
 * sequences, applies the file's defaults, and wraps this as ats_sampler. One sampler is used by
 * one thread at a time; its choices depend on its parameters, its history and the logits only.
 *
 * Logits may hold anything. A NaN counts as -inf, and what is -inf in the end is never picked; if
 * nothing else is left, the pick is the lowest id that no bias of -inf bans (0 if all are banned).
 */
#pragma once

#include "base/error.h"
#include "run/dry.h"

struct sampler;

/* What the sampler must know of the model. */
struct sampler_env {
    int n_vocab;
    int n_ctx; /* what "the context" means as a number of last tokens */
    /* (n_breakers) token sequences that contain a breaker of DRY, copied: for each string every
     * token whose text contains it, as a sequence of one, and the ways in which it is spread over
     * several tokens. Not looked at unless dry_multiplier is set. */
    const struct dry_breaker *breakers;
    int n_breakers;
};

/* Longest breaker string, and most of them, and most tokens of one sequence. */
enum { DRY_BREAKER_BYTES_MAX = 128, DRY_BREAKERS_MAX = 256, DRY_BREAKER_TOKENS_MAX = 128 };

/* The strings that NULL stands for: newline, colon, double quote, asterisk. */
enum { DRY_N_DEFAULT_BREAKERS = 4 };
extern const char *const dry_default_breakers[DRY_N_DEFAULT_BREAKERS];

/* The defaults written in atsinfer.h, with a random seed. */
void sampler_defaults(ats_sampling *out);

/* BAD_ARGUMENT, naming the field, if one is out of range. Parameters of DRY, XTC and mirostat
 * count only if the step is on. top_k and the last_n's: -1 as documented, top_k -1 as 0. */
MUST_CHECK ats_status sampler_check(const ats_sampling *params, int n_vocab);

/* Checks and copies everything. *out is owned. Errors: BAD_ARGUMENT. */
MUST_CHECK ats_status sampler_open(const ats_sampling *params, const struct sampler_env *env,
                                   struct sampler **out);
void sampler_close(struct sampler *sampler); /* accepts NULL */

/* Takes note of a token that the sampler did not pick. Ids outside the vocabulary are ignored. */
void sampler_accept(struct sampler *sampler, int32_t token);
/* Picks from logits (n_vocab), which stay unchanged, and takes note of the token. */
int32_t sampler_pick(struct sampler *sampler, const float *logits);
