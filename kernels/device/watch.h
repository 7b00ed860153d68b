/* The condition of a device: memory, utilisation, temperature, power, memory errors, and why its
 * clock is held down.
 *
 *     struct watch *w = watch_new(dev, threads);
 *     watch_read(w, &state);                 // any one thread at a time, ms to seconds
 *     watch_free(w);
 *
 * A CUDA device is asked through NVML (libnvidia-ml.so.1, opened with the first watch_read)
 * and found by its PCI address, so CUDA_VISIBLE_DEVICES does not matter.  For a CPU /proc gives
 * this process's resident memory, and the share of the device's threads that it kept busy since
 * the last read.  Unknown values are marked so; if a device cannot be asked, `trouble` says
 * why.  Nothing here fails. */
#ifndef KERNELS_DEVICE_WATCH_H
#define KERNELS_DEVICE_WATCH_H

#include "kernels/watch_state.h"

struct device;
struct watch;

/* dev is read, not kept.  threads: of a CPU, the threads with which this process computes. */
struct watch *watch_new(const struct device *dev, int threads);
void watch_free(struct watch *w); /* accepts NULL */

void watch_read(struct watch *w, struct watch_state *ret);

#endif
