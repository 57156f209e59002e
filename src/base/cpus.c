#include "base/threads.h"

#include "base/cgroup.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The affinity mask of the process: mask[0..CPU_ORDER_MAX), returns how many are set (0: unknown).
 */
static int affinity_read(bool *mask) {
    cpu_set_t *set = CPU_ALLOC(CPU_ORDER_MAX);
    size_t bytes = CPU_ALLOC_SIZE(CPU_ORDER_MAX);
    int n = 0;
    if (set && sched_getaffinity(0, bytes, set) == 0) {
        for (size_t i = 0; i < CPU_ORDER_MAX; i++) {
            mask[i] = CPU_ISSET_S(i, bytes, set) != 0;
            n += mask[i];
        }
    }
    CPU_FREE(set);
    return n;
}

/* quota microseconds of CPU time per period; part of a CPU is none, but one is always left. A
 * group above may be stricter than ours. */
static void take_quota(int64_t quota, int64_t period, int *n_cpus) {
    if (quota <= 0 || period <= 0) return;
    int n = (int)max_i64(1, min_i64(quota / period, CPU_ORDER_MAX));
    if (*n_cpus == 0 || n < *n_cpus) *n_cpus = n;
}

int cpu_quota_read(const char *root) {
    struct arena a = {0};
    struct cgroup_dirs dirs;
    char text[128], text2[128];
    int n_cpus = 0;
    cgroup_find(&a, root, "cpu", 2, &dirs);
    for (int i = 0; i < dirs.n; i++) {
        int64_t quota, period;
        if (small_file_read(arena_printf(&a, "%s/cpu.max", dirs.paths[i]), text, sizeof text) &&
            sscanf(text, "%" SCNd64 " %" SCNd64, &quota, &period) == 2) /* "max" means none */
            take_quota(quota, period, &n_cpus);
    }
    cgroup_find(&a, root, "cpu", 1, &dirs);
    for (int i = 0; i < dirs.n; i++) {
        const char *dir = dirs.paths[i];
        if (small_file_read(arena_printf(&a, "%s/cpu.cfs_quota_us", dir), text, sizeof text) &&
            small_file_read(arena_printf(&a, "%s/cpu.cfs_period_us", dir), text2, sizeof text2))
            take_quota(strtoll(text, NULL, 10), strtoll(text2, NULL, 10), &n_cpus);
    }
    arena_free(&a);
    return n_cpus;
}

int64_t cpu_cache_bytes(void) {
    long bytes = max_i64(sysconf(_SC_LEVEL3_CACHE_SIZE), sysconf(_SC_LEVEL2_CACHE_SIZE));
    return bytes > 0 ? bytes : (int64_t)32 << 20;
}

int cpu_count_usable(void) {
    bool *mask = xcalloc(CPU_ORDER_MAX, sizeof *mask);
    int n = affinity_read(mask);
    free(mask);
    if (n == 0) n = (int)max_i64(1, min_i64(sysconf(_SC_NPROCESSORS_ONLN), CPU_ORDER_MAX));
    int quota = cpu_quota_read("");
    return quota > 0 ? min_int(n, quota) : n;
}

/* Marks the CPUs of a list like "0-3,8". */
static void list_parse(const char *list, bool *in, int n) {
    while (*list >= '0' && *list <= '9') {
        char *end;
        long first = strtol(list, &end, 10), last = first;
        if (*end == '-') last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < n; i++)
            in[i] = true;
        if (*end != ',') return;
        list = end + 1;
    }
}

/* Speed of a CPU in the system's own measure (capacity, else top frequency); 0: not told. */
static int64_t cpu_speed(const char *cpus_dir, int cpu) {
    const char *names[] = {"cpu_capacity", "cpufreq/cpuinfo_max_freq"};
    char text[64];
    int64_t speed = 0;
    struct arena a = {0};
    for (size_t i = 0; i < COUNT_OF(names) && speed == 0; i++)
        if (small_file_read(arena_printf(&a, "%s/cpu%d/%s", cpus_dir, cpu, names[i]), text,
                            sizeof text))
            speed = strtoll(text, NULL, 10);
    arena_free(&a);
    return speed;
}

/* The lowest numbered CPU of the core that `cpu` belongs to. */
static int core_of(const char *cpus_dir, int cpu) {
    char text[256];
    struct arena a = {0};
    const char *path = arena_printf(&a, "%s/cpu%d/topology/thread_siblings_list", cpus_dir, cpu);
    int core = small_file_read(path, text, sizeof text) ? atoi(text) : cpu;
    arena_free(&a);
    return core;
}

