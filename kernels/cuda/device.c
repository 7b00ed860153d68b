/* A GPU: opening, memory, streams, graphs, and its table of operations.  It is the top of the
 * backend: no other file of it calls functions of this one. */
#include <unistd.h>

#include "common/base/base.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/dnn.h"
#include "kernels/profile.h"

/* Makes the device current on this thread; NULL is its main stream. */
static struct stream *enter(struct device *dev, struct stream *s)
{
    cudaSetDevice(cuda_state(dev)->index);
    return s ? s : &cuda_state(dev)->main;
}

int cuda_device_count(const char **ret_why)
{
    int n = 0;
    cudaError_t e = cudaGetDeviceCount(&n);
    *ret_why = e == cudaErrorInsufficientDriver
                   ? "the NVIDIA driver (libcuda.so.1) is missing or older than this program needs"
               : e == cudaSuccess ? "the NVIDIA driver shows no card"
                                  : cudaGetErrorString(e);
    return e == cudaSuccess ? n : 0;
}

static int refuse(struct device *dev, struct err *err, const char *what, cudaError_t e)
{
    return err_set(err, -ERR_DEVICE, "device %s: %s: %s (%s)", dev->name, what,
                   cudaGetErrorString(e), cudaGetErrorName(e));
}

static cudaError_t stream_make(struct stream *s)
{
    cudaError_t e = cudaStreamCreateWithFlags(&s->handle, cudaStreamNonBlocking);
    return e == cudaSuccess ? cudaEventCreateWithFlags(&s->mark, cudaEventDisableTiming) : e;
}

static void stream_release(struct stream *s)
{
    cudaFree(s->scratch);
    cudaFree(s->lt_work);
    if (s->mark)
        cudaEventDestroy(s->mark);
    if (s->handle)
        cudaStreamDestroy(s->handle);
}

static int setup(struct device *dev, struct cuda_state *st, struct err *err)
{
    struct cudaDeviceProp prop;
    const char *graphs = getenv("SKERRY_CUDA_GRAPHS"); /* for tests: 0 */
    cudaError_t e = cudaSetDevice(st->index);
    if (e == cudaSuccess) /* a thread that waits for the card sleeps */
        e = cudaSetDeviceFlags(cudaDeviceScheduleBlockingSync);
    if (e == cudaSuccess)
        e = cudaGetDeviceProperties(&prop, st->index);
    if (e != cudaSuccess)
        return refuse(dev, err, "cannot be opened", e);
    if (prop.major < 8)
        return err_set(err, -ERR_DEVICE,
                       "device %s is a %s of compute capability %d.%d; 8.0 (A100) or newer is "
                       "needed; use cpu",
                       dev->name, prop.name, prop.major, prop.minor);
    e = stream_make(&st->main);
    if (e == cudaSuccess)
        e = cudaHostAlloc((void **)&st->fault, sizeof *st->fault, cudaHostAllocMapped);
    if (e != cudaSuccess)
        return refuse(dev, err, "cannot make a stream", e);
    *st->fault = CUDA_FAULT_NONE;
    dev->fast_bf16 = true;
    st->multiprocessors = prop.multiProcessorCount;
    st->capability = prop.major * 10 + prop.minor;
    dev->graphs = !graphs || *graphs != '0';
    snprintf(dev->about, sizeof dev->about, "%.40s, %.0f GiB, compute capability %d.%d", prop.name,
             (double)prop.totalGlobalMem / (1 << 30), prop.major, prop.minor);
    return 0;
}

int cuda_device_open(int index, struct device **ret_dev, struct err *err)
{
    struct device *dev = calloc(1, sizeof *dev);
    struct cuda_state *st = calloc(1, sizeof *st);
    if (!dev || !st) {
        free(dev);
        free(st);
        return err_set(err, -ENOMEM, "no memory for a CUDA device");
    }
    st->index = index;
    st->main.st = st;
    dev->impl = st;
    dev->ops = &cuda_ops;
    dev->threads = 1;
    snprintf(dev->name, sizeof dev->name, "cuda:%d", index);
    int rc = setup(dev, st, err);
    if (rc == 0)
        rc = lt_new(dev->about, &st->lt, err);
    if (rc < 0) {
        cuda_device_close(dev);
        return rc;
    }
    *ret_dev = dev;
    return 0;
}

void cuda_device_close(struct device *dev)
{
    struct cuda_state *st = cuda_state(dev);
    cudaSetDevice(st->index);
    if (st->main.handle)
        cudaStreamSynchronize(st->main.handle);
    for (int i = 0; i < CUDA_STAGES; i++) {
        if (st->stage_free[i])
            cudaEventDestroy(st->stage_free[i]);
        cudaFreeHost(st->stage[i]);
    }
    for (int i = 0; i < 2; i++)
        if (st->clock[i])
            cudaEventDestroy(st->clock[i]);
    dnn_free(st->dnn);
    lt_free(st->lt);
    stream_release(&st->main);
    cudaFreeHost(st->fault);
    (void)cudaGetLastError(); /* of a card that did not open: the next one's launches ask for it */
    free(st);
    free(dev);
}

