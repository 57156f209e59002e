/*
 * Values of a template while it renders, with Python's meaning of them: truth, equality, order,
 * str() and repr(), iteration. Not the language (template_eval.c), not the filters.
 * Only the template_*.c files include this.
 */
#pragma once

#include "base/arena.h"
#include "base/buf.h"
#include "base/error.h"

enum value_kind {
    V_ABSENT, /* no value at all: an argument not given, a variable not bound */
    V_UNDEFINED,
    V_NONE,
    V_BOOL,
    V_INT,
    V_BIG, /* an integer literal beyond 64 bits: can be printed and compared to itself, no more */
    V_FLOAT,
    V_STRING,
    V_LIST,
    V_TUPLE,
    V_DICT,
    V_NAMESPACE,
    V_VIEW,  /* keys(), values(), items() of a dict: sees later changes */
    V_RANGE, /* range() */
    V_ITER,  /* what Python's generators are: can be read once, always true, has no length */
    V_MACRO,
    V_FUNCTION, /* a global; i is an enum function_id */
    V_METHOD,   /* bound */
    V_LOOP,
    V_CYCLER,
    V_JOINER,
};

/* Why a value is undefined, for the error text. */
enum undefined_why { WHY_NAME, WHY_ATTRIBUTE, WHY_ELEMENT, WHY_TEXT, WHY_UNSAFE };
enum view_kind { VIEW_KEYS, VIEW_VALUES, VIEW_ITEMS };

struct value {
    uint8_t kind;
    uint8_t tag; /* string: 1 = Markup; tuple: 1 = of groupby; undefined: why; view: kind */
    uint16_t of; /* undefined: kind of the object that lacks it */
    uint32_t n;  /* string, big, undefined: bytes of s */
    union {
        bool b;
        int64_t i;
        double f;
        const char *s; /* UTF-8, no NUL added; lives in the arena, the template or the context */
        struct list *list;
        struct dict *dict;
        struct range *range;
        struct iter *iter;
        struct macro *macro;
        struct method *method;
        struct loop *loop;
        struct cycler *cycler;
        struct joiner *joiner;
    };
};

struct list {
    struct value *items;
    size_t n, cap;
};
struct pair {
    struct value key, value;
};
struct dict { /* in insertion order, searched linearly: dicts of templates are small */
    struct pair *pairs;
    size_t n, cap;
};
struct range {
    int64_t start, step, n;
    int64_t stop;
};
struct iter {
    struct list *items;
    size_t pos;
};
struct method {
    struct value self;
    const char *name;
    uint32_t n;
};
struct cycler {
    struct list *items;
    size_t pos;
};
struct joiner {
    struct value sep;
    bool used;
};

/* Where a sequence is being read. */
struct cursor {
    struct value v;
    size_t pos; /* item, or byte of a string */
};

struct render;

static inline struct value value_of(enum value_kind kind) {
    return (struct value){.kind = (uint8_t)kind};
}
static inline struct value value_none(void) {
    return value_of(V_NONE);
}
static inline struct value value_bool(bool b) {
    return (struct value){.kind = V_BOOL, .b = b};
}
static inline struct value value_int(int64_t i) {
    return (struct value){.kind = V_INT, .i = i};
}
static inline struct value value_float(double f) {
    return (struct value){.kind = V_FLOAT, .f = f};
}
/* s is borrowed; n < 4 GiB (every limit is far below). */
static inline struct value value_string(const char *s, size_t n) {
    return (struct value){.kind = V_STRING, .n = (uint32_t)n, .s = s};
}
static inline struct value value_list(struct list *list) {
    return (struct value){.kind = V_LIST, .list = list};
}
static inline struct value value_tuple(struct list *list) {
    return (struct value){.kind = V_TUPLE, .list = list};
}
static inline struct value value_dict(struct dict *dict) {
    return (struct value){.kind = V_DICT, .dict = dict};
}
/* Undefined with a text of its own (a literal). */
struct value value_undefined_text(const char *text);

