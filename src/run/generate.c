/* Sampling with the file's defaults, and the generation loop. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/log.h"
#include "run/breakers.h"
#include "run/engine.h"
#include "run/sampler.h"
#include "text/detok.h"
#include "text/stop.h"

struct ats_sampler {
    struct sampler *sampler;
};

/* ---- parameters ---- */

/* A maker's default that is missing, of another type or not usable leaves the value alone. */
static void file_float(const struct gguf *g, const char *key, float *value) {
    float v = *value;
    if (gguf_opt_f32(g, key, &v) == ATS_OK) *value = v;
}

static void file_int(const struct gguf *g, const char *key, int *value) {
    int32_t v = *value;
    if (gguf_opt_i32(g, key, &v) == ATS_OK) *value = v;
}

/* Steps in our order, with the names that files and llama.cpp's flags have for them. */
static const char *const step_names[] = {
    " penalties ",
    " dry ",
    " top_n_sigma top-n-sigma ", /* which we do not have: off, whatever its place */
    " top_k top-k ",
    " typ_p typ-p typ typical_p typical-p typical ",
    " top_p top-p nucleus ",
    " min_p min-p ",
    " xtc ",
    " temperature temp ",
};
enum { N_STEPS = sizeof step_names / sizeof *step_names };

static int find_step(const char *name, size_t n) {
    char word[32];
    if (n == 0 || n > sizeof word - 3 || memchr(name, ' ', n)) return -1;
    snprintf(word, sizeof word, " %.*s ", (int)n, name);
    for (int i = 0; i < N_STEPS; i++)
        if (strstr(step_names[i], word)) return i;
    return -1;
}

static void leave_out(const bool named[N_STEPS], ats_sampling *p) {
    if (!named[0]) {
        p->repeat_penalty = 1;
        p->presence_penalty = p->frequency_penalty = 0;
    }
    if (!named[1]) p->dry_multiplier = 0;
    if (!named[3]) p->top_k = 0;
    if (!named[4]) p->typical_p = 1;
    if (!named[5]) p->top_p = 1;
    if (!named[6]) p->min_p = 0;
    if (!named[7]) p->xtc_probability = 0;
    if (!named[8]) p->temperature = 1;
}

/* A maker may list the steps, with semicolons between: those not named are left out. False if there
 * are others, or in another order than ours: then the list counts for nothing. */
static bool follow_sequence(const struct gguf *g, ats_sampling *p) {
    bool named[N_STEPS] = {false};
    struct gguf_str list = {"", 0};
    int last = -1;
    if (gguf_opt_str(g, "general.sampling.sequence", &list) != ATS_OK || list.n == 0) return true;
    for (size_t at = 0; at <= list.n;) {
        const char *name = list.data + at, *end = memchr(name, ';', list.n - at);
        const size_t n = end ? (size_t)(end - name) : list.n - at;
        const int step = find_step(name, n);
        if (step <= last) return false;
        named[step] = true;
        last = step;
        at += n + 1;
    }
    leave_out(named, p);
    return true;
}

void sampling_check_file(const struct gguf *g) {
    ats_sampling p = {0};
    if (!follow_sequence(g, &p))
        log_msg(LOG_WARN, "key general.sampling.sequence lists steps that are not there, or in "
                          "another order: all are taken, in ours");
    error_clear();
}

void ats_sampling_default(const ats_engine *e, ats_sampling *out) {
    sampler_defaults(out);
    if (!e) return;
    ats_sampling own = *out;
    const struct gguf *g = e->file;
    file_float(g, "general.sampling.temp", &own.temperature);
    file_int(g, "general.sampling.top_k", &own.top_k);
    own.top_k = max_int(own.top_k, 0); /* -1 is another spelling of all */
    file_float(g, "general.sampling.top_p", &own.top_p);
    file_float(g, "general.sampling.min_p", &own.min_p);
    file_float(g, "general.sampling.xtc_probability", &own.xtc_probability);
    file_float(g, "general.sampling.xtc_threshold", &own.xtc_threshold);
    file_int(g, "general.sampling.penalty_last_n", &own.penalty_last_n);
    file_float(g, "general.sampling.penalty_repeat", &own.repeat_penalty);
    file_int(g, "general.sampling.mirostat", &own.mirostat);
    file_float(g, "general.sampling.mirostat_tau", &own.mirostat_tau);
    file_float(g, "general.sampling.mirostat_eta", &own.mirostat_eta);
    (void)follow_sequence(g, &own);
    if (sampler_check(&own, tokenizer_n_tokens(e->tokenizer)) == ATS_OK) *out = own;
    error_clear(); /* of keys of another type, too */
}

/* ---- samplers ---- */

