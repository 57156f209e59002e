/* The door to the Vulkan backend: opening a device, and what devices there are. */
#pragma once

#include "backend/backend.h"

/* "vulkan": the best device that is not software, else the software one; "vulkan0", "vulkan1", ...:
 * that of the list. UNSUPPORTED: no loader, no driver, no such device. *out owned. */
MUST_CHECK ats_status vulkan_backend_open(const char *name, const struct backend_options *options,
                                          struct backend **out);
/* For tests: bytes of compiled pipelines that an earlier run had left. */
int64_t vulkan_backend_cached(struct backend *b);
/* For tests: what the test at first use found wrong; bits VERDICT_NO_IDOT and so on. */
unsigned vulkan_backend_verdict(struct backend *b);
/* For tests: how many windows of lines values were cut into so far, since a shader sees less. */
int vulkan_backend_windows(struct backend *b);
/* For tests: steps, and roundings to 8 bits, computed with the step before them. */
int vulkan_backend_folds(struct backend *b);
/* For tests: dispatches of rounds of one token in all segments that were built. */
int vulkan_backend_dispatches(struct backend *b);
/* For tests: how many parts weights were cut into beyond their first, as one allocation takes less
 * (ATSINFER_VK_MAX_PART bytes). */
int vulkan_backend_parts(struct backend *b);
/* Fills at most max entries; returns how many devices there are. If Vulkan is not there: 0, and the
 * reason is this thread's error text. */
int vulkan_backend_list(struct backend_device_info *out, int max);
