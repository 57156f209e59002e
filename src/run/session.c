/* Sessions, and rounds put together from them. */
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "run/engine.h"

struct round_memory {
    int32_t *tokens, *positions, *rows;
    struct round_run *runs;
    struct pending *pending;
    size_t *done; /* of ats_eval: a session stands in one run only, so n_seqs are enough */
};

/* What a run has in the round being put together. */
struct pending {
    int run;         /* index into ats_eval's runs */
    size_t n_before; /* tokens of its sequence before the round */
    int n_tokens;    /* of this round */
    int row_begin, n_rows;
};

struct round_memory *round_memory_open(const ats_options *o) {
    struct round_memory *m = xcalloc(1, sizeof *m);
    m->tokens = xcalloc((size_t)o->n_batch, sizeof *m->tokens);
    m->positions = xcalloc((size_t)o->n_batch, sizeof *m->positions);
    m->rows = xcalloc((size_t)o->n_rows, sizeof *m->rows);
    m->runs = xcalloc((size_t)o->n_seqs, sizeof *m->runs);
    m->pending = xcalloc((size_t)o->n_seqs, sizeof *m->pending);
    m->done = xcalloc((size_t)o->n_seqs, sizeof *m->done);
    return m;
}

void round_memory_close(struct round_memory *m) {
    if (!m) return;
    free(m->tokens), free(m->positions), free(m->rows), free(m->runs), free(m->pending),
        free(m->done);
    free(m);
}

/* ---- sessions ---- */

ats_status ats_session_open(ats_engine *e, ats_session **out) {
    *out = NULL;
    if (!e->model || e->options.plan_only)
        return fail(ATS_BAD_ARGUMENT, "the engine was opened for %s only",
                    e->options.plan_only ? "its plan" : "metadata");
    if (e->n_sessions >= e->options.n_seqs)
        return fail(ATS_BAD_ARGUMENT, "all %d sessions of the engine are open", e->n_sessions);
    ats_session *s = xcalloc(1, sizeof *s);
    s->engine = e;
    s->seq = kv_seq_open(e->kv);
    if (e->states) s->state = state_seq_open(e->states);
    s->kept = xcalloc((size_t)e->model->graph->n_vocab, sizeof *s->kept);
    s->logits = s->kept;
    e->n_sessions++;
    s->next = e->sessions;
    e->sessions = s;
    *out = s;
    return ATS_OK;
}

void ats_session_close(ats_session *s) {
    if (!s) return;
    ats_session **at = &s->engine->sessions;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    kv_seq_close(s->seq);
    state_seq_close(s->state);
    s->engine->n_sessions--;
    free(s->kept);
    free(s);
}

const int32_t *ats_session_tokens(const ats_session *s, size_t *n) {
    *n = s->seq->n_tokens;
    return s->seq->tokens;
}

const float *ats_session_logits(const ats_session *s) {
    return s->has_logits ? s->logits : NULL;
}

/* Keeps at most the first n tokens; returns how many. Fewer where what the token at position n
 * would look at is gone (kv_truncate), or as the last snapshot of recurrent state has it: the
 * caller evaluates from there on. */
static size_t cut(ats_session *s, size_t n) {
    if (n == s->seq->n_tokens) return n;
    s->has_logits = false;
    if (s->state) n = state_rewind(s->state, n);
    n = kv_truncate(s->seq, n);
    if (s->state && n == 0) state_rewind(s->state, 0); /* the windows keep all or nothing */
    return n;
}

ats_status ats_session_truncate(ats_session *s, size_t n) {
    if (n > s->seq->n_tokens)
        return fail(ATS_BAD_ARGUMENT, "the session has %zu tokens, %zu cannot be kept",
                    s->seq->n_tokens, n);
    if (n == s->seq->n_tokens) return ATS_OK;
    size_t kept = cut(s, n);
    if (kept == n) return ATS_OK;
    /* they still stand behind the sequence's end, until the next append */
    int32_t *tokens = xcalloc(n - kept, sizeof *tokens);
    memcpy(tokens, s->seq->tokens + kept, (n - kept) * sizeof *tokens);
    ats_run run = {s, tokens, n - kept, ATS_WANT_NONE, NULL};
    ats_status status = ats_eval(s->engine, &run, 1);
    free(tokens);
    return status;
}

