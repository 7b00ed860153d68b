/* Restarts this program in place: a device that broke (CUDA's errors are sticky) works again
 * only in a new process.  The process id, the arguments and the work directory stay, so the
 * worker keeps its identity and continues in the middle of its phase.
 *
 * The times of restarts are kept in the environment (SKERRY_RESTARTS), which outlives execve:
 * at most RESTART_MAX in RESTART_WINDOW_MS. */
#ifndef WORKER_RESTART_H
#define WORKER_RESTART_H

#include "common/base/base.h"

#define RESTART_MAX 3
#define RESTART_WINDOW_MS (UINT64_C(10) * 60 * 1000)
#define RESTART_TIMES_MAX 128 /* bytes of the list, terminated */

/* times: of earlier restarts, "ms,ms,..." by clock_now_ms, or NULL; malformed and future ones are
 * ignored.  True: another restart is allowed; ret_times is the list with now_ms, and *ret_n its
 * length.  False: *ret_n is RESTART_MAX.  Pure. */
bool restart_allowed(const char *times, uint64_t now_ms, char ret_times[RESTART_TIMES_MAX],
                     unsigned *ret_n);

/* Whether this process has replaced one whose device broke. */
bool restart_happened(void);

/* Replaces this process by the same program, or fails: -EBUSY: too many restarts.  The caller has
 * closed all that must be closed in order; other threads end here. */
int restart_self(char **argv, struct err *err);

#endif
