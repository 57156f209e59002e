/* The planner's timeline against the executor: the same schedules, lowered and carried out on
 * simulated devices of the machine, take the same time. Of all shapes on all machines that are
 * shipped, decode rounds and chunks of a prompt, with streaming, divided blocks, one slot. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "model/model.h"
#include "model/shape.h"
#include "plan/limit.h"
#include "plan/schedule.h"
#include "run/rehearse.h"
#include "support.h"

static const char *const shapes[] = {"glm-z1-9b",    "qwen3-14b",        "qwen3-30b-a3b",
                                     "gpt-oss-20b",  "llama-3.1-70b",    "qwen3-next-80b-a3b",
                                     "gpt-oss-120b", "qwen3.5-122b-a10b"};
static const char *const machines[] = {
    "laptop-rtx3060-6gb",     "desktop-rtx4090-24gb",
    "desktop-rtx4060-8gb",    "desktop-rtx3060-12gb-pcie3",
    "desktop-rtx5070-12gb",   "desktop-rx7600-8gb",
    "desktop-rx7900xtx-24gb", "desktop-arc-b580-12gb",
    "laptop-radeon-890m-apu", "steam-deck-apu",
};
enum { N_CTX = 4096, DEPTH = 2048, CHUNK = 512, LARGE_CHUNK = 2048, CHUNK_DEPTH = 1024 };
enum { SLOT_BYTES = 32 << 20 };
static const double within = 0.05;

/* ---- a model on a machine ---- */

struct problem {
    struct arena arena;
    struct gguf *file;
    struct model *model;
    struct profile *machine;
    struct items *items;
    struct placement *placement;
};

/* As `simulate` has it: a share s of a layer's experts gets s^0.55 of its tokens. */
static const double *const *make_popularity(struct problem *p) {
    const struct graph *g = p->model->graph;
    const double **layers = ARENA_ARRAY(&p->arena, const double *, p->model->hp.n_layers + 1);
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        if (op->kind != OP_EXPERTS || op->layer < 0) continue;
        double *x = ARENA_ARRAY(&p->arena, double, op->p.experts.n_experts);
        limit_popularity(0.55, op->p.experts.n_experts, op->p.experts.n_used, x);
        layers[op->layer] = x;
    }
    return layers;
}

static bool fits(const struct problem *p) {
    const struct profile *m = p->machine;
    return p->model->weight_bytes <= (uint64_t)(m->host_bytes + (m->shared ? 0 : m->usable_bytes));
}

static void problem_open(struct problem *p, const char *shape, const char *machine,
                         enum granularity granularity) {
    char path[600];
    const struct model_options options = {
        .n_ctx = N_CTX, .math = MATH_Q8, .row_group = 16, .planning = true};
    struct items_options io = items_options_default();
    *p = (struct problem){0};
    snprintf(path, sizeof path, TEST_SOURCE_ROOT "/shapes/%s.json", shape);
    TEST_OK(shape_open(path, &p->file));
    TEST_OK(model_open(p->file, &options, &p->model));
    snprintf(path, sizeof path, TEST_SOURCE_ROOT "/machines/%s.json", machine);
    TEST_OK(profile_read(&p->arena, path, &p->machine));
    io.n_ctx = N_CTX;
    io.n_batch = CHUNK;
    io.popularity = make_popularity(p);
    TEST_OK(items_build(&p->arena, p->model->graph, p->machine, &io, &p->items));
    if (!fits(p)) return;
    struct placement_options o = placement_options_default(N_CTX);
    o.granularity = granularity;
    int64_t budget =
        p->machine->usable_bytes - 2 * SLOT_BYTES - (int64_t)schedule_work_bytes(p->items, CHUNK);
    TEST_OK(placement_solve(&p->arena, p->items, &o, &budget, 1, &p->placement));
}

static void problem_close(struct problem *p) {
    model_close(p->model);
    gguf_close(p->file);
    arena_free(&p->arena);
}

/* ---- one schedule, both ways ---- */

