#include "run/lower_internal.h"

#include <stdlib.h>
#include <string.h>

struct range {
    int begin, end;
};
/* Columns of a value that a device holds: disjoint, ascending, apart. */
struct range_set {
    struct range *items;
    size_t n, cap;
};
struct value_state {
    struct range_set *have; /* (n_devices) */
    int *buffer;            /* (n_devices) its place there, -1 */
    int *partial;           /* (n_devices) place of the device's partial sum, -1 */
};
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

static int add_buffer(struct lowering *l, int device, int first, int stride, bool rows) {
    GROW(l->buffers, l->n_buffers, l->cap_buffers, 1);
    struct buffer *b = &l->buffers[l->n_buffers];
    *b = (struct buffer){.device = device,
                         .first_column = first,
                         .stride = stride,
                         .rows = rows,
                         .bytes = (int64_t)4 * stride * (rows ? l->n_rows : l->n_tokens)};
    return (int)l->n_buffers++;
}

/* The place of a value on a device; logits stand in the exchange, one matrix for all devices. */
static int value_buffer(struct lowering *l, int value, int device) {
    int *buffer = &l->values[value].buffer[device];
    const struct graph_value *v = &l->g->values[value];
    if (*buffer < 0) {
        if (value == l->g->logits)
            *buffer = l->logits_buffer;
        else
            *buffer = add_buffer(l, device, 0, v->width, v->rows);
    }
    return *buffer;
}

/* For the sum of one part. */
static int partial_buffer(struct lowering *l, int value, int device) {
    const struct graph_value *v = &l->g->values[value];
    return add_buffer(l, device, 0, v->width, v->rows);
}

