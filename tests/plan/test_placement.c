/*
 * Placement: the dynamic programs find what trying everything finds, never lose to a coarser
 * granularity or a simple rule, and keep the budget and what is fixed.
 */
#include "instances.h"
#include "support.h"

#include <math.h>

#define REPEATS (TEST_SANITIZED ? 8 : 60)

static struct placement_options options_of(enum granularity granularity) {
    struct placement_options o = placement_options_default(4096);
    o.granularity = granularity;
    o.n_depths = 1, o.depths[0] = 0, o.weights[0] = 1;
    o.tie = 0, o.prompt_tokens = 0;
    return o;
}

static struct placement solve(struct arena *arena, const struct items *items,
                              const struct placement_options *o, int quanta) {
    struct placement *p;
    int64_t budget = quanta * items->quantum_bytes;
    TEST_OK(placement_solve(arena, items, o, &budget, 1, &p));
    if (p->quanta > quanta) fail_msg("%d quanta in a budget of %d", p->quanta, quanta);
    return *p;
}

static void assert_near(double a, double b, const char *what, int budget) {
    if (!(fabs(a - b) <= 3e-6 * fabs(b)))
        fail_msg("%s at %d quanta: %.9g instead of %.9g", what, budget, a, b);
}
static void assert_no_worse(double a, double b, const char *what, int budget) {
    if (!(a <= b * (1 + 3e-6))) fail_msg("%s at %d quanta: %.9g against %.9g", what, budget, a, b);
}

/* ---- the dynamic program alone ---- */

struct random_stages {
    struct dp_stage stages[6];
    struct dp_choice choices[6][12];
    int n;
    double end_s;
};

static void draw_stages(struct rng *rng, struct random_stages *r, int most_choices) {
    r->n = 1 + (int)rng_below(rng, 6);
    r->end_s = rng_unit(rng);
    for (int i = 0; i < r->n; i++) {
        int n = 1 + (int)rng_below(rng, (uint32_t)most_choices);
        r->stages[i] = (struct dp_stage){r->choices[i], n, rng_unit(rng), rng_unit(rng), 0};
        r->stages[i].exchange_s = 2 * rng_unit(rng);
        for (int k = 0; k < n; k++) {
            struct dp_choice *c = &r->choices[i][k];
            *c = (struct dp_choice){.quanta = (int)rng_below(rng, 8), .time_s = 3 * rng_unit(rng)};
            c->entry = (uint8_t)rng_below(rng, 3);
            c->exit = c->entry == STATE_B ? STATE_B : (uint8_t)rng_below(rng, 2);
        }
        if (i == 0) r->choices[i][0] = (struct dp_choice){.time_s = 2};
    }
}

static double best_from(const struct random_stages *r, int stage, int state, int budget) {
    double best = HUGE_VAL;
    if (stage == r->n) return state == STATE_C ? 0 : r->end_s;
    const struct dp_stage *s = &r->stages[stage];
    for (int k = 0; k < s->n_choices; k++) {
        const struct dp_choice *c = &s->choices[k];
        if (c->quanta > budget) continue;
        double rest = best_from(r, stage + 1, c->exit, budget - c->quanta);
        best = fmin(best, dp_transition(s, state, c->entry) + c->time_s + rest);
    }
    return best;
}

static double chain_cost(const struct random_stages *r, const int *choices, int *quanta) {
    double s = 0;
    int state = STATE_C;
    *quanta = 0;
    for (int i = 0; i < r->n; i++) {
        const struct dp_choice *c = &r->stages[i].choices[choices[i]];
        s += dp_transition(&r->stages[i], state, c->entry) + c->time_s;
        *quanta += c->quanta;
        state = c->exit;
    }
    return state == STATE_C ? s : s + r->end_s;
}

