#include "kernels/cpu/gemm_amx.h"

#include "common/base/base.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/vec_avx512.h"

enum {
    SIDE = 32,                   /* rows and columns of a block of C: 2x2 tiles */
    STEP = 32,                   /* elements of k of a tile: 64 bytes of bf16 */
    PARTS = 3,                   /* of an f32: h, m, l */
    TILE_BYTES = 1024,           /* 16 rows of 64 */
    PART_BYTES = 2 * TILE_BYTES, /* of SIDE rows of A or columns of B */
    ROWS_BYTES = 1 << 20,        /* of A, packed for one task: half of a second cache */
    ROWS_MOST = 256,
    TN_BYTES = 192 << 10, /* of SIDE rows or columns, packed at once, where C is plain f32 */
    TASKS_EACH = 2,       /* of a thread, at least, where there are enough columns */
    LEAST = 32,           /* columns and k that are worth it */
};

/* A block of SIDE rows of A is packed as [step][part][16 rows and 16 rows][32 elements]; one of B
 * as [step][part][16 columns and 16 columns][16 pairs along k][16 columns].  Zeros fill up.  bf16
 * has one part. */
struct job {
    const struct matmul *mm;
    gemm_store_fn *store;
    bool bf16;
    int64_t step_bytes;
    int64_t lda, ldb;
    int64_t k0, kn, steps; /* this chunk of k */
    const void *a, *b;     /* at k0 */
    char *packed_b;        /* all panels; with `once` one for each thread */
    char *packed_a;        /* of a task, for each thread */
    int64_t rows, cols, col_tasks;
    bool once; /* one task needs a panel of B, and packs it */
};

/* ---- three bf16 for an f32 ---- */

/* Stores 16 pairs along k as parts, PART_BYTES apart. */
static inline void put_pairs(char *to, __m512 even, __m512 odd)
{
    static const uint16_t zip[32] = {0, 16, 1, 17, 2,  18, 3,  19, 4,  20, 5,  21, 6,  22, 7,  23,
                                     8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31};
    const __m512i order = _mm512_loadu_si512(zip), upper = _mm512_set1_epi32((int)0xffff0000);
    for (int p = 0; p < PARTS; p++, to += PART_BYTES) {
        const __m512i part = (__m512i)_mm512_cvtne2ps_pbh(odd, even);
        const __m512i pairs = _mm512_permutexvar_epi16(order, part);
        _mm512_store_si512(to, pairs);
        even = _mm512_sub_ps(even, _mm512_castsi512_ps(_mm512_slli_epi32(pairs, 16)));
        odd = _mm512_sub_ps(odd, _mm512_castsi512_ps(_mm512_and_si512(pairs, upper)));
    }
}

/* At most 16 rows of at most 16 elements, `ld` apart; zeros beyond. */
static inline void load_block(__m512i r[16], const float *p, int64_t ld, int64_t rows, int64_t cols)
{
    for (int i = 0; i < 16; i++)
        r[i] = _mm512_castps_si512(v_load(p + i * ld, v_mask(i < rows ? cols : 0)));
}

/* ---- packing f32: A has rows of 32 elements of k, B pairs along k of 16 columns ---- */

/* Row i of a block, elements k of one step in two vectors. */
static inline void put_a(char *step, int i, __m512 first, __m512 second)
{
    static const uint32_t even[16] = {0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30};
    const __m512i at = _mm512_loadu_si512(even), next = _mm512_add_epi32(at, _mm512_set1_epi32(1));
    put_pairs(step + i * 64, _mm512_permutex2var_ps(first, at, second),
              _mm512_permutex2var_ps(first, next, second));
}

/* From (m,k): rows i.. of A, at most SIDE. */
static void pack_a_rows_f32(const struct job *job, char *to, int64_t i, int64_t rows)
{
    for (int64_t s = 0; s < job->steps; s++, to += job->step_bytes) {
        const int64_t k = s * STEP;
        for (int r = 0; r < (rows > 16 ? SIDE : 16); r++) {
            const float *p = (const float *)job->a + (i + r) * job->lda + k;
            const int64_t n = r < rows ? job->kn - k : 0;
            put_a(to, r, v_load(p, v_mask(n)), v_load(p + 16, v_mask(n - 16)));
        }
    }
}

