/*
 * Attention over paged KV with a streaming softmax: no (tokens x keys) matrix anywhere.
 *
 * Keys are taken in fixed ranges of ATTN_RANGE positions. For a query head a range gives a maximum,
 * a sum and a weighted sum of values; ranges are merged in ascending order. Small rounds compute
 * the ranges side by side and merge afterwards, large ones go through them in order with a tile of
 * queries at a time: the same operations on the same numbers, so the same bits.
 */
#include "backend/cpu/cpu_internal.h"
#include "backend/kv_layout.h"

#include <math.h>
#include <string.h>

/* Softmax state of one query head over the keys seen so far: sum and acc are relative to max. */
struct state {
    float max, sum;
    float *acc; /* (head_dim) */
};

/* What one call of the range kernel works on: n_q queries that share a KV head. */
struct tile {
    const struct step *step;
    const struct round_run *run;
    int head;         /* KV head, counted in the step's kv */
    int n_q, group;   /* query j is of token first_token + j / group */
    int first_token;  /* within the run */
    float *q;         /* (n_q, head_dim) */
    float *scores;    /* (n_q, ATTN_RANGE) */
    float *acc;       /* (n_q, head_dim) of the range */
    float *max, *sum; /* (n_q) of the range */
};

static const struct attention_params *params(const struct step *s) {
    return &s->op->p.attention;
}

static int group_size(const struct step *s) {
    return params(s)->n_heads / params(s)->n_kv_heads;
}

/* Column of a query head that is counted from the step's first. */
static int query_column(const struct step *s, int query_head) {
    return (s->head_begin * group_size(s) + query_head) * params(s)->head_dim;
}

/* Tokens whose queries go through the keys together. */
static int tile_tokens(int group) {
    return max_int(1, ATTN_MAX_QUERIES / group);
}

static size_t tile_queries(const struct backend_limits *l) {
    return (size_t)max_int(ATTN_MAX_QUERIES, l->max_heads);
}

size_t cpu_attn_scratch_floats(const struct backend_limits *l) {
    size_t n_q = tile_queries(l), dim = (size_t)l->max_head_dim;
    /* q, scores, acc of a range, acc of the whole; max and sum of both */
    return n_q * (3 * dim + ATTN_RANGE + 4) + 64;
}

/* Small rounds: for each (token, query head, range) max, sum and acc. */
static size_t partial_floats(int head_dim) {
    return (size_t)head_dim + 2;
}

static int max_ranges(const struct backend_limits *l) {
    return (l->n_ctx + ATTN_RANGE - 1) / ATTN_RANGE;
}

size_t cpu_attn_partial_floats(const struct backend_limits *l) {
    return (size_t)ATTN_SMALL_ROUND * (size_t)l->max_heads * (size_t)max_ranges(l) *
           partial_floats(l->max_head_dim);
}

static bool small_round(const struct round *r) {
    return r->n_tokens <= ATTN_SMALL_ROUND;
}

/* First key that the token at `position` sees. */
static int first_key(const struct step *s, int position) {
    const struct attention_params *p = params(s);
    int first = p->window > 0 ? max_int(0, position + 1 - p->window) : 0;
    return p->chunk > 0 ? max_int(first, position / p->chunk * p->chunk) : first;
}

/* What multiplies the queries of the token at `position`. */
static float temperature(const struct step *s, int position) {
    const struct attention_params *p = params(s);
    if (p->temp_length == 0) return 1;
    return (float)(1 + (double)p->temp_scale * log(1.0 + (position + 1) / p->temp_length));
}

static uint8_t *kv_row(const struct backend_kv *kv, uint8_t *base, size_t row_bytes, int page,
                       int head, int slot) {
    int64_t row = (((int64_t)page * kv->layout.n_kv_heads + head) << KV_PAGE_TOKENS_LOG2) + slot;
    return base + row * (int64_t)row_bytes;
}

/* ---- storing ---- */

static const struct round_run *run_of(const struct round *r, int token) {
    int i = 0;
    while (token >= r->runs[i].token_begin + r->runs[i].n_tokens)
        i++;
    return &r->runs[i];
}

void cpu_attn_store(struct cpu_run *r, const struct phase *p, int thread, int n_threads) {
    const struct step *s = p->step;
    const struct cpu *c = r->cpu;
    const struct backend_kv *kv = s->kv;
    int heads = s->head_end - s->head_begin, dim = params(s)->head_dim, begin, end;
    split_range(r->round->n_tokens * heads, 1, thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        int token = i / heads, head = i % heads, column = (s->head_begin + head) * dim;
        const struct round_run *run = run_of(r->round, token);
        int position = run->position + token - run->token_begin;
        int page = run->pages[params(s)->kv_class][position >> KV_PAGE_TOKENS_LOG2];
        int slot = position & ((1 << KV_PAGE_TOKENS_LOG2) - 1);
        float *row = c->scratch[thread].attn;
        c->k.kv_store[kv->layout.type_k](span_at(c, &s->in[1], token, column), row, dim);
        kv_key_put(kv->layout.type_k, dim, row, kv_row(kv, kv->memory, kv->k_row, page, head, 0),
                   slot);
        c->k.kv_store[kv->layout.type_v](span_at(c, &s->in[2], token, column),
                                         kv_row(kv, kv->v, kv->v_row, page, head, slot), dim);
    }
}

