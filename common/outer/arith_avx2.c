#include "common/outer/arith.h"

#ifdef __x86_64__

#include <immintrin.h>

#define ARITH_OWN_E3M0
#include "common/outer/arith_impl.h"

/* Eight elements of four bytes: each byte goes to a 64-bit lane, its high nibble
 * to the upper half of the lane.  The table look-up reads the low three bits. */
static inline __m256 e3m0_unpack(const uint8_t *in)
{
    const __m256 magnitude =
        _mm256_setr_ps(0.0f, 0x1p-6f, 0x1p-5f, 0x1p-4f, 0x1p-3f, 0x1p-2f, 0x1p-1f, 1.0f);
    int32_t four;
    memcpy(&four, in, sizeof four);
    __m256i t = _mm256_cvtepu8_epi64(_mm_cvtsi32_si128(four));
    t = _mm256_or_si256(t, _mm256_slli_epi64(t, 28));
    __m256i sign = _mm256_and_si256(_mm256_slli_epi32(t, 28), _mm256_set1_epi32(INT32_MIN));
    return _mm256_xor_ps(_mm256_permutevar8x32_ps(magnitude, t), _mm256_castsi256_ps(sign));
}

static inline void accumulate_e3m0_eight(const struct arith_inputs *in, const double *ws, size_t i,
                                         double *acc)
{
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
    for (size_t c = 0; c < in->k; c++) {
        __m256 v = e3m0_unpack((const uint8_t *)in->payload[c] + i / 2);
        __m256d w = _mm256_set1_pd(ws[c]);
        lo = _mm256_add_pd(lo, _mm256_mul_pd(w, _mm256_cvtps_pd(_mm256_castps256_ps128(v))));
        hi = _mm256_add_pd(hi, _mm256_mul_pd(w, _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1))));
    }
    _mm256_storeu_pd(acc + i, lo);
    _mm256_storeu_pd(acc + i + 4, hi);
}

static void accumulate_e3m0(size_t n, const struct arith_inputs *in, const float *theta,
                            double *acc)
{
    double ws[ARITH_INPUTS_MAX];
    (void)theta;
    for (size_t b = 0; b < n; b += CODEC_BLOCK) {
        size_t block = b / CODEC_BLOCK, end = b + block_len(n, b), i = b;
        for (size_t c = 0; c < in->k; c++)
            ws[c] = e3m0_weight(in, c, block);
        for (; i + 8 <= end; i += 8)
            accumulate_e3m0_eight(in, ws, i, acc);
        accumulate_e3m0_block(in, block, i, end, acc);
    }
}

const struct arith arith_avx2 = ARITH_TABLE("avx2");

#endif
