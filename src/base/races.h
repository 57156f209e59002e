/*
 * Debug builds: may two accesses to memory that devices share happen at the same time? A
 * happens-before checker: ranges of bytes x reads and writes x values of timelines. Backends tell
 * it what they hand over, where they do: what an event touches, which values it waits for, which
 * one it sets. It sees what validation layers do not: several queues, and the host beside them.
 * Knows nothing of devices. A release has none of it: there, all calls are empty.
 *
 * An event runs on a stream (a queue, a thread). It knows what it waited for, what whoever handed
 * it over had waited for, and what those knew. An access that another event's conflicts with is a
 * race unless one of the two knows the other. A race is an error in the log that names both.
 */
#pragma once

#include "base/base.h"

struct races; /* of one executor; may be shared by threads */

enum { RACES_STREAMS = 40, RACES_WAITS = 12 };
/* How many events of each stream are known to be over. */
struct race_clock {
    uint32_t done[RACES_STREAMS];
};
/* `lines` ranges of `bytes` bytes, stride_bytes apart, of what `memory` names. */
struct race_access {
    const void *memory;
    int64_t begin, bytes, stride_bytes;
    int lines;
    bool write;
    const char *what; /* "the sum", of step_index (-1: it is none); both are only told */
    int step_index;
};
struct race_event {
    const void *stream; /* names it */
    const char *name;   /* "vulkan0" */
    /* Events of the stream end in order too. Else they begin in order, and whoever waits for the
     * value of one knows all before it. */
    bool in_order;
    struct race_wait {
        const void *timeline;
        uint64_t value;
    } waits[RACES_WAITS];
    int n_waits;
    const struct race_clock *knows; /* of who hands it over; or NULL */
    const struct race_access *accesses;
    int n_accesses;
    const void *timeline; /* of which it sets value; NULL: none */
    uint64_t value;
};

#ifdef ATS_CHECK_RACES
struct races *races_open(void);
void races_close(struct races *r); /* all others accept NULL, too, and do nothing then */
/* A round begins: what the host has learned until now is known to all that is handed over in it. */
void races_begin_round(struct races *r);
/* Before the event is handed over, or does what it does. It may wait for values that are not set
 * yet. Everything is copied. */
void races_submit(struct races *r, const struct race_event *e);
/* A wait for a timeline's value has returned; knows NULL: it was the host's, between rounds. */
void races_learn(struct races *r, struct race_clock *knows, const void *timeline, uint64_t value);
/* Whoever knows this does something by itself, now; knows NULL: the host, between rounds. */
void races_do(struct races *r, struct race_clock *knows, const void *stream, const char *name,
              const struct race_access *accesses, int n);
/* Somebody else sets another timeline, once the stream's events so far are over. */
void races_publish(struct races *r, const void *stream, const void *timeline, uint64_t value);
int races_found(struct races *r); /* so far; of a round only a few are told */
#else
static inline struct races *races_open(void) {
    return NULL;
}
static inline void races_close(struct races *r) {
    (void)r;
}
static inline void races_begin_round(struct races *r) {
    (void)r;
}
static inline void races_submit(struct races *r, const struct race_event *e) {
    (void)r, (void)e;
}
static inline void races_learn(struct races *r, struct race_clock *knows, const void *timeline,
                               uint64_t value) {
    (void)r, (void)knows, (void)timeline, (void)value;
}
static inline void races_do(struct races *r, struct race_clock *knows, const void *stream,
                            const char *name, const struct race_access *accesses, int n) {
    (void)r, (void)knows, (void)stream, (void)name, (void)accesses, (void)n;
}
static inline int races_found(struct races *r) {
    (void)r;
    return 0;
}
static inline void races_publish(struct races *r, const void *stream, const void *timeline,
                                 uint64_t value) {
    (void)r, (void)stream, (void)timeline, (void)value;
}
#endif
