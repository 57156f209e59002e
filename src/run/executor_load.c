/* What an executor needs before its first round: weights in their homes, steps with what they read,
 * segments and copies; and giving them up. */
#include "run/executor_internal.h"

#include <string.h>

/* ---- giving up ---- */

/* A shard that reads a home, in a slot or where it stands, has a weight of its own. */
static bool reads_home(const struct executor *e, int program, int shard) {
    return holding_is_home(&e->programs.holdings[e->programs.holding[program][shard]]);
}

static void drop_program(struct executor *e, int k) {
    const struct program *p = e->programs.at[k];
    struct prepared *r = &e->prepared[k];
    for (int i = 0; r->segments && i < p->n_segments; i++) {
        struct backend *b = e->devices[p->segments[i].device];
        b->fn->segment_free(b, r->segments[i]);
    }
    for (int i = 0; r->copies && i < p->n_transfers; i++) {
        struct backend *b = e->devices[p->transfers[i].device];
        if (r->copies[i]) b->fn->copy_free(b, r->copies[i]);
    }
    for (int i = 0; i < p->n_shards; i++) {
        struct backend *b = e->devices[p->shards[i].device];
        if (r->weights[i] && reads_home(e, k, i)) b->fn->weight_free(b, r->weights[i]);
        r->weights[i] = NULL;
    }
    r->segments = NULL;
    r->copies = NULL;
    memset(r->per_round, 0, sizeof r->per_round);
    memset(r->n_copies, 0, sizeof r->n_copies);
}

void executor_drop_segments(struct executor *e) {
    for (int k = 0; k < e->programs.n; k++)
        drop_program(e, k);
    for (int d = 0; d < e->n_devices; d++)
        e->ahead[d] = -1;
}

void executor_drop_homes(struct executor *e) {
    const struct program *p = e->programs.at[0];
    for (int i = 0; i < e->programs.n_holdings; i++) {
        struct backend *b = e->devices[e->programs.holdings[i].device];
        if (e->held[i].weight) b->fn->weight_free(b, e->held[i].weight);
        if (e->held[i].home) b->fn->home_close(b, e->held[i].home);
        e->held[i] = (struct held){0};
    }
    for (int i = 0; i < p->n_kvs; i++) {
        struct backend *b = e->devices[p->kvs[i].device];
        if (e->kvs[i]) b->fn->kv_close(b, e->kvs[i]);
        e->kvs[i] = NULL;
    }
    for (int i = 0; i < p->n_states; i++) {
        struct backend *b = e->devices[p->states[i].device];
        if (e->states[i]) b->fn->state_close(b, e->states[i]);
        e->states[i] = NULL;
    }
}

/* ---- loading ---- */

struct weight_source executor_source(const struct executor *e, int holding) {
    return shard_source(e->model, &e->programs.holdings[holding], e->ledger.raw[holding]);
}

/* Holdings are loaded in batches of this size: all threads work on each, and what a batch was made
 * from can leave memory before the next one comes. */
#define BATCH_BYTES ((uint64_t)64 << 20)

/* Loads holdings from *next on that are not there, at most a batch; adds their bytes to *done. */
static ats_status load_batch(struct executor *e, int *next, uint64_t *done) {
    const struct programs *p = &e->programs;
    int first = *next;
    uint64_t stop = *done + BATCH_BYTES;
    bool *fresh = e->fresh;
    TRY(gguf_check_files(e->model->file));
    for (; *next < p->n_holdings && *done < stop; ++*next) {
        const struct program_shard *h = &p->holdings[*next];
        struct backend *b = e->devices[h->device];
        fresh[*next] = !executor_has(e, *next);
        if (!fresh[*next]) continue;
        struct weight_source s = executor_source(e, *next);
        if (holding_is_home(h))
            TRY(b->fn->home_open(b, &s, &e->held[*next].home));
        else
            TRY(b->fn->weight_load(b, &s, &e->held[*next].weight));
        *done += (uint64_t)weight_source_bytes(&s);
    }
    for (int d = 0; d < e->n_devices; d++)
        TRY(e->devices[d]->fn->weights_ready(e->devices[d]));
    for (int i = first; i < *next; i++) {
        struct backend *b = e->devices[p->holdings[i].device];
        if (!fresh[i]) continue;
        struct weight_source s = executor_source(e, i);
        if (s.data && b->fn->weight_bytes(b, &s) > 0)
            model_weight_done(e->model, p->holdings[i].weight);
    }
    return ATS_OK;
}

