/*
 * What the files of the Vulkan backend share: api.c (functions), device.c (which device, what it
 * can), memory.c (blocks and views), pipelines.c (shaders), upload.c (weights, KV), record.c and
 * record_*.c (steps become dispatches), timing.c (when segments ran), vulkan.c (rounds, the
 * timeline, the interface).
 *
 * A segment is recorded once for each size of round (VARIANT_ONE and so on). All that
 * changes from round to round (tokens, positions, pages, rows, how many lines) is read from the
 * round block, memory that the host writes before a submission; the sizes of dispatches too.
 */
#pragma once

#include "backend/backend.h"
#include "backend/vulkan/api.h"
#include "base/arena.h"
#include "base/races.h"
#include "base/ranges.h"
#include "base/threads.h"

enum {
    VK_MAX_GPUS = 16,
    VK_BINDINGS = 6,      /* that most shaders have; */
    VK_MAX_BINDINGS = 10, /* those of a delta rule, and more than a norm with a sum has */
    VK_MAX_PUSH = 24,     /* words of push constants; every device has room for 32 */
    VK_MAX_GRIDS = 4096,
    VK_MAX_ROPES = 8,
    VK_MAX_WAITS = 8,
    VK_TILE = 8,        /* lines that a product takes together in larger rounds, */
    VK_LARGE_TILE = 32, /* and in those of more than VK_FEW tokens in class q8, */
    VK_TILE_ROWS = 64,  /* of so many rows: product_tile.comp; */
    VK_RAW_ROWS = 32,   /* or for plain types, of so many: product_raw_tile.comp */
    VK_FEW = 16,
    VK_ROUND_HEADER = 8, /* words; see common.glsl */
    VK_MAX_HEAD_DIM = 512,
    VK_ATTN_RANGE = 256,       /* keys that are one link of the softmax chain */
    VK_BLOCK_BYTES = 64 << 20, /* which small weights share */
    VK_STAGING_BYTES = 16 << 20,
};

/* ---- which device ---- */

enum vk_gpu_kind { GPU_DISCRETE, GPU_INTEGRATED, GPU_VIRTUAL, GPU_SOFTWARE, GPU_OTHER };
/* A physical device. What ATSINFER_VK_DISABLE names is off here as if it were not there. */
struct vk_gpu {
    VkPhysicalDevice handle;
    VkPhysicalDeviceProperties properties;
    VkPhysicalDeviceMemoryProperties memory;
    enum vk_gpu_kind kind;
    uint32_t family;                  /* of the compute queue */
    uint32_t copy_family, copy_index; /* queue of copies; the compute queue itself: family, 0 */
    bool usable;                      /* else `lacks` says why not */
    const char *lacks;
    bool fp16, idot, import, host_vram, budget;
    bool address;                    /* shaders reach memory by its address */
    bool two_rows;                   /* shaders read words of 64 bits */
    bool shuffles;                   /* lanes read each other's values */
    bool idot_fast;                  /* the device says that it gains by it */
    uint64_t heap_bytes, free_bytes; /* of device-local memory; free: by the budget, else a guess */
    uint64_t used_bytes;             /* of it, by this process when it was read */
    uint32_t heap;
    uint32_t subgroup;
    uint64_t import_align, max_range, max_allocation;
    uint64_t max_part;       /* of a weight: max_allocation, or less for tests */
    uint32_t timestamp_bits; /* that count; 0: its queue has no clock */
    bool calibrated;         /* which can be read together with the host's */
    bool copy_stamps;        /* copies can be timed: their queue has that clock too */
};
static inline bool vk_has_copy_queue(const struct vk_gpu *g) {
    return g->copy_family != g->family || g->copy_index;
}
/* Devices of the instance in the driver's order. Returns how many. */
int vk_gpus_read(const struct vk_instance *i, struct vk_gpu out[VK_MAX_GPUS]);
const char *vk_gpu_kind_name(enum vk_gpu_kind kind);
/* Its largest device-local heap: what was free when it was opened. */
void vk_gpu_memory(const struct vk_gpu *gpu, struct backend_memory *out);
/* The same now, with what the process has taken since. ATSINFER_VK_FREE_KIB, read each time: as if
 * it had memory of its own with so much free, for tests. */
void vk_gpu_memory_now(const struct vk_instance *i, const struct vk_gpu *gpu,
                       struct backend_memory *out);
