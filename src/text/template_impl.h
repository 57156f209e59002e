/*
 * Inside the template engine: tokens, the tree, and the state of one render. The tree is in the
 * template's arena and read-only after template_open.
 */
#pragma once

#include "text/template.h"
#include "text/template_value.h"

/* ---- tokens ---- */
enum token_kind {
    T_END, /* of the source */
    T_DATA,
    T_PRINT_BEGIN, /* {{ */
    T_PRINT_END,
    T_TAG_BEGIN, /* {% */
    T_TAG_END,
    T_NAME,
    T_STRING,
    T_INT,
    T_BIG,
    T_FLOAT,
    T_OPERATOR, /* op: its characters, first | second << 8 */
};
#define OP2(a, b) ((a) | (b) << 8)

struct token {
    enum token_kind kind;
    int line;
    int op;
    const char *s; /* data, name, string (unescaped), digits; in the arena */
    size_t n;
    int64_t i;
    double f;
};

enum lex_mode { LEX_TEXT, LEX_PRINT, LEX_TAG };
enum { LEX_MAX_BRACKETS = TEMPLATE_MAX_NESTING + 8 };

struct lexer {
    struct arena *arena;
    const char *s; /* newlines made \n, the last one dropped */
    size_t n, pos;
    int line;
    enum lex_mode mode;
    enum token_kind pending; /* opening token to hand out after its data; T_END: none */
    bool line_starting;
    int n_brackets;
    char brackets[LEX_MAX_BRACKETS];
};

MUST_CHECK ats_status lexer_init(struct lexer *lx, struct arena *arena, const char *text, size_t n);
MUST_CHECK ats_status lexer_next(struct lexer *lx, struct token *out);

/* ---- the tree ---- */
enum node_kind {
    /* expressions */
    N_CONST,
    N_NAME,
    N_LIST,
    N_TUPLE,
    N_DICT, /* items: key, value, key, value */
    N_NEG,
    N_POS,
    N_NOT,
    N_BINARY, /* op */
    N_AND,
    N_OR,
    N_CONCAT,  /* items */
    N_COMPARE, /* a, then items with ops */
    N_COND,    /* b if a else c (c may be NULL) */
    N_ATTR,    /* a.s */
    N_ITEM,    /* a[b] */
    N_SLICE,   /* a[items 0:1:2], each may be NULL */
    N_CALL,    /* a(args) */
    N_FILTER,  /* a | s(args); a NULL inside a filter block: its text */
    N_TEST,    /* a is s(args) */
    N_NSREF,   /* target sym.s */
    /* statements */
    N_TEXT,
    N_PRINT,
    N_BLOCK,     /* items in order, no scope of its own */
    N_IF,        /* items: condition, block, condition, block; a: else */
    N_FOR,       /* for a in b if c: body, else: other; flag: recursive */
    N_SET,       /* a = b */
    N_SET_BLOCK, /* a = body through the filters b (or NULL) */
    N_MACRO,
    N_CALL_BLOCK,   /* a: the call; params, body: the caller */
    N_FILTER_BLOCK, /* a: the filters */
    N_WITH,         /* items: target, value, ... ; body */
    N_SCOPE,        /* body in a scope of its own (generation) */
    N_BREAK,
    N_CONTINUE,
};

enum compare_op { CMP_EQ, CMP_NE, CMP_LT, CMP_LE, CMP_GT, CMP_GE, CMP_IN, CMP_NOT_IN };

struct node;
struct keyword {
    const char *name;
    uint32_t n;
    struct node *value;
};
struct arguments {
    struct node **items;
    struct keyword *keywords;
    struct node *star, *star_star; /* *x, **x; may be NULL */
    int n_items, n_keywords;
};
struct params {
    int *syms;
    struct node **defaults; /* of the last n_defaults ones */
    int n, n_defaults;
    bool takes_varargs, takes_kwargs, takes_caller; /* the body names them */
};

struct filter;
struct test;

