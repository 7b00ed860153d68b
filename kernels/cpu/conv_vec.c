/* Convolution on the tiles of gemm.h, once per instruction set.
 *
 * With channels last, the k pixels of a row that an output reads lie side by side, and those of
 * its right neighbour begin a pixel further: a tile of pixels of one output row times a panel
 * of weights is k in-place products, one for each row of the kernel, added in order.  Nothing is
 * unrolled; only a few rows at a time are copied into a frame of zeros, enlarged or widened on
 * the way.  A 1x1 kernel reads x where it lies. */

#include "common/base/base.h"
#include "kernels/cpu/gemm.h"
#include "kernels/cpu/state.h"
#include "kernels/cpu/team.h"
#include "kernels/cpu/vec.h"

enum {
    PIXELS = 96,           /* of a task, at least: eight tiles share a panel */
    FRAME_BYTES = 1 << 19, /* about: half a second cache */
    PAGE = 4096,
    LINE = 16 /* floats */
};

struct conv_job {
    const struct conv2d *p;
    const struct gemm_kernel *kern;
    enum dtype dt; /* of what is multiplied: p->dt, or f32 where bf16 has no product */
    const void *w; /* (Cout,k,k,Cin) (dt) */
    bool framed;   /* else x is read where it lies, all pixels of a sample as one row */

    int64_t pixel;        /* elements from one pixel to the next */
    int64_t row;          /* elements of a row */
    int64_t units;        /* of the channels of a pixel */
    int taps, runs;       /* taps of a product, products of a tile */
    int64_t line, pixels; /* output pixels of a row, and of a sample */
    int64_t block;        /* of a task */
    int blocks, col_tasks;
    int64_t cols; /* output channels of a task */

    float *packed; /* weights */
    int64_t stride;
    char *own; /* of each thread: own_bytes for its sums, then its frame */
    size_t own_bytes;
    int *holds; /* the block whose frame a thread holds */
};

/* ---- weights ---- */

/* A panel of output channels: tap after tap, the channels of each in whole units. */
static void pack_task(void *arg, int task, int thread)
{
    const struct conv_job *job = arg;
    const struct conv2d *p = job->p;
    const int64_t j = (int64_t)task * GEMM_NR, taps = (int64_t)p->k * p->k;
    for (int64_t t = 0; t < taps; t++)
        job->kern->pack_b_nt(job->packed + task * job->stride + t * job->units * GEMM_NR, 0,
                             (const char *)job->w +
                                 (j * taps + t) * p->Cin * (int64_t)dtype_bytes(job->dt),
                             taps * p->Cin, gemm_min(GEMM_NR, p->Cout - j), p->Cin);
}

/* ---- the frame ---- */

static void put_pixel(const struct conv_job *job, char *dst, const char *src)
{
    const int C = job->p->Cin;
    const size_t size = dtype_bytes(job->dt), bytes = (size_t)C * size;
    if (job->dt == job->p->dt)
        memcpy(dst, src, bytes);
    else
        for (int c = 0; c < C; c += VL) {
            vmask m = v_mask(C - c);
            v_store((float *)(void *)dst + c, m,
                    v_load_bf16((const bf16 *)(const void *)src + c, m));
        }
    memset(dst + bytes, 0, (size_t)job->pixel * size - bytes);
}

/* Row i of the enlarged x of a sample, with its zeros. */
static void put_row(const struct conv_job *job, char *dst, const char *sample, int64_t i)
{
    const struct conv2d *p = job->p;
    const int grow = p->up2 ? 2 : 1;
    const int64_t size = (int64_t)dtype_bytes(job->dt), W = (int64_t)grow * p->W;
    const int64_t pixel = job->pixel * size, from = p->Cin * (int64_t)dtype_bytes(p->dt);
    if (i < 0 || i >= (int64_t)grow * p->H) {
        memset(dst, 0, (size_t)(job->row * size));
        return;
    }
    const char *src = sample + i / grow * p->W * from;
    memset(dst, 0, (size_t)(p->pad_low * pixel));
    dst += p->pad_low * pixel;
    if (grow == 1 && pixel == from && job->dt == p->dt)
        memcpy(dst, src, (size_t)(W * pixel));
    else
        for (int64_t j = 0; j < W; j++)
            put_pixel(job, dst + j * pixel, src + j / grow * from);
    memset(dst + W * pixel, 0, (size_t)(p->pad_high * pixel));
}

/* The pixel of a block's first output, from which its tiles are read. */
static const char *source(struct conv_job *job, int block, int thread, const char *sample)
{
    const struct conv2d *p = job->p;
    const int64_t size = (int64_t)dtype_bytes(job->dt), at = block % job->blocks * job->block;
    if (!job->framed)
        return sample + at * job->pixel * size;
    char *frame =
        job->own + (size_t)thread * job->own_bytes + (size_t)(job->block * GEMM_NR) * sizeof(float);
    if (job->holds[thread] == block)
        return frame;
    const int64_t rows = gemm_min(job->block, job->pixels - at) / job->line;
    const int64_t first = at / job->line * p->stride - p->pad_low;
    for (int64_t i = 0; i < (rows - 1) * p->stride + p->k; i++)
        put_row(job, frame + i * job->row * size, sample, first + i);
    job->holds[thread] = block;
    return frame;
}

