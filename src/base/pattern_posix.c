#include "base/pattern.h"

#include "base/arena.h"
#include "base/buf.h"

#include <regex.h>
#include <stdlib.h>
#include <string.h>

struct pattern {
    regex_t regex;
};

enum {
    MAX_LENGTH = 4096,
    MAX_REPEATS = 4096, /* of nested bounds: a library unrolls them */
};

/* \d becomes [0-9], also inside brackets, and (?: becomes (. */
static void translate(const char *text, struct buf *out) {
    bool bracket = false;
    for (const char *p = text; *p; p++) {
        if (p[0] == '\\' && p[1] == 'd') {
            buf_add_str(out, bracket ? "0-9" : "[0-9]");
            p++;
        } else if (p[0] == '\\' && p[1] && !bracket) {
            buf_add(out, p++, 2);
        } else if (!bracket && strncmp(p, "(?:", 3) == 0) {
            buf_add_char(out, '(');
            p += 2;
        } else {
            if (*p == '[') bracket = true;
            if (*p == ']') bracket = false;
            buf_add_char(out, *p);
        }
    }
}

/* The product of all upper bounds {n,m}: what the compiled pattern may grow by. */
static bool is_small(const char *text) {
    double product = 1;
    if (strlen(text) > MAX_LENGTH) return false;
    for (const char *p = strchr(text, '{'); p; p = strchr(p + 1, '{')) {
        const char *comma = p + 1 + strspn(p + 1, "0123456789");
        long low = atol(p + 1), high = *comma == ',' ? atol(comma + 1) : 0;
        product *= (double)(low > high ? low : high) + 1;
    }
    return product <= MAX_REPEATS;
}

ats_status pattern_open(const char *text, struct pattern **out) {
    *out = NULL;
    if (!*text) return fail(ATS_BAD_ARGUMENT, "the regular expression is empty");
    if (!is_small(text)) return fail(ATS_BAD_ARGUMENT, "the regular expression is too large");
    struct buf translated = {0};
    translate(text, &translated);
    struct pattern *p = xcalloc(1, sizeof *p);
    int error = regcomp(&p->regex, buf_str(&translated), REG_EXTENDED | REG_NOSUB);
    buf_free(&translated);
    if (error == 0) {
        *out = p;
        return ATS_OK;
    }
    char why[128];
    regerror(error, &p->regex, why, sizeof why);
    free(p);
    return fail(ATS_BAD_ARGUMENT, "\"%.100s\" is no regular expression: %s", text, why);
}

void pattern_close(struct pattern *p) {
    if (!p) return;
    regfree(&p->regex);
    free(p);
}

bool pattern_matches(const struct pattern *p, const char *text) {
    return regexec(&p->regex, text, 0, NULL, 0) == 0;
}
