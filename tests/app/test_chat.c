/* The chat on a pseudo-terminal: what is typed and what is seen. */
#include "spawn.h"

#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

struct session {
    pid_t pid;
    int fd;
    struct buf seen; /* all that came */
    size_t mark;     /* expect() looks from here on */
};
static struct session t;

static void start(const char *const *args) {
    struct winsize size = {.ws_row = 24, .ws_col = 200};
    char *argv[32] = {strdup("atsinfer")};
    size_t n = 1;
    for (; *args; args++)
        argv[n++] = strdup(*args);
    buf_clear(&t.seen);
    t.mark = 0;
    t.pid = forkpty(&t.fd, NULL, NULL, &size);
    assert_true(t.pid >= 0);
    if (t.pid == 0) {
        struct termios mode; /* as a terminal of today: it erases whole characters */
        if (tcgetattr(0, &mode) != 0) _exit(97);
        mode.c_iflag |= IUTF8;
        if (tcsetattr(0, TCSANOW, &mode) != 0) _exit(97);
        execv(getenv("ATSINFER_FAKE"), argv);
        _exit(98);
    }
    for (size_t i = 0; i < n; i++)
        free(argv[i]);
}
#define START(...) start((const char *const[]){__VA_ARGS__, NULL})

/* More output; false at the end. A minute without any fails the test. */
static bool more(void) {
    struct pollfd fd = {t.fd, POLLIN, 0};
    char bytes[4096];
    int ready = poll(&fd, 1, 60000);
    if (ready == 0) fail_msg("nothing more comes after:\n%s", buf_str(&t.seen) + t.mark);
    ssize_t n = ready > 0 ? read(t.fd, bytes, sizeof bytes) : -1;
    if (n <= 0) return ready < 0 && errno == EINTR;
    buf_add(&t.seen, bytes, (size_t)n);
    return true;
}

/* Waits until the text comes, and looks behind it from then on. */
static void expect(const char *text) {
    for (;;) {
        const char *found = strstr(buf_str(&t.seen) + t.mark, text);
        if (found) {
            t.mark = (size_t)(found - t.seen.data) + strlen(text);
            return;
        }
        if (!more()) fail_msg("\"%s\" does not come:\n%s", text, buf_str(&t.seen) + t.mark);
    }
}

static void type(const char *text) {
    assert_int_equal(write(t.fd, text, strlen(text)), strlen(text));
}

