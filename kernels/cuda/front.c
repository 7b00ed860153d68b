/* The table a CUDA device shows: checks shapes, makes the device current, finds the stream
 * that NULL means, and records the profile.  With a profile each operation is waited for. */
#include <errno.h>

#include "common/base/err.h"
#include "kernels/check.h"
#include "kernels/cuda/cuda.h"
#include "kernels/profile.h"

static struct stream *enter(struct device *dev, struct stream *s)
{
    cudaSetDevice(cuda_state(dev)->index);
    return s ? s : &cuda_state(dev)->main;
}

static int alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    enter(dev, NULL);
    return cuda_alloc(dev, bytes, ret, err);
}

static void release(struct device *dev, void *p)
{
    enter(dev, NULL);
    cuda_free(dev, p);
}

static int memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    enter(dev, NULL);
    return cuda_memory(dev, ret_free, ret_total);
}

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    enter(dev, NULL);
    return cuda_stream_new(dev, ret, err);
}

static void stream_free(struct device *dev, struct stream *s)
{
    enter(dev, NULL);
    cuda_stream_free(dev, s);
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    return cuda_wait(enter(dev, s), err);
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    s = enter(dev, s);
    return cuda_stream_follow(dev, s, enter(dev, after));
}

static int alloc_host(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    enter(dev, NULL);
    return cuda_alloc_host(dev, bytes, ret, err);
}

static void free_host(struct device *dev, void *p)
{
    enter(dev, NULL);
    cuda_free_host(dev, p);
}

static int graph_begin(struct device *dev, struct stream *s, struct err *err)
{
    return cuda_graph_begin(dev, enter(dev, s), err);
}

static int graph_end(struct device *dev, struct stream *s, struct graph **ret, struct err *err)
{
    return cuda_graph_end(dev, enter(dev, s), ret, err);
}

static void graph_free(struct device *dev, struct graph *g)
{
    enter(dev, NULL);
    cuda_graph_free(dev, g);
}

static int front_begin(struct device *dev, struct stream **s)
{
    if (cuda_state(dev)->broken)
        return -ERR_DEVICE;
    *s = enter(dev, *s);
    return 0;
}

static int front_finish(struct device *dev, struct stream *s)
{
    return cuda_wait(s, NULL);
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
    .encode = encode,
#define OP(name, ...) .name = name,
#include "kernels/ops.inc"
};
