/*
 * When a round's work ran, by its devices' clock: filled by executor.c, summed up by metrics.c,
 * drawn by trace.c. All times of a round are comparable; those of simulated devices are virtual.
 */
#pragma once

#include "backend/backend.h"

/* A segment of the program: the call that submitted it, and its run. */
struct segment_times {
    uint64_t submit_ns; /* of a device that the caller drives, where it waits from then on */
    struct backend_times ran;
    bool known; /* else the device could not tell, and `ran` is empty */
};
struct round_times {
    uint64_t begin_ns, end_ns;
    struct segment_times *segments; /* (n_segments) */
    struct copy_times {
        uint64_t submit_ns, next_ns; /* handed to the device; for the next round, if it was */
        struct backend_times ran;
        bool known;
    } * copies;                  /* (n_transfers) those that this round's segments waited for,
                                    which may have run before it began */
    struct backend_times *waits; /* (n_devices) of the caller, at the end */
    uint64_t n_submissions;      /* calls to drivers of GPUs */
    uint64_t thread_ns;          /* work of the devices' own threads, outside waits and drivers */
    uint64_t driver_ns;          /* inside those calls, in these threads and in the caller's, and */
    uint64_t caller_driver_ns;   /* in the caller's */
};
