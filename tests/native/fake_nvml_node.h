/* What the fake libnvidia-ml.so.1 knows: the node's file, the events' file, and who is in a call. Contract: nvml.h. */
#ifndef FAKE_NVML_NODE_H
#define FAKE_NVML_NODE_H

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    UNKNOWN = 999,
    MAX_GPUS = 64,
    MAX_LINKS = 36,
    MAX_RULES = 16,
    MAX_FIELDS = 16,
    MAX_PROCESSES = 32,
    TEXT = 96
};

typedef struct {
    char call[TEXT]; /* `*` is any */
    int code;        /* to fail with; -1: hang instead */
    char path[512];  /* to hang on */
} Rule;

typedef struct {
    Rule all[MAX_RULES];
    int count;
} Rules;

typedef struct {
    unsigned id, value;
} Field;

typedef struct {
    unsigned pid;
    long long memory, busy; /* -1: not told */
} Process;

typedef struct {
    char uuid[TEXT], name[TEXT], bus[TEXT];
    unsigned minor, brand, arch;
    int cc_major, cc_minor, mig;
    unsigned long long memory, used, events, energy;
    int has_rates;
    unsigned rate, memory_rate;
    Process processes[MAX_PROCESSES];
    unsigned process_count;
    char links[MAX_LINKS][TEXT];
    unsigned link_count;
    Field fields[MAX_FIELDS];
    unsigned field_count;
    Rules rules;
    int gone; /* was there when the session began, and isn't in the file any more */
} Gpu;

typedef struct {
    char driver[TEXT];
    int cuda, load;
    Gpu gpus[MAX_GPUS]; /* in the order of the session's begin */
    unsigned gpu_count;
    Rules rules;
} Node;

/* An event: `number uuid type data`. */
typedef struct {
    unsigned long number;
    char uuid[TEXT];
    unsigned long long type, data;
} Event;

extern int opened; /* sessions of this process */
extern Node node;

/* All calls run one at a time, save while they wait for something. */
void take_turn(void);
void end_turn(void *unused);
void wait_a_moment(void);

/* Open the node: the driver's file is held, as the kernel's module is, until `close_node`. */
int open_node(void);
void close_node(void);

/* A call of NVML's begins so: the rest of the function has the turn. */
#define BEGIN(gpu)                                          \
    __attribute__((cleanup(end_turn))) int in_turn_ = 0;    \
    (void)in_turn_;                                         \
    take_turn();                                            \
    do {                                                    \
        int code_ = begin(__func__, gpu);                   \
        if (code_ != SUCCESS)                               \
            return code_;                                   \
    } while (0)

/* What each call begins with: leave a trace, and `go_on`. */
int begin(const char *call, const Gpu *gpu);

/* Read the node's file again if it has become another one, and fail, or hang, if it says so. */
int go_on(const char *call, const Gpu *gpu);

/* The first event with a higher number than `after`; 0 if there is none. */
int next_event(unsigned long after, Event *event);

/* The highest number so far. */
unsigned long last_event(void);
#endif
