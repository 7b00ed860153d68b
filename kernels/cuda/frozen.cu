/* What frozen encoders need besides products and attention: convolutions as products whose rows
 * are gathered on the way, GroupNorm in two passes, draws of a posterior. */
#include <errno.h>

#include "kernels/cuda/common.cuh"

/* ---- convolution ---- */

enum { TILE = 32, TILE_ROWS = 8 };

/* One sample to blockIdx.z: y (rows,Cout) = im2col(x) (rows,K) wᵀ. */
struct conv {
    struct conv2d p;
    int Ho, Wo, K;
};

/* Element (row, at) of im2col(x), at counting (u, v, channel). */
template <typename T>
static __device__ __forceinline__ float gathered(const struct conv &c, const T *x, int row, int at)
{
    const struct conv2d &p = c.p;
    const int tap = at / p.Cin, grow = p.up2 ? 2 : 1;
    const int i = row / c.Wo * p.stride + tap / p.k - p.pad_low;
    const int j = row % c.Wo * p.stride + tap % p.k - p.pad_low;
    if (i < 0 || j < 0 || i >= grow * p.H || j >= grow * p.W)
        return 0.0f;
    return widen(x[((int64_t)(i / grow) * p.W + j / grow) * p.Cin + at % p.Cin]);
}

template <typename T> __global__ void __launch_bounds__(TILE *TILE_ROWS) conv_kernel(struct conv c)
{
    __shared__ float a[TILE][TILE + 1], b[TILE][TILE + 1];
    const struct conv2d &p = c.p;
    const int tx = (int)threadIdx.x % TILE, ty = (int)threadIdx.x / TILE;
    const int rows = c.Ho * c.Wo, i0 = (int)blockIdx.x * TILE, j0 = (int)blockIdx.y * TILE;
    const T *x = (const T *)p.x + (int64_t)blockIdx.z * p.H * p.W * p.Cin;
    float sum[TILE / TILE_ROWS] = {0};
    for (int k0 = 0; k0 < c.K; k0 += TILE) {
        for (int r = ty; r < TILE; r += TILE_ROWS) {
            const int i = i0 + r, j = j0 + r, at = k0 + tx;
            a[r][tx] = i < rows && at < c.K ? gathered(c, x, i, at) : 0.0f;
            b[tx][r] =
                j < p.Cout && at < c.K ? widen(((const T *)p.w)[(int64_t)j * c.K + at]) : 0.0f;
        }
        __syncthreads();
        for (int k = 0; k < TILE; k++)
#pragma unroll
            for (int r = 0; r < TILE / TILE_ROWS; r++)
                sum[r] += a[ty + r * TILE_ROWS][k] * b[k][tx];
        __syncthreads();
    }
#pragma unroll
    for (int r = 0; r < TILE / TILE_ROWS; r++) {
        const int i = i0 + ty + r * TILE_ROWS, j = j0 + tx;
        if (i >= rows || j >= p.Cout)
            continue;
        const int64_t at = ((int64_t)blockIdx.z * rows + i) * p.Cout + j;
        const float v = sum[r] + (p.bias ? p.bias[j] : 0.0f);
        narrow((T *)p.y + at, v + (p.add ? widen(((const T *)p.add)[at]) : 0.0f));
    }
}

extern "C" int cuda_conv2d_fwd(struct device *dev, const struct conv2d *p, struct stream *s)
{
    struct conv c = {*p, conv2d_side(p, p->H), conv2d_side(p, p->W), p->k * p->k * p->Cin};
    const int64_t rows = (int64_t)c.Ho * c.Wo;
    const dim3 grid(blocks_of(rows, TILE), blocks_of(p->Cout, TILE), (unsigned)p->B);
    if (rows > INT32_MAX - TILE || p->B > 65535)
        return -EINVAL;
    return p->dt == DT_BF16 ? launch(s, conv_kernel<bf16>, grid, TILE * TILE_ROWS, 0, c)
                            : launch(s, conv_kernel<float>, grid, TILE * TILE_ROWS, 0, c);
}

/* ---- GroupNorm ---- */

enum { PART = 8192, NORM_THREADS = 256 }; /* values of a group to a block */

struct group {
    struct groupnorm_fwd p;
    int each;         /* channels of a group */
    int64_t n, parts; /* values and blocks of a group */
    double *sums;     /* (B,groups,parts,2): of x - its first value, and the square of that */
    float *stats;     /* (B,groups,2): mean, 1/std */
};

/* First element of group `index` of all groups of all samples. */
static __device__ __forceinline__ int64_t group_begin(const struct group &g, int64_t index)
{
    return index / g.p.groups * g.p.N * g.p.C + index % g.p.groups * g.each;
}

/* Element i of a group that begins at `at`. */
static __device__ __forceinline__ int64_t group_at(const struct group &g, int64_t at, int64_t i)
{
    return at + i / g.each * g.p.C + i % g.each;
}

/* The first value is taken off so that the squares stay small where the mean is large. */
template <typename T> __global__ void __launch_bounds__(NORM_THREADS) group_sums(struct group g)
{
    __shared__ double room[32];
    const T *x = (const T *)g.p.x;
    const int64_t at = group_begin(g, blockIdx.x / g.parts);
    const int64_t begin = blockIdx.x % g.parts * PART;
    const int64_t end = begin + PART < g.n ? begin + PART : g.n;
    const float first = widen(x[at]);
    double sum = 0, square = 0;
    for (int64_t i = begin + threadIdx.x; i < end; i += NORM_THREADS) {
        const double d = (double)(widen(x[group_at(g, at, i)]) - first);
        sum += d;
        square += d * d;
    }
    sum = block_sum(sum, room);
    __syncthreads();
    square = block_sum(square, room);
    if (threadIdx.x == 0) {
        g.sums[2 * (int64_t)blockIdx.x] = sum;
        g.sums[2 * (int64_t)blockIdx.x + 1] = square;
    }
}

template <typename T> struct group_stats_map {
    enum { STEP = 1 };
    struct group g;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        double sum = 0, square = 0;
        for (int64_t k = i * g.parts; k < (i + 1) * g.parts; k++) {
            sum += g.sums[2 * k];
            square += g.sums[2 * k + 1];
        }
        const double off = sum / (double)g.n, var = square / (double)g.n - off * off;
        g.stats[2 * i] = (float)((double)widen(((const T *)g.p.x)[group_begin(g, i)]) + off);
        g.stats[2 * i + 1] = (float)(1.0 / sqrt((var > 0 ? var : 0) + (double)g.p.eps));
    }
};

template <typename T> __global__ void __launch_bounds__(NORM_THREADS) group_norm(struct group g)
{
    const struct groupnorm_fwd &p = g.p;
    const int64_t index = blockIdx.x / g.parts, at = group_begin(g, index);
    const int64_t begin = blockIdx.x % g.parts * PART;
    const int64_t end = begin + PART < g.n ? begin + PART : g.n;
    const float mean = g.stats[2 * index], rstd = g.stats[2 * index + 1];
    for (int64_t i = begin + threadIdx.x; i < end; i += NORM_THREADS) {
        const int64_t j = group_at(g, at, i);
        const int c = (int)(j % p.C);
        const float v = (widen(((const T *)p.x)[j]) - mean) * rstd * p.w[c] + p.b[c];
        narrow((T *)p.y + j, p.silu ? v / (1.0f + expf(-v)) : v);
    }
}

template <typename T> static int group_run(const struct group &g, struct stream *s)
{
    const int64_t groups = (int64_t)g.p.B * g.p.groups;
    const dim3 grid((unsigned)(groups * g.parts));
    int rc = launch(s, group_sums<T>, grid, NORM_THREADS, 0, g);
    if (rc == 0)
        rc = map(s, group_stats_map<T>{g}, groups, false);
    return rc < 0 ? rc : launch(s, group_norm<T>, grid, NORM_THREADS, 0, g);
}

extern "C" int cuda_groupnorm_fwd(struct device *dev, const struct groupnorm_fwd *p,
                                  struct stream *s)
{
    struct group g = {*p, p->C / p->groups};
    const int64_t groups = (int64_t)p->B * p->groups;
    g.n = p->N * g.each;
    g.parts = (g.n + PART - 1) / PART;
    if (g.n == 0 || groups == 0)
        return 0;
    if (groups > INT32_MAX / g.parts)
        return -EINVAL;
    void *room;
    const size_t sums = (size_t)(groups * g.parts) * 2 * sizeof *g.sums;
    int rc = cuda_scratch(s, sums + (size_t)groups * 2 * sizeof *g.stats, &room);
    if (rc < 0)
        return rc;
    g.sums = (double *)room;
    g.stats = (float *)((char *)room + sums);
    return p->dt == DT_BF16 ? group_run<bf16>(g, s) : group_run<float>(g, s);
}

/* ---- the posterior of a VAE ---- */

template <typename T> struct posterior_map {
    enum { STEP = 1 };
    float *x0;
    const T *moments;
    const float *noise;
    float shift, mul;
    int64_t n;

    template <bool WIDE> __device__ void at(int64_t i, int64_t left) const
    {
        const T *mean = moments + i / n * 2 * n + i % n;
        const float logvar = fminf(fmaxf(widen(mean[n]), -30.0f), 20.0f);
        x0[i] = (widen(mean[0]) + expf(0.5f * logvar) * noise[i] - shift) * mul;
    }
};

extern "C" int cuda_posterior(struct device *dev, float *x0, const void *moments,
                              const float *noise, float shift, float mul, int B, int64_t n,
                              enum dtype dt, struct stream *s)
{
    struct posterior_map<bf16> h = {
        x0, (const bf16 *)moments, noise, shift, mul, n
    };
    struct posterior_map<float> f = {
        x0, (const float *)moments, noise, shift, mul, n
    };
    return dt == DT_BF16 ? map(s, h, B * n, false) : map(s, f, B * n, false);
}
