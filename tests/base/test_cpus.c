#include "support.h"

#include "base/cgroup.h"
#include "base/file.h"
#include "base/threads.h"

#include <sched.h>
#include <stdio.h>
#include <sys/stat.h>

/* A made-up machine: files under a temporary root, as the kernel would show them. */
static char root[512];
static int n_roots;

static void new_root(void) {
    char name[32];
    snprintf(name, sizeof name, "root%d", n_roots++);
    test_tmp_path(root, sizeof root, name);
}

static void put(const char *path, const char *text) {
    char full[1024];
    snprintf(full, sizeof full, "%s%s", root, path);
    for (char *p = full + strlen(root); *p; p++) {
        if (*p != '/') continue;
        *p = 0;
        mkdir(full, 0700);
        *p = '/';
    }
    TEST_OK(file_write(full, text, strlen(text)));
}

static void put_cpu(int cpu, const char *name, const char *text) {
    char path[256];
    snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu%d/%s", cpu, name);
    put(path, text);
}

static void remove_root(void **state) {
    (void)state;
    char command[600];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    assert_int_equal(system(command), 0);
}

static void quotas_of_version_2_are_read_up_to_the_root(void **state) {
    (void)state;
    new_root();
    put("/proc/self/cgroup", "0::/a/b\n");
    put("/sys/fs/cgroup/cgroup.controllers", "cpu\n");
    assert_int_equal(cpu_quota_read(root), 0);
    put("/sys/fs/cgroup/a/b/cpu.max", "max 100000\n");
    assert_int_equal(cpu_quota_read(root), 0);
    put("/sys/fs/cgroup/a/cpu.max", "350000 100000\n");
    assert_int_equal(cpu_quota_read(root), 3);
    put("/sys/fs/cgroup/a/b/cpu.max", "50000 100000\n");
    assert_int_equal(cpu_quota_read(root), 1);
    put("/sys/fs/cgroup/a/b/cpu.max", "nonsense\n");
    assert_int_equal(cpu_quota_read(root), 3);
    remove_root(state);
}

static void a_container_sees_its_group_as_the_root(void **state) {
    (void)state;
    new_root();
    put("/proc/self/cgroup", "0::/docker/0123456789\n");
    put("/sys/fs/cgroup/cgroup.controllers", "cpu\n");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_int_equal(cpu_quota_read(root), 2);
    remove_root(state);
}

static void quotas_of_version_1_are_read(void **state) {
    (void)state;
    new_root();
    put("/proc/self/cgroup", "4:memory:/x\n3:cpu,cpuacct:/x\n0::/\n");
    put("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_quota_us", "400000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/x/cpu.cfs_period_us", "100000\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us", "-1\n");
    put("/sys/fs/cgroup/cpu,cpuacct/cpu.cfs_period_us", "100000\n");
    assert_int_equal(cpu_quota_read(root), 4);
    remove_root(state);
}

static void hardware_threads_of_a_core_count_once(void **state) {
    (void)state;
    new_root();
    const char *siblings[] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n"};
    bool mask[16] = {0};
    for (int i = 0; i < 8; i++) {
        put_cpu(i, "topology/thread_siblings_list", siblings[i % 4]);
        mask[i] = true;
    }
    assert_int_equal(cpu_fast_read(root, mask, 16), 4);
    memset(mask, 0, 5); /* leaves the second threads of cores 1 to 3 */
    assert_int_equal(cpu_fast_read(root, mask, 16), 3);
    memset(mask, 0, sizeof mask);
    assert_int_equal(cpu_fast_read(root, mask, 16), 1);
    remove_root(state);
}

static void slow_kinds_of_core_do_not_count(void **state) {
    (void)state;
    new_root();
    bool mask[8] = {true, true, true, true, true, true, true, true};
    const char *capacity[] = {"250", "250", "250", "250", "870", "870", "870", "1024"};
    for (int i = 0; i < 8; i++)
        put_cpu(i, "cpu_capacity", capacity[i]);
    assert_int_equal(cpu_fast_read(root, mask, 8), 4);
    memset(mask + 4, 0, 4); /* only slow ones allowed: then these are the fastest */
    assert_int_equal(cpu_fast_read(root, mask, 8), 4);
    remove_root(state);

    new_root();
    memset(mask, 1, sizeof mask);
    for (int i = 0; i < 8; i++)
        put_cpu(i, "cpufreq/cpuinfo_max_freq", i < 2 ? "5100000\n" : "3300000\n");
    assert_int_equal(cpu_fast_read(root, mask, 8), 2);
    put("/sys/devices/cpu_core/cpus", "0-2,5\n"); /* Intel names them: no guess needed */
    assert_int_equal(cpu_fast_read(root, mask, 8), 4);
    remove_root(state);
}

static void threads_are_bound_to_cores_of_the_fastest_kind_first(void **state) {
    (void)state;
    new_root();
    bool mask[8] = {true, true, true, true, true, true, true, true};
    int order[8];
    const char *siblings[] = {"0-1", "0-1", "2-3", "2-3", "4", "5", "6", "7"};
    const char *khz[] = {"4900000", "4900000", "5100000", "5100000",
                         "3300000", "3800000", "3300000", "3800000"};
    for (int i = 0; i < 8; i++) {
        put_cpu(i, "topology/thread_siblings_list", siblings[i]);
        put_cpu(i, "cpufreq/cpuinfo_max_freq", khz[i]);
    }
    const int by_speed[] = {2, 0, 5, 7, 4, 6, 3, 1};
    assert_int_equal(cpu_order_read(root, mask, 8, order), 8);
    assert_memory_equal(order, by_speed, sizeof by_speed);
    put("/sys/devices/cpu_core/cpus", "0-3\n");
    put_cpu(7, "cpufreq/cpuinfo_max_freq", "9900000"); /* the named kind comes first all the same */
    mask[2] = mask[5] = false;
    const int of_the_mask[] = {3, 0, 7, 4, 6, 1};
    assert_int_equal(cpu_order_read(root, mask, 8, order), 6);
    assert_memory_equal(order, of_the_mask, sizeof of_the_mask);
    remove_root(state);
}

