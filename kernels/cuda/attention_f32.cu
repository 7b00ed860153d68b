/* Attention in f32, where tensor cores would round: a block owns 32 rows of one head, four to
 * a warp, and walks the other side in tiles of 32.  A lane has one row of the tile while
 * scores are made, and columns lane, lane + 32, ... of D while rows are added up.  The forward
 * takes keys and values of more than 128 channels in chunks. */
#include <math.h>

#include "kernels/cuda/attention.cuh"

enum { TILE = 32, WARPS = 8, MINE = TILE / WARPS, PIECES = 4, CHUNK = PIECES * WARP };

struct work {
    struct heads<float> a;
    const float *bias; /* forward: (H,T,Tk) or NULL */
    float *o, *lse_out;
    float *dq, *dk, *dv; /* backward: as q, k and v lie */
    const float *d_o, *o_in, *lse;
    float *delta;           /* (B,H,T) */
    int blocks, key_blocks; /* of queries, and of keys */
    int LD;                 /* of a tile's row: odd, so that a column lies in 32 banks */
};

static __device__ __forceinline__ int my_warp(void)
{
    return (int)threadIdx.x / WARP;
}

static __device__ __forceinline__ int my_lane(void)
{
    return (int)threadIdx.x % WARP;
}

/* tile (TILE,LD) = src (TILE,D) of stride ld, zero from row `valid` on. */
static __device__ void load_rows(float *tile, const float *src, int64_t ld, int valid, int D,
                                 int LD)
{
    for (int i = (int)threadIdx.x; i < TILE * D; i += TILE * WARPS) {
        const int r = i / D, c = i % D;
        tile[r * LD + c] = r < valid ? src[r * ld + c] : 0.0f;
    }
}

/* s[i] += row i of this warp's `mine` times row `lane` of `theirs`, rows mine_ld and LD apart. */
static __device__ __forceinline__ void add_dots(float s[MINE], const float *mine, int mine_ld,
                                                const float *theirs, int D, int LD)
{
    const float *row = theirs + my_lane() * LD;
#pragma unroll 2
    for (int d = 0; d < D; d++)
#pragma unroll
        for (int i = 0; i < MINE; i++)
            s[i] += mine[i * mine_ld + d] * row[d];
}

static __device__ __forceinline__ void dots(float s[MINE], const float *mine, const float *theirs,
                                            int D, int LD)
{
#pragma unroll
    for (int i = 0; i < MINE; i++)
        s[i] = 0;
    add_dots(s, mine, LD, theirs, D, LD);
}

/* acc[i][] += sum over the tile's rows j of w[i] of lane j times row j of `theirs`. */
static __device__ __forceinline__ void add_rows(float acc[MINE][PIECES], const float w[MINE],
                                                const float *theirs, int D, int LD)
{
#pragma unroll 2
    for (int j = 0; j < TILE; j++)
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const float p = __shfl_sync(FULL_WARP, w[i], j);
#pragma unroll
            for (int n = 0; n < PIECES; n++)
                if (my_lane() + n * WARP < D)
                    acc[i][n] += p * theirs[j * LD + my_lane() + n * WARP];
        }
}

static __device__ __forceinline__ void zero(float acc[MINE][PIECES])
{
#pragma unroll
    for (int i = 0; i < MINE; i++)
#pragma unroll
        for (int n = 0; n < PIECES; n++)
            acc[i][n] = 0;
}

/* dst (MINE,D) of stride ld = acc * factor, the rows below `valid`. */
static __device__ __forceinline__ void put_rows(float *dst, int64_t ld, float acc[MINE][PIECES],
                                                const float factor[MINE], int valid, int D)
{
#pragma unroll
    for (int i = 0; i < MINE; i++)
#pragma unroll
        for (int n = 0; n < PIECES; n++)
            if (i < valid && my_lane() + n * WARP < D)
                dst[i * ld + my_lane() + n * WARP] = acc[i][n] * factor[i];
}

