#include "text/template_impl.h"

#include <langinfo.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/utf8.h"

/* ---- types ---- */

const char *type_name(struct value v) {
    switch ((enum value_kind)v.kind) {
    case V_ABSENT:
    case V_UNDEFINED:
        return "Undefined";
    case V_NONE:
        return "NoneType";
    case V_BOOL:
        return "bool";
    case V_INT:
    case V_BIG:
        return "int";
    case V_FLOAT:
        return "float";
    case V_STRING:
        return v.tag ? "Markup" : "str";
    case V_LIST:
        return "list";
    case V_TUPLE:
        return "tuple";
    case V_DICT:
        return "dict";
    case V_NAMESPACE:
        return "Namespace";
    case V_VIEW:
        return v.tag == VIEW_KEYS     ? "dict_keys"
               : v.tag == VIEW_VALUES ? "dict_values"
                                      : "dict_items";
    case V_RANGE:
        return "range";
    case V_ITER:
        return "generator";
    case V_MACRO:
        return "Macro";
    case V_FUNCTION:
        return "function";
    case V_METHOD:
        return "builtin_function_or_method";
    case V_LOOP:
        return "LoopContext";
    case V_CYCLER:
        return "Cycler";
    case V_JOINER:
        return "Joiner";
    }
    return "object";
}

struct value value_undefined_text(const char *text) {
    return (struct value){
        .kind = V_UNDEFINED, .tag = WHY_TEXT, .n = (uint32_t)strlen(text), .s = text};
}

ats_status fail_undefined(struct value v) {
    const char *object = type_name(value_of((enum value_kind)v.of));
    int n = (int)min_size(v.n, 80);
    switch ((enum undefined_why)v.tag) {
    case WHY_NAME:
        return fail(ATS_BAD_INPUT, "'%.*s' is undefined", n, v.s);
    case WHY_ATTRIBUTE:
        return fail(ATS_BAD_INPUT, "'%s object' has no attribute '%.*s'", object, n, v.s);
    case WHY_ELEMENT:
        return fail(ATS_BAD_INPUT, "%s object has no element %lld", object, (long long)v.i);
    case WHY_UNSAFE:
        return fail(ATS_BAD_INPUT, "access to attribute '%.*s' of '%s' object is unsafe", n, v.s,
                    object);
    case WHY_TEXT:
        break;
    }
    return fail(ATS_BAD_INPUT, "%.*s", n, v.s);
}

bool truth(struct value v) {
    switch ((enum value_kind)v.kind) {
    case V_ABSENT:
    case V_UNDEFINED:
    case V_NONE:
        return false;
    case V_BOOL:
        return v.b;
    case V_INT:
        return v.i != 0;
    case V_FLOAT:
        return v.f != 0.0;
    case V_STRING:
        return v.n > 0;
    case V_LIST:
    case V_TUPLE:
        return v.list->n > 0;
    case V_DICT:
    case V_VIEW:
        return v.dict->n > 0;
    case V_RANGE:
        return v.range->n > 0;
    default:
        return true;
    }
}

int64_t length(struct value v) {
    switch ((enum value_kind)v.kind) {
    case V_UNDEFINED:
        return 0;
    case V_STRING:
        return (int64_t)text_length(v.s, v.n);
    case V_LIST:
    case V_TUPLE:
        return (int64_t)v.list->n;
    case V_DICT:
    case V_VIEW:
        return (int64_t)v.dict->n;
    case V_RANGE:
        return v.range->n;
    case V_LOOP:
        return (int64_t)v.loop->items->n;
    default:
        return -1;
    }
}

/* ---- making ---- */

static ats_status make(struct render *r, size_t bytes, void **out) {
    if (bytes > r->max_memory_bytes ||
        r->arena.used_bytes + r->scratch_bytes > r->max_memory_bytes - bytes)
        return fail(ATS_BAD_INPUT, "limit reached: more than %zu bytes of memory",
                    r->max_memory_bytes);
    *out = arena_alloc(&r->arena, bytes);
    return ATS_OK;
}

ats_status make_bytes(struct render *r, size_t n, char **out) {
    void *p = NULL;
    TRY(make(r, n, &p));
    *out = p;
    return ATS_OK;
}

