#include "run/trace.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/arena.h"
#include "base/buf.h"
#include "base/file.h"

/* What viewers still open, and what a run left alone overnight may cost. */
#define MAX_BYTES  ((uint64_t)512 << 20)
#define OPS_LENGTH 300 /* of the list of a segment's operators */

/* Tracks: the two of the caller, then devices. */
enum { TRACK_ROUNDS = 1, TRACK_HOST, TRACK_DEVICE };

static const char end_text[] = "\n]}\n";

/* What is said of a program's rounds. */
struct traced {
    const struct program *program;
    const char **names, **ops; /* (n_segments) */
    const char **copies;       /* (n_transfers) their names */
    int *by_ordinal;           /* segments by device and ordinal, see segment_at */
    int *first;                /* (n_devices) where a device's begin there */
    int *arrivals;             /* (n_segments) the transfer that a segment waits for, -1 */
};

struct trace {
    struct file_pieces file;
    struct buf text; /* of the piece being written */
    struct arena arena;
    const struct programs *programs;
    struct traced traced[MAX_PROGRAMS];
    const struct traced *now; /* of the round that is being written */
    const bool *driven;       /* (n_devices) */
    bool begun;               /* an event stands in the file */
    uint64_t zero_ns;         /* the clock where the file begins */
    uint64_t end_ns;          /* of the last round, since then */
    uint64_t next_arrow;
};

/* ---- events ---- */

static void begin_event(struct trace *t, const char *phase, int track) {
    buf_add_str(&t->text, t->begun ? ",\n" : "\n");
    buf_printf(&t->text, "{\"ph\":\"%s\",\"pid\":1,\"tid\":%d", phase, track);
    t->begun = true;
}

/* Microseconds, to the nanosecond. */
static void add_us(struct trace *t, const char *key, uint64_t ns) {
    buf_printf(&t->text, ",\"%s\":%llu.%03llu", key, (unsigned long long)(ns / 1000),
               (unsigned long long)(ns % 1000));
}

/* Names of tensors come from a file: nothing but letters, digits and common signs goes through. */
static void add_text(struct buf *out, const char *text) {
    for (const char *s = text; *s; s++)
        buf_add_char(out, *s < ' ' || *s == '"' || *s == '\\' || *s > '~' ? '?' : *s);
}

static void name_track(struct trace *t, int track, const char *name) {
    begin_event(t, "M", track);
    buf_add_str(&t->text, ",\"name\":\"thread_name\",\"args\":{\"name\":\"");
    add_text(&t->text, name);
    buf_add_str(&t->text, "\"}}");
    begin_event(t, "M", track);
    buf_printf(&t->text, ",\"name\":\"thread_sort_index\",\"args\":{\"sort_index\":%d}}", track);
}

/* An open span; its arguments and the closing braces follow. */
static void add_span(struct trace *t, int track, struct backend_times when, const char *name) {
    begin_event(t, "X", track);
    add_us(t, "ts", when.begin_ns - t->zero_ns);
    add_us(t, "dur", when.end_ns - when.begin_ns);
    buf_printf(&t->text, ",\"name\":\"%s\"", name);
}

static ats_status flush(struct trace *t) {
    size_t n_end = sizeof end_text - 1;
    buf_add(&t->text, end_text, n_end);
    ats_status status = file_pieces_add(&t->file, t->text.data, t->text.len, n_end);
    buf_clear(&t->text);
    return status;
}

/* ---- opening ---- */

ats_status trace_open(const char *path, struct trace **out) {
    *out = NULL;
    struct file_pieces file;
    TRY(file_check_output(path, "{"));
    TRY(file_pieces_open(path, &file));
    struct trace *t = xcalloc(1, sizeof *t);
    t->file = file;
    buf_add_str(&t->text, "{\"displayTimeUnit\":\"ns\",\"traceEvents\":[");
    begin_event(t, "M", TRACK_ROUNDS);
    buf_add_str(&t->text, ",\"name\":\"process_name\",\"args\":{\"name\":\"atsinfer\"}}");
    name_track(t, TRACK_ROUNDS, "rounds");
    name_track(t, TRACK_HOST, "waits of the host");
    ats_status status = flush(t);
    if (status == ATS_OK)
        *out = t;
    else
        trace_close(t);
    return status;
}

void trace_close(struct trace *t) {
    if (!t) return;
    file_pieces_close(&t->file);
    buf_free(&t->text);
    arena_free(&t->arena);
    free(t);
}

