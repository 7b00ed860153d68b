/* The inner loops of gemm.h over units of four bytes; included by one file per type,
 * which defines
 *     GEMM_BF16      1 or 0
 *     GEMM_MUL(acc, a, b)   acc + a*b per lane, a and b units */
#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec_avx512.h"

#include "kernels/cpu/vec_math.h"

static inline __m512 broadcast(const char *p)
{
    float unit;
    memcpy(&unit, p, sizeof unit);
    return _mm512_set1_ps(unit);
}

/* One step along k for rows 3r..3r+2, whose pointers are p, p+rs, p+2rs. */
#define ROW(i, ptr)                                                                                \
    do {                                                                                           \
        if ((i) < mr) {                                                                            \
            __m512 av = broadcast(ptr);                                                            \
            acc[i][0] = GEMM_MUL(acc[i][0], av, b0);                                               \
            acc[i][1] = GEMM_MUL(acc[i][1], av, b1);                                               \
        }                                                                                          \
    } while (0)

/* mr and packed are constants wherever this is inlined: the sums live in registers. */
static inline __attribute__((always_inline)) void micro(float *tile, const void *a,
                                                        int64_t row_bytes, const float *b,
                                                        int64_t units, const int mr,
                                                        const bool packed)
{
    __m512 acc[GEMM_MR][2];
    const int64_t rs = packed ? 4 : row_bytes, step = packed ? 4 * GEMM_MR : 4;
    const char *p0 = a, *p3 = p0 + 3 * rs, *p6 = p0 + 6 * rs, *p9 = p0 + 9 * rs;
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++)
        acc[i][0] = acc[i][1] = _mm512_setzero_ps();
    for (int64_t u = 0; u < units; u++) {
        __m512 b0 = _mm512_loadu_ps(b), b1 = _mm512_loadu_ps(b + 16);
        ROW(0, p0);
        ROW(1, p0 + rs);
        ROW(2, p0 + 2 * rs);
        ROW(3, p3);
        ROW(4, p3 + rs);
        ROW(5, p3 + 2 * rs);
        ROW(6, p6);
        ROW(7, p6 + rs);
        ROW(8, p6 + 2 * rs);
        ROW(9, p9);
        ROW(10, p9 + rs);
        ROW(11, p9 + 2 * rs);
        b += GEMM_NR;
        p0 += step;
        p3 += step;
        p6 += step;
        p9 += step;
    }
#pragma GCC unroll 12
    for (int i = 0; i < mr; i++) {
        _mm512_storeu_ps(tile + i * GEMM_NR, acc[i][0]);
        _mm512_storeu_ps(tile + i * GEMM_NR + 16, acc[i][1]);
    }
}

#define MICRO(n)                                                                                   \
    static void packed_##n(float *tile, const void *a, int64_t rb, const float *b, int64_t units)  \
    {                                                                                              \
        micro(tile, a, rb, b, units, n, true);                                                     \
    }                                                                                              \
    static void inplace_##n(float *tile, const void *a, int64_t rb, const float *b, int64_t units) \
    {                                                                                              \
        micro(tile, a, rb, b, units, n, false);                                                    \
    }

MICRO(1)
MICRO(2)
MICRO(3)
MICRO(4)
MICRO(5)
MICRO(6)
MICRO(7)
MICRO(8)
MICRO(9)
MICRO(10)
MICRO(11)
MICRO(12)

static gemm_micro_fn *const packed_table[GEMM_MR + 1] = {
    NULL,     packed_1, packed_2, packed_3, packed_4,  packed_5,  packed_6,
    packed_7, packed_8, packed_9, packed_10, packed_11, packed_12,
};

static gemm_micro_fn *const inplace_table[GEMM_MR + 1] = {
    NULL,      inplace_1, inplace_2, inplace_3,  inplace_4,  inplace_5,  inplace_6,
    inplace_7, inplace_8, inplace_9, inplace_10, inplace_11, inplace_12,
};

/* ---- packing ---- */

#if GEMM_BF16
typedef bf16 elem;
enum { PER_UNIT = 2 };

/* Up to 32 elements; n may be <= 0. */
static inline __m512i load_row(const elem *p, int64_t n)
{
    __mmask32 m = n >= 32 ? 0xffffffffu : n > 0 ? (1u << n) - 1u : 0;
    return _mm512_maskz_loadu_epi16(m, p);
}

/* Units 0..15 (part 0) or 16..31 (part 1) of the pairs (lo[i], hi[i]). */
static inline __m512i zip(__m512i lo, __m512i hi, int part)
{
    static const uint16_t index[2][32] = {
        {0,  32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
         8,  40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47},
        {16, 48, 17, 49, 18, 50, 19, 51, 20, 52, 21, 53, 22, 54, 23, 55,
         24, 56, 25, 57, 26, 58, 27, 59, 28, 60, 29, 61, 30, 62, 31, 63},
    };
    return _mm512_permutex2var_epi16(lo, _mm512_loadu_si512(index[part]), hi);
}
#else
typedef float elem;
enum { PER_UNIT = 1 };

static inline __m512i load_row16(const elem *p, int64_t n)
{
    __mmask16 m = n >= 16 ? 0xffff : n > 0 ? (__mmask16)((1u << n) - 1u) : 0;
    return _mm512_maskz_loadu_epi32(m, p);
}
#endif

/* Units of columns c..c+15 at rows k, k+1 (bf16) or k (f32); zeros beyond cols and K. */
static inline void load_units(__m512i *lo, __m512i *hi, const elem *src, int64_t ld, int64_t k,
                              int64_t K, int cols)
{
#if GEMM_BF16
    __m512i r0 = load_row(src + k * ld, cols);
    __m512i r1 = k + 1 < K ? load_row(src + (k + 1) * ld, cols) : _mm512_setzero_si512();
    *lo = zip(r0, r1, 0);
    *hi = zip(r0, r1, 1);
#else
    *lo = load_row16(src + k * ld, cols);
    *hi = cols > 16 ? load_row16(src + k * ld + 16, cols - 16) : _mm512_setzero_si512();
#endif
}

