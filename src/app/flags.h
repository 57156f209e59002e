/*
 * The one table of flags and commands. Parsing, help, environment names, configuration keys,
 * completion, the man page and "did you mean" all read it, so that they cannot drift apart.
 * It holds values as given; what they mean is the commands' job.
 */
#pragma once

#include "base/arena.h"
#include "base/error.h"

enum command_id {
    CMD_RUN,
    CMD_BENCH,
    CMD_PERPLEXITY,
    CMD_PLAN,
    CMD_INSPECT,
    CMD_TOKENIZE,
    CMD_LOGITS,
    CMD_SIMULATE,
    CMD_PROFILE,
    CMD_DOCTOR,
    CMD_COMPLETION,
    CMD_MAN,
    CMD_VERSION,
    CMD_HELP,
    N_COMMANDS
};
#define CMD_BIT(id) (1u << (id))

struct command {
    const char *name, *alias; /* alias may be NULL */
    const char *positional;   /* "[MODEL]"; NULL: takes none */
    int n_positional;         /* at most; -1: any number */
    const char *summary;      /* one line, no full stop */
    const char *about;        /* a paragraph for --help and the man page */
    const char *examples;     /* lines, each "command  # what it does" */
};
extern const struct command commands[N_COMMANDS];

enum flag_kind {
    FLAG_SWITCH,   /* on, or with a value: 1/0, true/false, on/off, yes/no */
    FLAG_INTEGER,  /* int64, within min..max */
    FLAG_REAL,     /* finite double, within min..max */
    FLAG_SEED,     /* uint64, or -1 */
    FLAG_TEXT,     /* any text */
    FLAG_TEXTS,    /* any text, may be repeated */
    FLAG_CHOICE,   /* one of choices */
    FLAG_INTEGERS, /* comma-separated integers, may be repeated */
    FLAG_CHOICES   /* comma-separated choices, may be repeated */
};

enum flag_group {
    GROUP_MODEL,
    GROUP_TEXT,
    GROUP_TASK,
    GROUP_COMPUTE,
    GROUP_PLACEMENT,
    GROUP_SAMPLING,
    GROUP_OUTPUT,
    N_GROUPS
};
extern const char *const flag_group_titles[N_GROUPS];

