#include "run/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/threads.h"
#include "model/shape.h"
#include "run/granularity.h"
#include "run/measure.h"
#include "run/sampler.h"

#define DEFAULT_CTX 8192

void ats_options_default(ats_options *options) {
    memset(options, 0, sizeof *options);
}

/* ---- options ---- */

static ats_status check_range(const char *name, int value, int max) {
    if (value >= 0 && value <= max) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%s is %d, expected 0 to %d", name, value, max);
}

static ats_status check_options(const ats_options *o) {
    if (!o->model || !o->model[0]) return fail(ATS_BAD_ARGUMENT, "no model file is given");
    TRY(check_range("n_ctx", o->n_ctx, 1 << 28));
    TRY(check_range("n_seqs", o->n_seqs, 1024));
    TRY(check_range("n_batch", o->n_batch, 1 << 16));
    TRY(check_range("n_rows", o->n_rows, 1 << 16));
    TRY(check_range("n_threads", o->n_threads, 512));
    TRY(check_range("n_threads_batch", o->n_threads_batch, 512));
    TRY(check_range("n_overrides", o->n_overrides, 4096));
    TRY(check_range("dynamic", (int)o->dynamic, ATS_DYNAMIC_OFF));
    TRY(check_range("vram_mib", o->vram_mib, 1 << 24));
    TRY(check_range("plan_depth", o->plan_depth, 1 << 28));
    if (!(o->replan_threshold >= 0 && o->replan_threshold <= 10 && o->replan_interval >= 0 &&
          o->replan_interval <= 1e6))
        return fail(ATS_BAD_ARGUMENT,
                    "replan_threshold is %g and replan_interval %g, expected 0 "
                    "to 10 and 0 to 1e6",
                    o->replan_threshold, o->replan_interval);
    enum granularity granularity;
    enum transfer_rule rule;
    TRY(granularity_read(o->granularity, &granularity));
    TRY(transfer_read(o->transfer, &rule));
    return measure_check_types(o->kv_k, o->kv_v, o->math);
}

static ats_status choose_kernels(ats_engine *e) {
    const char *name = e->options.cpu_isa;
    if (!backend_cpu_isa_parse(name, &e->cpu_isa_mask))
        return fail(ATS_BAD_ARGUMENT, "unknown instruction set \"%.40s\"", name);
    if (strcmp(name, "native") == 0) return ATS_OK;
    const char *best = backend_cpu_isa_name(e->cpu_isa_mask);
    if (strcmp(name, best) == 0) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "this processor or build has no %s kernels", name);
}

/* Devices that compute with threads of ours: they share the cores. */
static int count_processors(const ats_engine *e) {
    int n = 0;
    for (int d = 0; d < e->n_devices; d++)
        n += strncmp(e->device_names[d], "vulkan", 6) != 0;
    return n;
}

static ats_status fill_options(ats_engine *e) {
    ats_options *o = &e->options;
    o->model = arena_strdup(&e->arena, o->model);
    if (o->trace) o->trace = arena_strdup(&e->arena, o->trace);
    TRY(choose_devices(e));
    e->cpu_isa_mask = ~0U;
    if (o->cpu_isa) TRY(choose_kernels(e));
    int fast = max_int(1, cpu_count_fast() / max_int(1, count_processors(e)));
    if (!o->n_threads) o->n_threads = fast;
    if (!o->n_threads_batch) o->n_threads_batch = max_int(o->n_threads, fast);
    if (!o->n_seqs) o->n_seqs = 1;
    e->batch_open = !o->n_batch;
    if (!o->n_batch) o->n_batch = DECIDE_CHUNK;
    if (!o->n_rows) o->n_rows = 32;
    o->n_rows = min_int(o->n_rows, o->n_batch);
    return ATS_OK;
}

static enum kv_type kv_type_of(ats_kv_type t) {
    return t == ATS_KV_F32 ? KV_F32 : t == ATS_KV_Q8_0 ? KV_Q8_0 : KV_F16;
}

