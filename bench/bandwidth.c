/*
 * Prints what memory gives at this moment, in GB/s (10^9), for bench/ to put beside a sample. Not
 * part of the engine; machine.py builds and calls it.
 *
 *   bandwidth THREADS          all threads together reading, each as several streams
 *   bandwidth THREADS copy     copying; bytes copied count once
 *
 * The buffers are far larger than the last-level cache, in large pages where the system has them;
 * threads are bound to one CPU each, so that the scheduler's choice is not measured. The best of a
 * few rounds, under 0.3 s in all.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { MAX_THREADS = 256, N_STREAMS = 4, N_ROUNDS = 8, PAGE = 2 << 20 };
#define LIMIT_S 0.12 /* for the rounds; filling the buffers takes about as long */

typedef uint64_t lanes __attribute__((vector_size(64)));

struct reader {
    pthread_t id;
    int cpu;
    bool copies;
    char *from, *to;
    size_t n_bytes;
    double start_s, end_s;
    lanes sum;
};

static pthread_barrier_t together;

static double now_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Several places at once: one stream leaves the prefetchers of a core idle. */
static lanes read_all(const char *p, size_t n_bytes) {
    size_t each = n_bytes / N_STREAMS;
    lanes sum[N_STREAMS] = {0};
    for (size_t i = 0; i < each; i += sizeof(lanes))
        for (int s = 0; s < N_STREAMS; s++)
            sum[s] ^= *(const lanes *)(const void *)(p + (size_t)s * each + i);
    return sum[0] ^ sum[1] ^ sum[2] ^ sum[3];
}

static void *round_of(void *arg) {
    struct reader *r = arg;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(r->cpu, &one);
    pthread_setaffinity_np(pthread_self(), sizeof one, &one); /* where that is not allowed, go on */
    pthread_barrier_wait(&together);
    r->start_s = now_s();
    if (r->copies) {
        memcpy(r->to, r->from, r->n_bytes);
    } else {
        r->sum ^= read_all(r->from, r->n_bytes);
    }
    r->end_s = now_s();
    return NULL;
}

static double run_round(struct reader *readers, int n) {
    pthread_barrier_init(&together, NULL, (unsigned)n);
    for (int i = 0; i < n; i++)
        if (pthread_create(&readers[i].id, NULL, round_of, &readers[i]) != 0) exit(1);
    double start = 1e300, end = 0;
    for (int i = 0; i < n; i++) {
        pthread_join(readers[i].id, NULL);
        if (readers[i].start_s < start) start = readers[i].start_s;
        if (readers[i].end_s > end) end = readers[i].end_s;
    }
    pthread_barrier_destroy(&together);
    return end - start;
}

static char *buffer(size_t n_bytes) {
    char *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) exit(1);
    madvise(p, n_bytes, MADV_HUGEPAGE);
    memset(p, 1, n_bytes);
    return p;
}

/* Bytes a thread: four times the last-level cache in all, 64 MiB at least. */
static size_t bytes_each(int n_threads) {
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    size_t all = 4 * (size_t)(cache > (16 << 20) ? cache : 16 << 20);
    return (all / (size_t)n_threads + PAGE - 1) / PAGE * PAGE;
}

int main(int argc, char **argv) {
    int n = argc > 1 ? atoi(argv[1]) : 1;
    bool copies = argc > 2 && strcmp(argv[2], "copy") == 0;
    if (n < 1 || n > MAX_THREADS) return 2;
    static struct reader readers[MAX_THREADS];
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return 1;
    for (int i = 0, cpu = -1; i < n; i++) {
        do
            cpu = (cpu + 1) % CPU_SETSIZE;
        while (!CPU_ISSET(cpu, &allowed));
        size_t n_bytes = bytes_each(n);
        readers[i] = (struct reader){.cpu = cpu, .copies = copies, .n_bytes = n_bytes};
        readers[i].from = buffer(n_bytes);
        if (copies) readers[i].to = buffer(n_bytes);
    }
    double best = 1e300, until = now_s() + LIMIT_S;
    for (int i = 0; i < N_ROUNDS && (i < 2 || now_s() < until); i++) {
        double s = run_round(readers, n);
        if (s < best) best = s;
    }
    printf("%.2f\n", (double)n * (double)readers[0].n_bytes / best / 1e9);
    return 0;
}
