/* Graphs: what is queued on a stream between begin and end is captured, and launched as one.
 *
 * Captured work holds the addresses of the stream's working memory, so a graph is stale once
 * that has moved. */
#include <errno.h>
#include <stdlib.h>

#include "common/base/err.h"
#include "kernels/cuda/cuda.h"

struct graph {
    cudaGraphExec_t exec;
    const void *scratch, *lt_work; /* of the stream, when it was recorded */
};

static int refuse(struct cuda_state *st, struct err *err, const char *what, cudaError_t e)
{
    (void)cudaGetLastError();
    return err_set(err, -EBUSY, "device cuda:%d cannot %s a graph: %s (%s)", st->index, what,
                   cudaGetErrorString(e), cudaGetErrorName(e));
}

int cuda_graph_begin(struct device *dev, struct stream *s, struct err *err)
{
    struct cuda_state *st = cuda_state(dev);
    /* Other threads go on allocating on other devices. */
    cudaError_t e = cudaStreamBeginCapture(s->handle, cudaStreamCaptureModeThreadLocal);
    if (e != cudaSuccess)
        return refuse(st, err, "begin", e);
    st->recording = true;
    st->refused = cudaSuccess;
    return 0;
}

int cuda_graph_end(struct device *dev, struct stream *s, struct graph **ret, struct err *err)
{
    struct cuda_state *st = cuda_state(dev);
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
        return err_set(err, -EBUSY, "no memory for a graph");
    if (e != cudaSuccess) {
        free(g);
        return refuse(st, err, "record", e);
    }
    g->scratch = s->scratch;
    g->lt_work = s->lt_work;
    *ret = g;
    return 0;
}

int cuda_graph_launch(struct device *dev, struct graph *g, struct stream *s)
{
    if (g->scratch != s->scratch || g->lt_work != s->lt_work)
        return -ESTALE;
    return cuda_check(cuda_state(dev), cudaGraphLaunch(g->exec, s->handle));
}

void cuda_graph_free(struct device *dev, struct graph *g)
{
    if (!g)
        return;
    cudaGraphExecDestroy(g->exec);
    free(g);
}
