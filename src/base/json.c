#include "base/json.h"

#include "base/buf.h"
#include "base/file.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

ats_status json_parse(const char *text, size_t n, json_t **out) {
    json_error_t error;
    *out = json_loadb(text, n, JSON_REJECT_DUPLICATES | JSON_DECODE_ANY | JSON_ALLOW_NUL, &error);
    if (*out) return ATS_OK;
    return fail(ATS_BAD_INPUT, "JSON, line %d column %d: %s", error.line, error.column, error.text);
}

ats_status json_read_file(const char *path, size_t max_bytes, json_t **out) {
    char *text;
    size_t n;
    *out = NULL;
    TRY(file_read(path, max_bytes, &text, &n));
    ats_status status = json_parse(text, n, out);
    free(text);
    return status == ATS_OK ? ATS_OK : fail_in(ATS_BAD_FILE, "%s", path);
}

static void print_string(struct buf *out, const char *s, size_t n) {
    buf_add_char(out, '"');
    for (size_t i = 0; i < n; i++) {
        const char *escapes = "\"\\\b\f\n\r\t", *names = "\"\\bfnrt";
        const char *found = s[i] ? strchr(escapes, s[i]) : NULL;
        if (found) {
            buf_add_char(out, '\\');
            buf_add_char(out, names[found - escapes]);
        } else if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f) {
            buf_printf(out, "\\u%04x", (unsigned)(unsigned char)s[i]);
        } else if ((unsigned char)s[i] == 0xC2 && i + 1 < n && (unsigned char)s[i + 1] < 0xA0) {
            i++; /* U+0080 to U+009F: escapes of 8 bits to some terminals */
            buf_printf(out, "\\u%04x", (unsigned)(unsigned char)s[i]);
        } else {
            buf_add_char(out, s[i]);
        }
    }
    buf_add_char(out, '"');
}

/* The shortest of 15 to 17 digits that reads back as the same double. */
static void print_real(struct buf *out, double value) {
    char text[40];
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) break;
    }
    char *comma = strchr(text, ','); /* a program's locale may write one */
    if (comma) *comma = '.';
    buf_add_str(out, text);
    if (!strpbrk(text, ".e")) buf_add_str(out, ".0");
}

static void print_break(struct buf *out, bool pretty, int depth) {
    if (pretty) buf_printf(out, "\n%*s", 2 * depth, "");
}

/* Recursion is bounded by json_parse's depth limit, or by the program's own nesting. */
static void print_value(struct buf *out, const json_t *value, bool pretty, int depth) {
    size_t n = 0;
    switch (json_typeof(value)) {
    case JSON_OBJECT: {
        buf_add_char(out, '{');
        for (void *it = json_object_iter((json_t *)(uintptr_t)value); it;
             it = json_object_iter_next((json_t *)(uintptr_t)value, it)) {
            if (n++ > 0) buf_add_str(out, pretty ? "," : ", ");
            print_break(out, pretty, depth + 1);
            const char *key = json_object_iter_key(it);
            print_string(out, key, strlen(key));
            buf_add_str(out, ": ");
            print_value(out, json_object_iter_value(it), pretty, depth + 1);
        }
        if (n > 0) print_break(out, pretty, depth);
        buf_add_char(out, '}');
        break;
    }
    case JSON_ARRAY:
        buf_add_char(out, '[');
        for (; n < json_array_size(value); n++) {
            if (n > 0) buf_add_str(out, pretty ? "," : ", ");
            print_break(out, pretty, depth + 1);
            print_value(out, json_array_get(value, n), pretty, depth + 1);
        }
        if (n > 0) print_break(out, pretty, depth);
        buf_add_char(out, ']');
        break;
    case JSON_STRING:
        print_string(out, json_string_value(value), json_string_length(value));
        break;
    case JSON_INTEGER:
        buf_printf(out, "%" JSON_INTEGER_FORMAT, json_integer_value(value));
        break;
    case JSON_REAL:
        print_real(out, json_real_value(value));
        break;
    case JSON_TRUE:
        buf_add_str(out, "true");
        break;
    case JSON_FALSE:
        buf_add_str(out, "false");
        break;
    case JSON_NULL:
        buf_add_str(out, "null");
        break;
    }
}

char *json_print(const json_t *value, bool pretty) {
    struct buf out = {0};
    print_value(&out, value, pretty, 0);
    return buf_take(&out);
}

json_t *json_string_replaced(const char *s, size_t n) {
    struct buf clean = {0};
    utf8_add_replaced(&clean, s, n);
    json_t *value = json_stringn(buf_str(&clean), clean.len);
    buf_free(&clean);
    return value;
}
