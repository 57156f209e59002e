#include "app/flags.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* -------------------------------------------------------------------------------------- numbers */

bool parse_i64(const char *text, int64_t *out) {
    const char *digits = text + (*text == '-' || *text == '+');
    if (*digits < '0' || *digits > '9') return false; /* strtoll would skip blanks */
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    *out = v;
    return *end == 0 && errno == 0;
}

bool parse_u64(const char *text, uint64_t *out) {
    if (*text < '0' || *text > '9') return false; /* strtoull would take "-1" */
    char *end;
    errno = 0;
    unsigned long long v = strtoull(text, &end, 10);
    *out = v;
    return *end == 0 && errno == 0;
}

bool parse_real(const char *text, double *out) {
    /* Decimal only: strtod also takes blanks, "inf", "nan" and hexadecimal. */
    if (!*text || strspn(text, "0123456789+-.eE") != strlen(text)) return false;
    char *end;
    *out = strtod(text, &end);
    return end != text && *end == 0 && isfinite(*out);
}

bool parse_switch(const char *text, bool *out) {
    static const char *const on[] = {"1", "true", "on", "yes"};
    static const char *const off[] = {"0", "false", "off", "no"};
    for (size_t i = 0; i < COUNT_OF(on); i++) {
        *out = !strcasecmp(text, on[i]);
        if (*out || !strcasecmp(text, off[i])) return true;
    }
    return false;
}

/* ------------------------------------------------------------------------------- facts of the
 * table */

const char *flag_long_name(const struct flag *flag) {
    for (size_t i = 0; i < COUNT_OF(flag->names) && flag->names[i]; i++)
        if (flag->names[i][0] == '-' && flag->names[i][1] == '-') return flag->names[i];
    return flag->names[0];
}

enum flag_id flag_find(enum command_id command, const char *name, size_t n) {
    for (int id = 0; id < N_FLAGS; id++) {
        const struct flag *flag = &flag_table[id];
        if (!(flag->commands & CMD_BIT(command))) continue;
        for (size_t i = 0; i < COUNT_OF(flag->names) && flag->names[i]; i++)
            if (strlen(flag->names[i]) == n && !memcmp(flag->names[i], name, n))
                return (enum flag_id)id;
    }
    return N_FLAGS;
}

const char *choice_at(const char *choices, int i, size_t *n) {
    for (const char *p = choices; p;) {
        const char *bar = strchr(p, '|');
        if (i-- == 0) {
            *n = bar ? (size_t)(bar - p) : strlen(p);
            return p;
        }
        p = bar ? bar + 1 : NULL;
    }
    return NULL;
}

const char *flag_range_text(struct arena *a, const struct flag *flag) {
    switch (flag->kind) {
    case FLAG_SWITCH:
        return "on or off";
    case FLAG_INTEGER:
    case FLAG_INTEGERS:
        return arena_printf(
            a, "%s%.0f to %.0f%s",
            flag->kind == FLAG_INTEGERS ? "whole numbers from " : "a whole number from ", flag->min,
            flag->max, flag->kind == FLAG_INTEGERS ? ", separated by commas" : "");
    case FLAG_REAL:
        return arena_printf(a, "a number from %g to %g", flag->min, flag->max);
    case FLAG_SEED:
        return "a whole number from 0 to 18446744073709551615, or -1 for a random one";
    case FLAG_TEXT:
    case FLAG_TEXTS:
        return "a text";
    case FLAG_CHOICE:
    case FLAG_CHOICES:
        break;
    }
    char *text = arena_printf(a, "one of");
    size_t n;
    for (int i = 0; choice_at(flag->choices, i, &n); i++)
        text = arena_printf(a, "%s%s %.*s", text, i ? "," : "", (int)n,
                            choice_at(flag->choices, i, &n));
    return text;
}

const char *flag_env_name(struct arena *a, const struct flag *flag) {
    char *name = arena_printf(a, "ATSINFER_%s", flag_long_name(flag) + 2);
    for (char *p = name; *p; p++) {
        if (*p == '-') *p = '_';
        if (*p >= 'a' && *p <= 'z') *p = (char)(*p - 'a' + 'A');
    }
    return name;
}

enum command_id command_find(const char *name) {
    for (int i = 0; i < N_COMMANDS; i++)
        if (!strcmp(commands[i].name, name) ||
            (commands[i].alias && !strcmp(commands[i].alias, name)))
            return (enum command_id)i;
    return N_COMMANDS;
}

/* ---------------------------------------------------------------------------------- suggestions */

enum { MAX_NAME = 40 };

