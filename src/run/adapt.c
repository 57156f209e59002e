/* Planning again while the engine runs (S5): some rounds are measured, a thread makes another plan,
 * and between two rounds it comes into force. What decides is plan/replan.h. */
#include "run/adapt_internal.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "run/switch.h"

/* Observations that say what a device's "alone" is: a profile is never exact. */
#define CALIBRATE 8
/* From one round that is measured to the next, which takes some hundredths more: all of long ones,
 * else so many rounds and, while something changes or nothing does, so long. */
#define MEASURE_EVERY 4
#define LONG_ROUND_S  0.05
#define CHANGING_S    0.05
#define CALM_S        0.2
#define MOST_ROUNDS   256
/* Depth is taken into account in steps. */
#define DEPTH_STEP 256
/* After a plan that did not fit: of the bytes that were counted on. */
#define LESS_BYTES (31.0 / 32)
/* Of a link at first. */
#define PROBES 3

/* ---- a plan is made ---- */

static void *solve(void *arg) {
    struct adapt *a = arg;
    struct solving *s = &a->solving;
    if (s->for_memory) {
        watch_solve(a);
    } else {
        thread_give_way();
        s->status = redecide(&s->arena, a->items, &a->options, &s->factors, &a->base, &a->now,
                             a->before.placement ? &a->before : NULL, &a->replan.options, &s->out);
        s->cost_s = 1e-9 * (double)clock_thread_ns();
    }
    if (s->status != ATS_OK) snprintf(s->why, sizeof s->why, "%s", error_text());
    atomic_store(&s->done, true);
    return NULL;
}

static void join(struct solving *s) {
    if (s->has_thread) thread_join(&s->thread);
    s->has_thread = false;
}

void adapt_start_solving(ats_engine *e) {
    struct adapt *a = e->adapt;
    atomic_store(&a->solving.done, false);
    a->solving.runs = thread_start(&a->solving.thread, solve, a) == ATS_OK;
    a->solving.has_thread = a->solving.runs;
    if (!a->solving.runs) error_clear(); /* asked again when something changes again */
    e->stats.n_plans_made += a->solving.runs;
}

static void ask(ats_engine *e) {
    struct adapt *a = e->adapt;
    a->solving.for_memory = false;
    a->solving.factors = replan_ask(&a->replan);
    adapt_start_solving(e);
}

void adapt_forget_load(struct adapt *a) {
    a->alone_depth = -1;
    replan_forget(&a->replan);
}

/* ---- and taken ---- */

/* True: it is in force, or all is lost. */
static bool take(ats_engine *e, const char *reason) {
    struct adapt *a = e->adapt;
    const struct redecision *r = &a->solving.out;
    struct arena arena = {0};
    struct switch_report report;
    uint64_t start = clock_ns();
    struct plan *plan = planner_plan(e->planner, &arena, &r->way, e->n_devices, a->cpu, a->gpu);
    ats_status status = engine_switch(e, &arena, plan, &report);
    arena_free(&arena);
    if (!e->adapt) return true; /* everything was lost, and the engine stopped */
    uint64_t ns = clock_ns() - start;
    if (status != ATS_OK) {
        log_msg(LOG_WARN, "%s: the plan stays as it is", error_text());
        error_clear();
        a->options.device_bytes *= LESS_BYTES;
        return false;
    }
    log_msg(LOG_INFO,
            "another plan, %s: %.2f ms a token instead of %.2f; it took %.0f ms, %.0f MiB loaded, "
            "%.0f kept, %.0f of caches moved",
            reason, r->offer.new_s * 1e3, r->offer.old_s * 1e3, (double)ns * 1e-6,
            (double)report.loaded_bytes / 1048576, (double)report.kept_bytes / 1048576,
            (double)report.carried_bytes / 1048576);
    e->stats.n_plan_switches++;
    e->stats.switch_ns += ns;
    replan_switched(&a->replan, &r->offer);
    arena_free(&a->before_arena);
    a->before = a->now;
    a->before_arena = a->now_arena;
    a->now = r->way;
    a->now_arena = a->solving.arena;
    a->solving.arena = (struct arena){0};
    a->alone_depth = -1;
    return true;
}

