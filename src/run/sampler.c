#include "run/sampler.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/rng.h"
#include "run/candidates.h"

struct sampler {
    ats_sampling params; /* its pointers are not used */
    int n_vocab;
    ats_logit_bias *bias; /* (params.n_logit_bias) owned */
    int32_t fallback;     /* picked when nothing can be */
    struct rng rng;
    double mu; /* mirostat: the largest surprise allowed, in bits */

    /* The last tokens, oldest first: a buffer of twice n_keep, moved down when it is full. */
    int32_t *history; /* (n_history) owned */
    size_t n_history, history_cap;
    size_t n_keep;           /* 0: no step looks at it */
    size_t n_penalty, n_dry; /* tokens that the penalties and DRY look at; 0: off */
    struct dry *dry;         /* NULL: off */
    float *work;             /* (n_vocab) logits changed by bias and penalties; NULL: none */
    int32_t *tally;          /* (n_vocab) zero between uses; NULL as work */
    struct candidates candidates;
};

const char *const dry_default_breakers[DRY_N_DEFAULT_BREAKERS] = {"\n", ":", "\"", "*"};

void sampler_defaults(ats_sampling *out) {
    *out = (ats_sampling){
        .temperature = 0.8F,
        .top_k = 40,
        .top_p = 0.95F,
        .min_p = 0.05F,
        .typical_p = 1,
        .repeat_penalty = 1,
        .penalty_last_n = 64,
        .dry_base = 1.75F,
        .dry_allowed_length = 2,
        .dry_last_n = -1,
        .xtc_threshold = 0.1F,
        .mirostat_tau = 5,
        .mirostat_eta = 0.1F,
        .seed = clock_entropy(),
    };
}

/* ------------------------------------------------------------------------------------- checking */

static ats_status check_range(const char *name, float value, float min, float max) {
    if (value >= min && value <= max) return ATS_OK; /* false for a NaN */
    return fail(ATS_BAD_ARGUMENT, "%s is %g; it must lie in %g to %g", name, (double)value,
                (double)min, (double)max);
}

static ats_status check_at_least(const char *name, int value, int min) {
    if (value >= min) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%s is %d; it must be at least %d", name, value, min);
}

static ats_status check_dry(const ats_sampling *p) {
    TRY(check_range("dry_multiplier", p->dry_multiplier, 0, 1e6F));
    if (p->dry_multiplier == 0) return ATS_OK;
    TRY(check_range("dry_base", p->dry_base, 1, 1e6F));
    TRY(check_at_least("dry_allowed_length", p->dry_allowed_length, 1));
    TRY(check_at_least("dry_last_n", p->dry_last_n, -1));
    if (!p->dry_breakers) return ATS_OK;
    TRY(check_at_least("n_dry_breakers", p->n_dry_breakers, 0));
    if (p->n_dry_breakers > DRY_BREAKERS_MAX)
        return fail(ATS_BAD_ARGUMENT, "n_dry_breakers is %d; at most %d can be", p->n_dry_breakers,
                    DRY_BREAKERS_MAX);
    for (int i = 0; i < p->n_dry_breakers; i++) {
        const char *s = p->dry_breakers[i];
        size_t n = s ? strnlen(s, DRY_BREAKER_BYTES_MAX + 1) : 0;
        if (n == 0 || n > DRY_BREAKER_BYTES_MAX)
            return fail(ATS_BAD_ARGUMENT, "dry_breakers[%d] is %s", i,
                        n == 0 ? "empty" : "longer than 128 bytes");
    }
    return ATS_OK;
}

static ats_status check_bias(const ats_sampling *p, int n_vocab) {
    TRY(check_at_least("n_logit_bias", p->n_logit_bias, 0));
    if (p->n_logit_bias > 0 && !p->logit_bias)
        return fail(ATS_BAD_ARGUMENT, "logit_bias is NULL, n_logit_bias is %d", p->n_logit_bias);
    for (int i = 0; i < p->n_logit_bias; i++) {
        const ats_logit_bias *b = &p->logit_bias[i];
        if (b->token < 0 || b->token >= n_vocab)
            return fail(ATS_BAD_ARGUMENT, "logit_bias[%d]: token %d is not in the vocabulary of %d",
                        i, b->token, n_vocab);
        if (b->bias == -INFINITY) continue; /* a ban */
        if (!(fabsf(b->bias) <= 1e6F))
            return fail(ATS_BAD_ARGUMENT,
                        "logit_bias[%d]: bias %g is neither -inf nor in "
                        "-1e+06 to 1e+06",
                        i, (double)b->bias);
    }
    return ATS_OK;
}

