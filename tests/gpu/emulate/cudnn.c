/* cuDNN as far as kernels/cuda/dnn*.c, sdpa*.c and conv_*.c use it: descriptors are held to what
 * cuDNN demands of them, and a plan is the graph itself, worked out by loops over f32.
 *
 * SKERRY_EMULATE_SDPA: "none" has no engine, "unload" none that loads, "refuse" does not run,
 * "full" has no memory to run, "unplanned" none to load an engine, "unstarted" none to
 * begin, "startless" does not begin, "old" is a version of
 * before 9.6.  SKERRY_EMULATE_SDPA_LOG names a file that each complaint about a descriptor goes to.
 */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/lib/cudnn_abi.h"
#include "kernels/dtype.h"
#include "tests/gpu/emulate/record.h"

enum { REFUSED = 2000, UNSUPPORTED = 3000, ATTRIBUTES = 8, VALUES = 64, TENSORS = 96 };

static const struct {
    int kind, attribute, element;
    int64_t least, most; /* elements */
} known[] = {
    {DNN_TENSOR, DNN_TENSOR_TYPE, DNN_TYPE_DATA_TYPE, 1, 1},
    {DNN_TENSOR, DNN_TENSOR_DIMENSIONS, DNN_TYPE_INT64, 4, 4},
    {DNN_TENSOR, DNN_TENSOR_STRIDES, DNN_TYPE_INT64, 4, 4},
    {DNN_TENSOR, DNN_TENSOR_ID, DNN_TYPE_INT64, 1, 1},
    {DNN_TENSOR, DNN_TENSOR_ALIGNMENT, DNN_TYPE_INT64, 1, 1},
    {DNN_TENSOR, DNN_TENSOR_IS_VIRTUAL, DNN_TYPE_BOOLEAN, 1, 1},
    {DNN_TENSOR, DNN_TENSOR_IS_BY_VALUE, DNN_TYPE_BOOLEAN, 1, 1},
    {DNN_POINTWISE, DNN_POINTWISE_MODE, DNN_TYPE_POINTWISE_MODE, 1, 1},
    {DNN_POINTWISE, DNN_POINTWISE_MATH_PREC, DNN_TYPE_DATA_TYPE, 1, 1},
    {DNN_POINTWISE, DNN_POINTWISE_AXIS, DNN_TYPE_INT64, 1, 1},
    {DNN_OP_POINTWISE, DNN_OP_POINTWISE_DESC, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_POINTWISE, DNN_OP_POINTWISE_X, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_POINTWISE, DNN_OP_POINTWISE_B, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_POINTWISE, DNN_OP_POINTWISE_T, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_POINTWISE, DNN_OP_POINTWISE_Y, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_MATMUL, DNN_MATMUL_TYPE, DNN_TYPE_DATA_TYPE, 1, 1},
    {DNN_OP_MATMUL, DNN_OP_MATMUL_DESC, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_MATMUL, DNN_OP_MATMUL_A, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_MATMUL, DNN_OP_MATMUL_B, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_MATMUL, DNN_OP_MATMUL_C, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_CONV, DNN_CONV_TYPE, DNN_TYPE_DATA_TYPE, 1, 1},
    {DNN_CONV, DNN_CONV_MODE, DNN_TYPE_CONV_MODE, 1, 1},
    {DNN_CONV, DNN_CONV_SIDES, DNN_TYPE_INT64, 1, 1},
    {DNN_CONV, DNN_CONV_DILATIONS, DNN_TYPE_INT64, 2, 2},
    {DNN_CONV, DNN_CONV_STRIDES, DNN_TYPE_INT64, 2, 2},
    {DNN_CONV, DNN_CONV_LOW, DNN_TYPE_INT64, 2, 2},
    {DNN_CONV, DNN_CONV_HIGH, DNN_TYPE_INT64, 2, 2},
    {DNN_OP_CONV, DNN_OP_CONV_ALPHA, DNN_TYPE_FLOAT, 1, 1},
    {DNN_OP_CONV, DNN_OP_CONV_BETA, DNN_TYPE_FLOAT, 1, 1},
    {DNN_OP_CONV, DNN_OP_CONV_DESC, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_CONV, DNN_OP_CONV_X, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_CONV, DNN_OP_CONV_W, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_CONV, DNN_OP_CONV_Y, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_REDUCTION, DNN_REDUCTION_TYPE, DNN_TYPE_DATA_TYPE, 1, 1},
    {DNN_REDUCTION, DNN_REDUCTION_OPERATOR, DNN_TYPE_REDUCTION, 1, 1},
    {DNN_OP_REDUCTION, DNN_OP_REDUCTION_DESC, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_REDUCTION, DNN_OP_REDUCTION_X, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_REDUCTION, DNN_OP_REDUCTION_Y, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_RESHAPE, DNN_OP_RESHAPE_X, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_OP_RESHAPE, DNN_OP_RESHAPE_Y, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_GRAPH, DNN_GRAPH_OPS, DNN_TYPE_DESCRIPTOR, 1, VALUES},
    {DNN_GRAPH, DNN_GRAPH_HANDLE, DNN_TYPE_HANDLE, 1, 1},
    {DNN_ENGINEHEUR, DNN_ENGINEHEUR_GRAPH, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_ENGINEHEUR, DNN_ENGINEHEUR_MODE, DNN_TYPE_HEUR_MODE, 1, 1},
    {DNN_PLAN, DNN_PLAN_HANDLE, DNN_TYPE_HANDLE, 1, 1},
    {DNN_PLAN, DNN_PLAN_CONFIG, DNN_TYPE_DESCRIPTOR, 1, 1},
    {DNN_VARIANT_PACK, DNN_PACK_IDS, DNN_TYPE_INT64, 1, VALUES},
    {DNN_VARIANT_PACK, DNN_PACK_POINTERS, DNN_TYPE_VOID_PTR, 1, VALUES},
    {DNN_VARIANT_PACK, DNN_PACK_WORKSPACE, DNN_TYPE_VOID_PTR, 1, 1},
};

