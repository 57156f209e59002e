/*
 * Vocabularies and texts. The first byte chooses: below 128, the rest is a text for fixed small
 * vocabularies (one per pre-tokenizer, one SPM), whose pieces must give the text back; else the
 * rest describes a vocabulary, then a text. An abort is a finding.
 */
#include "base/arena.h"
#include "base/base.h"
#include "base/buf.h"
#include "base/utf8.h"
#include "text/detok.h"
#include "text/stop.h"
#include "text/tokenizer.h"

#include <stdlib.h>
#include <string.h>

#define MAX_TOKENS 600

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes);

/* What is left of the input. */
struct input {
    const uint8_t *at;
    size_t n;
};

static uint8_t take_byte(struct input *in) {
    if (in->n == 0) return 0;
    in->n--;
    return *in->at++;
}

/* A string of up to 31 bytes, its length in front. */
static struct text_span take_span(struct input *in) {
    size_t len = min_size(take_byte(in) & 31, in->n);
    struct text_span s = {(const char *)in->at, len};
    in->at += len;
    in->n -= len;
    return s;
}

struct maker {
    struct tokenizer_spec spec;
    struct text_span tokens[MAX_TOKENS], merges[MAX_TOKENS];
    float scores[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
    struct arena arena;
};

static void add(struct maker *m, struct text_span text, enum token_type type, float score) {
    size_t i = m->spec.n_tokens;
    if (i == MAX_TOKENS) return;
    m->tokens[i] = text;
    m->types[i] = (int32_t)type;
    m->scores[i] = score;
    m->spec.n_tokens = m->spec.n_types = m->spec.n_scores = i + 1;
}

static void start(struct maker *m, bool spm) {
    memset(m, 0, sizeof *m);
    tokenizer_spec_init(&m->spec);
    m->spec.model = spm ? TOKENIZER_SPM : TOKENIZER_BPE;
    m->spec.tokens = m->tokens;
    m->spec.types = m->types;
    if (spm) m->spec.scores = m->scores;
    if (!spm) m->spec.merges = m->merges;
}

/* All bytes as tokens: byte b is token b. */
static void add_bytes(struct maker *m, bool spm) {
    for (uint32_t b = 0, next = 256; b < 256; b++) {
        bool itself = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        char spelled[5] = "";
        if (!spm) utf8_encode(itself ? b : next++, spelled);
        char *text = spm ? arena_printf(&m->arena, "<0x%02X>", (unsigned)b)
                         : arena_strdup(&m->arena, spelled);
        add(m, (struct text_span){text, strlen(text)}, spm ? TOKEN_BYTE : TOKEN_NORMAL, 0);
    }
}

#define SPACE "\xE2\x96\x81"
static const char *const WORDS[] = {
    "e", "t", "a", "n", SPACE, "th", "the", "an", "aa", "aaaa", (SPACE "the"), "<", "|",
};
static const char *const MERGES[] = {"t h", "th e", "a n", "a a", "aa aa"};
static const char *const SPECIALS[] = {"<|im_start|>", "<|im_end|>", "<s>", "<think>"};

static void make_fixed(struct maker *m, const char *pre, struct tokenizer **t) {
    bool spm = !pre;
    start(m, spm);
    m->spec.pre = pre;
    m->spec.nfc = false;
    m->spec.add_space_prefix = SPEC_NO;
    add_bytes(m, spm);
    for (size_t i = 0; i < COUNT_OF(WORDS); i++) {
        add(m, (struct text_span){WORDS[i], strlen(WORDS[i])}, TOKEN_NORMAL, -(float)i);
    }
    for (size_t i = 0; i < COUNT_OF(SPECIALS); i++) {
        add(m, (struct text_span){SPECIALS[i], strlen(SPECIALS[i])},
            i == 3 ? TOKEN_USER_DEFINED : TOKEN_CONTROL, 0);
    }
    for (size_t i = 0; i < COUNT_OF(MERGES) && !spm; i++) {
        m->merges[m->spec.n_merges++] = (struct text_span){MERGES[i], strlen(MERGES[i])};
    }
    if (tokenizer_open(&m->spec, t) != ATS_OK) abort();
}

/* The pieces, put together again, are the text, but that U+2581 and space are one in SPM. */
static void check_round_trip(const struct tokenizer *t, const char *text, size_t n,
                             unsigned flags) {
    struct token_list ids = {0};
    struct buf want = {0}, got = {0};
    if (tokenizer_encode(t, text, n, flags, &ids) != ATS_OK) abort();
    utf8_add_replaced(&want, text, n);
    detok_all(t, ids.ids, ids.n, DETOK_CONTROL, &got);
    bool same = got.len == want.len && memcmp(buf_str(&got), buf_str(&want), got.len) == 0;
    bool marked = want.len >= 3 && memmem(want.data, want.len, "\xE2\x96\x81", 3);
    if (!same && !(marked && tokenizer_kind(t) == TOKENIZER_SPM)) abort();
    buf_free(&want);
    buf_free(&got);
    token_list_free(&ids);
}

static void fuzz_text(const char *text, size_t n) {
    static const char *const pres[] = {
        "gpt-2",       "smollm",  "llama-bpe",      "qwen2",      "qwen35",   "gpt-4o", "tekken",
        "deepseek-v3", "default", "deepseek-coder", "seed-coder", "minicpm5", NULL};
    static struct tokenizer *tokenizers[COUNT_OF(pres)]; /* built once, for speed */
    static struct maker m;
    for (size_t i = 0; i < COUNT_OF(pres); i++) {
        if (!tokenizers[i]) {
            make_fixed(&m, pres[i], &tokenizers[i]);
            arena_free(&m.arena);
        }
        check_round_trip(tokenizers[i], text, n, 0);
        check_round_trip(tokenizers[i], text, n, ENCODE_PARSE_SPECIAL);
    }
}

/* A spec out of the input: mostly of the right shape, so that it gets past the first checks. */
static void read_spec(struct maker *m, struct input *in) {
    static const char *const pres[] = {"gpt-2", "llama-bpe", "gpt-4o", "deepseek-v3", "what", NULL};
    static int64_t ends[2];
    uint8_t kind = take_byte(in), flags = take_byte(in), lengths = take_byte(in);
    bool spm = kind & 1;
    start(m, spm);
    m->spec.pre = pres[(kind >> 1) % COUNT_OF(pres)];
    m->spec.force = kind & 128;
    m->spec.add_bos = (enum spec_flag)((flags & 3) % 3);
    m->spec.add_eos = (enum spec_flag)((flags >> 2 & 3) % 3);
    m->spec.add_space_prefix = (enum spec_flag)((flags >> 4 & 3) % 3);
    m->spec.nfc = flags & 64;
    m->spec.special_rstrip = flags & 128;
    if (kind & 64) add_bytes(m, spm);
    for (uint8_t i = take_byte(in); i > 0 && in->n > 0; i--) {
        uint8_t type = take_byte(in);
        float score;
        uint8_t bytes[4] = {take_byte(in), 0, 0, take_byte(in)};
        memcpy(&score, bytes, 4);
        add(m, take_span(in), (enum token_type)(type & 15), score);
    }
    for (uint8_t i = take_byte(in); i > 0 && in->n > 0; i--) {
        m->merges[m->spec.n_merges++] = take_span(in);
    }
    m->spec.n_types -= m->spec.n_types > 0 && lengths == 1;
    m->spec.n_scores -= m->spec.n_scores > 0 && lengths == 2;
    if (lengths == 3) m->spec.types = NULL;
    if (lengths == 4) m->spec.scores = NULL;
    for (uint8_t i = take_byte(in) & 3; i > 0; i--) {
        int role = take_byte(in) % N_TOKEN_ROLES;
        m->spec.role_ids[role] = (int8_t)take_byte(in);
    }
    ends[0] = take_byte(in);
    m->spec.end_ids = ends;
    m->spec.n_end_ids = ends[0] & 1;
}

static void fuzz_vocab(struct input in) {
    static struct maker m;
    struct tokenizer *t;
    read_spec(&m, &in);
    if (tokenizer_open(&m.spec, &t) == ATS_OK) {
        struct token_list ids = {0};
        struct buf text = {0}, cut = {0};
        struct stop *stop;
        struct text_span needle = take_span(&in);
        unsigned flags = take_byte(&in);
        if (tokenizer_encode(t, (const char *)in.at, in.n, flags, &ids) != ATS_OK) abort();
        for (size_t i = 0; i < ids.n; i++) {
            if (ids.ids[i] < 0 || ids.ids[i] >= tokenizer_n_tokens(t)) abort();
        }
        detok_all(t, ids.ids, ids.n, flags >> 2, &text);
        if (!utf8_valid(buf_str(&text), text.len)) abort();
        if (stop_open(&needle, needle.len > 0, &stop) != ATS_OK) abort();
        stop_push(stop, buf_str(&text), text.len, &cut);
        stop_flush(stop, &cut);
        if (cut.len > text.len) abort();
        stop_close(stop);
        buf_free(&text);
        buf_free(&cut);
        token_list_free(&ids);
        tokenizer_close(t);
    }
    arena_free(&m.arena);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes) {
    if (n_bytes == 0) return 0;
    /* a copy that ends where the input ends, so that reading past it shows */
    uint8_t *copy = xmalloc(n_bytes);
    memcpy(copy, data, n_bytes);
    struct input in = {copy + 1, n_bytes - 1};
    if (copy[0] < 128) {
        fuzz_text((const char *)in.at, in.n);
    } else {
        fuzz_vocab(in);
    }
    free(copy);
    return 0;
}
