/*
 * Where a program's values stand, and what brings them where they are needed: buffers, copies
 * through the exchange, sums of partial sums, and what is computed on the way, which has no weight
 * of its own.
 */
#include "run/lower_internal.h"

#include <string.h>

/* A range of a buffer that already stands in the exchange. */
struct export_entry {
    int buffer, begin, end, exchange;
};

/* ---- ranges ---- */

static void ranges_add(struct range_set *s, int begin, int end) {
    size_t i = 0;
    while (i < s->n && s->items[i].end < begin)
        i++;
    size_t j = i;
    while (j < s->n && s->items[j].begin <= end) {
        begin = min_int(begin, s->items[j].begin);
        end = max_int(end, s->items[j].end);
        j++;
    }
    GROW(s->items, s->n, s->cap, 1);
    memmove(s->items + i + 1, s->items + j, (s->n - j) * sizeof *s->items);
    s->items[i] = (struct range){begin, end};
    s->n = s->n - (j - i) + 1;
}

/* The first part of [begin, end) that is not in s; false if all is. */
static bool ranges_missing(const struct range_set *s, int begin, int end, struct range *out) {
    for (size_t i = 0; i < s->n && begin < end; i++) {
        if (s->items[i].end <= begin) continue;
        if (s->items[i].begin > begin) {
            *out = (struct range){begin, min_int(end, s->items[i].begin)};
            return true;
        }
        begin = s->items[i].end;
    }
    *out = (struct range){begin, end};
    return begin < end;
}

static int ranges_missing_count(const struct range_set *s, int begin, int end) {
    int count = end - begin;
    for (size_t i = 0; i < s->n; i++) {
        int from = max_int(begin, s->items[i].begin), to = min_int(end, s->items[i].end);
        if (from < to) count -= to - from;
    }
    return count;
}

/* ---- buffers and steps ---- */

int lower_add_buffer(struct lowering *l, int device, int first, int stride, bool rows) {
    GROW(l->buffers, l->n_buffers, l->cap_buffers, 1);
    struct buffer *b = &l->buffers[l->n_buffers];
    *b = (struct buffer){.device = device,
                         .first_column = first,
                         .stride = stride,
                         .rows = rows,
                         .bytes = (int64_t)4 * stride * (rows ? l->n_rows : l->n_tokens)};
    return (int)l->n_buffers++;
}

int lower_value_buffer(struct lowering *l, int value, int device) {
    int *buffer = &l->values[value].buffer[device];
    const struct graph_value *v = &l->g->values[value];
    if (*buffer < 0) {
        if (value == l->g->logits)
            *buffer = l->logits_buffer;
        else
            *buffer = lower_add_buffer(l, device, 0, v->width, v->rows);
    }
    return *buffer;
}

int lower_partial_buffer(struct lowering *l, int value, int device) {
    const struct graph_value *v = &l->g->values[value];
    return lower_add_buffer(l, device, 0, v->width, v->rows);
}

struct lower_step *lower_add_step(struct lowering *l, int device, struct step step, const int *in,
                                  int out) {
    GROW(l->steps, l->n_steps, l->cap_steps, 1);
    struct lower_step *s = &l->steps[l->n_steps++];
    *s = (struct lower_step){.s = {.device = device,
                                   .step = step,
                                   .shard = -1,
                                   .bias = -1,
                                   .kv = -1,
                                   .state = -1,
                                   .experts = {-1, -1, -1},
                                   .expert_biases = {-1, -1, -1},
                                   .transfer = -1},
                             .out = out};
    REQUIRE(step.n_in <= STEP_MAX_IN);
    for (int i = 0; i < step.n_in; i++)
        s->in[i] = in[i];
    return s;
}

void lower_join_partial(struct lowering *l, int value, int device, int buffer) {
    int *sum = &l->values[value].partial[device];
    const struct graph_value *v = &l->g->values[value];
    if (*sum < 0) {
        *sum = buffer;
        return;
    }
    const int in[2] = {*sum, buffer};
    struct step step = {
        .kind = STEP_SUM, .n_in = 2, .end = v->width, .rows = v->rows, .in_rows = v->rows};
    *sum = lower_partial_buffer(l, value, device);
    lower_add_step(l, device, step, in, *sum);
}

/* Copies columns of a local buffer into the exchange, once per range; early: as soon as they are
 * there. Returns the buffer there. */
