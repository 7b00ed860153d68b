#include "kernels/cuda/lib/dnn_graph.h"

#include "common/base/base.h"
#include "kernels/cuda/lib/lib.h"

enum {
    CONFIGS = 8, /* of engines to try, best first */
    ALIGNMENT = 16,
    FIRST_VIRTUAL = 100,
};

int dnn_open(struct cudnn_api *ret, struct err *err)
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

static void check(struct dnn_graph *b, int status, const char *what)
{
    if (b->status == DNN_SUCCESS && status != DNN_SUCCESS) {
        b->status = status;
        b->what = what;
    }
}

void *dnn_graph_desc(struct dnn_graph *b, int kind, const char *what)
{
    struct dnn_plan *plan = b->plan;
    void *desc = NULL;
    if (b->status != DNN_SUCCESS || plan->count == DNN_PARTS) {
        check(b, -1, "too large a graph");
        return NULL;
    }
    check(b, b->to->api->descriptor(kind, &desc), what);
    if (b->status == DNN_SUCCESS)
        plan->parts[plan->count++] = desc;
    return desc;
}

void dnn_graph_set(struct dnn_graph *b, void *desc, int attribute, int element, int64_t count,
                   const void *values, const char *what)
{
    if (b->status == DNN_SUCCESS)
        check(b, b->to->api->set(desc, attribute, element, count, values), what);
}

void dnn_graph_set_tensor(struct dnn_graph *b, void *desc, int attribute, struct dnn_tensor t,
                          const char *what)
{
    dnn_graph_set(b, desc, attribute, DNN_TYPE_DESCRIPTOR, 1, &t.desc, what);
}

void dnn_graph_finalize(struct dnn_graph *b, void *desc, const char *what)
{
    if (b->status == DNN_SUCCESS)
        check(b, b->to->api->finalize(desc), what);
}

/* ---- tensors ---- */

static struct dnn_tensor make_tensor(struct dnn_graph *b, int64_t id, struct dnn_layout l,
                                     int64_t type, bool is_virtual, bool by_value)
{
    static const char what[] = "a tensor";
    const int64_t alignment = ALIGNMENT;
    const int data = (int)type;
    struct dnn_tensor t = {dnn_graph_desc(b, DNN_TENSOR, what), l};
    dnn_graph_set(b, t.desc, DNN_TENSOR_TYPE, DNN_TYPE_DATA_TYPE, 1, &data, what);
    dnn_graph_set(b, t.desc, DNN_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, l.dims, what);
    dnn_graph_set(b, t.desc, DNN_TENSOR_STRIDES, DNN_TYPE_INT64, 4, l.strides, what);
    dnn_graph_set(b, t.desc, DNN_TENSOR_ID, DNN_TYPE_INT64, 1, &id, what);
    dnn_graph_set(b, t.desc, DNN_TENSOR_ALIGNMENT, DNN_TYPE_INT64, 1, &alignment, what);
    dnn_graph_set(b, t.desc, DNN_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, &is_virtual, what);
    if (by_value)
        dnn_graph_set(b, t.desc, DNN_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, &by_value, what);
    dnn_graph_finalize(b, t.desc, what);
    return t;
}

struct dnn_tensor dnn_graph_memory(struct dnn_graph *b, int id, struct dnn_layout l, int type)
{
    b->plan->used[id] = true;
    return make_tensor(b, id, l, type, false, false);
}

struct dnn_tensor dnn_graph_value(struct dnn_graph *b, int id, float v)
{
    b->plan->used[id] = true;
    b->plan->values[id] = v;
    return make_tensor(b, id, (struct dnn_layout){{1, 1, 1, 1}, {1, 1, 1, 1}}, DNN_FLOAT, false,
                       true);
}

struct dnn_tensor dnn_graph_between(struct dnn_graph *b, struct dnn_layout l, int type)
{
    return make_tensor(b, FIRST_VIRTUAL + b->next_id++, l, type, true, false);
}

/* ---- operations ---- */

void dnn_graph_add(struct dnn_graph *b, void *op, const char *what)
{
    dnn_graph_finalize(b, op, what);
    if (b->operation_count == DNN_OPERATIONS)
        check(b, -1, "too large a graph");
    else
        b->operations[b->operation_count++] = op;
}