/* ---- opening ---- */

static ats_status open_text(ats_engine *e) {
    struct gguf_str s = {NULL, 0};
    int n_rows = e->model ? e->model->hp.n_vocab : 0;
    TRY(gguf_tokenizer_open(e->file, n_rows, e->options.force, false, &e->tokenizer));
    if (gguf_find(e->file, "tokenizer.chat_template")) {
        TRY(gguf_get_str(e->file, "tokenizer.chat_template", &s));
        e->chat_template = arena_strndup(&e->arena, s.data, s.n);
    }
    ats_status status = gguf_chat_open(e->file, e->tokenizer, &e->chat);
    if (status != ATS_OK) {
        e->chat_error = arena_strdup(&e->arena, error_text());
        log_msg(LOG_WARN, "the chat template cannot be used: %s", e->chat_error);
        error_clear();
    }
    return ATS_OK;
}

ats_status engine_context(const struct gguf *file, int *n_ctx) {
    uint32_t trained = 0;
    TRY(gguf_opt_u32(file, ".context_length", &trained));
    if (!*n_ctx) *n_ctx = (int)min_i64(max_i64(trained, 1), DEFAULT_CTX);
    if (trained && (uint32_t)*n_ctx > trained)
        log_msg(LOG_WARN, "the context of %d tokens is longer than the model's %u", *n_ctx,
                trained);
    return ATS_OK;
}

static ats_status open_model(ats_engine *e) {
    ats_options *o = &e->options;
    TRY(engine_context(e->file, &o->n_ctx));
    struct model_options options = {
        .n_ctx = o->n_ctx, .math = measure_math(o->math), .row_group = 1, .force = o->force};
    return model_open(e->file, &options, &e->model);
}

static ats_status open_devices(ats_engine *e) {
    int n_threads = max_int(e->options.n_threads, e->options.n_threads_batch), n_cpu_devices = 0;
    for (int d = 0; d < e->n_devices; d++) {
        struct backend_options options = {.n_threads = e->options.n_threads,
                                          .n_threads_batch = e->options.n_threads_batch,
                                          .cpu_isa_mask = e->cpu_isa_mask,
                                          .driven = d == 0,
                                          .peer = d > 0 ? e->devices[0] : NULL,
                                          .no_fusion = e->options.no_fusion,
                                          .no_repack = e->options.no_repack,
                                          .bind_threads = e->options.pin,
                                          .bind_first = n_cpu_devices * n_threads};
        n_cpu_devices += strncmp(e->device_names[d], "cpu", 3) == 0;
        char name[64]; /* opened before, the second of a name is called "cpu#2" */
        snprintf(name, sizeof name, "%.*s", (int)strcspn(e->device_names[d], "#"),
                 e->device_names[d]);
        ats_status status = backend_open(name, &options, &e->devices[d]);
        if (status == ATS_OK) continue;
        return e->options.devices || !e->options.plan ? status
                                                      : fail_in(status, "%s", e->options.plan);
    }
    return ATS_OK;
}

static ats_status fill_executor_options(ats_engine *e, struct executor_options *out) {
    const ats_options *o = &e->options;
    const struct graph *g = e->model->graph;
    struct kv_class classes[KV_MAX_CLASSES] = {0};
    const int n_classes = max_int(1, g->n_kv_classes); /* tokens have pages, with a cache or not */
    for (int c = 0; c < n_classes; c++) {
        int n = kv_pages_needed(g->kv_windows[c], o->n_ctx, o->n_seqs, o->n_batch);
        if (!n)
            return fail(ATS_BAD_ARGUMENT, "%d sessions of %d tokens are too many", o->n_seqs,
                        o->n_ctx);
        classes[c] = (struct kv_class){.window = g->kv_windows[c], .n_pages = n};
    }
    if (!e->kv) TRY(kv_open(classes, n_classes, o->n_ctx, &e->kv));
    const bool in_place = !o->no_fusion;
    int n_states = graph_has_state(g) ? state_slots_needed(o->n_seqs, in_place) : 0;
    if (n_states && !e->states) e->states = state_pool_open(n_states, in_place);
    struct memory_info memory;
    memory_info_read(&memory);
    *out = (struct executor_options){.n_tokens = o->n_batch,
                                     .n_rows = o->n_rows,
                                     .n_ctx = o->n_ctx,
                                     .n_states = n_states,
                                     .type_k = kv_type_of(o->kv_k),
                                     .type_v = kv_type_of(o->kv_v),
                                     .cpu_isa_mask = e->cpu_isa_mask,
                                     .host_bytes = (int64_t)memory.available_bytes};
    for (int c = 0; c < g->n_kv_classes; c++)
        out->n_pages[c] = classes[c].n_pages;
    return ATS_OK;
}

