/* Attention's forward on the tensor cores, after FlashAttention-2 (Dao 2023): a block owns 64
 * queries of one head, its four warps 16 each, and walks the keys in tiles of 64. */
#include <math.h>

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/sdpa.h"

enum { ROWS = 64, KEYS = 64, THREADS = 128 };

struct fwd {
    struct heads<bf16> a;
    const float *bias; /* (H,T,Tk) or NULL */
    bf16 *o;
    float *lse;
    int blocks; /* of queries */
};

/* A warp's 16 rows so far: the lane has rows g and g + 8. */
struct softmax {
    float max[2], sum[2]; /* of scores in units of ln 2; the sum over this lane's columns */
};

/* p = 2^(score - max) of the new scores, where seen; rescales what was there before. */
template <int N>
static __device__ __forceinline__ void softmax_step(struct softmax *st, float s[KEYS / 8][4],
                                                    float o[N][4])
{
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float max = st->max[half], sum = 0;
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
            max = fmaxf(max, fmaxf(s[n][2 * half], s[n][2 * half + 1]));
        max = fmaxf(max, __shfl_xor_sync(FULL_WARP, max, 1));
        max = fmaxf(max, __shfl_xor_sync(FULL_WARP, max, 2));
        const float from = max == -INFINITY ? 0.0f : max; /* no key seen yet */
        const float keep = fast_exp2(st->max[half] - from);
#pragma unroll
        for (int n = 0; n < KEYS / 8; n++)
#pragma unroll
            for (int i = 2 * half; i < 2 * half + 2; i++) {
                s[n][i] = fast_exp2(s[n][i] - from);
                sum += s[n][i];
            }
        st->max[half] = max;
        st->sum[half] = st->sum[half] * keep + sum;
#pragma unroll
        for (int n = 0; n < N; n++) {
            o[n][2 * half] *= keep;
            o[n][2 * half + 1] *= keep;
        }
    }
}

/* Scales the scores of keys u0 on, and hides what the two rows do not see. */
template <int N>
static __device__ __forceinline__ void mask(float s[N][4], float scale, int u0, const int first[2],
                                            const int end[2])
{
    const int t = (int)threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int u = u0 + n * 8 + 2 * t + i % 2;
            s[n][i] = u >= first[i / 2] && u < end[i / 2] ? s[n][i] * scale : -INFINITY;
        }
}

/* Adds the bias of queries t and t + 8 of head h to the scores that mask has left. */
template <int N>
static __device__ __forceinline__ void add_bias(float s[N][4], const struct fwd &p, int h, int t,
                                                int u0)
{
    const float *row = p.bias + ((int64_t)h * p.a.T + t) * p.a.Tk + u0 + threadIdx.x % 4 * 2;
#pragma unroll
    for (int n = 0; n < N; n++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (s[n][i] > -INFINITY)
                s[n][i] += row[(int64_t)(i / 2 * 8) * p.a.Tk + n * 8 + i % 2] * LOG2E;
}

template <int DP, bool WIDE>
__global__ void __launch_bounds__(THREADS) attention_fwd_kernel(struct fwd p)
{
    enum { LD = DP + 8 };
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[ROWS], ends[ROWS];
    bf16 *q = (bf16 *)shared, *k = q + ROWS * LD, *v = k + KEYS * LD;
    const struct heads<bf16> &a = p.a;
    const int64_t head = blockIdx.x / (unsigned)p.blocks;
    /* The last queries see most keys: they start first. */
    const int t0 = (p.blocks - 1 - (int)(blockIdx.x % (unsigned)p.blocks)) * ROWS;
    const int b = (int)(head / a.H), h = (int)(head % a.H), hk = h / (a.H / a.Hkv);
    const int warp = (int)threadIdx.x / WARP, g = (int)threadIdx.x % WARP / 4;
    const int begin = key_ranges(a, b, t0, ROWS, firsts, ends) / KEYS * KEYS;
    const int end = key_end(a, b, min(t0 + ROWS, a.T) - 1), keys = keys_of(a, b);
    const int row = warp * 16 + g;
    const int row_first[2] = {firsts[row], firsts[row + 8]},
              row_end[2] = {ends[row], ends[row + 8]};
    struct softmax st = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[DP / 8][4];
    clear<DP / 8>(o);
    load_tile<DP, WIDE>(q, a.q + ((int64_t)b * a.T + t0) * a.q_ld + (int64_t)h * a.D, a.q_ld, ROWS,
                        a.T - t0, a.D);
    for (int u0 = begin; u0 < end; u0 += KEYS) {
        const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
        float s[KEYS / 8][4];
        __syncthreads();
        load_tile<DP, WIDE>(k, a.k + at, a.kv_ld, KEYS, keys - u0, a.D);
        load_tile<DP, WIDE>(v, a.v + at, a.kv_ld, KEYS, keys - u0, a.D);
        __syncthreads();
        clear<KEYS / 8>(s);
        times_rows<DP, KEYS / 8>(s, q + warp * 16 * LD, k);
        mask<KEYS / 8>(s, a.scale * LOG2E, u0, row_first, row_end);
        if (p.bias)
            add_bias<KEYS / 8>(s, p, h, t0 + row, u0);
        softmax_step<DP / 8>(&st, s, o);
        times_columns<DP, KEYS / 8>(o, s, v);
    }
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float sum = st.sum[half];
        sum += __shfl_xor_sync(FULL_WARP, sum, 1);
        sum += __shfl_xor_sync(FULL_WARP, sum, 2);
        const float inverse = sum > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int n = 0; n < DP / 8; n++) {
            o[n][2 * half] *= inverse;
            o[n][2 * half + 1] *= inverse;
        }
        const int t = t0 + row + 8 * half;
        if (p.lse && t < a.T && threadIdx.x % 4 == 0)
            p.lse[head * a.T + t] = (st.max[half] + log2f(sum)) * LN2;
    }
    __syncwarp(); /* the warp's rows of q become those of o */
    bf16 *out = p.o + (((int64_t)b * a.T + t0 + warp * 16) * a.H + h) * a.D;
    store_rows<DP, WIDE>(out, (int64_t)a.H * a.D, q + warp * 16 * LD, o, a.T - t0 - warp * 16, a.D);
}

