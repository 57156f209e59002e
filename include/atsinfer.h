/*
 * atsinfer: run a GGUF language model on the CPU and the GPU together.
 *
 * Two nouns. An engine is a loaded model; a session is one timeline of tokens in it (a chat, a
 * document), with its KV cache. Everything else is a plain struct. The library never prints, exits
 * or aborts on input: what can fail returns an ats_status, and ats_error_text() says why.
 *
 * Threads: one engine is used by one thread at a time (with its sessions); several engines may be
 * used by several threads at once. Functions that only read a loaded engine's vocabulary may be
 * called from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATS_API __attribute__((visibility("default")))
#define ATS_MUST_CHECK __attribute__((warn_unused_result))
#else
#define ATS_API
#define ATS_MUST_CHECK
#endif

/* Every status once: name, value, text. The values never change. */
#define ATS_STATUS_MAP(X)                                                                          \
    X(ATS_OK, 0, "ok")                                                                             \
    X(ATS_FAILED, 1, "failed")                                                                     \
    X(ATS_BAD_ARGUMENT, 2, "bad argument")                                                         \
    X(ATS_NO_MEMORY, 3, "out of memory")                                                           \
    X(ATS_UNSUPPORTED, 4, "not supported")                                                         \
    X(ATS_BAD_FILE, 5, "bad file")                                                                 \
    X(ATS_IO, 6, "input/output error")                                                             \
    X(ATS_CONTEXT_FULL, 7, "context is full")                                                      \
    X(ATS_CANCELLED, 8, "cancelled")                                                               \
    X(ATS_DEVICE, 9, "device error")                                                               \
    X(ATS_BAD_INPUT, 10, "bad input")

typedef enum ats_status {
#define ATS_STATUS_ENUM(name, value, text) name = value,
    ATS_STATUS_MAP(ATS_STATUS_ENUM)
#undef ATS_STATUS_ENUM
} ats_status;

/* Name-independent English text of a status ("bad file"); never NULL. */
ATS_API const char *ats_status_text(ats_status status);

/* What went wrong in the last failed call of this thread, one line; "" if nothing did. */
ATS_API const char *ats_error_text(void);

#ifdef __cplusplus
}
#endif
