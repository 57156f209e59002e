/*
 * An open Vulkan device, which the files of this folder share, and through gpu.h, memory.h,
 * pipelines.h, work.h and watch.h what they have for each other. vulkan.c is the interface.
 *
 * A segment is recorded once for each size of round (VARIANT_ONE and so on). All that
 * changes from round to round (tokens, positions, pages, rows, how many lines) is read from the
 * round block, memory that the host writes before a submission; the sizes of dispatches too.
 */
#pragma once

#include "backend/backend.h"
#include "backend/vulkan/api.h"
#include "backend/vulkan/gpu.h"
#include "backend/vulkan/memory.h"
#include "backend/vulkan/pipelines.h"
#include "backend/vulkan/watch.h"
#include "backend/vulkan/work.h"
#include "base/arena.h"
#include "base/races.h"
#include "base/threads.h"

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
    int n_windows;    /* dispatches of some lines of a value only, for tests; */
    int n_folds;      /* steps and roundings computed with the step before, likewise */
    int n_dispatches; /* recorded for rounds of one token, likewise */
    int n_parts;      /* beyond the first of weights, for tests */
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
