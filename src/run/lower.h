/*
 * From WHERE to a list of steps: a graph and a plan become a program, the steps of every device
 * with the copies between them, and the segments in which they are submitted. Arithmetic only;
 * built once per plan, then replayed by executor.c for every round.
 *
 * Rules (scheduling.md 3 and 5). A placed operator runs where its parts say. What has no weight is
 * computed on the device that needs it, or where fewer bytes have to move; norms and residual adds
 * are done on both sides of a split, a route once. Partial sums are exchanged once and added in
 * device order. Values cross in the exchange, host memory that all devices reach. Streamed parts
 * are copied into slots in the order of their steps, each slot as soon as it has been read.
 */
#pragma once

#include "backend/backend.h"
#include "plan/plan.h"

/* Part of a weight that a device holds; several steps may share it if it stays there. */
struct program_shard {
    int device, weight;
    enum axis axis; /* AXIS_COLS of a vector: a range of its elements; AXIS_EXPERTS: whole ones */
    int begin, end;
    int transfer; /* that brings it to the device in every round, -1: it stays there */
};
/* Cache of a layer's KV heads on a device. */
struct program_kv {
    int device, op; /* the ATTENTION op */
    int head_begin, head_end;
};
/* State of a recurrent op's columns or heads on a device. */
struct program_state {
    int device, op;
    int begin, end;
};
struct program_step {
    int device;
    struct step step;              /* weight, bias, kv, state are filled in by the executor */
    int shard, bias, kv, state;    /* indices, -1: none */
    int experts[N_EXPERT_WEIGHTS]; /* shards; -1 but for EXPERTS */
    int expert_biases[N_EXPERT_WEIGHTS];
    int transfer; /* that brings its weights, -1 */
};
/* Streamed shards on their way to a device: those of consecutive steps, as many as are not larger
 * than the largest of the device, in about equal lots. They stand in the slot in their order in the
 * program. */
struct program_transfer {
    int device;
    int slot;    /* of the device; transfers take them in turn */
    int ordinal; /* 1, 2, ... on its device's timeline of copies */
    /* Ordinal of the device's segment that must be done before, since it reads what stands in the
     * slot. Ahead: that is one of the round before, in which the transfer is submitted already,
     * behind everything else. (0, which only tests make: nothing is waited for.) */
    int wait;
    bool ahead;
    int first_step, last_step; /* that read it */
};
/* Steps of one device that are submitted together. */
struct program_segment {
    int device;
    int step_begin, step_end; /* in `order` */
    struct program_wait {
        int device, ordinal;
    } * waits; /* segments that must be done before */
    int n_waits;
    int arrival; /* ordinal of the transfer that must be done before, 0: none */
    int release; /* transfer that is submitted behind it, since its slot is free then; -1: none */
    int ordinal; /* 1, 2, ... within its device */
    int first_step;
};
struct program {
    int n_devices;
    struct program_step *steps; /* in the order of emission */
    int n_steps;
    int *order; /* (n_steps) step indices, device by device */
    struct program_shard *shards;
    int n_shards;
    struct program_kv *kvs;
    int n_kvs;
    struct program_state *states;
    int n_states;
    struct program_segment *segments; /* by the first step's index: a legal order to submit */
    int n_segments;
    struct program_transfer *transfers; /* of each device in the order of its steps */
    int n_transfers;
    int *n_slots;         /* (n_devices) in use */
    int64_t *local_bytes; /* (n_devices) */
    int64_t exchange_bytes;
    int64_t logits_offset_bytes; /* in the exchange: (n_rows, n_vocab) */
    int n_copies;                /* steps that cross devices */
};

/* n_tokens, n_rows: the most a round may have. The plan must have passed plan_check. Everything in
 * the arena. */
struct program *program_lower(struct arena *arena, const struct graph *g, const struct plan *plan,
                              int n_tokens, int n_rows);
