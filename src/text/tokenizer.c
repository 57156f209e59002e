#include "text/tokenizer.h"

#include "base/arena.h"
#include "base/log.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#define MAX_TEXT_BYTES ((size_t)64 << 20)

static const char *const ROLE_KEYS[N_TOKEN_ROLES] = {
    [ROLE_BOS] = "bos_token_id",         [ROLE_EOS] = "eos_token_id",
    [ROLE_EOT] = "eot_token_id",         [ROLE_EOM] = "eom_token_id",
    [ROLE_UNK] = "unknown_token_id",     [ROLE_SEP] = "seperator_token_id",
    [ROLE_PAD] = "padding_token_id",     [ROLE_MASK] = "mask_token_id",
    [ROLE_FIM_PRE] = "fim_pre_token_id", [ROLE_FIM_SUF] = "fim_suf_token_id",
    [ROLE_FIM_MID] = "fim_mid_token_id", [ROLE_FIM_PAD] = "fim_pad_token_id",
    [ROLE_FIM_REP] = "fim_rep_token_id", [ROLE_FIM_SEP] = "fim_sep_token_id",
};

void tokenizer_spec_init(struct tokenizer_spec *spec) {
    *spec = (struct tokenizer_spec){0};
    for (int i = 0; i < N_TOKEN_ROLES; i++)
        spec->role_ids[i] = -1;
}

const char *tokenizer_role_key(enum token_role role) {
    REQUIRE(role >= 0 && role < N_TOKEN_ROLES);
    return ROLE_KEYS[role];
}

void token_list_free(struct token_list *list) {
    free(list->ids);
    *list = (struct token_list){0};
}

void token_list_add(struct token_list *list, int32_t id) {
    if (list->n == list->cap) GROW(list->ids, list->n, list->cap, 1);
    list->ids[list->n++] = id;
}

/* -------------------------------------------------------------------------- building */

static ats_status open_pretok(const struct tokenizer_spec *spec, struct tokenizer *t) {
    if (spec->model == TOKENIZER_SPM) {
        t->pre_name = xstrdup("spm");
        return ATS_OK;
    }
    const char *name = spec->pre ? spec->pre : "default";
    if (!spec->pre) {
        log_msg(LOG_WARN, "the file names no pre-tokenizer: going on with \"default\", which may "
                          "not be what the model was trained with");
    }
    t->pretok = pretok_find(name);
    if (!t->pretok) {
        if (!spec->force) {
            return fail(ATS_UNSUPPORTED,
                        "the pre-tokenizer \"%.64s\" is not known; --force goes on"
                        " with \"default\", at a loss in quality",
                        name);
        }
        log_msg(LOG_WARN, "unknown pre-tokenizer \"%.64s\": forced to \"default\"", name);
        name = "default";
        t->pretok = pretok_find(name);
    }
    t->pre_name = xstrdup(name);
    return ATS_OK;
}

static ats_status check_id(int64_t id, size_t n_tokens, const char *what) {
    if (id >= 0 && (uint64_t)id < n_tokens) return ATS_OK;
    return fail(ATS_BAD_FILE, "%s is %lld, but there are %zu tokens", what, (long long)id,
                n_tokens);
}

static ats_status open_roles(const struct tokenizer_spec *spec, struct tokenizer *t) {
    for (int i = 0; i < N_TOKEN_ROLES; i++) {
        if (spec->role_ids[i] != -1) {
            TRY(check_id(spec->role_ids[i], spec->n_tokens, ROLE_KEYS[i]));
        }
        t->role_ids[i] = (int32_t)spec->role_ids[i];
    }
    for (size_t i = 0; i < spec->n_end_ids; i++) {
        TRY(check_id(spec->end_ids[i], spec->n_tokens, "an end token"));
    }
    bool bos_by_kind = t->pretok ? t->pretok->add_bos : true;
    t->add_bos = spec->add_bos == SPEC_YES ||
                 (spec->add_bos == SPEC_UNSET && bos_by_kind && t->role_ids[ROLE_BOS] >= 0);
    t->add_eos = spec->add_eos == SPEC_YES;
    t->add_space_prefix = spec->model == TOKENIZER_SPM && spec->add_space_prefix != SPEC_NO;
    if (t->add_bos && t->role_ids[ROLE_BOS] < 0) {
        return fail(ATS_BAD_FILE, "add_bos_token is set, but there is no bos_token_id");
    }
    if (t->add_eos && t->role_ids[ROLE_EOS] < 0) {
        return fail(ATS_BAD_FILE, "add_eos_token is set, but there is no eos_token_id");
    }
    return ATS_OK;
}

