#include "text/pretok.h"

#include "base/arena.h"
#include "base/utf8.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

/* Classes of characters. UPPER and LOWER are the two sets of the case-aware patterns, which share
 * all that has no case: [Lu Lt Lm Lo M] and [Ll Lm Lo M]. */
enum {
    CLASS_LETTER = 1,
    CLASS_MARK = 2,
    CLASS_NUMBER = 4,
    CLASS_SPACE = 8,    /* White_Space */
    CLASS_NEWLINE = 16, /* \r \n, which are SPACE too */
    CLASS_UPPER = 32,
    CLASS_LOWER = 64,
    CLASS_PUNCT = 128,
    CLASS_SYMBOL = 256,
};

static const struct pretok_rule RULES[] = {
    {"default", PRETOK_DEFAULT, false, false},
    {"gpt-2", PRETOK_GPT2, false, false},
    {"phi-2", PRETOK_GPT2, false, false},
    {"mpt", PRETOK_GPT2, false, false},
    {"olmo", PRETOK_GPT2, false, false},
    {"jais", PRETOK_GPT2, false, false},
    {"trillion", PRETOK_GPT2, false, false},
    {"granite-docling", PRETOK_GPT2, false, false},
    {"gigachat", PRETOK_GPT2, false, false},
    {"a.x-4.0", PRETOK_GPT2, false, false},
    {"mellum", PRETOK_GPT2, false, false},
    {"exaone4", PRETOK_GPT2, false, false},
    {"smollm", PRETOK_SMOLLM, false, false},
    {"starcoder", PRETOK_SMOLLM, false, false},
    {"refact", PRETOK_SMOLLM, false, false},
    {"command-r", PRETOK_SMOLLM, false, false},
    {"codeshell", PRETOK_SMOLLM, false, false},
    {"exaone", PRETOK_SMOLLM, false, false},
    {"minerva-7b", PRETOK_SMOLLM, false, false},
    {"mellum2", PRETOK_SMOLLM, false, false},
    {"llama-bpe", PRETOK_LLAMA3, true, true},
    {"llama3", PRETOK_LLAMA3, true, true},
    {"llama-v3", PRETOK_LLAMA3, true, true},
    {"falcon3", PRETOK_LLAMA3, true, true},
    {"falcon-h1", PRETOK_LLAMA3, true, true},
    {"pixtral", PRETOK_LLAMA3, true, true},
    {"midm-2.0", PRETOK_LLAMA3, true, true},
    {"lfm2", PRETOK_LLAMA3, true, true},
    {"glm4", PRETOK_LLAMA3, true, false},
    {"glm5", PRETOK_LLAMA3, true, false},
    {"chatglm-bpe", PRETOK_LLAMA3, false, false},
    {"dbrx", PRETOK_LLAMA3, false, false},
    {"smaug-bpe", PRETOK_LLAMA3, false, false},
    {"qwen2", PRETOK_QWEN2, false, false},
    {"deepseek-r1-qwen", PRETOK_QWEN2, false, false},
    {"kormo", PRETOK_QWEN2, false, false},
    {"f2llmv2", PRETOK_QWEN2, false, false},
    {"megrez", PRETOK_QWEN2, false, false},
    {"stablelm2", PRETOK_QWEN2, false, false},
    {"hunyuan", PRETOK_QWEN2, false, false},
    {"solar-open", PRETOK_QWEN2, false, false},
    {"grok-2", PRETOK_QWEN2, false, false},
    {"qwen35", PRETOK_QWEN35, false, false},
    {"gpt-4o", PRETOK_GPT4O, false, false},
    {"llama4", PRETOK_GPT4O, false, false},
    {"kanana2", PRETOK_GPT4O, false, false},
    {"talkie", PRETOK_GPT4O, false, false},
    {"minimax-m2", PRETOK_GPT4O, false, false},
    {"tekken", PRETOK_TEKKEN, true, true},
    {"deepseek-coder", PRETOK_DEEPSEEK_CODER, false, false},
    {"deepseek-llm", PRETOK_DEEPSEEK_LLM, false, false},
    {"seed-coder", PRETOK_SEED_CODER, false, false},
    {"minicpm5", PRETOK_MINICPM5, true, false},
    {"bloom", PRETOK_BLOOM, false, false},
    {"gpt3-finnish", PRETOK_BLOOM, false, false},
    {"poro-chat", PRETOK_BLOOM, false, false},
    {"viking", PRETOK_VIKING, false, false},
    {"deepseek-v3", PRETOK_DEEPSEEK3, false, false},
    {"hunyuan-dense", PRETOK_DEEPSEEK3, false, false},
    {"joyai-llm", PRETOK_DEEPSEEK3, false, false},
    {"hy_v4", PRETOK_DEEPSEEK3, false, false},
};

