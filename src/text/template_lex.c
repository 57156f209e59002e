#include "text/template_impl.h"

#include <stdlib.h>
#include <string.h>
#include "base/utf8.h"

/*
 * The lexer follows Jinja's rules for white space to the letter: "-" strips all white space on its
 * side, trim_blocks drops one newline after a tag or comment, lstrip_blocks drops the blanks
 * between a line's start and a tag or comment, "+" turns these off.
 */

/* \r\n and \r become \n; one newline at the end is dropped. */
ats_status lexer_init(struct lexer *lx, struct arena *arena, const char *text, size_t n) {
    if (n > TEMPLATE_MAX_SOURCE_BYTES)
        return fail(ATS_BAD_INPUT, "template is larger than %d bytes", TEMPLATE_MAX_SOURCE_BYTES);
    if (!utf8_valid(text, n)) return fail(ATS_BAD_INPUT, "template is not valid UTF-8");
    char *copy = arena_alloc(arena, n + 1);
    size_t len = 0;
    for (size_t i = 0; i < n; i++) {
        if (text[i] == '\r') {
            copy[len++] = '\n';
            if (i + 1 < n && text[i + 1] == '\n') i++;
        } else {
            copy[len++] = text[i];
        }
    }
    if (len > 0 && copy[len - 1] == '\n') len--;
    *lx = (struct lexer){
        .arena = arena, .s = copy, .n = len, .line = 1, .pending = T_END, .line_starting = true};
    return ATS_OK;
}

static bool at(const struct lexer *lx, size_t pos, const char *what) {
    size_t n = strlen(what);
    return pos <= lx->n && n <= lx->n - pos && memcmp(lx->s + pos, what, n) == 0;
}

static size_t skip_space(const struct lexer *lx, size_t pos) {
    while (pos < lx->n) {
        size_t next = pos;
        if (!text_is_space(text_next(lx->s, lx->n, &next))) break;
        pos = next;
    }
    return pos;
}

/* Start of the white space that ends s[start..end). */
static size_t back_over_space(const char *s, size_t start, size_t end) {
    while (end > start) {
        size_t at_char = end - 1;
        while (at_char > start && ((unsigned char)s[at_char] & 0xC0) == 0x80)
            at_char--;
        size_t next = at_char;
        if (!text_is_space(text_next(s, end, &next))) break;
        end = at_char;
    }
    return end;
}

/* Moves on, counting lines. */
static void move_to(struct lexer *lx, size_t pos) {
    for (size_t i = lx->pos; i < pos; i++)
        lx->line += lx->s[i] == '\n';
    if (pos > lx->pos) lx->line_starting = lx->s[pos - 1] == '\n';
    lx->pos = pos;
}

/* End of a tag or comment whose closing mark ("%}", "#}") is at pos; sign is '-', '+' or 0. */
static size_t after_close(const struct lexer *lx, size_t pos, char sign) {
    pos += 2;
    if (sign == '-') return skip_space(lx, pos);
    if (sign == 0 && pos < lx->n && lx->s[pos] == '\n') pos++;
    return pos;
}

static size_t find_two(const struct lexer *lx, size_t pos, char first, char second) {
    for (; pos + 1 < lx->n; pos++)
        if (lx->s[pos] == first && lx->s[pos + 1] == second) return pos;
    return lx->n;
}

/* End of the text s[start..tag) that stays, given the sign of the tag and its kind. */
static size_t stripped_end(const struct lexer *lx, size_t start, size_t tag, char sign,
                           bool is_print) {
    if (sign == '-') return back_over_space(lx->s, start, tag);
    if (sign == '+' || is_print) return tag;
    size_t line = tag;
    while (line > start && lx->s[line - 1] != '\n')
        line--;
    if (line == start && !lx->line_starting) return tag;
    return back_over_space(lx->s, line, tag) == line ? line : tag;
}

static char sign_at(const struct lexer *lx, size_t pos) {
    return pos < lx->n && (lx->s[pos] == '-' || lx->s[pos] == '+') ? lx->s[pos] : 0;
}

/* If a raw tag begins at tag, the position after it, else 0. */
static size_t raw_begin(const struct lexer *lx, size_t tag, char sign) {
    size_t pos = skip_space(lx, tag + 2 + (sign != 0));
    if (!at(lx, pos, "raw")) return 0;
    pos = skip_space(lx, pos + 3);
    if (at(lx, pos, "-%}")) return skip_space(lx, pos + 3);
    return at(lx, pos, "%}") ? pos + 2 : 0;
}

