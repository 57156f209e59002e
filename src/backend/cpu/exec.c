/* Runs a segment's phases on the pool; the light steps are here. */
#include "backend/cpu/cpu_internal.h"

#include <math.h>
#include <string.h>

/* One line of cos and sin per token; positions are exact in double. */
static void run_rope_table(struct cpu_run *r, int thread, int n_threads) {
    int begin, end;
    split_range(r->round->n_tokens, 1, thread, n_threads, &begin, &end);
    for (int i = 0; i < r->segment->n_ropes; i++) {
        const struct rope_params *p = &r->segment->ropes[i]->p.rope;
        int half = p->n_rot / 2;
        for (int t = begin; t < end; t++) {
            float *line = r->cpu->rope[i] + (int64_t)t * p->n_rot;
            for (int j = 0; j < half; j++) {
                double angle = (double)r->round->positions[t] * (double)p->inv_freq[j];
                line[j] = (float)(cos(angle) * (double)p->magnitude);
                line[half + j] = (float)(sin(angle) * (double)p->magnitude);
            }
        }
    }
}

static const float *rope_line(const struct cpu_run *r, const struct graph_op *op, int line) {
    for (int i = 0; i < r->segment->n_ropes; i++)
        if (r->segment->ropes[i]->p.rope.inv_freq == op->p.rope.inv_freq)
            return r->cpu->rope[i] + (int64_t)line * op->p.rope.n_rot;
    REQUIRE(!"a rope of this segment");
    return NULL;
}

static void run_embed(const struct cpu_run *r, const struct step *s, int line, int begin, int end) {
    const struct cpu *c = r->cpu;
    const struct weight_source *w = &s->weight->s;
    float *out = span_at(c, &s->out, line, 0);
    (void)begin, (void)end; /* a row is one item */
    c->k.dequant[w->dtype](w->data + r->round->tokens[line] * w->row_bytes, out, w->n_cols);
    if (s->op->p.embed.scale < 1 || s->op->p.embed.scale > 1)
        c->k.scale(out, w->n_cols, s->op->p.embed.scale);
}

static void run_norm(const struct cpu_run *r, const struct step *s, int line, int begin, int end) {
    const struct cpu *c = r->cpu;
    int group = s->op->p.norm.group;
    const float *w = s->weight ? (const float *)(const void *)s->weight->s.data : NULL;
    const float scale = s->op->p.norm.scale;
    for (int i = begin; i < end; i += group) {
        float *out = span_at(c, &s->out, line, i);
        c->k.rms_norm(span_at(c, &s->in[0], line, i), w, group, s->op->p.norm.eps, out);
        if (scale > 0) c->k.scale(out, group, scale);
    }
}

static void run_rope(const struct cpu_run *r, const struct step *s, int line, int begin, int end) {
    const struct cpu *c = r->cpu;
    const struct rope_params *p = &s->op->p.rope;
    const float *table = rope_line(r, s->op, line);
    float *out = span_at(c, &s->out, line, begin);
    memcpy(out, span_at(c, &s->in[0], line, begin), (size_t)(end - begin) * sizeof *out);
    rope_fn *turn = p->halves ? c->k.rope_halves : c->k.rope_pairs;
    turn(out, (end - begin) / p->head_dim, p->head_dim, p->n_rot, table, table + p->n_rot / 2);
}

static void run_gated(const struct cpu_run *r, const struct step *s, int line, int begin, int end) {
    const struct cpu *c = r->cpu;
    gated_fn *gated = c->k.gated[s->op->p.gated.act];
    const float *in = span_at(c, &s->in[1], line, begin), one = 1;
    float *out = span_at(c, &s->out, line, begin), factor;
    if (!s->op->p.gated.one_gate) {
        gated(span_at(c, &s->in[0], line, begin), in, end - begin, out);
        return;
    }
    gated(span_at(c, &s->in[0], line, 0), &one, 1, &factor);
    memcpy(out, in, (size_t)(end - begin) * sizeof *out);
    c->k.scale(out, end - begin, factor);
}

static void run_slice(const struct cpu_run *r, const struct step *s, int line, int begin, int end) {
    const struct slice_params *p = &s->op->p.slice;
    while (begin < end) {
        int column = begin / p->n * p->group + p->first + begin % p->n;
        int n = min_int(end - begin, p->n - begin % p->n);
        memcpy(span_at(r->cpu, &s->out, line, begin), span_at(r->cpu, &s->in[0], line, column),
               (size_t)n * sizeof(float));
        begin += n;
    }
}

void cpu_run_sum(const struct cpu *c, const struct step *s, int line, int begin, int end) {
    float *out = span_at(c, &s->out, line, begin);
    const float *first = span_at(c, &s->in[0], line, begin);
    if (s->n_in == 1) {
        memcpy(out, first, (size_t)(end - begin) * sizeof *out);
        return;
    }
    for (int i = 1; i < s->n_in; i++)
        c->k.add(i == 1 ? first : out, span_at(c, &s->in[i], line, begin), end - begin, out);
}

static void run_copy(const struct cpu_run *r, const struct step *s, int line, int begin, int end) {
    int from = s->kind == STEP_OP ? r->round->rows[line] : line; /* OP_ROWS */
    memcpy(span_at(r->cpu, &s->out, line, begin), span_at(r->cpu, &s->in[0], from, begin),
           (size_t)(end - begin) * sizeof(float));
}

