#include "plan/redecide.h"

#include <math.h>

#include "plan/diff.h"

/* Recording commands anew, buffers, what else a switch takes without moving anything. */
#define RECORD_S 0.01
/* Repacking reads and writes, and the file's pages are read before: of the host's bandwidth. */
#define REPACK_SHARE 0.25

double redecide_move_s(struct arena *arena, const struct items *items, const struct placement *from,
                       const struct placement *to) {
    const struct profile *p = items->profile;
    const struct diff *d = placement_diff(arena, items, from, to);
    return (double)d->to_gpu_bytes / p->link.up_staged +
           (double)d->to_host_bytes / (REPACK_SHARE * p->dram_bytes);
}

bool redecide_same(const struct items *items, const struct decide_way *a,
                   const struct decide_way *b) {
    bool two = a->prompts_from > 0;
    return a->n_slots == b->n_slots && fabs(a->slot_bytes - b->slot_bytes) < 1 &&
           placement_same(items, a->placement, b->placement) &&
           schedule_same(&a->decode, &b->decode) && two == (b->prompts_from > 0) &&
           (!two || schedule_same(&a->prefill, &b->prefill));
}

void redecide_time(struct arena *arena, const struct items *items,
                   const struct decide_options *options, const struct load_factors *factors,
                   const struct decide_way *way, struct timeline_result *result) {
    struct schedule s;
    struct schedule_options so = decide_schedule_options(options, way, 1, options->depth);
    schedule_retime(arena, load_items(arena, items, factors), way->placement, &so, &way->decode,
                    &s);
    *result = s.transfer.result;
}

void redecide_alone(const struct decide_way *way, double alone_s[N_LOAD_RESOURCES]) {
    const struct transfer_problem *p = &way->decode.problem;
    memset(alone_s, 0, sizeof(double) * N_LOAD_RESOURCES);
    for (int i = 0; i < p->n; i++) {
        struct timeline_item item = transfer_apply(&p->items[i], way->decode.transfer.units[i]);
        alone_s[LOAD_CPU] += item.cpu_s;
        alone_s[LOAD_GPU] += item.gpu_s + (item.streamed ? item.streamed_s : 0);
        alone_s[LOAD_LINK] += item.streamed ? item.copy_s : 0;
    }
}

void redecide_busy(const struct decide_way *way, const struct timeline_result *r,
                   double busy_s[N_LOAD_RESOURCES]) {
    const struct timeline_machine *m = &way->decode.problem.machine;
    double cpu_s = replan_undisturbed_s(r->cpu_busy_s, r->cpu_copy_s, m->cpu_speed_copying);
    busy_s[LOAD_CPU] = replan_undisturbed_s(cpu_s, r->cpu_gpu_s, m->cpu_speed_gpu);
    busy_s[LOAD_GPU] = replan_undisturbed_s(r->gpu_busy_s, r->cpu_gpu_s, m->gpu_speed_cpu);
    busy_s[LOAD_LINK] = replan_undisturbed_s(r->copy_busy_s, r->cpu_copy_s, m->copy_speed_cpu);
}

/* ---- candidates ---- */

struct redecider {
    struct arena *arena;
    const struct items *items, *loaded;
    const struct decide_options *o;
    const struct decide_way *base, *now, *before;
    const struct replan_options *replan;
    struct redecision *out;
};

static double price(const struct redecider *r, const struct replan_offer *o) {
    return o->new_s + o->cost_s / r->replan->horizon_rounds;
}

/* A way whose decode is timed under load. */
static void consider(struct redecider *r, const struct decide_way *way, bool base) {
    struct redecision d = {.way = *way,
                           .moves = !placement_same(r->items, r->now->placement, way->placement)};
    d.offer =
        (struct replan_offer){.old_s = r->out->offer.old_s,
                              .new_s = way->decode.transfer.result.round_s,
                              .cost_s = RECORD_S,
                              .base = base || redecide_same(r->items, way, r->base),
                              .reverses = r->before && redecide_same(r->items, way, r->before)};
    if (d.moves)
        d.offer.cost_s += redecide_move_s(r->arena, r->items, r->now->placement, way->placement);
    if (!r->out->way.placement || price(r, &d.offer) < price(r, &r->out->offer)) *r->out = d;
}

static void consider_base(struct redecider *r) {
    struct decide_way way = *r->base;
    decide_retime(r->arena, r->loaded, r->o, &way);
    consider(r, &way, true);
}

/* What is streamed, chosen anew; in decode alone if prompts have a program of their own. */
static void consider_schedule(struct redecider *r) {
    struct decide_way way = *r->now;
    if (way.prompts_from > 0) {
        struct schedule_options so = decide_schedule_options(r->o, &way, 1, r->o->depth);
        schedule_solve(r->arena, r->loaded, way.placement, &so, &way.decode);
    } else {
        decide_time(r->arena, r->loaded, r->o, &way);
    }
    consider(r, &way, false);
}

/* What has two programs keeps two. */
static ats_status consider_anew(struct redecider *r) {
    struct decide_options o = *r->o;
    struct decide_way way;
    o.n_batch = r->now->n_batch; /* buffers are reserved for it */
    if (r->now->prompts_from > 0)
        TRY(decide_pair(r->arena, r->loaded, &o, r->now, &way));
    else
        TRY(decide(r->arena, r->loaded, &o, &way));
    if (way.placement) consider(r, &way, false);
    return ATS_OK;
}

ats_status redecide(struct arena *arena, const struct items *items,
                    const struct decide_options *options, const struct load_factors *factors,
                    const struct decide_way *base, const struct decide_way *now,
                    const struct decide_way *before, const struct replan_options *replan,
                    struct redecision *out) {
    struct timeline_result old;
    struct redecider r = {.arena = arena,
                          .items = items,
                          .loaded = load_items(arena, items, factors),
                          .o = options,
                          .base = base,
                          .now = now,
                          .before = before,
                          .replan = replan,
                          .out = out};
    *out = (struct redecision){0};
    redecide_time(arena, items, options, factors, now, &old);
    out->offer.old_s = old.round_s;
    consider_base(&r);
    if (load_is_felt(factors, replan->threshold)) {
        consider_schedule(&r);
        TRY(consider_anew(&r));
    }
    decide_retime(arena, items, options, &out->way);
    out->way.placement = placement_copy(arena, items, out->way.placement);
    return ATS_OK;
}
