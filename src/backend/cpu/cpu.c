/* The CPU as a device: memory, KV, one timeline. */
#include "backend/cpu/cpu.h"

#include <stdlib.h>
#include <string.h>
#include "backend/cpu/cpu_internal.h"
#include "backend/watch.h"
#include "base/clock.h"
#include "base/file.h"

#define MAX_WAITS 8

/* A submitted segment that has not run yet. */
struct cpu_job {
    struct cpu_job *next;
    struct backend_segment *segment;
    const struct round *round;
    struct backend_wait waits[MAX_WAITS];
    int n_waits;
    uint64_t value;
};

static struct cpu *cpu_of(struct backend *b) {
    return CONTAINER_OF(b, struct cpu, base);
}

static uint64_t cpu_now(struct backend *b) {
    (void)b;
    return clock_ns();
}

static ats_status cpu_host_alloc(struct backend *b, size_t bytes, void **out) {
    (void)b;
    return pages_alloc(bytes, out);
}

static void cpu_host_free(struct backend *b, void *p, size_t bytes) {
    (void)b;
    pages_free(p, bytes);
}

/* ---- work memory ---- */

void *cpu_carve(struct carver *c, size_t bytes) {
    void *p = c->base ? c->base + c->used : NULL;
    c->used += round_up(bytes, 64);
    return p;
}

static void carve_work(struct cpu *c, const struct backend_limits *l, struct carver *k) {
    size_t lines = (size_t)max_int(l->n_tokens, l->n_rows), cols = (size_t)l->max_cols;
    for (int i = 0; i < thread_pool_size(c->pool); i++) {
        struct cpu_scratch s = {
            .floats = cpu_carve(k, SMALL_FLOATS * sizeof(float)),
            .q8 = cpu_carve(k, q8_rows_bytes(SMALL_FLOATS, 1) + SMALL_LINES * 192),
            .bf16 = cpu_carve(k, (SMALL_FLOATS + SMALL_LINES * 32) * sizeof(uint16_t)),
            .matmul = cpu_carve(k, matmul_scratch_bytes(l->max_cols)),
            .gates = cpu_carve(k, 2 * DELTA_TOKENS * sizeof(float)),
            .attn = cpu_carve(k, cpu_attn_scratch_floats(l) * sizeof(float)),
        };
        cpu_experts_carve_thread(l, k, &s);
        if (k->base) c->scratch[i] = s;
    }
    c->shared_floats = cpu_carve(k, lines * cols * sizeof(float));
    c->shared_q8 = cpu_carve(k, q8_rows_bytes((int)round_up(cols, 32), (int)lines));
    c->shared_bf16 = cpu_carve(k, lines * round_up(cols, 32) * sizeof(uint16_t));
    for (int i = 0; i < MAX_ROPES; i++)
        c->rope[i] = cpu_carve(k, (size_t)l->n_tokens * (size_t)l->max_head_dim * sizeof(float));
    c->attn_partial = cpu_carve(k, cpu_attn_partial_floats(l) * sizeof(float));
    cpu_experts_carve(l, k, c);
}

static int64_t cpu_work_bytes(struct backend *b, const struct backend_limits *limits) {
    struct carver count = {0};
    struct cpu counted = {.pool = cpu_of(b)->pool}; /* what is in use stays as it is */
    carve_work(&counted, limits, &count);
    return (int64_t)count.used + limits->local_bytes;
}

static void release_work(struct cpu *c) {
    if (c->work) pages_free(c->work, c->work_bytes);
    if (c->local) pages_free(c->local, c->local_bytes);
    c->work = NULL;
    c->local = NULL;
}

static ats_status cpu_reserve(struct backend *b, const struct backend_limits *limits) {
    struct cpu *c = cpu_of(b);
    release_work(c);
    c->limits = *limits;
    void *work, *local;
    size_t bytes = (size_t)(cpu_work_bytes(b, limits) - limits->local_bytes);
    TRY(pages_alloc(bytes, &work));
    c->work = work;
    c->work_bytes = bytes;
    struct carver real = {.base = c->work};
    carve_work(c, limits, &real);
    TRY(pages_alloc(max_size((size_t)limits->local_bytes, 64), &local));
    c->local = local;
    c->local_bytes = max_size((size_t)limits->local_bytes, 64);
    return ATS_OK;
}

static int64_t cpu_pinned_bytes(struct backend *b, const struct backend_limits *limits) {
    (void)b, (void)limits;
    return 0;
}

