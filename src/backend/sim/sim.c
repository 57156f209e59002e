/* A simulated device: what it passes on to the one it wraps, and what chaos spoils. */
#include "backend/sim/sim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "backend/sim/sim_internal.h"

static const struct backend_vtable sim_vtable;

bool sim_is_device(const struct backend *b) {
    return b->fn == &sim_vtable;
}

struct sim *sim_of(struct backend *b) {
    return CONTAINER_OF(b, struct sim, base);
}

static struct backend *inner_of(struct backend *b) {
    return sim_of(b)->inner;
}

/* ---- what weights and caches count ---- */

struct sim_known *sim_know(struct sim *s, const void *handle, int64_t bytes) {
    GROW(s->known, s->n_known, s->cap_known, 1);
    s->known[s->n_known] = (struct sim_known){.handle = handle, .bytes = bytes};
    return &s->known[s->n_known++];
}

static void forget(struct sim *s, const void *handle) {
    for (size_t i = s->n_known; i-- > 0;)
        if (s->known[i].handle == handle) {
            s->known[i] = s->known[--s->n_known];
            return;
        }
}

const struct sim_known *sim_known(const struct sim *s, const void *handle) {
    for (size_t i = 0; handle && i < s->n_known; i++)
        if (s->known[i].handle == handle) return &s->known[i];
    return NULL;
}

static int64_t known_bytes(const struct sim *s, const void *handle) {
    const struct sim_known *known = sim_known(s, handle);
    return known ? known->bytes : 0;
}

/* For tests: ATSINFER_SIM_FAIL_ALLOCATION=n makes the n-th allocation from now on fail, -n it and
 * all after it. Read at each, and counted anew when it has changed. */
ats_status sim_check_refused(struct sim *s) {
    struct sim_world *w = s->world;
    const char *text = getenv("ATSINFER_SIM_FAIL_ALLOCATION");
    int64_t asked = text ? strtoll(text, NULL, 10) : 0;
    if (asked != w->fail_asked) w->fail_left = asked < 0 ? -asked : asked;
    w->fail_asked = asked;
    if (w->fail_left == 0) return ATS_OK;
    if (--w->fail_left > 0) return ATS_OK;
    w->fail_left = asked < 0;
    return fail(ATS_NO_MEMORY, "a simulated device has no memory left, as asked for");
}

/* ---- passed on ---- */

static uint64_t sim_now(struct backend *b) {
    return (uint64_t)llround(sim_of(b)->world->now_ns);
}

static ats_status sim_host_alloc(struct backend *b, size_t bytes, void **out) {
    *out = NULL;
    TRY(sim_check_refused(sim_of(b)));
    return inner_of(b)->fn->host_alloc(inner_of(b), bytes, out);
}

static void sim_host_free(struct backend *b, void *p, size_t bytes) {
    inner_of(b)->fn->host_free(inner_of(b), p, bytes);
}

static int64_t sim_work_bytes(struct backend *b, const struct backend_limits *limits) {
    return inner_of(b)->fn->work_bytes(inner_of(b), limits);
}

static int64_t sim_pinned_bytes(struct backend *b, const struct backend_limits *limits) {
    return inner_of(b)->fn->pinned_bytes(inner_of(b), limits);
}

/* A simulated GPU has memory of its own, as far as anybody counts. For tests:
 * ATSINFER_SIM_FREE_KIB, read each time, is what is free of it. */
static void sim_memory(struct backend *b, struct backend_memory *out) {
    const struct sim *s = sim_of(b);
    inner_of(b)->fn->memory(inner_of(b), out);
    int64_t bytes = s->o.memory_bytes;
    if (s->o.machine) bytes = s->o.gpu ? s->o.machine->gpu_bytes : 0;
    if (bytes)
        *out = (struct backend_memory){
            .total_bytes = bytes, .free_bytes = bytes, .measured = !s->o.machine};
    const char *told = s->o.gpu ? getenv("ATSINFER_SIM_FREE_KIB") : NULL;
    if (!told) return;
    out->free_bytes = strtoll(told, NULL, 10) << 10;
    out->measured = true;
    out->host = false;
}

static const char *sim_lacks(struct backend *b, const struct graph *g, const struct graph_op *op) {
    return inner_of(b)->fn->lacks(inner_of(b), g, op);
}

static int64_t sim_weight_bytes(struct backend *b, const struct weight_source *source) {
    if (source->streamed) return sim_streamed_bytes(sim_of(b), source);
    return inner_of(b)->fn->weight_bytes(inner_of(b), source);
}

