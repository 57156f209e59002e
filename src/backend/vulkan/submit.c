/*
 * Jobs on their way to a queue. What waits for the driven device (whose work begins when all others
 * have got theirs) is put off and handed over in one call, with all that comes behind it: the queue
 * itself waits at the gate, a timeline that the host moves when it is told that the device got on.
 */
#include "backend/vulkan/vulkan_internal.h"

#include <stdatomic.h>
#include <stdlib.h>
#include "base/clock.h"

/* ---- what is put off ---- */

static struct vk_batch *batch_of(struct vulkan *v, enum backend_queue queue) {
    bool own = queue == BACKEND_COPY && v->copy_queue != v->queue;
    return &v->batches[own];
}

/* The caller holds queue_lock. */
static struct vk_entry *add_entry(struct vulkan *v, enum backend_queue queue) {
    struct vk_batch *b = batch_of(v, queue);
    GROW(b->entries, b->n, b->cap, 1);
    struct vk_entry *e = &b->entries[b->n++];
    atomic_fetch_add_explicit(&v->n_put_off, 1, memory_order_relaxed);
    *e = (struct vk_entry){0};
    return e;
}

static void add_signal(struct vk_entry *e, VkSemaphore semaphore, uint64_t value) {
    e->signals[e->n_signals] = semaphore;
    e->signal_values[e->n_signals++] = value;
}

static void add_wait(struct vk_entry *e, VkSemaphore semaphore, uint64_t value,
                     VkPipelineStageFlags stage) {
    e->waits[e->n_waits] = semaphore;
    e->wait_values[e->n_waits] = value;
    e->wait_stages[e->n_waits++] = stage;
}

/* Pieces are submissions of their own, so that the driver's watchdog sees each by itself; one call
 * hands over many. */
void vk_submit(struct vulkan *v, const struct vk_commands *list, const struct vk_stamps *stamps,
               const struct vk_job *job) {
    const VkPipelineStageFlags stage = VK_PIPELINE_STAGE_COMPUTE_SHADER_BIT;
    pthread_mutex_lock(&v->queue_lock);
    for (size_t i = 0; i < list->n; i++) {
        struct vk_entry *e = add_entry(v, BACKEND_COMPUTE);
        bool last = i + 1 == list->n;
        if (i == 0 && job->after) add_wait(e, job->slot->arrived, job->after, stage);
        if (i == 0 && job->gate) add_wait(e, v->gate.semaphore, job->gate, stage);
        if (stamps && i == 0) e->commands[e->n_commands++] = stamps->begin;
        e->commands[e->n_commands++] = i ? list->items[i] : list->first;
        if (stamps && last) e->commands[e->n_commands++] = stamps->end;
        if (!last) continue;
        add_signal(e, v->timeline, job->value);
        if (job->segment->releases) add_signal(e, job->segment->releases->released, job->value);
    }
    pthread_mutex_unlock(&v->queue_lock);
}

ats_status vk_submit_copy(struct vulkan *v, const struct vk_job *job) {
    if (job->copy->n_staged) TRY(vk_copy_stage(v, job->copy, job->value));
    struct vk_copy_run *run = job->run;
    const struct vk_stamps *stamps =
        run ? vk_stamps_ready(v, &run->stamps, BACKEND_COPY, true) : NULL;
    pthread_mutex_lock(&v->queue_lock);
    struct vk_entry *e = add_entry(v, BACKEND_COPY);
    const struct vk_slot *slot = job->copy->slot;
    if (job->after) add_wait(e, slot->released, job->after, VK_PIPELINE_STAGE_TRANSFER_BIT);
    if (job->behind) add_wait(e, slot->arrived, job->behind, VK_PIPELINE_STAGE_TRANSFER_BIT);
    if (stamps) e->commands[e->n_commands++] = stamps->begin;
    e->commands[e->n_commands++] = job->copy->commands;
    if (stamps) e->commands[e->n_commands++] = stamps->end;
    add_signal(e, slot->arrived, job->value);
    pthread_mutex_unlock(&v->queue_lock);
    return ATS_OK;
}

/* ---- handing over ---- */

