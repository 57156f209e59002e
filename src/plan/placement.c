#include "plan/placement_internal.h"

#include <limits.h>
#include <math.h>
#include <string.h>

struct placement_options placement_options_default(int n_ctx) {
    return (struct placement_options){
        .granularity = GRANULARITY_SHARD,
        .n_tokens = 1,
        .depths = {min_int(n_ctx / 2, 2048), min_int(n_ctx / 2, 8192)},
        .weights = {0.5, 0.5},
        .n_depths = 2,
        .prefill_tokens = 512,
        .prefill_depth = min_int(n_ctx / 2, 1024),
        .prompt_tokens = 4,
        .tie = 0.01};
}

struct solver {
    struct arena *arena;
    const struct items *items;
    struct placement_options o;
    struct objective objective;
    struct dp_stage *stages;
    int *first_block; /* (n_stages + 1) */
    int n_stages;
};

/* ---- objectives ---- */

static struct objective decode_objective(const struct placement_options *o) {
    struct objective out = {.n_terms = o->n_depths};
    for (int i = 0; i < o->n_depths; i++)
        out.terms[i] = (struct term){.weight = o->weights[i],
                                     .n_tokens = o->n_tokens,
                                     .n_rows = o->n_tokens,
                                     .depth = o->depths[i]};
    if (o->prompt_tokens > 0)
        out.terms[out.n_terms++] = prefill_term(o, o->prompt_tokens / o->prefill_tokens);
    return out;
}

/* ---- stages ---- */

/* Is what a block may do the same? Then it need not be computed again. */
static bool blocks_equal(const struct solver *s, int a, int b) {
    const struct items_block *p = &s->items->blocks[a], *q = &s->items->blocks[b];
    if (p->n != q->n || p->n_units != q->n_units || p->entry_width != q->entry_width) return false;
    if (s->o.fixed_units && s->o.fixed_units[a] != s->o.fixed_units[b]) return false;
    for (int i = 0; i < p->n; i++) {
        const struct item *x = &s->items->items[p->first + i];
        const struct item *y = &s->items->items[q->first + i];
        if (!profile_key_equal(&x->key, &y->key) || x->quanta != y->quanta ||
            x->weight_bytes != y->weight_bytes || x->kv_bytes != y->kv_bytes ||
            x->n_small != y->n_small || x->n_starts != y->n_starts || x->has_sum != y->has_sum ||
            x->rows != y->rows || x->span != y->span || x->from_entry != y->from_entry ||
            x->n_sources != y->n_sources || x->direct_width != y->direct_width ||
            x->measured != y->measured)
            return false;
        for (int k = 0; k < x->n_sources; k++)
            if (x->sources[k].item - p->first != y->sources[k].item - q->first) return false;
        if (x->experts != y->experts) return false;
        if (s->o.fixed && s->o.fixed[p->first + i] != s->o.fixed[q->first + i]) return false;
    }
    return true;
}

enum { REMEMBERED = 8 }; /* blocks looked back: a model has few kinds, in turn */

static void block_stage(struct solver *s, int block, int flags) {
    struct dp_stage *stage = &s->stages[s->n_stages];
    s->first_block[s->n_stages] = block;
    for (int k = s->n_stages - 1; k >= 0 && k >= s->n_stages - REMEMBERED; k--) {
        int end = k + 1 < s->n_stages ? s->first_block[k + 1] : block;
        if (end != s->first_block[k] + 1 || !blocks_equal(s, s->first_block[k], block)) continue;
        *stage = s->stages[k];
        s->n_stages++;
        return;
    }
    struct dp_choice *choices;
    choices_transitions(s->items, block, &s->objective, stage);
    stage->n_choices =
        choices_of_block(s->arena, s->items, block, &s->objective, &s->o, flags, &choices);
    stage->choices = choices;
    s->n_stages++;
}

static bool has_fixed(const struct solver *s, int block) {
    const struct items_block *b = &s->items->blocks[block];
    if (s->o.fixed_units && s->o.fixed_units[block] != PLACEMENT_FREE) return true;
    for (int i = b->first; s->o.fixed && i < b->first + b->n; i++)
        if (s->o.fixed[i] != PLACEMENT_FREE) return true;
    return false;
}

/* All of a layer on either side, as one stage. */
static void layer_stage(struct solver *s, int begin, int end) {
    struct dp_stage *stage = &s->stages[s->n_stages];
    struct dp_choice *choices = ARENA_ARRAY(s->arena, struct dp_choice, 2);
    s->first_block[s->n_stages++] = begin;
    choices_transitions(s->items, begin, &s->objective, stage);
    stage->choices = choices;
    stage->n_choices = 2;
    for (int on_gpu = 0; on_gpu < 2; on_gpu++) {
        struct dp_choice *c = &choices[on_gpu];
        int state = on_gpu ? STATE_G : STATE_C, exit, n_changes;
        *c = (struct dp_choice){.entry = (uint8_t)state, .exit = (uint8_t)state};
        c->mask = on_gpu ? UINT32_MAX : 0;
        for (int b = begin; b < end; b++) {
            const struct items_block *block = &s->items->blocks[b];
            for (int t = 0; t < s->objective.n_terms; t++)
                c->time_s += s->objective.terms[t].weight *
                             choices_path_time(s->items, b, &s->objective.terms[t], c->mask, state,
                                               &exit, &n_changes);
            for (int i = block->first; on_gpu && i < block->first + block->n; i++)
                c->quanta += s->items->items[i].quanta;
        }
    }
}