static int compare_ids(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

static int32_t find_special(const struct tokenizer *t, const char *name) {
    return special_find(&t->special, &t->vocab, name, strlen(name));
}

/* <|end|> of harmony closes a message, not the answer. */
static bool is_harmony(const struct tokenizer *t) {
    bool call = find_special(t, "<|call|>") >= 0 || find_special(t, "<|calls|>") >= 0;
    return call && (find_special(t, "<|return|>") >= 0 || find_special(t, "<|flush|>") >= 0);
}

static void add_named(const struct tokenizer *t, const char *name, struct token_list *out) {
    int32_t id = find_special(t, name);
    if (id >= 0) token_list_add(out, id);
}

static void open_ends(const struct tokenizer_spec *spec, struct tokenizer *t) {
    static const enum token_role roles[] = {ROLE_EOS,     ROLE_EOT,     ROLE_EOM,
                                            ROLE_FIM_PAD, ROLE_FIM_REP, ROLE_FIM_SEP};
    struct token_list all = {0};
    bool harmony = is_harmony(t);
    for (size_t i = 0; VOCAB_END_NAMES[i]; i++) {
        bool message_end = harmony && strcmp(VOCAB_END_NAMES[i], "<|end|>") == 0;
        if (!message_end) add_named(t, VOCAB_END_NAMES[i], &all);
    }
    /* GLM: a turn ends where another's begins, and many files name but one of the two. (<|user|>
     * alone is in other vocabularies as well.) */
    if (find_special(t, "<|observation|>") >= 0) add_named(t, "<|user|>", &all);
    for (size_t i = 0; i < COUNT_OF(roles); i++) {
        if (t->role_ids[roles[i]] >= 0) token_list_add(&all, t->role_ids[roles[i]]);
    }
    for (size_t i = 0; i < spec->n_end_ids; i++)
        token_list_add(&all, (int32_t)spec->end_ids[i]);
    if (all.n > 0) qsort(all.ids, all.n, sizeof *all.ids, compare_ids);
    for (size_t i = 0; i < all.n; i++) {
        if (i == 0 || all.ids[i] != all.ids[i - 1]) all.ids[t->n_end_ids++] = all.ids[i];
    }
    t->end_ids = all.ids;
}

static ats_status fill(const struct tokenizer_spec *spec, struct tokenizer *t) {
    TRY(open_pretok(spec, t));
    TRY(vocab_open(spec, &t->vocab));
    TRY(open_roles(spec, t));
    special_open(&t->special, &t->vocab);
    open_ends(spec, t);
    if (spec->model == TOKENIZER_BPE) TRY(bpe_open_merges(spec, t));
    t->nfc = spec->nfc;
    t->special_rstrip = spec->special_rstrip;
    return ATS_OK;
}

ats_status tokenizer_open(const struct tokenizer_spec *spec, struct tokenizer **out) {
    struct tokenizer *t = xcalloc(1, sizeof *t);
    ats_status status = fill(spec, t);
    if (status != ATS_OK) {
        tokenizer_close(t);
        t = NULL;
    }
    *out = t;
    return status;
}

void tokenizer_close(struct tokenizer *t) {
    if (!t) return;
    vocab_close(&t->vocab);
    special_close(&t->special);
    free(t->pre_name);
    free(t->merges);
    free(t->end_ids);
    free(t);
}

/* -------------------------------------------------------------------------- encoding */

void heap_push(struct heap *h, uint64_t item) {
    if (h->n == h->cap) GROW(h->items, h->n, h->cap, 1);
    size_t at = h->n++;
    for (; at > 0 && h->items[(at - 1) / 2] > item; at = (at - 1) / 2) {
        h->items[at] = h->items[(at - 1) / 2];
    }
    h->items[at] = item;
}

uint64_t heap_pop(struct heap *h) {
    uint64_t top = h->items[0], last = h->items[--h->n];
    size_t at = 0;
    for (size_t child = 1; child < h->n; child = 2 * at + 1) {
        if (child + 1 < h->n && h->items[child + 1] < h->items[child]) child++;
        if (h->items[child] >= last) break;
        h->items[at] = h->items[child];
        at = child;
    }
    h->items[at] = last;
    return top;
}

void symbols_reserve(struct symbols *s, size_t n) {
    if (n <= s->cap) return;
    s->cap = max_size(n, 256);
    s->id = xrealloc(s->id, s->cap * sizeof *s->id);
    s->next = xrealloc(s->next, s->cap * sizeof *s->next);
    s->prev = xrealloc(s->prev, s->cap * sizeof *s->prev);
    s->priority = xrealloc(s->priority, s->cap * sizeof *s->priority);
    s->merged = xrealloc(s->merged, s->cap * sizeof *s->merged);
    s->end = xrealloc(s->end, s->cap * sizeof *s->end);
}

void symbols_join(struct symbols *s, uint32_t i, size_t n) {
    uint32_t gone = s->next[i];
    s->next[i] = s->next[gone];
    if (s->next[i] < n) s->prev[s->next[i]] = i;
    s->priority[gone] = NO_MERGE;
}

static void encoder_free(struct encoder *e) {
    pretok_free(&e->pretok);
    free(e->symbols.id);
    free(e->symbols.next);
    free(e->symbols.prev);
    free(e->symbols.priority);
    free(e->symbols.merged);
    free(e->symbols.end);
    free(e->heap.items);
    buf_free(&e->text);
}

static void encode_plain(struct encoder *e, const char *text, size_t n, bool prefix) {
    if (n == 0) return;
    if (e->t->vocab.model == TOKENIZER_BPE) {
        bpe_encode(e, text, n);
    } else {
        spm_encode(e, text, n, prefix);
    }
}

/* Sorting the marks of one character takes time quadratic in their number, so text with absurdly
 * many of them stays as it is. */
#define MAX_MARKS_IN_A_ROW 256

static bool can_normalise(const char *text, size_t n) {
    size_t marks = 0;
    for (size_t at = 0; at < n;) {
        uint32_t cp;
        at += (size_t)utf8_decode(text + at, n - at, &cp);
        bool mark = utf8proc_get_property((utf8proc_int32_t)cp)->combining_class != 0;
        marks = mark ? marks + 1 : 0;
        if (marks > MAX_MARKS_IN_A_ROW) return false;
    }
    return true;
}

/* Text between special tokens. */
static ats_status encode_normal(struct encoder *e, const char *text, size_t n, bool prefix) {
    if (!e->t->nfc || n == 0 || !can_normalise(text, n)) {
        encode_plain(e, text, n, prefix);
        return ATS_OK;
    }
    utf8proc_uint8_t *nfc = NULL;
    utf8proc_ssize_t len = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)n, &nfc,
                                        (utf8proc_option_t)(UTF8PROC_STABLE | UTF8PROC_COMPOSE));
    if (len < 0) return fail(ATS_FAILED, "normalising the text: %s", utf8proc_errmsg(len));
    encode_plain(e, (const char *)nfc, (size_t)len, prefix);
    free(nfc);
    return ATS_OK;
}

