/* What cuDNN 9 does for a device, through the backend API of libcudnn.so.9, which is opened with
 * the first operation that it could take; a plan for a shape is made when the shape first comes,
 * which takes up to a second.
 *
 * All that it declines (its version, the shape, no engine, an execution that it refuses) goes to
 * our own kernels: a decline is no error.  SKERRY_SDPA=own and SKERRY_CONV=own keep attention
 * and convolutions there. */
#ifndef KERNELS_CUDA_DNN_H
#define KERNELS_CUDA_DNN_H

#include "kernels/cuda/lib/conv_graph.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lib/sdpa_graph.h"

/* What there are graphs of. */
enum dnn_kind { DNN_SDPA, DNN_CONVOLUTION };

struct dnn_call {
    enum dnn_kind kind;
    union {
        struct sdpa_shape sdpa;
        struct conv_shape conv;
    } shape;
    const char *unfit;    /* why cuDNN is not to have it, or NULL */
    void *at[DNN_IDS];    /* memory of its tensors */
    size_t room[DNN_IDS]; /* bytes of those in working memory instead */
};

/* 1: declined, and our own kernels are to do it; 0 or a negative code otherwise.  While a graph
 * is recorded no plan is made and a new shape is declined. */
int dnn_run(struct dnn_call *call, struct stream *s);

void dnn_free(struct dnn *dnn); /* accepts NULL */

/* Calls of a CUDA device that cuDNN could have made, counted by what made them.  `why` says why the
 * last of our own was not cuDNN's; "" when there was none.  It lives as long as the device. */
struct dnn_use {
    uint64_t fused, own; /* calls */
    int version;         /* cuDNN's: 91900 is 9.19.0; 0 when not opened */
    const char *why;
};
/* For tests. */
void cuda_dnn_use(const struct device *dev, struct dnn_use *ret);

#endif