/* Layers as stages; those in which something is fixed block by block, what is free on one side. */
static void layer_stages(struct solver *s) {
    const struct items *items = s->items;
    for (int b = 0, end; b < items->n_blocks; b = end) {
        bool fixed = false;
        for (end = b; end < items->n_blocks && items->blocks[end].layer == items->blocks[b].layer;
             end++)
            fixed = fixed || has_fixed(s, end);
        if (!fixed) {
            layer_stage(s, b, end);
            continue;
        }
        for (int i = b; i < end; i++)
            block_stage(s, i, 0);
    }
    s->first_block[s->n_stages] = items->n_blocks;
}

static void block_stages(struct solver *s, int flags) {
    for (int b = 0; b < s->items->n_blocks; b++)
        block_stage(s, b, flags);
    s->first_block[s->n_stages] = s->items->n_blocks;
}

/* Equal blocks share choices, but what follows them differs: each stage gets its own. */
static void prune_stages(struct solver *s, double end_s) {
    for (int i = 0; i < s->n_stages; i++) {
        struct dp_stage *stage = &s->stages[i];
        size_t n = (size_t)stage->n_choices;
        struct dp_choice *own = ARENA_ARRAY(s->arena, struct dp_choice, n);
        memcpy(own, stage->choices, n * sizeof *own);
        stage->choices = own;
        stage->n_choices = choices_prune(own, stage->n_choices, stage,
                                         i + 1 < s->n_stages ? stage + 1 : NULL, end_s);
    }
}

/* ---- what was chosen ---- */

static struct placement new_placement(struct arena *arena, const struct items *items) {
    return (struct placement){.homes = ARENA_ARRAY(arena, uint8_t, items->n_items),
                              .units = ARENA_ARRAY(arena, int, items->n_blocks),
                              .residents = ARENA_ARRAY(arena, uint8_t *, items->n_blocks)};
}

static void take_block(const struct solver *s, int block, const struct dp_choice *c,
                       struct placement *out) {
    const struct items_block *b = &s->items->blocks[block];
    const struct item *item = &s->items->items[b->first];
    out->units[block] = c->units;
    for (int i = 0; i < b->n; i++)
        out->homes[b->first + i] =
            c->units > 0 || (c->mask >> min_int(i, 31) & 1) ? SIDE_GPU : SIDE_CPU;
    if (c->units > 0 && item->n_experts > 0)
        out->residents[block] = choices_residents(s->arena, item, c->units, s->o.scattered_experts);
}

static void take(const struct solver *s, const int *choices, struct placement *out) {
    *out = new_placement(s->arena, s->items);
    for (int i = 0; i < s->n_stages; i++)
        for (int b = s->first_block[i]; b < s->first_block[i + 1]; b++)
            take_block(s, b, &s->stages[i].choices[choices[i]], out);
    placement_finish(s->items, &s->o, out);
}

static int budget_quanta(const struct items *items, int64_t bytes) {
    return (int)min_i64(bytes / items->quantum_bytes, items->total_quanta);
}

/* One table for all budgets; found[i]: something fits. */
static void solve(struct solver *s, const int64_t *budgets, int n, struct placement *out,
                  bool *found) {
    int most = 0, least = INT_MAX, *choices = ARENA_ARRAY(s->arena, int, s->n_stages);
    double end_s = choices_end(s->items, &s->objective), time_s;
    for (int i = 0; i < n; i++) {
        most = max_int(most, budget_quanta(s->items, budgets[i]));
        least = min_int(least, budget_quanta(s->items, budgets[i]));
    }
    prune_stages(s, end_s);
    struct dp_table *table = dp_solve(s->stages, s->n_stages, least, most, end_s);
    for (int i = 0; i < n; i++) {
        found[i] = dp_read(table, budget_quanta(s->items, budgets[i]), choices, &time_s);
        if (found[i]) take(s, choices, &out[i]);
    }
    dp_free(table);
}

/* ---- granularities ---- */

static struct solver new_solver(struct arena *arena, const struct items *items,
                                const struct placement_options *o, const struct objective *obj) {
    return (struct solver){.arena = arena,
                           .items = items,
                           .o = *o,
                           .objective = *obj,
                           .stages = ARENA_ARRAY(arena, struct dp_stage, items->n_blocks),
                           .first_block = ARENA_ARRAY(arena, int, items->n_blocks + 1)};
}

