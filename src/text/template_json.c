#include "text/template_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/json.h"

/* JSON into values (the context), and values to JSON as Python's json.dumps writes it. */

static ats_status text_from_json(struct render *r, const char *s, size_t n, bool copy,
                                 struct value *out) {
    if (copy) return make_string(r, s, n, out);
    if (n > r->max_memory_bytes)
        return fail(ATS_BAD_INPUT, "limit reached: a string of %zu bytes", n);
    *out = value_string(s, n);
    return ATS_OK;
}

static ats_status list_from_json(struct render *r, const json_t *json, bool copy,
                                 struct value *out) {
    struct list *list;
    size_t n = json_array_size(json);
    TRY(list_new(r, n, &list));
    for (size_t i = 0; i < n; i++) {
        TRY(value_from_json(r, json_array_get(json, i), copy, &list->items[i]));
        list->n++;
    }
    *out = value_list(list);
    return ATS_OK;
}

static ats_status dict_from_json(struct render *r, const json_t *json, bool copy,
                                 struct value *out) {
    struct dict *dict;
    TRY(dict_new(r, json_object_size(json), &dict));
    /* jansson's iterator only reads, but is not declared so */
    union {
        const json_t *in;
        json_t *out;
    } object = {.in = json};
    for (void *it = json_object_iter(object.out); it; it = json_object_iter_next(object.out, it)) {
        struct value key, v;
        TRY(text_from_json(r, json_object_iter_key(it), json_object_iter_key_len(it), copy, &key));
        TRY(value_from_json(r, json_object_iter_value(it), copy, &v));
        TRY(dict_add(r, dict, key, v));
    }
    *out = value_dict(dict);
    return ATS_OK;
}

ats_status value_from_json(struct render *r, const json_t *json, bool copy, struct value *out) {
    switch (json_typeof(json)) {
    case JSON_NULL:
        *out = value_none();
        return ATS_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = value_bool(json_is_true(json));
        return ATS_OK;
    case JSON_INTEGER:
        *out = value_int(json_integer_value(json));
        return ATS_OK;
    case JSON_REAL:
        *out = value_float(json_real_value(json));
        return ATS_OK;
    case JSON_STRING:
        return text_from_json(r, json_string_value(json), json_string_length(json), copy, out);
    default:
        break;
    }
    TRY(enter(r));
    TRY(json_is_array(json) ? list_from_json(r, json, copy, out)
                            : dict_from_json(r, json, copy, out));
    leave(r);
    return ATS_OK;
}

bool template_json_fits(const char *s, size_t n) {
    int depth = 0;
    bool inside = false;
    for (size_t i = 0; i < n; i++) {
        if (inside && s[i] == '\\')
            i++;
        else if (s[i] == '"')
            inside = !inside;
        else if (!inside && (s[i] == '[' || s[i] == '{'))
            depth++;
        else if (!inside && (s[i] == ']' || s[i] == '}'))
            depth--;
        if (depth > TEMPLATE_MAX_NESTING) return false;
    }
    return true;
}

/* ---- tojson ---- */

struct dump {
    struct render *r;
    struct buf *b;
    bool ascii, sort, lines;
    struct value indent, item_sep, key_sep;
};

static ats_status dump_value(struct dump *d, struct value v, int level);

static ats_status dump_escaped(struct dump *d, uint32_t cp) {
    static const char chars[] = "\"\\\n\r\t\f\b", made[] = "\"\\nrtfb";
    char text[16];
    const char *found = cp > 0 && cp < 0x80 ? strchr(chars, (int)cp) : NULL;
    if (found)
        snprintf(text, sizeof text, "\\%c", made[found - chars]);
    else if (cp < 0x10000)
        snprintf(text, sizeof text, "\\u%04x", cp);
    else
        snprintf(text, sizeof text, "\\u%04x\\u%04x", 0xD800 + ((cp - 0x10000) >> 10),
                 0xDC00 + ((cp - 0x10000) & 0x3FF));
    return put(d->r, d->b, text, strlen(text));
}

static ats_status dump_string(struct dump *d, struct value v) {
    TRY(put_char(d->r, d->b, '"'));
    size_t done = 0;
    for (size_t i = 0; i < v.n;) {
        size_t start = i;
        uint32_t cp = text_next(v.s, v.n, &i);
        if (cp != '"' && cp != '\\' && cp >= 0x20 && !(d->ascii && cp >= 0x7F)) continue;
        TRY(put(d->r, d->b, v.s + done, start - done));
        TRY(dump_escaped(d, cp));
        done = i;
    }
    TRY(put(d->r, d->b, v.s + done, v.n - done));
    return put_char(d->r, d->b, '"');
}

static ats_status dump_float(struct dump *d, double f) {
    char text[32];
    TRY(charge_float(d->r));
    format_float(f, text);
    if (isnan(f)) strcpy(text, "NaN");
    if (isinf(f)) strcpy(text, f > 0 ? "Infinity" : "-Infinity");
    return put(d->r, d->b, text, strlen(text));
}

/* Newline and indentation, if there is any. */
static ats_status dump_line(struct dump *d, int level) {
    if (!d->lines) return ATS_OK;
    TRY(put_char(d->r, d->b, '\n'));
    for (int i = 0; i < level; i++)
        TRY(put(d->r, d->b, d->indent.s, d->indent.n));
    return ATS_OK;
}

static ats_status dump_separator(struct dump *d, bool first, int level) {
    if (!first) TRY(put(d->r, d->b, d->item_sep.s, d->item_sep.n));
    return dump_line(d, level);
}

