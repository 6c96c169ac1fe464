/* Two GPUs that are not there, below the real HAMi-core: what fake_cuda.c and fake_gpus_nvml.c know of them.
 *
 * Their state is the file that FAKE_GPUS names: who holds how much of which GPU, in all processes, and the most that was held when
 * an allocation succeeded. A driver frees what killed processes held, and so does this one. The GPUs' order is that of their PCI
 * bus ids, as NVML has it.
 */
#ifndef FAKE_GPUS_H
#define FAKE_GPUS_H

#include <stdint.h>
#include <sys/types.h>

#define GPUS 2
#define PROCESSES 64
#define MIB (1ull << 20)
#define PHYSICAL (40960 * MIB)
#define CONTEXT (100 * MIB) /* what a process's context takes of a GPU */

struct process {
    int32_t pid;
    int32_t contexts[GPUS];
    uint64_t allocated[GPUS];
    uint64_t launched[GPUS]; /* milliseconds since the machine started, of the last kernel */
};

struct gpus {
    uint64_t most[GPUS];
    struct process processes[PROCESSES];
};

static const char *const uuids[GPUS] = {"GPU-1a2b3c4d-0000-4000-8000-000000000001", "GPU-1a2b9f00-0000-4000-8000-000000000002"};
static const char *const bus_ids[GPUS] = {"00000000:07:00.0", "00000000:0F:00.0"};

/* The state, locked against all other processes and threads, without what dead processes held; until `gpus_unlock`. */
struct gpus *gpus_lock(void);
void gpus_unlock(void);
/* This process's entry. */
struct process *gpus_self(struct gpus *gpus);
/* What is held of a GPU, with contexts. */
uint64_t gpus_used(const struct gpus *gpus, int gpu);
/* How many there are: FAKE_GPUS_COUNT, or all. */
int gpus_count(void);
/* Milliseconds since the machine started. */
uint64_t gpus_now(void);

#endif
