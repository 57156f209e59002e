#include "agree.h"

#include "base/arena.h"

ats_options agree_options(const char *model_path) {
    ats_options o;
    ats_options_default(&o);
    o.model = model_path;
    o.n_ctx = 256;
    o.math = ATS_MATH_F32;
    o.kv_k = o.kv_v = ATS_KV_F32;
    o.n_threads = o.n_threads_batch = 2;
    return o;
}

ats_engine *agree_open(const ats_options *options) {
    ats_engine *e;
    TEST_OK(ats_engine_open(options, &e));
    return e;
}

int agree_vocab(const ats_engine *e) {
    ats_info info;
    ats_engine_info(e, &info);
    return info.n_vocab;
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
