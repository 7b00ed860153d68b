/* Attention by cuDNN 9 (dnn.h): its fused forward and backward.
 *
 * What it takes: bf16, D a multiple of 8 up to 128, from SDPA_LEAST tokens on, causal or not,
 * grouped heads, all in qkv with neither `start`, lengths, bias nor scale; the backward for T in
 * multiples of SDPA_BACKWARD_STEP alone, and not where our own is faster (attention_hopper.h).  All
 * else goes to our own kernels.  SKERRY_SDPA=own keeps all of it there, which also makes gradients
 * the same bits every time: cuDNN adds dq in no fixed order.  SKERRY_SDPA=cudnn gives cuDNN all
 * that it takes.
 *
 * Forward and backward may be by different hands: both mean the same lse. */
#ifndef KERNELS_CUDA_SDPA_H
#define KERNELS_CUDA_SDPA_H

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum {
    /* Below it a head is one tile of our own kernel, and mostly padding of cuDNN's: on an H200 the
     * forward of 384 heads of 64 tokens and channels took 6 us here and 27 there. */
    SDPA_LEAST = 65,
    /* cuDNN's backward has tiles of 128 keys; releases up to 9.26 let the padding of a last,
     * shorter one into exp(0 - lse), which gives NaN where all scores are low. */
    SDPA_BACKWARD_STEP = 128,
};

/* Called below the front, as our own kernels are, for bf16.  1: declined, and our own are to do
 * it; 0 or a negative code otherwise. */
int sdpa_fwd(const struct attention_fwd *p, struct stream *s);
int sdpa_bwd(const struct attention_bwd *p, struct stream *s);

#ifdef __cplusplus
}
#endif

#endif
