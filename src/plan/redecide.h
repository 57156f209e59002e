/*
 * Another plan under load, with its price (S5): what replan.h asks for. The plan in force with
 * other weights streamed, which moves nothing; a plan made anew; or the one that was made without
 * load. Arithmetic only. Called by simulations and, beside a round, by the engine.
 */
#pragma once

#include "plan/decide.h"
#include "plan/replan.h"

/* What moving shards costs, seconds: those that go to the device are read from the file and copied
 * through staging, those that go to the host are read and repacked. */
double redecide_move_s(struct arena *arena, const struct items *items, const struct placement *from,
                       const struct placement *to);

struct redecision {
    struct replan_offer offer;
    struct decide_way way; /* timed by the profile, as the ways given are */
    bool moves;            /* shards, not only what is streamed */
};

/*
 * base: the way that was made without load; now: the one in force; both of these items, which are
 * the profile's. options: those that base was decided by, but that its chunk stays. The best is
 * that of the shortest round with its cost shared by replan->horizon_rounds; without any load
 * (replan->threshold) it is `base`.
 * before: the way in force before `now`, to tell a reversal; or NULL. Results in the arena. Errors:
 * those of decide().
 */
MUST_CHECK ats_status redecide(struct arena *arena, const struct items *items,
                               const struct decide_options *options,
                               const struct load_factors *factors, const struct decide_way *base,
                               const struct decide_way *now, const struct decide_way *before,
                               const struct replan_options *replan, struct redecision *out);

/* A way's decode round under load. */
void redecide_time(struct arena *arena, const struct items *items,
                   const struct decide_options *options, const struct load_factors *factors,
                   const struct decide_way *way, struct timeline_result *result);
/* What a round of the way works on each resource, alone; and what a measured one shows of that, if
 * it went as `result` says. */
void redecide_alone(const struct decide_way *way, double alone_s[N_LOAD_RESOURCES]);
void redecide_busy(const struct decide_way *way, const struct timeline_result *result,
                   double busy_s[N_LOAD_RESOURCES]);
/* The same placement, and the same streamed, in decode and, if they have two programs, in prompts.
 */
bool redecide_same(const struct items *items, const struct decide_way *a,
                   const struct decide_way *b);
