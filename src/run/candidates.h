/*
 * The tokens still in the running for one draw, and the operations that the steps of sampling are
 * made of: gathering, weighing, keeping the best, drawing. It knows no parameters and no history
 * (sampler.h does). Called by the sampler only.
 *
 * Candidates stay in ascending order of id throughout, never sorted by probability: the draw runs
 * over ids, so that a logit that differs in its last bits hardly ever changes the token drawn, and
 * large vocabularies are never sorted.
 *
 * Logits may hold anything: a NaN or -inf never becomes a candidate, +inf counts as the largest
 * finite float.
 */
#pragma once

#include "base/base.h"

struct candidate {
    int32_t id;
    float logit; /* finite */
    float p;     /* set by candidates_weigh */
};

struct rank;
/* A zeroed one is empty. */
struct candidates {
    struct candidate *items; /* (n) owned, ascending id */
    size_t n, cap;
    struct rank *ranks; /* scratch, owned */
    size_t ranks_cap;
};

void candidates_free(struct candidates *c);

/* Id of the largest logit, the lowest one among equals; -1 if there is none above -inf. */
int32_t logits_argmax(const float *logits, int n_vocab);

/* All of logits (n_vocab) that may be drawn. */
void candidates_gather(struct candidates *c, const float *logits, int n_vocab);
/* The k largest of them (k >= 1); among equals, lower ids first. O(n_vocab) on average. */
void candidates_gather_top(struct candidates *c, const float *logits, int n_vocab, int k);

/* p = softmax(logit / temperature), temperature > 0. */
void candidates_weigh(struct candidates *c, float temperature);

/* The following need p (candidates_weigh) and leave it as it is, no longer adding up to 1; none
 * takes the last candidate away. n >= 1. */

/* Keeps the fewest most probable candidates that have mass or more together (top-p). */
void candidates_keep_mass(struct candidates *c, float mass);
/* Keeps the fewest whose surprise -ln p lies closest to the entropy and that have mass or more
 * together (Meister et al. 2022, "Locally typical sampling", section 3). */
void candidates_keep_typical(struct candidates *c, float mass);
/* Keeps those with p >= threshold, or the most probable alone if there are none. */
void candidates_keep_above(struct candidates *c, float threshold);
/* Takes away all candidates with p >= threshold but the least probable of these. */
void candidates_drop_top_choices(struct candidates *c, float threshold);

/* Index of the most probable candidate, the lowest id among equals. */
size_t candidates_best(const struct candidates *c);
/* Index of the candidate at u in [0, 1) of the added up p. */
size_t candidates_draw(const struct candidates *c, double u);
