/*
 * Work of a Vulkan device: segments and copies, recorded once (record.c, stream.c), the round's
 * numbers that they read (round.c), and their way to a queue (jobs.c, submit.c, commands.c), timed
 * if asked (timing.c).
 */
#pragma once

#include "backend/backend.h"
#include "backend/vulkan/memory.h"

struct vulkan;

enum {
    VK_MAX_GRIDS = 4096,
    VK_MAX_ROPES = 8,
    VK_MAX_WAITS = 8,
    VK_ROUND_HEADER = 8, /* words; see common.glsl */
};

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
/* Bytes of all lines of such an input; there is room for another one behind them. */
size_t vk_rounded_apart(const struct backend_limits *limits);
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
