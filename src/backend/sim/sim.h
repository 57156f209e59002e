/*
 * Simulated devices: another backend computes, a discrete-event world says in which order and at
 * which virtual time. For tests of whoever submits work, and for planning without the hardware. No
 * threads: the caller's thread moves the world on while it waits. Opened by backend.c; everything
 * else goes through backend.h.
 *
 * What it asks of the caller beyond backend.h: a round is submitted whole before anything of it is
 * waited for, so that the world sees all that may happen; the wrapped device has no other user.
 */
#pragma once

#include "backend/backend.h"

/* What a device's time is made of. GB/s is bytes per nanosecond. */
struct sim_rates {
    int bytes_per_ns;      /* weights and KV read */
    int launch_ns;         /* of a segment, or a copy, once */
    int step_ns;           /* of each step */
    int copy_bytes_per_ns; /* weights copied into slots; 0: the device does not stream */
};
struct sim_options {
    struct sim_rates rates;
    bool chaos;    /* durations are drawn over orders of magnitude; memory is poisoned */
    uint64_t seed; /* of chaos */
    bool gpu;
    int64_t memory_bytes;                  /* of a GPU; 0: it is in host memory */
    const struct backend_machine *machine; /* or NULL; instead of rates, chaos and memory_bytes */
};

/* "sim", "sim:cpu", "sim:gpu", "sim:gpu:MIB" (of memory), "sim:chaos", "sim:chaos:SEED". */
bool sim_is_name(const char *name); /* begins like one */
/* Errors: UNSUPPORTED for a kind that is not there, BAD_ARGUMENT for a seed or a size that is no
 * number. */
MUST_CHECK ats_status sim_options_parse(const char *name, struct sim_options *out);

/* Wraps `inner`, which has its memory where this program can write it (streaming does), owned from
 * now on. peer: a simulated device whose world this one joins; NULL: a world of its own. Owned. */
struct backend *sim_backend_open(struct backend *inner, const struct sim_options *options,
                                 struct backend *peer);
bool sim_is_device(const struct backend *b);
/* To be wrapped where only time is kept: a device that does nothing, in host memory of so many
 * bytes. Owned. */
struct backend *sim_nothing_open(int64_t host_bytes);
