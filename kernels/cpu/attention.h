/* Fused attention on top of the tiles of gemm.h: one task per sample and head
 * of keys, with the query heads that share it.
 *
 * Forward: a dozen query rows at a time.  Their scores against the keys they see, in whole
 * panels, are a strip of tiles in the cache; softmax turns the strip into probabilities,
 * which multiply V.  Backward: blocks of 64 query rows; scores and their gradients exist for
 * one block.
 * bf16 probabilities are rounded before they multiply, as the product takes bf16. */
#ifndef KERNELS_CPU_ATTENTION_H
#define KERNELS_CPU_ATTENTION_H

#include "kernels/kernels.h"

void attention_install_avx2(struct kernel_ops *ops);
void attention_install_avx512(struct kernel_ops *ops);
void attention_install_avx512bf16(struct kernel_ops *ops);

#endif
