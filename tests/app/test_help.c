#include "app/help.h"
#include "support.h"

#include <stdio.h>
#include <sys/wait.h>

typedef void text_fn(struct buf *out);

/* True if the flag's name stands in the text with nothing that continues it around it. */
static bool has_name(const struct buf *text, const char *name) {
    size_t n = strlen(name);
    for (const char *p = text->data; (p = strstr(p, name)); p += n) {
        char before = p > text->data ? p[-1] : ' ', after = p[n];
        bool continues = (after >= 'a' && after <= 'z') || after == '-';
        if (before != '-' && !continues) return true;
    }
    return false;
}

static void help_of_a_command_lists_all_its_flags_and_no_hidden_one(void **state) {
    (void)state;
    for (int c = 0; c < N_COMMANDS; c++) {
        struct buf text = {0};
        help_command(&text, (enum command_id)c, 80);
        for (int i = 0; i < N_FLAGS; i++) {
            const struct flag *flag = &flag_table[i];
            bool shown = (flag->commands & CMD_BIT(c)) && !flag->hidden;
            for (int k = 0; k < 4 && flag->names[k]; k++) {
                if (shown && !has_name(&text, flag->names[k]))
                    fail_msg("%s --help lacks %s", commands[c].name, flag->names[k]);
                if (flag->hidden && has_name(&text, flag->names[k]))
                    fail_msg("%s --help shows %s", commands[c].name, flag->names[k]);
            }
        }
        assert_non_null(strstr(text.data, "Examples:\n  atsinfer "));
        buf_free(&text);
    }
}

static void help_lines_fit_the_terminal(void **state) {
    (void)state;
    struct buf text = {0};
    help_command(&text, CMD_RUN, 80);
    const char *end = strstr(text.data, "\nExamples:"); /* commands are not broken */
    for (const char *p = text.data; p < end;) {
        size_t n = strcspn(p, "\n");
        if (n > 80) fail_msg("%zu columns: %.*s", n, (int)n, p);
        p += n + 1;
    }
    buf_free(&text);
}

static void help_of_the_program_lists_all_commands(void **state) {
    (void)state;
    struct buf text = {0};
    help_program(&text, 80, true);
    for (int c = 0; c < N_COMMANDS; c++) {
        char line[64];
        snprintf(line, sizeof line, "\n  %s ", commands[c].name);
        assert_non_null(strstr(text.data, line));
    }
    buf_free(&text);
}

/* roff writes a dash as \-. */
static void man_name(char *out, const char *name) {
    for (; *name; name++) {
        if (*name == '-') *out++ = '\\';
        *out++ = *name;
    }
    *out = 0;
}

static void the_manual_page_has_all_flags_and_commands(void **state) {
    (void)state;
    struct buf text = {0};
    help_man(&text, "1.2.3");
    assert_non_null(strstr(text.data, "1.2.3"));
    for (int c = 0; c < N_COMMANDS; c++)
        assert_non_null(strstr(text.data, commands[c].name));
    for (int i = 0; i < N_FLAGS; i++) {
        char name[100], bold[120];
        for (int k = 0; k < 4 && flag_table[i].names[k]; k++) {
            man_name(name, flag_table[i].names[k]);
            snprintf(bold, sizeof bold, "\\fB%s\\fR", name);
            assert_true((strstr(text.data, bold) == NULL) == flag_table[i].hidden);
        }
    }
    buf_free(&text);
}

/* Feeds the text to a command; its exit status, or -1. */
static int feed(const char *command, const struct buf *text) {
    FILE *pipe = popen(command, "w");
    assert_non_null(pipe);
    fwrite(text->data, 1, text->len, pipe);
    int status = pclose(pipe);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static bool have(const char *program) {
    char command[100];
    snprintf(command, sizeof command, "command -v %s >/dev/null 2>&1", program);
    return system(command) == 0;
}

static void check_script(const char *shell, text_fn *make) {
    struct buf text = {0};
    char command[100];
    make(&text);
    for (int c = 0; c < N_COMMANDS; c++)
        assert_non_null(strstr(text.data, commands[c].name));
    assert_null(strstr(text.data, "no-fusion"));
    if (!have(shell)) {
        buf_free(&text);
        print_message("%s is not installed: syntax not checked\n", shell);
        skip();
    }
    snprintf(command, sizeof command, "%s -n%s", shell, strcmp(shell, "fish") ? "" : " /dev/stdin");
    assert_int_equal(feed(command, &text), 0);
    buf_free(&text);
}

static void bash_accepts_its_completion_script(void **state) {
    (void)state;
    check_script("bash", help_completion_bash);
}

static void zsh_accepts_its_completion_script(void **state) {
    (void)state;
    check_script("zsh", help_completion_zsh);
}

static void fish_accepts_its_completion_script(void **state) {
    (void)state;
    check_script("fish", help_completion_fish);
}

/* What bash offers for the words so far. */
static void completes(const char *words, const char *expected) {
    struct buf script = {0};
    help_completion_bash(&script);
    buf_printf(&script,
               "\nCOMP_WORDS=(%s); COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _atsinfer\n"
               "[[ \" ${COMPREPLY[*]} \" == *' %s '* ]]\n",
               words, expected);
    if (feed("bash", &script) != 0) fail_msg("\"%s\" does not offer %s", words, expected);
    buf_free(&script);
}

static void bash_completion_offers_commands_flags_and_choices(void **state) {
    (void)state;
    if (!have("bash")) {
        print_message("bash is not installed\n");
        skip();
    }
    completes("atsinfer per", "perplexity");
    completes("atsinfer chat --ctx", "--ctx-size");
    completes("atsinfer run -ctk q", "q8_0");
    completes("atsinfer bench -o js", "jsonl");
    completes("atsinfer completion f", "fish");
}

static void groff_accepts_the_manual_page(void **state) {
    (void)state;
    if (!have("groff")) {
        print_message("groff is not installed: the page is not checked\n");
        skip();
    }
    struct buf text = {0};
    help_man(&text, "1.0");
    assert_int_equal(feed("groff -man -ww -Tutf8 -z 2>&1 | { ! grep -q .; }", &text), 0);
    buf_free(&text);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(help_of_a_command_lists_all_its_flags_and_no_hidden_one),
        cmocka_unit_test(help_lines_fit_the_terminal),
        cmocka_unit_test(help_of_the_program_lists_all_commands),
        cmocka_unit_test(the_manual_page_has_all_flags_and_commands),
        cmocka_unit_test(bash_accepts_its_completion_script),
        cmocka_unit_test(zsh_accepts_its_completion_script),
        cmocka_unit_test(fish_accepts_its_completion_script),
        cmocka_unit_test(bash_completion_offers_commands_flags_and_choices),
        cmocka_unit_test(groff_accepts_the_manual_page),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
