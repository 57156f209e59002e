#include "base/races.h"

#ifdef ATS_CHECK_RACES
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/log.h"

enum { MOST_MESSAGES = 4 }; /* of a round */

/* An access of an event that not everybody knows yet. */
struct noted {
    struct race_access a;
    int stream;
    uint32_t number; /* of the event, from 1 on */
};
struct stream {
    const void *key;
    char name[24];
    bool in_order;
    uint32_t n;               /* events that were looked at */
    struct race_clock begins; /* what its next event knows; */
    struct race_clock ends;   /* and who waits for its last one */
    struct pending *first;    /* handed over, and waiting for a value that nobody has set */
};
struct timeline {
    const void *key;
    struct reached {
        uint64_t value;
        struct race_clock knows;
    } * reached; /* (n_reached) ascending */
    size_t n_reached, cap_reached;
};
struct pending {
    struct pending *next;
    struct race_event e;
    struct race_clock knows;
    struct race_access accesses[]; /* (e.n_accesses) */
};
struct races {
    pthread_mutex_t lock;
    struct stream streams[RACES_STREAMS];
    int n_streams;
    struct timeline *timelines;
    size_t n_timelines, cap_timelines;
    struct noted *noted;
    size_t n_noted, cap_noted;
    struct race_clock host, round; /* what it knows, and knew when the round began */
    int n_found, n_told;
};

struct races *races_open(void) {
    struct races *r = xcalloc(1, sizeof *r);
    pthread_mutex_init(&r->lock, NULL);
    return r;
}

void races_close(struct races *r) {
    if (!r) return;
    for (int i = 0; i < r->n_streams; i++)
        while (r->streams[i].first) {
            struct pending *p = r->streams[i].first;
            r->streams[i].first = p->next;
            free(p);
        }
    for (size_t i = 0; i < r->n_timelines; i++)
        free(r->timelines[i].reached);
    free(r->timelines);
    free(r->noted);
    pthread_mutex_destroy(&r->lock);
    free(r);
}

static void join(struct race_clock *a, const struct race_clock *b) {
    for (int i = 0; i < RACES_STREAMS; i++)
        if (b->done[i] > a->done[i]) a->done[i] = b->done[i];
}

static int stream_of(struct races *r, const void *key, const char *name, bool in_order) {
    for (int i = 0; i < r->n_streams; i++)
        if (r->streams[i].key == key) return i;
    REQUIRE(r->n_streams < RACES_STREAMS);
    struct stream *s = &r->streams[r->n_streams];
    *s = (struct stream){.key = key, .in_order = in_order};
    snprintf(s->name, sizeof s->name, "%s", name);
    return r->n_streams++;
}

static struct timeline *timeline_of(struct races *r, const void *key) {
    for (size_t i = 0; i < r->n_timelines; i++)
        if (r->timelines[i].key == key) return &r->timelines[i];
    GROW(r->timelines, r->n_timelines, r->cap_timelines, 1);
    r->timelines[r->n_timelines] = (struct timeline){.key = key};
    return &r->timelines[r->n_timelines++];
}

/* What is known to whoever waited for this value; NULL: it has not been set. Of values that all
 * know, only the last is kept. */
static const struct race_clock *reached(struct races *r, const struct race_wait *w) {
    const struct timeline *t = timeline_of(r, w->timeline);
    for (size_t i = 0; i < t->n_reached; i++)
        if (t->reached[i].value >= w->value) return &t->reached[i].knows;
    return NULL;
}

static void set_value(struct races *r, const void *key, uint64_t value,
                      const struct race_clock *knows) {
    struct timeline *t = timeline_of(r, key);
    GROW(t->reached, t->n_reached, t->cap_reached, 1);
    t->reached[t->n_reached++] = (struct reached){value, *knows};
}

/* ---- two accesses ---- */

static int64_t end_of(const struct race_access *a) {
    return a->begin + (a->lines - 1) * a->stride_bytes + a->bytes;
}

static bool overlap(const struct race_access *a, const struct race_access *b) {
    if (a->memory != b->memory || a->begin >= end_of(b) || b->begin >= end_of(a)) return false;
    for (int i = 0; i < a->lines; i++)
        for (int j = 0; j < b->lines; j++) {
            int64_t x = a->begin + i * a->stride_bytes, y = b->begin + j * b->stride_bytes;
            if (x < y + b->bytes && y < x + a->bytes) return true;
        }
    return false;
}

static void tell(struct races *r, const struct race_access *a, int stream, const struct noted *b) {
    r->n_found++;
    if (r->n_told++ >= MOST_MESSAGES) return;
    log_msg(LOG_ERROR,
            "race: %s %s %lld bytes from %lld on (step %d, %s) while %s %s %lld bytes from %lld on "
            "(step %d, %s): neither waits for the other",
            r->streams[stream].name, a->write ? "writes" : "reads", (long long)a->bytes,
            (long long)a->begin, a->step_index, a->what, r->streams[b->stream].name,
            b->a.write ? "writes" : "reads", (long long)b->a.bytes, (long long)b->a.begin,
            b->a.step_index, b->a.what);
}

