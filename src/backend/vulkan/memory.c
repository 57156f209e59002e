/* Device memory: one buffer over each allocation, and views of it. */
#include "backend/vulkan/vulkan_internal.h"

#include <stdio.h>
#include <string.h>
#include "base/file.h"
#include "base/log.h"

enum {
    USAGE = VK_BUFFER_USAGE_STORAGE_BUFFER_BIT | VK_BUFFER_USAGE_INDIRECT_BUFFER_BIT |
            VK_BUFFER_USAGE_TRANSFER_SRC_BIT | VK_BUFFER_USAGE_TRANSFER_DST_BIT,
    REACHABLE = VK_MEMORY_PROPERTY_HOST_VISIBLE_BIT | VK_MEMORY_PROPERTY_HOST_COHERENT_BIT,
    CACHED = VK_MEMORY_PROPERTY_HOST_CACHED_BIT,
    OWN = VK_MEMORY_PROPERTY_DEVICE_LOCAL_BIT,
};

/* How well a type of memory serves a place; -1: not at all. */
static int rank(const struct vulkan *v, enum vk_place place, VkMemoryPropertyFlags flags) {
    bool reachable = (flags & REACHABLE) == REACHABLE, own = flags & OWN;
    if (flags & VK_MEMORY_PROPERTY_LAZILY_ALLOCATED_BIT) return -1;
    if (place == PLACE_HOST) return reachable ? 1 + 2 * !!(flags & CACHED) : -1;
    /* on a card of its own, the part of the memory that the host sees may be small */
    bool window = reachable && v->gpu.kind == GPU_DISCRETE;
    return (own ? 4 : 1) - 2 * window;
}

static int best_type(const struct vulkan *v, enum vk_place place, uint32_t allowed) {
    int best = -1, best_rank = -1;
    for (uint32_t i = 0; i < v->gpu.memory.memoryTypeCount; i++) {
        if (!(allowed >> i & 1)) continue;
        int r = rank(v, place, v->gpu.memory.memoryTypes[i].propertyFlags);
        if (r > best_rank) best = (int)i, best_rank = r;
    }
    return best;
}

bool vk_maps_own(const struct vulkan *v) {
    int type = best_type(v, PLACE_DEVICE, UINT32_MAX);
    if (!v->gpu.host_vram || v->gpu.kind == GPU_DISCRETE || type < 0) return false;
    return (v->gpu.memory.memoryTypes[type].propertyFlags & REACHABLE) == REACHABLE;
}

/* For tests: the n-th allocation of the device fails. */
static VkResult allocate(struct vulkan *v, const VkMemoryAllocateInfo *info, VkDeviceMemory *out) {
    if (v->fail_allocation && --v->fail_allocation == 0) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return v->f.AllocateMemory(v->device, info, NULL, out);
}

static VkResult map_block(struct vulkan *v, int type, enum vk_place place, struct vk_block *b) {
    VkMemoryPropertyFlags flags = v->gpu.memory.memoryTypes[type].propertyFlags;
    bool wanted = place == PLACE_HOST || (v->gpu.host_vram && v->gpu.kind != GPU_DISCRETE);
    if (!wanted || (flags & REACHABLE) != REACHABLE) return VK_SUCCESS;
    void *mapped = NULL;
    VkResult result = v->f.MapMemory(v->device, b->memory, 0, VK_WHOLE_SIZE, 0, &mapped);
    b->mapped = mapped;
    return result;
}

/* Both queues may use any buffer; its bytes are never handed over. */
static VkResult create_buffer(struct vulkan *v, const void *external, VkBufferUsageFlags usage,
                              struct vk_block *b) {
    const uint32_t families[2] = {v->gpu.family, v->gpu.copy_family};
    bool shared = families[0] != families[1];
    VkBufferCreateInfo info = {.sType = VK_STRUCTURE_TYPE_BUFFER_CREATE_INFO,
                               .pNext = external,
                               .size = b->bytes,
                               .usage = usage,
                               .sharingMode =
                                   shared ? VK_SHARING_MODE_CONCURRENT : VK_SHARING_MODE_EXCLUSIVE,
                               .queueFamilyIndexCount = shared ? 2 : 0,
                               .pQueueFamilyIndices = families};
    return v->f.CreateBuffer(v->device, &info, NULL, &b->buffer);
}

