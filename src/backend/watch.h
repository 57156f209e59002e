/* What backends tell base/races.h in debug builds: the ranges of the exchange that steps touch. In
 * a release there is none of it. */
#pragma once

#include "backend/backend.h"
#include "base/races.h"

#ifdef ATS_CHECK_RACES
struct watched {
    struct race_access *items;
    size_t n, cap;
};
void watch(struct watched *w, struct race_access access);
/* Ranges of l->exchange in a round. */
void watch_steps(struct watched *w, const struct backend_limits *l, const struct step *steps,
                 int n_steps, const struct round *round);
#endif
