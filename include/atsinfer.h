/*
 * atsinfer: run a GGUF language model on the CPU and the GPU together.
 *
 * Two nouns. An engine is a loaded model; a session is one timeline of tokens in it (a chat, a
 * document), with its KV cache. Everything else is a plain struct. The library never prints, exits
 * or aborts on input: what can fail returns an ats_status, and ats_error_text() says why.
 *
 * Threads: one engine is used by one thread at a time (with its sessions); several engines may be
 * used by several threads at once. Functions that only read a loaded engine's vocabulary may be
 * called from any thread.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define ATS_API        __attribute__((visibility("default")))
#define ATS_MUST_CHECK __attribute__((warn_unused_result))
#else
#define ATS_API
#define ATS_MUST_CHECK
#endif

/* Every status once: name, value, text. The values never change. */
#define ATS_STATUS_MAP(X)                                                                          \
    X(ATS_OK, 0, "ok")                                                                             \
    X(ATS_FAILED, 1, "failed")                                                                     \
    X(ATS_BAD_ARGUMENT, 2, "bad argument")                                                         \
    X(ATS_NO_MEMORY, 3, "out of memory")                                                           \
    X(ATS_UNSUPPORTED, 4, "not supported")                                                         \
    X(ATS_BAD_FILE, 5, "bad file")                                                                 \
    X(ATS_IO, 6, "input/output error")                                                             \
    X(ATS_CONTEXT_FULL, 7, "context is full")                                                      \
    X(ATS_CANCELLED, 8, "cancelled")                                                               \
    X(ATS_DEVICE, 9, "device error")                                                               \
    X(ATS_BAD_INPUT, 10, "bad input")

typedef enum ats_status {
#define ATS_STATUS_ENUM(name, value, text) name = value,
    ATS_STATUS_MAP(ATS_STATUS_ENUM)
#undef ATS_STATUS_ENUM
} ats_status;

/* Name-independent English text of a status ("bad file"); never NULL. */
ATS_API const char *ats_status_text(ats_status status);

/* What went wrong in the last failed call of this thread, one line; "" if nothing did. */
ATS_API const char *ats_error_text(void);

/* ------------------------------------------------------------------------------------ options */

typedef struct ats_engine ats_engine;
typedef struct ats_session ats_session;
typedef struct ats_sampler ats_sampler;

typedef enum ats_kv_type { ATS_KV_F16, ATS_KV_F32, ATS_KV_Q8_0 } ats_kv_type;

/* What may change a plan that the engine made by itself while it runs. MEMORY: other programs take
 * the GPU's memory, or give it back: what is on it beyond that leaves it, and returns. ON: also the
 * speed of a device or the link, where the plan was made by a profile. OFF: nothing. */
typedef enum ats_dynamic { ATS_DYNAMIC_MEMORY, ATS_DYNAMIC_ON, ATS_DYNAMIC_OFF } ats_dynamic;

/* Arithmetic of matrix products: DEFAULT rounds the activations of quantised weights to 8 bits;
 * F32 keeps float activations everywhere (slower; what comparisons use); BF16 is DEFAULT, but
 * rounds the activations of BF16 weights (not experts') to bf16: faster where the processor has
 * dot products of bf16. */
typedef enum ats_math { ATS_MATH_DEFAULT, ATS_MATH_F32, ATS_MATH_BF16 } ats_math;

/* done of total bytes (or steps); return false to cancel the load. Called from the loading thread.
 */
typedef bool ats_progress_fn(void *user, const char *what, uint64_t done, uint64_t total);

