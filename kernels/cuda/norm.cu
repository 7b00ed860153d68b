/* LayerNorm with modulation and RMSNorm, each with the residual before it: one pass over
 * memory.  A block holds a row in registers; in the backward it walks several rows and keeps
 * its part of the column sums, which a second kernel adds up in order. */
#include <errno.h>

#include "kernels/cuda/common.cuh"

#define LN_EPS 1e-6f

enum { MOST_CHANNELS = 8192 }; /* in a row */
enum { PIECES = 2 };           /* of a row, in a thread */

enum {                  /* of each multiprocessor */
       FWD_BLOCKS = 64, /* of a forward, at least, before they take several rows */
       /* Of a backward: few enough that their column sums are small beside the rows, and enough
        * for two waves. */
       BWD_BLOCKS = 16,
};

/* A row: thread t holds the P columns from P (j threads + t) on of piece j.  P is 4 where rows
 * are short enough: what a warp reads or writes of f32 at a time has no gaps then. */
#define MOST_THREADS(P) ((P) == 4 ? 320 : 512)

struct layout {
    int columns; /* P: 4 or 8 */
    unsigned threads;
};

static struct layout row_layout(int C)
{
    struct layout l;
    l.columns = C > PIECES * 4 * MOST_THREADS(4) ? 8 : 4;
    const unsigned each = (unsigned)(PIECES * l.columns);
    const unsigned threads = C ? ((unsigned)C + each - 1) / each : 1;
    l.threads = (threads + 31) / 32 * 32;
    return l;
}

template <int P> static __device__ __forceinline__ int column(int j)
{
    return (int)(j * blockDim.x + threadIdx.x) * P;
}

/* Sums of a and b over the block; room holds 64. */
static __device__ __forceinline__ void block_sum2(float *a, float *b, float *room)
{
    const int warps = (int)(blockDim.x / WARP), warp = (int)threadIdx.x / WARP;
    *a = warp_sum(*a);
    *b = warp_sum(*b);
    if (warps == 1)
        return;
    __syncthreads();
    if (threadIdx.x % WARP == 0) {
        room[2 * warp] = *a;
        room[2 * warp + 1] = *b;
    }
    __syncthreads();
    *a = room[0];
    *b = room[1];
    for (int i = 1; i < warps; i++) {
        *a += room[2 * i];
        *b += room[2 * i + 1];
    }
}

/* Piece j of the thread's columns of a row; what lies beyond the row becomes 0. */
template <int P, bool WIDE, typename T>
static __device__ __forceinline__ void load_piece(float v[P], const T *row, int j, int C)
{
#pragma unroll
    for (int k = 0; k < P; k++)
        v[k] = 0;
    if (column<P>(j) < C)
        load<WIDE, P>(v, row + column<P>(j), C - column<P>(j));
}

/* All pieces are asked for before any is used, so that a row waits for memory once. */
template <int P, bool WIDE, typename T>
static __device__ __forceinline__ void load_columns(float v[PIECES][P], const T *row, int C)
{
#pragma unroll
    for (int j = 0; j < PIECES; j++)
        load_piece<P, WIDE>(v[j], row, j, C);
}

template <int P, bool WIDE, typename T>
static __device__ __forceinline__ void store_columns(T *row, const float v[PIECES][P], int C)
{
#pragma unroll
    for (int j = 0; j < PIECES; j++)
        if (column<P>(j) < C)
            store<WIDE, P>(row + column<P>(j), v[j], C - column<P>(j));
}

/* Of a row that is needed next; the thread that has a line's first value asks for the line. */
template <int P, typename T>
static __device__ __forceinline__ void prefetch_columns(const T *row, int C)
{
#pragma unroll
    for (int j = 0; j < PIECES; j++)
        if (column<P>(j) < C && column<P>(j) % (128 / (int)sizeof(T)) == 0)
            prefetch_line(row + column<P>(j));
}

/* Sum over the row of (x - mean)². */
template <int P>
static __device__ __forceinline__ float spread(float x[PIECES][P], float mean, int C)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++) {
            float d = x[j][k] - mean;
            sum += column<P>(j) + k < C ? d * d : 0.0f;
        }
    return sum;
}

