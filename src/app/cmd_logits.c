/* Evaluates ids and stores the logits after each: what tests and comparisons read. */
#include "app/cmd.h"
#include "app/npy.h"
#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { N_CHUNK = 512 };

struct logits {
    struct app *app;
    ats_engine *engine;
    ats_session **sessions; /* (n_seqs) */
    int n_seqs;
    ats_info info;
    int32_t *ids; /* (n_ids) */
    size_t n_ids, n_chunk;
    float *rows;   /* (n_seqs, n_chunk, n_vocab) */
    ats_run *runs; /* (n_seqs) */
};

/* The ids are read before the weights, so that a wrong file is told at once; their range is known
 * from the vocabulary only after. */
MUST_CHECK static ats_status logits_open(struct app *app, const char *name, const char *text,
                                         size_t n_text, struct logits *l) {
    ats_options options;
    app_engine_options(app, &options);
    options.n_seqs = l->n_seqs = flag_int(&app->flags, FLAG_LOGITS_SEQS);
    TRY(app_parse_ids(name, text, n_text, INT32_MAX, &l->ids, &l->n_ids));
    if (l->n_ids == 0) return fail(ATS_BAD_INPUT, "%s: there are no ids", name);
    if (!options.n_batch) options.n_batch = N_CHUNK; /* rows are reserved for it */
    l->n_chunk = min_size(l->n_ids, (size_t)options.n_batch);
    options.n_rows = (int)l->n_chunk * l->n_seqs;
    TRY(app_engine_open(app, &options, &l->engine));
    ats_engine_info(l->engine, &l->info);
    free(l->ids);
    l->ids = NULL;
    TRY(app_parse_ids(name, text, n_text, l->info.n_vocab, &l->ids, &l->n_ids));
    if (l->n_ids > (size_t)l->info.n_ctx)
        return fail(ATS_CONTEXT_FULL,
                    "%zu ids do not fit in a context of %d; enlarge it with -c %zu", l->n_ids,
                    l->info.n_ctx, l->n_ids);
    l->sessions = xcalloc((size_t)l->n_seqs, sizeof(ats_session *));
    for (int i = 0; i < l->n_seqs; i++)
        TRY(ats_session_open(l->engine, &l->sessions[i]));
    l->runs = xcalloc((size_t)l->n_seqs, sizeof *l->runs);
    l->rows = xcalloc((size_t)l->n_seqs * l->n_chunk * (size_t)l->info.n_vocab, sizeof *l->rows);
    return ATS_OK;
}

static void logits_close(struct logits *l) {
    for (int i = 0; l->sessions && i < l->n_seqs; i++)
        ats_session_close(l->sessions[i]);
    ats_engine_close(l->engine);
    free(l->ids);
    free(l->sessions);
    free(l->runs);
    free(l->rows);
}

/* n tokens from `begin` in every session; their logits must be equal to the bit. */
MUST_CHECK static ats_status eval_chunk(struct logits *l, size_t begin, size_t n) {
    size_t n_values = n * (size_t)l->info.n_vocab;
    for (int i = 0; i < l->n_seqs; i++)
        l->runs[i] = (ats_run){.session = l->sessions[i],
                               .tokens = l->ids + begin,
                               .n_tokens = n,
                               .want = ATS_WANT_ALL,
                               .logits = l->rows + (size_t)i * n_values};
    TRY(ats_eval(l->engine, l->runs, l->n_seqs));
    for (int i = 1; i < l->n_seqs; i++)
        if (memcmp(l->rows, l->runs[i].logits, n_values * sizeof *l->rows) != 0)
            return fail(ATS_FAILED, "sessions 0 and %d differ in tokens %zu to %zu", i, begin,
                        begin + n - 1);
    return ATS_OK;
}

MUST_CHECK static ats_status eval_all(struct logits *l, struct npy_writer *w) {
    for (size_t begin = 0; begin < l->n_ids; begin += l->n_chunk) {
        size_t n = min_size(l->n_chunk, l->n_ids - begin);
        TRY(eval_chunk(l, begin, n));
        TRY(npy_write(w, l->rows, n * (size_t)l->info.n_vocab));
        term_bar(&l->app->term, "evaluating", begin + n, l->n_ids, "");
    }
    return ATS_OK;
}

static int print_result(struct logits *l, const char *path, uint64_t ns) {
    if (!l->app->json) {
        app_note(l->app, "%s: float32 (%zu, %d), %.1f tok/s", path, l->n_ids, l->info.n_vocab,
                 per_second(l->n_ids, ns));
        return EXIT_OK;
    }
    json_t *o = app_json(l->app);
    json_object_set_new(o, "output", json_string_replaced(path, strlen(path)));
    json_object_set_new(o, "n_tokens", json_integer((json_int_t)l->n_ids));
    json_object_set_new(o, "n_vocab", json_integer(l->info.n_vocab));
    json_object_set_new(o, "cpu_isa", json_string(l->info.cpu_isa));
    json_object_set_new(o, "tokens_per_second", json_real(per_second(l->n_ids, ns)));
    return app_print_json(l->app, o);
}

int cmd_logits(struct app *app) {
    const struct flags *f = &app->flags;
    const char *in = flag_text(f, FLAG_LOGITS_IDS), *out = flag_text(f, FLAG_LOGITS_OUTPUT);
    struct logits l = {.app = app};
    struct npy_writer w = {0};
    char *text = NULL;
    size_t n_text = 0;
    ats_status status = app_find_model(app);
    if (status == ATS_OK && !in) status = fail(ATS_BAD_ARGUMENT, "give the ids with --ids FILE");
    if (status == ATS_OK && !out) status = fail(ATS_BAD_ARGUMENT, "say where to with -o FILE");
    if (status == ATS_OK) status = app_read_input(in, &text, &n_text);
    if (status == ATS_OK) status = logits_open(app, in, text, n_text, &l);
    if (status == ATS_OK) status = npy_open(out, l.n_ids, (uint64_t)l.info.n_vocab, &w);
    uint64_t start = clock_ns();
    if (status == ATS_OK) status = eval_all(&l, &w);
    term_bar_clear(&app->term);
    if (status == ATS_OK) status = npy_finish(&w);
    int code = status == ATS_OK ? print_result(&l, out, clock_ns() - start) : app_fail(app, status);
    npy_abandon(&w);
    logits_close(&l);
    free(text);
    return code;
}
