#include "run/executor_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

ats_status executor_open_caches(struct executor *e) {
    const struct program *p = e->program;
    for (int i = 0; i < p->n_kvs; i++) {
        struct backend *b = e->devices[p->kvs[i].device];
        if (e->kvs[i]) continue;
        struct kv_layout l = program_kv_layout(e->model, &p->kvs[i], &e->o);
        TRY(b->fn->kv_open(b, &l, &e->kvs[i]));
    }
    for (int i = 0; i < p->n_states; i++) {
        struct backend *b = e->devices[p->states[i].device];
        if (e->states[i]) continue;
        struct state_layout l = program_state_layout(e->model, &p->states[i], &e->o);
        TRY(b->fn->state_open(b, &l, &e->states[i]));
    }
    return ATS_OK;
}

ats_status executor_reserve(struct executor *e) {
    struct backend *first = e->devices[0];
    if (!e->exchange)
        TRY(first->fn->host_alloc(first, (size_t)e->program->exchange_bytes, &e->exchange));
    for (int d = 0; d < e->n_devices; d++) {
        struct backend_limits limits = device_limits(e->model, e->program, &e->o, d, e->exchange);
        limits.slot_bytes = e->ledger.slot_bytes[d];
        limits.races = e->races;
        TRY(e->devices[d]->fn->reserve(e->devices[d], &limits));
    }
    return ATS_OK;
}

ats_status executor_make(const struct model *model, const struct plan *plan,
                         struct backend *const *devices, const struct executor_options *options,
                         struct executor **out) {
    struct executor *e = *out = xcalloc(1, sizeof *e);
    REQUIRE(plan->n_devices >= 1 && plan->n_devices <= EXECUTOR_MAX_DEVICES);
    e->model = model;
    e->plan = plan;
    e->o = *options;
    e->n_devices = plan->n_devices;
    e->races = races_open();
    for (int d = 0; d < e->n_devices; d++)
        e->devices[d] = devices[d];
    struct program *p = e->program =
        program_lower(&e->arena, model->graph, plan, options->n_tokens, options->n_rows);
    e->weights = ARENA_ARRAY(&e->arena, struct backend_weight *, p->n_shards);
    e->kvs = ARENA_ARRAY(&e->arena, struct backend_kv *, p->n_kvs);
    e->states = ARENA_ARRAY(&e->arena, struct backend_state *, p->n_states);
    TRY(kv_types_check(model->graph, options));
    ledger_count(&e->arena, model, p, e->devices, options, &e->ledger);
    return ledger_check(&e->ledger, e->devices);
}

ats_status executor_open(const struct model *model, const struct plan *plan,
                         struct backend *const *devices, const struct executor_options *options,
                         struct executor **out) {
    struct executor *e;
    ats_status status = executor_make(model, plan, devices, options, &e);
    *out = NULL;
    if (status == ATS_OK) status = executor_reserve(e);
    if (status == ATS_OK) status = executor_open_caches(e);
    if (status != ATS_OK) {
        executor_close(e);
        return status;
    }
    *out = e;
    return ATS_OK;
}

void executor_drop_segments(struct executor *e) {
    const struct program *p = e->program;
    for (int i = 0; e->segments && i < p->n_segments; i++) {
        struct backend *b = e->devices[p->segments[i].device];
        b->fn->segment_free(b, e->segments[i]);
    }
    for (int i = 0; e->copies && i < p->n_transfers; i++) {
        struct backend *b = e->devices[p->transfers[i].device];
        if (e->copies[i]) b->fn->copy_free(b, e->copies[i]);
    }
    e->segments = NULL;
    e->copies = NULL;
    memset(e->per_round, 0, sizeof e->per_round);
    memset(e->n_copies, 0, sizeof e->n_copies);
}

