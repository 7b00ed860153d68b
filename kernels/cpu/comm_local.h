/* A communicator between CPU devices: ranks are threads that share their memory. */
#ifndef KERNELS_CPU_COMM_LOCAL_H
#define KERNELS_CPU_COMM_LOCAL_H

#include "kernels/comm.h"

/* One for each of devs; as comm_open. */
int comm_local_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err);

#endif
