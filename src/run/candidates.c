#include "run/candidates.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "base/arena.h"

/* Logits looked at in one go: whether any of them matters is a test that the compiler vectorises.
 */
enum { BLOCK = 32 };
/* Up to here a heap holds the best; beyond, selection over all candidates is cheaper. */
enum { HEAP_MAX = 1024 };

/* What a selection orders by. */
struct rank {
    float key;     /* smaller is better; equal keys: lower index */
    float weight;  /* what the candidate contributes to the amount wanted */
    int32_t index; /* in items */
};

void candidates_free(struct candidates *c) {
    free(c->items);
    free(c->ranks);
    *c = (struct candidates){0};
}

/* ------------------------------------------------------------------------------------ gathering */

/* +inf counts as the largest finite float. */
static float finite_logit(float x) {
    return x < FLT_MAX ? x : FLT_MAX;
}

int32_t logits_argmax(const float *logits, int n_vocab) {
    float best[BLOCK];
    for (int j = 0; j < BLOCK; j++)
        best[j] = -INFINITY;
    int i = 0;
    for (; i + BLOCK <= n_vocab; i += BLOCK) /* a NaN is never greater */
        for (int j = 0; j < BLOCK; j++)
            best[j] = logits[i + j] > best[j] ? logits[i + j] : best[j];
    for (; i < n_vocab; i++)
        best[0] = logits[i] > best[0] ? logits[i] : best[0];
    float max = -INFINITY;
    for (int j = 0; j < BLOCK; j++)
        max = best[j] > max ? best[j] : max;
    if (max == -INFINITY) return -1;
    i = 0;
    while (logits[i] != max)
        i++;
    return i;
}

static struct candidate *items_reserve(struct candidates *c, size_t n) {
    c->n = 0;
    return GROW(c->items, 0, c->cap, n);
}

void candidates_gather(struct candidates *c, const float *logits, int n_vocab) {
    struct candidate *items = items_reserve(c, (size_t)n_vocab);
    size_t n = 0;
    for (int i = 0; i < n_vocab; i++)
        if (logits[i] > -INFINITY)
            items[n++] = (struct candidate){.id = i, .logit = finite_logit(logits[i])};
    c->n = n;
}

static bool is_worse(const struct candidate *a, const struct candidate *b) {
    return a->logit < b->logit || (a->logit == b->logit && a->id > b->id);
}

/* Restores the heap (the worst on top) below place i. */
static void heap_sink(struct candidate *heap, size_t n, size_t i) {
    struct candidate moved = heap[i];
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && is_worse(&heap[child + 1], &heap[child])) child++;
        if (!is_worse(&heap[child], &moved)) break;
        heap[i] = heap[child];
    }
    heap[i] = moved;
}

static void heap_offer(struct candidates *c, size_t k, struct candidate new) {
    struct candidate *heap = c->items;
    if (c->n < k) {
        heap[c->n++] = new;
        if (c->n == k)
            for (size_t i = k / 2; i-- > 0;)
                heap_sink(heap, k, i);
    } else if (new.logit > heap[0].logit) { /* an equal one has the higher id */
        heap[0] = new;
        heap_sink(heap, k, 0);
    }
}

static int compare_ids(const void *a, const void *b) {
    int32_t x = ((const struct candidate *)a)->id, y = ((const struct candidate *)b)->id;
    return (x > y) - (x < y);
}

static void gather_top_heap(struct candidates *c, const float *logits, int n_vocab, size_t k) {
    items_reserve(c, k);
    for (int at = 0; at < n_vocab; at += BLOCK) {
        float bar = c->n == k ? c->items[0].logit : -INFINITY;
        if (at + BLOCK <= n_vocab) {
            int any = 0;
            for (int j = 0; j < BLOCK; j++)
                any |= logits[at + j] > bar;
            if (!any) continue;
        }
        for (int i = at; i < at + BLOCK && i < n_vocab; i++)
            if (logits[i] > -INFINITY)
                heap_offer(c, k, (struct candidate){.id = i, .logit = finite_logit(logits[i])});
    }
    qsort(c->items, c->n, sizeof *c->items, compare_ids);
}