template <int P, bool WIDE, typename T>
static __device__ __forceinline__ void adaln_row(const struct adaln_fwd &p, int64_t r, float *room)
{
    const int64_t row = r * p.C, mod = r / p.T * p.mod_ld;
    float x[PIECES][P], sum = 0;
    load_columns<P, WIDE>(x, p.x_in + row, p.C);
    if (p.y) {
        float y[PIECES][P], gate[PIECES][P];
        load_columns<P, WIDE>(gate, p.gate + mod, p.C);
        load_columns<P, WIDE>(y, (const T *)p.y + row, p.C);
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int k = 0; k < P; k++)
                x[j][k] += gate[j][k] * y[j][k];
        store_columns<P, WIDE>(p.x + row, x, p.C);
    }
    if (!p.h)
        return;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            sum += x[j][k];
    const float mean = block_sum(sum, room) / (float)p.C;
    const float var = block_sum(spread<P>(x, mean, p.C), room) / (float)p.C;
    const float rstd = 1.0f / sqrtf(var + LN_EPS);
    if (threadIdx.x == 0) {
        p.stats[2 * r] = mean;
        p.stats[2 * r + 1] = rstd;
    }
    float scale[PIECES][P], shift[PIECES][P];
    load_columns<P, WIDE>(scale, p.scale + mod, p.C);
    load_columns<P, WIDE>(shift, p.shift + mod, p.C);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            x[j][k] = (x[j][k] - mean) * rstd * (1.0f + scale[j][k]) + shift[j][k];
    store_columns<P, WIDE>((T *)p.h + row, x, p.C);
}

/* Neighbouring rows have the same gate, shift and scale: a block takes `each` of them, so that
 * these come from the first-level cache and not, at 1.5 times the bytes of a row, from the
 * second. */
template <int P, bool WIDE, typename T>
__global__ void __launch_bounds__(MOST_THREADS(P))
    adaln_fwd_kernel(struct adaln_fwd p, int64_t rows, int each)
{
    __shared__ float room[32];
    const int64_t first = (int64_t)blockIdx.x * each;
    const int64_t end = first + each < rows ? first + each : rows;
    for (int64_t r = first; r < end; r++) {
        if (r + 1 < end) {
            prefetch_columns<P>(p.x_in + (r + 1) * p.C, p.C);
            if (p.y)
                prefetch_columns<P>((const T *)p.y + (r + 1) * p.C, p.C);
        }
        adaln_row<P, WIDE, T>(p, r, room);
    }
}

/* The kernel of a row's layout, alignment and type. */
#define PICK_P(kernel, P, wide, dt)                                                                \
    ((dt) == DT_BF16 ? ((wide) ? kernel<P, true, bf16> : kernel<P, false, bf16>)                   \
                     : ((wide) ? kernel<P, true, float> : kernel<P, false, float>))
#define PICK(kernel, l, wide, dt)                                                                  \
    ((l).columns == 8 ? PICK_P(kernel, 8, wide, dt) : PICK_P(kernel, 4, wide, dt))

extern "C" int cuda_adaln_fwd(struct device *dev, const struct adaln_fwd *p, struct stream *s)
{
    if (p->C > MOST_CHANNELS)
        return -EINVAL;
    const struct layout l = row_layout(p->C);
    const int64_t rows = (int64_t)p->B * p->T;
    bool wide = p->C % l.columns == 0 && p->mod_ld % 4 == 0 &&
                aligned16(p->x, p->h, p->x_in, p->y, p->gate) && aligned16(p->shift, p->scale);
    if (rows > INT32_MAX)
        return -EINVAL;
    const int64_t several = rows / (FWD_BLOCKS * s->st->multiprocessors);
    const int each = several < 2 ? 1 : several < 8 ? (int)several : 8;
    return launch(s, PICK(adaln_fwd_kernel, l, wide, p->dt), dim3(blocks_of(rows, each)), l.threads,
                  0, *p, rows, each);
}