static void one_table_has_the_best_chain_of_every_budget(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 1);
    for (int repeat = 0; repeat < 10 * REPEATS; repeat++) {
        struct random_stages r;
        draw_stages(&rng, &r, 5);
        int least = (int)rng_below(&rng, 31);
        struct dp_table *t = dp_solve(r.stages, r.n, least, 30, r.end_s);
        for (int budget = least; budget <= 40; budget++) {
            double best = best_from(&r, 0, STATE_C, min_int(budget, 30)), found;
            int choices[6], quanta;
            if (!dp_read(t, budget, choices, &found)) {
                assert_true(isinf(best));
                continue;
            }
            assert_near(found, best, "dp", budget);
            assert_near(chain_cost(&r, choices, &quanta), best, "chain", budget);
            assert_true(quanta <= budget);
        }
        dp_free(t);
    }
}

static void pruning_drops_nothing_that_is_needed(void **state) {
    (void)state;
    struct rng rng;
    int before = 0, after = 0;
    rng_seed(&rng, 2);
    for (int repeat = 0; repeat < 10 * REPEATS; repeat++) {
        struct random_stages r;
        double full[31], pruned;
        int choices[6];
        draw_stages(&rng, &r, 12);
        struct dp_table *t = dp_solve(r.stages, r.n, 0, 30, r.end_s);
        for (int budget = 0; budget <= 30; budget++)
            if (!dp_read(t, budget, choices, &full[budget])) full[budget] = HUGE_VAL;
        dp_free(t);
        for (int i = 0; i < r.n; i++) {
            before += r.stages[i].n_choices;
            r.stages[i].n_choices = choices_prune(r.choices[i], r.stages[i].n_choices, &r.stages[i],
                                                  i + 1 < r.n ? &r.stages[i + 1] : NULL, r.end_s);
            after += r.stages[i].n_choices;
        }
        t = dp_solve(r.stages, r.n, 0, 30, r.end_s);
        for (int budget = 0; budget <= 30; budget++) {
            bool found = dp_read(t, budget, choices, &pruned);
            assert_int_equal(found, isfinite(full[budget]));
            if (found) assert_near(pruned, full[budget], "pruned", budget);
        }
        dp_free(t);
    }
    assert_true(after < before * 3 / 4);
}

/* ---- S1 and S2 against trying everything ---- */

/* The best over all assignments, and divisions where `splits`, of blocks from `block` on. */
static double brute(const struct items *items, const struct placement_options *o, bool splits,
                    int block, int at, int budget) {
    double best = HUGE_VAL;
    if (block == items->n_blocks) return at == 0 ? 0 : oracle_end(items, o->n_tokens);
    const struct items_block *b = &items->blocks[block];
    for (uint32_t mask = 0; mask < 1U << b->n; mask++) {
        int quanta = 0, exit = 0;
        double s = HUGE_VAL;
        for (int i = 0; i < b->n; i++)
            if (mask >> i & 1) quanta += items->items[b->first + i].quanta;
        if (quanta > budget) continue;
        for (int entry = 0; entry < 2; entry++)
            s = fmin(s, oracle_move(items, block, at, entry, o->n_tokens) +
                            oracle_block(items, block, mask, entry, o->n_tokens, 0, &exit));
        best = fmin(best, s + brute(items, o, splits, block + 1, exit, budget - quanta));
    }
    struct term t = {.weight = 1, .n_tokens = o->n_tokens, .n_rows = o->n_tokens};
    for (int units = 1; splits && units < b->n_units; units++) {
        int quanta = items_share_quanta(items, block, units);
        struct arena arena = {0};
        const struct item *item = &items->items[b->first];
        if (quanta > budget) continue;
        double no_miss;
        double s = oracle_move(items, block, at, STATE_B, o->n_tokens) +
                   choices_split_time(
                       items, block, &t, units,
                       item->n_experts > 0 ? choices_residents(&arena, item, units, false) : NULL,
                       &no_miss);
        arena_free(&arena);
        best = fmin(best, s + brute(items, o, splits, block + 1, STATE_B, budget - quanta));
        if (item->n_experts == 0) continue;
        /* the host's sum, if it has one, to the GPU */
        s += (1 - no_miss) * oracle_copy(items, 1, o->n_tokens, b->exit_width);
        best = fmin(best, s + brute(items, o, splits, block + 1, STATE_G, budget - quanta));
    }
    return best;
}

