/* Keys that speak of all layers at once, and those that nobody reads though they would change what
 * is computed. Names: ecosystem.md 4.2, and what writers of other architectures have. */
#include "model/bind.h"

#include <stdio.h>
#include <string.h>

ats_status bind_layer_flags(struct binding *b, const char *key, uint32_t every, bool **flags) {
    const int n = b->hp.n_layers;
    const struct gguf_array *given = NULL;
    if (key) TRY(gguf_opt_ints(b->file, key, &given));
    if (given) TRY(gguf_check_length(b->file, key, (size_t)(n + b->hp.n_nextn)));
    *flags = ARENA_ARRAY(b->arena, bool, n);
    for (int i = 0; i < n; i++)
        (*flags)[i] = given ? gguf_array_int(given, (size_t)i) != 0
                            : every == 0 || ((uint32_t)i + 1) % every != 0;
    return ATS_OK;
}

ats_status bind_window_layers(struct binding *b, uint32_t window, uint32_t every, bool **flags) {
    const char *key = ".attention.sliding_window_pattern";
    const struct gguf_kv *kv = gguf_find(b->file, key);
    if (kv && kv->type != GGUF_ARRAY) {
        TRY(gguf_get_u32(b->file, key, &every));
        if (every < 1) return fail(ATS_BAD_FILE, "key %s is 0", kv->key);
        key = NULL;
    }
    TRY(bind_layer_flags(b, key, every, flags));
    for (int i = 0; window == 0 && i < b->hp.n_layers; i++)
        (*flags)[i] = false;
    return ATS_OK;
}

/* What a key may say where nobody reads it: either number, or a list of them. */
struct unread {
    const char *key, *readers; /* architectures, each between spaces; NULL: none */
    float allowed[2];
};

#define WITH_WINDOWS  " llama qwen2 qwen3 qwen3moe smollm3 phi3 glm4 gemma3 gpt-oss llama4 "
#define WITH_SECTIONS " qwen35 qwen35moe glm4 glm4moe "

static const struct unread unread_keys[] = {
    {".activation.situ_beta", NULL, {0, 0}},
    {".activation.situ_linear_beta", NULL, {0, 0}},
    {".activation_sparsity_scale", NULL, {0, 0}},
    {".attention.causal", NULL, {1, 1}},
    {".attention.clamp_kqv", NULL, {0, 0}},
    {".attention.max_alibi_bias", NULL, {0, 0}},
    {".attention.output_scale", NULL, {0, 1}},
    {".attention.shared_kv_layers", NULL, {0, 0}},
    {".attention.sliding_window", WITH_WINDOWS, {0, 0}},
    {".attention.temperature_length", NULL, {0, 8192}}, /* of whoever has a scale: llama4 */
    {".attention.temperature_scale", " llama4 ", {0, 0}},
    {".attention.value_scale", NULL, {0, 1}},
    {".embedding_length_per_layer_input", NULL, {0, 0}},
    {".embedding_scale", NULL, {0, 1}},
    {".expert_latent_length", NULL, {0, 0}},
    {".logit_scale", NULL, {0, 1}},
    {".moe_every_n_layers", NULL, {0, 1}},
    {".num_loops", NULL, {0, 1}},
    {".rescale_every_n_layers", NULL, {0, 0}},
    {".residual_scale", NULL, {0, 1}},
    {".rope.dimension_sections", WITH_SECTIONS, {0, 0}},
    {".rope.scaling.alpha", NULL, {0, 1}},
    {".rope.scaling.yarn_attn_factor", NULL, {1, 1}},
    {".rope.scaling.yarn_log_multiplier", NULL, {0, 0}},
    {".router_logit_softcapping", NULL, {0, 0}},
    {".ssm.dt_b_c_rms", NULL, {0, 0}},
    {".swiglu_clamp_exp", NULL, {0, 0}},
    {".swiglu_clamp_shexp", NULL, {0, 0}},
    {".swin_norm", NULL, {0, 0}},
    {".use_parallel_residual", NULL, {0, 0}},
};

static bool reads(const char *readers, const char *arch) {
    char word[64];
    if (!readers) return false;
    snprintf(word, sizeof word, " %s ", arch);
    return strstr(readers, word) != NULL;
}

/* A number, bool or list of such: its i-th. */
static bool number_at(const struct gguf_kv *kv, size_t i, double *v) {
    const bool list = kv->type == GGUF_ARRAY;
    const enum gguf_type type = list ? kv->array.type : kv->type;
    if (type == GGUF_STR || type == GGUF_ARRAY) return false;
    const bool real = type == GGUF_F32 || type == GGUF_F64;
    if (list)
        *v = real ? (double)gguf_array_float(&kv->array, i) : (double)gguf_array_int(&kv->array, i);
    else
        *v = real ? gguf_kv_float(kv) : (double)gguf_kv_int(kv);
    return true;
}

/* Nothing but these two. */
static ats_status only(const struct gguf_kv *kv, double a, double b) {
    const size_t n = kv->type == GGUF_ARRAY ? kv->array.n : 1;
    for (size_t i = 0; i < n; i++) {
        double v = 0;
        if (!number_at(kv, i, &v)) return fail(ATS_UNSUPPORTED, "key %s is not supported", kv->key);
        if (!(v >= a && v <= a) && !(v >= b && v <= b))
            return fail(ATS_UNSUPPORTED, "key %s is %g, which is not supported: only %g", kv->key,
                        v, b);
    }
    return ATS_OK;
}

/* A file may name the activation that its architecture has anyway, as HF spells it. */
static ats_status check_activation(const struct binding *b) {
    const char *key = ".hidden_activation", *want = "silu";
    struct gguf_str s = {"", 0};
    if (strcmp(b->file->arch, "gemma3") == 0) want = "gelu_pytorch_tanh";
    TRY(gguf_opt_str(b->file, key, &s));
    if (s.n == 0 || gguf_str_is(s, want)) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "key %s%s is \"%.*s\", which is not supported: only %s",
                b->file->arch, key, (int)min_size(s.n, 40), s.data, want);
}

ats_status keys_check(const struct binding *b) {
    const struct {
        const char *key;
        int value;
    } sizes[] = {{".attention.key_length_swa", b->hp.head_dim},
                 {".attention.value_length_swa", b->hp.head_dim},
                 {".rope.dimension_count_swa", b->hp.n_rot}};
    for (size_t i = 0; i < COUNT_OF(sizes); i++) {
        const struct gguf_kv *kv = gguf_find(b->file, sizes[i].key);
        if (kv) TRY(only(kv, sizes[i].value, sizes[i].value));
    }
    for (size_t i = 0; i < COUNT_OF(unread_keys); i++) {
        const struct unread *u = &unread_keys[i];
        const struct gguf_kv *kv = gguf_find(b->file, u->key);
        if (!kv || reads(u->readers, b->file->arch)) continue;
        TRY(only(kv, (double)u->allowed[0], (double)u->allowed[1]));
    }
    return check_activation(b);
}