void ats_session_snapshot(ats_session *s) {
    if (s->state) state_remember(s->state, s->seq->n_tokens);
}

/* ---- one round ---- */

/* Everything that ats_eval knows while it goes on. */
struct eval {
    ats_engine *e;
    ats_run *runs;
    int n_runs;
    size_t *done;       /* (n_runs) tokens of each that are evaluated */
    int first;          /* the first run that is not through */
    bool replays;       /* in place of a lost device: neither counted nor cancelled */
    bool device_failed; /* the last round did, and is rolled back */
};

/* Rows that the next n tokens of a run want. */
static int rows_wanted(const struct eval *v, int i, int n) {
    const ats_run *run = &v->runs[i];
    if (run->want == ATS_WANT_ALL) return n;
    return run->want == ATS_WANT_LAST && v->done[i] + (size_t)n == run->n_tokens;
}

/* Adds as many of a run's tokens as there is room for. */
static ats_status add_run(struct eval *v, int i, struct round *round) {
    struct round_memory *m = v->e->round;
    const ats_options *o = &v->e->options;
    ats_run *run = &v->runs[i];
    struct kv_seq *seq = run->session->seq;
    size_t left = run->n_tokens - v->done[i];
    int n = (int)min_size(left, (size_t)(o->n_batch - round->n_tokens));
    int room = o->n_rows - round->n_rows;
    if (rows_wanted(v, i, n) > room) n = run->want == ATS_WANT_ALL ? room : 0;
    if (n == 0) return ATS_OK;

    size_t before = seq->n_tokens;
    TRY(kv_append(seq, run->tokens + v->done[i], (size_t)n));
    struct pending *p = &m->pending[round->n_runs];
    *p = (struct pending){i, before, n, round->n_rows, rows_wanted(v, i, n)};
    m->runs[round->n_runs] = (struct round_run){.token_begin = round->n_tokens,
                                                .n_tokens = n,
                                                .position = (int)before,
                                                .state_in = STATE_NONE,
                                                .state_out = STATE_NONE};
    for (int c = 0; c < kv_n_classes(v->e->kv); c++)
        m->runs[round->n_runs].pages[c] = seq->tables[c].pages;
    struct state_seq *state = run->session->state;
    if (state) {
        m->runs[round->n_runs].state_in = state->slot;
        m->runs[round->n_runs].state_out = state_begin(state);
    }
    round->n_runs++;
    for (int j = 0; j < n; j++) {
        int at = round->n_tokens + j;
        m->tokens[at] = run->tokens[v->done[i] + (size_t)j];
        m->positions[at] = (int32_t)before + j;
        if (j >= n - p->n_rows) m->rows[round->n_rows++] = at;
    }
    round->n_tokens += n;
    return ATS_OK;
}

void session_copy_pages(ats_engine *e) {
    size_t n;
    const struct kv_copy *copies = kv_copies(e->kv, &n);
    for (size_t i = 0; i < n; i++)
        executor_copy_page(e->executor, copies[i].class_index, copies[i].src, copies[i].dst);
    kv_copies_done(e->kv);
}

void session_keep_logits(ats_engine *e) {
    for (ats_session *s = e->sessions; s; s = s->next) {
        if (!s->has_logits || s->logits == s->kept) continue;
        memcpy(s->kept, s->logits, (size_t)e->model->graph->n_vocab * sizeof *s->kept);
        s->logits = s->kept;
    }
}

/* Those of the round get new ones where the old ones stand, if they have any, or lose them. */
static void keep_others_logits(struct eval *v, const struct round *round) {
    for (int i = 0; i < round->n_runs; i++) {
        ats_session *s = v->runs[v->e->round->pending[i].run].session;
        s->has_logits = s->has_logits && s->logits == s->kept;
    }
    session_keep_logits(v->e);
}

static void roll_back(struct eval *v, const struct round *round) {
    for (int i = 0; i < round->n_runs; i++) {
        const struct pending *p = &v->e->round->pending[i];
        ats_session *s = v->runs[p->run].session;
        kv_rollback(s->seq, p->n_before);
        if (s->state) state_abort(s->state);
    }
}

