/* What the CPU makes of a lowered program: how often its threads wait for each other. */
#include "backend/cpu/cpu_internal.h"
#include "model/model.h"
#include "run/lower.h"
#include "support.h"
#include "tiny_graph.h"

enum { N_TOKENS = 9, N_ROWS = 1 };

enum { ALL_LAYERS = -2 };

static int layer_of(const struct phase *p) {
    const struct step *s = p->kind == PHASE_PRODUCTS ? p->products.items[0] : p->step;
    return s && s->kind == STEP_OP ? s->op->layer : -1;
}

/* Barriers between the phases of a model that stands on the CPU as a whole; those of a merge, which
 * short contexts do without, and those inside of experts are not counted. one_token: but for those
 * that two threads spare in such rounds. */
static int graph_barriers(struct arena *arena, const struct graph *g, int layer, bool no_fusion,
                          bool one_token) {
    const struct plan *plan = plan_whole(arena, g, 1, 0);
    const struct program *p = program_lower(arena, g, plan, N_TOKENS, N_ROWS);
    struct cpu cpu = {.limits = {.n_tokens = N_TOKENS, .n_rows = N_ROWS}};
    cpu.options.no_fusion = no_fusion;
    struct step *steps = ARENA_ARRAY(arena, struct step, p->n_steps);
    for (int i = 0; i < p->n_steps; i++)
        steps[i] = p->steps[p->order[i]].step;
    struct backend_segment *s = cpu_phases_build(&cpu, steps, p->n_steps);
    int n = 0;
    for (size_t i = 0; i < s->n_phases; i++) {
        const struct phase *phase = &s->phases[i];
        if (layer != ALL_LAYERS && layer_of(phase) != layer) continue;
        if (one_token && phase->spare && phase->spare % 2 == 0) continue;
        n += phase->barrier && phase->kind != PHASE_ATTN_MERGE;
    }
    arena_free(&s->arena);
    free(s->phases);
    free(s);
    return n;
}

static int count_barriers(struct tiny_shape shape, int n_layers, bool no_fusion) {
    struct arena arena = {0};
    shape.n_layers = n_layers;
    int n = graph_barriers(&arena, tiny_graph(&arena, &shape), ALL_LAYERS, no_fusion, false);
    arena_free(&arena);
    return n;
}

static int barriers_of_a_layer(const struct tiny_shape *shape, bool no_fusion) {
    int n = count_barriers(*shape, 5, no_fusion);
    assert_int_equal(n - count_barriers(*shape, 4, no_fusion),
                     count_barriers(*shape, 6, no_fusion) - n);
    return n - count_barriers(*shape, 4, no_fusion);
}

static void a_dense_layer_has_six_barriers(void **state) {
    (void)state;
    struct tiny_shape shape = tiny_plain;
    /* q, k, v; their embedding and the cache; its ranges; o; gate and up; down */
    assert_int_equal(barriers_of_a_layer(&shape, false), 6);
    shape.head_norm = true;
    shape.bias = true;
    assert_int_equal(barriers_of_a_layer(&shape, false), 6);
    assert_true(barriers_of_a_layer(&shape, true) > 8);
}

static void a_mixture_s_layer_has_six_barriers(void **state) {
    (void)state;
    struct tiny_shape shape = tiny_plain;
    shape.n_experts = 4;
    shape.n_used = 2;
    /* the same four of attention; scores of the experts with the norm; the experts */
    assert_int_equal(barriers_of_a_layer(&shape, false), 6);
    shape.head_norm = true;
    assert_int_equal(barriers_of_a_layer(&shape, false), 6);
    assert_true(barriers_of_a_layer(&shape, true) > 8);
}

/* In a round of one token each thread norms and gates the columns that it had before. */
static void a_delta_net_s_layer_has_six_barriers(void **state) {
    (void)state;
    char path[512];
    struct gguf *file;
    struct model *m;
    struct arena arena = {0};
    if (!test_shared_path(path, sizeof path, "models/qwen35/qwen35-f16.gguf")) skip();
    TEST_OK(gguf_open(path, &file));
    TEST_OK(model_open(file, &(struct model_options){.math = MATH_F32, .row_group = 1}, &m));
    /* products of the stream; convolutions; the rule; its product; gate and up; down */
    assert_int_equal(graph_barriers(&arena, m->graph, 1, false, true), 6);
    /* and norms of q and of k, the output's norm, its gate */
    assert_int_equal(graph_barriers(&arena, m->graph, 1, false, false), 10);
    assert_true(graph_barriers(&arena, m->graph, 1, true, true) > 12);
    arena_free(&arena);
    model_close(m);
    gguf_close(file);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_dense_layer_has_six_barriers),
        cmocka_unit_test(a_mixture_s_layer_has_six_barriers),
        cmocka_unit_test(a_delta_net_s_layer_has_six_barriers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
