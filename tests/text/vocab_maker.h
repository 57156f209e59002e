/* Vocabularies of a test's own making. */
#pragma once

#include "support.h"

#include "base/arena.h"
#include "text/tokenizer.h"

#define MAX_TOKENS 800

/* A spec under construction, with its arrays. */
struct maker {
    struct tokenizer_spec spec;
    struct text_span tokens[MAX_TOKENS], merges[MAX_TOKENS];
    float scores[MAX_TOKENS];
    int32_t types[MAX_TOKENS];
    struct arena arena;
};

int32_t add_token(struct maker *m, const char *text, enum token_type type, float score);
void add_merge(struct maker *m, const char *text);
void make_empty(struct maker *m, enum tokenizer_model model);
/* The 256 bytes in the spelling of GPT-2: id = byte. */
void make_bpe(struct maker *m, const char *pre);
/* <unk> is 0, byte b is 1 + b. */
void make_spm(struct maker *m);
void maker_free(struct maker *m);
struct tokenizer *open_it(const struct maker *m);
/* Ids of text as "1 2 3", in a buffer of the function's own. */
const char *ids_of(const struct tokenizer *t, const char *text, unsigned flags);