/* Waits for the end; the exit code. */
static int finish(void) {
    int status;
    while (more()) {
    }
    close(t.fd);
    assert_int_equal(waitpid(t.pid, &status, 0), t.pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

static void quit(void) {
    type("/quit\n");
    assert_int_equal(finish(), 0);
}

static int clean(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER");
    spawn_env("FAKE_ENDLESS");
    spawn_env("NO_COLOR");
    buf_free(&t.seen);
    return 0;
}

/* ---------------------------------------------------------------------------------------- tests */

static void a_chat_answers_and_keeps_the_prefix(void **state) {
    (void)state;
    START("run", "m");
    expect("Fake 1M Q4_1, 3.0 MiB, context 512 tokens");
    expect("> ");
    type("hello\n");
    expect("An answer.");
    expect("> ");
    type("again\n");
    expect("An answer.");
    expect("> ");
    type("/stats\n");
    expect("last: load ");
    /* 1 + "user\nhello" + 1 + "\n" + 1 + "assistant\n" + "An answer." */
    expect(" of 512 tokens, 34 reused for the last answer");
    quit();
    expect("load ");
    expect("| decode 20 tok ");
}

static void ctrl_c_stops_the_answer_and_not_the_program(void **state) {
    (void)state;
    spawn_env("FAKE_ENDLESS=1");
    spawn_env("FAKE_ANSWER=tick ");
    START("run", "m", "-c", "1000000");
    expect("> ");
    type("go\n");
    expect("tick tick");
    type("\x03");
    expect(" ...");
    expect("> ");
    type("go\n");
    expect("tick tick");
    type("\x03");
    expect(" ...");
    expect("> ");
    quit();
}

static void ctrl_c_twice_at_the_empty_prompt_leaves(void **state) {
    (void)state;
    START("run", "m");
    expect("> ");
    type("\x03");
    expect("Ctrl-C again, or Ctrl-D, leaves");
    expect("> ");
    type("hi\n"); /* in between: it counts anew */
    expect("An answer.");
    expect("> ");
    type("\x03");
    expect("Ctrl-C again");
    expect("> ");
    type("\x03");
    assert_int_equal(finish(), 0);
}

static void ctrl_d_leaves(void **state) {
    (void)state;
    START("chat", "m");
    expect("> ");
    type("\x04");
    assert_int_equal(finish(), 0);
}

static void sigterm_ends_the_program(void **state) {
    (void)state;
    START("run", "m");
    expect("> ");
    kill(t.pid, SIGTERM);
    assert_int_equal(finish(), 130);
    spawn_env("FAKE_ENDLESS=1");
    START("run", "m", "-c", "1000000");
    expect("> ");
    type("go\n");
    expect("answer");
    kill(t.pid, SIGTERM);
    assert_int_equal(finish(), 130);
}

/* As under nohup. */
static void a_signal_that_the_caller_ignores_stays_ignored(void **state) {
    (void)state;
    signal(SIGHUP, SIG_IGN);
    START("run", "m");
    signal(SIGHUP, SIG_DFL);
    expect("> ");
    kill(t.pid, SIGHUP);
    type("hello\n");
    expect("An answer.");
    expect("> ");
    quit();
}

static void ctrl_c_ends_a_single_answer_with_its_own_code(void **state) {
    (void)state;
    spawn_env("FAKE_ENDLESS=1");
    START("run", "m", "-p", "go", "-c", "1000000");
    expect("answer.");
    type("\x03");
    expect("| decode ");
    assert_int_equal(finish(), 130);
}

/* The conversation as /save writes it; owned by the caller. */
static json_t *saved(void) {
    char path[600], line[700];
    test_tmp_path(path, sizeof path, "chat.json");
    snprintf(line, sizeof line, "/save %s\n", path);
    type(line);
    expect("saved in ");
    expect("> ");
    return test_json_read(path);
}

static void assert_message(const json_t *chat, size_t i, const char *role, const char *content) {
    const json_t *m = json_array_get(test_json_get(chat, "messages"), i);
    assert_non_null(m);
    assert_string_equal(json_string_value(test_json_get(m, "role")), role);
    assert_string_equal(json_string_value(test_json_get(m, "content")), content);
}

static void thoughts_are_dimmed_and_kept_apart(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER=<think>\nso\n</think>\n\nfour");
    spawn_env("NO_COLOR=1");
    START("run", "m");
    expect("> ");
    type("hi\n");
    expect("[so]\r\n\r\nfour");
    expect("> ");
    json_t *chat = saved();
    assert_message(chat, 1, "assistant", "four");
    const json_t *m = json_array_get(test_json_get(chat, "messages"), 1);
    assert_string_equal(json_string_value(test_json_get(m, "reasoning_content")), "so");
    json_decref(chat);
    quit();
    START("run", "m", "--reasoning-format", "hidden");
    expect("> ");
    type("hi\n");
    expect("hi\r\nfour");
    quit();
}

static void messages_of_several_lines_are_joined(void **state) {
    (void)state;
    START("run", "m", "-sys", "Be brief.");
    expect("> ");
    type("one\\\n");
    expect(". ");
    type("two\n");
    expect("An answer.");
    expect("> ");
    type("\"\"\"first\n");
    expect(". ");
    type("\n");
    expect(". ");
    type("  last\"\"\"\n");
    expect("An answer.");
    expect("> ");
    json_t *chat = saved();
    assert_message(chat, 0, "system", "Be brief.");
    assert_message(chat, 1, "user", "one\ntwo");
    assert_message(chat, 2, "assistant", "An answer.");
    assert_message(chat, 3, "user", "first\n\n  last");
    json_decref(chat);
    quit();
}

static void commands_change_the_conversation(void **state) {
    (void)state;
    START("run", "m");
    expect("> ");
    type("/regen\n");
    expect("there is no answer to make again");
    type("/nix\n");
    expect("there is no command /nix");
    type("/help\n");
    expect("/system");
    expect("> ");
    type("hi\n");
    expect("An answer.");
    expect("> ");
    type("/regen\n");
    expect("An answer.");
    expect("> ");
    json_t *chat = saved();
    assert_int_equal(json_array_size(test_json_get(chat, "messages")), 2);
    json_decref(chat);
    type("/system Be kind.\n");
    expect("with this system message");
    expect("> ");
    type("hi\n");
    expect("An answer.");
    expect("> ");
    type("/reset\n");
    expect("a new conversation");
    expect("> ");
    chat = saved();
    assert_int_equal(json_array_size(test_json_get(chat, "messages")), 1);
    assert_message(chat, 0, "system", "Be kind.");
    json_decref(chat);
    type("/save /nonexistent/x\n");
    expect("error: ");
    expect("> ");
    quit();
}

static void a_full_context_is_told_and_the_chat_goes_on(void **state) {
    (void)state;
    START("run", "m", "-c", "48");
    expect("> ");
    type("a question that is longer than this\n");
    expect("leaves no room for an answer in a context of 48");
    expect("/reset starts a new conversation");
    expect("> ");
    type("hi\n");
    expect("An answer.");
    expect("> ");
    json_t *chat = saved(); /* the question that failed is not in it */
    assert_int_equal(json_array_size(test_json_get(chat, "messages")), 2);
    assert_message(chat, 0, "user", "hi");
    json_decref(chat);
    quit();
}

static void escape_sequences_of_the_model_do_not_reach_the_terminal(void **state) {
    (void)state;
    spawn_env("FAKE_ANSWER=red \x1b[31m text \xc2\x9b");
    START("run", "m", "-p", "hi");
    expect("red ^[[31m text <9B>");
    assert_int_equal(finish(), 0);
}

static void escape_sequences_of_a_file_do_not_reach_the_terminal(void **state) {
    (void)state;
    static const char *const flags[][3] = {{"--template"}, {"--kv", "tokenizer.chat_template"}};
    for (size_t i = 0; i < COUNT_OF(flags); i++) {
        START("inspect", "m.gguf", flags[i][0], flags[i][1]);
        expect("{% for m %}^[[2J");
        assert_int_equal(finish(), 0);
        assert_lacks(&t.seen, "\x1b");
    }
    START("inspect", "m.gguf", "--tensors");
    expect("blk.0.^[[31mattn");
    assert_int_equal(finish(), 0);
    assert_lacks(&t.seen, "\x1b");
}

static void lines_are_kept_from_one_chat_to_the_next(void **state) {
    (void)state;
#ifndef HAVE_LIBEDIT
    print_message("built without line editing\n");
    skip();
#endif
    START("run", "m");
    expect("> ");
    type("remember this\n");
    expect("An answer.");
    expect("> ");
    quit();
    START("run", "m");
    expect("> ");
    type("\x10\x10\n"); /* Ctrl-P: /quit, then the line before it */
    expect("An answer.");
    expect("> ");
    json_t *chat = saved();
    assert_message(chat, 0, "user", "remember this");
    json_decref(chat);
    quit();
    START("run", "m", "--no-history");
    expect("> ");
    type("\x10\n");
    type("hello\n");
    expect("An answer.");
    expect("> ");
    chat = saved();
    assert_message(chat, 0, "user", "hello");
    json_decref(chat);
    quit();
}

static void letters_beyond_ascii_are_edited_whole(void **state) {
    (void)state;
    START("run", "m");
    expect("> ");
    type("grüße\x7f\x7f\x7f"
         "n 漢\n"); /* three deletes */
    expect("An answer.");
    expect("> ");
    json_t *chat = saved();
#ifdef HAVE_LIBEDIT
    assert_message(chat, 0, "user", "grn 漢");
#endif
    json_decref(chat);
    quit();
}

static void json_and_plain_text_need_a_prompt(void **state) {
    (void)state;
    START("run", "m", "--json");
    expect("--json prints one answer");
    assert_int_equal(finish(), 2);
    START("run", "m", "--no-template");
    expect("--no-template continues a prompt");
    assert_int_equal(finish(), 2);
}

static void loading_shows_a_bar(void **state) {
    (void)state;
    START("run", "m", "-p", "hi");
    expect("loading [");
    expect("An answer.");
    assert_int_equal(finish(), 0);
}

#define CASE(f) cmocka_unit_test_teardown(f, clean)

int main(void) {
    const struct CMUnitTest tests[] = {
        CASE(a_chat_answers_and_keeps_the_prefix),
        CASE(thoughts_are_dimmed_and_kept_apart),
        CASE(ctrl_c_stops_the_answer_and_not_the_program),
        CASE(ctrl_c_twice_at_the_empty_prompt_leaves),
        CASE(ctrl_d_leaves),
        CASE(sigterm_ends_the_program),
        CASE(a_signal_that_the_caller_ignores_stays_ignored),
        CASE(ctrl_c_ends_a_single_answer_with_its_own_code),
        CASE(messages_of_several_lines_are_joined),
        CASE(commands_change_the_conversation),
        CASE(a_full_context_is_told_and_the_chat_goes_on),
        CASE(escape_sequences_of_the_model_do_not_reach_the_terminal),
        CASE(escape_sequences_of_a_file_do_not_reach_the_terminal),
        CASE(lines_are_kept_from_one_chat_to_the_next),
        CASE(letters_beyond_ascii_are_edited_whole),
        CASE(json_and_plain_text_need_a_prompt),
        CASE(loading_shows_a_bar),
    };
    return cmocka_run_group_tests(tests, spawn_setup, NULL);
}
