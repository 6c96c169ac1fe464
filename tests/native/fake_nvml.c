/*
 * A libnvidia-ml.so.1 that stands for the real one below the real Python bindings (contract: nvml.h).
 *
 * The node is the file that FAKE_NVML_NODE names; it is read by each nvmlInit. One fact a line:
 *
 *     driver 550.54.15
 *     cuda 12040
 *     gpu                                  begins a GPU; what follows is about it
 *     uuid GPU-...      name NVIDIA ...    minor 0       brand 14      arch 7
 *     memory 42949672960                   cc 8 0        mig 1         bus 00000000:07:00.0
 *     link 0 off                           NVLinks, from 0 on, without gaps
 *     link 1 switch
 *     link 2 00000000:0F:00.0              the GPU at the other end
 *     fail nvmlDeviceGetUUID 15            the call returns this code, for this GPU; before the first `gpu`, for all
 *     hang nvmlDeviceGetName PATH          the call returns when PATH is gone
 *
 * Without `mig` or `link` lines those calls say "not supported", as GPUs without the feature do. If FAKE_NVML_TRACE names a
 * file, each call adds a line to it: thread id and function.
 */

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    UNKNOWN = 999,
    MAX_LINKS = 36,
    MAX_RULES = 16,
    TEXT = 96
};

typedef struct {
    char call[TEXT];
    int code;        /* to fail with; -1: hang instead */
    char path[512];  /* to hang on */
} Rule;

typedef struct {
    Rule all[MAX_RULES];
    int count;
} Rules;

typedef struct {
    char uuid[TEXT], name[TEXT], bus[TEXT];
    unsigned minor, brand, arch;
    int cc_major, cc_minor, mig;
    unsigned long long memory;
    char links[MAX_LINKS][TEXT];
    unsigned link_count;
    Rules rules;
} Gpu;

/* nvmlPciInfo_t and nvmlMemory_t of nvml.h. */
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, device_id, subsystem_id;
    char bus_id[32];
} PciInfo;

typedef struct {
    unsigned long long total, free, used;
} Memory;

static int opened;
static char driver[TEXT];
static int cuda;
static Gpu *gpus;
static unsigned gpu_count;
static Rules rules;

static void add_rule(Rules *to, const char *call, int code, const char *path)
{
    if (to->count == MAX_RULES)
        abort();
    Rule *rule = &to->all[to->count++];
    snprintf(rule->call, sizeof rule->call, "%s", call);
    snprintf(rule->path, sizeof rule->path, "%s", path);
    rule->code = code;
}

static void read_line(const char *line)
{
    char word[TEXT], call[TEXT], text[512] = "";
    unsigned number;
    int code;
    Gpu *gpu = gpu_count ? &gpus[gpu_count - 1] : NULL;
    Rules *scope = gpu ? &gpu->rules : &rules;

    if (sscanf(line, "%95s", word) != 1)
        return;
    if (sscanf(line, "driver %95s", driver) == 1 || sscanf(line, "cuda %d", &cuda) == 1)
        return;
    if (sscanf(line, "fail %95s %d", call, &code) == 2) {
        add_rule(scope, call, code, "");
    } else if (sscanf(line, "hang %95s %511s", call, text) == 2) {
        add_rule(scope, call, -1, text);
    } else if (strcmp(word, "gpu") == 0) {
        gpus = realloc(gpus, (gpu_count + 1) * sizeof *gpus);
        if (!gpus)
            abort();
        gpus[gpu_count] = (Gpu){.mig = -1};
        gpu_count++;
    } else if (gpu && sscanf(line, "link %u %95s", &number, text) == 2 && number == gpu->link_count && number < MAX_LINKS) {
        snprintf(gpu->links[gpu->link_count++], TEXT, "%.95s", text);
    } else if (!(gpu
                 && (sscanf(line, "uuid %95s", gpu->uuid) == 1 || sscanf(line, "name %95[^\n]", gpu->name) == 1
                     || sscanf(line, "bus %95s", gpu->bus) == 1 || sscanf(line, "minor %u", &gpu->minor) == 1
                     || sscanf(line, "brand %u", &gpu->brand) == 1 || sscanf(line, "arch %u", &gpu->arch) == 1
                     || sscanf(line, "cc %d %d", &gpu->cc_major, &gpu->cc_minor) == 2
                     || sscanf(line, "mig %d", &gpu->mig) == 1 || sscanf(line, "memory %llu", &gpu->memory) == 1))) {
        fprintf(stderr, "fake_nvml: can't read this line: %s\n", line);
        abort();
    }
}