static void compare_with_brute_force(enum granularity granularity, const struct tiny_shape *shape,
                                     int n_layers, int repeats, uint64_t seed) {
    struct rng rng;
    struct placement_options o = options_of(granularity);
    rng_seed(&rng, seed);
    for (int repeat = 0; repeat < repeats; repeat++) {
        struct arena arena = {0};
        struct items *items = instance_random(&arena, &rng, shape, n_layers, repeat % 2 ? 6 : 1.01);
        int budget = (int)rng_below(&rng, (uint32_t)items->total_quanta + 2);
        const struct placement p = solve(&arena, items, &o, budget);
        double best = brute(items, &o, granularity == GRANULARITY_SHARD, 0, 0, budget);
        assert_near(p.decode_s, best, "placement", budget);
        arena_free(&arena);
    }
}

static void tensor_is_exact(void **state) {
    (void)state;
    compare_with_brute_force(GRANULARITY_TENSOR, &instance_dense, 1, 4 * REPEATS, 3);
    compare_with_brute_force(GRANULARITY_TENSOR, &instance_moe, 1, 4 * REPEATS, 4);
}

static void shard_is_exact(void **state) {
    (void)state;
    compare_with_brute_force(GRANULARITY_SHARD, &instance_dense, 1, 4 * REPEATS, 5);
    compare_with_brute_force(GRANULARITY_SHARD, &instance_moe, 1, 4 * REPEATS, 6);
    compare_with_brute_force(GRANULARITY_SHARD, &instance_dense, 2, TEST_SANITIZED ? 1 : 5, 7);
}

/* ---- what must hold whatever the instance ---- */

static void finer_granularities_and_larger_budgets_are_never_worse(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 8);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items =
            instance_random(&arena, &rng, repeat % 2 ? &instance_moe : &instance_dense,
                            2 + (int)rng_below(&rng, 4), 1 + rng_unit(&rng) * 5);
        double before[4] = {HUGE_VAL, HUGE_VAL, HUGE_VAL, HUGE_VAL};
        double n_tokens = 1 + rng_below(&rng, 4);
        for (int budget = 0; budget <= items->total_quanta + 3; budget += 7) {
            double s[4];
            for (int g = GRANULARITY_LAYER; g <= GRANULARITY_SHARD; g++) {
                struct placement_options o = options_of((enum granularity)g);
                o.n_tokens = n_tokens;
                const struct placement p = solve(&arena, items, &o, budget);
                s[g] = p.decode_s;
                assert_near(placement_time(items, &p, n_tokens, n_tokens, 0), s[g], "time", budget);
                if (g != GRANULARITY_EXPERT) /* which may have to fall back to layers */
                    assert_no_worse(s[g], before[g], "a larger budget", budget);
                before[g] = s[g];
            }
            assert_no_worse(s[GRANULARITY_TENSOR], s[GRANULARITY_LAYER], "tensor, layer", budget);
            assert_no_worse(s[GRANULARITY_TENSOR], s[GRANULARITY_EXPERT], "tensor, expert", budget);
            assert_no_worse(s[GRANULARITY_SHARD], s[GRANULARITY_TENSOR], "shard, tensor", budget);
        }
        arena_free(&arena);
    }
}

