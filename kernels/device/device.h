/* Opens devices by name: the one place that knows all kinds.
 *
 *     struct device *dev;
 *     if (device_open("auto", threads, &dev, err) < 0) ...
 *     dev->ops->matmul(dev, &(struct matmul){ ... }, NULL);
 *     device_close(dev); */
#ifndef KERNELS_DEVICE_DEVICE_H
#define KERNELS_DEVICE_DEVICE_H

#include "kernels/kernels.h"

/* Opens a device.  name: "auto" (the best there is), "cpu", "cpu:N" (with N threads), "cpu-ref" or
 * "cuda:N".  threads, for auto and cpu: 0 for one per available core, at most 256.  If there is no
 * such device, err says which there are.  auto logs why it does not use a card that is there. */
int device_open(const char *name, int threads, struct device **ret_dev, struct err *err);

/* Accepts NULL.  All device memory must have been freed before. */
void device_close(struct device *dev);

/* Bytes of the host's memory that this process may have: the least of the machine's, its control
 * groups' and its own limits'; 0: unknown. */
uint64_t device_host_memory(void);
/* Those that it may still take; 0: unknown. */
uint64_t device_host_free(void);

/* The number of cards that "cuda:N" can name, from N = 0 on; 0 without CUDA. */
int device_cards(void);

#endif
