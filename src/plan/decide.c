#include "plan/decide.h"

#include <math.h>
#include <stdlib.h>

#define PROMPT_PLACES 4    /* places in a prompt at which its chunks are timed */
#define NEAR          1.03 /* of the best by one place: timed at all of them */
#define LEAST_GAIN    0.01 /* of a request: what two programs have to gain */

static const int chunks[] = {512, 1024, 2048, 4096};
/* Slots, and bytes of each: at most so many. Small ones leave memory to weights and pass large
 * ones in pieces; large ones let more be ahead. */
static const struct {
    int n;
    double bytes;
} slots[] = {{0, 0}, {2, 33554432}, {4, 33554432}, {8, 33554432}, {2, HUGE_VAL}, {4, HUGE_VAL}};

enum { PROBED = 2 }; /* of them, to find a chunk with */

/* Tokens of a prompt for each generated, as placements may be told where one for decode alone would
 * slow prompts. */
static const double prompts[] = {1, 4, 8, 32};

struct decide_options decide_options_default(int n_ctx, double device_bytes) {
    struct decide_options o = {.placement = placement_options_default(n_ctx),
                               .device_bytes = device_bytes,
                               .n_slots = -1,
                               .n_prompt = min_int(2048, max_int(1, n_ctx / 2)),
                               .n_answer = DECIDE_ANSWER,
                               .decode_rule = TRANSFER_LABELS,
                               .prefill_rule = TRANSFER_LABELS};
    o.depth = o.n_prompt;
    return o;
}

/* ---- one way ---- */

struct schedule_options decide_schedule_options(const struct decide_options *o,
                                                const struct decide_way *w, double n_tokens,
                                                double depth) {
    return (struct schedule_options){.n_tokens = n_tokens,
                                     .n_rows = 1,
                                     .depth = depth,
                                     .n_slots = w->n_slots,
                                     .slot_bytes = w->slot_bytes,
                                     .periodic = true,
                                     .by_units = o->placement.granularity == GRANULARITY_SHARD &&
                                                 !w->by_items,
                                     .stream_caches = o->stream_caches,
                                     .keep_experts = o->one_program,
                                     .keep_blocks = o->one_program,
                                     .whole_experts = o->runnable || o->whole_experts,
                                     .fixed = o->runnable ? o->placement.fixed : NULL,
                                     .given = o->given ? o->given->given : NULL,
                                     .rule = w->n_slots > 0 ? o->decode_rule : TRANSFER_NONE};
}

struct schedule_options decide_prompt_options(const struct decide_options *o,
                                              const struct decide_way *w, double n_tokens,
                                              double depth) {
    struct schedule_options so = decide_schedule_options(o, w, n_tokens, depth);
    if (so.n_slots > 0) so.rule = o->prefill_rule;
    if (o->given && o->given->prompts && n_tokens >= o->given->prompts_from)
        so.given = o->given->prompts;
    return so;
}

/* The prompt's chunks, timed at a few depths; what is kept is the one in the middle. given: a
 * schedule of the same placement, whose streamed weights they have; or NULL. */
static void time_prompt(struct arena *arena, const struct items *items,
                        const struct decide_options *o, const struct schedule *given, int n_places,
                        struct decide_way *w) {
    n_places = min_int(n_places, (o->n_prompt + w->n_batch - 1) / w->n_batch);
    double n_tokens = min_int(w->n_batch, o->n_prompt);
    w->prompt_s = w->prompt_serial_s = 0;
    for (int i = 0; i < n_places; i++) {
        double depth = fmax(0, (i + 0.5) * o->n_prompt / n_places - n_tokens / 2);
        struct schedule_options so = decide_prompt_options(o, w, n_tokens, depth);
        struct schedule one;
        if (given)
            schedule_retime(arena, items, w->placement, &so, given, &one);
        else
            schedule_solve(arena, items, w->placement, &so, &one);
        double n_chunks = o->n_prompt / n_tokens / n_places;
        w->prompt_s += n_chunks * one.transfer.result.round_s;
        w->prompt_serial_s += n_chunks * one.serial.round_s;
        if (i == n_places / 2) w->prefill = one;
    }
}