static struct schedule_options decode_options(int n_slots, enum transfer_rule rule) {
    return (struct schedule_options){.n_tokens = 1,
                                     .n_rows = 1,
                                     .depth = DEPTH,
                                     .n_slots = n_slots,
                                     .slot_bytes = SLOT_BYTES,
                                     .periodic = true,
                                     .by_units = true,
                                     .whole_experts = true,
                                     .rule = rule};
}

static struct schedule_options chunk_options(int n_slots, enum transfer_rule rule) {
    struct schedule_options o = decode_options(n_slots, rule);
    o.n_tokens = CHUNK;
    o.depth = CHUNK_DEPTH;
    return o;
}

static struct plan *plan_of(struct problem *p, const struct schedule_options *o,
                            const struct schedule *s) {
    return schedule_plan(&p->arena, p->items, p->placement, s, o->n_slots, o->slot_bytes, 2, 0, 1);
}

static struct rehearsal run(struct problem *p, const struct schedule_options *o,
                            const struct plan *plan, const struct load *load, int n_warm) {
    struct rehearsal r;
    struct rehearsal_options ro =
        rehearsal_options_default(p->model->graph, (int)o->n_tokens, (int)o->depth, N_CTX);
    ro.load = load;
    if (n_warm > 0) ro.n_warm = n_warm;
    TEST_OK(rehearse(p->model, p->items, plan, &ro, &r));
    return r;
}

/* What schedules of a kind were like. */
struct tally {
    const char *name;
    double gaps[COUNT_OF(shapes) * COUNT_OF(machines)];
    int n, n_streaming, n_divided;
};

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void tally_print(struct tally *t) {
    qsort(t->gaps, (size_t)t->n, sizeof *t->gaps, by_value);
    print_message("%-28s %3d schedules, %3d with streaming, %3d with divided blocks: executed "
                  "%+.1f%% to %+.1f%%, median %+.1f%%\n",
                  t->name, t->n, t->n_streaming, t->n_divided, 100 * t->gaps[0],
                  100 * t->gaps[t->n - 1], 100 * t->gaps[t->n / 2]);
}

static void check(struct problem *p, const char *where, const struct schedule_options *o,
                  struct tally *t) {
    struct schedule s;
    bool streaming = false, divided = false;
    schedule_solve(&p->arena, p->items, p->placement, o, &s);
    struct rehearsal r = run(p, o, plan_of(p, o, &s), NULL, 0);
    double want = s.transfer.result.round_s, gap = r.round_s / want - 1;
    if (!(fabs(gap) <= within))
        fail_msg("%s, %s: predicted %.3f ms, executed %.3f ms, %+.1f%%", where, t->name, 1e3 * want,
                 1e3 * r.round_s, 100 * gap);
    for (int i = 0; i < s.problem.n; i++) {
        struct timeline_item item = transfer_apply(&s.problem.items[i], s.transfer.units[i]);
        streaming |= item.streamed && item.copy_s > 0;
        divided |= item.place == TIMELINE_BOTH;
    }
    /* where the GPU works in host memory nothing is copied */
    assert_true(r.n_transfers > 0 || !streaming);
    assert_true(r.slot_bytes <= 1.1 * o->n_slots * o->slot_bytes);
    t->gaps[t->n++] = gap;
    t->n_streaming += streaming;
    t->n_divided += divided;
}

/* ---- all of them ---- */

/* Under a sanitizer fewer: every shape and every machine once. */
static bool is_left_out(size_t shape, size_t machine) {
    return TEST_SANITIZED && (shape + machine) % COUNT_OF(shapes) != 0;
}

