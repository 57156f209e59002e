/* Keys of few files: what each means in the graph, and that one which nobody reads is refused where
 * it would matter. Files are variants of the oracles. */
#include "variant.h"

#include <math.h>

/* Four numbers that fill the turned part of a head (16 elements here), or none. */
static void sections_of_the_rotary_embedding_are_checked(void **state) {
    (void)state;
    static const struct {
        int32_t list[8];
        int n;
    } bad[] = {{{3, 3, 1, 0}, 4},
               {{3, 3, 3, 0}, 4},
               {{-1, 9, 0, 0}, 4},
               {{9, 0, 0, -1}, 4},
               {{3, 3, 2}, 3},
               {{3, 3, 2, 0, 0}, 5},
               {{INT32_MAX, INT32_MAX, 10, 0}, 4},
               {{0}, 0}},
      good[] = {{{3, 3, 2, 0}, 4}, {{8, 0, 0, 0}, 4}, {{0, 0, 0, 0}, 4}};
    struct change c = {.list_key = "qwen35.rope.dimension_sections"};
    for (size_t i = 0; i < COUNT_OF(bad); i++) {
        memcpy(c.list, bad[i].list, sizeof c.list);
        c.n_list = bad[i].n;
        if (!variant_refused(QWEN35, c, ATS_UNSUPPORTED, "dimension_sections is not a list of 4"))
            skip();
    }
    for (size_t i = 0; i < COUNT_OF(good); i++) {
        memcpy(c.list, good[i].list, sizeof c.list);
        c.n_list = good[i].n;
        variant_accepted(QWEN35, c);
    }
    variant_accepted(QWEN35, (struct change){.drop_key = "qwen35.rope.dimension_sections"});
    variant_refused(QWEN35, (struct change){.u32_key = "qwen35.rope.dimension_sections", .u32 = 8},
                    ATS_BAD_FILE, "dimension_sections is of type u32");
    c = (struct change){.list_key = "glm4moe.rope.dimension_sections", .list = {9}, .n_list = 4};
    variant_refused(GLM4MOE, c, ATS_UNSUPPORTED, "dimension_sections");
    c = (struct change){.list_key = "llama.rope.dimension_sections", .list = {8, 8}, .n_list = 4};
    variant_refused(LLAMA, c, ATS_UNSUPPORTED, "dimension_sections is 8");
}

/* Which pairs of a file's rotary embedding turn together. */
static bool turns_halves(const char *oracle, const struct change *c) {
    struct variant v;
    ats_status status;
    bool halves = false;
    if (!variant_open(oracle, c, &variant_plain, &v, &status)) skip();
    TEST_OK(status);
    for (int i = 0; i < v.m->graph->n_ops; i++)
        if (v.m->graph->ops[i].kind == OP_ROPE) halves = v.m->graph->ops[i].p.rope.halves;
    variant_close(&v);
    return halves;
}

/* GLM-4V's text model, of the same name as GLM-4, which turns neighbours. */
static void sections_say_which_pairs_turn(void **state) {
    (void)state;
    struct change c = {
        .list_key = "glm4.rope.dimension_sections", .list = {2, 3, 3, 0}, .n_list = 4};
    assert_true(turns_halves(GLM4, &c));
    memset(c.list, 0, sizeof c.list);
    assert_false(turns_halves(GLM4, &c));
    c.list_key = NULL;
    assert_false(turns_halves(GLM4, &c));
}

