/* When segments and copies ran: time stamps of the device, told in the host's time. */
#include "backend/vulkan/vulkan_internal.h"

#include "base/clock.h"

enum { PAIRINGS = 5 };

/* ---- two clocks ---- */

static uint64_t mask_of(const struct vulkan *v) {
    return v->gpu.timestamp_bits >= 64 ? UINT64_MAX : (UINT64_C(1) << v->gpu.timestamp_bits) - 1;
}

/* Ticks between two readings, which may lie in either order and across a wrap. */
static double ticks_between(const struct vulkan *v, uint64_t from, uint64_t to) {
    uint64_t ahead = (to - from) & mask_of(v), behind = (from - to) & mask_of(v);
    return ahead <= behind ? (double)ahead : -(double)behind;
}

static uint64_t host_ns(const struct vulkan *v, uint64_t ticks) {
    double ns =
        ticks_between(v, v->clock.ticks, ticks) * (double)v->gpu.properties.limits.timestampPeriod;
    return v->clock.ns + (uint64_t)(int64_t)ns;
}

static bool read_both(struct vulkan *v) {
    const VkCalibratedTimestampInfoEXT info[2] = {
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT,
         .timeDomain = VK_TIME_DOMAIN_DEVICE_EXT},
        {.sType = VK_STRUCTURE_TYPE_CALIBRATED_TIMESTAMP_INFO_EXT,
         .timeDomain = VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT}}; /* clock_ns() is this one */
    uint64_t values[2], deviation;
    if (!v->gpu.calibrated || !v->f.GetCalibratedTimestampsEXT) return false;
    if (v->f.GetCalibratedTimestampsEXT(v->device, 2, info, values, &deviation) < 0) return false;
    v->clock = (struct vk_clock){values[0], values[1], true};
    return true;
}

/* ---- stamps ---- */

static VkCommandPool pool_of(const struct vulkan *v, enum backend_queue queue) {
    return queue == BACKEND_COPY ? v->copy_pool : v->pool;
}

static ats_status record_stamp(struct vulkan *v, struct vk_stamps *s, enum backend_queue queue,
                               bool end, VkCommandBuffer *out) {
    /* once what stands before it has been done: segments do not overlap on their track, nor do
     * copies on theirs */
    const VkPipelineStageFlagBits stage = queue == BACKEND_COPY
                                              ? VK_PIPELINE_STAGE_TRANSFER_BIT
                                              : VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    TRY(vk_commands_begin_in(v, pool_of(v, queue), 0, out));
    if (!end && queue == BACKEND_COMPUTE) v->f.CmdResetQueryPool(*out, s->queries, 0, 2);
    v->f.CmdWriteTimestamp(*out, stage, s->queries, end);
    VK_TRY("recording", v->f.EndCommandBuffer(*out));
    return ATS_OK;
}

/* The caller holds queue_lock. */
static ats_status open_stamps(struct vulkan *v, struct vk_stamps *s, enum backend_queue queue) {
    VkQueryPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_QUERY_POOL_CREATE_INFO,
                                  .queryType = VK_QUERY_TYPE_TIMESTAMP,
                                  .queryCount = 2};
    VK_TRY("time stamps", v->f.CreateQueryPool(v->device, &info, NULL, &s->queries));
    TRY(record_stamp(v, s, queue, false, &s->begin));
    return record_stamp(v, s, queue, true, &s->end);
}

void vk_stamps_close(struct vulkan *v, struct vk_stamps *s, enum backend_queue queue) {
    if (s->begin) v->f.FreeCommandBuffers(v->device, pool_of(v, queue), 1, &s->begin);
    if (s->end) v->f.FreeCommandBuffers(v->device, pool_of(v, queue), 1, &s->end);
    if (s->queries) v->f.DestroyQueryPool(v->device, s->queries, NULL);
    *s = (struct vk_stamps){0};
}

/* A device that cannot be timed works all the same. */
const struct vk_stamps *vk_stamps_ready(struct vulkan *v, struct vk_stamps *s,
                                        enum backend_queue queue, bool timed) {
    s->submit_ns = 0;
    if (!timed) return NULL;
    if (!s->end) {
        pthread_mutex_lock(&v->queue_lock);
        ats_status status = open_stamps(v, s, queue);
        if (status != ATS_OK) vk_stamps_close(v, s, queue);
        pthread_mutex_unlock(&v->queue_lock);
        if (status != ATS_OK) {
            error_clear();
            return NULL;
        }
    }
    if (queue == BACKEND_COPY) v->f.ResetQueryPool(v->device, s->queries, 0, 2);
    if (v->put_off_ns == 0 || atomic_load_explicit(&v->n_put_off, memory_order_relaxed) == 0)
        v->put_off_ns = clock_ns();
    s->submit_ns = v->put_off_ns;
    return s;
}

/* The caller's thread marks the run: the device's own may hand it over while another is asked
 * about. */
