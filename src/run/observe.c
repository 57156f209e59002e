/* Rounds that are measured, or written to a trace. */
#include "run/engine.h"

#include "base/log.h"

/* The file is the user's wish, not the answer: what goes wrong with it ends it, with a warning. */
static void end_trace(ats_engine *e) {
    log_msg(LOG_WARN, "the trace ends: %s", error_text());
    error_clear();
    trace_close(e->observed.trace);
    e->observed.trace = NULL;
}

static void set_timed(ats_engine *e) {
    if (e->executor)
        executor_set_timed(e->executor, e->observed.measures || e->observed.trace != NULL);
}

ats_status observe_open(ats_engine *e) {
    struct observation *o = &e->observed;
    const struct programs *programs = executor_programs(e->executor);
    arena_free(&o->arena);
    for (int k = 0; k < programs->n; k++)
        metrics_facts(&o->arena, e->model->graph, programs->at[k], e->devices, &o->facts[k]);
    bool wanted = e->options.trace && e->options.trace[0];
    if (wanted && !o->trace) TRY(trace_open(e->options.trace, &o->trace));
    if (o->trace) TRY(trace_programs(o->trace, e->model->graph, programs, e->devices));
    set_timed(e);
    return ATS_OK;
}

void observe_close(ats_engine *e) {
    trace_close(e->observed.trace);
    arena_free(&e->observed.arena);
}

void observe_round(ats_engine *e, const struct round *round, bool decode, uint64_t host_ns) {
    struct observation *o = &e->observed;
    const struct round_times *times = executor_times(e->executor);
    if (!times) return;
    if (o->measures) {
        const struct programs *p = executor_programs(e->executor);
        int k = programs_of_round(p, round->n_tokens);
        metrics_add(p->at[k], &o->facts[k], round, times, &o->metrics[decode]);
        o->metrics[decode].host_ns += host_ns;
    }
    if (!o->trace || trace_round(o->trace, round, times) == ATS_OK) return;
    end_trace(e);
    set_timed(e);
}

void ats_engine_measure(ats_engine *e, bool on) {
    e->observed.measures = on;
    set_timed(e);
}

void ats_engine_metrics(const ats_engine *e, bool decode, ats_metrics *out) {
    *out = e->observed.metrics[decode];
}
