#include "kernels/cuda/lib/sdpa_graph.h"

#include <float.h>

#include "common/base/base.h"

/* From this release on a masked score is -infinity; older engines want the lowest number. */
enum { INFINITE_MASK = 91000 };

/* A graph being built, of this attention. */
struct builder {
    struct dnn_graph graph;
    struct sdpa_shape shape;
};

/* ---- tensors ---- */

static struct dnn_layout dense(int64_t B, int64_t H, int64_t rows, int64_t columns)
{
    return (struct dnn_layout){{B, H, rows, columns},
                               {H * rows * columns, rows * columns, columns, 1}};
}

static struct dnn_layout transposed(struct dnn_layout l)
{
    return (struct dnn_layout){{l.dims[0], l.dims[1], l.dims[3], l.dims[2]},
                               {l.strides[0], l.strides[1], l.strides[3], l.strides[2]}};
}

/* Heads of (B,T,ld): `heads` of them, D apart. */
static struct dnn_layout packed(const struct sdpa_shape *s, int heads, int64_t ld)
{
    return (struct dnn_layout){{s->B, heads, s->T, s->D}, {s->T * ld, s->D, ld, 1}};
}

static struct dnn_layout scores(const struct sdpa_shape *s)
{
    return dense(s->B, s->H, s->T, s->T);
}

static struct dnn_layout rows(const struct sdpa_shape *s)
{
    return dense(s->B, s->H, s->T, 1);
}

/* ---- operations: each writes the last tensor ---- */

/* A new f32 tensor of x's shape: mode(x), and mode(x, y). */
static struct dnn_tensor unary(struct builder *b, enum cudnn_pointwise mode, struct dnn_tensor x)
{
    struct dnn_tensor y = dnn_graph_between(&b->graph, x.at, DNN_FLOAT);
    dnn_graph_pointwise(&b->graph, (struct dnn_pointwise){.mode = mode, .math = DNN_FLOAT}, x, y);
    return y;
}

static struct dnn_tensor binary(struct builder *b, enum cudnn_pointwise mode, struct dnn_tensor x,
                                struct dnn_tensor second)
{
    struct dnn_tensor y = dnn_graph_between(&b->graph, x.at, DNN_FLOAT);
    dnn_graph_pointwise(
        &b->graph, (struct dnn_pointwise){.mode = mode, .math = DNN_FLOAT, .b = &second}, x, y);
    return y;
}

static void matmul_to(struct builder *b, struct dnn_tensor left, struct dnn_tensor right,
                      struct dnn_tensor out)
{
    static const char what[] = "a product";
    const int type = DNN_FLOAT;
    void *desc = dnn_graph_desc(&b->graph, DNN_MATMUL, what);
    dnn_graph_set(&b->graph, desc, DNN_MATMUL_TYPE, DNN_TYPE_DATA_TYPE, 1, &type, what);
    dnn_graph_finalize(&b->graph, desc, what);
    void *op = dnn_graph_desc(&b->graph, DNN_OP_MATMUL, what);
    dnn_graph_set(&b->graph, op, DNN_OP_MATMUL_DESC, DNN_TYPE_DESCRIPTOR, 1, &desc, what);
    dnn_graph_set_tensor(&b->graph, op, DNN_OP_MATMUL_A, left, what);
    dnn_graph_set_tensor(&b->graph, op, DNN_OP_MATMUL_B, right, what);
    dnn_graph_set_tensor(&b->graph, op, DNN_OP_MATMUL_C, out, what);
    dnn_graph_add(&b->graph, op, what);
}

static struct dnn_tensor score_product(struct builder *b, struct dnn_tensor left,
                                       struct dnn_tensor right)
{
    struct dnn_tensor out = dnn_graph_between(&b->graph, scores(&b->shape), DNN_FLOAT);
    matmul_to(b, left, right, out);
    return out;
}

static void reduce_to(struct builder *b, enum cudnn_reduce how, struct dnn_tensor x,
                      struct dnn_tensor y)
{
    static const char what[] = "a reduction";
    const int type = DNN_FLOAT, op_kind = (int)how;
    void *desc = dnn_graph_desc(&b->graph, DNN_REDUCTION, what);
    dnn_graph_set(&b->graph, desc, DNN_REDUCTION_TYPE, DNN_TYPE_DATA_TYPE, 1, &type, what);
    dnn_graph_set(&b->graph, desc, DNN_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION, 1, &op_kind, what);
    dnn_graph_finalize(&b->graph, desc, what);
    void *op = dnn_graph_desc(&b->graph, DNN_OP_REDUCTION, what);
    dnn_graph_set(&b->graph, op, DNN_OP_REDUCTION_DESC, DNN_TYPE_DESCRIPTOR, 1, &desc, what);
    dnn_graph_set_tensor(&b->graph, op, DNN_OP_REDUCTION_X, x, what);
    dnn_graph_set_tensor(&b->graph, op, DNN_OP_REDUCTION_Y, y, what);
    dnn_graph_add(&b->graph, op, what);
}

