/* Every quantised type against the oracles of shared/models/quants: float activations to the bound
 * of the README, 8-bit ones to theirs. */
#include "agree.h"

#include "model/gguf_write.h"

#include <math.h>

#define F32_BOUND     2e-3
#define Q8_MEAN_BOUND 0.2

static const char *const types[] = {"Q4_0",   "Q4_1",   "Q5_0",  "Q5_1",   "Q8_0",
                                    "Q2_K",   "Q3_K",   "Q4_K",  "Q5_K",   "Q6_K",
                                    "IQ4_NL", "IQ4_XS", "MXFP4", "Q4_K_M", "moe-Q4_K_M"};
enum { N_TYPES = sizeof types / sizeof *types };

struct quant {
    char model[512];
    int32_t *prompt, *positions;
    size_t n_prompt, n_positions;
    struct test_npy logits;
};

static bool quant_open(const char *type, struct quant *q) {
    char name[128], path[512];
    snprintf(name, sizeof name, "models/quants/%s.gguf", type);
    if (!test_shared_path(q->model, sizeof q->model, name)) return false;
    test_shared_path(path, sizeof path, "models/quants/index.json");
    json_t *index = test_json_read(path);
    const json_t *entry = test_json_get(test_json_get(index, "types"), type);
    q->prompt = test_json_ids(test_json_get(entry, "prompt"), &q->n_prompt);
    q->positions = test_json_ids(test_json_get(entry, "logits_positions"), &q->n_positions);
    json_decref(index);
    snprintf(name, sizeof name, "models/quants/%s.logits.npy", type);
    test_shared_path(path, sizeof path, name);
    test_npy_read(path, &q->logits);
    return true;
}

static void quant_close(struct quant *q) {
    free(q->prompt), free(q->positions);
    test_npy_free(&q->logits);
}

struct difference {
    double max, mean;
};

static struct difference difference_of(const struct quant *q, const ats_options *options,
                                       size_t chunk) {
    ats_engine *e = agree_open(options);
    size_t width = (size_t)agree_vocab(e);
    float *logits = agree_logits(e, q->prompt, q->n_prompt, chunk);
    struct difference d = {0, 0};
    for (size_t i = 0; i < q->n_positions; i++)
        for (size_t j = 0; j < width; j++) {
            float got = logits[(size_t)q->positions[i] * width + j];
            double diff = fabs((double)got - (double)q->logits.data[i * width + j]);
            d.max = diff <= d.max ? d.max : diff; /* NaN sticks */
            d.mean += diff / (double)(q->n_positions * width);
        }
    free(logits);
    ats_engine_close(e);
    return d;
}

static void float_activations_equal_the_oracles(void **state) {
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        struct quant q;
        if (!quant_open(types[i], &q)) skip();
        ats_options options = agree_options(q.model);
        for (size_t chunk = 0; chunk < 2; chunk++) {
            struct difference d = difference_of(&q, &options, chunk);
            if (!(d.max <= F32_BOUND)) fail_msg("%s: f32 differs by %g", types[i], d.max);
        }
        quant_close(&q);
    }
}

static void eight_bit_activations_stay_close(void **state) {
    (void)state;
    static const char *const isas[] = {"native", "ref"};
    for (int i = 0; i < N_TYPES; i++) {
        struct quant q;
        if (!quant_open(types[i], &q)) skip();
        for (int j = 0; j < 2; j++) {
            ats_options options = agree_options(q.model);
            options.math = ATS_MATH_DEFAULT;
            options.cpu_isa = isas[j];
            struct difference d = difference_of(&q, &options, 0);
            if (!(d.mean <= Q8_MEAN_BOUND) || !(d.mean > 1e-6))
                fail_msg("%s: q8 (%s) differs by %g on average", types[i], isas[j], d.mean);
            print_message("%-10s %-6s q8: mean %.3f, max %.3f\n", types[i], isas[j], d.mean, d.max);
        }
        quant_close(&q);
    }
}

/* Bytes of weights that the first device holds copies of. */
static json_int_t copied_bytes(const ats_engine *e) {
    char *text = ats_engine_describe(e);
    json_t *facts;
    TEST_OK(json_parse(text, strlen(text), &facts));
    const json_t *device = json_array_get(test_json_get(facts, "devices"), 0);
    json_int_t bytes = json_integer_value(test_json_get(device, "weight_bytes"));
    json_decref(facts);
    ats_free(text);
    return bytes;
}

/* Weights repacked at load or read as the file has them: the same bits, for every type, in small
 * rounds and large ones. */
