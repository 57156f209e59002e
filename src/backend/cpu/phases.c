/* Steps become phases: products that share an input are joined, cheap neighbours folded in, and
 * barriers set only where one phase touches what another does. */
#include "backend/cpu/cpu_internal.h"

#include <stdlib.h>
#include <string.h>
#include "backend/fold.h"

/* How a phase shares a span out: items are `columns` wide, from column `begin` on, line by line
 * (exec.c, run_step) or through all lines (recurrent.c). Phases of the same cut touch what stands
 * there by the same threads. */
struct cut {
    int columns, begin, end; /* columns 0: in no such way */
    bool rows, all_lines;
};

/* Memory touched since the last barrier. Beside the two spaces: things of the backend's own. */
enum { OWN_SHARED_INPUT = 2, OWN_ROPE, OWN_PARTIAL, OWN_KV, OWN_EXPERTS };
struct touch {
    int space;
    int64_t begin, end;
    bool write;
    struct cut cut;
    int stride, first; /* of the span, if it is cut */
};
struct builder {
    const struct cpu *cpu;
    struct backend_segment *s;
    struct touch *touched; /* since the last barrier */
    size_t n_touched, cap_touched;
    struct touch *now; /* by the phase being added */
    size_t n_now, cap_now;
};

static void touch(struct builder *b, int space, int64_t begin, int64_t end, bool write) {
    GROW(b->now, b->n_now, b->cap_now, 1);
    b->now[b->n_now++] = (struct touch){.space = space, .begin = begin, .end = end, .write = write};
}

/* All lines of a span: strides of other columns in between count as touched, which is safe. */
static void touch_cut(struct builder *b, const struct span *s, bool rows, bool write,
                      struct cut cut) {
    int64_t lines = rows ? b->cpu->limits.n_rows : b->cpu->limits.n_tokens;
    touch(b, (int)s->space, s->offset_bytes, s->offset_bytes + 4 * lines * s->stride, write);
    struct touch *t = &b->now[b->n_now - 1];
    t->cut = cut;
    t->stride = s->stride;
    t->first = s->first;
}
static void touch_span(struct builder *b, const struct span *s, bool rows, bool write) {
    touch_cut(b, s, rows, write, (struct cut){0});
}

static void touch_step(struct builder *b, const struct step *s) {
    for (int i = 0; i < s->n_in; i++)
        touch_span(b, &s->in[i], s->in_rows, false);
    touch_span(b, &s->out, s->rows, true);
}

/* Does every item read, of each input, just its own place? */
static bool has_own_items(const struct step *s) {
    if (s->kind != STEP_OP) return s->rows == s->in_rows;
    return step_is(s, OP_NORM) || step_is(s, OP_ROPE) || step_is(s, OP_CONV) ||
           (step_is(s, OP_GATED) && !s->op->p.gated.one_gate);
}

/* The same of a light or recurrent step, whose items are written by the thread that has them. */
static void touch_items(struct builder *b, const struct step *s) {
    const int columns = step_is(s, OP_CONV)    ? CONV_SHARE
                        : step_is(s, OP_DELTA) ? DELTA_BLOCK
                                               : cpu_item_columns(s);
    const bool all_lines = step_is(s, OP_CONV) || step_is(s, OP_DELTA);
    const struct cut cut = {columns, s->begin, s->end, s->rows, all_lines};
    for (int i = 0; i < s->n_in; i++)
        touch_cut(b, &s->in[i], s->in_rows, false, has_own_items(s) ? cut : (struct cut){0});
    touch_cut(b, &s->out, s->rows, true, cut);
}

static bool same_columns(const struct touch *x, const struct touch *y) {
    return x->cut.columns > 0 && y->cut.columns > 0 && x->cut.begin == y->cut.begin &&
           x->cut.end == y->cut.end && x->cut.rows == y->cut.rows && x->begin == y->begin &&
           x->stride == y->stride && x->first == y->first;
}

/* 0: the last one is smaller. */
static int count_items(const struct cut *c) {
    return (c->end - c->begin) % c->columns == 0 ? (c->end - c->begin) / c->columns : 0;
}

