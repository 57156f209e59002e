#include "run/planner.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "run/engine.h"
#include "run/granularity.h"
#include "run/kept_profile.h"

/* A whole measurement that would take longer is a quick one. */
#define WHOLE_S 6.0
/* After so long it is told how long it would take. */
#define TELL_AFTER_S 1.0

/* ---- what there is to plan for ---- */

static bool is_gpu(const char *name) {
    return strncmp(name, "vulkan", 6) == 0 || strncmp(name, "sim:gpu", 7) == 0;
}

static bool is_processor(const char *name) {
    return strcmp(name, "cpu") == 0 || strcmp(name, "sim") == 0 || strcmp(name, "sim:cpu") == 0;
}

/* One CPU and one GPU, by the names that were asked for. */
static bool find_pair(const ats_engine *e, struct planner *p) {
    for (int d = 0; d < e->n_devices; d++) {
        const char *name = e->device_names[d];
        if (is_gpu(name) && !p->gpu) p->gpu = arena_strdup(&p->arena, name);
        if (is_processor(name) && !p->cpu) p->cpu = arena_strdup(&p->arena, name);
    }
    return e->n_devices == 2 && p->cpu && p->gpu;
}

static bool is_off(const ats_options *o) {
    return o->plan_seed != 0 || (o->profile && strcmp(o->profile, "off") == 0);
}

static bool is_path(const char *profile) {
    return profile && strcmp(profile, "auto") != 0 && strcmp(profile, "off") != 0;
}

/* The user says where everything is. */
static bool is_by_hand(const ats_options *o) {
    return o->plan || (o->gpu_layers && strcmp(o->gpu_layers, "auto") != 0);
}

/* A plan that the user makes needs no times, and what is only told is told at once. Simulated
 * devices are described, not measured. */
static bool may_measure(const ats_engine *e, const struct planner *p) {
    return !e->options.plan_only && !is_by_hand(&e->options) && strncmp(p->gpu, "sim", 3) != 0;
}

/* ---- measuring ---- */

struct measuring {
    const ats_engine *e;
    uint64_t begin_ns;
    bool whole, too_long;
};

static bool on_step(void *user, uint64_t done, uint64_t total) {
    struct measuring *m = user;
    const ats_options *o = &m->e->options;
    double s = (double)(clock_ns() - m->begin_ns) * 1e-9;
    m->too_long = m->whole && s > TELL_AFTER_S && s * (double)total > WHOLE_S * (double)done;
    if (m->too_long) return false;
    return !o->progress || o->progress(o->progress_user, "measuring", done, total);
}

/* Whole where that takes few seconds, else quickly. */
static ats_status measure(struct planner *p, const ats_engine *e, struct profile_request *request) {
    struct measuring m = {.e = e, .begin_ns = clock_ns(), .whole = true};
    request->measure.progress = on_step;
    request->measure.progress_user = &m;
    log_msg(LOG_WARN, "measuring this machine for this model, once: %s and %s", p->cpu, p->gpu);
    ats_status status = kept_profile_measure(&p->arena, request, &p->profile, &p->profile_path);
    if (status == ATS_CANCELLED && m.too_long) {
        m.whole = false;
        request->measure.quick = true;
        error_clear();
        log_msg(LOG_INFO, "the quick form; `atsinfer profile` measures more");
        status = kept_profile_measure(&p->arena, request, &p->profile, &p->profile_path);
    }
    p->measured = status == ATS_OK;
    if (status == ATS_OK || status == ATS_CANCELLED) return status;
    log_msg(LOG_WARN, "%s: layers are placed as they fit", error_text());
    error_clear();
    return ATS_OK;
}

/* ---- the profile ---- */

static struct profile_request make_request(const ats_engine *e, const struct planner *p,
                                           int depths) {
    return (struct profile_request){.model = p->model,
                                    .measure = {.cpu = p->cpu,
                                                .gpu = p->gpu,
                                                .n_threads = e->options.n_threads,
                                                .n_ctx = depths,
                                                .kv_k = e->options.kv_k,
                                                .kv_v = e->options.kv_v}};
}

static ats_status read_given(struct planner *p, const struct profile_request *request,
                             const char *path) {
    TRY(profile_read(&p->arena, path, &p->profile));
    ats_status status = kept_profile_check(request, p->profile);
    p->profile_path = path;
    return status == ATS_OK ? ATS_OK : fail_in(status, "%s", path);
}

