/* Stands for HAMi-core's libvgpu.so in tests: preloaded into a program, it shows which limits it would keep.
 *
 *     VGPU_REPORT=1     says so on stdout, in lines of `key=value`, when the program starts; silent without it. Programs
 *                       without any other variable can be asked, too: env -i VGPU_REPORT=1 PROGRAM
 *     VGPU_ALLOC=MIB    moreover uses so much memory of the first GPU until it ends, if its limit allows that
 *
 * It does what the library does at the first CUDA call, by the same rules (HAMi-core 8f3a89c, src/multiprocess/
 * multiprocess_memory_limit.c): parses the limits, makes or joins the shared region, where the first writer's limits stay,
 * takes a slot there under its PID, and ends the program when the region can't be made. Where the library would wait for
 * ever, it says so and ends the program. Like the library it keeps the region mapped until the program ends.
 *
 * What it needs of glibc is as old as the library's own needs, so no sem_wait and no fstat.
 *
 *     gcc -std=c11 -shared -fPIC -O2 -Wall -Wextra -Werror -o libvgpu.so fake_vgpu.c
 */
#define _DEFAULT_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

#include "region_layouts.h"

#define MAJOR 1
#ifndef MINOR
#define MINOR 2 /* 1: releases up to 2.8.0, which have no start_lock */
#endif
#define DEFAULT_PATH "/tmp/cudevshr.cache"
#define OWN_PATH "/usr/local/vgpu/libvgpu.so"
#define LOCK_PATH "/tmp/vgpulock/lock"
#define PATIENCE 1000 /* milliseconds; the library takes ten seconds, and tries thirty times */

static struct region_a *region; /* layout 1.2 */
static const char *path;
static struct slot_a *own;
static pid_t own_pid;

/* get_limit_from_env: one suffix letter, else bytes; octal and hex by strtoul; 0 stands for everything that is wrong. */
static uint64_t parse(const char *name) {
    const char *text = getenv(name);
    if (text == NULL || *text == '\0') return 0;
    uint64_t scale = 1;
    switch (text[strlen(text) - 1]) {
    case 'g': case 'G': scale = 1ull << 30; break;
    case 'm': case 'M': scale = 1ull << 20; break;
    case 'k': case 'K': scale = 1ull << 10; break;
    }
    uint64_t value = strtoul(text, NULL, 0);
    return scale != 1 && value > UINT64_MAX / scale ? 0 : value * scale;
}

static uint64_t limit(const char *name, int index) {
    char indexed[64];
    snprintf(indexed, sizeof indexed, "%s_%d", name, index);
    uint64_t value = parse(indexed);
    return value ? value : parse(name);
}

static void show(const char *key, const char *variable, const char *otherwise) {
    const char *value = getenv(variable);
    printf("%s=%s\n", key, value ? value : otherwise);
}

static void show_number(const char *key, uint64_t value) { printf("%s=%llu\n", key, (unsigned long long)value); }

static void show_numbers(const char *key, const uint64_t *values, uint64_t below) {
    for (int i = 0; i < GPUS; i++)
        if (values[i] && values[i] < below) printf("%s.%d=%llu\n", key, i, (unsigned long long)values[i]);
}

static void end(void) {
    fflush(stdout);
    _exit(EXIT_FAILURE);
}

static void fail(const char *what) {
    printf("error=%s %s: %s\n", what, path, strerror(errno));
    end();
}

/* --- the semaphores: glibc's sem_t has the value in its first four bytes --- */

static void make_free(sem_t *semaphore) {
    const struct { uint64_t value; int32_t shared, unused; } made = {1, 128, 0};
    memcpy(semaphore, &made, sizeof made);
}

