#include "text/template_impl.h"

#include <langinfo.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/utf8.h"

/* "%s" % x and "{}".format(x): both come down to one description of a field. */

enum { MAX_WIDTH = 1 << 20, MAX_PRECISION = 100, MAX_NUMBER_TEXT = 512 };

struct spec {
    uint32_t fill;
    char align; /* '<', '>', '^', '=' (after the sign), 0: the default of the type */
    char sign;  /* '+', ' ' or 0 */
    char group; /* ',' or '_' between groups of three digits, or 0 */
    bool alternate;
    int width, precision; /* precision -1: none */
    char type;            /* 0: none */
};

/* ---- writing a field ---- */

static ats_status put_fill(struct render *r, struct buf *b, uint32_t fill, int64_t n) {
    char bytes[4];
    size_t len = (size_t)utf8_encode(fill, bytes);
    for (; n > 0; n--)
        TRY(put(r, b, bytes, len));
    return ATS_OK;
}

/* prefix (a sign, "0x") and body, padded to the width. */
static ats_status put_padded(struct render *r, struct buf *b, const struct spec *spec, char align,
                             const char *prefix, const char *body, size_t n) {
    size_t n_prefix = strlen(prefix);
    int64_t pad = spec->width - (int64_t)(text_length(body, n) + n_prefix);
    if (pad < 0) pad = 0;
    int64_t left = align == '>' ? pad : align == '^' ? pad / 2 : 0;
    TRY(put_fill(r, b, spec->fill, left));
    TRY(put(r, b, prefix, n_prefix));
    if (align == '=') TRY(put_fill(r, b, spec->fill, pad));
    TRY(put(r, b, body, n));
    return put_fill(r, b, spec->fill, align == '=' ? 0 : pad - left);
}

static ats_status put_string_field(struct render *r, struct buf *b, const struct spec *spec,
                                   struct value v) {
    size_t n = v.n;
    if (spec->precision >= 0) n = text_offset(v.s, v.n, (size_t)spec->precision);
    return put_padded(r, b, spec, spec->align ? spec->align : '<', "", v.s, n);
}

/* Inserts spec->group into the digits before the point; text has room. */
static void group_digits(const struct spec *spec, char *text) {
    size_t n = strspn(text, "0123456789"), n_marks = n > 0 ? (n - 1) / 3 : 0, len = strlen(text);
    if (!spec->group || len + n_marks >= MAX_NUMBER_TEXT) return;
    memmove(text + n + n_marks, text + n, len - n + 1);
    for (size_t from = n, to = n + n_marks, k = 0; from > 0; k++) {
        if (k > 0 && k % 3 == 0) text[--to] = spec->group;
        text[--to] = text[--from];
    }
}

static ats_status put_number(struct render *r, struct buf *b, const struct spec *spec,
                             bool negative, const char *base, char *digits) {
    char prefix[8];
    char sign = negative ? '-' : spec->sign;
    snprintf(prefix, sizeof prefix, "%.1s%s", sign ? (char[2]){sign, 0} : "", base);
    group_digits(spec, digits);
    return put_padded(r, b, spec, spec->align ? spec->align : '>', prefix, digits, strlen(digits));
}

static ats_status put_int_field(struct render *r, struct buf *b, const struct spec *spec,
                                int64_t i) {
    char digits[MAX_NUMBER_TEXT];
    uint64_t magnitude = i < 0 ? 0 - (uint64_t)i : (uint64_t)i;
    const char *base = "";
    if (spec->type == 'x' || spec->type == 'X') {
        snprintf(digits, sizeof digits, spec->type == 'x' ? "%llx" : "%llX",
                 (unsigned long long)magnitude);
        base = spec->type == 'x' ? "0x" : "0X";
    } else if (spec->type == 'o') {
        snprintf(digits, sizeof digits, "%llo", (unsigned long long)magnitude);
        base = "0o";
    } else if (spec->type == 'b') {
        int n = 0;
        for (int bit = 63; bit >= 0; bit--)
            if (magnitude >> bit & 1 || n > 0 || bit == 0)
                digits[n++] = '0' + (magnitude >> bit & 1);
        digits[n] = 0;
        base = "0b";
    } else {
        int precision = min_int(max_int(spec->precision, 1), MAX_PRECISION); /* %.3d */
        snprintf(digits, sizeof digits, "%0*llu", precision, (unsigned long long)magnitude);
    }
    return put_number(r, b, spec, i < 0, spec->alternate ? base : "", digits);
}

