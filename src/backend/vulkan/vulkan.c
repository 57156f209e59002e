/* A Vulkan device behind backend.h: opening it, its memory. */
#include "backend/vulkan/vulkan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "backend/packed.h"
#include "backend/vulkan/vulkan_internal.h"
#include "base/clock.h"
#include "base/log.h"

/* Segments are cut so that each piece takes well below the seconds that drivers' watchdogs allow.
 */
#define TIMEOUT_MS 60000

static uint64_t now(struct backend *b) {
    (void)b;
    return clock_ns();
}

/* ---- host memory ---- */

/* Memory that the device and the CPU reach at full speed. */
static ats_status host_alloc(struct backend *b, size_t bytes, void **out) {
    struct vulkan *v = vulkan_of(b);
    *out = NULL;
    struct vk_block *block = xcalloc(1, sizeof *block);
    ats_status status = vk_block_open(v, bytes, PLACE_HOST, "host memory", block);
    if (status != ATS_OK) {
        free(block);
        return status;
    }
    memset(block->mapped, 0, block->bytes);
    block->next = v->hosts;
    v->hosts = block;
    *out = block->mapped;
    return ATS_OK;
}

static void host_free(struct backend *b, void *p, size_t bytes) {
    struct vulkan *v = vulkan_of(b);
    (void)bytes;
    for (struct vk_block **at = &v->hosts; p && *at; at = &(*at)->next) {
        if ((*at)->mapped != p) continue;
        struct vk_block *block = *at;
        *at = block->next;
        vk_block_close(v, block);
        free(block);
        return;
    }
}

/* ---- work memory ---- */

static size_t q8_bytes(const struct backend_limits *l) {
    return vk_rounded_apart(l) + vk_q8_line_words(l->max_cols + 31) * 4;
}

/* See attention_merge.comp. */
static size_t partial_bytes(const struct backend_limits *l) {
    size_t ranges = (size_t)l->n_ctx / VK_ATTN_RANGE + 1;
    return (size_t)l->max_heads * ranges * ((size_t)l->max_head_dim + 2) * 4;
}

/* Small weights share blocks, the last of which is not full. */
static int64_t work_bytes(struct backend *b, const struct backend_limits *l) {
    size_t experts = vk_expert_room(vulkan_of(b), l).bytes;
    return l->local_bytes + (int64_t)(q8_bytes(l) + partial_bytes(l) + experts) + VK_BLOCK_BYTES;
}

static int64_t pinned_bytes(struct backend *b, const struct backend_limits *l) {
    const struct vulkan *v = vulkan_of(b);
    struct vulkan count = {.limits = *l};
    return (int64_t)vk_round_layout(&count, l) + (v->gpu.import ? 0 : l->exchange_bytes) +
           (vk_maps_own(v) ? 0 : VK_STAGING_BYTES) + (l->n_slots ? VK_BLOCK_BYTES : 0);
}

static void memory(struct backend *b, struct backend_memory *out) {
    const struct vulkan *v = vulkan_of(b);
    vk_gpu_memory_now(&v->instance, &v->gpu, out);
}

/* Operators not listed are not there yet: they stay on the CPU. */
static const char *lacks(struct backend *b, const struct graph *g, const struct graph_op *op) {
    (void)g;
    const unsigned wrong = vulkan_of(b)->verdict;
    if ((op->kind == OP_ATTENTION && wrong & VERDICT_NO_ATTENTION) ||
        (op->kind == OP_EXPERTS && wrong & VERDICT_NO_EXPERTS) ||
        ((op->kind == OP_CONV || op->kind == OP_DELTA) && wrong & VERDICT_NO_RECURRENT))
        return "no right results of it with this driver";
    switch (op->kind) {
    case OP_EMBED:
    case OP_MATMUL:
    case OP_ROPE:
    case OP_ADD:
    case OP_ROWS:
    case OP_ROUTE:
    case OP_EXPERTS:
    case OP_NORM:
    case OP_GATED:
    case OP_SLICE:
    case OP_CONV:
        return NULL;
    case OP_ATTENTION:
        return op->p.attention.head_dim <= VK_MAX_HEAD_DIM ? NULL : "no heads of this size";
    case OP_DELTA:
        if (!vk_has_wide_layout(vulkan_of(b))) return "too few buffers for a delta rule";
        return op->p.delta.dim_k <= VK_MAX_HEAD_DIM ? NULL : "no heads of this size";
    default:
        return "no operator of this kind";
    }
}

