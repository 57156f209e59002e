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
    struct plan_choice choice;
    struct ledger ledger;
    struct executor_options executor_options;
    struct executor *executor;
    struct kv *kv;
    struct state_pool *states; /* NULL: the model has no recurrent layers */
    int n_sessions;
    struct round_memory *round; /* session.c */
    ats_stats stats;
    struct observation {
        struct arena arena; /* of facts */
        struct metrics_facts facts;
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
    float *logits;           /* (n_vocab) after the last token */
    bool has_logits;
};

/* observe.c: rounds that are measured, or written to a trace. */
/* The executor is ready, or another one in its place. */
MUST_CHECK ats_status observe_open(ats_engine *e);
void observe_close(ats_engine *e);
/* After a round that did not fail. host_ns: the engine's own work around it. */
void observe_round(ats_engine *e, const struct round *round, bool decode, uint64_t host_ns);

/* session.c: the arrays that a round is put together in. */
struct round_memory *round_memory_open(const ats_options *options);
void round_memory_close(struct round_memory *m); /* accepts NULL */