/* Appends a step. */
static struct lower_step *add_step(struct lowering *l, int device, struct step step, const int *in,
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

/* The part's sum is made: a device's second one is added to its first. */
static void join_partial(struct lowering *l, int value, int device, int buffer) {
    int *sum = &l->values[value].partial[device];
    const struct graph_value *v = &l->g->values[value];
    if (*sum < 0) {
        *sum = buffer;
        return;
    }
    const int in[2] = {*sum, buffer};
    struct step step = {
        .kind = STEP_SUM, .n_in = 2, .end = v->width, .rows = v->rows, .in_rows = v->rows};
    *sum = partial_buffer(l, value, device);
    add_step(l, device, step, in, *sum);
}

/* Copies columns of a local buffer into the exchange, once per range; early: as soon as they are
 * there. Returns the buffer there. */
static int export_range(struct lowering *l, int buffer, int begin, int end, bool early) {
    for (size_t i = 0; i < l->n_exports; i++) {
        const struct export_entry *e = &l->exports[i];
        if (e->buffer == buffer && e->begin == begin && e->end == end) return e->exchange;
    }
    const struct buffer from = l->buffers[buffer];
    int exchange = add_buffer(l, -1, begin, end - begin, from.rows);
    struct step step = {.kind = STEP_COPY,
                        .n_in = 1,
                        .begin = begin,
                        .end = end,
                        .rows = from.rows,
                        .in_rows = from.rows};
    add_step(l, from.device, step, &buffer, exchange)->early = early;
    GROW(l->exports, l->n_exports, l->cap_exports, 1);
    l->exports[l->n_exports++] = (struct export_entry){buffer, begin, end, exchange};
    l->program->n_copies++;
    return exchange;
}

/* ---- demand ---- */

static void require(struct lowering *l, int value, int device, int begin, int end);

static bool is_partial(const struct lowering *l, int value) {
    return plan_op_is_partial(l->plan, l->g->values[value].producer);
}

static void copy_range(struct lowering *l, int value, int from, int to, int begin, int end) {
    int exchange = export_range(l, value_buffer(l, value, from), begin, end, false);
    bool rows = l->g->values[value].rows;
    struct step step = {
        .kind = STEP_COPY, .n_in = 1, .begin = begin, .end = end, .rows = rows, .in_rows = rows};
    add_step(l, to, step, &exchange, value_buffer(l, value, to));
    ranges_add(&l->values[value].have[to], begin, end);
}

/* Columns of out that a part of a placed op makes. */
static struct range part_columns(const struct lowering *l, const struct plan_part *p) {
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
    add_step(l, device, step, in, value_buffer(l, value, device));
    ranges_add(&l->values[value].have[device], begin, end);
}

/* A placed value comes from the devices whose parts made it. */
static void provide_placed(struct lowering *l, int value, int device, int begin, int end) {
    int op = l->g->values[value].producer;
    if (is_partial(l, value)) {
        int in[STEP_MAX_IN], n = gather_partials(l, value, device, begin, end, in);
        emit_sum(l, value, device, begin, end, in, n);
        return;
    }
    for (int i = l->plan->first[op]; i < l->plan->first[op + 1]; i++) {
        const struct plan_part *p = &l->plan->parts[i];
        struct range c = part_columns(l, p);
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
        if (is_partial(l, op->in[i])) {
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

/* A vector's elements [begin, end) on a device. */
static int vector_shard(struct lowering *l, int device, int weight, int begin, int end);

/* Computes columns of an op without matrix or cache here. */
static void compute(struct lowering *l, const struct graph_op *op, int device, struct range r) {
    int in[STEP_MAX_IN], n = 0;
    for (int i = 0; i < op->n_in; i++) { /* a residual add takes partial sums as they come */
        int v = op->in[i];
        struct range missing, from = input_range(l->g, op, i, r);
        bool whole = !ranges_missing(&l->values[v].have[device], from.begin, from.end, &missing);
        if (op->kind == OP_ADD && is_partial(l, v) && !whole) {
            n += gather_partials(l, v, device, from.begin, from.end, in + n);
        } else {
            require(l, v, device, from.begin, from.end);
            in[n++] = value_buffer(l, v, device);
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
    int out = value_buffer(l, op->out, device);
    int shard = -1, bias = -1;
    if (op->weight >= 0) shard = vector_shard(l, device, op->weight, 0, op->p.norm.group);
    if (op->bias >= 0) bias = vector_shard(l, device, op->bias, 0, op->p.route.n_experts);
    struct lower_step *s = add_step(l, device, step, in, out);
    s->s.shard = shard;
    s->s.bias = bias;
    ranges_add(&l->values[op->out].have[device], r.begin, r.end);
}

/* Makes columns [begin, end) of a value stand in the device's memory. */
static void require(struct lowering *l, int value, int device, int begin, int end) {
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
            require(l, value, where, missing.begin, missing.end);
            copy_range(l, value, where, device, missing.begin, missing.end);
        }
    }
}

/* ---- placed operators ---- */

static int add_shard(struct lowering *l, struct program_shard shard) {
    struct program *p = l->program;
    for (int i = 0; i < p->n_shards && shard.transfer < 0; i++)
        if (memcmp(&p->shards[i], &shard, sizeof shard) == 0) return i;
    GROW(p->shards, p->n_shards, l->cap_shards, 1);
    p->shards[p->n_shards] = shard;
    return p->n_shards++;
}

static int vector_shard(struct lowering *l, int device, int weight, int begin, int end) {
    return add_shard(l, (struct program_shard){device, weight, AXIS_COLS, begin, end, -1});
}

static int add_kv(struct lowering *l, const struct plan_part *p) {
    struct program *program = l->program;
    GROW(program->kvs, program->n_kvs, l->cap_kvs, 1);
    program->kvs[program->n_kvs] = (struct program_kv){p->device, p->op, p->begin, p->end};
    return program->n_kvs++;
}

static void emit_embed(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    int width = l->g->values[op->out].width;
    struct step step = {.kind = STEP_OP, .op = op, .end = width};
    int shard = add_shard(
        l, (struct program_shard){p->device, op->weight, AXIS_ROWS, 0, l->g->n_vocab, -1});
    add_step(l, p->device, step, NULL, value_buffer(l, op->out, p->device))->s.shard = shard;
    ranges_add(&l->values[op->out].have[p->device], 0, width);
}

static void emit_matmul(struct lowering *l, const struct plan_part *p, bool first) {
    const struct graph_op *op = &l->g->ops[p->op];
    const struct graph_weight *w = &l->g->weights[op->weight];
    bool partial = plan_op_is_partial(l->plan, p->op), cols = p->axis == AXIS_COLS;
    struct step step = {.kind = STEP_OP,
                        .op = op,
                        .n_in = 1,
                        .begin = cols ? 0 : p->begin,
                        .end = cols ? w->n_rows : p->end,
                        .in_begin = cols ? p->begin : 0,
                        .in_end = cols ? p->end : w->n_cols,
                        .rows = l->g->values[op->out].rows,
                        .in_rows = l->g->values[op->in[0]].rows};
    /* a part that covers its axis is the whole matrix, whichever axis it names */
    enum axis axis = step.end - step.begin == w->n_rows && step.in_end - step.in_begin == w->n_cols
                         ? AXIS_ROWS
                         : p->axis;
    int from = axis == AXIS_COLS ? p->begin : step.begin;
    int to = axis == AXIS_COLS ? p->end : step.end;
    int transfer = lower_stream_part(l, p);
    int shard =
        add_shard(l, (struct program_shard){p->device, op->weight, axis, from, to, transfer});
    int bias = -1;
    if (op->bias >= 0 && (!partial || first))
        bias = vector_shard(l, p->device, op->bias, step.begin, step.end);
    int in = value_buffer(l, op->in[0], p->device);
    int out = partial ? partial_buffer(l, op->out, p->device) : value_buffer(l, op->out, p->device);
    struct lower_step *s = add_step(l, p->device, step, &in, out);
    s->s.shard = shard;
    s->s.bias = bias;
    lower_stream_step(l, transfer);
    if (partial)
        join_partial(l, op->out, p->device, out);
    else
        ranges_add(&l->values[op->out].have[p->device], step.begin, step.end);
}

static void emit_attention(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    struct range c = part_columns(l, p);
    int in[3];
    for (int i = 0; i < 3; i++)
        in[i] = value_buffer(l, op->in[i], p->device);
    struct step step = {.kind = STEP_OP,
                        .op = op,
                        .n_in = 3,
                        .begin = c.begin,
                        .end = c.end,
                        .head_begin = p->begin,
                        .head_end = p->end};
    int kv = add_kv(l, p), sinks = -1;
    int group = op->p.attention.n_heads / op->p.attention.n_kv_heads;
    if (op->weight >= 0)
        sinks = vector_shard(l, p->device, op->weight, p->begin * group, p->end * group);
    struct lower_step *s = add_step(l, p->device, step, in, value_buffer(l, op->out, p->device));
    s->s.kv = kv;
    s->s.shard = sinks;
    ranges_add(&l->values[op->out].have[p->device], c.begin, c.end);
}

static int expert_shard(struct lowering *l, const struct plan_part *p, int weight, int transfer) {
    return add_shard(
        l, (struct program_shard){p->device, weight, AXIS_EXPERTS, p->begin, p->end, transfer});
}

static void emit_experts(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    bool partial = plan_op_is_partial(l->plan, p->op), rows = l->g->values[op->out].rows;
    int in[2] = {value_buffer(l, op->in[0], p->device), value_buffer(l, op->in[1], p->device)};
    struct step step = {.kind = STEP_OP,
                        .op = op,
                        .n_in = 2,
                        .end = l->g->values[op->out].width,
                        .expert_begin = p->begin,
                        .expert_end = p->end,
                        .rows = rows,
                        .in_rows = rows};
    const struct experts_params *e = &op->p.experts;
    int shards[N_EXPERT_WEIGHTS], biases[N_EXPERT_WEIGHTS] = {-1, -1, -1};
    int transfer = lower_stream_part(l, p);
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        shards[i] = expert_shard(l, p, e->weights[i], transfer);
        if (e->biased) biases[i] = expert_shard(l, p, e->biases[i], -1);
    }
    int out = partial ? partial_buffer(l, op->out, p->device) : value_buffer(l, op->out, p->device);
    struct lower_step *s = add_step(l, p->device, step, in, out);
    memcpy(s->s.experts, shards, sizeof shards);
    memcpy(s->s.expert_biases, biases, sizeof biases);
    lower_stream_step(l, transfer);
    if (partial)
        join_partial(l, op->out, p->device, out);
    else
        ranges_add(&l->values[op->out].have[p->device], 0, step.end);
}

static void emit_state(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    struct program *program = l->program;
    struct range c = part_columns(l, p);
    struct step step = {
        .kind = STEP_OP, .op = op, .n_in = op->n_in, .begin = c.begin, .end = c.end};
    int in[STEP_MAX_IN], per = 1;
    for (int i = 0; i < op->n_in; i++)
        in[i] = value_buffer(l, op->in[i], p->device);
    if (op->kind == OP_CONV) {
        per = op->p.conv.n_taps;
    } else {
        step.head_begin = p->begin;
        step.head_end = p->end;
    }
    GROW(program->states, program->n_states, l->cap_states, 1);
    program->states[program->n_states] = (struct program_state){p->device, p->op, p->begin, p->end};
    int shard = vector_shard(l, p->device, op->weight, p->begin * per, p->end * per), bias = -1;
    if (op->bias >= 0) bias = vector_shard(l, p->device, op->bias, p->begin, p->end);
    struct lower_step *s = add_step(l, p->device, step, in, value_buffer(l, op->out, p->device));
    s->s.state = program->n_states++;
    s->s.shard = shard;
    s->s.bias = bias;
    ranges_add(&l->values[op->out].have[p->device], c.begin, c.end);
}

static void require_delta_inputs(struct lowering *l, const struct plan_part *part) {
    const struct graph_op *op = &l->g->ops[part->op];
    const struct delta_params *p = &op->p.delta;
    int first, last;
    delta_key_heads(p, part->begin, part->end, &first, &last);
    for (int i = 0; i < 2; i++)
        require(l, op->in[i], part->device, first * p->dim_k, last * p->dim_k);
    require(l, op->in[2], part->device, part->begin * p->dim_v, part->end * p->dim_v);
    for (int i = 3; i < 5; i++)
        require(l, op->in[i], part->device, part->begin, part->end);
}

/* Inputs first, for all parts, so that no device's copy waits behind another part's work. */
static void require_inputs(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    if (op->kind == OP_MATMUL) {
        bool cols = p->axis == AXIS_COLS;
        require(l, op->in[0], p->device, cols ? p->begin : 0,
                cols ? p->end : l->g->weights[op->weight].n_cols);
    } else if (op->kind == OP_ATTENTION) {
        const struct attention_params *a = &op->p.attention;
        struct range q = part_columns(l, p);
        require(l, op->in[0], p->device, q.begin, q.end);
        for (int i = 1; i < 3; i++)
            require(l, op->in[i], p->device, p->begin * a->head_dim, p->end * a->head_dim);
    } else if (op->kind == OP_EXPERTS) {
        for (int i = 0; i < 2; i++)
            require(l, op->in[i], p->device, 0, l->g->values[op->in[i]].width);
    } else if (op->kind == OP_CONV) {
        require(l, op->in[0], p->device, p->begin, p->end);
    } else if (op->kind == OP_DELTA) {
        require_delta_inputs(l, p);
    }
}

static void emit_part(struct lowering *l, const struct plan_part *p, bool first) {
    switch (l->g->ops[p->op].kind) {
    case OP_EMBED:
        emit_embed(l, p);
        break;
    case OP_MATMUL:
        emit_matmul(l, p, first);
        break;
    case OP_ATTENTION:
        emit_attention(l, p);
        break;
    case OP_EXPERTS:
        emit_experts(l, p);
        break;
    case OP_CONV:
    case OP_DELTA:
        emit_state(l, p);
        break;
    default:
        REQUIRE(!"a placed op");
    }
}

/* Which of an op's parts are emitted. */
enum parts { STAYING, STREAMED, ALL_PARTS };

static bool is_among(const struct plan_part *p, enum parts which) {
    return which == ALL_PARTS || p->streamed == (which == STREAMED);
}

/* A device computes what it holds before it waits for what is streamed to it. */
static void emit_op(struct lowering *l, int op, enum parts which) {
    const struct plan_part *begin = l->plan->parts + l->plan->first[op];
    const struct plan_part *end = l->plan->parts + l->plan->first[op + 1];
    for (const struct plan_part *p = begin, *next; p < end; p = next) {
        struct plan_part neighbours = *p; /* of one device: what they need is made at once */
        for (next = p + 1; next < end && next->device == p->device; next++)
            if (is_among(p, which) && is_among(next, which))
                neighbours.end = next->end;
            else
                break;
        if (is_among(p, which)) require_inputs(l, &neighbours);
    }
    for (int streamed = 0; streamed < 2; streamed++)
        for (const struct plan_part *p = begin; p < end; p++)
            if (is_among(p, which) && p->streamed == (bool)streamed) emit_part(l, p, p == begin);
}

/* Units of its block that an op's parts of a kind on a device cover; false: not whole ones. */
static bool covered_units(const struct lowering *l, int op, int device, bool streamed,
                          struct range *out) {
    const int each = l->g->ops[op].unit_elements;
    *out = (struct range){0, 0};
    for (int i = l->plan->first[op]; i < l->plan->first[op + 1]; i++) {
        const struct plan_part *p = &l->plan->parts[i];
        if (p->axis != l->g->ops[op].unit_axis) return false;
        if (p->device != device || p->streamed != streamed) continue;
        if (out->end > 0 && out->end != p->begin) return false;
        *out = (struct range){out->end > 0 ? out->begin : p->begin, p->end};
    }
    bool whole = each > 0 && out->begin % each == 0 && out->end % each == 0;
    if (whole) *out = (struct range){out->begin / each, out->end / each};
    return whole;
}

/* Do parts of several of the block's ops come in one lot? */
static bool shares_a_lot(const struct lowering *l, const struct graph_block *b) {
    const struct plan_part *last = NULL;
    for (int i = l->plan->first[b->op_begin]; i < l->plan->first[b->op_end]; i++) {
        const struct plan_part *p = &l->plan->parts[i];
        if (!p->streamed || p->lot == 0) continue;
        if (last && last->device == p->device && last->lot == p->lot && last->op != p->op)
            return true;
        last = p;
    }
    return false;
}

/* A block all of whose ops are divided alike, some device having units that stay there and others
 * that are streamed together: those that stay can be computed through the whole block while the
 * others come. */
static bool can_take_turns(const struct lowering *l, const struct graph_block *b) {
    bool has_both = false;
    if (!shares_a_lot(l, b)) return false;
    for (int d = 0; d < l->n_devices; d++) {
        struct range first[2] = {{0, 0}, {0, 0}};
        int n = 0;
        for (int op = b->op_begin; op < b->op_end; op++) {
            if (!op_is_placed(&l->g->ops[op])) continue;
            for (int k = 0; k < 2; k++) {
                struct range r;
                if (!covered_units(l, op, d, k, &r)) return false;
                if (n > 0 && (r.begin != first[k].begin || r.end != first[k].end)) return false;
                first[k] = r;
            }
            n++;
        }
        has_both |= n > 1 && first[0].end > first[0].begin && first[1].end > first[1].begin;
    }
    return has_both;
}

static void emit_all(struct lowering *l) {
    const struct graph *g = l->g;
    for (int op = 0; op < g->n_ops; op++) {
        const struct graph_block *b = g->ops[op].block >= 0 ? &g->blocks[g->ops[op].block] : NULL;
        if (b && op == b->op_begin && can_take_turns(l, b)) {
            for (int streamed = 0; streamed < 2; streamed++)
                for (op = b->op_begin; op < b->op_end; op++)
                    if (op_is_placed(&g->ops[op])) emit_op(l, op, streamed ? STREAMED : STAYING);
            op = b->op_end - 1;
        } else if (op_is_placed(&g->ops[op])) {
            emit_op(l, op, ALL_PARTS);
        }
    }
}

/* ---- whole ---- */

static void start(struct lowering *l) {
    const struct graph *g = l->g;
    l->program = ARENA_NEW(l->arena, struct program);
    l->program->n_devices = l->n_devices;
    l->values = ARENA_ARRAY(l->arena, struct value_state, g->n_values);
    for (int v = 0; v < g->n_values; v++) {
        struct value_state *s = &l->values[v];
        s->have = ARENA_ARRAY(l->arena, struct range_set, l->n_devices);
        s->buffer = ARENA_ARRAY(l->arena, int, l->n_devices);
        s->partial = ARENA_ARRAY(l->arena, int, l->n_devices);
        for (int d = 0; d < l->n_devices; d++)
            s->buffer[d] = s->partial[d] = -1;
    }
    l->logits_buffer = add_buffer(l, -1, 0, g->n_vocab, true);
    lower_stream_start(l);
}

static void discard(struct lowering *l) {
    for (int v = 0; v < l->g->n_values; v++)
        for (int d = 0; d < l->n_devices; d++)
            free(l->values[v].have[d].items);
    free(l->steps);
    free(l->buffers);
    free(l->exports);
}

struct program *program_lower(struct arena *arena, const struct graph *g, const struct plan *plan,
                              int n_tokens, int n_rows) {
    struct lowering l = {.arena = arena,
                         .g = g,
                         .plan = plan,
                         .n_tokens = n_tokens,
                         .n_rows = n_rows,
                         .n_devices = plan->n_devices};
    start(&l);
    emit_all(&l);
    /* logits made of partial sums (a head cut by columns) are added up on the first device */
    if (is_partial(&l, g->logits)) require(&l, g->logits, 0, 0, g->n_vocab);
    lower_finish(&l);
    discard(&l);
    return l.program;
}