template <int DP> static int run(const struct fwd &p, bool wide, struct stream *s)
{
    const size_t shared = (size_t)(ROWS + 2 * KEYS) * (DP + 8) * sizeof(bf16);
    dim3 grid((unsigned)(p.blocks * p.a.B * p.a.H));
    return wide ? launch(s, attention_fwd_kernel<DP, true>, grid, THREADS, shared, p)
                : launch(s, attention_fwd_kernel<DP, false>, grid, THREADS, shared, p);
}

/* ---- heads above 128 channels ----
 *
 * Eight warps: 16 queries to each of four, twice.  One half has the scores of the first half of a
 * tile of keys and the other those of the second; probabilities meet in shared memory, where each
 * half takes them to its half of the channels.  Channels come in chunks. */
enum {
    CHUNK = 128,
    CHUNK_LD = CHUNK + 8,
    TILE = ROWS * CHUNK_LD, /* of as many keys */
    HALF = KEYS / 2,
    PROB_LD = KEYS + 8,
    MANY = 2 * THREADS
};

/* acc (16,CHUNK) += prob (16,KEYS) right (KEYS,CHUNK), both in shared memory. */
static __device__ __forceinline__ void add_values(float acc[CHUNK / 8][4], const bf16 *prob,
                                                  const bf16 *right)
{
    const int lane = (int)threadIdx.x % WARP;
#pragma unroll
    for (int k = 0; k < KEYS / 16; k++) {
        uint32_t a[4], b[4];
        left_piece<PROB_LD>(a, prob, k);
#pragma unroll
        for (int n = 0; n < CHUNK / 16; n++) {
            ldmatrix4_t(b, right + (k * 16 + (lane & 15)) * CHUNK_LD + n * 16 + (lane >> 4) * 8);
            mma_bf16(acc[2 * n], a, b[0], b[1]);
            mma_bf16(acc[2 * n + 1], a, b[2], b[3]);
        }
    }
}

/* The largest of a row among the four lanes that have it. */
static __device__ __forceinline__ float quad_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 1));
    return fmaxf(x, __shfl_xor_sync(FULL_WARP, x, 2));
}

static __device__ __forceinline__ float quad_sum(float x)
{
    x += __shfl_xor_sync(FULL_WARP, x, 1);
    return x + __shfl_xor_sync(FULL_WARP, x, 2);
}

/* As softmax_step, with the other half's keys; the probabilities go to prob, from the lane's row
 * and column on.  Returns what earlier sums are to be multiplied by.  All threads. */