const struct pretok_rule *pretok_find(const char *name) {
    for (size_t i = 0; i < COUNT_OF(RULES); i++) {
        if (strcmp(RULES[i].name, name) == 0) return &RULES[i];
    }
    return NULL;
}

static bool is_white_space(uint32_t cp) {
    return (cp >= 9 && cp <= 13) || cp == ' ' || cp == 0x85 || cp == 0xA0 || cp == 0x1680 ||
           (cp >= 0x2000 && cp <= 0x200A) || cp == 0x2028 || cp == 0x2029 || cp == 0x202F ||
           cp == 0x205F || cp == 0x3000;
}

static uint16_t class_of(uint32_t cp) {
    uint16_t class = 0;
    if (is_white_space(cp)) class |= CLASS_SPACE;
    if (cp == '\r' || cp == '\n') class |= CLASS_NEWLINE;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LT:
        return class | CLASS_LETTER | CLASS_UPPER;
    case UTF8PROC_CATEGORY_LL:
        return class | CLASS_LETTER | CLASS_LOWER;
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return class | CLASS_LETTER | CLASS_UPPER | CLASS_LOWER;
    case UTF8PROC_CATEGORY_MN:
    case UTF8PROC_CATEGORY_MC:
    case UTF8PROC_CATEGORY_ME:
        return class | CLASS_MARK | CLASS_UPPER | CLASS_LOWER;
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return class | CLASS_NUMBER;
    case UTF8PROC_CATEGORY_PC:
    case UTF8PROC_CATEGORY_PD:
    case UTF8PROC_CATEGORY_PS:
    case UTF8PROC_CATEGORY_PE:
    case UTF8PROC_CATEGORY_PI:
    case UTF8PROC_CATEGORY_PF:
    case UTF8PROC_CATEGORY_PO:
        return class | CLASS_PUNCT;
    case UTF8PROC_CATEGORY_SM:
    case UTF8PROC_CATEGORY_SC:
    case UTF8PROC_CATEGORY_SK:
    case UTF8PROC_CATEGORY_SO:
        return class | CLASS_SYMBOL;
    default:
        return class;
    }
}

/*
 * Scanners: each gives the end of the match that begins at `at`, or `at` when nothing matches
 * there; at < end. They see the piece up to `end` only: what follows counts as the end of the text.
 */
typedef size_t match_fn(const struct pretok *p, size_t at, size_t end);

static size_t run_of(const struct pretok *p, size_t at, size_t end, unsigned classes) {
    while (at < end && (p->class[at] & classes))
        at++;
    return at;
}

static size_t run_not_of(const struct pretok *p, size_t at, size_t end, unsigned classes) {
    while (at < end && !(p->class[at] & classes))
        at++;
    return at;
}

static bool is_at(const struct pretok *p, size_t at, size_t end, unsigned classes) {
    return at < end && (p->class[at] & classes);
}

/* 's 't 're 've 'm 'll 'd; any_case as in (?i:...): U+017F is a small s too. */
static size_t match_contraction(const struct pretok *p, size_t at, size_t end, bool any_case) {
    if (end - at < 2 || p->cp[at] != '\'') return at;
    uint32_t c[2] = {p->cp[at + 1], end - at > 2 ? p->cp[at + 2] : 0};
    for (int i = 0; any_case && i < 2; i++) {
        if (c[i] >= 'A' && c[i] <= 'Z') c[i] += 'a' - 'A';
        if (c[i] == 0x17F) c[i] = 's';
    }
    if (c[0] == 's' || c[0] == 't' || c[0] == 'm' || c[0] == 'd') return at + 2;
    bool two = ((c[0] == 'r' || c[0] == 'v') && c[1] == 'e') || (c[0] == 'l' && c[1] == 'l');
    return two ? at + 3 : at;
}

