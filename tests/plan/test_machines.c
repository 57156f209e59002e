/* The machine descriptions that are shipped: read, and consistent in themselves. */
#include "plan/profile.h"
#include "support.h"

#include <stdio.h>

static const char *const machines[] = {
    "laptop-rtx3060-6gb",     "desktop-rtx4090-24gb",
    "desktop-rtx4060-8gb",    "desktop-rtx3060-12gb-pcie3",
    "desktop-rtx5070-12gb",   "desktop-rx7600-8gb",
    "desktop-rx7900xtx-24gb", "desktop-arc-b580-12gb",
    "laptop-radeon-890m-apu", "steam-deck-apu",
};

static void they_are_read_and_consistent(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(machines); i++) {
        char relative[64], path[512];
        struct arena arena = {0};
        struct profile *p;
        snprintf(relative, sizeof relative, "machines/%s.json", machines[i]);
        test_source_path(path, sizeof path, relative);
        TEST_OK(profile_read(&arena, path, &p));
        assert_true(p->has_rates && p->name[0] && p->n_items == 0);
        double cpu = p->rates[SIDE_CPU].default_bytes, gpu = p->rates[SIDE_GPU].default_bytes;
        const struct profile_interference *f = &p->interference;
        /* nobody reads faster than the memory, alone or together */
        assert_true(cpu <= p->dram_bytes && gpu <= p->vram_bytes);
        if (p->shared) {
            assert_true(f->cpu_speed_gpu < 1 && f->gpu_speed_cpu < 1);
            assert_true(f->cpu_speed_gpu * cpu + f->gpu_speed_cpu * gpu <= 1.001 * p->dram_bytes);
        } else {
            double together = f->cpu_speed_copying * cpu + f->copy_speed_cpu * p->link.up_pinned;
            assert_true(together <= 1.001 * p->dram_bytes);
            assert_true(f->cpu_speed_gpu >= 1 && f->gpu_speed_cpu >= 1);
        }
        assert_true(p->link.up_staged <= p->link.up_pinned);
        assert_true(p->rates[SIDE_GPU].default_flop > p->rates[SIDE_CPU].default_flop);
        arena_free(&arena);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(they_are_read_and_consistent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
