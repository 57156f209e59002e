/*
 * The inside of a tokenizer, shared by tokenizer.c (building, questions, cutting out special
 * tokens), tokenizer_special.c, tokenizer_bpe.c and tokenizer_spm.c. Nobody else includes it.
 */
#pragma once

#include "base/buf.h"
#include "text/pretok.h"
#include "text/tokenizer.h"
#include "text/vocab.h"

/* An open-addressed slot: the pair of ids that merges, its rank (lower first), the result. */
struct bpe_merge {
    int32_t left, right;
    uint32_t rank;
    int32_t merged; /* -1: empty slot */
};

/* Tokens that are looked for in the text as they stand, before anything else. */
struct special_set {
    int32_t *ids; /* (n) sorted by their bytes */
    uint32_t n;
    bool any_user_defined;
    struct special_state *states; /* of the automaton that finds them */
    uint32_t start[256];          /* its state after one byte */
};

struct tokenizer {
    struct vocab vocab;
    struct special_set special;
    const struct pretok_rule *pretok; /* BPE only */
    char *pre_name;                   /* owned; as the file spells it, or what stands in */
    struct bpe_merge *merges;         /* (merge_mask + 1) */
    uint32_t merge_mask;
    int32_t role_ids[N_TOKEN_ROLES];
    int32_t *end_ids; /* (n_end_ids) ascending */
    size_t n_end_ids;
    bool add_bos, add_eos, add_space_prefix, nfc, special_rstrip;
};

/* A binary heap of (priority << 32 | position), smallest first. */
struct heap {
    uint64_t *items;
    size_t n, cap;
};
void heap_push(struct heap *h, uint64_t item);
uint64_t heap_pop(struct heap *h); /* h->n > 0 */

/*
 * Symbols of a text that is being merged, as a linked list over positions; (n) entries each. Every
 * live symbol carries what merging it with the next one would give.
 */
struct symbols {
    int32_t *id;        /* -1: no token */
    uint32_t *next;     /* n: the last */
    uint32_t *prev;     /* UINT32_MAX: the first */
    uint32_t *priority; /* of merging with the next, NO_MERGE: cannot */
    int32_t *merged;    /* what that gives */
    uint32_t *end;      /* SPM: end of its bytes; BPE: not used */
    size_t cap;
};
#define NO_MERGE UINT32_MAX
void symbols_reserve(struct symbols *s, size_t n);
/* Makes one of symbol i and the next one (which there is); leaves the priorities to the caller. */
void symbols_join(struct symbols *s, uint32_t i, size_t n);

/* One tokenizer_encode call and its memory. */
struct encoder {
    const struct tokenizer *t;
    struct token_list *out;
    struct asker asker; /* once it has stopped: what is in out will not be used */
    struct pretok pretok;
    struct symbols symbols;
    struct heap heap;
    struct buf text; /* SPM: the fragment with its prefix */
};

/* Appends the ids of valid UTF-8 without special tokens; stops where the asker does. */
void bpe_encode(struct encoder *e, const char *text, size_t n);
void spm_encode(struct encoder *e, const char *text, size_t n, bool prefix);

MUST_CHECK ats_status bpe_open_merges(const struct tokenizer_spec *spec, struct tokenizer *t);

void special_open(struct special_set *set, const struct vocab *v);
void special_close(struct special_set *set);
/* The places of one text, best asked for in ascending order. */
struct special_search {
    const struct special_set *set;
    const char *text; /* (n) */
    size_t n;
    bool parse_control; /* else only those that are user-defined */
    int32_t *ids;       /* owned; of the places begin .. end - 1 */
    size_t begin, end;
};
void special_search_free(struct special_search *s);
/* The longest special token that begins at this place (at < n), -1: none. */
int32_t special_at(struct special_search *s, size_t at);
/* The special token with exactly these bytes, -1: none. */
int32_t special_find(const struct special_set *set, const struct vocab *v, const char *text,
                     size_t n);
