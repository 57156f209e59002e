/* Which devices there are and what each can do. */
#include "backend/vulkan/vulkan_internal.h"

#include <stdlib.h>
#include <string.h>

uint64_t vk_switch(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

/* Is `name` in the list ATSINFER_VK_DISABLE? */
bool vk_disabled(const char *name) {
    const char *list = getenv("ATSINFER_VK_DISABLE");
    size_t n = strlen(name);
    while (list && *list) {
        size_t item = strcspn(list, ",");
        if (item == n && strncmp(list, name, n) == 0) return true;
        list += item + (list[item] == ',');
    }
    return false;
}

const char *vk_gpu_kind_name(enum vk_gpu_kind kind) {
    static const char *const names[] = {"discrete GPU", "integrated GPU", "virtual GPU",
                                        "software device", "other device"};
    return names[kind];
}

static enum vk_gpu_kind kind_of(VkPhysicalDeviceType type) {
    switch (type) {
    case VK_PHYSICAL_DEVICE_TYPE_DISCRETE_GPU:
        return GPU_DISCRETE;
    case VK_PHYSICAL_DEVICE_TYPE_INTEGRATED_GPU:
        return GPU_INTEGRATED;
    case VK_PHYSICAL_DEVICE_TYPE_VIRTUAL_GPU:
        return GPU_VIRTUAL;
    case VK_PHYSICAL_DEVICE_TYPE_CPU:
        return GPU_SOFTWARE;
    default:
        return GPU_OTHER;
    }
}

/* ---- what it can ---- */

struct extensions {
    VkExtensionProperties *items;
    uint32_t n;
};

static struct extensions extensions_read(const struct vk_instance *i, VkPhysicalDevice gpu) {
    struct extensions e = {0};
    if (i->EnumerateDeviceExtensionProperties(gpu, NULL, &e.n, NULL) < 0) e.n = 0;
    e.items = xcalloc(max_size(e.n, 1), sizeof *e.items);
    if (e.n && i->EnumerateDeviceExtensionProperties(gpu, NULL, &e.n, e.items) < 0) e.n = 0;
    return e;
}

static bool has_extension(const struct extensions *e, const char *name) {
    for (uint32_t i = 0; i < e->n; i++)
        if (strcmp(e->items[i].extensionName, name) == 0) return true;
    return false;
}

static void read_features(const struct vk_instance *i, const struct extensions *e,
                          struct vk_gpu *g) {
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR};
    bool has_dot = has_extension(e, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
    VkPhysicalDeviceVulkan12Features v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .pNext = has_dot ? &dot : NULL};
    VkPhysicalDeviceVulkan11Features v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES, .pNext = &v12};
    VkPhysicalDeviceFeatures2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_FEATURES_2,
                                     .pNext = &v11};
    i->GetPhysicalDeviceFeatures2(g->handle, &all);
    g->address = v12.bufferDeviceAddress && !vk_disabled("address");
    g->two_rows = all.features.shaderInt64 && !vk_disabled("two-rows");
    g->fp16 = v12.shaderFloat16 && !vk_disabled("fp16");
    g->idot = has_dot && dot.shaderIntegerDotProduct && !vk_disabled("idot");
    /* a queue of copies cannot reset its queries by itself */
    g->copy_stamps = v12.hostQueryReset;
    if (!v12.timelineSemaphore) g->lacks = "it has no timeline semaphores";
    if (!v11.storageBuffer16BitAccess) g->lacks = "its shaders have no 16-bit storage";
}

