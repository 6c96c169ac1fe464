/* Which pod is a container of? Found in the state that an OCI runtime gives to its hooks (runtime-spec, runtime.md, "State"). */
#ifndef CONTAINER_STATE_H
#define CONTAINER_STATE_H

#include <stddef.h>

#define POD_UID_MAX 128
#define PODS_MAX 8 /* a runtime writes one or two, which are the same */

struct container_state {
    /* What is wrong with stdin, or NULL. What `pods` has then stood before it. */
    const char *error;
    /* The different UIDs that the state names. One with other characters than printable ASCII equals no real one; one of more than
     * 127 characters is "". */
    size_t pod_count;
    char pods[PODS_MAX][POD_UID_MAX];
};

/* Read the state from stdin, once, to its end or to what is wrong with it. Its size has a bound, and the heap is not used. */
const struct container_state *read_state(void);

#endif