static void run_item(const struct cpu_run *r, const struct step *s, int line, int begin, int end) {
    if (s->kind == STEP_SUM) {
        cpu_run_sum(r->cpu, s, line, begin, end);
        return;
    }
    switch (s->kind == STEP_COPY ? OP_ROWS : s->op->kind) {
    case OP_EMBED:
        run_embed(r, s, line, begin, end);
        break;
    case OP_NORM:
        run_norm(r, s, line, begin, end);
        break;
    case OP_ROPE:
        run_rope(r, s, line, begin, end);
        break;
    case OP_GATED:
        run_gated(r, s, line, begin, end);
        break;
    case OP_ROWS:
        run_copy(r, s, line, begin, end);
        break;
    case OP_SLICE:
        run_slice(r, s, line, begin, end);
        break;
    case OP_ROUTE:
        cpu_run_route(r->cpu, s, line, span_at(r->cpu, &s->out, line, 0));
        break;
    default:
        REQUIRE(!"a light step");
    }
}

/* Columns that cannot be shared out further. */
int cpu_item_columns(const struct step *s) {
    if (s->kind == STEP_OP && s->op->kind == OP_NORM) return s->op->p.norm.group;
    if (s->kind == STEP_OP && s->op->kind == OP_ROPE) return s->op->p.rope.head_dim;
    if (s->kind == STEP_OP && (s->op->kind == OP_EMBED || s->op->kind == OP_ROUTE))
        return s->end - s->begin;
    return 64;
}

/* A step is lines x column groups; a thread takes a contiguous run of them, line by line. */
static void run_step(const struct cpu_run *r, const struct step *s, int thread, int n_threads) {
    int lines = step_lines(s, r->round), columns = cpu_item_columns(s);
    int per_line = (s->end - s->begin + columns - 1) / columns;
    int begin, end;
    split_range(lines * per_line, 1, thread, n_threads, &begin, &end);
    while (begin < end) {
        int line = begin / per_line, first = begin % per_line;
        int n = min_int(per_line - first, end - begin);
        run_item(r, s, line, s->begin + first * columns,
                 min_int(s->end, s->begin + (first + n) * columns));
        begin += n;
    }
}

/* A barrier; meanwhile what is read next is asked for: weights, or a state behind light phases. */
static void wait_for_others(const struct cpu_run *r, const struct phase *p, int thread,
                            int n_threads) {
    const struct phase *end = r->segment->phases + r->segment->n_phases;
    struct fetch fetch = {0};
    while (end - p > 1 && (p->kind == PHASE_STEP || p->kind == PHASE_CONV))
        p++;
    if (p->kind == PHASE_PRODUCTS) cpu_products_fetch(r, p, thread, n_threads, &fetch);
    if (p->kind == PHASE_DELTA) cpu_delta_fetch(r, p, thread, n_threads, &fetch);
    thread_pool_barrier_idle(r->cpu->pool, cpu_fetch_step, &fetch);
}

static bool must_wait(const struct cpu_run *r, const struct phase *p, int n_threads) {
    bool spared = r->round->n_tokens == 1 && p->spare && p->spare % n_threads == 0;
    return p->barrier && !spared;
}

static void run_phases(void *arg, int thread, int n_threads) {
    struct cpu_run *r = arg;
    const struct phase *end = r->segment->phases + r->segment->n_phases;
    for (size_t i = 0; i < r->segment->n_phases; i++) {
        const struct phase *p = &r->segment->phases[i];
        if (p->kind == PHASE_ATTN_MERGE && !cpu_attn_must_merge(r->round)) continue;
        if (must_wait(r, p, n_threads)) wait_for_others(r, p, thread, n_threads);
        if (r->round->n_tokens <= SMALL_LINES && end - p > 1) cpu_fetch_phase(r->cpu, p + 1);
        switch (p->kind) {
        case PHASE_ROPE_TABLE:
            run_rope_table(r, thread, n_threads);
            break;
        case PHASE_STEP:
            run_step(r, p->step, thread, n_threads);
            break;
        case PHASE_PRODUCTS:
            cpu_run_products(r, p, thread, n_threads);
            break;
        case PHASE_EXPERTS:
            cpu_run_experts(r, p, thread, n_threads);
            break;
        case PHASE_ATTN_STORE:
            cpu_attn_store(r, p, thread, n_threads);
            break;
        case PHASE_ATTN_RANGES:
            cpu_attn_ranges(r, p, thread, n_threads);
            break;
        case PHASE_ATTN_MERGE:
            cpu_attn_merge(r, p, thread, n_threads);
            break;
        case PHASE_CONV:
            cpu_run_conv(r, p, thread, n_threads);
            break;
        case PHASE_DELTA:
            cpu_run_delta(r, p, thread, n_threads);
            break;
        }
    }
}

void cpu_run_segment(struct cpu *c, struct backend_segment *s, const struct round *round) {
    struct cpu_run run = {.cpu = c, .segment = s, .round = round};
    for (int i = 0; i < s->n_counters; i++)
        atomic_store_explicit(&s->counters[i], 0, memory_order_relaxed);
    bool batch = round->n_tokens > SMALL_LINES;
    thread_pool_run(c->pool, batch ? c->options.n_threads_batch : c->options.n_threads, run_phases,
                    &run);
}
