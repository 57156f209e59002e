/*
 * The prediction: one round as events on a CPU, a GPU, a copy engine and K slots (section 6 of
 * scheduling.md). Items run one after the other, each on one device or divided over both; weights
 * of streamed items are copied ahead, in the order of their use, while a slot is free. Pure: no
 * device, no clock, no allocation. It judges what transfer.c proposes; without streaming it gives
 * the sums of S1 and S2.
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
    /* What entering the item costs: from the CPU to the GPU or both, from both to the GPU; from the
     * GPU to the CPU or both, from both to the CPU; from both to both. */
    double up_s, down_s, exchange_s;
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
/* What entering an item costs when the one before ran there. */
double timeline_switch_s(const struct timeline_item *item, enum timeline_place from);
/* Nobody hinders anybody. */
struct timeline_machine timeline_machine_ideal(int n_slots);

/* How a round begins: copies (pieces) of it that are done or running already. Zeroed: none. */
struct timeline_state {
    int n_ahead;   /* at most n_slots */
    double left_s; /* of the last of them, alone; 0: done */
};

/* When an item entered its switch, began, and ended; when its copy did (from the round's start:
 * negative in the round before; 0 if not streamed). */
struct timeline_span {
    double enter_s, begin_s, end_s;
    double copy_begin_s, copy_end_s;
};

struct timeline_result {
    double round_s;
    double cpu_busy_s, gpu_busy_s, copy_busy_s; /* within the round */
    double cpu_copy_s, cpu_gpu_s; /* two of them at once: while they hinder each other */
    double exposed_s;             /* neither device computes, since a copy has not arrived */
    double switch_s;
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
