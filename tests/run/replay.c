#include "replay.h"

#include "support.h"

#define POISON (-1)
#define WHOLE  (-1)

/* What a float is. */
struct cell {
    int value;  /* of the graph; POISON: nothing */
    int part;   /* the op's parts whose sum it is, as bits, or WHOLE */
    int line;   /* token, or wanted row */
    int column; /* of the value */
    int step;   /* that wrote it */
    int read;   /* last step that read it */
};

/* What all floats that a step writes are, but for line and column. */
struct content {
    int value, part;
};

struct replay {
    const struct replay_case *c;
    struct cell *exchange, **local;
    size_t n_exchange;
    int *last_reader, *n_readers; /* (n_steps) of what the step wrote */
    struct content *wrote;        /* (n_steps) */
    int step;                     /* being run */
};

static int step_lines(const struct replay *r, bool rows) {
    return rows ? r->c->n_rows : r->c->n_tokens;
}

/* Wanted row j is this token: the last ones, ascending. */
static int row_token(const struct replay *r, int j) {
    return r->c->n_tokens - r->c->n_rows + j;
}

static struct cell *cells_open(size_t n) {
    struct cell *cells = calloc(n + 1, sizeof *cells);
    for (size_t i = 0; i < n; i++)
        cells[i] = (struct cell){.value = POISON, .step = -1, .read = -1};
    return cells;
}

static struct cell *cell_at(struct replay *r, const struct span *s, int line, int column) {
    const struct program *p = r->c->program;
    int device = p->steps[r->step].device;
    bool local = s->space == SPACE_LOCAL;
    int64_t bytes = local ? p->local_bytes[device] : p->exchange_bytes;
    int64_t at = s->offset_bytes / 4 + (int64_t)line * s->stride + column - s->first;
    assert_true(s->offset_bytes % 64 == 0);
    assert_true(column >= s->first && column < s->first + s->stride);
    if (at < 0 || 4 * at + 4 > bytes) fail_msg("step %d leaves its memory", r->step);
    return local ? &r->local[device][at] : &r->exchange[at];
}

static const struct cell *read_cell(struct replay *r, const struct span *s, int line, int column) {
    struct cell *cell = cell_at(r, s, line, column);
    if (cell->value == POISON)
        fail_msg("step %d reads line %d, column %d, where nothing stands", r->step, line, column);
    cell->read = r->step;
    if (r->last_reader[cell->step] != r->step) r->n_readers[cell->step]++;
    r->last_reader[cell->step] = r->step;
    return cell;
}

static void expect(struct replay *r, const struct span *s, int value, int line, int column) {
    const struct cell *cell = read_cell(r, s, line, column);
    if (cell->value != value || cell->part != WHOLE || cell->line != line || cell->column != column)
        fail_msg("step %d reads value %d (part %d, line %d, column %d) of step %d, expected value "
                 "%d, line %d, column %d",
                 r->step, cell->value, cell->part, cell->line, cell->column, cell->step, value,
                 line, column);
}

static void write_cell(struct replay *r, const struct span *s, int line, int column, int value,
                       int part, int value_line) {
    struct cell *cell = cell_at(r, s, line, column);
    if (cell->read == r->step) fail_msg("step %d writes what it reads", r->step);
    *cell = (struct cell){value, part, value_line, column, r->step, -1};
    r->wrote[r->step] = (struct content){value, part};
}

/* ---- what a step reads ---- */

static void expect_columns(struct replay *r, const struct step *s, int input, int line, int begin,
                           int end) {
    for (int column = begin; column < end; column++)
        expect(r, &s->in[input], s->op->in[input], line, column);
}

static void expect_delta_inputs(struct replay *r, const struct step *s, int line) {
    const struct delta_params *p = &s->op->p.delta;
    assert_int_equal(s->begin, s->head_begin * p->dim_v);
    assert_int_equal(s->end, s->head_end * p->dim_v);
    expect_columns(r, s, 2, line, s->begin, s->end);
    for (int head = s->head_begin; head < s->head_end; head++) {
        int key = p->tiled ? head % p->n_key_heads : head / (p->n_heads / p->n_key_heads);
        for (int i = 0; i < 2; i++)
            expect_columns(r, s, i, line, key * p->dim_k, (key + 1) * p->dim_k);
        for (int i = 3; i < 5; i++)
            expect_columns(r, s, i, line, head, head + 1);
    }
}