static void simple_rules_are_never_better(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 9);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items = instance_random(&arena, &rng, &instance_dense, 4, 3);
        struct placement_options o = options_of(GRANULARITY_LAYER);
        int budget = (int)rng_below(&rng, (uint32_t)items->total_quanta + 1);
        for (int g = GRANULARITY_LAYER; g <= GRANULARITY_SHARD; g++) {
            o.granularity = (enum granularity)g;
            const struct placement p = solve(&arena, items, &o, budget);
            const struct placement *cpu = placement_whole(&arena, items, &o, SIDE_CPU);
            assert_int_equal(cpu->quanta, 0);
            assert_no_worse(p.decode_s, cpu->decode_s, "all on the CPU", budget);
            for (int n = 0; n <= 5; n++)
                for (int last = 0; last < 2; last++) {
                    const struct placement *l = placement_layers(&arena, items, &o, n, last);
                    if (l->quanta > budget) continue;
                    assert_no_worse(p.decode_s, l->decode_s, last ? "last n" : "first n", budget);
                }
        }
        arena_free(&arena);
    }
}

static void a_faster_link_is_never_worse(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 10);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items =
            instance_random(&arena, &rng, repeat % 2 ? &instance_moe : &instance_dense, 3, 4);
        struct profile_link *l = &instance_profile(items)->link;
        struct placement_options o =
            options_of(repeat % 3 ? GRANULARITY_SHARD : GRANULARITY_TENSOR);
        int budget = items->total_quanta / 2;
        double *const seconds[] = {&l->kappa_up_s, &l->kappa_down_s, &l->kappa_x_s};
        double *const rates[] = {&l->activation_up, &l->activation_down};
        double before = solve(&arena, items, &o, budget).decode_s;
        for (int change = 0; change < 5; change++) {
            if (change < 3)
                *seconds[change] /= 2;
            else
                *rates[change - 3] *= 2;
            double after = solve(&arena, items, &o, budget).decode_s;
            assert_no_worse(after, before, "a faster link", budget);
            before = after;
        }
        arena_free(&arena);
    }
}

static void budgets_are_read_off_one_table(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 11);
    struct arena arena = {0};
    struct items *items = instance_random(&arena, &rng, &instance_dense, 3, 4);
    struct placement_options o = options_of(GRANULARITY_SHARD);
    struct placement *p;
    int64_t budgets[3];
    for (int i = 0; i < 3; i++)
        budgets[i] = (items->total_quanta * (3 - i) / 4) * items->quantum_bytes + i;
    TEST_OK(placement_solve(&arena, items, &o, budgets, 3, &p));
    for (int i = 0; i < 3; i++) {
        const struct placement one =
            solve(&arena, items, &o, (int)(budgets[i] / items->quantum_bytes));
        assert_near(p[i].decode_s, one.decode_s, "one of three", i);
        assert_true(p[i].gpu_bytes <= budgets[i]);
    }
    arena_free(&arena);
}

/* ---- granularities and what is fixed ---- */

static void layers_and_experts_stay_together(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 12);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items = instance_random(&arena, &rng, &instance_moe, 4, 3);
        struct placement_options o = options_of(GRANULARITY_LAYER);
        int rest = 0, budget = (int)rng_below(&rng, (uint32_t)items->total_quanta);
        const struct placement layer = solve(&arena, items, &o, budget);
        for (int i = 1; i < items->n_items; i++)
            if (items->items[i].layer == items->items[i - 1].layer)
                assert_int_equal(layer.homes[i], layer.homes[i - 1]);
        for (int i = 0; i < items->n_items; i++)
            if (items->items[i].n_experts == 0) rest += items->items[i].quanta;
        o.granularity = GRANULARITY_EXPERT;
        const struct placement expert = solve(&arena, items, &o, budget);
        for (int i = 0; i < items->n_items; i++)
            if (rest <= budget && items->items[i].n_experts == 0)
                assert_int_equal(expert.homes[i], SIDE_GPU);
        if (rest > budget) assert_near(expert.decode_s, layer.decode_s, "fallback", budget);

        o.granularity = GRANULARITY_TENSOR;
        o.paper_moe = true;
        const struct placement paper = solve(&arena, items, &o, budget);
        for (int i = 0; i < items->n_items; i++) {
            if (rest <= budget && items->items[i].n_experts == 0)
                assert_int_equal(paper.homes[i], SIDE_GPU);
            if (rest > budget && items->items[i].n_experts > 0)
                assert_int_equal(paper.homes[i], SIDE_CPU);
        }
        for (int b = 0; b < items->n_blocks; b++)
            assert_int_equal(layer.units[b] + expert.units[b] + paper.units[b], 0);
        arena_free(&arena);
    }
}