static void executed_as_predicted(void **state) {
    (void)state;
    static struct tally tallies[] = {{.name = "decode, two slots"},
                                     {.name = "decode, one slot"},
                                     {.name = "a chunk, two slots"},
                                     {.name = "a chunk, one slot"},
                                     {.name = "decode, nothing streamed"}};
    const struct schedule_options options[] = {
        decode_options(2, TRANSFER_LABELS), decode_options(1, TRANSFER_LABELS),
        chunk_options(2, TRANSFER_LABELS), chunk_options(1, TRANSFER_LABELS),
        decode_options(0, TRANSFER_NONE)};
    int n_too_large = 0;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (size_t m = 0; m < COUNT_OF(machines); m++) {
            struct problem p;
            char where[128];
            if (is_left_out(i, m)) continue;
            snprintf(where, sizeof where, "%s on %s", shapes[i], machines[m]);
            problem_open(&p, shapes[i], machines[m], GRANULARITY_SHARD);
            n_too_large += !fits(&p);
            for (size_t k = 0; k < COUNT_OF(options) && fits(&p); k++)
                check(&p, where, &options[k], &tallies[k]);
            problem_close(&p);
        }
    for (size_t k = 0; k < COUNT_OF(tallies); k++) {
        tally_print(&tallies[k]);
        assert_true(tallies[k].n_divided >= 3);
        assert_true(k == 4 || tallies[k].n_streaming >= 2);
    }
    print_message("%d models do not fit into the memory of a machine\n", n_too_large);
    assert_true(TEST_SANITIZED || tallies[0].n + n_too_large == 80);
    assert_true(TEST_SANITIZED || n_too_large < 32);
}

/* Item by item, and everything that may be streamed. */
static void other_schedules_are_too(void **state) {
    (void)state;
    struct tally tallies[] = {{.name = "by tensor"}, {.name = "all streamed"}};
    static const char *const some[] = {"glm-z1-9b", "qwen3-14b", "gpt-oss-20b"};
    for (size_t i = 0; i < COUNT_OF(some); i++)
        for (size_t m = 0; m < (TEST_SANITIZED ? 1 : 6); m++) {
            struct problem p;
            char where[128];
            snprintf(where, sizeof where, "%s on %s", some[i], machines[m]);
            problem_open(&p, some[i], machines[m], GRANULARITY_TENSOR);
            struct schedule_options o = decode_options(2, TRANSFER_LABELS);
            o.by_units = false;
            check(&p, where, &o, &tallies[0]);
            o = chunk_options(2, TRANSFER_ALL);
            check(&p, where, &o, &tallies[1]);
            problem_close(&p);
        }
    for (size_t k = 0; k < COUNT_OF(tallies); k++)
        tally_print(&tallies[k]);
    assert_true(tallies[1].n_streaming >= (TEST_SANITIZED ? 2 : 8));
}

/* The granularities that are there to compare with, on the machine that holds each shape. */
static void other_granularities_are_too(void **state) {
    (void)state;
    struct tally tallies[] = {{.name = "by layer, decode"},
                              {.name = "by layer, a chunk"},
                              {.name = "by layer, a large chunk"},
                              {.name = "by expert, decode"},
                              {.name = "by expert, a chunk"}};
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (size_t k = 0; k < COUNT_OF(tallies); k++) {
            struct problem p;
            char where[128];
            if (TEST_SANITIZED && i != k) continue;
            const char *machine = i < 4 ? machines[0] : machines[1]; /* as the paper has it */
            snprintf(where, sizeof where, "%s on %s", shapes[i], machine);
            problem_open(&p, shapes[i], machine, k < 3 ? GRANULARITY_LAYER : GRANULARITY_EXPERT);
            struct schedule_options o =
                k % 3 == 0 ? decode_options(2, TRANSFER_LABELS) : chunk_options(2, TRANSFER_LABELS);
            if (k == 2) o.n_tokens = LARGE_CHUNK;
            /* several experts a slot, where a plan may have fewer parts than there are */
            o.slot_bytes =
                fmax(SLOT_BYTES, schedule_least_slot_bytes(p.items, SCHEDULE_PIECES, true));
            o.by_units = false;
            check(&p, where, &o, &tallies[k]);
            problem_close(&p);
        }
    for (size_t k = 0; k < COUNT_OF(tallies); k++)
        tally_print(&tallies[k]);
    assert_true(TEST_SANITIZED || tallies[1].n_streaming >= 6);
}

/* ---- load ---- */

/* From the start, or once rounds are under way: then as the timeline has it of items that are as
 * slow. */
