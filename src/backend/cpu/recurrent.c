/*
 * Recurrent steps: short convolutions and gated delta rules, with their states.
 *
 * A sequence's tokens pass one after the other, in rounds of any size by the same operations on the
 * same numbers, so that bits do not depend on how a prompt was divided. What is independent is
 * shared out: the columns of a convolution, and of a delta rule the columns of every head's state,
 * of which a few stay in the first cache while all tokens of the run pass. A chunked form would do
 * more arithmetic for less memory traffic that the first cache does not even see.
 *
 * State of a convolution in a slot: (n_taps - 1, n_columns), oldest first. Of a delta rule: for
 * each head and DELTA_BLOCK of its dim_v columns (dim_k, DELTA_BLOCK), so that what a thread works
 * on is one piece of memory.
 */
#include "backend/cpu/cpu_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"

struct backend_state {
    float *memory; /* (n_slots, n_floats) */
    int64_t n_floats;
    size_t bytes;
};

ats_status cpu_state_open(struct backend *b, const struct state_layout *layout,
                          struct backend_state **out) {
    (void)b;
    void *memory;
    size_t bytes = (size_t)layout->n_floats * (size_t)layout->n_slots * sizeof(float);
    TRY(pages_alloc(bytes, &memory));
    struct backend_state *s = xcalloc(1, sizeof *s);
    *s = (struct backend_state){memory, layout->n_floats, bytes};
    *out = s;
    return ATS_OK;
}

void cpu_state_close(struct backend *b, struct backend_state *s) {
    (void)b;
    if (!s) return;
    pages_free(s->memory, s->bytes);
    free(s);
}

ats_status cpu_state_read(struct backend *b, struct backend_state *s, int slot, float *out) {
    (void)b;
    memcpy(out, s->memory + slot * s->n_floats, (size_t)s->n_floats * sizeof *out);
    return ATS_OK;
}

ats_status cpu_state_write(struct backend *b, struct backend_state *s, int slot, const float *in) {
    (void)b;
    memcpy(s->memory + slot * s->n_floats, in, (size_t)s->n_floats * sizeof *in);
    return ATS_OK;
}

/* NULL for STATE_NONE. */
static float *slot_at(const struct step *s, int32_t slot) {
    return slot == STATE_NONE ? NULL : s->state->memory + slot * s->state->n_floats;
}

/* ---- convolution ---- */

/* The last n_taps - 1 inputs of columns [begin, end), counted from the step's first, move into
 * state_out; ascending, since it may be state_in. */
static void conv_keep(const struct cpu_run *r, const struct step *s, const struct round_run *run,
                      int begin, int end) {
    const int n_past = s->op->p.conv.n_taps - 1, width = s->end - s->begin;
    const size_t bytes = (size_t)(end - begin) * sizeof(float);
    const float *in = slot_at(s, run->state_in);
    float *out = slot_at(s, run->state_out);
    for (int i = 0; i < n_past; i++) {
        float *to = out + (int64_t)i * width + begin;
        const int t = run->n_tokens - n_past + i; /* of the run; negative: before it */
        if (t >= 0)
            memcpy(to, span_at(r->cpu, &s->in[0], run->token_begin + t, s->begin + begin), bytes);
        else if (in)
            memmove(to, in + (int64_t)(n_past + t) * width + begin, bytes);
        else
            memset(to, 0, bytes);
    }
}

static void conv_run(const struct cpu_run *r, const struct step *s, const struct round_run *run,
                     int begin, int end) {
    const struct cpu *c = r->cpu;
    const struct conv_params *p = &s->op->p.conv;
    const float *filters = (const float *)(const void *)s->weight->s.data;
    const float *past = slot_at(s, run->state_in);
    const struct conv_rows rows = {
        .x = span_at(c, &s->in[0], run->token_begin, s->begin + begin),
        .x_stride = s->in[0].stride,
        .past = past ? past + begin : NULL,
        .past_stride = s->end - s->begin,
    };
    c->k.conv(&rows, filters + (int64_t)begin * p->n_taps, p->n_taps, end - begin, run->n_tokens,
              p->silu, span_at(c, &s->out, run->token_begin, s->begin + begin), s->out.stride);
    conv_keep(r, s, run, begin, end);
}

void cpu_run_conv(struct cpu_run *r, const struct phase *p, int thread, int n_threads) {
    const struct step *s = p->step;
    int begin, end;
    split_range(s->end - s->begin, CONV_SHARE, thread, n_threads, &begin, &end);
    for (int i = 0; begin < end && i < r->round->n_runs; i++)
        conv_run(r, s, &r->round->runs[i], begin, end);
}

