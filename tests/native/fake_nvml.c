/*
 * A libnvidia-ml.so.1 that stands for the real one below the real Python bindings (contract: nvml.h).
 *
 * The node is the file that FAKE_NVML_NODE names. It is read by each nvmlInit, and again by any call when it has become another
 * one: a GPU that is not in it any more is lost to the sessions that know it, and one that is new is seen by the next session.
 * Who writes it must rename it into place. One fact a line:
 *
 *     driver 550.54.15
 *     load 1                               which load of the kernel's module: sessions of an earlier one are at their end
 *     cuda 12040
 *     gpu                                  begins a GPU; what follows is about it
 *     uuid GPU-...      name NVIDIA ...    minor 0       brand 14      arch 7
 *     memory 42949672960                   cc 8 0        mig 1         bus 00000000:07:00.0
 *     events 10e                           event types that it knows, hexadecimal; all if there is no such line
 *     used 1048576                         bytes of its memory
 *     rates 40 20                          percent of time in which it computes, and its memory is used; not supported without
 *     process 4711 1048576 40              a PID, its bytes (-1: not available) and its percent of the compute (-1: not told)
 *     energy 5000                          in mJ since it was initialised; not supported without
 *     field 230 1                          a field's value; the others are not supported
 *     link 0 off                           NVLinks, from 0 on, without gaps
 *     link 1 switch
 *     link 2 00000000:0F:00.0              the GPU at the other end
 *     fail nvmlDeviceGetUUID 15            the call returns this code, for this GPU; before the first `gpu`, for all;
 *                                          `*` instead of a name: any call
 *     hang nvmlDeviceGetName PATH          the call returns when PATH is gone
 *
 * Events are lines of the file of that name with .events behind it, with rising numbers: `1 GPU-... 8 79` is one of type 0x8 and
 * data 79. An event set gives out those that come after it was made, each once. While a session is open, the file with .module
 * behind its name is locked (flock): so a test sees whether the kernel's module could be unloaded.
 *
 * Without `mig` or `link` lines those calls say "not supported", as GPUs without the feature do. If FAKE_NVML_TRACE names a
 * file, each call adds a line to it: thread id and function.
 */

#include "fake_nvml_node.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* nvmlPciInfo_t and nvmlMemory_t of nvml.h. */
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct {
    unsigned long long total, free, used;
} Memory;

static int put(char *to, unsigned size, const char *text)
{
    if (strlen(text) >= size)
        return INSUFFICIENT_SIZE;
    strcpy(to, text);
    return SUCCESS;
}

static void put_bus(PciInfo *info, const char *bus)
{
    memset(info, 0, sizeof *info);
    snprintf(info->bus_id, sizeof info->bus_id, "%s", bus);
    sscanf(bus, "%x:%x:%x", &info->domain, &info->bus, &info->device);
}

int nvmlInitWithFlags(unsigned flags)
{
    (void)flags;
    __attribute__((cleanup(end_turn))) int in_turn_ = 0;
    (void)in_turn_;
    take_turn();
    int code = opened ? SUCCESS : open_node();
    if (code != SUCCESS)
        return code;
    opened++;
    code = begin(__func__, NULL);
    if (code != SUCCESS && --opened == 0)
        close_node();
    return code;
}

int nvmlShutdown(void)
{
    __attribute__((cleanup(end_turn))) int in_turn_ = 0;
    (void)in_turn_;
    take_turn();
    int code = begin(__func__, NULL);
    if (opened && --opened == 0)
        close_node();
    return code;
}