static inline bool is_string(struct value v) {
    return v.kind == V_STRING;
}
static inline bool is_absent(struct value v) {
    return v.kind == V_ABSENT;
}
/* bool counts as a number, as in Python. */
static inline bool is_integral(struct value v) {
    return v.kind == V_INT || v.kind == V_BOOL;
}
static inline int64_t integral(struct value v) {
    return v.kind == V_BOOL ? (int64_t)v.b : v.i;
}
static inline bool is_number(struct value v) {
    return is_integral(v) || v.kind == V_FLOAT;
}
static inline double number(struct value v) {
    return v.kind == V_FLOAT ? v.f : (double)integral(v);
}
static inline bool string_is(struct value v, const char *s) {
    return v.kind == V_STRING && v.n == __builtin_strlen(s) && __builtin_memcmp(v.s, s, v.n) == 0;
}

/* Python's name of the type: "str", "NoneType". */
const char *type_name(struct value v);
/* Fails with the text of an undefined value ("'x' is undefined"). */
MUST_CHECK ats_status fail_undefined(struct value v);
bool truth(struct value v);

/* Making. All memory is the render's; the limit is checked. */
MUST_CHECK ats_status make_bytes(struct render *r, size_t n, char **out);
MUST_CHECK ats_status make_string(struct render *r, const char *s, size_t n, struct value *out);
MUST_CHECK ats_status list_new(struct render *r, size_t cap, struct list **out);
MUST_CHECK ats_status list_add(struct render *r, struct list *list, struct value v);
MUST_CHECK ats_status dict_new(struct render *r, size_t cap, struct dict **out);
MUST_CHECK ats_status dict_set(struct render *r, struct dict *dict, struct value key,
                               struct value v);
/* The same without looking whether key is there. */
MUST_CHECK ats_status dict_add(struct render *r, struct dict *dict, struct value key,
                               struct value v);
/* *out NULL if there is no such key. */
MUST_CHECK ats_status dict_find(struct render *r, const struct dict *dict, struct value key,
                                struct value **out);
MUST_CHECK ats_status dict_find_name(struct render *r, const struct dict *dict, const char *name,
                                     size_t n, struct value **out);
MUST_CHECK ats_status tuple2(struct render *r, struct value a, struct value b, struct value *out);
MUST_CHECK ats_status iter_new(struct render *r, struct list *items, struct value *out);

/* Comparing. Order fails on types that have none ('<' of str and int). */
MUST_CHECK ats_status equal(struct render *r, struct value a, struct value b, bool *out);
MUST_CHECK ats_status order(struct render *r, struct value a, struct value b, int *out);
/* Python's `item in container`. */
MUST_CHECK ats_status contains(struct render *r, struct value container, struct value item,
                               bool *out);

/* Reading a sequence. Fails if v cannot be iterated; undefined is empty. */
MUST_CHECK ats_status cursor_begin(struct render *r, struct value v, struct cursor *out);
/* *more is false at the end. */
MUST_CHECK ats_status cursor_next(struct render *r, struct cursor *c, struct value *out,
                                  bool *more);
/* A new list of all items. */
MUST_CHECK ats_status to_list(struct render *r, struct value v, struct list **out);
/* len(); -1 if v has no length. */
int64_t length(struct value v);
/* Item i of a list, tuple, range or view, 0 <= i < length. */
MUST_CHECK ats_status item_at(struct render *r, struct value v, int64_t i, struct value *out);

/* Printing into a scratch buffer or the output. */
MUST_CHECK ats_status put_str(struct render *r, struct buf *b, struct value v);
MUST_CHECK ats_status put_repr(struct render *r, struct buf *b, struct value v);
/* str(): a string comes back as it is. */
MUST_CHECK ats_status to_string(struct render *r, struct value v, struct value *out);
/* Python's repr of a float, at most 32 bytes with NUL. */
void format_float(double f, char out[32]);
/* Decimal text s[0..n) to double, whatever the locale; false if it is not all a number. */
bool parse_float(const char *s, size_t n, double *out);

/* Code points. */
size_t text_length(const char *s, size_t n);
/* Byte offset of code point i (n if beyond). */
size_t text_offset(const char *s, size_t n, size_t i);
bool text_is_space(uint32_t cp);
/* Decodes at s[i]; bad bytes (there are none in valid input) count as one each. */
uint32_t text_next(const char *s, size_t n, size_t *i);
