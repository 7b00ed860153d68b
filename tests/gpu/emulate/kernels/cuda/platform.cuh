/* The kernels of kernels/cuda on the CPU: stands in for the real file of this name.
 *
 * A block's threads are fibers that run one at a time and change at barriers and at the
 * instructions of a warp.  What a fiber run shows: indices, layouts, bounds, missing
 * lanes and barriers that not every thread reaches.  SKERRY_EMULATE_REVERSE=1 runs the threads
 * backwards, which shows most missing barriers as other results.  What it cannot show:
 * memory ordering finer than that, alignment faults, speed. */
#ifndef KERNELS_CUDA_PLATFORM_CUH
#define KERNELS_CUDA_PLATFORM_CUH

#include <cuda_runtime.h>

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "tests/gpu/emulate/record.h"

#undef __shared__
#define __shared__ static
#undef __launch_bounds__
#define __launch_bounds__(...)
#undef __grid_constant__
#define __grid_constant__
#undef __forceinline__
#define __forceinline__ inline

struct emu_thread {
    uint3 thread, block;
    dim3 block_dim, grid_dim;
    int linear;
};

extern struct emu_thread *emu_now;
extern unsigned char *emu_shared;

#define threadIdx (emu_now->thread)
#define blockIdx (emu_now->block)
#define blockDim (emu_now->block_dim)
#define gridDim (emu_now->grid_dim)

void __syncthreads(void);
int __syncthreads_or(int v);
void __syncwarp(void);

/* Every lane gives 16 bytes and sees those of all: two meetings of the warp. */
void emu_warp_share(const void *mine, size_t bytes, unsigned char all[32][16]);

/* Runs body(arg) once per thread of every block. */
void emu_run(dim3 grid, dim3 block, size_t shared, void (*body)(void *arg), void *arg);

template <typename T> static inline T __shfl_sync(unsigned mask, T v, int lane)
{
    unsigned char all[32][16];
    T r;
    emu_warp_share(&v, sizeof v, all);
    memcpy(&r, all[lane & 31], sizeof r);
    return r;
}

template <typename T> static inline T __shfl_xor_sync(unsigned mask, T v, int d)
{
    return __shfl_sync(mask, v, (emu_now->linear & 31) ^ d);
}

static inline unsigned __ballot_sync(unsigned mask, int v)
{
    unsigned char all[32][16];
    unsigned r = 0;
    emu_warp_share(&v, sizeof v, all);
    for (int i = 0; i < 32; i++) {
        int x;
        memcpy(&x, all[i], sizeof x);
        r |= (unsigned)(x != 0) << i;
    }
    return r;
}

static inline float __fmul_rn(float a, float b)
{
    return a * b;
}
static inline float __fadd_rn(float a, float b)
{
    return a + b;
}
static inline double __dmul_rn(double a, double b)
{
    return a * b;
}
static inline double __dadd_rn(double a, double b)
{
    return a + b;
}
static inline int __clzll(long long v)
{
    return v ? __builtin_clzll((unsigned long long)v) : 64;
}
template <typename T> static inline void __stcs(T *p, T v)
{
    *p = v;
}
static inline float __fdiv_rn(float a, float b)
{
    return a / b;
}
static inline float __uint_as_float(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}
static inline uint32_t __float_as_uint(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}
static inline int __ffs(int v)
{
    return __builtin_ffs(v);
}
static inline float rsqrtf(float x)
{
    return 1.0f / sqrtf(x);
}
static inline void sincospif(float x, float *s, float *c)
{
    *s = (float)sin(M_PI * (double)x);
    *c = (float)cos(M_PI * (double)x);
}
static inline int min(int a, int b)
{
    return a < b ? a : b;
}
static inline int max(int a, int b)
{
    return a > b ? a : b;
}

template <typename... P, typename... A>
static inline int launch(struct stream *s, void (*kernel)(P...), dim3 grid, unsigned block,
                         size_t shared, A... args)
{
    auto body = [=]() { kernel(static_cast<P>(args)...); };
    auto whole = [=]() {
        auto each = body;
        emu_run(
            grid, dim3(block), shared, [](void *arg) { (*(decltype(each) *)arg)(); }, &each);
    };
    if (!grid.x || !grid.y || !grid.z)
        return 0;
    if (emu_launch_begins())
        emu_do(
            s->handle, [](void *arg) { (*(decltype(whole) *)arg)(); }, &whole, sizeof whole);
    return cuda_check(s->st, cudaPeekAtLastError());
}

#define SHARED_DYNAMIC(name) unsigned char *name = emu_shared

static inline uint32_t pack_bf16(float lo, float hi)
{
    return bf16_from_f32(lo) | (uint32_t)bf16_from_f32(hi) << 16;
}

/* What is asked for must be there. */
static inline void prefetch_line(const void *p)
{
    (void)*(const volatile char *)p;
}

static inline float fast_exp2(float x)
{
    return exp2f(x);
}

static inline void emu_ldmatrix(uint32_t r[4], const uint16_t *p, bool transposed)
{
    unsigned char all[32][16];
    int lane = emu_now->linear & 31;
    emu_warp_share(p, 16, all); /* the row itself: the address says no more */
    for (int i = 0; i < 4; i++) {
        uint16_t v[2];
        for (int j = 0; j < 2; j++) {
            int row = transposed ? lane % 4 * 2 + j : lane / 4;
            int column = transposed ? lane / 4 : lane % 4 * 2 + j;
            memcpy(&v[j], all[8 * i + row] + 2 * column, 2);
        }
        r[i] = v[0] | (uint32_t)v[1] << 16;
    }
}

static inline void ldmatrix4(uint32_t r[4], const uint16_t *p)
{
    emu_ldmatrix(r, p, false);
}

static inline void ldmatrix4_t(uint32_t r[4], const uint16_t *p)
{
    emu_ldmatrix(r, p, true);
}

static inline float emu_half(uint32_t u, int high)
{
    return bf16_to_f32((uint16_t)(u >> (high ? 16 : 0)));
}

static inline void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0, uint32_t b1)
{
    unsigned char as[32][16], bs[32][16];
    uint32_t b[2] = {b0, b1};
    int lane = emu_now->linear & 31;
    emu_warp_share(a, 16, as);
    emu_warp_share(b, 8, bs);
    for (int i = 0; i < 4; i++) {
        int row = lane / 4 + (i >= 2 ? 8 : 0), column = lane % 4 * 2 + i % 2;
        float sum = c[i];
        for (int k = 0; k < 16; k++) {
            uint32_t ra[4], rb[2];
            memcpy(ra, as[row % 8 * 4 + k % 8 / 2], 16);
            memcpy(rb, bs[column * 4 + k % 8 / 2], 8);
            sum += emu_half(ra[(row >= 8) + 2 * (k >= 8)], k % 2) * emu_half(rb[k >= 8], k % 2);
        }
        c[i] = sum;
    }
}

#endif
