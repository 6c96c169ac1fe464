/* Renews the shared region of a container before its first process runs: a createRuntime hook, on the host.
 *
 *     hami-region-hook [--region FILE --size BYTES [--content OFFSET:HEX]...] [--file ADLER-32:SIZE:PATH]...
 *                      --claim NAMESPACE/NAME [--pod UID]...   <STATE
 *
 * HAMi-core keeps a container's limits and memory use in this file, and whoever ran before has written to it: a process
 * that was killed would count for ever, and limits that a container changed would stay. So at each start, restarts
 * included, of which the driver hears nothing, the content becomes what the arguments say: these pieces, and zeros. The
 * file itself stays, since the runtime has mounted it already. A region that a process still uses is never touched.
 *
 * A container whose library is gone or damaged would run without limits, since the loader goes on without it. So files that
 * keep the limits are compared with what the driver installed, and the container starts only if they are the same.
 *
 * Exit status 0; or 1, and one line on stderr that the runtime makes part of its error: the container does not start, the
 * kubelet shows the line in an event of the pod and tries again. Nothing here needs a shell, /proc, an environment or a
 * heap, and nothing waits: no open and no lock can block, and an alarm ends it before the runtime's time-out would.
 *
 * Trusted are the arguments and the region's folder. Not trusted is the region: a container can give it any content, size,
 * owner, mode and attributes. Who reads regions meanwhile has to use read(2), since a mapped one shrinks at
 * first.
 *
 *     gcc -std=c11 -static -O2 -Wall -Wextra -Werror -o hami-region-hook hami_region_hook.c container_state.c \
 *         installed_file.c
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <linux/magic.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "container_state.h"
#include "installed_file.h"

#ifndef SECONDS
#define SECONDS 8 /* the CDI spec gives it 10 */
#endif
#define MAGIC 19920718
#define MAGIC_SIZE ((off_t)sizeof(int32_t))

/* What the files of HAMi-core's layouts measure: 1.2 and 1.1, and v0. Programs hang on a region of another size. 2008985, of
 * version 2.8.1, is missing on purpose: that one keeps no limits. */
#define LARGEST 2008953
static const off_t SIZES[] = {LARGEST, 1197897};

static const char *region_path, *claim, *size_given;
static unsigned char pristine[LARGEST]; /* what the region has to hold; a page of it costs memory once something is in it */
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
    FAIL("claim ", claim, ": ", region_path ? "renewing " : "looking at its files", region_path ? region_path : "",
         " took too long; look for a slow or full disk on the node");
}

static _Noreturn void fail_file(const char *what, const char *path, const char *why) {
    FAIL("claim ", claim, ": ", what, " ", path, ": ", why, "; delete the pod, so that its claim is prepared anew");
}

/* Of a tmpfs only the containers of the claim have a part. */
static int is_in_memory(int region) {
    struct statfs there;
    return fstatfs(region, &there) == 0 && there.f_type == TMPFS_MAGIC;
}

static _Noreturn void fail_writing(int region, int error) {
    FAIL("claim ", claim, ": ", region_path, " can't be written: ", strerror(error),
         error == ENOSPC && is_in_memory(region) ? "; other containers of the claim fill the memory that it has; delete the pod"
                                                 : "; free space on the node's disk");
}

static _Noreturn void fail_in_use(void) {
    FAIL("claim ", claim, ": a process still has ", region_path, " open for writing, so another container of this claim runs ",
         "or is ending; this one starts after its end. On the node, `fuser -v` with that path names the process");
}

static _Noreturn void fail_state(const char *error) {
    FAIL("claim ", claim, ": ", error, "; report this with name and version of the node's container runtime");
}

