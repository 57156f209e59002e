#include "vocab_maker.h"

#include "base/utf8.h"

int32_t add_token(struct maker *m, const char *text, enum token_type type, float score) {
    size_t i = m->spec.n_tokens++;
    assert_true(i < MAX_TOKENS);
    m->tokens[i] = (struct text_span){arena_strdup(&m->arena, text), strlen(text)};
    m->types[i] = type;
    m->scores[i] = score;
    m->spec.n_types = m->spec.n_scores = m->spec.n_tokens;
    return (int32_t)i;
}

void add_merge(struct maker *m, const char *text) {
    size_t i = m->spec.n_merges++;
    assert_true(i < MAX_TOKENS);
    m->merges[i] = (struct text_span){arena_strdup(&m->arena, text), strlen(text)};
}

void make_empty(struct maker *m, enum tokenizer_model model) {
    memset(m, 0, sizeof *m);
    tokenizer_spec_init(&m->spec);
    m->spec.model = model;
    m->spec.tokens = m->tokens;
    m->spec.types = m->types;
    if (model == TOKENIZER_SPM) m->spec.scores = m->scores;
    if (model == TOKENIZER_BPE) m->spec.merges = m->merges;
    m->spec.add_space_prefix = SPEC_NO;
    m->spec.add_bos = SPEC_NO;
}

void make_bpe(struct maker *m, const char *pre) {
    make_empty(m, TOKENIZER_BPE);
    m->spec.pre = pre;
    for (uint32_t b = 0, next = 256; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        char text[5] = "";
        utf8_encode(itself ? b : next++, text);
        add_token(m, text, TOKEN_NORMAL, 0);
    }
}

void make_spm(struct maker *m) {
    make_empty(m, TOKENIZER_SPM);
    m->spec.role_ids[ROLE_UNK] = add_token(m, "<unk>", TOKEN_UNKNOWN, 0);
    for (int b = 0; b < 256; b++) {
        char text[8];
        snprintf(text, sizeof text, "<0x%02X>", (unsigned)b);
        add_token(m, text, TOKEN_BYTE, 0);
    }
}

void maker_free(struct maker *m) {
    arena_free(&m->arena);
}

struct tokenizer *open_it(const struct maker *m) {
    struct tokenizer *t;
    TEST_OK(tokenizer_open(&m->spec, &t));
    return t;
}

const char *ids_of(const struct tokenizer *t, const char *text, unsigned flags) {
    static char out[1024];
    struct token_list got = {0};
    size_t at = 0;
    out[0] = 0;
    TEST_OK(tokenizer_encode(t, text, strlen(text), flags, &got));
    for (size_t i = 0; i < got.n; i++) {
        at += (size_t)snprintf(out + at, sizeof out - at, "%s%d", i ? " " : "", (int)got.ids[i]);
    }
    token_list_free(&got);
    return out;
}
