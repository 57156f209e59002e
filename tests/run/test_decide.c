/* What an engine would run, decided for shapes of models on described machines: never predicted
 * slower than what others do with the same memory, within it, and a plan that may be run. */
#include <math.h>
#include <stdio.h>

#include "model/model.h"
#include "model/shape.h"
#include "plan/decide.h"
#include "run/rehearse.h"
#include "support.h"

static const char *const shapes[] = {"qwen3-14b", "qwen3-30b-a3b", "gpt-oss-20b"};
static const char *const machines[] = {"laptop-rtx3060-6gb", "desktop-rtx4090-24gb",
                                       "laptop-radeon-890m-apu", "desktop-rtx4060-8gb"};
enum { N_CTX = 8192 };

struct problem {
    struct arena arena;
    struct gguf *file;
    struct model *model;
    struct profile *machine;
    struct items *items;
    struct decide_options o;
    int *fixed;
};

/* Of p->file, which is open. */
static void open_opened(struct problem *p, const char *machine, double share) {
    char path[600];
    const struct model_options options = {
        .n_ctx = N_CTX, .math = MATH_Q8, .row_group = 16, .planning = true};
    struct items_options io = items_options_default();
    TEST_OK(model_open(p->file, &options, &p->model));
    snprintf(path, sizeof path, TEST_SOURCE_ROOT "/machines/%s.json", machine);
    TEST_OK(profile_read(&p->arena, path, &p->machine));
    io.n_ctx = N_CTX;
    TEST_OK(items_build(&p->arena, p->model->graph, p->machine, &io, &p->items));
    p->fixed = ARENA_ARRAY(&p->arena, int, p->items->n_items);
    for (int i = 0; i < p->items->n_items; i++)
        p->fixed[i] = PLACEMENT_FREE;
    p->o = decide_options_default(N_CTX, share * (double)p->machine->usable_bytes);
    p->o.runnable = p->o.one_program = true;
    p->o.n_batch = 512;
    if (p->machine->shared) p->o.n_slots = 0;
    p->o.placement.fixed = p->fixed;
}

static void open_problem(struct problem *p, const char *shape, const char *machine, double share) {
    char path[600];
    *p = (struct problem){0};
    snprintf(path, sizeof path, TEST_SOURCE_ROOT "/shapes/%s.json", shape);
    TEST_OK(shape_open(path, &p->file));
    open_opened(p, machine, share);
}

static void close_problem(struct problem *p) {
    model_close(p->model);
    gguf_close(p->file);
    arena_free(&p->arena);
}

/* Nor are its prompts than those that whole items would have. */
static void expect_no_slower_prompts(struct problem *p, const struct decide_way *w) {
    struct decide_options o = p->o;
    struct decide_way whole;
    o.placement.granularity = GRANULARITY_TENSOR;
    TEST_OK(decide(&p->arena, p->items, &o, &whole));
    assert_true(w->prompt_s <= whole.prompt_s * (1 + 1e-9));
}

/* What the way streams, and where everything is, as a plan for two devices. */
static struct plan *plan_of(struct problem *p, const struct decide_way *w, int cpu, int gpu) {
    struct plan *plan = schedule_plan(&p->arena, p->items, w->placement, &w->decode, w->n_slots,
                                      w->slot_bytes, 2, cpu, gpu);
    TEST_OK(plan_check(p->model->graph, plan, 1, 1U << gpu));
    return plan;
}

static int64_t plan_bytes(const struct problem *p, const struct plan *plan, int device,
                          bool streamed) {
    int64_t bytes = 0;
    for (int i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].device == device && plan->parts[i].streamed == streamed)
            bytes += plan_part_bytes(p->model->graph, &plan->parts[i]);
    return bytes;
}

static void expect_same_placement(struct problem *p, const struct placement *want,
                                  const struct plan *plan) {
    struct placement *got;
    TEST_OK(placement_from_plan(&p->arena, p->items, &p->o.placement, plan, 0, 1, &got));
    for (int i = 0; i < p->items->n_items; i++)
        assert_int_equal(got->homes[i], want->homes[i]);
    for (int b = 0; b < p->items->n_blocks; b++)
        assert_int_equal(got->units[b], want->units[b]);
    assert_true(got->gpu_bytes == want->gpu_bytes);
}

