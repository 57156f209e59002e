#include "backend/vulkan/api.h"

#include <stdlib.h>
#include <string.h>
#include "base/library.h"
#include "base/log.h"

static const char *result_name(VkResult r) {
    switch (r) {
#define NAME(name)                                                                                 \
    case VK_##name:                                                                                \
        return #name;
        NAME(ERROR_OUT_OF_HOST_MEMORY)
        NAME(ERROR_OUT_OF_DEVICE_MEMORY)
        NAME(ERROR_INITIALIZATION_FAILED)
        NAME(ERROR_DEVICE_LOST)
        NAME(ERROR_MEMORY_MAP_FAILED)
        NAME(ERROR_LAYER_NOT_PRESENT)
        NAME(ERROR_EXTENSION_NOT_PRESENT)
        NAME(ERROR_FEATURE_NOT_PRESENT)
        NAME(ERROR_INCOMPATIBLE_DRIVER)
        NAME(ERROR_TOO_MANY_OBJECTS)
        NAME(ERROR_OUT_OF_POOL_MEMORY)
        NAME(ERROR_INVALID_EXTERNAL_HANDLE)
#undef NAME
    default:
        return "error";
    }
}

ats_status vk_fail(VkResult result, const char *what) {
    bool memory = result == VK_ERROR_OUT_OF_HOST_MEMORY || result == VK_ERROR_OUT_OF_DEVICE_MEMORY;
    return fail(memory ? ATS_NO_MEMORY : ATS_DEVICE, "vulkan: %s failed: %s (%d)", what,
                result_name(result), (int)result);
}

/* ---- messages of the validation layer ---- */

static VKAPI_ATTR VkBool32 VKAPI_CALL message(VkDebugUtilsMessageSeverityFlagBitsEXT severity,
                                              VkDebugUtilsMessageTypeFlagsEXT types,
                                              const VkDebugUtilsMessengerCallbackDataEXT *data,
                                              void *user) {
    (void)severity, (void)types, (void)user;
    log_msg(LOG_ERROR, "vulkan validation: %s", data->pMessage);
    return VK_FALSE;
}

static const VkDebugUtilsMessengerCreateInfoEXT messenger_info = {
    .sType = VK_STRUCTURE_TYPE_DEBUG_UTILS_MESSENGER_CREATE_INFO_EXT,
    .messageSeverity = VK_DEBUG_UTILS_MESSAGE_SEVERITY_WARNING_BIT_EXT |
                       VK_DEBUG_UTILS_MESSAGE_SEVERITY_ERROR_BIT_EXT,
    .messageType = VK_DEBUG_UTILS_MESSAGE_TYPE_VALIDATION_BIT_EXT,
    .pfnUserCallback = message,
};

static library_fn *instance_function(const struct vk_instance *i, const char *name) {
    return (library_fn *)i->loader.GetInstanceProcAddr(i->handle, name);
}

static void open_messenger(struct vk_instance *i) {
    PFN_vkCreateDebugUtilsMessengerEXT create =
        (PFN_vkCreateDebugUtilsMessengerEXT)instance_function(i, "vkCreateDebugUtilsMessengerEXT");
    if (create && create(i->handle, &messenger_info, NULL, &i->messenger) < 0) i->messenger = NULL;
}

static void close_messenger(struct vk_instance *i) {
    PFN_vkDestroyDebugUtilsMessengerEXT destroy =
        (PFN_vkDestroyDebugUtilsMessengerEXT)instance_function(i,
                                                               "vkDestroyDebugUtilsMessengerEXT");
    if (destroy && i->messenger) destroy(i->handle, i->messenger, NULL);
}

/* ---- opening ---- */

#define VALIDATION_LAYER "VK_LAYER_KHRONOS_validation"

static bool has_layer(const struct vk_loader *l, const char *name) {
    uint32_t n = 0;
    bool found = false;
    if (l->EnumerateInstanceLayerProperties(&n, NULL) < 0 || n == 0) return false;
    VkLayerProperties *layers = calloc(n, sizeof *layers);
    if (layers && l->EnumerateInstanceLayerProperties(&n, layers) >= 0)
        for (uint32_t i = 0; i < n && !found; i++)
            found = strcmp(layers[i].layerName, name) == 0;
    free(layers);
    return found;
}

