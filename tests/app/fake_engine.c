/*
 * A small stand-in for the engine behind atsinfer.h, for tests of the program: no weights, and
 * every answer follows from a rule that a test can compute. Ids 0..255 are bytes, then BOS, END,
 * <|im_start|>,
 * <|im_end|>. Not an engine: it checks what the header asks of the caller and little else.
 *
 * The logits after token t are 0, but FAKE_LOGIT for the successor of t (t + 1, of bytes only).
 * The name of the model chooses what goes wrong: see fake_open_fails(). Environment:
 *   FAKE_ANSWER  the text that ats_generate() writes, token by token (default "An answer.")
 *   FAKE_ENDLESS the answer is repeated until the caller stops it
 */
#include "fake_engine.h"

#include "base/arena.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

struct ats_engine {
    ats_options options;
    ats_stats stats;
    ats_cancel_fn *cancel;
    void *cancel_user;
    int n_sessions;
};

struct ats_session {
    ats_engine *engine;
    int32_t *tokens;
    size_t n, cap;
    float logits[FAKE_VOCAB];
    bool has_logits;
};

struct ats_sampler {
    uint64_t seed;
    size_t n_accepted;
};

static ats_log_fn *log_fn;
static void *log_user;

void ats_log_set(ats_log_fn *fn, void *user, int max_level) {
    (void)max_level;
    log_fn = fn;
    log_user = user;
}

void ats_free(void *p) {
    free(p);
}

/* --------------------------------------------------------------------------------------- engine */

void ats_options_default(ats_options *options) {
    memset(options, 0, sizeof *options);
}

static ats_status fake_open_fails(const char *model) {
    if (strstr(model, "missing")) return fail(ATS_IO, "cannot open %s: no such file", model);
    if (strstr(model, "broken"))
        return fail(ATS_BAD_FILE, "%s: tensor \x1b[31mx lies outside", model);
    if (strstr(model, "huge")) return fail(ATS_NO_MEMORY, "%s needs 900 GiB", model);
    if (strstr(model, "alien")) return fail(ATS_UNSUPPORTED, "architecture \"alien\" is unknown");
    return ATS_OK;
}

ats_status ats_engine_open(const ats_options *options, ats_engine **out) {
    TRY(fake_open_fails(options->model));
    uint64_t start = clock_ns();
    for (uint64_t i = 0; options->progress && i <= 4; i++)
        if (!options->progress(options->progress_user, "loading", i << 20, 4 << 20))
            return fail(ATS_CANCELLED, "loading was cancelled");
    if (log_fn && strstr(options->model, "warning"))
        log_fn(log_user, 1, "this model is only a test");
    if (log_fn && options->pin) log_fn(log_user, 1, "no CPU to bind a thread to");
    ats_engine *e = xcalloc(1, sizeof *e);
    e->options = *options;
    if (!e->options.n_ctx) e->options.n_ctx = 512;
    if (!e->options.n_seqs) e->options.n_seqs = 1;
    if (!e->options.n_batch) e->options.n_batch = 512;
    if (!e->options.n_rows) e->options.n_rows = 32;
    if (!e->options.n_threads) e->options.n_threads = 3;
    e->stats.load_ns = clock_ns() - start + 1;
    *out = e;
    return ATS_OK;
}

void ats_engine_close(ats_engine *e) {
    REQUIRE(!e || e->n_sessions == 0);
    free(e);
}

void ats_engine_info(const ats_engine *e, ats_info *out) {
    *out = (ats_info){.architecture = "fake",
                      .name = "Fake 1M",
                      .file_type = "Q4_1",
                      .n_params = 1500000,
                      .weight_bytes = 3 << 20,
                      .n_vocab = FAKE_VOCAB,
                      .n_ctx_train = 1024,
                      .n_ctx = e->options.n_ctx,
                      .n_seqs = e->options.n_seqs,
                      .n_batch = e->options.n_batch,
                      .n_rows = e->options.n_rows,
                      .n_threads = e->options.n_threads,
                      .n_threads_batch = e->options.n_threads_batch ? e->options.n_threads_batch
                                                                    : e->options.n_threads,
                      .bos = FAKE_BOS,
                      .eos = FAKE_END,
                      .adds_bos = true,
                      .cpu_isa = "ref"};
}

