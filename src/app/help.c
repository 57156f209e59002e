#include "app/help.h"

#include <string.h>

/* Bytes of a word that go on a line of `room`: all, or those up to a '|' if it is longer. */
static size_t piece_of(const char *word, size_t n, size_t room) {
    size_t piece = n;
    while (piece > room) {
        do
            piece--;
        while (piece > 0 && word[piece - 1] != '|');
    }
    return piece ? piece : n;
}

/* Words of text from column `indent`, wrapped before `width`; the cursor stands at `column`. */
static void add_wrapped(struct buf *out, const char *text, int column, int indent, int width) {
    bool glued = true; /* to what stands before, by no blank */
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, " ");
        if (width > indent) n = piece_of(p, n, (size_t)(width - indent));
        if (p > text && width > 0 && column + !glued + (int)n > width) {
            buf_printf(out, "\n%*s", indent, "");
            column = indent;
        } else if (!glued) {
            buf_add_char(out, ' ');
            column++;
        }
        buf_add(out, p, n);
        column += (int)n;
        p += n;
        glued = *p != ' ';
        p += strspn(p, " ");
    }
    buf_add_char(out, '\n');
}

/* "-c, --ctx-size N" */
static void add_flag_names(struct buf *out, const struct flag *flag) {
    for (size_t i = 0; i < COUNT_OF(flag->names) && flag->names[i]; i++)
        buf_printf(out, "%s%s", i ? ", " : "", flag->names[i]);
    if (flag->value) buf_printf(out, " %s", flag->value);
}

/* What help says of a flag: sentence, choices or range, default, environment name. */
static void add_flag_text(struct buf *out, const struct flag *flag) {
    struct arena a = {0};
    buf_add_str(out, flag->help);
    if (flag->choices) {
        size_t n;
        buf_add_str(out, " [");
        for (int i = 0; choice_at(flag->choices, i, &n); i++)
            buf_printf(out, "%s%.*s", i ? "|" : "", (int)n, choice_at(flag->choices, i, &n));
        buf_add_str(out, "]");
    } else if (flag->kind == FLAG_REAL) {
        buf_printf(out, " [%g..%g]", flag->min, flag->max);
    } else if (flag->kind == FLAG_INTEGER || flag->kind == FLAG_INTEGERS) {
        buf_printf(out, " [%.0f..%.0f]", flag->min, flag->max);
    }
    if (flag->default_value) buf_printf(out, " (default: %s)", flag->default_value);
    if (!flag->only_here) buf_printf(out, " (env: %s)", flag_env_name(&a, flag));
    arena_free(&a);
}

static void add_flag(struct buf *out, const struct flag *flag, int width) {
    enum { INDENT = 30 };
    struct buf line = {0}, text = {0};
    buf_add_str(&line, "  ");
    add_flag_names(&line, flag);
    add_flag_text(&text, flag);
    if (line.len > INDENT - 2) {
        buf_printf(&line, "\n%*s", INDENT, "");
        buf_add_str(out, line.data);
    } else {
        buf_printf(out, "%-*s", INDENT, line.data);
    }
    add_wrapped(out, text.data, INDENT, INDENT, width);
    buf_free(&line);
    buf_free(&text);
}

static void add_usage(struct buf *out, enum command_id id) {
    const struct command *c = &commands[id];
    bool flags = id != CMD_HELP;
    buf_printf(out, "atsinfer %s%s%s%s", c->name, flags ? " [flags]" : "", c->positional ? " " : "",
               c->positional ? c->positional : "");
}

static bool has_group(enum command_id id, int group) {
    for (int i = 0; i < N_FLAGS; i++)
        if ((flag_table[i].commands & CMD_BIT(id)) && (int)flag_table[i].group == group &&
            !flag_table[i].hidden)
            return true;
    return false;
}

void help_command(struct buf *out, enum command_id id, int width) {
    const struct command *c = &commands[id];
    buf_printf(out, "atsinfer %s: %s\n", c->name, c->summary);
    if (c->alias) buf_printf(out, "Also called: atsinfer %s\n", c->alias);
    buf_add_str(out, "\nUsage: ");
    add_usage(out, id);
    buf_add_str(out, "\n\n");
    add_wrapped(out, c->about, 0, 0, width);
    for (int g = 0; g < N_GROUPS; g++) {
        if (!has_group(id, g)) continue;
        buf_printf(out, "\n%s:\n", flag_group_titles[g]);
        for (int i = 0; i < N_FLAGS; i++)
            if ((flag_table[i].commands & CMD_BIT(id)) && (int)flag_table[i].group == g &&
                !flag_table[i].hidden)
                add_flag(out, &flag_table[i], width);
    }
    buf_add_str(out, "\nExamples:\n");
    for (const char *p = c->examples; *p;) {
        size_t n = strcspn(p, "\n");
        buf_printf(out, "  %.*s\n", (int)n, p);
        p += n + (p[n] == '\n');
    }
}

