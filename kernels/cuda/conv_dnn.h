/* Convolution by cuDNN 9 (dnn.h).
 *
 * What it takes: bf16, channels in multiples of 8, an input as it is; over its own residual it
 * goes through working memory.  f32 stays with our kernels, as cuDNN's would round to TF32.
 * SKERRY_CONV=own keeps all of it there, which also makes a sample's bits independent of the batch:
 * cuDNN chooses an engine for the whole shape. */
#ifndef KERNELS_CUDA_CONV_DNN_H
#define KERNELS_CUDA_CONV_DNN_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called below the front, as our own kernels are, for bf16 and work to do.  1: declined, and our
 * own are to do it; 0 or a negative code otherwise. */
int conv_dnn_fwd(const struct conv2d *p, struct stream *s);

#ifdef __cplusplus
}
#endif

#endif
