/* Renews the shared region of a container before its first process runs: a createRuntime hook, on the host.
 *
 *     hami-region-hook --template FILE --region FILE --claim NAMESPACE/NAME [--pod UID]...   <STATE
 *
 * HAMi-core keeps a container's limits and memory use in this file, and whoever ran before has written to it: a process
 * that was killed would count for ever, and limits that a container changed would stay. So at each start, restarts
 * included, of which the driver hears nothing, the content is replaced by the template's. The file itself stays, since
 * the runtime has mounted it already. A region that a process still uses is never touched.
 *
 * Exit status 0; or 1, and one line on stderr that the runtime makes part of its error: the container does not start, the
 * kubelet shows the line in an event of the pod and tries again. Nothing here needs a shell, /proc, an environment or a
 * heap, and nothing waits: no open and no lock can block, and an alarm ends it before the runtime's time-out would.
 *
 * Trusted are the arguments, the template, and the folders of both files. Not trusted is the region: a container can
 * give it any content, size, owner and mode. Who reads regions meanwhile has to use read(2), since a mapped one shrinks at
 * first.
 *
 *     gcc -std=c11 -static -O2 -Wall -Wextra -Werror -o hami-region-hook hami_region_hook.c container_state.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "container_state.h"

#ifndef SECONDS
#define SECONDS 8 /* the CDI spec gives it 10 */
#endif
#define MAGIC 19920718

/* What the files of HAMi-core's layouts measure: 1.2 and 1.1, and v0. A template of another size was cut short, and programs
 * hang on such a region. 2008985, of version 2.8.1, is missing on purpose: that one keeps no limits. */
static const off_t SIZES[] = {2008953, 1197897};

static const char *template_path, *region_path, *claim;
static char *const *arguments;

/* One line of all words, whatever is in them. Does only what a signal handler may do. */
#define FAIL(...) fail((const char *const[]){__VA_ARGS__, NULL})

static _Noreturn void fail(const char *const *words) {
    static char line[2048] = "hami-region-hook: ";
    size_t length = strlen(line);
    for (; *words != NULL; words++)
        for (const char *c = *words; *c != '\0' && length < sizeof line - 1; c++)
            line[length++] = *c >= ' ' && *c <= '~' ? *c : '?';
    line[length++] = '\n';
    (void)!write(STDERR_FILENO, line, length);
    _exit(EXIT_FAILURE);
}

static void too_slow(int signal) {
    (void)signal;
    FAIL("claim ", claim, ": renewing ", region_path, " took too long; look for a slow or full disk on the node");
}

static _Noreturn void fail_file(const char *what, const char *path, const char *why) {
    FAIL("claim ", claim, ": ", what, " ", path, ": ", why, "; delete the pod, so that its claim is prepared anew");
}

static _Noreturn void fail_writing(int error) {
    FAIL("claim ", claim, ": ", region_path, " can't be written: ", strerror(error), "; free space on the node's disk");
}

static _Noreturn void fail_in_use(void) {
    FAIL("claim ", claim, ": a process still has ", region_path, " open for writing, so another container of this claim runs ",
         "or is ending; this one starts after its end. On the node, `fuser -v` with that path names the process");
}

static _Noreturn void fail_state(const char *error) {
    FAIL("claim ", claim, ": ", error, "; report this with name and version of the node's container runtime");
}

/* The container must be of a pod that the claim was prepared for. When none is named, any will do. */
static void check_pod(const char *uid) {
    int named = 0;
    for (char *const *option = arguments; *option != NULL; option += 2) {
        if (strcmp(option[0], "--pod") != 0) continue;
        if (strcmp(option[1], uid) == 0) return;
        named = 1;
    }
    if (named)
        FAIL("claim ", claim, " is prepared for another pod than this one with UID ", uid, "; give each pod a claim of its ",
             "own, as a ResourceClaimTemplate does, or set allowSharedContainers in the claim's GpuConfig");
}

static void check_state(void) {
    const struct container_state *state = read_state();
    for (size_t i = 0; i < state->pod_count; i++) check_pod(state->pods[i]);
    if (state->error != NULL) fail_state(state->error);
}

/* A regular file, never through a link, without waiting for a FIFO's other end or for the holder of a lease. */
static int open_file(const char *what, const char *path, int mode, struct stat *found) {
    int file = open(path, mode | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0 && errno == EWOULDBLOCK) fail_in_use();
    if (file < 0 || fstat(file, found) != 0) fail_file(what, path, strerror(errno));
    if (!S_ISREG(found->st_mode)) fail_file(what, path, "it is no regular file");
    return file;
}

static int open_template(off_t *size) {
    struct stat found;
    int32_t magic = 0;
    int file = open_file("template", template_path, O_RDONLY, &found), known = 0;
    if ((found.st_mode & (S_IWGRP | S_IWOTH)) || (found.st_uid != 0 && found.st_uid != geteuid()))
        fail_file("template", template_path, "others than root can write to it");
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++) known |= found.st_size == SIZES[i];
    if (!known) fail_file("template", template_path, "it is cut short, or of a size that no region has");
    if (pread(file, &magic, sizeof magic, 0) != sizeof magic || magic != MAGIC)
        fail_file("template", template_path, "it does not begin as an initialised region does");
    *size = found.st_size;
    return file;
}

