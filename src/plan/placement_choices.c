/* What a block may do, and what it costs: its items on either side, or divided in units. */
#include "plan/placement_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Shares of a block that the program chooses among, and those that find where to end. */
enum { SPLIT_STEPS = 64, SPLIT_PROBES = 16 };

/* ---- times of a block ---- */

double choices_host_time(const struct items *items, int i, const struct term *t, double share) {
    const struct item *item = &items->items[i];
    double lines = term_lines(items, i, t);
    if (share <= 0) return 0;
    if (item->kv_bytes > 0)
        return items_time(items, i, SIDE_CPU, lines, t->depth, share) +
               items_down_time(items, lines, share * item->direct_width) +
               items_up_time(items, lines, share * item->out_width);
    if (items->profile->shared) return 0;
    return share * items_active_bytes(items, i, lines) / items->profile->link.up_pinned;
}

double choices_crossing_width(const struct items *items, const struct items_block *b, int i,
                              uint32_t mask, int entry, uint32_t *crossed) {
    const struct item *item = &items->items[b->first + i];
    int device = mask >> i & 1, n_remote = 0;
    double width = 0;
    for (int k = 0; k < item->n_sources; k++) {
        int source = item->sources[k].item - b->first;
        if ((int)(mask >> source & 1) == device) continue;
        n_remote++;
        if (*crossed >> source & 1) continue;
        *crossed |= 1U << source;
        width += item->sources[k].width;
    }
    /* what is made of several results (gate and up) may be made where they are, and cross */
    if (n_remote == item->n_sources && !item->from_entry) width = fmin(width, item->direct_width);
    if (item->from_entry && entry != device && !(*crossed >> b->n & 1)) {
        *crossed |= 1U << b->n;
        width += b->entry_width;
    }
    return width;
}

double choices_path_time(const struct items *items, int block, const struct term *t, uint32_t mask,
                         int entry, int *exit, int *n_changes) {
    const struct items_block *b = &items->blocks[block];
    uint32_t crossed = 0;
    double s = 0;
    *n_changes = 0;
    *exit = mask >> (b->n - 1) & 1 ? STATE_G : STATE_C;
    for (int i = 0; i < b->n && t->streamed; i++)
        if (!(mask >> i & 1)) s += choices_host_time(items, b->first + i, t, 1);
    for (int i = 0; i < b->n && !t->streamed; i++) {
        enum side side = mask >> i & 1 ? SIDE_GPU : SIDE_CPU;
        double width = choices_crossing_width(items, b, i, mask, entry, &crossed);
        if (width > 0) {
            double lines = term_lines(items, b->first + i, t);
            s += side == SIDE_GPU ? items_up_time(items, lines, width)
                                  : items_down_time(items, lines, width);
            ++*n_changes;
        }
        s += items_time(items, b->first + i, side, term_lines(items, b->first + i, t), t->depth, 1);
    }
    return s;
}

enum { MAX_HITS = 32 }; /* experts in use whose number is treated as chance; above, as its mean */

/* Probabilities of 0..n hits of n, each with probability p. */
static void binomial(int n, double p, double *out) {
    memset(out, 0, sizeof *out * (size_t)(n + 1));
    out[0] = 1;
    for (int i = 1; i <= n; i++)
        for (int j = i; j >= 0; j--)
            out[j] = out[j] * (1 - p) + (j > 0 ? out[j - 1] * p : 0);
}

/* Experts: the expectation of the longer side over how many of those in use are resident.
 * *no_miss: the probability that all are, and the host has nothing to send. */
static double experts_split(const struct items *items, int block, const struct term *t,
                            double in_use, double hits, double *no_miss) {
    const struct items_block *b = &items->blocks[block];
    double share = fmin(hits / in_use, 1), probability[MAX_HITS + 1], s = 0;
    double lines = term_lines(items, b->first, t);
    int n = (int)fmin(round(in_use), MAX_HITS + 1);
    *no_miss = share >= 1 ? 1 : 0;
    bool chance = n <= MAX_HITS && in_use < ITEMS_MOST_EXPERTS * items->items[b->first].n_experts;
    if (share <= 0 || share >= 1 || !chance)
        return fmax(items_experts_time(items, b->first, SIDE_GPU, lines, in_use, share),
                    items_experts_time(items, b->first, SIDE_CPU, lines, in_use, 1 - share));
    binomial(n, share, probability);
    for (int j = 0; j <= n; j++) {
        double x = (double)j / n;
        s += probability[j] *
             fmax(items_experts_time(items, b->first, SIDE_GPU, lines, in_use, x),
                  items_experts_time(items, b->first, SIDE_CPU, lines, in_use, 1 - x));
    }
    *no_miss = probability[n];
    return s;
}

