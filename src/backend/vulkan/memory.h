/*
 * Memory of a Vulkan device and what lies there for good: blocks and views (memory.c), weights,
 * caches, states (upload.c).
 */
#pragma once

#include "backend/backend.h"
#include "backend/vulkan/api.h"
#include "base/ranges.h"

struct vulkan;

enum {
    VK_BLOCK_BYTES = 64 << 20, /* which small weights share */
    VK_STAGING_BYTES = 16 << 20,
};

enum vk_place { PLACE_DEVICE, PLACE_ADDRESSED, PLACE_HOST }; /* ADDRESSED: in shaders too */
/* One allocation with one buffer over it. */
struct vk_block {
    struct vk_block *next;
    VkBuffer buffer;
    VkDeviceMemory memory;
    size_t bytes;
    struct ranges ranges; /* of weights and homes: what is free */
    uint8_t *mapped;      /* NULL: not reachable by the host */
    bool counted;         /* in vulkan.device_bytes */
    bool pages; /* mapped is of pages_alloc; without a buffer, the device does not reach it */
    uint64_t address;
};
/* Part of a buffer as a shader sees it. */
struct vk_view {
    VkBuffer buffer;
    VkDeviceSize offset, range;
    int32_t word; /* where its first element stands behind offset, in words of 4 bytes */
};

/* Bytes of a weight that lie together. */
struct vk_part {
    const struct vk_block *block;
    size_t offset;
};
struct backend_weight {
    struct weight_source s; /* data is gone */
    const struct vk_block *block;
    size_t offset, bytes;
    /* What is larger than an allocation lies in parts of part_bytes, the first of them at offset:
     * whole experts, or of one matrix whole groups of rows. Streamed weights are whole. */
    size_t part_bytes;
    struct vk_part *rest; /* parts from the second on, owned; NULL: there is one */
    bool packed;
    size_t unit_bytes;               /* a group of 16 rows, or a row */
    size_t matrix_bytes;             /* from expert to expert */
    const struct backend_home *home; /* streamed: borrowed, the block is a slot's. Else NULL */
};
/* Of a streamed weight. */
struct backend_home {
    const struct vk_block *block; /* in host memory */
    size_t offset, bytes;
};
struct backend_kv {
    struct kv_layout layout;
    struct vk_block k, v;
    size_t k_page, v_page; /* bytes */
};
struct backend_state {
    struct state_layout layout;
    struct vk_block block; /* (n_slots, n_floats) */
};

/* memory.c */
MUST_CHECK ats_status vk_block_open(struct vulkan *v, size_t bytes, enum vk_place place,
                                    const char *what, struct vk_block *out);
/* The same over host memory; UNSUPPORTED if the device cannot. */
MUST_CHECK ats_status vk_block_import(struct vulkan *v, void *memory, size_t bytes,
                                      struct vk_block *out);
/* Host memory for streamed weights: pinned, else ordinary memory that the device reaches all the
 * same, else ordinary memory without a buffer, which is said once. */
MUST_CHECK ats_status vk_home_block_open(struct vulkan *v, size_t bytes, const char *what,
                                         struct vk_block *out);
/* Processors read such memory at full speed. */
bool vk_homes_are_cached(const struct vulkan *v);
void vk_block_close(struct vulkan *v, struct vk_block *block); /* accepts a zeroed one */
/* The host reaches the device's own memory: no staging. */
bool vk_maps_own(const struct vulkan *v);
/* Bytes [offset, offset + bytes) as a view; UNSUPPORTED above the device's limit. */
MUST_CHECK ats_status vk_view_open(const struct vulkan *v, const struct vk_block *block,
                                   size_t offset, size_t bytes, const char *what,
                                   struct vk_view *out);

/* upload.c */
/* Where byte `at` of a weight lies; returns how many there are from there on in its part. */
size_t vk_weight_at(const struct backend_weight *w, size_t at, struct vk_part *out);
int64_t vk_weight_bytes(struct backend *b, const struct weight_source *source);
ats_status vk_weight_load(struct backend *b, const struct weight_source *source,
                          struct backend_weight **out);
void vk_weight_free(struct backend *b, struct backend_weight *w);
ats_status vk_home_open(struct backend *b, const struct weight_source *source,
                        struct backend_home **out);
void vk_home_close(struct backend *b, struct backend_home *home);
void vk_home_source(struct backend *b, const struct backend_home *home,
                    struct weight_source *source);
ats_status vk_kv_open(struct backend *b, const struct kv_layout *layout, struct backend_kv **out);
void vk_kv_close(struct backend *b, struct backend_kv *kv);
ats_status vk_state_open(struct backend *b, const struct state_layout *layout,
                         struct backend_state **out);
void vk_state_close(struct backend *b, struct backend_state *s);
ats_status vk_kv_copy(struct vulkan *v, struct backend_kv *kv, int src, int dst);
ats_status vk_kv_read(struct backend *b, struct backend_kv *kv, int page, void *out);
ats_status vk_kv_write(struct backend *b, struct backend_kv *kv, int page, const void *in);
ats_status vk_state_read(struct backend *b, struct backend_state *s, int slot, float *out);
ats_status vk_state_write(struct backend *b, struct backend_state *s, int slot, const float *in);