enum { WORK_BYTES = 1000 };

struct attribute {
    int name;
    int64_t count;
    union {
        void *pointers[VALUES];
        int64_t integers[VALUES];
        int number;
        bool flag;
    } v;
};

struct desc {
    int kind, count;
    bool final;
    struct attribute attributes[ATTRIBUTES];
    const struct desc *graph; /* of an engine's configuration */
};

static bool mode(const char *name)
{
    const char *wish = getenv("SKERRY_EMULATE_SDPA");
    return wish && strcmp(wish, name) == 0;
}

static int complain(const char *what)
{
    const char *path = getenv("SKERRY_EMULATE_SDPA_LOG");
    FILE *f = path ? fopen(path, "a") : NULL;
    if (f) {
        fprintf(f, "%s\n", what);
        fclose(f);
    }
    return REFUSED;
}

/* ---- descriptors ---- */

static const struct attribute *find(const struct desc *d, int name)
{
    for (int i = 0; i < d->count; i++)
        if (d->attributes[i].name == name)
            return &d->attributes[i];
    return NULL;
}

static const struct desc *child(const struct desc *d, int name)
{
    const struct attribute *a = find(d, name);
    return a ? a->v.pointers[0] : NULL;
}

static int number(const struct desc *d, int name)
{
    return find(d, name)->v.number;
}

static bool has(const struct desc *d, int name, int kind)
{
    const struct desc *c = child(d, name);
    return c && c->kind == kind && c->final;
}

static const int64_t *dims(const struct desc *t)
{
    return find(t, DNN_TENSOR_DIMENSIONS)->v.integers;
}

static const int64_t *strides(const struct desc *t)
{
    return find(t, DNN_TENSOR_STRIDES)->v.integers;
}

static int64_t id_of(const struct desc *t)
{
    return find(t, DNN_TENSOR_ID)->v.integers[0];
}

static bool flag(const struct desc *t, int name)
{
    const struct attribute *a = find(t, name);
    return a && a->v.flag;
}

