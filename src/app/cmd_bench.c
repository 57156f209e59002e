/*
 * Speed of prompts and of generation. Token i of the context is always token i of one fixed stream,
 * so a test's start is reached by cutting the session back, and runs compare.
 */
#include "app/bench.h"
#include "app/cmd.h"
#include "app/stats.h"
#include "base/clock.h"
#include "base/rng.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARMUP_GEN = 16, METRICS_GEN = 64, STREAM_SEED = 20250101 };

struct bench {
    struct app *app;
    struct bench_printer printer;
    struct bench_test *tests; /* (n_tests) */
    size_t n_tests, cap_tests;
    int n_ctx;  /* the longest test */
    char *text; /* of -f, owned, or NULL */
    size_t n_text;
    /* of one configuration: */
    ats_engine *engine;
    ats_session *session;
    ats_info info;
    int32_t *stream; /* (n_ctx) */
    bool from_text;
};

/* ---------------------------------------------------------------------------------------- tests */

static void add_test(struct bench *b, int n_prompt, int n_gen, int n_depth) {
    if (n_prompt + n_gen == 0) return;
    GROW(b->tests, b->n_tests, b->cap_tests, 1);
    b->tests[b->n_tests++] = (struct bench_test){n_prompt, n_gen, n_depth};
    b->n_ctx = max_int(b->n_ctx, n_prompt + n_gen + n_depth);
}

/* "512,128" */
MUST_CHECK static ats_status parse_pair(const char *text, int *pp, int *tg) {
    const int64_t max = 1 << 24;
    const char *comma = strchr(text, ',');
    char first[16] = "";
    int64_t a, b;
    if (comma && (size_t)(comma - text) < sizeof first) {
        memcpy(first, text, (size_t)(comma - text));
        if (parse_i64(first, &a) && parse_i64(comma + 1, &b) && a >= 0 && b >= 0 && a <= max &&
            b <= max && a + b > 0) {
            *pp = (int)a;
            *tg = (int)b;
            return ATS_OK;
        }
    }
    return fail(ATS_BAD_ARGUMENT,
                "-pg: \"%s\" is not valid; it takes two whole numbers, PP,TG, for instance 512,128",
                text);
}

/* Every depth with every prompt length, every generation length and every pair. */
MUST_CHECK static ats_status make_tests(struct bench *b) {
    const struct flag_value *v = b->app->flags.values;
    const struct flag_value *depths = &v[FLAG_BENCH_DEPTH], *pairs = &v[FLAG_BENCH_PG];
    const struct flag_value *prompts = &v[FLAG_BENCH_PROMPT], *gens = &v[FLAG_BENCH_GEN];
    for (size_t d = 0; d < depths->n; d++) {
        int depth = (int)depths->integers[d], pp = 0, tg = 0;
        for (size_t i = 0; i < prompts->n; i++)
            add_test(b, (int)prompts->integers[i], 0, depth);
        for (size_t i = 0; i < gens->n; i++)
            add_test(b, 0, (int)gens->integers[i], depth);
        for (size_t i = 0; i < pairs->n; i++) {
            TRY(parse_pair(pairs->texts[i], &pp, &tg));
            add_test(b, pp, tg, depth);
        }
    }
    return b->n_tests ? ATS_OK : fail(ATS_BAD_ARGUMENT, "there is nothing to measure: -p 0 -n 0");
}

/* --------------------------------------------------------------------------------------- engine */

/* From the text of -f, as often as needed, or from a seeded generator. */
MUST_CHECK static ats_status make_stream(struct bench *b) {
    b->stream = xcalloc((size_t)b->n_ctx, sizeof *b->stream);
    int32_t *ids = NULL;
    size_t n_ids = 0;
    if (b->text) {
        TRY(ats_tokenize(b->engine, b->text, b->n_text, 0, &ids, &n_ids));
        if (n_ids == 0) {
            ats_free(ids);
            return fail(ATS_BAD_INPUT, "-f: the text is empty");
        }
    }
    struct rng rng;
    rng_seed(&rng, STREAM_SEED);
    for (int i = 0; i < b->n_ctx; i++)
        b->stream[i] =
            ids ? ids[(size_t)i % n_ids] : (int32_t)rng_below(&rng, (uint32_t)b->info.n_vocab);
    if (b->info.adds_bos && b->info.bos >= 0) b->stream[0] = b->info.bos;
    b->from_text = ids != NULL;
    ats_free(ids);
    return ATS_OK;
}

