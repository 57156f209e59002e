#include "plan/plan.h"

#include <stdlib.h>
#include <string.h>
#include "plan/names.h"

struct plan_maker {
    struct arena *arena;
    const struct graph *g;
    struct plan *plan;
    int row_group;
    size_t cap;
};

static void begin(struct plan_maker *m, struct arena *arena, const struct graph *g, int n_devices,
                  int row_group) {
    *m = (struct plan_maker){.arena = arena, .g = g, .row_group = row_group};
    m->plan = ARENA_NEW(arena, struct plan);
    m->plan->n_devices = n_devices;
    m->plan->first = ARENA_ARRAY(arena, int, g->n_ops + 1);
    /* a device has at most two ranges of an axis here, so this is enough */
    m->plan->parts = ARENA_ARRAY(arena, struct plan_part, 2 * (size_t)g->n_ops * (size_t)n_devices);
    m->plan->n_slots = ARENA_ARRAY(arena, int, n_devices);
}

/* Parts are added op by op, ascending; empty ranges are left out. */
static void add_part(struct plan_maker *m, int op, int device, enum axis axis, int from, int to) {
    if (from < to)
        m->plan->parts[m->plan->n_parts++] =
            (struct plan_part){op, device, axis, from, to, .streamed = false};
}

enum axis plan_whole_axis(const struct graph_op *op) {
    if (op->kind == OP_EXPERTS) return AXIS_EXPERTS;
    return op_has_axis(op, AXIS_HEADS) ? AXIS_HEADS : AXIS_ROWS;
}

static void add_whole(struct plan_maker *m, int i, int device) {
    enum axis axis = plan_whole_axis(&m->g->ops[i]);
    add_part(m, i, device, axis, 0, op_axis_length(m->g, &m->g->ops[i], axis));
}

/* Borders: device d has units [unit[d], unit[d + 1]) of the op's block. */
static void add_units(struct plan_maker *m, int i, const int *unit) {
    const struct graph_op *op = &m->g->ops[i];
    for (int d = 0; d < m->plan->n_devices; d++)
        add_part(m, i, d, op->unit_axis, unit[d] * op->unit_elements,
                 unit[d + 1] * op->unit_elements);
}

struct plan *plan_whole(struct arena *arena, const struct graph *g, int n_devices, int device) {
    struct plan_maker m;
    begin(&m, arena, g, n_devices, 1);
    for (int i = 0; i < g->n_ops; i++) {
        m.plan->first[i] = m.plan->n_parts;
        if (op_is_placed(&g->ops[i])) add_whole(&m, i, device);
    }
    m.plan->first[g->n_ops] = m.plan->n_parts;
    return m.plan;
}

struct plan *plan_of_homes(struct arena *arena, const struct graph *g, int n_devices,
                           const int *home) {
    struct plan_maker m;
    begin(&m, arena, g, n_devices, 1);
    for (int i = 0; i < g->n_ops; i++) {
        m.plan->first[i] = m.plan->n_parts;
        if (op_is_placed(&g->ops[i])) add_whole(&m, i, home[i]);
    }
    m.plan->first[g->n_ops] = m.plan->n_parts;
    return m.plan;
}

struct plan *plan_even(struct arena *arena, const struct graph *g, int n_devices) {
    struct plan_maker m;
    begin(&m, arena, g, n_devices, 1);
    int *unit = ARENA_ARRAY(arena, int, n_devices + 1);
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        m.plan->first[i] = m.plan->n_parts;
        if (!op_is_placed(op)) continue;
        if (op->block < 0) { /* the embedding has no units */
            add_whole(&m, i, 0);
            continue;
        }
        int n_units = g->blocks[op->block].n_units;
        if (n_units < n_devices) {
            add_whole(&m, i, op->block % n_devices);
            continue;
        }
        for (int d = 0; d <= n_devices; d++)
            unit[d] = (int)((int64_t)n_units * d / n_devices);
        add_units(&m, i, unit);
    }
    m.plan->first[g->n_ops] = m.plan->n_parts;
    return m.plan;
}

/* n_devices + 1 ascending borders in [0, n], in multiples of step. */
static void random_borders(struct rng *rng, int n_devices, int n, int step, int *border) {
    border[0] = 0;
    border[n_devices] = n;
    for (int d = 1; d < n_devices; d++)
        border[d] = (int)rng_below(rng, (uint32_t)(n / step + 1)) * step;
    for (int d = 2; d < n_devices; d++) /* insertion sort: devices are few */
        for (int e = d; e > 1 && border[e - 1] > border[e]; e--) {
            int swap = border[e];
            border[e] = border[e - 1], border[e - 1] = swap;
        }
}