/* Rows of one sample that a block walks, and where its column sums go. */
struct walk {
    int rows, parts; /* rows of a block; blocks of a sample */
    float *partial;  /* (3,B,parts,C) scale, shift, gate; RMSNorm: (parts,C) */
};

static struct walk make_walk(int64_t B, int64_t T, int64_t aim)
{
    struct walk w;
    int64_t rows = (B * T + aim - 1) / aim;
    rows = rows < 4 ? 4 : rows;
    w.rows = (int)(rows < T ? rows : T);
    w.parts = w.rows ? (int)((T + w.rows - 1) / w.rows) : 0;
    w.partial = NULL;
    return w;
}

/* Piece j of the forward's x of a row, less its mean and over its deviation. */
template <int P, bool WIDE, typename T>
static __device__ __forceinline__ void xhat_piece(float x[P], const struct adaln_bwd &p, int64_t r,
                                                  int64_t mod, int j)
{
    const float mean = p.stats[2 * r], rstd = p.stats[2 * r + 1];
    load_piece<P, WIDE>(x, p.x + r * p.C, j, p.C);
    if (p.x_before) {
        float y[P], gate[P];
        load_piece<P, WIDE>(y, (const T *)p.y + r * p.C, j, p.C);
        load_piece<P, WIDE>(gate, p.gate + mod, j, p.C);
#pragma unroll
        for (int k = 0; k < P; k++)
            x[k] += gate[k] * y[k];
    }
#pragma unroll
    for (int k = 0; k < P; k++)
        x[k] = (x[k] - mean) * rstd;
}

/* d = the gradient of x_in, one row; it goes to memory too, and h where it is wanted. */
template <int P, bool WIDE, typename T>
static __device__ __forceinline__ void ln_row(float d[PIECES][P], float dscale[PIECES][P],
                                              float dshift[PIECES][P], const struct adaln_bwd &p,
                                              int64_t r, int64_t mod, float *room)
{
    const T *dh = (const T *)p.dh + r * p.C;
    float *dx = p.dx + r * p.C;
    float g[PIECES][P], xhat[PIECES][P], scale[P], shift[P], mean_g = 0, mean_gx = 0;
    const float rstd = p.stats[2 * r + 1];
    if (P == 4) /* asked for now, it is there after the sums */
        load_columns<P, WIDE>(d, dx, p.dx_set ? 0 : p.C);
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        load_piece<P, WIDE>(g[j], dh, j, p.C); /* 0 beyond the row, and so is all that is summed */
        xhat_piece<P, WIDE, T>(xhat[j], p, r, mod, j);
        load_piece<P, WIDE>(scale, p.scale + mod, j, p.C);
#pragma unroll
        for (int k = 0; k < P; k++) {
            dscale[j][k] += g[j][k] * xhat[j][k];
            dshift[j][k] += g[j][k];
            g[j][k] *= 1.0f + scale[k];
            mean_g += g[j][k];
            mean_gx += g[j][k] * xhat[j][k];
        }
    }
    block_sum2(&mean_g, &mean_gx, room);
    mean_g /= (float)p.C;
    mean_gx /= (float)p.C;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        if (P > 4) { /* read now: wide pieces leave no registers for g, x and d */
            load_piece<P, WIDE>(g[j], dh, j, p.C);
            xhat_piece<P, WIDE, T>(xhat[j], p, r, mod, j);
            load_piece<P, WIDE>(scale, p.scale + mod, j, p.C);
            load_piece<P, WIDE>(d[j], dx, j, p.dx_set ? 0 : p.C);
        }
#pragma unroll
        for (int k = 0; k < P; k++) {
            if (P > 4)
                g[j][k] *= 1.0f + scale[k];
            d[j][k] += rstd * (g[j][k] - mean_g - xhat[j][k] * mean_gx);
        }
    }
    store_columns<P, WIDE>(dx, d, p.C);
    if (!p.h)
        return;
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        load_piece<P, WIDE>(scale, p.scale + mod, j, p.C);
        load_piece<P, WIDE>(shift, p.shift + mod, j, p.C);
