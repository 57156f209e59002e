/* Opening a model: facts and weights of good files; every way in which a file can lack or twist
 * what its architecture needs is refused by name (R40). Files are variants of the oracles. */
#include "model/gguf_write.h"
#include "model/model.h"
#include "support.h"

#include <math.h>

/* ---- variants ---- */

/* What is changed on the way from an oracle's file to a variant in memory. */
struct change {
    const char *drop_key, *drop_tensor;
    const char *u32_key; /* set to u32, added if it is not there */
    uint32_t u32;
    const char *f32_key;
    float f32;
    const char *str_key, *str;
    const char *reshape; /* a tensor whose dims become these; its data is what fits, then zeros */
    int64_t dims[2];
    const char *retype; /* a tensor of F16 or F32 whose type becomes this */
    enum dtype dtype;
    const char *rename, *name;
    const char *extra; /* another tensor: F32, of 8 */
};

struct variant {
    struct buf bytes;
    struct gguf *g;
    struct model *m;
};

static bool is(const char *a, const char *b) {
    return a && strcmp(a, b) == 0;
}

static void put_keys(struct gguf_writer *w, const struct gguf *g, const struct change *c) {
    for (int i = 0; i < g->n_kvs; i++) {
        const char *key = g->kvs[i].key;
        if (strncmp(key, "split.", 6) == 0 || is(c->drop_key, key) || is(c->u32_key, key) ||
            is(c->f32_key, key) || is(c->str_key, key))
            continue;
        gguf_put_kv(w, &g->kvs[i]);
    }
    if (c->u32_key) gguf_put_u32(w, c->u32_key, c->u32);
    if (c->f32_key) gguf_put_f32(w, c->f32_key, c->f32);
    if (c->str_key) gguf_put_str(w, c->str_key, c->str);
}

/* The tensor's declaration as changed. */
static struct gguf_tensor changed(const struct gguf_tensor *t, const struct change *c) {
    struct gguf_tensor n = *t;
    if (is(c->rename, t->name)) n.name = c->name;
    if (is(c->retype, t->name)) n.dtype = c->dtype;
    if (is(c->reshape, t->name)) {
        n.n_dims = 2;
        memcpy(n.dims, c->dims, sizeof c->dims);
    }
    n.n_bytes = dtype_row_bytes(n.dtype, n.dims[0]) * n.dims[1] * n.dims[2] * n.dims[3];
    return n;
}

static void put_data(struct gguf_writer *w, const struct gguf *g, const struct change *c) {
    for (int i = 0; i < g->n_tensors; i++) {
        const struct gguf_tensor *t = &g->tensors[i];
        if (is(c->drop_tensor, t->name)) continue;
        struct gguf_tensor n = changed(t, c);
        uint8_t *data = calloc(1, (size_t)n.n_bytes);
        memcpy(data, t->data, (size_t)min_i64(t->n_bytes, n.n_bytes));
        TEST_OK(gguf_writer_data(w, data, (size_t)n.n_bytes));
        free(data);
    }
    if (c->extra) TEST_OK(gguf_writer_data(w, (float[8]){0}, 32));
}

static void write_variant(const struct gguf *g, const struct change *c, struct buf *out) {
    struct gguf_writer *w = gguf_writer_open();
    put_keys(w, g, c);
    for (int i = 0; i < g->n_tensors; i++) {
        if (is(c->drop_tensor, g->tensors[i].name)) continue;
        struct gguf_tensor n = changed(&g->tensors[i], c);
        gguf_put_tensor(w, n.name, n.dtype, n.n_dims, n.dims);
    }
    if (c->extra) gguf_put_tensor(w, c->extra, DTYPE_F32, 1, (int64_t[]){8});
    TEST_OK(gguf_writer_begin_memory(w, out));
    put_data(w, g, c);
    TEST_OK(gguf_writer_end(w));
    gguf_writer_close(w);
}

static const struct model_options plain = {.math = MATH_F32, .row_group = 1};

/* Opens a variant of an oracle as a model. False only where oracles are left out. */
static bool open_variant(const char *oracle, const struct change *c,
                         const struct model_options *options, struct variant *v,
                         ats_status *status) {
    char path[512];
    struct gguf *g;
    memset(v, 0, sizeof *v);
    if (!test_shared_path(path, sizeof path, oracle)) return false;
    TEST_OK(gguf_open(path, &g));
    write_variant(g, c, &v->bytes);
    gguf_close(g);
    TEST_OK(gguf_open_memory(v->bytes.data, v->bytes.len, &v->g));
    *status = model_open(v->g, options, &v->m);
    assert_int_equal(v->m == NULL, *status != ATS_OK);
    return true;
}

