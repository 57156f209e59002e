#include "base/threads.h"

#include "base/arena.h"
#include "base/clock.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/*
 * Everything waits on a 32-bit word that somebody else changes: spin for a bounded time, then
 * sleep on a condition. The order that makes it safe: a waiter counts itself as asleep, then looks
 * at the word once more; a waker changes the word, then looks at the count (both sequentially
 * consistent, so one of them sees the other).
 */
enum {
    MAX_THREADS = 512,
    N_BITS = 10,     /* of the start word: n of the run; the rest counts runs */
    SPIN_NS = 50000, /* longer than the gaps between operators of a round */
    SPIN_BRIEF_NS = 2000,
    GIVE_WAY_NICE = 10, /* a tenth of a CPU beside a thread that wants all of it */
    MAX_STREAK = 4,
    SPIN_PAUSES = 32, /* between two looks at the clock */
    FEW_THREADS = 4,  /* that all look at the word in which they arrive */
};

/*
 * How long a thread spins. Where CPUs are short (other programs, more threads than CPUs), whom we
 * wait for may need this very CPU, and spinning only delays it. Spins in vain tell: one is nothing
 * (the caller has other work between rounds), several in a row make the next ones brief, with a
 * full one in between to see whether times are better.
 */
struct spin {
    int streak;  /* full spins in vain, in a row */
    int n_brief; /* brief ones until the next full one */
};
static _Thread_local struct spin spin;

struct sleepers {
    atomic_int n_asleep; /* first: on the cache line of the word that stands before it */
    pthread_mutex_t mutex;
    pthread_cond_t cond;
};

/* On cache lines of its own: written by one thread, or by the sleep path only. */
struct worker {
    _Alignas(64) struct sleepers sleepers;
    struct thread_pool *pool;
    struct thread thread;
    int index;
};

struct thread_pool {
    _Alignas(64) atomic_uint start; /* run count << N_BITS | n of that run */
    _Alignas(64) atomic_int n_running;
    _Alignas(64) atomic_uint done; /* the start word of the last finished run */
    struct sleepers done_sleepers;
    /* The barrier: what a thread touches there is on one cache line, for between two phases all of
     * them have usually left the caches. */
    _Alignas(64) atomic_uint arrived; /* of this run, at all its barriers */
    int n;                            /* threads of this run */
    struct sleepers barrier_sleepers;
    _Alignas(64) atomic_uint released; /* the part of `arrived` that may go on, if n is large */
    struct worker *workers;            /* (size - 1), owned */
    int size;
    bool bound; /* thread 0 runs where caller_mask says, the others were sent to theirs */
    struct cpu_mask caller_mask;
    atomic_bool stop, busy;
    /* Of the current run; written only while no worker takes part in one. */
    pool_fn *fn;
    void *arg;
};

ALWAYS_INLINE void cpu_pause(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("isb" ::: "memory"); /* yield is a nop on most cores; isb waits some 10 ns */
#endif
}

static void sleepers_init(struct sleepers *s) {
    pthread_mutex_init(&s->mutex, NULL);
    pthread_cond_init(&s->cond, NULL);
}

static void sleepers_destroy(struct sleepers *s) {
    pthread_cond_destroy(&s->cond);
    pthread_mutex_destroy(&s->mutex);
}

static void wake(struct sleepers *s) {
    if (LIKELY(atomic_load(&s->n_asleep) == 0)) return;
    pthread_mutex_lock(&s->mutex);
    pthread_cond_broadcast(&s->cond);
    pthread_mutex_unlock(&s->mutex);
}

static bool spin_change(atomic_uint *word, unsigned old, uint64_t spin_ns) {
    for (uint64_t until = 0;;) {
        for (int i = 0; i < SPIN_PAUSES; i++) {
            if (atomic_load_explicit(word, memory_order_acquire) != old) return true;
            cpu_pause();
        }
        uint64_t now = clock_ns();
        if (until == 0) until = now + spin_ns;
        if (now >= until) return false;
    }
}

