/* Placements once they are there: their sizes and times, by hand, and as plans. */
#include "plan/placement_internal.h"

#include <math.h>
#include <string.h>

/* ---- times ---- */

static uint32_t block_mask(const struct items_block *b, const struct placement *p) {
    uint32_t mask = 0;
    for (int i = 0; i < b->n; i++)
        if (p->homes[b->first + i] == SIDE_GPU) mask |= 1U << i;
    return mask;
}

/* The least time of being in each state, and the device changes on that way. */
struct walk {
    double time_s[N_STATES];
    int n_changes[N_STATES];
};

static void reach(struct walk *w, int state, double time_s, int n_changes) {
    if (!(time_s < w->time_s[state])) return;
    w->time_s[state] = time_s;
    w->n_changes[state] = n_changes;
}

static struct walk nowhere(void) {
    return (struct walk){.time_s = {HUGE_VAL, HUGE_VAL, HUGE_VAL}};
}

static void walk_divided(const struct items *items, const struct placement *p, int block,
                         const struct term *t, const struct dp_stage *stage, struct walk *w) {
    struct walk after = nowhere();
    double no_miss,
        s = choices_split_time(items, block, t, p->units[block], p->residents[block], &no_miss);
    double gather = choices_gather_time(items, block, t, no_miss);
    for (int from = 0; from < N_STATES; from++) {
        double at = w->time_s[from] + dp_transition(stage, from, STATE_B) + s;
        reach(&after, STATE_B, at, w->n_changes[from] + 1);
        if (p->residents[block]) reach(&after, STATE_G, at + gather, w->n_changes[from] + 2);
    }
    *w = after;
}

static void walk_whole(const struct items *items, const struct placement *p, int block,
                       const struct term *t, const struct dp_stage *stage, struct walk *w) {
    struct walk after = nowhere();
    uint32_t mask = block_mask(&items->blocks[block], p);
    for (int entry = STATE_C; entry <= STATE_G; entry++) {
        int exit, n_changes;
        double s = choices_path_time(items, block, t, mask, entry, &exit, &n_changes);
        for (int from = 0; from < N_STATES; from++)
            reach(&after, exit, w->time_s[from] + dp_transition(stage, from, entry) + s,
                  w->n_changes[from] + n_changes + (from != entry));
    }
    *w = after;
}

/* One block after another, by every way that its homes leave open: where the activations stand when
 * it is entered, and whether sums stay apart. */
static void walk(const struct items *items, const struct placement *p, const struct term *t,
                 double *time_s, int *n_changes) {
    struct walk w = nowhere();
    struct objective one = {.terms = {*t}, .n_terms = 1};
    one.terms[0].weight = 1;
    w.time_s[STATE_C] = 0;
    for (int b = 0; b < items->n_blocks; b++) {
        struct dp_stage stage = {0};
        choices_transitions(items, b, &one, &stage);
        if (p->units[b] > 0)
            walk_divided(items, p, b, t, &stage, &w);
        else
            walk_whole(items, p, b, t, &stage, &w);
    }
    double end_s = choices_end(items, &one);
    reach(&w, STATE_C, w.time_s[STATE_G] + end_s, w.n_changes[STATE_G] + 1);
    reach(&w, STATE_C, w.time_s[STATE_B] + end_s, w.n_changes[STATE_B] + 1);
    *time_s = w.time_s[STATE_C];
    *n_changes = w.n_changes[STATE_C];
}

double placement_time(const struct items *items, const struct placement *p, double n_tokens,
                      double n_rows, double depth) {
    struct term t = {.weight = 1, .n_tokens = n_tokens, .n_rows = n_rows, .depth = depth};
    double time_s;
    int n_changes;
    walk(items, p, &t, &time_s, &n_changes);
    return time_s;
}

int placement_splits(const struct items *items, const struct placement *p) {
    struct term t = {.weight = 1, .n_tokens = 1, .n_rows = 1};
    double time_s;
    int n_changes;
    walk(items, p, &t, &time_s, &n_changes);
    return n_changes;
}

/* ---- sizes ---- */

static int64_t split_bytes(const struct items *items, int block, int units) {
    const struct items_block *b = &items->blocks[block];
    int64_t bytes = 0;
    for (int i = b->first; i < b->first + b->n; i++) {
        int64_t all = items->items[i].weight_bytes + items->items[i].kv_bytes;
        bytes += (int64_t)((double)all * units / b->n_units);
    }
    return bytes;
}

double placement_gpu_share(const struct items *items, const struct placement *p, int item) {
    int block = items->items[item].block;
    if (p->units[block] > 0) return (double)p->units[block] / items->blocks[block].n_units;
    return p->homes[item] == SIDE_GPU;
}

double placement_host_share(const struct items *items, const struct placement *p, int i,
                            double n_tokens) {
    const struct item *item = &items->items[i];
    const struct items_block *b = &items->blocks[item->block];
    double hits = 0, in_use = 0;
    if (p->units[item->block] == 0) return p->homes[i] == SIDE_CPU;
    if (!p->residents[item->block]) return 1 - (double)p->units[item->block] / b->n_units;
    for (int e = 0; e < item->n_experts; e++) {
        double use = items_use(item, e, n_tokens);
        in_use += use;
        if (p->residents[item->block][e]) hits += use;
    }
    return 1 - hits / in_use;
}

struct term prefill_term(const struct placement_options *o, double weight) {
    return (struct term){.weight = weight,
                         .n_tokens = o->prefill_tokens,
                         .n_rows = 1,
                         .depth = o->prefill_depth,
                         .streamed = !o->prompts_in_place};
}

