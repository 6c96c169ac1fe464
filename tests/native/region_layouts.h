/* HAMi-core's shared region in each of its layouts, as C lays it out: what our own bytes are held against.
 *
 * Made from the fields, their order and their types; every offset follows from those, as in the library (HAMi-core,
 * src/multiprocess/multiprocess_memory_limit.h at the commits that the layouts' comments name).
 */
#ifndef REGION_LAYOUTS_H
#define REGION_LAYOUTS_H

#include <semaphore.h>
#include <stdint.h>

enum { GPUS = 16, SLOTS = 1024, UUID_BYTES = 96, REGION_MAGIC = 19920718 };

/* What all of version 1 counts of one process on one GPU. */
struct memory_v1 {
    uint64_t context, module, data, offset, total, reserved[3];
};
struct busy_v1 {
    uint64_t decoder, encoder, sm, reserved[3];
};

/* 1.2 (b69b1ea): the sequence lock is where 1.1 has reserved words. */
struct slot_a {
    int32_t pid, host_pid;
    struct memory_v1 used[GPUS];
    uint64_t monitor_used[GPUS];
    struct busy_v1 busy[GPUS];
    int32_t status;
    uint64_t sequence, reserved[2];
};

/* 1.1 (9b46404). */
struct slot_b {
    int32_t pid, host_pid;
    struct memory_v1 used[GPUS];
    uint64_t monitor_used[GPUS];
    struct busy_v1 busy[GPUS];
    int32_t status;
    uint64_t reserved[3];
};

/* Says 1.1, with the sequence lock in front (1988c5d). */
struct slot_c {
    int32_t pid, host_pid;
    uint64_t sequence;
    struct memory_v1 used[GPUS];
    uint64_t monitor_used[GPUS];
    struct busy_v1 busy[GPUS];
    int32_t status;
    uint64_t reserved[2];
};

/* 0 (7a9c88b). */
struct slot_e {
    int32_t pid, host_pid;
    struct {
        uint64_t context, module, data, offset, total;
    } used[GPUS];
    uint64_t monitor_used[GPUS];
    struct {
        uint64_t decoder, encoder, sm;
    } busy[GPUS];
    int32_t status;
};

#define FIRST_OF_VERSION_1 \
    int32_t magic;         \
    uint32_t major, minor; \
    int32_t sm_ready;      \
    uint64_t owner;        \
    sem_t lock;

#define LIMITS                       \
    uint64_t device_count;           \
    char uuids[GPUS][UUID_BYTES];    \
    uint64_t memory[GPUS], cores[GPUS];

#define LAST \
    int32_t process_count, utilization_switch, recent_kernel, priority;

struct region_a {
    FIRST_OF_VERSION_1
    LIMITS
    struct slot_a slots[SLOTS];
    LAST
    uint64_t last_kernel_time;
    sem_t start_lock;
};

struct region_b {
    FIRST_OF_VERSION_1
    LIMITS
    struct slot_b slots[SLOTS];
    LAST
    uint64_t last_kernel_time, reserved[4];
};

struct region_c {
    FIRST_OF_VERSION_1
    LIMITS
    struct slot_c slots[SLOTS];
    LAST
    uint64_t last_kernel_time, reserved[4];
};

/* 2.8.1 (94fff568): never written, only told apart by its size. */
struct region_d {
    FIRST_OF_VERSION_1
    sem_t start_lock;
    LIMITS
    struct slot_c slots[SLOTS];
    LAST
    uint64_t last_kernel_time, reserved[4];
};

struct region_e {
    int32_t magic, sm_ready;
    uint64_t owner;
    sem_t lock;
    LIMITS
    struct slot_e slots[SLOTS];
    LAST
};

#endif
