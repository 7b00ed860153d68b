/* Vectorised elementwise operations, norms, optimiser, losses and reductions: one body
 * compiled per instruction set.  Each install puts its entries over the reference. */
#ifndef KERNELS_CPU_ELEM_H
#define KERNELS_CPU_ELEM_H

#include "kernels/kernels.h"

void elem_install_avx2(struct kernel_ops *ops);
void elem_install_avx512(struct kernel_ops *ops);
void elem_install_avx512bf16(struct kernel_ops *ops);

void adaln_install_avx2(struct kernel_ops *ops);
void adaln_install_avx512(struct kernel_ops *ops);
void adaln_install_avx512bf16(struct kernel_ops *ops);

void decoder_install_avx2(struct kernel_ops *ops);
void decoder_install_avx512(struct kernel_ops *ops);
void decoder_install_avx512bf16(struct kernel_ops *ops);

void sample_install_avx2(struct kernel_ops *ops);
void sample_install_avx512(struct kernel_ops *ops);
void sample_install_avx512bf16(struct kernel_ops *ops);

#endif
