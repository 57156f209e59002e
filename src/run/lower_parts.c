/* Each kind of placed operator as steps: what its parts need, and what they make. */
#include "run/lower_internal.h"

#include <string.h>

static int add_shard(struct lowering *l, struct program_shard shard) {
    struct program *p = l->program;
    for (int i = 0; i < p->n_shards && shard.transfer < 0; i++)
        if (memcmp(&p->shards[i], &shard, sizeof shard) == 0) return i;
    GROW(p->shards, p->n_shards, l->cap_shards, 1);
    p->shards[p->n_shards] = shard;
    return p->n_shards++;
}

int lower_vector_shard(struct lowering *l, int device, int weight, int begin, int end) {
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
    lower_add_step(l, p->device, step, NULL, lower_value_buffer(l, op->out, p->device))->s.shard =
        shard;
    lower_made(l, op->out, p->device, 0, width);
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
        bias = lower_vector_shard(l, p->device, op->bias, step.begin, step.end);
    int in = lower_value_buffer(l, op->in[0], p->device);
    int out = partial ? lower_partial_buffer(l, op->out, p->device)
                      : lower_value_buffer(l, op->out, p->device);
    struct lower_step *s = lower_add_step(l, p->device, step, &in, out);
    s->s.shard = shard;
    s->s.bias = bias;
    lower_stream_step(l, transfer);
    if (partial)
        lower_join_partial(l, op->out, p->device, out);
    else
        lower_made(l, op->out, p->device, step.begin, step.end);
}

static void emit_attention(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    struct range c = lower_part_columns(l, p);
    int in[3];
    for (int i = 0; i < 3; i++)
        in[i] = lower_value_buffer(l, op->in[i], p->device);
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
        sinks = lower_vector_shard(l, p->device, op->weight, p->begin * group, p->end * group);
    struct lower_step *s =
        lower_add_step(l, p->device, step, in, lower_value_buffer(l, op->out, p->device));
    s->s.kv = kv;
    s->s.shard = sinks;
    lower_made(l, op->out, p->device, c.begin, c.end);
}

static int expert_shard(struct lowering *l, const struct plan_part *p, int weight, int transfer) {
    return add_shard(
        l, (struct program_shard){p->device, weight, AXIS_EXPERTS, p->begin, p->end, transfer});
}

static void emit_experts(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    bool partial = plan_op_is_partial(l->plan, p->op), rows = l->g->values[op->out].rows;
    int in[2] = {lower_value_buffer(l, op->in[0], p->device),
                 lower_value_buffer(l, op->in[1], p->device)};
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
    int out = partial ? lower_partial_buffer(l, op->out, p->device)
                      : lower_value_buffer(l, op->out, p->device);
    struct lower_step *s = lower_add_step(l, p->device, step, in, out);
    memcpy(s->s.experts, shards, sizeof shards);
    memcpy(s->s.expert_biases, biases, sizeof biases);
    lower_stream_step(l, transfer);
    if (partial)
        lower_join_partial(l, op->out, p->device, out);
    else
        lower_made(l, op->out, p->device, 0, step.end);
}

static void emit_state(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    struct program *program = l->program;
    struct range c = lower_part_columns(l, p);
    struct step step = {
        .kind = STEP_OP, .op = op, .n_in = op->n_in, .begin = c.begin, .end = c.end};
    int in[STEP_MAX_IN], per = 1;
    for (int i = 0; i < op->n_in; i++)
        in[i] = lower_value_buffer(l, op->in[i], p->device);
    if (op->kind == OP_CONV) {
        per = op->p.conv.n_taps;
    } else {
        step.head_begin = p->begin;
        step.head_end = p->end;
    }
    GROW(program->states, program->n_states, l->cap_states, 1);
    program->states[program->n_states] = (struct program_state){p->device, p->op, p->begin, p->end};
    int shard = lower_vector_shard(l, p->device, op->weight, p->begin * per, p->end * per),
        bias = -1;
    if (op->bias >= 0) bias = lower_vector_shard(l, p->device, op->bias, p->begin, p->end);
    struct lower_step *s =
        lower_add_step(l, p->device, step, in, lower_value_buffer(l, op->out, p->device));
    s->s.state = program->n_states++;
    s->s.shard = shard;
    s->s.bias = bias;
    lower_made(l, op->out, p->device, c.begin, c.end);
}

static void require_delta_inputs(struct lowering *l, const struct plan_part *part) {
    const struct graph_op *op = &l->g->ops[part->op];
    const struct delta_params *p = &op->p.delta;
    int first, last;
    delta_key_heads(p, part->begin, part->end, &first, &last);
    for (int i = 0; i < 2; i++)
        lower_require(l, op->in[i], part->device, first * p->dim_k, last * p->dim_k);
    lower_require(l, op->in[2], part->device, part->begin * p->dim_v, part->end * p->dim_v);
    for (int i = 3; i < 5; i++)
        lower_require(l, op->in[i], part->device, part->begin, part->end);
}

void lower_part_inputs(struct lowering *l, const struct plan_part *p) {
    const struct graph_op *op = &l->g->ops[p->op];
    if (op->kind == OP_MATMUL) {
        bool cols = p->axis == AXIS_COLS;
        lower_require(l, op->in[0], p->device, cols ? p->begin : 0,
                      cols ? p->end : l->g->weights[op->weight].n_cols);
    } else if (op->kind == OP_ATTENTION) {
        const struct attention_params *a = &op->p.attention;
        struct range q = lower_part_columns(l, p);
        lower_require(l, op->in[0], p->device, q.begin, q.end);
        for (int i = 1; i < 3; i++)
            lower_require(l, op->in[i], p->device, p->begin * a->head_dim, p->end * a->head_dim);
    } else if (op->kind == OP_EXPERTS) {
        for (int i = 0; i < 2; i++)
            lower_require(l, op->in[i], p->device, 0, l->g->values[op->in[i]].width);
    } else if (op->kind == OP_CONV) {
        lower_require(l, op->in[0], p->device, p->begin, p->end);
    } else if (op->kind == OP_DELTA) {
        require_delta_inputs(l, p);
    }
}

void lower_part(struct lowering *l, const struct plan_part *p, bool first) {
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
