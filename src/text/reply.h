/*
 * Takes a model's reply apart as it comes: what it thinks, what it answers, which tools it calls.
 * Models write their thoughts in the text, in one of two shapes:
 *
 * THINK    "<think> thoughts </think> answer" (Qwen, GLM, DeepSeek, SmolLM3). Only at the beginning
 *          of a reply; many templates open the thoughts themselves at the end of the prompt.
 * HARMONY  gpt-oss: messages "<|channel|>NAME<|message|> text <|end|><|start|>assistant", where
 *          "analysis" is thought, "final" the answer, and one with a recipient (" to=TOOL") a call.
 *          The words in <|...|> are control tokens, never text, so a model that writes about them
 *          is not misread.
 *
 * Knows bytes and the names of control tokens; nothing of ids. Linear in the reply, whatever it is;
 * the parts do not depend on how it was cut into pushes.
 */
#pragma once

#include "base/buf.h"

enum reply_style {
    REPLY_PLAIN, /* all is answer */
    REPLY_THINK,
    REPLY_HARMONY
};
enum reply_part {
    REPLY_ANSWER,
    REPLY_THOUGHT,
    REPLY_CALL, /* of a tool: its arguments */
    N_REPLY_PARTS
};

/* One reply. Owns a buffer: reply_close. */
struct reply {
    enum reply_style style;
    int state;
    size_t n_matched;   /* THINK: bytes of the tag that the text ends with */
    bool any_answer;    /* white space before the answer is not part of it */
    bool any_control;   /* HARMONY: a control token has come */
    struct buf held;    /* THINK: white space that is thought only if more follows; HARMONY: the
                           header of a message */
    enum reply_part at; /* HARMONY: of the message that is being read */
    bool begun[N_REPLY_PARTS];
};

/* thinking: the prompt has opened the thoughts already (reply_prompt_thinks). */
void reply_open(struct reply *r, enum reply_style style, bool thinking);
void reply_close(struct reply *r);

/* Appends what is certain by now to the buffers of the parts, out[N_REPLY_PARTS]. */
void reply_push(struct reply *r, const char *text, size_t n, struct buf *out);
/* A control token by its name; text that came with it goes before. */
void reply_push_control(struct reply *r, const char *name, struct buf *out);
/* The end of the reply: what was held back goes out. */
void reply_flush(struct reply *r, struct buf *out);

/* True if a rendered prompt ends by opening the thoughts: "<think>" and white space. */
bool reply_prompt_thinks(const char *prompt, size_t n);
/* True for the names that reply_push_control acts on. */
bool reply_knows_control(const char *name, size_t n);
