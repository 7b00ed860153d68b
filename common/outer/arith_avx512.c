#include "common/outer/arith.h"

#ifdef __x86_64__

#include <immintrin.h>

#define ARITH_OWN
#include "common/outer/arith_impl.h"

/* Doubles of a vector, and their operations. */
#define DOUBLES 8
#define STRIDE 32 /* sums of squares that stay in registers, of two arrays */
typedef __m512d vd;

static inline vd vd_set(double x)
{
    return _mm512_set1_pd(x);
}

static inline vd vd_load(const double *x)
{
    return _mm512_loadu_pd(x);
}

static inline void vd_store(double *to, vd x)
{
    _mm512_storeu_pd(to, x);
}

static inline vd vd_of_floats(const float *x)
{
    return _mm512_cvtps_pd(_mm256_loadu_ps(x));
}

static inline void vd_to_floats(float *to, vd x)
{
    _mm256_storeu_ps(to, _mm512_cvtpd_ps(x));
}

static inline vd vd_fma(vd a, vd b, vd c)
{
    return _mm512_fmadd_pd(a, b, c);
}

#include "common/outer/arith_wide.inc"

/* 32 bytes hold 64 elements: even ones in the low nibbles, odd ones in the high.
 * Each byte goes to a 64-bit lane, whose low four bits pick one of 16 doubles:
 * the values of the codes, times w s.  So only an addition is left to do. */
#define GROUP 64

static inline void add_group(const struct arith_inputs *in, const double *ws, size_t i, double *acc)
{
    const __m512d plus = _mm512_loadu_pd(e3m0_value), minus = _mm512_loadu_pd(e3m0_value + 8);
    __m512d even[4], odd[4];
    for (int j = 0; j < 4; j++)
        even[j] = odd[j] = _mm512_setzero_pd();
    for (size_t c = 0; c < in->k; c++) {
        const uint8_t *p = (const uint8_t *)in->payload[c] + i / 2;
        __m512d w = _mm512_set1_pd(ws[c]);
        __m512d lo = _mm512_mul_pd(w, plus), hi = _mm512_mul_pd(w, minus);
        for (int j = 0; j < 4; j++) {
            __m512i t = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(p + 8 * j)));
            __m512i u = _mm512_srli_epi64(t, 4);
            even[j] = _mm512_add_pd(even[j], _mm512_permutex2var_pd(lo, t, hi));
            odd[j] = _mm512_add_pd(odd[j], _mm512_permutex2var_pd(lo, u, hi));
        }
    }
    const __m512i first = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i second = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    for (int j = 0; j < 4; j++) {
        double *out = acc + i + 16 * j;
        _mm512_storeu_pd(out, _mm512_permutex2var_pd(even[j], first, odd[j]));
        _mm512_storeu_pd(out + 8, _mm512_permutex2var_pd(even[j], second, odd[j]));
    }
}

static size_t accumulate_groups(const struct arith_inputs *in, size_t block, size_t n, double *acc)
{
    double ws[ARITH_INPUTS_MAX];
    const size_t first = block * CODEC_BLOCK;
    size_t i = 0;
    for (size_t c = 0; c < in->k; c++)
        ws[c] = e3m0_weight(in, c, block);
    for (; i + GROUP <= n; i += GROUP)
        add_group(in, ws, first + i, acc);
    return i;
}

/* The same in whole units: table has the values of the 16 codes. */
static inline void add_whole(const struct arith_inputs *in, const __m512i *table, double unit,
                             size_t i, double *acc)
{
    __m512i even[GROUP / 32], odd[GROUP / 32];
    for (int j = 0; j < GROUP / 32; j++)
        even[j] = odd[j] = _mm512_setzero_si512();
    for (size_t c = 0; c < in->k; c++) {
        const uint8_t *p = (const uint8_t *)in->payload[c] + i / 2;
        for (int j = 0; j < GROUP / 32; j++) {
            const __m512i t =
                _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)(p + 16 * j)));
            even[j] = _mm512_add_epi32(even[j], _mm512_permutexvar_epi32(t, table[c]));
            odd[j] = _mm512_add_epi32(odd[j],
                                      _mm512_permutexvar_epi32(_mm512_srli_epi32(t, 4), table[c]));
        }
    }
    const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
    const __m512i second = _mm512_add_epi32(first, _mm512_set1_epi32(8));
    __m256i eight[GROUP / 8];
    for (int j = 0; j < GROUP / 32; j++) {
        _mm512_storeu_si512(&eight[4 * j], _mm512_permutex2var_epi32(even[j], first, odd[j]));
        _mm512_storeu_si512(&eight[4 * j + 2], _mm512_permutex2var_epi32(even[j], second, odd[j]));
    }
    /* From memory a conversion takes one step, from a register two. */
    for (int j = 0; j < GROUP / 8; j++)
        vd_store(acc + i + 8 * j, vd_set(unit) * _mm512_cvtepi32_pd(eight[j]));
}