/* Keys that would change what is computed, and that nobody reads. */
static void keys_that_nobody_reads_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *oracle, *key;
        float bad, good;
    } cases[] = {
        {LLAMA, "llama.attention.causal", 0, 1},
        {QWEN3, "qwen3.attention.causal", 0, 1},
        {LLAMA, "llama.attention.clamp_kqv", 8, 0},
        {LLAMA, "llama.attention.max_alibi_bias", 8, 0},
        {LLAMA, "llama.attention.temperature_scale", 0.1F, 0},
        {LLAMA, "llama.attention.output_scale", 0.5F, 1},
        {LLAMA, "llama.attention.value_scale", 0.5F, 0},
        {LLAMA, "llama.attention.key_length_swa", 16, 32},
        {LLAMA, "llama.attention.value_length_swa", 16, 32},
        {LLAMA, "llama.rope.dimension_count_swa", 16, 32},
        {LLAMA, "llama.embedding_scale", 12, 1},
        {LLAMA, "llama.residual_scale", 0.22F, 0},
        {LLAMA, "llama.logit_scale", 0.0625F, 1},
        {LLAMA, "llama.swin_norm", 1, 0},
        {LLAMA, "llama.rope.scaling.alpha", 1000, 1},
        {LLAMA, "llama.rope.scaling.yarn_log_multiplier", 0.1F, 0},
        {LLAMA, "llama.activation.situ_beta", 2, 0},
        {LLAMA, "llama.activation.situ_linear_beta", 2, 0},
        {LLAMA, "llama.activation_sparsity_scale", 0.5F, 0},
        {LLAMA, "llama.rescale_every_n_layers", 6, 0},
        {LLAMA, "llama.use_parallel_residual", 1, 0},
        {MIXTRAL, "llama.router_logit_softcapping", 30, 0},
        {LLAMA4, "llama4.attention.temperature_length", 4096, 8192},
        {QWEN35, "qwen35.ssm.dt_b_c_rms", 1, 0},
        {GPTOSS, "gpt-oss.rope.scaling.yarn_attn_factor", 0.5F, 1},
        {GPTOSS, "gpt-oss.swiglu_clamp_exp", 5, 0},
        {GLM4MOE, "glm4moe.swiglu_clamp_shexp", 5, 0},
        {GLM4MOE, "glm4moe.attention.sliding_window", 128, 0},
        {QWEN35, "qwen35.attention.sliding_window", 128, 0},
        {QWEN35, "qwen35.attention.shared_kv_layers", 2, 0},
        {QWEN35M, "qwen35moe.moe_every_n_layers", 2, 1},
        {QWEN35M, "qwen35moe.expert_latent_length", 32, 0},
        {GEMMA3, "gemma3.embedding_length_per_layer_input", 8, 0},
        {GEMMA3, "gemma3.num_loops", 2, 1},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const bool whole = cases[i].bad >= 1;
        struct change c = {.u32_key = cases[i].key, .u32 = (uint32_t)cases[i].bad};
        if (!whole) c = (struct change){.f32_key = cases[i].key, .f32 = cases[i].bad};
        if (!variant_refused(cases[i].oracle, c, ATS_UNSUPPORTED, cases[i].key)) skip();
        c.u32 = (uint32_t)cases[i].good, c.f32 = cases[i].good;
        variant_accepted(cases[i].oracle, c);
    }
    struct change c = {.list_key = "gpt-oss.swiglu_clamp_exp", .list = {0, 0, 0, 7}, .n_list = 4};
    variant_refused(GPTOSS, c, ATS_UNSUPPORTED, "swiglu_clamp_exp is 7");
    c.list[3] = 0;
    variant_accepted(GPTOSS, c);
    c = (struct change){.str_key = "llama.attention.causal", .str = "no"};
    variant_refused(LLAMA, c, ATS_UNSUPPORTED, "llama.attention.causal");
}

static void an_activation_may_be_named_if_it_is_ours(void **state) {
    (void)state;
    static const struct {
        const char *oracle, *key, *good, *bad;
    } cases[] = {{QWEN3, "qwen3.hidden_activation", "silu", "gelu"},
                 {GPTOSS, "gpt-oss.hidden_activation", "silu", "relu2"},
                 {GEMMA3, "gemma3.hidden_activation", "gelu_pytorch_tanh", "silu"}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        struct change c = {.str_key = cases[i].key, .str = cases[i].bad};
        if (!variant_refused(cases[i].oracle, c, ATS_UNSUPPORTED, cases[i].bad)) skip();
        c.str = cases[i].good;
        variant_accepted(cases[i].oracle, c);
    }
}

