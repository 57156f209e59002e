/*
 * Placement timed: CPU time of solving 400 items for 24 GiB, dense and with experts, at every
 * granularity. Prints a line each; the median of 7. Run by hand: bench_placement.
 */
#include "machine.h"
#include "plan/placement.h"
#include "support.h"
#include "tiny_graph.h"

#include <stdio.h>
#include <time.h>

enum { REPEATS = 7 };

static const struct tiny_shape dense = {.n_layers = 50,
                                        .n_heads = 64,
                                        .n_kv_heads = 8,
                                        .head_dim = 128,
                                        .n_embd = 8192,
                                        .n_ff = 28672,
                                        .n_vocab = 128256,
                                        .dtype = DTYPE_Q4_K,
                                        .dtype_down = DTYPE_Q6_K,
                                        .row_group = 16};
static const struct tiny_shape moe = {.n_layers = 57,
                                      .n_heads = 32,
                                      .n_kv_heads = 4,
                                      .head_dim = 128,
                                      .n_embd = 2048,
                                      .n_ff = 768,
                                      .n_vocab = 151936,
                                      .dtype = DTYPE_Q4_K,
                                      .row_group = 16,
                                      .n_experts = 128,
                                      .n_used = 8};

static double cpu_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec / 1e6;
}

static int ascending(const void *a, const void *b) {
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* 400 items: what a model has beyond them is left out, the head is kept. */
static void bench(const char *name, const struct tiny_shape *shape) {
    static const char *const granularities[] = {"layer", "expert", "tensor", "shard"};
    const int64_t budget = INT64_C(24) << 30;
    for (int g = GRANULARITY_LAYER; g <= GRANULARITY_SHARD; g++)
        for (int tie = 0; tie < 2; tie++) {
            double ms[REPEATS], decode_s = 0;
            int n_items = 0;
            for (int i = 0; i < REPEATS; i++) {
                struct arena arena = {0};
                struct items_options o = items_options_default();
                struct items *items;
                struct placement *p;
                struct placement_options options = placement_options_default(o.n_ctx);
                options.granularity = (enum granularity)g;
                options.prompt_tokens = 0;
                if (!tie) options.tie = 0;
                TEST_OK(items_build(&arena, tiny_graph(&arena, shape), machine_laptop(&arena), &o,
                                    &items));
                double begin = cpu_ms();
                TEST_OK(placement_solve(&arena, items, &options, &budget, 1, &p));
                ms[i] = cpu_ms() - begin;
                decode_s = p->decode_s;
                n_items = items->n_items;
                arena_free(&arena);
            }
            qsort(ms, REPEATS, sizeof *ms, ascending);
            printf("%-6s %-7s %s %4d items: %6.1f ms CPU, decode %.3f ms\n", name, granularities[g],
                   tie ? "with ties" : "alone    ", n_items, ms[REPEATS / 2], decode_s * 1e3);
        }
}

int main(void) {
    bench("dense", &dense);
    bench("moe", &moe);
    return 0;
}
