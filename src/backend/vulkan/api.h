/*
 * Vulkan's functions, found at run time: no link dependency, so that a machine without a driver
 * runs the program on its CPU. Called by the files of this folder.
 */
#pragma once

#define VK_NO_PROTOTYPES
#include "base/error.h"
#include <vulkan/vulkan_core.h>

/* Known before there is an instance. */
#define VK_GLOBAL_MAP(X)                                                                           \
    X(CreateInstance)                                                                              \
    X(EnumerateInstanceVersion)                                                                    \
    X(EnumerateInstanceLayerProperties)
/* Of an instance; the last ones are asked for by the extension only. */
#define VK_INSTANCE_MAP(X)                                                                         \
    X(DestroyInstance)                                                                             \
    X(EnumeratePhysicalDevices)                                                                    \
    X(EnumerateDeviceExtensionProperties)                                                          \
    X(GetPhysicalDeviceProperties2)                                                                \
    X(GetPhysicalDeviceFeatures2)                                                                  \
    X(GetPhysicalDeviceMemoryProperties2)                                                          \
    X(GetPhysicalDeviceQueueFamilyProperties)                                                      \
    X(CreateDevice)                                                                                \
    X(GetDeviceProcAddr)
#define VK_DEVICE_MAP(X)                                                                           \
    X(DestroyDevice)                                                                               \
    X(DeviceWaitIdle)                                                                              \
    X(GetDeviceQueue)                                                                              \
    X(QueueSubmit)                                                                                 \
    X(QueueWaitIdle)                                                                               \
    X(AllocateMemory)                                                                              \
    X(FreeMemory)                                                                                  \
    X(MapMemory)                                                                                   \
    X(CreateBuffer)                                                                                \
    X(DestroyBuffer)                                                                               \
    X(BindBufferMemory)                                                                            \
    X(GetBufferDeviceAddress)                                                                      \
    X(GetBufferMemoryRequirements)                                                                 \
    X(CreateShaderModule)                                                                          \
    X(DestroyShaderModule)                                                                         \
    X(CreateDescriptorSetLayout)                                                                   \
    X(DestroyDescriptorSetLayout)                                                                  \
    X(CreatePipelineLayout)                                                                        \
    X(DestroyPipelineLayout)                                                                       \
    X(CreateComputePipelines)                                                                      \
    X(CreatePipelineCache)                                                                         \
    X(DestroyPipelineCache)                                                                        \
    X(GetPipelineCacheData)                                                                        \
    X(DestroyPipeline)                                                                             \
    X(CreateDescriptorPool)                                                                        \
    X(DestroyDescriptorPool)                                                                       \
    X(AllocateDescriptorSets)                                                                      \
    X(UpdateDescriptorSets)                                                                        \
    X(CreateCommandPool)                                                                           \
    X(DestroyCommandPool)                                                                          \
    X(AllocateCommandBuffers)                                                                      \
    X(FreeCommandBuffers)                                                                          \
    X(BeginCommandBuffer)                                                                          \
    X(EndCommandBuffer)                                                                            \
    X(CmdPipelineBarrier)                                                                          \
    X(CmdBindPipeline)                                                                             \
    X(CmdBindDescriptorSets)                                                                       \
    X(CmdPushConstants)                                                                            \
    X(CmdDispatchIndirect)                                                                         \
    X(CmdCopyBuffer)                                                                               \
    X(CmdResetQueryPool)                                                                           \
    X(ResetQueryPool)                                                                              \
    X(CmdWriteTimestamp)                                                                           \
    X(CreateQueryPool)                                                                             \
    X(DestroyQueryPool)                                                                            \
    X(GetQueryPoolResults)                                                                         \
    X(CreateSemaphore)                                                                             \
    X(DestroySemaphore)                                                                            \
    X(GetSemaphoreCounterValue)                                                                    \
    X(SignalSemaphore)                                                                             \
    X(WaitSemaphores)

#define VK_MEMBER(name) PFN_vk##name name;
struct vk_loader {
    PFN_vkGetInstanceProcAddr GetInstanceProcAddr;
    VK_GLOBAL_MAP(VK_MEMBER)
};
struct vk_instance {
    struct vk_loader loader;
    VkInstance handle;
    VK_INSTANCE_MAP(VK_MEMBER)
    VkDebugUtilsMessengerEXT messenger;
    bool validates; /* the validation layer is on: ATSINFER_VK_VALIDATE */
};
struct vk_functions {
    VK_DEVICE_MAP(VK_MEMBER)
    /* of extensions; NULL where there is none */
    PFN_vkGetMemoryHostPointerPropertiesEXT GetMemoryHostPointerPropertiesEXT;
    PFN_vkGetCalibratedTimestampsEXT GetCalibratedTimestampsEXT;
};
#undef VK_MEMBER

/* Finds the loader and makes an instance of Vulkan 1.2 or newer. UNSUPPORTED: there is none. */
MUST_CHECK ats_status vk_instance_open(struct vk_instance *out);
void vk_instance_close(struct vk_instance *i); /* accepts a zeroed one */
/* Of a device of this instance; false names the function that is missing. */
MUST_CHECK ats_status vk_functions_load(const struct vk_instance *i, VkDevice device,
                                        struct vk_functions *out);

/* The failure of a call as a status: NO_MEMORY, DEVICE. result < 0. */
MUST_CHECK ats_status vk_fail(VkResult result, const char *what);
#define VK_TRY(what, call)                                                                         \
    do {                                                                                           \
        VkResult vk_result_ = (call);                                                              \
        if (UNLIKELY(vk_result_ < 0)) return vk_fail(vk_result_, what);                            \
    } while (0)
