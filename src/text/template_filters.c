#include "text/template_impl.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"
#include "base/json.h"

/* Filters over one value; those over sequences are in template_sequence.c. */

/* soft_str: what is no string is printed. */
static ats_status text_of(struct render *r, struct value in, struct value *out) {
    return to_string(r, in, out);
}

static ats_status no_args(const struct args *args) {
    if (args->n == 0 && args->n_keywords == 0) return ATS_OK;
    return fail(ATS_BAD_INPUT, "takes no arguments");
}

static ats_status f_upper(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    TRY(no_args(args));
    TRY(text_of(r, in, &in));
    return text_upper(r, in, out);
}
static ats_status f_lower(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    TRY(no_args(args));
    TRY(text_of(r, in, &in));
    return text_lower(r, in, out);
}
static ats_status f_capitalize(struct render *r, struct value in, const struct args *args,
                               struct value *out) {
    TRY(no_args(args));
    TRY(text_of(r, in, &in));
    return text_capitalize(r, in, out);
}

/* Words begin after white space and - ( { [ <. */
static ats_status f_title(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    TRY(no_args(args));
    TRY(text_of(r, in, &in));
    struct buf *b = scratch_begin(r);
    bool start = true;
    for (size_t i = 0; i < in.n;) {
        uint32_t cp = text_next(in.s, in.n, &i);
        bool breaks = text_is_space(cp) || (cp < 0x80 && cp > 0 && strchr("-({[<", (int)cp));
        char bytes[4];
        int n = utf8_encode((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), bytes);
        TRY(start ? text_put_upper(r, b, cp, false) : put(r, b, bytes, (size_t)n));
        start = breaks;
    }
    return scratch_end(r, b, out);
}

static ats_status f_trim(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    struct value chars;
    TRY(take_args(args, "chars", 1, &chars));
    TRY(text_of(r, in, &in));
    return text_strip(r, in, chars, 3, out);
}

static ats_status f_string(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    TRY(no_args(args));
    return to_string(r, in, out);
}

static ats_status f_safe(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    TRY(no_args(args));
    TRY(to_string(r, in, out));
    out->tag = 1;
    return ATS_OK;
}

static ats_status f_escape(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    TRY(no_args(args));
    TRY(to_string(r, in, &in));
    return text_escape(r, in, out);
}
static ats_status f_forceescape(struct render *r, struct value in, const struct args *args,
                                struct value *out) {
    TRY(no_args(args));
    TRY(to_string(r, in, &in));
    in.tag = 0;
    return text_escape(r, in, out);
}

static ats_status f_default(struct render *r, struct value in, const struct args *args,
                            struct value *out) {
    struct value slots[2];
    bool boolean = false;
    TRY(charge(r, 0));
    TRY(take_args(args, "default_value boolean", 2, slots));
    arg_bool(slots[1], &boolean);
    bool missing = in.kind == V_UNDEFINED || (boolean && !truth(in));
    *out = !missing ? in : is_absent(slots[0]) ? value_string("", 0) : slots[0];
    return ATS_OK;
}

static ats_status f_length(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    TRY(no_args(args));
    int64_t n = length(in);
    if (n < 0) return fail(ATS_BAD_INPUT, "object of type '%s' has no len()", type_name(in));
    *out = value_int(n);
    return charge_scan(r, is_string(in) ? in.n : 0);
}

/* old and new are printed, as the value is. */
static ats_status f_replace(struct render *r, struct value in, const struct args *args,
                            struct value *out) {
    struct value slots[3];
    int64_t count = -1;
    TRY(take_args(args, "old new count", 3, slots));
    if (is_absent(slots[0]) || is_absent(slots[1]))
        return fail(ATS_BAD_INPUT, "needs two arguments");
    TRY(arg_int(slots[2], "count", &count));
    TRY(to_string(r, in, &in));
    TRY(to_string(r, slots[0], &slots[0]));
    TRY(to_string(r, slots[1], &slots[1]));
    in.tag = 0;
    return text_replace(r, in, slots[0], slots[1], count, out);
}

/* ---- indent, center, truncate ---- */

