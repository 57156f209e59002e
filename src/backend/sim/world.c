/*
 * The world of the simulated devices that belong together: one clock, and on each device a queue of
 * segments and one of copies in the order of submission. The first of a queue starts when all its
 * waits have been reached, and ends after its duration; its work is done, and its value set, at
 * that moment. Whoever waits moves the world from one end to the next. Nothing else moves it:
 * submitting takes no virtual time.
 *
 * Not here yet: rates shared by what runs at the same time, load traces. They change how end_ns is
 * found, and nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backend/sim/sim_internal.h"

static struct sim_world *world_open(void) {
    struct sim_world *w = xcalloc(1, sizeof *w);
    const char *lose = getenv("ATSINFER_SIM_LOSE_SUBMISSION");
    w->lose_submission = lose ? strtoull(lose, NULL, 10) : 0;
    return w;
}

void sim_world_join(struct sim *s, struct sim *peer) {
    struct sim_world *w = peer ? peer->world : world_open();
    struct sim **end = &w->devices;
    while (*end)
        end = &(*end)->next;
    *end = s;
    s->world = w;
    s->index = w->n_opened++;
}

static void pop(struct sim_world *w, struct sim_job **at) {
    struct sim_job *job = *at;
    *at = job->next;
    w->n_segments -= !job->copy;
    free(job);
}

static void drop_all(struct sim *s) {
    for (int q = 0; q < SIM_QUEUES; q++)
        while (s->queues[q].first)
            pop(s->world, &s->queues[q].first);
}

void sim_world_drop(struct sim *s, const struct backend_copy *copy) {
    for (struct sim_job **at = &s->queues[BACKEND_COPY].first; *at;)
        if ((*at)->copy == copy)
            pop(s->world, at);
        else
            at = &(*at)->next;
}

/* Everything pending is dropped; from now on every call of the world's devices fails like this. */
static ats_status lose(struct sim_world *w, ats_status status, const char *text) {
    w->lost = status;
    snprintf(w->lost_text, sizeof w->lost_text, "%s", text);
    for (struct sim *s = w->devices; s; s = s->next)
        drop_all(s);
    return status;
}

static ats_status check_lost(const struct sim_world *w) {
    return w->lost == ATS_OK ? ATS_OK : fail(w->lost, "%s", w->lost_text);
}

void sim_world_leave(struct sim *s) {
    struct sim_world *w = s->world;
    if (w->n_segments > 0) lose(w, ATS_DEVICE, "a simulated device was closed amid a round");
    drop_all(s);
    struct sim **at = &w->devices;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    if (!w->devices) free(w);
}

/* ---- submitting ---- */

static ats_status check_waits(const struct sim *s, const struct backend_wait *waits, int n_waits) {
    for (int i = 0; i < n_waits; i++)
        if (!sim_is_device(waits[i].backend) || sim_of(waits[i].backend)->world != s->world)
            return fail(ATS_DEVICE,
                        "a simulated device can only wait for those of its world, not "
                        "for \"%s\"",
                        waits[i].backend->name);
    return ATS_OK;
}

static ats_status begin_round(struct sim_world *w) {
    for (struct sim *s = w->devices; s; s = s->next)
        TRY(sim_begin_round(s));
    return ATS_OK;
}

ats_status sim_world_submit(struct sim *s, const struct sim_job *what,
                            const struct backend_wait *waits, int n_waits) {
    struct sim_world *w = s->world;
    TRY(check_lost(w));
    ats_status status = check_waits(s, waits, n_waits);
    if (w->lose_submission && --w->lose_submission == 0)
        status = fail(ATS_DEVICE, "a simulated device is lost, as asked for");
    if (status == ATS_OK && w->n_segments == 0 && !what->copy) status = begin_round(w);
    if (status != ATS_OK) return lose(w, status, error_text());
    size_t bytes = (size_t)n_waits * sizeof *waits;
    struct sim_job *job = xcalloc(1, sizeof *job + bytes);
    *job = *what;
    job->n_waits = n_waits;
    if (n_waits) memcpy(job->waits, waits, bytes);
    struct sim_queue *queue = &s->queues[what->copy ? BACKEND_COPY : BACKEND_COMPUTE];
    uint64_t last = queue->value;
    struct sim_job **end = &queue->first;
    for (; *end; end = &(*end)->next)
        last = (*end)->value;
    REQUIRE(what->value > last);
    *end = job;
    w->n_segments += !what->copy;
    s->n_submissions++;
    return ATS_OK;
}

