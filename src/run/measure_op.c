/*
 * One operator on one device: steps alike, each with weights or a cache of its own, so many that
 * what one read has left the caches before it is read again; over token counts, shares of its
 * units, and depths. A device is opened for each: what it has loaded goes when it is closed.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "run/measure_internal.h"

enum { MAX_STEPS = 256, MAX_GPU_STEPS = 64, SOME_STEPS = 16, FEW_STEPS = 2 };
enum { MAX_CACHES = 8, BUFFERS = 6 };
static const int64_t buffer_most_bytes = 64 << 20; /* of a value in work memory */
/* What a device cannot compute is told to take this often as long as on the processor. */
static const double lacking = 1e3;

struct bench {
    struct measure *m;
    struct measure_rig rig;
    struct graph_op op; /* the graph's, restricted to what is measured */
    enum side side;
    struct profile_item *item;
    const char *what;
    int widths[BUFFERS]; /* of its inputs, then of its output; of a product two inputs in turn */
    int n_in, n_buffers;
    int64_t offsets[BUFFERS];
    int n_fit; /* token counts of the profile whose values fit work memory */
    int n_units, grain;
    struct step steps[MAX_STEPS];
    struct backend_kv *kvs[MAX_CACHES];
    struct backend_state *state;
    int n_kvs;
};

static const struct graph_weight *weight_of(const struct bench *b, int weight) {
    return &b->m->model->graph->weights[weight];
}

static int width_of(const struct bench *b, int value) {
    return b->m->model->graph->values[value].width;
}

/* ---- what it is ---- */

static void describe_matmul(struct bench *b) {
    const struct graph_weight *w = weight_of(b, b->op.weight);
    int block = max_int(32, dtype_info(w->dtype)->block_elements);
    bool rows = b->item->key.axis == AXIS_ROWS;
    b->n_in = 1;
    b->widths[0] = b->widths[1] = w->n_cols;
    b->widths[2] = w->n_rows;
    b->n_buffers = 3;
    b->n_units = rows ? w->n_rows : w->n_cols;
    b->grain = !rows ? block : w->n_rows >= 128 ? 16 : 1; /* groups, if there are some */
    b->op.bias = -1;
}

static void describe_attention(struct bench *b) {
    struct attention_params *p = &b->op.p.attention;
    p->window = p->chunk = p->kv_class = p->kv_layer = 0;
    p->temp_scale = 0;
    b->op.weight = -1;
    b->n_units = p->n_kv_heads;
    b->grain = 1;
}

static void describe_experts(struct bench *b) {
    struct experts_params *p = &b->op.p.experts;
    int n_embd = width_of(b, b->op.out);
    b->widths[b->n_buffers++] = p->n_used * max_int(p->n_ff, n_embd); /* inside of it */
    b->n_units = p->n_used;
    b->grain = 1;
    p->n_experts = p->n_used;
    p->biased = p->scale_input = false;
}

static void describe(struct bench *b) {
    b->n_in = b->op.n_in;
    for (int i = 0; i < b->op.n_in; i++)
        b->widths[b->n_buffers++] = width_of(b, b->op.in[i]);
    b->widths[b->n_buffers++] = width_of(b, b->op.out);
    b->grain = 1;
    if (b->op.kind == OP_MATMUL) describe_matmul(b);
    if (b->op.kind == OP_ATTENTION) describe_attention(b);
    if (b->op.kind == OP_EXPERTS) describe_experts(b);
    if (b->op.kind == OP_CONV) b->n_units = width_of(b, b->op.out), b->grain = 16;
    if (b->op.kind == OP_DELTA) b->n_units = b->op.p.delta.n_heads;
    if (b->n_units < b->grain) b->grain = b->n_units;
}

/* Bytes of the weights of so many units; 0: it has none to speak of. */
static int64_t units_bytes(const struct bench *b, int units) {
    int64_t bytes = 0;
    if (b->op.kind == OP_MATMUL) {
        const struct graph_weight *w = weight_of(b, b->op.weight);
        bool rows = b->item->key.axis == AXIS_ROWS;
        bytes = rig_weight_bytes(&b->rig, w->dtype, rows ? units : w->n_rows,
                                 rows ? w->n_cols : units, 1);
    }
    for (int i = 0; b->op.kind == OP_EXPERTS && i < N_EXPERT_WEIGHTS; i++) {
        const struct graph_weight *w = weight_of(b, b->op.p.experts.weights[i]);
        bytes += rig_weight_bytes(&b->rig, w->dtype, w->n_rows, w->n_cols, units);
    }
    return bytes;
}