/* Hands the rows out and moves on. */
static void take_results(struct eval *v, const struct round *round, const float *logits) {
    size_t width = (size_t)v->e->model->graph->n_vocab;
    for (int i = 0; i < round->n_runs; i++) {
        const struct pending *p = &v->e->round->pending[i];
        ats_run *run = &v->runs[p->run];
        const float *rows = logits + (size_t)p->row_begin * width;
        float *out = run->logits;
        if (run->want == ATS_WANT_ALL && out) out += v->done[p->run] * width;
        if (out && p->n_rows) memcpy(out, rows, (size_t)p->n_rows * width * sizeof *out);
        v->done[p->run] += (size_t)p->n_tokens;
        if (run->session->state) state_commit(run->session->state);
        run->session->has_logits = p->n_rows > 0;
        if (p->n_rows) run->session->logits = rows + (size_t)(p->n_rows - 1) * width;
    }
    if (v->e->devices[0]->slow_homes) session_keep_logits(v->e); /* and the exchange likewise */
}

static bool is_decode(const struct eval *v) {
    for (int i = 0; i < v->n_runs; i++)
        if (v->runs[i].n_tokens > 1) return false;
    return true;
}

static void count_round(struct eval *v, const struct round *round, uint64_t ns) {
    ats_stats *s = &v->e->stats;
    bool decode = is_decode(v);
    *(decode ? &s->n_decode_tokens : &s->n_prefill_tokens) += (uint64_t)round->n_tokens;
    *(decode ? &s->decode_ns : &s->prefill_ns) += ns;
    s->n_rounds++;
}

static ats_status run_round(struct eval *v) {
    ats_engine *e = v->e;
    struct round round = {.tokens = e->round->tokens,
                          .positions = e->round->positions,
                          .runs = e->round->runs,
                          .rows = e->round->rows};
    uint64_t start = clock_ns(), executor_ns = 0;
    ats_status status = gguf_check_files(e->file); /* some weights are read in its map */
    for (int i = v->first; status == ATS_OK && i < v->n_runs; i++)
        if (v->done[i] < v->runs[i].n_tokens) status = add_run(v, i, &round);
    const float *logits = NULL;
    if (status == ATS_OK) {
        session_copy_pages(e);
        keep_others_logits(v, &round);
        executor_ns = clock_ns();
        status = executor_run(e->executor, &round, &logits);
        executor_ns = clock_ns() - executor_ns;
        v->device_failed = status != ATS_OK;
    }
    if (status != ATS_OK) {
        roll_back(v, &round);
        return status;
    }
    take_results(v, &round, logits);
    uint64_t ns = clock_ns() - start;
    if (!v->replays) count_round(v, &round, ns);
    observe_round(e, &round, is_decode(v), ns - executor_ns);
    if (!v->replays) adapt_round(e, &round);
    return ATS_OK;
}

/* ---- evaluation ---- */

static ats_status check_tokens(const ats_engine *e, const int32_t *tokens, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (tokens[i] < 0 || tokens[i] >= e->model->graph->n_vocab)
            return fail(ATS_BAD_ARGUMENT, "token id %d is outside the vocabulary of %d", tokens[i],
                        e->model->graph->n_vocab);
    return ATS_OK;
}

static ats_status check_run(const ats_engine *e, const ats_run *run) {
    size_t has = run->session->seq->n_tokens;
    if (run->session->engine != e)
        return fail(ATS_BAD_ARGUMENT, "a session belongs to another engine");
    if (run->n_tokens > (size_t)e->options.n_ctx - has)
        return fail(ATS_CONTEXT_FULL,
                    "%zu tokens do not fit: the session holds %zu of at most %d tokens",
                    run->n_tokens, has, e->options.n_ctx);
    return check_tokens(e, run->tokens, run->n_tokens);
}

static ats_status check_runs(const ats_engine *e, const ats_run *runs, int n_runs) {
    for (int i = 0; i < n_runs; i++) {
        TRY(check_run(e, &runs[i]));
        for (int j = 0; j < i; j++)
            if (runs[i].session == runs[j].session)
                return fail(ATS_BAD_ARGUMENT, "a session stands in two runs");
    }
    return ATS_OK;
}

static bool is_cancelled(const struct eval *v) {
    return !v->replays && v->e->cancel && v->e->cancel(v->e->cancel_user);
}