typedef struct ats_options {
    const char *model; /* path of a GGUF file; of any part if it is split. Required */
    int n_ctx;         /* tokens a session can hold; 0: the model's, at most 8192 */
    int n_seqs;        /* sessions open at once; 0: 1. KV is reserved for all of them */
    int n_batch;   /* tokens in one round at most; 0: 512, or up to 4096 where the plan is made by
                      measured times and prompts are faster in longer rounds */
    int n_rows;    /* rows of logits wanted in one round at most; 0: 32 */
    int n_threads; /* decode; 0: one per fast core that this process may use */
    int n_threads_batch; /* prefill; 0: as n_threads */
    bool pin;            /* a CPU for each thread; a warning (ats_log_set) where that fails */
    ats_kv_type kv_k, kv_v;
    ats_math math;
    const char *devices; /* "cpu", "cpu,vulkan", ...; for tests "sim:chaos,...". NULL: the CPU, and
                            the best GPU if there is one that is no software. The CPU joins where
                            the options below leave it something to do */
    const char *cpu_isa; /* NULL or "native": the best there is; else this set and those below:
                            "ref", "avx2", "avxvnni", "avx512", "avx512bf16", "amx",
                            "amxbf16"; "neon", "neon_dot", "neon_i8mm" */
    /* The division of the work between a CPU and a GPU. What is left open is placed by measured
     * times, so that it is predicted to be fastest: "auto" (NULL): by the profile that is kept for
     * this machine and model (see ats_profile), which is measured, with `progress`, at the first
     * load of a model; a path: by this profile; "off": none, and a GPU gets as many of the last
     * layers as its memory holds. */
    const char *profile;
    /* What is placed as a whole by such times: "layer", "expert", "tensor", "shard" (NULL); by
     * tensor experts may be placed by the paper's rule. How it is chosen what is streamed: "none",
     * "paper", "ours" (NULL). To compare with. */
    const char *granularity, *transfer;
    bool paper_moe;
    /* A plan by such times may have two programs: prompts stream what the CPU computes in decode,
     * if that is predicted to be faster. True: one program for all rounds. */
    bool one_program;
    int plan_depth; /* tokens in the context that decode is planned for; 0: half of it after 2048,
                       half after half the context, at most 8192 */
    /* What changes a plan between rounds, where it is the engine's to choose; see below. When a
     * device's or the link's speed differs by replan_threshold (0: 0.15), at least replan_interval
     * rounds (0: 5) apart, and only for a gain that pays. */
    ats_dynamic dynamic;
    double replan_threshold, replan_interval;
    const char *gpu_layers; /* "12": the last 12 layers; "all": these and the output; "auto" or
                               NULL: it is left open */
    const char *const *overrides; /* (n_overrides) "REGEX=DEVICE": the home of the tensors that it
                                     matches; DEVICE is cpu, gpu, or a device's name */
    int n_overrides;
    int n_cpu_moe;    /* experts of the first so many layers stay on the CPU; < 0: all */
    int vram_mib;     /* of the GPU's memory to use at most; 0: what is free, less some room */
    const char *plan; /* a plan's file, as ats_engine_plan() writes it */
    bool plan_only; /* the plan and the ledger, as ats_engine_describe() tells them: no weights are
                       loaded, no sessions */
    uint64_t plan_seed; /* not 0: a random division of the work over the devices (tests) */
    bool no_fusion;     /* every operator by itself (tests: changes nothing but speed) */
    bool no_repack;     /* weights stay as the file has them: quick start, slower rounds */
    bool force;         /* go on where a guess is possible: unknown pre-tokenizer */
    bool metadata_only; /* vocabulary and facts only: no weights, no sessions */
    const char *trace;  /* file that all rounds are written to as a trace for Chrome or Perfetto,
                           created or emptied (not a file of another kind); NULL: none */
    ats_progress_fn *progress;
    void *progress_user;
} ats_options;

ATS_API void ats_options_default(ats_options *options);

/* Messages of the library (it never prints): level 0 error .. 3 debug. NULL: none. Process-wide;
 * may be called from any thread. */
typedef void ats_log_fn(void *user, int level, const char *text);
ATS_API void ats_log_set(ats_log_fn *fn, void *user, int max_level);

/* ------------------------------------------------------------------------------------- engine */

/* Opens a model: reads the file's header, checks every size against the memory there is, binds
 * and loads the weights. *out is owned by the caller. Errors: BAD_FILE, UNSUPPORTED, NO_MEMORY,
 * IO, BAD_ARGUMENT, CANCELLED. */
ATS_API ATS_MUST_CHECK ats_status ats_engine_open(const ats_options *options, ats_engine **out);
/* Closes it; its sessions and samplers must be closed before. Accepts NULL. */
ATS_API void ats_engine_close(ats_engine *engine);

typedef struct ats_info {
    const char *architecture, *name; /* "llama", "SmolLM2 135M Instruct"; "" if the file has none */
    const char *file_type;           /* the type that holds most of the weights: "Q4_1" */
    const char *chat_template;       /* NULL if the file has none */
    uint64_t n_params, weight_bytes; /* elements and bytes of all weights */
    int n_layers, n_embd, n_heads, n_kv_heads, n_vocab;
    int n_ctx_train, n_ctx, n_seqs, n_batch, n_rows;
    int n_threads, n_threads_batch, n_devices;
    int32_t bos, eos; /* -1: none */
    bool adds_bos;
    const char *cpu_isa; /* the kernels in use */
} ats_info;
/* Borrowed strings, valid until the engine is closed. */
ATS_API void ats_engine_info(const ats_engine *engine, ats_info *out);

