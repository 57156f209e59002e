/* Samplers as the tests want them. */
#pragma once

#include "run/sampler.h"
#include "support.h"

enum { SAMPLING_N_CTX = 1000 };

/* Every step off: draws follow softmax(logits). */
static inline ats_sampling sampling_plain(void) {
    ats_sampling p;
    sampler_defaults(&p);
    p.temperature = 1;
    p.top_k = 0;
    p.top_p = 1;
    p.min_p = 0;
    p.seed = 1;
    return p;
}

static inline ats_sampling sampling_greedy(void) {
    ats_sampling p = sampling_plain();
    p.temperature = 0;
    return p;
}

static inline struct sampler *sampling_open(const ats_sampling *params, int n_vocab) {
    struct sampler *s;
    TEST_OK(sampler_open(params, &(struct sampler_env){.n_vocab = n_vocab, .n_ctx = SAMPLING_N_CTX},
                         &s));
    return s;
}

/* The first pick after a history. */
static inline int32_t sampling_pick(const ats_sampling *params, const float *logits, int n_vocab,
                                    const int32_t *history, size_t n) {
    struct sampler *s = sampling_open(params, n_vocab);
    for (size_t i = 0; i < n; i++)
        sampler_accept(s, history[i]);
    int32_t token = sampler_pick(s, logits);
    sampler_close(s);
    return token;
}