static VkResult fill_block(struct vulkan *v, enum vk_place place, struct vk_block *b) {
    VkBufferUsageFlags usage = USAGE;
    if (place == PLACE_ADDRESSED) usage |= VK_BUFFER_USAGE_SHADER_DEVICE_ADDRESS_BIT;
    VkResult result = create_buffer(v, NULL, usage, b);
    if (result < 0) return result;
    VkMemoryRequirements needs;
    v->f.GetBufferMemoryRequirements(v->device, b->buffer, &needs);
    int type = best_type(v, place, needs.memoryTypeBits);
    if (type < 0) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkMemoryAllocateFlagsInfo flags = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_FLAGS_INFO,
                                       .flags = VK_MEMORY_ALLOCATE_DEVICE_ADDRESS_BIT};
    VkMemoryAllocateInfo memory = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                   .pNext = place == PLACE_ADDRESSED ? &flags : NULL,
                                   .allocationSize = needs.size,
                                   .memoryTypeIndex = (uint32_t)type};
    if ((result = allocate(v, &memory, &b->memory)) < 0) return result;
    if ((result = v->f.BindBufferMemory(v->device, b->buffer, b->memory, 0)) < 0) return result;
    VkBufferDeviceAddressInfo at = {.sType = VK_STRUCTURE_TYPE_BUFFER_DEVICE_ADDRESS_INFO,
                                    .buffer = b->buffer};
    if (place == PLACE_ADDRESSED) b->address = v->f.GetBufferDeviceAddress(v->device, &at);
    return map_block(v, type, place, b);
}

/* Past what is free some drivers put memory into the host's, silently and at a tenth of the speed.
 * Where the driver tells what is free, that is a limit, less some room for other programs: what was
 * free at first, which the first plan was made for, or is now, if that is more. */
static ats_status check_budget(const struct vulkan *v, size_t bytes, const char *what) {
    const uint64_t spare = (uint64_t)backend_headroom_bytes((int64_t)v->gpu.heap_bytes);
    uint64_t free_bytes = v->gpu.free_bytes > spare ? v->gpu.free_bytes - spare : 0;
    if (!v->gpu.budget || v->device_bytes + bytes <= free_bytes) return ATS_OK;
    struct backend_memory now;
    vk_gpu_memory_now(&v->instance, &v->gpu, &now);
    if (v->device_bytes + bytes + spare <= (uint64_t)now.free_bytes) return ATS_OK;
    return fail(ATS_NO_MEMORY, "%s: %s needs %.0f MiB, but %.0f of %.0f free MiB are taken",
                v->name, what, (double)bytes / (1 << 20), (double)v->device_bytes / (1 << 20),
                (double)free_bytes / (1 << 20));
}

ats_status vk_block_open(struct vulkan *v, size_t bytes, enum vk_place place, const char *what,
                         struct vk_block *out) {
    *out = (struct vk_block){.bytes = round_up(max_size(bytes, 4), 256)};
    if (out->bytes > v->gpu.max_allocation || out->bytes < bytes) {
        *out = (struct vk_block){0};
        return fail(ATS_NO_MEMORY, "%s: %s needs %zu bytes, one allocation takes %llu", v->name,
                    what, bytes, (unsigned long long)v->gpu.max_allocation);
    }
    if (place != PLACE_HOST) TRY(check_budget(v, out->bytes, what));
    VkResult result = fill_block(v, place, out);
    if (result >= 0) {
        out->counted = place != PLACE_HOST;
        v->device_bytes += out->counted ? out->bytes : 0;
        return ATS_OK;
    }
    vk_block_close(v, out);
    ats_status status = vk_fail(result, "allocating memory");
    return fail_in(status, "%s: %s of %zu bytes", v->name, what, bytes);
}

static VkResult fill_import(struct vulkan *v, void *memory, struct vk_block *b) {
    const VkExternalMemoryHandleTypeFlagBits handle =
        VK_EXTERNAL_MEMORY_HANDLE_TYPE_HOST_ALLOCATION_BIT_EXT;
    VkMemoryHostPointerPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_MEMORY_HOST_POINTER_PROPERTIES_EXT};
    VkResult result = v->f.GetMemoryHostPointerPropertiesEXT(v->device, handle, memory, &host);
    if (result < 0) return result;
    VkExternalMemoryBufferCreateInfo external = {
        .sType = VK_STRUCTURE_TYPE_EXTERNAL_MEMORY_BUFFER_CREATE_INFO,
        .handleTypes = (VkExternalMemoryHandleTypeFlags)handle};
    if ((result = create_buffer(v, &external, USAGE, b)) < 0) return result;
    VkMemoryRequirements needs;
    v->f.GetBufferMemoryRequirements(v->device, b->buffer, &needs);
    int type = best_type(v, PLACE_HOST, needs.memoryTypeBits & host.memoryTypeBits);
    if (type < 0 || needs.size > b->bytes) return VK_ERROR_INVALID_EXTERNAL_HANDLE;
    VkImportMemoryHostPointerInfoEXT import = {
        .sType = VK_STRUCTURE_TYPE_IMPORT_MEMORY_HOST_POINTER_INFO_EXT,
        .handleType = handle,
        .pHostPointer = memory};
    VkMemoryAllocateInfo allocation = {.sType = VK_STRUCTURE_TYPE_MEMORY_ALLOCATE_INFO,
                                       .pNext = &import,
                                       .allocationSize = b->bytes,
                                       .memoryTypeIndex = (uint32_t)type};
    if ((result = allocate(v, &allocation, &b->memory)) < 0) return result;
    b->mapped = memory;
    return v->f.BindBufferMemory(v->device, b->buffer, b->memory, 0);
}