enum flag_id {
    /* shared by most commands */
    FLAG_MODEL,
    FLAG_FORCE,
    FLAG_CTX_SIZE,
    FLAG_BATCH_SIZE,
    FLAG_UBATCH_SIZE,
    FLAG_THREADS,
    FLAG_THREADS_BATCH,
    FLAG_PIN,
    FLAG_CACHE_TYPE_K,
    FLAG_CACHE_TYPE_V,
    FLAG_MATH,
    FLAG_DEVICE,
    FLAG_GPU_LAYERS,
    FLAG_OVERRIDE_TENSOR,
    FLAG_CPU_MOE,
    FLAG_N_CPU_MOE,
    FLAG_VRAM,
    FLAG_PROFILE,
    FLAG_ONE_PROGRAM,
    FLAG_PLAN_DEPTH,
    FLAG_DYNAMIC,
    FLAG_REPLAN_THRESHOLD,
    FLAG_REPLAN_INTERVAL,
    FLAG_PLAN,
    FLAG_SAVE_PLAN,
    FLAG_CPU_ISA,
    FLAG_NO_REPACK,
    FLAG_NO_FUSION,
    FLAG_PLAN_SEED,
    FLAG_TRACE,
    FLAG_JSON,
    FLAG_QUIET,
    FLAG_VERBOSE,
    FLAG_HELP,
    /* run */
    FLAG_PROMPT,
    FLAG_FILE,
    FLAG_SYSTEM_PROMPT,
    FLAG_PREDICT,
    FLAG_NO_TEMPLATE,
    FLAG_TEMPLATE_KWARGS,
    FLAG_REASONING_FORMAT,
    FLAG_REASONING_BUDGET,
    FLAG_REVERSE_PROMPT,
    FLAG_IGNORE_EOS,
    FLAG_NO_HISTORY,
    /* sampling */
    FLAG_SEED_VALUE,
    FLAG_TEMP,
    FLAG_TOP_K,
    FLAG_TOP_P,
    FLAG_MIN_P,
    FLAG_TYPICAL,
    FLAG_REPEAT_PENALTY,
    FLAG_REPEAT_LAST_N,
    FLAG_PRESENCE_PENALTY,
    FLAG_FREQUENCY_PENALTY,
    FLAG_DRY_MULTIPLIER,
    FLAG_DRY_BASE,
    FLAG_DRY_ALLOWED_LENGTH,
    FLAG_DRY_PENALTY_LAST_N,
    FLAG_DRY_BREAKER,
    FLAG_XTC_PROBABILITY,
    FLAG_XTC_THRESHOLD,
    FLAG_MIROSTAT,
    FLAG_MIROSTAT_ENT,
    FLAG_MIROSTAT_LR,
    FLAG_LOGIT_BIAS,
    /* bench */
    FLAG_BENCH_PROMPT,
    FLAG_BENCH_GEN,
    FLAG_BENCH_PG,
    FLAG_BENCH_DEPTH,
    FLAG_BENCH_REPETITIONS,
    FLAG_BENCH_OUTPUT,
    FLAG_BENCH_FILE,
    FLAG_BENCH_NO_WARMUP,
    FLAG_BENCH_METRICS,
    FLAG_BENCH_BATCH,
    FLAG_BENCH_UBATCH,
    FLAG_BENCH_THREADS,
    FLAG_BENCH_TYPE_K,
    FLAG_BENCH_TYPE_V,
    /* perplexity */
    FLAG_PPL_FILE,
    FLAG_PPL_CTX,
    FLAG_PPL_CHUNKS,
    /* inspect */
    FLAG_INSPECT_TENSORS, /* and plan */
    FLAG_INSPECT_KV,
    FLAG_INSPECT_TEMPLATE,
    /* tokenize */
    FLAG_TOK_FILE,
    FLAG_TOK_IDS,
    FLAG_TOK_PIECES,
    FLAG_TOK_DECODE,
    FLAG_TOK_SPECIAL,
    FLAG_TOK_NO_SPECIAL,
    FLAG_TOK_PARSE_SPECIAL,
    /* logits */
    FLAG_LOGITS_IDS,
    FLAG_LOGITS_OUTPUT,
    FLAG_LOGITS_SEQS,
    /* simulate */
    FLAG_SIM_MACHINE,
    FLAG_SIM_GRANULARITY,
    FLAG_SIM_TRANSFER,
    FLAG_SIM_MOE_RULE,
    FLAG_SIM_CTX,
    FLAG_SIM_PROMPT,
    FLAG_SIM_DEPTH,
    FLAG_SIM_BATCH,
    FLAG_SIM_SLOTS,
    FLAG_SIM_STREAM_KV,
    FLAG_SIM_HIT,
    FLAG_SIM_ABLATION,
    FLAG_SIM_LOAD,
    FLAG_PLAN_DIFF,
    /* profile */
    FLAG_PROFILE_QUICK,
    FLAG_PROFILE_FORCE,
    N_FLAGS
};

struct flag {
    const char *names[4];      /* short ones first; the first long one names environment and keys */
    const char *value;         /* what the value is called in help: "N"; NULL for switches */
    const char *help;          /* one sentence, lower case, no full stop */
    const char *default_value; /* parsed when nothing is given, and shown; NULL: none */
    const char *choices;       /* "f32|f16|q8_0" */
    const char *llama_env;     /* NAME of LLAMA_ARG_NAME; NULL: llama.cpp has none */
    double min, max;           /* FLAG_INTEGER, FLAG_INTEGERS, FLAG_REAL */
    enum flag_kind kind;
    enum flag_group group;
    unsigned commands; /* CMD_BIT()s */
    bool hidden;       /* for tests: works, but stands in no list */
    bool only_here;    /* not from environment and configuration */
    bool takes_file;   /* completion offers file names */
};
extern const struct flag flag_table[N_FLAGS];