/* The same, unless it is to stop. */
static ats_status encode_fragment(struct encoder *e, const char *text, size_t n, bool prefix) {
    if (!asker_stops(&e->asker, 1)) TRY(encode_normal(e, text, n, prefix));
    return e->asker.stopped ? fail(ATS_CANCELLED, "tokenizing was cancelled") : ATS_OK;
}

static bool strips_after(const struct tokenizer *t, int32_t id) {
    if (!t->special_rstrip) return false;
    if (id == t->role_ids[ROLE_UNK] || id == t->role_ids[ROLE_BOS]) return false;
    if (t->vocab.types[id] == TOKEN_UNKNOWN) return false;
    struct text_span piece = vocab_piece(&t->vocab, id);
    return piece.len != 13 || memcmp(piece.data, "<|endoftext|>", 13) != 0;
}

/*
 * Special tokens go first, leftmost, of several there the longest. The space prefix stands before
 * text at the start and after control tokens, not after user-defined ones (R43: those are parts of
 * the text, as SentencePiece sees it).
 */
static ats_status encode_found(struct encoder *e, struct special_search *search) {
    const struct tokenizer *t = e->t;
    const char *text = search->text;
    bool prefix = t->add_space_prefix;
    size_t begin = 0, n = search->n;
    for (size_t at = 0; at < n;) {
        int32_t id = special_at(search, at);
        if (id < 0) {
            at++;
            continue;
        }
        TRY(encode_fragment(e, text + begin, at - begin, prefix));
        token_list_add(e->out, id);
        prefix = t->add_space_prefix && t->vocab.types[id] != TOKEN_USER_DEFINED;
        at += vocab_piece(&t->vocab, id).len;
        if (strips_after(t, id)) {
            while (at < n && (text[at] == ' ' || (text[at] >= '\t' && text[at] <= '\r')))
                at++;
        }
        begin = at;
    }
    return encode_fragment(e, text + begin, n - begin, prefix);
}