static void cpu_memory(struct backend *b, struct backend_memory *out) {
    struct memory_info host;
    (void)b;
    memory_info_read(&host);
    *out = (struct backend_memory){.total_bytes = (int64_t)host.total_bytes,
                                   .free_bytes = (int64_t)host.available_bytes,
                                   .measured = true,
                                   .host = true};
}

static const char *cpu_lacks(struct backend *b, const struct graph *g, const struct graph_op *op) {
    (void)b, (void)g, (void)op;
    return NULL;
}

/* ---- KV ---- */

static ats_status cpu_kv_open(struct backend *b, const struct kv_layout *layout,
                              struct backend_kv **out) {
    (void)b;
    void *memory;
    size_t bytes = kv_layout_bytes(layout);
    TRY(pages_alloc(bytes, &memory));
    struct backend_kv *kv = xcalloc(1, sizeof *kv);
    kv->layout = *layout;
    kv->memory = memory;
    kv->bytes = bytes;
    kv->k_row = kv_row_bytes(layout->type_k, layout->head_dim);
    kv->v_row = kv_row_bytes(layout->type_v, layout->head_dim);
    size_t rows = (size_t)layout->n_pages * (size_t)layout->n_kv_heads << KV_PAGE_TOKENS_LOG2;
    kv->v = kv->memory + rows * kv->k_row;
    *out = kv;
    return ATS_OK;
}

static void cpu_kv_close(struct backend *b, struct backend_kv *kv) {
    (void)b;
    if (!kv) return;
    pages_free(kv->memory, kv->bytes);
    free(kv);
}

static void cpu_kv_copy_page(struct backend *b, struct backend_kv *kv, int src, int dst) {
    (void)b;
    size_t rows = (size_t)kv->layout.n_kv_heads << KV_PAGE_TOKENS_LOG2;
    size_t k = rows * kv->k_row, v = rows * kv->v_row;
    memcpy(kv->memory + (size_t)dst * k, kv->memory + (size_t)src * k, k);
    memcpy(kv->v + (size_t)dst * v, kv->v + (size_t)src * v, v);
}

static ats_status cpu_kv_read(struct backend *b, struct backend_kv *kv, int page, void *out) {
    (void)b;
    size_t rows = (size_t)kv->layout.n_kv_heads << KV_PAGE_TOKENS_LOG2;
    size_t k = rows * kv->k_row, v = rows * kv->v_row;
    memcpy(out, kv->memory + (size_t)page * k, k);
    memcpy((uint8_t *)out + k, kv->v + (size_t)page * v, v);
    return ATS_OK;
}

static ats_status cpu_kv_write(struct backend *b, struct backend_kv *kv, int page, const void *in) {
    (void)b;
    size_t rows = (size_t)kv->layout.n_kv_heads << KV_PAGE_TOKENS_LOG2;
    size_t k = rows * kv->k_row, v = rows * kv->v_row;
    memcpy(kv->memory + (size_t)page * k, in, k);
    memcpy(kv->v + (size_t)page * v, (const uint8_t *)in + k, v);
    return ATS_OK;
}

/* ---- segments and the timeline ---- */

static ats_status cpu_segment_build(struct backend *b, const struct step *steps, int n_steps,
                                    struct backend_segment **out) {
    *out = cpu_phases_build(cpu_of(b), steps, n_steps);
    (*out)->steps = steps;
    (*out)->n_steps = n_steps;
    return ATS_OK;
}

static void cpu_segment_free(struct backend *b, struct backend_segment *s) {
    (void)b;
    if (!s) return;
    arena_free(&s->arena);
    free(s->phases);
    free(s);
}

/* Either this sees that somebody waits, or who begins to wait sees the value: both are written
 * before the other is read. */
static void set_value(struct cpu *c, uint64_t value) {
    atomic_store(&c->value, value);
    if (atomic_load(&c->n_waiting) == 0) return;
    pthread_mutex_lock(&c->lock);
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
}

static ats_status cpu_wait(struct backend *b, uint64_t value) {
    struct cpu *c = cpu_of(b);
    if (atomic_load(&c->value) >= value) return ATS_OK;
    pthread_mutex_lock(&c->lock);
    atomic_fetch_add(&c->n_waiting, 1);
    while (atomic_load(&c->value) < value)
        pthread_cond_wait(&c->changed, &c->lock);
    atomic_fetch_sub(&c->n_waiting, 1);
    pthread_mutex_unlock(&c->lock);
    return ATS_OK;
}

