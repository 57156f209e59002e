/* Streaming: slots, and copies that are recorded once. What waits for what stands in vulkan.c. */
#include "backend/vulkan/vulkan_internal.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

static ats_status slot_open(struct vulkan *v, struct vk_slot *s) {
    TRY(vk_timeline_open(v, 0, &s->arrived));
    TRY(vk_timeline_open(v, 0, &s->released));
    return vk_block_open(v, (size_t)v->limits.slot_bytes, PLACE_DEVICE, "a slot", &s->block);
}

ats_status vk_slots_open(struct vulkan *v) {
    const struct backend_limits *l = &v->limits;
    v->slots = xcalloc((size_t)max_int(l->n_slots, 1), sizeof *v->slots);
    for (int i = 0; i < l->n_slots; i++)
        TRY(slot_open(v, &v->slots[i]));
    return ATS_OK;
}

void vk_slots_close(struct vulkan *v) {
    for (int i = 0; v->slots && i < v->limits.n_slots; i++) {
        if (v->slots[i].arrived) v->f.DestroySemaphore(v->device, v->slots[i].arrived, NULL);
        if (v->slots[i].released) v->f.DestroySemaphore(v->device, v->slots[i].released, NULL);
        vk_block_close(v, &v->slots[i].block);
        vk_block_close(v, &v->slots[i].staging);
    }
    free(v->slots);
    v->slots = NULL;
}

ats_status vk_slot_stage(struct vulkan *v, struct vk_slot *s) {
    if (s->staging.buffer) return ATS_OK;
    return vk_block_open(v, s->block.bytes, PLACE_HOST, "staging of a slot", &s->staging);
}

/* A copy may be handed over for the next round while the last one's is under way. */
static ats_status record(struct vulkan *v, struct backend_weight *const *weights, int n_weights,
                         const struct vk_slot *slot, VkCommandBuffer *out) {
    TRY(vk_commands_begin_in(v, v->copy_pool, VK_COMMAND_BUFFER_USAGE_SIMULTANEOUS_USE_BIT, out));
    for (int i = 0; i < n_weights; i++) {
        const struct backend_weight *w = weights[i];
        VkBuffer home = w->home->block->buffer; /* staging has the slot's offsets */
        VkBufferCopy region = {.srcOffset = home ? w->home->offset : w->offset,
                               .dstOffset = w->offset,
                               .size = w->bytes};
        v->f.CmdCopyBuffer(*out, home ? home : slot->staging.buffer, w->block->buffer, 1, &region);
    }
    VkResult result = v->f.EndCommandBuffer(*out);
    if (result >= 0) return ATS_OK;
    v->f.FreeCommandBuffers(v->device, v->copy_pool, 1, out);
    return vk_fail(result, "recording");
}

ats_status vk_copy_build(struct backend *b, struct backend_weight *const *weights, int n_weights,
                         struct backend_copy **out) {
    struct vulkan *v = vulkan_of(b);
    struct backend_copy copy = {.slot = &v->slots[weights[0]->s.slot]};
    *out = NULL;
    pthread_mutex_lock(&v->queue_lock);
    ats_status status = record(v, weights, n_weights, copy.slot, &copy.commands);
    pthread_mutex_unlock(&v->queue_lock);
    if (status != ATS_OK) return status;
    *out = xmalloc(sizeof copy);
    **out = copy;
    (*out)->staged = xcalloc((size_t)n_weights, sizeof *copy.staged);
    for (int i = 0; i < n_weights; i++) {
        const struct backend_weight *w = weights[i];
        const struct backend_home *home = w->home;
        if (home->block->buffer) continue;
        (*out)->staged[(*out)->n_staged++] =
            (struct vk_piece){home->block->mapped + home->offset, w->offset, w->bytes};
    }
    pthread_mutex_lock(&v->queue_lock);
    vk_watch_copy(v, *out, weights, n_weights);
    pthread_mutex_unlock(&v->queue_lock);
    return ATS_OK;
}

ats_status vk_copy_stage(struct vulkan *v, const struct backend_copy *c, uint64_t value) {
    TRY(vk_wait_staged(v, c->slot));
    vk_watch_staging(v, c);
    for (int i = 0; i < c->n_staged; i++)
        memcpy(c->slot->staging.mapped + c->staged[i].offset, c->staged[i].from,
               c->staged[i].bytes);
    c->slot->staged = value;
    return ATS_OK;
}

void vk_copy_free(struct backend *b, struct backend_copy *c) {
    struct vulkan *v = vulkan_of(b);
    vk_idle(v);
    if (v->hung) return; /* the device may still use it */
    pthread_mutex_lock(&v->queue_lock);
    vk_watch_forget(v, c->commands);
    v->f.FreeCommandBuffers(v->device, v->copy_pool, 1, &c->commands);
    for (int i = 0; i < 2; i++)
        vk_stamps_close(v, &c->runs[i].stamps, BACKEND_COPY);
    pthread_mutex_unlock(&v->queue_lock);
    free(c->staged);
    free(c);
}

/* ---- probes ---- */

enum { PROBE_BYTES = 4 << 20, LEAST_PROBE_BYTES = 256 << 10, PROBE_TIMES = 2 };

/* The staging buffer goes to work memory, which holds nothing between rounds. The least of a few:
 * what the host did meanwhile is not the link's. */
static ats_status time_copy(struct vulkan *v, size_t bytes, double *seconds) {
    const VkBufferCopy region = {.size = bytes};
    for (int i = 0; i < PROBE_TIMES; i++) {
        uint64_t begin = clock_ns();
        TRY(vk_copy_now(v, v->staging.buffer, v->local.buffer, &region, 1));
        double s = 1e-9 * (double)(clock_ns() - begin);
        if (i == 0 || s < *seconds) *seconds = s;
    }
    return ATS_OK;
}

ats_status vk_probe_copy(struct backend *b, double *seconds) {
    struct vulkan *v = vulkan_of(b);
    size_t bytes = min_size(PROBE_BYTES, min_size(v->staging.bytes, v->local.bytes));
    double few;
    *seconds = 0;
    if (!b->streams || !v->staging.buffer || !v->local.buffer || bytes < LEAST_PROBE_BYTES)
        return fail(ATS_UNSUPPORTED, "%s: no copy to measure its link by", v->name);
    TRY(time_copy(v, 4, &few));
    TRY(time_copy(v, bytes, seconds));
    *seconds = *seconds > 2 * few ? *seconds - few : *seconds / 2;
    return ATS_OK;
}
