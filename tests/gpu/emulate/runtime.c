/* The CUDA runtime as far as kernels/cuda/device.c uses it, on plain memory: one device, or two of
 * which the first does not open. */
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cuda_runtime_api.h>

#include "tests/gpu/emulate/record.h"

/* A graph, and what it is made of. */
struct node {
    struct node *next;
    void (*run)(void *arg);
    max_align_t arg[];
};
struct CUgraph_st {
    struct node *first, **end;
};

static struct CUgraph_st *capture; /* in progress */
static int launches, works;
static size_t refused = ((size_t)1 << 30) + 1;
static int graphs_refused;
static bool launches_refused, second_card;
static _Thread_local cudaError_t last;

static cudaError_t fail(cudaError_t e)
{
    last = e;
    return e;
}

void emu_do(void (*run)(void *arg), const void *arg, size_t bytes)
{
    struct node *n = malloc(sizeof *n + bytes);
    n->next = NULL;
    n->run = run;
    memcpy(n->arg, arg, bytes);
    if (capture) {
        *capture->end = n;
        capture->end = &n->next;
        return;
    }
    run(n->arg);
    free(n);
}
int emu_launches(void)
{
    return launches;
}
int emu_works(void)
{
    return works;
}
void emu_refuse(size_t bytes)
{
    refused = bytes;
}
void emu_refuse_launches(int on)
{
    launches_refused = on;
}
void emu_refuse_graphs(int count)
{
    graphs_refused = count;
}
int emu_launch_begins(void)
{
    if (launches_refused)
        (void)fail(cudaErrorMemoryAllocation);
    return !launches_refused;
}
void emu_second_card(int on)
{
    second_card = on;
}
cudaError_t cudaStreamBeginCapture(cudaStream_t s, enum cudaStreamCaptureMode mode)
{
    if (capture)
        return fail(cudaErrorIllegalState);
    capture = calloc(1, sizeof *capture);
    capture->end = &capture->first;
    return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t *graph)
{
    *graph = capture;
    capture = NULL;
    return *graph ? cudaSuccess : fail(cudaErrorIllegalState);
}
cudaError_t cudaStreamQuery(cudaStream_t s)
{
    return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t s, enum cudaStreamCaptureStatus *status)
{
    *status = capture ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
    return cudaSuccess;
}
static void graph_drop(struct CUgraph_st *g)
{
    for (struct node *n = g->first, *next; n; n = next) {
        next = n->next;
        free(n);
    }
    free(g);
}
/* The nodes move to the executable graph. */
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *exec, cudaGraph_t graph, unsigned long long flags)
{
    if (graphs_refused > 0) {
        graphs_refused--;
        return fail(cudaErrorMemoryAllocation);
    }
    struct CUgraph_st *g = malloc(sizeof *g);
    *g = *graph;
    graph->first = NULL;
    *exec = (cudaGraphExec_t)g;
    return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
    graph_drop(graph);
    return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
    graph_drop((struct CUgraph_st *)exec);
    return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    if (launches_refused)
        return fail(cudaErrorMemoryAllocation);
    launches++;
    works = 0;
    for (struct node *n = ((struct CUgraph_st *)exec)->first; n; n = n->next, works++)
        n->run(n->arg);
    return cudaSuccess;
}

cudaError_t cudaGetDeviceCount(int *count)
{
    *count = second_card ? 2 : 1;
    return cudaSuccess;
}
cudaError_t cudaSetDeviceFlags(unsigned flags)
{
    return cudaSuccess;
}
cudaError_t cudaSetDevice(int device)
{
    if (second_card && device == 0)
        return fail(cudaErrorDevicesUnavailable);
    return device > second_card ? fail(cudaErrorInvalidDevice) : cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int *version)
{
    *version = 13000;
    return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "emulated card");
    p->major = 9;
    p->multiProcessorCount = 4;
    p->totalGlobalMem = (size_t)1 << 30;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetPCIBusId(char *id, int size, int device)
{
    snprintf(id, (size_t)size, "0000:%02x:00.0", device);
    return cudaSuccess;
}
cudaError_t cudaMemGetInfo(size_t *available, size_t *total)
{
    *total = (size_t)1 << 30;
    *available = refused <= *total ? refused - 1 : *total;
    return cudaSuccess;
}
cudaError_t cudaMalloc(void **p, size_t bytes)
{
    if (capture)
        return fail(cudaErrorStreamCaptureUnsupported);
    *p = bytes < refused ? aligned_alloc(256, (bytes + 511) / 256 * 256) : NULL;
    return *p ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}
cudaError_t cudaFree(void *p)
{
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    return cudaMalloc(p, bytes);
}
cudaError_t cudaFreeHost(void *p)
{
    return cudaFree(p);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
}
struct move {
    void *dst;
    const void *src;
    int value;
    size_t bytes;
};
static void do_move(void *arg)
{
    const struct move *m = arg;
    if (m->src)
        memmove(m->dst, m->src, m->bytes);
    else
        memset(m->dst, m->value, m->bytes);
}
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind,
                            cudaStream_t s)
{
    const struct move m = {dst, src, 0, bytes};
    emu_do(do_move, &m, sizeof m);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t s)
{
    const struct move m = {dst, NULL, value, bytes};
    emu_do(do_move, &m, sizeof m);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    *s = NULL;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    return capture ? fail(cudaErrorStreamCaptureUnsupported) : cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void)
{
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = NULL;
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    return cudaSuccess;
}
/* Whatever is timed later was faster. */
cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t start, cudaEvent_t end)
{
    static float next = 1e6f;
    *ms = next--;
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    return cudaSuccess;
}
cudaError_t cudaGetLastError(void)
{
    const cudaError_t e = last;
    last = cudaSuccess;
    return e;
}
cudaError_t cudaPeekAtLastError(void)
{
    return last;
}
const char *cudaGetErrorName(cudaError_t e)
{
    return "cudaErrorEmulated";
}
const char *cudaGetErrorString(cudaError_t e)
{
    return "an emulated error";
}
