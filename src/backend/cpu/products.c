/* Matrix products with what is folded into them. */
#include "backend/cpu/cpu_internal.h"
#include "backend/packed.h"

#include <string.h>

#define SMALL_ROWS   PACK_ROWS /* rows that are not shared out further in small rounds */
#define DYNAMIC_ROWS 64        /* rows a thread takes at a time in large rounds */
#define PART_LINES   32        /* and lines at least, where there are few such units: */
#define FEW_UNITS    16        /* for each thread */

static bool needs(const struct products *p, enum math math) {
    for (int i = 0; i < p->n; i++)
        if (p->items[i]->op->p.matmul.math == math) return true;
    return false;
}

/* Brings lines [begin, end) of the input into its kernels' form; x and q8 as in *in. normed: where
 * the norm's output goes, if there is a norm: in->x. */
static void prepare_lines(const struct cpu *c, const struct products *p, struct product_input *in,
                          float *normed, uint16_t *bf16, int begin, int end) {
    const struct step *norm = p->norm;
    int width = p->items[0]->in_end - p->items[0]->in_begin;
    for (int line = begin; norm && line < end; line++) {
        const float *w = norm->weight ? (const float *)(const void *)norm->weight->s.data : NULL;
        c->k.rms_norm(span_at(c, &norm->in[0], line, 0), w, width, norm->op->p.norm.eps,
                      normed + (int64_t)line * in->x_stride);
    }
    if (needs(p, MATH_Q8)) c->k.quantise_q8(in->x, in->x_stride, begin, end, &in->q8);
    for (int line = begin; in->bf16 && line < end; line++)
        c->k.round_bf16(in->x + line * in->x_stride, width, bf16 + line * in->bf16_stride);
}

/* The thread's share of what every thread has computed for itself. */
static void keep_norm(const struct cpu *c, const struct step *norm, const struct product_input *in,
                      int thread, int n_threads) {
    int begin, end;
    split_range(norm->end - norm->begin, 16, thread, n_threads, &begin, &end);
    for (int line = 0; line < in->n_lines; line++)
        memcpy(span_at(c, &norm->out, line, begin), in->x + line * in->x_stride + begin,
               (size_t)(end - begin) * sizeof(float));
}

/* Small inputs: every thread prepares all of it for itself, which is cheaper than a barrier; large
 * ones: each its lines, then all meet. */
static struct product_input prepare(struct cpu_run *r, const struct products *p, int thread,
                                    int n_threads) {
    struct cpu *c = r->cpu;
    const struct step *first = p->items[0];
    int width = first->in_end - first->in_begin;
    struct product_input in = {.n_lines = step_lines(first, r->round)};
    bool small = in.n_lines <= SMALL_LINES && in.n_lines * width <= SMALL_FLOATS;
    bool in_place = p->keeps_norm && !small;
    float *normed = small ? c->scratch[thread].floats : c->shared_floats;
    if (in_place) normed = span_at(c, &p->norm->out, 0, 0);
    in.x = p->norm ? normed : span_at(c, &first->in[0], 0, first->in_begin);
    in.x_stride = p->norm && !in_place ? width : first->in[0].stride;
    uint16_t *bf16 = small ? c->scratch[thread].bf16 : c->shared_bf16;
    in.bf16 = needs(p, MATH_BF16) ? bf16 : NULL;
    in.bf16_stride = (int64_t)round_up((size_t)width, 32);
    if (needs(p, MATH_Q8))
        in.q8 = q8_rows_at(small ? c->scratch[thread].q8 : c->shared_q8, width, in.n_lines);
    if (small) {
        prepare_lines(c, p, &in, normed, bf16, 0, in.n_lines);
        if (p->keeps_norm) keep_norm(c, p->norm, &in, thread, n_threads);
        return in;
    }
    int begin, end;
    split_range(in.n_lines, 1, thread, n_threads, &begin, &end);
    prepare_lines(c, p, &in, normed, bf16, begin, end);
    thread_pool_barrier(c->pool);
    return in;
}