MUST_CHECK static ats_status config_open(struct bench *b, const struct bench_config *c) {
    const struct flags *f = &b->app->flags;
    ats_options o;
    app_engine_options(b->app, &o);
    o.n_ctx = b->n_ctx;
    o.n_batch = app_batch(f, c->n_batch, FLAG_BENCH_UBATCH);
    o.n_threads = c->n_threads;
    o.kv_k = (ats_kv_type)c->type_k;
    o.kv_v = (ats_kv_type)c->type_v;
    TRY(app_engine_open(b->app, &o, &b->engine));
    ats_engine_info(b->engine, &b->info);
    TRY(ats_session_open(b->engine, &b->session));
    if (b->info.n_ctx < b->n_ctx)
        return fail(ATS_BAD_ARGUMENT, "a test needs a context of %d tokens, the model allows %d",
                    b->n_ctx, b->info.n_ctx);
    return make_stream(b);
}

static void config_close(struct bench *b) {
    ats_session_close(b->session);
    ats_engine_close(b->engine);
    free(b->stream);
    b->session = NULL;
    b->engine = NULL;
    b->stream = NULL;
}

/* -------------------------------------------------------------------------------------- measure */

MUST_CHECK static ats_status eval(struct bench *b, int begin, int n) {
    ats_run run = {.session = b->session,
                   .tokens = b->stream + begin,
                   .n_tokens = (size_t)n,
                   .want = ATS_WANT_LAST};
    return ats_eval(b->engine, &run, 1);
}

/* The session holds exactly the first n tokens of the stream. */
MUST_CHECK static ats_status go_to_depth(struct bench *b, int depth) {
    size_t n = 0;
    (void)ats_session_tokens(b->session, &n);
    if (n > (size_t)depth) TRY(ats_session_truncate(b->session, (size_t)depth));
    if (n < (size_t)depth) TRY(eval(b, (int)n, depth - (int)n));
    ats_session_snapshot(b->session); /* the next run comes back here */
    return ATS_OK;
}

/* The tokens of a test after its depth; *ns: how long they took. */
MUST_CHECK static ats_status run_once(struct bench *b, const struct bench_test *t, double *ns) {
    TRY(go_to_depth(b, t->n_depth));
    int at = t->n_depth;
    uint64_t start = clock_ns();
    if (t->n_prompt) TRY(eval(b, at, t->n_prompt));
    at += t->n_prompt;
    for (int i = 0; i < t->n_gen; i++)
        TRY(eval(b, at + i, 1));
    *ns = (double)(clock_ns() - start);
    return ATS_OK;
}

static void show(struct bench *b, const struct bench_test *t, int done, int total) {
    struct buf what = {0};
    bench_test_name(&what, t);
    char detail[40];
    snprintf(detail, sizeof detail, done < 0 ? "warm-up" : "repetition %d of %d", done + 1, total);
    term_bar(&b->app->term, buf_str(&what), (uint64_t)max_int(done, 0), (uint64_t)total, detail);
    buf_free(&what);
}

MUST_CHECK static ats_status measure(struct bench *b, const struct bench_test *t, double *samples,
                                     int n_samples) {
    double ignored;
    if (!flag_on(&b->app->flags, FLAG_BENCH_NO_WARMUP)) {
        struct bench_test warmup = *t;
        warmup.n_gen = min_int(warmup.n_gen, WARMUP_GEN);
        show(b, t, -1, n_samples);
        TRY(run_once(b, &warmup, &ignored));
    }
    for (int i = 0; i < n_samples; i++) {
        if (interrupt_pending()) return fail(ATS_CANCELLED, "interrupted");
        show(b, t, i, n_samples);
        TRY(run_once(b, t, &samples[i]));
    }
    term_bar_clear(&b->app->term);
    return ATS_OK;
}

/* Decode rounds from `at` on; the medians of what the host does in one. A machine that does other
 * things as well takes its time from some of them. */
MUST_CHECK static ats_status measure_rounds(struct bench *b, int at, int n, double *host_ns,
                                            double *driver_ns) {
    double host[METRICS_GEN], driver[METRICS_GEN];
    ats_metrics before, after;
    ats_engine_metrics(b->engine, true, &before);
    for (int i = 0; i < n; i++, before = after) {
        TRY(eval(b, at + i, 1));
        ats_engine_metrics(b->engine, true, &after);
        host[i] = (double)(after.host_ns - before.host_ns);
        driver[i] = (double)(after.driver_ns - before.driver_ns);
    }
    *host_ns = stats_median(host, (size_t)n);
    *driver_ns = stats_median(driver, (size_t)n);
    return ATS_OK;
}