const char *nvmlErrorString(int code)
{
    return code == 19 ? "In Use" : "an error of the fake";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    BEGIN(NULL);
    return put(version, size, node.driver);
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    BEGIN(NULL);
    *version = node.cuda;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    BEGIN(NULL);
    *count = node.gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu)
{
    if (index >= node.gpu_count)
        return INVALID_ARGUMENT;
    BEGIN(&node.gpus[index]);
    *gpu = &node.gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(Gpu *gpu, char *uuid, unsigned size)
{
    BEGIN(gpu);
    return put(uuid, size, gpu->uuid);
}

int nvmlDeviceGetName(Gpu *gpu, char *name, unsigned size)
{
    BEGIN(gpu);
    return put(name, size, gpu->name);
}

int nvmlDeviceGetMinorNumber(Gpu *gpu, unsigned *minor)
{
    BEGIN(gpu);
    *minor = gpu->minor;
    return SUCCESS;
}

int nvmlDeviceGetBrand(Gpu *gpu, unsigned *brand)
{
    BEGIN(gpu);
    *brand = gpu->brand;
    return SUCCESS;
}

int nvmlDeviceGetArchitecture(Gpu *gpu, unsigned *arch)
{
    BEGIN(gpu);
    *arch = gpu->arch;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Gpu *gpu, int *major, int *minor)
{
    BEGIN(gpu);
    *major = gpu->cc_major;
    *minor = gpu->cc_minor;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(Gpu *gpu, Memory *memory)
{
    BEGIN(gpu);
    *memory = (Memory){.total = gpu->memory, .free = gpu->memory - gpu->used, .used = gpu->used};
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Gpu *gpu, PciInfo *info)
{
    BEGIN(gpu);
    put_bus(info, gpu->bus);
    return SUCCESS;
}

int nvmlDeviceGetMigMode(Gpu *gpu, unsigned *current, unsigned *pending)
{
    BEGIN(gpu);
    if (gpu->mig < 0)
        return NOT_SUPPORTED;
    *current = *pending = (unsigned)gpu->mig;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkState(Gpu *gpu, unsigned link, unsigned *active)
{
    BEGIN(gpu);
    if (gpu->link_count == 0)
        return NOT_SUPPORTED;
    if (link >= gpu->link_count)
        return INVALID_ARGUMENT;
    *active = strcmp(gpu->links[link], "off") != 0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(Gpu *gpu, unsigned link, unsigned *type)
{
    BEGIN(gpu);
    if (link >= gpu->link_count)
        return INVALID_ARGUMENT;
    *type = strcmp(gpu->links[link], "switch") == 0 ? 2 : 0;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Gpu *gpu, unsigned link, PciInfo *info)
{
    BEGIN(gpu);
    if (link >= gpu->link_count)
        return INVALID_ARGUMENT;
    put_bus(info, gpu->links[link]);
    return SUCCESS;
}

/* The rest is asked by nvidia-ctk only. */

int nvmlInit_v2(void)
{
    return nvmlInitWithFlags(0);
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Gpu **gpu)
{
    for (unsigned i = 0; i < node.gpu_count; i++) {
        if (strcmp(node.gpus[i].uuid, uuid) != 0)
            continue;
        BEGIN(&node.gpus[i]);
        *gpu = &node.gpus[i];
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(Gpu *gpu, unsigned *index)
{
    BEGIN(gpu);
    *index = (unsigned)(gpu - node.gpus);
    return SUCCESS;
}

int nvmlDeviceIsMigDeviceHandle(Gpu *gpu, unsigned *is_mig)
{
    BEGIN(gpu);
    *is_mig = 0;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(Gpu *gpu, unsigned *count)
{
    BEGIN(gpu);
    *count = 0;
    return SUCCESS;
}

/* Events and fields. */

typedef struct {
    unsigned long seen; /* number of the last event that was given out, or was there before the set */
    unsigned long long types[MAX_GPUS];
} EventSet;

typedef struct {
    Gpu *gpu;
    unsigned long long type, data;
    unsigned gpu_instance, compute_instance;
} EventData;

typedef struct {
    unsigned id, scope;
    long long timestamp, latency;
    int type, code;
    union {
        unsigned number;
        unsigned long long size;
    } value;
} FieldValue;

int nvmlDeviceGetSupportedEventTypes(Gpu *gpu, unsigned long long *types)
{
    BEGIN(gpu);
    *types = gpu->events;
    return SUCCESS;
}

int nvmlEventSetCreate(EventSet **set)
{
    BEGIN(NULL);
    *set = calloc(1, sizeof **set);
    (*set)->seen = last_event();
    return SUCCESS;
}

int nvmlEventSetFree(EventSet *set)
{
    BEGIN(NULL);
    free(set);
    return SUCCESS;
}

int nvmlDeviceRegisterEvents(Gpu *gpu, unsigned long long types, EventSet *set)
{
    BEGIN(gpu);
    if (types & ~gpu->events)
        return NOT_SUPPORTED;
    set->types[gpu - node.gpus] |= types;
    return SUCCESS;
}

int nvmlEventSetWait_v2(EventSet *set, EventData *data, unsigned milliseconds)
{
    Event event;
    BEGIN(NULL);
    for (unsigned waited = 0;; waited += 2) {
        while (next_event(set->seen, &event)) {
            set->seen = event.number;
            for (unsigned i = 0; i < node.gpu_count; i++)
                if (strcmp(node.gpus[i].uuid, event.uuid) == 0 && set->types[i] & event.type) {
                    *data = (EventData){&node.gpus[i], event.type, event.data, 0xffffffff, 0xffffffff};
                    return SUCCESS;
                }
        }
        if (waited >= milliseconds)
            return TIMEOUT;
        wait_a_moment();
        usleep(1000);
        int code = go_on(__func__, NULL);
        if (code != SUCCESS)
            return code;
    }
}

int nvmlDeviceGetTotalEnergyConsumption(Gpu *gpu, unsigned long long *energy)
{
    BEGIN(gpu);
    if (!gpu->energy)
        return NOT_SUPPORTED;
    *energy = gpu->energy;
    return SUCCESS;
}

int nvmlDeviceGetFieldValues(Gpu *gpu, int count, FieldValue *values)
{
    BEGIN(gpu);
    for (int i = 0; i < count; i++) {
        values[i].code = NOT_SUPPORTED;
        for (unsigned j = 0; j < gpu->field_count; j++)
            if (gpu->fields[j].id == values[i].id) {
                values[i].code = SUCCESS;
                values[i].type = 1; /* NVML_VALUE_TYPE_UNSIGNED_INT */
                values[i].value.number = gpu->fields[j].value;
            }
    }
    return SUCCESS;
}
