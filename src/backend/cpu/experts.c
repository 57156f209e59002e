/*
 * Routed experts: the choice, and the experts' products over the tokens that chose them.
 *
 * Tokens are taken EXPERT_LINES at a time. A pair is a token and an expert of this device that it
 * chose; pairs are sorted by expert, tokens ascending. Three stages with barriers between: the
 * pairs' inputs are gathered, gate, up and activation fill h (pairs, n_ff), and down with the
 * route's weights adds up the output. Shares are rows of experts, so that a thread streams whole
 * matrices; an output element is made by one thread, experts ascending: the same chain in rounds
 * of one token and of many.
 */
#include "backend/cpu/cpu_internal.h"
#include "backend/packed.h"

#include <math.h>
#include <string.h>

static const struct experts_params *params(const struct step *s) {
    return &s->op->p.experts;
}

/* ---- memory ---- */

static size_t max_lines(const struct backend_limits *l) {
    return (size_t)min_int(EXPERT_LINES, max_int(l->n_tokens, l->n_rows));
}

static size_t max_pairs(const struct backend_limits *l) {
    return max_lines(l) * (size_t)l->max_experts_used;
}

void cpu_experts_carve_thread(const struct backend_limits *l, struct carver *k,
                              struct cpu_scratch *s) {
    if (l->max_experts == 0) return;
    size_t pairs = max_pairs(l);
    s->pairs = cpu_carve(k, ((size_t)l->max_experts + 1 + pairs) * sizeof(int));
    s->pair_weights = cpu_carve(k, pairs * sizeof(float));
    s->expert_rows = cpu_carve(k, (size_t)EXPERT_RUN * EXPERT_ROWS * sizeof(float));
    s->route = cpu_carve(k, SMALL_LINES * 2 * (size_t)l->max_experts_used * sizeof(float));
}

void cpu_experts_carve(const struct backend_limits *l, struct carver *k, struct cpu *c) {
    if (l->max_experts == 0) return;
    size_t pairs = max_pairs(l), cols = (size_t)l->max_expert_cols, ff = (size_t)l->max_expert_ff;
    if (l->expert_floats) c->expert_x = cpu_carve(k, pairs * cols * sizeof(float));
    c->expert_x8 = cpu_carve(k, q8_rows_bytes((int)round_up(cols, 32), (int)pairs));
    c->expert_h = cpu_carve(k, pairs * ff * sizeof(float));
    c->expert_h8 = cpu_carve(k, q8_rows_bytes((int)round_up(ff, 32), (int)pairs));
}

int cpu_experts_counters(const struct backend_limits *l) {
    return 2 * ((max_int(l->n_tokens, l->n_rows) + EXPERT_LINES - 1) / EXPERT_LINES);
}

/* ---- the choice ---- */

static float sigmoid(float x) {
    return 1 / (1 + expf(-x));
}

/* ids[j], keys[j]: the n_used experts of the greatest key, descending; of equals the lower id. Any
 * n_used of them if keys are no numbers. */
static void choose(const struct route_params *p, const float *scores, const float *bias, float *ids,
                   float *keys) {
    int n = 0;
    for (int e = 0; e < p->n_experts; e++) {
        float key = p->gating == GATING_SIGMOID ? sigmoid(scores[e]) : scores[e];
        if (bias) key += bias[e];
        if (n == p->n_used && !(key > keys[n - 1])) continue;
        if (n < p->n_used) n++;
        int at = n - 1;
        for (; at > 0 && key > keys[at - 1]; at--) {
            keys[at] = keys[at - 1];
            ids[at] = ids[at - 1];
        }
        keys[at] = key;
        ids[at] = (float)e;
    }
}