/* Edits (insert, delete, replace, swap of neighbours) from a to b; MAX_NAME if either is longer. */
static int edit_distance(const char *a, const char *b) {
    int d[MAX_NAME + 1][MAX_NAME + 1];
    size_t na = strlen(a), nb = strlen(b);
    if (na > MAX_NAME || nb > MAX_NAME) return MAX_NAME;
    for (size_t i = 0; i <= na; i++)
        d[i][0] = (int)i;
    for (size_t j = 0; j <= nb; j++)
        d[0][j] = (int)j;
    for (size_t i = 1; i <= na; i++) {
        for (size_t j = 1; j <= nb; j++) {
            int best = min_int(d[i - 1][j], d[i][j - 1]) + 1;
            best = min_int(best, d[i - 1][j - 1] + (a[i - 1] != b[j - 1]));
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
                best = min_int(best, d[i - 2][j - 2] + 1);
            d[i][j] = best;
        }
    }
    return d[na][nb];
}

struct nearest {
    const char *name;
    int distance;
};

static void nearest_try(struct nearest *best, const char *given, const char *name) {
    size_t n = strlen(given);
    if (n < 3) return; /* every letter is near every other */
    int d = edit_distance(given, name), limit = max_int(1, (int)n / 3);
    /* A cut-short name is also a guess: --temper for --temperature. */
    if (n >= 4 && strlen(name) > n && !strncmp(given, name, n)) d = min_int(d, 1);
    if (d <= min_int(limit, 3) && d < best->distance) *best = (struct nearest){name, d};
}

const char *flag_suggest(enum command_id command, const char *name) {
    struct nearest best = {NULL, MAX_NAME};
    for (int id = 0; id < N_FLAGS; id++) {
        const struct flag *flag = &flag_table[id];
        if (!(flag->commands & CMD_BIT(command)) || flag->hidden) continue;
        for (size_t i = 0; i < COUNT_OF(flag->names) && flag->names[i]; i++) {
            nearest_try(&best, name, flag->names[i]);
            /* "-temp" and "temp" for "--temp" */
            if (name[0] == '-' && name[1] != '-' && name[1] && flag->names[i][1] == '-' &&
                !strcmp(name + 1, flag->names[i] + 2))
                return flag->names[i];
        }
    }
    return best.name;
}

const char *command_suggest(const char *name) {
    struct nearest best = {NULL, MAX_NAME};
    for (int i = 0; i < N_COMMANDS; i++) {
        nearest_try(&best, name, commands[i].name);
        if (commands[i].alias) nearest_try(&best, name, commands[i].alias);
    }
    return best.name;
}

/* --------------------------------------------------------------------------------------- values */

void flags_init(struct flags *f, enum command_id command) {
    memset(f, 0, sizeof *f);
    f->command = command;
}

void flags_free(struct flags *f) {
    for (int i = 0; i < N_FLAGS; i++) {
        free(f->values[i].texts);
        free(f->values[i].integers);
    }
    free(f->positionals);
    arena_free(&f->arena);
}

static bool choice_find(const char *choices, const char *text, size_t n_text, int64_t *out) {
    size_t n;
    for (int i = 0; choice_at(choices, i, &n); i++) {
        if (n == n_text && !strncasecmp(choice_at(choices, i, &n), text, n)) {
            *out = i;
            return true;
        }
    }
    return false;
}

static bool parse_item(const struct flag *flag, const char *text, int64_t *out) {
    if (flag->kind == FLAG_CHOICES) return choice_find(flag->choices, text, strlen(text), out);
    return parse_i64(text, out) && (double)*out >= flag->min && (double)*out <= flag->max;
}

/* Adds the items of "a,b,c"; false if one is not allowed or empty. */
static bool parse_items(struct flags *f, const struct flag *flag, const char *text,
                        struct flag_value *v) {
    char *copy = arena_strdup(&f->arena, text);
    for (char *item = copy; item;) {
        char *comma = strchr(item, ',');
        if (comma) *comma = 0;
        int64_t number;
        if (!parse_item(flag, item, &number)) return false;
        GROW(v->integers, v->n, v->cap, 1);
        v->integers[v->n++] = number;
        item = comma ? comma + 1 : NULL;
    }
    return true;
}

static bool parse_value(struct flags *f, const struct flag *flag, const char *text,
                        struct flag_value *v) {
    bool on = false;
    uint64_t seed = 0;
    v->text = arena_strdup(&f->arena, text);
    switch (flag->kind) {
    case FLAG_SWITCH:
        if (!parse_switch(text, &on)) return false;
        v->integer = on;
        return true;
    case FLAG_INTEGER:
        return parse_item(flag, text, &v->integer);
    case FLAG_REAL:
        return parse_real(text, &v->real) && v->real >= flag->min && v->real <= flag->max;
    case FLAG_SEED:
        if (strcmp(text, "-1") != 0 && !parse_u64(text, &seed)) return false;
        v->integer = (int64_t)seed;
        return true;
    case FLAG_CHOICE:
        return choice_find(flag->choices, text, strlen(text), &v->integer);
    case FLAG_TEXTS:
        GROW(v->texts, v->n, v->cap, 1);
        v->texts[v->n++] = v->text;
        return true;
    case FLAG_INTEGERS:
    case FLAG_CHOICES:
        return parse_items(f, flag, text, v);
    case FLAG_TEXT:
        return true;
    }
    return false;
}