struct node {
    uint8_t kind;
    uint8_t flag;
    uint16_t height; /* of the tree below */
    int32_t line;
    int32_t n;  /* of items */
    int32_t op; /* N_BINARY: operator as in struct token; N_NAME, N_NSREF, N_MACRO: symbol */
    struct node *a, *b, *c;
    struct node *body, *other;
    struct node **items;
    uint8_t *ops; /* N_COMPARE */
    struct value value;
    const struct arguments *args;
    struct params *params;
    union {
        const struct filter *filter;
        const struct test *test;
    };
};
/* N_ATTR, N_FILTER, N_TEST, N_NSREF, N_TEXT keep their name or text in value (a string). */

struct symbol {
    const char *name;
    uint32_t n;
};
struct template {
    struct arena arena;
    struct node *root;
    struct symbol *symbols;
    size_t n_symbols, symbols_cap;
    int32_t *hash; /* symbol + 1, open addressing */
    size_t hash_size;
};
/* Number of the token's name, new if not met before. */
MUST_CHECK ats_status template_symbol(struct template *t, const struct token *name, int *out);
/* The same, -1 if the template does not have it. */
int template_find(const struct template *t, const char *name);

struct parser {
    struct template *t;
    struct lexer lx;
    struct token tok, ahead;
    bool has_ahead;
    int nesting;
    int loops;             /* open loops that a break may leave */
    struct params *params; /* of the innermost macro or call block */
};
MUST_CHECK ats_status parse_template(struct parser *p);

/* between template_parse.c (expressions) and template_parse_tags.c */
MUST_CHECK ats_status parse_advance(struct parser *p);
MUST_CHECK ats_status parse_look(struct parser *p, struct token *out);
MUST_CHECK ats_status parse_expect_op(struct parser *p, int op, const char *what);
MUST_CHECK ats_status parse_expect_name(struct parser *p, struct token *out);
MUST_CHECK ats_status parse_unexpected(const struct parser *p, const char *wanted);
MUST_CHECK ats_status parse_nest(struct parser *p);
MUST_CHECK ats_status parse_expression(struct parser *p, struct node **out);
/* An expression without a trailing "if". */
MUST_CHECK ats_status parse_no_condition(struct parser *p, struct node **out);
/* Expression or unparenthesised tuple. with_condition: as above. */
MUST_CHECK ats_status parse_tuple(struct parser *p, bool with_condition, struct node **out);
MUST_CHECK ats_status parse_target(struct parser *p, struct node **out);
/* A chain of filters on operand; first: the name comes without a bar. */
MUST_CHECK ats_status parse_filters(struct parser *p, bool first, struct node *operand,
                                    struct node **out);
struct node *node_new(struct parser *p, enum node_kind kind, int line);
/* Counts child into node's height; fails when too high. */
MUST_CHECK ats_status node_adopt(struct node *node, const struct node *child);
struct nodes {
    struct node **items;
    size_t n, cap;
};
void nodes_add(struct nodes *v, struct node *item);
/* Into node->items, freeing v. */
MUST_CHECK ats_status nodes_give(struct parser *p, struct nodes *v, struct node *node);
bool token_is_op(const struct token *t, int op);
bool token_is_name(const struct token *t, const char *name);

/* ---- rendering ---- */
struct binding {
    int sym;
    struct value v;
};
struct scope {
    struct scope *parent; /* NULL: the root, whose variables are in render.root */
    struct binding *bindings;
    size_t n, cap;
};
struct macro {
    const struct node *def; /* N_MACRO or N_CALL_BLOCK */
    struct scope *scope;    /* where it was defined */
    const char *name;
    uint32_t n;
};
struct loop {
    const struct node *def;
    struct list *items;
    size_t index;         /* from 0 */
    int depth;            /* from 0 */
    struct scope *scope;  /* around the loop */
    struct value changed; /* last arguments of loop.changed, a tuple; V_ABSENT: never called */
};

struct named_value {
    const char *name;
    uint32_t n;
    struct value v;
};
struct args {
    const struct value *items;
    const struct named_value *keywords;
    int n, n_keywords;
};