static void load_slows_what_it_is_on(void **state) {
    (void)state;
    for (int resource = 0; resource < N_LOAD_RESOURCES; resource++) {
        struct problem p;
        problem_open(&p, "qwen3-14b", "laptop-rtx3060-6gb", GRANULARITY_SHARD);
        struct schedule_options o = decode_options(2, TRANSFER_LABELS);
        struct schedule alone, loaded;
        schedule_solve(&p.arena, p.items, p.placement, &o, &alone);
        double alone_s = alone.transfer.result.round_s;
        struct load_step step = {(enum load_resource)resource, 8 * alone_s, 1e6, 0.6};
        const struct load load = {&step, 1};
        struct load_factors f = load_at(&load, 1e5);
        schedule_retime(&p.arena, load_items(&p.arena, p.items, &f), p.placement, &o, &alone,
                        &loaded);
        double loaded_s = loaded.transfer.result.round_s;
        const struct plan *plan = plan_of(&p, &o, &alone);
        double before_s = run(&p, &o, plan, &load, 2).round_s;
        double after_s = run(&p, &o, plan, &load, 12).round_s;
        print_message("%s at 40%%: %.1f ms become %.1f, predicted %.1f and %.1f\n",
                      load_resource_name(step.resource), 1e3 * before_s, 1e3 * after_s,
                      1e3 * alone_s, 1e3 * loaded_s);
        assert_true(fabs(before_s / alone_s - 1) <= within);
        assert_true(fabs(after_s / loaded_s - 1) <= within);
        assert_true(loaded_s > 1.02 * alone_s);
        problem_close(&p);
    }
}

/* What a GPU needs from segment to segment, which described machines do not say. */
static void cuts_cost_what_is_predicted(void **state) {
    (void)state;
    struct tally tallies[] = {{.name = "without cuts"}, {.name = "cuts of 200 us"}};
    double round_s[2];
    for (int k = 0; k < 2; k++) {
        struct problem p;
        struct schedule s;
        problem_open(&p, "qwen3-30b-a3b", "laptop-rtx3060-6gb", GRANULARITY_SHARD);
        p.machine->link.cut_s = k * 200e-6;
        struct schedule_options o = decode_options(0, TRANSFER_NONE);
        check(&p, "qwen3-30b-a3b", &o, &tallies[k]);
        schedule_solve(&p.arena, p.items, p.placement, &o, &s);
        round_s[k] = s.transfer.result.round_s;
        problem_close(&p);
    }
    assert_true(tallies[1].n_divided > 0 && round_s[1] > 1.01 * round_s[0]);
}

/* ---- the rest ---- */

static void it_comes_out_the_same_again(void **state) {
    (void)state;
    struct problem p;
    struct schedule s;
    problem_open(&p, "qwen3-30b-a3b", "desktop-rtx4060-8gb", GRANULARITY_SHARD);
    struct schedule_options o = decode_options(2, TRANSFER_LABELS);
    schedule_solve(&p.arena, p.items, p.placement, &o, &s);
    const struct plan *plan = plan_of(&p, &o, &s);
    struct rehearsal a = run(&p, &o, plan, NULL, 0), b = run(&p, &o, plan, NULL, 0);
    assert_true(a.first_s >= b.first_s && a.first_s <= b.first_s);
    assert_true(a.last_s >= b.last_s && a.last_s <= b.last_s);
    problem_close(&p);
}

static void memory_that_is_too_small_is_an_error(void **state) {
    (void)state;
    struct problem p;
    struct schedule s;
    struct rehearsal r;
    problem_open(&p, "gpt-oss-20b", "desktop-rtx4060-8gb", GRANULARITY_SHARD);
    struct schedule_options o = decode_options(0, TRANSFER_NONE);
    schedule_solve(&p.arena, p.items, p.placement, &o, &s);
    const struct rehearsal_options ro = rehearsal_options_default(p.model->graph, 1, DEPTH, N_CTX);
    p.machine->gpu_bytes = 1 << 30;
    TEST_STATUS(rehearse(p.model, p.items, plan_of(&p, &o, &s), &ro, &r), ATS_NO_MEMORY);
    TEST_ERROR_HAS("1024 MiB");
    problem_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(executed_as_predicted),
        cmocka_unit_test(other_schedules_are_too),
        cmocka_unit_test(cuts_cost_what_is_predicted),
        cmocka_unit_test(other_granularities_are_too),
        cmocka_unit_test(load_slows_what_it_is_on),
        cmocka_unit_test(it_comes_out_the_same_again),
        cmocka_unit_test(memory_that_is_too_small_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
