/* What lower.c (in which order parts are emitted), lower_parts.c (each kind of operator as steps),
 * lower_values.c (where values stand, what brings them), lower_stream.c (which weights come in
 * which slot), lower_order.c (in which order steps stand) and lower_memory.c (where buffers lie,
 * when steps may run) share; nobody else includes it. */
#pragma once

#include "run/lower.h"

struct range {
    int begin, end;
};
/* Columns of a value that a device holds: disjoint, ascending, apart. */
struct range_set {
    struct range *items;
    size_t n, cap;
};
struct value_state {
    struct range_set *have; /* (n_devices) */
    int *buffer;            /* (n_devices) its place there, -1 */
    int *partial;           /* (n_devices) place of the device's partial sum, -1 */
};

/* Memory of one value on one device, or in the exchange. Spans name buffers until they are placed;
 * lifetimes are step indices, known when the order is. */
struct buffer {
    int device; /* -1: exchange */
    int first_column, stride;
    bool rows;
    int64_t bytes, offset_bytes;
    int writer;   /* first step that writes it; -1: none */
    int last_use; /* step */
    int n_readers;
    int *readers; /* (n_devices) last reading step of each device, -1; exchange only */
};

struct lower_step {
    struct program_step s;
    int in[STEP_MAX_IN], out; /* buffers */
    int *wait;                /* (n_devices) latest step of that device to wait for, -1 */
    bool cut_after;           /* another device waits for it */
    bool early;               /* a copy that comes right behind what makes its input */
};

struct lowering {
    struct arena *arena;
    const struct graph *g;
    const struct plan *plan;
    int n_tokens, n_rows, n_devices;
    struct lower_step *steps;
    size_t n_steps, cap_steps;
    struct buffer *buffers;
    size_t n_buffers, cap_buffers;
    struct value_state *values; /* (n_values) */
    struct export_entry *exports;
    size_t n_exports, cap_exports;
    struct program *program;
    size_t cap_shards, cap_kvs, cap_states, cap_transfers;
    int logits_buffer;
    struct stream {
        int transfer;     /* that is being filled, -1 */
        int n;            /* transfers so far */
    } * streams;          /* (n_devices) */
    bool *opens_transfer; /* (plan->n_parts) it is the first of one */
};

/* lower_values.c */
/* Memory for columns from `first` on; device -1: in the exchange. */
int lower_add_buffer(struct lowering *l, int device, int first, int stride, bool rows);
/* The place of a value on a device; logits stand in the exchange, one matrix for all devices. */
int lower_value_buffer(struct lowering *l, int value, int device);
/* For the sum of one part. */
int lower_partial_buffer(struct lowering *l, int value, int device);
/* Appends a step; in: (step.n_in) buffers. */
struct lower_step *lower_add_step(struct lowering *l, int device, struct step step, const int *in,
                                  int out);
/* The part's sum is made: a device's second one is added to its first. */
void lower_join_partial(struct lowering *l, int value, int device, int buffer);
/* Columns of a value are made on a device. */
void lower_made(struct lowering *l, int value, int device, int begin, int end);
/* Makes columns [begin, end) of a value stand in the device's memory. */
void lower_require(struct lowering *l, int value, int device, int begin, int end);
bool lower_is_partial(const struct lowering *l, int value);
/* Columns of out that a part of a placed op makes. */
struct range lower_part_columns(const struct lowering *l, const struct plan_part *p);

/* lower_parts.c */
/* A vector's elements [begin, end) on a device. */
int lower_vector_shard(struct lowering *l, int device, int weight, int begin, int end);
/* Inputs first, for all parts, so that no device's copy waits behind another part's work. */
void lower_part_inputs(struct lowering *l, const struct plan_part *p);
/* Its steps; first: of its op's parts. */
void lower_part(struct lowering *l, const struct plan_part *p, bool first);

/* lower_stream.c */
void lower_stream_start(struct lowering *l);
/* The transfer that brings a part's weights, -1: it is not streamed. Called in the order of steps.
 */
int lower_stream_part(struct lowering *l, const struct plan_part *part);
/* The step just added reads the transfer's slot; -1: it reads none. */
void lower_stream_step(struct lowering *l, int transfer);
/* All transfers are known: gives them their slots. */
void lower_stream_place(struct lowering *l);
/* The segment reads a transfer's slot as the last one: what comes there next waits for it. */
void lower_stream_release(struct lowering *l, int transfer, struct program_segment *segment);

/* lower_order.c */
/* Brings early copies forward; then finds the lives of buffers, and whom steps wait for to read
 * what others wrote. */
void lower_order(struct lowering *l);

/* lower_memory.c */
/* Gives every buffer its offset, fills the spans, finds who waits for whom, cuts segments. */
void lower_finish(struct lowering *l);