ats_status make_string(struct render *r, const char *s, size_t n, struct value *out) {
    char *copy;
    TRY(make_bytes(r, n, &copy));
    if (n > 0) memcpy(copy, s, n);
    *out = value_string(copy, n);
    return ATS_OK;
}

static ats_status grow(struct render *r, void **items, size_t n, size_t *cap, size_t item_bytes) {
    if (n < *cap) return ATS_OK;
    size_t new_cap = *cap ? *cap * 2 : 4;
    void *p = NULL;
    TRY(make(r, new_cap * item_bytes, &p));
    if (n > 0) memcpy(p, *items, n * item_bytes);
    *items = p;
    *cap = new_cap;
    return ATS_OK;
}

ats_status list_new(struct render *r, size_t cap, struct list **out) {
    void *p = NULL;
    if (cap > SIZE_MAX / sizeof(struct value) / 2)
        return fail(ATS_BAD_INPUT, "limit reached: list of %zu items", cap);
    TRY(make(r, sizeof(struct list) + cap * sizeof(struct value), &p));
    *out = p;
    (*out)->items = cap ? (struct value *)(*out + 1) : NULL;
    (*out)->cap = cap;
    return ATS_OK;
}

ats_status list_add(struct render *r, struct list *list, struct value v) {
    void *items = list->items;
    TRY(grow(r, &items, list->n, &list->cap, sizeof v));
    list->items = items;
    list->items[list->n++] = v;
    return ATS_OK;
}

ats_status dict_new(struct render *r, size_t cap, struct dict **out) {
    void *p = NULL;
    if (cap > SIZE_MAX / sizeof(struct pair) / 2)
        return fail(ATS_BAD_INPUT, "limit reached: dict of %zu items", cap);
    TRY(make(r, sizeof(struct dict) + cap * sizeof(struct pair), &p));
    *out = p;
    (*out)->pairs = cap ? (struct pair *)(*out + 1) : NULL;
    (*out)->cap = cap;
    return ATS_OK;
}

ats_status dict_add(struct render *r, struct dict *dict, struct value key, struct value v) {
    void *pairs = dict->pairs;
    TRY(grow(r, &pairs, dict->n, &dict->cap, sizeof(struct pair)));
    dict->pairs = pairs;
    dict->pairs[dict->n++] = (struct pair){key, v};
    return ATS_OK;
}

/* Long keys may differ in their last byte only. */
ats_status dict_find_name(struct render *r, const struct dict *dict, const char *name, size_t n,
                          struct value **out) {
    size_t n_compared = 0;
    *out = NULL;
    for (size_t i = 0; i < dict->n && !*out; i++) {
        struct value key = dict->pairs[i].key;
        if (key.kind != V_STRING || key.n != n) continue;
        n_compared++;
        if (memcmp(key.s, name, n) == 0) *out = &dict->pairs[i].value;
    }
    return charge(r, dict->n + n_compared * (n / 16));
}

ats_status dict_find(struct render *r, const struct dict *dict, struct value key,
                     struct value **out) {
    if (key.kind == V_STRING) return dict_find_name(r, dict, key.s, key.n, out);
    *out = NULL;
    TRY(charge(r, dict->n));
    if (key.kind == V_LIST || key.kind == V_DICT)
        return fail(ATS_BAD_INPUT, "unhashable type: '%s'", type_name(key));
    for (size_t i = 0; i < dict->n && !*out; i++) {
        bool same;
        TRY(equal(r, dict->pairs[i].key, key, &same));
        if (same) *out = &dict->pairs[i].value;
    }
    return ATS_OK;
}

ats_status dict_set(struct render *r, struct dict *dict, struct value key, struct value v) {
    struct value *found;
    TRY(dict_find(r, dict, key, &found));
    if (!found) return dict_add(r, dict, key, v);
    *found = v;
    return ATS_OK;
}

ats_status tuple2(struct render *r, struct value a, struct value b, struct value *out) {
    struct list *list;
    TRY(list_new(r, 2, &list));
    list->items[0] = a;
    list->items[1] = b;
    list->n = 2;
    *out = value_tuple(list);
    return ATS_OK;
}