static void close_variant(struct variant *v) {
    model_close(v->m);
    gguf_close(v->g);
    buf_free(&v->bytes);
}

#define LLAMA    "models/llama/llama-f16.gguf"
#define QWEN2    "models/qwen2/qwen2-f32.gguf"
#define QWEN3    "models/qwen3/qwen3-f16.gguf"
#define QWEN3MOE "models/qwen3moe/qwen3moe-f32.gguf"
#define MIXTRAL  "models/mixtral/mixtral-f32.gguf"
#define PHI3     "models/phi3/phi3-f32.gguf"
#define GLM4     "models/glm4/glm4-f32.gguf"
#define GEMMA3   "models/gemma3/gemma3-f16.gguf"
#define GPTOSS   "models/gptoss/gptoss-mxfp4.gguf"
#define GLM4MOE  "models/glm4moe/glm4moe-f32.gguf"
#define LLAMA4   "models/llama4/llama4-f32.gguf"
#define QWEN35   "models/qwen35/qwen35-f16.gguf"
#define QWEN35M  "models/qwen35moe/qwen35moe-mtp-f16.gguf"

/* The variant is refused with this status and a text that contains `part`. False: no oracles. */
static bool refused(const char *oracle, struct change c, ats_status want, const char *part) {
    struct variant v;
    ats_status status;
    if (!open_variant(oracle, &c, &plain, &v, &status)) return false;
    if (status != want || !strstr(error_text(), part))
        fail_msg("expected \"%s\" about \"%s\", got \"%s\": %s", ats_status_text(want), part,
                 ats_status_text(status), status == ATS_OK ? "" : error_text());
    close_variant(&v);
    return true;
}

static bool accepted(const char *oracle, struct change c) {
    struct variant v;
    ats_status status;
    if (!open_variant(oracle, &c, &plain, &v, &status)) return false;
    TEST_OK(status);
    close_variant(&v);
    return true;
}

/* ---- good files ---- */

static void an_unchanged_copy_opens_with_the_oracle_s_facts(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!open_variant(LLAMA, &(struct change){0}, &plain, &v, &status)) skip();
    TEST_OK(status);
    const struct hparams *hp = &v.m->hp;
    uint32_t u;
    TEST_OK(gguf_get_u32(v.g, ".block_count", &u));
    assert_int_equal(hp->n_layers, u);
    TEST_OK(gguf_get_u32(v.g, ".embedding_length", &u));
    assert_int_equal(hp->n_embd, u);
    assert_int_equal(hp->n_vocab, 640);
    assert_int_equal(v.m->graph->n_vocab, 640);
    assert_int_equal(v.m->graph->n_embd, hp->n_embd);
    assert_int_equal(v.m->graph->n_kv_layers, hp->n_layers);
    assert_int_equal(v.m->graph->n_blocks, 2 * hp->n_layers + 1);
    uint64_t n_params = 0, n_bytes = 0;
    for (int i = 0; i < v.g->n_tensors; i++) {
        n_params += (uint64_t)v.g->tensors[i].n_elements;
        n_bytes += (uint64_t)v.g->tensors[i].n_bytes;
    }
    assert_int_equal(v.m->n_params, n_params);
    assert_int_equal(v.m->weight_bytes, n_bytes);
    close_variant(&v);
}

static void every_weight_points_into_its_tensor(void **state) {
    (void)state;
    static const char *const oracles[] = {LLAMA, QWEN2, PHI3, QWEN3};
    for (size_t i = 0; i < COUNT_OF(oracles); i++) {
        struct variant v;
        ats_status status;
        if (!open_variant(oracles[i], &(struct change){0}, &plain, &v, &status)) skip();
        TEST_OK(status);
        const struct graph *g = v.m->graph;
        for (int j = 0; j < g->n_weights; j++) {
            const struct graph_weight *w = &g->weights[j];
            const struct gguf_tensor *t = &v.g->tensors[w->tensor];
            int64_t row_bytes;
            const uint8_t *data = model_weight_data(v.m, j, &row_bytes);
            assert_string_equal(w->name, t->name);
            assert_int_equal(w->dtype, t->dtype);
            assert_int_equal(row_bytes, t->row_bytes);
            assert_int_equal(w->n_cols, t->dims[0]);
            assert_true(data >= t->data);
            assert_true(data + row_bytes * w->n_rows <= t->data + t->n_bytes);
        }
        close_variant(&v);
    }
}