/* Value of ATSINFER_NAME as a number; 0 if it is not set. Switches for tests. */
uint64_t vk_switch(const char *name);
/* Is it in the list ATSINFER_VK_DISABLE? "vram" makes a device an integrated one. Beside features:
 * "barriers" between dispatches and "first-barriers" between segments, "arrivals" of copies and
 * "releases" of their slots, "unread" copies that others follow, for the tests that their loss is
 * noticed; "ahead": nothing is submitted before what it waits for; "fold": no step is computed with
 * the one before it. */
bool vk_disabled(const char *name);

/* ---- memory ---- */

enum vk_place { PLACE_DEVICE, PLACE_ADDRESSED, PLACE_HOST }; /* ADDRESSED: in shaders too */
/* One allocation with one buffer over it. */
struct vk_block {
    struct vk_block *next;
    VkBuffer buffer;
    VkDeviceMemory memory;
    size_t bytes;
    struct ranges ranges; /* of weights and homes: what is free */
    uint8_t *mapped;      /* NULL: not reachable by the host */
    bool counted;         /* in vulkan.device_bytes */
    bool pages; /* mapped is of pages_alloc; without a buffer, the device does not reach it */
    uint64_t address;
};
/* Part of a buffer as a shader sees it. */
struct vk_view {
    VkBuffer buffer;
    VkDeviceSize offset, range;
    int32_t word; /* where its first element stands behind offset, in words of 4 bytes */
};

/* Bytes of a weight that lie together. */
struct vk_part {
    const struct vk_block *block;
    size_t offset;
};
struct backend_weight {
    struct weight_source s; /* data is gone */
    const struct vk_block *block;
    size_t offset, bytes;
    /* What is larger than an allocation lies in parts of part_bytes, the first of them at offset:
     * whole experts, or of one matrix whole groups of rows. Streamed weights are whole. */
    size_t part_bytes;
    struct vk_part *rest; /* parts from the second on, owned; NULL: there is one */
    bool packed;
    size_t unit_bytes;               /* a group of 16 rows, or a row */
    size_t matrix_bytes;             /* from expert to expert */
    const struct backend_home *home; /* streamed: borrowed, the block is a slot's. Else NULL */
};
/* Of a streamed weight. */
struct backend_home {
    const struct vk_block *block; /* in host memory */
    size_t offset, bytes;
};
struct backend_kv {
    struct kv_layout layout;
    struct vk_block k, v;
    size_t k_page, v_page; /* bytes */
};
struct backend_state {
    struct state_layout layout;
    struct vk_block block; /* (n_slots, n_floats) */
};

/* ---- shaders ---- */

#define VK_SHADER_MAP(X)                                                                           \
    X(EMBED, embed)                                                                                \
    X(EMBED_RAW, embed_raw)                                                                        \
    X(NORM, norm)                                                                                  \
    X(NORM_SUM, norm_sum)                                                                          \
    X(PRODUCT, product)                                                                            \
    X(PRODUCT_Q8, product_q8)                                                                      \
    X(PRODUCT_Q8_IDOT, product_q8_idot)                                                            \
    X(PRODUCT_Q8_TWO_ROWS, product_q8_two_rows)                                                    \
    X(PRODUCT_Q8_FOUR_ROWS, product_q8_four_rows)                                                  \
    X(PRODUCT_RAW, product_raw)                                                                    \
    X(PRODUCT_EXPERTS, product_experts)                                                            \
    X(PRODUCT_Q8_EXPERTS, product_q8_experts)                                                      \
    X(PRODUCT_Q8_IDOT_EXPERTS, product_q8_idot_experts)                                            \
    X(PRODUCT_Q8_TWO_ROWS_EXPERTS, product_q8_two_rows_experts)                                    \
    X(PRODUCT_Q8_FOUR_ROWS_EXPERTS, product_q8_four_rows_experts)                                  \
    X(PRODUCT_RAW_EXPERTS, product_raw_experts)                                                    \
    X(ROUTE, route)                                                                                \
    X(EXPERTS_SORT, experts_sort)                                                                  \
    X(EXPERTS_SCALE, experts_scale)                                                                \
    X(EXPERTS_SUM, experts_sum)                                                                    \
    X(PRODUCT_TILE, product_tile)                                                                  \
    X(PRODUCT_TILE_EXPERTS, product_tile_experts)                                                  \
    X(PRODUCT_TILE_IDOT, product_tile_idot)                                                        \
    X(PRODUCT_TILE_IDOT_EXPERTS, product_tile_idot_experts)                                        \
    X(PRODUCT_RAW_TILE, product_raw_tile)                                                          \
    X(PRODUCT_RAW_TILE_EXPERTS, product_raw_tile_experts)                                          \
    X(QUANTISE, quantise)                                                                          \
    X(ROPE, rope)                                                                                  \
    X(KV_STORE, kv_store)                                                                          \
    X(ATTENTION, attention)                                                                        \
    X(KV_STORE_ADDRESS, kv_store_address)                                                          \
    X(ATTENTION_ADDRESS, attention_address)                                                        \
    X(ATTENTION_MERGE, attention_merge)                                                            \
    X(GATED, gated)                                                                                \
    X(ADD, add)                                                                                    \
    X(COPY, copy)                                                                                  \
    X(CONV, conv)                                                                                  \
    X(CONV_ADDRESS, conv_address)                                                                  \
    X(DELTA, delta)                                                                                \
    X(DELTA_ADDRESS, delta_address)