static void what_is_fixed_is_obeyed(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 13);
    int n_solved = 0;
    for (int repeat = 0; repeat < 2 * REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items =
            instance_random(&arena, &rng, repeat % 2 ? &instance_moe : &instance_dense, 3, 3);
        struct placement_options o = options_of((enum granularity)(repeat % 4));
        int *fixed = ARENA_ARRAY(&arena, int, items->n_items);
        int *units = ARENA_ARRAY(&arena, int, items->n_blocks), need = 0;
        for (int i = 0; i < items->n_items; i++) {
            fixed[i] = (int)rng_below(&rng, 5) - 1;
            if (fixed[i] > SIDE_GPU) fixed[i] = PLACEMENT_FREE;
            if (fixed[i] == SIDE_GPU && items->items[i].block != 0) need += items->items[i].quanta;
        }
        for (int b = 0; b < items->n_blocks; b++)
            units[b] = PLACEMENT_FREE;
        units[0] = 1; /* of the first attention */
        need += items_share_quanta(items, 0, 1);
        o.fixed = fixed;
        o.fixed_units = units;
        double free_s = solve(&arena, items,
                              &(struct placement_options){.granularity = GRANULARITY_SHARD,
                                                          .n_tokens = 1,
                                                          .weights = {1},
                                                          .n_depths = 1,
                                                          .prefill_tokens = 512},
                              need)
                            .decode_s;
        const struct placement p = solve(&arena, items, &o, need);
        for (int i = 0; i < items->n_items; i++)
            if (items->items[i].block != 0 && fixed[i] != PLACEMENT_FREE)
                assert_int_equal(p.homes[i], fixed[i]);
        assert_int_equal(p.units[0], 1);
        for (int b = 1; b < items->n_blocks; b++) {
            const struct items_block *block = &items->blocks[b];
            for (int i = block->first; i < block->first + block->n; i++)
                if (fixed[i] != PLACEMENT_FREE) assert_int_equal(p.units[b], 0);
        }
        assert_no_worse(free_s, p.decode_s, "free", need);
        n_solved++;

        struct placement *none;
        int64_t budget = (need - 1) * items->quantum_bytes;
        TEST_STATUS(placement_solve(&arena, items, &o, &budget, 1, &none), ATS_BAD_ARGUMENT);
        TEST_ERROR_HAS("does not fit");
        budget = -1;
        TEST_STATUS(placement_solve(&arena, items, &o, &budget, 1, &none), ATS_BAD_ARGUMENT);
        arena_free(&arena);
    }
    assert_true(n_solved > 0);
}

static void ties_go_to_the_better_prefill(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 14);
    int n_better = 0;
    for (int repeat = 0; repeat < 60; repeat++) {
        struct arena arena = {0};
        struct items *items = instance_random(&arena, &rng, &instance_dense, 3, 2);
        struct placement_options o = options_of(GRANULARITY_SHARD);
        int budget = items->total_quanta / 2;
        instance_profile(items)->link.up_pinned = 1e7; /* copies are what a prefill waits for */
        const struct placement strict = solve(&arena, items, &o, budget);
        o.tie = 0.02;
        const struct placement tied = solve(&arena, items, &o, budget);
        assert_true(tied.decode_s <= strict.decode_s * (1 + 0.02 + 1e-6));
        assert_no_worse(tied.prefill_s, strict.prefill_s, "prefill", budget);
        n_better += tied.prefill_s < strict.prefill_s * 0.999;
        arena_free(&arena);
    }
    assert_true(n_better > 0);
}

