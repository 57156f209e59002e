/*
 * Placement against an integer program (glpk): up to 60 items. A path through (block, where the
 * activations are), one binary variable for each choice and state before it, and one row for the
 * bytes. Solved from all choices, not from those that pruning leaves.
 */
#include "instances.h"
#include "support.h"

#include <glpk.h>
#include <math.h>

struct program {
    glp_prob *p;
    int bytes_row;
};

static int new_row(struct program *p, int type, double bound) {
    int row = glp_add_rows(p->p, 1);
    glp_set_row_bnds(p->p, row, type, bound, bound);
    return row;
}

/* n entries, in [1] to [n] as glpk has it. */
static void new_column(struct program *p, double cost_us, const int *rows, const double *values,
                       int n) {
    int column = glp_add_cols(p->p, 1);
    glp_set_col_kind(p->p, column, GLP_BV);
    glp_set_obj_coef(p->p, column, cost_us);
    glp_set_mat_col(p->p, column, n, rows, values);
}

/* node[i][s]: flow into stage i in state s is the flow out of it. */
static void write_stages(struct program *p, const struct dp_stage *stages, int n, double end_s,
                         int budget) {
    int(*node)[N_STATES] = xcalloc((size_t)n + 1, sizeof *node);
    p->bytes_row = new_row(p, GLP_UP, budget);
    for (int i = 0; i <= n; i++)
        for (int s = 0; s < N_STATES; s++)
            if (i > 0 ? i < n : s == STATE_C) node[i][s] = new_row(p, GLP_FX, i > 0 ? 0 : -1);
    for (int i = 0; i < n; i++)
        for (int from = 0; from < N_STATES; from++)
            for (int k = 0; node[i][from] && k < stages[i].n_choices; k++) {
                const struct dp_choice *c = &stages[i].choices[k];
                int rows[4] = {0, node[i][from], p->bytes_row, node[i + 1][c->exit]};
                double values[4] = {0, -1, c->quanta, 1};
                double cost = dp_transition(&stages[i], from, c->entry) + c->time_s;
                if (i == n - 1 && c->exit != STATE_C) cost += end_s;
                new_column(p, cost * 1e6, rows, values, i == n - 1 ? 2 : 3);
            }
    free(node);
}

/* Seconds of the best path. */
static double solve_program(const struct dp_stage *stages, int n, double end_s, int budget) {
    struct program p = {.p = glp_create_prob()};
    glp_iocp how;
    glp_set_obj_dir(p.p, GLP_MIN);
    write_stages(&p, stages, n, end_s, budget);
    glp_init_iocp(&how);
    how.msg_lev = GLP_MSG_OFF;
    how.presolve = GLP_ON;
    how.mip_gap = 1e-7;
    if (glp_intopt(p.p, &how) != 0 || glp_mip_status(p.p) != GLP_OPT)
        fail_msg("the integer program was not solved");
    double best = glp_mip_obj_val(p.p) / 1e6;
    glp_delete_prob(p.p);
    return best;
}

static void compare(enum granularity granularity, const struct tiny_shape *shape, int n_layers,
                    int repeats, uint64_t seed) {
    struct rng rng;
    rng_seed(&rng, seed);
    if (TEST_SANITIZED) repeats = 3;
    for (int repeat = 0; repeat < repeats; repeat++) {
        struct arena arena = {0};
        const struct items *items = instance_random(&arena, &rng, shape, n_layers, 4);
        struct placement_options o = placement_options_default(4096);
        o.granularity = granularity;
        o.n_depths = 1, o.depths[0] = 0, o.weights[0] = 1, o.prompt_tokens = 0, o.tie = 0;
        int quanta = 1 + (int)rng_below(&rng, (uint32_t)items->total_quanta);
        int64_t budget = quanta * items->quantum_bytes;
        struct placement *found;
        TEST_OK(placement_solve(&arena, items, &o, &budget, 1, &found));

        struct objective objective = {.terms = {{1, 1, 1, 0, false}}, .n_terms = 1};
        struct dp_stage *stages = ARENA_ARRAY(&arena, struct dp_stage, items->n_blocks);
        int flags = CHOICES_PATHS | (granularity == GRANULARITY_SHARD ? CHOICES_SPLITS : 0);
        for (int b = 0; b < items->n_blocks; b++) {
            struct dp_choice *choices;
            choices_transitions(items, b, &objective, &stages[b]);
            stages[b].n_choices =
                choices_of_block(&arena, items, b, &objective, &o, flags, &choices);
            stages[b].choices = choices;
        }
        double best =
            solve_program(stages, items->n_blocks, choices_end(items, &objective), quanta);
        if (!(fabs(found->decode_s - best) <= 1e-5 * best))
            fail_msg("%d items, %d quanta: %.9g, the integer program says %.9g", items->n_items,
                     quanta, found->decode_s, best);
        arena_free(&arena);
    }
}

static void tensor_agrees_with_an_integer_program(void **state) {
    (void)state;
    compare(GRANULARITY_TENSOR, &instance_dense, 3, 20, 1);
    compare(GRANULARITY_TENSOR, &instance_dense, 7, 20, 2);
    compare(GRANULARITY_TENSOR, &instance_moe, 8, 20, 3);
}

static void shard_agrees_with_an_integer_program(void **state) {
    (void)state;
    compare(GRANULARITY_SHARD, &instance_dense, 3, 20, 4);
    compare(GRANULARITY_SHARD, &instance_dense, 7, 20, 5);
    compare(GRANULARITY_SHARD, &instance_moe, 8, 20, 6);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tensor_agrees_with_an_integer_program),
        cmocka_unit_test(shard_agrees_with_an_integer_program),
    };
    int status = cmocka_run_group_tests(tests, NULL, NULL);
    glp_free_env();
    return status;
}
