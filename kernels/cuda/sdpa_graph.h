/* One attention as a graph of cuDNN's backend operations, and the plan that an engine of cuDNN
 * makes of it.
 *
 * The operations are those that cuDNN's fused engines know attention by (softmax taken apart
 * into maximum, exponential and sum; the backward from the forward's log-sum-exp): another
 * composition of the same mathematics finds no engine.  Tensors are (B,H,T,D) with strides, so
 * packed qkv is read where it lies. */
#ifndef KERNELS_CUDA_SDPA_GRAPH_H
#define KERNELS_CUDA_SDPA_GRAPH_H

#include <stdbool.h>

#include "kernels/cuda/cudnn_abi.h"

struct err;

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
    SDPA_ROW_SUM, /* (B,H,T) f32, working memory: sum of d_o * o */
    SDPA_DQ_SUM,  /* (B,H,T,D) f32, working memory: dq as it adds up */
    SDPA_SCALE,   /* host f32 from here on */
    SDPA_ONE,
    SDPA_LOW,
    SDPA_IDS,
};

enum { SDPA_PARTS = 128 }; /* descriptors of one plan, more than any graph has */

struct sdpa_plan {
    void *parts[SDPA_PARTS];
    int count;
    void *plan;
    int64_t work_bytes;     /* cuDNN's own */
    bool used[SDPA_IDS];    /* tensors of this graph */
    float values[SDPA_IDS]; /* of those on the host */
};

/* What a plan is made for: a handle of the current device, or a description of a device that
 * need not be there (a finalised DNN_DEVICEPROP). */
struct sdpa_target {
    const struct cudnn_api *api;
    void *handle, *properties;
    int version;
};

/* Opens libcudnn.so.9: -ERR_DEVICE. */
int cudnn_open(struct cudnn_api *ret, struct err *err);

/* Makes a plan, for one card or none: 0, or -ERR_DEVICE with a sentence when cuDNN has none. */
int sdpa_plan_make(const struct sdpa_target *to, const struct sdpa_shape *shape,
                   struct sdpa_plan *ret, struct err *err);

/* Starts it on the handle's stream.  at[id] is the memory of each device tensor used; work has
 * work_bytes.  cuDNN's status. */
int sdpa_plan_run(const struct cudnn_api *api, void *handle, const struct sdpa_plan *plan,
                  void *const at[SDPA_IDS], void *work);

/* Frees what making a plan left in it. */
void sdpa_plan_drop(const struct cudnn_api *api, struct sdpa_plan *plan);

#endif