static __device__ __forceinline__ void softmax_halves(struct softmax *st, float s[HALF / 8][4],
                                                      float (*part)[ROWS], int half, int row,
                                                      bf16 *prob, float keep[2])
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float max = -INFINITY;
#pragma unroll
        for (int n = 0; n < HALF / 8; n++)
            max = fmaxf(max, fmaxf(s[n][2 * i], s[n][2 * i + 1]));
        part[half][row + 8 * i] = quad_max(max); /* four lanes write the same */
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float max = fmaxf(st->max[i], fmaxf(part[0][row + 8 * i], part[1][row + 8 * i]));
        const float from = max == -INFINITY ? 0.0f : max;
        float sum = 0;
        keep[i] = fast_exp2(st->max[i] - from);
#pragma unroll
        for (int n = 0; n < HALF / 8; n++) {
            const float lo = fast_exp2(s[n][2 * i] - from), hi = fast_exp2(s[n][2 * i + 1] - from);
            sum += lo + hi;
            *(uint32_t *)(prob + 8 * i * PROB_LD + n * 8) = pack_bf16(lo, hi);
        }
        st->max[i] = max;
        st->sum[i] = st->sum[i] * keep[i] + sum;
    }
    __syncthreads();
}

/* Where a warp of the eight is. */
struct place {
    bf16 *left, *right, *prob; /* shared memory: two tiles, and the probabilities */
    int half, rows, row;       /* its first query of the block, and the lane's first */
};

/* s (16,HALF) = the warp's queries times its half of the keys; k: the tile's first. */
template <bool WIDE>
static __device__ __forceinline__ void large_scores(float s[HALF / 8][4], const struct place &w,
                                                    const struct heads<bf16> &a, const bf16 *q,
                                                    int queries, const bf16 *k, int keys)
{
    clear<HALF / 8>(s);
    for (int c = 0; c < a.D; c += CHUNK) {
        __syncthreads();
        load_tile<CHUNK, WIDE>(w.left, q + c, a.q_ld, ROWS, queries, a.D - c);
        load_tile<CHUNK, WIDE>(w.right, k + c, a.kv_ld, KEYS, keys, a.D - c);
        __syncthreads();
        times_rows<CHUNK, HALF / 8>(s, w.left + w.rows * CHUNK_LD,
                                    w.right + w.half * HALF * CHUNK_LD);
    }
}

/* o = o * keep + the probabilities times the warp's half of the channels of v.  MINE: chunks of
 * channels of each half. */
template <int MINE, bool WIDE>
static __device__ __forceinline__ void
large_values(float o[MINE][CHUNK / 8][4], const float keep[2], const struct place &w,
             const struct heads<bf16> &a, const bf16 *v, int keys)
{
#pragma unroll
    for (int c = 0; c < MINE; c++) {
        if (c > 0)
            __syncthreads();
        for (int i = 0; i < 2; i++) {
            const int from = (i * MINE + c) * CHUNK;
            load_tile<CHUNK, WIDE>(i ? w.right : w.left, v + from, a.kv_ld, KEYS, keys, a.D - from);
        }
        __syncthreads();
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[c][n][i] *= keep[i / 2];
        add_values(o[c], w.prob + w.rows * PROB_LD, w.half ? w.right : w.left);
    }
}

/* Divides by the sums of both halves, and stores; lse: of the block's first query, or NULL. */
template <int MINE, bool WIDE>
static __device__ __forceinline__ void
large_end(float o[MINE][CHUNK / 8][4], const struct softmax &st, float (*part)[ROWS],
          const struct place &w, bf16 *out, float *lse, int64_t ld, int queries, int D)
{
    const int lane = (int)threadIdx.x % WARP;
    bf16 *room = w.left + (int)threadIdx.x / WARP * 16 * CHUNK_LD;
    float factor[2];
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++)
        part[w.half][w.row + 8 * i] = quad_sum(st.sum[i]);
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const int t = w.row + 8 * i;
        const float sum = part[0][t] + part[1][t];
        factor[i] = sum > 0 ? 1.0f / sum : 0.0f;
        if (lse && w.half == 0 && t < queries && lane % 4 == 0)
            lse[t] = (st.max[i] + log2f(sum)) * LN2;
    }
#pragma unroll
    for (int c = 0; c < MINE; c++) {
        const int from = (w.half * MINE + c) * CHUNK;
#pragma unroll
        for (int n = 0; n < CHUNK / 8; n++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                o[c][n][i] *= factor[i / 2];
        __syncwarp();
        store_rows<CHUNK, WIDE>(out + w.rows * ld + from, ld, room, o[c], queries - w.rows,
                                D - from);
    }
}

