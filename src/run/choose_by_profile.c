/* The planner's plan under the user's rules, and within the ledger. */
#include "run/choose_internal.h"

#include <math.h>

#include "base/log.h"

enum { MAX_ATTEMPTS = 8, REFINED_ATTEMPTS = 4, PAIR_ATTEMPTS = 3 };
/* Of the memory, less than what need not be used: plans differ a little in what is not counted. */
enum { SPARE_PART = 80 };
/* What a GPU has to gain to be used: measured times are not exact, and two devices can fail. */
#define LEAST_GAIN 0.03

/* ---- what is given ---- */

static int64_t fixed_bytes(const struct items *items, const int *fixed) {
    int64_t quanta = 0;
    for (int i = 0; i < items->n_items; i++)
        if (fixed[i] == SIDE_GPU) quanta += items->items[i].quanta;
    return quanta * items->quantum_bytes;
}

/* What the GPU cannot compute stays on the CPU; with `rules`, so does what they say. Returns how
 * many items these fix. */
static int fix_homes(const struct choosing *c, const struct items *items, bool rules, int *fixed) {
    struct arena scratch = {0};
    int *home = ARENA_ARRAY(&scratch, int, c->g->n_ops), n = 0;
    struct plan_rules r = c->rules;
    r.n_gpu_layers = PLAN_LAYERS_AUTO;
    plan_rules_homes(c->g, &r, home);
    for (int i = 0; i < items->n_items; i++) {
        int op = items->items[i].op;
        bool given = rules && home[op] != PLAN_HOME_FREE;
        fixed[i] = PLACEMENT_FREE;
        if (given) fixed[i] = home[op] == r.gpu ? SIDE_GPU : SIDE_CPU;
        if (r.lacking[op]) fixed[i] = SIDE_CPU;
        n += given;
    }
    arena_free(&scratch);
    return n;
}

static struct decide_options options_of(const struct choosing *c, const int *fixed) {
    const struct planner *p = c->e->planner;
    struct decide_options o = p->base;
    o.placement.fixed = fixed;
    o.fixed_bytes = fixed_bytes(p->items, fixed);
    o.n_slots = c->e->devices[c->rules.gpu]->streams ? -1 : 0;
    return o;
}

/* ---- within the ledger ---- */

struct attempt {
    struct arena arena;
    struct decide_way way;   /* placement NULL: none */
    int64_t bytes;           /* of the GPU: that it was decided for, */
    int64_t counted, needed; /* by the planner, by the ledger */
    bool fits_host;
};

static void count(const struct choosing *c, struct attempt *a) {
    const struct decide_way *w = &a->way;
    struct ledger ledger;
    struct plan *plan =
        planner_plan(c->e->planner, &a->arena, w, c->e->n_devices, c->rules.cpu, c->rules.gpu);
    choosing_count(c, plan, &ledger);
    a->needed = ledger_own_bytes(&ledger.devices[c->rules.gpu]);
    a->counted = w->placement->gpu_bytes + (int64_t)(w->work_bytes + w->n_slots * w->slot_bytes);
    a->fits_host = ledger.host_bytes <= ledger.host_limit_bytes;
}

static bool attempt(const struct choosing *c, const struct decide_options *o, struct attempt *out) {
    *out = (struct attempt){.bytes = (int64_t)o->device_bytes};
    if (decide(&out->arena, c->e->planner->items, o, &out->way) != ATS_OK) return false;
    count(c, out);
    return true;
}

static void keep(struct attempt *found, struct attempt *best) {
    struct attempt worse = *found;
    if (!best->way.placement || found->way.request_s < best->way.request_s) {
        worse = *best;
        *best = *found;
    }
    arena_free(&worse.arena);
}

/* The CPU alone, where that may be and is hardly slower. */
static void try_cpu_alone(const struct choosing *c, const struct decide_options *o,
                          struct attempt *best) {
    const struct planner *p = c->e->planner;
    struct decide_way w = {.n_batch = best->way.n_batch};
    if (o->fixed_bytes > 0) return;
    w.placement = placement_whole(&best->arena, p->items, &o->placement, SIDE_CPU);
    decide_time(&best->arena, p->items, o, &w);
    if (best->way.request_s > (1 - LEAST_GAIN) * w.request_s) best->way = w;
}

