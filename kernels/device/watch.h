/* How a device is: memory, utilisation, temperature, power, memory errors, and why its clock
 * is held down.
 *
 *     struct watch *w = watch_new(dev, threads);
 *     watch_read(w, &state);                 // any one thread at a time, ms to seconds
 *     watch_free(w);
 *
 * A CUDA device is asked through NVML (libnvidia-ml.so.1, opened with the first watch_read),
 * found by its PCI address, so that CUDA_VISIBLE_DEVICES does not matter.  A CPU is what
 * /proc says of this process: its resident memory and the share of the device's threads
 * that it kept busy since the read before.  What is not known is marked so; a device that
 * cannot be asked says why in `trouble`.  Nothing here fails. */
#ifndef KERNELS_DEVICE_WATCH_H
#define KERNELS_DEVICE_WATCH_H

#include "kernels/watch_state.h"

struct device;
struct watch;

/* dev is only looked at, not kept.  threads: of a CPU, that this process computes with. */
struct watch *watch_new(const struct device *dev, int threads);
void watch_free(struct watch *w); /* accepts NULL */

void watch_read(struct watch *w, struct watch_state *ret);

#endif
