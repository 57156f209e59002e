#include "text/template_impl.h"

#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"

/* Methods of str. */

typedef ats_status method_fn(struct render *r, struct value s, const struct args *args,
                             struct value *out);

static ats_status no_args(const struct args *args) {
    if (args->n == 0 && args->n_keywords == 0) return ATS_OK;
    return fail(ATS_BAD_INPUT, "takes no arguments");
}

static ats_status m_upper(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    TRY(no_args(args));
    return text_upper(r, s, out);
}
static ats_status m_lower(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    TRY(no_args(args));
    return text_lower(r, s, out);
}
static ats_status m_capitalize(struct render *r, struct value s, const struct args *args,
                               struct value *out) {
    TRY(no_args(args));
    return text_capitalize(r, s, out);
}

static bool is_letter(uint32_t cp) {
    switch (utf8proc_category((utf8proc_int32_t)cp)) {
    case UTF8PROC_CATEGORY_LU:
    case UTF8PROC_CATEGORY_LL:
    case UTF8PROC_CATEGORY_LT:
    case UTF8PROC_CATEGORY_LM:
    case UTF8PROC_CATEGORY_LO:
        return true;
    default:
        return false;
    }
}
static bool is_cased(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_LU || c == UTF8PROC_CATEGORY_LL || c == UTF8PROC_CATEGORY_LT;
}

static ats_status add_cp(struct render *r, struct buf *b, utf8proc_int32_t cp) {
    char bytes[4];
    return put(r, b, bytes, (size_t)utf8_encode((uint32_t)cp, bytes));
}

static ats_status m_title(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    TRY(no_args(args));
    struct buf *b = scratch_begin(r);
    bool inside = false;
    for (size_t i = 0; i < s.n;) {
        uint32_t cp = text_next(s.s, s.n, &i);
        TRY(inside ? add_cp(r, b, utf8proc_tolower((utf8proc_int32_t)cp))
                   : text_put_upper(r, b, cp, true));
        inside = is_cased(cp);
    }
    TRY(scratch_end(r, b, out));
    out->tag = s.tag;
    return ATS_OK;
}

static ats_status m_swapcase(struct render *r, struct value s, const struct args *args,
                             struct value *out) {
    TRY(no_args(args));
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < s.n;) {
        utf8proc_int32_t cp = (utf8proc_int32_t)text_next(s.s, s.n, &i);
        bool upper = utf8proc_category(cp) == UTF8PROC_CATEGORY_LU;
        TRY(add_cp(r, b, upper ? utf8proc_tolower(cp) : utf8proc_toupper(cp)));
    }
    TRY(scratch_end(r, b, out));
    out->tag = s.tag;
    return ATS_OK;
}

static ats_status strip(struct render *r, struct value s, const struct args *args, int sides,
                        struct value *out) {
    struct value chars;
    TRY(take_args(args, "", 1, &chars));
    return text_strip(r, s, chars, sides, out);
}
static ats_status m_strip(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    return strip(r, s, args, 3, out);
}
static ats_status m_lstrip(struct render *r, struct value s, const struct args *args,
                           struct value *out) {
    return strip(r, s, args, 1, out);
}
static ats_status m_rstrip(struct render *r, struct value s, const struct args *args,
                           struct value *out) {
    return strip(r, s, args, 2, out);
}

/* ---- splitting ---- */

/* Part s[from..to), with the kind of s. */
static struct value part(struct value s, size_t from, size_t to) {
    struct value v = value_string(s.s + from, to - from);
    v.tag = s.tag;
    return v;
}

static ats_status split_space(struct render *r, struct value s, int64_t max, struct list *list) {
    size_t i = 0;
    for (;;) {
        size_t next = i, start;
        while (i < s.n && text_is_space(text_next(s.s, s.n, &next)))
            i = next;
        if (i >= s.n) return ATS_OK;
        if (max-- == 0) return list_add(r, list, part(s, i, s.n)); /* the rest, as it is */
        start = next = i;
        while (i < s.n && !text_is_space(text_next(s.s, s.n, &next)))
            i = next;
        TRY(list_add(r, list, part(s, start, i)));
    }
}

/* The same from the right; the parts come out last first. */
static ats_status rsplit_space(struct render *r, struct value s, int64_t max, struct list *list) {
    struct list *all;
    TRY(list_new(r, 0, &all));
    TRY(split_space(r, s, -1, all));
    size_t n_single = max < 0 || (size_t)max > all->n ? all->n : (size_t)max;
    for (size_t i = 0; i < n_single; i++)
        TRY(list_add(r, list, all->items[all->n - 1 - i]));
    if (n_single == all->n) return ATS_OK;
    struct value last = all->items[all->n - 1 - n_single];
    return list_add(r, list, part(s, 0, (size_t)(last.s - s.s) + last.n));
}

