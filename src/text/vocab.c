#include "text/vocab.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/utf8.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_VOCAB_BYTES ((size_t)1 << 30)
#define MAX_TOKENS      ((size_t)1 << 24)

/* Not "</s>" and
 * "<eos>": plain words in some vocabularies, and always the eos id where they are not. */
const char *const VOCAB_END_NAMES[] = {
    "<|im_end|>",
    "<|eot_id|>",
    "<|eom_id|>",
    "<|eot|>",
    "<|eom|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|calls|>",
    "<|flush|>",
    "<end_of_turn>",
    "<turn|>",
    "<|observation|>",
    "<|endoftext|>",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<EOT>",
    "[EOT]",
    "[EOS]",
    "[e~[",
    "<\xEF\xBD\x9C"
    "end\xE2\x96\x81of\xE2\x96\x81sentence\xEF\xBD\x9C>",
    "<|fim_pad|>",
    "<|file_sep|>",
    "<|repo_name|>",
    "<reponame>",
    NULL,
};

/*
 * The byte-level spelling of GPT-2: printable Latin-1 characters stand for themselves, the other 68
 * bytes are U+0100, U+0101, ... in ascending order. -1: no spelled byte.
 */
static int byte_of_char(uint32_t cp) {
    if ((cp >= 0x21 && cp <= 0x7E) || (cp >= 0xA1 && cp <= 0xAC) || (cp >= 0xAE && cp <= 0xFF)) {
        return (int)cp;
    }
    if (cp < 0x100 || cp >= 0x100 + 68) return -1;
    unsigned rank = cp - 0x100; /* 0x00-0x20, 0x7F-0xA0, 0xAD */
    if (rank <= 0x20) return (int)rank;
    return rank < 67 ? (int)(rank - 0x21 + 0x7F) : 0xAD;
}

size_t vocab_unspell(struct text_span in, char *out) {
    size_t n = 0;
    for (size_t at = 0; at < in.len;) {
        unsigned char c = (unsigned char)in.data[at];
        if (c >= 0x21 && c <= 0x7E) { /* most of any vocabulary */
            out[n++] = (char)c;
            at++;
            continue;
        }
        uint32_t cp;
        int len = utf8_decode(in.data + at, in.len - at, &cp);
        int byte = len > 0 ? byte_of_char(cp) : -1;
        if (byte < 0) return SIZE_MAX;
        out[n++] = (char)byte;
        at += (size_t)len;
    }
    return n;
}

/* SentencePiece spells a space U+2581. */
static size_t unescape_spaces(struct text_span in, char *out) {
    size_t n = 0;
    for (size_t at = 0; at < in.len; n++) {
        if (in.len - at >= 3 && memcmp(in.data + at, "\xE2\x96\x81", 3) == 0) {
            out[n] = ' ';
            at += 3;
        } else {
            out[n] = in.data[at++];
        }
    }
    return n;
}

static int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return -1;
}

