/* Debug builds: what goes to the queues, told to base/races.h. */
#include "backend/vulkan/vulkan_internal.h"

#ifdef ATS_CHECK_RACES
#include <stdio.h>
#include <stdlib.h>
#include "backend/watch.h"

/* Streams are what takes part beside others, whichever queue it goes to: shaders, which are in
 * order by barriers; copies, which are not; who hands both over. */
static const void *stream_of(const struct vulkan *v, int which) {
    return (const uint8_t *)v + which;
}
enum { STREAM_SHADERS, STREAM_COPIES, STREAM_HOST };

/* A slot's release has the values of the device's timeline, which is signalled beside it. */
static const void *timeline_of(const struct vulkan *v, VkSemaphore s) {
    bool own = s == v->timeline;
    for (int i = 0; i < v->limits.n_slots; i++)
        own |= s == v->slots[i].released;
    return own ? (const void *)&v->base : (const void *)s;
}

/* A command buffer that is, or is going to be, handed over: what it touches. */
struct vk_watched {
    struct vk_watched *next;
    VkCommandBuffer commands;
    bool is_copy; /* handed over again and again */
    struct watched list;
};

static struct vk_watched *note(struct vulkan *v, VkCommandBuffer commands, bool is_copy) {
    struct vk_watched *w = xcalloc(1, sizeof *w);
    *w = (struct vk_watched){.next = v->watched, .commands = commands, .is_copy = is_copy};
    v->watched = w;
    return w;
}

static void drop(struct vk_watched **at) {
    struct vk_watched *w = *at;
    *at = w->next;
    free(w->list.items);
    free(w);
}

static void watch_slot(struct watched *list, const struct vulkan *v, const struct backend_weight *w,
                       bool write, int index) {
    if (!w || !w->home) return;
    watch(list, (struct race_access){.memory = &v->slots[w->s.slot],
                                     .begin = (int64_t)w->offset,
                                     .bytes = (int64_t)w->bytes,
                                     .lines = 1,
                                     .write = write,
                                     .what = w->s.name,
                                     .step_index = index});
}

static struct race_access numbers_of(const struct vulkan *v, bool write) {
    return (struct race_access){.memory = &v->round_block,
                                .bytes = (int64_t)v->round_block.bytes,
                                .lines = 1,
                                .write = write,
                                .what = "the round's numbers",
                                .step_index = -1};
}

void vk_watch_segment(struct vulkan *v, const struct vk_job *job,
                      const struct vk_commands *commands) {
    const struct backend_segment *s = job->segment;
    if (!v->limits.races || commands->n == 0) return;
    pthread_mutex_lock(&v->queue_lock);
    struct watched *list = &note(v, commands->items[0], false)->list;
    pthread_mutex_unlock(&v->queue_lock);
    watch_steps(list, &v->limits, s->steps, s->n_steps, job->round);
    watch(list, numbers_of(v, false));
    for (int i = 0; i < s->n_steps; i++) {
        const struct step *step = &s->steps[i];
        if (step->kind != STEP_OP) continue;
        watch_slot(list, v, step->weight, false, i);
        for (int j = 0; j < N_EXPERT_WEIGHTS; j++)
            watch_slot(list, v, step->experts[j], false, i);
    }
}

void vk_watch_copy(struct vulkan *v, const struct backend_copy *c,
                   struct backend_weight *const *weights, int n) {
    struct watched *list = &note(v, c->commands, true)->list;
    for (int i = 0; i < n; i++) {
        watch_slot(list, v, weights[i], true, -1);
        if (!weights[i]->home->block->buffer)
            watch(list, (struct race_access){.memory = &c->slot->staging,
                                             .begin = (int64_t)weights[i]->offset,
                                             .bytes = (int64_t)weights[i]->bytes,
                                             .lines = 1,
                                             .what = "what is staged",
                                             .step_index = -1});
    }
}

void vk_watch_forget(struct vulkan *v, VkCommandBuffer commands) {
    for (struct vk_watched **at = &v->watched; *at;)
        if ((*at)->commands == commands || !commands)
            drop(at);
        else
            at = &(*at)->next;
}

/* One submission. */
static void submit(struct vulkan *v, const VkSubmitInfo *info) {
    struct race_event e = {.stream = stream_of(v, STREAM_SHADERS),
                           .name = v->name,
                           .in_order = true,
                           .knows = &v->known};
    struct vk_watched **at = &v->watched;
    while (*at && (*at)->commands != info->pCommandBuffers[0] &&
           (*at)->commands != info->pCommandBuffers[info->commandBufferCount > 1])
        at = &(*at)->next;
    if (*at) {
        e.accesses = (*at)->list.items;
        e.n_accesses = (int)(*at)->list.n;
    }
    char name[40];
    if (*at && (*at)->is_copy) {
        snprintf(name, sizeof name, "%s's copies", v->name);
        e.stream = stream_of(v, STREAM_COPIES);
        e.name = name;
        e.in_order = false;
    }
    const VkTimelineSemaphoreSubmitInfo *t = info->pNext;
    REQUIRE(info->waitSemaphoreCount <= RACES_WAITS);
    for (uint32_t i = 0; i < info->waitSemaphoreCount; i++)
        e.waits[e.n_waits++] = (struct race_wait){timeline_of(v, info->pWaitSemaphores[i]),
                                                  t->pWaitSemaphoreValues[i]};
    if (info->signalSemaphoreCount) {
        e.timeline = timeline_of(v, info->pSignalSemaphores[0]);
        e.value = t->pSignalSemaphoreValues[0];
    }
    races_submit(v->limits.races, &e);
    if (*at && !(*at)->is_copy) drop(at);
}

void vk_watch_submit(struct vulkan *v, const VkSubmitInfo *infos, uint32_t n) {
    for (uint32_t i = 0; v->limits.races && i < n; i++)
        submit(v, &infos[i]);
}

void vk_watch_wait(struct vulkan *v, const void *timeline, uint64_t value) {
    races_learn(v->limits.races, &v->known, timeline, value);
}

void vk_watch_anew(struct vulkan *v) {
    v->known = (struct race_clock){{0}};
}

void vk_watch_reached(struct vulkan *v, const struct backend *driven, uint64_t value) {
    races_publish(v->limits.races, driven, (const void *)v->gate.semaphore, value);
}

static void do_by_host(struct vulkan *v, const struct race_access *accesses, int n) {
    char name[40];
    snprintf(name, sizeof name, "the host of %s", v->name);
    races_do(v->limits.races, &v->known, stream_of(v, STREAM_HOST), name, accesses, n);
}

void vk_watch_numbers(struct vulkan *v) {
    const struct race_access a = numbers_of(v, true);
    do_by_host(v, &a, 1);
}

void vk_watch_staging(struct vulkan *v, const struct backend_copy *c) {
    for (int i = 0; i < c->n_staged; i++) {
        const struct race_access a = {.memory = &c->slot->staging,
                                      .begin = (int64_t)c->staged[i].offset,
                                      .bytes = (int64_t)c->staged[i].bytes,
                                      .lines = 1,
                                      .write = true,
                                      .what = "what is staged",
                                      .step_index = -1};
        do_by_host(v, &a, 1);
    }
}
#endif
