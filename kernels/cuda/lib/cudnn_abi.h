/* The part of cuDNN 9's backend API that attention and convolution need, declared by its binary
 * interface, so that a machine without cuDNN's headers builds the same program.
 * tests/gpu/emulate/test_sdpa.c compares the numbers with the headers where they are installed. */
#ifndef KERNELS_CUDA_LIB_CUDNN_ABI_H
#define KERNELS_CUDA_LIB_CUDNN_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The status; all others are failures. */
enum { DNN_SUCCESS = 0, DNN_NO_HOST_MEMORY = 4003, DNN_NO_DEVICE_MEMORY = 4004 };

/* A failure that may pass. */
static inline bool dnn_lacks_memory(int status)
{
    return status == DNN_NO_HOST_MEMORY || status == DNN_NO_DEVICE_MEMORY;
}

/* cudnnBackendDescriptorType_t */
enum cudnn_kind {
    DNN_POINTWISE = 0,
    DNN_CONV = 1,
    DNN_ENGINECFG = 3,
    DNN_ENGINEHEUR = 4,
    DNN_PLAN = 5,
    DNN_OP_CONV = 10,
    DNN_OP_POINTWISE = 13,
    DNN_GRAPH = 15,
    DNN_VARIANT_PACK = 16,
    DNN_TENSOR = 17,
    DNN_MATMUL = 18,
    DNN_OP_MATMUL = 19,
    DNN_REDUCTION = 21,
    DNN_OP_REDUCTION = 22,
    DNN_OP_RESHAPE = 31,
    DNN_DEVICEPROP = 38,
};

/* cudnnBackendAttributeName_t, and cudnnBackendAttributeType_t at the end */
enum cudnn_attribute {
    DNN_POINTWISE_MODE = 0,
    DNN_POINTWISE_MATH_PREC = 1,
    DNN_POINTWISE_AXIS = 9,
    DNN_CONV_TYPE = 100,
    DNN_CONV_MODE = 101,
    DNN_CONV_DILATIONS = 102,
    DNN_CONV_STRIDES = 103,
    DNN_CONV_HIGH = 104,
    DNN_CONV_LOW = 105,
    DNN_CONV_SIDES = 106,
    DNN_ENGINEHEUR_MODE = 200,
    DNN_ENGINEHEUR_GRAPH = 201,
    DNN_ENGINEHEUR_RESULTS = 202,
    DNN_ENGINEHEUR_DEVICEPROP = 204,
    DNN_PLAN_HANDLE = 400,
    DNN_PLAN_CONFIG = 401,
    DNN_PLAN_WORKSPACE_SIZE = 402,
    DNN_PLAN_DEVICEPROP = 407,
    DNN_OP_CONV_ALPHA = 700,
    DNN_OP_CONV_BETA = 701,
    DNN_OP_CONV_DESC = 702,
    DNN_OP_CONV_W = 703,
    DNN_OP_CONV_X = 704,
    DNN_OP_CONV_Y = 705,
    DNN_OP_POINTWISE_DESC = 750,
    DNN_OP_POINTWISE_X = 751,
    DNN_OP_POINTWISE_B = 752,
    DNN_OP_POINTWISE_Y = 753,
    DNN_OP_POINTWISE_T = 758,
    DNN_GRAPH_HANDLE = 800,
    DNN_GRAPH_OPS = 801,
    DNN_TENSOR_ALIGNMENT = 900,
    DNN_TENSOR_TYPE = 901,
    DNN_TENSOR_DIMENSIONS = 902,
    DNN_TENSOR_STRIDES = 903,
    DNN_TENSOR_ID = 906,
    DNN_TENSOR_IS_VIRTUAL = 907,
    DNN_TENSOR_IS_BY_VALUE = 908,
    DNN_PACK_IDS = 1000,
    DNN_PACK_POINTERS = 1001,
    DNN_PACK_WORKSPACE = 1003,
    DNN_MATMUL_TYPE = 1500,
    DNN_OP_MATMUL_A = 1520,
    DNN_OP_MATMUL_B = 1521,
    DNN_OP_MATMUL_C = 1522,
    DNN_OP_MATMUL_DESC = 1523,
    DNN_REDUCTION_OPERATOR = 1600,
    DNN_REDUCTION_TYPE = 1601,
    DNN_OP_REDUCTION_X = 1610,
    DNN_OP_REDUCTION_Y = 1611,
    DNN_OP_REDUCTION_DESC = 1612,
    DNN_OP_RESHAPE_X = 2200,
    DNN_OP_RESHAPE_Y = 2201,
    DNN_DEVICEPROP_JSON = 2702,
};

/* Types of an attribute's elements. */
enum cudnn_element {
    DNN_TYPE_HANDLE = 0,
    DNN_TYPE_DATA_TYPE = 1,
    DNN_TYPE_BOOLEAN = 2,
    DNN_TYPE_INT64 = 3,
    DNN_TYPE_FLOAT = 4,
    DNN_TYPE_VOID_PTR = 6,
    DNN_TYPE_CONV_MODE = 7,
    DNN_TYPE_HEUR_MODE = 8,
    DNN_TYPE_POINTWISE_MODE = 14,
    DNN_TYPE_DESCRIPTOR = 15,
    DNN_TYPE_REDUCTION = 18,
    DNN_TYPE_CHAR = 24,
};

/* cudnnDataType_t */
enum cudnn_data { DNN_FLOAT = 0, DNN_INT32 = 4, DNN_BFLOAT16 = 9, DNN_BOOLEAN = 11 };

/* cudnnConvolutionMode_t */
enum cudnn_conv_mode { DNN_CROSS_CORRELATION = 1 };

/* cudnnPointwiseMode_t */
enum cudnn_pointwise {
    DNN_ADD = 0,
    DNN_MUL = 1,
    DNN_DIV = 6,
    DNN_SUB = 9,
    DNN_EXP = 13,
    DNN_LOG = 15,
    DNN_IDENTITY = 21,
    DNN_CMP_GE = 303,
    DNN_GEN_INDEX = 501,
    DNN_SELECT = 601,
};

/* cudnnReduceTensorOp_t */
enum cudnn_reduce { DNN_REDUCE_ADD = 0, DNN_REDUCE_MAX = 3 };

/* cudnnBackendHeurMode_t */
enum cudnn_heuristic { DNN_HEURISTIC_A = 3 };

/* Enumerations pass as int; handles, streams and descriptors are pointers. */
struct cudnn_api {
    size_t (*version)(void);
    int (*create)(void **handle);
    int (*destroy)(void *handle);
    int (*set_stream)(void *handle, void *stream);
    int (*descriptor)(int kind, void **ret);
    int (*drop)(void *descriptor);
    int (*finalize)(void *descriptor);
    int (*set)(void *descriptor, int attribute, int element, int64_t count, const void *values);
    int (*get)(void *descriptor, int attribute, int element, int64_t room, int64_t *ret_count,
               void *values);
    int (*execute)(void *handle, void *plan, void *pack);
};

#define CUDNN_API_SYMBOLS                                                                          \
    "cudnnGetVersion", "cudnnCreate", "cudnnDestroy", "cudnnSetStream",                            \
        "cudnnBackendCreateDescriptor", "cudnnBackendDestroyDescriptor", "cudnnBackendFinalize",   \
        "cudnnBackendSetAttribute", "cudnnBackendGetAttribute", "cudnnBackendExecute"

#endif