size_t cudnnGetVersion(void);
size_t cudnnGetVersion(void)
{
    return mode("old") ? 90501 : 91900;
}

int cudnnCreate(void **handle);
int cudnnCreate(void **handle)
{
    *handle = malloc(8);
    if (!mode("unstarted") && !mode("startless"))
        return DNN_SUCCESS;
    free(*handle);
    return mode("unstarted") ? DNN_NO_DEVICE_MEMORY : REFUSED;
}

int cudnnDestroy(void *handle);
int cudnnDestroy(void *handle)
{
    free(handle);
    return DNN_SUCCESS;
}

int cudnnSetStream(void *handle, void *stream);
int cudnnSetStream(void *handle, void *stream)
{
    if (handle)
        *(void **)handle = stream;
    return handle ? DNN_SUCCESS : REFUSED;
}

int cudnnBackendCreateDescriptor(int kind, void **ret);
int cudnnBackendCreateDescriptor(int kind, void **ret)
{
    struct desc *d = calloc(1, sizeof *d);
    d->kind = kind;
    *ret = d;
    return DNN_SUCCESS;
}

int cudnnBackendDestroyDescriptor(void *desc);
int cudnnBackendDestroyDescriptor(void *desc)
{
    free(desc);
    return DNN_SUCCESS;
}

int cudnnBackendSetAttribute(void *desc, int name, int element, int64_t count, const void *values);
int cudnnBackendSetAttribute(void *desc, int name, int element, int64_t count, const void *values)
{
    struct desc *d = desc;
    size_t i = 0, kinds = sizeof known / sizeof *known;
    while (i < kinds && (known[i].kind != d->kind || known[i].attribute != name))
        i++;
    if (i == kinds || element != known[i].element)
        return complain("an attribute that the descriptor does not have, or of another type");
    if (count < known[i].least || count > known[i].most)
        return complain("too few or too many values of an attribute");
    if (d->final || find(d, name) || d->count == ATTRIBUTES)
        return complain("an attribute set twice, or on a finished descriptor");
    struct attribute *a = &d->attributes[d->count++];
    a->name = name;
    a->count = count;
    size_t each = element == DNN_TYPE_BOOLEAN ? sizeof(bool)
                  : element == DNN_TYPE_INT64 ? sizeof(int64_t)
                  : element == DNN_TYPE_DESCRIPTOR || element == DNN_TYPE_VOID_PTR ||
                          element == DNN_TYPE_HANDLE
                      ? sizeof(void *)
                      : sizeof(int);
    memcpy(&a->v, values, (size_t)count * each);
    return DNN_SUCCESS;
}

/* ---- what must hold when a descriptor is finished ---- */

static bool tensor_ok(const struct desc *t)
{
    bool by_value = flag(t, DNN_TENSOR_IS_BY_VALUE);
    if (t->count < 6)
        return false;
    for (int i = 0; i < 4; i++)
        if (dims(t)[i] < 1 || strides(t)[i] < 1 || (by_value && dims(t)[i] != 1))
            return false;
    return !by_value || !flag(t, DNN_TENSOR_IS_VIRTUAL);
}

/* Does x reach y by repeating or grouping along the first two dimensions, and 1 elsewhere? */
static bool broadcasts(const struct desc *x, const struct desc *y)
{
    for (int i = 0; i < 4; i++)
        if (dims(x)[i] != 1 && dims(x)[i] != dims(y)[i])
            return false;
    return true;
}

