#include "kernels/cpu/gemm.h"

#include "kernels/cpu/team.h"
#include "kernels/cpu/ref.h"

enum {
    ROWS = 96,     /* rows of a task: eight tiles share a panel of B in the first cache */
    TN_COLS = 384, /* columns of a task in TN, at most: A's panels are read again for each panel */
    SLAB = 32,     /* units of k that one packing task takes: whole rows of memory */
    LINE = 16      /* floats; added to the strides of panels */
};

struct job {
    const struct matmul *mm;
    const struct gemm_kernel *kern;
    int64_t lda, ldb;           /* elements */
    int64_t units;              /* of k, in this chunk */
    int64_t k0, kn;             /* this chunk's elements of k */
    const char *a;              /* at k0 */
    const char *b;              /* at k0 */
    float *packed_a;            /* NULL: A is read in place */
    float *packed_b;            /* NULL: so is B, in the rows of NT */
    float *slab_sums;           /* (slabs, m): column sums of A per packing task, or NULL */
    int64_t a_stride, b_stride; /* floats from panel to panel */
    int64_t cols;               /* columns of a task, a multiple of NR */
    int64_t col_tasks;          /* tasks side by side */
};

/* Elements of k of one packing task along k. */
static int64_t slab_of(const struct matmul *mm)
{
    return mm->dt == DT_BF16 ? 2 * SLAB : SLAB;
}

/* B as (n,k): one panel. */
static void pack_b_panel(void *arg, int task, int thread)
{
    const struct job *job = arg;
    const struct matmul *mm = job->mm;
    int64_t j = (int64_t)task * job->kern->nr;
    job->kern->pack_b_nt(job->packed_b + task * job->b_stride, 0,
                         job->b + j * job->ldb * (int64_t)dtype_bytes(mm->dt), job->ldb,
                         gemm_min(job->kern->nr, mm->n - j), job->kn);
}

/* B as (k,n): some rows of it, into all panels. */
static void pack_b_slab(void *arg, int task, int thread)
{
    const struct job *job = arg;
    const struct matmul *mm = job->mm;
    int64_t k = task * slab_of(mm);
    job->kern->pack_b_nn(job->packed_b + (int64_t)task * SLAB * job->kern->nr, job->b_stride,
                         job->b + k * job->ldb * (int64_t)dtype_bytes(mm->dt), job->ldb, mm->n,
                         gemm_min(slab_of(mm), job->kn - k));
}

/* A as (m,k): one block of rows. */
static void pack_a_rows(void *arg, int task, int thread)
{
    const struct job *job = arg;
    const struct matmul *mm = job->mm;
    int64_t i = (int64_t)task * ROWS;
    job->kern->pack_a_nt(job->packed_a + i / GEMM_MR * job->a_stride, job->a_stride,
                         job->a + i * job->lda * (int64_t)dtype_bytes(mm->dt), job->lda,
                         gemm_min(ROWS, mm->m - i), job->kn, NULL);
}

/* A as (k,m): some rows of it, into all panels. */
static void pack_a_slab(void *arg, int task, int thread)
{
    const struct job *job = arg;
    const struct matmul *mm = job->mm;
    int64_t k = task * slab_of(mm);
    float *sums = job->slab_sums ? job->slab_sums + task * mm->m : NULL;
    if (sums)
        memset(sums, 0, (size_t)mm->m * sizeof *sums);
    job->kern->pack_a_tn(job->packed_a + (int64_t)task * SLAB * GEMM_MR, job->a_stride,
                         job->a + k * job->lda * (int64_t)dtype_bytes(mm->dt), job->lda, mm->m,
                         gemm_min(slab_of(mm), job->kn - k), sums);
}

/* Prefetches the lines of C and aux that a tile will touch, so that they are there when its sums
 * are done. */
static void prefetch_tile(const struct matmul *mm, int64_t i, int64_t j, int rows, int cols)
{
    int64_t size = (int64_t)dtype_bytes(mm->c_dt), ldc = mm->ldc ? mm->ldc : mm->n;
    for (int64_t at = (i * ldc + j) * size; rows > 0; rows--, at += ldc * size) {
        for (int64_t line = 0; line < cols * size; line += 64) {
            __builtin_prefetch((const char *)mm->c + at + line, 1, 3);
            if (mm->aux)
                __builtin_prefetch((const char *)mm->aux + at + line, 1, 3);
        }
    }
}

/* True if the sums of a tile can go to C from the registers: whole rows of f32, with at most one
 * addition. */
static bool goes_straight(const struct job *job, const struct gemm_tile *t)
{
    const struct matmul *mm = job->mm;
    return mm->epilogue == MM_PLAIN && mm->c_dt == DT_F32 && t->cols == job->kern->nr &&
           job->packed_b && !(t->add && t->bias && mm->bias);
}