static ats_status dump_list(struct dump *d, struct value v, int level) {
    const struct list *list = v.list;
    if (list->n == 0) return put(d->r, d->b, "[]", 2);
    TRY(put_char(d->r, d->b, '['));
    for (size_t i = 0; i < list->n; i++) {
        TRY(dump_separator(d, i == 0, level + 1));
        TRY(dump_value(d, list->items[i], level + 1));
    }
    TRY(dump_line(d, level));
    return put_char(d->r, d->b, ']');
}

static ats_status dump_key(struct dump *d, struct value key) {
    switch ((enum value_kind)key.kind) {
    case V_STRING:
        return dump_string(d, key);
    case V_NONE:
    case V_BOOL:
    case V_INT:
    case V_BIG:
    case V_FLOAT:
        TRY(put_char(d->r, d->b, '"'));
        TRY(dump_value(d, key, 0));
        return put_char(d->r, d->b, '"');
    default:
        return fail(ATS_BAD_INPUT, "a key of type '%s' cannot be JSON", type_name(key));
    }
}

/* Pairs by key; the order of keys that are no strings is Python's. */
static ats_status sorted_pairs(struct dump *d, const struct dict *dict, struct dict *out) {
    struct list *keys;
    struct value sorted, self = value_dict(NULL);
    struct named_value sensitive = {"case_sensitive", 14, value_bool(true)};
    struct args args = {.keywords = &sensitive, .n_keywords = 1};
    TRY(list_new(d->r, dict->n, &keys));
    for (size_t i = 0; i < dict->n; i++)
        TRY(list_add(d->r, keys, dict->pairs[i].key));
    self = value_list(keys);
    TRY(filter_find("sort", 4)->fn(d->r, self, &args, &sorted));
    for (size_t i = 0; i < dict->n; i++) {
        struct value *found;
        TRY(dict_find(d->r, dict, sorted.list->items[i], &found));
        TRY(dict_add(d->r, out, sorted.list->items[i], *found));
    }
    return ATS_OK;
}

static ats_status dump_dict(struct dump *d, struct value v, int level) {
    const struct dict *dict = v.dict;
    struct dict sorted = {0};
    if (dict->n == 0) return put(d->r, d->b, "{}", 2);
    if (d->sort) {
        TRY(sorted_pairs(d, dict, &sorted));
        dict = &sorted;
    }
    TRY(put_char(d->r, d->b, '{'));
    for (size_t i = 0; i < dict->n; i++) {
        TRY(dump_separator(d, i == 0, level + 1));
        TRY(dump_key(d, dict->pairs[i].key));
        TRY(put(d->r, d->b, d->key_sep.s, d->key_sep.n));
        TRY(dump_value(d, dict->pairs[i].value, level + 1));
    }
    TRY(dump_line(d, level));
    return put_char(d->r, d->b, '}');
}

static ats_status dump_plain(struct dump *d, struct value v, int level) {
    (void)level;
    switch ((enum value_kind)v.kind) {
    case V_NONE:
        return put(d->r, d->b, "null", 4);
    case V_BOOL:
        return put(d->r, d->b, v.b ? "true" : "false", v.b ? 4 : 5);
    case V_INT:
    case V_BIG:
        return put_str(d->r, d->b, v);
    case V_FLOAT:
        return dump_float(d, v.f);
    case V_STRING:
        return dump_string(d, v);
    default:
        return fail(ATS_BAD_INPUT, "object of type %s cannot be JSON", type_name(v));
    }
}

/* Through a pointer: see eval(). */
typedef ats_status dump_fn(struct dump *d, struct value v, int level);
static dump_fn *const dumps[] = {dump_plain, dump_list, dump_dict};

static ats_status dump_value(struct dump *d, struct value v, int level) {
    bool list = v.kind == V_LIST || v.kind == V_TUPLE;
    TRY(charge(d->r, 0));
    TRY(enter(d->r));
    TRY(dumps[list ? 1 : v.kind == V_DICT ? 2 : 0](d, v, level));
    leave(d->r);
    return ATS_OK;
}

/* indent: a number of blanks or a string; none: all on one line. */
static ats_status take_indent(struct render *r, struct value slot, struct dump *d) {
    if (is_absent(slot) || slot.kind == V_NONE) return ATS_OK;
    d->lines = true;
    d->item_sep = value_string(",", 1);
    if (is_string(slot)) {
        d->indent = slot;
        return ATS_OK;
    }
    int64_t n = 0;
    TRY(arg_int(slot, "indent", &n));
    return text_pad(r, value_string("", 0), n, ' ', 1, &d->indent);
}

static ats_status take_separators(struct value slot, struct dump *d) {
    if (is_absent(slot) || slot.kind == V_NONE) return ATS_OK;
    bool pair = (slot.kind == V_TUPLE || slot.kind == V_LIST) && slot.list->n == 2;
    if (!pair || !is_string(slot.list->items[0]) || !is_string(slot.list->items[1]))
        return fail(ATS_BAD_INPUT, "separators must be two strings");
    d->item_sep = slot.list->items[0];
    d->key_sep = slot.list->items[1];
    return ATS_OK;
}

ats_status filter_tojson(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    struct value slots[4];
    struct dump d = {.r = r,
                     .indent = value_string("", 0),
                     .item_sep = value_string(", ", 2),
                     .key_sep = value_string(": ", 2)};
    TRY(take_args(args, "ensure_ascii indent separators sort_keys", 4, slots));
    arg_bool(slots[0], &d.ascii);
    TRY(take_indent(r, slots[1], &d));
    TRY(take_separators(slots[2], &d));
    arg_bool(slots[3], &d.sort);
    d.b = scratch_begin(r);
    TRY(dump_value(&d, in, 0));
    return scratch_end(r, d.b, out);
}