/* The baseline, timed as the way is, with the way's memory; with and without streaming. */
static void expect_no_slower(struct problem *p, const struct decide_way *w,
                             struct placement *baseline) {
    if ((double)(baseline->quanta * p->items->quantum_bytes) > w->budget_bytes) return;
    struct decide_way other = *w;
    other.placement = baseline;
    decide_time(&p->arena, p->items, &p->o, &other);
    assert_true(w->request_s <= other.request_s);
    other.n_slots = 0;
    decide_time(&p->arena, p->items, &p->o, &other);
    assert_true(w->request_s <= other.request_s);
}

static int n_streaming;

static void check_problem(const char *shape, const char *machine, double share) {
    struct problem p;
    struct decide_way w;
    open_problem(&p, shape, machine, share);
    TEST_OK(decide(&p.arena, p.items, &p.o, &w));
    const struct placement_options *o = &p.o.placement;
    expect_no_slower(&p, &w, placement_whole(&p.arena, p.items, o, SIDE_CPU));
    expect_no_slower(&p, &w, placement_whole(&p.arena, p.items, o, SIDE_GPU));
    for (int n = 1; n <= p.model->hp.n_layers; n += 5)
        for (int last = 0; last < 2; last++)
            expect_no_slower(&p, &w, placement_layers(&p.arena, p.items, o, n, last));
    expect_no_slower_prompts(&p, &w);
    assert_true((double)w.placement->gpu_bytes + w.work_bytes + w.n_slots * w.slot_bytes <=
                p.o.device_bytes);
    struct plan *plan = plan_of(&p, &w, 0, 1);
    expect_same_placement(&p, w.placement, plan);
    plan_of(&p, &w, 1, 0); /* devices the other way round */
    double streamed = (double)plan_bytes(&p, plan, 1, true);
    assert_true(fabs(streamed - w.decode.copied_bytes) <= 0.05 * w.decode.copied_bytes + 1e6);
    assert_int_equal(plan->n_slots[1], streamed > 0 ? w.n_slots : 0);
    assert_int_equal(plan->n_slots[0], 0);
    n_streaming += streamed > 0;
    for (int i = 0; i < plan->n_parts; i++) /* a piece fits its slot, but for whole steps */
        if (plan->parts[i].streamed)
            assert_true((double)plan_part_bytes(p.model->graph, &plan->parts[i]) <=
                        1.1 * w.slot_bytes);
    close_problem(&p);
}

/* Under a sanitizer every shape and every machine, not all with all. */
static void no_slower_than_layers_or_the_cpu_alone(void **state) {
    (void)state;
    for (size_t s = 0; s < COUNT_OF(shapes); s++)
        for (size_t m = 0; m < COUNT_OF(machines); m++)
            if (!TEST_SANITIZED || (s + m) % COUNT_OF(shapes) == 0)
                check_problem(shapes[s], machines[m], m % 2 ? 0.5 : 1);
    assert_true(n_streaming >= (TEST_SANITIZED ? 1 : 2));
}

/* ---- a schedule for decode, and one for prompts ---- */

/* Of the pair what a round of so many tokens follows, as the executor carries it out. */
static void expect_executed(struct problem *p, const struct plan *plan, int n_tokens, int depth,
                            double want_s) {
    struct rehearsal r;
    struct rehearsal_options o = rehearsal_options_default(p->model->graph, n_tokens, depth, N_CTX);
    TEST_OK(rehearse(p->model, p->items, plan, &o, &r));
    if (!(fabs(r.round_s / want_s - 1) <= 0.05))
        fail_msg("%d tokens: predicted %.3f ms, executed %.3f ms", n_tokens, 1e3 * want_s,
                 1e3 * r.round_s);
}