enum signal { SIGNAL_NONE, SIGNAL_BREAK, SIGNAL_CONTINUE };

struct render {
    const struct template *t;
    const struct tm *now;
    bool immutable;
    uint64_t steps_left;
    uint64_t ask_at; /* that many left: cancel is asked again */
    ats_cancel_fn *cancel;
    void *cancel_user;
    size_t max_output_bytes, max_memory_bytes;
    struct arena arena;
    int depth;
    int line;            /* of what is being evaluated */
    struct value *root;  /* (n_symbols) variables of the outermost scope */
    struct scope *scope; /* innermost; NULL: the root */
    enum signal signal;
    struct buf *out;
    struct buf **scratch; /* owned; the first n_scratch are in use */
    size_t n_scratch, n_made, scratch_cap, scratch_bytes;
};

/* n: how much work this was, in items or bytes of a long value. */
MUST_CHECK ats_status charge(struct render *r, size_t n);
/* For reading through, and for copying or comparing, this many bytes. */
static inline MUST_CHECK ats_status charge_scan(struct render *r, size_t n_bytes) {
    return charge(r, n_bytes / 4);
}
static inline MUST_CHECK ats_status charge_copy(struct render *r, size_t n_bytes) {
    return charge(r, n_bytes / 16);
}
/* To write a number with a fraction takes microseconds: hundreds of digits, or many tries. */
static inline MUST_CHECK ats_status charge_float(struct render *r) {
    return charge(r, 1024);
}
/* Around every recursion; leave only after success (a failure ends the render). */
MUST_CHECK ats_status enter(struct render *r);
static inline void leave(struct render *r) {
    r->depth--;
}
/* Appends to r->out or a scratch buffer, within the limits. */
MUST_CHECK ats_status put(struct render *r, struct buf *b, const char *s, size_t n);
static inline MUST_CHECK ats_status put_char(struct render *r, struct buf *b, char c) {
    return put(r, b, &c, 1);
}
/* Scratch buffers are taken and ended like a stack. */
struct buf *scratch_begin(struct render *r);
/* Copies its text into *out (may be NULL) and gives the buffer back. */
MUST_CHECK ats_status scratch_end(struct render *r, struct buf *b, struct value *out);
MUST_CHECK ats_status scope_bind(struct render *r, struct scope *scope, int sym, struct value v);
MUST_CHECK ats_status scope_new(struct render *r, struct scope *parent, struct scope **out);

/* template_eval.c */
MUST_CHECK ats_status eval(struct render *r, const struct node *n, struct value *out);
MUST_CHECK ats_status eval_args(struct render *r, const struct arguments *a, struct args *out);
MUST_CHECK ats_status call_value(struct render *r, struct value callee, const struct args *args,
                                 struct value *out);
/* input: the value that the innermost filter of the chain n works on (filter blocks). */
MUST_CHECK ats_status eval_filters(struct render *r, const struct node *n, struct value input,
                                   struct value *out);
/* template_exec.c */
MUST_CHECK ats_status exec(struct render *r, const struct node *n);
MUST_CHECK ats_status call_macro(struct render *r, const struct macro *m, const struct args *args,
                                 struct value *out);
/* loop(items) of a recursive loop. */
MUST_CHECK ats_status call_loop(struct render *r, const struct loop *loop, struct value items,
                                struct value *out);
/* template_operator.c */
MUST_CHECK ats_status binary(struct render *r, int op, struct value a, struct value b,
                             struct value *out);
MUST_CHECK ats_status negate(struct value a, struct value *out);
/* template_attr.c */
MUST_CHECK ats_status get_attribute(struct render *r, struct value v, const char *name, size_t n,
                                    struct value *out);
MUST_CHECK ats_status get_item(struct render *r, struct value v, struct value key,
                               struct value *out);
/* start, stop, step: V_NONE if left out */
MUST_CHECK ats_status get_slice(struct render *r, struct value v, struct value start,
                                struct value stop, struct value step, struct value *out);
