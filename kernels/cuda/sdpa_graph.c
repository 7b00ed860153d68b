#include "kernels/cuda/sdpa_graph.h"

#include <float.h>

#include "common/base/base.h"
#include "kernels/cuda/lib.h"

enum {
    OPERATIONS = 40,
    CONFIGS = 8, /* of engines to try, best first */
    ALIGNMENT = 16,
    FIRST_VIRTUAL = 100,
    /* From this release on a masked score is -infinity; older engines want the lowest number. */
    INFINITE_MASK = 91000,
};

/* A graph being built.  The first refusal stays in `status`; all that follows does nothing. */
struct builder {
    const struct sdpa_target *to;
    struct sdpa_shape shape;
    struct sdpa_plan *plan;
    void *operations[OPERATIONS];
    int operation_count, next_id;
    int status;
    const char *what; /* was refused */
};

/* (B,H,rows,columns) and where it lies. */
struct layout {
    int64_t dims[4], strides[4];
};

struct tensor {
    void *desc;
    struct layout at;
};

int cudnn_open(struct cudnn_api *ret, struct err *err)
{
    static const char *const names[] = {"libcudnn.so.9", NULL};
    static const char *const symbols[] = {CUDNN_API_SYMBOLS, NULL};
    static const struct lib lib = {"cuDNN 9", names, symbols};
    void *found[sizeof symbols / sizeof *symbols - 1];
    _Static_assert(sizeof found == sizeof *ret, "one name for each entry");
    int rc = lib_open(&lib, found, err);
    if (rc == 0)
        memcpy(ret, found, sizeof *ret);
    return rc;
}

static void check(struct builder *b, int status, const char *what)
{
    if (b->status == DNN_SUCCESS && status != DNN_SUCCESS) {
        b->status = status;
        b->what = what;
    }
}

static void *create(struct builder *b, int kind, const char *what)
{
    struct sdpa_plan *plan = b->plan;
    void *desc = NULL;
    if (b->status != DNN_SUCCESS || plan->count == SDPA_PARTS) {
        check(b, -1, "too large a graph");
        return NULL;
    }
    check(b, b->to->api->descriptor(kind, &desc), what);
    if (b->status == DNN_SUCCESS)
        plan->parts[plan->count++] = desc;
    return desc;
}

static void set(struct builder *b, void *desc, int attribute, int element, int64_t count,
                const void *values, const char *what)
{
    if (b->status == DNN_SUCCESS)
        check(b, b->to->api->set(desc, attribute, element, count, values), what);
}

static void set_tensor(struct builder *b, void *desc, int attribute, struct tensor t,
                       const char *what)
{
    set(b, desc, attribute, DNN_TYPE_DESCRIPTOR, 1, &t.desc, what);
}

static void finalize(struct builder *b, void *desc, const char *what)
{
    if (b->status == DNN_SUCCESS)
        check(b, b->to->api->finalize(desc), what);
}

/* ---- tensors ---- */

static struct layout dense(int64_t B, int64_t H, int64_t rows, int64_t columns)
{
    return (struct layout){{B, H, rows, columns}, {H * rows * columns, rows * columns, columns, 1}};
}

static struct layout transposed(struct layout l)
{
    return (struct layout){{l.dims[0], l.dims[1], l.dims[3], l.dims[2]},
                           {l.strides[0], l.strides[1], l.strides[3], l.strides[2]}};
}

/* Heads of (B,T,ld): `heads` of them, D apart. */
static struct layout packed(const struct sdpa_shape *s, int heads, int64_t ld)
{
    return (struct layout){{s->B, heads, s->T, s->D}, {s->T * ld, s->D, ld, 1}};
}

static struct layout scores(const struct sdpa_shape *s)
{
    return dense(s->B, s->H, s->T, s->T);
}

static struct layout rows(const struct sdpa_shape *s)
{
    return dense(s->B, s->H, s->T, 1);
}

static struct tensor make_tensor(struct builder *b, int64_t id, struct layout l, int64_t type,
                                 bool is_virtual, bool by_value)
{
    static const char what[] = "a tensor";
    const int64_t alignment = ALIGNMENT;
    const int data = (int)type;
    struct tensor t = {create(b, DNN_TENSOR, what), l};
    set(b, t.desc, DNN_TENSOR_TYPE, DNN_TYPE_DATA_TYPE, 1, &data, what);
    set(b, t.desc, DNN_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, l.dims, what);
    set(b, t.desc, DNN_TENSOR_STRIDES, DNN_TYPE_INT64, 4, l.strides, what);
    set(b, t.desc, DNN_TENSOR_ID, DNN_TYPE_INT64, 1, &id, what);
    set(b, t.desc, DNN_TENSOR_ALIGNMENT, DNN_TYPE_INT64, 1, &alignment, what);
    set(b, t.desc, DNN_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &is_virtual, what);
    if (by_value)
        set(b, t.desc, DNN_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, &by_value, what);
    finalize(b, t.desc, what);
    return t;
}