#ifdef ATS_CHECK_RACES
/* Before it runs: a device is the name of its stream and its timeline. */
static void tell_races(const struct cpu *c, const struct cpu_job *job) {
    struct watched list = {0};
    if (!c->limits.races) return;
    watch_steps(&list, &c->limits, job->segment->steps, job->segment->n_steps, job->round);
    struct race_event e = {.stream = &c->base,
                           .name = c->base.name,
                           .in_order = true,
                           .n_waits = job->n_waits,
                           .accesses = list.items,
                           .n_accesses = (int)list.n,
                           .timeline = &c->base,
                           .value = job->value};
    for (int i = 0; i < job->n_waits; i++)
        e.waits[i] = (struct race_wait){job->waits[i].backend, job->waits[i].value};
    races_submit(c->limits.races, &e);
    free(list.items);
}
#else
static void tell_races(const struct cpu *c, const struct cpu_job *job) {
    (void)c, (void)job;
}
#endif

/* This device's work cannot fail; others' waits can only when they are lost, and then the executor
 * hears it from them. */
static void run_job(struct cpu *c, const struct cpu_job *job) {
    for (int i = 0; i < job->n_waits; i++) {
        struct backend *other = job->waits[i].backend;
        ats_status lost = other->fn->wait(other, job->waits[i].value);
        (void)lost;
    }
    tell_races(c, job);
    uint64_t begin = c->timed ? clock_ns() : 0;
    cpu_run_segment(c, job->segment, job->round);
    job->segment->times = (struct backend_times){begin, c->timed ? clock_ns() : 0};
    set_value(c, job->value);
}