ats_status ats_sampler_open(const ats_engine *e, const ats_sampling *params, ats_sampler **out) {
    *out = NULL;
    struct arena arena = {0};
    struct sampler_env env = {.n_vocab = e->model ? e->model->graph->n_vocab
                                                  : tokenizer_n_tokens(e->tokenizer),
                              .n_ctx = e->options.n_ctx};
    ats_status status = ATS_OK;
    if (params->dry_multiplier > 0) {
        bool given = params->dry_breakers != NULL;
        struct dry_breaker *breakers;
        status = dry_breakers_make(
            &arena, e->tokenizer, given ? params->dry_breakers : dry_default_breakers,
            given ? params->n_dry_breakers : DRY_N_DEFAULT_BREAKERS, &breakers, &env.n_breakers);
        env.breakers = breakers;
    }
    struct sampler *sampler = NULL;
    if (status == ATS_OK) status = sampler_open(params, &env, &sampler);
    arena_free(&arena);
    if (status != ATS_OK) return status;
    *out = xcalloc(1, sizeof **out);
    (*out)->sampler = sampler;
    return ATS_OK;
}

void ats_sampler_close(ats_sampler *s) {
    if (!s) return;
    sampler_close(s->sampler);
    free(s);
}

void ats_sampler_accept(ats_sampler *s, int32_t token) {
    sampler_accept(s->sampler, token);
}

int32_t ats_sampler_pick(ats_sampler *s, const float *logits) {
    return sampler_pick(s->sampler, logits);
}

/* ---- generation ---- */

struct generating {
    ats_session *session;
    ats_generation *g;
    struct detok detok;
    struct stop *stop;
    struct buf text, out; /* of one token: decoded, and past the stop strings */
};

static ats_status open_stops(const ats_generation *g, struct stop **out) {
    struct text_span *spans = xcalloc((size_t)g->n_stops + 1, sizeof *spans);
    for (int i = 0; i < g->n_stops; i++)
        spans[i] = (struct text_span){g->stops[i], strlen(g->stops[i])};
    ats_status status = stop_open(spans, (size_t)g->n_stops, out);
    free(spans);
    return status;
}

/* Hands out what is certain; false if the caller wants no more. */
static bool give_text(struct generating *v, int32_t token) {
    bool go_on = !v->g->on_text || v->g->on_text(v->g->user, buf_str(&v->out), v->out.len, token);
    buf_clear(&v->out);
    return go_on;
}

/* Takes a token's text; true if generation ends with it. */
static bool take_token(struct generating *v, int32_t token) {
    buf_clear(&v->text);
    detok_push(&v->detok, token, &v->text);
    bool found = stop_push(v->stop, buf_str(&v->text), v->text.len, &v->out);
    if (!give_text(v, token))
        v->g->stop = ATS_STOP_CALLER;
    else if (found)
        v->g->stop = ATS_STOP_STRING;
    else
        return false;
    return true;
}

/* What was held back: half a character, the beginning of a stop string. */
static void give_rest(struct generating *v) {
    buf_clear(&v->text);
    detok_flush(&v->detok, &v->text);
    if (v->text.len) stop_push(v->stop, buf_str(&v->text), v->text.len, &v->out);
    stop_flush(v->stop, &v->out);
    if (v->out.len && v->g->stop != ATS_STOP_CALLER) give_text(v, -1);
}

static bool context_full(const ats_session *s) {
    return s->seq->n_tokens >= (size_t)s->engine->options.n_ctx;
}

static bool length_reached(const ats_generation *g) {
    return g->max_tokens >= 0 && g->n_tokens >= g->max_tokens;
}

static ats_status generate(struct generating *v, ats_sampler *sampler) {
    ats_session *s = v->session;
    ats_generation *g = v->g;
    for (;;) {
        g->stop = ATS_STOP_LENGTH;
        if (length_reached(g)) return ATS_OK;
        int32_t token = ats_sampler_pick(sampler, s->logits);
        g->n_tokens++;
        g->stop = ATS_STOP_END;
        if (!g->ignore_end && ats_token_is_end(s->engine, token)) return ATS_OK;
        if (take_token(v, token)) return ATS_OK;
        if (context_full(s)) {
            g->stop = length_reached(g) ? ATS_STOP_LENGTH : ATS_STOP_CONTEXT;
            return ATS_OK;
        }
        /* the last token, too, so that another call goes on after it */
        ats_run run = {s, &token, 1, ATS_WANT_LAST, NULL};
        TRY(ats_eval(s->engine, &run, 1));
    }
}

ats_status ats_generate(ats_session *s, ats_sampler *sampler, ats_generation *g) {
    g->n_tokens = 0;
    if (!s->has_logits)
        return fail(ATS_BAD_ARGUMENT, "the session has no logits: evaluate a prompt first");
    struct generating v = {.session = s, .g = g};
    TRY(open_stops(g, &v.stop));
    detok_init(&v.detok, s->engine->tokenizer, 0);
    ats_status status = generate(&v, sampler);
    if (status == ATS_CANCELLED) { /* a wish, not a failure: what was said stands */
        g->stop = ATS_STOP_CALLER;
        status = ATS_OK;
        error_clear();
    }
    give_rest(&v);
    stop_close(v.stop);
    buf_free(&v.text);
    buf_free(&v.out);
    return status;
}
