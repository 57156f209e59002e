/*
 * What the thread pool costs: nanoseconds a barrier and a run, threads free and bound to CPUs.
 * Not a test: nothing is asserted, and only an idle machine tells anything.
 *   bench_threads [THREADS]      2 if not given
 */
#include "base/clock.h"
#include "base/threads.h"

#include <stdio.h>
#include <stdlib.h>

enum { N_SAMPLES = 101, N_BARRIERS = 2000, N_RUNS = 200 };

static void barriers(void *arg, int thread_index, int n_threads) {
    (void)thread_index, (void)n_threads;
    for (int i = 0; i < N_BARRIERS; i++)
        thread_pool_barrier(arg);
}

static void nothing(void *arg, int thread_index, int n_threads) {
    (void)arg, (void)thread_index, (void)n_threads;
}

static int compare(const void *a, const void *b) {
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

/* Best and median of the samples, each of n_calls. */
static void print_ns(const char *what, double *ns, int n_calls) {
    qsort(ns, N_SAMPLES, sizeof *ns, compare);
    printf("  %-10s %8.0f ns at best, %8.0f median\n", what, ns[0] / n_calls,
           ns[N_SAMPLES / 2] / n_calls);
}

static ats_status measure(int n_threads, bool bind) {
    struct thread_pool *pool;
    double ns[N_SAMPLES];
    TRY(thread_pool_open(n_threads, &pool));
    bool bound = bind && thread_pool_bind(pool, 0);
    printf("%d threads, %s\n", n_threads, bound ? "bound" : bind ? "cannot be bound" : "free");
    for (int i = 0; i < N_SAMPLES; i++) {
        uint64_t start = clock_ns();
        thread_pool_run(pool, n_threads, barriers, pool);
        ns[i] = (double)(clock_ns() - start);
    }
    print_ns("a barrier", ns, N_BARRIERS);
    for (int i = 0; i < N_SAMPLES; i++) {
        uint64_t start = clock_ns();
        for (int run = 0; run < N_RUNS; run++)
            thread_pool_run(pool, n_threads, nothing, NULL);
        ns[i] = (double)(clock_ns() - start);
    }
    print_ns("a run", ns, N_RUNS);
    thread_pool_close(pool);
    return ATS_OK;
}

int main(int argc, char **argv) {
    int n_threads = argc > 1 ? atoi(argv[1]) : 2;
    if (measure(n_threads, false) == ATS_OK && measure(n_threads, true) == ATS_OK) return 0;
    fprintf(stderr, "bench_threads: %s\n", error_text());
    return 1;
}
