/*
 * Statuses with a text. A function that can fail for reasons outside the program returns
 * ats_status; the text is kept per thread and belongs to the last failure.
 */
#pragma once

#include "atsinfer.h"
#include <stdarg.h>
#include "base/base.h"

/* Keeps the text (cut at 511 bytes, made valid UTF-8) and returns status. status != ATS_OK. */
MUST_CHECK ats_status fail(ats_status status, const char *format, ...) PRINTF_LIKE(2, 3);

/* Puts "prefix: " before the kept text; returns status unchanged. */
MUST_CHECK ats_status fail_in(ats_status status, const char *format, ...) PRINTF_LIKE(2, 3);

/* The kept text of this thread; ats_error_text() is this. */
const char *error_text(void);
void error_clear(void);
/* Copies a text kept in another thread into this one (worker -> caller). */
void error_set_text(const char *text);

#define TRY(expr)                                                                                  \
    do {                                                                                           \
        ats_status try_status_ = (expr);                                                           \
        if (UNLIKELY(try_status_ != ATS_OK)) return try_status_;                                   \
    } while (0)

/* The same, leaving through a label: `TRY_TO(out, status, expr)`. */
#define TRY_TO(label, status, expr)                                                                \
    do {                                                                                           \
        (status) = (expr);                                                                         \
        if (UNLIKELY((status) != ATS_OK)) goto label;                                              \
    } while (0)
