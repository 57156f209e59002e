#include "made.h"

#include <math.h>
#include <stdio.h>
#include "base/rng.h"
#include "support.h"

void made_vocabulary(struct gguf_writer *w, int n) {
    struct gguf_str *tokens = calloc((size_t)n, sizeof *tokens);
    char *text = calloc((size_t)n, 16);
    for (int i = 0; i < n; i++) {
        tokens[i].data = text + (size_t)i * 16;
        tokens[i].n = (size_t)snprintf(text + (size_t)i * 16, 16, "t%d", i);
    }
    static const struct gguf_str merge = {"t 0", 3};
    gguf_put_str(w, "tokenizer.ggml.model", "gpt2");
    gguf_put_str(w, "tokenizer.ggml.pre", "qwen2");
    gguf_put_strs(w, "tokenizer.ggml.tokens", tokens, (size_t)n);
    gguf_put_strs(w, "tokenizer.ggml.merges", &merge, 1);
    gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 1);
    free(tokens), free(text);
}

enum { N_EMBD = 256, N_VOCAB = 320, N_LAYERS = 1, HEAD_DIM = 32, N_KV_HEADS = 8, MAX_EXPERTS = 16 };
static const float eps = 1e-5F, freq_base = 10000;

struct shape {
    const char *name, *arch;
    int n_heads, n_ff, n_experts, n_used;
    bool norms, halves; /* of q and k; how rope pairs */
    /* Q, K and V; the output of attention, whose blocks must not cross KV heads; the rest */
    enum dtype qkv, o, gate, down, head;
};
static const struct shape shapes[N_MADE] = {
    {"40 heads over 8", "qwen3", 40, 1024, 0, 0, true, true, DTYPE_Q4_K, DTYPE_Q8_0, DTYPE_Q6_K,
     DTYPE_Q4_K, DTYPE_Q6_K},
    {"8 heads over 8", "llama", 8, 1024, 0, 0, false, false, DTYPE_Q5_1, DTYPE_Q5_0, DTYPE_Q4_K,
     DTYPE_Q6_K, DTYPE_Q4_K},
    {"16 experts", "qwen3moe", 16, 256, MAX_EXPERTS, 4, true, true, DTYPE_Q6_K, DTYPE_Q4_0,
     DTYPE_Q4_K, DTYPE_Q6_K, DTYPE_Q8_0},
};

const char *made_name(enum made_kind kind) {
    return shapes[kind].name;
}

/* ---- writing ---- */

struct maker {
    struct gguf_writer *w;
    bool data; /* the second pass, after all tensors are declared */
    struct rng rng;
};

static float random_float(struct rng *rng) {
    return (float)rng_below(rng, 1 << 24) / (1 << 23) - 1;
}

/* n_experts 0: a plain matrix; n_rows 1 and F32: a vector near 1. */
static void put(struct maker *m, const char *name, enum dtype type, int n_cols, int n_rows,
                int n_experts) {
    const int64_t dims[3] = {n_cols, n_rows, n_experts};
    if (!m->data) {
        gguf_put_tensor(m->w, name, type, n_experts ? 3 : n_rows > 1 ? 2 : 1, dims);
        return;
    }
    size_t bytes = (size_t)dtype_row_bytes(type, n_cols);
    float *row = malloc((size_t)n_cols * sizeof *row);
    void *blocks = malloc(bytes);
    for (int i = 0; i < n_rows * (n_experts ? n_experts : 1); i++) {
        for (int j = 0; j < n_cols; j++) {
            float x = random_float(&m->rng);
            row[j] = n_rows == 1 ? 1 + 0.2F * x : 1.7F * x / sqrtf((float)n_cols);
        }
        dtype_from_float(type, row, blocks, n_cols);
        TEST_OK(gguf_writer_data(m->w, blocks, bytes));
    }
    free(row), free(blocks);
}