static void expect_inputs(struct replay *r, const struct step *s, int line) {
    const struct graph_op *op = s->op;
    switch (op->kind) {
    case OP_EMBED:
        assert_int_equal(s->n_in, 0);
        break;
    case OP_NORM:
        assert_true(s->begin % op->p.norm.group == 0 && s->end % op->p.norm.group == 0);
        expect_columns(r, s, 0, line, s->begin, s->end);
        break;
    case OP_ROPE:
        assert_true(s->begin % op->p.rope.head_dim == 0 && s->end % op->p.rope.head_dim == 0);
        expect_columns(r, s, 0, line, s->begin, s->end);
        break;
    case OP_MATMUL:
        expect_columns(r, s, 0, line, s->in_begin, s->in_end);
        break;
    case OP_GATED:
        if (op->p.gated.one_gate)
            expect_columns(r, s, 0, line, 0, 1);
        else
            expect_columns(r, s, 0, line, s->begin, s->end);
        expect_columns(r, s, 1, line, s->begin, s->end);
        break;
    case OP_ATTENTION: {
        int dim = op->p.attention.head_dim;
        expect_columns(r, s, 0, line, s->begin, s->end);
        expect_columns(r, s, 1, line, s->head_begin * dim, s->head_end * dim);
        expect_columns(r, s, 2, line, s->head_begin * dim, s->head_end * dim);
        break;
    }
    case OP_SLICE:
        for (int column = s->begin; column < s->end; column++) {
            int from = column / op->p.slice.n * op->p.slice.group + op->p.slice.first +
                       column % op->p.slice.n;
            expect_columns(r, s, 0, line, from, from + 1);
        }
        break;
    case OP_CONV:
        expect_columns(r, s, 0, line, s->begin, s->end);
        break;
    case OP_DELTA:
        expect_delta_inputs(r, s, line);
        break;
    case OP_ROWS:
        expect_columns(r, s, 0, row_token(r, line), s->begin, s->end);
        break;
    case OP_ROUTE:
        assert_true(s->begin == 0 && s->end == 2 * op->p.route.n_used);
        expect_columns(r, s, 0, line, 0, op->p.route.n_experts);
        break;
    case OP_EXPERTS:
        expect_columns(r, s, 0, line, 0, r->c->g->values[op->in[0]].width);
        expect_columns(r, s, 1, line, 0, 2 * op->p.experts.n_used);
        break;
    default:
        fail_msg("step %d is a %s", r->step, op_kind_name(op->kind));
    }
}

const struct plan_part *replay_part(const struct replay_case *c, const struct program_step *p) {
    const struct step *s = &p->step;
    int op = (int)(s->op - c->g->ops), n = c->plan->first[op + 1] - c->plan->first[op];
    const struct plan_part *parts = &c->plan->parts[c->plan->first[op]];
    for (int i = 0; i < n; i++) {
        int begin = s->begin;
        if (parts[i].axis == AXIS_COLS) begin = s->in_begin;
        if (parts[i].axis == AXIS_HEADS) begin = s->head_begin;
        if (parts[i].axis == AXIS_EXPERTS) begin = s->expert_begin;
        if (parts[i].device == p->device && parts[i].begin == begin) return &parts[i];
    }
    fail_msg("op %d runs on device %d, which has no such part of it", op, p->device);
    return NULL;
}

static void run_op(struct replay *r, const struct step *s) {
    int part = WHOLE, op = (int)(s->op - r->c->g->ops);
    if (op_is_placed(s->op) && plan_op_is_partial(r->c->plan, op)) {
        const struct plan *plan = r->c->plan;
        const struct program_step *p = &r->c->program->steps[r->step];
        part = 1 << (replay_part(r->c, p) - &plan->parts[plan->first[op]]);
    }
    assert_int_equal(s->rows, r->c->g->values[s->op->out].rows);
    int n_lines = step_lines(r, s->rows);
    for (int line = 0; line < n_lines; line++)
        expect_inputs(r, s, line);
    for (int line = 0; line < n_lines; line++)
        for (int column = s->begin; column < s->end; column++)
            write_cell(r, &s->out, line, column, s->op->out, part, line);
}