void engine_count_stats(ats_engine *e) {
    e->stats.kv_bytes = e->stats.work_bytes = e->stats.weight_bytes = 0;
    for (int d = 0; d < e->n_devices; d++) {
        const struct executor_ledger *l = &e->ledger.devices[d];
        e->stats.kv_bytes += (uint64_t)(l->kv_bytes + l->state_bytes);
        e->stats.work_bytes += (uint64_t)(l->work_bytes + l->slot_bytes + l->pinned_bytes);
        e->stats.weight_bytes +=
            (uint64_t)(l->weight_bytes + l->mapped_bytes + l->streamed_bytes + l->pageable_bytes);
    }
}

static bool load_progress(void *user, uint64_t done, uint64_t total) {
    const ats_engine *e = user;
    return !e->options.progress ||
           e->options.progress(e->options.progress_user, "loading", done, total);
}

/* Opens the devices and loads the weights, as the plan says. */
static ats_status load_plan(ats_engine *e, struct executor_options *o) {
    TRY(open_devices(e));
    TRY(choose_plan(e, o));
    if (e->options.plan_only) return ATS_OK;
    TRY(executor_open(e->model, e->plan, e->devices, o, &e->executor));
    return executor_load(e->executor, load_progress, e);
}

void engine_stop(ats_engine *e) {
    adapt_close(e);
    executor_close(e->executor);
    e->executor = NULL;
    e->plan = NULL;
    arena_free(&e->plan_arena);
    for (int d = 0; d < e->n_devices; d++) {
        backend_close(e->devices[d]);
        e->devices[d] = NULL;
    }
}

/* Memory that is there according to the ledger may be gone when it is asked for. */
ats_status engine_start(ats_engine *e) {
    TRY(fill_executor_options(e, &e->executor_options));
    ats_status status = load_plan(e, &e->executor_options);
    while (status == ATS_NO_MEMORY && choose_smaller(e)) {
        engine_stop(e);
        status = load_plan(e, &e->executor_options);
    }
    if (status != ATS_OK) return status;
    engine_count_stats(e);
    if (e->options.plan_only) return ATS_OK;
    TRY(observe_open(e));
    adapt_open(e);
    return ATS_OK;
}

static ats_status open_engine(ats_engine *e) {
    TRY(fill_options(e));
    if (shape_is_path(e->options.model))
        return fail(ATS_BAD_ARGUMENT,
                    "%s has no weights: a shape can be planned (plan --machine) "
                    "and simulated, not run",
                    e->options.model);
    TRY(gguf_open(e->options.model, &e->file));
    struct gguf_str name = {"", 0};
    TRY(gguf_opt_str(e->file, "general.name", &name));
    e->name = arena_strndup(&e->arena, name.data, name.n);
    if (e->options.metadata_only) return open_text(e);
    TRY(open_model(e));
    TRY(open_text(e));
    sampling_check_file(e->file);
    TRY(planner_open(e, &e->planner));
    e->round = round_memory_open(&e->options);
    TRY(engine_start_somehow(e));
    e->options.progress = NULL; /* the caller's, while it opens the engine */
    return ATS_OK;
}