/* q, k and v of a fused matrix are its rows one after the other; gate and up halves of ffn_up. */
static void fused_tensors_become_ranges_of_rows(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!open_variant(PHI3, &(struct change){0}, &plain, &v, &status)) skip();
    TEST_OK(status);
    const struct graph *g = v.m->graph;
    const struct hparams *hp = &v.m->hp;
    int64_t qkv_next = 0, up_next = 0;
    for (int i = 0; i < g->n_weights; i++) {
        const struct graph_weight *w = &g->weights[i];
        if (strcmp(w->name, "blk.0.attn_qkv.weight") == 0) {
            assert_int_equal(w->row_begin, qkv_next);
            qkv_next += w->n_rows;
        }
        if (strcmp(w->name, "blk.0.ffn_up.weight") == 0) {
            assert_int_equal(w->row_begin, up_next);
            assert_int_equal(w->n_rows, hp->n_ff);
            up_next += w->n_rows;
        }
    }
    assert_int_equal(qkv_next, (hp->n_heads + 2 * hp->n_kv_heads) * hp->head_dim);
    assert_int_equal(up_next, 2 * hp->n_ff);
    close_variant(&v);
}

/* The order in which the CPU joins them into one pass. */
static void gate_up_and_their_product_are_neighbours(void **state) {
    (void)state;
    static const char *const oracles[] = {LLAMA, PHI3, GEMMA3, GLM4MOE};
    for (size_t i = 0; i < COUNT_OF(oracles); i++) {
        struct variant v;
        ats_status status;
        int n_found = 0;
        if (!open_variant(oracles[i], &(struct change){0}, &plain, &v, &status)) skip();
        TEST_OK(status);
        const struct graph *g = v.m->graph;
        for (int op = 0; op < g->n_ops; op++) {
            const struct graph_op *o = &g->ops[op];
            if (o->kind != OP_GATED) continue;
            assert_int_equal(g->values[o->in[0]].producer, op - 2);
            assert_int_equal(g->values[o->in[1]].producer, op - 1);
            n_found++;
        }
        assert_true(n_found > 0);
        close_variant(&v);
    }
}

static void a_tied_head_shares_the_embedding(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!open_variant(LLAMA, &(struct change){.drop_tensor = "output.weight"}, &plain, &v, &status))
        skip();
    TEST_OK(status);
    const struct graph *g = v.m->graph;
    const struct graph_op *head = &g->ops[g->values[g->logits].producer];
    assert_int_equal(head->weight, g->ops[0].weight);
    close_variant(&v);
}

static void the_class_of_products_follows_type_and_option(void **state) {
    (void)state;
    static const struct {
        const char *oracle;
        enum math asked, want;
    } cases[] = {
        {LLAMA, MATH_Q8, MATH_F32},
        {"models/quants/Q4_0.gguf", MATH_Q8, MATH_Q8},
        {"models/quants/Q4_0.gguf", MATH_F32, MATH_F32},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct variant v;
        ats_status status;
        struct model_options options = {.math = cases[i].asked, .row_group = 1};
        if (!open_variant(cases[i].oracle, &(struct change){0}, &options, &v, &status)) skip();
        TEST_OK(status);
        for (int j = 0; j < v.m->graph->n_ops; j++)
            if (v.m->graph->ops[j].kind == OP_MATMUL)
                assert_int_equal(v.m->graph->ops[j].p.matmul.math, cases[i].want);
        close_variant(&v);
    }
}

static void optional_keys_have_defaults(void **state) {
    (void)state;
    if (!accepted(LLAMA, (struct change){.drop_key = "llama.rope.freq_base"})) skip();
    accepted(LLAMA, (struct change){.drop_key = "llama.rope.dimension_count"});
    accepted(LLAMA, (struct change){.drop_key = "llama.attention.key_length"});
    accepted(LLAMA, (struct change){.drop_key = "llama.attention.value_length"});
    accepted(LLAMA, (struct change){.drop_key = "general.name"});
    /* where no layer is dense, nothing needs the width of one */
    accepted(QWEN35M, (struct change){.drop_key = "qwen35moe.feed_forward_length"});
    accepted(QWEN3MOE, (struct change){.drop_key = "qwen3moe.feed_forward_length"});
}

/* ---- keys ---- */

static bool is_all_experts(const char *arch) {
    return is(arch, "qwen3moe") || is(arch, "gpt-oss");
}

static void each_missing_key_is_named(void **state) {
    (void)state;
    static const char *const suffixes[] = {
        "block_count",          "embedding_length",    "context_length",
        "attention.head_count", "feed_forward_length", "attention.layer_norm_rms_epsilon",
    };
    static const struct {
        const char *oracle, *arch;
    } files[] = {{LLAMA, "llama"},       {QWEN2, "qwen2"},
                 {QWEN3, "qwen3"},       {PHI3, "phi3"},
                 {QWEN3MOE, "qwen3moe"}, {"models/smollm3/smollm3-f32.gguf", "smollm3"},
                 {GLM4, "glm4"},         {GEMMA3, "gemma3"},
                 {GPTOSS, "gpt-oss"},    {GLM4MOE, "glm4moe"},
                 {LLAMA4, "llama4"},     {QWEN35, "qwen35"}};
    for (size_t i = 0; i < COUNT_OF(files); i++)
        for (size_t j = 0; j < COUNT_OF(suffixes); j++) {
            char key[128];
            snprintf(key, sizeof key, "%s.%s", files[i].arch, suffixes[j]);
            if (strstr(key, "feed_forward") && is_all_experts(files[i].arch)) continue;
            if (!refused(files[i].oracle, (struct change){.drop_key = key}, ATS_BAD_FILE, key))
                skip();
        }
    refused(LLAMA, (struct change){.drop_key = "general.architecture"}, ATS_BAD_FILE,
            "general.architecture");
}

