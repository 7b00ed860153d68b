/* The number of processor cores that this process may keep busy: those it may run on (taskset,
 * cpuset), or fewer if a control group bounds its time (docker run --cpus, a Kubernetes limit,
 * systemd's CPUQuota=), since threads beyond that only wait for each other. */
#ifndef COMMON_BASE_CORES_H
#define COMMON_BASE_CORES_H

#include "common/base/base.h"

/* At least 1; a quota of 1.5 cores counts as 2. */
int cores_usable(void);
/* The same for a process that may run on n cores, with /proc and /sys below root. */
int cores_read(const char *root, int n);

#endif
