/* The memory that a process may still take: the least of the machine's, its control groups' and its
 * own limits' (ulimit -v, ulimit -d).  Page cache that can be dropped counts as free in the first
 * two. */
#ifndef KERNELS_CPU_MEMORY_H
#define KERNELS_CPU_MEMORY_H

#include <stdint.h>

struct device;

/* Reads /proc and /sys below root ("" except in tests).  -ERR_DEVICE: they say nothing. */
int cpu_memory_read(const char *root, uint64_t *ret_free, uint64_t *ret_total);
/* The same as an entry of the table. */
int cpu_memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total);

#endif
