/* See installed_file.h.
 *
 * The content is looked at, since nothing else tells of a file that was overwritten. Only root can write it, so this is against
 * accidents, and a fast checksum is enough for that: zlib's Adler-32. */
#define _GNU_SOURCE
#include "installed_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIGITS 8
#define MODULUS 65521
#define STEP 16
#define BLOCK (346 * STEP) /* after more bytes than 5552 the sums could overflow */

struct adler {
    uint32_t sum, sums;
};

/* Several bytes in a step, so that the next ones don't wait for each sum: in half the time. */
static void add(struct adler *to, const unsigned char *data, size_t size) {
    uint32_t sum = to->sum, sums = to->sums;
    for (; size >= STEP; size -= STEP, data += STEP) {
        uint32_t step = 0, weighted = 0;
        for (uint32_t i = 0; i < STEP; i++) {
            step += data[i];
            weighted += (STEP - i) * data[i];
        }
        sums += STEP * sum + weighted;
        sum += step;
    }
    for (; size > 0; size--, data++) sums += sum += *data;
    *to = (struct adler){sum % MODULUS, sums % MODULUS};
}

static const char *content_defect(int file, uint32_t wanted, unsigned long long size) {
    static unsigned char data[16 * BLOCK];
    struct adler adler = {1, 0};
    unsigned long long done = 0;
    ssize_t length;
    while ((length = read(file, data, sizeof data)) > 0 && (done += (size_t)length) <= size)
        for (ssize_t at = 0; at < length; at += BLOCK) add(&adler, data + at, (size_t)(length - at < BLOCK ? length - at : BLOCK));
    if (length < 0) return strerror(errno);
    return done == size && (adler.sums << 16 | adler.sum) == wanted ? NULL : "its content is another one";
}

static const char *defect(const char *path, uint32_t wanted, unsigned long long size) {
    struct stat found;
    const char *wrong;
    int file = open(path, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
    if (file < 0) return strerror(errno);
    if (fstat(file, &found) != 0)
        wrong = strerror(errno);
    else if (!S_ISREG(found.st_mode))
        wrong = "it is no regular file";
    else if (!(found.st_mode & S_IROTH))
        wrong = "not everybody may read it";
    else if ((unsigned long long)found.st_size != size)
        wrong = (unsigned long long)found.st_size < size ? "it is cut short" : "it is too long";
    else
        wrong = content_defect(file, wanted, size);
    close(file);
    return wrong;
}

const char *file_defect(const char *wanted, const char **path) {
    char *end;
    unsigned long sum = strtoul(wanted, &end, 16);
    *path = NULL;
    if (end != wanted + DIGITS || *end != ':') return "no checksum";
    const char *digits = end + 1;
    unsigned long long size = strtoull(digits, &end, 10);
    if (end == digits || *digits < '0' || *digits > '9' || *end != ':' || end[1] != '/') return "no size";
    *path = end + 1;
    return defect(*path, (uint32_t)sum, size);
}
