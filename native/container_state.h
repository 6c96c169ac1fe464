/* Which pod is a container of? Found in the state that an OCI runtime gives to its hooks (runtime-spec, runtime.md, "State"). */
#ifndef CONTAINER_STATE_H
#define CONTAINER_STATE_H

/* Read the state from stdin, to its end; its size has a bound and nothing of it is kept. Calls the two below. */
void read_state(void);

/* The caller's: each UID of a pod that the state names. One with other characters than printable ASCII equals no real one; one of
 * more than 127 characters is "". */
void check_pod(const char *uid);

/* The caller's: stdin is no such state. */
_Noreturn void bad_state(void);

#endif