static void put_in(struct maker *m, int layer, const char *name, enum dtype type, int n_cols,
                   int n_rows, int n_experts) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    put(m, full, type, n_cols, n_rows, n_experts);
}

static void put_layer(struct maker *m, const struct shape *s, int i) {
    const int n_q = s->n_heads * HEAD_DIM, n_kv = N_KV_HEADS * HEAD_DIM, n_e = s->n_experts;
    put_in(m, i, "attn_norm", DTYPE_F32, N_EMBD, 1, 0);
    put_in(m, i, "attn_q", s->qkv, N_EMBD, n_q, 0);
    put_in(m, i, "attn_k", s->qkv, N_EMBD, n_kv, 0);
    put_in(m, i, "attn_v", s->qkv, N_EMBD, n_kv, 0);
    if (s->norms) {
        put_in(m, i, "attn_q_norm", DTYPE_F32, HEAD_DIM, 1, 0);
        put_in(m, i, "attn_k_norm", DTYPE_F32, HEAD_DIM, 1, 0);
    }
    put_in(m, i, "attn_output", s->o, n_q, N_EMBD, 0);
    put_in(m, i, "ffn_norm", DTYPE_F32, N_EMBD, 1, 0);
    if (n_e) put_in(m, i, "ffn_gate_inp", DTYPE_F32, N_EMBD, n_e, 0);
    put_in(m, i, n_e ? "ffn_gate_exps" : "ffn_gate", s->gate, N_EMBD, s->n_ff, n_e);
    put_in(m, i, n_e ? "ffn_up_exps" : "ffn_up", s->gate, N_EMBD, s->n_ff, n_e);
    put_in(m, i, n_e ? "ffn_down_exps" : "ffn_down", s->down, s->n_ff, N_EMBD, n_e);
}

static void put_tensors(struct maker *m, const struct shape *s) {
    put(m, "token_embd.weight", s->head, N_EMBD, N_VOCAB, 0);
    for (int i = 0; i < N_LAYERS; i++)
        put_layer(m, s, i);
    put(m, "output_norm.weight", DTYPE_F32, N_EMBD, 1, 0);
    put(m, "output.weight", s->head, N_EMBD, N_VOCAB, 0);
}

static void put_key(struct gguf_writer *w, const struct shape *s, const char *key, int value) {
    char full[64];
    snprintf(full, sizeof full, "%s.%s", s->arch, key);
    gguf_put_u32(w, full, (uint32_t)value);
}

static void put_keys(struct gguf_writer *w, const struct shape *s) {
    char key[64];
    gguf_put_str(w, "general.architecture", s->arch);
    put_key(w, s, "context_length", 1024);
    put_key(w, s, "embedding_length", N_EMBD);
    put_key(w, s, "block_count", N_LAYERS);
    put_key(w, s, "feed_forward_length", s->n_ff);
    put_key(w, s, "attention.head_count", s->n_heads);
    put_key(w, s, "attention.head_count_kv", N_KV_HEADS);
    put_key(w, s, "attention.key_length", HEAD_DIM);
    put_key(w, s, "attention.value_length", HEAD_DIM);
    put_key(w, s, "rope.dimension_count", HEAD_DIM);
    if (s->n_experts) {
        put_key(w, s, "expert_count", s->n_experts);
        put_key(w, s, "expert_used_count", s->n_used);
        put_key(w, s, "expert_feed_forward_length", s->n_ff);
    }
    snprintf(key, sizeof key, "%s.attention.layer_norm_rms_epsilon", s->arch);
    gguf_put_f32(w, key, eps);
    snprintf(key, sizeof key, "%s.rope.freq_base", s->arch);
    gguf_put_f32(w, key, freq_base);
    made_vocabulary(w, N_VOCAB);
}