static void repacking_changes_no_bit(void **state) {
    (void)state;
    for (int i = 0; i < N_TYPES; i++) {
        struct quant q;
        if (!quant_open(types[i], &q)) skip();
        float *logits[2][2];
        size_t bytes = 0;
        for (int raw = 0; raw < 2; raw++) {
            ats_options options = agree_options(q.model);
            options.math = ATS_MATH_DEFAULT;
            options.no_repack = raw;
            ats_engine *e = agree_open(&options);
            bytes = q.n_prompt * (size_t)agree_vocab(e) * sizeof(float);
            assert_true((copied_bytes(e) == 0) == raw);
            logits[raw][0] = agree_logits(e, q.prompt, q.n_prompt, 0);
            logits[raw][1] = agree_logits(e, q.prompt, q.n_prompt, 3);
            ats_engine_close(e);
        }
        for (int j = 0; j < 2; j++) {
            if (memcmp(logits[0][j], logits[1][j], bytes) != 0)
                fail_msg("%s: repacking changes bits", types[i]);
            free(logits[0][j]), free(logits[1][j]);
        }
        quant_close(&q);
    }
}

/* Gate and up experts as one tensor: of each expert gate, then up. */
static bool fuse_experts(const struct gguf *g, const struct gguf_tensor *t,
                         struct agree_tensor *out) {
    const struct gguf_tensor *up;
    if (strcmp(t->name, "blk.0.ffn_up_exps.weight") == 0) return false;
    if (strcmp(t->name, "blk.0.ffn_gate_exps.weight") != 0) return true;
    TEST_OK(gguf_tensor_get(g, "blk.0.ffn_up_exps.weight", &up));
    snprintf(out->name, sizeof out->name, "blk.0.ffn_gate_up_exps.weight");
    out->dims[1] *= 2;
    const size_t bytes = (size_t)(t->n_bytes / t->dims[2]);
    for (size_t e = 0; e < (size_t)t->dims[2]; e++) {
        buf_add(&out->data, t->data + e * bytes, bytes);
        buf_add(&out->data, up->data + e * bytes, bytes);
    }
    return true;
}

/* q, k and v as rows of one tensor, their biases as parts of one. */
static bool fuse_attention(const struct gguf *g, const struct gguf_tensor *t,
                           struct agree_tensor *out) {
    static const char *const parts[] = {".attn_q.", ".attn_k.", ".attn_v."};
    if (strstr(t->name, parts[1]) || strstr(t->name, parts[2])) return false;
    const char *at = strstr(t->name, parts[0]);
    if (!at) return true;
    const int n = (int)(at - t->name), axis = t->n_dims > 1;
    const char *suffix = at + strlen(parts[0]);
    snprintf(out->name, sizeof out->name, "%.*s.attn_qkv.%s", n, t->name, suffix);
    out->dims[axis] = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        char name[64];
        const struct gguf_tensor *part;
        snprintf(name, sizeof name, "%.*s%s%s", n, t->name, parts[i], suffix);
        TEST_OK(gguf_tensor_get(g, name, &part));
        assert_int_equal(part->dtype, t->dtype);
        buf_add(&out->data, part->data, (size_t)part->n_bytes);
        out->dims[axis] += part->dims[axis];
    }
    return true;
}

/* A file whose tensors are joined is the same model, in all its layouts and divided. */
static void assert_same_bits(const char *model, const struct agree_change *change,
                             const int32_t *ids, size_t n) {
    char fused[512];
    test_tmp_path(fused, sizeof fused, "fused.gguf");
    agree_copy(model, fused, change);
    for (int way = 0; way < 4; way++) {
        float *logits[2];
        size_t bytes = 0;
        for (int i = 0; i < 2; i++) {
            ats_options options = agree_options(i ? fused : model);
            options.math = ATS_MATH_DEFAULT;
            options.no_repack = way & 1;
            options.devices = way & 2 ? "cpu,cpu" : "cpu";
            ats_engine *e = agree_open(&options);
            bytes = n * (size_t)agree_vocab(e) * sizeof(float);
            logits[i] = agree_logits(e, ids, n, 0);
            ats_engine_close(e);
        }
        assert_memory_equal(logits[0], logits[1], bytes);
        free(logits[0]), free(logits[1]);
    }
    remove(fused);
}

static void fused_experts_give_the_same_bits(void **state) {
    (void)state;
    struct quant q;
    if (!quant_open("moe-Q4_K_M", &q)) skip();
    assert_same_bits(q.model, &(struct agree_change){.tensor = fuse_experts}, q.prompt, q.n_prompt);
    quant_close(&q);
}

static void assert_file_keeps_bits(const char *file, const struct agree_change *change) {
    char path[512];
    int32_t ids[20];
    if (!test_shared_path(path, sizeof path, file)) skip();
    for (int j = 0; j < 20; j++)
        ids[j] = j * 31 + 5;
    assert_same_bits(path, change, ids, 20);
}

