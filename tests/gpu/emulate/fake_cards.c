/* Cards without kernels, for what only queues and waits (kernels/cuda/comm_nccl.c): memory is
 * the host's, a stream is a count of what is queued on it (nccl.c). */
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/base/err.h"
#include "kernels/comm.h"
#include "kernels/cuda/cuda.h"

int fake_card_open(const char *name, int threads, struct device **ret, struct err *err);
void fake_card_close(struct device *dev);
int fake_cards(void);

static int next;
static _Thread_local cudaError_t last; /* as a launch would find it */

int fake_cards(void)
{
    return COMM_RANKS_MAX;
}

static atomic_int *count_of(struct device *dev, struct stream *s)
{
    return (atomic_int *)(void *)(s ? s : &cuda_state(dev)->main)->handle;
}

static int alloc(struct device *dev, size_t bytes, void **ret, struct err *err)
{
    *ret = calloc(1, bytes);
    return 0;
}

static void release(struct device *dev, void *p)
{
    free(p);
}

static int sync_stream(struct device *dev, struct stream *s, struct err *err)
{
    while (atomic_load(count_of(dev, s)) > 0)
        sched_yield();
    return last == cudaSuccess ? 0 : -ERR_DEVICE;
}

static int copy(struct device *dev, void *dst, const void *src, size_t bytes, enum copy_kind kind,
                struct stream *s)
{
    sync_stream(dev, s, NULL);
    memcpy(dst, src, bytes);
    return 0;
}

static int zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    sync_stream(dev, s, NULL);
    memset(dst, 0, bytes);
    return 0;
}

static int stream_new(struct device *dev, struct stream **ret, struct err *err)
{
    struct stream *s = calloc(1, sizeof *s);
    s->handle = calloc(1, sizeof(atomic_int));
    *ret = s;
    return 0;
}

static void stream_free(struct device *dev, struct stream *s)
{
    free(s->handle);
    free(s);
}

cudaError_t cudaSetDevice(int index)
{
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    cudaError_t e = atomic_load((atomic_int *)(void *)s) > 0 ? cudaErrorNotReady : cudaSuccess;
    last = e != cudaSuccess ? e : last;
    return e;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last;
    last = cudaSuccess;
    return e;
}

int fake_card_open(const char *name, int threads, struct device **ret, struct err *err)
{
    static const struct kernel_ops ops = {
        .alloc = alloc,
        .free = release,
        .copy = copy,
        .zero = zero,
        .sync = sync_stream,
        .stream_new = stream_new,
        .stream_free = stream_free,
    };
    struct device *dev = calloc(1, sizeof *dev);
    struct cuda_state *st = calloc(1, sizeof *st);
    st->index = next++;
    st->main.handle = calloc(1, sizeof(atomic_int));
    dev->ops = &ops;
    dev->impl = st;
    snprintf(dev->name, sizeof dev->name, "cuda:%d", st->index);
    *ret = dev;
    return 0;
}

void fake_card_close(struct device *dev)
{
    free(cuda_state(dev)->main.handle);
    free(dev->impl);
    free(dev);
}