static ats_status sim_weight_load(struct backend *b, const struct weight_source *source,
                                  struct backend_weight **out) {
    *out = NULL;
    TRY(sim_check_refused(sim_of(b)));
    if (source->streamed) return sim_streamed_load(sim_of(b), source, out);
    TRY(inner_of(b)->fn->weight_load(inner_of(b), source, out));
    sim_know(sim_of(b), *out, weight_source_bytes(source));
    return ATS_OK;
}

static ats_status sim_weights_ready(struct backend *b) {
    return inner_of(b)->fn->weights_ready(inner_of(b));
}

static void sim_weight_free(struct backend *b, struct backend_weight *w) {
    forget(sim_of(b), w);
    inner_of(b)->fn->weight_free(inner_of(b), w);
}

static ats_status sim_kv_open(struct backend *b, const struct kv_layout *layout,
                              struct backend_kv **out) {
    *out = NULL;
    TRY(sim_check_refused(sim_of(b)));
    TRY(inner_of(b)->fn->kv_open(inner_of(b), layout, out));
    sim_know(sim_of(b), *out,
             layout->n_kv_heads * (int64_t)(kv_row_bytes(layout->type_k, layout->head_dim) +
                                            kv_row_bytes(layout->type_v, layout->head_dim)));
    return ATS_OK;
}

static void sim_kv_close(struct backend *b, struct backend_kv *kv) {
    forget(sim_of(b), kv);
    inner_of(b)->fn->kv_close(inner_of(b), kv);
}

static void sim_kv_copy_page(struct backend *b, struct backend_kv *kv, int src, int dst) {
    inner_of(b)->fn->kv_copy_page(inner_of(b), kv, src, dst);
}

static ats_status sim_kv_read(struct backend *b, struct backend_kv *kv, int page, void *out) {
    return inner_of(b)->fn->kv_read(inner_of(b), kv, page, out);
}

static ats_status sim_kv_write(struct backend *b, struct backend_kv *kv, int page, const void *in) {
    return inner_of(b)->fn->kv_write(inner_of(b), kv, page, in);
}

static ats_status sim_state_open(struct backend *b, const struct state_layout *layout,
                                 struct backend_state **out) {
    *out = NULL;
    TRY(sim_check_refused(sim_of(b)));
    TRY(inner_of(b)->fn->state_open(inner_of(b), layout, out));
    sim_know(sim_of(b), *out, layout->n_floats * 4);
    return ATS_OK;
}

static void sim_state_close(struct backend *b, struct backend_state *state) {
    forget(sim_of(b), state);
    inner_of(b)->fn->state_close(inner_of(b), state);
}

static ats_status sim_state_read(struct backend *b, struct backend_state *state, int slot,
                                 float *out) {
    return inner_of(b)->fn->state_read(inner_of(b), state, slot, out);
}

static ats_status sim_state_write(struct backend *b, struct backend_state *state, int slot,
                                  const float *in) {
    return inner_of(b)->fn->state_write(inner_of(b), state, slot, in);
}

/* ---- segments ---- */

/* A gather reads a few rows of its weight: its fixed cost covers them. Of experts a token reads
 * those that it chose, spread evenly. */
static void add_step(const struct sim *s, struct backend_segment *segment,
                     const struct step *step) {
    segment->n_steps++;
    sim_streamed_note(s, segment, step->weight);
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        sim_streamed_note(s, segment, step->experts[i]);
    segment->kv_bytes_per_position += known_bytes(s, step->kv);
    segment->state_bytes += 2 * known_bytes(s, step->state); /* read and written */
    if (step->kind != STEP_OP || step->op->kind == OP_EMBED) return;
    segment->weight_bytes += known_bytes(s, step->weight) + known_bytes(s, step->bias);
    if (step->op->kind != OP_EXPERTS) return;
    const struct experts_params *p = &step->op->p.experts;
    int64_t bytes = 0;
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        bytes += known_bytes(s, step->experts[i]);
    segment->expert_bytes += bytes;
    segment->expert_bytes_per_token += bytes / p->n_experts * p->n_used;
}

static ats_status sim_segment_build(struct backend *b, const struct step *steps, int n_steps,
                                    struct backend_segment **out) {
    struct backend_segment *inner;
    TRY(inner_of(b)->fn->segment_build(inner_of(b), steps, n_steps, &inner));
    struct backend_segment *segment = xcalloc(1, sizeof *segment);
    segment->inner = inner;
    segment->steps = steps;
    for (int i = 0; i < n_steps; i++)
        add_step(sim_of(b), segment, &steps[i]);
    *out = segment;
    return ATS_OK;
}

