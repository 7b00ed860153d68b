/* Convolution as a product whose left rows are gathered on the way: y (pixels,Cout) =
 * im2col(x) (pixels,K) wᵀ, K counting the taps and the channels of each.  In bf16 on tensor
 * cores.  An output's sum has one order, whatever the other pixels are. */
#include <errno.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/conv_dnn.h"

enum {
    ROWS = 128,    /* pixels, and output channels, of a block */
    THREADS = 256, /* 16 x 16, or 8 warps of 32 x 64 */
    QUARTERS = 4,  /* pieces of 16 bytes that a row has in a step along K */
    LOADS = ROWS * QUARTERS / THREADS,
    LINE = 80 /* bytes from row to row in shared memory: eight rows miss each other's banks */
};

struct conv {
    struct conv2d p;
    int64_t rows; /* pixels of all samples */
    int Ho, Wo, K;
};

/* The pixel that a thread gathers for: its sample, and the corner of its taps. */
struct corner {
    int64_t sample; /* first element, or -1 beyond the last pixel */
    int i, j;
};

static __device__ __forceinline__ struct corner corner_of(const struct conv &c, int64_t row)
{
    const struct conv2d &p = c.p;
    const int64_t pixels = (int64_t)c.Ho * c.Wo;
    const int at = (int)(row % pixels);
    struct corner k;
    k.sample = row < c.rows ? row / pixels * p.H * p.W * p.Cin : -1;
    k.i = at / c.Wo * p.stride - p.pad_low;
    k.j = at % c.Wo * p.stride - p.pad_low;
    return k;
}

/* Element of x at position `at` of the row of im2col(x), or -1 where that is a zero. */
static __device__ __forceinline__ int64_t gathered(const struct conv &c, const struct corner &k,
                                                   int at)
{
    const struct conv2d &p = c.p;
    const int tap = at / p.Cin, grow = p.up2 ? 1 : 0;
    const int i = k.i + tap / p.k, j = k.j + tap % p.k;
    if (k.sample < 0 || at >= c.K || i < 0 || j < 0 || i >> grow >= p.H || j >> grow >= p.W)
        return -1;
    return k.sample + ((int64_t)(i >> grow) * p.W + (j >> grow)) * p.Cin + at % p.Cin;
}

template <typename T> union piece {
    uint4 all;
    T v[16 / sizeof(T)];
};

/* 16 bytes of a row of im2col(x).  WIDE: they are channels of one tap, in one aligned piece. */
template <bool WIDE, typename T>
static __device__ __forceinline__ uint4 left(const struct conv &c, const struct corner &k, int at)
{
    const T *x = (const T *)c.p.x;
    union piece<T> r;
    r.all = make_uint4(0, 0, 0, 0);
    if (WIDE) {
        const int64_t from = gathered(c, k, at);
        if (from >= 0)
            r.all = *(const uint4 *)(x + from);
    } else {
#pragma unroll
        for (int e = 0; e < (int)(16 / sizeof(T)); e++) {
            const int64_t from = gathered(c, k, at + e);
            if (from >= 0)
                r.v[e] = x[from];
        }
    }
    return r.all;
}

/* 16 bytes of a row of w. */
template <bool WIDE, typename T>
static __device__ __forceinline__ uint4 right(const struct conv &c, int o, int at)
{
    const T *w = (const T *)c.p.w + (int64_t)o * c.K + at;
    union piece<T> r;
    r.all = make_uint4(0, 0, 0, 0);
    if (WIDE) {
        if (o < c.p.Cout && at < c.K)
            r.all = *(const uint4 *)w;
    } else {
#pragma unroll
        for (int e = 0; e < (int)(16 / sizeof(T)); e++)
            if (o < c.p.Cout && at + e < c.K)
                r.v[e] = w[e];
    }
    return r.all;
}

template <typename T>
static __device__ __forceinline__ void put(const struct conv &c, int64_t row, int o, float v)
{
    const struct conv2d &p = c.p;
    if (row >= c.rows || o >= p.Cout)
        return;
    const int64_t at = row * p.Cout + o;
    v += p.bias ? p.bias[o] : 0.0f;
    narrow((T *)p.y + at, v + (p.add ? widen(((const T *)p.add)[at]) : 0.0f));
}

/* What a thread sums of a block's tile, by type: a step along K, then the results. */
template <typename T> struct sums;

