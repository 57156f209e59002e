/*
 * Profiles of this machine, each measured once and kept in the user's cache directory under a key
 * of all that its times depend on: devices, driver, processor, threads, and the operators of a
 * model. Called by profiling.c (the command) and planner.c (an engine that opens).
 */
#pragma once

#include "run/measure.h"

/* Whose times. The model's weights are not read; units of its blocks do not matter. */
struct profile_request {
    const struct model *model;
    struct measure_options measure; /* progress is for whoever measures */
};

/* The context that a model was trained for: depths up to it are measured. Errors: BAD_FILE. */
MUST_CHECK ats_status profile_depths_of(const struct gguf *file, int *n_ctx);

/* The kept one, in the arena, and the path of its file: of a whole measurement, or of a quick one
 * if that is enough. NULL: there is none; a file that is broken or of something else is none
 * either, which is said. */
struct profile *kept_profile_find(struct arena *arena, const struct profile_request *request,
                                  bool quick_too, const char **path);
/* Measures (measure.h) and keeps. path NULL: it could not be kept, which is said. */
MUST_CHECK ats_status kept_profile_measure(struct arena *arena,
                                           const struct profile_request *request,
                                           struct profile **out, const char **path);
/* Of a profile from elsewhere. Errors: BAD_ARGUMENT: it says that it is of another machine, or
 * lacks an operator. */
MUST_CHECK ats_status kept_profile_check(const struct profile_request *request,
                                         const struct profile *profile);
