/*
 * HOW on one device: the interface that every backend (cpu, vulkan, sim) fills, and what the
 * executor says through it. No optional slot. A backend executes steps, one operator restricted to
 * ranges on this device, in the order given; it decides nothing about placement.
 *
 * Order and time. Each backend has one timeline, a counter that only grows: a submitted segment
 * waits for values of other timelines and, when all its steps are done, sets its own. Steps of one
 * device never overlap in effect: a later step sees all writes of an earlier one. Writes to the
 * exchange are visible to whoever waited for the segment's value. A buffer's lifetime ends with the
 * value of its last reader, never before.
 *
 * Streaming. A device that streams has a second timeline, of its copies, and slots: buffers of its
 * memory, all of one size. A streamed weight has a home in host memory, which others may share, and
 * belongs to a place in a slot; a copy brings the weights of one slot there, beside segments. One
 * step reads it. Who waits for what is all the caller's: a segment for the copy that brings its
 * weights, a copy for the last segment that reads what stood in its slot, or, where nobody has read
 * it, for the copy that brought it.
 */
#pragma once

#include "backend/kv_type.h"
#include "base/error.h"
#include "model/graph.h"

#define KV_PAGE_TOKENS_LOG2 6 /* 64 positions a page */
#define STEP_MAX_IN         8

/* Where floats stand: column c of line t is at offset_bytes + 4 * (t * stride + c - first) of a
 * space. LOCAL is the device's own work memory, EXCHANGE host memory that all devices reach. */
enum space { SPACE_LOCAL, SPACE_EXCHANGE };
struct span {
    enum space space;
    int64_t offset_bytes;
    int stride; /* floats from line to line */
    int first;  /* the column that stands first */
};

struct backend_weight; /* a shard on this device; opaque, owned by the backend */
struct backend_home;   /* where a streamed shard stands in host memory; the same */
struct backend_kv;     /* a pool of pages of one layer and head range on this device */
struct backend_state;  /* slots for the state of one recurrent operator's range on this device */
struct backend_segment;

enum step_kind {
    STEP_OP,   /* what op->kind says, restricted to the ranges below */
    STEP_SUM,  /* out = in[0] + in[1] + ... left to right, columns [begin, end) */
    STEP_COPY, /* out = in[0], columns [begin, end) */
};
struct step {
    enum step_kind kind;
    const struct graph_op *op; /* STEP_OP */
    struct span in[STEP_MAX_IN], out;
    int n_in;
    int begin, end;           /* columns of out that are produced; whole heads for NORM and ROPE */
    int in_begin, in_end;     /* MATMUL: columns of in[0] that are read; a partial sum if not all */
    int head_begin, head_end; /* ATTENTION: KV heads; DELTA: heads; kv, state hold just these */
    int expert_begin, expert_end;  /* EXPERTS: those whose sum is made; a partial sum if not all */
    bool rows;                     /* out has a line per wanted row, else per token */
    bool in_rows;                  /* the same for in */
    bool releases;                 /* the last of its round to read its streamed weights' slot */
    int n_readers;                 /* later steps of this device that read out */
    struct backend_weight *weight; /* EMBED, MATMUL: the shard; NORM: the vector or NULL; ATTENTION:
                                      sinks of the query heads of the range above, or NULL; CONV:
                                      filters, DELTA: decays of just the range above */
    struct backend_weight *bias;   /* MATMUL: the shard's range; ROUTE: of the scores; or NULL;
                                      DELTA: dt of the range */
    struct backend_weight *experts[N_EXPERT_WEIGHTS];       /* EXPERTS: just the range above */
    struct backend_weight *expert_biases[N_EXPERT_WEIGHTS]; /* the same; NULL: not biased */
    struct backend_kv *kv;                                  /* ATTENTION */
    struct backend_state *state;                            /* CONV, DELTA */
};

/* One sequence's part of a round: tokens [token_begin, token_begin + n_tokens), the first of them
 * at `position`; pages[c][p >> 6] holds position p of the layers of class c (attention_params'
 * kv_class), for all positions up to its last that those layers see; others may be -1. Recurrent
 * operators begin with the state in slot state_in, or zeros if it is STATE_NONE, and leave the one
 * after the last token in state_out; the two may be equal, else state_in stays as it is. */