/* ---- memory ---- */

static int alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    enter(dev, NULL);
    cudaError_t e = cudaMalloc(ret, bytes ? bytes : 1);
    if (e == cudaSuccess)
        return 0;
    if (e != cudaErrorMemoryAllocation) {
        cuda_check(cuda_state(dev), e);
        return refuse(dev, err, "cannot allocate", e);
    }
    size_t available = 0, total = 0;
    (void)cudaGetLastError(); /* running out is no lasting error */
    cudaMemGetInfo(&available, &total);
    return err_set(err, -ENOMEM, "no memory for %zu bytes on device %s: %zu of %zu bytes are free",
                   bytes, dev->name, available, total);
}

static void release(struct device *dev, void *p)
{
    enter(dev, NULL);
    cuda_check(cuda_state(dev), cudaFree(p));
}

static int alloc_host(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    enter(dev, NULL);
    cudaError_t e = cudaHostAlloc(ret, bytes ? bytes : 1, cudaHostAllocDefault);
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError();
    return err_set(err, -ENOMEM, "no memory for %zu pinned bytes for device %s: %s", bytes,
                   dev->name, cudaGetErrorString(e));
}

static void free_host(struct device *dev, void *p)
{
    enter(dev, NULL);
    cuda_check(cuda_state(dev), cudaFreeHost(p));
}

static int memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    size_t available = 0, total = 0;
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    enter(dev, NULL);
    int rc = cuda_check(cuda_state(dev), cudaMemGetInfo(&available, &total));
    if (ret_free)
        *ret_free = available;
    if (ret_total)
        *ret_total = total;
    return rc;
}

/* ---- streams ---- */

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    enter(dev, NULL);
    struct stream *s = calloc(1, sizeof *s);
    if (!s)
        return err_set(err, -ENOMEM, "no memory for a stream");
    s->st = cuda_state(dev);
    cudaError_t e = stream_make(s);
    if (e != cudaSuccess) {
        stream_release(s);
        free(s);
        cuda_check(cuda_state(dev), e);
        return refuse(dev, err, "cannot make a stream", e);
    }
    *ret = s;
    return 0;
}

static void stream_free(struct device *dev, struct stream *s)
{
    if (!s)
        return;
    enter(dev, NULL);
    cudaStreamSynchronize(s->handle);
    stream_release(s);
    free(s);
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    s = enter(dev, s);
    after = enter(dev, after);
    cudaError_t e = cudaEventRecord(after->mark, after->handle);
    if (e == cudaSuccess)
        e = cudaStreamWaitEvent(s->handle, after->mark, 0);
    return cuda_check(cuda_state(dev), e);
}

struct mark {
    cudaEvent_t event;
};

static int mark_new(struct device *dev, struct mark **ret, struct err *err)
{
    enter(dev, NULL);
    struct mark *m = calloc(1, sizeof *m);
    if (!m)
        return err_set(err, -ENOMEM, "no memory for a mark");
    cudaError_t e = cudaEventCreateWithFlags(&m->event, cudaEventDisableTiming);
    if (e != cudaSuccess) {
        free(m);
        cuda_check(cuda_state(dev), e);
        return refuse(dev, err, "cannot make an event", e);
    }
    *ret = m;
    return 0;
}

static void mark_free(struct device *dev, struct mark *m)
{
    if (!m)
        return;
    enter(dev, NULL);
    cudaEventDestroy(m->event);
    free(m);
}

static int set_mark(struct device *dev, struct mark *m, struct stream *s)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    s = enter(dev, s);
    return cuda_check(cuda_state(dev), cudaEventRecord(m->event, s->handle));
}

static int stream_pass(struct device *dev, struct stream *s, struct mark *m)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    s = enter(dev, s);
    return cuda_check(cuda_state(dev), cudaStreamWaitEvent(s->handle, m->event, 0));
}

static const char *fault_text(int fault)
{
    static const char *const text[] = {
        [CUDA_FAULT_ID] = "an id lies outside of its table",
        [CUDA_FAULT_TARGET] = "a target lies outside of its row of logits",
        [CUDA_FAULT_POSITION] = "a position lies outside of 0 to 2^20",
        [CUDA_FAULT_START] = "a first key lies behind the query that should see it",
        [CUDA_FAULT_KLEN] = "a sample's number of keys is below 1, or above those that there are",
    };
    return fault > 0 && fault <= CUDA_FAULT_KLEN ? text[fault] : "unknown";
}

/* Waits for the stream.  0, -ERR_DEVICE, or -EINVAL for a fault. */
static int wait_for(struct stream *s, struct err *err)
{
    struct cuda_state *st = s->st;
    cudaError_t e = cudaStreamSynchronize(s->handle);
    const int rc = cuda_check(st, e);
    if (st->broken)
        return err_set(err, -ERR_DEVICE,
                       "device cuda:%d failed: %s (%s); it stays so until this program is started "
                       "again",
                       st->index, cudaGetErrorString((cudaError_t)st->broken),
                       cudaGetErrorName((cudaError_t)st->broken));
    if (rc == -ENOMEM)
        return err_set(err, rc, "device cuda:%d had no memory for work that was queued", st->index);
    int fault = *(volatile int *)st->fault;
    *(volatile int *)st->fault = CUDA_FAULT_NONE;
    if (fault)
        return err_set(err, -EINVAL, "device cuda:%d: %s", st->index, fault_text(fault));
    return 0;
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    return wait_for(enter(dev, s), err);
}