/* ---- names ---- */

/* "attn_q" of "blk.3.attn_q.weight"; what has no weight is called by its kind. */
static void add_op(struct buf *out, const struct graph *g, const struct step *s) {
    if (s->kind != STEP_OP) {
        buf_add_str(out, s->kind == STEP_SUM ? "sum" : "exchange");
        return;
    }
    if (s->op->weight < 0) {
        buf_add_str(out, op_kind_name(s->op->kind));
        return;
    }
    const char *name = g->weights[s->op->weight].name;
    if (strncmp(name, "blk.", 4) == 0) {
        name += 4 + strspn(name + 4, "0123456789");
        name += *name == '.';
    }
    size_t n = strlen(name), suffix = strlen(".weight");
    if (n > suffix && strcmp(name + n - suffix, ".weight") == 0) n -= suffix;
    struct buf part = {0};
    buf_add(&part, name, min_size(n, 60));
    add_text(out, buf_str(&part));
    buf_free(&part);
}

static int layer_of(const struct program *p, const struct program_segment *s) {
    for (int i = s->step_begin; i < s->step_end; i++) {
        const struct step *step = &p->steps[p->order[i]].step;
        if (step->kind == STEP_OP && step->op->layer >= 0) return step->op->layer;
    }
    return -1;
}

/* "3: attn_norm .. attn_output", and all of them in between. */
static void name_segment(struct trace *t, struct traced *of, const struct graph *g, int segment) {
    const struct program *p = of->program;
    const struct program_segment *s = &p->segments[segment];
    struct buf name = {0}, ops = {0};
    int layer = layer_of(p, s);
    if (layer >= 0) buf_printf(&name, "%d: ", layer);
    add_op(&name, g, &p->steps[p->order[s->step_begin]].step);
    if (s->step_end - s->step_begin > 1) {
        buf_add_str(&name, " .. ");
        add_op(&name, g, &p->steps[p->order[s->step_end - 1]].step);
    }
    for (int i = s->step_begin; i < s->step_end; i++) {
        if (ops.len > OPS_LENGTH) {
            buf_printf(&ops, " and %d more", s->step_end - i);
            break;
        }
        if (i > s->step_begin) buf_add_char(&ops, ' ');
        add_op(&ops, g, &p->steps[p->order[i]].step);
    }
    of->names[segment] = arena_strdup(&t->arena, buf_str(&name));
    of->ops[segment] = arena_strdup(&t->arena, buf_str(&ops));
    buf_free(&name);
    buf_free(&ops);
}

/* "slot 1: attn_q", the first of those that it brings. */
static void name_copy(struct trace *t, struct traced *of, const struct graph *g, int transfer) {
    const struct program_transfer *p = &of->program->transfers[transfer];
    struct buf name = {0};
    buf_printf(&name, "slot %d: ", p->slot);
    add_op(&name, g, &of->program->steps[p->first_step].step);
    of->copies[transfer] = arena_strdup(&t->arena, buf_str(&name));
    buf_free(&name);
}

static void index_segments(struct trace *t, struct traced *of) {
    const struct program *p = of->program;
    of->first = ARENA_ARRAY(&t->arena, int, p->n_devices);
    of->by_ordinal = ARENA_ARRAY(&t->arena, int, p->n_segments);
    for (int d = 0, at = 0; d < p->n_devices; d++) {
        of->first[d] = at;
        for (int i = 0; i < p->n_segments; i++)
            at += p->segments[i].device == d;
    }
    for (int i = 0; i < p->n_segments; i++)
        of->by_ordinal[of->first[p->segments[i].device] + p->segments[i].ordinal - 1] = i;
}

static void index_arrivals(struct trace *t, struct traced *of) {
    const struct program *p = of->program;
    of->arrivals = ARENA_ARRAY(&t->arena, int, p->n_segments);
    for (int i = 0; i < p->n_segments; i++) {
        of->arrivals[i] = -1;
        for (int j = 0; p->segments[i].arrival && j < p->n_transfers; j++)
            if (p->transfers[j].device == p->segments[i].device &&
                p->transfers[j].ordinal == p->segments[i].arrival)
                of->arrivals[i] = j;
    }
}

