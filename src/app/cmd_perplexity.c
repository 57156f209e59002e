/*
 * Perplexity by the windowed recipe that others use, so that numbers compare: windows of n_ctx
 * tokens side by side, each from an empty cache, its first token replaced by BOS if the model adds
 * one. In a window the logits of rows n_ctx/2 .. n_ctx-2 count, each for the token that follows.
 */
#include "app/cmd.h"
#include "app/stats.h"
#include "base/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_ROWS = 64 }; /* logits held at a time: (N_ROWS, n_vocab) */

struct ppl {
    struct app *app;
    ats_engine *engine;
    ats_session *session;
    ats_info info;
    int32_t *ids; /* (n_ids) the whole text */
    size_t n_ids;
    int n_ctx, n_chunks;
    int32_t *window; /* (n_ctx) */
    float *logits;   /* (N_ROWS, n_vocab) */
    struct perplexity sum;
    uint64_t started_ns;
};

MUST_CHECK static ats_status ppl_open(struct app *app, const char *text, size_t n_text,
                                      struct ppl *p) {
    ats_options options;
    app_engine_options(app, &options);
    options.n_ctx = p->n_ctx = flag_int(&app->flags, FLAG_PPL_CTX);
    options.n_rows = N_ROWS;
    TRY(app_engine_open(app, &options, &p->engine));
    ats_engine_info(p->engine, &p->info);
    TRY(ats_session_open(p->engine, &p->session));
    TRY(ats_tokenize(p->engine, text, n_text, ATS_TOKENIZE_SPECIAL, &p->ids, &p->n_ids));
    if (p->info.n_ctx < p->n_ctx)
        return fail(ATS_BAD_ARGUMENT, "-c %d: the context of this model is %d at most", p->n_ctx,
                    p->info.n_ctx);
    p->n_chunks = (int)min_size(p->n_ids / (size_t)p->n_ctx, INT32_MAX);
    int limit = flag_int(&app->flags, FLAG_PPL_CHUNKS);
    if (limit == 0) return fail(ATS_BAD_ARGUMENT, "--chunks 0 leaves nothing to do");
    if (limit > 0) p->n_chunks = min_int(p->n_chunks, limit);
    if (p->n_chunks == 0)
        return fail(ATS_BAD_INPUT,
                    "the text has %zu tokens, fewer than one window of %d; give a longer text or "
                    "a smaller -c",
                    p->n_ids, p->n_ctx);
    p->window = xcalloc((size_t)p->n_ctx, sizeof *p->window);
    p->logits = xcalloc((size_t)N_ROWS * (size_t)p->info.n_vocab, sizeof *p->logits);
    return ATS_OK;
}

static void ppl_close(struct ppl *p) {
    ats_free(p->ids);
    ats_session_close(p->session);
    ats_engine_close(p->engine);
    free(p->window);
    free(p->logits);
}

MUST_CHECK static ats_status eval(struct ppl *p, int begin, int n, ats_want want) {
    ats_run run = {.session = p->session,
                   .tokens = p->window + begin,
                   .n_tokens = (size_t)n,
                   .want = want,
                   .logits = want == ATS_WANT_ALL ? p->logits : NULL};
    return ats_eval(p->engine, &run, 1);
}

MUST_CHECK static ats_status eval_window(struct ppl *p, int chunk) {
    const int32_t *text = p->ids + (size_t)chunk * (size_t)p->n_ctx;
    memcpy(p->window, text, (size_t)p->n_ctx * sizeof *text);
    if (p->info.adds_bos && p->info.bos >= 0) p->window[0] = p->info.bos;
    TRY(ats_session_truncate(p->session, 0));
    int first = p->n_ctx / 2, last = p->n_ctx - 1;
    TRY(eval(p, 0, first, ATS_WANT_NONE));
    for (int row = first; row < last; row += N_ROWS) {
        int n = min_int(N_ROWS, last - row);
        TRY(eval(p, row, n, ATS_WANT_ALL));
        for (int i = 0; i < n; i++)
            perplexity_add(&p->sum, nll_of(p->logits + (size_t)i * (size_t)p->info.n_vocab,
                                           p->info.n_vocab, text[row + i + 1]));
    }
    return ATS_OK;
}

/* A bar on a terminal, else a line for each tenth of the way. */
static void show_progress(struct ppl *p, int done) {
    char detail[80];
    snprintf(detail, sizeof detail, "window %d of %d, perplexity %.4f", done, p->n_chunks,
             perplexity_value(&p->sum));
    if (p->app->term.progress)
        term_bar(&p->app->term, "evaluating", (uint64_t)done, (uint64_t)p->n_chunks, detail);
    else if (done * 10 / p->n_chunks != (done - 1) * 10 / p->n_chunks)
        app_note(p->app, "%s", detail);
}

static int print_result(struct ppl *p, uint64_t ns) {
    uint64_t n_evaluated = (uint64_t)p->n_chunks * (uint64_t)(p->n_ctx - 1);
    double value = perplexity_value(&p->sum), error = perplexity_error(&p->sum);
    if (!p->app->json) {
        char *line =
            arena_printf(&p->app->arena,
                         "perplexity %.4f +/- %.5f (%d windows of %d tokens, %llu "
                         "counted)\n",
                         value, error, p->n_chunks, p->n_ctx, (unsigned long long)p->sum.n);
        app_note(p->app, "%.1f s, %.1f tok/s", (double)ns / 1e9, per_second(n_evaluated, ns));
        return app_print(p->app, line, strlen(line));
    }
    json_t *o = app_json(p->app);
    json_object_set_new(o, "model", json_string_replaced(p->app->model, strlen(p->app->model)));
    json_object_set_new(o, "perplexity", json_real(value));
    json_object_set_new(o, "perplexity_stderr", json_real(error));
    json_object_set_new(o, "mean_nll", json_real(p->sum.nll_sum / (double)p->sum.n));
    json_object_set_new(o, "n_text_tokens", json_integer((json_int_t)p->n_ids));
    json_object_set_new(o, "n_counted", json_integer((json_int_t)p->sum.n));
    json_object_set_new(o, "n_chunks", json_integer(p->n_chunks));
    json_object_set_new(o, "n_ctx", json_integer(p->n_ctx));
    json_object_set_new(o, "tokens_per_second", json_real(per_second(n_evaluated, ns)));
    return app_print_json(p->app, o);
}

MUST_CHECK static ats_status eval_all(struct ppl *p) {
    for (int i = 0; i < p->n_chunks; i++) {
        if (interrupt_pending()) return fail(ATS_CANCELLED, "interrupted");
        TRY(eval_window(p, i));
        show_progress(p, i + 1);
    }
    term_bar_clear(&p->app->term);
    return ATS_OK;
}

int cmd_perplexity(struct app *app) {
    const char *path = flag_text(&app->flags, FLAG_PPL_FILE);
    char *text = NULL;
    size_t n_text = 0;
    struct ppl p = {.app = app};
    ats_status status = app_find_model(app);
    if (status == ATS_OK && !path) status = fail(ATS_BAD_ARGUMENT, "give a text with -f FILE");
    if (status == ATS_OK) status = app_read_input(path, &text, &n_text);
    if (status == ATS_OK) status = ppl_open(app, text, n_text, &p);
    p.started_ns = clock_ns();
    if (status == ATS_OK) status = eval_all(&p);
    int code =
        status == ATS_OK ? print_result(&p, clock_ns() - p.started_ns) : app_fail(app, status);
    ppl_close(&p);
    free(text);
    return code;
}