static void sim_segment_free(struct backend *b, struct backend_segment *segment) {
    if (!segment) return;
    inner_of(b)->fn->segment_free(inner_of(b), segment->inner);
    free(segment->streamed);
    free(segment);
}

static ats_status run_inner(struct sim *s, struct backend_segment *inner,
                            const struct round *round) {
    const struct backend_vtable *fn = s->inner->fn;
    TRY(fn->submit(s->inner, inner, round, NULL, 0, ++s->inner_value));
    return fn->wait(s->inner, s->inner_value);
}

ats_status sim_run(struct sim *s, const struct backend_segment *segment,
                   const struct round *round) {
    TRY(run_inner(s, segment->inner, round));
    sim_streamed_read(s, segment);
    return ATS_OK;
}

static ats_status sim_submit(struct backend *b, struct backend_segment *segment,
                             const struct round *round, const struct backend_wait *waits,
                             int n_waits, uint64_t value) {
    const struct sim_job job = {.segment = segment, .round = round, .value = value};
    return sim_world_submit(sim_of(b), &job, waits, n_waits);
}

static ats_status sim_submit_copy(struct backend *b, struct backend_copy *copy,
                                  const struct backend_wait *waits, int n_waits, uint64_t value) {
    const struct sim_job job = {.copy = copy, .value = value};
    return sim_world_submit(sim_of(b), &job, waits, n_waits);
}

static ats_status sim_wait(struct backend *b, uint64_t value) {
    return sim_world_wait(sim_of(b), value);
}

/* The world knows when a device of its own gets on. */
static void sim_reached(struct backend *b, struct backend *driven, uint64_t value) {
    (void)b, (void)driven, (void)value;
}

static void sim_set_timed(struct backend *b, bool timed) {
    sim_of(b)->timed = timed;
}

/* For tests: ATSINFER_SIM_WRONG_TIMES=n makes the next n times that are told of segments an hour
 * too long, -n those of copies. Read at each, and counted anew when it has changed. */
static void tell_wrong(struct sim *s, bool of_copy, struct backend_times *t) {
    struct sim_world *w = s->world;
    const char *text = getenv("ATSINFER_SIM_WRONG_TIMES");
    int64_t asked = text ? strtoll(text, NULL, 10) : 0;
    if (asked != w->wrong_asked) w->wrong_left = asked < 0 ? -asked : asked;
    w->wrong_asked = asked;
    if (w->wrong_left == 0 || of_copy != (asked < 0)) return;
    w->wrong_left--;
    t->end_ns += UINT64_C(3600000000000);
}

static bool sim_segment_times(struct backend *b, const struct backend_segment *segment,
                              struct backend_times *out) {
    *out = segment->times;
    if (segment->timed) tell_wrong(sim_of(b), false, out);
    return segment->timed;
}

static bool sim_copy_times(struct backend *b, const struct backend_copy *c, uint64_t value,
                           struct backend_times *out) {
    for (int i = 0; i < 2; i++)
        if (c->runs[i].value == value) {
            *out = c->runs[i].times;
            tell_wrong(sim_of(b), true, out);
            return true;
        }
    return false;
}

static void sim_counters(struct backend *b, struct backend_counters *out) {
    *out = (struct backend_counters){.n_submissions = sim_of(b)->n_submissions};
}

/* ---- poison ---- */

/* All bits set is a NaN in every floating type, and -1 where an index is expected. */
static void poison_exchange(const struct backend_limits *l, int64_t offset_bytes, int64_t bytes) {
    memset((uint8_t *)l->exchange + offset_bytes, 0xFF, (size_t)bytes);
}

/* The wrapped device's own memory is out of reach but for its steps: copies of the poisoned
 * exchange, piece by piece. */
static ats_status build_poison(struct sim *s) {
    const struct backend_limits *l = &s->limits;
    int64_t piece = min_i64(l->exchange_bytes, (int64_t)1 << 20) / 64 * 16; /* floats */
    int64_t n_floats = l->local_bytes / 4, n_pieces = piece ? (n_floats + piece - 1) / piece : 0;
    if (n_pieces == 0) return ATS_OK;
    s->poison_steps = xcalloc((size_t)n_pieces, sizeof *s->poison_steps);
    for (int64_t i = 0; i < n_pieces; i++) {
        int width = (int)min_i64(piece, n_floats - i * piece);
        struct step *step = &s->poison_steps[i];
        *step = (struct step){.kind = STEP_COPY, .n_in = 1, .end = width};
        step->in[0] = (struct span){SPACE_EXCHANGE, 0, width, 0};
        step->out = (struct span){SPACE_LOCAL, i * piece * 4, width, 0};
    }
    return s->inner->fn->segment_build(s->inner, s->poison_steps, (int)n_pieces, &s->poison);
}

