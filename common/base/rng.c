#include "common/base/rng.h"

void rng_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];
    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0;
        uint64_t p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

/* splitmix64's finaliser (Steele et al. 2014). */
static uint64_t finalise(uint64_t z)
{
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
}

uint64_t rng_mix(uint64_t a, uint64_t b)
{
    return finalise(finalise(a + 0x9e3779b97f4a7c15ULL) ^ (b + 0xd1b54a32d192ed03ULL));
}

/* Block b of a stream holds the words 4b..4b+3: the counter is (b, stream), the
 * key the seed. */
static void block(uint64_t seed, uint64_t stream, uint64_t b, uint32_t out[4])
{
    const uint32_t counter[4] = {(uint32_t)b, (uint32_t)(b >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    rng_philox(counter, key, out);
}

uint32_t rng_at_u32(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint32_t words[4];
    block(seed, stream, i / 4, words);
    return words[i % 4];
}

static float to_uniform(uint32_t word)
{
    return (float)(word >> 8) * 0x1p-24f;
}

float rng_at_uniform(uint64_t seed, uint64_t stream, uint64_t i)
{
    return to_uniform(rng_at_u32(seed, stream, i));
}

/* Natural logarithm of u in (0, 1], by the atanh series after splitting off the
 * exponent; error below 1e-12.  libm's may differ between CPUs; this may not. */
static double plain_log(double u)
{
    int e;
    double m = frexp(u, &e); /* [0.5, 1) */
    if (m < 0.70710678118654752) {
        m *= 2;
        e--;
    }
    double s = (m - 1) / (m + 1), s2 = s * s;
    double p = 1.0 / 15;
    for (int k = 13; k >= 1; k -= 2)
        p = p * s2 + 1.0 / k;
    return 2 * s * p + e * 0.69314718055994530942;
}

/* cos and sin of 2 pi u, u in [0, 1): nearest quarter turn, then Taylor. */
static void plain_cos_sin(double u, double *ret_cos, double *ret_sin)
{
    int quarter = (int)(4 * u + 0.5);
    double x = (4 * u - quarter) * 1.57079632679489661923, x2 = x * x;
    double s =
        x * (1 + x2 * (-1.0 / 6 +
                       x2 * (1.0 / 120 +
                             x2 * (-1.0 / 5040 + x2 * (1.0 / 362880 + x2 * (-1.0 / 39916800))))));
    double c =
        1 + x2 * (-1.0 / 2 +
                  x2 * (1.0 / 24 +
                        x2 * (-1.0 / 720 + x2 * (1.0 / 40320 +
                                                 x2 * (-1.0 / 3628800 + x2 * (1.0 / 479001600))))));
    switch (quarter & 3) {
    case 0:
        *ret_cos = c;
        *ret_sin = s;
        break;
    case 1:
        *ret_cos = -s;
        *ret_sin = c;
        break;
    case 2:
        *ret_cos = -c;
        *ret_sin = -s;
        break;
    default:
        *ret_cos = s;
        *ret_sin = -c;
    }
}

/* Box-Muller: two words to two normals. */
static void to_normal(uint32_t a, uint32_t b, float *ret_first, float *ret_second)
{
    double u = ((double)a + 1) * 0x1p-32; /* (0, 1] */
    double radius = sqrt(-2 * plain_log(u)), c, s;
    plain_cos_sin((double)b * 0x1p-32, &c, &s);
    *ret_first = (float)(radius * c);
    *ret_second = (float)(radius * s);
}

/* Four normals of block b. */
static void normal_block(uint64_t seed, uint64_t stream, uint64_t b, float out[4])
{
    uint32_t words[4];
    block(seed, stream, b, words);
    to_normal(words[0], words[1], &out[0], &out[1]);
    to_normal(words[2], words[3], &out[2], &out[3]);
}

float rng_at_normal(uint64_t seed, uint64_t stream, uint64_t i)
{
    float z[4];
    normal_block(seed, stream, i / 4, z);
    return z[i % 4];
}

void rng_init(struct rng *r, uint64_t seed, uint64_t stream)
{
    *r = (struct rng){.seed = seed, .stream = stream};
}

uint32_t rng_u32(struct rng *r)
{
    return rng_at_u32(r->seed, r->stream, r->next++);
}

uint64_t rng_u64(struct rng *r)
{
    uint64_t low = rng_u32(r);
    return low | (uint64_t)rng_u32(r) << 32;
}

double rng_uniform_double(struct rng *r)
{
    return (double)(rng_u64(r) >> 11) * 0x1p-53;
}

/* Rejects values of the last, incomplete range of n, so that all results are equally likely. */
uint64_t rng_below(struct rng *r, uint64_t n)
{
    uint64_t reject = (0 - n) % n; /* 2^64 mod n */
    for (;;) {
        uint64_t x = rng_u64(r);
        if (x >= reject)
            return x % n;
    }
}

void rng_fill_uniform(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t n)
{
    uint32_t words[4];
    for (size_t j = 0; j < n; j++) {
        uint64_t i = first + j;
        if (j == 0 || i % 4 == 0)
            block(seed, stream, i / 4, words);
        out[j] = to_uniform(words[i % 4]);
    }
}

void rng_fill_normal(uint64_t seed, uint64_t stream, uint64_t first, float *out, size_t n,
                     float mean, float std)
{
    float z[4];
    for (size_t j = 0; j < n; j++) {
        uint64_t i = first + j;
        if (j == 0 || i % 4 == 0)
            normal_block(seed, stream, i / 4, z);
        out[j] = mean + std * z[i % 4];
    }
}

void rng_permutation(uint64_t seed, uint64_t stream, uint32_t *out, size_t n)
{
    for (size_t i = 0; i < n; i++)
        out[i] = (uint32_t)i;
    struct rng r;
    rng_init(&r, seed, stream);
    for (size_t i = n; i > 1; i--) {
        size_t j = (size_t)rng_below(&r, i);
        uint32_t t = out[i - 1];
        out[i - 1] = out[j];
        out[j] = t;
    }
}