void executor_drop_homes(struct executor *e) {
    const struct program *p = e->program;
    for (int i = 0; i < p->n_shards; i++) {
        struct backend *b = e->devices[p->shards[i].device];
        if (e->weights[i]) b->fn->weight_free(b, e->weights[i]);
        e->weights[i] = NULL;
    }
    for (int i = 0; i < p->n_kvs; i++) {
        struct backend *b = e->devices[p->kvs[i].device];
        if (e->kvs[i]) b->fn->kv_close(b, e->kvs[i]);
        e->kvs[i] = NULL;
    }
    for (int i = 0; i < p->n_states; i++) {
        struct backend *b = e->devices[p->states[i].device];
        if (e->states[i]) b->fn->state_close(b, e->states[i]);
        e->states[i] = NULL;
    }
}

void executor_drop_exchange(struct executor *e) {
    struct backend *first = e->devices[0];
    if (e->exchange) first->fn->host_free(first, e->exchange, (size_t)e->program->exchange_bytes);
    e->exchange = NULL;
}

void executor_close(struct executor *e) {
    if (!e) return;
    executor_drop_segments(e);
    executor_drop_homes(e);
    executor_drop_exchange(e);
    races_close(e->races);
    arena_free(&e->arena);
    free(e);
}

/* ---- loading ---- */

struct weight_source executor_source(const struct executor *e, int shard) {
    const struct program_shard *s = &e->program->shards[shard];
    struct weight_source source = shard_source(e->model, s, e->ledger.raw[shard]);
    if (source.streamed) source.slot = e->program->transfers[s->transfer].slot;
    source.slot_offset = e->ledger.slot_offset[shard];
    return source;
}

/* Copies the program's steps into submission order with their shards and caches filled in. */
static void bind_steps(struct executor *e) {
    const struct program *p = e->program;
    e->steps = ARENA_ARRAY(&e->arena, struct step, p->n_steps);
    for (int i = 0; i < p->n_steps; i++) {
        const struct program_step *s = &p->steps[p->order[i]];
        e->steps[i] = s->step;
        e->steps[i].weight = s->shard >= 0 ? e->weights[s->shard] : NULL;
        e->steps[i].bias = s->bias >= 0 ? e->weights[s->bias] : NULL;
        e->steps[i].kv = s->kv >= 0 ? e->kvs[s->kv] : NULL;
        e->steps[i].state = s->state >= 0 ? e->states[s->state] : NULL;
        for (int j = 0; j < N_EXPERT_WEIGHTS; j++) {
            int bias = s->expert_biases[j];
            e->steps[i].experts[j] = s->experts[j] >= 0 ? e->weights[s->experts[j]] : NULL;
            e->steps[i].expert_biases[j] = bias >= 0 ? e->weights[bias] : NULL;
        }
    }
}

static ats_status build_segments(struct executor *e) {
    const struct program *p = e->program;
    e->segments = ARENA_ARRAY(&e->arena, struct backend_segment *, p->n_segments);
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[i];
        struct backend *b = e->devices[s->device];
        e->per_round[s->device]++;
        TRY(b->fn->segment_build(b, e->steps + s->step_begin, s->step_end - s->step_begin,
                                 &e->segments[i]));
    }
    return ATS_OK;
}

static ats_status build_copies(struct executor *e) {
    const struct program *p = e->program;
    struct backend_weight **weights = ARENA_ARRAY(&e->arena, struct backend_weight *, p->n_shards);
    e->copies = ARENA_ARRAY(&e->arena, struct backend_copy *, p->n_transfers);
    e->is_ahead = ARENA_ARRAY(&e->arena, bool, p->n_transfers);
    for (int i = 0; i < p->n_transfers; i++) {
        struct backend *b = e->devices[p->transfers[i].device];
        int n = 0;
        for (int j = 0; j < p->n_shards; j++)
            if (p->shards[j].transfer == i) weights[n++] = e->weights[j];
        e->n_copies[p->transfers[i].device]++;
        TRY(b->fn->copy_build(b, weights, n, &e->copies[i]));
    }
    return ATS_OK;
}

/* Shards are loaded in batches of this size: all threads work on each, and what a batch was made
 * from can leave memory before the next one comes. */
#define BATCH_BYTES ((uint64_t)64 << 20)

