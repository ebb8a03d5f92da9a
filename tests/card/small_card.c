// A Vulkan layer that makes a card's memory end where a file says: as if another program had the rest.
// SMALL_CARD names a file; its text is the limit in bytes of what one process may hold. The most that a
// process has held is written into the file of that name and its id. No file: no limit.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <vulkan/vk_layer.h>
#include <vulkan/vulkan.h>

#define MOST 65536

static PFN_vkGetInstanceProcAddr next_of_instance;
static PFN_vkGetDeviceProcAddr next_of_device;
static PFN_vkAllocateMemory allocate;
static PFN_vkFreeMemory release;
static struct { VkDeviceMemory memory; VkDeviceSize size; } held[MOST];
static VkDeviceSize total, most;

static VkDeviceSize limit(void) {
    unsigned long long bytes = ~0ull;
    FILE *file = getenv("SMALL_CARD") ? fopen(getenv("SMALL_CARD"), "r") : NULL;
    if (file && fscanf(file, "%llu", &bytes) != 1) bytes = ~0ull;
    if (file) fclose(file);
    return bytes;
}

static void tell(void) {
    char name[4096];
    snprintf(name, sizeof name, "%s.%d", getenv("SMALL_CARD") ? getenv("SMALL_CARD") : "/dev/null", getpid());
    FILE *file = getenv("SMALL_CARD") ? fopen(name, "w") : NULL;
    if (file) {
        fprintf(file, "%llu", (unsigned long long)(most = total));
        fclose(file);
    }
}

static VkResult VKAPI_CALL small_allocate(VkDevice device, const VkMemoryAllocateInfo *info,
                                          const VkAllocationCallbacks *callbacks, VkDeviceMemory *memory) {
    if (total + info->allocationSize > limit()) return VK_ERROR_OUT_OF_DEVICE_MEMORY;
    VkResult result = allocate(device, info, callbacks, memory);
    for (size_t i = 0; result == VK_SUCCESS && i < MOST; i++) {
        if (held[i].memory) continue;
        held[i].memory = *memory;
        total += held[i].size = info->allocationSize;
        if (total > most) tell();
        break;
    }
    return result;
}

static void VKAPI_CALL small_release(VkDevice device, VkDeviceMemory memory, const VkAllocationCallbacks *callbacks) {
    for (size_t i = 0; memory && i < MOST; i++) {
        if (held[i].memory != memory) continue;
        held[i].memory = VK_NULL_HANDLE;
        total -= held[i].size;
        break;
    }
    release(device, memory, callbacks);
}

static void *link_of(const void *chain, VkStructureType type) {
    VkLayerInstanceCreateInfo *info = (VkLayerInstanceCreateInfo *)chain;
    while (info && !(info->sType == type && info->function == VK_LAYER_LINK_INFO)) {
        info = (VkLayerInstanceCreateInfo *)info->pNext;
    }
    return info;
}

static VkResult VKAPI_CALL small_create_instance(const VkInstanceCreateInfo *info,
                                                 const VkAllocationCallbacks *callbacks, VkInstance *instance) {
    VkLayerInstanceCreateInfo *link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_INSTANCE_CREATE_INFO);
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    next_of_instance = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    return ((PFN_vkCreateInstance)next_of_instance(NULL, "vkCreateInstance"))(info, callbacks, instance);
}

static VkResult VKAPI_CALL small_create_device(VkPhysicalDevice card, const VkDeviceCreateInfo *info,
                                               const VkAllocationCallbacks *callbacks, VkDevice *device) {
    VkLayerDeviceCreateInfo *link = link_of(info->pNext, VK_STRUCTURE_TYPE_LOADER_DEVICE_CREATE_INFO);
    if (!link) return VK_ERROR_INITIALIZATION_FAILED;
    PFN_vkGetInstanceProcAddr next = link->u.pLayerInfo->pfnNextGetInstanceProcAddr;
    next_of_device = link->u.pLayerInfo->pfnNextGetDeviceProcAddr;
    link->u.pLayerInfo = link->u.pLayerInfo->pNext;
    VkResult result = ((PFN_vkCreateDevice)next(NULL, "vkCreateDevice"))(card, info, callbacks, device);
    if (result == VK_SUCCESS) {
        allocate = (PFN_vkAllocateMemory)next_of_device(*device, "vkAllocateMemory");
        release = (PFN_vkFreeMemory)next_of_device(*device, "vkFreeMemory");
    }
    return result;
}

static PFN_vkVoidFunction ours(const char *name);

static PFN_vkVoidFunction VKAPI_CALL small_of_device(VkDevice device, const char *name) {
    PFN_vkVoidFunction found = ours(name);
    return found ? found : next_of_device(device, name);
}

static PFN_vkVoidFunction VKAPI_CALL small_of_instance(VkInstance instance, const char *name) {
    PFN_vkVoidFunction found = ours(name);
    return found ? found : next_of_instance(instance, name);
}

static PFN_vkVoidFunction ours(const char *name) {
    if (!strcmp(name, "vkGetInstanceProcAddr")) return (PFN_vkVoidFunction)small_of_instance;
    if (!strcmp(name, "vkGetDeviceProcAddr")) return (PFN_vkVoidFunction)small_of_device;
    if (!strcmp(name, "vkCreateInstance")) return (PFN_vkVoidFunction)small_create_instance;
    if (!strcmp(name, "vkCreateDevice")) return (PFN_vkVoidFunction)small_create_device;
    if (!strcmp(name, "vkAllocateMemory")) return (PFN_vkVoidFunction)small_allocate;
    if (!strcmp(name, "vkFreeMemory")) return (PFN_vkVoidFunction)small_release;
    return NULL;
}

VKAPI_ATTR VkResult VKAPI_CALL vkNegotiateLoaderLayerInterfaceVersion(VkNegotiateLayerInterface *wanted) {
    wanted->loaderLayerInterfaceVersion = 2;
    wanted->pfnGetInstanceProcAddr = small_of_instance;
    wanted->pfnGetDeviceProcAddr = small_of_device;
    wanted->pfnGetPhysicalDeviceProcAddr = NULL;
    return VK_SUCCESS;
}
