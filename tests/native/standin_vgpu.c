/* Stands for HAMi-core's libvgpu.so in tests: preloaded into a container, it shows which limits it would keep.
 *
 * Silent unless VGPU_REPORT=1; then it prints `key=value` lines to stdout when the program starts and lets it go on. It does
 * what the library does at the first CUDA call, by the same rules (HAMi-core 8f3a89c, src/multiprocess/
 * multiprocess_memory_limit.c): parses the limits, makes or joins the shared region, where the first writer's limits stay,
 * and ends the program when the region can't be made.
 *
 *     gcc -std=c11 -shared -fPIC -O2 -Wall -Wextra -Werror -o libvgpu.so standin_vgpu.c
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
#include <unistd.h>

#define DEVICES 16
#define MAGIC 19920718
#define REGION_SIZE 2008952 /* layout 1.2; the file is one byte longer */
#define OWN_PATH "/usr/local/vgpu/libvgpu.so"
#define LOCK_PATH "/tmp/vgpulock/lock"

/* The start of layout 1.2; offsets 64, 1600 and 1728 follow from it. */
struct region {
    int32_t magic;
    uint32_t major, minor;
    int32_t sm_init;
    uint64_t owner;
    unsigned char semaphore[32];
    uint64_t device_count;
    char uuids[DEVICES][96];
    uint64_t memory[DEVICES], cores[DEVICES];
};

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

static void fail(const char *what, const char *path) {
    printf("error=%s %s: %s\n", what, path, strerror(errno));
    fflush(stdout);
    _exit(EXIT_FAILURE);
}

/* try_create_shrreg */
static void join_region(const uint64_t *memory, const uint64_t *cores) {
    const char *path = getenv("CUDA_DEVICE_MEMORY_SHARED_CACHE");
    if (path == NULL) path = "/tmp/cudevshr.cache";
    umask(0);
    int file = open(path, O_RDWR | O_CREAT, 0666);
    if (file < 0) fail("open", path);
    if (lseek(file, REGION_SIZE, SEEK_SET) != REGION_SIZE || write(file, "", 1) != 1) fail("extend", path);
    struct region *region = mmap(NULL, REGION_SIZE, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (region == MAP_FAILED) fail("map", path);
    lseek(file, 0, SEEK_SET);
    if (lockf(file, F_LOCK, REGION_SIZE) != 0) fail("lock", path);
    int first = region->magic != MAGIC;
    if (first) {
        region->major = 1;
        region->minor = 2;
        memcpy(region->memory, memory, sizeof region->memory);
        memcpy(region->cores, cores, sizeof region->cores);
        __atomic_store_n(&region->magic, MAGIC, __ATOMIC_RELEASE);
    }
    printf("cache=%s\ncache.first=%d\n", path, first);
    for (int i = 0; i < DEVICES; i++) {
        if (region->memory[i]) printf("memory.%d=%llu\n", i, (unsigned long long)region->memory[i]);
        if (region->cores[i] && region->cores[i] < 100) printf("cores.%d=%llu\n", i, (unsigned long long)region->cores[i]);
    }
    printf("consistent=%d\n", !memcmp(region->memory, memory, sizeof region->memory) && !memcmp(region->cores, cores, sizeof region->cores));
    munmap(region, REGION_SIZE);
    close(file);
}

__attribute__((constructor)) static void report(void) {
    const char *wanted = getenv("VGPU_REPORT");
    if (wanted == NULL || strcmp(wanted, "1") != 0) return;
    uint64_t memory[DEVICES], cores[DEVICES];
    for (int i = 0; i < DEVICES; i++) {
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
    fflush(stdout);
}