void made_write(enum made_kind kind, char *path, size_t n_path) {
    const struct shape *s = &shapes[kind];
    struct maker m = {.w = gguf_writer_open()};
    char name[32];
    snprintf(name, sizeof name, "made-%d.gguf", kind);
    test_tmp_path(path, n_path, name);
    rng_seed(&m.rng, 11 + (uint64_t)kind);
    put_keys(m.w, s);
    put_tensors(&m, s);
    TEST_OK(gguf_writer_begin(m.w, path));
    m.data = true;
    put_tensors(&m, s);
    TEST_OK(gguf_writer_end(m.w));
    gguf_writer_close(m.w);
}

/* ---- its logits ---- */

/* All of one matrix, or of expert `matrix`; owned. */
static float *weight_of(const struct gguf *g, const char *name, int matrix) {
    const struct gguf_tensor *t;
    TEST_OK(gguf_tensor_get(g, name, &t));
    int64_t n = t->dims[0] * (t->n_dims > 1 ? t->dims[1] : 1);
    float *out = malloc((size_t)n * sizeof *out);
    dtype_to_float(t->dtype, t->data + matrix * dtype_row_bytes(t->dtype, n), out, n);
    return out;
}

static float *layer_weight(const struct gguf *g, int layer, const char *name, int matrix) {
    char full[64];
    snprintf(full, sizeof full, "blk.%d.%s.weight", layer, name);
    return weight_of(g, full, matrix);
}

/* out (n_rows) = w (n_rows, n_cols) x */
static void multiply(const float *w, const double *x, int n_cols, int n_rows, double *out) {
    for (int i = 0; i < n_rows; i++) {
        double sum = 0;
        for (int j = 0; j < n_cols; j++)
            sum += (double)w[(size_t)i * (size_t)n_cols + (size_t)j] * x[j];
        out[i] = sum;
    }
}

static void normalise(const float *w, const double *x, int n, double *out) {
    double squares = 0;
    for (int i = 0; i < n; i++)
        squares += x[i] * x[i];
    double scale = 1 / sqrt(squares / n + (double)eps);
    for (int i = 0; i < n; i++)
        out[i] = x[i] * scale * (double)w[i];
}

static void rotate(double *head, size_t position, bool halves) {
    for (int i = 0; i < HEAD_DIM / 2; i++) {
        double angle = (double)position * pow((double)freq_base, -2.0 * i / HEAD_DIM);
        double *a = &head[halves ? i : 2 * i], *b = &head[halves ? i + HEAD_DIM / 2 : 2 * i + 1];
        double x = *a, y = *b;
        *a = x * cos(angle) - y * sin(angle);
        *b = x * sin(angle) + y * cos(angle);
    }
}

/* The same weight for each token: x (n, n_cols) -> owned (n, n_rows). */
static double *product(const struct gguf *g, int layer, const char *name, const double *x, size_t n,
                       int n_cols, int n_rows) {
    float *w = layer_weight(g, layer, name, 0);
    double *out = calloc(n * (size_t)n_rows, sizeof *out);
    for (size_t t = 0; t < n; t++)
        multiply(w, x + t * (size_t)n_cols, n_cols, n_rows, out + t * (size_t)n_rows);
    free(w);
    return out;
}

static double *normalised(const struct gguf *g, int layer, const char *name, const double *x,
                          size_t n) {
    float *w = layer_weight(g, layer, name, 0);
    double *out = malloc(n * N_EMBD * sizeof *out);
    for (size_t t = 0; t < n; t++)
        normalise(w, x + t * N_EMBD, N_EMBD, out + t * N_EMBD);
    free(w);
    return out;
}

/* Norm and rotation of the heads of q or k. */
static void turn_heads(const struct gguf *g, const struct shape *s, int layer, const char *norm,
                       double *x, size_t n, int n_heads) {
    float *w = s->norms ? layer_weight(g, layer, norm, 0) : NULL;
    for (size_t t = 0; t < n; t++)
        for (int h = 0; h < n_heads; h++) {
            double *head = x + (t * (size_t)n_heads + (size_t)h) * HEAD_DIM;
            if (w) normalise(w, head, HEAD_DIM, head);
            rotate(head, t, s->halves);
        }
    free(w);
}