/* template_string.c, template_method.c; false if there is no such method */
bool string_method_exists(const char *name, size_t n);
bool container_method_exists(struct value v, const char *name, size_t n);
/* The method changes a list or dict. */
bool method_mutates(struct value v, const char *name, size_t n);
MUST_CHECK ats_status call_string_method(struct render *r, const struct method *m,
                                         const struct args *args, struct value *out);
MUST_CHECK ats_status call_container_method(struct render *r, const struct method *m,
                                            const struct args *args, struct value *out);
/* template_globals.c; V_ABSENT if there is no such global */
struct value global_find(const struct render *r, const char *name, size_t n);
MUST_CHECK ats_status call_global(struct render *r, struct value fn, const struct args *args,
                                  struct value *out);

/* ---- arguments of built-in things ---- */
/* Distributes args over n named parameters ("a b c"); what is not given stays V_ABSENT. */
MUST_CHECK ats_status take_args(const struct args *args, const char *names, int n,
                                struct value *slots);
/* A slot as string, integer or truth; when absent (or none) the value that *out came with. */
MUST_CHECK ats_status arg_string(struct value slot, const char *what, struct value *out);
MUST_CHECK ats_status arg_int(struct value slot, const char *what, int64_t *out);
void arg_bool(struct value slot, bool *out);

/* ---- filters and tests ---- */
typedef ats_status filter_fn(struct render *r, struct value in, const struct args *args,
                             struct value *out);
typedef ats_status test_fn(struct render *r, struct value in, const struct args *args, bool *out);
struct filter {
    const char *name;
    filter_fn *fn;
};
struct test {
    const char *name;
    test_fn *fn;
};
const struct filter *filter_find(const char *name, size_t n);
const struct test *test_find(const char *name, size_t n);
/* filters over whole sequences, in a file of their own */
const struct filter *sequence_filter_find(const char *name, size_t n);

/* ---- pieces that filters and methods share ---- */
MUST_CHECK ats_status text_put_upper(struct render *r, struct buf *b, uint32_t cp, bool title);
MUST_CHECK ats_status text_upper(struct render *r, struct value s, struct value *out);
MUST_CHECK ats_status text_lower(struct render *r, struct value s, struct value *out);
MUST_CHECK ats_status text_capitalize(struct render *r, struct value s, struct value *out);
/* chars absent or none: white space. sides: 1 left, 2 right, 3 both */
MUST_CHECK ats_status text_strip(struct render *r, struct value s, struct value chars, int sides,
                                 struct value *out);
MUST_CHECK ats_status text_replace(struct render *r, struct value s, struct value from,
                                   struct value to, int64_t count, struct value *out);
MUST_CHECK ats_status text_split_lines(struct render *r, struct value s, bool keep_ends,
                                       struct list **out);
MUST_CHECK ats_status text_pad(struct render *r, struct value s, int64_t width, uint32_t fill,
                               int side, struct value *out);
MUST_CHECK ats_status text_join(struct render *r, struct value sep, struct value items, bool strict,
                                struct value *out);
bool text_is_lower(struct value s, bool upper);
/* First place of `what` in s[from..), NULL if there is none. Charged by the bytes looked at. */
MUST_CHECK ats_status text_find(struct render *r, struct value s, size_t from, struct value what,
                                const char **out);
MUST_CHECK ats_status text_escape(struct render *r, struct value s, struct value *out);
/* Python's '%' of a string; args a tuple, a dict, or one value */
MUST_CHECK ats_status format_percent(struct render *r, struct value format, struct value args,
                                     struct value *out);
/* str.format */
MUST_CHECK ats_status format_braces(struct render *r, struct value format, const struct args *args,
                                    struct value *out);
/* copy: strings are copied, else borrowed from json, which must outlive the render. */
MUST_CHECK ats_status value_from_json(struct render *r, const json_t *json, bool copy,
                                      struct value *out);
MUST_CHECK ats_status filter_tojson(struct render *r, struct value in, const struct args *args,
                                    struct value *out);
/* Optional sign and digits; false if that is not all, or beyond 64 bits. */
bool parse_integer(const char *s, size_t n, int base, int64_t *out);
