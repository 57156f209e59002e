/* Shaders, compiled at build time to SPIR-V, become pipelines when a segment needs them. */
#include "backend/vulkan/vulkan_internal.h"

#include <stdlib.h>
#include <string.h>

/* Numbers that shaders/types.glsl repeats. */
_Static_assert(DTYPE_F32 == 0 && DTYPE_F16 == 1 && DTYPE_BF16 == 2 && DTYPE_Q8_0 == 3 &&
                   DTYPE_Q4_0 == 4 && DTYPE_Q4_1 == 5 && DTYPE_Q5_0 == 6 && DTYPE_Q5_1 == 7,
               "types.glsl");
_Static_assert(DTYPE_Q2_K == 8 && DTYPE_Q3_K == 9 && DTYPE_Q4_K == 10 && DTYPE_Q5_K == 11 &&
                   DTYPE_Q6_K == 12 && DTYPE_IQ4_NL == 13 && DTYPE_IQ4_XS == 14 &&
                   DTYPE_MXFP4 == 15,
               "types.glsl");
_Static_assert(ACT_SILU == 0 && ACT_GELU == 1 && ACT_CLAMPED == 2 && ACT_SIGMOID == 3 &&
                   ACT_COUNT == 4,
               "types.glsl");
_Static_assert(GATING_SOFTMAX == 0 && GATING_SOFTMAX_CHOSEN == 1 && GATING_SIGMOID == 2,
               "types.glsl");
_Static_assert(KV_F32 == 0 && KV_F16 == 1 && KV_Q8_0 == 2, "types.glsl");

static const uint32_t embed_words[] =
#include "embed.inc"
    ;
static const uint32_t embed_raw_words[] =
#include "embed_raw.inc"
    ;
static const uint32_t norm_words[] =
#include "norm.inc"
    ;
static const uint32_t norm_sum_words[] =
#include "norm_sum.inc"
    ;
static const uint32_t product_words[] =
#include "product.inc"
    ;
static const uint32_t product_experts_words[] =
#include "product_experts.inc"
    ;
static const uint32_t product_pair_words[] =
#include "product_pair.inc"
    ;
static const uint32_t product_q8_words[] =
#include "product_q8.inc"
    ;
static const uint32_t product_q8_experts_words[] =
#include "product_q8_experts.inc"
    ;
static const uint32_t product_q8_pair_words[] =
#include "product_q8_pair.inc"
    ;
static const uint32_t product_q8_idot_words[] =
#include "product_q8_idot.inc"
    ;
static const uint32_t product_q8_idot_experts_words[] =
#include "product_q8_idot_experts.inc"
    ;
static const uint32_t product_q8_idot_pair_words[] =
#include "product_q8_idot_pair.inc"
    ;
static const uint32_t product_q8_two_rows_words[] =
#include "product_q8_two_rows.inc"
    ;
static const uint32_t product_q8_four_rows_words[] =
#include "product_q8_four_rows.inc"
    ;
static const uint32_t product_q8_two_rows_experts_words[] =
#include "product_q8_two_rows_experts.inc"
    ;
static const uint32_t product_q8_two_rows_pair_words[] =
#include "product_q8_two_rows_pair.inc"
    ;
static const uint32_t product_q8_four_rows_experts_words[] =
#include "product_q8_four_rows_experts.inc"
    ;
static const uint32_t product_q8_four_rows_pair_words[] =
#include "product_q8_four_rows_pair.inc"
    ;
static const uint32_t product_raw_words[] =
#include "product_raw.inc"
    ;
static const uint32_t product_raw_pair_words[] =
#include "product_raw_pair.inc"
    ;
static const uint32_t product_raw_experts_words[] =
#include "product_raw_experts.inc"
    ;
static const uint32_t product_raw_tile_words[] =
#include "product_raw_tile.inc"
    ;
static const uint32_t product_raw_tile_experts_words[] =
#include "product_raw_tile_experts.inc"
    ;
static const uint32_t product_tile_words[] =
#include "product_tile.inc"
    ;
static const uint32_t product_tile_experts_words[] =
#include "product_tile_experts.inc"
    ;
