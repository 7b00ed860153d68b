/* The product of matrices on the tiles of AMX, which multiply bf16 sixteen times as fast as AVX-512
 * multiplies f32.  Products of bf16 are exact in f32, in which they are added up.
 *
 * An f32 has 24 significant bits, a bf16 has 8: x = h + m + l, three bf16 of which each holds the
 * rest that the ones before leave (Henry, Tang and Heinecke 2019, 1904.06376).  A product is the
 * sum of six,
 *
 *     hh + hm + hl + lh + mh + mm
 *
 * each exact in f32; the terms left out are below 2^-24 of it.  So the error is that of sums in
 * f32, and the rate is up to 16/6 of AVX-512's.
 *
 * Every element's sum runs over k in ascending order in steps that the shape fixes, whatever rows
 * and columns stand beside it and however many threads there are.
 *
 * Values and parts of them below 2^-126 count as zero.  An f32 that is infinite, or above the
 * largest bf16, gives NaN. */
#ifndef KERNELS_CPU_GEMM_AMX_H
#define KERNELS_CPU_GEMM_AMX_H

#include "kernels/kernels.h"

/* The table's entry; products with few columns, a short k, or up to three rows where B's rows are
 * contiguous go to gemm_matmul. */
int gemm_amx_matmul(struct device *dev, const struct matmul *mm, struct stream *s);

#endif