static void set_limits(struct bench *b, struct backend_limits *l) {
    const struct profile *p = b->m->p;
    int64_t widest = 64;
    for (int i = 0; i < b->n_buffers; i++)
        widest = max_i64(widest, b->widths[i]);
    while (b->n_fit < p->n_tokens &&
           (b->n_fit == 0 || 4 * widest * p->tokens[b->n_fit] <= buffer_most_bytes))
        b->n_fit++;
    int T = p->tokens[b->n_fit - 1];
    *l = (struct backend_limits){.n_tokens = T,
                                 .n_rows = 1,
                                 .n_ctx = T + (b->item->has_kv ? p->depths[p->n_depths - 1] : 0),
                                 .n_kv_classes = 1,
                                 .local_bytes = 256 * (int64_t)(T + 2)};
    for (int i = 0; i < b->n_buffers; i++) {
        b->offsets[i] = l->local_bytes;
        l->local_bytes += (int64_t)round_up((size_t)(4 * b->widths[i]) * (size_t)T, 256);
    }
    if (b->op.kind == OP_MATMUL) l->max_cols = b->widths[0];
    if (b->op.kind == OP_ATTENTION) {
        l->max_heads = b->op.p.attention.n_heads;
        l->max_head_dim = b->op.p.attention.head_dim;
    }
    if (b->op.kind != OP_EXPERTS) return;
    const struct experts_params *e = &b->op.p.experts;
    l->max_experts = l->max_experts_used = e->n_used;
    l->max_expert_cols = b->widths[0];
    l->max_expert_ff = e->n_ff;
    l->max_cols = max_int(b->widths[0], e->n_ff);
    l->expert_floats = e->math[EXPERT_GATE] == MATH_F32 || e->math[EXPERT_UP] == MATH_F32;
}

/* ---- its steps ---- */

static struct span span_of(const struct bench *b, int buffer) {
    return (struct span){SPACE_LOCAL, b->offsets[buffer], b->widths[buffer], 0};
}

/* A product's inputs stand in one place and another in turn, so that for the CPU each is a product
 * of its own, as most are in a round. A GPU makes products one by one anyway, and rounds an input
 * to 8 bits with what makes it, not with the product: there they all read the same. Its output is
 * written again by the next, which therefore waits. */
static struct step blank_step(const struct bench *b, int i) {
    struct step s = {.kind = STEP_OP, .op = &b->op, .n_in = b->n_in, .n_readers = 1};
    bool product = b->op.kind == OP_MATMUL;
    for (int k = 0; k < b->n_in; k++)
        s.in[k] = span_of(b, product ? b->side == SIDE_CPU && i % 2 : k);
    s.out = span_of(b, product ? 2 : b->n_in);
    s.end = s.out.stride;
    return s;
}

static ats_status matmul_step(struct bench *b, int units, int i, struct step *s) {
    const struct graph_weight *w = weight_of(b, b->op.weight);
    bool rows = b->item->key.axis == AXIS_ROWS;
    int n_rows = rows ? units : w->n_rows, n_cols = rows ? w->n_cols : units;
    s->end = n_rows;
    s->in_end = n_cols;
    return rig_weight(&b->rig, w->dtype, n_rows, n_cols, 1, i * units_bytes(b, units), &s->weight);
}

static ats_status experts_step(struct bench *b, int units, int i, struct step *s) {
    int64_t offset = i * units_bytes(b, units);
    s->expert_end = units;
    for (int k = 0; k < N_EXPERT_WEIGHTS; k++) {
        const struct graph_weight *w = weight_of(b, b->op.p.experts.weights[k]);
        TRY(rig_weight(&b->rig, w->dtype, w->n_rows, w->n_cols, units, offset, &s->experts[k]));
        offset += rig_weight_bytes(&b->rig, w->dtype, w->n_rows, w->n_cols, units);
    }
    return ATS_OK;
}

