/* Time and chance of the system, for everyone; inside a round, time comes from the backend. */
#pragma once

#include "base/base.h"

/* Monotonic nanoseconds. */
uint64_t clock_ns(void);
/* Processor time that this thread has used: what others do on its CPU does not count. */
uint64_t clock_thread_ns(void);
/* This thread does nothing for so long, or a little longer. */
void clock_sleep_ns(uint64_t ns);
/* Seed for "random" when the user gives none. */
uint64_t clock_entropy(void);
