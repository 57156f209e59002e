/*
 * Threads: a pool that runs one function on n threads, and the primitives under it. Started only
 * by base/threads, run/, backend/ and app/ (conventions.md).
 */
#pragma once

#include "base/error.h"
#include <pthread.h>
#include <stdatomic.h>

/* CPUs this process may use: affinity mask and container quota (cgroup v1 and v2) respected. >= 1
 */
int cpu_count_usable(void);
/* Those of the fastest kind, one per core; what a compute-bound pool should use. >= 1 */
int cpu_count_fast(void);
/* Of the largest cache of a CPU; 32 MiB if the system does not say. */
int64_t cpu_cache_bytes(void);

enum { CPU_ORDER_MAX = 8192 };
/* The CPUs of the affinity mask in the order in which threads should be bound to them: one of each
 * core before the second of any, the fastest kind first. order: CPU_ORDER_MAX; returns how many
 * there are, 0 if the system does not tell. */
int cpu_order(int *order);

/* CPUs that a thread may run on. The calls return false where the system does not allow it. */
struct cpu_mask {
    unsigned long bits[CPU_ORDER_MAX / (8 * sizeof(unsigned long))];
};
bool cpu_mask_get(pthread_t thread, struct cpu_mask *out);
bool cpu_mask_set(pthread_t thread, const struct cpu_mask *mask);
void cpu_mask_one(struct cpu_mask *out, int cpu);

/* Asks the system to let this process use the processor's tile registers (x86-64 AMX), whose state
 * it does not keep unasked. Holds for all threads from then on, and may be asked again; false where
 * there are none or the system refuses. Source: the kernel's documentation of XSTATE permissions.
 */
bool cpu_tiles_permit(void);

/* n threads, the caller of thread_pool_run being number 0 (n - 1 are started). */
struct thread_pool;
MUST_CHECK ats_status thread_pool_open(int n_threads, struct thread_pool **out); /* 1..512 */
void thread_pool_close(struct thread_pool *pool);                                /* accepts NULL */
int thread_pool_size(const struct thread_pool *pool);

/* Binds each thread to a CPU of its own, from number `first` of cpu_order() on; thread 0, the
 * caller of a run, only while it runs. Before the first run. Where the CPUs do not suffice or the
 * system does not allow it, no thread is bound, a warning says so, and it returns false. */
bool thread_pool_bind(struct thread_pool *pool, int first);

/* Runs fn(arg, thread_index, n) on the first n threads (1..size), returns when all are done.
 * Writes of the caller before are seen by all, writes of all are seen by the caller after.
 * Idle threads spin for a bounded time (about 50 us), then sleep. */
typedef void pool_fn(void *arg, int thread_index, int n_threads);
void thread_pool_run(struct thread_pool *pool, int n, pool_fn *fn, void *arg);
/* Inside fn: waits until all n threads of this run are here. Spins briefly, then sleeps, so one
 * busy core less does not cost a scheduler quantum a call. Full memory ordering. */
void thread_pool_barrier(struct thread_pool *pool);
/* The same; a thread that has to wait calls fn(arg) meanwhile, again and again until it returns
 * false. Each call should be well below a microsecond. */
typedef bool pool_idle_fn(void *arg);
void thread_pool_barrier_idle(struct thread_pool *pool, pool_idle_fn *fn, void *arg);

/* One item range of [0, n_items) for a thread, in multiples of `grain` (last one cut). */
ALWAYS_INLINE void split_range(int n_items, int grain, int thread_index, int n_threads, int *begin,
                               int *end) {
    int64_t n_grains = (n_items + (int64_t)grain - 1) / grain;
    *begin = (int)min_i64(n_items, n_grains * thread_index / n_threads * grain);
    *end = (int)min_i64(n_items, n_grains * (thread_index + 1) / n_threads * grain);
}

/* Plain thread, mutex and condition: pthread's, which the sanitizers know. */
struct thread {
    pthread_t id;
};
MUST_CHECK ats_status thread_start(struct thread *t, void *(*fn)(void *), void *arg);
void thread_join(struct thread *t);
/* The calling thread gives way to all others wherever CPUs are short, for good. */
void thread_give_way(void);
