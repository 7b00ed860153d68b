/* Normal noise with the bits of common/base/rng.c: Philox, then Box-Muller with plain
 * arithmetic.  No product is contracted into a sum: each operation below rounds once. */
#include <math.h>

#include "kernels/cuda/common.cuh"

static __device__ __forceinline__ double times(double a, double b)
{
    return __dmul_rn(a, b);
}

static __device__ __forceinline__ double plus(double a, double b)
{
    return __dadd_rn(a, b);
}

/* Words 4b..4b+3 of a stream. */
static __device__ __forceinline__ void words_of(uint64_t seed, uint64_t stream, uint64_t b,
                                                uint32_t out[4])
{
    uint32_t c0 = (uint32_t)b, c1 = (uint32_t)(b >> 32);
    uint32_t c2 = (uint32_t)stream, c3 = (uint32_t)(stream >> 32);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* Natural logarithm of (a+1) / 2^32. */
static __device__ __forceinline__ double plain_log(uint32_t a)
{
    const uint64_t whole = (uint64_t)a + 1;
    const int high = 63 - __clzll((long long)whole); /* 0 to 32 */
    int e = high + 1 - 32;
    double m = (double)whole / (double)(2ull << high); /* [0.5, 1), exact */
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    const double s = (m - 1) / (m + 1), s2 = times(s, s);
    double p = 1.0 / 15;
    p = plus(times(p, s2), 1.0 / 13);
    p = plus(times(p, s2), 1.0 / 11);
    p = plus(times(p, s2), 1.0 / 9);
    p = plus(times(p, s2), 1.0 / 7);
    p = plus(times(p, s2), 1.0 / 5);
    p = plus(times(p, s2), 1.0 / 3);
    p = plus(times(p, s2), 1.0);
    return plus(times(2 * s, p), times((double)e, 0.69314718055994530942));
}

/* c0 + x (c1 + x (c2 + ...)), from the last. */
template <int N> static __device__ __forceinline__ double series(const double (&c)[N], double x)
{
    double sum = c[N - 1];
#pragma unroll
    for (int i = N - 2; i >= 0; i--)
        sum = plus(c[i], times(x, sum));
    return sum;
}

/* cos and sin of 2 pi u, u in [0, 1): nearest quarter turn, then Taylor. */
static __device__ __forceinline__ void cos_sin(double u, double *ret_cos, double *ret_sin)
{
    const double sine[] = {1.0, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800};
    const double cosine[] = {1.0,         -1.0 / 2,       1.0 / 24,       -1.0 / 720,
                             1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600};
    const int quarter = (int)(4 * u + 0.5); /* 4 u is exact */
    const double x = times(plus(4 * u, -(double)quarter), 1.57079632679489661923);
    const double x2 = times(x, x), s = times(x, series(sine, x2)), c = series(cosine, x2);
    const bool turned = quarter & 1, cos_minus = (quarter + 1) & 2, sin_minus = quarter & 2;
    *ret_cos = turned ? s : c;
    *ret_sin = turned ? c : s;
    if (cos_minus)
        *ret_cos = -*ret_cos;
    if (sin_minus)
        *ret_sin = -*ret_sin;
}

static __device__ __forceinline__ void box_muller(uint32_t a, uint32_t b, float out[2])
{
    const double radius = sqrt(-2 * plain_log(a));
    double c, s;
    cos_sin((double)b * 0x1p-32, &c, &s);
    out[0] = 0.0f + (float)times(radius, c); /* as rng_fill_normal: no -0 */
    out[1] = 0.0f + (float)times(radius, s);
}

/* A thread makes the four values of a block of the stream. */
template <bool WIDE>
__global__ void __launch_bounds__(256)
    normal_kernel(float *out, uint64_t seed, const uint64_t *streams, int64_t n)
{
    const int64_t i = ((int64_t)blockIdx.x * blockDim.x + threadIdx.x) * 4;
    const int64_t row = blockIdx.y;
    uint32_t words[4];
    float z[4];
    if (i >= n)
        return;
    words_of(seed, streams[row], (uint64_t)i / 4, words);
    box_muller(words[0], words[1], z);
    box_muller(words[2], words[3], z + 2);
    store<WIDE, 4>(out + row * n + i, z, n - i);
}

enum { ROWS_AT_ONCE = 65535 };

extern "C" int cuda_normal(struct device *dev, float *out, uint64_t seed, const uint64_t *streams,
                           int B, int64_t n, struct stream *s)
{
    int rc = 0;
    for (int b = 0; b < B && rc == 0; b += ROWS_AT_ONCE) {
        const dim3 grid(blocks_of(n, 1024),
                        (unsigned)(B - b < ROWS_AT_ONCE ? B - b : ROWS_AT_ONCE));
        float *at = out + b * n;
        rc = n % 4 == 0 && aligned16(out)
                 ? launch(s, normal_kernel<true>, grid, 256, 0, at, seed, streams + b, n)
                 : launch(s, normal_kernel<false>, grid, 256, 0, at, seed, streams + b, n);
    }
    return rc;
}
