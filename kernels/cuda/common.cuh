/* What the kernels share: pieces of 8 values, sums over a warp and a block. */
#ifndef KERNELS_CUDA_COMMON_CUH
#define KERNELS_CUDA_COMMON_CUH

#include "kernels/cuda/platform.cuh"

enum { WARP = 32 }; /* threads */

#define FULL_WARP 0xffffffffu

/* Products and sums that are never contracted: the bits of the CPU. */
static __device__ __forceinline__ float mul(float a, float b)
{
    return __fmul_rn(a, b);
}

static __device__ __forceinline__ float add(float a, float b)
{
    return __fadd_rn(a, b);
}

static __device__ __forceinline__ float widen(float x)
{
    return x;
}

static __device__ __forceinline__ float widen(bf16 x)
{
    return __uint_as_float((uint32_t)x << 16);
}

static __device__ __forceinline__ void narrow(float *p, float v)
{
    *p = v;
}

static __device__ __forceinline__ void narrow(bf16 *p, float v)
{
    *p = (bf16)pack_bf16(v, 0.0f);
}

template <typename T> static __device__ __forceinline__ T warp_sum(T v)
{
#pragma unroll
    for (int d = WARP / 2; d; d /= 2)
        v += __shfl_xor_sync(FULL_WARP, v, d);
    return v;
}

/* Maximum over the warp, known to every thread. */
static __device__ __forceinline__ float warp_max(float v)
{
#pragma unroll
    for (int d = WARP / 2; d; d /= 2)
        v = fmaxf(v, __shfl_xor_sync(FULL_WARP, v, d));
    return v;
}

/* Sum over the block in an order fixed by its size, known to every thread.  `room` holds
 * 32 values and is free again after the next barrier. */
template <typename T> static __device__ __forceinline__ T block_sum(T v, T *room)
{
    const int warps = (int)(blockDim.x / WARP);
    v = warp_sum(v);
    if (warps == 1)
        return v;
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = v;
    __syncthreads();
    T sum = room[0];
    for (int i = 1; i < warps; i++)
        sum += room[i];
    return sum;
}

/* Maximum over the block; room as in block_sum. */
static __device__ __forceinline__ float block_max(float v, float *room)
{
    const int warps = (int)(blockDim.x / WARP);
    v = warp_max(v);
    if (warps == 1)
        return v;
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        room[threadIdx.x / WARP] = v;
    __syncthreads();
    for (int i = 0; i < warps; i++)
        v = fmaxf(v, room[i]);
    return v;
}

/* On the host: may all of these be read 16 bytes at a time?  NULL is aligned. */
static inline bool aligned16(const void *a, const void *b = 0, const void *c = 0, const void *d = 0,
                             const void *e = 0, const void *f = 0)
{
    return (((uintptr_t)a | (uintptr_t)b | (uintptr_t)c | (uintptr_t)d | (uintptr_t)e |
             (uintptr_t)f) &
            15) == 0;
}

static inline unsigned blocks_of(int64_t n, int64_t each)
{
    int64_t blocks = (n + each - 1) / each;
    return (unsigned)(blocks < INT32_MAX ? blocks : INT32_MAX);
}

/* v[0..N) = p[0..N), N 4 or 8.  WIDE: p is 16-byte aligned and all N are there; else the
 * first `left` are, and the others become 0. */
template <bool WIDE, int N>
static __device__ __forceinline__ void load(float v[N], const float *p, int64_t left)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        if (WIDE) {
            float4 a = *(const float4 *)(p + i);
            v[i] = a.x, v[i + 1] = a.y, v[i + 2] = a.z, v[i + 3] = a.w;
        } else {
#pragma unroll
            for (int k = i; k < i + 4; k++)
                v[k] = k < left ? p[k] : 0.0f;
        }
    }
}

static __device__ __forceinline__ void widen_pair(float v[2], uint32_t u)
{
    v[0] = __uint_as_float(u << 16);
    v[1] = __uint_as_float(u & 0xffff0000u);
}

template <bool WIDE, int N>
static __device__ __forceinline__ void load(float v[N], const bf16 *p, int64_t left)
{
    if (WIDE && N == 8) {
        uint4 a = *(const uint4 *)p;
        widen_pair(v, a.x);
        widen_pair(v + 2, a.y);
        widen_pair(v + N - 4, a.z);
        widen_pair(v + N - 2, a.w);
    } else if (WIDE) {
        uint2 a = *(const uint2 *)p;
        widen_pair(v, a.x);
        widen_pair(v + 2, a.y);
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            v[i] = i < left ? widen(p[i]) : 0.0f;
    }
}

template <bool WIDE, int N>
static __device__ __forceinline__ void store(float *p, const float v[N], int64_t left)
{
#pragma unroll
    for (int i = 0; i < N; i += 4) {
        if (WIDE) {
            *(float4 *)(p + i) = make_float4(v[i], v[i + 1], v[i + 2], v[i + 3]);
        } else {
#pragma unroll
            for (int k = i; k < i + 4; k++)
                if (k < left)
                    p[k] = v[k];
        }
    }
}

template <bool WIDE, int N>
static __device__ __forceinline__ void store(bf16 *p, const float v[N], int64_t left)
{
    if (WIDE && N == 8) {
        *(uint4 *)p = make_uint4(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]),
                                 pack_bf16(v[N - 4], v[N - 3]), pack_bf16(v[N - 2], v[N - 1]));
    } else if (WIDE) {
        *(uint2 *)p = make_uint2(pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3]));
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (i < left)
                narrow(p + i, v[i]);
    }
}

/* f.template at<WIDE>(i, left) for i = 0, F::STEP, 2 F::STEP, ... below n: one thread each. */
template <bool WIDE, typename F> __global__ void __launch_bounds__(256) map_kernel(F f, int64_t n)
{
    int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * F::STEP;
    if (i >= n)
        return;
    if (WIDE && n - i >= F::STEP)
        f.template at<true>(i, n - i);
    else
        f.template at<false>(i, n - i);
}

template <typename F> static inline int map(struct stream *s, const F &f, int64_t n, bool wide)
{
    dim3 grid(blocks_of(n, 256 * F::STEP));
    return wide ? launch(s, map_kernel<true, F>, grid, 256, 0, f, n)
                : launch(s, map_kernel<false, F>, grid, 256, 0, f, n);
}

#endif