ats_status iter_new(struct render *r, struct list *items, struct value *out) {
    void *p = NULL;
    TRY(make(r, sizeof(struct iter), &p));
    *out = (struct value){.kind = V_ITER, .iter = p};
    out->iter->items = items;
    return ATS_OK;
}

/* ---- comparing ---- */

static ats_status equal_items(struct render *r, const struct list *a, const struct list *b,
                              bool *out) {
    *out = a->n == b->n;
    TRY(charge(r, a->n));
    for (size_t i = 0; i < a->n && *out; i++)
        TRY(equal(r, a->items[i], b->items[i], out));
    return ATS_OK;
}

static ats_status equal_dicts(struct render *r, const struct dict *a, const struct dict *b,
                              bool *out) {
    *out = a->n == b->n;
    for (size_t i = 0; i < a->n && *out; i++) {
        struct value *other;
        TRY(dict_find(r, b, a->pairs[i].key, &other));
        *out = other != NULL;
        if (other) TRY(equal(r, a->pairs[i].value, *other, out));
    }
    return ATS_OK;
}

static ats_status equal_ranges(const struct range *a, const struct range *b, bool *out) {
    *out =
        a->n == b->n && (a->n == 0 || (a->start == b->start && (a->n == 1 || a->step == b->step)));
    return ATS_OK;
}

ats_status equal(struct render *r, struct value a, struct value b, bool *out) {
    *out = false;
    if (is_number(a) && is_number(b)) {
        *out =
            is_integral(a) && is_integral(b) ? integral(a) == integral(b) : number(a) == number(b);
        return ATS_OK;
    }
    if (a.kind != b.kind) return ATS_OK;
    ats_status status = ATS_OK;
    switch ((enum value_kind)a.kind) {
    case V_UNDEFINED:
    case V_NONE:
        *out = true;
        return ATS_OK;
    case V_STRING:
    case V_BIG:
        *out = a.n == b.n && memcmp(a.s, b.s, a.n) == 0;
        return charge_copy(r, a.n);
    case V_LIST:
    case V_TUPLE:
        TRY(enter(r));
        status = equal_items(r, a.list, b.list, out);
        leave(r);
        return status;
    case V_DICT:
        TRY(enter(r));
        status = equal_dicts(r, a.dict, b.dict, out);
        leave(r);
        return status;
    case V_RANGE:
        return equal_ranges(a.range, b.range, out);
    case V_FUNCTION:
        *out = a.i == b.i;
        return ATS_OK;
    case V_METHOD:
        *out = a.method == b.method;
        return ATS_OK;
    default: /* by identity */
        *out = a.s == b.s && a.tag == b.tag;
        return ATS_OK;
    }
}

static ats_status order_items(struct render *r, const struct list *a, const struct list *b,
                              int *out) {
    TRY(charge(r, min_size(a->n, b->n)));
    for (size_t i = 0; i < a->n && i < b->n; i++) {
        bool same;
        TRY(equal(r, a->items[i], b->items[i], &same));
        if (!same) return order(r, a->items[i], b->items[i], out);
    }
    *out = (a->n > b->n) - (a->n < b->n);
    return ATS_OK;
}

ats_status order(struct render *r, struct value a, struct value b, int *out) {
    if (is_integral(a) && is_integral(b)) {
        *out = (integral(a) > integral(b)) - (integral(a) < integral(b));
        return ATS_OK;
    }
    if (is_number(a) && is_number(b)) {
        double x = number(a), y = number(b);
        *out = isnan(x) || isnan(y) ? 2 : (x > y) - (x < y); /* 2: neither */
        return ATS_OK;
    }
    if (is_string(a) && is_string(b)) { /* UTF-8 bytes sort as code points do */
        int c = memcmp(a.s, b.s, a.n < b.n ? a.n : b.n);
        *out = c ? (c > 0) - (c < 0) : (a.n > b.n) - (a.n < b.n);
        return charge_copy(r, min_size(a.n, b.n));
    }
    if (a.kind == b.kind && (a.kind == V_LIST || a.kind == V_TUPLE)) {
        TRY(enter(r));
        TRY(order_items(r, a.list, b.list, out));
        leave(r);
        return ATS_OK;
    }
    if (a.kind == V_UNDEFINED) return fail_undefined(a);
    if (b.kind == V_UNDEFINED) return fail_undefined(b);
    return fail(ATS_BAD_INPUT, "no order between '%s' and '%s'", type_name(a), type_name(b));
}