void help_program(struct buf *out, int width, bool whole) {
    buf_add_str(out, "atsinfer: run a GGUF language model on this computer\n\n"
                     "Usage: atsinfer COMMAND [flags]\n\nCommands:\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        buf_printf(out, "  %-12s", commands[i].name);
        add_wrapped(out, commands[i].summary, 14, 14, width);
    }
    buf_add_str(out, "\nStart with:\n"
                     "  atsinfer run -m model.gguf         chat with a model\n"
                     "  atsinfer help run                  all flags of a command\n");
    if (!whole) return;
    buf_add_char(out, '\n');
    add_wrapped(out,
                "Results go to standard output, progress and messages to standard error. A flag "
                "not given is taken from the environment (ATSINFER_NAME, then LLAMA_ARG_NAME), "
                "then from config.ini in the atsinfer directory of the XDG configuration "
                "directory (sections [*] and [COMMAND], keys are long flag names).",
                0, 0, width);
    buf_add_str(out, "\nExit codes: 0 ok, 1 failed, 2 wrong usage, 3 out of memory,\n"
                     "4 model not supported, 130 interrupted.\n");
}

/* ------------------------------------------------------------------------------------------ man */

/* Text for roff: backslashes, hyphens and leading dots or quotes lose their meaning. */
static void add_roff(struct buf *out, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++) {
        bool line_start = out->len == 0 || out->data[out->len - 1] == '\n';
        if (line_start && (text[i] == '.' || text[i] == '\'')) buf_add_str(out, "\\&");
        if (text[i] == '\\')
            buf_add_str(out, "\\e");
        else if (text[i] == '-')
            buf_add_str(out, "\\-");
        else if (text[i] == '"')
            buf_add_str(out, "\\(dq");
        else if (text[i] == '~')
            buf_add_str(out, "\\(ti");
        else if (text[i] == '|')
            buf_add_str(out, "|\\:"); /* a list of choices may be broken there */
        else
            buf_add_char(out, text[i]);
    }
}

static void add_roff_str(struct buf *out, const char *text) {
    add_roff(out, text, strlen(text));
}

static void add_man_flag(struct buf *out, const struct flag *flag) {
    struct buf text = {0};
    buf_add_str(out, ".TP\n\\fB");
    for (size_t i = 0; i < COUNT_OF(flag->names) && flag->names[i]; i++) {
        if (i) buf_add_str(out, "\\fR, \\fB");
        add_roff_str(out, flag->names[i]);
    }
    buf_add_str(out, "\\fR");
    if (flag->value) {
        buf_add_str(out, " \\fI");
        add_roff_str(out, flag->value);
        buf_add_str(out, "\\fR");
    }
    buf_add_char(out, '\n');
    add_flag_text(&text, flag);
    add_roff_str(out, text.data);
    buf_add_char(out, '\n');
    buf_free(&text);
}

static void add_man_command(struct buf *out, enum command_id id) {
    const struct command *c = &commands[id];
    buf_printf(out, ".SS %s%s%s\n\\fB", c->name, c->alias ? ", " : "", c->alias ? c->alias : "");
    add_usage(out, id);
    buf_add_str(out, "\\fR\n.PP\n");
    add_roff_str(out, c->about);
    buf_add_char(out, '\n');
    for (int g = 0; g < N_GROUPS; g++)
        for (int i = 0; i < N_FLAGS; i++)
            if ((flag_table[i].commands & CMD_BIT(id)) && (int)flag_table[i].group == g &&
                !flag_table[i].hidden)
                add_man_flag(out, &flag_table[i]);
}

static void add_man_examples(struct buf *out) {
    buf_add_str(out, ".SH EXAMPLES\n");
    for (int i = 0; i < N_COMMANDS; i++) {
        for (const char *p = commands[i].examples; *p;) {
            size_t n = strcspn(p, "\n");
            buf_add_str(out, ".PP\n.nf\n");
            add_roff(out, p, n);
            buf_add_str(out, "\n.fi\n");
            p += n + (p[n] == '\n');
        }
    }
}

void help_man(struct buf *out, const char *version) {
    buf_printf(out, ".TH ATSINFER 1 \"\" \"atsinfer %s\" \"User Commands\"\n", version);
    buf_add_str(out, ".SH NAME\natsinfer \\- run a GGUF language model on this computer\n"
                     ".SH SYNOPSIS\n\\fBatsinfer\\fR \\fICOMMAND\\fR [\\fIflags\\fR]\n"
                     ".SH DESCRIPTION\n"
                     "Loads a language model from a GGUF file and runs it. Results go to standard "
                     "output, progress and messages to standard error.\n"
                     ".SH COMMANDS\n");
    for (int i = 0; i < N_COMMANDS; i++)
        add_man_command(out, (enum command_id)i);
    buf_add_str(out,
                ".SH CONFIGURATION\n"
                "A flag not given is taken from the environment variable named with it; then, for "
                "flags that llama.cpp has too, from its LLAMA_ARG_NAME; then from\n"
                ".I $XDG_CONFIG_HOME/atsinfer/config.ini\n"
                "(else under\n.IR \\(ti/.config ).\n"
                "Its keys are long flag names without the dashes; the section [*] is for all "
                "commands, [run] for one.\n"
                ".SH ENVIRONMENT\n.TP\nNO_COLOR\nNo colours, if set.\n"
                ".SH EXIT STATUS\n"
                ".TP\n0\nok\n.TP\n1\nfailed\n.TP\n2\nwrong usage\n.TP\n3\nout of memory\n"
                ".TP\n4\nmodel not supported\n.TP\n130\ninterrupted\n");
    add_man_examples(out);
}