static ats_status put_indented(struct render *r, struct buf *b, const struct list *lines,
                               struct value indention, bool first, bool blank) {
    for (size_t i = 0; i < lines->n; i++) {
        struct value line = lines->items[i];
        if (i > 0) TRY(put_char(r, b, '\n'));
        if (i == 0 ? first : blank || line.n > 0) TRY(put(r, b, indention.s, indention.n));
        TRY(put(r, b, line.s, line.n));
    }
    return ATS_OK;
}

static ats_status f_indent(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    struct value slots[3], indention, with_end;
    struct list *lines;
    bool first = false, blank = false;
    int64_t width = 4;
    TRY(take_args(args, "width first blank", 3, slots));
    if (in.kind == V_UNDEFINED) return fail_undefined(in);
    if (!is_string(in)) return fail(ATS_BAD_INPUT, "needs a string, not '%s'", type_name(in));
    arg_bool(slots[1], &first);
    arg_bool(slots[2], &blank);
    if (is_string(slots[0])) {
        indention = slots[0];
    } else {
        TRY(arg_int(slots[0], "width", &width));
        TRY(text_pad(r, value_string("", 0), width, ' ', 1, &indention));
    }
    uint8_t tag = in.tag;
    in.tag = 0;
    TRY(binary(r, '+', in, value_string("\n", 1), &with_end));
    TRY(text_split_lines(r, with_end, false, &lines));
    struct buf *b = scratch_begin(r);
    TRY(put_indented(r, b, lines, indention, first, blank));
    TRY(scratch_end(r, b, out));
    out->tag = tag;
    return ATS_OK;
}

static ats_status f_center(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    struct value slot;
    int64_t width = 80;
    TRY(take_args(args, "width", 1, &slot));
    TRY(arg_int(slot, "width", &width));
    TRY(text_of(r, in, &in));
    return text_pad(r, in, width, ' ', 0, out);
}

static ats_status f_truncate(struct render *r, struct value in, const struct args *args,
                             struct value *out) {
    struct value slots[4], end = value_string("...", 3);
    int64_t max = 255, leeway = 5;
    bool kill_words = false;
    TRY(take_args(args, "length killwords end leeway", 4, slots));
    TRY(arg_int(slots[0], "length", &max));
    arg_bool(slots[1], &kill_words);
    TRY(arg_string(slots[2], "end", &end));
    TRY(arg_int(slots[3], "leeway", &leeway));
    TRY(charge_scan(r, end.n));
    if (is_string(in)) TRY(charge_scan(r, in.n));
    int64_t n = length(in);
    if (n < 0) return fail(ATS_BAD_INPUT, "object of type '%s' has no len()", type_name(in));
    int64_t n_end = (int64_t)text_length(end.s, end.n);
    if (max < n_end || leeway < 0) return fail(ATS_BAD_INPUT, "length or leeway out of range");
    *out = in;
    if (max > INT32_MAX || leeway > INT32_MAX || n <= max + leeway) return ATS_OK;
    if (!is_string(in)) return fail(ATS_BAD_INPUT, "needs a string, not '%s'", type_name(in));
    struct value head = value_string(in.s, text_offset(in.s, in.n, (size_t)(max - n_end)));
    if (!kill_words) {
        const char *blank = memrchr(head.s, ' ', head.n);
        if (blank) head.n = (uint32_t)(blank - head.s);
    }
    return binary(r, '+', head, end, out);
}

static bool is_word(uint32_t cp) {
    if (cp == '_') return true;
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
    case UTF8PROC_CATEGORY_ND:
    case UTF8PROC_CATEGORY_NL:
    case UTF8PROC_CATEGORY_NO:
        return true;
    default:
        return false;
    }
}

static ats_status f_wordcount(struct render *r, struct value in, const struct args *args,
                              struct value *out) {
    TRY(no_args(args));
    TRY(text_of(r, in, &in));
    TRY(charge(r, in.n));
    int64_t count = 0;
    bool inside = false;
    for (size_t i = 0; i < in.n;) {
        bool word = is_word(text_next(in.s, in.n, &i));
        count += word && !inside;
        inside = word;
    }
    *out = value_int(count);
    return ATS_OK;
}

/* ---- numbers ---- */

/* Digits with single underscores and white space around, as int() and float() take; false if it
 * does not fit in text. */
