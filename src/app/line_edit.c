#include "app/line_edit.h"

#include "base/arena.h"
#include "base/utf8.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <wchar.h>

#ifdef HAVE_LIBEDIT
#include <histedit.h>

struct line_editor {
    EditLine *edit;
    History *history;
    char *history_path; /* owned, NULL: none */
    const char *prompt;
};

static char *get_prompt(EditLine *edit) {
    struct line_editor *e = NULL;
    el_get(edit, EL_CLIENTDATA, &e);
    return (char *)(uintptr_t)e->prompt; /* libedit only reads it */
}

/* One character; libedit's own reader would lose a Ctrl-C that comes just before its wait. */
static int get_char(EditLine *edit, wchar_t *c) {
    (void)edit;
    char bytes[4];
    uint32_t cp = 0xfffd;
    for (size_t n = 0; n < sizeof bytes;) {
        int got = interrupt_read_byte(bytes + n);
        if (got <= 0) return got == 0 ? 0 : -1;
        n++;
        if (utf8_decode(bytes, n, &cp) > 0) break;
        if (utf8_complete_prefix(bytes, n) != 0) { /* not the start of a character */
            cp = 0xfffd;
            break;
        }
    }
    *c = (wchar_t)cp;
    return 1;
}

struct line_editor *line_editor_open(const struct term *term, const char *history_path) {
    struct line_editor *e = xcalloc(1, sizeof *e);
    e->prompt = "";
    e->edit = el_init("atsinfer", stdin, term->out_tty ? stdout : stderr, stderr);
    REQUIRE(e->edit);
    el_set(e->edit, EL_CLIENTDATA, e);
    el_set(e->edit, EL_PROMPT, get_prompt);
    el_set(e->edit, EL_EDITOR, "emacs");
    el_set(e->edit, EL_GETCFN, get_char);
    el_source(e->edit, NULL); /* the user's .editrc */
    e->history = history_init();
    REQUIRE(e->history);
    HistEvent event;
    history(e->history, &event, H_SETSIZE, 1000);
    history(e->history, &event, H_SETUNIQUE, 1);
    el_set(e->edit, EL_HIST, history, e->history);
    if (history_path) {
        e->history_path = xstrdup(history_path);
        history(e->history, &event, H_LOAD, history_path); /* the first time there is none */
    }
    return e;
}

void line_editor_close(struct line_editor *e) {
    if (!e) return;
    HistEvent event;
    if (e->history_path) history(e->history, &event, H_SAVE, e->history_path);
    history_end(e->history);
    el_end(e->edit);
    free(e->history_path);
    free(e);
}

enum line_result line_read(struct line_editor *e, const char *prompt, struct buf *line) {
    e->prompt = prompt;
    int n = 0;
    el_resize(e->edit);
    el_set(e->edit, EL_PREP_TERM, 1); /* before the prompt: a Ctrl-D typed at it must not be lost */
    const char *text = el_gets(e->edit, &n);
    if (interrupt_pending()) return LINE_INTERRUPTED;
    if (!text || n <= 0) return LINE_END;
    buf_clear(line);
    if (text[n - 1] == '\n') n--;
    buf_add(line, text, (size_t)n);
    return LINE_OK;
}

void line_remember(struct line_editor *e, const char *text) {
    HistEvent event;
    if (*text) history(e->history, &event, H_ENTER, text);
}

#else

struct line_editor {
    FILE *out;
};

struct line_editor *line_editor_open(const struct term *term, const char *history_path) {
    (void)history_path;
    struct line_editor *e = xcalloc(1, sizeof *e);
    e->out = term->out_tty ? stdout : stderr;
    return e;
}

void line_editor_close(struct line_editor *e) {
    free(e);
}

enum line_result line_read(struct line_editor *e, const char *prompt, struct buf *line) {
    fputs(prompt, e->out);
    fflush(e->out);
    buf_clear(line);
    for (;;) {
        char c;
        int got = interrupt_read_byte(&c);
        if (got == -1) return LINE_INTERRUPTED;
        if (got <= 0) return line->len ? LINE_OK : LINE_END;
        if (c == '\n') return LINE_OK;
        buf_add_char(line, c);
    }
}

void line_remember(struct line_editor *e, const char *text) {
    (void)e;
    (void)text;
}

#endif
