/* A libnvidia-ml.so.1 for the real HAMi-core: fake_gpus.h says of which GPUs. Contract: nvml.h. A process that has
 * launched a kernel on a GPU keeps it busy for some time. With FAKE_GPUS_LOST no GPU is found by its PCI bus id. (fake_nvml.c is for
 * the Python bindings.) */
#include "fake_gpus.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6, INSUFFICIENT_SIZE = 7, BUSY = 200 /* ms */ };

struct memory { unsigned long long total, available, used; };
struct memory_v2 { unsigned version; unsigned long long total, reserved, available, used; };
struct running { unsigned pid; unsigned long long used; };
struct sample { unsigned pid; unsigned long long time; unsigned sm, memory, encoder, decoder; };

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { (void)code; return "an error"; }
int nvmlDeviceGetCount_v2(unsigned *found) { *found = (unsigned)gpus_count(); return SUCCESS; }

static int handle(unsigned gpu, void **device) {
    *device = (void *)(uintptr_t)(gpu + 1);
    return SUCCESS;
}

static int index_of(const void *device) { return (int)(uintptr_t)device - 1; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) { return index < (unsigned)gpus_count() ? handle(index, device) : INVALID_ARGUMENT; }
int nvmlDeviceGetHandleByIndex(unsigned index, void **device) { return nvmlDeviceGetHandleByIndex_v2(index, device); }

int nvmlDeviceGetHandleByPciBusId_v2(const char *text, void **device) {
    unsigned domain, bus, slot, its_domain, its_bus, its_slot;
    if (sscanf(text, "%x:%x:%x", &domain, &bus, &slot) != 3) return INVALID_ARGUMENT;
    if (getenv("FAKE_GPUS_LOST") != NULL) return NOT_FOUND;
    for (unsigned gpu = 0; gpu < GPUS; gpu++)
        if (sscanf(bus_ids[gpu], "%x:%x:%x", &its_domain, &its_bus, &its_slot) == 3 && domain == its_domain && bus == its_bus && slot == its_slot)
            return handle(gpu, device);
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(void *device, unsigned *index) { *index = (unsigned)index_of(device); return SUCCESS; }

int nvmlDeviceGetUUID(void *device, char *text, unsigned length) {
    snprintf(text, length, "%s", uuids[index_of(device)]);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *memory) {
    uint64_t used = gpus_used(gpus_lock(), index_of(device));
    gpus_unlock();
    *memory = (struct memory){PHYSICAL, PHYSICAL - used, used};
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *memory) {
    uint64_t used = gpus_used(gpus_lock(), index_of(device));
    gpus_unlock();
    *memory = (struct memory_v2){memory->version, PHYSICAL, 0, PHYSICAL - used, used};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses(void *device, unsigned *room, struct running *found) {
    int gpu = index_of(device), result = SUCCESS;
    unsigned n = 0;
    struct gpus *gpus = gpus_lock();
    for (struct process *each = gpus->processes; each < gpus->processes + PROCESSES; each++) {
        if (each->pid == 0 || each->contexts[gpu] <= 0) continue;
        if (n < *room) found[n] = (struct running){(unsigned)each->pid, each->allocated[gpu] + CONTEXT};
        else result = INSUFFICIENT_SIZE;
        n++;
    }
    gpus_unlock();
    *room = n;
    return result;
}

int nvmlDeviceGetProcessUtilization(void *device, struct sample *found, unsigned *room, unsigned long long since) {
    int gpu = index_of(device);
    unsigned n = 0;
    (void)since;
    struct gpus *gpus = gpus_lock();
    for (struct process *each = gpus->processes; each < gpus->processes + PROCESSES && n < *room; each++)
        if (each->pid != 0 && each->contexts[gpu] > 0)
            found[n++] = (struct sample){.pid = (unsigned)each->pid, .sm = gpus_now() - each->launched[gpu] < BUSY ? 100 : 0};
    gpus_unlock();
    *room = n;
    return SUCCESS;
}