/* "<0x1F>" -> 0x1F, else -1. */
static int byte_token_value(struct text_span s) {
    if (s.len != 6 || memcmp(s.data, "<0x", 3) != 0 || s.data[5] != '>') return -1;
    int high = hex_digit(s.data[3]), low = hex_digit(s.data[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static uint64_t hash_bytes(const char *s, size_t n) {
    const uint64_t k = 0x9E3779B97F4A7C15u;
    uint64_t h = n * k, w;
    for (; n >= 8; s += 8, n -= 8) {
        memcpy(&w, s, 8);
        h = (h ^ w) * k;
        h ^= h >> 32;
    }
    w = 0;
    if (n > 0) memcpy(&w, s, n);
    h = (h ^ w) * k;
    h ^= h >> 29;
    return h * k;
}

static bool slot_matches(const struct vocab *v, vocab_slot slot, uint64_t hash, const char *s,
                         size_t n) {
    if (slot >> 32 != hash >> 32) return false;
    struct text_span piece = vocab_piece(v, (int32_t)((uint32_t)slot - 1));
    return piece.len == n && memcmp(piece.data, s, n) == 0;
}

int32_t vocab_find(const struct vocab *v, const char *bytes, size_t n) {
    if (n == 0 || n > v->max_token_bytes) return -1;
    uint64_t hash = hash_bytes(bytes, n);
    uint32_t at = (uint32_t)(hash >> 32) & v->slot_mask;
    for (int i = 0; i <= VOCAB_MAX_SEARCH && v->slots[at]; i++, at = (at + 1) & v->slot_mask) {
        if (slot_matches(v, v->slots[at], hash, bytes, n)) {
            return (int32_t)((uint32_t)v->slots[at] - 1);
        }
    }
    return -1;
}

/* *twice when the bytes are there already: the first id keeps them. */
static ats_status vocab_insert(struct vocab *v, int32_t id, bool *twice) {
    struct text_span piece = vocab_piece(v, id);
    uint64_t hash = hash_bytes(piece.data, piece.len);
    uint32_t at = (uint32_t)(hash >> 32) & v->slot_mask;
    *twice = false;
    for (int i = 0; v->slots[at]; i++, at = (at + 1) & v->slot_mask) {
        if (i == VOCAB_MAX_SEARCH)
            return fail(ATS_BAD_FILE, "token %d collides with %d others", (int)id, i);
        *twice = slot_matches(v, v->slots[at], hash, piece.data, piece.len);
        if (*twice) return ATS_OK;
    }
    v->slots[at] = hash >> 32 << 32 | (uint32_t)(id + 1);
    v->max_token_bytes = max_size(v->max_token_bytes, piece.len);
    return ATS_OK;
}

static ats_status check_spec(const struct tokenizer_spec *spec, size_t *n_bytes) {
    size_t n = spec->n_tokens;
    if (n == 0) return fail(ATS_BAD_FILE, "the vocabulary has no tokens");
    if (n > MAX_TOKENS) return fail(ATS_BAD_FILE, "the vocabulary has %zu tokens: too many", n);
    if (spec->types && spec->n_types != n) {
        return fail(ATS_BAD_FILE, "%zu token types for %zu tokens", spec->n_types, n);
    }
    if (spec->model == TOKENIZER_SPM && !spec->scores) {
        return fail(ATS_BAD_FILE, "the vocabulary has no scores");
    }
    if (spec->scores && spec->n_scores != n) {
        return fail(ATS_BAD_FILE, "%zu token scores for %zu tokens", spec->n_scores, n);
    }
    *n_bytes = 0;
    for (size_t i = 0; i < n; i++) {
        if (spec->tokens[i].len > MAX_VOCAB_BYTES - *n_bytes) {
            return fail(ATS_BAD_FILE, "the tokens are longer than %zu bytes", MAX_VOCAB_BYTES);
        }
        *n_bytes += spec->tokens[i].len;
        /* 0 is what some converters write for "normal" */
        if (spec->types && (spec->types[i] < 0 || spec->types[i] > TOKEN_BYTE)) {
            return fail(ATS_BAD_FILE, "token %zu has the unknown type %d", i, (int)spec->types[i]);
        }
        if (spec->model == TOKENIZER_SPM && isnan(spec->scores[i])) {
            return fail(ATS_BAD_FILE, "the score of token %zu is not a number", i);
        }
    }
    return ATS_OK;
}

static bool is_end_name(struct text_span text) {
    if (text.len < 4 || (text.data[0] != '<' && text.data[0] != '[')) return false;
    for (size_t i = 0; VOCAB_END_NAMES[i]; i++) {
        size_t n = strlen(VOCAB_END_NAMES[i]);
        if (text.len == n && memcmp(text.data, VOCAB_END_NAMES[i], n) == 0) return true;
    }
    return false;
}

static enum token_type type_of(const struct tokenizer_spec *spec, size_t i) {
    struct text_span text = spec->tokens[i];
    enum token_type type =
        spec->types && spec->types[i] ? (enum token_type)spec->types[i] : TOKEN_NORMAL;
    if (!spec->types && spec->model == TOKENIZER_SPM && byte_token_value(text) >= 0) {
        return TOKEN_BYTE;
    }
    if ((type == TOKEN_USER_DEFINED || !spec->types) && is_end_name(text)) {
        log_msg(LOG_WARN, "token %zu (%.*s) is not marked as a control token: taken as one", i,
                (int)text.len, text.data);
        return TOKEN_CONTROL;
    }
    return type;
}

/* Writes the bytes that a token stands for; returns how many (never more than its spelling has). */
static size_t token_bytes(enum tokenizer_model model, enum token_type type, struct text_span text,
                          char *out) {
    int byte = type == TOKEN_BYTE ? byte_token_value(text) : -1;
    if (byte >= 0) {
        *out = (char)byte;
        return 1;
    }
    bool is_text = type == TOKEN_NORMAL || type == TOKEN_UNUSED || type == TOKEN_BYTE;
    if (model == TOKENIZER_BPE && is_text) {
        size_t n = vocab_unspell(text, out);
        if (n != SIZE_MAX) return n;
    }
    if (model == TOKENIZER_SPM && (is_text || type == TOKEN_USER_DEFINED)) {
        return unescape_spaces(text, out);
    }
    if (text.len > 0) memcpy(out, text.data, text.len);
    return text.len;
}

static bool is_text_type(enum token_type type) {
    return type == TOKEN_NORMAL || type == TOKEN_USER_DEFINED || type == TOKEN_UNUSED;
}

static void fill_byte_ids(struct vocab *v) {
    for (int b = 0; b < 256; b++) {
        char c = (char)b;
        v->byte_ids[b] = v->model == TOKENIZER_BPE ? vocab_find(v, &c, 1) : -1;
    }
    for (int32_t id = v->n_tokens - 1; id >= 0; id--) { /* downwards: the first id wins */
        struct text_span piece = vocab_piece(v, id);
        if (v->types[id] == TOKEN_BYTE && piece.len == 1) {
            v->byte_ids[(unsigned char)piece.data[0]] = id;
        }
    }
}

/* Their bytes, types and slots. */
static ats_status add_tokens(const struct tokenizer_spec *spec, struct vocab *v) {
    size_t n_twice = 0;
    int32_t first_twice = -1;
    uint32_t at = 0;
    v->offset[0] = 0;
    for (size_t i = 0; i < spec->n_tokens; i++) {
        enum token_type type = type_of(spec, i);
        bool twice = false;
        v->types[i] = (uint8_t)type;
        at += (uint32_t)token_bytes(spec->model, type, spec->tokens[i], v->bytes + at);
        v->offset[i + 1] = at;
        if (is_text_type(type) && at > v->offset[i]) TRY(vocab_insert(v, (int32_t)i, &twice));
        if (twice && n_twice++ == 0) first_twice = (int32_t)i;
    }
    if (n_twice > 0) {
        log_msg(LOG_WARN, "vocabulary: %zu tokens have the text of an earlier one (first: %d)",
                n_twice, (int)first_twice);
    }
    v->has_twins = n_twice > 0;
    return ATS_OK;
}

ats_status vocab_open(const struct tokenizer_spec *spec, struct vocab *v) {
    size_t n_bytes = 0, n = spec->n_tokens, n_slots = 16;
    *v = (struct vocab){0};
    TRY(check_spec(spec, &n_bytes));
    while (n_slots < n + n / 2)
        n_slots *= 2;
    v->model = spec->model;
    v->n_tokens = (int32_t)n;
    v->bytes = xmalloc(n_bytes + 1);
    v->offset = xmalloc((n + 1) * sizeof *v->offset);
    v->types = xmalloc(n);
    v->slots = xcalloc(n_slots, sizeof *v->slots);
    v->slot_mask = (uint32_t)(n_slots - 1);
    if (spec->model == TOKENIZER_SPM) {
        v->scores = xmalloc(n * sizeof *v->scores);
        memcpy(v->scores, spec->scores, n * sizeof *v->scores);
    }
    ats_status status = add_tokens(spec, v);
    if (status == ATS_OK)
        fill_byte_ids(v);
    else
        vocab_close(v);
    return status;
}

void vocab_close(struct vocab *v) {
    free(v->bytes);
    free(v->offset);
    free(v->types);
    free(v->scores);
    free(v->slots);
    *v = (struct vocab){0};
}
