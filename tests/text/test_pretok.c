/* Each scanner against PCRE2 with the published pattern: the oracle's strings, random strings. */
#include "support.h"

#include "base/rng.h"
#include "base/utf8.h"
#include "text/pretok.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define GPT2        "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
#define TAIL        "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED_TAIL  "| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
#define CASED(a, b)                                                                                \
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]" a "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}"  \
    "]" b

#define BLOOM " ?[^(\\s|.,!?\\x{2026}\\x{3002}\\x{FF0C}\\x{3001}\\x{964}\\x{6D4}\\x{60C})]+"
/* The letters of deepseek-llm's. */
#define CASED_LETTERS                                                                              \
    "A-Za-z\\x{B5}\\x{C0}-\\x{D6}\\x{D8}-\\x{F6}\\x{F8}-\\x{1BA}\\x{1BC}-\\x{1BF}"                 \
    "\\x{1C4}-\\x{293}\\x{295}-\\x{2AF}\\x{370}-\\x{373}\\x{376}\\x{377}\\x{37B}-\\x{37D}"         \
    "\\x{37F}\\x{386}\\x{388}-\\x{38A}\\x{38C}\\x{38E}-\\x{3A1}\\x{3A3}-\\x{3F5}"                  \
    "\\x{3F7}-\\x{481}\\x{48A}-\\x{52F}\\x{531}-\\x{556}\\x{10A0}-\\x{10C5}"                       \
    "\\x{13A0}-\\x{13F5}\\x{13F8}-\\x{13FD}\\x{1C90}-\\x{1CBA}\\x{1CBD}-\\x{1CBF}"                 \
    "\\x{1D00}-\\x{1D2B}\\x{1D6B}-\\x{1D77}\\x{1D79}-\\x{1D9A}\\x{1E00}-\\x{1F15}"                 \
    "\\x{1F18}-\\x{1F1D}\\x{1F20}-\\x{1F45}\\x{1F48}-\\x{1F4D}\\x{1F50}-\\x{1F57}\\x{1F59}"        \
    "\\x{1F5B}\\x{1F5D}\\x{1F5F}-\\x{1F7D}\\x{1F80}-\\x{1FB4}\\x{1FB6}-\\x{1FBC}\\x{1FBE}"         \
    "\\x{1FC2}-\\x{1FC4}\\x{1FC6}-\\x{1FCC}\\x{1FD0}-\\x{1FD3}\\x{1FD6}-\\x{1FDB}"                 \
    "\\x{1FE0}-\\x{1FEC}\\x{1FF2}-\\x{1FF4}\\x{1FF6}-\\x{1FFC}\\x{2102}\\x{2107}"                  \
    "\\x{210A}-\\x{2113}\\x{2115}\\x{2119}-\\x{211D}\\x{2124}\\x{2126}\\x{2128}"                   \
    "\\x{212A}-\\x{212D}\\x{212F}-\\x{2134}\\x{2139}\\x{213C}-\\x{213F}\\x{2145}-\\x{2149}"        \
    "\\x{214E}\\x{2183}\\x{2184}\\x{2C00}-\\x{2C7B}\\x{2C7E}-\\x{2CE4}\\x{2CEB}-\\x{2CEE}"         \
    "\\x{2CF2}\\x{2CF3}\\x{A640}-\\x{A66D}\\x{A680}-\\x{A69B}\\x{A722}-\\x{A76F}"                  \
    "\\x{A771}-\\x{A787}\\x{A78B}-\\x{A78E}\\x{AB70}-\\x{ABBF}\\x{FB00}-\\x{FB06}"                 \
    "\\x{FB13}-\\x{FB17}\\x{FF21}-\\x{FF3A}\\x{FF41}-\\x{FF5A}\\x{10400}-\\x{1044F}"               \
    "\\x{104B0}-\\x{104D3}\\x{104D8}-\\x{104FB}\\x{10C80}-\\x{10CB2}\\x{10CC0}-\\x{10CF2}"         \
    "\\x{118A0}-\\x{118DF}\\x{1E900}-\\x{1E943}"