double placement_host_cost(const struct items *items, const struct placement_options *o,
                           const struct placement *p) {
    struct term t = prefill_term(o, 1);
    double s = 0;
    for (int i = 0; i < items->n_items; i++)
        s += choices_host_time(items, i, &t,
                               placement_host_share(items, p, i, term_lines(items, i, &t)));
    return s;
}

/* A chunk of a prompt: as it is placed, or with everything on the GPU but attention on host caches,
 * the host's weights copied at the same time; whichever is sooner. */
static double prefill_time(const struct items *items, const struct placement_options *o,
                           const struct placement *p) {
    int n_tokens = o->prefill_tokens, depth = o->prefill_depth;
    struct term t = prefill_term(o, 1);
    double gpu = 0, copies = 0, caches = 0, in_place = placement_time(items, p, n_tokens, 1, depth);
    if (o->prompts_in_place) return in_place;
    for (int i = 0; i < items->n_items; i++) {
        double share = placement_host_share(items, p, i, term_lines(items, i, &t)),
               s = choices_host_time(items, i, &t, share);
        bool cache = items->items[i].kv_bytes > 0;
        if (cache)
            caches += s;
        else
            copies += s;
        gpu +=
            items_time(items, i, SIDE_GPU, term_lines(items, i, &t), depth, cache ? 1 - share : 1);
    }
    double width = items->blocks[0].entry_width;
    return fmin(in_place,
                fmax(gpu, copies) + caches + items_up_time(items, n_tokens, width) +
                    items_down_time(items, 1, items->blocks[items->n_blocks - 1].exit_width));
}

void placement_finish(const struct items *items, const struct placement_options *options,
                      struct placement *p) {
    p->quanta = 0, p->gpu_bytes = 0, p->decode_s = 0;
    for (int b = 0; b < items->n_blocks; b++) {
        const struct items_block *block = &items->blocks[b];
        if (p->units[b] > 0) {
            p->quanta += items_share_quanta(items, b, p->units[b]);
            p->gpu_bytes += split_bytes(items, b, p->units[b]);
            continue;
        }
        for (int i = block->first; i < block->first + block->n; i++) {
            const struct item *item = &items->items[i];
            if (p->homes[i] != SIDE_GPU) continue;
            p->quanta += item->quanta;
            p->gpu_bytes += item->weight_bytes + item->kv_bytes;
        }
    }
    for (int i = 0; i < options->n_depths; i++)
        p->decode_s += options->weights[i] * placement_time(items, p, options->n_tokens,
                                                            options->n_tokens, options->depths[i]);
    p->prefill_s = prefill_time(items, options, p);
    p->objective_s = p->decode_s;
    double prompt_s =
        options->prompts_in_place ? p->prefill_s : placement_host_cost(items, options, p);
    if (options->prompt_tokens > 0)
        p->objective_s += prompt_s * options->prompt_tokens / options->prefill_tokens;
}

/* ---- by hand ---- */

struct placement *placement_blank(struct arena *arena, const struct items *items) {
    struct placement *p = ARENA_NEW(arena, struct placement);
    p->homes = ARENA_ARRAY(arena, uint8_t, items->n_items);
    p->units = ARENA_ARRAY(arena, int, items->n_blocks);
    p->residents = ARENA_ARRAY(arena, uint8_t *, items->n_blocks);
    return p;
}

struct placement *placement_copy(struct arena *arena, const struct items *items,
                                 const struct placement *from) {
    struct placement *p = placement_blank(arena, items), to = *from;
    to.homes = memcpy(p->homes, from->homes, (size_t)items->n_items);
    to.units = memcpy(p->units, from->units, sizeof *to.units * (size_t)items->n_blocks);
    to.residents = p->residents;
    for (int b = 0; b < items->n_blocks; b++) {
        size_t n = (size_t)items->items[items->blocks[b].first].n_experts;
        if (from->residents[b])
            to.residents[b] = memcpy(ARENA_ARRAY(arena, uint8_t, n), from->residents[b], n);
    }
    *p = to;
    return p;
}

bool placement_same(const struct items *items, const struct placement *a,
                    const struct placement *b) {
    if (memcmp(a->homes, b->homes, (size_t)items->n_items) != 0 ||
        memcmp(a->units, b->units, sizeof(int) * (size_t)items->n_blocks) != 0)
        return false;
    for (int i = 0; i < items->n_blocks; i++) {
        const uint8_t *x = a->residents[i], *y = b->residents[i];
        if (!x != !y) return false;
        int n = items->items[items->blocks[i].first].n_experts;
        if (x && memcmp(x, y, (size_t)n) != 0) return false;
    }
    return true;
}

struct placement *placement_whole(struct arena *arena, const struct items *items,
                                  const struct placement_options *options, enum side side) {
    struct placement *p = placement_blank(arena, items);
    for (int i = 0; i < items->n_items; i++)
        p->homes[i] = (uint8_t)side;
    placement_finish(items, options, p);
    return p;
}

struct placement *placement_layers(struct arena *arena, const struct items *items,
                                   const struct placement_options *options, int n, bool last) {
    struct placement *p = placement_blank(arena, items);
    int n_layers = 0, at = 0;
    for (int b = 0; b < items->n_blocks; b++)
        n_layers += b == 0 || items->blocks[b].layer != items->blocks[b - 1].layer;
    for (int b = 0; b < items->n_blocks; b++) {
        const struct items_block *block = &items->blocks[b];
        at += b > 0 && block->layer != items->blocks[b - 1].layer;
        bool on_gpu = last ? at >= n_layers - n : at < n;
        for (int i = block->first; i < block->first + block->n; i++)
            p->homes[i] = on_gpu ? SIDE_GPU : SIDE_CPU;
    }
    placement_finish(items, options, p);
    return p;
}