static struct token data_token(const struct lexer *lx, size_t start, size_t end) {
    return (struct token){.kind = T_DATA, .line = lx->line, .s = lx->s + start, .n = end - start};
}

/* The text of a raw block that starts at lx->pos; leaves lx after endraw. */
static ats_status lex_raw(struct lexer *lx, struct token *out) {
    for (size_t tag = find_two(lx, lx->pos, '{', '%'); tag < lx->n;
         tag = find_two(lx, tag + 2, '{', '%')) {
        char sign = sign_at(lx, tag + 2);
        size_t pos = skip_space(lx, tag + 2 + (sign != 0));
        if (!at(lx, pos, "endraw")) continue;
        pos = skip_space(lx, pos + 6);
        char end_sign = sign_at(lx, pos);
        if (!at(lx, pos + (end_sign != 0), "%}")) continue;
        *out = data_token(lx, lx->pos, stripped_end(lx, lx->pos, tag, sign, false));
        move_to(lx, after_close(lx, pos + (end_sign != 0), end_sign));
        return ATS_OK;
    }
    return fail(ATS_BAD_INPUT, "line %d: {%% raw %%} without {%% endraw %%}", lx->line);
}

static ats_status skip_comment(struct lexer *lx, size_t start, char sign) {
    size_t from = start + 2 + (sign != 0), close = find_two(lx, from, '#', '}');
    if (close >= lx->n) return fail(ATS_BAD_INPUT, "line %d: comment without end", lx->line);
    char end_sign = close > from ? sign_at(lx, close - 1) : 0;
    move_to(lx, after_close(lx, close, end_sign));
    return ATS_OK;
}

/* Next piece of text up to a print, a tag or the end; comments and raw blocks are taken on the
 * way. */
static ats_status lex_text(struct lexer *lx, struct token *out) {
    for (;;) {
        size_t start = lx->pos, tag = start;
        while (tag + 1 < lx->n &&
               !(lx->s[tag] == '{' &&
                 (lx->s[tag + 1] == '{' || lx->s[tag + 1] == '%' || lx->s[tag + 1] == '#')))
            tag++;
        if (tag + 1 >= lx->n) {
            *out = data_token(lx, start, lx->n);
            if (start == lx->n) out->kind = T_END;
            move_to(lx, lx->n);
            return ATS_OK;
        }
        char kind = lx->s[tag + 1], sign = sign_at(lx, tag + 2);
        size_t end = stripped_end(lx, start, tag, sign, kind == '{');
        *out = data_token(lx, start, end);
        move_to(lx, tag);
        size_t raw = kind == '%' ? raw_begin(lx, tag, sign) : 0;
        if (kind == '#') {
            TRY(skip_comment(lx, tag, sign));
        } else if (raw) {
            struct token text = *out;
            move_to(lx, raw);
            if (text.n > 0) { /* hand out the text first, come back for the raw part */
                lx->pending = T_DATA;
                return ATS_OK;
            }
            TRY(lex_raw(lx, out));
        } else {
            move_to(lx, tag + 2 + (sign != 0));
            lx->pending = kind == '{' ? T_PRINT_BEGIN : T_TAG_BEGIN;
        }
        if (out->n > 0 || lx->pending != T_END) return ATS_OK;
    }
}