/* A softmax has the order of its scores, so the choice is made before it. */
void cpu_run_route(const struct cpu *c, const struct step *s, int line, float *out) {
    const struct route_params *p = &s->op->p.route;
    const float *scores = span_at(c, &s->in[0], line, 0);
    const float *bias = s->bias ? (const float *)(const void *)s->bias->s.data : NULL;
    float *ids = out, *weights = ids + p->n_used;
    choose(p, scores, bias, ids, weights);
    float top = scores[(int)ids[0]], chosen = 0, all = 0;
    for (int j = 0; j < p->n_used; j++) {
        float score = scores[(int)ids[j]];
        weights[j] = p->gating == GATING_SIGMOID ? sigmoid(score) : expf(score - top);
        chosen += weights[j];
    }
    bool over_all = p->gating == GATING_SOFTMAX && !p->normalise;
    for (int e = 0; over_all && e < p->n_experts; e++)
        all += expf(scores[e] - top);
    float divisor = over_all ? all : chosen;
    if (p->gating == GATING_SIGMOID && !p->normalise) divisor = 1;
    for (int j = 0; j < p->n_used; j++)
        weights[j] = weights[j] / divisor * p->scale;
}

/* ---- one run of lines ---- */

/* Lines [line, line + n_lines) of a step, as one thread sees them. */
struct lines {
    struct cpu_run *r;
    const struct phase *phase;
    const struct step *s;
    int thread, n_threads;
    int line, n_lines;
    const float *route;   /* (n_lines, 2 * n_used) if the thread chose for itself, or NULL */
    const int *first;     /* (n_experts + 1) first pair of each expert of this device */
    const int *pair_line; /* (n_pairs) */
    const float *pair_weight;
    int n_pairs;
};

/* The choice, if it is made here: by every thread for itself where that is cheaper than to wait for
 * others, or shared out by lines. */
static void make_choice(struct lines *l, int n_lines) {
    const struct step *route = l->phase->route;
    const struct cpu *c = l->r->cpu;
    if (!route) return;
    int width = 2 * params(l->s)->n_used, begin, end;
    if (n_lines <= SMALL_LINES && n_lines * route->op->p.route.n_experts <= ROUTE_ALONE) {
        float *own = c->scratch[l->thread].route;
        for (int i = 0; i < n_lines; i++)
            cpu_run_route(c, route, i, own + i * width);
        l->route = own;
        return;
    }
    split_range(n_lines, 1, l->thread, l->n_threads, &begin, &end);
    for (int i = begin; i < end; i++)
        cpu_run_route(c, route, i, span_at(c, &route->out, i, 0));
    thread_pool_barrier(c->pool);
}

/* Every thread sorts for itself, which is cheaper than to wait for one. */
static void sort_pairs(struct lines *l) {
    const struct cpu *c = l->r->cpu;
    const struct step *s = l->s;
    struct cpu_scratch *own = &c->scratch[l->thread];
    int n_used = params(s)->n_used, n_experts = s->expert_end - s->expert_begin;
    int *first = own->pairs, *pair_line = first + n_experts + 1;
    memset(first, 0, ((size_t)n_experts + 1) * sizeof *first);
    for (int pass = 0; pass < 2; pass++) {
        for (int i = 0; i < l->n_lines; i++) {
            const float *ids = l->route ? l->route + (int64_t)i * 2 * n_used
                                        : span_at(c, &s->in[1], l->line + i, 0);
            for (int j = 0; j < n_used; j++) {
                float id = ids[j]; /* no number, if what it came from was none */
                if (!(id >= (float)s->expert_begin && id < (float)s->expert_end)) continue;
                int e = (int)id - s->expert_begin;
                int at = first[e + pass]++; /* counts one up; then fills from each first on */
                if (pass == 0) continue;
                pair_line[at] = l->line + i;
                own->pair_weights[at] = ids[n_used + j];
            }
        }
        if (pass == 1) break;
        int sum = 0;
        for (int e = 0; e < n_experts; e++) {
            int count = first[e];
            first[e] = sum;
            sum += count;
        }
        l->n_pairs = sum;
        memmove(first + 1, first, (size_t)n_experts * sizeof *first);
        first[0] = 0;
    }
    l->first = first;
    l->pair_line = pair_line;
    l->pair_weight = own->pair_weights;
}

/* Row `at` of out becomes x rounded to 8 bits. */
static void quantise_row(const struct cpu *c, const float *x, const struct q8_rows *out, int at) {
    int64_t n = out->n_cols;
    struct q8_rows row = {out->q + at * n, out->scale + at * n / 32, out->sum16 + at * n / 16,
                          out->n_cols};
    c->k.quantise_q8(x, 0, 0, 1, &row);
}