static void add_request(const struct decide_options *o, struct decide_way *w) {
    w->request_s = w->prompt_s + o->n_answer * w->decode.transfer.result.round_s;
}

/* As its schedule is solved. */
static struct schedule_options middle_chunk(const struct decide_options *o,
                                            const struct decide_way *w) {
    return decide_prompt_options(o, w, min_int(w->n_batch, o->n_prompt), o->n_prompt / 2.0);
}

/* Decode and prompts with the same weights streamed: none, or what suits either. */
static void time_one_program(struct arena *arena, const struct items *items,
                             const struct decide_options *o, int n_places, struct decide_way *w) {
    struct schedule_options decode = decide_schedule_options(o, w, 1, o->depth), nothing = decode;
    struct schedule_options prompt = middle_chunk(o, w);
    struct schedule given[3];
    int n = w->n_slots > 0 && !o->given ? 3 : 1;
    struct decide_way best = *w;
    nothing.rule = TRANSFER_NONE;
    schedule_solve(arena, items, w->placement, &nothing, &given[0]);
    if (n > 1) schedule_solve(arena, items, w->placement, &decode, &given[1]);
    if (n > 1) schedule_solve(arena, items, w->placement, &prompt, &given[2]);
    for (int k = 0; k < n; k++) {
        struct decide_way one = *w;
        schedule_retime(arena, items, w->placement, &decode, &given[k], &one.decode);
        time_prompt(arena, items, o, &given[k], n_places, &one);
        add_request(o, &one);
        if (k == 0 || one.request_s < best.request_s) best = one;
    }
    *w = best;
}

/* Of the profile's counts the first from which on what `prefill` streams is faster, in a round by
 * itself, than what decode does in rounds in a row, up to a chunk. */
static int find_prompts_from(struct arena *arena, const struct items *items,
                             const struct decide_options *o, const struct decide_way *w) {
    int most = min_int(w->n_batch, o->n_prompt), from = 0;
    if (w->n_slots == 0 || schedule_same(&w->decode, &w->prefill)) return 0;
    for (int k = (int)COUNT_OF(profile_tokens); k >= 0; k--) {
        int n = k < (int)COUNT_OF(profile_tokens) ? profile_tokens[k] : most;
        struct schedule_options so = decide_schedule_options(o, w, n, o->depth);
        struct schedule decode, chunk;
        if (n < 2 || n > most) continue;
        schedule_retime(arena, items, w->placement, &so, &w->decode, &decode);
        so.periodic = false;
        schedule_retime(arena, items, w->placement, &so, &w->prefill, &chunk);
        if (chunk.transfer.result.round_s >= decode.transfer.result.round_s) break;
        from = n;
    }
    return from;
}

/* A schedule for decode, and one for all chunks. */
static void time_two_programs(struct arena *arena, const struct items *items,
                              const struct decide_options *o, int n_places, struct decide_way *w) {
    struct schedule_options decode = decide_schedule_options(o, w, 1, o->depth),
                            prompt = middle_chunk(o, w);
    struct schedule chunk;
    schedule_solve(arena, items, w->placement, &decode, &w->decode);
    schedule_solve(arena, items, w->placement, &prompt, &chunk);
    time_prompt(arena, items, o, &chunk, n_places, w);
    add_request(o, w);
}

static void time_way(struct arena *arena, const struct items *items, const struct decide_options *o,
                     int n_places, struct decide_way *w) {
    if (o->runnable) {
        time_one_program(arena, items, o, n_places, w);
        return;
    }
    struct schedule_options so = decide_schedule_options(o, w, 1, o->depth);
    schedule_solve(arena, items, w->placement, &so, &w->decode);
    time_prompt(arena, items, o, NULL, n_places, w);
    add_request(o, w);
}

bool decide_pair_pays(const struct decide_way *one, const struct decide_way *pair) {
    return pair->placement && pair->request_s < (1 - LEAST_GAIN) * one->request_s &&
           pair->prompt_s <= one->prompt_s;
}

