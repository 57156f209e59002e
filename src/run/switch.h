/*
 * From one plan to another between two rounds, with the devices open (house.md 4 and 6): shards,
 * caches and states that stay where they are are kept, what moves is loaded again from the file's
 * map, and pages and states in use are carried over through host memory. On each device everything
 * that leaves is given up before anything comes, so that no device ever holds more than the larger
 * of the two ledgers says; the host holds the pages on their way besides. Called by the engine.
 */
#pragma once

#include "run/executor.h"

/* Which pages and slots hold something. */
struct switch_use {
    bool (*page)(const void *user, int kv_class, int page);
    bool (*state)(const void *user, int slot);
    const void *user;
};
struct switch_report {
    int64_t kept_bytes, loaded_bytes; /* of weights, as the file has them */
    int64_t carried_bytes;            /* of caches and states */
    bool restored; /* after an error: it was noticed after something had left, and all came back */
};

/*
 * *e carries out `plan` from now on; it is another executor, and the old one is closed. plan is
 * borrowed as in executor_open, has as many devices, and has passed plan_check. After an error *e
 * is the old executor with its plan, caches and states in force, or, if even that could not be had
 * back, NULL. Errors: those of executor_open and executor_load; NO_MEMORY also if the host cannot
 * hold what is carried.
 */
MUST_CHECK ats_status executor_switch(struct executor **e, const struct plan *plan,
                                      const struct executor_options *options,
                                      const struct switch_use *use, struct switch_report *report);