/* The executor's exchange: our own memory, else its pages as they are, else a copy. */
static ats_status open_exchange(struct vulkan *v, const struct backend_limits *l) {
    for (const struct vk_block *h = v->hosts; h; h = h->next)
        if (h->mapped == l->exchange) {
            v->exchange = *h;
            return ATS_OK;
        }
    if (l->exchange_bytes == 0 ||
        vk_block_import(v, l->exchange, (size_t)l->exchange_bytes, &v->exchange) == ATS_OK) {
        v->owns_exchange = true;
        return ATS_OK;
    }
    log_msg(LOG_INFO, "%s; what it shares with others is copied", error_text());
    error_clear();
    v->owns_exchange = v->mirrored = true;
    return vk_block_open(v, (size_t)l->exchange_bytes, PLACE_HOST, "a copy of the exchange",
                         &v->exchange);
}

/* What segments had to work with; weights, caches and states stay. */
static void release_reserved(struct vulkan *v) {
    struct vk_block *const blocks[] = {&v->local, &v->work, &v->partial, &v->experts,
                                       &v->round_block};
    vk_idle(v);
    for (size_t i = 0; i < COUNT_OF(blocks); i++)
        vk_block_close(v, blocks[i]);
    if (v->owns_exchange) vk_block_close(v, &v->exchange);
    v->exchange = (struct vk_block){0};
    v->owns_exchange = v->mirrored = false;
    vk_slots_close(v);
    free(v->round_words);
    v->round_words = NULL;
    v->n_grids = v->n_grids_written = v->n_ropes = v->n_ropes_written = 0;
    v->used_words = 0;
    uint64_t asked = vk_switch("ATSINFER_VK_FAIL_ALLOCATION");
    if (v->reserved && asked != v->fail_asked) v->fail_allocation = v->fail_asked = asked;
    v->limits = (struct backend_limits){0};
    v->reserved = false;
}

static ats_status reserve(struct backend *b, const struct backend_limits *l) {
    struct vulkan *v = vulkan_of(b);
    release_reserved(v);
    uint32_t most = v->gpu.properties.limits.maxComputeWorkGroupCount[1];
    if ((uint32_t)max_int(l->n_tokens, l->n_rows) > most)
        return fail(ATS_UNSUPPORTED, "%s: a round of more than %u tokens", v->name, most);
    v->limits = *l;
    vk_watch_anew(v);
    size_t round = vk_round_layout(v, l);
    TRY(vk_block_open(v, (size_t)l->local_bytes, PLACE_DEVICE, "work memory", &v->local));
    TRY(vk_block_open(v, q8_bytes(l), PLACE_DEVICE, "work memory", &v->work));
    TRY(vk_block_open(v, partial_bytes(l), PLACE_DEVICE, "work memory", &v->partial));
    v->expert_room = vk_expert_room(v, l);
    if (v->expert_room.bytes)
        TRY(vk_block_open(v, v->expert_room.bytes, PLACE_DEVICE, "work memory", &v->experts));
    TRY(vk_block_open(v, round, PLACE_HOST, "the round's numbers", &v->round_block));
    TRY(open_exchange(v, l));
    TRY(vk_slots_open(v));
    memset(v->round_block.mapped, 0, v->round_block.bytes);
    v->round_words = xcalloc(v->cap_words, sizeof *v->round_words);
    v->reserved = true;
    return ATS_OK;
}