/* Loads shards from *next on that are not there, at most a batch; adds their bytes to *done. */
static ats_status load_batch(struct executor *e, int *next, uint64_t *done) {
    const struct program *p = e->program;
    int first = *next;
    uint64_t stop = *done + BATCH_BYTES;
    bool *fresh = e->fresh;
    for (; *next < p->n_shards && *done < stop; ++*next) {
        struct backend *b = e->devices[p->shards[*next].device];
        fresh[*next] = !e->weights[*next];
        if (!fresh[*next]) continue;
        struct weight_source s = executor_source(e, *next);
        TRY(b->fn->weight_load(b, &s, &e->weights[*next]));
        *done += (uint64_t)weight_source_bytes(&s);
    }
    for (int d = 0; d < e->n_devices; d++)
        TRY(e->devices[d]->fn->weights_ready(e->devices[d]));
    for (int i = first; i < *next; i++) {
        struct backend *b = e->devices[p->shards[i].device];
        if (!fresh[i]) continue;
        struct weight_source s = executor_source(e, i);
        if (s.data && b->fn->weight_bytes(b, &s) > 0)
            model_weight_done(e->model, p->shards[i].weight);
    }
    return ATS_OK;
}

ats_status executor_load(struct executor *e, executor_progress_fn *progress, void *user) {
    const struct program *p = e->program;
    uint64_t done = 0, total = 0;
    bool needs_data = false;
    for (int d = 0; d < e->n_devices; d++)
        needs_data = needs_data || !e->devices[d]->keeps_time_only;
    if (needs_data && e->model->file->no_data)
        return fail(ATS_UNSUPPORTED, "a shape has no weights: it can be planned, not run");
    for (int i = 0; i < p->n_shards; i++) {
        struct weight_source s = executor_source(e, i);
        if (!e->weights[i]) total += (uint64_t)weight_source_bytes(&s);
    }
    e->fresh = ARENA_ARRAY(&e->arena, bool, p->n_shards);
    for (int next = 0;;) {
        if (progress && !progress(user, done, total))
            return fail(ATS_CANCELLED, "loading was cancelled");
        if (next == p->n_shards) break;
        TRY(load_batch(e, &next, &done));
    }
    bind_steps(e);
    TRY(build_copies(e));
    return build_segments(e);
}

/* ---- running ---- */

static ats_status submit(struct executor *e, int segment, const struct round *round) {
    const struct program_segment *s = &e->program->segments[segment];
    struct backend_wait waits[EXECUTOR_MAX_DEVICES + 1];
    struct backend *b = e->devices[s->device];
    int n_waits = s->n_waits;
    for (int i = 0; i < n_waits; i++) {
        int other = s->waits[i].device;
        uint64_t value = e->value[other] + (uint64_t)s->waits[i].ordinal;
        waits[i] = (struct backend_wait){e->devices[other], value, BACKEND_COMPUTE};
    }
    if (s->arrival) {
        uint64_t arrived = e->copied[s->device] + (uint64_t)s->arrival;
        waits[n_waits++] = (struct backend_wait){b, arrived, BACKEND_COPY};
    }
    uint64_t value = e->value[s->device] + (uint64_t)s->ordinal;
    if (e->timed) e->times.segments[segment].submit_ns = b->fn->now(b);
    TRY(b->fn->submit(b, e->segments[segment], round, waits, n_waits, value));
    if (e->timed) e->times.segments[segment].return_ns = b->fn->now(b);
    e->submitted[s->device] = value;
    return ATS_OK;
}

/* A transfer of this round, or ahead of time of the next one. It waits for what of this round reads
 * its slot; an earlier round is over. */
static ats_status submit_copy(struct executor *e, int transfer, bool next_round) {
    const struct program_transfer *t = &e->program->transfers[transfer];
    struct backend *b = e->devices[t->device];
    const struct backend_wait wait = {b, e->value[t->device] + (uint64_t)t->wait, BACKEND_COMPUTE};
    bool waits = t->wait && t->ahead == next_round;
    uint64_t value = e->copied[t->device] + (uint64_t)t->ordinal;
    if (next_round) value += e->n_copies[t->device];
    return b->fn->submit_copy(b, e->copies[transfer], &wait, waits, value);
}