/* Fewer KV heads than heads: without the key there would be as many, and the tensors say no. */
static void a_missing_kv_head_count_is_noticed(void **state) {
    (void)state;
    if (!refused(LLAMA, (struct change){.drop_key = "llama.attention.head_count_kv"}, ATS_BAD_FILE,
                 "blk.0.attn_k.weight"))
        skip();
}

static void keys_of_the_wrong_type_are_named(void **state) {
    (void)state;
    static const char *const ints[] = {"llama.block_count", "llama.embedding_length",
                                       "llama.attention.head_count", "llama.context_length"};
    for (size_t i = 0; i < COUNT_OF(ints); i++) {
        if (!refused(LLAMA, (struct change){.f32_key = ints[i], .f32 = 4}, ATS_BAD_FILE, ints[i]))
            skip();
        refused(LLAMA, (struct change){.str_key = ints[i], .str = "4"}, ATS_BAD_FILE, ints[i]);
    }
    refused(LLAMA, (struct change){.u32_key = "llama.attention.layer_norm_rms_epsilon", .u32 = 0},
            ATS_BAD_FILE, "layer_norm_rms_epsilon");
}

static void keys_out_of_range_are_named(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
    } cases[] = {
        {"llama.block_count", 0},
        {"llama.block_count", 1u << 30},
        {"llama.embedding_length", 0},
        {"llama.embedding_length", UINT32_MAX},
        {"llama.feed_forward_length", 0},
        {"llama.context_length", 0},
        {"llama.attention.head_count", 0},
        {"llama.attention.head_count_kv", 0},
        {"llama.attention.key_length", 0},
        {"llama.rope.dimension_count", 3},
        {"llama.rope.dimension_count", 4096},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *name = strchr(cases[i].key, '.') + 1;
        if (!refused(LLAMA, (struct change){.u32_key = cases[i].key, .u32 = cases[i].value},
                     ATS_BAD_FILE, name))
            skip();
    }
    refused(LLAMA, (struct change){.u32_key = "llama.attention.head_count_kv", .u32 = 3},
            ATS_BAD_FILE, "key/value heads");
    static const float bad_eps[] = {-1e-5F, 1.5F};
    for (size_t i = 0; i < COUNT_OF(bad_eps); i++)
        refused(
            LLAMA,
            (struct change){.f32_key = "llama.attention.layer_norm_rms_epsilon", .f32 = bad_eps[i]},
            ATS_BAD_FILE, "layer_norm_rms_epsilon");
    static const float bad_base[] = {0, -10000, 1, INFINITY, NAN};
    for (size_t i = 0; i < COUNT_OF(bad_base); i++)
        refused(LLAMA, (struct change){.f32_key = "llama.rope.freq_base", .f32 = bad_base[i]},
                ATS_BAD_FILE, "rope.freq_base");
}

/* A count that differs from the tensors is caught by their shapes, never by luck. */
static void counts_that_the_tensors_contradict_are_refused(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!open_variant(LLAMA, &(struct change){0}, &plain, &v, &status)) skip();
    struct hparams hp = v.m->hp;
    close_variant(&v);
    refused(LLAMA,
            (struct change){.u32_key = "llama.block_count", .u32 = (uint32_t)hp.n_layers + 1},
            ATS_UNSUPPORTED, "attn_norm.weight is missing");
    refused(LLAMA,
            (struct change){.u32_key = "llama.block_count", .u32 = (uint32_t)hp.n_layers - 1},
            ATS_UNSUPPORTED, "left unread");
    refused(LLAMA,
            (struct change){.u32_key = "llama.embedding_length", .u32 = (uint32_t)hp.n_embd * 2},
            ATS_BAD_FILE, "token_embd.weight");
    refused(LLAMA,
            (struct change){.u32_key = "llama.feed_forward_length", .u32 = (uint32_t)hp.n_ff + 32},
            ATS_BAD_FILE, "ffn_gate.weight");
    refused(
        LLAMA,
        (struct change){.u32_key = "llama.attention.key_length", .u32 = (uint32_t)hp.head_dim * 2},
        ATS_UNSUPPORTED, "values");
}

