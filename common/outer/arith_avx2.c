#include "common/outer/arith.h"

#ifdef __x86_64__

#include <immintrin.h>

#define ARITH_OWN_E3M0
#define ARITH_OWN_ENCODE
#define ARITH_OWN_DECODE
#include "common/outer/arith_impl.h"

/* 16 bytes hold 32 elements: even ones in the low nibbles, odd ones in the high. */
#define GROUP 32
#define WHOLE 64 /* elements of two groups: four vectors of sums of either kind */

/* The values of the codes 0..7 times w s, as doubles cut into halves: a look-up of 32-bit
 * lanes reads the low three bits of a code.  The fourth is the sign: it is shifted to the top with
 * all four bits, and the upper halves are xored beforehand with the lower three. */
struct values {
    __m256i high, low;
};

static inline struct values values_of(double ws)
{
    const __m256d w = _mm256_set1_pd(ws);
    const __m256 a = _mm256_castpd_ps(_mm256_mul_pd(w, _mm256_loadu_pd(e3m0_value)));
    const __m256 b = _mm256_castpd_ps(_mm256_mul_pd(w, _mm256_loadu_pd(e3m0_value + 4)));
    const __m256i high = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(3, 1, 3, 1)));
    const __m256i low = _mm256_castps_si256(_mm256_shuffle_ps(a, b, _MM_SHUFFLE(2, 0, 2, 0)));
    const __m256i turned =
        _mm256_setr_epi32(0, 1 << 28, 2 << 28, 3 << 28, 4 << 28, 5 << 28, 6 << 28, 7 << 28);
    return (struct values){
        _mm256_xor_si256(_mm256_permute4x64_epi64(high, _MM_SHUFFLE(3, 1, 2, 0)), turned),
        _mm256_permute4x64_epi64(low, _MM_SHUFFLE(3, 1, 2, 0))};
}

/* Adds the values of eight codes, in the low bits of 32-bit lanes: lanes 0, 1, 4, 5 go to
 * sums[0], lanes 2, 3, 6, 7 to sums[1]. */
static inline void add_eight(const struct values *v, __m256i codes, __m256d sums[2])
{
    const __m256i low = _mm256_permutevar8x32_epi32(v->low, codes);
    const __m256i high =
        _mm256_xor_si256(_mm256_permutevar8x32_epi32(v->high, codes), _mm256_slli_epi32(codes, 28));
    sums[0] = _mm256_add_pd(sums[0], _mm256_castsi256_pd(_mm256_unpacklo_epi32(low, high)));
    sums[1] = _mm256_add_pd(sums[1], _mm256_castsi256_pd(_mm256_unpackhi_epi32(low, high)));
}

/* Stores the even and odd elements of add_eight() in their order. */
static inline void store_sixteen(const __m256d even[2], const __m256d odd[2], double *out)
{
    for (int k = 0; k < 2; k++) {
        const __m256d a = _mm256_unpacklo_pd(even[k], odd[k]);
        const __m256d b = _mm256_unpackhi_pd(even[k], odd[k]);
        _mm256_storeu_pd(out + 4 * k, _mm256_permute2f128_pd(a, b, 0x20));
        _mm256_storeu_pd(out + 4 * k + 8, _mm256_permute2f128_pd(a, b, 0x31));
    }
}

static inline void accumulate_e3m0_group(const struct arith_inputs *in, const struct values *values,
                                         size_t i, double *acc)
{
    __m256d even[2][2], odd[2][2];
    for (int j = 0; j < 4; j++)
        even[j / 2][j % 2] = odd[j / 2][j % 2] = _mm256_setzero_pd();
    for (size_t c = 0; c < in->k; c++) {
        const uint8_t *p = (const uint8_t *)in->payload[c] + i / 2;
        for (int j = 0; j < 2; j++) {
            const __m256i t = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * j)));
            add_eight(&values[c], t, even[j]);
            add_eight(&values[c], _mm256_srli_epi32(t, 4), odd[j]);
        }
    }
    for (int j = 0; j < 2; j++)
        store_sixteen(even[j], odd[j], acc + i + 16 * j);
}

/* The value of the lowest bit of x; x is positive and normal, far from both ends. */
static inline double lowest_bit(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    u = ((u >> 52) - 52 + (uint64_t)__builtin_ctzll(u | 1ull << 52)) << 52;
    memcpy(&x, &u, sizeof x);
    return x;
}

