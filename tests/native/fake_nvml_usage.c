/* What the fake libnvidia-ml.so.1 says of the use of GPUs. */

#include "fake_nvml_node.h"

#include <sys/time.h>

/* nvmlUtilization_t, nvmlProcessInfo_t (v3) and nvmlProcessUtilizationSample_t of nvml.h. */
typedef struct {
    unsigned gpu, memory;
} Rates;

typedef struct {
    unsigned pid;
    unsigned long long memory;
    unsigned gpu_instance, compute_instance;
} ProcessInfo;

typedef struct {
    unsigned pid;
    unsigned long long time;
    unsigned sm, memory, encoder, decoder;
} ProcessSample;

int nvmlDeviceGetUtilizationRates(Gpu *gpu, Rates *rates)
{
    BEGIN(gpu);
    if (!gpu->has_rates)
        return NOT_SUPPORTED;
    *rates = (Rates){gpu->rate, gpu->memory_rate};
    return SUCCESS;
}

int nvmlDeviceGetComputeRunningProcesses_v3(Gpu *gpu, unsigned *count, ProcessInfo *infos)
{
    BEGIN(gpu);
    unsigned room = *count;
    *count = gpu->process_count;
    if (room < gpu->process_count)
        return INSUFFICIENT_SIZE;
    for (unsigned i = 0; i < gpu->process_count; i++)
        infos[i] = (ProcessInfo){gpu->processes[i].pid, (unsigned long long)gpu->processes[i].memory, ~0u, ~0u};
    return SUCCESS;
}

int nvmlDeviceGetGraphicsRunningProcesses_v3(Gpu *gpu, unsigned *count, ProcessInfo *infos)
{
    BEGIN(gpu);
    (void)infos;
    *count = 0;
    return SUCCESS;
}

int nvmlDeviceGetProcessUtilization(Gpu *gpu, ProcessSample *samples, unsigned *count, unsigned long long since)
{
    BEGIN(gpu);
    (void)since;
    struct timeval now;
    gettimeofday(&now, 0);
    unsigned room = *count, found = 0;
    for (unsigned i = 0; i < gpu->process_count; i++) {
        if (gpu->processes[i].busy < 0)
            continue;
        if (samples && found < room)
            samples[found] = (ProcessSample){
                .pid = gpu->processes[i].pid,
                .time = (unsigned long long)now.tv_sec * 1000000 + (unsigned long long)now.tv_usec,
                .sm = (unsigned)gpu->processes[i].busy,
            };
        found++;
    }
    *count = found;
    return found == 0 ? NOT_FOUND : samples && room >= found ? SUCCESS : INSUFFICIENT_SIZE;
}