static int common_divisor(int a, int b) {
    while (b) {
        int rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Each thread meets only itself where both are cut alike. Where items are of another width, it
 * still does in rounds of one token if the number of threads divides both numbers of items, for its
 * share is then the same columns. Returns what that number must divide: 0 where nothing helps, -1
 * where nothing must be waited for. */
static int meet(const struct touch *x, const struct touch *y) {
    if (x->space != y->space || !(x->write || y->write) || x->begin >= y->end || y->begin >= x->end)
        return -1;
    if (!same_columns(x, y)) return 0;
    if (x->cut.columns == y->cut.columns && x->cut.all_lines == y->cut.all_lines) return -1;
    int n = count_items(&x->cut), m = count_items(&y->cut);
    return n && m ? common_divisor(n, m) : 0;
}

/* Is a barrier needed before what is touched now? *spare: as phase.spare. */
static bool conflict(const struct builder *b, int *spare) {
    bool found = false;
    *spare = 0;
    for (size_t i = 0; i < b->n_now; i++)
        for (size_t j = 0; j < b->n_touched; j++) {
            int divisor = meet(&b->now[i], &b->touched[j]);
            if (divisor < 0) continue;
            *spare = divisor ? common_divisor(divisor, *spare) : 0;
            if (!divisor) return true;
            found = true;
        }
    return found;
}

/* Adds a phase whose memory stands in `now`. */
static struct phase *add_phase(struct builder *b, enum phase_kind kind, const struct step *step) {
    struct backend_segment *s = b->s;
    GROW(s->phases, s->n_phases, s->cap_phases, 1);
    struct phase *p = &s->phases[s->n_phases++];
    *p = (struct phase){.kind = kind, .step = step, .counter = s->n_counters++};
    p->barrier = conflict(b, &p->spare);
    if (p->barrier && !p->spare) b->n_touched = 0;
    GROW(b->touched, b->n_touched, b->cap_touched, b->n_now);
    memcpy(b->touched + b->n_touched, b->now, b->n_now * sizeof *b->now);
    b->n_touched += b->n_now;
    b->n_now = 0;
    return p;
}

/* ---- products ---- */

/* The step itself and those right after it that read the same input. */
static int count_products(const struct step *steps, int n_steps) {
    int n = 0;
    while (n < n_steps && n < MAX_PRODUCTS && step_is(&steps[n], OP_MATMUL) &&
           steps_share_input(&steps[n], &steps[0]))
        n++;
    return n;
}

/* A folded step writes while other threads still read the products' input: its output must not
 * stand in the same bytes, which the program may well have given it. */
static bool spares_input(const struct builder *b, const struct products *p, const struct step *s) {
    const struct step *reader = p->norm ? p->norm : p->items[0];
    return !spans_meet(&b->cpu->limits, &s->out, s->rows, &reader->in[0], reader->in_rows) &&
           !(p->keeps_norm &&
             spans_meet(&b->cpu->limits, &s->out, s->rows, &p->norm->out, p->norm->rows));
}

/* out = act(gate) * up of exactly the two products before it. */
static bool gated_fits(const struct products *p, const struct step *s) {
    return p->n == 2 && fold_gates(p->items[0], p->items[1], s);
}

/* A sum of the one product before it, which nobody else reads, and of older values. */
static bool sum_fits(const struct products *p, const struct step *s) {
    if (s->kind != STEP_SUM || p->n != 1) return false;
    const struct step *m = p->items[0];
    return m->n_readers == 1 && fold_input(m, s) >= 0;
}

/* A norm over whole rows that products right after it read. Threads compute it for themselves, some
 * later than others: no product may write where it reads, nor may it itself, if it is kept because
 * others read it too. */
static int norm_fits(const struct builder *b, const struct step *steps, int n_steps) {
    if (!step_is(steps, OP_NORM) || n_steps < 2) return 0;
    int width = steps->end - steps->begin;
    if (steps->begin != 0 || steps->op->p.norm.group != width || steps->op->p.norm.scale > 0)
        return 0;
    int n = count_products(steps + 1, n_steps - 1);
    bool fits = n > 0 && span_same(&steps[1].in[0], &steps->out) && steps[1].in_begin == 0 &&
                steps[1].in_end == width;
    bool kept = n < steps->n_readers;
    for (int i = kept ? 0 : 1; i <= n; i++)
        fits = fits && !spans_meet(&b->cpu->limits, &steps[i].out, steps[i].rows, &steps->in[0],
                                   steps->in_rows);
    for (int i = 1; kept && i <= n; i++)
        fits = fits &&
               !spans_meet(&b->cpu->limits, &steps[i].out, steps[i].rows, &steps->out, steps->rows);
    return fits ? n : 0;
}

/* Adds the products at steps[0..] with their neighbours; returns how many steps they are. */
static int add_products(struct builder *b, const struct step *steps, int n_steps, int n_norm,
                        int n_products) {
    struct products p = {.norm = n_norm ? steps : NULL,
                         .keeps_norm = n_norm && steps->n_readers > n_products,
                         .n = n_products};
    for (int i = 0; i < n_products; i++)
        p.items[i] = &steps[n_norm + i];
    int used = n_norm + n_products;
    bool fuse = !b->cpu->options.no_fusion;
    if (fuse && used < n_steps && gated_fits(&p, &steps[used]) && spares_input(b, &p, &steps[used]))
        p.gated = &steps[used++];
    if (fuse && used < n_steps && sum_fits(&p, &steps[used]) && spares_input(b, &p, &steps[used]))
        p.sum = &steps[used++];
    for (int i = n_norm; i < used; i++)
        touch_step(b, &steps[i]);
    if (p.norm) touch_span(b, &p.norm->in[0], p.norm->in_rows, false);
    if (p.keeps_norm) touch_span(b, &p.norm->out, p.norm->rows, true);
    touch(b, OWN_SHARED_INPUT, 0, 1, true);
    add_phase(b, PHASE_PRODUCTS, NULL)->products = p;
    return used;
}

/* ---- the rest ---- */

static int rope_index(struct builder *b, const struct graph_op *op) {
    struct backend_segment *s = b->s;
    for (int i = 0; i < s->n_ropes; i++)
        if (s->ropes[i]->p.rope.inv_freq == op->p.rope.inv_freq) return i;
    REQUIRE(s->n_ropes < MAX_ROPES);
    s->ropes[s->n_ropes] = op;
    return s->n_ropes++;
}

static void touch_ranges(struct builder *b, const struct step *s) {
    touch(b, OWN_KV, 0, 1, false);
    touch(b, OWN_PARTIAL, 0, 1, true);
    touch_span(b, &s->in[0], false, false);
    touch_span(b, &s->out, false, true);
}

static void add_attention(struct builder *b, const struct step *s) {
    const int dim = s->op->p.attention.head_dim;
    const struct cut cut = {dim, s->head_begin * dim, s->head_end * dim, false, false};
    for (int i = 1; i < 3; i++) /* as a rotary embedding is shared out */
        touch_cut(b, &s->in[i], false, false, cut);
    touch(b, OWN_KV, 0, 1, true);
    add_phase(b, PHASE_ATTN_STORE, s);
    touch_ranges(b, s);
    add_phase(b, PHASE_ATTN_RANGES, s);
    /* The merge is skipped, barrier and all, where there is nothing to merge: what the ranges
     * touch must then still count for the phase after it. */
    touch_ranges(b, s);
    add_phase(b, PHASE_ATTN_MERGE, s);
}

/* A choice that only the experts right after it read. */
static bool route_fits(const struct builder *b, const struct step *steps, int n_steps) {
    return !b->cpu->options.no_fusion && n_steps > 1 && step_is(steps, OP_ROUTE) &&
           step_is(&steps[1], OP_EXPERTS) && steps->n_readers == 1 &&
           span_same(&steps[1].in[1], &steps->out) && steps->rows == steps[1].in_rows;
}

/* Adds the experts at steps[0], or at steps[1] after their choice, with the sum that takes their
 * output, if only it does. Its output may not stand where the experts read, who are not done with
 * all lines when the first are summed. */
static int add_experts(struct builder *b, const struct step *steps, int n_steps) {
    const struct step *route = step_is(steps, OP_ROUTE) ? steps : NULL;
    const struct step *s = route ? steps + 1 : steps, *sum = NULL;
    int used = route ? 2 : 1;
    struct products p = {.items = {s}, .n = 1};
    if (n_steps > used && !b->cpu->options.no_fusion && sum_fits(&p, &steps[used]))
        sum = &steps[used];
    for (int i = 0; sum && i < s->n_in; i++)
        if (spans_meet(&b->cpu->limits, &sum->out, sum->rows, &s->in[i], s->in_rows)) sum = NULL;
    if (route) touch_step(b, route);
    touch_step(b, s);
    if (sum) touch_step(b, sum);
    touch(b, OWN_EXPERTS, 0, 1, true);
    struct phase *phase = add_phase(b, PHASE_EXPERTS, s);
    phase->route = route;
    phase->sum = sum;
    b->s->n_counters += cpu_experts_counters(&b->cpu->limits) - 1; /* one is each phase's */
    return sum ? used + 1 : used;
}

/* Adds what stands at steps[0]; returns how many steps were taken. */
static int add_steps(struct builder *b, const struct step *steps, int n_steps) {
    bool fuse = !b->cpu->options.no_fusion;
    int n = fuse ? norm_fits(b, steps, n_steps) : 0;
    if (n) return add_products(b, steps, n_steps, 1, n);
    if (step_is(steps, OP_MATMUL))
        return add_products(b, steps, n_steps, 0, fuse ? count_products(steps, n_steps) : 1);
    if (step_is(steps, OP_ATTENTION)) {
        add_attention(b, steps);
        return 1;
    }
    if (step_is(steps, OP_EXPERTS) || route_fits(b, steps, n_steps))
        return add_experts(b, steps, n_steps);
    enum phase_kind kind = PHASE_STEP; /* a state is touched by its own step only */
    if (step_is(steps, OP_CONV)) kind = PHASE_CONV;
    if (step_is(steps, OP_DELTA)) kind = PHASE_DELTA;
    if (step_is(steps, OP_ROPE)) touch(b, OWN_ROPE, 0, 1, false);
    if (fuse)
        touch_items(b, steps);
    else
        touch_step(b, steps);
    add_phase(b, kind, steps);
    return 1;
}

struct backend_segment *cpu_phases_build(const struct cpu *c, const struct step *steps,
                                         int n_steps) {
    struct backend_segment *s = xcalloc(1, sizeof *s);
    struct builder b = {.cpu = c, .s = s};
    for (int i = 0; i < n_steps; i++)
        if (step_is(&steps[i], OP_ROPE)) rope_index(&b, steps[i].op);
    if (s->n_ropes) {
        touch(&b, OWN_ROPE, 0, 1, true);
        add_phase(&b, PHASE_ROPE_TABLE, NULL);
    }
    for (int i = 0; i < n_steps;)
        i += add_steps(&b, steps + i, n_steps - i);
    s->counters = ARENA_ARRAY(&s->arena, _Atomic int, s->n_counters);
    free(b.touched);
    free(b.now);
    return s;
}