void decide_time(struct arena *arena, const struct items *items, const struct decide_options *o,
                 struct decide_way *w) {
    struct decide_options one = *o;
    one.one_program = o->runnable;
    w->prompts_from = o->given && o->given->prompts ? o->given->prompts_from : 0;
    if (o->runnable && w->prompts_from > 0)
        time_two_programs(arena, items, o, PROMPT_PLACES, w);
    else
        time_way(arena, items, &one, PROMPT_PLACES, w);
}

void decide_retime(struct arena *arena, const struct items *items, const struct decide_options *o,
                   struct decide_way *w) {
    struct schedule_options so = decide_schedule_options(o, w, 1, o->depth);
    const struct schedule decode = w->decode, prefill = w->prefill;
    schedule_retime(arena, items, w->placement, &so, &decode, &w->decode);
    if (o->runnable) time_prompt(arena, items, o, &prefill, PROMPT_PLACES, w);
    add_request(o, w);
}

/* ---- what others do ---- */

/* The first or last n layers, but for what is fixed. */
static struct placement *layers(struct arena *arena, const struct items *items,
                                const struct placement_options *o, int n, bool last) {
    struct placement *p = placement_layers(arena, items, o, n, last);
    for (int i = 0; o->fixed && i < items->n_items; i++)
        if (o->fixed[i] != PLACEMENT_FREE) p->homes[i] = (uint8_t)o->fixed[i];
    if (o->fixed) placement_finish(items, o, p);
    return p;
}

static int count_layers(const struct items *items) {
    int n = 1;
    for (int b = 1; b < items->n_blocks; b++)
        n += items->blocks[b].layer != items->blocks[b - 1].layer;
    return n;
}

/* As many as fit: by halving. */
static struct placement *most_layers(struct arena *arena, const struct items *items,
                                     const struct placement_options *o, double budget_bytes,
                                     bool last) {
    int fits = 0, too_many = count_layers(items) + 1;
    while (fits + 1 < too_many) {
        int n = fits + (too_many - fits) / 2;
        const struct placement *p = layers(arena, items, o, n, last);
        if ((double)(p->quanta * items->quantum_bytes) <= budget_bytes)
            fits = n;
        else
            too_many = n;
    }
    return layers(arena, items, o, fits, last);
}

/* The best so far whose prompt is no longer than most_s. */
struct best {
    double most_s;
    struct decide_way *way; /* placement NULL: none */
};

static bool may_be_best(const struct best *best, const struct decide_way *quickly) {
    return quickly->prompt_s <= NEAR * best->most_s &&
           (!best->way->placement || quickly->request_s <= NEAR * best->way->request_s);
}

/* A way that was timed at one place. */
static void keep_better(struct arena *arena, const struct items *items,
                        const struct decide_options *o, struct decide_way *w, struct best *best) {
    if (!may_be_best(best, w)) return;
    const struct schedule prefill = w->prefill; /* decode's stays as well */
    if (w->n_batch < o->n_prompt)               /* more than one chunk */
        time_prompt(arena, items, o, o->runnable ? &prefill : NULL, PROMPT_PLACES, w);
    add_request(o, w);
    if (w->prompt_s > best->most_s) return;
    if (!best->way->placement || w->request_s < best->way->request_s) *best->way = *w;
}

/* With the memory and slots of a way: the CPU alone, the last layers, the first ones. */
static void try_simple(struct arena *arena, const struct items *items,
                       const struct decide_options *o, const struct decide_way *way,
                       struct best *best) {
    for (int k = 0; k < 3; k++) {
        struct decide_way w = *way;
        w.placement = k == 0 ? layers(arena, items, &o->placement, 0, true)
                             : most_layers(arena, items, &o->placement, way->budget_bytes, k == 1);
        time_way(arena, items, o, 1, &w);
        keep_better(arena, items, o, &w, best);
    }
}

/* ---- all of them ---- */

