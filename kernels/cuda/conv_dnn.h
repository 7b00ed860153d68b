/* Convolution by cuDNN 9 (dnn.h).
 *
 * It takes bf16, channels in multiples of 8, and inputs that are not enlarged; a result that
 * overwrites its own residual goes through working memory.  f32 stays with our kernels, since
 * cuDNN's would round to TF32.  SKERRY_CONV=own keeps all of it there, which also makes a sample's
 * bits independent of the batch: cuDNN chooses an engine for the whole shape. */
#ifndef KERNELS_CUDA_CONV_DNN_H
#define KERNELS_CUDA_CONV_DNN_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Called below the front, like our own kernels, for bf16 and work that is not empty.  1: declined,
 * and our own kernel must do it; else 0 or a negative code. */
int conv_dnn_fwd(const struct conv2d *p, struct stream *s);

#ifdef __cplusplus
}
#endif

#endif