static bool uses(const struct step *s, enum math math) {
    return params(s)->math[EXPERT_GATE] == math || params(s)->math[EXPERT_UP] == math;
}

/* One line is the input of all its pairs, as it stands. */
static bool share_input(const struct lines *l) {
    return l->n_lines == 1 && !params(l->s)->scale_input;
}

/* The pairs' inputs: a row for each, or one that all share. */
static struct product_input gather(const struct lines *l) {
    struct cpu *c = l->r->cpu;
    const struct step *s = l->s;
    int n_cols = s->experts[EXPERT_GATE]->s.n_cols, begin, end;
    bool single = share_input(l), small = single && n_cols <= SMALL_FLOATS;
    bool scaled = params(s)->scale_input, q8 = uses(s, MATH_Q8);
    bool floats = (uses(s, MATH_F32) && !single) || scaled;
    struct product_input in = {.x = span_at(c, &s->in[0], l->line, 0),
                               .n_lines = single ? 1 : l->n_pairs};
    if (q8) in.q8 = q8_rows_at(small ? c->scratch[l->thread].q8 : c->expert_x8, n_cols, in.n_lines);
    if (small) {
        if (q8) quantise_row(c, in.x, &in.q8, 0);
        return in;
    }
    if (floats) {
        in.x = c->expert_x;
        in.x_stride = n_cols;
    }
    split_range(in.n_lines, 1, l->thread, l->n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        const float *row = span_at(c, &s->in[0], single ? l->line : l->pair_line[i], 0);
        float *copy = floats ? c->expert_x + (int64_t)i * n_cols : NULL;
        if (floats) memcpy(copy, row, (size_t)n_cols * sizeof *row);
        if (scaled) c->k.scale(copy, n_cols, l->pair_weight[i]);
        if (q8) quantise_row(c, scaled ? copy : row, &in.q8, i);
    }
    thread_pool_barrier(c->pool);
    return in;
}

/* h as down's kernels want it; every thread for itself where that is cheaper than a barrier. */
static struct product_input activated(const struct lines *l) {
    struct cpu *c = l->r->cpu;
    const struct experts_params *p = params(l->s);
    struct product_input in = {.x = c->expert_h, .x_stride = p->n_ff, .n_lines = l->n_pairs};
    if (p->math[EXPERT_DOWN] != MATH_Q8) return in;
    bool small = (int64_t)l->n_pairs * p->n_ff <= SMALL_FLOATS;
    in.q8 = q8_rows_at(small ? c->scratch[l->thread].q8 : c->expert_h8, p->n_ff, l->n_pairs);
    int begin = 0, end = l->n_pairs;
    if (!small) split_range(l->n_pairs, 1, l->thread, l->n_threads, &begin, &end);
    if (begin < end) c->k.quantise_q8(in.x, in.x_stride, begin, end, &in.q8);
    if (!small) thread_pool_barrier(c->pool);
    return in;
}

/* Rows of a matrix whose outputs of n pairs fit the thread's memory. */
static int rows_at_once(int n) {
    return EXPERT_RUN * EXPERT_ROWS / n / PACK_ROWS * PACK_ROWS;
}

/* Adds elements [begin, end) of a bias of expert e, if there are any, to n rows. */
static void add_bias(const struct lines *l, int which, int e, int begin, int end, float *rows,
                     int n, int64_t stride) {
    const struct backend_weight *bias = l->s->expert_biases[which];
    if (!bias) return;
    const float *values =
        (const float *)(const void *)bias->s.data + (int64_t)e * bias->s.n_cols + begin;
    for (int i = 0; i < n; i++, rows += stride)
        l->r->cpu->k.add(rows, values, end - begin, rows);
}

/* The next expert after e that is in use, -1 if there is none; e = -1: the first. */
static int next_expert(const struct lines *l, int e) {
    int n_experts = l->s->expert_end - l->s->expert_begin;
    for (e++; e < n_experts; e++)
        if (l->first[e] < l->first[e + 1]) return e;
    return -1;
}

