#include "base/log.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>

/* Sink and user change together, under the lock; the level is read without it on every call. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static log_fn *sink;
static void *sink_user;
static atomic_int max_level = -1; /* -1: nothing is wanted */

void log_set(log_fn *fn, void *user, enum log_level level) {
    pthread_mutex_lock(&lock);
    sink = fn;
    sink_user = user;
    atomic_store(&max_level, fn ? (int)level : -1);
    pthread_mutex_unlock(&lock);
}

bool log_wanted(enum log_level level) {
    return (int)level <= atomic_load_explicit(&max_level, memory_order_relaxed);
}

void log_msg(enum log_level level, const char *format, ...) {
    if (!log_wanted(level)) return;
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    pthread_mutex_lock(&lock);
    log_fn *fn = sink;
    void *user = sink_user;
    pthread_mutex_unlock(&lock);
    if (fn) fn(user, level, text); /* outside the lock: a sink may log */
}