/* Some writers give a list where all layers are alike; 0: this layer has no such thing. */
static void one_number_for_each_layer_will_do_if_they_are_equal(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!variant_open(QWEN35, &(struct change){0}, &variant_plain, &v, &status)) skip();
    TEST_OK(status);
    const int32_t n_kv = v.m->hp.n_kv_heads, n_ff = v.m->hp.n_ff;
    assert_int_equal(v.m->hp.n_layers, 4);
    variant_close(&v);
    struct change c = {.list_key = "qwen35.attention.head_count_kv", .list = {0, 0, 0, n_kv}};
    c.n_list = 4;
    variant_accepted(QWEN35, c);
    c.list[3] = 0;
    variant_refused(QWEN35, c, ATS_BAD_FILE, "head_count_kv is 0");
    c.list[3] = -1;
    variant_refused(QWEN35, c, ATS_UNSUPPORTED, "head_count_kv differs between layers");
    c = (struct change){
        .list_key = "qwen35.feed_forward_length", .list = {n_ff, n_ff, n_ff, n_ff}, .n_list = 4};
    variant_accepted(QWEN35, c);
    c.list[1] = n_ff + 32;
    variant_refused(QWEN35, c, ATS_UNSUPPORTED,
                    "qwen35.feed_forward_length differs between layers");
}

/* Windows of each layer's attention, as a string of w and -. */
static void assert_windows(const char *oracle, struct change c, const char *want) {
    struct variant v;
    ats_status status;
    char got[65] = "";
    if (!variant_open(oracle, &c, &variant_plain, &v, &status)) skip();
    TEST_OK(status);
    for (int i = 0; i < v.m->graph->n_ops; i++) {
        const struct attention_params *p = &v.m->graph->ops[i].p.attention;
        if (v.m->graph->ops[i].kind != OP_ATTENTION) continue;
        strcat(got, p->window > 0 || p->chunk > 0 ? "w" : "-");
    }
    assert_string_equal(got, want);
    variant_close(&v);
}

static void patterns_of_windows_are_followed(void **state) {
    (void)state;
    assert_windows(GPTOSS, (struct change){0}, "w-w-");
    assert_windows(GPTOSS,
                   (struct change){.u32_key = "gpt-oss.attention.sliding_window_pattern", .u32 = 4},
                   "www-");
    assert_windows(GPTOSS,
                   (struct change){.list_key = "gpt-oss.attention.sliding_window_pattern",
                                   .list = {0, 1, 1, 0},
                                   .n_list = 4},
                   "-ww-");
    assert_windows(GPTOSS, (struct change){.u32_key = "gpt-oss.attention.sliding_window", .u32 = 0},
                   "----");
    assert_windows(GEMMA3, (struct change){.drop_key = "gemma3.attention.sliding_window"},
                   "-------");
    assert_windows(GEMMA3,
                   (struct change){.list_key = "gemma3.attention.sliding_window_pattern",
                                   .list = {0, 1, 0, 1, 1, 1, 1},
                                   .n_list = 7},
                   "-w-wwww");
    assert_windows(LLAMA4,
                   (struct change){.u32_key = "llama4.attention.sliding_window_pattern", .u32 = 2},
                   "w-w-");
    assert_windows(LLAMA, (struct change){.u32_key = "llama.attention.sliding_window", .u32 = 16},
                   "www");
    variant_refused(GPTOSS,
                    (struct change){.list_key = "gpt-oss.attention.sliding_window_pattern",
                                    .list = {1, 0, 1},
                                    .n_list = 3},
                    ATS_BAD_FILE, "sliding_window_pattern has 3 elements");
    variant_refused(GPTOSS, (struct change){.u32_key = "gpt-oss.attention.sliding_window_pattern"},
                    ATS_BAD_FILE, "sliding_window_pattern is 0");
    variant_refused(LLAMA4,
                    (struct change){.u32_key = "llama4.attention.sliding_window", .u32 = 4096},
                    ATS_UNSUPPORTED, "sliding_window is 4096");
}

/* Frequency of the second pair in a layer. */
static float second_frequency(const char *oracle, struct change c, int layer) {
    struct variant v;
    ats_status status;
    float f = 0;
    if (!variant_open(oracle, &c, &variant_plain, &v, &status)) skip();
    TEST_OK(status);
    for (int i = 0; i < v.m->graph->n_ops; i++)
        if (v.m->graph->ops[i].kind == OP_ROPE && v.m->graph->ops[i].layer == layer)
            f = v.m->graph->ops[i].p.rope.inv_freq[1];
    variant_close(&v);
    return f;
}

