/* The GPU's memory while the engine runs (S5): when other programs take of it, the least valuable
 * shards leave the device, and return when there has been room for a while. */
#include "run/adapt_internal.h"

#include <stdio.h>

#include "base/clock.h"
#include "base/log.h"
#include "run/switch.h"

/* It is looked at after so many rounds, or so long. */
#define LOOK_ROUNDS 64
#define LOOK_NS     1000000000U
/* Too much is on the device beyond this part of it: some of the room that is left to others. */
#define SLACK_PART 64
/* More room than what was planned for and this part of it, so many looks running, is tried; for
 * what did not last, twice as many from then on. */
#define GROW_PART   16
#define GROW_LOOKS  8
#define MOST_LOOKS  1024
#define LASTS_LOOKS 128
/* A smaller plan that did not come into force: with so much less, so often. */
#define LESS_PART     16
#define MOST_FAILURES 8

static const struct executor_ledger *line_of(const ats_engine *e) {
    return &e->ledger.devices[e->adapt->gpu];
}

static int64_t limit_bytes(const ats_engine *e) {
    struct backend_memory m;
    struct backend *gpu = e->devices[e->adapt->gpu];
    gpu->fn->memory(gpu, &m);
    return min_i64(ledger_limit_bytes(&m), e->adapt->watch.most_bytes);
}

void watch_open(ats_engine *e) {
    struct adapt *a = e->adapt;
    struct backend_memory m;
    e->devices[a->gpu]->fn->memory(e->devices[a->gpu], &m);
    int64_t vram = (int64_t)e->options.vram_mib << 20, less = e->choice.less_bytes;
    a->watch = (struct watch){.on = e->choice.automatic && m.measured && !m.host,
                              .most_bytes = INT64_MAX,
                              .budget_bytes = e->choice.budget_bytes,
                              .looked_ns = clock_ns(),
                              .grown_at = -1,
                              .n_wanted = GROW_LOOKS};
    if (vram) a->watch.most_bytes = vram;
    if (less) a->watch.most_bytes = min_i64(a->watch.most_bytes, less);
}

/* ---- whether ---- */

static void ask(ats_engine *e, int64_t bytes) {
    struct adapt *a = e->adapt;
    a->solving.for_memory = true;
    a->solving.bytes = max_i64(1, bytes);
    a->watch.n_roomy = 0;
    adapt_start_solving(e);
}

/* Less each time that it was in vain; not at all if that does not help. */
static void ask_for_less(ats_engine *e, int64_t limit) {
    struct watch *w = &e->adapt->watch;
    if (w->n_failed >= MOST_FAILURES && limit >= w->failed_bytes - w->failed_bytes / GROW_PART)
        return;
    if (w->n_failed >= MOST_FAILURES) w->n_failed = 0;
    w->failed_bytes = limit;
    ask(e, limit - limit / LESS_PART * w->n_failed);
}

static bool is_time(struct watch *w) {
    uint64_t now_ns = clock_ns();
    if (++w->n_since < LOOK_ROUNDS && now_ns - w->looked_ns < LOOK_NS) return false;
    w->n_since = 0;
    w->looked_ns = now_ns;
    w->n_looks++;
    return true;
}

void watch_look(ats_engine *e) {
    struct watch *w = &e->adapt->watch;
    if (!w->on || !is_time(w)) return;
    int64_t limit = limit_bytes(e), own = ledger_own_bytes(line_of(e));
    if (own - limit > own / SLACK_PART) {
        if (ledger_kept_bytes(line_of(e)) > 0) ask_for_less(e, limit);
        return;
    }
    int64_t planned = max_i64(w->budget_bytes, own);
    bool roomy = limit - planned > planned / GROW_PART;
    w->n_roomy = roomy ? w->n_roomy + 1 : 0;
    if (w->n_roomy >= w->n_wanted) ask(e, limit);
}

/* ---- another plan ---- */

void watch_solve(struct adapt *a) {
    a->solving.status = choose_again(a->e, a->solving.bytes, &a->solving.again);
}