/* Half of it on a GPU, one tensor cut, in the second of four layers. */
char *ats_engine_describe(const ats_engine *e) {
    struct buf text = {0};
    static const char *const homes[] = {"cpu", "gpu", "gpu", "gpu"};
    if (!e->options.plan_only) return xstrdup("{}");
    buf_add_str(&text, "{\"n_layers\":4,\"host\":{\"needed_bytes\":2048,\"limit_bytes\":4096},"
                       "\"devices\":[{\"name\":\"cpu\",\"weight_bytes\":1024,\"own_bytes\":1536},"
                       "{\"name\":\"gpu\\u001b[31m\",\"limit_bytes\":8192}],"
                       "\"plan\":{\"how\":\"by hand\",\"tensors\":[");
    buf_add_str(&text, "{\"name\":\"embd\",\"layer\":-1,\"parts\":[{\"device\":\"cpu\","
                       "\"bytes\":512}]}");
    for (int i = 0; i < 4; i++)
        buf_printf(&text,
                   ",{\"name\":\"blk.%d.a\",\"layer\":%d,\"parts\":[{\"device\":\"%s\","
                   "\"bytes\":1024}]}",
                   i, i, homes[i]);
    buf_add_str(&text, ",{\"name\":\"blk.3.b\",\"layer\":3,\"parts\":["
                       "{\"device\":\"cpu\",\"axis\":\"rows\",\"begin\":0,\"end\":5,\"bytes\":5},"
                       "{\"device\":\"gpu\",\"axis\":\"rows\",\"begin\":5,\"end\":9,\"bytes\":4,"
                       "\"streamed\":true}]}]}}");
    return buf_take(&text);
}

char *ats_engine_plan(const ats_engine *e) {
    struct buf text = {0};
    buf_printf(&text, "%s %d %d", e->options.gpu_layers ? e->options.gpu_layers : "-",
               e->options.n_cpu_moe, e->options.vram_mib);
    for (int i = 0; i < e->options.n_overrides; i++)
        buf_printf(&text, " %s", e->options.overrides[i]);
    return buf_take(&text);
}

void ats_engine_stats(const ats_engine *e, ats_stats *out) {
    *out = e->stats;
}

void ats_engine_stats_reset(ats_engine *e) {
    e->stats = (ats_stats){.load_ns = e->stats.load_ns};
}

void ats_engine_measure(ats_engine *e, bool on) {
    (void)e, (void)on;
}

void ats_engine_metrics(const ats_engine *e, bool decode, ats_metrics *out) {
    (void)e;
    *out = (ats_metrics){0};
    if (!decode) return;
    *out = (ats_metrics){.n_rounds = 2,
                         .n_tokens = 2,
                         .round_ns = 4000000,
                         .cpu_busy_ns = 3000000,
                         .gpu_busy_ns = 1000000,
                         .activation_bytes = 8000,
                         .n_splits = 6,
                         .n_submissions = 4,
                         .host_ns = 90000};
}

void ats_engine_set_cancel(ats_engine *e, ats_cancel_fn *fn, void *user) {
    e->cancel = fn;
    e->cancel_user = user;
}