static void finish(ats_engine *e) {
    struct adapt *a = e->adapt;
    struct solving *s = &a->solving;
    char reason[128];
    join(s);
    s->runs = false;
    if (s->for_memory) {
        watch_finish(e);
        return;
    }
    replan_reason(&a->replan, reason, sizeof reason);
    bool same = s->status == ATS_OK && redecide_same(a->items, &s->out.way, &a->now);
    bool pays = s->status == ATS_OK && !same && replan_accept(&a->replan, &s->out.offer);
    if (!pays || !take(e, reason)) replan_declined(&a->replan, s->cost_s);
    if (e->adapt) arena_free(&s->arena);
}

const struct decide_way *adapt_way(const ats_engine *e) {
    if (e->adapt && e->adapt->items) return &e->adapt->now;
    return e->planner && e->planner->way.placement ? &e->planner->way : NULL;
}

void adapt_look(ats_engine *e) {
    e->adapt->watch.looked_ns = 0;
}

void adapt_wait(ats_engine *e) {
    join(&e->adapt->solving);
}

/* ---- what rounds say ---- */

static void set_alone(struct adapt *a, int depth) {
    struct arena arena = {0};
    struct decide_options o = a->options;
    struct decide_way way = a->now;
    if (a->alone_depth >= 0 && depth / DEPTH_STEP == a->alone_depth / DEPTH_STEP) return;
    struct schedule_options so = decide_schedule_options(&o, &way, 1, depth);
    schedule_retime(&arena, a->items, way.placement, &so, &a->now.decode, &way.decode);
    redecide_alone(&way, a->alone_s);
    a->alone_depth = depth;
    arena_free(&arena);
}

/* What two of them did at once. */
static double together_s(ats_engine *e, unsigned a, unsigned b) {
    const struct program *p = executor_program(e->executor);
    const struct metrics_facts *f = &e->observed.facts[PROGRAM_DECODE];
    const struct round_times *t = executor_times(e->executor);
    return 1e-9 * ((double)metrics_busy_ns(p, f, t, a) + (double)metrics_busy_ns(p, f, t, b) -
                   (double)metrics_busy_ns(p, f, t, a | b));
}

static void read_times(ats_engine *e, int depth, struct replan_observation *o) {
    const struct adapt *a = e->adapt;
    const struct program *p = executor_program(e->executor);
    const struct metrics_facts *f = &e->observed.facts[PROGRAM_DECODE];
    const struct round_times *t = executor_times(e->executor);
    struct timeline_result r = {.cpu_busy_s = 1e-9 * (double)metrics_busy_ns(p, f, t, METRICS_CPU),
                                .gpu_busy_s = 1e-9 * (double)metrics_busy_ns(p, f, t, METRICS_GPU),
                                .copy_busy_s =
                                    1e-9 * (double)metrics_busy_ns(p, f, t, METRICS_LINK),
                                .cpu_copy_s = together_s(e, METRICS_CPU, METRICS_LINK),
                                .cpu_gpu_s = together_s(e, METRICS_CPU, METRICS_GPU)};
    o->round_s = 1e-9 * (double)(t->end_ns - t->begin_ns);
    set_alone(e->adapt, depth);
    memcpy(o->alone_s, a->alone_s, sizeof o->alone_s);
    redecide_busy(&a->now, &r, o->busy_s);
}

/* ---- a link that is not used ---- */

static double probe_link(ats_engine *e) {
    struct backend *gpu = e->devices[e->adapt->gpu];
    double seconds = 0;
    if (gpu->fn->probe_copy(gpu, &seconds) == ATS_OK) return seconds;
    error_clear();
    return 0;
}

/* How long a probe takes by itself is not what the profile says, which is of streamed weights. */
static void calibrate_probe(ats_engine *e) {
    struct adapt *a = e->adapt;
    for (int i = 0; i < PROBES; i++) {
        double seconds = probe_link(e);
        if (i == 0 || seconds < a->probe_s) a->probe_s = seconds;
    }
}

