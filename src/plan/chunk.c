/* How many tokens of a prompt an engine evaluates at a time: more copy the same weights less often,
 * and leave less of the device's memory to them. */
#include <math.h>

#include "base/error.h"
#include "plan/decide.h"

#define LEAST_GAIN 0.03 /* of a request, for twice as many */
enum { MOST_CHUNK = 4096, N_SLOTS = 4 };

/* The request in chunks of so many tokens, with a program for prompts; HUGE_VAL: that has none. */
static double request_s(struct arena *arena, const struct items *items,
                        const struct decide_options *options, int n_batch) {
    struct decide_options o = *options;
    struct decide_way near = {.n_batch = n_batch}, pair;
    o.n_slots = N_SLOTS;
    o.placement.prefill_tokens = min_int(n_batch, o.n_prompt);
    near.placement = placement_whole(arena, items, &o.placement, SIDE_CPU);
    if (decide_pair(arena, items, &o, &near, &pair) == ATS_OK && pair.placement)
        return pair.request_s;
    error_clear();
    return HUGE_VAL;
}

int decide_chunk(const struct items *items, const struct decide_options *options) {
    struct arena arena = {0};
    int best = DECIDE_CHUNK;
    double best_s = request_s(&arena, items, options, best);
    for (int n = 2 * DECIDE_CHUNK; n <= min_int(MOST_CHUNK, options->n_prompt); n *= 2) {
        double s = request_s(&arena, items, options, n);
        if (s >= (1 - LEAST_GAIN) * best_s) continue;
        best = n;
        best_s = s;
    }
    arena_free(&arena);
    return best;
}
