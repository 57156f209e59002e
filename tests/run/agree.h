/* What the agreement tests share: opening an engine on an oracle and evaluating ids in pieces.
 * Everything fails the running test by itself. */
#pragma once

#include "atsinfer.h"
#include "base/buf.h"
#include "model/gguf_write.h"
#include "support.h"

/* Options of a comparison: f32 arithmetic and KV, a context of 256, two threads. */
ats_options agree_options(const char *model_path);
/* The same of the small llama (a vocabulary of 640); skips the test where oracles are left out. */
ats_options agree_llama(void);
ats_engine *agree_open(const ats_options *options);
int agree_vocab(const ats_engine *e);
/* False, which is said: there is no Vulkan device to test, or (ATS_SHARED=none) no model for it. */
bool agree_has_vulkan(void);

/* What a copy of a model's file has in place of one of its tensors: at first the same. */
struct agree_tensor {
    char name[64];
    int64_t dims[GGUF_MAX_DIMS];
    enum dtype dtype;
    struct buf data; /* empty: the tensor's */
    int n_parts;     /* cut along the last axis into so many tensors, the last first; a '#' in the
                        name is a part's number. 0: whole */
};
/* How a copy differs. */
struct agree_change {
    const char *drop_keys[3];                             /* that contain one of these */
    void (*put)(struct gguf_writer *w, const void *user); /* adds keys */
    /* false: the copy has nothing in place of t */
    bool (*tensor)(const struct gguf *g, const struct gguf_tensor *t, struct agree_tensor *out);
    const void *user;
};
/* A `tensor` of a copy: each expert's matrix is a tensor of its own, as in old files. */
bool agree_split_experts(const struct gguf *g, const struct gguf_tensor *t,
                         struct agree_tensor *out);
void agree_copy(const char *from, const char *to, const struct agree_change *c);

/* Logits (n, n_vocab) of ids appended to a session in pieces of `chunk` (0: at once). Owned. */
float *agree_feed(ats_engine *e, ats_session *s, const int32_t *ids, size_t n, size_t chunk);
/* The same in a session of its own. */
float *agree_logits(ats_engine *e, const int32_t *ids, size_t n, size_t chunk);
/* n greedy tokens after ids, in a session of its own. */
void agree_greedy(ats_engine *e, const int32_t *ids, size_t n_ids, int32_t *out, size_t n);
/* Index of the largest element. */
int32_t agree_argmax(const float *row, int n);

/* What plans are held to: n ids of a fixed stream go to `ids`; their logits by the reference
 * kernels on one device, (n, n_vocab), owned. */
float *agree_plain(const char *model_path, int32_t *ids, size_t n);

/* Minus the log-probability of a token, by a row of n logits. */
double agree_nll(const float *row, int n, int32_t token);
/* Teacher-forced along what a peer wrote greedily (tests/fixtures/README.md), its first n answers:
 * the likeliest token is the peer's at 97 % of places, never more than 1.0 ahead of it, and the
 * mean NLL within 0.01. Places where the peer's own best two are less than `tie` apart (at most a
 * tenth of all) do not count for the first. */
void agree_with_peer(ats_engine *e, const char *fixture, size_t n, double tie);
