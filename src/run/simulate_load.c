/* A long decode in virtual time while other programs take their share (scheduling.md 6): with the
 * plan as it was made, planned again by the controller of plan/replan.h, and by one who knows. */
#include "run/simulate.h"

#include <math.h>
#include <string.h>

#include "plan/redecide.h"

/* Solving goes on beside rounds; this long, of virtual time. */
#define SOLVE_S 0.05
/* Rounds go on after the last change. */
#define TAIL_S      10.0
#define TAIL_ROUNDS 100
/* Bytes of a probe of the link; of the devices, a share of the round. */
#define PROBE_BYTES ((double)(4 << 20))
#define PROBE_SHARE 0.005
#define MAX_ROUNDS  1000000

struct driver {
    struct simulation *s;
    struct load_run *run;
    struct decide_options options;
    struct replan replan;
    double now_s;
    int n_rounds;
    struct load_segment *segment;
    /* What a round of each plan takes in this segment, if it was asked for already. */
    struct timeline_result timed[LOAD_MAX_PLANS];
    bool is_timed[LOAD_MAX_PLANS];
    int plan, before; /* indices of run->plans; before: -1, none */
    bool solving;
    double solved_at_s;
    struct load_factors asked;
};

static const struct timeline_result *time_plan(struct driver *d, int plan) {
    if (!d->is_timed[plan])
        redecide_time(&d->s->arena, d->s->items, &d->options, &d->segment->factors,
                      &d->run->plans[plan], &d->timed[plan]);
    d->is_timed[plan] = true;
    return &d->timed[plan];
}

/* ---- what changes ---- */

/* Who knows the factors, and pays nothing. */
static ats_status ask_oracle(struct driver *d) {
    struct replan_options free = d->replan.options;
    struct redecision best;
    free.horizon_rounds = HUGE_VAL;
    free.threshold = 1e-6;
    TRY(redecide(&d->s->arena, d->s->items, &d->options, &d->segment->factors, &d->run->plans[0],
                 &d->run->plans[0], NULL, &free, &best));
    d->segment->oracle_s = best.offer.new_s;
    return ATS_OK;
}

static ats_status begin_segment(struct driver *d, const struct load *load) {
    struct load_run *run = d->run;
    struct load_segment *segment = &run->segments[run->n_segments++];
    d->segment = segment;
    memset(d->is_timed, 0, sizeof d->is_timed);
    *segment = (struct load_segment){.start_s = d->now_s, .factors = load_at(load, d->now_s)};
    segment->static_s = time_plan(d, 0)->round_s;
    return ask_oracle(d);
}

static void end_segment(struct driver *d) {
    struct load_segment *segment = d->segment;
    segment->end_s = d->now_s;
    segment->plan = d->plan;
    segment->settled_s = time_plan(d, d->plan)->round_s;
    if (segment->n_rounds > 0)
        segment->mean_s = (segment->end_s - segment->start_s) / segment->n_rounds;
}

/* ---- the controller's side ---- */

/* Small jobs beside the round; their time is counted as if they stood in its way. */
static void probe(struct driver *d, double *round_s) {
    unsigned probes = replan_probes(&d->replan);
    const struct load_factors *f = &d->segment->factors;
    for (int i = 0; i < N_LOAD_RESOURCES; i++) {
        if (!(probes >> i & 1)) continue;
        double alone_s = PROBE_SHARE * *round_s;
        if (i == LOAD_LINK) alone_s = PROBE_BYTES / d->s->machine->link.up_pinned;
        double cost_s = alone_s * f->slow[i];
        replan_probed(&d->replan, (enum load_resource)i, alone_s, cost_s, cost_s);
        *round_s += cost_s;
        d->run->n_probes++;
    }
}

static void run_round(struct driver *d) {
    const struct timeline_result *r = time_plan(d, d->plan);
    struct replan_observation o = {.round_s = r->round_s};
    double round_s = r->round_s;
    redecide_alone(&d->run->plans[d->plan], o.alone_s);
    redecide_busy(&d->run->plans[d->plan], r, o.busy_s);
    probe(d, &round_s);
    d->now_s += round_s;
    d->n_rounds++;
    d->segment->n_rounds++;
    replan_observe(&d->replan, d->now_s, &o);
}

static int add_plan(struct driver *d, const struct decide_way *way) {
    struct load_run *run = d->run;
    for (int i = 0; i < run->n_plans; i++)
        if (redecide_same(d->s->items, &run->plans[i], way)) return i;
    if (run->n_plans == LOAD_MAX_PLANS) return -1;
    run->plans[run->n_plans] = *way;
    return run->n_plans++;
}

/* False: it is the one in force. */
static bool switch_plan(struct driver *d, const struct redecision *r) {
    struct load_run *run = d->run;
    int plan = add_plan(d, &r->way);
    if (plan < 0 || plan == d->plan || run->n_switches == LOAD_MAX_SWITCHES) return false;
    struct load_switch *s = &run->switches[run->n_switches++];
    *s = (struct load_switch){.at_s = d->now_s,
                              .cost_s = r->offer.cost_s,
                              .old_s = r->offer.old_s,
                              .new_s = r->offer.new_s,
                              .plan = plan,
                              .moves = r->moves};
    replan_reason(&d->replan, s->reason, sizeof s->reason);
    replan_switched(&d->replan, &r->offer);
    d->before = d->plan;
    d->plan = plan;
    d->now_s += r->offer.cost_s;
    d->segment->n_switches++;
    d->segment->reaction_s = d->now_s - d->segment->start_s;
    d->segment->reaction_rounds = d->segment->n_rounds;
    return true;
}

