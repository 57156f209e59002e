#include "run/executor_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- opening ---- */

ats_status executor_open_caches(struct executor *e) {
    const struct program *p = e->programs.at[0];
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
        TRY(first->fn->host_alloc(first, (size_t)e->programs.exchange_bytes, &e->exchange));
    for (int d = 0; d < e->n_devices; d++) {
        struct backend_limits limits = device_limits(e->model, &e->programs, &e->o, d, e->exchange);
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
    e->soft_cap = backend_soft_cap(options->cpu_isa_mask);
    e->n_devices = plan->n_devices;
    e->races = races_open();
    for (int d = 0; d < e->n_devices; d++) {
        e->devices[d] = devices[d];
        e->ahead[d] = -1;
    }
    struct programs *p = &e->programs;
    programs_lower(&e->arena, model->graph, plan, e->devices, options->n_tokens, options->n_rows,
                   p);
    e->held = ARENA_ARRAY(&e->arena, struct held, p->n_holdings);
    for (int k = 0; k < p->n; k++)
        e->prepared[k].weights =
            ARENA_ARRAY(&e->arena, struct backend_weight *, p->at[k]->n_shards);
    e->kvs = ARENA_ARRAY(&e->arena, struct backend_kv *, p->at[0]->n_kvs);
    e->states = ARENA_ARRAY(&e->arena, struct backend_state *, p->at[0]->n_states);
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

void executor_drop_exchange(struct executor *e) {
    struct backend *first = e->devices[0];
    if (e->exchange) first->fn->host_free(first, e->exchange, (size_t)e->programs.exchange_bytes);
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

/* ---- running ---- */

static const struct program *program_of(const struct executor *e) {
    return e->programs.at[e->current];
}

static struct prepared *prepared_of(struct executor *e) {
    return &e->prepared[e->current];
}

static ats_status submit(struct executor *e, int segment, const struct round *round) {
    const struct program_segment *s = &program_of(e)->segments[segment];
    struct segment_times *times = e->timed ? &prepared_of(e)->times.segments[segment] : NULL;
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
    if (times && b->driven) times->submit_ns = b->fn->now(b);
    TRY(b->fn->submit(b, prepared_of(e)->segments[segment], round, waits, n_waits, value));
    e->submitted[s->device] = value;
    return ATS_OK;
}

static void note_copy(struct copy_times *c, uint64_t ns, bool next_round) {
    *(next_round ? &c->next_ns : &c->submit_ns) = ns;
}

/* A transfer of this round, or ahead of time of the next one. It waits for what of this round reads
 * its slot, an earlier round is over; or for what came there and is not read. */
static ats_status submit_copy(struct executor *e, int transfer, bool next_round) {
    const struct program_transfer *t = &program_of(e)->transfers[transfer];
    struct backend *b = e->devices[t->device];
    struct backend_wait wait = {b, e->value[t->device] + (uint64_t)t->wait, BACKEND_COMPUTE};
    bool waits = t->wait && t->ahead == next_round;
    if (t->ahead && !next_round && e->unread[t->device]) {
        wait = (struct backend_wait){b, e->unread[t->device], BACKEND_COPY};
        waits = true;
    }
    uint64_t value = e->copied[t->device] + (uint64_t)t->ordinal;
    if (next_round) value += prepared_of(e)->n_copies[t->device];
    if (e->timed) note_copy(&prepared_of(e)->times.copies[transfer], b->fn->now(b), next_round);
    return b->fn->submit_copy(b, prepared_of(e)->copies[transfer], &wait, waits, value);
}

/* Those that are the first of a round in their slots. */
static ats_status submit_first_copies(struct executor *e, bool next_round) {
    const struct program *p = program_of(e);
    const struct round_times *times = &prepared_of(e)->times;
    for (int i = 0; i < p->n_transfers; i++) {
        if (!p->transfers[i].ahead) continue;
        if (next_round || e->ahead[p->transfers[i].device] != e->current)
            TRY(submit_copy(e, i, next_round));
        else if (e->timed)
            note_copy(&times->copies[i], times->copies[i].next_ns, false);
    }
    for (int d = 0; d < e->n_devices; d++)
        if (p->n_slots[d]) e->ahead[d] = next_round ? e->current : -1;
    return ATS_OK;
}

/* A round begins that another program's first copies do not serve: where it needs their slots, its
 * own come after them. */
static void pass_unread(struct executor *e) {
    const struct program *p = program_of(e);
    for (int d = 0; d < e->n_devices; d++) {
        int ahead = e->ahead[d];
        e->unread[d] = 0;
        if (ahead < 0 || ahead == e->current || p->n_slots[d] == 0) continue;
        e->copied[d] += (uint64_t)e->programs.at[ahead]->n_slots[d];
        e->unread[d] = e->copied[d];
        e->ahead[d] = -1;
    }
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
    const struct program *p = program_of(e);
    pass_unread(e);
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

static void open_times(struct executor *e, int k) {
    const struct program *p = e->programs.at[k];
    struct round_times *t = &e->prepared[k].times;
    if (t->segments) return;
    t->segments = ARENA_ARRAY(&e->arena, struct segment_times, p->n_segments);
    t->copies = ARENA_ARRAY(&e->arena, struct copy_times, p->n_transfers);
    t->waits = ARENA_ARRAY(&e->arena, struct backend_times, e->n_devices);
}

void executor_set_timed(struct executor *e, bool timed) {
    e->last_times = NULL;
    for (int k = 0; timed && k < e->programs.n; k++)
        open_times(e, k);
    if (timed || e->timed)
        for (int d = 0; d < e->n_devices; d++)
            e->devices[d]->fn->set_timed(e->devices[d], timed);
    e->timed = timed;
}

const struct round_times *executor_times(const struct executor *e) {
    return e->last_times;
}

static uint64_t now(const struct executor *e) {
    return e->timed ? e->devices[0]->fn->now(e->devices[0]) : 0;
}

/* What the devices have counted since the round began, once `minus` it was noted. */
static void count_work(struct executor *e, bool minus) {
    struct round_times *t = &prepared_of(e)->times;
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
    e->last_times = NULL;
    if (!e->timed) return;
    for (int d = 0; d < e->n_devices; d++) /* clocks drift */
        e->devices[d]->fn->set_timed(e->devices[d], true);
    count_work(e, false);
    prepared_of(e)->times.begin_ns = now(e);
}

static void end_times(struct executor *e) {
    if (!e->timed) return;
    const struct program *p = program_of(e);
    struct prepared *r = prepared_of(e);
    r->times.end_ns = now(e);
    count_work(e, true);
    for (int i = 0; i < p->n_segments; i++) {
        struct backend *b = e->devices[p->segments[i].device];
        struct segment_times *s = &r->times.segments[i];
        s->known = b->fn->segment_times(b, r->segments[i], &s->ran);
        if (!s->known) s->ran = (struct backend_times){0};
    }
    for (int i = 0; i < p->n_transfers; i++) {
        const struct program_transfer *t = &p->transfers[i];
        struct backend *b = e->devices[t->device];
        struct copy_times *c = &r->times.copies[i];
        /* of the round that is over: its values have been passed */
        uint64_t value = e->copied[t->device] - r->n_copies[t->device] + (uint64_t)t->ordinal;
        c->known = b->fn->copy_times(b, r->copies[i], value, &c->ran);
        if (!c->known) c->ran = (struct backend_times){0};
    }
    e->last_times = &r->times;
}

/* ---- a round ---- */

static ats_status wait_for(struct executor *e, int device) {
    struct backend *b = e->devices[device];
    uint64_t start = now(e);
    ats_status status = b->fn->wait(b, e->submitted[device]);
    races_learn(e->races, NULL, b, e->submitted[device]);
    if (e->timed) prepared_of(e)->times.waits[device] = (struct backend_times){start, now(e)};
    return status;
}

/* The caller reads them. */
static void tell_logits(struct executor *e, int n_rows) {
    const struct race_access a = {.memory = e->exchange,
                                  .begin = program_of(e)->logits_offset_bytes,
                                  .bytes = 4 * (int64_t)n_rows * e->model->graph->n_vocab,
                                  .lines = 1,
                                  .what = "the logits",
                                  .step_index = -1};
    races_do(e->races, NULL, e, "the host", &a, n_rows > 0);
}

static void cap_logits(const struct executor *e, float *logits, int n_rows) {
    const float cap = e->model->graph->logit_cap;
    const int n = e->model->graph->n_vocab;
    for (int i = 0; cap > 0 && i < n_rows; i++)
        e->soft_cap(logits + (int64_t)i * n, n, cap);
}

ats_status executor_run(struct executor *e, const struct round *round, const float **logits) {
    REQUIRE(round->n_tokens >= 1 && round->n_tokens <= e->o.n_tokens);
    REQUIRE(round->n_rows >= 0 && round->n_rows <= e->o.n_rows);
    e->current = programs_of_round(&e->programs, round->n_tokens);
    races_begin_round(e->races);
    begin_times(e);
    struct outcome o = {ATS_OK, ""};
    submit_all(e, round, &o);
    for (int d = 0; d < e->n_devices; d++) { /* all of them: what runs still reads the round */
        e->value[d] += prepared_of(e)->per_round[d];
        e->copied[d] += prepared_of(e)->n_copies[d];
        add_outcome(&o, wait_for(e, d));
    }
    if (o.status != ATS_OK) return fail(o.status, "%s", o.text);
    end_times(e);
    tell_logits(e, round->n_rows);
    float *rows = (float *)(void *)((uint8_t *)e->exchange + program_of(e)->logits_offset_bytes);
    cap_logits(e, rows, round->n_rows);
    *logits = rows;
    return ATS_OK;
}

void executor_copy_page(struct executor *e, int kv_class, int src, int dst) {
    const struct program *p = e->programs.at[0];
    for (int i = 0; i < p->n_kvs; i++) {
        if (e->model->graph->ops[p->kvs[i].op].p.attention.kv_class != kv_class) continue;
        struct backend *b = e->devices[p->kvs[i].device];
        b->fn->kv_copy_page(b, e->kvs[i], src, dst);
    }
}

void executor_ledger(const struct executor *e, int device, struct executor_ledger *out) {
    *out = e->ledger.devices[device];
}

void executor_totals(const struct executor *e, struct ledger *out) {
    *out = e->ledger;
    ledger_forget(out);
}

const struct programs *executor_programs(const struct executor *e) {
    return &e->programs;
}

const struct program *executor_program(const struct executor *e) {
    return e->programs.at[0];
}

int executor_races(const struct executor *e) {
    return races_found(e->races);
}
