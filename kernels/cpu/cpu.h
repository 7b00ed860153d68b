/* Inside of the CPU backend; not for other layers.
 *
 *   device->ops      = the front (front.c): checks arguments, records the profile
 *   cpu_state->inner = the table that does the work: the reference, with fast
 *                      entries put over it according to the CPU (dispatch.c)
 *
 * Inner entries may assume valid arguments. */
#ifndef KERNELS_CPU_CPU_H
#define KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

struct cpu_pool;
struct gemm_kernel;
struct onednn;

struct cpu_state {
    struct kernel_ops inner;
    struct cpu_pool *pool;             /* NULL for the reference */
    const struct gemm_kernel *gemm[2]; /* by dtype; NULL where we have no product of our own */
    struct onednn *onednn;             /* NULL unless the products go there */

    /* Working memory of the operation in progress; grows to the largest ever asked
     * for, which the shapes bound. */
    void *scratch[2];
    size_t scratch_bytes[2];
};

enum cpu_scratch_use {
    SCRATCH_PACKED,
    SCRATCH_WIDE,
};

/* What this CPU and its operating system can run. */
struct cpu_isa {
    bool avx2;        /* AVX2, FMA and F16C */
    bool avx512;      /* F, BW, VL, DQ */
    bool avx512_bf16; /* and the bf16 dot product */
};

void cpu_isa_detect(struct cpu_isa *isa);

/* Puts the fast entries that `isa` allows over the reference ones (dispatch.c).  -ENOMEM. */
struct cpu_state;
int cpu_fast_ops(struct cpu_state *st, const struct cpu_isa *isa, int threads);

/* Opens "cpu" (fast) or "cpu-ref". */
int cpu_device_open(bool reference, int threads, struct device **ret_dev, struct err *err);
void cpu_device_close(struct device *dev);

/* 64-byte aligned working memory until the next call for the same use, or NULL. */
void *cpu_scratch(struct cpu_state *st, enum cpu_scratch_use use, size_t bytes);

/* memory.c: what /proc and /sys below root ("" but for tests) say.  -ERR_DEVICE when they say
 * nothing. */
int cpu_memory_read(const char *root, uint64_t *ret_free, uint64_t *ret_total);
int cpu_memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total);

/* fault.c: load when a device opens, before there are threads; 0 or -ERR_DEVICE of a wait. */
void cpu_fault_load(void);
int cpu_fault(struct device *dev, struct err *err);
uint64_t cpu_fault_memory(uint64_t free_bytes);

extern const struct kernel_ops cpu_front_ops;
extern const struct kernel_ops cpu_ref_ops;

static inline struct cpu_state *cpu_state(const struct device *dev)
{
    return dev->impl;
}

static inline const struct kernel_ops *cpu_inner(const struct device *dev)
{
    return &cpu_state(dev)->inner;
}

#endif