/* One more repetition, with clocks that cost it a little. */
MUST_CHECK static ats_status measure_metrics(struct bench *b, const struct bench_test *t,
                                             struct bench_result *r) {
    ats_metrics decode;
    TRY(go_to_depth(b, t->n_depth));
    ats_engine_stats_reset(b->engine);
    ats_engine_measure(b->engine, true);
    ats_status status = t->n_prompt ? eval(b, t->n_depth, t->n_prompt) : ATS_OK;
    if (status == ATS_OK)
        status = measure_rounds(b, t->n_depth + t->n_prompt, min_int(t->n_gen, METRICS_GEN),
                                &r->host_ns, &r->driver_ns);
    ats_engine_measure(b->engine, false);
    ats_engine_metrics(b->engine, false, &r->metrics);
    ats_engine_metrics(b->engine, true, &decode);
    bench_metrics_sum(&r->metrics, &decode);
    r->has_metrics = true;
    return status;
}

MUST_CHECK static ats_status run_tests(struct bench *b, const struct bench_config *c) {
    int n_samples = flag_int(&b->app->flags, FLAG_BENCH_REPETITIONS);
    double *samples = xcalloc((size_t)n_samples, sizeof *samples);
    ats_status status = ATS_OK;
    for (size_t i = 0; i < b->n_tests && status == ATS_OK; i++) {
        struct bench_result r = {.test = b->tests[i],
                                 .info = b->info,
                                 .type_k = c->type_k,
                                 .type_v = c->type_v,
                                 .from_text = b->from_text,
                                 .samples_ns = samples,
                                 .n_samples = n_samples};
        time_t now = time(NULL);
        struct tm utc = {0};
        gmtime_r(&now, &utc);
        strftime(r.test_time, sizeof r.test_time, "%Y-%m-%dT%H:%M:%SZ", &utc);
        status = measure(b, &b->tests[i], samples, n_samples);
        if (status == ATS_OK &&
            (flag_on(&b->app->flags, FLAG_BENCH_METRICS) || b->info.n_devices > 1))
            status = measure_metrics(b, &b->tests[i], &r);
        if (status == ATS_OK) status = bench_print(&b->printer, &r);
    }
    term_bar_clear(&b->app->term);
    free(samples);
    return status;
}

/* Every combination of the lists that need another engine. */
MUST_CHECK static ats_status run_configs(struct bench *b) {
    const struct flag_value *v = b->app->flags.values;
    const struct flag_value *lists[] = {&v[FLAG_BENCH_BATCH], &v[FLAG_BENCH_TYPE_K],
                                        &v[FLAG_BENCH_TYPE_V], &v[FLAG_BENCH_THREADS]};
    size_t at[COUNT_OF(lists)] = {0};
    for (size_t i = 0; i < COUNT_OF(lists); i++)
        if (lists[i]->n > 1 && flag_given(&b->app->flags, FLAG_TRACE))
            return fail(ATS_BAD_ARGUMENT, "--trace: a file holds one engine's rounds, but a list "
                                          "of several values asks for several engines");
    for (;;) {
        struct bench_config c = {.n_batch = (int)lists[0]->integers[at[0]],
                                 .type_k = (int)lists[1]->integers[at[1]],
                                 .type_v = (int)lists[2]->integers[at[2]],
                                 .n_threads = (int)lists[3]->integers[at[3]]};
        ats_status status = config_open(b, &c);
        if (status == ATS_OK) status = run_tests(b, &c);
        config_close(b);
        if (status != ATS_OK) return status;
        size_t k = COUNT_OF(lists);
        while (k > 0 && ++at[k - 1] == lists[k - 1]->n)
            at[--k] = 0;
        if (k == 0) return ATS_OK;
    }
}

int cmd_bench(struct app *app) {
    struct bench b = {.app = app};
    const char *path = flag_text(&app->flags, FLAG_BENCH_FILE);
    ats_status status = app_find_model(app);
    if (status == ATS_OK && app->json && flag_given(&app->flags, FLAG_BENCH_OUTPUT))
        status = fail(ATS_BAD_ARGUMENT, "--json and -o exclude each other");
    if (status == ATS_OK) status = make_tests(&b);
    if (status == ATS_OK && path) status = app_read_input(path, &b.text, &b.n_text);
    bench_printer_open(&b.printer, app);
    if (status == ATS_OK) {
        if (!b.text)
            app_note(app, "tokens are a fixed stream from a seeded generator (-f FILE: a text's)");
        status = run_configs(&b);
        /* What was measured before a failure is not lost, except that --json is one object. */
        if (status == ATS_OK || !app->json) {
            ats_status end = bench_print_end(&b.printer);
            if (status == ATS_OK) status = end;
        }
    }
    int code = status == ATS_OK ? EXIT_OK : app_fail(app, status);
    bench_printer_close(&b.printer);
    free(b.tests);
    free(b.text);
    return code;
}
