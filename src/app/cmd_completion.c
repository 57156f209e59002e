/* Completion scripts for bash, zsh and fish, written from the flag table. */
#include "app/cmd.h"
#include "app/help.h"

#include <string.h>

/* Names of a command's visible flags, separated by blanks. */
static void add_names(struct buf *out, int id) {
    bool first = true;
    for (int i = 0; i < N_FLAGS; i++) {
        const struct flag *flag = &flag_table[i];
        if (!(flag->commands & CMD_BIT(id)) || flag->hidden) continue;
        for (size_t k = 0; k < COUNT_OF(flag->names) && flag->names[k]; k++) {
            buf_printf(out, "%s%s", first ? "" : " ", flag->names[k]);
            first = false;
        }
    }
}

static void add_commands(struct buf *out) {
    for (int i = 0; i < N_COMMANDS; i++) {
        buf_printf(out, "%s%s", i ? " " : "", commands[i].name);
        if (commands[i].alias) buf_printf(out, " %s", commands[i].alias);
    }
}

/* "a|b" as "a b" */
static void add_choices(struct buf *out, const char *choices) {
    for (const char *p = choices; *p; p++)
        buf_add_char(out, *p == '|' ? ' ' : *p);
}

/* Pattern of a case branch for a command: "run|chat". */
static void add_pattern(struct buf *out, int id) {
    buf_add_str(out, commands[id].name);
    if (commands[id].alias) buf_printf(out, "|%s", commands[id].alias);
}

/* ----------------------------------------------------------------------------------------- bash */

/* Branches "COMMAND FLAG)" for values of flags: choices, file names, anything. */
static void add_bash_values(struct buf *out, int id) {
    for (int i = 0; i < N_FLAGS; i++) {
        const struct flag *flag = &flag_table[i];
        if (!(flag->commands & CMD_BIT(id)) || flag->hidden || flag->kind == FLAG_SWITCH) continue;
        buf_add_str(out, "        ");
        for (size_t k = 0; k < COUNT_OF(flag->names) && flag->names[k]; k++)
            buf_printf(out, "%s%s", k ? "|" : "", flag->names[k]);
        buf_add_str(out, ") ");
        if (flag->choices) {
            buf_add_str(out, "COMPREPLY=($(compgen -W '");
            add_choices(out, flag->choices);
            buf_add_str(out, "' -- \"$cur\"))");
        } else if (flag->takes_file) {
            buf_add_str(out, "compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))");
        } else {
            buf_add_str(out, "COMPREPLY=()");
        }
        buf_add_str(out, "; return ;;\n");
    }
}

static void add_bash_arguments(struct buf *out, int id) {
    if (id == CMD_COMPLETION)
        buf_add_str(out, "      COMPREPLY=($(compgen -W 'bash zsh fish' -- \"$cur\"))\n");
    else if (id == CMD_HELP)
        buf_add_str(out, "      COMPREPLY=($(compgen -W \"$commands\" -- \"$cur\"))\n");
    else if (commands[id].positional)
        buf_add_str(out, "      compopt -o filenames; COMPREPLY=($(compgen -f -- \"$cur\"))\n");
}

void help_completion_bash(struct buf *out) {
    buf_add_str(out, "# bash completion for atsinfer, printed by: atsinfer completion bash\n"
                     "_atsinfer() {\n"
                     "  local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD-1]}\n"
                     "  local commands='");
    add_commands(out);
    buf_add_str(out, "'\n  COMPREPLY=()\n"
                     "  if ((COMP_CWORD == 1)); then\n"
                     "    COMPREPLY=($(compgen -W \"$commands --help --version\" -- \"$cur\"))\n"
                     "    return\n  fi\n"
                     "  case ${COMP_WORDS[1]} in\n");
    for (int id = 0; id < N_COMMANDS; id++) {
        buf_add_str(out, "    ");
        add_pattern(out, id);
        buf_add_str(out, ")\n      case $prev in\n");
        add_bash_values(out, id);
        buf_add_str(out, "        *) ;;\n      esac\n      if [[ $cur == -* ]]; then\n"
                         "        COMPREPLY=($(compgen -W '");
        add_names(out, id);
        buf_add_str(out, "' -- \"$cur\"))\n        return\n      fi\n");
        add_bash_arguments(out, id);
        buf_add_str(out, "      ;;\n");
    }
    buf_add_str(out, "  esac\n}\ncomplete -F _atsinfer atsinfer\n");
}

/* ------------------------------------------------------------------------------------------ zsh */

/* Text inside single quotes and an _arguments specification. */
static void add_zsh_text(struct buf *out, const char *text) {
    for (; *text; text++) {
        if (*text == '\'')
            buf_add_str(out, "'\\''");
        else if (strchr("[]:\\", *text))
            buf_printf(out, "\\%c", *text);
        else
            buf_add_char(out, *text);
    }
}

static void add_zsh_flag(struct buf *out, const struct flag *flag) {
    bool many = flag->kind == FLAG_TEXTS;
    for (size_t k = 0; k < COUNT_OF(flag->names) && flag->names[k]; k++) {
        buf_printf(out, "        '%s%s[", many ? "*" : "", flag->names[k]);
        add_zsh_text(out, flag->help);
        buf_add_str(out, "]");
        if (flag->value) {
            buf_add_str(out, ":");
            add_zsh_text(out, flag->value);
            buf_add_str(out, ":");
            if (flag->choices) {
                buf_add_str(out, "(");
                add_choices(out, flag->choices);
                buf_add_str(out, ")");
            } else if (flag->takes_file) {
                buf_add_str(out, "_files");
            }
        }
        buf_add_str(out, "' \\\n");
    }
}