/* A file of one tensor whose name and template try to steer a terminal. */
ats_status ats_file_describe(const char *path, char **json) {
    TRY(fake_open_fails(path));
    struct buf text = {0};
    buf_printf(
        &text,
        "{\"path\":\"%s\",\"parts\":[{\"path\":\"%s\",\"bytes\":4096}],\"version\":3,"
        "\"architecture\":\"fake\",\"name\":\"Fake 1M\",\"n_params\":1500000,"
        "\"weight_bytes\":3145728,\"metadata\":{"
        "\"general.name\":{\"type\":\"string\",\"value\":\"Fake 1M\",\"n\":1},"
        "\"fake.list\":{\"type\":\"array<u32>\",\"value\":[1,2,3],\"n\":300},"
        "\"tokenizer.chat_template\":{\"type\":\"string\",\"value\":\"{%% for m %%}\\u001b[2J\","
        "\"n\":1}},"
        "\"tensors\":[{\"name\":\"blk.0.\\u001b[31mattn\",\"dtype\":\"Q4_1\",\"dims\":[64,32],"
        "\"bytes\":1280,\"part\":0,\"offset\":1024}],"
        "\"types\":{\"Q4_1\":{\"n\":1,\"bytes\":1280}},"
        "\"tokenizer\":{\"model\":\"gpt2\",\"pre\":\"smollm\",\"n_tokens\":260,\"bos\":256,"
        "\"eos\":257,\"add_bos\":true,\"end_tokens\":[257,259]}}",
        path, path);
    *json = buf_take(&text);
    return ATS_OK;
}

void ats_simulation_default(ats_simulation *s) {
    *s = (ats_simulation){.n_slots = -1};
}

static const char fake_load[] =
    ",\"load\":{\"rounds\":9,\"solved\":2,\"probes\":1,\"segments\":[{\"start_s\":2.0,"
    "\"slow\":{\"cpu\":2.5,\"gpu\":1,\"link\":1},\"static_s\":0.04,\"replanned_s\":0.03,"
    "\"oracle_s\":0.02,\"mean_s\":0.035,\"reduction\":0.25,\"switches\":1,\"reaction_s\":0.5}],"
    "\"switches\":[{\"at_s\":2.5,\"reason\":\"cp\\u001bu\",\"cost_s\":0.01,\"old_s\":0.04,"
    "\"new_s\":0.03,\"plan\":1,\"moves\":true}]}";

ats_status ats_simulate(const ats_simulation *s, char **json) {
    TRY(fake_open_fails(s->model));
    struct buf text = {0};
    buf_printf(&text,
               "{\"model\":\"%s\",\"machine\":\"\\u001b[31mfake\",\"granularity\":\"%s\","
               "\"transfer\":\"%s\",\"n_slots\":2,\"n_batch\":512,\"n_prompt\":1024,"
               "\"depth\":512,\"decode_tok_s\":12.5,\"prefill_tok_s\":300.0,"
               "\"placement\":{\"gpu_bytes\":%d,\"items\":5,\"items_on_gpu\":3,\"blocks\":2,"
               "\"blocks_divided\":1},\"limits\":{\"blocks\":{\"tok_s\":20.0,\"hit\":0.4,"
               "\"binds\":\"dram\"}}%s%s%s}",
               s->model, s->granularity, s->transfer, s->vram_mib << 20,
               s->trace ? ",\"trace\":[{}]" : "", s->load ? fake_load : "",
               s->ablation ? ",\"ablation\":{\"n_slots\":2,\"n_batch\":512,\"steps\":[{"
                             "\"name\":\"base\",\"decode\":{\"tok_s\":8.25,\"gpu_busy\":0.5,"
                             "\"link_rate\":1.5e9,\"exposed_s\":0.002,\"splits\":7}}]}"
                           : "");
    *json = buf_take(&text);
    return ATS_OK;
}

/* A number that tells which homes were given: digits for layers, overrides, experts, a plan. */
static int fake_homes(const ats_simulation *s) {
    return (s->gpu_layers ? atoi(s->gpu_layers) : 0) + 10 * s->n_overrides + 100 * s->n_cpu_moe +
           (s->plan ? 1000 : 0);
}