enum { STATE_NONE = -1 };
struct round_run {
    int token_begin, n_tokens;
    int position;
    const int32_t *pages[KV_MAX_CLASSES];
    int32_t state_in, state_out;
};
struct round {
    int n_tokens;
    const int32_t *tokens;    /* (n_tokens) */
    const int32_t *positions; /* (n_tokens) */
    const struct round_run *runs;
    int n_runs;
    const int32_t *rows; /* (n_rows) ascending indices of the tokens whose result is wanted */
    int n_rows;
};

/* A shard as it stands in the file: n_rows rows of n_cols elements, row_bytes apart, starting on a
 * block border; n_experts such matrices, matrix_bytes apart. Borrowed; a backend that copies says
 * so in its ledger. */
struct weight_source {
    const char *name;
    enum dtype dtype;
    int n_rows, n_cols, n_experts;
    int64_t row_bytes;
    const uint8_t *data;
    bool raw;                       /* leave it where it is: memory is short */
    int64_t matrix_bytes;           /* 0: they stand back to back */
    const uint8_t *const *matrices; /* where each stands, of which data is the first, if they are at
                                       no one distance; or NULL */
    const uint8_t *packed; /* the same in the layout of packed.h, read where it stands; or NULL */
    bool streamed;         /* steps read it in a slot, */
    int slot;              /* this one, */
    int64_t slot_offset;   /* from here on, a multiple of WEIGHT_ALIGN, */
    const struct backend_home *home; /* and copies bring it from there */
};
#define WEIGHT_ALIGN 256                                           /* bytes */
static inline int weight_matrices(const struct weight_source *s) { /* n_experts 0: one, plain */
    return s->n_experts > 1 ? s->n_experts : 1;
}

static inline const uint8_t *weight_matrix(const struct weight_source *s, int matrix) {
    if (s->matrices) return s->matrices[matrix];
    return s->data + matrix * (s->matrix_bytes ? s->matrix_bytes : s->n_rows * s->row_bytes);
}

static inline int64_t
weight_source_bytes(const struct weight_source *s) { /* as the file has them */
    return dtype_row_bytes(s->dtype, s->n_cols) * s->n_rows * weight_matrices(s);
}

/* Inside a page [kv_head][64 positions], K and V apart (backend/kv_layout.h). */
struct kv_layout {
    enum kv_type type_k, type_v;
    int n_kv_heads, head_dim;
    int n_pages;
};
size_t kv_layout_bytes(const struct kv_layout *layout); /* K and V together */

/* Slots of n_floats float32 each (state_read says what stands where). */
struct state_layout {
    int64_t n_floats;
    int n_slots;
};

/* What a backend must be ready for; given before the first segment, and again when there is none.
 */
struct backend_limits {
    int n_tokens, n_rows; /* of a round */
    int n_ctx;            /* positions a sequence may reach */
    int n_kv_classes;     /* page tables a run has; 0: attention is not computed here */
    int64_t local_bytes;  /* work memory that spans address */
    void *exchange;       /* host memory of the executor */
    int64_t exchange_bytes;
    int max_cols;  /* widest input of a product */
    int max_heads; /* query heads of the widest attention step */
    int max_head_dim;
    int max_experts, max_experts_used; /* of a layer; 0: there are none */
    int max_expert_cols, max_expert_ff;
    bool expert_floats;  /* some of their gates and ups are class f32, or their inputs scaled */
    int n_slots;         /* for streamed weights */
    int64_t slot_bytes;  /* of each */
    struct races *races; /* base/races.h: who is told what is submitted; or NULL */
};

/* The memory in which a device keeps weights, caches and work, as it is now. free_bytes: with what
 * this device has taken of it, as if it had taken nothing; so it shrinks when others take more. */
struct backend_memory {
    int64_t total_bytes, free_bytes;
    bool measured; /* free_bytes is the driver's word, else assumed */
    bool host;     /* it is the host's: what is promised there counts as host memory */
};
/* What stays free of a GPU's memory for other programs (scheduling.md 3). */
static inline int64_t backend_headroom_bytes(int64_t total_bytes) {
    return max_i64(total_bytes / 20, (int64_t)256 << 20);
}