/* ---- sums ---- */

/* Prefetches the lines of y and add that a tile will touch, while its last sums are made. */
static void prefetch_tile(const struct conv2d *p, int64_t at, int rows)
{
    const int64_t size = (int64_t)dtype_bytes(p->dt);
    for (int r = 0; r < rows; r++, at += p->Cout)
        for (int64_t b = at * size; b < (at + GEMM_NR) * size; b += 64) {
            __builtin_prefetch((const char *)p->y + b, 1, 3);
            if (p->add)
                __builtin_prefetch((const char *)p->add + b, 0, 3);
        }
}

/* Pixels of a block times a panel.  A row of the kernel at a time for all tiles, so that its
 * part of the panel stays in the second cache. */
static void block_sums(const struct conv_job *job, float *sums, const char *x, const float *panel,
                       int64_t pixels, int64_t out)
{
    const struct conv2d *p = job->p;
    const int64_t size = (int64_t)dtype_bytes(job->dt), units = job->taps * job->units;
    const int64_t step = p->stride * job->pixel * size;
    for (int r = 0; r < job->runs; r++, panel += units * GEMM_NR) {
        const int u = r * job->taps / p->k, v = r * job->taps % p->k;
        const char *from = x + (u * job->row + v * job->pixel) * size;
        for (int64_t q = 0; q < pixels;) {
            const int64_t j = q % job->line;
            const int rows = (int)gemm_min(GEMM_MR, gemm_min(job->line - j, pixels - q));
            const char *a = from + q / job->line * p->stride * job->row * size + j * step;
            if (r == job->runs - 1)
                prefetch_tile(p, out + q * p->Cout, rows);
            float *to = sums + q * GEMM_NR;
            job->kern->inplace[rows](&(struct gemm_out){to, GEMM_NR, r ? to : NULL, GEMM_NR}, a,
                                     step, panel, units);
            q += rows;
        }
    }
}

static inline void store_sums(const struct conv2d *p, const float *sums, int64_t pixels,
                              int64_t out, int64_t j, const enum dtype dt)
{
    for (int c = 0; c < GEMM_NR; c += VL) {
        const vmask m = v_mask(p->Cout - j - c);
        const vf bias = p->bias && p->Cout > j + c ? v_load(p->bias + j + c, m) : v_zero();
        for (int64_t q = 0; q < pixels && p->Cout > j + c; q++) {
            const int64_t at = out + q * p->Cout + c;
            vf v = v_add(v_load(sums + q * GEMM_NR + c, v_mask(VL)), bias);
            if (p->add)
                v = v_add(v, v_load_dt(p->add, dt, at, m));
            v_store_dt(p->y, dt, at, m, v);
        }
    }
}

static void conv_task(void *arg, int task, int thread)
{
    struct conv_job *job = arg;
    const struct conv2d *p = job->p;
    const int block = task / job->col_tasks;
    const int64_t b = block / job->blocks, at = block % job->blocks * job->block;
    const int64_t pixels = gemm_min(job->block, job->pixels - at);
    const int64_t col0 = task % job->col_tasks * job->cols,
                  end = gemm_min(p->Cout, col0 + job->cols);
    const char *x = (const char *)p->x + b * p->H * p->W * p->Cin * (int64_t)dtype_bytes(p->dt);
    float *sums = (float *)(void *)(job->own + (size_t)thread * job->own_bytes);
    x = source(job, block, thread, x);
    for (int64_t j = col0; j < end; j += GEMM_NR) {
        const int64_t out = (b * job->pixels + at) * p->Cout + j;
        block_sums(job, sums, x, job->packed + j / GEMM_NR * job->stride, pixels, out);
        if (p->dt == DT_BF16)
            store_sums(p, sums, pixels, out, j, DT_BF16);
        else
            store_sums(p, sums, pixels, out, j, DT_F32);
    }
}

/* ---- plans ---- */

/* Where the pixels of a tile would all fall on the same lines of the first cache, they are
 * moved apart, and each tap is a product of its own. */
