/* A device by itself, with an exchange, made-up weights, rounds, and the clock. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "run/measure_internal.h"

enum { MAX_REPEATS = 7, MIN_REPEATS = 3, MAX_ATTEMPTS = 3 };
static const double longest_s = 60;

/* ---- opening ---- */

/* Numbers of rounds, and pages as far as a sequence of n_ctx tokens goes. */
static void open_round(struct measure_rig *r) {
    size_t n = (size_t)r->limits.n_tokens;
    r->numbers = xcalloc(3 * n, sizeof *r->numbers);
    r->pages = xcalloc((size_t)(r->limits.n_ctx >> KV_PAGE_TOKENS_LOG2) + 2, sizeof *r->pages);
    r->loaded = xcalloc(RIG_MAX_LOADED, sizeof(struct backend_weight *));
}

ats_status rig_open(struct measure *m, struct measure_rig *r, const char *name,
                    const struct backend_limits *limits, int64_t exchange_bytes,
                    struct measure_rig *peer) {
    struct backend_options o = {.n_threads = m->o->n_threads,
                                .n_threads_batch = m->o->n_threads,
                                .cpu_isa_mask = ~0U,
                                .driven = !peer,
                                .peer = peer ? peer->b : NULL,
                                .quiet = true};
    r->m = m;
    r->limits = *limits;
    TRY(backend_open(name, &o, &r->b));
    r->limits.exchange_bytes = peer ? peer->limits.exchange_bytes : exchange_bytes;
    if (peer) {
        r->limits.exchange = peer->limits.exchange;
    } else {
        TRY(r->b->fn->host_alloc(r->b, (size_t)exchange_bytes, &r->limits.exchange));
        r->owns_exchange = true;
    }
    TRY(r->b->fn->reserve(r->b, &r->limits));
    open_round(r);
    r->b->fn->set_timed(r->b, true);
    return ATS_OK;
}

void rig_close(struct measure_rig *r) {
    for (int i = 0; i < r->n_loaded; i++)
        r->b->fn->weight_free(r->b, r->loaded[i]);
    if (r->home) r->b->fn->home_close(r->b, r->home);
    if (r->owns_exchange)
        r->b->fn->host_free(r->b, r->limits.exchange, (size_t)r->limits.exchange_bytes);
    backend_close(r->b);
    free(r->numbers);
    free(r->pages);
    free(r->loaded);
    memset(r, 0, sizeof *r);
}

void rig_round(struct measure_rig *r, int n_tokens, int position) {
    REQUIRE(n_tokens >= 1 && n_tokens <= r->limits.n_tokens);
    int32_t *positions = r->numbers + r->limits.n_tokens;
    for (int i = 0; i < n_tokens; i++)
        positions[i] = position + i;
    r->run = (struct round_run){.n_tokens = n_tokens, .position = position, .pages = {r->pages}};
    r->round = (struct round){.n_tokens = n_tokens,
                              .tokens = r->numbers,
                              .positions = positions,
                              .runs = &r->run,
                              .n_runs = 1,
                              .rows = positions + r->limits.n_tokens,
                              .n_rows = 1};
}

/* ---- weights ---- */

static struct weight_source plain_source(const struct measure_rig *r, enum dtype type, int n_rows,
                                         int n_cols, int n_experts) {
    return (struct weight_source){.name = "a made-up weight",
                                  .dtype = type,
                                  .n_rows = n_rows,
                                  .n_cols = n_cols,
                                  .n_experts = n_experts,
                                  .data = r->m->pool,
                                  .row_bytes = dtype_row_bytes(type, n_cols)};
}

/* A device that says 0 reads the file's layout where it stands. */
int64_t rig_weight_bytes(const struct measure_rig *r, enum dtype type, int n_rows, int n_cols,
                         int n_experts) {
    struct weight_source s = plain_source(r, type, n_rows, n_cols, n_experts);
    int64_t bytes = r->b->fn->weight_bytes(r->b, &s);
    return (int64_t)round_up((size_t)(bytes > 0 ? bytes : weight_source_bytes(&s)), WEIGHT_ALIGN);
}

/* The processor reads packed weights in the pool. A GPU makes its own, from one row again and
 * again: what matters is where they lie. */