/* \s+(?!\S)|\s+ : a run of spaces leaves its last to the word that follows. */
static size_t match_spaces(const struct pretok *p, size_t at, size_t end) {
    size_t e = run_of(p, at, end, CLASS_SPACE);
    return e < end && e - at > 1 ? e - 1 : e;
}

/* \s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t match_lines(const struct pretok *p, size_t at, size_t end) {
    for (size_t e = run_of(p, at, end, CLASS_SPACE); e > at; e--) {
        if (p->class[e - 1] & CLASS_NEWLINE) return e;
    }
    return match_spaces(p, at, end);
}

/* Up to max of \p{N}. */
static size_t match_number(const struct pretok *p, size_t at, size_t end, size_t max) {
    return run_of(p, at, min_size(end, at + max), CLASS_NUMBER);
}

/* 's|...| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+ */
static size_t match_gpt2(const struct pretok *p, size_t at, size_t end) {
    size_t e = match_contraction(p, at, end, false);
    if (e > at) return e;
    size_t s = at + (p->cp[at] == ' ' && at + 1 < end);
    if (p->class[s] & CLASS_LETTER) return run_of(p, s, end, CLASS_LETTER);
    if (p->class[s] & CLASS_NUMBER) return run_of(p, s, end, CLASS_NUMBER);
    unsigned not_other = CLASS_SPACE | CLASS_LETTER | CLASS_NUMBER;
    e = run_not_of(p, s, end, not_other);
    return e > s ? e : match_spaces(p, at, end);
}

/*
 * (?i:'s|...)|[^\r\n\p{L}\p{N}]?W+|\p{N}{1,D}| ?[^\s\p{L}\p{N}]+T*|\s*[\r\n]+|\s+(?!\S)|\s+
 * where W is the set `word` (which the fourth part leaves out too), D is max_digits and T is the
 * set `tail`: newlines or nothing.
 */
static size_t match_words(const struct pretok *p, size_t at, size_t end, unsigned word,
                          size_t max_digits, unsigned tail) {
    size_t e = match_contraction(p, at, end, true);
    if (e > at) return e;
    if (p->class[at] & word) return run_of(p, at, end, word);
    if (p->class[at] & CLASS_NUMBER) return match_number(p, at, end, max_digits);
    if (!(p->class[at] & CLASS_NEWLINE) && is_at(p, at + 1, end, word)) {
        return run_of(p, at + 1, end, word);
    }
    size_t s = at + (p->cp[at] == ' ');
    e = run_not_of(p, s, end, CLASS_SPACE | CLASS_LETTER | CLASS_NUMBER | word);
    if (e > s) return run_of(p, e, end, tail);
    return match_lines(p, at, end);
}

static size_t match_llama3(const struct pretok *p, size_t at, size_t end) {
    return match_words(p, at, end, CLASS_LETTER, 3, CLASS_NEWLINE);
}

static size_t match_qwen2(const struct pretok *p, size_t at, size_t end) {
    return match_words(p, at, end, CLASS_LETTER, 1, CLASS_NEWLINE);
}

static size_t match_qwen35(const struct pretok *p, size_t at, size_t end) {
    return match_words(p, at, end, CLASS_LETTER | CLASS_MARK, 1, CLASS_NEWLINE);
}

static size_t match_seed_coder(const struct pretok *p, size_t at, size_t end) {
    return match_words(p, at, end, CLASS_LETTER, 1, 0);
}

/* UPPER*LOWER+ : where UPPER* took too much, the last character that is in both sets goes back. */
static size_t match_upper_lower(const struct pretok *p, size_t at, size_t end) {
    size_t upper = run_of(p, at, end, CLASS_UPPER);
    if (is_at(p, upper, end, CLASS_LOWER)) return run_of(p, upper, end, CLASS_LOWER);
    while (upper > at && !(p->class[upper - 1] & CLASS_LOWER))
        upper--;
    return upper;
}

