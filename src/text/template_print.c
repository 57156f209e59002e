#include "text/template_impl.h"

#include <stdio.h>
#include <string.h>
#include <utf8proc.h>

/* str() and repr(), as Python prints. */

static ats_status put_text(struct render *r, struct buf *b, const char *s) {
    return put(r, b, s, strlen(s));
}

/* Not printable in Python's sense: repr escapes it. */
static bool is_hidden(uint32_t cp) {
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_CC:
    case UTF8PROC_CATEGORY_CF:
    case UTF8PROC_CATEGORY_CS:
    case UTF8PROC_CATEGORY_CO:
    case UTF8PROC_CATEGORY_CN:
    case UTF8PROC_CATEGORY_ZL:
    case UTF8PROC_CATEGORY_ZP:
        return true;
    case UTF8PROC_CATEGORY_ZS:
        return cp != ' ';
    default:
        return false;
    }
}

static ats_status put_string_repr(struct render *r, struct buf *b, struct value v) {
    bool single = memchr(v.s, '\'', v.n), twice = memchr(v.s, '"', v.n);
    char quote = single && !twice ? '"' : '\'', text[16];
    if (v.tag) TRY(put_text(r, b, "Markup("));
    TRY(put_char(r, b, quote));
    for (size_t i = 0; i < v.n;) {
        size_t start = i;
        uint32_t cp = text_next(v.s, v.n, &i);
        if (cp == '\\' || cp == (uint32_t)quote) {
            snprintf(text, sizeof text, "\\%c", (char)cp);
        } else if (cp == '\n' || cp == '\t' || cp == '\r') {
            strcpy(text, cp == '\n' ? "\\n" : cp == '\t' ? "\\t" : "\\r");
        } else if (cp < 0x20 || cp == 0x7F || (cp >= 0x80 && is_hidden(cp))) {
            snprintf(text, sizeof text,
                     cp < 0x100     ? "\\x%02x"
                     : cp < 0x10000 ? "\\u%04x"
                                    : "\\U%08x",
                     cp);
        } else {
            TRY(put(r, b, v.s + start, i - start));
            continue;
        }
        TRY(put_text(r, b, text));
    }
    TRY(put_char(r, b, quote));
    return v.tag ? put_char(r, b, ')') : ATS_OK;
}

static ats_status put_list(struct render *r, struct buf *b, const struct list *list,
                           const char *open, const char *close) {
    TRY(put_text(r, b, open));
    for (size_t i = 0; i < list->n; i++) {
        if (i > 0) TRY(put_text(r, b, ", "));
        TRY(put_repr(r, b, list->items[i]));
    }
    return put_text(r, b, close);
}

static ats_status put_dict(struct render *r, struct buf *b, const struct dict *dict) {
    TRY(put_char(r, b, '{'));
    for (size_t i = 0; i < dict->n; i++) {
        if (i > 0) TRY(put_text(r, b, ", "));
        TRY(put_repr(r, b, dict->pairs[i].key));
        TRY(put_text(r, b, ": "));
        TRY(put_repr(r, b, dict->pairs[i].value));
    }
    return put_char(r, b, '}');
}

/* dict_keys([...]) */
static ats_status put_view(struct render *r, struct buf *b, struct value v) {
    TRY(put_text(r, b, type_name(v)));
    TRY(put_text(r, b, "(["));
    for (size_t i = 0; i < v.dict->n; i++) {
        struct value item;
        if (i > 0) TRY(put_text(r, b, ", "));
        TRY(item_at(r, v, (int64_t)i, &item));
        TRY(put_repr(r, b, item));
    }
    return put_text(r, b, "])");
}

static ats_status put_range(struct render *r, struct buf *b, const struct range *range) {
    char text[96];
    int n = snprintf(text, sizeof text, "range(%lld, %lld", (long long)range->start,
                     (long long)range->stop);
    if (range->step != 1)
        n += snprintf(text + n, sizeof text - (size_t)n, ", %lld", (long long)range->step);
    snprintf(text + n, sizeof text - (size_t)n, ")");
    return put_text(r, b, text);
}