/* Last place of what in s[0..n), NULL if there is none. Charged by the work done. */
static ats_status find_last(struct render *r, const char *s, size_t n, struct value what,
                            const char **out) {
    *out = NULL;
    if (what.n > n) return ATS_OK;
    for (size_t i = n - what.n + 1; i-- > 0;) {
        if (what.n > 0 && s[i] != what.s[0]) continue;
        TRY(charge_copy(r, what.n));
        if (memcmp(s + i, what.s, what.n) != 0) continue;
        *out = s + i;
        break;
    }
    return ATS_OK;
}

static ats_status split_by(struct render *r, struct value s, struct value sep, int64_t max,
                           struct list *list) {
    size_t i = 0;
    for (; max != 0; max--) {
        const char *found;
        TRY(text_find(r, s, i, sep, &found));
        if (!found) break;
        size_t at = (size_t)(found - s.s);
        TRY(list_add(r, list, part(s, i, at)));
        i = at + sep.n;
    }
    return list_add(r, list, part(s, i, s.n));
}

static ats_status rsplit_by(struct render *r, struct value s, struct value sep, int64_t max,
                            struct list *list) {
    size_t end = s.n;
    for (; max != 0; max--) {
        TRY(charge(r, 0));
        const char *found;
        TRY(find_last(r, s.s, end, sep, &found));
        if (!found) break;
        size_t at = (size_t)(found - s.s);
        TRY(list_add(r, list, part(s, at + sep.n, end)));
        end = at;
    }
    return list_add(r, list, part(s, 0, end));
}

static void reverse_list(struct list *list) {
    for (size_t i = 0; i < list->n / 2; i++) {
        struct value v = list->items[i];
        list->items[i] = list->items[list->n - 1 - i];
        list->items[list->n - 1 - i] = v;
    }
}

static ats_status split(struct render *r, struct value s, const struct args *args, bool right,
                        struct value *out) {
    struct value slots[2], sep = value_none();
    int64_t max = -1;
    struct list *list;
    TRY(take_args(args, "sep maxsplit", 2, slots));
    TRY(arg_string(slots[0], "separator", &sep));
    TRY(arg_int(slots[1], "maxsplit", &max));
    if (is_string(sep) && sep.n == 0) return fail(ATS_BAD_INPUT, "empty separator");
    TRY(list_new(r, 0, &list));
    TRY(charge(r, s.n));
    if (is_string(sep))
        TRY(right ? rsplit_by(r, s, sep, max, list) : split_by(r, s, sep, max, list));
    else
        TRY(right ? rsplit_space(r, s, max, list) : split_space(r, s, max, list));
    if (right) reverse_list(list);
    *out = value_list(list);
    return ATS_OK;
}
static ats_status m_split(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    return split(r, s, args, false, out);
}
static ats_status m_rsplit(struct render *r, struct value s, const struct args *args,
                           struct value *out) {
    return split(r, s, args, true, out);
}

static ats_status m_splitlines(struct render *r, struct value s, const struct args *args,
                               struct value *out) {
    struct value keep;
    struct list *list;
    bool keep_ends = false;
    TRY(take_args(args, "keepends", 1, &keep));
    arg_bool(keep, &keep_ends);
    TRY(text_split_lines(r, s, keep_ends, &list));
    *out = value_list(list);
    return ATS_OK;
}

/* The one string argument of a method. */
static ats_status one_string(const struct args *args, struct value *out) {
    TRY(take_args(args, "", 1, out));
    if (is_absent(*out)) return fail(ATS_BAD_INPUT, "needs an argument");
    if (out->kind == V_NONE) return fail(ATS_BAD_INPUT, "needs a string, not 'NoneType'");
    return arg_string(*out, "the argument", out);
}

