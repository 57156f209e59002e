#include "coverage.h"

#include <stdio.h>
#include "run/engine.h"
#include "run/executor_internal.h"
#include "support.h"

void coverage_close(struct coverage *c) {
    free(c->items);
    *c = (struct coverage){0};
}

static struct covered *find(const struct coverage *c, const char *name) {
    for (size_t i = 0; i < c->n; i++)
        if (strcmp(c->items[i].name, name) == 0) return &c->items[i];
    return NULL;
}

#define NAME(name, format)                                                                         \
    char name[sizeof(((struct covered *)0)->name)];                                                \
    va_list args;                                                                                  \
    va_start(args, format);                                                                        \
    int n_name = vsnprintf(name, sizeof name, format, args);                                       \
    va_end(args);                                                                                  \
    assert_in_range(n_name, 1, sizeof name - 1)

void cover(struct coverage *c, const char *format, ...) {
    NAME(name, format);
    struct covered *item = find(c, name);
    if (!item) {
        GROW(c->items, c->n, c->cap, 1);
        item = &c->items[c->n++];
        item->n = 0;
        memcpy(item->name, name, sizeof name);
    }
    item->n++;
}

int covered(const struct coverage *c, const char *format, ...) {
    NAME(name, format);
    const struct covered *item = find(c, name);
    return item ? item->n : 0;
}

void coverage_need(const struct coverage *c, int *missing, const char *format, ...) {
    NAME(name, format);
    if (find(c, name)) return;
    print_error("never met: %s\n", name);
    ++*missing;
}

/* ---- an engine ---- */

static const char *kind_of(const ats_engine *e, int device) {
    if (strncmp(e->devices[device]->name, "vulkan", 6) == 0) return "vulkan";
    return e->devices[device]->gpu                       ? "sim"
           : strncmp(e->devices[device]->name, "sim", 3) ? "cpu"
                                                         : "sim";
}

static const char *const axis_names[] = {"rows", "cols", "heads", "experts"};
static const char *const block_names[] = {"attention", "feed-forward", "experts", "head",
                                          "recurrent"};

static const char *step_name(const struct step *s) {
    if (s->kind == STEP_OP) return op_kind_name(s->op->kind);
    return s->kind == STEP_SUM ? "sum" : "copy";
}

static void cover_steps(struct coverage *c, const ats_engine *e, const struct program *p) {
    for (int i = 0; i < p->n_steps; i++) {
        const struct program_step *s = &p->steps[i];
        const char *home = s->transfer >= 0 ? "streamed" : "resident";
        cover(c, "%s on %s, %s", step_name(&s->step), kind_of(e, s->device), home);
        if (s->bias >= 0) cover(c, "bias on %s", kind_of(e, s->device));
    }
}

static void cover_parts(struct coverage *c, const ats_engine *e, size_t max_range) {
    for (int i = 0; i < e->plan->n_parts; i++) {
        const struct plan_part *p = &e->plan->parts[i];
        const struct graph_op *op = &e->model->graph->ops[p->op];
        bool whole = p->end - p->begin == op_axis_length(e->model->graph, op, p->axis);
        const char *kind = kind_of(e, p->device);
        if (whole)
            cover(c, "whole on %s", kind);
        else
            cover(c, "some %s of %s on %s", axis_names[p->axis], op_kind_name(op->kind), kind);
        /* a matrix that no binding holds */
        if (max_range && op->kind == OP_MATMUL && e->devices[p->device]->gpu &&
            plan_part_bytes(e->model->graph, p) > (int64_t)max_range)
            cover(c, "windows of rows, %s", p->streamed ? "streamed" : "resident");
    }
}

/* Which device has units [first, ...) of a block that is divided by them; NULL: it is not. */
static void cover_block(struct coverage *c, const ats_engine *e, const struct graph_block *b) {
    const char *first = NULL;
    for (int op = b->op_begin; op < b->op_end; op++) {
        int from = e->plan->first[op], to = e->plan->first[op + 1];
        if (to - from < 2) continue;
        const struct graph_op *o = &e->model->graph->ops[op];
        if (!op_is_placed(o) || e->plan->parts[from].axis != o->unit_axis) continue;
        const char *one = kind_of(e, e->plan->parts[from].device),
                   *other = kind_of(e, e->plan->parts[from + 1].device);
        if (e->plan->parts[from].end % o->unit_elements == 0 && strcmp(one, other) != 0)
            first = one;
    }
    if (first) cover(c, "%s divided, %s first", block_names[b->kind], first);
}

static void cover_slots(struct coverage *c, const struct program *p) {
    for (int d = 0; d < p->n_devices; d++) {
        int n = 0;
        for (int i = 0; i < p->n_transfers; i++)
            n += p->transfers[i].device == d;
        if (!n) continue;
        cover(c, "%s", p->n_slots[d] == 1 ? "one slot" : "slots");
        cover(c, "%s", n > p->n_slots[d] ? "slots used again" : "a slot for each");
    }
}

