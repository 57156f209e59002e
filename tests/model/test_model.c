/* Opening a model: facts and weights of good files; tensors that are missing, too many or twisted
 * are refused by name (R40). Files are variants of the oracles. */
#include "variant.h"

/* ---- good files ---- */

static void an_unchanged_copy_opens_with_the_oracle_s_facts(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!variant_open(LLAMA, &(struct change){0}, &variant_plain, &v, &status)) skip();
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
    variant_close(&v);
}

static void every_weight_points_into_its_tensor(void **state) {
    (void)state;
    static const char *const oracles[] = {LLAMA, QWEN2, PHI3, QWEN3};
    for (size_t i = 0; i < COUNT_OF(oracles); i++) {
        struct variant v;
        ats_status status;
        if (!variant_open(oracles[i], &(struct change){0}, &variant_plain, &v, &status)) skip();
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
        variant_close(&v);
    }
}

/* q, k and v of a fused matrix are its rows one after the other; gate and up halves of ffn_up. */
static void fused_tensors_become_ranges_of_rows(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!variant_open(PHI3, &(struct change){0}, &variant_plain, &v, &status)) skip();
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
    variant_close(&v);
}

/* The order in which the CPU joins them into one pass. */
static void gate_up_and_their_product_are_neighbours(void **state) {
    (void)state;
    static const char *const oracles[] = {LLAMA, PHI3, GEMMA3, GLM4MOE};
    for (size_t i = 0; i < COUNT_OF(oracles); i++) {
        struct variant v;
        ats_status status;
        int n_found = 0;
        if (!variant_open(oracles[i], &(struct change){0}, &variant_plain, &v, &status)) skip();
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
        variant_close(&v);
    }
}

static void a_tied_head_shares_the_embedding(void **state) {
    (void)state;
    struct variant v;
    ats_status status;
    if (!variant_open(LLAMA, &(struct change){.drop_tensor = "output.weight"}, &variant_plain, &v,
                      &status))
        skip();
    TEST_OK(status);
    const struct graph *g = v.m->graph;
    const struct graph_op *head = &g->ops[g->values[g->logits].producer];
    assert_int_equal(head->weight, g->ops[0].weight);
    variant_close(&v);
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
        if (!variant_open(cases[i].oracle, &(struct change){0}, &options, &v, &status)) skip();
        TEST_OK(status);
        for (int j = 0; j < v.m->graph->n_ops; j++)
            if (v.m->graph->ops[j].kind == OP_MATMUL)
                assert_int_equal(v.m->graph->ops[j].p.matmul.math, cases[i].want);
        variant_close(&v);
    }
}

static void optional_keys_have_defaults(void **state) {
    (void)state;
    if (!variant_accepted(LLAMA, (struct change){.drop_key = "llama.rope.freq_base"})) skip();
    variant_accepted(LLAMA, (struct change){.drop_key = "llama.rope.dimension_count"});
    variant_accepted(LLAMA, (struct change){.drop_key = "llama.attention.key_length"});
    variant_accepted(LLAMA, (struct change){.drop_key = "llama.attention.value_length"});
    variant_accepted(LLAMA, (struct change){.drop_key = "general.name"});
    /* where no layer is dense, nothing needs the width of one */
    variant_accepted(QWEN35M, (struct change){.drop_key = "qwen35moe.feed_forward_length"});
    variant_accepted(QWEN3MOE, (struct change){.drop_key = "qwen3moe.feed_forward_length"});
}

/* ---- tensors ---- */

/* Tensors that may be left out: the head is then tied, rotary scaling then none, a bias or norm
 * per head then absent, but where all models of the family have them. Everything else must be
 * there. */
static bool is_optional(const char *oracle, const char *name) {
    static const char *const parts[] = {"output.weight", "rope_freqs.weight", ".bias",
                                        "attn_q_norm", "attn_k_norm"};
    if (strcmp(name, "attn_output.weight") == 0) return false;
    const char *normed[] = {GEMMA3, QWEN3, QWEN3MOE}; /* per head, all of them */
    for (size_t i = 0; i < COUNT_OF(normed); i++)
        if (strcmp(oracle, normed[i]) == 0 && strstr(name, "_norm")) return false;
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
        if (!variant_open(oracles[i], &(struct change){0}, &variant_plain, &whole, &status)) skip();
        int n_refused = 0;
        for (int j = 0; j < whole.g->n_tensors; j++) {
            const char *name = whole.g->tensors[j].name;
            struct change c = {.drop_tensor = name};
            if (is_optional(oracles[i], name)) {
                variant_accepted(oracles[i], c);
                continue;
            }
            variant_refused(oracles[i], c, ATS_UNSUPPORTED, name);
            n_refused++;
        }
        assert_true(n_refused > 10);
        variant_close(&whole);
    }
}