/* ---- sums and copies ---- */

/* The device of a sum of parts, which are all of one device. */
static int parts_device(struct replay *r, int value, int part) {
    const struct plan *plan = r->c->plan;
    int from = plan->first[r->c->g->values[value].producer], device = -1;
    for (int i = 0; part >> i; i++) {
        if (!(part >> i & 1)) continue;
        if (device >= 0 && plan->parts[from + i].device != device)
            fail_msg("step %d adds up part of value %d over devices", r->step, value);
        device = plan->parts[from + i].device;
    }
    return device;
}

/* Terms [from, ...) of a sum: a whole element, or partial sums of one in device order: all there
 * are, or two of one device. Returns how many they are. */
static int take_term(struct replay *r, const struct cell *const *x, int n, struct content *term) {
    *term = (struct content){x[0]->value, x[0]->part};
    if (x[0]->part == WHOLE) return 1;
    const struct plan *plan = r->c->plan;
    int op = r->c->g->values[term->value].producer, n_parts = plan->first[op + 1] - plan->first[op];
    int all = (int)((1U << n_parts) - 1), k = 1, last = parts_device(r, term->value, term->part);
    for (; k < n && term->part != all && x[k]->value == term->value; k++) {
        int device = parts_device(r, term->value, x[k]->part);
        if (x[k]->part == WHOLE || (x[k]->part & term->part) || device < last)
            fail_msg("step %d adds partial sums of value %d out of device order", r->step,
                     term->value);
        term->part |= x[k]->part;
        last = device;
    }
    if (term->part == all)
        term->part = WHOLE;
    else
        parts_device(r, term->value, term->part);
    return k;
}

/* What a sum of these cells is. */
static struct content sum_of(struct replay *r, const struct cell *const *x, int n) {
    struct content terms[STEP_MAX_IN] = {{0}};
    int n_terms = 0;
    for (int i = 0; i < n;)
        i += take_term(r, x + i, n - i, &terms[n_terms++]);
    if (n_terms == 1) return terms[0];
    const struct graph *g = r->c->g;
    for (int i = 0; i < g->n_ops; i++)
        if (n_terms == 2 && g->ops[i].kind == OP_ADD && terms[0].part == WHOLE &&
            terms[1].part == WHOLE && g->ops[i].in[0] == terms[0].value &&
            g->ops[i].in[1] == terms[1].value)
            return (struct content){g->ops[i].out, WHOLE};
    fail_msg("step %d adds values that the graph does not add", r->step);
    return terms[0];
}

static void run_sum(struct replay *r, const struct step *s) {
    for (int line = 0; line < step_lines(r, s->rows); line++)
        for (int column = s->begin; column < s->end; column++) {
            const struct cell *x[STEP_MAX_IN];
            for (int i = 0; i < s->n_in; i++) {
                x[i] = read_cell(r, &s->in[i], line, column);
                assert_int_equal(x[i]->line, line);
                assert_int_equal(x[i]->column, column);
            }
            struct content sum = sum_of(r, x, s->n_in);
            write_cell(r, &s->out, line, column, sum.value, sum.part, line);
        }
}

static void run_copy(struct replay *r, const struct step *s) {
    assert_int_equal(s->n_in, 1);
    for (int line = 0; line < step_lines(r, s->rows); line++)
        for (int column = s->begin; column < s->end; column++) {
            struct cell from = *read_cell(r, &s->in[0], line, column);
            assert_int_equal(from.line, line);
            assert_int_equal(from.column, column);
            write_cell(r, &s->out, line, column, from.value, from.part, line);
        }
}

