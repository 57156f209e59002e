/*
 * The world of the simulated devices that belong together: one clock, and on each device a queue of
 * segments and one of copies in the order of submission. The first of a queue starts when all its
 * waits have been reached, each so much later as it takes to hear of it, and ends when nothing is
 * left of it; its work is done, and its value set, at that moment. Whoever waits moves the world
 * from one event to the next. Nothing else moves it: submitting takes no virtual time.
 *
 * Between two events all speeds are constant. On a described machine they depend on who works, and
 * on its load (cost.c); else they are 1.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backend/sim/sim_internal.h"

#define NOT_READY  (-1.0)
#define NOTHING_NS 1e-6 /* below this nothing is left of a phase: rounding, not work */

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
    for (struct sim *s = w->devices; s; s = s->next) {
        for (int q = 0; q < SIM_QUEUES; q++)
            s->queues[q].n_reached = 0;
        TRY(sim_begin_round(s));
    }
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
    struct sim_job *job = xcalloc(1, sizeof *job + (size_t)n_waits * sizeof *job->waits);
    *job = *what;
    job->ready_ns = NOT_READY;
    job->n_waits = n_waits;
    for (int i = 0; i < n_waits; i++)
        job->waits[i].on = waits[i];
    w->has_new = true;
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

/* ---- when a job may start ---- */

/* A wait that has not been reached, or NULL: the job may start. */
static const struct backend_wait *open_wait(const struct sim_job *job) {
    for (int i = 0; i < job->n_waits; i++) {
        const struct backend_wait *wait = &job->waits[i].on;
        if (sim_of(wait->backend)->queues[wait->queue].value < wait->value) return wait;
    }
    return NULL;
}

/* Does the other device, behind the segment that the job waits for, wait for the job's predecessor
 * in turn? Then the two exchange. */
static bool is_exchange(struct sim *s, const struct sim_job *job, const struct backend_wait *wait) {
    const struct sim_job *next = sim_of(wait->backend)->queues[BACKEND_COMPUTE].first;
    while (next && next->value <= wait->value)
        next = next->next;
    for (int i = 0; next && i < next->n_waits; i++) {
        const struct backend_wait *back = &next->waits[i].on;
        if (back->backend == &s->base && back->queue == BACKEND_COMPUTE &&
            back->value + 1 == job->value)
            return true;
    }
    return false;
}

/* All of a round is there: what each of its waits costs. */
static void find_latencies(struct sim_world *w) {
    for (struct sim *s = w->devices; s && w->has_new; s = s->next)
        for (struct sim_job *job = s->queues[BACKEND_COMPUTE].first; job; job = job->next)
            for (int i = 0; i < job->n_waits && job->ready_ns < 0; i++) {
                struct sim_wait *wait = &job->waits[i];
                const struct sim *other = sim_of(wait->on.backend);
                if (other == s || !s->o.machine) continue;
                wait->latency_ns = sim_latency_ns(s, other, is_exchange(s, job, &wait->on));
            }
    w->has_new = false;
}

/* When the queue got a value that it has: of an earlier round, long ago. */
static double reached_ns(const struct sim_queue *queue, uint64_t value) {
    size_t i = queue->n_reached;
    while (i > 0 && queue->reached[i - 1].value > value)
        i--;
    return i > 0 ? queue->reached[i - 1].at_ns : 0;
}

static void set_value(struct sim_world *w, struct sim_queue *queue, uint64_t value) {
    GROW(queue->reached, queue->n_reached, queue->cap_reached, 1);
    queue->reached[queue->n_reached++] = (struct sim_reached){value, w->now_ns};
    queue->value = value;
}

/* From when on a segment of a described GPU may follow the one before it. */
static double free_ns(const struct sim *s, const struct sim_job *job) {
    const struct sim_queue *queue = &s->queues[BACKEND_COMPUTE];
    if (!s->o.machine || !s->o.gpu || job->copy || queue->n_reached == 0) return 0;
    return queue->reached[queue->n_reached - 1].at_ns + 1e9 * s->o.machine->cut_s;
}

/* All waits have been reached: when it hears of the last. */
static double ready_ns(const struct sim *s, const struct sim_job *job) {
    double at_ns = free_ns(s, job);
    for (int i = 0; i < job->n_waits; i++) {
        const struct backend_wait *wait = &job->waits[i].on;
        if (job->waits[i].latency_ns > 0)
            at_ns = fmax(at_ns,
                         job->waits[i].latency_ns +
                             reached_ns(&sim_of(wait->backend)->queues[wait->queue], wait->value));
    }
    return at_ns;
}

static void skip_empty(struct sim_job *job) {
    while (job->phase < SIM_PHASES && job->left_ns[job->phase] < NOTHING_NS)
        job->phase++;
}