/* Drivers do not check the alignment: we do. The pages of pages_alloc are whole. */
ats_status vk_block_import(struct vulkan *v, void *memory, size_t bytes, struct vk_block *out) {
    size_t align = (size_t)v->gpu.import_align;
    *out = (struct vk_block){.bytes = round_up(max_size(bytes, 1), align)};
    VkResult result = VK_ERROR_FEATURE_NOT_PRESENT;
    bool fits =
        (uintptr_t)memory % align == 0 && align <= 4096 && out->bytes <= v->gpu.max_allocation;
    if (v->gpu.import && v->f.GetMemoryHostPointerPropertiesEXT && fits)
        result = fill_import(v, memory, out);
    if (result >= 0) return ATS_OK;
    vk_block_close(v, out);
    return fail(ATS_UNSUPPORTED, "%s cannot reach the program's memory itself", v->name);
}

bool vk_homes_are_cached(const struct vulkan *v) {
    int type = best_type(v, PLACE_HOST, UINT32_MAX);
    return type >= 0 && v->gpu.memory.memoryTypes[type].propertyFlags & CACHED;
}

ats_status vk_home_block_open(struct vulkan *v, size_t bytes, const char *what,
                              struct vk_block *out) {
    ats_status status = v->no_pin ? fail(ATS_NO_MEMORY, "%s: none can be pinned", v->name)
                                  : vk_block_open(v, bytes, PLACE_HOST, what, out);
    if (status != ATS_NO_MEMORY) return status;
    char why[200];
    void *pages;
    snprintf(why, sizeof why, "%s", error_text());
    error_clear();
    bytes = round_up(max_size(bytes, 1), max_size(4096, (size_t)v->gpu.import_align));
    TRY(pages_alloc(bytes, &pages));
    status = vk_block_import(v, pages, bytes, out);
    if (status != ATS_OK) {
        error_clear();
        *out = (struct vk_block){.bytes = bytes, .mapped = pages};
    }
    out->pages = true;
    if (!v->said_unpinned)
        log_msg(LOG_WARN, "%s: memory for streamed weights cannot be pinned (%s): %s", v->name, why,
                out->buffer ? "the program's own is read in place"
                            : "they are copied twice, which is slower");
    v->said_unpinned = true;
    return ATS_OK;
}

void vk_block_close(struct vulkan *v, struct vk_block *b) {
    if (v->hung) {
        *b = (struct vk_block){0};
        return;
    }
    if (b->buffer) v->f.DestroyBuffer(v->device, b->buffer, NULL);
    if (b->memory) v->f.FreeMemory(v->device, b->memory, NULL); /* unmaps it */
    if (b->counted) v->device_bytes -= b->bytes;
    if (b->pages) pages_free(b->mapped, b->bytes);
    *b = (struct vk_block){0};
}

ats_status vk_view_open(const struct vulkan *v, const struct vk_block *block, size_t offset,
                        size_t bytes, const char *what, struct vk_view *out) {
    size_t align = max_size((size_t)v->gpu.properties.limits.minStorageBufferOffsetAlignment,
                            16); /* so that shaders may take four words at a time */
    size_t begin = offset / align * align;
    size_t end = min_size(round_up(offset + bytes, 4), block->bytes);
    REQUIRE(begin < end);
    *out = (struct vk_view){.buffer = block->buffer,
                            .offset = begin,
                            .range = end - begin,
                            .word = (int32_t)((offset - begin) / 4)};
    if (end - begin <= v->gpu.max_range || block->address) return ATS_OK;
    return fail(ATS_UNSUPPORTED, "%s: %s has %zu bytes, a shader sees at most %llu", v->name, what,
                bytes, (unsigned long long)v->gpu.max_range);
}
