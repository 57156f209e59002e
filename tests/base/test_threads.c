#include "support.h"

#include "base/threads.h"

#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

static struct thread_pool *open_pool(int n) {
    struct thread_pool *pool;
    TEST_OK(thread_pool_open(n, &pool));
    assert_int_equal(thread_pool_size(pool), n);
    return pool;
}

static void bad_sizes_are_refused(void **state) {
    (void)state;
    struct thread_pool *pool;
    TEST_STATUS(thread_pool_open(0, &pool), ATS_BAD_ARGUMENT);
    assert_null(pool);
    TEST_STATUS(thread_pool_open(513, &pool), ATS_BAD_ARGUMENT);
    thread_pool_close(NULL);
}

/* Plain ints on purpose: the pool itself must order them (TSan sees it if it does not). */
struct count {
    int runs[16], n_seen[16];
};

static void count_run(void *arg, int thread_index, int n_threads) {
    struct count *c = arg;
    c->runs[thread_index]++;
    c->n_seen[thread_index] = n_threads;
}

static void each_run_calls_each_of_n_threads_once(void **state) {
    (void)state;
    const int sizes[] = {1, 2, 3, 7};
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        struct thread_pool *pool = open_pool(sizes[s]);
        struct count c = {0};
        int want[16] = {0};
        for (int i = 0; i < 2000; i++) {
            int n = i % sizes[s] + 1;
            thread_pool_run(pool, n, count_run, &c);
            for (int t = 0; t < n; t++) {
                want[t]++;
                assert_int_equal(c.n_seen[t], n);
            }
            assert_memory_equal(c.runs, want, sizeof want);
        }
        thread_pool_close(pool);
    }
}

static void sleeping_threads_are_woken(void **state) {
    (void)state;
    struct thread_pool *pool = open_pool(3);
    struct count c = {0};
    for (int i = 0; i < 20; i++) {
        usleep(1000); /* longer than they spin; either way the result must be the same */
        thread_pool_run(pool, 3, count_run, &c);
    }
    for (int t = 0; t < 3; t++)
        assert_int_equal(c.runs[t], 20);
    thread_pool_close(pool);
}

enum { STEPS = 500 };
struct relay {
    struct thread_pool *pool;
    int value[8][STEPS]; /* written by one thread before a barrier, read by all after it */
    atomic_int n_wrong;
};

static void relay_run(void *arg, int thread_index, int n_threads) {
    struct relay *r = arg;
    for (int step = 0; step < STEPS; step++) {
        r->value[thread_index][step] = step + thread_index;
        thread_pool_barrier(r->pool);
        for (int t = 0; t < n_threads; t++)
            if (r->value[t][step] != step + t) atomic_fetch_add(&r->n_wrong, 1);
        thread_pool_barrier(r->pool);
        r->value[thread_index][step] = -1; /* nobody may still be reading */
    }
}

static void a_barrier_separates_before_and_after(void **state) {
    (void)state;
    const int sizes[] = {1, 2, 3, 8}; /* 8: more threads than CPUs on most test machines */
    for (size_t s = 0; s < COUNT_OF(sizes); s++) {
        static struct relay r;
        memset(&r, 0, sizeof r);
        r.pool = open_pool(sizes[s]);
        for (int i = 0; i < 3; i++)
            thread_pool_run(r.pool, max_int(1, sizes[s] - i), relay_run, &r);
        assert_int_equal(r.n_wrong, 0);
        thread_pool_close(r.pool);
    }
}

struct late {
    struct thread_pool *pool;
    int order[2];
    int n;
};

/* One thread comes long after the others went to sleep at the barrier. */
static void late_run(void *arg, int thread_index, int n_threads) {
    struct late *l = arg;
    (void)n_threads;
    if (thread_index == 0) {
        usleep(3000);
        l->order[l->n++] = 1;
    }
    thread_pool_barrier(l->pool);
    if (thread_index == 1) l->order[l->n++] = 2;
}