/* X?UPPER*LOWER+|X?UPPER+LOWER* with X = [^\r\n\p{L}\p{N}]; X may be a mark, hence the order. */
static size_t match_cased_word(const struct pretok *p, size_t at, size_t end) {
    bool prefix = !(p->class[at] & (CLASS_NEWLINE | CLASS_LETTER | CLASS_NUMBER));
    size_t e;
    if (prefix && (e = match_upper_lower(p, at + 1, end)) > at + 1) return e;
    if ((e = match_upper_lower(p, at, end)) > at) return e;
    /* no LOWER follows, or the first half would have matched */
    if (prefix && (e = run_of(p, at + 1, end, CLASS_UPPER)) > at + 1) return e;
    return run_of(p, at, end, CLASS_UPPER);
}

/* | ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+ */
static size_t match_cased_rest(const struct pretok *p, size_t at, size_t end) {
    size_t s = at + (p->cp[at] == ' ');
    size_t e = run_not_of(p, s, end, CLASS_SPACE | CLASS_LETTER | CLASS_NUMBER);
    if (e == s) return match_lines(p, at, end);
    while (e < end && ((p->class[e] & CLASS_NEWLINE) || p->cp[e] == '/'))
        e++;
    return e;
}

static size_t match_gpt4o(const struct pretok *p, size_t at, size_t end) {
    size_t e = match_cased_word(p, at, end);
    if (e > at) return e < end ? match_contraction(p, e, end, true) : e;
    if (p->class[at] & CLASS_NUMBER) return match_number(p, at, end, 3);
    return match_cased_rest(p, at, end);
}

static size_t match_tekken(const struct pretok *p, size_t at, size_t end) {
    size_t e = match_cased_word(p, at, end);
    if (e > at) return e;
    if (p->class[at] & CLASS_NUMBER) return match_number(p, at, end, 1);
    return match_cased_rest(p, at, end);
}

static size_t match_digit(const struct pretok *p, size_t at, size_t end) {
    return match_number(p, at, end, 1);
}

static size_t match_3_numbers(const struct pretok *p, size_t at, size_t end) {
    return match_number(p, at, end, 3);
}

static size_t match_numbers(const struct pretok *p, size_t at, size_t end) {
    return run_of(p, at, end, CLASS_NUMBER);
}

/* [0-9][0-9][0-9] */
static size_t match_3_digits(const struct pretok *p, size_t at, size_t end) {
    if (end - at < 3) return at;
    for (size_t i = at; i < at + 3; i++) {
        if (p->cp[i] < '0' || p->cp[i] > '9') return at;
    }
    return at + 3;
}

/* [\p{P}\$\+<=>\^~\|]+ */
static size_t match_default_punct(const struct pretok *p, size_t at, size_t end) {
    while (at < end && ((p->class[at] & CLASS_PUNCT) ||
                        (p->cp[at] < 128 && p->cp[at] && strchr("$+<=>^~|", (int)p->cp[at])))) {
        at++;
    }
    return at;
}

/* [U+4E00-U+9FA5 U+3040-U+30FF]+ : Han and kana */
static size_t match_han_kana(const struct pretok *p, size_t at, size_t end) {
    while (at < end && ((p->cp[at] >= 0x4E00 && p->cp[at] <= 0x9FA5) ||
                        (p->cp[at] >= 0x3040 && p->cp[at] <= 0x30FF))) {
        at++;
    }
    return at;
}

/* [\r\n] */
static size_t match_newline(const struct pretok *p, size_t at, size_t end) {
    return is_at(p, at, end, CLASS_NEWLINE) ? at + 1 : at;
}

/* \s? and a run of the classes */
static size_t match_after_space(const struct pretok *p, size_t at, size_t end, unsigned classes) {
    size_t s = at + is_at(p, at, end, CLASS_SPACE);
    return is_at(p, s, end, classes) ? run_of(p, s, end, classes) : at;
}

static size_t match_spaced_letters(const struct pretok *p, size_t at, size_t end) {
    return match_after_space(p, at, end, CLASS_LETTER);
}

static size_t match_spaced_punct(const struct pretok *p, size_t at, size_t end) {
    return match_after_space(p, at, end, CLASS_PUNCT);
}