struct backend;
struct backend_copy;                                  /* streamed weights of one slot */
enum backend_queue { BACKEND_COMPUTE, BACKEND_COPY }; /* a device's timelines */
struct backend_wait {
    struct backend *backend;
    uint64_t value;
    enum backend_queue queue; /* copies are waited for by their own device only */
};

/* When work ran, by now()'s clock. */
struct backend_times {
    uint64_t begin_ns, end_ns;
};
/* What a device has done since it was opened. */
struct backend_counters {
    uint64_t n_submissions; /* calls that handed work to a driver; without one, segments */
    /* of timed rounds: */
    uint64_t thread_ns; /* processor time of a thread of its own outside waits and such calls */
    uint64_t driver_ns; /* inside such calls, whoever made them, and */
    uint64_t caller_driver_ns; /* those made by the thread that runs rounds */
};

struct backend_vtable {
    void (*close)(struct backend *b);
    /* Nanoseconds of this device's clock: the only time the executor knows. */
    uint64_t (*now)(struct backend *b);
    /* Memory for host weights and the exchange: readable by the CPU at full speed, pinned if the
     * device gains by it. */
    ats_status (*host_alloc)(struct backend *b, size_t bytes, void **out);
    void (*host_free)(struct backend *b, void *p, size_t bytes);
    /* This, lacks, and what counts bytes take microseconds, change nothing, and may be asked by
     * another thread while a round runs. */
    void (*memory)(struct backend *b, struct backend_memory *out);
    /* NULL if this device computes op, else what it lacks: "no routed experts". */
    const char *(*lacks)(struct backend *b, const struct graph *g, const struct graph_op *op);
    /* Bytes of its memory that reserve will take, local_bytes included; slots apart. */
    int64_t (*work_bytes)(struct backend *b, const struct backend_limits *limits);
    /* Bytes of host memory that it will take for itself: staging, the round's numbers. */
    int64_t (*pinned_bytes)(struct backend *b, const struct backend_limits *limits);
    /* Again, when a plan has changed: in place of the last time, while no segment, no copy and no
     * streamed weight is there. After an error nothing is reserved. */
    ats_status (*reserve)(struct backend *b, const struct backend_limits *limits);
    /* Bytes of this device's memory that the shard will take; 0 where the file's map serves. Of a
     * streamed one: bytes of host memory, and as many of the slot. */
    int64_t (*weight_bytes)(struct backend *b, const struct weight_source *source);
    ats_status (*weight_load)(struct backend *b, const struct weight_source *source,
                              struct backend_weight **out);
    /* The bytes of a shard that is streamed, as slots have them, which outlast `reserve`; weights
     * that are loaded of it, here or on processors, are freed before. UNSUPPORTED on a device that
     * does not stream. */
    ats_status (*home_open)(struct backend *b, const struct weight_source *source,
                            struct backend_home **out);
    void (*home_close)(struct backend *b, struct backend_home *home);
    /* *source, the shard's, becomes what a processor reads where it stands. */
    void (*home_source)(struct backend *b, const struct backend_home *home,
                        struct weight_source *source);
    /* Weights and homes loaded since the last call are ready when it returns: a backend may put
     * their work off until then, to do it at once. Their sources may be dropped afterwards. */
    ats_status (*weights_ready)(struct backend *b);
    /* Its bytes may serve others; no segment or copy reads it any more. */
    void (*weight_free)(struct backend *b, struct backend_weight *w);
    ats_status (*kv_open)(struct backend *b, const struct kv_layout *layout,
                          struct backend_kv **out);
    void (*kv_close)(struct backend *b, struct backend_kv *kv);
    /* Page src becomes page dst (copy on write). Between rounds only. */
    void (*kv_copy_page)(struct backend *b, struct backend_kv *kv, int src, int dst);
    /* A page of a cache as it lies (kv_layout.h), K of all heads, then V: kv_layout_bytes / n_pages
     * bytes. Between rounds, for what moves to another device or another range of heads. */
    ats_status (*kv_read)(struct backend *b, struct backend_kv *kv, int page, void *out);
    ats_status (*kv_write)(struct backend *b, struct backend_kv *kv, int page, const void *in);
    /* Slots for an op's state; what they hold at first is not defined. UNSUPPORTED: the device
     * has no recurrent operators. */
    ats_status (*state_open)(struct backend *b, const struct state_layout *layout,
                             struct backend_state **out);
    void (*state_close)(struct backend *b, struct backend_state *s);
    /* A slot's floats, for what moves. The same on all devices: of a convolution (n_taps - 1,
     * n_columns), oldest first; of a delta rule for each head, and each DELTA_BLOCK of its dim_v
     * columns, (dim_k, DELTA_BLOCK). */
    ats_status (*state_read)(struct backend *b, struct backend_state *s, int slot, float *out);
    ats_status (*state_write)(struct backend *b, struct backend_state *s, int slot,
                              const float *in);
    /* Prepares steps once for many rounds; they and the ops are borrowed. */
    ats_status (*segment_build)(struct backend *b, const struct step *steps, int n_steps,
                                struct backend_segment **out);
    void (*segment_free)(struct backend *b, struct backend_segment *s);
    /* Runs s after all waits, then sets the timeline to `value`. round is borrowed until then.
     * A backend that is driven by the caller (`driven`) does the work inside this call; the others
     * return at once, and get all their segments of a round before anything of it is waited for
     * or driven.
     * Values of one timeline are submitted in ascending order. */
    ats_status (*submit)(struct backend *b, struct backend_segment *s, const struct round *round,
                         const struct backend_wait *waits, int n_waits, uint64_t value);
    /* Prepares a copy of streamed weights, which are ready and stand in one slot, for many rounds.
     * UNSUPPORTED on a device that does not stream. */
    ats_status (*copy_build)(struct backend *b, struct backend_weight *const *weights,
                             int n_weights, struct backend_copy **out);
    void (*copy_free)(struct backend *b, struct backend_copy *c);
    /* Runs c after all waits, then sets the timeline of copies to `value`. What is waited for
     * (a segment of this device that `releases` the slot, an earlier value of its copies) was
     * submitted before, and the copy before the segment that waits for it: so one queue does for
     * both. Returns at once. It may end in a later round; at most two runs of c are under way at a
     * time. */
    ats_status (*submit_copy)(struct backend *b, struct backend_copy *c,
                              const struct backend_wait *waits, int n_waits, uint64_t value);
    /* Between rounds, at once: some megabytes of host memory go to the device as streamed weights
     * would; seconds of it. Nothing is allocated. UNSUPPORTED where no link is to be measured. */
    ats_status (*probe_copy)(struct backend *b, double *seconds);
    /* The timeline of segments of `driven`, which the caller drives, stands at value. Said to every
     * other device before the first submit to `driven` of a round, and after each: what waits for
     * it may stand in a queue already. */
    void (*reached)(struct backend *b, struct backend *driven, uint64_t value);
    /* Returns when the timeline of segments has reached value, or with the error that stopped it.
     */
    ats_status (*wait)(struct backend *b, uint64_t value);
    /* Between rounds: segments submitted from now on are timed, or (as at first) not, which costs
     * them nothing. Said again, it sets a device's clock anew, which may drift from the host's. */
    void (*set_timed)(struct backend *b, bool timed);
    /* When the last run of s began and ended, after its value was waited for. False: it was not
     * timed, or the device cannot tell. */
    bool (*segment_times)(struct backend *b, const struct backend_segment *s,
                          struct backend_times *out);
    /* The same of the run of c that set the timeline of copies to `value`, one of its last two. */
    bool (*copy_times)(struct backend *b, const struct backend_copy *c, uint64_t value,
                       struct backend_times *out);
    void (*counters)(struct backend *b, struct backend_counters *out);
};