ats_status rig_weight(struct measure_rig *r, enum dtype type, int n_rows, int n_cols, int n_experts,
                      int64_t offset, struct backend_weight **out) {
    struct weight_source s = plain_source(r, type, n_rows, n_cols, n_experts);
    REQUIRE(r->n_loaded < RIG_MAX_LOADED);
    if (r->b->gpu || n_rows == 1) {
        s.row_bytes = 0;
    } else {
        int64_t bytes = rig_weight_bytes(r, type, n_rows, n_cols, n_experts);
        REQUIRE((size_t)(offset + bytes) <= r->m->pool_bytes);
        s.data = r->m->pool + offset;
        if (r->b->fn->weight_bytes(r->b, &s) > 0) s.packed = s.data;
    }
    s.raw = !r->b->gpu && !s.packed;
    TRY(r->b->fn->weight_load(r->b, &s, out));
    r->loaded[r->n_loaded++] = *out;
    return ATS_OK;
}

/* ---- the clock ---- */

double measure_median(double *v, int n) {
    for (int i = 1; i < n; i++) /* few */
        for (int j = i; j > 0 && v[j] < v[j - 1]; j--) {
            double t = v[j];
            v[j] = v[j - 1], v[j - 1] = t;
        }
    return n % 2 ? v[n / 2] : (v[n / 2 - 1] + v[n / 2]) / 2;
}

bool measure_possible(double seconds) {
    return seconds > 0 && seconds <= longest_s;
}

ats_status rig_run(struct measure_rig *r, struct backend_segment *s, double *seconds) {
    struct backend_times t;
    uint64_t begin = r->b->fn->now(r->b);
    TRY(r->b->fn->submit(r->b, s, &r->round, NULL, 0, ++r->value));
    TRY(r->b->fn->wait(r->b, r->value));
    uint64_t end = r->b->fn->now(r->b);
    bool known = r->b->fn->segment_times(r->b, s, &t) && t.end_ns > t.begin_ns;
    *seconds = known ? (double)(t.end_ns - t.begin_ns) * 1e-9 : (double)(end - begin) * 1e-9;
    return ATS_OK;
}

ats_status rig_time(struct measure_rig *r, struct backend_segment *s, int n_steps, const char *what,
                    double *seconds) {
    uint64_t budget_ns = r->m->o->quick ? 10000000 : 30000000, start = r->b->fn->now(r->b);
    double v[MAX_REPEATS], warm;
    TRY(rig_run(r, s, &warm));
    r->wall_s = (double)(r->b->fn->now(r->b) - start) * 1e-9;
    for (int attempt = 0; attempt < MAX_ATTEMPTS; attempt++) {
        uint64_t begin = clock_ns();
        int n = 0;
        while (n < MAX_REPEATS) {
            TRY(rig_run(r, s, &v[n++]));
            uint64_t spent = clock_ns() - begin;
            if (spent > 4 * budget_ns || (n >= MIN_REPEATS && spent > budget_ns)) break;
        }
        double t = measure_median(v, n);
        /* a launch that was noted too long must not eat the work */
        *seconds = fmax(t - r->launch_s, t / 8) / n_steps;
        if (measure_possible(*seconds)) return ATS_OK;
    }
    return fail(ATS_DEVICE, "device \"%s\" says that %.60s takes %g s, again and again", r->b->name,
                what, *seconds);
}

/* Steps that move a column of one line. */
static ats_status time_small_steps(struct measure_rig *r, int n, double *seconds) {
    struct step steps[64];
    struct backend_segment *s;
    REQUIRE(n <= (int)COUNT_OF(steps));
    for (int i = 0; i < n; i++) {
        struct span span = {SPACE_LOCAL, 256 * (i % 2), 64, 0};
        steps[i] = (struct step){.kind = STEP_COPY, .n_in = 1, .end = 1, .n_readers = 1};
        steps[i].in[0] = span;
        span.offset_bytes = 256 * (1 - i % 2);
        steps[i].out = span;
    }
    rig_round(r, 1, 0);
    TRY(r->b->fn->segment_build(r->b, steps, n, &s));
    r->launch_s = 0;
    ats_status status = rig_time(r, s, 1, "a copy of one number", seconds);
    r->b->fn->segment_free(r->b, s);
    return status;
}

ats_status rig_calibrate(struct measure_rig *r) {
    double one = 0, many = 0;
    TRY(time_small_steps(r, 1, &one));
    TRY(time_small_steps(r, 64, &many));
    r->op_s = fmax(many - one, 1e-9) / 63;
    r->launch_s = fmax(one - r->op_s, 0);
    return ATS_OK;
}