static ats_status poison_local(struct sim *s) {
    static const int32_t zero = 0;
    const struct round_run run = {.n_tokens = 1, .pages = {&zero}};
    const struct round one_line = {
        .n_tokens = 1, .tokens = &zero, .positions = &zero, .runs = &run, .n_runs = 1};
    return s->poison ? run_inner(s, s->poison, &one_line) : ATS_OK;
}

static void release_poison(struct sim *s) {
    if (s->poison) s->inner->fn->segment_free(s->inner, s->poison);
    free(s->poison_steps);
    s->poison = NULL;
    s->poison_steps = NULL;
}

static ats_status sim_reserve(struct backend *b, const struct backend_limits *limits) {
    struct sim *s = sim_of(b);
    release_poison(s);
    sim_slots_close(s);
    s->limits = (struct backend_limits){0};
    TRY(sim_check_refused(s));
    struct backend_limits inner = *limits;
    inner.races = NULL; /* what is not waited for runs one after the other */
    TRY(s->inner->fn->reserve(s->inner, &inner));
    s->limits = inner;
    TRY(sim_slots_open(s));
    return s->o.chaos ? build_poison(s) : ATS_OK;
}

ats_status sim_begin_round(struct sim *s) {
    if (!s->o.chaos || !s->limits.exchange) return ATS_OK;
    sim_draw_slowness(s);
    poison_exchange(&s->limits, 0, s->limits.exchange_bytes);
    return poison_local(s);
}

/* ---- opening ---- */

static void sim_close(struct backend *b) {
    struct sim *s = sim_of(b);
    sim_world_leave(s);
    release_poison(s);
    s->inner->fn->close(s->inner);
    sim_slots_close(s);
    for (int q = 0; q < SIM_QUEUES; q++)
        free(s->queues[q].reached);
    free(s->known);
    free(s);
}

static const struct backend_vtable sim_vtable = {
    .close = sim_close,
    .now = sim_now,
    .host_alloc = sim_host_alloc,
    .host_free = sim_host_free,
    .memory = sim_memory,
    .lacks = sim_lacks,
    .work_bytes = sim_work_bytes,
    .pinned_bytes = sim_pinned_bytes,
    .reserve = sim_reserve,
    .weight_bytes = sim_weight_bytes,
    .home_open = sim_home_open,
    .home_close = sim_home_close,
    .home_source = sim_home_source,
    .weight_load = sim_weight_load,
    .weights_ready = sim_weights_ready,
    .weight_free = sim_weight_free,
    .kv_open = sim_kv_open,
    .kv_close = sim_kv_close,
    .kv_copy_page = sim_kv_copy_page,
    .kv_read = sim_kv_read,
    .kv_write = sim_kv_write,
    .state_open = sim_state_open,
    .state_close = sim_state_close,
    .state_read = sim_state_read,
    .state_write = sim_state_write,
    .segment_build = sim_segment_build,
    .segment_free = sim_segment_free,
    .submit = sim_submit,
    .copy_build = sim_copy_build,
    .copy_free = sim_copy_free,
    .submit_copy = sim_submit_copy,
    .probe_copy = sim_probe_copy,
    .reached = sim_reached,
    .wait = sim_wait,
    .set_timed = sim_set_timed,
    .segment_times = sim_segment_times,
    .copy_times = sim_copy_times,
    .counters = sim_counters,
};

struct backend *sim_backend_open(struct backend *inner, const struct sim_options *options,
                                 struct backend *peer) {
    REQUIRE(!peer || sim_is_device(peer));
    struct sim *s = xcalloc(1, sizeof *s);
    s->base = (struct backend){.fn = &sim_vtable,
                               .name = "sim",
                               .gpu = options->gpu,
                               .streams = options->rates.copy_bytes_per_ns > 0,
                               .keeps_time_only = inner->keeps_time_only};
    if (options->machine) s->base.streams = options->gpu && options->machine->copy_bytes > 0;
    s->o = *options;
    s->inner = inner;
    sim_world_join(s, peer ? sim_of(peer) : NULL);
    /* Devices of one seed draw different numbers. */
    rng_seed(&s->rng, options->seed + (uint64_t)s->index * UINT64_C(0x9E3779B97F4A7C15));
    return &s->base;
}