enum { MAX_WAYS = (int)(COUNT_OF(chunks) * COUNT_OF(slots)) };

/* A slot for any block of the host, if it is not too large for one. */
static double most_slot_bytes(struct arena *arena, const struct items *items,
                              const struct decide_options *o) {
    const struct decide_way any = {.n_slots = 1};
    struct schedule_options so = decide_schedule_options(o, &any, 1, o->depth);
    struct placement *host = placement_whole(arena, items, &o->placement, SIDE_CPU);
    return schedule_slot_bytes(arena, items, host, &so);
}

/* Of one program, which leaves experts where they are if it is runnable. */
static double least_slot_bytes(const struct items *items, const struct decide_options *o) {
    return schedule_least_slot_bytes(items, SCHEDULE_PIECES, o->whole_experts);
}

/* Slots of the largest host part, buffers, then weights and KV: all ways that leave memory. */
static int list_ways(struct arena *arena, const struct items *items, const struct decide_options *o,
                     struct decide_way *ways) {
    double slot_bytes = most_slot_bytes(arena, items, o), least = least_slot_bytes(items, o);
    int n = 0;
    for (size_t b = 0; b < COUNT_OF(chunks); b++)
        for (size_t k = 0; k < COUNT_OF(slots); k++) {
            struct decide_way w = {.n_slots = slots[k].n, .n_batch = chunks[b]};
            if (o->n_slots >= 0) w.n_slots = o->n_slots;
            if (o->n_batch > 0) w.n_batch = o->n_batch;
            w.slot_bytes = fmin(slots[k].bytes, slot_bytes);
            if (w.n_slots > 0) w.slot_bytes = fmax(w.slot_bytes, least);
            w.work_bytes = (double)schedule_work_bytes(items, w.n_batch);
            w.budget_bytes = o->device_bytes - w.work_bytes - w.n_slots * w.slot_bytes;
            bool more_slots = k > 0 && (o->decode_rule == TRANSFER_NONE || o->n_slots == 0);
            if (o->n_slots > 0) more_slots = slots[k].n != 2; /* one for each size */
            bool longer = b > 0 && (o->n_batch > 0 || chunks[b - 1] >= o->n_prompt);
            if (!more_slots && !longer && w.budget_bytes >= (double)o->fixed_bytes) ways[n++] = w;
        }
    return n;
}

static ats_status no_way(const struct decide_options *o) {
    if (o->fixed_bytes == 0)
        return fail(ATS_BAD_ARGUMENT, "%.0f MiB do not hold the buffers of a round",
                    o->device_bytes / 1048576);
    return fail(ATS_BAD_ARGUMENT,
                "what is told to be on the GPU, %.0f MiB, and the buffers of a round do "
                "not fit into %.0f MiB",
                (double)o->fixed_bytes / 1048576, o->device_bytes / 1048576);
}

static int by_request(const void *a, const void *b) {
    const struct decide_way *x = a, *y = b;
    if (x->request_s < y->request_s || x->request_s > y->request_s)
        return x->request_s < y->request_s ? -1 : 1;
    return x->n_batch != y->n_batch ? x->n_batch - y->n_batch : x->n_slots - y->n_slots;
}

static bool is_probe(const struct decide_way *w, double small) {
    return w->n_slots == slots[PROBED].n && w->slot_bytes <= small;
}

/* One way of each chunk is timed; of those that come near the best the others stay, as slots and
 * chunks hardly depend on each other. Returns how many; if none was timed, all. */
static int of_best_chunks(struct arena *arena, const struct items *items,
                          const struct decide_options *o, double most_s, struct decide_way *ways,
                          int n) {
    double least = HUGE_VAL;
    const double small = fmax(slots[PROBED].bytes, least_slot_bytes(items, o));
    int near[MAX_WAYS], n_near = 0, kept = 0; /* several ways of a chunk where parts are small */
    for (int i = 0; i < n; i++) {
        if (!is_probe(&ways[i], small)) continue;
        time_way(arena, items, o, 1, &ways[i]);
        if (ways[i].prompt_s <= NEAR * most_s) least = fmin(least, ways[i].request_s);
    }
    if (!(least < HUGE_VAL)) return n;
    for (int i = 0; i < n; i++)
        if (is_probe(&ways[i], small) && ways[i].request_s <= NEAR * least)
            near[n_near++] = ways[i].n_batch;
    for (int i = 0; i < n; i++)
        for (int k = 0; k < n_near; k++)
            if (ways[i].n_batch == near[k]) {
                ways[kept++] = ways[i];
                break;
            }
    return kept;
}