static ats_status weights_ready(struct backend *b) {
    (void)b; /* they are when vk_weight_load returns */
    return ATS_OK;
}

static void kv_copy_page(struct backend *b, struct backend_kv *kv, int src, int dst) {
    struct vulkan *v = vulkan_of(b);
    ats_status status = vk_kv_copy(v, kv, src, dst);
    if (status != ATS_OK) vk_stop(v, status); /* the next wait says so */
}

/* ---- opening ---- */

static void close_blocks(struct vulkan *v, struct vk_block *list) {
    while (list) {
        struct vk_block *next = list->next;
        ranges_close(&list->ranges);
        vk_block_close(v, list);
        free(list);
        list = next;
    }
}

static void close_thread(struct vulkan *v) {
    pthread_mutex_lock(&v->lock);
    v->closing = true;
    pthread_cond_signal(&v->has_job);
    pthread_mutex_unlock(&v->lock);
    if (v->has_thread) thread_join(&v->thread);
}

static void close_device(struct vulkan *v) {
    if (!v->device || !v->f.DeviceWaitIdle || v->hung) return;
    vk_gate_lift(v);
    v->f.DeviceWaitIdle(v->device); /* an error changes nothing here */
    vk_commands_close(v);
    vk_pipelines_close(v);
    if (v->owns_exchange) vk_block_close(v, &v->exchange);
    vk_block_close(v, &v->local);
    vk_block_close(v, &v->work);
    vk_block_close(v, &v->partial);
    vk_block_close(v, &v->experts);
    vk_block_close(v, &v->round_block);
    vk_block_close(v, &v->staging);
    vk_slots_close(v);
    close_blocks(v, v->weights);
    close_blocks(v, v->streamed);
    close_blocks(v, v->hosts);
    v->f.DestroyDevice(v->device, NULL);
}

static void close_backend(struct backend *b) {
    struct vulkan *v = vulkan_of(b);
    close_thread(v);
    close_device(v);
    if (!v->hung) vk_instance_close(&v->instance);
    while (v->spare) {
        struct vk_job *job = v->spare;
        v->spare = job->next;
        free(job);
    }
    vk_watch_forget(v, NULL);
    free(v->round_words);
    pthread_mutex_destroy(&v->queue_lock);
    pthread_mutex_destroy(&v->lock);
    pthread_cond_destroy(&v->changed);
    pthread_cond_destroy(&v->has_job);
    free(v);
}

static const struct backend_vtable vulkan_vtable = {
    .close = close_backend,
    .now = now,
    .host_alloc = host_alloc,
    .host_free = host_free,
    .memory = memory,
    .lacks = lacks,
    .work_bytes = work_bytes,
    .pinned_bytes = pinned_bytes,
    .reserve = reserve,
    .weight_bytes = vk_weight_bytes,
    .home_open = vk_home_open,
    .home_close = vk_home_close,
    .home_source = vk_home_source,
    .weight_load = vk_weight_load,
    .weights_ready = weights_ready,
    .weight_free = vk_weight_free,
    .kv_open = vk_kv_open,
    .kv_close = vk_kv_close,
    .kv_copy_page = kv_copy_page,
    .kv_read = vk_kv_read,
    .kv_write = vk_kv_write,
    .state_open = vk_state_open,
    .state_close = vk_state_close,
    .state_read = vk_state_read,
    .state_write = vk_state_write,
    .segment_build = vk_segment_build,
    .segment_free = vk_segment_free,
    .submit = vk_submit_segment,
    .copy_build = vk_copy_build,
    .copy_free = vk_copy_free,
    .submit_copy = vk_send_copy,
    .probe_copy = vk_probe_copy,
    .reached = vk_reached,
    .wait = vk_wait,
    .set_timed = vk_set_timed,
    .segment_times = vk_segment_times,
    .copy_times = vk_copy_times,
    .counters = vk_counters,
};

