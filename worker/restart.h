/* Restarts this program in place: a device that broke (CUDA's errors are sticky) works again
 * only in a new process.  The process id, the arguments and the work directory stay, so the
 * worker keeps its identity and continues in the middle of its phase.
 *
 * The times of restarts are kept in the environment (SKERRY_RESTARTS), which outlives execve: at
 * most RESTART_MAX in RESTART_WINDOW_MS.  A device that hangs takes long to be found out, so
 * another restart after a hang is allowed only if there were fewer in RESTART_HUNG_WINDOW_MS. */
#ifndef WORKER_RESTART_H
#define WORKER_RESTART_H

#include "common/base/base.h"

#define RESTART_MAX 3
#define RESTART_WINDOW_MS (UINT64_C(10) * 60 * 1000)
#define RESTART_HUNG_WINDOW_MS (UINT64_C(3) * 60 * 60 * 1000)
#define RESTART_TIMES_MAX 128 /* bytes of the list, terminated */

/* times: of earlier restarts, "ms,ms,..." by clock_now_ms, or NULL; malformed and future ones are
 * ignored.  True: another restart is allowed; ret_times is the list with now_ms, of the last
 * RESTART_MAX, and *ret_n says how many are in window_ms.  False: *ret_n is RESTART_MAX.  Pure. */
bool restart_allowed(const char *times, uint64_t now_ms, uint64_t window_ms,
                     char ret_times[RESTART_TIMES_MAX], unsigned *ret_n);

/* Whether this process has replaced one whose device broke. */
bool restart_happened(void);

/* Replaces this process by the same program, or fails: -EBUSY: too many restarts.  hung: a thread
 * sits in a call of the device.  Else the caller has closed all that must be closed in order; other
 * threads end here. */
int restart_self(char **argv, bool hung, struct err *err);

#endif
