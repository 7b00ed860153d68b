/* 8 lanes of f32: the same names as vec_avx512.h for CPUs with AVX2 and FMA. */
#ifndef KERNELS_CPU_VEC_AVX2_H
#define KERNELS_CPU_VEC_AVX2_H

#include <immintrin.h>
#include <stdint.h>

#include "kernels/dtype.h"

/* Everything here is inlined, so no vector crosses a call whose convention could differ. */
#pragma GCC diagnostic ignored "-Wpsabi"

enum { VL = 8 }; /* lanes */
typedef __m256 vf;

/* All lanes when n >= VL, none when n <= 0. */
typedef int vmask;
/* The first n lanes; in the others loads give 0 and stores leave memory as it is. */
static inline vmask v_mask(int64_t n)
{
    return n >= VL ? VL : n > 0 ? (int)n : 0;
}

static inline __m256i v_lanes(vmask m)
{
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(m), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}

static inline vf v_set(float x)
{
    return _mm256_set1_ps(x);
}

static inline vf v_zero(void)
{
    return _mm256_setzero_ps();
}

static inline vf v_load(const float *p, vmask m)
{
    return m == VL ? _mm256_loadu_ps(p) : _mm256_maskload_ps(p, v_lanes(m));
}

static inline void v_store(float *p, vmask m, vf x)
{
    if (m == VL)
        _mm256_storeu_ps(p, x);
    else
        _mm256_maskstore_ps(p, v_lanes(m), x);
}

static inline vf v_load_bf16(const bf16 *p, vmask m)
{
    bf16 part[VL] = {0};
    if (m < VL) {
        for (int i = 0; i < m; i++)
            part[i] = p[i];
        p = part;
    }
    __m128i h = _mm_loadu_si128((const __m128i *)(const void *)p);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(h), 16));
}

static inline void v_store_bf16(bf16 *p, vmask m, vf x)
{
    __m256i u = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(u, 16), _mm256_set1_epi32(1));
    __m256i r = _mm256_add_epi32(u, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff)));
    __m256i nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
    r = _mm256_blendv_epi8(r, _mm256_or_si256(u, _mm256_set1_epi32(0x400000)), nan);
    r = _mm256_srli_epi32(r, 16);
    __m128i h = _mm_packus_epi32(_mm256_castsi256_si128(r), _mm256_extracti128_si256(r, 1));
    if (m == VL) {
        _mm_storeu_si128((__m128i *)(void *)p, h);
        return;
    }
    bf16 part[VL];
    _mm_storeu_si128((__m128i *)(void *)part, h);
    for (int i = 0; i < m; i++)
        p[i] = part[i];
}

/* Lane by lane; min and max give the second operand on NaN. */
static inline vf v_sqrt(vf a)
{
    return _mm256_sqrt_ps(a);
}

static inline vf v_max(vf a, vf b)
{
    return _mm256_max_ps(a, b);
}

static inline vf v_min(vf a, vf b)
{
    return _mm256_min_ps(a, b);
}

/* a*b + c and c - a*b, rounded once. */
static inline vf v_fma(vf a, vf b, vf c)
{
    return _mm256_fmadd_ps(a, b, c);
}

static inline vf v_fnma(vf a, vf b, vf c)
{
    return _mm256_fnmadd_ps(a, b, c);
}

static inline float v_sum(vf a)
{
    __m128 h = _mm_add_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_add_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_add_ss(h, _mm_movehdup_ps(h)));
}

static inline float v_hmax(vf a)
{
    __m128 h = _mm_max_ps(_mm256_castps256_ps128(a), _mm256_extractf128_ps(a, 1));
    h = _mm_max_ps(h, _mm_movehl_ps(h, h));
    return _mm_cvtss_f32(_mm_max_ss(h, _mm_movehdup_ps(h)));
}

/* Lanes outside the mask become x. */
static inline vf v_select(vmask m, vf a, vf x)
{
    return m == VL ? a : _mm256_blendv_ps(x, a, _mm256_castsi256_ps(v_lanes(m)));
}

static inline vf v_rcp(vf x)
{
    return _mm256_div_ps(_mm256_set1_ps(1.0f), x);
}

static inline vf v_round(vf x)
{
    return _mm256_round_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}

/* y * 2^n for integral n, where y and the result are normal; NaN stays NaN. */
static inline vf v_scale2(vf y, vf n)
{
    __m256i up = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(y), up));
}

static inline double v_sumsq_f64(const float *x, int64_t n)
{
    __m256d lo = _mm256_setzero_pd(), hi = _mm256_setzero_pd();
    for (int64_t i = 0; i < n; i += VL) {
        vf v = v_load(x + i, v_mask(n - i));
        __m256d a = _mm256_cvtps_pd(_mm256_castps256_ps128(v));
        __m256d b = _mm256_cvtps_pd(_mm256_extractf128_ps(v, 1));
        lo = _mm256_fmadd_pd(a, a, lo);
        hi = _mm256_fmadd_pd(b, b, hi);
    }
    double part[4];
    _mm256_storeu_pd(part, _mm256_add_pd(lo, hi));
    return (part[0] + part[1]) + (part[2] + part[3]);
}

#endif
