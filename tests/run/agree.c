#include "agree.h"

#include <math.h>
#include "base/arena.h"

ats_options agree_options(const char *model_path) {
    ats_options o;
    ats_options_default(&o);
    o.model = model_path;
    o.n_ctx = 256;
    o.math = ATS_MATH_F32;
    o.kv_k = o.kv_v = ATS_KV_F32;
    o.n_threads = o.n_threads_batch = 2;
    o.profile = "off"; /* nothing is measured but where that is the test */
    return o;
}

ats_options agree_llama(void) {
    static char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) skip();
    return agree_options(path);
}

ats_engine *agree_open(const ats_options *options) {
    ats_engine *e;
    TEST_OK(ats_engine_open(options, &e));
    return e;
}

bool agree_has_vulkan(void) {
    char path[512];
    if (!test_shared_path(path, sizeof path, "models/llama/llama-f16.gguf")) return false;
    ats_options options = agree_options(path);
    options.devices = "vulkan";
    ats_engine *e = NULL;
    ats_status status = ats_engine_open(&options, &e);
    if (status == ATS_UNSUPPORTED) print_message("skipped: %s\n", ats_error_text());
    ats_engine_close(e);
    return status != ATS_UNSUPPORTED;
}

int agree_vocab(const ats_engine *e) {
    ats_info info;
    ats_engine_info(e, &info);
    return info.n_vocab;
}

static bool drops(const struct agree_change *c, const char *key) {
    for (size_t i = 0; i < COUNT_OF(c->drop_keys); i++)
        if (c->drop_keys[i] && strstr(key, c->drop_keys[i])) return true;
    return false;
}

bool agree_split_experts(const struct gguf *g, const struct gguf_tensor *t,
                         struct agree_tensor *out) {
    const char *at = strstr(t->name, "_exps.weight");
    (void)g;
    if (!at) return true;
    snprintf(out->name, sizeof out->name, "%.*s.#.weight", (int)(at - t->name), t->name);
    out->n_parts = (int)t->dims[2];
    return true;
}

static void put_tensor(struct gguf_writer *w, const struct gguf_tensor *t,
                       const struct agree_tensor *c) {
    if (c->n_parts == 0) gguf_put_tensor(w, c->name, c->dtype, t->n_dims, c->dims);
    for (int i = c->n_parts - 1; i >= 0; i--) {
        char name[160];
        const char *at = strchr(c->name, '#');
        assert_non_null(at);
        snprintf(name, sizeof name, "%.*s%d%s", (int)(at - c->name), c->name, i, at + 1);
        gguf_put_tensor(w, name, c->dtype, t->n_dims - 1, c->dims);
    }
}

static void put_data(struct gguf_writer *w, const struct gguf_tensor *t,
                     const struct agree_tensor *c) {
    const bool same = c->data.len == 0;
    const uint8_t *data = same ? t->data : (const uint8_t *)c->data.data;
    const int n_parts = max_int(1, c->n_parts);
    const size_t n = (same ? (size_t)t->n_bytes : c->data.len) / (size_t)n_parts;
    for (int i = n_parts - 1; i >= 0; i--)
        TEST_OK(gguf_writer_data(w, data + (size_t)i * n, n));
}

void agree_copy(const char *from, const char *to, const struct agree_change *c) {
    struct gguf *g;
    struct gguf_writer *w = gguf_writer_open();
    TEST_OK(gguf_open(from, &g));
    struct agree_tensor *copies = xcalloc((size_t)g->n_tensors, sizeof *copies);
    bool *kept = xcalloc((size_t)g->n_tensors, sizeof *kept);
    for (int i = 0; i < g->n_kvs; i++)
        if (!drops(c, g->kvs[i].key)) gguf_put_kv(w, &g->kvs[i]);
    if (c->put) c->put(w, c->user);
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        snprintf(copies[i].name, sizeof copies[i].name, "%s", t->name);
        memcpy(copies[i].dims, t->dims, sizeof t->dims);
        copies[i].dtype = t->dtype;
        kept[i] = !c->tensor || c->tensor(g, t, &copies[i]);
        if (kept[i]) put_tensor(w, t, &copies[i]);
    }
    TEST_OK(gguf_writer_begin(w, to));
    for (int i = 0; i < g->n_tensors; i++) {
        if (kept[i]) put_data(w, &g->tensors[i], &copies[i]);
        buf_free(&copies[i].data);
    }
    TEST_OK(gguf_writer_end(w));
    gguf_writer_close(w);
    free(copies), free(kept);
    gguf_close(g);
}

float *agree_feed(ats_engine *e, ats_session *s, const int32_t *ids, size_t n, size_t chunk) {
    size_t width = (size_t)agree_vocab(e);
    float *logits = xcalloc(n * width, sizeof *logits);
    if (chunk == 0) chunk = n;
    for (size_t at = 0; at < n; at += chunk) {
        size_t piece = n - at < chunk ? n - at : chunk;
        ats_run run = {s, ids + at, piece, ATS_WANT_ALL, logits + at * width};
        TEST_OK(ats_eval(e, &run, 1));
    }
    return logits;
}