/* Patterns of each stage, as the vocabularies' own files or llama.cpp (default) have them. */
static const char *const PATTERNS[N_PRETOK_KINDS][7] = {
    [PRETOK_GPT2] = {GPT2},
    [PRETOK_SMOLLM] = {"\\p{N}", GPT2},
    [PRETOK_LLAMA3] = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}" TAIL},
    [PRETOK_QWEN2] = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}" TAIL},
    [PRETOK_QWEN35] = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}"
                                   "| ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*"
                                   "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    [PRETOK_GPT4O] = {CASED("*", "+") CONTRACTION "?|" CASED("+", "*") CONTRACTION
                      "?|\\p{N}{1,3}" CASED_TAIL},
    [PRETOK_TEKKEN] = {CASED("*", "+") "|" CASED("+", "*") "|\\p{N}" CASED_TAIL},
    [PRETOK_DEEPSEEK3] = {"\\p{N}{1,3}",
                          "[\\x{4E00}-\\x{9FA5}\\x{3040}-\\x{309F}\\x{30A0}-\\x{30FF}]+",
                          "[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+"
                          "|[^\\r\\n\\p{L}\\p{P}\\p{S}]?[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\\r\\n]*"
                          "|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"},
    [PRETOK_DEEPSEEK_CODER] = {"[\r\n]", "\\s?\\p{L}+", "\\s?\\p{P}+",
                               "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+",
                               "\\p{N}"},
    [PRETOK_DEEPSEEK_LLM] = {"[\r\n]", "\\s?[" CASED_LETTERS "]+",
                             "\\s?[!-/:-~\\x{FF01}-\\x{FF0F}\\x{FF1A}-\\x{FF5E}"
                             "\\x{2018}-\\x{201F}\\x{3000}-\\x{3002}]+",
                             "\\s+$", "[\\x{4E00}-\\x{9FA5}\\x{800}-\\x{4E00}\\x{AC00}-\\x{D7FF}]+",
                             "\\p{N}"},
    [PRETOK_SEED_CODER] = {CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1}"
                                       "| ?[^\\s\\p{L}\\p{N}\\r\\n]+|\\s*[\\r\\n]+"
                                       "|\\s+(?!\\S)|\\s+"},
    [PRETOK_MINICPM5] = {"\\p{N}{1,3}", CONTRACTION "|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}+" TAIL},
    [PRETOK_BLOOM] = {BLOOM},
    [PRETOK_VIKING] = {BLOOM, "\\p{N}"},
    [PRETOK_DEFAULT] = {"[\\p{P}\\$\\+<=>\\^~\\|]+", GPT2, "\\p{N}+", "[0-9][0-9][0-9]"},
};

static const char *const KIND_NAMES[N_PRETOK_KINDS] = {
    [PRETOK_GPT2] = "gpt-2",
    [PRETOK_SMOLLM] = "smollm",
    [PRETOK_LLAMA3] = "llama-bpe",
    [PRETOK_QWEN2] = "qwen2",
    [PRETOK_QWEN35] = "qwen35",
    [PRETOK_GPT4O] = "gpt-4o",
    [PRETOK_TEKKEN] = "tekken",
    [PRETOK_DEEPSEEK3] = "deepseek-v3",
    [PRETOK_DEFAULT] = "default",
    [PRETOK_DEEPSEEK_CODER] = "deepseek-coder",
    [PRETOK_SEED_CODER] = "seed-coder",
    [PRETOK_MINICPM5] = "minicpm5",
    [PRETOK_DEEPSEEK_LLM] = "deepseek-llm",
    [PRETOK_BLOOM] = "bloom",
    [PRETOK_VIKING] = "viking",
};

static pcre2_code *compile(const char *pattern) {
    int error;
    PCRE2_SIZE where;
    pcre2_code *code = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                                     PCRE2_UTF | PCRE2_UCP, &error, &where, NULL);
    if (!code) fail_msg("pattern does not compile at %zu: %s", (size_t)where, pattern);
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
    return code;
}

struct oracle {
    pcre2_code *codes[7];
    pcre2_match_data *match;
    size_t *ends[2];
    size_t n;
};

static void oracle_open(struct oracle *o, enum pretok_kind kind, size_t max_bytes) {
    memset(o, 0, sizeof *o);
    for (int i = 0; PATTERNS[kind][i]; i++)
        o->codes[i] = compile(PATTERNS[kind][i]);
    o->match = pcre2_match_data_create(8, NULL);
    for (int i = 0; i < 2; i++)
        o->ends[i] = calloc(max_bytes + 1, sizeof(size_t));
}

static void oracle_close(struct oracle *o) {
    for (int i = 0; i < 7; i++)
        pcre2_code_free(o->codes[i]);
    pcre2_match_data_free(o->match);
    free(o->ends[0]);
    free(o->ends[1]);
}