/* The number without its sign, with a point whatever the locale. */
static void float_text(const struct spec *spec, char type, double f, char out[MAX_NUMBER_TEXT]) {
    char format[8];
    snprintf(format, sizeof format, "%%%s.*%c", spec->alternate ? "#" : "", type);
/* type is one of eEfFgG, checked by the caller */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    snprintf(out, MAX_NUMBER_TEXT, format, spec->precision < 0 ? 6 : spec->precision, fabs(f));
#pragma GCC diagnostic pop
    const char *radix = nl_langinfo(RADIXCHAR);
    char *at = strcmp(radix, ".") == 0 ? NULL : strstr(out, radix);
    if (!at || !*radix) return;
    *at = '.';
    memmove(at + 1, at + strlen(radix), strlen(at + strlen(radix)) + 1);
}

static ats_status put_float_field(struct render *r, struct buf *b, const struct spec *spec,
                                  double f) {
    char digits[MAX_NUMBER_TEXT];
    TRY(charge_float(r));
    if (spec->type == 0 && spec->precision < 0) {
        char shortest[32];
        format_float(fabs(f), shortest);
        strcpy(digits, shortest);
    } else if (spec->type == '%') {
        float_text(spec, 'f', f * 100, digits);
        if (strlen(digits) < sizeof digits - 1) strcat(digits, "%");
    } else {
        float_text(spec, spec->type ? spec->type : 'g', f, digits);
    }
    return put_number(r, b, spec, signbit(f) != 0 && !isnan(f), "", digits);
}

static bool is_float_type(char type) {
    return type && strchr("eEfFgG%", type);
}

static ats_status to_integer(struct value v, char type, int64_t *out) {
    if (v.kind == V_FLOAT && isfinite(v.f) && fabs(v.f) < 9.2e18) {
        *out = (int64_t)v.f;
        return ATS_OK;
    }
    if (v.kind == V_UNDEFINED) return fail_undefined(v);
    if (!is_integral(v))
        return fail(ATS_BAD_INPUT, "format %%%c needs a number, not '%s'", type, type_name(v));
    *out = integral(v);
    return ATS_OK;
}

/* ---- "..." % args ---- */

struct percent {
    struct value args;
    size_t n_used;
    bool single; /* args is the one argument itself */
};

static ats_status next_argument(struct percent *p, struct value *out) {
    size_t n = p->single ? 1 : p->args.list->n;
    if (p->n_used >= n) return fail(ATS_BAD_INPUT, "not enough arguments for the format");
    *out = p->single ? p->args : p->args.list->items[p->n_used];
    p->n_used++;
    return ATS_OK;
}

/* Digits or '*' at s[*i]; *out stays if there is neither. */
static ats_status percent_number(struct percent *p, const char *s, size_t n, size_t *i, int max,
                                 int *out) {
    if (*i < n && s[*i] == '*') {
        struct value v;
        int64_t k = 0;
        ++*i;
        TRY(next_argument(p, &v));
        TRY(arg_int(v, "the width", &k));
        if (k < 0 || k > max) return fail(ATS_BAD_INPUT, "width or precision out of range");
        *out = (int)k;
        return ATS_OK;
    }
    for (bool first = true; *i < n && s[*i] >= '0' && s[*i] <= '9'; ++*i, first = false) {
        *out = (first ? 0 : *out * 10) + (s[*i] - '0');
        if (*out > max) return fail(ATS_BAD_INPUT, "width or precision out of range");
    }
    return ATS_OK;
}

/* "(key)" at s[*i]. */
static ats_status percent_key(struct render *r, struct percent *p, const char *s, size_t n,
                              size_t *i, struct value *out) {
    size_t start = ++*i;
    while (*i < n && s[*i] != ')')
        ++*i;
    if (*i >= n) return fail(ATS_BAD_INPUT, "the format has '%%(' without ')'");
    if (p->args.kind != V_DICT) return fail(ATS_BAD_INPUT, "the format needs a dict");
    struct value *found;
    TRY(dict_find(r, p->args.dict, value_string(s + start, *i - start), &found));
    if (!found)
        return fail(ATS_BAD_INPUT, "no key '%.*s' for the format", (int)min_size(*i - start, 60),
                    s + start);
    *out = *found;
    ++*i;
    p->n_used = 1;
    return ATS_OK;
}