/* ------------------------------------------------------------------------------------ selection */

static bool rank_less(const struct rank *a, const struct rank *b) {
    return a->key < b->key || (a->key == b->key && a->index < b->index);
}

static void rank_swap(struct rank *a, struct rank *b) {
    struct rank t = *a;
    *a = *b;
    *b = t;
}

/* Moves a pivot near the middle of r[lo..hi) to its place there, smaller ones before it; adds the
 * weights of the smaller ones. The pivot is the median of three places picked by a fixed sequence,
 * so that no order of logits that a model produces is a bad one. */
static size_t rank_partition(struct rank *r, size_t lo, size_t hi, uint64_t *state, double *sum) {
    size_t at[3];
    for (int i = 0; i < 3; i++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        at[i] = lo + (size_t)(*state >> 33) % (hi - lo);
    }
    size_t low = rank_less(&r[at[0]], &r[at[1]]) ? at[0] : at[1], high = at[0] + at[1] - low;
    size_t mid = rank_less(&r[at[2]], &r[low])    ? low
                 : rank_less(&r[at[2]], &r[high]) ? at[2]
                                                  : high;
    rank_swap(&r[mid], &r[hi - 1]);
    size_t end = lo;
    *sum = 0;
    for (size_t i = lo; i < hi - 1; i++)
        if (rank_less(&r[i], &r[hi - 1])) {
            *sum += (double)r[i].weight;
            rank_swap(&r[i], &r[end++]);
        }
    rank_swap(&r[end], &r[hi - 1]);
    return end;
}

/* The last of the fewest best ranks (n >= 1) whose weights reach `wanted`; the very last one if
 * they never do. O(n) on average. */
static struct rank rank_cutoff(struct rank *r, size_t n, double wanted) {
    size_t lo = 0, hi = n;
    uint64_t state = n;
    while (lo < hi) {
        double sum;
        size_t pivot = rank_partition(r, lo, hi, &state, &sum);
        if (pivot > lo && sum >= wanted) {
            hi = pivot;
        } else if (sum + (double)r[pivot].weight >= wanted) {
            return r[pivot];
        } else {
            wanted -= sum + (double)r[pivot].weight;
            lo = pivot + 1;
        }
    }
    return r[hi - 1]; /* sums in another order: a rounding error short */
}

static struct rank *ranks_reserve(struct candidates *c) {
    return GROW(c->ranks, 0, c->ranks_cap, c->n);
}

void candidates_gather_top(struct candidates *c, const float *logits, int n_vocab, int k) {
    REQUIRE(k >= 1);
    if (k <= HEAP_MAX && k < n_vocab) {
        gather_top_heap(c, logits, n_vocab, (size_t)k);
        return;
    }
    candidates_gather(c, logits, n_vocab);
    if ((size_t)k >= c->n) return;
    struct rank *ranks = ranks_reserve(c);
    for (size_t i = 0; i < c->n; i++)
        ranks[i] = (struct rank){-c->items[i].logit, 1, (int32_t)i};
    struct rank last = rank_cutoff(ranks, c->n, k);
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        struct rank r = {-c->items[i].logit, 1, (int32_t)i};
        if (!rank_less(&last, &r)) c->items[n++] = c->items[i];
    }
    c->n = n;
}

/* -------------------------------------------------------------------------------- probabilities */

