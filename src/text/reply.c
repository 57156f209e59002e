#include "text/reply.h"

#include <string.h>

static const char opening[] = "<think>", closing[] = "</think>";

enum state {
    /* THINK */
    AT_BEGINNING, /* white space or the opening tag */
    THINKING,
    ANSWERING,
    /* HARMONY */
    IN_HEADER,
    IN_MESSAGE,
    BETWEEN /* after a message's end: nothing there is text */
};

#define MAX_HEADER 256 /* bytes; longer is no header */

void reply_open(struct reply *r, enum reply_style style, bool thinking) {
    *r = (struct reply){.style = style};
    if (style == REPLY_HARMONY)
        r->state = IN_HEADER; /* the prompt ends with "<|start|>assistant" */
    else
        r->state = style == REPLY_PLAIN ? ANSWERING : thinking ? THINKING : AT_BEGINNING;
    r->any_answer = style == REPLY_PLAIN;
}

void reply_close(struct reply *r) {
    buf_free(&r->held);
    *r = (struct reply){0};
}

static bool is_white(char c) {
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

/* ---- <think> ---- */

static void give_held(struct reply *r, struct buf *out) {
    buf_add(out, buf_str(&r->held), r->held.len);
    buf_clear(&r->held);
}

/* One byte against a tag, in which '<' stands only first. True when the tag is complete; *given:
 * how many bytes of a tag that came to nothing are text after all. */
static bool match(struct reply *r, const char *tag, char c, size_t *given) {
    *given = 0;
    if (c != tag[r->n_matched]) {
        *given = r->n_matched;
        r->n_matched = 0;
        if (c != tag[0]) return false;
    }
    if (tag[++r->n_matched]) return false;
    r->n_matched = 0;
    return true;
}

static void add_thought(struct reply *r, const char *s, size_t n, struct buf *out) {
    for (size_t i = 0; i < n; i++) {
        if (is_white(s[i])) {
            if (r->begun[REPLY_THOUGHT]) buf_add_char(&r->held, s[i]);
            continue;
        }
        give_held(r, out);
        buf_add_char(out, s[i]);
        r->begun[REPLY_THOUGHT] = true;
    }
}

static void push_thinking(struct reply *r, char c, struct buf *out) {
    size_t given;
    bool complete = match(r, closing, c, &given);
    add_thought(r, closing, given, &out[REPLY_THOUGHT]);
    if (complete) {
        r->state = ANSWERING;
        buf_clear(&r->held);
    } else if (r->n_matched == 0) {
        add_thought(r, &c, 1, &out[REPLY_THOUGHT]);
    }
}

static void push_answer(struct reply *r, const char *s, size_t n, struct buf *out) {
    while (n > 0 && !r->any_answer && is_white(*s))
        s++, n--;
    if (n == 0) return;
    r->any_answer = true;
    buf_add(&out[REPLY_ANSWER], s, n);
}

/* Without thoughts the white space that a reply begins with is its own. */
static void push_beginning(struct reply *r, char c, struct buf *out) {
    size_t given;
    if (r->n_matched == 0 && is_white(c)) {
        buf_add_char(&r->held, c);
        return;
    }
    if (match(r, opening, c, &given)) {
        r->state = THINKING;
        buf_clear(&r->held);
    } else if (r->n_matched == 0 || given > 0) {
        r->state = ANSWERING;
        r->any_answer = true;
        r->n_matched = 0;
        give_held(r, &out[REPLY_ANSWER]);
        buf_add(&out[REPLY_ANSWER], opening, given);
        buf_add_char(&out[REPLY_ANSWER], c);
    }
}

static void push_think(struct reply *r, const char *text, size_t n, struct buf *out) {
    size_t i = 0;
    for (; i < n && r->state != ANSWERING; i++) {
        if (r->state == AT_BEGINNING)
            push_beginning(r, text[i], out);
        else
            push_thinking(r, text[i], out);
    }
    push_answer(r, text + i, n - i, out);
}

/* ---- harmony ---- */

/* Messages of the same part are lines of it. */
static void begin_message(struct reply *r, enum reply_part part, struct buf *out) {
    r->at = part;
    r->state = IN_MESSAGE;
    if (r->begun[part]) buf_add_char(&out[part], '\n');
    r->begun[part] = true;
}

/* "analysis", "final", "commentary to=functions.NAME json" */
static enum reply_part part_of(const char *header) {
    if (strstr(header, "to=")) return REPLY_CALL;
    return strstr(header, "analysis") ? REPLY_THOUGHT : REPLY_ANSWER;
}

static void push_harmony(struct reply *r, const char *text, size_t n, struct buf *out) {
    if (r->state == IN_MESSAGE) {
        buf_add(&out[r->at], text, n);
    } else if (r->state == IN_HEADER) {
        buf_add(&r->held, text, n);
        if (r->held.len <= MAX_HEADER) return;
        begin_message(r, REPLY_ANSWER, out);
        give_held(r, &out[REPLY_ANSWER]);
    }
}

/* ---- both ---- */

void reply_push(struct reply *r, const char *text, size_t n, struct buf *out) {
    if (r->style == REPLY_HARMONY)
        push_harmony(r, text, n, out);
    else
        push_think(r, text, n, out);
}

static const char *const harmony_names[] = {"<|start|>",   "<|channel|>", "<|constrain|>",
                                            "<|message|>", "<|end|>",     "<|call|>",
                                            "<|return|>"};

static bool is_one_of(const char *name, size_t n, const char *const *names, size_t n_names) {
    for (size_t i = 0; i < n_names; i++)
        if (strlen(names[i]) == n && memcmp(names[i], name, n) == 0) return true;
    return false;
}

bool reply_knows_control(const char *name, size_t n) {
    static const char *const tags[] = {opening, closing};
    return is_one_of(name, n, tags, COUNT_OF(tags)) ||
           is_one_of(name, n, harmony_names, COUNT_OF(harmony_names));
}

void reply_push_control(struct reply *r, const char *name, struct buf *out) {
    size_t n = strlen(name);
    if (r->style != REPLY_HARMONY) {
        if (strcmp(name, opening) == 0 || strcmp(name, closing) == 0) push_think(r, name, n, out);
        return;
    }
    r->any_control = true;
    if (strcmp(name, "<|start|>") == 0) {
        r->state = IN_HEADER;
        buf_clear(&r->held);
    } else if (strcmp(name, "<|channel|>") == 0 || strcmp(name, "<|constrain|>") == 0) {
        r->state = IN_HEADER; /* a recipient may stand before the channel */
        buf_add_char(&r->held, ' ');
    } else if (strcmp(name, "<|message|>") == 0) {
        begin_message(r, part_of(buf_str(&r->held)), out);
        buf_clear(&r->held);
    } else if (is_one_of(name, n, harmony_names, COUNT_OF(harmony_names))) {
        r->state = BETWEEN;
    }
}

void reply_flush(struct reply *r, struct buf *out) {
    if (r->style == REPLY_HARMONY) { /* a model that knows nothing of channels still answers */
        if (r->state == IN_HEADER && !r->any_control) give_held(r, &out[REPLY_ANSWER]);
        return;
    }
    if (r->state == AT_BEGINNING) {
        give_held(r, &out[REPLY_ANSWER]);
        buf_add(&out[REPLY_ANSWER], opening, r->n_matched);
    } else if (r->state == THINKING) {
        add_thought(r, closing, r->n_matched, &out[REPLY_THOUGHT]);
    }
    r->n_matched = 0;
}

bool reply_prompt_thinks(const char *prompt, size_t n) {
    while (n > 0 && is_white(prompt[n - 1]))
        n--;
    size_t len = strlen(opening);
    return n >= len && memcmp(prompt + n - len, opening, len) == 0;
}
