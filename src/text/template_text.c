#include "text/template_impl.h"

#include <string.h>
#include <utf8proc.h>
#include "base/utf8.h"

/* Operations on strings that filters and methods share. */

static ats_status put_cp(struct render *r, struct buf *b, uint32_t cp) {
    char bytes[4];
    return put(r, b, bytes, (size_t)utf8_encode(cp, bytes));
}

static uint32_t to_lower(uint32_t cp) {
    return (uint32_t)utf8proc_tolower((utf8proc_int32_t)cp);
}

/* One to one mappings, and the letters whose capital is more than one. */
ats_status text_put_upper(struct render *r, struct buf *b, uint32_t cp, bool title) {
    static const struct {
        uint32_t cp;
        const char *upper, *title;
    } longer[] = {{0xDF, "SS", "Ss"},     {0x149, "\xca\xbcN", "\xca\xbcN"},
                  {0xFB00, "FF", "Ff"},   {0xFB01, "FI", "Fi"},
                  {0xFB02, "FL", "Fl"},   {0xFB03, "FFI", "Ffi"},
                  {0xFB04, "FFL", "Ffl"}, {0xFB05, "ST", "St"},
                  {0xFB06, "ST", "St"}};
    for (size_t i = 0; cp >= 0xDF && i < COUNT_OF(longer); i++) {
        const char *made = title ? longer[i].title : longer[i].upper;
        if (longer[i].cp == cp) return put(r, b, made, strlen(made));
    }
    return put_cp(r, b,
                  (uint32_t)(title ? utf8proc_totitle((utf8proc_int32_t)cp)
                                   : utf8proc_toupper((utf8proc_int32_t)cp)));
}

static ats_status end_text(struct render *r, struct buf *b, uint8_t tag, struct value *out) {
    TRY(scratch_end(r, b, out));
    out->tag = tag;
    return ATS_OK;
}

ats_status text_upper(struct render *r, struct value s, struct value *out) {
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < s.n;)
        TRY(text_put_upper(r, b, text_next(s.s, s.n, &i), false));
    return end_text(r, b, s.tag, out);
}

ats_status text_lower(struct render *r, struct value s, struct value *out) {
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < s.n;)
        TRY(put_cp(r, b, to_lower(text_next(s.s, s.n, &i))));
    return end_text(r, b, s.tag, out);
}

ats_status text_capitalize(struct render *r, struct value s, struct value *out) {
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < s.n;) {
        bool first = i == 0;
        uint32_t cp = text_next(s.s, s.n, &i);
        TRY(first ? text_put_upper(r, b, cp, true) : put_cp(r, b, to_lower(cp)));
    }
    return end_text(r, b, s.tag, out);
}

static bool in_chars(struct value chars, uint32_t cp) {
    if (!is_string(chars)) return text_is_space(cp);
    for (size_t i = 0; i < chars.n;)
        if (text_next(chars.s, chars.n, &i) == cp) return true;
    return false;
}

ats_status text_strip(struct render *r, struct value s, struct value chars, int sides,
                      struct value *out) {
    if (!is_absent(chars) && chars.kind != V_NONE && !is_string(chars))
        return fail(ATS_BAD_INPUT, "the characters to strip must be a string, not '%s'",
                    type_name(chars));
    size_t start = 0, end = s.n;
    while ((sides & 1) && start < end) {
        size_t next = start;
        if (is_string(chars)) TRY(charge(r, chars.n));
        if (!in_chars(chars, text_next(s.s, end, &next))) break;
        start = next;
    }
    while ((sides & 2) && end > start) {
        size_t last = end - 1;
        while (last > start && ((unsigned char)s.s[last] & 0xC0) == 0x80)
            last--;
        size_t next = last;
        if (is_string(chars)) TRY(charge(r, chars.n));
        if (!in_chars(chars, text_next(s.s, end, &next))) break;
        end = last;
    }
    TRY(charge(r, s.n - (end - start)));
    *out = value_string(s.s + start, end - start);
    out->tag = s.tag;
    return ATS_OK;
}

/* A place where it may begin costs about as much as reading so many bytes. */
enum { BYTES_A_PLACE = 16, BYTES_A_CHARGE = 1 << 16 };

/* Not memmem, which does not tell how much it has compared: some texts take it the length of what
 * is looked for at each of their places. */
ats_status text_find(struct render *r, struct value s, size_t from, struct value what,
                     const char **out) {
    size_t n_seen = 0;
    *out = what.n == 0 ? s.s + from : NULL;
    for (size_t i = from; !*out && what.n <= s.n - i;) {
        size_t n_places = s.n - i - what.n + 1;
        const char *at = memchr(s.s + i, what.s[0], n_places);
        n_seen += (at ? (size_t)(at - s.s) - i : n_places) + BYTES_A_PLACE;
        if (!at) break;
        if (at[what.n - 1] == what.s[what.n - 1]) {
            n_seen += what.n / 4; /* as charge_copy counts it */
            if (memcmp(at, what.s, what.n) == 0) *out = at;
        }
        i = (size_t)(at - s.s) + 1;
        if (n_seen < BYTES_A_CHARGE) continue;
        TRY(charge_scan(r, n_seen));
        n_seen = 0;
    }
    return charge_scan(r, n_seen);
}

