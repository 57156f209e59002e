/*
 * What the files of the CPU backend share: cpu.c (memory, timeline), phases.c (steps -> phases),
 * exec.c (running phases on the pool), products.c, experts.c, attention.c and recurrent.c (the
 * heavy ones).
 *
 * A segment is a list of phases. Every thread of the pool runs through all of them and does its
 * share of each; `barrier` stands before a phase that needs what others did. Shares depend on
 * nothing that a result could depend on: each output element is computed by one thread in one
 * fixed order (house.md 9).
 */
#pragma once

#include <stdatomic.h>
#include "backend/backend.h"
#include "backend/cpu/kernels.h"
#include "base/arena.h"
#include "base/threads.h"

#define ATTN_RANGE       256   /* keys that are one link of the softmax chain */
#define ATTN_SMALL_ROUND 8     /* tokens up to which attention is cut by ranges of keys */
#define ATTN_MAX_QUERIES 48    /* queries against one read of K, if a KV head has no more */
#define SMALL_FLOATS     16384 /* inputs up to which every thread prepares them for itself */
#define SMALL_LINES      8
#define EXPERT_LINES     512 /* tokens that are sorted by expert at a time */
#define EXPERT_RUN       128 /* of which this many meet an expert's rows at a time */
#define EXPERT_ROWS      64  /* rows a thread takes at a time in large rounds */
#define ROUTE_ALONE      256 /* scores up to which every thread chooses for itself */
#define CONV_SHARE       64  /* columns that a thread takes at least */
#define DELTA_TOKENS     128 /* whose gates are computed at a time */
#define MAX_PRODUCTS     6
#define MAX_ROPES        8 /* different rotary embeddings in one segment */

struct backend_weight {
    struct weight_source s;      /* in the file's map; still serves single rows when packed */
    const uint8_t *packed;       /* backend/packed.h; NULL: raw blocks */
    uint8_t *fill;               /* the same while it is unpacked */
    struct backend_weight *next; /* in cpu.unpacked */
};

struct backend_kv {
    struct kv_layout layout;
    uint8_t *memory; /* K of all pages, then V */
    size_t bytes;
    size_t k_row, v_row; /* bytes of a head of a position */
    uint8_t *v;
};

/* Products that read the same input, with what is cheap before and after them. */
struct products {
    const struct step *norm; /* computed on the way in, or NULL; its output is stored only */
    bool keeps_norm;         /* then: others read it */
    const struct step *items[MAX_PRODUCTS];
    int n;
    const struct step *gated; /* of items[0] and items[1], or NULL */
    const struct step *sum;   /* takes items[0]'s output, or NULL */
};

enum phase_kind {
    PHASE_ROPE_TABLE, /* cos and sin of this round's positions */
    PHASE_STEP,       /* any step that is cut by lines, heads or columns */
    PHASE_PRODUCTS,
    PHASE_EXPERTS, /* with barriers of its own inside */
    PHASE_ATTN_STORE,
    PHASE_ATTN_RANGES, /* small rounds: each range by itself; large ones: everything */
    PHASE_ATTN_MERGE,  /* small rounds: the ranges of a head, in order */
    PHASE_CONV,
    PHASE_DELTA,
};
struct phase {
    enum phase_kind kind;
    bool barrier; /* before it */
    int spare; /* rounds of one token have none if the number of threads divides this; 0: all do */
    const struct step *step;
    struct products products;
    const struct step *route; /* EXPERTS: the choice, if it is made here, or NULL */
    const struct step *sum;   /* EXPERTS: takes its output, or NULL */
    int counter;              /* of dynamic shares */
};

struct backend_segment {
    struct arena arena;
    struct phase *phases;
    size_t n_phases, cap_phases;
    const struct graph_op *ropes[MAX_ROPES]; /* distinct embeddings, by inv_freq */
    int n_ropes;
    int n_counters;
    _Atomic int *counters;      /* (n_counters) zeroed before each run */
    struct backend_times times; /* of the last run; end 0: not timed */
    const struct step *steps;   /* (n_steps) borrowed */
    int n_steps;
};