static void unknown_architectures_are_refused(void **state) {
    (void)state;
    if (!refused(LLAMA, (struct change){.str_key = "general.architecture", .str = "llamma"},
                 ATS_UNSUPPORTED, "\"llamma\""))
        skip();
    /* known, but not this: the keys of the other name are not there */
    refused(LLAMA, (struct change){.str_key = "general.architecture", .str = "qwen2"}, ATS_BAD_FILE,
            "qwen2.block_count");
    refused(LLAMA, (struct change){.u32_key = "llama.expert_count", .u32 = 8}, ATS_BAD_FILE,
            "llama.expert_used_count");
}

static void rope_scaling_is_checked(void **state) {
    (void)state;
    if (!refused(LLAMA, (struct change){.str_key = "llama.rope.scaling.type", .str = "dynamic"},
                 ATS_UNSUPPORTED, "\"dynamic\""))
        skip();
    static const float bad[] = {0, -2};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        refused(LLAMA, (struct change){.f32_key = "llama.rope.scaling.factor", .f32 = bad[i]},
                ATS_BAD_FILE, "rope.scaling");
    refused(PHI3, (struct change){.drop_tensor = "rope_factors_short.weight"}, ATS_UNSUPPORTED,
            "rope_factors_short.weight");
    refused(PHI3, (struct change){.drop_tensor = "rope_factors_long.weight"}, ATS_UNSUPPORTED,
            "rope_factors_long.weight");
    refused(LLAMA, (struct change){.reshape = "rope_freqs.weight", .dims = {2, 1}}, ATS_BAD_FILE,
            "rope_freqs.weight");
}

static void keys_of_windows_and_caps_are_checked(void **state) {
    (void)state;
    if (!refused(GEMMA3, (struct change){.drop_key = "gemma3.attention.sliding_window"},
                 ATS_BAD_FILE, "sliding_window"))
        skip();
    refused(GEMMA3, (struct change){.u32_key = "gemma3.attention.sliding_window_pattern"},
            ATS_BAD_FILE, "sliding_window_pattern");
    refused(GEMMA3, (struct change){.f32_key = "gemma3.rope.freq_base_swa", .f32 = 1}, ATS_BAD_FILE,
            "freq_base_swa");
    refused(GEMMA3, (struct change){.f32_key = "gemma3.attn_logit_softcapping", .f32 = 50},
            ATS_UNSUPPORTED, "attn_logit_softcapping is 50");
    refused(LLAMA, (struct change){.f32_key = "llama.final_logit_softcapping", .f32 = 30},
            ATS_UNSUPPORTED, "final_logit_softcapping is 30");
    accepted(GEMMA3, (struct change){.f32_key = "gemma3.final_logit_softcapping", .f32 = 0});
}

/* Five layers with a window and the local rotary embedding, then one without; tanh GELU. */
static void gemma_s_layers_alternate(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!open_variant(GEMMA3, &(struct change){0}, &plain, &v, &status)) skip();
    TEST_OK(status);
    const struct graph *g = v.m->graph;
    float second[2] = {0, 0}; /* frequency of the second pair: full, local */
    for (int i = 0; i < g->n_ops; i++) {
        const struct graph_op *op = &g->ops[i];
        bool full = op->layer == 5;
        if (op->kind == OP_ATTENTION) assert_int_equal(op->p.attention.window, full ? 0 : 8);
        if (op->kind == OP_GATED) assert_int_equal(op->p.gated.act, ACT_GELU);
        if (op->kind == OP_ROPE) second[full ? 0 : 1] = op->p.rope.inv_freq[1];
    }
    assert_true(fabsf(second[0] - powf(1e6F, -2.0F / 32) / 8) < 1e-6F);
    assert_true(fabsf(second[1] - powf(1e4F, -2.0F / 32)) < 1e-6F);
    close_variant(&v);
}

