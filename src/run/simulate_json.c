/* A simulation as JSON: speeds, where time goes, limits, and a trace. */
#include <math.h>
#include <string.h>
#include "run/granularity.h"
#include "run/simulate.h"

/* JSON has no infinity: null. */
static json_t *real(double v) {
    return isfinite(v) ? json_real(v) : json_null();
}

static void set(json_t *o, const char *key, double v) {
    json_object_set_new(o, key, real(v));
}

static double share(double part, double whole) {
    return whole > 0 ? part / whole : 0;
}

static json_t *schedule_json(const struct schedule *s) {
    const struct timeline_result *r = &s->transfer.result;
    json_t *o = json_object(), *proposed = json_object();
    int n_streamed = 0, n_places[3] = {0};
    for (int i = 0; i < s->problem.n; i++) {
        n_streamed += s->transfer.units[i] > 0;
        n_places[transfer_apply(&s->problem.items[i], s->transfer.units[i]).place]++;
    }
    set(o, "round_s", r->round_s);
    set(o, "gpu_busy", share(r->gpu_busy_s, r->round_s));
    set(o, "cpu_busy", share(r->cpu_busy_s, r->round_s));
    set(o, "copy_busy", share(r->copy_busy_s, r->round_s));
    set(o, "overlap_efficiency",
        share(r->gpu_busy_s + r->cpu_busy_s + r->copy_busy_s, 3 * r->round_s));
    set(o, "exposed_s", r->exposed_s);
    set(o, "switch_s", r->switch_s);
    json_object_set_new(o, "splits", json_integer(r->n_splits));
    set(o, "copied_bytes", s->copied_bytes);
    set(o, "crossing_bytes", s->crossing_bytes);
    set(o, "link_rate", share(s->copied_bytes + s->crossing_bytes, r->round_s));
    json_object_set_new(o, "entries",
                        json_pack("{s:i, s:i, s:i, s:i}", "cpu", n_places[TIMELINE_CPU], "gpu",
                                  n_places[TIMELINE_GPU], "both", n_places[TIMELINE_BOTH],
                                  "streamed", n_streamed));
    for (int k = 0; k < N_TRANSFER_RULES; k++)
        if (s->transfer.proposed_s[k] < HUGE_VAL)
            set(proposed, transfer_rule_name((enum transfer_rule)k), s->transfer.proposed_s[k]);
    json_object_set_new(o, "proposed_s", proposed);
    json_object_set_new(o, "from", json_string(transfer_rule_name(s->transfer.from)));
    return o;
}

static json_t *limit_json(const struct limit *l, double n_tokens) {
    json_t *o = json_object();
    set(o, "tok_s", n_tokens / l->round_s);
    set(o, "hit", l->hit);
    json_object_set_new(o, "binds",
                        l->round_s > 0 ? json_string(limit_binds_name(l->binds)) : json_null());
    return o;
}

static json_t *limits_json(const struct simulation *s) {
    double n_batch = min_int(s->best.n_batch, s->o.n_prompt);
    const struct timeline_result *decode = &s->best.decode.transfer.result;
    json_t *o = json_pack("{s:o, s:o, s:o, s:o}", "round", limit_json(&s->round, 1), "blocks",
                          limit_json(&s->blocks, 1), "started", limit_json(&s->started, 1),
                          "prefill", limit_json(&s->prompt, n_batch));
    set(o, "decode_of_round", share(s->round.round_s, decode->round_s));
    set(o, "decode_of_blocks", share(s->blocks.round_s, decode->round_s));
    set(o, "decode_of_started", share(s->started.round_s, decode->round_s));
    set(o, "prefill_of_bound",
        share(s->prompt.round_s / n_batch, s->best.prompt_s / s->o.n_prompt));
    return o;
}

