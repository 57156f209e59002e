#include "run/programs.h"

/* ---- weights ---- */

/* Holdings of a weight are few: each is looked for among those of its weight. */
struct finder {
    struct programs *p;
    int *first; /* (n_weights) -1: none */
    int *next;  /* of each holding */
    struct backend *const *devices;
};

static bool same_range(const struct program_shard *a, const struct program_shard *b) {
    return a->axis == b->axis && a->begin == b->begin && a->end == b->end;
}

/* May the shard read a home that is there? What a device copies from is its own; processors read
 * any that is not slow. */
static bool may_read(const struct finder *f, const struct program_shard *shard,
                     const struct program_shard *home) {
    if (shard->transfer >= 0) return shard->device == home->device;
    return !f->devices[shard->device]->gpu && !f->devices[home->device]->slow_homes;
}

static int find(const struct finder *f, const struct program_shard *shard) {
    for (int i = f->first[shard->weight]; i >= 0; i = f->next[i]) {
        const struct program_shard *h = &f->p->holdings[i];
        if (!same_range(h, shard)) continue;
        if (holding_is_home(h) ? may_read(f, shard, h)
                               : shard->transfer < 0 && shard->device == h->device)
            return i;
    }
    return -1;
}

static int add(struct finder *f, const struct program_shard *shard) {
    int i = f->p->n_holdings++;
    f->p->holdings[i] = *shard;
    f->next[i] = f->first[shard->weight];
    f->first[shard->weight] = i;
    return i;
}

/* Homes first, so that processors find them. */
static void hold(struct finder *f, bool homes) {
    for (int k = 0; k < f->p->n; k++)
        for (int i = 0; i < f->p->at[k]->n_shards; i++) {
            const struct program_shard *s = &f->p->at[k]->shards[i];
            if ((s->transfer >= 0) != homes) continue;
            int found = find(f, s);
            f->p->holding[k][i] = found >= 0 ? found : add(f, s);
        }
}

static void hold_weights(struct arena *arena, const struct graph *g, struct backend *const *devices,
                         struct programs *p) {
    struct arena scratch = {0};
    int n = 0;
    for (int k = 0; k < p->n; k++) {
        n += p->at[k]->n_shards;
        p->holding[k] = ARENA_ARRAY(arena, int, p->at[k]->n_shards);
    }
    struct finder f = {.p = p,
                       .first = ARENA_ARRAY(&scratch, int, g->n_weights),
                       .next = ARENA_ARRAY(&scratch, int, n),
                       .devices = devices};
    for (int w = 0; w < g->n_weights; w++)
        f.first[w] = -1;
    p->holdings = ARENA_ARRAY(arena, struct program_shard, n);
    hold(&f, true);
    hold(&f, false);
    arena_free(&scratch);
}

/* ---- caches and states ---- */

bool same_kv(const struct program_kv *a, const struct program_kv *b) {
    return a->device == b->device && a->op == b->op && a->head_begin == b->head_begin &&
           a->head_end == b->head_end;
}

bool same_state(const struct program_state *a, const struct program_state *b) {
    return a->device == b->device && a->op == b->op && a->begin == b->begin && a->end == b->end;
}

static void share_caches(struct arena *arena, struct programs *p, int k) {
    const struct program *first = p->at[0], *q = p->at[k];
    REQUIRE(q->n_kvs == first->n_kvs && q->n_states == first->n_states);
    p->kv[k] = ARENA_ARRAY(arena, int, q->n_kvs);
    p->state[k] = ARENA_ARRAY(arena, int, q->n_states);
    for (int i = 0; i < q->n_kvs; i++) {
        while (p->kv[k][i] < first->n_kvs && !same_kv(&first->kvs[p->kv[k][i]], &q->kvs[i]))
            p->kv[k][i]++;
        REQUIRE(p->kv[k][i] < first->n_kvs);
    }
    for (int i = 0; i < q->n_states; i++) {
        int *at = &p->state[k][i];
        while (*at < first->n_states && !same_state(&first->states[*at], &q->states[i]))
            ++*at;
        REQUIRE(*at < first->n_states);
    }
}

/* ---- whole ---- */

void programs_lower(struct arena *arena, const struct graph *g, const struct plan *plan,
                    struct backend *const *devices, int n_tokens, int n_rows,
                    struct programs *out) {
    *out = (struct programs){.n = plan->prompts ? 2 : 1, .prompts_from = plan->prompts_from};
    out->n_slots = ARENA_ARRAY(arena, int, plan->n_devices);
    out->local_bytes = ARENA_ARRAY(arena, int64_t, plan->n_devices);
    for (int k = 0; k < out->n; k++) {
        struct program *p = out->at[k] =
            program_lower(arena, g, k ? plan->prompts : plan, n_tokens, n_rows);
        for (int d = 0; d < plan->n_devices; d++) {
            out->n_slots[d] = max_int(out->n_slots[d], p->n_slots[d]);
            out->local_bytes[d] = max_i64(out->local_bytes[d], p->local_bytes[d]);
        }
        out->exchange_bytes = max_i64(out->exchange_bytes, p->exchange_bytes);
        share_caches(arena, out, k);
    }
    hold_weights(arena, g, devices, out);
}