static void expert_keys_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        const char *word;
    } bad[] = {
        {"qwen3moe.expert_used_count", 0, "expert_used_count is 0, expected 1 to 8"},
        {"qwen3moe.expert_used_count", 9, "expert_used_count is 9, expected 1 to 8"},
        {"qwen3moe.expert_count", 5000, "expert_count is 5000"},
        {"qwen3moe.expert_count", 7, "ffn_gate_inp.weight is 8 x"},
        {"qwen3moe.expert_feed_forward_length", 0, "expert_feed_forward_length is 0"},
        {"qwen3moe.expert_feed_forward_length", 33, "ffn_gate_exps.weight is 8 x 32 x 64"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        if (!refused(QWEN3MOE, (struct change){.u32_key = bad[i].key, .u32 = bad[i].value},
                     ATS_BAD_FILE, bad[i].word))
            skip();
    refused(QWEN3MOE, (struct change){.u32_key = "qwen3moe.expert_count"}, ATS_UNSUPPORTED,
            "ffn_gate.weight is missing");
    refused(QWEN3MOE, (struct change){.drop_key = "qwen3moe.expert_used_count"}, ATS_BAD_FILE,
            "expert_used_count");
}

static void keys_of_routing_are_checked(void **state) {
    (void)state;
    if (!refused(GLM4MOE, (struct change){.u32_key = "glm4moe.expert_group_count", .u32 = 2},
                 ATS_UNSUPPORTED, "expert_group_count is 2"))
        skip();
    refused(GLM4MOE, (struct change){.u32_key = "glm4moe.expert_gating_func", .u32 = 4},
            ATS_UNSUPPORTED, "expert_gating_func is 4");
    refused(GLM4MOE, (struct change){.u32_key = "glm4moe.leading_dense_block_count", .u32 = 2},
            ATS_UNSUPPORTED, "blk.1.ffn_gate.weight is missing");
    refused(GLM4MOE, (struct change){.u32_key = "glm4moe.leading_dense_block_count"},
            ATS_UNSUPPORTED, "blk.0.ffn_gate_inp.weight is missing");
    refused(GLM4MOE, (struct change){.u32_key = "glm4moe.expert_shared_count", .u32 = 2},
            ATS_BAD_FILE, "blk.1.ffn_gate_shexp.weight is 32 x 64, expected 64 x 64");
    refused(LLAMA4, (struct change){.u32_key = "llama4.interleave_moe_layer_step", .u32 = 0},
            ATS_BAD_FILE, "interleave_moe_layer_step is 0");
    refused(LLAMA4, (struct change){.u32_key = "llama4.interleave_moe_layer_step", .u32 = 1},
            ATS_UNSUPPORTED, "blk.0.ffn_gate_inp.weight is missing");
    static const char *const moes[][2] = {{GPTOSS, "gpt-oss.expert_count"},
                                          {GLM4MOE, "glm4moe.expert_count"},
                                          {LLAMA4, "llama4.expert_count"}};
    for (size_t i = 0; i < COUNT_OF(moes); i++)
        refused(moes[i][0], (struct change){.u32_key = moes[i][1]}, ATS_UNSUPPORTED,
                "without experts");
}

/* The last block may predict further tokens: it is not part of the model, nor left unread. */
static void layers_of_further_tokens_are_left_out(void **state) {
    (void)state;
    struct variant whole, v;
    ats_status status;
    if (!open_variant(GLM4MOE, &(struct change){0}, &plain, &whole, &status)) skip();
    TEST_OK(status);
    struct change c = {.u32_key = "glm4moe.nextn_predict_layers", .u32 = 1};
    open_variant(GLM4MOE, &c, &plain, &v, &status);
    TEST_OK(status);
    assert_int_equal(v.m->hp.n_layers, whole.m->hp.n_layers - 1);
    uint64_t n_params = 0;
    for (int i = 0; i < whole.g->n_tensors; i++)
        if (strncmp(whole.g->tensors[i].name, "blk.2.", 6) == 0)
            n_params += (uint64_t)whole.g->tensors[i].n_elements;
    assert_int_equal(v.m->n_params, whole.m->n_params - n_params);
    close_variant(&v);
    close_variant(&whole);
    refused(GLM4MOE, (struct change){.u32_key = "glm4moe.nextn_predict_layers", .u32 = 3},
            ATS_BAD_FILE, "nextn_predict_layers is 3, of 3 layers");
    c.extra = "blk.3.attn_norm.weight";
    refused(GLM4MOE, c, ATS_UNSUPPORTED, "blk.3.attn_norm.weight");
}

/* What only the graph shows, as the oracle's prompts do not reach it. */
static void llama4_s_layers_alternate(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!open_variant(LLAMA4, &(struct change){0}, &plain, &v, &status)) skip();
    TEST_OK(status);
    const struct graph *g = v.m->graph;
    for (int i = 0; i < g->n_ops; i++) {
        const struct attention_params *p = &g->ops[i].p.attention;
        bool full = g->ops[i].layer == 3;
        if (g->ops[i].kind == OP_ROPE) assert_false(full);
        if (g->ops[i].kind != OP_ATTENTION) continue;
        assert_int_equal(p->chunk, full ? 0 : 8192);
        assert_int_equal(p->temp_length, full ? 8192 : 0);
        assert_true(p->temp_scale >= (full ? 0.1F : 0) && p->temp_scale <= (full ? 0.1F : 0));
    }
    close_variant(&v);
}