#pragma unroll
        for (int k = 0; k < P; k++)
            xhat[j][k] = xhat[j][k] * (1.0f + scale[k]) + shift[k];
    }
    store_columns<P, WIDE>((T *)p.h + r * p.C, xhat, p.C);
}

template <int P, bool WIDE, typename T>
static __device__ __forceinline__ void gate_row(const float d[PIECES][P], float dgate[PIECES][P],
                                                const struct adaln_bwd &p, int64_t r, int64_t mod)
{
    float y[PIECES][P], gate[P];
    load_columns<P, WIDE>(y, (const T *)p.y + r * p.C, p.C);
#pragma unroll
    for (int j = 0; j < PIECES; j++) {
        load_piece<P, WIDE>(gate, p.gate + mod, j, p.C);
#pragma unroll
        for (int k = 0; k < P; k++) {
            dgate[j][k] += d[j][k] * y[j][k];
            y[j][k] = gate[k] * d[j][k];
        }
    }
    store_columns<P, WIDE>((T *)p.dy + r * p.C, y, p.C);
}

/* All that the row at `row` will be read from. */
template <int P, typename T>
static __device__ __forceinline__ void prefetch_next(const struct adaln_bwd &p, int64_t row)
{
    if (!p.dh || !p.dx_set)
        prefetch_columns<P>(p.dx + row, p.C);
    if (p.dh) {
        prefetch_columns<P>((const T *)p.dh + row, p.C);
        prefetch_columns<P>(p.x + row, p.C);
    }
    if (p.y)
        prefetch_columns<P>((const T *)p.y + row, p.C);
}

template <int P, bool WIDE, typename T>
__global__ void __launch_bounds__(MOST_THREADS(P), P == 4 ? 2 : 1)
    adaln_bwd_kernel(struct adaln_bwd p, struct walk w)
{
    __shared__ float room[64];
    const int64_t b = blockIdx.x / w.parts, part = blockIdx.x % w.parts, mod = b * p.mod_ld;
    const int64_t region = (int64_t)p.B * w.parts * p.C;
    const int first = (int)part * w.rows, end = min(first + w.rows, p.T);
    float dscale[PIECES][P] = {}, dshift[PIECES][P] = {}, dgate[PIECES][P] = {};
    for (int t = first; t < end; t++) {
        const int64_t r = b * p.T + t;
        float d[PIECES][P];
        if (t + 1 < end)
            prefetch_next<P, T>(p, (r + 1) * p.C);
        if (p.dh)
            ln_row<P, WIDE, T>(d, dscale, dshift, p, r, mod, room);
        else
            load_columns<P, WIDE>(d, p.dx + r * p.C, p.C);
        if (p.y)
            gate_row<P, WIDE, T>(d, dgate, p, r, mod);
    }
    float *out = w.partial + (int64_t)blockIdx.x * p.C;
    if (p.dh) {
        store_columns<P, WIDE>(out, dscale, p.C);
        store_columns<P, WIDE>(out + region, dshift, p.C);
    }
    if (p.y)
        store_columns<P, WIDE>(out + 2 * region, dgate, p.C);
}

extern "C" int cuda_adaln_bwd(struct device *dev, const struct adaln_bwd *p, struct stream *s)
{
    if (p->C > MOST_CHANNELS)
        return -EINVAL;
    const struct layout l = row_layout(p->C);
    struct walk w = make_walk(p->B, p->T, BWD_BLOCKS * s->st->multiprocessors);
    const int64_t region = (int64_t)p->B * w.parts * p->C;
    void *partial;
    if ((int64_t)p->B * w.parts > INT32_MAX)
        return -EINVAL;
    int rc = cuda_scratch(s, 3 * (size_t)region * sizeof(float), &partial);
    if (rc < 0)
        return rc;
    w.partial = (float *)partial;
    bool wide = p->C % l.columns == 0 && p->mod_ld % 4 == 0 &&
                aligned16(p->dx, p->dy, p->dh, p->x, p->scale) &&
                aligned16(p->y, p->gate, p->h, p->shift);
    rc = launch(s, PICK(adaln_bwd_kernel, l, wide, p->dt), dim3((unsigned)(p->B * w.parts)),
                l.threads, 0, *p, w);
    const struct finish f = {
        {p->dh ? p->dscale : NULL, p->dh ? p->dshift : NULL, p->y ? p->dgate : NULL},
        p->y ? 3 : 2,
        p->mod_ld,
        w.partial,
        p->B,
        w.parts,
        p->C,
        false};
    return rc < 0 ? rc : cuda_finish_sums(&f, s);
}