enum vk_shader {
#define SHADER_ENUM(upper, lower) SHADER_##upper,
    VK_SHADER_MAP(SHADER_ENUM) SHADER_COUNT
#undef SHADER_ENUM
};
enum { VK_MAX_CONSTANTS = 7 };
/* A shader with its constants; constants[0] is the size of a work-group. */
struct vk_pipeline {
    enum vk_shader shader;
    int32_t constants[VK_MAX_CONSTANTS];
    VkPipeline handle;
};

/* ---- segments ---- */

/* How many work-groups: x is recorded, y depends on the round. */
enum vk_lines { LINES_TOKENS, LINES_ROWS, LINES_RUNS };
struct vk_grid {
    int x;
    enum vk_lines lines;
    int tile;        /* lines of a work-group */
    bool ranges;     /* z: ranges of keys that a round of one token sees; else 1 */
    int first, most; /* of the round's lines, those of a pass; most 0: all */
    int per_line;    /* pairs of a line and an expert, which are the lines then; 0: lines */
    int experts;     /* pairs come by so many experts, each of whom may begin a tile */
};
struct vk_commands {
    VkCommandBuffer first;  /* items[0] again: what a round touches stands together */
    VkCommandBuffer *items; /* submitted in this order */
    size_t n, cap;
};
/* Rounds of one token; of a few; larger ones. The last is only there if it has large tiles. */
enum { VARIANT_ONE, VARIANT_FEW, VARIANT_MANY, N_VARIANTS };

/* A rectangle of the exchange that a segment reads or writes: only if it cannot be shared. */
struct vk_mirror {
    struct span span;
    int begin, end;
    bool rows, write;
};
/* Around a segment or one of a copy's runs. */
struct vk_stamps {
    VkQueryPool queries;
    VkCommandBuffer begin, end; /* NULL until it is timed */
    uint64_t submit_ns;         /* the last run was not submitted before; 0: it was not timed */
};
struct backend_segment {
    VkDescriptorPool pool;
    struct vk_commands commands[N_VARIANTS];
    struct vk_mirror *mirrors;
    size_t n_mirrors, cap_mirrors;
    uint64_t last_value; /* of its last submission */
    struct vk_stamps stamps;
    const struct vk_slot *releases; /* that it reads last; or NULL */
    const struct step *steps;       /* (n_steps) borrowed */
    int n_steps;
};

/* Memory that streamed weights take turns in. The timeline of copies is one of each slot, with the
 * same values: a copy into it and the segment that waits for it take turns on it. So do the segment
 * that reads the slot last, and the next copy into it, on another one, with the values of the
 * timeline of segments. (The validation layer, 1.3.239, takes a semaphore for one that is signalled
 * and waited for in turn: on a timeline that others signal too it would see the wrong one.) */
struct vk_slot {
    struct vk_block block;
    VkSemaphore arrived, released;
    uint64_t queued;         /* value of the last copy that was submitted */
    struct vk_block staging; /* of homes that the device does not reach: as large as the slot */
    uint64_t staged;         /* value of the last copy out of it */
};
/* The next round's run may be on its way when this one's is asked about. */
struct vk_copy_run {
    uint64_t value; /* 0: it was not timed */
    struct vk_stamps stamps;
};
struct backend_copy {
    VkCommandBuffer commands;
    struct vk_slot *slot;
    struct vk_copy_run runs[2]; /* the last two, in turn */
    int next_run;
    struct vk_piece {
        const uint8_t *from;
        size_t offset, bytes; /* in the slot */
    } * staged;               /* (n_staged) what goes through the slot's staging, owned */
    int n_staged;
};

