/* The same panels and tiles for CPUs with AVX2: a tile of 12x32 is four of 6x16, which
 * is what 16 registers hold. */
#include <string.h>

#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec_avx2.h"

#include "kernels/cpu/vec_math.h"

enum { SUB = 6 };

/* rows <= SUB; a constant where it is inlined. */
static inline __attribute__((always_inline)) void sub_tile(float *tile, const float *a, int64_t rs,
                                                           int64_t us, const float *b,
                                                           int64_t units, const int rows)
{
    __m256 acc[SUB][2];
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++)
        acc[i][0] = acc[i][1] = _mm256_setzero_ps();
    for (int64_t u = 0; u < units; u++, a += us, b += GEMM_NR) {
        __m256 b0 = _mm256_loadu_ps(b), b1 = _mm256_loadu_ps(b + 8);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            __m256 av = _mm256_broadcast_ss(a + i * rs);
            acc[i][0] = _mm256_fmadd_ps(av, b0, acc[i][0]);
            acc[i][1] = _mm256_fmadd_ps(av, b1, acc[i][1]);
        }
    }
#pragma GCC unroll 6
    for (int i = 0; i < rows; i++) {
        _mm256_storeu_ps(tile + i * GEMM_NR, acc[i][0]);
        _mm256_storeu_ps(tile + i * GEMM_NR + 8, acc[i][1]);
    }
}

static void tile_rows(float *tile, const float *a, int64_t rs, int64_t us, const float *b,
                      int64_t units, int rows)
{
    for (int c = 0; c < GEMM_NR; c += 16) {
        int i = 0;
        for (; i + SUB <= rows; i += SUB)
            sub_tile(tile + i * GEMM_NR + c, a + i * rs, rs, us, b + c, units, SUB);
        for (; i < rows; i++)
            sub_tile(tile + i * GEMM_NR + c, a + i * rs, rs, us, b + c, units, 1);
    }
}

#define MICRO(n)                                                                                   \
    static void packed_##n(float *tile, const void *a, int64_t rb, const float *b, int64_t units)  \
    {                                                                                              \
        tile_rows(tile, a, 1, GEMM_MR, b, units, n);                                               \
    }                                                                                              \
    static void inplace_##n(float *tile, const void *a, int64_t rb, const float *b, int64_t units) \
    {                                                                                              \
        tile_rows(tile, a, rb / 4, 1, b, units, n);                                                \
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
    NULL,     packed_1, packed_2, packed_3,  packed_4,  packed_5,  packed_6,
    packed_7, packed_8, packed_9, packed_10, packed_11, packed_12,
};

static gemm_micro_fn *const inplace_table[GEMM_MR + 1] = {
    NULL,      inplace_1, inplace_2, inplace_3,  inplace_4,  inplace_5,  inplace_6,
    inplace_7, inplace_8, inplace_9, inplace_10, inplace_11, inplace_12,
};

static void pack_b_nn(float *dst, int64_t stride, const void *src, int64_t ld, int64_t cols,
                      int64_t K)
{
    const float *from = src;
    for (int64_t k = 0; k < K; k++, from += ld) {
        for (int64_t c = 0; c < cols; c += GEMM_NR) {
            float *out = dst + c / GEMM_NR * stride + k * GEMM_NR;
            for (int64_t i = 0; i < GEMM_NR; i++)
                out[i] = c + i < cols ? from[c + i] : 0;
        }
    }
}

static void pack_b_nt(float *dst, int64_t stride, const void *src, int64_t ld, int64_t cols,
                      int64_t K)
{
    const float *from = src;
    for (int64_t k = 0; k < K; k++)
        for (int64_t c = 0; c < GEMM_NR; c++)
            dst[k * GEMM_NR + c] = c < cols ? from[c * ld + k] : 0;
}

static void pack_a_tn(float *dst, int64_t stride, const void *src, int64_t ld, int64_t rows,
                      int64_t K, float *sums)
{
    const float *from = src;
    for (int64_t k = 0; k < K; k++, from += ld) {
        for (int64_t i = 0; i < rows; i += GEMM_MR) {
            float *out = dst + i / GEMM_MR * stride + k * GEMM_MR;
            for (int64_t r = 0; r < GEMM_MR; r++)
                out[r] = i + r < rows ? from[i + r] : 0;
        }
        for (int64_t i = 0; sums && i < rows; i++)
            sums[i] += from[i];
    }
}

static void pack_a_nt(float *dst, int64_t stride, const void *src, int64_t ld, int64_t rows,
                      int64_t K, float *sums)
{
    const float *from = src;
    for (int64_t i = 0; i < rows; i += GEMM_MR, dst += stride)
        for (int64_t k = 0; k < K; k++)
            for (int64_t r = 0; r < GEMM_MR; r++)
                dst[k * GEMM_MR + r] = i + r < rows ? from[(i + r) * ld + k] : 0;
}

typedef float elem;
enum { PER_UNIT = 1 };
#define GEMM_MUL(acc, a, b) v_fma(a, b, acc)

static inline vf direct_load(const elem *p, int64_t n)
{
    return v_load(p, v_mask(n));
}

#include "kernels/cpu/gemm_direct.inc"
#include "kernels/cpu/gemm_store.inc"

const struct gemm_kernel gemm_f32_avx2 = {
    .packed = packed_table,
    .inplace = inplace_table,
    .pack_b_nn = pack_b_nn,
    .pack_b_nt = pack_b_nt,
    .pack_a_tn = pack_a_tn,
    .pack_a_nt = pack_a_nt,
    .direct = direct,
    .store = store_tile,
};
