/* Fills a shared region the way the library's first process does and writes the file's bytes to stdout.
 *
 *     region_layouts LAYOUT SWITCH PRIORITY [UUID BYTES PERCENT]... [use SECONDS [SLOT PID GPU CONTEXT MODULE DATA BUSY]...]
 *                                   the last kernel was at SECONDS (not in layout 0), and slots are as if processes used GPUs
 *     region_layouts sizes          one line for each layout: its name and the sizeof of its region
 *
 *     gcc -std=c11 -O1 -Wall -Wextra -Werror -o region_layouts region_layouts.c -pthread
 */
#include "region_layouts.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int gpus, uses;
static char **given, **used, *last_kernel = "0";

static uint64_t number(const char *text) { return strtoull(text, NULL, 10); }

/* What every layout has; the rest of the region is zero. */
#define FILL(region)                                                        \
    do {                                                                    \
        (region)->magic = REGION_MAGIC;                                     \
        sem_init(&(region)->lock, 1, 1);                                    \
        (region)->device_count = gpus;                                      \
        for (int i = 0; i < GPUS; i++) {                                    \
            if (i < gpus) strcpy((region)->uuids[i], given[3 * i]);         \
            (region)->memory[i] = i < gpus ? number(given[3 * i + 1]) : 0;  \
            (region)->cores[i] = i < gpus ? number(given[3 * i + 2]) : 100; \
        }                                                                   \
        (region)->utilization_switch = atoi(argv[2]);                       \
        (region)->priority = atoi(argv[3]);                                 \
        for (int i = 0; i < uses; i++) {                                    \
            int at = atoi(used[7 * i]), gpu = atoi(used[7 * i + 2]);        \
            (region)->slots[at].pid = atoi(used[7 * i + 1]);                \
            (region)->slots[at].status = 1;                                 \
            (region)->slots[at].used[gpu].context = number(used[7 * i + 3]);\
            (region)->slots[at].used[gpu].module = number(used[7 * i + 4]); \
            (region)->slots[at].used[gpu].data = number(used[7 * i + 5]);   \
            (region)->slots[at].used[gpu].total = number(used[7 * i + 3]) + number(used[7 * i + 4]) + number(used[7 * i + 5]); \
            (region)->slots[at].busy[gpu].sm = number(used[7 * i + 6]);     \
            if (at >= (region)->process_count) (region)->process_count = at + 1; \
        }                                                                   \
    } while (0)

#define VERSION(region, this_minor) \
    (region)->major = 1, (region)->minor = (this_minor), (region)->last_kernel_time = number(last_kernel)

static union {
    struct region_a a;
    struct region_b b;
    struct region_c c;
    struct region_e e;
    unsigned char bytes[sizeof(struct region_a) + 1];
} file;

int main(int argc, char **argv) {
    if (argc == 2 && strcmp(argv[1], "sizes") == 0) {
        printf("1.2 %zu\n1.1 %zu\n1.1-seqlock %zu\n2.8.1 %zu\n0 %zu\n", sizeof(struct region_a), sizeof(struct region_b),
               sizeof(struct region_c), sizeof(struct region_d), sizeof(struct region_e));
        return 0;
    }
    for (int i = 4; i + 1 < argc; i++)
        if (strcmp(argv[i], "use") == 0) {
            last_kernel = argv[i + 1];
            used = argv + i + 2;
            if ((argc - i - 2) % 7) return 2;
            uses = (argc - i - 2) / 7;
            argc = i;
        }
    if (argc < 4 || (argc - 4) % 3 || (argc - 4) / 3 > GPUS) return 2;
    gpus = (argc - 4) / 3;
    given = argv + 4;
    size_t size = sizeof(struct region_a);
    if (strcmp(argv[1], "1.2") == 0) {
        FILL(&file.a);
        VERSION(&file.a, 2);
        sem_init(&file.a.start_lock, 1, 1);
    } else if (strcmp(argv[1], "1.1") == 0) {
        FILL(&file.b);
        VERSION(&file.b, 1);
    } else if (strcmp(argv[1], "1.1-seqlock") == 0) {
        FILL(&file.c);
        VERSION(&file.c, 1);
    } else if (strcmp(argv[1], "0") == 0) {
        FILL(&file.e);
        size = sizeof(struct region_e);
    } else {
        return 2;
    }
    return fwrite(file.bytes, 1, size + 1, stdout) != size + 1; /* the library writes one byte behind the region */
}