/* ---- one range ---- */

/* Keys [begin, end) of the range that query j sees, as indices into its scores. */
static void visible(const struct tile *t, int j, int range, int *begin, int *end) {
    int position = t->run->position + t->first_token + j / t->group;
    int first = range * ATTN_RANGE;
    *begin = max_int(0, first_key(t->step, position) - first);
    *end = max_int(*begin, min_int(ATTN_RANGE, position + 1 - first));
}

/* Scores become probabilities relative to the range's maximum; keys not seen get 0. */
static void range_softmax(const struct cpu *c, struct tile *t, int j, int range, int n_keys) {
    int begin, end;
    visible(t, j, range, &begin, &end);
    float *scores = t->scores + (int64_t)j * ATTN_RANGE;
    t->max[j] = -INFINITY;
    t->sum[j] = 0;
    if (begin < end) {
        const float cap = params(t->step)->soft_cap;
        if (cap > 0) c->k.soft_cap(scores + begin, end - begin, cap);
        t->max[j] = c->k.max(scores + begin, end - begin);
        t->sum[j] = c->k.exp_sum(scores + begin, end - begin, t->max[j]);
    }
    begin = min_int(begin, n_keys);
    memset(scores, 0, (size_t)begin * sizeof *scores);
    if (end < n_keys) memset(scores + end, 0, (size_t)(n_keys - end) * sizeof *scores);
}

/* The head's keys, or values, in the page that holds a position. */
static const uint8_t *page_keys(const struct tile *t, int position) {
    const struct backend_kv *kv = t->step->kv;
    int page = t->run->pages[params(t->step)->kv_class][position >> KV_PAGE_TOKENS_LOG2];
    return kv_row(kv, kv->memory, kv->k_row, page, t->head, 0);
}
static const uint8_t *page_values(const struct tile *t, int position) {
    const struct backend_kv *kv = t->step->kv;
    int page = t->run->pages[params(t->step)->kv_class][position >> KV_PAGE_TOKENS_LOG2];
    return kv_row(kv, kv->v, kv->v_row, page, t->head, 0);
}

/* First position of a range whose page is read, and is there: pages before the window may not be.
 */
static int range_start(const struct tile *t, int range) {
    const int page_tokens = 1 << KV_PAGE_TOKENS_LOG2;
    int first = first_key(t->step, t->run->position + t->first_token);
    return max_int(range * ATTN_RANGE, first / page_tokens * page_tokens);
}

/* All of the tile's queries against the keys of a range, up to the last token's. A page is asked
 * for while the one before is worked on; next: what the thread reads afterwards, or NULL. */
static void run_range(const struct cpu *c, struct tile *t, int range, const uint8_t *next) {
    const struct backend_kv *kv = t->step->kv;
    const int page_tokens = 1 << KV_PAGE_TOKENS_LOG2;
    const bool fetch = !c->options.no_fusion;
    int dim = params(t->step)->head_dim, first = range * ATTN_RANGE;
    int last = t->run->position + t->first_token + (t->n_q - 1) / t->group;
    int n_keys = min_int(ATTN_RANGE, last + 1 - first), start = range_start(t, range) - first;
    for (int k = start; k < n_keys; k += page_tokens) {
        bool more = k + page_tokens < n_keys;
        const uint8_t *then = !fetch ? NULL
                              : more ? page_keys(t, first + k + page_tokens)
                                     : page_values(t, first + start);
        c->k.attn_scores[kv->layout.type_k](
            t->q, dim, t->n_q, page_keys(t, first + k), min_int(page_tokens, n_keys - k), dim,
            params(t->step)->scale, t->scores + k, ATTN_RANGE, then);
    }
    for (int j = 0; j < t->n_q; j++)
        range_softmax(c, t, j, range, n_keys);
    memset(t->acc, 0, (size_t)t->n_q * (size_t)dim * sizeof *t->acc);
    for (int k = start; k < n_keys; k += page_tokens) {
        bool more = k + page_tokens < n_keys;
        const uint8_t *then = !fetch ? NULL : more ? page_values(t, first + k + page_tokens) : next;
        c->k.attn_values[kv->layout.type_v](
            t->scores + k, ATTN_RANGE, t->n_q, page_values(t, first + k), kv->v_row,
            min_int(page_tokens, n_keys - k), dim, t->acc, dim, then);
    }
}