static void run_step(struct replay *r, int step) {
    const struct step *s = &r->c->program->steps[step].step;
    r->step = step;
    if (s->kind == STEP_OP)
        run_op(r, s);
    else if (s->kind == STEP_SUM)
        run_sum(r, s);
    else
        run_copy(r, s);
}

/* ---- a round ---- */

static bool is_ready(const struct program_segment *s, const int *done) {
    if (s->ordinal != done[s->device] + 1) return false;
    for (int i = 0; i < s->n_waits; i++)
        if (done[s->waits[i].device] < s->waits[i].ordinal) return false;
    return true;
}

/* A segment that may run now, drawn among all. */
static int draw_segment(const struct program *p, const int *done, struct rng *rng) {
    int n_ready = 0, drawn = -1;
    for (int i = 0; i < p->n_segments; i++)
        if (is_ready(&p->segments[i], done) && rng_below(rng, (uint32_t)++n_ready) == 0) drawn = i;
    if (drawn < 0) fail_msg("no segment can run: the waits are a circle");
    return drawn;
}

static void check_logits(struct replay *r) {
    const struct graph *g = r->c->g;
    const struct span logits = {SPACE_EXCHANGE, r->c->program->logits_offset_bytes, g->n_vocab, 0};
    for (int line = 0; line < r->c->n_rows; line++)
        for (int column = 0; column < g->n_vocab; column++)
            expect(r, &logits, g->logits, line, column);
}

/* A backend folds a step into its only reader: the count must never be too small. */
static void check_readers(const struct replay *r, const int *n_readers) {
    for (int i = 0; i < r->c->program->n_steps; i++) {
        const struct step *s = &r->c->program->steps[i].step;
        if (s->n_readers < n_readers[i])
            fail_msg("step %d has %d readers, not %d", i, n_readers[i], s->n_readers);
    }
}

/* A round; returns what each step wrote: (n_steps), owned. */
static struct content *run_round(const struct replay_case *c, struct rng *rng) {
    const struct program *p = c->program;
    struct replay r = {.c = c};
    r.exchange = cells_open((size_t)p->exchange_bytes / 4);
    r.local = calloc((size_t)p->n_devices, sizeof *r.local);
    for (int d = 0; d < p->n_devices; d++)
        r.local[d] = cells_open((size_t)p->local_bytes[d] / 4);
    r.last_reader = malloc((size_t)p->n_steps * sizeof *r.last_reader);
    r.n_readers = calloc((size_t)p->n_steps, sizeof *r.n_readers);
    r.wrote = calloc((size_t)p->n_steps, sizeof *r.wrote);
    for (int i = 0; i < p->n_steps; i++)
        r.last_reader[i] = -1;
    int *done = calloc((size_t)p->n_devices, sizeof *done);
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[draw_segment(p, done, rng)];
        for (int j = s->step_begin; j < s->step_end; j++)
            run_step(&r, p->order[j]);
        done[s->device] = s->ordinal;
    }
    check_readers(&r, r.n_readers);
    check_logits(&r);
    for (int d = 0; d < p->n_devices; d++)
        free(r.local[d]);
    free(r.local), free(r.exchange), free(r.last_reader), free(r.n_readers), free(done);
    return r.wrote;
}

void replay_run(const struct replay_case *c, struct rng *rng) {
    free(run_round(c, rng));
}

/* ---- form ---- */

static void check_shard(const struct replay_case *c, int shard, int device, int weight,
                        enum axis axis, int begin, int end) {
    assert_in_range(shard, 0, c->program->n_shards - 1);
    const struct program_shard *s = &c->program->shards[shard];
    assert_int_equal(s->device, device);
    assert_int_equal(s->weight, weight);
    assert_int_equal(s->axis, axis);
    assert_int_equal(s->begin, begin);
    assert_int_equal(s->end, end);
}

