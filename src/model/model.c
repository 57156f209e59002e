#include "model/bind.h"

#include <stdlib.h>
#include <string.h>

static const struct arch {
    const char *name;
    arch_build_fn *build;
} archs[] = {
    {"llama", arch_dense_build},    {"qwen2", arch_dense_build},
    {"qwen3", arch_dense_build},    {"smollm3", arch_dense_build},
    {"phi3", arch_dense_build},     {"qwen3moe", arch_dense_build},
    {"glm4", arch_dense_build},     {"gemma3", arch_gemma_build},
    {"gpt-oss", arch_gptoss_build}, {"glm4moe", arch_glm4moe_build},
    {"llama4", arch_llama4_build},  {"qwen3next", arch_qwen35_build},
    {"qwen35", arch_qwen35_build},  {"qwen35moe", arch_qwen35_build},
};

#define MAX_LAYERS 1024
#define MAX_WIDTH  (1 << 20)
#define MAX_VOCAB  (1 << 24)

/* bind_count, with a default when absent. */
static ats_status opt_count(const struct gguf *g, const char *key, int max, int preset, int *out) {
    *out = preset;
    return gguf_find(g, key) ? bind_count(g, key, max, out) : ATS_OK;
}

static ats_status check_hparams(const struct hparams *hp) {
    if (hp->n_heads % hp->n_kv_heads != 0)
        return fail(ATS_BAD_FILE, "%d heads cannot share %d key/value heads", hp->n_heads,
                    hp->n_kv_heads);
    if (hp->n_rot % 2 != 0 || hp->n_rot > hp->head_dim)
        return fail(ATS_BAD_FILE, "key rope.dimension_count is %d, of a head of %d", hp->n_rot,
                    hp->head_dim);
    if (!(hp->norm_eps >= 0 && hp->norm_eps < 1))
        return fail(ATS_BAD_FILE, "key attention.layer_norm_rms_epsilon is out of range");
    if (!(hp->rope_freq_base > 1)) return fail(ATS_BAD_FILE, "key rope.freq_base is out of range");
    return ATS_OK;
}

/* A scale, or a soft cap by tanh; 0: none. */
static ats_status read_factor(const struct gguf *g, const char *key, float *factor) {
    TRY(gguf_opt_f32(g, key, factor));
    if (*factor < 0) return fail(ATS_BAD_FILE, "key %s%s is %g", g->arch, key, (double)*factor);
    return ATS_OK;
}

static ats_status read_layers(const struct gguf *g, struct hparams *hp) {
    uint32_t n_nextn = 0;
    TRY(bind_count(g, ".block_count", MAX_LAYERS, &hp->n_layers));
    TRY(gguf_opt_u32(g, ".nextn_predict_layers", &n_nextn));
    if (n_nextn >= (uint32_t)hp->n_layers)
        return fail(ATS_BAD_FILE, "key %s.nextn_predict_layers is %u, of %d layers", g->arch,
                    n_nextn, hp->n_layers);
    hp->n_nextn = (int)n_nextn;
    hp->n_layers -= hp->n_nextn;
    return ATS_OK;
}

static ats_status read_hparams(const struct gguf *g, struct hparams *hp) {
    TRY(read_factor(g, ".attention.scale", &hp->attn_scale));
    TRY(read_factor(g, ".attn_logit_softcapping", &hp->attn_cap));
    TRY(read_factor(g, ".final_logit_softcapping", &hp->logit_cap));
    TRY(read_layers(g, hp));
    TRY(bind_count(g, ".embedding_length", MAX_WIDTH, &hp->n_embd));
    /* Mixtures may leave it out (qwen35moe does); who has a dense layer asks again. */
    if (gguf_find(g, ".feed_forward_length") || !gguf_find(g, ".expert_feed_forward_length"))
        TRY(bind_count(g, ".feed_forward_length", MAX_WIDTH, &hp->n_ff));
    TRY(bind_count(g, ".context_length", 1 << 28, &hp->n_ctx_train));
    TRY(bind_count(g, ".attention.head_count", 4096, &hp->n_heads));
    TRY(opt_count(g, ".attention.head_count_kv", 4096, hp->n_heads, &hp->n_kv_heads));
    TRY(opt_count(g, ".attention.key_length", 8192, hp->n_embd / hp->n_heads, &hp->head_dim));
    int value_dim;
    TRY(opt_count(g, ".attention.value_length", 8192, hp->head_dim, &value_dim));
    if (value_dim != hp->head_dim)
        return fail(ATS_UNSUPPORTED, "keys of %d and values of %d elements are not supported",
                    hp->head_dim, value_dim);
    TRY(opt_count(g, ".rope.dimension_count", 8192, hp->head_dim, &hp->n_rot));
    TRY(gguf_get_f32(g, ".attention.layer_norm_rms_epsilon", &hp->norm_eps));
    hp->rope_freq_base = 10000;
    TRY(gguf_opt_f32(g, ".rope.freq_base", &hp->rope_freq_base));
    uint32_t window = 0;
    TRY(gguf_opt_u32(g, ".attention.sliding_window", &window));
    hp->sliding_window = window >= (uint32_t)hp->n_ctx_train ? 0 : (int)window;

    const struct gguf_tensor *embedding;
    TRY(gguf_tensor_get(g, "token_embd.weight", &embedding));
    if (embedding->dims[1] < 1 || embedding->dims[1] > MAX_VOCAB)
        return fail(ATS_BAD_FILE, "tensor token_embd.weight has %lld rows",
                    (long long)embedding->dims[1]);
    hp->n_vocab = (int)embedding->dims[1];
    return check_hparams(hp);
}

