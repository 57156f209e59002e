/*
 * DRY ("don't repeat yourself"): lowers the logit of every token that would prolong a repetition.
 * If the text ends with a sequence that stood in it before, the token that followed it then gets
 * logit -= multiplier * base ^ (length of the longest such sequence - allowed_length). A sequence
 * never reaches back over a breaker (a newline, a quotation mark). Called by the sampler only.
 */
#pragma once

#include "base/base.h"

struct dry_params {
    float multiplier;
    float base;         /* >= 1 */
    int allowed_length; /* >= 1: shorter repetitions cost nothing */
};

/* Tokens that, one after the other, contain a breaker. */
struct dry_breaker {
    const int32_t *tokens; /* (n_tokens) ids below n_vocab */
    int n_tokens;          /* >= 1 */
};

struct dry;

/* breakers: (n_breakers), copied. Owned by the caller. */
struct dry *dry_open(const struct dry_params *params, const struct dry_breaker *breakers,
                     int n_breakers, int n_vocab);
void dry_close(struct dry *dry); /* accepts NULL */

/* Lowers logits (n_vocab) by what tokens (n), the end of the text, call for. Ids lie below n_vocab.
 * tally: (n_vocab) all zero, and again so on return. Linear in n but for breakers of many tokens.
 */
void dry_apply(struct dry *dry, const int32_t *tokens, size_t n, float *logits, int32_t *tally);