static void probe(ats_engine *e) {
    struct adapt *a = e->adapt;
    if (a->probe_s <= 0 || !(replan_probes(&a->replan) & 1U << LOAD_LINK)) return;
    struct backend *first = e->devices[0];
    uint64_t begin_ns = first->fn->now(first);
    double base = a->replan.resources[LOAD_LINK].base, seconds = probe_link(e);
    double cost_s = 1e-9 * (double)(first->fn->now(first) - begin_ns);
    if (seconds > 0) replan_probed(&a->replan, LOAD_LINK, a->probe_s, base * seconds, cost_s);
}

void adapt_observe(ats_engine *e, double now_s, const struct replan_observation *o) {
    struct adapt *a = e->adapt;
    replan_observe(&a->replan, now_s, o);
    probe(e);
    if (!a->solving.runs && replan_due(&a->replan)) ask(e);
}

/* Decode of one session: what was planned for. */
static bool counts(const struct round *round) {
    return round->n_tokens == 1 && round->n_runs == 1;
}

/* Rounds from one that is measured to the next. */
static int measure_every(const struct adapt *a) {
    double round_s = a->replan.round_s;
    if (round_s > LONG_ROUND_S) return 1;
    if (round_s <= 0) return MEASURE_EVERY;
    double every_s = replan_is_calm(&a->replan) ? CALM_S : CHANGING_S;
    return max_int(MEASURE_EVERY, (int)fmin(every_s / round_s, MOST_ROUNDS));
}

void adapt_round(ats_engine *e, const struct round *round) {
    struct adapt *a = e->adapt;
    if (!a || !e->executor) return;
    const struct round_times *t = a->loads ? executor_times(e->executor) : NULL;
    if (a->measures && t && counts(round)) {
        struct replan_observation o = {0};
        read_times(e, round->runs[0].position, &o);
        adapt_observe(e, 1e-9 * (double)t->end_ns, &o);
        a->n_since = 0;
    }
    if (a->solving.runs && atomic_load(&a->solving.done)) finish(e);
    if (!e->adapt || !e->executor) return;
    if (!a->solving.runs) watch_look(e);
    if (!a->loads) return;
    bool measures = ++a->n_since >= measure_every(a);
    bool seen = e->observed.measures || e->observed.trace;
    if (!seen && measures != a->measures) executor_set_timed(e->executor, measures);
    a->measures = measures;
}

/* ---- opening ---- */

void adapt_open(ats_engine *e) {
    const struct planner *p = e->planner;
    if (e->options.dynamic == ATS_DYNAMIC_OFF || e->n_devices != 2 || !e->choice.automatic) return;
    struct adapt *a = e->adapt = xcalloc(1, sizeof *a);
    struct replan_options o = replan_options_default();
    if (e->options.replan_threshold > 0) o.threshold = e->options.replan_threshold;
    if (e->options.replan_interval > 0) o.interval_rounds = e->options.replan_interval;
    o.n_calibrate = CALIBRATE;
    replan_begin(&a->replan, &o);
    a->e = e;
    a->cpu = e->devices[0]->gpu ? 1 : 0;
    a->gpu = 1 - a->cpu;
    a->alone_depth = -1;
    if (e->choice.planned) {
        a->items = p->items;
        a->options = p->options;
        a->base = a->now = p->way;
        a->loads = e->options.dynamic == ATS_DYNAMIC_ON;
    }
    if (a->loads) calibrate_probe(e);
    watch_open(e);
    if (!a->loads && !a->watch.on) adapt_close(e);
}

void adapt_close(ats_engine *e) {
    struct adapt *a = e->adapt;
    if (!a) return;
    join(&a->solving);
    arena_free(&a->solving.arena);
    arena_free(&a->solving.again.arena);
    arena_free(&a->base_arena);
    arena_free(&a->now_arena);
    arena_free(&a->before_arena);
    free(a);
    e->adapt = NULL;
}
