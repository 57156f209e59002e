/*
 * Text <-> token ids: byte-level BPE ("gpt2") and SentencePiece BPE ("llama"). Not a reader of
 * files: whoever holds the file's metadata (run/vocab.c, tests) fills a struct tokenizer_spec.
 * Streaming output is detok.h's job, stop strings are stop.h's.
 *
 * A tokenizer never changes after tokenizer_open: it may be shared by threads.
 */
#pragma once

#include "base/error.h"

enum tokenizer_model {
    TOKENIZER_BPE, /* tokenizer.ggml.model "gpt2": byte-level, merges, a pre-tokenizer */
    TOKENIZER_SPM, /* "llama": scores, U+2581 for spaces, byte tokens <0xXX> */
};

/* The numbers of tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,      /* recognised in text only with ENCODE_PARSE_SPECIAL */
    TOKEN_USER_DEFINED = 4, /* always recognised in text */
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6,
};

/* A flag of the file; zero when the file does not say. */
enum spec_flag { SPEC_UNSET, SPEC_NO, SPEC_YES };

/* Bytes with a length; may hold NUL, need not end with one. Borrowed. */
struct text_span {
    const char *data;
    size_t len;
};

/* Ids of tokens with a role, see tokenizer_role_key() for their keys. */
enum token_role {
    ROLE_BOS,
    ROLE_EOS,
    ROLE_EOT, /* end of turn */
    ROLE_EOM, /* end of message (a tool call follows) */
    ROLE_UNK,
    ROLE_SEP,
    ROLE_PAD,
    ROLE_MASK,
    ROLE_FIM_PRE,
    ROLE_FIM_SUF,
    ROLE_FIM_MID,
    ROLE_FIM_PAD,
    ROLE_FIM_REP,
    ROLE_FIM_SEP,
    N_TOKEN_ROLES
};

/*
 * What tokenizer_open needs. Start from tokenizer_spec_init(). Everything is copied: strings and
 * arrays may go when tokenizer_open returns.
 */
struct tokenizer_spec {
    enum tokenizer_model model;
    /* tokenizer.ggml.pre, NULL when the key is missing. BPE: missing means "default" with a
     * warning in the log; a name not known is refused unless force. SPM: not used. */
    const char *pre;
    bool force; /* unknown pre-tokenizer: warn and go on with "default" */
    size_t n_tokens;
    const struct text_span *tokens; /* (n_tokens), as the file spells them */
    const float *scores;            /* (n_scores) or NULL; SPM needs them; n_scores == n_tokens */
    size_t n_scores;
    const int32_t *types; /* (n_types) enum token_type or NULL: all normal; n_types == n_tokens */
    size_t n_types;
    const struct text_span *merges; /* (n_merges) "left right", best first; BPE needs them */
    size_t n_merges;
    int64_t role_ids[N_TOKEN_ROLES]; /* -1: none; tokenizer.ggml.bos_token_id and so on */
    const int64_t *end_ids;          /* (n_end_ids) further end-of-generation tokens, or NULL */
    size_t n_end_ids;
    /* Unset: add_bos yes for SPM and for BPE with llama-bpe or tekken, where an id is there; else
     * no. add_eos no. add_space_prefix yes for SPM, not used for BPE. */
    enum spec_flag add_bos, add_eos, add_space_prefix;
    bool nfc; /* normalise text to NFC first (Qwen's own library does, llama.cpp does not) */
    /* Whitespace after a special token is dropped, but after unk, bos and <|endoftext|> (Phi-3:
     * general.name holds "phi-3" or "phi3"; GGUF has no key for it). */
    bool special_rstrip;
};

void tokenizer_spec_init(struct tokenizer_spec *spec); /* zeroed, all role_ids -1 */
/* Key of a role's id without "tokenizer.ggml.": "bos_token_id"; never NULL. */
const char *tokenizer_role_key(enum token_role role);

struct tokenizer;

/*
 * Builds the tables: linear in the vocabulary, no allocation per token. *out owned
 * (tokenizer_close).
 * Errors: ATS_UNSUPPORTED for a pre-tokenizer not known; ATS_BAD_FILE for arrays of wrong length,
 * ids or types out of range, add_bos without a BOS id, merges that are not "left right". Equal
 * token strings: the first id wins, the log warns.
 */
MUST_CHECK ats_status tokenizer_open(const struct tokenizer_spec *spec, struct tokenizer **out);
void tokenizer_close(struct tokenizer *t); /* accepts NULL */

/* Growing list of ids; a zeroed one is empty. */
struct token_list {
    int32_t *ids; /* owned */
    size_t n, cap;
};
void token_list_free(struct token_list *list);
void token_list_add(struct token_list *list, int32_t id);

enum encode_flags {
    ENCODE_ADD_SPECIAL = 1,   /* BOS before and EOS after, as the file says */
    ENCODE_PARSE_SPECIAL = 2, /* control tokens' texts stand for the tokens: trusted text only */
};

/*
 * Appends the ids of text[0..n_bytes). Bytes that are not UTF-8: each maximal invalid part is
 * U+FFFD. What has no token, not even for its bytes: unk in SPM, left out in BPE.
 * Time O(n log n) for one endless word, else linear; no recursion.
 * Errors: ATS_BAD_INPUT from 64 MiB of text on. On error *out is as it was.
 */
MUST_CHECK ats_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes,
                                       unsigned flags, struct token_list *out);
/* The same. cancel (may be NULL) is asked now and then, if the text is long: true ends it with
 * ATS_CANCELLED. */
MUST_CHECK ats_status tokenizer_encode_until(const struct tokenizer *t, const char *text,
                                             size_t n_bytes, unsigned flags, ats_cancel_fn *cancel,
                                             void *cancel_user, struct token_list *out);

int32_t tokenizer_n_tokens(const struct tokenizer *t);
enum tokenizer_model tokenizer_kind(const struct tokenizer *t);
/* "llama-bpe", ... : the pre-tokenizer's name in use (of the file, or "default"); SPM: "spm". */
const char *tokenizer_pre_name(const struct tokenizer *t);
bool tokenizer_adds_bos(const struct tokenizer *t);
bool tokenizer_adds_space_prefix(const struct tokenizer *t);

/*
 * The bytes that a token stands for, borrowed from t: raw bytes, not always whole characters. For
 * control and unknown tokens their name. An id outside the vocabulary gives an empty span.
 */
struct text_span tokenizer_piece(const struct tokenizer *t, int32_t id);
/* For tests; TOKEN_UNUSED for an id outside the vocabulary. */
enum token_type tokenizer_type(const struct tokenizer *t, int32_t id);
/* True for tokens that are not text of an answer: control and unknown (and ids out of range). */
bool tokenizer_is_control(const struct tokenizer *t, int32_t id);
/* -1 when the vocabulary has none. */
int32_t tokenizer_role_id(const struct tokenizer *t, enum token_role role);
/* For tests: the token whose text is exactly this ("<think>", "<|im_start|>"), of whatever type;
 * -1: none. */
int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n_bytes);

/* End-of-generation tokens: eos, eot, eom, fim pad/rep/sep, spec.end_ids and control tokens of
 * known names (<|im_end|>, <|eot_id|>, <end_of_turn>, <|return|>, <|call|>, ...). */
bool tokenizer_is_end(const struct tokenizer *t, int32_t id);
/* All of them, ascending; borrowed. */
const int32_t *tokenizer_end_ids(const struct tokenizer *t, size_t *n);
