/*
 * Caches and states in host memory, on their way from one set of devices and ranges to another.
 * Part of switch.c.
 */
#pragma once

#include "run/executor_internal.h"
#include "run/switch.h"

struct images;
/* Room for all operators whose caches or states are elsewhere in `to` than in `from`. *out owned,
 * NULL after an error. */
MUST_CHECK ats_status images_open(const struct executor *from, const struct executor *to,
                                  const struct switch_use *use, struct images **out);
void images_close(struct images *m); /* accepts NULL */
int64_t images_bytes(const struct images *m);
/* What is in use of e's caches and states of these operators; all of them are there. */
MUST_CHECK ats_status images_read(struct images *m, struct executor *e);
/* Back into those of e that it did not take over: fresh_kv (n_kvs), fresh_state (n_states). */
MUST_CHECK ats_status images_write(struct images *m, struct executor *e, const bool *fresh_kv,
                                   const bool *fresh_state);