/* The host's share of a block in a streamed round. */
static double host_share_time(const struct items *items, int block, const struct term *t,
                              double share) {
    const struct items_block *b = &items->blocks[block];
    double s = 0;
    for (int i = b->first; i < b->first + b->n; i++)
        s += choices_host_time(items, i, t, share);
    return s;
}

/* Probability of each expert to be used in the round: (n_experts). Returns their sum. */
static double experts_use(const struct items *items, int item, const struct term *t, double *out) {
    const struct item *x = &items->items[item];
    double sum = 0;
    for (int e = 0; e < x->n_experts; e++)
        sum += out[e] = items_use(x, e, term_lines(items, item, t));
    return sum;
}

static double hits_of(const struct item *item, const double *use, const uint8_t *residents) {
    double hits = 0;
    for (int e = 0; e < item->n_experts; e++)
        if (residents[e]) hits += use[e];
    return hits;
}

static double divided(const struct items *items, int block, const struct term *t, double x) {
    const struct items_block *b = &items->blocks[block];
    double gpu = 0, cpu = 0;
    if (t->streamed) return host_share_time(items, block, t, 1 - x);
    for (int i = b->first; i < b->first + b->n; i++) {
        double lines = term_lines(items, i, t);
        gpu += items_time(items, i, SIDE_GPU, lines, t->depth, x);
        cpu += items_time(items, i, SIDE_CPU, lines, t->depth, 1 - x);
    }
    return fmax(gpu, cpu);
}

double choices_split_time(const struct items *items, int block, const struct term *t, int units,
                          const uint8_t *residents, double *no_miss) {
    const struct items_block *b = &items->blocks[block];
    const struct item *item = &items->items[b->first];
    *no_miss = 0;
    if (!residents) return divided(items, block, t, (double)units / b->n_units);
    double *use = xcalloc((size_t)item->n_experts, sizeof *use);
    double in_use = experts_use(items, b->first, t, use), hits = hits_of(item, use, residents);
    free(use);
    if (t->streamed) return host_share_time(items, block, t, 1 - hits / in_use);
    return experts_split(items, block, t, in_use, hits, no_miss);
}

double choices_gather_time(const struct items *items, int block, const struct term *t,
                           double no_miss) {
    const struct items_block *b = &items->blocks[block];
    if (t->streamed) return 0;
    return (1 - no_miss) * items_up_time(items, term_lines(items, b->first, t), b->exit_width);
}

void choices_transitions(const struct items *items, int block, const struct objective *o,
                         struct dp_stage *stage) {
    double width = items->blocks[block].entry_width;
    stage->up_s = stage->down_s = stage->exchange_s = 0;
    for (int i = 0; i < o->n_terms; i++) {
        const struct term *t = &o->terms[i];
        double lines = term_lines(items, items->blocks[block].first, t);
        if (t->streamed) continue;
        stage->up_s += t->weight * items_up_time(items, lines, width);
        stage->down_s += t->weight * items_down_time(items, lines, width);
        stage->exchange_s += t->weight * items_exchange_time(items, lines, width);
    }
}

double choices_end(const struct items *items, const struct objective *o) {
    double s = 0;
    for (int i = 0; i < o->n_terms; i++)
        s += o->terms[i].weight * items_down_time(items, o->terms[i].n_rows,
                                                  items->blocks[items->n_blocks - 1].exit_width);
    return s;
}

/* ---- which experts ---- */

uint8_t *choices_residents(struct arena *arena, const struct item *item, int units,
                           bool scattered) {
    int n = item->n_experts;
    uint8_t *out = ARENA_ARRAY(arena, uint8_t, n);
    if (scattered) {
        for (int e = 0; e < units; e++)
            out[item->experts->order[e]] = 1;
        return out;
    }
    const double *p = item->experts->popularity;
    double first = 0, last = 0;
    for (int e = 0; e < units; e++)
        first += p[e], last += p[n - 1 - e];
    memset(first >= last ? out : out + n - units, 1, (size_t)units);
    return out;
}

/* ---- the choices ---- */

struct chooser {
    struct arena *arena;
    const struct items *items;
    int block;
    const struct objective *o;
    const struct placement_options *options;
    struct dp_choice *choices;
    size_t n, cap;
};

static void add(struct chooser *c, struct dp_choice choice) {
    GROW(c->choices, c->n, c->cap, 1);
    c->choices[c->n++] = choice;
}