static void a_longer_prompt_leaves_less_on_the_host(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 19);
    int n_better = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items = instance_random(&arena, &rng, &instance_dense, 3, 2);
        struct placement_options o = options_of((enum granularity)(repeat % 4));
        int budget = items->total_quanta / 2;
        double decode_s = 0, prefill_s = HUGE_VAL, first = 0;
        instance_profile(items)->link.up_pinned = 1e7;
        for (o.prompt_tokens = 0; o.prompt_tokens < 1000;
             o.prompt_tokens = o.prompt_tokens * 8 + 1) {
            const struct placement p = solve(&arena, items, &o, budget);
            assert_no_worse(decode_s, p.decode_s, "decode", budget);
            assert_no_worse(p.prefill_s, prefill_s, "prefill", budget);
            decode_s = p.decode_s, prefill_s = p.prefill_s;
            if (o.prompt_tokens == 0) first = prefill_s;
        }
        n_better += prefill_s < first * 0.999;
        arena_free(&arena);
    }
    assert_true(n_better > 0);
}

/* Host caches make the CPU compute attention in prefill: a copy of the weights cannot help. */
static void caches_on_the_host_cost_prefill(void **state) {
    (void)state;
    struct arena arena = {0};
    struct rng rng;
    rng_seed(&rng, 18);
    struct items *items = instance_random(&arena, &rng, &instance_dense, 2, 2);
    struct placement_options o = options_of(GRANULARITY_SHARD);
    struct placement *p = placement_whole(&arena, items, &o, SIDE_GPU);
    double before = p->prefill_s;
    int attention = items->blocks[0].first + 3;
    instance_profile(items)->link.up_pinned = 1e12;
    p->homes[0] = SIDE_CPU; /* a product: copied in no time */
    placement_finish(items, &o, p);
    assert_near(p->prefill_s, before, "a product on the host", 0);
    items->items[attention].kv_bytes = 4096;
    p->homes[attention] = SIDE_CPU;
    placement_finish(items, &o, p);
    double here = items_time(items, attention, SIDE_CPU, o.prefill_tokens, o.prefill_depth, 1);
    assert_true(p->prefill_s > before + here * 0.5);
    arena_free(&arena);
}

static void popular_experts_are_resident(void **state) {
    (void)state;
    struct arena arena = {0};
    const double p[8] = {0.1, 0.3, 0.05, 0.3, 0.2, 0.4, 0.35, 0.3};
    const struct item item = {
        .n_experts = 8, .n_used = 2, .experts = item_experts_make(&arena, p, 8, 0.4)};
    const uint8_t *hot = choices_residents(&arena, &item, 3, true);
    const uint8_t hot_expected[8] = {0, 1, 0, 0, 0, 1, 1, 0};
    assert_memory_equal(hot, hot_expected, 8);
    const uint8_t *range = choices_residents(&arena, &item, 3, false);
    const uint8_t range_expected[8] = {0, 0, 0, 0, 0, 1, 1, 1};
    assert_memory_equal(range, range_expected, 8);
    arena_free(&arena);
}

/* Figures of moe.py, which draws hits: 8 experts, hit 0.68, 10 us against 75 us each: the mean of
 * the longer side is 1.03 times the longer mean. Here: against the sum over all counts. */