static bool pointwise_ok(const struct desc *op)
{
    const struct desc *y = child(op, DNN_OP_POINTWISE_Y);
    if (!has(op, DNN_OP_POINTWISE_DESC, DNN_POINTWISE) ||
        !has(op, DNN_OP_POINTWISE_X, DNN_TENSOR) || !has(op, DNN_OP_POINTWISE_Y, DNN_TENSOR))
        return false;
    int how = number(child(op, DNN_OP_POINTWISE_DESC), DNN_POINTWISE_MODE);
    bool one = how == DNN_EXP || how == DNN_LOG || how == DNN_IDENTITY || how == DNN_GEN_INDEX;
    bool two = !one && has(op, DNN_OP_POINTWISE_B, DNN_TENSOR);
    bool three = how == DNN_SELECT && has(op, DNN_OP_POINTWISE_T, DNN_TENSOR);
    if (one ? find(op, DNN_OP_POINTWISE_B) != NULL : !two || (how == DNN_SELECT) != three)
        return false;
    if ((how == DNN_GEN_INDEX) != !!find(child(op, DNN_OP_POINTWISE_DESC), DNN_POINTWISE_AXIS))
        return false;
    return broadcasts(child(op, DNN_OP_POINTWISE_X), y) &&
           (one || broadcasts(child(op, DNN_OP_POINTWISE_B), y)) &&
           (!three || broadcasts(child(op, DNN_OP_POINTWISE_T), y));
}

static bool matmul_ok(const struct desc *op)
{
    if (!has(op, DNN_OP_MATMUL_DESC, DNN_MATMUL) || !has(op, DNN_OP_MATMUL_A, DNN_TENSOR) ||
        !has(op, DNN_OP_MATMUL_B, DNN_TENSOR) || !has(op, DNN_OP_MATMUL_C, DNN_TENSOR))
        return false;
    const int64_t *a = dims(child(op, DNN_OP_MATMUL_A)), *b = dims(child(op, DNN_OP_MATMUL_B)),
                  *c = dims(child(op, DNN_OP_MATMUL_C));
    return a[0] == c[0] && b[0] == c[0] && c[1] % a[1] == 0 && c[1] % b[1] == 0 && a[3] == b[2] &&
           a[2] == c[2] && b[3] == c[3];
}

static bool reduction_ok(const struct desc *op)
{
    bool ok = has(op, DNN_OP_REDUCTION_DESC, DNN_REDUCTION) &&
              has(op, DNN_OP_REDUCTION_X, DNN_TENSOR) && has(op, DNN_OP_REDUCTION_Y, DNN_TENSOR);
    for (int i = 0; ok && i < 4; i++)
        ok = dims(child(op, DNN_OP_REDUCTION_X))[i] % dims(child(op, DNN_OP_REDUCTION_Y))[i] == 0;
    return ok;
}

/* The only one that attention has: rows and columns exchanged, in place. */
static bool reshape_ok(const struct desc *op)
{
    static const int from[4] = {0, 1, 3, 2};
    bool ok = has(op, DNN_OP_RESHAPE_X, DNN_TENSOR) && has(op, DNN_OP_RESHAPE_Y, DNN_TENSOR);
    for (int i = 0; ok && i < 4; i++) {
        const struct desc *x = child(op, DNN_OP_RESHAPE_X), *y = child(op, DNN_OP_RESHAPE_Y);
        ok = dims(y)[i] == dims(x)[from[i]] && strides(y)[i] == strides(x)[from[i]];
    }
    return ok;
}

static const int64_t *pair(const struct desc *conv, int name)
{
    return find(conv, name)->v.integers;
}

/* Channels of both sides, and an output of the side that padding and strides give it. */
static bool conv_ok(const struct desc *op)
{
    if (op->count < 6 || !has(op, DNN_OP_CONV_DESC, DNN_CONV) ||
        !has(op, DNN_OP_CONV_X, DNN_TENSOR) || !has(op, DNN_OP_CONV_W, DNN_TENSOR) ||
        !has(op, DNN_OP_CONV_Y, DNN_TENSOR))
        return false;
    const struct desc *how = child(op, DNN_OP_CONV_DESC);
    const int64_t *x = dims(child(op, DNN_OP_CONV_X)), *w = dims(child(op, DNN_OP_CONV_W)),
                  *y = dims(child(op, DNN_OP_CONV_Y));
    if (how->count < 7 || pair(how, DNN_CONV_SIDES)[0] != 2 ||
        number(how, DNN_CONV_MODE) != DNN_CROSS_CORRELATION)
        return false;
    bool ok = x[0] == y[0] && w[0] == y[1] && x[1] == w[1];
    for (int i = 0; ok && i < 2; i++) {
        int64_t room =
            x[2 + i] + pair(how, DNN_CONV_LOW)[i] + pair(how, DNN_CONV_HIGH)[i] - w[2 + i];
        ok = pair(how, DNN_CONV_DILATIONS)[i] == 1 &&
             y[2 + i] == room / pair(how, DNN_CONV_STRIDES)[i] + 1;
    }
    return ok;
}