struct backend {
    const struct backend_vtable *fn;
    const char *name;       /* "cpu", "cpu1" */
    bool driven;            /* submit does the work in the caller's thread */
    bool gpu;               /* a GPU or what stands for one: what goes there crosses a link */
    bool streams;           /* it has slots, and copies */
    bool in_place;          /* a GPU in host memory: what would be streamed to it stays there */
    bool pins;              /* memory of host_alloc, and of streamed weights, cannot be paged out */
    bool stages;            /* streamed weights go through pinned memory of the size of the slots */
    bool slow_homes;        /* processors read its homes slowly: they need copies of their own */
    bool keeps_time_only;   /* it computes nothing: weights need no data, results are undefined */
    int64_t unpinned_bytes; /* of streamed weights that were to be pinned and could not */
};

/* A described machine, of which simulated devices are parts (sim/sim.h): what its work costs, and
 * how its devices hinder each other, by the model of plan/timeline.h. All seconds are of a resource
 * by itself; bytes are a second. */
enum machine_resource { MACHINE_CPU, MACHINE_GPU, MACHINE_LINK }; /* LINK: towards the GPU */
struct backend_machine {
    const void *user; /* of the two functions */
    /* Seconds that a step computes on the GPU or the CPU. Where the program says nothing of experts
     * that tokens choose, the function may draw; two devices' draws for a round must agree. */
    double (*step_s)(const void *user, bool gpu, const struct step *step,
                     const struct round *round);
    /* The speed that a resource has left at a time, above 0, until *until_s (it may be infinite).
     * NULL: all of it, always. */
    double (*speed)(const void *user, enum machine_resource resource, double now_s,
                    double *until_s);
    double copy_bytes;                     /* into slots; 0: the GPU works in host memory */
    double activation_up, activation_down; /* read and written by the GPU in the exchange */
    /* From the end of what is waited for to the beginning of who waits: the GPU for the CPU, the
     * CPU for the GPU, and each for the other at once. */
    double kappa_up_s, kappa_down_s, kappa_x_s;
    double cut_s; /* from one segment of the GPU to its next, at least */
    double cpu_speed_copying, copy_speed_cpu; /* while the other works; shares of the speed alone */
    double cpu_speed_gpu, gpu_speed_cpu;
    int64_t gpu_bytes, host_bytes; /* of memory; gpu_bytes 0: it is the host's */
    bool time_only;                /* nothing is loaded, allocated or computed */
};

