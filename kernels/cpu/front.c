/* The table of a CPU device: its memory, and entries that check the arguments, run the inner
 * entry and record its time.  Only this file validates, so that the reference and the fast
 * code refuse the same calls. */

#include "common/base/base.h"
#include "kernels/check.h"
#include "kernels/cpu/memory.h"
#include "kernels/cpu/state.h"
#include "kernels/profile.h"

static int mem_alloc_aligned(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    if (bytes > SIZE_MAX - 63)
        return err_set(err, -ENOMEM, "%zu bytes of device memory cannot be addressed", bytes);
    void *p = aligned_alloc(64, bytes ? (bytes + 63) / 64 * 64 : 64);
    if (!p)
        return err_set(err, -ENOMEM, "no memory for %zu bytes on device %s", bytes, dev->name);
    *ret = p;
    return 0;
}

static void mem_release(struct device *dev, void *p)
{
    free(p);
}

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    *ret = NULL;
    return 0;
}

static void stream_free(struct device *dev, struct stream *s)
{
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    return cpu_fault(dev, err);
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    return 0;
}

static int mark_new(struct device *dev, struct mark **ret, struct err *err)
{
    *ret = NULL;
    return 0;
}

static void mark_free(struct device *dev, struct mark *m)
{
}

static int set_mark(struct device *dev, struct mark *m, struct stream *s)
{
    return 0;
}

static int stream_pass(struct device *dev, struct stream *s, struct mark *m)
{
    return 0;
}

/* There is nothing to begin: an operation has finished when it returns. */
static int front_begin(struct device *dev, struct stream **s)
{
    return 0;
}

static int front_finish(struct device *dev, struct stream *s, double *seconds)
{
    return 0;
}

#define RUN(name) cpu_inner(dev)->name
#define VALUES(allowed) (allowed)
#include "kernels/front.inc"
#undef OP

const struct kernel_ops cpu_front_ops = {
    .alloc = mem_alloc_aligned,
    .free = mem_release,
    .memory = cpu_memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .sync = sync_stream,
    .stream_follow = stream_follow,
    .mark_new = mark_new,
    .mark_free = mark_free,
    .mark = set_mark,
    .stream_pass = stream_pass,
    .alloc_host = mem_alloc_aligned,
    .free_host = mem_release,
#define OP(name, ...) .name = name,
#include "kernels/ops.inc"
};