/* Memory of one thread. */
struct cpu_scratch {
    float *floats;   /* (SMALL_FLOATS) normed input */
    uint8_t *q8;     /* its 8-bit form */
    uint16_t *bf16;  /* its bf16 form */
    uint8_t *matmul; /* matmul_scratch_bytes */
    float *attn;     /* see attention.c */
    float *gates;    /* (2 * DELTA_TOKENS) see recurrent.c */
    int *pairs;      /* see experts.c, as the next two */
    float *pair_weights, *expert_rows, *route;
};

struct cpu_job;
struct cpu {
    struct backend base;
    struct kernels k;
    struct backend_options options;
    struct thread_pool *pool;
    struct backend_limits limits;
    struct weight_region *regions;
    struct backend_weight *unpacked; /* loaded, but not repacked yet; the last one first */
    uint8_t *local;
    size_t local_bytes;
    uint8_t *work; /* everything below stands in it */
    size_t work_bytes;
    struct cpu_scratch *scratch; /* (threads) */
    float *shared_floats;        /* large rounds: (n_tokens, max_cols) normed input */
    uint8_t *shared_q8;          /* and its 8-bit form */
    uint16_t *shared_bf16;       /* and its bf16 form */
    float *rope[MAX_ROPES];      /* (n_tokens, n_rot): n_rot / 2 cos, then n_rot / 2 sin */
    float *attn_partial;         /* small rounds: see attention.c */
    float *expert_x, *expert_h;  /* see experts.c, as the next two */
    uint8_t *expert_x8, *expert_h8;

    bool timed;             /* set between rounds */
    uint64_t n_submissions; /* by the thread that submits */

    _Atomic uint64_t value;
    _Atomic int n_waiting; /* for it */
    pthread_mutex_t lock;  /* of what follows */
    pthread_cond_t changed;
    bool closing;
    struct thread thread;  /* runs the queue when the caller does not drive */
    struct cpu_job *queue; /* oldest first */
};

/* One run of a segment, seen by all its threads. */
struct cpu_run {
    struct cpu *cpu;
    struct backend_segment *segment;
    const struct round *round;
};

static inline int step_lines(const struct step *s, const struct round *r) {
    return s->rows ? r->n_rows : r->n_tokens;
}
static inline float *span_at(const struct cpu *c, const struct span *s, int line, int column) {
    uint8_t *base = s->space == SPACE_LOCAL ? c->local : c->limits.exchange;
    float *first = (float *)(void *)(base + s->offset_bytes);
    return first + (int64_t)line * s->stride + column - s->first;
}

/* The input of products as their kernels want it: n_lines rows. */
struct product_input {
    const float *x; /* class f32 */
    int64_t x_stride;
    struct q8_rows q8;    /* class q8 */
    const uint16_t *bf16; /* class bf16 */
    int64_t bf16_stride;
    int first_line; /* of the round's: 0 but for a part of them */
    int n_lines;
};

/* Rows of a weight's matrix, which is 0 but for experts; begin: on a packed group. */
struct matrix_rows {
    const struct backend_weight *weight; /* NULL: none */
    int matrix, begin, end;
};

/* weights.c */
/* Of one matrix of a packed weight; the next one begins there. */
size_t cpu_packed_bytes(const struct weight_source *s);
int64_t cpu_weight_bytes(struct backend *b, const struct weight_source *source);
ats_status cpu_home_open(struct backend *b, const struct weight_source *source,
                         struct backend_home **out);
void cpu_home_close(struct backend *b, struct backend_home *home);
void cpu_home_source(struct backend *b, const struct backend_home *home,
                     struct weight_source *source);
ats_status cpu_weight_load(struct backend *b, const struct weight_source *source,
                           struct backend_weight **out);
ats_status cpu_weights_ready(struct backend *b);
void cpu_weight_free(struct backend *b, struct backend_weight *w);
void cpu_weights_close(struct cpu *c);

/* phases.c */
struct backend_segment *cpu_phases_build(const struct cpu *c, const struct step *steps,
                                         int n_steps);
/* fetch.c: what a thread will read next is asked for while it waits, or works on something else.
 * Nothing under no_fusion.
 * Rows [begin, end) of matrix `matrix`, in the order in which products of few tokens take them. */
struct fetch {
    const uint8_t *next;
    size_t left; /* bytes */
};
void cpu_fetch_begin(struct fetch *f, const struct cpu *c, const struct backend_weight *w,
                     int matrix, int begin, int end);