static struct dnn_tensor reduce_rows(struct builder *b, enum cudnn_reduce how, struct dnn_tensor x)
{
    struct dnn_tensor y = dnn_graph_between(&b->graph, rows(&b->shape), DNN_FLOAT);
    reduce_to(b, how, x, y);
    return y;
}

/* The same memory with rows and columns exchanged. */
static struct dnn_tensor transpose(struct builder *b, struct dnn_tensor x, int type)
{
    static const char what[] = "a transposition";
    struct dnn_tensor y = dnn_graph_between(&b->graph, transposed(x.at), type);
    void *op = dnn_graph_desc(&b->graph, DNN_OP_RESHAPE, what);
    dnn_graph_set_tensor(&b->graph, op, DNN_OP_RESHAPE_X, x, what);
    dnn_graph_set_tensor(&b->graph, op, DNN_OP_RESHAPE_Y, y, what);
    dnn_graph_add(&b->graph, op, what);
    return y;
}

/* Scores of keys behind their query become `low`. */
static struct dnn_tensor causal(struct builder *b, struct dnn_tensor s)
{
    const float low_value = b->graph.to->version >= INFINITE_MASK ? -INFINITY : -FLT_MAX;
    struct dnn_tensor row = dnn_graph_between(&b->graph, s.at, DNN_INT32),
                      column = dnn_graph_between(&b->graph, s.at, DNN_INT32);
    struct dnn_pointwise index = {.mode = DNN_GEN_INDEX, .math = DNN_FLOAT, .axis = 2};
    dnn_graph_pointwise(&b->graph, index, s, row);
    index.axis = 3;
    dnn_graph_pointwise(&b->graph, index, s, column);
    struct dnn_tensor seen = dnn_graph_between(&b->graph, s.at, DNN_BOOLEAN);
    dnn_graph_pointwise(
        &b->graph, (struct dnn_pointwise){.mode = DNN_CMP_GE, .math = DNN_BOOLEAN, .b = &column},
        row, seen);
    struct dnn_tensor low = dnn_graph_value(&b->graph, SDPA_LOW, low_value),
                      y = dnn_graph_between(&b->graph, s.at, DNN_FLOAT);
    dnn_graph_pointwise(
        &b->graph,
        (struct dnn_pointwise){.mode = DNN_SELECT, .math = DNN_FLOAT, .b = &low, .t = &seen}, s, y);
    return y;
}

/* ---- attention ---- */

static int64_t qkv_ld(const struct sdpa_shape *s)
{
    return (int64_t)(s->H + 2 * s->Hkv) * s->D;
}

static struct dnn_tensor scale_value(struct builder *b)
{
    return dnn_graph_value(&b->graph, SDPA_SCALE, 1.0f / sqrtf((float)b->shape.D));
}

static void forward(struct builder *b)
{
    const struct sdpa_shape *s = &b->shape;
    const int64_t ld = qkv_ld(s);
    struct dnn_tensor q = dnn_graph_memory(&b->graph, SDPA_Q, packed(s, s->H, ld), DNN_BFLOAT16);
    struct dnn_tensor k =
        dnn_graph_memory(&b->graph, SDPA_K, transposed(packed(s, s->Hkv, ld)), DNN_BFLOAT16);
    struct dnn_tensor v = dnn_graph_memory(&b->graph, SDPA_V, packed(s, s->Hkv, ld), DNN_BFLOAT16);
    struct dnn_tensor o =
        dnn_graph_memory(&b->graph, SDPA_O, packed(s, s->H, (int64_t)s->H * s->D), DNN_BFLOAT16);
    struct dnn_tensor x = binary(b, DNN_MUL, score_product(b, q, k), scale_value(b));
    if (s->causal)
        x = causal(b, x);
    struct dnn_tensor max = reduce_rows(b, DNN_REDUCE_MAX, x);
    struct dnn_tensor e = unary(b, DNN_EXP, binary(b, DNN_SUB, x, max));
    struct dnn_tensor sum = reduce_rows(b, DNN_REDUCE_ADD, e);
    /* The engines look for it, wanted or not. */
    struct dnn_tensor log_sum = unary(b, DNN_LOG, sum);
    struct dnn_tensor lse = s->stats ? dnn_graph_memory(&b->graph, SDPA_LSE, rows(s), DNN_FLOAT)
                                     : dnn_graph_between(&b->graph, rows(s), DNN_FLOAT);
    dnn_graph_pointwise(&b->graph,
                        (struct dnn_pointwise){.mode = DNN_ADD, .math = DNN_FLOAT, .b = &log_sum},
                        max, lse);
    struct dnn_tensor p = dnn_graph_between(&b->graph, scores(s), DNN_BFLOAT16);
    dnn_graph_pointwise(
        &b->graph, (struct dnn_pointwise){.mode = DNN_DIV, .math = DNN_FLOAT, .b = &sum}, e, p);
    matmul_to(b, p, v, o);
}