static ats_status find_profile(struct planner *p, const ats_engine *e) {
    int depths;
    TRY(profile_depths_of(e->file, &depths));
    struct profile_request request = make_request(e, p, depths);
    if (is_path(e->options.profile)) return read_given(p, &request, e->options.profile);
    p->profile = kept_profile_find(&p->arena, &request, true, &p->profile_path);
    return p->profile || !may_measure(e, p) ? ATS_OK : measure(p, e, &request);
}

/* ---- the items ---- */

static ats_status open_model(struct planner *p, const ats_engine *e) {
    const struct model_options options = {.n_ctx = e->options.n_ctx,
                                          .math = measure_math(e->options.math),
                                          .row_group = PLAN_ROW_GROUP,
                                          .planning = true,
                                          .force = e->options.force};
    return model_open(e->file, &options, &p->model);
}

static ats_status make_items(struct planner *p, const ats_engine *e) {
    struct items_options *o = &p->items_options;
    *o = items_options_default();
    o->n_ctx = e->options.n_ctx;
    o->n_seqs = e->options.n_seqs;
    o->n_states = state_slots_needed(o->n_seqs, !e->options.no_fusion);
    o->n_batch = e->options.n_batch;
    o->kv_k = measure_kv_dtype(e->options.kv_k);
    o->kv_v = measure_kv_dtype(e->options.kv_v);
    o->no_fusion = e->options.no_fusion;
    return items_build(&p->arena, p->model->graph, p->profile, o, &p->items);
}

/* A request of a prompt that fills half the context, at most 2048 tokens. */
static ats_status set_options(struct planner *p, const ats_engine *e) {
    struct decide_options *o = &p->base;
    *o = decide_options_default(e->options.n_ctx, 0);
    TRY(granularity_read(e->options.granularity, &o->placement.granularity));
    TRY(transfer_read(e->options.transfer, &o->decode_rule));
    o->prefill_rule = o->decode_rule;
    o->placement.paper_moe = e->options.paper_moe;
    o->runnable = o->placement.prompts_in_place = true;
    o->one_program = e->options.one_program;
    o->n_batch = e->options.n_batch;
    o->placement.prefill_tokens = min_int(o->n_batch, o->n_prompt);
    o->placement.prompt_tokens = (double)o->n_prompt / o->n_answer;
    if (!e->options.plan_depth) return ATS_OK;
    o->depth = o->placement.depths[0] = min_int(e->options.plan_depth, e->options.n_ctx);
    o->placement.weights[0] = o->placement.n_depths = 1;
    return ATS_OK;
}

/* How many tokens of a prompt are evaluated at a time, if the user leaves it open. Devices are not
 * open yet: their memory is what it was when they were measured. */
static ats_status choose_chunk(struct planner *p, ats_engine *e) {
    ats_options *o = &e->options;
    struct decide_options d = p->base;
    d.device_bytes = (double)p->profile->usable_bytes;
    if (o->vram_mib) d.device_bytes = fmin(d.device_bytes, o->vram_mib * 1048576.0);
    if (!e->batch_open || d.one_program || is_by_hand(o)) return ATS_OK;
    int n_batch = decide_chunk(p->items, &d);
    if (n_batch == o->n_batch) return ATS_OK;
    o->n_batch = n_batch;
    log_msg(LOG_INFO, "prompts are evaluated %d tokens at a time", n_batch);
    TRY(make_items(p, e));
    return set_options(p, e);
}

static ats_status open_all(struct planner *p, ats_engine *e) {
    TRY(open_model(p, e));
    TRY(find_profile(p, e));
    if (!p->profile) return ATS_OK;
    TRY(make_items(p, e));
    TRY(set_options(p, e));
    return p->items->n_items > 0 ? choose_chunk(p, e) : ATS_OK;
}

ats_status planner_open(ats_engine *e, struct planner **out) {
    struct planner *p = xcalloc(1, sizeof *p);
    *out = NULL;
    bool wanted = !is_off(&e->options) && find_pair(e, p);
    if (!wanted && is_path(e->options.profile))
        log_msg(LOG_WARN, "%s is not read: times are for a CPU and a GPU that share a model",
                e->options.profile);
    ats_status status = wanted ? open_all(p, e) : ATS_OK;
    if (status == ATS_OK && p->profile && p->items->n_items > 0)
        *out = p;
    else
        planner_close(p);
    return status;
}

void planner_close(struct planner *p) {
    if (!p) return;
    model_close(p->model);
    arena_free(&p->way_arena);
    arena_free(&p->free_arena);
    arena_free(&p->arena);
    free(p);
}

/* ---- ways and plans ---- */