ats_status contains(struct render *r, struct value container, struct value item, bool *out) {
    *out = false;
    if (is_string(container)) {
        if (item.kind == V_UNDEFINED) return fail_undefined(item);
        if (!is_string(item))
            return fail(ATS_BAD_INPUT, "'in' of a str needs a str on its left, not '%s'",
                        type_name(item));
        const char *found;
        TRY(text_find(r, container, 0, item, &found));
        *out = found != NULL;
        return ATS_OK;
    }
    if (container.kind == V_DICT || (container.kind == V_VIEW && container.tag == VIEW_KEYS)) {
        struct value *found;
        TRY(dict_find(r, container.dict, item, &found));
        *out = found != NULL;
        return ATS_OK;
    }
    struct cursor c;
    TRY(cursor_begin(r, container, &c));
    for (;;) {
        struct value v;
        bool more;
        TRY(cursor_next(r, &c, &v, &more));
        if (!more || *out) return ATS_OK;
        TRY(equal(r, v, item, out));
    }
}

/* ---- reading sequences ---- */

ats_status item_at(struct render *r, struct value v, int64_t i, struct value *out) {
    switch ((enum value_kind)v.kind) {
    case V_LIST:
    case V_TUPLE:
        *out = v.list->items[i];
        return ATS_OK;
    case V_RANGE:
        *out = value_int(v.range->start + i * v.range->step);
        return ATS_OK;
    case V_VIEW:
        if (v.tag == VIEW_ITEMS)
            return tuple2(r, v.dict->pairs[i].key, v.dict->pairs[i].value, out);
        *out = v.tag == VIEW_KEYS ? v.dict->pairs[i].key : v.dict->pairs[i].value;
        return ATS_OK;
    default:
        *out = v.dict->pairs[i].key;
        return ATS_OK;
    }
}

ats_status cursor_begin(struct render *r, struct value v, struct cursor *out) {
    (void)r;
    *out = (struct cursor){.v = v};
    switch ((enum value_kind)v.kind) {
    case V_UNDEFINED:
    case V_STRING:
    case V_LIST:
    case V_TUPLE:
    case V_DICT:
    case V_VIEW:
    case V_RANGE:
    case V_ITER:
    case V_LOOP:
        return ATS_OK;
    default:
        return fail(ATS_BAD_INPUT, "'%s' object is not iterable", type_name(v));
    }
}

ats_status cursor_next(struct render *r, struct cursor *c, struct value *out, bool *more) {
    TRY(charge(r, 0));
    if (c->v.kind == V_STRING) {
        *more = c->pos < c->v.n;
        if (!*more) return ATS_OK;
        size_t start = c->pos;
        (void)text_next(c->v.s, c->v.n, &c->pos);
        *out = value_string(c->v.s + start, c->pos - start);
        return ATS_OK;
    }
    if (c->v.kind == V_ITER) {
        struct iter *it = c->v.iter;
        *more = it->pos < it->items->n;
        if (*more) *out = it->items->items[it->pos++];
        return ATS_OK;
    }
    if (c->v.kind == V_LOOP) { /* the rest of the loop */
        struct loop *loop = c->v.loop;
        *more = loop->index + 1 < loop->items->n;
        if (*more) *out = loop->items->items[++loop->index];
        return ATS_OK;
    }
    *more = (int64_t)c->pos < length(c->v);
    return *more ? item_at(r, c->v, (int64_t)c->pos++, out) : ATS_OK;
}

ats_status to_list(struct render *r, struct value v, struct list **out) {
    struct cursor c;
    TRY(cursor_begin(r, v, &c));
    int64_t n = is_string(v) ? 0 : length(v);
    TRY(list_new(r, n > 0 ? (size_t)n : 0, out));
    for (;;) {
        struct value item;
        bool more;
        TRY(cursor_next(r, &c, &item, &more));
        if (!more) return ATS_OK;
        TRY(list_add(r, *out, item));
    }
}

/* ---- text ---- */

