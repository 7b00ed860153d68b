/* Attention and convolution through cuDNN, with a libcudnn.so.9 that works graphs out on the CPU:
 * what the graphs mean, what is declined, and that a refusal costs nothing but speed. */
#include "tests/unit/kernels/guard.h"

#include "kernels/cuda/lib/cudnn_abi.h"
#include "kernels/cuda/dnn.h"
#include "kernels/cuda/sdpa.h"
#include "tests/gpu/emulate/record.h"

#if __has_include(<cudnn_graph.h>)
#include <cudnn_graph.h>
#define SAME(ours, theirs) _Static_assert((int)(ours) == (int)(theirs), #ours)
SAME(DNN_NO_HOST_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED);
SAME(DNN_NO_DEVICE_MEMORY, CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED);
SAME(DNN_POINTWISE, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
SAME(DNN_ENGINECFG, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
SAME(DNN_ENGINEHEUR, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
SAME(DNN_PLAN, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
SAME(DNN_OP_POINTWISE, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
SAME(DNN_GRAPH, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
SAME(DNN_VARIANT_PACK, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
SAME(DNN_TENSOR, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
SAME(DNN_MATMUL, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
SAME(DNN_OP_MATMUL, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
SAME(DNN_REDUCTION, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
SAME(DNN_OP_REDUCTION, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
SAME(DNN_OP_RESHAPE, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
SAME(DNN_POINTWISE_MODE, CUDNN_ATTR_POINTWISE_MODE);
SAME(DNN_POINTWISE_MATH_PREC, CUDNN_ATTR_POINTWISE_MATH_PREC);
SAME(DNN_POINTWISE_AXIS, CUDNN_ATTR_POINTWISE_AXIS);
SAME(DNN_ENGINEHEUR_MODE, CUDNN_ATTR_ENGINEHEUR_MODE);
SAME(DNN_ENGINEHEUR_GRAPH, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
SAME(DNN_ENGINEHEUR_RESULTS, CUDNN_ATTR_ENGINEHEUR_RESULTS);
SAME(DNN_PLAN_HANDLE, CUDNN_ATTR_EXECUTION_PLAN_HANDLE);
SAME(DNN_PLAN_CONFIG, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
SAME(DNN_PLAN_WORKSPACE_SIZE, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE);
SAME(DNN_OP_POINTWISE_DESC, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
SAME(DNN_OP_POINTWISE_X, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
SAME(DNN_OP_POINTWISE_B, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
SAME(DNN_OP_POINTWISE_Y, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
SAME(DNN_OP_POINTWISE_T, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
SAME(DNN_GRAPH_HANDLE, CUDNN_ATTR_OPERATIONGRAPH_HANDLE);
SAME(DNN_GRAPH_OPS, CUDNN_ATTR_OPERATIONGRAPH_OPS);
SAME(DNN_TENSOR_ALIGNMENT, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT);
SAME(DNN_TENSOR_TYPE, CUDNN_ATTR_TENSOR_DATA_TYPE);
SAME(DNN_TENSOR_DIMENSIONS, CUDNN_ATTR_TENSOR_DIMENSIONS);
SAME(DNN_TENSOR_STRIDES, CUDNN_ATTR_TENSOR_STRIDES);
SAME(DNN_TENSOR_ID, CUDNN_ATTR_TENSOR_UNIQUE_ID);
SAME(DNN_TENSOR_IS_VIRTUAL, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
SAME(DNN_TENSOR_IS_BY_VALUE, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
SAME(DNN_PACK_IDS, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
SAME(DNN_PACK_POINTERS, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
SAME(DNN_PACK_WORKSPACE, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
SAME(DNN_MATMUL_TYPE, CUDNN_ATTR_MATMUL_COMP_TYPE);
SAME(DNN_OP_MATMUL_A, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
SAME(DNN_OP_MATMUL_B, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
SAME(DNN_OP_MATMUL_C, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
SAME(DNN_OP_MATMUL_DESC, CUDNN_ATTR_OPERATION_MATMUL_DESC);
SAME(DNN_REDUCTION_OPERATOR, CUDNN_ATTR_REDUCTION_OPERATOR);
SAME(DNN_REDUCTION_TYPE, CUDNN_ATTR_REDUCTION_COMP_TYPE);
SAME(DNN_OP_REDUCTION_X, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
SAME(DNN_OP_REDUCTION_Y, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
SAME(DNN_OP_REDUCTION_DESC, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
SAME(DNN_OP_RESHAPE_X, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
SAME(DNN_OP_RESHAPE_Y, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
SAME(DNN_TYPE_HANDLE, CUDNN_TYPE_HANDLE);
SAME(DNN_TYPE_DATA_TYPE, CUDNN_TYPE_DATA_TYPE);
SAME(DNN_TYPE_BOOLEAN, CUDNN_TYPE_BOOLEAN);
SAME(DNN_TYPE_INT64, CUDNN_TYPE_INT64);
SAME(DNN_TYPE_VOID_PTR, CUDNN_TYPE_VOID_PTR);
SAME(DNN_TYPE_HEUR_MODE, CUDNN_TYPE_HEUR_MODE);
SAME(DNN_TYPE_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE);
SAME(DNN_TYPE_DESCRIPTOR, CUDNN_TYPE_BACKEND_DESCRIPTOR);
SAME(DNN_TYPE_REDUCTION, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE);
SAME(DNN_TYPE_CHAR, CUDNN_TYPE_CHAR);
SAME(DNN_FLOAT, CUDNN_DATA_FLOAT);
SAME(DNN_INT32, CUDNN_DATA_INT32);
SAME(DNN_BFLOAT16, CUDNN_DATA_BFLOAT16);
SAME(DNN_BOOLEAN, CUDNN_DATA_BOOLEAN);
SAME(DNN_ADD, CUDNN_POINTWISE_ADD);
SAME(DNN_MUL, CUDNN_POINTWISE_MUL);
SAME(DNN_DIV, CUDNN_POINTWISE_DIV);
SAME(DNN_SUB, CUDNN_POINTWISE_SUB);
SAME(DNN_EXP, CUDNN_POINTWISE_EXP);
SAME(DNN_LOG, CUDNN_POINTWISE_LOG);
SAME(DNN_IDENTITY, CUDNN_POINTWISE_IDENTITY);
SAME(DNN_CMP_GE, CUDNN_POINTWISE_CMP_GE);
SAME(DNN_GEN_INDEX, CUDNN_POINTWISE_GEN_INDEX);
SAME(DNN_SELECT, CUDNN_POINTWISE_BINARY_SELECT);
SAME(DNN_REDUCE_ADD, CUDNN_REDUCE_TENSOR_ADD);
SAME(DNN_REDUCE_MAX, CUDNN_REDUCE_TENSOR_MAX);
SAME(DNN_CROSS_CORRELATION, CUDNN_CROSS_CORRELATION);
SAME(DNN_TYPE_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE);
SAME(DNN_TYPE_FLOAT, CUDNN_TYPE_FLOAT);
SAME(DNN_OP_CONV_Y, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y);
SAME(DNN_OP_CONV_X, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X);
SAME(DNN_OP_CONV_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W);
SAME(DNN_OP_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC);
SAME(DNN_OP_CONV_BETA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA);
SAME(DNN_OP_CONV_ALPHA, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA);
SAME(DNN_CONV_SIDES, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS);
SAME(DNN_CONV_LOW, CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS);
SAME(DNN_CONV_HIGH, CUDNN_ATTR_CONVOLUTION_POST_PADDINGS);
SAME(DNN_CONV_STRIDES, CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES);
SAME(DNN_CONV_DILATIONS, CUDNN_ATTR_CONVOLUTION_DILATIONS);
SAME(DNN_CONV_MODE, CUDNN_ATTR_CONVOLUTION_CONV_MODE);
SAME(DNN_CONV_TYPE, CUDNN_ATTR_CONVOLUTION_COMP_TYPE);
SAME(DNN_OP_CONV, CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
SAME(DNN_CONV, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
SAME(DNN_HEURISTIC_A, CUDNN_HEUR_MODE_A);
#if CUDNN_VERSION >= 90800
SAME(DNN_DEVICEPROP, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
SAME(DNN_ENGINEHEUR_DEVICEPROP, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP);
SAME(DNN_PLAN_DEVICEPROP, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP);
SAME(DNN_DEVICEPROP_JSON, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION);
#endif
#endif

#define LOG_NAME "cudnn-complaints"

struct shape {
    int B, T, H, Hkv, D;
    bool causal;
};

static struct dnn_use use_of(const struct devices *d)
{
    struct dnn_use use;
    cuda_dnn_use(d->fast, &use);
    return use;
}

/* A device of its own, as cuDNN is asked for once, in one of the modes of the fake library. */
static void open_pair(struct devices *d, const char *mode)
{
    setenv("SKERRY_EMULATE_SDPA", mode, 1);
    remove(LOG_NAME);
    assert_int_equal(device_open("cpu-ref", 0, &d->ref, NULL), 0);
    assert_int_equal(device_open("cuda:0", 0, &d->fast, NULL), 0);
}

/* The library had nothing to complain of. */
static void close_pair(struct devices *d)
{
    FILE *f = fopen(LOG_NAME, "r");
    char text[200] = "";
    device_close(d->ref);
    device_close(d->fast);
    unsetenv("SKERRY_EMULATE_SDPA");
    if (!f)
        return;
    if (!fgets(text, sizeof text, f))
        text[0] = '\0';
    fclose(f);
    remove(LOG_NAME);
    fail_msg("the library complained of %s", text);
}

static void forward_and_backward(struct devices *d, struct shape s)
{
    size_t n = (size_t)(s.B * s.T * s.D), rows = (size_t)(s.B * s.H * s.T);
    size_t all = n * (size_t)(s.H + 2 * s.Hkv);
    struct attention_fwd f = {.B = s.B, .T = s.T, .H = s.H, .D = s.D, .Hkv = s.Hkv};
    f.dt = DT_BF16;
    f.causal = s.causal;
    f.qkv = guard_randn(all, DT_BF16, 1.5f);
    void *o0 = f.o = guard_new(n * (size_t)s.H * 2);
    float *lse0 = f.lse = guard_new(rows * 4);
    assert_int_equal(d->ref->ops->attention_fwd(d->ref, &f, NULL), 0);
    void *o1 = f.o = guard_new(n * (size_t)s.H * 2);
    float *lse1 = f.lse = guard_new(rows * 4);
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    guard_close("o", o1, o0, n * (size_t)s.H, DT_BF16, 0.02f, 0.01f);
    guard_close("lse", lse1, lse0, rows, DT_F32, 1e-4f, 1e-5f);
    f.lse = NULL;
    void *o2 = f.o = guard_new(n * (size_t)s.H * 2);
    assert_int_equal(d->fast->ops->attention_fwd(d->fast, &f, NULL), 0);
    assert_memory_equal(o2, o1, n * (size_t)s.H * 2);

    struct attention_bwd b = {.B = s.B, .T = s.T, .H = s.H, .D = s.D, .Hkv = s.Hkv};
    b.dt = DT_BF16;
    b.causal = s.causal;
    b.qkv = f.qkv;
    b.o = o0;
    b.lse = lse0;
    b.d_o = guard_randn(n * (size_t)s.H, DT_BF16, 1);
    void *g0 = b.dqkv = guard_new(all * 2);
    assert_int_equal(d->ref->ops->attention_bwd(d->ref, &b, NULL), 0);
    void *g1 = b.dqkv = guard_new(all * 2);
    assert_int_equal(d->fast->ops->attention_bwd(d->fast, &b, NULL), 0);
    guard_close("dqkv", g1, g0, all, DT_BF16, 0.04f * sqrtf((float)(s.H / s.Hkv)), 0.02f);
    guard_check_all();
}

static void graphs_mean_attention(void **state)
{
    static const struct shape shapes[] = {
        {2, 128, 2, 2, 64, false}, {1, 128, 3, 3, 72, true},  {1, 256, 1, 1, 8, true},
        {2, 128, 4, 2, 32, true},  {1, 128, 6, 1, 16, false},
    };
    struct devices d;
    open_pair(&d, "");
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        forward_and_backward(&d, shapes[i]);
        assert_int_equal(use_of(&d).fused, 3 * (i + 1));
    }
    forward_and_backward(&d, shapes[0]); /* by the plans that are there */
    assert_int_equal(use_of(&d).fused, 18);
    assert_int_equal(use_of(&d).own, 0);
    assert_int_equal(use_of(&d).version, 91900);
    assert_string_equal(use_of(&d).why, "");
    close_pair(&d);
}

/* Of each three calls these many are cuDNN's. */
static void some_are_declined(void **state)
{
    static const struct {
        struct shape shape;
        unsigned fused;
        const char *why;
    } cases[] = {
        {{1, 64, 2, 2, 16, false}, 0, "up to 64 tokens"},
        {{1, 96, 2, 2, 16, false}, 2, "no multiple of 128"},
        {{2, 200, 2, 2, 16, true}, 2, "no multiple of 128"},
        {{1, 128, 2, 2, 12, false}, 0, "multiple of 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct devices d;
        open_pair(&d, "");
        forward_and_backward(&d, cases[i].shape);
        assert_int_equal(use_of(&d).fused, cases[i].fused);
        assert_int_equal(use_of(&d).own, 3 - cases[i].fused);
        assert_non_null(strstr(use_of(&d).why, cases[i].why));
        close_pair(&d);
    }
}

/* Packed documents and a cache are ours, and no reason to open cuDNN. */
static void masks_of_our_own(void **state)
{
    enum { T = 128, D = 16 };
    struct devices d;
    int32_t *start = guard_new(T * sizeof *start);
    for (int t = 0; t < T; t++)
        start[t] = t < 50 ? 0 : 50;
    void *qkv = guard_randn(T * 3 * D, DT_BF16, 1);
    struct attention_fwd f = {.qkv = qkv, .B = 1, .T = T, .H = 1, .D = D, .dt = DT_BF16};
    f.start = start;
    f.causal = true;
    open_pair(&d, "");
    void *o0 = f.o = guard_new(T * D * 2);
    assert_int_equal(d.ref->ops->attention_fwd(d.ref, &f, NULL), 0);
    void *o1 = f.o = guard_new(T * D * 2);
    assert_int_equal(d.fast->ops->attention_fwd(d.fast, &f, NULL), 0);
    guard_close("o", o1, o0, T * D, DT_BF16, 0.02f, 0.01f);
    assert_int_equal(use_of(&d).fused, 0);
    assert_int_equal(use_of(&d).own, 1);
    assert_int_equal(use_of(&d).version, 0);
    guard_check_all();
    close_pair(&d);
}

/* Whatever the library refuses, the result is there, and the reason is told. */
static void refusals_fall_back(void **state)
{
    static const struct {
        const char *mode, *why;
    } cases[] = {
        {"none", "it has no engine"},
        {"unload", "all of its engines"},
        {"refuse", "refused to run (status 3000)"},
        {"old", "cuDNN 90501 is not used"},
        {"startless", "does not start on this card (status 2000)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct devices d;
        open_pair(&d, cases[i].mode);
        for (int again = 0; again < 2; again++)
            forward_and_backward(&d, (struct shape){1, 128, 2, 1, 16, true});
        assert_int_equal(use_of(&d).fused, 0);
        assert_int_equal(use_of(&d).own, 6);
        assert_non_null(strstr(use_of(&d).why, cases[i].why));
        close_pair(&d);
    }
}

/* What lacks memory once is tried again, and so is any refusal while little is left. */
static void a_lack_of_memory_ends(void **state)
{
    enum { LITTLE = 48 << 20, PLENTY = 1 << 30 };
    static const struct {
        const char *mode, *why;
        size_t left;
    } cases[] = {
        {"full", "(status 4004)", PLENTY},
        {"unplanned", "(status 4004)", PLENTY},
        {"refuse", "(status 3000)", LITTLE},
        {"unload", "all of its engines", LITTLE},
        {"unstarted", "does not start on this card (status 4004)", PLENTY},
        {"startless", "does not start on this card (status 2000)", LITTLE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct devices d;
        open_pair(&d, cases[i].mode);
        emu_refuse(cases[i].left);
        forward_and_backward(&d, (struct shape){1, 128, 2, 1, 16, true});
        emu_refuse(PLENTY);
        assert_int_equal(use_of(&d).own, 3);
        assert_non_null(strstr(use_of(&d).why, cases[i].why));
        setenv("SKERRY_EMULATE_SDPA", "", 1);
        forward_and_backward(&d, (struct shape){1, 128, 2, 1, 16, true});
        assert_int_equal(use_of(&d).own, 3);
        assert_int_equal(use_of(&d).fused, 3);
        close_pair(&d);
    }
}

static void own_on_request(void **state)
{
    struct devices d;
    setenv("SKERRY_SDPA", "own", 1);
    open_pair(&d, "");
    forward_and_backward(&d, (struct shape){1, 128, 2, 1, 16, true});
    unsetenv("SKERRY_SDPA");
    assert_int_equal(use_of(&d).own, 3);
    assert_int_equal(use_of(&d).version, 0);
    assert_string_equal(use_of(&d).why, "SKERRY_SDPA=own");
    close_pair(&d);
}

/* Recorded once, a graph goes on with what then lies in memory; of a shape that comes first
 * inside of it, ours is recorded. */
static void recorded(void **state)
{
    enum { T = 128, D = 16, N = T * D * 2 };
    for (int known = 0; known < 2; known++) {
        struct devices d;
        struct graph *graph;
        open_pair(&d, "");
        struct attention_fwd f = {.B = 1, .T = T, .H = 1, .D = D, .dt = DT_BF16};
        void *qkv = guard_randn(3 * T * D, DT_BF16, 1), *o = guard_new(N), *want = guard_new(N);
        f.qkv = qkv;
        f.o = o;
        if (known)
            assert_int_equal(d.fast->ops->attention_fwd(d.fast, &f, NULL), 0);
        assert_int_equal(d.fast->ops->graph_begin(d.fast, NULL, NULL), 0);
        assert_int_equal(d.fast->ops->attention_fwd(d.fast, &f, NULL), 0);
        assert_int_equal(d.fast->ops->graph_end(d.fast, NULL, &graph, NULL), 0);
        assert_int_equal(use_of(&d).fused, 2 * known);
        assert_int_equal(use_of(&d).own, 1 - known);
        assert_string_equal(use_of(&d).why, known ? "" : "a new shape inside of a recording");
        for (int i = 0; i < 3 * T * D; i++)
            dtype_set(qkv, DT_BF16, (size_t)i, guard_rand());
        f.o = want;
        assert_int_equal(d.ref->ops->attention_fwd(d.ref, &f, NULL), 0);
        assert_int_equal(d.fast->ops->graph_launch(d.fast, graph, NULL), 0);
        assert_int_equal(d.fast->ops->sync(d.fast, NULL, NULL), 0);
        guard_close("o", o, want, T * D, DT_BF16, 0.02f, 0.01f);
        d.fast->ops->graph_free(d.fast, graph);
        guard_check_all();
        close_pair(&d);
    }
}

/* One 3x3 of stride 2 with all that a graph may have, against the reference. */
static void convolve(struct devices *d, int channels, bool in_place)
{
    enum { B = 2, H = 9, W = 6, OUT = 24, N = B * 4 * 3 * OUT };
    struct conv2d p = {.B = B, .H = H, .W = W, .Cin = channels, .Cout = OUT, .k = 3, .stride = 2};
    void *add = guard_randn(N, DT_BF16, 1);
    p.x = guard_randn((size_t)(B * H * W * channels), DT_BF16, 1);
    p.w = guard_randn((size_t)(OUT * 9 * channels), DT_BF16, 0.1f);
    p.bias = guard_randn(OUT, DT_F32, 1);
    p.add = add;
    p.pad_high = 1;
    p.dt = DT_BF16;
    void *want = p.y = guard_new(N * 2);
    assert_int_equal(conv2d_side(&p, H) * conv2d_side(&p, W) * B * OUT, N);
    assert_int_equal(d->ref->ops->conv2d_fwd(d->ref, &p, NULL), 0);
    p.y = in_place ? add : guard_new(N * 2);
    assert_int_equal(d->fast->ops->conv2d_fwd(d->fast, &p, NULL), 0);
    guard_close("y", p.y, want, N, DT_BF16, 1e-5f, 1.0f / 128);
    guard_check_all();
}

static void graphs_mean_convolution(void **state)
{
    struct devices d;
    open_pair(&d, "");
    convolve(&d, 16, false);
    convolve(&d, 16, false);
    assert_int_equal(use_of(&d).fused, 2);
    convolve(&d, 16, true);
    assert_int_equal(use_of(&d).fused, 3);
    convolve(&d, 12, false);
    assert_non_null(strstr(use_of(&d).why, "no multiple of 8"));
    setenv("SKERRY_CONV", "own", 1);
    convolve(&d, 16, false);
    unsetenv("SKERRY_CONV");
    assert_string_equal(use_of(&d).why, "SKERRY_CONV=own");
    assert_int_equal(use_of(&d).fused, 3);
    assert_int_equal(use_of(&d).own, 2);
    close_pair(&d);
    open_pair(&d, "refuse");
    convolve(&d, 16, false);
    assert_int_equal(use_of(&d).own, 1);
    close_pair(&d);
}

/* Shapes without end: convolutions go round, and what a graph may hold stays. */
static void convolutions_without_end(void **state)
{
    enum { SIDES = 34, C = 8, T = 128, D = 16 };
    struct devices d;
    struct graph *graph;
    struct attention_fwd f = {.B = 1, .T = T, .H = 1, .D = D, .dt = DT_BF16};
    struct conv2d p = {.B = 1, .Cin = C, .Cout = C, .k = 1, .stride = 1, .dt = DT_BF16};
    open_pair(&d, "");
    f.qkv = guard_randn(3 * T * D, DT_BF16, 1);
    f.o = guard_new(T * D * 2);
    assert_int_equal(d.fast->ops->attention_fwd(d.fast, &f, NULL), 0);
    p.x = guard_randn(SIDES * SIDES * C, DT_BF16, 1);
    p.w = guard_randn(C * C, DT_BF16, 0.1f);
    void *y = p.y = guard_new(SIDES * SIDES * C * 2);
    for (int i = 0; i < 2 * SIDES * SIDES; i++) {
        p.H = i / SIDES % SIDES + 1;
        p.W = i % SIDES + 1;
        assert_int_equal(d.fast->ops->conv2d_fwd(d.fast, &p, NULL), 0);
    }
    assert_int_equal(use_of(&d).own, 0);
    void *want = p.y = guard_new(SIDES * SIDES * C * 2);
    assert_int_equal(d.ref->ops->conv2d_fwd(d.ref, &p, NULL), 0);
    guard_close("y", y, want, SIDES * SIDES * C, DT_BF16, 1e-5f, 1.0f / 128);
    assert_int_equal(d.fast->ops->graph_begin(d.fast, NULL, NULL), 0);
    assert_int_equal(d.fast->ops->attention_fwd(d.fast, &f, NULL), 0);
    assert_int_equal(d.fast->ops->graph_end(d.fast, NULL, &graph, NULL), 0);
    d.fast->ops->graph_free(d.fast, graph);
    assert_int_equal(use_of(&d).own, 0);
    guard_check_all();
    close_pair(&d);
}

int main(void)
{
    setenv("SKERRY_EMULATE_SDPA_LOG", LOG_NAME, 1);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(graphs_mean_attention),
        cmocka_unit_test(some_are_declined),
        cmocka_unit_test(masks_of_our_own),
        cmocka_unit_test(refusals_fall_back),
        cmocka_unit_test(a_lack_of_memory_ends),
        cmocka_unit_test(own_on_request),
        cmocka_unit_test(recorded),
        cmocka_unit_test(graphs_mean_convolution),
        cmocka_unit_test(convolutions_without_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
