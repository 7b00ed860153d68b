/* A device with little memory: it counts what it gave, refuses beyond a limit, and says so.  What
 * was allocated before its operations were taken must not be freed by them. */
#ifndef TESTS_UNIT_WORKER_SMALL_MEMORY_H
#define TESTS_UNIT_WORKER_SMALL_MEMORY_H

#include <errno.h>

#include "common/base/err.h"
#include "kernels/kernels.h"

static const struct kernel_ops *cpu;
static uint64_t says, gives, given; /* free before anything is given; for real; by now */
static uint64_t peak;               /* was given at a time */
static unsigned refusals;

static inline int small_memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    *ret_free = says > given ? says - given : 0;
    return 0;
}

static inline int small_alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    uint64_t *p = NULL;
    if (given + bytes > gives) {
        refusals++;
        return err_set(err, -ENOMEM, "full");
    }
    int rc = cpu->alloc(dev, bytes + 64, (void **)&p, err);
    if (rc < 0)
        return rc;
    given += *p = bytes;
    peak = given > peak ? given : peak;
    *ret = (char *)p + 64;
    return 0;
}

static inline void small_free(struct device *dev, void *p)
{
    if (!p)
        return;
    uint64_t *head = (uint64_t *)(void *)((char *)p - 64);
    given -= *head;
    cpu->free(dev, head);
}

/* Gives the device these operations, in *ops, with `memory` bytes. */
static inline void small_begin(struct device *dev, struct kernel_ops *ops, uint64_t memory)
{
    cpu = dev->ops;
    *ops = *cpu;
    ops->memory = small_memory;
    ops->alloc = small_alloc;
    ops->free = small_free;
    dev->ops = ops;
    says = gives = memory;
    given = peak = refusals = 0;
}

#endif