/* Those that are the first of a round in their slots. */
static ats_status submit_first_copies(struct executor *e, bool next_round) {
    for (int i = 0; i < e->program->n_transfers; i++) {
        if (!e->program->transfers[i].ahead) continue;
        bool done = !next_round && e->is_ahead[i];
        e->is_ahead[i] = false;
        if (!done) TRY(submit_copy(e, i, next_round));
        e->is_ahead[i] = next_round;
    }
    return ATS_OK;
}

/* The first error of a round counts. */
struct outcome {
    ats_status status;
    char text[256];
};

static void add_outcome(struct outcome *o, ats_status status) {
    if (status == ATS_OK || o->status != ATS_OK) return;
    o->status = status;
    snprintf(o->text, sizeof o->text, "%s", error_text());
}

/* The others may have work in their queues that waits for `driven`. */
static void tell_others(struct executor *e, int driven, uint64_t value) {
    for (int d = 0; d < e->n_devices; d++)
        if (d != driven) e->devices[d]->fn->reached(e->devices[d], e->devices[driven], value);
}

/* Devices that run by themselves get all their segments first, with the copies that these make room
 * for, and wait for the others' values; then this thread drives its own. All of it even if some
 * fails: what is on its way waits for the rest. */
static void submit_all(struct executor *e, const struct round *round, struct outcome *o) {
    const struct program *p = e->program;
    add_outcome(o, submit_first_copies(e, false));
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[i];
        if (e->devices[s->device]->driven) continue;
        add_outcome(o, submit(e, i, round));
        if (s->release >= 0) add_outcome(o, submit_copy(e, s->release, false));
    }
    add_outcome(o, submit_first_copies(e, true));
    for (int d = 0; d < e->n_devices; d++)
        if (e->devices[d]->driven) tell_others(e, d, e->value[d]);
    for (int i = 0; i < p->n_segments; i++) {
        int d = p->segments[i].device;
        if (!e->devices[d]->driven) continue;
        add_outcome(o, submit(e, i, round));
        tell_others(e, d, e->submitted[d]);
    }
}

/* ---- timing ---- */

void executor_set_timed(struct executor *e, bool timed) {
    e->has_times = false;
    if (timed && !e->times.segments) {
        e->times.segments = ARENA_ARRAY(&e->arena, struct segment_times, e->program->n_segments);
        e->times.copies = ARENA_ARRAY(&e->arena, struct copy_times, e->program->n_transfers);
        e->times.waits = ARENA_ARRAY(&e->arena, struct backend_times, e->n_devices);
    }
    if (timed || e->timed)
        for (int d = 0; d < e->n_devices; d++)
            e->devices[d]->fn->set_timed(e->devices[d], timed);
    e->timed = timed;
}

const struct round_times *executor_times(const struct executor *e) {
    return e->has_times ? &e->times : NULL;
}

static uint64_t now(const struct executor *e) {
    return e->timed ? e->devices[0]->fn->now(e->devices[0]) : 0;
}

/* What the devices have counted since the round began, once `minus` it was noted. */
static void count_work(struct executor *e, bool minus) {
    struct round_times *t = &e->times;
    uint64_t submissions = 0, thread_ns = 0, driver_ns = 0, caller = 0;
    for (int d = 0; d < e->n_devices; d++) {
        struct backend_counters c;
        e->devices[d]->fn->counters(e->devices[d], &c);
        if (e->devices[d]->gpu) submissions += c.n_submissions;
        thread_ns += c.thread_ns;
        driver_ns += c.driver_ns;
        caller += c.caller_driver_ns;
    }
    t->n_submissions = minus ? submissions - t->n_submissions : submissions;
    t->thread_ns = minus ? thread_ns - t->thread_ns : thread_ns;
    t->driver_ns = minus ? driver_ns - t->driver_ns : driver_ns;
    t->caller_driver_ns = minus ? caller - t->caller_driver_ns : caller;
}

