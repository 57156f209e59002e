/*
 * Book-keeping of recurrent state: which slot holds which sequence's state. It holds no numbers and
 * knows no device: a slot is an id, and every recurrent operator indexes its slots with it
 * (backend.h). A state cannot be cut: a sequence goes back to a snapshot or to its beginning.
 *
 * Slots are reference-counted, and a snapshot is a slot that is not given back: no state is ever
 * copied. A round works in place where only its sequence holds the slot, which saves a third of the
 * memory traffic (a line that is written elsewhere is read first); else, or in a pool that does
 * nothing in place, it leaves its state in another slot than the one it began with. All slots that
 * can be needed are reserved at open. Called by sessions, by one thread at a time.
 */
#pragma once

#include "base/base.h"

enum { STATE_SNAPSHOTS = 3 }; /* a sequence remembers the last so many */

struct state_pool;

/* Read freely; changed by the functions below only. */
struct state_seq {
    struct state_pool *pool;
    int32_t slot; /* after its tokens; STATE_NONE of backend.h: there are none */
    int32_t next; /* of the round that goes on, or STATE_NONE */
    struct state_snapshot {
        size_t n_tokens;
        int32_t slot;
    } snapshots[STATE_SNAPSHOTS]; /* (n_snapshots) ascending */
    int n_snapshots;
};

/* What n_seqs sequences may hold at once; 0 if it does not fit an int32. */
int state_slots_needed(int n_seqs, bool in_place);
struct state_pool *state_pool_open(int n_slots, bool in_place);
void state_pool_close(struct state_pool *pool); /* its sequences are closed; accepts NULL */
/* For tests. */
int state_free_slots(const struct state_pool *pool);
/* Somebody holds it. */
bool state_slot_is_used(const struct state_pool *pool, int32_t slot);

/* An empty sequence, owned. */
struct state_seq *state_seq_open(struct state_pool *pool);
void state_seq_close(struct state_seq *seq); /* accepts NULL */

/* A slot for the state after the coming round, which ends with one of the two next calls. A round
 * that a device has begun and not ended has spoilt the state if it worked in place: the sequence is
 * then evaluated again from its tokens, as everything is that a lost device had (recover.c). */
int32_t state_begin(struct state_seq *seq);
void state_commit(struct state_seq *seq);
void state_abort(struct state_seq *seq);

/* Remembers the state, which is that after n_tokens; the oldest snapshot makes room. */
void state_remember(struct state_seq *seq, size_t n_tokens);
/* Goes back to the last snapshot at n tokens or before, or to the beginning; what was remembered of
 * later ones is forgotten. Returns its tokens. */
size_t state_rewind(struct state_seq *seq, size_t n);