static json_t *placement_json(const struct simulation *s) {
    const struct placement *p = s->best.placement;
    int n_gpu = 0, n_divided = 0;
    for (int b = 0; b < s->items->n_blocks; b++) {
        const struct items_block *block = &s->items->blocks[b];
        n_divided += p->units[b] > 0;
        for (int i = block->first; i < block->first + block->n; i++)
            n_gpu += p->units[b] == 0 && p->homes[i] == SIDE_GPU;
    }
    return json_pack("{s:i, s:i, s:i, s:i, s:I}", "items", s->items->n_items, "items_on_gpu", n_gpu,
                     "blocks", s->items->n_blocks, "blocks_divided", n_divided, "gpu_bytes",
                     (json_int_t)p->gpu_bytes);
}

/* ---- trace ---- */

enum { LANE_CPU = 1, LANE_GPU, LANE_COPY };

static void add_event(json_t *events, const char *name, int process, int lane, double begin_s,
                      double end_s) {
    if (end_s <= begin_s) return;
    json_array_append_new(events, json_pack("{s:s, s:s, s:i, s:i, s:f, s:f}", "name", name, "ph",
                                            "X", "pid", process, "tid", lane, "ts", begin_s * 1e6,
                                            "dur", (end_s - begin_s) * 1e6));
}

static void add_name(json_t *events, const char *what, const char *name, int process, int lane) {
    json_array_append_new(events,
                          json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", what, "ph", "M", "pid",
                                    process, "tid", lane, "args", "name", name));
}

static void add_schedule(struct simulation *s, const struct schedule *schedule, const char *name,
                         int process, json_t *events) {
    const struct transfer_problem *p = &schedule->problem;
    struct timeline_span *spans = ARENA_ARRAY(&s->arena, struct timeline_span, p->n);
    schedule_spans(&s->arena, schedule, spans);
    add_name(events, "process_name", name, process, 0);
    add_name(events, "thread_name", "CPU", process, LANE_CPU);
    add_name(events, "thread_name", "GPU", process, LANE_GPU);
    add_name(events, "thread_name", "copies", process, LANE_COPY);
    for (int i = 0; i < p->n; i++) {
        const struct timeline_span *span = &spans[i];
        const char *label = items_name(s->items, schedule->entries[i].first);
        add_event(events, label, process, LANE_GPU, span->gpu_begin_s, span->gpu_end_s);
        add_event(events, label, process, LANE_CPU, span->cpu_begin_s, span->cpu_end_s);
        add_event(events, label, process, LANE_COPY, span->copy_begin_s, span->copy_end_s);
    }
}

static json_t *trace_json(struct simulation *s) {
    json_t *events = json_array();
    add_schedule(s, &s->best.decode, "decode", 1, events);
    add_schedule(s, &s->best.prefill, "prefill", 2, events);
    return events;
}

/* ---- ablation ---- */

static json_t *phase_json(double tok_s, const struct timeline_result *r, const struct schedule *s) {
    json_t *o = json_object();
    set(o, "tok_s", tok_s);
    set(o, "round_s", r->round_s);
    set(o, "gpu_busy", share(r->gpu_busy_s, r->round_s));
    set(o, "link_rate", share(s->copied_bytes + s->crossing_bytes, r->round_s));
    set(o, "exposed_s", r->exposed_s);
    json_object_set_new(o, "splits", json_integer(r->n_splits));
    return o;
}

static json_t *row_json(const struct simulation *s, const struct ablation_row *row) {
    const struct decide_way *w = &row->way;
    const struct timeline_result *decode = &w->decode.transfer.result,
                                 *prefill =
                                     row->serial ? &w->prefill.serial : &w->prefill.transfer.result;
    double prompt_s = row->serial ? w->prompt_serial_s : w->prompt_s;
    json_t *o = json_object();
    json_object_set_new(o, "name", json_string(row->name));
    json_object_set_new(o, "granularity", json_string(granularity_name(row->granularity)));
    set(o, "gpu_bytes", (double)w->placement->gpu_bytes);
    json_object_set_new(o, "decode", phase_json(share(1, decode->round_s), decode, &w->decode));
    json_object_set_new(o, "prefill",
                        phase_json(share(s->o.n_prompt, prompt_s), prefill, &w->prefill));
    return o;
}