void coverage_engine(struct coverage *c, const ats_engine *e, size_t max_range) {
    const struct programs *all = executor_programs(e->executor);
    for (int k = 0; k < all->n; k++) {
        cover_steps(c, e, all->at[k]);
        cover_slots(c, all->at[k]);
    }
    cover_parts(c, e, max_range);
    for (int i = 0; i < e->model->graph->n_blocks; i++)
        cover_block(c, e, &e->model->graph->blocks[i]);
}

/* ---- a round ---- */

static bool attends(const ats_engine *e, int device) {
    const struct program *p = executor_program(e->executor);
    for (int i = 0; i < p->n_kvs; i++)
        if (p->kvs[i].device == device) return true;
    return false;
}

/* Which of a plan's two programs was the last one. */
static void cover_turn(struct coverage *c, const ats_engine *e) {
    static const char *const names[] = {"decode", "prompts"};
    const struct executor *x = e->executor;
    if (x->programs.n < 2) return;
    cover(c, "the program of %s, of two", names[x->current]);
    for (int d = 0; d < e->n_devices; d++)
        if (x->unread[d]) cover(c, "copies that no round read, %s", kind_of(e, d));
}

void coverage_round(struct coverage *c, const ats_engine *e, size_t begin, size_t end, int n_seqs) {
    const size_t page = (size_t)1 << KV_PAGE_TOKENS_LOG2;
    cover_turn(c, e);
    for (int d = 0; d < e->n_devices; d++) {
        if (!attends(e, d)) continue;
        const char *kind = kind_of(e, d);
        if (begin < page && end > page) cover(c, "a border of pages in a chunk, %s", kind);
        if (begin >= page && end == begin + 1) cover(c, "a token that sees two pages, %s", kind);
        if (n_seqs > 1) cover(c, "several sequences, %s", kind);
        if (n_seqs > 1 && end == begin + 1) cover(c, "several that decode, %s", kind);
    }
}

/* ---- what there must be ---- */

static const enum op_kind kinds[] = {OP_EMBED,     OP_NORM,  OP_MATMUL, OP_ROPE,
                                     OP_ATTENTION, OP_GATED, OP_ROWS,   OP_ROUTE,
                                     OP_EXPERTS,   OP_SLICE, OP_CONV,   OP_DELTA};

static void check_device(const struct coverage *c, const char *kind, int *missing) {
    for (size_t i = 0; i < COUNT_OF(kinds); i++)
        coverage_need(c, missing, "%s on %s, resident", op_kind_name(kinds[i]), kind);
    coverage_need(c, missing, "sum on %s, resident", kind);
    coverage_need(c, missing, "copy on %s, resident", kind);
    coverage_need(c, missing, "bias on %s", kind);
    coverage_need(c, missing, "whole on %s", kind);
    coverage_need(c, missing, "some rows of matmul on %s", kind);
    coverage_need(c, missing, "some cols of matmul on %s", kind);
    coverage_need(c, missing, "some rows of conv on %s", kind);
    coverage_need(c, missing, "some heads of delta on %s", kind);
    coverage_need(c, missing, "some heads of attention on %s", kind);
    coverage_need(c, missing, "some experts of experts on %s", kind);
    coverage_need(c, missing, "a border of pages in a chunk, %s", kind);
    coverage_need(c, missing, "a token that sees two pages, %s", kind);
    coverage_need(c, missing, "several sequences, %s", kind);
    coverage_need(c, missing, "several that decode, %s", kind);
}

void coverage_check(const struct coverage *c, const char *gpu) {
    int missing = 0;
    coverage_need(c, &missing, "plans switched");
    const char *devices[] = {"cpu", gpu};
    for (int i = 0; i < 2; i++)
        if (devices[i] && (i || !gpu || strcmp(gpu, "sim") != 0))
            check_device(c, devices[i], &missing);
    if (gpu) {
        coverage_need(c, &missing, "matmul on %s, streamed", gpu);
        coverage_need(c, &missing, "experts on %s, streamed", gpu);
        coverage_need(c, &missing, "one slot");
        coverage_need(c, &missing, "slots");
        coverage_need(c, &missing, "slots used again");
        coverage_need(c, &missing, "a slot for each");
        coverage_need(c, &missing, "the program of decode, of two");
        coverage_need(c, &missing, "the program of prompts, of two");
        coverage_need(c, &missing, "copies that no round read, %s", gpu);
    }
    if (gpu && strcmp(gpu, "vulkan") == 0) {
        coverage_need(c, &missing, "windows of rows, resident");
        coverage_need(c, &missing, "windows of rows, streamed");
    }
    for (size_t i = 0; gpu && strcmp(gpu, "vulkan") == 0 && i < COUNT_OF(block_names); i++)
        for (int j = 0; j < 2; j++)
            coverage_need(c, &missing, "%s divided, %s first", block_names[i], devices[j]);
    assert_int_equal(missing, 0);
}
