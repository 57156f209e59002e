#include "app/answer.h"

#include "base/clock.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------------------------- sampling */

/* "15043+1", "15043-2.5", "15043-inf" */
MUST_CHECK static ats_status parse_bias(const char *text, ats_logit_bias *out) {
    char id[16] = "";
    size_t n = strspn(text, "0123456789");
    const char *sign = text + n;
    int64_t token;
    double bias;
    if (n > 0 && n < sizeof id && (*sign == '+' || *sign == '-')) {
        memcpy(id, text, n);
        bool is_inf = !strcmp(sign + 1, "inf");
        if (parse_i64(id, &token) && token <= INT32_MAX &&
            (is_inf || (sign[1] >= '0' && sign[1] <= '9' && parse_real(sign, &bias)))) {
            if (is_inf) bias = *sign == '-' ? -(double)INFINITY : (double)INFINITY;
            *out = (ats_logit_bias){(int32_t)token, (float)bias};
            return ATS_OK;
        }
    }
    return fail(ATS_BAD_ARGUMENT,
                "--logit-bias: \"%s\" is not valid; it takes a token id, + or -, and a number or "
                "inf",
                text);
}

MUST_CHECK static ats_status read_biases(struct talker *t) {
    const struct flag_value *v = &t->app->flags.values[FLAG_LOGIT_BIAS];
    if (v->n == 0) return ATS_OK;
    t->biases = xcalloc(v->n, sizeof *t->biases);
    for (size_t i = 0; i < v->n; i++)
        TRY(parse_bias(v->texts[i], &t->biases[i]));
    t->sampling.logit_bias = t->biases;
    t->sampling.n_logit_bias = (int)v->n;
    return ATS_OK;
}

/* \n, \t and \\ as a shell or an INI file can write them. */
static const char *unescape(struct arena *a, const char *text) {
    char *out = arena_strdup(a, text), *to = out;
    for (const char *p = text; *p; p++) {
        bool pair = p[0] == '\\' && p[1] && strchr("nt\\", p[1]);
        *to++ = (char)(!pair ? *p : p[1] == 'n' ? '\n' : p[1] == 't' ? '\t' : '\\');
        p += pair;
    }
    *to = 0;
    return out;
}

static const char **read_texts(struct app *app, enum flag_id id, int *n) {
    const struct flag_value *v = &app->flags.values[id];
    const char **out = xcalloc(v->n + 1, sizeof *out);
    for (size_t i = 0; i < v->n; i++)
        out[i] = unescape(&app->arena, v->texts[i]);
    *n = (int)v->n;
    return out;
}

static void set_real(const struct flags *f, enum flag_id id, float *out) {
    if (flag_given(f, id)) *out = (float)f->values[id].real;
}

static void set_int(const struct flags *f, enum flag_id id, int *out) {
    if (flag_given(f, id)) *out = flag_int(f, id);
}

MUST_CHECK static ats_status read_sampling(struct talker *t) {
    const struct flags *f = &t->app->flags;
    ats_sampling *s = &t->sampling;
    ats_sampling_default(t->engine, s);
    set_real(f, FLAG_TEMP, &s->temperature);
    set_int(f, FLAG_TOP_K, &s->top_k);
    set_real(f, FLAG_TOP_P, &s->top_p);
    set_real(f, FLAG_MIN_P, &s->min_p);
    set_real(f, FLAG_TYPICAL, &s->typical_p);
    set_real(f, FLAG_REPEAT_PENALTY, &s->repeat_penalty);
    set_int(f, FLAG_REPEAT_LAST_N, &s->penalty_last_n);
    set_real(f, FLAG_PRESENCE_PENALTY, &s->presence_penalty);
    set_real(f, FLAG_FREQUENCY_PENALTY, &s->frequency_penalty);
    set_real(f, FLAG_DRY_MULTIPLIER, &s->dry_multiplier);
    set_real(f, FLAG_DRY_BASE, &s->dry_base);
    set_int(f, FLAG_DRY_ALLOWED_LENGTH, &s->dry_allowed_length);
    set_int(f, FLAG_DRY_PENALTY_LAST_N, &s->dry_last_n);
    set_real(f, FLAG_XTC_PROBABILITY, &s->xtc_probability);
    set_real(f, FLAG_XTC_THRESHOLD, &s->xtc_threshold);
    set_real(f, FLAG_MIROSTAT_ENT, &s->mirostat_tau);
    set_real(f, FLAG_MIROSTAT_LR, &s->mirostat_eta);
    if (flag_given(f, FLAG_MIROSTAT)) s->mirostat = flag_int(f, FLAG_MIROSTAT) ? 2 : 0;
    const char *seed = flag_text(f, FLAG_SEED_VALUE);
    if (seed && strcmp(seed, "-1") != 0) s->seed = (uint64_t)f->values[FLAG_SEED_VALUE].integer;
    if (flag_given(f, FLAG_DRY_BREAKER)) {
        t->breakers = read_texts(t->app, FLAG_DRY_BREAKER, &s->n_dry_breakers);
        if (s->n_dry_breakers == 1 && !strcmp(t->breakers[0], "none")) s->n_dry_breakers = 0;
        s->dry_breakers = t->breakers;
    }
    return read_biases(t);
}