static void a_renamed_tensor_is_missing(void **state) {
    (void)state;
    if (!variant_refused(
            LLAMA, (struct change){.rename = "blk.0.ffn_up.weight", .name = "blk.0.ffn_upp.weight"},
            ATS_UNSUPPORTED, "tensor blk.0.ffn_up.weight is missing"))
        skip();
    /* an optional one would be dropped without a word: it is left over instead */
    variant_refused(LLAMA, (struct change){.rename = "output.weight", .name = "outputs.weight"},
                    ATS_UNSUPPORTED, "outputs.weight");
}

static void wrong_shapes_are_named_with_both(void **state) {
    (void)state;
    struct variant whole;
    ats_status status;
    if (!variant_open(LLAMA, &(struct change){0}, &variant_plain, &whole, &status)) skip();
    for (int i = 0; i < whole.g->n_tensors; i++) {
        const struct gguf_tensor *t = &whole.g->tensors[i];
        if (strcmp(t->name, "token_embd.weight") == 0) continue; /* its rows are the vocabulary */
        struct change c = {.reshape = t->name, .dims = {t->dims[0], t->dims[1] + 1}};
        variant_refused(LLAMA, c, ATS_BAD_FILE, t->name);
        c.dims[0] = t->dims[0] * 2, c.dims[1] = t->dims[1];
        variant_refused(LLAMA, c, ATS_BAD_FILE, t->name);
        if (t->dims[1] == 1 || t->dims[0] == t->dims[1]) continue;
        c.dims[0] = t->dims[1], c.dims[1] = t->dims[0]; /* transposed: as many elements */
        variant_refused(LLAMA, c, ATS_BAD_FILE, t->name);
    }
    char both[128];
    int n_embd = whole.m->hp.n_embd;
    snprintf(both, sizeof both, "is 1 x %d, expected 1 x %d", n_embd * 2, n_embd);
    variant_refused(LLAMA,
                    (struct change){.reshape = "output_norm.weight", .dims = {n_embd * 2, 1}},
                    ATS_BAD_FILE, both);
    variant_close(&whole);
}

/* More rows in the embedding than in the head: the vocabulary is the embedding's. */
static void a_head_of_another_vocabulary_is_refused(void **state) {
    (void)state;
    struct variant whole;
    ats_status status;
    if (!variant_open(LLAMA, &(struct change){0}, &variant_plain, &whole, &status)) skip();
    int64_t n_embd = whole.m->hp.n_embd;
    variant_close(&whole);
    variant_refused(LLAMA, (struct change){.reshape = "token_embd.weight", .dims = {n_embd, 641}},
                    ATS_BAD_FILE, "output.weight");
    variant_refused(LLAMA, (struct change){.drop_tensor = "token_embd.weight"}, ATS_UNSUPPORTED,
                    "token_embd.weight");
}

static void tensors_that_nothing_reads_are_listed(void **state) {
    (void)state;
    struct change c = {.extra = "blk.0.attn_sinks.weight"};
    if (!variant_refused(LLAMA, c, ATS_UNSUPPORTED, "blk.0.attn_sinks.weight")) skip();
    struct variant v;
    ats_status status;
    struct model_options options = variant_plain;
    options.force = true;
    variant_open(LLAMA, &c, &options, &v, &status);
    TEST_OK(status);
    variant_close(&v);
}

static void types_without_kernels_are_refused(void **state) {
    (void)state;
    if (!variant_refused(LLAMA,
                         (struct change){.retype = "blk.1.ffn_down.weight", .dtype = DTYPE_I16},
                         ATS_UNSUPPORTED, "blk.1.ffn_down.weight"))
        skip();
    variant_refused(LLAMA, (struct change){.retype = "blk.1.ffn_norm.weight", .dtype = DTYPE_F16},
                    ATS_UNSUPPORTED, "blk.1.ffn_norm.weight");
    variant_refused(PHI3, (struct change){.retype = "rope_factors_long.weight", .dtype = DTYPE_F16},
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
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(a_renamed_tensor_is_missing),
        cmocka_unit_test(wrong_shapes_are_named_with_both),
        cmocka_unit_test(a_head_of_another_vocabulary_is_refused),
        cmocka_unit_test(tensors_that_nothing_reads_are_listed),
        cmocka_unit_test(types_without_kernels_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