/* JSON texts (owned by the caller: ats_free), each one object:
 * the plan in force and the memory ledger; */
ATS_API char *ats_engine_describe(const ats_engine *engine);
/* why the plan in force is what it is, as ats_explain() tells it, with the prediction; NULL if no
 * profile says how long anything takes (or metadata_only); */
ATS_API char *ats_engine_explain(const ats_engine *engine);
/* the plan in force, as a file that ats_options.plan reads; NULL if metadata_only; */
ATS_API char *ats_engine_plan(const ats_engine *engine);
/* a GGUF file's metadata, tensors, tokenizer facts, without loading it; */
ATS_API ATS_MUST_CHECK ats_status ats_file_describe(const char *path, char **json);
/* this machine: processor features, usable cores, memory, devices. */
ATS_API char *ats_machine_describe(void);
ATS_API void ats_free(void *p);

/* A model on a described machine, in virtual time: what is placed where, what is streamed, and how
 * fast it would be. Nothing is loaded, no device is touched. */
typedef struct ats_simulation {
    const char *model;   /* a GGUF file, of which the header is read, or a shape (shapes/X.json) */
    const char *machine; /* machines/X.json, or a profile that was measured */
    const char *granularity; /* "layer", "expert", "tensor", "shard" (NULL) */
    const char *transfer;    /* "none", "paper", "ours" (NULL) */
    bool paper_moe;          /* tensor: experts are placed by the paper's rule */
    int vram_mib;            /* for weights, KV, buffers and slots; 0: what the machine file says */
    int n_ctx;               /* KV is reserved for it; 0: 4096; explained: as in ats_options */
    ats_kv_type kv_k, kv_v;  /* of caches; and the class of products, as in ats_options */
    ats_math math;
    int n_prompt;               /* tokens whose prefill is timed; 0: 2048 */
    int depth;                  /* tokens before the one whose decode is timed, and planned for; 0:
                                   n_prompt; explained: planned as ats_options.plan_depth has it */
    int n_batch;                /* of a chunk; 0: chosen */
    int n_slots;                /* < 0: chosen among 0, 2, 4 and 8 */
    bool stream_caches;         /* KV of the host may be copied for a round, as weights are */
    double expert_hit_exponent; /* any share s of a layer's experts, the most used, gets s^x of the
                                   choices; 0: the shape's, else 1, which is uniform */
    bool trace;                 /* "trace": Chrome's trace events of a decode round and a chunk, as
                                   predicted */
    const char *executed_trace; /* a file for those of a decode round as executed; NULL: none */
    /* Homes that are given, as in ats_options, of devices "cpu" and "gpu"; what is left open is
     * placed as well as that allows. */
    const char *gpu_layers;
    const char *const *overrides; /* (n_overrides) */
    int n_overrides, n_cpu_moe;
    const char *plan;
    bool ablation; /* "ablation": what placement, coordination, transfer and shards gain, one after
                      the other, and the four granularities, all with the same memory */
    /* "load": a long decode while other programs take their share of the machine, by a trace (a
     * JSON file, see docs/architecture.md); NULL: none. When to plan again: a
     * resource's speed differs by this share (0: 0.15), so many rounds apart (0: 5). */
    const char *load;
    double replan_threshold, replan_interval;
    const char *diff; /* explained beside the plan: that of a file, or the best by a granularity for
                         the same memory with nothing given; NULL: none */
} ats_simulation;
ATS_API void ats_simulation_default(ats_simulation *s);
/* *json owned (ats_free): one object. Errors: BAD_ARGUMENT, BAD_FILE, UNSUPPORTED, IO. */
ATS_API ATS_MUST_CHECK ats_status ats_simulate(const ats_simulation *s, char **json);
/* The plan that would be made, explained: for each tensor its home, size, time on either device and
 * the reason; totals, predictions by depth, limits, and what more or less memory, a smaller KV type
 * or half the bus would change; what given homes cost. Answer and errors as above. */