static int export_range(struct lowering *l, int buffer, int begin, int end, bool early) {
    for (size_t i = 0; i < l->n_exports; i++) {
        const struct export_entry *e = &l->exports[i];
        if (e->buffer == buffer && e->begin == begin && e->end == end) return e->exchange;
    }
    const struct buffer from = l->buffers[buffer];
    int exchange = lower_add_buffer(l, -1, begin, end - begin, from.rows);
    struct step step = {.kind = STEP_COPY,
                        .n_in = 1,
                        .begin = begin,
                        .end = end,
                        .rows = from.rows,
                        .in_rows = from.rows};
    lower_add_step(l, from.device, step, &buffer, exchange)->early = early;
    GROW(l->exports, l->n_exports, l->cap_exports, 1);
    l->exports[l->n_exports++] = (struct export_entry){buffer, begin, end, exchange};
    l->program->n_copies++;
    return exchange;
}

void lower_made(struct lowering *l, int value, int device, int begin, int end) {
    ranges_add(&l->values[value].have[device], begin, end);
}

/* ---- demand ---- */

bool lower_is_partial(const struct lowering *l, int value) {
    return plan_op_is_partial(l->plan, l->g->values[value].producer);
}

static void copy_range(struct lowering *l, int value, int from, int to, int begin, int end) {
    int exchange = export_range(l, lower_value_buffer(l, value, from), begin, end, false);
    bool rows = l->g->values[value].rows;
    struct step step = {
        .kind = STEP_COPY, .n_in = 1, .begin = begin, .end = end, .rows = rows, .in_rows = rows};
    lower_add_step(l, to, step, &exchange, lower_value_buffer(l, value, to));
    lower_made(l, value, to, begin, end);
}

struct range lower_part_columns(const struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    int scale = 1;
    if (op->kind == OP_ATTENTION)
        scale = op->p.attention.n_heads / op->p.attention.n_kv_heads * op->p.attention.head_dim;
    if (op->kind == OP_DELTA) scale = op->p.delta.dim_v;
    bool whole = op->kind == OP_EMBED || p->axis == AXIS_COLS || p->axis == AXIS_EXPERTS;
    if (whole) return (struct range){0, l->g->values[op->out].width};
    return (struct range){p->begin * scale, p->end * scale};
}

/* The partial sums of a value as inputs of a sum on `device`, in device order. Others sum up as
 * well: none of them waits until this one has. */
static int gather_partials(struct lowering *l, int value, int device, int begin, int end, int *in) {
    int n = 0;
    for (int d = 0; d < l->n_devices; d++) {
        if (l->values[value].partial[d] < 0) continue;
        int buffer = l->values[value].partial[d];
        in[n++] = d == device ? buffer : export_range(l, buffer, begin, end, true);
    }
    return n;
}

static void emit_sum(struct lowering *l, int value, int device, int begin, int end, const int *in,
                     int n_in) {
    bool rows = l->g->values[value].rows;
    struct step step = {
        .kind = STEP_SUM, .n_in = n_in, .begin = begin, .end = end, .rows = rows, .in_rows = rows};
    lower_add_step(l, device, step, in, lower_value_buffer(l, value, device));
    lower_made(l, value, device, begin, end);
}

/* A placed value comes from the devices whose parts made it. */
static void provide_placed(struct lowering *l, int value, int device, int begin, int end) {
    int op = l->g->values[value].producer;
    if (lower_is_partial(l, value)) {
        int in[STEP_MAX_IN], n = gather_partials(l, value, device, begin, end, in);
        emit_sum(l, value, device, begin, end, in, n);
        return;
    }
    for (int i = l->plan->first[op]; i < l->plan->first[op + 1]; i++) {
        const struct plan_part *p = &l->plan->parts[i];
        struct range c = lower_part_columns(l, p);
        int from = max_int(begin, c.begin), to = min_int(end, c.end);
        if (from < to) copy_range(l, value, p->device, device, from, to);
    }
}

/* Whole groups (heads, or everything for a norm over the row) around a range. */
static struct range group_range(const struct graph *g, const struct graph_op *op, int begin,
                                int end) {
    int group = 1;
    if (op->kind == OP_NORM) group = op->p.norm.group;
    if (op->kind == OP_ROPE) group = op->p.rope.head_dim;
    if (op->kind == OP_ROUTE) group = g->values[op->out].width;
    end = min_int(g->values[op->out].width, (end + group - 1) / group * group);
    return (struct range){begin / group * group, end};
}

