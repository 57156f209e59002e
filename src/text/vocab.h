/*
 * The table of tokens inside a tokenizer: the bytes each token stands for, its type, and the way
 * back from bytes to id. Knows how the two models spell bytes in a file; knows nothing of merging.
 * Built by tokenizer.c, read by the encoders and the detokenizer.
 */
#pragma once

#include "text/tokenizer.h"

/* Slots of a hash table of tokens or merges that are searched at most. Tables are two thirds full
 * at most, where hardly a search passes a hundred; a file that needs more was made to cost
 * quadratic time, and is refused. */
enum { VOCAB_MAX_SEARCH = 512 };

/* A hash table slot: 32 bits of hash above, id + 1 below; 0 is empty. */
typedef uint64_t vocab_slot;

struct vocab {
    enum tokenizer_model model;
    int32_t n_tokens;
    char *bytes;      /* all tokens one after the other */
    uint32_t *offset; /* (n_tokens + 1) into bytes */
    uint8_t *types;   /* (n_tokens) enum token_type */
    float *scores;    /* (n_tokens); NULL for BPE */
    vocab_slot *slots;
    uint32_t slot_mask;
    bool has_twins;         /* some token has the text of an earlier one */
    size_t max_token_bytes; /* of the tokens that vocab_find can give */
    int32_t byte_ids[256];  /* the token of each single byte, -1: none */
};

/* Names of tokens that end an answer in some family, NULL at the end. Under these names a token is
 * a control token, also where the file says user-defined or nothing: else a user's text could end
 * turns. */
extern const char *const VOCAB_END_NAMES[];

/* Fills *v from the spec's tokens, types and scores. *v owned, zeroed on failure. */
MUST_CHECK ats_status vocab_open(const struct tokenizer_spec *spec, struct vocab *v);
void vocab_close(struct vocab *v); /* accepts a zeroed one */

/* The id of the token with these bytes among those that text may consist of (normal, user-defined,
 * unused), -1: none. */
int32_t vocab_find(const struct vocab *v, const char *bytes, size_t n);

static inline struct text_span vocab_piece(const struct vocab *v, int32_t id) {
    return (struct text_span){v->bytes + v->offset[id], v->offset[id + 1] - v->offset[id]};
}

/* Undoes the byte-level spelling ("U+0120 the" -> " the"): out has room for in.len bytes. Returns
 * the length, or SIZE_MAX if some character is no spelled byte. */
size_t vocab_unspell(struct text_span in, char *out);