static void a_barrier_waits_for_a_late_thread(void **state) {
    (void)state;
    struct late l = {.pool = open_pool(3)};
    for (int i = 0; i < 5; i++) {
        l.n = 0;
        thread_pool_run(l.pool, 3, late_run, &l);
        assert_int_equal(l.n, 2);
        assert_int_equal(l.order[0], 1);
        assert_int_equal(l.order[1], 2);
    }
    thread_pool_close(l.pool);
}

static void *use_own_pool(void *arg) {
    struct count *c = arg;
    struct thread_pool *pool;
    if (thread_pool_open(2, &pool) != ATS_OK) return NULL;
    for (int i = 0; i < 500; i++)
        thread_pool_run(pool, 2, count_run, c);
    thread_pool_close(pool);
    return NULL;
}

static void pools_do_not_disturb_each_other(void **state) {
    (void)state;
    struct thread threads[3];
    struct count counts[3] = {0};
    for (int i = 0; i < 3; i++)
        TEST_OK(thread_start(&threads[i], use_own_pool, &counts[i]));
    for (int i = 0; i < 3; i++) {
        thread_join(&threads[i]);
        assert_int_equal(counts[i].runs[0], 500);
        assert_int_equal(counts[i].runs[1], 500);
    }
}

/* Where each thread of a run may be. */
static void note_mask(void *arg, int thread_index, int n_threads) {
    struct cpu_mask *masks = arg;
    (void)n_threads;
    if (!cpu_mask_get(pthread_self(), &masks[thread_index])) abort();
}

static void bound_threads_have_a_cpu_each_and_the_caller_its_own_back(void **state) {
    (void)state;
    static int order[CPU_ORDER_MAX];
    struct cpu_mask before, after, want, masks[3];
    assert_true(cpu_mask_get(pthread_self(), &before));
    int n_cpus = cpu_order(order);
    for (int first = 0; first < min_int(n_cpus, 2); first++) {
        int n = min_int(n_cpus - first, 3);
        struct thread_pool *pool = open_pool(n);
        assert_true(thread_pool_bind(pool, first));
        for (int n_run = 1; n_run <= n; n_run++) {
            thread_pool_run(pool, n_run, note_mask, masks);
            for (int t = 0; t < n_run; t++) {
                cpu_mask_one(&want, order[first + t]);
                assert_memory_equal(&masks[t], &want, sizeof want);
            }
            assert_true(cpu_mask_get(pthread_self(), &after));
            assert_memory_equal(&after, &before, sizeof before);
        }
        thread_pool_close(pool);
    }
}

static void too_few_cpus_bind_no_thread(void **state) {
    (void)state;
    static int order[CPU_ORDER_MAX];
    struct cpu_mask before, one, masks[3];
    assert_true(cpu_mask_get(pthread_self(), &before));
    assert_true(cpu_order(order) > 0);
    cpu_mask_one(&one, order[0]);
    struct thread_pool *pool = open_pool(3);
    assert_true(cpu_mask_set(pthread_self(), &one));
    bool bound = thread_pool_bind(pool, 0);
    assert_true(cpu_mask_set(pthread_self(), &before));
    assert_false(bound);
    assert_false(thread_pool_bind(pool, CPU_ORDER_MAX));
    thread_pool_run(pool, 3, note_mask, masks);
    for (int t = 0; t < 3; t++)
        assert_memory_equal(&masks[t], &before, sizeof before);
    thread_pool_close(pool);
}

/* Nanoseconds of CPU that a pool of 3 takes while nobody runs anything on it. */
static uint64_t idle_cpu_ns(void) {
    struct thread_pool *pool = open_pool(3);
    struct count c = {0};
    struct timespec before, after;
    thread_pool_run(pool, 3, count_run, &c);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
    usleep(100000);
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
    thread_pool_close(pool);
    return (uint64_t)((after.tv_sec - before.tv_sec) * 1000000000 + after.tv_nsec - before.tv_nsec);
}

