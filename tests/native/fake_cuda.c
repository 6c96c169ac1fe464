/* A libcuda.so.1 that counts allocations, for the real HAMi-core: fake_gpus.h says of which GPUs. Contract: cuda.h.
 *
 * CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER are read by cuInit as the driver does it (CUDA programming guide, "CUDA environment
 * variables"): numbers or beginnings of UUIDs that mean one GPU, of GPUs or of MIG instances (MIG-GPU-<UUID>/...), and nothing from
 * the first entry on that is neither or that was named before. Without an order the second GPU comes first, as if it were the faster.
 */
#define _GNU_SOURCE
#include "fake_gpus.h"
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201 };

enum { LOCATION_DEVICE = 1, RESERVED_HIGH = 6 };

#define ALLOCATIONS 4096

struct properties { int type, handle_types, location_type, location; }; /* the beginning of CUmemAllocationProp */

static int initialized, visible[GPUS], count;
static _Thread_local int current = -1;
static struct { uint64_t address, size; int gpu; } allocations[ALLOCATIONS];
static uint64_t pool[GPUS], pool_high[GPUS];

static int by_order(int number) {
    const char *order = getenv("CUDA_DEVICE_ORDER");
    if (number < 0 || number >= gpus_count()) return -1;
    return order != NULL && strcmp(order, "PCI_BUS_ID") == 0 ? number : gpus_count() - 1 - number;
}

/* The GPU that an entry names, or -1. */
static int named(const char *entry) {
    char *end;
    int found = -1;
    if (strncmp(entry, "MIG-", 4) == 0) entry += 4;
    if (strncmp(entry, "GPU-", 4) == 0) {
        size_t length = strcspn(entry, "/");
        for (int gpu = 0; gpu < gpus_count(); gpu++)
            if (strncmp(entry, uuids[gpu], length) == 0) found = found == -1 ? gpu : -2;
        return found;
    }
    long number = strtol(entry, &end, 10);
    return end == entry || *end != '\0' || number < 0 || number >= gpus_count() ? -1 : by_order((int)number);
}

static void read_visible(void) {
    const char *variable = getenv("CUDA_VISIBLE_DEVICES");
    char list[1024], *rest = list;
    count = 0;
    if (variable == NULL) {
        while (count < gpus_count()) visible[count] = by_order(count), count++;
        return;
    }
    snprintf(list, sizeof list, "%s", variable);
    for (char *entry; count < GPUS && (entry = strsep(&rest, ",")) != NULL;) {
        int gpu = named(entry);
        if (gpu < 0 || (count > 0 && visible[0] == gpu)) return;
        visible[count++] = gpu;
    }
}

int cuInit(unsigned flags) {
    (void)flags;
    if (!initialized) read_visible();
    if (count == 0) return NO_DEVICE;
    initialized = 1;
    return SUCCESS;
}

int cuDriverGetVersion(int *version) { *version = 13030; return SUCCESS; }
int cuDeviceGetCount(int *found) { *found = count; return initialized ? SUCCESS : NOT_INITIALIZED; }