/* Units packed of one panel before the next: enough to write whole lines in a row, and few
 * enough that the rows they come from are read as that many streams. */
enum { BURST = 8 };

static void pack_b_nn(float *dst, int64_t stride, const void *src, int64_t ld, int64_t cols,
                      int64_t K)
{
    const int64_t burst = BURST * PER_UNIT;
    for (int64_t k0 = 0; k0 < K; k0 += burst, dst += BURST * GEMM_NR) {
        int64_t end = K < k0 + burst ? K : k0 + burst;
        float *panel = dst;
        for (int64_t c = 0; c < cols; c += GEMM_NR, panel += stride) {
            float *out = panel;
            int n = cols - c < GEMM_NR ? (int)(cols - c) : GEMM_NR;
            for (int64_t k = k0; k < end; k += PER_UNIT, out += GEMM_NR) {
                __m512i lo, hi;
                load_units(&lo, &hi, (const elem *)src + c, ld, k, K, n);
                _mm512_storeu_si512(out, lo);
                _mm512_storeu_si512(out + 16, hi);
            }
        }
    }
}

/* r[i][j] <-> r[j][i] of 16x16 units. */
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

/* 16 units from element k on of `rows` rows (<= 16), transposed: r[unit] holds the rows. */
static inline void load_transposed(__m512i r[16], const elem *src, int64_t ld, int64_t k,
                                   int64_t K, int rows)
{
    for (int i = 0; i < 16; i++) {
#if GEMM_BF16
        r[i] = i < rows ? load_row(src + i * ld + k, K - k) : _mm512_setzero_si512();
#else
        r[i] = i < rows ? load_row16(src + i * ld + k, K - k) : _mm512_setzero_si512();
#endif
    }
    transpose16(r);
}

static void pack_b_nt(float *dst, int64_t stride, const void *src, int64_t ld, int64_t cols,
                      int64_t K)
{
    int64_t units = (K + PER_UNIT - 1) / PER_UNIT;
    for (int half = 0; half < 2; half++) {
        int c = half * 16;
        for (int64_t u = 0; u < units; u += 16) {
            __m512i r[16];
            load_transposed(r, (const elem *)src + (c < cols ? c * ld : 0), ld, u * PER_UNIT, K,
                            (int)cols - c);
            for (int64_t i = 0; i < 16 && u + i < units; i++)
                _mm512_storeu_si512(dst + (u + i) * GEMM_NR + c, r[i]);
        }
    }
}

static inline __m512 unit_sum(__m512i u)
{
#if GEMM_BF16
    __m512i even = _mm512_slli_epi32(u, 16);
    __m512i odd = _mm512_and_si512(u, _mm512_set1_epi32((int)0xffff0000u));
    return _mm512_add_ps(_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd));
#else
    return _mm512_castsi512_ps(u);
#endif
}

/* The first MR units; two plain stores, as a masked one is slow on Zen 4 and a whole one
 * would write into the next panel. */
static inline void store_mr(float *p, __m512i u)
{
    _Static_assert(GEMM_MR == 12, "eight units and four");
    _mm256_storeu_si256((__m256i *)(void *)p, _mm512_castsi512_si256(u));
    _mm_storeu_si128((__m128i *)(void *)(p + 8), _mm512_extracti32x4_epi32(u, 2));
}

/* BURST units of one panel; returns their sum per row. */
static inline __m512 pack_a_burst(float *out, const elem *src, int64_t ld, int64_t k, int64_t end,
                                  int64_t K, int n)
{
    __m512 sum = _mm512_setzero_ps();
    for (; k < end; k += PER_UNIT, out += GEMM_MR) {
        __m512i lo, hi;
        load_units(&lo, &hi, src, ld, k, K, n);
        store_mr(out, lo);
        sum = _mm512_add_ps(sum, unit_sum(lo));
    }
    return sum;
}

static void pack_a_tn(float *dst, int64_t stride, const void *src, int64_t ld, int64_t rows,
                      int64_t K, float *sums)
{
    const int64_t burst = BURST * PER_UNIT;
    for (int64_t k = 0; k < K; k += burst, dst += BURST * GEMM_MR) {
        int64_t end = K < k + burst ? K : k + burst;
        float *panel = dst;
        for (int64_t i = 0; i < rows; i += GEMM_MR, panel += stride) {
            int n = rows - i < GEMM_MR ? (int)(rows - i) : GEMM_MR;
            __m512 sum = pack_a_burst(panel, (const elem *)src + i, ld, k, end, K, n);
            if (!sums)
                continue;
            vmask m = v_mask(n);
            v_store(sums + i, m, v_add(v_load(sums + i, m), sum));
        }
    }
}

static void pack_a_nt(float *dst, int64_t stride, const void *src, int64_t ld, int64_t rows,
                      int64_t K, float *sums)
{
    int64_t units = (K + PER_UNIT - 1) / PER_UNIT;
    for (int64_t i = 0; i < rows; i += GEMM_MR, dst += stride) {
        for (int64_t u = 0; u < units; u += 16) {
            __m512i r[16];
            int n = rows - i < GEMM_MR ? (int)(rows - i) : GEMM_MR;
            load_transposed(r, (const elem *)src + i * ld, ld, u * PER_UNIT, K, n);
            for (int64_t j = 0; j < 16 && u + j < units; j++)
                store_mr(dst + (u + j) * GEMM_MR, r[j]);
        }
    }
}

#include "kernels/cpu/gemm_store.h"