void help_completion_zsh(struct buf *out) {
    buf_add_str(out, "#compdef atsinfer\n"
                     "# zsh completion for atsinfer, printed by: atsinfer completion zsh\n"
                     "_atsinfer() {\n  local -a commands\n  commands=(\n");
    for (int id = 0; id < N_COMMANDS; id++) {
        buf_printf(out, "    '%s:", commands[id].name);
        add_zsh_text(out, commands[id].summary);
        buf_add_str(out, "'\n");
    }
    buf_add_str(out, "  )\n  if (( CURRENT == 2 )); then\n"
                     "    _describe command commands\n    return\n  fi\n"
                     "  local command=$words[2]\n  shift words\n  (( CURRENT-- ))\n"
                     "  case $command in\n");
    for (int id = 0; id < N_COMMANDS; id++) {
        buf_add_str(out, "    ");
        add_pattern(out, id);
        buf_add_str(out, ")\n      _arguments \\\n");
        for (int i = 0; i < N_FLAGS; i++)
            if ((flag_table[i].commands & CMD_BIT(id)) && !flag_table[i].hidden)
                add_zsh_flag(out, &flag_table[i]);
        if (id == CMD_COMPLETION)
            buf_add_str(out, "        '1:shell:(bash zsh fish)'\n");
        else if (id == CMD_HELP)
            buf_add_str(out, "        '1:command:{_describe command commands}'\n");
        else
            buf_add_str(out,
                        commands[id].positional ? "        '*:file:_files'\n" : "        ':: :'\n");
        buf_add_str(out, "      ;;\n");
    }
    buf_add_str(out, "  esac\n}\nif [ \"$funcstack[1]\" = _atsinfer ]; then _atsinfer \"$@\"; else "
                     "compdef _atsinfer atsinfer; fi\n");
}

/* ----------------------------------------------------------------------------------------- fish */

static void add_fish_text(struct buf *out, const char *text) {
    buf_add_char(out, '\'');
    for (; *text; text++) {
        if (*text == '\'' || *text == '\\') buf_add_char(out, '\\');
        buf_add_char(out, *text);
    }
    buf_add_char(out, '\'');
}

static void add_fish_flag(struct buf *out, int id, const struct flag *flag) {
    buf_add_str(out, "complete -c atsinfer -n '__fish_seen_subcommand_from ");
    buf_printf(out, "%s%s%s'", commands[id].name, commands[id].alias ? " " : "",
               commands[id].alias ? commands[id].alias : "");
    for (size_t k = 0; k < COUNT_OF(flag->names) && flag->names[k]; k++) {
        const char *name = flag->names[k];
        if (name[1] == '-')
            buf_printf(out, " -l %s", name + 2);
        else /* of one letter, or an old-style long one */
            buf_printf(out, " -%c %s", name[2] ? 'o' : 's', name + 1);
    }
    if (flag->choices) {
        buf_add_str(out, " -x -a '");
        add_choices(out, flag->choices);
        buf_add_str(out, "'");
    } else if (flag->takes_file) {
        buf_add_str(out, " -r -F");
    } else if (flag->value) {
        buf_add_str(out, " -x");
    }
    buf_add_str(out, " -d ");
    add_fish_text(out, flag->help);
    buf_add_char(out, '\n');
}

void help_completion_fish(struct buf *out) {
    buf_add_str(out, "# fish completion for atsinfer, printed by: atsinfer completion fish\n");
    for (int id = 0; id < N_COMMANDS; id++) {
        buf_printf(out, "complete -c atsinfer -f -n __fish_use_subcommand -a %s -d ",
                   commands[id].name);
        add_fish_text(out, commands[id].summary);
        buf_add_char(out, '\n');
    }
    buf_add_str(out, "complete -c atsinfer -f -n '__fish_seen_subcommand_from completion' "
                     "-a 'bash zsh fish'\n");
    for (int id = 0; id < N_COMMANDS; id++)
        for (int i = 0; i < N_FLAGS; i++)
            if ((flag_table[i].commands & CMD_BIT(id)) && !flag_table[i].hidden)
                add_fish_flag(out, id, &flag_table[i]);
}

/* -------------------------------------------------------------------------------------- command */

int cmd_completion(struct app *app) {
    struct buf out = {0};
    const char *shell = app->flags.n_positionals ? app->flags.positionals[0] : "";
    if (!strcmp(shell, "bash"))
        help_completion_bash(&out);
    else if (!strcmp(shell, "zsh"))
        help_completion_zsh(&out);
    else if (!strcmp(shell, "fish"))
        help_completion_fish(&out);
    else
        return app_fail(app, fail(ATS_BAD_ARGUMENT,
                                  *shell ? "completion: there is no script for \"%s\", only for "
                                           "bash, zsh and fish"
                                         : "completion%s: name a shell: bash, zsh or fish",
                                  shell));
    int code = app_print(app, out.data, out.len);
    buf_free(&out);
    return code;
}