struct vk_copy_run *vk_copy_run_next(const struct vulkan *v, struct backend_copy *c,
                                     uint64_t value) {
    struct vk_copy_run *run = &c->runs[c->next_run];
    bool timed = v->timed && v->clock.known && v->gpu.copy_stamps;
    c->next_run = !c->next_run;
    run->value = timed ? value : 0;
    return timed ? run : NULL;
}

static bool read_stamps(const struct vulkan *v, const struct vk_stamps *s, uint64_t ticks[2]) {
    return v->f.GetQueryPoolResults(v->device, s->queries, 0, 2, 2 * sizeof *ticks, ticks,
                                    sizeof *ticks, VK_QUERY_RESULT_64_BIT) == VK_SUCCESS;
}

/* ---- a clock that cannot be read: stamps between two readings of ours ---- */

/* Submits a stamp and nothing else; the shortest try counts. The caller holds queue_lock. */
static void pair_once(struct vulkan *v, const struct vk_stamps *s, uint64_t *shortest) {
    const VkCommandBuffer commands[2] = {s->begin, s->end};
    VkSubmitInfo info = {.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                         .commandBufferCount = 2,
                         .pCommandBuffers = commands};
    uint64_t ticks[2], before = clock_ns();
    if (v->f.QueueSubmit(v->queue, 1, &info, VK_NULL_HANDLE) < 0) return;
    if (v->f.QueueWaitIdle(v->queue) < 0) return;
    uint64_t took = clock_ns() - before;
    if (took >= *shortest || !read_stamps(v, s, ticks)) return;
    *shortest = took;
    v->clock = (struct vk_clock){ticks[1], before + took / 2, true};
}

static void pair_clocks(struct vulkan *v) {
    struct vk_stamps s = {0};
    uint64_t shortest = UINT64_MAX;
    pthread_mutex_lock(&v->queue_lock);
    ats_status status = open_stamps(v, &s, BACKEND_COMPUTE);
    for (int i = 0; i < PAIRINGS && status == ATS_OK; i++)
        pair_once(v, &s, &shortest);
    vk_stamps_close(v, &s, BACKEND_COMPUTE);
    pthread_mutex_unlock(&v->queue_lock);
    if (status != ATS_OK) error_clear();
}

/* ---- the interface ---- */

#define RENEW_NS 1000000000 /* clocks drift by tens of microseconds a second */

void vk_set_timed(struct backend *b, bool timed) {
    struct vulkan *v = vulkan_of(b);
    bool fresh = v->timed && v->clock.known && clock_ns() - v->clock_set_ns < RENEW_NS;
    pthread_mutex_lock(&v->queue_lock);
    v->timed = timed;
    pthread_mutex_unlock(&v->queue_lock);
    if (!timed || fresh || !v->gpu.timestamp_bits) return;
    if (!read_both(v)) pair_clocks(v);
    v->clock_set_ns = clock_ns();
}

static uint64_t between(uint64_t least, uint64_t value, uint64_t most) {
    return value < least ? least : value > most ? most : value;
}

/* Not before `least`, by the host's clock. */
static bool stamps_times(const struct vulkan *v, const struct vk_stamps *s, uint64_t least,
                         struct backend_times *out) {
    uint64_t ticks[2];
    *out = (struct backend_times){0};
    if (!s->submit_ns || !read_stamps(v, s, ticks)) return false;
    out->begin_ns = host_ns(v, ticks[0]);
    out->end_ns = host_ns(v, ticks[1]);
    /* the clocks agree to some microseconds; what certainly came first stays first */
    uint64_t now = clock_ns();
    if (least < s->submit_ns) least = s->submit_ns;
    out->begin_ns = between(least, out->begin_ns, now);
    out->end_ns = between(out->begin_ns, out->end_ns, now);
    return true;
}

bool vk_segment_times(struct backend *b, const struct backend_segment *segment,
                      struct backend_times *out) {
    return stamps_times(vulkan_of(b), &segment->stamps, 0, out);
}

/* Copies follow each other, also where the clock was set anew between two that are asked about. */
bool vk_copy_times(struct backend *b, const struct backend_copy *c, uint64_t value,
                   struct backend_times *out) {
    struct vulkan *v = vulkan_of(b);
    const struct vk_copy_run *run = &c->runs[c->runs[1].value == value];
    *out = (struct backend_times){0};
    if (value == 0 || run->value != value) return false;
    if (!stamps_times(v, &run->stamps, value > v->copied_value ? v->copied_ns : 0, out))
        return false;
    if (value > v->copied_value) v->copied_value = value, v->copied_ns = out->end_ns;
    return true;
}

void vk_counters(struct backend *b, struct backend_counters *out) {
    struct vulkan *v = vulkan_of(b);
    pthread_mutex_lock(&v->queue_lock);
    *out = v->counters;
    pthread_mutex_unlock(&v->queue_lock);
    out->driver_ns += v->gate.driver_ns;
    out->caller_driver_ns += v->gate.driver_ns;
}