static ats_status partition(struct render *r, struct value s, const struct args *args, bool right,
                            struct value *out) {
    struct value sep;
    struct list *list;
    TRY(one_string(args, &sep));
    if (sep.n == 0) return fail(ATS_BAD_INPUT, "empty separator");
    TRY(charge_scan(r, s.n));
    const char *found = NULL;
    if (right)
        TRY(find_last(r, s.s, s.n, sep, &found));
    else
        TRY(text_find(r, s, 0, sep, &found));
    size_t at = found ? (size_t)(found - s.s) : right ? 0 : s.n;
    sep.tag = s.tag;
    TRY(list_new(r, 3, &list));
    TRY(list_add(r, list, part(s, 0, at)));
    TRY(list_add(r, list, found ? sep : value_string("", 0)));
    TRY(list_add(r, list, part(s, found ? at + sep.n : at, s.n)));
    *out = value_tuple(list);
    return ATS_OK;
}
static ats_status m_partition(struct render *r, struct value s, const struct args *args,
                              struct value *out) {
    return partition(r, s, args, false, out);
}
static ats_status m_rpartition(struct render *r, struct value s, const struct args *args,
                               struct value *out) {
    return partition(r, s, args, true, out);
}

/* ---- searching ---- */

/* The part s[start:end] that the slots 1 and 2 ask for; *at is its first code point. */
static ats_status sub_range(struct render *r, struct value *s, const struct value *slots,
                            int64_t *at, bool *empty) {
    *at = 0;
    *empty = false;
    if (is_absent(slots[1]) && is_absent(slots[2])) return ATS_OK;
    TRY(charge_scan(r, s->n));
    int64_t n = (int64_t)text_length(s->s, s->n), start = 0, end = n;
    TRY(arg_int(slots[1], "start", &start));
    TRY(arg_int(slots[2], "end", &end));
    if (start < 0) start = max_i64(start + n, 0);
    if (end < 0) end = max_i64(end + n, 0);
    end = min_i64(end, n);
    *empty = start > end;
    *at = start;
    if (*empty) return ATS_OK;
    size_t from = text_offset(s->s, s->n, (size_t)start);
    size_t to = text_offset(s->s, s->n, (size_t)end);
    *s = part(*s, from, to);
    return ATS_OK;
}

static ats_status find(struct render *r, struct value s, const struct args *args, bool right,
                       bool must, struct value *out) {
    struct value slots[3], what = value_none();
    int64_t start;
    bool empty;
    TRY(take_args(args, "", 3, slots));
    TRY(arg_string(slots[0], "the argument", &what));
    if (!is_string(what)) return fail(ATS_BAD_INPUT, "needs a string to look for");
    TRY(sub_range(r, &s, slots, &start, &empty));
    TRY(charge_scan(r, s.n));
    const char *found = NULL;
    if (!empty && right)
        TRY(find_last(r, s.s, s.n, what, &found));
    else if (!empty)
        TRY(text_find(r, s, 0, what, &found));
    if (!found && must) return fail(ATS_BAD_INPUT, "substring not found");
    *out = value_int(found ? start + (int64_t)text_length(s.s, (size_t)(found - s.s)) : -1);
    return ATS_OK;
}
static ats_status m_find(struct render *r, struct value s, const struct args *args,
                         struct value *out) {
    return find(r, s, args, false, false, out);
}
static ats_status m_rfind(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    return find(r, s, args, true, false, out);
}
static ats_status m_index(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    return find(r, s, args, false, true, out);
}
static ats_status m_rindex(struct render *r, struct value s, const struct args *args,
                           struct value *out) {
    return find(r, s, args, true, true, out);
}

static ats_status m_count(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    struct value slots[3], what = value_none();
    int64_t start, count = 0;
    bool empty;
    TRY(take_args(args, "", 3, slots));
    TRY(arg_string(slots[0], "the argument", &what));
    if (!is_string(what)) return fail(ATS_BAD_INPUT, "needs a string to look for");
    TRY(sub_range(r, &s, slots, &start, &empty));
    TRY(charge_scan(r, s.n));
    if (!empty && what.n == 0) count = (int64_t)text_length(s.s, s.n) + 1;
    for (size_t i = 0; !empty && what.n > 0; count++) {
        const char *found;
        TRY(text_find(r, s, i, what, &found));
        if (!found) break;
        i = (size_t)(found - s.s) + what.n;
    }
    *out = value_int(count);
    return ATS_OK;
}

static ats_status has_affix(struct render *r, struct value s, struct value affix, bool end,
                            bool *out) {
    *out = affix.n <= s.n && memcmp(end ? s.s + s.n - affix.n : s.s, affix.s, affix.n) == 0;
    return charge_copy(r, affix.n);
}

static ats_status affix(struct render *r, struct value s, const struct args *args, bool end,
                        struct value *out) {
    struct value slots[3];
    int64_t start;
    bool empty;
    TRY(take_args(args, "", 3, slots));
    TRY(sub_range(r, &s, slots, &start, &empty));
    *out = value_bool(false);
    if (slots[0].kind == V_TUPLE) {
        for (size_t i = 0; i < slots[0].list->n && !out->b; i++) {
            struct value one = slots[0].list->items[i];
            if (!is_string(one))
                return fail(ATS_BAD_INPUT, "needs strings, not '%s'", type_name(one));
            if (!empty) TRY(has_affix(r, s, one, end, &out->b));
        }
        return ATS_OK;
    }
    if (slots[0].kind == V_UNDEFINED) return fail_undefined(slots[0]);
    if (!is_string(slots[0]))
        return fail(ATS_BAD_INPUT, "needs a str or a tuple of str, not '%s'", type_name(slots[0]));
    return empty ? ATS_OK : has_affix(r, s, slots[0], end, &out->b);
}
static ats_status m_startswith(struct render *r, struct value s, const struct args *args,
                               struct value *out) {
    return affix(r, s, args, false, out);
}
static ats_status m_endswith(struct render *r, struct value s, const struct args *args,
                             struct value *out) {
    return affix(r, s, args, true, out);
}

static ats_status m_removeprefix(struct render *r, struct value s, const struct args *args,
                                 struct value *out) {
    struct value what;
    bool has;
    TRY(one_string(args, &what));
    TRY(has_affix(r, s, what, false, &has));
    *out = has ? part(s, what.n, s.n) : s;
    return ATS_OK;
}
static ats_status m_removesuffix(struct render *r, struct value s, const struct args *args,
                                 struct value *out) {
    struct value what;
    bool has;
    TRY(one_string(args, &what));
    TRY(has_affix(r, s, what, true, &has));
    *out = has ? part(s, 0, s.n - what.n) : s;
    return ATS_OK;
}

static ats_status m_replace(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    struct value slots[3], from = value_none(), to = value_none();
    int64_t count = -1;
    TRY(take_args(args, "old new count", 3, slots));
    TRY(arg_string(slots[0], "the old text", &from));
    TRY(arg_string(slots[1], "the new text", &to));
    TRY(arg_int(slots[2], "count", &count));
    if (!is_string(from) || !is_string(to)) return fail(ATS_BAD_INPUT, "needs two strings");
    if (s.tag) TRY(text_escape(r, to, &to));
    return text_replace(r, s, from, to, count, out);
}

static ats_status m_join(struct render *r, struct value s, const struct args *args,
                         struct value *out) {
    struct value items;
    TRY(take_args(args, "", 1, &items));
    if (is_absent(items)) return fail(ATS_BAD_INPUT, "needs a sequence");
    return text_join(r, s, items, true, out);
}

static ats_status m_format(struct render *r, struct value s, const struct args *args,
                           struct value *out) {
    return format_braces(r, s, args, out);
}

/* ---- filling ---- */

static ats_status pad(struct render *r, struct value s, const struct args *args, int side,
                      struct value *out) {
    struct value slots[2], fill = value_string(" ", 1);
    int64_t width = 0;
    TRY(take_args(args, "", 2, slots));
    TRY(arg_int(slots[0], "width", &width));
    TRY(arg_string(slots[1], "fill", &fill));
    size_t i = 0;
    if (text_length(fill.s, fill.n) != 1)
        return fail(ATS_BAD_INPUT, "the fill must be one character");
    return text_pad(r, s, width, text_next(fill.s, fill.n, &i), side, out);
}
static ats_status m_center(struct render *r, struct value s, const struct args *args,
                           struct value *out) {
    return pad(r, s, args, 0, out);
}
static ats_status m_ljust(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    return pad(r, s, args, -1, out);
}
static ats_status m_rjust(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    return pad(r, s, args, 1, out);
}

static ats_status m_zfill(struct render *r, struct value s, const struct args *args,
                          struct value *out) {
    struct value slot, sign = part(s, 0, s.n > 0 && (s.s[0] == '-' || s.s[0] == '+'));
    int64_t width = 0;
    TRY(take_args(args, "", 1, &slot));
    TRY(arg_int(slot, "width", &width));
    struct value digits = part(s, sign.n, s.n);
    width = max_i64(width, 0) - sign.n;
    TRY(text_pad(r, digits, width, '0', 1, &digits));
    return sign.n > 0 ? binary(r, '+', sign, digits, out) : (*out = digits, ATS_OK);
}

