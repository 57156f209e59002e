/*
 * Segments and copies on their way: what waits for nobody goes to the device at once, the rest
 * through its thread, which waits for other devices first. And what stopped the device, which every
 * call after that answers with.
 */
#include "backend/vulkan/vulkan_internal.h"

#include <stdio.h>
#include "base/clock.h"
#include "base/log.h"

/* ---- what stopped the device ---- */

/* The caller holds the lock. */
static void stop_locked(struct vulkan *v, ats_status status) {
    if (v->status == ATS_OK) {
        v->status = status;
        snprintf(v->status_text, sizeof v->status_text, "%s", error_text());
        log_msg(LOG_ERROR, "%s stopped: %s", v->name, v->status_text);
    }
    pthread_cond_broadcast(&v->changed);
}

void vk_stop(struct vulkan *v, ats_status status) {
    pthread_mutex_lock(&v->lock);
    stop_locked(v, status);
    pthread_mutex_unlock(&v->lock);
}

/* The caller holds the lock. */
static ats_status stopped(struct vulkan *v) {
    if (v->status == ATS_OK) return ATS_OK;
    return fail(v->status, "%s", v->status_text);
}

/* ---- the timeline ---- */

static const struct vk_commands *commands_for(const struct vulkan *v,
                                              const struct backend_segment *s, int n_tokens) {
    if (n_tokens == 1) return &s->commands[VARIANT_ONE];
    return &s->commands[n_tokens <= VK_FEW || !v->tiles ? VARIANT_FEW : VARIANT_MANY];
}

static ats_status run_segment(struct vulkan *v, const struct vk_job *job) {
    struct backend_segment *s = job->segment;
    TRY(vk_wait_in_job(v, s->last_value)); /* it may not run beside itself */
    TRY(vk_round_write(v, job->round));
    if (v->mirrored) vk_mirror_copy(v, s, job->round, false);
    const struct vk_stamps *stamps =
        vk_stamps_ready(v, &s->stamps, BACKEND_COMPUTE, v->timed && v->clock.known);
    vk_watch_segment(v, job, commands_for(v, s, job->round->n_tokens));
    vk_submit(v, commands_for(v, s, job->round->n_tokens), stamps, job);
    s->last_value = v->last_value = job->value;
    if (!v->mirrored) return ATS_OK;
    TRY(vk_wait_in_job(v, job->value));
    vk_mirror_copy(v, s, job->round, true);
    return ATS_OK;
}

static ats_status hand_over(struct vulkan *v, const struct vk_job *job) {
    return job->copy ? vk_submit_copy(v, job) : run_segment(v, job);
}

/* By the device's own thread; what it does for it is counted, if rounds are timed. */
static ats_status hand_over_timed(struct vulkan *v, const struct vk_job *job) {
    uint64_t start = v->timed ? clock_thread_ns() : 0;
    v->job_away_ns = 0;
    TRY(hand_over(v, job));
    TRY(vk_flush(v));
    if (!start) return ATS_OK;
    uint64_t ns = clock_thread_ns() - start - v->job_away_ns;
    pthread_mutex_lock(&v->queue_lock);
    v->counters.thread_ns += ns;
    pthread_mutex_unlock(&v->queue_lock);
    return ATS_OK;
}

/* Others' waits fail only when they are lost, and then the executor hears it from them. */
static void wait_for_others(struct vulkan *v, const struct vk_job *job) {
    for (int i = 0; i < job->n_waits; i++) {
        struct backend *other = job->waits[i].backend;
        ats_status lost = other->fn->wait(other, job->waits[i].value);
        (void)lost;
        vk_watch_wait(v, other, job->waits[i].value);
    }
}

/* The caller holds the lock. */
static void end_job(struct vulkan *v, const struct vk_job *job, ats_status status) {
    if (status != ATS_OK) stop_locked(v, status);
    if (!job->copy) v->submitted = job->value;
    pthread_cond_broadcast(&v->changed);
}

/* By the device's own thread. The caller holds the lock, and does again afterwards; nobody else
 * runs a job meanwhile. */
static void run_queued(struct vulkan *v, struct vk_job *job) {
    v->busy = true;
    pthread_mutex_unlock(&v->lock);
    wait_for_others(v, job);
    pthread_mutex_lock(&v->lock);
    bool lost = v->status != ATS_OK;
    pthread_mutex_unlock(&v->lock);
    ats_status status = lost ? ATS_OK : hand_over_timed(v, job);
    pthread_mutex_lock(&v->lock);
    v->busy = false;
    end_job(v, job, status);
    job->next = v->spare;
    v->spare = job;
}

/* By the caller's, who holds the lock all the time: nobody else has anything to do with the device
 * until it is on its way. It stays in the batch behind one that waits at the gate. */
static void run_direct(struct vulkan *v, const struct vk_job *job) {
    ats_status status = hand_over(v, job);
    if (status == ATS_OK && v->gate.n == 0) status = vk_flush(v);
    end_job(v, job, status);
}

void *vk_run_queue(void *arg) {
    struct vulkan *v = arg;
    pthread_mutex_lock(&v->lock);
    for (;;) {
        while ((!v->queue_head || v->busy) && !v->closing)
            pthread_cond_wait(&v->has_job, &v->lock);
        struct vk_job *job = v->queue_head;
        if (!job) break;
        v->queue_head = job->next;
        run_queued(v, job);
    }
    pthread_mutex_unlock(&v->lock);
    return NULL;
}

