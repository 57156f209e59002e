/*
 * Carries rounds out: owns the programs of a plan, its weights, caches and segments on every
 * device, and the exchange. Takes time from backends and waits only through them, so that it runs
 * on `sim` unchanged. Knows nothing of sequences, sampling or text. Used by the engine, by one
 * thread.
 */
#pragma once

#include "run/ledger.h"
#include "run/timing.h"

struct executor;

/* Lowers the plan and reserves everything; weights are not touched. devices: (plan->n_devices)
 * borrowed, at most one of them driven. model and plan are borrowed. *out owned. Errors: NO_MEMORY
 * naming the device and what it lacks; those of the backends. */
MUST_CHECK ats_status executor_open(const struct model *model, const struct plan *plan,
                                    struct backend *const *devices,
                                    const struct executor_options *options, struct executor **out);
void executor_close(struct executor *e); /* accepts NULL */

/* Loads every weight into its home. done/total in bytes; returns false to cancel. */
typedef bool executor_progress_fn(void *user, uint64_t done, uint64_t total);
MUST_CHECK ats_status executor_load(struct executor *e, executor_progress_fn *progress, void *user);

/* One round, whole: *logits is (round->n_rows, n_vocab), borrowed until the next. */
MUST_CHECK ats_status executor_run(struct executor *e, const struct round *round,
                                   const float **logits);
/* Between rounds: those from now on are timed, or (as at first) not, which costs them nothing. */
void executor_set_timed(struct executor *e, bool timed);
/* Of the last round, if it was timed and did not fail; else NULL. Borrowed until the next. */
const struct round_times *executor_times(const struct executor *e);
/* Page src of every cache of a layer class becomes dst. Between rounds. */
void executor_copy_page(struct executor *e, int kv_class, int src, int dst);

void executor_ledger(const struct executor *e, int device, struct executor_ledger *out);
/* All devices and the host; what is said of single shards is left out. */
void executor_totals(const struct executor *e, struct ledger *out);
/* For tests of debug builds: races between devices so far (base/races.h). */
int executor_races(const struct executor *e);
const struct programs *executor_programs(const struct executor *e);
/* The first of them. Waits are read from it in every round: a test leaves one out by editing its
 * segment. */
const struct program *executor_program(const struct executor *e);