static void check_matmul(const struct replay_case *c, const struct program_step *p, int op_index) {
    const struct step *s = &p->step;
    const struct graph_weight *w = &c->g->weights[s->op->weight];
    const struct plan_part *part = replay_part(c, p);
    bool cols = part->axis == AXIS_COLS, partial = plan_op_is_partial(c->plan, op_index);
    assert_int_equal(s->begin, cols ? 0 : part->begin);
    assert_int_equal(s->end, cols ? w->n_rows : part->end);
    assert_int_equal(s->in_begin, cols ? part->begin : 0);
    assert_int_equal(s->in_end, cols ? part->end : w->n_cols);
    if (partial)
        check_shard(c, p->shard, p->device, s->op->weight, AXIS_COLS, s->in_begin, s->in_end);
    else
        check_shard(c, p->shard, p->device, s->op->weight, AXIS_ROWS, s->begin, s->end);
    /* the bias is added once: where rows are cut, with them; to a sum by the first part */
    bool first = part == &c->plan->parts[c->plan->first[op_index]];
    if (s->op->bias >= 0 && (!partial || first))
        check_shard(c, p->bias, p->device, s->op->bias, AXIS_COLS, s->begin, s->end);
    else
        assert_int_equal(p->bias, -1);
}

static void check_attention(const struct replay_case *c, const struct program_step *p,
                            int op_index) {
    const struct plan_part *part = replay_part(c, p);
    assert_int_equal(p->step.head_begin, part->begin);
    assert_int_equal(p->step.head_end, part->end);
    assert_in_range(p->kv, 0, c->program->n_kvs - 1);
    const struct program_kv *kv = &c->program->kvs[p->kv];
    assert_int_equal(kv->device, p->device);
    assert_int_equal(kv->op, op_index);
    assert_int_equal(kv->head_begin, part->begin);
    assert_int_equal(kv->head_end, part->end);
    const struct attention_params *a = &c->g->ops[op_index].p.attention;
    int group = a->n_heads / a->n_kv_heads, sinks = c->g->ops[op_index].weight;
    if (sinks >= 0)
        check_shard(c, p->shard, p->device, sinks, AXIS_COLS, part->begin * group,
                    part->end * group);
    else
        assert_int_equal(p->shard, -1);
}

static void check_experts(const struct replay_case *c, const struct program_step *p) {
    const struct plan_part *part = replay_part(c, p);
    assert_int_equal(p->step.expert_begin, part->begin);
    assert_int_equal(p->step.expert_end, part->end);
    const struct experts_params *e = &p->step.op->p.experts;
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++) {
        check_shard(c, p->experts[i], p->device, e->weights[i], AXIS_EXPERTS, part->begin,
                    part->end);
        if (e->biased)
            check_shard(c, p->expert_biases[i], p->device, e->biases[i], AXIS_EXPERTS, part->begin,
                        part->end);
        else
            assert_int_equal(p->expert_biases[i], -1);
    }
}

/* Filters and gates of just the part, and a state of its own. */
static void check_state(const struct replay_case *c, const struct program_step *p, int op_index) {
    const struct plan_part *part = replay_part(c, p);
    const struct graph_op *op = p->step.op;
    assert_in_range(p->state, 0, c->program->n_states - 1);
    const struct program_state *s = &c->program->states[p->state];
    assert_int_equal(s->device, p->device);
    assert_int_equal(s->op, op_index);
    assert_int_equal(s->begin, part->begin);
    assert_int_equal(s->end, part->end);
    const int per = op->kind == OP_CONV ? op->p.conv.n_taps : 1;
    check_shard(c, p->shard, p->device, op->weight, AXIS_COLS, part->begin * per, part->end * per);
    if (op->kind == OP_DELTA)
        check_shard(c, p->bias, p->device, op->bias, AXIS_COLS, part->begin, part->end);
}

