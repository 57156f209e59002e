#include "run/measure.h"

#include <math.h>
#include <string.h>

#include "base/file.h"
#include "base/threads.h"
#include "run/measure_internal.h"

enum { LINK_STEPS = 3 };
static const int64_t least_pool_bytes = 64 << 20, most_weight_bytes = 256 << 20,
                     most_cold_bytes = 512 << 20;
static const int quick_tokens[] = {1, 4, 8, 32, 128};
static const double quick_shares[] = {0.25, 0.5, 1};
static const int quick_depths[] = {0, 2048};

ats_status measure_step(struct measure *m) {
    m->n_done++;
    if (!m->o->progress || m->o->progress(m->o->progress_user, m->n_done, m->n_total))
        return ATS_OK;
    return fail(ATS_CANCELLED, "measuring was cancelled");
}

enum dtype measure_kv_dtype(ats_kv_type type) {
    return type == ATS_KV_F32 ? DTYPE_F32 : type == ATS_KV_Q8_0 ? DTYPE_Q8_0 : DTYPE_F16;
}

enum math measure_math(ats_math math) {
    return math == ATS_MATH_F32 ? MATH_F32 : math == ATS_MATH_BF16 ? MATH_BF16 : MATH_Q8;
}

static ats_status check_choice(const char *name, int value, int max) {
    if (value >= 0 && value <= max) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%s is %d, expected 0 to %d", name, value, max);
}

ats_status measure_check_types(ats_kv_type kv_k, ats_kv_type kv_v, ats_math math) {
    TRY(check_choice("kv_k", (int)kv_k, ATS_KV_Q8_0));
    TRY(check_choice("kv_v", (int)kv_v, ATS_KV_Q8_0));
    return check_choice("math", (int)math, ATS_MATH_BF16);
}

/* ---- the grid ---- */

static void set_grid(const struct measure_options *o, struct profile *p) {
    const int *tokens = o->quick ? quick_tokens : profile_tokens;
    const double *shares = o->quick ? quick_shares : profile_shares;
    const int *depths = o->quick ? quick_depths : profile_depths;
    int n_depths = o->quick ? (int)COUNT_OF(quick_depths) : (int)COUNT_OF(profile_depths);
    p->n_tokens = o->quick ? (int)COUNT_OF(quick_tokens) : (int)COUNT_OF(profile_tokens);
    p->n_shares = o->quick ? (int)COUNT_OF(quick_shares) : (int)COUNT_OF(profile_shares);
    memcpy(p->tokens, tokens, (size_t)p->n_tokens * sizeof *tokens);
    memcpy(p->shares, shares, (size_t)p->n_shares * sizeof *shares);
    for (int i = 0; i < n_depths; i++)
        if (i == 0 || depths[i] <= o->n_ctx) p->depths[p->n_depths++] = depths[i];
}

/* ---- memory ---- */

static int64_t largest_weight(const struct items *items) {
    int64_t most = 0;
    for (int i = 0; i < items->n_items; i++) {
        const struct item *item = &items->items[i];
        int64_t bytes = item->weight_bytes;
        if (item->n_experts) bytes = bytes / item->n_experts * item->n_used;
        most = max_i64(most, bytes);
    }
    return most;
}

/* All bytes are 0x30 to 0x3f: whatever type they are taken
 * for, its floats are ordinary numbers, none denormal or infinite. */
static ats_status open_pool(struct measure *m, const struct items *items) {
    struct memory_info memory;
    void *pool;
    memory_info_read(&memory);
    m->cold_bytes = m->o->cold_bytes ? m->o->cold_bytes : 2 * cpu_cache_bytes();
    m->cold_bytes = min_i64(m->cold_bytes, most_cold_bytes);
    /* packed, a weight is a little larger than in the file */
    int64_t weight = min_i64(most_weight_bytes, largest_weight(items) / 8 * 9);
    m->pool_bytes = (size_t)max_i64(least_pool_bytes, m->cold_bytes + weight);
    if (m->pool_bytes > memory.available_bytes / 2)
        return fail(ATS_NO_MEMORY, "measuring needs %.0f MiB of memory, of which %.0f are free",
                    (double)m->pool_bytes / 1048576, (double)memory.available_bytes / 1048576);
    TRY(pages_alloc(m->pool_bytes, &pool));
    m->pool = pool;
    for (size_t i = 0; i + 8 <= m->pool_bytes; i += 8) {
        uint64_t v =
            (rng_next(&m->rng) & UINT64_C(0x0f0f0f0f0f0f0f0f)) | UINT64_C(0x3030303030303030);
        memcpy(m->pool + i, &v, sizeof v);
    }
    return ATS_OK;
}

/* ---- items ---- */