/* From (k,m); sums (SIDE): of the rows over k, added to, or NULL. */
static void pack_a_cols_f32(const struct job *job, char *to, int64_t i, int64_t rows, float *sums)
{
    for (int64_t s = 0; s < job->steps; s++, to += job->step_bytes) {
        for (int half = 0; half < 2; half++) {
            __m512i r[2][16];
            const int64_t k = s * STEP, cols = rows - 16 * half;
            __m512 sum = _mm512_setzero_ps();
            for (int part = 0; part < 2; part++) {
                const int64_t at = k + 16 * part;
                load_block(r[part], (const float *)job->a + at * job->lda + i + 16 * half, job->lda,
                           job->kn - at, cols);
                for (int n = 0; n < 16; n++)
                    sum = _mm512_add_ps(sum, _mm512_castsi512_ps(r[part][n]));
                transpose16(r[part]);
            }
            if (sums)
                _mm512_storeu_ps(sums + 16 * half,
                                 _mm512_add_ps(_mm512_loadu_ps(sums + 16 * half), sum));
            for (int n = 0; n < 16; n++)
                put_a(to, 16 * half + n, _mm512_castsi512_ps(r[0][n]),
                      _mm512_castsi512_ps(r[1][n]));
        }
    }
}

/* A step of SIDE columns, from (k,n). */
static void pack_b_cols_f32(const struct job *job, char *to, int64_t k, int64_t j)
{
    for (int u = 0; u < STEP / 2; u++) {
        const float *even = (const float *)job->b + (k + 2 * u) * job->ldb + j,
                    *odd = even + job->ldb;
        for (int half = 0; half < 2; half++) {
            const int64_t cols = job->mm->n - j - 16 * half, left = job->kn - k - 2 * u;
            put_pairs(to + half * TILE_BYTES + u * 64,
                      v_load(even + 16 * half, v_mask(left > 0 ? cols : 0)),
                      v_load(odd + 16 * half, v_mask(left > 1 ? cols : 0)));
        }
    }
}

/* The same, from (n,k). */
static void pack_b_rows_f32(const struct job *job, char *to, int64_t k, int64_t j)
{
    for (int half = 0; half < 2; half++)
        for (int part = 0; part < 2; part++) {
            __m512i r[16];
            const int64_t at = k + 16 * part, first = j + 16 * half;
            load_block(r, (const float *)job->b + first * job->ldb + at, job->ldb,
                       job->mm->n - first, job->kn - at);
            transpose16(r);
            for (int u = 0; u < 8; u++)
                put_pairs(to + half * TILE_BYTES + (8 * part + u) * 64,
                          _mm512_castsi512_ps(r[2 * u]), _mm512_castsi512_ps(r[2 * u + 1]));
        }
}

/* ---- packing bf16 ---- */

static inline __m512i load_row(const bf16 *p, int64_t n)
{
    return _mm512_maskz_loadu_epi16(n >= 32 ? 0xffffffffu : n > 0 ? (1u << n) - 1u : 0u, p);
}

/* 16 pairs of two rows that are ld apart; n: columns; left: rows. */
static inline __m512i load_pairs(const bf16 *p, int64_t ld, int64_t n, int64_t left)
{
    const __m256i even = _mm256_maskz_loadu_epi16(v_mask(left > 0 ? n : 0), p);
    const __m256i odd = _mm256_maskz_loadu_epi16(v_mask(left > 1 ? n : 0), p + ld);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(even),
                           _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
}

static void pack_a_rows_bf16(const struct job *job, char *to, int64_t i, int64_t rows)
{
    for (int64_t s = 0; s < job->steps; s++, to += PART_BYTES) {
        const int64_t k = s * STEP;
        for (int r = 0; r < (rows > 16 ? SIDE : 16); r++)
            _mm512_store_si512(to + r * 64, load_row((const bf16 *)job->a + (i + r) * job->lda + k,
                                                     r < rows ? job->kn - k : 0));
    }
}