static void fake_diff(struct buf *out, const char *with) {
    buf_printf(out,
               ",\"diff\":{\"with\":\"%s\",\"decode_tok_s\":7.0,\"prefill_tok_s\":150.0,"
               "\"gpu_bytes\":2048,\"other_gpu_bytes\":4096,\"fits\":false,"
               "\"to_gpu_bytes\":3072,\"to_host_bytes\":512,\"items\":[",
               with);
    for (int i = 0; i < 6; i++) /* layer 3 is another line */
        buf_printf(out,
                   "{\"name\":\"blk.%d.up\",\"op\":\"matmul\",\"layer\":%d,\"gpu_share\":%d,"
                   "\"other_gpu_share\":0.25,\"to_gpu_bytes\":1024,\"to_host_bytes\":0},",
                   i, i, i == 3);
    buf_add_str(out, "{\"name\":\"he\\u001bad\",\"op\":\"matmul\",\"layer\":-1,\"gpu_share\":1,"
                     "\"other_gpu_share\":0,\"to_gpu_bytes\":0,\"to_host_bytes\":2048}]}");
}

ats_status ats_explain(const ats_simulation *s, char **json) {
    TRY(fake_open_fails(s->model));
    struct buf text = {0};
    buf_printf(&text,
               "{\"machine\":\"\\u001b[31mfake\",\"gpu\":{\"weight_bytes\":%d,\"kv_bytes\":2048},"
               "\"host\":{\"weight_bytes\":1024,\"kv_bytes\":0},\"device_changes\":3,"
               "\"decode_tok_s\":8.0,\"prefill_tok_s\":200.0,\"fixed\":{\"items\":%d,\"of\":9,"
               "\"decode_free_tok_s\":10.0,\"prefill_free_tok_s\":220.0,\"slower\":0.25},"
               "\"predictions\":[{\"depth\":2048,\"decode_tok_s\":12.5,\"prefill_tok_s\":300.0,"
               "\"regret\":0.25}],\"limits\":{\"blocks\":{\"tok_s\":20.0,\"binds\":\"dram\"}},"
               "\"memory\":{\"usable_bytes\":3072,\"left_to_others_bytes\":1024,"
               "\"host_bytes\":512},\"changes\":{"
               "\"here\":{\"decode_tok_s\":12.5,\"prefill_tok_s\":300.0,"
               "\"streamed_decode_tok_s\":20.0,\"streamed_prefill_tok_s\":400.0},"
               "\"half_bus\":{\"decode_tok_s\":11.0,\"prefill_tok_s\":150.0,"
               "\"streamed_decode_tok_s\":15.0,\"streamed_prefill_tok_s\":350.0},"
               "\"one_gib_more\":null},\"items\":[{\"name\":\"blk.7.attn_kv\",\"op\":\"attention\","
               "\"layer\":7,\"home\":\"both\",\"gpu_share\":0.75,\"bytes\":4096,\"cpu_s\":0.002,"
               "\"gpu_s\":0.001,\"why\":\"by %s\"}]",
               s->vram_mib << 20, fake_homes(s), s->granularity);
    if (s->diff) fake_diff(&text, s->diff);
    buf_add_char(&text, '}');
    *json = buf_take(&text);
    return ATS_OK;
}

/* The model profiled.gguf was measured. */
char *ats_engine_explain(const ats_engine *e) {
    ats_simulation s;
    char *json;
    if (!e->options.plan_only || strcmp(e->options.model, "profiled.gguf") != 0) return NULL;
    ats_simulation_default(&s);
    s.model = e->options.model;
    s.machine = "kept";
    s.granularity = "shard";
    return ats_explain(&s, &json) == ATS_OK ? json : NULL;
}

void ats_profiling_default(ats_profiling *p) {
    *p = (ats_profiling){0};
}

ats_status ats_profile(const ats_profiling *p, char **json) {
    TRY(fake_open_fails(p->model));
    if (p->progress && !p->progress(p->progress_user, "measuring", 1, 2))
        return fail(ATS_CANCELLED, "measuring was cancelled");
    struct buf text = {0};
    buf_printf(&text,
               "{\"path\":%s,\"measured\":%s,\"seconds\":1.5,\"cpu\":\"cpu\",\"gpu\":\"%s\","
               "\"profile\":{\"name\":\"\\u001b[31mfake\",\"link\":{\"up_pinned\":24e9,"
               "\"kappa_up\":3e-5},\"tokens\":[1,512],\"items\":[{\"op\":\"matmul\","
               "\"types\":[\"Q4_K\"],\"dims\":[4096,2048],\"cpu\":{\"work\":[[0.001,0.1],"
               "[0.002,0.4]]},\"gpu\":{\"work\":[[0.0001,0.01],[0.0002,0.04]]}}]}}",
               p->force ? "null" : "\"/c/profile.json\"", p->force ? "true" : "false",
               p->devices ? p->devices
               : p->quick ? "quick"
                          : "whole");
    *json = buf_take(&text);
    return ATS_OK;
}

