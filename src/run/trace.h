/*
 * Rounds as a file that Chrome's about:tracing and Perfetto open: a track of rounds, one of the
 * caller's waits, two for each device (segments, copies), arrows from what is waited for to who
 * waits, named by the device, the arrival or the slot. Written round by round; the file is whole
 * JSON after each, however the program ends. Called by the engine.
 */
#pragma once

#include "run/programs.h"
#include "run/timing.h"

struct trace;

/* path: created, or emptied if it is a trace or other JSON. *out owned. Errors: IO, BAD_ARGUMENT.
 */
MUST_CHECK ats_status trace_open(const char *path, struct trace **out);
void trace_close(struct trace *t); /* accepts NULL */
/* Rounds to come are of these programs, which live until the next call. devices: (n_devices of
 * theirs). Errors: IO. */
MUST_CHECK ats_status trace_programs(struct trace *t, const struct graph *g,
                                     const struct programs *programs,
                                     struct backend *const *devices);
/* Appends a round. Errors: IO; CANCELLED once the file has grown as large as it may. */
MUST_CHECK ats_status trace_round(struct trace *t, const struct round *round,
                                  const struct round_times *times);