ats_status flag_set(struct flags *f, enum flag_id id, const char *text, enum flag_source source,
                    const char *where) {
    const struct flag *flag = &flag_table[id];
    struct flag_value *v = &f->values[id];
    if (v->source > source) return ATS_OK;
    if (v->source < source) v->n = 0; /* a list of a lower source is replaced, not continued */
    v->source = source;
    if (parse_value(f, flag, text, v)) return ATS_OK;
    return fail(ATS_BAD_ARGUMENT, "%s: \"%s\" is not valid; it takes %s", where, text,
                flag_range_text(&f->arena, flag));
}

void flags_set_defaults(struct flags *f) {
    for (int id = 0; id < N_FLAGS; id++) {
        const struct flag *flag = &flag_table[id];
        if (!flag->default_value || f->values[id].source != SOURCE_NONE) continue;
        ats_status status =
            flag_set(f, (enum flag_id)id, flag->default_value, SOURCE_DEFAULT, flag->names[0]);
        REQUIRE(status == ATS_OK);
    }
}

bool flag_given(const struct flags *f, enum flag_id id) {
    return f->values[id].source > SOURCE_DEFAULT;
}

bool flag_on(const struct flags *f, enum flag_id id) {
    return f->values[id].integer != 0;
}

int flag_int(const struct flags *f, enum flag_id id) {
    return (int)f->values[id].integer;
}

const char *flag_text(const struct flags *f, enum flag_id id) {
    return f->values[id].text;
}

/* ------------------------------------------------------------------------------- command line */

MUST_CHECK static ats_status unknown_flag(const struct flags *f, const char *name) {
    const char *command = commands[f->command].name;
    const char *meant = flag_suggest(f->command, name);
    if (meant)
        return fail(ATS_BAD_ARGUMENT, "%s has no flag %s; did you mean %s?", command, name, meant);
    char others[200] = "";
    for (int i = 0; i < N_COMMANDS; i++) {
        enum flag_id id = flag_find((enum command_id)i, name, strlen(name));
        if (id == N_FLAGS || flag_table[id].hidden) continue;
        size_t n = strlen(others);
        if (n + 20 < sizeof others) {
            if (n) strcat(others, ", ");
            strcat(others, commands[i].name);
        }
    }
    if (others[0])
        return fail(ATS_BAD_ARGUMENT, "%s has no flag %s (it belongs to: %s)", command, name,
                    others);
    return fail(ATS_BAD_ARGUMENT, "%s has no flag %s", command, name);
}

MUST_CHECK static ats_status add_positional(struct flags *f, const char *text) {
    const struct command *c = &commands[f->command];
    if (c->n_positional >= 0 && f->n_positionals >= (size_t)c->n_positional) {
        if (c->n_positional == 0)
            return fail(ATS_BAD_ARGUMENT, "%s takes no argument \"%s\"", c->name, text);
        return fail(ATS_BAD_ARGUMENT, "%s: \"%s\" is one argument too many (it takes %s)", c->name,
                    text, c->positional);
    }
    GROW(f->positionals, f->n_positionals, f->cap_positionals, 1);
    f->positionals[f->n_positionals++] = text;
    return ATS_OK;
}

/* One flag at argv[i]; *used: how many arguments it took. */
MUST_CHECK static ats_status parse_flag(struct flags *f, int argc, char **argv, int *used) {
    char *arg = argv[0], *equals = arg[1] == '-' ? strchr(arg, '=') : NULL;
    size_t n_name = equals ? (size_t)(equals - arg) : strlen(arg);
    char *name = arena_strndup(&f->arena, arg, n_name);
    enum flag_id id = flag_find(f->command, arg, n_name);
    if (id == N_FLAGS) return unknown_flag(f, name);
    *used = 1;
    if (equals) return flag_set(f, id, equals + 1, SOURCE_COMMAND_LINE, name);
    if (flag_table[id].kind == FLAG_SWITCH) return flag_set(f, id, "1", SOURCE_COMMAND_LINE, name);
    if (argc < 2)
        return fail(ATS_BAD_ARGUMENT, "%s needs a value: %s", name,
                    flag_range_text(&f->arena, &flag_table[id]));
    *used = 2;
    return flag_set(f, id, argv[1], SOURCE_COMMAND_LINE, name);
}

ats_status flags_parse(struct flags *f, int argc, char **argv) {
    bool flags_end = false;
    for (int i = 0; i < argc;) {
        char *arg = argv[i];
        if (!flags_end && !strcmp(arg, "--")) {
            flags_end = true;
            i++;
        } else if (flags_end || arg[0] != '-' || arg[1] == 0) {
            TRY(add_positional(f, arg));
            i++;
        } else {
            int used = 0;
            TRY(parse_flag(f, argc - i, argv + i, &used));
            i += used;
            if (flag_on(f, FLAG_HELP)) return ATS_OK;
        }
    }
    return ATS_OK;
}
