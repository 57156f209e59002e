/*
 * The world of the simulated devices that belong together: one clock, and on each device a queue of
 * segments in the order of submission. The first of a queue starts when all its waits have been
 * reached, and ends after its duration; its work is done, and its value set, at that moment.
 * Whoever waits moves the world from one end to the next. Nothing else moves it: submitting takes
 * no virtual time.
 *
 * Not here yet: rates shared by what runs at the same time, load traces, a second queue on a
 * device. They change how end_ns is found, and nothing else.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backend/sim/sim_internal.h"

void sim_world_join(struct sim *s, struct sim *peer) {
    struct sim_world *w = peer ? peer->world : xcalloc(1, sizeof *w);
    struct sim **end = &w->devices;
    while (*end)
        end = &(*end)->next;
    *end = s;
    s->world = w;
    s->index = w->n_opened++;
}

static void pop(struct sim *s) {
    struct sim_job *job = s->first;
    s->first = job->next;
    s->world->n_jobs--;
    free(job);
}

/* Everything pending is dropped; from now on every call of the world's devices fails like this. */
static ats_status lose(struct sim_world *w, ats_status status, const char *text) {
    w->lost = status;
    snprintf(w->lost_text, sizeof w->lost_text, "%s", text);
    for (struct sim *s = w->devices; s; s = s->next)
        while (s->first)
            pop(s);
    return status;
}

static ats_status check_lost(const struct sim_world *w) {
    return w->lost == ATS_OK ? ATS_OK : fail(w->lost, "%s", w->lost_text);
}

void sim_world_leave(struct sim *s) {
    struct sim_world *w = s->world;
    if (w->n_jobs > 0) lose(w, ATS_DEVICE, "a simulated device was closed amid a round");
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

ats_status sim_world_submit(struct sim *s, struct backend_segment *segment,
                            const struct round *round, const struct backend_wait *waits,
                            int n_waits, uint64_t value) {
    struct sim_world *w = s->world;
    TRY(check_lost(w));
    ats_status status = check_waits(s, waits, n_waits);
    if (status == ATS_OK && w->n_jobs == 0) status = begin_round(w);
    if (status != ATS_OK) return lose(w, status, error_text());
    size_t bytes = (size_t)n_waits * sizeof *waits;
    struct sim_job *job = xcalloc(1, sizeof *job + bytes);
    *job = (struct sim_job){.segment = segment, .round = round, .value = value};
    job->n_waits = n_waits;
    if (n_waits) memcpy(job->waits, waits, bytes);
    uint64_t last = s->value;
    struct sim_job **end = &s->first;
    for (; *end; end = &(*end)->next)
        last = (*end)->value;
    REQUIRE(value > last);
    *end = job;
    w->n_jobs++;
    s->n_submissions++;
    return ATS_OK;
}

/* ---- waiting ---- */

/* A wait that has not been reached, or NULL: the job may start. */
static const struct backend_wait *open_wait(const struct sim_job *job) {
    for (int i = 0; i < job->n_waits; i++)
        if (sim_of(job->waits[i].backend)->value < job->waits[i].value) return &job->waits[i];
    return NULL;
}

/* Starts what may start now; returns the device whose segment ends first, of several at the same
 * time the one that was opened first. NULL: nothing is running. */
static struct sim *next_end(struct sim_world *w) {
    struct sim *next = NULL;
    for (struct sim *s = w->devices; s; s = s->next) {
        struct sim_job *job = s->first;
        if (!job) continue;
        if (!job->started && !open_wait(job)) {
            job->started = true;
            job->begin_ns = w->now_ns;
            job->end_ns = w->now_ns + sim_duration_ns(s, job->segment, job->round);
        }
        if (job->started && (!next || job->end_ns < next->first->end_ns)) next = s;
    }
    return next;
}

/* Says what is missing: of all the first of their queues wait for, the first. */
static ats_status deadlock(const struct sim *asked, uint64_t value) {
    for (const struct sim *s = asked->world->devices; s; s = s->next) {
        if (!s->first) continue;
        const struct backend_wait *wait = open_wait(s->first);
        const struct sim *other = sim_of(wait->backend);
        return fail(ATS_DEVICE,
                    "deadlock: simulated device %d is to reach %llu, but device %d stands before "
                    "%llu and waits for %llu of device %d, which stands at %llu",
                    asked->index, (unsigned long long)value, s->index,
                    (unsigned long long)s->first->value, (unsigned long long)wait->value,
                    other->index, (unsigned long long)other->value);
    }
    return fail(ATS_DEVICE,
                "deadlock: simulated device %d stands at %llu and nothing is submitted that would "
                "bring it to %llu",
                asked->index, (unsigned long long)asked->value, (unsigned long long)value);
}

ats_status sim_world_wait(struct sim *s, uint64_t value) {
    struct sim_world *w = s->world;
    while (s->value < value) {
        TRY(check_lost(w));
        struct sim *next = next_end(w);
        ats_status status =
            next ? sim_run(next, next->first->segment, next->first->round) : deadlock(s, value);
        if (status != ATS_OK) return lose(w, status, error_text());
        w->now_ns = next->first->end_ns;
        next->value = next->first->value;
        next->first->segment->timed = next->timed;
        next->first->segment->times =
            (struct backend_times){next->first->begin_ns, next->first->end_ns};
        pop(next);
    }
    return ATS_OK;
}