/* Of the delta net, each by its name; what they say together must fit. */
static void keys_of_recurrent_layers_are_checked(void **state) {
    (void)state;
    static const char *const needed[] = {"qwen35.ssm.conv_kernel", "qwen35.ssm.state_size",
                                         "qwen35.ssm.group_count", "qwen35.ssm.time_step_rank",
                                         "qwen35.ssm.inner_size"};
    for (size_t i = 0; i < COUNT_OF(needed); i++) {
        if (!refused(QWEN35, (struct change){.drop_key = needed[i]}, ATS_BAD_FILE, needed[i]))
            skip();
        refused(QWEN35, (struct change){.u32_key = needed[i], .u32 = 0}, ATS_BAD_FILE, needed[i]);
        refused(QWEN35, (struct change){.u32_key = needed[i], .u32 = UINT32_MAX}, ATS_BAD_FILE,
                needed[i]);
    }
    refused(QWEN35, (struct change){.u32_key = "qwen35.ssm.group_count", .u32 = 3}, ATS_BAD_FILE,
            "do not fit");
    refused(QWEN35, (struct change){.u32_key = "qwen35.ssm.conv_kernel", .u32 = 3}, ATS_BAD_FILE,
            "ssm_conv1d");
    refused(QWEN35, (struct change){.u32_key = "qwen35.full_attention_interval", .u32 = 0},
            ATS_BAD_FILE, "full_attention_interval");
    accepted(QWEN35, (struct change){.drop_key = "qwen35.attention.recurrent_layers"});
    accepted(QWEN35, (struct change){.drop_key = "qwen35.full_attention_interval"});
}

/* ---- tensors ---- */

/* Tensors that may be left out: the head is then tied, rotary scaling then none, a bias or norm
 * per head then absent, but where all models of the family have them. Everything else must be
 * there. */
static bool is_optional(const char *oracle, const char *name) {
    static const char *const parts[] = {"output.weight", "rope_freqs.weight", ".bias",
                                        "attn_q_norm", "attn_k_norm"};
    if (strcmp(name, "attn_output.weight") == 0) return false;
    if (strcmp(oracle, GEMMA3) == 0 && strstr(name, "_norm")) return false;
    if (strcmp(oracle, GPTOSS) == 0 && strstr(name, ".bias")) return false;
    if (strstr(name, "exp_probs_b")) return false;
    if (strcmp(oracle, QWEN35) == 0 && strcmp(name, "output.weight") != 0) return false;
    if (strcmp(oracle, QWEN35M) == 0 && strcmp(name, "output.weight") != 0)
        return strncmp(name, "blk.4.", 6) == 0; /* predicts further tokens: idle */
    for (size_t i = 0; i < COUNT_OF(parts); i++) {
        const char *at = strstr(name, parts[i]);
        if (at && (i > 0 || at == name)) return true;
    }
    return false;
}

static void each_missing_tensor_is_named(void **state) {
    (void)state;
    static const char *const oracles[] = {LLAMA,  QWEN2,  QWEN3,   PHI3,   MIXTRAL, QWEN3MOE, GLM4,
                                          GEMMA3, GPTOSS, GLM4MOE, LLAMA4, QWEN35,  QWEN35M};
    for (size_t i = 0; i < COUNT_OF(oracles); i++) {
        struct variant whole;
        ats_status status;
        if (!open_variant(oracles[i], &(struct change){0}, &plain, &whole, &status)) skip();
        int n_refused = 0;
        for (int j = 0; j < whole.g->n_tensors; j++) {
            const char *name = whole.g->tensors[j].name;
            struct change c = {.drop_tensor = name};
            if (is_optional(oracles[i], name)) {
                accepted(oracles[i], c);
                continue;
            }
            refused(oracles[i], c, ATS_UNSUPPORTED, name);
            n_refused++;
        }
        assert_true(n_refused > 10);
        close_variant(&whole);
    }
}

static void a_renamed_tensor_is_missing(void **state) {
    (void)state;
    if (!refused(LLAMA,
                 (struct change){.rename = "blk.0.ffn_up.weight", .name = "blk.0.ffn_upp.weight"},
                 ATS_UNSUPPORTED, "tensor blk.0.ffn_up.weight is missing"))
        skip();
    /* an optional one would be dropped without a word: it is left over instead */
    refused(LLAMA, (struct change){.rename = "output.weight", .name = "outputs.weight"},
            ATS_UNSUPPORTED, "outputs.weight");
}

