#include "kernels/cpu/ref.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/memory.h"

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

int ref_copy(struct device *dev, void *dst, const void *src, size_t bytes, enum copy_kind kind,
             struct stream *s)
{
    if (bytes)
        memcpy(dst, src, bytes);
    return 0;
}

int ref_zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    if (bytes)
        memset(dst, 0, bytes);
    return 0;
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
    return 0;
}

static int stream_follow(struct device *dev, struct stream *s, struct stream *after)
{
    return 0;
}

const struct kernel_ops cpu_ref_ops = {
    .alloc = mem_alloc_aligned,
    .free = mem_release,
    .memory = cpu_memory,
    .stream_new = stream_new,
    .stream_free = stream_free,
    .sync = sync_stream,
    .stream_follow = stream_follow,
    .alloc_host = mem_alloc_aligned,
    .free_host = mem_release,
#define OP(name, ...) .name = ref_##name,
#include "kernels/ops.inc"
};