static void assert_frequency(float f, float want) {
    assert_true(fabsf(f - want) <= 1e-6F * want);
}

/* A factor is linear where no type is told; the newer of its names comes before the older. */
static void factors_without_a_type_are_linear(void **state) {
    (void)state;
    const float plain = second_frequency(QWEN3, (struct change){0}, 0);
    struct change c = {.f32_key = "qwen3.rope.scale_linear", .f32 = 4};
    assert_frequency(second_frequency(QWEN3, c, 0), plain / 4);
    c.f32_key = "qwen3.rope.scaling.factor";
    assert_frequency(second_frequency(QWEN3, c, 0), plain / 4);
    c.str_key = "qwen3.rope.scaling.type", c.str = "none";
    assert_frequency(second_frequency(QWEN3, c, 0), plain);
    c = (struct change){.f32_key = "gemma3.rope.scale_linear", .f32 = 2}; /* has 8 by the other */
    assert_frequency(second_frequency(GEMMA3, c, 5), powf(1e6F, -2.0F / 32) / 8);
    /* not set, as some write it */
    c = (struct change){.f32_key = "gpt-oss.rope.scaling.yarn_ext_factor", .f32 = -1};
    assert_frequency(second_frequency(GPTOSS, c, 0),
                     second_frequency(GPTOSS, (struct change){0}, 0));
}

static void layers_with_windows_may_have_their_own_base(void **state) {
    (void)state;
    struct change c = {.f32_key = "gpt-oss.rope.freq_base_swa", .f32 = 1000};
    const float full = second_frequency(GPTOSS, (struct change){0}, 1);
    assert_frequency(second_frequency(GPTOSS, c, 1), full);
    assert_true(second_frequency(GPTOSS, c, 0) > full * 1.1F);
    c = (struct change){.drop_key = "gemma3.attention.sliding_window"}; /* none: all are full */
    assert_frequency(second_frequency(GEMMA3, c, 0), second_frequency(GEMMA3, c, 5));
    c = (struct change){.f32_key = "llama4.rope.freq_base_swa", .f32 = 1000};
    assert_frequency(second_frequency(LLAMA4, c, 0), powf(1000, -2.0F / 32));
    c.f32 = 1;
    variant_refused(LLAMA4, c, ATS_BAD_FILE, "freq_base_swa is 1");
}

/* The scores' scale that a file tells comes before the architecture's. */
static void a_scale_of_the_scores_is_followed(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    struct change c = {.f32_key = "qwen35.attention.scale", .f32 = 0.25F};
    if (!variant_open(QWEN35, &c, &variant_plain, &v, &status)) skip();
    TEST_OK(status);
    for (int i = 0; i < v.m->graph->n_ops; i++)
        if (v.m->graph->ops[i].kind == OP_ATTENTION)
            assert_true(v.m->graph->ops[i].p.attention.scale == 0.25F);
    variant_close(&v);
    c.f32 = -1;
    variant_refused(QWEN35, c, ATS_BAD_FILE, "attention.scale is -1");
    c = (struct change){.f32_key = "llama4.attention.temperature_scale", .f32 = -1};
    variant_refused(LLAMA4, c, ATS_BAD_FILE, "temperature_scale is -1");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sections_of_the_rotary_embedding_are_checked),
        cmocka_unit_test(sections_say_which_pairs_turn),
        cmocka_unit_test(keys_that_nobody_reads_are_refused),
        cmocka_unit_test(an_activation_may_be_named_if_it_is_ours),
        cmocka_unit_test(one_number_for_each_layer_will_do_if_they_are_equal),
        cmocka_unit_test(patterns_of_windows_are_followed),
        cmocka_unit_test(factors_without_a_type_are_linear),
        cmocka_unit_test(layers_with_windows_may_have_their_own_base),
        cmocka_unit_test(a_scale_of_the_scores_is_followed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