static void percent_flags(struct spec *spec, const char *s, size_t n, size_t *i) {
    for (; *i < n && s[*i] && strchr("-+ #0", s[*i]); ++*i) {
        if (s[*i] == '-') spec->align = '<';
        if (s[*i] == '+') spec->sign = '+';
        if (s[*i] == ' ' && !spec->sign) spec->sign = ' ';
        if (s[*i] == '#') spec->alternate = true;
        if (s[*i] == '0') spec->fill = '0';
    }
}

static ats_status put_char_field(struct render *r, struct buf *b, struct spec *spec,
                                 struct value v) {
    char bytes[4];
    if (is_integral(v)) {
        int64_t cp = integral(v);
        if (cp < 0 || cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF))
            return fail(ATS_BAD_INPUT, "%%c needs a character");
        v = value_string(bytes, (size_t)utf8_encode((uint32_t)cp, bytes));
    }
    if (!is_string(v) || text_length(v.s, v.n) != 1)
        return fail(ATS_BAD_INPUT, "%%c needs a character");
    return put_string_field(r, b, spec, v);
}

static ats_status put_percent_field(struct render *r, struct buf *b, struct spec *spec,
                                    struct value v, bool markup) {
    int64_t i = 0;
    bool text = spec->type == 's' || spec->type == 'r' || spec->type == 'a' || spec->type == 'c';
    if (text) spec->fill = ' ';
    if (!spec->align) spec->align = spec->fill == '0' ? '=' : '>';
    if (spec->align == '<') spec->fill = ' ';
    if (spec->type == 'c') return put_char_field(r, b, spec, v);
    if (text) {
        if (spec->type == 's') {
            TRY(to_string(r, v, &v));
        } else {
            struct buf *repr = scratch_begin(r);
            TRY(put_repr(r, repr, v));
            TRY(scratch_end(r, repr, &v));
        }
        if (markup) TRY(text_escape(r, v, &v));
        return put_string_field(r, b, spec, v);
    }
    if (is_float_type(spec->type)) {
        if (v.kind == V_UNDEFINED) return fail_undefined(v);
        if (!is_number(v))
            return fail(ATS_BAD_INPUT, "format %%%c needs a number, not '%s'", spec->type,
                        type_name(v));
        return put_float_field(r, b, spec, number(v));
    }
    if (v.kind == V_FLOAT && spec->type != 'd')
        return fail(ATS_BAD_INPUT, "format %%%c needs an integer", spec->type);
    TRY(to_integer(v, spec->type, &i));
    return put_int_field(r, b, spec, i);
}

/* One field after its '%', which is at s[*i - 1]. */
static ats_status percent_field(struct render *r, struct buf *b, struct percent *p,
                                struct value format, size_t *i) {
    const char *s = format.s;
    size_t n = format.n;
    struct spec spec = {.fill = ' ', .precision = -1};
    struct value v = value_of(V_ABSENT);
    if (*i < n && s[*i] == '(') TRY(percent_key(r, p, s, n, i, &v));
    percent_flags(&spec, s, n, i);
    TRY(percent_number(p, s, n, i, MAX_WIDTH, &spec.width));
    if (*i < n && s[*i] == '.') {
        ++*i;
        spec.precision = 0;
        TRY(percent_number(p, s, n, i, MAX_PRECISION, &spec.precision));
    }
    while (*i < n && (s[*i] == 'l' || s[*i] == 'h' || s[*i] == 'L'))
        ++*i;
    if (*i >= n) return fail(ATS_BAD_INPUT, "the format ends inside a field");
    spec.type = s[(*i)++];
    if (spec.type == '%') return put_char(r, b, '%');
    if (!spec.type || !strchr("diuoxXeEfFgGcrsa", spec.type))
        return fail(ATS_BAD_INPUT, "unsupported format character '%c'", spec.type);
    if (spec.type == 'i' || spec.type == 'u') spec.type = 'd';
    if (is_absent(v)) TRY(next_argument(p, &v));
    return put_percent_field(r, b, &spec, v, format.tag != 0);
}

ats_status format_percent(struct render *r, struct value format, struct value args,
                          struct value *out) {
    struct percent p = {.args = args, .single = args.kind != V_TUPLE};
    TRY(charge(r, format.n));
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < format.n;) {
        const char *found = memchr(format.s + i, '%', format.n - i);
        size_t at = found ? (size_t)(found - format.s) : format.n;
        TRY(put(r, b, format.s + i, at - i));
        if (!found) break;
        i = at + 1;
        TRY(charge(r, 0));
        TRY(percent_field(r, b, &p, format, &i));
    }
    /* what has items by key may stay unused, as in Python */
    bool mapping = args.kind == V_DICT || args.kind == V_LIST || args.kind == V_RANGE ||
                   args.kind == V_UNDEFINED;
    if (!mapping && p.n_used < (p.single ? 1 : args.list->n))
        return fail(ATS_BAD_INPUT, "not all arguments of the format were used");
    TRY(scratch_end(r, b, out));
    out->tag = format.tag;
    return ATS_OK;
}