ats_status ats_engine_open(const ats_options *options, ats_engine **out) {
    uint64_t start = clock_ns();
    *out = NULL;
    TRY(check_options(options));
    ats_engine *e = xcalloc(1, sizeof *e);
    e->options = *options;
    ats_status status = open_engine(e);
    if (status != ATS_OK) {
        ats_engine_close(e);
        return status;
    }
    e->stats.load_ns = clock_ns() - start;
    *out = e;
    return ATS_OK;
}

void ats_engine_close(ats_engine *e) {
    if (!e) return;
    REQUIRE(e->n_sessions == 0);
    observe_close(e);
    round_memory_close(e->round);
    engine_stop(e);
    kv_close(e->kv);
    state_pool_close(e->states);
    planner_close(e->planner);
    choice_free(&e->choice);
    chat_close(e->chat);
    tokenizer_close(e->tokenizer);
    model_close(e->model);
    gguf_close(e->file);
    arena_free(&e->arena);
    free(e);
}

/* ---- facts ---- */

/* The type that holds most bytes. */
static const char *main_type(const struct gguf *g) {
    int64_t bytes[N_DTYPES] = {0};
    int best = 0;
    for (int i = 0; i < g->n_tensors; i++)
        bytes[g->tensors[i].dtype] += g->tensors[i].n_bytes;
    for (int t = 1; t < N_DTYPES; t++)
        if (bytes[t] > bytes[best]) best = t;
    return dtype_name(best);
}

void ats_engine_info(const ats_engine *e, ats_info *out) {
    *out = (ats_info){
        .architecture = e->file->arch,
        .name = e->name,
        .file_type = main_type(e->file),
        .chat_template = e->chat_template,
        .n_vocab = tokenizer_n_tokens(e->tokenizer),
        .n_ctx = e->options.n_ctx,
        .n_seqs = e->options.n_seqs,
        .n_batch = e->options.n_batch,
        .n_rows = e->options.n_rows,
        .n_threads = e->options.n_threads,
        .n_threads_batch = e->options.n_threads_batch,
        .n_devices = e->n_devices,
        .bos = tokenizer_role_id(e->tokenizer, ROLE_BOS),
        .eos = tokenizer_role_id(e->tokenizer, ROLE_EOS),
        .adds_bos = tokenizer_adds_bos(e->tokenizer),
        .cpu_isa = backend_cpu_isa_name(e->cpu_isa_mask),
    };
    if (!e->model) return;
    const struct hparams *hp = &e->model->hp;
    out->n_params = e->model->n_params;
    out->weight_bytes = e->model->weight_bytes;
    out->n_layers = hp->n_layers;
    out->n_embd = hp->n_embd;
    out->n_heads = hp->n_heads;
    out->n_kv_heads = hp->n_kv_heads;
    out->n_vocab = hp->n_vocab;
    out->n_ctx_train = hp->n_ctx_train;
}

void ats_engine_stats(const ats_engine *e, ats_stats *out) {
    *out = e->stats;
}

void ats_engine_stats_reset(ats_engine *e) {
    ats_stats *s = &e->stats;
    s->n_prefill_tokens = s->prefill_ns = s->n_decode_tokens = s->decode_ns = s->n_rounds = 0;
    memset(e->observed.metrics, 0, sizeof e->observed.metrics);
}

void ats_engine_set_cancel(ats_engine *e, ats_cancel_fn *fn, void *user) {
    e->cancel = fn;
    e->cancel_user = user;
}

void ats_free(void *p) {
    free(p);
}

/* ---- messages ---- */

static struct {
    ats_log_fn *fn;
    void *user;
} log_target;

static void pass_log(void *user, enum log_level level, const char *text) {
    (void)user;
    log_target.fn(log_target.user, (int)level, text);
}

void ats_log_set(ats_log_fn *fn, void *user, int max_level) {
    log_target.fn = fn;
    log_target.user = user;
    log_set(fn ? pass_log : NULL, NULL, (enum log_level)max_level);
}