static void fill_info(struct vk_batch *b, size_t i) {
    struct vk_entry *e = &b->entries[i];
    b->timelines[i] =
        (VkTimelineSemaphoreSubmitInfo){.sType = VK_STRUCTURE_TYPE_TIMELINE_SEMAPHORE_SUBMIT_INFO,
                                        .waitSemaphoreValueCount = e->n_waits,
                                        .pWaitSemaphoreValues = e->wait_values,
                                        .signalSemaphoreValueCount = e->n_signals,
                                        .pSignalSemaphoreValues = e->signal_values};
    b->infos[i] = (VkSubmitInfo){.sType = VK_STRUCTURE_TYPE_SUBMIT_INFO,
                                 .pNext = &b->timelines[i],
                                 .waitSemaphoreCount = e->n_waits,
                                 .pWaitSemaphores = e->waits,
                                 .pWaitDstStageMask = e->wait_stages,
                                 .commandBufferCount = e->n_commands,
                                 .pCommandBuffers = e->commands,
                                 .signalSemaphoreCount = e->n_signals,
                                 .pSignalSemaphores = e->signals};
}

static VkResult flush_batch(struct vulkan *v, VkQueue queue, struct vk_batch *b) {
    size_t n = b->n;
    if (n == 0) return VK_SUCCESS;
    GROW(b->infos, 0, b->cap_infos, n);
    GROW(b->timelines, 0, b->cap_timelines, n);
    for (size_t i = 0; i < n; i++)
        fill_info(b, i);
    b->n = 0;
    atomic_fetch_sub_explicit(&v->n_put_off, (int)n, memory_order_relaxed);
    return vk_queue_submit(v, queue, b->infos, (uint32_t)n);
}

ats_status vk_flush(struct vulkan *v) {
    /* what this thread does not see yet is another's, who is about to hand it over */
    if (atomic_load_explicit(&v->n_put_off, memory_order_relaxed) == 0) return ATS_OK;
    pthread_mutex_lock(&v->queue_lock);
    VkResult result = flush_batch(v, v->queue, &v->batches[0]);
    if (result >= 0) result = flush_batch(v, v->copy_queue, &v->batches[1]);
    pthread_mutex_unlock(&v->queue_lock);
    return result < 0 ? vk_fail(result, "a submission") : ATS_OK;
}

/* ---- the gate ---- */

ats_status vk_gate_open(struct vulkan *v) {
    return vk_timeline_open(v, 0, &v->gate.semaphore);
}

void vk_gate_close(struct vulkan *v) {
    if (v->gate.semaphore) v->f.DestroySemaphore(v->device, v->gate.semaphore, NULL);
    free(v->gate.awaited);
    for (int i = 0; i < 2; i++) {
        free(v->batches[i].entries);
        free(v->batches[i].infos);
        free(v->batches[i].timelines);
    }
}

/* The queue does its work in order: it waits for each value once, and for none below another. */
uint64_t vk_gate_await(struct vulkan *v, uint64_t value) {
    struct vk_gate *g = &v->gate;
    if (value <= g->reached || (g->n && value <= g->awaited[g->n - 1])) return 0;
    GROW(g->awaited, g->n, g->cap, 1);
    g->awaited[g->n++] = value;
    return value;
}

/* Moves the gate past what has been reached; true: somebody waits for it there. */
static bool gate_pass(struct vk_gate *g, uint64_t value) {
    size_t before = g->first;
    g->reached = max_u64(g->reached, value);
    while (g->first < g->n && g->awaited[g->first] <= value)
        g->first++;
    bool passed = g->first > before;
    if (g->first == g->n) g->first = g->n = 0;
    return passed;
}

ats_status vk_gate_reach(struct vulkan *v, uint64_t value) {
    bool passed = gate_pass(&v->gate, value);
    TRY(vk_flush(v));
    if (!passed || v->hung) return ATS_OK;
    VkSemaphoreSignalInfo info = {.sType = VK_STRUCTURE_TYPE_SEMAPHORE_SIGNAL_INFO,
                                  .semaphore = v->gate.semaphore,
                                  .value = value};
    uint64_t start = v->timed ? clock_ns() : 0;
    VkResult result = v->f.SignalSemaphore(v->device, &info);
    if (start) v->gate.driver_ns += clock_ns() - start;
    return result < 0 ? vk_fail(result, "opening the way for the device") : ATS_OK;
}

void vk_gate_lift(struct vulkan *v) {
    uint64_t last = v->gate.n ? v->gate.awaited[v->gate.n - 1] : 0;
    if (last && vk_gate_reach(v, last) != ATS_OK) error_clear(); /* of a device that is given up */
}