static void idle_threads_sleep(void **state) {
    (void)state;
    assert_true(idle_cpu_ns() < 20000000); /* of 100 ms; spinning would take 200 on free cores */
}

static void ranges_cover_all_items_once_on_grain_borders(void **state) {
    (void)state;
    for (int n_items = 0; n_items < 70; n_items++)
        for (int grain = 1; grain < 9; grain++)
            for (int n_threads = 1; n_threads < 10; n_threads++) {
                int at = 0;
                for (int t = 0; t < n_threads; t++) {
                    int begin, end;
                    split_range(n_items, grain, t, n_threads, &begin, &end);
                    assert_int_equal(begin, at);
                    assert_true(end >= begin && (end % grain == 0 || end == n_items));
                    at = end;
                }
                assert_int_equal(at, n_items);
            }
    int begin, end;
    split_range(INT32_MAX, 64, 511, 512, &begin, &end);
    assert_int_equal(end, INT32_MAX);
}

struct idle {
    struct thread_pool *pool;
    _Atomic int n_calls;
    _Atomic bool late_is_here;
};

static bool count_idle(void *arg) {
    struct idle *idle = arg;
    atomic_fetch_add(&idle->n_calls, 1);
    return true; /* there is always more to do */
}

static void one_comes_late(void *arg, int thread, int n_threads) {
    struct idle *idle = arg;
    (void)n_threads;
    if (thread == 0) {
        while (atomic_load(&idle->n_calls) < 100)
            ; /* the others are idle meanwhile */
        atomic_store(&idle->late_is_here, true);
    }
    thread_pool_barrier_idle(idle->pool, count_idle, idle);
    assert_true(atomic_load(&idle->late_is_here));
}

static void waiting_threads_are_given_something_to_do(void **state) {
    (void)state;
    for (int i = 0; i < 20; i++) {
        struct idle idle = {0};
        TEST_OK(thread_pool_open(3, &idle.pool));
        thread_pool_run(idle.pool, 3, one_comes_late, &idle);
        assert_true(atomic_load(&idle.n_calls) >= 100);
        thread_pool_run(idle.pool, 1, one_comes_late, &idle); /* alone: nobody waits */
        thread_pool_close(idle.pool);
    }
}

static void *give_way(void *arg) {
    thread_give_way();
    *(int *)arg = getpriority(PRIO_PROCESS, 0); /* of this thread alone */
    return NULL;
}

static void a_thread_gives_way_by_itself(void **state) {
    (void)state;
    struct thread t;
    int before = getpriority(PRIO_PROCESS, 0), its = 0;
    TEST_OK(thread_start(&t, give_way, &its));
    thread_join(&t);
    assert_int_equal(getpriority(PRIO_PROCESS, 0), before);
    assert_int_equal(its, before < 9 ? before + 10 : 19);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(waiting_threads_are_given_something_to_do),
        cmocka_unit_test(bad_sizes_are_refused),
        cmocka_unit_test(each_run_calls_each_of_n_threads_once),
        cmocka_unit_test(sleeping_threads_are_woken),
        cmocka_unit_test(a_barrier_separates_before_and_after),
        cmocka_unit_test(a_barrier_waits_for_a_late_thread),
        cmocka_unit_test(pools_do_not_disturb_each_other),
        cmocka_unit_test(bound_threads_have_a_cpu_each_and_the_caller_its_own_back),
        cmocka_unit_test(too_few_cpus_bind_no_thread),
        cmocka_unit_test(idle_threads_sleep),
        cmocka_unit_test(a_thread_gives_way_by_itself),
        cmocka_unit_test(ranges_cover_all_items_once_on_grain_borders),
    };
    return cmocka_run_group_tests_name("base/threads", tests, NULL, NULL);
}