template <int P, bool WIDE, typename T>
__global__ void __launch_bounds__(MOST_THREADS(P)) rmsnorm_fwd_kernel(struct rmsnorm_fwd p)
{
    __shared__ float room[32];
    const int64_t r = blockIdx.x, row = r * p.C;
    float x[PIECES][P], w[PIECES][P], sum = 0;
    load_columns<P, WIDE>(x, p.x_in + row, p.C);
    if (p.y) {
        float y[PIECES][P];
        load_columns<P, WIDE>(y, (const T *)p.y + row, p.C);
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int k = 0; k < P; k++)
                x[j][k] += y[j][k];
        store_columns<P, WIDE>(p.x + row, x, p.C);
    }
    if (!p.h)
        return;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            sum += x[j][k] * x[j][k];
    const float rstd = 1.0f / sqrtf(block_sum(sum, room) / (float)p.C + p.eps);
    if (p.rstd && threadIdx.x == 0)
        p.rstd[r] = rstd;
    load_columns<P, WIDE>(w, p.w, p.C);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            x[j][k] *= rstd * w[j][k];
    store_columns<P, WIDE>((T *)p.h + row, x, p.C);
}

extern "C" int cuda_rmsnorm_fwd(struct device *dev, const struct rmsnorm_fwd *p, struct stream *s)
{
    if (p->C > MOST_CHANNELS)
        return -EINVAL;
    const struct layout l = row_layout(p->C);
    bool wide = p->C % l.columns == 0 && aligned16(p->x, p->h, p->x_in, p->y, p->w);
    if (p->rows > INT32_MAX)
        return -EINVAL;
    return launch(s, PICK(rmsnorm_fwd_kernel, l, wide, p->dt), dim3((unsigned)p->rows), l.threads,
                  0, *p);
}

template <int P, bool WIDE, typename T>
__global__ void __launch_bounds__(MOST_THREADS(P)) layernorm_fwd_kernel(struct layernorm_fwd p)
{
    __shared__ float room[32];
    const int64_t r = blockIdx.x, row = r * p.C;
    float x[PIECES][P], w[PIECES][P], b[PIECES][P], sum = 0;
    load_columns<P, WIDE>(x, p.x_in + row, p.C);
    if (p.y) {
        float y[PIECES][P];
        load_columns<P, WIDE>(y, (const T *)p.y + row, p.C);
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int k = 0; k < P; k++)
                x[j][k] += y[j][k];
        store_columns<P, WIDE>(p.x + row, x, p.C);
    }
    if (!p.h)
        return;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            sum += x[j][k];
    const float mean = block_sum(sum, room) / (float)p.C;
    const float var = block_sum(spread<P>(x, mean, p.C), room) / (float)p.C;
    const float rstd = 1.0f / sqrtf(var + p.eps);
    load_columns<P, WIDE>(w, p.w, p.C);
    load_columns<P, WIDE>(b, p.b, p.C);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            x[j][k] = (x[j][k] - mean) * rstd * w[j][k] + b[j][k];
    store_columns<P, WIDE>((T *)p.h + row, x, p.C);
}

