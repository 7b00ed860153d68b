/* Attention by cuDNN 9: its fused forward and backward, through the backend API of
 * libcudnn.so.9, which is opened with the first attention that it could take.
 *
 * What it takes: bf16, D a multiple of 8 up to 128, from SDPA_LEAST tokens on, causal or not,
 * grouped heads, all in qkv with neither `start`, lengths, bias nor scale; the backward for T in
 * multiples of SDPA_BACKWARD_STEP alone. All else, and all that cuDNN declines (its version, the
 * shape, no engine, an execution that it refuses), goes to our own kernels: a decline is no error.
 * SKERRY_SDPA=own keeps all of it there, which also makes gradients the same bits every time: cuDNN
 * adds dq in no fixed order.
 *
 * Forward and backward may be by different hands: both mean the same lse. */
#ifndef KERNELS_CUDA_SDPA_H
#define KERNELS_CUDA_SDPA_H

#include <stdint.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sdpa;

enum {
    /* Below it a head is one tile of our own kernel, and mostly padding of cuDNN's. */
    SDPA_LEAST = 64,
    /* cuDNN's backward has tiles of 128 keys; releases up to 9.26 let the padding of a last,
     * shorter one into exp(0 - lse), which gives NaN where all scores are low. */
    SDPA_BACKWARD_STEP = 128,
};

/* Called below the front, as our own kernels are, for bf16.  1: declined, and our own are to do
 * it; 0 or a negative code otherwise.  A plan for a shape is made when the shape first comes, which
 * takes up to a second; while a graph is recorded none is made and a new shape is declined. */
int sdpa_fwd(const struct attention_fwd *p, struct stream *s);
int sdpa_bwd(const struct attention_bwd *p, struct stream *s);

void sdpa_free(struct sdpa *sdpa); /* accepts NULL */

/* Who has done the bf16 attention of a CUDA device so far.  `why` says why the last one that
 * cuDNN did not do was ours; "" when there was none.  It lives as long as the device. */
struct sdpa_use {
    uint64_t fused, own; /* calls, forward and backward */
    int version;         /* cuDNN's: 91900 is 9.19.0; 0 when not opened */
    const char *why;
};
/* For tests. */
void cuda_sdpa_use(const struct device *dev, struct sdpa_use *ret);

#ifdef __cplusplus
}
#endif

#endif