static int mask_quanta(const struct items *items, const struct items_block *b, uint32_t mask) {
    int quanta = 0;
    for (int i = 0; i < b->n; i++)
        if (mask >> i & 1) quanta += items->items[b->first + i].quanta;
    return quanta;
}

static void add_path(struct chooser *c, uint32_t mask, int entry) {
    const struct items_block *b = &c->items->blocks[c->block];
    int exit = STATE_C, n_changes;
    double s = 0;
    for (int i = 0; i < c->o->n_terms; i++)
        s += c->o->terms[i].weight *
             choices_path_time(c->items, c->block, &c->o->terms[i], mask, entry, &exit, &n_changes);
    add(c, (struct dp_choice){.quanta = mask_quanta(c->items, b, mask),
                              .time_s = s,
                              .entry = (uint8_t)entry,
                              .exit = (uint8_t)exit,
                              .mask = mask});
}

static void add_split(struct chooser *c, int units, double s, int exit) {
    add(c, (struct dp_choice){.quanta = items_share_quanta(c->items, c->block, units),
                              .time_s = s,
                              .entry = STATE_B,
                              .exit = (uint8_t)exit,
                              .units = units});
}

static double split_time(const struct chooser *c, int units) {
    double s = 0, no_miss;
    for (int i = 0; i < c->o->n_terms; i++)
        s += c->o->terms[i].weight *
             choices_split_time(c->items, c->block, &c->o->terms[i], units, NULL, &no_miss);
    return s;
}

/* Shares up to a little above the best one: there the GPU takes as long as the CPU, and beyond it
 * bytes only add time. */
static void add_divisions(struct chooser *c) {
    int most = c->items->blocks[c->block].n_units - 1, probes = min_int(most, SPLIT_PROBES);
    double best = HUGE_VAL;
    int end = most;
    for (int i = 1; i <= probes; i++) {
        double s = split_time(c, (int)((int64_t)most * i / probes));
        if (!(s < best)) continue;
        best = s;
        end = (int)((int64_t)most * min_int(i + 1, probes) / probes);
    }
    int steps = min_int(end, SPLIT_STEPS);
    for (int i = 1; i <= steps; i++) {
        int units = (int)((int64_t)end * i / steps);
        add_split(c, units, split_time(c, units), STATE_B);
    }
}

/* Probabilities of use, of each term. */
struct expert_use {
    double *use[PLACEMENT_MAX_DEPTHS + 2], in_use[PLACEMENT_MAX_DEPTHS + 2];
};

/* So many resident experts: the sums stay apart, or the host's is brought up if it has any. */
static void add_residents(struct chooser *c, const struct expert_use *u, int units) {
    const struct items_block *b = &c->items->blocks[c->block];
    const struct item *item = &c->items->items[b->first];
    const uint8_t *residents =
        choices_residents(c->arena, item, units, c->options->scattered_experts);
    double s = 0, gathered = 0, no_miss = 0;
    for (int i = 0; i < c->o->n_terms; i++) {
        const struct term *t = &c->o->terms[i];
        double hits = hits_of(item, u->use[i], residents);
        double one = t->streamed
                         ? host_share_time(c->items, c->block, t, 1 - hits / u->in_use[i])
                         : experts_split(c->items, c->block, t, u->in_use[i], hits, &no_miss);
        s += t->weight * one;
        gathered += t->weight * (one + choices_gather_time(c->items, c->block, t, no_miss));
    }
    add_split(c, units, s, STATE_B);
    add_split(c, units, gathered, STATE_G);
}

static void add_resident_sets(struct chooser *c, int fixed_units) {
    const struct items_block *b = &c->items->blocks[c->block];
    struct expert_use u;
    for (int i = 0; i < c->o->n_terms; i++) {
        u.use[i] = ARENA_ARRAY(c->arena, double, c->items->items[b->first].n_experts);
        u.in_use[i] = experts_use(c->items, b->first, &c->o->terms[i], u.use[i]);
    }
    if (fixed_units != PLACEMENT_FREE) {
        add_residents(c, &u, fixed_units);
        return;
    }
    int steps = min_int(b->n_units - 1, SPLIT_STEPS);
    for (int k = 1; k <= steps; k++)
        add_residents(c, &u, (int)((int64_t)(b->n_units - 1) * k / steps));
}

/* Divided: in `fixed_units`, or in any that are worth it. */
static void add_splits(struct chooser *c, int fixed_units) {
    if (c->items->items[c->items->blocks[c->block].first].n_experts > 0)
        add_resident_sets(c, fixed_units);
    else if (fixed_units != PLACEMENT_FREE)
        add_split(c, fixed_units, split_time(c, fixed_units), STATE_B);
    else
        add_divisions(c);
}