static void name_all(struct trace *t, struct traced *of, const struct graph *g,
                     const struct program *p) {
    of->program = p;
    of->names = ARENA_ARRAY(&t->arena, const char *, p->n_segments);
    of->ops = ARENA_ARRAY(&t->arena, const char *, p->n_segments);
    of->copies = ARENA_ARRAY(&t->arena, const char *, p->n_transfers);
    index_segments(t, of);
    index_arrivals(t, of);
    for (int i = 0; i < p->n_transfers; i++)
        name_copy(t, of, g, i);
    for (int i = 0; i < p->n_segments; i++)
        name_segment(t, of, g, i);
}

ats_status trace_programs(struct trace *t, const struct graph *g, const struct programs *programs,
                          struct backend *const *devices) {
    int n_devices = programs->at[0]->n_devices;
    arena_free(&t->arena);
    t->programs = programs;
    for (int k = 0; k < programs->n; k++)
        name_all(t, &t->traced[k], g, programs->at[k]);
    bool *driven = ARENA_ARRAY(&t->arena, bool, n_devices);
    for (int d = 0; d < n_devices; d++) {
        char *name = arena_printf(&t->arena, "device %d: %s", d, devices[d]->name);
        driven[d] = devices[d]->driven;
        name_track(t, TRACK_DEVICE + d, name);
        if (programs->n_slots[d])
            name_track(t, TRACK_DEVICE + n_devices + d,
                       arena_printf(&t->arena, "device %d: copies", d));
    }
    t->driven = driven;
    return flush(t);
}

/* ---- rounds ---- */

static void add_round(struct trace *t, const struct round *round, const struct round_times *times) {
    struct backend_times when = {times->begin_ns, times->end_ns};
    bool decode = true;
    for (int i = 0; i < round->n_runs; i++)
        decode &= round->runs[i].n_tokens == 1;
    char name[64];
    snprintf(name, sizeof name, "%s, %d token%s", decode ? "decode" : "prefill", round->n_tokens,
             round->n_tokens == 1 ? "" : "s");
    add_span(t, TRACK_ROUNDS, when, name);
    buf_printf(&t->text,
               ",\"args\":{\"tokens\":%d,\"rows\":%d,\"sequences\":%d,\"position\":%d,"
               "\"submissions\":%llu}}",
               round->n_tokens, round->n_rows, round->n_runs,
               round->n_runs ? round->runs[0].position : 0,
               (unsigned long long)times->n_submissions);
}

static int track_of(const struct trace *t, enum backend_queue queue, int device) {
    return TRACK_DEVICE + device + (queue == BACKEND_COPY ? t->now->program->n_devices : 0);
}

static void add_segment(struct trace *t, int segment, const struct round_times *times) {
    const struct program_segment *p = &t->now->program->segments[segment];
    const int transfer = t->now->arrivals[segment];
    add_span(t, track_of(t, BACKEND_COMPUTE, p->device), times->segments[segment].ran,
             t->now->names[segment]);
    buf_printf(&t->text, ",\"args\":{\"segment\":%d,\"ops\":\"%s\"", segment, t->now->ops[segment]);
    if (transfer >= 0) buf_printf(&t->text, ",\"arrival\":%d", transfer);
    buf_add_str(&t->text, "}}");
}

/* A copy may have run before its round, and before the first of the file. */
static bool is_told(const struct trace *t, const struct copy_times *c) {
    return c->known && c->ran.begin_ns >= t->zero_ns;
}

static void add_copy(struct trace *t, int transfer, const struct round_times *times) {
    const struct program_transfer *p = &t->now->program->transfers[transfer];
    const struct copy_times *c = &times->copies[transfer];
    if (!is_told(t, c)) return;
    add_span(t, track_of(t, BACKEND_COPY, p->device), c->ran, t->now->copies[transfer]);
    buf_printf(&t->text, ",\"args\":{\"transfer\":%d,\"slot\":%d", transfer, p->slot);
    if (c->submit_ns >= t->zero_ns) add_us(t, "submitted", c->submit_ns - t->zero_ns);
    buf_add_str(&t->text, "}}");
}

static int segment_at(const struct trace *t, int device, int ordinal) {
    return t->now->by_ordinal[t->now->first[device] + ordinal - 1];
}

/* The caller waits in the segments that it drives, before they begin. */
static void add_wait(struct trace *t, int segment, const struct round_times *times) {
    const struct program_segment *p = &t->now->program->segments[segment];
    const struct segment_times *s = &times->segments[segment];
    if (!t->driven[p->device] || p->n_waits == 0) return;
    add_span(t, TRACK_HOST, (struct backend_times){s->submit_ns, s->ran.begin_ns}, "wait");
    buf_printf(&t->text, ",\"args\":{\"segment\":%d,\"for\":[", segment);
    for (int i = 0; i < p->n_waits; i++)
        buf_printf(&t->text, "%s%d", i ? "," : "",
                   segment_at(t, p->waits[i].device, p->waits[i].ordinal));
    buf_add_str(&t->text, "]}}");
}