static void pack_a_cols_bf16(const struct job *job, char *to, int64_t i, int64_t rows, float *sums)
{
    const __m512i upper = _mm512_set1_epi32((int)0xffff0000);
    for (int64_t s = 0; s < job->steps; s++, to += PART_BYTES)
        for (int half = 0; half < 2; half++) {
            __m512i r[16];
            __m512 sum = _mm512_setzero_ps();
            for (int u = 0; u < 16; u++) {
                const int64_t k = s * STEP + 2 * u;
                r[u] = load_pairs((const bf16 *)job->a + k * job->lda + i + 16 * half, job->lda,
                                  rows - 16 * half, job->kn - k);
                sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_slli_epi32(r[u], 16)));
                sum = _mm512_add_ps(sum, _mm512_castsi512_ps(_mm512_and_si512(r[u], upper)));
            }
            if (sums)
                _mm512_storeu_ps(sums + 16 * half,
                                 _mm512_add_ps(_mm512_loadu_ps(sums + 16 * half), sum));
            transpose16(r);
            for (int n = 0; n < 16; n++)
                _mm512_store_si512(to + (16 * half + n) * 64, r[n]);
        }
}

static void pack_b_cols_bf16(const struct job *job, char *to, int64_t k, int64_t j)
{
    for (int half = 0; half < 2; half++)
        for (int u = 0; u < STEP / 2; u++)
            _mm512_store_si512(
                to + half * TILE_BYTES + u * 64,
                load_pairs((const bf16 *)job->b + (k + 2 * u) * job->ldb + j + 16 * half, job->ldb,
                           job->mm->n - j - 16 * half, job->kn - k - 2 * u));
}

static void pack_b_rows_bf16(const struct job *job, char *to, int64_t k, int64_t j)
{
    for (int half = 0; half < 2; half++) {
        __m512i r[16];
        const int64_t first = j + 16 * half;
        for (int i = 0; i < 16; i++)
            r[i] = load_row((const bf16 *)job->b + (first + i) * job->ldb + k,
                            first + i < job->mm->n ? job->kn - k : 0);
        transpose16(r);
        for (int u = 0; u < 16; u++)
            _mm512_store_si512(to + half * TILE_BYTES + u * 64, r[u]);
    }
}

/* ---- packing either ---- */

/* SIDE columns of B, all steps. */
static void pack_b_panel(const struct job *job, char *to, int64_t j)
{
    const bool rows = job->mm->layout == MM_NT;
    for (int64_t s = 0; s < job->steps; s++, to += job->step_bytes)
        if (job->bf16)
            (rows ? pack_b_rows_bf16 : pack_b_cols_bf16)(job, to, s * STEP, j);
        else
            (rows ? pack_b_rows_f32 : pack_b_cols_f32)(job, to, s * STEP, j);
}

static void pack_b_panels(void *arg, int task, int thread)
{
    const struct job *job = arg;
    pack_b_panel(job, job->packed_b + task * job->steps * job->step_bytes, (int64_t)task * SIDE);
}

/* From (k,n): one step of all columns, which reads whole rows of memory. */
static void pack_b_step(void *arg, int task, int thread)
{
    const struct job *job = arg;
    char *to = job->packed_b + (int64_t)task * job->step_bytes;
    for (int64_t j = 0; j < job->mm->n; j += SIDE, to += job->steps * job->step_bytes)
        (job->bf16 ? pack_b_cols_bf16 : pack_b_cols_f32)(job, to, (int64_t)task * STEP, j);
}

/* ---- the product ---- */

static void configure(void)
{
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t row_bytes[16];
        uint8_t rows[16];
    } config = {.palette = 1};
    for (int t = 0; t < 8; t++) {
        config.row_bytes[t] = 64;
        config.rows[t] = 16;
    }
    _tile_loadconfig(&config);
}

/* Tiles 4 and 5: a part of A; 6 and 7: of B.  Those of the lower rows only where there are any. */
#define LOAD_A(p)                                                                                  \
    do {                                                                                           \
        _tile_loadd(4, p, 64);                                                                     \
        if (tall)                                                                                  \
            _tile_loadd(5, (p) + TILE_BYTES, 64);                                                  \
    } while (0)