/* Columns of input i that columns `out` of an op without matrix are made of. */
static struct range input_range(const struct graph *g, const struct graph_op *op, int i,
                                struct range out) {
    if (op->kind == OP_ROUTE) return (struct range){0, g->values[op->in[i]].width};
    if (op->kind == OP_GATED && i == 0 && op->p.gated.one_gate) return (struct range){0, 1};
    if (op->kind == OP_SLICE) {
        const struct slice_params *p = &op->p.slice;
        int last = out.end - 1;
        return (struct range){out.begin / p->n * p->group + p->first + out.begin % p->n,
                              last / p->n * p->group + p->first + last % p->n + 1};
    }
    return out;
}

/* Columns that would have to move for `device` to compute the op's range. */
static int64_t missing_columns(const struct lowering *l, const struct graph_op *op, int device,
                               struct range out) {
    int64_t columns = 0;
    for (int i = 0; i < op->n_in; i++) {
        const struct value_state *v = &l->values[op->in[i]];
        struct range r = input_range(l->g, op, i, out);
        int missing = ranges_missing_count(&v->have[device], r.begin, r.end);
        int copies = 1;
        if (lower_is_partial(l, op->in[i])) {
            copies = 0;
            for (int d = 0; d < l->n_devices; d++)
                copies += d != device && v->partial[d] >= 0;
        }
        columns += (int64_t)missing * copies;
    }
    return columns;
}

/* A route is a choice, which all must share: it is computed by whoever needs it first. */
static int cheapest_device(const struct lowering *l, const struct graph_op *op, int device,
                           struct range r) {
    int best = device;
    for (int d = 0; op->kind == OP_ROUTE && d < l->n_devices; d++)
        if (l->values[op->out].have[d].n > 0) return d;
    int64_t least = missing_columns(l, op, device, r);
    for (int d = 0; d < l->n_devices; d++) {
        if (d == device) continue;
        int64_t cost = missing_columns(l, op, d, r) + (r.end - r.begin);
        if (cost < least) least = cost, best = d;
    }
    return best;
}

/* Computes columns of an op without matrix or cache here. */
static void compute(struct lowering *l, const struct graph_op *op, int device, struct range r) {
    int in[STEP_MAX_IN], n = 0;
    for (int i = 0; i < op->n_in; i++) { /* a residual add takes partial sums as they come */
        int v = op->in[i];
        struct range missing, from = input_range(l->g, op, i, r);
        bool whole = !ranges_missing(&l->values[v].have[device], from.begin, from.end, &missing);
        if (op->kind == OP_ADD && lower_is_partial(l, v) && !whole) {
            n += gather_partials(l, v, device, from.begin, from.end, in + n);
        } else {
            lower_require(l, v, device, from.begin, from.end);
            in[n++] = lower_value_buffer(l, v, device);
        }
    }
    if (op->kind == OP_ADD) {
        emit_sum(l, op->out, device, r.begin, r.end, in, n);
        return;
    }
    struct step step = {.kind = STEP_OP,
                        .op = op,
                        .n_in = n,
                        .begin = r.begin,
                        .end = r.end,
                        .rows = l->g->values[op->out].rows,
                        .in_rows = l->g->values[op->in[0]].rows};
    int out = lower_value_buffer(l, op->out, device);
    int shard = -1, bias = -1;
    if (op->weight >= 0) shard = lower_vector_shard(l, device, op->weight, 0, op->p.norm.group);
    if (op->bias >= 0) bias = lower_vector_shard(l, device, op->bias, 0, op->p.route.n_experts);
    struct lower_step *s = lower_add_step(l, device, step, in, out);
    s->s.shard = shard;
    s->s.bias = bias;
    lower_made(l, op->out, device, r.begin, r.end);
}

void lower_require(struct lowering *l, int value, int device, int begin, int end) {
    const struct graph_op *op = &l->g->ops[l->g->values[value].producer];
    struct range missing;
    int left = end - begin; /* every turn brings at least one column */
    while (ranges_missing(&l->values[value].have[device], begin, end, &missing)) {
        REQUIRE(left-- > 0);
        if (op_is_placed(op)) {
            provide_placed(l, value, device, missing.begin, missing.end);
            continue;
        }
        struct range r = group_range(l->g, op, missing.begin, missing.end);
        int where = cheapest_device(l, op, device, r);
        if (where == device) {
            compute(l, op, device, r);
        } else {
            lower_require(l, value, where, missing.begin, missing.end);
            copy_range(l, value, where, device, missing.begin, missing.end);
        }
    }
}
