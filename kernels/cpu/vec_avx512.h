/* 16 lanes of f32, with the operations of the elementwise code; only for files
 * compiled for AVX-512. */
#ifndef KERNELS_CPU_VEC_AVX512_H
#define KERNELS_CPU_VEC_AVX512_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* Everything here is inlined, so no vector crosses a call whose convention could differ. */
#pragma GCC diagnostic ignored "-Wpsabi"

enum { VL = 16 }; /* lanes */
typedef __m512 vf;

/* All lanes when n >= VL, none when n <= 0. */
typedef __mmask16 vmask;
/* The first n lanes; in the others loads give 0 and stores leave memory as it is. */
static inline vmask v_mask(int64_t n)
{
    return n >= VL ? (vmask)0xffff : n > 0 ? (vmask)((1u << n) - 1u) : (vmask)0;
}

static inline vf v_set(float x)
{
    return _mm512_set1_ps(x);
}

static inline vf v_zero(void)
{
    return _mm512_setzero_ps();
}

static inline vf v_load(const float *p, vmask m)
{
    return _mm512_maskz_loadu_ps(m, p);
}

/* Zen 4 takes many times longer for a masked store, even of all lanes. */
static inline void v_store(float *p, vmask m, vf x)
{
    if (m == 0xffff)
        _mm512_storeu_ps(p, x);
    else
        _mm512_mask_storeu_ps(p, m, x);
}

static inline vf v_load_bf16(const bf16 *p, vmask m)
{
    __m256i h = _mm256_maskz_loadu_epi16(m, p);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(h), 16));
}

/* Rounds to nearest even; NaN stays NaN.  The instruction flushes denormals. */
static inline __m256i v_to_bf16(vf x)
{
#ifdef __AVX512BF16__
    return (__m256i)_mm512_cvtneps_pbh(x);
#else
    __m512i u = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(u, 16), _mm512_set1_epi32(1));
    __m512i r = _mm512_add_epi32(u, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    r = _mm512_mask_or_epi32(r, nan, u, _mm512_set1_epi32(0x400000));
    return _mm512_cvtepi32_epi16(_mm512_srli_epi32(r, 16));
#endif
}

static inline void v_store_bf16(bf16 *p, vmask m, vf x)
{
    if (m == 0xffff)
        _mm256_storeu_si256((__m256i *)(void *)p, v_to_bf16(x));
    else
        _mm256_mask_storeu_epi16(p, m, v_to_bf16(x));
}

static inline vf v_sqrt(vf a)
{
    return _mm512_sqrt_ps(a);
}

static inline vf v_max(vf a, vf b)
{
    return _mm512_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm512_min_ps(a, b);
}

/* a*b + c and c - a*b, rounded once. */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm512_fmadd_ps(a, b, c);
}

static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

static inline float v_sum(vf a)
{
    return _mm512_reduce_add_ps(a);
}

static inline float v_hmax(vf a)
{
    return _mm512_reduce_max_ps(a);
}

/* Lanes outside the mask become x. */
static inline vf v_select(vmask m, vf a, vf x)
{
    return _mm512_mask_blend_ps(m, x, a);
}

/* 1/x to about 24 bits for normal x: the estimate and one Newton step. */
static inline vf v_rcp(vf x)
{
    vf r = _mm512_rcp14_ps(x);
    return v_fma(r, v_fnma(x, r, v_set(1)), r);
}

/* round(x) as float, and 2^n scaling of y by an integral float n. */
static inline vf v_round(vf x)
{
    return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

static inline vf v_scale2(vf y, vf n)
{
    return _mm512_scalef_ps(y, n);
}

static inline double v_sumsq_f64(const float *x, int64_t n)
{
    __m512d acc[2] = {_mm512_setzero_pd(), _mm512_setzero_pd()};
    for (int64_t i = 0; i < n; i += VL) {
        vf v = v_load(x + i, v_mask(n - i));
        __m512d lo = _mm512_cvtps_pd(_mm512_castps512_ps256(v));
        __m512d hi = _mm512_cvtps_pd(_mm512_extractf32x8_ps(v, 1));
        acc[0] = _mm512_fmadd_pd(lo, lo, acc[0]);
        acc[1] = _mm512_fmadd_pd(hi, hi, acc[1]);
    }
    return _mm512_reduce_add_pd(_mm512_add_pd(acc[0], acc[1]));
}

/* r[i][j] <-> r[j][i] of 16x16 lanes. */
static inline void transpose16(__m512i r[16])
{
    __m512i t[16];
    for (int i = 0; i < 8; i++) {
        t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
        t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 4; i++) {
        r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
        r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
        r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        t[i] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88);
        t[i + 4] = _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd);
        t[i + 8] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0x88);
        t[i + 12] = _mm512_shuffle_i32x4(r[i + 8], r[i + 12], 0xdd);
    }
    for (int i = 0; i < 4; i++) {
        r[i] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0x88);
        r[i + 8] = _mm512_shuffle_i32x4(t[i], t[i + 8], 0xdd);
        r[i + 4] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0x88);
        r[i + 12] = _mm512_shuffle_i32x4(t[i + 4], t[i + 12], 0xdd);
    }
}

#endif