static json_t *rows_json(const struct simulation *s, const struct ablation_row *rows, int n) {
    json_t *list = json_array();
    for (int i = 0; i < n; i++)
        json_array_append_new(list, row_json(s, &rows[i]));
    return list;
}

static json_t *ablation_json(const struct simulation *s) {
    const struct ablation *a = s->ablation;
    json_t *o = json_pack("{s:i, s:i}", "n_slots", a->frame.n_slots, "n_batch", a->frame.n_batch);
    set(o, "budget_bytes", a->frame.budget_bytes);
    json_object_set_new(o, "steps", rows_json(s, a->steps, ABLATION_STEPS));
    json_object_set_new(o, "granularities",
                        rows_json(s, a->granularities, SIMULATION_GRANULARITIES));
    return o;
}

/* ---- as executed ---- */

/* executed_decode_s, executed_prefill_s; and what is predicted of the same schedules. */
static void set_executed(json_t *o, const struct simulation *s) {
    static const char *const names[] = {"decode", "prefill"};
    if (s->not_executed) {
        json_object_set_new(o, "not_executed", json_string(s->not_executed));
        return;
    }
    json_t *executed = json_object();
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        const struct simulation_executed *e = &s->executed[i];
        json_t *one = json_object();
        set(one, "round_s", e->round_s);
        set(one, "predicted_s", e->predicted_s);
        set(one, "gap", e->round_s / e->predicted_s - 1);
        json_object_set_new(executed, names[i], one);
    }
    json_object_set_new(o, "executed", executed);
    set(o, "executed_decode_s", s->executed[0].round_s);
    set(o, "executed_prefill_s", s->executed[1].round_s);
}

/* ---- the whole ---- */

json_t *simulation_json(struct simulation *s) {
    const struct decide_way *w = &s->best;
    json_t *o =
        json_pack("{s:i, s:o, s:o, s:s, s:s, s:i, s:i, s:i, s:i, s:i}", "schema", 1, "model",
                  json_string_replaced(s->o.model, strlen(s->o.model)), "machine",
                  json_string_replaced(s->machine->name, strlen(s->machine->name)), "granularity",
                  s->o.granularity, "transfer", s->constraints.given.plan ? "given" : s->o.transfer,
                  "n_ctx", s->o.n_ctx, "n_prompt", s->o.n_prompt, "depth", s->o.depth, "n_batch",
                  w->n_batch, "n_slots", w->n_slots);
    set(o, "decode_tok_s", share(1, w->decode.transfer.result.round_s));
    set(o, "prefill_tok_s", share(s->o.n_prompt, w->prompt_s));
    set(o, "prefill_serial_tok_s", share(s->o.n_prompt, w->prompt_serial_s));
    json_object_set_new(o, "stream_caches", json_boolean(s->o.stream_caches));
    set(o, "vram_bytes", s->vram_bytes);
    set(o, "budget_bytes", w->budget_bytes);
    set(o, "slot_bytes", w->slot_bytes);
    set(o, "work_bytes", w->work_bytes);
    set(o, "weight_bytes", (double)s->model->weight_bytes);
    set(o, "expert_hit_exponent", s->hit_exponent);
    json_object_set_new(o, "placement", placement_json(s));
    json_object_set_new(o, "decode", schedule_json(&w->decode));
    json_object_set_new(o, "prefill", schedule_json(&w->prefill));
    set_executed(o, s);
    json_object_set_new(o, "limits", limits_json(s));
    if (s->ablation) json_object_set_new(o, "ablation", ablation_json(s));
    if (s->load) json_object_set_new(o, "load", load_json(s->load));
    if (s->o.trace) json_object_set_new(o, "trace", trace_json(s));
    return o;
}