/* fixed, with all experts, or all else, at home on a side as well. */
static int *pinned(struct arena *arena, const struct items *items, const int *fixed, bool experts,
                   enum side side) {
    int *out = ARENA_ARRAY(arena, int, items->n_items);
    for (int i = 0; i < items->n_items; i++) {
        out[i] = fixed ? fixed[i] : PLACEMENT_FREE;
        if (out[i] == PLACEMENT_FREE && (items->items[i].n_experts > 0) == experts)
            out[i] = (int)side;
    }
    return out;
}

static bool has_experts(const struct items *items) {
    for (int i = 0; i < items->n_items; i++)
        if (items->items[i].n_experts > 0) return true;
    return false;
}

/* Solves under pins first, and without (or under others) where they do not fit. */
static void solve_pinned(struct solver *s, const int64_t *budgets, int n, struct placement *out,
                         bool *found) {
    bool paper = s->o.granularity == GRANULARITY_TENSOR;
    struct placement *other = ARENA_ARRAY(s->arena, struct placement, n);
    bool *other_found = ARENA_ARRAY(s->arena, bool, n);
    struct solver rest = new_solver(s->arena, s->items, &s->o, &s->objective);
    const int *fixed = s->o.fixed;
    s->o.fixed = pinned(s->arena, s->items, fixed, false, SIDE_GPU);
    block_stages(s, paper ? CHOICES_PATHS : 0);
    solve(s, budgets, n, out, found);
    if (paper) {
        rest.o.fixed = pinned(s->arena, s->items, fixed, true, SIDE_CPU);
        block_stages(&rest, CHOICES_PATHS);
    } else {
        layer_stages(&rest);
    }
    solve(&rest, budgets, n, other, other_found);
    for (int i = 0; i < n; i++)
        if (!found[i]) out[i] = other[i], found[i] = other_found[i];
}

static void solve_for(struct arena *arena, const struct items *items,
                      const struct placement_options *o, const struct objective *objective,
                      const int64_t *budgets, int n, struct placement *out, bool *found) {
    struct solver s = new_solver(arena, items, o, objective);
    bool pins = o->granularity == GRANULARITY_EXPERT ||
                (o->granularity == GRANULARITY_TENSOR && o->paper_moe);
    if (pins && has_experts(items)) {
        solve_pinned(&s, budgets, n, out, found);
        return;
    }
    if (o->granularity == GRANULARITY_LAYER || o->granularity == GRANULARITY_EXPERT)
        layer_stages(&s);
    else
        block_stages(&s,
                     CHOICES_PATHS | (o->granularity == GRANULARITY_SHARD ? CHOICES_SPLITS : 0));
    solve(&s, budgets, n, out, found);
}

/* A placement no more than `tie` slower that is better at prefill. Whatever minimises decode plus
 * tie * decode / host cost (of the best one) times host cost is: its decode is at most 1 + tie
 * times the best, and less is on the host. */
static void better_prefill(struct arena *arena, const struct items *items,
                           const struct placement_options *o, const int64_t *budgets, int n,
                           struct placement *out) {
    struct objective objective = decode_objective(o);
    struct placement *other = ARENA_ARRAY(arena, struct placement, n);
    bool *found = ARENA_ARRAY(arena, bool, n);
    double cost = placement_host_cost(items, o, &out[0]);
    if (o->tie <= 0 || o->prompt_tokens > 0 || o->prompts_in_place || !(cost > 0)) return;
    objective.terms[objective.n_terms++] = prefill_term(o, o->tie * out[0].decode_s / cost);
    solve_for(arena, items, o, &objective, budgets, n, other, found);
    for (int i = 0; i < n; i++)
        if (found[i] && other[i].prefill_s < out[i].prefill_s &&
            other[i].decode_s <= out[i].decode_s * (1 + o->tie))
            out[i] = other[i];
}

ats_status placement_solve(struct arena *arena, const struct items *items,
                           const struct placement_options *options, const int64_t *budgets_bytes,
                           int n_budgets, struct placement **out) {
    struct objective objective = decode_objective(options);
    bool *found = ARENA_ARRAY(arena, bool, n_budgets);
    REQUIRE(options->n_depths >= 1 && options->n_depths <= PLACEMENT_MAX_DEPTHS);
    *out = ARENA_ARRAY(arena, struct placement, n_budgets);
    for (int i = 0; i < n_budgets; i++)
        if (budgets_bytes[i] < 0)
            return fail(ATS_BAD_ARGUMENT, "no device memory is left for weights: %lld MiB too few",
                        (long long)(-budgets_bytes[i] >> 20) + 1);
    solve_for(arena, items, options, &objective, budgets_bytes, n_budgets, *out, found);
    for (int i = 0; i < n_budgets; i++)
        if (!found[i])
            return fail(ATS_BAD_ARGUMENT, "what is fixed on the GPU does not fit into %lld MiB",
                        (long long)(budgets_bytes[i] >> 20));
    better_prefill(arena, items, options, budgets_bytes, n_budgets, *out);
    return ATS_OK;
}