static void wrong_shapes_are_named_with_both(void **state) {
    (void)state;
    struct variant whole;
    ats_status status;
    if (!open_variant(LLAMA, &(struct change){0}, &plain, &whole, &status)) skip();
    for (int i = 0; i < whole.g->n_tensors; i++) {
        const struct gguf_tensor *t = &whole.g->tensors[i];
        if (strcmp(t->name, "token_embd.weight") == 0) continue; /* its rows are the vocabulary */
        struct change c = {.reshape = t->name, .dims = {t->dims[0], t->dims[1] + 1}};
        refused(LLAMA, c, ATS_BAD_FILE, t->name);
        c.dims[0] = t->dims[0] * 2, c.dims[1] = t->dims[1];
        refused(LLAMA, c, ATS_BAD_FILE, t->name);
        if (t->dims[1] == 1 || t->dims[0] == t->dims[1]) continue;
        c.dims[0] = t->dims[1], c.dims[1] = t->dims[0]; /* transposed: as many elements */
        refused(LLAMA, c, ATS_BAD_FILE, t->name);
    }
    char both[128];
    int n_embd = whole.m->hp.n_embd;
    snprintf(both, sizeof both, "is 1 x %d, expected 1 x %d", n_embd * 2, n_embd);
    refused(LLAMA, (struct change){.reshape = "output_norm.weight", .dims = {n_embd * 2, 1}},
            ATS_BAD_FILE, both);
    close_variant(&whole);
}

/* More rows in the embedding than in the head: the vocabulary is the embedding's. */
static void a_head_of_another_vocabulary_is_refused(void **state) {
    (void)state;
    struct variant whole;
    ats_status status;
    if (!open_variant(LLAMA, &(struct change){0}, &plain, &whole, &status)) skip();
    int64_t n_embd = whole.m->hp.n_embd;
    close_variant(&whole);
    refused(LLAMA, (struct change){.reshape = "token_embd.weight", .dims = {n_embd, 641}},
            ATS_BAD_FILE, "output.weight");
    refused(LLAMA, (struct change){.drop_tensor = "token_embd.weight"}, ATS_UNSUPPORTED,
            "token_embd.weight");
}

static void tensors_that_nothing_reads_are_listed(void **state) {
    (void)state;
    struct change c = {.extra = "blk.0.attn_sinks.weight"};
    if (!refused(LLAMA, c, ATS_UNSUPPORTED, "blk.0.attn_sinks.weight")) skip();
    struct variant v;
    ats_status status;
    struct model_options options = plain;
    options.force = true;
    open_variant(LLAMA, &c, &options, &v, &status);
    TEST_OK(status);
    close_variant(&v);
}

static void types_without_kernels_are_refused(void **state) {
    (void)state;
    if (!refused(LLAMA, (struct change){.retype = "blk.1.ffn_down.weight", .dtype = DTYPE_I16},
                 ATS_UNSUPPORTED, "blk.1.ffn_down.weight"))
        skip();
    refused(LLAMA, (struct change){.retype = "blk.1.ffn_norm.weight", .dtype = DTYPE_F16},
            ATS_UNSUPPORTED, "blk.1.ffn_norm.weight");
    refused(PHI3, (struct change){.retype = "rope_factors_long.weight", .dtype = DTYPE_F16},
            ATS_UNSUPPORTED, "rope_factors_long.weight");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_unchanged_copy_opens_with_the_oracle_s_facts),
        cmocka_unit_test(every_weight_points_into_its_tensor),
        cmocka_unit_test(fused_tensors_become_ranges_of_rows),
        cmocka_unit_test(gate_up_and_their_product_are_neighbours),
        cmocka_unit_test(a_tied_head_shares_the_embedding),
        cmocka_unit_test(the_class_of_products_follows_type_and_option),
        cmocka_unit_test(optional_keys_have_defaults),
        cmocka_unit_test(each_missing_key_is_named),
        cmocka_unit_test(a_missing_kv_head_count_is_noticed),
        cmocka_unit_test(keys_of_the_wrong_type_are_named),
        cmocka_unit_test(keys_out_of_range_are_named),
        cmocka_unit_test(counts_that_the_tensors_contradict_are_refused),
        cmocka_unit_test(unknown_architectures_are_refused),
        cmocka_unit_test(rope_scaling_is_checked),
        cmocka_unit_test(keys_of_windows_and_caps_are_checked),
        cmocka_unit_test(gemma_s_layers_alternate),
        cmocka_unit_test(expert_keys_are_checked),
        cmocka_unit_test(keys_of_routing_are_checked),
        cmocka_unit_test(layers_of_further_tokens_are_left_out),
        cmocka_unit_test(llama4_s_layers_alternate),
        cmocka_unit_test(keys_of_recurrent_layers_are_checked),
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(a_renamed_tensor_is_missing),
        cmocka_unit_test(wrong_shapes_are_named_with_both),
        cmocka_unit_test(a_head_of_another_vocabulary_is_refused),
        cmocka_unit_test(tensors_that_nothing_reads_are_listed),
        cmocka_unit_test(types_without_kernels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
