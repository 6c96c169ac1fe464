/* A strict reader of JSON (RFC 8259) that looks for two annotations and forgets the rest: see container_state.h. */
#include "container_state.h"

#include <string.h>
#include <unistd.h>

#define STATE_MAX (16u << 20) /* CRI-O repeats all annotations of a pod, of up to 256 KiB, quoted */
#define DEPTH_MAX 64

static unsigned char input[4096];
static size_t input_at, input_end, input_total;
static char text[POD_UID_MAX]; /* the last string */
static struct container_state found;

/* From here on there is no next byte, so whatever reads comes to its end. */
static int bad(void) {
    found.error = "stdin has no container state as OCI's runtime-spec defines it, or more than 16 MiB";
    return -1;
}

/* The next byte, or -1 at the end. */
static int peek(void) {
    if (found.error != NULL) return -1;
    if (input_at == input_end) {
        ssize_t got = read(STDIN_FILENO, input, sizeof input);
        if (got < 0 || (input_total += (size_t)got) > STATE_MAX) return bad();
        if (got == 0) return -1;
        input_at = 0;
        input_end = (size_t)got;
    }
    return input[input_at];
}

static int take(void) {
    int c = peek();
    if (c < 0) return bad();
    input_at++;
    return c;
}

static int peek_token(void) {
    int c;
    while ((c = peek()) == ' ' || c == '\t' || c == '\n' || c == '\r') take();
    return c;
}

static int take_token(void) {
    peek_token();
    return take();
}

static void read_word(const char *word) {
    for (; *word != '\0'; word++)
        if (take() != *word) bad();
}

static int is_digit(int c) { return c >= '0' && c <= '9'; }

static void read_digits(void) {
    if (!is_digit(take())) bad();
    while (is_digit(peek())) take();
}

static void read_number(void) {
    if (peek() == '-') take();
    if (peek() == '0') take();
    else read_digits();
    if (peek() == '.') {
        take();
        read_digits();
    }
    if (peek() == 'e' || peek() == 'E') {
        take();
        if (peek() == '+' || peek() == '-') take();
        read_digits();
    }
}

/* Where a byte is in a string; 0 if it has to be there and is not. */
static int place(const char *string, int c) {
    const char *there = c > '\0' ? strchr(string, c) : NULL;
    if (there != NULL) return (int)(there - string);
    bad();
    return 0;
}

/* What stands behind a backslash. All but printable ASCII becomes DEL, which no name and no UID has. */
static int read_escape(void) {
    int code = 0, c = take();
    if (c != 'u') return "\"\\/\b\f\n\r\t"[place("\"\\/bfnrt", c)];
    for (int i = 0; i < 4; i++) {
        int digit = place("0123456789abcdefABCDEF", take());
        code = code * 16 + (digit < 16 ? digit : digit - 6);
    }
    return code >= ' ' && code <= '~' ? code : 0x7f;
}

static void read_string(void) {
    size_t length = 0;
    if (take_token() != '"') bad();
    for (int c; (c = take()) != '"';) {
        if (c < ' ') {
            bad();
            break;
        }
        if (c == '\\') c = read_escape();
        if (length < sizeof text) text[length++] = (char)c;
    }
    text[length < sizeof text ? length : 0] = '\0';
}

enum part { OTHER, STATE, ANNOTATIONS, POD_UID };

/* What the member of `part` is whose name is in `text`. */
static enum part member_of(enum part part) {
    if (part == STATE && strcmp(text, "annotations") == 0) return ANNOTATIONS;
    /* What containerd writes (pkg/cri/annotations), and a label of the kubelet that CRI-O makes an annotation of the container
     * (internal/factory/container). A pod may be able to forge the one that its runtime doesn't write; so all are noted. */
    if (part == ANNOTATIONS && strcmp(text, "io.kubernetes.cri.sandbox-uid") == 0) return POD_UID;
    if (part == ANNOTATIONS && strcmp(text, "io.kubernetes.pod.uid") == 0) return POD_UID;
    return OTHER;
}

/* Each UID once: a state that repeats one says nothing new. */
static void note_pod(void) {
    for (size_t i = 0; i < found.pod_count; i++)
        if (strcmp(found.pods[i], text) == 0) return;
    if (found.pod_count < PODS_MAX) strcpy(found.pods[found.pod_count++], text);
    else bad();
}

static void read_value(enum part part, int depth);

/* An object or an array, which ends with `end`. */
static void read_members(enum part part, int depth, int end) {
    int c;
    take();
    if (peek_token() == end) {
        take();
        return;
    }
    do {
        enum part member = OTHER;
        if (end == '}') {
            read_string();
            member = member_of(part);
            if (take_token() != ':') bad();
        }
        read_value(member, depth + 1);
        c = take_token();
    } while (c == ',');
    if (c != end) bad();
}

static void read_value(enum part part, int depth) {
    int c = peek_token();
    if (depth > DEPTH_MAX || (part == STATE && c != '{') || (part == POD_UID && c != '"')) c = bad();
    if (part == ANNOTATIONS && c != '{' && c != 'n') c = bad();
    switch (c) {
    case '{': read_members(part, depth, '}'); break;
    case '[': read_members(OTHER, depth, ']'); break;
    case 't': read_word("true"); break;
    case 'f': read_word("false"); break;
    case 'n': read_word("null"); break;
    case '"':
        read_string();
        if (part == POD_UID && found.error == NULL) note_pod();
        break;
    default: read_number();
    }
}

const struct container_state *read_state(void) {
    read_value(STATE, 0);
    if (peek_token() != -1) bad();
    return &found;
}