/* The op by itself: whole, or its rows, columns, heads or experts cut anywhere legal. */
static void add_random_op(struct plan_maker *m, int i, struct rng *rng, int *border) {
    const struct graph_op *op = &m->g->ops[i];
    if (op->kind == OP_EMBED || rng_below(rng, 2) == 0) {
        add_whole(m, i, (int)rng_below(rng, (uint32_t)m->plan->n_devices));
        return;
    }
    enum axis axis = plan_whole_axis(op);
    int step = 1;
    if (op->kind == OP_MATMUL) {
        if (rng_below(rng, 2)) axis = AXIS_COLS;
        step = axis == AXIS_ROWS ? m->row_group
                                 : dtype_info(m->g->weights[op->weight].dtype)->block_elements;
    }
    random_borders(rng, m->plan->n_devices, op_axis_length(m->g, op, axis), step, border);
    for (int d = 0; d < m->plan->n_devices; d++)
        add_part(m, i, d, axis, border[d], border[d + 1]);
}

/* Borders of a part are multiples of this. */
static int border_step(const struct graph *g, int row_group, const struct plan_part *p) {
    const struct graph_op *op = &g->ops[p->op];
    if (op->kind != OP_MATMUL) return 1;
    return p->axis == AXIS_ROWS ? row_group
                                : dtype_info(g->weights[op->weight].dtype)->block_elements;
}

/* A device streams nothing, every second part or all of them. */
static void stream_at_random(const struct plan_maker *m, int device, struct rng *rng) {
    static const int n_slots[] = {1, 2, 3, 8};
    int share = (int)rng_below(rng, 3);
    m->plan->n_slots[device] = n_slots[rng_below(rng, COUNT_OF(n_slots))];
    for (int i = 0; i < m->plan->n_parts && share; i++) {
        struct plan_part *p = &m->plan->parts[i];
        if (p->device != device || !op_can_stream(&m->g->ops[p->op])) continue;
        p->streamed = share == 2 || rng_below(rng, 2);
    }
}

/* Where to cut a streamed part in two, or its end: not at all; units of a block alike. stays: the
 * first half does. */
static int draw_cut(const struct plan_maker *m, const struct plan_part *p, uint64_t seed,
                    struct rng *rng, bool *stays) {
    const struct graph_op *op = &m->g->ops[p->op];
    int step = border_step(m->g, m->row_group, p), each = op->unit_elements;
    struct rng of_block;
    if (op->block >= 0 && each > 0 && p->axis == op->unit_axis && p->begin % each == 0 &&
        p->end % each == 0) {
        rng_seed(&of_block, seed + (uint64_t)op->block * 64 + (uint64_t)p->device);
        rng = &of_block;
        step = each;
    }
    int n = (p->end - p->begin - 1) / step;
    *stays = rng_below(rng, 2);
    if (n < 1 || (rng != &of_block && rng_below(rng, 3))) return p->end;
    return p->begin + step * (1 + (int)rng_below(rng, (uint32_t)n));
}

/* Cuts some of the streamed parts in two, of which the first stays on the device, or neither, and
 * some of the others, which both stay; in half of all plans those of a block are a lot. */
static void cut_streamed(const struct plan_maker *m, struct rng *rng) {
    struct plan *plan = m->plan;
    int n_parts = plan->n_parts, op = 0;
    uint64_t seed = rng_next(rng);
    bool lots = rng_below(rng, 2), stays;
    struct plan_part *from = xcalloc((size_t)n_parts + 1, sizeof *from);
    memcpy(from, plan->parts, (size_t)n_parts * sizeof *from);
    plan->n_parts = 0;
    for (int i = 0; i < n_parts; i++) {
        for (; op <= from[i].op; op++)
            plan->first[op] = plan->n_parts;
        struct plan_part *p = &plan->parts[plan->n_parts++];
        *p = from[i];
        if (!p->streamed && (!op_can_stream(&m->g->ops[p->op]) || rng_below(rng, 4))) continue;
        if (lots && p->streamed) p->lot = m->g->ops[p->op].block + 1;
        int cut = draw_cut(m, p, seed, rng, &stays);
        if (cut == p->end) continue;
        p[1] = p[0];
        p->end = p[1].begin = cut;
        if (stays) p->streamed = false, p->lot = 0;
        plan->n_parts++;
    }
    for (; op <= m->g->n_ops; op++)
        plan->first[op] = plan->n_parts;
    free(from);
}