#define LOAD_B(p)                                                                                  \
    do {                                                                                           \
        _tile_loadd(6, p, 64);                                                                     \
        _tile_loadd(7, (p) + TILE_BYTES, 64);                                                      \
    } while (0)
#define MULTIPLY()                                                                                 \
    do {                                                                                           \
        _tile_dpbf16ps(0, 4, 6);                                                                   \
        _tile_dpbf16ps(1, 4, 7);                                                                   \
        if (tall) {                                                                                \
            _tile_dpbf16ps(2, 5, 6);                                                               \
            _tile_dpbf16ps(3, 5, 7);                                                               \
        }                                                                                          \
    } while (0)

/* c (SIDE,SIDE) = the block's product; tall: of more than 16 rows. */
static inline __attribute__((always_inline)) void multiply_block(float *c, const char *a,
                                                                 const char *b, int64_t steps,
                                                                 const bool tall, const int parts)
{
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t s = 0; s < steps; s++, a += parts * PART_BYTES, b += parts * PART_BYTES) {
        LOAD_A(a);
        LOAD_B(b);
        MULTIPLY(); /* hh */
        if (parts == 1)
            continue;
        LOAD_B(b + PART_BYTES);
        MULTIPLY(); /* hm */
        LOAD_B(b + 2 * PART_BYTES);
        MULTIPLY(); /* hl */
        LOAD_A(a + 2 * PART_BYTES);
        LOAD_B(b);
        MULTIPLY(); /* lh */
        LOAD_A(a + PART_BYTES);
        MULTIPLY(); /* mh */
        LOAD_B(b + PART_BYTES);
        MULTIPLY(); /* mm */
    }
    _tile_stored(0, c, SIDE * sizeof(float));
    _tile_stored(1, c + 16, SIDE * sizeof(float));
    if (!tall)
        return;
    _tile_stored(2, c + 16 * SIDE, SIDE * sizeof(float));
    _tile_stored(3, c + 16 * SIDE + 16, SIDE * sizeof(float));
}

static void multiply(const struct job *job, float *c, const char *a, const char *b, bool tall)
{
    if (job->bf16 && tall)
        multiply_block(c, a, b, job->steps, true, 1);
    else if (job->bf16)
        multiply_block(c, a, b, job->steps, false, 1);
    else if (tall)
        multiply_block(c, a, b, job->steps, true, PARTS);
    else
        multiply_block(c, a, b, job->steps, false, PARTS);
}

static void pack_a(const struct job *job, char *to, int64_t i, int64_t rows, bool sums)
{
    const struct matmul *mm = job->mm;
    for (int64_t r = 0; r < rows; r += SIDE, to += job->steps * job->step_bytes) {
        float sum[SIDE] = {0};
        const int64_t n = gemm_min(SIDE, rows - r);
        if (mm->layout != MM_TN)
            (job->bf16 ? pack_a_rows_bf16 : pack_a_rows_f32)(job, to, i + r, n);
        else
            (job->bf16 ? pack_a_cols_bf16 : pack_a_cols_f32)(job, to, i + r, n, sums ? sum : NULL);
        for (int64_t k = 0; sums && k < n; k++)
            mm->a_colsum[i + r + k] += sum[k];
    }
}

static void product_task(void *arg, int task, int thread)
{
    const struct job *job = arg;
    const struct matmul *mm = job->mm;
    const int64_t row0 = task / job->col_tasks * job->rows,
                  row1 = gemm_min(mm->m, row0 + job->rows);
    const int64_t col0 = task % job->col_tasks * job->cols,
                  col1 = gemm_min(mm->n, col0 + job->cols);
    const int64_t panel = job->steps * job->step_bytes;
    char *a = job->packed_a + thread * (job->rows / SIDE) * panel;
    _Alignas(64) float block[SIDE * SIDE];
    pack_a(job, a, row0, row1 - row0, mm->a_colsum && col0 == 0);
    configure();
    for (int64_t j = col0; j < col1; j += SIDE) {
        char *b = job->packed_b + (job->once ? thread : j / SIDE) * panel;
        if (job->once)
            pack_b_panel(job, b, j);
        for (int64_t i = row0; i < row1; i += SIDE) {
            const char *rows = a + (i - row0) / SIDE * panel;
            multiply(job, block, rows, b, row1 - i > 16);
            job->store(mm, &(struct gemm_tile){
                               .v = block,
                               .i = i,
                               .j = j,
                               .rows = (int)gemm_min(SIDE, row1 - i),
                               .cols = (int)gemm_min(SIDE, col1 - j),
                               .add = mm->accumulate || job->k0 > 0,
                               .bias = job->k0 == 0,
                           });
        }
    }
    _tile_release();
}