int cuDeviceGet(int *device, int ordinal) {
    *device = ordinal;
    return ordinal >= 0 && ordinal < count ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetAttribute(int *value, int attribute, int device) {
    *value = attribute == 16 ? 108 : attribute == 39 ? 2048 : 0; /* multiprocessors, threads of each */
    return device >= 0 && device < count ? SUCCESS : INVALID_DEVICE;
}

int cuDeviceGetPCIBusId(char *text, int length, int device) {
    if (device < 0 || device >= count) return INVALID_DEVICE;
    snprintf(text, (size_t)length, "%s", bus_ids[visible[device]] + 4); /* CUDA writes four digits of the domain, NVML eight */
    return SUCCESS;
}

int cuDeviceTotalMem_v2(size_t *bytes, int device) {
    *bytes = PHYSICAL;
    return device >= 0 && device < count ? SUCCESS : INVALID_DEVICE;
}

/* Contexts are not asked whether they fit: the driver doesn't know HAMi-core's limits, and HAMi-core lets them be made. */
int cuDevicePrimaryCtxRetain(void **context, int device) {
    if (device < 0 || device >= count) return INVALID_DEVICE;
    gpus_self(gpus_lock())->contexts[visible[device]]++;
    gpus_unlock();
    *context = (void *)(uintptr_t)(device + 1);
    return SUCCESS;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
    if (device < 0 || device >= count) return INVALID_DEVICE;
    gpus_self(gpus_lock())->contexts[visible[device]]--;
    gpus_unlock();
    return SUCCESS;
}

int cuCtxSetCurrent(void *context) { current = (int)(uintptr_t)context - 1; return SUCCESS; }
int cuCtxGetCurrent(void **context) { *context = (void *)(uintptr_t)(current + 1); return SUCCESS; }
int cuCtxGetDevice(int *device) {
    if (current < 0) return INVALID_CONTEXT;
    *device = current;
    return SUCCESS;
}

static int allocate(uint64_t *address, size_t size, int device) {
    if (device < 0 || device >= count) return INVALID_CONTEXT;
    int gpu = visible[device], result = OUT_OF_MEMORY;
    struct gpus *gpus = gpus_lock();
    uint64_t used = gpus_used(gpus, gpu) + size;
    for (int i = 0; used <= PHYSICAL && i < ALLOCATIONS; i++) {
        if (allocations[i].size != 0) continue;
        allocations[i].address = *address = ((uint64_t)(i + 1)) << 40;
        allocations[i].size = size;
        allocations[i].gpu = gpu;
        gpus_self(gpus)->allocated[gpu] += size;
        if (used > gpus->most[gpu]) gpus->most[gpu] = used;
        result = SUCCESS;
        break;
    }
    gpus_unlock();
    return result;
}

int cuMemAlloc_v2(uint64_t *address, size_t size) { return allocate(address, size, current); }

/* Memory without an address, of the device that is named, whatever the current one is. */
int cuMemCreate(uint64_t *handle, size_t size, const struct properties *properties, unsigned long long flags) {
    (void)flags;
    return properties->location_type == LOCATION_DEVICE ? allocate(handle, size, properties->location) : INVALID_VALUE;
}

/* From the GPU's pool, of which HAMi-core asks what it had reserved at most. */
int cuMemAllocAsync(uint64_t *address, size_t size, void *stream) {
    (void)stream;
    int result = allocate(address, size, current);
    if (result != SUCCESS) return result;
    int gpu = visible[current];
    pool[gpu] += size;
    if (pool[gpu] > pool_high[gpu]) pool_high[gpu] = pool[gpu];
    return SUCCESS;
}

int cuDeviceGetMemPool(void **found, int device) {
    *found = &pool_high[visible[device]];
    return SUCCESS;
}

int cuMemPoolGetAttribute(const void *of, int attribute, void *value) {
    if (attribute != RESERVED_HIGH) return INVALID_VALUE;
    memcpy(value, of, sizeof *pool_high);
    return SUCCESS;
}

static int release(uint64_t address, int pooled) {
    int result = INVALID_VALUE;
    struct gpus *gpus = gpus_lock();
    for (int i = 0; i < ALLOCATIONS; i++) {
        if (allocations[i].size == 0 || allocations[i].address != address) continue;
        gpus_self(gpus)->allocated[allocations[i].gpu] -= allocations[i].size;
        if (pooled) pool[allocations[i].gpu] -= allocations[i].size;
        allocations[i].size = 0;
        result = SUCCESS;
    }
    gpus_unlock();
    return result;
}

int cuMemFree_v2(uint64_t address) { return release(address, 0); }
int cuMemRelease(uint64_t handle) { return release(handle, 0); }
int cuMemFreeAsync(uint64_t address, void *stream) { (void)stream; return release(address, 1); }

int cuMemGetInfo_v2(size_t *available, size_t *total) {
    if (current < 0) return INVALID_CONTEXT;
    *available = PHYSICAL - gpus_used(gpus_lock(), visible[current]);
    gpus_unlock();
    *total = PHYSICAL;
    return SUCCESS;
}

int cuLaunchKernel(void *function, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                   void *stream, void **parameters, void **extra) {
    (void)function, (void)x, (void)y, (void)z, (void)bx, (void)by, (void)bz, (void)shared, (void)stream, (void)parameters, (void)extra;
    if (current < 0) return INVALID_CONTEXT;
    gpus_self(gpus_lock())->launched[visible[current]] = gpus_now();
    gpus_unlock();
    return SUCCESS;
}