ats_status text_replace(struct render *r, struct value s, struct value from, struct value to,
                        int64_t count, struct value *out) {
    struct buf *b = scratch_begin(r);
    size_t i = 0;
    while (count != 0 && i <= s.n) {
        size_t at;
        if (from.n == 0) { /* before each character, and at the end */
            at = i;
        } else {
            const char *found;
            TRY(text_find(r, s, i, from, &found));
            if (!found) break;
            at = (size_t)(found - s.s);
        }
        TRY(put(r, b, s.s + i, at - i));
        TRY(put(r, b, to.s, to.n));
        TRY(charge(r, 0));
        i = at + from.n;
        if (from.n == 0) {
            size_t start = i;
            if (i < s.n) (void)text_next(s.s, s.n, &i);
            TRY(put(r, b, s.s + start, i - start));
            if (start == s.n) break;
        }
        if (count > 0) count--;
    }
    if (i < s.n) TRY(put(r, b, s.s + i, s.n - i));
    return end_text(r, b, s.tag, out);
}

static bool is_line_end(uint32_t cp) {
    return (cp >= 10 && cp <= 13) || (cp >= 28 && cp <= 30) || cp == 0x85 || cp == 0x2028 ||
           cp == 0x2029;
}

ats_status text_split_lines(struct render *r, struct value s, bool keep_ends, struct list **out) {
    TRY(list_new(r, 0, out));
    TRY(charge(r, s.n));
    for (size_t i = 0; i < s.n;) {
        size_t start = i, end = i;
        bool ended = false;
        while (i < s.n && !ended) {
            end = i;
            uint32_t cp = text_next(s.s, s.n, &i);
            ended = is_line_end(cp);
            if (cp == '\r' && i < s.n && s.s[i] == '\n') i++;
            if (!ended) end = i;
        }
        struct value line = value_string(s.s + start, (keep_ends ? i : end) - start);
        line.tag = s.tag;
        TRY(list_add(r, *out, line));
    }
    return ATS_OK;
}

static ats_status put_fill(struct render *r, struct buf *b, uint32_t fill, int64_t n) {
    TRY(charge(r, (size_t)n));
    for (int64_t i = 0; i < n; i++)
        TRY(put_cp(r, b, fill));
    return ATS_OK;
}

/* side: -1 fill on the right (ljust), 1 on the left (rjust), 0 on both (center) */
ats_status text_pad(struct render *r, struct value s, int64_t width, uint32_t fill, int side,
                    struct value *out) {
    int64_t n = (int64_t)text_length(s.s, s.n), pad = width > n ? width - n : 0;
    if ((uint64_t)pad > r->max_output_bytes)
        return fail(ATS_BAD_INPUT, "limit reached: a text of more than %zu bytes",
                    r->max_output_bytes);
    int64_t left = side > 0 ? pad : side < 0 ? 0 : pad / 2 + (pad & width & 1);
    struct buf *b = scratch_begin(r);
    TRY(put_fill(r, b, fill, left));
    TRY(put(r, b, s.s, s.n));
    TRY(put_fill(r, b, fill, pad - left));
    return end_text(r, b, s.tag, out);
}

/* strict: items must be strings (the method), else they are printed (the filter). */
ats_status text_join(struct render *r, struct value sep, struct value items, bool strict,
                     struct value *out) {
    struct cursor c;
    TRY(cursor_begin(r, items, &c));
    struct buf *b = scratch_begin(r);
    for (bool first = true;; first = false) {
        struct value item;
        bool more;
        TRY(cursor_next(r, &c, &item, &more));
        if (!more) break;
        if (strict && !is_string(item))
            return fail(ATS_BAD_INPUT, "expected a str in the sequence, found '%s'",
                        type_name(item));
        if (!first) TRY(put_str(r, b, sep));
        if (strict && sep.tag) TRY(text_escape(r, item, &item));
        TRY(put_str(r, b, item));
    }
    return end_text(r, b, strict ? sep.tag : 0, out);
}

/* Has letters with case, all of them lower (or all upper). */
bool text_is_lower(struct value s, bool upper) {
    bool any = false;
    for (size_t i = 0; i < s.n;) {
        switch (utf8proc_category((utf8proc_int32_t)text_next(s.s, s.n, &i))) {
        case UTF8PROC_CATEGORY_LU:
            if (!upper) return false;
            any = true;
            break;
        case UTF8PROC_CATEGORY_LL:
            if (upper) return false;
            any = true;
            break;
        case UTF8PROC_CATEGORY_LT:
            return false;
        default:
            break;
        }
    }
    return any;
}

ats_status text_escape(struct render *r, struct value s, struct value *out) {
    static const char chars[] = "&<>'\"";
    static const char *const made[] = {"&amp;", "&lt;", "&gt;", "&#39;", "&#34;"};
    *out = s;
    if (s.tag) return ATS_OK;
    struct buf *b = scratch_begin(r);
    for (size_t i = 0; i < s.n; i++) {
        const char *found = s.s[i] ? strchr(chars, s.s[i]) : NULL;
        if (found)
            TRY(put(r, b, made[found - chars], strlen(made[found - chars])));
        else
            TRY(put_char(r, b, s.s[i]));
    }
    return end_text(r, b, 1, out);
}