/* One end of an arrow, which leaves from inside its span, else viewers do not find it. */
static void add_arrow_end(struct trace *t, const char *phase, int track, const char *name,
                          uint64_t ns) {
    begin_event(t, phase, track);
    add_us(t, "ts", ns - t->zero_ns);
    buf_printf(&t->text, ",\"cat\":\"wait\",\"name\":\"%s\",\"id\":%llu%s}", name,
               (unsigned long long)t->next_arrow, *phase == 'f' ? ",\"bp\":\"e\"" : "");
}

static void add_arrow(struct trace *t, const char *name, int from_track,
                      const struct backend_times *from, int to_track, uint64_t to_ns) {
    t->next_arrow++;
    add_arrow_end(t, "s", from_track, name, from->end_ns - (from->end_ns > from->begin_ns));
    add_arrow_end(t, "f", to_track, name, to_ns);
}

/* Whom a segment waited for: others, named by where they run, and what is streamed to it. */
static void add_arrows(struct trace *t, int segment, const struct round_times *times) {
    const struct program_segment *p = &t->now->program->segments[segment];
    const int to = track_of(t, BACKEND_COMPUTE, p->device), transfer = t->now->arrivals[segment];
    const uint64_t to_ns = times->segments[segment].ran.begin_ns;
    char name[48];
    for (int i = 0; i < p->n_waits; i++) {
        const int device = p->waits[i].device;
        const struct segment_times *from =
            &times->segments[segment_at(t, device, p->waits[i].ordinal)];
        snprintf(name, sizeof name, "wait for device %d", device);
        if (from->known)
            add_arrow(t, name, track_of(t, BACKEND_COMPUTE, device), &from->ran, to, to_ns);
    }
    if (transfer < 0 || !is_told(t, &times->copies[transfer])) return;
    snprintf(name, sizeof name, "arrival %d in slot %d", transfer,
             t->now->program->transfers[transfer].slot);
    add_arrow(t, name, track_of(t, BACKEND_COPY, p->device), &times->copies[transfer].ran, to,
              to_ns);
}

/* A copy waited for who read its slot, but for the first of a round: that was in another round. */
static void add_slot_arrow(struct trace *t, int transfer, const struct round_times *times) {
    const struct program_transfer *p = &t->now->program->transfers[transfer];
    const struct copy_times *c = &times->copies[transfer];
    if (p->ahead || p->wait == 0 || !is_told(t, c)) return;
    const struct segment_times *from = &times->segments[segment_at(t, p->device, p->wait)];
    char name[32];
    snprintf(name, sizeof name, "slot %d is free", p->slot);
    if (from->known)
        add_arrow(t, name, track_of(t, BACKEND_COMPUTE, p->device), &from->ran,
                  track_of(t, BACKEND_COPY, p->device), c->ran.begin_ns);
}

ats_status trace_round(struct trace *t, const struct round *round,
                       const struct round_times *times) {
    t->now = &t->traced[programs_of_round(t->programs, round->n_tokens)];
    const struct program *p = t->now->program;
    /* devices that came in place of others may have another clock */
    bool first = t->zero_ns == 0 && t->end_ns == 0;
    if (first || times->begin_ns < t->zero_ns + t->end_ns) t->zero_ns = times->begin_ns - t->end_ns;
    t->end_ns = times->end_ns - t->zero_ns;
    if (t->file.at > MAX_BYTES)
        return fail(ATS_CANCELLED, "%s has %llu MiB, and later rounds are left out", t->file.path,
                    (unsigned long long)(t->file.at >> 20));
    add_round(t, round, times);
    for (int i = 0; i < p->n_segments; i++) {
        if (!times->segments[i].known) continue;
        add_segment(t, i, times);
        add_wait(t, i, times);
        add_arrows(t, i, times);
    }
    for (int i = 0; i < p->n_transfers; i++) {
        add_copy(t, i, times);
        add_slot_arrow(t, i, times);
    }
    for (int d = 0; d < p->n_devices; d++) {
        add_span(t, TRACK_HOST, times->waits[d], "wait for the end");
        buf_printf(&t->text, ",\"args\":{\"device\":%d}}", d);
    }
    return flush(t);
}
