/*
 * Cuts text into words before byte-level BPE, as the published patterns of each vocabulary do; BPE
 * never merges across a cut. Hand-written scanners: no regular expressions, no recursion, time
 * linear in the text. Knows nothing of vocabularies. Called by tokenizer_bpe.c only (and its test,
 * which holds each scanner against PCRE2 with the original pattern).
 */
#pragma once

#include "text/asker.h"

enum pretok_kind {
    PRETOK_GPT2,
    PRETOK_SMOLLM, /* each digit alone, then GPT-2 */
    PRETOK_LLAMA3, /* glm4 too */
    PRETOK_QWEN2,
    PRETOK_QWEN35,
    PRETOK_GPT4O, /* o200k: llama4, gpt-oss */
    PRETOK_TEKKEN,
    PRETOK_DEEPSEEK3,
    PRETOK_DEEPSEEK_CODER,
    PRETOK_DEEPSEEK_LLM,
    PRETOK_SEED_CODER,
    PRETOK_MINICPM5,
    PRETOK_BLOOM,
    PRETOK_VIKING,  /* BLOOM, then each digit alone */
    PRETOK_DEFAULT, /* llama.cpp's, for files that name none */
    N_PRETOK_KINDS
};

/* What the name of a pre-tokenizer (tokenizer.ggml.pre) implies. */
struct pretok_rule {
    const char *name;
    enum pretok_kind kind;
    bool ignore_merges; /* a word that is a token as a whole is that token */
    bool add_bos;       /* when the file does not say */
};

/* NULL for a name not known. */
const struct pretok_rule *pretok_find(const char *name);

/* Work space and result; a zeroed one is empty. Used again from call to call. */
struct pretok {
    struct asker *asker; /* borrowed, may be NULL; once it has stopped there are no words */
    uint32_t *ends; /* (n_words) where each word ends, in bytes; the last is the text's length */
    size_t n_words;
    /* the text, character by character: code point, class bits, offset in bytes; (n_chars) */
    uint32_t *cp, *offset;
    uint16_t *class;
    size_t n_chars;
    size_t cap_chars;
    size_t begin;        /* of the piece that is being cut, in characters */
    uint32_t *pieces[2]; /* ends of the pieces of two stages, in characters; (cap_chars) */
};

void pretok_free(struct pretok *p);

/* Splits text[0..n): valid UTF-8, below 2 GiB. An empty text has no words. */
void pretok_split(struct pretok *p, enum pretok_kind kind, const char *text, size_t n);

/* Letters with a case, by the list of deepseek-llm's pattern. pretok_cased.c. */
bool pretok_is_cased(uint32_t cp);