struct backend_options {
    int n_threads, n_threads_batch; /* CPU: decode, prefill; >= 1 */
    unsigned cpu_isa_mask;          /* kernels allowed; bits of cpu_isa */
    bool driven;                    /* the one device that the caller's thread drives */
    struct backend *peer;           /* a device of the same executor, opened before; or NULL */
    bool no_fusion;                 /* every step by itself, nothing fetched ahead */
    bool no_repack;                 /* weights stay as the file has them */
    bool bind_threads;              /* CPU: each to a CPU of its own, */
    int bind_first;                 /* from this number of cpu_order() on */
    const struct backend_machine *machine; /* simulated devices: of this one; borrowed, or NULL */
    bool quiet;                            /* opened again and again: what it is has been said */
};

/* Opens a device by name: "cpu", "vulkan" (the best one), "vulkan0", "vulkan1", ..., or for tests
 * "sim:KIND" (sim/sim.h; of a machine: "sim:cpu", "sim:gpu"). UNSUPPORTED names what there is. *out
 * owned. */
MUST_CHECK ats_status backend_open(const char *name, const struct backend_options *options,
                                   struct backend **out);
void backend_close(struct backend *b); /* accepts NULL */

/* For `doctor`: a device beside the CPU. */
struct backend_device_info {
    char name[24]; /* as backend_open takes it */
    char kind[24]; /* "discrete GPU", ... */
    char note[256];
    bool usable, software;
    struct backend_memory memory;
};
/* Fills at most max entries; returns how many there are. 0: the error text says why, once. */
int backend_list_devices(struct backend_device_info *out, int max);
/* False: the system has no node of any GPU's driver. Listing devices, which loads software ones
 * too, takes 0.1 s; this takes nothing. */
bool backend_may_have_gpu(void);

/* For options and `doctor`: what the CPU backend would use. */
struct backend_cpu_info {
    char model[64]; /* of the processor */
    char features[256];
    unsigned isa_mask; /* that it has and this build knows */
    char isa[16];      /* the best of them */
};
void backend_cpu_info(struct backend_cpu_info *out);
/* "native", "ref", "avx2", ...: that level and all below; false if there is no such name. */
bool backend_cpu_isa_parse(const char *text, unsigned *mask);
const char *backend_cpu_isa_name(unsigned mask); /* the kernels a mask selects here */
/* For what is left to the host itself, by those kernels: x = cap * tanh(x / cap). */
typedef void backend_soft_cap_fn(float *x, int n, float cap);
backend_soft_cap_fn *backend_soft_cap(unsigned mask);
