/* See fake_gpus.h; part of both libraries. */
#define _GNU_SOURCE
#include "fake_gpus.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER; /* locks of files don't keep threads apart */
static struct gpus *state;
static int file = -1;

static void fail(const char *what) {
    perror(what);
    _exit(70);
}

static void lock_file(int kind) {
    struct flock lock = {.l_type = (short)kind, .l_whence = SEEK_SET};
    while (fcntl(file, F_SETLKW, &lock) != 0)
        if (errno != EINTR) fail("FAKE_GPUS: lock");
}

static void open_state(void) {
    const char *path = getenv("FAKE_GPUS");
    file = open(path ? path : "", O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (file < 0 || ftruncate(file, sizeof *state) != 0) fail("FAKE_GPUS");
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    if (state == MAP_FAILED) fail("FAKE_GPUS: mmap");
}

struct gpus *gpus_lock(void) {
    pthread_mutex_lock(&mutex);
    if (state == NULL) open_state();
    lock_file(F_WRLCK);
    for (struct process *each = state->processes; each < state->processes + PROCESSES; each++)
        if (each->pid != 0 && kill(each->pid, 0) != 0 && errno == ESRCH) memset(each, 0, sizeof *each);
    return state;
}

void gpus_unlock(void) {
    lock_file(F_UNLCK);
    pthread_mutex_unlock(&mutex);
}

struct process *gpus_self(struct gpus *gpus) {
    struct process *own = NULL;
    for (struct process *each = gpus->processes; each < gpus->processes + PROCESSES; each++) {
        if (each->pid == getpid()) return each;
        if (own == NULL && each->pid == 0) own = each;
    }
    if (own == NULL) fail("FAKE_GPUS: too many processes");
    own->pid = getpid();
    return own;
}

uint64_t gpus_used(const struct gpus *gpus, int gpu) {
    uint64_t sum = 0;
    for (const struct process *each = gpus->processes; each < gpus->processes + PROCESSES; each++)
        sum += each->allocated[gpu] + (each->contexts[gpu] > 0 ? CONTEXT : 0);
    return sum;
}

int gpus_count(void) {
    const char *count = getenv("FAKE_GPUS_COUNT");
    return count != NULL && atoi(count) == 1 ? 1 : GPUS;
}

uint64_t gpus_now(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}