struct plan *planner_plan(const struct planner *p, struct arena *arena,
                          const struct decide_way *way, int n_devices, int cpu, int gpu) {
    if (way->prompts_from > 0)
        return schedule_pair(arena, p->items, way->placement, &way->decode, &way->prefill,
                             way->prompts_from, way->n_slots, way->slot_bytes, n_devices, cpu, gpu);
    return schedule_plan(arena, p->items, way->placement, &way->decode, way->n_slots,
                         way->slot_bytes, n_devices, cpu, gpu);
}

ats_status planner_judge(const struct planner *p, struct arena *arena, const struct plan *plan,
                         int cpu, int gpu, struct decide_way *out) {
    struct decide_options o = p->base;
    struct schedule_streams streams;
    TRY(schedule_read_plan(arena, p->items, plan, gpu, &streams));
    *out = (struct decide_way){
        .n_batch = o.n_batch, .n_slots = streams.n_slots, .slot_bytes = streams.slot_bytes};
    TRY(placement_from_plan(arena, p->items, &o.placement, plan, cpu, gpu, &out->placement));
    o.given = &streams;
    o.one_program = !streams.prompts;
    decide_time(arena, p->items, &o, out);
    return ATS_OK;
}

/* ---- for people ---- */

const char *planner_binds(const struct decide_way *way, double *share) {
    static const char *const names[] = {"cpu", "gpu", "link", "changes"};
    const struct timeline_result *r = &way->decode.transfer.result;
    const double busy[] = {r->cpu_busy_s, r->gpu_busy_s, r->copy_busy_s, r->switch_s};
    size_t most = 0;
    for (size_t i = 1; i < COUNT_OF(busy); i++)
        if (busy[i] > busy[most]) most = i;
    *share = r->round_s > 0 ? fmin(1, busy[most] / r->round_s) : 0;
    return names[most];
}

const char *planner_text(const struct planner *p, struct arena *arena,
                         const struct decide_way *way) {
    double round_s = way->decode.transfer.result.round_s, share;
    const char *binds = planner_binds(way, &share);
    const char *what = strcmp(binds, "cpu") == 0    ? "the CPU binds"
                       : strcmp(binds, "gpu") == 0  ? "the GPU binds"
                       : strcmp(binds, "link") == 0 ? "the link binds"
                                                    : "device changes bind";
    return arena_printf(arena,
                        "%.2f ms a token (%.1f tok/s) after %d, prompts %.0f tok/s; %s (%.0f%% of "
                        "a round)",
                        round_s * 1e3, 1 / round_s, p->base.depth, p->base.n_prompt / way->prompt_s,
                        what, 100 * share);
}

static void add_free(const struct planner *p, json_t *out) {
    const struct decide_way *w = &p->free_way;
    double cost_s = p->way.decode.transfer.result.round_s - w->decode.transfer.result.round_s;
    json_object_set_new(out, "free_decode_s", json_real(w->decode.transfer.result.round_s));
    json_object_set_new(out, "free_prefill_tok_s", json_real(p->base.n_prompt / w->prompt_s));
    json_object_set_new(out, "free_request_s", json_real(w->request_s));
    json_object_set_new(out, "cost_ms", json_real(1e3 * cost_s));
}

json_t *planner_json(const struct planner *p, const struct decide_way *w) {
    double round_s = w->decode.transfer.result.round_s, share;
    const char *binds = planner_binds(w, &share);
    json_t *out = json_pack(
        "{s:f, s:f, s:i, s:f, s:i, s:i, s:i, s:f, s:s, s:f, s:I, s:f, s:i, s:i, s:i}", "decode_s",
        round_s, "decode_tok_s", 1 / round_s, "depth", p->base.depth, "prefill_tok_s",
        p->base.n_prompt / w->prompt_s, "n_prompt", p->base.n_prompt, "n_batch", w->n_batch,
        "n_answer", p->base.n_answer, "request_s", w->request_s, "binds", binds, "bound_share",
        share, "gpu_bytes", (json_int_t)w->placement->gpu_bytes, "streamed_bytes",
        w->decode.copied_bytes, "slots", w->n_slots, "device_changes",
        w->decode.transfer.result.n_splits, "given_items", p->n_given);
    if (w->prompts_from > 0) {
        json_object_set_new(out, "prompts_from", json_integer(w->prompts_from));
        json_object_set_new(out, "prompts_streamed_bytes", json_real(w->prefill.copied_bytes));
    }
    if (p->free_way.placement) add_free(p, out);
    json_t *profile = json_pack("{s:o, s:s?, s:b}", "name",
                                json_string_replaced(p->profile->name, strlen(p->profile->name)),
                                "path", p->profile_path, "measured", (int)p->measured);
    if (profile) json_object_set_new(out, "profile", profile);
    return out;
}