/* ----------------------------------------------------------------------------------------- open */

/* Variables of the template; what is given by name wins. */
MUST_CHECK static ats_status read_template_variables(struct talker *t) {
    const struct flags *f = &t->app->flags;
    const char *text = flag_text(f, FLAG_TEMPLATE_KWARGS);
    bool no_thoughts = flag_int(f, FLAG_REASONING_BUDGET) == 0;
    if (!text && !no_thoughts) return ATS_OK;
    json_t *object = NULL;
    ats_status status = text ? json_parse(text, strlen(text), &object) : ATS_OK;
    if (!text) object = json_object();
    bool ok = status == ATS_OK && json_is_object(object);
    if (ok) {
        if (no_thoughts && !json_object_get(object, "enable_thinking"))
            json_object_set_new(object, "enable_thinking", json_false());
        char *printed = json_print(object, false);
        t->extra = arena_strdup(&t->app->arena, printed);
        free(printed);
    }
    json_decref(object);
    if (!ok) return fail(ATS_BAD_ARGUMENT, "--chat-template-kwargs takes a JSON object");
    return ATS_OK;
}

/* True if the vocabulary has this control token. */
static bool has_token(const ats_engine *e, const char *name) {
    int32_t *ids = NULL;
    size_t n = 0, n_text = 0;
    if (ats_tokenize(e, name, strlen(name), ATS_TOKENIZE_PARSE_SPECIAL, &ids, &n) != ATS_OK)
        return false;
    const char *text = n == 1 ? ats_token_text(e, ids[0], &n_text) : NULL;
    bool found = text && n_text == strlen(name) && memcmp(text, name, n_text) == 0;
    ats_free(ids);
    return found;
}

static void choose_style(struct talker *t) {
    enum { AUTO, NONE, HIDDEN }; /* as the flag's choices stand */
    int how = flag_int(&t->app->flags, FLAG_REASONING_FORMAT);
    bool harmony = has_token(t->engine, "<|channel|>") && has_token(t->engine, "<|message|>");
    t->style = how == NONE ? REPLY_PLAIN : harmony ? REPLY_HARMONY : REPLY_THINK;
    t->shows_thoughts = how == AUTO && t->app->term.out_tty;
}

ats_status talker_open(struct app *app, struct talker *t) {
    *t = (struct talker){.app = app};
    const struct flags *f = &app->flags;
    TRY(read_template_variables(t));
    ats_options options;
    app_engine_options(app, &options);
    TRY(app_engine_open(app, &options, &t->engine));
    ats_engine_info(t->engine, &t->info);
    if (!flag_on(f, FLAG_NO_TEMPLATE)) choose_style(t);
    TRY(ats_session_open(t->engine, &t->session));
    TRY(read_sampling(t));
    t->stops = read_texts(app, FLAG_REVERSE_PROMPT, &t->n_stops);
    for (int i = 0; i < t->n_stops; i++)
        if (!*t->stops[i]) return fail(ATS_BAD_ARGUMENT, "--stop: the text is empty");
    t->max_tokens = flag_int(f, FLAG_PREDICT);
    t->ignore_end = flag_on(f, FLAG_IGNORE_EOS);
    return ATS_OK;
}

void talker_close(struct talker *t) {
    ats_session_close(t->session);
    ats_engine_close(t->engine);
    free(t->biases);
    free(t->breakers);
    free(t->stops);
    *t = (struct talker){0};
}

ats_status talker_render(struct talker *t, const json_t *messages, int32_t **ids, size_t *n_ids) {
    char *json = json_print(messages, false), *text = NULL;
    ats_status status = ats_chat_render(t->engine, json, t->extra, true, &text);
    free(json);
    if (status != ATS_OK) return status;
    t->thinks = reply_prompt_thinks(text, strlen(text));
    status = ats_tokenize_chat(t->engine, text, ids, n_ids);
    ats_free(text);
    return status;
}

/* --------------------------------------------------------------------------------------- answer */

struct sink {
    struct talker *talker;
    struct answer *answer;
    struct reply reply;
    size_t n_written[N_REPLY_PARTS];
    bool dimmed;
};