/* The caller holds the lock. */
static struct vk_job *take_job(struct vulkan *v) {
    struct vk_job *job = v->spare;
    if (job)
        v->spare = job->next;
    else
        job = xmalloc(sizeof *job);
    return job;
}

/* The slot whose last copy has this value: that of a segment comes before the slot's next one. */
static const struct vk_slot *find_slot(const struct vulkan *v, uint64_t value) {
    for (int i = 0; i < v->limits.n_slots; i++)
        if (v->slots[i].queued == value) return &v->slots[i];
    REQUIRE(!"a copy that is waited for was submitted");
    return NULL;
}

/* Queues wait for each other by themselves, and what is waited for is on its way already: jobs are
 * handed over in the order of submission. The driven device is waited for at the gate, others by
 * the host, as it is where the host has to copy what crosses. */
static void take_waits(struct vulkan *v, struct vk_job *job, const struct backend_wait *waits,
                       int n_waits) {
    for (int i = 0; i < n_waits; i++) {
        const struct backend_wait *w = &waits[i];
        bool own = w->backend == &v->base;
        if (own && w->queue == BACKEND_COPY && !job->copy) {
            job->slot = find_slot(v, w->value);
            job->after = v->no_arrivals ? 0 : w->value;
        } else if (own && w->queue == BACKEND_COPY) { /* a slot has a timeline of its own */
            REQUIRE(job->copy->slot->queued <= w->value);
            job->behind = v->no_unread ? 0 : job->copy->slot->queued;
        } else if (own && w->queue == BACKEND_COMPUTE && job->copy) {
            job->after = v->no_releases ? 0 : w->value;
        } else if (w->backend->driven && !v->no_ahead && !v->mirrored) {
            job->gate = max_u64(job->gate, vk_gate_await(v, w->value));
        } else {
            REQUIRE(w->queue == BACKEND_COMPUTE && job->n_waits < VK_MAX_WAITS);
            job->waits[job->n_waits++] = *w;
        }
    }
    if (job->copy) job->copy->slot->queued = job->value;
}

/* The caller holds the lock. */
static void queue_job(struct vulkan *v, const struct vk_job *what) {
    struct vk_job *job = take_job(v), **end = &v->queue_head;
    *job = *what;
    while (*end)
        end = &(*end)->next;
    *end = job;
    if (!v->busy) pthread_cond_signal(&v->has_job);
}

/* What waits for nobody else, behind nothing, goes to the device at once; the rest through the
 * thread, which does the waiting. */
static ats_status submit_job(struct backend *b, struct vk_job *job,
                             const struct backend_wait *waits, int n_waits) {
    struct vulkan *v = vulkan_of(b);
    pthread_mutex_lock(&v->lock);
    ats_status status = stopped(v);
    if (status == ATS_OK) {
        take_waits(v, job, waits, n_waits);
        bool staged = job->copy && job->copy->n_staged; /* it waits, and copies by itself */
        bool direct = job->n_waits == 0 && !v->queue_head && !v->busy && !v->mirrored && !staged;
        if (direct)
            run_direct(v, job);
        else
            queue_job(v, job);
    }
    pthread_mutex_unlock(&v->lock);
    return status;
}

ats_status vk_submit_segment(struct backend *b, struct backend_segment *s,
                             const struct round *round, const struct backend_wait *waits,
                             int n_waits, uint64_t value) {
    struct vk_job job = {.segment = s, .round = round, .value = value};
    return submit_job(b, &job, waits, n_waits);
}

ats_status vk_send_copy(struct backend *b, struct backend_copy *c, const struct backend_wait *waits,
                        int n_waits, uint64_t value) {
    struct vulkan *v = vulkan_of(b);
    struct vk_job job = {.copy = c, .run = vk_copy_run_next(v, c, value), .value = value};
    return submit_job(b, &job, waits, n_waits);
}

void vk_reached(struct backend *b, struct backend *driven, uint64_t value) {
    struct vulkan *v = vulkan_of(b);
    vk_watch_reached(v, driven, value);
    ats_status status = vk_gate_reach(v, value);
    if (status != ATS_OK) vk_stop(v, status); /* the next wait says so */
}

void vk_idle(struct vulkan *v) {
    vk_gate_lift(v);
    pthread_mutex_lock(&v->lock);
    while (v->queue_head || v->busy)
        pthread_cond_wait(&v->changed, &v->lock);
    pthread_mutex_unlock(&v->lock);
    pthread_mutex_lock(&v->queue_lock);
    /* an error changes nothing for what is freed now */
    if (!v->hung) v->f.DeviceWaitIdle(v->device);
    pthread_mutex_unlock(&v->queue_lock);
}

ats_status vk_wait(struct backend *b, uint64_t value) {
    struct vulkan *v = vulkan_of(b);
    pthread_mutex_lock(&v->lock);
    while (v->submitted < value && v->status == ATS_OK)
        pthread_cond_wait(&v->changed, &v->lock);
    ats_status status = stopped(v);
    pthread_mutex_unlock(&v->lock);
    if (status != ATS_OK || value == 0) return status;
    status = vk_flush(v);
    if (status == ATS_OK) status = vk_wait_value(v, value);
    if (status != ATS_OK) vk_stop(v, status);
    return status;
}