static inline __m512i whole_values(int32_t least)
{
    const __m512i by =
        _mm512_setr_epi32(32, 0, 1, 2, 3, 4, 5, 6, 32, 0, 1, 2, 3, 4, 5, 6); /* 32: to 0 */
    const __m512i sizes = _mm512_sllv_epi32(_mm512_set1_epi32(least), by);
    return _mm512_mask_sub_epi32(sizes, 0xff00, _mm512_setzero_si512(), sizes);
}

static void accumulate_whole(const struct arith_inputs *in, const struct whole *w, size_t first,
                             double *acc)
{
    __m512i table[ARITH_INPUTS_MAX];
    for (size_t c = 0; c < in->k; c++) {
        table[c] = whole_values(w->least[c]);
        arith_fetch_next((const uint8_t *)in->payload[c] + first / 2, CODEC_BLOCK / 2);
    }
    for (size_t i = 0; i < CODEC_BLOCK; i += GROUP)
        add_whole(in, table, w->unit, first + i, acc);
}

/* Codes 16 elements at a time, with the arithmetic of encode_e3m0_block().  The codes of two
 * neighbours meet in a 64-bit lane, whose low byte is then the byte of both. */
static inline void encode_e3m0_own(size_t n, const float *x, uint32_t s, uint8_t *out, float *q)
{
    const __m512i lowest = _mm512_set1_epi32((int)(bits_of(0.75f * float_of(s)) - 7 * EXP_ONE));
    const __m512i half = _mm512_set1_epi32((int)(s - 7 * EXP_ONE));
    const __m512i one = _mm512_set1_epi32(1), seven = _mm512_set1_epi32(7);
    const __m512i abs = _mm512_set1_epi32(INT32_MAX), top = _mm512_set1_epi32(INT32_MIN);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i u = _mm512_castps_si512(_mm512_loadu_ps(x + i));
        __m512i a = _mm512_and_si512(u, abs);
        __m512i m = _mm512_srai_epi32(_mm512_sub_epi32(a, lowest), 23);
        __mmask16 sent = _mm512_cmpge_epi32_mask(a, half);
        m = _mm512_min_epi32(_mm512_max_epi32(m, one), seven);
        __m512i value = _mm512_add_epi32(half, _mm512_slli_epi32(m, 23));
        __m512i sign = _mm512_and_si512(u, top);
        _mm512_storeu_ps(q + i, _mm512_castsi512_ps(_mm512_maskz_or_epi32(sent, value, sign)));
        __m512i code = _mm512_maskz_or_epi32(sent, m, _mm512_srli_epi32(sign, 28));
        code = _mm512_or_si512(code, _mm512_srli_epi64(code, 28));
        _mm_storel_epi64((__m128i *)(void *)(out + i / 2), _mm512_cvtepi64_epi8(code));
    }
    if (i < n)
        encode_e3m0_block(n - i, x + i, s, out + i / 2, q + i);
}

/* Decodes groups of 16, and returns their number of elements: each byte goes to a 64-bit lane,
 * whose halves have one code each in their low four bits, which pick one of 16 floats. */
static inline size_t decode_e3m0_own(size_t n, const uint8_t *in, float s, float *x)
{
    const __m512 values =
        _mm512_insertf32x8(_mm512_castps256_ps512(_mm512_cvtpd_ps(_mm512_loadu_pd(e3m0_value))),
                           _mm512_cvtpd_ps(_mm512_loadu_pd(e3m0_value + 8)), 1);
    const __m512 scale = _mm512_set1_ps(s);
    size_t i = 0;
    for (; i + 16 <= n; i += 16) {
        __m512i code =
            _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)(const void *)(in + i / 2)));
        code = _mm512_or_si512(code, _mm512_slli_epi64(code, 28));
        _mm512_storeu_ps(x + i, _mm512_mul_ps(scale, _mm512_permutexvar_ps(code, values)));
    }
    return i;
}

const struct arith arith_avx512 = ARITH_TABLE("avx512");

#endif
