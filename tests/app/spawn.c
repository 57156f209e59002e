#include "spawn.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const xdg_names[] = {"XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_STATE_HOME",
                                        "XDG_CACHE_HOME"};

extern char **environ;

int spawn_setup(void **state) {
    (void)state;
    char names[64][64];
    size_t n = 0;
    for (char **e = environ; *e && n < COUNT_OF(names); e++)
        if (!strncmp(*e, "LLAMA_ARG_", 10) ||
            (!strncmp(*e, "ATSINFER_", 9) && strncmp(*e, "ATSINFER_FAKE", 13) != 0))
            snprintf(names[n++], sizeof names[0], "%.*s", (int)strcspn(*e, "="), *e);
    while (n > 0)
        unsetenv(names[--n]);
    char path[600];
    test_tmp_path(path, sizeof path, "home");
    mkdir(path, 0700);
    for (size_t i = 0; i < COUNT_OF(xdg_names); i++)
        setenv(xdg_names[i], path, 1);
    setenv("TERM", "xterm", 1);
    setenv("NO_COLOR", "1", 1);
    return 0;
}

void spawn_env(const char *text) {
    char *name = strdup(text), *equals = strchr(name, '=');
    if (equals) {
        *equals = 0;
        setenv(name, equals + 1, 1);
    } else {
        unsetenv(name);
    }
    free(name);
}

void spawned_free(struct spawned *s) {
    buf_free(&s->out);
    buf_free(&s->err);
}

static void child(const char *input_path, const int *out, const int *err, const char *const *args) {
    const char *program = getenv("ATSINFER_FAKE");
    char *argv[64] = {strdup("atsinfer")};
    size_t n = 1;
    for (; *args && n + 1 < COUNT_OF(argv); args++)
        argv[n++] = strdup(*args);
    int in = open(input_path, O_RDONLY);
    if (!program || in < 0 || dup2(in, 0) < 0 || dup2(out[1], 1) < 0 || dup2(err[1], 2) < 0)
        _exit(99);
    for (int fd = 3; fd < 64; fd++)
        close(fd);
    execv(program, argv);
    _exit(98);
}

static void collect(int out, int err, struct spawned *s) {
    struct pollfd fds[2] = {{out, POLLIN, 0}, {err, POLLIN, 0}};
    while (fds[0].fd >= 0 || fds[1].fd >= 0) {
        if (poll(fds, 2, -1) < 0) continue;
        for (int i = 0; i < 2; i++) {
            char bytes[4096];
            if (fds[i].fd < 0 || !fds[i].revents) continue;
            ssize_t n = read(fds[i].fd, bytes, sizeof bytes);
            if (n > 0)
                buf_add(i ? &s->err : &s->out, bytes, (size_t)n);
            else
                fds[i].fd = -1;
        }
    }
}

void spawn(struct spawned *s, const char *input, const char *const *args) {
    spawned_free(s);
    char path[600] = "/dev/null";
    if (input) {
        test_tmp_path(path, sizeof path, "stdin");
        TEST_OK(file_write(path, input, strlen(input)));
    }
    int out[2], err[2], status = 0;
    assert_int_equal(pipe(out), 0);
    assert_int_equal(pipe(err), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) child(path, out, err, args);
    close(out[1]);
    close(err[1]);
    collect(out[0], err[0], s);
    close(out[0]);
    close(err[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    s->code = WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
    buf_add(&s->out, "", 0);
    buf_add(&s->err, "", 0);
}

void assert_has(const struct buf *text, const char *part) {
    if (strstr(buf_str(text), part)) return;
    fail_msg("\"%s\" does not stand in:\n%s", part, buf_str(text));
}

void assert_lacks(const struct buf *text, const char *part) {
    if (!strstr(buf_str(text), part)) return;
    fail_msg("\"%s\" stands in:\n%s", part, buf_str(text));
}

json_t *spawned_answer(const struct spawned *s, const char *command) {
    json_t *o;
    TEST_OK(json_parse(buf_str(&s->out), s->out.len, &o));
    assert_int_equal(json_integer_value(test_json_get(o, "schema")), 1);
    assert_string_equal(json_string_value(test_json_get(o, "command")), command);
    return o;
}

json_int_t int_at(const json_t *o, const char *key) {
    return json_integer_value(test_json_get(o, key));
}

const char *text_at(const json_t *o, const char *key) {
    return json_string_value(test_json_get(o, key));
}

void tmp_file(char *path, size_t n, const char *name, const char *text) {
    test_tmp_path(path, n, name);
    TEST_OK(file_write(path, text, strlen(text)));
}