/* Against all that the event does not know; then others are held against it. */
static void touch(struct races *r, const struct race_access *a, int stream, uint32_t number,
                  const struct race_clock *knows) {
    for (size_t i = 0; i < r->n_noted; i++) {
        const struct noted *b = &r->noted[i];
        bool same = b->stream == stream && b->number == number;
        if (!same && b->number > knows->done[b->stream] && (a->write || b->a.write) &&
            overlap(a, &b->a))
            tell(r, a, stream, b);
    }
    GROW(r->noted, r->n_noted, r->cap_noted, 1);
    r->noted[r->n_noted++] = (struct noted){*a, stream, number};
}

/* ---- events ---- */

static bool is_ready(struct races *r, const struct race_event *e) {
    for (int i = 0; i < e->n_waits; i++)
        if (!reached(r, &e->waits[i])) return false;
    return true;
}

static void happen(struct races *r, int stream, const struct pending *p) {
    struct stream *s = &r->streams[stream];
    join(&s->begins, &p->knows);
    for (int i = 0; i < p->e.n_waits; i++)
        join(&s->begins, reached(r, &p->e.waits[i]));
    uint32_t number = ++s->n;
    for (int i = 0; i < p->e.n_accesses; i++)
        touch(r, &p->accesses[i], stream, number, &s->begins);
    join(&s->ends, &s->begins);
    s->ends.done[stream] = number;
    if (s->in_order) s->begins.done[stream] = number;
    if (p->e.timeline) set_value(r, p->e.timeline, p->e.value, &s->ends);
}

/* What can happen now does. */
static void advance(struct races *r) {
    for (bool again = true; again;) {
        again = false;
        for (int i = 0; i < r->n_streams; i++) {
            struct pending *p = r->streams[i].first;
            if (!p || !is_ready(r, &p->e)) continue;
            happen(r, i, p);
            r->streams[i].first = p->next;
            free(p);
            again = true;
        }
    }
}

void races_submit(struct races *r, const struct race_event *e) {
    if (!r) return;
    size_t bytes = (size_t)e->n_accesses * sizeof *e->accesses;
    struct pending *p = xcalloc(1, sizeof *p + bytes);
    p->e = *e;
    if (bytes) memcpy(p->accesses, e->accesses, bytes);
    pthread_mutex_lock(&r->lock);
    if (e->knows) p->knows = *e->knows;
    join(&p->knows, &r->round);
    struct pending **at = &r->streams[stream_of(r, e->stream, e->name, e->in_order)].first;
    while (*at)
        at = &(*at)->next;
    *at = p;
    advance(r);
    pthread_mutex_unlock(&r->lock);
}

void races_learn(struct races *r, struct race_clock *knows, const void *timeline, uint64_t value) {
    if (!r || !value) return;
    pthread_mutex_lock(&r->lock);
    const struct race_clock *other = reached(r, &(struct race_wait){timeline, value});
    if (other) join(knows ? knows : &r->host, other);
    pthread_mutex_unlock(&r->lock);
}

void races_do(struct races *r, struct race_clock *knows, const void *stream, const char *name,
              const struct race_access *accesses, int n) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    struct race_clock *clock = knows ? knows : &r->host;
    join(clock, &r->round);
    int index = stream_of(r, stream, name, true);
    uint32_t number = ++r->streams[index].n;
    for (int i = 0; i < n; i++)
        touch(r, &accesses[i], index, number, clock);
    clock->done[index] = number;
    pthread_mutex_unlock(&r->lock);
}

void races_publish(struct races *r, const void *stream, const void *timeline, uint64_t value) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    set_value(r, timeline, value, &r->streams[stream_of(r, stream, "host", true)].ends);
    advance(r);
    pthread_mutex_unlock(&r->lock);
}

/* What everybody knows needs no note. */
void races_begin_round(struct races *r) {
    if (!r) return;
    pthread_mutex_lock(&r->lock);
    r->round = r->host;
    r->n_told = 0;
    size_t kept = 0;
    for (size_t i = 0; i < r->n_noted; i++)
        if (r->noted[i].number > r->round.done[r->noted[i].stream]) r->noted[kept++] = r->noted[i];
    r->n_noted = kept;
    for (size_t i = 0; i < r->n_timelines; i++) {
        struct timeline *t = &r->timelines[i];
        if (t->n_reached <= 64) continue;
        size_t first = t->n_reached - 64; /* those before are of rounds ago */
        memmove(t->reached, t->reached + first, (t->n_reached - first) * sizeof *t->reached);
        t->n_reached -= first;
    }
    pthread_mutex_unlock(&r->lock);
}

int races_found(struct races *r) {
    if (!r) return 0;
    pthread_mutex_lock(&r->lock);
    int n = r->n_found;
    pthread_mutex_unlock(&r->lock);
    return n;
}
#endif