static const struct arch *find_arch(const char *name) {
    for (size_t i = 0; i < COUNT_OF(archs); i++)
        if (strcmp(archs[i].name, name) == 0) return &archs[i];
    return NULL;
}

/* Every tensor must have a reader: a forgotten one means a wrong result, silently. */
static ats_status check_unused(const struct binding *b) {
    int n_unused = 0;
    const char *first = NULL;
    for (int i = 0; i < b->file->n_tensors; i++) {
        if (b->used[i] || nextn_has(&b->hp, b->file->tensors[i].name)) continue;
        if (!first) first = b->file->tensors[i].name;
        n_unused++;
    }
    if (n_unused == 0 || b->options->force) return ATS_OK;
    return fail(ATS_UNSUPPORTED,
                "%d tensor%s of this %s file would be left unread, the first is %s", n_unused,
                n_unused > 1 ? "s" : "", b->file->arch, first);
}

/* Where the experts of weights in several tensors stand in the file's map. */
static void find_matrices(struct model *m) {
    const struct graph *g = m->graph;
    m->matrices = ARENA_ARRAY(&m->arena, const uint8_t *const *, g->n_weights);
    for (int i = 0; i < g->n_weights; i++) {
        const struct graph_weight *w = &g->weights[i];
        if (!w->tensors) continue;
        const uint8_t **at = ARENA_ARRAY(&m->arena, const uint8_t *, w->n_experts);
        for (int e = 0; e < w->n_experts; e++)
            at[e] = m->file->tensors[w->tensors[e]].data;
        m->matrices[i] = at;
    }
}

static void count_weights(struct model *m, const bool *used) {
    for (int i = 0; i < m->file->n_tensors; i++) {
        if (!used[i]) continue;
        m->n_params += (uint64_t)m->file->tensors[i].n_elements;
        m->weight_bytes += (uint64_t)m->file->tensors[i].n_bytes;
    }
}

static ats_status build(struct model *m, const struct model_options *options) {
    const struct gguf *file = m->file;
    if (file->no_data && !options->planning)
        return fail(ATS_UNSUPPORTED, "a shape has no weights: it can be planned, not run");
    if (!file->arch[0]) return fail(ATS_BAD_FILE, "key general.architecture is missing");
    const struct arch *arch = find_arch(file->arch);
    if (!arch) return fail(ATS_UNSUPPORTED, "architecture \"%s\" is not supported", file->arch);
    TRY(read_hparams(file, &m->hp));

    struct arena scratch = {0};
    struct binding b = {.file = file,
                        .arena = &m->arena,
                        .builder = graph_builder_open(&m->arena),
                        .options = options,
                        .hp = m->hp,
                        .used = ARENA_ARRAY(&scratch, bool, file->n_tensors),
                        .bound = ARENA_ARRAY(&scratch, int, file->n_tensors)};
    for (int i = 0; i < file->n_tensors; i++)
        b.bound[i] = -1;
    int hidden, logits;
    ats_status status = options->force ? ATS_OK : keys_check(&b);
    if (status == ATS_OK) status = arch->build(&b, &hidden, &logits);
    if (status == ATS_OK) status = check_unused(&b);
    if (status == ATS_OK) status = nextn_check(&b, &m->n_idle, &m->idle_bytes);
    if (status == ATS_OK) {
        m->graph = graph_finish(b.builder, hidden, logits, options->row_group);
        m->graph->logit_cap = m->hp.logit_cap;
        find_matrices(m);
        count_weights(m, b.used);
    } else {
        graph_discard(b.builder);
    }
    arena_free(&scratch);
    return status;
}

ats_status model_open(const struct gguf *file, const struct model_options *options,
                      struct model **out) {
    *out = NULL;
    struct model *m = xcalloc(1, sizeof *m);
    m->file = file;
    ats_status status = build(m, options);
    if (status != ATS_OK) {
        model_close(m);
        return status;
    }
    *out = m;
    return ATS_OK;
}

void model_close(struct model *m) {
    if (!m) return;
    arena_free(&m->arena);
    free(m);
}

const uint8_t *model_weight_data(const struct model *m, int weight, int64_t *row_bytes) {
    const struct graph_weight *w = &m->graph->weights[weight];
    const struct gguf_tensor *t = &m->file->tensors[w->tensor];
    const bool vector = t->n_elements == t->dims[0]; /* whose parts begin within its one row */
    *row_bytes = t->row_bytes;
    if (!t->data) return NULL;
    return t->data +
           (vector ? dtype_row_bytes(t->dtype, w->row_begin) : w->row_begin * t->row_bytes);
}

const uint8_t *const *model_weight_matrices(const struct model *m, int weight) {
    return m->matrices[weight];
}

void model_weight_done(const struct model *m, int weight) {
    const struct graph_weight *w = &m->graph->weights[weight];
    for (int i = 0; i < (w->tensors ? w->n_experts : 1); i++) {
        const struct gguf_tensor *t = &m->file->tensors[w->tensors ? w->tensors[i] : w->tensor];
        file_map_dontneed(&m->file->files[t->file_index].map, t->file_offset, (uint64_t)t->n_bytes);
    }
}