/* ---- inside {{ }} and {% %} ---- */

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
static bool is_name_char(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' ||
           (unsigned char)c >= 0x80;
}
static int hex_digit(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* Value of up to n_max digits of base 8 or 16 at s[*i], moving *i; *n_read digits were there. */
static uint32_t read_digits(const char *s, size_t n, size_t *i, int base, int n_max, int *n_read) {
    uint32_t v = 0;
    for (*n_read = 0; *n_read < n_max && *i < n; ++*n_read, ++*i) {
        int d = hex_digit(s[*i]);
        if (d < 0 || d >= base) break;
        v = v * (uint32_t)base + (uint32_t)d;
    }
    return v;
}

/* The escape after a backslash at s[*i]; false if it is wrong. Unknown ones stay as they are. */
static bool unescape_one(const char *s, size_t n, size_t *i, char *out, size_t *n_out) {
    static const char plain[] = "\\'\"abfnrtv", made[] = "\\'\"\a\b\f\n\r\t\v";
    char c = s[(*i)++];
    const char *found = c ? strchr(plain, c) : NULL;
    if (found) {
        out[(*n_out)++] = made[found - plain];
        return true;
    }
    if (c == '\n') return true;
    int n_read = 0, wanted = c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
    uint32_t cp;
    if (wanted) {
        cp = read_digits(s, n, i, 16, wanted, &n_read);
        if (n_read != wanted) return false;
    } else if (c >= '0' && c <= '7') {
        --*i;
        cp = read_digits(s, n, i, 8, 3, &n_read);
    } else {
        out[(*n_out)++] = '\\';
        out[(*n_out)++] = c;
        return c != 'N';
    }
    if (cp > 0x10FFFF || (cp >= 0xD800 && cp <= 0xDFFF)) return false;
    *n_out += (size_t)utf8_encode(cp, out + *n_out);
    return true;
}

static ats_status lex_string(struct lexer *lx, struct token *out) {
    char quote = lx->s[lx->pos];
    size_t end = lx->pos + 1;
    while (end < lx->n && lx->s[end] != quote)
        end += lx->s[end] == '\\' ? 2 : 1;
    if (end >= lx->n) return fail(ATS_BAD_INPUT, "line %d: string without end", lx->line);
    size_t n = end - lx->pos - 1, n_out = 0;
    const char *s = lx->s + lx->pos + 1;
    /* every escape is at least as long as what it makes */
    char *text = arena_alloc(lx->arena, n + 4);
    for (size_t i = 0; i < n;) {
        if (s[i] != '\\') {
            text[n_out++] = s[i++];
            continue;
        }
        i++;
        if (!unescape_one(s, n, &i, text, &n_out))
            return fail(ATS_BAD_INPUT, "line %d: wrong escape in a string", lx->line);
    }
    *out = (struct token){.kind = T_STRING, .line = lx->line, .s = text, .n = n_out};
    move_to(lx, end + 1);
    return ATS_OK;
}

/* End of digits with single underscores between them, from pos (a digit). */
static size_t digits_end(const struct lexer *lx, size_t pos, int base) {
    for (;;) {
        size_t digit = pos + (pos < lx->n && lx->s[pos] == '_');
        int d = digit < lx->n ? hex_digit(lx->s[digit]) : -1;
        if (d < 0 || d >= base) return pos;
        pos = digit + 1;
    }
}

/* End of a float at pos, or pos if there is none. */
static size_t float_end(const struct lexer *lx, size_t pos) {
    if (pos > 0 && lx->s[pos - 1] == '.') return pos; /* a.0.1 is two integers */
    size_t end = digits_end(lx, pos, 10);
    bool is_float = false;
    if (end + 1 < lx->n && lx->s[end] == '.' && is_digit(lx->s[end + 1])) {
        end = digits_end(lx, end + 1, 10);
        is_float = true;
    }
    if (end < lx->n && (lx->s[end] == 'e' || lx->s[end] == 'E')) {
        size_t exponent = end + 1;
        if (exponent < lx->n && (lx->s[exponent] == '+' || lx->s[exponent] == '-')) exponent++;
        if (exponent < lx->n && is_digit(lx->s[exponent])) {
            end = digits_end(lx, exponent, 10);
            is_float = true;
        }
    }
    return is_float ? end : pos;
}

static ats_status lex_number(struct lexer *lx, struct token *out) {
    static const char prefixes[] = "bBoOxX";
    static const int bases[] = {2, 2, 8, 8, 16, 16};
    size_t start = lx->pos, end = float_end(lx, start);
    bool is_float = end > start;
    int base = 10;
    if (!is_float) {
        const char *prefix = NULL;
        if (lx->s[start] == '0' && start + 1 < lx->n && lx->s[start + 1])
            prefix = strchr(prefixes, lx->s[start + 1]);
        if (prefix && digits_end(lx, start + 2, bases[prefix - prefixes]) > start + 2) {
            base = bases[prefix - prefixes];
            start += 2;
        }
        end = digits_end(lx, start, lx->s[start] == '0' && base == 10 ? 1 : base);
    }
    char *text = arena_alloc(lx->arena, end - start + 1);
    size_t n = 0;
    for (size_t i = start; i < end; i++)
        if (lx->s[i] != '_') text[n++] = lx->s[i];
    *out = (struct token){.line = lx->line, .s = text, .n = n};
    bool ok;
    if (is_float) {
        out->kind = T_FLOAT;
        ok = parse_float(text, n, &out->f);
    } else {
        out->kind = T_INT;
        ok = parse_integer(text, n, base, &out->i);
        if (!ok && base == 10) {
            out->kind = T_BIG;
            ok = true;
        }
    }
    if (!ok) return fail(ATS_BAD_INPUT, "line %d: number out of range", lx->line);
    move_to(lx, end);
    return ATS_OK;
}

static ats_status track_bracket(struct lexer *lx, char c) {
    char closes = c == '(' ? ')' : c == '[' ? ']' : c == '{' ? '}' : 0;
    if (closes) {
        if (lx->n_brackets >= LEX_MAX_BRACKETS)
            return fail(ATS_BAD_INPUT, "line %d: brackets nested more than %d deep", lx->line,
                        TEMPLATE_MAX_NESTING);
        lx->brackets[lx->n_brackets++] = closes;
    } else if (c == ')' || c == ']' || c == '}') {
        if (lx->n_brackets == 0)
            return fail(ATS_BAD_INPUT, "line %d: unexpected '%c'", lx->line, c);
        char wanted = lx->brackets[--lx->n_brackets];
        if (wanted != c)
            return fail(ATS_BAD_INPUT, "line %d: unexpected '%c', expected '%c'", lx->line, c,
                        wanted);
    }
    return ATS_OK;
}

static ats_status lex_operator(struct lexer *lx, struct token *out) {
    static const char two[][3] = {"//", "**", "==", "!=", ">=", "<="};
    static const char one[] = "+-/*%~[](){}><=.:|,;";
    char c = lx->s[lx->pos];
    *out = (struct token){.kind = T_OPERATOR, .line = lx->line, .s = lx->s + lx->pos, .n = 1};
    out->op = (unsigned char)c;
    for (size_t i = 0; i < COUNT_OF(two); i++) {
        if (!at(lx, lx->pos, two[i])) continue;
        out->op = OP2(two[i][0], two[i][1]);
        out->n = 2;
        move_to(lx, lx->pos + 2);
        return ATS_OK;
    }
    if (!c || !strchr(one, c))
        return fail(ATS_BAD_INPUT, "line %d: unexpected character 0x%02x", lx->line,
                    (unsigned)(unsigned char)c);
    TRY(track_bracket(lx, c));
    move_to(lx, lx->pos + 1);
    return ATS_OK;
}

/* True, and moved past it, if the print or tag ends here. */
static bool lex_close(struct lexer *lx, struct token *out) {
    if (lx->n_brackets > 0) return false;
    bool print = lx->mode == LEX_PRINT;
    const char *mark = print ? "}}" : "%}";
    char sign = sign_at(lx, lx->pos);
    if (print && sign == '+') sign = 0;
    if (!at(lx, lx->pos + (sign != 0), mark)) return false;
    *out = (struct token){.kind = print ? T_PRINT_END : T_TAG_END, .line = lx->line};
    size_t close = lx->pos + (sign != 0);
    move_to(lx, print && sign == 0 ? close + 2 : after_close(lx, close, sign));
    lx->mode = LEX_TEXT;
    return true;
}

static ats_status lex_inside(struct lexer *lx, struct token *out) {
    move_to(lx, skip_space(lx, lx->pos));
    if (lx->pos >= lx->n) {
        *out = (struct token){.kind = T_END, .line = lx->line};
        return ATS_OK;
    }
    if (lex_close(lx, out)) return ATS_OK;
    char c = lx->s[lx->pos];
    if (is_digit(c)) return lex_number(lx, out);
    if (c == '\'' || c == '"') return lex_string(lx, out);
    if (!is_name_char(c)) return lex_operator(lx, out);
    size_t end = lx->pos;
    while (end < lx->n && is_name_char(lx->s[end]))
        end++;
    *out =
        (struct token){.kind = T_NAME, .line = lx->line, .s = lx->s + lx->pos, .n = end - lx->pos};
    move_to(lx, end);
    return ATS_OK;
}

ats_status lexer_next(struct lexer *lx, struct token *out) {
    if (lx->mode != LEX_TEXT) return lex_inside(lx, out);
    if (lx->pending == T_END) return lex_text(lx, out);
    enum token_kind kind = lx->pending;
    lx->pending = T_END;
    if (kind == T_DATA) return lex_raw(lx, out);
    lx->mode = kind == T_PRINT_BEGIN ? LEX_PRINT : LEX_TAG;
    *out = (struct token){.kind = kind, .line = lx->line};
    return ATS_OK;
}
