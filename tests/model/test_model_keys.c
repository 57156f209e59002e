/* Keys: every way in which a file can lack or twist what its architecture needs is refused by name
 * (R40). Files are variants of the oracles. */
#include "variant.h"

#include <math.h>

static bool is_all_experts(const char *arch) {
    return strcmp(arch, "qwen3moe") == 0 || strcmp(arch, "gpt-oss") == 0;
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
            if (!variant_refused(files[i].oracle, (struct change){.drop_key = key}, ATS_BAD_FILE,
                                 key))
                skip();
        }
    variant_refused(LLAMA, (struct change){.drop_key = "general.architecture"}, ATS_BAD_FILE,
                    "general.architecture");
}

/* Fewer KV heads than heads: without the key there would be as many, and the tensors say no. */
static void a_missing_kv_head_count_is_noticed(void **state) {
    (void)state;
    if (!variant_refused(LLAMA, (struct change){.drop_key = "llama.attention.head_count_kv"},
                         ATS_BAD_FILE, "blk.0.attn_k.weight"))
        skip();
}

static void keys_of_the_wrong_type_are_named(void **state) {
    (void)state;
    static const char *const ints[] = {"llama.block_count", "llama.embedding_length",
                                       "llama.attention.head_count", "llama.context_length"};
    for (size_t i = 0; i < COUNT_OF(ints); i++) {
        if (!variant_refused(LLAMA, (struct change){.f32_key = ints[i], .f32 = 4}, ATS_BAD_FILE,
                             ints[i]))
            skip();
        variant_refused(LLAMA, (struct change){.str_key = ints[i], .str = "4"}, ATS_BAD_FILE,
                        ints[i]);
    }
    variant_refused(LLAMA,
                    (struct change){.u32_key = "llama.attention.layer_norm_rms_epsilon", .u32 = 0},
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
        if (!variant_refused(LLAMA, (struct change){.u32_key = cases[i].key, .u32 = cases[i].value},
                             ATS_BAD_FILE, name))
            skip();
    }
    variant_refused(LLAMA, (struct change){.u32_key = "llama.attention.head_count_kv", .u32 = 3},
                    ATS_BAD_FILE, "key/value heads");
    static const float bad_eps[] = {-1e-5F, 1.5F};
    for (size_t i = 0; i < COUNT_OF(bad_eps); i++)
        variant_refused(
            LLAMA,
            (struct change){.f32_key = "llama.attention.layer_norm_rms_epsilon", .f32 = bad_eps[i]},
            ATS_BAD_FILE, "layer_norm_rms_epsilon");
    static const float bad_base[] = {0, -10000, 1, INFINITY, NAN};
    for (size_t i = 0; i < COUNT_OF(bad_base); i++)
        variant_refused(LLAMA,
                        (struct change){.f32_key = "llama.rope.freq_base", .f32 = bad_base[i]},
                        ATS_BAD_FILE, "rope.freq_base");
}

/* A count that differs from the tensors is caught by their shapes, never by luck. */
static void counts_that_the_tensors_contradict_are_refused(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!variant_open(LLAMA, &(struct change){0}, &variant_plain, &v, &status)) skip();
    struct hparams hp = v.m->hp;
    variant_close(&v);
    variant_refused(
        LLAMA, (struct change){.u32_key = "llama.block_count", .u32 = (uint32_t)hp.n_layers + 1},
        ATS_UNSUPPORTED, "attn_norm.weight is missing");
    variant_refused(
        LLAMA, (struct change){.u32_key = "llama.block_count", .u32 = (uint32_t)hp.n_layers - 1},
        ATS_UNSUPPORTED, "left unread");
    variant_refused(
        LLAMA, (struct change){.u32_key = "llama.embedding_length", .u32 = (uint32_t)hp.n_embd * 2},
        ATS_BAD_FILE, "token_embd.weight");
    variant_refused(
        LLAMA,
        (struct change){.u32_key = "llama.feed_forward_length", .u32 = (uint32_t)hp.n_ff + 32},
        ATS_BAD_FILE, "ffn_gate.weight");
    variant_refused(
        LLAMA,
        (struct change){.u32_key = "llama.attention.key_length", .u32 = (uint32_t)hp.head_dim * 2},
        ATS_UNSUPPORTED, "values");
}