struct uses {
    const struct desc *in[3], *out;
};

static struct uses uses(const struct desc *op)
{
    if (op->kind == DNN_OP_POINTWISE)
        return (struct uses){{child(op, DNN_OP_POINTWISE_X), child(op, DNN_OP_POINTWISE_B),
                              child(op, DNN_OP_POINTWISE_T)},
                             child(op, DNN_OP_POINTWISE_Y)};
    if (op->kind == DNN_OP_MATMUL)
        return (struct uses){{child(op, DNN_OP_MATMUL_A), child(op, DNN_OP_MATMUL_B)},
                             child(op, DNN_OP_MATMUL_C)};
    if (op->kind == DNN_OP_CONV)
        return (struct uses){{child(op, DNN_OP_CONV_X), child(op, DNN_OP_CONV_W)},
                             child(op, DNN_OP_CONV_Y)};
    if (op->kind == DNN_OP_REDUCTION)
        return (struct uses){{child(op, DNN_OP_REDUCTION_X)}, child(op, DNN_OP_REDUCTION_Y)};
    return (struct uses){{child(op, DNN_OP_RESHAPE_X)}, child(op, DNN_OP_RESHAPE_Y)};
}

/* Tensors of a graph and their values in the order of their logical index. */
struct table {
    const struct desc *tensors[TENSORS];
    float *values[TENSORS];
    bool written[TENSORS];
    int count;
};

/* Its place; -1: another tensor has the same id, or there are too many. */
static int place(struct table *t, const struct desc *tensor)
{
    for (int i = 0; i < t->count; i++)
        if (id_of(t->tensors[i]) == id_of(tensor))
            return t->tensors[i] == tensor ? i : -1;
    if (t->count == TENSORS)
        return -1;
    t->tensors[t->count] = tensor;
    return t->count++;
}

/* Ids name one tensor each, what is virtual is written once and before it is read. */
static bool graph_ok(const struct desc *graph)
{
    const struct attribute *ops = find(graph, DNN_GRAPH_OPS);
    struct table t = {.count = 0};
    for (int64_t i = 0; ops && i < ops->count; i++) {
        const struct desc *op = ops->v.pointers[i];
        struct uses u = uses(op);
        if (!op->final)
            return false;
        for (int k = 0; k < 3; k++) {
            int at = u.in[k] ? place(&t, u.in[k]) : 0;
            if (at < 0 || (u.in[k] && flag(u.in[k], DNN_TENSOR_IS_VIRTUAL) && !t.written[at]))
                return false;
        }
        int out = place(&t, u.out);
        if (out < 0 || t.written[out])
            return false;
        t.written[out] = true;
    }
    return ops != NULL;
}

static bool pack_ok(const struct desc *pack)
{
    const struct attribute *ids = find(pack, DNN_PACK_IDS), *p = find(pack, DNN_PACK_POINTERS);
    bool ok = ids && p && ids->count == p->count && find(pack, DNN_PACK_WORKSPACE);
    for (int64_t i = 0; ok && i < ids->count; i++) {
        ok = p->v.pointers[i] != NULL;
        for (int64_t k = 0; k < i; k++)
            ok = ok && ids->v.integers[i] != ids->v.integers[k];
    }
    return ok;
}