/* Returns once *word differs from `old`. */
static void wait_change(atomic_uint *word, unsigned old, struct sleepers *s) {
    bool brief = spin.n_brief > 0;
    bool changed = spin_change(word, old, brief ? SPIN_BRIEF_NS : SPIN_NS);
    if (brief) {
        spin.n_brief--;
    } else if (changed) {
        spin.streak = 0;
    } else {
        spin.streak = min_int(spin.streak + 1, MAX_STREAK);
        spin.n_brief = (1 << spin.streak) - 2;
    }
    if (changed) return;
    pthread_mutex_lock(&s->mutex);
    atomic_fetch_add(&s->n_asleep, 1);
    while (atomic_load(word) == old)
        pthread_cond_wait(&s->cond, &s->mutex);
    atomic_fetch_sub(&s->n_asleep, 1);
    pthread_mutex_unlock(&s->mutex);
}

static void *worker_main(void *arg) {
    struct worker *w = arg;
    struct thread_pool *pool = w->pool;
    unsigned seen = 0;
    for (;;) {
        wait_change(&pool->start, seen, &w->sleepers);
        if (atomic_load(&pool->stop)) return NULL;
        seen = atomic_load(&pool->start);
        /* Whoever is not in the run must not look at it: the next one may be being written. */
        int n = (int)(seen & ((1u << N_BITS) - 1));
        if (w->index >= n) continue;
        pool->fn(pool->arg, w->index, n);
        if (atomic_fetch_sub(&pool->n_running, 1) == 1) {
            atomic_store(&pool->done, seen);
            wake(&pool->done_sleepers);
        }
    }
}

ats_status thread_pool_open(int n_threads, struct thread_pool **out) {
    *out = NULL;
    if (n_threads < 1 || n_threads > MAX_THREADS)
        return fail(ATS_BAD_ARGUMENT, "%d threads: not in 1 to %d", n_threads, MAX_THREADS);
    struct thread_pool *pool = NULL;
    struct worker *workers = NULL;
    size_t workers_bytes = (size_t)n_threads * sizeof *workers;
    if (posix_memalign((void **)&pool, 64, sizeof *pool) != 0 ||
        posix_memalign((void **)&workers, 64, workers_bytes) != 0) {
        free(pool);
        return fail(ATS_NO_MEMORY, "no memory for a pool of %d threads", n_threads);
    }
    memset(pool, 0, sizeof *pool);
    memset(workers, 0, workers_bytes);
    sleepers_init(&pool->done_sleepers);
    sleepers_init(&pool->barrier_sleepers);
    pool->workers = workers;
    pool->size = 1;
    for (int i = 0; i < n_threads - 1; i++) {
        struct worker *w = &workers[i];
        w->pool = pool;
        w->index = i + 1;
        sleepers_init(&w->sleepers);
        ats_status status = thread_start(&w->thread, worker_main, w);
        if (status != ATS_OK) {
            sleepers_destroy(&w->sleepers);
            thread_pool_close(pool);
            return status;
        }
        pool->size++;
    }
    *out = pool;
    return ATS_OK;
}

void thread_pool_close(struct thread_pool *pool) {
    if (!pool) return;
    REQUIRE(!atomic_load(&pool->busy));
    atomic_store(&pool->stop, true);
    atomic_fetch_add(&pool->start, 1u << N_BITS);
    for (int i = 0; i < pool->size - 1; i++) {
        wake(&pool->workers[i].sleepers);
        thread_join(&pool->workers[i].thread);
        sleepers_destroy(&pool->workers[i].sleepers);
    }
    sleepers_destroy(&pool->done_sleepers);
    sleepers_destroy(&pool->barrier_sleepers);
    free(pool->workers);
    free(pool);
}

int thread_pool_size(const struct thread_pool *pool) {
    return pool->size;
}