/* A segment or a copy on its way to its queue. */
struct vk_job {
    struct vk_job *next;
    struct backend_segment *segment;
    const struct round *round;
    struct backend_copy *copy; /* or NULL */
    struct vk_copy_run *run;   /* the copy's, that is timed; or NULL */
    uint64_t value;
    uint64_t gate;  /* value of the driven device that its queue waits for; 0: none */
    uint64_t after; /* value of this device's other timeline that its queue waits for; 0: none */
    const struct vk_slot *slot; /* of the copy that a segment waits for */
    uint64_t behind;            /* of a copy: the value of the one before it in its slot; 0: none */
    int n_waits;                /* of the host, before it is submitted */
    struct backend_wait waits[VK_MAX_WAITS];
};

/* One submission of a call. */
struct vk_entry {
    VkCommandBuffer commands[3];
    uint32_t n_commands, n_waits;
    VkSemaphore waits[2];
    uint64_t wait_values[2];
    VkPipelineStageFlags wait_stages[2];
    uint32_t n_signals;
    VkSemaphore signals[2];
    uint64_t signal_values[2];
};
/* What goes to a queue with the next call. */
struct vk_batch {
    struct vk_entry *entries;
    size_t n, cap;
    VkSubmitInfo *infos; /* room for the call */
    VkTimelineSemaphoreSubmitInfo *timelines;
    size_t cap_infos, cap_timelines;
};
/* The driven device's timeline, as its driver tells it: queues wait here by themselves. Only the
 * thread that runs rounds touches it. */
struct vk_gate {
    VkSemaphore semaphore;
    uint64_t reached;
    uint64_t *awaited; /* [first, n) ascending values that queues wait for */
    size_t first, n, cap;
    uint64_t driver_ns; /* in calls that move it, if timed */
};

/* Where what experts compute stands in its block. */
struct vk_expert_room {
    int lines;                              /* that go together */
    size_t list, x, x8, gate, up, h8, down; /* a line a pair; list: experts_sort.comp */
    size_t bytes;
};

struct vulkan {
    struct backend base;
    char name[24];
    struct vk_instance instance;
    struct vk_gpu gpu;
    VkDevice device;
    struct vk_functions f;
    VkQueue queue;
    pthread_mutex_t queue_lock; /* of the queue and the command pool */
    VkCommandPool pool;
    VkSemaphore timeline;
    VkQueue copy_queue; /* the queue itself if there is no other; guarded by the same lock */
    VkCommandPool copy_pool;
    struct vk_layout {
        VkDescriptorSetLayout set;
        VkPipelineLayout pipeline;
        uint32_t n_bindings;
    } layout, wide_layout; /* wide: only if the device has so many */
    VkShaderModule modules[SHADER_COUNT];
    unsigned verdict, kept_verdict; /* of vk_self_test; as the file of cache.c has it */
    bool trial;                     /* this opening is the test's own */
    bool quiet;                     /* nothing is said of what the device is */
    VkPipelineCache cache;          /* NULL: none is kept */
    size_t cached_bytes;            /* of it that came from the file */
    struct vk_pipeline *pipelines;
    size_t n_pipelines, cap_pipelines;
    uint64_t fail_allocation, lose_submission, hang_submission; /* test switches: the n-th one */
    uint64_t fail_asked; /* read again with a new reservation, and counted anew if it has changed */
    uint64_t timeout_ns; /* of a wait for the device; 0: none */
    _Atomic bool hung;   /* a wait was in vain: what the device may still use is never freed */
    bool no_fold;        /* no step has part of another */
    bool no_barriers, no_first_barriers;      /* test switches, */
    bool no_arrivals, no_releases, no_unread; /* and these */
    bool no_ahead;      /* the device's thread waits for others, at every change */
    bool said_unpinned; /* vk_home_open did */
    bool no_pin;        /* another: homes of streamed weights cannot be pinned */
    int lanes;          /* of a work-group that is free to choose; a power of two */
    int split;          /* lanes that share a row of a packed product */
    bool tiles;         /* there are large ones */
    bool two_rows;      /* a lane has two rows of a product of class q8: fewer loads, */
    bool four_rows;     /* or of one line's product four */