/* Old files of Mixtral; of floats and of blocks. */
static void experts_in_tensors_of_their_own_give_the_same_bits(void **state) {
    (void)state;
    static const char *const files[] = {"models/quants/moe-Q4_K_M.gguf",
                                        "models/mixtral/mixtral-f32.gguf"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_file_keeps_bits(files[i], &(struct agree_change){.tensor = agree_split_experts});
}

static bool drop_the_fourth(const struct gguf *g, const struct gguf_tensor *t,
                            struct agree_tensor *out) {
    (void)g, (void)out;
    return strcmp(t->name, "blk.0.ffn_up.3.weight") != 0;
}
static bool cut_the_fourth(const struct gguf *g, const struct gguf_tensor *t,
                           struct agree_tensor *out) {
    if (drop_the_fourth(g, t, out)) return true;
    out->dims[1] /= 2;
    buf_add(&out->data, t->data, (size_t)t->n_bytes / 2);
    return true;
}
static bool halve_the_fourth(const struct gguf *g, const struct gguf_tensor *t,
                             struct agree_tensor *out) {
    if (drop_the_fourth(g, t, out)) return true;
    out->dtype = DTYPE_F16;
    buf_add(&out->data, t->data, (size_t)t->n_bytes / 2);
    return true;
}

static void experts_of_their_own_are_all_needed_and_checked(void **state) {
    (void)state;
    static const struct {
        bool (*tensor)(const struct gguf *g, const struct gguf_tensor *t, struct agree_tensor *out);
        ats_status status;
        const char *part;
    } bad[] = {
        {drop_the_fourth, ATS_UNSUPPORTED, "tensor blk.0.ffn_up.3.weight is missing"},
        {cut_the_fourth, ATS_BAD_FILE, "tensor blk.0.ffn_up.3.weight is "},
        {halve_the_fourth, ATS_UNSUPPORTED, "tensor blk.0.ffn_up.3.weight has the type F16"},
    };
    char whole[512], split[512], path[512];
    if (!test_shared_path(whole, sizeof whole, "models/mixtral/mixtral-f32.gguf")) skip();
    test_tmp_path(split, sizeof split, "split.gguf");
    test_tmp_path(path, sizeof path, "bad.gguf");
    agree_copy(whole, split, &(struct agree_change){.tensor = agree_split_experts});
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        agree_copy(split, path, &(struct agree_change){.tensor = bad[i].tensor});
        ats_options options = agree_options(path);
        ats_engine *e;
        assert_int_equal(ats_engine_open(&options, &e), bad[i].status);
        if (!strstr(ats_error_text(), bad[i].part)) fail_msg("%s", ats_error_text());
    }
}

/* With biases; with biases that must be there, and sinks; with a gate beside q. */
static void fused_attention_gives_the_same_bits(void **state) {
    (void)state;
    static const char *const files[] = {"models/qwen2/qwen2-bf16.gguf",
                                        "models/gptoss/gptoss-mxfp4.gguf",
                                        "models/qwen35/qwen35-f16.gguf"};
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        assert_file_keeps_bits(files[i], &(struct agree_change){.tensor = fuse_attention});
}

/* f16 caches: the bound of the README's "F16 KV" row for dense models; q8_0 caches: rounding to 8
 * bits, held to the bound of 8-bit activations. */
static void smaller_kv_types_stay_close(void **state) {
    (void)state;
    static const struct {
        ats_kv_type k, v;
        double max, mean;
    } ways[] = {{ATS_KV_F16, ATS_KV_F16, 0.2, Q8_MEAN_BOUND},
                {ATS_KV_Q8_0, ATS_KV_Q8_0, (double)INFINITY, Q8_MEAN_BOUND},
                {ATS_KV_F16, ATS_KV_Q8_0, (double)INFINITY, Q8_MEAN_BOUND}};
    struct quant q;
    if (!quant_open("Q8_0", &q)) skip();
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        ats_options options = agree_options(q.model);
        options.kv_k = ways[i].k;
        options.kv_v = ways[i].v;
        struct difference d = difference_of(&q, &options, 5);
        if (!(d.max <= ways[i].max) || !(d.mean <= ways[i].mean) || !(d.max > 0))
            fail_msg("KV types %d and %d: max %g, mean %g", (int)ways[i].k, (int)ways[i].v, d.max,
                     d.mean);
    }
    quant_close(&q);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(float_activations_equal_the_oracles),
        cmocka_unit_test(eight_bit_activations_stay_close),
        cmocka_unit_test(repacking_changes_no_bit),
        cmocka_unit_test(fused_experts_give_the_same_bits),
        cmocka_unit_test(experts_in_tensors_of_their_own_give_the_same_bits),
        cmocka_unit_test(experts_of_their_own_are_all_needed_and_checked),
        cmocka_unit_test(fused_attention_gives_the_same_bits),
        cmocka_unit_test(smaller_kv_types_stay_close),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