static void plan_layout(struct conv_job *job)
{
    const struct conv2d *p = job->p;
    const int64_t per_unit = job->dt == DT_BF16 ? 2 : 1, size = (int64_t)dtype_bytes(job->dt);
    job->units = gemm_units(job->dt, p->Cin);
    job->pixel = job->units * per_unit;
    const bool apart = job->pixel && job->pixel * p->stride * size % PAGE == 0;
    job->framed =
        apart || p->k > 1 || p->stride > 1 || p->up2 || job->dt != p->dt || job->pixel != p->Cin;
    job->pixel += apart ? LINE * per_unit : 0;
    job->taps = apart ? 1 : p->k;
    job->runs = p->k * p->k / job->taps;
    job->row = ((p->up2 ? 2 : 1) * (int64_t)p->W + p->pad_low + p->pad_high) * job->pixel;
    job->pixels = (int64_t)conv2d_side(p, p->H) * conv2d_side(p, p->W);
    job->line = job->framed ? conv2d_side(p, p->W) : job->pixels;
    job->stride = p->k * p->k * job->units * GEMM_NR + LINE;
}

/* Rows whose frame stays in the second cache, but enough pixels; all blocks about equal. */
static void plan_blocks(struct conv_job *job, int threads)
{
    const struct conv2d *p = job->p;
    job->block = 2 * PIXELS;
    if (job->framed) {
        const int64_t bytes = job->row * (int64_t)dtype_bytes(job->dt) + 1;
        const int64_t high = job->pixels / job->line, least = gemm_div_up(PIXELS, job->line);
        int64_t rows = (FRAME_BYTES / bytes - p->k) / p->stride + 1;
        rows = gemm_min(rows < least ? least : rows,
                        gemm_min(high, gemm_div_up(4 * PIXELS, job->line)));
        job->block = gemm_div_up(high, gemm_div_up(high, rows)) * job->line;
    }
    job->blocks = (int)gemm_div_up(job->pixels, job->block);
    const int64_t panels = gemm_div_up(p->Cout, GEMM_NR), tasks = (int64_t)p->B * job->blocks;
    const int64_t want = threads > 1 ? gemm_div_up(24 * (int64_t)threads, tasks) : 1;
    job->cols = gemm_div_up(panels, gemm_min(want, panels)) * GEMM_NR;
    job->col_tasks = (int)gemm_div_up(p->Cout, job->cols);
}

/* bf16 without a product: the weights as f32.  -ENOMEM. */
static int plan_type(struct device *dev, struct conv_job *job)
{
    struct cpu_state *st = cpu_state(dev);
    const struct conv2d *p = job->p;
    const int64_t n = (int64_t)p->Cout * p->k * p->k * p->Cin;
    job->dt = st->gemm[p->dt] ? p->dt : DT_F32;
    job->kern = st->gemm[job->dt];
    job->w = p->w;
    if (job->dt == p->dt)
        return 0;
    float *wide = cpu_scratch(st, SCRATCH_WIDE, (size_t)n * sizeof *wide + 1);
    job->w = wide;
    return wide ? st->inner.cast(dev, wide, DT_F32, p->w, DT_BF16, n, NULL) : -ENOMEM;
}

/* Places everything in the scratch: weights, then the memory of each thread.  -ENOMEM. */
static int plan_memory(struct device *dev, struct conv_job *job)
{
    const struct conv2d *p = job->p;
    const int64_t rows = job->framed ? (job->block / job->line - 1) * p->stride + p->k : 0;
    const size_t packed = (size_t)(gemm_div_up(p->Cout, GEMM_NR) * job->stride) * sizeof(float);
    const size_t threads = (size_t)dev->threads;
    job->own_bytes = (size_t)(job->block * GEMM_NR) * sizeof(float) +
                     (size_t)(rows * job->row) * dtype_bytes(job->dt);
    job->own_bytes = (job->own_bytes + 127) / 64 * 64;
    char *scratch = cpu_scratch(cpu_state(dev), SCRATCH_PACKED,
                                packed + threads * (job->own_bytes + sizeof *job->holds));
    if (!scratch)
        return -ENOMEM;
    job->packed = (float *)(void *)scratch;
    job->own = scratch + packed;
    job->holds = (int *)(void *)(job->own + threads * job->own_bytes);
    for (size_t i = 0; i < threads; i++)
        job->holds[i] = -1;
    return 0;
}

static int conv2d_fwd(struct device *dev, const struct conv2d *p, struct stream *s)
{
    struct cpu_team *team = cpu_state(dev)->team;
    struct conv_job job = {.p = p};
    int r = plan_type(dev, &job);
    if (r < 0)
        return r;
    plan_layout(&job);
    if (p->B == 0 || p->Cout == 0 || job.pixels == 0)
        return 0;
    plan_blocks(&job, dev->threads);
    r = plan_memory(dev, &job);
    if (r < 0)
        return r;
    cpu_team_run(team, pack_task, &job, (int)gemm_div_up(p->Cout, GEMM_NR));
    cpu_team_run(team, conv_task, &job, p->B * job.blocks * job.col_tasks);
    return 0;
}

void FOR_ISA(conv_install)(struct kernel_ops *ops)
{
    ops->conv2d_fwd = conv2d_fwd;
}
