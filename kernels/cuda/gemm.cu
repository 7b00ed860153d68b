/* A product of our own for the few shapes that cuBLASLt declines, with any strides and no
 * epilogue. */
#include <errno.h>

#include "kernels/cuda/common.cuh"

enum { TILE = 32, TILE_ROWS = 8 };

/* Element (i,p) of op(A) is a[i ai + p ap], (p,j) of op(B) is b[p bp + j bj]. */
template <typename T> struct gemm {
    float *out;
    const T *a, *b;
    int64_t m, n, k, ai, ap, bp, bj;
};

template <typename T>
__global__ void __launch_bounds__(TILE *TILE_ROWS) gemm_kernel(struct gemm<T> g)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    const int x = (int)threadIdx.x % TILE, y = (int)threadIdx.x / TILE;
    const int64_t i0 = (int64_t)blockIdx.x * TILE, j0 = (int64_t)blockIdx.y * TILE;
    float sum[TILE / TILE_ROWS] = {0};
    for (int64_t p0 = 0; p0 < g.k; p0 += TILE) {
        for (int r = y; r < TILE; r += TILE_ROWS) {
            const int64_t i = i0 + r, j = j0 + x, pa = p0 + x, pb = p0 + r;
            a[r][x] = i < g.m && pa < g.k ? widen(g.a[i * g.ai + pa * g.ap]) : 0.0f;
            b[r][x] = j < g.n && pb < g.k ? widen(g.b[pb * g.bp + j * g.bj]) : 0.0f;
        }
        __syncthreads();
        for (int p = 0; p < TILE; p++)
#pragma unroll
            for (int r = 0; r < TILE / TILE_ROWS; r++)
                sum[r] += a[y + r * TILE_ROWS][p] * b[p][x];
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TILE / TILE_ROWS; r++) {
        const int64_t i = i0 + y + r * TILE_ROWS, j = j0 + x;
        if (i < g.m && j < g.n)
            g.out[i * g.n + j] = sum[r];
    }
}

template <typename T> static int gemm_run(float *out, const struct matmul *mm, struct stream *s)
{
    const bool tn = mm->layout == MM_TN, nt = mm->layout == MM_NT;
    const int64_t lda = mm->lda ? mm->lda : tn ? mm->m : mm->k;
    const int64_t ldb = mm->ldb ? mm->ldb : nt ? mm->k : mm->n;
    struct gemm<T> g = {
        out, (const T *)mm->a, (const T *)mm->b, mm->m, mm->n, mm->k, tn ? 1 : lda, tn ? lda : 1,
            nt ? 1 : ldb, nt ? ldb : 1
    };
    const unsigned columns = blocks_of(g.n, TILE);
    if (columns > 65535) /* the grid's second side */
        return -EINVAL;
    return launch(s, gemm_kernel<T>, dim3(blocks_of(g.m, TILE), columns), TILE * TILE_ROWS, 0, g);
}

extern "C" int cuda_gemm(float *out, const struct matmul *mm, struct stream *s)
{
    return mm->dt == DT_BF16 ? gemm_run<bf16>(out, mm, s) : gemm_run<float>(out, mm, s);
}