/* A unit of which all values of a block's inputs (ws: their weights times scales) are multiples,
 * if the magnitudes add up to less than 2^31 units: then no addition of doubles rounds, and sums of
 * 32-bit integers have the same bits.  Else 0. */
static inline double e3m0_unit(size_t k, const double *ws)
{
    double all = 0.0, least = 0x1p900;
    for (size_t c = 0; c < k; c++) {
        if (ws[c] == 0.0)
            continue;
        if (!(ws[c] > 0x1p-900 && ws[c] < 0x1p900))
            return 0.0;
        const double bit = lowest_bit(ws[c]);
        least = bit < least ? bit : least;
        all += ws[c];
    }
    return all < least * 0x1p25 ? least * 0x1p-6 : 0.0; /* the least value is ws / 64 */
}

/* The same in whole units (e3m0_unit): table has the values of the codes 0..7.  Code 8 is a
 * negative zero, so 0. */
static inline void accumulate_whole_group(const struct arith_inputs *in, const __m256i *table,
                                          double unit, size_t i, double *acc)
{
    __m256i even[WHOLE / 16], odd[WHOLE / 16];
    for (int j = 0; j < WHOLE / 16; j++)
        even[j] = odd[j] = _mm256_setzero_si256();
    for (size_t c = 0; c < in->k; c++) {
        const uint8_t *p = (const uint8_t *)in->payload[c] + i / 2;
        const __m256i values = table[c];
        for (int j = 0; j < WHOLE / 16; j++) {
            const __m256i t = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)(p + 8 * j)));
            const __m256i low = _mm256_permutevar8x32_epi32(values, t);
            const __m256i high = _mm256_permutevar8x32_epi32(values, _mm256_srli_epi32(t, 4));
            even[j] = _mm256_add_epi32(even[j], _mm256_sign_epi32(low, _mm256_slli_epi32(t, 28)));
            odd[j] = _mm256_add_epi32(odd[j], _mm256_sign_epi32(high, _mm256_slli_epi32(t, 24)));
        }
    }
    const __m256d u = _mm256_set1_pd(unit);
    for (int j = 0; j < WHOLE / 16; j++) {
        const __m256i a = _mm256_unpacklo_epi32(even[j], odd[j]);
        const __m256i b = _mm256_unpackhi_epi32(even[j], odd[j]);
        const __m128i four[4] = {_mm256_castsi256_si128(a), _mm256_castsi256_si128(b),
                                 _mm256_extracti128_si256(a, 1), _mm256_extracti128_si256(b, 1)};
        for (int f = 0; f < 4; f++)
            _mm256_storeu_pd(acc + i + 16 * j + 4 * f,
                             _mm256_mul_pd(_mm256_cvtepi32_pd(four[f]), u));
    }
}

static inline __m256i whole_values(double units)
{
    const __m256i lowest = _mm256_set1_epi32((int)units);
    return _mm256_sllv_epi32(lowest, _mm256_setr_epi32(32, 0, 1, 2, 3, 4, 5, 6)); /* 32: to 0 */
}

static void accumulate_e3m0(size_t n, const struct arith_inputs *in, const float *theta,
                            double *acc)
{
    double ws[ARITH_INPUTS_MAX];
    union {
        struct values of[ARITH_INPUTS_MAX];
        __m256i whole[ARITH_INPUTS_MAX];
    } values;
    (void)theta;
    for (size_t b = 0; b < n; b += CODEC_BLOCK) {
        size_t block = b / CODEC_BLOCK, end = b + block_len(n, b), i = b;
        for (size_t c = 0; c < in->k; c++)
            ws[c] = e3m0_weight(in, c, block);
        const double unit = e3m0_unit(in->k, ws);
        const double per = unit > 0.0 ? 0x1p-6 / unit : 0.0; /* units of the least value */
        for (size_t c = 0; c < in->k; c++)
            if (unit > 0.0)
                values.whole[c] = whole_values(ws[c] * per);
            else
                values.of[c] = values_of(ws[c]);
        for (; unit > 0.0 && i + WHOLE <= end; i += WHOLE)
            accumulate_whole_group(in, values.whole, unit, i, acc);
        for (; unit == 0.0 && i + GROUP <= end; i += GROUP)
            accumulate_e3m0_group(in, values.of, i, acc);
        accumulate_e3m0_block(in, block, i, end, acc);
    }
}

