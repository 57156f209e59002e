/* Shared libraries found at run time: a driver's loader, which may not be there. One implementation
 * per system: library_posix.c. */
#pragma once

#include "base/error.h"

typedef void library_fn(void); /* any function; cast to its own type */

struct library;
/* `name` as the system looks it up ("libvulkan.so.1"). UNSUPPORTED with the system's reason.
 * A library stays in the process once opened: drivers do not survive being unloaded. */
MUST_CHECK ats_status library_open(const char *name, struct library **out);
/* NULL if there is no such function. */
library_fn *library_function(struct library *l, const char *name);