/* Only what the shaders use is asked for. */
static ats_status create_device(struct vulkan *v) {
    const float priorities[2] = {1, 1};
    const char *extensions[3];
    uint32_t n_extensions = 0;
    VkPhysicalDeviceShaderIntegerDotProductFeaturesKHR dot = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_SHADER_INTEGER_DOT_PRODUCT_FEATURES_KHR,
        .shaderIntegerDotProduct = VK_TRUE};
    if (v->gpu.idot) extensions[n_extensions++] = VK_KHR_SHADER_INTEGER_DOT_PRODUCT_EXTENSION_NAME;
    if (v->gpu.import) extensions[n_extensions++] = VK_EXT_EXTERNAL_MEMORY_HOST_EXTENSION_NAME;
    if (v->gpu.calibrated) extensions[n_extensions++] = VK_EXT_CALIBRATED_TIMESTAMPS_EXTENSION_NAME;
    VkPhysicalDeviceVulkan12Features v12 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_2_FEATURES,
        .pNext = v->gpu.idot ? &dot : NULL,
        .hostQueryReset = v->gpu.copy_stamps,
        .timelineSemaphore = VK_TRUE,
        .bufferDeviceAddress = v->gpu.address};
    VkPhysicalDeviceVulkan11Features v11 = {
        .sType = VK_STRUCTURE_TYPE_PHYSICAL_DEVICE_VULKAN_1_1_FEATURES,
        .pNext = &v12,
        .storageBuffer16BitAccess = VK_TRUE};
    bool same = v->gpu.copy_family == v->gpu.family;
    VkDeviceQueueCreateInfo queues[2] = {{.sType = VK_STRUCTURE_TYPE_DEVICE_QUEUE_CREATE_INFO,
                                          .queueFamilyIndex = v->gpu.family,
                                          .queueCount = same ? 1 + v->gpu.copy_index : 1,
                                          .pQueuePriorities = priorities}};
    queues[1] = queues[0];
    queues[1].queueFamilyIndex = v->gpu.copy_family;
    VkPhysicalDeviceFeatures features = {.shaderInt64 = v->gpu.two_rows};
    VkDeviceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_DEVICE_CREATE_INFO,
                               .pNext = &v11,
                               .queueCreateInfoCount = same ? 1 : 2,
                               .pQueueCreateInfos = queues,
                               .enabledExtensionCount = n_extensions,
                               .ppEnabledExtensionNames = extensions,
                               .pEnabledFeatures = &features};
    VK_TRY("opening the device", v->instance.CreateDevice(v->gpu.handle, &info, NULL, &v->device));
    return vk_functions_load(&v->instance, v->device, &v->f);
}

/* Discrete before integrated before virtual; software only if there is nothing else. */
static int best_gpu(const struct vk_gpu *gpus, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (gpus[i].usable && (best < 0 || gpus[i].kind < gpus[best].kind)) best = i;
    return best;
}

/* "vulkan" or "vulkanN". ATSINFER_VK_DEVICE: the N of "vulkan", for tests. */
static ats_status choose_gpu(struct vulkan *v, const char *name) {
    struct vk_gpu gpus[VK_MAX_GPUS];
    int n = vk_gpus_read(&v->instance, gpus), index = -1;
    const char *number = name + strlen("vulkan"), *wish = getenv("ATSINFER_VK_DEVICE");
    if (!*number && wish) number = wish;
    if (n == 0) return fail(ATS_UNSUPPORTED, "no Vulkan driver offers a device");
    if (!*number) {
        index = best_gpu(gpus, n);
    } else {
        char *end;
        unsigned long wanted = strtoul(number, &end, 10);
        if (*end || wanted >= (unsigned long)n)
            return fail(ATS_UNSUPPORTED, "there is no device \"vulkan%.40s\"; Vulkan has %d",
                        number, n);
        index = (int)wanted;
    }
    if (index < 0) return fail(ATS_UNSUPPORTED, "no Vulkan device can be used: %s", gpus[0].lacks);
    v->gpu = gpus[index];
    snprintf(v->name, sizeof v->name, "vulkan%d", index);
    if (!v->gpu.usable)
        return fail(ATS_UNSUPPORTED, "%s (%s) cannot be used: %s", v->name,
                    v->gpu.properties.deviceName, v->gpu.lacks);
    if (v->gpu.kind == GPU_SOFTWARE && !v->quiet)
        log_msg(LOG_WARN, "%s is a software device (%s): right, but slow", v->name,
                v->gpu.properties.deviceName);
    return ATS_OK;
}