ATS_API ATS_MUST_CHECK ats_status ats_explain(const ats_simulation *s, char **json);

/* What this machine needs for a model's operators, measured: a profile, which
 * ats_simulation.machine reads. Kept in the user's cache directory for these devices, threads,
 * cache types and classes of products: an engine of the same options finds it. */
typedef struct ats_profiling {
    const char *model;      /* as for ats_simulation */
    const char *devices;    /* "cpu,vulkan": one processor, at most one GPU; NULL: what there is */
    int n_threads;          /* 0: one for each fast core */
    ats_kv_type kv_k, kv_v; /* of caches; and the class of products, as in ats_options */
    ats_math math;
    bool quick; /* fewer token counts, shares and depths; a whole profile does as well */
    bool force; /* measure even if there is one */
    ats_progress_fn *progress; /* steps */
    void *progress_user;
} ats_profiling;
ATS_API void ats_profiling_default(ats_profiling *p);
/* *json owned (ats_free): "path", "measured" (now, or was kept), "seconds", "cpu", "gpu" (null:
 * none), and "profile", what stands in the file. A kept file that is broken or of something else is
 * measured again, one that cannot be written is told in "path": null. Errors: BAD_ARGUMENT,
 * BAD_FILE, UNSUPPORTED, NO_MEMORY, DEVICE, CANCELLED. */
ATS_API ATS_MUST_CHECK ats_status ats_profile(const ats_profiling *p, char **json);
/* The file of a kept profile, with a GPU in it, that fits; NULL: there is none. Owned (ats_free).
 * Measures nothing. */
ATS_API char *ats_profile_find(const ats_profiling *p);

typedef struct ats_stats {
    uint64_t load_ns;                      /* ats_engine_open, whole */
    uint64_t n_prefill_tokens, prefill_ns; /* rounds of more than one token a session */
    uint64_t n_decode_tokens, decode_ns;   /* rounds of one token a session */
    uint64_t n_rounds;
    uint64_t kv_bytes, weight_bytes, work_bytes; /* promised at load; kv with recurrent state */
    uint64_t n_lost_devices; /* in the middle of a round, after which the CPU went on alone */
    uint64_t n_plans_made, n_plan_switches, switch_ns; /* while running (ats_options.dynamic) */
} ats_stats;
ATS_API void ats_engine_stats(const ats_engine *engine, ats_stats *out);
ATS_API void ats_engine_stats_reset(ats_engine *engine); /* counters, not load figures */

/* What rounds were made of, sums over those that were measured. Rates and shares follow: GPU busy
 * is gpu_busy_ns / round_ns, the link's rate (weight_bytes + activation_bytes) / round_ns, overlap
 * efficiency (cpu_busy_ns + gpu_busy_ns + link_busy_ns) / (3 * round_ns). */
typedef struct ats_metrics {
    uint64_t n_rounds, n_tokens, round_ns;
    uint64_t cpu_busy_ns, gpu_busy_ns; /* in which any device of the kind computed */
    uint64_t link_busy_ns;             /* in which weights were copied to a GPU */
    uint64_t exposed_ns;               /* idle only because a streamed weight had not arrived */
    uint64_t weight_bytes;             /* streamed to GPUs */
    uint64_t activation_bytes;         /* between GPUs and the rest */
    uint64_t n_splits;                 /* waits of a device for another: changes of the device */
    uint64_t n_copies;                 /* of streamed weights; each ends in a slot of its device */
    uint64_t n_submissions;            /* calls to drivers of GPUs */
    uint64_t wait_ns;                  /* the caller's thread waited */
    uint64_t driver_ns;                /* inside those calls */
    uint64_t host_ns;   /* work of the host beside kernels, drivers and waits, whatever thread
                           did it */
    uint64_t n_untimed; /* segments and copies whose device could not tell their times, which
                           are missing above */
} ats_metrics;
/* Rounds from now on are measured, or (as at first) not; clocks cost them a little. */
ATS_API void ats_engine_measure(ats_engine *engine, bool on);
/* decode: rounds of one token a session, else those of more; ats_engine_stats_reset clears both. */
ATS_API void ats_engine_metrics(const ats_engine *engine, bool decode, ats_metrics *out);

/* Asked between rounds (and between chunks of a long prompt): true stops with ATS_CANCELLED; what
 * was evaluated so far stays in the sessions. Called from ats_eval and ats_generate, and, while a
 * long text is tokenized or a template takes long, from ats_tokenize, ats_tokenize_chat and
 * ats_chat_render. */
