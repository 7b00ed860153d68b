/* CPU devices; for kernels/device. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include <stdbool.h>

struct device;
struct err;

/* The most threads of a device. */
enum { CPU_THREADS_MAX = 256 };

/* Opens "cpu" (fast) or "cpu-ref". */
int cpu_device_open(bool reference, int threads, struct device **ret_dev, struct err *err);
void cpu_device_close(struct device *dev);

#endif