static void expect_pieces_fit(const struct problem *p, const struct plan *plan,
                              const struct decide_way *w) {
    for (int i = 0; i < plan->n_parts; i++)
        if (plan->parts[i].streamed)
            assert_true((double)plan_part_bytes(p->model->graph, &plan->parts[i]) <=
                        1.1 * w->slot_bytes);
}

static struct plan *pair_of(struct problem *p, const struct decide_way *w, int cpu, int gpu) {
    struct plan *plan = schedule_pair(&p->arena, p->items, w->placement, &w->decode, &w->prefill,
                                      w->prompts_from, w->n_slots, w->slot_bytes, 2, cpu, gpu);
    TEST_OK(plan_check_pair(p->model->graph, plan, plan->prompts, 1, 1U << gpu, 1U << cpu));
    assert_int_equal(plan->prompts_from, w->prompts_from);
    assert_null(plan->prompts->prompts);
    return plan;
}

/* Rounds of so many tokens and more are faster by what prompts stream, by themselves. */
static void expect_border(struct problem *p, const struct decide_way *w) {
    for (size_t i = 1; i < COUNT_OF(profile_tokens); i++) {
        int n = profile_tokens[i];
        if (n < w->prompts_from || n > w->n_batch) continue;
        struct schedule_options o = decide_schedule_options(&p->o, w, n, p->o.depth);
        struct schedule decode, chunk;
        schedule_retime(&p->arena, p->items, w->placement, &o, &w->decode, &decode);
        o.periodic = false;
        schedule_retime(&p->arena, p->items, w->placement, &o, &w->prefill, &chunk);
        assert_true(chunk.transfer.result.round_s < decode.transfer.result.round_s);
    }
}

static int n_pairs;

static void check_pair(const char *shape, const char *machine, double share) {
    struct problem p;
    struct decide_way one, w;
    open_problem(&p, shape, machine, share);
    TEST_OK(decide(&p.arena, p.items, &p.o, &one));
    assert_int_equal(one.prompts_from, 0);
    p.o.one_program = false;
    TEST_OK(decide(&p.arena, p.items, &p.o, &w));
    assert_true(w.request_s <= one.request_s && w.prompt_s <= one.prompt_s);
    assert_true((double)w.placement->gpu_bytes + w.work_bytes + w.n_slots * w.slot_bytes <=
                p.o.device_bytes);
    print_message("%s on %s: prompts %.0f tok/s instead of %.0f, decode %.2f (%.2f); from %d\n",
                  shape, machine, p.o.n_prompt / w.prompt_s, p.o.n_prompt / one.prompt_s,
                  1 / w.decode.transfer.result.round_s, 1 / one.decode.transfer.result.round_s,
                  w.prompts_from);
    if (w.prompts_from > 0) {
        assert_true(w.prompts_from > 1 && w.prompts_from <= w.n_batch);
        const struct plan *plan = pair_of(&p, &w, 0, 1);
        pair_of(&p, &w, 1, 0);
        expect_pieces_fit(&p, plan, &w);
        expect_pieces_fit(&p, plan->prompts, &w);
        expect_border(&p, &w);
        const int depth = (p.o.n_prompt - w.n_batch) / 2;
        struct schedule_options o = decide_schedule_options(&p.o, &w, w.n_batch, depth);
        struct schedule chunk;
        schedule_retime(&p.arena, p.items, w.placement, &o, &w.prefill, &chunk);
        expect_executed(&p, plan, 1, p.o.depth, w.decode.transfer.result.round_s);
        expect_executed(&p, plan, w.n_batch, depth, chunk.transfer.result.round_s);
        n_pairs++;
    }
    close_problem(&p);
}

static void prompts_may_stream_what_decode_computes_in_place(void **state) {
    (void)state;
    for (size_t s = 0; s < (TEST_SANITIZED ? 1 : COUNT_OF(shapes)); s++)
        check_pair(shapes[s], machines[0], 1);
    for (size_t m = 2; m < (TEST_SANITIZED ? 3 : COUNT_OF(machines)); m++)
        check_pair(shapes[0], machines[m], 1);
    if (!TEST_SANITIZED) check_pair("glm-z1-9b", machines[0], 1);
    assert_true(n_pairs >= (TEST_SANITIZED ? 1 : 5));
}

