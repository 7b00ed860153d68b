/* Codecs of the wire: the arithmetic of common/outer/kernels_impl.h, step by step, so that a
 * card and a CPU write the same bytes.  Integers where that file has them; every product, sum
 * and quotient is rounded by itself.
 *
 * A warp codes a block of 256 elements: each lane has two pieces of 4, so that the warp reads
 * 512 bytes at a time, and the largest magnitude takes five steps. */
#include "kernels/cuda/common.cuh"

enum { BLOCK = 256, PIECE = 4, PIECES = BLOCK / (WARP * PIECE), VALUES = PIECE * PIECES };

#define ABS_MASK 0x7fffffffu
#define EXP_ONE 0x00800000u /* one step of the exponent */
#define ABS_MAX 0x7e800000u /* 2^126 */
#define TINY 0x12800000u    /* 2^-90 */

static __device__ __forceinline__ uint32_t bf16_bits(uint32_t u)
{
    return (u + 0x7fffu + (u >> 16 & 1)) & 0xffff0000u;
}

static __device__ __forceinline__ uint32_t warp_max_bits(uint32_t v)
{
#pragma unroll
    for (int d = WARP / 2; d; d /= 2) {
        uint32_t other = __shfl_xor_sync(FULL_WARP, v, d);
        v = other > v ? other : v;
    }
    return v;
}

/* n <= 4 codes of `bits` bits each, packed from the low end of lo and hi; WIDE: all 4, and
 * the place is aligned to them. */
template <int BITS, bool WIDE>
static __device__ __forceinline__ void store_codes(void *payload, int64_t i, uint32_t lo,
                                                   uint32_t hi, int64_t left)
{
    uint8_t *p = (uint8_t *)payload + i * BITS / 8;
    if (WIDE && BITS == 16) {
        *(uint2 *)p = make_uint2(lo, hi);
    } else if (WIDE && BITS == 8) {
        *(uint32_t *)p = lo;
    } else if (WIDE) {
        *(uint16_t *)p = (uint16_t)lo;
    } else {
        int n = left < PIECE ? (int)left : PIECE;
#pragma unroll
        for (int k = 0; k < PIECE; k++)
            if (BITS == 16 && k < n)
                ((uint16_t *)p)[k] = (uint16_t)((k < 2 ? lo : hi) >> (k % 2 * 16));
            else if (BITS == 8 && k < n)
                p[k] = (uint8_t)(lo >> (8 * k));
            else if (BITS == 4 && k % 2 == 0 && k < n)
                p[k / 2] = (uint8_t)(lo >> (4 * k));
    }
}

/* What an element becomes: its code, and the bits of the value that it decodes to. */
struct coded {
    uint32_t code, value;
};

/* The sum has no bits left for a fraction. */
static __device__ __forceinline__ struct coded code_int8(float x, float s)
{
    const float big = 12582912.0f; /* 1.5 * 2^23 */
    float r = add(add(__fdiv_rn(x, s), big), -big);
    return {(uint32_t)(int32_t)r & 0xffu, __float_as_uint(mul(s, r))};
}

/* Thresholds passed, counted in the exponent: see encode_e3m0_block() there. */
static __device__ __forceinline__ struct coded code_e3m0(uint32_t u, uint32_t s, int32_t lowest)
{
    const int32_t half = (int32_t)(s - 7 * EXP_ONE);
    int32_t a = (int32_t)(u & ABS_MASK);
    int32_t m = ((a - lowest) >> 23) + 1;
    m = max(m, a >= half ? 1 : 0);
    m = min(m, 7);
    if (!m)
        return {0, 0};
    uint32_t sign = u & ~ABS_MASK;
    return {(uint32_t)m | sign >> 28, (uint32_t)(half + m * (int32_t)EXP_ONE) | sign};
}

/* The scale of a block, bf16 in the upper half; 0: it sends nothing. */
template <int CODEC> static __device__ __forceinline__ uint32_t scale_of(uint32_t max)
{
    if (max < TINY)
        return 0;
    float v = __uint_as_float(max);
    return CODEC == ENCODE_INT8 ? (__float_as_uint(__fdiv_rn(v, 127.0f)) + 0xffffu) & 0xffff0000u
                                : bf16_bits(__float_as_uint(mul(0.875f, v)));
}