static void divided_experts_take_the_mean_of_the_longer_side(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 15);
    struct arena arena = {0};
    struct items *items = instance_random(&arena, &rng, &instance_moe, 1, 3);
    int block = 2;
    const struct items_block *b = &items->blocks[block];
    const struct term t = {.weight = 1, .n_tokens = 1, .n_rows = 1};
    uint8_t residents[8] = {1, 1, 1, 0, 0, 0, 0, 0}; /* of a token's 2: binomial with 3/8 */
    double g[3], c[3], hit = 3.0 / 8, mean;
    for (int j = 0; j <= 2; j++) {
        g[j] = items_time(items, b->first, SIDE_GPU, 1, 0, j / 2.0);
        c[j] = items_time(items, b->first, SIDE_CPU, 1, 0, j / 2.0);
    }
    mean = (1 - hit) * (1 - hit) * fmax(g[0], c[2]) + 2 * hit * (1 - hit) * fmax(g[1], c[1]) +
           hit * hit * fmax(g[2], c[0]);
    double no_miss;
    assert_near(choices_split_time(items, block, &t, 3, residents, &no_miss), mean, "mean", 3);
    assert_near(no_miss, hit * hit, "no miss", 3);
    const struct profile_link *l = &items->profile->link;
    double up = l->kappa_up_s + 4.0 * b->exit_width / l->activation_up;
    assert_near(choices_gather_time(items, block, &t, no_miss), (1 - hit * hit) * up, "gather", 3);
    arena_free(&arena);
}

/* A round of many tokens uses all experts, so that what is popular counts as any other. */
static void the_host_has_a_share_of_the_experts_in_use(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 21);
    struct arena arena = {0};
    struct items *items = instance_random(&arena, &rng, &instance_moe, 1, 3);
    struct placement_options o = options_of(GRANULARITY_SHARD);
    struct placement *p = placement_whole(&arena, items, &o, SIDE_CPU);
    double popularity[8] = {0.9, 0.7, 0.1, 0.1, 0.05, 0.05, 0.05, 0.05};
    uint8_t residents[8] = {1, 1, 0, 0, 0, 0, 0, 0};
    int experts = items->blocks[2].first;
    items->items[experts].experts = item_experts_make(&arena, popularity, 8, 0.4);
    assert_near(placement_host_share(items, p, experts, 1), 1, "on the host", 0);
    p->units[2] = 2, p->residents[2] = residents;
    assert_near(placement_host_share(items, p, experts, 1), 0.4 / 2, "one token", 0);
    assert_near(placement_host_share(items, p, experts, 1e6), 6.0 / 8, "very many", 0);
    arena_free(&arena);
}

/* ---- plans ---- */

static void a_placement_is_a_legal_plan(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 16);
    int n_divided = 0;
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items =
            instance_random(&arena, &rng, repeat % 2 ? &instance_moe : &instance_dense, 3, 3);
        struct placement_options o = options_of((enum granularity)(repeat % 4));
        const struct placement p =
            solve(&arena, items, &o, (int)rng_below(&rng, (uint32_t)items->total_quanta));
        int gpu = repeat / 4 % 2, n_parts = 0;
        const struct plan *plan = placement_plan(&arena, items, &p, 3, 1 - gpu, gpu);
        TEST_OK(plan_check(items->graph, plan, repeat % 2 ? 1 : 16, 0));
        for (int i = 0; i < items->n_items; i++) {
            const struct item *item = &items->items[i];
            int first = plan->first[item->op], n = plan->first[item->op + 1] - first;
            int units = p.units[item->block], on_gpu = 0;
            assert_int_equal(n, units > 0 ? 2 : 1);
            for (int k = first; k < first + n; k++)
                if (plan->parts[k].device == gpu)
                    on_gpu += plan->parts[k].end - plan->parts[k].begin;
            if (units > 0)
                assert_int_equal(on_gpu, units * items->graph->ops[item->op].unit_elements);
            else
                assert_int_equal(on_gpu > 0, p.homes[i] == SIDE_GPU);
            n_divided += units > 0;
            n_parts += n;
        }
        assert_int_equal(plan->n_parts, n_parts + 1); /* and the embedding */
        struct placement *back;
        TEST_OK(placement_from_plan(&arena, items, &o, plan, 1 - gpu, gpu, &back));
        assert_memory_equal(back->homes, p.homes, (size_t)items->n_items);
        assert_memory_equal(back->units, p.units, sizeof *p.units * (size_t)items->n_blocks);
        assert_int_equal(back->quanta, p.quanta);
        assert_true(back->decode_s == p.decode_s);
        arena_free(&arena);
    }
    assert_true(n_divided > 0);
}

