#include "run/gguf_text.h"

#include <string.h>

#define PREFIX "tokenizer.ggml."

/* Texts of an array; NULL and 0 if the key is absent. */
static ats_status read_texts(const struct gguf *g, struct arena *a, const char *key,
                             const struct text_span **out, size_t *n) {
    const struct gguf_array *array = NULL;
    TRY(gguf_opt_strs(g, key, &array));
    *out = NULL;
    *n = 0;
    if (!array) return ATS_OK;
    struct text_span *spans = ARENA_ARRAY(a, struct text_span, array->n);
    for (size_t i = 0; i < array->n; i++) {
        struct gguf_str s = gguf_array_str(array, i);
        spans[i] = (struct text_span){s.data, s.n};
    }
    *out = spans;
    *n = array->n;
    return ATS_OK;
}

static ats_status read_scores(const struct gguf *g, struct arena *a, struct tokenizer_spec *spec) {
    const struct gguf_array *array = NULL;
    TRY(gguf_opt_floats(g, PREFIX "scores", &array));
    if (!array) return ATS_OK;
    float *scores = ARENA_ARRAY(a, float, array->n);
    for (size_t i = 0; i < array->n; i++)
        scores[i] = gguf_array_float(array, i);
    spec->scores = scores;
    spec->n_scores = array->n;
    return ATS_OK;
}

static ats_status read_types(const struct gguf *g, struct arena *a, struct tokenizer_spec *spec) {
    const struct gguf_array *array = NULL;
    TRY(gguf_opt_ints(g, PREFIX "token_type", &array));
    if (!array) return ATS_OK;
    int32_t *types = ARENA_ARRAY(a, int32_t, array->n);
    for (size_t i = 0; i < array->n; i++) {
        int64_t v = gguf_array_int(array, i);
        types[i] = v < 0 || v > 1000 ? -1 : (int32_t)v; /* which tokenizer_open refuses */
    }
    spec->types = types;
    spec->n_types = array->n;
    return ATS_OK;
}

static ats_status read_flag(const struct gguf *g, const char *key, enum spec_flag *out) {
    bool value = false;
    *out = SPEC_UNSET;
    if (!gguf_find(g, key)) return ATS_OK;
    TRY(gguf_get_bool(g, key, &value));
    *out = value ? SPEC_YES : SPEC_NO;
    return ATS_OK;
}

static ats_status read_model(const struct gguf *g, struct arena *a, struct tokenizer_spec *spec) {
    struct gguf_str s;
    TRY(gguf_get_str(g, PREFIX "model", &s));
    if (gguf_str_is(s, "gpt2"))
        spec->model = TOKENIZER_BPE;
    else if (gguf_str_is(s, "llama"))
        spec->model = TOKENIZER_SPM;
    else
        return fail(ATS_UNSUPPORTED, "tokenizer model \"%.*s\" is not supported",
                    (int)min_size(s.n, 40), s.data);
    if (!gguf_find(g, PREFIX "pre")) return ATS_OK;
    TRY(gguf_get_str(g, PREFIX "pre", &s));
    spec->pre = arena_strndup(a, s.data, s.n);
    return ATS_OK;
}

static ats_status read_roles(const struct gguf *g, struct tokenizer_spec *spec) {
    for (int role = 0; role < N_TOKEN_ROLES; role++) {
        char key[64] = PREFIX;
        strncat(key, tokenizer_role_key(role), sizeof key - sizeof PREFIX);
        TRY(gguf_opt_i64(g, key, &spec->role_ids[role]));
    }
    return ATS_OK;
}

/* Phi-3's tokenizer drops white space after a special token, and no key says so. */
static ats_status name_is_phi3(const struct gguf *g, bool *yes) {
    struct gguf_str name = {"", 0};
    TRY(gguf_opt_str(g, "general.name", &name));
    *yes = false;
    for (size_t i = 0; i + 4 <= name.n; i++) {
        const char *s = name.data + i;
        if (strncasecmp(s, "phi", 3) != 0) continue;
        s += 3 + (s[3] == '-');
        *yes = *yes || (s < name.data + name.n && *s == '3');
    }
    return ATS_OK;
}

static ats_status read_spec(const struct gguf *g, struct arena *a, struct tokenizer_spec *spec) {
    TRY(read_model(g, a, spec));
    TRY(read_texts(g, a, PREFIX "tokens", &spec->tokens, &spec->n_tokens));
    TRY(read_texts(g, a, PREFIX "merges", &spec->merges, &spec->n_merges));
    TRY(read_scores(g, a, spec));
    TRY(read_types(g, a, spec));
    TRY(read_roles(g, spec));
    TRY(read_flag(g, PREFIX "add_bos_token", &spec->add_bos));
    TRY(read_flag(g, PREFIX "add_eos_token", &spec->add_eos));
    TRY(read_flag(g, PREFIX "add_space_prefix", &spec->add_space_prefix));
    return name_is_phi3(g, &spec->special_rstrip);
}

ats_status gguf_tokenizer_open(const struct gguf *g, int n_rows, bool force, bool nfc,
                               struct tokenizer **out) {
    struct arena arena = {0};
    struct tokenizer_spec spec;
    *out = NULL;
    tokenizer_spec_init(&spec);
    spec.force = force;
    spec.nfc = nfc;
    ats_status status = read_spec(g, &arena, &spec);
    if (status == ATS_OK && spec.n_tokens == 0)
        status = fail(ATS_BAD_FILE, "key tokenizer.ggml.tokens is missing or empty");
    if (status == ATS_OK && n_rows > 0 && spec.n_tokens > (size_t)n_rows)
        status = fail(ATS_BAD_FILE, "the vocabulary has %zu tokens, the embedding %d rows",
                      spec.n_tokens, n_rows);
    if (status == ATS_OK) status = tokenizer_open(&spec, out);
    arena_free(&arena);
    return status;
}

#define TEMPLATE_KEY "tokenizer.chat_template"

/* The template's name if the key is one ("default" for the plain one), else NULL. */
static const char *template_name(const struct gguf_kv *kv) {
    size_t n = sizeof TEMPLATE_KEY - 1;
    if (kv->type != GGUF_STR || strncmp(kv->key, TEMPLATE_KEY, n) != 0) return NULL;
    if (kv->key[n] == '\0') return "default";
    return kv->key[n] == '.' ? kv->key + n + 1 : NULL;
}

static const char *role_text(struct arena *a, const struct tokenizer *t, enum token_role role) {
    int32_t id = tokenizer_role_id(t, role);
    if (id < 0) return NULL;
    struct text_span piece = tokenizer_piece(t, id);
    return arena_strndup(a, piece.data, piece.len);
}

ats_status gguf_chat_open(const struct gguf *g, const struct tokenizer *t, struct chat **out) {
    struct arena arena = {0};
    struct chat_source *sources = ARENA_ARRAY(&arena, struct chat_source, g->n_kvs);
    size_t n = 0;
    for (int i = 0; i < g->n_kvs; i++) {
        const char *name = template_name(&g->kvs[i]);
        if (!name) continue;
        struct gguf_str text = gguf_kv_str(&g->kvs[i]);
        sources[n++] = (struct chat_source){name, text.data, text.n};
    }
    ats_status status =
        chat_open(sources, n, role_text(&arena, t, ROLE_BOS), role_text(&arena, t, ROLE_EOS), out);
    arena_free(&arena);
    return status;
}
