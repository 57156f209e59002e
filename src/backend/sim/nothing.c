/* The device that a simulated one wraps where only time is kept: it takes what it is given, counts
 * bytes as the file has them, and computes nothing. */
#include <stdlib.h>
#include "backend/sim/sim.h"
#include "base/file.h"

struct nothing {
    struct backend base;
    int64_t host_bytes;
};
/* Whatever it is asked to make: something to tell apart. */
struct backend_weight {
    char nothing;
};
struct backend_kv {
    char nothing;
};
struct backend_state {
    char nothing;
};
struct backend_segment {
    char nothing;
};

static void nothing_close(struct backend *b) {
    free(CONTAINER_OF(b, struct nothing, base));
}

static uint64_t nothing_now(struct backend *b) {
    (void)b;
    return 0;
}

/* Never written, so that it takes addresses and no memory. */
static ats_status nothing_host_alloc(struct backend *b, size_t bytes, void **out) {
    (void)b;
    return pages_alloc(bytes, out);
}

static void nothing_host_free(struct backend *b, void *p, size_t bytes) {
    (void)b;
    pages_free(p, bytes);
}

static void nothing_memory(struct backend *b, struct backend_memory *out) {
    int64_t bytes = CONTAINER_OF(b, struct nothing, base)->host_bytes;
    *out = (struct backend_memory){.total_bytes = bytes, .free_bytes = bytes, .host = true};
}

static const char *nothing_lacks(struct backend *b, const struct graph *g,
                                 const struct graph_op *op) {
    (void)b, (void)g, (void)op;
    return NULL;
}

static int64_t nothing_work_bytes(struct backend *b, const struct backend_limits *limits) {
    (void)b;
    return limits->local_bytes;
}

static int64_t nothing_pinned_bytes(struct backend *b, const struct backend_limits *limits) {
    (void)b, (void)limits;
    return 0;
}

static ats_status nothing_reserve(struct backend *b, const struct backend_limits *limits) {
    (void)b, (void)limits;
    return ATS_OK;
}

static int64_t nothing_weight_bytes(struct backend *b, const struct weight_source *source) {
    (void)b;
    return source->raw ? 0 : weight_source_bytes(source);
}

static ats_status nothing_weight_load(struct backend *b, const struct weight_source *source,
                                      struct backend_weight **out) {
    (void)b, (void)source;
    *out = xcalloc(1, sizeof **out);
    return ATS_OK;
}

static ats_status nothing_weights_ready(struct backend *b) {
    (void)b;
    return ATS_OK;
}

static void nothing_weight_free(struct backend *b, struct backend_weight *w) {
    (void)b;
    free(w);
}

static ats_status nothing_kv_open(struct backend *b, const struct kv_layout *layout,
                                  struct backend_kv **out) {
    (void)b, (void)layout;
    *out = xcalloc(1, sizeof **out);
    return ATS_OK;
}

static void nothing_kv_close(struct backend *b, struct backend_kv *kv) {
    (void)b;
    free(kv);
}

static void nothing_kv_copy_page(struct backend *b, struct backend_kv *kv, int src, int dst) {
    (void)b, (void)kv, (void)src, (void)dst;
}

static ats_status nothing_state_open(struct backend *b, const struct state_layout *layout,
                                     struct backend_state **out) {
    (void)b, (void)layout;
    *out = xcalloc(1, sizeof **out);
    return ATS_OK;
}

static void nothing_state_close(struct backend *b, struct backend_state *s) {
    (void)b;
    free(s);
}

static ats_status nothing_segment_build(struct backend *b, const struct step *steps, int n_steps,
                                        struct backend_segment **out) {
    (void)b, (void)steps, (void)n_steps;
    *out = xcalloc(1, sizeof **out);
    return ATS_OK;
}

static void nothing_segment_free(struct backend *b, struct backend_segment *s) {
    (void)b;
    free(s);
}

static ats_status nothing_submit(struct backend *b, struct backend_segment *s,
                                 const struct round *round, const struct backend_wait *waits,
                                 int n_waits, uint64_t value) {
    (void)b, (void)s, (void)round, (void)waits, (void)n_waits, (void)value;
    return ATS_OK;
}

static ats_status nothing_copy_build(struct backend *b, struct backend_weight *const *weights,
                                     int n_weights, struct backend_copy **out) {
    (void)b, (void)weights, (void)n_weights;
    *out = NULL;
    return fail(ATS_UNSUPPORTED, "what a simulated device wraps does not stream");
}

static void nothing_copy_free(struct backend *b, struct backend_copy *c) {
    (void)b, (void)c;
}

static ats_status nothing_submit_copy(struct backend *b, struct backend_copy *c,
                                      const struct backend_wait *waits, int n_waits,
                                      uint64_t value) {
    (void)b, (void)c, (void)waits, (void)n_waits, (void)value;
    return fail(ATS_UNSUPPORTED, "what a simulated device wraps does not stream");
}

static ats_status nothing_probe_copy(struct backend *b, double *seconds) {
    (void)b;
    *seconds = 0;
    return fail(ATS_UNSUPPORTED, "what a simulated device wraps does not stream");
}

static ats_status nothing_wait(struct backend *b, uint64_t value) {
    (void)b, (void)value;
    return ATS_OK;
}

static void nothing_set_timed(struct backend *b, bool timed) {
    (void)b, (void)timed;
}

static bool nothing_segment_times(struct backend *b, const struct backend_segment *s,
                                  struct backend_times *out) {
    (void)b, (void)s, (void)out;
    return false;
}

static bool nothing_copy_times(struct backend *b, const struct backend_copy *c, uint64_t value,
                               struct backend_times *out) {
    (void)b, (void)c, (void)value, (void)out;
    return false;
}

static void nothing_counters(struct backend *b, struct backend_counters *out) {
    (void)b;
    *out = (struct backend_counters){0};
}

static const struct backend_vtable nothing_vtable = {
    .close = nothing_close,
    .now = nothing_now,
    .host_alloc = nothing_host_alloc,
    .host_free = nothing_host_free,
    .memory = nothing_memory,
    .lacks = nothing_lacks,
    .work_bytes = nothing_work_bytes,
    .pinned_bytes = nothing_pinned_bytes,
    .reserve = nothing_reserve,
    .weight_bytes = nothing_weight_bytes,
    .weight_load = nothing_weight_load,
    .weights_ready = nothing_weights_ready,
    .weight_free = nothing_weight_free,
    .kv_open = nothing_kv_open,
    .kv_close = nothing_kv_close,
    .kv_copy_page = nothing_kv_copy_page,
    .state_open = nothing_state_open,
    .state_close = nothing_state_close,
    .segment_build = nothing_segment_build,
    .segment_free = nothing_segment_free,
    .submit = nothing_submit,
    .copy_build = nothing_copy_build,
    .copy_free = nothing_copy_free,
    .submit_copy = nothing_submit_copy,
    .probe_copy = nothing_probe_copy,
    .wait = nothing_wait,
    .set_timed = nothing_set_timed,
    .segment_times = nothing_segment_times,
    .copy_times = nothing_copy_times,
    .counters = nothing_counters,
};

struct backend *sim_nothing_open(int64_t host_bytes) {
    struct nothing *n = xcalloc(1, sizeof *n);
    n->base = (struct backend){.fn = &nothing_vtable, .name = "nothing", .keeps_time_only = true};
    n->host_bytes = host_bytes;
    return &n->base;
}
