/*
 * Compiled pipelines in the user's cache directory, so that a second start does not compile again.
 * One file for each device, driver and build of the shaders: a header of ours, then the driver's
 * data. A file that is not exactly what was written is ignored; so is one that cannot be written.
 */
#include "backend/vulkan/vulkan_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "base/file.h"
#include "base/log.h"

#define MAX_BYTES ((size_t)256 << 20)

struct cache_header {
    char magic[8];
    uint32_t vendor, device, driver, version;
    uint8_t uuid[VK_UUID_SIZE]; /* of the driver's pipelines */
    uint64_t shaders;           /* hash of all modules */
    uint64_t data_bytes, data_hash;
    uint64_t verdict; /* of vk_self_test */
};

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *data, size_t n) {
    const uint8_t *bytes = data;
    for (size_t i = 0; i < n; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3ULL;
    return hash;
}

static struct cache_header header_of(const struct vulkan *v, const void *data, size_t n) {
    const VkPhysicalDeviceProperties *p = &v->gpu.properties;
    struct cache_header h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, "atsvkpc1", sizeof h.magic);
    h.vendor = p->vendorID;
    h.device = p->deviceID;
    h.driver = p->driverVersion;
    h.version = p->apiVersion;
    memcpy(h.uuid, p->pipelineCacheUUID, sizeof h.uuid);
    h.shaders = vk_shaders_hash(hash_bytes);
    h.data_bytes = n;
    h.data_hash = hash_bytes(0xcbf29ce484222325ULL, data, n);
    return h;
}

/* The file of this device; NULL: there is no place for one. Owned. */
static char *cache_path(const struct vulkan *v) {
    char *dir;
    if (v->trial || vk_switch("ATSINFER_VK_NO_CACHE") || vk_disabled("cache")) return NULL;
    if (dir_path(DIR_CACHE, true, &dir) != ATS_OK) {
        error_clear();
        return NULL;
    }
    size_t n = strlen(dir) + 64;
    char *path = xmalloc(n);
    const VkPhysicalDeviceProperties *p = &v->gpu.properties;
    int end = snprintf(path, n, "%s/vulkan-%04x-%04x-", dir, p->vendorID, p->deviceID);
    for (int i = 0; i < 8; i++)
        end += snprintf(path + end, n - (size_t)end, "%02x", p->pipelineCacheUUID[i]);
    snprintf(path + end, n - (size_t)end, ".bin");
    free(dir);
    return path;
}

/* What stands behind the header, if the file is ours and whole; else NULL. */
static const char *check_file(const struct vulkan *v, const char *file, size_t n, size_t *n_data,
                              unsigned *verdict) {
    struct cache_header h, want;
    if (n < sizeof h) return NULL;
    memcpy(&h, file, sizeof h);
    *verdict = (unsigned)h.verdict;
    h.verdict = 0;
    *n_data = n - sizeof h;
    want = header_of(v, file + sizeof h, *n_data);
    return memcmp(&h, &want, sizeof h) == 0 ? file + sizeof h : NULL;
}

static VkResult create(struct vulkan *v, const void *data, size_t n) {
    VkPipelineCacheCreateInfo info = {.sType = VK_STRUCTURE_TYPE_PIPELINE_CACHE_CREATE_INFO,
                                      .initialDataSize = n,
                                      .pInitialData = data};
    return v->f.CreatePipelineCache(v->device, &info, NULL, &v->cache);
}

void vk_cache_open(struct vulkan *v) {
    char *path = cache_path(v), *file = NULL;
    size_t n = 0, n_data = 0;
    if (!path) return;
    if (file_exists(path) && file_read(path, MAX_BYTES, &file, &n) != ATS_OK) error_clear();
    unsigned verdict = 0;
    const char *data = file ? check_file(v, file, n, &n_data, &verdict) : NULL;
    if (data) v->verdict = v->kept_verdict = verdict;
    if (file && !data) log_msg(LOG_INFO, "%s is not of this device and program: ignored", path);
    if (data && create(v, data, n_data) >= 0) v->cached_bytes = n_data;
    if (!v->cache && create(v, NULL, 0) < 0) v->cache = VK_NULL_HANDLE; /* it goes without */
    free(file);
    free(path);
}

static ats_status save(const struct vulkan *v, const char *path, char *file, size_t n) {
    size_t n_data = n;
    VkResult result =
        v->f.GetPipelineCacheData(v->device, v->cache, &n_data, file + sizeof(struct cache_header));
    if (result != VK_SUCCESS) return ATS_OK; /* it grew meanwhile: another time */
    struct cache_header h = header_of(v, file + sizeof h, n_data);
    h.verdict = v->verdict;
    memcpy(file, &h, sizeof h);
    return file_write(path, file, sizeof h + n_data);
}

void vk_cache_close(struct vulkan *v) {
    size_t n = 0;
    if (!v->cache) return;
    char *path = v->verdict ? cache_path(v) : NULL;
    VkResult result = v->f.GetPipelineCacheData(v->device, v->cache, &n, NULL);
    if (path && result >= 0 && n > 0 && n <= MAX_BYTES / 2 &&
        (n != v->cached_bytes || v->verdict != v->kept_verdict)) {
        char *file = xmalloc(sizeof(struct cache_header) + n);
        if (save(v, path, file, n) != ATS_OK) {
            log_msg(LOG_INFO, "pipelines are not kept: %s", error_text());
            error_clear();
        }
        free(file);
    }
    free(path);
    v->f.DestroyPipelineCache(v->device, v->cache, NULL);
    v->cache = VK_NULL_HANDLE;
}
