/* The CUDA runtime as far as kernels/cuda uses it, on plain memory: one device, or two of which the
 * first does not open.
 *
 * A stream does its work as soon as it has it, or as late as it may: when the host waits for it, or
 * another stream that waits for it does its own.  SKERRY_EMULATE_LATE=N has a bit for each stream,
 * in the order in which they are made and modulo 8, which is set for those that are late.  So a
 * stream that does not wait for another, and a host that writes where a copy still reads, show. */
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
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
/* Never freed: an event may name it. */
struct CUstream_st {
    struct CUstream_st *next;
    struct node *first, **end; /* its work to come */
    uint64_t queued, done;     /* works so far */
    bool late;
};
/* A place in a stream's work; stream NULL: none yet. */
struct CUevent_st {
    struct CUstream_st *stream;
    uint64_t at;
};
struct pinned {
    struct pinned *next;
    char *p;
    size_t bytes;
};

static struct CUgraph_st *capture; /* in progress */
static struct CUstream_st *captured, *streams;
static struct pinned *pinned;
static int launches, works;
static size_t refused = ((size_t)1 << 30) + 1;
static int graphs_refused;
static cudaError_t launches_refused;
static bool second_card;
static _Thread_local cudaError_t last;

static cudaError_t fail(cudaError_t e)
{
    last = e;
    return e;
}

/* Does the stream's work up to this place. */
static void drain(struct CUstream_st *s, uint64_t at)
{
    while (s->done < at) {
        struct node *n = s->first;
        s->first = n->next;
        if (!s->first)
            s->end = &s->first;
        n->run(n->arg);
        free(n);
        s->done++;
    }
}

static void drain_all(void)
{
    for (struct CUstream_st *s = streams; s; s = s->next)
        drain(s, s->queued);
}

void emu_do(struct CUstream_st *s, void (*run)(void *arg), const void *arg, size_t bytes)
{
    struct node *n = malloc(sizeof *n + bytes);
    n->next = NULL;
    n->run = run;
    memcpy(n->arg, arg, bytes);
    if (capture && s == captured) {
        *capture->end = n;
        capture->end = &n->next;
        return;
    }
    *s->end = n;
    s->end = &n->next;
    s->queued++;
    if (!s->late)
        drain(s, s->queued);
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
void emu_refuse_launches(int error)
{
    launches_refused = (cudaError_t)error;
}
void emu_refuse_graphs(int count)
{
    graphs_refused = count;
}
int emu_launch_begins(void)
{
    if (launches_refused)
        (void)fail(launches_refused);
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
    captured = s;
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
    return cudaStreamSynchronize(s);
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
    drain_all();
    graph_drop((struct CUgraph_st *)exec);
    return cudaSuccess;
}
static void do_graph(void *arg)
{
    works = 0;
    for (struct node *n = (*(struct CUgraph_st **)arg)->first; n; n = n->next, works++)
        n->run(n->arg);
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t s)
{
    if (launches_refused)
        return fail(launches_refused);
    launches++;
    emu_do(s, do_graph, &exec, sizeof exec);
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
/* A card waits for all its work before it frees. */
cudaError_t cudaFree(void *p)
{
    if (capture && p)
        return fail(cudaErrorStreamCaptureUnsupported);
    drain_all();
    free(p);
    return cudaSuccess;
}
cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned flags)
{
    const cudaError_t e = cudaMalloc(p, bytes);
    if (e != cudaSuccess)
        return e;
    struct pinned *h = malloc(sizeof *h);
    *h = (struct pinned){pinned, *p, bytes};
    pinned = h;
    return cudaSuccess;
}
cudaError_t cudaFreeHost(void *p)
{
    for (struct pinned **at = &pinned; *at; at = &(*at)->next) {
        struct pinned *h = *at;
        if (h->p != p)
            continue;
        *at = h->next;
        free(h);
        break;
    }
    return cudaFree(p);
}
cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    memset(a, 0, sizeof *a);
    a->type = cudaMemoryTypeUnregistered;
    for (struct pinned *h = pinned; h; h = h->next)
        if ((const char *)p >= h->p && (const char *)p < h->p + h->bytes)
            a->type = cudaMemoryTypeHost;
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
    emu_do(s, do_move, &m, sizeof m);
    return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void *dst, int value, size_t bytes, cudaStream_t s)
{
    const struct move m = {dst, NULL, value, bytes};
    emu_do(s, do_move, &m, sizeof m);
    return cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t *ret, unsigned flags)
{
    static unsigned number;
    const char *late = getenv("SKERRY_EMULATE_LATE");
    struct CUstream_st *s = calloc(1, sizeof *s);
    s->end = &s->first;
    s->late = late && atoi(late) >> number++ % 8 & 1;
    s->next = streams;
    *ret = streams = s;
    return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    drain(s, s->queued);
    return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    if (capture)
        return fail(cudaErrorStreamCaptureUnsupported);
    drain(s, s->queued);
    return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = calloc(1, sizeof **e);
    return cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    free(e);
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
    *e = (struct CUevent_st){s, s->queued};
    return cudaSuccess;
}
static void do_wait(void *arg)
{
    const struct CUevent_st *e = arg;
    drain(e->stream, e->at);
}
cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    if (e->stream)
        do_wait(e);
    return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned flags)
{
    if (e->stream)
        emu_do(s, do_wait, e, sizeof *e);
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