/* The scores of a tile of keys, from u0 on, to probabilities; rescales what was there before. */
template <int CHUNKS>
static __device__ __forceinline__ void
softmax_tile(const struct work &p, float s[MINE], float max[MINE], float sum[MINE],
             float o[CHUNKS][MINE][PIECES], int h, int t, int u, const int *first, const int *end)
{
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const bool seen = u >= first[i] && u < end[i];
        s[i] = seen ? s[i] * p.a.scale : -INFINITY;
        if (seen && p.bias)
            s[i] += p.bias[((int64_t)h * p.a.T + t + i) * p.a.Tk + u];
        const float now = fmaxf(max[i], warp_max(s[i]));
        const float from = now == -INFINITY ? 0.0f : now;
        const float keep = expf(max[i] - from);
        s[i] = expf(s[i] - from);
        sum[i] = sum[i] * keep + warp_sum(s[i]);
        max[i] = now;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++)
#pragma unroll
            for (int n = 0; n < PIECES; n++)
                o[c][i][n] *= keep;
    }
}

template <int CHUNKS>
__global__ void __launch_bounds__(TILE *WARPS, CHUNKS > 1 ? 1 : 2)
    attention_fwd_f32_kernel(struct work p)
{
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[TILE], ends[TILE];
    const struct heads<float> &a = p.a;
    const int q_ld = a.D | 1;
    float *q = (float *)shared, *k = q + TILE * q_ld, *v = k + TILE * p.LD;
    const int64_t head = blockIdx.x / (unsigned)p.blocks;
    const int t0 = (int)(blockIdx.x % (unsigned)p.blocks) * TILE, row = my_warp() * MINE;
    const int b = (int)(head / a.H), h = (int)(head % a.H), hk = h / (a.H / a.Hkv);
    const int begin = key_ranges(a, b, t0, TILE, firsts, ends);
    const int end = key_end(a, b, min(t0 + TILE, a.T) - 1), keys = keys_of(a, b);
    float o[CHUNKS][MINE][PIECES], s[MINE], max[MINE], sum[MINE];
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        zero(o[c]);
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        max[i] = -INFINITY;
        sum[i] = 0;
    }
    load_rows(q, a.q + ((int64_t)b * a.T + t0) * a.q_ld + (int64_t)h * a.D, a.q_ld, a.T - t0, a.D,
              q_ld);
    for (int u0 = begin; u0 < end; u0 += TILE) {
        const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
#pragma unroll
        for (int i = 0; i < MINE; i++)
            s[i] = 0;
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int from = c * CHUNK, width = min(a.D - from, (int)CHUNK);
            __syncthreads();
            load_rows(k, a.k + at + from, a.kv_ld, keys - u0, width, p.LD);
            if (c == 0)
                load_rows(v, a.v + at, a.kv_ld, keys - u0, width, p.LD);
            __syncthreads();
            add_dots(s, q + row * q_ld + from, q_ld, k, width, p.LD);
        }
        softmax_tile<CHUNKS>(p, s, max, sum, o, h, t0 + row, u0 + my_lane(), firsts + row,
                             ends + row);
#pragma unroll
        for (int c = 0; c < CHUNKS; c++) {
            const int from = c * CHUNK, width = min(a.D - from, (int)CHUNK);
            if (c > 0) {
                __syncthreads();
                load_rows(v, a.v + at + from, a.kv_ld, keys - u0, width, p.LD);
                __syncthreads();
            }
            add_rows(o[c], s, v, width, p.LD);
        }
    }
#pragma unroll
    for (int i = 0; i < MINE; i++) {
        const int t = t0 + row + i;
        if (p.lse_out && t < a.T && my_lane() == 0)
            p.lse_out[head * a.T + t] = max[i] + logf(sum[i]);
        sum[i] = sum[i] > 0 ? 1.0f / sum[i] : 0.0f;
    }
    float *out = p.o + (((int64_t)b * a.T + t0 + row) * a.H + h) * a.D;
#pragma unroll
    for (int c = 0; c < CHUNKS; c++)
        put_rows(out + c * CHUNK, (int64_t)a.H * a.D, o[c], sum, a.T - t0 - row, a.D - c * CHUNK);
}

/* One warp to a row. */
__global__ void __launch_bounds__(TILE *WARPS) delta_f32_kernel(struct work p)
{
    const struct heads<float> &a = p.a;
    const int64_t i = (int64_t)blockIdx.x * WARPS + my_warp(), rows = (int64_t)a.B * a.T * a.H;
    float sum = 0;
    for (int c = my_lane(); i < rows && c < a.D; c += WARP)
        sum += p.d_o[i * a.D + c] * p.o_in[i * a.D + c];
    sum = warp_sum(sum);
    const int64_t h = i % a.H, t = i / a.H % a.T, b = i / a.H / a.T;
    if (my_lane() == 0 && i < rows)
        p.delta[(b * a.H + h) * a.T + t] = sum;
}