static bool number_text(struct value in, char *text, size_t max, size_t *n) {
    size_t start = 0, end = in.n;
    while (start < end && text_is_space((unsigned char)in.s[start]))
        start++;
    while (end > start && text_is_space((unsigned char)in.s[end - 1]))
        end--;
    *n = 0;
    for (size_t i = start; i < end; i++) {
        if (in.s[i] == '_' && i > start && i + 1 < end && in.s[i - 1] != '_') continue;
        if (*n + 1 >= max) return false;
        text[(*n)++] = in.s[i];
    }
    return true;
}

static bool text_to_int(const char *text, size_t n, int base, int64_t *out) {
    size_t sign = n > 0 && (text[0] == '-' || text[0] == '+');
    if (n > sign + 2 && text[sign] == '0') { /* 0x1f with base 16 */
        char c = text[sign + 1] | 0x20;
        if ((c == 'x' && base == 16) || (c == 'o' && base == 8) || (c == 'b' && base == 2)) {
            if (!parse_integer(text + sign + 2, n - sign - 2, base, out)) return false;
            if (text[0] == '-') *out = -*out;
            return true;
        }
    }
    return parse_integer(text, n, base, out);
}

static bool float_to_int(double f, int64_t *out) {
    if (!(f > -9223372036854775808.0 && f < 9223372036854775808.0)) return false;
    *out = (int64_t)f;
    return true;
}

static ats_status f_int(struct render *r, struct value in, const struct args *args,
                        struct value *out) {
    struct value slots[2];
    int64_t base = 10, i;
    char text[400];
    size_t n;
    double f;
    TRY(charge(r, is_string(in) ? in.n : 0));
    TRY(take_args(args, "default base", 2, slots));
    TRY(arg_int(slots[1], "base", &base));
    if (base < 2 || base > 36) return fail(ATS_BAD_INPUT, "base out of range");
    if (in.kind == V_UNDEFINED) return fail_undefined(in);
    bool ok = is_integral(in);
    if (ok) i = integral(in);
    if (in.kind == V_FLOAT) ok = float_to_int(in.f, &i);
    if (is_string(in) && number_text(in, text, sizeof text, &n))
        ok = text_to_int(text, n, (int)base, &i) ||
             (parse_float(text, n, &f) && float_to_int(f, &i));
    *out = ok ? value_int(i) : is_absent(slots[0]) ? value_int(0) : slots[0];
    return ATS_OK;
}

static ats_status f_float(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    struct value slot;
    char text[400];
    size_t n;
    double f = 0.0;
    TRY(charge(r, is_string(in) ? in.n : 0));
    TRY(take_args(args, "default", 1, &slot));
    if (in.kind == V_UNDEFINED) return fail_undefined(in);
    bool ok = is_number(in);
    if (ok) f = number(in);
    if (is_string(in)) ok = number_text(in, text, sizeof text, &n) && parse_float(text, n, &f);
    *out = ok ? value_float(f) : is_absent(slot) ? value_float(0.0) : slot;
    return ATS_OK;
}

static ats_status need_number(struct value in) {
    if (in.kind == V_UNDEFINED) return fail_undefined(in);
    if (!is_number(in)) return fail(ATS_BAD_INPUT, "needs a number, not '%s'", type_name(in));
    return ATS_OK;
}

static ats_status f_abs(struct render *r, struct value in, const struct args *args,
                        struct value *out) {
    TRY(charge(r, 0));
    TRY(no_args(args));
    TRY(need_number(in));
    if (in.kind == V_FLOAT)
        *out = value_float(fabs(in.f));
    else if (integral(in) < 0)
        return negate(in, out);
    else
        *out = value_int(integral(in));
    return ATS_OK;
}

/* Half to even on the exact binary value, as printf rounds. */
static double round_digits(double f, int64_t precision) {
    char text[512];
    if (!isfinite(f) || precision > 300) return f;
    if (precision < 0) {
        double unit = pow(10.0, (double)-precision);
        return isinf(unit) ? 0.0 : nearbyint(f / unit) * unit;
    }
    int n = snprintf(text, sizeof text, "%.*f", (int)precision, f);
    return n < (int)sizeof text ? strtod(text, NULL) : f;
}