static void read_properties(const struct vk_instance *i, const struct extensions *e,
                            struct vk_gpu *g) {
    bool has_dot = has_extension(e, VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME);
    bool has_import = has_extension(e, VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME);
    VkPhysicalDeviceShaderIntegerDotProductPropertiesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_PROPERTIES_KHR};
    VkPhysicalDeviceExternalMemoryHostPropertiesEXT host = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_EXTERNAL_MEMORY_HOST_PROPERTIES_EXT};
    VkPhysicalDeviceVulkan11Properties v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_PROPERTIES};
    void **end = &v11.pNext;
    if (has_dot) *end = &dot, end = &dot.pNext;
    if (has_import) *end = &host;
    VkPhysicalDeviceProperties2 all = {.sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_PROPERTIES_2,
                                       .pNext = &v11};
    i->GetPhysicalDeviceProperties2(g->handle, &all);
    g->properties = all.properties;
    g->kind = vk_disabled("vram") ? GPU_INTEGRATED : kind_of(all.properties.deviceType);
    g->idot_fast = dot.integerDotProduct4x8BitPackedSignedAccelerated;
    g->import = has_import && !vk_disabled("import");
    g->import_align = max_i64((int64_t)host.minImportedHostPointerAlignment, 1);
    g->subgroup = v11.subgroupSize;
    g->shuffles = (v11.subgroupSupportedOperations & VK_SUBGROUP_FEATURE_SHUFFLE_BIT) &&
                  (v11.subgroupSupportedStages & VK_SHADER_STAGE_COMPUTE_BIT);
    g->max_allocation = v11.maxMemoryAllocationSize;
    g->max_range = all.properties.limits.maxStorageBufferRange;
    uint64_t range = vk_switch("ATSINFER_VK_MAX_RANGE");
    if (range && range < g->max_range) g->max_range = range;
    uint64_t part = vk_switch("ATSINFER_VK_MAX_PART");
    g->max_part = part && part < g->max_allocation ? part : g->max_allocation;
    if (all.properties.apiVersion < VK_API_VERSION_1_2) g->lacks = "its driver is older than 1.2";
}

/* Budgets are the driver's word, clamped to what there is: some report more than the heap. What
 * this process has taken is part of them. */
static uint64_t heap_budget(const struct vk_gpu *g,
                            const VkPhysicalDeviceMemoryBudgetPropertiesEXT *budget, uint32_t h) {
    uint64_t size = g->memory.memoryHeaps[h].size;
    return budget->heapBudget[h] < size ? budget->heapBudget[h] : size;
}

static void read_memory(const struct vk_instance *i, const struct extensions *e, struct vk_gpu *g) {
    g->budget = has_extension(e, VK_EXT_MEMORY_BUDGET_EXTENSION_NAME) && !vk_disabled("budget");
    g->host_vram = !vk_disabled("hostvram");
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 all = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2,
        .pNext = g->budget ? &budget : NULL};
    i->GetPhysicalDeviceMemoryProperties2(g->handle, &all);
    g->memory = all.memoryProperties;
    for (uint32_t h = 0; h < g->memory.memoryHeapCount; h++) {
        uint64_t size = g->memory.memoryHeaps[h].size, left = size / 5 * 4;
        if (!(g->memory.memoryHeaps[h].flags & VK_MEMORY_HEAP_DEVICE_LOCAL_BIT)) continue;
        if (size <= g->heap_bytes) continue; /* the largest counts */
        if (g->budget) {
            uint64_t most = heap_budget(g, &budget, h);
            g->used_bytes = budget.heapUsage[h];
            left = most > g->used_bytes ? most - g->used_bytes : 0;
        }
        g->heap = h;
        g->heap_bytes = size;
        g->free_bytes = left;
    }
}

/* Can its clock be read together with the host's? */
static bool has_calibration(const struct vk_instance *i, const struct extensions *e,
                            VkPhysicalDevice gpu) {
    PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT read =
        (PFN_vkGetPhysicalDeviceCalibrateableTimeDomainsEXT)i->loader.GetInstanceProcAddr(
            i->handle, "vkGetPhysicalDeviceCalibrateableTimeDomainsEXT");
    VkTimeDomainEXT domains[8];
    uint32_t n = COUNT_OF(domains);
    bool device = false, host = false;
    if (!read || !has_extension(e, VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME)) return false;
    if (read(gpu, &n, domains) < 0) return false;
    for (uint32_t d = 0; d < n; d++) {
        device |= domains[d] == VK_TIME_DOMAIN_DEVICE_EXT;
        host |= domains[d] == VK_TIME_DOMAIN_CLOCK_MONOTONIC_EXT;
    }
    return device && host;
}

/* A device without memory of its own shares the host's. */
void vk_gpu_memory(const struct vk_gpu *gpu, struct backend_memory *out) {
    *out =
        (struct backend_memory){.total_bytes = (int64_t)gpu->heap_bytes,
                                .free_bytes = (int64_t)gpu->free_bytes,
                                .measured = gpu->budget,
                                .host = gpu->kind == GPU_INTEGRATED || gpu->kind == GPU_SOFTWARE};
}

