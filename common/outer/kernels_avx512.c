#include "common/outer/kernels.h"

#ifdef __x86_64__

#include <immintrin.h>

#define KERNELS_OWN_E3M0
#include "common/outer/kernels_impl.h"

/* 32 bytes hold 64 elements: even ones in the low nibbles, odd ones in the high.
 * Each byte goes to a 64-bit lane, whose low four bits pick one of 16 doubles:
 * the values of the codes, times w s.  So an addition is all that is left. */
#define GROUP 64

static inline void accumulate_e3m0_group(const struct kernel_inputs *in, const double *ws,
                                         size_t i, double *acc)
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

static void accumulate_e3m0(size_t n, const struct kernel_inputs *in, const float *theta,
                            double *acc)
{
    double ws[KERNEL_INPUTS_MAX];
    (void)theta;
    for (size_t b = 0; b < n; b += CODEC_BLOCK) {
        size_t block = b / CODEC_BLOCK, end = b + block_len(n, b), i = b;
        for (size_t c = 0; c < in->k; c++)
            ws[c] = e3m0_weight(in, c, block);
        for (; i + GROUP <= end; i += GROUP)
            accumulate_e3m0_group(in, ws, i, acc);
        accumulate_e3m0_block(in, block, i, end, acc);
    }
}

const struct kernels kernels_avx512 = KERNELS_TABLE("avx512");

#endif
