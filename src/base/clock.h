/* Time and chance of the system, for everyone; inside a round, time comes from the backend. */
#pragma once

#include "base/base.h"

/* Monotonic nanoseconds. */
uint64_t clock_ns(void);
/* Seed for "random" when the user gives none. */
uint64_t clock_entropy(void);