/* Shared memory and lanes of product_tile.comp, and of product_raw_tile.comp with 16 parts, which
 * has as many lanes and less memory. */
static bool has_large_tiles(const VkPhysicalDeviceLimits *l, int split) {
    uint32_t lanes = VK_TILE_ROWS * (uint32_t)split;
    uint32_t words = (uint32_t)split * (8 * VK_TILE_ROWS + 4 * VK_TILE_ROWS + 10 * VK_LARGE_TILE) +
                     VK_TILE_ROWS * VK_LARGE_TILE;
    return words * 4 <= l->maxComputeSharedMemorySize &&
           lanes <= l->maxComputeWorkGroupInvocations && lanes <= l->maxComputeWorkGroupSize[0];
}

static ats_status open_backend(struct vulkan *v, const char *name) {
    TRY(vk_instance_open(&v->instance));
    TRY(choose_gpu(v, name));
    /* there, lanes are a loop and barriers dear */
    bool software = v->gpu.kind == GPU_SOFTWARE && !vk_switch("ATSINFER_VK_SHAPE");
    v->lanes = software ? 16 : 64;
    v->split = software ? 1 : 4;
    v->two_rows = software && v->gpu.two_rows;
    v->four_rows = v->two_rows && v->gpu.shuffles && v->gpu.subgroup >= PACK_ROWS / 2 &&
                   !vk_disabled("four-rows");
    v->tiles = !software && has_large_tiles(&v->gpu.properties.limits, v->split);
    v->fail_allocation = v->fail_asked = vk_switch("ATSINFER_VK_FAIL_ALLOCATION");
    v->lose_submission = vk_switch("ATSINFER_VK_LOSE_SUBMISSION");
    v->hang_submission = vk_switch("ATSINFER_VK_HANG_SUBMISSION");
    uint64_t timeout_ms =
        vk_switch("ATSINFER_VK_TIMEOUT_MS"); /* a software device takes its time */
    if (!timeout_ms && v->gpu.kind != GPU_SOFTWARE) timeout_ms = TIMEOUT_MS;
    v->timeout_ns = timeout_ms * 1000000;
    v->no_fold |= vk_disabled("fold");
    v->no_barriers = vk_disabled("barriers");
    v->no_first_barriers = vk_disabled("first-barriers");
    v->no_arrivals = vk_disabled("arrivals");
    v->no_releases = vk_disabled("releases");
    v->no_unread = vk_disabled("unread");
    /* the layer (1.3.239) now and then loses a signal of the host, and waits for it for seconds */
    v->no_ahead = vk_disabled("ahead") || v->instance.validates;
    v->base.in_place = v->gpu.kind == GPU_INTEGRATED;
    v->base.streams = !v->base.in_place;
    v->no_pin = vk_disabled("pin");
    v->base.pins = !v->no_pin || v->gpu.import;
    v->base.stages = !v->base.pins;
    v->base.slow_homes = !v->no_pin && !vk_homes_are_cached(v);
    TRY(create_device(v));
    TRY(vk_commands_open(v));
    TRY(vk_pipelines_open(v));
    if (!v->trial && !vk_switch("ATSINFER_VK_NO_CACHE")) TRY(vk_self_test(v));
    v->gpu.idot &= !(v->verdict & VERDICT_NO_IDOT);
    v->tiles &= !(v->verdict & VERDICT_NO_TILES);
    TRY(thread_start(&v->thread, vk_run_queue, v));
    v->has_thread = true;
    return ATS_OK;
}