typedef bool ats_cancel_fn(void *user);
ATS_API void ats_engine_set_cancel(ats_engine *engine, ats_cancel_fn *fn, void *user);

/* --------------------------------------------------------------------------------------- text */

enum { ATS_TOKENIZE_SPECIAL = 1, ATS_TOKENIZE_PARSE_SPECIAL = 2 };
/* Text to ids. SPECIAL: adds BOS/EOS as the file says. PARSE_SPECIAL: control tokens written in
 * the text count as such (for rendered templates; never for a user's words). text need not be
 * UTF-8: invalid parts count as U+FFFD. *ids owned (ats_free), never NULL on success. */
ATS_API ATS_MUST_CHECK ats_status ats_tokenize(const ats_engine *engine, const char *text,
                                               size_t n_bytes, unsigned flags, int32_t **ids,
                                               size_t *n_ids);
/* The bytes a token stands for (control tokens: their name); borrowed, may hold any bytes. NULL if
 * id is not in the vocabulary. */
ATS_API const char *ats_token_text(const ats_engine *engine, int32_t id, size_t *n_bytes);
/* Ids to text as generation writes it: whole UTF-8 characters, control tokens left out unless
 * `special`. Owned (ats_free). */
ATS_API ATS_MUST_CHECK ats_status ats_detokenize(const ats_engine *engine, const int32_t *ids,
                                                 size_t n_ids, bool special, char **text,
                                                 size_t *n_bytes);
/* True for every token that ends a generation (eos, eot, eom, known names). */
ATS_API bool ats_token_is_end(const ats_engine *engine, int32_t id);

/* Renders the model's chat template (or a ChatML one when it has none). messages_json: an array
 * in OpenAI's shape ([{"role":"user","content":"..."}]); extra_json: an object of further template
 * variables ("tools", "enable_thinking", ...) or NULL. *text owned (ats_free); tokenize it with
 * ats_tokenize_chat. */
ATS_API ATS_MUST_CHECK ats_status ats_chat_render(const ats_engine *engine,
                                                  const char *messages_json, const char *extra_json,
                                                  bool add_generation_prompt, char **text);
/* Ids of a rendered chat: control tokens parsed, BOS added only where the text does not already
 * begin with it. */
ATS_API ATS_MUST_CHECK ats_status ats_tokenize_chat(const ats_engine *engine, const char *text,
                                                    int32_t **ids, size_t *n_ids);

/* ----------------------------------------------------------------------------------- sessions */

/* BAD_ARGUMENT when n_seqs sessions are open already. *out owned. */
ATS_API ATS_MUST_CHECK ats_status ats_session_open(ats_engine *engine, ats_session **out);
ATS_API void ats_session_close(ats_session *session); /* accepts NULL */
/* Tokens it holds (borrowed until the next call on it). */
ATS_API const int32_t *ats_session_tokens(const ats_session *session, size_t *n);
/* Keeps the first n tokens; more than it has is BAD_ARGUMENT. Where a model's windows have given up
 * what the next token would look at, those tokens are evaluated again, and of a model with
 * recurrent layers those behind the last snapshot: errors of ats_eval, with fewer tokens kept. */
ATS_API ATS_MUST_CHECK ats_status ats_session_truncate(ats_session *session, size_t n);
/* Remembers the session's recurrent state, so that going back to this number of tokens costs
 * nothing; the last three are kept. Other models need none and go back anywhere. */
ATS_API void ats_session_snapshot(ats_session *session);

typedef enum ats_want { ATS_WANT_NONE, ATS_WANT_LAST, ATS_WANT_ALL } ats_want;

typedef struct ats_run {
    ats_session *session;
    const int32_t *tokens; /* appended to the session */
    size_t n_tokens;
    ats_want want;
    float *logits; /* ALL: (n_tokens, n_vocab); LAST: (1, n_vocab) or NULL */
} ats_run;

/* Evaluates several sessions' tokens together, cut into rounds of n_batch. A session stands in at
 * most one run. CONTEXT_FULL (nothing evaluated, the session unchanged) if a run does not fit. */
ATS_API ATS_MUST_CHECK ats_status ats_eval(ats_engine *engine, ats_run *runs, int n_runs);
/* Makes the session hold exactly tokens[0..n), reusing the longest common prefix (with recurrent
 * layers, what the last snapshot has of it), and evaluates the rest (at least the last token), so
 * that the logits are those after it. Takes snapshots where the next call may go back to. *n_reused
 * may be NULL. */
