/* Opens communicators (kernels/comm.h) between open devices of either kind. */
#ifndef KERNELS_DEVICE_COMM_OPEN_H
#define KERNELS_DEVICE_COMM_OPEN_H

#include "kernels/comm.h"

/* One for each of devs (n, 1..COMM_RANKS_MAX), which are CPU devices or different cards.  -EINVAL:
 * they are not; -ERR_DEVICE: NCCL is needed and missing; err says what was found. */
int comm_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err);
/* No rank may be in a call.  Accepts NULLs. */
void comm_close(struct comm **comms, int n);

#endif
