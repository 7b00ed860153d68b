/* Our own matrix product for CPUs with AVX-512 (or AVX2), in the shape of Goto and
 * van de Geijn: panels of A and B are packed so that the inner loop reads both
 * in order, and the inner loop keeps a tile of MR x NR sums in registers.
 *
 * Everything is counted in "units" of four bytes along k: one f32, or a pair of
 * bf16 (the dot product instruction takes pairs).  An odd k is padded with zeros.
 *
 *   packed B: panels of NR columns, each [units][NR]      (zeros beyond n)
 *   packed A: panels of MR rows,    each [units][MR]      (zeros beyond m)
 *
 * The stride between panels is no multiple of a page, so that
 * writing one unit of all panels does not hit a single set of the first-level cache.
 *
 * Every sum runs over k in ascending order in chunks fixed by the shapes and the instruction
 * set, so the result depends on neither the number of threads nor the blocking. */
#ifndef KERNELS_CPU_GEMM_H
#define KERNELS_CPU_GEMM_H

#include "kernels/cpu/state.h"

/* Rows and columns of a tile.  The columns are two vectors of the instruction set in files that are
 * built once per set; gemm.c takes their number from the kernel. */
enum { GEMM_MR = 12 };
#if defined(ISA_BITS)
enum { GEMM_NR = ISA_BITS / 16 };
#endif
enum { GEMM_NR_MAX = 32 };

/* The destination of a tile's sums, NR wide: rows of c that are ld floats apart, with the rows of
 * `plus` added unless it is NULL.  plus may be c, or with plus_ld 0 one row for all. */
struct gemm_out {
    float *c;
    int64_t ld;
    const float *plus;
    int64_t plus_ld;
};

/* Computes a tile with the function's number of rows: A B over `units`.  A is packed, or in rows
 * `row_bytes` apart (units contiguous). */
typedef void gemm_micro_fn(const struct gemm_out *out, const void *a, int64_t row_bytes,
                           const float *b, int64_t units);

/* Packs `cols` columns of src (k, ld) into panels `stride` floats apart; or for NT one panel (cols
 * <= NR) from rows of length k.  dst is the first unit to write in the first panel. */
typedef void gemm_pack_b_fn(float *dst, int64_t stride, const void *src, int64_t ld, int64_t cols,
                            int64_t k);

/* Packs `rows` rows of the product into panels: columns of src (k, ld), whose sums over k are
 * added to sums (rows) unless that is NULL; or for NT rows of length k. */
typedef void gemm_pack_a_fn(float *dst, int64_t stride, const void *src, int64_t ld, int64_t rows,
                            int64_t k, float *sums);

/* Rows that are not packed, `ld` elements apart. */
struct gemm_rows {
    const void *p;
    int64_t ld;
    int n;
};

/* tile = A Bᵀ for rows of length k: at most MR of A and NR of B. */
typedef void gemm_direct_fn(float *tile, const struct gemm_rows *a, const struct gemm_rows *b,
                            int64_t k);

/* A finished tile, NR wide, for rows i.. and columns j.. of C. */
struct gemm_tile {
    const float *v;
    int64_t i, j;
    int rows, cols;
    bool add;  /* add to C: a later chunk of k, or accumulate */
    bool bias; /* the chunk that carries the bias */
};

typedef void gemm_store_fn(const struct matmul *mm, const struct gemm_tile *tile);

struct gemm_kernel {
    int nr;                        /* columns of a panel of B, and of a tile */
    int chunk;                     /* units of k packed at once in TN: both panels stay in cache */
    gemm_micro_fn *const *packed;  /* [rows], 1..MR */
    gemm_micro_fn *const *inplace; /* [rows] */
    gemm_pack_b_fn *pack_b_nn, *pack_b_nt;
    gemm_pack_a_fn *pack_a_tn, *pack_a_nt;
    gemm_direct_fn *direct;
    gemm_store_fn *store;
};

/* gemm_vec.c: f32, f32, and bf16. */
extern const struct gemm_kernel gemm_kernel_avx2, gemm_kernel_avx512, gemm_kernel_avx512bf16;

/* The smaller one. */
static inline int64_t gemm_min(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

/* a / b, rounded up. */
static inline int64_t gemm_div_up(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

/* Units of k elements. */
static inline int64_t gemm_units(enum dtype dt, int64_t k)
{
    return dt == DT_BF16 ? (k + 1) / 2 : k;
}

/* Does A have so few rows that packing B, whose rows are contiguous, does not pay? */
static inline bool gemm_is_direct(const struct matmul *mm)
{
    return mm->layout == MM_NT && mm->m <= 3;
}

/* The table's entry.  Without a kernel for bf16 the inputs are first widened to f32. */
int gemm_matmul(struct device *dev, const struct matmul *mm, struct stream *s);

#endif