/* Where a value came from; a higher one wins. */
enum flag_source {
    SOURCE_NONE,
    SOURCE_DEFAULT,
    SOURCE_INI_ALL,
    SOURCE_INI_COMMAND,
    SOURCE_LLAMA_ENV,
    SOURCE_ENV,
    SOURCE_COMMAND_LINE
};

struct flag_value {
    enum flag_source source;
    int64_t integer; /* switches 0/1, integers, seeds (as uint64), choices (index) */
    double real;
    const char *text;
    const char **texts; /* (n) FLAG_TEXTS */
    int64_t *integers;  /* (n) FLAG_INTEGERS, FLAG_CHOICES */
    size_t n, cap;
};

struct flags {
    struct arena arena; /* texts live here */
    enum command_id command;
    struct flag_value values[N_FLAGS];
    const char **positionals; /* (n_positionals) borrowed from argv */
    size_t n_positionals, cap_positionals;
};

void flags_init(struct flags *f, enum command_id command);
void flags_free(struct flags *f);
/* argv[0..argc) after the command's name. Stops at --help. BAD_ARGUMENT with a text that names the
 * flag, its range, and what may have been meant. */
MUST_CHECK ats_status flags_parse(struct flags *f, int argc, char **argv);
/* Values for flags not given, from ATSINFER_NAME, then LLAMA_ARG_NAME (config.c). */
MUST_CHECK ats_status flags_read_env(struct flags *f);
/* Then from an INI text: keys are long names, sections "*" (or none) and commands' names. `name`
 * is the file's, for messages (config.c). */
MUST_CHECK ats_status flags_read_ini(struct flags *f, const char *name, const char *text);
/* The same from atsinfer/config.ini of the XDG configuration directory; ok if there is none. */
MUST_CHECK ats_status flags_read_config(struct flags *f);
/* Last: the table's default values. */
void flags_set_defaults(struct flags *f);

/* Sets one flag from text; `where` names it in messages ("-t", "ATSINFER_THREADS"). A value that
 * came from a higher source stays. */
MUST_CHECK ats_status flag_set(struct flags *f, enum flag_id id, const char *text,
                               enum flag_source source, const char *where);

bool flag_given(const struct flags *f, enum flag_id id); /* by anything but the default */
bool flag_on(const struct flags *f, enum flag_id id);
/* Of a flag with a default value, or given; 0 otherwise. */
int flag_int(const struct flags *f, enum flag_id id);
const char *flag_text(const struct flags *f, enum flag_id id); /* NULL if there is none */

/* Facts of the table. */
const char *flag_long_name(const struct flag *flag); /* "--ctx-size" */
/* Name of a flag as it stands in the command's table; N_FLAGS if it has none. */
enum flag_id flag_find(enum command_id command, const char *name, size_t n);
/* "1 to 512", "f32, f16, q8_0", "a number": owned by the arena. */
const char *flag_range_text(struct arena *a, const struct flag *flag);
/* "ATSINFER_CTX_SIZE": owned by the arena. */
const char *flag_env_name(struct arena *a, const struct flag *flag);
/* Number i of "a|b|c" and its length; NULL past the end. */
const char *choice_at(const char *choices, int i, size_t *n);
enum command_id command_find(const char *name); /* N_COMMANDS if unknown */
/* The nearest name that could have been meant, or NULL. */
const char *flag_suggest(enum command_id command, const char *name);
const char *command_suggest(const char *name);

/* Whole text as a number: no blanks, no trailing characters, no overflow. */
MUST_CHECK bool parse_i64(const char *text, int64_t *out);
MUST_CHECK bool parse_u64(const char *text, uint64_t *out);
MUST_CHECK bool parse_real(const char *text, double *out); /* finite */
MUST_CHECK bool parse_switch(const char *text, bool *out);
