/* Attention by cuDNN 9 (dnn.h): its fused forward and backward.
 *
 * It takes bf16, D a multiple of 8 up to 128, from SDPA_LEAST tokens on, causal or not, grouped
 * heads, all in qkv without `start`, lengths, bias or scale; the backward only for T in multiples
 * of SDPA_BACKWARD_STEP, and not if our own is faster (attention_hopper.h).  All other calls go to
 * our own kernels.  SKERRY_SDPA=own keeps all of them there, which also gives gradients the same
 * bits every time: cuDNN adds dq in no fixed order.  SKERRY_SDPA=cudnn gives cuDNN all calls that
 * it takes.
 *
 * cuDNN may make one of forward and backward and our own kernels the other: lse is the same. */
#ifndef KERNELS_CUDA_SDPA_H
#define KERNELS_CUDA_SDPA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Below it a head is one tile of our own kernel, and mostly padding in cuDNN's: on an H200 the
     * forward of 384 heads of 64 tokens and channels took 6 us here and 27 us there. */
    SDPA_LEAST = 65,
    /* cuDNN's backward has tiles of 128 keys; releases up to 9.26 take the padding of a last,
     * shorter tile into exp(0 - lse), which gives NaN if all scores are low. */
    SDPA_BACKWARD_STEP = 128,
};

/* Called below the front, like our own kernels, for bf16.  1: declined, and our own kernel must do
 * it; else 0 or a negative code. */
int sdpa_fwd(const struct attention_fwd *p, struct stream *s);
int sdpa_bwd(const struct attention_bwd *p, struct stream *s);

#ifdef __cplusplus
}
#endif

#endif