static void attention_step(const struct bench *b, int units, int i, struct step *s) {
    const struct attention_params *p = &b->op.p.attention;
    s->head_end = units;
    s->end = units * (p->n_heads / p->n_kv_heads) * p->head_dim;
    s->kv = b->kvs[i % b->n_kvs];
}

static ats_status state_step(struct bench *b, int units, struct step *s) {
    bool conv = b->op.kind == OP_CONV;
    int n = conv ? units * b->op.p.conv.n_taps : units;
    s->end = conv ? units : units * b->op.p.delta.dim_v;
    s->head_end = conv ? 0 : units;
    s->state = b->state;
    TRY(rig_weight(&b->rig, weight_of(b, b->op.weight)->dtype, 1, n, 1, 0, &s->weight));
    if (b->op.bias < 0) return ATS_OK;
    return rig_weight(&b->rig, weight_of(b, b->op.bias)->dtype, 1, n, 1, 0, &s->bias);
}

static ats_status make_steps(struct bench *b, int units, int n_steps) {
    struct backend *d = b->rig.b;
    for (int i = 0; i < n_steps; i++) {
        struct step *s = &b->steps[i];
        *s = blank_step(b, i);
        if (b->op.kind == OP_MATMUL) TRY(matmul_step(b, units, i, s));
        if (b->op.kind == OP_EXPERTS) TRY(experts_step(b, units, i, s));
        if (b->op.kind == OP_ATTENTION) attention_step(b, units, i, s);
        if (op_has_state(&b->op)) TRY(state_step(b, units, s));
    }
    return d->fn->weights_ready(d);
}

/* ---- caches and states ---- */

static enum kv_type kv_type_of(enum dtype type) {
    return type == DTYPE_F32 ? KV_F32 : type == DTYPE_Q8_0 ? KV_Q8_0 : KV_F16;
}

/* Caches of n_heads for sequences up to the depth and the longest round; every page is written,
 * since memory that never was may not be there. */
static ats_status open_caches(struct bench *b, int n_heads, int depth) {
    struct backend *d = b->rig.b;
    struct kv_layout l = {.type_k = kv_type_of(b->item->key.types[0]),
                          .type_v = kv_type_of(b->item->key.types[1]),
                          .n_kv_heads = n_heads,
                          .head_dim = b->op.p.attention.head_dim};
    l.n_pages = ((depth + b->rig.limits.n_tokens - 1) >> KV_PAGE_TOKENS_LOG2) + 1;
    int64_t read = (int64_t)(kv_layout_bytes(&l) / (size_t)l.n_pages) *
                   max_i64(1, depth >> KV_PAGE_TOKENS_LOG2);
    int n = (int)min_i64(MAX_CACHES, depth ? 1 + b->m->cold_bytes / read : FEW_STEPS);
    for (b->n_kvs = 0; b->n_kvs < n; b->n_kvs++)
        TRY(d->fn->kv_open(d, &l, &b->kvs[b->n_kvs]));
    for (int i = 0; i < l.n_pages; i++) {
        b->rig.pages[i] = i;
        for (int k = 0; k < n && i > 0; k++)
            d->fn->kv_copy_page(d, b->kvs[k], 0, i);
    }
    return ATS_OK;
}

static void close_caches(struct bench *b) {
    for (int i = 0; i < b->n_kvs; i++)
        b->rig.b->fn->kv_close(b->rig.b, b->kvs[i]);
    b->n_kvs = 0;
    if (b->state) b->rig.b->fn->state_close(b->rig.b, b->state);
    b->state = NULL;
}

static ats_status open_memory(struct bench *b, int units, int depth) {
    if (b->op.kind == OP_ATTENTION) return open_caches(b, units, depth);
    if (!op_has_state(&b->op)) return ATS_OK;
    struct state_layout l = {op_state_floats(&b->op, 0, units), 1};
    return b->rig.b->fn->state_open(b->rig.b, &l, &b->state);
}

/* ---- times ---- */

/* Work of T tokens after `depth`, as attention's grows; else as tokens do. */
static double amount(const struct bench *b, int T, int depth) {
    return b->item->has_kv ? T * (depth + (T + 1) / 2.0) : T;
}

/* Segments of the same steps: all of them, some, two. */
enum { N_LENGTHS = 3 };
struct lengths {
    struct backend_segment *segments[N_LENGTHS];
    int n_steps[N_LENGTHS]; /* falling */
};

