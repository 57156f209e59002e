/*
 * Carries a lowered program out with tags instead of numbers: each float of a device's memory and
 * of the exchange knows which element of which value it holds (or of which parts of a sum),
 * and every step checks that what it reads is what the graph means. Everything that is wrong fails
 * the running test. Knows nothing of arithmetic.
 */
#pragma once

#include "base/rng.h"
#include "run/lower.h"

struct replay_case {
    const struct graph *g;
    const struct plan *plan;
    const struct program *program;
    int n_tokens, n_rows; /* as given to program_lower */
};

/* Shards, caches, ranges, order and waits are what the plan says. */
void replay_check_form(const struct replay_case *c);

/* The part of the plan that a placed operator's step computes. */
const struct plan_part *replay_part(const struct replay_case *c, const struct program_step *step);

/* The same of what is streamed. */
void replay_check_streams(const struct replay_case *c);

/* One round, segments in an order drawn from rng: each device's own order and the waits are all
 * that it respects. At the end the logits stand where the program says. */
void replay_run(const struct replay_case *c, struct rng *rng);

/* True if two devices may touch a float of the exchange in either order though one of them writes:
 * happens-before by vector clocks over submission order and waits. Wait `wait` of segment
 * `segment` is left out (-1: none). */
bool replay_has_race(const struct replay_case *c, int segment, int wait);
/* True if without this wait somebody may read from the exchange what it does not mean. Not every
 * race does that: a device may write again what another one wrote there. */
bool replay_needs_wait(const struct replay_case *c, int segment, int wait);

/* True if a copy may come into a slot while somebody reads it, or somebody may read what has not
 * come yet: over two rounds, as the executor submits them. Left out is what `segment` waits for to
 * arrive, or what `transfer` waits for to be read (-1: nothing). */
bool replay_has_slot_race(const struct replay_case *c, int segment, int transfer);