/* One stage: every piece is a text of its own, cut into matches and what lies between. */
static size_t oracle_stage(struct oracle *o, pcre2_code *code, const char *text, const size_t *in,
                           size_t n_in, size_t *out) {
    size_t n = 0, begin = 0;
    for (size_t i = 0; i < n_in; begin = in[i++]) {
        size_t len = in[i] - begin, at = 0;
        while (at < len) {
            int rc = pcre2_match(code, (PCRE2_SPTR)(text + begin), len, at, PCRE2_NO_UTF_CHECK,
                                 o->match, NULL);
            if (rc < 0 && rc != PCRE2_ERROR_NOMATCH) fail_msg("pcre2_match: %d", rc);
            if (rc < 0) break;
            PCRE2_SIZE *span = pcre2_get_ovector_pointer(o->match);
            assert_true(span[1] > span[0]);
            if (span[0] > at) out[n++] = begin + span[0];
            out[n++] = begin + span[1];
            at = span[1];
        }
        if (at < len) out[n++] = begin + len;
    }
    return n;
}

static const size_t *oracle_split(struct oracle *o, const char *text, size_t len) {
    o->n = len > 0;
    o->ends[0][0] = len;
    for (int i = 0; o->codes[i]; i++) {
        o->n = oracle_stage(o, o->codes[i], text, o->ends[0], o->n, o->ends[1]);
        size_t *swap = o->ends[0];
        o->ends[0] = o->ends[1];
        o->ends[1] = swap;
    }
    return o->ends[0];
}

static void check(struct oracle *o, struct pretok *p, enum pretok_kind kind, const char *text,
                  size_t len) {
    const size_t *want = oracle_split(o, text, len);
    pretok_split(p, kind, text, len);
    for (size_t i = 0; i < max_size(o->n, p->n_words); i++) {
        if (i < o->n && i < p->n_words && p->ends[i] == want[i]) continue;
        print_error("text:");
        for (size_t k = 0; k < len; k++)
            print_error(" %02x", (unsigned char)text[k]);
        print_error("\n");
        fail_msg("%s: word %zu of %zu (PCRE2: %zu) ends at %zu, PCRE2: at %zu", KIND_NAMES[kind], i,
                 p->n_words, o->n, i < p->n_words ? (size_t)p->ends[i] : 0, i < o->n ? want[i] : 0);
    }
}

static void tricky_strings_are_cut_as_the_patterns_do(void **state) {
    (void)state;
    char path[512];
    if (!test_shared_path(path, sizeof path, "tokenizers/strings.json")) skip();
    json_t *doc = test_json_read(path), *texts = test_json_get(doc, "texts");
    struct pretok p = {0};
    for (int kind = 0; kind < N_PRETOK_KINDS; kind++) {
        struct oracle o;
        oracle_open(&o, kind, 4096);
        assert_true(json_array_size(texts) > 200);
        for (size_t i = 0; i < json_array_size(texts); i++) {
            json_t *text = json_array_get(texts, i);
            assert_true(json_string_length(text) <= 4096);
            check(&o, &p, kind, json_string_value(text), json_string_length(text));
        }
        oracle_close(&o);
    }
    pretok_free(&p);
    json_decref(doc);
}

/* Characters that the patterns tell apart, several of each class. Not U+180E: PCRE2's \s takes it,
 * Unicode's White_Space and the reference libraries do not. */
static const uint32_t ALPHABET[] = {
    ' ',     ' ',     ' ',    '\t',   '\n',   '\r',   '\v',   0x85,     0xA0,   0x2003, 0x2028,
    0x3000,  'a',     'b',    's',    't',    'r',    'e',    'l',      'v',    'm',    'd',
    'S',     'T',     'R',    'E',    'L',    'V',    'M',    'D',      'A',    'Z',    0x17F,
    0xE9,    0xC9,    0x1C5,  0x2B0,  0x3B1,  0x391,  0x4E2D, 0x9FA5,   0x9FA6, 0x3042, 0x30A2,
    0x3400,  0x645,   0x915,  0x301,  0x93F,  0x20E3, 0xFE0F, '0',      '1',    '9',    0x661,
    0x2160,  0xBD,    0xB2,   '\'',   '\'',   '\'',   '.',    '/',      '/',    '-',    '_',
    '$',     '+',     '<',    '^',    '`',    '|',    '~',    0x2019,   0x3001, 0x20AC, 0x2192,
    0x1F642, 0x1F3FD, 0x200D, 0,      1,      0x7F,   0xE000, 0x10FFFF, 0x2581, 0xFFFD, 0xAD,
    0x2800,  '(',     ',',    '!',    ')',    0x2026, 0x3002, 0xFF0C,   0xFF01, 0xFF5E, 0xFF21,
    0x60C,   0x1FBE,  0x212A, 0x10D0, 0xA790, 0xAC00, 0x800,
};

