/* The state that every operation of a GPU needs: errors, working memory, copies.  Calls no other
 * file of the backend. */
#include "common/base/base.h"
#include "common/base/log.h"
#include "kernels/cuda/cuda.h"

/* More than a library allocates to load a kernel. */
enum { LITTLE_BYTES = 64 << 20 };

int cuda_check(struct cuda_state *st, cudaError_t e)
{
    if (e == cudaSuccess)
        return 0;
    (void)cudaGetLastError(); /* the next launch asks for it, maybe another card's */
    if (st->recording) {
        st->refused = st->refused ? st->refused : (int)e;
        return -EBUSY;
    }
    if (e == cudaErrorMemoryAllocation)
        return -ENOMEM;
    if (!st->broken) /* of an operation that fails the caller learns no more than that */
        log_error("device", "cuda:%d failed: %s (%s)", st->index, cudaGetErrorString(e),
                  cudaGetErrorName(e));
    if (!st->broken)
        st->broken = (int)e;
    return -ERR_DEVICE;
}

int cuda_blame(struct cuda_state *st)
{
    size_t available = 0, total = 0;
    cudaError_t e = cudaMemGetInfo(&available, &total);
    if (e == cudaSuccess && available < LITTLE_BYTES)
        e = cudaErrorMemoryAllocation;
    return cuda_check(st, e);
}

int cuda_scratch(struct stream *s, size_t bytes, void **ret)
{
    if (bytes > s->scratch_bytes) {
        size_t size = (bytes + (1 << 20) - 1) >> 20 << 20;
        void *p = NULL;
        if (s->st->recording)
            return cuda_check(s->st, cudaErrorStreamCaptureUnsupported);
        cudaError_t e = cudaStreamSynchronize(s->handle); /* it may still be in use */
        if (e != cudaSuccess)
            return cuda_check(s->st, e);
        cudaFree(s->scratch);
        s->scratch = NULL;
        s->scratch_bytes = 0;
        e = cudaMalloc(&p, size);
        if (e != cudaSuccess) {
            (void)cudaGetLastError();
            return e == cudaErrorMemoryAllocation ? -ENOMEM : cuda_check(s->st, e);
        }
        s->scratch = p;
        s->scratch_bytes = size;
    }
    *ret = s->scratch;
    return 0;
}

/* ---- copies ---- */

static bool pageable(const void *host)
{
    struct cudaPointerAttributes a;
    if (cudaPointerGetAttributes(&a, host) == cudaSuccess)
        return a.type == cudaMemoryTypeUnregistered;
    (void)cudaGetLastError();
    return true;
}

/* -ENOMEM: the host has no memory to pin, which is no lasting error. */
static int stages_new(struct cuda_state *st)
{
    cudaError_t e = cudaSuccess;
    for (int i = 0; i < CUDA_STAGES && e == cudaSuccess; i++) {
        void *p = st->stage[i];
        if (!p)
            e = cudaHostAlloc(&p, CUDA_STAGE_BYTES, cudaHostAllocDefault);
        if (e != cudaSuccess) {
            (void)cudaGetLastError();
            return e == cudaErrorMemoryAllocation ? -ENOMEM : cuda_check(st, e);
        }
        st->stage[i] = p;
        if (!st->stage_free[i])
            e = cudaEventCreateWithFlags(&st->stage_free[i], cudaEventDisableTiming);
    }
    return cuda_check(st, e);
}

/* The next stage, once the copy that used it has ended. */
static cudaError_t stage_take(struct cuda_state *st, int *ret)
{
    *ret = st->stage_next;
    st->stage_next = (st->stage_next + 1) % CUDA_STAGES;
    return cudaEventSynchronize(st->stage_free[*ret]);
}

static cudaError_t upload(struct cuda_state *st, char *dst, const char *src, size_t bytes,
                          cudaStream_t s)
{
    cudaError_t e = cudaSuccess;
    for (size_t at = 0; at < bytes && e == cudaSuccess; at += CUDA_STAGE_BYTES) {
        size_t n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
        int i;
        e = stage_take(st, &i);
        if (e != cudaSuccess)
            break;
        memcpy(st->stage[i], src + at, n);
        e = cudaMemcpyAsync(dst + at, st->stage[i], n, cudaMemcpyHostToDevice, s);
        if (e == cudaSuccess)
            e = cudaEventRecord(st->stage_free[i], s);
    }
    return e;
}

/* While one stage is emptied the next one fills. */
static cudaError_t download(struct cuda_state *st, char *dst, const char *src, size_t bytes,
                            cudaStream_t s)
{
    cudaError_t e = cudaSuccess;
    int before = 0;
    size_t before_bytes = 0;
    char *before_at = NULL;
    for (size_t at = 0; (at < bytes || before_at) && e == cudaSuccess; at += CUDA_STAGE_BYTES) {
        int i = 0;
        size_t n = 0;
        if (at < bytes) {
            n = bytes - at < CUDA_STAGE_BYTES ? bytes - at : CUDA_STAGE_BYTES;
            e = stage_take(st, &i);
            if (e == cudaSuccess)
                e = cudaMemcpyAsync(st->stage[i], src + at, n, cudaMemcpyDeviceToHost, s);
            if (e == cudaSuccess)
                e = cudaEventRecord(st->stage_free[i], s);
        }
        if (before_at && e == cudaSuccess) {
            e = cudaEventSynchronize(st->stage_free[before]);
            if (e == cudaSuccess)
                memcpy(before_at, st->stage[before], before_bytes);
        }
        before = i;
        before_bytes = n;
        before_at = n ? dst + at : NULL;
    }
    return e;
}

int cuda_copy(struct device *dev, void *dst, const void *src, size_t bytes, enum copy_kind kind,
              struct stream *s)
{
    struct cuda_state *st = cuda_state(dev);
    if (!bytes)
        return 0;
    if (st->recording && kind != COPY_DEVICE)
        return cuda_check(st, cudaErrorStreamCaptureUnsupported);
    if (kind != COPY_DEVICE && pageable(kind == COPY_TO_DEVICE ? src : dst)) {
        int rc = stages_new(st);
        if (rc < 0)
            return rc;
        return cuda_check(st, kind == COPY_TO_DEVICE ? upload(st, dst, src, bytes, s->handle)
                                                     : download(st, dst, src, bytes, s->handle));
    }
    enum cudaMemcpyKind how = kind == COPY_TO_DEVICE     ? cudaMemcpyHostToDevice
                              : kind == COPY_FROM_DEVICE ? cudaMemcpyDeviceToHost
                                                         : cudaMemcpyDeviceToDevice;
    return cuda_check(st, cudaMemcpyAsync(dst, src, bytes, how, s->handle));
}

int cuda_zero(struct device *dev, void *dst, size_t bytes, struct stream *s)
{
    return bytes ? cuda_check(s->st, cudaMemsetAsync(dst, 0, bytes, s->handle)) : 0;
}
