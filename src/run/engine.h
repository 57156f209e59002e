/*
 * What the files behind atsinfer.h share: engine.c (opening, facts), session.c (evaluation),
 * language.c (text, chat), generate.c (sampling, generation), describe.c (JSON). An engine and its
 * sessions belong to one thread at a time.
 */
#pragma once

#include "atsinfer.h"
#include "model/model.h"
#include "run/choose_plan.h"
#include "run/executor.h"
#include "run/gguf_text.h"
#include "run/kv.h"
#include "run/metrics.h"
#include "run/planner.h"
#include "run/state.h"
#include "run/trace.h"

struct ats_engine {
    struct arena arena;
    ats_options options; /* defaults filled in; strings in the arena */
    struct gguf *file;
    const char *name;    /* general.name, "" if absent */
    struct model *model; /* NULL: metadata only */
    struct tokenizer *tokenizer;
    struct chat *chat;   /* NULL: the file's template does not compile */
    char *chat_error;    /* then: why */
    char *chat_template; /* the file's, NULL if it has none */
    struct backend *devices[EXECUTOR_MAX_DEVICES];
    const char *device_names[EXECUTOR_MAX_DEVICES];
    int n_devices;
    unsigned cpu_isa_mask;
    struct plan *plan;
    struct arena plan_arena; /* of a plan that came later (engine_switch) */
    struct plan_choice choice;
    struct adapt *adapt;     /* NULL: the plan stays */
    struct planner *planner; /* NULL: no profile says how long anything takes */
    struct ledger ledger;
    struct executor_options executor_options;
    struct executor *executor;
    struct kv *kv;
    struct state_pool *states; /* NULL: the model has no recurrent layers */
    bool names_given;          /* of devices, by the user */
    bool batch_open;           /* n_batch is not: the planner may choose it, once */
    int n_sessions;
    ats_session *sessions;      /* open ones, the newest first */
    struct round_memory *round; /* session.c */
    ats_stats stats;
    struct observation {
        struct arena arena;                       /* of facts */
        struct metrics_facts facts[MAX_PROGRAMS]; /* of the executor's programs */
        bool measures;
        struct trace *trace;    /* NULL: none (any more) */
        ats_metrics metrics[2]; /* [decode] */
    } observed;
    ats_cancel_fn *cancel;
    void *cancel_user;
};

struct ats_session {
    ats_engine *engine;
    struct kv_seq *seq;
    struct state_seq *state; /* NULL: as above */
    /* (n_vocab) after the last token: in `kept`, or where the last round left them, until another
     * one begins (session_keep_logits) */
    const float *logits;
    float *kept;
    ats_session *next; /* of the engine's */
    bool has_logits;
    int32_t *forgotten; /* (n_forgotten) owned; while a lost device is replaced: all its tokens */
    size_t n_forgotten;
};

/* engine.c: *n_ctx, or, if it is 0, what the model allows, at most 8192; more than that is warned
 * of. */
MUST_CHECK ats_status engine_context(const struct gguf *file, int *n_ctx);
/* engine.c: opens the devices, plans and loads; stop closes all that, and start may follow. */
MUST_CHECK ats_status engine_start(ats_engine *e);
void engine_stop(ats_engine *e);
/* What the stats say of memory, from the ledger. */
void engine_count_stats(ats_engine *e);

/* recover.c: start, with the CPU alone where the devices that the engine chose fail. */
MUST_CHECK ats_status engine_start_somehow(ats_engine *e);
/* A round has failed on a device (the error's text says how) and is rolled back: the CPU takes over
 * alone, with all sessions as they were. Also with no executor, after an attempt that failed; one
 * leaves none, and the sessions' tokens as they were. */
MUST_CHECK ats_status engine_recover(ats_engine *e);
/* adapt.c: a controller beside the rounds (replan.h), where the plan is the engine's own and may
 * change (ats_dynamic). close waits for a plan that is being made. */
void adapt_open(ats_engine *e);
void adapt_close(ats_engine *e);
/* The way in force, where plans are made by a profile; else NULL. Borrowed until the next round. */
const struct decide_way *adapt_way(const ats_engine *e);
/* After a round that did not fail: measures some, has plans made in a thread, takes them. */
void adapt_round(ats_engine *e, const struct round *round);
/* What of it a round's times are fed to; for tests as well. */
struct replan_observation;
void adapt_observe(ats_engine *e, double now_s, const struct replan_observation *o);
/* For tests: the next round looks at the GPU's memory. */
void adapt_look(ats_engine *e);
/* For tests: until the plan that is being made is made; the next round takes it. */
void adapt_wait(ats_engine *e);

/* switch_plan.c: between rounds, another plan takes the place of the one in force (switch.h), which
 * has passed plan_check for the devices that are open. plan lies in *arena, which is taken over if
 * it comes into force. After an error the old plan is in force; or, if memory was lost on the way,
 * nothing is, and the next request starts anew from the file and the tokens. */
struct switch_report;
MUST_CHECK ats_status engine_switch(ats_engine *e, struct arena *arena, struct plan *plan,
                                    struct switch_report *report);

/* session.c, for it: pages that are to be copied before anything else is. */
void session_copy_pages(ats_engine *e);
/* Sessions' logits that still stand in the exchange go to memory of their own: before that is used
 * again, or given up. */
void session_keep_logits(ats_engine *e);
/* session.c, for it: a session's tokens leave the cache, are evaluated again, or, if they were not,
 * stand in it unevaluated. */
void session_forget(ats_session *s);
MUST_CHECK ats_status session_replay(ats_session *s);
void session_remember(ats_session *s);

/* generate.c: tells of what the file wants of sampling and does not get. */
void sampling_check_file(const struct gguf *g);

/* observe.c: rounds that are measured, or written to a trace. */
/* The executor is ready, or another one in its place. */
MUST_CHECK ats_status observe_open(ats_engine *e);
void observe_close(ats_engine *e);
/* After a round that did not fail. host_ns: the engine's own work around it. */
void observe_round(ats_engine *e, const struct round *round, bool decode, uint64_t host_ns);

/* session.c: the arrays that a round is put together in. */
struct round_memory *round_memory_open(const ats_options *options);
void round_memory_close(struct round_memory *m); /* accepts NULL */