float *agree_logits(ats_engine *e, const int32_t *ids, size_t n, size_t chunk) {
    ats_session *s;
    TEST_OK(ats_session_open(e, &s));
    float *logits = agree_feed(e, s, ids, n, chunk);
    ats_session_close(s);
    return logits;
}

int32_t agree_argmax(const float *row, int n) {
    int32_t best = 0;
    for (int32_t i = 1; i < n; i++)
        if (row[i] > row[best]) best = i;
    return best;
}

void agree_greedy(ats_engine *e, const int32_t *ids, size_t n_ids, int32_t *out, size_t n) {
    ats_session *s;
    TEST_OK(ats_session_open(e, &s));
    ats_run run = {s, ids, n_ids, ATS_WANT_LAST, NULL};
    for (size_t i = 0; i < n; i++) {
        TEST_OK(ats_eval(e, &run, 1));
        out[i] = agree_argmax(ats_session_logits(s), agree_vocab(e));
        run = (ats_run){s, &out[i], 1, ATS_WANT_LAST, NULL};
    }
    ats_session_close(s);
}

float *agree_plain(const char *model_path, int32_t *ids, size_t n) {
    ats_options options = agree_options(model_path);
    options.cpu_isa = "ref";
    ats_engine *e = agree_open(&options);
    for (size_t i = 0; i < n; i++)
        ids[i] = ((int32_t)i * 37 + 11) % agree_vocab(e);
    float *logits = agree_logits(e, ids, n, 0);
    ats_engine_close(e);
    return logits;
}

double agree_nll(const float *row, int n, int32_t token) {
    double max = (double)row[agree_argmax(row, n)], sum = 0;
    for (int i = 0; i < n; i++)
        sum += exp((double)row[i] - max);
    return max + log(sum) - (double)row[token];
}

struct agreement {
    double tie;
    int n, n_ties; /* ties: the peer's best two are less than `tie` apart, so either may be ours */
    int n_equal, n_far; /* far: another token, and the peer's over 1.0 behind our best */
    double nll, peer_nll;
};

/* Teacher-forced along what the peer wrote for one prompt. */
static void add_answer(ats_engine *e, const json_t *answer, struct agreement *a) {
    size_t n_prompt, n_written;
    int32_t *prompt = test_json_ids(test_json_get(answer, "prompt_ids"), &n_prompt);
    int32_t *written = test_json_ids(test_json_get(answer, "written_ids"), &n_written);
    const json_t *logprobs = test_json_get(answer, "logprobs");
    int width = agree_vocab(e);
    ats_session *s;
    TEST_OK(ats_session_open(e, &s));
    ats_run run = {s, prompt, n_prompt, ATS_WANT_LAST, NULL};
    for (size_t i = 0; i < n_written; i++) {
        TEST_OK(ats_eval(e, &run, 1));
        const float *row = ats_session_logits(s);
        int32_t best = agree_argmax(row, width);
        a->n++;
        const json_t *top = json_array_get(test_json_get(answer, "top_logprobs"), i);
        bool tie =
            json_number_value(json_array_get(top, 0)) - json_number_value(json_array_get(top, 1)) <
            a->tie;
        a->n_ties += tie;
        a->n_equal += !tie && best == written[i];
        a->n_far += row[best] - row[written[i]] > 1;
        a->nll += agree_nll(row, width, written[i]);
        a->peer_nll -= json_number_value(json_array_get(logprobs, i));
        run = (ats_run){s, &written[i], 1, ATS_WANT_LAST, NULL};
    }
    ats_session_close(s);
    free(prompt), free(written);
}

void agree_with_peer(ats_engine *e, const char *fixture, size_t n, double tie) {
    json_t *peer = test_fixture(fixture);
    const json_t *answers = test_json_get(peer, "prompts");
    struct agreement a = {.tie = tie};
    assert_true(n <= json_array_size(answers));
    for (size_t i = 0; i < n; i++)
        add_answer(e, json_array_get(answers, i), &a);
    int n_clear = a.n - a.n_ties;
    print_message("top-1 equal %d of %d, far %d, NLL %.4f, the peer's %.4f\n", a.n_equal, n_clear,
                  a.n_far, a.nll / a.n, a.peer_nll / a.n);
    assert_int_equal(a.n, 128 * n);
    assert_true(n_clear >= 0.9 * a.n);
    assert_true(a.n_equal >= 0.97 * n_clear);
    assert_int_equal(a.n_far, 0);
    assert_true(fabs(a.nll - a.peer_nll) / a.n <= 0.01);
    json_decref(peer);
}