static void forget_node(void)
{
    free(gpus);
    gpus = NULL;
    gpu_count = 0;
    rules.count = 0;
}

static int read_node(void)
{
    char line[1024];
    const char *path = getenv("FAKE_NVML_NODE");
    FILE *file = path ? fopen(path, "r") : NULL;
    if (!file)
        return UNKNOWN;
    forget_node();
    cuda = 0;
    while (fgets(line, sizeof line, file))
        read_line(line);
    fclose(file);
    return SUCCESS;
}

static int obey(const Rules *from, const char *call)
{
    for (int i = 0; i < from->count; i++) {
        const Rule *rule = &from->all[i];
        if (strcmp(rule->call, call) != 0)
            continue;
        if (rule->code >= 0)
            return rule->code;
        while (access(rule->path, F_OK) == 0)
            usleep(1000);
    }
    return SUCCESS;
}

/* What each call begins with: leave a trace, and fail if the node's file says so. */
static int begin(const char *call, const Gpu *gpu)
{
    const char *path = getenv("FAKE_NVML_TRACE");
    FILE *trace = path ? fopen(path, "a") : NULL;
    if (trace) {
        fprintf(trace, "%ld %s\n", (long)syscall(SYS_gettid), call);
        fclose(trace);
    }
    if (!opened)
        return UNINITIALIZED;
    int code = obey(&rules, call);
    return code == SUCCESS && gpu ? obey(&gpu->rules, call) : code;
}

#define BEGIN(gpu)                         \
    do {                                   \
        int code_ = begin(__func__, gpu);  \
        if (code_ != SUCCESS)              \
            return code_;                  \
    } while (0)

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
    int code = opened ? SUCCESS : read_node();
    if (code != SUCCESS)
        return code;
    opened++;
    code = begin(__func__, NULL);
    if (code != SUCCESS)
        opened--;
    return code;
}

int nvmlShutdown(void)
{
    BEGIN(NULL);
    if (--opened == 0)
        forget_node();
    return SUCCESS;
}

const char *nvmlErrorString(int code)
{
    return code == 19 ? "In Use" : "an error of the fake";
}

int nvmlSystemGetDriverVersion(char *version, unsigned size)
{
    BEGIN(NULL);
    return put(version, size, driver);
}

int nvmlSystemGetCudaDriverVersion(int *version)
{
    BEGIN(NULL);
    *version = cuda;
    return SUCCESS;
}

int nvmlDeviceGetCount_v2(unsigned *count)
{
    BEGIN(NULL);
    *count = gpu_count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Gpu **gpu)
{
    if (index >= gpu_count)
        return INVALID_ARGUMENT;
    BEGIN(&gpus[index]);
    *gpu = &gpus[index];
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
    *memory = (Memory){.total = gpu->memory, .free = gpu->memory, .used = 0};
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
    for (unsigned i = 0; i < gpu_count; i++) {
        if (strcmp(gpus[i].uuid, uuid) != 0)
            continue;
        BEGIN(&gpus[i]);
        *gpu = &gpus[i];
        return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetIndex(Gpu *gpu, unsigned *index)
{
    BEGIN(gpu);
    *index = (unsigned)(gpu - gpus);
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