    struct backend_limits limits;
    bool reserved;
    uint64_t device_bytes; /* allocated of the device's memory */
    struct vk_block local, exchange, round_block, work, partial, experts, staging;
    struct vk_expert_room expert_room;
    bool owns_exchange;       /* else it is one of hosts */
    bool mirrored;            /* the exchange is a copy: bytes go over before and after a segment */
    int32_t *round_words;     /* the integers that round_block holds, to compare with */
    struct vk_block *hosts;   /* given out by host_alloc */
    struct vk_block *weights; /* the newest first */
    struct vk_slot *slots;    /* (limits.n_slots) */
    struct vk_block *streamed;    /* homes of streamed weights in host memory, the newest first */
    size_t cap_words, used_words; /* of the integers: room, and how many were written */
    size_t at_ropes, at_grids;    /* sections of round_block behind the integers */
    int n_grids_written;
    struct vk_grid grids[VK_MAX_GRIDS];
    int n_grids;
    int n_windows; /* dispatches of some lines of a value only, for tests; */
    int n_folds;   /* steps computed with the one before, likewise */
    int n_parts;   /* beyond the first of weights, for tests */
    struct vk_rope {
        int n_rot;
        float magnitude, inv_freq[VK_MAX_HEAD_DIM / 2];
    } ropes[VK_MAX_ROPES];
    int n_ropes, n_ropes_written;
    uint64_t last_value;         /* that was handed to the queue */
    _Atomic uint64_t done;       /* somebody has waited for this value */
    const struct round *written; /* that round_block holds, while last_value is not done */
    struct vk_batch batches[2];  /* of the queue, and of that of copies; guarded by queue_lock */
    _Atomic int n_put_off;       /* entries of both */
    uint64_t put_off_ns;         /* when the first of them was, if timed */
    struct vk_gate gate;
    bool timed;       /* set between rounds; guarded by queue_lock, a copy may be left over */
    struct vk_clock { /* the device's clock stood at ticks when the host's stood at ns */
        uint64_t ticks, ns;
        bool known;
    } clock;
    uint64_t clock_set_ns;
    uint64_t copied_value, copied_ns; /* of the newest copy that was asked about; its end */
    struct backend_counters counters; /* guarded by queue_lock */
    uint64_t job_away_ns; /* of a timed job of its own thread: by vk_wait_in_job, in the driver */

#ifdef ATS_CHECK_RACES
    struct race_clock known;    /* to whoever hands jobs over */
    struct vk_watched *watched; /* guarded by queue_lock */
#endif
    struct thread thread;
    bool has_thread;
    pthread_mutex_t lock;      /* of what follows */
    pthread_cond_t changed;    /* what others wait for: submitted, status, nothing left to do */
    pthread_cond_t has_job;    /* the device's thread waits for it; nobody wakes it for less */
    struct vk_job *queue_head; /* oldest first */
    struct vk_job *spare;      /* jobs to be used again */
    bool busy, closing;
    uint64_t submitted;    /* values up to this are on their way */
    ats_status status;     /* what stopped the device */
    char status_text[256]; /* and its text */
};

static inline struct vulkan *vulkan_of(struct backend *b) {
    return CONTAINER_OF(b, struct vulkan, base);
}

static inline bool vk_in_own_thread(const struct vulkan *v) {
    return v->has_thread && pthread_equal(pthread_self(), v->thread.id);
}

/* memory.c */
MUST_CHECK ats_status vk_block_open(struct vulkan *v, size_t bytes, enum vk_place place,
                                    const char *what, struct vk_block *out);
/* The same over host memory; UNSUPPORTED if the device cannot. */
MUST_CHECK ats_status vk_block_import(struct vulkan *v, void *memory, size_t bytes,
                                      struct vk_block *out);
/* Host memory for streamed weights: pinned, else ordinary memory that the device reaches all the
 * same, else ordinary memory without a buffer, which is said once. */
MUST_CHECK ats_status vk_home_block_open(struct vulkan *v, size_t bytes, const char *what,
                                         struct vk_block *out);
/* Processors read such memory at full speed. */
bool vk_homes_are_cached(const struct vulkan *v);
void vk_block_close(struct vulkan *v, struct vk_block *block); /* accepts a zeroed one */
/* The host reaches the device's own memory: no staging. */
bool vk_maps_own(const struct vulkan *v);
/* Bytes [offset, offset + bytes) as a view; UNSUPPORTED above the device's limit. */
MUST_CHECK ats_status vk_view_open(const struct vulkan *v, const struct vk_block *block,
                                   size_t offset, size_t bytes, const char *what,
                                   struct vk_view *out);