static struct gemm_out straight(const struct matmul *mm, const struct gemm_tile *t)
{
    const int64_t ldc = mm->ldc ? mm->ldc : mm->n;
    float *c = (float *)mm->c + t->i * ldc + t->j;
    const float *bias = t->bias && mm->bias ? mm->bias + t->j : NULL;
    return (struct gemm_out){c, ldc, t->add ? c : bias, t->add ? ldc : 0};
}

/* The sums of a tile. */
static void product_tile(const struct job *job, const struct gemm_out *out,
                         const struct gemm_tile *t)
{
    int64_t size = (int64_t)dtype_bytes(job->mm->dt), row_bytes = job->lda * size;
    if (!job->packed_b) {
        job->kern->direct(out->c, &(struct gemm_rows){job->a + t->i * row_bytes, job->lda, t->rows},
                          &(struct gemm_rows){job->b + t->j * job->ldb * size, job->ldb, t->cols},
                          job->kn);
        return;
    }
    const float *b = job->packed_b + t->j / job->kern->nr * job->b_stride;
    if (job->packed_a)
        job->kern->packed[t->rows](out, job->packed_a + t->i / GEMM_MR * job->a_stride, 0, b,
                                   job->units);
    else
        job->kern->inplace[t->rows](out, job->a + t->i * row_bytes, row_bytes, b, job->units);
}

/* One block of rows times one block of columns: B's panel outside, as it is the larger. */
static void product_task(void *arg, int task, int thread)
{
    const struct job *job = arg;
    const struct matmul *mm = job->mm;
    const int nr = job->kern->nr;
    _Alignas(64) float tile[GEMM_MR * GEMM_NR_MAX] = {0};
    int64_t row0 = task / job->col_tasks * ROWS, row1 = gemm_min(mm->m, row0 + ROWS);
    int64_t col0 = task % job->col_tasks * job->cols, col1 = gemm_min(mm->n, col0 + job->cols);
    for (int64_t j = col0; j < col1; j += nr) {
        for (int64_t i = row0; i < row1; i += GEMM_MR) {
            struct gemm_tile t = {
                .v = tile,
                .i = i,
                .j = j,
                .rows = (int)gemm_min(GEMM_MR, row1 - i),
                .cols = (int)gemm_min(nr, col1 - j),
                .add = mm->accumulate || job->k0 > 0,
                .bias = job->k0 == 0,
            };
            prefetch_tile(mm, i, j, t.rows, nr);
            const bool whole = goes_straight(job, &t);
            struct gemm_out out = whole ? straight(mm, &t) : (struct gemm_out){.c = tile, .ld = nr};
            product_tile(job, &out, &t);
            if (!whole)
                job->kern->store(mm, &t);
        }
    }
}

/* A can be read where it lies when its rows are whole units, and when a dozen of
 * them do not fall on the same lines of the first cache. */
static bool readable_in_place(const struct matmul *mm, int64_t lda, int nr)
{
    int64_t row_bytes = lda * (int64_t)dtype_bytes(mm->dt);
    return mm->layout != MM_TN && (mm->dt == DT_F32 || mm->k % 2 == 0) &&
           (row_bytes % 4096 != 0 || mm->n <= 2 * nr);
}

/* Enough tasks for every thread to even out, but wide ones first. */
static void plan_columns(struct job *job, int threads)
{
    int64_t row_tasks = gemm_div_up(job->mm->m, ROWS), nr = job->kern->nr;
    int64_t panels = gemm_div_up(job->mm->n, nr);
    int64_t want = threads > 1 ? gemm_div_up(24 * (int64_t)threads, row_tasks) : 1;
    int64_t per_task = gemm_div_up(panels, gemm_min(want, panels));
    if (job->mm->layout == MM_TN)
        per_task = gemm_min(per_task, TN_COLS / nr);
    job->cols = per_task * nr;
    job->col_tasks = gemm_div_up(panels, per_task);
}

static void run_chunk(struct job *job, struct cpu_team *team)
{
    const struct matmul *mm = job->mm;
    int row_tasks = (int)gemm_div_up(mm->m, ROWS), slabs = (int)gemm_div_up(job->units, SLAB);
    if (mm->layout == MM_NT && job->packed_b)
        cpu_team_run(team, pack_b_panel, job, (int)gemm_div_up(mm->n, job->kern->nr));
    else if (mm->layout != MM_NT)
        cpu_team_run(team, pack_b_slab, job, slabs);
    if (mm->layout == MM_TN)
        cpu_team_run(team, pack_a_slab, job, slabs);
    else if (job->packed_a)
        cpu_team_run(team, pack_a_rows, job, row_tasks);
    for (int k = 0; job->slab_sums && k < slabs; k++)
        for (int64_t i = 0; i < mm->m; i++)
            mm->a_colsum[i] += job->slab_sums[k * mm->m + i];
    cpu_team_run(team, product_task, job, row_tasks * (int)job->col_tasks);
}

