/* The table a CPU device shows: checks the arguments, runs the inner entry and
 * records its time.  The only place that validates, so that the reference and the
 * fast code refuse the same calls. */
#include <errno.h>

#include "kernels/check.h"
#include "kernels/cpu/state.h"
#include "kernels/profile.h"

static int alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    return cpu_inner(dev)->alloc(dev, bytes, ret, err);
}

static void release(struct device *dev, void *p)
{
    cpu_inner(dev)->free(dev, p);
}

static int memory(struct device *dev, uint64_t *ret_free, uint64_t *ret_total)
{
    return cpu_inner(dev)->memory(dev, ret_free, ret_total);
}

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    return cpu_inner(dev)->stream_new(dev, ret, err);
}

static void stream_free(struct device *dev, struct stream *s)
{
    cpu_inner(dev)->stream_free(dev, s);
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    int rc = cpu_fault(dev, err);
    return rc < 0 ? rc : cpu_inner(dev)->sync(dev, s, err);
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    return cpu_inner(dev)->stream_follow(dev, s, after);
}

static int alloc_host(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    return cpu_inner(dev)->alloc_host(dev, bytes, ret, err);
}

static void free_host(struct device *dev, void *p)
{
    cpu_inner(dev)->free_host(dev, p);
}

/* What runs has finished when it returns. */
static int front_begin(struct device *dev, struct stream **s)
{
    return 0;
}

static int front_finish(struct device *dev, struct stream *s)
{
    return 0;
}

#define RUN(name) cpu_inner(dev)->name
#define VALUES(allowed) (allowed)
#include "kernels/front.inc"
#undef OP

const struct kernel_ops cpu_front_ops = {
    .alloc = alloc,
    .free = release,
    .memory = memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .sync = sync_stream,
    .stream_follow = stream_follow,
    .alloc_host = alloc_host,
    .free_host = free_host,
#define OP(name, ...) .name = name,
#include "kernels/ops.inc"
};