static void random_strings_are_cut_as_the_patterns_do(void **state) {
    (void)state;
    struct pretok p = {0};
    struct rng rng;
    for (int kind = 0; kind < N_PRETOK_KINDS; kind++) {
        struct oracle o;
        oracle_open(&o, kind, 256);
        rng_seed(&rng, 42);
        for (int round = 0; round < 20000; round++) {
            char text[256];
            size_t len = 0;
            uint32_t n = 1 + rng_below(&rng, 24), cp = ' ';
            for (uint32_t i = 0; i < n; i++) { /* runs are likelier than in plain noise */
                if (rng_below(&rng, 3) != 0) {
                    cp = ALPHABET[rng_below(&rng, (uint32_t)COUNT_OF(ALPHABET))];
                }
                len += (size_t)utf8_encode(cp, text + len);
            }
            check(&o, &p, kind, text, len);
        }
        oracle_close(&o);
    }
    pretok_free(&p);
}

/* Every assigned character, between letters, digits, spaces and signs. Code points that PCRE2's
 * tables do not know yet are left out: the tables may be a Unicode version apart. */
static void every_character_has_the_class_that_pcre2_gives_it(void **state) {
    (void)state;
    struct pretok p = {0};
    pcre2_code *unassigned = compile("^\\p{Cn}");
    pcre2_match_data *match = pcre2_match_data_create(4, NULL);
    struct oracle o[5];
    static const enum pretok_kind kinds[5] = {PRETOK_QWEN35, PRETOK_GPT4O, PRETOK_DEEPSEEK3,
                                              PRETOK_DEEPSEEK_LLM, PRETOK_BLOOM};
    for (int k = 0; k < 5; k++)
        oracle_open(&o[k], kinds[k], 64);
    int n = 0;
    for (uint32_t cp = 0; cp <= 0x10FFFF; cp++) {
        char text[64];
        if (cp == 0x180E || (cp >= 0xD800 && cp <= 0xDFFF)) continue;
        if (cp >= 0xF0010 && (cp & 0xFFFF) > 16) continue; /* planes of private use: all alike */
        int len = utf8_encode(cp, text);
        if (pcre2_match(unassigned, (PCRE2_SPTR)text, (size_t)len, 0, 0, match, NULL) >= 0)
            continue;
        size_t at = 0;
        static const char *const between[] = {"a", "A", "1", ".", " ", "\n"};
        for (size_t i = 0; i < COUNT_OF(between); i++) {
            text[at++] = between[i][0];
            at += (size_t)utf8_encode(cp, text + at);
        }
        for (int k = 0; k < 5; k++)
            check(&o[k], &p, kinds[k], text, at);
        n++;
    }
    assert_true(n > 140000);
    for (int k = 0; k < 5; k++)
        oracle_close(&o[k]);
    pcre2_code_free(unassigned);
    pcre2_match_data_free(match);
    pretok_free(&p);
}

static void every_name_finds_its_rule(void **state) {
    (void)state;
    for (int kind = 0; kind < N_PRETOK_KINDS; kind++) {
        const struct pretok_rule *rule = pretok_find(KIND_NAMES[kind]);
        assert_non_null(rule);
        assert_int_equal(rule->kind, kind);
    }
    assert_true(pretok_find("llama3")->ignore_merges && pretok_find("llama3")->add_bos);
    assert_true(pretok_find("glm4")->ignore_merges && !pretok_find("glm4")->add_bos);
    assert_false(pretok_find("chatglm-bpe")->ignore_merges);
    assert_int_equal(pretok_find("llama4")->kind, PRETOK_GPT4O);
    assert_int_equal(pretok_find("chatglm-bpe")->kind, PRETOK_LLAMA3);
    assert_int_equal(pretok_find("poro-chat")->kind, PRETOK_BLOOM);
    assert_null(pretok_find("no-such"));
    assert_null(pretok_find(""));
}

static void an_empty_text_has_no_words(void **state) {
    (void)state;
    struct pretok p = {0};
    pretok_split(&p, PRETOK_GPT2, "", 0);
    assert_int_equal(p.n_words, 0);
    pretok_split(&p, PRETOK_GPT2, "a b", 3);
    assert_int_equal(p.n_words, 2);
    pretok_split(&p, PRETOK_GPT2, NULL, 0);
    assert_int_equal(p.n_words, 0);
    pretok_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tricky_strings_are_cut_as_the_patterns_do),
        cmocka_unit_test(random_strings_are_cut_as_the_patterns_do),
        cmocka_unit_test(every_character_has_the_class_that_pcre2_gives_it),
        cmocka_unit_test(every_name_finds_its_rule),
        cmocka_unit_test(an_empty_text_has_no_words),
    };
    return cmocka_run_group_tests_name("pretok", tests, NULL, NULL);
}
