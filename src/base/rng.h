/* Small seeded random numbers (xoshiro256**, seeded by splitmix64): same seed, same numbers. */
#pragma once

#include "base/base.h"

struct rng {
    uint64_t s[4];
};

/* Of these rng_normal is called by tests only: it makes their weights. */
void rng_seed(struct rng *r, uint64_t seed);
uint64_t rng_next(struct rng *r);
uint32_t rng_below(struct rng *r, uint32_t n); /* uniform in [0, n), n >= 1, unbiased */
double rng_unit(struct rng *r);                /* uniform in [0, 1), 53 bits */
float rng_normal(struct rng *r);               /* mean 0, deviation 1 */