/* done[] is zeroed. */
static ats_status run_rounds(struct eval *v) {
    ats_status status = ATS_OK;
    for (;;) {
        while (v->first < v->n_runs && v->done[v->first] == v->runs[v->first].n_tokens)
            v->first++;
        if (v->first == v->n_runs) break;
        if (is_cancelled(v)) status = fail(ATS_CANCELLED, "cancelled");
        if (status == ATS_OK) status = run_round(v);
        /* the round is put together again, from the tokens that it would have had */
        if (status != ATS_OK && v->device_failed && !v->replays) status = engine_recover(v->e);
        v->device_failed = false;
        if (status != ATS_OK) break;
    }
    return status;
}

ats_status ats_eval(ats_engine *e, ats_run *runs, int n_runs) {
    TRY(check_runs(e, runs, n_runs));
    if (n_runs <= 0) return ATS_OK;
    if (!e->executor) TRY(engine_recover(e));
    struct eval v = {.e = e, .runs = runs, .n_runs = n_runs, .done = e->round->done};
    memset(v.done, 0, (size_t)n_runs * sizeof *v.done);
    return run_rounds(&v);
}

/* ---- in place of a lost device ---- */

void session_forget(ats_session *s) {
    s->n_forgotten = s->seq->n_tokens;
    s->forgotten = xcalloc(s->n_forgotten + 1, sizeof *s->forgotten);
    if (s->n_forgotten) memcpy(s->forgotten, s->seq->tokens, s->n_forgotten * sizeof *s->forgotten);
    size_t kept = kv_truncate(s->seq, 0);
    if (s->state) kept += state_rewind(s->state, 0);
    REQUIRE(kept == 0);
}

ats_status session_replay(ats_session *s) {
    bool has_logits = s->has_logits; /* they are on the host, and remain */
    size_t done = 0;
    ats_run run = {s, s->forgotten, s->n_forgotten, ATS_WANT_NONE, NULL};
    struct eval v = {.e = s->engine, .runs = &run, .n_runs = 1, .done = &done, .replays = true};
    ats_status status = run_rounds(&v);
    s->has_logits = has_logits;
    return status;
}

void session_remember(ats_session *s) {
    size_t n = s->seq->n_tokens;
    if (n < s->n_forgotten) { /* the pages were its own before */
        ats_status status = kv_append(s->seq, s->forgotten + n, s->n_forgotten - n);
        REQUIRE(status == ATS_OK);
    }
    free(s->forgotten);
    s->forgotten = NULL;
    s->n_forgotten = 0;
}

/* A chat's next prompt often differs from this one in its last few tokens only: the header of the
 * answer, and whether thinking begins. */
#define SNAPSHOT_TAIL 16

/* Snapshots of what there is and of a little before the prompt's end; *at moves on there. */
static ats_status leave_snapshots(ats_session *s, const int32_t *tokens, size_t n, size_t *at) {
    ats_session_snapshot(s);
    if (n <= *at + SNAPSHOT_TAIL) return ATS_OK;
    ats_run run = {s, tokens + *at, n - SNAPSHOT_TAIL - *at, ATS_WANT_NONE, NULL};
    TRY(ats_eval(s->engine, &run, 1));
    *at = n - SNAPSHOT_TAIL;
    ats_session_snapshot(s);
    return ATS_OK;
}

ats_status ats_session_set(ats_session *s, const int32_t *tokens, size_t n, size_t *n_reused) {
    if (n == 0) return fail(ATS_BAD_ARGUMENT, "no tokens");
    if (n > (size_t)s->engine->options.n_ctx)
        return fail(ATS_CONTEXT_FULL, "%zu tokens do not fit a context of %d", n,
                    s->engine->options.n_ctx);
    TRY(check_tokens(s->engine, tokens, n)); /* before anything is forgotten */
    size_t same = kv_common_prefix(s->seq, tokens, n);
    bool there = same == n && s->seq->n_tokens == n && s->has_logits;
    if (!there) {
        same = cut(s, min_size(same, n - 1));
    }
    if (n_reused) *n_reused = same;
    if (there) return ATS_OK;
    if (s->state) TRY(leave_snapshots(s, tokens, n, &same));
    ats_run run = {s, tokens + same, n - same, ATS_WANT_LAST, NULL};
    return ats_eval(s->engine, &run, 1);
}