static void *run_queue(void *arg) {
    struct cpu *c = arg;
    pthread_mutex_lock(&c->lock);
    for (;;) {
        while (!c->queue && !c->closing)
            pthread_cond_wait(&c->changed, &c->lock);
        struct cpu_job *job = c->queue;
        if (!job) break;
        c->queue = job->next;
        pthread_mutex_unlock(&c->lock);
        run_job(c, job);
        free(job);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

static ats_status cpu_submit(struct backend *b, struct backend_segment *s,
                             const struct round *round, const struct backend_wait *waits,
                             int n_waits, uint64_t value) {
    struct cpu *c = cpu_of(b);
    REQUIRE(n_waits <= MAX_WAITS);
    struct cpu_job job = {.segment = s, .round = round, .n_waits = n_waits, .value = value};
    c->n_submissions++;
    if (n_waits) memcpy(job.waits, waits, (size_t)n_waits * sizeof *waits);
    if (c->base.driven) {
        run_job(c, &job);
        return ATS_OK;
    }
    struct cpu_job *queued = xmalloc(sizeof *queued);
    *queued = job;
    pthread_mutex_lock(&c->lock);
    struct cpu_job **end = &c->queue;
    while (*end)
        end = &(*end)->next;
    *end = queued;
    pthread_cond_broadcast(&c->changed);
    pthread_mutex_unlock(&c->lock);
    return ATS_OK;
}

static void cpu_set_timed(struct backend *b, bool timed) {
    cpu_of(b)->timed = timed;
}

static bool cpu_segment_times(struct backend *b, const struct backend_segment *s,
                              struct backend_times *out) {
    (void)b;
    *out = s->times;
    return s->times.end_ns != 0;
}

static bool cpu_copy_times(struct backend *b, const struct backend_copy *c, uint64_t value,
                           struct backend_times *out) {
    (void)b, (void)c, (void)value, (void)out; /* it does not stream */
    return false;
}

/* Its own thread, if it has one, does nothing but kernels and waits. */
static void cpu_counters(struct backend *b, struct backend_counters *out) {
    *out = (struct backend_counters){.n_submissions = cpu_of(b)->n_submissions};
}

/* It is driven, or its thread waits by itself. */
static void cpu_reached(struct backend *b, struct backend *driven, uint64_t value) {
    (void)b, (void)driven, (void)value;
}

/* ---- what the CPU does not do: it reads weights where they are ---- */

static ats_status cpu_copy_build(struct backend *b, struct backend_weight *const *weights,
                                 int n_weights, struct backend_copy **out) {
    (void)weights, (void)n_weights;
    *out = NULL;
    return fail(ATS_UNSUPPORTED, "device \"%s\" does not stream weights", b->name);
}

static void cpu_copy_free(struct backend *b, struct backend_copy *c) {
    (void)b, (void)c;
}

static ats_status cpu_submit_copy(struct backend *b, struct backend_copy *c,
                                  const struct backend_wait *waits, int n_waits, uint64_t value) {
    (void)c, (void)waits, (void)n_waits, (void)value;
    return fail(ATS_UNSUPPORTED, "device \"%s\" does not stream weights", b->name);
}

static ats_status cpu_probe_copy(struct backend *b, double *seconds) {
    *seconds = 0;
    return fail(ATS_UNSUPPORTED, "device \"%s\" does not stream weights", b->name);
}

/* ---- opening ---- */

static void cpu_close(struct backend *b) {
    struct cpu *c = cpu_of(b);
    if (!c->base.driven) {
        pthread_mutex_lock(&c->lock);
        c->closing = true;
        pthread_cond_broadcast(&c->changed);
        pthread_mutex_unlock(&c->lock);
        thread_join(&c->thread);
    }
    thread_pool_close(c->pool);
    cpu_weights_close(c);
    release_work(c);
    pthread_mutex_destroy(&c->lock);
    pthread_cond_destroy(&c->changed);
    free(c->scratch);
    free(c);
}

static const struct backend_vtable cpu_vtable = {
    .close = cpu_close,
    .now = cpu_now,
    .host_alloc = cpu_host_alloc,
    .host_free = cpu_host_free,
    .memory = cpu_memory,
    .lacks = cpu_lacks,
    .work_bytes = cpu_work_bytes,
    .pinned_bytes = cpu_pinned_bytes,
    .reserve = cpu_reserve,
    .weight_bytes = cpu_weight_bytes,
    .home_open = cpu_home_open,
    .home_close = cpu_home_close,
    .home_source = cpu_home_source,
    .weight_load = cpu_weight_load,
    .weights_ready = cpu_weights_ready,
    .weight_free = cpu_weight_free,
    .kv_open = cpu_kv_open,
    .kv_close = cpu_kv_close,
    .kv_copy_page = cpu_kv_copy_page,
    .kv_read = cpu_kv_read,
    .kv_write = cpu_kv_write,
    .state_open = cpu_state_open,
    .state_close = cpu_state_close,
    .state_read = cpu_state_read,
    .state_write = cpu_state_write,
    .segment_build = cpu_segment_build,
    .segment_free = cpu_segment_free,
    .submit = cpu_submit,
    .copy_build = cpu_copy_build,
    .copy_free = cpu_copy_free,
    .submit_copy = cpu_submit_copy,
    .probe_copy = cpu_probe_copy,
    .reached = cpu_reached,
    .wait = cpu_wait,
    .set_timed = cpu_set_timed,
    .segment_times = cpu_segment_times,
    .copy_times = cpu_copy_times,
    .counters = cpu_counters,
};

ats_status cpu_backend_open(const struct backend_options *options, struct backend **out) {
    int n_threads = max_int(options->n_threads, options->n_threads_batch);
    struct thread_pool *pool;
    TRY(thread_pool_open(n_threads, &pool));
    if (options->bind_threads) thread_pool_bind(pool, options->bind_first);
    struct cpu *c = xcalloc(1, sizeof *c);
    c->base = (struct backend){.fn = &cpu_vtable, .name = "cpu", .driven = options->driven};
    c->options = *options;
    c->pool = pool;
    c->scratch = xcalloc((size_t)n_threads, sizeof *c->scratch);
    kernels_init(&c->k, options->cpu_isa_mask);
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->changed, NULL);
    if (!options->driven) {
        ats_status status = thread_start(&c->thread, run_queue, c);
        if (status != ATS_OK) {
            c->base.driven = true; /* there is no thread to join */
            cpu_close(&c->base);
            return status;
        }
    }
    *out = &c->base;
    return ATS_OK;
}

void backend_cpu_info(struct backend_cpu_info *out) {
    struct cpu_features f;
    cpu_features_read(&f);
    memset(out, 0, sizeof *out);
    memcpy(out->model, f.model, sizeof out->model);
    memcpy(out->features, f.text, sizeof out->features);
    out->isa_mask = f.isa;
    strncpy(out->isa, backend_cpu_isa_name(f.isa), sizeof out->isa - 1);
}

bool backend_cpu_isa_parse(const char *text, unsigned *mask) {
    return cpu_isa_mask_parse(text, mask);
}

const char *backend_cpu_isa_name(unsigned mask) {
    struct kernels k;
    kernels_init(&k, mask);
    return k.name;
}

backend_soft_cap_fn *backend_soft_cap(unsigned mask) {
    struct kernels k;
    kernels_init(&k, mask);
    return k.soft_cap;
}
