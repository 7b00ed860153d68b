/* The inside of the CPU backend; not for other layers.
 *
 *   device->ops      = the front (front.c): memory, checked and profiled operations
 *   cpu_state->inner = the operations that do the work: the reference's, replaced by fast
 *                      ones as the CPU allows (cpu.c); no memory, no streams
 *
 * Inner entries may assume valid arguments. */
#ifndef KERNELS_CPU_STATE_H
#define KERNELS_CPU_STATE_H

#include "kernels/kernels.h"

struct cpu_team;
struct gemm_kernel;

struct cpu_state {
    struct kernel_ops inner;
    struct cpu_team *team;             /* NULL for the reference */
    const struct gemm_kernel *gemm[2]; /* by dtype; NULL: no product of our own */

    /* Working memory of the operation in progress; grows to the largest ever asked
     * for, which the shapes bound. */
    void *scratch[2];
    size_t scratch_bytes[2];
    unsigned long losses; /* sums of a step's losses so far, if a test counts them */
};

/* The two kinds of working memory that an operation may need at once. */
enum cpu_scratch_use {
    SCRATCH_PACKED,
    SCRATCH_WIDE,
};

/* 64-byte aligned working memory until the next call for the same use, or NULL. */
void *cpu_scratch(struct cpu_state *st, enum cpu_scratch_use use, size_t bytes);

/* Reads which faults a test wants, before there are threads. */
int cpu_fault_open(struct err *err);
/* 0, or -ERR_DEVICE if a test makes a wait for the device fail. */
int cpu_fault(struct device *dev, struct err *err);
/* The free memory, or what a test sets in its place. */
uint64_t cpu_fault_memory(uint64_t free_bytes);
/* Replaces the sum of a step's losses if a test wants some to be no number. */
void cpu_fault_ops(struct kernel_ops *ops);

/* In each *_vec.c: replaces entries of the table by its own for an instruction set. */
#define CPU_INSTALLERS(isa)                                                                        \
    void adaln_install_##isa(struct kernel_ops *ops);                                              \
    void attention_install_##isa(struct kernel_ops *ops);                                          \
    void conv_install_##isa(struct kernel_ops *ops);                                               \
    void decoder_install_##isa(struct kernel_ops *ops);                                            \
    void elem_install_##isa(struct kernel_ops *ops);                                               \
    void norm_install_##isa(struct kernel_ops *ops);                                               \
    void sample_install_##isa(struct kernel_ops *ops);
CPU_INSTALLERS(avx2)
CPU_INSTALLERS(avx512)
CPU_INSTALLERS(avx512bf16)

extern const struct kernel_ops cpu_front_ops; /* front.c */

static inline struct cpu_state *cpu_state(const struct device *dev)
{
    return dev->impl;
}

static inline const struct kernel_ops *cpu_inner(const struct device *dev)
{
    return &cpu_state(dev)->inner;
}

#endif