uint32_t text_next(const char *s, size_t n, size_t *i) {
    uint32_t cp;
    int len = utf8_decode(s + *i, n - *i, &cp);
    if (len == 0) {
        cp = 0xFFFD;
        len = 1;
    }
    *i += (size_t)len;
    return cp;
}

size_t text_length(const char *s, size_t n) {
    size_t count = 0;
    for (size_t i = 0; i < n; i++)
        count += ((unsigned char)s[i] & 0xC0) != 0x80;
    return count;
}

size_t text_offset(const char *s, size_t n, size_t i) {
    size_t pos = 0;
    for (; i > 0 && pos < n; i--) {
        pos++;
        while (pos < n && ((unsigned char)s[pos] & 0xC0) == 0x80)
            pos++;
    }
    return pos;
}

/* What Python's str.isspace says. */
bool text_is_space(uint32_t cp) {
    if (cp < 0x80) return cp == ' ' || (cp >= 9 && cp <= 13) || (cp >= 28 && cp <= 31);
    return cp == 0x85 || cp == 0xA0 || cp == 0x1680 || (cp >= 0x2000 && cp <= 0x200A) ||
           cp == 0x2028 || cp == 0x2029 || cp == 0x202F || cp == 0x205F || cp == 0x3000;
}

bool parse_float(const char *s, size_t n, double *out) {
    char text[400];
    if (n == 0 || n >= sizeof text - 8) return false;
    const char *radix = nl_langinfo(RADIXCHAR); /* strtod wants the locale's own */
    size_t len = 0;
    for (size_t i = 0; i < n && len < sizeof text - 8; i++) {
        char c = s[i];
        if (c == '.' && strlen(radix) < 8) {
            len += strlen(strcpy(text + len, radix));
        } else if ((c >= '0' && c <= '9') || c == 'e' || c == 'E' || c == '+' || c == '-') {
            text[len++] = c;
        } else {
            return false;
        }
    }
    text[len] = 0;
    char *end;
    *out = strtod(text, &end);
    return *end == 0;
}

bool parse_integer(const char *s, size_t n, int base, int64_t *out) {
    bool negative = n > 0 && s[0] == '-';
    size_t i = n > 0 && (s[0] == '-' || s[0] == '+');
    *out = 0;
    if (i == n) return false;
    for (; i < n; i++) {
        int c = (unsigned char)s[i];
        int d = c >= '0' && c <= '9'   ? c - '0'
                : c >= 'a' && c <= 'z' ? c - 'a' + 10
                : c >= 'A' && c <= 'Z' ? c - 'A' + 10
                                       : 99;
        if (d >= base || __builtin_mul_overflow(*out, base, out)) return false;
        if (negative ? __builtin_sub_overflow(*out, d, out) : __builtin_add_overflow(*out, d, out))
            return false;
    }
    return true;
}

/* Shortest digits that read back as f, laid out as Python does: an exponent only below 1e-4 or
 * from 1e16 on. */
void format_float(double f, char out[32]) {
    if (!isfinite(f)) {
        strcpy(out, isnan(f) ? "nan" : f > 0 ? "inf" : "-inf");
        return;
    }
    char text[48], digits[24];
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, f);
        if (strtod(text, NULL) == f) break;
    }
    int n = 0;
    char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < 20) digits[n++] = *p;
    int exponent = atoi(p + 1), len = 0;
    if (signbit(f)) out[len++] = '-';
    if (exponent >= 16 || exponent < -4) {
        out[len++] = digits[0];
        if (n > 1) out[len++] = '.';
        for (int i = 1; i < n; i++)
            out[len++] = digits[i];
        snprintf(out + len, 6, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent) % 1000);
        return;
    }
    if (exponent < 0) {
        out[len++] = '0';
        out[len++] = '.';
        for (int i = -1; i > exponent; i--)
            out[len++] = '0';
        for (int i = 0; i < n; i++)
            out[len++] = digits[i];
    } else {
        for (int i = 0; i <= exponent || i < n || i <= exponent + 1; i++) {
            if (i == exponent + 1) out[len++] = '.';
            out[len++] = i < n ? digits[i] : '0';
        }
    }
    out[len] = 0;
}