static int lease(int file, int kind) {
    if (fcntl(file, F_SETLEASE, kind) == 0) return 1;
    if (errno == EAGAIN) return 0;
    FAIL("claim ", claim, ": no lease on ", region_path, ": ", strerror(errno), "; the driver's --hami-dir has to be on a local ",
         "file system (ext4, xfs, btrfs, tmpfs) with sysctl fs.leases-enable=1, and container runtimes need root's rights");
}

/* The region, open for writing, when no other process has it open or mapped for writing. */
static int open_region(struct stat *found) {
    /* The write lease is only for one who alone has the file open, and who opens it later has to wait until we are done. */
    int file = open_file("region", region_path, O_RDWR, found);
    if (lease(file, F_WRLCK)) return file;
    close(file);
    /* So somebody has it open. A monitor, which only reads, must not keep a container from starting, and the read lease is
     * for one who shares the file with readers only. Our own opening for writing would break it, so it ends before. In
     * between are microseconds in which a process could open the file unseen, but it would have to be in a container that
     * has it mounted: the starting one has no process yet, all processes of those before it have ended, and the driver
     * lets no two have it at the same time. */
    file = open_file("region", region_path, O_RDONLY, found);
    if (!lease(file, F_RDLCK)) fail_in_use();
    fcntl(file, F_SETLEASE, F_UNLCK);
    close(file);
    return open_file("region", region_path, O_RDWR, found);
}

static void write_all(int file, const void *data, size_t size, off_t at) {
    ssize_t done = pwrite(file, data, size, at);
    if (done != (ssize_t)size) fail_writing(done < 0 ? errno : ENOSPC);
}

/* The template's next part; how long it is. */
static size_t read_template(int file, unsigned char *block, size_t room, off_t at, off_t size) {
    size_t length = size - at < (off_t)room ? (size_t)(size - at) : room;
    if (pread(file, block, length, at) != (ssize_t)length) fail_file("template", template_path, "it can't be read to its end");
    return length;
}

/* As the driver made it, so that any user can use it. */
static void restore_owner_and_mode(int region, const struct stat *found) {
    int other = found->st_uid != geteuid() || found->st_gid != getegid();
    if ((other && fchown(region, geteuid(), getegid()) != 0) || ((found->st_mode & 07777) != 0666 && fchmod(region, 0666) != 0))
        fail_file("region", region_path, strerror(errno));
}

/* Drop everything, so that nothing a container put there stays on the disk; write what is not zero; last what makes it count. */
static void renew(int region, int template, off_t size) {
    static unsigned char block[16384], written[sizeof block];
    static const unsigned char zeros[sizeof block];
    const int32_t magic = MAGIC;
    /* One byte stays: ext4 takes a file that was emptied for one that is being replaced, and would bring it to the disk when it
     * is closed (auto_da_alloc), which takes longer than all the rest. */
    if (ftruncate(region, 1) != 0 || ftruncate(region, size) != 0) fail_writing(errno);
    for (off_t at = 0; at < size; at += (off_t)sizeof block) {
        size_t length = read_template(template, block, sizeof block, at, size);
        if (at == 0) memset(block, 0, sizeof magic);
        if (memcmp(block, zeros, length) != 0) write_all(region, block, length, at);
    }
    write_all(region, &magic, sizeof magic, 0);
    for (off_t at = 0; at < size; at += (off_t)sizeof block) {
        size_t length = read_template(template, block, sizeof block, at, size);
        if (pread(region, written, sizeof written, at) != (ssize_t)length || memcmp(block, written, length) != 0)
            fail_file("region", region_path, "it is not as it was written, so another process writes to it");
    }
}

static void read_arguments(int count) {
    for (int i = 0; i < count; i += 2) {
        const char **value = strcmp(arguments[i], "--template") == 0 ? &template_path
                             : strcmp(arguments[i], "--region") == 0 ? &region_path
                             : strcmp(arguments[i], "--claim") == 0  ? &claim
                                                                     : NULL;
        int expected = value ? *value == NULL : strcmp(arguments[i], "--pod") == 0;
        if (!expected || arguments[i + 1] == NULL || *arguments[i + 1] == '\0')
            FAIL("can't use ", arguments[i], " here; the CDI spec that calls this and the program are of different versions");
        if (value) *value = arguments[i + 1];
    }
    if (!template_path || !region_path || !claim)
        FAIL("usage: hami-region-hook --template FILE --region FILE --claim NAMESPACE/NAME [--pod UID]... <STATE");
}

static void prepare_signals(void) {
    static const int told_by_errors[] = {SIGIO, SIGPIPE, SIGXFSZ}; /* a broken lease, and limits */
    sigset_t none;
    for (size_t i = 0; i < sizeof told_by_errors / sizeof *told_by_errors; i++) signal(told_by_errors[i], SIG_IGN);
    signal(SIGALRM, too_slow);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    alarm(SECONDS);
}

int main(int argc, char **argv) {
    off_t size;
    struct stat found;
    if (fcntl(STDERR_FILENO, F_GETFD) < 0) _exit(EXIT_FAILURE); /* or a message could go into the next file that is opened */
    arguments = argv + (argc > 0);
    read_arguments(argc - 1);
    prepare_signals();
    check_state();
    int template = open_template(&size);
    int region = open_region(&found);
    restore_owner_and_mode(region, &found);
    renew(region, template, size);
    return EXIT_SUCCESS; /* which closes the region, and the lease ends */
}
