/* One convolution as a graph of cuDNN's backend operations: the product, then bias and residual
 * in f32, rounded once.  Tensors are (B,C,H,W) with the strides of channels that come last. */
#ifndef KERNELS_CUDA_LIB_CONV_GRAPH_H
#define KERNELS_CUDA_LIB_CONV_GRAPH_H

#include "kernels/cuda/lib/dnn_graph.h"

/* Two convolutions with equal shapes have the same graph. */
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

/* Makes a plan, for one card or none.  -ERR_DEVICE: cuDNN has none. */
int conv_plan_make(const struct dnn_target *to, const struct conv_shape *shape,
                   struct dnn_plan *ret, struct err *err);

#endif
