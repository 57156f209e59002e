/*
 * The library never prints: messages go to a function that the program sets. Level and sink are
 * process-wide (the one global that conventions.md allows); the sink may be called from any thread.
 */
#pragma once

#include "base/base.h"

enum log_level { LOG_ERROR, LOG_WARN, LOG_INFO, LOG_DEBUG };

typedef void log_fn(void *user, enum log_level level, const char *text);

void log_set(log_fn *fn, void *user, enum log_level level); /* fn NULL: silent (the default) */
bool log_wanted(enum log_level level);
void log_msg(enum log_level level, const char *format, ...) PRINTF_LIKE(2, 3);
