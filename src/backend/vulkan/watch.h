/*
 * What is handed over is told to limits.races, where there is one (watch.c). A release has none.
 */
#pragma once

#include "backend/vulkan/work.h"

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
