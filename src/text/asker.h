/*
 * Long work asks now and then whether to go on: a zeroed asker never stops it. Used by the
 * tokenizer's parts; a template counts its steps itself.
 */
#pragma once

#include "base/error.h"

struct asker {
    ats_cancel_fn *cancel; /* may be NULL */
    void *user;
    size_t n_steps; /* since it was asked */
    bool stopped;   /* it said so: nothing of the work will be used */
};

/* n steps of some 100 ns at most were made. True: stop. */
static inline bool asker_stops(struct asker *a, size_t n) {
    enum { STEPS_A_QUESTION = 1 << 16 };
    a->n_steps += n;
    if (LIKELY(a->n_steps < STEPS_A_QUESTION)) return a->stopped;
    a->n_steps = 0;
    a->stopped = a->stopped || (a->cancel && a->cancel(a->user));
    return a->stopped;
}
