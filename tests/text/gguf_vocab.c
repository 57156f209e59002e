#include "gguf_vocab.h"

#include "base/arena.h"
#include "model/gguf.h"
#include "support.h"

#include <ctype.h>

#define PREFIX "tokenizer.ggml."

static struct text_span *spans_of(struct arena *a, const struct gguf_array *strs) {
    struct text_span *spans = ARENA_ARRAY(a, struct text_span, strs->n);
    for (size_t i = 0; i < strs->n; i++) {
        struct gguf_str s = gguf_array_str(strs, i);
        spans[i] = (struct text_span){s.data, s.n};
    }
    return spans;
}

static enum spec_flag flag_of(const struct gguf *g, const char *key) {
    if (!gguf_find(g, key)) return SPEC_UNSET;
    bool v;
    TEST_OK(gguf_get_bool(g, key, &v));
    return v ? SPEC_YES : SPEC_NO;
}

static bool name_is_phi3(const struct gguf *g) {
    struct gguf_str name = {"", 0};
    char low[64] = "";
    TEST_OK(gguf_opt_str(g, "general.name", &name));
    for (size_t i = 0; i < name.n && i < sizeof low - 1; i++) {
        low[i] = (char)tolower((unsigned char)name.data[i]);
    }
    return strstr(low, "phi3") || strstr(low, "phi-3");
}

void gguf_vocab_open(const char *path, bool nfc, struct tokenizer **t) {
    struct gguf *g;
    struct arena arena = {0};
    struct tokenizer_spec spec;
    const struct gguf_array *a = NULL;
    struct gguf_str s;
    TEST_OK(gguf_open(path, &g));
    tokenizer_spec_init(&spec);
    TEST_OK(gguf_get_str(g, PREFIX "model", &s));
    spec.model = s.n == 5 && memcmp(s.data, "llama", 5) == 0 ? TOKENIZER_SPM : TOKENIZER_BPE;
    TEST_OK(gguf_get_str(g, PREFIX "pre", &s));
    spec.pre = arena_strndup(&arena, s.data, s.n);
    TEST_OK(gguf_get_strs(g, PREFIX "tokens", &a));
    spec.n_tokens = a->n;
    spec.tokens = spans_of(&arena, a);
    a = NULL;
    TEST_OK(gguf_opt_strs(g, PREFIX "merges", &a));
    if (a) spec.merges = spans_of(&arena, a);
    if (a) spec.n_merges = a->n;
    a = NULL;
    TEST_OK(gguf_opt_floats(g, PREFIX "scores", &a));
    if (a) {
        float *scores = ARENA_ARRAY(&arena, float, a->n);
        for (size_t i = 0; i < a->n; i++)
            scores[i] = gguf_array_float(a, i);
        spec.scores = scores;
        spec.n_scores = a->n;
    }
    TEST_OK(gguf_get_ints(g, PREFIX "token_type", &a));
    int32_t *types = ARENA_ARRAY(&arena, int32_t, a->n);
    for (size_t i = 0; i < a->n; i++)
        types[i] = (int32_t)gguf_array_int(a, i);
    spec.types = types;
    spec.n_types = a->n;
    for (int role = 0; role < N_TOKEN_ROLES; role++) {
        const char *key = arena_printf(&arena, PREFIX "%s", tokenizer_role_key(role));
        TEST_OK(gguf_opt_i64(g, key, &spec.role_ids[role]));
    }
    spec.add_bos = flag_of(g, PREFIX "add_bos_token");
    spec.add_eos = flag_of(g, PREFIX "add_eos_token");
    spec.add_space_prefix = flag_of(g, PREFIX "add_space_prefix");
    spec.special_rstrip = name_is_phi3(g);
    spec.nfc = nfc;
    TEST_OK(tokenizer_open(&spec, t));
    gguf_close(g);
    arena_free(&arena);
}