ats_status sampler_check(const ats_sampling *p, int n_vocab) {
    TRY(check_range("temperature", p->temperature, -1e6F, 1e6F));
    TRY(check_at_least("top_k", p->top_k, -1));
    TRY(check_range("top_p", p->top_p, 0, 1));
    TRY(check_range("min_p", p->min_p, 0, 1));
    TRY(check_range("typical_p", p->typical_p, 0, 1));
    TRY(check_range("repeat_penalty", p->repeat_penalty, 1e-6F, 1e6F));
    TRY(check_range("presence_penalty", p->presence_penalty, -1e6F, 1e6F));
    TRY(check_range("frequency_penalty", p->frequency_penalty, -1e6F, 1e6F));
    TRY(check_at_least("penalty_last_n", p->penalty_last_n, -1));
    TRY(check_dry(p));
    TRY(check_range("xtc_probability", p->xtc_probability, 0, 1));
    if (p->xtc_probability > 0) TRY(check_range("xtc_threshold", p->xtc_threshold, 0, 1));
    if (p->mirostat != 0 && p->mirostat != 2)
        return fail(ATS_BAD_ARGUMENT, "mirostat is %d; it can be 0 (off) or 2", p->mirostat);
    if (p->mirostat == 2) {
        TRY(check_range("mirostat_tau", p->mirostat_tau, 0, 100));
        TRY(check_range("mirostat_eta", p->mirostat_eta, 0, 1));
    }
    return check_bias(p, n_vocab);
}

static ats_status check_breakers(const struct sampler_env *env) {
    for (int i = 0; i < env->n_breakers; i++) {
        const struct dry_breaker *b = &env->breakers[i];
        if (b->n_tokens < 1 || b->n_tokens > DRY_BREAKER_TOKENS_MAX)
            return fail(ATS_BAD_ARGUMENT, "dry_breakers: a breaker of %d tokens", b->n_tokens);
        for (int j = 0; j < b->n_tokens; j++)
            if (b->tokens[j] < 0 || b->tokens[j] >= env->n_vocab)
                return fail(ATS_BAD_ARGUMENT, "dry_breakers: token %d is not in the vocabulary",
                            b->tokens[j]);
    }
    return ATS_OK;
}

/* -------------------------------------------------------------------------------------- opening */

/* The lowest id that is not banned, 0 if all are. */
static int32_t first_allowed(const ats_sampling *p, int n_vocab) {
    unsigned char *banned = xcalloc((size_t)n_vocab, 1);
    for (int i = 0; i < p->n_logit_bias; i++)
        if (p->logit_bias[i].bias == -INFINITY) banned[p->logit_bias[i].token] = 1;
    const unsigned char *allowed = memchr(banned, 0, (size_t)n_vocab);
    int32_t id = allowed ? (int32_t)(allowed - banned) : 0;
    free(banned);
    return id;
}

static size_t last_n_of(int last_n, int n_ctx) {
    return (size_t)(last_n < 0 ? n_ctx : min_int(last_n, n_ctx));
}

ats_status sampler_open(const ats_sampling *params, const struct sampler_env *env,
                        struct sampler **out) {
    *out = NULL;
    REQUIRE(env->n_vocab > 0 && env->n_ctx > 0 && env->n_breakers >= 0);
    TRY(sampler_check(params, env->n_vocab));
    if (params->dry_multiplier > 0) TRY(check_breakers(env));
    struct sampler *s = xcalloc(1, sizeof *s);
    s->params = *params;
    s->n_vocab = env->n_vocab;
    s->fallback = first_allowed(params, env->n_vocab);
    rng_seed(&s->rng, params->seed);
    s->mu = 2 * (double)params->mirostat_tau;
    if (params->n_logit_bias > 0) {
        size_t bytes = (size_t)params->n_logit_bias * sizeof *s->bias;
        s->bias = memcpy(xmalloc(bytes), params->logit_bias, bytes);
    }
    if (params->repeat_penalty != 1 || params->presence_penalty != 0 ||
        params->frequency_penalty != 0)
        s->n_penalty = last_n_of(params->penalty_last_n, env->n_ctx);
    if (params->dry_multiplier > 0) s->n_dry = last_n_of(params->dry_last_n, env->n_ctx);
    if (s->n_dry > 0) {
        struct dry_params dry = {params->dry_multiplier, params->dry_base,
                                 params->dry_allowed_length};
        s->dry = dry_open(&dry, env->breakers, env->n_breakers, env->n_vocab);
    }
    s->n_keep = max_size(s->n_penalty, s->n_dry);
    if (s->bias || s->n_keep > 0) {
        s->work = xcalloc((size_t)env->n_vocab, sizeof *s->work);
        s->tally = xcalloc((size_t)env->n_vocab, sizeof *s->tally);
    }
    *out = s;
    return ATS_OK;
}

void sampler_close(struct sampler *s) {
    if (!s) return;
    dry_close(s->dry);
    candidates_free(&s->candidates);
    free(s->bias);
    free(s->history);
    free(s->work);
    free(s->tally);
    free(s);
}

/* -------------------------------------------------------------------------------------- history */

