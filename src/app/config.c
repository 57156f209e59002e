/* Values of flags from the environment and from config.ini. */
#include "app/flags.h"

#include "base/file.h"

#include <stdlib.h>
#include <string.h>

/* ---------------------------------------------------------------------------------- environment */

ats_status flags_read_env(struct flags *f) {
    for (int id = 0; id < N_FLAGS; id++) {
        const struct flag *flag = &flag_table[id];
        if (!(flag->commands & CMD_BIT(f->command)) || flag->only_here) continue;
        const char *name = flag_env_name(&f->arena, flag), *text = getenv(name);
        if (text && *text) TRY(flag_set(f, (enum flag_id)id, text, SOURCE_ENV, name));
        if (!flag->llama_env) continue;
        name = arena_printf(&f->arena, "LLAMA_ARG_%s", flag->llama_env);
        text = getenv(name);
        if (text && *text) TRY(flag_set(f, (enum flag_id)id, text, SOURCE_LLAMA_ENV, name));
    }
    return ATS_OK;
}

/* ------------------------------------------------------------------------------------------ INI */

struct ini {
    struct flags *flags;
    const char *file;
    int line;
    bool applies;            /* the section is for this command */
    enum command_id section; /* N_COMMANDS: for all */
};

static char *trim(char *s) {
    while (*s == ' ' || *s == '\t' || *s == '\r')
        s++;
    size_t n = strlen(s);
    while (n && strchr(" \t\r", s[n - 1]))
        s[--n] = 0;
    return s;
}

MUST_CHECK static ats_status ini_section(struct ini *ini, char *text) {
    size_t n = strlen(text);
    if (n < 2 || text[n - 1] != ']')
        return fail(ATS_BAD_ARGUMENT, "%s, line %d: a section's \"]\" is missing", ini->file,
                    ini->line);
    text[n - 1] = 0;
    const char *name = trim(text + 1);
    ini->section = !strcmp(name, "*") ? N_COMMANDS : command_find(name);
    if (ini->section == N_COMMANDS && strcmp(name, "*") != 0) {
        const char *meant = command_suggest(name);
        return fail(ATS_BAD_ARGUMENT, "%s, line %d: there is no command \"%s\"%s%s%s", ini->file,
                    ini->line, name, meant ? "; did you mean " : "", meant ? meant : "",
                    meant ? "?" : "");
    }
    ini->applies = ini->section == N_COMMANDS || ini->section == ini->flags->command;
    return ATS_OK;
}

/* True if the section's command (any, for "*") has the flag and takes it from a file. */
static bool ini_knows(const struct ini *ini, const char *name) {
    for (int c = 0; c < N_COMMANDS; c++) {
        if (ini->section != N_COMMANDS && (int)ini->section != c) continue;
        enum flag_id id = flag_find((enum command_id)c, name, strlen(name));
        if (id != N_FLAGS && !flag_table[id].only_here) return true;
    }
    return false;
}

MUST_CHECK static ats_status ini_value(struct ini *ini, char *text) {
    struct flags *f = ini->flags;
    char *equals = strchr(text, '=');
    if (!equals)
        return fail(ATS_BAD_ARGUMENT, "%s, line %d: \"key = value\" is expected", ini->file,
                    ini->line);
    *equals = 0;
    char *key = trim(text), *value = trim(equals + 1);
    size_t n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') { /* keeps blanks at the ends */
        value[n - 1] = 0;
        value++;
    }
    key += strspn(key, "-");
    const char *name = arena_printf(&f->arena, "--%s", key);
    if (!ini_knows(ini, name)) {
        enum command_id c = ini->section == N_COMMANDS ? f->command : ini->section;
        const char *meant = flag_suggest(c, name);
        return fail(ATS_BAD_ARGUMENT, "%s, line %d: there is no key \"%s\" here%s%s%s", ini->file,
                    ini->line, key, meant ? "; did you mean " : "", meant ? meant + 2 : "",
                    meant ? "?" : "");
    }
    enum flag_id id = flag_find(f->command, name, strlen(name));
    if (!ini->applies || id == N_FLAGS || flag_table[id].only_here) return ATS_OK;
    const char *where = arena_printf(&f->arena, "%s, line %d, %s", ini->file, ini->line, key);
    return flag_set(f, id, value, ini->section == N_COMMANDS ? SOURCE_INI_ALL : SOURCE_INI_COMMAND,
                    where);
}

ats_status flags_read_ini(struct flags *f, const char *name, const char *text) {
    struct ini ini = {f, name, 0, true, N_COMMANDS};
    char *copy = arena_strdup(&f->arena, text);
    for (char *line = copy; line;) {
        char *next = strchr(line, '\n');
        if (next) *next++ = 0;
        ini.line++;
        line = trim(line);
        if (*line == '[')
            TRY(ini_section(&ini, line));
        else if (*line && *line != '#' && *line != ';')
            TRY(ini_value(&ini, line));
        line = next;
    }
    return ATS_OK;
}

ats_status flags_read_config(struct flags *f) {
    char *dir, *data;
    size_t n;
    if (dir_path(DIR_CONFIG, false, &dir) != ATS_OK) return ATS_OK; /* no home: no configuration */
    const char *path = arena_printf(&f->arena, "%s/config.ini", dir);
    free(dir);
    if (!file_exists(path)) return ATS_OK;
    TRY(file_read(path, 1 << 20, &data, &n));
    ats_status status = strlen(data) == n
                            ? flags_read_ini(f, path, data)
                            : fail(ATS_BAD_ARGUMENT, "%s: holds a NUL character", path);
    free(data);
    return status;
}
