/* The order in which operators and their parts are emitted, and lowering as a whole. */
#include "run/lower_internal.h"

#include <stdlib.h>

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
        if (is_among(p, which)) lower_part_inputs(l, &neighbours);
    }
    for (int streamed = 0; streamed < 2; streamed++)
        for (const struct plan_part *p = begin; p < end; p++)
            if (is_among(p, which) && p->streamed == (bool)streamed) lower_part(l, p, p == begin);
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
    l->logits_buffer = lower_add_buffer(l, -1, 0, g->n_vocab, true);
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
    if (lower_is_partial(&l, g->logits)) lower_require(&l, g->logits, 0, 0, g->n_vocab);
    lower_finish(&l);
    discard(&l);
    return l.program;
}
