/* One attention as a graph of cuDNN's backend operations.
 *
 * The operations are those by which cuDNN's fused engines recognise attention (softmax as
 * maximum, exponential and sum; the backward from the forward's log-sum-exp): another
 * composition of the same mathematics finds no engine.  Tensors are (B,H,T,D) with strides, so
 * packed qkv is read in place. */
#ifndef KERNELS_CUDA_LIB_SDPA_GRAPH_H
#define KERNELS_CUDA_LIB_SDPA_GRAPH_H

#include "kernels/cuda/lib/dnn_graph.h"

struct sdpa_shape {
    int B, T, H, Hkv, D;
    int causal, backward, stats; /* stats: the forward writes lse */
};

/* Tensors of the graph that lie in memory, by their unique id. */
enum sdpa_id {
    SDPA_Q = 1,
    SDPA_K,
    SDPA_V,
    SDPA_O,
    SDPA_LSE,
    SDPA_DO,
    SDPA_DQ,
    SDPA_DK,
    SDPA_DV,
    SDPA_ROW_SUM,            /* (B,H,T) f32, working memory: sum of d_o * o */
    SDPA_DQ_SUM,             /* (B,H,T,D) f32, working memory: dq as it adds up */
    SDPA_SCALE = DNN_VALUES, /* host f32 from here on */
    SDPA_ONE,
    SDPA_LOW,
};

/* Makes a plan, for one card or none.  -ERR_DEVICE: cuDNN has none. */
int sdpa_plan_make(const struct dnn_target *to, const struct sdpa_shape *shape,
                   struct dnn_plan *ret, struct err *err);

#endif