struct plan *plan_random(struct arena *arena, const struct graph *g, int n_devices, int row_group,
                         plan_devices streaming, struct rng *rng) {
    enum { WHOLE, UNITS, FREE, N_MODES };
    struct plan_maker m;
    begin(&m, arena, g, n_devices, row_group);
    int *border = ARENA_ARRAY(arena, int, n_devices + 1);
    int *unit = ARENA_ARRAY(arena, int, n_devices + 1);
    int block = -1, mode = FREE, device = 0;
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        m.plan->first[i] = m.plan->n_parts;
        if (!op_is_placed(op)) continue;
        if (op->block != block && op->block >= 0) {
            mode = (int)rng_below(rng, N_MODES);
            device = (int)rng_below(rng, (uint32_t)n_devices);
            random_borders(rng, n_devices, g->blocks[op->block].n_units, 1, unit);
        }
        block = op->block;
        if (block < 0 || mode == FREE)
            add_random_op(&m, i, rng, border);
        else if (mode == WHOLE)
            add_whole(&m, i, device);
        else
            add_units(&m, i, unit);
    }
    m.plan->first[g->n_ops] = m.plan->n_parts;
    for (int d = 0; d < n_devices; d++)
        if (streaming >> d & 1) stream_at_random(&m, d, rng);
    if (streaming) cut_streamed(&m, rng);
    return m.plan;
}

/* One of the devices; -1: there are none. */
static int draw_device(plan_devices devices, int n_devices, struct rng *rng) {
    int n = 0, found[32];
    for (int d = 0; d < n_devices; d++)
        if (devices >> d & 1) found[n++] = d;
    return n ? found[rng_below(rng, (uint32_t)n)] : -1;
}

/* Devices without a part of the op that stays there. */
static plan_devices without_part(const struct plan *plan, int op) {
    plan_devices devices = ~0U;
    for (int i = plan->first[op]; i < plan->first[op + 1]; i++)
        if (!plan->parts[i].streamed) devices &= ~(1U << plan->parts[i].device);
    return devices;
}

struct plan *plan_random_prompts(struct arena *arena, const struct graph *g,
                                 const struct plan *decode, plan_devices streaming,
                                 plan_devices hosts, struct rng *rng) {
    static const int n_slots[] = {1, 2, 3, 8};
    struct plan *plan = ARENA_NEW(arena, struct plan);
    bool all = rng_below(rng, 2), lots = rng_below(rng, 2);
    *plan = *decode;
    plan->prompts = NULL;
    plan->prompts_from = 0;
    plan->parts = ARENA_ARRAY(arena, struct plan_part, decode->n_parts);
    plan->n_slots = ARENA_ARRAY(arena, int, decode->n_devices);
    memcpy(plan->parts, decode->parts, sizeof *plan->parts * (size_t)decode->n_parts);
    for (int d = 0; d < decode->n_devices; d++)
        if (streaming >> d & 1) plan->n_slots[d] = n_slots[rng_below(rng, COUNT_OF(n_slots))];
    for (int i = 0; i < plan->n_parts; i++) {
        struct plan_part *p = &plan->parts[i];
        int device = -1;
        if (!op_can_stream(&g->ops[p->op])) continue;
        if (p->streamed && rng_below(rng, 4) == 0)
            device = draw_device(hosts & without_part(plan, p->op), plan->n_devices, rng);
        else if (!p->streamed && hosts >> p->device & 1 && (all || rng_below(rng, 2)))
            device = draw_device(streaming, plan->n_devices, rng);
        if (device >= 0) p->device = device, p->streamed = !p->streamed;
        p->lot = p->streamed && lots ? g->ops[p->op].block + 1 : 0;
    }
    return plan;
}

/* Does a later one of the same op, before `end`, go to the part's device? */
static bool comes_again(const struct plan *plan, int part, int end) {
    for (int i = part + 1; i < end; i++)
        if (plan->parts[i].device == plan->parts[part].device) return true;
    return false;
}

/* The end of an op, whose length no border divides, stays with its device: all other sizes are
 * multiples of what borders are, so they still are where a range has moved. */