/* ---- graphs: what is queued between begin and end is captured, and launched as one ----
 *
 * Captured work holds the addresses of the stream's working memory, so a graph is stale once
 * that has moved. */

struct graph {
    cudaGraphExec_t exec;
    const void *scratch, *lt_work; /* of the stream, when it was recorded */
};

static int refuse_graph(struct cuda_state *st, struct err *err, const char *what, cudaError_t e)
{
    (void)cudaGetLastError();
    return err_set(err, e == cudaErrorMemoryAllocation ? -ENOMEM : -EBUSY,
                   "device cuda:%d cannot %s a graph: %s (%s)", st->index, what,
                   cudaGetErrorString(e), cudaGetErrorName(e));
}

static int graph_begin(struct device *dev, struct stream *s, struct err *err)
{
    struct cuda_state *st = cuda_state(dev);
    s = enter(dev, s);
    /* Other threads go on allocating on other devices. */
    cudaError_t e = cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess)
        return refuse_graph(st, err, "begin", e);
    st->recording = true;
    st->refused = cudaSuccess;
    return 0;
}

static int graph_end(struct device *dev, struct stream *s, struct graph **ret, struct err *err)
{
    struct cuda_state *st = cuda_state(dev);
    s = enter(dev, s);
    cudaGraph_t captured = NULL;
    struct graph *g = calloc(1, sizeof *g);
    cudaError_t e = cudaStreamEndCapture(s->handle, &captured);
    st->recording = false;
    *ret = NULL;
    if (e == cudaSuccess && st->refused)
        e = (cudaError_t)st->refused;
    if (e == cudaSuccess && g)
        e = cudaGraphInstantiate(&g->exec, captured, 0);
    if (captured)
        cudaGraphDestroy(captured);
    if (!g)
        return err_set(err, -ENOMEM, "no memory for a graph");
    if (e != cudaSuccess) {
        free(g);
        return refuse_graph(st, err, "record", e);
    }
    g->scratch = s->scratch;
    g->lt_work = s->lt_work;
    *ret = g;
    return 0;
}

static int cuda_graph_launch(struct device *dev, struct graph *g, struct stream *s)
{
    if (g->scratch != s->scratch || g->lt_work != s->lt_work)
        return -ESTALE;
    return cuda_check(cuda_state(dev), cudaGraphLaunch(g->exec, s->handle));
}

static void graph_free(struct device *dev, struct graph *g)
{
    if (!g)
        return;
    enter(dev, NULL);
    cudaGraphExecDestroy(g->exec);
    free(g);
}

/* ---- the table: checks shapes, makes the device current, finds the stream that NULL means ----
 *
 * With a profile each operation is waited for, and timed by the card. */

static cudaError_t clock_start(struct stream *s)
{
    struct cuda_state *st = s->st;
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < 2 && e == cudaSuccess; i++)
        if (!st->clock[i])
            e = cudaEventCreateWithFlags(&st->clock[i], cudaEventDefault);
    return e == cudaSuccess ? cudaEventRecord(st->clock[0], s->handle) : e;
}

static int front_begin(struct device *dev, struct stream **s)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    *s = enter(dev, *s);
    return dev->profile ? cuda_check((*s)->st, clock_start(*s)) : 0;
}

static int front_finish(struct device *dev, struct stream *s, double *seconds)
{
    struct cuda_state *st = cuda_state(dev);
    float ms = 0;
    cudaError_t e = cudaEventRecord(st->clock[1], s->handle);
    int rc = e == cudaSuccess ? wait_for(s, NULL) : cuda_check(st, e);
    if (rc == 0)
        rc = cuda_check(st, cudaEventElapsedTime(&ms, st->clock[0], st->clock[1]));
    *seconds = 1e-3 * (double)ms;
    return rc;
}

/* The kernels look at values themselves (enum cuda_fault). */
#define RUN(name) cuda_##name
#define VALUES(allowed) true
#include "kernels/front.inc"
OP(encode, (const struct encode *p), (p), encode_ok(p), (p->n, p->codec))
OP(graph_launch, (struct graph * g), (g), true, (0))
#undef OP

const struct kernel_ops cuda_ops = {
    .alloc = alloc,
    .free = release,
    .memory = memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .sync = sync_stream,
    .alloc_host = alloc_host,
    .free_host = free_host,
    .graph_begin = graph_begin,
    .graph_end = graph_end,
    .graph_launch = graph_launch,
    .graph_free = graph_free,
    .stream_follow = stream_follow,
    .mark_new = mark_new,
    .mark_free = mark_free,
    .mark = set_mark,
    .stream_pass = stream_pass,
    .encode = encode,
#define OP(name, ...) .name = name,
#include "kernels/ops.inc"
};
