/*
 * Book-keeping of the KV cache: which page of 64 tokens belongs to which sequence.
 *
 * It holds no keys or values and knows no device: a page is an id, and the executor indexes its
 * pools with it (house.md, decision 6). Pages are reference-counted, so that sequences share a
 * common beginning; a shared page that is only partly filled is copied before it is written.
 * Nothing is allocated on a device after kv_open: all pages are reserved there.
 *
 * Called by the engine (sequences, prefixes) and the executor (tables, copies), by one thread at a
 * time. Token ids stay here, on the host, so that lost KV can be recomputed.
 */
#pragma once

#include "base/error.h"
#include "model/graph.h"

enum { KV_PAGE_TOKENS = 64 };
enum { KV_NO_PAGE = -1 }; /* in a table: the page has left the window */

/* A layer class: all layers whose tokens see the same span of the past. */
struct kv_class {
    int window;  /* a token at position p sees p - window + 1 .. p; 0: everything */
    int n_pages; /* ids 0 .. n_pages - 1 */
};

/* Pages that n_seqs unshared sequences of n_ctx tokens may need at once, appending at most n_batch
 * tokens a call; what the ledger promises. 0 if it does not fit an int32. */
int kv_pages_needed(int window, int n_ctx, int n_seqs, int n_batch);

/* One page's worth of K and V that must be copied, in every layer of the class: the first n_tokens
 * rows of src to the same rows of dst. */
struct kv_copy {
    int class_index;
    int32_t src, dst;
    int n_tokens;
};

struct kv_table {
    int32_t *pages; /* (n_pages) position / KV_PAGE_TOKENS -> page id; never moves */
    int n_pages;    /* pages that hold tokens, those that left the window included */
    int n_dropped;  /* the first of them, which left the window: KV_NO_PAGE */
};

struct kv;

/* Read freely; changed by the functions below only. */
struct kv_seq {
    struct kv *kv;
    int32_t *tokens; /* (n_tokens) borrowed until the next append */
    size_t n_tokens, tokens_cap;
    struct kv_table tables[KV_MAX_CLASSES];
};

/* classes: (n_classes), copied; 1 to KV_MAX_CLASSES of them. n_ctx: tokens a sequence can hold.
 * *out is owned. Errors: BAD_ARGUMENT. */
MUST_CHECK ats_status kv_open(const struct kv_class *classes, int n_classes, int n_ctx,
                              struct kv **out);
/* Its sequences must be closed before. Accepts NULL. */
void kv_close(struct kv *kv);

int kv_n_classes(const struct kv *kv);
/* For tests. */
int kv_free_pages(const struct kv *kv, int class_index);
/* How many sequences hold the page; 0: it is free. */
int kv_page_refs(const struct kv *kv, int class_index, int32_t page);

/* An empty sequence, owned by the caller; takes no page. Closing gives its pages back. */
struct kv_seq *kv_seq_open(struct kv *kv);
void kv_seq_close(struct kv_seq *seq); /* accepts NULL */

/* A second sequence with the same tokens that shares every page; takes no page now. Owned. For
 * tests so far: sessions do not share a beginning yet, but what they are made of does (house.md 6).
 */
struct kv_seq *kv_fork(const struct kv_seq *seq);

/* Appends n tokens and takes the pages that they need, first giving back those that have left a
 * window for all tokens to come. If the page being filled is shared, it is exchanged for a new one
 * and a copy is noted (kv_copies). Errors, leaving everything unchanged: CONTEXT_FULL if the
 * sequence would pass n_ctx, NO_MEMORY if other sequences hold too many pages (never without
 * forks, when kv_pages_needed pages were reserved). */
MUST_CHECK ats_status kv_append(struct kv_seq *seq, const int32_t *tokens, size_t n);

/* Keeps the first n tokens (n <= n_tokens). Returns how many are kept: n; or 0 if a windowed class
 * has given up pages that the token at position n would look at, so that the caller evaluates the
 * sequence from its beginning. */
size_t kv_truncate(struct kv_seq *seq, size_t n);

/* Takes back the kv_append of a round that failed: n_before is n_tokens before it. Windows never
 * stand in its way. Copies noted meanwhile stay noted. */
void kv_rollback(struct kv_seq *seq, size_t n_before);

/* Tokens at the beginning that are the same in both. */
size_t kv_common_prefix(const struct kv_seq *seq, const int32_t *tokens, size_t n);

/* Copies noted since the last kv_copies_done, in the order in which they must be made: all of them
 * before anything of the next round is written, whichever sequences it runs and even if the
 * append that caused them was rolled back. Borrowed until the next append. */
const struct kv_copy *kv_copies(const struct kv *kv, size_t *n);
void kv_copies_done(struct kv *kv);
