/* See fake_nvml_node.h, and fake_nvml.c for the lines of the files. */
#include "fake_nvml_node.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

int opened;
Node node;

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;
static int load_at_open, module = -1;
static struct stat read_as; /* the node's file */

void take_turn(void)
{
    pthread_mutex_lock(&turn);
}

void end_turn(void *unused)
{
    (void)unused;
    pthread_mutex_unlock(&turn);
}

void wait_a_moment(void)
{
    end_turn(NULL);
    usleep(1000);
    take_turn();
}

static const char *beside_node(const char *suffix)
{
    static char path[512];
    const char *of = getenv("FAKE_NVML_NODE");
    snprintf(path, sizeof path, "%s%s", of ? of : "", suffix);
    return path;
}

static void add_rule(Rules *to, const char *call, int code, const char *path)
{
    if (to->count == MAX_RULES)
        abort();
    Rule *rule = &to->all[to->count++];
    snprintf(rule->call, sizeof rule->call, "%s", call);
    snprintf(rule->path, sizeof rule->path, "%s", path);
    rule->code = code;
}

static void read_line(Node *node, const char *line)
{
    char word[TEXT], call[TEXT], text[512] = "";
    unsigned number;
    int code;
    Gpu *gpu = node->gpu_count ? &node->gpus[node->gpu_count - 1] : NULL;
    Field field;
    Process process;
    Rules *scope = gpu ? &gpu->rules : &node->rules;

    if (sscanf(line, "%95s", word) != 1)
        return;
    if (sscanf(line, "driver %95s", node->driver) == 1 || sscanf(line, "cuda %d", &node->cuda) == 1
        || sscanf(line, "load %d", &node->load) == 1)
        return;
    if (sscanf(line, "fail %95s %d", call, &code) == 2) {
        add_rule(scope, call, code, "");
    } else if (sscanf(line, "hang %95s %511s", call, text) == 2) {
        add_rule(scope, call, -1, text);
    } else if (strcmp(word, "gpu") == 0) {
        if (node->gpu_count == MAX_GPUS)
            abort();
        node->gpus[node->gpu_count++] = (Gpu){.mig = -1, .events = 0xffff};
    } else if (gpu && sscanf(line, "link %u %95s", &number, text) == 2 && number == gpu->link_count && number < MAX_LINKS) {
        snprintf(gpu->links[gpu->link_count++], TEXT, "%.95s", text);
    } else if (gpu && sscanf(line, "field %u %u", &field.id, &field.value) == 2 && gpu->field_count < MAX_FIELDS) {
        gpu->fields[gpu->field_count++] = field;
    } else if (gpu && sscanf(line, "process %u %lld %lld", &process.pid, &process.memory, &process.busy) == 3
               && gpu->process_count < MAX_PROCESSES) {
        gpu->processes[gpu->process_count++] = process;
    } else if (gpu && sscanf(line, "rates %u %u", &gpu->rate, &gpu->memory_rate) == 2) {
        gpu->has_rates = 1;
    } else if (!(gpu
                 && (sscanf(line, "uuid %95s", gpu->uuid) == 1 || sscanf(line, "name %95[^\n]", gpu->name) == 1
                     || sscanf(line, "bus %95s", gpu->bus) == 1 || sscanf(line, "minor %u", &gpu->minor) == 1
                     || sscanf(line, "brand %u", &gpu->brand) == 1 || sscanf(line, "arch %u", &gpu->arch) == 1
                     || sscanf(line, "cc %d %d", &gpu->cc_major, &gpu->cc_minor) == 2
                     || sscanf(line, "energy %llu", &gpu->energy) == 1 || sscanf(line, "mig %d", &gpu->mig) == 1 || sscanf(line, "events %llx", &gpu->events) == 1
                     || sscanf(line, "used %llu", &gpu->used) == 1 || sscanf(line, "memory %llu", &gpu->memory) == 1))) {
        fprintf(stderr, "fake_nvml: can't read this line: %s\n", line);
        abort();
    }
}

static int read_node(Node *into)
{
    char line[1024];
    FILE *file = fopen(beside_node(""), "r");
    if (!file)
        return UNKNOWN;
    memset(into, 0, sizeof *into);
    while (fgets(line, sizeof line, file))
        read_line(into, line);
    fstat(fileno(file), &read_as);
    fclose(file);
    return SUCCESS;
}

/* Handles stay what they are: known GPUs get their new facts in place, and those that are gone are marked. */
static void update_node(void)
{
    static Node fresh;
    struct stat now;
    if (stat(beside_node(""), &now) != 0
        || (now.st_ino == read_as.st_ino && now.st_mtim.tv_nsec == read_as.st_mtim.tv_nsec
            && now.st_mtim.tv_sec == read_as.st_mtim.tv_sec && now.st_size == read_as.st_size)
        || read_node(&fresh) != SUCCESS)
        return;
    for (unsigned i = 0; i < node.gpu_count; i++) {
        Gpu *known = &node.gpus[i];
        known->gone = 1;
        for (unsigned j = 0; j < fresh.gpu_count && known->gone; j++)
            if (strcmp(fresh.gpus[j].uuid, known->uuid) == 0)
                *known = fresh.gpus[j];
    }
    node.rules = fresh.rules;
    node.load = fresh.load;
}

int open_node(void)
{
    int code = read_node(&node);
    if (code != SUCCESS)
        return code;
    load_at_open = node.load;
    module = open(beside_node(".module"), O_RDONLY | O_CREAT | O_CLOEXEC, 0600);
    flock(module, LOCK_SH);
    return SUCCESS;
}

void close_node(void)
{
    close(module);
}

static int obey(const Rules *from, const char *call)
{
    for (int i = 0; i < from->count; i++) {
        Rule rule = from->all[i];
        if (strcmp(rule.call, call) != 0 && strcmp(rule.call, "*") != 0)
            continue;
        if (rule.code >= 0)
            return rule.code;
        while (access(rule.path, F_OK) == 0)
            wait_a_moment();
    }
    return SUCCESS;
}

int begin(const char *call, const Gpu *gpu)
{
    const char *path = getenv("FAKE_NVML_TRACE");
    FILE *trace = path ? fopen(path, "a") : NULL;
    if (trace) {
        fprintf(trace, "%ld %s\n", (long)syscall(SYS_gettid), call);
        fclose(trace);
    }
    return go_on(call, gpu);
}

int go_on(const char *call, const Gpu *gpu)
{
    if (!opened)
        return UNINITIALIZED;
    update_node();
    if (node.load != load_at_open)
        return UNINITIALIZED;
    int code = obey(&node.rules, call);
    if (code == SUCCESS && gpu)
        code = gpu->gone ? GPU_IS_LOST : obey(&gpu->rules, call);
    return code;
}

static int read_event(const char *line, Event *event)
{
    return strchr(line, '\n')
        && sscanf(line, "%lu %95s %llx %llu", &event->number, event->uuid, &event->type, &event->data) == 4;
}

int next_event(unsigned long after, Event *event)
{
    char line[1024];
    int found = 0;
    FILE *file = fopen(beside_node(".events"), "r");
    while (file && !found && fgets(line, sizeof line, file))
        found = read_event(line, event) && event->number > after;
    if (file)
        fclose(file);
    return found;
}

unsigned long last_event(void)
{
    char line[1024];
    Event event = {0};
    FILE *file = fopen(beside_node(".events"), "r");
    while (file && fgets(line, sizeof line, file))
        read_event(line, &event);
    if (file)
        fclose(file);
    return event.number;
}