/* [U+0800-U+9FA5 U+AC00-U+D7FF]+ : what deepseek-coder takes for Chinese, Japanese and Korean */
static size_t match_east(const struct pretok *p, size_t at, size_t end) {
    while (at < end && ((p->cp[at] >= 0x800 && p->cp[at] <= 0x9FA5) ||
                        (p->cp[at] >= 0xAC00 && p->cp[at] <= 0xD7FF))) {
        at++;
    }
    return at;
}

/* \s? and a run of what is_in takes, which may take spaces itself */
static size_t match_after_any_space(const struct pretok *p, size_t at, size_t end,
                                    bool (*is_in)(uint32_t cp)) {
    size_t s = at + is_at(p, at, end, CLASS_SPACE), e;
    if (s == end || !is_in(p->cp[s])) s = at;
    for (e = s; e < end && is_in(p->cp[e]);)
        e++;
    return e > s ? e : at;
}

static size_t match_spaced_cased(const struct pretok *p, size_t at, size_t end) {
    return match_after_any_space(p, at, end, pretok_is_cased);
}

/* [!-/:-~], the same in full width, quotation marks, the East Asian space, comma and stop */
static bool is_deepseek_sign(uint32_t cp) {
    return (cp >= '!' && cp <= '/') || (cp >= ':' && cp <= '~') || (cp >= 0xFF01 && cp <= 0xFF0F) ||
           (cp >= 0xFF1A && cp <= 0xFF5E) || (cp >= 0x2018 && cp <= 0x201F) ||
           (cp >= 0x3000 && cp <= 0x3002);
}

static size_t match_spaced_signs(const struct pretok *p, size_t at, size_t end) {
    return match_after_any_space(p, at, end, is_deepseek_sign);
}

/* \s+$ : asked where a run begins only, so that each is looked at once */
static size_t match_last_spaces(const struct pretok *p, size_t at, size_t end) {
    if (at > p->begin && (p->class[at - 1] & CLASS_SPACE)) return at;
    return run_of(p, at, end, CLASS_SPACE) == end ? end : at;
}

/* " ?[^(\s|.,!? ...)]+": the others are commas and stops of other scripts */
static size_t match_bloom(const struct pretok *p, size_t at, size_t end) {
    static const uint32_t stops[] = {'(',    '|',    '.',    ',',    '!',   '?',   ')',
                                     0x2026, 0x3002, 0xFF0C, 0x3001, 0x964, 0x6D4, 0x60C};
    size_t s = at + (p->cp[at] == ' '), e;
    for (e = s; e < end && !(p->class[e] & CLASS_SPACE); e++)
        for (size_t i = 0; i < COUNT_OF(stops); i++)
            if (p->cp[e] == stops[i]) return e > s ? e : at;
    return e > s ? e : at;
}

static bool is_ascii_letter(uint32_t cp) {
    return (cp | 32) >= 'a' && (cp | 32) <= 'z';
}

/*
 * A[A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 * where A is ASCII punctuation. Numbers and control characters are in none of them.
 */
static size_t match_deepseek3(const struct pretok *p, size_t at, size_t end) {
    uint32_t cp = p->cp[at];
    unsigned class = p->class[at], word = CLASS_LETTER | CLASS_MARK;
    unsigned sign = CLASS_PUNCT | CLASS_SYMBOL;
    if (cp < 128 && (class & sign) && at + 1 < end && is_ascii_letter(p->cp[at + 1])) {
        for (at++; at < end && is_ascii_letter(p->cp[at]);)
            at++;
        return at;
    }
    if (class & word) return run_of(p, at, end, word);
    if (!(class & (CLASS_NEWLINE | sign)) && is_at(p, at + 1, end, word)) {
        return run_of(p, at + 1, end, word);
    }
    size_t s = at + (cp == ' ');
    if (is_at(p, s, end, sign)) {
        return run_of(p, run_of(p, s, end, sign), end, CLASS_NEWLINE);
    }
    return class & CLASS_SPACE ? match_lines(p, at, end) : at;
}