static void check_steps(const struct replay_case *c, int *n_placed) {
    for (int i = 0; i < c->program->n_steps; i++) {
        const struct program_step *p = &c->program->steps[i];
        assert_in_range(p->device, 0, c->program->n_devices - 1);
        if (p->step.kind != STEP_OP) continue;
        int op_index = (int)(p->step.op - c->g->ops);
        /* a choice is made once, whoever needs it */
        if (op_is_placed(p->step.op) || p->step.op->kind == OP_ROUTE) n_placed[op_index]++;
        if (p->step.op->kind == OP_EXPERTS) check_experts(c, p);
        if (p->step.op->kind == OP_ROUTE)
            check_shard(c, p->bias, p->device, p->step.op->bias, AXIS_COLS, 0,
                        p->step.op->p.route.n_experts);
        if (p->step.op->kind == OP_MATMUL) check_matmul(c, p, op_index);
        if (p->step.op->kind == OP_ATTENTION) check_attention(c, p, op_index);
        if (op_has_state(p->step.op)) check_state(c, p, op_index);
        if (p->step.op->kind == OP_EMBED)
            check_shard(c, p->shard, p->device, p->step.op->weight, AXIS_ROWS, 0, c->g->n_vocab);
        if (p->step.op->kind == OP_NORM && p->step.op->weight >= 0)
            check_shard(c, p->shard, p->device, p->step.op->weight, AXIS_COLS, 0,
                        p->step.op->p.norm.group);
    }
}

/* Each step once, in segments of its device; segments are listed in an order that can be submitted
 * as it stands. */
static void check_segments(const struct replay_case *c) {
    const struct program *p = c->program;
    int *seen = calloc((size_t)p->n_steps, sizeof *seen);
    int *done = calloc((size_t)p->n_devices, sizeof *done);
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[i];
        assert_true(s->step_begin < s->step_end);
        for (int j = s->step_begin; j < s->step_end; j++) {
            assert_int_equal(p->steps[p->order[j]].device, s->device);
            assert_int_equal(seen[p->order[j]]++, 0);
            if (j > s->step_begin) assert_true(p->order[j] > p->order[j - 1]);
        }
        for (int j = 0; j < s->n_waits; j++) {
            assert_int_not_equal(s->waits[j].device, s->device);
            assert_true(s->waits[j].ordinal >= 1);
        }
        if (!is_ready(s, done)) fail_msg("segment %d cannot be submitted in the listed order", i);
        done[s->device] = s->ordinal;
    }
    for (int i = 0; i < p->n_steps; i++)
        assert_int_equal(seen[i], 1);
    free(seen), free(done);
}

void replay_check_form(const struct replay_case *c) {
    int *n_placed = calloc((size_t)c->g->n_ops, sizeof *n_placed);
    check_steps(c, n_placed);
    for (int op = 0; op < c->g->n_ops; op++) /* each part runs once */
        assert_int_equal(n_placed[op], c->g->ops[op].kind == OP_ROUTE
                                           ? 1
                                           : c->plan->first[op + 1] - c->plan->first[op]);
    free(n_placed);
    check_segments(c);
}

/* ---- races ---- */

enum { MAX_DEVICES = 8 };
/* A float of the exchange: what stands in it, and who touched it, by device as the ordinal of the
 * last segment (0: never). Those who read or wrote what stands there now are kept apart from those
 * who knew something else in its place. */
struct touched {
    struct content content;
    int line, column;
    int written[MAX_DEVICES], read[MAX_DEVICES];
    int written_before[MAX_DEVICES], read_before[MAX_DEVICES];
};
/* One segment's touching. */
struct toucher {
    const struct replay_case *c;
    struct touched *exchange;
    const struct content *wrote; /* (n_steps), or NULL: nothing that is written counts as equal */
    const struct program_segment *s;
    const int *knows; /* (MAX_DEVICES) ordinals that are done when the segment begins */
    bool race;
};

static bool knows_all(const struct toucher *k, const int *ordinals) {
    for (int d = 0; d < MAX_DEVICES; d++)
        if (d != k->s->device && k->knows[d] < ordinals[d]) return false;
    return true;
}

static bool knows_any(const struct toucher *k, const int *ordinals) {
    for (int d = 0; d < MAX_DEVICES; d++)
        if (ordinals[d] && (d == k->s->device || k->knows[d] >= ordinals[d])) return true;
    return false;
}

/* A reader comes after one that wrote what it means, and nobody who writes something else may come
 * between. */
static void touch_read(struct toucher *k, struct touched *t) {
    k->race |= !knows_any(k, t->written) || !knows_all(k, t->written_before);
    t->read[k->s->device] = k->s->ordinal;
}

