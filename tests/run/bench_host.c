/*
 * Host work of decode rounds (metrics.h) under a plan, and where it goes: microseconds, the tenth
 * and the fiftieth percentile of rounds, so that a busy machine's spikes can be told. Not a test:
 * nothing is asserted.
 *   bench_host MODEL PLAN [DEPTH [ROUNDS]]      0 and 40 if not given
 */
#include "base/base.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "run/engine.h"

enum { MAX_ROUNDS = 1000, MAX_DEPTH = 4096 };

/* Of a round, in nanoseconds. */
enum part { HOST, AHEAD, CHANGES, THREAD, DRIVER, N_PARTS };
static const char *const names[N_PARTS] = {
    "host work",
    "  until the caller's device begins, calls to the driver included",
    "  between its segments, likewise",
    "  of the devices' own threads",
    "calls to the driver (host work has none of it)",
};

/* From the end of a segment that the caller drives to its next one's submission. */
static uint64_t between_segments(const struct executor *e, const struct ats_engine *engine,
                                 uint64_t *ahead) {
    const struct program *p = executor_program(e);
    const struct round_times *t = executor_times(e);
    uint64_t sum = 0, last = 0;
    for (int i = 0; i < p->n_segments; i++) {
        const struct segment_times *s = &t->segments[i];
        if (!engine->devices[p->segments[i].device]->driven) continue;
        if (last)
            sum += s->submit_ns - last;
        else
            *ahead = s->submit_ns - t->begin_ns;
        last = s->ran.end_ns;
    }
    return sum;
}

static int compare(const void *a, const void *b) {
    const uint64_t *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

static ats_status measure(ats_engine *engine, int depth, int n_rounds) {
    static uint64_t parts[N_PARTS][MAX_ROUNDS];
    static int32_t ids[MAX_DEPTH];
    ats_session *session;
    ats_metrics now, before;
    for (int i = 0; i < MAX_DEPTH; i++)
        ids[i] = 100 + i * 37 % 1000;
    TRY(ats_session_open(engine, &session));
    ats_run run = {.session = session, .tokens = ids};
    /* pages as they are: what they hold does not matter here, and a software device is slow at
     * prompts */
    if (depth) TRY(kv_append(session->seq, ids, (size_t)depth));
    run.want = ATS_WANT_LAST, run.n_tokens = 1;
    TRY(ats_eval(engine, &run, 1)); /* caches are warm */
    ats_engine_measure(engine, true);
    TRY(ats_eval(engine, &run, 1));
    ats_engine_metrics(engine, true, &before);
    for (int i = 0; i < n_rounds; i++, before = now) {
        TRY(ats_eval(engine, &run, 1));
        ats_engine_metrics(engine, true, &now);
        const struct round_times *t = executor_times(engine->executor);
        parts[HOST][i] = now.host_ns - before.host_ns;
        parts[CHANGES][i] = between_segments(engine->executor, engine, &parts[AHEAD][i]);
        parts[THREAD][i] = t->thread_ns;
        parts[DRIVER][i] = t->driver_ns;
    }
    printf("%d rounds after %d tokens, %.0f changes of device and %.0f submissions in each; us\n",
           n_rounds, depth, (double)now.n_splits / (double)now.n_rounds,
           (double)now.n_submissions / (double)now.n_rounds);
    for (int i = 0; i < N_PARTS; i++) {
        qsort(parts[i], (size_t)n_rounds, sizeof **parts, compare);
        printf("%8.1f %8.1f  %s\n", (double)parts[i][n_rounds / 10] / 1e3,
               (double)parts[i][n_rounds / 2] / 1e3, names[i]);
    }
    ats_session_close(session);
    return ATS_OK;
}

int main(int argc, char **argv) {
    if (argc < 3) return fprintf(stderr, "bench_host MODEL PLAN [DEPTH [ROUNDS]]\n"), 2;
    int depth = argc > 3 ? atoi(argv[3]) : 0, n_rounds = argc > 4 ? atoi(argv[4]) : 40;
    ats_options options;
    ats_options_default(&options);
    options.model = argv[1];
    options.plan = argv[2];
    options.n_ctx = MAX_DEPTH + MAX_ROUNDS + 2;
    options.n_threads = options.n_threads_batch = 1;
    ats_engine *engine = NULL;
    ats_status status = ats_engine_open(&options, &engine);
    n_rounds = n_rounds < 1 ? 1 : n_rounds > MAX_ROUNDS ? MAX_ROUNDS : n_rounds;
    if (status == ATS_OK) status = measure(engine, depth < MAX_DEPTH ? depth : MAX_DEPTH, n_rounds);
    if (status != ATS_OK) fprintf(stderr, "bench_host: %s\n", ats_error_text());
    ats_engine_close(engine);
    return status != ATS_OK;
}