static void both_a_quota_and_a_cpuset_hold(void **state) {
    (void)state;
    static int order[CPU_ORDER_MAX];
    new_root();
    put("/proc/self/cgroup", "0::/\n");
    put("/sys/fs/cgroup/cgroup.controllers", "cpu\n");
    put("/sys/fs/cgroup/cpu.max", "200000 100000\n");
    assert_int_equal(cpu_quota_read(root), 2);
    put("/sys/fs/cgroup/cpu.max", "50000 100000\n"); /* half a CPU is still a thread */
    assert_int_equal(cpu_quota_read(root), 1);
    remove_root(state);
    cpu_set_t allowed;
    assert_int_equal(sched_getaffinity(0, sizeof allowed, &allowed), 0);
    int n = cpu_order(order);
    assert_int_equal(n, CPU_COUNT(&allowed));
    for (int i = 0; i < n; i++) {
        assert_true(CPU_ISSET(order[i], &allowed));
        CPU_CLR(order[i], &allowed); /* each once */
    }
    assert_in_range(cpu_count_usable(), 1, n);
}

static void the_affinity_mask_is_respected(void **state) {
    (void)state;
    cpu_set_t old, one;
    assert_int_equal(sched_getaffinity(0, sizeof old, &old), 0);
    int usable = cpu_count_usable(), fast = cpu_count_fast();
    assert_in_range(usable, 1, CPU_COUNT(&old));
    assert_in_range(fast, 1, usable);
    CPU_ZERO(&one);
    for (int i = 0; i < CPU_SETSIZE; i++)
        if (CPU_ISSET(i, &old)) {
            CPU_SET(i, &one);
            break;
        }
    assert_int_equal(sched_setaffinity(0, sizeof one, &one), 0);
    assert_int_equal(cpu_count_usable(), 1);
    assert_int_equal(cpu_count_fast(), 1);
    assert_int_equal(sched_setaffinity(0, sizeof old, &old), 0);
}

static void memory_is_the_machines_or_the_containers(void **state) {
    (void)state;
    struct memory_info info;
    new_root();
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemFree:  5 kB\nMemAvailable:    600 kB\n");
    memory_info_read_at(root, &info);
    assert_int_equal(info.total_bytes, 1000 * 1024);
    assert_int_equal(info.available_bytes, 600 * 1024);
    put("/proc/self/cgroup", "0::/a\n");
    put("/sys/fs/cgroup/cgroup.controllers", "memory\n");
    put("/sys/fs/cgroup/a/memory.max", "max\n");
    memory_info_read_at(root, &info);
    assert_int_equal(info.total_bytes, 1000 * 1024);
    put("/sys/fs/cgroup/a/memory.max", "512000\n");
    put("/sys/fs/cgroup/a/memory.current", "300000\n");
    put("/sys/fs/cgroup/a/memory.stat", "anon 1\ninactive_file 100000\nother 5\n");
    memory_info_read_at(root, &info);
    assert_int_equal(info.total_bytes, 512000);
    assert_int_equal(info.available_bytes, 312000);
    put("/sys/fs/cgroup/a/memory.current", "900000\n"); /* over its limit: nothing left */
    memory_info_read_at(root, &info);
    assert_int_equal(info.available_bytes, 0);
    remove_root(state);

    new_root();
    put("/proc/meminfo", "MemTotal:       1000 kB\nMemAvailable:    600 kB\n");
    put("/proc/self/cgroup", "4:memory:/x\n");
    put("/sys/fs/cgroup/memory/x/memory.limit_in_bytes", "400000\n");
    put("/sys/fs/cgroup/memory/x/memory.usage_in_bytes", "100000\n");
    put("/sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    memory_info_read_at(root, &info);
    assert_int_equal(info.total_bytes, 400000);
    assert_int_equal(info.available_bytes, 300000);
    remove_root(state);
}

static void tiles_once_permitted_stay_so(void **state) {
    (void)state;
    bool first = cpu_tiles_permit();
    assert_int_equal(cpu_tiles_permit(), first);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tiles_once_permitted_stay_so),
        cmocka_unit_test(quotas_of_version_2_are_read_up_to_the_root),
        cmocka_unit_test(a_container_sees_its_group_as_the_root),
        cmocka_unit_test(quotas_of_version_1_are_read),
        cmocka_unit_test(hardware_threads_of_a_core_count_once),
        cmocka_unit_test(slow_kinds_of_core_do_not_count),
        cmocka_unit_test(threads_are_bound_to_cores_of_the_fastest_kind_first),
        cmocka_unit_test(both_a_quota_and_a_cpuset_hold),
        cmocka_unit_test(the_affinity_mask_is_respected),
        cmocka_unit_test(memory_is_the_machines_or_the_containers),
    };
    return cmocka_run_group_tests_name("base/cpus", tests, NULL, NULL);
}