static ats_status open_as(const char *name, bool trial, bool quiet, unsigned off,
                          struct backend **out) {
    *out = NULL;
    struct vulkan *v = xcalloc(1, sizeof *v);
    v->base = (struct backend){.fn = &vulkan_vtable, .name = v->name, .gpu = true};
    pthread_mutex_init(&v->queue_lock, NULL);
    pthread_mutex_init(&v->lock, NULL);
    pthread_cond_init(&v->changed, NULL);
    pthread_cond_init(&v->has_job, NULL);
    v->trial = trial;
    v->quiet = quiet;
    v->verdict = off;
    ats_status status = open_backend(v, name);
    if (status != ATS_OK) {
        close_backend(&v->base);
        return status;
    }
    *out = &v->base;
    return ATS_OK;
}

ats_status vulkan_backend_open(const char *name, const struct backend_options *options,
                               struct backend **out) {
    TRY(open_as(name, false, options->quiet, 0, out)); /* the others are the CPU's */
    vulkan_of(*out)->no_fold |= options->no_fusion;
    return ATS_OK;
}

ats_status vk_open_trial(const char *name, unsigned off, struct backend **out) {
    return open_as(name, true, true, off, out);
}

int64_t vulkan_backend_cached(struct backend *b) {
    return (int64_t)vulkan_of(b)->cached_bytes;
}

unsigned vulkan_backend_verdict(struct backend *b) {
    return vulkan_of(b)->verdict;
}

int vulkan_backend_windows(struct backend *b) {
    return vulkan_of(b)->n_windows;
}

int vulkan_backend_folds(struct backend *b) {
    return vulkan_of(b)->n_folds;
}

int vulkan_backend_dispatches(struct backend *b) {
    return vulkan_of(b)->n_dispatches;
}

int vulkan_backend_parts(struct backend *b) {
    return vulkan_of(b)->n_parts;
}

/* ---- the list ---- */

static void describe(const struct vk_gpu *g, int index, struct backend_device_info *out) {
    *out = (struct backend_device_info){.usable = g->usable, .software = g->kind == GPU_SOFTWARE};
    vk_gpu_memory(g, &out->memory);
    snprintf(out->name, sizeof out->name, "vulkan%d", index);
    snprintf(out->kind, sizeof out->kind, "%s", vk_gpu_kind_name(g->kind));
    if (!g->usable) {
        snprintf(out->note, sizeof out->note, "%s: %s", g->properties.deviceName, g->lacks);
        return;
    }
    snprintf(out->note, sizeof out->note, "%s; subgroups of %u%s%s%s%s%s", g->properties.deviceName,
             g->subgroup, g->fp16 ? ", 16-bit floats" : "",
             g->idot ? g->idot_fast ? ", fast integer dots" : ", integer dots" : "",
             g->import ? ", host memory in place" : "", vk_has_copy_queue(g) ? ", copy queue" : "",
             g->kind == GPU_SOFTWARE ? ", only when named" : "");
}

int vulkan_backend_list(struct backend_device_info *out, int max) {
    struct vk_instance instance;
    struct vk_gpu gpus[VK_MAX_GPUS];
    if (vk_instance_open(&instance) != ATS_OK) return 0;
    int n = min_int(vk_gpus_read(&instance, gpus), max);
    for (int i = 0; i < n; i++)
        describe(&gpus[i], i, &out[i]);
    vk_instance_close(&instance);
    if (n == 0) {
        ats_status none = fail(ATS_UNSUPPORTED, "no Vulkan driver offers a device");
        (void)none;
    }
    return n;
}