/* Head h of token t: causal softmax over the keys of its KV head. */
static void attend(const struct shape *s, const double *q, const double *k, const double *v,
                   size_t t, int h, double *out) {
    size_t kv = (size_t)(h / (s->n_heads / N_KV_HEADS));
    const double *query = q + (t * (size_t)s->n_heads + (size_t)h) * HEAD_DIM;
    double *scores = malloc((t + 1) * sizeof *scores), max = -(double)INFINITY, sum = 0;
    for (size_t p = 0; p <= t; p++) {
        const double *key = k + (p * N_KV_HEADS + kv) * HEAD_DIM;
        scores[p] = 0;
        for (int i = 0; i < HEAD_DIM; i++)
            scores[p] += query[i] * key[i] / sqrt(HEAD_DIM);
        max = fmax(max, scores[p]);
    }
    memset(out, 0, HEAD_DIM * sizeof *out);
    for (size_t p = 0; p <= t; p++) {
        double weight = exp(scores[p] - max);
        sum += weight;
        for (int i = 0; i < HEAD_DIM; i++)
            out[i] += weight * v[(p * N_KV_HEADS + kv) * HEAD_DIM + (size_t)i];
    }
    for (int i = 0; i < HEAD_DIM; i++)
        out[i] /= sum;
    free(scores);
}

static void add_attention(const struct gguf *g, const struct shape *s, int layer, double *x,
                          size_t n) {
    const int n_q = s->n_heads * HEAD_DIM, n_kv = N_KV_HEADS * HEAD_DIM;
    double *in = normalised(g, layer, "attn_norm", x, n);
    double *q = product(g, layer, "attn_q", in, n, N_EMBD, n_q);
    double *k = product(g, layer, "attn_k", in, n, N_EMBD, n_kv);
    double *v = product(g, layer, "attn_v", in, n, N_EMBD, n_kv);
    turn_heads(g, s, layer, "attn_q_norm", q, n, s->n_heads);
    turn_heads(g, s, layer, "attn_k_norm", k, n, N_KV_HEADS);
    double *heads = calloc(n * (size_t)n_q, sizeof *heads);
    for (size_t t = 0; t < n; t++)
        for (int h = 0; h < s->n_heads; h++)
            attend(s, q, k, v, t, h, heads + t * (size_t)n_q + (size_t)h * HEAD_DIM);
    double *out = product(g, layer, "attn_output", heads, n, n_q, N_EMBD);
    for (size_t i = 0; i < n * N_EMBD; i++)
        x[i] += out[i];
    free(in), free(q), free(k), free(v), free(heads), free(out);
}

/* weight (n) * down(silu(gate x) * up x) is added to out, where weight is not 0. */
static void add_feed_forward(const struct gguf *g, const struct shape *s, int layer, int expert,
                             const double *in, const double *weight, size_t n, double *out) {
    const char *suffix = s->n_experts ? "_exps" : "";
    const char *const names[] = {"ffn_gate", "ffn_up", "ffn_down"};
    float *w[3];
    double up[1024], act[1024], down[N_EMBD];
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "%s%s", names[i], suffix);
        w[i] = layer_weight(g, layer, name, expert);
    }
    for (size_t t = 0; t < n; t++) {
        if (weight[t] == 0) continue;
        multiply(w[0], in + t * N_EMBD, N_EMBD, s->n_ff, act);
        multiply(w[1], in + t * N_EMBD, N_EMBD, s->n_ff, up);
        for (int i = 0; i < s->n_ff; i++)
            act[i] = act[i] / (1 + exp(-act[i])) * up[i];
        multiply(w[2], act, s->n_ff, N_EMBD, down);
        for (int i = 0; i < N_EMBD; i++)
            out[t * N_EMBD + (size_t)i] += weight[t] * down[i];
    }
    for (int i = 0; i < 3; i++)
        free(w[i]);
}