char *ats_profile_find(const ats_profiling *p) {
    return strcmp(p->model, "profiled.gguf") == 0 ? xstrdup("/c/profile.json") : NULL;
}

char *ats_machine_describe(void) {
    return xstrdup("{\"cpu\":{\"model\":\"Fake CPU\",\"features\":\"avx2 fma\",\"isa\":\"avx2\","
                   "\"cores_usable\":4,\"cores_fast\":3,\"threads_default\":3},"
                   "\"memory\":{\"total_bytes\":8589934592,\"available_bytes\":4294967296},"
                   "\"devices\":[{\"name\":\"cpu\",\"kind\":\"processor\",\"usable\":true,"
                   "\"note\":\"\"}],\"advice\":[\"buy nothing\"]}");
}

/* ----------------------------------------------------------------------------------------- text */

static const char *const control_names[FAKE_VOCAB - 256] = {"<s>", "</s>", "<|im_start|>",
                                                            "<|im_end|>"};

ats_status ats_tokenize(const ats_engine *e, const char *text, size_t n_bytes, unsigned flags,
                        int32_t **ids, size_t *n_ids) {
    (void)e;
    int32_t *out = xmalloc((n_bytes + 2) * sizeof *out);
    size_t n = 0;
    if (flags & ATS_TOKENIZE_SPECIAL) out[n++] = FAKE_BOS;
    for (size_t i = 0; i < n_bytes;) {
        int32_t id = (unsigned char)text[i];
        size_t len = 1;
        for (int k = 0; flags & ATS_TOKENIZE_PARSE_SPECIAL && k < FAKE_VOCAB - 256; k++) {
            size_t n_name = strlen(control_names[k]);
            if (n_bytes - i < n_name || memcmp(text + i, control_names[k], n_name) != 0) continue;
            id = 256 + k;
            len = n_name;
        }
        out[n++] = id;
        i += len;
    }
    *ids = out;
    *n_ids = n;
    return ATS_OK;
}

const char *ats_token_text(const ats_engine *e, int32_t id, size_t *n_bytes) {
    static char bytes[256];
    (void)e;
    *n_bytes = 0;
    if (id < 0 || id >= FAKE_VOCAB) return NULL;
    if (id >= 256) {
        *n_bytes = strlen(control_names[id - 256]);
        return control_names[id - 256];
    }
    bytes[id] = (char)id;
    *n_bytes = 1;
    return &bytes[id];
}

ats_status ats_detokenize(const ats_engine *e, const int32_t *ids, size_t n_ids, bool special,
                          char **text, size_t *n_bytes) {
    struct buf raw = {0}, out = {0};
    for (size_t i = 0; i < n_ids; i++) {
        size_t n;
        const char *piece = ats_token_text(e, ids[i], &n);
        if (ids[i] < 256 || special) buf_add(&raw, piece, n);
    }
    utf8_add_replaced(&out, buf_str(&raw), raw.len);
    *n_bytes = out.len;
    *text = buf_take(&out);
    buf_free(&raw);
    return ATS_OK;
}

bool ats_token_is_end(const ats_engine *e, int32_t id) {
    (void)e;
    return id == FAKE_END || id == FAKE_END + 2;
}

