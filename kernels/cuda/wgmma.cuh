/* Products of a warpgroup (wgmma) and copies into shared memory, of compute capability 9.0 alone.
 * tests/gpu/emulate holds a second version of this file, as of platform.cuh.
 *
 * A tile lies in shared memory in pieces of 8 rows of 16 bytes, one behind the other.  What a
 * product reads of it 16 values at a time is told by two distances in bytes:
 *
 *   rows     A or B has its sum along the 16 bytes: `across` to the next 8 values of the sum,
 *            `down` to the next 8 rows
 *   columns  the sum runs down the rows: `across` to the next 8 rows, `down` to the next 8 columns
 *
 * (the leading and stride offsets of PTX's matrix descriptor without swizzling).  Accumulators are
 * those of mma.m16n8k16, 16 rows to a warp. */
#ifndef KERNELS_CUDA_WGMMA_CUH
#define KERNELS_CUDA_WGMMA_CUH

#include "kernels/cuda/platform.cuh"

typedef uint64_t wgmma_tile;

/* The tile at p, aligned to 16 bytes, and so are both distances. */
static __device__ __forceinline__ wgmma_tile wgmma_tile_at(const void *p, unsigned across,
                                                           unsigned down)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(p);
    return (at & 0x3ffff) >> 4 | (uint64_t)(across >> 4) << 16 | (uint64_t)(down >> 4) << 32;
}

/* Before the first product of several, whose registers may just have been written. */
static __device__ __forceinline__ void wgmma_begin(void)
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

/* After the last: they are done.  Until then the registers of their operands are theirs. */
static __device__ __forceinline__ void wgmma_wait(void)
{
    asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
}

/* What is in d is read after what went before, and not sooner. */
template <int N> static __device__ __forceinline__ void wgmma_done(float (&d)[N][4])
{
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            asm volatile("" : "+f"(d[n][i])::"memory");
}

/* What this thread has stored in shared memory may be read by products after the next barrier. */
static __device__ __forceinline__ void wgmma_publish(void)
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* 16 bytes from global to shared memory, both aligned to as many; there after copy_async_wait. */
static __device__ __forceinline__ void copy_async(void *to, const void *from)
{
    const uint32_t at = (uint32_t)__cvta_generic_to_shared(to);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(from) : "memory");
}

/* For all copies of this thread. */
static __device__ __forceinline__ void copy_async_wait(void)
{
    asm volatile("cp.async.wait_all;" ::: "memory");
}

#define WGMMA_OUT(n) "+f"(d[n][0]), "+f"(d[n][1]), "+f"(d[n][2]), "+f"(d[n][3])
#define WGMMA_64                                                                                   \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"      \
    "%24,%25,%26,%27,%28,%29,%30,%31}"
#define WGMMA_72                                                                                   \
    "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,"      \
    "%24,%25,%26,%27,%28,%29,%30,%31,%32,%33,%34,%35}"

/* d (64,8 N) = a (64,16) b (16,8 N), or += with add.  TA, TB: 0 for tiles of rows, 1 of columns. */
template <int TA, int TB>
static __device__ __forceinline__ void wgmma_ss(float (&d)[8][4], wgmma_tile a, wgmma_tile b,
                                                int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " WGMMA_64
                 ", %32, %33, p, 1, 1, %35, %36;\n}"
                 : WGMMA_OUT(0), WGMMA_OUT(1), WGMMA_OUT(2), WGMMA_OUT(3), WGMMA_OUT(4),
                   WGMMA_OUT(5), WGMMA_OUT(6), WGMMA_OUT(7)
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}

template <int TA, int TB>
static __device__ __forceinline__ void wgmma_ss(float (&d)[9][4], wgmma_tile a, wgmma_tile b,
                                                int add)
{
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %38, 0;\n"
                 "wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 " WGMMA_72
                 ", %36, %37, p, 1, 1, %39, %40;\n}"
                 : WGMMA_OUT(0), WGMMA_OUT(1), WGMMA_OUT(2), WGMMA_OUT(3), WGMMA_OUT(4),
                   WGMMA_OUT(5), WGMMA_OUT(6), WGMMA_OUT(7), WGMMA_OUT(8)
                 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}

/* The same with a in registers, and added. */
template <int TB>
static __device__ __forceinline__ void wgmma_rs(float (&d)[9][4], const uint32_t (&a)[4],
                                                wgmma_tile b)
{
    asm volatile("wgmma.mma_async.sync.aligned.m64n72k16.f32.bf16.bf16 " WGMMA_72
                 ", {%36,%37,%38,%39}, %40, 1, 1, 1, %41;"
                 : WGMMA_OUT(0), WGMMA_OUT(1), WGMMA_OUT(2), WGMMA_OUT(3), WGMMA_OUT(4),
                   WGMMA_OUT(5), WGMMA_OUT(6), WGMMA_OUT(7), WGMMA_OUT(8)
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "n"(TB));
}

#undef WGMMA_OUT
#undef WGMMA_64
#undef WGMMA_72

#endif
