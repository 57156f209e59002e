/* Command buffers, the queue, and the timeline as the host sees it. */
#include "backend/vulkan/vulkan_internal.h"

#include <stdlib.h>
#include "base/clock.h"

#define SPIN_NS 60000 /* a wait that ends sooner is not worth the sleep */
#define NAP_NS  200000000

ats_status vk_timeline_open(struct vulkan *v, uint64_t value, VkSemaphore *out) {
    VkSemaphoreTypeCreateInfo type = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_TYPE_CREATE_INFO,
                                      .semaphoreType = VK_SEMAPHORE_TYPE_TIMELINE,
                                      .initialValue = value};
    VkSemaphoreCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_CREATE_INFO, .pNext = &type};
    VK_TRY("a timeline", v->f.CreateSemaphore(v->device, &info, NULL, out));
    return ATS_OK;
}

static ats_status open_queue(struct vulkan *v, uint32_t family, uint32_t index, VkQueue *queue,
                             VkCommandPool *pool) {
    VkCommandPoolCreateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_POOL_CREATE_INFO,
                                    .queueFamilyIndex = family};
    VK_TRY("a command pool", v->f.CreateCommandPool(v->device, &info, NULL, pool));
    v->f.GetDeviceQueue(v->device, family, index, queue);
    return ATS_OK;
}

ats_status vk_commands_open(struct vulkan *v) {
    TRY(open_queue(v, v->gpu.family, 0, &v->queue, &v->pool));
    TRY(open_queue(v, v->gpu.copy_family, v->gpu.copy_index, &v->copy_queue, &v->copy_pool));
    TRY(vk_gate_open(v));
    return vk_timeline_open(v, 0, &v->timeline);
}

void vk_commands_close(struct vulkan *v) {
    vk_gate_close(v);
    if (v->timeline) v->f.DestroySemaphore(v->device, v->timeline, NULL);
    if (v->pool) v->f.DestroyCommandPool(v->device, v->pool, NULL);
    if (v->copy_pool) v->f.DestroyCommandPool(v->device, v->copy_pool, NULL);
}

ats_status vk_commands_begin_in(struct vulkan *v, VkCommandPool pool,
                                VkCommandBufferUsageFlags usage, VkCommandBuffer *out) {
    VkCommandBufferAllocateInfo info = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_ALLOCATE_INFO,
                                        .commandPool = pool,
                                        .level = VK_COMMAND_BUFFER_LEVEL_PRIMARY,
                                        .commandBufferCount = 1};
    VK_TRY("a command buffer", v->f.AllocateCommandBuffers(v->device, &info, out));
    VkCommandBufferBeginInfo begin = {.sType = VK_STRUCTURE_TYPE_COMMAND_BUFFER_BEGIN_INFO,
                                      .flags = usage};
    VkResult result = v->f.BeginCommandBuffer(*out, &begin);
    if (result >= 0) return ATS_OK;
    v->f.FreeCommandBuffers(v->device, pool, 1, out);
    return vk_fail(result, "recording");
}

ats_status vk_commands_begin(struct vulkan *v, VkCommandBuffer *out) {
    return vk_commands_begin_in(v, v->pool, 0, out);
}

enum {
    SHADERS = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT,
    WORK = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT | VK_PIPELINE_STAGE_TRANSFER_BIT,
    SHADER_ACCESS = VK_ACCESS_SHADER_READ_BIT | VK_ACCESS_SHADER_WRITE_BIT,
    COPY_ACCESS = VK_ACCESS_TRANSFER_READ_BIT | VK_ACCESS_TRANSFER_WRITE_BIT,
};

static void barrier(const struct vulkan *v, VkCommandBuffer c, VkPipelineStageFlags from,
                    VkPipelineStageFlags to, VkAccessFlags access) {
    VkMemoryBarrier memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_BARRIER,
                              .srcAccessMask = VK_ACCESS_SHADER_WRITE_BIT,
                              .dstAccessMask = access};
    if (from != SHADERS) memory.srcAccessMask |= VK_ACCESS_TRANSFER_WRITE_BIT;
    v->f.CmdPipelineBarrier(c, from, to, 0, 1, &memory, 0, NULL, 0, NULL);
}

void vk_barrier(const struct vulkan *v, VkCommandBuffer c) {
    barrier(v, c, WORK, WORK, SHADER_ACCESS | COPY_ACCESS);
}

void vk_segment_barrier(const struct vulkan *v, VkCommandBuffer c) {
    barrier(v, c, SHADERS, SHADERS, SHADER_ACCESS);
}

void vk_host_barrier(const struct vulkan *v, VkCommandBuffer c) {
    barrier(v, c, WORK, VK_PIPELINE_STAGE_HOST_BIT, VK_ACCESS_HOST_READ_BIT);
}

