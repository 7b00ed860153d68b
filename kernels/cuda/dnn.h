/* cuDNN 9 for a device, through the backend API of libcudnn.so.9, which is opened with the first
 * operation that it could take.  A plan is made at the first call with a shape, which takes up to
 * a second.  Of 2048 shapes the longest unused convolution goes for the next one; attention stays,
 * and whatever was recorded.
 *
 * Calls that it declines (by its version, the shape, no engine, an execution that it refuses) go
 * to our own kernels, without an error; what only lacked memory is tried again.  SKERRY_SDPA=own
 * and SKERRY_CONV=own keep attention and convolutions there. */
#ifndef KERNELS_CUDA_DNN_H
#define KERNELS_CUDA_DNN_H

#include "kernels/cuda/lib/conv_graph.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lib/sdpa_graph.h"

/* Kinds of graphs. */
enum dnn_kind { DNN_SDPA, DNN_CONVOLUTION };

struct dnn_call {
    enum dnn_kind kind;
    union {
        struct sdpa_shape sdpa;
        struct conv_shape conv;
    } shape;
    const char *unfit;    /* why cuDNN may not take it, or NULL */
    void *at[DNN_IDS];    /* memory of its tensors */
    size_t room[DNN_IDS]; /* bytes of tensors that lie in working memory instead */
};

/* 1: declined, and our own kernel must do it; else 0 or a negative code.  While a graph is
 * recorded no plan is made and a new shape is declined. */
int dnn_run(struct dnn_call *call, struct stream *s);

void dnn_free(struct dnn *dnn); /* accepts NULL */

/* Calls on a CUDA device that cuDNN could take, counted by who made them: cuDNN (fused) or our own
 * kernels.  `why` says why cuDNN did not make our own's last call; "" if there was none.  It lives
 * as long as the device. */
struct dnn_use {
    uint64_t fused, own; /* calls */
    int version;         /* cuDNN's: 91900 is 9.19.0; 0: not opened */
    const char *why;
};
/* For tests. */
void cuda_dnn_use(const struct device *dev, struct dnn_use *ret);

#endif