/* ---- waiting ---- */

/* A wait that has not been reached, or NULL: the job may start. */
static const struct backend_wait *open_wait(const struct sim_job *job) {
    for (int i = 0; i < job->n_waits; i++) {
        const struct backend_wait *wait = &job->waits[i];
        if (sim_of(wait->backend)->queues[wait->queue].value < wait->value) return wait;
    }
    return NULL;
}

static void start(struct sim *s, struct sim_job *job) {
    job->started = true;
    if (job->copy) sim_copy_begin(s, job->copy);
    job->begin_ns = s->world->now_ns;
    job->end_ns = job->begin_ns + (job->copy ? sim_copy_ns(s, job->copy)
                                             : sim_duration_ns(s, job->segment, job->round));
}

/* What is the next to end: the first of this queue of this device. */
struct next {
    struct sim *device;
    struct sim_queue *queue;
};

/* Starts what may start now; returns whose job ends first, of several at the same time that of the
 * device that was opened first. NULL: nothing is running. */
static struct next next_end(struct sim_world *w) {
    struct next next = {NULL, NULL};
    for (struct sim *s = w->devices; s; s = s->next)
        for (int q = 0; q < SIM_QUEUES; q++) {
            struct sim_job *job = s->queues[q].first;
            if (!job) continue;
            if (!job->started && !open_wait(job)) start(s, job);
            if (job->started && (!next.device || job->end_ns < next.queue->first->end_ns))
                next = (struct next){s, &s->queues[q]};
        }
    return next;
}

static const struct sim_job *stuck_job(const struct sim *s) {
    for (int q = 0; q < SIM_QUEUES; q++)
        if (s->queues[q].first) return s->queues[q].first;
    return NULL;
}

/* Says what is missing: of all the first of their queues wait for, the first. */
static ats_status deadlock(const struct sim *asked, uint64_t value) {
    for (const struct sim *s = asked->world->devices; s; s = s->next) {
        const struct sim_job *job = stuck_job(s);
        if (!job) continue;
        const struct backend_wait *wait = open_wait(job);
        const struct sim *other = sim_of(wait->backend);
        return fail(ATS_DEVICE,
                    "deadlock: simulated device %d is to reach %llu, but device %d stands before "
                    "%s%llu and waits for %s%llu of device %d, which stands at %llu",
                    asked->index, (unsigned long long)value, s->index, job->copy ? "copy " : "",
                    (unsigned long long)job->value, wait->queue == BACKEND_COPY ? "copy " : "",
                    (unsigned long long)wait->value, other->index,
                    (unsigned long long)other->queues[wait->queue].value);
    }
    return fail(ATS_DEVICE,
                "deadlock: simulated device %d stands at %llu and nothing is submitted that would "
                "bring it to %llu",
                asked->index, (unsigned long long)asked->queues[BACKEND_COMPUTE].value,
                (unsigned long long)value);
}

static ats_status finish(struct sim *s, const struct sim_job *job) {
    struct backend_times times = {job->begin_ns, job->end_ns};
    if (job->copy) {
        job->copy->runs[job->copy->n_runs++ % 2] =
            (struct sim_copy_run){s->timed ? job->value : 0, times};
        sim_copy_end(job->copy);
        return ATS_OK;
    }
    job->segment->timed = s->timed;
    job->segment->times = times;
    return sim_run(s, job->segment, job->round);
}

ats_status sim_world_wait(struct sim *s, uint64_t value) {
    struct sim_world *w = s->world;
    while (s->queues[BACKEND_COMPUTE].value < value) {
        TRY(check_lost(w));
        struct next next = next_end(w);
        ats_status status =
            next.device ? finish(next.device, next.queue->first) : deadlock(s, value);
        if (status != ATS_OK) return lose(w, status, error_text());
        w->now_ns = next.queue->first->end_ns;
        next.queue->value = next.queue->first->value;
        pop(w, &next.queue->first);
    }
    return ATS_OK;
}