void vk_count_driver(struct vulkan *v, uint64_t start) {
    if (!start) return;
    uint64_t ns = clock_ns() - start;
    v->counters.driver_ns += ns;
    if (!vk_in_own_thread(v)) v->counters.caller_driver_ns += ns;
}

/* For tests: the n-th submission loses the device. */
VkResult vk_queue_submit(struct vulkan *v, VkQueue queue, const VkSubmitInfo *infos, uint32_t n) {
    vk_watch_submit(v, infos, n);
    v->counters.n_submissions++;
    if (v->lose_submission && --v->lose_submission == 0) return VK_ERROR_DEVICE_LOST;
    if (v->hang_submission && --v->hang_submission == 0) return VK_SUCCESS; /* it never ends */
    uint64_t start = v->timed ? clock_ns() : 0,
             own = start && vk_in_own_thread(v) ? clock_thread_ns() : 0;
    VkResult result = v->f.QueueSubmit(queue, n, infos, VK_NULL_HANDLE);
    vk_count_driver(v, start);
    if (own) v->job_away_ns += clock_thread_ns() - own;
    return result;
}

static ats_status wait_on(struct vulkan *v, VkSemaphore timeline, uint64_t value) {
    uint64_t reached = 0, start = clock_ns();
    do {
        VK_TRY("reading the timeline",
               v->f.GetSemaphoreCounterValue(v->device, timeline, &reached));
        if (reached >= value) return ATS_OK;
    } while (clock_ns() - start < SPIN_NS);
    VkSemaphoreWaitInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_WAIT_INFO,
                                .semaphoreCount = 1,
                                .pSemaphores = &timeline,
                                .pValues = &value};
    VkResult result;
    do { /* a device that was lost answers with an error, one that works with patience */
        result = v->f.WaitSemaphores(v->device, &info, NAP_NS);
        v->hung |= result == VK_TIMEOUT && v->timeout_ns && clock_ns() - start > v->timeout_ns;
    } while (result == VK_TIMEOUT && !v->hung);
    if (result == VK_TIMEOUT)
        return fail(ATS_DEVICE, "vulkan: %s has not answered for %.1f s and counts as lost",
                    v->name, (double)v->timeout_ns / 1e9);
    if (result < 0) return vk_fail(result, "waiting for the device");
    return ATS_OK;
}

ats_status vk_wait_value(struct vulkan *v, uint64_t value) {
    TRY(wait_on(v, v->timeline, value));
    if (value > v->done)
        v->done = value; /* a race of two leaves one of them: it only costs a look */
    return ATS_OK;
}

ats_status vk_wait_staged(struct vulkan *v, const struct vk_slot *slot) {
    if (!slot->staged) return ATS_OK;
    ats_status status = wait_on(v, slot->arrived, slot->staged);
    vk_watch_wait(v, (const void *)slot->arrived, slot->staged);
    return status;
}

ats_status vk_wait_in_job(struct vulkan *v, uint64_t value) {
    if (value <= v->done) {
        vk_watch_wait(v, &v->base, value);
        return ATS_OK;
    }
    TRY(vk_flush(v));
    bool timed = v->timed && vk_in_own_thread(v);
    uint64_t start = timed ? clock_thread_ns() : 0;
    ats_status status = vk_wait_value(v, value);
    if (timed) v->job_away_ns += clock_thread_ns() - start;
    vk_watch_wait(v, &v->base, value);
    return status;
}

static ats_status copy_now(struct vulkan *v, VkCommandBuffer c, VkBuffer from, VkBuffer to,
                           const VkBufferCopy *regions, uint32_t n) {
    vk_barrier(v, c);
    v->f.CmdCopyBuffer(c, from, to, n, regions);
    vk_barrier(v, c);
    VK_TRY("recording", v->f.EndCommandBuffer(c));
    VkSubmitInfo info = {
        .sType = VK_STRUCTURE_TYPE_SUBMIT_INFO, .commandBufferCount = 1, .pCommandBuffers = &c};
    VkResult result = vk_queue_submit(v, v->queue, &info, 1);
    if (result >= 0) result = v->f.QueueWaitIdle(v->queue);
    if (result < 0) return vk_fail(result, "a copy");
    return ATS_OK;
}

ats_status vk_copy_now(struct vulkan *v, VkBuffer from, VkBuffer to, const VkBufferCopy *regions,
                       uint32_t n) {
    VkCommandBuffer c;
    pthread_mutex_lock(&v->queue_lock);
    ats_status status = vk_commands_begin(v, &c);
    if (status == ATS_OK) {
        status = copy_now(v, c, from, to, regions, n);
        v->f.FreeCommandBuffers(v->device, v->pool, 1, &c);
    }
    pthread_mutex_unlock(&v->queue_lock);
    return status;
}
