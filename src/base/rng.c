#include "base/rng.h"

#include <math.h>

/* Blackman & Vigna, "Scrambled linear pseudorandom number generators" (2021): xoshiro256**. */
static uint64_t rotate_left(uint64_t x, int k) {
    return x << k | x >> (64 - k);
}

void rng_seed(struct rng *r, uint64_t seed) {
    for (int i = 0; i < 4; i++) { /* splitmix64: no seed gives the all-zero state */
        uint64_t z = seed += 0x9E3779B97F4A7C15u;
        z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
        z = (z ^ z >> 27) * 0x94D049BB133111EBu;
        r->s[i] = z ^ z >> 31;
    }
}

uint64_t rng_next(struct rng *r) {
    uint64_t *s = r->s, result = rotate_left(s[1] * 5, 7) * 9, t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = rotate_left(s[3], 45);
    return result;
}

/* Lemire, "Fast random integer generation in an interval" (2019): the product's high half, with
 * the few low halves that would be biased drawn again. */
uint32_t rng_below(struct rng *r, uint32_t n) {
    REQUIRE(n > 0);
    uint32_t threshold = -n % n;
    uint64_t product;
    do {
        product = (rng_next(r) >> 32) * n;
    } while ((uint32_t)product < threshold);
    return (uint32_t)(product >> 32);
}

double rng_unit(struct rng *r) {
    return (double)(rng_next(r) >> 11) * 0x1p-53;
}

/* Box-Muller; the second value is dropped so that the state stays four words. */
float rng_normal(struct rng *r) {
    double u = 1.0 - rng_unit(r), v = rng_unit(r); /* u in (0, 1] */
    return (float)(sqrt(-2.0 * log(u)) * cos(6.283185307179586 * v));
}