/* Things without a value of their own: Python prints an address, which is always 0 here. */
static ats_status put_object(struct render *r, struct buf *b, struct value v) {
    char text[160];
    switch ((enum value_kind)v.kind) {
    case V_MACRO:
        snprintf(text, sizeof text, "<Macro '%.*s'>", (int)min_size(v.macro->n, 100),
                 v.macro->name);
        break;
    case V_LOOP:
        snprintf(text, sizeof text, "<LoopContext %zu/%zu>", v.loop->index + 1, v.loop->items->n);
        break;
    case V_CYCLER:
    case V_JOINER:
        snprintf(text, sizeof text, "<jinja2.utils.%s object at 0x0>", type_name(v));
        break;
    case V_METHOD:
        snprintf(text, sizeof text, "<built-in method %.*s of %s object at 0x0>",
                 (int)min_size(v.method->n, 60), v.method->name, type_name(v.method->self));
        break;
    default:
        snprintf(text, sizeof text, "<%s object at 0x0>", type_name(v));
        break;
    }
    return put_text(r, b, text);
}

/* One function per kind, called through a table: see eval(). */
typedef ats_status repr_fn(struct render *r, struct buf *b, struct value v);

static ats_status repr_undefined(struct render *r, struct buf *b, struct value v) {
    (void)v;
    return put_text(r, b, "Undefined");
}
static ats_status repr_none(struct render *r, struct buf *b, struct value v) {
    (void)v;
    return put_text(r, b, "None");
}
static ats_status repr_bool(struct render *r, struct buf *b, struct value v) {
    return put_text(r, b, v.b ? "True" : "False");
}
static ats_status repr_int(struct render *r, struct buf *b, struct value v) {
    char text[32];
    snprintf(text, sizeof text, "%lld", (long long)v.i);
    return put_text(r, b, text);
}
static ats_status repr_float(struct render *r, struct buf *b, struct value v) {
    char text[32];
    TRY(charge_float(r));
    format_float(v.f, text);
    return put_text(r, b, text);
}
static ats_status repr_big(struct render *r, struct buf *b, struct value v) {
    return put(r, b, v.s, v.n);
}
static ats_status repr_list(struct render *r, struct buf *b, struct value v) {
    return put_list(r, b, v.list, "[", "]");
}
static ats_status repr_tuple(struct render *r, struct buf *b, struct value v) {
    return put_list(r, b, v.list, "(", v.list->n == 1 ? ",)" : ")");
}
static ats_status repr_dict(struct render *r, struct buf *b, struct value v) {
    return put_dict(r, b, v.dict);
}
static ats_status repr_namespace(struct render *r, struct buf *b, struct value v) {
    TRY(put_text(r, b, "<Namespace "));
    TRY(put_dict(r, b, v.dict));
    return put_char(r, b, '>');
}
static ats_status repr_range(struct render *r, struct buf *b, struct value v) {
    return put_range(r, b, v.range);
}

static repr_fn *const reprs[] = {
    [V_ABSENT] = repr_undefined, [V_UNDEFINED] = repr_undefined,
    [V_NONE] = repr_none,        [V_BOOL] = repr_bool,
    [V_INT] = repr_int,          [V_BIG] = repr_big,
    [V_FLOAT] = repr_float,      [V_STRING] = put_string_repr,
    [V_LIST] = repr_list,        [V_TUPLE] = repr_tuple,
    [V_DICT] = repr_dict,        [V_NAMESPACE] = repr_namespace,
    [V_VIEW] = put_view,         [V_RANGE] = repr_range,
    [V_ITER] = put_object,       [V_MACRO] = put_object,
    [V_FUNCTION] = put_object,   [V_METHOD] = put_object,
    [V_LOOP] = put_object,       [V_CYCLER] = put_object,
    [V_JOINER] = put_object,
};

ats_status put_repr(struct render *r, struct buf *b, struct value v) {
    TRY(charge(r, 0));
    TRY(enter(r));
    TRY(reprs[v.kind](r, b, v));
    leave(r);
    return ATS_OK;
}

ats_status put_str(struct render *r, struct buf *b, struct value v) {
    if (v.kind == V_STRING) return put(r, b, v.s, v.n);
    if (v.kind == V_UNDEFINED || v.kind == V_ABSENT) return ATS_OK;
    return put_repr(r, b, v);
}

ats_status to_string(struct render *r, struct value v, struct value *out) {
    *out = v;
    if (v.kind == V_STRING) return ATS_OK;
    struct buf *b = scratch_begin(r);
    TRY(put_str(r, b, v));
    return scratch_end(r, b, out);
}