/* The items that are free, and those fixed on the GPU. */
static void read_fixed(const struct chooser *c, uint32_t *free_mask, uint32_t *gpu_mask) {
    const struct items_block *b = &c->items->blocks[c->block];
    *free_mask = *gpu_mask = 0;
    for (int i = 0; i < b->n; i++) {
        int home = c->options->fixed ? c->options->fixed[b->first + i] : PLACEMENT_FREE;
        if (home == PLACEMENT_FREE) *free_mask |= 1U << i;
        if (home == SIDE_GPU) *gpu_mask |= 1U << i;
    }
}

int choices_of_block(struct arena *arena, const struct items *items, int block,
                     const struct objective *o, const struct placement_options *options, int flags,
                     struct dp_choice **out) {
    struct chooser c = {arena, items, block, o, options, NULL, 0, 0};
    const struct items_block *b = &items->blocks[block];
    uint32_t free_mask, gpu_mask, all = (1U << b->n) - 1;
    int units = options->fixed_units ? options->fixed_units[block] : PLACEMENT_FREE;
    read_fixed(&c, &free_mask, &gpu_mask);
    bool paths = (flags & CHOICES_PATHS) && b->n <= PATH_MAX_ITEMS;
    if (units != PLACEMENT_FREE)
        add_splits(&c, units);
    else
        for (uint32_t mask = 0; mask <= all; mask = paths || mask == all ? mask + 1 : all) {
            /* without paths: nothing that is free, and all of it */
            uint32_t homes = paths ? mask : (mask & free_mask) | gpu_mask;
            if (paths && (mask & ~free_mask) != gpu_mask) continue;
            add_path(&c, homes, STATE_C);
            add_path(&c, homes, STATE_G);
        }
    if (units == PLACEMENT_FREE && (flags & CHOICES_SPLITS) && free_mask == all && b->n_units > 1)
        add_splits(&c, PLACEMENT_FREE);
    *out = arena_adopt(arena, c.choices, c.n * sizeof *c.choices);
    return (int)c.n;
}

/* ---- pruning ---- */

/* What going on from exit a costs at most more than from exit b, whatever comes next. */
static double exit_cost(const struct dp_stage *next, double end_s, int a, int b) {
    double most = 0;
    if (a == b) return 0;
    if (!next) return a == STATE_C ? 0 : b == STATE_C ? end_s : 0;
    for (int to = 0; to < N_STATES; to++)
        most = fmax(most, dp_transition(next, a, to) - dp_transition(next, b, to));
    return most;
}
/* The same of entering at a instead of b. */
static double entry_cost(const struct dp_stage *here, int a, int b) {
    double most = 0;
    if (a == b) return 0;
    for (int from = 0; from < N_STATES; from++)
        most = fmax(most, dp_transition(here, from, a) - dp_transition(here, from, b));
    return most;
}

/* By bytes, then time, then the state: a strict order, so that of two equal ones one is left. */
static int by_bytes(const void *pa, const void *pb) {
    const struct dp_choice *a = pa, *b = pb;
    if (a->quanta != b->quanta) return a->quanta < b->quanta ? -1 : 1;
    if (a->time_s != b->time_s) return a->time_s < b->time_s ? -1 : 1;
    if (a->exit != b->exit) return a->exit < b->exit ? -1 : 1;
    if (a->entry != b->entry) return a->entry < b->entry ? -1 : 1;
    if (a->mask != b->mask) return a->mask < b->mask ? -1 : 1;
    return a->units < b->units ? -1 : a->units > b->units;
}

int choices_prune(struct dp_choice *choices, int n, const struct dp_stage *here,
                  const struct dp_stage *next, double end_s) {
    int kept = 0;
    double entry[N_STATES][N_STATES], exit[N_STATES][N_STATES];
    for (int a = 0; a < N_STATES; a++)
        for (int b = 0; b < N_STATES; b++) {
            entry[a][b] = entry_cost(here, a, b);
            exit[a][b] = exit_cost(next, end_s, a, b);
        }
    qsort(choices, (size_t)n, sizeof *choices, by_bytes);
    for (int i = 0; i < n; i++) {
        const struct dp_choice c = choices[i];
        bool needed = true;
        for (int k = 0; needed && k < kept; k++) /* all that are kept take no more bytes */
            needed = choices[k].time_s + entry[choices[k].entry][c.entry] +
                         exit[choices[k].exit][c.exit] >
                     c.time_s;
        if (needed) choices[kept++] = c;
    }
    return kept;
}