static ats_status create_instance(struct vk_instance *i) {
    static const char *const layers[] = {VALIDATION_LAYER};
    static const char *const extensions[] = {VK_EXT_DEBUG_UTILS_EXTENSION_NAME};
    VkApplicationInfo app = {.sType = VK_STRUCTURE_TYPE_APPLICATION_INFO,
                             .pApplicationName = "atsinfer",
                             .pEngineName = "atsinfer",
                             .apiVersion = VK_API_VERSION_1_2};
    VkInstanceCreateInfo info = {.sType = VK_STRUCTURE_TYPE_INSTANCE_CREATE_INFO,
                                 .pNext = i->validates ? &messenger_info : NULL,
                                 .pApplicationInfo = &app,
                                 .enabledLayerCount = i->validates,
                                 .ppEnabledLayerNames = layers,
                                 .enabledExtensionCount = i->validates,
                                 .ppEnabledExtensionNames = extensions};
    VkResult result = i->loader.CreateInstance(&info, NULL, &i->handle);
    if (result == VK_ERROR_INCOMPATIBLE_DRIVER)
        return fail(ATS_UNSUPPORTED, "no Vulkan driver is installed");
    if (result < 0) return fail(ATS_UNSUPPORTED, "Vulkan does not start: %s", result_name(result));
    return ATS_OK;
}

static ats_status load_loader(struct vk_loader *l) {
    struct library *library;
    if (library_open("libvulkan.so.1", &library) != ATS_OK)
        return fail(ATS_UNSUPPORTED, "there is no Vulkan loader (libvulkan.so.1)");
    l->GetInstanceProcAddr =
        (PFN_vkGetInstanceProcAddr)library_function(library, "vkGetInstanceProcAddr");
    if (!l->GetInstanceProcAddr)
        return fail(ATS_UNSUPPORTED, "the Vulkan loader has no vkGetInstanceProcAddr");
#define LOAD(name)                                                                                 \
    l->name = (PFN_vk##name)l->GetInstanceProcAddr(NULL, "vk" #name);                              \
    if (!l->name) return fail(ATS_UNSUPPORTED, "the Vulkan loader has no vk" #name);
    VK_GLOBAL_MAP(LOAD)
#undef LOAD
    uint32_t version = 0;
    if (l->EnumerateInstanceVersion(&version) < 0 || version < VK_API_VERSION_1_2)
        return fail(ATS_UNSUPPORTED, "the Vulkan loader is older than 1.2");
    return ATS_OK;
}

static ats_status open_instance(struct vk_instance *i) {
    TRY(load_loader(&i->loader));
    const char *wish = getenv("ATSINFER_VK_VALIDATE");
    bool wanted = wish && strcmp(wish, "0") != 0;
    i->validates = wanted && has_layer(&i->loader, VALIDATION_LAYER);
    if (wanted && !i->validates)
        log_msg(LOG_WARN, "vulkan: no validation layer is installed (" VALIDATION_LAYER ")");
    TRY(create_instance(i));
#define LOAD(name)                                                                                 \
    i->name = (PFN_vk##name)instance_function(i, "vk" #name);                                      \
    if (!i->name) return fail(ATS_UNSUPPORTED, "the Vulkan loader has no vk" #name);
    VK_INSTANCE_MAP(LOAD)
#undef LOAD
    if (i->validates) open_messenger(i);
    return ATS_OK;
}

ats_status vk_instance_open(struct vk_instance *out) {
    memset(out, 0, sizeof *out);
    ats_status status = open_instance(out);
    if (status != ATS_OK) vk_instance_close(out);
    return status;
}

void vk_instance_close(struct vk_instance *i) {
    if (i->handle && i->messenger) close_messenger(i);
    if (i->handle && i->DestroyInstance) i->DestroyInstance(i->handle, NULL);
    memset(i, 0, sizeof *i);
}

ats_status vk_functions_load(const struct vk_instance *i, VkDevice device,
                             struct vk_functions *out) {
#define LOAD(name)                                                                                 \
    out->name = (PFN_vk##name)i->GetDeviceProcAddr(device, "vk" #name);                            \
    if (!out->name) return fail(ATS_UNSUPPORTED, "the Vulkan driver has no vk" #name);
    VK_DEVICE_MAP(LOAD)
#undef LOAD
    out->GetMemoryHostPointerPropertiesEXT =
        (PFN_vkGetMemoryHostPointerPropertiesEXT)i->GetDeviceProcAddr(
            device, "vkGetMemoryHostPointerPropertiesEXT");
    out->GetCalibratedTimestampsEXT = (PFN_vkGetCalibratedTimestampsEXT)i->GetDeviceProcAddr(
        device, "vkGetCalibratedTimestampsEXT");
    return ATS_OK;
}