static const uint32_t product_tile_idot_words[] =
#include "product_tile_idot.inc"
    ;
static const uint32_t product_tile_idot_experts_words[] =
#include "product_tile_idot_experts.inc"
    ;
static const uint32_t quantise_words[] =
#include "quantise.inc"
    ;
static const uint32_t rope_words[] =
#include "rope.inc"
    ;
static const uint32_t route_words[] =
#include "route.inc"
    ;
static const uint32_t kv_store_words[] =
#include "kv_store.inc"
    ;
static const uint32_t kv_store_address_words[] =
#include "kv_store_address.inc"
    ;
static const uint32_t attention_words[] =
#include "attention.inc"
    ;
static const uint32_t attention_address_words[] =
#include "attention_address.inc"
    ;
static const uint32_t attention_merge_words[] =
#include "attention_merge.inc"
    ;
static const uint32_t experts_scale_words[] =
#include "experts_scale.inc"
    ;
static const uint32_t experts_sort_words[] =
#include "experts_sort.inc"
    ;
static const uint32_t experts_sum_words[] =
#include "experts_sum.inc"
    ;
static const uint32_t gated_words[] =
#include "gated.inc"
    ;
static const uint32_t add_words[] =
#include "add.inc"
    ;
static const uint32_t copy_words[] =
#include "copy.inc"
    ;
static const uint32_t conv_words[] =
#include "conv.inc"
    ;
static const uint32_t conv_address_words[] =
#include "conv_address.inc"
    ;
static const uint32_t delta_words[] =
#include "delta.inc"
    ;
static const uint32_t delta_address_words[] =
#include "delta_address.inc"
    ;

static const struct {
    const char *name;
    const uint32_t *words;
    size_t bytes;
} shaders[SHADER_COUNT] = {
#define SHADER_ENTRY(upper, lower) {#lower, lower##_words, sizeof lower##_words},
    VK_SHADER_MAP(SHADER_ENTRY)
#undef SHADER_ENTRY
};

static ats_status layout_open(struct vulkan *v, uint32_t n_bindings, struct vk_layout *out) {
    VkDescriptorSetLayoutBinding bindings[VK_MAX_BINDINGS];
    for (uint32_t i = 0; i < n_bindings; i++)
        bindings[i] =
            (VkDescriptorSetLayoutBinding){.binding = i,
                                           .descriptorType = VK_DESCRIPTOR_TYPE_STORAGE_BUFFER,
                                           .descriptorCount = 1,
                                           .stageFlags = VK_SHADER_STAGE_COMPUTE_BIT};
    VkDescriptorSetLayoutCreateInfo set = {.sType =
                                               VK_STRUCTURE_TYPE_DESCRIPTOR_SET_LAYOUT_CREATE_INFO,
                                           .bindingCount = n_bindings,
                                           .pBindings = bindings};
    out->n_bindings = n_bindings;
    VK_TRY("a descriptor layout", v->f.CreateDescriptorSetLayout(v->device, &set, NULL, &out->set));
    VkPushConstantRange push = {VK_SHADER_STAGE_COMPUTE_BIT, 0, VK_MAX_PUSH * sizeof(int32_t)};
    VkPipelineLayoutCreateInfo layout = {.sType = VK_STRUCTURE_TYPE_PIPELINE_LAYOUT_CREATE_INFO,
                                         .setLayoutCount = 1,
                                         .pSetLayouts = &out->set,
                                         .pushConstantRangeCount = 1,
                                         .pPushConstantRanges = &push};
    VK_TRY("a pipeline layout",
           v->f.CreatePipelineLayout(v->device, &layout, NULL, &out->pipeline));
    return ATS_OK;
}

static void layout_close(struct vulkan *v, struct vk_layout *l) {
    if (l->pipeline) v->f.DestroyPipelineLayout(v->device, l->pipeline, NULL);
    if (l->set) v->f.DestroyDescriptorSetLayout(v->device, l->set, NULL);
}

bool vk_has_wide_layout(const struct vulkan *v) {
    const VkPhysicalDeviceLimits *l = &v->gpu.properties.limits;
    return l->maxPerStageDescriptorStorageBuffers >= VK_MAX_BINDINGS &&
           l->maxDescriptorSetStorageBuffers >= VK_MAX_BINDINGS;
}

