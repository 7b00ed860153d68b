/* A communicator between cards, through NCCL: ranks are threads, each with a card. */
#ifndef KERNELS_CUDA_COMM_NCCL_H
#define KERNELS_CUDA_COMM_NCCL_H

#include "kernels/comm.h"

/* One for each of devs; as comm_open. */
int comm_nccl_open(struct device *const *devs, int n, struct comm **ret_comms, struct err *err);

#endif
