/* Codecs of the wire: the arithmetic of common/outer/arith_impl.h, step by step, so that a
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

/* The code of an element, and the bits of the value that it decodes to. */
struct coded {
    uint32_t code, value;
};

/* The scale and thresholds of a block. */
struct block_scale {
    float s, divisor;     /* int8; the divisor of a block that sends nothing is 1 */
    uint32_t bottom;      /* e3m0: the lowest value's bits, one step down */
    int32_t lowest, half; /* thresholds, see encode_e3m0_block() there; nothing passes INT32_MAX */
};

static __device__ __forceinline__ struct block_scale block_scale_of(uint32_t s)
{
    struct block_scale b;
    b.s = __uint_as_float(s);
    b.divisor = s ? b.s : 1.0f;
    b.bottom = s - 7 * EXP_ONE;
    b.lowest = s ? (int32_t)(__float_as_uint(mul(0.75f, b.s)) - 6 * EXP_ONE) : INT32_MAX;
    b.half = s ? (int32_t)b.bottom : INT32_MAX;
    return b;
}

/* The sum has no bits left for a fraction. */
static __device__ __forceinline__ struct coded code_int8(float x, const struct block_scale &b)
{
    const float big = 12582912.0f; /* 1.5 * 2^23 */
    float r = add(add(__fdiv_rn(x, b.divisor), big), -big);
    return {(uint32_t)(int32_t)r & 0xffu, __float_as_uint(mul(b.s, r))};
}

/* Thresholds passed, counted in the exponent. */
static __device__ __forceinline__ struct coded code_e3m0(uint32_t u, const struct block_scale &b)
{
    const int32_t a = (int32_t)(u & ABS_MASK);
    int32_t m = ((a - b.lowest) >> 23) + 1;
    m = min(max(m, a >= b.half ? 1 : 0), 7);
    const uint32_t keep = m ? 0xffffffffu : 0;
    const uint32_t sign = u & ~ABS_MASK & keep;
    return {(uint32_t)m | sign >> 28, ((b.bottom + (uint32_t)m * EXP_ONE) & keep) | sign};
}

/* The scale of a block, bf16 in the upper half; 0: it sends nothing. */
template <int CODEC> static __device__ __forceinline__ uint32_t scale_of(uint32_t max)
{
    if (max < TINY)
        return 0;
    float v = __uint_as_float(max);
    return CODEC == CODEC_INT8 ? (__float_as_uint(__fdiv_rn(v, 127.0f)) + 0xffffu) & 0xffff0000u
                               : bf16_bits(__float_as_uint(mul(0.875f, v)));
}

/* Codes 4 values; v becomes what they decode to. */
template <int CODEC, bool WIDE>
static __device__ __forceinline__ void code_piece(const struct encode &p, int64_t i, float v[PIECE],
                                                  const struct block_scale &b)
{
    constexpr int BITS = CODEC == CODEC_BF16 ? 16 : CODEC == CODEC_INT8 ? 8 : 4;
    uint32_t word[2] = {0, 0};
#pragma unroll
    for (int k = 0; k < PIECE; k++) {
        const uint32_t u = __float_as_uint(v[k]);
        struct coded c;
        if (CODEC == CODEC_BF16)
            c = {bf16_bits(u) >> 16, bf16_bits(u)};
        else if (CODEC == CODEC_INT8)
            c = code_int8(v[k], b);
        else
            c = code_e3m0(u, b);
        word[k * BITS / 32] |= c.code << (k * BITS % 32);
        v[k] = __uint_as_float(c.value);
    }
    store_codes<BITS, WIDE>(p.payload, i, word[0], word[1], p.n - i);
}

/* WIDE: the block is whole and aligned; else what lies beyond the end reads as 0. */
template <bool WIDE>
static __device__ __forceinline__ void read_pieces(float v[PIECES][PIECE], const float *from,
                                                   int64_t first, int64_t n)
{
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const int64_t i = first + j * WARP * PIECE;
        load<WIDE, PIECE>(v[j], from + i, n - i);
    }
}