/* ---- delta rule ---- */

/* log(1 + e^x). */
static float softplus(float x) {
    return x > 20 ? x : log1pf(expf(x));
}

/* What a head forgets and how much it takes, for tokens [first, first + n) of a run: out has
 * DELTA_TOKENS of each. */
static void delta_gates(const struct cpu_run *r, const struct step *s, int head, int token, int n,
                        float *decay, float *beta) {
    const struct cpu *c = r->cpu;
    const float a_log = ((const float *)(const void *)s->weight->s.data)[head - s->head_begin];
    const float dt = ((const float *)(const void *)s->bias->s.data)[head - s->head_begin];
    for (int t = 0; t < n; t++) {
        float a = *span_at(c, &s->in[3], token + t, head);
        float b = *span_at(c, &s->in[4], token + t, head);
        decay[t] = expf(a_log * softplus(a + dt));
        beta[t] = 1 / (1 + expf(-b));
    }
}

static int key_head(const struct delta_params *p, int head) {
    return p->tiled ? head % p->n_key_heads : head / (p->n_heads / p->n_key_heads);
}

/* Blocks [begin, end) of a head's columns: all tokens of the run. */
static void delta_head(const struct cpu_run *r, const struct step *s, const struct round_run *run,
                       int head, int begin, int end, float *gates) {
    const struct cpu *c = r->cpu;
    const struct delta_params *p = &s->op->p.delta;
    const int64_t at =
        ((int64_t)(head - s->head_begin) * p->dim_v + begin * DELTA_BLOCK) * p->dim_k;
    const int column = head * p->dim_v + begin * DELTA_BLOCK;
    const float *in = slot_at(s, run->state_in);
    float *state = slot_at(s, run->state_out) + at;
    in = in ? in + at : memset(state, 0, (size_t)((end - begin) * DELTA_BLOCK * p->dim_k) * 4);
    for (int first = 0; first < run->n_tokens; first += DELTA_TOKENS, in = state) {
        const int token = run->token_begin + first;
        const int n = min_int(DELTA_TOKENS, run->n_tokens - first);
        const int key = key_head(p, head) * p->dim_k;
        delta_gates(r, s, head, token, n, gates, gates + DELTA_TOKENS);
        const struct delta_rows rows = {
            .q = span_at(c, &s->in[0], token, key),
            .k = span_at(c, &s->in[1], token, key),
            .v = span_at(c, &s->in[2], token, column),
            .q_stride = s->in[0].stride,
            .k_stride = s->in[1].stride,
            .v_stride = s->in[2].stride,
            .decay = gates,
            .beta = gates + DELTA_TOKENS,
            .out = span_at(c, &s->out, token, column),
            .out_stride = s->out.stride,
            .n_tokens = n,
            .dim_k = p->dim_k,
        };
        c->k.delta(&rows, in, state, end - begin);
    }
}

/* Blocks of columns, head by head and run by run, are one row of equal work. */
static void share_blocks(const struct step *s, int thread, int n_threads, int *begin, int *end) {
    const int per_head = s->op->p.delta.dim_v / DELTA_BLOCK;
    split_range((s->head_end - s->head_begin) * per_head, 1, thread, n_threads, begin, end);
}

void cpu_run_delta(struct cpu_run *r, const struct phase *p, int thread, int n_threads) {
    const struct step *s = p->step;
    const int per_head = s->op->p.delta.dim_v / DELTA_BLOCK;
    for (int i = 0; i < r->round->n_runs; i++) {
        int begin, end;
        share_blocks(s, thread, n_threads, &begin, &end);
        while (begin < end) {
            const int first = begin % per_head, n = min_int(per_head - first, end - begin);
            delta_head(r, s, &r->round->runs[i], s->head_begin + begin / per_head, first, first + n,
                       r->cpu->scratch[thread].gates);
            begin += n;
        }
    }
}

void cpu_delta_fetch(const struct cpu_run *r, const struct phase *p, int thread, int n_threads,
                     struct fetch *out) {
    const struct step *s = p->step;
    const float *in = slot_at(s, r->round->runs[0].state_in);
    const int64_t block = (int64_t)s->op->p.delta.dim_k * DELTA_BLOCK;
    int begin, end;
    *out = (struct fetch){0};
    if (!in || r->round->n_tokens > SMALL_LINES) return;
    share_blocks(s, thread, n_threads, &begin, &end);
    cpu_fetch_memory(out, r->cpu, in + begin * block, (size_t)((end - begin) * block) * sizeof *in);
}