/* A writer comes after all who knew something else there. */
static void touch_write(struct toucher *k, struct touched *t, const struct content *content,
                        int line, int column) {
    bool same = content && t->content.value == content->value && t->content.part == content->part &&
                t->line == line && t->column == column;
    for (int d = 0; !same && d < MAX_DEVICES; d++) {
        t->written_before[d] = max_int(t->written_before[d], t->written[d]);
        t->read_before[d] = max_int(t->read_before[d], t->read[d]);
        t->written[d] = t->read[d] = 0;
    }
    k->race |= !knows_all(k, t->written_before) || !knows_all(k, t->read_before);
    if (content) t->content = *content, t->line = line, t->column = column;
    t->written[k->s->device] = k->s->ordinal;
}

static void touch_span(struct toucher *k, int step, const struct span *span, bool write) {
    const struct step *s = &k->c->program->steps[step].step;
    int n_lines = s->rows ? k->c->n_rows : k->c->n_tokens;
    for (int line = 0; span->space == SPACE_EXCHANGE && line < n_lines; line++)
        for (int column = s->begin; column < s->end; column++) {
            struct touched *t = &k->exchange[span->offset_bytes / 4 + (int64_t)line * span->stride +
                                             column - span->first];
            if (write)
                touch_write(k, t, k->wrote ? &k->wrote[step] : NULL, line, column);
            else
                touch_read(k, t);
        }
}

static void touch_step(struct toucher *k, int step) {
    const struct step *s = &k->c->program->steps[step].step;
    for (int i = 0; i < s->n_in; i++) /* only sums and copies read the exchange */
        touch_span(k, step, &s->in[i], false);
    touch_span(k, step, &s->out, true);
}

/* What a segment knows when it begins: what its device knew, and what those knew that it waits for.
 * (n_segments) of it, known up to i. */
static void learn(const struct program *p, int (*knows)[MAX_DEVICES], int i, int left_out) {
    const struct program_segment *s = &p->segments[i];
    for (int k = 0; k < i; k++)
        if (p->segments[k].device == s->device) memcpy(knows[i], knows[k], sizeof *knows);
    knows[i][s->device] = s->ordinal - 1;
    for (int j = 0; j < s->n_waits; j++)
        for (int k = 0; k < i && j != left_out; k++) {
            const struct program_segment *other = &p->segments[k];
            if (other->device != s->waits[j].device || other->ordinal != s->waits[j].ordinal)
                continue;
            for (int d = 0; d < MAX_DEVICES; d++)
                knows[i][d] = max_int(knows[i][d], knows[k][d]);
            knows[i][other->device] = max_int(knows[i][other->device], other->ordinal);
        }
}

/* Segments in the order of submission, against all before them. */
static bool has_race(const struct replay_case *c, const struct content *wrote, int segment,
                     int wait) {
    const struct program *p = c->program;
    assert_true(p->n_devices <= MAX_DEVICES);
    struct touched *exchange = calloc((size_t)p->exchange_bytes / 4 + 1, sizeof *exchange);
    int(*knows)[MAX_DEVICES] = calloc((size_t)p->n_segments, sizeof *knows);
    bool race = false;
    for (int i = 0; i < p->n_segments && !race; i++) {
        const struct program_segment *s = &p->segments[i];
        learn(p, knows, i, i == segment ? wait : -1);
        struct toucher k = {c, exchange, wrote, s, knows[i], false};
        for (int j = s->step_begin; j < s->step_end; j++)
            touch_step(&k, p->order[j]);
        race |= k.race;
    }
    free(exchange), free(knows);
    return race;
}

bool replay_has_race(const struct replay_case *c, int segment, int wait) {
    return has_race(c, NULL, segment, wait);
}

bool replay_needs_wait(const struct replay_case *c, int segment, int wait) {
    struct rng rng;
    rng_seed(&rng, 1); /* any order: what a step writes is the same in all */
    struct content *wrote = run_round(c, &rng);
    bool race = has_race(c, wrote, segment, wait);
    free(wrote);
    return race;
}