/* Of random plans some are placements, the others are refused by name. */
static void a_plan_is_a_placement_or_says_why_not(void **state) {
    (void)state;
    struct rng rng;
    rng_seed(&rng, 20);
    int n_read = 0, n_refused = 0;
    for (int repeat = 0; repeat < 4 * REPEATS; repeat++) {
        struct arena arena = {0};
        struct items *items = instance_random(&arena, &rng, &instance_moe, 1, 3);
        struct placement_options o = options_of(GRANULARITY_SHARD);
        const struct plan *plan = plan_random(&arena, items->graph, 2, 1, repeat % 2 ? 2 : 0, &rng);
        struct placement *p;
        ats_status status = placement_from_plan(&arena, items, &o, plan, 0, 1, &p);
        n_read += status == ATS_OK;
        n_refused += status == ATS_UNSUPPORTED;
        if (status != ATS_OK) assert_null(p);
        if (status != ATS_OK) TEST_ERROR_HAS("cut");
        for (int i = 0; p && i < items->n_items; i++) {
            int op = items->items[i].op;
            const struct plan_part *part = &plan->parts[plan->first[op]];
            if (plan->first[op + 1] - plan->first[op] > 1) continue;
            assert_int_equal(p->homes[i], part->device == 1 && !part->streamed);
        }
        bool third = false;
        for (int k = 0; k < plan->n_parts; k++)
            third = third || (plan->parts[k].device == 1 && plan->parts[k].op > 0);
        if (third)
            TEST_STATUS(placement_from_plan(&arena, items, &o, plan, 0, 2, &p), ATS_UNSUPPORTED);
        arena_free(&arena);
    }
    assert_true(n_read > 0 && n_refused > 0);
}

static void device_changes_are_counted(void **state) {
    (void)state;
    struct rng rng;
    struct arena arena = {0};
    rng_seed(&rng, 17);
    struct items *items = instance_random(&arena, &rng, &instance_dense, 4, 3);
    struct placement_options o = options_of(GRANULARITY_LAYER);
    assert_int_equal(placement_splits(items, placement_whole(&arena, items, &o, SIDE_CPU)), 0);
    assert_int_equal(placement_splits(items, placement_whole(&arena, items, &o, SIDE_GPU)), 2);
    assert_int_equal(placement_splits(items, placement_layers(&arena, items, &o, 2, false)), 2);
    assert_int_equal(placement_splits(items, placement_layers(&arena, items, &o, 2, true)), 2);
    arena_free(&arena);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_table_has_the_best_chain_of_every_budget),
        cmocka_unit_test(pruning_drops_nothing_that_is_needed),
        cmocka_unit_test(tensor_is_exact),
        cmocka_unit_test(shard_is_exact),
        cmocka_unit_test(finer_granularities_and_larger_budgets_are_never_worse),
        cmocka_unit_test(simple_rules_are_never_better),
        cmocka_unit_test(a_faster_link_is_never_worse),
        cmocka_unit_test(budgets_are_read_off_one_table),
        cmocka_unit_test(layers_and_experts_stay_together),
        cmocka_unit_test(what_is_fixed_is_obeyed),
        cmocka_unit_test(ties_go_to_the_better_prefill),
        cmocka_unit_test(a_longer_prompt_leaves_less_on_the_host),
        cmocka_unit_test(caches_on_the_host_cost_prefill),
        cmocka_unit_test(popular_experts_are_resident),
        cmocka_unit_test(divided_experts_take_the_mean_of_the_longer_side),
        cmocka_unit_test(the_host_has_a_share_of_the_experts_in_use),
        cmocka_unit_test(a_placement_is_a_legal_plan),
        cmocka_unit_test(a_plan_is_a_placement_or_says_why_not),
        cmocka_unit_test(device_changes_are_counted),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