static void unknown_architectures_are_refused(void **state) {
    (void)state;
    if (!variant_refused(LLAMA, (struct change){.str_key = "general.architecture", .str = "llamma"},
                         ATS_UNSUPPORTED, "\"llamma\""))
        skip();
    /* known, but not this: the keys of the other name are not there */
    variant_refused(LLAMA, (struct change){.str_key = "general.architecture", .str = "qwen2"},
                    ATS_BAD_FILE, "qwen2.block_count");
    variant_refused(LLAMA, (struct change){.u32_key = "llama.expert_count", .u32 = 8}, ATS_BAD_FILE,
                    "llama.expert_used_count");
}

static void rope_scaling_is_checked(void **state) {
    (void)state;
    if (!variant_refused(LLAMA,
                         (struct change){.str_key = "llama.rope.scaling.type", .str = "dynamic"},
                         ATS_UNSUPPORTED, "\"dynamic\""))
        skip();
    static const float bad[] = {0, -2};
    for (size_t i = 0; i < COUNT_OF(bad); i++)
        variant_refused(LLAMA,
                        (struct change){.f32_key = "llama.rope.scaling.factor", .f32 = bad[i]},
                        ATS_BAD_FILE, "rope.scaling");
    variant_refused(PHI3, (struct change){.drop_tensor = "rope_factors_short.weight"},
                    ATS_UNSUPPORTED, "rope_factors_short.weight");
    variant_refused(PHI3, (struct change){.drop_tensor = "rope_factors_long.weight"},
                    ATS_UNSUPPORTED, "rope_factors_long.weight");
    variant_refused(LLAMA, (struct change){.reshape = "rope_freqs.weight", .dims = {2, 1}},
                    ATS_BAD_FILE, "rope_freqs.weight");
}

static void keys_of_windows_and_caps_are_checked(void **state) {
    (void)state;
    struct change zero = {.u32_key = "gemma3.attention.sliding_window_pattern"};
    if (!variant_refused(GEMMA3, zero, ATS_BAD_FILE, "sliding_window_pattern")) skip();
    variant_refused(GPTOSS, (struct change){.drop_key = "gpt-oss.attention.sliding_window"},
                    ATS_BAD_FILE, "sliding_window");
    variant_refused(GEMMA3, (struct change){.f32_key = "gemma3.rope.freq_base_swa", .f32 = 1},
                    ATS_BAD_FILE, "freq_base_swa");
    variant_refused(GEMMA3, (struct change){.f32_key = "gemma3.attn_logit_softcapping", .f32 = -5},
                    ATS_BAD_FILE, "attn_logit_softcapping is -5");
    variant_refused(LLAMA, (struct change){.f32_key = "llama.final_logit_softcapping", .f32 = -30},
                    ATS_BAD_FILE, "final_logit_softcapping is -30");
    variant_accepted(GEMMA3,
                     (struct change){.f32_key = "gemma3.final_logit_softcapping", .f32 = 0});
}

static void soft_caps_reach_the_graph(void **state) {
    (void)state;
    static const char *const keys[] = {"gemma3.attn_logit_softcapping",
                                       "gemma3.final_logit_softcapping"};
    for (int final = 0; final < 2; final++) {
        struct variant v;
        ats_status status;
        struct change c = {.f32_key = keys[final], .f32 = 50};
        if (!variant_open(GEMMA3, &c, &variant_plain, &v, &status)) skip();
        TEST_OK(status);
        assert_int_equal((int)v.m->graph->logit_cap, final ? 50 : 0);
        for (int i = 0; i < v.m->graph->n_ops; i++)
            if (v.m->graph->ops[i].kind == OP_ATTENTION)
                assert_int_equal((int)v.m->graph->ops[i].p.attention.soft_cap, final ? 0 : 50);
        variant_close(&v);
    }
}

/* Five layers with a window and the local rotary embedding, then one without; tanh GELU. */
static void gemma_s_layers_alternate(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!variant_open(GEMMA3, &(struct change){0}, &variant_plain, &v, &status)) skip();
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
    variant_close(&v);
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
        if (!variant_refused(QWEN3MOE, (struct change){.u32_key = bad[i].key, .u32 = bad[i].value},
                             ATS_BAD_FILE, bad[i].word))
            skip();
    variant_refused(QWEN3MOE, (struct change){.u32_key = "qwen3moe.expert_count"}, ATS_UNSUPPORTED,
                    "ffn_gate.weight is missing");
    variant_refused(QWEN3MOE, (struct change){.drop_key = "qwen3moe.expert_used_count"},
                    ATS_BAD_FILE, "expert_used_count");
}