/* Sets the rows of a task by the size of a cache, its columns so that all threads have tasks. */
static void plan(struct job *job, int threads)
{
    const struct matmul *mm = job->mm;
    const int64_t fit = ROWS_BYTES / (gemm_div_up(job->kn, STEP) * job->step_bytes) * SIDE;
    job->rows = fit < SIDE ? SIDE : gemm_min(fit, ROWS_MOST);
    job->rows = gemm_min(job->rows, gemm_div_up(mm->m, SIDE) * SIDE);
    const int64_t row_tasks = gemm_div_up(mm->m, job->rows), panels = gemm_div_up(mm->n, SIDE);
    const int64_t want = threads > 1 ? gemm_div_up(TASKS_EACH * (int64_t)threads, row_tasks) : 1;
    job->cols = gemm_div_up(panels, gemm_min(want, panels)) * SIDE;
    job->col_tasks = gemm_div_up(mm->n, job->cols);
    job->once = row_tasks == 1;
}

static void run_chunk(struct job *job, struct cpu_team *team)
{
    const struct matmul *mm = job->mm;
    job->steps = gemm_div_up(job->kn, STEP);
    if (mm->layout == MM_NT && !job->once)
        cpu_team_run(team, pack_b_panels, job, (int)gemm_div_up(mm->n, SIDE));
    else if (!job->once)
        cpu_team_run(team, pack_b_step, job, (int)job->steps);
    cpu_team_run(team, product_task, job, (int)(gemm_div_up(mm->m, job->rows) * job->col_tasks));
}

int gemm_amx_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    struct cpu_state *st = cpu_state(dev);
    if (mm->n < LEAST || mm->k < LEAST || gemm_is_direct(mm))
        return gemm_matmul(dev, mm, s);
    struct job job = {
        .mm = mm,
        .store = st->gemm[mm->dt]->store,
        .bf16 = mm->dt == DT_BF16,
        .step_bytes = (mm->dt == DT_BF16 ? 1 : PARTS) * PART_BYTES,
        .lda = mm->lda ? mm->lda : (mm->layout == MM_TN ? mm->m : mm->k),
        .ldb = mm->ldb ? mm->ldb : (mm->layout == MM_NT ? mm->k : mm->n),
    };
    /* Only a plain f32 sum can be continued in C by a later chunk. */
    const bool chunked = mm->layout == MM_TN && mm->epilogue == MM_PLAIN && mm->c_dt == DT_F32;
    const int64_t chunk = chunked ? gemm_min(mm->k, TN_BYTES / job.step_bytes * STEP) : mm->k;
    job.kn = chunk;
    plan(&job, dev->threads);
    const int64_t panel = gemm_div_up(chunk, STEP) * job.step_bytes;
    const int64_t b_panels = job.once ? dev->threads : gemm_div_up(mm->n, SIDE);
    const int64_t b_bytes = b_panels * panel, a_bytes = job.rows / SIDE * panel;
    job.packed_b = cpu_scratch(st, SCRATCH_PACKED, (size_t)(b_bytes + dev->threads * a_bytes));
    if (!job.packed_b)
        return -ENOMEM;
    job.packed_a = job.packed_b + b_bytes;
    const int64_t size = (int64_t)dtype_bytes(mm->dt);
    for (job.k0 = 0; job.k0 < mm->k; job.k0 += chunk) {
        job.kn = gemm_min(chunk, mm->k - job.k0);
        job.a = (const char *)mm->a + (mm->layout == MM_TN ? job.k0 * job.lda : job.k0) * size;
        job.b = (const char *)mm->b + (mm->layout == MM_NT ? job.k0 : job.k0 * job.ldb) * size;
        run_chunk(&job, st->team);
    }
    return 0;
}