static ats_status m_expandtabs(struct render *r, struct value s, const struct args *args,
                               struct value *out) {
    struct value slot;
    int64_t size = 8, column = 0;
    TRY(take_args(args, "tabsize", 1, &slot));
    TRY(arg_int(slot, "tabsize", &size));
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < s.n;) {
        size_t start = i;
        uint32_t cp = text_next(s.s, s.n, &i);
        if (cp == '\t') {
            int64_t n = size > 0 ? size - column % size : 0;
            for (column += n; n > 0; n--)
                TRY(put_char(r, b, ' '));
            continue;
        }
        TRY(put(r, b, s.s + start, i - start));
        column = cp == '\n' || cp == '\r' ? 0 : column + 1;
    }
    return scratch_end(r, b, out);
}

/* ---- what characters there are ---- */

static bool is_decimal(uint32_t cp) {
    return utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_ND;
}
static bool is_numeric(uint32_t cp) {
    utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)cp);
    return c == UTF8PROC_CATEGORY_ND || c == UTF8PROC_CATEGORY_NL || c == UTF8PROC_CATEGORY_NO;
}
static bool is_alnum(uint32_t cp) {
    return is_letter(cp) || is_numeric(cp);
}
static bool is_ascii(uint32_t cp) {
    return cp < 0x80;
}

static ats_status all_are(struct render *r, struct value s, const struct args *args,
                          bool (*is)(uint32_t), bool empty, struct value *out) {
    TRY(no_args(args));
    TRY(charge(r, s.n));
    *out = value_bool(s.n > 0 || empty);
    for (size_t i = 0; i < s.n && out->b;)
        out->b = is(text_next(s.s, s.n, &i));
    return ATS_OK;
}
static ats_status m_isdigit(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    return all_are(r, s, args, is_decimal, false, out);
}
static ats_status m_isnumeric(struct render *r, struct value s, const struct args *args,
                              struct value *out) {
    return all_are(r, s, args, is_numeric, false, out);
}
static ats_status m_isalpha(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    return all_are(r, s, args, is_letter, false, out);
}
static ats_status m_isalnum(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    return all_are(r, s, args, is_alnum, false, out);
}
static ats_status m_isspace(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    return all_are(r, s, args, text_is_space, false, out);
}
static ats_status m_isascii(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    return all_are(r, s, args, is_ascii, true, out);
}
static ats_status m_islower(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    TRY(no_args(args));
    TRY(charge(r, s.n));
    *out = value_bool(text_is_lower(s, false));
    return ATS_OK;
}
static ats_status m_isupper(struct render *r, struct value s, const struct args *args,
                            struct value *out) {
    TRY(no_args(args));
    TRY(charge(r, s.n));
    *out = value_bool(text_is_lower(s, true));
    return ATS_OK;
}

/* ---- the table ---- */

static const struct {
    const char *name;
    method_fn *fn;
} methods[] = {
    {"split", m_split},
    {"strip", m_strip},
    {"lstrip", m_lstrip},
    {"rstrip", m_rstrip},
    {"startswith", m_startswith},
    {"endswith", m_endswith},
    {"replace", m_replace},
    {"format", m_format},
    {"upper", m_upper},
    {"lower", m_lower},
    {"title", m_title},
    {"join", m_join},
    {"capitalize", m_capitalize},
    {"swapcase", m_swapcase},
    {"rsplit", m_rsplit},
    {"splitlines", m_splitlines},
    {"partition", m_partition},
    {"find", m_find},
    {"rpartition", m_rpartition},
    {"rfind", m_rfind},
    {"index", m_index},
    {"rindex", m_rindex},
    {"count", m_count},
    {"center", m_center},
    {"removeprefix", m_removeprefix},
    {"ljust", m_ljust},
    {"removesuffix", m_removesuffix},
    {"rjust", m_rjust},
    {"expandtabs", m_expandtabs},
    {"zfill", m_zfill},
    {"isdigit", m_isdigit},
    {"isdecimal", m_isdigit},
    {"isnumeric", m_isnumeric},
    {"isalpha", m_isalpha},
    {"isalnum", m_isalnum},
    {"isspace", m_isspace},
    {"isascii", m_isascii},
    {"islower", m_islower},
    {"isupper", m_isupper},
};

static method_fn *method_find(const char *name, size_t n) {
    for (size_t i = 0; i < COUNT_OF(methods); i++)
        if (strlen(methods[i].name) == n && memcmp(methods[i].name, name, n) == 0)
            return methods[i].fn;
    return NULL;
}

bool string_method_exists(const char *name, size_t n) {
    return method_find(name, n) != NULL;
}

ats_status call_string_method(struct render *r, const struct method *m, const struct args *args,
                              struct value *out) {
    return method_find(m->name, m->n)(r, m->self, args, out);
}