static ats_status f_round(struct render *r, struct value in, const struct args *args,
                          struct value *out) {
    struct value slots[2], method = value_string("common", 6);
    int64_t precision = 0;
    TRY(charge_float(r));
    TRY(take_args(args, "precision method", 2, slots));
    TRY(arg_int(slots[0], "precision", &precision));
    TRY(arg_string(slots[1], "method", &method));
    TRY(need_number(in));
    bool up = string_is(method, "ceil"), down = string_is(method, "floor");
    if (!up && !down && !string_is(method, "common"))
        return fail(ATS_BAD_INPUT, "method must be common, ceil or floor");
    if (up || down) {
        double unit = pow(10.0, (double)precision), scaled = number(in) * unit;
        *out = value_float(((up ? ceil(scaled) : floor(scaled)) + 0.0) / unit);
    } else if (in.kind == V_FLOAT) {
        *out = value_float(round_digits(in.f, precision));
    } else if (precision >= 0) {
        *out = value_int(integral(in));
    } else {
        int64_t i;
        if (!float_to_int(round_digits(number(in), precision), &i))
            return fail(ATS_BAD_INPUT, "number out of range");
        *out = value_int(i);
    }
    return ATS_OK;
}

/* ---- format, markup, url ---- */

static ats_status f_format(struct render *r, struct value in, const struct args *args,
                           struct value *out) {
    if (args->n > 0 && args->n_keywords > 0)
        return fail(ATS_BAD_INPUT, "takes positional or keyword arguments, not both");
    TRY(text_of(r, in, &in));
    if (args->n_keywords > 0) {
        struct dict *dict;
        TRY(dict_new(r, (size_t)args->n_keywords, &dict));
        for (int i = 0; i < args->n_keywords; i++) {
            const struct named_value *k = &args->keywords[i];
            TRY(dict_set(r, dict, value_string(k->name, k->n), k->v));
        }
        return format_percent(r, in, value_dict(dict), out);
    }
    struct list *list;
    TRY(list_new(r, (size_t)args->n, &list));
    for (int i = 0; i < args->n; i++)
        TRY(list_add(r, list, args->items[i]));
    return format_percent(r, in, value_tuple(list), out);
}

/* Length of the tag or comment that starts at s[i], 0 if it has no end. */
static size_t tag_length(const char *s, size_t n, size_t i) {
    bool comment = n - i >= 4 && memcmp(s + i, "<!--", 4) == 0;
    const char *end = comment ? memmem(s + i + 4, n - i - 4, "-->", 3) : memchr(s + i, '>', n - i);
    return end ? (size_t)(end - s) + (comment ? 3 : 1) - i : 0;
}

/* Character of the entity at s[i] ("&lt;"), its length in *n_used; 0 if it is none that we know. */
static char entity_at(const char *s, size_t n, size_t i, size_t *n_used) {
    static const struct {
        const char *text;
        char c;
    } entities[] = {{"&lt;", '<'},  {"&gt;", '>'},   {"&amp;", '&'},   {"&quot;", '"'},
                    {"&#34;", '"'}, {"&#39;", '\''}, {"&apos;", '\''}, {"&nbsp;", ' '}};
    for (size_t k = 0; k < COUNT_OF(entities); k++) {
        *n_used = strlen(entities[k].text);
        if (n - i >= *n_used && memcmp(s + i, entities[k].text, *n_used) == 0) return entities[k].c;
    }
    return 0;
}

/* Without tags and comments, white space runs made one blank, entities made characters. */
static ats_status f_striptags(struct render *r, struct value in, const struct args *args,
                              struct value *out) {
    TRY(no_args(args));
    TRY(text_of(r, in, &in));
    TRY(charge(r, in.n));
    struct buf *b = scratch_begin(r);
    bool blank = false, open = true; /* open: a '>' may still follow */
    for (size_t i = 0; i < in.n;) {
        size_t start = i, skip = 0;
        if (in.s[i] == '<' && open) {
            skip = tag_length(in.s, in.n, i);
            open = skip > 0;
        }
        i += skip;
        if (skip > 0) continue;
        char c = entity_at(in.s, in.n, start, &skip);
        if (!c && text_is_space(text_next(in.s, in.n, &i))) {
            blank = b->len > 0;
            continue;
        }
        if (blank) TRY(put_char(r, b, ' '));
        blank = false;
        if (c) i = start + skip;
        TRY(c ? put_char(r, b, c) : put(r, b, in.s + start, i - start));
    }
    return scratch_end(r, b, out);
}

