/* One convolution as a graph of cuDNN's backend operations: the product, then bias and residual
 * in f32, rounded once.  Tensors are (B,C,H,W) with the strides of channels that come last. */
#ifndef KERNELS_CUDA_LIB_CONV_GRAPH_H
#define KERNELS_CUDA_LIB_CONV_GRAPH_H

#include "kernels/cuda/lib/dnn_graph.h"

/* What makes two convolutions the same graph. */
struct conv_shape {
    int B, H, W, Cin, Cout, Ho, Wo;
    int k, stride, pad_low, pad_high;
    int bias, add;
};

/* Tensors of the graph, by their unique id. */
enum conv_id {
    CONV_X = 1,
    CONV_W,
    CONV_BIAS,
    CONV_ADD,
    CONV_Y,
};

/* Makes a plan, for one card or none: 0, or -ERR_DEVICE with a sentence when cuDNN has none. */
int conv_plan_make(const struct dnn_target *to, const struct conv_shape *shape,
                   struct dnn_plan *ret, struct err *err);

#endif
