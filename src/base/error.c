#include "base/error.h"

#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TEXT_BYTES = 512 };

static _Thread_local char kept_text[TEXT_BYTES];

const char *ats_status_text(ats_status status) {
    switch (status) {
#define STATUS_CASE(name, value, text)                                                             \
    case name:                                                                                     \
        return text;
        ATS_STATUS_MAP(STATUS_CASE)
#undef STATUS_CASE
    }
    return "unknown status";
}

const char *ats_error_text(void) {
    return kept_text;
}
const char *error_text(void) {
    return kept_text;
}
void error_clear(void) {
    kept_text[0] = 0;
}

/* Texts quote file names, keys and prompts: what is not UTF-8 becomes U+FFFD, and control
 * characters (line breaks, terminal escapes) become spaces, so that the text is one safe line. */
static void keep(const char *text) {
    size_t n_in = strnlen(text, TEXT_BYTES - 1), n_out = 0;
    n_in = utf8_complete_prefix(text, n_in);
    for (size_t i = 0; i < n_in;) {
        uint32_t cp;
        char encoded[4];
        int used = utf8_decode(text + i, n_in - i, &cp);
        if (used == 0) {
            cp = 0xFFFD;
            i += utf8_invalid_span(text + i, n_in - i);
        } else {
            if (cp < 0x20 || (cp >= 0x7f && cp < 0xa0)) cp = ' ';
            i += (size_t)used;
        }
        size_t n_cp = (size_t)utf8_encode(cp, encoded);
        if (n_out + n_cp > TEXT_BYTES - 1) break;
        memcpy(kept_text + n_out, encoded, n_cp);
        n_out += n_cp;
    }
    kept_text[n_out] = 0;
}

/* Arguments may point into the kept text: everything is formatted aside before it changes. */
ats_status fail(ats_status status, const char *format, ...) {
    REQUIRE(status != ATS_OK);
    char text[TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, sizeof text, format, args);
    va_end(args);
    keep(n < 0 ? format : text);
    return status;
}

ats_status fail_in(ats_status status, const char *format, ...) {
    REQUIRE(status != ATS_OK);
    char text[2 * TEXT_BYTES];
    va_list args;
    va_start(args, format);
    int n = vsnprintf(text, TEXT_BYTES, format, args);
    va_end(args);
    if (n < 0) return status;
    size_t n_prefix = utf8_complete_prefix(text, strlen(text));
    snprintf(text + n_prefix, sizeof text - n_prefix, ": %s", kept_text);
    keep(text);
    return status;
}

void error_set_text(const char *text) {
    char copy[TEXT_BYTES];
    size_t n = strnlen(text, TEXT_BYTES - 1);
    memcpy(copy, text, n);
    copy[n] = 0;
    keep(copy);
}

void require_failed(const char *cond, const char *file, int line) {
    fprintf(stderr, "atsinfer: internal error: %s:%d: %s\n", file, line, cond);
    abort();
}