/* weights (n_experts, n): of the n_used best by softmax, their sum 1. */
static void route(const struct shape *s, const double *scores, size_t n, double *weights) {
    memset(weights, 0, n * (size_t)s->n_experts * sizeof *weights);
    for (size_t t = 0; t < n; t++) {
        double sum = 0, last = 0;
        for (int i = 0; i <= s->n_used; i++) {
            int best = -1;
            for (int e = 0; e < s->n_experts; e++) {
                bool taken = weights[(size_t)e * n + t] != 0;
                if (!taken && (best < 0 || scores[t * (size_t)s->n_experts + (size_t)e] >
                                               scores[t * (size_t)s->n_experts + (size_t)best]))
                    best = e;
            }
            double score = scores[t * (size_t)s->n_experts + (size_t)best];
            if (i == s->n_used) /* rounding must not choose another one */
                assert_true(last - score > 1e-4);
            else
                sum += weights[(size_t)best * n + t] = exp(score);
            last = score;
        }
        for (int e = 0; e < s->n_experts; e++)
            weights[(size_t)e * n + t] /= sum;
    }
}

static void add_ffn(const struct gguf *g, const struct shape *s, int layer, double *x, size_t n) {
    double *in = normalised(g, layer, "ffn_norm", x, n);
    int n_experts = s->n_experts ? s->n_experts : 1;
    double *weights = malloc(n * (size_t)n_experts * sizeof *weights);
    if (s->n_experts) {
        double *scores = product(g, layer, "ffn_gate_inp", in, n, N_EMBD, n_experts);
        route(s, scores, n, weights);
        free(scores);
    } else {
        for (size_t t = 0; t < n; t++)
            weights[t] = 1;
    }
    for (int e = 0; e < n_experts; e++)
        add_feed_forward(g, s, layer, e, in, weights + (size_t)e * n, n, x);
    free(in), free(weights);
}

static const struct shape *shape_of(const struct gguf *g) {
    struct gguf_str arch;
    TEST_OK(gguf_get_str(g, "general.architecture", &arch));
    for (int i = 0; i < N_MADE; i++)
        if (strlen(shapes[i].arch) == arch.n && !memcmp(arch.data, shapes[i].arch, arch.n))
            return &shapes[i];
    fail_msg("not a made model");
    return NULL;
}

float *made_logits(const char *path, const int32_t *ids, size_t n) {
    struct gguf *g;
    TEST_OK(gguf_open(path, &g));
    const struct shape *s = shape_of(g);
    float *embedding = weight_of(g, "token_embd.weight", 0);
    double *x = calloc(n * N_EMBD, sizeof *x), row[N_EMBD], logits[N_VOCAB];
    for (size_t t = 0; t < n; t++)
        for (size_t i = 0; i < N_EMBD; i++)
            x[t * N_EMBD + i] = (double)embedding[(size_t)ids[t] * N_EMBD + i];
    free(embedding);
    for (int layer = 0; layer < N_LAYERS; layer++) {
        add_attention(g, s, layer, x, n);
        add_ffn(g, s, layer, x, n);
    }
    float *norm = weight_of(g, "output_norm.weight", 0), *head = weight_of(g, "output.weight", 0);
    float *out = malloc(n * N_VOCAB * sizeof *out);
    for (size_t t = 0; t < n; t++) {
        normalise(norm, x + t * N_EMBD, N_EMBD, row);
        multiply(head, row, N_EMBD, N_VOCAB, logits);
        for (size_t i = 0; i < N_VOCAB; i++)
            out[t * N_VOCAB + i] = (float)logits[i];
    }
    free(x), free(norm), free(head);
    gguf_close(g);
    return out;
}
