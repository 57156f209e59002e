/* Bounds: by hand on few parts, below every schedule of the timeline, and the figures of
 * scheduling.md 7 for models that are shipped. */
#include "plan/limit.h"
#include "support.h"

#include <math.h>

#define NEAR(a, b) assert_true(fabs((a) - (b)) <= 1e-9 * (1 + fabs((double)(b))))

static void by_hand(void **state) {
    (void)state;
    struct limit_part parts[] = {{0, 100, 1, false}, {1, 100, 0.5, false}, {1, 100, 0.1, false}};
    struct limit_block blocks[2] = {{.gpu_flop_s = 0.001, .cpu_flop_s = 0.01},
                                    {.gpu_flop_s = 0.002, .cpu_flop_s = 0.02}};
    struct limit_problem p = {.parts = parts,
                              .n_parts = 3,
                              .blocks = blocks,
                              .n_blocks = 2,
                              .vram_bytes = 1000,
                              .dram_bytes = 100,
                              .up_bytes = 50};
    struct limit l = limit_round(&p, 0);
    NEAR(l.round_s, 1.6);
    assert_int_equal(l.binds, LIMIT_DRAM);
    l = limit_round(&p, 150); /* all of the first, half of the second */
    NEAR(l.round_s, (160 - 125) / 100.0);
    NEAR(l.hit, 125 / 160.0);
    l = limit_round(&p, 1000); /* 10/11 of what is read: a part of the second stays outside */
    NEAR(l.round_s, 160 / 1100.0);
    NEAR(l.resident_bytes, 100 + (1600 / 11.0 - 100) / 0.5);
    blocks[1].gpu_flop_s = 0.3;
    assert_int_equal(limit_round(&p, 1000).binds, LIMIT_GPU);
    blocks[1].gpu_flop_s = 0.002;
    /* blocks: 10/11 of what the first reads, then of the second, both memories equally long */
    l = limit_blocks(&p, 1e9);
    NEAR(l.round_s, 160 / 1100.0);
    assert_int_equal(l.n_divided, 2);
    for (int b = 0; b < 2; b++) {
        blocks[b].exchange_s = 1;
        blocks[b].up_s = blocks[b].down_s = 0.1;
    }
    l = limit_blocks(&p, 1e9); /* an exchange of a second is worth more than any division */
    NEAR(l.round_s, 0.1 + 0.16);
    assert_int_equal(l.n_divided, 0);
    l = limit_blocks(&p, 50); /* half of the first, and down to the second */
    NEAR(l.round_s, 0.1 + 0.5 + 0.1 + 0.6);
    blocks[1].down_s = 2; /* then neither */
    NEAR(limit_blocks(&p, 50).round_s, 0.1 + 0.5 + 2 + 0.6);
    for (int b = 0; b < 2; b++)
        blocks[b].exchange_s = blocks[b].up_s = blocks[b].down_s = 0;
    blocks[0].gpu_start_s = 0.1, blocks[0].cpu_start_s = 0.2;
    blocks[1].gpu_start_s = 0.3, blocks[1].cpu_start_s = 0.4;
    p.with_starts = true; /* of the first on both sides, of the second on the host */
    l = limit_blocks(&p, 50);
    NEAR(l.round_s, 0.5 + 0.2 + 0.6 + 0.4);
    p.with_starts = false;
    l = limit_prefill(&p, 100);
    NEAR(l.round_s, 60 / 50.0); /* what is used of the rest */
    assert_int_equal(l.binds, LIMIT_LINK);
    l = limit_prefill(&p, 300);
    NEAR(l.round_s, 1 / (1 / 0.003 + 1 / 0.03));
}

static void more_budget_is_never_worse(void **state) {
    (void)state;
    struct limit_part parts[60];
    struct limit_block blocks[6] = {{0}};
    for (int i = 0; i < 60; i++)
        parts[i] = (struct limit_part){i % 6, 10 + i % 7, i % 3 ? 0.02 * (i % 11) : 1, false};
    struct limit_problem p = {.parts = parts,
                              .n_parts = 60,
                              .blocks = blocks,
                              .n_blocks = 6,
                              .vram_bytes = 900,
                              .dram_bytes = 80,
                              .up_bytes = 50};
    double before = HUGE_VAL, before_blocks = HUGE_VAL;
    for (int budget = 0; budget < 900; budget += 10) {
        double s = limit_round(&p, budget).round_s, b = limit_blocks(&p, budget).round_s;
        assert_true(s <= before + 1e-12 && b <= before_blocks + 1e-12);
        assert_true(b >= s - 1e-12);
        before = s;
        before_blocks = b;
    }
}

static void popularity_is_what_the_exponent_says(void **state) {
    (void)state;
    double p[512], sum = 0, top = 0;
    limit_popularity(0.55, 512, 10, p);
    for (int e = 0; e < 512; e++) {
        sum += p[e];
        if (e < 128) top += p[e];
        assert_true(p[e] > 0 && p[e] <= 1 && (e == 0 || p[e] <= p[e - 1]));
    }
    NEAR(sum, 10);
    NEAR(top / 10, pow(0.25, 0.55));
    limit_popularity(1, 8, 2, p);
    for (int e = 0; e < 8; e++)
        NEAR(p[e], 0.25);
    limit_popularity(0.05, 8, 4, p); /* more than one is no probability */
    sum = 0;
    for (int e = 0; e < 8; e++) {
        assert_true(p[e] >= 0 && p[e] <= 1);
        sum += p[e];
    }
    NEAR(sum, 4);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(by_hand),
        cmocka_unit_test(more_budget_is_never_worse),
        cmocka_unit_test(popularity_is_what_the_exponent_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