static _Noreturn void fail_call(const char *word) {
    FAIL("can't use ", word, " here; the CDI spec that calls this and the program are of different versions");
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

/* The files that keep limits, which the runtime has mounted. */
static void check_files(void) {
    for (char *const *option = arguments; *option != NULL; option += 2) {
        const char *path, *defect = strcmp(option[0], "--file") == 0 ? file_defect(option[1], &path) : NULL;
        if (defect == NULL) continue;
        if (path == NULL) fail_call(option[1]);
        FAIL("claim ", claim, ": ", path, " on the node is not as the driver installed it: ", defect,
             "; programs would run without limits. The driver's daemon puts it back within seconds, and then the container ",
             "starts; if it does not, see that the daemon runs on this node and what its log says");
    }
}

/* A regular file, never through a link, without waiting for a FIFO's other end or for the holder of a lease. */
static int open_file(const char *what, const char *path, int mode, struct stat *found) {
    int file = open(path, mode | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0 && errno == EWOULDBLOCK) fail_in_use();
    if (file < 0 || fstat(file, found) != 0) fail_file(what, path, strerror(errno));
    if (!S_ISREG(found->st_mode)) fail_file(what, path, "it is no regular file");
    return file;
}

/* A number in decimal, no longer than the largest size. */
static off_t number(const char *text, const char **end) {
    off_t value = 0;
    for (*end = text; **end >= '0' && **end <= '9' && value <= LARGEST; (*end)++) value = 10 * value + (**end - '0');
    return value;
}

static off_t read_size(void) {
    const char *end;
    off_t size = number(size_given, &end);
    for (size_t i = 0; i < sizeof SIZES / sizeof *SIZES; i++)
        if (*end == '\0' && size == SIZES[i]) return size;
    FAIL("claim ", claim, ": ", size_given, " bytes is not the size of a region; a newer driver may know it");
}

static int digit(char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* One piece, OFFSET:HEX, goes to its place in `pristine`. */
static void read_piece(const char *piece, off_t size) {
    const char *hex;
    off_t at = number(piece, &hex);
    if (hex == piece || *hex++ != ':') fail_call(piece);
    for (; hex[0] != '\0'; hex += 2, at++) {
        int high = digit(hex[0]), low = high < 0 ? -1 : digit(hex[1]);
        if (low < 0 || at >= size) fail_call(piece);
        pristine[at] = (unsigned char)(high << 4 | low);
    }
}

/* Where a piece that was read begins, and ends. */
static off_t extent(const char *piece, off_t *end) {
    const char *colon;
    off_t at = number(piece, &colon);
    *end = at + (off_t)strlen(colon + 1) / 2;
    return at;
}

static void read_content(off_t size) {
    int32_t magic;
    for (char *const *option = arguments; *option != NULL; option += 2)
        if (strcmp(option[0], "--content") == 0) read_piece(option[1], size);
    memcpy(&magic, pristine, sizeof magic);
    if (magic != MAGIC) FAIL("claim ", claim, ": the content does not begin as an initialised region does");
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
     * lets no two have it at the same time. Two hooks that meet there are told apart by a lock. */
    file = open_file("region", region_path, O_RDONLY, found);
    if (!lease(file, F_RDLCK)) fail_in_use();
    fcntl(file, F_SETLEASE, F_UNLCK);
    close(file);
    file = open_file("region", region_path, O_RDWR, found);
    if (flock(file, LOCK_EX | LOCK_NB) != 0) fail_in_use();
    return file;
}

static void write_all(int file, const void *data, size_t size, off_t at) {
    ssize_t done = pwrite(file, data, size, at);
    if (done != (ssize_t)size) fail_writing(file, done < 0 ? errno : ENOSPC);
}

/* What a container set on it beside owner and mode: an access control list, which would keep the users that it names out of the
 * file or let them in, whatever its mode says; capabilities of a program; and what it stored, which takes room on the disk. */
static int is_containers(const char *attribute) {
    return strcmp(attribute, "system.posix_acl_access") == 0 || strcmp(attribute, "security.capability") == 0 ||
           strncmp(attribute, "user.", strlen("user.")) == 0;
}

static void remove_attributes(int region) {
    static char names[XATTR_LIST_MAX];
    ssize_t size = flistxattr(region, names, sizeof names);
    if (size < 0 && errno != ENOTSUP) fail_file("attributes of region", region_path, strerror(errno));
    for (const char *name = names; name < names + size; name += strlen(name) + 1)
        if (is_containers(name) && fremovexattr(region, name) != 0 && errno != ENODATA)
            fail_file("attributes of region", region_path, strerror(errno));
}

/* As the driver made it, so that any user can use it. */
static void restore_owner_and_mode(int region, const struct stat *found) {
    int other = found->st_uid != geteuid() || found->st_gid != getegid();
    if ((other && fchown(region, geteuid(), getegid()) != 0) || ((found->st_mode & 07777) != 0666 && fchmod(region, 0666) != 0))
        fail_file("region", region_path, strerror(errno));
}

/* Have all blocks, or on a disk that somebody else fills a process that comes to a hole would get SIGBUS. A tmpfs is the claim's own. */
static void reserve(int region, off_t size) {
    int error = is_in_memory(region) ? 0 : posix_fallocate(region, 0, size);
    if (error != 0) fail_writing(region, error);
}

/* Drop everything, so that nothing a container put there stays on the disk; write what is not zero; last what makes it count. */
static void renew(int region, off_t size) {
    /* One byte stays: ext4 takes a file that was emptied for one that is being replaced, and would bring it to the disk when it
     * is closed (auto_da_alloc), which takes longer than all the rest. */
    if (ftruncate(region, 1) != 0 || ftruncate(region, size) != 0) fail_writing(region, errno);
    reserve(region, size);
    for (char *const *option = arguments; *option != NULL; option += 2) {
        if (strcmp(option[0], "--content") != 0) continue;
        off_t end, from = extent(option[1], &end);
        if (from < MAGIC_SIZE) from = MAGIC_SIZE;
        if (from < end) write_all(region, pristine + from, (size_t)(end - from), from);
    }
    write_all(region, pristine, MAGIC_SIZE, 0);
}

static void verify_part(int region, off_t from, off_t to) {
    static unsigned char block[16384];
    while (from < to) {
        size_t length = to - from < (off_t)sizeof block ? (size_t)(to - from) : sizeof block;
        if (pread(region, block, length, from) != (ssize_t)length || memcmp(block, pristine + from, length) != 0)
            fail_file("region", region_path, "it is not as it was written, so another process writes to it");
        from += (off_t)length;
    }
}

/* Whether it is as it was written: the pieces, and whatever else the file system does not know to be a hole. */
static void verify(int region, off_t size) {
    off_t from = 0;
    for (char *const *option = arguments; *option != NULL; option += 2) {
        if (strcmp(option[0], "--content") != 0) continue;
        off_t end, from = extent(option[1], &end);
        verify_part(region, from, end);
    }
    while (from < size) {
        off_t data = lseek(region, from, SEEK_DATA), hole;
        if (data < 0 && errno == ENXIO) return;
        if (data < 0) data = from; /* a file system that knows no holes: all is data */
        hole = lseek(region, data, SEEK_HOLE);
        if (hole <= data || hole > size) hole = size;
        verify_part(region, data, hole);
        from = hole;
    }
}

static void read_arguments(int count) {
    for (int i = 0; i < count; i += 2) {
        const char **value = strcmp(arguments[i], "--region") == 0  ? &region_path
                             : strcmp(arguments[i], "--size") == 0  ? &size_given
                             : strcmp(arguments[i], "--claim") == 0 ? &claim
                                                                    : NULL;
        int often = strcmp(arguments[i], "--pod") == 0 || strcmp(arguments[i], "--content") == 0 ||
                    strcmp(arguments[i], "--file") == 0;
        if (!(value ? *value == NULL : often) || arguments[i + 1] == NULL || *arguments[i + 1] == '\0') fail_call(arguments[i]);
        if (value) *value = arguments[i + 1];
    }
    if (!claim || !region_path != !size_given)
        FAIL("usage: hami-region-hook [--region FILE --size BYTES [--content OFFSET:HEX]...] [--file ADLER-32:SIZE:PATH]... ",
             "--claim NAMESPACE/NAME [--pod UID]... <STATE");
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

static void renew_region(void) {
    struct stat found;
    off_t size = read_size();
    read_content(size);
    int region = open_region(&found);
    remove_attributes(region); /* first: with a list, the mode's bits of the group mean something else */
    restore_owner_and_mode(region, &found);
    renew(region, size);
    verify(region, size);
} /* it is closed at the end, and the lease ends */

int main(int argc, char **argv) {
    if (fcntl(STDERR_FILENO, F_GETFD) < 0) _exit(EXIT_FAILURE); /* or a message could go into the next file that is opened */
    arguments = argv + (argc > 0);
    read_arguments(argc - 1);
    prepare_signals();
    check_state();
    check_files();
    if (region_path != NULL) renew_region();
    return EXIT_SUCCESS;
}
