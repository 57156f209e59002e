/*
 * Shaders of a Vulkan device (pipelines.c), how they are kept from one program to the next
 * (cache.c), and whether the device computes with them what it should (selftest.c).
 */
#pragma once

#include "backend/backend.h"
#include "backend/vulkan/api.h"

struct vulkan;

enum {
    VK_BINDINGS = 6,      /* that most shaders have; */
    VK_MAX_BINDINGS = 10, /* those of a delta rule, and more than a norm with a sum has */
    VK_MAX_PUSH = 24,     /* words of push constants; every device has room for 32 */
    VK_TILE = 8,          /* lines that a product takes together in larger rounds, */
    VK_LARGE_TILE = 32,   /* and in those of more than VK_FEW tokens in class q8, */
    VK_TILE_ROWS = 64,    /* of so many rows: product_tile.comp; */
    VK_RAW_ROWS = 32,     /* or for plain types, of so many: product_raw_tile.comp */
    VK_FEW = 16,
    VK_MAX_HEAD_DIM = 512,
    VK_ATTN_RANGE = 256, /* keys that are one link of the softmax chain */
};

#define VK_SHADER_MAP(X)                                                                           \
    X(EMBED, embed)                                                                                \
    X(EMBED_RAW, embed_raw)                                                                        \
    X(NORM, norm)                                                                                  \
    X(NORM_SUM, norm_sum)                                                                          \
    X(PRODUCT, product)                                                                            \
    X(PRODUCT_Q8, product_q8)                                                                      \
    X(PRODUCT_Q8_IDOT, product_q8_idot)                                                            \
    X(PRODUCT_Q8_TWO_ROWS, product_q8_two_rows)                                                    \
    X(PRODUCT_Q8_FOUR_ROWS, product_q8_four_rows)                                                  \
    X(PRODUCT_RAW, product_raw)                                                                    \
    X(PRODUCT_EXPERTS, product_experts)                                                            \
    X(PRODUCT_PAIR, product_pair)                                                                  \
    X(PRODUCT_Q8_EXPERTS, product_q8_experts)                                                      \
    X(PRODUCT_Q8_PAIR, product_q8_pair)                                                            \
    X(PRODUCT_Q8_IDOT_EXPERTS, product_q8_idot_experts)                                            \
    X(PRODUCT_Q8_IDOT_PAIR, product_q8_idot_pair)                                                  \
    X(PRODUCT_Q8_TWO_ROWS_EXPERTS, product_q8_two_rows_experts)                                    \
    X(PRODUCT_Q8_TWO_ROWS_PAIR, product_q8_two_rows_pair)                                          \
    X(PRODUCT_Q8_FOUR_ROWS_EXPERTS, product_q8_four_rows_experts)                                  \
    X(PRODUCT_Q8_FOUR_ROWS_PAIR, product_q8_four_rows_pair)                                        \
    X(PRODUCT_RAW_EXPERTS, product_raw_experts)                                                    \
    X(PRODUCT_RAW_PAIR, product_raw_pair)                                                          \
    X(ROUTE, route)                                                                                \
    X(EXPERTS_SORT, experts_sort)                                                                  \
    X(EXPERTS_SCALE, experts_scale)                                                                \
    X(EXPERTS_SUM, experts_sum)                                                                    \
    X(PRODUCT_TILE, product_tile)                                                                  \
    X(PRODUCT_TILE_EXPERTS, product_tile_experts)                                                  \
    X(PRODUCT_TILE_IDOT, product_tile_idot)                                                        \
    X(PRODUCT_TILE_IDOT_EXPERTS, product_tile_idot_experts)                                        \
    X(PRODUCT_RAW_TILE, product_raw_tile)                                                          \
    X(PRODUCT_RAW_TILE_EXPERTS, product_raw_tile_experts)                                          \
    X(QUANTISE, quantise)                                                                          \
    X(ROPE, rope)                                                                                  \
    X(KV_STORE, kv_store)                                                                          \
    X(ATTENTION, attention)                                                                        \
    X(KV_STORE_ADDRESS, kv_store_address)                                                          \
    X(ATTENTION_ADDRESS, attention_address)                                                        \
    X(ATTENTION_MERGE, attention_merge)                                                            \
    X(GATED, gated)                                                                                \
    X(ADD, add)                                                                                    \
    X(COPY, copy)                                                                                  \
    X(CONV, conv)                                                                                  \
    X(CONV_ADDRESS, conv_address)                                                                  \
    X(DELTA, delta)                                                                                \
    X(DELTA_ADDRESS, delta_address)
enum vk_shader {
#define SHADER_ENUM(upper, lower) SHADER_##upper,
    VK_SHADER_MAP(SHADER_ENUM) SHADER_COUNT
#undef SHADER_ENUM
};
enum { VK_MAX_CONSTANTS = 8 };
/* A shader with its constants; constants[0] is the size of a work-group. */
struct vk_pipeline {
    enum vk_shader shader;
    int32_t constants[VK_MAX_CONSTANTS];
    VkPipeline handle;
};

/* pipelines.c */
MUST_CHECK ats_status vk_pipelines_open(struct vulkan *v);
void vk_pipelines_close(struct vulkan *v);
/* How a shader gets its bindings. */
const struct vk_layout *vk_layout_of(const struct vulkan *v, enum vk_shader shader);
/* The device has as many bindings as the largest need. */
bool vk_has_wide_layout(const struct vulkan *v);
/* Made once for each set of constants. */
MUST_CHECK ats_status vk_pipeline_get(struct vulkan *v, enum vk_shader shader,
                                      const int32_t constants[VK_MAX_CONSTANTS], VkPipeline *out);

/* All modules through a hash that takes what it has, bytes and their number. */
uint64_t vk_shaders_hash(uint64_t (*hash)(uint64_t, const void *, size_t));

/* selftest.c: what a device is wrong with. UNSUPPORTED: even without all that can be off. */
enum {
    VERDICT_NO_IDOT = 1,
    VERDICT_NO_TILES = 2,
    VERDICT_TESTED = 4,
    VERDICT_NO_ATTENTION = 8, /* or the rotary embedding before it */
    VERDICT_NO_EXPERTS = 16,  /* or the route to them */
    VERDICT_NO_RECURRENT = 32,
    VERDICT_OPS = 56, /* operators that stay on the CPU then */
};
MUST_CHECK ats_status vk_self_test(struct vulkan *v);
/* vulkan.c: an opening for the test, without what `off` names; it keeps nothing. */
MUST_CHECK ats_status vk_open_trial(const char *name, unsigned off, struct backend **out);

/* cache.c: nothing in it fails, at worst pipelines are compiled again. */
void vk_cache_open(struct vulkan *v);
void vk_cache_close(struct vulkan *v);