/* Places the packed panels in the scratch, if there are any; false without memory. */
static bool plan_memory(struct job *job, struct cpu_state *st, int64_t units)
{
    const struct matmul *mm = job->mm;
    if (gemm_is_direct(mm))
        return true;
    const int nr = job->kern->nr;
    bool pack_a = !readable_in_place(mm, job->lda, job->kern->nr);
    job->a_stride = units * GEMM_MR + LINE;
    job->b_stride = units * nr + LINE;
    int64_t a = pack_a ? gemm_div_up(mm->m, GEMM_MR) * job->a_stride : 0;
    int64_t b = gemm_div_up(mm->n, nr) * job->b_stride;
    int64_t sums = mm->a_colsum ? gemm_div_up(units, SLAB) * mm->m : 0;
    a = gemm_div_up(a, LINE) * LINE;
    float *scratch = cpu_scratch(st, SCRATCH_PACKED, (size_t)(a + b + sums) * sizeof *scratch);
    if (!scratch)
        return false;
    job->packed_a = pack_a ? scratch : NULL;
    job->packed_b = scratch + a;
    job->slab_sums = mm->a_colsum ? scratch + a + b : NULL;
    return true;
}

static int multiply(struct device *dev, const struct matmul *mm)
{
    struct cpu_state *st = cpu_state(dev);
    struct job job = {
        .mm = mm,
        .kern = st->gemm[mm->dt],
        .lda = mm->lda ? mm->lda : (mm->layout == MM_TN ? mm->m : mm->k),
        .ldb = mm->ldb ? mm->ldb : (mm->layout == MM_NT ? mm->k : mm->n),
    };
    /* Only a plain f32 sum can be continued in C by a later chunk. */
    bool chunked = mm->layout == MM_TN && mm->epilogue == MM_PLAIN && mm->c_dt == DT_F32;
    int64_t per_unit = mm->dt == DT_BF16 ? 2 : 1;
    int64_t chunk = chunked ? gemm_min(mm->k, job.kern->chunk * per_unit) : mm->k;
    if (!plan_memory(&job, st, gemm_units(mm->dt, chunk)))
        return -ENOMEM;
    plan_columns(&job, dev->threads);
    size_t size = dtype_bytes(mm->dt);
    for (job.k0 = 0; job.k0 < mm->k; job.k0 += chunk) {
        job.kn = gemm_min(chunk, mm->k - job.k0);
        job.units = gemm_units(mm->dt, job.kn);
        job.a =
            (const char *)mm->a + (size_t)(mm->layout == MM_TN ? job.k0 * job.lda : job.k0) * size;
        job.b =
            (const char *)mm->b + (size_t)(mm->layout == MM_NT ? job.k0 : job.k0 * job.ldb) * size;
        run_chunk(&job, st->team);
    }
    return 0;
}

/* Copies of bf16 inputs in f32, for CPUs without a bf16 product. */
static int widen(struct device *dev, struct matmul *mm)
{
    struct cpu_state *st = cpu_state(dev);
    bool tn = mm->layout == MM_TN, nt = mm->layout == MM_NT;
    mm->lda = mm->lda ? mm->lda : (tn ? mm->m : mm->k);
    mm->ldb = mm->ldb ? mm->ldb : (nt ? mm->k : mm->n);
    int64_t an = ((tn ? mm->k : mm->m) - 1) * mm->lda + (tn ? mm->m : mm->k);
    int64_t bn = ((nt ? mm->n : mm->k) - 1) * mm->ldb + (nt ? mm->k : mm->n);
    float *wide = cpu_scratch(st, SCRATCH_WIDE, (size_t)(an + bn) * sizeof *wide);
    if (!wide)
        return -ENOMEM;
    st->inner.cast(dev, wide, DT_F32, mm->a, DT_BF16, an, NULL);
    st->inner.cast(dev, wide + an, DT_F32, mm->b, DT_BF16, bn, NULL);
    mm->a = wide;
    mm->b = wide + an;
    mm->dt = DT_F32;
    return 0;
}

int gemm_matmul(struct device *dev, const struct matmul *mm, struct stream *s)
{
    if (mm->k == 0)
        return ref_matmul(dev, mm, s);
    if (mm->m == 0 || mm->n == 0)
        return 0;
    if (cpu_state(dev)->gemm[mm->dt])
        return multiply(dev, mm);
    struct matmul wide = *mm;
    int r = widen(dev, &wide);
    return r < 0 ? r : multiply(dev, &wide);
}
