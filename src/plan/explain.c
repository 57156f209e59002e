#include "plan/explain.h"

#include <math.h>
#include "plan/placement_internal.h"

const int explain_depths[EXPLAIN_DEPTHS] = {0, 2048, 8192, 32768};

static const int64_t gib = INT64_C(1) << 30;
static const int64_t price_step = INT64_C(256) << 20; /* to both sides of the budget */

const char *explain_reason_text(enum explain_reason reason) {
    static const char *const texts[N_EXPLAIN_REASONS] = {
        [EXPLAIN_FITS] = "everything fits",
        [EXPLAIN_FIXED] = "told to be there",
        [EXPLAIN_DIVIDED] = "both work at once",
        [EXPLAIN_GAIN] = "saves more than its bytes cost",
        [EXPLAIN_PROMPTS] = "prompts would wait for it",
        [EXPLAIN_LOSS] = "saves less than its bytes cost",
        [EXPLAIN_SLOWER] = "the GPU is no faster",
        [EXPLAIN_CHANGES] = "saves device changes",
    };
    return (unsigned)reason < N_EXPLAIN_REASONS ? texts[reason] : "?";
}

struct explainer {
    struct arena *arena;
    const struct explain_problem *problem;
    const struct items *items;
    struct explanation *out;
};

/* ---- items ---- */

static bool is_fixed(const struct explainer *e, int i) {
    const struct placement_options *o = &e->problem->placement;
    if (o->fixed && o->fixed[i] != PLACEMENT_FREE) return true;
    return o->fixed_units && o->fixed_units[e->items->items[i].block] != PLACEMENT_FREE;
}

static double item_time(const struct explainer *e, int i, enum side side) {
    const struct placement_options *o = &e->problem->placement;
    double s = 0;
    for (int d = 0; d < o->n_depths; d++)
        s += o->weights[d] * items_time(e->items, i, side, o->n_tokens, o->depths[d], 1);
    return s;
}

/* price: of a byte. */
static enum explain_reason reason_of(const struct explainer *e, int i, bool all, double price) {
    const struct explain_item *row = &e->out->rows[i];
    const struct placement_options *o = &e->problem->placement;
    double cost = price * e->items->items[i].quanta * (double)e->items->quantum_bytes;
    double gain = row->cpu_s - row->gpu_s, prompts = 0;
    struct term t = prefill_term(o, 1);
    if (o->prompt_tokens > 0)
        prompts = choices_host_time(e->items, i, &t, 1) * o->prompt_tokens / o->prefill_tokens;
    if (is_fixed(e, i)) return EXPLAIN_FIXED;
    if (all) return EXPLAIN_FITS;
    if (e->out->placement->units[e->items->items[i].block] > 0) return EXPLAIN_DIVIDED;
    if (row->gpu_share > 0) {
        if (gain >= cost) return EXPLAIN_GAIN;
        return gain + prompts >= cost ? EXPLAIN_PROMPTS : EXPLAIN_CHANGES;
    }
    if (gain + prompts <= 0) return EXPLAIN_SLOWER;
    return gain + prompts <= cost ? EXPLAIN_LOSS : EXPLAIN_CHANGES;
}

static void add_bytes(struct explain_bytes *to, const struct item *item, double share) {
    to->weights += (int64_t)((double)item->weight_bytes * share);
    to->caches += (int64_t)((double)item->kv_bytes * share);
}

static void explain_items(struct explainer *e, double price) {
    const struct items *items = e->items;
    bool all = true;
    e->out->rows = ARENA_ARRAY(e->arena, struct explain_item, items->n_items);
    for (int i = 0; i < items->n_items; i++) {
        const struct item *item = &items->items[i];
        struct explain_item *row = &e->out->rows[i];
        e->out->n_fixed += is_fixed(e, i);
        row->gpu_share = placement_gpu_share(items, e->out->placement, i);
        row->bytes = item->weight_bytes + item->kv_bytes;
        row->cpu_s = item_time(e, i, SIDE_CPU);
        row->gpu_s = item_time(e, i, SIDE_GPU);
        add_bytes(&e->out->gpu, item, row->gpu_share);
        add_bytes(&e->out->host, item, 1 - row->gpu_share);
        all = all && row->gpu_share >= 1;
    }
    for (int i = 0; i < items->n_items; i++)
        e->out->rows[i].reason = reason_of(e, i, all, price);
}