/* Between rounds: asks for a plan, or takes the one that was asked for. */
static ats_status adapt(struct driver *d) {
    struct load_run *run = d->run;
    if (!d->solving && replan_due(&d->replan)) {
        d->asked = replan_ask(&d->replan);
        d->solving = true;
        d->solved_at_s = d->now_s + SOLVE_S;
        return ATS_OK;
    }
    if (!d->solving || d->now_s < d->solved_at_s) return ATS_OK;
    struct redecision r;
    d->solving = false;
    run->n_solved++;
    TRY(redecide(&d->s->arena, d->s->items, &d->options, &d->asked, &run->plans[0],
                 &run->plans[d->plan], d->before >= 0 ? &run->plans[d->before] : NULL,
                 &d->replan.options, &r));
    if (!replan_accept(&d->replan, &r.offer) || !switch_plan(d, &r))
        replan_declined(&d->replan, SOLVE_S);
    return ATS_OK;
}

ats_status load_simulate(struct simulation *s, const char *path) {
    struct load *load;
    TRY(load_read(&s->arena, path, &load));
    struct load_run *run = s->load = ARENA_NEW(&s->arena, struct load_run);
    *run = (struct load_run){
        .segments = ARENA_ARRAY(&s->arena, struct load_segment, 2 * load->n_steps + 1)};
    struct driver d = {.s = s, .run = run, .before = -1};
    struct replan_options o = replan_options_default();
    if (s->o.replan_threshold > 0) o.threshold = s->o.replan_threshold;
    if (s->o.replan_interval > 0) o.interval_rounds = s->o.replan_interval;
    d.options = simulation_options(s, s->best.n_batch);
    replan_begin(&d.replan, &o);
    run->plans[run->n_plans++] = s->best;
    for (double next_s = 0; isfinite(next_s) && d.n_rounds < MAX_ROUNDS;) {
        TRY(begin_segment(&d, load));
        double tail_s = fmax(TAIL_S, TAIL_ROUNDS * d.segment->static_s);
        next_s = load_next_change(load, d.now_s);
        double end_s = fmin(next_s, d.now_s + (isfinite(next_s) ? HUGE_VAL : tail_s));
        while (d.now_s < end_s && d.n_rounds < MAX_ROUNDS) {
            run_round(&d);
            TRY(adapt(&d));
        }
        end_segment(&d);
    }
    run->end_s = d.now_s;
    run->n_rounds = d.n_rounds;
    return ATS_OK;
}

/* ---- told ---- */

static json_t *factors_json(const struct load_factors *f) {
    json_t *o = json_object();
    for (int i = 0; i < N_LOAD_RESOURCES; i++)
        json_object_set_new(o, load_resource_name((enum load_resource)i), json_real(f->slow[i]));
    return o;
}

/* What planning again takes off a round, and off what load adds to it. */
static void set_reductions(json_t *o, const struct load_segment *segment, double alone_s) {
    double less_s = segment->static_s - segment->settled_s;
    double rise_s = segment->static_s - alone_s;
    json_object_set_new(o, "reduction", json_real(less_s / segment->static_s));
    json_object_set_new(o, "rise_reduction", json_real(rise_s > 0 ? less_s / rise_s : 0));
}

static json_t *segment_json(const struct load_run *run, const struct load_segment *segment) {
    json_t *o = json_pack("{s:f, s:f, s:o, s:f, s:f, s:f, s:f, s:i, s:i, s:i, s:f, s:i}", "start_s",
                          segment->start_s, "end_s", segment->end_s, "slow",
                          factors_json(&segment->factors), "static_s", segment->static_s,
                          "replanned_s", segment->settled_s, "oracle_s", segment->oracle_s,
                          "mean_s", segment->mean_s, "rounds", segment->n_rounds, "switches",
                          segment->n_switches, "plan", segment->plan, "reaction_s",
                          segment->reaction_s, "reaction_rounds", segment->reaction_rounds);
    set_reductions(o, segment, run->plans[0].decode.transfer.result.round_s);
    return o;
}

static json_t *switch_json(const struct load_switch *s) {
    return json_pack("{s:f, s:s, s:f, s:f, s:f, s:f, s:i, s:b}", "at_s", s->at_s, "reason",
                     s->reason, "cost_s", s->cost_s, "old_s", s->old_s, "new_s", s->new_s, "gain",
                     (s->old_s - s->new_s) / s->old_s, "plan", s->plan, "moves", s->moves);
}

json_t *load_json(const struct load_run *run) {
    json_t *segments = json_array(), *switches = json_array();
    for (int i = 0; i < run->n_segments; i++)
        json_array_append_new(segments, segment_json(run, &run->segments[i]));
    for (int i = 0; i < run->n_switches; i++)
        json_array_append_new(switches, switch_json(&run->switches[i]));
    return json_pack("{s:f, s:i, s:i, s:i, s:o, s:o}", "end_s", run->end_s, "rounds", run->n_rounds,
                     "solved", run->n_solved, "probes", run->n_probes, "segments", segments,
                     "switches", switches);
}
