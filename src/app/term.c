#include "app/term.h"

#include "base/clock.h"
#include "base/utf8.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

/* A page of a mapped file that cannot be read: the file was cut short, or its disk fails. Nothing
 * can go on from here, but it can be said. */
static void on_bus_error(int number, siginfo_t *info, void *context) {
    static const char text[] =
        "\natsinfer: error: the model's file cannot be read any more: it became "
        "shorter while it was in use, or its disk fails\n";
    (void)context;
    if (info->si_code == BUS_ADRERR && write(STDERR_FILENO, text, sizeof text - 1) >= 0) _exit(1);
    signal(number, SIG_DFL); /* and dies of it */
}

void term_init(struct term *t) {
    const char *name = getenv("TERM"), *no_color = getenv("NO_COLOR");
    bool dumb = name && !strcmp(name, "dumb");
    *t = (struct term){.in_tty = isatty(STDIN_FILENO) != 0,
                       .out_tty = isatty(STDOUT_FILENO) != 0,
                       .err_tty = isatty(STDERR_FILENO) != 0};
    t->colour = t->err_tty && !dumb && !(no_color && *no_color);
    t->progress = t->err_tty && !dumb;
    signal(SIGPIPE, SIG_IGN);
    struct sigaction action = {.sa_sigaction = on_bus_error, .sa_flags = SA_SIGINFO};
    sigemptyset(&action.sa_mask);
    sigaction(SIGBUS, &action, NULL);
}

int term_width(int fd) {
    struct winsize size = {0};
    if (ioctl(fd, TIOCGWINSZ, &size) != 0 || size.ws_col < 20) return 80;
    return min_int(size.ws_col, 1000);
}

void term_bar(struct term *t, const char *what, uint64_t done, uint64_t total, const char *detail) {
    enum { BAR = 24, INTERVAL_NS = 100000000 };
    uint64_t now = clock_ns();
    if (!t->progress || (t->bar_drawn && now < t->bar_next_ns)) return;
    t->bar_next_ns = now + INTERVAL_NS;
    t->bar_drawn = true;
    struct buf line = {0};
    buf_add_str(&line, what);
    if (total) {
        double share = done >= total ? 1 : (double)done / (double)total;
        int full = (int)(share * BAR);
        buf_add_str(&line, " [");
        for (int i = 0; i < BAR; i++)
            buf_add_char(&line, i < full ? '#' : ' ');
        buf_printf(&line, "] %3d%%", (int)(share * 100));
    }
    if (detail && *detail) buf_printf(&line, "  %s", detail);
    int width = term_width(STDERR_FILENO) - 1;
    fprintf(stderr, "\r%.*s\033[K", width, line.data);
    fflush(stderr);
    buf_free(&line);
}

void term_bar_clear(struct term *t) {
    if (!t->bar_drawn) return;
    fputs("\r\033[K", stderr);
    fflush(stderr);
    t->bar_drawn = false;
}

void term_add_safe(struct buf *out, const char *s, size_t n) {
    while (n > 0) {
        uint32_t cp;
        int len = utf8_decode(s, n, &cp);
        if (len == 0) {
            len = (int)utf8_invalid_span(s, n);
            buf_add_str(out, "\xef\xbf\xbd");
        } else if (cp == '\n' || cp == '\t') {
            buf_add_char(out, (char)cp);
        } else if (cp < 0x20 || cp == 0x7f) {
            char caret[2] = {'^', (char)(cp ^ 0x40)};
            buf_add(out, caret, 2);
        } else if (cp < 0xa0 && cp >= 0x80) { /* C1: an 8-bit escape to some terminals */
            buf_printf(out, "<%02X>", (unsigned)cp);
        } else {
            buf_add(out, s, (size_t)len);
        }
        s += len;
        n -= (size_t)len;
    }
}

/* ------------------------------------------------------------------------------------ interrupts
 */

static volatile sig_atomic_t n_interrupts, got_term;

static void on_signal(int number) {
    if (number != SIGINT) got_term = 1;
    if (++n_interrupts >= 3) _exit(130); /* the program does not listen any more */
}

void interrupt_install(void) {
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    /* Restarting keeps output whole; interrupt_read_byte() waits in ppoll(), which never restarts.
     */
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART}, before;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) {
        bool ignored = sigaction(numbers[i], NULL, &before) == 0 && before.sa_handler == SIG_IGN;
        if (!ignored) sigaction(numbers[i], &action, NULL);
    }
}

bool interrupt_pending(void) {
    return n_interrupts > 0;
}

bool interrupt_is_term(void) {
    return got_term != 0;
}

void interrupt_clear(void) {
    n_interrupts = 0;
}

int interrupt_read_byte(char *byte) {
    sigset_t block, before;
    sigemptyset(&block);
    sigaddset(&block, SIGINT);
    sigaddset(&block, SIGTERM);
    sigaddset(&block, SIGHUP);
    pthread_sigmask(SIG_BLOCK, &block, &before);
    int result = -1;
    for (;;) {
        if (interrupt_pending()) break;
        struct pollfd fd = {STDIN_FILENO, POLLIN, 0};
        if (ppoll(&fd, 1, NULL, &before) < 0) { /* lets the signals in while it waits */
            if (errno == EINTR) continue;
            result = -2;
            break;
        }
        ssize_t n = read(STDIN_FILENO, byte, 1);
        if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
        result = n < 0 ? -2 : (int)n;
        break;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return result;
}