static void keys_of_routing_are_checked(void **state) {
    (void)state;
    if (!variant_refused(GLM4MOE,
                         (struct change){.u32_key = "glm4moe.expert_group_count", .u32 = 2},
                         ATS_UNSUPPORTED, "expert_group_count is 2"))
        skip();
    variant_refused(GLM4MOE, (struct change){.u32_key = "glm4moe.expert_gating_func", .u32 = 4},
                    ATS_UNSUPPORTED, "expert_gating_func is 4");
    variant_refused(GLM4MOE,
                    (struct change){.u32_key = "glm4moe.leading_dense_block_count", .u32 = 2},
                    ATS_UNSUPPORTED, "blk.1.ffn_gate.weight is missing");
    variant_refused(GLM4MOE, (struct change){.u32_key = "glm4moe.leading_dense_block_count"},
                    ATS_UNSUPPORTED, "blk.0.ffn_gate_inp.weight is missing");
    variant_refused(GLM4MOE, (struct change){.u32_key = "glm4moe.expert_shared_count", .u32 = 2},
                    ATS_BAD_FILE, "blk.1.ffn_gate_shexp.weight is 32 x 64, expected 64 x 64");
    variant_refused(LLAMA4,
                    (struct change){.u32_key = "llama4.interleave_moe_layer_step", .u32 = 0},
                    ATS_BAD_FILE, "interleave_moe_layer_step is 0");
    variant_refused(LLAMA4,
                    (struct change){.u32_key = "llama4.interleave_moe_layer_step", .u32 = 1},
                    ATS_UNSUPPORTED, "blk.0.ffn_gate_inp.weight is missing");
    static const char *const moes[][2] = {{GPTOSS, "gpt-oss.expert_count"},
                                          {GLM4MOE, "glm4moe.expert_count"},
                                          {LLAMA4, "llama4.expert_count"}};
    for (size_t i = 0; i < COUNT_OF(moes); i++)
        variant_refused(moes[i][0], (struct change){.u32_key = moes[i][1]}, ATS_UNSUPPORTED,
                        "without experts");
}

/* The last block may predict further tokens: it is not part of the model, nor left unread. */
static void layers_of_further_tokens_are_left_out(void **state) {
    (void)state;
    struct variant whole, v;
    ats_status status;
    if (!variant_open(GLM4MOE, &(struct change){0}, &variant_plain, &whole, &status)) skip();
    TEST_OK(status);
    struct change c = {.u32_key = "glm4moe.nextn_predict_layers", .u32 = 1};
    variant_open(GLM4MOE, &c, &variant_plain, &v, &status);
    TEST_OK(status);
    assert_int_equal(v.m->hp.n_layers, whole.m->hp.n_layers - 1);
    uint64_t n_params = 0, n_bytes = 0;
    int n_tensors = 0;
    for (int i = 0; i < whole.g->n_tensors; i++) {
        const struct gguf_tensor *t = &whole.g->tensors[i];
        if (strncmp(t->name, "blk.2.", 6) != 0) continue;
        n_params += (uint64_t)t->n_elements;
        n_bytes += (uint64_t)t->n_bytes;
        n_tensors++;
    }
    assert_int_equal(v.m->n_params, whole.m->n_params - n_params);
    assert_int_equal(v.m->idle_bytes, n_bytes);
    assert_int_equal(v.m->n_idle, n_tensors);
    assert_int_equal(whole.m->n_idle, 0);
    assert_int_equal(v.m->weight_bytes, whole.m->weight_bytes - n_bytes);
    variant_close(&v);
    variant_close(&whole);
    variant_refused(GLM4MOE, (struct change){.u32_key = "glm4moe.nextn_predict_layers", .u32 = 3},
                    ATS_BAD_FILE, "nextn_predict_layers is 3, of 3 layers");
    c.extra = "blk.3.attn_norm.weight";
    variant_refused(GLM4MOE, c, ATS_UNSUPPORTED, "blk.3.attn_norm.weight");
}

/* Its own tensors and those that every layer has; what is not known is no reason to refuse a file
 * that runs without. */