ATS_API ATS_MUST_CHECK ats_status ats_session_set(ats_session *session, const int32_t *tokens,
                                                  size_t n, size_t *n_reused);
/* Logits after the last evaluated token (n_vocab), NULL if there are none; borrowed until the
 * engine next evaluates or plans, whichever session that is for. */
ATS_API const float *ats_session_logits(const ats_session *session);

/* --------------------------------------------------------------------------------- generation */

typedef struct ats_logit_bias {
    int32_t token;
    float bias;
} ats_logit_bias;

/* Applied in this order: logit bias, repetition/presence/frequency penalties, DRY, top-k, typical,
 * top-p, min-p, XTC, temperature, then the draw. temperature <= 0: the most probable token.
 * Mirostat 2 replaces the steps from top-k to the draw. */
typedef struct ats_sampling {
    float temperature;                                         /* 0.8 */
    int top_k;                                                 /* 40; 0: all */
    float top_p;                                               /* 0.95; 1: off */
    float min_p;                                               /* 0.05; 0: off */
    float typical_p;                                           /* 1: off */
    float repeat_penalty, presence_penalty, frequency_penalty; /* 1, 0, 0: off */
    int penalty_last_n;                                        /* 64; -1: the context */
    float dry_multiplier;                                      /* 0: off */
    float dry_base;                                            /* 1.75 */
    int dry_allowed_length, dry_last_n;                        /* 2; -1: the context */
    const char *const *dry_breakers; /* NULL: newline, colon, double quote, asterisk */
    int n_dry_breakers;
    float xtc_probability, xtc_threshold; /* 0: off; 0.1 */
    int mirostat;                         /* 0 or 2 */
    float mirostat_tau, mirostat_eta;     /* 5, 0.1 */
    const ats_logit_bias *logit_bias;
    int n_logit_bias;
    uint64_t seed; /* same seed, same text; default: random */
} ats_sampling;

/* Defaults as commented, overridden by the file's general.sampling.* keys if engine is given. If
 * its general.sampling.sequence lists steps in the order above, those that it does not name are
 * off; a list in another order is not followed, which is told when the file is opened. */
ATS_API void ats_sampling_default(const ats_engine *engine, ats_sampling *out);

/* A sampler has the state of one generation: random numbers, history. BAD_ARGUMENT names the
 * field that is out of range. *out owned. */
ATS_API ATS_MUST_CHECK ats_status ats_sampler_open(const ats_engine *engine,
                                                   const ats_sampling *params, ats_sampler **out);
ATS_API void ats_sampler_close(ats_sampler *sampler); /* accepts NULL */
/* Takes note of a token of the prompt or of another's choice (penalties, DRY). */
ATS_API void ats_sampler_accept(ats_sampler *sampler, int32_t token);
/* Picks the next token from logits (n_vocab, unchanged) and takes note of it. */
ATS_API int32_t ats_sampler_pick(ats_sampler *sampler, const float *logits);

typedef enum ats_stop {
    ATS_STOP_END,
    ATS_STOP_STRING,
    ATS_STOP_LENGTH,
    ATS_STOP_CONTEXT,
    ATS_STOP_CALLER
} ats_stop;

typedef struct ats_generation {
    /* in */
    int max_tokens;           /* < 0: until the model ends or the context is full */
    bool ignore_end;          /* end tokens do not stop */
    const char *const *stops; /* stop strings, found across token borders, not part of the text */
    int n_stops;
    /* Text as it comes, whole characters only; n_bytes may be 0 for a token held back. Return
     * false to stop. May be NULL. */
    bool (*on_text)(void *user, const char *text, size_t n_bytes, int32_t token);
    void *user;
    /* out */
    int n_tokens; /* generated, the end token included */
    ats_stop stop;
} ats_generation;

/* Continues a session that has logits. The end token is not kept in the session; a generation
 * stopped by its length keeps all its tokens, so that another call goes on after them; one stopped
 * by the caller or a stop string keeps what was evaluated: all but the last. */
ATS_API ATS_MUST_CHECK ats_status ats_generate(ats_session *session, ats_sampler *sampler,
                                               ats_generation *generation);

#ifdef __cplusplus
}
#endif