/* Longer chunks copy less often: taken where the request is shorter, not where nothing is copied.
 */
static void a_chunk_is_chosen(void **state) {
    (void)state;
    int n_longer = 0;
    for (size_t i = 0; i < COUNT_OF(shapes); i++)
        for (size_t m = 0; m < (TEST_SANITIZED ? 1 : 3); m += 2) {
            struct problem p;
            struct decide_way chosen, usual;
            if (TEST_SANITIZED && i != 1) continue;
            open_problem(&p, shapes[i], machines[m], 1);
            p.o.one_program = false;
            int n = decide_chunk(p.items, &p.o);
            assert_true(n >= DECIDE_CHUNK && n <= p.o.n_prompt);
            if (p.machine->shared) assert_int_equal(n, DECIDE_CHUNK);
            TEST_OK(decide(&p.arena, p.items, &p.o, &usual));
            p.o.n_batch = p.o.placement.prefill_tokens = n;
            TEST_OK(decide(&p.arena, p.items, &p.o, &chosen));
            print_message("%s on %s: chunks of %d, a request in %.2f s instead of %.2f\n",
                          shapes[i], machines[m], n, chosen.request_s, usual.request_s);
            assert_true(n == DECIDE_CHUNK || chosen.request_s < 0.98 * usual.request_s);
            n_longer += n > DECIDE_CHUNK;
            close_problem(&p);
        }
    assert_true(n_longer >= 1);
}

static void what_is_fixed_stays(void **state) {
    (void)state;
    struct problem p;
    struct decide_way w;
    open_problem(&p, "qwen3-14b", "laptop-rtx3060-6gb", 1);
    const struct items *items = p.items;
    for (int i = 0; i < items->n_items; i += 3)
        p.fixed[i] = i % 2 ? SIDE_GPU : SIDE_CPU;
    TEST_OK(decide(&p.arena, items, &p.o, &w));
    const struct plan *plan = plan_of(&p, &w, 0, 1);
    for (int i = 0; i < items->n_items; i += 3) {
        int op = items->items[i].op;
        const struct plan_part *part = &plan->parts[plan->first[op]];
        assert_int_equal(plan->first[op + 1] - plan->first[op], 1);
        assert_int_equal(part->device, i % 2);
        assert_false(part->streamed); /* the CPU computes what it was told to have */
    }
    p.o.one_program = false;
    TEST_OK(decide(&p.arena, items, &p.o, &w));
    plan = w.prompts_from > 0 ? pair_of(&p, &w, 0, 1)->prompts : plan_of(&p, &w, 0, 1);
    for (int i = 0; i < items->n_items; i += 3)
        assert_false(plan->parts[plan->first[items->items[i].op]].streamed);
    p.o.device_bytes = 1e6;
    TEST_STATUS(decide(&p.arena, items, &p.o, &w), ATS_BAD_ARGUMENT);
    close_problem(&p);
}

/* All sizes of slots are that of the largest part, so several ways of a chunk are probes. */
static void a_model_smaller_than_a_slot_is_decided(void **state) {
    (void)state;
    char path[600];
    struct problem p = {0};
    struct decide_way w;
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    TEST_OK(gguf_open(path, &p.file));
    open_opened(&p, "laptop-rtx3060-6gb", 1);
    p.o.n_batch = 0;
    TEST_OK(decide(&p.arena, p.items, &p.o, &w));
    assert_true(w.request_s > 0 && (double)w.placement->gpu_bytes <= p.o.device_bytes);
    close_problem(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(no_slower_than_layers_or_the_cpu_alone),
        cmocka_unit_test(prompts_may_stream_what_decode_computes_in_place),
        cmocka_unit_test(a_chunk_is_chosen),
        cmocka_unit_test(what_is_fixed_stays),
        cmocka_unit_test(a_model_smaller_than_a_slot_is_decided),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
