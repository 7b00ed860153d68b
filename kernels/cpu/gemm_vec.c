/* The inner loops of gemm.h over units of four bytes, once per instruction set: f32 for AVX2
 * and AVX-512, bf16 where that has a product. */

#include "common/base/base.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/vec.h"

/* GEMM_MUL(acc, a, b) is acc + a*b per lane, a and b units. */
#ifdef __AVX512BF16__
#define GEMM_BF16 1
#define GEMM_MUL(acc, a, b)                                                                        \
    _mm512_dpbf16_ps(acc, (__m512bh)_mm512_castps_si512(a), (__m512bh)_mm512_castps_si512(b))
typedef bf16 elem;
enum { PER_UNIT = 2 };
#else
#define GEMM_BF16 0
#define GEMM_MUL(acc, a, b) v_fma(a, b, acc)
typedef float elem;
enum { PER_UNIT = 1 };
#endif

/* A row of finished sums. */
static inline __attribute__((always_inline)) void put_row(const struct gemm_out *out, int i,
                                                          const vf sums[2])
{
    float *c = out->c + i * out->ld;
    for (int j = 0; j < 2; j++) {
        vf v = sums[j];
        if (out->plus)
            v = v_add(v, v_load(out->plus + i * out->plus_ld + j * VL, v_mask(VL)));
        v_store(c + j * VL, v_mask(VL), v);
    }
}

/* Each gives micro, the packing of panels and CHUNK. */
#if ISA_BITS == 512
#include "kernels/cpu/gemm_avx512.inc"
#else
#include "kernels/cpu/gemm_avx2.inc"
#endif

#define MICRO(n)                                                                                   \
    static void packed_##n(const struct gemm_out *out, const void *a, int64_t rb, const float *b,  \
                           int64_t units)                                                          \
    {                                                                                              \
        micro(out, a, rb, b, units, n, true);                                                      \
    }                                                                                              \
    static void inplace_##n(const struct gemm_out *out, const void *a, int64_t rb, const float *b, \
                            int64_t units)                                                         \
    {                                                                                              \
        micro(out, a, rb, b, units, n, false);                                                     \
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

/* ---- without packing ----
 *
 * Few rows of A times rows of B, both as they lie.  Packing B would cost more than it saves
 * when its every element is used a few times only. */

/* The next vector of a row of which n elements are left, zeros beyond. */
static inline vf direct_load(const elem *p, int64_t n)
{
#if GEMM_BF16
    return _mm512_castsi512_ps(load_row(p, n));
#else
    return v_load(p, v_mask(n));
#endif
}

enum { DIRECT_COLS = 4 };

/* tile[0..3] = a · b[0..3] */
static inline void direct_dots(float *tile, const elem *a, const elem *const b[DIRECT_COLS],
                               int64_t k)
{
    vf acc[DIRECT_COLS] = {v_zero(), v_zero(), v_zero(), v_zero()};
    for (int64_t i = 0; i < k; i += VL * PER_UNIT) {
        vf x = direct_load(a + i, k - i);
        for (int c = 0; c < DIRECT_COLS; c++)
            acc[c] = GEMM_MUL(acc[c], x, direct_load(b[c] + i, k - i));
    }
    for (int c = 0; c < DIRECT_COLS; c++)
        tile[c] = v_sum(acc[c]);
}

static void direct(float *tile, const struct gemm_rows *a, const struct gemm_rows *b, int64_t k)
{
    for (int c = 0; c < b->n; c += DIRECT_COLS) {
        /* Columns beyond the last are computed as copies of it and not stored. */
        const elem *cols[DIRECT_COLS];
        for (int i = 0; i < DIRECT_COLS; i++)
            cols[i] = (const elem *)b->p + (c + i < b->n ? c + i : b->n - 1) * b->ld;
        for (int r = 0; r < a->n; r++)
            direct_dots(tile + r * GEMM_NR + c, (const elem *)a->p + r * a->ld, cols, k);
    }
}

/* ---- the epilogue ---- */

/* One vector of columns of one row; at is the element in C and aux. */
static inline __attribute__((always_inline)) void store_vec(const struct matmul *mm, vf v,
                                                            int64_t at, vmask m, bool add,
                                                            enum mm_epilogue epilogue,
                                                            enum dtype dt)
{
    switch (epilogue) {
    case MM_PLAIN:
        if (add)
            v = v_add(v, v_load((const float *)mm->c + at, m));
        break;
    case MM_GELU:
        if (mm->aux)
            v_store_dt(mm->aux, dt, at, m, v);
        v = v_gelu(v);
        break;
    case MM_DGELU:
        v = v_mul(v, v_gelu_grad(v_load_dt(mm->aux, dt, at, m)));
        break;
    }
    v_store_dt(mm->c, dt, at, m, v);
}

/* epilogue and dt are constants where this is inlined. */
static inline __attribute__((always_inline)) void store_as(const struct matmul *mm,
                                                           const struct gemm_tile *t,
                                                           enum mm_epilogue epilogue, enum dtype dt)
{
    const int64_t ldc = mm->ldc ? mm->ldc : mm->n;
    for (int c = 0; c < t->cols; c += VL) {
        const vmask m = v_mask(t->cols - c);
        const vf bias = t->bias && mm->bias ? v_load(mm->bias + t->j + c, m) : v_zero();
        const int64_t at = t->i * ldc + t->j + c;
        for (int r = 0; r < t->rows; r++) {
            const vf v = v_add(v_load(t->v + r * GEMM_NR + c, v_mask(VL)), bias);
            if (m == v_mask(VL))
                store_vec(mm, v, at + r * ldc, v_mask(VL), t->add, epilogue, dt);
            else
                store_vec(mm, v, at + r * ldc, m, t->add, epilogue, dt);
        }
    }
}

static void store_tile(const struct matmul *mm, const struct gemm_tile *t)
{
    const bool half = mm->c_dt == DT_BF16;
    switch (mm->epilogue) {
    case MM_PLAIN:
        half ? store_as(mm, t, MM_PLAIN, DT_BF16) : store_as(mm, t, MM_PLAIN, DT_F32);
        break;
    case MM_GELU:
        half ? store_as(mm, t, MM_GELU, DT_BF16) : store_as(mm, t, MM_GELU, DT_F32);
        break;
    case MM_DGELU:
        half ? store_as(mm, t, MM_DGELU, DT_BF16) : store_as(mm, t, MM_DGELU, DT_F32);
        break;
    }
}

const struct gemm_kernel FOR_ISA(gemm_kernel) = {
    .nr = GEMM_NR,
    .chunk = CHUNK,
    .packed = packed_table,
    .inplace = inplace_table,
    .pack_b_nn = pack_b_nn,
    .pack_b_nt = pack_b_nt,
    .pack_a_tn = pack_a_tn,
    .pack_a_nt = pack_a_nt,
    .direct = direct,
    .store = store_tile,
};