ats_status vk_pipelines_open(struct vulkan *v) {
    TRY(layout_open(v, VK_BINDINGS, &v->layout));
    if (vk_has_wide_layout(v)) TRY(layout_open(v, VK_MAX_BINDINGS, &v->wide_layout));
    vk_cache_open(v);
    return ATS_OK;
}

const struct vk_layout *vk_layout_of(const struct vulkan *v, enum vk_shader shader) {
    bool wide =
        shader == SHADER_DELTA || shader == SHADER_DELTA_ADDRESS || shader == SHADER_NORM_SUM;
    return wide ? &v->wide_layout : &v->layout;
}

uint64_t vk_shaders_hash(uint64_t (*hash)(uint64_t, const void *, size_t)) {
    uint64_t all = 0xcbf29ce484222325ULL;
    for (int i = 0; i < SHADER_COUNT; i++)
        all = hash(all, shaders[i].words, shaders[i].bytes);
    return all;
}

void vk_pipelines_close(struct vulkan *v) {
    vk_cache_close(v);
    for (size_t i = 0; i < v->n_pipelines; i++)
        v->f.DestroyPipeline(v->device, v->pipelines[i].handle, NULL);
    free(v->pipelines);
    for (int i = 0; i < SHADER_COUNT; i++)
        if (v->modules[i]) v->f.DestroyShaderModule(v->device, v->modules[i], NULL);
    layout_close(v, &v->layout);
    layout_close(v, &v->wide_layout);
}

static ats_status module_get(struct vulkan *v, enum vk_shader shader, VkShaderModule *out) {
    if (!v->modules[shader]) {
        VkShaderModuleCreateInfo info = {.sType = VK_STRUCTURE_TYPE_SHADER_MODULE_CREATE_INFO,
                                         .codeSize = shaders[shader].bytes,
                                         .pCode = shaders[shader].words};
        VK_TRY(shaders[shader].name,
               v->f.CreateShaderModule(v->device, &info, NULL, &v->modules[shader]));
    }
    *out = v->modules[shader];
    return ATS_OK;
}

ats_status vk_pipeline_get(struct vulkan *v, enum vk_shader shader,
                           const int32_t constants[VK_MAX_CONSTANTS], VkPipeline *out) {
    struct vk_pipeline p = {.shader = shader};
    memcpy(p.constants, constants, sizeof p.constants);
    for (size_t i = 0; i < v->n_pipelines; i++) {
        const struct vk_pipeline *have = &v->pipelines[i];
        if (have->shader != shader || memcmp(have->constants, constants, sizeof p.constants) != 0)
            continue;
        *out = have->handle;
        return ATS_OK;
    }
    VkSpecializationMapEntry entries[VK_MAX_CONSTANTS];
    for (uint32_t i = 0; i < VK_MAX_CONSTANTS; i++)
        entries[i] = (VkSpecializationMapEntry){i, i * (uint32_t)sizeof(int32_t), sizeof(int32_t)};
    VkSpecializationInfo special = {VK_MAX_CONSTANTS, entries, sizeof p.constants, p.constants};
    VkShaderModule module = VK_NULL_HANDLE;
    TRY(module_get(v, shader, &module));
    VkComputePipelineCreateInfo info = {
        .sType = VK_STRUCTURE_TYPE_COMPUTE_PIPELINE_CREATE_INFO,
        .stage = {.sType = VK_STRUCTURE_TYPE_PIPELINE_SHADER_STAGE_CREATE_INFO,
                  .stage = VK_SHADER_STAGE_COMPUTE_BIT,
                  .module = module,
                  .pName = "main",
                  .pSpecializationInfo = &special},
        .layout = vk_layout_of(v, shader)->pipeline};
    VK_TRY(shaders[shader].name,
           v->f.CreateComputePipelines(v->device, v->cache, 1, &info, NULL, &p.handle));
    GROW(v->pipelines, v->n_pipelines, v->cap_pipelines, 1);
    v->pipelines[v->n_pipelines++] = p;
    *out = p.handle;
    return ATS_OK;
}