/* ---- gate, up and activation ---- */

/* Rows [begin, end) of expert e for pairs [pair, pair + n); then: what this thread does next. */
static void gate_up_run(const struct lines *l, const struct product_input *in, int e, int pair,
                        int n, int begin, int end, struct matrix_rows then) {
    const struct cpu *c = l->r->cpu;
    const struct experts_params *p = params(l->s);
    const struct cpu_scratch *own = &c->scratch[l->thread];
    const struct backend_weight *const *w = (const struct backend_weight *const *)l->s->experts;
    struct product_input x = cpu_input_rows(in, share_input(l) ? 0 : pair, n);
    for (int from = begin, to; from < end; from = to) {
        to = min_int(end, from + rows_at_once(n));
        float *h = c->expert_h + (int64_t)pair * p->n_ff + from;
        struct matrix_rows gate = {w[EXPERT_GATE], e, from, to}, up = {w[EXPERT_UP], e, from, to};
        cpu_multiply(c, gate, p->math[EXPERT_GATE], &x, h, p->n_ff, up, own->matmul);
        cpu_multiply(c, up, p->math[EXPERT_UP], &x, own->expert_rows, to - from, then, own->matmul);
        add_bias(l, EXPERT_GATE, e, from, to, h, n, p->n_ff);
        add_bias(l, EXPERT_UP, e, from, to, own->expert_rows, n, to - from);
        for (int i = 0; i < n; i++, h += p->n_ff)
            c->k.gated[p->act](h, own->expert_rows + (int64_t)i * (to - from), to - from, h);
    }
}

static void gate_up_rows(const struct lines *l, const struct product_input *in, int e, int begin,
                         int end, struct matrix_rows then) {
    for (int pair = l->first[e]; pair < l->first[e + 1]; pair += EXPERT_RUN)
        gate_up_run(l, in, e, pair, min_int(EXPERT_RUN, l->first[e + 1] - pair), begin, end, then);
}

/* Few lines: the rows of all experts in use, one after the other, are split among the threads. */
static void gate_up_few(const struct lines *l, const struct product_input *in) {
    int n_ff = params(l->s)->n_ff, per_expert = (n_ff + PACK_ROWS - 1) / PACK_ROWS;
    int n_active = 0, begin, end, at = 0;
    for (int e = next_expert(l, -1); e >= 0; e = next_expert(l, e))
        n_active++;
    split_range(n_active * per_expert, 1, l->thread, l->n_threads, &begin, &end);
    for (int e = next_expert(l, -1), next; e >= 0; e = next, at += per_expert) {
        next = next_expert(l, e);
        int from = max_int(begin, at) - at, to = min_int(end, at + per_expert) - at;
        if (from >= to) continue;
        bool more = next >= 0 && end > at + per_expert;
        struct matrix_rows then = {more ? l->s->experts[EXPERT_GATE] : NULL, next, 0, n_ff};
        gate_up_rows(l, in, e, from * PACK_ROWS, min_int(n_ff, to * PACK_ROWS), then);
    }
}

static void gate_up(const struct lines *l, const struct product_input *in, _Atomic int *next) {
    if (l->n_lines <= SMALL_LINES) {
        gate_up_few(l, in);
        return;
    }
    int n_experts = l->s->expert_end - l->s->expert_begin, n_ff = params(l->s)->n_ff;
    int per_expert = (n_ff + EXPERT_ROWS - 1) / EXPERT_ROWS;
    for (;;) {
        int unit = atomic_fetch_add_explicit(next, 1, memory_order_relaxed), e = unit / per_expert;
        if (e >= n_experts) return;
        int begin = unit % per_expert * EXPERT_ROWS;
        gate_up_rows(l, in, e, begin, min_int(n_ff, begin + EXPERT_ROWS), (struct matrix_rows){0});
    }
}

/* ---- down and the weighted sum ---- */