ats_status ats_chat_render(const ats_engine *e, const char *messages_json, const char *extra_json,
                           bool add_generation_prompt, char **text) {
    (void)e;
    json_t *messages;
    TRY(json_parse(messages_json, strlen(messages_json), &messages));
    struct buf out = {0};
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *m = json_array_get(messages, i);
        buf_printf(&out, "<|im_start|>%s\n%s<|im_end|>\n",
                   json_string_value(json_object_get(m, "role")),
                   json_string_value(json_object_get(m, "content")));
    }
    if (extra_json) buf_add_str(&out, extra_json);
    if (add_generation_prompt) buf_add_str(&out, "<|im_start|>assistant\n");
    json_decref(messages);
    *text = buf_take(&out);
    return ATS_OK;
}

ats_status ats_tokenize_chat(const ats_engine *e, const char *text, int32_t **ids, size_t *n_ids) {
    return ats_tokenize(e, text, strlen(text), ATS_TOKENIZE_PARSE_SPECIAL, ids, n_ids);
}

/* ------------------------------------------------------------------------------------- sessions */

ats_status ats_session_open(ats_engine *e, ats_session **out) {
    if (e->n_sessions == e->options.n_seqs) return fail(ATS_BAD_ARGUMENT, "too many sessions");
    *out = xcalloc(1, sizeof **out);
    (*out)->engine = e;
    e->n_sessions++;
    return ATS_OK;
}

void ats_session_close(ats_session *s) {
    if (!s) return;
    s->engine->n_sessions--;
    free(s->tokens);
    free(s);
}

const int32_t *ats_session_tokens(const ats_session *s, size_t *n) {
    *n = s->n;
    return s->tokens;
}

void ats_session_snapshot(ats_session *s) {
    (void)s;
}

ats_status ats_session_truncate(ats_session *s, size_t n) {
    if (n > s->n) return fail(ATS_BAD_ARGUMENT, "the session has only %zu tokens", s->n);
    s->n = n;
    s->has_logits = false;
    return ATS_OK;
}

void fake_logits(int32_t token, float *logits) {
    for (int i = 0; i < FAKE_VOCAB; i++)
        logits[i] = 0;
    if (token < 256) logits[(token + 1) % 256] = FAKE_LOGIT;
}

static void fake_eval_run(ats_run *run) {
    ats_session *s = run->session;
    for (size_t i = 0; i < run->n_tokens; i++) {
        GROW(s->tokens, s->n, s->cap, 1);
        s->tokens[s->n++] = run->tokens[i];
        fake_logits(run->tokens[i], s->logits);
        if (run->want == ATS_WANT_ALL)
            memcpy(run->logits + i * FAKE_VOCAB, s->logits, sizeof s->logits);
    }
    s->has_logits = true;
    if (run->want == ATS_WANT_LAST && run->logits) memcpy(run->logits, s->logits, sizeof s->logits);
}

ats_status ats_eval(ats_engine *e, ats_run *runs, int n_runs) {
    size_t n_rows = 0;
    for (int i = 0; i < n_runs; i++) {
        const ats_run *run = &runs[i];
        if (run->session->n + run->n_tokens > (size_t)e->options.n_ctx)
            return fail(ATS_CONTEXT_FULL, "%zu tokens do not fit", run->n_tokens);
        for (size_t k = 0; k < run->n_tokens; k++)
            REQUIRE(run->tokens[k] >= 0 && run->tokens[k] < FAKE_VOCAB);
        if (run->want == ATS_WANT_ALL) n_rows += run->n_tokens;
    }
    REQUIRE(n_rows <= (size_t)e->options.n_rows);
    if (e->cancel && e->cancel(e->cancel_user)) return fail(ATS_CANCELLED, "cancelled");
    for (int i = 0; i < n_runs; i++)
        fake_eval_run(&runs[i]);
    return ATS_OK;
}

ats_status ats_session_set(ats_session *s, const int32_t *tokens, size_t n, size_t *n_reused) {
    size_t common = 0;
    while (common < s->n && common + 1 < n && s->tokens[common] == tokens[common])
        common++;
    TRY(ats_session_truncate(s, common));
    if (n_reused) *n_reused = common;
    ats_run run = {
        .session = s, .tokens = tokens + common, .n_tokens = n - common, .want = ATS_WANT_LAST};
    return ats_eval(s->engine, &run, 1);
}