static int try_take(sem_t *semaphore) {
    uint32_t *value = (uint32_t *)semaphore, found = __atomic_load_n(value, __ATOMIC_ACQUIRE);
    return found > 0 && __atomic_compare_exchange_n(value, &found, found - 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static void give(sem_t *semaphore) { __atomic_fetch_add((uint32_t *)semaphore, 1, __ATOMIC_RELEASE); }

/* proc_alive: a zombie is dead, and a number that is in use again is alive. */
static int is_alive(int32_t pid) {
    char name[64], line[256], *state = NULL;
    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    int file = open(name, O_RDONLY | O_CLOEXEC);
    if (file < 0) return 0;
    ssize_t length = read(file, line, sizeof line - 1);
    close(file);
    if (length > 0) {
        line[length] = '\0';
        state = strrchr(line, ')');
    }
    return state == NULL || strchr("ZXx", state[2]) == NULL;
}

/* lock_shrreg, lock_postinit: what comes free, or belongs to a dead owner, is taken; for all else the library would hang. */
static void take(sem_t *semaphore, const char *name) {
    const struct timespec millisecond = {0, 1000000};
    for (int waited = 0; !try_take(semaphore); waited++) {
        if (waited < PATIENCE) {
            nanosleep(&millisecond, NULL);
        } else if (region->owner != 0 && !is_alive((int32_t)region->owner)) {
            return;
        } else {
            printf("error=hang %s: semaphore %s is 0\n", path, name);
            end();
        }
    }
}

/* --- slots --- */

/* clear_proc_slot_nolock: those that were left orderly, and up to ten whose process is dead. */
static int drop_dead(void) {
    int dropped = 0, dead = 0;
    for (int i = 0; i < region->process_count;) {
        struct slot_a *slot = &region->slots[i];
        if (slot->pid != 0 && (dead >= 10 || is_alive(slot->pid))) {
            i++;
            continue;
        }
        dead += slot->pid != 0;
        dropped = 1;
        struct slot_a *last = &region->slots[--region->process_count];
        if (own == last) own = slot;
        *slot = *last;
        memset(last, 0, sizeof *last);
    }
    return dropped;
}

/* init_proc_slot_withlock: a slot with this PID is taken for this process's own and emptied. */
static void take_slot(void) {
    own_pid = getpid();
    take(&region->lock, "lock");
    region->owner = (uint64_t)own_pid;
    int i = 0;
    while (i < region->process_count && region->slots[i].pid != own_pid) i++;
    if (i == SLOTS) end();
    if (i == region->process_count) region->process_count++;
    own = &region->slots[i];
    memset(own, 0, sizeof *own);
    own->pid = own_pid;
    own->status = 1;
    drop_dead();
    region->owner = 0;
    give(&region->lock);
}

static uint64_t used(int gpu) {
    uint64_t sum = 0;
    for (int i = 0; i < region->process_count; i++) sum += region->slots[i].used[gpu].total;
    return sum;
}

/* oom_check, on the first GPU; like there, slots are looked through only when it does not fit. */
static int allocate(uint64_t bytes) {
    while (region->memory[0] != 0 && used(0) + bytes > region->memory[0])
        if (!drop_dead()) return 0;
    own->used[0].total += bytes;
    own->used[0].data += bytes;
    return 1;
}

/* exit_handler; not called when a process is killed, executes another program or calls _exit. */
__attribute__((destructor)) static void leave_slot(void) {
    if (own == NULL || own_pid != getpid()) return;
    own->pid = 0;
    own->status = 0;
}

/* --- the region --- */

/* try_create_shrreg, where nobody was before. */
static void initialise(const uint64_t *memory, const uint64_t *cores) {
    const char *priority = getenv("CUDA_TASK_PRIORITY");
    region->major = MAJOR;
    region->minor = MINOR;
    memcpy(region->memory, memory, sizeof region->memory);
    memcpy(region->cores, cores, sizeof region->cores);
    make_free(&region->lock);
#if MINOR >= 2
    make_free(&region->start_lock);
#endif
    region->utilization_switch = 1;
    region->recent_kernel = 2;
    region->process_count = 0;
    region->priority = priority ? atoi(priority) : 1;
    __atomic_store_n(&region->magic, REGION_MAGIC, __ATOMIC_RELEASE);
}

/* try_create_shrreg */
static void join_region(const uint64_t *memory, const uint64_t *cores) {
    path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (path == NULL) path = DEFAULT_PATH;
    umask(0);
    int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0) fail("open");
    off_t size = lseek(file, 0, SEEK_END), expected = sizeof *region + 1;
    if (lseek(file, sizeof *region, SEEK_SET) < 0 || write(file, "", 1) != 1) fail("extend");
    region = mmap(NULL, sizeof *region, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED) fail("map");
    lseek(file, 0, SEEK_SET);
    if (lockf(file, F_LOCK, sizeof *region) != 0) fail("lock");
    int first = __atomic_load_n(&region->magic, __ATOMIC_ACQUIRE) != REGION_MAGIC;
    if (first) initialise(memory, cores);
    lseek(file, 0, SEEK_SET);
    if (lockf(file, F_ULOCK, sizeof *region) != 0) fail("unlock");
    printf("cache=%s\ncache.first=%d\n", path, first);
    /* The library says the one, does not see the other, and goes on. */
    if (region->major != MAJOR || region->minor != MINOR)
        printf("error=version %s: %u.%u instead of %d.%d\n", path, region->major, region->minor, MAJOR, MINOR);
    else if (!first && size != expected)
        printf("error=size %s: %lld instead of %lld bytes\n", path, (long long)size, (long long)expected);
    take_slot();
#if MINOR >= 2
    take(&region->start_lock, "start_lock");
    give(&region->start_lock);
#endif
}

static void show_region(const uint64_t *memory, const uint64_t *cores) {
    show_numbers("memory", region->memory, UINT64_MAX);
    show_numbers("cores", region->cores, 100);
    int equal = !memcmp(region->memory, memory, sizeof region->memory) && !memcmp(region->cores, cores, sizeof region->cores);
    printf("consistent=%d\n", equal);
    for (int i = 0; i < GPUS; i++)
        if (region->uuids[i][0]) printf("uuid.%d=%.*s\n", i, UUID_BYTES, region->uuids[i]);
    show_number("region.devices", region->device_count);
    printf("region.priority=%d\nregion.switch=%d\nregion.recent_kernel=%d\n", region->priority, region->utilization_switch,
           region->recent_kernel);
    printf("pid=%d\nprocesses=%d\n", (int)own_pid, region->process_count);
    uint64_t usage[GPUS];
    for (int i = 0; i < GPUS; i++) usage[i] = used(i);
    show_numbers("used", usage, UINT64_MAX);
}

__attribute__((constructor)) static void report(void) {
    const char *wanted = getenv("VGPU_REPORT"), *mib = getenv("VGPU_ALLOC");
    if (wanted == NULL || strcmp(wanted, "1") != 0) return;
    uint64_t memory[GPUS], cores[GPUS];
    for (int i = 0; i < GPUS; i++) {
        memory[i] = limit("CUDA_DEVICE_MEMORY_LIMIT", i);
        cores[i] = limit("CUDA_DEVICE_SM_LIMIT", i);
        if (cores[i] == 0) cores[i] = 100;
    }
    printf("loaded=1\nuid=%d\n", (int)getuid());
    /* The library opens itself by this path, wherever it was preloaded from (libvgpu.c:99). */
    printf("own_path=%d\n", access(OWN_PATH, R_OK | X_OK) == 0);
    show("order", "CUDA_DEVICE_ORDER", "");
    show("visible", "CUDA_VISIBLE_DEVICES", "");
    show("nvidia_visible", "NVIDIA_VISIBLE_DEVICES", "");
    show("policy", "GPU_CORE_UTILIZATION_POLICY", "");
    show("priority", "CUDA_TASK_PRIORITY", "1");
    show("log_level", "LIBCUDA_LOG_LEVEL", "2");
    /* Releases up to 2.8.0 try this until it works: whoever made the file has the lock (utils.c:15). */
    int lock = open(LOCK_PATH, O_RDWR | O_CREAT | O_EXCL, 0666);
    printf("lock=%d\n", lock >= 0 || errno == EEXIST);
    if (lock >= 0) {
        unlink(LOCK_PATH);
        close(lock);
    }
    join_region(memory, cores);
    show_region(memory, cores);
    if (mib != NULL) printf("alloc=%d\n", allocate(strtoul(mib, NULL, 10) << 20));
    fflush(stdout);
}
