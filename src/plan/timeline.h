/*
 * The prediction: one round as events on a CPU, a GPU, a copy engine and K slots (section 6 of
 * scheduling.md). Items run one after the other, each on one device or divided over both; weights
 * of streamed items are copied ahead, in the order of their use, while a slot is free. Pure: no
 * device, no clock, no allocation. It judges what transfer.c proposes; without streaming it gives
 * the sum of S1, and where blocks are divided at most that of S2: a change of device delays only
 * who waits for it (timeline_enter), which sums cannot say.
 *
 * Between two events all rates are constant, and at an event whoever determined it has exactly
 * nothing left: times are sums of quotients, with no step size. All times are seconds.
 */
#pragma once

#include "base/base.h"

enum timeline_place { TIMELINE_CPU, TIMELINE_GPU, TIMELINE_BOTH };

/* One item as a schedule runs it. Where it runs alone the other device's time is 0. */
struct timeline_item {
    enum timeline_place place;
    bool streamed; /* part of it, or all, is computed from a slot: place is GPU or BOTH */
    bool late;     /* what is copied is known only when the item before has ended: routed experts */
    double cpu_s;
    double gpu_s;      /* of what the device holds */
    double streamed_s; /* of what comes through the slot, after gpu_s */
    double copy_s;     /* of the copy engine, alone */
    /* What is copied comes in so many pieces of equal size, one after the other, each through a
     * slot of its own that is free when the device has computed the piece. 0 is 1. */
    int n_pieces;
    /* How much later than its end what the item before made reaches the other device: the GPU; the
     * CPU; each of them, where both ran it and run this (0: nothing is exchanged). */
    double up_s, down_s, exchange_s;
    /* Of these, what the GPU is busy with itself: it reads what comes once it is there, and writes
     * what goes before it does anything else. */
    double pull_s, push_s;
    double cut_s; /* that the GPU needs from its part of the item before to this one's, if anything
                   * changes device between */
};

/* Speeds are shares of the speed alone. Zero is not allowed. */
struct timeline_machine {
    int n_slots;
    double cpu_speed_copying; /* a: of the CPU while the copy engine runs */
    double copy_speed_cpu;    /* b: of the copy engine while the CPU computes */
    double cpu_speed_gpu;     /* of the CPU while the GPU computes: 1 but with shared memory */
    double gpu_speed_cpu;     /* and the other way round */
    double end_s;             /* from the GPU or both to the host when the last item has ended */
};
/* What entering an item costs in the sums of S1, S2, S3 and S6, when the one before ran there: as
 * if nobody began before all can. */
double timeline_switch_s(const struct timeline_item *item, enum timeline_place from);

/* How long after the item before has ended each device begins, if it has a part. */
struct timeline_waits {
    double cpu_s, gpu_s;
};
/* Of the item before, run by both, one device has ended so much before the other: 0 of one, and of
 * both where one ran it alone. */
static inline struct timeline_waits timeline_enter(const struct timeline_item *item,
                                                   enum timeline_place from, double cpu_early_s,
                                                   double gpu_early_s) {
    bool both = item->place == TIMELINE_BOTH, exchange = from == TIMELINE_BOTH && both;
    struct timeline_waits waits = {0, 0};
    if (exchange && item->exchange_s <= 0) return waits;
    double way_s = item->exchange_s - item->pull_s - item->push_s;
    double down_s = item->push_s + (exchange ? way_s : item->down_s - item->push_s) - gpu_early_s;
    double up_s = (exchange ? way_s : item->up_s - item->pull_s) - cpu_early_s;
    double next_s = (both ? item->push_s : 0) + item->cut_s - gpu_early_s;
    if (from != TIMELINE_CPU && item->place != TIMELINE_GPU && down_s > 0) waits.cpu_s = down_s;
    if (item->place == TIMELINE_CPU || (from == TIMELINE_GPU && !both)) return waits;
    if (from != TIMELINE_CPU && next_s > 0) waits.gpu_s = next_s;
    if (from == TIMELINE_GPU) return waits;
    if (up_s > waits.gpu_s) waits.gpu_s = up_s;
    waits.gpu_s += item->pull_s;
    return waits;
}
/* For tests: nobody hinders anybody. */
struct timeline_machine timeline_machine_ideal(int n_slots);

/* How a round begins: copies (pieces) of it that are done or running already. Zeroed: none. */
struct timeline_state {
    int n_ahead;   /* at most n_slots */
    double left_s; /* of the last of them, alone; 0: done */
};

/* When an item was entered, each device began and ended its part (0 without one), and the item had
 * ended; when its copy did (from the round's start: negative in the round before; 0 if not
 * streamed). */
struct timeline_span {
    double enter_s, end_s;
    double cpu_begin_s, cpu_end_s, gpu_begin_s, gpu_end_s;
    double copy_begin_s, copy_end_s;
};

struct timeline_result {
    double round_s;
    double cpu_busy_s, gpu_busy_s, copy_busy_s; /* within the round */
    double cpu_copy_s, cpu_gpu_s; /* two of them at once: while they hinder each other */
    double exposed_s;             /* neither device computes, since a copy has not arrived */
    double switch_s;              /* nor, since what one waits for is on its way from the other */
    int n_splits; /* changes of device (both to both is one), and items that wait for a slot */
    int n_events;
    struct timeline_state state; /* at the end: how the next round begins */
};

/* One round from `start` (NULL: nothing is ahead). After the last copy the engine goes on with the
 * next round's, of the same items, but late ones. It gives up, with round_s infinite, when the
 * round would take more than limit_s (HUGE_VAL: never) or when a streamed item has no slot to come
 * through. spans: (n), or NULL. */
void timeline_round(const struct timeline_item *items, int n, const struct timeline_machine *m,
                    const struct timeline_state *start, double limit_s,
                    struct timeline_result *result, struct timeline_span *spans);

/* A round in the long run: the same again and again, until its state repeats (at most 8 rounds). Of
 * decode, and of the chunks of a prefill. Of rounds that swing about a mean, the mean; it gives up
 * where one takes more than half as long again as limit_s, so round_s may come out above that. */
void timeline_periodic(const struct timeline_item *items, int n, const struct timeline_machine *m,
                       double limit_s, struct timeline_result *result, struct timeline_span *spans);