/* A character of the model may be an escape sequence; only a terminal minds. */
MUST_CHECK static ats_status write_text(const struct app *app, const char *text, size_t n) {
    if (!app->term.out_tty) return app_write(text, n);
    struct buf safe = {0};
    term_add_safe(&safe, text, n);
    ats_status status = app_write(buf_str(&safe), safe.len);
    buf_free(&safe);
    return status;
}

MUST_CHECK static ats_status write_part(struct sink *sink, enum reply_part part) {
    const struct buf *text = &sink->answer->parts[part];
    size_t from = sink->n_written[part];
    sink->n_written[part] = text->len;
    if (from == text->len) return ATS_OK;
    return write_text(sink->talker->app, text->data + from, text->len - from);
}

/* Dim, or in brackets where there is no colour. */
MUST_CHECK static ats_status set_dimmed(struct sink *sink, bool dimmed) {
    if (sink->dimmed == dimmed) return ATS_OK;
    sink->dimmed = dimmed;
    bool colour = sink->talker->app->term.colour;
    const char *text = dimmed ? colour ? "\033[2m" : "[" : colour ? "\033[0m\n\n" : "]\n\n";
    return app_write(text, strlen(text));
}

/* What is new since the last time; thoughts come before the answer. */
MUST_CHECK static ats_status write_parts(struct sink *sink) {
    const struct answer *a = sink->answer;
    if (sink->talker->shows_thoughts &&
        a->parts[REPLY_THOUGHT].len > sink->n_written[REPLY_THOUGHT]) {
        TRY(set_dimmed(sink, true));
        TRY(write_part(sink, REPLY_THOUGHT));
    }
    if (a->parts[REPLY_ANSWER].len > sink->n_written[REPLY_ANSWER]) TRY(set_dimmed(sink, false));
    return write_part(sink, REPLY_ANSWER);
}

/* A control token may say where a part ends. It has no text of its own: what comes with it was held
 * back before. Where the name is in the text, it is a word like any other. */
static void take_control(struct sink *sink, int32_t token, const char *said, size_t n_said) {
    size_t n = 0;
    const char *name = ats_token_text(sink->talker->engine, token, &n);
    if (!name || !reply_knows_control(name, n)) return;
    if (n_said >= n && memcmp(said + n_said - n, name, n) == 0) return;
    char text[32];
    snprintf(text, sizeof text, "%.*s", (int)n, name);
    reply_push_control(&sink->reply, text, sink->answer->parts);
}

static bool on_text(void *user, const char *text, size_t n_bytes, int32_t token) {
    struct sink *sink = user;
    struct answer *a = sink->answer;
    if (!a->first_at_ns) a->first_at_ns = clock_ns();
    if (token >= 0) {
        a->decode_ns = clock_ns() - a->first_at_ns;
        GROW(a->ids, a->n_ids, a->cap_ids, 1);
        a->ids[a->n_ids++] = token;
    }
    reply_push(&sink->reply, text, n_bytes, a->parts);
    if (token >= 0) take_control(sink, token, text, n_bytes);
    if (sink->talker->stream) a->write_status = write_parts(sink);
    return a->write_status == ATS_OK && !interrupt_pending();
}

MUST_CHECK static ats_status check_room(const struct talker *t, size_t n_ids) {
    if (n_ids < (size_t)t->info.n_ctx) return ATS_OK;
    size_t wanted = (n_ids + 256 + 255) / 256 * 256;
    int trained = t->info.n_ctx_train;
    return fail(ATS_CONTEXT_FULL,
                "the prompt has %zu tokens, which leaves no room for an answer in a context of "
                "%d; enlarge it with -c %zu%s (the model was trained on %d tokens)",
                n_ids, t->info.n_ctx, wanted,
                trained > 0 && wanted > (size_t)trained ? ", though that is more than it knows"
                                                        : "",
                trained);
}

static void answer_clear(struct answer *a) {
    struct answer kept = *a;
    *a = (struct answer){.ids = kept.ids, .cap_ids = kept.cap_ids};
    for (int i = 0; i < N_REPLY_PARTS; i++) {
        buf_clear(&kept.parts[i]);
        a->parts[i] = kept.parts[i];
    }
}

void answer_free(struct answer *a) {
    for (int i = 0; i < N_REPLY_PARTS; i++)
        buf_free(&a->parts[i]);
    free(a->ids);
    *a = (struct answer){0};
}

static void finish_parts(struct sink *sink) {
    struct answer *a = sink->answer;
    reply_flush(&sink->reply, a->parts);
    reply_close(&sink->reply);
    if (!sink->talker->stream || a->write_status != ATS_OK) return;
    a->write_status = write_parts(sink);
    if (a->write_status == ATS_OK) a->write_status = set_dimmed(sink, false);
}