/* One after the other, each cutting the pieces that the one before left. */
static match_fn *const STAGES[N_PRETOK_KINDS][7] = {
    [PRETOK_GPT2] = {match_gpt2},
    [PRETOK_SMOLLM] = {match_digit, match_gpt2},
    [PRETOK_LLAMA3] = {match_llama3},
    [PRETOK_QWEN2] = {match_qwen2},
    [PRETOK_QWEN35] = {match_qwen35},
    [PRETOK_GPT4O] = {match_gpt4o},
    [PRETOK_TEKKEN] = {match_tekken},
    [PRETOK_DEEPSEEK3] = {match_3_numbers, match_han_kana, match_deepseek3},
    [PRETOK_DEEPSEEK_CODER] = {match_newline, match_spaced_letters, match_spaced_punct, match_east,
                               match_digit},
    [PRETOK_DEEPSEEK_LLM] = {match_newline, match_spaced_cased, match_spaced_signs,
                             match_last_spaces, match_east, match_digit},
    [PRETOK_SEED_CODER] = {match_seed_coder},
    [PRETOK_MINICPM5] = {match_3_numbers, match_llama3},
    [PRETOK_BLOOM] = {match_bloom},
    [PRETOK_VIKING] = {match_bloom, match_digit},
    [PRETOK_DEFAULT] = {match_default_punct, match_gpt2, match_numbers, match_3_digits},
};

static bool stops(const struct pretok *p, size_t n_chars) {
    return p->asker && asker_stops(p->asker, n_chars);
}

/* Cuts each piece into its matches and what lies between them; returns the number of pieces, 0 if
 * it was stopped. */
static size_t split_pieces(struct pretok *p, match_fn *match, const uint32_t *in, size_t n_in,
                           uint32_t *out) {
    size_t n_out = 0, at = 0;
    for (size_t i = 0; i < n_in; i++) {
        size_t gap = at, end = in[i];
        p->begin = at;
        while (at < end) {
            size_t e = match(p, at, end);
            if (stops(p, e - at + 1)) return 0;
            if (e == at) {
                at++;
                continue;
            }
            if (gap < at) out[n_out++] = (uint32_t)at;
            out[n_out++] = (uint32_t)e;
            at = gap = e;
        }
        if (gap < end) out[n_out++] = (uint32_t)end;
    }
    return n_out;
}

static void reserve(struct pretok *p, size_t n) {
    if (n <= p->cap_chars) return;
    p->cap_chars = max_size(n, min_size(2 * p->cap_chars, 4096));
    size_t bytes = p->cap_chars * sizeof(uint32_t);
    p->ends = xrealloc(p->ends, bytes);
    p->cp = xrealloc(p->cp, bytes);
    p->offset = xrealloc(p->offset, bytes);
    p->class = xrealloc(p->class, p->cap_chars * sizeof *p->class);
    for (int i = 0; i < 2; i++)
        p->pieces[i] = xrealloc(p->pieces[i], bytes);
}

void pretok_split(struct pretok *p, enum pretok_kind kind, const char *text, size_t n) {
    size_t n_chars = 0;
    for (size_t i = 0; i < n; i++)
        n_chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    p->n_words = 0;
    if (n_chars == 0) return;
    reserve(p, n_chars + 1);
    size_t at = 0;
    for (p->n_chars = 0; at < n && !stops(p, 1); p->n_chars++) {
        p->offset[p->n_chars] = (uint32_t)at;
        int len = utf8_decode(text + at, n - at, &p->cp[p->n_chars]);
        REQUIRE(len > 0);
        p->class[p->n_chars] = class_of(p->cp[p->n_chars]);
        at += (size_t)len;
    }
    if (at < n) return;
    p->offset[p->n_chars] = (uint32_t)n;
    uint32_t *now = p->pieces[0], *next = p->pieces[1];
    now[0] = (uint32_t)p->n_chars;
    size_t n_pieces = 1;
    for (match_fn *const *stage = STAGES[kind]; *stage; stage++) {
        n_pieces = split_pieces(p, *stage, now, n_pieces, next);
        uint32_t *swap = now;
        now = next;
        next = swap;
    }
    for (size_t i = 0; i < n_pieces; i++)
        p->ends[i] = p->offset[now[i]];
    p->n_words = n_pieces;
}

void pretok_free(struct pretok *p) {
    free(p->ends);
    free(p->cp);
    free(p->offset);
    free(p->class);
    free(p->pieces[0]);
    free(p->pieces[1]);
    *p = (struct pretok){0};
}
