/*
 * The ledger (house.md 7): every byte that a program will take on every device, and of which
 * memory, added up before any tensor data is read. Arithmetic over what the backends say; reserves
 * nothing. Called by the executor, and by whoever chooses between plans.
 */
#pragma once

#include "model/model.h"
#include "run/programs.h"

#define EXECUTOR_MAX_DEVICES                                                                       \
    4 /* a residual add of two partial sums has 2 inputs a device: STEP_MAX_IN */

struct executor_options {
    int n_tokens, n_rows;        /* the most a round may have */
    int n_ctx;                   /* positions a sequence may reach */
    int n_pages[KV_MAX_CLASSES]; /* of every cache of a layer class */
    int n_states;                /* slots of every recurrent operator's state */
    enum kv_type type_k, type_v;
    unsigned cpu_isa_mask;                      /* kernels of what the host does itself */
    int64_t host_bytes;                         /* host memory that may be promised */
    int64_t device_bytes[EXECUTOR_MAX_DEVICES]; /* of a GPU's memory; 0: what it has free */
};

static inline double ledger_mib(int64_t bytes) { /* as people read them */
    return (double)bytes / (1 << 20);
}

/* Bytes promised on one device. */
struct executor_ledger {
    int64_t weight_bytes; /* copies in its memory */
    int64_t kv_bytes, state_bytes, work_bytes;
    int64_t slot_bytes;     /* all its slots */
    int64_t streamed_bytes; /* of the host, weights that come to its slots: pinned, */
    int64_t pageable_bytes; /* or not; one of the two is 0 */
    int64_t pinned_bytes;   /* host memory beside it that devices reach: exchange, staging */
    int64_t mapped_bytes;   /* of the file's map, read in place; can be read again: not counted */
    struct backend_memory memory;
    int64_t limit_bytes; /* of its memory that may be promised */
};
/* What a device takes of its memory for more than a round's buffers. */
static inline int64_t ledger_kept_bytes(const struct executor_ledger *l) {
    return l->weight_bytes + l->kv_bytes + l->state_bytes + l->slot_bytes;
}
static inline int64_t ledger_own_bytes(const struct executor_ledger *l) {
    return ledger_kept_bytes(l) + l->work_bytes;
}
/* What it takes of the host's beside that. */
static inline int64_t ledger_host_bytes(const struct executor_ledger *l) {
    return l->pinned_bytes + l->streamed_bytes + l->pageable_bytes;
}

/* What may be promised of a GPU's memory: what is free, less some room; or all there is, where the
 * driver does not say what is free. */
int64_t ledger_limit_bytes(const struct backend_memory *m);

struct ledger {
    struct executor_ledger devices[EXECUTOR_MAX_DEVICES];
    int n_devices;
    int64_t host_bytes; /* promised of the host's memory by all of them */
    int64_t host_limit_bytes;
    int n_ctx;
    bool *raw; /* (n_holdings) memory is short: it stays as it is in the file's map */
    int64_t *slot_offset[MAX_PROGRAMS];       /* (n_shards) of streamed ones */
    int64_t slot_bytes[EXECUTOR_MAX_DEVICES]; /* of each slot */
};

/* Counts a plan's programs on devices (n_devices of the first): what they share once, and what only
 * one of them works with at a time as the larger one needs it. Arrays of *out lie in the arena. */
void ledger_count(struct arena *arena, const struct model *model, const struct programs *programs,
                  struct backend *const *devices, const struct executor_options *options,
                  struct ledger *out);
/* Sums outlive the arena: what is said of single shards is left out. */
static inline void ledger_forget(struct ledger *l) {
    l->raw = NULL;
    for (int k = 0; k < MAX_PROGRAMS; k++)
        l->slot_offset[k] = NULL;
}
/* UNSUPPORTED if heads do not fit the types of the KV cache: before anything is counted. */
MUST_CHECK ats_status kv_types_check(const struct graph *g, const struct executor_options *options);
/* NO_MEMORY with the sums if a memory is too small.. */
MUST_CHECK ats_status ledger_check(const struct ledger *l, struct backend *const *devices);

/* A shard as it stands in the file. */
struct weight_source shard_source(const struct model *model, const struct program_shard *shard,
                                  bool raw);
struct kv_layout program_kv_layout(const struct model *model, const struct program_kv *kv,
                                   const struct executor_options *options);
struct state_layout program_state_layout(const struct model *model,
                                         const struct program_state *state,
                                         const struct executor_options *options);
/* What a device must be ready for. exchange: its address, if there is one yet. */
struct backend_limits device_limits(const struct model *model, const struct programs *programs,
                                    const struct executor_options *options, int device,
                                    void *exchange);