static ats_status encode_text(struct encoder *e, const char *text, size_t n, bool parse_control) {
    const struct tokenizer *t = e->t;
    bool any = parse_control ? t->special.n > 0 : t->special.any_user_defined;
    if (!any) return encode_fragment(e, text, n, t->add_space_prefix);
    struct special_search search = {
        .set = &t->special, .text = text, .n = n, .parse_control = parse_control};
    ats_status status = encode_found(e, &search);
    special_search_free(&search);
    return status;
}

ats_status tokenizer_encode(const struct tokenizer *t, const char *text, size_t n_bytes,
                            unsigned flags, struct token_list *out) {
    return tokenizer_encode_until(t, text, n_bytes, flags, NULL, NULL, out);
}

ats_status tokenizer_encode_until(const struct tokenizer *t, const char *text, size_t n_bytes,
                                  unsigned flags, ats_cancel_fn *cancel, void *cancel_user,
                                  struct token_list *out) {
    if (n_bytes >= MAX_TEXT_BYTES) {
        return fail(ATS_BAD_INPUT, "a text of %zu bytes is too long to tokenize", n_bytes);
    }
    struct encoder e = {.t = t, .out = out, .asker = {.cancel = cancel, .user = cancel_user}};
    e.pretok.asker = &e.asker;
    struct buf replaced = {0};
    size_t n_before = out->n;
    if (!utf8_valid(text, n_bytes)) {
        utf8_add_replaced(&replaced, text, n_bytes);
        text = replaced.data;
        n_bytes = replaced.len;
    }
    bool add = flags & ENCODE_ADD_SPECIAL;
    if (add && t->add_bos) token_list_add(out, t->role_ids[ROLE_BOS]);
    ats_status status = encode_text(&e, text, n_bytes, flags & ENCODE_PARSE_SPECIAL);
    if (add && t->add_eos) token_list_add(out, t->role_ids[ROLE_EOS]);
    if (status != ATS_OK) out->n = n_before;
    encoder_free(&e);
    buf_free(&replaced);
    return status;
}

/* -------------------------------------------------------------------------- questions */

int32_t tokenizer_n_tokens(const struct tokenizer *t) {
    return t->vocab.n_tokens;
}

enum tokenizer_model tokenizer_kind(const struct tokenizer *t) {
    return t->vocab.model;
}

const char *tokenizer_pre_name(const struct tokenizer *t) {
    return t->pre_name;
}

bool tokenizer_adds_bos(const struct tokenizer *t) {
    return t->add_bos;
}

bool tokenizer_adds_space_prefix(const struct tokenizer *t) {
    return t->add_space_prefix;
}

static bool in_range(const struct tokenizer *t, int32_t id) {
    return id >= 0 && id < t->vocab.n_tokens;
}

struct text_span tokenizer_piece(const struct tokenizer *t, int32_t id) {
    if (!in_range(t, id)) return (struct text_span){"", 0};
    return vocab_piece(&t->vocab, id);
}

enum token_type tokenizer_type(const struct tokenizer *t, int32_t id) {
    return in_range(t, id) ? (enum token_type)t->vocab.types[id] : TOKEN_UNUSED;
}

bool tokenizer_is_control(const struct tokenizer *t, int32_t id) {
    if (!in_range(t, id)) return true;
    return t->vocab.types[id] == TOKEN_CONTROL || t->vocab.types[id] == TOKEN_UNKNOWN;
}

int32_t tokenizer_role_id(const struct tokenizer *t, enum token_role role) {
    REQUIRE(role >= 0 && role < N_TOKEN_ROLES);
    return t->role_ids[role];
}

int32_t tokenizer_find(const struct tokenizer *t, const char *text, size_t n_bytes) {
    int32_t id = special_find(&t->special, &t->vocab, text, n_bytes);
    return id >= 0 ? id : vocab_find(&t->vocab, text, n_bytes);
}

bool tokenizer_is_end(const struct tokenizer *t, int32_t id) {
    for (size_t i = 0; i < t->n_end_ids; i++) {
        if (t->end_ids[i] == id) return true;
    }
    return false;
}

const int32_t *tokenizer_end_ids(const struct tokenizer *t, size_t *n) {
    *n = t->n_end_ids;
    return t->end_ids;
}
