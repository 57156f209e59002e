/*
 * WHERE: the home of every shard. A plan covers each placed operator of a graph (a product, the
 * embedding, an attention with its cache, a layer's experts) by parts: one axis cut into ranges,
 * each on a device. Arithmetic only: no device, thread or clock. Made here by hand or at random;
 * read by run/lower.
 *
 * A part may be streamed (scheduling.md 1): its matrices live in host memory and are copied, every
 * round anew, into a slot of the device that computes them, while it computes something else.
 */
#pragma once

#include "base/arena.h"
#include "base/error.h"
#include "base/rng.h"
#include "model/graph.h"

/* Range [begin, end) of op's axis on a device. An op's parts are disjoint, ascending and cover the
 * axis; all have the same axis. A device has at most one of a cache or a state; of a product or of
 * experts any, staying there or streamed to it. EMBED has one part. */
struct plan_part {
    int op, device;
    enum axis axis;
    int begin, end;
    bool streamed; /* MATMUL, EXPERTS; on a device that streams */
    /* Streamed parts of a device that follow each other and have the same lot come together, into
     * one slot; 0: as the lowering likes. */
    int lot;
};
enum { PLAN_MAX_PARTS = 64 }; /* of an op */
struct plan {
    int n_devices;
    struct plan_part *parts;
    int n_parts;
    int *first;   /* (n_ops + 1): parts of op i are [first[i], first[i + 1]) */
    int *n_slots; /* (n_devices) buffers that streamed parts take turns in; >= 1 if there are any */
    /* Rounds of prompts_from tokens and more follow this plan, which plan_check_pair accepts beside
     * this one and which has none of its own; NULL: every round follows this one. */
    const struct plan *prompts;
    int prompts_from; /* > 1 if there is such a plan */
};
/* Devices as bits: those that stream. */
typedef unsigned plan_devices;

/* Everything on one device. All plans live in the arena. */
struct plan *plan_whole(struct arena *arena, const struct graph *g, int n_devices, int device);
/* Each placed op i whole on home[i]. home: (n_ops), below n_devices. */
struct plan *plan_of_homes(struct arena *arena, const struct graph *g, int n_devices,
                           const int *home);
/* Every block divided evenly in whole units over all devices; the embedding on device 0. */
struct plan *plan_even(struct arena *arena, const struct graph *g, int n_devices);
/* Any plan at all: whole blocks, block splits, and free mixtures of whole, row-cut and column-cut
 * operators; on devices that stream nothing, some or all of it streamed through one slot or many;
 * legal borders. row_group: as given to the model. For tests. */
struct plan *plan_random(struct arena *arena, const struct graph *g, int n_devices, int row_group,
                         plan_devices streaming, struct rng *rng);
/* Any partner for prompts at all that a plan which was checked may have (plan_check_pair): some or
 * all of what processors (hosts, as bits) compute is streamed, some of what is streamed is computed
 * by them. For tests. */
struct plan *plan_random_prompts(struct arena *arena, const struct graph *g,
                                 const struct plan *decode, plan_devices streaming,
                                 plan_devices hosts, struct rng *rng);
/* A legal plan without what it streams to devices that work in host memory (as bits): it stays
 * there. All that such a device has of an op is one range, at the place of its last; what others
 * have keeps its size. A copy, which is legal again. Its plan for prompts is the same for such
 * devices, what they compute of it stays where decode has it, and there is none if nothing else
 * differs. */
struct plan *plan_in_place(struct arena *arena, const struct graph *g, const struct plan *from,
                           plan_devices in_place);
/* BAD_ARGUMENT naming the op if a plan does not cover the graph as said above. */
MUST_CHECK ats_status plan_check(const struct graph *g, const struct plan *plan, int row_group,
                                 plan_devices streaming);
/* Can one set of weights, caches and states serve two plans, one for decode and one for rounds of
 * many tokens? hosts: devices whose weights lie in host memory. BAD_ARGUMENT naming the op if one
 * of them is not legal or if they differ in more than this: what lies in host memory (a part of
 * such a device, or a streamed one) may be computed there in one and be streamed in the other, to
 * any lot, but is cut into the same ranges, so that its bytes are there once. */
MUST_CHECK ats_status plan_check_pair(const struct graph *g, const struct plan *decode,
                                      const struct plan *prompts, int row_group,
                                      plan_devices streaming, plan_devices hosts);
/* Bytes of a part's matrices, as the file has them. Others' biases and vectors are not counted. */
int64_t plan_part_bytes(const struct graph *g, const struct plan_part *part);
static inline bool op_can_stream(const struct graph_op *op) {
    return op->kind == OP_MATMUL || op->kind == OP_EXPERTS;
}
/* The axis of a part that is the whole op. */
enum axis plan_whole_axis(const struct graph_op *op);
/* True if the op's parts each make a sum over part of the inputs, or of the experts. */
static inline bool plan_op_is_partial(const struct plan *p, int op) {
    if (p->first[op + 1] - p->first[op] < 2) return false;
    enum axis axis = p->parts[p->first[op]].axis;
    return axis == AXIS_COLS || axis == AXIS_EXPERTS;
}