/* Adds a later range to the state; a range without visible keys changes nothing. */
static void merge(struct state *s, float max, float sum, const float *acc, int dim) {
    if (!(sum > 0)) return;
    float top = s->max > max ? s->max : max;
    float old = expf(s->max - top), new = expf(max - top);
    s->sum = s->sum * old + sum * new;
    for (int i = 0; i < dim; i++)
        s->acc[i] = s->acc[i] * old + acc[i] * new;
    s->max = top;
}

/* The output of a query head (counted from the step's first); its sink joins the sum last. */
static void finish(const struct cpu_run *r, const struct step *s, int token, int query_head,
                   const struct state *state) {
    int dim = params(s)->head_dim;
    float *out = span_at(r->cpu, &s->out, token, query_column(s, query_head));
    float factor = 1 / state->sum;
    if (s->weight) {
        float sink = ((const float *)(const void *)s->weight->s.data)[query_head];
        float top = state->max > sink ? state->max : sink, keep = expf(state->max - top);
        factor = keep / (state->sum * keep + expf(sink - top));
    }
    for (int i = 0; i < dim; i++)
        out[i] = state->acc[i] * factor;
}

/* Lays a tile out in a thread's memory and gathers its queries. */
static struct tile open_tile(const struct cpu_run *r, const struct step *s,
                             const struct round_run *run, int first_token, int n_tokens, int head,
                             int thread) {
    const struct cpu *c = r->cpu;
    int dim = params(s)->head_dim, group = group_size(s);
    struct tile t = {.step = s,
                     .run = run,
                     .head = head,
                     .group = group,
                     .n_q = n_tokens * group,
                     .first_token = first_token};
    size_t n_q = tile_queries(&c->limits);
    t.q = c->scratch[thread].attn;
    t.scores = t.q + n_q * (size_t)dim;
    t.acc = t.scores + n_q * ATTN_RANGE;
    t.max = t.acc + 2 * n_q * (size_t)dim;
    t.sum = t.max + n_q;
    for (int i = 0; i < n_tokens; i++) {
        float *q = t.q + (int64_t)i * group * dim;
        float factor = temperature(s, run->position + first_token + i);
        memcpy(q,
               span_at(c, &s->in[0], run->token_begin + first_token + i,
                       query_column(s, head * group)),
               (size_t)group * (size_t)dim * sizeof *q);
        if (factor > 1 || factor < 1) c->k.scale(q, group * dim, factor);
    }
    return t;
}

/* ---- small rounds: ranges side by side ---- */

static int count_ranges(int position) {
    return position / ATTN_RANGE + 1;
}

bool cpu_attn_must_merge(const struct round *round) {
    for (int i = 0; small_round(round) && i < round->n_tokens; i++)
        if (count_ranges(round->positions[i]) > 1) return true;
    return false;
}

static float *partial_at(const struct cpu *c, int token, int query_head, int range, int dim) {
    size_t index = ((size_t)token * (size_t)c->limits.max_heads + (size_t)query_head) *
                       (size_t)max_ranges(&c->limits) +
                   (size_t)range;
    return c->attn_partial + index * partial_floats(dim);
}

/* A range of a token's keys for a KV head. */
struct small_item {
    int token, head, range;
};

/* direct: the range is the only one, so its result is the whole. then: what the thread does next.
 */
static void small_range(struct cpu_run *r, const struct step *s, struct small_item item,
                        bool direct, const struct small_item *then, int thread) {
    const struct round_run *run = run_of(r->round, item.token);
    int dim = params(s)->head_dim, token = item.token;
    const uint8_t *next = NULL;
    if (then) {
        const struct round_run *other = run_of(r->round, then->token);
        struct tile t = {.step = s,
                         .run = other,
                         .head = then->head,
                         .first_token = then->token - other->token_begin};
        next = page_keys(&t, range_start(&t, then->range));
    }
    struct tile t = open_tile(r, s, run, token - run->token_begin, 1, item.head, thread);
    run_range(r->cpu, &t, item.range, next);
    for (int j = 0; j < t.n_q; j++) {
        struct state state = {t.max[j], t.sum[j], t.acc + (int64_t)j * dim};
        int query_head = item.head * t.group + j;
        if (direct) {
            finish(r, s, token, query_head, &state);
            continue;
        }
        float *out = partial_at(r->cpu, token, query_head, item.range, dim);
        out[0] = state.max;
        out[1] = state.sum;
        memcpy(out + 2, state.acc, (size_t)dim * sizeof *out);
    }
}