void candidates_weigh(struct candidates *c, float temperature) {
    float max = -FLT_MAX;
    for (size_t i = 0; i < c->n; i++)
        max = fmaxf(max, c->items[i].logit);
    double sum = 0;
    for (size_t i = 0; i < c->n; i++) { /* divided: 1 / temperature may be infinite */
        c->items[i].p = expf((c->items[i].logit - max) / temperature);
        sum += (double)c->items[i].p;
    }
    float scale = (float)(1 / sum); /* sum >= 1: the largest weighs 1 */
    for (size_t i = 0; i < c->n; i++)
        c->items[i].p *= scale;
}

void candidates_keep_mass(struct candidates *c, float mass) {
    REQUIRE(c->n > 0);
    /* All candidates below this have less than 1 - mass together: the cut-off is not among them.
     * That leaves few to select from, even of a whole vocabulary. */
    float floor_p = (1 - mass) / (2 * (float)c->n);
    struct rank *ranks = ranks_reserve(c);
    size_t n_ranks = 0;
    for (size_t i = 0; i < c->n; i++) {
        float p = c->items[i].p;
        if (p >= floor_p) ranks[n_ranks++] = (struct rank){-p, p, (int32_t)i};
    }
    struct rank last = rank_cutoff(ranks, n_ranks, (double)mass);
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) {
        struct rank r = {-c->items[i].p, 0, (int32_t)i};
        if (!rank_less(&last, &r)) c->items[n++] = c->items[i];
    }
    c->n = n;
}

void candidates_keep_typical(struct candidates *c, float mass) {
    REQUIRE(c->n > 0);
    struct rank *ranks = ranks_reserve(c);
    double entropy = 0;
    for (size_t i = 0; i < c->n; i++) {
        float p = c->items[i].p;
        if (p > 0) entropy -= (double)p * log((double)p);
    }
    size_t n = 0;
    for (size_t i = 0; i < c->n; i++) { /* p == 0: the key is infinite, the worst */
        float p = c->items[i].p, key = fabsf(-logf(p) - (float)entropy);
        ranks[i] = (struct rank){key, p, (int32_t)i};
    }
    struct rank last = rank_cutoff(ranks, c->n, (double)mass);
    for (size_t i = 0; i < c->n; i++) {
        float p = c->items[i].p, key = fabsf(-logf(p) - (float)entropy);
        struct rank r = {key, 0, (int32_t)i};
        if (!rank_less(&last, &r)) c->items[n++] = c->items[i];
    }
    c->n = n;
}

size_t candidates_best(const struct candidates *c) {
    REQUIRE(c->n > 0);
    size_t best = 0;
    for (size_t i = 1; i < c->n; i++)
        if (c->items[i].p > c->items[best].p) best = i;
    return best;
}

void candidates_keep_above(struct candidates *c, float threshold) {
    size_t n = 0, best = candidates_best(c);
    if (!(c->items[best].p >= threshold)) {
        c->items[0] = c->items[best];
        c->n = 1;
        return;
    }
    for (size_t i = 0; i < c->n; i++)
        if (c->items[i].p >= threshold) c->items[n++] = c->items[i];
    c->n = n;
}

void candidates_drop_top_choices(struct candidates *c, float threshold) {
    size_t n_choices = 0, least = 0, n = 0;
    for (size_t i = 0; i < c->n; i++)
        if (c->items[i].p >= threshold)
            if (n_choices++ == 0 || c->items[i].p <= c->items[least].p) least = i;
    if (n_choices < 2) return;
    for (size_t i = 0; i < c->n; i++)
        if (c->items[i].p < threshold || i == least) c->items[n++] = c->items[i];
    c->n = n;
}

size_t candidates_draw(const struct candidates *c, double u) {
    REQUIRE(c->n > 0);
    double sum = 0;
    for (size_t i = 0; i < c->n; i++)
        sum += (double)c->items[i].p;
    double left = u * sum;
    size_t last = 0;
    for (size_t i = 0; i < c->n; i++) {
        if (!(c->items[i].p > 0)) continue; /* never drawn, even at the very end */
        last = i;
        left -= (double)c->items[i].p;
        if (left < 0) break;
    }
    return last;
}