__global__ void __launch_bounds__(TILE *WARPS, 2) attention_dq_f32_kernel(struct work p)
{
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[TILE], ends[TILE];
    const struct heads<float> &a = p.a;
    float *q = (float *)shared, *d_o = q + TILE * p.LD, *k = d_o + TILE * p.LD;
    float *v = k + TILE * p.LD;
    const int64_t head = blockIdx.x / (unsigned)p.blocks;
    const int t0 = (int)(blockIdx.x % (unsigned)p.blocks) * TILE, row = my_warp() * MINE;
    const int b = (int)(head / a.H), h = (int)(head % a.H), hk = h / (a.H / a.Hkv);
    const int begin = key_ranges(a, b, t0, TILE, firsts, ends);
    const int end = key_end(a, b, min(t0 + TILE, a.T) - 1), keys = keys_of(a, b);
    const int64_t q_row = (int64_t)b * a.T + t0;
    float dq[MINE][PIECES], s[MINE], dp[MINE], factor[MINE];
    zero(dq);
    load_rows(q, a.q + q_row * a.q_ld + (int64_t)h * a.D, a.q_ld, a.T - t0, a.D, p.LD);
    load_rows(d_o, p.d_o + (q_row * a.H + h) * a.D, (int64_t)a.H * a.D, a.T - t0, a.D, p.LD);
    for (int u0 = begin; u0 < end; u0 += TILE) {
        const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
        __syncthreads();
        load_rows(k, a.k + at, a.kv_ld, keys - u0, a.D, p.LD);
        load_rows(v, a.v + at, a.kv_ld, keys - u0, a.D, p.LD);
        __syncthreads();
        dots(s, q + row * p.LD, k, a.D, p.LD);
        dots(dp, d_o + row * p.LD, v, a.D, p.LD);
#pragma unroll
        for (int i = 0; i < MINE; i++) {
            const int u = u0 + my_lane();
            const int64_t stat = head * a.T + t0 + row + i;
            const bool seen = u >= firsts[row + i] && u < ends[row + i];
            const float prob = seen ? expf(s[i] * a.scale - p.lse[stat]) : 0.0f;
            s[i] = seen ? prob * (dp[i] - p.delta[stat]) : 0.0f;
            factor[i] = a.scale;
        }
        add_rows(dq, s, k, a.D, p.LD);
    }
    put_rows(p.dq + (q_row + row) * a.q_ld + (int64_t)h * a.D, a.q_ld, dq, factor, a.T - t0 - row,
             a.D);
}