template <> struct sums<bf16> {
    enum { N = 8 }; /* of 8 columns, to a warp */
    float acc[2][N][4];

    __device__ __forceinline__ void add(const unsigned char *a, const unsigned char *b)
    {
        const int warp = (int)threadIdx.x / WARP;
        const bf16 *rows = (const bf16 *)(a + warp / 2 * 32 * LINE);
        const bf16 *columns = (const bf16 *)(b + warp % 2 * 64 * LINE);
        times_rows<32, N>(acc[0], rows, columns);
        times_rows<32, N>(acc[1], rows + 16 * LINE / 2, columns);
    }

    __device__ __forceinline__ void finish(const struct conv &c, int64_t row0, int o0) const
    {
        const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP;
        row0 += warp / 2 * 32 + lane / 4;
        o0 += warp % 2 * 64 + lane % 4 * 2;
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
            for (int n = 0; n < N; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    put<bf16>(c, row0 + m * 16 + e / 2 * 8, o0 + n * 8 + e % 2, acc[m][n][e]);
    }
};

template <> struct sums<float> {
    float acc[8][8]; /* rows 8 y + i, columns x + 16 j of thread 16 y + x */

    __device__ __forceinline__ void add(const unsigned char *a, const unsigned char *b)
    {
        a += threadIdx.x / 16 * 8 * LINE;
        b += threadIdx.x % 16 * LINE;
        for (int k = 0; k < QUARTERS; k++, a += 16, b += 16) {
            float4 u[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                u[i] = *(const float4 *)(a + i * LINE);
#pragma unroll
            for (int j = 0; j < 8; j++) {
                const float4 v = *(const float4 *)(b + j * 16 * LINE);
#pragma unroll
                for (int i = 0; i < 8; i++) {
                    acc[i][j] += u[i].x * v.x;
                    acc[i][j] += u[i].y * v.y;
                    acc[i][j] += u[i].z * v.z;
                    acc[i][j] += u[i].w * v.w;
                }
            }
        }
    }

    __device__ __forceinline__ void finish(const struct conv &c, int64_t row0, int o0) const
    {
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                put<float>(c, row0 + threadIdx.x / 16 * 8 + i, o0 + (int)threadIdx.x % 16 + j * 16,
                           acc[i][j]);
    }
};

/* The next step is on its way from memory while this one is summed. */
template <bool WIDE, typename T>
__global__ void __launch_bounds__(THREADS) conv_kernel(struct conv c)
{
    const int step = QUARTERS * 16 / (int)sizeof(T);
    __shared__ __align__(16) unsigned char a[2][ROWS * LINE], b[2][ROWS * LINE];
    const int64_t row0 = (int64_t)blockIdx.x * ROWS;
    const int o0 = (int)blockIdx.y * ROWS, row = (int)threadIdx.x / QUARTERS;
    const int at = (int)threadIdx.x % QUARTERS * (int)(16 / sizeof(T));
    const int to = row * LINE + (int)threadIdx.x % QUARTERS * 16;
    struct corner from[LOADS];
    uint4 next[2][LOADS];
    struct sums<T> s = {
    };
#pragma unroll
    for (int l = 0; l < LOADS; l++)
        from[l] = corner_of(c, row0 + row + l * (ROWS / LOADS));
    for (int k = -step; k < c.K; k += step) {
        const int turn = k / step & 1;
        if (k + step < c.K) {
#pragma unroll
            for (int l = 0; l < LOADS; l++) {
                next[0][l] = left<WIDE, T>(c, from[l], k + step + at);
                next[1][l] = right<WIDE, T>(c, o0 + row + l * (ROWS / LOADS), k + step + at);
            }
        }
        if (k >= 0)
            s.add(a[turn], b[turn]);
#pragma unroll
        for (int l = 0; l < LOADS && k + step < c.K; l++) {
            *(uint4 *)(a[!turn] + to + l * (ROWS / LOADS) * LINE) = next[0][l];
            *(uint4 *)(b[!turn] + to + l * (ROWS / LOADS) * LINE) = next[1][l];
        }
        __syncthreads();
    }
    s.finish(c, row0, o0);
}

extern "C" int cuda_conv2d_fwd(struct device *dev, const struct conv2d *p, struct stream *s)
{
    struct conv c = {*p, 0, conv2d_side(p, p->H), conv2d_side(p, p->W), p->k * p->k * p->Cin};
    c.rows = (int64_t)p->B * c.Ho * c.Wo;
    const dim3 grid(blocks_of(c.rows, ROWS), blocks_of(p->Cout, ROWS));
    const bool wide = p->Cin % (16 / (int)dtype_bytes(p->dt)) == 0 && aligned16(p->x, p->w);
    if ((c.rows + ROWS - 1) / ROWS > INT32_MAX)
        return -EINVAL;
    if (p->dt == DT_BF16 && c.rows && p->Cout && p->Cin) {
        int rc = conv_dnn_fwd(p, s);
        if (rc <= 0)
            return rc;
    }
    if (p->dt == DT_BF16)
        return wide ? launch(s, conv_kernel<true, bf16>, grid, THREADS, 0, c)
                    : launch(s, conv_kernel<false, bf16>, grid, THREADS, 0, c);
    return wide ? launch(s, conv_kernel<true, float>, grid, THREADS, 0, c)
                : launch(s, conv_kernel<false, float>, grid, THREADS, 0, c);
}