int cudnnBackendFinalize(void *desc);
int cudnnBackendFinalize(void *desc)
{
    struct desc *d = desc;
    bool ok = true;
    switch (d->kind) {
    case DNN_TENSOR:
        ok = tensor_ok(d);
        break;
    case DNN_OP_POINTWISE:
        ok = pointwise_ok(d);
        break;
    case DNN_OP_MATMUL:
        ok = matmul_ok(d);
        break;
    case DNN_OP_CONV:
        ok = conv_ok(d);
        break;
    case DNN_OP_REDUCTION:
        ok = reduction_ok(d);
        break;
    case DNN_OP_RESHAPE:
        ok = reshape_ok(d);
        break;
    case DNN_GRAPH:
        ok = graph_ok(d);
        break;
    case DNN_ENGINEHEUR:
        ok = has(d, DNN_ENGINEHEUR_GRAPH, DNN_GRAPH) && find(d, DNN_ENGINEHEUR_MODE);
        break;
    case DNN_PLAN:
        if (mode("unload"))
            return UNSUPPORTED;
        if (mode("unplanned"))
            return DNN_NO_DEVICE_MEMORY;
        ok = find(d, DNN_PLAN_HANDLE) && child(d, DNN_PLAN_CONFIG)->graph;
        break;
    case DNN_VARIANT_PACK:
        ok = pack_ok(d);
        break;
    default:
        ok = d->count > 0;
    }
    static char text[64];
    snprintf(text, sizeof text, "a descriptor of kind %d", d->kind);
    if (!ok || d->final)
        return complain(text);
    d->final = true;
    return DNN_SUCCESS;
}

int cudnnBackendGetAttribute(const void *desc, int name, int element, int64_t room, int64_t *count,
                             void *values);
int cudnnBackendGetAttribute(const void *desc, int name, int element, int64_t room, int64_t *count,
                             void *values)
{
    const struct desc *d = desc;
    if (!d->final || room < 1)
        return complain("a question to an unfinished descriptor");
    if (d->kind == DNN_ENGINEHEUR && name == DNN_ENGINEHEUR_RESULTS &&
        element == DNN_TYPE_DESCRIPTOR) {
        *count = mode("none") ? 0 : 1;
        struct desc *config = ((struct desc **)values)[0];
        config->graph = child(d, DNN_ENGINEHEUR_GRAPH);
        return DNN_SUCCESS;
    }
    if (d->kind == DNN_PLAN && name == DNN_PLAN_WORKSPACE_SIZE && element == DNN_TYPE_INT64) {
        *count = 1;
        *(int64_t *)values = WORK_BYTES;
        return DNN_SUCCESS;
    }
    return complain("an unknown question");
}

/* ---- the graph, worked out ---- */

static int64_t elements(const struct desc *t)
{
    return dims(t)[0] * dims(t)[1] * dims(t)[2] * dims(t)[3];
}

static void index_of(const struct desc *t, int64_t i, int64_t at[4])
{
    for (int k = 3; k >= 0; k--) {
        at[k] = i % dims(t)[k];
        i /= dims(t)[k];
    }
}

/* The element of t that stands for `at` of a tensor of other dims: repeated or grouped. */
static int64_t seen_from(const struct desc *t, const int64_t at[4], const int64_t of[4])
{
    int64_t i = 0;
    for (int k = 0; k < 4; k++)
        i = i * dims(t)[k] + at[k] / (of[k] / dims(t)[k]);
    return i;
}

static float rounded(const struct desc *t, float v)
{
    bf16 b;
    if (number(t, DNN_TENSOR_TYPE) != DNN_BFLOAT16)
        return v;
    dtype_set(&b, DT_BF16, 0, v);
    return dtype_get(&b, DT_BF16, 0);
}

static size_t offset(const struct desc *t, int64_t i)
{
    int64_t at[4], sum = 0;
    index_of(t, i, at);
    for (int k = 0; k < 4; k++)
        sum += at[k] * strides(t)[k];
    return (size_t)sum;
}

static enum dtype type_of(const struct desc *t)
{
    return number(t, DNN_TENSOR_TYPE) == DNN_BFLOAT16 ? DT_BF16 : DT_F32;
}