/* Codes 4 values; v becomes what they decode to. */
template <int CODEC, bool WIDE>
static __device__ __forceinline__ void code_piece(const struct encode &p, int64_t i, float v[PIECE],
                                                  uint32_t s, int64_t left)
{
    const float scale = __uint_as_float(s);
    const int32_t lowest = (int32_t)(__float_as_uint(mul(0.75f, scale)) - 6 * EXP_ONE);
    constexpr int BITS = CODEC == ENCODE_BF16 ? 16 : CODEC == ENCODE_INT8 ? 8 : 4;
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < PIECE; k++) {
        struct coded c = {0, 0};
        uint32_t u = __float_as_uint(v[k]);
        if (CODEC == ENCODE_BF16)
            c = {bf16_bits(u) >> 16, bf16_bits(u)};
        else if (s && CODEC == ENCODE_INT8)
            c = code_int8(v[k], scale);
        else if (s)
            c = code_e3m0(u, s, lowest);
        word[k * BITS / 32] |= c.code << (k * BITS % 32);
        v[k] = __uint_as_float(c.value);
    }
    store_codes<BITS, WIDE>(p.payload, i, word[0], word[1], left);
}

/* u of 4 elements; those beyond the end are 0. */
template <int CODEC, bool WIDE>
static __device__ __forceinline__ void read_piece(const struct encode &p, int64_t i, float u[PIECE],
                                                  int64_t left)
{
    float v[PIECE];
    load<WIDE, PIECE>(u, p.theta + i, left);
    if (CODEC == ENCODE_F32)
        return;
    load<WIDE, PIECE>(v, p.base + i, left);
#pragma unroll
    for (int k = 0; k < PIECE; k++)
        u[k] = add(v[k], -u[k]);
    if (!p.residual)
        return;
    load<WIDE, PIECE>(v, p.residual + i, left);
#pragma unroll
    for (int k = 0; k < PIECE; k++)
        u[k] = add(u[k], v[k]);
}

template <int CODEC, bool WIDE>
static __device__ __forceinline__ void write_piece(const struct encode &p, int64_t i,
                                                   const float u[PIECE], uint32_t s, int64_t left)
{
    float q[PIECE] = {u[0], u[1], u[2], u[3]};
    if (CODEC == ENCODE_F32) {
        store<WIDE, PIECE>((float *)p.payload + i, q, left);
        return;
    }
    code_piece<CODEC, WIDE>(p, i, q, s, left);
    if (!p.left)
        return;
#pragma unroll
    for (int k = 0; k < PIECE; k++)
        q[k] = add(u[k], -q[k]);
    store<WIDE, PIECE>(p.left + i, q, left);
}

/* Only the last piece of a vector is not whole. */
template <int CODEC, bool WIDE>
__global__ void __launch_bounds__(BLOCK) encode_kernel(struct encode p)
{
    const int64_t block = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    const int64_t first = block * BLOCK + threadIdx.x % WARP * PIECE;
    if (block * BLOCK >= p.n)
        return; /* the whole warp */
    float u[PIECES][PIECE] = {};
    uint32_t max = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const int64_t i = first + j * WARP * PIECE, left = p.n - i;
        if (WIDE && left >= PIECE)
            read_piece<CODEC, true>(p, i, u[j], left);
        else if (left > 0)
            read_piece<CODEC, false>(p, i, u[j], left);
#pragma unroll
        for (int k = 0; k < PIECE; k++) {
            uint32_t bits = __float_as_uint(u[j][k]) & ABS_MASK;
            max = bits > max ? bits : max;
        }
    }
    max = warp_max_bits(max);
    uint32_t s = 0;
    if (CODEC == ENCODE_INT8 || CODEC == ENCODE_E3M0)
        s = scale_of<CODEC>(max);
    if (threadIdx.x % WARP == 0) {
        if (CODEC == ENCODE_INT8 || CODEC == ENCODE_E3M0)
            p.scales[block] = (uint16_t)(s >> 16);
        if (max > ABS_MAX)
            *p.refused = 1;
    }
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const int64_t i = first + j * WARP * PIECE, left = p.n - i;
        if (WIDE && left >= PIECE)
            write_piece<CODEC, true>(p, i, u[j], s, left);
        else if (left > 0)
            write_piece<CODEC, false>(p, i, u[j], s, left);
    }
}

template <int CODEC> static int start(const struct encode *p, struct stream *s)
{
    dim3 grid(blocks_of(p->n, (int64_t)BLOCK * (BLOCK / WARP)));
    return aligned16(p->payload, p->left, p->theta, p->base, p->residual)
               ? launch(s, encode_kernel<CODEC, true>, grid, BLOCK, 0, *p)
               : launch(s, encode_kernel<CODEC, false>, grid, BLOCK, 0, *p);
}

extern "C" int cuda_encode(struct device *dev, const struct encode *p, struct stream *s)
{
    switch (p->codec) {
    case ENCODE_F32:
        return start<ENCODE_F32>(p, s);
    case ENCODE_BF16:
        return start<ENCODE_BF16>(p, s);
    case ENCODE_INT8:
        return start<ENCODE_INT8>(p, s);
    case ENCODE_E3M0:
        break;
    }
    return start<ENCODE_E3M0>(p, s);
}