extern "C" int cuda_layernorm_fwd(struct device *dev, const struct layernorm_fwd *p,
                                  struct stream *s)
{
    if (p->C > MOST_CHANNELS)
        return -EINVAL;
    const struct layout l = row_layout(p->C);
    bool wide = p->C % l.columns == 0 && aligned16(p->x, p->h, p->x_in, p->y, p->w, p->b);
    if (p->rows > INT32_MAX)
        return -EINVAL;
    return launch(s, PICK(layernorm_fwd_kernel, l, wide, p->dt), dim3((unsigned)p->rows), l.threads,
                  0, *p);
}

template <int P, bool WIDE, typename T>
__global__ void __launch_bounds__(MOST_THREADS(P))
    rmsnorm_bwd_kernel(struct rmsnorm_bwd p, struct walk w)
{
    __shared__ float room[32];
    const int64_t first = (int64_t)blockIdx.x * w.rows;
    const int64_t end = first + w.rows < p.rows ? first + w.rows : p.rows;
    float dw[PIECES][P] = {};
    for (int64_t r = first; r < end; r++) {
        const float rstd = p.rstd[r];
        float g[PIECES][P], xhat[PIECES][P], weight[PIECES][P], d[PIECES][P], mean = 0;
        load_columns<P, WIDE>(d, p.dx + r * p.C, p.dx_set ? 0 : p.C);
        load_columns<P, WIDE>(xhat, p.x + r * p.C, p.C);
        load_columns<P, WIDE>(weight, p.w, p.C);
        load_columns<P, WIDE>(g, (const T *)p.dh + r * p.C, p.C);
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int k = 0; k < P; k++) {
                xhat[j][k] *= rstd;
                dw[j][k] += g[j][k] * xhat[j][k];
                g[j][k] *= weight[j][k];
                mean += g[j][k] * xhat[j][k];
            }
        mean = block_sum(mean, room) / (float)p.C;
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int k = 0; k < P; k++)
                d[j][k] += rstd * (g[j][k] - xhat[j][k] * mean);
        store_columns<P, WIDE>(p.dx + r * p.C, d, p.C);
        if (p.dy)
            store_columns<P, WIDE>((T *)p.dy + r * p.C, d, p.C);
    }
    store_columns<P, WIDE>(w.partial + (int64_t)blockIdx.x * p.C, dw, p.C);
}

extern "C" int cuda_rmsnorm_bwd(struct device *dev, const struct rmsnorm_bwd *p, struct stream *s)
{
    if (p->C > MOST_CHANNELS)
        return -EINVAL;
    const struct layout l = row_layout(p->C);
    struct walk w = make_walk(1, p->rows, BWD_BLOCKS * s->st->multiprocessors);
    void *partial;
    int rc = cuda_scratch(s, (size_t)w.parts * (size_t)p->C * sizeof(float), &partial);
    if (rc < 0)
        return rc;
    w.partial = (float *)partial;
    bool wide = p->C % l.columns == 0 && aligned16(p->dx, p->dy, p->dh, p->x, p->w);
    rc = launch(s, PICK(rmsnorm_bwd_kernel, l, wide, p->dt), dim3((unsigned)w.parts), l.threads, 0,
                *p, w);
    const struct finish f = {{p->dw}, 1, p->C, w.partial, 1, w.parts, p->C, true};
    return rc < 0 ? rc : cuda_finish_sums(&f, s);
}

/* ---- RMSNorm of each head, which a warp has in its registers ---- */

/* Where head i lies in x. */
static __device__ __forceinline__ int64_t head_at(const struct headnorm &p, int64_t i)
{
    return i / p.heads * p.ld + i % p.heads * p.D;
}

template <int P>
static __device__ __forceinline__ float product_sum(const float a[PIECES][P],
                                                    const float b[PIECES][P])
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            sum += a[j][k] * b[j][k];
    return sum;
}

