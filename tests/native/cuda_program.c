/* A CUDA program that does what it is told, line by line, and answers each line with one: for the real HAMi-core, on fake GPUs.
 *
 *     set NAME=VALUE    unset NAME     its own environment, before CUDA looks at it
 *     init              CUDA; answers how many devices there are
 *     nvml              NVML
 *     alloc DEVICE MIB  of a CUDA device, in a context of its own; answers 1, or 0 if it is refused
 *     fill DEVICE       100 MiB again and again until that is refused; answers how many MiB that were
 *     pool DEVICE       the same from the device's pool, by cuMemAllocAsync
 *     create DEVICE     the same by cuMemCreate, with whatever device is the current one
 *     free              all that it has; answers how many MiB
 *     total DEVICE      MiB of a CUDA device, by CUDA
 *     info DEVICE       MiB free and in all of a CUDA device, by CUDA
 *     shown GPU         MiB used and in all of a GPU, by NVML's number
 *     launch DEVICE MS  launches kernels for so long; answers how many
 *     fork              goes on in a child; answers its PID
 */
#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define CHUNK 100

struct memory { unsigned long long total, available, used; };
int cuInit(unsigned), cuDeviceGetCount(int *), cuDeviceTotalMem_v2(size_t *, int), cuDevicePrimaryCtxRetain(void **, int);
int cuCtxSetCurrent(void *), cuMemAlloc_v2(uint64_t *, size_t), cuMemFree_v2(uint64_t), cuMemGetInfo_v2(size_t *, size_t *);
int cuMemCreate(uint64_t *, size_t, const void *, unsigned long long), cuMemRelease(uint64_t);
int cuMemAllocAsync(uint64_t *, size_t, void *), cuMemFreeAsync(uint64_t, void *);
int cuLaunchKernel(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
int nvmlInit_v2(void), nvmlDeviceGetHandleByIndex_v2(unsigned, void **), nvmlDeviceGetMemoryInfo(void *, struct memory *);

static void *contexts[16];
enum way { PLAIN, POOL, CREATE };
static struct { uint64_t address; int mib; enum way way; } held[4096];
static int holding;

static int use(int device) {
    if (contexts[device] == NULL && cuDevicePrimaryCtxRetain(&contexts[device], device) != 0) return 0;
    return cuCtxSetCurrent(contexts[device]) == 0;
}

static int allocate(int device, int mib, enum way way) {
    const int properties[16] = {1, 0, 1, device}; /* CUmemAllocationProp: pinned, on this device */
    uint64_t *address = &held[holding].address;
    if (holding == sizeof held / sizeof *held || (way != CREATE && !use(device))) return 0;
    if ((way == PLAIN    ? cuMemAlloc_v2(address, mib * MIB)
         : way == POOL   ? cuMemAllocAsync(address, mib * MIB, NULL)
                         : cuMemCreate(address, mib * MIB, properties, 0)) != 0)
        return 0;
    held[holding].way = way;
    held[holding++].mib = mib;
    return 1;
}

static int fill(int device, enum way way) {
    int mib = 0;
    while (allocate(device, CHUNK, way)) mib += CHUNK;
    return mib;
}

static int release(uint64_t address, enum way way) {
    return way == PLAIN ? cuMemFree_v2(address) : way == POOL ? cuMemFreeAsync(address, NULL) : cuMemRelease(address);
}

static int launch(int device, int milliseconds) {
    struct timespec start, now;
    int launches = 0;
    if (!use(device)) return -1;
    clock_gettime(CLOCK_MONOTONIC, &start);
    do {
        cuLaunchKernel(NULL, 1u << 20, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
        launches++;
        clock_gettime(CLOCK_MONOTONIC, &now);
    } while ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 < milliseconds);
    return launches;
}

static void answer(char *line) {
    char *first = strchr(line, ' ');
    int device = first ? atoi(first) : 0, second = first && strchr(first + 1, ' ') ? atoi(strchr(first + 1, ' ')) : 0, n = 0;
    size_t bytes = 0, available = 0;
    struct memory memory = {0};
    void *handle = NULL;
    if (strncmp(line, "set ", 4) == 0) printf("%d\n", putenv(strdup(line + 4)));
    else if (strncmp(line, "unset ", 6) == 0) printf("%d\n", unsetenv(line + 6));
    else if (strcmp(line, "init") == 0) {
        if (cuInit(0) == 0) cuDeviceGetCount(&n);
        printf("%d\n", n);
    } else if (strcmp(line, "nvml") == 0) printf("%d\n", nvmlInit_v2());
    else if (strncmp(line, "alloc ", 6) == 0) printf("%d\n", allocate(device, second, PLAIN));
    else if (strncmp(line, "fill ", 5) == 0) printf("%d\n", fill(device, PLAIN));
    else if (strncmp(line, "pool ", 5) == 0) printf("%d\n", fill(device, POOL));
    else if (strncmp(line, "create ", 7) == 0) printf("%d\n", fill(device, CREATE));
    else if (strcmp(line, "free") == 0) {
        while (holding > 0 && release(held[holding - 1].address, held[holding - 1].way) == 0) n += held[--holding].mib;
        printf("%d\n", n);
    } else if (strncmp(line, "total ", 6) == 0) {
        cuDeviceTotalMem_v2(&bytes, device);
        printf("%llu\n", bytes / MIB);
    } else if (strncmp(line, "info ", 5) == 0) {
        use(device);
        cuMemGetInfo_v2(&available, &bytes);
        printf("%llu %llu\n", available / MIB, bytes / MIB);
    } else if (strncmp(line, "shown ", 6) == 0) {
        nvmlDeviceGetHandleByIndex_v2((unsigned)device, &handle);
        nvmlDeviceGetMemoryInfo(handle, &memory);
        printf("%llu %llu\n", memory.used / MIB, memory.total / MIB);
    } else if (strncmp(line, "launch ", 7) == 0) printf("%d\n", launch(device, second));
    else if (strcmp(line, "fork") == 0) {
        pid_t child = fork();
        if (child > 0) { /* waits, so that the child is no zombie for long, and ends with it */
            int status;
            waitpid(child, &status, 0);
            exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
        }
        printf("%d\n", getpid());
    } else exit(64);
    fflush(stdout);
}

int main(void) {
    char line[4096];
    while (fgets(line, sizeof line, stdin) != NULL) {
        line[strcspn(line, "\n")] = '\0';
        answer(line);
    }
    return 0;
}