/* The planner counts roughly what a round needs besides weights and caches; the ledger knows. The
 * difference is taken off, or added, until it fits and little is left. */
static void fit_one(const struct choosing *c, struct decide_options *o, int64_t first_bytes,
                    struct attempt *best) {
    int64_t bytes = first_bytes > 0 ? first_bytes : c->budget;
    bool can = true;
    for (int k = 0; can && k < MAX_ATTEMPTS && bytes > 0; k++) {
        struct attempt one;
        o->device_bytes = (double)bytes;
        can = attempt(c, o, &one);
        int64_t next = c->budget - (one.needed - one.counted);
        bool fits = can && one.needed <= c->budget;
        if (fits)
            keep(&one, best);
        else
            arena_free(&one.arena);
        if (fits && (k >= REFINED_ATTEMPTS || next <= bytes + c->budget / 64)) break;
        if (!fits && k >= REFINED_ATTEMPTS) next = bytes / 4 * 3;
        bytes = next;
    }
}

/* With what one program settled at, or less: a program for decode and one for prompts. Weights that
 * the CPU reads in the file's map are copies then, for which the host may be too small. */
static void fit_pair(const struct choosing *c, const struct decide_options *o,
                     struct attempt *best) {
    struct attempt pair = {.arena = best->arena, .bytes = best->bytes};
    for (int k = 0; k < PAIR_ATTEMPTS && pair.bytes > 0; k++) {
        struct decide_options two = *o;
        two.device_bytes = (double)pair.bytes;
        if (decide_pair(&pair.arena, c->e->planner->items, &two, &best->way, &pair.way) != ATS_OK)
            break;
        if (!decide_pair_pays(&best->way, &pair.way)) break;
        count(c, &pair);
        if (!pair.fits_host) break;
        if (pair.needed <= c->budget) {
            *best = pair;
            break;
        }
        pair.bytes = min_i64(pair.bytes, pair.counted) - (pair.needed - c->budget);
    }
    error_clear();
    best->arena = pair.arena; /* of both */
}

/* First with one program, whatever o->one_program says; then with two, if it may be. Afterwards *o
 * is what *best was decided by. first_bytes: that will probably do. */
static bool fit(const struct choosing *c, struct decide_options *o, int64_t first_bytes,
                struct attempt *best) {
    bool one_program = o->one_program;
    *best = (struct attempt){0};
    o->one_program = true;
    fit_one(c, o, first_bytes, best);
    if (!best->way.placement) return false;
    if (!one_program) fit_pair(c, o, best);
    try_cpu_alone(c, o, best);
    o->device_bytes = (double)best->bytes;
    o->one_program = best->way.prompts_from == 0;
    return true;
}

/* ---- what is said ---- */

static void describe(const struct choosing *c, const struct decide_way *w) {
    ats_engine *e = c->e;
    const struct items *items = e->planner->items;
    const char *text = planner_text(e->planner, &e->arena, w), *gpu = e->device_names[c->rules.gpu];
    int64_t all = 0;
    for (int i = 0; i < items->n_items; i++)
        all += items->items[i].weight_bytes + items->items[i].kv_bytes;
    double streamed = w->decode.copied_bytes;
    if (w->placement->gpu_bytes == 0 && streamed <= 0 && w->prompts_from == 0) {
        e->choice.how = arena_printf(
            &e->arena, "all on the CPU: with %s it would be no faster; predicted %s", gpu, text);
        return;
    }
    const char *also = streamed > 0 ? arena_printf(&e->arena, ", %.0f MiB streamed to it a round",
                                                   streamed / 1048576)
                                    : "";
    if (w->prompts_from > 0)
        also = arena_printf(&e->arena, "%s, %.0f MiB in rounds of %d tokens and more", also,
                            w->prefill.copied_bytes / 1048576, w->prompts_from);
    e->choice.how = arena_printf(
        &e->arena,
        "by measured times: %.0f MiB of weights and caches (%.0f%%) on %s%s; predicted %s",
        ledger_mib(w->placement->gpu_bytes), 100.0 * (double)w->placement->gpu_bytes / (double)all,
        gpu, also, text);
}