/* The chain of the model's items, by a profile that knows everything and says nothing. */
static ats_status list_items(struct measure *m, struct items **out) {
    struct profile *any = ARENA_NEW(m->arena, struct profile);
    struct items_options o = items_options_default();
    any->name = any->key = "";
    any->has_rates = true;
    o.n_ctx = max_int(1, m->o->n_ctx);
    o.kv_k = measure_kv_dtype(m->o->kv_k);
    o.kv_v = measure_kv_dtype(m->o->kv_v);
    TRY(items_build(m->arena, m->model->graph, any, &o, out));
    if ((*out)->n_items > 0) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "the model has nothing to place");
}

/* An item for each key, and an operator that has it. */
static void choose_keys(struct measure *m, const struct items *items, int *ops) {
    struct profile *p = m->p;
    p->items = ARENA_ARRAY(m->arena, struct profile_item, items->n_items);
    for (int i = 0; i < items->n_items; i++) {
        const struct item *item = &items->items[i];
        if (profile_find(p, &item->key)) continue;
        ops[p->n_items] = item->op;
        p->items[p->n_items++] = (struct profile_item){
            .key = item->key, .has_kv = m->model->graph->ops[item->op].kind == OP_ATTENTION};
    }
}

/* Bytes a second that products of one token read, the most that any does. */
static double read_rate(const struct profile *p, enum side side) {
    double best = 0;
    for (int i = 0; i < p->n_items; i++) {
        const struct profile_key *k = &p->items[i].key;
        if (strcmp(k->op, op_kind_name(OP_MATMUL)) != 0) continue;
        double t = p->items[i].sides[side].work_s[p->n_shares - 1][0];
        double bytes = (double)dtype_row_bytes(k->types[0], k->dims[1]) * (double)k->dims[0];
        best = fmax(best, bytes / fmax(t - p->op_s[side], t / 2));
    }
    return best > 0 ? best : 1e10;
}

/* No GPU: its side is the processor's again, and it holds nothing. */
static ats_status stand_in(struct measure *m) {
    struct profile *p = m->p;
    struct measure_rig r = {0};
    struct memory_info memory;
    const struct backend_limits l = {
        .n_tokens = 1, .n_rows = 1, .n_ctx = 1, .local_bytes = 4096, .max_cols = 64};
    ats_status status = rig_open(m, &r, m->o->cpu, &l, 4096, NULL);
    if (status == ATS_OK) status = rig_calibrate(&r);
    p->op_s[SIDE_CPU] = p->op_s[SIDE_GPU] = r.op_s;
    rig_close(&r);
    TRY(status);
    for (int i = 0; i < p->n_items; i++)
        p->items[i].sides[SIDE_GPU] = p->items[i].sides[SIDE_CPU];
    memory_info_read(&memory);
    p->host_bytes = (int64_t)memory.total_bytes;
    p->gpu_bytes = p->usable_bytes = 1;
    p->shared = true;
    p->interference = (struct profile_interference){1, 1, 1, 1};
    double rate = read_rate(p, SIDE_CPU), op_s = p->op_s[SIDE_CPU];
    p->link = (struct profile_link){rate, rate, rate, rate, rate, rate, op_s, op_s, op_s, 0};
    return ATS_OK;
}

static ats_status measure_all(struct measure *m) {
    struct profile *p = m->p;
    struct items *items;
    TRY(list_items(m, &items));
    int *ops = ARENA_ARRAY(m->arena, int, items->n_items);
    choose_keys(m, items, ops);
    TRY(open_pool(m, items));
    int n_sides = m->o->gpu ? N_SIDES : 1;
    m->n_total = (uint64_t)(p->n_items * n_sides + (m->o->gpu ? LINK_STEPS : 0));
    for (int i = 0; i < p->n_items; i++)
        for (int s = 0; s < n_sides; s++) {
            const char *device = s == SIDE_CPU ? m->o->cpu : m->o->gpu;
            TRY(measure_op(m, device, ops[i], (enum side)s, &p->items[i]));
            TRY(measure_step(m));
        }
    TRY(m->o->gpu ? measure_links(m) : stand_in(m));
    p->dram_bytes = read_rate(p, SIDE_CPU);
    p->vram_bytes = read_rate(p, SIDE_GPU);
    return profile_finish(p, "what was measured");
}

ats_status measure_keys(struct arena *arena, const struct model *model,
                        const struct measure_options *options, struct profile **out) {
    struct measure m = {.arena = arena, .model = model, .o = options};
    struct items *items;
    *out = m.p = ARENA_NEW(arena, struct profile);
    m.p->name = m.p->key = "";
    TRY(list_items(&m, &items));
    choose_keys(&m, items, ARENA_ARRAY(arena, int, items->n_items));
    return ATS_OK;
}

ats_status measure_profile(struct arena *arena, const struct model *model,
                           const struct measure_options *options, struct profile **out) {
    struct measure m = {.arena = arena, .model = model, .o = options};
    *out = NULL;
    m.p = ARENA_NEW(arena, struct profile);
    m.p->name = m.p->key = "";
    rng_seed(&m.rng, 1);
    set_grid(options, m.p);
    ats_status status = measure_all(&m);
    if (m.pool) pages_free(m.pool, m.pool_bytes);
    if (status == ATS_OK) *out = m.p;
    return status;
}