static void start_if_ready(struct sim *s, struct sim_job *job) {
    if (job->started) return;
    if (job->ready_ns < 0 && !open_wait(job)) job->ready_ns = ready_ns(s, job);
    if (job->ready_ns < 0 || job->ready_ns > s->world->now_ns) return;
    job->started = true;
    if (job->copy) sim_copy_begin(s, job->copy);
    job->begin_ns = s->world->now_ns;
    sim_cost(s, job);
    skip_empty(job);
}

/* ---- events ---- */

/* What has ended: the first of this queue of this device. */
struct ended {
    struct sim *device;
    struct sim_queue *queue;
};

/* Starts what may start now; returns whose job is done, of several that of the device that was
 * opened first. NULL: none. */
static struct ended start_all(struct sim_world *w) {
    struct ended ended = {NULL, NULL};
    for (struct sim *s = w->devices; s; s = s->next)
        for (int q = 0; q < SIM_QUEUES; q++) {
            struct sim_job *job = s->queues[q].first;
            if (!job) continue;
            start_if_ready(s, job);
            if (job->phase == SIM_PHASES && !ended.device) ended = (struct ended){s, &s->queues[q]};
        }
    return ended;
}

/* Nanoseconds to the next event of a job: its phase ends, or it becomes ready. */
static double event_in_ns(const struct sim *s, const struct sim_job *job,
                          const struct sim_rush *rush) {
    if (job->started) return job->left_ns[job->phase] / sim_speed(s, job, rush);
    return job->ready_ns < 0 ? HUGE_VAL : job->ready_ns - s->world->now_ns;
}

/* Time passes to the next event, at most to limit_ns; none is left of whoever determined it. False:
 * nothing runs, so nothing will ever come. */
static bool pass_time(struct sim_world *w, double limit_ns) {
    struct sim_rush rush = sim_rush(w);
    double dt = HUGE_VAL;
    for (struct sim *s = w->devices; s; s = s->next)
        for (int q = 0; q < SIM_QUEUES; q++)
            if (s->queues[q].first) dt = fmin(dt, event_in_ns(s, s->queues[q].first, &rush));
    if (!(dt < HUGE_VAL) && !(limit_ns < HUGE_VAL)) return false;
    dt = fmax(0, fmin(dt, fmin(rush.until_ns, limit_ns) - w->now_ns));
    for (struct sim *s = w->devices; s; s = s->next)
        for (int q = 0; q < SIM_QUEUES; q++) {
            struct sim_job *job = s->queues[q].first;
            if (!job || !job->started) continue;
            double speed = sim_speed(s, job, &rush), *left_ns = &job->left_ns[job->phase];
            *left_ns = *left_ns / speed <= dt ? 0 : *left_ns - dt * speed;
        }
    for (struct sim *s = w->devices; s; s = s->next) /* speeds were those of before */
        for (int q = 0; q < SIM_QUEUES; q++)
            if (s->queues[q].first && s->queues[q].first->started) skip_empty(s->queues[q].first);
    w->now_ns = w->now_ns + dt;
    return true;
}

/* ---- waiting ---- */

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

static uint64_t whole_ns(double ns) {
    return (uint64_t)llround(ns);
}

static ats_status finish(struct sim *s, const struct sim_job *job) {
    struct backend_times times = {whole_ns(job->begin_ns), whole_ns(s->world->now_ns)};
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

static ats_status end_job(struct sim_world *w, struct ended ended) {
    struct sim_job **first = &ended.queue->first;
    TRY(finish(ended.device, *first));
    set_value(w, ended.queue, (*first)->value);
    pop(w, first);
    return ATS_OK;
}

/* The host hears of a GPU's value late; what runs goes on meanwhile. */
static ats_status hear(struct sim *s, uint64_t value) {
    struct sim_world *w = s->world;
    if (!s->o.machine || !s->o.gpu) return ATS_OK;
    double at_ns =
        reached_ns(&s->queues[BACKEND_COMPUTE], value) + 1e9 * s->o.machine->kappa_down_s;
    while (w->now_ns < at_ns) {
        struct ended ended = start_all(w);
        if (ended.device)
            TRY(end_job(w, ended));
        else
            pass_time(w, at_ns);
    }
    return ATS_OK;
}

ats_status sim_world_wait(struct sim *s, uint64_t value) {
    struct sim_world *w = s->world;
    ats_status status = ATS_OK;
    find_latencies(w);
    while (s->queues[BACKEND_COMPUTE].value < value) {
        TRY(check_lost(w));
        struct ended ended = start_all(w);
        if (ended.device)
            status = end_job(w, ended);
        else if (!pass_time(w, HUGE_VAL))
            status = deadlock(s, value);
        if (status != ATS_OK) return lose(w, status, error_text());
    }
    status = hear(s, value);
    return status == ATS_OK ? ATS_OK : lose(w, status, error_text());
}