static void gather(const struct plan *from, int op, plan_devices in_place, struct plan *to) {
    int held[32] = {0}, at = 0; /* by device: of earlier parts */
    to->first[op] = to->n_parts;
    for (int i = from->first[op]; i < from->first[op + 1]; i++) {
        struct plan_part p = from->parts[i];
        int n = p.end - p.begin;
        if (in_place >> p.device & 1) {
            n = held[p.device] += n;
            if (comes_again(from, i, from->first[op + 1])) continue;
            p.streamed = false, p.lot = 0;
        }
        p.begin = at, p.end = at += n;
        to->parts[to->n_parts++] = p;
    }
}

/* Parts of a plan, or of its partner, with homes that both have on devices in host memory. */
static struct plan_part *settle(struct arena *arena, const struct plan *decode,
                                const struct plan *which, plan_devices in_place) {
    struct plan_part *parts = ARENA_ARRAY(arena, struct plan_part, which->n_parts);
    for (int i = 0; i < which->n_parts; i++) {
        const struct plan_part *p = &decode->parts[i], *q = &which->parts[i];
        parts[i] =
            (p->streamed && in_place >> p->device & 1) || (q->streamed && in_place >> q->device & 1)
                ? *p
                : *q;
    }
    return parts;
}

static struct plan *leave_in_place(struct arena *arena, const struct graph *g,
                                   const struct plan *decode, const struct plan *which,
                                   plan_devices in_place) {
    struct plan *to = ARENA_NEW(arena, struct plan), from = *which;
    from.parts = settle(arena, decode, which, in_place);
    to->n_devices = from.n_devices;
    to->parts = ARENA_ARRAY(arena, struct plan_part, from.n_parts);
    to->first = ARENA_ARRAY(arena, int, g->n_ops + 1);
    to->n_slots = ARENA_ARRAY(arena, int, from.n_devices);
    for (int d = 0; d < from.n_devices; d++)
        to->n_slots[d] = in_place >> d & 1 ? 0 : from.n_slots[d];
    for (int op = 0; op < g->n_ops; op++)
        gather(&from, op, in_place, to);
    to->first[g->n_ops] = to->n_parts;
    return to;
}

static bool same_homes(const struct plan *a, const struct plan *b) {
    for (int i = 0; i < a->n_parts; i++)
        if (a->parts[i].device != b->parts[i].device ||
            a->parts[i].streamed != b->parts[i].streamed)
            return false;
    return true;
}

struct plan *plan_in_place(struct arena *arena, const struct graph *g, const struct plan *from,
                           plan_devices in_place) {
    REQUIRE(from->n_devices <= 32);
    struct plan *to = leave_in_place(arena, g, from, from, in_place);
    if (!from->prompts) return to;
    const struct plan *prompts = leave_in_place(arena, g, from, from->prompts, in_place);
    if (same_homes(to, prompts)) return to;
    to->prompts = prompts;
    to->prompts_from = from->prompts_from;
    return to;
}

static int64_t weight_bytes(const struct graph_weight *w, const struct plan_part *p) {
    int n_rows = p->axis == AXIS_ROWS ? p->end - p->begin : w->n_rows;
    int n_cols = p->axis == AXIS_COLS ? p->end - p->begin : w->n_cols;
    int64_t bytes = dtype_row_bytes(w->dtype, n_cols) * n_rows;
    return p->axis == AXIS_EXPERTS ? bytes * (p->end - p->begin) : bytes;
}

int64_t plan_part_bytes(const struct graph *g, const struct plan_part *p) {
    const struct graph_op *op = &g->ops[p->op];
    if (op->kind == OP_ATTENTION) return 0;
    if (op->kind != OP_EXPERTS) return weight_bytes(&g->weights[op->weight], p);
    int64_t bytes = 0;
    for (int i = 0; i < N_EXPERT_WEIGHTS; i++)
        bytes += weight_bytes(&g->weights[op->p.experts.weights[i]], p);
    return bytes;
}

/* What stays on a device is one range of a cache or a state. Weights may be cut there: another plan
 * streams some of them (plan_check_pair). */
static ats_status check_devices(const struct plan *plan, int from, int to,
                                const struct graph_op *op, const char *name) {
    if (op_can_stream(op)) return ATS_OK;
    for (int p = from; p < to; p++)
        for (int q = from; q < p; q++)
            if (plan->parts[p].device == plan->parts[q].device && !plan->parts[p].streamed &&
                !plan->parts[q].streamed)
                return fail(ATS_BAD_ARGUMENT, "device %d has two parts of %s",
                            plan->parts[p].device, name);
    return ATS_OK;
}