void dnn_graph_pointwise(struct dnn_graph *b, struct dnn_pointwise p, struct dnn_tensor x,
                         struct dnn_tensor y)
{
    static const char what[] = "a pointwise operation";
    const int mode = (int)p.mode, math = (int)p.math;
    void *desc = dnn_graph_desc(b, DNN_POINTWISE, what);
    dnn_graph_set(b, desc, DNN_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, &mode, what);
    dnn_graph_set(b, desc, DNN_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, &math, what);
    if (p.mode == DNN_GEN_INDEX)
        dnn_graph_set(b, desc, DNN_POINTWISE_AXIS, DNN_TYPE_INT64, 1, &p.axis, what);
    dnn_graph_finalize(b, desc, what);
    void *op = dnn_graph_desc(b, DNN_OP_POINTWISE, what);
    dnn_graph_set(b, op, DNN_OP_POINTWISE_DESC, DNN_TYPE_DESCRIPTOR, 1, &desc, what);
    dnn_graph_set_tensor(b, op, DNN_OP_POINTWISE_X, x, what);
    if (p.b)
        dnn_graph_set_tensor(b, op, DNN_OP_POINTWISE_B, *p.b, what);
    if (p.t)
        dnn_graph_set_tensor(b, op, DNN_OP_POINTWISE_T, *p.t, what);
    dnn_graph_set_tensor(b, op, DNN_OP_POINTWISE_Y, y, what);
    dnn_graph_add(b, op, what);
}

/* ---- plans ---- */

static void *operation_graph(struct dnn_graph *b)
{
    static const char what[] = "the graph";
    void *graph = dnn_graph_desc(b, DNN_GRAPH, what);
    dnn_graph_set(b, graph, DNN_GRAPH_OPS, DNN_TYPE_DESCRIPTOR, b->operation_count, b->operations,
                  what);
    if (b->to->handle)
        dnn_graph_set(b, graph, DNN_GRAPH_HANDLE, DNN_TYPE_HANDLE, 1, &b->to->handle, what);
    dnn_graph_finalize(b, graph, what);
    return graph;
}

/* Engines for the graph, best first: their number. */
static int engine_configs(struct dnn_graph *b, void *graph, void *configs[CONFIGS])
{
    static const char what[] = "the choice of an engine";
    const struct cudnn_api *api = b->to->api;
    const int mode = DNN_HEURISTIC_A;
    int64_t count = 0;
    void *heuristic = dnn_graph_desc(b, DNN_ENGINEHEUR, what);
    dnn_graph_set(b, heuristic, DNN_ENGINEHEUR_GRAPH, DNN_TYPE_DESCRIPTOR, 1, &graph, what);
    dnn_graph_set(b, heuristic, DNN_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, &mode, what);
    if (b->to->properties)
        dnn_graph_set(b, heuristic, DNN_ENGINEHEUR_DEVICEPROP, DNN_TYPE_DESCRIPTOR, 1,
                      &b->to->properties, what);
    dnn_graph_finalize(b, heuristic, what);
    for (int i = 0; i < CONFIGS; i++)
        configs[i] = dnn_graph_desc(b, DNN_ENGINECFG, what);
    if (b->status == DNN_SUCCESS)
        check(b,
              api->get(heuristic, DNN_ENGINEHEUR_RESULTS, DNN_TYPE_DESCRIPTOR, CONFIGS, &count,
                       configs),
              what);
    if (b->status == DNN_SUCCESS && count < 1)
        check(b, -1, "this graph: it has no engine");
    return b->status != DNN_SUCCESS ? 0 : count < CONFIGS ? (int)count : CONFIGS;
}

/* The plan of one engine, and its status; the refusal of an engine is not the end. */
static int plan_of(struct dnn_graph *b, void *config)
{
    static const char what[] = "all of its engines";
    const struct dnn_target *to = b->to;
    int64_t count = 0;
    void *plan = dnn_graph_desc(b, DNN_PLAN, what);
    if (b->status != DNN_SUCCESS)
        return b->status;
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
    return status;
}

int dnn_graph_plan(struct dnn_graph *b, struct err *err)
{
    void *configs[CONFIGS] = {NULL};
    void *graph = operation_graph(b);
    int n = engine_configs(b, graph, configs), refusal = -1;
    for (int i = 0; i < n && !b->plan->plan; i++) {
        const int status = plan_of(b, configs[i]);
        refusal = dnn_lacks_memory(status) ? status : refusal;
    }
    if (b->plan->plan)
        return 0;
    check(b, refusal, "all of its engines");
    dnn_plan_drop(b->to->api, b->plan);
    return err_set(err, dnn_lacks_memory(b->status) ? -ENOMEM : -ERR_DEVICE,
                   "cuDNN %d refused %s (status %d)", b->to->version, b->what, b->status);
}

int dnn_plan_run(const struct cudnn_api *api, void *handle, const struct dnn_plan *plan,
                 void *const at[DNN_IDS], void *work)
{
    int64_t ids[DNN_IDS];
    const void *pointers[DNN_IDS];
    void *pack = NULL;
    int64_t n = 0;
    for (int id = 0; id < DNN_IDS; id++) {
        if (!plan->used[id])
            continue;
        ids[n] = id;
        pointers[n++] = id >= DNN_VALUES ? (const void *)&plan->values[id] : at[id];
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

void dnn_plan_drop(const struct cudnn_api *api, struct dnn_plan *plan)
{
    while (plan->count)
        api->drop(plan->parts[--plan->count]);
    memset(plan, 0, sizeof *plan);
}