/* pipelines.c */
MUST_CHECK ats_status vk_pipelines_open(struct vulkan *v);
void vk_pipelines_close(struct vulkan *v);
/* How a shader gets its bindings. */
const struct vk_layout *vk_layout_of(const struct vulkan *v, enum vk_shader shader);
static inline bool vk_has_wide_layout(const struct vulkan *v) {
    const VkPhysicalDeviceLimits *l = &v->gpu.properties.limits;
    return l->maxPerStageDescriptorStorageBuffers >= VK_MAX_BINDINGS &&
           l->maxDescriptorSetStorageBuffers >= VK_MAX_BINDINGS;
}
/* Made once for each set of constants. */
MUST_CHECK ats_status vk_pipeline_get(struct vulkan *v, enum vk_shader shader,
                                      const int32_t constants[VK_MAX_CONSTANTS], VkPipeline *out);

/* All modules through a hash that takes what it has, bytes and their number. */
uint64_t vk_shaders_hash(uint64_t (*hash)(uint64_t, const void *, size_t));

/* selftest.c: what a device is wrong with. UNSUPPORTED: even without all that can be off. */
enum {
    VERDICT_NO_IDOT = 1,
    VERDICT_NO_TILES = 2,
    VERDICT_TESTED = 4,
    VERDICT_NO_ATTENTION = 8, /* or the rotary embedding before it */
    VERDICT_NO_EXPERTS = 16,  /* or the route to them */
    VERDICT_NO_RECURRENT = 32,
    VERDICT_OPS = 56, /* operators that stay on the CPU then */
};
MUST_CHECK ats_status vk_self_test(struct vulkan *v);
/* vulkan.c: an opening for the test, without what `off` names; it keeps nothing. */
MUST_CHECK ats_status vk_open_trial(const char *name, unsigned off, struct backend **out);

/* cache.c: nothing in it fails, at worst pipelines are compiled again. */
void vk_cache_open(struct vulkan *v);
void vk_cache_close(struct vulkan *v);

/* upload.c */
/* Where byte `at` of a weight lies; returns how many there are from there on in its part. */
size_t vk_weight_at(const struct backend_weight *w, size_t at, struct vk_part *out);
int64_t vk_weight_bytes(struct backend *b, const struct weight_source *source);
ats_status vk_weight_load(struct backend *b, const struct weight_source *source,
                          struct backend_weight **out);
void vk_weight_free(struct backend *b, struct backend_weight *w);
ats_status vk_home_open(struct backend *b, const struct weight_source *source,
                        struct backend_home **out);
void vk_home_close(struct backend *b, struct backend_home *home);
void vk_home_source(struct backend *b, const struct backend_home *home,
                    struct weight_source *source);
ats_status vk_kv_open(struct backend *b, const struct kv_layout *layout, struct backend_kv **out);
void vk_kv_close(struct backend *b, struct backend_kv *kv);
ats_status vk_state_open(struct backend *b, const struct state_layout *layout,
                         struct backend_state **out);
void vk_state_close(struct backend *b, struct backend_state *s);
ats_status vk_kv_copy(struct vulkan *v, struct backend_kv *kv, int src, int dst);
ats_status vk_kv_read(struct backend *b, struct backend_kv *kv, int page, void *out);
ats_status vk_kv_write(struct backend *b, struct backend_kv *kv, int page, const void *in);
ats_status vk_state_read(struct backend *b, struct backend_state *s, int slot, float *out);
ats_status vk_state_write(struct backend *b, struct backend_state *s, int slot, const float *in);

/* stream.c */
MUST_CHECK ats_status vk_slots_open(struct vulkan *v);
void vk_slots_close(struct vulkan *v);
/* Memory through which what the device does not reach goes to a slot. */
MUST_CHECK ats_status vk_slot_stage(struct vulkan *v, struct vk_slot *slot);
/* Fills it for a copy that is about to be submitted, once the copy before has been made. */
MUST_CHECK ats_status vk_copy_stage(struct vulkan *v, const struct backend_copy *c, uint64_t value);
ats_status vk_probe_copy(struct backend *b, double *seconds);
ats_status vk_copy_build(struct backend *b, struct backend_weight *const *weights, int n_weights,
                         struct backend_copy **out);
void vk_copy_free(struct backend *b, struct backend_copy *c);

/* record.c */
ats_status vk_segment_build(struct backend *b, const struct step *steps, int n_steps,
                            struct backend_segment **out);