static ats_status check_streamed(const struct plan *plan, const struct plan_part *p,
                                 const struct graph_op *op, const char *name,
                                 plan_devices streaming) {
    if (!p->streamed) return ATS_OK;
    if (!op_can_stream(op)) return fail(ATS_BAD_ARGUMENT, "%s cannot be streamed", name);
    if (!(streaming >> p->device & 1))
        return fail(ATS_BAD_ARGUMENT, "the plan streams %s to device %d, which cannot stream", name,
                    p->device);
    if (plan->n_slots[p->device] < 1)
        return fail(ATS_BAD_ARGUMENT, "the plan streams %s to device %d, but gives it no slot",
                    name, p->device);
    return ATS_OK;
}

static ats_status check_op(const struct graph *g, const struct plan *plan, int i, const char *name,
                           int row_group, plan_devices streaming) {
    const struct graph_op *op = &g->ops[i];
    int from = plan->first[i], to = plan->first[i + 1], at = 0;
    if (from == to) return fail(ATS_BAD_ARGUMENT, "the plan has no home for %s", name);
    if (to - from > PLAN_MAX_PARTS)
        return fail(ATS_BAD_ARGUMENT, "the plan cuts %s into %d parts, more than %d", name,
                    to - from, PLAN_MAX_PARTS);
    enum axis axis = plan->parts[from].axis;
    int length = op_axis_length(g, op, axis);
    int border = border_step(g, row_group, &plan->parts[from]);
    if (!op_has_axis(op, axis) || (op->kind == OP_EMBED && to - from > 1))
        return fail(ATS_BAD_ARGUMENT, "the plan cuts %s along an axis it does not have", name);
    for (int p = from; p < to; p++) {
        const struct plan_part *part = &plan->parts[p];
        bool legal = part->begin == at && part->end > part->begin && part->end <= length &&
                     part->axis == axis && part->device >= 0 && part->device < plan->n_devices &&
                     (part->end == length || part->end % border == 0);
        if (!legal)
            return fail(ATS_BAD_ARGUMENT, "the plan's range %d to %d of %s is not legal",
                        part->begin, part->end, name);
        TRY(check_streamed(plan, part, op, name, streaming));
        at = part->end;
    }
    if (at != length)
        return fail(ATS_BAD_ARGUMENT, "the plan covers %d of %d of %s", at, length, name);
    return check_devices(plan, from, to, op, name);
}

ats_status plan_check(const struct graph *g, const struct plan *plan, int row_group,
                      plan_devices streaming) {
    struct arena scratch = {0};
    ats_status status = ATS_OK;
    for (int i = 0; status == ATS_OK && i < g->n_ops; i++)
        if (op_is_placed(&g->ops[i]))
            status = check_op(g, plan, i, plan_name(&scratch, g, &g->ops[i]), row_group, streaming);
    arena_free(&scratch);
    return status;
}

/* Between a processor and a stream the bytes stay where they are; between two processors, or the
 * streams of two devices, they would not. */
static bool same_bytes(const struct plan_part *p, const struct plan_part *q, plan_devices hosts) {
    if (p->axis != q->axis || p->begin != q->begin || p->end != q->end) return false;
    if (p->streamed == q->streamed) return p->device == q->device;
    const struct plan_part *stays = p->streamed ? q : p;
    return hosts >> stays->device & 1;
}

static ats_status fail_pair(const struct graph *g, const struct graph_op *op) {
    struct arena scratch = {0};
    ats_status status =
        fail(ATS_BAD_ARGUMENT, "%s has other homes or ranges in prompts than in decode",
             plan_name(&scratch, g, op));
    arena_free(&scratch);
    return status;
}

ats_status plan_check_pair(const struct graph *g, const struct plan *decode,
                           const struct plan *prompts, int row_group, plan_devices streaming,
                           plan_devices hosts) {
    if (decode->n_devices != prompts->n_devices)
        return fail(ATS_BAD_ARGUMENT, "the plan of prompts has %d devices, that of decode %d",
                    prompts->n_devices, decode->n_devices);
    TRY(plan_check(g, decode, row_group, streaming));
    TRY(plan_check(g, prompts, row_group, streaming));
    for (int i = 0; i < g->n_ops; i++) {
        if (!op_is_placed(&g->ops[i])) continue;
        int n = decode->first[i + 1] - decode->first[i];
        bool same = prompts->first[i + 1] - prompts->first[i] == n;
        for (int k = 0; same && k < n; k++)
            same = same_bytes(&decode->parts[decode->first[i] + k],
                              &prompts->parts[prompts->first[i] + k], hosts);
        if (!same) return fail_pair(g, &g->ops[i]);
    }
    return ATS_OK;
}