/* The same of plain memory. */
void cpu_fetch_memory(struct fetch *f, const struct cpu *c, const void *memory, size_t bytes);
/* Asks for the next FETCH_STEP bytes; false when all is asked for. A pool_idle_fn. */
bool cpu_fetch_step(void *fetch);
/* For the products of `now` to ask for on their way (matmul_packed_q8_fn): where the rows of `then`
 * begin, or NULL if the two are not of one type and n_cols; their first lines are asked for at once
 * then, if few lines are multiplied. */
const uint8_t *cpu_fetch_then(const struct cpu *c, const struct matrix_rows *now,
                              const struct matrix_rows *then, int n_lines);

/* What a phase consists of, and the weights of its norm. They leave the caches from round to round
 * while weights go by, and are asked for in the phase before. */
void cpu_fetch_phase(const struct cpu *c, const struct phase *p);

/* exec.c: the segment, on the pool. */
void cpu_run_segment(struct cpu *c, struct backend_segment *s, const struct round *round);
void cpu_run_sum(const struct cpu *c, const struct step *s, int line, int begin, int end);
int cpu_item_columns(const struct step *s); /* of a light step: that are one thread's */

/* products.c */
/* out: (n_lines, out_stride), column 0 is row `begin`. then: what this thread multiplies next, of
 * which the beginning is asked for ahead; may be none. scratch: this thread's matmul. */
void cpu_multiply(const struct cpu *c, struct matrix_rows rows, enum math math,
                  const struct product_input *in, float *out, int64_t out_stride,
                  struct matrix_rows then, void *scratch);
/* n rows of an input from its row `from` on. */
struct product_input cpu_input_rows(const struct product_input *in, int from, int n);
void cpu_run_products(struct cpu_run *r, const struct phase *p, int thread, int n_threads);
/* What the thread will read first in the phase; nothing in large rounds. */
void cpu_products_fetch(const struct cpu_run *r, const struct phase *p, int thread, int n_threads,
                        struct fetch *out);

/* experts.c */
/* out: ids and weights of the line's experts. */
void cpu_run_route(const struct cpu *c, const struct step *s, int line, float *out);
void cpu_run_experts(struct cpu_run *r, const struct phase *p, int thread, int n_threads);
int cpu_experts_counters(const struct backend_limits *limits); /* that a phase takes */

/* cpu.c: carves pieces of 64-byte alignment; with base NULL it only counts. */
struct carver {
    uint8_t *base;
    size_t used;
};
void *cpu_carve(struct carver *c, size_t bytes);
/* experts.c: what it needs of the work memory, of a thread and of all. */
void cpu_experts_carve_thread(const struct backend_limits *l, struct carver *k,
                              struct cpu_scratch *s);
void cpu_experts_carve(const struct backend_limits *l, struct carver *k, struct cpu *c);

/* attention.c */
size_t cpu_attn_scratch_floats(const struct backend_limits *limits); /* a thread's */
size_t cpu_attn_partial_floats(const struct backend_limits *limits); /* shared */
void cpu_attn_store(struct cpu_run *r, const struct phase *p, int thread, int n_threads);
void cpu_attn_ranges(struct cpu_run *r, const struct phase *p, int thread, int n_threads);
/* False if the ranges phase left nothing to merge: the phase is skipped then, with its barrier. */
bool cpu_attn_must_merge(const struct round *round);
void cpu_attn_merge(struct cpu_run *r, const struct phase *p, int thread, int n_threads);

/* recurrent.c */
ats_status cpu_state_open(struct backend *b, const struct state_layout *layout,
                          struct backend_state **out);
void cpu_state_close(struct backend *b, struct backend_state *s);
ats_status cpu_state_read(struct backend *b, struct backend_state *s, int slot, float *out);
ats_status cpu_state_write(struct backend *b, struct backend_state *s, int slot, const float *in);
void cpu_run_conv(struct cpu_run *r, const struct phase *p, int thread, int n_threads);
void cpu_run_delta(struct cpu_run *r, const struct phase *p, int thread, int n_threads);
/* The state that the thread will read first in the phase; nothing in large rounds. */
void cpu_delta_fetch(const struct cpu_run *r, const struct phase *p, int thread, int n_threads,
                     struct fetch *out);
