/* A graph of cuDNN's backend operations being built, and the plan that an engine of cuDNN makes
 * of it.
 *
 *     struct dnn_graph g = {.to = &target, .plan = &plan};     plan all zeros
 *     ... tensors and operations ...
 *     dnn_graph_plan(&g, err)
 *
 * The first refusal stays in the graph; later calls do nothing, and dnn_graph_plan returns
 * it.  Tensors have four dimensions and any strides. */
#ifndef KERNELS_CUDA_LIB_DNN_GRAPH_H
#define KERNELS_CUDA_LIB_DNN_GRAPH_H

#include <stdbool.h>

#include "kernels/cuda/lib/cudnn_abi.h"

struct err;

enum {
    DNN_PARTS = 128,     /* most descriptors of a plan, more than any graph has */
    DNN_OPERATIONS = 40, /* most operations of a graph */
    DNN_VALUES = 12,     /* ids of tensors: from 1 in device memory, from here on host f32 */
    DNN_IDS = 15,
};

struct dnn_plan {
    void *parts[DNN_PARTS];
    int count;
    void *plan;
    int64_t work_bytes;    /* cuDNN's working memory */
    bool used[DNN_IDS];    /* tensors of this graph */
    float values[DNN_IDS]; /* values of tensors on the host */
};

/* The device of a plan: a handle of the current device, or a description of a device that
 * need not be there (a finalised DNN_DEVICEPROP). */
struct dnn_target {
    const struct cudnn_api *api;
    void *handle, *properties;
    int version;
};

struct dnn_graph {
    const struct dnn_target *to;
    struct dnn_plan *plan;
    void *operations[DNN_OPERATIONS];
    int operation_count, next_id;
    int status;
    const char *what; /* the call that was refused */
};

/* A tensor's layout, in elements. */
struct dnn_layout {
    int64_t dims[4], strides[4];
};

/* A tensor of the graph. */
struct dnn_tensor {
    void *desc;
    struct dnn_layout at;
};

struct dnn_pointwise {
    enum cudnn_pointwise mode;
    enum cudnn_data math;
    int64_t axis;                   /* of DNN_GEN_INDEX */
    const struct dnn_tensor *b, *t; /* second operand and condition, or NULL */
};

/* Opens libcudnn.so.9: -ERR_DEVICE. */
int dnn_open(struct cudnn_api *ret, struct err *err);

/* Add a tensor: in memory of the caller; a number on the host, f32; between one operation and the
 * next. */
struct dnn_tensor dnn_graph_memory(struct dnn_graph *g, int id, struct dnn_layout l, int type);
struct dnn_tensor dnn_graph_value(struct dnn_graph *g, int id, float v);
struct dnn_tensor dnn_graph_between(struct dnn_graph *g, struct dnn_layout l, int type);

/* A descriptor that lives as long as the plan: make it, fill it, finish it. */
void *dnn_graph_desc(struct dnn_graph *g, int kind, const char *what);
void dnn_graph_set(struct dnn_graph *g, void *desc, int attribute, int element, int64_t count,
                   const void *values, const char *what);
void dnn_graph_set_tensor(struct dnn_graph *g, void *desc, int attribute, struct dnn_tensor t,
                          const char *what);
void dnn_graph_finalize(struct dnn_graph *g, void *desc, const char *what);

/* Finishes the descriptor of an operation, which becomes the graph's last. */
void dnn_graph_add(struct dnn_graph *g, void *op, const char *what);
/* y = mode(x [, b [, t]]) */
void dnn_graph_pointwise(struct dnn_graph *g, struct dnn_pointwise p, struct dnn_tensor x,
                         struct dnn_tensor y);

/* Makes the plan, for one card or none.  -ERR_DEVICE: cuDNN has none. */
int dnn_graph_plan(struct dnn_graph *g, struct err *err);

/* Starts it on the handle's stream.  at[id] is the memory of each device tensor used; work has
 * work_bytes.  Returns cuDNN's status. */
int dnn_plan_run(const struct cudnn_api *api, void *handle, const struct dnn_plan *plan,
                 void *const at[DNN_IDS], void *work);

/* Frees the descriptors of a plan. */
void dnn_plan_drop(const struct cudnn_api *api, struct dnn_plan *plan);

#endif
