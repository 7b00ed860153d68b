/* Starting this program again in its place: a device that broke (CUDA's errors are sticky)
 * works again only in a new process.  The process id, the arguments and the work directory
 * stay, so the worker keeps its identity and goes on in the middle of its phase.
 *
 * When it has done so is kept in the environment (SKERRY_RESTARTS), which outlives execve:
 * at most RESTART_MAX times in RESTART_WINDOW_MS. */
#ifndef WORKER_RESTART_H
#define WORKER_RESTART_H

#include "common/base/base.h"

#define RESTART_MAX 3
#define RESTART_WINDOW_MS (UINT64_C(10) * 60 * 1000)
#define RESTART_TIMES_MAX 128 /* bytes of the list, terminated */

/* times: when it was done before, "ms,ms,..." of clock_now_ms, or NULL; what is malformed or
 * in the future counts for nothing.  True: once more is fine; ret_times is the list with now_ms,
 * and *ret_n the restarts in it.  False: *ret_n is RESTART_MAX.  Pure. */
bool restart_allowed(const char *times, uint64_t now_ms, char ret_times[RESTART_TIMES_MAX],
                     unsigned *ret_n);

/* Has this process taken the place of one whose device broke? */
bool restart_happened(void);

/* Takes the place of this process with the same program, or says why not: -EBUSY when it was
 * done too often.  What must be closed in order has been; other threads end here. */
int restart_self(char **argv, struct err *err);

#endif
