/* What differs between the card and a machine without one: launches, and the instructions
 * that C++ has no words for.  tests/gpu/emulate holds a second version of this file that
 * runs the same kernels on the CPU, thread by thread. */
#ifndef KERNELS_CUDA_PLATFORM_CUH
#define KERNELS_CUDA_PLATFORM_CUH

#include <cuda_runtime.h>

#include "kernels/cuda/cuda.h"

/* Starts a kernel on the stream; an empty grid is no work.  As cuda_check. */
template <typename... P, typename... A>
static inline int launch(struct stream *s, void (*kernel)(P...), dim3 grid, unsigned block,
                         size_t shared, A... args)
{
    if (!grid.x || !grid.y || !grid.z)
        return 0;
    if (shared > 48 * 1024) {
        cudaError_t e = cudaFuncSetAttribute(
            (const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)shared);
        if (e != cudaSuccess)
            return cuda_check(s->st, e);
    }
    kernel<<<grid, block, shared, s->handle>>>(static_cast<P>(args)...);
    return cuda_check(s->st, cudaPeekAtLastError());
}

/* The block's dynamic shared memory, 16-byte aligned. */
#define SHARED_DYNAMIC(name) extern __shared__ __align__(16) unsigned char name[]

/* Two f32 to bf16, nearest even, the first in the low half. */
static __device__ __forceinline__ uint32_t pack_bf16(float lo, float hi)
{
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

/* 2^x, about 2 ulp; 0 for -inf. */
static __device__ __forceinline__ float fast_exp2(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Asks for the line of 128 bytes at p, which is then in the second-level cache. */
static __device__ __forceinline__ void prefetch_line(const void *p)
{
    asm volatile("prefetch.global.L2 [%0];" : : "l"(p));
}

/* Four 8x8 matrices of 16-bit values; lane 8i+j gives the address of row j of matrix i. */
static __device__ __forceinline__ void ldmatrix4(uint32_t r[4], const uint16_t *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* The same, each matrix transposed. */
static __device__ __forceinline__ void ldmatrix4_t(uint32_t r[4], const uint16_t *p)
{
    uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(at)
                 : "memory");
}

/* c (16,8) += a (16,16) b (16,8), bf16 with f32 sums, in the fragments of mma.m16n8k16. */
static __device__ __forceinline__ void mma_bf16(float c[4], const uint32_t a[4], uint32_t b0,
                                                uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, "
        "{%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif
