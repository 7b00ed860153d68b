/* GroupNorm, channels last: blocks of pixels give sums per channel of x and x² after the
 * channel's first value is taken off, which keeps the squares small where the mean is large;
 * these are added in f64, in order; then a pass that norms. */
#include <errno.h>

#include "kernels/cuda/common.cuh"

enum { VALUES = 32768, THREADS = 256 }; /* of a block, about */

struct group {
    struct groupnorm_fwd p;
    int pieces;   /* of 8 channels, in a pixel */
    int lanes;    /* pixels side by side in a block of threads */
    int64_t each; /* pixels of a block */
    int64_t blocks;
    float *sums; /* (B,blocks,2,C) */
    float *coef; /* (B,2,C): mean of the channel's group, w / std */
};

/* Where a thread works: its sample, its pixels, its first piece. */
struct place {
    int64_t sample, begin, end; /* pixels */
    int piece, step;
};

static __device__ __forceinline__ struct place place_of(const struct group &g)
{
    const bool all = g.lanes == 1;
    const int lane = all ? 0 : (int)threadIdx.x / g.pieces;
    const int64_t first = blockIdx.x % g.blocks * g.each;
    struct place a;
    a.sample = blockIdx.x / g.blocks;
    a.begin = first + lane;
    a.end = lane >= g.lanes ? 0 : first + g.each < g.p.N ? first + g.each : g.p.N;
    a.piece = all ? (int)threadIdx.x : (int)threadIdx.x % g.pieces;
    a.step = all ? THREADS : g.pieces;
    return a;
}

template <bool WIDE, typename T>
static __device__ __forceinline__ void
piece_sums(float sum[8], float square[8], const struct group &g, const struct place &a, int piece)
{
    const int C = g.p.C, left = C - piece * 8;
    const T *x = (const T *)g.p.x + a.sample * g.p.N * C + piece * 8;
    float shift[8], v[8];
    load<WIDE, 8>(shift, x, left);
#pragma unroll
    for (int e = 0; e < 8; e++)
        sum[e] = square[e] = 0;
#pragma unroll 2 /* more spill */
    for (int64_t n = a.begin; n < a.end; n += g.lanes) {
        load<WIDE, 8>(v, x + n * C, left);
#pragma unroll
        for (int e = 0; e < 8; e++) {
            const float d = v[e] - shift[e];
            sum[e] += d;
            square[e] += d * d;
        }
    }
}

template <bool WIDE, typename T>
__global__ void __launch_bounds__(THREADS) group_sums(struct group g)
{
    __shared__ float room[2][THREADS * 8];
    const struct place a = place_of(g);
    const int C = g.p.C;
    float *out = g.sums + (int64_t)blockIdx.x * 2 * C, sum[8], square[8];
    for (int piece = a.piece; piece < g.pieces; piece += a.step) {
        piece_sums<WIDE, T>(sum, square, g, a, piece);
        if (g.lanes > 1) {
            store<true, 8>(&room[0][threadIdx.x * 8], sum, 8);
            store<true, 8>(&room[1][threadIdx.x * 8], square, 8);
            break;
        }
        store<false, 8>(out + piece * 8, sum, C - piece * 8);
        store<false, 8>(out + C + piece * 8, square, C - piece * 8);
    }
    __syncthreads();
    for (int c = (int)threadIdx.x; g.lanes > 1 && c < C; c += THREADS) {
        float total[2] = {0, 0};
        for (int lane = 0; lane < g.lanes; lane++)
#pragma unroll
            for (int k = 0; k < 2; k++)
                total[k] += room[k][lane * g.pieces * 8 + c];
        out[c] = total[0];
        out[C + c] = total[1];
    }
}

/* One group of one sample to a block. */
template <typename T> __global__ void __launch_bounds__(THREADS) group_coef(struct group g)
{
    __shared__ double room[32];
    const struct groupnorm_fwd &p = g.p;
    const int width = p.C / p.groups, c0 = (int)(blockIdx.x % p.groups) * width;
    const int64_t b = blockIdx.x / p.groups, parts = g.blocks * width;
    const T *first = (const T *)p.x + b * p.N * p.C + c0;
    const float *sums = g.sums + b * g.blocks * 2 * p.C + c0;
    const double n = (double)p.N * width;
    double mean = 0, var = 0;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS)
        mean += (double)sums[i / width * 2 * p.C + i % width];
    for (int c = (int)threadIdx.x; c < width; c += THREADS)
        mean += (double)p.N * (double)widen(first[c]);
    mean = block_sum(mean, room) / n;
    for (int64_t i = threadIdx.x; i < parts; i += THREADS) {
        const float *at = sums + i / width * 2 * p.C + i % width;
        const double d = (double)widen(first[i % width]) - mean;
        var += (double)at[p.C] + 2 * d * (double)at[0];
    }
    for (int c = (int)threadIdx.x; c < width; c += THREADS) {
        const double d = (double)widen(first[c]) - mean;
        var += (double)p.N * d * d;
    }
    __syncthreads();
    var = block_sum(var, room) / n;
    const float rstd = (float)(1.0 / sqrt((var > 0 ? var : 0) + (double)p.eps));
    float *coef = g.coef + b * 2 * p.C + c0;
    for (int c = (int)threadIdx.x; c < width; c += THREADS) {
        coef[c] = (float)mean;
        coef[p.C + c] = rstd * p.w[c0 + c];
    }
}

template <bool WIDE, typename T>
__global__ void __launch_bounds__(THREADS) group_norm(struct group g)
{
    const struct groupnorm_fwd &p = g.p;
    const struct place a = place_of(g);
    for (int piece = a.piece; piece < g.pieces; piece += a.step) {
        const int left = p.C - piece * 8;
        const float *coef = g.coef + a.sample * 2 * p.C + piece * 8;
        float mean[8], mul[8], b[8], v[8];
        load<false, 8>(mean, coef, left);
        load<false, 8>(mul, coef + p.C, left);
        load<false, 8>(b, p.b + piece * 8, left);
        for (int64_t n = a.begin; n < a.end; n += g.lanes) {
            const int64_t at = (a.sample * p.N + n) * p.C + piece * 8;
            load<WIDE, 8>(v, (const T *)p.x + at, left);
#pragma unroll
            for (int e = 0; e < 8; e++) {
                v[e] = (v[e] - mean[e]) * mul[e] + b[e];
                v[e] = p.silu ? v[e] / (1.0f + expf(-v[e])) : v[e];
            }
            store<WIDE, 8>((T *)p.y + at, v, left);
        }
    }
}

template <bool WIDE, typename T> static int run(const struct group &g, struct stream *s)
{
    const dim3 grid((unsigned)(g.p.B * g.blocks));
    int rc = launch(s, group_sums<WIDE, T>, grid, THREADS, 0, g);
    if (rc == 0)
        rc = launch(s, group_coef<T>, dim3((unsigned)(g.p.B * g.p.groups)), THREADS, 0, g);
    return rc < 0 ? rc : launch(s, group_norm<WIDE, T>, grid, THREADS, 0, g);
}

extern "C" int cuda_groupnorm_fwd(struct device *dev, const struct groupnorm_fwd *p,
                                  struct stream *s)
{
    struct group g = {*p, (p->C + 7) / 8};
    const size_t row = (size_t)p->B * 2 * (size_t)p->C * sizeof(float);
    if (p->B == 0 || p->N == 0 || p->C == 0)
        return 0;
    g.lanes = g.pieces < THREADS ? THREADS / g.pieces : 1;
    g.each = (VALUES / p->C / g.lanes + 1) * g.lanes;
    g.blocks = (p->N + g.each - 1) / g.each;
    if (g.blocks > INT32_MAX / p->B || p->groups > INT32_MAX / p->B)
        return -EINVAL;
    void *room;
    int rc = cuda_scratch(s, row * (size_t)(g.blocks + 1), &room);
    if (rc < 0)
        return rc;
    g.coef = (float *)room;
    g.sums = g.coef + row / sizeof(float);
    const bool wide = p->C % 8 == 0 && aligned16(p->x, p->y);
    if (p->dt == DT_BF16)
        return wide ? run<true, bf16>(g, s) : run<false, bf16>(g, s);
    return wide ? run<true, float>(g, s) : run<false, float>(g, s);
}