const float *ats_session_logits(const ats_session *s) {
    return s->has_logits ? s->logits : NULL;
}

/* ----------------------------------------------------------------------------------- generation */

void ats_sampling_default(const ats_engine *e, ats_sampling *out) {
    (void)e;
    *out = (ats_sampling){.temperature = 0.8f,
                          .top_k = 40,
                          .top_p = 0.95f,
                          .min_p = 0.05f,
                          .typical_p = 1,
                          .repeat_penalty = 1,
                          .penalty_last_n = 64,
                          .dry_base = 1.75f,
                          .dry_allowed_length = 2,
                          .dry_last_n = -1,
                          .xtc_threshold = 0.1f,
                          .mirostat_tau = 5,
                          .mirostat_eta = 0.1f,
                          .seed = 1234};
}

ats_status ats_sampler_open(const ats_engine *e, const ats_sampling *params, ats_sampler **out) {
    (void)e;
    for (int i = 0; i < params->n_logit_bias; i++)
        if (params->logit_bias[i].token >= FAKE_VOCAB)
            return fail(ATS_BAD_ARGUMENT, "logit_bias: there is no token %d",
                        params->logit_bias[i].token);
    *out = xcalloc(1, sizeof **out);
    (*out)->seed = params->seed;
    return ATS_OK;
}

void ats_sampler_close(ats_sampler *s) {
    free(s);
}

void ats_sampler_accept(ats_sampler *s, int32_t token) {
    (void)token;
    s->n_accepted++;
}

int32_t ats_sampler_pick(ats_sampler *s, const float *logits) {
    int32_t best = 0;
    for (int32_t i = 1; i < FAKE_VOCAB; i++)
        if (logits[i] > logits[best]) best = i;
    ats_sampler_accept(s, best);
    return best;
}

/* A byte is a token; whole characters are handed out with their last one. */
static bool give(ats_session *s, ats_generation *g, const char *text, size_t len) {
    for (size_t i = 0; i < len; i++) {
        int32_t id = (unsigned char)text[i];
        bool last = i + 1 == len;
        ats_run run = {.session = s, .tokens = &id, .n_tokens = 1, .want = ATS_WANT_LAST};
        g->n_tokens++;
        bool go_on = !g->on_text || g->on_text(g->user, text, last ? len : 0, id);
        g->stop = ATS_STOP_CALLER;
        if (!go_on) return false;
        g->stop = ATS_STOP_LENGTH;
        if (g->max_tokens >= 0 && g->n_tokens >= g->max_tokens) return false;
        g->stop = ATS_STOP_CONTEXT;
        if (s->n == (size_t)s->engine->options.n_ctx) return false;
        g->stop = ATS_STOP_CALLER;
        if (ats_eval(s->engine, &run, 1) != ATS_OK) return false;
    }
    return true;
}

ats_status ats_generate(ats_session *s, ats_sampler *sampler, ats_generation *g) {
    const char *answer = getenv("FAKE_ANSWER");
    bool endless = getenv("FAKE_ENDLESS") != NULL;
    if (!answer) answer = "An answer.";
    REQUIRE(s->has_logits && sampler->n_accepted > 0);
    g->n_tokens = 0;
    do {
        for (const char *p = answer; *p;) {
            for (int i = 0; i < g->n_stops; i++) {
                if (strncmp(p, g->stops[i], strlen(g->stops[i])) != 0) continue;
                g->stop = ATS_STOP_STRING;
                return ATS_OK;
            }
            uint32_t cp;
            int len = utf8_decode(p, strlen(p), &cp);
            if (!give(s, g, p, (size_t)max_int(len, 1))) return ATS_OK;
            p += max_int(len, 1);
        }
        if (endless) nanosleep(&(struct timespec){0, 1000000}, NULL); /* no busy terminal */
    } while (endless);
    g->n_tokens++;
    g->stop = ATS_STOP_END;
    return ATS_OK;
}