static void begin_times(struct executor *e) {
    e->has_times = false;
    if (!e->timed) return;
    for (int d = 0; d < e->n_devices; d++) /* clocks drift */
        e->devices[d]->fn->set_timed(e->devices[d], true);
    count_work(e, false);
    e->times.begin_ns = now(e);
}

static void end_times(struct executor *e) {
    if (!e->timed) return;
    e->times.end_ns = now(e);
    count_work(e, true);
    for (int i = 0; i < e->program->n_segments; i++) {
        struct backend *b = e->devices[e->program->segments[i].device];
        struct segment_times *s = &e->times.segments[i];
        s->known = b->fn->segment_times(b, e->segments[i], &s->ran);
        if (!s->known) s->ran = (struct backend_times){0};
    }
    for (int i = 0; i < e->program->n_transfers; i++) {
        const struct program_transfer *t = &e->program->transfers[i];
        struct backend *b = e->devices[t->device];
        struct copy_times *c = &e->times.copies[i];
        /* of the round that is over: its values have been passed */
        uint64_t value = e->copied[t->device] - e->n_copies[t->device] + (uint64_t)t->ordinal;
        c->known = b->fn->copy_times(b, e->copies[i], value, &c->ran);
        if (!c->known) c->ran = (struct backend_times){0};
    }
    e->has_times = true;
}

/* ---- a round ---- */

static ats_status wait_for(struct executor *e, int device) {
    struct backend *b = e->devices[device];
    uint64_t start = now(e);
    ats_status status = b->fn->wait(b, e->submitted[device]);
    races_learn(e->races, NULL, b, e->submitted[device]);
    if (e->timed) e->times.waits[device] = (struct backend_times){start, now(e)};
    return status;
}

/* The caller reads them. */
static void tell_logits(struct executor *e, int n_rows) {
    const struct race_access a = {.memory = e->exchange,
                                  .begin = e->program->logits_offset_bytes,
                                  .bytes = 4 * (int64_t)n_rows * e->model->graph->n_vocab,
                                  .lines = 1,
                                  .what = "the logits",
                                  .step_index = -1};
    races_do(e->races, NULL, e, "the host", &a, n_rows > 0);
}

ats_status executor_run(struct executor *e, const struct round *round, const float **logits) {
    const struct program *p = e->program;
    REQUIRE(round->n_tokens >= 1 && round->n_tokens <= e->o.n_tokens);
    REQUIRE(round->n_rows >= 0 && round->n_rows <= e->o.n_rows);
    races_begin_round(e->races);
    begin_times(e);
    struct outcome o = {ATS_OK, ""};
    submit_all(e, round, &o);
    for (int d = 0; d < e->n_devices; d++) { /* all of them: what runs still reads the round */
        e->value[d] += e->per_round[d];
        e->copied[d] += e->n_copies[d];
        add_outcome(&o, wait_for(e, d));
    }
    if (o.status != ATS_OK) return fail(o.status, "%s", o.text);
    end_times(e);
    tell_logits(e, round->n_rows);
    *logits = (const float *)(const void *)((const uint8_t *)e->exchange + p->logits_offset_bytes);
    return ATS_OK;
}

void executor_copy_page(struct executor *e, int kv_class, int src, int dst) {
    for (int i = 0; i < e->program->n_kvs; i++) {
        int op = e->program->kvs[i].op;
        if (e->model->graph->ops[op].p.attention.kv_class != kv_class) continue;
        struct backend *b = e->devices[e->program->kvs[i].device];
        b->fn->kv_copy_page(b, e->kvs[i], src, dst);
    }
}

void executor_ledger(const struct executor *e, int device, struct executor_ledger *out) {
    *out = e->ledger.devices[device];
}

void executor_totals(const struct executor *e, struct ledger *out) {
    *out = e->ledger;
    out->raw = NULL;
    out->slot_offset = NULL;
}

const struct program *executor_program(const struct executor *e) {
    return e->program;
}

int executor_races(const struct executor *e) {
    return races_found(e->races);
}