void sampler_accept(struct sampler *s, int32_t token) {
    if (s->n_keep == 0 || token < 0 || token >= s->n_vocab) return;
    if (s->n_history == 2 * s->n_keep) {
        memmove(s->history, s->history + s->n_keep, s->n_keep * sizeof *s->history);
        s->n_history = s->n_keep;
    }
    GROW(s->history, s->n_history, s->history_cap, 1);
    s->history[s->n_history++] = token;
}

/* The last of at most n_last tokens; *n is how many there are. */
static const int32_t *history_end(const struct sampler *s, size_t n_last, size_t *n) {
    *n = min_size(n_last, s->n_history);
    return *n ? s->history + (s->n_history - *n) : NULL;
}

/* -------------------------------------------------------------------------------------- changes */

static void apply_bias(struct sampler *s) {
    for (int i = 0; i < s->params.n_logit_bias; i++)
        s->work[s->bias[i].token] += s->bias[i].bias;
}

/* Each token of the last n_penalty once: the repetition penalty divides a positive logit and
 * multiplies a negative one (Keskar et al. 2019, CTRL, section 4.1, made monotonic); then
 * logit -= presence + count * frequency. */
static void apply_penalties(struct sampler *s) {
    size_t n;
    const int32_t *tokens = history_end(s, s->n_penalty, &n);
    for (size_t i = 0; i < n; i++)
        s->tally[tokens[i]]++;
    for (size_t i = 0; i < n; i++) { /* the first visit of a token clears it */
        int32_t token = tokens[i], count = s->tally[token];
        if (count == 0) continue;
        s->tally[token] = 0;
        float x = s->work[token];
        x = x > 0 ? x / s->params.repeat_penalty : x * s->params.repeat_penalty;
        x -= s->params.presence_penalty + (float)count * s->params.frequency_penalty;
        s->work[token] = x;
    }
}

static void apply_dry(struct sampler *s) {
    size_t n;
    const int32_t *tokens = history_end(s, s->n_dry, &n);
    if (n > 0) dry_apply(s->dry, tokens, n, s->work, s->tally);
}

/* The logits after bias, penalties and DRY. */
static const float *changed_logits(struct sampler *s, const float *logits) {
    if (!s->bias && s->n_history == 0) return logits;
    memcpy(s->work, logits, (size_t)s->n_vocab * sizeof *logits);
    if (s->bias) apply_bias(s);
    if (s->n_penalty > 0) apply_penalties(s);
    if (s->dry) apply_dry(s);
    return s->work;
}

/* ------------------------------------------------------------------------------------- choosing */

static int32_t draw(struct sampler *s) {
    const struct candidates *c = &s->candidates;
    return c->items[candidates_draw(c, rng_unit(&s->rng))].id;
}

/* Basu et al. 2021, "Mirostat", its second version: what surprises more than mu bits is cut off,
 * and mu follows the surprise of the token drawn, measured after the cut. */
static int32_t pick_mirostat(struct sampler *s, const float *logits) {
    struct candidates *c = &s->candidates;
    candidates_gather(c, logits, s->n_vocab);
    if (c->n == 0) return -1;
    candidates_weigh(c, 1);
    candidates_keep_above(c, (float)exp2(-s->mu));
    candidates_weigh(c, 1);
    const struct candidate *drawn = &c->items[candidates_draw(c, rng_unit(&s->rng))];
    double error = -log2((double)drawn->p) - (double)s->params.mirostat_tau;
    s->mu -= (double)s->params.mirostat_eta * error;
    return drawn->id;
}

static int32_t pick_sampled(struct sampler *s, const float *logits) {
    const ats_sampling *p = &s->params;
    struct candidates *c = &s->candidates;
    candidates_gather_top(c, logits, s->n_vocab, p->top_k > 0 ? p->top_k : s->n_vocab);
    if (c->n == 0) return -1;
    if (p->typical_p < 1) {
        candidates_weigh(c, 1);
        candidates_keep_typical(c, p->typical_p);
    }
    if (p->top_p < 1) {
        candidates_weigh(c, 1);
        candidates_keep_mass(c, p->top_p);
    }
    if (p->min_p > 0) {
        candidates_weigh(c, 1);
        candidates_keep_above(c, p->min_p * c->items[candidates_best(c)].p);
    }
    /* One number whether or not the step can do anything: later draws do not depend on it. */
    if (p->xtc_probability > 0 && rng_unit(&s->rng) < (double)p->xtc_probability) {
        candidates_weigh(c, 1);
        candidates_drop_top_choices(c, p->xtc_threshold);
    }
    candidates_weigh(c, p->temperature);
    return draw(s);
}

int32_t sampler_pick(struct sampler *s, const float *logits) {
    const float *changed = changed_logits(s, logits);
    int32_t token;
    if (s->params.temperature <= 0)
        token = logits_argmax(changed, s->n_vocab);
    else if (s->params.mirostat == 2)
        token = pick_mirostat(s, changed);
    else
        token = pick_sampled(s, changed);
    if (token < 0) token = s->fallback;
    sampler_accept(s, token);
    return token;
}
