/* What we add to jansson (which is used directly): errors as statuses, and exact printing. */
#pragma once

#include <jansson.h>
#include "base/error.h"

/* Parses text[0..n). Refuses duplicate keys, depth over 2048, invalid UTF-8. *out owned (decref).
 */
MUST_CHECK ats_status json_parse(const char *text, size_t n, json_t **out);
MUST_CHECK ats_status json_read_file(const char *path, size_t max_bytes, json_t **out);
/* One line or indented; never fails on strings that are valid UTF-8. Owned (free). */
char *json_print(const json_t *value, bool pretty);
/* A string value from bytes that may not be UTF-8: invalid parts become U+FFFD. */
json_t *json_string_replaced(const char *s, size_t n);