/* grad (B,Hkv,T,D) = left right, summed over the query heads that share a key head. */
static void key_gradient(struct builder *b, struct dnn_tensor left, struct dnn_tensor right,
                         struct dnn_tensor grad)
{
    const struct sdpa_shape *s = &b->shape;
    if (s->H == s->Hkv) {
        matmul_to(b, left, right, grad);
        return;
    }
    struct dnn_tensor all =
        dnn_graph_between(&b->graph, dense(s->B, s->H, s->T, s->D), DNN_BFLOAT16);
    matmul_to(b, left, right, all);
    reduce_to(b, DNN_REDUCE_ADD, all, grad);
}

static void backward(struct builder *b)
{
    const struct sdpa_shape *s = &b->shape;
    const int64_t ld = qkv_ld(s), o_ld = (int64_t)s->H * s->D;
    struct dnn_tensor q = dnn_graph_memory(&b->graph, SDPA_Q, packed(s, s->H, ld), DNN_BFLOAT16);
    struct dnn_tensor k =
        dnn_graph_memory(&b->graph, SDPA_K, transposed(packed(s, s->Hkv, ld)), DNN_BFLOAT16);
    struct dnn_tensor v =
        dnn_graph_memory(&b->graph, SDPA_V, transposed(packed(s, s->Hkv, ld)), DNN_BFLOAT16);
    struct dnn_tensor o = dnn_graph_memory(&b->graph, SDPA_O, packed(s, s->H, o_ld), DNN_BFLOAT16);
    struct dnn_tensor d_o =
        dnn_graph_memory(&b->graph, SDPA_DO, packed(s, s->H, o_ld), DNN_BFLOAT16);
    struct dnn_tensor lse = dnn_graph_memory(&b->graph, SDPA_LSE, rows(s), DNN_FLOAT);
    struct dnn_tensor dq = dnn_graph_memory(&b->graph, SDPA_DQ, packed(s, s->H, ld), DNN_BFLOAT16);
    struct dnn_tensor dk =
        dnn_graph_memory(&b->graph, SDPA_DK, packed(s, s->Hkv, ld), DNN_BFLOAT16);
    struct dnn_tensor dv =
        dnn_graph_memory(&b->graph, SDPA_DV, packed(s, s->Hkv, ld), DNN_BFLOAT16);
    struct dnn_tensor scale = scale_value(b), one = dnn_graph_value(&b->graph, SDPA_ONE, 1);

    /* The engines look for this factor, which is 1 without dropout. */
    struct dnn_tensor row_sum = dnn_graph_memory(&b->graph, SDPA_ROW_SUM, rows(s), DNN_FLOAT);
    struct dnn_tensor product =
        dnn_graph_between(&b->graph, dense(s->B, s->H, s->T, s->D), DNN_FLOAT);
    dnn_graph_pointwise(&b->graph,
                        (struct dnn_pointwise){.mode = DNN_MUL, .math = DNN_FLOAT, .b = &o}, d_o,
                        product);
    dnn_graph_pointwise(&b->graph,
                        (struct dnn_pointwise){.mode = DNN_MUL, .math = DNN_FLOAT, .b = &one},
                        reduce_rows(b, DNN_REDUCE_ADD, product), row_sum);

    struct dnn_tensor x = binary(b, DNN_MUL, score_product(b, q, k), scale);
    x = binary(b, DNN_SUB, x, lse);
    if (s->causal)
        x = causal(b, x);
    struct dnn_tensor p = unary(b, DNN_EXP, x);
    key_gradient(b, transpose(b, p, DNN_BFLOAT16), d_o, dv);

    struct dnn_tensor dp = binary(b, DNN_SUB, score_product(b, d_o, v), row_sum);
    struct dnn_tensor ds = binary(b, DNN_MUL, binary(b, DNN_MUL, dp, p), scale);
    key_gradient(b, transpose(b, ds, DNN_BFLOAT16), q, dk);

    struct dnn_tensor dq_sum =
        dnn_graph_memory(&b->graph, SDPA_DQ_SUM, dense(s->B, s->H, s->T, s->D), DNN_FLOAT);
    matmul_to(b, ds, transpose(b, k, DNN_FLOAT), dq_sum);
    dnn_graph_pointwise(&b->graph, (struct dnn_pointwise){.mode = DNN_IDENTITY, .math = DNN_FLOAT},
                        dq_sum, dq);
}

int sdpa_plan_make(const struct dnn_target *to, const struct sdpa_shape *shape,
                   struct dnn_plan *ret, struct err *err)
{
    struct builder b = {.graph = {.to = to, .plan = ret}, .shape = *shape};
    memset(ret, 0, sizeof *ret);
    if (shape->backward)
        backward(&b);
    else
        forward(&b);
    return dnn_graph_plan(&b.graph, err);
}