/* The best of one granularity whose prompt is no longer than most_s; out->placement NULL: none. */
static ats_status best_of(struct arena *arena, const struct items *items,
                          const struct decide_options *o, double most_s, struct decide_way *out) {
    struct decide_way ways[MAX_WAYS];
    int64_t budgets[MAX_WAYS];
    struct placement *placements;
    int n = list_ways(arena, items, o, ways);
    struct best best = {most_s, out};
    *out = (struct decide_way){0};
    if (n == 0) return no_way(o);
    for (int i = 0; i < n; i++)
        budgets[i] = (int64_t)ways[i].budget_bytes;
    TRY(placement_solve(arena, items, &o->placement, budgets, n, &placements));
    for (int i = 0; i < n; i++) {
        ways[i].placement = &placements[i];
        ways[i].granularity = o->placement.granularity;
        ways[i].prompt_tokens = o->placement.prompt_tokens;
    }
    if (o->n_batch == 0) n = of_best_chunks(arena, items, o, most_s, ways, n);
    for (int i = 0; i < n; i++) /* the most likely first: fewer of the others are timed in full */
        if (ways[i].request_s <= 0) time_way(arena, items, o, 1, &ways[i]);
    qsort(ways, (size_t)n, sizeof *ways, by_request);
    for (int i = 0; i < n; i++) {
        keep_better(arena, items, o, &ways[i], &best);
        if (o->runnable && !o->placement.fixed_units) try_simple(arena, items, o, &ways[i], &best);
    }
    return ATS_OK;
}

/* Whole items where they were placed, but shards of them streamed. */
static void stream_shards(struct arena *arena, const struct items *items,
                          const struct decide_options *o, const struct decide_way *whole,
                          struct best *best) {
    struct decide_way w = *whole;
    w.by_items = false;
    time_way(arena, items, o, 1, &w);
    keep_better(arena, items, o, &w, best);
}

/* Shards, but no prompt slower than whole items would have it: of placements that weigh prompts
 * more and more the first that is not, or whole items themselves, streamed whole or in shards. */
static ats_status best_of_shards(struct arena *arena, const struct items *items,
                                 const struct decide_options *o, struct decide_way *out) {
    struct decide_options whole = *o, shards = *o;
    struct decide_way other;
    whole.placement.granularity = GRANULARITY_TENSOR;
    whole.placement.scattered_experts = false;
    TRY(best_of(arena, items, &whole, HUGE_VAL, &other));
    other.by_items = true;
    TRY(best_of(arena, items, o, other.prompt_s, out));
    for (size_t i = 0; i < COUNT_OF(prompts) && !out->placement; i++) {
        if (prompts[i] <= o->placement.prompt_tokens) continue;
        shards.placement.prompt_tokens = prompts[i];
        TRY(best_of(arena, items, &shards, other.prompt_s, out));
    }
    if (!out->placement || other.request_s < out->request_s) *out = other;
    stream_shards(arena, items, o, &other, &(struct best){other.prompt_s, out});
    return ATS_OK;
}

static ats_status decide_granularity(struct arena *arena, const struct items *items,
                                     const struct decide_options *o, struct decide_way *out) {
    if (o->placement.granularity == GRANULARITY_SHARD) return best_of_shards(arena, items, o, out);
    return best_of(arena, items, o, HUGE_VAL, out);
}

/* ---- two programs ---- */

/* A placement for two programs is made for so many slots, small ones: what memory they leave to
 * weights is worth more than copies in one piece. A block takes several of them. */