static float pointwise(int how, float x, float b, float t)
{
    return how == DNN_ADD      ? x + b
           : how == DNN_SUB    ? x - b
           : how == DNN_MUL    ? x * b
           : how == DNN_DIV    ? x / b
           : how == DNN_EXP    ? expf(x)
           : how == DNN_LOG    ? logf(x)
           : how == DNN_CMP_GE ? (float)(x >= b)
           : how == DNN_SELECT ? (t != 0 ? x : b)
                               : x;
}

static void run_pointwise(const struct desc *op, const struct uses *u, float *in[3], float *out)
{
    const struct desc *how = child(op, DNN_OP_POINTWISE_DESC);
    const int which = number(how, DNN_POINTWISE_MODE);
    for (int64_t i = 0; i < elements(u->out); i++) {
        int64_t at[4];
        float v[3] = {0, 0, 0};
        index_of(u->out, i, at);
        for (int k = 0; k < 3; k++)
            if (u->in[k])
                v[k] = in[k][seen_from(u->in[k], at, dims(u->out))];
        out[i] = which == DNN_GEN_INDEX ? (float)at[find(how, DNN_POINTWISE_AXIS)->v.integers[0]]
                                        : pointwise(which, v[0], v[1], v[2]);
    }
}

static void run_matmul(const struct uses *u, float *in[3], float *out)
{
    const int64_t *c = dims(u->out), *a = dims(u->in[0]), *b = dims(u->in[1]), n = a[3];
    for (int64_t i = 0; i < elements(u->out); i++) {
        int64_t at[4];
        float sum = 0;
        index_of(u->out, i, at);
        const float *x = in[0] + ((at[0] * a[1] + at[1] / (c[1] / a[1])) * a[2] + at[2]) * n;
        const float *y = in[1] + (at[0] * b[1] + at[1] / (c[1] / b[1])) * n * b[3] + at[3];
        for (int64_t k = 0; k < n; k++)
            sum += x[k] * y[k * b[3]];
        out[i] = sum;
    }
}

/* Values are in the order (B,C,H,W), whatever the strides. */
static void run_conv(const struct desc *op, const struct uses *u, float *in[3], float *out)
{
    const struct desc *how = child(op, DNN_OP_CONV_DESC);
    const int64_t *x = dims(u->in[0]), *w = dims(u->in[1]);
    for (int64_t i = 0; i < elements(u->out); i++) {
        int64_t at[4], tap[4];
        float sum = 0;
        index_of(u->out, i, at);
        for (int64_t k = 0; k < w[1] * w[2] * w[3]; k++) {
            index_of(u->in[1], at[1] * w[1] * w[2] * w[3] + k, tap);
            int64_t r =
                at[2] * pair(how, DNN_CONV_STRIDES)[0] + tap[2] - pair(how, DNN_CONV_LOW)[0];
            int64_t c =
                at[3] * pair(how, DNN_CONV_STRIDES)[1] + tap[3] - pair(how, DNN_CONV_LOW)[1];
            if (r >= 0 && c >= 0 && r < x[2] && c < x[3])
                sum += in[0][((at[0] * x[1] + tap[1]) * x[2] + r) * x[3] + c] *
                       in[1][at[1] * w[1] * w[2] * w[3] + k];
        }
        out[i] = sum;
    }
}

static void run_reduction(const struct desc *op, const struct uses *u, float *in[3], float *out)
{
    bool max = number(child(op, DNN_OP_REDUCTION_DESC), DNN_REDUCTION_OPERATOR) == DNN_REDUCE_MAX;
    for (int64_t i = 0; i < elements(u->out); i++)
        out[i] = max ? -INFINITY : 0;
    for (int64_t i = 0; i < elements(u->in[0]); i++) {
        int64_t at[4];
        index_of(u->in[0], i, at);
        float *to = &out[seen_from(u->out, at, dims(u->in[0]))];
        *to = max ? fmaxf(*to, in[0][i]) : *to + in[0][i];
    }
}

static void run_reshape(const struct uses *u, float *in[3], float *out)
{
    const int64_t *d = dims(u->out);
    for (int64_t i = 0; i < elements(u->out); i++) {
        int64_t at[4];
        index_of(u->out, i, at);
        out[i] = in[0][((at[0] * d[1] + at[1]) * d[3] + at[3]) * d[2] + at[2]];
    }
}