__global__ void __launch_bounds__(TILE *WARPS, 2) attention_dkv_f32_kernel(struct work p)
{
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[TILE], ends[TILE];
    const struct heads<float> &a = p.a;
    float *k = (float *)shared, *v = k + TILE * p.LD, *q = v + TILE * p.LD, *d_o = q + TILE * p.LD;
    const int u0 = (int)(blockIdx.x % (unsigned)p.key_blocks) * TILE, row = my_warp() * MINE;
    const int64_t head = blockIdx.x / (unsigned)p.key_blocks;
    const int b = (int)(head / a.Hkv), hk = (int)(head % a.Hkv), share = a.H / a.Hkv;
    const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
    const float scales[MINE] = {a.scale, a.scale, a.scale, a.scale}, ones[MINE] = {1, 1, 1, 1};
    float dk[MINE][PIECES], dv[MINE][PIECES], s[MINE], dp[MINE];
    zero(dk);
    zero(dv);
    const int keys = keys_of(a, b), begin = u0 < keys ? first_query(a, u0) / TILE * TILE : a.T;
    load_rows(k, a.k + at, a.kv_ld, keys - u0, a.D, p.LD);
    load_rows(v, a.v + at, a.kv_ld, keys - u0, a.D, p.LD);
    for (int h = hk * share; h < (hk + 1) * share; h++)
        for (int t0 = begin; t0 < a.T; t0 += TILE) {
            const int64_t q_row = (int64_t)b * a.T + t0;
            key_ranges(a, b, t0, TILE, firsts, ends);
            load_rows(q, a.q + q_row * a.q_ld + (int64_t)h * a.D, a.q_ld, a.T - t0, a.D, p.LD);
            load_rows(d_o, p.d_o + (q_row * a.H + h) * a.D, (int64_t)a.H * a.D, a.T - t0, a.D,
                      p.LD);
            __syncthreads();
            const int t = t0 + my_lane();
            const int64_t stat = ((int64_t)b * a.H + h) * a.T + t;
            const float lse = t < a.T ? p.lse[stat] : 0.0f, delta = t < a.T ? p.delta[stat] : 0.0f;
            dots(s, k + row * p.LD, q, a.D, p.LD);
            dots(dp, v + row * p.LD, d_o, a.D, p.LD);
#pragma unroll
            for (int i = 0; i < MINE; i++) {
                const int u = u0 + row + i;
                const bool seen = u >= firsts[my_lane()] && u < ends[my_lane()];
                s[i] = seen ? expf(s[i] * a.scale - lse) : 0.0f;
                dp[i] = seen ? s[i] * (dp[i] - delta) : 0.0f;
            }
            add_rows(dv, s, d_o, a.D, p.LD);
            add_rows(dk, dp, q, a.D, p.LD);
        }
    put_rows(p.dk + at + row * a.kv_ld, a.kv_ld, dk, scales, a.Tk - u0 - row, a.D);
    put_rows(p.dv + at + row * a.kv_ld, a.kv_ld, dv, ones, a.Tk - u0 - row, a.D);
}

static size_t tiles(const struct work *w, int n)
{
    return (size_t)n * TILE * (size_t)w->LD * sizeof(float);
}

template <int CHUNKS> static int run_fwd(const struct work &w, struct stream *s)
{
    return launch(s, attention_fwd_f32_kernel<CHUNKS>, dim3((unsigned)(w.blocks * w.a.B * w.a.H)),
                  TILE * WARPS, tiles(&w, 2) + (size_t)TILE * (size_t)(w.a.D | 1) * sizeof(float),
                  w);
}

extern "C" int cuda_attention_fwd_f32(const struct attention_fwd *p, struct stream *s)
{
    struct work w = {};
    w.a = make_heads<float>(p, p->kv ? p->Tk : 0, p->kv_stride, s->st->fault);
    w.bias = p->bias;
    w.o = (float *)p->o;
    w.lse_out = p->lse;
    w.blocks = (p->T + TILE - 1) / TILE;
    w.LD = (p->D < CHUNK ? p->D : (int)CHUNK) | 1;
    return p->D <= CHUNK ? run_fwd<1>(w, s) : run_fwd<4>(w, s);
}

extern "C" int cuda_attention_bwd_f32(const struct attention_bwd *p, struct stream *s)
{
    const int64_t rows = (int64_t)p->B * p->T * p->H;
    struct work w = {};
    void *delta;
    int rc = cuda_scratch(s, (size_t)rows * sizeof(float), &delta);
    if (rc < 0)
        return rc;
    w.a = make_heads<float>(p, p->q ? p->Tk : 0, 0, s->st->fault);
    w.dq = (float *)(p->q ? p->dq : p->dqkv);
    w.dk = p->q ? (float *)p->dkv : w.dq + (int64_t)w.a.H * w.a.D;
    w.dv = w.dk + (int64_t)w.a.Hkv * w.a.D;
    w.d_o = (const float *)p->d_o;
    w.o_in = (const float *)p->o;
    w.lse = p->lse;
    w.delta = (float *)delta;
    w.blocks = (p->T + TILE - 1) / TILE;
    w.key_blocks = (w.a.Tk + TILE - 1) / TILE;
    w.LD = p->D | 1;
    rc = launch(s, delta_f32_kernel, dim3(blocks_of(rows, WARPS)), TILE * WARPS, 0, w);
    if (rc == 0)
        rc = launch(s, attention_dq_f32_kernel, dim3((unsigned)(w.blocks * p->B * p->H)),
                    TILE * WARPS, tiles(&w, 4), w);
    if (rc == 0)
        rc = launch(s, attention_dkv_f32_kernel, dim3((unsigned)(w.key_blocks * p->B * w.a.Hkv)),
                    TILE * WARPS, tiles(&w, 4), w);
    return rc;
}