static void multiply_raw(const struct cpu *c, const struct weight_source *w, int matrix,
                         enum math math, const struct product_input *in, int begin, int end,
                         float *out, int64_t out_stride, void *scratch) {
    const uint8_t *rows = weight_matrix(w, matrix) + begin * w->row_bytes;
    if (math == MATH_Q8)
        c->k.matmul_q8[w->dtype](rows, (size_t)w->row_bytes, end - begin, w->n_cols, &in->q8,
                                 in->n_lines, out, out_stride, scratch);
    else if (math == MATH_BF16)
        c->k.matmul_bf16(rows, (size_t)w->row_bytes, end - begin, w->n_cols, in->bf16,
                         in->bf16_stride, in->n_lines, out, out_stride, scratch);
    else
        c->k.matmul_f32[w->dtype](rows, (size_t)w->row_bytes, end - begin, w->n_cols, in->x,
                                  in->x_stride, in->n_lines, out, out_stride, scratch);
}

void cpu_multiply(const struct cpu *c, struct matrix_rows rows, enum math math,
                  const struct product_input *in, float *out, int64_t out_stride,
                  struct matrix_rows then, void *scratch) {
    const struct weight_source *w = &rows.weight->s;
    const uint8_t *next = cpu_fetch_then(c, &rows, &then, in->n_lines);
    if (!rows.weight->packed) {
        multiply_raw(c, w, rows.matrix, math, in, rows.begin, rows.end, out, out_stride, scratch);
        return;
    }
    const uint8_t *packed = rows.weight->packed + (size_t)rows.matrix * cpu_packed_bytes(w);
    int from = rows.begin / PACK_ROWS, to = pack_n_groups(rows.end);
    if (math == MATH_Q8)
        c->k.matmul_packed_q8[w->dtype](packed, from, to, w->n_rows, w->n_cols, &in->q8,
                                        in->n_lines, out, out_stride, next, scratch);
    else if (math == MATH_BF16)
        c->k.matmul_packed_bf16(packed, from, to, w->n_rows, w->n_cols, in->bf16, in->bf16_stride,
                                in->n_lines, out, out_stride, scratch);
    else
        c->k.matmul_packed_f32[w->dtype](packed, from, to, w->n_rows, w->n_cols, in->x,
                                         in->x_stride, in->n_lines, out, out_stride, scratch);
}

/* The rows of a product's weight that make columns [begin, end) of its output. */
static struct matrix_rows rows_of(const struct step *s, int begin, int end) {
    return (struct matrix_rows){s->weight, 0, begin - s->begin, end - s->begin};
}

struct product_input cpu_input_rows(const struct product_input *in, int from, int n) {
    struct product_input out = *in;
    int64_t at = (int64_t)from * in->q8.n_cols;
    out.x += from * in->x_stride;
    if (in->q8.q) out.q8.q += at, out.q8.scale += at / 32, out.q8.sum16 += at / 16;
    if (in->bf16) out.bf16 += from * in->bf16_stride;
    out.first_line += from;
    out.n_lines = n;
    return out;
}

/* Columns [begin, end) of the output of one product, bias added. */
static void multiply(const struct cpu *c, const struct step *s, const struct product_input *in,
                     int begin, int end, struct matrix_rows then, void *scratch) {
    float *out = span_at(c, &s->out, in->first_line, begin);
    cpu_multiply(c, rows_of(s, begin, end), s->op->p.matmul.math, in, out, s->out.stride, then,
                 scratch);
    if (!s->bias) return;
    const float *bias = (const float *)(const void *)s->bias->s.data + (begin - s->begin);
    for (int line = 0; line < in->n_lines; line++) {
        float *o = out + (int64_t)line * s->out.stride;
        c->k.add(o, bias, end - begin, o);
    }
}

/* The same rows of gate, up and act, or of a product and the sum that takes it. */
static void run_rows(const struct cpu *c, const struct products *p, const struct product_input *in,
                     int item, int begin, int end, struct matrix_rows then, void *scratch) {
    struct matrix_rows up = p->gated ? rows_of(p->items[1], begin, end) : then;
    const int first = in->first_line, last = first + in->n_lines;
    multiply(c, p->items[item], in, begin, end, up, scratch);
    if (p->gated) {
        const struct step *g = p->gated;
        multiply(c, p->items[1], in, begin, end, then, scratch);
        for (int line = first; line < last; line++)
            c->k.gated[g->op->p.gated.act](span_at(c, &g->in[0], line, begin),
                                           span_at(c, &g->in[1], line, begin), end - begin,
                                           span_at(c, &g->out, line, begin));
    }
    for (int line = first; p->sum && line < last; line++)
        cpu_run_sum(c, p->sum, line, begin, end);
}

