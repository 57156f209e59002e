/*
 * How plans are made, by the names that options have for it: what is placed as a whole, and how it
 * is chosen which weights are streamed. Read by engines (planner.c) and simulations (simulate.c).
 */
#pragma once

#include "plan/placement.h"
#include "plan/transfer.h"

const char *granularity_name(enum granularity granularity);
/* "layer", "expert", "tensor", "shard" (NULL as well); "none", "paper", "ours" (NULL as well).
 * Errors: BAD_ARGUMENT for what is none of these. */
MUST_CHECK ats_status granularity_read(const char *name, enum granularity *out);
MUST_CHECK ats_status transfer_read(const char *name, enum transfer_rule *out);