/* ---- "...".format(args) ---- */

static int spec_digits(const char *s, size_t n, size_t *i, int fallback) {
    int v = 0;
    size_t start = *i;
    for (; *i < n && s[*i] >= '0' && s[*i] <= '9'; ++*i)
        v = v > MAX_WIDTH ? v : v * 10 + (s[*i] - '0');
    return *i > start ? v : fallback;
}

static bool is_align(char c) {
    return c == '<' || c == '>' || c == '^' || c == '=';
}

/* [[fill]align][sign][#][0][width][,][.precision][type] */
static ats_status parse_spec(const char *s, size_t n, struct spec *spec) {
    size_t i = 0, after_fill = 0;
    *spec = (struct spec){.fill = ' ', .precision = -1};
    uint32_t fill = n > 0 ? text_next(s, n, &after_fill) : 0;
    if (after_fill > 0 && after_fill < n && is_align(s[after_fill])) {
        spec->fill = fill;
        spec->align = s[after_fill];
        i = after_fill + 1;
    } else if (n > 0 && is_align(s[0])) {
        spec->align = s[i++];
    }
    if (i < n && (s[i] == '+' || s[i] == '-' || s[i] == ' ')) {
        if (s[i] != '-') spec->sign = s[i];
        i++;
    }
    if (i < n && s[i] == '#') spec->alternate = true, i++;
    if (i < n && s[i] == '0') {
        if (!spec->align) spec->fill = '0', spec->align = '=';
        i++;
    }
    spec->width = spec_digits(s, n, &i, 0);
    if (i < n && (s[i] == ',' || s[i] == '_')) spec->group = s[i++];
    if (i < n && s[i] == '.') {
        i++;
        spec->precision = spec_digits(s, n, &i, -2);
    }
    if (i < n) spec->type = s[i++];
    if (i < n || spec->precision == -2 || (spec->type && !strchr("bcdeEfFgGosxX%", spec->type)))
        return fail(ATS_BAD_INPUT, "invalid format '%.*s'", (int)min_size(n, 60), s);
    if (spec->width > MAX_WIDTH || spec->precision > MAX_PRECISION)
        return fail(ATS_BAD_INPUT, "width or precision out of range");
    return ATS_OK;
}

static ats_status put_brace_field(struct render *r, struct buf *b, struct value v, const char *s,
                                  size_t n) {
    struct spec spec;
    if (n == 0) return put_str(r, b, v);
    TRY(parse_spec(s, n, &spec));
    if (is_string(v) && (spec.type == 0 || spec.type == 's')) {
        if (spec.align == '=' && spec.fill != '0')
            return fail(ATS_BAD_INPUT, "'=' is no alignment for a string");
        if (spec.align == '=') spec.align = '<';
        return put_string_field(r, b, &spec, v);
    }
    if (is_number(v) && (is_float_type(spec.type) || v.kind == V_FLOAT)) {
        if (spec.type && !is_float_type(spec.type))
            return fail(ATS_BAD_INPUT, "format '%c' is not for a float", spec.type);
        return put_float_field(r, b, &spec, number(v));
    }
    if (!is_integral(v) || spec.type == 's')
        return fail(ATS_BAD_INPUT, "format '%.*s' is not for '%s'", (int)min_size(n, 60), s,
                    type_name(v));
    if (spec.type == 'c') return put_char_field(r, b, &spec, v);
    return put_int_field(r, b, &spec, integral(v));
}