static const int pair_slots[] = {2, 4};
#define PAIR_SLOT_BYTES 33554432.0
#define PAIR_SLOT_PART  4

/* A schedule for each; kept if prompts are faster, and the request is. */
static void try_pair(struct arena *arena, const struct items *items, const struct decide_options *o,
                     struct decide_way *w, struct decide_way *best) {
    time_two_programs(arena, items, o, PROMPT_PLACES, w);
    if (best->placement && w->request_s >= best->request_s) return;
    w->prompts_from = find_prompts_from(arena, items, o, w);
    if (w->prompts_from > 0) *best = *w;
}

/* Slots, and what they leave to weights and caches. False: not enough. */
static bool set_slots(const struct items *items, const struct decide_options *o, int n_slots,
                      double slot_bytes, struct decide_way *w) {
    w->n_slots = n_slots;
    w->slot_bytes = fmax(slot_bytes, schedule_least_slot_bytes(items, SCHEDULE_PAIR_PIECES, true));
    w->work_bytes = (double)schedule_work_bytes(items, w->n_batch);
    w->budget_bytes = o->device_bytes - w->work_bytes - w->n_slots * w->slot_bytes;
    return w->budget_bytes >= (double)o->fixed_bytes;
}

static ats_status try_placements(struct arena *arena, const struct items *items,
                                 const struct decide_options *o, int n_batch,
                                 struct decide_way *best) {
    struct decide_way ways[COUNT_OF(pair_slots)] = {0};
    int64_t budgets[COUNT_OF(pair_slots)];
    struct placement *placements;
    double slot_bytes = fmin(PAIR_SLOT_BYTES, most_slot_bytes(arena, items, o) / PAIR_SLOT_PART);
    int n = 0;
    for (size_t k = 0; k < COUNT_OF(pair_slots) && (k == 0 || o->n_slots < 0); k++) {
        ways[n].n_batch = n_batch;
        if (set_slots(items, o, o->n_slots >= 0 ? o->n_slots : pair_slots[k], slot_bytes, &ways[n]))
            budgets[n] = (int64_t)ways[n].budget_bytes, n++;
    }
    if (n == 0) return ATS_OK;
    TRY(placement_solve(arena, items, &o->placement, budgets, n, &placements));
    for (int i = 0; i < n; i++) {
        ways[i].placement = &placements[i];
        try_pair(arena, items, o, &ways[i], best);
    }
    return ATS_OK;
}

ats_status decide_pair(struct arena *arena, const struct items *items,
                       const struct decide_options *options, const struct decide_way *near,
                       struct decide_way *out) {
    struct decide_options o = *options;
    struct decide_way w = *near;
    *out = (struct decide_way){0};
    o.one_program = o.placement.prompts_in_place = false;
    if (!o.runnable || o.n_slots == 0 || items->profile->shared) return ATS_OK;
    bool fits = set_slots(items, &o, near->n_slots, near->slot_bytes, &w);
    int64_t bytes = near->placement->quanta * items->quantum_bytes;
    w.placement = placement_copy(arena, items, near->placement);
    if (fits && near->n_slots > 0 && (double)bytes <= w.budget_bytes)
        try_pair(arena, items, &o, &w, out);
    return try_placements(arena, items, &o, near->n_batch, out);
}

static ats_status decide_runnable(struct arena *arena, const struct items *items,
                                  const struct decide_options *o, struct decide_way *out) {
    struct decide_options one = *o;
    struct decide_way pair;
    one.one_program = one.placement.prompts_in_place = true;
    TRY(decide_granularity(arena, items, &one, out));
    if (o->one_program) return ATS_OK;
    TRY(decide_pair(arena, items, o, out, &pair));
    if (decide_pair_pays(out, &pair)) *out = pair;
    return ATS_OK;
}

ats_status decide(struct arena *arena, const struct items *items, const struct decide_options *o,
                  struct decide_way *out) {
    if (o->runnable) return decide_runnable(arena, items, o, out);
    return decide_granularity(arena, items, o, out);
}