MUST_CHECK static ats_status generate(struct talker *t, ats_sampler *sampler, struct answer *a) {
    struct sink sink = {.talker = t, .answer = a};
    reply_open(&sink.reply, t->style, t->thinks);
    ats_generation g = {.max_tokens = t->max_tokens,
                        .ignore_end = t->ignore_end,
                        .stops = t->stops,
                        .n_stops = t->n_stops,
                        .on_text = on_text,
                        .user = &sink};
    ats_status status = ats_generate(t->session, sampler, &g);
    uint64_t end = clock_ns();
    finish_parts(&sink);
    if (!a->first_at_ns) a->first_at_ns = end;
    a->first_ns = a->first_at_ns - a->started_ns;
    /* the end token has no text; stopped by its length, the session evaluates one token more */
    if (g.stop == ATS_STOP_END) a->decode_ns = end - a->first_at_ns;
    a->n_tokens = g.n_tokens;
    a->stop = g.stop;
    a->interrupted = interrupt_pending();
    if (status == ATS_CANCELLED && a->n_ids > 0) { /* between two tokens: keep what is there */
        a->stop = ATS_STOP_CALLER;
        a->n_tokens = (int)a->n_ids;
        status = ATS_OK;
    }
    if (status == ATS_OK && a->write_status != ATS_OK)
        return fail_in(a->write_status, "the answer was cut short");
    return status;
}

ats_status talker_answer(struct talker *t, const int32_t *ids, size_t n_ids, uint64_t seed_offset,
                         struct answer *a) {
    answer_clear(a);
    a->n_prompt = n_ids;
    TRY(check_room(t, n_ids));
    ats_sampling sampling = t->sampling;
    sampling.seed += seed_offset * UINT64_C(0x9e3779b97f4a7c15); /* another answer, reproducibly */
    ats_sampler *sampler = NULL;
    TRY(ats_sampler_open(t->engine, &sampling, &sampler));
    for (size_t i = 0; i < n_ids; i++)
        ats_sampler_accept(sampler, ids[i]);
    a->started_ns = clock_ns();
    ats_status status = ats_session_set(t->session, ids, n_ids, &a->n_reused);
    a->prefill_ns = clock_ns() - a->started_ns;
    if (status == ATS_OK) status = generate(t, sampler, a);
    ats_sampler_close(sampler);
    return status;
}

/* --------------------------------------------------------------------------------------- timing */

void timing_add(struct timing *sum, const struct talker *t, const struct answer *a) {
    ats_stats stats;
    ats_engine_stats(t->engine, &stats);
    sum->load_ns = stats.load_ns;
    sum->prefill_ns += a->prefill_ns;
    sum->n_prefill += a->n_prompt - a->n_reused;
    /* The first token comes with the prompt; each further one took a round. */
    sum->decode_ns += a->decode_ns;
    sum->n_decode += (uint64_t)max_int(0, a->n_tokens - 1);
    sum->first_ns += a->first_ns;
    sum->n_answers++;
}

void timing_line(struct buf *out, const struct timing *t) {
    double first = t->n_answers ? (double)t->first_ns / 1e9 / (double)t->n_answers : 0;
    buf_printf(out,
               "load %.2f s | prefill %llu tok %.1f tok/s | decode %llu tok %.1f tok/s | first "
               "token %.2f s",
               (double)t->load_ns / 1e9, (unsigned long long)t->n_prefill,
               per_second(t->n_prefill, t->prefill_ns), (unsigned long long)t->n_decode,
               per_second(t->n_decode, t->decode_ns), first);
}

json_t *timing_json(const struct timing *t) {
    json_t *o = json_object();
    json_object_set_new(o, "load_ms", json_real((double)t->load_ns / 1e6));
    json_object_set_new(o, "prompt_n", json_integer((json_int_t)t->n_prefill));
    json_object_set_new(o, "prompt_ms", json_real((double)t->prefill_ns / 1e6));
    json_object_set_new(o, "prompt_per_second", json_real(per_second(t->n_prefill, t->prefill_ns)));
    json_object_set_new(o, "predicted_n", json_integer((json_int_t)t->n_decode));
    json_object_set_new(o, "predicted_ms", json_real((double)t->decode_ns / 1e6));
    json_object_set_new(o, "predicted_per_second",
                        json_real(per_second(t->n_decode, t->decode_ns)));
    json_object_set_new(o, "ttft_ms", json_real((double)t->first_ns / 1e6));
    return o;
}

const char *stop_name(ats_stop stop) {
    switch (stop) {
    case ATS_STOP_END:
        return "end";
    case ATS_STOP_STRING:
        return "stop_string";
    case ATS_STOP_LENGTH:
        return "length";
    case ATS_STOP_CONTEXT:
        return "context";
    case ATS_STOP_CALLER:
        return "interrupted";
    }
    return "unknown";
}
