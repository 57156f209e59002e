#include "run/state.h"

#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"

struct state_pool {
    int n_slots, n_free;
    int32_t *free_slots; /* (n_free) */
    int32_t *refs;       /* (n_slots) */
    bool in_place;
};

/* After a round, before it where that is another slot, and what is remembered. A state that is
 * remembered and goes on is one of these. */
int state_slots_needed(int n_seqs, bool in_place) {
    int64_t total = (int64_t)n_seqs * ((in_place ? 1 : 2) + STATE_SNAPSHOTS);
    return total <= INT32_MAX ? (int)total : 0;
}

struct state_pool *state_pool_open(int n_slots, bool in_place) {
    struct state_pool *pool = xcalloc(1, sizeof *pool);
    pool->in_place = in_place;
    pool->n_slots = pool->n_free = n_slots;
    pool->free_slots = xcalloc((size_t)n_slots, sizeof *pool->free_slots);
    pool->refs = xcalloc((size_t)n_slots, sizeof *pool->refs);
    for (int i = 0; i < n_slots; i++)
        pool->free_slots[i] = n_slots - 1 - i;
    return pool;
}

void state_pool_close(struct state_pool *pool) {
    if (!pool) return;
    REQUIRE(pool->n_free == pool->n_slots);
    free(pool->free_slots);
    free(pool->refs);
    free(pool);
}

int state_free_slots(const struct state_pool *pool) {
    return pool->n_free;
}

bool state_slot_is_used(const struct state_pool *pool, int32_t slot) {
    return pool->refs[slot] > 0;
}

static int32_t slot_hold(struct state_pool *pool, int32_t slot) {
    if (slot != STATE_NONE) pool->refs[slot]++;
    return slot;
}

static void slot_release(struct state_pool *pool, int32_t slot) {
    if (slot == STATE_NONE) return;
    REQUIRE(pool->refs[slot] > 0);
    if (--pool->refs[slot] == 0) pool->free_slots[pool->n_free++] = slot;
}

struct state_seq *state_seq_open(struct state_pool *pool) {
    struct state_seq *seq = xcalloc(1, sizeof *seq);
    seq->pool = pool;
    seq->slot = seq->next = STATE_NONE;
    return seq;
}

void state_seq_close(struct state_seq *seq) {
    if (!seq) return;
    state_rewind(seq, 0);
    slot_release(seq->pool, seq->next);
    free(seq);
}

int32_t state_begin(struct state_seq *seq) {
    struct state_pool *pool = seq->pool;
    REQUIRE(seq->next == STATE_NONE);
    bool alone = seq->slot != STATE_NONE && pool->refs[seq->slot] == 1;
    if (pool->in_place && alone) return seq->next = slot_hold(pool, seq->slot);
    REQUIRE(pool->n_free > 0);
    return seq->next = slot_hold(pool, pool->free_slots[--pool->n_free]);
}

void state_commit(struct state_seq *seq) {
    REQUIRE(seq->next != STATE_NONE);
    slot_release(seq->pool, seq->slot);
    seq->slot = seq->next;
    seq->next = STATE_NONE;
}

void state_abort(struct state_seq *seq) {
    slot_release(seq->pool, seq->next);
    seq->next = STATE_NONE;
}

void state_remember(struct state_seq *seq, size_t n_tokens) {
    struct state_snapshot *s = seq->snapshots;
    if (seq->slot == STATE_NONE) return; /* going back to the beginning costs nothing */
    if (seq->n_snapshots > 0 && s[seq->n_snapshots - 1].n_tokens == n_tokens) return;
    if (seq->n_snapshots == STATE_SNAPSHOTS) {
        slot_release(seq->pool, s[0].slot);
        memmove(s, s + 1, (size_t)--seq->n_snapshots * sizeof *s);
    }
    s[seq->n_snapshots++] = (struct state_snapshot){n_tokens, slot_hold(seq->pool, seq->slot)};
}

size_t state_rewind(struct state_seq *seq, size_t n) {
    struct state_snapshot *s = seq->snapshots;
    while (seq->n_snapshots > 0 && s[seq->n_snapshots - 1].n_tokens > n)
        slot_release(seq->pool, s[--seq->n_snapshots].slot);
    const struct state_snapshot *last = seq->n_snapshots > 0 ? &s[seq->n_snapshots - 1] : NULL;
    int32_t old = seq->slot;
    seq->slot = last ? slot_hold(seq->pool, last->slot) : STATE_NONE;
    slot_release(seq->pool, old);
    return last ? last->n_tokens : 0;
}