static void small_ranges(struct cpu_run *r, const struct phase *p, int thread, int n_threads) {
    const struct step *s = p->step;
    int heads = s->head_end - s->head_begin, item = 0;
    bool direct = !cpu_attn_must_merge(r->round), waits = false;
    struct small_item mine = {0}; /* found, to be done when the one after it is known */
    for (int token = 0; token < r->round->n_tokens; token++) {
        int position = r->round->positions[token], n = count_ranges(position);
        int from = first_key(s, position) / ATTN_RANGE;
        for (int head = 0; head < heads; head++) {
            for (int range = from; range < n; range++) {
                if (item++ % n_threads != thread) continue;
                struct small_item found = {token, head, range};
                if (waits) small_range(r, s, mine, direct, &found, thread);
                mine = found;
                waits = true;
            }
        }
    }
    if (waits) small_range(r, s, mine, direct, NULL, thread);
}

void cpu_attn_merge(struct cpu_run *r, const struct phase *p, int thread, int n_threads) {
    const struct step *s = p->step;
    const struct cpu *c = r->cpu;
    int dim = params(s)->head_dim, group = group_size(s), begin, end;
    int q_heads = (s->head_end - s->head_begin) * group;
    split_range(r->round->n_tokens * q_heads, 1, thread, n_threads, &begin, &end);
    for (int i = begin; i < end; i++) {
        int token = i / q_heads, head = i % q_heads, position = r->round->positions[token];
        struct state state = {-INFINITY, 0, c->scratch[thread].attn};
        memset(state.acc, 0, (size_t)dim * sizeof *state.acc);
        for (int range = first_key(s, position) / ATTN_RANGE; range < count_ranges(position);
             range++) {
            const float *part = partial_at(c, token, head, range, dim);
            merge(&state, part[0], part[1], part + 2, dim);
        }
        finish(r, s, token, head, &state);
    }
}

/* ---- large rounds: tiles of queries through the ranges in order ---- */

static void large_tile(struct cpu_run *r, const struct step *s, const struct round_run *run,
                       int first_token, int n_tokens, int head, int thread) {
    const struct cpu *c = r->cpu;
    struct tile t = open_tile(r, s, run, first_token, n_tokens, head, thread);
    int dim = params(s)->head_dim;
    size_t n_q = tile_queries(&c->limits);
    float *acc = t.acc + n_q * (size_t)dim, *max = t.sum + n_q, *sum = max + n_q;
    for (int j = 0; j < t.n_q; j++)
        max[j] = -INFINITY, sum[j] = 0;
    memset(acc, 0, (size_t)t.n_q * (size_t)dim * sizeof *acc);

    int first = run->position + first_token, last = first + n_tokens - 1;
    for (int range = first_key(s, first) / ATTN_RANGE; range < count_ranges(last); range++) {
        const bool more = range + 1 < count_ranges(last);
        run_range(c, &t, range, more ? page_keys(&t, (range + 1) * ATTN_RANGE) : NULL);
        for (int j = 0; j < t.n_q; j++) {
            struct state state = {max[j], sum[j], acc + (int64_t)j * dim};
            merge(&state, t.max[j], t.sum[j], t.acc + (int64_t)j * dim, dim);
            max[j] = state.max;
            sum[j] = state.sum;
        }
    }
    for (int j = 0; j < t.n_q; j++) {
        struct state state = {max[j], sum[j], acc + (int64_t)j * dim};
        int token = run->token_begin + first_token + j / t.group;
        finish(r, s, token, head * t.group + j % t.group, &state);
    }
}

/* Tiles are taken from the back, where they see most keys, so that the last ones are small. */
static void large_ranges(struct cpu_run *r, const struct phase *p, int thread) {
    const struct step *s = p->step;
    int heads = s->head_end - s->head_begin, size = tile_tokens(group_size(s));
    _Atomic int *next = &r->segment->counters[p->counter];
    int item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed), seen = 0;
    for (int i = r->round->n_runs - 1; i >= 0; i--) {
        const struct round_run *run = &r->round->runs[i];
        int n_tiles = (run->n_tokens + size - 1) / size;
        while (item < seen + n_tiles * heads) {
            int tile = n_tiles - 1 - (item - seen) / heads, head = (item - seen) % heads;
            int n = min_int(size, run->n_tokens - tile * size);
            large_tile(r, s, run, tile * size, n, head, thread);
            item = atomic_fetch_add_explicit(next, 1, memory_order_relaxed);
        }
        seen += n_tiles * heads;
    }
}

void cpu_attn_ranges(struct cpu_run *r, const struct phase *p, int thread, int n_threads) {
    if (small_round(r->round))
        small_ranges(r, p, thread, n_threads);
    else
        large_ranges(r, p, thread);
}
