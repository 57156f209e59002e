/*
 * Regular expressions: those of the system (POSIX extended), with the two forms that users bring
 * from other programs: \d and (?:...). For patterns of the user's own, not of files: matching may
 * take time exponential in the pattern. One implementation per system: pattern_posix.c.
 */
#pragma once

#include "base/error.h"

struct pattern; /* owned by whoever compiled it */

/* BAD_ARGUMENT says what is wrong with the text. *out owned. */
MUST_CHECK ats_status pattern_open(const char *text, struct pattern **out);
void pattern_close(struct pattern *p); /* accepts NULL */
/* Does it match anywhere in text? */
bool pattern_matches(const struct pattern *p, const char *text);
