/* The kinds of communicators; not for other layers. */
#ifndef KERNELS_COMM_IMPL_H
#define KERNELS_COMM_IMPL_H

#include "kernels/comm.h"

/* Ranks are threads over memory that all of them can reach. */
int comm_local_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err);
/* Ranks are threads, each with a card (kernels/cuda/comm_nccl.c). */
int comm_nccl_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err);

#endif