/* Memory of the caller. */
static struct tensor memory(struct builder *b, enum sdpa_id id, struct layout l, int type)
{
    b->plan->used[id] = true;
    return make_tensor(b, id, l, type, false, false);
}

/* A number on the host, f32. */
static struct tensor value(struct builder *b, enum sdpa_id id, float v)
{
    b->plan->used[id] = true;
    b->plan->values[id] = v;
    return make_tensor(b, id, dense(1, 1, 1, 1), DNN_FLOAT, false, true);
}

/* What passes from one operation to the next. */
static struct tensor between(struct builder *b, struct layout l, int type)
{
    return make_tensor(b, FIRST_VIRTUAL + b->next_id++, l, type, true, false);
}

/* ---- operations: each writes the last tensor ---- */

static void add_operation(struct builder *b, void *op, const char *what)
{
    finalize(b, op, what);
    if (b->operation_count == OPERATIONS)
        check(b, -1, "too large a graph");
    else
        b->operations[b->operation_count++] = op;
}

struct pointwise {
    enum cudnn_pointwise mode;
    enum cudnn_data math;
    int64_t axis;               /* of DNN_GEN_INDEX */
    const struct tensor *b, *t; /* second operand and condition, or NULL */
};

static void pointwise_to(struct builder *b, struct pointwise p, struct tensor x, struct tensor y)
{
    static const char what[] = "a pointwise operation";
    const int mode = (int)p.mode, math = (int)p.math;
    void *desc = create(b, DNN_POINTWISE, what);
    set(b, desc, DNN_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    set(b, desc, DNN_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, &math, what);
    if (p.mode == DNN_GEN_INDEX)
        set(b, desc, DNN_POINTWISE_AXIS, DNN_TYPE_INT64, 1, &p.axis, what);
    finalize(b, desc, what);
    void *op = create(b, DNN_OP_POINTWISE, what);
    set(b, op, DNN_OP_POINTWISE_DESC, DNN_TYPE_DESCRIPTOR, 1, &desc, what);
    set_tensor(b, op, DNN_OP_POINTWISE_X, x, what);
    if (p.b)
        set_tensor(b, op, DNN_OP_POINTWISE_B, *p.b, what);
    if (p.t)
        set_tensor(b, op, DNN_OP_POINTWISE_T, *p.t, what);
    set_tensor(b, op, DNN_OP_POINTWISE_Y, y, what);
    add_operation(b, op, what);
}

/* A new f32 tensor of x's shape: mode(x), and mode(x, y). */
static struct tensor unary(struct builder *b, enum cudnn_pointwise mode, struct tensor x)
{
    struct tensor y = between(b, x.at, DNN_FLOAT);
    pointwise_to(b, (struct pointwise){.mode = mode, .math = DNN_FLOAT}, x, y);
    return y;
}

static struct tensor binary(struct builder *b, enum cudnn_pointwise mode, struct tensor x,
                            struct tensor second)
{
    struct tensor y = between(b, x.at, DNN_FLOAT);
    pointwise_to(b, (struct pointwise){.mode = mode, .math = DNN_FLOAT, .b = &second}, x, y);
    return y;
}

static void matmul_to(struct builder *b, struct tensor left, struct tensor right, struct tensor out)
{
    static const char what[] = "a product";
    const int type = DNN_FLOAT;
    void *desc = create(b, DNN_MATMUL, what);
    set(b, desc, DNN_MATMUL_TYPE, DNN_TYPE_DATA_TYPE, 1, &type, what);
    finalize(b, desc, what);
    void *op = create(b, DNN_OP_MATMUL, what);
    set(b, op, DNN_OP_MATMUL_DESC, DNN_TYPE_DESCRIPTOR, 1, &desc, what);
    set_tensor(b, op, DNN_OP_MATMUL_A, left, what);
    set_tensor(b, op, DNN_OP_MATMUL_B, right, what);
    set_tensor(b, op, DNN_OP_MATMUL_C, out, what);
    add_operation(b, op, what);
}

static struct tensor score_product(struct builder *b, struct tensor left, struct tensor right)
{
    struct tensor out = between(b, scores(&b->shape), DNN_FLOAT);
    matmul_to(b, left, right, out);
    return out;
}

static void reduce_to(struct builder *b, enum cudnn_reduce how, struct tensor x, struct tensor y)
{
    static const char what[] = "a reduction";
    const int type = DNN_FLOAT, op_kind = (int)how;
    void *desc = create(b, DNN_REDUCTION, what);
    set(b, desc, DNN_REDUCTION_TYPE, DNN_TYPE_DATA_TYPE, 1, &type, what);
    set(b, desc, DNN_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION, 1, &op_kind, what);
    finalize(b, desc, what);
    void *op = create(b, DNN_OP_REDUCTION, what);
    set(b, op, DNN_OP_REDUCTION_DESC, DNN_TYPE_DESCRIPTOR, 1, &desc, what);
    set_tensor(b, op, DNN_OP_REDUCTION_X, x, what);
    set_tensor(b, op, DNN_OP_REDUCTION_Y, y, what);
    add_operation(b, op, what);
}

static struct tensor reduce_rows(struct builder *b, enum cudnn_reduce how, struct tensor x)
{
    struct tensor y = between(b, rows(&b->shape), DNN_FLOAT);
    reduce_to(b, how, x, y);
    return y;
}

/* The same memory with rows and columns exchanged. */
static struct tensor transpose(struct builder *b, struct tensor x, int type)
{
    static const char what[] = "a transposition";
    struct tensor y = between(b, transposed(x.at), type);
    void *op = create(b, DNN_OP_RESHAPE, what);
    set_tensor(b, op, DNN_OP_RESHAPE_X, x, what);
    set_tensor(b, op, DNN_OP_RESHAPE_Y, y, what);
    add_operation(b, op, what);
    return y;
}

/* Scores of keys behind their query become `low`. */
static struct tensor causal(struct builder *b, struct tensor s)
{
    const float low_value = b->to->version >= INFINITE_MASK ? -INFINITY : -FLT_MAX;
    struct tensor row = between(b, s.at, DNN_INT32), column = between(b, s.at, DNN_INT32);
    struct pointwise index = {.mode = DNN_GEN_INDEX, .math = DNN_FLOAT, .axis = 2};
    pointwise_to(b, index, s, row);
    index.axis = 3;
    pointwise_to(b, index, s, column);
    struct tensor seen = between(b, s.at, DNN_BOOLEAN);
    pointwise_to(b, (struct pointwise){.mode = DNN_CMP_GE, .math = DNN_BOOLEAN, .b = &column}, row,
                 seen);
    struct tensor low = value(b, SDPA_LOW, low_value), y = between(b, s.at, DNN_FLOAT);
    pointwise_to(
        b, (struct pointwise){.mode = DNN_SELECT, .math = DNN_FLOAT, .b = &low, .t = &seen}, s, y);
    return y;
}

/* ---- attention ---- */

static int64_t qkv_ld(const struct sdpa_shape *s)
{
    return (int64_t)(s->H + 2 * s->Hkv) * s->D;
}

static struct tensor scale_value(struct builder *b)
{
    return value(b, SDPA_SCALE, 1.0f / sqrtf((float)b->shape.D));
}

static void forward(struct builder *b)
{
    const struct sdpa_shape *s = &b->shape;
    const int64_t ld = qkv_ld(s);
    struct tensor q = memory(b, SDPA_Q, packed(s, s->H, ld), DNN_BFLOAT16);
    struct tensor k = memory(b, SDPA_K, transposed(packed(s, s->Hkv, ld)), DNN_BFLOAT16);
    struct tensor v = memory(b, SDPA_V, packed(s, s->Hkv, ld), DNN_BFLOAT16);
    struct tensor o = memory(b, SDPA_O, packed(s, s->H, (int64_t)s->H * s->D), DNN_BFLOAT16);
    struct tensor x = binary(b, DNN_MUL, score_product(b, q, k), scale_value(b));
    if (s->causal)
        x = causal(b, x);
    struct tensor max = reduce_rows(b, DNN_REDUCE_MAX, x);
    struct tensor e = unary(b, DNN_EXP, binary(b, DNN_SUB, x, max));
    struct tensor sum = reduce_rows(b, DNN_REDUCE_ADD, e);
    /* The engines look for it, wanted or not. */
    struct tensor log_sum = unary(b, DNN_LOG, sum);
    struct tensor lse =
        s->stats ? memory(b, SDPA_LSE, rows(s), DNN_FLOAT) : between(b, rows(s), DNN_FLOAT);
    pointwise_to(b, (struct pointwise){.mode = DNN_ADD, .math = DNN_FLOAT, .b = &log_sum}, max,
                 lse);
    struct tensor p = between(b, scores(s), DNN_BFLOAT16);
    pointwise_to(b, (struct pointwise){.mode = DNN_DIV, .math = DNN_FLOAT, .b = &sum}, e, p);
    matmul_to(b, p, v, o);
}

/* grad (B,Hkv,T,D) = left right, summed over the query heads that share a key head. */
static void key_gradient(struct builder *b, struct tensor left, struct tensor right,
                         struct tensor grad)
{
    const struct sdpa_shape *s = &b->shape;
    if (s->H == s->Hkv) {
        matmul_to(b, left, right, grad);
        return;
    }
    struct tensor all = between(b, dense(s->B, s->H, s->T, s->D), DNN_BFLOAT16);
    matmul_to(b, left, right, all);
    reduce_to(b, DNN_REDUCE_ADD, all, grad);
}

static void backward(struct builder *b)
{
    const struct sdpa_shape *s = &b->shape;
    const int64_t ld = qkv_ld(s), o_ld = (int64_t)s->H * s->D;
    struct tensor q = memory(b, SDPA_Q, packed(s, s->H, ld), DNN_BFLOAT16);
    struct tensor k = memory(b, SDPA_K, transposed(packed(s, s->Hkv, ld)), DNN_BFLOAT16);
    struct tensor v = memory(b, SDPA_V, transposed(packed(s, s->Hkv, ld)), DNN_BFLOAT16);
    struct tensor o = memory(b, SDPA_O, packed(s, s->H, o_ld), DNN_BFLOAT16);
    struct tensor d_o = memory(b, SDPA_DO, packed(s, s->H, o_ld), DNN_BFLOAT16);
    struct tensor lse = memory(b, SDPA_LSE, rows(s), DNN_FLOAT);
    struct tensor dq = memory(b, SDPA_DQ, packed(s, s->H, ld), DNN_BFLOAT16);
    struct tensor dk = memory(b, SDPA_DK, packed(s, s->Hkv, ld), DNN_BFLOAT16);
    struct tensor dv = memory(b, SDPA_DV, packed(s, s->Hkv, ld), DNN_BFLOAT16);
    struct tensor scale = scale_value(b), one = value(b, SDPA_ONE, 1);

    /* The engines look for this factor, which is 1 without dropout. */
    struct tensor row_sum = memory(b, SDPA_ROW_SUM, rows(s), DNN_FLOAT);
    struct tensor product = between(b, dense(s->B, s->H, s->T, s->D), DNN_FLOAT);
    pointwise_to(b, (struct pointwise){.mode = DNN_MUL, .math = DNN_FLOAT, .b = &o}, d_o, product);
    pointwise_to(b, (struct pointwise){.mode = DNN_MUL, .math = DNN_FLOAT, .b = &one},
                 reduce_rows(b, DNN_REDUCE_ADD, product), row_sum);

    struct tensor x = binary(b, DNN_MUL, score_product(b, q, k), scale);
    x = binary(b, DNN_SUB, x, lse);
    if (s->causal)
        x = causal(b, x);
    struct tensor p = unary(b, DNN_EXP, x);
    key_gradient(b, transpose(b, p, DNN_BFLOAT16), d_o, dv);

    struct tensor dp = binary(b, DNN_SUB, score_product(b, d_o, v), row_sum);
    struct tensor ds = binary(b, DNN_MUL, binary(b, DNN_MUL, dp, p), scale);
    key_gradient(b, transpose(b, ds, DNN_BFLOAT16), q, dk);

    struct tensor dq_sum = memory(b, SDPA_DQ_SUM, dense(s->B, s->H, s->T, s->D), DNN_FLOAT);
    matmul_to(b, ds, transpose(b, k, DNN_FLOAT), dq_sum);
    pointwise_to(b, (struct pointwise){.mode = DNN_IDENTITY, .math = DNN_FLOAT}, dq_sum, dq);
}

/* ---- plans ---- */

static void *operation_graph(struct builder *b)
{
    static const char what[] = "the graph";
    void *graph = create(b, DNN_GRAPH, what);
    set(b, graph, DNN_GRAPH_OPS, DNN_TYPE_DESCRIPTOR, b->operation_count, b->operations, what);
    if (b->to->handle)
        set(b, graph, DNN_GRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &b->to->handle, what);
    finalize(b, graph, what);
    return graph;
}

/* Engines for the graph, best first: their number. */
static int engine_configs(struct builder *b, void *graph, void *configs[CONFIGS])
{
    static const char what[] = "the choice of an engine";
    const struct cudnn_api *api = b->to->api;
    const int mode = DNN_HEURISTIC_A;
    int64_t count = 0;
    void *heuristic = create(b, DNN_ENGINEHEUR, what);
    set(b, heuristic, DNN_ENGINEHEUR_GRAPH, DNN_TYPE_DESCRIPTOR, 1, &graph, what);
    set(b, heuristic, DNN_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, &mode, what);
    if (b->to->properties)
        set(b, heuristic, DNN_ENGINEHEUR_DEVICEPROP, DNN_TYPE_DESCRIPTOR, 1, &b->to->properties,
            what);
    finalize(b, heuristic, what);
    for (int i = 0; i < CONFIGS; i++)
        configs[i] = create(b, DNN_ENGINECFG, what);
    if (b->status == DNN_SUCCESS)
        check(b,
              api->get(heuristic, DNN_ENGINEHEUR_RESULTS, DNN_TYPE_DESCRIPTOR, CONFIGS, &count,
                       configs),
              what);
    if (b->status == DNN_SUCCESS && count < 1)
        check(b, -1, "this attention: it has no engine");
    return b->status != DNN_SUCCESS ? 0 : count < CONFIGS ? (int)count : CONFIGS;
}

/* The plan of one engine; the refusal of an engine is not the end. */
static bool plan_of(struct builder *b, void *config)
{
    static const char what[] = "all of its engines";
    const struct sdpa_target *to = b->to;
    int64_t count = 0;
    void *plan = create(b, DNN_PLAN, what);
    if (b->status != DNN_SUCCESS)
        return false;
    int status = to->handle ? to->api->set(plan, DNN_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, &to->handle)
                            : to->api->set(plan, DNN_PLAN_DEVICEPROP, DNN_TYPE_DESCRIPTOR, 1,
                                           &to->properties);
    if (status == DNN_SUCCESS)
        status = to->api->set(plan, DNN_PLAN_CONFIG, DNN_TYPE_DESCRIPTOR, 1, &config);
    if (status == DNN_SUCCESS)
        status = to->api->finalize(plan);
    if (status == DNN_SUCCESS)
        status = to->api->get(plan, DNN_PLAN_WORKSPACE_SIZE, DNN_TYPE_INT64, 1, &count,
                              &b->plan->work_bytes);
    if (status == DNN_SUCCESS)
        b->plan->plan = plan;
    return status == DNN_SUCCESS;
}

int sdpa_plan_make(const struct sdpa_target *to, const struct sdpa_shape *shape,
                   struct sdpa_plan *ret, struct err *err)
{
    struct builder b = {.to = to, .shape = *shape, .plan = ret};
    void *configs[CONFIGS] = {NULL};
    memset(ret, 0, sizeof *ret);
    if (shape->backward)
        backward(&b);
    else
        forward(&b);
    void *graph = operation_graph(&b);
    int n = engine_configs(&b, graph, configs);
    for (int i = 0; i < n && !ret->plan; i++)
        plan_of(&b, configs[i]);
    if (ret->plan)
        return 0;
    check(&b, -1, "all of its engines");
    sdpa_plan_drop(to->api, ret);
    return err_set(err, -ERR_DEVICE, "cuDNN %d refused %s (status %d)", to->version, b.what,
                   b.status);
}

int sdpa_plan_run(const struct cudnn_api *api, void *handle, const struct sdpa_plan *plan,
                  void *const at[SDPA_IDS], void *work)
{
    int64_t ids[SDPA_IDS];
    const void *pointers[SDPA_IDS];
    void *pack = NULL;
    int64_t n = 0;
    for (int id = 0; id < SDPA_IDS; id++) {
        if (!plan->used[id])
            continue;
        ids[n] = id;
        pointers[n++] = id >= SDPA_SCALE ? (const void *)&plan->values[id] : at[id];
    }
    int status = api->descriptor(DNN_VARIANT_PACK, &pack);
    if (status != DNN_SUCCESS)
        return status;
    status = api->set(pack, DNN_PACK_IDS, DNN_TYPE_INT64, n, ids);
    if (status == DNN_SUCCESS)
        status = api->set(pack, DNN_PACK_POINTERS, DNN_TYPE_VOID_PTR, n, pointers);
    if (status == DNN_SUCCESS)
        status = api->set(pack, DNN_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, &work);
    if (status == DNN_SUCCESS)
        status = api->finalize(pack);
    if (status == DNN_SUCCESS)
        status = api->execute(handle, plan->plan, pack);
    api->drop(pack);
    return status;
}

void sdpa_plan_drop(const struct cudnn_api *api, struct sdpa_plan *plan)
{
    while (plan->count)
        api->drop(plan->parts[--plan->count]);
    memset(plan, 0, sizeof *plan);
}
