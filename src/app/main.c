/* The program: finds the command, reads its flags from everywhere, and runs it. */
#include "app/cmd.h"
#include "app/help.h"

#include <fcntl.h>
#include <locale.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void on_log(void *user, int level, const char *text) {
    struct app *app = user;
    if (level == 0 || (level == 1 && !app->quiet))
        app_warn(app, "%s", text);
    else if (app->verbose)
        app_note(app, "%s", text);
}

static int print_help(struct app *app, enum command_id id, bool whole) {
    struct buf text = {0};
    int width = app->term.out_tty ? min_int(term_width(STDOUT_FILENO), 110) : 100;
    if (id == N_COMMANDS)
        help_program(&text, width, whole);
    else
        help_command(&text, id, width);
    int code = app_print(app, text.data, text.len);
    buf_free(&text);
    return code;
}

static int cmd_help(struct app *app) {
    if (app->flags.n_positionals == 0) return print_help(app, N_COMMANDS, true);
    const char *name = app->flags.positionals[0];
    enum command_id id = command_find(name);
    if (id != N_COMMANDS) return print_help(app, id, true);
    return app_fail(app, fail(ATS_BAD_ARGUMENT, "there is no command \"%s\"", name));
}

static int cmd_version(struct app *app) {
    if (!app->json) return app_print(app, "atsinfer " ATS_VERSION "\n", strlen(ATS_VERSION) + 10);
    json_t *object = app_json(app);
    json_object_set_new(object, "version", json_string(ATS_VERSION));
    return app_print_json(app, object);
}

static int cmd_man(struct app *app) {
    struct buf text = {0};
    help_man(&text, ATS_VERSION);
    int code = app_print(app, text.data, text.len);
    buf_free(&text);
    return code;
}

static int run_command(struct app *app) {
    switch (app->flags.command) {
    case CMD_RUN:
        return cmd_run(app);
    case CMD_BENCH:
        return cmd_bench(app);
    case CMD_PERPLEXITY:
        return cmd_perplexity(app);
    case CMD_PLAN:
        return cmd_plan(app);
    case CMD_INSPECT:
        return cmd_inspect(app);
    case CMD_TOKENIZE:
        return cmd_tokenize(app);
    case CMD_LOGITS:
        return cmd_logits(app);
    case CMD_SIMULATE:
        return cmd_simulate(app);
    case CMD_PROFILE:
        return cmd_profile(app);
    case CMD_DOCTOR:
        return cmd_doctor(app);
    case CMD_COMPLETION:
        return cmd_completion(app);
    case CMD_MAN:
        return cmd_man(app);
    case CMD_VERSION:
        return cmd_version(app);
    case CMD_HELP:
        return cmd_help(app);
    case N_COMMANDS:
        break;
    }
    return EXIT_USAGE;
}

MUST_CHECK static ats_status read_flags(struct app *app, int argc, char **argv) {
    struct flags *f = &app->flags;
    TRY(flags_parse(f, argc, argv));
    if (flag_on(f, FLAG_HELP)) return ATS_OK;
    /* A broken configuration must not keep anybody from reading the help. */
    if (f->command < CMD_COMPLETION) {
        TRY(flags_read_env(f));
        TRY(flags_read_config(f));
    }
    flags_set_defaults(f);
    app->json = flag_on(f, FLAG_JSON);
    app->quiet = flag_on(f, FLAG_QUIET);
    app->verbose = flag_on(f, FLAG_VERBOSE);
    if (app->quiet) app->term.progress = false;
    return ATS_OK;
}

static int no_command(struct app *app, const char *name) {
    app->flags.command = CMD_HELP;
    const char *meant = command_suggest(name);
    ats_status status;
    if (*name == '-')
        status = fail(ATS_BAD_ARGUMENT,
                      "a command is expected before %s, for instance: atsinfer "
                      "run %s",
                      name, name);
    else if (meant)
        status =
            fail(ATS_BAD_ARGUMENT, "there is no command \"%s\"; did you mean %s?", name, meant);
    else
        status = fail(ATS_BAD_ARGUMENT, "there is no command \"%s\"", name);
    return app_fail(app, status);
}

static int app_main(struct app *app, int argc, char **argv) {
    if (argc < 2) return print_help(app, N_COMMANDS, false);
    const char *name = argv[1];
    if (!strcmp(name, "--help") || !strcmp(name, "-h")) name = "help";
    if (!strcmp(name, "--version") || !strcmp(name, "-V")) name = "version";
    enum command_id id = command_find(name);
    if (id == N_COMMANDS) return no_command(app, name);
    flags_init(&app->flags, id);
    ats_status status = read_flags(app, argc - 2, argv + 2);
    if (status != ATS_OK) return app_fail(app, status);
    if (flag_on(&app->flags, FLAG_HELP))
        return print_help(app, id == CMD_HELP ? N_COMMANDS : id, true);
    ats_log_set(on_log, app, app->verbose ? 3 : 1);
    int code = run_command(app);
    ats_log_set(NULL, NULL, 0);
    return code;
}

/* A stream closed by the caller must not become the number of a file that we open; writing to the
 * stand-in fails, as it should. */
static void hold_streams(void) {
    for (int fd = 0; fd <= 2; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", O_RDONLY) < 0) exit(EXIT_FAILED);
}

int main(int argc, char **argv) {
    struct app app = {0};
    hold_streams();
    /* Character widths for line editing; numbers stay as in C. */
    if (!setlocale(LC_CTYPE, "") || MB_CUR_MAX < 2) setlocale(LC_CTYPE, "C.UTF-8");
    term_init(&app.term);
    int code = app_main(&app, argc, argv);
    flags_free(&app.flags);
    arena_free(&app.arena);
    return code;
}
