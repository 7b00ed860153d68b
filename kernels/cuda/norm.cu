/* LayerNorm with modulation and RMSNorm, each with the residual before it: one pass over
 * memory.  A block holds a row in registers; in the backward it walks several rows and keeps
 * its part of the column sums, which a second kernel adds up in order. */
#include <errno.h>

#include "kernels/cuda/common.cuh"

#define LN_EPS 1e-6f

enum {                  /* of each multiprocessor */
       FWD_BLOCKS = 64, /* of a forward, at least, before they take several rows */
       /* Of a backward: few enough that their column sums are small beside the rows, and enough
        * for two waves. */
       BWD_BLOCKS = 16,
};

/* A row: thread t holds columns 8 (j threads + t) ... of piece j < K. */
struct layout {
    int pieces; /* K: 1 or 2 */
    unsigned threads;
};

static struct layout row_layout(int C)
{
    struct layout l;
    int chunks = (C + 7) / 8;
    l.pieces = chunks > 512 ? 2 : 1;
    chunks = (chunks + l.pieces - 1) / l.pieces;
    l.threads = chunks ? ((unsigned)chunks + 31) / 32 * 32 : 32;
    return l;
}

static __device__ __forceinline__ int column(int j)
{
    return (int)(j * blockDim.x + threadIdx.x) * 8;
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

/* Sum over the row of (x - mean)². */
template <int K> static __device__ __forceinline__ float spread(float x[K][8], float mean, int C)
{
    float sum = 0;
#pragma unroll
    for (int j = 0; j < K; j++)
#pragma unroll
        for (int k = 0; k < 8; k++) {
            float d = x[j][k] - mean;
            sum += column(j) + k < C ? d * d : 0.0f;
        }
    return sum;
}

template <int K, bool WIDE, typename T>
static __device__ __forceinline__ void adaln_row(const struct adaln_fwd &p, int64_t r, float *room)
{
    const int64_t row = r * p.C, mod = r / p.T * p.mod_ld;
    float x[K][8], sum = 0;
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = column(j), left = p.C - c;
        float y[8], gate[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[j][k] = 0;
        if (left <= 0)
            continue;
        load<WIDE, 8>(x[j], p.x_in + row + c, left);
        if (p.y) {
            load<WIDE, 8>(y, (const T *)p.y + row + c, left);
            load<WIDE, 8>(gate, p.gate + mod + c, left);
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[j][k] += gate[k] * y[k];
            store<WIDE, 8>(p.x + row + c, x[j], left);
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += x[j][k];
    }
    if (!p.h)
        return;
    const float mean = block_sum(sum, room) / (float)p.C;
    const float var = block_sum(spread<K>(x, mean, p.C), room) / (float)p.C;
    const float rstd = 1.0f / sqrtf(var + LN_EPS);
    if (threadIdx.x == 0) {
        p.stats[2 * r] = mean;
        p.stats[2 * r + 1] = rstd;
    }
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = column(j), left = p.C - c;
        float scale[8], shift[8];
        if (left <= 0)
            continue;
        load<WIDE, 8>(scale, p.scale + mod + c, left);
        load<WIDE, 8>(shift, p.shift + mod + c, left);
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[j][k] = (x[j][k] - mean) * rstd * (1.0f + scale[k]) + shift[k];
        store<WIDE, 8>((T *)p.h + row + c, x[j], left);
    }
}

/* Neighbouring rows have the same gate, shift and scale: a block takes `each` of them, so that
 * these come from the first-level cache and not, at 1.5 times the bytes of a row, from the
 * second. */
template <int K, bool WIDE, typename T>
__global__ void __launch_bounds__(512) adaln_fwd_kernel(struct adaln_fwd p, int64_t rows, int each)
{
    __shared__ float room[32];
    const int64_t first = (int64_t)blockIdx.x * each;
    const int64_t end = first + each < rows ? first + each : rows;
    for (int64_t r = first; r < end; r++)
        adaln_row<K, WIDE, T>(p, r, room);
}

/* The kernel of a row's pieces, alignment and type. */
#define PICK_K(kernel, K, wide, dt)                                                                \
    ((dt) == DT_BF16 ? ((wide) ? kernel<K, true, bf16> : kernel<K, false, bf16>)                   \
                     : ((wide) ? kernel<K, true, float> : kernel<K, false, float>))
#define PICK(kernel, l, wide, dt)                                                                  \
    ((l).pieces == 2 ? PICK_K(kernel, 2, wide, dt) : PICK_K(kernel, 1, wide, dt))

extern "C" int cuda_adaln_fwd(struct device *dev, const struct adaln_fwd *p, struct stream *s)
{
    const struct layout l = row_layout(p->C);
    const int64_t rows = (int64_t)p->B * p->T;
    bool wide = p->C % 8 == 0 && p->mod_ld % 4 == 0 &&
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

/* d = the gradient of x_in, one row; it goes to memory too. */
template <int K, bool WIDE, typename T>
static __device__ __forceinline__ void ln_row(float d[K][8], float dscale[K][8], float dshift[K][8],
                                              const struct adaln_bwd &p, int64_t r, int64_t mod,
                                              float *room)
{
    float g[K][8], xhat[K][8], mean_g = 0, mean_gx = 0;
    const float mean = p.stats[2 * r], rstd = p.stats[2 * r + 1];
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = column(j), left = p.C - c;
        float scale[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            g[j][k] = xhat[j][k] = 0;
        if (left <= 0)
            continue;
        load<WIDE, 8>(g[j], (const T *)p.dh + r * p.C + c, left);
        load<WIDE, 8>(xhat[j], p.x + r * p.C + c, left);
        load<WIDE, 8>(scale, p.scale + mod + c, left);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            xhat[j][k] = (xhat[j][k] - mean) * rstd;
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
    for (int j = 0; j < K; j++) {
        const int c = column(j), left = p.C - c;
        if (left <= 0)
            continue;
        if (K > 1) { /* read again: two pieces leave no registers for g */
            float scale[8];
            load<WIDE, 8>(g[j], (const T *)p.dh + r * p.C + c, left);
            load<WIDE, 8>(scale, p.scale + mod + c, left);
#pragma unroll
            for (int k = 0; k < 8; k++)
                g[j][k] *= 1.0f + scale[k];
        }
        if (!p.dx_set)
            load<WIDE, 8>(d[j], p.dx + r * p.C + c, left);
#pragma unroll
        for (int k = 0; k < 8; k++)
            d[j][k] += rstd * (g[j][k] - mean_g - xhat[j][k] * mean_gx);
        store<WIDE, 8>(p.dx + r * p.C + c, d[j], left);
    }
}

template <int K, bool WIDE, typename T>
static __device__ __forceinline__ void gate_row(float d[K][8], float dgate[K][8],
                                                const struct adaln_bwd &p, int64_t r, int64_t mod)
{
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = column(j), left = p.C - c;
        float y[8], gate[8];
        if (left <= 0)
            continue;
        load<WIDE, 8>(y, (const T *)p.y + r * p.C + c, left);
        load<WIDE, 8>(gate, p.gate + mod + c, left);
#pragma unroll
        for (int k = 0; k < 8; k++) {
            dgate[j][k] += d[j][k] * y[k];
            gate[k] *= d[j][k];
        }
        store<WIDE, 8>((T *)p.dy + r * p.C + c, gate, left);
    }
}

template <int K, bool WIDE>
static __device__ __forceinline__ void load_columns(float v[K][8], const float *p, int C)
{
#pragma unroll
    for (int j = 0; j < K; j++)
        if (column(j) < C)
            load<WIDE, 8>(v[j], p + column(j), C - column(j));
}

template <int K, bool WIDE>
static __device__ __forceinline__ void store_columns(float *p, float v[K][8], int C)
{
#pragma unroll
    for (int j = 0; j < K; j++)
        if (column(j) < C)
            store<WIDE, 8>(p + column(j), v[j], C - column(j));
}

template <int K, bool WIDE, typename T>
__global__ void __launch_bounds__(512) adaln_bwd_kernel(struct adaln_bwd p, struct walk w)
{
    __shared__ float room[64];
    const int64_t b = blockIdx.x / w.parts, part = blockIdx.x % w.parts, mod = b * p.mod_ld;
    const int64_t region = (int64_t)p.B * w.parts * p.C;
    const int first = (int)part * w.rows, end = min(first + w.rows, p.T);
    float dscale[K][8] = {}, dshift[K][8] = {}, dgate[K][8] = {};
    for (int t = first; t < end; t++) {
        const int64_t r = b * p.T + t;
        float d[K][8] = {};
        if (p.dh)
            ln_row<K, WIDE, T>(d, dscale, dshift, p, r, mod, room);
        else
            load_columns<K, WIDE>(d, p.dx + r * p.C, p.C);
        if (p.y)
            gate_row<K, WIDE, T>(d, dgate, p, r, mod);
    }
    float *out = w.partial + (int64_t)blockIdx.x * p.C;
    if (p.dh) {
        store_columns<K, WIDE>(out, dscale, p.C);
        store_columns<K, WIDE>(out + region, dshift, p.C);
    }
    if (p.y)
        store_columns<K, WIDE>(out + 2 * region, dgate, p.C);
}

extern "C" int cuda_adaln_bwd(struct device *dev, const struct adaln_bwd *p, struct stream *s)
{
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
    bool wide = p->C % 8 == 0 && p->mod_ld % 4 == 0 &&
                aligned16(p->dx, p->dy, p->dh, p->x, p->scale) && aligned16(p->y, p->gate);
    rc = launch(s, PICK(adaln_bwd_kernel, l, wide, p->dt), dim3((unsigned)(p->B * w.parts)),
                l.threads, 0, *p, w);
    float *const out[3] = {p->dh ? p->dscale : NULL, p->dh ? p->dshift : NULL,
                           p->y ? p->dgate : NULL};
    for (int i = 0; i < 3 && rc == 0; i++)
        if (out[i])
            rc = cuda_finish_sums(out[i], p->mod_ld, w.partial + i * region, p->B, w.parts, p->C,
                                  false, s);
    return rc;
}

template <int K, bool WIDE, typename T>
__global__ void __launch_bounds__(512) rmsnorm_fwd_kernel(struct rmsnorm_fwd p)
{
    __shared__ float room[32];
    const int64_t r = blockIdx.x, row = r * p.C;
    float x[K][8], sum = 0;
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = column(j), left = p.C - c;
        float y[8];
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[j][k] = 0;
        if (left <= 0)
            continue;
        load<WIDE, 8>(x[j], p.x_in + row + c, left);
        if (p.y) {
            load<WIDE, 8>(y, (const T *)p.y + row + c, left);
#pragma unroll
            for (int k = 0; k < 8; k++)
                x[j][k] += y[k];
            store<WIDE, 8>(p.x + row + c, x[j], left);
        }
#pragma unroll
        for (int k = 0; k < 8; k++)
            sum += x[j][k] * x[j][k];
    }
    if (!p.h)
        return;
    const float rstd = 1.0f / sqrtf(block_sum(sum, room) / (float)p.C + p.eps);
    if (p.rstd && threadIdx.x == 0)
        p.rstd[r] = rstd;
#pragma unroll
    for (int j = 0; j < K; j++) {
        const int c = column(j), left = p.C - c;
        float w[8];
        if (left <= 0)
            continue;
        load<WIDE, 8>(w, p.w + c, left);
#pragma unroll
        for (int k = 0; k < 8; k++)
            x[j][k] *= rstd * w[k];
        store<WIDE, 8>((T *)p.h + row + c, x[j], left);
    }
}

extern "C" int cuda_rmsnorm_fwd(struct device *dev, const struct rmsnorm_fwd *p, struct stream *s)
{
    const struct layout l = row_layout(p->C);
    bool wide = p->C % 8 == 0 && aligned16(p->x, p->h, p->x_in, p->y, p->w);
    if (p->rows > INT32_MAX)
        return -EINVAL;
    return launch(s, PICK(rmsnorm_fwd_kernel, l, wide, p->dt), dim3((unsigned)p->rows), l.threads,
                  0, *p);
}

template <int K, bool WIDE, typename T>
__global__ void __launch_bounds__(512) rmsnorm_bwd_kernel(struct rmsnorm_bwd p, struct walk w)
{
    __shared__ float room[32];
    const int64_t first = (int64_t)blockIdx.x * w.rows;
    const int64_t end = first + w.rows < p.rows ? first + w.rows : p.rows;
    float dw[K][8] = {};
    for (int64_t r = first; r < end; r++) {
        const float rstd = p.rstd[r];
        float g[K][8] = {}, xhat[K][8] = {}, mean = 0;
#pragma unroll
        for (int j = 0; j < K; j++) {
            const int c = column(j), left = p.C - c;
            float weight[8];
            if (left <= 0)
                continue;
            load<WIDE, 8>(g[j], (const T *)p.dh + r * p.C + c, left);
            load<WIDE, 8>(xhat[j], p.x + r * p.C + c, left);
            load<WIDE, 8>(weight, p.w + c, left);
#pragma unroll
            for (int k = 0; k < 8; k++) {
                xhat[j][k] *= rstd;
                dw[j][k] += g[j][k] * xhat[j][k];
                g[j][k] *= weight[k];
                mean += g[j][k] * xhat[j][k];
            }
        }
        mean = block_sum(mean, room) / (float)p.C;
#pragma unroll
        for (int j = 0; j < K; j++) {
            const int c = column(j), left = p.C - c;
            float d[8] = {};
            if (left <= 0)
                continue;
            if (!p.dx_set)
                load<WIDE, 8>(d, p.dx + r * p.C + c, left);
#pragma unroll
            for (int k = 0; k < 8; k++)
                d[k] += rstd * (g[j][k] - xhat[j][k] * mean);
            store<WIDE, 8>(p.dx + r * p.C + c, d, left);
            if (p.dy)
                store<WIDE, 8>((T *)p.dy + r * p.C + c, d, left);
        }
    }
    store_columns<K, WIDE>(w.partial + (int64_t)blockIdx.x * p.C, dw, p.C);
}

extern "C" int cuda_rmsnorm_bwd(struct device *dev, const struct rmsnorm_bwd *p, struct stream *s)
{
    const struct layout l = row_layout(p->C);
    struct walk w = make_walk(1, p->rows, BWD_BLOCKS * s->st->multiprocessors);
    void *partial;
    int rc = cuda_scratch(s, (size_t)w.parts * (size_t)p->C * sizeof(float), &partial);
    if (rc < 0)
        return rc;
    w.partial = (float *)partial;
    bool wide = p->C % 8 == 0 && aligned16(p->dx, p->dy, p->dh, p->x, p->w);
    rc = launch(s, PICK(rmsnorm_bwd_kernel, l, wide, p->dt), dim3((unsigned)w.parts), l.threads, 0,
                *p, w);
    return rc < 0 ? rc : cuda_finish_sums(p->dw, p->C, w.partial, 1, w.parts, p->C, true, s);
}