/* A shard's weight: the holding, or one of its own over a home. */
static ats_status take_weight(struct executor *e, int k, int shard) {
    const struct program *p = e->programs.at[k];
    const struct program_shard *s = &p->shards[shard];
    int holding = e->programs.holding[k][shard];
    struct backend *b = e->devices[s->device];
    struct backend_weight **out = &e->prepared[k].weights[shard];
    if (!reads_home(e, k, shard)) {
        *out = e->held[holding].weight;
        return ATS_OK;
    }
    struct weight_source source = shard_source(e->model, s, false);
    const struct backend_home *home = e->held[holding].home;
    if (source.streamed) {
        source.home = home;
        source.slot = p->transfers[s->transfer].slot;
        source.slot_offset = e->ledger.slot_offset[k][shard];
    } else {
        struct backend *owner = e->devices[e->programs.holdings[holding].device];
        owner->fn->home_source(owner, home, &source);
    }
    return b->fn->weight_load(b, &source, out);
}

/* Copies the program's steps into submission order with their shards and caches filled in. */
static void bind_steps(struct executor *e, int k) {
    const struct program *p = e->programs.at[k];
    const struct programs *all = &e->programs;
    struct prepared *r = &e->prepared[k];
    r->steps = ARENA_ARRAY(&e->arena, struct step, p->n_steps);
    for (int i = 0; i < p->n_steps; i++) {
        const struct program_step *s = &p->steps[p->order[i]];
        struct step *step = &r->steps[i];
        *step = s->step;
        step->weight = s->shard >= 0 ? r->weights[s->shard] : NULL;
        step->bias = s->bias >= 0 ? r->weights[s->bias] : NULL;
        step->kv = s->kv >= 0 ? e->kvs[all->kv[k][s->kv]] : NULL;
        step->state = s->state >= 0 ? e->states[all->state[k][s->state]] : NULL;
        for (int j = 0; j < N_EXPERT_WEIGHTS; j++) {
            int bias = s->expert_biases[j];
            step->experts[j] = s->experts[j] >= 0 ? r->weights[s->experts[j]] : NULL;
            step->expert_biases[j] = bias >= 0 ? r->weights[bias] : NULL;
        }
    }
}

static ats_status build_segments(struct executor *e, int k) {
    const struct program *p = e->programs.at[k];
    struct prepared *r = &e->prepared[k];
    r->segments = ARENA_ARRAY(&e->arena, struct backend_segment *, p->n_segments);
    for (int i = 0; i < p->n_segments; i++) {
        const struct program_segment *s = &p->segments[i];
        struct backend *b = e->devices[s->device];
        r->per_round[s->device]++;
        TRY(b->fn->segment_build(b, r->steps + s->step_begin, s->step_end - s->step_begin,
                                 &r->segments[i]));
    }
    return ATS_OK;
}

static ats_status build_copies(struct executor *e, int k) {
    const struct program *p = e->programs.at[k];
    struct prepared *r = &e->prepared[k];
    struct backend_weight **weights = ARENA_ARRAY(&e->arena, struct backend_weight *, p->n_shards);
    r->copies = ARENA_ARRAY(&e->arena, struct backend_copy *, p->n_transfers);
    for (int i = 0; i < p->n_transfers; i++) {
        struct backend *b = e->devices[p->transfers[i].device];
        int n = 0;
        for (int j = 0; j < p->n_shards; j++)
            if (p->shards[j].transfer == i) weights[n++] = r->weights[j];
        r->n_copies[p->transfers[i].device]++;
        TRY(b->fn->copy_build(b, weights, n, &r->copies[i]));
    }
    return ATS_OK;
}

static ats_status prepare(struct executor *e, int k) {
    for (int i = 0; i < e->programs.at[k]->n_shards; i++)
        TRY(take_weight(e, k, i));
    for (int d = 0; d < e->n_devices; d++)
        TRY(e->devices[d]->fn->weights_ready(e->devices[d]));
    bind_steps(e, k);
    TRY(build_copies(e, k));
    return build_segments(e, k);
}

ats_status executor_load(struct executor *e, executor_progress_fn *progress, void *user) {
    const struct programs *p = &e->programs;
    uint64_t done = 0, total = 0;
    bool needs_data = false;
    for (int d = 0; d < e->n_devices; d++)
        needs_data = needs_data || !e->devices[d]->keeps_time_only;
    if (needs_data && e->model->file->no_data)
        return fail(ATS_UNSUPPORTED, "a shape has no weights: it can be planned, not run");
    for (int i = 0; i < p->n_holdings; i++) {
        struct weight_source s = executor_source(e, i);
        if (!executor_has(e, i)) total += (uint64_t)weight_source_bytes(&s);
    }
    e->fresh = ARENA_ARRAY(&e->arena, bool, p->n_holdings);
    for (int next = 0;;) {
        if (progress && !progress(user, done, total))
            return fail(ATS_CANCELLED, "loading was cancelled");
        if (next == p->n_holdings) break;
        TRY(load_batch(e, &next, &done));
    }
    for (int k = 0; k < p->n; k++)
        TRY(prepare(e, k));
    return ATS_OK;
}