void vk_segment_free(struct backend *b, struct backend_segment *s);
size_t vk_q8_line_words(int n_cols); /* of an input in class q8 */
/* What experts need on this device; bytes 0: there are none. */
struct vk_expert_room vk_expert_room(const struct vulkan *v, const struct backend_limits *limits);

/* commands.c */
MUST_CHECK ats_status vk_commands_open(struct vulkan *v);
void vk_commands_close(struct vulkan *v);
MUST_CHECK ats_status vk_timeline_open(struct vulkan *v, uint64_t value, VkSemaphore *out);
/* A command buffer that is being recorded. The caller holds queue_lock. */
MUST_CHECK ats_status vk_commands_begin(struct vulkan *v, VkCommandBuffer *out);
MUST_CHECK ats_status vk_commands_begin_in(struct vulkan *v, VkCommandPool pool,
                                           VkCommandBufferUsageFlags usage, VkCommandBuffer *out);
/* What the device did before is done, and seen by what it does after. */
void vk_barrier(const struct vulkan *v, VkCommandBuffer c);
/* Shaders that ran before are done, and seen by those after. Copies are not: the queue may still be
 * busy with streamed weights, which are waited for by their value; all others end with a barrier.
 */
void vk_segment_barrier(const struct vulkan *v, VkCommandBuffer c);
/* Ends a segment: its writes are seen by whoever waited for it on the host. */
void vk_host_barrier(const struct vulkan *v, VkCommandBuffer c);
/* Hands submissions to a queue, which counts as one. The caller holds queue_lock. */
MUST_CHECK VkResult vk_queue_submit(struct vulkan *v, VkQueue queue, const VkSubmitInfo *infos,
                                    uint32_t n);
/* Counts a call to the driver that began at `start` of clock_ns; 0: it is not timed. The caller
 * holds queue_lock. */
void vk_count_driver(struct vulkan *v, uint64_t start);
/* Returns when the device's timeline has reached value: spins briefly, then sleeps. */
MUST_CHECK ats_status vk_wait_value(struct vulkan *v, uint64_t value);
/* Returns when the last copy out of a slot's staging has been made. */
MUST_CHECK ats_status vk_wait_staged(struct vulkan *v, const struct vk_slot *slot);
/* The same for whoever runs a job. */
MUST_CHECK ats_status vk_wait_in_job(struct vulkan *v, uint64_t value);
/* Copies now, outside of rounds, n regions; returns when they are done. */
MUST_CHECK ats_status vk_copy_now(struct vulkan *v, VkBuffer from, VkBuffer to,
                                  const VkBufferCopy *regions, uint32_t n);

/* submit.c */
/* A job's segment, all of a list, once its copy has arrived and the gate is passed; the last one
 * sets the timeline to the job's value. stamps go around it, NULL: nothing. With the next flush. */
void vk_submit(struct vulkan *v, const struct vk_commands *list, const struct vk_stamps *stamps,
               const struct vk_job *job);
/* A job's copy, once the timeline has reached job->after (0: at once). With the next flush. */
MUST_CHECK ats_status vk_submit_copy(struct vulkan *v, const struct vk_job *job);
/* Hands over what was put off. */
MUST_CHECK ats_status vk_flush(struct vulkan *v);
MUST_CHECK ats_status vk_gate_open(struct vulkan *v);
void vk_gate_close(struct vulkan *v); /* and batches */
/* What a job waits for at the gate, if the driven device is to have reached value; 0: nothing. */
uint64_t vk_gate_await(struct vulkan *v, uint64_t value);
/* The driven device has reached value: flushes, and lets pass who waits for it. */
MUST_CHECK ats_status vk_gate_reach(struct vulkan *v, uint64_t value);
/* Lets pass whoever waits, before what they use is freed. */
void vk_gate_lift(struct vulkan *v);

/* timing.c */
void vk_set_timed(struct backend *b, bool timed);
/* Makes stamps ready for what is about to be submitted to a queue; NULL: it is not timed. */
const struct vk_stamps *vk_stamps_ready(struct vulkan *v, struct vk_stamps *s,
                                        enum backend_queue queue, bool timed);
/* The caller holds queue_lock. */
void vk_stamps_close(struct vulkan *v, struct vk_stamps *s, enum backend_queue queue);
/* Before a copy is handed over: its run, if it is timed. */
struct vk_copy_run *vk_copy_run_next(const struct vulkan *v, struct backend_copy *c,
                                     uint64_t value);
