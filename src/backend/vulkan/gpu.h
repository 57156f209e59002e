/*
 * Which devices there are, and what each can do (device.c).
 */
#pragma once

#include "backend/backend.h"
#include "backend/vulkan/api.h"

enum { VK_MAX_GPUS = 16 };

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