/* ---- predictions and limits ---- */

static ats_status predict(struct explainer *e) {
    const struct items *items = e->items;
    for (int k = 0; k < EXPLAIN_DEPTHS; k++) {
        struct explain_prediction *p = &e->out->predictions[k];
        struct placement_options o = e->problem->placement;
        struct placement here = *e->out->placement, *best;
        *p = (struct explain_prediction){.depth = explain_depths[k]};
        p->valid = explain_depths[k] < e->problem->items.n_ctx;
        if (!p->valid) continue;
        o.n_depths = 1, o.depths[0] = p->depth, o.weights[0] = 1;
        o.prefill_depth = p->depth;
        placement_finish(items, &o, &here);
        o.prefill_depth = e->problem->placement.prefill_depth;
        TRY(placement_solve(e->arena, items, &o, &e->problem->budget_bytes, 1, &best));
        p->decode_s = here.decode_s;
        p->prefill_s = here.prefill_s;
        p->best_s = fmin(best->decode_s, here.decode_s);
    }
    return ATS_OK;
}

static void find_limits(struct explainer *e) {
    const struct placement_options *o = &e->problem->placement;
    double budget = (double)e->problem->budget_bytes;
    struct limit_problem round, chunk;
    limit_problem_of(e->arena, e->items, o->n_tokens, o->depths[0], &round);
    limit_problem_of(e->arena, e->items, o->prefill_tokens, o->prefill_depth, &chunk);
    e->out->round = limit_round(&round, budget);
    e->out->blocks = limit_blocks(&round, budget);
    e->out->prefill = limit_prefill(&chunk, budget);
}

/* ---- what would change ---- */

static struct explain_change change_to(const struct items *items, const struct placement *p) {
    return (struct explain_change){true, p->decode_s, p->prefill_s, p->gpu_bytes, items, p};
}

/* The best placement of other items (of the same graph) for the budget; none if it cannot be had.
 */
static struct explain_change change_items(struct explainer *e, const struct profile *profile,
                                          const struct items_options *options) {
    struct items *items;
    struct placement *p;
    if (items_build(e->arena, e->problem->graph, profile, options, &items) != ATS_OK ||
        placement_solve(e->arena, items, &e->problem->placement, &e->problem->budget_bytes, 1,
                        &p) != ATS_OK) {
        error_clear();
        return (struct explain_change){0};
    }
    return change_to(items, p);
}

static bool smaller_type(enum dtype *type) {
    if (*type == DTYPE_F32)
        *type = DTYPE_F16;
    else if (*type == DTYPE_F16)
        *type = DTYPE_Q8_0;
    else
        return false;
    return true;
}

static struct explain_change with_smaller_cache(struct explainer *e) {
    struct items_options o = e->problem->items;
    bool k = smaller_type(&o.kv_k), v = smaller_type(&o.kv_v);
    if (!k && !v) return (struct explain_change){0};
    return change_items(e, e->problem->profile, &o);
}

static struct explain_change with_half_bus(struct explainer *e) {
    struct profile *p = ARENA_NEW(e->arena, struct profile);
    *p = *e->problem->profile;
    double *const rates[] = {&p->link.up_pinned,     &p->link.up_staged,
                             &p->link.down_pinned,   &p->link.down_staged,
                             &p->link.activation_up, &p->link.activation_down};
    for (size_t i = 0; i < COUNT_OF(rates); i++)
        *rates[i] /= 2;
    return change_items(e, p, &e->problem->items);
}

/* ---- all of it ---- */