static ats_status put_quoted(struct render *r, struct buf *b, struct value v, bool query) {
    char text[8];
    TRY(to_string(r, v, &v));
    for (size_t i = 0; i < v.n; i++) {
        unsigned char c = (unsigned char)v.s[i];
        bool plain = (c >= '0' && c <= '9') || ((c | 0x20) >= 'a' && (c | 0x20) <= 'z') ||
                     (c && strchr("_.-~", c)) || (c == '/' && !query);
        if (plain || (query && c == ' ')) {
            TRY(put_char(r, b, plain ? (char)c : '+'));
        } else {
            snprintf(text, sizeof text, "%%%02X", c);
            TRY(put(r, b, text, 3));
        }
    }
    return ATS_OK;
}

static ats_status f_urlencode(struct render *r, struct value in, const struct args *args,
                              struct value *out) {
    TRY(no_args(args));
    bool pairs = in.kind == V_DICT || in.kind == V_LIST || in.kind == V_TUPLE ||
                 in.kind == V_VIEW || in.kind == V_RANGE || in.kind == V_ITER;
    if (in.kind == V_DICT) in = (struct value){.kind = V_VIEW, .tag = VIEW_ITEMS, .dict = in.dict};
    struct list *items, *pair;
    if (pairs) TRY(to_list(r, in, &items));
    struct buf *b = scratch_begin(r);
    if (!pairs) TRY(put_quoted(r, b, in, false));
    for (size_t i = 0; pairs && i < items->n; i++) {
        TRY(to_list(r, items->items[i], &pair));
        if (pair->n != 2) return fail(ATS_BAD_INPUT, "needs pairs");
        if (i > 0) TRY(put_char(r, b, '&'));
        TRY(put_quoted(r, b, pair->items[0], true));
        TRY(put_char(r, b, '='));
        TRY(put_quoted(r, b, pair->items[1], true));
    }
    return scratch_end(r, b, out);
}

/* The attribute, never the item, of this name. */
static ats_status f_attr(struct render *r, struct value in, const struct args *args,
                         struct value *out) {
    struct value slot, name = value_string("", 0);
    TRY(take_args(args, "name", 1, &slot));
    TRY(arg_string(slot, "name", &name));
    if (in.kind != V_DICT) return get_attribute(r, in, name.s, name.n, out);
    if (container_method_exists(in, name.s, name.n))
        return get_attribute(r, in, name.s, name.n, out);
    *out = value_undefined_text("a dict has no such attribute");
    return ATS_OK;
}

/* JSON text to a value; no filter of HF's, but some templates look into arguments with it. */
static ats_status f_from_json(struct render *r, struct value in, const struct args *args,
                              struct value *out) {
    TRY(no_args(args));
    if (!is_string(in)) return fail(ATS_BAD_INPUT, "needs a string, not '%s'", type_name(in));
    if (in.n > TEMPLATE_MAX_SOURCE_BYTES || !template_json_fits(in.s, in.n))
        return fail(ATS_BAD_INPUT, "limit reached: the JSON text is too long or deep");
    json_t *json;
    TRY(charge(r, in.n));
    TRY(json_parse(in.s, in.n, &json));
    ats_status status = value_from_json(r, json, true, out);
    json_decref(json);
    return status;
}

static const struct filter filters[] = {
    {"tojson", filter_tojson},
    {"trim", f_trim},
    {"length", f_length},
    {"count", f_length},
    {"string", f_string},
    {"default", f_default},
    {"d", f_default},
    {"replace", f_replace},
    {"upper", f_upper},
    {"lower", f_lower},
    {"capitalize", f_capitalize},
    {"title", f_title},
    {"indent", f_indent},
    {"safe", f_safe},
    {"escape", f_escape},
    {"e", f_escape},
    {"forceescape", f_forceescape},
    {"int", f_int},
    {"float", f_float},
    {"abs", f_abs},
    {"round", f_round},
    {"format", f_format},
    {"center", f_center},
    {"truncate", f_truncate},
    {"wordcount", f_wordcount},
    {"striptags", f_striptags},
    {"urlencode", f_urlencode},
    {"attr", f_attr},
    {"from_json", f_from_json},
};

const struct filter *filter_find(const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(filters); i++)
        if (strlen(filters[i].name) == n && memcmp(filters[i].name, name, n) == 0)
            return &filters[i];
    return sequence_filter_find(name, n);
}