/* The longest that is done in time. What takes long by itself is bound by its arithmetic, and does
 * not mind what is in the caches. */
static int choose_length(const struct lengths *l, double step_wall_s, double most_s) {
    int i = 0;
    while (i < N_LENGTHS - 1 && step_wall_s * l->n_steps[i] > most_s)
        i++;
    return i;
}

/* A row over the profile's tokens. What would take long, or does not fit, is told from the largest
 * that was measured: there arithmetic is the limit, and grows with the tokens. */
static ats_status time_tokens(struct bench *b, const struct lengths *l, int depth, double *row) {
    const struct profile *p = b->m->p;
    const double most_s = b->m->o->quick ? 0.01 : 0.03;
    double step_wall_s, seconds;
    rig_round(&b->rig, 1, depth);
    b->rig.run.state_in = STATE_NONE;
    uint64_t begin = b->rig.b->fn->now(b->rig.b);
    TRY(rig_run(&b->rig, l->segments[N_LENGTHS - 1], &seconds));
    step_wall_s = (double)(b->rig.b->fn->now(b->rig.b) - begin) * 1e-9 / l->n_steps[N_LENGTHS - 1];
    bool stop = false;
    for (int t = 0; t < p->n_tokens; t++) {
        double more =
            t > 0 ? amount(b, p->tokens[t], depth) / amount(b, p->tokens[t - 1], depth) : 1;
        int length = choose_length(l, step_wall_s * more, most_s);
        stop |= t >= b->n_fit || (t > 0 && step_wall_s * more > 4 * most_s);
        if (stop) {
            row[t] = row[t - 1] * more;
            continue;
        }
        rig_round(&b->rig, p->tokens[t], depth);
        TRY(rig_time(&b->rig, l->segments[length], l->n_steps[length], b->what, &row[t]));
        step_wall_s = b->rig.wall_s / l->n_steps[length];
    }
    return ATS_OK;
}

static ats_status time_units(struct bench *b, int units, int depth, double *row) {
    struct backend *d = b->rig.b;
    int64_t bytes = units_bytes(b, units), pool = (int64_t)b->m->pool_bytes;
    if (bytes > pool) return fail(ATS_NO_MEMORY, "%.60s is too large to be measured", b->what);
    int n = MAX_CACHES;
    if (bytes) {
        n = d->gpu ? MAX_GPU_STEPS : MAX_STEPS; /* there each has to be loaded */
        n = (int)min_i64(n, min_i64(pool / bytes, 1 + (b->m->cold_bytes - 1) / bytes));
    }
    struct lengths l = {.n_steps = {n, min_int(n, SOME_STEPS), min_int(n, FEW_STEPS)}};
    ats_status status = open_memory(b, units, depth);
    if (status == ATS_OK) status = make_steps(b, units, n);
    for (int i = 0; i < N_LENGTHS && status == ATS_OK; i++)
        status = d->fn->segment_build(d, b->steps, l.n_steps[i], &l.segments[i]);
    if (status == ATS_OK) status = time_tokens(b, &l, depth, row);
    for (int i = 0; i < N_LENGTHS; i++)
        if (l.segments[i]) d->fn->segment_free(d, l.segments[i]);
    close_caches(b);
    return status;
}

/* From what was measured, at ascending shares `at`, to a share of the grid. */
static double at_share(const double *at, double (*rows)[PROFILE_MAX_TOKENS], int n, int t,
                       double share) {
    int i = 0;
    if (n == 1) return share <= at[0] ? rows[0][t] : rows[0][t] * share / at[0];
    if (share > at[n - 1]) return rows[n - 1][t] * share / at[n - 1];
    while (i < n - 2 && share > at[i + 1])
        i++;
    double v = rows[i][t] + (rows[i + 1][t] - rows[i][t]) * (share - at[i]) / (at[i + 1] - at[i]);
    return fmax(v, rows[i][t] * share / at[i + 1]);
}