/* u = base - theta + residual.  All is asked for before any of it is used. */
template <int CODEC, bool WIDE>
static __device__ __forceinline__ void read_u(const struct encode &p, int64_t first,
                                              float u[PIECES][PIECE])
{
    float base[PIECES][PIECE] = {}, residual[PIECES][PIECE] = {};
    if (CODEC != CODEC_F32 && p.residual)
        read_pieces<WIDE>(residual, p.residual, first, p.n);
    read_pieces<WIDE>(u, p.theta, first, p.n);
    if (CODEC == CODEC_F32)
        return;
    read_pieces<WIDE>(base, p.base, first, p.n);
#pragma unroll
    for (int k = 0; k < VALUES; k++) {
        float *x = &u[k / PIECE][k % PIECE];
        *x = add(base[k / PIECE][k % PIECE], -*x);
        if (p.residual) /* -0 + 0 is not -0 */
            *x = add(*x, residual[k / PIECE][k % PIECE]);
    }
}

/* No kernel reads them again. */
template <bool WIDE>
static __device__ __forceinline__ void store_last(float *p, const float v[PIECE], int64_t left)
{
    if (WIDE)
        __stcs((float4 *)p, make_float4(v[0], v[1], v[2], v[3]));
    else
        store<false, PIECE>(p, v, left);
}

template <int CODEC, bool WIDE>
static __device__ __forceinline__ void
write_piece(const struct encode &p, int64_t i, const float u[PIECE], const struct block_scale &b)
{
    float q[PIECE] = {u[0], u[1], u[2], u[3]};
    if (CODEC == CODEC_F32) {
        store_last<WIDE>((float *)p.payload + i, q, p.n - i);
        return;
    }
    code_piece<CODEC, WIDE>(p, i, q, b);
    if (!p.left)
        return;
#pragma unroll
    for (int k = 0; k < PIECE; k++)
        q[k] = add(u[k], -q[k]);
    store_last<WIDE>(p.left + i, q, p.n - i);
}

template <int CODEC, bool WIDE>
static __device__ __forceinline__ void encode_block(const struct encode &p, int64_t block)
{
    constexpr bool SCALED = CODEC == CODEC_INT8 || CODEC == CODEC_E3M0;
    const int64_t first = block * BLOCK + threadIdx.x % WARP * PIECE;
    float u[PIECES][PIECE];
    uint32_t max = 0;
    read_u<CODEC, WIDE>(p, first, u);
#pragma unroll
    for (int k = 0; k < VALUES; k++) {
        uint32_t bits = __float_as_uint(u[k / PIECE][k % PIECE]) & ABS_MASK;
        max = bits > max ? bits : max;
    }
    max = warp_max_bits(max);
    const uint32_t s = SCALED ? scale_of<CODEC>(max) : 0;
    if (threadIdx.x % WARP == 0) {
        if (SCALED)
            p.scales[block] = (uint16_t)(s >> 16);
        if (max > ABS_MAX)
            *p.refused = 1;
    }
    const struct block_scale b = block_scale_of(s);
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        const int64_t i = first + j * WARP * PIECE;
        if (WIDE || i < p.n)
            write_piece<CODEC, WIDE>(p, i, u[j], b);
    }
}

template <int CODEC, bool WIDE>
__global__ void __launch_bounds__(BLOCK) encode_kernel(struct encode p)
{
    const int64_t block = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP;
    const int64_t left = p.n - block * BLOCK;
    if (WIDE && left >= BLOCK)
        encode_block<CODEC, true>(p, block);
    else if (left > 0)
        encode_block<CODEC, false>(p, block);
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
    case CODEC_F32:
        return start<CODEC_F32>(p, s);
    case CODEC_BF16:
        return start<CODEC_BF16>(p, s);
    case CODEC_INT8:
        return start<CODEC_INT8>(p, s);
    case CODEC_E3M0:
        break;
    }
    return start<CODEC_E3M0>(p, s);
}