bool vk_segment_times(struct backend *b, const struct backend_segment *s,
                      struct backend_times *out);
bool vk_copy_times(struct backend *b, const struct backend_copy *c, uint64_t value,
                   struct backend_times *out);
void vk_counters(struct backend *b, struct backend_counters *out);

/* jobs.c */
/* What went wrong beside a call: the next one answers with it. */
void vk_stop(struct vulkan *v, ats_status status);
/* Of the interface. */
ats_status vk_submit_segment(struct backend *b, struct backend_segment *s,
                             const struct round *round, const struct backend_wait *waits,
                             int n_waits, uint64_t value);
ats_status vk_send_copy(struct backend *b, struct backend_copy *c, const struct backend_wait *waits,
                        int n_waits, uint64_t value);
void vk_reached(struct backend *b, struct backend *driven, uint64_t value);
ats_status vk_wait(struct backend *b, uint64_t value);
/* What the device's own thread does, until v->closing. */
void *vk_run_queue(void *vulkan);
/* Returns when nothing is queued or running any more, whatever became of it. Before freeing. */
void vk_idle(struct vulkan *v);

/* round.c */
/* Bytes of the round block; its sections are set. */
size_t vk_round_layout(struct vulkan *v, const struct backend_limits *limits);
/* Makes the round block hold this round; waits for the device if it still reads another. */
MUST_CHECK ats_status vk_round_write(struct vulkan *v, const struct round *round);
int vk_grid_index(struct vulkan *v, struct vk_grid grid);       /* -1: too many */
int vk_rope_index(struct vulkan *v, const struct graph_op *op); /* -1: too many */
size_t vk_rope_offset(const struct vulkan *v, int index);       /* in the round block */
/* Copies the rectangles that are written (or read) to (from) the executor's exchange. */
void vk_mirror_copy(struct vulkan *v, const struct backend_segment *s, const struct round *round,
                    bool write);

/* watch.c: what is handed over is told to limits.races, where there is one. A release has none. */
#ifdef ATS_CHECK_RACES
/* Before a job's segment is submitted as these commands. */
void vk_watch_segment(struct vulkan *v, const struct vk_job *job,
                      const struct vk_commands *commands);
void vk_watch_copy(struct vulkan *v, const struct backend_copy *c,
                   struct backend_weight *const *weights, int n);
/* Commands are going to be freed; NULL: all. */
void vk_watch_forget(struct vulkan *v, VkCommandBuffer commands);
void vk_watch_submit(struct vulkan *v, const VkSubmitInfo *infos, uint32_t n);
/* Whoever hands jobs over has waited. A backend is the name of its timeline. */
void vk_watch_wait(struct vulkan *v, const void *timeline, uint64_t value);
/* Others are told from now on, who know nothing yet: limits are new. */
void vk_watch_anew(struct vulkan *v);
/* The driven device has reached a value, which the gate is about to be told. */
void vk_watch_reached(struct vulkan *v, const struct backend *driven, uint64_t value);
/* The host is about to write the round block, or what goes through staging. */
void vk_watch_numbers(struct vulkan *v);
void vk_watch_staging(struct vulkan *v, const struct backend_copy *c);
#else
static inline void vk_watch_segment(struct vulkan *v, const struct vk_job *job,
                                    const struct vk_commands *commands) {
    (void)v, (void)job, (void)commands;
}
static inline void vk_watch_copy(struct vulkan *v, const struct backend_copy *c,
                                 struct backend_weight *const *weights, int n) {
    (void)v, (void)c, (void)weights, (void)n;
}
static inline void vk_watch_forget(struct vulkan *v, VkCommandBuffer commands) {
    (void)v, (void)commands;
}
static inline void vk_watch_submit(struct vulkan *v, const VkSubmitInfo *infos, uint32_t n) {
    (void)v, (void)infos, (void)n;
}
static inline void vk_watch_wait(struct vulkan *v, const void *timeline, uint64_t value) {
    (void)v, (void)timeline, (void)value;
}
static inline void vk_watch_reached(struct vulkan *v, const struct backend *driven,
                                    uint64_t value) {
    (void)v, (void)driven, (void)value;
}
static inline void vk_watch_anew(struct vulkan *v) {
    (void)v;
}
static inline void vk_watch_numbers(struct vulkan *v) {
    (void)v;
}
static inline void vk_watch_staging(struct vulkan *v, const struct backend_copy *c) {
    (void)v, (void)c;
}
#endif