/* Shares as units allow them, and as far as a weight is not larger than it has to be. */
static ats_status time_shares(struct bench *b, struct profile_times *out) {
    const struct profile *p = b->m->p;
    double at[PROFILE_MAX_SHARES], rows[PROFILE_MAX_SHARES][PROFILE_MAX_TOKENS];
    int n = 0, last = 0, most = b->n_units / b->grain;
    if (units_bytes(b, b->n_units) > (int64_t)b->m->pool_bytes)
        most = (int)max_i64(1, (int64_t)b->m->pool_bytes / units_bytes(b, b->grain) - 1);
    for (int k = 0; k < p->n_shares; k++) {
        int grains = (int)lround(p->shares[k] * b->n_units / b->grain);
        grains = min_int(most, max_int(1, grains));
        if (grains == last) continue;
        last = grains;
        int units =
            p->shares[k] >= 1 && grains == b->n_units / b->grain ? b->n_units : grains * b->grain;
        at[n] = (double)units / b->n_units;
        TRY(time_units(b, units, 0, rows[n++]));
    }
    for (int k = 0; k < p->n_shares; k++)
        for (int t = 0; t < p->n_tokens; t++)
            out->work_s[k][t] = at_share(at, rows, n, t, p->shares[k]);
    return ATS_OK;
}

static ats_status time_depths(struct bench *b, struct profile_times *out) {
    const struct profile *p = b->m->p;
    const double *none = out->work_s[p->n_shares - 1];
    for (int d = 1; d < p->n_depths && b->item->has_kv; d++) {
        double row[PROFILE_MAX_TOKENS];
        TRY(time_units(b, b->n_units, p->depths[d], row));
        for (int t = 0; t < p->n_tokens; t++)
            out->kv_s[d][t] = fmax(row[t] - none[t], 0);
    }
    return ATS_OK;
}

/* Inputs are what memory holds, but of experts: which ones a token chooses has to be said. */
static ats_status choose_experts(struct bench *b) {
    struct backend *d = b->rig.b;
    struct backend_segment *s;
    int n = b->op.p.experts.n_used, T = b->rig.limits.n_tokens;
    float *route = b->rig.limits.exchange;
    for (int t = 0; t < T; t++)
        for (int i = 0; i < n; i++) {
            route[(size_t)t * (size_t)(2 * n) + (size_t)i] = (float)i;
            route[(size_t)t * (size_t)(2 * n) + (size_t)(n + i)] = 1.0f / (float)n;
        }
    struct step step = {.kind = STEP_COPY, .n_in = 1, .end = 2 * n, .n_readers = 1};
    step.in[0] = (struct span){SPACE_EXCHANGE, 0, 2 * n, 0};
    step.out = span_of(b, 1);
    double seconds;
    rig_round(&b->rig, T, 0);
    TRY(d->fn->segment_build(d, &step, 1, &s));
    ats_status status = rig_run(&b->rig, s, &seconds);
    d->fn->segment_free(d, s);
    return status;
}

static ats_status time_all(struct bench *b, const char *device) {
    struct profile_times *out = &b->item->sides[b->side];
    struct backend_limits limits;
    set_limits(b, &limits);
    int64_t exchange = 4096;
    if (b->op.kind == OP_EXPERTS)
        exchange += 4 * (int64_t)limits.n_tokens * 2 * b->op.p.experts.n_used;
    TRY(rig_open(b->m, &b->rig, device, &limits, (int64_t)round_up((size_t)exchange, 4096), NULL));
    if (b->rig.b->fn->lacks(b->rig.b, b->m->model->graph, &b->op)) {
        *out = b->item->sides[SIDE_CPU];
        for (int t = 0; t < b->m->p->n_tokens; t++)
            for (int k = 0; k < b->m->p->n_shares; k++)
                out->work_s[k][t] *= lacking;
        return ATS_OK;
    }
    TRY(rig_calibrate(&b->rig));
    if (b->op.kind == OP_EXPERTS) TRY(choose_experts(b));
    TRY(time_shares(b, out));
    return time_depths(b, out);
}

ats_status measure_op(struct measure *m, const char *device, int op, enum side side,
                      struct profile_item *item) {
    const struct graph *g = m->model->graph;
    struct bench *b = xcalloc(1, sizeof *b);
    b->m = m;
    b->op = g->ops[op];
    b->side = side;
    b->item = item;
    b->what = b->op.weight >= 0 ? g->weights[b->op.weight].name : op_kind_name(b->op.kind);
    describe(b);
    ats_status status = time_all(b, device);
    rig_close(&b->rig);
    free(b);
    return status;
}