/* What the user's rules cost, against the same memory without them. */
static void tell_cost(const struct choosing *c, const char *what) {
    const struct planner *p = c->e->planner;
    double given = p->way.decode.transfer.result.round_s * 1e3,
           open = p->free_way.decode.transfer.result.round_s * 1e3;
    log_msg(LOG_INFO,
            "what %s costs: %+.2f ms a token (%.2f, %.2f if all were free), prompts %.0f tok/s "
            "(%.0f): a request takes %.0f%% longer",
            what, given - open, given, open, p->base.n_prompt / p->way.prompt_s,
            p->base.n_prompt / p->free_way.prompt_s,
            100 * fmax(0, p->way.request_s / p->free_way.request_s - 1));
}

/* Behind p->way: the same with nothing given. */
static void find_free(struct choosing *c) {
    struct planner *p = c->e->planner;
    struct attempt best;
    int *fixed = ARENA_ARRAY(&p->arena, int, p->items->n_items);
    fix_homes(c, p->items, false, fixed);
    struct decide_options o = options_of(c, fixed);
    if (!fit(c, &o, c->budget, &best)) {
        error_clear();
        return;
    }
    p->free_way = best.way;
    arena_free(&p->free_arena);
    p->free_arena = best.arena;
}

bool choose_by_profile(struct choosing *c) {
    ats_engine *e = c->e;
    struct planner *p = e->planner;
    struct attempt best;
    if (!p) return false;
    p->fixed = ARENA_ARRAY(&p->arena, int, p->items->n_items);
    p->n_given = fix_homes(c, p->items, true, p->fixed);
    p->options = options_of(c, p->fixed);
    if (!fit(c, &p->options, c->budget, &best)) {
        if (p->options.fixed_bytes > 0) log_msg(LOG_WARN, "%s", error_text());
        error_clear();
        return false;
    }
    arena_free(&p->way_arena);
    p->way_arena = best.arena;
    p->way = best.way;
    p->uncounted_bytes = best.needed - best.counted;
    e->plan = planner_plan(p, &e->arena, &p->way, e->n_devices, c->rules.cpu, c->rules.gpu);
    describe(c, &p->way);
    if (p->n_given > 0) find_free(c);
    if (p->free_way.placement) tell_cost(c, "is given");
    return true;
}

/* While the engine runs: begun with what the first plan found the ledger to need, so that it is
 * decided once, as a rule. What does not fit at all leaves the CPU alone. */
ats_status choose_again_by_profile(const struct choosing *c, struct choice_again *out) {
    const struct planner *p = c->e->planner;
    struct attempt best;
    out->options = p->options;
    out->options.one_program = p->base.one_program;
    int64_t first_bytes = c->budget - c->budget / SPARE_PART - p->uncounted_bytes;
    if (fit(c, &out->options, first_bytes, &best)) {
        out->arena = best.arena;
        out->way = best.way;
        return ATS_OK;
    }
    if (p->options.fixed_bytes > 0)
        return fail(ATS_NO_MEMORY, "what the rules place on the GPU takes more than %.0f MiB",
                    ledger_mib(c->budget));
    out->way = (struct decide_way){.n_batch = p->way.n_batch};
    out->way.placement = placement_whole(&out->arena, p->items, &out->options.placement, SIDE_CPU);
    decide_time(&out->arena, p->items, &out->options, &out->way);
    return ATS_OK;
}

void choose_judge(struct choosing *c, const char *what) {
    ats_engine *e = c->e;
    struct planner *p = e->planner;
    struct arena arena = {0};
    struct decide_way way;
    if (!p) return;
    if (planner_judge(p, &arena, e->plan, c->rules.cpu, c->rules.gpu, &way) != ATS_OK) {
        error_clear();
        arena_free(&arena);
        return;
    }
    arena_free(&p->way_arena);
    p->way_arena = arena;
    p->way = way;
    p->n_given = p->items->n_items;
    e->choice.how = arena_printf(&e->arena, "%s; predicted %s", e->choice.how,
                                 planner_text(p, &e->arena, &way));
    find_free(c);
    if (p->free_way.placement) tell_cost(c, what);
}