/* Where the pack has the tensor; NULL: nowhere. */
static void *memory(const struct desc *pack, const struct desc *t)
{
    const struct attribute *ids = find(pack, DNN_PACK_IDS), *p = find(pack, DNN_PACK_POINTERS);
    for (int64_t i = 0; i < ids->count; i++)
        if (ids->v.integers[i] == id_of(t))
            return p->v.pointers[i];
    return NULL;
}

/* The values of a tensor; those from memory are read when they are first needed. */
static float *values(struct table *t, const struct desc *pack, const struct desc *tensor)
{
    int at = place(t, tensor);
    if (t->values[at])
        return t->values[at];
    float *v = malloc((size_t)elements(tensor) * sizeof *v);
    const void *from = memory(pack, tensor);
    for (int64_t i = 0; from && !t->written[at] && i < elements(tensor); i++)
        v[i] = dtype_get(from, type_of(tensor), offset(tensor, i));
    return t->values[at] = v;
}

static void run(struct table *t, const struct desc *op, const struct desc *pack)
{
    struct uses u = uses(op);
    float *in[3] = {NULL, NULL, NULL};
    const bool to_memory = !flag(u.out, DNN_TENSOR_IS_VIRTUAL);
    void *to = memory(pack, u.out);
    for (int k = 0; k < 3; k++) {
        if (u.in[k] && !flag(u.in[k], DNN_TENSOR_IS_VIRTUAL) && !memory(pack, u.in[k]))
            complain("a tensor that the pack does not have");
        if (u.in[k])
            in[k] = values(t, pack, u.in[k]);
    }
    if (to_memory != (to != NULL))
        complain("an output that the pack does not have, or a virtual one that it has");
    t->written[place(t, u.out)] = true;
    float *out = values(t, pack, u.out);
    if (op->kind == DNN_OP_POINTWISE)
        run_pointwise(op, &u, in, out);
    else if (op->kind == DNN_OP_MATMUL)
        run_matmul(&u, in, out);
    else if (op->kind == DNN_OP_CONV)
        run_conv(op, &u, in, out);
    else if (op->kind == DNN_OP_REDUCTION)
        run_reduction(op, &u, in, out);
    else
        run_reshape(&u, in, out);
    for (int64_t i = 0; i < elements(u.out); i++) {
        out[i] = rounded(u.out, out[i]);
        if (to)
            dtype_set(to, type_of(u.out), offset(u.out, i), out[i]);
    }
}

/* There where the program shows its symbols, which one that records graphs must. */
#pragma weak emu_do

/* One execution with all that it reads of its pack. */
struct execution {
    const struct desc *graph;
    struct desc pack;
};

static void do_execution(void *arg)
{
    const struct execution *e = arg;
    const struct attribute *ops = find(e->graph, DNN_GRAPH_OPS);
    struct table *t = calloc(1, sizeof *t);
    memset(find(&e->pack, DNN_PACK_WORKSPACE)->v.pointers[0], 0xff, WORK_BYTES);
    for (int64_t i = 0; i < ops->count; i++)
        run(t, ops->v.pointers[i], &e->pack);
    for (int i = 0; i < t->count; i++)
        free(t->values[i]);
    free(t);
}

int cudnnBackendExecute(void *handle, void *plan, void *pack);
int cudnnBackendExecute(void *handle, void *plan, void *pack)
{
    if (mode("refuse"))
        return UNSUPPORTED;
    if (mode("full"))
        return DNN_NO_DEVICE_MEMORY;
    if (!handle || !((struct desc *)plan)->final || !((struct desc *)pack)->final)
        return complain("an unfinished plan or pack");
    struct execution e = {child(plan, DNN_PLAN_CONFIG)->graph, *(const struct desc *)pack};
    if (emu_do)
        emu_do(*(struct CUstream_st **)handle, do_execution, &e, sizeof e);
    else
        do_execution(&e);
    return DNN_SUCCESS;
}