/* The argument that a field name starts with: "", "0", "name". */
static ats_status brace_root(struct render *r, const struct args *args, const char *s, size_t n,
                             int64_t *next, struct value *out) {
    int64_t at = 0;
    if (n == 0) {
        if (*next < 0) return fail(ATS_BAD_INPUT, "numbered and automatic fields are mixed");
        at = (*next)++;
    } else if (parse_integer(s, n, 10, &at)) {
        if (*next > 0) return fail(ATS_BAD_INPUT, "numbered and automatic fields are mixed");
        *next = -1;
    } else {
        TRY(charge(r, (size_t)args->n_keywords));
        for (int i = 0; i < args->n_keywords; i++) {
            const struct named_value *k = &args->keywords[i];
            if (k->n != n || memcmp(k->name, s, n) != 0) continue;
            *out = k->v;
            return ATS_OK;
        }
        return fail(ATS_BAD_INPUT, "no argument '%.*s'", (int)min_size(n, 60), s);
    }
    if (at < 0 || at >= args->n) return fail(ATS_BAD_INPUT, "not enough arguments");
    *out = args->items[at];
    return ATS_OK;
}

/* Root, then .name and [key] parts. */
static ats_status brace_value(struct render *r, const struct args *args, const char *s, size_t n,
                              int64_t *next, struct value *out) {
    size_t i = 0;
    while (i < n && s[i] != '.' && s[i] != '[')
        i++;
    TRY(brace_root(r, args, s, i, next, out));
    while (i < n) {
        bool bracket = s[i] == '[';
        size_t start = ++i;
        while (i < n && (bracket ? s[i] != ']' : s[i] != '.' && s[i] != '['))
            i++;
        if (bracket && i >= n) return fail(ATS_BAD_INPUT, "'[' without ']' in a field");
        size_t len = i - start;
        int64_t index;
        TRY(charge(r, 0));
        if (!bracket)
            TRY(get_attribute(r, *out, s + start, len, out));
        else if (parse_integer(s + start, len, 10, &index))
            TRY(get_item(r, *out, value_int(index), out));
        else
            TRY(get_item(r, *out, value_string(s + start, len), out));
        if (out->kind == V_UNDEFINED) return fail_undefined(*out);
        i += bracket;
    }
    return ATS_OK;
}

/* The field s[0..n) between its braces. */
static ats_status brace_field(struct render *r, struct buf *b, const struct args *args,
                              const char *s, size_t n, int64_t *next) {
    const char *colon = memchr(s, ':', n);
    size_t n_name = colon ? (size_t)(colon - s) : n, n_spec = colon ? n - n_name - 1 : 0;
    char conversion = 0;
    if (n_name >= 2 && s[n_name - 2] == '!') {
        conversion = s[n_name - 1];
        n_name -= 2;
    }
    struct value v;
    TRY(brace_value(r, args, s, n_name, next, &v));
    if (conversion == 's') {
        TRY(to_string(r, v, &v));
    } else if (conversion == 'r') {
        struct buf *repr = scratch_begin(r);
        TRY(put_repr(r, repr, v));
        TRY(scratch_end(r, repr, &v));
    } else if (conversion) {
        return fail(ATS_BAD_INPUT, "unknown conversion '!%c'", conversion);
    }
    return put_brace_field(r, b, v, colon ? colon + 1 : "", n_spec);
}

/* The same, escaped if the format is Markup. */
static ats_status brace_text(struct render *r, struct buf *b, const struct args *args,
                             const char *s, size_t n, int64_t *next, bool markup) {
    struct value v;
    if (!markup) return brace_field(r, b, args, s, n, next);
    struct buf *field = scratch_begin(r);
    TRY(brace_field(r, field, args, s, n, next));
    TRY(scratch_end(r, field, &v));
    TRY(text_escape(r, v, &v));
    return put(r, b, v.s, v.n);
}

ats_status format_braces(struct render *r, struct value format, const struct args *args,
                         struct value *out) {
    const char *s = format.s;
    size_t n = format.n;
    int64_t next = 0; /* automatic number; -1: numbered by hand */
    TRY(charge(r, n));
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < n;) {
        char c = s[i];
        if (c != '{' && c != '}') {
            TRY(put_char(r, b, c));
            i++;
            continue;
        }
        if (i + 1 < n && s[i + 1] == c) {
            TRY(put_char(r, b, c));
            i += 2;
            continue;
        }
        if (c == '}') return fail(ATS_BAD_INPUT, "single '}' in the format");
        size_t start = i + 1, end = start;
        while (end < n && s[end] != '}' && s[end] != '{')
            end++;
        if (end >= n) return fail(ATS_BAD_INPUT, "'{' without '}' in the format");
        if (s[end] == '{') return fail(ATS_BAD_INPUT, "fields inside fields are not supported");
        TRY(brace_text(r, b, args, s + start, end - start, &next, format.tag != 0));
        i = end + 1;
    }
    TRY(scratch_end(r, b, out));
    out->tag = format.tag;
    return ATS_OK;
}