void vk_gpu_memory_now(const struct vk_instance *i, const struct vk_gpu *g,
                       struct backend_memory *out) {
    VkPhysicalDeviceMemoryBudgetPropertiesEXT budget = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_BUDGET_PROPERTIES_EXT};
    VkPhysicalDeviceMemoryProperties2 all = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_MEMORY_PROPERTIES_2, .pNext = &budget};
    uint64_t told_kib = vk_switch("ATSINFER_VK_FREE_KIB");
    vk_gpu_memory(g, out);
    if (told_kib) {
        out->free_bytes = (int64_t)(told_kib << 10);
        out->measured = true;
        out->host = false;
    } else if (g->budget && !out->host) { /* of the host's, leaving it would free nothing */
        i->GetPhysicalDeviceMemoryProperties2(g->handle, &all);
        uint64_t most = heap_budget(g, &budget, g->heap);
        out->free_bytes = most > g->used_bytes ? (int64_t)(most - g->used_bytes) : 0;
    }
}

/* How well a family serves copies beside the compute queue; 0: not at all. Engines that do nothing
 * else leave compute alone. */
static int copy_rank(const VkQueueFamilyProperties *f, bool own) {
    const VkQueueFlags beside = VK_QUEUE_SPARSE_BINDING_BIT | VK_QUEUE_PROTECTED_BIT;
    if (own) return f->queueCount > 1;
    if ((f->queueFlags & ~beside) == VK_QUEUE_TRANSFER_BIT) return 3;
    return f->queueFlags & VK_QUEUE_COMPUTE_BIT ? 2 : 0;
}

/* The queue of copies: one of its own, or the compute queue in both roles. */
static void choose_copy_queue(const VkQueueFamilyProperties *families, uint32_t n,
                              struct vk_gpu *g) {
    int best = 0;
    g->copy_family = g->family;
    g->copy_index = 0;
    if (vk_disabled("xfer")) return;
    for (uint32_t f = 0; f < n; f++) {
        int rank = copy_rank(&families[f], f == g->family);
        if (rank <= best) continue;
        best = rank;
        g->copy_family = f;
        g->copy_index = f == g->family;
    }
}

static void read_queues(const struct vk_instance *i, struct vk_gpu *g) {
    uint32_t n = 0;
    i->GetPhysicalDeviceQueueFamilyProperties(g->handle, &n, NULL);
    VkQueueFamilyProperties *families = xcalloc(max_size(n, 1), sizeof *families);
    i->GetPhysicalDeviceQueueFamilyProperties(g->handle, &n, families);
    uint32_t best = UINT32_MAX;
    for (uint32_t f = 0; f < n; f++) {
        VkQueueFlags flags = families[f].queueFlags;
        if (!(flags & VK_QUEUE_COMPUTE_BIT)) continue;
        /* a family without graphics does not share its queue with the desktop */
        bool better = best == UINT32_MAX || ((families[best].queueFlags & VK_QUEUE_GRAPHICS_BIT) &&
                                             !(flags & VK_QUEUE_GRAPHICS_BIT));
        if (better) best = f;
    }
    if (best != UINT32_MAX) g->timestamp_bits = families[best].timestampValidBits;
    if (vk_disabled("timestamps")) g->timestamp_bits = 0;
    g->family = best;
    choose_copy_queue(families, n, g);
    uint32_t copy_bits = best == UINT32_MAX ? 0 : families[g->copy_family].timestampValidBits;
    g->copy_stamps &= copy_bits && g->timestamp_bits;
    if (g->copy_stamps && copy_bits < g->timestamp_bits) g->timestamp_bits = copy_bits;
    free(families);
    if (best == UINT32_MAX) g->lacks = "it has no compute queue";
}

static void gpu_read(const struct vk_instance *i, VkPhysicalDevice handle, struct vk_gpu *g) {
    *g = (struct vk_gpu){.handle = handle};
    struct extensions e = extensions_read(i, handle);
    read_properties(i, &e, g);
    if (!g->lacks) read_features(i, &e, g);
    read_memory(i, &e, g);
    read_queues(i, g);
    g->calibrated = has_calibration(i, &e, handle) && !vk_disabled("calibration");
    free(e.items);
    g->usable = !g->lacks;
}

int vk_gpus_read(const struct vk_instance *i, struct vk_gpu out[VK_MAX_GPUS]) {
    VkPhysicalDevice handles[VK_MAX_GPUS];
    uint32_t n = VK_MAX_GPUS;
    if (i->EnumeratePhysicalDevices(i->handle, &n, handles) < 0) return 0;
    for (uint32_t g = 0; g < n; g++)
        gpu_read(i, handles[g], &out[g]);
    return (int)n;
}
