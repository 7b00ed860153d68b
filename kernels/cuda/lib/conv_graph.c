#include "kernels/cuda/lib/conv_graph.h"

#include "common/base/base.h"

/* (B,C,H,W), channels last. */
static struct dnn_layout image(int64_t B, int64_t C, int64_t H, int64_t W)
{
    return (struct dnn_layout){{B, C, H, W}, {H * W * C, 1, W * C, C}};
}

static void conv_to(struct dnn_graph *g, const struct conv_shape *s, struct dnn_tensor x,
                    struct dnn_tensor w, struct dnn_tensor y)
{
    static const char what[] = "a convolution";
    const int type = DNN_FLOAT, mode = DNN_CROSS_CORRELATION;
    const int64_t sides = 2, ones[2] = {1, 1}, strides[2] = {s->stride, s->stride};
    const int64_t low[2] = {s->pad_low, s->pad_low}, high[2] = {s->pad_high, s->pad_high};
    const float one = 1, zero = 0;
    void *desc = dnn_graph_desc(g, DNN_CONV, what);
    dnn_graph_set(g, desc, DNN_CONV_TYPE, DNN_TYPE_DATA_TYPE, 1, &type, what);
    dnn_graph_set(g, desc, DNN_CONV_MODE, DNN_TYPE_CONV_MODE, 1, &mode, what);
    dnn_graph_set(g, desc, DNN_CONV_SIDES, DNN_TYPE_INT64, 1, &sides, what);
    dnn_graph_set(g, desc, DNN_CONV_DILATIONS, DNN_TYPE_INT64, 2, ones, what);
    dnn_graph_set(g, desc, DNN_CONV_STRIDES, DNN_TYPE_INT64, 2, strides, what);
    dnn_graph_set(g, desc, DNN_CONV_LOW, DNN_TYPE_INT64, 2, low, what);
    dnn_graph_set(g, desc, DNN_CONV_HIGH, DNN_TYPE_INT64, 2, high, what);
    dnn_graph_finalize(g, desc, what);
    void *op = dnn_graph_desc(g, DNN_OP_CONV, what);
    dnn_graph_set(g, op, DNN_OP_CONV_ALPHA, DNN_TYPE_FLOAT, 1, &one, what);
    dnn_graph_set(g, op, DNN_OP_CONV_BETA, DNN_TYPE_FLOAT, 1, &zero, what);
    dnn_graph_set(g, op, DNN_OP_CONV_DESC, DNN_TYPE_DESCRIPTOR, 1, &desc, what);
    dnn_graph_set_tensor(g, op, DNN_OP_CONV_X, x, what);
    dnn_graph_set_tensor(g, op, DNN_OP_CONV_W, w, what);
    dnn_graph_set_tensor(g, op, DNN_OP_CONV_Y, y, what);
    dnn_graph_add(g, op, what);
}

int conv_plan_make(const struct dnn_target *to, const struct conv_shape *s, struct dnn_plan *ret,
                   struct err *err)
{
    struct dnn_graph g = {.to = to, .plan = ret};
    const struct dnn_layout out = image(s->B, s->Cout, s->Ho, s->Wo);
    struct dnn_pointwise sum = {.mode = DNN_ADD, .math = DNN_FLOAT};
    memset(ret, 0, sizeof *ret);
    struct dnn_tensor x =
        dnn_graph_memory(&g, CONV_X, image(s->B, s->Cin, s->H, s->W), DNN_BFLOAT16);
    struct dnn_tensor w =
        dnn_graph_memory(&g, CONV_W, image(s->Cout, s->Cin, s->k, s->k), DNN_BFLOAT16);
    struct dnn_tensor y = dnn_graph_memory(&g, CONV_Y, out, DNN_BFLOAT16);
    struct dnn_tensor v = s->bias || s->add ? dnn_graph_between(&g, out, DNN_FLOAT) : y;
    conv_to(&g, s, x, w, v);
    if (s->bias) {
        struct dnn_tensor bias =
            dnn_graph_memory(&g, CONV_BIAS, image(1, s->Cout, 1, 1), DNN_FLOAT);
        struct dnn_tensor next = s->add ? dnn_graph_between(&g, out, DNN_FLOAT) : y;
        sum.b = &bias;
        dnn_graph_pointwise(&g, sum, v, next);
        v = next;
    }
    if (s->add) {
        struct dnn_tensor add = dnn_graph_memory(&g, CONV_ADD, out, DNN_BFLOAT16);
        sum.b = &add;
        dnn_graph_pointwise(&g, sum, v, y);
    }
    return dnn_graph_plan(&g, err);
}