bool thread_pool_bind(struct thread_pool *pool, int first) {
    REQUIRE(first >= 0 && !pool->bound);
    int *order = xcalloc(CPU_ORDER_MAX, sizeof *order);
    int n_cpus = cpu_order(order), n_bound = 0;
    struct cpu_mask before = {{0}}, one;
    bool enough = n_cpus >= first + pool->size;
    bool good = enough && cpu_mask_get(pthread_self(), &before);
    for (int i = 0; good && i < pool->size - 1; i++) {
        cpu_mask_one(&one, order[first + i + 1]);
        good = cpu_mask_set(pool->workers[i].thread.id, &one);
        n_bound += good;
    }
    if (good) {
        cpu_mask_one(&pool->caller_mask, order[first]);
        pool->bound = true;
    } else if (enough) {
        for (int i = 0; i < n_bound; i++)
            cpu_mask_set(pool->workers[i].thread.id, &before);
        log_msg(LOG_WARN, "threads are not bound to CPUs: the system does not allow it");
    } else {
        log_msg(LOG_WARN, "threads are not bound to CPUs: %d of them, and %d CPUs to use",
                first + pool->size, n_cpus);
    }
    free(order);
    return good;
}

/* The caller's thread is not ours: it is bound for one run, and let go after it. */
static bool bind_caller(const struct thread_pool *pool, struct cpu_mask *before) {
    return pool->bound && cpu_mask_get(pthread_self(), before) &&
           cpu_mask_set(pthread_self(), &pool->caller_mask);
}

void thread_pool_run(struct thread_pool *pool, int n, pool_fn *fn, void *arg) {
    REQUIRE(n >= 1 && n <= pool->size);
    REQUIRE(!atomic_exchange(&pool->busy, true)); /* one caller, and never from inside fn */
    struct cpu_mask before;
    bool bound = bind_caller(pool, &before);
    pool->n = n;
    atomic_store_explicit(&pool->arrived, 0, memory_order_relaxed);
    atomic_store_explicit(&pool->released, 0, memory_order_relaxed);
    if (n > 1) {
        pool->fn = fn;
        pool->arg = arg;
        unsigned old_done = atomic_load_explicit(&pool->done, memory_order_relaxed);
        unsigned run = (atomic_load(&pool->start) >> N_BITS) + 1;
        atomic_store(&pool->n_running, n - 1);
        atomic_store(&pool->start, run << N_BITS | (unsigned)n);
        for (int i = 0; i < n - 1; i++)
            wake(&pool->workers[i].sleepers);
        fn(arg, 0, n);
        wait_change(&pool->done, old_done, &pool->done_sleepers);
    } else {
        fn(arg, 0, 1);
    }
    if (bound && !cpu_mask_set(pthread_self(), &before))
        log_msg(LOG_WARN, "a thread stays bound to its CPU: its old ones are gone");
    atomic_store(&pool->busy, false);
}

/* Barrier k of a run is complete once k * n threads have arrived (below 2^31 of them). Few threads
 * look at that count itself, so that a barrier is one step of one cache line each way; of many each
 * arrival would take the line from all who look, so they get a word of their own. */
void thread_pool_barrier_idle(struct thread_pool *pool, pool_idle_fn *fn, void *arg) {
    const unsigned n = (unsigned)pool->n;
    if (n == 1) return;
    const bool few = n <= FEW_THREADS;
    const unsigned before = atomic_fetch_add(&pool->arrived, 1), goal = before - before % n + n;
    if (before + 1 == goal) {
        if (!few) atomic_store(&pool->released, goal);
        wake(&pool->barrier_sleepers);
        return;
    }
    atomic_uint *word = few ? &pool->arrived : &pool->released;
    bool idle = true;
    for (unsigned now; (int)((now = atomic_load_explicit(word, memory_order_acquire)) - goal) < 0;)
        if (!(idle = idle && fn(arg))) wait_change(word, now, &pool->barrier_sleepers);
}

static bool nothing_to_do(void *arg) {
    (void)arg;
    return false;
}

void thread_pool_barrier(struct thread_pool *pool) {
    thread_pool_barrier_idle(pool, nothing_to_do, NULL);
}

ats_status thread_start(struct thread *t, void *(*fn)(void *), void *arg) {
    int error = pthread_create(&t->id, NULL, fn, arg);
    if (error) return fail(ATS_FAILED, "cannot start a thread: %s", strerror(error));
    return ATS_OK;
}

void thread_join(struct thread *t) {
    REQUIRE(pthread_join(t->id, NULL) == 0);
}

/* Linux has a niceness for each thread. */
void thread_give_way(void) {
    int ignored = nice(GIVE_WAY_NICE);
    (void)ignored;
}