template <int P, bool WIDE, typename T>
__global__ void __launch_bounds__(WARP) headnorm_fwd_kernel(struct headnorm p)
{
    const int64_t i = blockIdx.x;
    T *head = (T *)p.x + head_at(p, i);
    float x[PIECES][P], w[PIECES][P];
    load_columns<P, WIDE>(x, head, p.D);
    load_columns<P, WIDE>(w, p.w, p.D);
    if (p.kept)
        store_columns<P, WIDE>((T *)p.kept + i * p.D, x, p.D);
    const float square = warp_sum(product_sum<P>(x, x)) / (float)p.D;
    const float rstd = 1.0f / sqrtf(square + p.eps);
#pragma unroll
    for (int j = 0; j < PIECES; j++)
#pragma unroll
        for (int k = 0; k < P; k++)
            x[j][k] *= rstd * w[j][k];
    store_columns<P, WIDE>(head, x, p.D);
}

template <int P, bool WIDE, typename T>
__global__ void __launch_bounds__(WARP) headnorm_bwd_kernel(struct headnorm p, struct walk w)
{
    const int64_t first = (int64_t)blockIdx.x * w.rows, all = p.rows * p.heads;
    const int64_t end = first + w.rows < all ? first + w.rows : all;
    float dw[PIECES][P] = {}, weight[PIECES][P];
    load_columns<P, WIDE>(weight, p.w, p.D);
    for (int64_t i = first; i < end; i++) {
        T *head = (T *)p.x + head_at(p, i);
        float g[PIECES][P], x[PIECES][P], gw[PIECES][P];
        load_columns<P, WIDE>(g, head, p.D);
        load_columns<P, WIDE>(x, (const T *)p.kept + i * p.D, p.D);
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int k = 0; k < P; k++)
                gw[j][k] = g[j][k] * weight[j][k];
        const float square = warp_sum(product_sum<P>(x, x));
        const float dot = warp_sum(product_sum<P>(gw, x));
        const float rstd = 1.0f / sqrtf(square / (float)p.D + p.eps);
        const float mean = dot * rstd / (float)p.D;
#pragma unroll
        for (int j = 0; j < PIECES; j++)
#pragma unroll
            for (int k = 0; k < P; k++) {
                const float xhat = x[j][k] * rstd;
                dw[j][k] += g[j][k] * xhat;
                g[j][k] = rstd * (gw[j][k] - xhat * mean);
            }
        store_columns<P, WIDE>(head, g, p.D);
    }
    store_columns<P, WIDE>(w.partial + (int64_t)blockIdx.x * p.D, dw, p.D);
}

/* The call with its ld, and whether heads may be read in whole vectors.  -EINVAL: too many. */
static int headnorm_call(const struct headnorm *p, struct headnorm *ret, bool *ret_wide)
{
    if (p->rows * p->heads > INT32_MAX)
        return -EINVAL;
    *ret = *p;
    if (!p->ld)
        ret->ld = (int64_t)p->heads * p->D;
    *ret_wide = p->D % 4 == 0 && ret->ld % 4 == 0 && aligned16(p->x, p->kept, p->w);
    return 0;
}

extern "C" int cuda_headnorm_fwd(struct device *dev, const struct headnorm *p, struct stream *s)
{
    struct headnorm q;
    bool wide;
    int rc = headnorm_call(p, &q, &wide);
    return rc < 0 ? rc
                  : launch(s, PICK_P(headnorm_fwd_kernel, 4, wide, p->dt),
                           dim3((unsigned)(p->rows * p->heads)), WARP, 0, q);
}

extern "C" int cuda_headnorm_bwd(struct device *dev, const struct headnorm *p, struct stream *s)
{
    struct headnorm q;
    bool wide;
    int rc = headnorm_call(p, &q, &wide);
    struct walk w = make_walk(1, p->rows * p->heads, BWD_BLOCKS * s->st->multiprocessors);
    void *partial;
    if (rc == 0)
        rc = cuda_scratch(s, (size_t)w.parts * (size_t)p->D * sizeof(float), &partial);
    if (rc < 0)
        return rc;
    w.partial = (float *)partial;
    rc = launch(s, PICK_P(headnorm_bwd_kernel, 4, wide, p->dt), dim3((unsigned)w.parts), WARP, 0, q,
                w);
    const struct finish f = {{p->dw}, 1, p->D, w.partial, 1, w.parts, p->D, true};
    return rc < 0 ? rc : cuda_finish_sums(&f, s);
}