/* Rows of all products in one row of units: unit u is rows of the item it falls into. */
struct row_units {
    int grain, n_items;
    int units[MAX_PRODUCTS + 1]; /* first unit of each item, then the end */
};

static struct row_units count_units(const struct products *p, int grain) {
    struct row_units u = {.grain = grain, .n_items = p->gated ? 1 : p->n};
    for (int i = 0; i < u.n_items; i++) {
        int rows = p->items[i]->end - p->items[i]->begin;
        u.units[i + 1] = u.units[i] + (rows + grain - 1) / grain;
    }
    return u;
}

/* What units [begin, end) are of item i, which may be nothing. */
static struct matrix_rows unit_rows(const struct products *p, const struct row_units *u, int i,
                                    int begin, int end) {
    if (i >= u->n_items) return (struct matrix_rows){0};
    int from = max_int(begin, u->units[i]), to = min_int(end, u->units[i + 1]);
    if (from >= to) return (struct matrix_rows){0};
    const struct step *s = p->items[i];
    return (struct matrix_rows){s->weight, 0, (from - u->units[i]) * u->grain,
                                min_int(s->end - s->begin, (to - u->units[i]) * u->grain)};
}

static void run_units(const struct cpu *c, const struct products *p, const struct product_input *in,
                      const struct row_units *u, int begin, int end, void *scratch) {
    for (int i = 0; i < u->n_items; i++) {
        struct matrix_rows rows = unit_rows(p, u, i, begin, end);
        int first = p->items[i]->begin;
        if (rows.weight)
            run_rows(c, p, in, i, first + rows.begin, first + rows.end,
                     unit_rows(p, u, i + 1, begin, end), scratch);
    }
}

void cpu_products_fetch(const struct cpu_run *r, const struct phase *phase, int thread,
                        int n_threads, struct fetch *out) {
    const struct products *p = &phase->products;
    *out = (struct fetch){0};
    if (step_lines(p->items[0], r->round) > SMALL_LINES) return;
    struct row_units u = count_units(p, SMALL_ROWS);
    int begin, end;
    split_range(u.units[u.n_items], 1, thread, n_threads, &begin, &end);
    for (int i = 0; i < u.n_items; i++) {
        struct matrix_rows rows = unit_rows(p, &u, i, begin, end);
        if (!rows.weight) continue;
        cpu_fetch_begin(out, r->cpu, rows.weight, 0, rows.begin, rows.end);
        return;
    }
}

/* Into how many parts the lines of each unit are cut, lest threads wait for the last unit. */
static int count_parts(const struct cpu *c, int n_units, int n_lines, int n_threads) {
    int n_parts = 1;
    if (c->options.no_fusion) return n_parts;
    while (n_units * n_parts < FEW_UNITS * n_threads && n_lines / (2 * n_parts) >= PART_LINES)
        n_parts *= 2;
    return n_parts;
}

void cpu_run_products(struct cpu_run *r, const struct phase *phase, int thread, int n_threads) {
    const struct products *p = &phase->products;
    struct cpu *c = r->cpu;
    struct product_input in = prepare(r, p, thread, n_threads);
    if (in.n_lines == 0) return;
    void *scratch = c->scratch[thread].matmul;
    if (in.n_lines <= SMALL_LINES) {
        struct row_units u = count_units(p, SMALL_ROWS);
        int begin, end;
        split_range(u.units[u.n_items], 1, thread, n_threads, &begin, &end);
        run_units(c, p, &in, &u, begin, end, scratch);
        return;
    }
    struct row_units u = count_units(p, DYNAMIC_ROWS);
    const int n_parts = count_parts(c, u.units[u.n_items], in.n_lines, n_threads);
    _Atomic int *next = &r->segment->counters[phase->counter];
    for (;;) {
        int part = atomic_fetch_add_explicit(next, 1, memory_order_relaxed), from, to;
        int unit = part / n_parts;
        if (unit >= u.units[u.n_items]) return;
        split_range(in.n_lines, 1, part % n_parts, n_parts, &from, &to);
        const struct product_input lines = cpu_input_rows(&in, from, to - from);
        run_units(c, p, &lines, &u, unit, unit + 1, scratch);
    }
}