/* The round and the price of a plan by a profile; of layers, more are better. */
static bool pays(const ats_engine *e, const struct choice_again *again) {
    const struct adapt *a = e->adapt;
    struct arena scratch = {0};
    if (!a->items) return again->n_gpu_layers > e->choice.n_gpu_layers;
    struct replan_offer offer = {
        .old_s = a->base.decode.transfer.result.round_s,
        .new_s = again->way.decode.transfer.result.round_s,
        .cost_s = redecide_move_s(&scratch, a->items, a->now.placement, again->way.placement)};
    arena_free(&scratch);
    return replan_accept(&a->replan, &offer);
}

/* Its way is what load is measured against from now on. */
static void keep(ats_engine *e, struct choice_again *again) {
    struct adapt *a = e->adapt;
    e->choice.budget_bytes = a->watch.budget_bytes = again->bytes;
    e->choice.n_gpu_layers = again->n_gpu_layers;
    if (!a->items) return;
    arena_free(&a->base_arena);
    arena_free(&a->now_arena);
    arena_free(&a->before_arena);
    a->base = a->now = again->way;
    a->before = (struct decide_way){0};
    a->base_arena = again->arena;
    again->arena = (struct arena){0};
    a->options = again->options;
    adapt_forget_load(a);
}

static ats_status change(ats_engine *e, struct choice_again *again, struct switch_report *report) {
    struct adapt *a = e->adapt;
    struct arena arena = {0};
    struct plan *plan = again->plan;
    int64_t *limit = &e->executor_options.device_bytes[a->gpu], before = *limit;
    if (a->items)
        plan = planner_plan(e->planner, &arena, &again->way, e->n_devices, a->cpu, a->gpu);
    *limit = again->bytes;
    ats_status status = engine_switch(e, a->items ? &arena : &again->arena, plan, report);
    if (status != ATS_OK) *limit = before;
    arena_free(&arena);
    return status;
}

static void tell(const ats_engine *e, bool shrinks, int64_t own_before,
                 const struct switch_report *report, uint64_t ns) {
    log_msg(shrinks ? LOG_WARN : LOG_INFO,
            "%s of %s's memory: %.0f MiB may be used, %.0f are instead of %.0f; it took %.0f ms, "
            "%.0f MiB loaded, %.0f kept, %.0f of caches moved",
            shrinks ? "other programs take" : "there is room again, as others give back",
            e->device_names[e->adapt->gpu], ledger_mib(e->adapt->watch.budget_bytes),
            ledger_mib(ledger_own_bytes(line_of(e))), ledger_mib(own_before), (double)ns * 1e-6,
            ledger_mib(report->loaded_bytes), ledger_mib(report->kept_bytes),
            ledger_mib(report->carried_bytes));
}

/* Room that did not last has to last longer the next time. */
static void note(struct watch *w, bool shrinks) {
    bool soon = w->grown_at >= 0 && w->n_looks - w->grown_at < LASTS_LOOKS;
    if (shrinks) w->n_wanted = soon ? min_int(2 * w->n_wanted, MOST_LOOKS) : GROW_LOOKS;
    if (!shrinks) w->grown_at = w->n_looks;
    w->n_failed = 0;
}

static void fail_once(ats_engine *e, bool shrinks, int64_t bytes, const char *why) {
    struct watch *w = &e->adapt->watch;
    if (!shrinks) w->budget_bytes = bytes; /* not tried again for so much */
    if (w->n_failed++ == 0) log_msg(LOG_WARN, "%s: the plan stays as it is", why);
}

void watch_finish(ats_engine *e) {
    struct adapt *a = e->adapt;
    struct choice_again again = a->solving.again;
    int64_t own = ledger_own_bytes(line_of(e));
    bool shrinks = again.bytes < own;
    struct switch_report report;
    a->solving.again = (struct choice_again){0};
    if (a->solving.status != ATS_OK) {
        fail_once(e, shrinks, again.bytes, a->solving.why);
    } else if (!shrinks && !pays(e, &again)) {
        a->watch.budget_bytes = again.bytes; /* not tried again for so much */
    } else {
        uint64_t start = clock_ns();
        ats_status status = change(e, &again, &report);
        if (e->adapt && status == ATS_OK) {
            uint64_t ns = clock_ns() - start;
            e->stats.n_plan_switches++;
            e->stats.switch_ns += ns;
            note(&a->watch, shrinks);
            keep(e, &again);
            tell(e, shrinks, own, &report, ns);
        } else if (e->adapt) {
            fail_once(e, shrinks, again.bytes, error_text());
            error_clear();
        }
    }
    arena_free(&again.arena);
}