static void down_run(const struct lines *l, const struct product_input *h, int e, int pair, int n,
                     int begin, int end, struct matrix_rows then) {
    const struct cpu *c = l->r->cpu;
    const struct cpu_scratch *own = &c->scratch[l->thread];
    struct product_input in = cpu_input_rows(h, pair, n);
    bool scaled = params(l->s)->scale_input; /* the weight is in already */
    for (int from = begin, to; from < end; from = to) {
        to = min_int(end, from + rows_at_once(n));
        struct matrix_rows rows = {l->s->experts[EXPERT_DOWN], e, from, to};
        cpu_multiply(c, rows, params(l->s)->math[EXPERT_DOWN], &in, own->expert_rows, to - from,
                     then, own->matmul);
        add_bias(l, EXPERT_DOWN, e, from, to, own->expert_rows, n, to - from);
        for (int i = 0; i < n; i++)
            c->k.add_scaled(span_at(c, &l->s->out, l->pair_line[pair + i], from),
                            own->expert_rows + (int64_t)i * (to - from), to - from,
                            scaled ? 1 : l->pair_weight[pair + i]);
    }
}

/* Columns [begin, end) of the output of all lines. */
static void down_columns(const struct lines *l, const struct product_input *h, int begin, int end) {
    const struct cpu *c = l->r->cpu;
    for (int i = 0; i < l->n_lines; i++)
        memset(span_at(c, &l->s->out, l->line + i, begin), 0,
               (size_t)(end - begin) * sizeof(float));
    for (int e = next_expert(l, -1), next; e >= 0; e = next) {
        next = next_expert(l, e);
        struct matrix_rows then = {next >= 0 ? l->s->experts[EXPERT_DOWN] : NULL, next, begin, end};
        for (int pair = l->first[e]; pair < l->first[e + 1]; pair += EXPERT_RUN)
            down_run(l, h, e, pair, min_int(EXPERT_RUN, l->first[e + 1] - pair), begin, end, then);
    }
    for (int i = 0; l->phase->sum && i < l->n_lines; i++)
        cpu_run_sum(c, l->phase->sum, l->line + i, begin, end);
}

static void down(const struct lines *l, const struct product_input *h, _Atomic int *next) {
    int width = l->s->end, begin, end;
    if (l->n_lines <= SMALL_LINES) {
        split_range(width, PACK_ROWS, l->thread, l->n_threads, &begin, &end);
        if (begin < end) down_columns(l, h, begin, end);
        return;
    }
    bool wide = width / EXPERT_ROWS >= 4 * l->n_threads;
    int grain = wide ? EXPERT_ROWS : EXPERT_ROWS / 2;
    for (;;) {
        begin = atomic_fetch_add_explicit(next, 1, memory_order_relaxed) * grain;
        if (begin >= width) return;
        down_columns(l, h, begin, min_int(width, begin + grain));
    }
}

/* All wait for h; meanwhile the rows of down that come first are asked for. */
static void wait_for_h(const struct lines *l) {
    struct fetch fetch = {0};
    int e = next_expert(l, -1), begin, end;
    split_range(l->s->end, PACK_ROWS, l->thread, l->n_threads, &begin, &end);
    if (e >= 0 && l->n_lines <= SMALL_LINES)
        cpu_fetch_begin(&fetch, l->r->cpu, l->s->experts[EXPERT_DOWN], e, begin, end);
    thread_pool_barrier_idle(l->r->cpu->pool, cpu_fetch_step, &fetch);
}

void cpu_run_experts(struct cpu_run *r, const struct phase *p, int thread, int n_threads) {
    struct lines l = {.r = r, .phase = p, .s = p->step, .thread = thread, .n_threads = n_threads};
    int n_lines = step_lines(p->step, r->round);
    _Atomic int *next = &r->segment->counters[p->counter];
    make_choice(&l, n_lines);
    for (; l.line < n_lines; l.line += EXPERT_LINES, next += 2) {
        l.n_lines = min_int(EXPERT_LINES, n_lines - l.line);
        if (l.line > 0) thread_pool_barrier(r->cpu->pool); /* the shared rows are free again */
        sort_pairs(&l);
        struct product_input in = gather(&l);
        gate_up(&l, &in, next);
        wait_for_h(&l);
        in = activated(&l);
        down(&l, &in, next + 1);
    }
}
