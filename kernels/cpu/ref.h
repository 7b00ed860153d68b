/* The specification: every operation as plain loops on one thread, ref_matmul and so on for
 * the rows of kernels/ops.inc; shapes, types and `=`/`+=` are those of kernels/kernels.h.
 *
 *   ref.c            products, activations, images, vectors; the table
 *   ref_adaln.c      LayerNorm with modulation
 *   ref_attention.c
 *   ref_decoder.c    a Llama decoder's operations except attention
 *   ref_frozen.c     other operations of frozen encoders of images and texts */
#ifndef KERNELS_CPU_REF_H
#define KERNELS_CPU_REF_H

#include "kernels/kernels.h"

#define OP(name, params, ...)                                                                      \
    int ref_##name(struct device *dev, OP_PARAMS params, struct stream *s);
#include "kernels/ops.inc"
#undef OP

extern const struct kernel_ops cpu_ref_ops;

float ref_time_freq(int i, int half); /* 10000^(-i/half) */

#endif