static void idle_tensors_have_the_shapes_of_layers(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int64_t dims[2];
        const char *part;
    } bad[] = {
        {"blk.4.nextn.eh_proj.weight", {64, 64}, "is 1 x 64 x 64, expected 1 x 64 x 128"},
        {"blk.4.nextn.enorm.weight", {32, 1}, "is 1 x 1 x 32, expected 1 x 1 x 64"},
        {"blk.4.attn_q.weight", {64, 128}, "is 1 x 128 x 64, expected 1 x 256 x 64"},
        {"blk.4.attn_norm.weight", {128, 1}, "is 1 x 1 x 128, expected 1 x 1 x 64"},
    };
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        struct change c = {.reshape = bad[i].name, .dims = {bad[i].dims[0], bad[i].dims[1]}};
        if (!variant_refused(QWEN35M, c, ATS_BAD_FILE, bad[i].part)) skip();
        variant_refused(QWEN35M, c, ATS_BAD_FILE, bad[i].name);
    }
    variant_accepted(QWEN35M, (struct change){.extra = "blk.4.nextn.other.weight"});
    variant_refused(QWEN35M, (struct change){.extra = "blk.5.nextn.other.weight"}, ATS_UNSUPPORTED,
                    "blk.5.nextn.other.weight");
}

/* What only the graph shows, as the oracle's prompts do not reach it. */
static void llama4_s_layers_alternate(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!variant_open(LLAMA4, &(struct change){0}, &variant_plain, &v, &status)) skip();
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
    variant_close(&v);
}

/* Of the delta net, each by its name; what they say together must fit. */
static void keys_of_recurrent_layers_are_checked(void **state) {
    (void)state;
    static const char *const needed[] = {"qwen35.ssm.conv_kernel", "qwen35.ssm.state_size",
                                         "qwen35.ssm.group_count", "qwen35.ssm.time_step_rank",
                                         "qwen35.ssm.inner_size"};
    for (size_t i = 0; i < COUNT_OF(needed); i++) {
        if (!variant_refused(QWEN35, (struct change){.drop_key = needed[i]}, ATS_BAD_FILE,
                             needed[i]))
            skip();
        variant_refused(QWEN35, (struct change){.u32_key = needed[i], .u32 = 0}, ATS_BAD_FILE,
                        needed[i]);
        variant_refused(QWEN35, (struct change){.u32_key = needed[i], .u32 = UINT32_MAX},
                        ATS_BAD_FILE, needed[i]);
    }
    variant_refused(QWEN35, (struct change){.u32_key = "qwen35.ssm.group_count", .u32 = 3},
                    ATS_BAD_FILE, "do not fit");
    variant_refused(QWEN35, (struct change){.u32_key = "qwen35.ssm.conv_kernel", .u32 = 3},
                    ATS_BAD_FILE, "ssm_conv1d");
    variant_refused(QWEN35, (struct change){.u32_key = "qwen35.full_attention_interval", .u32 = 0},
                    ATS_BAD_FILE, "full_attention_interval");
    variant_accepted(QWEN35, (struct change){.drop_key = "qwen35.attention.recurrent_layers"});
    variant_accepted(QWEN35, (struct change){.drop_key = "qwen35.full_attention_interval"});
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_missing_key_is_named),
        cmocka_unit_test(a_missing_kv_head_count_is_noticed),
        cmocka_unit_test(keys_of_the_wrong_type_are_named),
        cmocka_unit_test(keys_out_of_range_are_named),
        cmocka_unit_test(counts_that_the_tensors_contradict_are_refused),
        cmocka_unit_test(unknown_architectures_are_refused),
        cmocka_unit_test(rope_scaling_is_checked),
        cmocka_unit_test(keys_of_windows_and_caps_are_checked),
        cmocka_unit_test(soft_caps_reach_the_graph),
        cmocka_unit_test(gemma_s_layers_alternate),
        cmocka_unit_test(expert_keys_are_checked),
        cmocka_unit_test(keys_of_routing_are_checked),
        cmocka_unit_test(layers_of_further_tokens_are_left_out),
        cmocka_unit_test(idle_tensors_have_the_shapes_of_layers),
        cmocka_unit_test(llama4_s_layers_alternate),
        cmocka_unit_test(keys_of_recurrent_layers_are_checked),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