/* Codes eight elements with the arithmetic of encode_e3m0_block(); returns their codes. */
static inline __m256i encode_eight(const float *x, __m256i lowest, __m256i half, float *q)
{
    const __m256i u = _mm256_castps_si256(_mm256_loadu_ps(x));
    const __m256i a = _mm256_and_si256(u, _mm256_set1_epi32(INT32_MAX));
    const __m256i sign = _mm256_and_si256(u, _mm256_set1_epi32(INT32_MIN));
    const __m256i less = _mm256_cmpgt_epi32(half, a); /* below half of the lowest value: code 0 */
    __m256i m = _mm256_srai_epi32(_mm256_sub_epi32(a, lowest), 23);
    m = _mm256_max_epi32(m, _mm256_set1_epi32(1));
    m = _mm256_min_epi32(m, _mm256_set1_epi32(7));
    const __m256i value = _mm256_add_epi32(half, _mm256_slli_epi32(m, 23));
    _mm256_storeu_ps(q,
                     _mm256_castsi256_ps(_mm256_andnot_si256(less, _mm256_or_si256(value, sign))));
    return _mm256_andnot_si256(less, _mm256_or_si256(m, _mm256_srli_epi32(sign, 28)));
}

/* Codes 32 elements at a time.  Packing works on halves of vectors, so at the end the bytes of
 * both halves are interleaved in pairs. */
static inline void encode_e3m0_own(size_t n, const float *x, uint32_t s, uint8_t *out, float *q)
{
    const __m256i lowest = _mm256_set1_epi32((int)(bits_of(0.75f * float_of(s)) - 7 * EXP_ONE));
    const __m256i half = _mm256_set1_epi32((int)(s - 7 * EXP_ONE));
    const __m256i neighbours = _mm256_set1_epi32(16 << 16 | 1); /* factors of (even, odd) */
    size_t i = 0;
    for (; i + GROUP <= n; i += GROUP) {
        __m256i code[4];
        for (size_t j = 0; j < 4; j++)
            code[j] = encode_eight(x + i + 8 * j, lowest, half, q + i + 8 * j);
        const __m256i a = _mm256_madd_epi16(_mm256_packs_epi32(code[0], code[1]), neighbours);
        const __m256i b = _mm256_madd_epi16(_mm256_packs_epi32(code[2], code[3]), neighbours);
        const __m256i c = _mm256_packus_epi32(a, b), bytes = _mm256_packus_epi16(c, c);
        const __m128i low = _mm256_castsi256_si128(bytes),
                      high = _mm256_extracti128_si256(bytes, 1);
        _mm_storeu_si128((__m128i *)(void *)(out + i / 2), _mm_unpacklo_epi16(low, high));
    }
    if (i < n)
        encode_e3m0_block(n - i, x + i, s, out + i / 2, q + i);
}

/* Eight floats of a table. */
static inline __m256 values_at(const double *table)
{
    return _mm256_insertf128_ps(_mm256_castps128_ps256(_mm256_cvtpd_ps(_mm256_loadu_pd(table))),
                                _mm256_cvtpd_ps(_mm256_loadu_pd(table + 4)), 1);
}

/* Decodes groups of eight, and returns their number of elements: each byte goes to a 64-bit lane,
 * whose halves have one code each in their low four bits.  Three bits pick one of eight floats,
 * the fourth picks the table. */
static inline size_t decode_e3m0_own(size_t n, const uint8_t *in, float s, float *x)
{
    const __m256 plus = values_at(e3m0_value), minus = values_at(e3m0_value + 8);
    const __m256 scale = _mm256_set1_ps(s);
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        int32_t four;
        memcpy(&four, in + i / 2, sizeof four);
        __m256i code = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
        code = _mm256_or_si256(code, _mm256_slli_epi64(code, 28));
        const __m256 value = _mm256_blendv_ps(_mm256_permutevar8x32_ps(plus, code),
                                              _mm256_permutevar8x32_ps(minus, code),
                                              _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
        _mm256_storeu_ps(x + i, _mm256_mul_ps(scale, value));
    }
    return i;
}

const struct arith arith_avx2 = ARITH_TABLE("avx2");

#endif