struct cpu {
    int index;
    int64_t speed;
    bool named;  /* of the core kind that Intel's hybrid parts list by name */
    bool second; /* hardware thread of a core that is in the list already */
};

/* The CPUs of the mask in the order of their numbers; returns how many. */
static int cpus_read(struct arena *a, const char *root, const bool *mask, int n_mask,
                     struct cpu *cpus) {
    bool *named = ARENA_ARRAY(a, bool, n_mask), *taken = ARENA_ARRAY(a, bool, n_mask);
    const char *cpus_dir = arena_printf(a, "%s/sys/devices/system/cpu", root);
    char list[4096];
    if (small_file_read(arena_printf(a, "%s/sys/devices/cpu_core/cpus", root), list, sizeof list))
        list_parse(list, named, n_mask);
    int n = 0;
    for (int i = 0; i < n_mask; i++) {
        if (!mask[i]) continue;
        int core = core_of(cpus_dir, i);
        if (core < 0 || core >= n_mask) core = i;
        cpus[n++] = (struct cpu){i, cpu_speed(cpus_dir, i), named[i], taken[core]};
        taken[core] = true;
    }
    return n;
}

/*
 * Fast: of the core kind that is named; else at least 70% of the fastest (a big core beside a
 * prime one counts, a little one does not). A core with several hardware threads counts once: they
 * share the arithmetic units that we keep busy.
 */
int cpu_fast_read(const char *root, const bool *mask, int n_mask) {
    struct arena a = {0};
    struct cpu *cpus = ARENA_ARRAY(&a, struct cpu, n_mask);
    int n = cpus_read(&a, root, mask, n_mask, cpus), n_fast = 0;
    int64_t best = 0;
    bool any_named = false;
    for (int i = 0; i < n; i++) {
        best = max_i64(best, cpus[i].speed);
        any_named |= cpus[i].named;
    }
    for (int i = 0; i < n; i++)
        n_fast += !cpus[i].second && (any_named ? cpus[i].named : cpus[i].speed * 10 >= best * 7);
    arena_free(&a);
    return max_int(n_fast, 1);
}

/* One of each core before the second of any, the faster kind first. */
static int cpu_compare(const void *left, const void *right) {
    const struct cpu *a = left, *b = right;
    if (a->second != b->second) return a->second - b->second;
    if (a->named != b->named) return b->named - a->named;
    if (a->speed != b->speed) return a->speed < b->speed ? 1 : -1;
    return a->index - b->index;
}

int cpu_order_read(const char *root, const bool *mask, int n_mask, int *order) {
    struct arena a = {0};
    struct cpu *cpus = ARENA_ARRAY(&a, struct cpu, n_mask);
    int n = cpus_read(&a, root, mask, n_mask, cpus);
    qsort(cpus, (size_t)n, sizeof *cpus, cpu_compare);
    for (int i = 0; i < n; i++)
        order[i] = cpus[i].index;
    arena_free(&a);
    return n;
}

int cpu_order(int *order) {
    bool *mask = xcalloc(CPU_ORDER_MAX, sizeof *mask);
    int n = affinity_read(mask) > 0 ? cpu_order_read("", mask, CPU_ORDER_MAX, order) : 0;
    free(mask);
    return n;
}

static cpu_set_t *set_of(struct cpu_mask *mask) {
    return (cpu_set_t *)(void *)mask->bits;
}

bool cpu_mask_get(pthread_t thread, struct cpu_mask *out) {
    memset(out, 0, sizeof *out);
    return pthread_getaffinity_np(thread, sizeof *out, set_of(out)) == 0;
}

bool cpu_mask_set(pthread_t thread, const struct cpu_mask *mask) {
    struct cpu_mask copy = *mask; /* as the C library has no const view of one */
    return pthread_setaffinity_np(thread, sizeof copy, set_of(&copy)) == 0;
}

void cpu_mask_one(struct cpu_mask *out, int cpu) {
    REQUIRE(cpu >= 0 && cpu < CPU_ORDER_MAX);
    memset(out, 0, sizeof *out);
    CPU_SET_S((size_t)cpu, sizeof *out, set_of(out));
}

int cpu_count_fast(void) {
    int usable = cpu_count_usable();
    bool *mask = xcalloc(CPU_ORDER_MAX, sizeof *mask);
    int n = affinity_read(mask) > 0 ? cpu_fast_read("", mask, CPU_ORDER_MAX) : usable;
    free(mask);
    return min_int(n, usable);
}

#if defined(__x86_64__) && defined(SYS_arch_prctl)
bool cpu_tiles_permit(void) {
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, its state */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
}
#else
bool cpu_tiles_permit(void) {
    return false;
}
#endif
