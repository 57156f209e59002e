/*
 * One answer: evaluates a prompt in a session, generates, writes the text as it comes, and keeps
 * times. Used by the one-shot form of `run` and by the chat.
 */
#pragma once

#include "app/common.h"
#include "text/reply.h"

struct talker {
    struct app *app;
    ats_engine *engine;
    ats_session *session;
    ats_info info;
    ats_sampling sampling;
    ats_logit_bias *biases; /* owned, as are the pointers of stops and breakers */
    const char **breakers;
    const char **stops;
    int n_stops;
    int max_tokens;
    bool ignore_end;
    bool stream;            /* write the text to standard output as it comes */
    const char *extra;      /* JSON object of template variables, or NULL */
    enum reply_style style; /* of the replies to what talker_render made; else REPLY_PLAIN */
    bool thinks;            /* the last prompt opened the thoughts itself */
    bool shows_thoughts;    /* streams them, too */
};

struct answer {
    struct buf parts[N_REPLY_PARTS]; /* of the reply, whole */
    int32_t *ids;                    /* (n_ids) generated, as far as they were reported */
    size_t n_ids, cap_ids;
    size_t n_prompt, n_reused;
    int n_tokens; /* generated, the end token included */
    ats_stop stop;
    bool interrupted;
    uint64_t prefill_ns, first_ns, decode_ns; /* first_ns: from the start to the first token */
    uint64_t started_ns, first_at_ns;
    ats_status write_status; /* of standard output */
};

/* Opens the engine, a session and the sampling parameters from the flags. Close after failure,
 * too. */
MUST_CHECK ats_status talker_open(struct app *app, struct talker *out);
void talker_close(struct talker *t);

/* Ids of a chat's messages with the generation prompt. Owned (ats_free). */
MUST_CHECK ats_status talker_render(struct talker *t, const json_t *messages, int32_t **ids,
                                    size_t *n_ids);
/* CONTEXT_FULL, with a text that says what to do, if ids leave no room for an answer. CANCELLED if
 * interrupted before the first token; later it is an answer cut short (interrupted). seed_offset:
 * 0 for the first answer. *out is cleared first. */
MUST_CHECK ats_status talker_answer(struct talker *t, const int32_t *ids, size_t n_ids,
                                    uint64_t seed_offset, struct answer *out);
void answer_free(struct answer *a);
/* The answer without thoughts. */
static inline const struct buf *answer_text(const struct answer *a) {
    return &a->parts[REPLY_ANSWER];
}

/* "load 0.12 s | prefill 45 tok 812.3 tok/s | decode 128 tok 166.0 tok/s | first token 0.06 s" */
struct timing {
    uint64_t load_ns, prefill_ns, decode_ns, first_ns;
    uint64_t n_prefill, n_decode, n_answers;
};
void timing_add(struct timing *sum, const struct talker *t, const struct answer *a);
void timing_line(struct buf *out, const struct timing *t);
json_t *timing_json(const struct timing *t);
const char *stop_name(ats_stop stop); /* "end", "stop string", ... */
