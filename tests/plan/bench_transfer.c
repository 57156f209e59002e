/* Not a test: what deciding a transfer costs, of chains as long as large models', processor time.
 */
#include "base/rng.h"
#include "plan/transfer.h"

#include <math.h>
#include <stdio.h>
#include <time.h>

enum { N = 400 };

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

/* Layers of seven products; some held by the device, some divided, the rest on the host. */
static void make_items(struct rng *rng, double rate, int n_units, struct transfer_item *items) {
    static const double mib[] = {14, 3, 3, 14, 48, 48, 58};
    for (int i = 0; i < N; i++) {
        double bytes = mib[i % 7] * 1048576;
        double cpu_s = rate * bytes / 40e9, gpu_s = bytes / 300e9 + 5e-6;
        int kind = (int)rng_below(rng, 3);
        items[i] = (struct transfer_item){.base = {.place = (enum timeline_place)kind,
                                                   .up_s = 25e-6,
                                                   .down_s = 25e-6,
                                                   .exchange_s = 40e-6},
                                          .n_units = kind == TIMELINE_GPU ? 0 : n_units,
                                          .copy_s = bytes / 24e9,
                                          .streamed_s = gpu_s};
        if (kind != TIMELINE_GPU) items[i].base.cpu_s = kind == TIMELINE_BOTH ? cpu_s / 2 : cpu_s;
        if (kind == TIMELINE_BOTH) items[i].copy_s /= 2, items[i].streamed_s /= 2;
        if (kind != TIMELINE_CPU) items[i].base.gpu_s = gpu_s;
    }
}

int main(void) {
    struct rng rng;
    rng_seed(&rng, 1);
    struct transfer_item items[N];
    for (int way = 0; way < 8; way++) {
        make_items(&rng, way & 1 ? 20 : 1, way & 2 ? 32 : 1, items);
        struct transfer_problem p = {items, N, timeline_machine_ideal(way & 4 ? 4 : 2), true};
        p.machine.cpu_speed_copying = 0.7;
        p.machine.copy_speed_cpu = 0.85;
        struct arena arena = {0};
        int units[N];
        double t0 = now_ms();
        transfer_labels(&arena, &p, NULL, units);
        double t1 = now_ms();
        transfer_paper(&p, units);
        double t2 = now_ms();
        struct transfer_schedule s;
        transfer_solve(&arena, &p, TRANSFER_LABELS, &s);
        double t3 = now_ms();
        printf(
            "%s, %2d units, %d slots: labels %.2f ms, paper %.2f ms, solve %.2f ms; none %.2f ms,"
            " paper %.2f, labels %.2f, share %.2f, best %.2f (%s, %d flips)\n",
            way & 1 ? "slow CPU" : "fast CPU", items[0].n_units ? items[0].n_units : 1,
            p.machine.n_slots, t1 - t0, t2 - t1, t3 - t2, s.proposed_s[0] * 1e3,
            s.proposed_s[1] * 1e3, s.proposed_s[2] * 1e3, s.proposed_s[3] * 1e3,
            s.result.round_s * 1e3, transfer_rule_name(s.from), s.n_flips);
        arena_free(&arena);
    }
    return 0;
}