enum { HERE, LITTLE_LESS, LITTLE_MORE, GIB_LESS, GIB_MORE, N_BUDGETS };

/* The budget and those around it, off one table. found[HERE] is the placement to explain. What is
 * fixed may not fit the smaller ones: then those are as the budget itself. */
static ats_status solve_around(struct explainer *e, struct placement *found, int64_t *budgets) {
    int64_t here = e->problem->budget_bytes;
    const int64_t steps[N_BUDGETS] = {0, -price_step, price_step, -gib, gib};
    struct placement *all;
    for (int i = 0; i < N_BUDGETS; i++)
        budgets[i] = here + steps[i] >= 0 ? here + steps[i] : here;
    if (placement_solve(e->arena, e->items, &e->problem->placement, budgets, N_BUDGETS, &all) !=
        ATS_OK) {
        budgets[LITTLE_LESS] = budgets[GIB_LESS] = here;
        TRY(placement_solve(e->arena, e->items, &e->problem->placement, budgets, N_BUDGETS, &all));
    }
    for (int i = 0; i < N_BUDGETS; i++)
        found[i] = all[i];
    return ATS_OK;
}

static ats_status solve_free(struct explainer *e, const struct placement *chosen) {
    struct placement_options o = e->problem->placement;
    struct placement *p;
    if (o.fixed || o.fixed_units) {
        o.fixed = o.fixed_units = NULL;
        TRY(placement_solve(e->arena, e->items, &o, &e->problem->budget_bytes, 1, &p));
        chosen = p;
    }
    e->out->free_decode_s = chosen->decode_s;
    e->out->free_prefill_s = chosen->prefill_s;
    e->out->free_objective_s = chosen->objective_s;
    return ATS_OK;
}

static void explain_changes(struct explainer *e, const struct placement *found,
                            const int64_t *budgets) {
    e->out->here = change_to(e->items, &found[HERE]);
    e->out->more_memory = change_to(e->items, &found[GIB_MORE]);
    if (budgets[GIB_LESS] < budgets[HERE])
        e->out->less_memory = change_to(e->items, &found[GIB_LESS]);
    e->out->smaller_cache = with_smaller_cache(e);
    e->out->half_bus = with_half_bus(e);
}

ats_status explain(struct arena *arena, const struct explain_problem *problem,
                   const struct placement *given, struct explanation **out) {
    struct items *items;
    *out = NULL;
    TRY(items_build(arena, problem->graph, problem->profile, &problem->items, &items));
    struct explainer e = {arena, problem, items, ARENA_NEW(arena, struct explanation)};
    struct placement *found = ARENA_ARRAY(arena, struct placement, N_BUDGETS);
    int64_t budgets[N_BUDGETS];
    TRY(solve_around(&e, found, budgets));
    TRY(solve_free(&e, &found[HERE]));
    if (!given && problem->decided && !placement_same(items, &found[HERE], problem->decided))
        given = problem->decided;
    if (given) {
        struct placement *copy = ARENA_NEW(arena, struct placement);
        *copy = *given;
        placement_finish(items, &problem->placement, copy);
        e.out->placement = copy;
    } else {
        e.out->placement = &found[HERE];
        explain_changes(&e, found, budgets);
    }
    double price = (found[LITTLE_LESS].objective_s - found[LITTLE_MORE].objective_s) /
                   (double)(budgets[LITTLE_MORE] - budgets[LITTLE_LESS]);
    e.out->items = items;
    e.out->budget_bytes = problem->budget_bytes;
    e.out->price_s_per_gib = fmax(price, 0) * (double)gib;
    e.out->n_tokens = problem->placement.n_tokens;
    e.out->prefill_tokens = problem->placement.prefill_tokens;
    e.out->n_changes = placement_splits(items, e.out->placement);
    explain_items(&e, fmax(price, 0));
    TRY(predict(&e));
    find_limits(&e);
    *out = e.out;
    return ATS_OK;
}