template <int MINE, bool WIDE>
__global__ void __launch_bounds__(MANY) attention_large_kernel(struct fwd p)
{
    SHARED_DYNAMIC(shared);
    __shared__ int firsts[ROWS], ends[ROWS];
    __shared__ float part[2][ROWS];
    const struct heads<bf16> &a = p.a;
    const int64_t head = blockIdx.x / (unsigned)p.blocks;
    const int t0 = (p.blocks - 1 - (int)(blockIdx.x % (unsigned)p.blocks)) * ROWS;
    const int b = (int)(head / a.H), h = (int)(head % a.H), hk = h / (a.H / a.Hkv);
    const int warp = (int)threadIdx.x / WARP, lane = (int)threadIdx.x % WARP, rows = warp % 4 * 16;
    bf16 *tiles = (bf16 *)shared;
    const struct place w = {tiles, tiles + TILE, tiles + 2 * TILE, warp / 4, rows, rows + lane / 4};
    const int begin = key_ranges(a, b, t0, ROWS, firsts, ends) / KEYS * KEYS;
    const int end = key_end(a, b, min(t0 + ROWS, a.T) - 1), keys = keys_of(a, b);
    const int row_first[2] = {firsts[w.row], firsts[w.row + 8]},
              row_end[2] = {ends[w.row], ends[w.row + 8]};
    const bf16 *q = a.q + ((int64_t)b * a.T + t0) * a.q_ld + (int64_t)h * a.D;
    bf16 *prob = w.prob + w.row * PROB_LD + w.half * HALF + lane % 4 * 2;
    struct softmax st = {{-INFINITY, -INFINITY}, {0, 0}};
    float o[MINE][CHUNK / 8][4];
#pragma unroll
    for (int c = 0; c < MINE; c++)
        clear<CHUNK / 8>(o[c]);
    for (int u0 = begin; u0 < end; u0 += KEYS) {
        const int64_t at = b * a.kv_stride + u0 * a.kv_ld + (int64_t)hk * a.D;
        float s[HALF / 8][4], keep[2];
        large_scores<WIDE>(s, w, a, q, a.T - t0, a.k + at, keys - u0);
        mask<HALF / 8>(s, a.scale * LOG2E, u0 + w.half * HALF, row_first, row_end);
        if (p.bias)
            add_bias<HALF / 8>(s, p, h, t0 + w.row, u0 + w.half * HALF);
        softmax_halves(&st, s, part, w.half, w.row, prob, keep);
        large_values<MINE, WIDE>(o, keep, w, a, a.v + at, keys - u0);
    }
    large_end<MINE, WIDE>(o, st, part, w, p.o + (((int64_t)b * a.T + t0) * a.H + h) * a.D,
                          p.lse ? p.lse + head * a.T + t0 : NULL, (int64_t)a.H * a.D, a.T - t0,
                          a.D);
}

template <int MINE> static int run_large(const struct fwd &p, bool wide, struct stream *s)
{
    const size_t shared = (2 * (size_t)TILE + (size_t)ROWS * PROB_LD) * sizeof(bf16);
    dim3 grid((unsigned)(p.blocks * p.a.B * p.a.H));
    return wide ? launch(s, attention_large_kernel<MINE, true>, grid, MANY, shared, p)
                : launch(s, attention_large_kernel<MINE, false>, grid, MANY, shared, p);
}

extern "C" int cuda_attention_fwd(struct device *dev, const struct attention_fwd *p,
                                  struct stream *s)
{
    if (p->dt == DT_F32)
        return cuda_attention_fwd_f32(p, s);
    int rc = sdpa_fwd(p, s);
    if (rc <= 0)
        return rc;
    struct fwd f;
    f.a = make_heads<bf16>(p, p->kv ? p->Tk : 0, p->kv_stride, s->st->fault);
    f.bias = p->bias;
    f.o = (bf16 *)p->o;
    f.lse = p->lse;
    f.blocks = (p->T + ROWS - 1) / ROWS;
    const bool wide = wide_heads(f.a) && aligned16(p->o);
    return p->D <= 32    ? run<32>(f, wide, s)
           : p->D <= 64  ? run<64>(f, wide, s)
           : p->D <= 80  ? run<80>(f, wide, s)
           : p->D <= 128 ? run<128>(f, wide, s)
           : p->D <= 256 ? run_large<1>(f, wide, s)
                         : run_large<2>(f, wide, s);
}
